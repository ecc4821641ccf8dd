//! Spare sessions: while it sends commands, a client has sessions with up to three proxies, so that no single one can
//! delay a command (ROOM-14).
//!
//! Owns when spares exist, and at which proxies. They carry copies of commands and nothing else, and the program does
//! not see them. They are opened, kept and lost like all sessions.

use muster_transport::{Addr, Micros};

use super::{Client, Session, Side, Slot, State, SIDES};
use crate::command::COPIES;

/// Spares besides the main session.
const SPARES: usize = COPIES - 1;
/// Spares are closed this long after the last command ended: a command every few seconds then does not cost two
/// handshakes each, and rare ones leave no sessions behind that cost a keepalive a second.
pub(super) const SPARE_IDLE: Micros = 30_000_000;

impl Session {
    /// The address that the session uses or tries.
    fn stands(&self) -> Option<Addr> {
        match &self.conn {
            Some(conn) => Some(conn.addr),
            None => self.servers.current().map(|server| server.addr),
        }
    }
}

impl Client {
    /// Opens spares while there are commands, one at each proxy; moves spares whose proxy has another session, and
    /// closes them in the end.
    pub(super) fn keep_spares(&mut self, now: Micros) {
        let wanted = self.commands.spares_until().is_some_and(|until| now < until);
        if self.closing || !wanted && self.sessions.len() == SIDES {
            return;
        }
        let known = self.sessions[Side::Proxy as usize].servers.len();
        let count = if wanted { SPARES.min(known.saturating_sub(1)) } else { 0 };
        while self.sessions.len() < SIDES + count {
            self.sessions.push(Session::new(Vec::new(), false, 0));
        }
        for spare in 0..self.sessions.len() - SIDES {
            let slot = Slot::Spare(spare);
            if spare >= count || self.is_doubled(slot) {
                self.close_spare(now, slot);
            }
            if spare < count && self.sessions[slot.at()].state == State::Idle {
                let proxies = self.sessions[Side::Proxy as usize].servers.weighed();
                let session = &mut self.sessions[slot.at()];
                if session.servers.weighed() != proxies {
                    session.servers.give(now, &mut self.node.dice, proxies, false);
                    // servers announced others meanwhile
                }
                let taken = self.taken(slot);
                let session = &mut self.sessions[slot.at()];
                let at = session
                    .servers
                    .choice
                    .next(now, &mut self.node.dice, known, 0..known, &taken);
                if !taken.contains(&at) {
                    session.servers.at = at;
                    session.restart(now);
                } // otherwise two entries have one address: there are fewer proxies than entries
            }
        }
    }

    /// When the spares are closed, if there are any.
    pub(super) fn spares_end(&self) -> Option<Micros> {
        let open = self.sessions[SIDES..]
            .iter()
            .any(|session| session.state != State::Idle);
        self.commands
            .spares_until()
            .filter(|until| open && *until < Micros::MAX)
    }

    /// The proxies that a spare must not use, as indices in its list.
    pub(super) fn taken(&self, slot: Slot) -> Vec<usize> {
        let Slot::Spare(_) = slot else { return Vec::new() };
        let others = (Side::Proxy as usize..self.sessions.len()).filter(|other| *other != slot.at());
        let stands: Vec<Addr> = others
            .map(|other| &self.sessions[other])
            .filter(|other| other.state != State::Idle)
            .filter_map(Session::stands)
            .collect();
        let endpoints = self.sessions[slot.at()].servers.all().iter().enumerate();
        endpoints
            .filter(|(_, endpoint)| stands.contains(&endpoint.addr))
            .map(|(at, _)| at)
            .collect()
    }

    /// Whether an earlier session uses the same proxy; one that is still connecting does not count while this one is
    /// useful.
    fn is_doubled(&self, slot: Slot) -> bool {
        let session = &self.sessions[slot.at()];
        let before = &self.sessions[Side::Proxy as usize..slot.at()];
        let doubled = |other: &&Session| {
            let counts = other.state == State::Ready || session.state != State::Ready;
            counts && other.state != State::Idle && other.stands() == session.stands()
        };
        session.state != State::Idle && before.iter().find(doubled).is_some()
    }

    /// Closes the session with a proxy.
    fn close_spare(&mut self, now: Micros, slot: Slot) {
        let session = &mut self.sessions[slot.at()];
        if session.state != State::Idle {
            session.farewell.close(session.conn.take());
            session.restart(now);
            session.state = State::Idle;
            self.commands.lost_session(slot);
        }
    }
}
