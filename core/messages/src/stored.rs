//! A message as 64 bytes, for a store of bytes with compare-and-set.
//!
//! Owns: [`Stored`], what such a store keeps of one id besides the body. Must not know: the store.
//!
//! The bytes are those of an operation in the embedded store's files, including the checksum. Two entries are equal
//! if and only if their bytes are, so a store needs no more than "replace these bytes by those".

use crate::schedule::{Ahead, Message, MessageId, Version};
use crate::store::op::{Kind, Op, OP_BYTES};
use crate::wheel::Millis;

/// Bytes of one entry.
pub const STORED_BYTES: usize = OP_BYTES;

/// The state of one id: a message, or changes that came ahead of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry {
    Message(Message),
    /// Requests before the message came; forgotten at `until`.
    Ahead {
        id: MessageId,
        ahead: Ahead,
        until: Millis,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stored {
    pub topic: u32,
    pub entry: Entry,
}

impl Stored {
    pub fn pack(&self) -> [u8; STORED_BYTES] {
        let (id, version, due_at, expires_at, attempts, kind) = match self.entry {
            Entry::Message(message) => (
                message.id,
                message.version,
                message.due_at,
                message.expires_at,
                message.attempts,
                Kind::Message(message.state),
            ),
            Entry::Ahead { id, ahead, until } => (id, 0, until, 0, 0, Kind::Ahead(ahead)),
        };
        let op = Op {
            id,
            version,
            topic: self.topic,
            due_at,
            expires_at,
            attempts,
            body_at: 0,
            body_bytes: 0,
            kind,
        };
        op.encode()
    }

    /// `None` if the bytes fail their checksum or are no entry.
    pub fn unpack(bytes: &[u8]) -> Option<Stored> {
        let op = Op::decode(bytes)?;
        let entry = match op.kind {
            Kind::Message(_) => Entry::Message(op.message()?),
            Kind::Ahead(ahead) => Entry::Ahead {
                id: op.id,
                ahead,
                until: op.due_at,
            },
            Kind::Gone => return None,
        };
        Some(Stored { topic: op.topic, entry })
    }

    /// When it needs attention again; `None` for an ended message.
    pub fn wake_at(&self) -> Option<Millis> {
        match self.entry {
            Entry::Message(message) => message.wake_at(),
            Entry::Ahead { until, .. } => Some(until),
        }
    }

    /// 0: the message has not come.
    pub fn version(&self) -> Version {
        match self.entry {
            Entry::Message(message) => message.version,
            Entry::Ahead { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Bound, Incarnation, State, NEVER};
    use proptest::prelude::*;

    fn state() -> impl Strategy<Value = State> {
        prop_oneof![
            Just(State::Scheduled),
            (any::<u64>(), 0..1u64 << 53).prop_map(|(worker, until)| State::Firing {
                worker: Incarnation(worker),
                until
            }),
            (0..1u64 << 53).prop_map(|next| State::Retry { next }),
            Just(State::Done),
            Just(State::Dead),
            Just(State::Cancelled),
            Just(State::Expired),
        ]
    }

    fn bound() -> impl Strategy<Value = Bound> {
        prop_oneof![Just(Bound::Exact), Just(Bound::Later), Just(Bound::Sooner)]
    }

    proptest! {
        #[test]
        fn entry_comes_back_from_its_bytes(
            id: u64, topic: u32, version: u32, due_at in 0..1u64 << 53, attempts: u16, state in state(),
            expires_at in prop_oneof![Just(NEVER), 0..1u64 << 53],
            asked in prop::option::of((any::<bool>(), prop::option::of(0..1u64 << 53), bound(), any::<i64>())),
        ) {
            let id = MessageId(id);
            let entry = match asked {
                Some((cancelled, at, bound, by)) => Entry::Ahead { id, ahead: Ahead { cancelled, at, bound, by }, until: due_at },
                None => Entry::Message(Message { id, version, due_at, expires_at, attempts, state }),
            };
            let stored = Stored { topic, entry };
            let bytes = stored.pack();
            prop_assert_eq!(Stored::unpack(&bytes), Some(stored));
            let mut damaged = bytes;
            damaged[due_at as usize % STORED_BYTES] ^= 1;
            prop_assert_eq!(Stored::unpack(&damaged), None);
        }
    }
}
