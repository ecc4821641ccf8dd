//! A hub of rooms in memory behind real sockets: the smallest owner of sessions, for tests, examples and figures.
//!
//! It stands in a gateway's place: it answers the sessions' questions and fans out by cursors into a ring. It has no rights and
//! no durability: any token is a user's name.
#![allow(dead_code)]

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use muster_edge::protocol::{ClientInfo, Encoding, HistoryResult, Position, Publication, Push, SubscribeResult};
use muster_edge::{
    Admission, Ask, Connection, Counters, Disconnect, Failure, Frame, Join, Settings, Subscription, Ticket, Turn,
    Unsubscribe, Write,
};
use muster_tcp::{Ended, Outbox, StreamId, Streams};
use muster_transport::{Addr, Dice, Micros, Wheel};

/// Messages that a room keeps.
pub const RING: usize = 4_096;
/// Bytes of one shared frame.
const FRAME_BYTES: usize = 64 * 1_024;

pub struct Stored {
    pub data: Bytes,
    /// User and client.
    pub info: Option<(Box<str>, Box<str>)>,
}

impl Stored {
    fn publication(&self, offset: u64) -> Publication<'_> {
        Publication {
            data: &self.data,
            info: self.info.as_ref().map(|(user, client)| info(user, client)),
            offset,
            ..Publication::default()
        }
    }
}

fn info<'a>(user: &'a str, client: &'a str) -> ClientInfo<'a> {
    ClientInfo {
        user: user.into(),
        client: client.into(),
        ..ClientInfo::default()
    }
}

pub struct Room {
    pub name: String,
    pub epoch: String,
    /// Messages kept, of the newest.
    pub keeps: usize,
    /// The offset of the next message; the first has 1.
    next: u64,
    ring: VecDeque<Stored>,
    members: Vec<u32>,
    /// Members that are to be looked at, from a place on.
    left: usize,
    at: usize,
    active: bool,
    /// Frames by encoding and first offset.
    frames: Vec<(Encoding, u64, Frame, u64)>,
}

impl Room {
    fn oldest(&self) -> u64 {
        self.next - self.ring.len() as u64
    }

    fn stored(&self, offset: u64) -> &Stored {
        &self.ring[(offset - self.oldest()) as usize]
    }

    /// The frame that begins with `offset`, and the offset behind it.
    fn frame(&mut self, encoding: Encoding, offset: u64) -> (Frame, u64) {
        let known = |one: &&(Encoding, u64, Frame, u64)| one.0 == encoding && one.1 == offset && one.3 == self.next;
        if let Some((_, _, frame, next)) = self.frames.iter().find(known) {
            return (frame.clone(), *next);
        }
        let publications = (offset..self.next).map(|offset| self.stored(offset).publication(offset));
        let (frame, count) =
            Frame::publications(encoding, &self.name, 0, publications, FRAME_BYTES).expect("there is one at least");
        let next = offset + count as u64;
        if self.frames.len() >= 8 {
            self.frames.remove(0);
        }
        self.frames.push((encoding, offset, frame.clone(), next));
        (frame, next)
    }
}

struct Joined {
    subscription: Subscription,
    room: usize,
    cursor: u64,
    join_leave: bool,
}

pub struct Conn {
    stream: StreamId,
    connection: Connection,
    client: String,
    user: String,
    joined: Vec<Joined>,
    blocked: bool,
    queued: bool,
    proven: bool,
    paused: bool,
}

/// Which members hear of clients that come and go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Joins {
    Nobody,
    /// Members who asked for it.
    Asked,
    All,
}

#[derive(Default)]
pub struct Figures {
    /// Messages handed to sockets.
    pub deliveries: u64,
    /// Messages that a slow member missed.
    pub lost: u64,
    pub published: u64,
}

pub struct Hub {
    pub settings: Settings,
    pub counters: Counters,
    pub figures: Figures,
    /// Which members hear of clients that come and go.
    pub joins: Joins,
    /// Whether presence and its numbers are answered.
    pub presence: bool,
    /// Whether each session is in the room `#USER` from the start.
    pub personal: bool,
    /// A namespace of which there are no rooms.
    pub unknown: Option<String>,
    pub rooms: Vec<Room>,
    /// Messages of clients, as `(encoding, message)`, if they are recorded.
    names: HashMap<String, usize>,
    conns: Vec<Option<Conn>>,
    clients: usize,
    ready: VecDeque<u32>,
    active: VecDeque<usize>,
    wheel: Wheel,
    dice: Dice,
    asks: Vec<Ask>,
    write: Write,
    frames: Vec<Frame>,
    moves: Vec<(usize, u64)>,
    proven: Vec<StreamId>,
    reads: Vec<(StreamId, bool)>,
}

impl Hub {
    pub fn new(settings: Settings, seed: u64) -> Hub {
        Hub {
            settings,
            counters: Counters::default(),
            figures: Figures::default(),
            joins: Joins::Asked,
            presence: true,
            personal: false,
            unknown: None,
            rooms: Vec::new(),
            names: HashMap::new(),
            conns: Vec::new(),
            clients: 0,
            ready: VecDeque::new(),
            active: VecDeque::new(),
            wheel: Wheel::new(),
            dice: Dice::new(seed),
            asks: Vec::new(),
            write: Write::default(),
            frames: Vec::new(),
            moves: Vec::new(),
            proven: Vec::new(),
            reads: Vec::new(),
        }
    }

    /// The room of this name, made if need be.
    pub fn room(&mut self, name: &str) -> usize {
        if let Some(at) = self.names.get(name) {
            return *at;
        }
        let keeps = match name.split_once(':').map_or("", |(namespace, _)| namespace) {
            "smallhistory" => 2,
            _ => RING,
        };
        self.rooms.push(Room {
            name: name.to_owned(),
            epoch: format!("e{:x}", self.dice.roll() >> 40),
            keeps,
            next: 1,
            ring: VecDeque::new(),
            members: Vec::new(),
            left: 0,
            at: 0,
            active: false,
            frames: Vec::new(),
        });
        self.names.insert(name.to_owned(), self.rooms.len() - 1);
        self.rooms.len() - 1
    }

    pub fn members(&self, room: usize) -> usize {
        self.rooms[room].members.len()
    }

    /// Whether every member has been given everything.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty() && self.ready.is_empty()
    }

    /// Members whose sockets are full.
    pub fn blocked(&self) -> usize {
        self.conns.iter().flatten().filter(|conn| conn.blocked).count()
    }

    pub fn publish(&mut self, room: usize, data: Bytes, info: Option<(Box<str>, Box<str>)>) -> u64 {
        self.figures.published += 1;
        let place = &mut self.rooms[room];
        place.ring.push_back(Stored { data, info });
        if place.ring.len() > place.keeps {
            place.ring.pop_front();
        }
        place.next += 1;
        place.left = place.members.len();
        if !place.active && place.left > 0 {
            place.active = true;
            self.active.push_back(room);
        }
        place.next - 1
    }

    /// Ends a room's subscriptions as after a loss.
    pub fn announce_gap(&mut self, now: Micros, room: usize, reason: &str) {
        for slot in self.rooms[room].members.clone() {
            let Some(mut conn) = self.conns[slot as usize].take() else {
                continue;
            };
            let gone = conn.joined.iter().position(|joined| joined.room == room);
            if let Some(joined) = gone.map(|at| conn.joined.swap_remove(at)) {
                self.rooms[room].members.retain(|other| *other != slot);
                let mut turn = Turn {
                    now,
                    settings: &self.settings,
                    asks: &mut self.asks,
                    counters: &mut self.counters,
                };
                if let Some(session) = conn.connection.session() {
                    session.unsubscribed(&mut turn, joined.subscription, Unsubscribe::INSUFFICIENT, reason);
                }
            }
            self.put_back(now, slot, conn);
        }
    }

    /// Runs `f` on a connection, then answers what it asked.
    fn with(&mut self, now: Micros, slot: u32, f: impl FnOnce(&mut Connection, &mut Turn<'_>, &mut Dice)) {
        let Some(mut conn) = self.conns.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        let mut asks = std::mem::take(&mut self.asks);
        let mut turn = Turn {
            now,
            settings: &self.settings,
            asks: &mut asks,
            counters: &mut self.counters,
        };
        f(&mut conn.connection, &mut turn, &mut self.dice);
        let mut at = 0;
        while at < asks.len() {
            let ask = std::mem::replace(&mut asks[at], Ask::Silent);
            self.answer(now, slot, &mut conn, ask, &mut asks);
            at += 1;
        }
        asks.clear();
        self.asks = asks;
        self.put_back(now, slot, conn);
    }

    fn put_back(&mut self, now: Micros, slot: u32, mut conn: Conn) {
        let paused = conn.connection.is_full();
        if paused != conn.paused {
            conn.paused = paused;
            self.reads.push((conn.stream, !paused));
        }
        if (conn.connection.has_bytes() || conn.connection.is_done()) && !conn.queued {
            conn.queued = true;
            self.ready.push_back(slot);
        }
        match conn.connection.deadline() {
            Some(at) => self.wheel.schedule(slot, at.max(now)),
            None => self.wheel.cancel(slot),
        }
        self.conns[slot as usize] = Some(conn);
    }

    fn answer(&mut self, now: Micros, slot: u32, conn: &mut Conn, ask: Ask, asks: &mut Vec<Ask>) {
        if let Ask::Ended { .. } = ask {
            for joined in std::mem::take(&mut conn.joined) {
                self.leave(conn, slot, &joined);
            }
            return;
        }
        if let Ask::Leave { subscription } = ask {
            if let Some(at) = conn.joined.iter().position(|one| one.subscription == subscription) {
                let joined = conn.joined.swap_remove(at);
                self.leave(conn, slot, &joined);
            }
            return;
        }
        let Conn { connection, .. } = conn;
        let Some(session) = connection.session() else { return };
        match ask {
            Ask::Authenticate { ticket, token, .. } => {
                if token == "expired" {
                    return session.fail(ticket, Failure::TokenExpired);
                }
                if ["wrong", "invalid_token"].contains(&token.as_str()) {
                    return connection.disconnect(Disconnect::INVALID_TOKEN);
                }
                self.clients += 1;
                conn.client = format!("client-{}", self.clients);
                conn.user = subject(&token);
                self.admit(now, slot, conn, ticket, asks);
            }
            Ask::Renew { ticket, token } => {
                let mut turn = Turn {
                    now,
                    settings: &self.settings,
                    asks,
                    counters: &mut self.counters,
                };
                session.renewed(&mut turn, ticket, &subject(&token), None);
            }
            Ask::Join {
                ticket,
                subscription,
                join,
            } => self.join(now, slot, conn, ticket, subscription, &join),
            Ask::RenewJoin { ticket, .. } => session.sub_renewed(now, ticket, None),
            Ask::Publish { ticket, channel, data } => {
                session.published(ticket);
                let from = Some((conn.user.as_str().into(), conn.client.as_str().into()));
                let room = self.room(&channel);
                self.publish(room, data, from);
            }
            Ask::Presence { ticket, .. } | Ask::PresenceStats { ticket, .. } if !self.presence => {
                session.fail(ticket, Failure::NotAvailable);
            }
            Ask::Presence { ticket, channel } => {
                let room = self.room(&channel);
                let own = (conn.client.clone(), conn.user.clone());
                let mut there = vec![];
                for member in &self.rooms[room].members {
                    match self.conns[*member as usize].as_ref() {
                        Some(other) => there.push((other.client.clone(), other.user.clone())),
                        None => there.push(own.clone()),
                    }
                }
                let there = there.iter().map(|(client, user)| (client.as_str(), info(user, client)));
                conn.connection.session().expect("it is open").presence(ticket, there);
            }
            Ask::PresenceStats { ticket, channel } => {
                let room = self.room(&channel);
                let own = conn.user.clone();
                let users = self.rooms[room]
                    .members
                    .iter()
                    .map(|member| match &self.conns[*member as usize] {
                        Some(other) => other.user.clone(),
                        None => own.clone(),
                    });
                let users: HashSet<String> = users.collect();
                let count = self.members(room) as u32;
                session.presence_stats(ticket, count, users.len() as u32);
            }
            Ask::History {
                ticket,
                channel,
                limit,
                since,
                reverse,
            } => {
                let room = self.room(&channel);
                self.history(session, ticket, room, limit, since, reverse);
            }
            Ask::Rpc { ticket, method, data } => match method.as_str() {
                "echo" => session.rpc(ticket, &data),
                "push" => {
                    session.rpc(ticket, b"{}");
                    session.message(&data);
                    session.receipt();
                }
                "gap" => {
                    session.rpc(ticket, b"{}");
                    if let Some(joined) = conn.joined.first() {
                        let subscription = joined.subscription;
                        let mut turn = Turn {
                            now,
                            settings: &self.settings,
                            asks,
                            counters: &mut self.counters,
                        };
                        session.unsubscribed(&mut turn, subscription, Unsubscribe::INSUFFICIENT, "slow");
                        turn.asks.push(Ask::Leave { subscription });
                    }
                }
                _ => session.fail(ticket, Failure::NotAvailable),
            },
            Ask::Send { .. } | Ask::Received { .. } => {}
            Ask::Silent => {
                let mut turn = Turn {
                    now,
                    settings: &self.settings,
                    asks,
                    counters: &mut self.counters,
                };
                session.silence(&mut turn, true);
            }
            Ask::Leave { .. } | Ask::Ended { .. } => unreachable!("answered above"),
        }
    }

    fn admit(&mut self, now: Micros, slot: u32, conn: &mut Conn, ticket: Ticket, asks: &mut Vec<Ask>) {
        let own = format!("#{}", conn.user);
        let room = self.room(&own);
        let result = SubscribeResult {
            epoch: &self.rooms[room].epoch,
            offset: self.rooms[room].next - 1,
            recoverable: true,
            ..SubscribeResult::default()
        };
        let subs = [(own.as_str(), result)];
        let admission = Admission {
            user: &conn.user,
            client: &conn.client,
            subs: if self.personal { &subs } else { &[] },
            ..Admission::default()
        };
        let mut turn = Turn {
            now,
            settings: &self.settings,
            asks,
            counters: &mut self.counters,
        };
        let Some(session) = conn.connection.session() else {
            return;
        };
        let subscriptions = session.admit(&mut turn, &mut self.dice, ticket, &admission);
        if !std::mem::replace(&mut conn.proven, true) {
            self.proven.push(conn.stream);
        }
        let cursor = self.rooms[room].next;
        for subscription in subscriptions {
            self.rooms[room].members.push(slot);
            conn.joined.push(Joined {
                subscription,
                room,
                cursor,
                join_leave: self.joins == Joins::All,
            });
            let (user, client) = (conn.user.clone(), conn.client.clone());
            self.tell(room, slot, conn, &Push::Join(&info(&user, &client)));
        }
    }

    fn history(
        &mut self,
        session: &mut muster_edge::Session,
        ticket: Ticket,
        room: usize,
        limit: Option<u32>,
        since: Option<Position>,
        reverse: bool,
    ) {
        let place = &self.rooms[room];
        if since
            .as_ref()
            .is_some_and(|since| !since.epoch.is_empty() && since.epoch != place.epoch)
        {
            return session.fail(ticket, Failure::UnrecoverablePosition);
        }
        let offsets = place.oldest()..place.next;
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        let chosen: Vec<u64> = match reverse {
            false => {
                let from = since.map_or(0, |since| since.offset + 1);
                offsets.filter(|offset| *offset >= from).take(limit).collect()
            }
            true => {
                let below = since.map_or(u64::MAX, |since| since.offset);
                offsets.rev().filter(|offset| *offset < below).take(limit).collect()
            }
        };
        let publications: Vec<_> = chosen
            .iter()
            .map(|offset| place.stored(*offset).publication(*offset))
            .collect();
        session.history(
            ticket,
            &HistoryResult {
                publications: &publications,
                epoch: &place.epoch,
                offset: place.next - 1,
            },
        );
    }

    fn join(
        &mut self,
        now: Micros,
        slot: u32,
        conn: &mut Conn,
        ticket: Ticket,
        subscription: Subscription,
        join: &Join,
    ) {
        let Some(session) = conn.connection.session() else {
            return;
        };
        let namespace = join.channel.split_once(':').map(|(namespace, _)| namespace);
        if namespace.is_some() && namespace == self.unknown.as_deref() {
            return session.fail(ticket, Failure::UnknownChannel);
        }
        let room = self.room(&join.channel);
        let place = &self.rooms[room];
        let found = join.recover.as_ref().map(|from| {
            let same = from.epoch.is_empty() || from.epoch == place.epoch;
            same && from.offset + 1 >= place.oldest() && from.offset < place.next
        });
        if found == Some(false) && join.reject_unrecovered {
            return session.fail(ticket, Failure::UnrecoverablePosition);
        }
        let recovered = found == Some(true);
        let from = join
            .recover
            .as_ref()
            .filter(|_| recovered)
            .map_or(place.next, |from| from.offset + 1);
        let publications: Vec<_> = (from..place.next)
            .map(|offset| place.stored(offset).publication(offset))
            .collect();
        let result = SubscribeResult {
            recoverable: true,
            positioned: true,
            epoch: &place.epoch,
            offset: from - 1,
            publications: &publications,
            recovered,
            was_recovering: found.is_some(),
            ..SubscribeResult::default()
        };
        if session.joined(now, ticket, &result) {
            let cursor = place.next;
            self.rooms[room].members.push(slot);
            conn.joined.push(Joined {
                subscription,
                room,
                cursor,
                join_leave: self.joins == Joins::All || join.join_leave && self.joins == Joins::Asked,
            });
            let (user, client) = (conn.user.clone(), conn.client.clone());
            self.tell(room, slot, conn, &Push::Join(&info(&user, &client)));
        }
    }

    fn leave(&mut self, conn: &mut Conn, slot: u32, joined: &Joined) {
        self.rooms[joined.room].members.retain(|other| *other != slot);
        let (user, client) = (conn.user.clone(), conn.client.clone());
        self.tell(joined.room, slot, conn, &Push::Leave(&info(&user, &client)));
    }

    /// Tells members who asked for it of one that comes or goes.
    fn tell(&mut self, room: usize, own_slot: u32, own: &mut Conn, push: &Push<'_>) {
        if self.joins == Joins::Nobody {
            return;
        }
        let name = &self.rooms[room].name;
        let mut members = self.rooms[room].members.clone();
        members.push(own_slot);
        members.dedup();
        for member in members {
            let conn = match member == own_slot {
                true => Some(&mut *own),
                false => self.conns[member as usize].as_mut(),
            };
            let Some(conn) = conn else { continue };
            if !conn
                .joined
                .iter()
                .any(|joined| joined.room == room && joined.join_leave)
            {
                continue;
            }
            let Some(session) = conn.connection.session() else {
                continue;
            };
            session.push(name, push);
            if !conn.queued && member != own_slot {
                conn.queued = true;
                self.ready.push_back(member);
            }
        }
    }

    /// Gives one connection what is due to it.
    fn serve(&mut self, slot: u32, outbox: &mut Outbox) {
        let Some(conn) = self.conns[slot as usize].as_mut() else {
            return;
        };
        conn.queued = false;
        if conn.blocked {
            return; // it comes back when its socket has taken all
        }
        self.frames.clear();
        let encoding = conn.connection.encoding();
        let mut moves = std::mem::take(&mut self.moves);
        moves.clear();
        for (at, joined) in conn.joined.iter_mut().enumerate() {
            let room = &mut self.rooms[joined.room];
            if joined.cursor < room.oldest() {
                self.figures.lost += room.oldest() - joined.cursor;
                joined.cursor = room.oldest();
            }
            if let Some(encoding) = encoding.filter(|_| joined.cursor < room.next) {
                let (frame, next) = room.frame(encoding, joined.cursor);
                self.frames.push(frame);
                moves.push((at, next));
            }
        }
        self.write.clear();
        let taken = conn.connection.write(&self.frames, &mut self.write);
        let mut more = taken < moves.len();
        for (at, next) in &moves[..taken] {
            let joined = &mut conn.joined[*at];
            self.figures.deliveries += next - joined.cursor;
            joined.cursor = *next;
            more |= *next < self.rooms[joined.room].next;
        }
        self.moves = moves;
        if !self.write.is_empty() {
            outbox.send(conn.stream, &self.write.head, &self.write.shared, &self.write.tail);
        }
        if conn.connection.is_done() {
            outbox.close(conn.stream);
            self.wheel.cancel(slot);
            self.conns[slot as usize] = None;
        } else if more {
            conn.queued = true;
            self.ready.push_back(slot);
        }
    }
}

/// The user whom a token names: the subject of a JWT, unverified, else the token itself.
fn subject(token: &str) -> String {
    use base64::Engine;
    let parts: Vec<&str> = token.split('.').collect();
    let claims = parts.get(1).and_then(|claims| {
        let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        serde_json::from_slice::<serde_json::Value>(&engine.decode(claims).ok()?).ok()
    });
    match claims {
        Some(claims) => claims["sub"].as_str().unwrap_or_default().to_owned(),
        None => token.to_owned(),
    }
}

impl Streams for Hub {
    fn opened(&mut self, now: Micros, stream: StreamId, _from: Addr) {
        let slot = stream.slot();
        if self.conns.len() <= slot {
            self.conns.resize_with(slot + 1, || None);
        }
        let conn = Conn {
            stream,
            connection: Connection::new(now),
            client: String::new(),
            user: String::new(),
            joined: Vec::new(),
            blocked: false,
            queued: false,
            proven: false,
            paused: false,
        };
        self.put_back(now, slot as u32, conn);
    }

    fn received(&mut self, now: Micros, stream: StreamId, bytes: &mut [u8]) {
        self.with(now, stream.slot() as u32, |connection, turn, _| {
            connection.receive(turn, bytes)
        });
    }

    fn finished(&mut self, now: Micros, stream: StreamId) {
        self.with(now, stream.slot() as u32, |connection, turn, _| connection.ended(turn));
    }

    fn blocked(&mut self, _now: Micros, stream: StreamId) {
        if let Some(conn) = self.conns[stream.slot()].as_mut() {
            conn.blocked = true;
        }
    }

    fn drained(&mut self, now: Micros, stream: StreamId) {
        if let Some(conn) = self.conns[stream.slot()].as_mut() {
            conn.blocked = false;
            if !conn.queued {
                conn.queued = true;
                self.ready.push_back(stream.slot() as u32);
            }
        }
        self.with(now, stream.slot() as u32, |connection, turn, _| connection.resume(turn));
    }

    fn ended(&mut self, now: Micros, stream: StreamId, _how: Ended) {
        self.with(now, stream.slot() as u32, |connection, turn, _| connection.ended(turn));
        self.conns[stream.slot()] = None;
        self.wheel.cancel(stream.slot() as u32);
    }

    fn expire(&mut self, now: Micros) {
        while let Some(slot) = self.wheel.pop(now) {
            self.with(now, slot, |connection, turn, dice| connection.expire(turn, dice));
        }
    }

    fn transmit(&mut self, _now: Micros, outbox: &mut Outbox) -> bool {
        for stream in self.proven.drain(..) {
            outbox.proven(stream);
        }
        for (stream, read) in self.reads.drain(..) {
            outbox.read(stream, read);
        }
        while outbox.room() > 0 {
            let Some(slot) = self.ready.pop_front() else { break };
            self.serve(slot, outbox);
        }
        while outbox.room() > 0 {
            let Some(at) = self.active.front().copied() else { break };
            let room = &mut self.rooms[at];
            if room.left == 0 || room.members.is_empty() {
                room.active = false;
                self.active.pop_front();
                continue;
            }
            room.left -= 1;
            room.at = if room.at + 1 >= room.members.len() {
                0
            } else {
                room.at + 1
            };
            let slot = room.members[room.at];
            self.serve(slot, outbox);
        }
        !self.active.is_empty() || !self.ready.is_empty()
    }

    fn deadline(&self) -> Option<Micros> {
        self.wheel.next()
    }
}
