//! The bytes that a store's scripts take and give (`control/presence/scripts.py`).
//!
//! Owns their layouts: numbers are big-endian, a user is its decimal digits behind a length of 1 B, since scripts have no integers of 64 bits; what is
//! longer stands behind a length of 4 B. Knows no store.

use crate::batch::Batch;
use crate::bucket::{bucket, Record};
use crate::event::State;
use crate::places::Change;
use crate::wire::Shard;
use std::fmt::Write as _;

/// A batch as the script takes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packed {
    /// Bucket (4 B), user, record (4 B of length; none: the user is deleted).
    pub users: Vec<u8>,
    /// Gateway and its value, each behind 1 B of length: epoch and version in digits with a blank between, or nothing.
    pub vector: Vec<u8>,
    /// User, and the change in JSON (4 B of length).
    pub feed: Vec<u8>,
    pub users_len: usize,
    pub feed_len: usize,
}

/// The answer of a look-up for one user.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    /// `None`: the bytes are no record of this format.
    record: Option<Record>,
    /// Seconds since 1970 at which an offline user's last device went; 0: not known.
    last_seen_s: u32,
}

/// Packs a batch for a store with so many buckets.
pub fn pack(batch: &Batch, shard: Shard, buckets: u32) -> Packed {
    let mut packed = Packed::default();
    let mut json = String::new();
    for user in &batch.users {
        packed
            .users
            .extend_from_slice(&bucket(user.user, shard.of, buckets).to_be_bytes());
        short(&mut packed.users, &user.user.to_string());
        long(&mut packed.users, &user.record);
        for change in &user.changes {
            json.clear();
            tell(&mut json, change);
            short(&mut packed.feed, &user.user.to_string());
            long(&mut packed.feed, json.as_bytes());
            packed.feed_len += 1;
        }
    }
    packed.users_len = batch.users.len();
    for applied in &batch.vector {
        short(&mut packed.vector, &applied.ap.to_string());
        let value = applied.version.map(|version| format!("{} {version}", applied.epoch));
        short(&mut packed.vector, &value.unwrap_or_default());
    }
    packed
}

/// Packs users to be looked up in their shard: bucket (4 B) and user.
pub fn questions(users: &[u64], shards: u16, buckets: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(users.len() * 16);
    for user in users {
        bytes.extend_from_slice(&bucket(*user, shards, buckets).to_be_bytes());
        short(&mut bytes, &user.to_string());
    }
    bytes
}

/// Reads the answers in the order of the questions: record (4 B of length), seconds (4 B). `None`: they are malformed.
fn answers(bytes: &[u8]) -> Option<Vec<Found>> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let record = take_long(&mut rest)?;
        let last_seen_s = u32::from_be_bytes(*take(&mut rest, 4)?.first_chunk()?);
        found.push(Found {
            record: Record::decode(record),
            last_seen_s,
        });
    }
    Some(found)
}

/// One shard's part of a look-up.
pub struct Part<'a> {
    /// The store's answer.
    pub answers: &'a [u8],
    /// The shard's keepalive in ms: when its online users were last seen.
    pub alive_ms: u64,
    /// The place of each of its users in the question.
    pub places: Vec<usize>,
}

/// The whole answer of a site in MessagePack, as `plane/presence/questions.py` reads it: `[site, [[user, [[device, gateway,
/// since_ms], …], last_seen_ms or nil], …]]`, users as in the question. `None`: a part is malformed, or lacks a user.
pub fn found(site: u16, users: &[u64], parts: &[Part<'_>]) -> Option<Vec<u8>> {
    let mut all: Vec<Option<(Found, u64)>> = users.iter().map(|_| None).collect();
    for part in parts {
        let answers = answers(part.answers)?;
        if answers.len() != part.places.len() {
            return None;
        }
        for (place, found) in part.places.iter().zip(answers) {
            *all.get_mut(*place)? = Some((found, part.alive_ms));
        }
    }
    let mut bytes = Vec::with_capacity(32 * users.len() + 16);
    array(&mut bytes, 2);
    unsigned(&mut bytes, u64::from(site));
    array(&mut bytes, users.len());
    for (user, found) in users.iter().zip(all) {
        let (found, alive_ms) = found?;
        let record = found.record?;
        let online = || record.0.iter().filter(|held| held.state == State::Online);
        let count = online().count();
        array(&mut bytes, 3);
        unsigned(&mut bytes, *user);
        array(&mut bytes, count);
        for held in online() {
            array(&mut bytes, 3);
            text(&mut bytes, held.device.name());
            unsigned(&mut bytes, u64::from(held.origin.ap));
            unsigned(&mut bytes, held.at_ms);
        }
        match (count, found.last_seen_s) {
            (0, 0) => bytes.push(0xc0),
            (0, seen) => unsigned(&mut bytes, u64::from(seen) * 1_000),
            _ => unsigned(&mut bytes, alive_ms),
        }
    }
    Some(bytes)
}

fn array(bytes: &mut Vec<u8>, len: usize) {
    match len {
        0..=15 => bytes.push(0x90 | len as u8),
        _ => {
            bytes.push(0xdd);
            bytes.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

fn unsigned(bytes: &mut Vec<u8>, number: u64) {
    match u32::try_from(number) {
        Ok(number) if number < 128 => bytes.push(number as u8),
        Ok(number) => {
            bytes.push(0xce);
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        Err(_) => {
            bytes.push(0xcf);
            bytes.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// A device's name: at most 23 B of ASCII.
fn text(bytes: &mut Vec<u8>, name: &[u8]) {
    bytes.push(0xa0 | name.len() as u8);
    bytes.extend_from_slice(name);
}

/// Reads a page of a shard's records: user, record (4 B of length). `None`: it is malformed.
pub fn page(bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut users = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = usize::from(*take(&mut rest, 1)?.first()?);
        let user = std::str::from_utf8(take(&mut rest, len)?).ok()?.parse().ok()?;
        users.push((user, take_long(&mut rest)?));
    }
    Some(users)
}

/// A change as consumers of the feed read it (`docs/presence.md`). Numbers of 64 bits are text: JSON has 53.
fn tell(json: &mut String, change: &Change) {
    let (id, at_ms) = (change.id, change.at_ms);
    let device = String::from_utf8_lossy(change.device.name());
    let (state, reason) = match change.state {
        State::Online => ("online", String::from("null")),
        State::Offline(reason) => ("offline", format!("\"{}\"", reason.name())),
    };
    let _ = write!(
        json,
        "{{\"user\":\"{}\",\"device\":{},\"state\":\"{state}\",\"reason\":{reason},\"gateway\":{},\"at_ms\":{at_ms},\"id\":\"{}-{}-{}-{}\"}}",
        change.user,
        quoted(&device),
        id.origin.ap,
        id.origin.ap,
        id.origin.epoch,
        id.version,
        id.index,
    );
}

/// A device's name in JSON: it has printable ASCII only.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for each in text.chars() {
        if each == '"' || each == '\\' {
            quoted.push('\\');
        }
        quoted.push(each);
    }
    quoted.push('"');
    quoted
}

fn short(bytes: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() < 256);
    bytes.push(text.len() as u8);
    bytes.extend_from_slice(text.as_bytes());
}

fn long(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend_from_slice(&(content.len() as u32).to_be_bytes());
    bytes.extend_from_slice(content);
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

fn take_long<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u32::from_be_bytes(*take(rest, 4)?.first_chunk()?);
    take(rest, len as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Applied, UserChange};
    use crate::device::Device;
    use crate::event::Reason;
    use crate::places::ChangeId;
    use crate::wire::Origin;

    #[test]
    fn a_batch_is_packed_as_the_scripts_read_it() {
        let change = Change {
            id: ChangeId {
                origin: Origin { ap: 3, epoch: 9 },
                version: 7,
                index: 2,
            },
            user: u64::MAX,
            device: Device::new(b"a\"b").expect("a name"),
            state: State::Offline(Reason::Lost),
            at_ms: 5,
        };
        let batch = Batch {
            users: vec![UserChange {
                user: u64::MAX,
                record: vec![],
                changes: vec![change],
            }],
            vector: vec![
                Applied {
                    ap: 3,
                    epoch: 9,
                    version: Some(7),
                },
                Applied {
                    ap: 4,
                    epoch: 1,
                    version: None,
                },
            ],
        };
        let packed = pack(&batch, Shard { of: 1, index: 0 }, 1);
        assert_eq!(packed.users, b"\0\0\0\0\x1418446744073709551615\0\0\0\0");
        assert_eq!(packed.vector, b"\x013\x039 7\x014\0");
        let json = br#"{"user":"18446744073709551615","device":"a\"b","state":"offline","reason":"lost","gateway":3,"at_ms":5,"id":"3-9-7-2"}"#;
        assert_eq!(&packed.feed[25..], json);
        assert_eq!((packed.users_len, packed.feed_len), (1, 1));
    }

    #[test]
    fn a_site_s_answer_has_every_user_in_its_place_or_is_none() {
        let held = crate::bucket::Held {
            origin: Origin { ap: 300, epoch: 9 },
            device: Device::new(b"tv").expect("a name"),
            version: 1,
            index: 0,
            state: State::Online,
            at_ms: 5,
        };
        let record = Record(vec![held]).encode();
        let mut known = Vec::new();
        long(&mut known, &record);
        known.extend_from_slice(&[0; 4]);
        let part = |answers, places: &[usize]| Part {
            answers,
            alive_ms: 7,
            places: places.to_vec(),
        };
        let nobody = b"\0\0\0\0\0\0\0\x02";
        let parts = [part(&known, &[1]), part(nobody, &[0])];
        let told = found(1, &[8, 9], &parts).expect("well formed");
        let wanted = b"\x92\x01\x92\x93\x08\x90\xce\0\0\x07\xd0\x93\x09\x91\x93\xa2tv\xce\0\0\x01\x2c\x05\x07";
        assert_eq!(told, wanted);
        assert!(found(1, &[8, 9], &parts[..1]).is_none(), "a user is missing");
        assert!(found(1, &[8], &[part(&known, &[1])]).is_none(), "no such place");
        assert!(found(1, &[8], &[part(&known[1..], &[0])]).is_none(), "malformed");
    }

    #[test]
    fn answers_and_pages_are_read_or_refused_whole() {
        assert_eq!(questions(&[7], 2, 4), b"\0\0\0\x03\x017");
        let found = answers(b"\0\0\0\0\0\0\0\x05").expect("well formed");
        assert_eq!(found[0].record, Some(Record::default()));
        assert_eq!(found[0].last_seen_s, 5);
        assert_eq!(page(b"\x017\0\0\0\x01x"), Some(vec![(7, &b"x"[..])]));
        for len in 1..7 {
            assert_eq!(page(&b"\x017\0\0\0\x01x"[..len]), None);
            assert!(answers(&b"\0\0\0\0\0\0\0\x05"[..len]).is_none());
        }
        assert_eq!(page(b"\x01x\0\0\0\0"), None, "no number");
    }
}
