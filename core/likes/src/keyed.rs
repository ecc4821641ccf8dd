//! Entries by key, each in a numbered slot.
//!
//! Owns the table and the slots; a freed slot is used again. A table that is full is replaced by one twice as large, to
//! which a few entries move with each new one, so that none waits until millions are moved. Knows nothing of an entry but
//! its key.

use hashbrown::{DefaultHashBuilder, HashSet, HashTable};
use std::hash::BuildHasher;

/// A value with a key that never changes.
pub(crate) trait Key {
    fn key(&self) -> &[u8];
}

/// Slots that are looked at with each new entry while entries move to a larger table. That one has room for as many new
/// entries as there are old ones.
const MOVED: u32 = 8;

pub(crate) struct Keyed<T> {
    hasher: DefaultHashBuilder,
    table: HashTable<u32>,
    /// The table before the last growth, with entries of slots from `next` on.
    old: HashTable<u32>,
    next: u32,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Keyed<T> {
    fn default() -> Keyed<T> {
        Keyed {
            hasher: DefaultHashBuilder::default(),
            table: HashTable::new(),
            old: HashTable::new(),
            next: 0,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T: Key> Keyed<T> {
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn free(&self) -> &[u32] {
        &self.free
    }

    pub fn find(&self, key: &[u8]) -> Option<u32> {
        if self.table.is_empty() && self.old.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        let same = |&slot: &u32| self.key(slot) == key;
        let found = self.table.find(hash, same);
        found.or_else(|| self.old.find(hash, same)).copied()
    }

    pub fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn by_key(&self, key: &[u8]) -> Option<&T> {
        self.get(self.find(key)?)
    }

    pub fn get_mut(&mut self, slot: u32) -> &mut T {
        self.slots[slot as usize].as_mut().expect("slot is in use")
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    pub fn key(&self, slot: u32) -> &[u8] {
        self.slots[slot as usize].as_ref().map_or(&[], Key::key)
    }

    /// Adds an entry whose key does not exist yet.
    pub fn add(&mut self, entry: T) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.put(slot, entry);
        slot
    }

    pub fn remove(&mut self, slot: u32) -> T {
        let hash = self.hasher.hash_one(self.key(slot));
        for table in [&mut self.table, &mut self.old] {
            if let Ok(found) = table.find_entry(hash, |&other| other == slot) {
                found.remove();
                break;
            }
        }
        self.free.push(slot);
        self.slots[slot as usize].take().expect("slot is in use")
    }

    /// Restores slots from a snapshot.
    pub fn restore(&mut self, slots: u32, free: Vec<u32>, entries: Vec<(u32, T)>) {
        self.slots.resize_with(slots as usize, || None);
        for (slot, entry) in entries {
            self.put(slot, entry);
        }
        self.free = free;
    }

    /// Restores one entry from a snapshot; `false` and no change if its slot or its key is taken. [`Keyed::restored`]
    /// follows the last one.
    pub fn restore_one(&mut self, slot: u32, entry: T) -> bool {
        if self.get(slot).is_some() || self.find(entry.key()).is_some() {
            return false;
        }
        if slot >= self.slots() {
            self.slots.resize_with(slot as usize + 1, || None);
        }
        self.put(slot, entry);
        true
    }

    /// All entries are restored: the other slots are free.
    pub fn restored(&mut self) {
        self.free = (0..self.slots())
            .rev()
            .filter(|&slot| self.get(slot).is_none())
            .collect();
    }

    /// As [`Keyed::restored`], with the same slots free in the same order as before; `false` and no change if the entries
    /// have other slots.
    pub fn restored_as(&mut self, slots: u32, free: Vec<u32>) -> bool {
        let distinct: HashSet<u32> = free.iter().copied().collect();
        let is_free = |slot: &u32| *slot < slots && self.get(*slot).is_none();
        let used = self.slots.iter().flatten().count();
        if distinct.len() != free.len() || !free.iter().all(is_free) || used + free.len() != slots as usize {
            return false;
        }
        self.slots.resize_with(slots as usize, || None);
        self.free = free;
        true
    }

    fn put(&mut self, slot: u32, entry: T) {
        let hash = self.hasher.hash_one(entry.key());
        self.slots[slot as usize] = Some(entry);
        let entries = self.table.len() + self.old.len();
        if entries >= self.table.capacity() {
            self.grow(2 * entries.max(4));
        }
        self.insert(hash, slot);
        self.move_on();
    }

    /// Puts a table for this many entries in the place of the full one.
    fn grow(&mut self, capacity: usize) {
        let full = std::mem::replace(&mut self.table, HashTable::with_capacity(capacity));
        // Empty, unless most slots are free: then it is small.
        for slot in std::mem::replace(&mut self.old, full) {
            self.insert(self.hasher.hash_one(self.key(slot)), slot);
        }
        self.next = 0;
    }

    fn insert(&mut self, hash: u64, slot: u32) {
        let room = |_: &u32| unreachable!("a table has room for an entry that is inserted");
        self.table.insert_unique(hash, slot, room);
    }

    /// Moves the entries of the next slots from the old table.
    fn move_on(&mut self) {
        if self.old.is_empty() {
            return;
        }
        for slot in self.next..self.slots().min(self.next.saturating_add(MOVED)) {
            self.next = slot + 1;
            let Some(entry) = self.get(slot) else { continue };
            let hash = self.hasher.hash_one(entry.key());
            if let Ok(found) = self.old.find_entry(hash, |&other| other == slot) {
                found.remove();
                self.insert(hash, slot);
            }
            if self.old.is_empty() {
                break;
            }
        }
        if self.old.is_empty() {
            self.old = HashTable::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    struct Entry(Vec<u8>);

    impl Key for Entry {
        fn key(&self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    fn a_table_grows_though_its_last_growth_is_not_over() {
        let mut keyed = Keyed::<Entry>::default();
        keyed.slots.resize_with(100_000, || None);
        keyed.free = (0..100_000).collect(); // the last slots are used first, and entries move by their slots from 0 on
        let key = |number: u32| number.to_be_bytes().to_vec();
        for number in 0..5_000 {
            keyed.add(Entry(key(number)));
        }
        assert!((0..5_000).all(|number| keyed.find(&key(number)) == Some(99_999 - number)));
        assert_eq!(keyed.table.len() + keyed.old.len(), 5_000);
    }

    proptest! {
        #[test]
        fn entries_are_found_while_their_table_grows(keys in prop::collection::vec((0u16..2_000, any::<bool>()), 0..6_000)) {
            let (mut keyed, mut model) = (Keyed::<Entry>::default(), HashMap::new());
            for (number, added) in keys {
                let key = number.to_string().into_bytes();
                let left = keyed.old.len();
                match (added, model.get(&number)) {
                    (true, None) => {
                        model.insert(number, keyed.add(Entry(key.clone())));
                        let moved = left.saturating_sub(keyed.old.len());
                        prop_assert!(moved <= MOVED as usize, "{moved} of {left} entries moved at once");
                    }
                    (false, Some(&slot)) => {
                        keyed.remove(slot);
                        model.remove(&number);
                    }
                    _ => {}
                }
                prop_assert_eq!(keyed.find(&key), model.get(&number).copied());
                prop_assert_eq!(keyed.table.len() + keyed.old.len(), model.len());
            }
            for number in 0..2_000 {
                prop_assert_eq!(keyed.find(number.to_string().as_bytes()), model.get(&number).copied());
            }
        }
    }
}
