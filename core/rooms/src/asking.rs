//! When to request missing numbers: a new hole once mere reordering is unlikely, a requested one after a round trip.
//!
//! Owns two marks in a dense numbering and their times. Must not know the meaning of the numbers, or the storage of
//! early ones.

use std::collections::BTreeMap;

use muster_transport::Micros;

/// One of this many arrivals may have been requested needlessly.
const VAIN_SHARE: u32 = 16;
/// After this many more needless requests, or this many in a row, the patience is doubled.
const VAIN_MAX: u32 = 8;
/// After this many arrivals without a needless request, the patience is halved.
const CALM: u32 = 4_096;

/// Wait times for holes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How long a hole may be mere reordering: the initial wait, and the maximum after many needless requests.
    pub reorder: Micros,
    pub reorder_max: Micros,
    /// A hole is requested again after this, or after two round trips; the wait grows while nothing comes.
    pub again: Micros,
    pub again_max: Micros,
}

/// Numbers that arrived early.
pub trait Came {
    /// The runs of present numbers that overlap `from..below`, in order: each its first number, and the one after its
    /// last.
    fn runs(&self, from: u64, below: u64) -> impl Iterator<Item = (u64, u64)>;
}

impl<T> Came for BTreeMap<u64, T> {
    fn runs(&self, from: u64, below: u64) -> impl Iterator<Item = (u64, u64)> {
        self.range(from..below).map(|(at, _)| (*at, at + 1))
    }
}

/// Requests made, and the next ones with their times.
#[derive(Debug)]
pub struct Asking {
    pace: Pace,
    /// The present wait before a hole counts as a loss, and recent needless requests.
    patience: Micros,
    vain: u32,
    calm: u32,
    /// All holes below this were requested once.
    asked: u64,
    /// Holes below the mark are due at the time: never requested ones, and requested ones.
    fresh: Option<(u64, Micros)>,
    again: Option<(u64, Micros)>,
    wait: Micros,
    /// The first missing number when holes were last requested again.
    stood: u64,
}

impl Asking {
    pub fn new(pace: Pace) -> Self {
        Asking {
            pace,
            patience: pace.reorder,
            vain: 0,
            calm: 0,
            asked: 0,
            fresh: None,
            again: None,
            wait: pace.again,
            stood: 0,
        }
    }

    /// Starts again: nothing below `next` is wanted.
    pub fn restart(&mut self, next: u64) {
        *self = Asking {
            asked: next,
            ..Asking::new(self.pace)
        };
    }

    /// Holes below this were requested once.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Counts arrivals, and requested numbers that arrived twice: their holes were mere reordering. A needless
    /// request costs a repeat, and a wait costs time: one needless request in sixteen is worth it.
    #[inline]
    pub fn came(&mut self, count: u32, vain: u32) {
        self.vain = (self.vain + vain * VAIN_SHARE).saturating_sub(count);
        self.calm += count;
        if self.vain > VAIN_MAX * VAIN_SHARE {
            self.patience = (self.patience * 2).min(self.pace.reorder_max);
            (self.vain, self.calm) = (0, 0);
        } else if self.calm >= CALM {
            self.patience = (self.patience / 2).max(self.pace.reorder);
            self.calm = 0;
        }
    }

    /// Notes that everything below `next` has arrived and something below `known` exists.
    #[inline]
    pub fn note(&mut self, now: Micros, next: u64, known: u64) {
        if next >= known {
            if self.again.is_some() || self.fresh.is_some() {
                (self.fresh, self.again, self.wait) = (None, None, self.pace.again);
            }
        } else if self.fresh.is_none() && known > self.asked {
            self.fresh = Some((known, now + self.patience));
        }
    }

    /// Makes all holes due now: they are known not to be reordering.
    pub fn hurry(&mut self, now: Micros) {
        for (_, at) in [&mut self.fresh, &mut self.again].into_iter().flatten() {
            *at = now;
        }
    }

    /// When the next request is due.
    pub fn deadline(&self) -> Option<Micros> {
        [self.fresh, self.again].into_iter().flatten().map(|(_, at)| at).min()
    }

    /// Adds ranges to request now to `wanted`, up to `max` in total. `held`: early numbers from `next` on.
    pub fn ask(
        &mut self,
        now: Micros,
        rtt: Micros,
        (next, known): (u64, u64),
        held: &impl Came,
        max: usize,
        wanted: &mut Vec<(u64, u64)>,
    ) {
        if next >= known {
            self.note(now, next, known);
            return;
        }
        if let Some((below, _)) = self.again.filter(|(_, at)| now >= *at) {
            self.wait = if next > self.stood {
                self.pace.again
            } else {
                (self.wait * 5 / 4).min(self.pace.again_max)
            };
            self.stood = next;
            self.again = None;
            holes(held, next, below.min(known), max, wanted);
        }
        if let Some((below, _)) = self.fresh.filter(|(_, at)| now >= *at && wanted.len() < max) {
            self.asked = holes(held, next.max(self.asked), below.min(known), max, wanted);
            self.fresh = None;
            if self.asked < below {
                self.fresh = Some((below, now));
            } else {
                self.note(now, next, known);
            }
        }
        if self.again.is_none() && self.asked > next {
            self.again = Some((self.asked, now + self.wait.max(2 * rtt)));
        }
    }
}

/// Adds the ranges of `from..below` that are not held, up to `max` in total. Returns the number up to which all are
/// added.
fn holes(held: &impl Came, mut from: u64, below: u64, max: usize, wanted: &mut Vec<(u64, u64)>) -> u64 {
    if from >= below {
        return from;
    }
    for (first, end) in held.runs(from, below).chain([(below, below)]) {
        if first > from {
            if wanted.len() >= max {
                return from;
            }
            wanted.push((from, first - 1));
        }
        from = end;
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        reorder: 5,
        reorder_max: 15,
        again: 20,
        again_max: 500,
    };

    fn asked(asking: &mut Asking, now: Micros, next: u64, known: u64, held: &[u64]) -> Vec<(u64, u64)> {
        let held: BTreeMap<u64, ()> = held.iter().map(|at| (*at, ())).collect();
        let mut wanted = Vec::new();
        asking.note(now, next, known);
        if asking.deadline().is_some_and(|at| now >= at) {
            asking.ask(now, 1, (next, known), &held, 16, &mut wanted);
        }
        wanted
    }

    #[test]
    fn a_hole_is_requested_after_the_reordering_time_and_again_later() {
        let mut asking = Asking::new(PACE);
        assert_eq!(asked(&mut asking, 0, 3, 6, &[5]), []);
        assert_eq!(asked(&mut asking, 5, 3, 6, &[5]), [(3, 4)]);
        assert_eq!(asked(&mut asking, 24, 3, 6, &[5]), []);
        assert_eq!(asked(&mut asking, 25, 3, 6, &[5]), [(3, 4)]);
        assert_eq!(asked(&mut asking, 26, 6, 6, &[]), []);
        assert_eq!(asking.deadline(), None);
    }

    /// One of this many datagrams is overtaken by more than the longest patience. Returns the final patience.
    fn patience(overtaken: u32) -> Micros {
        let mut asking = Asking::new(PACE);
        for datagram in 1..20_000 {
            asking.came(5, if datagram % overtaken == 0 { 5 } else { 0 });
        }
        asking.patience
    }

    #[test]
    fn patience_grows_if_many_holes_fill_by_themselves() {
        assert_eq!(patience(100), PACE.reorder);
        assert_eq!(patience(25), PACE.reorder);
        assert_eq!(patience(5), PACE.reorder_max);
        let mut asking = Asking::new(PACE);
        asking.came(10, 10);
        assert_eq!(asking.patience, 2 * PACE.reorder);
        asking.came(10, 10);
        assert_eq!(asking.patience, PACE.reorder_max);
        asking.came(2 * CALM, 0);
        assert_eq!(asking.patience, PACE.reorder_max / 2);
        asking.came(CALM, 0);
        assert_eq!(asking.patience, PACE.reorder, "and less again where they do no more");
    }

    /// Regression: new holes were requested at the pace of the first one that did not fill: half a second each.
    #[test]
    fn new_holes_do_not_wait_for_old_ones() {
        let mut asking = Asking::new(PACE);
        let mut held: Vec<u64> = Vec::new();
        for now in 0..1_000 {
            let known = 5 + now; // 3 never comes; of the others every tenth comes only on request
            if known % 10 != 1 {
                held.push(known - 1);
            }
            for (first, last) in asked(&mut asking, now, 3, known, &held) {
                held.extend((first..=last).filter(|at| *at != 3));
            }
            held.sort_unstable();
            let oldest = (4..known).find(|at| held.binary_search(at).is_err());
            assert!(
                oldest.is_none_or(|at| known - at <= 2 * PACE.reorder + 1),
                "{oldest:?} of {known}"
            );
        }
    }

    #[test]
    fn ranges_that_do_not_fit_are_requested_right_after() {
        let mut asking = Asking::new(PACE);
        let held: Vec<u64> = (0..40).map(|at| at * 2 + 1).collect();
        asking.note(0, 0, 80);
        assert_eq!(asked(&mut asking, 5, 0, 80, &held).len(), 16);
        assert_eq!(
            asked(&mut asking, 5, 0, 80, &held),
            (16..32).map(|at| (at * 2, at * 2)).collect::<Vec<_>>()
        );
        assert_eq!(asked(&mut asking, 5, 0, 80, &held).len(), 8);
        assert_eq!(asked(&mut asking, 6, 0, 80, &held), []);
    }

    #[test]
    fn progress_keeps_the_pace_and_silence_slows_it() {
        let mut asking = Asking::new(PACE);
        let mut times = Vec::new();
        for now in 0..200 {
            if !asked(&mut asking, now, 3, 6, &[5]).is_empty() {
                times.push(now);
            }
        }
        assert_eq!(times, [5, 25, 45, 70, 101, 139, 186]);
    }
}
