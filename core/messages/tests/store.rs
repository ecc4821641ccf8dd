//! The store compared with two maps, over a disk that tears and loses unsynced writes.

mod disk;
mod reference;

use std::time::Duration;

use disk::{Disk, Segments};
use muster_journal::Log;
use muster_messages::schedule::{Ahead, Change, Due, Incarnation, MessageId, Refusal, State, Step, NEVER};
use muster_messages::store::Claims;
use muster_messages::store::{
    Changed, CommitError, Denied, FileName, Files, Fire, Inserted, Job, NewMessage, Scrubbed, Settings, Store,
};
use muster_messages::wheel::{Millis, Progress};

type SimStore = Store<Segments, Disk>;

const START: Millis = 1_780_000_000_000;
const HOUR: Millis = 3_600_000;
const WORKER: Incarnation = Incarnation(77);
const TOPIC: u32 = 5;

fn settings() -> Settings {
    Settings {
        history_ms: 100_000 * HOUR,
        dead_days: 100_000,
        ahead_ms: 100_000 * HOUR,
        buffer_bytes: 3_000,
        checkpoint_bytes: 6_000,
        sync_pause: Duration::ZERO,
        ..Settings::default()
    }
}

fn open(disk: &Disk, settings: Settings, now: Millis) -> SimStore {
    let (segments, epoch) = Segments::claim(disk);
    let log = Log::with_storage(segments, epoch, 40_000).expect("the log opens");
    Store::with_parts(log, disk.clone(), settings, now).expect("the store opens")
}

/// Ticks until nothing is left, including jobs.
fn settle(store: &mut SimStore, now: Millis) {
    loop {
        let progress = store.tick(now, 7).expect("a tick");
        let mut worked = false;
        while let Some(job) = store.next_job() {
            store.finish(job.run()).expect("a job");
            worked = true;
        }
        if progress == Progress::Current && !worked {
            return;
        }
    }
}

/// The findings of a scrub, with ticks in between. A scrub in progress ends first.
fn scrubbed(store: &mut SimStore, now: Millis) -> Scrubbed {
    let mut asked = false;
    loop {
        asked |= store.ask_scrub().expect("the store is whole");
        store.tick(now, 7).expect("a tick");
        while let Some(job) = store.next_job() {
            store.finish(job.run()).expect("a job");
        }
        match store.take_scrubbed() {
            Some(found) if asked => return found,
            _ => {}
        }
    }
}

fn new(id: u64, due_at: Millis, body: &[u8]) -> NewMessage<'_> {
    NewMessage {
        id: MessageId(id),
        topic: TOPIC,
        due_at,
        expires_at: NEVER,
        body,
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    /// A time from two hours ago to some days ahead, mostly soon.
    fn time(&mut self, now: Millis) -> Millis {
        let ahead = match self.below(8) {
            0 => return now - self.below(2 * HOUR),
            1 => self.below(1_000),
            2 => self.below(60_000),
            3 | 4 => self.below(HOUR),
            5 | 6 => self.below(6 * HOUR),
            _ => self.below(200 * HOUR),
        };
        now + ahead
    }
}

/// One life of many stores on one disk.
struct Run {
    seed: u64,
    random: Random,
    disk: Disk,
    store: Option<SimStore>,
    /// Jobs that are running.
    jobs: Vec<Job<Disk>>,
    now: Millis,
    /// The committed state, and the staged one.
    durable: reference::store::Store,
    staged: reference::store::Store,
    applied: u64,
    crashes: u32,
    claims: u32,
    scrubs: u32,
}

impl Run {
    fn new(seed: u64) -> Run {
        let disk = Disk::new(seed);
        Run {
            seed,
            random: Random(seed),
            store: Some(open(&disk, settings(), START)),
            disk,
            jobs: Vec::new(),
            now: START,
            durable: Default::default(),
            staged: Default::default(),
            applied: 0,
            crashes: 0,
            claims: 0,
            scrubs: 0,
        }
    }

    fn go(&mut self, steps: u32) {
        for step in 0..steps {
            if self.random.below(60) == 0 {
                let fuse = self.random.below(25) as u32;
                self.disk.burn(Some(fuse));
            }
            let alive = match self.random.below(20) {
                0..=6 => self.insert(),
                7..=10 => self.change(),
                11..=12 => self.work(),
                13..=15 => self.pass(),
                16..=18 => self.commit(),
                _ => self.random.below(8) > 0,
            };
            if !alive {
                self.crash();
            }
            if step % 40 == 0 {
                self.check();
            }
        }
        if !self.commit() {
            self.crash();
        }
        self.check();
    }

    fn insert(&mut self) -> bool {
        let id = MessageId(self.random.below(60));
        let due_at = self.random.time(self.now);
        let expires_at = if self.random.below(5) == 0 {
            due_at + self.random.below(HOUR)
        } else {
            NEVER
        };
        let body = vec![id.0 as u8; self.random.below(300) as usize];
        let new = NewMessage {
            id,
            topic: TOPIC,
            due_at,
            expires_at,
            body: &body,
        };
        match self.store.as_mut().unwrap().insert(new) {
            Ok(inserted) => {
                let is_new = self.staged.insert(id, due_at, expires_at, &body);
                assert_eq!(matches!(inserted, Inserted::New(_)), is_new, "{}", self.seed);
                true
            }
            Err(Denied::CommitFirst) => self.commit(),
            Err(Denied::Rebuilding) => true,
            Err(_) => false,
        }
    }

    fn change(&mut self) -> bool {
        let id = MessageId(self.random.below(60));
        let at = self.random.time(self.now);
        let version = self
            .staged
            .messages
            .get(&id.0)
            .map_or(1, |(message, _)| message.version);
        let change = match self.random.below(14) {
            13 => Change::Wake { at },
            12 => Change::Drop,
            10 | 11 => Change::Extend {
                claim: version,
                until: at,
            },
            0 => Change::Cancel,
            1..=3 => Change::Reschedule(Due::At(at)),
            4 => Change::Reschedule(Due::By(self.random.below(2 * HOUR) as i64 - HOUR as i64)),
            5 | 6 => Change::Deliver { claim: version },
            7 => Change::Fail {
                claim: version,
                next: Some(at),
            },
            8 => Change::Fail {
                claim: version,
                next: None,
            },
            _ if self.random.below(2) == 0 => Change::Replay { due_at: at },
            _ => Change::Release {
                claim: version,
                next: at,
            },
        };
        let expected = (self.random.below(4) == 0).then_some(version);
        match self.store.as_mut().unwrap().change(self.now, id, change, expected) {
            Ok(changed) => {
                let model = self.staged.change(self.now, id, change, expected);
                match changed {
                    Changed::Done(step, message) => {
                        assert_eq!(model, Ok(Some(step)), "{}", self.seed);
                        assert_eq!(message, self.staged.messages[&id.0].0, "{}", self.seed);
                    }
                    Changed::Ahead(_) => assert_eq!(model, Ok(None), "{}", self.seed),
                }
                true
            }
            Err(Denied::Refused(refusal)) => {
                let model = self.staged.change(self.now, id, change, expected);
                assert_eq!(model, Err(refusal), "{}: {change:?}", self.seed);
                true
            }
            Err(Denied::CommitFirst) => self.commit(),
            Err(Denied::Rebuilding) => true,
            Err(_) => false,
        }
    }

    /// A worker claims some of the due messages.
    fn work(&mut self) -> bool {
        let until = self.now + 1 + self.random.below(100_000);
        let attempts_max = 1 + self.random.below(3) as u16;
        let max = 1 + self.random.below(4) as usize;
        let claim = Change::Claim {
            worker: WORKER,
            until,
            attempts_max,
        };
        let due = self.staged.due(self.now);
        let mut fires: Vec<Fire> = Vec::new();
        let store = self.store.as_mut().unwrap();
        let claimed = store.claim(
            self.now,
            Claims {
                topic: TOPIC,
                worker: WORKER,
                until,
                attempts_max,
                max,
            },
            &mut fires,
        );
        if claimed.is_err() {
            return false;
        }
        for fire in &fires {
            let step = self.staged.change(self.now, fire.message.id, claim, None);
            assert_eq!(step, Ok(Some(Step::Claimed { claim: fire.claim })), "{}", self.seed);
            self.claims += 1;
        }
        // Messages that ended instead.
        for id in due {
            let ended = |state| matches!(state, State::Dead | State::Expired);
            let found = match store.get(id) {
                Ok(found) => found.expect("the model has it").0,
                Err(_) => return false,
            };
            if ended(found.state) && !ended(self.staged.messages[&id.0].0.state) {
                self.staged.change(self.now, id, claim, None).expect("it ends");
            }
            assert_eq!(found, self.staged.messages[&id.0].0, "{}", self.seed);
        }
        true
    }

    fn pass(&mut self) -> bool {
        self.now += match self.random.below(6) {
            0 => 0,
            1 | 2 => self.random.below(2_000),
            3 => self.random.below(60_000),
            4 => self.random.below(HOUR),
            _ => self.random.below(5 * HOUR),
        };
        let store = self.store.as_mut().unwrap();
        for _ in 0..1 + self.random.below(4) {
            if store.tick(self.now, 5).is_err() {
                return false;
            }
        }
        while let Some(job) = store.next_job() {
            self.jobs.push(job);
        }
        while !self.jobs.is_empty() && self.random.below(3) > 0 {
            let job = self.jobs.remove(0);
            if store.finish(job.run()).is_err() {
                return false;
            }
        }
        // Along with all other work, and despite concurrent changes.
        if let Some(found) = store.take_scrubbed() {
            assert!(
                found.faults.is_empty() || self.disk.is_dead(),
                "{}: {:?}",
                self.seed,
                found.faults
            );
            self.scrubs += 1;
        }
        store.ask_scrub().is_ok() || !store.is_whole()
    }

    fn commit(&mut self) -> bool {
        match self.store.as_mut().unwrap().commit() {
            Ok(_) => {
                self.durable = self.staged.clone();
                self.applied = self.store.as_ref().unwrap().stats().applied;
                true
            }
            Err(_) => false,
        }
    }

    /// The power fails; afterwards the last group is present as a whole or not at all.
    fn crash(&mut self) {
        self.crashes += 1;
        self.store = None;
        self.jobs.clear();
        self.disk.crash();
        self.now += self.random.below(2 * HOUR);
        let mut store = open(&self.disk, settings(), self.now);
        settle(&mut store, self.now);
        if store.stats().applied > self.applied {
            self.durable = self.staged.clone();
        }
        // The model lacks changes staged by ticks: these only end requests ahead, which never happens in a run.
        self.applied = store.stats().applied;
        self.store = Some(store);
        let expected = self.durable.clone();
        assert!(
            self.same(&expected),
            "{}: neither the last group's begin nor its end",
            self.seed
        );
        self.staged = self.durable.clone();
    }

    fn same(&self, model: &reference::store::Store) -> bool {
        let store = self.store.as_ref().unwrap();
        (0..60).map(MessageId).all(|id| {
            let found = store.get(id).expect("the store is whole").map(|(message, _)| message);
            found == model.messages.get(&id.0).map(|(message, _)| *message)
        })
    }

    /// Checks all messages, every body and every part; and that all due messages are given out, and no others.
    fn check(&mut self) {
        self.disk.burn(None);
        let alive = self.commit();
        let jobs = std::mem::take(&mut self.jobs);
        let store = self.store.as_mut().unwrap();
        if !alive || jobs.into_iter().any(|job| store.finish(job.run()).is_err()) {
            return self.crash();
        }
        settle(store, self.now);
        store.commit().expect("nothing is wrong with the disk");
        settle(store, self.now);
        for (id, (message, body)) in &self.staged.messages {
            let id = MessageId(*id);
            assert_eq!(store.get(id).unwrap(), Some((*message, TOPIC)), "{}", self.seed);
            let mut found = Vec::new();
            assert!(store.body_of(id, &mut found).unwrap());
            assert_eq!(found, *body);
        }
        assert_eq!(scrubbed(store, self.now).faults, Vec::<String>::new(), "{}", self.seed);
        let until = self.now + 30_000;
        let mut fires = Vec::new();
        loop {
            let before = fires.len();
            store
                .claim(
                    self.now,
                    Claims {
                        topic: TOPIC,
                        worker: WORKER,
                        until,
                        attempts_max: 3,
                        max: 10,
                    },
                    &mut fires,
                )
                .unwrap();
            store.commit().unwrap();
            if fires.len() == before {
                break;
            }
        }
        let claim = Change::Claim {
            worker: WORKER,
            until,
            attempts_max: 3,
        };
        let mut body = Vec::new();
        for id in self.staged.due(self.now) {
            let step = self.staged.change(self.now, id, claim, None).unwrap().unwrap();
            let fire = fires.iter().position(|fire| fire.message.id == id);
            assert_eq!(
                fire.is_some(),
                matches!(step, Step::Claimed { .. }),
                "{}: {id:?} {step:?}",
                self.seed
            );
            if let Some(at) = fire {
                let fire = fires.swap_remove(at);
                assert_eq!(step, Step::Claimed { claim: fire.claim });
                store.body(&fire, &mut body).unwrap();
                assert_eq!(body, self.staged.messages[&id.0].1);
                self.claims += 1;
            }
            assert_eq!(
                store.get(id).unwrap().unwrap().0,
                self.staged.messages[&id.0].0,
                "{}",
                self.seed
            );
        }
        assert_eq!(fires, [], "{}: what is not due fires", self.seed);
        self.durable = self.staged.clone();
        self.applied = store.stats().applied;
        let live = self
            .durable
            .messages
            .values()
            .filter(|(message, _)| !message.state.is_terminal())
            .count();
        assert_eq!(store.stats().live as usize, live + self.durable.ahead.len());
    }
}

#[test]
fn store_agrees_with_two_maps_through_any_crash() {
    let (mut crashes, mut claims, mut scrubs) = (0, 0, 0);
    let seeds = std::env::var("MESSAGES_SEEDS").map_or(1_000, |seeds| seeds.parse().expect("a number of seeds"));
    for seed in 1..=seeds {
        let mut run = Run::new(seed);
        run.go(500);
        crashes += run.crashes;
        claims += run.claims;
        scrubs += run.scrubs;
    }
    assert!(
        crashes > seeds as u32 && claims > 20 * seeds as u32 && scrubs > seeds as u32,
        "{crashes} crashes, {claims} claims, {scrubs} scrubs"
    );
}

// ---- one thing each

/// Claims all that is due now.
fn fire(store: &mut SimStore, now: Millis) -> Vec<u64> {
    settle(store, now);
    let mut fires = Vec::new();
    store
        .claim(
            now,
            Claims {
                topic: TOPIC,
                worker: WORKER,
                until: now + HOUR,
                attempts_max: 5,
                max: 1_000,
            },
            &mut fires,
        )
        .unwrap();
    store.commit().unwrap();
    fires.iter().map(|fire| fire.message.id.0).collect()
}

fn put(store: &mut SimStore, id: u64, due_at: Millis, body: &[u8]) {
    assert!(matches!(store.insert(new(id, due_at, body)).unwrap(), Inserted::New(_)));
    store.commit().unwrap();
}

#[test]
fn overdue_messages_fire_oldest_first_after_a_stop() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    for id in 0..300 {
        put(&mut store, id, START + (id * 7_919 % 300) * 60_000, b"body");
    }
    drop(store);
    disk.crash();
    let now = START + 400 * 60_000;
    let mut store = open(&disk, settings(), now);
    let ids = fire(&mut store, now);
    assert_eq!(ids.len(), 300);
    assert!(ids.iter().map(|id| id * 7_919 % 300).is_sorted());
}

#[test]
fn messages_overdue_on_arrival_fire_oldest_first() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    let age = |id: u64| id * 7_919 % 300;
    for id in 0..300 {
        put(&mut store, id, START - age(id), b"body");
        if id % 50 == 0 {
            settle(&mut store, START + id); // the earlier ones have waited since
        }
    }
    let ids = fire(&mut store, START + 300);
    assert_eq!(ids.len(), 300);
    assert!(ids.iter().map(|id| age(*id)).rev().is_sorted());
}

#[test]
fn message_advanced_to_an_earlier_loaded_hour_fires_when_the_clock_goes_back_at_a_restart() {
    let disk = Disk::new(1);
    let next_hour = (START / HOUR + 1) * HOUR;
    let now = next_hour - 60_000;
    let mut store = open(&disk, settings(), now);
    settle(&mut store, now);
    put(&mut store, 1, next_hour + 30 * 60_000, b"body");
    let back = now - 30 * 60_000;
    let earlier = Change::Reschedule(Due::At(back + 1_000));
    store.change(now, MessageId(1), earlier, None).unwrap();
    store.commit().unwrap();
    drop(store);
    disk.crash();
    let mut store = open(&disk, settings(), back);
    assert_eq!(fire(&mut store, back + 999), []);
    assert_eq!(fire(&mut store, back + 1_000), [1]);
}

#[test]
fn clock_that_went_an_hour_ahead_and_back_makes_nothing_early_or_late() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    put(&mut store, 1, START + 10_000, b"due soon");
    settle(&mut store, START + HOUR);
    put(&mut store, 2, START + 20_000, b"taken while the clock was wrong");
    assert_eq!(fire(&mut store, START + 9_999), []);
    assert_eq!(fire(&mut store, START + 10_000), [1]);
    assert_eq!(fire(&mut store, START + 19_999), []);
    assert_eq!(fire(&mut store, START + 20_000), [2]);
}

#[test]
fn past_hour_is_forgotten_and_its_files_are_removed() {
    let disk = Disk::new(1);
    let short = Settings {
        history_ms: HOUR,
        dead_days: 1,
        ..settings()
    };
    let mut store = open(&disk, short, START);
    for id in 0..200 {
        put(&mut store, id, START + id * 60_000, &[7; 200]);
    }
    let mut now = START;
    let mut fired = 0;
    while now < START + 8 * HOUR {
        now += 60_000;
        settle(&mut store, now);
        let mut fires = Vec::new();
        store
            .claim(
                now,
                Claims {
                    topic: TOPIC,
                    worker: WORKER,
                    until: now + 1_000,
                    attempts_max: 5,
                    max: 1_000,
                },
                &mut fires,
            )
            .unwrap();
        for fire in &fires {
            let last = if fire.message.id.0 == 100 { None } else { Some(now + 1) };
            let end = match last {
                None => Change::Fail {
                    claim: fire.claim,
                    next: None,
                },
                Some(_) => Change::Deliver { claim: fire.claim },
            };
            store.change(now, fire.message.id, end, None).unwrap();
            fired += 1;
        }
        store.commit().unwrap();
        assert_eq!(scrubbed(&mut store, now).faults, Vec::<String>::new());
    }
    assert_eq!(fired, 200);
    // The dead letter remains, the rest is no longer known; the same after a restart.
    for _ in 0..2 {
        assert_eq!(store.get(MessageId(100)).unwrap().unwrap().0.state, State::Dead);
        assert_eq!(store.stats().known, 1);
        store.close().unwrap();
        // A simulated removal may not last; opening removes the remains.
        store = open(&disk, short, now);
        settle(&mut store, now);
        let hours = disk
            .files()
            .iter()
            .filter(|name| matches!(name, FileName::Ops(_)))
            .count();
        assert_eq!(hours, 1);
    }
    let replayed = store
        .change(now, MessageId(100), Change::Replay { due_at: now }, None)
        .unwrap();
    assert!(matches!(replayed, Changed::Done(Step::Replayed, _)));
    assert_eq!(fire(&mut store, now), []);
    store.commit().unwrap();
    assert_eq!(fire(&mut store, now), [100]);
    settle(&mut store, now + 72 * HOUR);
    assert_eq!(scrubbed(&mut store, now + 72 * HOUR).faults, Vec::<String>::new());
    assert_eq!(store.stats().hours, 1, "the dead letters' day is forgotten");
}

#[test]
fn a_dropped_letter_is_no_forgotten_one() {
    let disk = Disk::new(1);
    let short = Settings {
        history_ms: HOUR,
        dead_days: 1,
        ..settings()
    };
    let mut store = open(&disk, short, START);
    put(&mut store, 1, START, &[7; 20]);
    settle(&mut store, START);
    let refused = store.change(START, MessageId(1), Change::Drop, None);
    assert!(matches!(refused, Err(Denied::Refused(Refusal::NotDead))));
    let mut fires = Vec::new();
    let claims = Claims {
        topic: TOPIC,
        worker: WORKER,
        until: START + 1_000,
        attempts_max: 5,
        max: 10,
    };
    store.claim(START, claims, &mut fires).unwrap();
    let end = Change::Fail {
        claim: fires[0].claim,
        next: None,
    };
    store.change(START, MessageId(1), end, None).unwrap();
    store.commit().unwrap();
    settle(&mut store, START);
    let dropped = store.change(START, MessageId(1), Change::Drop, None).unwrap();
    assert!(matches!(dropped, Changed::Done(Step::Dropped, _)));
    store.commit().unwrap();
    store.close().unwrap();
    store = open(&disk, short, START);
    settle(&mut store, START);
    assert_eq!(store.get(MessageId(1)).unwrap().unwrap().0.state, State::Cancelled);
    for day in 1..4 {
        settle(&mut store, START + day * 24 * HOUR);
        assert_eq!(
            scrubbed(&mut store, START + day * 24 * HOUR).faults,
            Vec::<String>::new()
        );
    }
    assert_eq!((store.stats().known, store.stats().dead_forgotten), (0, 0));
}

#[test]
fn a_message_that_is_due_when_it_comes_is_claimed_by_the_commit_that_inserts_it() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    settle(&mut store, START);
    let insert = |store: &mut SimStore, id: u64, due_at| {
        let new = NewMessage {
            id: MessageId(id),
            topic: TOPIC,
            due_at,
            expires_at: NEVER,
            body: &[id as u8; 20],
        };
        assert!(matches!(store.insert(new), Ok(Inserted::New(_))));
    };
    let claims = Claims {
        topic: TOPIC,
        worker: WORKER,
        until: START + 60_000,
        attempts_max: 5,
        max: 10,
    };
    insert(&mut store, 1, START);
    insert(&mut store, 2, START + 1);
    insert(&mut store, 3, START - 1);
    store.change(START, MessageId(3), Change::Cancel, None).unwrap();
    assert_eq!(store.ready_topics().collect::<Vec<_>>(), [TOPIC]);
    let mut fires = Vec::new();
    store.claim(START, claims, &mut fires).unwrap();
    assert_eq!(store.commit().unwrap(), 5);
    let ids: Vec<u64> = fires.iter().map(|fire| fire.message.id.0).collect();
    assert_eq!(ids, [1]);
    let mut body = Vec::new();
    store.body(&fires[0], &mut body).unwrap();
    assert_eq!(body, [1; 20]);
    // What no worker took falls due as usual, once.
    insert(&mut store, 4, START);
    store.commit().unwrap();
    assert_eq!(store.ready_topics().count(), 0);
    settle(&mut store, START + 1);
    fires.clear();
    store.claim(START + 1, claims, &mut fires).unwrap();
    store.commit().unwrap();
    let mut ids: Vec<u64> = fires.iter().map(|fire| fire.message.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 4]);
}

#[test]
fn forgotten_dead_letters_are_counted() {
    let disk = Disk::new(1);
    let short = Settings {
        history_ms: HOUR,
        dead_days: 1,
        ..settings()
    };
    let mut store = open(&disk, short, START);
    for id in 0..3 {
        put(&mut store, id, START, &[7; 20]);
    }
    settle(&mut store, START);
    let mut fires = Vec::new();
    let claims = Claims {
        topic: TOPIC,
        worker: WORKER,
        until: START + 1_000,
        attempts_max: 5,
        max: 10,
    };
    store.claim(START, claims, &mut fires).unwrap();
    for fire in &fires {
        let end = Change::Fail {
            claim: fire.claim,
            next: None,
        };
        store.change(START, fire.message.id, end, None).unwrap();
    }
    store.commit().unwrap();
    settle(&mut store, START + HOUR);
    assert_eq!((fires.len(), store.stats().dead_forgotten), (3, 0));
    for tick in 0..10 {
        settle(&mut store, START + 72 * HOUR + tick);
    }
    assert_eq!(store.stats().dead_forgotten, 3);
    assert!(store.get(MessageId(1)).unwrap().is_none());
}

#[test]
fn message_in_the_hour_of_its_earlier_requests_is_kept() {
    let disk = Disk::new(1);
    let settings = Settings {
        ahead_ms: 2 * HOUR,
        ..settings()
    };
    let mut store = open(&disk, settings, START);
    store
        .change(START, MessageId(1), Change::Reschedule(Due::By(5)), None)
        .unwrap();
    store.commit().unwrap();
    assert!(matches!(
        store.insert(new(1, START + 2 * HOUR, b"body")).unwrap(),
        Inserted::New(_)
    ));
    store.commit().unwrap();
    settle(&mut store, START);
    store.close().unwrap();
    disk.crash();
    let mut store = open(&disk, settings, START);
    settle(&mut store, START);
    let (message, _) = store.get(MessageId(1)).unwrap().expect("it was accepted");
    assert_eq!(message.due_at, START + 2 * HOUR + 5);
    assert_eq!(scrubbed(&mut store, START).faults, Vec::<String>::new());
}

#[test]
fn messages_that_wait_for_their_first_attempt_are_overdue() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    settle(&mut store, START);
    for (id, due) in [(1, START), (2, START + 500), (3, START + 60_000)] {
        put(&mut store, id, due, b"body");
    }
    let overdue = |store: &mut SimStore, now: Millis| -> Vec<(u64, u64)> {
        // A scan begins a second after the last one.
        settle(store, now);
        settle(store, now + 1_000);
        store.overdue().iter().map(|each| (each.count, each.oldest)).collect()
    };
    assert_eq!(overdue(&mut store, START), [(1, START)]);
    assert_eq!(overdue(&mut store, START + 2_000), [(2, START)]);
    // With a worker, without a result.
    let mut fires = Vec::new();
    let claims = Claims {
        topic: TOPIC,
        worker: WORKER,
        until: START + 30_000,
        attempts_max: 5,
        max: 10,
    };
    store.claim(START + 4_000, claims, &mut fires).unwrap();
    store.commit().unwrap();
    assert_eq!(fires.len(), 2);
    assert_eq!(overdue(&mut store, START + 4_000), [(2, START)]);
    // Its target had no free slot; the other one was refused, and is in retry.
    let next = START + 20_000;
    let release = Change::Release {
        claim: fires[0].claim,
        next,
    };
    store.change(START + 6_000, MessageId(1), release, None).unwrap();
    let fail = Change::Fail {
        claim: fires[1].claim,
        next: Some(next),
    };
    store.change(START + 6_000, MessageId(2), fail, None).unwrap();
    store.commit().unwrap();
    assert_eq!(overdue(&mut store, START + 6_000), [(1, START)]);
    store.change(START + 8_000, MessageId(1), Change::Cancel, None).unwrap();
    store.commit().unwrap();
    assert_eq!(overdue(&mut store, START + 8_000), []);
}

#[test]
fn cancel_ahead_of_its_message_waits_for_a_bounded_time() {
    let disk = Disk::new(1);
    let short = Settings {
        ahead_ms: 2 * HOUR,
        history_ms: 0,
        ..settings()
    };
    let mut store = open(&disk, short, START);
    for id in [1, 2] {
        assert_eq!(
            store.change(START, MessageId(id), Change::Cancel, None).unwrap(),
            Changed::Ahead(Ahead {
                cancelled: true,
                ..Ahead::default()
            })
        );
    }
    store.commit().unwrap();
    drop(store);
    disk.crash();
    let mut store = open(&disk, short, START);
    settle(&mut store, START);
    store.insert(new(1, START + 5, b"body")).unwrap();
    store.commit().unwrap();
    assert_eq!(fire(&mut store, START + 5), []);
    assert_eq!(store.get(MessageId(1)).unwrap().unwrap().0.state, State::Cancelled);
    let later = START + 2 * HOUR + 1;
    settle(&mut store, later);
    store.commit().unwrap();
    put(&mut store, 2, later, b"body");
    assert_eq!(fire(&mut store, later), [2]);
}

#[test]
fn store_on_a_full_disk_refuses_messages_fires_its_own_and_recovers() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    for id in 0..20 {
        put(&mut store, id, START + id, &[1; 100]);
    }
    disk.limit(Some(disk.used()));
    let mut taken = 20;
    let mut full = 0;
    for _ in 0..400 {
        settle(&mut store, START);
        match store.insert(new(taken, START + taken, &[2; 100])) {
            Ok(_) => {}
            Err(Denied::DiskFull) => {
                full += 1;
                continue;
            }
            Err(denied) => panic!("{denied}"),
        }
        match store.commit() {
            Ok(_) => taken += 1,
            Err(CommitError::DiskFull) => full += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(full > 0);
    // The log may be full as well: then claims fail with an error, and nothing fires that is not durable.
    settle(&mut store, START + 1_000);
    let mut fires = Vec::new();
    store
        .claim(
            START + 1_000,
            Claims {
                topic: TOPIC,
                worker: WORKER,
                until: START + 9_000,
                attempts_max: 5,
                max: 1_000,
            },
            &mut fires,
        )
        .unwrap();
    assert_eq!(fires.len() as u64, taken);
    let committed = store.commit();
    assert!(matches!(committed, Ok(_) | Err(CommitError::DiskFull)), "{committed:?}");
    disk.limit(None);
    let again = fire(&mut store, START + 1_000).len() as u64;
    assert_eq!(again, if committed.is_ok() { 0 } else { taken });
    put(&mut store, 1_000, START + 2_000, b"room again");
    assert_eq!(scrubbed(&mut store, START + 1_000).faults, Vec::<String>::new());
    drop(store);
    disk.crash();
    let mut store = open(&disk, settings(), START + 2_000);
    assert_eq!(fire(&mut store, START + 2_000), [1_000]);
    assert_eq!(store.stats().live, taken + 1);
}

#[test]
fn near_messages_fire_and_others_wait_while_the_index_is_read() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    put(&mut store, 1, START + 10, b"near");
    put(&mut store, 2, START + 50 * HOUR, b"far");
    store.close().unwrap();
    let mut store = open(&disk, settings(), START);
    assert!(!store.is_whole());
    store.tick(START + 10, 10).unwrap();
    let mut fires = Vec::new();
    store
        .claim(
            START + 10,
            Claims {
                topic: TOPIC,
                worker: WORKER,
                until: START + 99,
                attempts_max: 5,
                max: 10,
            },
            &mut fires,
        )
        .unwrap();
    assert_eq!(fires.len(), 1);
    assert!(matches!(store.insert(new(2, START, b"twice")), Err(Denied::Rebuilding)));
    assert!(matches!(
        store.change(START, MessageId(2), Change::Cancel, None),
        Err(Denied::Rebuilding)
    ));
    store.commit().unwrap();
    settle(&mut store, START + 10);
    assert!(store.is_whole());
    assert!(matches!(store.insert(new(2, START, b"twice")), Ok(Inserted::Before(_))));
    let cancelled = store.change(START, MessageId(2), Change::Cancel, None).unwrap();
    assert!(matches!(cancelled, Changed::Done(Step::Cancelled, _)));
    let fired = store.change(START, MessageId(1), Change::Cancel, None);
    assert!(matches!(fired, Err(Denied::Refused(Refusal::Fired))));
}

#[test]
fn scrub_finds_any_damaged_byte() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    for id in 0..10 {
        put(&mut store, id, START + 50 * HOUR, &[id as u8; 40]);
    }
    store.close().unwrap();
    let mut store = open(&disk, settings(), START);
    settle(&mut store, START);
    assert_eq!(scrubbed(&mut store, START).bodies, 10);
    let hour = ((START + 50 * HOUR) / HOUR) as u32;
    for name in [FileName::Ops(hour), FileName::Bodies(hour)] {
        for at in (0..560).step_by(13) {
            disk.damage(name, at);
            let found = scrubbed(&mut store, START);
            let is_one = found.fault_count == 1 || name == FileName::Ops(hour);
            assert!(
                !found.faults.is_empty() && is_one,
                "{name:?} at {at}: {:?}",
                found.faults
            );
            disk.damage(name, at);
        }
    }
    assert!(scrubbed(&mut store, START).faults.is_empty());
}

#[test]
fn scrub_reports_a_missing_file_and_the_store_continues() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    for id in 0..10 {
        put(&mut store, id, START + 50 * HOUR, &[id as u8; 40]);
    }
    store.close().unwrap();
    let mut store = open(&disk, settings(), START);
    settle(&mut store, START);
    let hour = ((START + 50 * HOUR) / HOUR) as u32;
    // The name may return.
    while disk.files().contains(&FileName::Bodies(hour)) {
        disk.remove(FileName::Bodies(hour)).unwrap();
    }
    let found = scrubbed(&mut store, START);
    assert_eq!((found.messages, found.fault_count), (10, 1), "{:?}", found.faults);
    assert!(matches!(store.get(MessageId(1)), Ok(Some(_))), "the store goes on");
}

#[test]
fn checkpoints_come_one_after_another_and_trim_the_log() {
    let disk = Disk::new(1);
    let mut store = open(&disk, settings(), START);
    let mut out: Vec<Job<Disk>> = Vec::new();
    let mut since = 0;
    for id in 0..2_000 {
        put(&mut store, id, START + id * 60_000, &[1; 100]);
        store.tick(START, 100).unwrap();
        out.extend(std::iter::from_fn(|| store.next_job()));
        assert!(out.len() <= 1, "a second checkpoint begins before the first has ended");
        // A job takes three turns.
        since = if out.is_empty() { id } else { since };
        if id >= since + 3 {
            for job in out.drain(..) {
                store.finish(job.run()).unwrap();
            }
        }
    }
    // 2,000 messages are some 400,000 bytes in segments of 40,000.
    assert!(store.stats().checkpoints > 10, "{:?}", store.stats());
    assert!(disk.segments() <= 3, "{} segments", disk.segments());
}
