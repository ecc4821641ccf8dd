//! The items, each in a numbered slot.
//!
//! Owns the data of each item. Knows users only by dense id, and no ranking.

use crate::keyed::{Key, Keyed};
use crate::likers::Likers;
use crate::limits::NEWEST_MAX;
use crate::trend::Scores;

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

pub(crate) type Items = Keyed<Item>;

impl Key for Item {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

impl Items {
    pub fn likes(&self, slot: u32, dense: u32) -> bool {
        self.get(slot)
            .is_some_and(|item| !item.derived && item.likers.contains(dense))
    }
}
