//! One room at its owner: the ring of numbered messages and a cursor for each gateway that wants them.

use muster_transport::Micros;

use super::relays::{Tree, TREE_IDLE};
use super::{PACED_MAX, WITHHOLD_MAX};
use crate::limits::{CONSUMED_WAIT, RELAYED_WAIT};
use crate::ring::{Arena, Ring};

/// A gateway's position in a room.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    pub gateway: u32,
    /// The gateway's life; it gets nothing that was numbered before it wanted the room.
    pub life: u32,
    /// The first offset that this gateway gets.
    pub base: u64,
    /// The next offset to send.
    pub next: u64,
    /// The first offset that the gateway has not passed on, by its last report, and the time of that report.
    pub consumed: u64,
    /// In a paced room: the first offset that a member may still request from it.
    pub kept: Option<u64>,
    pub told_at: Micros,
    /// Whether the room is in the gateway's queue of rooms with something to send.
    pub queued: bool,
    pub head_due: bool,
    /// Since when it is more than half a ring behind.
    pub behind_since: Option<Micros>,
    /// Since when it passes messages on too late.
    pub late_since: Option<Micros>,
}

impl Cursor {
    fn new(now: Micros, gateway: u32, life: u32, next: u64) -> Self {
        Cursor {
            gateway,
            life,
            base: next,
            next,
            consumed: next,
            kept: None,
            told_at: now,
            queued: false,
            head_due: false,
            behind_since: None,
            late_since: None,
        }
    }
}

/// A message that waits at a gateway for longer than the time of this number of reports plus the round trip is late. So
/// two reports may be lost.
const LATE_REPORTS: u64 = 4;
/// With fewer waiting messages, a report was probably lost; the gateway is not slow.
const LATE_MESSAGES: u64 = 4;
/// A gateway silent for the time of this number of reports counts as away, not slow: its rooms do not wait for it here.
const AWAY_REPORTS: u64 = 5;
/// For a room with such gateways, [`Room::withholds`] is computed at most once in this time: they are many.
const WITHHOLDS_FOR: Micros = 5_000;

/// Whether a condition that began at `since` may still hold publishers up, for at most `longest`.
fn holds(since: &mut Option<Micros>, so: bool, now: Micros, longest: Micros) -> bool {
    if !so {
        *since = None;
        return false;
    }
    now < *since.get_or_insert(now) + longest
}

/// Cursors of the gateways that get a room from its broker.
pub struct Served<'a> {
    left: std::ops::Range<usize>,
    served: Option<&'a [u32]>,
    gateways: &'a mut [Cursor],
}

impl Served<'_> {
    pub fn next(&mut self) -> Option<&mut Cursor> {
        loop {
            let at = self.left.next()?;
            let place = match self.served {
                None => Ok(at),
                Some(served) => self.gateways.binary_search_by_key(&served[at], |cursor| cursor.gateway),
            };
            if let Ok(place) = place {
                return self.gateways.get_mut(place);
            }
        }
    }
}

/// One room at its owner.
///
/// [`Room::add_gateway`] and [`Room::renew`] keep a [`Cursor`] for each gateway that wants the room. After each new
/// message, [`Room::withholds`] returns whether publishers must wait, and [`Room::release`] those that need not wait
/// any longer. The broker sends what is behind each cursor.
pub struct Room {
    pub id: u64,
    /// The other 64 bits of the name's hash: the number belongs to the name that used it first.
    pub check: u64,
    pub generation: u32,
    /// The key of its built frames.
    pub frames: u32,
    pub ring: Ring,
    /// By number of the gateway.
    pub gateways: Vec<Cursor>,
    /// If gateways get the room by others: which, and by which.
    pub tree: Option<Box<Tree>>,
    /// Publishers whose credit is withheld, and since when.
    pub withheld: Vec<(u32, Micros)>,
    pub used_at: Micros,
    /// Another broker continues the room; its messages here can still be requested.
    pub ended: bool,
}

impl Room {
    pub fn new(id: u64, check: u64, generation: u32, frames: u32, now: Micros) -> Self {
        Room {
            id,
            check,
            generation,
            frames,
            ring: Ring::of(1, id),
            gateways: Vec::new(),
            tree: None,
            withheld: Vec::new(),
            used_at: now,
            ended: false,
        }
    }

    /// Begins a new stream, without a message: for all gateways that want the room.
    pub fn restart(&mut self, now: Micros, generation: u32, frames: u32) {
        let home = self.ring.home;
        (self.generation, self.frames, self.used_at) = (generation, frames, now);
        self.ring = Ring::of(1, self.id);
        self.ring.home = home;
        for cursor in &mut self.gateways {
            let (queued, head_due) = (cursor.queued, cursor.head_due);
            *cursor = Cursor {
                queued,
                head_due,
                ..Cursor::new(now, cursor.gateway, cursor.life, 1)
            };
        }
    }

    /// Adds a gateway for messages numbered from now on.
    pub fn add_gateway(&mut self, now: Micros, gateway: u32, life: u32) {
        if let Err(place) = self.place(gateway) {
            let cursor = Cursor::new(now, gateway, life, self.ring.next());
            if self.gateways.is_empty() {
                self.gateways.reserve_exact(1); // most rooms have one; by default a list would allocate four
            }
            self.gateways.insert(place, cursor);
            if let Some(tree) = &mut self.tree {
                tree.add(gateway);
            }
        }
    }

    /// Where a gateway's cursor is; `Err`: where it would be.
    pub fn place(&self, gateway: u32) -> Result<usize, usize> {
        self.gateways.binary_search_by_key(&gateway, |cursor| cursor.gateway)
    }

    /// The gateways that this broker sends the room's messages to.
    pub fn served(&mut self) -> Served<'_> {
        let served = self.tree.as_deref().map(Tree::direct);
        Served {
            left: 0..served.map_or(self.gateways.len(), <[u32]>::len),
            served,
            gateways: &mut self.gateways,
        }
    }

    /// The first offset that has not been sent to a gateway, by this broker or to the gateway that passes it on.
    pub fn sent(&self, cursor: &Cursor) -> u64 {
        match self.is_relayed(cursor.gateway) {
            true => self.ring.next(),
            false => cursor.next,
        }
    }

    /// Whether its tree is of no more use.
    pub fn tree_rests(&self, now: Micros) -> bool {
        self.tree.is_some() && now.saturating_sub(self.used_at) >= TREE_IDLE
    }

    /// Whether a gateway gets the room by another one.
    pub fn is_relayed(&self, gateway: u32) -> bool {
        self.tree.as_ref().is_some_and(|tree| tree.is_relayed(gateway))
    }

    /// The cursor of a gateway whose link is up in this life; the cursor of an earlier life starts again.
    pub fn renew(&mut self, now: Micros, gateway: u32, life: u32) -> Option<&mut Cursor> {
        let next = self.ring.next();
        let cursor = self.cursor(gateway)?;
        if cursor.life < life {
            *cursor = Cursor::new(now, gateway, life, next);
        }
        Some(cursor)
    }

    pub fn cursor(&mut self, gateway: u32) -> Option<&mut Cursor> {
        let place = self.place(gateway).ok()?;
        self.gateways.get_mut(place)
    }

    /// Whether a present gateway passes messages on too late; `rtt` is that of its link.
    fn is_late(&self, arena: &Arena, now: Micros, cursor: &Cursor, rtt: Micros) -> bool {
        let waiting = self.ring.next().saturating_sub(cursor.consumed);
        let report = match self.is_relayed(cursor.gateway) {
            true => RELAYED_WAIT,
            false => CONSUMED_WAIT,
        };
        if waiting < LATE_MESSAGES || now > cursor.told_at + AWAY_REPORTS * report {
            return false;
        }
        self.ring
            .age(arena, now, cursor.consumed)
            .is_some_and(|age| age > LATE_REPORTS * report + rtt)
    }

    /// Whether publishers must wait: a gateway passes messages on too late, or is more than half a ring behind; or,
    /// in a paced room, a member is that far behind and would lose messages. `rtt` returns the round trip of a
    /// gateway's link, if it has one.
    pub fn withholds(&mut self, arena: &Arena, now: Micros, rtt: impl Fn(u32) -> Option<Micros>) -> bool {
        if let Some(withholds) = self.tree.as_ref().and_then(|tree| tree.withholds(now, WITHHOLDS_FOR)) {
            return withholds;
        }
        let mut withholds = false;
        for at in 0..self.gateways.len() {
            let cursor = self.gateways[at];
            let rtt = rtt(cursor.gateway);
            let from = cursor.kept.unwrap_or(cursor.consumed);
            let behind = rtt.is_some() && self.ring.is_half(arena, from);
            let late = rtt.is_some_and(|rtt| self.is_late(arena, now, &cursor, rtt));
            let longest = if cursor.kept.is_some() { PACED_MAX } else { WITHHOLD_MAX };
            let lost = cursor.kept.is_some_and(|kept| kept < self.ring.first());
            let cursor = &mut self.gateways[at];
            withholds |= holds(&mut cursor.behind_since, behind, now, longest) && !lost;
            withholds |= holds(&mut cursor.late_since, late, now, WITHHOLD_MAX);
        }
        if let Some(tree) = &mut self.tree {
            tree.note_withholds(now, withholds);
        }
        withholds
    }

    /// Publishers that get credit again: all unless `withholds`, otherwise those that have waited long enough.
    pub fn release(&mut self, now: Micros, withholds: bool) -> impl Iterator<Item = u32> {
        let waits = |since: Micros| withholds && now < since + WITHHOLD_MAX;
        let (waiting, released) = self.withheld.iter().partition(|(_, since)| waits(*since));
        self.withheld = waiting;
        let released: Vec<(u32, Micros)> = released;
        released.into_iter().map(|(publication, _)| publication)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Entry;

    const RTT: Micros = 10_000;

    /// A room that numbers a message every 10 ms; its gateway has passed on the first two.
    fn room(arena: &mut Arena, messages: u64) -> (Room, Micros) {
        let mut room = Room::new(1, 2, 3, 4, 0);
        for offset in 1..=messages {
            let entry = Entry {
                offset,
                ..Entry::default()
            };
            room.ring.push(arena, offset * 10_000, &entry);
        }
        let now = messages * 10_000;
        room.gateways.push(Cursor {
            base: 1,
            consumed: 3,
            ..Cursor::new(now, 7, 1, messages + 1)
        });
        (room, now)
    }

    fn withholds(room: &mut Room, arena: &Arena, now: Micros) -> bool {
        room.withholds(arena, now, |_| Some(RTT))
    }

    #[test]
    fn a_room_of_one_gateway_allocates_one_cursor() {
        let mut room = Room::new(1, 2, 3, 4, 0);
        room.add_gateway(0, 7, 1);
        assert_eq!(room.gateways.capacity(), 1);
    }

    #[test]
    fn publishers_wait_for_a_gateway_that_reports_late_progress() {
        let mut arena = Arena::new(1 << 20);
        let (mut room, now) = room(&mut arena, 20);
        assert!(withholds(&mut room, &arena, now), "the third message waits for 170 ms");
        room.gateways[0].consumed = 14;
        assert!(!withholds(&mut room, &arena, now), "the 14th for 60 ms");
    }

    #[test]
    fn publishers_do_not_wait_for_a_silent_or_unlinked_gateway() {
        let mut arena = Arena::new(1 << 20);
        let (mut room, now) = room(&mut arena, 20);
        assert!(!room.withholds(&arena, now, |_| None));
        assert!(!withholds(
            &mut room,
            &arena,
            now + AWAY_REPORTS * CONSUMED_WAIT + 1_000
        ));
    }

    #[test]
    fn a_far_gateway_and_one_with_a_lost_report_are_not_late() {
        let mut arena = Arena::new(1 << 20);
        let (mut room, now) = room(&mut arena, 20);
        assert!(!room.withholds(&arena, now, |_| Some(200_000)));
        room.gateways[0].consumed = 22 - LATE_MESSAGES;
        assert!(!withholds(&mut room, &arena, now + AWAY_REPORTS * CONSUMED_WAIT));
    }

    #[test]
    fn two_lost_reports_of_a_relayed_gateway_do_not_hold_publishers_up() {
        let mut arena = Arena::new(1 << 20);
        let (mut room, now) = room(&mut arena, 40);
        room.tree = Some(Box::new(Tree::of(6, 7)));
        for lost in [1, 2] {
            let reported = now - (lost + 1) * RELAYED_WAIT - RTT;
            room.gateways[0].told_at = reported;
            room.gateways[0].consumed = reported / 10_000 - 1;
            assert!(!withholds(&mut room, &arena, now), "{lost}");
            room.tree.as_mut().unwrap().note_withholds(0, false);
        }
        room.gateways[0].told_at = now;
        room.gateways[0].consumed = 3;
        assert!(
            withholds(&mut room, &arena, now + WITHHOLDS_FOR),
            "a slow one still does"
        );
    }

    #[test]
    fn the_wait_for_a_late_gateway_is_bounded() {
        let mut arena = Arena::new(1 << 20);
        let (mut room, now) = room(&mut arena, 20);
        assert!(withholds(&mut room, &arena, now));
        let later = now + WITHHOLD_MAX;
        room.gateways[0].told_at = later;
        assert!(!withholds(&mut room, &arena, later));
    }

    /// A paced room with a full ring; one of its members lacks the first message.
    fn paced(arena: &mut Arena) -> (Room, Micros) {
        let (mut room, now) = room(arena, 1);
        let data = [0; 1 << 10];
        for offset in 2..=100 {
            let entry = Entry {
                offset,
                data: &data,
                ..Entry::default()
            };
            room.ring.push(arena, now, &entry);
        }
        room.gateways[0].consumed = room.ring.next();
        room.gateways[0].kept = Some(1);
        (room, now)
    }

    #[test]
    fn a_paced_room_waits_for_a_members_missing_message_until_it_leaves_the_ring() {
        let mut arena = Arena::new(1 << 20);
        let (mut room, now) = paced(&mut arena);
        assert!(withholds(&mut room, &arena, now));
        assert!(withholds(&mut room, &arena, now + PACED_MAX - 1));
        assert!(
            !withholds(&mut room, &arena, now + PACED_MAX),
            "the wait reached its limit"
        );
        room.gateways[0].kept = Some(90);
        assert!(
            !withholds(&mut room, &arena, now + PACED_MAX),
            "few messages are between"
        );
        room.gateways[0].kept = Some(1);
        assert!(withholds(&mut room, &arena, now + PACED_MAX), "another one");
        while room.ring.first() < 2 {
            let entry = Entry {
                data: &[0; 1 << 10],
                ..Entry::default()
            };
            room.ring.push(&mut arena, now, &entry);
        }
        assert!(!withholds(&mut room, &arena, now), "there is nothing to wait for");
        room.gateways[0].kept = None;
        assert!(
            !withholds(&mut room, &arena, now),
            "sent messages of a live room need no wait"
        );
    }

    #[test]
    fn a_publisher_waits_half_a_second_at_most() {
        let mut arena = Arena::new(1 << 20);
        let (mut room, now) = paced(&mut arena);
        room.withheld = vec![(1, now), (2, now + 1)];
        let mut released = |at, withholds| room.release(at, withholds).collect::<Vec<_>>();
        assert!(released(now + WITHHOLD_MAX - 1, true).is_empty());
        assert_eq!(released(now + WITHHOLD_MAX, true), [1]);
        assert_eq!(released(now + WITHHOLD_MAX, false), [2]);
    }
}
