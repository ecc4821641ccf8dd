//! The client: a session with a gateway to join rooms, and a session with a proxy to publish. Both are reopened when
//! lost; while there are commands, spare sessions with other proxies carry copies.
//!
//! `sessions` keeps the sessions and `spares` the further ones, `joining` enters and leaves rooms, `rooms` holds those
//! that are read, each a `member`, `publications` those that are written, each a `publication`, and `commands` carries
//! commands to members.

mod attempt;
mod choice;
mod commands;
mod farewell;
mod frames;
pub mod held;
mod joining;
mod lulls;
pub mod member;
pub mod publication;
mod publications;
mod rooms;
mod seen;
mod servers;
mod sessions;
mod silence;
mod spares;

use std::collections::VecDeque;

use crate::filter::Filter;

use muster_transport::{
    Addr, Code, ControlRecord, Entropy, Identity, Inbox, KeyedState, Machine, Micros, Node, Outbox, Raw, Role,
    SocketId, Versions,
};

use crate::command::{Outcome, Page};
use crate::wire::publish::{publish_body_max, Positions, PUBLISHED};
use crate::wire::record::Record;
use crate::wire::room::message_max;
use crate::wire::StreamGap;
pub use commands::CommandError;
use commands::Commands;
use joining::LOG_FULL_WAIT;
use member::{Item, Member, Policy};
use publication::{Publication, PublishError, Published};
use publications::Publications;
use rooms::Rooms;
use servers::distinct;
use sessions::{Session, Slot, State};

/// The longest reconnect wait if no server answers: unanswered hellos cost servers nothing, and a returning server is
/// found soon. A server that answers only with cookies is overloaded, so this does not apply.
pub const UNANSWERED_MAX: Micros = 500_000;
/// First interval between hellos of one attempt, and the longest; it doubles each time. The interval is at least a
/// round trip, since each hello that reaches a server costs it a handshake.
pub const HELLO_FIRST: Micros = 50_000;
pub const HELLO_MAX: Micros = 200_000;
/// Longest duration of an attempt; then the next address is tried.
pub const ATTEMPT_MAX: Micros = 2_000_000;
/// A session whose server owes a reply for this long is lost. If another server can be tried, `SILENCE_RTTS` round
/// trips suffice, but at least `SILENCE_MIN`. By then the server was asked some fifteen times, and a mistake costs
/// one extra session.
pub const SILENCE_MAX: Micros = 2_000_000;
/// Reason: the first draw among all servers chose another one.
pub const SPREAD: &str = "spread";
/// First interval between repeats of an unanswered request, and the longest; it doubles each time, plus a random
/// part.
pub const ASK_FIRST: Micros = 100_000;
pub const ASK_MAX: Micros = 200_000;
/// A temporarily refused request is repeated after the server's wait, doubled with each refusal in a row up to this,
/// plus a random part, since many clients are refused at once.
pub const REFUSED_MAX: Micros = 2_000_000;

/// A server's address, and the key that it must prove.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub addr: Addr,
    pub key: [u8; 32],
}

/// The configuration of a client.
pub struct ClientConfig {
    pub gateways: Vec<Endpoint>,
    pub proxies: Vec<Endpoint>,
    /// Whether the client uses servers that other servers announce: gateways, and proxies.
    pub learns: [bool; 2],
    pub credential: Vec<u8>,
    pub payload: usize,
    /// Maximum number of unread bytes per room.
    pub inbox_bytes: usize,
    pub socket: SocketId,
}

/// The two kinds of session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(usize)]
pub enum Side {
    Gateway = 0,
    Proxy = 1,
}

const SIDES: usize = 2;

/// Events for the program.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent {
    /// A session is authenticated.
    Ready {
        side: Side,
        user: u64,
    },
    /// The token of a session ends after this; giving the client another one before that prolongs the session.
    Leased {
        side: Side,
        left_ms: u32,
    },
    /// A session was lost and is being opened again, or was refused for good (`retry` is false); `wait_ms`: a new client would be
    /// refused for so long as well.
    Down {
        side: Side,
        reason: &'static str,
        retry: bool,
        wait_ms: u32,
    },
    /// A server, which has proven its key, supports these protocol versions and none of ours. `release`: the
    /// server's; empty if it is older than version negotiation. The session's loss follows.
    Differs {
        side: Side,
        addr: Addr,
        theirs: Versions,
        release: String,
    },
    /// A member of a room, the first time or again.
    Joined {
        room: u32,
        gaps: Vec<StreamGap>,
    },
    /// A join or an open was refused for good.
    Refused {
        room: u32,
        publication: bool,
        code: Code,
    },
    /// A room has something to read.
    Readable {
        room: u32,
    },
    /// A room can be published to again.
    Writable {
        publication: u32,
    },
    /// A room can be opened for publishing again.
    Vacant,
    Published(Published),
    /// A whole record from the guest of a session's server.
    Guest {
        side: Side,
        record: Vec<u8>,
    },
    /// The outcome of a command, or a page of members; a refused one may be sent again after `retry_ms`.
    Commanded {
        number: u64,
        outcome: Outcome,
        retry_ms: u32,
        page: Option<Page>,
    },
}

/// A room that was opened for publishing; and the least recently used one, if it was closed to make room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    pub publication: u32,
    pub closed: Option<u32>,
}

muster_transport::counters! {
    /// A client's counters.
    pub struct ClientCounters {
        /// Datagrams taken.
        datagrams_received,
        /// Datagrams dropped, for any reason.
        datagrams_dropped,
        /// Datagrams sent.
        datagrams_sent,
        /// Sessions that were lost, without those that only carried copies of commands.
        sessions_lost,
        /// Frames of rooms of which this client is not (yet) a member.
        frames_unknown_room,
        /// Messages acknowledged.
        published,
        /// Messages sent again.
        publish_repeated,
    }
}

/// A client: it joins rooms through a gateway and publishes through a proxy.
///
/// Open a session for each side with [`Client::open`]; a lost one is reopened by itself. [`Client::join`] returns a
/// number for the room, and [`Client::read`] its items. [`Client::publication`] opens a room for
/// [`Client::publish`]. [`Client::command`] and [`Client::count`] reach the members of a room. Call these at any time,
/// and run the verbs of [`Machine`] in every turn: `receive`, `expire`, `transmit`, then `drain_events`.
/// [`Client::close`] ends all sessions.
///
/// ```no_run
/// use muster_rooms::wire::Positions;
/// use muster_rooms::{Client, ClientConfig, Policy, Side};
/// use muster_transport::{Entropy, Machine};
///
/// # struct Zeros;
/// # impl Entropy for Zeros {
/// #     fn fill(&mut self, bytes: &mut [u8]) {
/// #         bytes.fill(0);
/// #     }
/// # }
/// # let entropy = Box::new(Zeros);
/// let config = ClientConfig {
///     gateways: Vec::new(), // addresses and keys of servers
///     proxies: Vec::new(),
///     learns: [true; 2],
///     credential: b"token".to_vec(),
///     payload: 1_200,
///     inbox_bytes: 1 << 20,
///     socket: 0,
/// };
/// let mut client = Client::new(config, 1, entropy);
/// let now = 1_000_000; // microseconds of a monotonic clock
/// client.open(now, Side::Gateway);
/// client.open(now, Side::Proxy);
/// let room = client.join(now, "sports:7", Positions::default(), Policy::DropOldest);
/// let opened = client.publication(now, "sports:7").expect("a free slot");
/// let _ = client.publish(opened.publication, b"1:0", 0); // `WouldBlock` until there is credit
///
/// // After each turn:
/// let mut events = Vec::new();
/// client.drain_events(&mut events);
/// let mut data = Vec::new();
/// while let Some(_item) = client.read(now, room, &mut data) {}
/// client.close();
/// ```
pub struct Client {
    node: Node,
    credential: Vec<u8>,
    socket: SocketId,
    /// The two main sessions and, after the first command, the spares.
    sessions: Vec<Session>,
    rooms: Rooms,
    publications: Publications,
    commands: Commands,
    /// The client asks the gateway for the ages of messages.
    ages: bool,
    /// Number of the last request to join or to open a room.
    request: u32,
    /// Size of the socket's receive buffer, in bytes.
    window: u32,
    /// When sockets held unread datagrams.
    behind_at: Option<Micros>,
    /// When the client last checked for unread datagrams.
    looked_at: Micros,
    closing: bool,
    pub counters: ClientCounters,
    events: VecDeque<ClientEvent>,
}

impl Client {
    pub fn new(config: ClientConfig, seed: u64, entropy: Box<dyn Entropy>) -> Self {
        let me = Identity {
            node: 0,
            role: Role::CLIENT,
            epoch: 0,
        };
        let mut node = Node::new(me, config.payload, seed, entropy);
        let [gateways, proxies] = config.learns;
        let sessions = [(config.gateways, gateways), (config.proxies, proxies)].map(|(endpoints, learns)| {
            let endpoints = distinct(endpoints);
            let at = node.dice.below(endpoints.len() as u64) as usize;
            Session::new(endpoints, learns, at)
        });
        let sessions = Vec::from(sessions);
        let incarnation = node.secret_u64();
        let hash = KeyedState::new(node.secret_u64(), node.secret_u64());
        Client {
            credential: config.credential,
            socket: config.socket,
            sessions,
            rooms: Rooms::new(config.inbox_bytes, hash),
            publications: Publications::new(incarnation),
            commands: Commands::default(),
            ages: false,
            request: 0,
            window: 212_992,
            behind_at: None,
            looked_at: 0,
            closing: false,
            counters: ClientCounters::default(),
            events: VecDeque::new(),
            node,
        }
    }

    /// Sets the actual size of the socket's receive buffer, in bytes.
    pub fn set_buffer(&mut self, bytes: u32) {
        self.window = bytes;
    }

    /// Opens a session, and keeps it open.
    pub fn open(&mut self, now: Micros, side: Side) {
        let session = &mut self.sessions[side as usize];
        session.wanted = true;
        session.begin(now);
        if session.servers.is_empty() && session.servers.learns {
            self.open_teller(now, side);
        }
    }

    /// Replaces the servers or the credential. A working session stays; if its token has an end, it shows the new
    /// credential to its server. A session that waits for a removed server, or had the old credential, is soon
    /// reopened. If the given servers are unchanged, announced ones stay too.
    pub fn redirect(&mut self, now: Micros, gateways: Vec<Endpoint>, proxies: Vec<Endpoint>, credential: Vec<u8>) {
        let other = self.credential != credential;
        let (gateways, proxies) = (distinct(gateways), distinct(proxies));
        self.credential = credential;
        let evenly = |endpoints: Vec<Endpoint>| endpoints.into_iter().map(|endpoint| (endpoint, 1)).collect();
        let [gateways, proxies]: [Vec<_>; 2] = [gateways, proxies].map(evenly);
        for slot in Slot::all(self.sessions.len()) {
            let given = match slot {
                Slot::Main(Side::Gateway) => gateways.clone(),
                Slot::Main(Side::Proxy) => proxies.clone(),
                Slot::Spare(_) => self.sessions[Side::Proxy as usize].servers.weighed(),
            };
            let session = &mut self.sessions[slot.at()];
            let changed = !session.servers.are_given(&given);
            let used = session.state == State::Ready;
            let stays = !changed || session.servers.give(now, &mut self.node.dice, given, used);
            let again = match session.state {
                State::Idle | State::Ready => false,
                // A session that a newer one replaced, or that an operator ended, does not return by itself, whatever its
                // next token is.
                State::Refused => (other || changed) && !session.replaced,
                State::Waiting | State::Knocking | State::Opening => !stays || other,
            };
            if again {
                let due = now + self.node.dice.below(session.attempt.first_wait());
                let (attempts, next_at) = (session.attempt.count, session.attempt.next_at);
                let waits = session.state == State::Waiting && next_at > now;
                session.restart(if waits { due.min(next_at) } else { due });
                session.attempt.count = attempts;
            }
            session.begin(now);
            if let Some(conn) = session.conn.as_mut().filter(|_| other && session.leased) {
                // If there is no space for it, the session ends with its token, and another one is opened.
                conn.record(&Record::Control(ControlRecord::Authenticate {
                    credential: &self.credential,
                }));
            }
        }
        self.keep_spares(now);
    }

    /// Asks for the ages of messages from the next session on.
    pub fn set_ages(&mut self) {
        self.ages = true;
    }

    /// Uses these protocol versions from now on, to stand in for another release.
    pub fn set_versions(&mut self, versions: Versions) {
        self.node.versions = versions;
    }

    /// The protocol version of a session.
    pub fn version(&self, side: Side) -> Option<u8> {
        let session = &self.sessions[side as usize];
        session.version.filter(|_| session.conn.is_some())
    }

    /// Whether a session is authenticated.
    pub fn is_ready(&self, side: Side) -> bool {
        self.sessions[side as usize].state == State::Ready
    }

    /// Smoothed round trip of a session in microseconds.
    pub fn rtt(&self, side: Side) -> Option<Micros> {
        self.sessions[side as usize].conn.as_ref().map(|conn| conn.flow.rtt())
    }

    /// Joins a room. The gateway checks the name.
    pub fn join(&mut self, now: Micros, name: &str, positions: Positions, policy: Policy) -> u32 {
        self.enter(now, name, (positions, 0), None, policy)
    }

    /// Joins a room and asks for up to `history` of its last messages first.
    pub fn join_last(&mut self, now: Micros, name: &str, history: u32, policy: Policy) -> u32 {
        self.enter(now, name, (Positions::default(), history), None, policy)
    }

    /// The same with positions or history, for the messages that a filter lets through.
    pub fn join_filtered(
        &mut self,
        now: Micros,
        name: &str,
        from: (Positions, u32),
        filter: Filter,
        policy: Policy,
    ) -> u32 {
        self.enter(now, name, from, Some(filter.into()), policy)
    }

    /// Leaves a room. Unread messages are dropped.
    pub fn leave(&mut self, room: u32) {
        let Some(handles) = self.rooms.leave(room) else {
            return;
        };
        // At once, so that it precedes a join that follows: the room keeps its handle.
        handles.for_each(|handle| self.tell_leave(handle));
        self.set_window();
    }

    /// A joined room.
    pub fn room(&self, room: u32) -> Option<&Member> {
        self.rooms.get(room)
    }

    /// Reads the next item of a room; appends a message's bytes to `data`.
    pub fn read(&mut self, now: Micros, room: u32, data: &mut Vec<u8>) -> Option<Item> {
        let (member, mut shared) = self.rooms.with_shared(now, room)?;
        let item = member.read(data);
        if member.is_blocked() && member.unblock(&mut shared) {
            let deadline = member.deadline();
            self.rooms.check(deadline);
            self.set_window();
        }
        item
    }

    /// Opens a room for publishing, unless it is open. `None`: rooms with unacknowledged messages take all slots;
    /// [`ClientEvent::Vacant`] reports when one is free.
    pub fn publication(&mut self, now: Micros, name: &str) -> Option<Opened> {
        if let Some(publication) = self.publications.named(name) {
            return Some(Opened {
                publication,
                closed: None,
            });
        }
        let idle = match self.publications.has_place() {
            true => None,
            false => match self.idle_publication() {
                Some(at) => Some(at),
                None => {
                    self.publications.note_full();
                    return None;
                }
            },
        };
        self.request += 1;
        let (number, closed) = self.publications.open(name, self.request, idle);
        let session = &mut self.sessions[Side::Proxy as usize];
        let handle = closed.as_ref().and_then(|closed| closed.handle);
        if let (Some(handle), Some(conn)) = (handle, &mut session.conn) {
            conn.record(&Record::Close { handle });
        }
        self.open(now, Side::Proxy);
        self.ask_open(now, Publications::place(number));
        Some(Opened {
            publication: number,
            closed: closed.map(|closed| closed.number),
        })
    }

    /// The publication that can be closed and was used least recently.
    fn idle_publication(&self) -> Option<usize> {
        let session = &self.sessions[Side::Proxy as usize];
        let log_full = session.conn.as_ref().is_some_and(|conn| conn.log.is_crowded());
        match log_full {
            true => None,
            false => self.publications.idle(session.ready),
        }
    }

    fn ask_open(&mut self, now: Micros, at: usize) {
        let publication = self.publications.at(at);
        let session = &mut self.sessions[Side::Proxy as usize];
        if !session.ready || publication.refused.is_some() {
            return;
        }
        if let Some(conn) = &mut session.conn {
            let asked = conn.record(&Record::Open {
                request: publication.request,
                name: publication.name.as_bytes(),
                incarnation: publication.incarnation,
            });
            publication.retry_at = asked.is_none().then_some(now + LOG_FULL_WAIT);
        }
    }

    /// Publishes a message. Unless `ticket` is 0, [`ClientEvent::Published`] names it once the owner has numbered the
    /// message.
    pub fn publish(&mut self, publication: u32, data: &[u8], ticket: u64) -> Result<(), PublishError> {
        self.publish_headed(publication, &[], data, ticket)
    }

    /// The same with a block of headers ([`encode`](crate::headers::encode)). It waits for a proxy that passes headers on.
    pub fn publish_headed(
        &mut self,
        publication: u32,
        headers: &[u8],
        data: &[u8],
        ticket: u64,
    ) -> Result<(), PublishError> {
        let chunk_max = chunk_max(self.node.payload);
        self.publications
            .publish(publication, (headers, data), ticket, chunk_max)
    }

    /// A room opened for publishing.
    pub fn publishing(&self, publication: u32) -> Option<&Publication> {
        self.publications.get(publication)
    }

    /// Sends a whole record to the guest of a session's server. `false`: the session is not ready, or its log is
    /// full.
    pub fn tell_guest(&mut self, side: Side, record: &[u8]) -> bool {
        let session = &mut self.sessions[side as usize];
        let conn = session.conn.as_mut().filter(|_| session.state == State::Ready);
        conn.is_some_and(|conn| conn.record(&Raw(record)).is_some())
    }

    /// Closes the sessions: the next slice tells the servers.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether all closing messages have been sent.
    pub fn is_closed(&self) -> bool {
        self.closing && self.sessions.iter().all(|session| session.conn.is_none())
    }
}

/// Data bytes of one chunk in datagrams of `payload` bytes: it must fit into a publish frame and, with its
/// publisher's id, into a room block.
pub const fn chunk_max(payload: usize) -> usize {
    let published = publish_body_max(payload) - PUBLISHED;
    let delivered = message_max(payload);
    if published < delivered {
        published
    } else {
        delivered
    }
}

impl Machine for Client {
    type Event = ClientEvent;

    // The program wants to read datagrams that waited in the socket while it slept; the gateway decides which are too
    // old.
    const DISCARDS_STALE: bool = false;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        for index in 0..inbox.arrivals.len() {
            let (arrival, datagram) = inbox.datagram(index);
            self.datagram(now, arrival, datagram);
        }
    }

    fn expire(&mut self, now: Micros) {
        for slot in Slot::all(self.sessions.len()) {
            self.expire_session(now, slot);
        }
        self.looked_at = now;
        self.keep_spares(now);
        self.expire_rooms(now);
        self.expire_commands(now);
        for at in 0..self.publications.len() {
            let publication = self.publications.at(at);
            publication.expire(now);
            if publication.retry_at.is_some_and(|at| now >= at) {
                publication.retry_at = None;
                self.ask_open(now, at);
            }
        }
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        self.tell_leaves();
        self.tell_commands(now);
        let mut more = false;
        for slot in Slot::all(self.sessions.len()) {
            more |= self.serve(now, slot, outbox);
        }
        more
    }

    fn deadline(&self) -> Option<Micros> {
        Slot::all(self.sessions.len())
            .map(|slot| self.session_deadline(slot))
            .chain([
                self.rooms.deadline(),
                self.publications.deadline(),
                self.commands.deadline(),
                self.spares_end(),
            ])
            .flatten()
            .min()
    }

    fn drain_events(&mut self, events: &mut Vec<ClientEvent>) {
        if self.publications.is_full() && self.idle_publication().is_some() {
            self.publications.note_vacant();
            self.events.push_back(ClientEvent::Vacant);
        }
        events.extend(self.events.drain(..));
    }

    fn stalled(&mut self, _now: Micros) {
        let conns = self.sessions.iter_mut().filter_map(|session| session.conn.as_mut());
        conns.for_each(|conn| conn.flow.stood_still());
    }

    fn behind(&mut self, now: Micros) {
        self.behind_at = Some(now);
    }
}
