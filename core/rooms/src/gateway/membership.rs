//! A gateway's reports to routers: the rooms it wants. One replica of each router partition, its home, gets all of that
//! partition's rooms in one log, so versions reveal missing ones. A room is in force when a home has covered it.
//!
//! While the routers' partitions double, two partitions learn of half of the rooms: the old one, which brokers still
//! ask, and the new one, which they will ask alone.

use std::collections::VecDeque;

use crate::layers::RoomLayers;

use crate::role;

use muster_transport::{Layer, Micros, Move, Scope};

use super::members::Members;
use super::room::Room;
use super::Gateway;
use crate::owners::Owners;
use crate::wire::record::{Membership, Record};

/// Rooms that are told to a router and may be gone again, before the queue of them is looked through.
const UNCOVERED_SPARE: usize = 1_024;

/// The report to one router.
pub(super) struct Feed {
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
        version: room.version,
        present,
    })
}

impl<S: Members> Gateway<S> {
    /// The routers' partitions may have changed: routers with another part get that anew, and rooms wait for the right
    /// routers.
    pub(super) fn repartition(&mut self, now: Micros, before: Layer) {
        let layer = self.placement.routers();
        if layer != before {
            for at in 0..self.rooms.len() as u32 {
                let Some(room) = self.rooms[at as usize]
                    .as_deref_mut()
                    .filter(|room| !room.is_in_force())
                else {
                    continue;
                };
                let owes =
                    |partition: &u16| !before.hearing(room.id).contains(&Some(*partition)) || room.owes(*partition);
                room.owed = layer.hearing(room.id).map(|partition| partition.filter(owes));
                self.note_in_force(now, at);
            }
        }
        self.review_homes(now);
        let other = self
            .feeds
            .iter()
            .filter(|(_, feed)| layer.scope(feed.partition) != Some(feed.scope));
        let other: Vec<_> = other.map(|(node, feed)| (feed.partition, *node)).collect();
        other
            .into_iter()
            .for_each(|(partition, node)| self.tell_all(now, partition, node));
        self.feeds.values_mut().for_each(|feed| feed.settles = feed.last);
    }

    /// Whether all that the placement asks is done: brokers are linked, and every partition of routers has all that had to be
    /// said when the placement came.
    pub fn settled(&self) -> bool {
        let covered = |node: u32| self.feeds.get(&node).is_some_and(|feed| feed.covered >= feed.settles);
        let mut partitions = 0..self.placement.routers().all();
        Owners::are_linked(&self.placement, &self.links)
            && partitions.all(|partition| self.homes.of(partition).any(covered))
    }

    /// Begins to tell the routers that are to be its homes from now on.
    pub(super) fn review_homes(&mut self, now: Micros) {
        let links = &self.links;
        let since = |node| links.since_as(node, role::ROUTER);
        let moves = self.homes.review(now, &self.placement, |_| true, since);
        for step in moves {
            match step {
                Move::Begin { partition, node } => self.tell_all(now, partition, node),
                Move::End { node } => drop(self.feeds.remove(&node)),
            }
        }
    }

    /// A router is linked, and may be a home. It is told little else than which rooms have members.
    pub(super) fn router_up(&mut self, now: Micros, slot: u32) {
        if let Some(link) = self.links.table.get_mut(slot) {
            link.conn.log.send_again_after(self.membership_again);
        }
        self.review_homes(now);
    }

    /// The link to a router is lost.
    pub(super) fn home_lost(&mut self, now: Micros, node: u32) {
        self.feeds.remove(&node);
        self.homes.lost(node);
        self.review_homes(now);
    }

    /// Tells the room's home whether this gateway has members of it.
    pub(super) fn tell_membership(&mut self, now: Micros, at: u32, present: bool) {
        self.version += 1;
        let Gateway {
            rooms,
            homes,
            feeds,
            links,
            ..
        } = self;
        let Some(room) = rooms[at as usize].as_deref_mut() else {
            return;
        };
        room.version = self.version;
        let hearing = self.placement.routers().hearing(room.id);
        if present {
            room.owed = hearing;
        }
        let (told, version) = (membership(room, present), room.version);
        for node in hearing.into_iter().flatten().flat_map(|partition| homes.of(partition)) {
            let Some(feed) = feeds.get_mut(&node) else { continue };
            let logged = links.record(now, feed.slot, &told);
            feed.last = logged.unwrap_or(feed.last);
            feed.uncovered
                .extend(logged.filter(|_| present).map(|offset| (offset, at, version)));
            // Rooms that came and went without being covered are not waited for.
            if feed.uncovered.len() > 2 * self.by_id.len() + UNCOVERED_SPARE {
                feed.uncovered.retain(|(_, at, version)| {
                    let room = rooms[*at as usize].as_deref();
                    room.is_some_and(|room| room.version == *version)
                });
            }
        }
    }

    /// Tells a router all of its partition: it is a new home, so nothing that was told before counts.
    fn tell_all(&mut self, now: Micros, partition: u16, node: u32) {
        let scope = self.placement.routers().scope(partition);
        let (Some(slot), Some(scope)) = (self.links.to(node), scope) else {
            return;
        };
        let version = self.version;
        self.links.record(now, slot, &Record::SnapshotBegin { scope, version });
        let mut waiting = Vec::new();
        for (at, room) in self.rooms.iter().enumerate() {
            let Some(room) = room.as_deref().filter(|room| scope.has(room.id)) else {
                continue;
            };
            self.links.record(now, slot, &membership(room, true));
            if !room.is_in_force() {
                waiting.push((at as u32, room.version));
            }
        }
        let end = self.links.record(now, slot, &Record::SnapshotEnd { scope, version });
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
        self.feeds.insert(node, feed);
    }

    /// Every broker has the records that were logged to a router up to `offset`.
    pub(super) fn covered(&mut self, now: Micros, node: u32, offset: u64) {
        let Some(feed) = self.feeds.get_mut(&node) else { return };
        feed.covered = offset.max(feed.covered);
        let (whole, partition) = (offset >= feed.end, feed.partition);
        let logged = feed.uncovered.iter().take_while(|(logged, _, _)| *logged <= offset);
        let count = logged.count();
        let covered: Vec<_> = feed.uncovered.drain(..count).collect();
        for (_, at, version) in covered {
            let room = self.rooms[at as usize].as_deref_mut();
            let Some(room) = room.filter(|room| room.version == version) else {
                continue;
            };
            let owed = room.owed.iter_mut().filter(|owed| **owed == Some(partition));
            owed.for_each(|owed| *owed = None);
            self.note_in_force(now, at);
        }
        if let Some(old) = whole.then(|| self.homes.settled(node)).flatten() {
            self.feeds.remove(&old);
        }
    }

    /// Members that wait for a room may have it once no router owes an answer that counts.
    fn note_in_force(&mut self, now: Micros, at: u32) {
        let layer = self.placement.routers();
        let Some(room) = self.rooms[at as usize].as_deref_mut() else {
            return;
        };
        if room.owed.iter().flatten().any(|partition| layer.counts(*partition)) {
            return;
        }
        room.note_in_force();
        self.admit_waiting(now, at, None);
        self.schedule_room(now, at);
    }
}
