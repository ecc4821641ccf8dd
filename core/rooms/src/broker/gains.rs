//! Rooms that a change of the placement gave to this broker, which begin bit by bit: all at once would take longer than peers wait
//! for a sign of life.
//!
//! Owns those that have not begun, and when the next ones do. A query or a publication opens its room earlier.

use std::collections::VecDeque;

use muster_transport::Micros;

use crate::interest::Change;

/// How many gained rooms begin at once, and how often: each batch takes half a millisecond, and a million rooms begin
/// within a second.
pub(super) const GAINED_AT_ONCE: usize = 1_024;
pub(super) const GAIN_EVERY: Micros = 1_000;

/// Gateways that want gained rooms.
#[derive(Default)]
pub(super) struct Gains {
    waiting: VecDeque<Change>,
    at: Micros,
}

impl Gains {
    pub fn extend(&mut self, changes: impl Iterator<Item = Change>) {
        self.waiting.extend(changes);
    }

    /// Takes those that begin now.
    pub fn due(&mut self, now: Micros) -> Vec<Change> {
        if self.waiting.is_empty() || now < self.at {
            return Vec::new();
        }
        self.at = now + GAIN_EVERY;
        self.waiting.drain(..GAINED_AT_ONCE.min(self.waiting.len())).collect()
    }

    /// When the next ones begin.
    pub fn deadline(&self) -> Option<Micros> {
        (!self.waiting.is_empty()).then_some(self.at)
    }

    /// The first and the last that wait.
    #[cfg(test)]
    pub fn ends(&self) -> Option<[u64; 2]> {
        Some([self.waiting.front()?.room, self.waiting.back()?.room])
    }
}
