//! Sessions that have shown no credential.
//!
//! Owns their number, and their order by age. Knows no connection.

use std::collections::VecDeque;

use super::{HALF_OPEN_LIFE, HALF_OPEN_MAX};
use crate::machine::Micros;

/// Sessions that came without a credential, by age.
#[derive(Default)]
pub(super) struct HalfOpen {
    /// Ids and arrivals, oldest first; some have shown a credential since, or are gone.
    queue: VecDeque<(u64, Micros)>,
    /// Number of those that have not.
    len: usize,
}

impl HalfOpen {
    /// Number of sessions that have shown no credential.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether another one needs the place of the oldest.
    pub(super) fn is_full(&self) -> bool {
        self.len >= HALF_OPEN_MAX
    }

    /// A session came.
    pub(super) fn push(&mut self, now: Micros, id: u64) {
        self.queue.push_back((id, now));
        self.len += 1;
    }

    /// A session has shown its credential, or ended without.
    pub(super) fn leave(&mut self) {
        self.len -= 1;
    }

    /// The oldest entry: a session's id, and when it came.
    pub(super) fn oldest(&self) -> Option<(u64, Micros)> {
        self.queue.front().copied()
    }

    /// Removes the oldest entry.
    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// Bounds the queue: keeps only entries of sessions that have shown nothing, if there are many others.
    pub(super) fn bound(&mut self, shows_nothing: impl Fn(u64) -> bool) {
        if self.queue.len() >= 2 * HALF_OPEN_MAX {
            self.queue.retain(|(id, _)| shows_nothing(*id));
        }
    }

    /// Removes entries of sessions that are over by now.
    pub(super) fn expire(&mut self, now: Micros) {
        while self.oldest().is_some_and(|(_, at)| now >= at + 2 * HALF_OPEN_LIFE) {
            self.pop();
        }
    }
}
