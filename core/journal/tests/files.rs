//! The journal in a folder: locks, fences, spares, and kill -9 of a process that writes.

use muster_journal::{check as check_log, AppendError, Checked, Committer, Group, Journal, OpenError, Options, Owner};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const SMALL: Options = Options {
    segment_bytes: 64 << 10,
    owner: Owner::Sole,
    begin: 0,
    after: 0,
};

fn group(numbers: std::ops::Range<u64>) -> Group {
    let mut group = Group::new();
    for number in numbers {
        group
            .push_parts(&[&number.to_le_bytes(), &[number as u8; 192]])
            .unwrap();
    }
    group
}

/// Checks that all records are there; returns the end of the log.
fn check(journal: &Journal) -> u64 {
    let mut reader = journal.reader(journal.start()).unwrap();
    let mut next = journal.start();
    while let Some(records) = reader.next_group().unwrap() {
        for (offset, record) in records {
            assert_eq!(offset, next);
            assert_eq!(record[..8], offset.to_le_bytes());
            assert!(record.len() == 200 && record[8..].iter().all(|&byte| byte == offset as u8));
            next += 1;
        }
    }
    assert_eq!(next, journal.end());
    next
}

fn files(folder: &Path, kind: &str) -> usize {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .path()
                .extension()
                .is_some_and(|found| found == kind)
        })
        .count()
}

#[test]
fn second_process_finds_the_journal_locked() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path(), SMALL).unwrap();
    assert!(matches!(Journal::open(folder.path(), SMALL), Err(OpenError::Locked)));
    drop(journal);
    assert_eq!(Journal::open(folder.path(), SMALL).unwrap().epoch(), 2);
}

#[test]
fn higher_epoch_fences_the_running_owner() {
    let folder = tempfile::tempdir().unwrap();
    let owned = |epoch| Options {
        owner: Owner::Epoch(epoch),
        ..SMALL
    };
    let mut first = Journal::open(folder.path(), owned(5)).unwrap();
    assert_eq!(first.append(&mut group(0..3)).unwrap(), 0..3);
    for stale in [4, 5] {
        assert!(matches!(
            Journal::open(folder.path(), owned(stale)),
            Err(OpenError::Fenced { by: 5 })
        ));
    }
    let mut second = Journal::open(folder.path(), owned(6)).unwrap();
    assert!(matches!(
        first.append(&mut group(3..4)),
        Err(AppendError::Fenced { by: 6 })
    ));
    assert!(matches!(first.append(&mut group(3..4)), Err(AppendError::Refused)));
    assert!(matches!(first.trim(3), Err(AppendError::Fenced { by: 6 })));
    assert_eq!(second.append(&mut group(3..5)).unwrap(), 3..5);
    assert_eq!(check(&second), 5);
    assert!(matches!(Journal::open(folder.path(), SMALL), Err(OpenError::Locked)));
    drop((first, second));
    assert_eq!(check(&Journal::open(folder.path(), SMALL).unwrap()), 5);
}

#[test]
fn committer_notices_a_later_owner_before_it_appends() {
    let folder = tempfile::tempdir().unwrap();
    let owned = |epoch| Options {
        owner: Owner::Epoch(epoch),
        ..SMALL
    };
    let committer = Committer::new(Journal::open(folder.path(), owned(5)).unwrap()).unwrap();
    assert!(committer.owns().unwrap());
    let next = Journal::open(folder.path(), owned(6)).unwrap();
    assert!(!committer.owns().unwrap());
    drop(next);
    assert!(!committer.owns().unwrap(), "whether or not it still runs");
}

#[test]
fn trimmed_segments_are_reused_and_the_folder_stays_small() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), SMALL).unwrap();
    for at in 0..200 {
        journal.append(&mut group(at * 50..at * 50 + 50)).unwrap();
        journal.trim(journal.end() - 50).unwrap();
        assert!(files(folder.path(), "segment") <= 2);
        assert!(files(folder.path(), "spare") <= 3);
    }
    assert!(journal.start() > 9_000);
    check(&journal);
    journal.close().unwrap();
    let journal = Journal::open(folder.path(), SMALL).unwrap();
    assert_eq!(check(&journal), 10_000);
}

/// Whether a file of the folder has the record of this number.
fn held(folder: &Path, number: u64) -> bool {
    let record = [&number.to_le_bytes()[..], &[number as u8; 192]].concat();
    fs::read_dir(folder).unwrap().any(|entry| {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        bytes.windows(record.len()).any(|window| window == record)
    })
}

#[test]
fn after_a_clean_segment_no_file_has_a_record_from_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), SMALL).unwrap();
    for at in 0..20 {
        journal.append(&mut group(at * 50..at * 50 + 50)).unwrap();
        journal.trim(journal.end() - 50).unwrap();
    }
    assert!(files(folder.path(), "spare") > 0 && held(folder.path(), 999));
    drop(journal); // the next opening begins with a spare
    let mut journal = Journal::open(folder.path(), SMALL).unwrap();
    let committer = {
        journal.append(&mut group(1_000..1_010)).unwrap();
        Committer::new(journal).unwrap()
    };
    committer.begin_clean();
    let settled = |committer: &Committer| {
        while !committer.is_idle() {
            std::thread::yield_now();
        }
    };
    settled(&committer);
    assert_eq!(committer.clean(), Some(Ok(1_010)));
    assert_eq!((committer.segments() > 1, files(folder.path(), "spare")), (true, 0));
    committer.trim(1_010);
    settled(&committer);
    assert_eq!((committer.start(), committer.segments()), (1_010, 1));
    let old: Vec<u64> = (1..1_010).filter(|&number| held(folder.path(), number)).collect();
    assert_eq!(old, [0; 0]);
    committer.reuse_again();
    settled(&committer);
    drop(committer);
    assert_eq!(Journal::open(folder.path(), SMALL).unwrap().end(), 1_010);
}

#[test]
fn openings_without_appends_leave_no_files_behind() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..10 {
        Journal::open(folder.path(), SMALL).unwrap();
        assert_eq!(files(folder.path(), "segment"), 1);
    }
    let mut journal = Journal::open(folder.path(), SMALL).unwrap();
    journal.append(&mut group(0..1)).unwrap();
    drop(journal);
    for _ in 0..10 {
        assert_eq!(Journal::open(folder.path(), SMALL).unwrap().end(), 1);
        assert_eq!(files(folder.path(), "segment"), 2);
    }
}

#[test]
fn damage_in_a_file_is_reported_with_its_position() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), SMALL).unwrap();
    for at in 0..4 {
        journal.append(&mut group(at * 10..at * 10 + 10)).unwrap();
    }
    journal.close().unwrap();
    let segment = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment
        .filter(|path| path.extension().is_some_and(|kind| kind == "segment"))
        .max()
        .unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[4_096 + 2_100] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let error = Journal::open(folder.path(), SMALL).err().unwrap().to_string();
    assert_eq!(
        error,
        "segment 0 of epoch 1 is damaged at byte 6168: records from offset 10 are unreadable"
    );
}

#[test]
fn groups_cut_from_the_tail_are_reported_even_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), SMALL).unwrap();
    for at in 0..4 {
        journal.append(&mut group(at * 10..at * 10 + 10)).unwrap();
    }
    drop(journal); // as after a kill: without a seal
    let segment = folder.path().join(format!("{:016x}-{:016x}.segment", 1, 0));
    let whole = fs::read(&segment).unwrap();
    fs::write(&segment, &whole[..4_096 + 2_100]).unwrap();
    let error = Journal::open(folder.path(), SMALL).err().unwrap().to_string();
    assert_eq!(
        error,
        "records from offset 10 to 39 were acknowledged and are missing: segment 0 of epoch 1 ends at byte 6168"
    );
    fs::write(&segment, &whole).unwrap();
    assert_eq!(check(&Journal::open(folder.path(), SMALL).unwrap()), 40);
}

#[test]
fn damaged_or_missing_acknowledgement_mark_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("acked");
    for round in 0..4 {
        let mut journal = Journal::open(folder.path(), SMALL).unwrap();
        assert_eq!(check(&journal), round * 10);
        journal.append(&mut group(round * 10..round * 10 + 10)).unwrap();
        drop(journal);
        match round {
            0 => fs::remove_file(&mark).unwrap(),
            1 => fs::write(&mark, b"").unwrap(),
            _ => fs::write(&mark, [0xA5; 4_112]).unwrap(),
        }
    }
}

/// The log of a closed owner: 20 groups of 10 records over several segments.
fn some_segments(folder: &Path) {
    let mut journal = Journal::open(folder, SMALL).unwrap();
    for at in 0..80 {
        journal.append(&mut group(at * 10..at * 10 + 10)).unwrap();
    }
    journal.close().unwrap();
}

/// The findings of checking the log, and the offsets of the records read.
fn looked(folder: &Path) -> (Checked, Vec<u64>) {
    let mut given = Vec::new();
    let found = check_log(folder, |records| {
        for (offset, record) in records {
            assert_eq!(record[..8], offset.to_le_bytes());
            given.push(offset);
        }
    });
    (found.unwrap(), given)
}

#[test]
fn check_of_an_intact_log_gives_every_record_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(looked(folder.path()), (Checked::default(), vec![]));
    some_segments(folder.path());
    let (found, given) = looked(folder.path());
    assert_eq!((found.records, found.acked, found.faults), (0..800, Some(800), vec![]));
    assert!(found.segments > 2);
    assert!(given.into_iter().eq(0..800));
    let running = Journal::open(folder.path(), SMALL).unwrap();
    assert_eq!(looked(folder.path()).0.faults, [], "beside its owner");
    drop(running);
}

/// For every file: a flipped bit, a cut, no bytes at all, no file, another file's bytes. Damage is found, and each
/// record is given or reported as lost; a damaged mark alone loses none.
#[test]
fn check_finds_any_damage_and_reports_every_lost_record() {
    let whole = tempfile::tempdir().unwrap();
    some_segments(whole.path());
    let names: Vec<String> = fs::read_dir(whole.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".spare") && name != "lock")
        .collect();
    let bytes = |name: &str| fs::read(whole.path().join(name)).unwrap();
    let other = |name: &str| {
        names
            .iter()
            .find(|other| *other != name && other.ends_with(".segment"))
            .unwrap()
    };
    for name in &names {
        let good = bytes(name);
        let mut spoilt: Vec<(String, Option<Vec<u8>>)> = vec![
            ("missing".into(), None),
            ("empty".into(), Some(Vec::new())),
            ("another file's".into(), Some(bytes(other(name)))),
        ];
        for at in (0..good.len().min(60 << 10)).step_by(2_039) {
            let mut flipped = good.clone();
            flipped[at] ^= 4;
            spoilt.push((format!("a bit of byte {at}"), Some(flipped)));
            spoilt.push((format!("cut at {at}"), Some(good[..at].to_vec())));
        }
        let oldest = names.iter().filter(|name| name.ends_with(".segment")).min() == Some(name);
        for (what, damaged) in spoilt {
            if oldest && damaged.is_none() {
                continue; // like a trim: only the owner's own state shows the difference
            }
            let folder = tempfile::tempdir().unwrap();
            for name in &names {
                fs::write(folder.path().join(name), bytes(name)).unwrap();
            }
            match damaged {
                Some(damaged) => fs::write(folder.path().join(name), damaged).unwrap(),
                None => fs::remove_file(folder.path().join(name)).unwrap(),
            }
            let (found, given) = looked(folder.path());
            let mut told: Vec<u64> = found
                .faults
                .iter()
                .flat_map(|fault| fault.lost.clone())
                .chain(given)
                .collect();
            told.sort_unstable();
            assert!(told.iter().copied().eq(0..800), "{name}: {what}: {:?}", found.faults);
            let lost = found.faults.iter().any(|fault| !fault.lost.is_empty());
            assert_eq!(
                Journal::open(folder.path(), SMALL).is_ok_and(|journal| {
                    let mut reader = journal.reader(0).unwrap();
                    while let Ok(Some(_)) = reader.next_group() {}
                    reader.offset() == 800
                }),
                !lost,
                "{name}: {what}: the check and the opening agree"
            );
        }
    }
}

#[test]
fn sole_owner_gets_an_epoch_above_the_given_one() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Journal::open(folder.path(), SMALL).unwrap().epoch(), 1);
    let later = Options { after: 7, ..SMALL };
    assert_eq!(Journal::open(folder.path(), later).unwrap().epoch(), 8);
    assert_eq!(Journal::open(folder.path(), later).unwrap().epoch(), 9);
}

#[test]
fn reader_in_another_thread_sees_every_record_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(folder.path(), SMALL).unwrap();
    let mut reader = journal.reader(0).unwrap();
    let reading = std::thread::spawn(move || {
        let mut next = 0_u64;
        while next < 4_000 {
            match reader.next_group().unwrap() {
                Some(records) => {
                    for (offset, record) in records {
                        assert_eq!((offset, &record[..8]), (next, &next.to_le_bytes()[..]));
                        next += 1;
                    }
                }
                None => std::thread::yield_now(),
            }
        }
    });
    for at in 0..100 {
        journal.append(&mut group(at * 40..at * 40 + 40)).unwrap();
    }
    reading.join().unwrap();
}

#[test]
fn committer_appends_in_order_and_wakes_the_loop() {
    use rustix::event::{poll, PollFd, PollFlags};
    let folder = tempfile::tempdir().unwrap();
    let committer = Committer::new(Journal::open(folder.path(), SMALL).unwrap()).unwrap();
    for at in 0..20 {
        committer.append(group(at * 10..at * 10 + 10));
    }
    let mut next = 0;
    while next < 200 {
        poll(&mut [PollFd::new(&committer, PollFlags::IN)], None).unwrap();
        while let Some(appended) = committer.poll() {
            assert_eq!(appended.result.unwrap(), next..next + 10);
            assert_eq!(appended.group.len(), 10);
            next += 10;
        }
    }
    committer.append(group(200..201));
    committer.close().unwrap();
    assert_eq!(check(&Journal::open(folder.path(), SMALL).unwrap()), 201);
}

#[test]
fn killed_writer_loses_nothing_acknowledged_and_repeats_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = 88_172_645_463_325_252_u64;
    for round in 0..20 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_writes_until_it_is_killed",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("JOURNAL_FOLDER", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wanted = 1 + random % 100;
        let mut answered = 0;
        let mut last = None;
        while answered < wanted {
            let line = lines.next().expect("the child writes until it is killed").unwrap();
            last = said(&line).or(last);
            answered += u64::from(said(&line).is_some());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            // Reports from before the kill count too; the last line may be cut off.
            last = said(&line).or(last);
        }
        let journal = Journal::open(folder.path(), SMALL).unwrap();
        let end = check(&journal);
        assert!(
            end >= last.unwrap(),
            "round {round}: {end} of {last:?} records are there"
        );
        assert!(
            end <= last.unwrap() + 64,
            "round {round}: more than one unacknowledged group is there"
        );
    }
}

fn said(line: &str) -> Option<u64> {
    line.strip_prefix("durable ")?.strip_suffix(" !")?.parse().ok()
}

#[test]
#[ignore = "run as a child process by the test above"]
fn child_writes_until_it_is_killed() {
    let mut journal = Journal::open(std::env::var("JOURNAL_FOLDER").unwrap(), SMALL).unwrap();
    let mut out = std::io::stdout();
    loop {
        let first = journal.end();
        let end = journal.append(&mut group(first..first + 1 + first % 64)).unwrap().end;
        writeln!(out, "\ndurable {end} !").unwrap();
        out.flush().unwrap();
        if end % 16 == 0 {
            journal.trim(end.saturating_sub(1_000)).unwrap();
        }
    }
}
