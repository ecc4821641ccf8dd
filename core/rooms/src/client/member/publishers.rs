//! The publishers of a room at a member: which of their messages arrived, and the chunks of unfinished ones.
//!
//! Owns what is known of each publisher, bounded by [`PUBLISHERS_MAX`]. Knows no place and no reader.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_transport::{KeyedState, Micros};

use super::Shared;
use crate::chunks::{Abandoned, Assembler, Budget, Outcome, Reason};
use crate::client::seen::Received;
use crate::wire::room::{Message, FIRST};
use crate::wire::{PublisherId, StreamId};

/// Maximum number of publishers of a room whose history is remembered; beyond it, the quarter heard least recently is
/// forgotten at once, so the search happens once per 1,024 new ones.
pub(super) const PUBLISHERS_MAX: usize = 4_096;

/// Stream and offset of each chunk of a message.
pub(super) type ChunkOffsets = Vec<(StreamId, u64)>;

/// What a chunk makes of its message.
pub(super) enum Joined {
    /// It is complete: its data, its first sequence, and the first offset of the unbroken run of its chunks.
    Whole {
        data: Vec<u8>,
        begins: u64,
        first: u64,
    },
    Partial,
    /// Its beginning is missing: it may have begun before this membership.
    NoFirst,
    Lost,
}

/// The publishers of a room.
pub struct Publishers {
    /// For each publisher, the received sequences, and the number of its last message.
    seen: HashMap<PublisherId, (Received, u64), KeyedState>,
    /// Number of messages received.
    heard: u64,
    assembler: Assembler<PublisherId>,
    /// Publishers whose unfinished message began before this membership.
    middle: BTreeSet<PublisherId>,
    /// Offsets of the chunks of unfinished messages.
    partial: BTreeMap<PublisherId, ChunkOffsets>,
}

impl Publishers {
    pub(super) fn new(hash: KeyedState) -> Self {
        Publishers {
            seen: HashMap::with_hasher(hash),
            heard: 0,
            assembler: Assembler::new(),
            middle: BTreeSet::new(),
            partial: BTreeMap::new(),
        }
    }

    /// Number of publishers that are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Notes a message. Returns whether its publisher was known before; `None`: the message was received before,
    /// since another owner numbered it again.
    #[inline]
    pub(super) fn hear(&mut self, message: &Message<'_>) -> Option<bool> {
        if self.seen.len() >= PUBLISHERS_MAX && !self.seen.contains_key(&message.publisher) {
            self.forget_unheard();
        }
        self.heard += 1;
        let known = match self.seen.entry(message.publisher) {
            Entry::Vacant(place) => {
                place.insert((Received::new(message.sequence), self.heard));
                false
            }
            Entry::Occupied(mut known) => {
                let (seen, heard) = known.get_mut();
                *heard = self.heard;
                if !seen.take(message.sequence) {
                    return None;
                }
                true
            }
        };
        if message.flags & FIRST != 0 && !self.middle.is_empty() {
            self.middle.remove(&message.publisher);
        }
        Some(known)
    }

    /// Forgets the publishers heard least recently.
    fn forget_unheard(&mut self) {
        let mut heard: Vec<u64> = self.seen.values().map(|(_, heard)| *heard).collect();
        let (_, &mut oldest, _) = heard.select_nth_unstable(PUBLISHERS_MAX / 4);
        self.seen.retain(|_, (_, heard)| *heard >= oldest);
        self.middle.retain(|publisher| self.seen.contains_key(publisher));
    }

    /// Whether a publisher has an unfinished message.
    #[inline]
    pub(super) fn is_unfinished(&self, publisher: PublisherId) -> bool {
        self.partial.contains_key(&publisher)
    }

    /// The chunks of unfinished messages.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = &(StreamId, u64)> {
        self.partial.values().flatten()
    }

    /// Whether no message is unfinished.
    pub(super) fn is_complete(&self) -> bool {
        self.partial.is_empty()
    }

    /// Joins a chunk to its message. Returns the result, and the chunks of an unfinished message that was given up for
    /// it.
    pub(super) fn join(
        &mut self,
        shared: &mut Shared<'_>,
        (stream, offset): (StreamId, u64),
        message: &Message<'_>,
    ) -> (Joined, Option<ChunkOffsets>) {
        let publisher = message.publisher;
        let (outcome, abandoned) = self.assembler.push(
            shared.now,
            publisher,
            message.sequence,
            message.flags,
            message.data,
            shared.budget,
        );
        let given_up = abandoned.and_then(|abandoned| self.abandon(publisher, abandoned));
        let joined = match outcome {
            Outcome::Complete(data) => {
                let mut chunks = self.partial.remove(&publisher).unwrap_or_default();
                let begins = message.sequence.saturating_sub(chunks.len() as u64);
                let mut first = offset;
                while let Some((of, before)) = chunks.pop() {
                    if (of, before + 1) != (stream, first) {
                        break; // messages of other publishers are in between
                    }
                    first = before;
                }
                let data = data.into_owned();
                Joined::Whole { data, begins, first }
            }
            Outcome::Partial => {
                self.partial.entry(publisher).or_default().push((stream, offset));
                Joined::Partial
            }
            Outcome::Dropped(reason) => {
                self.forget(publisher, message.sequence, 1);
                match reason {
                    Reason::NoFirst => Joined::NoFirst,
                    _ => Joined::Lost,
                }
            }
        };
        (joined, given_up)
    }

    /// The publisher's unfinished message began before this membership.
    pub(super) fn note_middle(&mut self, publisher: PublisherId) {
        self.middle.insert(publisher);
    }

    /// Whether the publisher's unfinished message began before this membership.
    pub(super) fn is_in_middle(&self, publisher: PublisherId) -> bool {
        self.middle.contains(&publisher)
    }

    /// The unfinished message of a publisher cannot be completed. Returns its chunks, which become gaps. Another owner
    /// may send all of them again.
    fn abandon(&mut self, publisher: PublisherId, abandoned: Abandoned) -> Option<ChunkOffsets> {
        self.forget(publisher, abandoned.first_seq, abandoned.count);
        self.partial.remove(&publisher)
    }

    /// Messages that could not be used are expected again.
    fn forget(&mut self, publisher: PublisherId, first: u64, count: u64) {
        if let Some((seen, _)) = self.seen.get_mut(&publisher) {
            (first..first.saturating_add(count)).for_each(|sequence| seen.forget(sequence));
        }
    }

    /// Nothing could arrive for a while: restarts the age of unfinished messages.
    pub(super) fn renew(&mut self, now: Micros) {
        self.assembler.renew(now);
    }

    /// When [`Publishers::expire`] is due.
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.assembler.deadline()
    }

    /// Gives up messages that began too long ago. Returns their chunks.
    pub(super) fn expire(&mut self, shared: &mut Shared<'_>) -> Vec<ChunkOffsets> {
        let mut old = Vec::new();
        self.assembler
            .expire(shared.now, shared.budget, |publisher, abandoned| {
                old.push((publisher, abandoned))
            });
        let old = old.into_iter();
        old.filter_map(|(publisher, abandoned)| self.abandon(publisher, abandoned))
            .collect()
    }

    /// Returns the process's shared memory.
    pub(super) fn close(&mut self, budget: &mut Budget) {
        self.assembler.clear(budget);
    }
}
