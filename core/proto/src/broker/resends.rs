//! What a gateway asked to have again: ranges of rooms in the order asked, and the bytes that it may have for them.
//!
//! Holes and history have one of these each, so that whoever fetches much history keeps nobody's hole open. Knows no ring
//! and no frame.

use std::collections::{HashSet, VecDeque};

use crate::hash::KeyedState;
use crate::machine::Micros;

/// Bytes that a gateway may have resent at once, at first and at most; it grows by a quarter of what is sent to it and
/// by the second figure each second. Larger than a member's: a restarted gateway fetches its rooms' history.
pub const ALLOWANCE_FIRST: i64 = 16 << 20;
const ALLOWANCE_A_SECOND: u64 = 8 << 20;
/// Ranges that wait; each is asked for again while it is missing. 4,096 x 72 B is 288 KiB per gateway.
pub const RANGES_MAX: usize = 4_096;

/// Offsets `next..=last` of a room, asked for from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub room: u32,
    pub next: u64,
    pub last: u64,
    first: u64,
}

/// One gateway's requests of one kind.
pub struct Resends {
    ranges: VecDeque<Range>,
    /// Room, first and last of what waits: gateways ask again before they are answered.
    asked: HashSet<(u32, u64, u64), KeyedState>,
    allowance: i64,
    grown_at: Micros,
}

impl Resends {
    pub fn new(hash: KeyedState) -> Self {
        Resends {
            ranges: VecDeque::new(),
            asked: HashSet::with_hasher(hash),
            allowance: ALLOWANCE_FIRST,
            grown_at: 0,
        }
    }

    /// Lets the allowance grow until `now`.
    pub fn grow(&mut self, now: Micros) {
        let grown = now.saturating_sub(self.grown_at).saturating_mul(ALLOWANCE_A_SECOND) / 1_000_000;
        if grown > 0 {
            self.grown_at = now;
            self.allowance = self.allowance.saturating_add_unsigned(grown).min(ALLOWANCE_FIRST);
        }
    }

    /// So many bytes were sent to the gateway, resent ones included.
    pub fn sent(&mut self, bytes: usize) {
        self.allowance = self.allowance.saturating_add(bytes as i64 / 4).min(ALLOWANCE_FIRST);
    }

    /// So many bytes were resent.
    pub fn spend(&mut self, bytes: usize) {
        self.allowance = self.allowance.saturating_sub(bytes as i64);
    }

    /// Takes a request. `Some(true)`: it will be served; `Some(false)`: it waits already; `None`: beyond what is allowed.
    pub fn ask(&mut self, room: u32, first: u64, last: u64) -> Option<bool> {
        if self.asked.contains(&(room, first, last)) {
            return Some(false);
        }
        if self.allowance <= 0 || self.ranges.len() >= RANGES_MAX {
            return None;
        }
        self.asked.insert((room, first, last));
        let next = first;
        self.ranges.push_back(Range {
            room,
            next,
            last,
            first,
        });
        Some(true)
    }

    /// Nothing that was asked for is wanted any more.
    pub fn forget(&mut self) {
        self.ranges.clear();
        self.asked.clear();
    }

    /// Whether something may be resent now.
    pub fn is_due(&self) -> bool {
        !self.ranges.is_empty() && self.allowance > 0
    }

    /// What is to be resent next, as far as the allowance goes; it comes back by [`Resends::put_back`] or [`Resends::done`].
    pub fn take(&mut self) -> Option<Range> {
        if self.allowance <= 0 {
            return None;
        }
        self.ranges.pop_front()
    }

    /// A part of it was resent: the others come first.
    pub fn put_back(&mut self, range: Range) {
        self.ranges.push_back(range);
    }

    /// It was resent, or there is nothing left to resend.
    pub fn done(&mut self, range: &Range) {
        self.asked.remove(&(range.room, range.first, range.last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resends() -> Resends {
        Resends::new(KeyedState::new(1, 2))
    }

    #[test]
    fn a_range_waits_once_however_often_it_is_asked_for() {
        let mut resends = resends();
        assert_eq!(resends.ask(1, 10, 20), Some(true));
        assert_eq!(resends.ask(1, 10, 20), Some(false));
        let mut range = resends.take().unwrap();
        assert_eq!((range.room, range.next, range.last), (1, 10, 20));
        range.next = 15;
        resends.put_back(range);
        assert_eq!(resends.ask(1, 10, 20), Some(false), "the rest of it still waits");
        let range = resends.take().unwrap();
        assert_eq!(range.next, 15);
        resends.done(&range);
        assert_eq!(resends.ask(1, 10, 20), Some(true));
    }

    #[test]
    fn ranges_take_turns() {
        let mut resends = resends();
        (1..=3).for_each(|room| assert_eq!(resends.ask(room, 1, 1_000), Some(true)));
        let mut order = Vec::new();
        for _ in 0..6 {
            let range = resends.take().unwrap();
            order.push(range.room);
            resends.put_back(range);
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn what_is_asked_is_bounded_in_number_and_in_bytes() {
        let mut resends = resends();
        let taken = (0..2 * RANGES_MAX as u64).filter(|first| resends.ask(1, *first, *first) == Some(true));
        assert_eq!(taken.count(), RANGES_MAX);
        resends.spend(ALLOWANCE_FIRST as usize);
        assert!(resends.take().is_none() && !resends.is_due());
        resends.sent(4_000);
        assert!(resends.is_due(), "a quarter of what is sent");
        resends.spend(1_000);
        resends.grow(1_000_000);
        assert!(resends.is_due(), "and something each second");
        resends.grow(1 << 50);
        assert_eq!(resends.allowance, ALLOWANCE_FIRST);
    }
}
