//! Changes of membership for a database: each changed (gateway, room) since the last call, and ended lives.
//!
//! Keys only: the present value is looked up when a key is taken, so a room that comes and goes is written once. A
//! change belongs to a life and ends with it, since the versions of the next life restart. Bounded; changes beyond
//! the bound are counted, and the database lacks them. Empty and idle unless requested.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;

use muster_transport::{KeyedState, Scope, NODES_MAX};

use crate::interest::Change;

/// Changes that were not taken yet.
pub struct ChangeQueue {
    lives: BTreeMap<u32, Life>,
    /// Total number of changes.
    len: usize,
    /// The gateway of the change taken last.
    taken: u32,
    /// The epoch up to which a gateway's lives are over.
    ended: BTreeMap<u32, u32>,
    /// Lives of which nothing is known anymore, without a report of their end.
    lost: BTreeMap<u32, u32>,
    max: usize,
    hash: KeyedState,
    pub dropped: u64,
}

/// A gateway's changes in one life.
struct Life {
    epoch: u32,
    /// For each changed room, the version of its last change.
    changed: HashMap<u64, u64, KeyedState>,
    order: VecDeque<u64>,
}

/// A changed room of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The gateway and its epoch.
    pub life: (u32, u32),
    pub room: u64,
    pub version: u64,
}

impl ChangeQueue {
    pub fn new(max: usize, hash: KeyedState) -> Self {
        ChangeQueue {
            lives: BTreeMap::new(),
            len: 0,
            taken: 0,
            ended: BTreeMap::new(),
            lost: BTreeMap::new(),
            max,
            hash,
            dropped: 0,
        }
    }

    /// Notes rooms changed in a gateway's life of this epoch.
    pub fn note(&mut self, epoch: u32, changes: &[Change], version: u64) {
        let hash = self.hash;
        for change in changes {
            let life = self.lives.entry(change.gateway).or_insert_with(|| Life {
                epoch,
                changed: HashMap::with_hasher(hash),
                order: VecDeque::new(),
            });
            if life.epoch != epoch {
                continue; // of an ended life; `end` removes the changes of earlier ones
            }
            if let Some(known) = life.changed.get_mut(&change.room) {
                *known = version.max(*known);
            } else if self.len >= self.max {
                self.dropped += 1;
            } else {
                life.changed.insert(change.room, version);
                life.order.push_back(change.room);
                self.len += 1;
            }
        }
    }

    /// Only a share of all rooms is tracked from now on; drops changes of the others.
    pub fn keep(&mut self, part: Scope) {
        for life in self.lives.values_mut() {
            let before = life.order.len();
            life.changed.retain(|room, _| part.has(*room));
            life.order.retain(|room| part.has(*room));
            self.len -= before - life.order.len();
        }
    }

    /// A gateway's lives up to this epoch are over.
    pub fn end(&mut self, gateway: u32, epoch: u32) {
        self.forget(gateway, epoch);
        if bounded(&self.ended, gateway) {
            let known = self.ended.entry(gateway).or_insert(epoch);
            *known = epoch.max(*known);
        } else {
            self.dropped += 1;
        }
    }

    /// Nothing is known anymore of a life that may continue elsewhere: it ends once the gateway is `removed`.
    pub fn lose(&mut self, gateway: u32, epoch: u32) {
        self.forget(gateway, epoch);
        if bounded(&self.lost, gateway) {
            self.lost.insert(gateway, epoch);
        } else {
            self.dropped += 1;
        }
    }

    /// A source reports the gateway again.
    pub fn find(&mut self, gateway: u32) {
        self.lost.remove(&gateway);
    }

    /// Ends lost lives whose gateway no node knows anymore.
    pub fn removed(&mut self, is_gone: impl Fn(u32) -> bool) {
        let (gone, lost) = std::mem::take(&mut self.lost)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(gateway, _)| is_gone(*gateway));
        self.lost = lost;
        gone.into_iter().for_each(|(gateway, epoch)| self.end(gateway, epoch));
    }

    fn forget(&mut self, gateway: u32, epoch: u32) {
        if self.lives.get(&gateway).is_some_and(|life| life.epoch <= epoch) {
            self.len -= self.lives.remove(&gateway).map_or(0, |life| life.order.len());
        }
    }

    pub fn take_ended(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.ended).into_iter().collect()
    }

    /// Takes the oldest change of the next gateway, in turn.
    pub fn take(&mut self) -> Option<Changed> {
        loop {
            let after = (Bound::Excluded(self.taken), Bound::Unbounded);
            let next = self.lives.range(after).next().or(self.lives.iter().next());
            let gateway = *next?.0;
            let life = self.lives.get_mut(&gateway)?;
            let Some(room) = life.order.pop_front() else {
                self.lives.remove(&gateway);
                continue;
            };
            self.taken = gateway;
            self.len -= 1;
            return Some(Changed {
                life: (gateway, life.epoch),
                room,
                version: life.changed.remove(&room)?,
            });
        }
    }

    pub fn len(&self) -> usize {
        self.len + self.ended.len()
    }
}

/// Whether there is space for a gateway.
fn bounded(of: &BTreeMap<u32, u32>, gateway: u32) -> bool {
    of.len() < NODES_MAX || of.contains_key(&gateway)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(gateway: u32, room: u64) -> Change {
        Change {
            gateway,
            room,
            check: 0,
            present: true,
        }
    }

    fn kept() -> ChangeQueue {
        ChangeQueue::new(2, KeyedState::new(1, 2))
    }

    fn changed(life: (u32, u32), room: u64, version: u64) -> Option<Changed> {
        Some(Changed { life, room, version })
    }

    #[test]
    fn a_room_is_queued_once_with_its_newest_version_and_overflow_is_counted() {
        let mut kept = kept();
        kept.note(1, &[change(1, 5), change(1, 6)], 3);
        kept.note(1, &[change(1, 5)], 4);
        kept.note(1, &[change(1, 7), change(2, 7)], 5);
        assert_eq!((kept.len(), kept.dropped), (2, 2));
        assert_eq!(kept.take(), changed((1, 1), 5, 4));
        assert_eq!(kept.take(), changed((1, 1), 6, 3));
        assert!(kept.take().is_none() && kept.len() == 0);
        kept.note(1, &[change(1, 7)], 6);
        assert_eq!(kept.take(), changed((1, 1), 7, 6));
    }

    #[test]
    fn gateways_take_turns() {
        let mut kept = ChangeQueue::new(9, KeyedState::new(1, 2));
        kept.note(1, &[change(1, 5), change(1, 6)], 3);
        kept.note(1, &[change(2, 5), change(2, 6)], 3);
        let taken = std::iter::from_fn(|| kept.take()).map(|changed| (changed.life.0, changed.room));
        assert_eq!(taken.collect::<Vec<_>>(), [(1, 5), (2, 5), (1, 6), (2, 6)]);
    }

    #[test]
    fn the_last_ended_life_is_reported_without_its_changes() {
        let mut kept = kept();
        kept.note(4, &[change(1, 5)], 9);
        kept.note(2, &[change(2, 5)], 9);
        kept.end(1, 4);
        kept.end(2, 1);
        kept.end(1, 3);
        assert_eq!(kept.take_ended(), [(1, 4), (2, 1)]);
        kept.note(5, &[change(1, 5)], 1);
        assert_eq!(kept.take(), changed((1, 5), 5, 1));
        assert_eq!(kept.take(), changed((2, 2), 5, 9));
        assert!(kept.take().is_none() && kept.len() == 0);
    }

    #[test]
    fn untracked_rooms_are_not_reported() {
        let mut kept = kept();
        kept.note(1, &[change(1, 4), change(1, 5)], 9);
        kept.keep(Scope::new(2, 1).unwrap());
        assert_eq!((kept.len(), kept.take()), (1, changed((1, 1), 5, 9)));
        assert!(kept.take().is_none() && kept.len() == 0);
    }

    #[test]
    fn a_life_that_was_lost_ends_once_its_gateway_is_removed() {
        let mut kept = kept();
        kept.note(4, &[change(1, 5)], 9);
        kept.lose(1, 4);
        kept.lose(2, 7);
        kept.find(2);
        assert!(kept.len() == 0);
        kept.removed(|gateway| gateway == 2);
        assert_eq!(kept.take_ended(), []);
        kept.removed(|gateway| gateway == 1);
        assert_eq!(kept.take_ended(), [(1, 4)]);
        kept.removed(|_| true);
        assert_eq!(kept.take_ended(), []);
    }
}
