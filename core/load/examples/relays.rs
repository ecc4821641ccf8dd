//! Measures a broker with one busy room on many gateways, with and without relays:
//! `cargo run --release -p muster-load --example relays [GATEWAYS [RATE [SECONDS]]]`.
//!
//! The real machines of a proxy, a broker, a router and gateways with one member each run in memory, without sockets, on a
//! common clock. Prints the broker's CPU and datagrams for each message, and what the busiest gateway sends. Both ways take
//! turns in one run. Then each datagram takes a millisecond, and some are lost between nodes: prints how long messages
//! take to their members.

use std::collections::{BTreeMap, VecDeque};

use muster_rooms::wire::Positions;
use muster_rooms::{
    role, room_placement, Broker, BrokerConfig, BrokerSettings, Client, ClientConfig, ClientEvent, DoorSettings,
    Endpoint, Gateway, GatewayConfig, GatewayEvent, GatewaySettings, Item, Policy, Proxy, ProxyConfig, ProxyEvent,
    ProxySettings, RoomsSettings, Router, RouterConfig, RouterSettings,
};
use muster_transport::{
    Addr, Arrival, ClusterKeys, Identity, Inbox, Machine, Micros, NodeConfig, Outbox, PlacedNode, Role, ServerKey,
};
use muster_udp::{thread_cpu_now, KernelEntropy};

const PROXY: u32 = 1;
const BROKER: u32 = 2;
const ROUTER: u32 = 3;
const GATEWAYS: u32 = 100;
const TICK: Micros = 500;
const BATCH: usize = 64;
const PAYLOAD: usize = 1_200;
const ROOM: &str = "live:final";
/// Time that a datagram takes, where times are measured.
const ROUNDS: u32 = 5;
const HOP: Micros = 1_000;
/// Datagrams lost between nodes, per million, where times are measured.
const LOSSES: [u64; 2] = [0, 10_000];

/// Its sender's and its receiver's address, and its bytes.
type Datagram = (Addr, Addr, Vec<u8>);

/// One machine, the addresses of its sockets, and what waits for it.
struct Part<M> {
    machine: M,
    sockets: Vec<Addr>,
    waiting: VecDeque<Datagram>,
    cpu: u64,
    sent: u64,
}

fn addr(node: u32, socket: u32) -> Addr {
    let [_, a, b, c] = node.to_be_bytes();
    std::net::SocketAddr::from(([10, a, b, c], 7_000 + socket as u16)).into()
}

impl<M: Machine> Part<M> {
    fn new(node: u32, sockets: u32, machine: M) -> Self {
        Part {
            machine,
            sockets: (0..sockets).map(|socket| addr(node, socket)).collect(),
            waiting: VecDeque::new(),
            cpu: 0,
            sent: 0,
        }
    }

    /// One turn. Whether anything came or left.
    fn turn(&mut self, now: Micros, outbox: &mut Outbox, out: &mut Vec<Datagram>) -> bool {
        let batch: Vec<_> = self.waiting.drain(..self.waiting.len().min(BATCH)).collect();
        let due = self.machine.deadline().is_some_and(|at| at <= now);
        let (mut slab, mut arrivals) = (Vec::new(), Vec::new());
        for (from, to, bytes) in &batch {
            let socket = self.sockets.iter().position(|known| known == to).unwrap_or(0) as u32;
            let (start, len) = (slab.len() as u32, bytes.len() as u32);
            let from = *from;
            arrivals.push(Arrival {
                socket,
                from,
                start,
                len,
            });
            slab.extend_from_slice(bytes);
        }
        let before = thread_cpu_now();
        if !arrivals.is_empty() {
            let mut inbox = Inbox {
                slab: &mut slab,
                arrivals: &arrivals,
            };
            self.machine.receive(now, &mut inbox);
        }
        if due {
            self.machine.expire(now);
        }
        self.cpu += thread_cpu_now() - before;
        let left = self.sent;
        loop {
            outbox.clear();
            let before = thread_cpu_now();
            let more = self.machine.transmit(now, outbox);
            self.cpu += thread_cpu_now() - before;
            for parcel in outbox.parcels() {
                for bytes in outbox.bytes(parcel).chunks(parcel.segment as usize) {
                    out.push((self.sockets[parcel.socket as usize], parcel.to, bytes.to_vec()));
                    self.sent += 1;
                }
            }
            if !more || outbox.is_empty() {
                break;
            }
        }
        !batch.is_empty() || self.sent > left
    }
}

/// A client that reads the room.
struct Member {
    part: Part<Client>,
    room: u32,
}

/// The plane of one room.
struct World {
    now: Micros,
    proxy: Part<Proxy>,
    broker: Part<Broker>,
    router: Part<Router>,
    gateways: Vec<Part<Gateway>>,
    members: Vec<Member>,
    publisher: Part<Client>,
    publication: u32,
    outbox: Outbox,
    by_addr: BTreeMap<Addr, usize>,
    received: u64,
    hop: Micros,
    loss: u64,
    dice: u64,
    flying: VecDeque<(Micros, Datagram)>,
    /// Times from a message's turn at the publisher to a member.
    took: Vec<Micros>,
    /// Turns in which the publisher had to wait.
    blocked: u64,
}

impl World {
    fn new(count: usize, relay_above: usize) -> Self {
        let numbers = (0..count as u32).map(|at| GATEWAYS + at);
        let nodes = [(PROXY, role::PROXY), (BROKER, role::BROKER), (ROUTER, role::ROUTER)];
        let nodes = nodes
            .into_iter()
            .chain(numbers.clone().map(|node| (node, role::GATEWAY)));
        let nodes: Vec<PlacedNode> = nodes
            .map(|(node, role)| PlacedNode::new(node, role, addr(node, 0)))
            .collect();
        let placement = room_placement(1, nodes, 1, 1);
        let config = |node, role: Role| NodeConfig {
            me: Identity { node, role, epoch: 1 },
            payload: PAYLOAD,
            cluster: ClusterKeys {
                current: (1, [7; 32]),
                other: None,
                allow: None,
            },
            reset_secret: [3; 32],
        };
        let door = DoorSettings {
            keepalive_ms: 3_600_000,
            idle_timeout_ms: 7_200_000,
            accept_rate: 1_000_000,
            ..DoorSettings::default()
        };
        let (key, name_key, now) = (ServerKey::from_private([1; 32]), [9; 16], 1);
        let rooms = RoomsSettings {
            arena_bytes: 16 << 20,
            ..RoomsSettings::default()
        };
        let mut gateways = Vec::new();
        for node in numbers {
            let config = GatewayConfig {
                node: config(node, role::GATEWAY),
                name_key,
                server_key: key.clone(),
                settings: GatewaySettings {
                    door: door.clone(),
                    rooms: rooms.clone(),
                },
            };
            let mut machine = Gateway::new(config, node.into(), Box::new(KernelEntropy));
            machine.set_placement(now, placement.clone());
            gateways.push(Part::new(node, 2, machine));
        }
        let settings = ProxySettings {
            door,
            user_message_rate: 0,
            user_byte_rate: 0,
            ..ProxySettings::default()
        };
        let proxy = ProxyConfig {
            node: config(PROXY, role::PROXY),
            name_key,
            server_key: key.clone(),
            settings,
        };
        let mut proxy = Proxy::new(proxy, 1, Box::new(KernelEntropy));
        proxy.set_placement(now, placement.clone());
        let settings = BrokerSettings {
            arena_bytes: 64 << 20,
            relay_above,
            ..BrokerSettings::default()
        };
        let broker = BrokerConfig {
            node: config(BROKER, role::BROKER),
            name_key,
            settings,
        };
        let mut broker = Broker::new(broker, 2, Box::new(KernelEntropy));
        broker.set_placement(now, placement.clone());
        let router = RouterConfig {
            node: config(ROUTER, role::ROUTER),
            settings: RouterSettings::default(),
        };
        let mut router = Router::new(router, 3, Box::new(KernelEntropy));
        router.set_placement(now, placement);
        let endpoint = |node| Endpoint {
            addr: addr(node, 1),
            key: key.public(),
        };
        let client = |gateway, seed| {
            let config = ClientConfig {
                gateways: vec![endpoint(gateway)],
                proxies: vec![endpoint(PROXY)],
                learns: [false; 2],
                credential: b"token".to_vec(),
                payload: PAYLOAD,
                inbox_bytes: 4 << 20,
                socket: 0,
            };
            Client::new(config, seed, Box::new(KernelEntropy))
        };
        let mut members = Vec::new();
        for at in 0..count as u32 {
            let mut machine = client(GATEWAYS + at, 1_000 + u64::from(at));
            let room = machine.join(now, ROOM, Positions::default(), Policy::DropOldest);
            let part = Part::new(100_000 + at, 1, machine);
            members.push(Member { part, room });
        }
        let mut machine = client(GATEWAYS, 7);
        let publication = machine.publication(now, ROOM).expect("a room").publication;
        let publisher = Part::new(99_999, 1, machine);
        let mut world = World {
            now,
            proxy: Part::new(PROXY, 2, proxy),
            broker: Part::new(BROKER, 1, broker),
            router: Part::new(ROUTER, 1, router),
            gateways,
            members,
            publisher,
            publication,
            outbox: Outbox::new(true),
            by_addr: BTreeMap::new(),
            received: 0,
            hop: 0,
            loss: 0,
            dice: 1,
            flying: VecDeque::new(),
            took: Vec::new(),
            blocked: 0,
        };
        let sockets = |world: &World, at: usize| match at {
            0 => world.proxy.sockets.clone(),
            1 => world.broker.sockets.clone(),
            2 => world.router.sockets.clone(),
            3 => world.publisher.sockets.clone(),
            at if at < 4 + count => world.gateways[at - 4].sockets.clone(),
            at => world.members[at - 4 - count].part.sockets.clone(),
        };
        for at in 0..4 + 2 * count {
            let known = sockets(&world, at);
            world.by_addr.extend(known.into_iter().map(|addr| (addr, at)));
        }
        world
    }

    /// Whether this datagram is lost: only links between nodes lose some.
    fn is_lost(&mut self, datagram: &Datagram) -> bool {
        let is_link = |addr: &Addr| self.by_addr.get(addr).is_some_and(|at| *at < 4 + self.gateways.len());
        if self.loss == 0 || !is_link(&datagram.0) || !is_link(&datagram.1) {
            return false;
        }
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % 1_000_000 < self.loss
    }

    /// Sends datagrams on their way. Those that are due arrive.
    fn deliver(&mut self, out: Vec<Datagram>) {
        let count = self.gateways.len();
        let arrives = self.now + self.hop;
        for datagram in out {
            if !self.is_lost(&datagram) {
                self.flying.push_back((arrives, datagram));
            }
        }
        while self.flying.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, datagram) = self.flying.pop_front().expect("a datagram in front");
            let Some(at) = self.by_addr.get(&datagram.1) else {
                continue;
            };
            let waiting = match *at {
                0 => &mut self.proxy.waiting,
                1 => &mut self.broker.waiting,
                2 => &mut self.router.waiting,
                3 => &mut self.publisher.waiting,
                at if at < 4 + count => &mut self.gateways[at - 4].waiting,
                at => &mut self.members[at - 4 - count].part.waiting,
            };
            waiting.push_back(datagram);
        }
    }

    /// Runs until nothing moves, then moves the clock.
    fn tick(&mut self) {
        let now = self.now;
        loop {
            let (mut out, mut moved, outbox) = (Vec::new(), false, &mut self.outbox);
            moved |= self.publisher.turn(now, outbox, &mut out);
            moved |= self.proxy.turn(now, outbox, &mut out);
            moved |= self.broker.turn(now, outbox, &mut out);
            moved |= self.router.turn(now, outbox, &mut out);
            for gateway in &mut self.gateways {
                moved |= gateway.turn(now, outbox, &mut out);
            }
            for member in &mut self.members {
                moved |= member.part.turn(now, outbox, &mut out);
            }
            self.deliver(out);
            self.answer();
            if !moved {
                break;
            }
        }
        self.now += TICK;
    }

    fn answer(&mut self) {
        let mut events = Vec::new();
        self.proxy.machine.drain_events(&mut events);
        for event in events {
            if let ProxyEvent::Authenticate(question) = event {
                self.proxy.machine.answer(self.now, question.id, Ok(42.into()), b"");
            }
        }
        for gateway in &mut self.gateways {
            let mut events = Vec::new();
            gateway.machine.drain_events(&mut events);
            for event in events {
                if let GatewayEvent::Authenticate(question) = event {
                    gateway.machine.answer(self.now, question.id, Ok(42.into()), b"");
                }
            }
        }
        let mut events: Vec<ClientEvent> = Vec::new();
        self.publisher.machine.drain_events(&mut events);
        let mut data = Vec::new();
        for member in &mut self.members {
            member.part.machine.drain_events(&mut events);
            while let Some(item) = member.part.machine.read(self.now, member.room, &mut data) {
                assert!(matches!(item, Item::Message { .. }), "{item:?}");
                let (time, _) = data.split_first_chunk().expect("a message starts with its time");
                self.took.push(self.now - Micros::from_le_bytes(*time));
                self.received += 1;
            }
        }
    }

    /// Publishes this many messages a second for a time. Returns how many.
    fn publish(&mut self, rate: u64, span: Micros) -> u64 {
        let (begin, mut published) = (self.now, 0);
        while self.now < begin + span {
            let due = (self.now - begin) * rate / 1_000_000;
            while published < due {
                let at = begin + published * 1_000_000 / rate;
                let mut payload = [7; 200];
                payload[..8].copy_from_slice(&at.to_le_bytes());
                let sent = self.publisher.machine.publish(self.publication, &payload, published);
                if sent.is_err() {
                    self.blocked += 1;
                    break;
                }
                published += 1;
            }
            self.tick();
        }
        published
    }

    /// Publishes for a time while datagrams take their time and this share of them is lost. Returns the sorted times of the
    /// deliveries.
    fn times(&mut self, rate: u64, span: Micros, loss: u64) -> Vec<Micros> {
        (self.hop, self.loss) = (HOP, loss);
        self.publish(rate, span / 10); // round-trip times settle
        self.took.clear();
        self.publish(rate, span);
        let mut took = std::mem::take(&mut self.took);
        took.sort_unstable();
        took
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number"))
        .collect();
    let number = |at: usize, otherwise| numbers.get(at).copied().unwrap_or(otherwise);
    let (count, rate, seconds) = (number(0, 48) as usize, number(1, 1_000), number(2, 3));
    let mut worlds = [World::new(count, 0), World::new(count, 24)];
    for world in &mut worlds {
        let until = world.now + 3_000_000;
        while world.now < until {
            world.tick();
        }
        world.publish(rate, 5_000_000);
    }
    for round in 1..=ROUNDS {
        let mut figures = Vec::new();
        for world in &mut worlds {
            let before = (world.broker.cpu, world.broker.sent, world.received);
            let gateways: Vec<_> = world
                .gateways
                .iter()
                .map(|gateway| (gateway.cpu, gateway.sent))
                .collect();
            let published = world.publish(rate, seconds * 1_000_000) as f64;
            let of = |value: u64| value as f64 / published;
            let busiest = world.gateways.iter().zip(&gateways);
            let busiest = busiest
                .map(|(now, before)| (now.sent - before.1, now.cpu - before.0))
                .max();
            let (sent, cpu) = busiest.unwrap_or_default();
            figures.push([
                of(world.broker.cpu - before.0) / 1e3,
                of(world.broker.sent - before.1),
                of(cpu) / 1e3,
                of(sent),
                of(world.received - before.2),
            ]);
        }
        let [plain, relayed] = [figures[0], figures[1]];
        for (name, of) in [("each", plain), ("relays", relayed)] {
            println!(
                "{round} {name:<7} broker {:7.2} us {:6.2} datagrams; busiest gateway {:6.2} us {:5.2} datagrams; {:.2} deliveries",
                of[0], of[1], of[2], of[3], of[4]
            );
        }
        println!(
            "{round} relays over each: broker's CPU {:.3}, datagrams {:.3}",
            relayed[0] / plain[0],
            relayed[1] / plain[1]
        );
    }
    for loss in LOSSES {
        for (name, world) in ["each", "relays"].into_iter().zip(&mut worlds) {
            world.blocked = 0;
            let took = world.times(rate, seconds * 1_000_000, loss);
            let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize] as f64 / 1e3;
            println!(
                "{HOP} us a hop, {} % lost: {name:<7} p50 {:.1} ms, p99 {:.1}, p99.9 {:.1}, longest {:.1}; {} deliveries, publisher waits in {} ticks",
                loss as f64 / 1e4, at(0.5), at(0.99), at(0.999), at(1.0), took.len(), world.blocked
            );
        }
    }
}
