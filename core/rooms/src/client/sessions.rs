//! The life of a session with a server: handshake, reset, loss, silence, and what it sends.

use super::attempt::Attempt;
use super::farewell::{write_close, Farewell};
use super::servers::{Lost, Servers};
use super::silence::{silence_max, Silence};
use super::{Client, ClientEvent, Endpoint, Side, SIDES, SPREAD};
use crate::wire::record::Record;
use muster_transport::{
    append, frames_max, reset_token, same, Arrival, Conn, ControlRecord, DatagramKind, FrameKind, Header, InitiatorKey,
    Knock, Micros, NoVersion, Outbox, Versions, Wants, Writer, HEADER, SESSION_BLOCKS, SESSION_LOG_BYTES,
};

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

/// A session with a server, or the attempt to open one.
pub(super) struct Session {
    pub(super) servers: Servers,
    pub(super) attempt: Attempt,
    pub(super) silence: Silence,
    pub(super) farewell: Farewell,
    pub(super) state: State,
    /// The session is to be opened once a server is known.
    pub(super) wanted: bool,
    pub(super) conn: Option<Box<Conn<SESSION_BLOCKS>>>,
    pub(super) token: Option<[u8; 16]>,
    /// The server has accepted the handshake, so it takes records.
    pub(super) ready: bool,
    /// The session's token has an end, so the server accepts another token.
    pub(super) leased: bool,
    pub(super) probe: bool,
    pub(super) challenge: Option<[u8; 8]>,
    /// A newer session took over: this one is reopened only with another credential.
    pub(super) replaced: bool,
    /// The protocol version of the session, or of the last one.
    pub(super) version: Option<u8>,
}

impl Session {
    pub(super) fn new(endpoints: Vec<Endpoint>, learns: bool, at: usize) -> Self {
        Session {
            servers: Servers::new(endpoints, learns, at),
            attempt: Attempt::default(),
            silence: Silence::default(),
            farewell: Farewell::default(),
            state: State::Idle,
            wanted: false,
            conn: None,
            token: None,
            ready: false,
            leased: false,
            probe: false,
            challenge: None,
            replaced: false,
            version: None,
        }
    }

    /// Starts opening the session, if that is wanted and a server is known.
    pub(super) fn begin(&mut self, now: Micros) {
        if self.wanted && self.state == State::Idle && !self.servers.is_empty() {
            self.state = State::Waiting;
            self.attempt.next_at = now;
        }
    }

    /// Schedules an attempt, and cancels one that has begun.
    pub(super) fn restart(&mut self, at: Micros) {
        self.conn = None;
        self.ready = false;
        self.replaced = false;
        self.state = State::Waiting;
        self.attempt.restart(at);
    }

    /// How long a reply may be owed.
    fn silence_max(&self, rtt: Micros) -> Micros {
        silence_max(rtt, self.servers.len() > 1)
    }
}

impl Client {
    /// Sets the window of the gateway. If it may send more, it is told at once, since it waits for nothing else.
    pub(super) fn set_window(&mut self) {
        let Some(conn) = &mut self.sessions[Side::Gateway as usize].conn else {
            return;
        };
        let window = self.rooms.narrow(self.window);
        if std::mem::replace(&mut conn.receive_window, window) < window {
            conn.tell_status();
        }
    }

    /// The connection ids of datagrams to this client, for several clients on one socket.
    pub fn connections(&self) -> impl Iterator<Item = u64> + '_ {
        let ids = |session: &Session| {
            [
                session.attempt.knock.as_ref().map(|knock| knock.id),
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
            let Some(endpoint) = session.servers.current() else {
                continue;
            };
            let knock = session.attempt.knock.as_mut();
            let Some(knock) = knock.filter(|knock| knock.id == header.connection) else {
                continue;
            };
            if endpoint.addr != arrival.from {
                continue;
            }
            if header.kind == DatagramKind::Cookie {
                session.attempt.cookie(now, datagram);
                return;
            }
            let Some(opened) = knock.accept(datagram) else { break };
            let id = knock.id;
            let version = match self.node.versions.answered(&opened.payload) {
                Ok(version) => version,
                Err(NoVersion::Other { theirs, release }) => return self.differs(now, slot, theirs, release),
                Err(NoVersion::Malformed) => break,
            };
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
                self.publications.begin_session();
            }
            if let Slot::Main(_) = slot {
                conn.record(&Record::Headers);
            }
            if self.ages && slot == Slot::Main(Side::Gateway) {
                conn.record(&Record::Ages); // before the joins, so that it holds for all messages
            }
            session.version = Some(version);
            session.servers.opened(now);
            session.attempt.opened(now);
            session.silence.begin();
            session.conn = Some(Box::new(conn));
            session.token = None; // it belonged to another connection
            session.state = State::Opening;
            session.ready = true;
            session.leased = false;
            match slot {
                Slot::Main(Side::Gateway) => self.rooms.numbers().for_each(|room| self.ask_join(now, room)),
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
        let Some((addr, retry)) = session.servers.differs() else {
            return;
        };
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
        let conn = session.conn.take();
        let measured = conn.as_ref().map_or(0, |conn| conn.flow.measured());
        let rtt = conn.as_ref().map_or(0, |conn| conn.flow.rtt());
        session.farewell.lost(conn, reason);
        session.ready = false;
        session.state = State::Waiting;
        let bound = session.attempt.lost(was_ready, rtt);
        let lost = Lost {
            returns: was_ready && reason == RESET,
            rtt: measured,
            attempts: session.attempt.count,
        };
        session.servers.lost(now, &mut self.node.dice, lost, &taken);
        let bound = if reason == SPREAD { 1 } else { bound };
        session.attempt.next_at = now + self.node.dice.below(bound);
        let Slot::Main(side) = slot else {
            return self.commands.lost_session(slot);
        };
        self.counters.sessions_lost += 1;
        match side {
            Side::Gateway => {
                self.rooms.lost_session();
                self.commands.lost_gateway();
            }
            Side::Proxy => {
                self.publications.lost_session();
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
            session.silence.excuse(now, self.looked_at);
            session.attempt.extend(now);
        }
        match session.state {
            State::Waiting if now >= session.attempt.next_at && !self.closing => {
                let Some(endpoint) = session.servers.current().cloned() else {
                    return;
                };
                let id = self.node.secret_u64();
                let knock = Knock::new(
                    id,
                    InitiatorKey::Client(&endpoint.key),
                    0,
                    &self.node.versions.offer(),
                    self.node.entropy.as_mut(),
                );
                let session = &mut self.sessions[slot.at()];
                session.state = State::Knocking;
                session.attempt.begin(now, knock);
            }
            State::Knocking | State::Opening if session.attempt.is_over(now) => self.lose(now, slot, "unreachable"),
            State::Knocking if now >= session.attempt.next_at => session.attempt.repeat(now, &mut self.node.dice),
            State::Ready | State::Opening => {
                let rtt = session.conn.as_ref().map_or(0, |conn| conn.flow.rtt());
                let silence_max = session.silence_max(rtt);
                let Some(conn) = session.conn.as_mut() else { return };
                session.silence.heard(conn.heard_at);
                if session.silence.is_over(now, silence_max) {
                    self.lose(now, slot, SILENT);
                    return;
                }
                let mut ask = conn.flow.timeout(now);
                ask |= now >= session.silence.ask_at(conn);
                if conn.tail_due(now) {
                    session.probe = true;
                    ask = true;
                }
                if ask {
                    conn.ask_status();
                    let dice = &mut self.node.dice;
                    session.silence.ask(now, dice, behind, rtt, silence_max);
                }
            }
            _ => {}
        }
    }

    pub(super) fn session_deadline(&self, slot: Slot) -> Option<Micros> {
        let session = &self.sessions[slot.at()];
        match session.state {
            State::Idle | State::Refused => None,
            State::Waiting => (!session.servers.is_empty()).then_some(session.attempt.next_at),
            State::Knocking => Some(session.attempt.next_at.min(session.attempt.ends_at())),
            State::Opening | State::Ready => {
                let conn = session.conn.as_ref()?;
                let keepalive = session.silence.ask_at(conn);
                let silence = session.silence.ends_at(session.silence_max(conn.flow.rtt()));
                let attempt = (session.state == State::Opening).then_some(session.attempt.ends_at());
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
            counters,
            closing,
            socket,
            ..
        } = self;
        let session = &mut sessions[slot.at()];
        let payload = node.payload;
        let server = session.servers.current().map(|server| server.addr);
        session.attempt.transmit(*socket, server, payload, outbox);
        counters.datagrams_sent += u64::from(session.farewell.transmit(now, node, outbox));
        loop {
            let Some(conn) = session.conn.as_mut() else {
                return session.farewell.is_due();
            };
            let free = conn.flow.available(payload);
            let probe = std::mem::take(&mut session.probe);
            let due = slot == Slot::PROXY && session.state == State::Ready && free > 0 && publications.is_due();
            let asks = slot == Slot::Main(Side::Gateway) && rooms.has_repairs();
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
                if session.silence.is_asked() {
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
                rooms.write_repairs(now, rtt, &mut writer);
            }
            if due {
                let written = publications.write(now, payload, &mut writer);
                counters.publish_repeated += written.repeated;
                if written.any {
                    wants = Wants::Probes;
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
