//! The turn of an edge: links over UDP, members by streams.

use std::collections::HashSet;

use muster_edge::websocket::Origins;
use muster_edge::{Connection, Counters, Disconnect, Settings};
use muster_tcp::{Ended, Outbox, StreamId, Streams};
use muster_transport::{
    Addr, Denied, Dice, End, Entropy, Inbox, KeyedState, LinkChange, Machine, Micros, Node, NodeConfig,
    Outbox as Datagrams, Question, Rate,
};

use super::conns::Conns;
use super::control::ControlPlane;
use super::ending::{Drain, Stalls};
use super::fanout::Fanout;
use super::frames::Built;
use super::join_leave::Watches;
use super::protocol::Protocol;
use super::publishing::Publishing;
use super::questions::Questions;
use super::{Conn, Edge, EdgeCounters, EdgeSessions, Letters};
use crate::dispatch::Dispatch;
use crate::gateway::members::Members;
use crate::gateway::{Client, Gateway, GatewayEvent};
use crate::rights::Grant;
use crate::settings::EdgeSettings;

/// How an edge is set up.
pub struct EdgeConfig {
    pub node: NodeConfig,
    pub name_key: [u8; 16],
    pub settings: EdgeSettings,
    pub letters: Option<Box<dyn Letters>>,
}

/// Events for an edge's control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EdgeEvent {
    /// A token is to be judged; an empty one is that of a client without a token.
    Authenticate(Question),
    /// A token for this channel alone is to be judged.
    Subscribe(Question, String),
    /// A client calls a method of [`EdgeSettings::methods`]: [`Edge::answer_call`].
    Call {
        question: u64,
        user: u64,
        /// What the client may do in rooms.
        grant: Grant,
        method: String,
        data: Vec<u8>,
    },
    Link(LinkChange),
}

/// Why a token opens nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EdgeRefusal {
    /// Its time is over: the client may have another one.
    Expired,
    Denied(Denied),
}

impl Edge {
    pub fn edge(config: EdgeConfig, seed: u64, entropy: Box<dyn Entropy>) -> Edge {
        let EdgeConfig {
            node,
            name_key,
            settings,
            letters,
        } = config;
        let kept = &settings.rooms.namespaces;
        let sessions = |node: &mut Node| {
            let (k0, k1) = (node.secret_u64(), node.secret_u64());
            let hash = KeyedState::new(k0, k1);
            let protocol = Settings {
                ping_every: settings.ping_ms * 1_000,
                pong_within: settings.pong_ms * 1_000,
                commands: Rate {
                    a_second: settings.command_rate,
                    burst: settings.command_burst,
                },
                version: settings.version.clone(),
                node: node.me.node.to_string(),
                ..Settings::default()
            };
            EdgeSessions {
                protocol: Protocol::new(protocol, Dice::new(k0)),
                counters: EdgeCounters::default(),
                conns: Conns::new(),
                answers: Default::default(),
                gone: Vec::new(),
                control: ControlPlane::new(hash, settings.methods.clone()),
                fanout: Fanout::new(Built::new(seed)),
                publishing: Publishing::new(node.payload),
                questions: Questions::new(hash),
                watches: Watches::new(hash),
                letters,
                stalls: Stalls::new(settings.stall_ms * 1_000),
                drain: Drain::new((settings.drain_s * 1e6) as Micros),
                stirred: false,
                namespaces: kept.iter().map(|kept| kept.namespace.clone()).collect(),
            }
        };
        let mut edge = Gateway::with(node, name_key, settings.rooms.clone(), sessions, seed, entropy);
        edge.use_settings(&settings);
        edge
    }

    /// Uses the settings that may change while it runs; those of connections for new ones.
    pub fn use_settings(&mut self, settings: &EdgeSettings) {
        self.apply_rooms(&settings.rooms, settings.user_sessions_max);
        self.set_write_interval(settings.write_interval_ms * 1_000);
        self.set_join_leave_max(settings.join_leave_max);
        self.sessions.protocol.settings.origins = match settings.origins.as_slice() {
            [] => Origins::SameHost,
            listed if listed.iter().any(|origin| origin == "*") => Origins::Any,
            listed => Origins::Listed(listed.to_vec()),
        };
    }

    /// Counters of connections, and of their part in rooms.
    pub fn edge_counters(&self) -> (&Counters, &EdgeCounters) {
        (&self.sessions.protocol.counters, &self.sessions.counters)
    }

    /// Messages of rooms leave this long after each other, those of the meantime together; 0: each as soon as it is there.
    pub fn set_write_interval(&mut self, interval: Micros) {
        self.sessions.fanout.set_interval(interval);
    }

    /// Connections that are there, half-open ones included.
    pub fn connections_len(&self) -> usize {
        self.sessions.conns.len()
    }

    /// Rooms that connections publish to.
    pub fn publications_len(&self) -> usize {
        self.sessions.publishing.len()
    }

    /// Whether something can leave by a stream now.
    pub fn waits_for_streams(&self, now: Micros) -> bool {
        let sessions = &self.sessions;
        let asked = sessions.conns.ready_len() > 0 || !sessions.answers.is_empty();
        asked || !sessions.conns.orders.is_empty() || !self.rounds.is_empty() && sessions.fanout.is_due(now)
    }

    /// Whether something came by a stream, or an answer, since links had a turn.
    pub fn take_stirred(&mut self) -> bool {
        std::mem::take(&mut self.sessions.stirred)
    }

    /// Clients that say nothing: answer each with [`Edge::silence`].
    pub fn take_silent(&mut self) -> Vec<StreamId> {
        self.sessions.conns.orders.take_silent()
    }

    /// Whether the kernel of a client that says nothing has yet to acknowledge bytes.
    pub fn silence(&mut self, now: Micros, stream: StreamId, unacknowledged: bool) {
        self.run_stream(now, stream, |connection, turn, _| {
            if let Some(session) = connection.session() {
                session.silence(turn, unacknowledged);
            }
        });
    }

    /// Ends the connections of these users, and those opened by these tokens.
    pub fn revoke_members(&mut self, now: Micros, users: &HashSet<u64>, tokens: &HashSet<u64>) {
        let revoked = |conn: &Conn| {
            conn.is_live() && (users.contains(&conn.user) || conn.token != 0 && tokens.contains(&conn.token))
        };
        let revoked = self.sessions.conns.iter().filter(|(_, conn)| revoked(conn));
        for slot in revoked.map(|(slot, _)| slot).collect::<Vec<_>>() {
            self.sessions
                .disconnect(now, slot, Disconnect::PERMISSION_DENIED, End::Closed);
        }
        self.cleanup(now);
    }

    fn is_there(&self, stream: StreamId) -> bool {
        let conn = self.sessions.conn(stream.slot() as u32);
        conn.is_some_and(|conn| conn.stream == stream)
    }

    fn run_stream(
        &mut self,
        now: Micros,
        stream: StreamId,
        f: impl FnOnce(&mut Connection, &mut muster_edge::Turn<'_>, &mut Dice),
    ) {
        self.now = now;
        if self.is_there(stream) {
            self.sessions.stirred = true;
            self.run(now, stream.slot() as u32, f);
        }
    }
}

impl Streams for Edge {
    fn opened(&mut self, now: Micros, stream: StreamId, _from: Addr) {
        let slot = stream.slot() as u32;
        let conn = Conn {
            stream,
            connection: Connection::new(now),
            client: Client::default(),
            user: 0,
            token: 0,
            incarnation: self.node.secret_u64() << 16,
            openings: 0,
            requests: 0,
            subs: Vec::new(),
            pending: Vec::new(),
            ticketed: Vec::new(),
            aside: None,
            entering: None,
            server_subs: Default::default(),
            open: false,
            over: false,
            queued: false,
            paused: false,
            proven: false,
            blocked: None,
        };
        self.sessions.conns.add(slot, conn);
        self.sessions.settle(now, slot);
    }

    fn received(&mut self, now: Micros, stream: StreamId, bytes: &mut [u8]) {
        self.run_stream(now, stream, |connection, turn, _| connection.receive(turn, bytes));
    }

    fn finished(&mut self, now: Micros, stream: StreamId) {
        self.run_stream(now, stream, |connection, turn, _| connection.ended(turn));
    }

    fn blocked(&mut self, now: Micros, stream: StreamId) {
        if self.is_there(stream) {
            if let Some(conn) = self.sessions.conn_mut(stream.slot() as u32) {
                conn.blocked = Some(now);
            }
            self.sessions.stalls.note(now);
        }
    }

    fn drained(&mut self, now: Micros, stream: StreamId) {
        if !self.is_there(stream) {
            return;
        }
        let slot = stream.slot() as u32;
        if let Some(conn) = self.sessions.conn_mut(slot) {
            conn.blocked = None;
        }
        self.sessions.mark(slot);
        self.run_stream(now, stream, |connection, turn, _| connection.resume(turn));
    }

    fn ended(&mut self, now: Micros, stream: StreamId, how: Ended) {
        if !self.is_there(stream) {
            return;
        }
        self.run_stream(now, stream, |connection, turn, _| connection.ended(turn));
        if !self.is_there(stream) {
            return;
        }
        let slot = stream.slot() as u32;
        let end = match how {
            Ended::Closed => End::Closed,
            Ended::Broken | Ended::HalfOpen | Ended::Tls => End::Lost,
        };
        self.sessions.finish(slot, end);
        self.sessions.conns.remove(slot);
        self.cleanup(now);
    }

    fn expire(&mut self, now: Micros) {
        self.now = now;
        while let Some(slot) = self.sessions.conns.due(now) {
            let conn = self.sessions.conns.get_mut(slot);
            if conn.is_some_and(|conn| conn.server_subs.end_pauses(now)) {
                self.sessions.mark(slot);
            }
            self.run(now, slot, |connection, turn, dice| connection.expire(turn, dice));
        }
        self.drain_slice(now);
        self.end_stalled(now);
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        self.now = now;
        self.settle_answers(now);
        self.fan_out_streams(now, outbox)
    }

    fn deadline(&self) -> Option<Micros> {
        let sessions = &self.sessions;
        let write = (!self.rounds.is_empty()).then_some(sessions.fanout.leaves_at());
        let (stalls, drain) = (sessions.stalls.deadline(), sessions.drain.deadline());
        [sessions.conns.deadline(), stalls, drain, write]
            .into_iter()
            .flatten()
            .min()
    }
}

impl Machine for Edge {
    type Event = EdgeEvent;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        self.now = now;
        for index in 0..inbox.arrivals.len() {
            let (arrival, datagram) = inbox.datagram(index);
            self.take_link(now, arrival, datagram);
        }
        self.lodge.act(now, &mut self.links, &mut self.sessions);
        self.settle_answers(now);
    }

    fn expire(&mut self, now: Micros) {
        self.now = now;
        self.expire_links(now);
        self.sessions.publishing.expire(now);
        self.ask_watched(now);
        self.look_after_commands(now);
        self.expire_members(now);
        self.settle_answers(now);
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Datagrams) -> bool {
        let mut more = self.links.transmit(now, &mut self.node, outbox);
        self.sessions
            .publishing
            .pump(now, &self.owners, &self.placement, &mut self.links);
        more |= self.transmit_links(now, outbox);
        more
    }

    fn deadline(&self) -> Option<Micros> {
        let (publishing, questions) = (&self.sessions.publishing, &self.sessions.questions);
        let watches = self.sessions.watches.deadline();
        [
            self.rooms_deadline(),
            publishing.deadline(),
            questions.deadline(),
            watches,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn drain_events(&mut self, events: &mut Vec<EdgeEvent>) {
        events.extend(self.sessions.control.drain_events());
        events.extend(self.events.drain(..).map(|event| match event {
            GatewayEvent::Link(change) => EdgeEvent::Link(change),
            GatewayEvent::Authenticate(question) => EdgeEvent::Authenticate(question),
        }));
    }

    fn stalled(&mut self, _now: Micros) {}
}
