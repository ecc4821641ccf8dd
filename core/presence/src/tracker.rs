//! Which versions of one gateway have been applied, and which are missing.
//!
//! Owns: [`Gaps`]. Knows no event and no frame.
//!
//! Every version up to the highest that is not in a gap is applied: so applied and missing versions are disjoint and
//! together complete (I-3). The span from the lowest gap to the highest version is at most [`WINDOW`]; a jump beyond
//! it is refused, and the caller requests the full state instead.

use crate::limits::WINDOW;
use crate::version::{after, span};
use muster_transport::Micros;

/// A run of missing versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    pub first: u64,
    pub last: u64,
    /// Since when it is known.
    pub since: Micros,
    /// The transaction that requests it, if one does.
    pub asked: Option<u64>,
}

/// The result of offering a run of versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Took {
    /// All of it was applied before: the second path's copy, or older.
    Duplicate,
    /// This many of them are new.
    Fresh(u64),
    /// It is beyond the window: nothing changed.
    Beyond,
}

/// The applied window of one (gateway, epoch).
#[derive(Clone, Debug)]
pub struct Gaps {
    highest: u64,
    /// Ascending and disjoint, all below `highest`, or at it if a beat announced it.
    gaps: Vec<Gap>,
}

impl Gaps {
    /// Everything up to `version` is applied.
    pub fn new(version: u64) -> Self {
        Gaps {
            highest: version,
            gaps: Vec::new(),
        }
    }

    /// The highest version known to exist.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Every version up to this one is applied.
    pub fn complete(&self) -> u64 {
        self.gaps.first().map_or(self.highest, |gap| gap.first.wrapping_sub(1))
    }

    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Whether [`Gaps::take`] would return `Duplicate` for this version now.
    #[inline]
    pub fn has(&self, version: u64) -> bool {
        !after(version, self.highest) && self.find(version).is_none()
    }

    /// Notes `first..=last` as applied.
    pub fn take(&mut self, now: Micros, first: u64, last: u64) -> Took {
        if after(first, last) || span(first, last) > WINDOW {
            return Took::Beyond;
        }
        let mut fresh = 0;
        if after(last, self.highest) {
            if span(self.complete(), last) - 1 > WINDOW {
                return Took::Beyond;
            }
            let next = self.highest.wrapping_add(1);
            let known = self.highest;
            self.highest = last;
            if after(first, next) {
                self.miss(now, next, first.wrapping_sub(1));
                return Took::Fresh(span(first, last));
            }
            fresh += span(next, last);
            if !after(first, known) {
                fresh += self.fill(first, known);
            }
        } else {
            fresh += self.fill(first, last);
        }
        match fresh {
            0 => Took::Duplicate,
            fresh => Took::Fresh(fresh),
        }
    }

    /// The gateway announces `newest` as its newest version: every version up to it that did not arrive is missing.
    /// `false`: beyond the window.
    pub fn expect(&mut self, now: Micros, newest: u64) -> bool {
        if !after(newest, self.highest) {
            return true;
        }
        if span(self.complete(), newest) - 1 > WINDOW {
            return false;
        }
        let first = self.highest.wrapping_add(1);
        self.highest = newest;
        self.miss(now, first, newest);
        true
    }

    /// Marks the missing versions of `first..=last` as requested.
    pub fn mark(&mut self, first: u64, last: u64, transaction: u64) {
        self.cut(first);
        self.cut(last.wrapping_add(1));
        for gap in &mut self.gaps {
            if !after(first, gap.first) && !after(gap.last, last) {
                gap.asked = Some(transaction);
            }
        }
    }

    /// Versions that `transaction` requested and did not get may be requested again.
    pub fn release(&mut self, transaction: u64) {
        for gap in self.gaps.iter_mut().filter(|gap| gap.asked == Some(transaction)) {
            gap.asked = None;
        }
    }

    /// Number of versions that `transaction` still waits for.
    pub fn waits(&self, transaction: u64) -> u64 {
        let asked = self.gaps.iter().filter(|gap| gap.asked == Some(transaction));
        asked.map(|gap| span(gap.first, gap.last)).sum()
    }

    /// Total number of missing versions.
    pub fn missing(&self) -> u64 {
        self.gaps.iter().map(|gap| span(gap.first, gap.last)).sum()
    }

    /// Since when the oldest gap is known.
    pub fn oldest(&self) -> Option<Micros> {
        self.gaps.iter().map(|gap| gap.since).min()
    }

    fn miss(&mut self, since: Micros, first: u64, last: u64) {
        self.gaps.push(Gap {
            first,
            last,
            since,
            asked: None,
        });
    }

    /// The gap that contains the version.
    #[inline]
    fn find(&self, version: u64) -> Option<usize> {
        let at = self.gaps.partition_point(|gap| !after(gap.first, version));
        let gap = self.gaps.get(at.wrapping_sub(1))?;
        (!after(version, gap.last)).then(|| at - 1)
    }

    /// Removes `first..=last`, all at or below the highest, from the gaps. Returns how many were missing.
    fn fill(&mut self, first: u64, last: u64) -> u64 {
        if self.gaps.is_empty() {
            return 0;
        }
        self.cut(first);
        self.cut(last.wrapping_add(1));
        let mut filled = 0;
        self.gaps.retain(|gap| {
            let within = !after(first, gap.first) && !after(gap.last, last);
            filled += if within { span(gap.first, gap.last) } else { 0 };
            !within
        });
        filled
    }

    /// Splits the gap that contains `version` after its start, so that `version` begins one.
    fn cut(&mut self, version: u64) {
        let Some(at) = self.find(version) else { return };
        let gap = self.gaps[at];
        if gap.first != version {
            self.gaps[at].last = version.wrapping_sub(1);
            self.gaps.insert(at + 1, Gap { first: version, ..gap });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_transport::Dice;
    use std::collections::BTreeSet;

    /// Every version ever applied, as its distance from the start, in a set; the rules written plainly.
    struct Model {
        applied: BTreeSet<u64>,
        highest: u64,
    }

    impl Model {
        fn missing(&self) -> BTreeSet<u64> {
            (1..=self.highest)
                .filter(|number| !self.applied.contains(number))
                .collect()
        }

        fn complete(&self) -> u64 {
            self.missing().first().map_or(self.highest, |first| first - 1)
        }

        fn take(&mut self, first: u64, last: u64) -> Took {
            if last > self.highest && last - self.complete() > WINDOW {
                return Took::Beyond;
            }
            let before = self.applied.len();
            self.applied.extend((first..=last).filter(|number| *number > 0));
            self.highest = self.highest.max(last);
            match (self.applied.len() - before) as u64 {
                0 => Took::Duplicate,
                fresh => Took::Fresh(fresh),
            }
        }
    }

    /// Starts near the ends of 32 and of 64 bits, so that walks cross them.
    const STARTS: [u64; 4] = [0, (1 << 32) - 50, u64::MAX - 50, (1 << 63) - 50];

    #[test]
    fn applied_and_missing_are_complete_and_disjoint_for_any_input() {
        for (seed, start) in (0..12).flat_map(|seed| STARTS.map(|start| (seed, start))) {
            let mut dice = Dice::new(seed);
            let (mut gaps, mut model) = (
                Gaps::new(start),
                Model {
                    applied: BTreeSet::new(),
                    highest: 0,
                },
            );
            for step in 0..120 {
                let jump = if dice.below(40) == 0 { 5_000 } else { 12 };
                let first = 1 + (model.highest + dice.below(jump)).saturating_sub(dice.below(40));
                let last = first + if dice.below(3) == 0 { dice.below(9) } else { 0 };
                let (one, other) = (start.wrapping_add(first), start.wrapping_add(last));
                match dice.below(8) {
                    0 => {
                        let good = last <= model.highest || last - model.complete() <= WINDOW;
                        assert_eq!(gaps.expect(step, other), good, "seed {seed}");
                        if good {
                            model.highest = model.highest.max(last);
                        }
                    }
                    1 => gaps.mark(one, other, step),
                    2 => gaps.release(dice.below(step + 1)),
                    _ => {
                        assert_eq!(gaps.has(one), model.applied.contains(&first), "seed {seed} step {step}");
                        assert_eq!(
                            gaps.take(step, one, other),
                            model.take(first, last),
                            "seed {seed} step {step}"
                        );
                    }
                }
                let listed: Vec<u64> = gaps
                    .gaps()
                    .iter()
                    .flat_map(|gap| gap.first.wrapping_sub(start)..=gap.last.wrapping_sub(start))
                    .collect();
                assert_eq!(listed, model.missing().into_iter().collect::<Vec<_>>(), "seed {seed}");
                assert_eq!(gaps.missing(), listed.len() as u64);
                assert_eq!(gaps.complete(), start.wrapping_add(model.complete()));
                assert_eq!(gaps.highest(), start.wrapping_add(model.highest));
            }
        }
    }

    #[test]
    fn a_gap_is_requested_in_parts_and_unserved_parts_are_released() {
        let mut gaps = Gaps::new(10);
        assert_eq!(gaps.take(5, 21, 21), Took::Fresh(1));
        gaps.mark(11, 15, 7);
        assert_eq!((gaps.waits(7), gaps.missing()), (5, 10));
        assert_eq!(gaps.take(6, 12, 13), Took::Fresh(2));
        gaps.release(7);
        let asked: Vec<_> = gaps.gaps().iter().map(|gap| (gap.first, gap.last, gap.asked)).collect();
        assert_eq!(asked, [(11, 11, None), (14, 15, None), (16, 20, None)]);
        assert_eq!(gaps.oldest(), Some(5));
    }

    #[test]
    fn a_jump_beyond_the_window_changes_nothing() {
        let mut gaps = Gaps::new(0);
        assert_eq!(gaps.take(0, WINDOW + 1, WINDOW + 1), Took::Beyond);
        assert!(!gaps.expect(0, 1 << 40));
        assert_eq!(gaps.take(0, 5, 4), Took::Beyond);
        assert_eq!(gaps.take(0, 1, u64::MAX), Took::Beyond);
        assert_eq!((gaps.highest(), gaps.missing()), (0, 0));
        assert_eq!(gaps.take(0, WINDOW, WINDOW), Took::Fresh(1));
    }
}
