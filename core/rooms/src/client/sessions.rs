//! The life of a session with a server: handshake, reset, loss, silence, and what it sends.

use super::choice::Choice;
use super::lulls::Lulls;
use super::{
    Client, ClientEvent, Endpoint, Side, ASK_FIRST, ASK_MAX, ATTEMPT_MAX, HELLO_FIRST, HELLO_MAX, SIDES, SILENCE_MAX,
    SPREAD, UNANSWERED_MAX,
};
use crate::limits::CROWDED_WINDOW;
use crate::wire::publish::publish_body_max;
use crate::wire::record::Record;
use crate::wire::room::write_repair;
use muster_transport::{
    append, frames_max, reset_token, same, soonest, Arrival, Conn, ControlRecord, DatagramKind, FrameKind, Header,
    InitiatorKey, Knock, Micros, NoVersion, Outbox, Versions, Wants, Writer, BACKOFF_FIRST, BACKOFF_MAX, HEADER,
    SESSION_BLOCKS, SESSION_LOG_BYTES,
};

/// Limits of the reconnect waits that a server may announce: least first wait, and a tenth of the longest wait.
pub(super) const PACE_MIN: Micros = 10_000;
pub(super) const PACE_MAX: Micros = 60_000_000;
/// Bounds of the silence that counts as a loss where another server can be tried: see [`super::SILENCE_MAX`].
pub(super) const SILENCE_MIN: Micros = 750_000;
pub(super) const SILENCE_RTTS: u64 = 5;

/// A busy server that falls silent is asked after twice its longest recent lull, but at least this, not only after a
/// keepalive.
pub(super) const LULL_MIN: Micros = 250_000;

/// Reason of a loss: the server said that it does not know the session.
pub(super) const RESET: &str = "reset";

/// Reason of a loss: silence. The server may be alive and still hold the session.
pub(super) const SILENT: &str = "silent";

/// Reason of a loss: the server supports none of our protocol versions.
pub(super) const OTHER_VERSION: &str = "other_version";

/// Reasons of a loss after which the server would not get a closing message.
pub(super) const GONE: [&str; 3] = [RESET, "closed", "unreachable"];

/// Reason: another server may have a better path.
pub(super) const FAR: &str = "far";

/// The interval for a server that has not received all datagrams yet.
pub(super) const ASK_BEHIND: Micros = 500_000;

/// Before a session counts as lost, the client asks every `ASK_LAST_EVERY` for this long plus a round trip. A few
/// requests may all fall into one burst of losses, and twenty more cost less than another session.
pub(super) const ASK_LAST: Micros = 500_000;
pub(super) const ASK_LAST_EVERY: Micros = 20_000;

/// One of a client's sessions: the two that the program knows of, or a spare that carries copies of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    Main(Side),
    Spare(usize),
}

impl Slot {
    pub(super) const PROXY: Slot = Slot::Main(Side::Proxy);

    pub(super) fn at(self) -> usize {
        match self {
            Slot::Main(side) => side as usize,
            Slot::Spare(spare) => SIDES + spare,
        }
    }

    /// All slots of this many sessions.
    pub(super) fn all(sessions: usize) -> impl Iterator<Item = Slot> {
        let sides = [Slot::Main(Side::Gateway), Slot::PROXY];
        sides
            .into_iter()
            .chain((SIDES..sessions).map(|at| Slot::Spare(at - SIDES)))
    }
}

#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub(super) enum State {
    Idle,
    Waiting,
    Knocking,
    Opening,
    Ready,
    Refused,
}

pub(super) struct Session {
    /// The first `given` are the program's, the others were announced by servers.
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) given: usize,
    pub(super) learns: bool,
    /// The session is to be opened once a server is known.
    pub(super) wanted: bool,
    /// The first draw among all announced servers took place.
    pub(super) spread: bool,
    pub(super) drawn: Option<usize>,
    pub(super) drawn_at: u64,
    pub(super) at: usize,
    /// The quality of each endpoint.
    pub(super) choice: Choice,
    pub(super) state: State,
    pub(super) knock: Option<Knock>,
    pub(super) conn: Option<Box<Conn<SESSION_BLOCKS>>>,
    /// The previous session, whose server must learn that we left.
    pub(super) left: Option<Box<Conn<SESSION_BLOCKS>>>,
    /// The last session that fell silent. Its server is told once another session is open; before that, nothing may
    /// be sent outside a handshake.
    pub(super) unheard: Option<Box<Conn<SESSION_BLOCKS>>>,
    pub(super) token: Option<[u8; 16]>,
    pub(super) attempts: u32,
    pub(super) next_at: Micros,
    pub(super) attempt_until: Micros,
    pub(super) hello_due: bool,
    /// The interval between hellos, or between repeated requests.
    pub(super) wait: Micros,
    /// The round trip of the previous session, or measured by the cookie; 0: unknown.
    pub(super) rtt: Micros,
    pub(super) keepalive: Micros,
    pub(super) lulls: Lulls,
    pub(super) asked_at: Option<Micros>,
    pub(super) ready: bool,
    /// The session's token has an end, so the server accepts another token.
    pub(super) leased: bool,
    pub(super) probe: bool,
    pub(super) challenge: Option<[u8; 8]>,
    /// A newer session took over: this one is reopened only with another credential.
    pub(super) replaced: bool,
    /// The protocol version of the session, or of the last one.
    pub(super) version: Option<u8>,
    /// Servers found since the last common version that support none of ours.
    pub(super) others: Vec<Endpoint>,
    pub(super) losses: u64,
    /// The first and the longest reconnect wait, as the last server announced them.
    pub(super) backoff: (Micros, Micros),
}

impl Session {
    pub(super) fn new(endpoints: Vec<Endpoint>, learns: bool, at: usize) -> Self {
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
    pub(super) fn restart(&mut self, at: Micros) {
        self.knock = None;
        self.conn = None;
        self.ready = false;
        self.replaced = false;
        self.state = State::Waiting;
        self.attempts = 0;
        self.next_at = at;
    }

    /// A hello leaves; the next one waits at least until a reply can have come.
    pub(super) fn hello(&mut self, now: Micros, wait: Micros) {
        self.wait = wait.max(self.rtt + self.rtt / 2);
        self.next_at = now + self.wait;
        self.hello_due = true;
    }

    /// The silence after which the client asks whether the server is there.
    pub(super) fn patience(&self) -> Micros {
        (2 * self.lulls.longest()).max(LULL_MIN).min(self.keepalive)
    }

    /// How long a reply may be owed.
    pub(super) fn silence_max(&self, rtt: Micros) -> Micros {
        match self.endpoints.len() > 1 {
            true => (SILENCE_RTTS * rtt).clamp(SILENCE_MIN, SILENCE_MAX),
            false => SILENCE_MAX,
        }
    }
}

pub(super) fn write_close(writer: &mut Writer<'_>) {
    append(writer, FrameKind::CLOSE, 0, |writer| !writer.u8(0).full());
}

/// When a silent peer is asked whether it is there: after `patience`, and `wait` after the last datagram sent to it.
pub(super) fn ask_at(conn: &Conn<SESSION_BLOCKS>, asked_at: Option<Micros>, patience: Micros, wait: Micros) -> Micros {
    match asked_at {
        Some(_) => conn.heard_at.max(conn.sent_at) + wait.min(patience),
        None => conn.heard_at + patience,
    }
}

impl Client {
    /// Sets the window of the gateway, which all rooms share: nothing while one room is blocked, little while one is
    /// crowded. If the gateway may send more, it is told at once, since it waits for nothing else.
    pub(super) fn set_window(&mut self) {
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

    pub(super) fn find(&self, connection: u64) -> Option<Slot> {
        Slot::all(self.sessions.len()).find(|slot| {
            self.sessions[slot.at()]
                .conn
                .as_ref()
                .is_some_and(|conn| conn.id == connection)
        })
    }

    pub(super) fn handshake(&mut self, now: Micros, arrival: Arrival, header: &Header, datagram: &[u8]) {
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
    pub(super) fn differs(&mut self, now: Micros, slot: Slot, theirs: Versions, release: String) {
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

    pub(super) fn reset(&mut self, now: Micros, header: &Header, datagram: &[u8]) {
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
    pub(super) fn lose(&mut self, now: Micros, slot: Slot, reason: &'static str) {
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

    pub(super) fn expire_session(&mut self, now: Micros, slot: Slot) {
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

    pub(super) fn session_deadline(&self, slot: Slot) -> Option<Micros> {
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

    pub(super) fn serve(&mut self, now: Micros, slot: Slot, outbox: &mut Outbox) -> bool {
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
