//! How sessions begin and end: room for them, their end by time, by a token or by the server.

use super::{unread, End, Gone, Session, Sessions, State, HALF_OPEN_GRACE, HALF_OPEN_LIFE, LINGER, SESSION_BLOCKS};
use crate::address::Debt;
use crate::conn::{Conn, SESSION_LOG_BYTES};
use crate::door::Accepted;
use crate::machine::Micros;
use crate::node::Node;
use crate::table::Peer;
use crate::wire::record::ControlRecord;
use crate::wire::Code;
use std::collections::HashSet;

impl<T: Default> Sessions<T> {
    /// Ends the sessions of these users, and those opened with these tokens.
    pub fn revoke(&mut self, now: Micros, users: &HashSet<u64>, tokens: &HashSet<u64>) {
        let revoked = |peer: &Peer<SESSION_BLOCKS, Session<T>>| {
            peer.data.is_open() && (users.contains(&peer.data.user) || tokens.contains(&peer.data.token))
        };
        let slots = self.table.slots();
        let slots: Vec<u32> = slots
            .filter(|slot| self.table.get(*slot).is_some_and(revoked))
            .collect();
        for slot in slots {
            self.counters.sessions_revoked += 1;
            self.refuse(now, slot, Code::BadCredential);
        }
    }

    /// Ends a session after telling why, and how long a next one would be refused.
    pub fn refuse_for(&mut self, now: Micros, slot: u32, code: Code, retry_ms: u32) {
        let Some(peer) = self.table.get_mut(slot) else { return };
        match code {
            Code::BadCredential => self.counters.refused_credential += 1,
            Code::NotAllowed => self.counters.refused_right += 1,
            Code::Draining => self.counters.sessions_parted += 1,
            Code::RateLimited => self.counters.refused_sessions += 1,
            _ => self.counters.refused_busy += 1,
        }
        if peer.data.state.is_half_open() {
            self.half_open.leave();
        }
        if std::mem::take(&mut peer.data.renewing) {
            self.asking.answered();
        }
        peer.data.state = State::Refused;
        peer.data.end = End::Refused(code);
        peer.data.since = now;
        self.asking.release(&mut peer.data.waiting);
        let refused = ControlRecord::Refused {
            request: 0,
            code,
            retry_ms,
        };
        self.tell(slot, &refused);
        self.table.schedule(slot, Some(now + LINGER));
    }

    /// Ends a session.
    pub fn end(&mut self, slot: u32) {
        if let Some(mut peer) = self.table.take(slot) {
            if peer.data.state == State::Asking || peer.data.renewing {
                self.asking.answered();
            }
            self.asking.release(&mut peer.data.waiting);
            if peer.data.state.is_half_open() {
                self.half_open.leave();
            }
            self.early_bytes -= peer.conn.early_bytes();
            let mut rank = peer.data.rank;
            self.unread.note(slot, &mut rank, unread(&peer), 0);
            self.gone.push(Gone {
                slot,
                id: peer.conn.id,
                end: peer.data.end,
                data: peer.data.data,
            });
        }
    }

    pub(super) fn dies_at(&self, session: &Session<T>, heard_at: Micros) -> Micros {
        match session.state {
            State::HalfOpen | State::Proven | State::Asking => session.since + HALF_OPEN_LIFE,
            State::Refused => session.since + LINGER,
            State::Open => (heard_at + self.idle).min(session.until),
        }
    }

    /// When a session next needs time; `now` at the earliest.
    pub(super) fn due(&self, now: Micros, slot: u32) -> Option<Micros> {
        let peer = self.table.get(slot)?;
        let dies_at = self.dies_at(&peer.data, peer.conn.heard_at);
        Some(peer.conn.deadline().map_or(dies_at, |at| at.min(dies_at)).max(now))
    }

    /// Sends the clients away whose turn it is.
    pub(super) fn part(&mut self, now: Micros) {
        let Some(parting) = self.parting.as_mut().filter(|parting| !parting.is_done()) else {
            return;
        };
        let due = parting.due(now, self.table.capacity());
        for slot in due {
            match self.table.get(slot).map(|peer| peer.data.state) {
                Some(State::Asking) => {
                    self.asking.answered();
                    self.refuse(now, slot, Code::Draining);
                }
                Some(State::Proven | State::Open) => self.refuse(now, slot, Code::Draining),
                Some(State::HalfOpen) => self.end(slot), // its client never showed a credential
                Some(State::Refused) | None => {}
            }
        }
    }

    /// Announces the present servers to the clients whose turn it is.
    pub(super) fn name(&mut self, now: Micros) {
        for slot in self.announcing.due(now, self.table.capacity()) {
            if self.table.get(slot).is_some_and(|peer| peer.data.is_open()) {
                self.name_servers(slot);
            }
        }
    }

    /// Announces the present servers to a client. Skips a nearly full log, which awaited replies need: the next
    /// change, or the next session, informs the client.
    pub(super) fn name_servers(&mut self, slot: u32) {
        for (role, servers) in self.announcing.draw() {
            self.offer(slot, &ControlRecord::Servers { role, servers });
        }
    }

    /// Runs the timers due by `now`.
    pub fn expire(&mut self, now: Micros, node: &mut Node) {
        self.part(now);
        self.name(now);
        while let Some(slot) = self.table.pop_due(now) {
            let Some(peer) = self.table.get(slot) else { continue };
            let dies_at = self.dies_at(&peer.data, peer.conn.heard_at);
            if now >= dies_at {
                if peer.data.is_open() && now >= peer.data.until {
                    self.counters.sessions_token_ended += 1;
                    self.refuse(now, slot, Code::BadCredential);
                    continue;
                }
                if peer.data.is_open() {
                    self.counters.sessions_expired += 1;
                }
                self.end(slot);
                continue;
            }
            let Some(peer) = self.table.get_mut(slot) else { continue };
            let mut ready = false;
            if peer.conn.flow.timeout(now) {
                if !peer.conn.probes() {
                    peer.conn.ask_status(); // otherwise the probe asks
                }
                ready = true;
            }
            if peer.conn.tail_due(now) {
                peer.data.probe = true;
                ready = true;
            }
            if ready || peer.conn.control_due(now) {
                self.table.mark(slot);
            }
            if self.table.waits(slot) {
                // The code that serves the session schedules it again. When it was checked each millisecond until
                // then, a hundred thousand waiting sessions took half of the time.
                self.table.schedule(slot, Some(dies_at));
            } else {
                self.reschedule(now + 1_000, slot);
            }
        }
        self.half_open.expire(now);
        self.accept(now, node);
    }

    pub(super) fn accept(&mut self, now: Micros, node: &mut Node) {
        let versions = node.versions;
        while let Some(accepted) = self
            .door
            .accept(now, |offer| versions.answer(offer), node.entropy.as_mut())
        {
            if self.parting.is_some() {
                continue; // it arrived just before
            }
            if versions.choose(&accepted.payload).is_err() {
                self.door.refuse_version(now, &accepted);
                continue;
            }
            if !self.has_place(now) {
                self.door.counters.dropped_hello_busy += 1;
                continue;
            }
            let id = self.let_in(now, node, &accepted);
            self.door.answer(now, &accepted, id);
        }
    }

    /// Whether another session fits below the limit; the oldest session without a credential makes room if it is past
    /// its grace.
    pub(super) fn has_place(&mut self, now: Micros) -> bool {
        self.table.len() < self.sessions_max || self.end_oldest(now, HALF_OPEN_GRACE)
    }

    /// Ends the oldest session without a credential, if it came at least `grace` ago. `false`: there is none.
    pub(super) fn end_oldest(&mut self, now: Micros, grace: Micros) -> bool {
        while let Some((id, at)) = self.half_open.oldest() {
            let slot = self.table.find(id);
            let peer = slot.and_then(|slot| self.table.get(slot));
            let shows_nothing = peer.is_some_and(|peer| peer.data.state.is_half_open());
            if shows_nothing && now < at + grace {
                return false;
            }
            self.half_open.pop();
            if let Some(slot) = slot.filter(|_| shows_nothing) {
                self.end(slot);
                return true;
            }
        }
        false
    }

    /// Makes a session; if needed, the oldest one without a credential makes room.
    pub(super) fn let_in(&mut self, now: Micros, node: &mut Node, accepted: &Accepted) -> u64 {
        let table = &self.table;
        let shows_nothing = |id| Some(table.get(table.find(id)?)?.data.state.is_half_open());
        self.half_open.bound(|id| shows_nothing(id) == Some(true));
        if self.half_open.is_full() {
            self.end_oldest(now, 0);
        }
        let id = self.make(now, node, accepted);
        self.half_open.push(now, id);
        id
    }

    pub(super) fn make(&mut self, now: Micros, node: &mut Node, accepted: &Accepted) -> u64 {
        let random = node.secret_u32();
        let slot = self.table.insert(random, |id| {
            let secret = accepted.secret.clone();
            let conn = Conn::new(
                id,
                accepted.initiator,
                accepted.socket,
                accepted.from,
                secret,
                false,
                0,
                SESSION_LOG_BYTES,
                now,
            );
            let session = Session {
                user: 0,
                data: T::default(),
                probe: false,
                end: End::Lost,
                state: State::HalfOpen,
                control: Debt::default(),
                since: now,
                waiting: None,
                path: None,
                late: None,
                rank: 0,
                until: Micros::MAX,
                token: 0,
                renewing: false,
            };
            (conn, session)
        });
        self.reschedule(now, slot);
        self.table.get(slot).map_or(0, |peer| peer.conn.id)
    }
}
