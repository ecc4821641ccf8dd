//! What the log holds: one record for each change, in bytes.
//!
//! Owns the encoding. Knows neither the state nor the log.
//!
//! | byte 0 | then |
//! |---|---|
//! | 1 like or take back | time (8), user (8), 1 or 0, key |
//! | 2 delete | time (8), key |
//! | 3 segment of dense ids | first (4), number of ids (4) |
//! | 4 bit operation | time (8), operation, then target and sources, each with its length (2) |
//! | 5 fields of an item | time (8), then key and fields, each with its length (2) |
//! | 6 scores | time (8), conditions (1), key with its length (2), then each score (8) and member with its length (2) |
//! | 7 members that leave | time (8), then key and members, each with its length (2) |
//! | 8 ties of a leaderboard | time (8), 0 by name or 1 by time, key |
//! | 9 like of one of several kinds | time (8), user (8), then key and other keys, each with its length (2) |
//! | 10 erasure of a user begins | time (8), job (8), user (8) |
//! | 11 step of an erasure | time (8), job (8), number of slots (4) |
//! | 12 the state names the user no more | time (8), job (8) |
//! | 13 no file names the user | time (8), job (8), snapshots (4), segments (4) |
//!
//! Numbers are little-endian; times are milliseconds since 1970.

use crate::leaderboards::{How, Ties};
use crate::limits::{
    FIELD_BYTES_MAX, ITEM_FIELDS_MAX, KEYS_MAX, KEY_BYTES_MAX, MEMBERS_MAX, MEMBER_BYTES_MAX, ONE_OF_MAX,
};

/// One change.
#[derive(Clone, PartialEq, Debug)]
pub enum Record<'a> {
    /// A user likes an item, or takes that back.
    Set {
        at_ms: u64,
        key: &'a [u8],
        user: u64,
        likes: bool,
    },
    /// A user likes an item, and takes the likes of these others back, which exclude it.
    OneOf {
        at_ms: u64,
        key: &'a [u8],
        user: u64,
        others: Vec<&'a [u8]>,
    },
    /// An item goes with all its likes.
    Delete { at_ms: u64, key: &'a [u8] },
    /// Dense ids `first..first + ids`, from which this log may give ids to users.
    Segment { first: u32, ids: u32 },
    /// `target` becomes the result of the operation on `sources`.
    BitOp {
        at_ms: u64,
        op: BitOp,
        target: &'a [u8],
        sources: Vec<&'a [u8]>,
    },
    /// The rankings that an item is in, besides the overall one and its kind's.
    Fields {
        at_ms: u64,
        key: &'a [u8],
        fields: Vec<&'a [u8]>,
    },
    /// Members of a leaderboard get these scores, no NaN, or are raised by them.
    Scores {
        at_ms: u64,
        key: &'a [u8],
        how: How,
        scores: Vec<(f64, &'a [u8])>,
    },
    /// Members leave a leaderboard.
    Unscore {
        at_ms: u64,
        key: &'a [u8],
        members: Vec<&'a [u8]>,
    },
    /// What decides between equal scores of a leaderboard, which is made if necessary.
    Ties { at_ms: u64, key: &'a [u8], ties: Ties },
    /// All traces of a user are to go. `job` names the erasure from now on.
    Erase { at_ms: u64, job: u64, user: u64 },
    /// An erasure goes through at most this many further slots.
    EraseStep { at_ms: u64, job: u64, slots: u32 },
    /// An erasure has gone through all slots: the user's id goes too.
    Erased { at_ms: u64, job: u64 },
    /// The files without the user are the only ones left: this number of snapshots, and of segments of the log.
    ErasureDone {
        at_ms: u64,
        job: u64,
        snapshots: u32,
        segments: u32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BitOp {
    And,
    Or,
    Xor,
    Not,
}

impl Record<'_> {
    /// Appends the record's bytes.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Record::Set {
                at_ms,
                key,
                user,
                likes,
            } => {
                to.push(1);
                to.extend_from_slice(&at_ms.to_le_bytes());
                to.extend_from_slice(&user.to_le_bytes());
                to.push(u8::from(*likes));
                to.extend_from_slice(key);
            }
            Record::OneOf {
                at_ms,
                key,
                user,
                others,
            } => {
                to.push(9);
                to.extend_from_slice(&at_ms.to_le_bytes());
                to.extend_from_slice(&user.to_le_bytes());
                put_all(to, key, others);
            }
            Record::Delete { at_ms, key } => {
                to.push(2);
                to.extend_from_slice(&at_ms.to_le_bytes());
                to.extend_from_slice(key);
            }
            Record::Segment { first, ids } => {
                to.push(3);
                to.extend_from_slice(&first.to_le_bytes());
                to.extend_from_slice(&ids.to_le_bytes());
            }
            Record::BitOp {
                at_ms,
                op,
                target,
                sources,
            } => {
                to.push(4);
                to.extend_from_slice(&at_ms.to_le_bytes());
                to.push(*op as u8);
                put_all(to, target, sources);
            }
            Record::Fields { at_ms, key, fields } => {
                to.push(5);
                to.extend_from_slice(&at_ms.to_le_bytes());
                put_all(to, key, fields);
            }
            Record::Scores {
                at_ms,
                key,
                how,
                scores,
            } => {
                to.push(6);
                to.extend_from_slice(&at_ms.to_le_bytes());
                to.push(how.bits());
                put(to, key);
                for (score, member) in scores {
                    to.extend_from_slice(&score.to_bits().to_le_bytes());
                    put(to, member);
                }
            }
            Record::Unscore { at_ms, key, members } => {
                to.push(7);
                to.extend_from_slice(&at_ms.to_le_bytes());
                put_all(to, key, members);
            }
            Record::Ties { at_ms, key, ties } => {
                to.push(8);
                to.extend_from_slice(&at_ms.to_le_bytes());
                to.push(*ties as u8);
                to.extend_from_slice(key);
            }
            Record::Erase { at_ms, job, user } => {
                to.push(10);
                put_u64s(to, &[*at_ms, *job, *user]);
            }
            Record::EraseStep { at_ms, job, slots } => {
                to.push(11);
                put_u64s(to, &[*at_ms, *job]);
                to.extend_from_slice(&slots.to_le_bytes());
            }
            Record::Erased { at_ms, job } => {
                to.push(12);
                put_u64s(to, &[*at_ms, *job]);
            }
            Record::ErasureDone {
                at_ms,
                job,
                snapshots,
                segments,
            } => {
                to.push(13);
                put_u64s(to, &[*at_ms, *job]);
                to.extend_from_slice(&snapshots.to_le_bytes());
                to.extend_from_slice(&segments.to_le_bytes());
            }
        }
    }

    /// `None` if the bytes are malformed, or break a limit.
    pub fn decode(bytes: &[u8]) -> Option<Record<'_>> {
        let (&tag, mut rest) = bytes.split_first()?;
        let record = match tag {
            1 => {
                let (at_ms, user) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
                let (&likes, key) = rest.split_first()?;
                Record::Set {
                    at_ms,
                    key: valid_key(key)?,
                    user,
                    likes: likes == 1,
                }
            }
            2 => Record::Delete {
                at_ms: take_u64(&mut rest)?,
                key: valid_key(rest)?,
            },
            3 => {
                let first = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?);
                let ids = u32::from_le_bytes(rest.get(4..8)?.try_into().ok()?);
                Record::Segment { first, ids }
            }
            4 => {
                let at_ms = take_u64(&mut rest)?;
                let (&op, mut rest) = rest.split_first()?;
                let op = *[BitOp::And, BitOp::Or, BitOp::Xor, BitOp::Not].get(op as usize)?;
                let target = valid_key(take(&mut rest)?)?;
                let sources = take_all(rest, KEYS_MAX, KEY_BYTES_MAX)?;
                if sources.is_empty() || (op == BitOp::Not && sources.len() != 1) {
                    return None;
                }
                Record::BitOp {
                    at_ms,
                    op,
                    target,
                    sources,
                }
            }
            5 => {
                let at_ms = take_u64(&mut rest)?;
                let key = valid_key(take(&mut rest)?)?;
                Record::Fields {
                    at_ms,
                    key,
                    fields: take_all(rest, ITEM_FIELDS_MAX, FIELD_BYTES_MAX)?,
                }
            }
            6 => {
                let at_ms = take_u64(&mut rest)?;
                let (&how, mut rest) = rest.split_first()?;
                let key = valid_key(take(&mut rest)?)?;
                let mut scores = Vec::new();
                while !rest.is_empty() {
                    let score = f64::from_bits(take_u64(&mut rest)?);
                    let member = take(&mut rest)?;
                    if score.is_nan() || member.len() > MEMBER_BYTES_MAX || scores.len() == MEMBERS_MAX {
                        return None;
                    }
                    scores.push((score, member));
                }
                Record::Scores {
                    at_ms,
                    key,
                    how: How::from_bits(how),
                    scores,
                }
            }
            7 => {
                let at_ms = take_u64(&mut rest)?;
                let key = valid_key(take(&mut rest)?)?;
                Record::Unscore {
                    at_ms,
                    key,
                    members: take_all(rest, MEMBERS_MAX, MEMBER_BYTES_MAX)?,
                }
            }
            8 => {
                let at_ms = take_u64(&mut rest)?;
                let (&ties, key) = rest.split_first()?;
                Record::Ties {
                    at_ms,
                    key: valid_key(key)?,
                    ties: *[Ties::Name, Ties::Time].get(ties as usize)?,
                }
            }
            9 => {
                let (at_ms, user) = (take_u64(&mut rest)?, take_u64(&mut rest)?);
                let key = valid_key(take(&mut rest)?)?;
                Record::OneOf {
                    at_ms,
                    key,
                    user,
                    others: take_all(rest, ONE_OF_MAX, KEY_BYTES_MAX)?,
                }
            }
            10 => Record::Erase {
                at_ms: take_u64(&mut rest)?,
                job: take_u64(&mut rest)?,
                user: take_u64(&mut rest)?,
            },
            11 => Record::EraseStep {
                at_ms: take_u64(&mut rest)?,
                job: take_u64(&mut rest)?,
                slots: take_u32(&mut rest)?,
            },
            12 => Record::Erased {
                at_ms: take_u64(&mut rest)?,
                job: take_u64(&mut rest)?,
            },
            13 => Record::ErasureDone {
                at_ms: take_u64(&mut rest)?,
                job: take_u64(&mut rest)?,
                snapshots: take_u32(&mut rest)?,
                segments: take_u32(&mut rest)?,
            },
            _ => return None,
        };
        Some(record)
    }
}

fn put_all(to: &mut Vec<u8>, first: &[u8], others: &[&[u8]]) {
    for bytes in std::iter::once(&first).chain(others) {
        put(to, bytes);
    }
}

fn put(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    to.extend_from_slice(bytes);
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::from(u16::from_le_bytes(rest.get(..2)?.try_into().ok()?));
    let bytes = rest.get(2..2 + len)?;
    *rest = &rest[2 + len..];
    Some(bytes)
}

fn take_all(mut rest: &[u8], count_max: usize, bytes_max: usize) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let bytes = take(&mut rest)?;
        if all.len() == count_max || bytes.len() > bytes_max {
            return None;
        }
        all.push(bytes);
    }
    Some(all)
}

fn put_u64s(to: &mut Vec<u8>, numbers: &[u64]) {
    numbers
        .iter()
        .for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    let number = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?);
    *rest = &rest[4..];
    Some(number)
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(rest.get(..8)?.try_into().ok()?);
    *rest = &rest[8..];
    Some(number)
}

fn valid_key(key: &[u8]) -> Option<&[u8]> {
    (key.len() <= KEY_BYTES_MAX).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_record_survives_encoding() {
        let (at_ms, key) = (1_790_000_000_000, &b"share:1000"[..]);
        let records = [
            Record::Set {
                at_ms,
                key,
                user: u64::MAX,
                likes: true,
            },
            Record::Set {
                at_ms,
                key: b"",
                user: 0,
                likes: false,
            },
            Record::OneOf {
                at_ms,
                key,
                user: 7,
                others: vec![b"dislike:7", b""],
            },
            Record::Delete { at_ms, key },
            Record::Segment {
                first: 65_536,
                ids: 65_536,
            },
            Record::BitOp {
                at_ms,
                op: BitOp::Xor,
                target: b"both",
                sources: vec![key, b"b"],
            },
            Record::BitOp {
                at_ms,
                op: BitOp::Not,
                target: b"both",
                sources: vec![key],
            },
            Record::Fields {
                at_ms,
                key,
                fields: vec![b"agriculture", b""],
            },
            Record::Fields {
                at_ms,
                key,
                fields: vec![],
            },
            Record::Scores {
                at_ms,
                key,
                how: How {
                    greater: true,
                    raise: true,
                    ..How::default()
                },
                scores: vec![(1.5, b"alice"), (f64::NEG_INFINITY, b"")],
            },
            Record::Unscore {
                at_ms,
                key,
                members: vec![b"alice", b""],
            },
            Record::Ties {
                at_ms,
                key,
                ties: Ties::Time,
            },
            Record::Erase {
                at_ms,
                job: 1 << 60,
                user: u64::MAX,
            },
            Record::EraseStep {
                at_ms,
                job: 0,
                slots: u32::MAX,
            },
            Record::Erased { at_ms, job: 7 },
            Record::ErasureDone {
                at_ms,
                job: 7,
                snapshots: 2,
                segments: 1,
            },
        ];
        for record in records {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            assert_eq!(Record::decode(&bytes), Some(record));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(record) = Record::decode(&bytes) {
                let mut again = Vec::new();
                record.encode(&mut again);
                prop_assert_eq!(Record::decode(&again), Some(record));
            }
        }
    }
}
