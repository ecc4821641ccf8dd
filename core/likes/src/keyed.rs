//! Entries by key, each in a numbered slot.
//!
//! Owns the table and the slots; a freed slot is used again. Knows nothing of an entry but its key.

use hashbrown::{DefaultHashBuilder, HashSet, HashTable};
use std::hash::BuildHasher;

/// A value with a key that never changes.
pub(crate) trait Key {
    fn key(&self) -> &[u8];
}

pub(crate) struct Keyed<T> {
    hasher: DefaultHashBuilder,
    table: HashTable<u32>,
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Keyed<T> {
    fn default() -> Keyed<T> {
        Keyed {
            hasher: DefaultHashBuilder::default(),
            table: HashTable::new(),
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
        if self.table.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |&slot| self.key(slot) == key).copied()
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
        if let Ok(found) = self.table.find_entry(hash, |&other| other == slot) {
            found.remove();
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
        let (slots, hasher) = (&self.slots, &self.hasher);
        let hash_of = |&slot: &u32| hasher.hash_one(slots[slot as usize].as_ref().map_or(&[][..], Key::key));
        self.table.insert_unique(hash, slot, hash_of);
    }
}
