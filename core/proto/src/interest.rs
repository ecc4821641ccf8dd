//! Which gateways want which rooms, as routers and brokers see it: versions per (gateway, room), never one maximum.
//!
//! Owns views, snapshots and tombstones. The truth is at the gateway; any order of any multiset of updates gives the same
//! view (I-2), nothing of a lower epoch is applied (I-1). Knows no link.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::hash::KeyedState;
use crate::limits::NODES_MAX;
use crate::wire::record::Membership;

/// Tombstones kept per gateway; the oldest versions go first.
pub const TOMBSTONES_MAX: usize = 65_536;

/// One gateway's rooms.
struct View {
    epoch: u32,
    rooms: HashMap<u64, Known, KeyedState>,
    present: usize,
    snapshot: Option<HashSet<u64, KeyedState>>,
    loaded: bool,
    version: u64,
}

/// What a gateway said last of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    check: u64,
    version: u64,
    present: bool,
}

/// A room began or ceased to be wanted by a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    pub gateway: u32,
    pub room: u64,
    pub check: u64,
    pub present: bool,
}

/// All gateways' rooms.
pub struct Interest {
    views: BTreeMap<u32, View>,
    hash: KeyedState,
}

impl Interest {
    pub fn new(hash: KeyedState) -> Self {
        Interest {
            views: BTreeMap::new(),
            hash,
        }
    }

    fn view(&mut self, gateway: u32, epoch: u32, changes: &mut Vec<Change>) -> Option<&mut View> {
        let hash = self.hash;
        if self.views.get(&gateway).is_some_and(|view| view.epoch > epoch) {
            return None;
        }
        if self.views.len() >= NODES_MAX && !self.views.contains_key(&gateway) {
            return None;
        }
        if self.views.get(&gateway).is_some_and(|view| view.epoch < epoch) {
            self.drop_view(gateway, changes);
        }
        let fresh = || View {
            epoch,
            rooms: HashMap::with_hasher(hash),
            present: 0,
            snapshot: None,
            loaded: false,
            version: 0,
        };
        Some(self.views.entry(gateway).or_insert_with(fresh))
    }

    fn drop_view(&mut self, gateway: u32, changes: &mut Vec<Change>) {
        let Some(view) = self.views.remove(&gateway) else {
            return;
        };
        let rooms = view.rooms.iter().filter(|(_, known)| known.present);
        let mut gone: Vec<_> = rooms
            .map(|(room, known)| Change {
                gateway,
                room: *room,
                check: known.check,
                present: false,
            })
            .collect();
        gone.sort_unstable();
        changes.append(&mut gone);
    }

    /// A snapshot of a gateway's life begins; an earlier life of it ends. `false`: the life is over itself.
    pub fn begin(&mut self, gateway: u32, epoch: u32, version: u64, changes: &mut Vec<Change>) -> bool {
        let hash = self.hash;
        let Some(view) = self.view(gateway, epoch, changes) else {
            return false;
        };
        view.snapshot = Some(HashSet::with_hasher(hash));
        view.version = view.version.max(version);
        true
    }

    /// One room of a gateway, within a snapshot or after it. `false`: of an earlier life.
    pub fn apply(&mut self, gateway: u32, epoch: u32, membership: Membership, changes: &mut Vec<Change>) -> bool {
        let Some(view) = self.view(gateway, epoch, changes) else {
            return false;
        };
        let Membership {
            room,
            check,
            version,
            present,
        } = membership;
        if let Some(seen) = &mut view.snapshot {
            seen.insert(room);
        }
        view.version = view.version.max(version);
        let known = view.rooms.get(&room).copied();
        if known.is_some_and(|known| known.version >= version) {
            return true;
        }
        let new = Known {
            check,
            version,
            present,
        };
        view.rooms.insert(room, new);
        let was = known.filter(|known| known.present);
        if was.map(|was| was.check) != present.then_some(check) {
            // Another name under the same number is another room.
            let change = |known: Known| Change {
                gateway,
                room,
                check: known.check,
                present: known.present,
            };
            changes.extend(was.map(|was| change(Known { present: false, ..was })));
            changes.extend(present.then(|| change(new)));
            view.present = view.present + usize::from(present) - usize::from(was.is_some());
        }
        if view.rooms.len() - view.present > TOMBSTONES_MAX {
            // The newer half stays. By rank and not by distance: what a version says of itself bounds nothing.
            let gone = view.rooms.values().filter(|known| !known.present);
            let mut versions: Vec<u64> = gone.map(|known| known.version).collect();
            let (_, floor, _) = versions.select_nth_unstable(TOMBSTONES_MAX / 2);
            let floor = *floor;
            view.rooms.retain(|_, known| known.present || known.version > floor);
            if let Some(seen) = &mut view.snapshot {
                seen.retain(|room| view.rooms.contains_key(room));
            }
        }
        true
    }

    /// The snapshot that began is whole: rooms that it did not name and that are not newer are gone.
    pub fn end(&mut self, gateway: u32, epoch: u32, version: u64, changes: &mut Vec<Change>) -> bool {
        let Some(view) = self.view(gateway, epoch, changes) else {
            return false;
        };
        view.loaded = true;
        let Some(seen) = view.snapshot.take() else { return true };
        let mut gone = Vec::new();
        view.rooms.retain(|room, known| {
            let kept = seen.contains(room) || known.version > version;
            if !kept && known.present {
                gone.push(Change {
                    gateway,
                    room: *room,
                    check: known.check,
                    present: false,
                });
            }
            kept && (known.present || known.version > version)
        });
        view.present -= gone.len();
        gone.sort_unstable();
        changes.append(&mut gone);
        true
    }

    /// A gateway's life is over and no other has begun.
    pub fn gone(&mut self, gateway: u32, epoch: u32, changes: &mut Vec<Change>) {
        if self.views.get(&gateway).is_some_and(|view| view.epoch <= epoch) {
            self.drop_view(gateway, changes);
        }
    }

    /// Gateways known, each with its epoch and highest version.
    pub fn gateways(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        self.views
            .iter()
            .map(|(gateway, view)| (*gateway, view.epoch, view.version))
    }

    /// Whether anything is known of a gateway.
    pub fn has(&self, gateway: u32) -> bool {
        self.views.contains_key(&gateway)
    }

    /// Whether a whole snapshot of the gateway's present life has come.
    pub fn is_loaded(&self, gateway: u32) -> bool {
        self.views.get(&gateway).is_some_and(|view| view.loaded)
    }

    /// Whether a snapshot of the gateway has begun and not ended.
    pub fn is_open(&self, gateway: u32) -> bool {
        self.views.get(&gateway).is_some_and(|view| view.snapshot.is_some())
    }

    /// What is known of a gateway's rooms, tombstones included, sorted by room. What an open snapshot has not named yet comes
    /// apart.
    pub fn rooms_of(&self, gateway: u32) -> (Vec<Membership>, Vec<Membership>) {
        let Some(view) = self.views.get(&gateway) else {
            return Default::default();
        };
        let mut rooms: Vec<_> = view
            .rooms
            .iter()
            .map(|(room, known)| Membership {
                room: *room,
                check: known.check,
                version: known.version,
                present: known.present,
            })
            .collect();
        rooms.sort_unstable();
        rooms
            .into_iter()
            .partition(|known| view.snapshot.as_ref().is_none_or(|seen| seen.contains(&known.room)))
    }

    /// Whether anything is known of a gateway's room.
    pub fn knows(&self, gateway: u32, room: u64) -> bool {
        self.views
            .get(&gateway)
            .is_some_and(|view| view.rooms.contains_key(&room))
    }

    /// What is kept in all, tombstones included.
    pub fn kept(&self) -> usize {
        self.views.values().map(|view| view.rooms.len()).sum()
    }

    /// Every (gateway, room) that is wanted, sorted.
    pub fn wanted(&self) -> Vec<(u32, u64)> {
        let mut wanted = Vec::new();
        for (gateway, view) in &self.views {
            wanted.extend(
                view.rooms
                    .iter()
                    .filter(|(_, known)| known.present)
                    .map(|(room, _)| (*gateway, *room)),
            );
        }
        wanted.sort_unstable();
        wanted
    }

    /// What a gateway wants: rooms, each with the second half of its name's hash.
    pub fn wanted_by(&self, gateway: u32) -> impl Iterator<Item = (u64, u64)> + '_ {
        let rooms = self.views.get(&gateway).into_iter().flat_map(|view| &view.rooms);
        rooms
            .filter(|(_, known)| known.present)
            .map(|(room, known)| (*room, known.check))
    }

    /// Rooms wanted in all, counted once per gateway.
    pub fn len(&self) -> usize {
        self.views.values().map(|view| view.present).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn interest() -> Interest {
        Interest::new(KeyedState::new(1, 2))
    }

    fn said(room: u64, version: u64, present: bool) -> Membership {
        let check = !room;
        Membership {
            room,
            check,
            version,
            present,
        }
    }

    #[test]
    fn a_new_life_clears_the_old_one_and_an_old_one_changes_nothing() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        interest.apply(1, 5, said(10, 1, true), &mut changes);
        assert!(interest.begin(1, 6, 0, &mut changes));
        assert_eq!(interest.wanted(), []);
        assert!(!interest.apply(1, 5, said(11, 9, true), &mut changes));
        assert_eq!(changes.len(), 2);
    }

    #[test]
    fn a_snapshot_removes_what_it_does_not_name() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        interest.apply(1, 1, said(10, 1, true), &mut changes);
        interest.apply(1, 1, said(11, 2, true), &mut changes);
        interest.begin(1, 1, 5, &mut changes);
        interest.apply(1, 1, said(11, 2, true), &mut changes);
        interest.apply(1, 1, said(12, 7, true), &mut changes);
        interest.end(1, 1, 5, &mut changes);
        assert_eq!(interest.wanted(), [(1, 11), (1, 12)]);
        assert!(interest.is_loaded(1));
    }

    #[test]
    fn versions_that_lie_do_not_keep_tombstones_for_ever() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        for room in 0..3 * TOMBSTONES_MAX as u64 {
            interest.apply(1, 1, said(room, 1 << 62, false), &mut changes);
        }
        let (rooms, _) = interest.rooms_of(1);
        assert!(rooms.len() <= TOMBSTONES_MAX, "{}", rooms.len());
    }

    #[test]
    fn a_snapshot_without_end_is_remembered_as_far_as_its_rooms_are() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        interest.begin(1, 1, 1, &mut changes);
        interest.apply(1, 1, said(1, 1, true), &mut changes);
        for room in 2..4 * TOMBSTONES_MAX as u64 {
            interest.apply(1, 1, said(room, room, false), &mut changes);
        }
        let seen = interest.views[&1].snapshot.as_ref().map_or(0, HashSet::len);
        assert!(seen <= 1 + TOMBSTONES_MAX, "{seen} rooms");
        interest.end(1, 1, 2, &mut changes);
        assert_eq!(interest.wanted(), [(1, 1)]);
    }

    #[test]
    fn gateways_without_end_are_not_kept() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        let taken = (0..2 * NODES_MAX as u32).filter(|node| interest.begin(*node, 1, 1, &mut changes));
        assert_eq!(taken.count(), NODES_MAX);
        assert!(interest.begin(1, 2, 1, &mut changes), "who is known lives on");
    }

    #[test]
    fn another_name_under_the_same_number_is_another_room() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        let one = said(10, 1, true);
        let other = Membership {
            check: 5,
            version: 3,
            ..one
        };
        interest.apply(1, 1, one, &mut changes);
        interest.apply(1, 1, other, &mut changes);
        let told: Vec<_> = changes.iter().map(|change| (change.check, change.present)).collect();
        assert_eq!(told, [(one.check, true), (one.check, false), (5, true)]);
        assert_eq!(interest.len(), 1);
    }

    proptest! {
        /// Any order of any multiset of updates gives the view of the highest versions (I-2).
        #[test]
        fn updates_commute(updates in prop::collection::vec((0u64..6, 1u64..40), 1..60), order in any::<u64>()) {
            // A version says one thing: derive `present` from it.
            let mut shuffled = updates.clone();
            let mut dice = crate::node::Dice::new(order);
            for index in (1..shuffled.len()).rev() {
                shuffled.swap(index, dice.below(index as u64 + 1) as usize);
            }
            shuffled.extend(updates.iter().take(10));
            let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
            for (room, version) in &updates {
                let known = newest.entry(*room).or_default();
                *known = (*known).max(*version);
            }
            let (mut interest, mut changes) = (interest(), Vec::new());
            for (room, version) in shuffled {
                interest.apply(1, 1, said(room, version, version % 2 == 0), &mut changes);
            }
            let expected: Vec<_> = newest.into_iter().filter(|(_, version)| version % 2 == 0).map(|(room, _)| (1, room)).collect();
            prop_assert_eq!(interest.wanted(), expected.clone());
            let mut replayed = HashSet::new();
            for change in changes {
                if change.present { prop_assert!(replayed.insert(change.room)) } else { prop_assert!(replayed.remove(&change.room)) }
            }
            prop_assert_eq!(replayed.len(), expected.len());
        }
    }
}
