//! The interest of gateways in rooms, as routers and brokers see it: a version per (gateway, room), never one
//! maximum.
//!
//! Owns views, snapshots and how much of each is complete. The truth is at the gateway. Reports of several sources,
//! in any order, give the newest view (I-2), and a lower epoch changes nothing (I-1). Knows no link.
//!
//! A source reports a gateway's rooms within a scope by a snapshot, then by every change in order. So after a
//! snapshot everything up to its version is known, and each later change of that source raises it: the *whole
//! version* of the scope. A report that is not newer is ignored, so nothing is kept of unwanted rooms.

use std::collections::{BTreeMap, HashSet};

use muster_transport::{KeyedState, Scope, NODES_MAX};

use crate::shards::Shards;
use crate::wire::record::Membership;

/// Maximum number of rooms that an open snapshot remembers, beyond two per known room, before it is compacted.
const SEEN_SPARE: usize = 1_024;

/// The rooms that one gateway wants.
struct View {
    epoch: u32,
    rooms: Shards<Known>,
    /// The version up to which everything is known, by scope; no scope is contained in another with at least its
    /// version.
    wholes: Vec<(Scope, u64)>,
    feeds: Vec<Feed>,
}

/// A gateway's latest report of a room.
#[derive(Clone, Copy)]
struct Known {
    check: u64,
    version: u64,
}

/// One source's reports of a gateway.
struct Feed {
    source: u32,
    scope: Scope,
    /// The source's snapshot, until it ends.
    open: Option<Snapshot>,
}

struct Snapshot {
    version: u64,
    seen: HashSet<u64, KeyedState>,
}

/// A gateway started or stopped wanting a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    pub gateway: u32,
    pub room: u64,
    pub check: u64,
    pub present: bool,
}

/// A page of all wanted (gateway, room) pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub wanted: Vec<(u32, u64)>,
    /// The gateway and slot at which the next page starts, if there may be more.
    pub next: Option<(u32, u64)>,
    /// Number of rooms and tables scanned.
    pub visited: usize,
}

/// The effect of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Ignored: it belongs to a former life, or its source has sent no snapshot.
    Stale,
    /// Part of a snapshot that has not ended yet.
    Open,
    /// It was known already.
    Known,
    /// It adds something new.
    News,
}

/// All gateways' rooms.
pub struct Interest {
    /// The share of rooms that is tracked; reports of other rooms are ignored.
    part: Scope,
    views: BTreeMap<u32, View>,
    hash: KeyedState,
    len: usize,
}

impl View {
    /// The version up to which everything about a room is known.
    fn whole_of(&self, room: u64) -> Option<u64> {
        let having = self.wholes.iter().filter(|(scope, _)| scope.has(room));
        having.map(|(_, version)| *version).max()
    }

    fn whole(&self, part: Scope) -> Option<u64> {
        let having = self.wholes.iter().filter(|(scope, _)| part.within(*scope));
        having.map(|(_, version)| *version).max()
    }

    fn is_known(&self, part: Scope, version: u64) -> bool {
        self.whole(part).is_some_and(|whole| version <= whole)
    }

    /// Everything about a scope is known up to a higher version than before.
    fn grow(&mut self, part: Scope, version: u64) {
        if let [(scope, whole)] = self.wholes.as_mut_slice() {
            if *scope == part {
                *whole = version;
                return;
            }
        }
        self.wholes
            .retain(|(scope, whole)| !(scope.within(part) && *whole <= version));
        self.wholes.push((part, version));
    }
}

/// Notes a gateway's report of a room, if it is newer than the known one.
fn put(view: &mut View, gateway: u32, membership: &Membership, changes: &mut Vec<Change>) {
    let Membership {
        room,
        check,
        version,
        present,
    } = *membership;
    let change = |check, present| Change {
        gateway,
        room,
        check,
        present,
    };
    let new = Known { check, version };
    let had = match present {
        true => view.rooms.get_or_insert(room, new),
        false => view.rooms.get_mut(room),
    };
    match had {
        Some(known) if known.version >= version => {}
        Some(known) if present => {
            // The gateway left meanwhile and wants the room again; or the name changed, and this is another room.
            let was = std::mem::replace(known, new).check;
            changes.extend([change(was, false), change(check, true)]);
        }
        Some(_) => changes.extend(view.rooms.remove(room).map(|known| change(known.check, false))),
        None if present => changes.push(change(check, true)),
        None => {}
    }
}

impl Interest {
    pub fn new(hash: KeyedState) -> Self {
        Interest {
            part: Scope::ALL,
            views: BTreeMap::new(),
            hash,
            len: 0,
        }
    }

    /// Tracks only a share of all rooms from now on; forgets others, which other nodes track.
    pub fn keep(&mut self, part: Scope) {
        self.part = part;
        for view in self.views.values_mut() {
            let before = view.rooms.len();
            view.rooms.retain(|room, _| part.has(room));
            self.len -= before - view.rooms.len();
            for (scope, version) in std::mem::take(&mut view.wholes) {
                if let Some(scope) = scope.meet(part).filter(|scope| !view.is_known(*scope, version)) {
                    view.grow(scope, version);
                }
            }
            view.feeds.retain_mut(|feed| {
                let met = feed.scope.meet(part);
                feed.scope = met.unwrap_or(feed.scope);
                met.is_some()
            });
        }
    }

    fn drop_view(&mut self, gateway: u32, changes: &mut Vec<Change>) {
        self.clear(gateway, Scope::ALL, changes);
        self.views.remove(&gateway);
    }

    /// Forgets everything about a share of a gateway's rooms.
    fn clear(&mut self, gateway: u32, part: Scope, changes: &mut Vec<Change>) {
        let Some(view) = self.views.get_mut(&gateway) else {
            return;
        };
        let before = view.rooms.len();
        let mut gone = Vec::new();
        view.rooms.retain(|room, known| {
            if part.has(room) {
                gone.push(Change {
                    gateway,
                    room,
                    check: known.check,
                    present: false,
                });
            }
            !part.has(room)
        });
        self.len -= before - view.rooms.len();
        view.wholes.retain(|(scope, _)| scope.meet(part).is_none());
        view.feeds.retain(|feed| feed.scope.meet(part).is_none());
        gone.sort_unstable();
        changes.append(&mut gone);
    }

    /// A source's snapshot of a gateway's life begins; an earlier life ends. `false`: this life is over itself.
    pub fn begin(
        &mut self,
        source: u32,
        (gateway, epoch): (u32, u32),
        (scope, version): (Scope, u64),
        changes: &mut Vec<Change>,
    ) -> bool {
        let (hash, full) = (self.hash, self.views.len() >= NODES_MAX);
        match self.views.get_mut(&gateway) {
            Some(view) if view.epoch > epoch => return false,
            Some(view) if view.epoch < epoch => self.drop_view(gateway, changes),
            None if full => return false,
            _ => {}
        }
        let view = self.views.entry(gateway).or_insert_with(|| View {
            epoch,
            rooms: Shards::new(hash),
            wholes: Vec::new(),
            feeds: Vec::new(),
        });
        let Some(scope) = scope.meet(self.part) else {
            return true;
        };
        view.feeds
            .retain(|feed| feed.source != source || (feed.open.is_none() && feed.scope != scope));
        let seen = HashSet::with_hasher(hash);
        view.feeds.push(Feed {
            source,
            scope,
            open: Some(Snapshot { version, seen }),
        });
        true
    }

    /// One room of a gateway, within a source's snapshot or after it.
    pub fn apply(
        &mut self,
        source: u32,
        (gateway, epoch): (u32, u32),
        membership: &Membership,
        changes: &mut Vec<Change>,
    ) -> Taken {
        let Membership { room, version, .. } = *membership;
        let Some(view) = self.views.get_mut(&gateway).filter(|view| view.epoch == epoch) else {
            return Taken::Stale;
        };
        let (before, whole) = (view.rooms.len(), view.whole_of(room));
        let of_source = |feed: &&Feed| feed.source == source && feed.scope.has(room);
        // A source that once reported more than this share is no longer a source for the rest.
        let feeds = view.feeds.iter().filter(of_source);
        let Some(feed) = feeds.max_by_key(|feed| (feed.open.is_some(), feed.scope.part().0)) else {
            return Taken::Stale;
        };
        let scope = feed.scope;
        let stale = whole.is_some_and(|whole| version <= whole);
        let taken = match &feed.open {
            // A scope that is complete beyond the snapshot gets nothing from it.
            Some(open) if view.is_known(scope, open.version) => Taken::Open,
            Some(_) => {
                if !stale || view.rooms.contains(room) {
                    put(view, gateway, membership, changes);
                    note_seen(view, source, room);
                }
                Taken::Open
            }
            None if stale => Taken::Known,
            None => {
                put(view, gateway, membership, changes);
                view.grow(scope, version);
                Taken::News
            }
        };
        self.len = self.len + view.rooms.len() - before;
        taken
    }

    /// A source's snapshot is complete: rooms that it did not name and that are not newer are gone.
    pub fn end(
        &mut self,
        source: u32,
        (gateway, epoch): (u32, u32),
        (scope, version): (Scope, u64),
        changes: &mut Vec<Change>,
    ) -> Taken {
        let Some(view) = self.views.get_mut(&gateway).filter(|view| view.epoch == epoch) else {
            return Taken::Stale;
        };
        let Some(scope) = scope.meet(self.part) else {
            return Taken::Stale;
        };
        let began = |feed: &&mut Feed| {
            let open = feed.open.as_ref().is_some_and(|open| open.version == version);
            feed.source == source && feed.scope == scope && open
        };
        let Some(open) = view.feeds.iter_mut().find(began).and_then(|feed| feed.open.take()) else {
            return Taken::Stale;
        };
        let wider = |feed: &Feed| feed.source == source && feed.scope != scope && scope.within(feed.scope);
        let narrowed = view.feeds.iter().any(wider);
        view.feeds.retain(|feed| !wider(feed));
        if let Some(whole) = view.whole(scope).filter(|whole| version <= *whole) {
            if narrowed {
                // Listeners of this node must learn that it covers only this share from now on.
                view.wholes.push((scope, whole));
                return Taken::News;
            }
            return Taken::Known;
        }
        let before = view.rooms.len();
        let mut gone = Vec::new();
        view.rooms.retain(|room, known| {
            let outside = !scope.has(room) || known.version > version;
            let kept = outside || open.seen.contains(&room);
            if !kept {
                gone.push(Change {
                    gateway,
                    room,
                    check: known.check,
                    present: false,
                });
            }
            kept
        });
        self.len -= before - view.rooms.len();
        view.grow(scope, version);
        gone.sort_unstable();
        changes.append(&mut gone);
        Taken::News
    }

    /// A remembered membership of a gateway's life that no gateway has confirmed. It holds until everything about the
    /// room is known, and never against a source's report. Returns whether it holds now.
    pub fn hint(&mut self, (gateway, epoch): (u32, u32), membership: &Membership, changes: &mut Vec<Change>) -> bool {
        let (hash, full) = (self.hash, self.views.len() >= NODES_MAX);
        match self.views.get(&gateway) {
            Some(view) if view.epoch > epoch => return false,
            Some(view) if view.epoch < epoch && !(view.feeds.is_empty() && view.wholes.is_empty()) => return false,
            Some(view) if view.epoch < epoch => self.drop_view(gateway, changes),
            None if full => return false,
            _ => {}
        }
        let view = self.views.entry(gateway).or_insert_with(|| View {
            epoch,
            rooms: Shards::new(hash),
            wholes: Vec::new(),
            feeds: Vec::new(),
        });
        let room = membership.room;
        if !membership.present || !self.part.has(room) || view.whole_of(room).is_some() || view.rooms.contains(room) {
            return false;
        }
        put(view, gateway, membership, changes);
        self.len += 1;
        true
    }

    /// A source has left; an incomplete snapshot counts as far as it arrived.
    pub fn leave(&mut self, source: u32) {
        for view in self.views.values_mut() {
            view.feeds.retain(|feed| feed.source != source);
        }
    }

    /// A gateway's life is over, for a share of its rooms, and no other life has begun.
    pub fn gone(&mut self, gateway: u32, epoch: u32, part: Scope, changes: &mut Vec<Change>) {
        if self.views.get(&gateway).is_some_and(|view| view.epoch <= epoch) {
            self.clear(gateway, part, changes);
            let empty = |view: &View| view.rooms.is_empty() && view.wholes.is_empty() && view.feeds.is_empty();
            if self.views.get(&gateway).is_some_and(empty) {
                self.views.remove(&gateway);
            }
        }
    }

    /// Gateways known, each with its epoch.
    pub fn gateways(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.views.iter().map(|(gateway, view)| (*gateway, view.epoch))
    }

    /// The newest life known of a gateway.
    pub fn epoch_of(&self, gateway: u32) -> Option<u32> {
        self.views.get(&gateway).map(|view| view.epoch)
    }

    /// For each scope of a gateway's rooms, the version up to which everything is known.
    pub fn wholes(&self, gateway: u32) -> impl Iterator<Item = (Scope, u64)> + '_ {
        let view = self.views.get(&gateway);
        view.into_iter().flat_map(|view| view.wholes.iter().copied())
    }

    /// Whether a complete snapshot of a share of the gateway's rooms has arrived in its present life.
    pub fn is_loaded(&self, gateway: u32, part: Scope) -> bool {
        self.views.get(&gateway).is_some_and(|view| view.whole(part).is_some())
    }

    /// The rooms that a gateway wants within a scope.
    pub fn rooms_of(&self, gateway: u32, scope: Scope) -> impl Iterator<Item = Membership> + '_ {
        let rooms = self.views.get(&gateway).into_iter().flat_map(|view| view.rooms.iter());
        rooms
            .filter(move |(room, _)| scope.has(*room))
            .map(|(room, known)| Membership {
                room,
                check: known.check,
                version: known.version,
                present: true,
            })
    }

    /// A gateway's report of a room that it wants.
    pub fn known(&self, gateway: u32, room: u64) -> Option<Membership> {
        let known = self.views.get(&gateway)?.rooms.get(room)?;
        Some(Membership {
            room,
            check: known.check,
            version: known.version,
            present: true,
        })
    }

    /// The second half of the hash of the name by which a gateway wants a room, if it does.
    pub fn wants(&self, gateway: u32, room: u64) -> Option<u64> {
        Some(self.views.get(&gateway)?.rooms.get(room)?.check)
    }

    /// The gateways that want a room of that name.
    pub fn who_wants(&self, room: u64, check: u64) -> impl Iterator<Item = u32> + '_ {
        let gateways = self.views.keys().copied();
        gateways.filter(move |gateway| self.wants(*gateway, room) == Some(check))
    }

    /// All wanted (gateway, room) pairs, sorted.
    pub fn wanted(&self) -> Vec<(u32, u64)> {
        let views = self.views.iter();
        let mut wanted: Vec<_> = views
            .flat_map(|(gateway, view)| view.rooms.iter().map(|(room, _)| (*gateway, room)))
            .collect();
        wanted.sort_unstable();
        wanted
    }

    /// At most `limit` of these pairs, in arbitrary order, from a (gateway, slot) on; start with (0, 0). The cost
    /// depends on the limit and not on the number of pairs, so a page may be short though there is a next one.
    pub fn page(&self, (gateway, place): (u32, u64), limit: usize) -> Page {
        let mut page = Page::default();
        let mut from = Some(place);
        for (at, view) in self.views.range(gateway..) {
            let begin = from.take().filter(|_| *at == gateway).unwrap_or(0);
            let left = limit.saturating_sub(page.visited).min(limit - page.wanted.len());
            if left == 0 {
                page.next = Some((*at, begin));
                return page;
            }
            let of_view = view.rooms.page(begin, left);
            page.visited += of_view.visited;
            page.wanted.extend(of_view.rooms.iter().map(|room| (*at, *room)));
            if let Some(place) = of_view.next {
                page.next = Some((*at, place));
                return page;
            }
        }
        page
    }

    /// Number of wanted rooms, counted once per gateway.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The source's open snapshot has named a room.
fn note_seen(view: &mut View, source: u32, room: u64) {
    let View { rooms, feeds, .. } = view;
    let open = feeds.iter_mut().filter(|feed| feed.source == source);
    let Some(open) = open.filter_map(|feed| feed.open.as_mut()).next() else {
        return;
    };
    open.seen.insert(room);
    if open.seen.len() > 2 * rooms.len() + SEEN_SPARE {
        open.seen.retain(|room| rooms.contains(*room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LIFE: (u32, u32) = (1, 1);

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

    /// One source's snapshot of all rooms, from begin to end.
    fn snapshot(interest: &mut Interest, source: u32, version: u64, rooms: &[(u64, u64)]) -> Vec<Change> {
        let (scope, mut changes) = ((Scope::ALL, version), Vec::new());
        assert!(interest.begin(source, LIFE, scope, &mut changes));
        for (room, version) in rooms {
            interest.apply(source, LIFE, &said(*room, *version, true), &mut changes);
        }
        interest.end(source, LIFE, scope, &mut changes);
        changes
    }

    #[test]
    fn a_source_of_one_share_adds_nothing_about_the_rest() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        snapshot(&mut interest, 7, 5, &[(10, 1), (11, 2)]);
        let half = Scope::new(2, 0).unwrap();
        for scope in [half, Scope::new(2, 1).unwrap()] {
            let source = 7 + u32::from(scope != half);
            interest.begin(source, LIFE, (scope, 5), &mut changes);
            interest.apply(source, LIFE, &said(10 + u64::from(source - 7), 1, true), &mut changes);
            interest.end(source, LIFE, (scope, 5), &mut changes);
        }
        assert_eq!(interest.apply(7, LIFE, &said(12, 7, true), &mut changes), Taken::News);
        assert_eq!(
            interest.apply(8, LIFE, &said(13, 6, true), &mut changes),
            Taken::News,
            "it is older, and of the other half"
        );
        assert_eq!(interest.wanted(), [(1, 10), (1, 11), (1, 12), (1, 13)]);
    }

    /// Regression: a router ignored the snapshot of a smaller share as nothing new, so its brokers believed that all
    /// later reports covered everything.
    #[test]
    fn a_source_that_narrows_its_share_is_passed_on() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        snapshot(&mut interest, 7, 5, &[(10, 1), (11, 2)]);
        let half = (Scope::new(2, 0).unwrap(), 5);
        let mut again = || {
            assert!(interest.begin(7, LIFE, half, &mut changes));
            interest.apply(7, LIFE, &said(10, 1, true), &mut changes);
            (
                interest.end(7, LIFE, half, &mut changes),
                interest.wholes(1).collect::<Vec<_>>(),
            )
        };
        let wholes = vec![(Scope::ALL, 5), half];
        assert_eq!(again(), (Taken::News, wholes.clone()));
        assert_eq!(again(), (Taken::Known, wholes), "once");
        assert_eq!(interest.wanted(), [(1, 10), (1, 11)]);
    }

    #[test]
    fn a_kept_share_stays_known_and_the_rest_is_ignored() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        snapshot(&mut interest, 7, 5, &[(10, 1), (11, 2)]);
        let half = Scope::new(2, 0).unwrap();
        interest.keep(half);
        assert_eq!((interest.wanted(), interest.len()), (vec![(1, 10)], 1));
        assert!(interest.is_loaded(1, half) && !interest.is_loaded(1, Scope::ALL));
        assert_eq!(interest.apply(7, LIFE, &said(13, 6, true), &mut changes), Taken::Stale);
        assert_eq!(interest.apply(7, LIFE, &said(12, 6, true), &mut changes), Taken::News);
        assert!(!interest.hint(LIFE, &said(13, 6, true), &mut changes));
        snapshot(&mut interest, 8, 7, &[(12, 6), (13, 7)]);
        assert_eq!(interest.wanted(), [(1, 12)]);
    }

    #[test]
    fn a_new_life_clears_the_old_one_and_an_old_one_changes_nothing() {
        let mut interest = interest();
        let mut changes = snapshot(&mut interest, 7, 1, &[(10, 1)]);
        assert!(interest.begin(7, (1, 2), (Scope::ALL, 0), &mut changes));
        assert_eq!((interest.wanted(), interest.len()), (vec![], 0));
        assert!(!interest.begin(8, LIFE, (Scope::ALL, 9), &mut changes));
        let stale = interest.apply(7, LIFE, &said(11, 9, true), &mut changes);
        assert_eq!((stale, changes.len()), (Taken::Stale, 2));
    }

    #[test]
    fn a_snapshot_removes_rooms_that_it_does_not_name() {
        let mut interest = interest();
        snapshot(&mut interest, 7, 2, &[(10, 1), (11, 2)]);
        let changes = snapshot(&mut interest, 7, 5, &[(11, 2), (12, 4)]);
        let told: Vec<_> = changes.iter().map(|change| (change.room, change.present)).collect();
        assert_eq!(told, [(12, true), (10, false)]);
        assert_eq!(interest.wanted(), [(1, 11), (1, 12)]);
        assert!(interest.is_loaded(1, Scope::ALL) && !interest.is_loaded(2, Scope::ALL));
    }

    #[test]
    fn a_room_left_and_rejoined_unnoticed_is_a_new_interest() {
        let mut interest = interest();
        snapshot(&mut interest, 7, 5, &[(10, 5)]);
        let told = |changes: Vec<Change>| {
            changes
                .iter()
                .map(|change| (change.room, change.present))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(snapshot(&mut interest, 7, 6, &[(10, 5)])), []);
        assert_eq!(
            told(snapshot(&mut interest, 7, 11, &[(10, 11)])),
            [(10, false), (10, true)]
        );
    }

    #[test]
    fn a_snapshot_overtaken_by_another_source_adds_nothing() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        snapshot(&mut interest, 7, 2, &[(10, 1), (11, 2)]);
        interest.begin(8, LIFE, (Scope::ALL, 2), &mut changes);
        assert_eq!(interest.apply(7, LIFE, &said(10, 3, false), &mut changes), Taken::News);
        interest.apply(8, LIFE, &said(10, 1, true), &mut changes);
        assert_eq!(interest.end(8, LIFE, (Scope::ALL, 2), &mut changes), Taken::Known);
        assert_eq!(interest.wanted(), [(1, 11)]);
        let again = interest.apply(8, LIFE, &said(10, 3, false), &mut changes);
        assert_eq!(again, Taken::Known, "it catches up");
        assert_eq!(interest.apply(8, LIFE, &said(10, 4, true), &mut changes), Taken::News);
    }

    #[test]
    fn a_source_that_leaves_during_its_snapshot_ends_nothing() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        snapshot(&mut interest, 7, 2, &[(10, 1), (11, 2)]);
        interest.begin(8, LIFE, (Scope::ALL, 5), &mut changes);
        interest.apply(8, LIFE, &said(12, 4, true), &mut changes);
        interest.leave(8);
        assert_eq!(interest.end(8, LIFE, (Scope::ALL, 5), &mut changes), Taken::Stale);
        assert_eq!(interest.apply(8, LIFE, &said(13, 6, true), &mut changes), Taken::Stale);
        assert_eq!(interest.wanted(), [(1, 10), (1, 11), (1, 12)]);
        // Its rooms hold until a source is complete up to that version.
        snapshot(&mut interest, 9, 3, &[(10, 1)]);
        assert_eq!(interest.wanted(), [(1, 10), (1, 12)]);
        snapshot(&mut interest, 9, 6, &[(10, 1)]);
        assert_eq!(interest.wanted(), [(1, 10)]);
    }

    #[test]
    fn a_hint_holds_until_the_gateway_has_reported_everything() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        assert!(interest.hint((1, 1), &said(10, 1, true), &mut changes));
        assert!(interest.hint((1, 1), &said(11, 2, true), &mut changes));
        assert!(
            !interest.hint((1, 0), &said(12, 9, true), &mut changes),
            "of an earlier life"
        );
        assert_eq!((interest.wanted(), interest.len()), (vec![(1, 10), (1, 11)], 2));
        assert!(!interest.is_loaded(1, Scope::ALL));
        let told = snapshot(&mut interest, 7, 4, &[(11, 2), (13, 3)]);
        let told: Vec<_> = told.iter().map(|change| (change.room, change.present)).collect();
        assert_eq!(told, [(13, true), (10, false)]);
        assert!(!interest.hint((1, 1), &said(10, 1, true), &mut changes), "it is known");
        assert!(
            !interest.hint((1, 2), &said(10, 1, true), &mut changes),
            "no source said so"
        );
        assert_eq!((interest.wanted(), interest.len()), (vec![(1, 11), (1, 13)], 2));
    }

    #[test]
    fn hints_of_a_later_life_replace_others_and_a_new_life_ends_them() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        interest.hint((1, 1), &said(10, 1, true), &mut changes);
        interest.hint((1, 2), &said(11, 1, true), &mut changes);
        assert_eq!((interest.wanted(), interest.len()), (vec![(1, 11)], 1));
        assert!(interest.begin(7, (1, 3), (Scope::ALL, 0), &mut changes));
        assert_eq!((interest.wanted(), interest.len()), (vec![], 0));
        interest.hint((2, 1), &said(10, 1, true), &mut changes);
        interest.gone(2, 1, Scope::ALL, &mut changes);
        assert_eq!((interest.gateways().count(), interest.len()), (1, 0));
    }

    #[test]
    fn a_part_of_a_gateways_rooms_may_be_gone() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        for index in 0..2 {
            let part = (Scope::new(2, index).unwrap(), 5);
            interest.begin(7 + u32::from(index), LIFE, part, &mut changes);
            interest.apply(
                7 + u32::from(index),
                LIFE,
                &said(10 + u64::from(index), 1, true),
                &mut changes,
            );
            interest.end(7 + u32::from(index), LIFE, part, &mut changes);
        }
        interest.gone(1, 1, Scope::new(2, 0).unwrap(), &mut changes);
        assert_eq!((interest.wanted(), interest.len()), (vec![(1, 11)], 1));
        interest.gone(1, 1, Scope::new(2, 1).unwrap(), &mut changes);
        assert_eq!((interest.gateways().count(), interest.len()), (0, 0));
    }

    #[test]
    fn an_endless_snapshot_is_bounded_by_its_rooms() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        interest.begin(7, LIFE, (Scope::ALL, 1 << 40), &mut changes);
        interest.apply(7, LIFE, &said(1, 1, true), &mut changes);
        for room in 2..100_000 {
            interest.apply(7, LIFE, &said(room, room, true), &mut changes);
            interest.apply(7, LIFE, &said(room, room + 1, false), &mut changes);
            changes.clear();
        }
        let open = interest.views[&1].feeds[0].open.as_ref();
        let seen = open.map_or(0, |open| open.seen.len());
        assert!(seen <= 4 + SEEN_SPARE, "{seen} rooms");
        interest.end(7, LIFE, (Scope::ALL, 1 << 40), &mut changes);
        assert_eq!(interest.wanted(), [(1, 1)]);
    }

    #[test]
    fn the_number_of_gateways_is_bounded() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        let mut begin = |node, epoch| interest.begin(7, (node, epoch), (Scope::ALL, 1), &mut changes);
        let taken = (0..2 * NODES_MAX as u32).filter(|node| begin(*node, 1));
        assert_eq!(taken.count(), NODES_MAX);
        assert!(begin(1, 2), "a known gateway stays");
    }

    #[test]
    fn another_name_under_the_same_number_is_another_room() {
        let mut interest = interest();
        let mut changes = snapshot(&mut interest, 7, 1, &[(10, 1)]);
        let other = Membership {
            check: 5,
            ..said(10, 3, true)
        };
        interest.apply(7, LIFE, &other, &mut changes);
        let told: Vec<_> = changes.iter().map(|change| (change.check, change.present)).collect();
        assert_eq!(told, [(!10, true), (!10, false), (5, true)]);
        assert_eq!(interest.len(), 1);
    }

    #[test]
    fn a_membership_takes_64_bytes_at_most() {
        let room = size_of::<(u64, Known)>() + 1; // and a byte of the table for each slot
        assert!(
            room * 4_096 / 1_700 <= 64,
            "{room} B where there have just become twice as many tables, each of 4,096 places"
        );
    }

    #[test]
    fn pages_together_list_all_interest_at_a_bounded_cost_each() {
        let (mut interest, mut changes) = (interest(), Vec::new());
        for (gateway, rooms) in [(1, 30_000), (2, 0), (3, 5), (u32::MAX, 2_000)] {
            interest.begin(gateway, (gateway, 1), (Scope::ALL, 0), &mut changes);
            interest.end(gateway, (gateway, 1), (Scope::ALL, 0), &mut changes);
            for room in 1..=rooms {
                interest.apply(gateway, (gateway, 1), &said(room, room, true), &mut changes);
            }
        }
        let (mut wanted, mut from) = (Vec::new(), Some((0, 0)));
        while let Some(at) = from {
            let page = interest.page(at, 100);
            assert!(page.wanted.len() <= 100 && page.visited <= 4_000, "{}", page.visited);
            assert!(page.next.is_none_or(|next| next > at));
            wanted.extend(page.wanted);
            from = page.next;
        }
        wanted.sort_unstable();
        assert_eq!(wanted, interest.wanted());
    }

    /// A gateway's true interest as of a version: rooms, each with the version of its last change.
    fn truth(toggles: &[u64], version: usize) -> BTreeMap<u64, u64> {
        let mut rooms = BTreeMap::new();
        for (at, room) in toggles.iter().take(version).enumerate() {
            if rooms.remove(room).is_none() {
                rooms.insert(*room, at as u64 + 1);
            }
        }
        rooms
    }

    /// A source in progress: the rest of its snapshot, the snapshot's version, and how many changes it has sent.
    #[derive(Default)]
    struct Teller {
        scope: Option<Scope>,
        names: Option<Vec<(u64, u64)>>,
        at: usize,
    }

    proptest! {
        /// Several sources that lag, die midway and return: complete scopes equal the truth of their version, and
        /// once one source has reported the newest, everything is equal (I-2).
        #[test]
        fn any_interleaving_of_sources_gives_the_truth_of_the_newest(
            toggles in prop::collection::vec(0u64..8, 0..40),
            steps in prop::collection::vec((0u32..3, 0u8..12, any::<u16>()), 0..150),
        ) {
            let scopes = [Scope::ALL, Scope::new(2, 0).unwrap(), Scope::new(2, 1).unwrap()];
            let (mut interest, mut changes) = (interest(), Vec::new());
            let mut tellers: [Teller; 3] = Default::default();
            for (source, step, draw) in steps {
                let teller = &mut tellers[source as usize];
                let at = teller.at;
                match (&mut teller.names, teller.scope) {
                    _ if step == 1 => {
                        // An earlier truth may be remembered at any time.
                        let past = truth(&toggles, draw as usize % (toggles.len() + 1));
                        for (room, version) in past {
                            interest.hint(LIFE, &said(room, version, true), &mut changes);
                        }
                    }
                    _ if step == 0 => {
                        interest.leave(source);
                        *teller = Teller::default();
                    }
                    (None, None) => {
                        let (scope, at) = (scopes[draw as usize % 3], draw as usize / 3 % (toggles.len() + 1));
                        let names = truth(&toggles, at).into_iter().filter(|(room, _)| scope.has(*room));
                        *teller = Teller { scope: Some(scope), names: Some(names.collect()), at };
                        prop_assert!(interest.begin(source, LIFE, (scope, at as u64), &mut changes));
                    }
                    (Some(names), Some(scope)) => match names.len() {
                        0 => {
                            teller.names = None;
                            interest.end(source, LIFE, (scope, at as u64), &mut changes);
                        }
                        len => {
                            let (room, version) = names.swap_remove(draw as usize % len);
                            interest.apply(source, LIFE, &said(room, version, true), &mut changes);
                        }
                    },
                    (None, Some(scope)) => {
                        if let Some(room) = toggles.get(at).filter(|room| scope.has(**room)) {
                            let present = truth(&toggles, at + 1).contains_key(room);
                            interest.apply(source, LIFE, &said(*room, at as u64 + 1, present), &mut changes);
                        }
                        teller.at = (at + 1).min(toggles.len());
                    }
                    (Some(_), None) => unreachable!(),
                }
                let known: BTreeMap<u64, u64> = interest.rooms_of(1, Scope::ALL).map(|known| (known.room, known.version)).collect();
                prop_assert_eq!(known.len(), interest.len());
                for room in 0..8 {
                    let having = interest.wholes(1).filter(|(scope, _)| scope.has(room));
                    let Some(whole) = having.map(|(_, version)| version).max() else { continue };
                    let (is, was) = (known.get(&room), truth(&toggles, whole as usize).get(&room).copied());
                    prop_assert!(is.is_none() || is > Some(&whole) || is == was.as_ref(), "{} is {:?}, was {:?}", room, is, was);
                    prop_assert!(is.is_some() || was.is_none(), "{} is missing", room);
                }
            }
            let newest = truth(&toggles, toggles.len());
            let names: Vec<_> = newest.clone().into_iter().collect();
            changes.extend(snapshot(&mut interest, 9, toggles.len() as u64, &names));
            let wanted: Vec<_> = newest.keys().map(|room| (1, *room)).collect();
            prop_assert_eq!(interest.wanted(), wanted);
            let mut replayed = BTreeSet::new();
            for change in changes {
                if change.present { prop_assert!(replayed.insert(change.room)) } else { prop_assert!(replayed.remove(&change.room)) }
            }
            prop_assert_eq!(replayed, newest.keys().copied().collect::<BTreeSet<_>>());
        }
    }
}
