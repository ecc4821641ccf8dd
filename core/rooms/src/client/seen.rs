//! Which of a publisher's messages reached a member: when owners change, a message may be numbered twice, or after
//! its successors.

/// Maximum number of ranges of missing sequences that are remembered; beyond it, the oldest count as received. If two
/// owners took turns, a returning member gets one's history and then the other's: as many ranges as an owner resends
/// at a time.
const MISSING_MAX: usize = 1_024;

/// A publisher's sequences in one room.
pub struct Received {
    first: u64,
    last: u64,
    /// Missing sequences in between, ascending.
    missing: Vec<(u64, u64)>,
}

impl Received {
    /// Starts with the first received sequence.
    pub fn new(sequence: u64) -> Self {
        Received {
            first: sequence,
            last: sequence,
            missing: Vec::new(),
        }
    }

    /// Notes a sequence. `false`: it was received before. A sequence below the first one also counts as received:
    /// another, slower owner numbered it, perhaps again, and whether the member was there by then is unknown.
    pub fn take(&mut self, sequence: u64) -> bool {
        if sequence < self.first {
            if sequence + 1 < self.first && self.missing.len() < MISSING_MAX {
                self.missing.insert(0, (sequence + 1, self.first - 1));
            }
            self.first = sequence;
            return true;
        }
        if sequence > self.last {
            if sequence > self.last + 1 {
                self.missing.push((self.last + 1, sequence - 1));
                self.bound();
            }
            self.last = sequence;
            return true;
        }
        let at = self.missing.partition_point(|(_, last)| *last < sequence);
        let Some((first, last)) = self.missing.get(at).copied().filter(|(first, _)| *first <= sequence) else {
            return false;
        };
        let below = (first < sequence).then(|| (first, sequence - 1));
        let above = (sequence < last).then(|| (sequence + 1, last));
        self.missing.splice(at..=at, below.into_iter().chain(above));
        self.bound();
        true
    }

    /// Marks a received sequence as missing again.
    pub fn forget(&mut self, sequence: u64) {
        let at = self.missing.partition_point(|(_, last)| *last < sequence);
        let is_missing = |(first, _): &(u64, u64)| *first <= sequence;
        if !(self.first..=self.last).contains(&sequence) || self.missing.get(at).is_some_and(is_missing) {
            return;
        }
        let (mut from, mut to, mut range) = (at, at, (sequence, sequence));
        if let Some((first, last)) = at.checked_sub(1).map(|before| self.missing[before]) {
            if last + 1 == sequence {
                (from, range.0) = (at - 1, first);
            }
        }
        if let Some((first, last)) = self.missing.get(at) {
            if *first == sequence + 1 {
                (to, range.1) = (at + 1, *last);
            }
        }
        self.missing.splice(from..to, [range]);
        self.bound();
    }

    fn bound(&mut self) {
        if self.missing.len() > MISSING_MAX {
            self.missing.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Nothing is accepted twice; and in any order of a few neighbours, all are accepted.
        #[test]
        fn each_is_taken_once(start in 1u64..100, order in prop::collection::vec(0u64..12, 1..100)) {
            let mut seen = Received::new(start + 6);
            let mut taken = BTreeSet::from([start + 6]);
            for step in order {
                let sequence = start + step;
                prop_assert_eq!(seen.take(sequence), taken.insert(sequence));
            }
        }

        /// A forgotten sequence is accepted again.
        #[test]
        fn forgotten_sequences_are_accepted_again(order in prop::collection::vec((0u64..12, any::<bool>()), 1..100)) {
            let (mut seen, mut taken) = (Received::new(6), BTreeSet::from([6]));
            for (sequence, forgets) in order {
                if forgets {
                    seen.forget(sequence);
                    taken.remove(&sequence);
                } else {
                    prop_assert_eq!(seen.take(sequence), taken.insert(sequence));
                }
                let ranges = &seen.missing;
                prop_assert!(ranges.iter().all(|(first, last)| first <= last));
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", ranges);
            }
        }

        #[test]
        fn remembered_ranges_are_bounded(order in prop::collection::vec(1u64..1000, 1..300)) {
            let mut seen = Received::new(500);
            let mut taken = BTreeSet::from([500]);
            for sequence in order {
                prop_assert!(!seen.take(sequence) || taken.insert(sequence));
                prop_assert!(seen.missing.len() <= MISSING_MAX);
            }
        }
    }

    #[test]
    fn alternating_histories_of_two_owners_are_accepted_whole() {
        let mut seen = Received::new(2_000);
        let mut take = |parity| (0..1_000u64).all(|at| seen.take(2 * at + parity));
        assert!(take(0) && take(1), "the oldest first");
        let mut seen = Received::new(2_000);
        let mut take = |parity| (0..1_000u64).rev().all(|at| seen.take(2 * at + parity));
        assert!(take(0) && take(1), "the youngest first");
    }

    #[test]
    fn a_sequence_below_the_first_counts_as_received() {
        let mut seen = Received::new(11);
        assert_eq!(
            [9, 11, 12, 9, 10, 10].map(|sequence| seen.take(sequence)),
            [true, false, true, false, true, false]
        );
    }
}
