//! A room plane in memory that grows: the CPU time of each role for membership and for changes of the placement.
//!
//! Owns one gateway with real sessions, one router and the brokers of several partitions, on a common clock that
//! stands still while any of them has something to send. No sockets: only the machines' own work counts, including
//! sealing. Also owns [`Known`], a router that holds memberships by the million.

use muster_rooms::{role, room_placement};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use muster_rooms::wire::Membership;
use muster_rooms::{
    Broker, BrokerConfig, BrokerSettings, Client, ClientConfig, ClientEvent, DoorSettings, Endpoint, Gateway,
    GatewayConfig, GatewayEvent, GatewaySettings, RoomsSettings, Router, RouterConfig, RouterSettings, SESSION_ROOMS,
};
use muster_transport::{
    Addr, Arrival, ClusterKeys, Growth, Identity, Inbox, Layer, Machine, Micros, NodeConfig, NodeState, Outbox,
    PlacedNode, Role, ServerKey, SocketId, LINK_SOCKET, PUBLIC_SOCKET,
};
use muster_udp::{thread_cpu_now, KernelEntropy};

use crate::feed::{node_addr, speak, Flying};
use crate::own_addr;

const PAYLOAD: usize = 1_200;
/// Longer than any run: clients that have joined need not send again.
const KEEPALIVE_MS: u32 = 3_600_000;
const ARENA_BYTES: usize = 16 << 20;
/// Sessions that join at a time: fewer than may wait for the authenticator.
const SESSIONS_AT_A_TIME: usize = 100;
/// Longer than anything takes on the machines' clock.
const PATIENCE: Micros = 120_000_000;
const TICK: Micros = 1_000;
/// Datagrams per call of a machine, as many as its driver passes at once without GRO.
const BATCH: usize = 64;
/// Memberships per call of a router, as a database passes them.
const TOLD_AT_ONCE: usize = 2_000;
const GATEWAY: u32 = 1;
const ROUTER: u32 = 2;
const BROKERS: u32 = 10;
const GHOSTS: u32 = 1_000;
const PUBLIC: u16 = 9_000;

/// CPU nanoseconds of each role, and datagrams received by brokers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub gateway: u64,
    pub router: u64,
    pub brokers: u64,
    pub broker_bytes: u64,
}

enum RoleMachine {
    Gateway(Box<Gateway>),
    Router(Box<Router>),
    Broker(Box<Broker>),
}

/// Runs the same code on any kind of machine.
macro_rules! each {
    ($part:expr, $machine:ident => $what:expr) => {
        match $part {
            RoleMachine::Gateway($machine) => $what,
            RoleMachine::Router($machine) => $what,
            RoleMachine::Broker($machine) => $what,
        }
    };
}

struct Server {
    node: PlacedNode,
    part: RoleMachine,
    waiting: Vec<(SocketId, Flying)>,
}

/// One gateway, one router, brokers, and joining clients.
pub struct Plane {
    now: Micros,
    epoch: u32,
    partitions: u16,
    growth: Growth,
    servers: Vec<Server>,
    ghosts: Vec<PlacedNode>,
    cost: Cost,
    /// Shared by all machines in turn: making one is not a machine's work.
    outbox: Outbox,
    clients: Vec<Client>,
    by_addr: HashMap<Addr, usize>,
    /// Clients that may have something to send.
    awake: BTreeSet<usize>,
    joined: usize,
    wanted: usize,
    seed: u64,
}

impl Plane {
    /// `partitions` of brokers with one replica each, and a gateway with `members` members in each of `rooms` rooms.
    /// Also returns the cost of their joins once everything was linked.
    pub fn new(rooms: usize, members: usize, partitions: u16, seed: u64) -> Result<(Self, Cost), String> {
        let mut plane = Plane {
            now: 1,
            epoch: 0,
            partitions,
            growth: Growth::None,
            servers: Vec::new(),
            ghosts: Vec::new(),
            cost: Cost::default(),
            outbox: Outbox::new(false),
            clients: Vec::new(),
            by_addr: HashMap::new(),
            awake: BTreeSet::new(),
            joined: 0,
            wanted: 0,
            seed,
        };
        plane.add(PlacedNode::new(GATEWAY, role::GATEWAY, node_addr(GATEWAY as u16)));
        plane.add(PlacedNode::new(ROUTER, role::ROUTER, node_addr(ROUTER as u16)));
        (0..partitions).for_each(|partition| plane.add_broker(partition));
        plane.place();
        plane.settle()?;
        let cost = plane.join(rooms, members)?;
        Ok((plane, cost))
    }

    fn add_broker(&mut self, partition: u16) {
        let node = BROKERS + self.servers.len() as u32;
        self.add(PlacedNode {
            partition,
            ..PlacedNode::new(node, role::BROKER, node_addr(node as u16))
        });
    }

    fn add(&mut self, node: PlacedNode) {
        let door = DoorSettings {
            keepalive_ms: KEEPALIVE_MS,
            idle_timeout_ms: 4 * KEEPALIVE_MS,
            ..DoorSettings::default()
        };
        let me = Identity {
            node: node.node,
            role: node.role,
            epoch: 1,
        };
        let (seed, entropy) = (self.seed + u64::from(node.node), Box::new(KernelEntropy));
        let name_key = [9; 16];
        let made = NodeConfig {
            me,
            payload: PAYLOAD,
            cluster: cluster(),
            reset_secret: [node.node as u8; 32],
        };
        let part = match node.role {
            role::GATEWAY => {
                let rooms = RoomsSettings {
                    arena_bytes: ARENA_BYTES,
                    history_max: 0,
                    ..RoomsSettings::default()
                };
                let config = GatewayConfig {
                    node: made,
                    name_key,
                    server_key: ServerKey::from_private([2; 32]),
                    settings: GatewaySettings { door, rooms },
                };
                RoleMachine::Gateway(Box::new(Gateway::new(config, seed, entropy)))
            }
            role::ROUTER => {
                let config = RouterConfig {
                    node: made,
                    settings: RouterSettings::default(),
                };
                RoleMachine::Router(Box::new(Router::new(config, seed, entropy)))
            }
            _ => {
                let config = BrokerConfig {
                    node: made,
                    name_key,
                    settings: BrokerSettings {
                        arena_bytes: ARENA_BYTES,
                        ..BrokerSettings::default()
                    },
                };
                RoleMachine::Broker(Box::new(Broker::new(config, seed, entropy)))
            }
        };
        self.servers.push(Server {
            node,
            part,
            waiting: Vec::new(),
        });
    }

    /// Passes the next placement to all machines. Returns each role's CPU time for taking it, without sending.
    fn place(&mut self) -> Cost {
        self.epoch += 1;
        let nodes = self
            .servers
            .iter()
            .map(|server| server.node)
            .chain(self.ghosts.iter().copied());
        let layer = Layer::new(self.partitions, self.growth);
        let placement = room_placement(self.epoch, nodes.collect(), layer, 1);
        let mut cost = Cost::default();
        for server in &mut self.servers {
            let (placement, now) = (placement.clone(), self.now);
            let began = thread_cpu_now();
            each!(&mut server.part, machine => machine.set_placement(now, placement));
            *cost.of(server.node.role) += thread_cpu_now() - began;
        }
        cost
    }

    /// Runs until all machines have settled on the placement.
    fn settle(&mut self) -> Result<(), String> {
        let settled = |server: &Server| each!(&server.part, machine => machine.settled());
        self.run_until("the map", |plane| plane.servers.iter().all(settled))
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let until = self.now + PATIENCE;
        loop {
            while self.exchange() {}
            if done(self) {
                return Ok(());
            }
            if self.now > until {
                return Err(format!("{what} did not settle within {} s", PATIENCE / 1_000_000));
            }
            self.now += TICK;
        }
    }

    /// Every room gets its members; the sessions have 256 rooms each.
    fn join(&mut self, rooms: usize, members: usize) -> Result<Cost, String> {
        let mut cost = Cost::default();
        let chunk = (SESSIONS_AT_A_TIME / members).max(1) * SESSION_ROOMS;
        for first in (0..rooms).step_by(chunk) {
            let last = (first + chunk).min(rooms);
            for from in (first..last).step_by(SESSION_ROOMS) {
                for _ in 0..members {
                    self.add_client(from..(from + SESSION_ROOMS).min(last));
                }
            }
            let before = self.cost;
            self.run_until("joins", |plane| plane.joined == plane.wanted)?;
            cost.add(&self.cost.since(&before));
            // Joined members stay silent.
            self.awake.clear();
        }
        Ok(cost)
    }

    fn add_client(&mut self, rooms: Range<usize>) {
        let index = self.clients.len();
        let endpoint = Endpoint {
            addr: node_addr(PUBLIC),
            key: ServerKey::from_private([2; 32]).public(),
        };
        let config = ClientConfig {
            gateways: vec![endpoint],
            proxies: Vec::new(),
            learns: [false; 2],
            credential: b"token".to_vec(),
            payload: PAYLOAD,
            inbox_bytes: 1 << 16,
            socket: 0,
        };
        let mut client = Client::new(config, self.seed ^ index as u64, Box::new(KernelEntropy));
        self.wanted += rooms.len();
        for room in rooms {
            let name = format!("room-{room}");
            client.join(self.now, &name, Default::default(), Default::default());
        }
        let mut addr = own_addr(index);
        addr.port = 40_000;
        self.by_addr.insert(addr, index);
        self.awake.insert(index);
        self.clients.push(client);
    }

    /// All machines send once, and their datagrams arrive. Returns whether there were any.
    fn exchange(&mut self) -> bool {
        let mut net = Vec::new();
        for server in &mut self.servers {
            let link = server.node.addr.port;
            let (sockets, ports): (&[SocketId], &[u16]) = match server.part {
                RoleMachine::Gateway(_) => (&[LINK_SOCKET, PUBLIC_SOCKET], &[link, PUBLIC]),
                _ => (&[LINK_SOCKET], &[link]),
            };
            let began = thread_cpu_now();
            each!(&mut server.part, machine => speak(self.now, machine.as_mut(), sockets, ports, &mut self.outbox, &mut net));
            *self.cost.of(server.node.role) += thread_cpu_now() - began;
        }
        for index in self.awake.iter().copied() {
            let from = net.len();
            speak(
                self.now,
                &mut self.clients[index],
                &[0],
                &[40_000],
                &mut self.outbox,
                &mut net,
            );
            let mut addr = own_addr(index);
            addr.port = 40_000;
            net[from..].iter_mut().for_each(|datagram| datagram.from = addr);
        }
        let any = !net.is_empty();
        for datagram in net {
            self.deliver(datagram);
        }
        for server in &mut self.servers {
            self.cost.take(self.now, server);
        }
        self.answer();
        any
    }

    fn deliver(&mut self, mut datagram: Flying) {
        if let Some(index) = self.by_addr.get(&datagram.to).copied() {
            let arrival = arrival(0, &datagram, 0);
            let inbox = &mut Inbox {
                slab: &mut datagram.bytes,
                arrivals: &[arrival],
            };
            self.clients[index].receive(self.now, inbox);
            let mut events = Vec::new();
            self.clients[index].drain_events(&mut events);
            let joined = |event: &&ClientEvent| matches!(event, ClientEvent::Joined { .. });
            self.joined += events.iter().filter(joined).count();
            return;
        }
        let (to, socket) = match datagram.to.port {
            PUBLIC => (node_addr(GATEWAY as u16), PUBLIC_SOCKET),
            _ => (datagram.to, LINK_SOCKET),
        };
        if let Some(server) = self.servers.iter_mut().find(|server| server.node.addr == to) {
            server.waiting.push((socket, datagram));
        }
    }

    fn answer(&mut self) {
        for server in &mut self.servers {
            if let RoleMachine::Gateway(gateway) = &mut server.part {
                let mut events = Vec::new();
                gateway.drain_events(&mut events);
                for event in events {
                    if let GatewayEvent::Authenticate(question) = event {
                        gateway.answer(self.now, question.id, Ok(1.into()), b"");
                    }
                }
            } else {
                each!(&mut server.part, machine => machine.drain_events(&mut Vec::new()));
            }
        }
    }

    /// Starts another replica of partition 0; returns the cost until it knows its rooms, and their number.
    pub fn start_broker(&mut self) -> Result<(Cost, usize), String> {
        self.add_broker(0);
        let before = self.cost;
        let placed = self.place();
        self.settle()?;
        let mut cost = self.cost.since(&before);
        cost.add(&placed);
        let known = match self.servers.last().map(|server| &server.part) {
            Some(RoleMachine::Broker(broker)) => broker.interest().len(),
            _ => 0,
        };
        Ok((cost, known))
    }

    /// Doubles the partitions of brokers in steps: prepare, switch, forget former rooms. Returns the cost of each
    /// step.
    pub fn double(&mut self) -> Result<[Cost; 3], String> {
        let before = self.partitions;
        (before..2 * before).for_each(|partition| self.add_broker(partition));
        let mut costs = [Cost::default(); 3];
        let steps = [
            (before, Growth::Prepare),
            (before, Growth::Switched),
            (2 * before, Growth::None),
        ];
        for (cost, (partitions, growth)) in costs.iter_mut().zip(steps) {
            (self.partitions, self.growth) = (partitions, growth);
            let began = self.cost;
            *cost = self.place();
            self.settle()?;
            cost.add(&self.cost.since(&began));
        }
        Ok(costs)
    }

    /// Fills the placement up to `nodes` with absent ones, then changes the state of one of its brokers `times`
    /// times. Returns each role's cost of each change; for brokers, of one.
    pub fn change_map(&mut self, nodes: usize, times: usize) -> Vec<Cost> {
        let partitions = u32::from(self.partitions);
        let missing = nodes.saturating_sub(self.servers.len()) as u32;
        self.ghosts = (0..missing)
            .map(|at| PlacedNode {
                partition: if at % 10 == 0 { (at / 10 % partitions) as u16 } else { 0 },
                state: if at % 10 == 0 {
                    NodeState::Init
                } else {
                    NodeState::Running
                },
                ..PlacedNode::new(
                    GHOSTS + at,
                    match at % 10 {
                        0 => role::BROKER,
                        1..=5 => role::GATEWAY,
                        _ => role::PROXY,
                    },
                    own_addr((GHOSTS + at) as usize),
                )
            })
            .collect();
        self.place();
        let brokers = self
            .servers
            .iter()
            .filter(|server| server.node.role == role::BROKER)
            .count();
        let mut costs = Vec::new();
        for at in 0..times {
            while self.exchange() {}
            self.now += TICK;
            if let Some(ghost) = self.ghosts.first_mut() {
                ghost.state = if at % 2 == 0 {
                    NodeState::Running
                } else {
                    NodeState::Draining
                };
            }
            let mut cost = self.place();
            cost.brokers /= brokers.max(1) as u64;
            costs.push(cost);
        }
        costs
    }
}

fn arrival(socket: SocketId, datagram: &Flying, start: usize) -> Arrival {
    Arrival {
        socket,
        from: datagram.from,
        start: start as u32,
        len: datagram.bytes.len() as u32,
    }
}

impl Cost {
    fn of(&mut self, role: Role) -> &mut u64 {
        match role {
            role::GATEWAY => &mut self.gateway,
            role::ROUTER => &mut self.router,
            _ => &mut self.brokers,
        }
    }

    /// A server takes its waiting datagrams.
    fn take(&mut self, now: Micros, server: &mut Server) {
        let (mut slab, mut arrivals) = (Vec::new(), Vec::new());
        let waiting = std::mem::take(&mut server.waiting);
        for batch in waiting.chunks(BATCH) {
            slab.clear();
            arrivals.clear();
            for (socket, datagram) in batch {
                arrivals.push(arrival(*socket, datagram, slab.len()));
                slab.extend_from_slice(&datagram.bytes);
            }
            if server.node.role == role::BROKER {
                self.broker_bytes += slab.len() as u64;
            }
            let inbox = &mut Inbox {
                slab: &mut slab,
                arrivals: &arrivals,
            };
            let began = thread_cpu_now();
            each!(&mut server.part, machine => machine.receive(now, inbox));
            *self.of(server.node.role) += thread_cpu_now() - began;
        }
    }

    fn add(&mut self, other: &Cost) {
        self.gateway += other.gateway;
        self.router += other.router;
        self.brokers += other.brokers;
        self.broker_bytes += other.broker_bytes;
    }

    fn since(&self, before: &Cost) -> Cost {
        Cost {
            gateway: self.gateway - before.gateway,
            router: self.router - before.router,
            brokers: self.brokers - before.brokers,
            broker_bytes: self.broker_bytes - before.broker_bytes,
        }
    }
}

/// A router that got this many rooms of each of `gateways`, in lives that a database remembers.
pub struct Known(Box<Router>);

impl Known {
    pub fn new(gateways: u32, each: u64, seed: u64) -> Self {
        let me = Identity {
            node: ROUTER,
            role: role::ROUTER,
            epoch: 1,
        };
        let config = RouterConfig {
            node: NodeConfig {
                me,
                payload: PAYLOAD,
                cluster: cluster(),
                reset_secret: [1; 32],
            },
            settings: RouterSettings::default(),
        };
        let mut router = Box::new(Router::new(config, seed, Box::new(KernelEntropy)));
        for gateway in 1..=gateways {
            let rooms = (0..each).map(|room| Membership {
                room: room.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                check: room,
                version: room + 1,
                present: true,
            });
            let mut rooms = rooms.peekable();
            while rooms.peek().is_some() {
                let page: Vec<Membership> = rooms.by_ref().take(TOLD_AT_ONCE).collect();
                router.hint(0, (gateway, 1), &page);
            }
        }
        Known(router)
    }

    /// Number of memberships that fitted.
    pub fn len(&self) -> usize {
        self.0.interest().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn cluster() -> ClusterKeys {
    ClusterKeys {
        current: (1, [7; 32]),
        other: None,
        allow: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_brokers_learn_their_share_of_the_rooms() {
        let (mut plane, joins) = Plane::new(600, 1, 2, 3).unwrap();
        assert!(joins.gateway > 0 && joins.router > 0 && joins.brokers > 0);
        let (cost, known) = plane.start_broker().unwrap();
        assert!((200..400).contains(&known), "{known}");
        assert!(cost.broker_bytes > 0);
        plane.double().unwrap();
        let known: Vec<usize> = plane
            .servers
            .iter()
            .filter_map(|server| match &server.part {
                RoleMachine::Broker(broker) => Some(broker.interest().len()),
                _ => None,
            })
            .collect();
        // Partitions 0 and 1, the second replica of 0, then 2 and 3.
        assert_eq!(known[0], known[2]);
        assert_eq!(known[0] + known[1] + known[3] + known[4], 600);
    }

    #[test]
    fn every_room_has_the_requested_number_of_members() {
        let (mut plane, _) = Plane::new(300, 3, 1, 3).unwrap();
        assert_eq!((plane.joined, plane.clients.len()), (900, 6));
        let known = plane.start_broker().unwrap().1;
        assert!((200..=300).contains(&known), "{known}: a room counts once");
    }

    #[test]
    fn a_change_of_a_map_of_hundreds_costs_each_role_something() {
        let (mut plane, _) = Plane::new(50, 1, 1, 3).unwrap();
        let costs = plane.change_map(100, 4);
        assert_eq!(costs.len(), 4);
        assert!(costs
            .iter()
            .all(|cost| cost.gateway > 0 && cost.router > 0 && cost.brokers > 0));
    }

    #[test]
    fn every_reported_membership_is_known() {
        assert_eq!(Known::new(3, 1_000, 1).len(), 3_000);
    }
}
