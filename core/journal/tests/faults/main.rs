//! The log over a disk in memory with faults, compared with plain vectors.

mod disk;
mod model;

use disk::Disk;
use model::{
    check_cut, check_failed_sync, check_flip, check_forged_frames, check_steps, check_takeover, steps, SEGMENT_BYTES,
};
use muster_journal::{AppendError, Corruption, Group, Log, OpenError, ReadError};
use proptest::prelude::*;

fn group(bytes: usize) -> Group {
    let mut group = Group::new();
    group.push(&vec![7; bytes]).unwrap();
    group
}

fn open(disk: &Disk) -> Result<Log<Disk>, OpenError> {
    let epoch = disk.claim();
    Log::with_storage(disk.clone(), epoch, SEGMENT_BYTES)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn acknowledged_records_survive_crashes_in_order_and_once(steps in steps()) {
        prop_assert_eq!(check_steps(&steps), Ok(()));
    }

    #[test]
    fn flipped_bit_is_reported(place in 0.0..1.0, closed: bool, marked: bool) {
        prop_assert_eq!(check_flip(place, closed, marked), Ok(()));
    }

    #[test]
    fn cut_tail_is_reported_with_the_missing_records(segment in 0..3_usize, bytes in 0..=SEGMENT_BYTES as usize, closed: bool) {
        prop_assert_eq!(check_cut(segment, bytes, closed), Ok(()));
    }
}

#[test]
fn log_refuses_after_a_failed_sync() {
    for after in 0..8 {
        assert_eq!(check_failed_sync(after), Ok(()), "after {after}");
    }
}

#[test]
fn fenced_owner_acknowledges_nothing_that_its_successor_lacks() {
    for after in 0..40 {
        assert_eq!(check_takeover(after), Ok(()), "after {after}");
    }
}

#[test]
fn forged_frames_in_a_reused_segment_stay_invalid() {
    assert_eq!(check_forged_frames(), Ok(()));
}

#[test]
fn full_disk_is_reported_and_the_log_continues_with_space() {
    let disk = Disk::default();
    let mut log = open(&disk).unwrap();
    disk.leave_room_for(1);
    let mut answered = 0;
    let error = loop {
        match log.append(&mut group(3_000)) {
            Ok(_) => answered += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AppendError::DiskFull { .. }), "{error}");
    assert_eq!(answered, 4, "two segments of two groups");
    assert!(matches!(
        log.append(&mut group(3_000)),
        Err(AppendError::DiskFull { .. })
    ));
    assert_eq!(log.end(), 4);

    log.trim(2).unwrap();
    assert_eq!(
        log.append(&mut group(3_000)).unwrap(),
        4..5,
        "the trimmed segment is used again"
    );
    log.append(&mut group(3_000)).unwrap();
    assert!(matches!(
        log.append(&mut group(3_000)),
        Err(AppendError::DiskFull { .. })
    ));
    disk.leave_room_for(1);
    assert_eq!(log.append(&mut group(3_000)).unwrap(), 6..7);

    drop(log);
    disk.leave_room_for(0);
    assert!(matches!(open(&disk), Err(OpenError::DiskFull { .. })));
    disk.leave_room_for(1);
    let log = open(&disk).unwrap();
    assert_eq!((log.start(), log.end()), (2, 7));
}

#[test]
fn missing_segment_is_reported() {
    let disk = Disk::default();
    let mut log = open(&disk).unwrap();
    for _ in 0..8 {
        log.append(&mut group(3_000)).unwrap();
    }
    drop(log);
    let lost = disk.names()[1];
    disk.lose(lost);
    match open(&disk) {
        Err(OpenError::Corrupt(corruption)) => assert_eq!(corruption, Corruption::Missing(lost)),
        other => panic!("{:?}", other.map(|log| log.end())),
    }
}

#[test]
fn log_without_segments_reports_the_acknowledged_records() {
    let disk = Disk::default();
    let mut log = open(&disk).unwrap();
    for _ in 0..3 {
        log.append(&mut group(3_000)).unwrap();
    }
    drop(log);
    disk.names().into_iter().for_each(|name| disk.lose(name));
    match open(&disk) {
        Err(OpenError::Corrupt(corruption)) => assert_eq!(corruption, Corruption::Gone(3)),
        other => panic!("{:?}", other.map(|log| log.end())),
    }
    disk.forget_acked();
    assert_eq!(open(&disk).unwrap().end(), 0, "a new log");
}

#[test]
fn log_without_a_record_starts_at_the_given_offset() {
    let disk = Disk::default();
    let from = |begin| {
        let epoch = disk.claim();
        Log::with_storage_from(disk.clone(), epoch, SEGMENT_BYTES, begin).unwrap()
    };
    assert_eq!((from(0).end(), from(0).skipped()), (0, 0..0));
    let mut log = from(500);
    assert_eq!((log.start(), log.end(), log.skipped()), (500, 500, 0..500));
    assert_eq!(log.append(&mut group(10)).unwrap(), 500..501);
    drop(log);
    let log = from(900);
    assert_eq!(
        (log.start(), log.end(), log.skipped()),
        (500, 501, 501..501),
        "it has a record"
    );
}

#[test]
fn only_a_group_that_fits_no_segment_is_refused() {
    let disk = Disk::default();
    let mut log = open(&disk).unwrap();
    assert!(matches!(
        log.append(&mut group(9_000)),
        Err(AppendError::TooLarge { .. })
    ));
    assert_eq!(log.append(&mut Group::new()).unwrap(), 0..0);
    assert_eq!(log.append(&mut group(8_000)).unwrap(), 0..1);
}

#[test]
fn reader_follows_the_owner_and_gets_an_error_after_trimming() {
    let disk = Disk::default();
    let mut log = open(&disk).unwrap();
    let mut reader = log.reader(0).unwrap();
    assert!(reader.next_group().unwrap().is_none());
    for at in 0..5 {
        log.append(&mut group(3_000)).unwrap();
        let offsets: Vec<u64> = reader
            .next_group()
            .unwrap()
            .unwrap()
            .map(|(offset, _)| offset)
            .collect();
        assert_eq!(offsets, [at]);
        assert!(reader.next_group().unwrap().is_none());
    }
    let mut slow = log.reader(0).unwrap();
    for _ in 5..20 {
        log.trim(log.end()).unwrap();
        log.append(&mut group(3_000)).unwrap();
    }
    let start = log.start();
    let mut read = 0;
    let told = loop {
        match slow.next_group() {
            Ok(records) => read += records.unwrap().filter(|(_, bytes)| bytes.len() == 3_000).count(),
            Err(ReadError::Trimmed { start }) => break start,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(told, start);
    assert!(read <= 2, "what the first segment held");
    assert!(matches!(log.reader(start - 1), Err(ReadError::Trimmed { .. })));
    assert!(matches!(log.reader(21), Err(ReadError::Beyond { end: 20 })));
    assert_eq!(reader.offset(), 5);
}
