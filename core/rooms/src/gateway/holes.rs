//! Places that members of a room were sent and lack. Publishers of a paced room must wait for them too: the ring would overwrite
//! them.
//!
//! Owns the first missing place that each member reported, the time of the report, and whether publishers wait for it. Knows no cursor
//! and no frame.

use std::collections::{BTreeMap, BTreeSet};

use muster_transport::Micros;

/// A member asks again for a missing place within this time, or is gone.
const STALE: Micros = 1_500_000;

/// First places lacking, by the member's session slot; those that publishers wait for in their order.
#[derive(Default)]
pub struct Holes {
    of: BTreeMap<u32, Hole>,
    places: BTreeSet<(u64, u32)>,
}

#[derive(Clone, Copy)]
struct Hole {
    place: u64,
    said_at: Micros,
}

impl Holes {
    /// A member reports its first missing place, or that none is missing. `awaited`: publishers wait for it. Returns whether that
    /// is news to them.
    pub fn note(&mut self, now: Micros, slot: u32, place: Option<u64>, awaited: bool) -> bool {
        let Some(place) = place else {
            return self.forget(slot);
        };
        let before = self.of.insert(slot, Hole { place, said_at: now });
        let other = before.filter(|before| !awaited || before.place != place);
        let gone = other.is_some_and(|before| self.places.remove(&(before.place, slot)));
        let new = awaited && self.places.insert((place, slot));
        gone || new
    }

    /// A member lacks nothing, or is gone. Returns whether publishers waited for it.
    pub fn forget(&mut self, slot: u32) -> bool {
        let hole = self.of.remove(&slot);
        hole.is_some_and(|hole| self.places.remove(&(hole.place, slot)))
    }

    /// Publishers wait for a member no more.
    pub fn give_up(&mut self, slot: u32) {
        if let Some(hole) = self.of.get(&slot) {
            self.places.remove(&(hole.place, slot));
        }
    }

    /// The first place that a member lately reported missing.
    pub fn of(&self, now: Micros, slot: u32) -> Option<u64> {
        let hole = self.of.get(&slot)?;
        (now < hole.said_at + STALE).then_some(hole.place)
    }

    /// The first place from `from` on that publishers wait for, as a member lately reported it missing, and its slot; forgets earlier
    /// places and silent members.
    pub fn first(&mut self, now: Micros, from: u64) -> Option<(u64, u32)> {
        while let Some((place, slot)) = self.places.first().copied() {
            if place >= from && self.of(now, slot).is_some() {
                return Some((place, slot));
            }
            self.forget(slot);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_publishers_do_not_wait_for_lacks_something_all_the_same() {
        let mut holes = Holes::default();
        assert!(!holes.note(0, 1, Some(10), false));
        assert_eq!((holes.of(0, 1), holes.first(0, 0)), (Some(10), None));
        assert!(holes.note(0, 1, Some(10), true), "it has caught up");
        assert_eq!(holes.first(0, 0), Some((10, 1)));
        holes.give_up(1);
        assert_eq!((holes.of(0, 1), holes.first(0, 0)), (Some(10), None));
        assert!(holes.note(0, 1, Some(12), true));
        assert!(holes.note(0, 1, Some(14), false), "given up again");
        assert_eq!((holes.of(STALE - 1, 1), holes.of(STALE, 1)), (Some(14), None));
        assert!(!holes.note(0, 1, None, false));
        assert!(holes.of.is_empty() && holes.places.is_empty());
    }

    #[test]
    fn the_first_place_that_any_member_lacks_is_told_until_it_has_it_leaves_or_falls_silent() {
        let mut holes = Holes::default();
        assert_eq!(holes.first(0, 0), None);
        holes.note(0, 1, Some(20), true);
        holes.note(0, 2, Some(10), true);
        assert_eq!(holes.first(0, 0), Some((10, 2)));
        assert_eq!(holes.first(0, 11), Some((20, 1)), "what the ring has lost is lost");
        assert!(holes.note(4, 2, Some(12), true));
        assert!(!holes.note(4, 2, Some(12), true), "it said so before");
        assert!(holes.note(5, 2, None, true));
        assert!(!holes.note(5, 2, None, true));
        assert_eq!(holes.first(5, 0), Some((20, 1)));
        holes.note(STALE - 1, 1, Some(25), true);
        assert_eq!(holes.first(STALE, 0), Some((25, 1)), "it has the first one now");
        assert_eq!(holes.first(2 * STALE, 0), None, "it does not ask any more");
        holes.forget(1);
        assert!(holes.of.is_empty() && holes.places.is_empty());
    }
}
