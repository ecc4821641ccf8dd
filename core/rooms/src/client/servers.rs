//! Servers that a client learns of besides those that its program gave it, and how long it keeps them (ROOM-25).
//!
//! Given servers stay, whatever servers announce. Of announced ones the latest list holds, plus the one in use. A
//! list is trusted as much as its server, whose key the client knew, and no further: no list can keep a client from
//! the given servers.

use std::net::Ipv6Addr;

use crate::role;

use muster_transport::{Dice, Micros, Role, Server};

use super::{Client, Endpoint, Session, Side, Slot, State, SPREAD};

/// A given server is tried after this many failed attempts in a row, and after each further multiple.
const GIVEN_EVERY: u32 = 2;

impl Client {
    /// A server announces others. If there is a session with a kind of server, only that session's server is trusted
    /// for its kind: with several clusters of brokers, a proxy names the proxies of its own cluster.
    pub(super) fn told_servers(&mut self, now: Micros, side: Side, role: Role, servers: &[Server]) {
        let of = match role {
            role::GATEWAY => Side::Gateway,
            role::PROXY => Side::Proxy,
            _ => return,
        };
        let teller = &self.sessions[side as usize];
        let near = teller.conn.as_ref().is_some_and(|conn| is_loopback(&conn.addr.ip));
        let session = &mut self.sessions[of as usize];
        if session.learns && (of == side || session.state != State::Ready) {
            let sound = servers.iter().filter(|server| is_sound(server, near));
            session.learn(now, &mut self.node.dice, sound);
            session.begin(now);
            if of == side {
                self.spread(now, side);
            }
        }
    }

    /// For a kind without known servers, opens a session with the other kind, which announces them.
    pub(super) fn open_teller(&mut self, now: Micros, side: Side) {
        let other = match side {
            Side::Gateway => Side::Proxy,
            Side::Proxy => Side::Gateway,
        };
        let session = &mut self.sessions[other as usize];
        session.wanted = true;
        session.begin(now);
    }

    /// A client that has just learned of other servers moves to a drawn one, before it uses the session: otherwise
    /// all clients would stay with the few given ones.
    fn spread(&mut self, now: Micros, side: Side) {
        let busy = match side {
            Side::Gateway => !self.handles.is_empty(),
            Side::Proxy => self.publications.iter().any(|known| known.handle.is_some()),
        };
        let session = &mut self.sessions[side as usize];
        let others = session.endpoints.len() > session.given;
        if session.state != State::Ready || std::mem::replace(&mut session.spread, true) || busy || !others {
            return;
        }
        let drawn = session.choice.draw(&mut self.node.dice);
        if drawn != session.at {
            session.drawn = Some(drawn);
            self.lose(now, Slot::Main(side), SPREAD);
        }
    }
}

impl Session {
    /// Starts opening the session, if that is wanted and a server is known.
    pub(super) fn begin(&mut self, now: Micros) {
        if self.wanted && self.state == State::Idle && !self.endpoints.is_empty() {
            self.state = State::Waiting;
            self.next_at = now;
        }
    }

    /// Takes the announced servers. The server in use, or being tried, stays.
    fn learn<'a>(&mut self, now: Micros, dice: &mut Dice, named: impl Iterator<Item = &'a Server> + Clone) {
        let used = !matches!(self.state, State::Idle | State::Waiting | State::Refused);
        let given = self.endpoints[..self.given].iter().map(|given| {
            let same = named
                .clone()
                .find(|server| (server.addr, server.key) == (given.addr, given.key));
            (given.clone(), same.map_or(0, |server| server.weight))
        });
        let mut list: Vec<(Endpoint, u16)> = given.collect();
        for server in named {
            let Server { addr, key, weight } = *server;
            if !list.iter().any(|(known, _)| known.addr == addr) {
                list.push((Endpoint { addr, key }, weight));
            }
        }
        self.take(now, dice, list, used);
    }

    /// The session's servers with their weights.
    pub(super) fn weighed(&self) -> Vec<(Endpoint, u16)> {
        let endpoints = self.endpoints.iter().cloned().enumerate();
        endpoints
            .map(|(at, endpoint)| (endpoint, self.choice.weight(at)))
            .collect()
    }

    /// Replaces the given servers. Returns whether the current server is still known, or in use.
    pub(super) fn give(&mut self, now: Micros, dice: &mut Dice, given: Vec<(Endpoint, u16)>) -> bool {
        self.given = given.len();
        self.take(now, dice, given, self.state == State::Ready)
    }

    /// Sets this list, and keeps the history of servers that stay. With `used` the current server is kept too;
    /// returns whether it is listed.
    fn take(&mut self, now: Micros, dice: &mut Dice, mut list: Vec<(Endpoint, u16)>, used: bool) -> bool {
        let current = self.endpoints.get(self.at).cloned();
        if let Some(current) = current.clone().filter(|_| used) {
            if !list.iter().any(|(known, _)| *known == current) {
                list.push((current, 0));
            }
        }
        let place = |known: &Endpoint| self.endpoints.iter().position(|before| before == known);
        let places: Vec<_> = list.iter().map(|(known, weight)| (place(known), *weight)).collect();
        self.choice.keep(places.into_iter());
        self.endpoints = list.into_iter().map(|(known, _)| known).collect();
        let place = |current: Endpoint| self.endpoints.iter().position(|known| *known == current);
        let stands = current.and_then(place);
        self.at = match stands {
            Some(at) => at,
            None => self.choice.next(now, dice, usize::MAX, 0..self.endpoints.len(), &[]),
        };
        stands.is_some()
    }

    /// The current server failed: turns to another, and forgets it if it was kept only while in use.
    pub(super) fn turn(&mut self, now: Micros, dice: &mut Dice, taken: &[usize]) {
        let (before, all) = (self.at, self.endpoints.len());
        let drawn = self.attempts == 1 && self.losses == self.drawn_at + 1;
        let given = self.given > 0 && (drawn || self.attempts > 0 && self.attempts % GIVEN_EVERY == 0);
        let of = if given { 0..self.given } else { 0..all };
        self.at = self.choice.next(now, dice, before, of, taken);
        if before < all && self.is_kept(before) && self.at != before {
            self.endpoints.remove(before);
            self.choice.remove(before);
            self.at -= usize::from(self.at > before);
        }
    }

    /// Whether this server is in no list anymore, and is kept only while in use.
    pub(super) fn is_kept(&self, at: usize) -> bool {
        at >= self.given && self.choice.weight(at) == 0
    }

    /// Whether a final refusal by the current server must be confirmed by a given one.
    pub(super) fn disbelieves(&self) -> bool {
        self.at >= self.given && self.given > 0
    }
}

/// The endpoints without duplicates.
pub(super) fn distinct(endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    let mut known: Vec<Endpoint> = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        if !known.contains(&endpoint) {
            known.push(endpoint);
        }
    }
    known
}

fn is_loopback(ip: &[u8; 16]) -> bool {
    let ip = Ipv6Addr::from(*ip);
    ip.to_ipv4_mapped().map_or(ip.is_loopback(), |ip| ip.is_loopback())
}

/// Whether the address can be a server's; `near`: the announcing server is on this machine.
fn is_sound(server: &Server, near: bool) -> bool {
    let ip = Ipv6Addr::from(server.addr.ip);
    let nowhere = match ip.to_ipv4_mapped() {
        Some(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        None => ip.is_unspecified() || ip.is_multicast(),
    };
    server.addr.port != 0 && server.weight > 0 && !nowhere && (near || !is_loopback(&server.addr.ip))
}
