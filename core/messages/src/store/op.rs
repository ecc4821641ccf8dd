//! The bytes of an hour's two files: operations of 64 bytes, and bodies in frames.
//!
//! Owns the layout and its checks. Must not know: which operation is the latest, or any file.
//!
//! | operation at | bytes | |
//! |---|---|---|
//! | 0 | 8 | message id |
//! | 8 | 4 | version |
//! | 12 | 4 | topic |
//! | 16 | 8 | due_at |
//! | 24 | 8 | expires_at |
//! | 32 | 8 | FIRING: until; RETRY: next; AHEAD: by |
//! | 40 | 8 | FIRING: worker |
//! | 48 | 6 | where the body's frame begins |
//! | 54 | 2 | attempts |
//! | 56 | 3 | length of the body |
//! | 59 | 1 | state |
//! | 60 | 4 | CRC32C of bytes 0..60 |
//!
//! A body's frame is the message id (8), the length (4), the CRC32C of both and of the body (4), and the body. All
//! numbers are little-endian.

use crate::schedule::{Ahead, Bound, Incarnation, Message, MessageId, State, Version};
use crate::wheel::Millis;

pub(crate) const OP_BYTES: usize = 64;
pub(crate) const FRAME_BYTES: usize = 16;

/// The longest body: 1 MiB. A callback carries it whole, and a group of the log holds three of them.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// The state of a message as of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Message(State),
    /// The message is no longer in this hour.
    Gone,
    /// Requests before the message came. `due_at`: when they are forgotten; `expires_at`: an absolute due time, or
    /// NEVER.
    Ahead(Ahead),
}

impl Kind {
    /// Whether something will happen at its time.
    pub fn is_live(self) -> bool {
        match self {
            Kind::Message(state) => !state.is_terminal(),
            Kind::Gone => false,
            Kind::Ahead(_) => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub id: MessageId,
    pub version: Version,
    pub topic: u32,
    pub due_at: Millis,
    pub expires_at: Millis,
    pub attempts: u16,
    pub body_at: u64,
    pub body_bytes: u32,
    pub kind: Kind,
}

impl Op {
    pub fn encode(&self) -> [u8; OP_BYTES] {
        let (code, time, worker, expires_at) = match self.kind {
            Kind::Message(State::Scheduled) => (0, 0, 0, self.expires_at),
            Kind::Message(State::Retry { next }) => (1, next, 0, self.expires_at),
            Kind::Message(State::Firing { worker, until }) => (2, until, worker.0, self.expires_at),
            Kind::Message(State::Done) => (3, 0, 0, self.expires_at),
            Kind::Message(State::Dead) => (4, 0, 0, self.expires_at),
            Kind::Message(State::Cancelled) => (5, 0, 0, self.expires_at),
            Kind::Message(State::Expired) => (6, 0, 0, self.expires_at),
            Kind::Gone => (7, 0, 0, self.expires_at),
            Kind::Ahead(ahead) => {
                let at = ahead.at.unwrap_or(Millis::MAX);
                let bound = match ahead.bound {
                    Bound::Exact => 0,
                    Bound::Later => 2,
                    Bound::Sooner => 4,
                };
                (8 + bound + u8::from(ahead.cancelled), ahead.by as u64, 0, at)
            }
        };
        let mut bytes = [0; OP_BYTES];
        bytes[..8].copy_from_slice(&self.id.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.topic.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.due_at.to_le_bytes());
        bytes[24..32].copy_from_slice(&expires_at.to_le_bytes());
        bytes[32..40].copy_from_slice(&time.to_le_bytes());
        bytes[40..48].copy_from_slice(&worker.to_le_bytes());
        bytes[48..54].copy_from_slice(&self.body_at.to_le_bytes()[..6]);
        bytes[54..56].copy_from_slice(&self.attempts.to_le_bytes());
        bytes[56..59].copy_from_slice(&self.body_bytes.to_le_bytes()[..3]);
        bytes[59] = code;
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` if the bytes fail their checksum or the state is unknown.
    pub fn decode(bytes: &[u8]) -> Option<Op> {
        let bytes: &[u8; OP_BYTES] = bytes.try_into().ok()?;
        if crc32c::crc32c(&bytes[..60]) != u32_at(bytes, 60) {
            return None;
        }
        let (time, worker, expires_at) = (u64_at(bytes, 32), u64_at(bytes, 40), u64_at(bytes, 24));
        let kind = match bytes[59] {
            0 => Kind::Message(State::Scheduled),
            1 => Kind::Message(State::Retry { next: time }),
            2 => Kind::Message(State::Firing {
                worker: Incarnation(worker),
                until: time,
            }),
            3 => Kind::Message(State::Done),
            4 => Kind::Message(State::Dead),
            5 => Kind::Message(State::Cancelled),
            6 => Kind::Message(State::Expired),
            7 => Kind::Gone,
            code @ 8..=13 => Kind::Ahead(Ahead {
                cancelled: code & 1 == 1,
                bound: match code & !1 {
                    8 => Bound::Exact,
                    10 => Bound::Later,
                    _ => Bound::Sooner,
                },
                at: (expires_at != Millis::MAX).then_some(expires_at),
                by: time as i64,
            }),
            _ => return None,
        };
        Some(Op {
            id: MessageId(u64_at(bytes, 0)),
            version: u32_at(bytes, 8),
            topic: u32_at(bytes, 12),
            due_at: u64_at(bytes, 16),
            expires_at,
            attempts: u16::from_le_bytes([bytes[54], bytes[55]]),
            body_at: u64_at(bytes, 48) & ((1 << 48) - 1),
            body_bytes: u32_at(bytes, 56) & ((1 << 24) - 1),
            kind,
        })
    }

    /// The message, unless the operation is of another kind.
    pub fn message(&self) -> Option<Message> {
        let Kind::Message(state) = self.kind else { return None };
        Some(Message {
            id: self.id,
            version: self.version,
            due_at: self.due_at,
            expires_at: self.expires_at,
            attempts: self.attempts,
            state,
        })
    }

    /// The same operation with the new state of `message`.
    pub fn with(&self, message: &Message) -> Op {
        Op {
            version: message.version,
            due_at: message.due_at,
            expires_at: message.expires_at,
            attempts: message.attempts,
            kind: Kind::Message(message.state),
            ..*self
        }
    }

    /// When something will happen.
    pub fn wake_at(&self) -> Option<Millis> {
        match self.kind {
            Kind::Message(_) => self.message()?.wake_at(),
            Kind::Gone => None,
            Kind::Ahead(_) => Some(self.due_at),
        }
    }
}

/// The header of a body's frame.
pub(crate) fn frame_head(id: MessageId, body: &[u8]) -> [u8; FRAME_BYTES] {
    let mut head = [0; FRAME_BYTES];
    head[..8].copy_from_slice(&id.0.to_le_bytes());
    head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..12]), body);
    head[12..].copy_from_slice(&crc.to_le_bytes());
    head
}

/// The id and the length in a frame's header; does not check the checksum.
pub(crate) fn read_frame_head(head: &[u8; FRAME_BYTES]) -> (MessageId, u32) {
    (MessageId(u64_at(head, 0)), u32_at(head, 8))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
