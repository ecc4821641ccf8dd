//! A store in a folder that is damaged file by file: intact messages come back in a new store, and losses are
//! reported.

use std::fs;
use std::path::{Path, PathBuf};

use muster_journal::Options;
use muster_messages::schedule::{Change, MessageId, State, NEVER};
use muster_messages::store::{FolderStore, NewMessage, Salvage, Settings};
use muster_messages::wheel::Progress;

const NOW: u64 = 1_790_000_000_000;
const MESSAGES: u64 = 240;
const HOUR_MS: u64 = 3_600_000;

fn options() -> Options {
    Options {
        segment_bytes: 5 << 20,
        ..Options::default()
    }
}

fn open(folder: &Path, checkpoint_bytes: u64) -> FolderStore {
    let settings = Settings {
        checkpoint_bytes,
        buffer_bytes: 1 << 10,
        ..Settings::default()
    };
    FolderStore::open(folder, options(), settings, NOW).expect("the store opens")
}

fn settle(store: &mut FolderStore) {
    while store.tick(NOW, 1_000).expect("a tick") == Progress::More {}
    while let Some(job) = store.next_job() {
        store.finish(job.run()).expect("a job");
    }
}

fn body(id: u64) -> Vec<u8> {
    format!("body of {id}").into_bytes()
}

/// Messages over six hours, some of them cancelled: part in files, part only in the log.
fn some_messages(folder: &Path) {
    let mut store = open(folder, 4 << 10);
    settle(&mut store);
    for id in 0..MESSAGES {
        let body = body(id);
        let new = NewMessage {
            id: MessageId(id),
            topic: 7,
            due_at: NOW + HOUR_MS / 2 + id % 6 * HOUR_MS,
            expires_at: NEVER,
            body: &body,
        };
        store.insert(new).expect("a message is taken");
        if id % 10 == 9 {
            store.commit().expect("a group is durable");
            store
                .change(NOW, MessageId(id - 4), Change::Cancel, None)
                .expect("a message is withdrawn");
            store.commit().expect("a group is durable");
            settle(&mut store);
        }
    }
    store.close().expect("the store closes");
}

/// All messages of a store, each with whether it still waits.
fn held(folder: &Path) -> Vec<(u64, bool)> {
    let mut store = open(folder, 64 << 20);
    while !store.is_whole() {
        settle(&mut store);
    }
    let mut held = Vec::new();
    for id in 0..MESSAGES {
        let Some((message, topic)) = store.get(MessageId(id)).expect("the store is whole") else {
            continue;
        };
        assert_eq!((topic, message.due_at), (7, NOW + HOUR_MS / 2 + id % 6 * HOUR_MS));
        let live = message.state == State::Scheduled;
        if live {
            let mut read = Vec::new();
            assert!(store.body_of(MessageId(id), &mut read).expect("a body") && read == body(id));
        }
        held.push((id, live));
    }
    held
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in ["log", "hours"] {
        found.extend(
            fs::read_dir(folder.join(part))
                .unwrap()
                .map(|entry| entry.unwrap().path()),
        );
    }
    found.retain(|path| path.extension().is_none_or(|kind| kind != "spare") && !path.ends_with("lock"));
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for part in ["log", "hours"] {
        fs::create_dir_all(to.join(part)).unwrap();
    }
    for file in files(from) {
        fs::copy(&file, to.join(file.strip_prefix(from).unwrap())).unwrap();
    }
}

#[test]
fn intact_store_has_no_faults_and_is_restored_whole() {
    let (folder, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    some_messages(folder.path());
    let salvage = Salvage::read(folder.path()).unwrap();
    assert_eq!(
        (salvage.found.messages, salvage.found.fault_count),
        (MESSAGES, 0),
        "{:?}",
        salvage.found
    );
    assert!(salvage.found.lost.is_empty());
    assert_eq!(salvage.write(into.path(), options(), NOW).unwrap(), MESSAGES);
    assert_eq!(held(into.path()), held(folder.path()));
    assert_eq!(Salvage::read(into.path()).unwrap().found.fault_count, 0);
}

/// For every file: a flipped bit, a cut, no bytes, no file, the bytes of another file. The store made of the rest
/// opens and has each message whose bytes are intact, and its losses are reported.
#[test]
fn damage_of_any_file_loses_no_message_with_intact_bytes() {
    let whole = tempfile::tempdir().unwrap();
    some_messages(whole.path());
    let all = held(whole.path());
    let names = files(whole.path());
    assert!(
        names
            .iter()
            .filter(|name| name.extension().is_some_and(|kind| kind == "ops"))
            .count()
            >= 6
    );
    for (place, name) in names.iter().enumerate() {
        let good = fs::read(name).unwrap();
        let kind = name
            .extension()
            .map(|kind| kind.to_string_lossy().into_owned())
            .unwrap_or_default();
        let swapped = names
            .iter()
            .skip(place + 1)
            .chain(&names)
            .find(|other| *other != name && other.extension() == name.extension());
        let mut spoilt: Vec<(String, Option<Vec<u8>>)> =
            vec![("missing".into(), None), ("empty".into(), Some(Vec::new()))];
        spoilt.extend(swapped.map(|other| ("swapped".into(), Some(fs::read(other).unwrap()))));
        let step = if kind == "segment" {
            1_021
        } else {
            (good.len() / 12).max(1) | 1
        };
        for at in (0..good.len().min(40 << 10)).step_by(step) {
            let mut flipped = good.clone();
            flipped[at] ^= 4;
            spoilt.push((format!("a bit of byte {at}"), Some(flipped)));
            spoilt.push((format!("cut at {at}"), Some(good[..at].to_vec())));
        }
        for (what, damaged) in spoilt {
            let case = format!("{}: {what}", name.strip_prefix(whole.path()).unwrap().display());
            let (folder, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            copy(whole.path(), folder.path());
            let target = folder.path().join(name.strip_prefix(whole.path()).unwrap());
            match damaged {
                Some(damaged) => fs::write(&target, damaged).unwrap(),
                None => fs::remove_file(&target).unwrap(),
            }
            let salvage = Salvage::read(folder.path()).unwrap();
            salvage
                .write(into.path(), options(), NOW)
                .unwrap_or_else(|error| panic!("{case}: {error}"));
            let back = held(into.path());
            let missing = all
                .iter()
                .filter(|(id, _)| !back.iter().any(|(there, _)| there == id))
                .count();
            let changed = back.iter().filter(|found| !all.contains(found)).count();
            let flipped = what.starts_with("a bit");
            if missing > 0 || changed > 0 {
                assert!(
                    salvage.found.fault_count > 0,
                    "{case}: {missing} missing, {changed} changed, and no fault"
                );
            }
            match (kind.as_str(), flipped) {
                ("ops" | "bodies", true) => {
                    assert!(missing + changed <= 1, "{case}: {missing} missing, {changed} changed")
                }
                ("segment", true) => assert!(missing + changed <= 11, "{case}: one group"),
                _ => {}
            }
        }
    }
}
