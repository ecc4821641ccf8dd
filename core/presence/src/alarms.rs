//! When to look at which thing again, where most things are done before their time.
//!
//! Owns [`Alarms`]: an alarm that no longer stands is dropped when its time comes, or when such ones are the most. So setting one costs
//! little, and undoing one nothing. Knows no clock.

use muster_transport::Micros;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Alarms that no longer stand are looked for once there are so many, and again when there are twice as many as were left.
const TRIM_FROM: usize = 1_024;

pub struct Alarms<K> {
    heap: BinaryHeap<Reverse<(Micros, K)>>,
    trim_at: usize,
}

impl<K: Ord> Default for Alarms<K> {
    fn default() -> Self {
        Alarms {
            heap: BinaryHeap::new(),
            trim_at: TRIM_FROM,
        }
    }
}

impl<K: Copy + Ord> Alarms<K> {
    pub fn set(&mut self, at: Micros, key: K) {
        self.heap.push(Reverse((at, key)));
    }

    /// The next one that is due and stands.
    pub fn due(&mut self, now: Micros, stands: impl Fn(Micros, &K) -> bool) -> Option<K> {
        if self.heap.len() >= self.trim_at {
            self.heap.retain(|Reverse((at, key))| stands(*at, key));
            self.trim_at = TRIM_FROM.max(2 * self.heap.len());
        }
        while let Some(Reverse((at, key))) = self.heap.peek() {
            match (stands(*at, key), *at <= now) {
                (true, false) => return None,
                (true, true) => return self.heap.pop().map(|Reverse((_, key))| key),
                (false, _) => self.heap.pop(),
            };
        }
        None
    }

    /// When the next one is due, whether it stands or not.
    pub fn first(&self) -> Option<Micros> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_stands_comes_in_its_order_once_it_is_due_and_nothing_else_does() {
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
    fn those_that_no_longer_stand_take_no_memory_for_long() {
        let mut alarms = Alarms::default();
        for key in 0..100_000u32 {
            alarms.set(1_000_000_000, key);
            assert_eq!(alarms.due(0, |_, other| *other == key), None);
            assert!(alarms.heap.len() <= TRIM_FROM, "{}", alarms.heap.len());
        }
    }
}
