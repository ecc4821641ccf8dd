//! Servers that a client learns of besides those that its program gave it, and how long it keeps them (ROOM-25).
//!
//! Given servers stay, whatever servers announce. Of announced ones the latest list holds, plus the one in use. A
//! list is trusted as much as its server, whose key the client knew, and no further: no list can keep a client from
//! the given servers.

use std::net::Ipv6Addr;

use crate::role;

use muster_transport::{Addr, Dice, Micros, Role, Server, Status};

use super::choice::Choice;
use super::{Client, Endpoint, Side, Slot, State, SPREAD};

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
        if session.servers.learns && (of == side || session.state != State::Ready) {
            let sound = servers.iter().filter(|server| is_sound(server, near));
            let used = !matches!(session.state, State::Idle | State::Waiting | State::Refused);
            session.servers.learn(now, &mut self.node.dice, sound, used);
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
            Side::Gateway => self.rooms.has_joined(),
            Side::Proxy => self.publications.has_opened(),
        };
        let session = &mut self.sessions[side as usize];
        if session.state != State::Ready || !session.servers.spreads() || busy {
            return;
        }
        if session.servers.draw(&mut self.node.dice) {
            self.lose(now, Slot::Main(side), SPREAD);
        }
    }
}

/// The loss of a session.
pub(super) struct Lost {
    /// The client returns to the server, which works and is up again.
    pub(super) returns: bool,
    /// The measured round trip; 0: none.
    pub(super) rtt: Micros,
    /// Failed attempts in a row.
    pub(super) attempts: u32,
}

/// The servers of a session, and the one in use or to be tried.
pub(super) struct Servers {
    /// The first `given` are the program's, the others were announced by servers.
    endpoints: Vec<Endpoint>,
    given: usize,
    pub(super) learns: bool,
    pub(super) at: usize,
    /// The quality of each endpoint.
    pub(super) choice: Choice,
    /// The first draw among all announced servers took place.
    spread: bool,
    /// The server drawn then, and how many sessions had been lost when it became the current one.
    drawn: Option<usize>,
    drawn_at: u64,
    losses: u64,
    /// Servers found since the last common version that support none of ours.
    others: Vec<Endpoint>,
}

impl Servers {
    pub(super) fn new(endpoints: Vec<Endpoint>, learns: bool, at: usize) -> Self {
        Servers {
            given: endpoints.len(),
            learns,
            at,
            choice: Choice::of(endpoints.len()),
            endpoints,
            spread: false,
            drawn: None,
            drawn_at: u64::MAX - 1,
            losses: 0,
            others: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// All servers, the given ones first.
    pub(super) fn all(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The server in use, or to be tried.
    pub(super) fn current(&self) -> Option<&Endpoint> {
        self.endpoints.get(self.at)
    }

    /// Whether exactly these servers are the given ones.
    pub(super) fn are_given(&self, given: &[(Endpoint, u16)]) -> bool {
        let before = self.endpoints[..self.given].iter();
        before.eq(given.iter().map(|(endpoint, _)| endpoint))
    }

    /// A session with the current server begins; both have a version in common.
    pub(super) fn opened(&mut self, now: Micros) {
        self.others.clear();
        self.choice.begin(now);
    }

    /// Takes a status of the server in use. Returns whether to try another.
    pub(super) fn hear(&mut self, now: Micros, rtt: Micros, status: &Status) -> bool {
        self.choice.hear(now, self.at, rtt, status)
    }

    /// The current server has no version in common. Returns its address, and whether another may have.
    pub(super) fn differs(&mut self) -> Option<(Addr, bool)> {
        let endpoint = self.current().cloned()?;
        let addr = endpoint.addr;
        self.others
            .retain(|other| self.endpoints.contains(other) && *other != endpoint);
        self.others.push(endpoint);
        Some((addr, self.others.len() < self.endpoints.len()))
    }

    /// Whether the first draw among all servers is due: once, where others were announced.
    fn spreads(&mut self) -> bool {
        !std::mem::replace(&mut self.spread, true) && self.endpoints.len() > self.given
    }

    /// Draws one of all servers. Returns whether it is another one; the next loss turns to it.
    fn draw(&mut self, dice: &mut Dice) -> bool {
        let drawn = self.choice.draw(dice);
        let other = drawn != self.at;
        if other {
            self.drawn = Some(drawn);
        }
        other
    }

    /// Takes the announced servers. The server in use, or being tried, stays: it is `used`.
    fn learn<'a>(&mut self, now: Micros, dice: &mut Dice, named: impl Iterator<Item = &'a Server> + Clone, used: bool) {
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

    /// The servers with their weights.
    pub(super) fn weighed(&self) -> Vec<(Endpoint, u16)> {
        let endpoints = self.endpoints.iter().cloned().enumerate();
        endpoints
            .map(|(at, endpoint)| (endpoint, self.choice.weight(at)))
            .collect()
    }

    /// Replaces the given servers. Returns whether the current server is still known, or in use.
    pub(super) fn give(&mut self, now: Micros, dice: &mut Dice, given: Vec<(Endpoint, u16)>, used: bool) -> bool {
        self.given = given.len();
        self.take(now, dice, given, used)
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

    /// The session with the current server is lost: turns to the drawn server, or to another that is not `taken`,
    /// unless the client returns to this one.
    pub(super) fn lost(&mut self, now: Micros, dice: &mut Dice, lost: Lost, taken: &[usize]) {
        self.losses += 1;
        if let Some(drawn) = self.drawn.take() {
            (self.at, self.drawn_at) = (drawn, self.losses);
        } else if !lost.returns || self.is_kept(self.at) {
            self.choice.fail(now, self.at, lost.rtt);
            self.turn(now, dice, lost.attempts, taken);
        }
    }

    /// The current server failed: turns to another, and forgets it if it was kept only while in use.
    fn turn(&mut self, now: Micros, dice: &mut Dice, attempts: u32, taken: &[usize]) {
        let (before, all) = (self.at, self.endpoints.len());
        let drawn = attempts == 1 && self.losses == self.drawn_at + 1;
        let given = self.given > 0 && (drawn || attempts > 0 && attempts % GIVEN_EVERY == 0);
        let of = if given { 0..self.given } else { 0..all };
        self.at = self.choice.next(now, dice, before, of, taken);
        if before < all && self.is_kept(before) && self.at != before {
            self.endpoints.remove(before);
            self.choice.remove(before);
            self.at -= usize::from(self.at > before);
        }
    }

    /// Whether this server is in no list anymore, and is kept only while in use.
    fn is_kept(&self, at: usize) -> bool {
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
