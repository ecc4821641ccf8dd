//! The store against two maps, over a disk that tears and loses what was not synced.

mod disk;
mod reference;

use std::time::Duration;

use disk::{Disk, Segments};
use muster_journal::Log;
use muster_messages::schedule::{Change, Due, Incarnation, MessageId, Refusal, State, Step, NEVER};
use muster_messages::store::{Changed, CommitError, Denied, FileName, Fire, Inserted, Job, NewMessage, Settings, Store};
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

/// Ticks until nothing is left, jobs included.
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
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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

/// One life of many stores over one disk.
struct Run {
    seed: u64,
    random: Random,
    disk: Disk,
    store: Option<SimStore>,
    /// Jobs that are out.
    jobs: Vec<Job<Disk>>,
    now: Millis,
    /// As committed, and as staged.
    durable: reference::store::Store,
    staged: reference::store::Store,
    crashes: u32,
    claims: u32,
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
            crashes: 0,
            claims: 0,
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
        let expires_at = if self.random.below(5) == 0 { due_at + self.random.below(HOUR) } else { NEVER };
        let body = vec![id.0 as u8; self.random.below(300) as usize];
        let new = NewMessage { id, topic: TOPIC, due_at, expires_at, body: &body };
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
        let version = self.staged.messages.get(&id.0).map_or(1, |(message, _)| message.version);
        let change = match self.random.below(10) {
            0 => Change::Cancel,
            1..=3 => Change::Reschedule(Due::At(at)),
            4 => Change::Reschedule(Due::By(self.random.below(2 * HOUR) as i64 - HOUR as i64)),
            5 | 6 => Change::Deliver { claim: version },
            7 => Change::Fail { claim: version, next: Some(at) },
            8 => Change::Fail { claim: version, next: None },
            _ if self.random.below(2) == 0 => Change::Replay { due_at: at },
            _ => Change::Release { claim: version, next: at },
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
                    Changed::Ahead => assert_eq!(model, Ok(None), "{}", self.seed),
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

    /// A worker claims some of what is due.
    fn work(&mut self) -> bool {
        let until = self.now + 1 + self.random.below(100_000);
        let attempts_max = 1 + self.random.below(3) as u16;
        let max = 1 + self.random.below(4) as usize;
        let claim = Change::Claim { worker: WORKER, until, attempts_max };
        let due = self.staged.due(self.now);
        let mut fires: Vec<Fire> = Vec::new();
        let store = self.store.as_mut().unwrap();
        let claimed = store.claim(self.now, TOPIC, WORKER, until, attempts_max, max, &mut fires);
        if claimed.is_err() {
            return false;
        }
        for fire in &fires {
            let step = self.staged.change(self.now, fire.message.id, claim, None);
            assert_eq!(step, Ok(Some(Step::Claimed { claim: fire.claim })), "{}", self.seed);
            self.claims += 1;
        }
        // Those that came to their end instead.
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
        true
    }

    fn commit(&mut self) -> bool {
        match self.store.as_mut().unwrap().commit() {
            Ok(_) => {
                self.durable = self.staged.clone();
                true
            }
            Err(_) => false,
        }
    }

    /// The power goes; after it the last group is there as a whole or not at all.
    fn crash(&mut self) {
        self.crashes += 1;
        self.store = None;
        self.jobs.clear();
        self.disk.crash();
        self.now += self.random.below(2 * HOUR);
        let mut store = open(&self.disk, settings(), self.now);
        settle(&mut store, self.now);
        self.store = Some(store);
        let before = self.durable.clone();
        if !self.same(&before) {
            let after = self.staged.clone();
            assert!(self.same(&after), "{}: neither the last group's begin nor its end", self.seed);
            self.durable = after;
        }
        self.staged = self.durable.clone();
    }

    fn same(&self, model: &reference::store::Store) -> bool {
        let store = self.store.as_ref().unwrap();
        (0..60).map(MessageId).all(|id| {
            let found = store.get(id).expect("the store is whole").map(|(message, _)| message);
            found == model.messages.get(&id.0).map(|(message, _)| *message)
        })
    }

    /// All that is known, every body, every part; and all that is due is given out, nothing else.
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
        assert_eq!(store.scrub().unwrap().faults, Vec::<String>::new(), "{}", self.seed);
        let until = self.now + 30_000;
        let mut fires = Vec::new();
        loop {
            let before = fires.len();
            store.claim(self.now, TOPIC, WORKER, until, 3, 10, &mut fires).unwrap();
            store.commit().unwrap();
            if fires.len() == before {
                break;
            }
        }
        let claim = Change::Claim { worker: WORKER, until, attempts_max: 3 };
        let mut body = Vec::new();
        for id in self.staged.due(self.now) {
            let step = self.staged.change(self.now, id, claim, None).unwrap().unwrap();
            let fire = fires.iter().position(|fire| fire.message.id == id);
            assert_eq!(fire.is_some(), matches!(step, Step::Claimed { .. }), "{}: {id:?} {step:?}", self.seed);
            if let Some(at) = fire {
                let fire = fires.swap_remove(at);
                assert_eq!(step, Step::Claimed { claim: fire.claim });
                store.body(&fire, &mut body).unwrap();
                assert_eq!(body, self.staged.messages[&id.0].1);
                self.claims += 1;
            }
            assert_eq!(store.get(id).unwrap().unwrap().0, self.staged.messages[&id.0].0, "{}", self.seed);
        }
        assert_eq!(fires, [], "{}: what is not due fires", self.seed);
        self.durable = self.staged.clone();
        let live = self.durable.messages.values().filter(|(message, _)| !message.state.is_terminal()).count();
        assert_eq!(store.stats().live as usize, live + self.durable.ahead.len());
    }
}

#[test]
fn store_agrees_with_two_maps_through_any_crash() {
    let (mut crashes, mut claims) = (0, 0);
    let seeds = std::env::var("MESSAGES_SEEDS").map_or(150, |seeds| seeds.parse().expect("a number of seeds"));
    for seed in 1..=seeds {
        let mut run = Run::new(seed);
        run.go(500);
        crashes += run.crashes;
        claims += run.claims;
    }
    assert!(crashes > seeds as u32 && claims > 20 * seeds as u32, "{crashes} crashes, {claims} claims");
}
