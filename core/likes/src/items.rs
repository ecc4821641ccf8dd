//! The items by key, each in a numbered slot.
//!
//! Owns keys, slots and the data of each item. Knows users only by dense id, and no ranking.

use crate::likers::Likers;
use crate::limits::NEWEST_MAX;
use crate::trend::Scores;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

#[derive(Default)]
pub(crate) struct Item {
    pub key: Box<[u8]>,
    pub likers: Likers,
    /// Newest last; only users who still like the item. Full if the item has enough likers: see
    /// [`Item::refill_newest`].
    pub newest: Vec<u32>,
    /// Offset of the last record that changed the item, plus 1: increases with each change, also across a deletion.
    pub modification: u64,
    /// The highest offset in a command, plus 1: the length in bits of the string that Redis would store.
    pub bits: u128,
    pub trends: Scores,
    /// Rankings besides the overall one.
    pub fields: Box<[u32]>,
    /// The result of a bit operation: neither ranked nor listed for its users.
    pub derived: bool,
    pub dirty: bool,
    /// The item waits to be reported as changed.
    pub told: bool,
}

impl Item {
    /// Adds likers behind the newest known ones, after some of these took their likes back. The time of a like is not
    /// kept: the users with the highest dense ids come first, since they came to the log last.
    pub fn refill_newest(&mut self) {
        let wanted = NEWEST_MAX.min(self.likers.len() as usize);
        if self.derived || self.newest.len() >= wanted {
            return;
        }
        let others = self.likers.iter_down().filter(|dense| !self.newest.contains(dense));
        let mut newest: Vec<u32> = others.take(wanted - self.newest.len()).collect();
        newest.reverse();
        newest.append(&mut self.newest);
        self.newest = newest;
    }
}

#[derive(Default)]
pub(crate) struct Items {
    hasher: DefaultHashBuilder,
    table: HashTable<u32>,
    slots: Vec<Option<Item>>,
    free: Vec<u32>,
}

impl Items {
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
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |&slot| self.key(slot) == key).copied()
    }

    pub fn get(&self, slot: u32) -> Option<&Item> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn by_key(&self, key: &[u8]) -> Option<&Item> {
        self.get(self.find(key)?)
    }

    pub fn get_mut(&mut self, slot: u32) -> &mut Item {
        self.slots[slot as usize].as_mut().expect("slot is in use")
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Item)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(slot, item)| Some((slot, item.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Item> {
        self.slots.iter_mut().flatten()
    }

    pub fn key(&self, slot: u32) -> &[u8] {
        self.slots[slot as usize].as_ref().map_or(&[], |item| &item.key)
    }

    pub fn likes(&self, slot: u32, dense: u32) -> bool {
        self.get(slot)
            .is_some_and(|item| !item.derived && item.likers.contains(dense))
    }

    /// Adds an item whose key does not exist yet.
    pub fn add(&mut self, item: Item) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let hash = self.hasher.hash_one(&item.key[..]);
        self.slots[slot as usize] = Some(item);
        let (slots, hasher) = (&self.slots, &self.hasher);
        let hash_of = |&slot: &u32| hasher.hash_one(slots[slot as usize].as_ref().map_or(&[][..], |item| &item.key));
        self.table.insert_unique(hash, slot, hash_of);
        slot
    }

    pub fn remove(&mut self, slot: u32) -> Item {
        let hash = self.hasher.hash_one(self.key(slot));
        if let Ok(entry) = self.table.find_entry(hash, |&other| other == slot) {
            entry.remove();
        }
        self.free.push(slot);
        self.slots[slot as usize].take().expect("slot is in use")
    }

    /// Restores slots from a snapshot.
    pub fn restore(&mut self, slots: u32, free: Vec<u32>, items: Vec<(u32, Item)>) {
        self.slots.resize_with(slots as usize, || None);
        for (slot, item) in items {
            self.free.push(slot);
            self.add(item);
        }
        self.free = free;
    }
}
