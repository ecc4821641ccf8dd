//! Changes of membership that a database is to learn: which (gateway, room) changed since it was asked last, and whose life ended.
//!
//! Keys only: what is true of one is looked up when it is taken, so a room that comes and goes is written once. Bounded; what
//! there is no place for is counted, and the database lacks it. Empty and idle unless somebody asked for it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::hash::KeyedState;
use crate::interest::Change;
use crate::limits::NODES_MAX;

/// What changed and was not taken yet.
pub struct Kept {
    /// The version that the last change of a room came with.
    changed: HashMap<(u32, u64), u64, KeyedState>,
    order: VecDeque<(u32, u64)>,
    /// Up to which epoch a gateway's lives are over.
    ended: BTreeMap<u32, u32>,
    max: usize,
    pub dropped: u64,
}

impl Kept {
    pub fn new(max: usize, hash: KeyedState) -> Self {
        Kept {
            changed: HashMap::with_hasher(hash),
            order: VecDeque::new(),
            ended: BTreeMap::new(),
            max,
            dropped: 0,
        }
    }

    pub fn note(&mut self, changes: &[Change], version: u64) {
        for change in changes {
            let key = (change.gateway, change.room);
            if let Some(known) = self.changed.get_mut(&key) {
                *known = version.max(*known);
            } else if self.changed.len() >= self.max {
                self.dropped += 1;
            } else {
                self.changed.insert(key, version);
                self.order.push_back(key);
            }
        }
    }

    /// A gateway's lives up to this one are over.
    pub fn end(&mut self, gateway: u32, epoch: u32) {
        if self.ended.len() < NODES_MAX || self.ended.contains_key(&gateway) {
            let known = self.ended.entry(gateway).or_insert(epoch);
            *known = epoch.max(*known);
        } else {
            self.dropped += 1;
        }
    }

    pub fn take_ended(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.ended).into_iter().collect()
    }

    /// The (gateway, room) that waits longest, with its version.
    pub fn take(&mut self) -> Option<((u32, u64), u64)> {
        let key = self.order.pop_front()?;
        self.changed.remove(&key).map(|version| (key, version))
    }

    pub fn len(&self) -> usize {
        self.changed.len() + self.ended.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(room: u64) -> Change {
        Change {
            gateway: 1,
            room,
            check: 0,
            present: true,
        }
    }

    #[test]
    fn a_room_waits_once_with_its_newest_version_and_what_has_no_place_is_counted() {
        let mut kept = Kept::new(2, KeyedState::new(1, 2));
        kept.note(&[change(5), change(6)], 3);
        kept.note(&[change(5)], 4);
        kept.note(&[change(7)], 5);
        assert_eq!((kept.len(), kept.dropped), (2, 1));
        assert_eq!((kept.take(), kept.take()), (Some(((1, 5), 4)), Some(((1, 6), 3))));
        assert!(kept.take().is_none() && kept.is_empty());
        kept.note(&[change(7)], 6);
        assert_eq!(kept.take(), Some(((1, 7), 6)));
    }

    #[test]
    fn of_lives_that_ended_the_last_is_told() {
        let mut kept = Kept::new(2, KeyedState::new(1, 2));
        kept.end(1, 4);
        kept.end(2, 1);
        kept.end(1, 3);
        assert_eq!(kept.take_ended(), [(1, 4), (2, 1)]);
        assert!(kept.is_empty());
    }
}
