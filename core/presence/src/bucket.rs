//! The record of a user in the store, and the bucket of the time at which the user was last seen.
//!
//! Owns: [`Record`], its bytes, and [`bucket`]. Knows no store: records are the values of one of its hashes, whose
//! fields are users, so that one command looks up any number of them; a bucket is a small hash of its own, which is
//! forgotten as a whole.
//!
//! A record is a byte 1 (this format), then for each device to the end:
//!
//! | field | bytes |
//! |---|---|
//! | gateway, its epoch, version, index | varints (7 bits a byte, low first): mostly 2 + 4 + 3 + 1 |
//! | state | 1: 0 online, otherwise a reason: offline, not reported yet |
//! | time of the event in ms | varint: 6 |
//! | device | 1 + its name |

use crate::device::Device;
use crate::event::State;
use crate::wire::Origin;
use muster_transport::Reader;

const FORMAT: u8 = 1;

/// A device of a user at a gateway, as stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredDevice {
    pub origin: Origin,
    pub device: Device,
    /// The version of the event that set this state.
    pub version: u64,
    pub index: u16,
    pub state: State,
    /// Since when, by the gateway's wall clock.
    pub at_ms: u64,
}

/// The devices of one user, by device and gateway.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record(pub Vec<StoredDevice>);

/// The bucket of a user among `buckets`, for users that share a shard: their numbers differ by multiples of `shards`.
pub fn bucket(user: u64, shards: u16, buckets: u32) -> u32 {
    let within = user.checked_div(u64::from(shards)).unwrap_or(user);
    within.checked_rem(u64::from(buckets)).unwrap_or(0) as u32
}

impl Record {
    /// The encoded record; empty if no device is left, so that the field must be deleted.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 * self.0.len());
        if !self.0.is_empty() {
            bytes.push(FORMAT);
        }
        for held in &self.0 {
            let numbers = [
                u64::from(held.origin.ap),
                u64::from(held.origin.epoch),
                held.version,
                u64::from(held.index),
            ];
            numbers.iter().for_each(|number| put(&mut bytes, *number));
            bytes.push(held.state.code());
            put(&mut bytes, held.at_ms);
            bytes.push(held.device.name().len() as u8);
            bytes.extend_from_slice(held.device.name());
        }
        bytes
    }

    /// `None`: the bytes are not a record of this format.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let mut record = Record::default();
        record.read(bytes).map(|()| record)
    }

    /// Adds the devices in these bytes. `None`: they are not a record of this format, and some may have been added.
    pub fn read(&mut self, bytes: &[u8]) -> Option<()> {
        let Some((format, rest)) = bytes.split_first() else {
            return Some(());
        };
        if *format != FORMAT {
            return None;
        }
        let mut r = Reader::new(rest);
        while !r.is_empty() {
            self.0.push(StoredDevice {
                origin: Origin {
                    ap: number(&mut r)?.try_into().ok()?,
                    epoch: number(&mut r)?.try_into().ok()?,
                },
                version: number(&mut r)?,
                index: number(&mut r)?.try_into().ok()?,
                state: State::from_u8(r.u8()?)?,
                at_ms: number(&mut r)?,
                device: Device::read(&mut r)?,
            });
        }
        Some(())
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn number(reader: &mut Reader<'_>) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = reader.u8()?;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Reason;
    use muster_transport::Dice;

    fn held(dice: &mut Dice, device: &[u8]) -> StoredDevice {
        StoredDevice {
            origin: Origin {
                ap: 1 + dice.below(1_000) as u32,
                epoch: 1_000 + dice.below(1_000_000) as u32,
            },
            device: Device::new(device).expect("a name"),
            version: dice.below(1_000_000),
            index: dice.below(38) as u16,
            state: State::Online,
            at_ms: 1_790_000_000_000 + dice.below(1_000_000_000),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut dice = Dice::new(1);
        for count in 0..5 {
            let mut record = Record((0..count).map(|_| held(&mut dice, b"phone:00000000000000ff")).collect());
            if let Some(last) = record.0.last_mut() {
                (last.version, last.at_ms) = (u64::MAX, u64::MAX);
                last.state = State::Offline(Reason::Kicked);
            }
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Some(record));
            for len in 1..bytes.len() {
                let cut = Record::decode(&bytes[..len]);
                assert!(cut.is_none_or(|cut| cut.0.len() < count), "cut at {len}");
            }
        }
        for wrong in [&[2u8][..], &[1, 0x80], &[1, 1, 1, 1, 1, 9, 1, 1, b'x']] {
            assert_eq!(Record::decode(wrong), None, "{wrong:?}");
        }
        let over = [&[1, 1, 1][..], &[0xff; 9], &[2, 1, 0, 1, 1, b'x']].concat();
        assert_eq!(Record::decode(&over), None, "more than 64 bits");
    }

    #[test]
    fn any_bytes_are_a_record_or_none() {
        let mut dice = Dice::new(2);
        for _ in 0..20_000 {
            let len = dice.below(80);
            let mut bytes: Vec<u8> = (0..len).map(|_| dice.roll() as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first = 1;
            }
            if let Some(record) = Record::decode(&bytes) {
                assert!(record.0.len() <= bytes.len() / 8);
            }
        }
    }

    #[test]
    fn users_of_one_shard_fill_all_buckets() {
        let filled: std::collections::BTreeSet<u32> = (0..640).map(|user| bucket(user * 3 + 1, 3, 64)).collect();
        assert_eq!(filled.len(), 64);
        assert_eq!(bucket(7, 0, 0), 0);
    }

    /// Bytes of a field and its value in a Redis hash stored as a table: an entry of 24, a slot of 8 in a table that
    /// is half to wholly full, and two strings with a header of 3 and an end of 1, each in steps of 8.
    fn entry(user: u64, value: usize) -> usize {
        let string = |len: usize| (len + 4).next_multiple_of(8);
        24 + 12 + string(user.to_string().len()) + string(value)
    }

    /// Bytes per user in Redis, by the user's number of devices.
    #[test]
    fn bytes_of_a_user_in_the_store() {
        let mut dice = Dice::new(3);
        let mut rows = Vec::new();
        for devices in 1..=3usize {
            let names: [&[u8]; 3] = [b"phone", b"laptop", b"tablet"];
            let mut total = 0;
            for user in 0..10_000u64 {
                let held = names[..devices].iter().map(|name| held(&mut dice, name)).collect();
                let record = Record(held).encode();
                total += entry(1_000_000 + user * 211, record.len());
            }
            rows.push(total as f64 / 1e4);
        }
        println!("bytes a user: {rows:.1?}");
        assert!(rows[0] < 96.0 && rows[1] < 120.0 && rows[2] < 144.0, "{rows:?}");
    }
}
