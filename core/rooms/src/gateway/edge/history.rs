//! History without a place in the room: the last messages, or those behind or before a position.

use muster_edge::protocol::{HistoryResult, Position};
use muster_edge::{Failure, Ticket};
use muster_transport::Micros;

use super::frames::Whole;
use super::joins::{messages, position};
use super::missed::positions_told;
use super::publishing::failure;
use super::{positions, Edge, Pending, PendingKind};

/// Bytes of messages that one answer looks at.
const BYTES_MAX: usize = 4 << 20;

/// A request for history.
pub(super) struct Wanted {
    pub limit: usize,
    pub since: Option<Position>,
    pub reverse: bool,
    /// The client asks by the call `muster.positions`, for positions alone.
    pub positions: bool,
}

impl Edge {
    pub(super) fn history(&mut self, now: Micros, slot: u32, ticket: Ticket, channel: &str, wanted: Wanted) {
        let since = wanted.since.as_ref().filter(|since| !since.epoch.is_empty());
        let had = since.map(positions::shown);
        if had.as_ref().is_some_and(Option::is_none) {
            return self.fail(now, slot, ticket, Failure::UnrecoverablePosition);
        }
        let forward = wanted.since.is_some() && !wanted.reverse;
        let count = match (wanted.limit, wanted.since.is_some(), wanted.reverse) {
            (0, ..) => 0,
            (limit, false, true) => u32::try_from(limit).unwrap_or(u32::MAX).min(self.rules.history_max),
            _ => self.rules.history_max,
        };
        let asked = match had.flatten().filter(|_| forward && wanted.limit > 0) {
            Some(had) => (had, 0),
            None => (crate::wire::publish::Positions::default(), count),
        };
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        conn.requests = conn.requests.wrapping_add(1);
        let request = conn.requests;
        conn.pending.push(Pending {
            request,
            ticket,
            kind: PendingKind::History(Box::new(wanted)),
        });
        if let Err(code) = self.join_or_peek(now, slot, request, channel.as_bytes(), asked, true) {
            self.subscription_refused(now, slot, request, failure(code));
        }
    }

    /// The room is known: answers with what its ring holds.
    pub(super) fn tell_history(
        &mut self,
        now: Micros,
        slot: u32,
        ticket: Ticket,
        wanted: &Wanted,
        at: u32,
        place: u64,
    ) {
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        let Some((stream, top)) = position(room, &self.arena, room.ring.next()) else {
            return self.fail(now, slot, ticket, Failure::Internal);
        };
        if wanted.positions {
            let all = room.position_at(&self.arena, room.ring.next());
            let text = positions_told(&all, &top.epoch, top.offset).to_string();
            if let Some(session) = self.sessions.conn_mut(slot).and_then(|conn| conn.connection.session()) {
                session.rpc(ticket, text.as_bytes());
            }
            return self.sessions.settle(now, slot);
        }
        let newest = room.newest().map(|source| source.stream);
        let since = match &wanted.since {
            None => None,
            Some(since) if since.epoch.is_empty() => Some(since.offset),
            // Offsets of another stream cannot be compared: from the beginning, or nothing.
            Some(since) => match positions::shown(since).and_then(|had| Some((had.0.last()?.stream, had))) {
                Some((last, had)) if Some(last) == newest => had.of(last).map(|had| had.offset),
                _ => return self.fail(now, slot, ticket, Failure::UnrecoverablePosition),
            },
        };
        let first = if wanted.limit == 0 { room.ring.next() } else { place };
        let (mut found, _) = messages(room, &self.arena, first, stream, (BYTES_MAX, usize::MAX), None);
        let keeps = |message: &Whole<'_>| match (since, wanted.reverse) {
            (None, _) => true,
            (Some(since), false) => message.stream == stream && message.offset > since,
            (Some(since), true) => message.stream != stream || message.offset < since,
        };
        found.retain(keeps);
        if wanted.reverse {
            found.reverse();
        }
        found.truncate(wanted.limit);
        let publications: Vec<_> = found.iter().map(|message| message.publication(stream)).collect();
        let result = HistoryResult {
            publications: &publications,
            epoch: &top.epoch,
            offset: top.offset,
        };
        if let Some(conn) = self.sessions.conns.get_mut(slot) {
            if let Some(session) = conn.connection.session() {
                session.history(ticket, &result);
                self.sessions.counters.histories += 1;
            }
        }
        self.sessions.settle(now, slot);
    }
}
