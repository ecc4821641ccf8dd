//! Many clients as one machine: serves those with work to do, and checks every delivery.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use muster_rooms::wire::Positions;
use muster_rooms::{Client, ClientEvent, Item, Policy, Side};
use muster_transport::{Arrival, Header, Inbox, Machine, Micros, Outbox};
use muster_udp::monotonic_now;

use crate::commands::Ledger;

/// Bytes of a payload before the pattern: sequence u64, intended time u64, room u32, mark of the load u32.
pub const HEAD: usize = 24;

/// Counts of received data over all members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub delivered: u64,
    pub bytes: u64,
    /// Not the expected message: one is missing, repeated or out of order.
    pub out_of_turn: u64,
    pub corrupted: u64,
    pub gaps: u64,
    pub lost: u64,
}

/// Latencies of a paced run in microseconds: of every delivery, and of each message's first, middle and last one.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    pub all: Vec<u32>,
    pub first: Vec<u32>,
    pub middle: Vec<u32>,
    pub last: Vec<u32>,
    /// Deliveries so far, by message.
    seen: Vec<u32>,
    starts: Vec<u64>,
    fanout: u32,
    /// Only `all` is kept.
    plain: bool,
}

impl Latencies {
    /// Space for `messages` of rooms whose next sequences are `starts`, each going to `fanout` members.
    fn new(messages: usize, fanout: usize, starts: &[u64]) -> Self {
        Latencies {
            all: Vec::with_capacity(messages * fanout),
            first: Vec::with_capacity(messages),
            middle: Vec::with_capacity(messages),
            last: Vec::with_capacity(messages),
            seen: vec![0; messages],
            starts: starts.to_vec(),
            fanout: fanout as u32,
            plain: false,
        }
    }

    /// For a run without an end in sight: its reader takes `all` again and again.
    fn endless() -> Self {
        Latencies {
            plain: true,
            ..Latencies::default()
        }
    }

    fn note(&mut self, room: usize, sequence: u64, latency: u32) {
        if self.plain {
            self.all.push(latency);
            return;
        }
        let index = (sequence.wrapping_sub(self.starts[room]) as usize)
            .wrapping_mul(self.starts.len())
            .wrapping_add(room);
        let Some(seen) = self.seen.get_mut(index) else { return };
        *seen += 1;
        let seen = *seen;
        self.all.push(latency);
        if seen == 1 {
            self.first.push(latency);
        }
        if seen == self.fanout.div_ceil(2) {
            self.middle.push(latency);
        }
        if seen == self.fanout {
            self.last.push(latency);
        }
    }
}

/// A payload with its pattern; its head is filled in before each use.
pub fn body(size: usize) -> Vec<u8> {
    (0..size.max(HEAD)).map(|at| (at * 7 + 13) as u8).collect()
}

pub fn stamp(body: &mut [u8], sequence: u64, intended: Micros, room: usize, mark: u32) {
    body[..8].copy_from_slice(&sequence.to_le_bytes());
    body[8..16].copy_from_slice(&intended.to_le_bytes());
    body[16..20].copy_from_slice(&(room as u32).to_le_bytes());
    body[20..24].copy_from_slice(&mark.to_le_bytes());
}

/// A room that a member should be in.
struct Place {
    room: usize,
    number: u32,
    joined: bool,
    next: u64,
    /// Since the watch began: time until the first message published later, longest time without one, and when the
    /// last one came.
    first: Option<Micros>,
    silence: Micros,
    heard: Micros,
}

struct Player {
    client: Client,
    places: Vec<Place>,
    /// Publishes or sends commands, so it has a session at a proxy; and whether that is ready.
    sends: bool,
    ready: bool,
    /// Whether it has joined everywhere and is ready to send; and whether it ever was.
    up: bool,
    came: bool,
    dirty: bool,
    scheduled: Micros,
    /// Whether it has lost its session and waits for its turn to connect; or is connecting.
    held: bool,
    knocking: bool,
    /// Its connections that are in `connections`.
    known: Vec<u64>,
}

/// Many clients: first the members, over as many sockets or fewer, then the publishers, each with its own.
pub struct Swarm {
    players: Vec<Player>,
    /// Number of the members' sockets.
    sockets: usize,
    /// The member of each connection, if members share sockets.
    connections: HashMap<u64, u32>,
    members: usize,
    dirty: VecDeque<u32>,
    deadlines: BinaryHeap<Reverse<(Micros, u32)>>,
    up: usize,
    /// Number of members in each room.
    rooms: Vec<u64>,
    /// Outstanding deliveries of this run.
    owed: u64,
    pattern: Vec<u8>,
    /// The mark of the messages that count; others are passed over. None: all count.
    mark: Option<u32>,
    scratch: Vec<u8>,
    tally: Tally,
    latencies: Option<Latencies>,
    last_at: Micros,
    /// Messages of this time and later end the silence of a membership.
    watched: Micros,
    events: Vec<ClientEvent>,
    lost: u64,
    /// Members without a session: those that are connecting, their limit, and those that wait for their turn.
    knocking: usize,
    knocking_max: usize,
    held: VecDeque<u32>,
    behind_at: Option<Micros>,
    pub commands: Ledger,
}

impl Swarm {
    /// With `commanding` the members have sessions at proxies as well. Of members without any session at most
    /// `knocking_max` connect at the same time.
    pub fn new(
        clients: Vec<Client>,
        (members, sockets): (usize, usize),
        rooms: usize,
        commanding: bool,
        knocking_max: usize,
    ) -> Self {
        let player = |(index, client)| Player {
            client,
            places: Vec::new(),
            sends: index >= members || commanding,
            ready: false,
            up: false,
            came: false,
            dirty: false,
            scheduled: Micros::MAX,
            held: false,
            knocking: false,
            known: Vec::new(),
        };
        Swarm {
            players: clients.into_iter().enumerate().map(player).collect(),
            sockets,
            connections: HashMap::new(),
            members,
            dirty: VecDeque::new(),
            deadlines: BinaryHeap::new(),
            up: 0,
            rooms: vec![0; rooms],
            owed: 0,
            pattern: Vec::new(),
            mark: None,
            scratch: Vec::new(),
            tally: Tally::default(),
            latencies: None,
            last_at: 0,
            watched: Micros::MAX,
            events: Vec::new(),
            lost: 0,
            knocking: 0,
            knocking_max,
            held: VecDeque::new(),
            behind_at: None,
            commands: Ledger::default(),
        }
    }

    pub fn clients(&self) -> usize {
        self.players.len()
    }

    pub fn members(&self) -> usize {
        self.members
    }

    /// Number of members that are in all their rooms.
    pub fn joined(&self) -> usize {
        self.players[..self.members].iter().filter(|player| player.up).count()
    }

    /// Number of members that were in all their rooms at some time.
    pub fn came(&self) -> usize {
        self.players[..self.members].iter().filter(|player| player.came).count()
    }

    /// As [`Swarm::came`], plus publishers that were ready.
    pub fn up(&self) -> usize {
        self.up
    }

    pub fn sessions_lost(&self) -> u64 {
        self.lost
    }

    pub fn client(&mut self, index: usize) -> &mut Client {
        &mut self.players[index].client
    }

    pub fn seated(&self, index: usize) -> &Client {
        &self.players[index].client
    }

    pub fn join(&mut self, now: Micros, index: usize, name: &str, room: usize) {
        self.rooms[room] += 1;
        let player = &mut self.players[index];
        let number = player.client.join(now, name, Positions::default(), Policy::Block);
        player.places.push(Place {
            room,
            number,
            joined: false,
            next: 0,
            first: None,
            silence: 0,
            heard: 0,
        });
        self.touch(index);
    }

    /// The client has something to do.
    pub fn touch(&mut self, index: usize) {
        if !self.players[index].dirty {
            self.players[index].dirty = true;
            self.dirty.push_back(index as u32);
        }
    }

    /// A run begins in which others publish messages of `size` bytes: it continues at the members' positions.
    pub fn listen(&mut self, size: usize) {
        self.pattern = body(size);
        self.mark = None;
        self.tally = Tally::default();
        self.latencies = None;
        self.owed = 0;
    }

    /// A run begins: messages of `size` bytes, the rooms' next sequences being `starts`. With `timed` the latencies
    /// of that many messages are recorded.
    pub fn begin(&mut self, size: usize, timed: usize, starts: &[u64]) {
        self.listen(size);
        let fanout = self.rooms.iter().sum::<u64>() as usize / starts.len().max(1);
        self.latencies = (timed > 0).then(|| Latencies::new(timed, fanout, starts));
        for place in self.players.iter_mut().flat_map(|player| &mut player.places) {
            place.next = starts[place.room];
        }
    }

    /// As `begin`, with the latency of each delivery, which `drain_latencies` takes. Messages of other publishers, which
    /// lack the mark, are passed over.
    pub fn begin_endless(&mut self, size: usize, starts: &[u64], mark: u32) {
        self.begin(size, 0, starts);
        self.mark = Some(mark);
        self.latencies = Some(Latencies::endless());
    }

    /// The latencies since the last call, in microseconds.
    pub fn drain_latencies(&mut self) -> Vec<u32> {
        self.latencies
            .as_mut()
            .map_or_else(Vec::new, |kept| std::mem::take(&mut kept.all))
    }

    /// A message to `room` was taken.
    pub fn published(&mut self, room: usize) {
        self.owed += self.rooms[room];
    }

    /// Deliveries of this run that are outstanding.
    pub fn ahead(&self) -> u64 {
        self.owed
            .saturating_sub(self.tally.delivered.saturating_add(self.tally.lost))
    }

    /// From `at` on, measures for every membership how long no message published later arrives.
    pub fn watch(&mut self, at: Micros) {
        self.watched = at;
        for place in self.players.iter_mut().flat_map(|player| &mut player.places) {
            (place.first, place.silence, place.heard) = (None, 0, at);
        }
    }

    /// For every membership: the time from the start of the watch to the first such message, and the longest time
    /// without one.
    pub fn heard(&self) -> impl Iterator<Item = (Option<Micros>, Micros)> + '_ {
        let places = self.players.iter().flat_map(|player| &player.places);
        places.map(|place| (place.first, place.silence))
    }

    pub fn has_all(&self, target: &[u64]) -> bool {
        let mut places = self.players.iter().flat_map(|player| &player.places);
        places.all(|place| place.next >= target[place.room])
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Messages that members got by repair, since they joined.
    pub fn repaired(&self) -> u64 {
        let members = self.players[..self.members].iter();
        let rooms = members.flat_map(|player| player.places.iter().map(|place| player.client.room(place.number)));
        rooms.flatten().map(|member| member.counters.repaired).sum()
    }

    pub fn take_latencies(&mut self) -> Latencies {
        self.latencies.take().unwrap_or_default()
    }

    /// Every client closes its session with its next datagram.
    pub fn close(&mut self) {
        self.knocking_max = usize::MAX;
        self.release();
        for index in 0..self.players.len() {
            self.players[index].client.close();
            self.touch(index);
        }
    }

    pub fn is_closed(&self) -> bool {
        self.players.iter().all(|player| player.client.is_closed())
    }

    pub fn last_at(&self) -> Micros {
        self.last_at
    }

    fn read(&mut self, now: Micros, index: usize) {
        let Swarm {
            players,
            scratch,
            pattern,
            mark,
            tally,
            latencies,
            last_at,
            watched,
            commands,
            ..
        } = self;
        let Player { client, places, .. } = &mut players[index];
        // The turn's own time is that of its start; later datagrams would look younger than they are.
        let arrived = monotonic_now();
        for place in places {
            loop {
                scratch.clear();
                match client.read(now, place.number, scratch) {
                    Some(Item::Message { .. }) => {
                        if mark.is_some_and(|mark| scratch.get(20..HEAD) != Some(&mark.to_le_bytes()[..])) {
                            continue;
                        }
                        tally.delivered += 1;
                        tally.bytes += scratch.len() as u64;
                        let (Some(sequence), Some(intended)) = (long(scratch, 0), long(scratch, 8)) else {
                            tally.corrupted += 1;
                            continue;
                        };
                        if sequence != place.next {
                            tally.out_of_turn += 1;
                        }
                        place.next = sequence + 1;
                        if scratch.len() != pattern.len()
                            || scratch[HEAD..] != pattern[HEAD..]
                            || scratch[16..20] != (place.room as u32).to_le_bytes()
                        {
                            tally.corrupted += 1;
                        }
                        if let Some(latencies) = latencies {
                            let latency = u32::try_from(arrived.saturating_sub(intended)).unwrap_or(u32::MAX);
                            latencies.note(place.room, sequence, latency);
                        }
                        if intended >= *watched {
                            let since = arrived.saturating_sub(place.heard);
                            place.first.get_or_insert(since);
                            place.silence = place.silence.max(since);
                            place.heard = arrived;
                        }
                        *last_at = arrived;
                    }
                    Some(Item::Gap(gap)) => {
                        tally.gaps += 1;
                        let missing = gap.last.saturating_sub(gap.first).saturating_add(1);
                        tally.lost = tally.lost.saturating_add(missing);
                    }
                    Some(Item::Command { number, .. }) => {
                        commands.read(index as u32, place.room, number, long(scratch, 0));
                    }
                    None => break,
                }
            }
        }
    }

    fn drain(&mut self, index: usize) {
        let mut events = std::mem::take(&mut self.events);
        self.players[index].client.drain_events(&mut events);
        let now = if events.is_empty() { 0 } else { monotonic_now() };
        for event in events.drain(..) {
            match event {
                ClientEvent::Joined { room, .. } => {
                    let places = &mut self.players[index].places;
                    if let Some(place) = places.iter_mut().find(|place| place.number == room) {
                        place.joined = true;
                        self.commands.joined(now, place.room, index as u32);
                    }
                    self.look(index);
                }
                ClientEvent::Ready { side: Side::Proxy, .. } => {
                    self.players[index].ready = true;
                    self.look(index);
                }
                ClientEvent::Down { side, .. } => {
                    self.lost += 1;
                    self.hold(index);
                    let player = &mut self.players[index];
                    match side {
                        Side::Proxy => player.ready = false,
                        Side::Gateway => {
                            for place in &mut player.places {
                                place.joined = false;
                                self.commands.lost(now, place.room, index as u32);
                            }
                        }
                    }
                    self.look(index);
                }
                ClientEvent::Commanded { number, outcome, .. } => {
                    self.commands.answered(now, number, outcome);
                }
                _ => {}
            }
        }
        self.events = events;
    }

    /// Whether a client is up now.
    fn look(&mut self, index: usize) {
        let player = &self.players[index];
        let up = player.places.iter().all(|place| place.joined) && (player.ready || !player.sends);
        self.up += usize::from(up);
        self.up -= usize::from(std::mem::replace(&mut self.players[index].up, up));
        self.players[index].came |= up;
        if up && std::mem::take(&mut self.players[index].knocking) {
            self.knocking -= 1;
            self.release();
        }
    }

    /// A member that has lost its only session, or could not open another, waits for its turn.
    fn hold(&mut self, index: usize) {
        let player = &mut self.players[index];
        if player.sends || player.held {
            return;
        }
        self.knocking -= usize::from(std::mem::take(&mut player.knocking));
        player.held = true;
        self.held.push_back(index as u32);
        self.release();
    }

    fn release(&mut self) {
        while self.knocking < self.knocking_max {
            let Some(index) = self.held.pop_front() else { break };
            let player = &mut self.players[index as usize];
            (player.held, player.knocking) = (false, true);
            self.knocking += 1;
            self.schedule(index as usize);
        }
    }

    /// The member that a datagram is for.
    fn whose(&self, socket: usize, datagram: &[u8]) -> Option<usize> {
        if socket >= self.sockets {
            return Some(self.members + socket - self.sockets);
        }
        if self.sockets == self.members {
            return Some(socket);
        }
        let connection = Header::read(datagram).ok()?.connection;
        self.connections.get(&connection).map(|index| *index as usize)
    }

    /// If members share sockets, notes this member's connections.
    fn learn(&mut self, index: usize) {
        let player = &mut self.players[index];
        if self.sockets == self.members || player.client.connections().eq(player.known.iter().copied()) {
            return;
        }
        for old in player.known.drain(..) {
            self.connections.remove(&old);
        }
        player.known.extend(player.client.connections());
        for connection in &player.known {
            self.connections.insert(*connection, index as u32);
        }
    }

    fn schedule(&mut self, index: usize) {
        let player = &mut self.players[index];
        if player.held {
            return;
        }
        if let Some(at) = player.client.deadline().filter(|at| *at < player.scheduled) {
            player.scheduled = at;
            self.deadlines.push(Reverse((at, index as u32)));
        }
    }
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..at + 8)
        .and_then(|bytes| bytes.try_into().ok())
        .map(u64::from_le_bytes)
}

impl Machine for Swarm {
    type Event = ();

    const DISCARDS_STALE: bool = false;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        // Runs of one client's datagrams are passed to it together.
        let arrivals = inbox.arrivals;
        let mut at = 0;
        while at < arrivals.len() {
            let whose = |arrival: &Arrival| {
                let datagram = &inbox.slab[arrival.start as usize..(arrival.start + arrival.len) as usize];
                self.whose(arrival.socket as usize, datagram)
            };
            let index = whose(&arrivals[at]);
            let rest = arrivals[at + 1..].iter();
            let run = 1 + rest.take_while(|arrival| whose(arrival) == index).count();
            if let Some(index) = index {
                let arrivals = &arrivals[at..at + run];
                let slab = &mut *inbox.slab;
                self.players[index].client.receive(now, &mut Inbox { slab, arrivals });
                self.read(now, index);
                self.touch(index);
            }
            at += run;
        }
    }

    fn expire(&mut self, now: Micros) {
        while let Some(Reverse((at, index))) = self.deadlines.peek().copied() {
            if at > now {
                break;
            }
            self.deadlines.pop();
            let player = &mut self.players[index as usize];
            if player.scheduled == at {
                player.scheduled = Micros::MAX;
            }
            if !player.held && player.client.deadline().is_some_and(|at| at <= now) {
                if self.behind_at == Some(now) {
                    player.client.behind(now);
                }
                player.client.expire(now);
            }
            self.touch(index as usize);
        }
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        while let Some(index) = self.dirty.front().copied() {
            let index = index as usize;
            let more = self.players[index].client.transmit(now, outbox);
            self.learn(index);
            if more {
                return true;
            }
            self.dirty.pop_front();
            self.players[index].dirty = false;
            self.drain(index);
            self.schedule(index);
        }
        false
    }

    fn deadline(&self) -> Option<Micros> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    fn drain_events(&mut self, _events: &mut Vec<()>) {}

    fn stalled(&mut self, _now: Micros) {}

    fn behind(&mut self, now: Micros) {
        self.behind_at = Some(now);
    }
}
