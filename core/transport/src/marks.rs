//! The bursts in flight on a connection, each with its last datagram and send time.
//!
//! Owns [`Marks`], a queue whose first entry is stored inline: most connections have one burst in flight, or none.
//! Knows no window and no status.

use std::collections::VecDeque;

use crate::machine::Micros;

/// The time of a burst that was in flight while the process stood still.
const UNTIMED: Micros = Micros::MAX;

/// A burst: its last sequence, which is not 0, and the sum of charges up to it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mark {
    pub sequence: u64,
    pub charged: u64,
    pub at: Micros,
}

impl Mark {
    /// The send time, if a status for the burst gives a valid round trip.
    pub fn timed(&self) -> Option<Micros> {
        (self.at != UNTIMED).then_some(self.at)
    }
}

/// The later bursts; a type of its own because it is boxed.
struct Later(VecDeque<Mark>);

impl Default for Later {
    /// With capacity for two, 112 B with the box: connections with more bursts are busy, and their memory matters
    /// less.
    fn default() -> Self {
        Later(VecDeque::with_capacity(2))
    }
}

/// The bursts in flight, earliest first.
#[derive(Default)]
pub struct Marks {
    /// Its sequence is 0 if there is none; then `later` is empty too.
    first: Mark,
    later: Option<Box<Later>>,
}

impl Marks {
    pub fn len(&self) -> usize {
        usize::from(self.first.sequence > 0) + self.later.as_ref().map_or(0, |later| later.0.len())
    }

    #[inline]
    pub fn front(&self) -> Option<Mark> {
        (self.first.sequence > 0).then_some(self.first)
    }

    #[inline]
    pub fn back(&self) -> Option<Mark> {
        let later = self.later.as_ref().and_then(|later| later.0.back().copied());
        later.or(self.front())
    }

    #[inline]
    pub fn back_mut(&mut self) -> Option<&mut Mark> {
        match self.later.as_mut().and_then(|later| later.0.back_mut()) {
            Some(mark) => Some(mark),
            None => (self.first.sequence > 0).then_some(&mut self.first),
        }
    }

    #[inline]
    pub fn push_back(&mut self, mark: Mark) {
        if self.first.sequence == 0 {
            self.first = mark;
        } else {
            self.later.get_or_insert_default().0.push_back(mark);
        }
    }

    #[inline]
    pub fn pop_front(&mut self) {
        let next = self.later.as_mut().and_then(|later| later.0.pop_front());
        self.first = next.unwrap_or_default();
    }

    /// Clears all send times.
    pub fn forget_times(&mut self) {
        let later = self.later.iter_mut().flat_map(|later| &mut later.0);
        later.chain([&mut self.first]).for_each(|mark| mark.at = UNTIMED);
    }

    /// Removes all bursts and frees the memory.
    #[inline]
    pub fn clear(&mut self) {
        *self = Marks::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn marks_are_a_queue(steps in prop::collection::vec(0u8..8, 0..60)) {
            let (mut marks, mut model) = (Marks::default(), VecDeque::new());
            for (step, at) in steps.into_iter().zip(1..) {
                match step {
                    0..=3 => {
                        let mark = Mark { sequence: at, charged: 2 * at, at };
                        marks.push_back(mark);
                        model.push_back(mark);
                    }
                    4 | 5 => {
                        marks.pop_front();
                        model.pop_front();
                    }
                    6 => {
                        let of = [marks.back_mut(), model.back_mut()];
                        of.into_iter().flatten().for_each(|mark| mark.charged += 1);
                    }
                    _ => {
                        marks.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!(marks.len(), model.len());
                prop_assert_eq!((marks.front(), marks.back()), (model.front().copied(), model.back().copied()));
            }
        }
    }
}
