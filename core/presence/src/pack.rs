//! The bytes that a store's scripts take and return (`systems/presence/scripts.py`).
//!
//! Owns their layouts. Lists that one command takes are MessagePack, which scripts parse in compiled code. Elsewhere
//! numbers are big-endian; a user is its decimal digits after a length of 1 B, since scripts have no 64-bit integers;
//! longer data follows a length of 4 B. Changes are records of a log, which no script parses. Knows no store.

use crate::batch::Batch;
use crate::bucket::{bucket, Record, StoredDevice};
use crate::event::{Reason, State};
use crate::parse::{take_array, take_value, Value};
use crate::places::Change;
use crate::table::Table;
use crate::wire::Shard;
use muster_transport::Micros;

/// A batch in the script's format.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packed {
    /// In MessagePack: user, record, user, record, …
    pub users: Vec<u8>,
    /// Users without a device: bucket (4 B), how many seconds ago the last device went offline (4 B), user.
    pub gone: Vec<u8>,
    /// Gateway and its value, each after 1 B of length: epoch and version in digits with a blank between, or nothing.
    pub vector: Vec<u8>,
    /// Changes in JSON, each after its length (4 B, little-endian): a batch of the log (`plane/log/words.py`).
    pub feed: Vec<u8>,
    pub users_len: usize,
    pub feed_len: usize,
}

/// Packs a batch for a store with this many buckets.
pub fn pack(batch: &Batch, shard: Shard, buckets: u32, now: Micros) -> Packed {
    let mut packed = Packed {
        users_len: batch.users.len(),
        feed_len: batch.users.iter().map(|user| user.changes.len()).sum(),
        ..Packed::default()
    };
    let kept = batch.users.iter().filter(|user| !user.record.is_empty()).count();
    packed.users.reserve(64 * kept);
    packed.feed.reserve(192 * packed.feed_len);
    array(&mut packed.users, 2 * kept);
    for user in &batch.users {
        let mut digits = Digits::default();
        let name = digits.of(user.user);
        if user.record.is_empty() {
            packed
                .gone
                .extend_from_slice(&bucket(user.user, shard.of, buckets).to_be_bytes());
            let ago_s = user.went.map_or(0, |went| now.saturating_sub(went) / 1_000_000);
            packed
                .gone
                .extend_from_slice(&u32::try_from(ago_s).unwrap_or(u32::MAX).to_be_bytes());
            short(&mut packed.gone, name);
        } else {
            text(&mut packed.users, name);
            text(&mut packed.users, &user.record);
        }
        for change in &user.changes {
            let begin = packed.feed.len();
            packed.feed.extend_from_slice(&[0; 4]);
            tell(&mut packed.feed, change, name);
            let len = (packed.feed.len() - begin - 4) as u32;
            packed.feed[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
        }
    }
    for applied in &batch.vector {
        short(&mut packed.vector, applied.ap.to_string().as_bytes());
        let value = applied.version.map(|version| format!("{} {version}", applied.epoch));
        short(&mut packed.vector, value.unwrap_or_default().as_bytes());
    }
    packed
}

/// Parses the replies in the order of the queried users, a list in MessagePack: a record, or the second at which an
/// offline user was last seen, 0 if unknown. `None`: malformed.
fn answers<'a>(bytes: &'a [u8], mut each: impl FnMut(usize, Value<'a>) -> Option<()>) -> Option<usize> {
    let mut rest = bytes;
    let count = take_array(&mut rest)?;
    for at in 0..count {
        each(at, take_value(&mut rest)?)?;
    }
    rest.is_empty().then_some(count)
}

/// Where one shard's answers are.
#[derive(Clone, Copy)]
pub enum Answers<'a> {
    /// A store's answer, in the order of the query.
    Store(&'a [u8]),
    /// A copy of the store.
    Table(&'a Table),
}

/// One shard's part of a look-up.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub shard: u16,
    pub answers: Answers<'a>,
    /// The store's clock in ms when it replied.
    pub now_ms: u64,
    /// The shard's keepalive in ms: the time at which its online users were last seen.
    pub alive_ms: u64,
}

/// Users to be looked up in the shards of a site, in the order of the query.
pub struct Lookup {
    users: Vec<u64>,
    /// For each shard, the indices of its users in the query.
    places: Vec<Vec<usize>>,
}

impl Lookup {
    /// A look-up of users in this many shards, at least one.
    pub fn new(users: Vec<u64>, shards: u16) -> Self {
        let shards = shards.max(1);
        let mut places = vec![Vec::new(); usize::from(shards)];
        match shards {
            1 => places[0].extend(0..users.len()),
            _ => {
                for (place, user) in users.iter().enumerate() {
                    places[(user % u64::from(shards)) as usize].push(place);
                }
            }
        }
        Lookup { users, places }
    }

    /// The shards that have users of the query.
    pub fn shards(&self) -> impl Iterator<Item = u16> + '_ {
        let known = (0..).zip(&self.places);
        known.filter(|(_, places)| !places.is_empty()).map(|(shard, _)| shard)
    }

    /// The query for a shard's store: its users in MessagePack, and the bucket (4 B) of each. Empty for a shard that
    /// does not exist.
    pub fn question(&self, shard: u16, buckets: u32) -> (Vec<u8>, Vec<u8>) {
        let places = self.places.get(usize::from(shard)).map_or(&[][..], Vec::as_slice);
        let shards = self.places.len() as u16;
        let mut names = Vec::with_capacity(places.len() * 12 + 5);
        let mut found = Vec::with_capacity(places.len() * 4);
        array(&mut names, places.len());
        for user in places.iter().map(|place| self.users[*place]) {
            text(&mut names, Digits::default().of(user));
            found.extend_from_slice(&bucket(user, shards, buckets).to_be_bytes());
        }
        (names, found)
    }

    /// The complete reply of a site in MessagePack, as `systems/presence/questions.py` parses it: `[site, [[user,
    /// [[device, gateway, since_ms], …], last_seen_ms or nil], …]]`, users in the order of the query. `lost`: also
    /// list devices that were lost with their gateway and may still return, as `[device, gateway, since_ms, true]`.
    /// `None`: a part is malformed or belongs to no shard, or a user is in none.
    pub fn found(&self, site: u16, parts: &[Part<'_>], lost: bool) -> Option<Vec<u8>> {
        let mut all: Vec<Option<(Value<'_>, &Part<'_>)>> = vec![None; self.users.len()];
        for part in parts {
            let places = self.places.get(usize::from(part.shard))?;
            match part.answers {
                Answers::Store(bytes) => {
                    let count = answers(bytes, |at, value| {
                        all[*places.get(at)?] = Some((value, part));
                        Some(())
                    })?;
                    if count != places.len() {
                        return None;
                    }
                }
                Answers::Table(table) => {
                    for place in places {
                        all[*place] = Some((table.get(self.users[*place], part.now_ms / 1_000), part));
                    }
                }
            }
        }
        let mut bytes = Vec::with_capacity(48 * self.users.len() + 16);
        let mut record = Record::default();
        array(&mut bytes, 2);
        unsigned(&mut bytes, u64::from(site));
        array(&mut bytes, self.users.len());
        for (user, found) in self.users.iter().zip(all) {
            let (value, part) = found?;
            record.0.clear();
            let seen_ms = match value {
                Value::Text(text) => {
                    record.read(text)?;
                    seen_ms(&record, part)
                }
                Value::Number(seen_s) => u64::from(seen_s) * 1_000,
            };
            let is_lost = |held: &StoredDevice| held.state == State::Offline(Reason::Lost);
            record
                .0
                .retain(|held| held.state == State::Online || lost && is_lost(held));
            array(&mut bytes, 3);
            unsigned(&mut bytes, *user);
            array(&mut bytes, record.0.len());
            for held in &record.0 {
                array(&mut bytes, 3 + usize::from(is_lost(held)));
                text(&mut bytes, held.device.name());
                unsigned(&mut bytes, u64::from(held.origin.ap));
                unsigned(&mut bytes, held.at_ms);
                if is_lost(held) {
                    bytes.push(0xc3);
                }
            }
            match seen_ms {
                0 => bytes.push(0xc0),
                seen_ms => unsigned(&mut bytes, seen_ms),
            }
        }
        Some(bytes)
    }
}

/// When a user with a record was last seen: at the shard's keepalive if a device is online, otherwise when the last
/// one went offline. No event has the time at which a gateway was lost: its users count as seen until now.
fn seen_ms(record: &Record, part: &Part<'_>) -> u64 {
    let seen = record.0.iter().map(|held| match held.state {
        State::Online => part.alive_ms,
        State::Offline(Reason::Lost) => part.now_ms,
        State::Offline(_) => held.at_ms.min(part.now_ms),
    });
    let is_online = record.0.iter().any(|held| held.state == State::Online);
    match is_online {
        true => part.alive_ms,
        false => seen.max().unwrap_or(0),
    }
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

/// A text in the format of the scripts' library: of a device, a user, a record, a change.
fn text(bytes: &mut Vec<u8>, content: &[u8]) {
    match content.len() {
        len @ 0..=31 => bytes.push(0xa0 | len as u8),
        len @ 32..=0xff => bytes.extend_from_slice(&[0xd9, len as u8]),
        len => {
            bytes.push(0xdb);
            bytes.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    bytes.extend_from_slice(content);
}

/// A number in decimal digits, without an allocation.
#[derive(Default)]
struct Digits([u8; 20]);

impl Digits {
    fn of(&mut self, mut number: u64) -> &[u8] {
        let mut at = self.0.len();
        loop {
            at -= 1;
            self.0[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return &self.0[at..];
            }
        }
    }
}

/// A change as consumers of the feed parse it (`docs/presence.md`). Numbers of 64 bits are text, since JSON numbers
/// have 53. Written by hand: otherwise the standard library's formatter would be most of a writer's work.
fn tell(json: &mut Vec<u8>, change: &Change, user: &[u8]) {
    let id = change.id;
    let number = |json: &mut Vec<u8>, number: u64| json.extend_from_slice(Digits::default().of(number));
    json.extend_from_slice(b"{\"user\":\"");
    json.extend_from_slice(user);
    json.extend_from_slice(b"\",\"device\":\"");
    // A device's name has printable ASCII only.
    for each in change.device.name() {
        if matches!(each, b'"' | b'\\') {
            json.push(b'\\');
        }
        json.push(*each);
    }
    match change.state {
        State::Online => json.extend_from_slice(b"\",\"state\":\"online\",\"reason\":null,\"gateway\":"),
        State::Offline(reason) => {
            json.extend_from_slice(b"\",\"state\":\"offline\",\"reason\":\"");
            json.extend_from_slice(reason.name().as_bytes());
            json.extend_from_slice(b"\",\"gateway\":");
        }
    }
    number(json, u64::from(id.origin.ap));
    json.extend_from_slice(b",\"at_ms\":");
    number(json, change.at_ms);
    json.extend_from_slice(b",\"id\":\"");
    for part in [u64::from(id.origin.ap), u64::from(id.origin.epoch), id.version] {
        number(json, part);
        json.push(b'-');
    }
    number(json, id.index);
    json.extend_from_slice(b"\"}");
}

fn short(bytes: &mut Vec<u8>, text: &[u8]) {
    debug_assert!(text.len() < 256);
    bytes.push(text.len() as u8);
    bytes.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Applied, UserChange};
    use crate::device::Device;
    use crate::event::Reason;
    use crate::parse::page;
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
            users: vec![
                UserChange {
                    user: u64::MAX,
                    record: vec![],
                    changes: vec![change],
                    went: Some(5_000_000),
                },
                UserChange {
                    user: 7,
                    record: vec![9; 40],
                    changes: vec![],
                    went: None,
                },
            ],
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
        let packed = pack(&batch, Shard { of: 1, index: 0 }, 1, 12_900_000);
        assert_eq!(packed.users, [&b"\x92\xa17\xd9\x28"[..], &[9; 40]].concat());
        assert_eq!(packed.gone, b"\0\0\0\0\0\0\0\x07\x1418446744073709551615");
        assert_eq!(packed.vector, b"\x013\x039 7\x014\0");
        let json = br#"{"user":"18446744073709551615","device":"a\"b","state":"offline","reason":"lost","gateway":3,"at_ms":5,"id":"3-9-7-2"}"#;
        assert_eq!(packed.feed, [&b"\x76\0\0\0"[..], json].concat());
        assert_eq!((packed.users_len, packed.feed_len), (2, 1));
    }

    #[test]
    fn last_seen_is_when_the_last_device_went_not_when_it_was_reported() {
        let held = |state, at_ms| crate::bucket::StoredDevice {
            origin: Origin { ap: 3, epoch: 9 },
            device: Device::new(b"tv").expect("a name"),
            version: 1,
            index: 0,
            state,
            at_ms,
        };
        let part = Part {
            shard: 0,
            answers: Answers::Store(b""),
            now_ms: 9_000,
            alive_ms: 8_500,
        };
        let seen = |held: &[crate::bucket::StoredDevice]| seen_ms(&Record(held.to_vec()), &part);
        let gone = |at_ms| held(State::Offline(Reason::Closed), at_ms);
        assert_eq!(seen(&[gone(5_000), gone(6_000)]), 6_000);
        assert_eq!(
            seen(&[gone(9_900)]),
            9_000,
            "a gateway's clock that is ahead gives no time in the future"
        );
        assert_eq!(seen(&[gone(5_000), held(State::Online, 4_000)]), 8_500);
        assert_eq!(seen(&[held(State::Offline(Reason::Lost), 100)]), 9_000);
    }

    #[test]
    fn devices_lost_with_their_gateway_are_listed_only_on_request() {
        let held = crate::bucket::StoredDevice {
            origin: Origin { ap: 3, epoch: 9 },
            device: Device::new(b"tv").expect("a name"),
            version: 1,
            index: 0,
            state: State::Offline(Reason::Lost),
            at_ms: 5,
        };
        let mut known = vec![0x91];
        text(&mut known, &Record(vec![held]).encode());
        let part = Part {
            shard: 0,
            answers: Answers::Store(&known),
            now_ms: 9,
            alive_ms: 7,
        };
        let found = |lost| Lookup::new(vec![9], 1).found(1, &[part], lost).expect("well formed");
        assert_eq!(found(false), b"\x92\x01\x91\x93\x09\x90\x09");
        assert_eq!(found(true), b"\x92\x01\x91\x93\x09\x91\x94\xa2tv\x03\x05\xc3\x09");
    }

    #[test]
    fn a_sites_reply_has_every_user_in_order_or_is_none() {
        let held = crate::bucket::StoredDevice {
            origin: Origin { ap: 300, epoch: 9 },
            device: Device::new(b"tv").expect("a name"),
            version: 1,
            index: 0,
            state: State::Online,
            at_ms: 5,
        };
        let record = Record(vec![held]).encode();
        let mut known = vec![0x91];
        text(&mut known, &record);
        let part = |shard, answers| Part {
            shard,
            answers: Answers::Store(answers),
            now_ms: 9_000,
            alive_ms: 7,
        };
        let nobody = b"\x91\x02";
        let lookup = Lookup::new(vec![8, 9], 2);
        assert_eq!(lookup.shards().collect::<Vec<_>>(), [0, 1]);
        let parts = [part(1, &known[..]), part(0, nobody)];
        let told = lookup.found(1, &parts, false).expect("well formed");
        let wanted = b"\x92\x01\x92\x93\x08\x90\xce\0\0\x07\xd0\x93\x09\x91\x93\xa2tv\xce\0\0\x01\x2c\x05\x07";
        assert_eq!(told, wanted);
        assert!(lookup.found(1, &parts[..1], false).is_none(), "a user is missing");
        assert!(lookup.found(1, &[part(2, nobody)], false).is_none(), "no such shard");
        let one = Lookup::new(vec![9], 1);
        assert!(one.found(1, &[part(0, &known)], false).is_some());
        assert!(
            one.found(1, &[part(0, b"\x92\x02\x02")], false).is_none(),
            "no such place"
        );
        assert!(one.found(1, &[part(0, b"\x90")], false).is_none(), "none for a user");
        assert!(
            (0..known.len()).all(|len| one.found(1, &[part(0, &known[..len])], false).is_none()),
            "cut"
        );
    }

    #[test]
    fn replies_and_pages_are_parsed_or_refused_whole() {
        let lookup = Lookup::new(vec![7, 12, 14], 2);
        assert_eq!(
            lookup.question(0, 4),
            (b"\x92\xa212\xa214".to_vec(), b"\0\0\0\x02\0\0\0\x03".to_vec())
        );
        assert_eq!(lookup.question(1, 4), (b"\x91\xa17".to_vec(), b"\0\0\0\x03".to_vec()));
        let known = b"\x95\x05\xcc\xff\xce\x6a\xb1\x39\x40\xa1\x01\x00";
        let mut found = Vec::new();
        let count = answers(known, |at, value| (at == found.len()).then(|| found.push(value)));
        let number = Value::Number;
        let wanted = [
            number(5),
            number(255),
            number(0x6ab1_3940),
            Value::Text(b"\x01"),
            number(0),
        ];
        assert_eq!((count, &found[..]), (Some(5), &wanted[..]));
        assert!((0..known.len()).all(|len| answers(&known[..len], |_, _| Some(())).is_none()));
        let (names, places) = Lookup::new((0..70_000).collect(), 1).question(0, 8_192);
        assert_eq!((&names[..5], places.len()), (&b"\xdd\0\x01\x11\x70"[..], 280_000));
        assert_eq!(page(b"\x92\xa17\xa1x"), Some(vec![(7, &b"x"[..])]));
        assert_eq!(page(b"\x90"), Some(vec![]));
        for len in 0..5 {
            assert_eq!(page(&b"\x92\xa17\xa1x"[..len]), None);
        }
        for malformed in [
            &b"\x92\xa1x\xa1x"[..],
            b"\x91\xa17",
            b"\x92\xa17\x05",
            b"\x92\x07\xa1x",
            b"\x90\x90",
            b"\xdd\xff\xff\xff\xfe",
        ] {
            assert_eq!(page(malformed), None, "{malformed:?}");
        }
    }
}
