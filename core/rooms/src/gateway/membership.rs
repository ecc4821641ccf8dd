//! A gateway's reports to routers: the rooms it wants. One replica of each router partition, its home, gets all of that
//! partition's rooms in one log, so versions reveal missing ones. A room is in force when a home has covered it.
//!
//! While the routers' partitions double, two partitions learn of half of the rooms: the old one, which brokers still
//! ask, and the new one, which they will ask alone.
//!
//! Owns the homes, and what each was told and has covered. Knows no member.

use std::collections::{BTreeMap, VecDeque};

use muster_transport::{Homes, Layer, Links, Micros, Move, Placement, Scope};

use super::members::Members;
use super::room::Room;
use super::Gateway;
use crate::layers::RoomLayers;
use crate::owners::Owners;
use crate::role;
use crate::slots::Slots;
use crate::wire::record::{Membership, Record};

/// Rooms that are told to a router and may be gone again, before the queue of them is looked through.
const UNCOVERED_SPARE: usize = 1_024;

/// The report to one router.
struct Feed {
    slot: u32,
    partition: u16,
    scope: Scope,
    /// The end of its snapshot in the link's log, the last version told, and the version covered.
    end: u64,
    last: u64,
    covered: u64,
    /// The version that must be covered before the placement's demands are met.
    settles: u64,
    /// Rooms not in force yet, in the order of the log: offset, slot, version.
    uncovered: VecDeque<(u64, u32, u64)>,
}

fn membership(room: &Room, present: bool) -> Record<'static> {
    Record::Membership(Membership {
        room: room.id,
        check: room.check,
        version: room.announced.version(),
        present,
    })
}

/// The reports to all routers that are homes, or are to be.
pub(super) struct Feeds {
    homes: Homes,
    by_router: BTreeMap<u32, Feed>,
    /// The version of the last change.
    version: u64,
    /// A router that acknowledges nothing for this long is told again.
    again: Micros,
}

impl Feeds {
    pub fn new(me: u32, again: Micros) -> Self {
        Feeds {
            homes: Homes::new(me, role::ROUTER),
            by_router: BTreeMap::new(),
            version: 0,
            again,
        }
    }

    /// Whether each partition of routers in use has a home.
    pub fn are_complete(&self, routers: Layer) -> bool {
        self.homes.are_complete(routers.used())
    }

    /// Whether a partition of routers has a home.
    pub fn reach(&self, partition: u16) -> bool {
        self.homes.of(partition).next().is_some()
    }

    /// Whether every partition has all that had to be said when the placement came.
    fn are_settled(&self, routers: Layer) -> bool {
        let covered = |node: u32| {
            self.by_router
                .get(&node)
                .is_some_and(|feed| feed.covered >= feed.settles)
        };
        let mut partitions = 0..routers.all();
        partitions.all(|partition| self.homes.of(partition).any(covered))
    }

    /// When [`Feeds::review`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        self.homes.due()
    }

    /// Begins to tell the routers that are to be homes from now on.
    fn review(&mut self, now: Micros, placement: &Placement, links: &mut Links, rooms: &Slots<u64, Room>) {
        let since = |node| links.since_as(node, role::ROUTER);
        let moves = self.homes.review(now, placement, |_| true, since);
        for step in moves {
            match step {
                Move::Begin { partition, node } => self.tell_all(now, (partition, node), placement, links, rooms),
                Move::End { node } => drop(self.by_router.remove(&node)),
            }
        }
    }

    /// Routers whose partition has become another one are told all of it.
    fn repartition(&mut self, now: Micros, placement: &Placement, links: &mut Links, rooms: &Slots<u64, Room>) {
        let layer = placement.routers();
        let other = self
            .by_router
            .iter()
            .filter(|(_, feed)| layer.scope(feed.partition) != Some(feed.scope));
        let other: Vec<_> = other.map(|(node, feed)| (feed.partition, *node)).collect();
        other
            .into_iter()
            .for_each(|router| self.tell_all(now, router, placement, links, rooms));
        self.by_router.values_mut().for_each(|feed| feed.settles = feed.last);
    }

    /// Tells a room's homes whether this gateway has members of it.
    fn tell(
        &mut self,
        now: Micros,
        at: u32,
        present: bool,
        links: &mut Links,
        routers: Layer,
        rooms: &mut Slots<u64, Room>,
    ) {
        self.version += 1;
        let Some(room) = rooms.get_mut(at) else {
            return;
        };
        let (version, hearing) = (self.version, routers.hearing(room.id));
        room.announced.tell(version, present.then_some(hearing));
        let told = membership(room, present);
        let homes = hearing
            .into_iter()
            .flatten()
            .flat_map(|partition| self.homes.of(partition));
        for node in homes {
            let Some(feed) = self.by_router.get_mut(&node) else {
                continue;
            };
            let logged = links.record(now, feed.slot, &told);
            feed.last = logged.unwrap_or(feed.last);
            feed.uncovered
                .extend(logged.filter(|_| present).map(|offset| (offset, at, version)));
            // Rooms that came and went without being covered are not waited for.
            if feed.uncovered.len() > 2 * rooms.len() + UNCOVERED_SPARE {
                feed.uncovered.retain(|(_, at, version)| {
                    let room = rooms.get(*at);
                    room.is_some_and(|room| room.announced.version() == *version)
                });
            }
        }
    }

    /// Tells a router all of its partition: it is a new home, so nothing that was told before counts.
    fn tell_all(
        &mut self,
        now: Micros,
        (partition, node): (u16, u32),
        placement: &Placement,
        links: &mut Links,
        rooms: &Slots<u64, Room>,
    ) {
        let scope = placement.routers().scope(partition);
        let (Some(slot), Some(scope)) = (links.to(node), scope) else {
            return;
        };
        let version = self.version;
        links.record(now, slot, &Record::SnapshotBegin { scope, version });
        let mut waiting = Vec::new();
        for (at, room) in rooms.iter().filter(|(_, room)| scope.has(room.id)) {
            links.record(now, slot, &membership(room, true));
            if !room.is_in_force() {
                waiting.push((at, room.announced.version()));
            }
        }
        let end = links.record(now, slot, &Record::SnapshotEnd { scope, version });
        let end = end.unwrap_or(u64::MAX);
        let uncovered = waiting.into_iter().map(|(at, version)| (end, at, version)).collect();
        let feed = Feed {
            slot,
            partition,
            scope,
            end,
            last: end,
            covered: 0,
            settles: end,
            uncovered,
        };
        self.by_router.insert(node, feed);
    }

    /// Every broker has the records that were logged to a router up to `offset`. Returns the router's partition, and the rooms that
    /// were told, each with its version.
    fn covered(&mut self, node: u32, offset: u64) -> Option<(u16, Vec<(u32, u64)>)> {
        let feed = self.by_router.get_mut(&node)?;
        feed.covered = offset.max(feed.covered);
        let (whole, partition) = (offset >= feed.end, feed.partition);
        let logged = feed.uncovered.iter().take_while(|(logged, _, _)| *logged <= offset);
        let count = logged.count();
        let covered = feed.uncovered.drain(..count);
        let covered = covered.map(|(_, at, version)| (at, version)).collect();
        if let Some(old) = whole.then(|| self.homes.settled(node)).flatten() {
            self.by_router.remove(&old);
        }
        Some((partition, covered))
    }

    fn lost(&mut self, node: u32) {
        self.by_router.remove(&node);
        self.homes.lost(node);
    }
}

impl<S: Members> Gateway<S> {
    /// The routers' partitions may have changed: routers with another part get that anew, and rooms wait for the right
    /// routers.
    pub(super) fn repartition(&mut self, now: Micros, before: Layer) {
        let layer = self.placement.routers();
        if layer != before {
            for at in 0..self.rooms.end() as u32 {
                let Some(room) = self.rooms.get_mut(at).filter(|room| !room.is_in_force()) else {
                    continue;
                };
                room.announced.move_to(before.hearing(room.id), layer.hearing(room.id));
                self.note_in_force(now, at);
            }
        }
        self.review_homes(now);
        self.feeds
            .repartition(now, &self.placement, &mut self.links, &self.rooms);
    }

    /// Whether all that the placement asks is done: brokers are linked, and every partition of routers has all that had to be
    /// said when the placement came.
    pub fn settled(&self) -> bool {
        Owners::are_linked(&self.placement, &self.links) && self.feeds.are_settled(self.placement.routers())
    }

    /// Begins to tell the routers that are to be its homes from now on.
    pub(super) fn review_homes(&mut self, now: Micros) {
        self.feeds.review(now, &self.placement, &mut self.links, &self.rooms);
    }

    /// A router is linked, and may be a home. It is told little else than which rooms have members.
    pub(super) fn router_up(&mut self, now: Micros, slot: u32) {
        if let Some(link) = self.links.table.get_mut(slot) {
            link.conn.log.send_again_after(self.feeds.again);
        }
        self.review_homes(now);
    }

    /// The link to a router is lost.
    pub(super) fn home_lost(&mut self, now: Micros, node: u32) {
        self.feeds.lost(node);
        self.review_homes(now);
    }

    /// Tells the room's home whether this gateway has members of it.
    pub(super) fn tell_membership(&mut self, now: Micros, at: u32, present: bool) {
        let routers = self.placement.routers();
        self.feeds
            .tell(now, at, present, &mut self.links, routers, &mut self.rooms);
    }

    /// Every broker has the records that were logged to a router up to `offset`.
    pub(super) fn covered(&mut self, now: Micros, node: u32, offset: u64) {
        let Some((partition, covered)) = self.feeds.covered(node, offset) else {
            return;
        };
        for (at, version) in covered {
            let room = self.rooms.get_mut(at);
            let Some(room) = room.filter(|room| room.announced.version() == version) else {
                continue;
            };
            room.announced.answered(partition);
            self.note_in_force(now, at);
        }
    }

    /// Members that wait for a room may have it once no router owes an answer that counts.
    fn note_in_force(&mut self, now: Micros, at: u32) {
        let layer = self.placement.routers();
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        if room.announced.is_owed(layer) {
            return;
        }
        room.note_in_force();
        self.admit_waiting(now, at, None);
        self.schedule_room(now, at);
    }
}
