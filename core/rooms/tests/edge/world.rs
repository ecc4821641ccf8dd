//! A cluster in one process and virtual time: a router, brokers, a proxy with a UDP client, an edge and its clients by streams.
//!
//! A stream is a byte pipe with a window: what the edge writes waits there until the client takes it.

use std::collections::{BTreeMap, VecDeque};

use muster_edge::Failure;
use muster_rooms::{
    role, room_placement, Admitted, Broker, BrokerConfig, BrokerSettings, Client, ClientConfig, ClientEvent,
    DoorSettings, Edge, EdgeConfig, EdgeEvent, EdgeRefusal, EdgeSettings, Endpoint, Grant, Proxy, ProxyConfig,
    ProxyEvent, ProxySettings, Rights, RoomsSettings, Router, RouterConfig, RouterSettings, Side,
};
use muster_tcp::{Ended, Ordered, StreamId, Streams};
use muster_transport::{
    Addr, Admission, Arrival, ClusterKeys, Denied, Dice, Entropy, Identity, Inbox, Machine, Micros, NodeConfig, Outbox,
    PlacedNode, Role, ServerKey, SocketId,
};
use serde_json::Value;

pub const MS: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;
const TICK: Micros = MS;
const LINK: SocketId = 0;
const PUBLIC: SocketId = 1;
const ROUTER: u32 = 1;
const PROXY: u32 = 2;
const EDGE: u32 = 3;
const BROKERS: u32 = 10;
const CLIENT_PORT: u16 = 40_000;
const NAME_KEY: [u8; 16] = [9; 16];
/// The window of a stream, unless a test sets another one.
const WINDOW: usize = 64 * 1_024;

struct Seeded(Dice);

impl Entropy for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.0.roll() as u8;
        }
    }
}

fn entropy(seed: u64) -> Box<dyn Entropy> {
    Box::new(Seeded(Dice::new(seed)))
}

fn addr(port: u16) -> Addr {
    std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()
}

fn link_port(node: u32) -> u16 {
    1_000 + node as u16
}

fn public_port(node: u32) -> u16 {
    2_000 + node as u16
}

fn cluster() -> ClusterKeys {
    ClusterKeys {
        current: (1, [7; 32]),
        other: None,
        allow: None,
    }
}

fn identity(node: u32, role: Role, epoch: u32) -> Identity {
    Identity { node, role, epoch }
}

#[allow(clippy::large_enum_variant)]
enum Part {
    Router(Box<Router>),
    Broker(Box<Broker>),
    Proxy(Box<Proxy>),
    Edge,
}

struct Flying {
    from: Addr,
    to: Addr,
    bytes: Vec<u8>,
}

/// A client by a stream.
pub struct Web {
    pub stream: StreamId,
    /// Bytes that the edge wrote and the client has not taken.
    pipe: VecDeque<u8>,
    pub window: usize,
    blocked: bool,
    /// Bytes that came and are no whole frame.
    came: Vec<u8>,
    upgraded: bool,
    /// Messages that came and were not looked at.
    pub messages: VecDeque<Value>,
    pub closed: Option<u16>,
    pub gone: bool,
    /// It takes nothing for now.
    pub stalled: bool,
    /// It answers pings.
    pub pongs: bool,
    read: bool,
}

pub struct World {
    pub now: Micros,
    pub seed: u64,
    pub dice: Dice,
    /// Of a hundred datagrams.
    pub loss: u64,
    /// The edge hears no broker and no router, and they do not hear it.
    pub parted: bool,
    servers: Vec<(u32, Part)>,
    pub edge: Box<Edge>,
    pub edge_epoch: u32,
    epoch: u32,
    placement_epoch: u32,
    /// Brokers that stand still.
    pub still: Vec<u32>,
    /// Brokers whose words to the edge are lost.
    pub mute: Vec<u32>,
    pub client: Box<Client>,
    pub client_events: Vec<ClientEvent>,
    pub webs: BTreeMap<u32, Web>,
    uses: u32,
    outbox: Outbox,
    slice: muster_tcp::Outbox,
    /// What tokens give: words of rights in all rooms, by the token's text.
    pub grants: BTreeMap<String, (u64, Rights)>,
    /// When all tokens end.
    pub token_ends: Option<Micros>,
    /// Rooms that tokens subscribe their clients to.
    pub rooms: BTreeMap<String, Vec<String>>,
}

impl World {
    pub fn new(seed: u64) -> World {
        World::with(seed, 1)
    }

    pub fn with(seed: u64, brokers: u32) -> World {
        let router = Router::new(
            RouterConfig {
                node: node(ROUTER, role::ROUTER, 1),
                settings: RouterSettings { memberships_max: 1_000 },
            },
            seed,
            entropy(seed ^ 1),
        );
        let proxy = Proxy::new(
            ProxyConfig {
                node: node(PROXY, role::PROXY, 1),
                name_key: NAME_KEY,
                server_key: ServerKey::from_private([2; 32]),
                settings: ProxySettings {
                    door: DoorSettings {
                        keepalive_ms: 1_000,
                        idle_timeout_ms: 4_000,
                        ..DoorSettings::default()
                    },
                    ..ProxySettings::default()
                },
            },
            seed,
            entropy(seed ^ 2),
        );
        let client = Client::new(
            ClientConfig {
                gateways: Vec::new(),
                proxies: vec![Endpoint {
                    addr: addr(public_port(PROXY)),
                    key: ServerKey::from_private([2; 32]).public(),
                }],
                learns: [false; 2],
                credential: b"token".to_vec(),
                payload: 1_200,
                inbox_bytes: 1 << 20,
                socket: 0,
            },
            seed,
            entropy(seed ^ 3),
        );
        let mut servers = vec![
            (ROUTER, Part::Router(Box::new(router))),
            (PROXY, Part::Proxy(Box::new(proxy))),
            (EDGE, Part::Edge),
        ];
        for at in 0..brokers {
            servers.push((BROKERS + at, Part::Broker(Box::new(broker(BROKERS + at, 1, seed)))));
        }
        let mut grants = BTreeMap::new();
        grants.insert("all".to_owned(), (7, Rights::ALL));
        let mut world = World {
            now: SECOND,
            seed,
            dice: Dice::new(seed ^ 9),
            loss: 0,
            parted: false,
            servers,
            edge: Box::new(edge(seed, 1)),
            edge_epoch: 1,
            epoch: 1,
            placement_epoch: 0,
            still: Vec::new(),
            mute: Vec::new(),
            client: Box::new(client),
            client_events: Vec::new(),
            webs: BTreeMap::new(),
            uses: 0,
            outbox: Outbox::new(false),
            slice: muster_tcp::Outbox::default(),
            grants,
            token_ends: None,
            rooms: BTreeMap::new(),
        };
        world.place();
        world.client.open(world.now, Side::Proxy);
        world.pass_until("all are linked", |world| {
            world.edge.settled() && world.edge.not_ready().is_none()
        });
        world
    }

    /// Gives all the present map.
    pub fn place(&mut self) {
        self.placement_epoch += 1;
        let of = |node: u32| match node {
            ROUTER => role::ROUTER,
            PROXY => role::PROXY,
            EDGE => role::EDGE,
            _ => role::BROKER,
        };
        let nodes = self
            .servers
            .iter()
            .map(|(node, _)| PlacedNode::new(*node, of(*node), addr(link_port(*node))));
        let placement = room_placement(self.placement_epoch, nodes.collect(), 1, 1);
        let now = self.now;
        self.edge.set_placement(now, placement.clone());
        for (_, part) in &mut self.servers {
            match part {
                Part::Router(machine) => machine.set_placement(now, placement.clone()),
                Part::Broker(machine) => machine.set_placement(now, placement.clone()),
                Part::Proxy(machine) => machine.set_placement(now, placement.clone()),
                Part::Edge => {}
            }
        }
    }

    /// A broker dies and is back at once, with nothing of what it knew.
    pub fn restart_broker(&mut self, at: u32) {
        self.epoch += 1;
        let node = BROKERS + at;
        let fresh = broker(node, self.epoch, self.seed ^ u64::from(self.epoch));
        if let Some((_, part)) = self.servers.iter_mut().find(|(known, _)| *known == node) {
            *part = Part::Broker(Box::new(fresh));
        }
        self.place();
    }

    /// A further broker comes; rooms may be numbered by it from now on.
    pub fn add_broker(&mut self, at: u32) {
        let node = BROKERS + at;
        self.servers
            .push((node, Part::Broker(Box::new(broker(node, 1, self.seed)))));
        self.place();
    }

    /// The edge dies and is back at once. Its streams are gone.
    pub fn restart_edge(&mut self) {
        self.edge_epoch += 1;
        *self.edge = edge(self.seed ^ u64::from(self.edge_epoch) << 8, self.edge_epoch);
        self.webs.values_mut().for_each(|web| web.gone = true);
        self.place();
    }

    // ---- Time -------------------------------------------------------------------------------------------------------

    pub fn pass(&mut self, time: Micros) {
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
    }

    pub fn pass_until(&mut self, what: &str, done: impl Fn(&mut World) -> bool) {
        for _ in 0..60_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("seed {}: {what} did not come in 60 s", self.seed);
    }

    fn step(&mut self) {
        for _ in 0..50 {
            if !self.exchange() {
                break;
            }
        }
        self.now += TICK;
    }

    /// All speak once, and what they say arrives. Returns whether anything was said.
    fn exchange(&mut self) -> bool {
        let (now, mut net) = (self.now, Vec::new());
        let outbox = &mut self.outbox;
        for (node, part) in &mut self.servers {
            if self.still.contains(node) {
                continue;
            }
            let ports = [link_port(*node), public_port(*node)];
            match part {
                Part::Router(machine) => speak(now, machine.as_mut(), &ports, outbox, &mut net),
                Part::Broker(machine) => speak(now, machine.as_mut(), &ports, outbox, &mut net),
                Part::Proxy(machine) => speak(now, machine.as_mut(), &ports, outbox, &mut net),
                Part::Edge => speak(now, self.edge.as_mut(), &ports, outbox, &mut net),
            }
        }
        speak(now, self.client.as_mut(), &[CLIENT_PORT], outbox, &mut net);
        let mut any = !net.is_empty();
        for datagram in net {
            let lost = self.dice.below(100) < self.loss;
            let cut = self.parted && [datagram.from, datagram.to].contains(&addr(link_port(EDGE)));
            if !lost && !cut {
                self.deliver(datagram);
            }
        }
        any |= self.streams();
        self.answer();
        any
    }

    fn deliver(&mut self, mut datagram: Flying) {
        let now = self.now;
        let port = std::net::SocketAddr::from(datagram.to).port();
        if port == CLIENT_PORT {
            take(now, self.client.as_mut(), 0, &mut datagram);
            self.client.drain_events(&mut self.client_events);
            return;
        }
        let (node, socket) = match port {
            2_000.. => (u32::from(port) - 2_000, PUBLIC),
            _ => (u32::from(port) - 1_000, LINK),
        };
        let from = u32::from(std::net::SocketAddr::from(datagram.from).port());
        if self.still.contains(&node)
            || node == EDGE && self.mute.iter().any(|broker| from == u32::from(link_port(*broker)))
        {
            return;
        }
        let Some((_, part)) = self.servers.iter_mut().find(|(known, _)| *known == node) else {
            return;
        };
        match part {
            Part::Router(machine) => take(now, machine.as_mut(), socket, &mut datagram),
            Part::Broker(machine) => take(now, machine.as_mut(), socket, &mut datagram),
            Part::Proxy(machine) => take(now, machine.as_mut(), socket, &mut datagram),
            Part::Edge => take(now, self.edge.as_mut(), socket, &mut datagram),
        }
    }

    /// The control planes answer.
    fn answer(&mut self) {
        let now = self.now;
        for (_, part) in &mut self.servers {
            match part {
                Part::Router(machine) => machine.drain_events(&mut Vec::new()),
                Part::Broker(machine) => machine.drain_events(&mut Vec::new()),
                Part::Proxy(machine) => {
                    let mut events = Vec::new();
                    machine.drain_events(&mut events);
                    for event in events {
                        if let ProxyEvent::Authenticate(question) = event {
                            machine.answer(now, question.id, Ok(9.into()), b"");
                        }
                    }
                }
                Part::Edge => {}
            }
        }
        let mut events = Vec::new();
        self.edge.drain_events(&mut events);
        for event in events {
            let (id, credential) = match event {
                EdgeEvent::Authenticate(question) | EdgeEvent::Subscribe(question, _) => {
                    (question.id, question.credential)
                }
                EdgeEvent::Call {
                    question, user, data, ..
                } => {
                    // The control plane's answer: the data with the user before them, unless they are wrong.
                    let said = [user.to_string().as_bytes(), b",", &data].concat();
                    let said = [b"[", &said[..], b"]"].concat();
                    let said = if data == b"0" {
                        Err(Failure::BadRequest)
                    } else {
                        Ok(&said[..])
                    };
                    self.edge.answer_call(now, question, said);
                    continue;
                }
                EdgeEvent::Link(_) => continue,
            };
            let said = self.judge(&String::from_utf8_lossy(&credential));
            let token = String::from_utf8_lossy(&credential);
            let rooms = self.rooms.get(&*token).cloned().unwrap_or_default();
            self.edge.answer_question(now, id, said, b"", &rooms);
        }
    }

    fn judge(&self, token: &str) -> Result<Admitted, EdgeRefusal> {
        match token {
            "expired" => Err(EdgeRefusal::Expired),
            "later" => Err(EdgeRefusal::Denied(Denied::Later)),
            _ => {
                let (user, rights) = self.grants.get(token).ok_or(EdgeRefusal::Denied(Denied::Credential))?;
                Ok(Admitted {
                    admission: Admission {
                        user: *user,
                        until: self.token_ends,
                        token: 0,
                    },
                    grant: Grant::everywhere(*rights),
                })
            }
        }
    }

    // ---- Streams ----------------------------------------------------------------------------------------------------

    /// The edge writes, and clients take. Returns whether anything happened.
    fn streams(&mut self) -> bool {
        let now = self.now;
        if Streams::deadline(self.edge.as_ref()).is_some_and(|at| at <= now) {
            Streams::expire(self.edge.as_mut(), now);
        }
        for stream in self.edge.take_silent() {
            let owes = self
                .webs
                .get(&(stream.slot() as u32))
                .is_some_and(|web| !web.pipe.is_empty());
            self.edge.silence(now, stream, owes);
        }
        let mut any = false;
        for _ in 0..100 {
            self.slice.clear();
            let more = Streams::transmit(self.edge.as_mut(), now, &mut self.slice);
            let mut blocked = Vec::new();
            for order in self.slice.orders() {
                any = true;
                match order {
                    Ordered::Send {
                        stream,
                        head,
                        shared,
                        tail,
                    } => {
                        let Some(web) = self.webs.get_mut(&(stream.slot() as u32)) else {
                            continue;
                        };
                        if web.stream != stream || web.gone {
                            continue;
                        }
                        assert!(!web.blocked, "nothing is put into a full socket");
                        web.pipe.extend(head);
                        shared.iter().for_each(|part| web.pipe.extend(part.iter()));
                        web.pipe.extend(tail);
                        if web.pipe.len() > web.window {
                            web.blocked = true;
                            blocked.push(stream);
                        }
                    }
                    Ordered::Close(stream) | Ordered::Abort(stream) => {
                        if let Some(web) = self.webs.get_mut(&(stream.slot() as u32)) {
                            web.gone = true;
                        }
                    }
                    Ordered::Read(stream, read) => {
                        if let Some(web) = self.webs.get_mut(&(stream.slot() as u32)) {
                            web.read = read;
                        }
                    }
                    Ordered::Proven(_) => {}
                }
            }
            for stream in blocked {
                self.edge.blocked(now, stream);
            }
            if !more {
                break;
            }
        }
        let slots: Vec<u32> = self.webs.keys().copied().collect();
        for slot in slots {
            any |= self.take_from(slot, usize::MAX);
        }
        any
    }

    /// A client takes bytes from its stream.
    pub fn take_from(&mut self, slot: u32, most: usize) -> bool {
        let now = self.now;
        let Some(web) = self.webs.get_mut(&slot).filter(|web| !web.stalled) else {
            return false;
        };
        let count = most.min(web.pipe.len());
        web.came.extend(web.pipe.drain(..count));
        let pings = web.parse();
        let (stream, freed) = (web.stream, web.pipe.is_empty() && std::mem::take(&mut web.blocked));
        let gone = web.gone;
        if freed && !gone {
            self.edge.drained(now, stream);
        }
        if gone {
            return count > 0;
        }
        for _ in 0..pings {
            self.say(slot, "{}");
        }
        count > 0
    }

    /// A new client with a stream, upgraded.
    pub fn web(&mut self, protobuf: bool) -> u32 {
        let taken = |slot: &u32| self.webs.get(slot).is_none_or(|web| web.gone);
        let slot = (0..).find(taken).expect("there is one");
        self.uses += 1;
        let stream = StreamId::new(slot, self.uses);
        self.webs.insert(
            slot,
            Web {
                stream,
                pipe: VecDeque::new(),
                window: WINDOW,
                blocked: false,
                came: Vec::new(),
                upgraded: false,
                messages: VecDeque::new(),
                closed: None,
                gone: false,
                stalled: false,
                pongs: true,
                read: true,
            },
        );
        self.edge.opened(self.now, stream, addr(50_000));
        let query = if protobuf { "?cf_protocol=protobuf" } else { "" };
        let head = format!(
            "GET /connection/websocket{query} HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        self.bytes(slot, head.into_bytes());
        slot
    }

    /// A new client whose token is accepted.
    pub fn connected(&mut self, token: &str) -> u32 {
        let slot = self.web(false);
        self.say(slot, &format!(r#"{{"id":1,"connect":{{"token":"{token}"}}}}"#));
        self.reply(slot, 1);
        slot
    }

    fn bytes(&mut self, slot: u32, mut bytes: Vec<u8>) {
        let Some(web) = self.webs.get(&slot) else { return };
        let (stream, now) = (web.stream, self.now);
        self.edge.received(now, stream, &mut bytes);
    }

    /// A client sends one message.
    pub fn say(&mut self, slot: u32, text: &str) {
        let mut frame = vec![0x81];
        match text.len() {
            len @ 0..126 => frame.push(0x80 | len as u8),
            len @ 126..65_536 => {
                frame.push(0x80 | 126);
                frame.extend((len as u16).to_be_bytes());
            }
            len => {
                frame.push(0x80 | 127);
                frame.extend((len as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        self.bytes(slot, frame);
    }

    /// The network to a client breaks.
    pub fn cut(&mut self, slot: u32) {
        if let Some(web) = self.webs.get_mut(&slot).filter(|web| !web.gone) {
            web.gone = true;
            let stream = web.stream;
            self.edge.ended(self.now, stream, Ended::Broken);
        }
    }

    /// A client ends its half.
    pub fn half_close(&mut self, slot: u32) {
        if let Some(stream) = self.webs.get(&slot).filter(|web| !web.gone).map(|web| web.stream) {
            self.edge.finished(self.now, stream);
        }
    }

    /// Waits for the reply to a command.
    pub fn reply(&mut self, slot: u32, id: u64) -> Value {
        self.wait(slot, &format!("reply {id}"), |message| message["id"] == id)
    }

    /// Waits for a message, and takes it out of those that came.
    pub fn wait(&mut self, slot: u32, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.pass_until(what, |world| world.webs[&slot].messages.iter().any(&is));
        let messages = &mut self.webs.get_mut(&slot).expect("a client").messages;
        let at = messages.iter().position(&is).expect("it came");
        messages.remove(at).expect("it came")
    }

    /// Waits for a push of a channel's publication.
    pub fn publication(&mut self, slot: u32) -> Value {
        self.wait(slot, "a publication", |message| message["push"]["pub"].is_object())["push"]["pub"].clone()
    }

    pub fn subscribe(&mut self, slot: u32, id: u64, rest: &str) -> Value {
        self.say(slot, &format!(r#"{{"id":{id},"subscribe":{{{rest}}}}}"#));
        self.reply(slot, id)
    }

    /// The UDP client publishes.
    pub fn publish(&mut self, room: &str, data: &[u8]) {
        self.publish_headed(room, &[], data);
    }

    /// The UDP client publishes a message with headers.
    pub fn publish_headed(&mut self, room: &str, headers: &[(&str, &str)], data: &[u8]) {
        let headers = muster_rooms::headers::encode(headers.iter().copied()).expect("good headers");
        let opened = self.client.publication(self.now, room).expect("place");
        let number = opened.publication;
        for _ in 0..10_000 {
            if self.client.publish_headed(number, &headers, data, 0).is_ok() {
                return;
            }
            self.pass(5 * MS);
        }
        panic!("seed {}: no credit", self.seed);
    }
}

impl Web {
    /// Takes whole messages out of the bytes that came. Returns how many pings are to be answered.
    fn parse(&mut self) -> usize {
        let mut pings = 0;
        if !self.upgraded {
            let Some(end) = self.came.windows(4).position(|part| part == b"\r\n\r\n") else {
                return 0;
            };
            assert!(
                self.came.starts_with(b"HTTP/1.1 101"),
                "{}",
                String::from_utf8_lossy(&self.came)
            );
            self.came.drain(..end + 4);
            self.upgraded = true;
        }
        while self.came.len() >= 2 {
            let (len, start) = match self.came[1] {
                126 if self.came.len() >= 4 => (usize::from(u16::from_be_bytes([self.came[2], self.came[3]])), 4),
                127 if self.came.len() >= 10 => {
                    (u64::from_be_bytes(self.came[2..10].try_into().expect("8")) as usize, 10)
                }
                126 | 127 => break,
                len => (usize::from(len), 2),
            };
            if self.came.len() < start + len {
                break;
            }
            let opcode = self.came[0] & 15;
            let payload: Vec<u8> = self.came.drain(..start + len).skip(start).collect();
            match opcode {
                8 => self.closed = Some(u16::from_be_bytes([payload[0], payload[1]])),
                1 => {
                    for line in payload.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                        let value: Value = serde_json::from_slice(line)
                            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(line)));
                        if value.as_object().is_some_and(serde_json::Map::is_empty) {
                            pings += usize::from(self.pongs);
                        } else {
                            self.messages.push_back(value);
                        }
                    }
                }
                _ => {}
            }
        }
        pings
    }
}

fn node(node: u32, role: Role, epoch: u32) -> NodeConfig {
    NodeConfig {
        me: identity(node, role, epoch),
        payload: 1_200,
        cluster: cluster(),
        reset_secret: [node as u8; 32],
    }
}

fn broker(number: u32, epoch: u32, seed: u64) -> Broker {
    let config = BrokerConfig {
        node: node(number, role::BROKER, epoch),
        name_key: NAME_KEY,
        settings: BrokerSettings {
            arena_bytes: 8 << 20,
            ..BrokerSettings::default()
        },
    };
    Broker::new(config, seed, entropy(seed ^ u64::from(number)))
}

fn edge(seed: u64, epoch: u32) -> Edge {
    let settings = EdgeSettings {
        rooms: RoomsSettings {
            arena_bytes: 4 << 20,
            membership_again_ms: 250,
            paced_namespaces: vec!["paced".into()],
            ..RoomsSettings::default()
        },
        drain_s: 2.0,
        join_leave_max: 100,
        methods: vec!["muster.status".into()],
        ..EdgeSettings::default()
    };
    let config = EdgeConfig {
        node: node(EDGE, role::EDGE, epoch),
        name_key: NAME_KEY,
        settings,
        letters: None,
    };
    Edge::edge(config, seed, entropy(seed ^ 5))
}

fn speak<M: Machine>(now: Micros, machine: &mut M, ports: &[u16], outbox: &mut Outbox, net: &mut Vec<Flying>) {
    if machine.deadline().is_some_and(|at| at <= now) {
        machine.expire(now);
    }
    loop {
        outbox.clear();
        let more = machine.transmit(now, outbox);
        for parcel in outbox.parcels() {
            net.push(Flying {
                from: addr(ports[parcel.socket as usize]),
                to: parcel.to,
                bytes: outbox.bytes(parcel).to_vec(),
            });
        }
        if !more || outbox.is_empty() {
            return;
        }
    }
}

fn take<M: Machine>(now: Micros, machine: &mut M, socket: SocketId, datagram: &mut Flying) {
    let arrivals = [Arrival {
        socket,
        from: datagram.from,
        start: 0,
        len: datagram.bytes.len() as u32,
    }];
    let inbox = &mut Inbox {
        slab: &mut datagram.bytes,
        arrivals: &arrivals,
    };
    machine.receive(now, inbox);
}
