//! A process with a store in a folder, killed by SIGKILL at any moment.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_journal::Options;
use muster_messages::schedule::{Change, Incarnation, MessageId, State, NEVER};
use muster_messages::store::{Claims, FolderStore, NewMessage, Scrubbed, Settings};
use muster_messages::wheel::Progress;

const TOPIC: u32 = 1;
const FOLDER: &str = "MUSTER_MESSAGES_KILLED_FOLDER";
const KILLS: u32 = 20;

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970")
        .as_millis() as u64
}

fn open(folder: &Path) -> FolderStore {
    let options = Options {
        segment_bytes: 5 << 20,
        ..Options::default()
    };
    let settings = Settings {
        checkpoint_bytes: 256 << 10,
        buffer_bytes: 64 << 10,
        ..Settings::default()
    };
    FolderStore::open(folder, options, settings, now()).expect("the store opens")
}

fn settle(store: &mut FolderStore) {
    while store.tick(now(), 1_000).expect("a tick") == Progress::More {}
    while let Some(job) = store.next_job() {
        store.finish(job.run()).expect("a job");
    }
}

fn scrubbed(store: &mut FolderStore) -> Scrubbed {
    assert!(store.ask_scrub().expect("the store is whole"));
    loop {
        settle(store);
        if let Some(found) = store.take_scrubbed() {
            return found;
        }
    }
}

/// The killed process: it accepts messages, fires them, and reports what is durable. Runs as a test that does nothing
/// unless a parent process starts it.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut store = open(Path::new(&folder));
    settle(&mut store);
    let out = std::io::stdout();
    let base = now() << 20;
    for round in 0u64.. {
        let mut told = String::new();
        let mut body = Vec::new();
        let time = now();
        for number in 0..50 {
            let id = base + round * 50 + number;
            let due_at = time + number * 7 % 90 + if number == 0 { 36_000_000 } else { 0 };
            let new = NewMessage {
                id: MessageId(id),
                topic: TOPIC,
                due_at,
                expires_at: NEVER,
                body: &id.to_le_bytes(),
            };
            store.insert(new).expect("a message is taken");
            told += &format!("accepted {id}\n");
        }
        let mut fires = Vec::new();
        store
            .claim(
                time,
                Claims {
                    topic: TOPIC,
                    worker: Incarnation(base),
                    until: time + 50,
                    attempts_max: 1_000,
                    max: 60,
                },
                &mut fires,
            )
            .expect("claims");
        store.commit().expect("a commit");
        for fire in &fires {
            assert!(fire.message.due_at <= time, "early");
            store.body(fire, &mut body).expect("a body");
            assert_eq!(body, fire.message.id.0.to_le_bytes());
            // A claim may have run out, and this process may have claimed the message again.
            if store
                .change(now(), fire.message.id, Change::Deliver { claim: fire.claim }, None)
                .is_ok()
            {
                told += &format!("done {}\n", fire.message.id.0);
            }
        }
        store.commit().expect("a commit");
        out.lock().write_all(told.as_bytes()).expect("the parent reads");
        settle(&mut store);
    }
}

#[test]
fn reports_of_a_killed_process_hold_and_nothing_fires_twice() {
    let folder = tempfile::tempdir().unwrap();
    let (mut accepted, mut done) = (HashSet::new(), HashSet::new());
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // From the first reply on, for a varying time.
        let mut until = None;
        let mut seen = 0;
        for line in lines.by_ref().map_while(Result::ok) {
            let Some((what, id)) = line.split_once(' ') else {
                continue;
            };
            let Ok(id) = id.parse::<u64>() else { continue };
            match what {
                "accepted" => accepted.insert(id),
                "done" => {
                    assert!(done.insert(id), "{id} was done twice");
                    true
                }
                _ => continue,
            };
            seen += 1;
            let end = *until.get_or_insert_with(|| Instant::now() + Duration::from_millis(u64::from(kill * 37 % 200)));
            if Instant::now() >= end {
                // SIGKILL; its earlier reports are read to the end.
                let _ = child.kill();
            }
        }
        let _ = child.wait();
        assert!(seen > 0, "the process began to work");

        let mut store = open(folder.path());
        settle(&mut store);
        assert!(store.is_whole());
        for id in &accepted {
            let found = store.get(MessageId(*id)).unwrap();
            let (message, _) = found.unwrap_or_else(|| panic!("{id} was accepted and is lost"));
            assert!(
                !done.contains(id) || message.state == State::Done,
                "{id} was done: {message:?}"
            );
        }
        if kill % 5 == 4 {
            assert_eq!(scrubbed(&mut store).faults, Vec::<String>::new());
        }
    }
    // The rest fires finally.
    let mut store = open(folder.path());
    let mut waiting: HashSet<u64> = accepted.difference(&done).copied().collect();
    let far = |id: &u64| id % (1 << 20) % 50 == 0;
    waiting.retain(|id| !far(id));
    let limit = Instant::now() + Duration::from_secs(100);
    while !waiting.is_empty() {
        assert!(Instant::now() < limit, "{} messages do not fire", waiting.len());
        settle(&mut store);
        let time = now();
        let mut fires = Vec::new();
        store
            .claim(
                time,
                Claims {
                    topic: TOPIC,
                    worker: Incarnation(1),
                    until: time + 5_000,
                    attempts_max: 10_000,
                    max: 1_000,
                },
                &mut fires,
            )
            .unwrap();
        for fire in &fires {
            assert!(!done.contains(&fire.message.id.0));
            store
                .change(time, fire.message.id, Change::Deliver { claim: fire.claim }, None)
                .unwrap();
            waiting.remove(&fire.message.id.0);
        }
        store.commit().unwrap();
        waiting.retain(|id| store.get(MessageId(*id)).unwrap().unwrap().0.state != State::Done);
    }
}
