//! The members of a paced room by place: counts, so that the slowest is known without a search.
//!
//! Owns these counts. Knows no member.

use std::collections::BTreeMap;

#[derive(Default)]
pub struct Cursors(BTreeMap<u64, u32>);

impl Cursors {
    pub fn add(&mut self, place: u64) {
        *self.0.entry(place).or_default() += 1;
    }

    pub fn remove(&mut self, place: u64) {
        if let Some(count) = self.0.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&place);
            }
        }
    }

    pub fn slowest(&self) -> Option<u64> {
        self.0.first_key_value().map(|(place, _)| *place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_who_stands_at_the_first_place_that_anybody_stands_at() {
        let mut cursors = Cursors::default();
        assert_eq!(cursors.slowest(), None);
        [5, 3, 3, 9].into_iter().for_each(|place| cursors.add(place));
        cursors.remove(3);
        assert_eq!(cursors.slowest(), Some(3));
        cursors.remove(3);
        assert_eq!(cursors.slowest(), Some(5));
        [5, 9].into_iter().for_each(|place| cursors.remove(place));
        assert!(cursors.0.is_empty());
    }
}
