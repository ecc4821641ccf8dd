//! Sessions with clients: handshake, authentication, address changes, idle timeouts.
//!
//! Every machine that has clients owns one [`Sessions`]; `T` is the machine's data per session. Knows no system.

mod announcing;
mod asking;
mod ending;
mod half_open;
mod path;

use crate::address::{Debt, Rate};
use crate::conn::{Control, Reject, SESSION_LOG_BYTES};
use crate::door::Door;
use crate::log::Records;
use crate::machine::{Addr, Arrival, Micros, Outbox, SocketId};
use crate::node::Node;
use crate::parting::Parting;
use crate::seal::KeyCache;
use crate::table::{Peer, Table};
use crate::unread::{Late, Rank, Unread};
use crate::wire::header::{DatagramKind, Header};
use crate::wire::record::{Access, ControlRecord, Encode, SystemRecord};
use crate::wire::server::Server;
use crate::wire::{Code, Frame, FrameKind, Role};
use announcing::Announcing;
pub use asking::{Admission, Answered, Denied, Question, WAITING_BYTES_MAX};
use asking::{Asking, Waiting};
use half_open::HalfOpen;
use path::PathCheck;

/// Blocks of a session's replay window: 1,024 datagrams.
pub const SESSION_BLOCKS: usize = 16;
/// Maximum number of sessions without an accepted credential at once.
pub const HALF_OPEN_MAX: usize = 4_096;
/// Longest time without a first sealed datagram, or without a verdict on the credential.
pub const HALF_OPEN_LIFE: Micros = 5_000_000;
/// During the first part of that time, a session keeps its slot even if others need it: enough for a far client's
/// credential to arrive.
const HALF_OPEN_GRACE: Micros = 1_000_000;
/// Control records that one session may send in a burst (256 joins and the credential); the role sets the rate.
pub const CONTROL_BURST: u32 = 300;
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
}

/// The bytes queued for a session and not acknowledged.
fn unread<T>(peer: &Peer<SESSION_BLOCKS, Session<T>>) -> usize {
    peer.conn.log.pending_bytes() + peer.data.late.as_ref().map_or(0, |late| late.bytes())
}

/// All sessions of a role, over one socket.
pub struct Sessions<T> {
    pub table: Table<SESSION_BLOCKS, Session<T>>,
    pub door: Door,
    pub counters: SessionCounters,
    /// Set while this server drains.
    parting: Option<Parting>,
    announcing: Announcing,
    keepalive_ms: u32,
    sessions_max: usize,
    idle: Micros,
    control_rate: Rate,
    half_open: HalfOpen,
    asking: Asking,
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
            announcing: Announcing::default(),
            keepalive_ms,
            sessions_max: SESSIONS_MAX,
            idle: Micros::from(idle_ms) * 1000,
            control_rate: Rate {
                a_second: control_rate,
                burst: CONTROL_BURST,
            },
            half_open: HalfOpen::default(),
            asking: Asking::default(),
            early_bytes: 0,
            unread: Unread::default(),
            unread_max: UNREAD_BYTES_MAX,
            gone: Vec::new(),
            buffer: 212_992,
        }
    }

    /// Announces the first and the longest reconnect wait of clients, in ms, to new sessions.
    pub fn set_backoff(&mut self, first: u32, longest: u32) {
        self.announcing.set_backoff(first, longest);
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
        self.announcing.set_servers(now, node, servers);
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
        self.asking.waiting_bytes()
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
        self.asking.next()
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
            DatagramKind::Hello if self.table.len() - self.half_open.len() >= self.sessions_max => {
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

    /// Takes a frame that every session understands.
    pub fn control(&mut self, now: Micros, slot: u32, from: Addr, frame: &Frame<'_>, records: &mut Records) -> Control {
        let Some(peer) = self.table.get_mut(slot) else {
            return Control::Done;
        };
        if frame.kind == FrameKind::PATH_RESPONSE {
            let verified = PathCheck::verify(&mut peer.data.path, from, frame.body);
            if let Some(addr) = verified {
                peer.conn.addr = addr;
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
                if peer.data.renewing || !self.asking.ask(peer.conn.id, credential) {
                    self.counters.dropped_control_rate += 1;
                } else {
                    peer.data.renewing = true;
                }
            }
            (State::Proven, Some(ControlRecord::Authenticate { credential }), _) => {
                if self.asking.ask(peer.conn.id, credential) {
                    peer.data.state = State::Asking;
                    peer.data.since = now;
                    self.half_open.leave();
                } else {
                    self.refuse(now, slot, Code::Busy);
                }
            }
            // The credential comes first: records of a session that has shown none are dropped.
            (State::Asking, None, Access::Waits) => {
                if !self.asking.keep(&mut peer.data.waiting, bytes) {
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
        self.asking.answered();
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
        let waiting = self.asking.release(&mut peer.data.waiting);
        let ready = ControlRecord::Ready {
            user: admission.user,
            token,
            keepalive_ms,
        };
        self.tell(slot, &ready);
        self.tell_lease(now, slot, admission.until);
        if let Some(backoff) = self.announcing.backoff() {
            self.tell(slot, &backoff);
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

    /// When [`Sessions::expire`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        let parts_at = self.parting.and_then(|parting| parting.deadline());
        let names_at = self.announcing.deadline();
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
mod tests;
