//! Places that members of a paced room were sent and lack. Publishers must wait for them too: the ring would overwrite
//! them.
//!
//! Owns the first missing place that each member reported, and the time of the report. Knows no cursor and no frame.

use std::collections::{BTreeMap, BTreeSet};

use muster_transport::Micros;

/// A member asks again for a missing place within this time, or is gone.
const STALE: Micros = 1_500_000;

/// First places lacking, by the member's session slot and in their order.
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
    /// A member reports its first missing place, or that none is missing. Returns whether that is news.
    pub fn note(&mut self, now: Micros, slot: u32, place: Option<u64>) -> bool {
        let Some(place) = place else {
            return self.forget(slot);
        };
        let before = self.of.insert(slot, Hole { place, said_at: now });
        if before.is_some_and(|before| before.place == place) {
            return false;
        }
        if let Some(before) = before {
            self.places.remove(&(before.place, slot));
        }
        self.places.insert((place, slot));
        true
    }

    /// A member lacks nothing, or is gone. Tells whether it lacked something.
    pub fn forget(&mut self, slot: u32) -> bool {
        let hole = self.of.remove(&slot);
        hole.is_some_and(|hole| self.places.remove(&(hole.place, slot)))
    }

    /// The first place from `from` on that a member lately reported missing, and its slot; forgets earlier places and silent
    /// members.
    pub fn first(&mut self, now: Micros, from: u64) -> Option<(u64, u32)> {
        while let Some((place, slot)) = self.places.first().copied() {
            let lately = self.of.get(&slot).is_some_and(|hole| now < hole.said_at + STALE);
            if place >= from && lately {
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
    fn the_first_place_that_any_member_lacks_is_told_until_it_has_it_leaves_or_falls_silent() {
        let mut holes = Holes::default();
        assert_eq!(holes.first(0, 0), None);
        holes.note(0, 1, Some(20));
        holes.note(0, 2, Some(10));
        assert_eq!(holes.first(0, 0), Some((10, 2)));
        assert_eq!(holes.first(0, 11), Some((20, 1)), "what the ring has lost is lost");
        assert!(holes.note(4, 2, Some(12)));
        assert!(!holes.note(4, 2, Some(12)), "it said so before");
        assert!(holes.note(5, 2, None));
        assert!(!holes.note(5, 2, None));
        assert_eq!(holes.first(5, 0), Some((20, 1)));
        holes.note(STALE - 1, 1, Some(25));
        assert_eq!(holes.first(STALE, 0), Some((25, 1)), "it has the first one now");
        assert_eq!(holes.first(2 * STALE, 0), None, "it does not ask any more");
        holes.forget(1);
        assert!(holes.of.is_empty() && holes.places.is_empty());
    }
}
