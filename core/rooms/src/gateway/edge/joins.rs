//! Subscriptions: a place in a room for each, what a client missed, and the end of one with its reason.
//!
//! A client's position is proven or not: `recovered` is said only where every message since is here or on its way, with no gap
//! between. Else the client starts at the head, behind all gaps.

use std::cell::Cell;

use muster_edge::protocol::{Position, SubscribeResult};
use muster_edge::{Failure, Join, Subscription, Ticket, Unsubscribe};
use muster_transport::Micros;

use super::frames::{passes, stands, Passes, Stands, Whole};
use super::publishing::failure;
use super::{filters, positions, Deltas, Edge, Left, Pending, PendingKind, Sub};
use crate::gateway::filtering::{Filtering, COUNTED_MAX};
use crate::gateway::latest::Standing;
use crate::gateway::members::Members;
use crate::gateway::room::Room;
use crate::gateway::{LEAVE_HOLD, SESSION_ROOMS};
use crate::ring::Arena;
use crate::wire::publish::Positions;
use crate::wire::{GapReason, StreamGap};

/// Bytes of messages in the reply to a subscribe command; those beyond follow as pushes, in frames that members share.
pub(super) const RECOVERED_BYTES: usize = 384 * 1024;
/// Places that are looked through for gaps behind a client's position: the most that a join fetches.
const LOOKED_MAX: u64 = crate::gateway::room::BACKFILL_MAX + 4_096;

/// The messages from `place` on that a filter lets through and that fit into so many bytes and so many messages, and the place
/// behind them.
pub(super) fn messages<'a>(
    room: &Room,
    arena: &'a Arena,
    place: u64,
    stream: u8,
    (bytes_max, count_max): (usize, usize),
    filter: Option<&Filtering>,
) -> (Vec<Whole<'a>>, u64) {
    let (mut found, mut bytes, mut next, looked) = (Vec::new(), 0, place, Cell::new(0));
    while next < room.ring.next() && bytes < bytes_max && found.len() < count_max && looked.get() < COUNTED_MAX {
        if filter.is_some_and(|filter| passes(room, arena, next, (filter, &looked)) == Passes::Yes) {
            next += 1;
            continue;
        }
        match stands(room, arena, next, stream) {
            Stands::Message(whole) => {
                bytes += whole.len() + 200;
                found.push(whole);
            }
            Stands::Another => break, // told in its turn
            Stands::Nothing | Stands::Lost(_) | Stands::Gone => {}
        }
        next += 1;
    }
    (found, next)
}

/// Whether messages between a place and the head are lost.
fn has_gap(room: &Room, arena: &Arena, place: u64) -> bool {
    let head = room.ring.next();
    if head.saturating_sub(place) > LOOKED_MAX || place < room.ring.readable(arena, place) {
        return true;
    }
    (place..head).any(|at| {
        let entry = room.ring.get(arena, at);
        entry.is_none_or(|entry| entry.gap && entry.reason() != GapReason::Ended)
    })
}

/// The room's newest stream by number, and the position of a client there that has all before `place`.
pub(super) fn position(room: &Room, arena: &Arena, place: u64) -> Option<(u8, Position)> {
    let newest = room.newest()?.stream;
    let number = room.sources().iter().position(|source| source.stream == newest)?;
    let told = positions::told(&room.position_at(arena, place), newest);
    Some((number as u8, told))
}

/// Where a client starts, with what it missed.
pub(super) struct Beginning<'a> {
    /// Nothing is missing since the position that it showed.
    pub recovered: bool,
    /// The place since which messages are lost for it.
    pub lost: Option<u64>,
    pub stream: u8,
    pub position: Position,
    pub found: Vec<Whole<'a>>,
    /// The place behind those.
    pub next: u64,
}

/// Where a client starts that has a place in a room. `shown`: the positions that it showed, unless gaps are known before its
/// place. `bytes_max`: of the messages that it missed, as many are found, if its filter lets them.
pub(super) fn beginning<'a>(
    room: &Room,
    arena: &'a Arena,
    shown: Option<&Positions>,
    recovering: bool,
    place: u64,
    bytes_max: usize,
    filter: Option<&Filtering>,
) -> Beginning<'a> {
    let recovered = shown.is_some() && !has_gap(room, arena, place);
    let lost = (recovering && !recovered).then_some(place);
    // Without an owner there is no stream to begin in: the gap behind its place is told once there is one.
    let place = match recovered || !recovering || room.live().next().is_none() {
        true => place,
        false => room.ring.next(),
    };
    let (stream, position) = position(room, arena, place).unwrap_or_default();
    let bounds = if recovered { (bytes_max, usize::MAX) } else { (0, 0) };
    let (mut found, next) = messages(room, arena, place, stream, bounds, filter);
    // Streams of several owners lie between each other: it has some of those behind its place.
    found.retain(|message| {
        let had = room.sources().get(usize::from(message.stream));
        let had = had.and_then(|source| shown?.of(source.stream));
        had.is_none_or(|had| had.offset < message.offset)
    });
    Beginning {
        recovered,
        lost,
        stream,
        position,
        found,
        next,
    }
}

impl Edge {
    /// A client asks for a channel.
    pub(super) fn subscribe(
        &mut self,
        now: Micros,
        slot: u32,
        ticket: Ticket,
        subscription: Subscription,
        join: Box<Join>,
    ) {
        // With an empty epoch the present stream is meant, which is known once the room is.
        let had = match &join.recover {
            Some(position) if !position.epoch.is_empty() => positions::shown(position),
            _ => None,
        };
        let name = join.channel.clone();
        let had = had.filter(|had| !had.0.is_empty());
        let filter = match filters::wanted(&join) {
            Ok(filter) => filter,
            Err(failure) => {
                self.sessions.counters.subscriptions_refused += 1;
                return self.fail(now, slot, ticket, failure);
            }
        };
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        conn.requests = conn.requests.wrapping_add(1);
        let request = conn.requests;
        filter
            .into_iter()
            .for_each(|filter| conn.client.ask_filter(request, filter));
        conn.pending.push(Pending {
            request,
            ticket,
            kind: PendingKind::Join(subscription, join, had.clone()),
        });
        let asked = (had.unwrap_or_default(), 0);
        if let Err(code) = self.join(now, slot, request, name.as_bytes(), asked) {
            self.counters.joins_refused += 1;
            self.subscription_refused(now, slot, request, failure(code));
        }
    }

    /// A join or a question for history is not granted.
    pub(super) fn subscription_refused(&mut self, now: Micros, slot: u32, request: u32, failure: Failure) {
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let Some(pending) = conn.take_pending(request) else {
            return;
        };
        match pending.kind {
            PendingKind::Left => return,
            PendingKind::Entry(_) => return self.entry_refused(now, slot, failure),
            PendingKind::Join(..) | PendingKind::History(_) => {}
        }
        if let Some(session) = conn.connection.session() {
            session.fail(pending.ticket, failure);
        }
        self.sessions.counters.subscriptions_refused += 1;
        self.sessions.settle(now, slot);
    }

    /// A room has a place for a session.
    pub(super) fn room_joined(
        &mut self,
        now: Micros,
        slot: u32,
        (request, at, place): (u32, u32, u64),
        gaps: &[StreamGap],
        whole: bool,
    ) {
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let Some(pending) = conn.take_pending(request) else {
            return;
        };
        match pending.kind {
            PendingKind::Join(subscription, join, had) => {
                let asked = (subscription, join, had);
                self.subscribed(now, slot, pending.ticket, asked, (request, at, place), gaps, whole);
            }
            PendingKind::Entry(entry) => self.entered(now, slot, entry, (at, place), gaps, whole),
            PendingKind::History(wanted) => self.tell_history(now, slot, pending.ticket, &wanted, at, place),
            PendingKind::Left => {
                let others = conn
                    .pending
                    .iter()
                    .any(|other| matches!(&other.kind, PendingKind::Join(..)));
                // Another join of the same room may be on its way, or there.
                if !others && conn.subs.iter().all(|sub| sub.room != at) {
                    self.leave(now, slot, at);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn subscribed(
        &mut self,
        now: Micros,
        slot: u32,
        ticket: Ticket,
        (subscription, join, had): (Subscription, Box<Join>, Option<Positions>),
        (request, at, place): (u32, u32, u64),
        gaps: &[StreamGap],
        whole: bool,
    ) {
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        // A position without an epoch: in the present stream.
        if had.is_none() && join.recover.as_ref().is_some_and(|position| position.epoch.is_empty()) {
            let (offset, newest) = (join.recover.as_ref().map_or(0, |had| had.offset), room.newest());
            if let Some(stream) = newest.map(|source| source.stream) {
                let had = Positions::at([(stream, offset)]);
                let name = join.channel.clone();
                if let Some(conn) = self.sessions.live_mut(slot) {
                    if let Ok(Some(filter)) = filters::wanted(&join) {
                        conn.client.ask_filter(request, filter);
                    }
                    conn.pending.push(Pending {
                        request,
                        ticket,
                        kind: PendingKind::Join(subscription, join, Some(had.clone())),
                    });
                }
                if let Err(code) = self.join(now, slot, request, name.as_bytes(), (had, 0)) {
                    self.subscription_refused(now, slot, request, failure(code));
                    self.leave(now, slot, at);
                }
                return;
            }
        }
        let place = match &had {
            Some(had) => self.take_left(now, slot, at, had).unwrap_or(place).max(place),
            None => place,
        };
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        let recovering = join.recover.is_some();
        let shown = had.as_ref().filter(|_| whole && gaps.is_empty());
        let filter = self.sessions.live(slot).and_then(|conn| conn.client.filtering(at));
        // A difference is to the message before, which a filter may have passed.
        let deltas = join.delta && filter.is_none();
        let begun = beginning(room, &self.arena, shown, recovering, place, RECOVERED_BYTES, filter);
        let standing = filter.and_then(Filtering::standing);
        let counters = &mut self.sessions.counters;
        counters.recovered += u64::from(recovering && begun.recovered);
        counters.unrecovered += u64::from(recovering && !begun.recovered);
        let Beginning {
            recovered,
            lost,
            stream,
            position,
            mut found,
            next,
        } = begun;
        if standing.is_some() {
            found.drain(..found.len().saturating_sub(1));
        }
        let caught = !found.is_empty();
        let head = room.ring.next();
        let encoding = self.sessions.conn(slot).and_then(|conn| conn.connection.encoding());
        let texts: Vec<_> = found
            .iter()
            .map(|message| message.held(encoding.filter(|_| deltas)))
            .collect();
        let publications: Vec<_> = found
            .iter()
            .zip(&texts)
            .map(|(message, text)| message.publication_as(stream, text.as_deref()))
            .collect();
        let refused = recovering && !recovered && join.reject_unrecovered;
        let ttl_s = self.sessions.live(slot).and_then(|conn| {
            let of_room =
                |ticketed: &&super::Ticketed| (ticketed.room.id, ticketed.room.check) == (room.id, room.check);
            super::asks::ttl(now, conn.ticketed.iter().find(of_room)?.until, conn.incarnation)
        });
        let result = SubscribeResult {
            expires: ttl_s.is_some(),
            ttl_s: ttl_s.unwrap_or(0),
            recoverable: true,
            positioned: true,
            epoch: &position.epoch,
            offset: position.offset,
            publications: &publications,
            recovered,
            was_recovering: recovering,
            delta: deltas,
            id: if join.compaction { i64::from(at) + 1 } else { 0 },
            ..SubscribeResult::default()
        };
        let conn = self.sessions.conns.get_mut(slot);
        let Some(conn) = conn else { return };
        let Some(session) = conn.connection.session() else {
            return;
        };
        let joined = match refused {
            true => {
                session.fail(ticket, Failure::UnrecoverablePosition);
                false
            }
            false => session.joined(now, ticket, &result),
        };
        drop(publications);
        if let Some(from) = lost {
            self.note_missed(slot, at, from, gaps);
        }
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        if joined {
            conn.subs.retain(|sub| sub.room != at);
            conn.add_sub(Sub {
                room: at,
                subscription,
                stream,
                compact: join.compaction,
                bare: !join.channel.contains(':'),
                deltas: if deltas { Deltas::First } else { Deltas::No },
                made: false,
            });
            if let Some(joined) = conn.client.joined.iter_mut().find(|joined| joined.room == at) {
                joined.cursor = next;
                joined.joined_at = joined.joined_at.max(head);
            }
            if let Some(standing) = standing.filter(|_| caught) {
                let due_at = now + standing.period;
                if let Some(filter) = conn.client.filtering_mut(at) {
                    filter.stand(Standing { due_at, ..standing });
                }
            }
            self.sessions.counters.subscriptions += 1;
            self.sessions.mark(slot);
            self.note_cursors(slot);
            if join.join_leave {
                self.watch(now, slot, at, subscription);
            }
        } else {
            self.leave(now, slot, at);
        }
        self.sessions.settle(now, slot);
    }

    /// A client has left a channel, or its subscription is over.
    pub(super) fn unsubscribe(&mut self, now: Micros, slot: u32, subscription: Subscription) {
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        for pending in &mut conn.pending {
            if matches!(&pending.kind, PendingKind::Join(asked, ..) if *asked == subscription) {
                pending.kind = PendingKind::Left;
            }
        }
        let Some(at) = conn.subs.iter().position(|sub| sub.subscription == subscription) else {
            return;
        };
        let sub = conn.subs.swap_remove(at);
        conn.server_subs.forget(subscription);
        self.leave(now, slot, sub.room);
    }

    /// Notes where a client stands whose subscription ends without a loss. Messages of the next owner that it has already got had
    /// no offset, so the position that it shows is before them.
    pub(super) fn note_left(&mut self, now: Micros, slot: u32, at: u32) {
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let Some(sub) = conn.subs.iter().find(|sub| sub.room == at) else {
            return;
        };
        let joined = conn.client.joined.iter().find(|joined| joined.room == at);
        let source = room.sources().get(usize::from(sub.stream));
        let Some((place, stream)) = joined
            .map(|joined| joined.cursor)
            .zip(source.map(|source| source.stream))
        else {
            return;
        };
        let Some(had) = room.position_at(&self.arena, place).of(stream) else {
            return;
        };
        let left = &mut conn.aside.get_or_insert_default().left;
        left.retain(|other| now < other.until && other.room.0 != at);
        if left.len() >= SESSION_ROOMS {
            left.pop_front();
        }
        left.push_back(Left {
            room: (at, room.id),
            place,
            shown: (stream, had.offset),
            until: now + LEAVE_HOLD,
        });
    }

    /// The place where a client left this room a moment ago, if it has all before it.
    fn take_left(&mut self, now: Micros, slot: u32, at: u32, had: &Positions) -> Option<u64> {
        let id = self.rooms.get(at)?.id;
        let left = &mut self.sessions.live_mut(slot)?.aside.as_deref_mut()?.left;
        let index = left.iter().position(|left| left.room.0 == at)?;
        let left = left.remove(index)?;
        let (stream, offset) = left.shown;
        let same = left.room.1 == id && now < left.until && had.of(stream)?.offset == offset;
        same.then_some(left.place)
    }

    /// Ends a subscription from this side: its client asks again, and hears what it can still have.
    pub(super) fn end_subscription(&mut self, now: Micros, slot: u32, room: u32, code: Unsubscribe, reason: &str) {
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let Some(at) = conn.subs.iter().position(|sub| sub.room == room) else {
            return;
        };
        let sub = conn.subs.swap_remove(at);
        conn.server_subs.forget(sub.subscription);
        self.leave(now, slot, room);
        self.sessions.with(now, slot, |connection, turn, _| {
            if let Some(session) = connection.session() {
                session.unsubscribed(turn, sub.subscription, code, reason);
            }
        });
        self.sessions.settle(now, slot);
    }
}
