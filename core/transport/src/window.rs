//! Which sequence numbers of one key were seen: the replay window, and the loss that it can count.
//!
//! Owns: [`Window`], a ring of 64-bit blocks as in RFC 6479 (a jump clears whole blocks, no bit is ever shifted).
//! Must not know: keys, frames, a number's use. Offsets and publish sequences are other number spaces.
//!
//! The order is fixed: [`Window::check`] before a datagram is opened, [`Window::commit`] only after it has been
//! authenticated; otherwise a forger could advance the window past the real sender.

use crate::limits::{MISSING_RANGES_MAX, STATUS_SPAN};

/// Bits of one block.
const BITS: u64 = u64::BITS as u64;

/// The window's verdict on a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not seen yet.
    Fresh,
    /// Seen before: a copy or a replay.
    Duplicate,
    /// Below the window (or 0, which is never sent): whether it was seen is forgotten, so it must be refused.
    Old,
}

/// The numbers seen of one sender. Numbers start at 1.
///
/// A number is remembered as long as its block is in the ring, so the window reaches back at least `(BLOCKS - 1) *
/// 64` and at most `BLOCKS * 64 - 1` numbers from the highest, depending on the highest number's position in its
/// block.
#[derive(Clone, Debug)]
pub struct Window<const BLOCKS: usize> {
    highest: u64,
    blocks: [u64; BLOCKS],
}

impl<const BLOCKS: usize> Default for Window<BLOCKS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BLOCKS: usize> Window<BLOCKS> {
    /// A window that has seen nothing.
    pub const fn new() -> Self {
        assert!(
            BLOCKS >= 2 && BLOCKS.is_power_of_two(),
            "a ring of blocks is indexed by masking"
        );
        Window {
            highest: 0,
            blocks: [0; BLOCKS],
        }
    }

    /// What [`Window::commit`] would return for `seq` now. Changes nothing.
    #[inline]
    pub fn check(&self, seq: u64) -> Verdict {
        if seq > self.highest {
            Verdict::Fresh
        } else if seq == 0 || self.highest / BITS - seq / BITS >= BLOCKS as u64 {
            Verdict::Old
        } else if self.bit(seq) {
            Verdict::Duplicate
        } else {
            Verdict::Fresh
        }
    }

    /// Notes an authenticated `seq` as seen. Only `Fresh` changes the window: of two copies in one batch that both
    /// passed the check, the second gets `Duplicate` here.
    #[inline]
    pub fn commit(&mut self, seq: u64) -> Verdict {
        let verdict = self.check(seq);
        if verdict != Verdict::Fresh {
            return verdict;
        }
        if seq > self.highest {
            // The blocks entered since the highest number hold bits of numbers long past. After a jump over the whole
            // ring, one round clears all of them, however far it went.
            let old = self.highest / BITS;
            let entered = (seq / BITS - old).min(BLOCKS as u64);
            for step in 1..=entered {
                self.blocks[Self::slot(old.wrapping_add(step))] = 0;
            }
            self.highest = seq;
        }
        self.blocks[Self::slot(seq / BITS)] |= 1 << (seq % BITS);
        Verdict::Fresh
    }

    /// The highest number seen, 0 before the first.
    #[inline]
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// The lowest number that the window still remembers; 1 at first.
    pub fn lowest(&self) -> u64 {
        let block = (self.highest / BITS).saturating_sub(BLOCKS as u64 - 1);
        (block * BITS).max(1)
    }

    /// The most recent runs of unseen numbers among the last [`STATUS_SPAN`] up to the highest, newest first, each as
    /// (first, last) inclusive; returns how many. A run that began before the span is cut at its edge.
    pub fn missing_ranges(&self, out: &mut [(u64, u64); MISSING_RANGES_MAX]) -> usize {
        let floor = self.highest.saturating_sub(STATUS_SPAN - 1).max(self.lowest());
        let mut count = 0;
        // The highest itself is seen, so the search goes down from below it: to the last hole, then to its start.
        let mut below = self.highest;
        while below > floor && count < MISSING_RANGES_MAX {
            let Some(last) = self.last_in_state(floor, below - 1, false) else {
                break;
            };
            let first = match self.last_in_state(floor, last, true) {
                Some(seen) => seen + 1,
                None => floor,
            };
            out[count] = (first, last);
            count += 1;
            below = first;
        }
        count
    }

    #[inline]
    fn slot(block: u64) -> usize {
        block as usize & (BLOCKS - 1)
    }

    #[inline]
    fn bit(&self, seq: u64) -> bool {
        self.blocks[Self::slot(seq / BITS)] >> (seq % BITS) & 1 == 1
    }

    /// The bits of `block` that stand for numbers within `first..=last`. The two ends must touch the block.
    fn mask(block: u64, first: u64, last: u64) -> u64 {
        let mut mask = u64::MAX;
        if block == first / BITS {
            mask &= u64::MAX << (first % BITS);
        }
        if block == last / BITS {
            mask &= u64::MAX >> (BITS - 1 - last % BITS);
        }
        mask
    }

    /// The highest number in `first..=last` that is seen (`seen`) or unseen. The whole range must lie in the window.
    fn last_in_state(&self, first: u64, last: u64, seen: bool) -> Option<u64> {
        for block in (first / BITS..=last / BITS).rev() {
            let bits = self.blocks[Self::slot(block)];
            let wanted = if seen { bits } else { !bits };
            let bits = wanted & Self::mask(block, first, last);
            if bits != 0 {
                return Some(block * BITS + u64::from(bits.ilog2()));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    impl<const BLOCKS: usize> Window<BLOCKS> {
        /// How many of the numbers `first..=last` were not seen. Numbers outside the window or above the highest are
        /// not counted, as their state is unknown.
        fn missing_between(&self, first: u64, last: u64) -> u64 {
            let first = first.max(self.lowest());
            let last = last.min(self.highest);
            if first > last {
                return 0;
            }
            let mut seen = 0;
            for block in first / BITS..=last / BITS {
                seen += u64::from((self.blocks[Self::slot(block)] & Self::mask(block, first, last)).count_ones());
            }
            last - first + 1 - seen
        }
    }

    /// All numbers ever taken, in a set; the rules written plainly.
    #[derive(Default)]
    struct Model {
        seen: BTreeSet<u64>,
    }

    impl Model {
        fn highest(&self) -> u64 {
            self.seen.last().copied().unwrap_or(0)
        }

        fn lowest(&self, blocks: u64) -> u64 {
            (self.highest() / 64)
                .saturating_sub(blocks - 1)
                .saturating_mul(64)
                .max(1)
        }

        fn check(&self, seq: u64, blocks: u64) -> Verdict {
            if seq < self.lowest(blocks) {
                Verdict::Old
            } else if self.seen.contains(&seq) {
                Verdict::Duplicate
            } else {
                Verdict::Fresh
            }
        }

        fn missing_ranges(&self, blocks: u64) -> Vec<(u64, u64)> {
            let mut runs: Vec<(u64, u64)> = Vec::new();
            let floor = self.highest().saturating_sub(255).max(self.lowest(blocks));
            for seq in (floor..self.highest()).rev() {
                if self.seen.contains(&seq) {
                    continue;
                }
                match runs.last_mut() {
                    Some(run) if run.0 == seq + 1 => run.0 = seq,
                    _ => runs.push((seq, seq)),
                }
            }
            runs.truncate(4);
            runs
        }
    }

    fn compare<const BLOCKS: usize>(seqs: &[u64]) {
        let mut window = Window::<BLOCKS>::new();
        let mut model = Model::default();
        let blocks = BLOCKS as u64;
        for &seq in seqs {
            let expected = model.check(seq, blocks);
            assert_eq!(window.check(seq), expected, "check {seq}");
            assert_eq!(window.commit(seq), expected, "commit {seq}");
            if expected == Verdict::Fresh {
                model.seen.insert(seq);
            }
            assert_eq!(window.highest(), model.highest());
            assert_eq!(window.lowest(), model.lowest(blocks));
            let mut out = [(0, 0); 4];
            let count = window.missing_ranges(&mut out);
            assert_eq!(&out[..count], &model.missing_ranges(blocks)[..]);
            let (from, to) = (seq.saturating_sub(97), seq.saturating_add(31));
            let expected = (from.max(model.lowest(blocks))..=to.min(model.highest()))
                .filter(|number| !model.seen.contains(number))
                .count() as u64;
            assert_eq!(window.missing_between(from, to), expected);
        }
    }

    /// Numbers near a base that drifts upwards, with copies, holes and jumps.
    fn schedule() -> impl Strategy<Value = Vec<u64>> {
        let base = prop_oneof![Just(1u64), Just((1 << 32) - 300), Just(u64::MAX - 1_500), any::<u64>()];
        let step = prop_oneof![
            8 => 0u64..4,
            4 => 0u64..70,
            1 => 200u64..3_000,
        ];
        (base, proptest::collection::vec((step, 0u64..400, 0u8..4), 1..200)).prop_map(|(base, steps)| {
            let mut at = base;
            steps
                .into_iter()
                .map(|(step, back, late)| {
                    at = at.saturating_add(step);
                    if late == 0 {
                        at.saturating_sub(back)
                    } else {
                        at
                    }
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_a_plain_set(seqs in schedule()) {
            compare::<2>(&seqs);
            compare::<4>(&seqs);
            compare::<16>(&seqs);
        }
    }

    #[test]
    fn zero_is_never_accepted() {
        let mut window = Window::<16>::new();
        assert_eq!(window.check(0), Verdict::Old);
        assert_eq!(window.commit(0), Verdict::Old);
        assert_eq!((window.highest(), window.missing_ranges(&mut [(0, 0); 4])), (0, 0));
        assert_eq!(window.commit(1), Verdict::Fresh);
    }

    #[test]
    fn a_jump_past_the_ring_forgets_every_old_bit() {
        let mut window = Window::<128>::new();
        for seq in 1..=9_000 {
            window.commit(seq);
        }
        window.commit(u64::MAX);
        assert_eq!(window.missing_between(1, u64::MAX), u64::MAX - window.lowest());
        assert_eq!(window.check(9_000), Verdict::Old);
        assert_eq!(window.check(u64::MAX - 1), Verdict::Fresh);
        assert_eq!(window.commit(u64::MAX), Verdict::Duplicate);
    }

    #[test]
    fn a_session_window_reaches_back_960_numbers_at_worst() {
        let mut window = Window::<16>::new();
        window.commit(64 * 100);
        assert_eq!(window.check(64 * 100 - 960), Verdict::Fresh);
        assert_eq!(window.check(64 * 100 - 961), Verdict::Old);
        window.commit(64 * 100 + 63);
        assert_eq!(window.check(64 * 100 + 63 - 1_023), Verdict::Fresh);
    }

    #[test]
    fn only_the_four_newest_holes_are_reported() {
        let mut window = Window::<16>::new();
        for seq in [1, 3, 5, 7, 9, 20] {
            window.commit(seq);
        }
        let mut out = [(0, 0); 4];
        assert_eq!(window.missing_ranges(&mut out), 4);
        assert_eq!(out, [(10, 19), (8, 8), (6, 6), (4, 4)]);
        assert_eq!(window.missing_between(1, 20), 14);
    }
}
