//! Which of a publisher's messages came to a member: where owners change, one may be numbered twice, or after its successors.

use crate::wire::StreamId;

/// Ranges of missing sequences that are remembered; the oldest go first and then count as come. Where two owners took turns, a
/// member that comes back gets the history of one and then that of the other: so many as an owner resends at a time.
const MISSING_MAX: usize = 1_024;

/// A publisher's sequences in one room.
pub struct Seen {
    /// The stream in which the first one came.
    stream: StreamId,
    first: u64,
    last: u64,
    /// What did not come between them, ascending.
    missing: Vec<(u64, u64)>,
}

impl Seen {
    /// The first one that comes.
    pub fn new(stream: StreamId, sequence: u64) -> Self {
        Seen {
            stream,
            first: sequence,
            last: sequence,
            missing: Vec::new(),
        }
    }

    /// Notes a sequence. `false`: it came before, or it is older than what the member began with and not merely `late`, given the
    /// stream in which the first one came: an elder stream is late, a younger one repeats.
    pub fn take(&mut self, sequence: u64, late: impl FnOnce(StreamId) -> bool) -> bool {
        if sequence < self.first {
            if !late(self.stream) {
                return false;
            }
            if sequence + 1 < self.first && self.missing.len() < MISSING_MAX {
                self.missing.insert(0, (sequence + 1, self.first - 1));
            }
            self.first = sequence;
            return true;
        }
        if sequence > self.last {
            if sequence > self.last + 1 {
                if self.missing.len() == MISSING_MAX {
                    self.missing.remove(0);
                }
                self.missing.push((self.last + 1, sequence - 1));
            }
            self.last = sequence;
            return true;
        }
        let at = self.missing.partition_point(|(_, last)| *last < sequence);
        let Some((first, last)) = self.missing.get(at).copied().filter(|(first, _)| *first <= sequence) else {
            return false;
        };
        let rest = [(first, sequence - 1), (sequence + 1, last)];
        let rest = rest.into_iter().filter(|(first, last)| first <= last);
        self.missing.splice(at..=at, rest);
        if self.missing.len() > MISSING_MAX {
            self.missing.remove(0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const STREAM: StreamId = StreamId {
        node: 1,
        epoch: 2,
        generation: 3,
    };

    proptest! {
        /// Nothing is taken twice, and in any order of a few neighbours all is taken.
        #[test]
        fn each_is_taken_once(start in 1u64..100, order in prop::collection::vec(0u64..12, 1..100)) {
            let mut seen = Seen::new(STREAM, start + 6);
            let mut taken = BTreeSet::from([start + 6]);
            for step in order {
                let sequence = start + step;
                prop_assert_eq!(seen.take(sequence, |_| true), taken.insert(sequence));
            }
        }

        #[test]
        fn what_is_remembered_is_bounded(order in prop::collection::vec(1u64..1000, 1..300)) {
            let mut seen = Seen::new(STREAM, 500);
            let mut taken = BTreeSet::from([500]);
            for sequence in order {
                prop_assert!(!seen.take(sequence, |_| sequence % 2 == 0) || taken.insert(sequence));
                prop_assert!(seen.missing.len() <= MISSING_MAX);
            }
        }
    }

    #[test]
    fn histories_of_owners_that_took_turns_are_taken_whole() {
        let mut seen = Seen::new(STREAM, 2_000);
        let mut take = |parity| (0..1_000u64).all(|at| seen.take(2 * at + parity, |_| true));
        assert!(take(0) && take(1), "the oldest first");
        let mut seen = Seen::new(STREAM, 2_000);
        let mut take = |parity| (0..1_000u64).rev().all(|at| seen.take(2 * at + parity, |_| true));
        assert!(take(0) && take(1), "the youngest first");
    }

    #[test]
    fn what_was_numbered_before_the_member_came_is_no_news() {
        let mut seen = Seen::new(STREAM, 11);
        assert!(!seen.take(9, |_| false) && !seen.take(11, |_| false));
        assert!(seen.take(12, |_| false) && seen.take(9, |_| true));
        assert!(seen.take(10, |_| false) && !seen.take(10, |_| true));
    }
}
