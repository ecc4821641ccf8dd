//! How many messages of each topic are overdue for their first callback, and how long the oldest has waited.
//!
//! Owns: a scan of all messages in memory, some with each tick, and the result of the last complete scan. Must not
//! know: files.
//!
//! A message counts while its first attempt has no answer: it waits for a worker, for a place at its target, or for a
//! breaker. One whose attempts failed counts from the time of its next attempt, until that begins.

use std::collections::HashMap;

use super::near::{Near, Slab};
use super::op::Kind;
use crate::schedule::State;
use crate::wheel::Millis;

/// A message is overdue once it has been due for this long.
const GRACE_MS: Millis = 1_000;

/// Interval between the starts of two scans.
const EVERY_MS: Millis = 1_000;

/// Messages that one tick scans: about 10 microseconds.
const LOOK_MAX: usize = 1_024;

/// The overdue messages of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    pub topic: u32,
    pub count: u64,
    /// When the oldest, or its next attempt, was due.
    pub oldest: Millis,
}

#[derive(Default)]
pub(crate) struct Look {
    begun: Millis,
    /// The next message to scan; `None`: the scan is complete.
    at: Option<usize>,
    found: HashMap<u32, Overdue>,
    told: Vec<Overdue>,
}

impl Look {
    pub fn told(&self) -> &[Overdue] {
        &self.told
    }

    /// Scans some more messages.
    pub fn go_on(&mut self, now: Millis, near: &Slab) {
        let at = match self.at {
            Some(at) => at,
            // A clock that went back starts a scan as well.
            None if now.abs_diff(self.begun) >= EVERY_MS => {
                self.begun = now;
                0
            }
            None => return,
        };
        for message in near.some(at, LOOK_MAX) {
            self.count(now, message);
        }
        let next = at + LOOK_MAX;
        if next < near.slots() {
            self.at = Some(next);
            return;
        }
        self.at = None;
        self.told = self.found.drain().map(|(_, overdue)| overdue).collect();
        self.told.sort_unstable_by_key(|overdue| overdue.topic);
    }

    fn count(&mut self, now: Millis, message: &Near) {
        let op = &message.op;
        let due_at = match op.kind {
            Kind::Message(State::Scheduled) => op.due_at,
            Kind::Message(State::Retry { next }) if op.attempts > 0 => next,
            Kind::Message(State::Firing { until, .. }) if op.attempts > 1 => until,
            Kind::Message(State::Retry { .. } | State::Firing { .. }) => op.due_at,
            _ => return,
        };
        if due_at + GRACE_MS > now {
            return;
        }
        let overdue = self.found.entry(op.topic).or_insert(Overdue {
            topic: op.topic,
            count: 0,
            oldest: due_at,
        });
        overdue.count += 1;
        overdue.oldest = overdue.oldest.min(due_at);
    }
}
