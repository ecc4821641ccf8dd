//! The client: a session with a gateway to join rooms, and a session with a proxy to publish. Both are reopened when
//! lost; while there are commands, spare sessions with other proxies carry copies.
//!
//! This file keeps the sessions. `member` holds a room that is read, `publication` a room that is written, `commands`
//! commands to members, and `spares` the spare sessions.

mod choice;
mod commands;
pub mod held;
mod lulls;
pub mod member;
pub mod publication;
mod seen;
mod servers;
mod spares;

use std::collections::VecDeque;

use crate::filter::Filter;
use crate::wire::kinds;

use muster_transport::{
    append, frames_max, reset_token, same, soonest, Addr, Arrival, Code, Conn, Control, ControlRecord, DatagramKind,
    Dice, Entropy, Frame, FrameKind, Frames, Header, Identity, Inbox, InitiatorKey, KeyedState, Knock, Machine, Micros,
    NoVersion, Node, Outbox, Raw, Records, Role, SocketId, Versions, Wants, Writer, BACKOFF_FIRST, BACKOFF_MAX, HEADER,
    SESSION_BLOCKS, SESSION_LOG_BYTES,
};

use crate::chunks::Budget;
use crate::command::{Outcome, Page};
use crate::limits::{CROWDED_WINDOW, SESSION_PUBLICATIONS_MAX};
use crate::name::RoomName;
use crate::wire::publish::{publish_body_max, Ack, Positions, PUBLISHED};
use crate::wire::record::Record;
use crate::wire::room::{heads, message_max, write_repair, GapPlace, LeftOut, Passed, RoomBlock, Skip};
use crate::wire::StreamGap;
use choice::Choice;
pub use commands::CommandError;
use commands::Commands;
use lulls::Lulls;
use member::{Answer, Item, Member, Policy, Shared};
use publication::{Publication, PublishError, Published};
use servers::distinct;

/// Limits of the reconnect waits that a server may announce: least first wait, and a tenth of the longest wait.
const PACE_MIN: Micros = 10_000;
const PACE_MAX: Micros = 60_000_000;
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
const SILENCE_MIN: Micros = 750_000;
const SILENCE_RTTS: u64 = 5;
/// A busy server that falls silent is asked after twice its longest recent lull, but at least this, not only after a
/// keepalive.
const LULL_MIN: Micros = 250_000;
/// Reason of a loss: the server said that it does not know the session.
const RESET: &str = "reset";
/// Reason of a loss: silence. The server may be alive and still hold the session.
const SILENT: &str = "silent";
/// Reason of a loss: the server supports none of our protocol versions.
const OTHER_VERSION: &str = "other_version";
/// Reasons of a loss after which the server would not get a closing message.
const GONE: [&str; 3] = [RESET, "closed", "unreachable"];
/// Reason: the first draw among all servers chose another one.
pub const SPREAD: &str = "spread";
/// Reason: another server may have a better path.
const FAR: &str = "far";
/// First interval between repeats of an unanswered request, and the longest; it doubles each time, plus a random
/// part.
pub const ASK_FIRST: Micros = 100_000;
pub const ASK_MAX: Micros = 200_000;
/// The interval for a server that has not received all datagrams yet.
const ASK_BEHIND: Micros = 500_000;
/// Before a session counts as lost, the client asks every `ASK_LAST_EVERY` for this long plus a round trip. A few
/// requests may all fall into one burst of losses, and twenty more cost less than another session.
const ASK_LAST: Micros = 500_000;
const ASK_LAST_EVERY: Micros = 20_000;
/// A temporarily refused request is repeated after the server's wait, doubled with each refusal in a row up to this,
/// plus a random part, since many clients are refused at once.
pub const REFUSED_MAX: Micros = 2_000_000;
/// A record without space in a session's log is tried again after this.
const LOG_FULL_WAIT: Micros = 50_000;
/// Maximum number of rooms whose messages may arrive before the reply to their join: the 256 of a session that joins
/// them all at once, and as many that it has just left.
const EARLY_MAX: usize = 512;

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

/// One of a client's sessions: the two that the program knows of, or a spare that carries copies of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Main(Side),
    Spare(usize),
}

impl Slot {
    const PROXY: Slot = Slot::Main(Side::Proxy);

    fn at(self) -> usize {
        match self {
            Slot::Main(side) => side as usize,
            Slot::Spare(spare) => SIDES + spare,
        }
    }

    /// All slots of this many sessions.
    fn all(sessions: usize) -> impl Iterator<Item = Slot> {
        let sides = [Slot::Main(Side::Gateway), Slot::PROXY];
        sides
            .into_iter()
            .chain((SIDES..sessions).map(|at| Slot::Spare(at - SIDES)))
    }
}

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

#[derive(PartialEq, Eq, Clone, Copy, Debug)]
enum State {
    Idle,
    Waiting,
    Knocking,
    Opening,
    Ready,
    Refused,
}

struct Session {
    /// The first `given` are the program's, the others were announced by servers.
    endpoints: Vec<Endpoint>,
    given: usize,
    learns: bool,
    /// The session is to be opened once a server is known.
    wanted: bool,
    /// The first draw among all announced servers took place.
    spread: bool,
    drawn: Option<usize>,
    drawn_at: u64,
    at: usize,
    /// The quality of each endpoint.
    choice: Choice,
    state: State,
    knock: Option<Knock>,
    conn: Option<Box<Conn<SESSION_BLOCKS>>>,
    /// The previous session, whose server must learn that we left.
    left: Option<Box<Conn<SESSION_BLOCKS>>>,
    /// The last session that fell silent. Its server is told once another session is open; before that, nothing may
    /// be sent outside a handshake.
    unheard: Option<Box<Conn<SESSION_BLOCKS>>>,
    token: Option<[u8; 16]>,
    attempts: u32,
    next_at: Micros,
    attempt_until: Micros,
    hello_due: bool,
    /// The interval between hellos, or between repeated requests.
    wait: Micros,
    /// The round trip of the previous session, or measured by the cookie; 0: unknown.
    rtt: Micros,
    keepalive: Micros,
    lulls: Lulls,
    asked_at: Option<Micros>,
    ready: bool,
    /// The session's token has an end, so the server accepts another token.
    leased: bool,
    probe: bool,
    challenge: Option<[u8; 8]>,
    /// A newer session took over: this one is reopened only with another credential.
    replaced: bool,
    /// The protocol version of the session, or of the last one.
    version: Option<u8>,
    /// Servers found since the last common version that support none of ours.
    others: Vec<Endpoint>,
    losses: u64,
    /// The first and the longest reconnect wait, as the last server announced them.
    backoff: (Micros, Micros),
}

impl Session {
    fn new(endpoints: Vec<Endpoint>, learns: bool, at: usize) -> Self {
        Session {
            given: endpoints.len(),
            learns,
            wanted: false,
            spread: false,
            drawn: None,
            drawn_at: u64::MAX - 1,
            at,
            choice: Choice::of(endpoints.len()),
            endpoints,
            state: State::Idle,
            knock: None,
            conn: None,
            left: None,
            unheard: None,
            token: None,
            attempts: 0,
            next_at: 0,
            attempt_until: 0,
            hello_due: false,
            wait: 0,
            rtt: 0,
            keepalive: 1_000_000,
            lulls: Lulls::default(),
            asked_at: None,
            ready: false,
            leased: false,
            probe: false,
            challenge: None,
            replaced: false,
            version: None,
            others: Vec::new(),
            losses: 0,
            backoff: (BACKOFF_FIRST, BACKOFF_MAX),
        }
    }

    /// Schedules an attempt, and cancels one that has begun.
    fn restart(&mut self, at: Micros) {
        self.knock = None;
        self.conn = None;
        self.ready = false;
        self.replaced = false;
        self.state = State::Waiting;
        self.attempts = 0;
        self.next_at = at;
    }

    /// A hello leaves; the next one waits at least until a reply can have come.
    fn hello(&mut self, now: Micros, wait: Micros) {
        self.wait = wait.max(self.rtt + self.rtt / 2);
        self.next_at = now + self.wait;
        self.hello_due = true;
    }

    /// The silence after which the client asks whether the server is there.
    fn patience(&self) -> Micros {
        (2 * self.lulls.longest()).max(LULL_MIN).min(self.keepalive)
    }

    /// How long a reply may be owed.
    fn silence_max(&self, rtt: Micros) -> Micros {
        match self.endpoints.len() > 1 {
            true => (SILENCE_RTTS * rtt).clamp(SILENCE_MIN, SILENCE_MAX),
            false => SILENCE_MAX,
        }
    }
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
    inbox_bytes: usize,
    /// The two main sessions and, after the first command, the spares.
    sessions: Vec<Session>,
    rooms: Vec<Option<Box<Member>>>,
    /// Rooms by handle; a client has only a few.
    handles: Vec<(u32, u32)>,
    /// At most [`SESSION_PUBLICATIONS_MAX`].
    publications: Vec<Publication>,
    /// The client asks the gateway for the ages of messages.
    ages: bool,
    /// The proxy of the session passes on headers.
    passes_headers: bool,
    commands: Commands,
    /// The program was told that no further room can be opened for publishing.
    full: bool,
    /// Number of messages accepted for publishing.
    taken: u64,
    /// The room that fills the next datagram first: all share a narrow window.
    publish_at: usize,
    repairs: VecDeque<u32>,
    /// Joins that were cancelled before they were answered.
    orphans: Vec<(u32, Box<str>)>,
    /// Handles and known places of rooms whose join is not answered yet.
    early: Vec<(u32, u64)>,
    /// Handles whose leave found no space in the log yet. Joins wait for them.
    leaves: VecDeque<u32>,
    request: u32,
    incarnation: u64,
    hash: KeyedState,
    budget: Budget,
    window: u32,
    check_at: Option<Micros>,
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
            inbox_bytes: config.inbox_bytes,
            ages: false,
            passes_headers: false,
            sessions,
            rooms: Vec::new(),
            handles: Vec::new(),
            publications: Vec::new(),
            commands: Commands::default(),
            full: false,
            taken: 0,
            publish_at: 0,
            repairs: VecDeque::new(),
            orphans: Vec::new(),
            early: Vec::new(),
            leaves: VecDeque::new(),
            request: 0,
            incarnation,
            hash,
            budget: Budget::default(),
            window: 212_992,
            check_at: None,
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
        if session.endpoints.is_empty() && session.learns {
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
                Slot::Spare(_) => self.sessions[Side::Proxy as usize].weighed(),
            };
            let session = &mut self.sessions[slot.at()];
            let before = session.endpoints[..session.given].iter();
            let changed = !before.eq(given.iter().map(|(endpoint, _)| endpoint));
            let stays = !changed || session.give(now, &mut self.node.dice, given);
            let again = match session.state {
                State::Idle | State::Ready => false,
                // A session that a newer one replaced, or that an operator ended, does not return by itself, whatever its
                // next token is.
                State::Refused => (other || changed) && !session.replaced,
                State::Waiting | State::Knocking | State::Opening => !stays || other,
            };
            if again {
                let due = now + self.node.dice.below(session.backoff.0);
                let (attempts, next_at) = (session.attempts, session.next_at);
                let waits = session.state == State::Waiting && next_at > now;
                session.restart(if waits { due.min(next_at) } else { due });
                session.attempts = attempts;
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

    fn enter(
        &mut self,
        now: Micros,
        name: &str,
        (positions, history): (Positions, u32),
        filter: Option<Box<Filter>>,
        policy: Policy,
    ) -> u32 {
        if !self.is_joining() {
            self.early.clear(); // of rooms that were left; their handles may be in use again by now
        }
        self.request += 1;
        let mut member = Member::new(name, self.request, positions, policy, self.inbox_bytes, self.hash);
        (member.history, member.filter) = (history, filter);
        let room = match self.rooms.iter().position(Option::is_none) {
            Some(at) => {
                self.rooms[at] = Some(Box::new(member));
                at as u32
            }
            None => {
                self.rooms.push(Some(Box::new(member)));
                self.rooms.len() as u32 - 1
            }
        };
        self.open(now, Side::Gateway);
        self.ask_join(now, room);
        room
    }

    fn ask_join(&mut self, now: Micros, room: u32) {
        let Some(member) = self.rooms[room as usize].as_deref_mut() else {
            return;
        };
        let session = &mut self.sessions[Side::Gateway as usize];
        if !session.ready || member.refused {
            return;
        }
        let free = self.leaves.is_empty() || planted_late_leaves();
        if let Some(conn) = &mut session.conn {
            let join = Record::Join {
                request: member.request,
                name: member.name.as_bytes(),
                positions: member.positions.clone(),
                history: if member.positions.0.is_empty() {
                    member.history
                } else {
                    0
                },
            };
            let mut filtered = || match &member.filter {
                Some(filter) => conn.record(&Record::Filter {
                    request: member.request,
                    filter: Filter::clone(filter),
                }),
                None => Some(0),
            };
            member.asked = free && filtered().is_some() && conn.record(&join).is_some();
            member.retry_at = (!member.asked).then_some(now + LOG_FULL_WAIT);
            soonest(&mut self.check_at, member.retry_at);
        }
    }

    /// Leaves a room. Unread messages are dropped.
    pub fn leave(&mut self, room: u32) {
        let Some(mut member) = self.rooms.get_mut(room as usize).and_then(Option::take) else {
            return;
        };
        member.close(&mut self.budget);
        if let Some(handle) = member.owed {
            self.tell_leave(handle);
        }
        match member.handle {
            // At once, so that it precedes a join that follows: the room keeps its handle.
            Some(handle) => {
                self.handles.retain(|(known, _)| *known != handle);
                self.tell_leave(handle);
            }
            None if member.asked => self.orphans.push((member.request, member.name)),
            None => {}
        }
        self.set_window();
    }

    fn tell_leave(&mut self, handle: u32) {
        self.leaves.push_back(handle);
        if !planted_late_leaves() {
            self.tell_leaves();
        }
    }

    fn tell_leaves(&mut self) {
        let Some(conn) = &mut self.sessions[Side::Gateway as usize].conn else {
            return;
        };
        while let Some(handle) = self.leaves.front().copied() {
            if conn.record(&Record::Leave { handle }).is_none() {
                return;
            }
            self.leaves.pop_front();
        }
    }

    /// A joined room.
    pub fn room(&self, room: u32) -> Option<&Member> {
        self.rooms.get(room as usize)?.as_deref()
    }

    /// Reads the next item of a room; appends a message's bytes to `data`.
    pub fn read(&mut self, now: Micros, room: u32, data: &mut Vec<u8>) -> Option<Item> {
        let member = self.rooms.get_mut(room as usize)?.as_deref_mut()?;
        let item = member.read(data);
        if item.is_none() {
            member.told = false;
        }
        if member.is_blocked()
            && member.unblock(&mut Shared {
                budget: &mut self.budget,
                now,
            })
        {
            soonest(&mut self.check_at, member.deadline());
            self.set_window();
        }
        item
    }

    /// Opens a room for publishing, unless it is open. `None`: rooms with unacknowledged messages take all slots;
    /// [`ClientEvent::Vacant`] reports when one is free.
    pub fn publication(&mut self, now: Micros, name: &str) -> Option<Opened> {
        if let Some(known) = self.publications.iter().find(|known| &*known.name == name) {
            return Some(Opened {
                publication: known.number,
                closed: None,
            });
        }
        let idle = match self.publications.len() < SESSION_PUBLICATIONS_MAX {
            true => None,
            false => match self.idle_publication() {
                Some(at) => Some(at),
                None => {
                    self.full = true;
                    return None;
                }
            },
        };
        let closed = idle.map(|at| self.publications[at].number);
        let number = closed.map_or(self.publications.len() as u32, |number| {
            number.wrapping_add(SESSION_PUBLICATIONS_MAX as u32)
        });
        self.request += 1;
        // A new life of this client's publishing in the room, in case it was opened before.
        let incarnation = self.incarnation.wrapping_add(u64::from(self.request));
        let mut publication = Publication::new(name, number, self.request, incarnation);
        publication.set_passes_headers(self.passes_headers);
        match idle {
            Some(at) => {
                let old = std::mem::replace(&mut self.publications[at], publication);
                if let (Some(handle), Some(conn)) = (old.handle, &mut self.sessions[Side::Proxy as usize].conn) {
                    conn.record(&Record::Close { handle });
                }
            }
            None => self.publications.push(publication),
        }
        self.open(now, Side::Proxy);
        self.ask_open(now, number as usize % SESSION_PUBLICATIONS_MAX);
        Some(Opened {
            publication: number,
            closed,
        })
    }

    /// The publication that can be closed and was used least recently.
    fn idle_publication(&self) -> Option<usize> {
        let session = &self.sessions[Side::Proxy as usize];
        let log_full = session.conn.as_ref().is_some_and(|conn| conn.log.is_crowded());
        // One that was requested and not answered cannot be named yet.
        let named = |known: &Publication| known.handle.is_some() || known.refused.is_some() || !session.ready;
        let publications = self.publications.iter().enumerate();
        let idle = publications.filter(|(_, known)| !log_full && known.is_idle() && named(known));
        idle.min_by_key(|(_, known)| known.used).map(|(at, _)| at)
    }

    fn ask_open(&mut self, now: Micros, at: usize) {
        let publication = &mut self.publications[at];
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
        let place = self
            .publications
            .get_mut(publication as usize % SESSION_PUBLICATIONS_MAX);
        let Some(known) = place.filter(|known| known.number == publication) else {
            return Err(PublishError::Refused(Code::Unknown));
        };
        self.taken += 1;
        known.used = self.taken;
        known.push_headed(headers, data, ticket, chunk_max)
    }

    /// A room opened for publishing.
    pub fn publishing(&self, publication: u32) -> Option<&Publication> {
        let place = self.publications.get(publication as usize % SESSION_PUBLICATIONS_MAX)?;
        (place.number == publication).then_some(place)
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

    /// Sets the window of the gateway, which all rooms share: nothing while one room is blocked, little while one is
    /// crowded. If the gateway may send more, it is told at once, since it waits for nothing else.
    fn set_window(&mut self) {
        let Some(conn) = &mut self.sessions[Side::Gateway as usize].conn else {
            return;
        };
        let rooms = || self.rooms.iter().flatten();
        let window = if rooms().any(|room| room.is_blocked()) {
            0
        } else if rooms().any(|room| room.is_crowded()) {
            self.window.min(CROWDED_WINDOW)
        } else {
            self.window
        };
        if std::mem::replace(&mut conn.receive_window, window) < window {
            conn.tell_status();
        }
    }

    /// The connection ids of datagrams to this client, for several clients on one socket.
    pub fn connections(&self) -> impl Iterator<Item = u64> + '_ {
        let ids = |session: &Session| {
            [
                session.knock.as_ref().map(|knock| knock.id),
                session.conn.as_ref().map(|conn| conn.id),
            ]
        };
        self.sessions.iter().flat_map(ids).flatten()
    }

    fn find(&self, connection: u64) -> Option<Slot> {
        Slot::all(self.sessions.len()).find(|slot| {
            self.sessions[slot.at()]
                .conn
                .as_ref()
                .is_some_and(|conn| conn.id == connection)
        })
    }

    fn datagram(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        self.counters.datagrams_received += 1;
        let Ok(header) = Header::read(datagram) else {
            self.counters.datagrams_dropped += 1;
            return;
        };
        match header.kind {
            DatagramKind::Data => {
                let opened = self.find(header.connection).and_then(|slot| {
                    let session = &mut self.sessions[slot.at()];
                    let conn = session.conn.as_mut()?;
                    let before = conn.heard_at;
                    let len = conn.open(now, &mut self.node.keys, &header, datagram).ok()?;
                    session.lulls.hear(now.saturating_sub(before));
                    Some((slot, len))
                });
                match opened {
                    Some((slot, len)) => self.frames(now, slot, &datagram[HEADER..HEADER + len]),
                    None => self.counters.datagrams_dropped += 1,
                }
            }
            DatagramKind::Cookie | DatagramKind::Accept => self.handshake(now, arrival, &header, datagram),
            DatagramKind::Reset => self.reset(now, &header, datagram),
            DatagramKind::Hello => self.counters.datagrams_dropped += 1,
        }
    }

    fn handshake(&mut self, now: Micros, arrival: Arrival, header: &Header, datagram: &[u8]) {
        for slot in Slot::all(self.sessions.len()) {
            let session = &mut self.sessions[slot.at()];
            let Some(endpoint) = session.endpoints.get(session.at) else {
                continue;
            };
            let Some(knock) = session.knock.as_mut().filter(|knock| knock.id == header.connection) else {
                continue;
            };
            if endpoint.addr != arrival.from {
                continue;
            }
            if header.kind == DatagramKind::Cookie {
                if knock.cookie(datagram) {
                    if session.rtt == 0 {
                        session.rtt = (now + ATTEMPT_MAX - session.attempt_until).min(HELLO_MAX);
                    }
                    session.hello(now, HELLO_FIRST);
                }
                return;
            }
            let Some(opened) = knock.accept(datagram) else { break };
            let id = knock.id;
            let version = match self.node.versions.answered(&opened.payload) {
                Ok(version) => version,
                Err(NoVersion::Other { theirs, release }) => return self.differs(now, slot, theirs, release),
                Err(NoVersion::Malformed) => break,
            };
            session.version = Some(version);
            session.others.clear();
            let mut conn = Conn::new(
                id,
                opened.peer,
                self.socket,
                endpoint.addr,
                opened.secret,
                true,
                0,
                SESSION_LOG_BYTES,
                now,
            );
            conn.receive_window = self.window;
            conn.record(&Record::Control(ControlRecord::Authenticate {
                credential: &self.credential,
            }));
            if slot == Slot::Main(Side::Proxy) {
                self.passes_headers = false;
            }
            if let Slot::Main(_) = slot {
                conn.record(&Record::Headers);
            }
            if self.ages && slot == Slot::Main(Side::Gateway) {
                conn.record(&Record::Ages); // before the joins, so that it holds for all messages
            }
            session.knock = None;
            session.conn = Some(Box::new(conn));
            session.token = None; // it belonged to another connection
            session.state = State::Opening;
            session.attempt_until = now + ATTEMPT_MAX * 2;
            session.choice.begin(now);
            session.ready = true;
            session.leased = false;
            session.asked_at = None;
            match slot {
                Slot::Main(Side::Gateway) => (0..self.rooms.len() as u32).for_each(|room| self.ask_join(now, room)),
                Slot::Main(Side::Proxy) => (0..self.publications.len()).for_each(|at| self.ask_open(now, at)),
                Slot::Spare(_) => {}
            }
            return;
        }
        self.counters.datagrams_dropped += 1;
    }

    /// A server has proven that it supports no version of ours. The client gives up once each server has.
    fn differs(&mut self, now: Micros, slot: Slot, theirs: Versions, release: String) {
        let session = &mut self.sessions[slot.at()];
        let Some(endpoint) = session.endpoints.get(session.at).cloned() else {
            return;
        };
        let addr = endpoint.addr;
        session
            .others
            .retain(|other| session.endpoints.contains(other) && *other != endpoint);
        session.others.push(endpoint);
        let retry = session.others.len() < session.endpoints.len();
        self.lose(now, slot, OTHER_VERSION);
        let session = &mut self.sessions[slot.at()];
        if !retry {
            session.state = State::Refused;
        }
        if let Slot::Main(side) = slot {
            self.events.pop_back();
            self.events.push_back(ClientEvent::Differs {
                side,
                addr,
                theirs,
                release,
            });
            self.events.push_back(ClientEvent::Down {
                side,
                reason: OTHER_VERSION,
                retry,
                wait_ms: 0,
            });
        }
    }

    fn reset(&mut self, now: Micros, header: &Header, datagram: &[u8]) {
        let token = reset_token(datagram);
        let slot = Slot::all(self.sessions.len()).find(|slot| {
            let session = &self.sessions[slot.at()];
            session.conn.as_ref().is_some_and(|conn| conn.peer == header.connection)
                && session
                    .token
                    .zip(token)
                    .is_some_and(|(known, token)| same(&known, &token))
        });
        match slot {
            Some(slot) => self.lose(now, slot, RESET),
            None => self.counters.datagrams_dropped += 1,
        }
    }

    /// A session is gone: open another, soon if this one was working. After a reset it returns to the same server,
    /// which is up again.
    fn lose(&mut self, now: Micros, slot: Slot, reason: &'static str) {
        let taken = self.taken(slot);
        let session = &mut self.sessions[slot.at()];
        let was_ready = session.state == State::Ready;
        let unanswered = session.knock.as_ref().is_some_and(|knock| !knock.is_answered());
        let (first, longest) = session.backoff;
        let longest = if unanswered { UNANSWERED_MAX.max(first) } else { longest };
        let conn = session.conn.take();
        let measured = conn.as_ref().map_or(0, |conn| conn.flow.measured());
        session.rtt = conn.as_ref().map_or(0, |conn| conn.flow.rtt());
        match reason {
            SILENT => session.unheard = conn,
            _ => session.left = conn.filter(|_| !GONE.contains(&reason)),
        }
        session.knock = None;
        session.ready = false;
        session.state = State::Waiting;
        session.losses += 1;
        session.attempts = if was_ready { 0 } else { session.attempts + 1 };
        if let Some(drawn) = session.drawn.take() {
            (session.at, session.drawn_at) = (drawn, session.losses);
        } else if !was_ready || reason != RESET || session.is_kept(session.at) {
            session.choice.fail(now, session.at, measured);
            session.turn(now, &mut self.node.dice, &taken);
        }
        let bound = if reason == SPREAD {
            1
        } else if was_ready {
            first
        } else {
            (first << session.attempts.min(8)).min(longest)
        };
        session.next_at = now + self.node.dice.below(bound);
        let Slot::Main(side) = slot else {
            return self.commands.lost_session(slot);
        };
        self.counters.sessions_lost += 1;
        match side {
            Side::Gateway => {
                self.handles.clear();
                self.orphans.clear();
                self.leaves.clear();
                self.early.clear();
                self.commands.lost_gateway();
                self.repairs.clear();
                self.rooms.iter_mut().flatten().for_each(|member| member.lost_session());
            }
            Side::Proxy => {
                let publications = self.publications.iter_mut();
                publications.for_each(|publication| publication.lost_session());
                self.commands.lost_session(slot);
            }
        }
        self.events.push_back(ClientEvent::Down {
            side,
            reason,
            retry: true,
            wait_ms: 0,
        });
    }

    fn frames(&mut self, now: Micros, slot: Slot, bytes: &[u8]) {
        let mut elicits = false;
        for frame in Frames::new(bytes, kinds::ALL) {
            let Ok(frame) = frame else {
                self.counters.datagrams_dropped += 1;
                break;
            };
            elicits |= kinds::ALL.elicits(frame.kind);
            let Some(conn) = self.sessions[slot.at()].conn.as_mut() else {
                return;
            };
            let mut records = Records::default();
            let control = conn.control_frame(now, &frame, &mut records);
            let rtt = conn.flow.measured();
            match control {
                Control::Other => self.role_frame(now, slot, &frame),
                // Members stay at their gateway, which holds their data.
                Control::Heard(heard) if slot == Slot::PROXY => {
                    let session = &mut self.sessions[slot.at()];
                    if session.choice.hear(now, session.at, rtt, &heard.status) && session.state == State::Ready {
                        self.lose(now, slot, FAR);
                        return;
                    }
                }
                Control::Closed(_) => {
                    self.lose(now, slot, "closed");
                    return;
                }
                _ => {}
            }
            // At once: messages that follow the reply to a join may be in the same datagram.
            for bytes in records.iter() {
                if self.sessions[slot.at()].conn.is_none() {
                    return; // the previous record refused the session
                }
                if let Some(record) = Record::read(bytes) {
                    self.record(now, slot, record);
                }
            }
        }
        if let Some(conn) = self.sessions[slot.at()].conn.as_mut() {
            if elicits {
                conn.elicited(now);
            }
        }
    }

    fn role_frame(&mut self, now: Micros, slot: Slot, frame: &Frame<'_>) {
        match (slot, frame.kind) {
            (_, FrameKind::PATH_CHALLENGE) => {
                self.sessions[slot.at()].challenge = frame.body.try_into().ok();
            }
            (Slot::Main(Side::Gateway), kinds::ROOM | kinds::AGED_MEMBER_ROOM) => {
                let block = match frame.kind {
                    kinds::ROOM => RoomBlock::read(frame.body),
                    _ => RoomBlock::read_aged(frame.body),
                };
                if let Some(block) = block {
                    let handle = block.handle;
                    let upto = block.index.saturating_add(block.messages.left() as u64);
                    self.with_room(now, handle, upto, |member, shared| member.block(shared, block));
                }
            }
            (Slot::Main(Side::Gateway), kinds::GAP) => {
                if let Some(place) = GapPlace::read(frame.body) {
                    self.with_room(now, place.handle, place.index.saturating_add(1), |member, shared| {
                        member.gap_place(shared, place)
                    });
                }
            }
            (Slot::Main(Side::Gateway), kinds::PASSED) => {
                if let Some(passed) = Passed::read(frame.body) {
                    self.with_room(now, passed.handle, passed.end(), |member, shared| {
                        member.passed(shared, passed)
                    });
                }
            }
            (Slot::Main(Side::Gateway), kinds::LEFT_OUT) => {
                if let Some(left) = LeftOut::read(frame.body) {
                    self.with_room(now, left.handle, left.end, |member, shared| {
                        member.left_out(shared, &left)
                    });
                }
            }
            (Slot::Main(Side::Gateway), kinds::SKIP) => {
                if let Some(skip) = Skip::read(frame.body) {
                    self.with_room(now, skip.handle, skip.index, |member, shared| {
                        member.skip(shared, &skip)
                    });
                }
            }
            (Slot::Main(Side::Gateway), kinds::HEADS) => {
                for (handle, index) in heads(frame.body) {
                    self.with_room(now, handle, index, |member, shared| member.head(shared.now, index));
                }
            }
            (Slot::PROXY, kinds::ACK) => {
                if let Some(ack) = Ack::read(frame.body) {
                    self.acknowledged(now, &ack);
                }
            }
            _ => self.counters.datagrams_dropped += 1,
        }
    }

    /// Applies a report on places below `upto` to the room of `handle`.
    fn with_room(&mut self, now: Micros, handle: u32, upto: u64, act: impl FnOnce(&mut Member, &mut Shared<'_>)) {
        let found = self
            .handles
            .iter()
            .find(|(known, _)| *known == handle)
            .map(|(_, room)| *room);
        let Some(member) = found.and_then(|room| self.rooms[room as usize].as_deref_mut()) else {
            self.counters.frames_unknown_room += 1;
            self.note_early(handle, upto);
            return;
        };
        act(
            member,
            &mut Shared {
                budget: &mut self.budget,
                now,
            },
        );
        let narrow = member.is_blocked() || member.is_crowded();
        let whole_again = member.is_whole_again();
        soonest(&mut self.check_at, member.deadline());
        if !member.told && !member.reading.is_empty() {
            member.told = true;
            self.events.push_back(ClientEvent::Readable {
                room: found.unwrap_or_default(),
            });
        }
        let conn = self.sessions[Side::Gateway as usize].conn.as_deref();
        if conn.is_some_and(|conn| narrow || conn.receive_window != self.window) {
            self.set_window();
        }
        if let Some(room) = found.filter(|room| whole_again && !self.repairs.contains(room)) {
            self.repairs.push_back(room);
        }
    }

    /// Notes messages of a room whose join is not answered yet, because the reply was lost or overtaken. For the
    /// gateway they have arrived, so the member itself must know that it has to request them.
    fn note_early(&mut self, handle: u32, upto: u64) {
        if !self.is_joining() {
            return;
        }
        if let Some((_, known)) = self.early.iter_mut().find(|(known, _)| *known == handle) {
            *known = upto.max(*known);
        } else if self.early.len() < EARLY_MAX {
            self.early.push((handle, upto));
        }
    }

    fn is_joining(&self) -> bool {
        let mut rooms = self.rooms.iter().flatten();
        rooms.any(|member| member.handle.is_none() && !member.refused)
    }

    fn acknowledged(&mut self, now: Micros, ack: &Ack) {
        let mut known = self.publications.iter_mut();
        let Some(publication) = known.find(|known| known.handle == Some(ack.handle) && known.refused.is_none()) else {
            return;
        };
        let (events, before) = (&mut self.events, publication.published);
        publication.acknowledged(now, ack, |published| {
            events.push_back(ClientEvent::Published(published))
        });
        self.counters.published += publication.published - before;
        let number = publication.number;
        if let Some(code) = publication.refused {
            events.push_back(ClientEvent::Refused {
                room: number,
                publication: true,
                code,
            });
        } else if publication.take_writable() {
            events.push_back(ClientEvent::Writable { publication: number });
        }
    }

    fn record(&mut self, now: Micros, slot: Slot, record: Record<'_>) {
        match record {
            Record::Control(ControlRecord::Ready {
                user,
                token,
                keepalive_ms,
            }) => {
                let session = &mut self.sessions[slot.at()];
                session.token = Some(token);
                session.keepalive = Micros::from(keepalive_ms.clamp(50, 600_000)) * 1_000;
                session.lulls = Lulls::new(session.keepalive);
                session.state = State::Ready;
                session.attempts = 0;
                if session.unheard.is_some() {
                    session.left = session.unheard.take();
                }
                if let Slot::Main(side) = slot {
                    self.events.push_back(ClientEvent::Ready { side, user });
                }
                self.keep_spares(now);
            }
            Record::Control(ControlRecord::Lease { left_ms }) => {
                self.sessions[slot.at()].leased = true;
                if let Slot::Main(side) = slot {
                    self.events.push_back(ClientEvent::Leased { side, left_ms });
                }
            }
            Record::Control(ControlRecord::Pace {
                backoff_ms,
                backoff_max_ms,
            }) => {
                let first = (Micros::from(backoff_ms) * 1_000).clamp(PACE_MIN, PACE_MAX);
                let longest = (Micros::from(backoff_max_ms) * 1_000).clamp(first, 10 * PACE_MAX);
                self.sessions[slot.at()].backoff = (first, longest);
            }
            Record::Control(ControlRecord::Servers { role, servers }) => {
                if let Slot::Main(side) = slot {
                    self.told_servers(now, side, role, &servers);
                    self.keep_spares(now);
                }
            }
            Record::Control(ControlRecord::Refused {
                request: 0,
                code,
                retry_ms,
            }) => {
                let session = &self.sessions[slot.at()];
                let (named, before) = (session.disbelieves(), session.endpoints.get(session.at).cloned());
                self.lose(now, slot, code.name());
                let session = &mut self.sessions[slot.at()];
                // A draining server will be gone by then, and others have not answered.
                if code.retry() && code != Code::Draining && before.as_ref() == session.endpoints.get(session.at) {
                    let wait = put_off(&mut self.node.dice, retry_ms, 0);
                    session.next_at = session.next_at.max(now + wait);
                }
                let replaced = matches!(code, Code::Replaced | Code::Ended);
                if replaced || !code.retry() && !named {
                    let session = &mut self.sessions[slot.at()];
                    (session.state, session.replaced) = (State::Refused, replaced);
                    if let Slot::Main(side) = slot {
                        self.events.pop_back();
                        self.events.push_back(ClientEvent::Down {
                            side,
                            reason: code.name(),
                            retry: false,
                            wait_ms: retry_ms,
                        });
                    }
                }
            }
            Record::Control(ControlRecord::Refused {
                request,
                code,
                retry_ms,
            }) => self.refused(now, request, code, retry_ms),
            Record::Joined {
                request,
                handle,
                index,
                start,
                heads,
                gaps,
                history,
                whole,
            } => {
                let found = self
                    .rooms
                    .iter()
                    .position(|room| room.as_deref().is_some_and(|room| room.request == request));
                let Some(at) = found else {
                    self.orphan_joined(request, handle);
                    return;
                };
                self.handles
                    .retain(|(known, room)| *known != handle && *room != at as u32);
                self.handles.push((handle, at as u32));
                let early = self.early.iter().position(|(known, _)| *known == handle);
                let early = early.map(|at| self.early.swap_remove(at).1);
                let answer = Answer {
                    handle,
                    index,
                    start,
                    heads,
                    gaps,
                    history,
                    whole,
                };
                if let Some(member) = self.rooms[at].as_deref_mut() {
                    member.joined(now, &answer);
                    if let Some(upto) = early {
                        member.head(now, upto);
                    }
                    soonest(&mut self.check_at, member.deadline());
                    if !member.told && !member.reading.is_empty() {
                        member.told = true;
                        self.events.push_back(ClientEvent::Readable { room: at as u32 });
                    }
                }
                let gaps = answer.gaps;
                self.events.push_back(ClientEvent::Joined { room: at as u32, gaps });
            }
            Record::Headers if slot == Slot::Main(Side::Proxy) => {
                self.passes_headers = true;
                let publications = self.publications.iter_mut();
                publications.for_each(|publication| publication.set_passes_headers(true));
            }
            Record::Guest(record) => {
                if let Slot::Main(side) = slot {
                    let record = record.to_vec();
                    self.events.push_back(ClientEvent::Guest { side, record });
                }
            }
            Record::CommandTold { handle, command, data } => self.commanded(handle, command, data),
            Record::CommandDone {
                number,
                outcome,
                retry_ms,
                page,
            } => self.command_answered(now, slot, number, outcome, retry_ms, page),
            Record::Opened { request, handle } => {
                let mut known = self.publications.iter_mut();
                if let Some(publication) = known.find(|known| known.request == request) {
                    publication.opened(now, handle);
                }
            }
            _ => self.counters.datagrams_dropped += 1,
        }
    }

    /// The reply to a join came after its room was left: leaves the room, unless it has been joined again since; the
    /// gateway holds one membership for both joins.
    fn orphan_joined(&mut self, request: u32, handle: u32) {
        let Some(at) = self.orphans.iter().position(|(known, _)| *known == request) else {
            return;
        };
        let (_, name) = self.orphans.swap_remove(at);
        let mut rooms = self.rooms.iter_mut().flatten();
        match rooms.find(|member| same_room(&member.name, &name)) {
            Some(again) => again.owed = Some(handle).filter(|_| again.handle.is_none()),
            None => self.tell_leave(handle),
        }
    }

    fn refused(&mut self, now: Micros, request: u32, code: Code, retry_ms: u32) {
        self.orphans.retain(|(known, _)| *known != request);
        for (at, member) in self
            .rooms
            .iter_mut()
            .enumerate()
            .filter_map(|(at, room)| Some((at, room.as_deref_mut()?)))
        {
            if member.request == request {
                member.asked = false;
                if code.retry() {
                    member.retry_at = Some(now + put_off(&mut self.node.dice, retry_ms, member.refusals));
                    member.refusals += 1;
                    soonest(&mut self.check_at, member.retry_at);
                } else {
                    member.refused = true;
                    soonest(&mut self.check_at, member.deadline());
                    self.events.push_back(ClientEvent::Refused {
                        room: at as u32,
                        publication: false,
                        code,
                    });
                }
                return;
            }
        }
        let mut known = self.publications.iter_mut();
        let Some(publication) = known.find(|known| known.request == request) else {
            return;
        };
        if code.retry() {
            publication.retry_at = Some(now + put_off(&mut self.node.dice, retry_ms, publication.refusals));
            publication.refusals += 1;
            return;
        }
        publication.refuse(code);
        self.events.push_back(ClientEvent::Refused {
            room: publication.number,
            publication: true,
            code,
        });
    }

    fn expire_rooms(&mut self, now: Micros) {
        if self.check_at.is_none_or(|at| now < at) {
            return;
        }
        self.check_at = None;
        let mut joins = Vec::new();
        for (at, room) in self.rooms.iter_mut().enumerate() {
            let Some(member) = room.as_deref_mut() else { continue };
            member.expire(&mut Shared {
                budget: &mut self.budget,
                now,
            });
            if !member.told && !member.reading.is_empty() {
                // The gap of a message that stays unfinished: nothing later may report it.
                member.told = true;
                self.events.push_back(ClientEvent::Readable { room: at as u32 });
            }
            if member.retry_at.is_some_and(|at| now >= at) {
                member.retry_at = None;
                joins.push(at as u32);
            }
            if member.deadline().is_some_and(|due| now >= due) && !self.repairs.contains(&(at as u32)) {
                self.repairs.push_back(at as u32);
            } else {
                soonest(&mut self.check_at, member.deadline());
            }
        }
        joins.into_iter().for_each(|room| self.ask_join(now, room));
    }

    fn expire_session(&mut self, now: Micros, slot: Slot) {
        let behind = self.behind_at == Some(now);
        let session = &mut self.sessions[slot.at()];
        if behind {
            // The reply may be in the socket: the time since the last check does not count. More requests would not
            // help a server that falls behind, either.
            session.asked_at = session
                .asked_at
                .map(|at| at + now.saturating_sub(at.max(self.looked_at)));
            session.attempt_until = session.attempt_until.max(now + 1);
        }
        match session.state {
            State::Waiting if now >= session.next_at && !self.closing => {
                let Some(endpoint) = session.endpoints.get(session.at).cloned() else {
                    return;
                };
                let id = self.node.secret_u64();
                let session = &mut self.sessions[slot.at()];
                session.knock = Some(Knock::new(
                    id,
                    InitiatorKey::Client(&endpoint.key),
                    0,
                    &self.node.versions.offer(),
                    self.node.entropy.as_mut(),
                ));
                session.state = State::Knocking;
                session.attempt_until = now + ATTEMPT_MAX;
                session.hello(now, HELLO_FIRST);
            }
            State::Knocking | State::Opening if now >= session.attempt_until => self.lose(now, slot, "unreachable"),
            State::Knocking if now >= session.next_at => {
                session.hello(now, (2 * session.wait).min(HELLO_MAX));
                session.next_at += self.node.dice.below(session.wait / 2);
            }
            State::Ready | State::Opening => {
                let rtt = session.conn.as_ref().map_or(0, |conn| conn.flow.rtt());
                let (patience, silence_max) = (session.patience(), session.silence_max(rtt));
                let Some(conn) = session.conn.as_mut() else { return };
                if session.asked_at.is_some_and(|at| conn.heard_at >= at) {
                    session.asked_at = None;
                }
                if session.asked_at.is_some_and(|at| now >= at + silence_max) {
                    self.lose(now, slot, SILENT);
                    return;
                }
                let mut ask = conn.flow.timeout(now);
                ask |= now >= ask_at(conn, session.asked_at, patience, session.wait);
                if conn.tail_due(now) {
                    session.probe = true;
                    ask = true;
                }
                if ask {
                    conn.ask_status();
                    let wait = match session.asked_at {
                        Some(_) => (2 * session.wait).min(ASK_MAX),
                        None => ASK_FIRST,
                    };
                    let wait = wait.max(2 * rtt);
                    let left = session
                        .asked_at
                        .map_or(silence_max, |at| (at + silence_max).saturating_sub(now));
                    let last = left.saturating_sub(ASK_LAST + rtt).max(ASK_LAST_EVERY);
                    session.wait = match behind {
                        true => ASK_BEHIND,
                        false => (wait + self.node.dice.below(wait / 2)).min(last),
                    };
                    session.asked_at.get_or_insert(now);
                }
            }
            _ => {}
        }
    }

    fn session_deadline(&self, slot: Slot) -> Option<Micros> {
        let session = &self.sessions[slot.at()];
        match session.state {
            State::Idle | State::Refused => None,
            State::Waiting => (!session.endpoints.is_empty()).then_some(session.next_at),
            State::Knocking => Some(session.next_at.min(session.attempt_until)),
            State::Opening | State::Ready => {
                let conn = session.conn.as_ref()?;
                let keepalive = ask_at(conn, session.asked_at, session.patience(), session.wait);
                let silence = session.asked_at.map(|at| at + session.silence_max(conn.flow.rtt()));
                let attempt = (session.state == State::Opening).then_some(session.attempt_until);
                [conn.deadline(), Some(keepalive), silence, attempt]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }

    fn serve(&mut self, now: Micros, slot: Slot, outbox: &mut Outbox) -> bool {
        let Client {
            node,
            sessions,
            rooms,
            publications,
            publish_at,
            repairs,
            counters,
            closing,
            socket,
            ..
        } = self;
        let session = &mut sessions[slot.at()];
        if session.hello_due && outbox.room() > 0 {
            session.hello_due = false;
            if let (Some(knock), Some(endpoint)) = (&session.knock, session.endpoints.get(session.at)) {
                knock.hello(*socket, endpoint.addr, node.payload, outbox);
            }
        }
        let payload = node.payload;
        if let Some(mut conn) = session.left.take_if(|_| outbox.room() > 0) {
            let buffer = outbox.reserve(payload);
            let mut writer = Writer::new(&mut buffer[HEADER..HEADER + frames_max(payload)]);
            write_close(&mut writer);
            let len = writer.len();
            let total = conn.seal(now, &mut node.keys, node.stamp, buffer, len, Wants::Nothing, 0);
            outbox.commit(conn.socket, conn.addr, total);
            counters.datagrams_sent += 1;
        }
        loop {
            let Some(conn) = session.conn.as_mut() else {
                return session.left.is_some();
            };
            let free = conn.flow.available(payload);
            let probe = std::mem::take(&mut session.probe);
            let due = slot == Slot::PROXY
                && session.state == State::Ready
                && free > 0
                && publications.iter().any(|known| known.is_due());
            let asks = slot == Slot::Main(Side::Gateway) && !repairs.is_empty();
            if !due && !asks && !probe && !*closing && session.challenge.is_none() && !conn.control_due(now) {
                return false;
            }
            if outbox.room() == 0 {
                session.probe = probe;
                return true;
            }
            let rtt = conn.flow.rtt();
            if asks {
                conn.offer_status(); // the gateway must know our window for its repairs
                if session.asked_at.is_some() {
                    conn.ask_status(); // only requests leave, and these need no reply
                }
            }
            let buffer = outbox.reserve(payload);
            let mut writer = Writer::new(&mut buffer[HEADER..HEADER + frames_max(payload)]);
            let mut wants = conn.control(now, &mut writer);
            if let Some(challenge) = session.challenge.take() {
                append(&mut writer, FrameKind::PATH_RESPONSE, 0, |writer| {
                    !writer.put(&challenge).full()
                });
            }
            if asks {
                while let Some(room) = repairs.front().copied() {
                    if let Some(member) = rooms[room as usize].as_deref_mut() {
                        if writer.room() < 256 {
                            break;
                        }
                        if let Some(lack) = member.ask(now, rtt) {
                            write_repair(&mut writer, lack.handle, lack.next, &lack.ranges);
                        }
                        soonest(&mut self.check_at, member.deadline());
                    }
                    repairs.pop_front();
                }
            }
            if due {
                let count = publications.len();
                let first = *publish_at;
                let mut opened = false;
                for at in (0..count).map(|step| (first + step) % count) {
                    let publication = &mut publications[at];
                    let before = publication.repeated;
                    while publication.write(now, publish_body_max(payload), &mut writer) {
                        // This room fills most of the datagram: the next datagram begins with the room after it.
                        if !std::mem::replace(&mut opened, true) {
                            *publish_at = at + 1;
                        }
                        wants = Wants::Probes;
                    }
                    counters.publish_repeated += publication.repeated - before;
                    if publication.is_due() {
                        break; // the rest of the datagram is too small for the next part
                    }
                }
            }
            if *closing {
                write_close(&mut writer);
            }
            let len = writer.len();
            if len == 0 {
                return false;
            }
            let total = conn.seal(now, &mut node.keys, node.stamp, buffer, len, wants, 0);
            outbox.commit(conn.socket, conn.addr, total);
            counters.datagrams_sent += 1;
            if *closing {
                session.conn = None;
                session.state = State::Idle;
                return false;
            }
        }
    }
}

fn write_close(writer: &mut Writer<'_>) {
    append(writer, FrameKind::CLOSE, 0, |writer| !writer.u8(0).full());
}

/// The wait before a refused request is repeated, after this many refusals in a row.
fn put_off(dice: &mut Dice, retry_ms: u32, refusals: u32) -> Micros {
    let said = Micros::from(retry_ms.clamp(10, 60_000)) * 1_000;
    let wait = (said << refusals.min(8)).min(REFUSED_MAX.max(said));
    wait + dice.below(wait)
}

fn planted_late_leaves() -> bool {
    crate::planted::is(crate::planted::Bug::LeaveOvertakesJoin)
}

/// When a silent peer is asked whether it is there: after `patience`, and `wait` after the last datagram sent to it.
fn ask_at(conn: &Conn<SESSION_BLOCKS>, asked_at: Option<Micros>, patience: Micros, wait: Micros) -> Micros {
    match asked_at {
        Some(_) => conn.heard_at.max(conn.sent_at) + wait.min(patience),
        None => conn.heard_at + patience,
    }
}

/// Whether two names denote one room.
fn same_room(one: &str, other: &str) -> bool {
    match (RoomName::parse(one), RoomName::parse(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
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
            let publication = &mut self.publications[at];
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
        let publications = self
            .publications
            .iter()
            .filter_map(|publication| publication.deadline())
            .min();
        Slot::all(self.sessions.len())
            .map(|slot| self.session_deadline(slot))
            .chain([self.check_at, publications, self.commands.deadline(), self.spares_end()])
            .flatten()
            .min()
    }

    fn drain_events(&mut self, events: &mut Vec<ClientEvent>) {
        if self.full && self.idle_publication().is_some() {
            self.full = false;
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
