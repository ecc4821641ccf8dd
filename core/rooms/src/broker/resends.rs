//! A gateway's requests to resend: ranges of rooms in the order of the requests, and the gateway's allowance of
//! bytes.
//!
//! Holes and history have one of these each, so a long history delays no hole. Knows no ring and no frame.

use std::collections::{BTreeMap, VecDeque};

use muster_transport::Micros;

/// Bytes that a gateway may have resent, at first and at most; the allowance grows by a quarter of the bytes sent to
/// the gateway, and by the second figure each second. Larger than a member's, since a restarted gateway fetches its
/// rooms' history.
pub const ALLOWANCE_FIRST: i64 = 16 << 20;
const ALLOWANCE_A_SECOND: u64 = 8 << 20;
/// Maximum number of waiting ranges; a range is requested again while it is missing. 4,096 x 72 B is 288 KiB per
/// gateway.
pub const RANGES_MAX: usize = 4_096;

/// Offsets `next..=last` of a room, requested from `first` on.
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
    /// Waiting ranges: (room, first) to last. No duplicates, since gateways ask again before a request is served,
    /// each time for a bit less.
    asked: BTreeMap<(u32, u64), u64>,
    allowance: i64,
    grown_at: Micros,
}

impl Resends {
    pub fn new() -> Self {
        Resends {
            ranges: VecDeque::new(),
            asked: BTreeMap::new(),
            allowance: ALLOWANCE_FIRST,
            grown_at: 0,
        }
    }

    /// Adds the allowance due by `now`.
    pub fn grow(&mut self, now: Micros) {
        let grown = now.saturating_sub(self.grown_at).saturating_mul(ALLOWANCE_A_SECOND) / 1_000_000;
        if grown > 0 {
            self.grown_at = now;
            self.allowance = self.allowance.saturating_add_unsigned(grown).min(ALLOWANCE_FIRST);
        }
    }

    /// Notes that this many bytes were sent to the gateway, including resent ones.
    pub fn sent(&mut self, bytes: usize) {
        self.allowance = self.allowance.saturating_add(bytes as i64 / 4).min(ALLOWANCE_FIRST);
    }

    /// Charges this many resent bytes.
    pub fn spend(&mut self, bytes: usize) {
        self.allowance = self.allowance.saturating_sub(bytes as i64);
    }

    /// Takes a request. `Some(true)`: the part that does not wait already will be served; `Some(false)`: all of it
    /// waits already; `None`: beyond the allowance.
    pub fn ask(&mut self, room: u32, first: u64, last: u64) -> Option<bool> {
        let fresh = self.not_asked(room, first, last);
        if fresh.is_empty() {
            return Some(false);
        }
        let free = RANGES_MAX.saturating_sub(self.ranges.len());
        if self.allowance <= 0 || free == 0 {
            return None;
        }
        for (first, last) in fresh.into_iter().take(free) {
            self.asked.insert((room, first), last);
            let next = first;
            self.ranges.push_back(Range {
                room,
                next,
                last,
                first,
            });
        }
        Some(true)
    }

    /// The parts of a range that do not wait already.
    fn not_asked(&self, room: u32, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let before = self.asked.range((room, 0)..=(room, first)).next_back();
        let mut from = before.map_or(first, |(_, end)| first.max(end + 1));
        if from > last {
            return parts;
        }
        for ((_, start), end) in self.asked.range((room, from)..=(room, last)) {
            if *start > from {
                parts.push((from, start - 1));
            }
            from = end + 1;
        }
        if from <= last {
            parts.push((from, last));
        }
        parts
    }

    /// Whether something may be resent now.
    pub fn is_due(&self) -> bool {
        !self.ranges.is_empty() && self.allowance > 0
    }

    /// Takes the next range to resend within the allowance; return it with [`Resends::put_back`] or
    /// [`Resends::done`].
    pub fn take(&mut self) -> Option<Range> {
        if self.allowance <= 0 {
            return None;
        }
        self.ranges.pop_front()
    }

    /// A part of the range was resent: queues it behind the others.
    pub fn put_back(&mut self, range: Range) {
        self.ranges.push_back(range);
    }

    /// The range was resent, or there is nothing left to resend.
    pub fn done(&mut self, range: &Range) {
        self.asked.remove(&(range.room, range.first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resends() -> Resends {
        Resends::new()
    }

    #[test]
    fn a_repeated_request_waits_once() {
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
    fn overlapping_requests_add_only_the_new_parts() {
        let mut resends = resends();
        let asked = |resends: &mut Resends, first, last| {
            let before = resends.ranges.len();
            let taken = resends.ask(1, first, last);
            let fresh = resends.ranges.iter().skip(before);
            (taken, fresh.map(|range| (range.first, range.last)).collect::<Vec<_>>())
        };
        assert_eq!(asked(&mut resends, 10, 20), (Some(true), vec![(10, 20)]));
        (11..=20).for_each(|first| assert_eq!(asked(&mut resends, first, 20), (Some(false), vec![])));
        assert_eq!(asked(&mut resends, 30, 40), (Some(true), vec![(30, 40)]));
        assert_eq!(
            asked(&mut resends, 5, 45),
            (Some(true), vec![(5, 9), (21, 29), (41, 45)])
        );
        assert_eq!(asked(&mut resends, 5, 45), (Some(false), vec![]));
        assert_eq!(asked(&mut resends, 0, 4), (Some(true), vec![(0, 4)]));
        assert_eq!(resends.ask(2, 10, 20), Some(true), "of another room");
        let range = resends.take().unwrap();
        resends.done(&range);
        assert_eq!(asked(&mut resends, 15, 25), (Some(true), vec![(15, 20)]));
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
    fn requests_are_bounded_in_number_and_in_bytes() {
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
