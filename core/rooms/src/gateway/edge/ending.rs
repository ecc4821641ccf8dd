//! Connections that an edge ends by itself: those whose sockets take nothing, and all of them, bit by bit, in a drain.
//!
//! Owns when that is. Clients that are drained hear when to come back.

use muster_edge::Disconnect;
use muster_transport::{End, Micros};

use super::Edge;

/// Full sockets are looked at this often.
const STALLS_EVERY: Micros = 1_000_000;
/// The slices of a drain follow each other after this.
const DRAIN_EVERY: Micros = 100_000;

/// Sockets that take nothing.
pub(super) struct Stalls {
    /// When they are looked at.
    at: Option<Micros>,
    /// How long a client may take nothing.
    limit: Micros,
}

impl Stalls {
    pub fn new(limit: Micros) -> Self {
        Stalls { at: None, limit }
    }

    /// A socket takes nothing from now on.
    pub fn note(&mut self, now: Micros) {
        self.at.get_or_insert(now + STALLS_EVERY);
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.at
    }
}

/// A drain: how long it takes, and how far it is.
pub(super) struct Drain {
    over: Micros,
    under_way: Option<Slices>,
}

/// When a drain is over, and when the next slice goes.
struct Slices {
    until: Micros,
    next: Micros,
}

impl Drain {
    pub fn new(over: Micros) -> Self {
        Drain { over, under_way: None }
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.under_way.as_ref().map(|slices| slices.next)
    }

    /// Begins. Returns when it is over.
    fn begin(&mut self, now: Micros) -> Micros {
        let until = now + self.over;
        self.under_way = Some(Slices { until, next: now });
        until
    }

    fn stop(&mut self) {
        self.under_way = None;
    }

    /// How many slices are left with the one that goes now, if one does.
    fn slices(&mut self, now: Micros) -> Option<usize> {
        let slices = self.under_way.as_mut().filter(|slices| slices.next <= now)?;
        slices.next = now + DRAIN_EVERY;
        Some((slices.until.saturating_sub(now) / DRAIN_EVERY + 1) as usize)
    }

    /// Nobody is left.
    fn rest(&mut self) {
        if let Some(slices) = &mut self.under_way {
            slices.next = Micros::MAX;
        }
    }
}

impl Edge {
    /// Refuses new clients from now on, and sends present ones away in slices.
    pub fn drain_members(&mut self, now: Micros) {
        let until = self.sessions.drain.begin(now);
        let retry_s = until.saturating_sub(now).div_ceil(1_000_000).max(1);
        self.sessions.protocol.settings.busy = Some(u32::try_from(retry_s).unwrap_or(u32::MAX));
    }

    /// Admits clients again.
    pub fn stay_members(&mut self) {
        self.sessions.protocol.settings.busy = None;
        self.sessions.drain.stop();
    }

    /// Whether nothing is left to do after a drain.
    pub fn members_drained(&self) -> bool {
        self.sessions.conns.len() == 0 && self.sessions.publishing.is_idle() && self.lodge.is_idle()
    }

    /// Sends the next slice of clients away.
    pub(super) fn drain_slice(&mut self, now: Micros) {
        let Some(slices) = self.sessions.drain.slices(now) else {
            return;
        };
        let there = self.sessions.conns.iter().filter(|(_, conn)| !conn.over);
        let all: Vec<u32> = there.map(|(slot, _)| slot).collect();
        for slot in all.iter().take(all.len().div_ceil(slices)) {
            self.sessions.counters.ended_drained += 1;
            self.sessions.disconnect(now, *slot, Disconnect::SHUTDOWN, End::Closed);
        }
        if all.is_empty() {
            self.sessions.drain.rest();
        }
        self.cleanup(now);
    }

    /// Ends clients whose sockets have taken nothing for too long.
    pub(super) fn end_stalled(&mut self, now: Micros) {
        if self.sessions.stalls.at.is_none_or(|at| now < at) {
            return;
        }
        let limit = self.sessions.stalls.limit;
        let (mut stalled, mut blocked) = (Vec::new(), false);
        for (slot, conn) in self.sessions.conns.iter() {
            let since = conn.blocked;
            blocked |= since.is_some();
            if since.is_some_and(|since| now >= since + limit) {
                stalled.push(slot);
            }
        }
        self.sessions.stalls.at = blocked.then_some(now + STALLS_EVERY);
        for slot in stalled {
            self.sessions.counters.ended_stalled += 1;
            // Its socket takes no close frame either.
            self.sessions.abort(slot);
        }
        self.cleanup(now);
    }
}
