//! What a room's reader has not taken yet: messages and gaps in order, within the reader's limit.
//!
//! Owns the unread items, their bytes, the reader's position and its policy. Knows no place and no publisher.

use std::collections::VecDeque;

use muster_transport::Micros;

use super::advance_past;
use crate::wire::publish::{Position, Positions};
use crate::wire::{GapReason, StreamGap, StreamId};

/// Bytes that an unread item costs besides its data, and the number of items that are always kept.
const ITEM: usize = 64;
const GAPS_MIN: usize = 1_024;

/// What happens if the reader is slower than the room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Drops the oldest unread message.
    #[default]
    DropOldest,
    /// Drops the newest message.
    DropNewest,
    /// Takes nothing more from the gateway; then a live room drops messages for this member, a paced one waits.
    Block,
}

/// An item for the reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// A message: `data` is the next `len` bytes of the inbox.
    Message {
        stream: StreamId,
        /// Its offset (of its last chunk), and the first offset of the unbroken run of its chunks up to there.
        offset: u64,
        first: u64,
        sender: u64,
        /// When it, or its last chunk, was born ([`Item::age`]); 0: unknown.
        born: Micros,
        len: u32,
        /// Length of its headers, which are the first bytes of the data ([`decode`](crate::headers::decode)).
        headers: u16,
    },
    Gap(StreamGap),
    /// A command: `data` is the next `len` bytes.
    Command {
        sender: u64,
        number: u64,
        len: u32,
    },
}

impl Item {
    /// The time since a proxy took the message, if known.
    pub fn age(&self, now: Micros) -> Option<Micros> {
        match self {
            Item::Message { born, .. } if *born != 0 => Some(now.saturating_sub(*born)),
            _ => None,
        }
    }
}

/// Unread messages and gaps.
pub struct Reading {
    policy: Policy,
    /// Maximum number of unread bytes, items included.
    bytes_max: usize,
    items: VecDeque<Item>,
    /// Bytes of the messages in `items`, back to back.
    bytes: VecDeque<u8>,
    /// The reader's position: the room's without the unread items.
    read: Positions,
    /// The reader was told that there is something to read.
    told: bool,
    /// The policy stops the gateway from sending.
    blocked: bool,
}

impl Reading {
    pub(super) fn new(policy: Policy, bytes_max: usize, read: Positions) -> Self {
        Reading {
            policy,
            bytes_max,
            items: VecDeque::new(),
            bytes: VecDeque::new(),
            read,
            told: false,
            blocked: false,
        }
    }

    /// Number of unread messages and gaps.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether the reader must be told that there is something to read: once, until it has read everything.
    pub(super) fn tell(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }

    /// The reader found nothing more: it must be told again.
    pub(super) fn drained(&mut self) {
        self.told = false;
    }

    /// The reader's position.
    pub(super) fn position(&self) -> &Positions {
        &self.read
    }

    /// A stream begins here; for the reader only if it has read all before.
    pub(super) fn begin(&mut self, start: Position) {
        if self.items.is_empty() {
            self.read.begin(start);
        }
    }

    /// Whether nothing more may be taken from the gateway now.
    #[inline]
    pub(super) fn full(&mut self) -> bool {
        if self.policy == Policy::Block {
            self.blocked = self.bytes.len() + self.items.len() * ITEM >= self.bytes_max;
        }
        self.blocked
    }

    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// A membership begins or ends: nothing stops the gateway.
    pub(super) fn free(&mut self) {
        self.blocked = false;
    }

    #[inline]
    pub(super) fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether another message of `len` bytes exceeds the reader's limit.
    #[inline]
    pub(super) fn exceeds(&self, len: usize) -> bool {
        self.bytes.len() + len + (self.items.len() + 1) * ITEM > self.bytes_max
    }

    /// Adds a message with its bytes.
    #[inline]
    pub(super) fn push(&mut self, message: Item, data: &[u8]) {
        self.items.push_back(message);
        self.bytes.extend(data);
    }

    /// Replaces the oldest unread message by a gap. Returns its stream and first offset.
    pub(super) fn drop_oldest(&mut self) -> Option<(StreamId, u64)> {
        let is_message = |item: &Item| matches!(item, Item::Message { .. });
        let at = self.items.iter().position(is_message)?;
        let Some(Item::Message {
            stream,
            offset,
            first,
            len,
            ..
        }) = self.items.get(at).copied()
        else {
            return None;
        };
        self.bytes.drain(..len as usize);
        // Neighbouring drops become one gap.
        let merged = match at.checked_sub(1).and_then(|before| self.items.get_mut(before)) {
            Some(Item::Gap(known)) if known.reason == GapReason::Reader && known.stream == stream => {
                known.last = offset;
                true
            }
            _ => false,
        };
        if merged {
            self.items.remove(at);
        } else {
            self.items[at] = Item::Gap(StreamGap {
                stream,
                first,
                last: offset,
                reason: GapReason::Reader,
            });
        }
        Some((stream, first))
    }

    /// Extends the newest item by a dropped message, if it is a gap of dropped messages of this stream.
    pub(super) fn extend_dropped(&mut self, stream: StreamId, offset: u64) -> bool {
        match self.items.back_mut() {
            Some(Item::Gap(gap)) if gap.reason == GapReason::Reader && gap.stream == stream => {
                gap.last = offset;
                true
            }
            _ => false,
        }
    }

    /// Adds a gap. Returns whether it is one more, not the rest of the newest one.
    pub(super) fn push_gap(&mut self, gap: StreamGap) -> bool {
        if let Some(Item::Gap(last)) = self.items.back_mut() {
            let next = last.last.checked_add(1) == Some(gap.first);
            if next && (last.stream, last.reason) == (gap.stream, gap.reason) {
                last.last = gap.last;
                return false;
            }
        }
        let max = (self.bytes_max / ITEM).max(GAPS_MIN);
        if self.items.len() >= max {
            // A gap takes memory as well: beyond the reader's limit, neighbouring gaps of one stream are merged.
            if let Some(Item::Gap(last)) = self.items.back_mut() {
                if last.stream == gap.stream {
                    last.last = last.last.max(gap.last);
                    return true;
                }
            }
            if self.items.len() >= 2 * max {
                return true; // no honest room has this many streams
            }
        }
        self.items.push_back(Item::Gap(gap));
        true
    }

    /// A stream ended: for the reader's position; the reader never sees it.
    pub(super) fn end(&mut self, gap: StreamGap) {
        self.items.push_back(Item::Gap(gap));
    }

    /// Takes the next item; appends a message's bytes to `data`.
    pub(super) fn pop(&mut self, data: &mut Vec<u8>) -> Option<Item> {
        let item = loop {
            let item = self.items.pop_front()?;
            match item {
                Item::Message { stream, offset, .. } => {
                    self.read.advance(stream, offset);
                }
                Item::Gap(gap) => advance_past(&mut self.read, &gap),
                Item::Command { .. } => {}
            }
            if !matches!(item, Item::Gap(gap) if gap.reason == GapReason::Ended) {
                break item;
            }
        };
        if let Item::Message { len, .. } = item {
            let len = len as usize;
            let (front, back) = self.bytes.as_slices();
            if front.len() >= len {
                data.extend_from_slice(&front[..len]);
            } else {
                data.extend_from_slice(front);
                data.extend_from_slice(&back[..len - front.len()]);
            }
            self.bytes.drain(..len);
        }
        Some(item)
    }
}
