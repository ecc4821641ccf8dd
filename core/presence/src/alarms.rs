//! Timers by key, most of which are cancelled before their time.
//!
//! Owns [`Alarms`]: a cancelled alarm is dropped when its time comes, or when such alarms are the majority. So
//! setting one costs little, and cancelling one nothing. Most alarms of one kind have the same wait, so they come in
//! order and are kept in a queue; only the others are sorted. Knows no clock.

use muster_transport::Micros;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Cancelled alarms are removed once there are this many alarms, and again when there are twice as many as were left.
const TRIM_FROM: usize = 1_024;

pub struct Alarms<K> {
    /// Each is no earlier than the one before it.
    line: VecDeque<(Micros, K)>,
    /// Alarms for an earlier time than the last of the queue.
    heap: BinaryHeap<Reverse<(Micros, K)>>,
    trim_at: usize,
}

impl<K: Ord> Default for Alarms<K> {
    fn default() -> Self {
        Alarms {
            line: VecDeque::new(),
            heap: BinaryHeap::new(),
            trim_at: TRIM_FROM,
        }
    }
}

impl<K: Copy + Ord> Alarms<K> {
    pub fn set(&mut self, at: Micros, key: K) {
        match self.line.back() {
            Some((last, _)) if at < *last => self.heap.push(Reverse((at, key))),
            _ => self.line.push_back((at, key)),
        }
    }

    /// Takes the next alarm that is due and was not cancelled.
    pub fn due(&mut self, now: Micros, stands: impl Fn(Micros, &K) -> bool) -> Option<K> {
        if self.len() >= self.trim_at {
            self.line.retain(|(at, key)| stands(*at, key));
            self.heap.retain(|Reverse((at, key))| stands(*at, key));
            self.trim_at = TRIM_FROM.max(2 * self.len());
        }
        while let Some((at, key)) = self.next() {
            let stands = stands(at, &key);
            if stands && at > now {
                return None;
            }
            self.drop_next();
            if stands {
                return Some(key);
            }
        }
        None
    }

    /// When the next alarm is due, even if it was cancelled.
    pub fn first(&self) -> Option<Micros> {
        self.next().map(|(at, _)| at)
    }

    fn len(&self) -> usize {
        self.line.len() + self.heap.len()
    }

    /// Whether the next alarm is in the queue.
    fn is_in_line(&self) -> bool {
        match (self.line.front(), self.heap.peek()) {
            (Some(one), Some(Reverse(other))) => one <= other,
            (_, other) => other.is_none(),
        }
    }

    fn next(&self) -> Option<(Micros, K)> {
        match self.is_in_line() {
            true => self.line.front().copied(),
            false => self.heap.peek().map(|Reverse(next)| *next),
        }
    }

    fn drop_next(&mut self) {
        match self.is_in_line() {
            true => drop(self.line.pop_front()),
            false => drop(self.heap.pop()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// The model is the latest time of each key: for any order of the times, due alarms come by time and key.
        #[test]
        fn due_alarms_agree_with_a_sorted_list(sets in prop::collection::vec((0u64..50, 0u32..12), 0..60), step in 1u64..20) {
            let (mut alarms, mut wanted) = (Alarms::default(), BTreeMap::new());
            for (at, key) in sets {
                alarms.set(at, key);
                wanted.insert(key, at);
            }
            for now in (0..60).step_by(step as usize) {
                let mut came = Vec::new();
                while let Some(key) = alarms.due(now, |at, key| wanted.get(key) == Some(&at)) {
                    came.push((wanted.remove(&key), key));
                }
                prop_assert!(wanted.values().all(|at| *at > now));
                prop_assert!(came.iter().map(|(at, _)| *at).is_sorted(), "{:?}", came);
                let next = wanted.values().min();
                prop_assert_eq!(alarms.first(), next.copied());
            }
        }
    }

    #[test]
    fn only_active_alarms_come_in_order_once_due() {
        let mut alarms = Alarms::default();
        let mut wanted: BTreeMap<u32, Micros> = BTreeMap::new();
        for (at, key) in [(30, 1), (10, 2), (20, 3), (40, 2), (20, 4)] {
            alarms.set(at, key);
            wanted.insert(key, at);
        }
        let stands = |wanted: &BTreeMap<u32, Micros>, at: Micros, key: &u32| wanted.get(key) == Some(&at);
        let mut due = |now, wanted: &BTreeMap<u32, Micros>| alarms.due(now, |at, key| stands(wanted, at, key));
        assert_eq!(due(15, &wanted), None, "the one at 10 was put off");
        assert_eq!(
            (due(25, &wanted), due(25, &wanted), due(25, &wanted)),
            (Some(3), Some(4), None)
        );
        wanted.remove(&1);
        assert_eq!((due(100, &wanted), due(100, &wanted)), (Some(2), None));
        assert_eq!(alarms.first(), None);
    }

    #[test]
    fn cancelled_alarms_soon_take_no_memory() {
        let mut alarms = Alarms::default();
        for key in 0..100_000u32 {
            alarms.set(1_000_000_000, key);
            assert_eq!(alarms.due(0, |_, other| *other == key), None);
            assert!(alarms.len() <= TRIM_FROM, "{}", alarms.len());
        }
    }
}
