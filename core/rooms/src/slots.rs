//! The rooms of a role, or its publications: each has a slot for as long as it lives, and is found by slot or by key.
//!
//! Owns the slots, the index by key, their maximum, and whose turn is next. Knows nothing of what is in them.

use std::collections::HashMap;
use std::hash::Hash;

use muster_transport::KeyedState;

use crate::shards;

/// Values by slot and by key. A slot is used again once its value is gone.
pub(crate) struct Slots<K, V> {
    values: Vec<Option<Box<V>>>,
    free: Vec<u32>,
    by_key: HashMap<K, u32, KeyedState>,
    max: usize,
    /// The slot whose turn was last.
    turn: usize,
}

impl<K: Copy + Eq + Hash, V> Slots<K, V> {
    /// Room for at most `max` values.
    pub fn new(hash: KeyedState, max: usize) -> Self {
        Slots {
            values: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::with_hasher(hash),
            max,
            turn: 0,
        }
    }

    /// Sets how many there may be from now on; those that are there stay.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    pub fn max(&self) -> usize {
        self.max
    }

    /// How many more there may be.
    pub fn left(&self) -> usize {
        self.max.saturating_sub(self.by_key.len())
    }

    #[inline]
    pub fn get(&self, at: u32) -> Option<&V> {
        self.values.get(at as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut V> {
        self.values.get_mut(at as usize)?.as_deref_mut()
    }

    /// The slot of a key.
    pub fn find(&self, key: K) -> Option<u32> {
        self.by_key.get(&key).copied()
    }

    pub fn has(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    /// The value of a key.
    pub fn named(&self, key: K) -> Option<&V> {
        self.get(self.find(key)?)
    }

    /// The value of a key, and its slot.
    pub fn named_mut(&mut self, key: K) -> Option<(u32, &mut V)> {
        let at = self.find(key)?;
        Some((at, self.get_mut(at)?))
    }

    /// Gives a slot to the value of a key that has none.
    pub fn add(&mut self, key: K, value: Box<V>) -> u32 {
        let at = match self.free.pop() {
            Some(at) => {
                self.values[at as usize] = Some(value);
                at
            }
            None => {
                self.values.push(Some(value));
                self.values.len() as u32 - 1
            }
        };
        self.by_key.insert(key, at);
        at
    }

    /// Takes the value of a key out, and frees its slot.
    pub fn remove(&mut self, key: K) -> Option<(u32, Box<V>)> {
        let at = self.by_key.remove(&key)?;
        self.free.push(at);
        Some((at, self.values[at as usize].take()?))
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// How many slots there are: all are below this number.
    pub fn end(&self) -> usize {
        self.values.len()
    }

    /// The slots in use, in no order.
    pub fn used(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_key.values().copied()
    }

    /// All values with their slots, in the order of these.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        let values = (0..).zip(&self.values);
        values.filter_map(|(at, value)| Some((at, value.as_deref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut V)> {
        let values = (0..).zip(&mut self.values);
        values.filter_map(|(at, value)| Some((at, value.as_deref_mut()?)))
    }

    /// The values in at most `limit` slots from one on, and the next slot, if there is one.
    pub fn page(&self, from: usize, limit: usize) -> (impl Iterator<Item = &V>, Option<usize>) {
        shards::places(&self.values, from, limit)
    }

    /// The next slot in turn, also if nothing is in it. `None`: there is no slot at all.
    pub fn next_turn(&mut self) -> Option<u32> {
        if self.values.is_empty() {
            return None;
        }
        self.turn = (self.turn + 1) % self.values.len();
        Some(self.turn as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn slots() -> Slots<u64, u64> {
        Slots::new(KeyedState::new(1, 2), 50)
    }

    #[test]
    fn each_slot_has_its_turn_once_before_any_has_another() {
        let mut slots = slots();
        assert_eq!(slots.next_turn(), None);
        for key in 0..4 {
            slots.add(key, Box::new(key));
        }
        assert!(slots.remove(2).is_some());
        let turns: Vec<_> = (0..8).filter_map(|_| slots.next_turn()).collect();
        assert_eq!(turns, [1, 2, 3, 0, 1, 2, 3, 0]);
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_map_and_keeps_slots(steps in prop::collection::vec((any::<bool>(), 0u64..60), 0..500)) {
            let (mut slots, mut map) = (slots(), BTreeMap::new());
            for (value, (put, key)) in (0..).zip(steps) {
                if !put {
                    prop_assert_eq!(slots.remove(key).map(|(at, had)| (at, *had)), map.remove(&key));
                } else if !slots.has(key) && slots.left() > 0 {
                    map.insert(key, (slots.add(key, Box::new(value)), value));
                }
                prop_assert_eq!((slots.len(), slots.left()), (map.len(), 50 - map.len()));
                for (key, (at, value)) in &map {
                    prop_assert_eq!((slots.find(*key), slots.get(*at), slots.named(*key)), (Some(*at), Some(value), Some(value)));
                }
                prop_assert!(slots.end() <= 50);
                let mut listed: Vec<_> = slots.iter().map(|(at, value)| (at, *value)).collect();
                let mut known: Vec<_> = map.values().copied().collect();
                known.sort_unstable();
                prop_assert_eq!(&listed, &known);
                listed = slots.page(0, slots.end()).0.map(|value| (0, *value)).collect();
                prop_assert_eq!(listed.len(), map.len());
            }
        }
    }
}
