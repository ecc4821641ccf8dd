//! The members of a paced room by place, so that the slowest is known without a search.
//!
//! Owns their order. Knows a member by its session's slot alone.

use std::collections::BTreeSet;

#[derive(Default)]
pub struct Cursors(BTreeSet<(u64, u32)>);

impl Cursors {
    pub fn add(&mut self, place: u64, slot: u32) {
        self.0.insert((place, slot));
    }

    pub fn remove(&mut self, place: u64, slot: u32) {
        self.0.remove(&(place, slot));
    }

    /// The place of the slowest member, and its slot.
    pub fn slowest(&self) -> Option<(u64, u32)> {
        self.0.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_who_stands_at_the_first_place_that_anybody_stands_at() {
        let mut cursors = Cursors::default();
        assert_eq!(cursors.slowest(), None);
        for (slot, place) in [(1, 5), (2, 3), (3, 3), (4, 9)] {
            cursors.add(place, slot);
        }
        cursors.remove(3, 2);
        assert_eq!(cursors.slowest(), Some((3, 3)));
        cursors.remove(3, 3);
        assert_eq!(cursors.slowest(), Some((5, 1)));
        cursors.remove(5, 1);
        cursors.remove(9, 4);
        assert!(cursors.0.is_empty());
    }
}
