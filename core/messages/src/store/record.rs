//! A record of the log: one change of one message, as the bytes that go to the hours' files.
//!
//! Owns the layout. Must not know: why the change was made.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 1 | 1: the message was live; 2: a body follows |
//! | 1 | 3 | 0 |
//! | 4 | 4 | hour that the operation goes to |
//! | 8 | 4 | hour that the message leaves, or 2^32 - 1 |
//! | 12 | 64 | operation |
//! | 76 | | body |

use super::op::{u32_at, Op, OP_BYTES};

pub(crate) const HEAD_BYTES: usize = 12;
const WAS_LIVE: u8 = 1;
const HAS_BODY: u8 = 2;
const NO_HOUR: u32 = u32::MAX;

pub(crate) struct Record<'a> {
    pub was_live: bool,
    pub home: u32,
    pub from: Option<u32>,
    pub op: Op,
    /// The encoded operation.
    pub op_bytes: &'a [u8],
    pub body: Option<&'a [u8]>,
}

pub(crate) fn head(was_live: bool, home: u32, from: Option<u32>, has_body: bool) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0] = if was_live { WAS_LIVE } else { 0 } | if has_body { HAS_BODY } else { 0 };
    head[4..8].copy_from_slice(&home.to_le_bytes());
    head[8..].copy_from_slice(&from.unwrap_or(NO_HOUR).to_le_bytes());
    head
}

impl<'a> Record<'a> {
    /// `None` if the bytes are no record.
    pub fn decode(bytes: &'a [u8]) -> Option<Record<'a>> {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
        let (op_bytes, body) = rest.split_at_checked(OP_BYTES)?;
        let op = Op::decode(op_bytes)?;
        let body = (head[0] & HAS_BODY != 0).then_some(body);
        if body.is_some_and(|body| body.len() != op.body_bytes as usize) {
            return None;
        }
        let from = u32_at(head, 8);
        Some(Record {
            was_live: head[0] & WAS_LIVE != 0,
            home: u32_at(head, 4),
            from: (from != NO_HOUR).then_some(from),
            op,
            op_bytes,
            body,
        })
    }
}
