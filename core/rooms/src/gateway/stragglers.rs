//! Members that publishers of a paced room wait for: those that stand last, and those that lack what they were sent.
//!
//! Owns where members stand, what they lack, and how long each user is waited for. Knows no session and no ring.

use std::num::NonZeroU64;

use muster_transport::Micros;

use super::cursors::Cursors;
use super::holes::Holes;
use super::patience::Patience;
use crate::principal::Principal;

#[derive(Default)]
pub struct Stragglers {
    cursors: Cursors,
    holes: Holes,
    patience: Patience,
}

impl Stragglers {
    /// A member stands at a place from now on; `before`: where it stood, if it was waited for.
    pub fn stands(&mut self, slot: u32, before: Option<NonZeroU64>, place: u64) {
        self.passes(slot, before);
        self.cursors.add(place, slot);
    }

    /// A member is not waited for any more where it stood.
    pub fn passes(&mut self, slot: u32, before: Option<NonZeroU64>) {
        if let Some(before) = before {
            self.cursors.remove(before.get(), slot);
        }
    }

    /// A member says which place it lacks first, or that it lacks none: [`Holes::note`].
    pub fn lacks(&mut self, now: Micros, slot: u32, place: Option<u64>, awaited: bool) -> bool {
        self.holes.note(now, slot, place, awaited)
    }

    /// The first place that a member lately said it lacks.
    pub fn lacked_by(&self, now: Micros, slot: u32) -> Option<u64> {
        self.holes.of(now, slot)
    }

    /// A member is gone: what it lacks counts no more.
    pub fn forget(&mut self, slot: u32) {
        self.holes.forget(slot);
    }

    /// The slowest member, and that which lacks the first place, of those from `from` on; each with the place and its slot.
    pub fn last(&mut self, now: Micros, from: u64) -> [Option<(u64, u32)>; 2] {
        [self.cursors.slowest(), self.holes.first(now, from)]
    }

    /// Whether the room still waits for a user: [`Patience::lasts`].
    pub fn waits_for(&mut self, now: Micros, user: Principal, place: u64, bytes: impl Fn(u64, u64) -> usize) -> bool {
        self.patience.lasts(now, user, place, bytes)
    }

    /// A member at a place is waited for no more.
    pub fn give_up(&mut self, slot: u32, place: u64) {
        self.holes.give_up(slot);
        self.cursors.remove(place, slot);
    }
}
