//! The turn of an edge: links over UDP, members by streams.

use std::collections::HashSet;

use muster_edge::websocket::Origins;
use muster_edge::{Connection, Counters, Disconnect, Settings, Write};
use muster_tcp::{Ended, Outbox, StreamId, Streams};
use muster_transport::{
    Addr, Denied, Dice, End, Entropy, Health, Inbox, KeyedState, LinkChange, Machine, Micros, NodeConfig,
    Outbox as Datagrams, Question, Rate, Wheel,
};

use super::frames::Built;
use super::join_leave::Watches;
use super::publishing::Publishing;
use super::{Conn, Drain, Edge, EdgeCounters, EdgeSessions, Letters};
use crate::dispatch::{Commands, Dispatch, Limits};
use crate::gateway::members::Members;
use crate::gateway::{Client, Gateway, GatewayEvent};
use crate::rights::Grant;
use crate::settings::EdgeSettings;

/// Full sockets are looked at this often.
const STALLS_EVERY: Micros = 1_000_000;
/// The slices of a drain follow each other after this.
const DRAIN_EVERY: Micros = 100_000;

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
        let sessions = EdgeSessions {
            settings: Settings {
                ping_every: settings.ping_ms * 1_000,
                pong_within: settings.pong_ms * 1_000,
                commands: Rate {
                    a_second: settings.command_rate,
                    burst: settings.command_burst,
                },
                version: settings.version.clone(),
                node: node.me.node.to_string(),
                ..Settings::default()
            },
            connections: Counters::default(),
            counters: EdgeCounters::default(),
            conns: Vec::new(),
            len: 0,
            dice: Dice::new(seed),
            ready: Default::default(),
            wheel: Wheel::new(),
            stalls_at: None,
            stall: settings.stall_ms * 1_000,
            write_interval: 0,
            write_at: 0,
            answers: Default::default(),
            gone: Vec::new(),
            questions: std::collections::HashMap::with_hasher(KeyedState::new(seed, !seed)),
            question: 0,
            calls: settings.methods.clone(),
            events: Default::default(),
            built: Built::new(seed),
            publishing: Publishing::new(node.payload),
            commands: Commands::new(KeyedState::new(seed, !seed)),
            limits: Limits::new(KeyedState::new(seed, !seed)),
            health: Health::default(),
            asking: Default::default(),
            watches: Watches::new(KeyedState::new(seed, !seed)),
            outcomes: Default::default(),
            links_changed: false,
            letters,
            drain_over: (settings.drain_s * 1e6) as Micros,
            drain: None,
            proven: Vec::new(),
            reads: Vec::new(),
            silent: Vec::new(),
            aborts: Vec::new(),
            stirred: false,
            write: Write::default(),
            frames: Vec::new(),
            steps: Vec::new(),
            asks: Vec::new(),
            namespaces: kept.iter().map(|kept| kept.namespace.clone()).collect(),
        };
        let mut edge = Gateway::with(node, name_key, settings.rooms.clone(), sessions, seed, entropy);
        let (k0, k1) = (edge.node.secret_u64(), edge.node.secret_u64());
        edge.sessions.dice = Dice::new(k0);
        edge.sessions.commands = Commands::new(KeyedState::new(k0, k1));
        edge.sessions.limits = Limits::new(KeyedState::new(k0, k1));
        edge.sessions.watches = Watches::new(KeyedState::new(k0, k1));
        edge.sessions.questions = std::collections::HashMap::with_hasher(KeyedState::new(k0, k1));
        edge.use_settings(&settings);
        edge
    }

    /// Uses the settings that may change while it runs; those of connections for new ones.
    pub fn use_settings(&mut self, settings: &EdgeSettings) {
        self.apply_rooms(&settings.rooms, settings.user_sessions_max);
        self.set_write_interval(settings.write_interval_ms * 1_000);
        self.set_join_leave_max(settings.join_leave_max);
        self.sessions.settings.origins = match settings.origins.as_slice() {
            [] => Origins::SameHost,
            listed if listed.iter().any(|origin| origin == "*") => Origins::Any,
            listed => Origins::Listed(listed.to_vec()),
        };
    }

    /// Counters of connections, and of their part in rooms.
    pub fn edge_counters(&self) -> (&Counters, &EdgeCounters) {
        (&self.sessions.connections, &self.sessions.counters)
    }

    /// Messages of rooms leave this long after each other, those of the meantime together; 0: each as soon as it is there.
    pub fn set_write_interval(&mut self, interval: Micros) {
        let sessions = &mut self.sessions;
        // Messages that wait by the former interval wait no longer than by this one.
        let began = sessions.write_at.saturating_sub(sessions.write_interval);
        sessions.write_at = sessions.write_at.min(began + interval);
        sessions.write_interval = interval;
    }

    /// Connections that are there, half-open ones included.
    pub fn connections_len(&self) -> usize {
        self.sessions.len()
    }

    /// Rooms that connections publish to.
    pub fn publications_len(&self) -> usize {
        self.sessions.publishing.len()
    }

    /// Whether something can leave by a stream now.
    pub fn waits_for_streams(&self, now: Micros) -> bool {
        let sessions = &self.sessions;
        let asked = !sessions.ready.is_empty() || !sessions.answers.is_empty() || !sessions.silent.is_empty();
        let orders = !sessions.proven.is_empty() || !sessions.reads.is_empty() || !sessions.aborts.is_empty();
        asked || orders || !self.active.is_empty() && sessions.write_at <= now
    }

    /// Whether something came by a stream, or an answer, since links had a turn.
    pub fn take_stirred(&mut self) -> bool {
        std::mem::take(&mut self.sessions.stirred)
    }

    /// Clients that say nothing: answer each with [`Edge::silence`].
    pub fn take_silent(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.sessions.silent)
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
            conn.open && !conn.over && (users.contains(&conn.user) || conn.token != 0 && tokens.contains(&conn.token))
        };
        for slot in 0..self.sessions.conns.len() as u32 {
            if self.sessions.conn(slot).is_some_and(revoked) {
                self.sessions
                    .disconnect(now, slot, Disconnect::PERMISSION_DENIED, End::Closed);
            }
        }
        self.cleanup(now);
    }

    /// Refuses new clients from now on, and sends present ones away in slices.
    pub fn drain_members(&mut self, now: Micros) {
        let until = now + self.sessions.drain_over;
        let retry_s = until.saturating_sub(now).div_ceil(1_000_000).max(1);
        self.sessions.settings.busy = Some(u32::try_from(retry_s).unwrap_or(u32::MAX));
        self.sessions.drain = Some(Drain { until, next: now });
    }

    /// Admits clients again.
    pub fn stay_members(&mut self) {
        self.sessions.settings.busy = None;
        self.sessions.drain = None;
    }

    /// Whether nothing is left to do after a drain.
    pub fn members_drained(&self) -> bool {
        self.sessions.len == 0 && self.sessions.publishing.is_idle() && self.lodge.is_idle()
    }

    /// Sends the next slice of clients away.
    fn drain_slice(&mut self, now: Micros) {
        let Some(drain) = self.sessions.drain.as_mut().filter(|drain| drain.next <= now) else {
            return;
        };
        let slices = (drain.until.saturating_sub(now) / DRAIN_EVERY + 1) as usize;
        drain.next = now + DRAIN_EVERY;
        let there = |slot: &u32| self.sessions.conn(*slot).is_some_and(|conn| !conn.over);
        let all: Vec<u32> = (0..self.sessions.conns.len() as u32).filter(there).collect();
        for slot in all.iter().take(all.len().div_ceil(slices)) {
            self.sessions.counters.ended_drained += 1;
            self.sessions.disconnect(now, *slot, Disconnect::SHUTDOWN, End::Closed);
        }
        if all.is_empty() {
            if let Some(drain) = &mut self.sessions.drain {
                drain.next = Micros::MAX;
            }
        }
        self.cleanup(now);
    }

    /// Ends clients whose sockets have taken nothing for too long.
    fn end_stalled(&mut self, now: Micros) {
        if self.sessions.stalls_at.is_none_or(|at| now < at) {
            return;
        }
        let stall = self.sessions.stall;
        let (mut stalled, mut blocked) = (Vec::new(), false);
        for (slot, conn) in (0..).zip(&self.sessions.conns) {
            let since = conn.as_ref().and_then(|conn| conn.blocked);
            blocked |= since.is_some();
            if since.is_some_and(|since| now >= since + stall) {
                stalled.push(slot);
            }
        }
        self.sessions.stalls_at = blocked.then_some(now + STALLS_EVERY);
        for slot in stalled {
            self.sessions.counters.ended_stalled += 1;
            // Its socket takes no close frame either.
            self.sessions.abort(slot);
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
        let slot = stream.slot();
        if self.sessions.conns.len() <= slot {
            self.sessions.conns.resize_with(slot + 1, || None);
        }
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
            made: Vec::new(),
            again_at: None,
            open: false,
            over: false,
            queued: false,
            paused: false,
            proven: false,
            blocked: None,
        };
        self.sessions.len += 1;
        self.sessions.conns[slot] = Some(Box::new(conn));
        self.sessions.settle(now, slot as u32);
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
            self.sessions.stalls_at.get_or_insert(now + STALLS_EVERY);
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
        self.sessions.wheel.cancel(slot);
        self.sessions.conns[stream.slot()] = None;
        self.sessions.len -= 1;
        self.cleanup(now);
    }

    fn expire(&mut self, now: Micros) {
        self.now = now;
        while let Some(slot) = self.sessions.wheel.pop(now) {
            self.sessions.end_pauses(now, slot);
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
        let drain = self.sessions.drain.as_ref().map(|drain| drain.next);
        let write = (!self.active.is_empty()).then_some(self.sessions.write_at);
        [self.sessions.wheel.next(), self.sessions.stalls_at, drain, write]
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
        let (publishing, commands) = (&self.sessions.publishing, &self.sessions.commands);
        let watches = self.sessions.watches.deadline();
        [
            self.rooms_deadline(),
            publishing.deadline(),
            commands.deadline(),
            watches,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn drain_events(&mut self, events: &mut Vec<EdgeEvent>) {
        events.extend(self.sessions.events.drain(..));
        events.extend(self.events.drain(..).map(|event| match event {
            GatewayEvent::Link(change) => EdgeEvent::Link(change),
            GatewayEvent::Authenticate(question) => EdgeEvent::Authenticate(question),
        }));
    }

    fn stalled(&mut self, _now: Micros) {}
}
