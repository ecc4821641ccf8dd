//! What members of a paced room lack of what they were sent. Publishers are to wait for that as well: the ring would go over it.
//!
//! Owns the first place that each of them lacks, as it said itself, and when. Knows no cursor and no frame.

use std::collections::BTreeMap;

use crate::machine::Micros;

/// Who lacks something asks for it again within that time, or is not there.
const STALE: Micros = 1_500_000;

/// First places lacking, by the member's session slot.
#[derive(Default)]
pub struct Holes(BTreeMap<u32, Hole>);

#[derive(Clone, Copy)]
struct Hole {
    place: u64,
    said_at: Micros,
}

impl Holes {
    /// A member says what it lacks first, or that it lacks nothing.
    pub fn note(&mut self, now: Micros, slot: u32, place: Option<u64>) {
        match place {
            Some(place) => {
                let hole = Hole { place, said_at: now };
                self.0.insert(slot, hole);
            }
            None => self.forget(slot),
        }
    }

    /// A member lacks nothing, or is gone.
    pub fn forget(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// The first place from `from` on that a member lacks which said so lately.
    pub fn first(&self, now: Micros, from: u64) -> Option<u64> {
        let holes = self
            .0
            .values()
            .filter(|hole| hole.place >= from && now < hole.said_at + STALE);
        holes.map(|hole| hole.place).min()
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
        assert_eq!(holes.first(0, 0), Some(10));
        assert_eq!(holes.first(0, 11), Some(20), "what the ring has lost is lost");
        holes.note(5, 2, None);
        assert_eq!(holes.first(5, 0), Some(20));
        holes.note(STALE - 1, 1, Some(25));
        assert_eq!(holes.first(STALE, 0), Some(25), "it has the first one now");
        assert_eq!(holes.first(2 * STALE, 0), None, "it does not ask any more");
        holes.forget(1);
        assert!(holes.0.is_empty());
    }
}
