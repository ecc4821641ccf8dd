//! A reader's copy of a shard answers what its store would, whenever it was loaded and however late its batches come.

use muster_presence::{bucket, Answers, Device, Lookup, Origin, Part, Record, State, StoredDevice, Table, TableError};
use muster_transport::Dice;
use std::collections::BTreeMap;

const BUCKETS: u32 = 4;
const SHARDS: u16 = 3;
const SEEN_MAX: usize = muster_presence::TABLE_SEEN_MAX;
/// Users of one shard.
const USERS: u64 = 40;

fn user(number: u64) -> u64 {
    // Consecutive numbers of one shard, and some with high bits.
    number * u64::from(SHARDS) + if number % 5 == 0 { (1 << 63) / 3 * 3 } else { 0 }
}

fn text(bytes: &mut Vec<u8>, content: &[u8]) {
    match content.len() {
        len @ 0..=31 => bytes.push(0xa0 | len as u8),
        len => {
            bytes.push(0xdb);
            bytes.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    bytes.extend_from_slice(content);
}

/// Users with their records, in MessagePack.
fn list<'a>(users: impl Iterator<Item = (&'a u64, &'a Vec<u8>)>) -> Vec<u8> {
    let users: Vec<_> = users.collect();
    let mut bytes = vec![0xdd];
    bytes.extend_from_slice(&(2 * users.len() as u32).to_be_bytes());
    for (user, record) in users {
        text(&mut bytes, user.to_string().as_bytes());
        text(&mut bytes, record);
    }
    bytes
}

fn short(bytes: &mut Vec<u8>, user: u64) {
    let digits = user.to_string();
    bytes.push(digits.len() as u8);
    bytes.extend_from_slice(digits.as_bytes());
}

/// A record of some devices; `mark` makes it differ from others.
fn record(devices: u64, mark: u64) -> Vec<u8> {
    let held = (0..devices).map(|at| StoredDevice {
        origin: Origin {
            ap: 1 + at as u32,
            epoch: 9,
        },
        device: Device::new(b"phone").expect("a name"),
        version: mark,
        index: 0,
        state: State::Online,
        at_ms: mark,
    });
    Record(held.collect()).encode()
}

#[derive(Clone)]
struct Batch {
    number: u64,
    records: BTreeMap<u64, Vec<u8>>,
    /// With how long ago they went.
    gone: Vec<(u64, u32)>,
    at_s: u64,
}

impl Batch {
    fn take(&self, table: &mut Table) -> Result<bool, TableError> {
        self.take_in(table, BUCKETS)
    }

    /// For a table of one bucket.
    fn take_of_one(&self, table: &mut Table) -> Result<bool, TableError> {
        self.take_in(table, 1)
    }

    fn take_in(&self, table: &mut Table, buckets: u32) -> Result<bool, TableError> {
        let (users, mut gone) = (list(self.records.iter()), Vec::new());
        for (user, ago_s) in &self.gone {
            gone.extend_from_slice(&bucket(*user, SHARDS, buckets).to_be_bytes());
            gone.extend_from_slice(&ago_s.to_be_bytes());
            short(&mut gone, *user);
        }
        table.batch(self.number, &users, &gone, self.at_s)
    }
}

/// The store, as plain maps.
#[derive(Clone, Default)]
struct Store {
    batches: u64,
    users: BTreeMap<u64, Vec<u8>>,
    seen: BTreeMap<u32, (u64, BTreeMap<u64, u32>)>,
}

impl Store {
    fn write(&mut self, batch: &Batch) {
        self.batches = batch.number;
        self.users.extend(batch.records.clone());
        for (user, ago_s) in &batch.gone {
            self.users.remove(user);
            let at = bucket(*user, SHARDS, BUCKETS);
            let (ends, known) = self.seen.entry(at).or_default();
            if *ends <= batch.at_s {
                known.clear();
            }
            known.insert(*user, (batch.at_s - u64::from(*ago_s)) as u32);
            if known.len() > SEEN_MAX {
                known.clear();
            }
            *ends = batch.at_s + muster_presence::TABLE_SEEN_S;
        }
    }

    fn page(&self, of: impl Fn(u64) -> bool) -> Vec<u8> {
        list(self.users.iter().filter(|(user, _)| of(**user)))
    }

    fn seen_page(&self, now_s: u64, of: u32) -> Vec<u8> {
        let mut page = (now_s as u32).to_be_bytes().to_vec();
        if let Some((ends, known)) = self.seen.get(&of).filter(|(ends, _)| *ends > now_s) {
            for number in [of, (*ends - now_s) as u32, known.len() as u32] {
                page.extend_from_slice(&number.to_be_bytes());
            }
            for (user, at_s) in known {
                short(&mut page, *user);
                page.extend_from_slice(&at_s.to_be_bytes());
            }
        }
        page
    }

    /// The store's own answer to a query.
    fn answers(&self, users: &[u64], now_s: u64) -> Vec<u8> {
        let mut bytes = vec![0xdd];
        bytes.extend_from_slice(&(users.len() as u32).to_be_bytes());
        for user in users {
            match self.users.get(user) {
                Some(record) => text(&mut bytes, record),
                None => {
                    let seen = self.seen.get(&bucket(*user, SHARDS, BUCKETS));
                    let known = seen
                        .filter(|(ends, _)| now_s < *ends)
                        .and_then(|(_, known)| known.get(user));
                    bytes.push(0xce);
                    bytes.extend_from_slice(&known.copied().unwrap_or(0).to_be_bytes());
                }
            }
        }
        bytes
    }
}

fn found(answers: Answers<'_>, users: &[u64], now_s: u64) -> Option<Vec<u8>> {
    let part = Part {
        shard: 0,
        answers,
        now_ms: now_s * 1_000,
        alive_ms: now_s * 1_000,
    };
    Lookup::new(users.to_vec(), SHARDS).found(1, &[part], true)
}

fn found_of(table: &Table, user: u64, now_s: u64) -> Option<Vec<u8>> {
    let part = Part {
        shard: 0,
        answers: Answers::Table(table),
        now_ms: now_s * 1_000,
        alive_ms: 1,
    };
    Lookup::new(vec![user], 1).found(1, &[part], false)
}

fn batch(dice: &mut Dice, number: u64, now_s: &mut u64, users: u64) -> Batch {
    *now_s += dice.below(3) + if dice.below(40) == 0 { 4 * 86_400 } else { 0 };
    let mut made = Batch {
        number,
        records: BTreeMap::new(),
        gone: Vec::new(),
        at_s: *now_s,
    };
    for _ in 0..dice.below(6) {
        let user = user(dice.below(users));
        let devices = if dice.below(20) == 0 { 12 } else { 1 + dice.below(2) };
        made.records.insert(user, record(devices, 1 + dice.below(1_000_000)));
    }
    for _ in 0..dice.below(4) {
        let user = user(dice.below(users));
        if !made.records.contains_key(&user) {
            made.gone.push((user, dice.below(5) as u32));
        }
    }
    made
}

/// One run: a store that is written all the time, and a copy that is loaded from it, batches coming late.
fn run(seed: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    let users = [3, USERS, 20 * USERS][(seed % 3) as usize];
    let all: Vec<u64> = (0..users + 2).map(user).collect();
    let (mut store, mut now_s) = (Store::default(), 1_790_000_000);
    let mut table = Table::new(SHARDS, BUCKETS, dice.roll());
    let mut late: Vec<Batch> = Vec::new();
    let mut write = |store: &mut Store, dice: &mut Dice, late: &mut Vec<Batch>| {
        let made = batch(dice, store.batches + 1, &mut now_s, users);
        store.write(&made);
        late.push(made);
        now_s
    };
    let drain = |table: &mut Table, late: &mut Vec<Batch>, count: usize| -> Result<(), String> {
        for one in late.drain(..count.min(late.len())) {
            match one.take(table) {
                Ok(true) => {}
                other => return Err(format!("batch {} was {other:?}", one.number)),
            }
        }
        Ok(())
    };
    for _ in 0..dice.below(40) {
        write(&mut store, &mut dice, &mut late);
    }
    late.clear();
    table.begin(store.batches);
    for part in 0..4u64 {
        for _ in 0..dice.below(4) {
            write(&mut store, &mut dice, &mut late);
        }
        let page = store.page(|user| user % 4 == part);
        let now = write(&mut store, &mut dice, &mut late);
        let seen = store.seen_page(now, part as u32);
        let count = dice.below(6) as usize;
        if dice.below(2) == 0 {
            drain(&mut table, &mut late, count)?;
        }
        table.page(&page).map_err(|error| format!("{error:?}"))?;
        table.seen_page(&seen).map_err(|error| format!("{error:?}"))?;
        drain(&mut table, &mut late, dice.below(6) as usize)?;
    }
    let count = late.len();
    drain(&mut table, &mut late, count)?;
    table.loaded();
    for step in 0..40 {
        if step > 0 {
            write(&mut store, &mut dice, &mut late);
            if step == 30 && !late.is_empty() {
                let lost = late.remove(0);
                write(&mut store, &mut dice, &mut late);
                let took = late[0].take(&mut table);
                if took != Ok(false) || table.is_whole() {
                    return Err(format!("batch {} is missing and was not missed", lost.number));
                }
                return Ok(());
            }
            if let Some(again) = late.first().filter(|_| dice.below(4) == 0).cloned() {
                drain(&mut table, &mut late, 1)?;
                if again.take(&mut table) != Ok(true) {
                    return Err("a batch that came twice counts as missing".into());
                }
            }
            let count = late.len();
            drain(&mut table, &mut late, count)?;
        }
        if !table.is_whole() || table.batches() != store.batches || table.users_len() != store.users.len() {
            return Err(format!("{} users of {}", table.users_len(), store.users.len()));
        }
        let at = store.batches + 1_790_000_000;
        for user in &all {
            let wanted = found(Answers::Store(&store.answers(&[*user], at)), &[*user], at);
            let told = found(Answers::Table(&table), &[*user], at);
            if wanted.is_none() || told != wanted {
                return Err(format!("step {step}, user {user}: {told:?}, not {wanted:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn a_copy_answers_what_its_store_would() {
    for seed in 0..300 {
        assert_eq!(run(seed), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_bucket_with_too_many_users_is_forgotten_as_the_store_forgets_it() {
    let mut table = Table::new(1, 1, 3);
    let went = |number, user| Batch {
        number,
        records: BTreeMap::new(),
        gone: vec![(user, 0)],
        at_s: 1_000,
    };
    let seen = |table: &Table, user| found_of(table, user, 2_000) != found_of(&Table::new(1, 1, 3), user, 2_000);
    for user in 0..SEEN_MAX as u64 {
        assert_eq!(went(user + 1, user).take_of_one(&mut table), Ok(true));
    }
    assert!(seen(&table, 0) && seen(&table, 255));
    assert!(went(257, 256).take_of_one(&mut table) == Ok(true) && !seen(&table, 0) && !seen(&table, 256));
    assert!(went(258, 0).take_of_one(&mut table) == Ok(true) && seen(&table, 0));
    let ends = 1_000 + muster_presence::TABLE_SEEN_S;
    assert_ne!(
        found_of(&table, 0, ends - 1),
        found_of(&Table::new(1, 1, 3), 0, ends - 1)
    );
    assert_eq!(
        found_of(&table, 0, ends),
        found_of(&Table::new(1, 1, 3), 0, ends),
        "after a week"
    );
}

#[test]
fn any_bytes_are_taken_or_refused() {
    let mut dice = Dice::new(5);
    for _ in 0..20_000 {
        let mut table = Table::new(SHARDS, BUCKETS, 1);
        let bytes: Vec<u8> = (0..dice.below(60)).map(|_| dice.roll() as u8).collect();
        let _ = (table.page(&bytes), table.seen_page(&bytes));
        let _ = table.batch(1, &bytes, b"", 1);
        let _ = table.batch(2, b"\x90", &bytes, 1);
        assert!(table.users_len() <= 60);
    }
    let mut table = Table::new(SHARDS, BUCKETS, 1);
    assert_eq!(
        table.batch(1, b"\x91\xa13", b"", 1),
        Err(TableError::Malformed),
        "a user without a record"
    );
    assert_eq!(
        table.batch(1, b"\x92\xa1x\xa0", b"", 1),
        Err(TableError::Malformed),
        "no number"
    );
    assert_eq!(
        table.batch(1, b"\x90", b"\0\0\0\x09\0\0\0\0\x013", 1),
        Err(TableError::Malformed),
        "no such bucket"
    );
}

/// Users with one device, in a table as it grows.
#[test]
fn bytes_of_a_user_in_a_copy() {
    let mut table = Table::new(1, 8_192, 7);
    let empty = table.bytes();
    let (mut most, mut number) = (0.0f64, 0);
    for first in (0..200_000u64).step_by(1_000) {
        number += 1;
        let records = (first..first + 1_000).map(|user| (user * 211, record(1, 1_790_000_000_000 + user)));
        let made = Batch {
            number,
            records: records.collect(),
            gone: Vec::new(),
            at_s: 1,
        };
        assert_eq!(made.take(&mut table), Ok(true));
        if first >= 10_000 {
            most = most.max((table.bytes() - empty) as f64 / table.users_len() as f64);
        }
    }
    println!("bytes a user, at most: {most:.1}");
    assert!(most < 80.0, "{most}");
    let gone: Vec<(u64, u32)> = (0..200_000u64).map(|user| (user * 211, 0)).collect();
    let made = Batch {
        number: number + 1,
        records: BTreeMap::new(),
        gone,
        at_s: 2_000_000_000,
    };
    let _ = made.take(&mut table);
    assert_eq!(table.users_len(), 0);
}
