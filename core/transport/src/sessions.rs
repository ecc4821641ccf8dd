//! Sessions with clients: handshake, authentication, address changes, idle timeouts.
//!
//! Every machine that has clients owns one [`Sessions`]; `T` is the machine's data per session. Knows no system.

mod ending;
use std::collections::VecDeque;

use crate::address::{Debt, Rate};
use crate::conn::{Control, Reject, Wants, SESSION_LOG_BYTES};
use crate::dice::Dice;
use crate::door::Door;
use crate::log::Records;
use crate::machine::{Addr, Arrival, Micros, Outbox, SocketId};
use crate::naming::Naming;
use crate::node::Node;
use crate::parting::Parting;
use crate::seal::KeyCache;
use crate::table::{Peer, Table};
use crate::unread::{Late, Rank, Unread};
use crate::wire::frame::append;
use crate::wire::header::{DatagramKind, Header};
use crate::wire::record::{Access, ControlRecord, Encode, SystemRecord};
use crate::wire::server::Server;
use crate::wire::{Code, Frame, FrameKind, Role};

/// Blocks of a session's replay window: 1,024 datagrams.
pub const SESSION_BLOCKS: usize = 16;
/// Maximum number of sessions without an accepted credential at once.
pub const HALF_OPEN_MAX: usize = 4_096;
/// Longest time without a first sealed datagram, or without a verdict on the credential.
pub const HALF_OPEN_LIFE: Micros = 5_000_000;
/// During the first part of that time, a session keeps its slot even if others need it: enough for a far client's
/// credential to arrive.
const HALF_OPEN_GRACE: Micros = 1_000_000;
/// Maximum number of credentials that wait for the authenticator's verdict.
pub const QUESTIONS_MAX: usize = 256;
/// Control records that one session may send in a burst (256 joins and the credential); the role sets the rate.
pub const CONTROL_BURST: u32 = 300;
/// Maximum number of records of a session that wait for the verdict on its credential.
const WAITING_MAX: usize = 300;
/// Maximum bytes of such records over all sessions: 256 pending credentials with 32 KiB of joins each.
pub const WAITING_BYTES_MAX: usize = 8 << 20;
/// The share of these bytes reserved for each pending credential: half in total. Larger ones share the other half.
const WAITING_SHARE: usize = WAITING_BYTES_MAX / 2 / QUESTIONS_MAX;
/// Maximum bytes of records that arrived before their predecessors, over all sessions: 256 sessions with full
/// buffers.
pub const EARLY_BYTES_MAX: usize = 256 * SESSION_LOG_BYTES;
/// The share of these bytes for a session without a credential: if there are most such sessions, they take half in
/// total.
pub const EARLY_UNKNOWN_MAX: usize = EARLY_BYTES_MAX / 2 / HALF_OPEN_MAX;
/// Maximum number of sessions unless configured lower: 1 M x about 1 KB is 1 GB, the most that one process should
/// hold.
pub const SESSIONS_MAX: usize = 1 << 20;
/// Maximum bytes queued for sessions and not acknowledged, in total: a quarter of the memory of [`SESSIONS_MAX`]
/// sessions.
pub const UNREAD_BYTES_MAX: usize = SESSIONS_MAX * 256;
/// How long a refused session stays to deliver the reason: twice as long as a far client's log waits before it
/// repeats.
const LINGER: Micros = 1_000_000;
/// A client that was refused for now comes back after this.
pub(crate) const RETRY_MS: u32 = 1_000;
/// First and longest wait of a client between attempts to open a session, unless its server announces others. Each
/// wait is a random part of a limit that doubles.
pub const BACKOFF_FIRST: Micros = 100_000;
pub const BACKOFF_MAX: Micros = 5_000_000;
/// The same in ms, as a server announces them.
pub const BACKOFF_DEFAULT: (u32, u32) = ((BACKOFF_FIRST / 1_000) as u32, (BACKOFF_MAX / 1_000) as u32);
/// The socket of sessions, in machines that have clients.
pub const PUBLIC_SOCKET: SocketId = 1;
/// Interval between path checks of one session.
const PATH_EVERY: Micros = 1_000_000;

crate::counters! {
    /// Events on sessions.
    pub struct SessionCounters {
        /// Datagrams taken on the public socket.
        datagrams_received,
        /// Datagrams dropped: too short, no magic, wrong version or kind.
        dropped_header,
        /// Datagrams dropped: no such session.
        dropped_unknown,
        /// Datagrams dropped: seen before.
        dropped_duplicate,
        /// Datagrams dropped: older than the replay window.
        dropped_old,
        /// Datagrams dropped: a key generation out of turn.
        dropped_generation,
        /// Datagrams dropped: the seal does not open.
        dropped_forged,
        /// Frames dropped: malformed, or not a client's to send.
        dropped_frame,
        /// Records dropped: a session exceeded its rate.
        dropped_control_rate,
        /// Sessions that were accepted and proved themselves.
        sessions_opened,
        /// Sessions refused: the credential is invalid or has expired.
        refused_credential,
        /// Sessions refused: the credential does not allow this server's service.
        refused_right,
        /// Sessions refused: too many credentials wait, or the system ended the session.
        refused_busy,
        /// Sessions refused: their user has the maximum number of sessions here.
        refused_sessions,
        /// Sessions sent to another server, as this one drains.
        sessions_parted,
        /// Sessions that ended by silence.
        sessions_expired,
        /// Sessions that the client closed.
        sessions_closed,
        /// Sessions ended: their control log was full.
        sessions_log_full,
        /// Sessions ended: unacknowledged data of all sessions exceeded its limit, and these had acknowledged nothing for longest.
        sessions_unread,
        /// Sessions ended: their token expired.
        sessions_token_ended,
        /// Sessions ended: their user or token was revoked.
        sessions_revoked,
        /// Sessions that continued with another token.
        sessions_renewed,
        /// Address changes that were verified and accepted.
        addresses_changed,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    HalfOpen,
    Proven,
    Asking,
    Open,
    Refused,
}

impl State {
    /// The client has shown no credential.
    fn is_half_open(self) -> bool {
        matches!(self, State::HalfOpen | State::Proven)
    }
}

struct PathCheck {
    addr: Addr,
    challenge: [u8; 8],
    received: usize,
    at: Micros,
    due: bool,
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Its client closed it.
    Closed,
    /// Its client was silent too long, or its memory was needed.
    Lost,
    /// This side ended it, for this reason.
    Refused(Code),
}

/// A session that is over.
#[derive(Debug, PartialEq, Eq)]
pub struct Gone<T> {
    pub slot: u32,
    pub id: u64,
    pub end: End,
    /// The role's data, for it to clean up.
    pub data: T,
}

/// Records that wait for the verdict on a credential.
#[derive(Default)]
struct Waiting {
    records: Vec<Vec<u8>>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.records.iter().map(Vec::len).sum()
    }
}

/// One client's session.
#[repr(C)] // fields that each datagram needs come first
pub struct Session<T> {
    state: State,
    /// The tail must be probed: the role sends heads with the next datagram.
    pub probe: bool,
    end: End,
    /// Another credential waits for a verdict.
    renewing: bool,
    pub user: u64,
    pub data: T,
    since: Micros,
    control: Debt,
    waiting: Option<Box<Waiting>>,
    path: Option<Box<PathCheck>>,
    /// Replies for which the log had no space; later replies queue behind them.
    late: Option<Box<Late>>,
    /// The position among sessions with unacknowledged bytes.
    rank: Rank,
    /// When the session ends unless it gets another token; and the token's number, for revocation.
    until: Micros,
    token: u64,
}

impl<T> Session<T> {
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.bytes())
    }
}

/// The bytes queued for a session and not acknowledged.
fn unread<T>(peer: &Peer<SESSION_BLOCKS, Session<T>>) -> usize {
    peer.conn.log.pending_bytes() + peer.data.late.as_ref().map_or(0, |late| late.bytes())
}

/// A credential that waits for a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The session's id, for [`Sessions::answer`].
    pub id: u64,
    pub credential: Vec<u8>,
}

/// The user that a credential belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    pub user: u64,
    /// When the session ends; `None`: the credential has no end.
    pub until: Option<Micros>,
    /// The credential's number, by which it can be revoked; 0: none.
    pub token: u64,
}

impl From<u64> for Admission {
    /// A user without a time limit.
    fn from(user: u64) -> Self {
        Admission {
            user,
            until: None,
            token: 0,
        }
    }
}

/// What a verdict did to a session, given by its slot.
#[derive(Debug, PartialEq, Eq)]
pub enum Answered {
    /// It is open; these requests came before the verdict.
    Opened(u32, Vec<Vec<u8>>),
    /// It continues with another credential of its user.
    Renewed(u32),
}

/// Why a credential opens no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// It belongs to no user, or is no longer valid.
    Credential,
    /// Its user lacks the right to this action.
    Right,
    /// It cannot be judged yet: the key that may have signed it is being fetched.
    Later,
    /// Its user has the maximum number of sessions here.
    Sessions,
}

impl Denied {
    pub const ALL: [Denied; 4] = [Denied::Credential, Denied::Right, Denied::Later, Denied::Sessions];

    /// The code for the client.
    pub fn code(self) -> Code {
        match self {
            Denied::Credential => Code::BadCredential,
            Denied::Right => Code::NotAllowed,
            Denied::Later => Code::NotReady,
            Denied::Sessions => Code::RateLimited,
        }
    }
}

/// All sessions of a role, over one socket.
pub struct Sessions<T> {
    pub table: Table<SESSION_BLOCKS, Session<T>>,
    pub door: Door,
    pub counters: SessionCounters,
    /// Set while this server drains.
    parting: Option<Parting>,
    parts_at: Micros,
    keepalive_ms: u32,
    sessions_max: usize,
    /// The wait times announced to clients; `None`: the default.
    pace: Option<(u32, u32)>,
    /// The servers announced to clients.
    naming: Naming,
    dice: Dice,
    idle: Micros,
    control_rate: Rate,
    /// Sessions that came without a credential, oldest first; some have shown one since, or are gone.
    half_open: VecDeque<(u64, Micros)>,
    half_open_len: usize,
    questions: VecDeque<Question>,
    asking: usize,
    waiting_bytes: usize,
    early_bytes: usize,
    unread: Unread,
    unread_max: usize,
    gone: Vec<Gone<T>>,
    pub buffer: u32,
}

impl<T: Default> Sessions<T> {
    pub fn new(door: Door, keepalive_ms: u32, idle_ms: u32, control_rate: u32) -> Self {
        Sessions {
            table: Table::default(),
            door,
            counters: SessionCounters::default(),
            parting: None,
            parts_at: 0,
            keepalive_ms,
            sessions_max: SESSIONS_MAX,
            pace: None,
            naming: Naming::default(),
            dice: Dice::new(0),
            idle: Micros::from(idle_ms) * 1000,
            control_rate: Rate {
                a_second: control_rate,
                burst: CONTROL_BURST,
            },
            half_open: VecDeque::new(),
            half_open_len: 0,
            questions: VecDeque::new(),
            asking: 0,
            waiting_bytes: 0,
            early_bytes: 0,
            unread: Unread::default(),
            unread_max: UNREAD_BYTES_MAX,
            gone: Vec::new(),
            buffer: 212_992,
        }
    }

    /// Announces the first and the longest reconnect wait of clients, in ms, to new sessions.
    pub fn set_backoff(&mut self, first: u32, longest: u32) {
        self.pace = ((first, longest) != BACKOFF_DEFAULT).then_some((first, longest));
    }

    /// Sets the limit of sessions, which spares existing ones, and of handshakes per second from one network.
    pub fn set_limits(&mut self, sessions: usize, prefix_rate: u32) {
        self.sessions_max = sessions.min(SESSIONS_MAX);
        self.door.set_prefix_rate(prefix_rate);
    }

    /// Sets the servers announced to clients, including present ones.
    pub fn set_servers(
        &mut self,
        now: Micros,
        node: &mut Node,
        servers: impl IntoIterator<Item = (Role, Vec<Server>)>,
    ) {
        if self.naming.set(now, servers) {
            self.dice = Dice::new(node.dice.roll());
        }
    }

    /// Refuses new clients from now on, and sends present ones to other servers.
    pub fn drain(&mut self) {
        self.parting.get_or_insert_default();
    }

    /// Admits clients again.
    pub fn stay(&mut self) {
        self.parting = None;
    }

    /// Whether all clients have been sent away, and are gone or had time to receive the message.
    pub fn is_drained(&self) -> bool {
        self.parting.is_some_and(|parting| parting.is_done()) && self.table.is_empty()
    }

    /// Bytes of records that wait for a verdict on a credential.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Bytes of records that came before their predecessors.
    pub fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    /// Bytes sent to sessions that are not acknowledged yet.
    pub fn unread_bytes(&self) -> usize {
        self.unread.bytes()
    }

    /// The next session that ended. Its slot stays reserved until this call.
    pub fn gone(&mut self) -> Option<Gone<T>> {
        let gone = self.gone.pop()?;
        self.table.release(gone.slot.into());
        Some(gone)
    }

    /// The next credential that needs a verdict.
    pub fn question(&mut self) -> Option<Question> {
        self.questions.pop_front()
    }

    /// Prefetches the session that a datagram names. Returns its slot, occupied or not.
    #[inline]
    pub fn fetch(&self, datagram: &[u8]) -> Option<u32> {
        let header = Header::read(datagram).ok()?;
        let slot = header.connection as u32;
        self.table.fetch(slot);
        Some(slot)
    }

    /// Prefetches the key of a prefetched session. Returns the role's data of the session.
    #[inline]
    pub fn fetch_key(&self, keys: &KeyCache, slot: u32) -> Option<&T> {
        let peer = self.table.get(slot)?;
        peer.conn.fetch_key(keys);
        Some(&peer.data.data)
    }

    /// Takes a datagram of the public socket. `Some`: the slot of a session, and the length of the sealed frames
    /// behind the header.
    #[inline]
    pub fn receive(
        &mut self,
        now: Micros,
        node: &mut Node,
        arrival: Arrival,
        datagram: &mut [u8],
    ) -> Option<(u32, usize)> {
        self.counters.datagrams_received += 1;
        let Ok(header) = Header::read(datagram) else {
            self.counters.dropped_header += 1;
            return None;
        };
        match header.kind {
            DatagramKind::Data => self.data(now, node, arrival, &header, datagram),
            DatagramKind::Hello if self.table.len() - self.half_open_len >= self.sessions_max => {
                self.door.counters.dropped_hello_busy += 1;
                None
            }
            DatagramKind::Hello if self.parting.is_none() => {
                self.door.hello(now, arrival, &header, datagram);
                None
            }
            _ => {
                self.counters.dropped_header += 1;
                None
            }
        }
    }

    #[inline]
    fn data(
        &mut self,
        now: Micros,
        node: &mut Node,
        arrival: Arrival,
        header: &Header,
        datagram: &mut [u8],
    ) -> Option<(u32, usize)> {
        let Some(slot) = self.table.find(header.connection) else {
            self.counters.dropped_unknown += 1;
            self.door.unknown(now, arrival, header);
            return None;
        };
        let share = (self.buffer / (self.table.len() as u32).max(1)).clamp(16 * 1024, self.buffer.max(16 * 1024));
        let peer = self.table.get_mut(slot)?;
        let len = match peer.conn.open(now, &mut node.keys, header, datagram) {
            Ok(len) => len,
            Err(reject) => {
                *match reject {
                    Reject::Duplicate => &mut self.counters.dropped_duplicate,
                    Reject::Old => &mut self.counters.dropped_old,
                    Reject::Generation => &mut self.counters.dropped_generation,
                    Reject::Forged => &mut self.counters.dropped_forged,
                } += 1;
                return None;
            }
        };
        if peer.data.state == State::HalfOpen {
            peer.data.state = State::Proven;
            self.door.proven(peer.conn.addr);
            peer.data.since = now;
            peer.conn.receive_window = share;
            self.counters.sessions_opened += 1;
        } else if arrival.from != peer.conn.addr && peer.conn.is_newest(header.sequence) {
            self.moved(now, node, slot, arrival);
        }
        Some((slot, len))
    }

    /// The newest datagram came from another address: sends a path check there before the address is accepted.
    fn moved(&mut self, now: Micros, node: &mut Node, slot: u32, arrival: Arrival) {
        let challenge = node.secret_u64().to_le_bytes();
        let Some(peer) = self.table.get_mut(slot) else { return };
        match &mut peer.data.path {
            Some(check) if now < check.at + PATH_EVERY => {
                if check.addr == arrival.from {
                    check.received += arrival.len as usize;
                }
                return;
            }
            path => {
                *path = Some(Box::new(PathCheck {
                    addr: arrival.from,
                    challenge,
                    received: arrival.len as usize,
                    at: now,
                    due: true,
                }));
            }
        }
        self.table.mark(slot);
    }

    /// Takes a frame that every session understands.
    pub fn control(&mut self, now: Micros, slot: u32, from: Addr, frame: &Frame<'_>, records: &mut Records) -> Control {
        let Some(peer) = self.table.get_mut(slot) else {
            return Control::Done;
        };
        if frame.kind == FrameKind::PATH_RESPONSE {
            if let Some(check) = peer
                .data
                .path
                .as_ref()
                .filter(|check| check.addr == from && frame.body == check.challenge)
            {
                peer.conn.addr = check.addr;
                peer.data.path = None;
                self.counters.addresses_changed += 1;
            }
            return Control::Done;
        }
        let (early, told) = (peer.conn.early_bytes(), unread(peer));
        if frame.kind == FrameKind::LOG {
            let own = if peer.data.is_open() {
                SESSION_LOG_BYTES
            } else {
                EARLY_UNKNOWN_MAX
            };
            peer.conn
                .hold_at_most(own.min(early + EARLY_BYTES_MAX - self.early_bytes));
        }
        let control = peer.conn.control_frame(now, frame, records);
        self.early_bytes = self.early_bytes + peer.conn.early_bytes() - early;
        if matches!(control, Control::Acknowledged(_)) {
            let log = &mut peer.conn.log;
            peer.data.late.take_if(|late| late.tell(log));
            let left = unread(peer);
            self.unread.note(slot, &mut peer.data.rank, told, left);
        }
        match control {
            Control::Closed(_) => {
                self.counters.sessions_closed += 1;
                // A session that was sent away may also be closed by its client.
                if peer.data.state != State::Refused {
                    peer.data.end = End::Closed;
                }
                self.end(slot);
            }
            Control::Bad => self.counters.dropped_frame += 1,
            _ => {}
        }
        control
    }

    /// Sorts a record: returns it for the role if the session is open; turns the credential into a question; stores
    /// others.
    pub fn record<'a, R: SystemRecord<'a>>(&mut self, now: Micros, slot: u32, bytes: &'a [u8]) -> Option<R> {
        let peer = self.table.get_mut(slot)?;
        let record = R::read(bytes);
        let free = record.as_ref().is_some_and(R::is_free);
        if !free && !peer.data.control.take(now, self.control_rate, 1) {
            self.counters.dropped_control_rate += 1;
            let known = matches!(peer.data.state, State::Open | State::Asking);
            if let Some(record) = record.filter(|_| known) {
                self.refuse_rate(slot, &record);
            }
            return None;
        }
        let Some(record) = record else {
            self.counters.dropped_frame += 1;
            return None;
        };
        match (peer.data.state, record.control(), record.access()) {
            (State::Open, None, Access::Waits | Access::Open) => return Some(record),
            // One at a time. Without a verdict the session ends with its present token.
            (State::Open, Some(ControlRecord::Authenticate { credential }), _) => {
                if peer.data.renewing || self.asking >= QUESTIONS_MAX {
                    self.counters.dropped_control_rate += 1;
                } else {
                    peer.data.renewing = true;
                    self.asking += 1;
                    self.questions.push_back(Question {
                        id: peer.conn.id,
                        credential: credential.to_vec(),
                    });
                }
            }
            (State::Proven, Some(ControlRecord::Authenticate { credential }), _) => {
                if self.asking >= QUESTIONS_MAX {
                    self.refuse(now, slot, Code::Busy);
                } else {
                    peer.data.state = State::Asking;
                    peer.data.since = now;
                    self.half_open_len -= 1;
                    self.asking += 1;
                    let id = peer.conn.id;
                    self.questions.push_back(Question {
                        id,
                        credential: credential.to_vec(),
                    });
                }
            }
            // The credential comes first: records of a session that has shown none are dropped.
            (State::Asking, None, Access::Waits) => {
                let waiting = peer.data.waiting.get_or_insert_default();
                let shared = self.waiting_bytes + bytes.len() <= WAITING_BYTES_MAX / 2;
                let fits = || bytes.len() + waiting.bytes() <= WAITING_SHARE;
                if waiting.records.len() < WAITING_MAX && (shared || fits()) {
                    self.waiting_bytes += bytes.len();
                    waiting.records.push(bytes.to_vec());
                } else {
                    self.counters.dropped_control_rate += 1;
                    self.refuse_rate(slot, &record);
                }
            }
            (State::Refused, ..) => {}
            _ => self.counters.dropped_frame += 1,
        }
        None
    }

    /// Refuses a record that is dropped for its rate: the log has acknowledged it, so the client would not repeat it.
    fn refuse_rate<'a>(&mut self, slot: u32, record: &impl SystemRecord<'a>) {
        if let Some(refusal) = record.refusal(Code::RateLimited, 1_000) {
            self.tell(slot, &refusal);
        }
    }

    /// Queues a reply for a session. If the log is full, the reply waits behind others, since one turn may reply to a
    /// burst of joins. If too many wait because nothing is acknowledged, the session ends: a client would wait
    /// forever for a dropped reply.
    pub fn tell(&mut self, slot: u32, record: &impl Encode) {
        let told = self.write(slot, |peer| {
            if peer.data.late.is_none() && peer.conn.record(record).is_some() {
                return true;
            }
            let late = peer.data.late.get_or_insert_default();
            record.encode(|bytes| late.push(bytes))
        });
        if told == Some(false) {
            self.counters.sessions_log_full += 1;
            self.end(slot);
        }
    }

    /// Sends a session a record that can wait, if there is space for it and for the next reply. Returns whether it
    /// was sent.
    pub fn offer(&mut self, slot: u32, record: &impl Encode) -> bool {
        let told = self.write(slot, |peer| {
            !peer.conn.log.is_crowded() && peer.conn.record(record).is_some()
        });
        told.unwrap_or(false)
    }

    /// Writes into a session's log, and enforces the bound over all logs.
    fn write<R>(&mut self, slot: u32, write: impl FnOnce(&mut Peer<SESSION_BLOCKS, Session<T>>) -> R) -> Option<R> {
        let peer = self.table.get_mut(slot)?;
        let before = unread(peer);
        let wrote = write(peer);
        let after = unread(peer);
        self.unread.note(slot, &mut peer.data.rank, before, after);
        if after > before {
            self.table.mark(slot);
        }
        while self.unread.bytes() > self.unread_max {
            let Some(longest) = self.unread.longest() else { break };
            self.counters.sessions_unread += 1;
            self.end(longest);
        }
        Some(wrote)
    }

    /// Takes the verdict on a credential. `None`: its session is over, or is refused now.
    pub fn answer(&mut self, now: Micros, id: u64, said: Result<Admission, Denied>) -> Option<Answered> {
        let slot = self.table.find(id)?;
        let token = self.door.token(id);
        let keepalive_ms = self.keepalive_ms;
        let peer = self.table.get_mut(slot)?;
        let renewed = peer.data.is_open() && std::mem::take(&mut peer.data.renewing);
        if peer.data.state != State::Asking && !renewed {
            return None;
        }
        self.asking -= 1;
        let admission = match said {
            Ok(admission) if !renewed || admission.user == peer.data.user => admission,
            Ok(_) => {
                self.refuse(now, slot, Code::BadCredential);
                return None;
            }
            Err(Denied::Later) if renewed => return None, // the session still has its present token
            Err(denied) => {
                self.refuse(now, slot, denied.code());
                return None;
            }
        };
        peer.data.user = admission.user;
        peer.data.until = admission.until.unwrap_or(Micros::MAX);
        peer.data.token = admission.token;
        if renewed {
            self.counters.sessions_renewed += 1;
            self.tell_lease(now, slot, admission.until);
            return Some(Answered::Renewed(slot));
        }
        peer.data.state = State::Open;
        self.waiting_bytes -= peer.data.waiting_bytes();
        let waiting = peer.data.waiting.take().unwrap_or_default().records;
        let ready = ControlRecord::Ready {
            user: admission.user,
            token,
            keepalive_ms,
        };
        self.tell(slot, &ready);
        self.tell_lease(now, slot, admission.until);
        if let Some((backoff_ms, backoff_max_ms)) = self.pace {
            let pace = ControlRecord::Pace {
                backoff_ms,
                backoff_max_ms,
            };
            self.tell(slot, &pace);
        }
        self.name_servers(slot);
        Some(Answered::Opened(slot, waiting))
    }

    /// Tells a session when its token ends, if it has an end.
    fn tell_lease(&mut self, now: Micros, slot: u32, until: Option<Micros>) {
        if let Some(until) = until {
            let left_ms = until.saturating_sub(now) / 1_000;
            let left_ms = u32::try_from(left_ms).unwrap_or(u32::MAX);
            self.tell(slot, &ControlRecord::Lease { left_ms });
        }
    }

    /// Ends a session after telling its client why.
    pub fn refuse(&mut self, now: Micros, slot: u32, code: Code) {
        self.refuse_for(now, slot, code, if code.retry() { RETRY_MS } else { 0 });
    }

    /// Called after the frames of one datagram: notes that they elicit a status, and when the session next needs
    /// time. Without control frames only the status can make that time earlier.
    #[inline]
    pub fn after(&mut self, now: Micros, slot: u32, elicits: bool, control: bool) {
        let Some(peer) = self.table.get_mut(slot) else { return };
        if elicits {
            peer.conn.elicited(now);
        }
        let status = peer.conn.status_due();
        if peer.conn.control_due(now) {
            self.table.mark(slot);
        }
        if control {
            self.table.postpone(slot, self.due(now, slot));
        } else {
            self.table.schedule(slot, status.map(|at| at.max(now)));
        }
    }

    /// Updates when the session next needs time.
    #[inline]
    pub fn reschedule(&mut self, now: Micros, slot: u32) {
        self.table.schedule(slot, self.due(now, slot));
    }

    /// Fills the slice with datagrams outside sessions. `true`: more waits.
    pub fn transmit(&mut self, now: Micros, node: &mut Node, outbox: &mut Outbox) -> bool {
        self.accept(now, node);
        self.door.transmit(outbox);
        self.door.has_replies() || self.door.waits()
    }

    /// Sends a due path challenge to the new address, if the allowance of that address permits.
    pub fn challenge(&mut self, now: Micros, node: &mut Node, slot: u32, outbox: &mut Outbox) {
        let Some(peer) = self.table.get_mut(slot) else { return };
        let Some(check) = peer.data.path.as_mut().filter(|check| check.due) else {
            return;
        };
        check.due = false;
        let (addr, challenge, received) = (check.addr, check.challenge, check.received);
        if outbox.room() == 0 || !self.door.may_send(now, addr, received, 80) {
            return;
        }
        let buffer = outbox.reserve(node.payload);
        let mut writer = crate::codec::Writer::new(&mut buffer[crate::wire::HEADER..]);
        append(&mut writer, FrameKind::PATH_CHALLENGE, 0, |writer| {
            writer.put(&challenge);
            true
        });
        let len = writer.len();
        let total = peer
            .conn
            .seal(now, &mut node.keys, node.stamp, buffer, len, Wants::Nothing, 0);
        outbox.commit(peer.conn.socket, addr, total);
    }

    /// When [`Sessions::expire`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        let parts = self.parting.filter(|parting| !parting.is_done());
        let parts_at = parts.map(|_| self.parts_at);
        let names_at = self.naming.deadline();
        [
            self.table.deadline(),
            self.door.waits().then_some(0),
            parts_at,
            names_at,
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

#[cfg(any(test, feature = "testing"))]
impl<T: Default> Sessions<T> {
    /// Adds an open session without a handshake.
    pub fn admit(&mut self, random: u32, user: u64) -> u32 {
        self.table.insert(random, |id| {
            let secret = crate::seal::Secret::new([3; 16]);
            let conn = crate::conn::Conn::new(id, 2, 0, Addr::default(), secret, false, 0, SESSION_LOG_BYTES, 0);
            let session = Session {
                user,
                data: T::default(),
                probe: false,
                end: End::Lost,
                state: State::Open,
                control: Debt::default(),
                since: 0,
                waiting: None,
                path: None,
                late: None,
                rank: 0,
                until: Micros::MAX,
                token: 0,
                renewing: false,
            };
            (conn, session)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Writer;
    use crate::door::{Accepted, DoorKey, HELLO_MIN};
    use crate::fixtures::{cluster, me, Zeros, FRONT};
    use crate::handshake::ResetSecret;
    use std::collections::HashSet;

    const SECOND: Micros = 1_000_000;

    /// A record of a system whose only kind is a request.
    struct Ask<'a>(Option<ControlRecord<'a>>);

    impl Encode for Ask<'_> {
        fn write(&self, writer: &mut Writer<'_>) -> bool {
            !writer.u8(200).full()
        }
    }

    impl<'a> SystemRecord<'a> for Ask<'a> {
        fn read(bytes: &'a [u8]) -> Option<Self> {
            Some(Ask(ControlRecord::read(bytes)))
        }

        fn control(&self) -> Option<&ControlRecord<'a>> {
            self.0.as_ref()
        }

        fn access(&self) -> Access {
            Access::Waits
        }

        fn is_free(&self) -> bool {
            false
        }

        fn refusal(&self, _code: Code, _retry_ms: u32) -> Option<Self> {
            Some(Ask(None))
        }
    }

    fn sessions() -> (Node, Sessions<()>) {
        let node = Node::new(me(FRONT), 1_200, 1, Box::new(Zeros));
        let key = DoorKey::Cluster(Box::new(cluster()));
        let door = Door::new(key, ResetSecret::new([1; 32]), &mut Zeros);
        (node, Sessions::new(door, 15_000, 45_000, 100))
    }

    #[test]
    fn unacknowledged_bytes_are_bounded_and_the_longest_silent_session_ends() {
        let (_, mut sessions) = sessions();
        sessions.unread_max = 4 * SESSION_LOG_BYTES;
        let slots: Vec<u32> = (0..5).map(|random| sessions.admit(random, 1)).collect();
        let refused = ControlRecord::Refused {
            request: 1,
            code: Code::Busy,
            retry_ms: 0,
        };
        let fill = |sessions: &mut Sessions<()>, slot| {
            while sessions.offer(slot, &refused) {}
        };
        slots[..4].iter().for_each(|slot| fill(&mut sessions, *slot));
        assert_eq!(sessions.counters.sessions_unread, 0);
        // The first one has acknowledged something since.
        let mut body = [0; 2_000];
        let first = &mut sessions.table.get_mut(slots[0]).expect("it is there").conn;
        assert!(first.log.next_frame(0, 1, 1, &mut body).is_some());
        let next = 2u64.to_le_bytes();
        let ack = Frame {
            kind: FrameKind::LOG_ACK,
            flags: 0,
            body: &next,
        };
        sessions.control(0, slots[0], Addr::default(), &ack, &mut Records::default());
        fill(&mut sessions, slots[4]);
        assert_eq!(sessions.counters.sessions_unread, 1);
        assert!(sessions.table.get(slots[1]).is_none());
        assert!(sessions.unread_bytes() <= sessions.unread_max);
        assert_eq!(sessions.gone().map(|gone| gone.slot), Some(slots[1]));
        for slot in &slots {
            sessions.end(*slot);
        }
        assert_eq!(sessions.unread_bytes(), 0);
    }

    /// Regression: sessions that were already open still counted as half-open, so a slow one was ended after a burst
    /// of others.
    #[test]
    fn an_open_session_does_not_count_as_half_open() {
        let (mut node, mut sessions) = sessions();
        let mut come = |sessions: &mut Sessions<()>, now| {
            let id = sessions.let_in(now, &mut node, &Accepted::of(7));
            sessions.table.find(id).expect("it is there")
        };
        let silent = come(&mut sessions, 0);
        let mut now = 100_000;
        let credential = ControlRecord::Authenticate { credential: b"token" }.encode(<[u8]>::to_vec);
        for _ in 0..HALF_OPEN_MAX {
            now += 200;
            let slot = come(&mut sessions, now);
            sessions.table.get_mut(slot).expect("it is there").data.state = State::Proven;
            assert!(sessions.record::<Ask>(now, slot, &credential).is_none());
            let question = sessions.question().expect("it asks");
            assert!(sessions.answer(now, question.id, Ok(1.into())).is_some());
        }
        for _ in 0..200 {
            come(&mut sessions, now);
        }
        assert!(sessions.table.get(silent).is_some());
        for _ in 200..HALF_OPEN_MAX {
            come(&mut sessions, now);
        }
        assert!(sessions.table.get(silent).is_none(), "one of the half-open sessions");
        let open = sessions
            .table
            .slots()
            .filter(|slot| sessions.table.get(*slot).is_some_and(|peer| peer.data.is_open()));
        assert_eq!(open.count(), HALF_OPEN_MAX);
    }

    /// Regression: late sessions outlived their entry in the queue, and newer ones were ended instead.
    #[test]
    fn the_oldest_half_open_session_makes_room_however_late_it_was_proven() {
        let (mut node, mut sessions) = sessions();
        for _ in 0..HALF_OPEN_MAX {
            sessions.let_in(0, &mut node, &Accepted::of(7));
        }
        let proven = HALF_OPEN_LIFE - 1_000;
        for slot in sessions.table.slots().collect::<Vec<_>>() {
            let data = &mut sessions.table.get_mut(slot).expect("it is there").data;
            (data.state, data.since) = (State::Proven, proven);
        }
        let now = HALF_OPEN_LIFE + 1_000;
        sessions.expire(now, &mut node);
        assert_eq!(sessions.table.len(), HALF_OPEN_MAX);
        let new = [0; 10].map(|_| sessions.let_in(now, &mut node, &Accepted::of(7)));
        assert!(new.iter().all(|id| sessions.table.find(*id).is_some()));
        assert_eq!(sessions.table.len(), HALF_OPEN_MAX);
    }

    #[test]
    fn half_open_sessions_make_room_under_a_low_limit() {
        let (mut node, mut sessions) = sessions();
        sessions.set_limits(3, 1_000);
        let open = sessions.admit(1, 1);
        let came = [0, 1].map(|_| {
            assert!(sessions.has_place(0));
            sessions.let_in(0, &mut node, &Accepted::of(7))
        });
        assert!(!sessions.has_place(HALF_OPEN_GRACE - 1), "their credentials may come");
        assert!(sessions.has_place(HALF_OPEN_GRACE));
        assert_eq!(came.map(|id| sessions.table.find(id).is_some()), [false, true]);
        sessions.let_in(HALF_OPEN_GRACE, &mut node, &Accepted::of(7));
        assert_eq!(sessions.table.len(), 3);
        assert!(sessions.table.get(open).is_some());
        let busy = sessions.door.counters.dropped_hello_busy;
        hello(&mut sessions, &mut node);
        assert_eq!(sessions.door.counters.dropped_hello_busy, busy, "there is room for it");
    }

    /// A refusal is a record that must be kept until it is acknowledged.
    #[test]
    fn a_session_without_a_credential_gets_no_rate_refusals() {
        let (mut node, mut sessions) = sessions();
        let id = sessions.let_in(0, &mut node, &Accepted::of(7));
        let slot = sessions.table.find(id).expect("it is there");
        sessions.table.get_mut(slot).expect("it is there").data.state = State::Proven;
        let open = Ask(None).encode(<[u8]>::to_vec);
        for _ in 0..2 * CONTROL_BURST {
            assert!(sessions.record::<Ask>(0, slot, &open).is_none());
        }
        assert!(sessions.counters.dropped_control_rate > 0);
        assert_eq!(sessions.unread_bytes(), 0);
    }

    /// An open session, as if this were its user's credential.
    fn opened(sessions: &mut Sessions<()>, node: &mut Node, now: Micros, admission: Admission) -> (u32, u64) {
        let id = sessions.let_in(now, node, &Accepted::of(7));
        let slot = sessions.table.find(id).expect("it is there");
        sessions.table.get_mut(slot).expect("it is there").data.state = State::Proven;
        ask(sessions, now, slot);
        assert_eq!(
            sessions.answer(now, id, Ok(admission)),
            Some(Answered::Opened(slot, Vec::new()))
        );
        sessions.reschedule(now, slot);
        (slot, id)
    }

    /// A client shows a credential.
    fn ask(sessions: &mut Sessions<()>, now: Micros, slot: u32) {
        let credential = ControlRecord::Authenticate { credential: b"token" }.encode(<[u8]>::to_vec);
        assert!(sessions.record::<Ask>(now, slot, &credential).is_none());
        assert!(sessions.question().is_some());
    }

    fn state(sessions: &Sessions<()>, slot: u32) -> Option<State> {
        sessions.table.get(slot).map(|peer| peer.data.state)
    }

    fn until(user: u64, until: Micros) -> Admission {
        Admission {
            until: Some(until),
            ..Admission::from(user)
        }
    }

    #[test]
    fn a_session_ends_with_its_token_and_its_client_learns_why() {
        let (mut node, mut sessions) = sessions();
        let (slot, _) = opened(&mut sessions, &mut node, 0, until(7, 10 * SECOND));
        assert!(sessions.deadline().is_some_and(|at| at <= 10 * SECOND));
        sessions.expire(10 * SECOND - 1, &mut node);
        assert_eq!(state(&sessions, slot), Some(State::Open));
        sessions.expire(10 * SECOND, &mut node);
        assert_eq!(state(&sessions, slot), Some(State::Refused));
        sessions.expire(12 * SECOND, &mut node);
        assert_eq!(state(&sessions, slot), None);
        let counters = &sessions.counters;
        assert_eq!((counters.sessions_token_ended, counters.sessions_expired), (1, 0));
    }

    #[test]
    fn another_token_of_its_user_prolongs_a_session_and_no_other_does() {
        let (mut node, mut sessions) = sessions();
        let (slot, id) = opened(&mut sessions, &mut node, 0, until(7, 10 * SECOND));
        ask(&mut sessions, SECOND, slot);
        let renewed = sessions.answer(SECOND, id, Ok(until(7, 20 * SECOND)));
        assert_eq!(renewed, Some(Answered::Renewed(slot)));
        sessions.expire(15 * SECOND, &mut node);
        assert_eq!(state(&sessions, slot), Some(State::Open));
        ask(&mut sessions, 15 * SECOND, slot);
        assert_eq!(sessions.answer(15 * SECOND, id, Err(Denied::Later)), None);
        assert_eq!(state(&sessions, slot), Some(State::Open), "it has its present token");
        ask(&mut sessions, 15 * SECOND, slot);
        assert_eq!(sessions.answer(15 * SECOND, id, Ok(until(8, 30 * SECOND))), None);
        assert_eq!(state(&sessions, slot), Some(State::Refused));
        assert_eq!(sessions.asking, 0);
    }

    #[test]
    fn a_session_asks_for_one_judgement_at_a_time() {
        let (mut node, mut sessions) = sessions();
        let (slot, id) = opened(&mut sessions, &mut node, 0, until(7, 10 * SECOND));
        ask(&mut sessions, 0, slot);
        let credential = ControlRecord::Authenticate { credential: b"other" }.encode(<[u8]>::to_vec);
        sessions.record::<Ask>(0, slot, &credential);
        assert_eq!(sessions.question(), None);
        sessions.end(slot);
        assert_eq!(sessions.answer(0, id, Ok(7.into())), None);
        assert_eq!(sessions.asking, 0);
    }

    #[test]
    fn a_revoked_user_and_a_revoked_token_lose_their_sessions_and_others_stay() {
        let (mut node, mut sessions) = sessions();
        let with = |user, token| Admission {
            token,
            ..Admission::from(user)
        };
        let mut open = |admission| opened(&mut sessions, &mut node, 0, admission).0;
        let slots = [with(7, 70), with(7, 71), with(8, 80), with(8, 0), with(9, 0)].map(&mut open);
        sessions.revoke(0, &HashSet::from([7]), &HashSet::from([80]));
        let open = slots.map(|slot| state(&sessions, slot) == Some(State::Open));
        assert_eq!(open, [false, false, false, true, true]);
        assert_eq!(sessions.counters.sessions_revoked, 3);
    }

    fn hello(sessions: &mut Sessions<()>, node: &mut Node) {
        let mut bytes = vec![0; HELLO_MIN];
        Header::clear(DatagramKind::Hello, 7).write(&mut bytes);
        let arrival = Arrival {
            socket: 1,
            from: Addr { ip: [1; 16], port: 7 },
            start: 0,
            len: bytes.len() as u32,
        };
        sessions.receive(0, node, arrival, &mut bytes);
    }

    #[test]
    fn a_hello_beyond_the_session_limit_is_dropped_and_present_sessions_stay() {
        let (mut node, mut sessions) = sessions();
        sessions.admit(1, 1);
        sessions.admit(2, 2);
        let mut hello = |sessions: &mut Sessions<()>| {
            hello(sessions, &mut node);
            (
                sessions.door.counters.cookies_sent,
                sessions.door.counters.dropped_hello_busy,
            )
        };
        assert_eq!(hello(&mut sessions), (1, 0));
        sessions.set_limits(2, 1_000);
        assert_eq!(hello(&mut sessions), (1, 1));
        assert_eq!(sessions.table.len(), 2);
        sessions.set_limits(usize::MAX, 1_000);
        assert_eq!(hello(&mut sessions), (2, 1));
    }

    /// Regression: with a hundred thousand sessions, each due one was examined in every turn before it was served.
    #[test]
    fn a_due_session_is_examined_again_only_after_it_was_served() {
        let (mut node, mut sessions) = sessions();
        let slot = sessions.admit(1, 1);
        let mut buffer = [0; 100];
        let conn = &mut sessions.table.get_mut(slot).expect("it is there").conn;
        conn.seal(0, &mut node.keys, node.stamp, &mut buffer, 8, Wants::Probes, 0);
        sessions.reschedule(0, slot);
        assert!(sessions.deadline().is_some_and(|at| at <= SECOND / 10));
        sessions.expire(SECOND, &mut node);
        assert_eq!(sessions.table.ready_len(), 1);
        assert!(sessions.deadline().is_some_and(|at| at > 20 * SECOND));
        assert_eq!(sessions.table.next_ready(), Some(slot));
        sessions.reschedule(SECOND, slot);
        assert!(sessions.deadline().is_some_and(|at| at < 2 * SECOND));
        sessions.expire(46 * SECOND, &mut node);
        assert!(sessions.table.is_empty());
    }
}
