//! The traffic of many publishers to one proxy, divided into steps that a bench can time separately.
//!
//! Owns real sessions of real clients, their proxy and the broker behind it, all in memory and on their own clock.
//! Packets are sealed ahead of time; the caller measures. With sockets, each packet leaves from its own sender's
//! address for one sink, which any caller may drain.

use muster_rooms::{role, room_placement};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use muster_rooms::{
    Broker, BrokerConfig, BrokerSettings, Client, ClientConfig, ClientEvent, DoorSettings, Endpoint, Proxy,
    ProxyConfig, ProxyEvent, ProxySettings, Router, RouterConfig, RouterSettings, Side,
};
use muster_transport::{
    Addr, Arrival, ClusterKeys, Direction, HasSessions, Header, Identity, Inbox, KeyCache, KeySlots, Machine, Micros,
    NodeConfig, Outbox, PlacedNode, Secret, ServerKey, SocketId, HEADER, PUBLIC_SOCKET,
};
use muster_udp::{Counters, Cursor, Kernel, KernelEntropy, Receiver, Sender, Socket, SocketOptions};

use crate::{own_addr, swarm};

const PAYLOAD: usize = 1_200;
const ROOM: &str = "bench";
const LINK: SocketId = 1 - PUBLIC_SOCKET;
/// Longer than any run: no session times out on a clock that hardly advances.
const KEEPALIVE_MS: u32 = 600_000;
const ARENA_BYTES: usize = 16 << 20;
/// Maximum number of concurrent handshakes: fewer than may wait for the authenticator.
const CONNECT_AT_A_TIME: usize = 200;
/// A client that is told to come back later does so within this time.
const CONNECT_US_MAX: Micros = 60_000_000;
/// Twice the longest delay of an acknowledgement.
const SETTLE_US: Micros = 40_000;
/// Packets per call of the machine, as many as its driver passes at once without GRO.
const BATCH: usize = 64;
const SINK_BYTES: usize = 16 << 20;

pub struct FeedConfig {
    pub senders: usize,
    /// Size of each sealed packet.
    pub datagram_bytes: usize,
    pub seed: u64,
    /// Whether each sender has a socket; otherwise packets exist in memory only.
    pub sockets: bool,
}

struct Publisher {
    client: Client,
    publication: u32,
    addr: Addr,
}

struct Packet {
    sender: u32,
    start: usize,
    len: usize,
}

/// A datagram between two machines in memory.
pub(crate) struct Flying {
    pub from: Addr,
    pub to: Addr,
    pub bytes: Vec<u8>,
}

/// Publishers, their packets and the proxy.
pub struct Feed {
    now: Micros,
    proxy: Proxy,
    broker: Broker,
    router: Router,
    publishers: Vec<Publisher>,
    by_addr: HashMap<Addr, usize>,
    /// The order in which they send: shuffled once, so that no cache line is present by luck.
    order: Vec<u32>,
    turn: usize,
    /// Publishers from here on take part when all catch up: while more join, the earlier ones have nothing to send.
    awake: usize,
    body: Vec<u8>,
    packets: Vec<Packet>,
    sealed: Vec<u8>,
    slab: Vec<u8>,
    arrivals: Vec<Arrival>,
    /// For opening alone: the same keys as the proxy's, found as cheaply as possible.
    secrets: Vec<(Secret, KeySlots)>,
    keys: KeyCache,
    sockets: Vec<Socket>,
    sink: Socket,
    receiver: Receiver,
    sender: Sender,
    counters: Counters,
}

pub(crate) fn node_addr(port: u16) -> Addr {
    std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()
}

const PROXY_LINK: u16 = 201;
const PROXY_PUBLIC: u16 = 202;
const BROKER: u16 = 301;
const ROUTER: u16 = 401;

impl Feed {
    pub fn new(config: &FeedConfig) -> io::Result<Self> {
        let cluster = ClusterKeys {
            current: (1, [7; 32]),
            other: None,
            allow: None,
        };
        let nodes = [
            (2, role::PROXY, PROXY_LINK),
            (3, role::BROKER, BROKER),
            (4, role::ROUTER, ROUTER),
        ];
        let nodes = nodes.map(|(node, role, port)| PlacedNode::new(node, role, node_addr(port)));
        let placement = room_placement(1, nodes.to_vec(), 1, 1);
        let server_key = ServerKey::from_private([2; 32]);
        let public = server_key.public();
        let node = |number, role| NodeConfig {
            me: Identity {
                node: number,
                role,
                epoch: 1,
            },
            payload: PAYLOAD,
            cluster: cluster.clone(),
            reset_secret: [number as u8; 32],
        };
        let proxy = ProxyConfig {
            node: node(2, role::PROXY),
            name_key: [9; 16],
            server_key,
            settings: ProxySettings {
                door: DoorSettings {
                    keepalive_ms: KEEPALIVE_MS,
                    idle_timeout_ms: 4 * KEEPALIVE_MS,
                    ..DoorSettings::default()
                },
                age_every: 1_024,
                ..ProxySettings::default()
            },
        };
        let broker = BrokerConfig {
            node: node(3, role::BROKER),
            name_key: [9; 16],
            settings: BrokerSettings {
                arena_bytes: ARENA_BYTES,
                ..BrokerSettings::default()
            },
        };
        let router = RouterConfig {
            node: node(4, role::ROUTER),
            settings: RouterSettings::default(),
        };
        let plain = SocketOptions {
            receive_bytes: Some(SINK_BYTES),
            send_bytes: None,
            gro: false,
        };
        let mut feed = Feed {
            now: 1,
            proxy: Proxy::new(proxy, config.seed, Box::new(KernelEntropy)),
            broker: Broker::new(broker, config.seed, Box::new(KernelEntropy)),
            router: Router::new(router, config.seed, Box::new(KernelEntropy)),
            publishers: Vec::with_capacity(config.senders),
            by_addr: HashMap::with_capacity(config.senders),
            order: shuffled(config.senders, config.seed),
            turn: 0,
            awake: 0,
            body: Vec::new(),
            packets: Vec::new(),
            sealed: Vec::new(),
            slab: Vec::new(),
            arrivals: Vec::new(),
            secrets: Vec::with_capacity(config.senders),
            keys: KeyCache::default(),
            sockets: Vec::new(),
            sink: Socket::bind(node_addr(0), &plain)?,
            receiver: Receiver::new(false),
            sender: Sender::new(),
            counters: Counters::default(),
        };
        feed.proxy.set_placement(0, placement.clone());
        feed.broker.set_placement(0, placement.clone());
        feed.router.set_placement(0, placement);
        feed.settle();
        for first in (0..config.senders).step_by(CONNECT_AT_A_TIME) {
            for index in first..(first + CONNECT_AT_A_TIME).min(config.senders) {
                feed.add(index, &public, config)?;
            }
            let until = feed.now + CONNECT_US_MAX;
            let ready = |publisher: &Publisher| publisher.client.is_ready(Side::Proxy);
            while !feed.publishers[feed.awake..].iter().all(ready) {
                assert!(feed.now < until, "a session in memory opens");
                feed.settle();
            }
            feed.awake = feed.publishers.len();
        }
        feed.awake = 0;
        let sessions = &feed.proxy.sessions().table;
        let secrets: Vec<(Addr, Secret)> = sessions
            .slots()
            .filter_map(|slot| sessions.get(slot))
            .map(|peer| (peer.conn.addr, peer.conn.secret().clone()))
            .collect();
        for (addr, secret) in secrets {
            feed.secrets[feed.by_addr[&addr]].0 = secret;
        }
        feed.fit(config.datagram_bytes);
        // The keys were expanded in the order of sending; a different order here, or they would be adjacent in
        // memory.
        feed.order = shuffled(config.senders, !config.seed);
        Ok(feed)
    }

    fn add(&mut self, index: usize, public: &[u8; 32], config: &FeedConfig) -> io::Result<()> {
        let mut addr = own_addr(index);
        addr.port = 40_000;
        if config.sockets {
            let options = SocketOptions {
                receive_bytes: None,
                send_bytes: None,
                gro: false,
            };
            let socket = Socket::bind(own_addr(index), &options)?;
            addr = socket.local();
            self.sockets.push(socket);
        }
        let endpoint = Endpoint {
            addr: node_addr(PROXY_PUBLIC),
            key: *public,
        };
        let client = ClientConfig {
            gateways: Vec::new(),
            proxies: vec![endpoint],
            learns: [false; 2],
            credential: b"token".to_vec(),
            payload: PAYLOAD,
            inbox_bytes: 1 << 16,
            socket: 0,
        };
        let mut client = Client::new(client, config.seed.wrapping_add(index as u64), Box::new(KernelEntropy));
        let publication = client
            .publication(self.now, ROOM)
            .expect("the first of its rooms")
            .publication;
        self.by_addr.insert(addr, index);
        self.publishers.push(Publisher {
            client,
            publication,
            addr,
        });
        self.secrets.push((Secret::new([0; 16]), KeySlots::default()));
        Ok(())
    }

    /// Finds the message size that makes packets of `bytes`.
    fn fit(&mut self, bytes: usize) {
        self.body = swarm::body(bytes.saturating_sub(100).max(swarm::HEAD));
        // The first packet may carry the rest of the handshake, and a key gets its cache entry only after some use.
        for _ in 0..8 {
            self.prepare(self.publishers.len());
            let len = self.packets.last().map_or(bytes, |packet| packet.len);
            self.load();
            self.open();
            self.load();
            self.machine();
            self.settle();
            self.body = swarm::body((self.body.len() + bytes).saturating_sub(len).max(swarm::HEAD));
        }
    }

    /// Seals `count` packets, the senders taking turns in their order. Returns their number.
    pub fn prepare(&mut self, count: usize) -> usize {
        self.packets.clear();
        self.sealed.clear();
        let mut outbox = Outbox::new(false);
        for _ in 0..count {
            let sender = self.order[self.turn];
            self.turn = (self.turn + 1) % self.order.len();
            let publisher = &mut self.publishers[sender as usize];
            if publisher.client.publish(publisher.publication, &self.body, 0).is_err() {
                continue;
            }
            outbox.clear();
            publisher.client.transmit(self.now, &mut outbox);
            for parcel in outbox.parcels() {
                let bytes = outbox.bytes(parcel);
                self.packets.push(Packet {
                    sender,
                    start: self.sealed.len(),
                    len: bytes.len(),
                });
                self.sealed.extend_from_slice(bytes);
            }
        }
        self.packets.len()
    }

    /// Copies the packets back to back, to be opened in place.
    pub fn load(&mut self) {
        self.slab.clear();
        self.slab.extend_from_slice(&self.sealed);
        self.arrivals.clear();
        for packet in &self.packets {
            self.arrivals.push(Arrival {
                socket: PUBLIC_SOCKET,
                from: self.publishers[packet.sender as usize].addr,
                start: packet.start as u32,
                len: packet.len as u32,
            });
        }
    }

    /// Opens the copies with the sessions' keys: no window, no frames, no look-up of sessions.
    pub fn open(&mut self) -> usize {
        let mut opened = 0;
        for packet in &self.packets {
            let (secret, slots) = &mut self.secrets[packet.sender as usize];
            let datagram = &mut self.slab[packet.start..packet.start + packet.len];
            let Ok(header) = Header::read(datagram) else { continue };
            let (aad, sealed) = datagram.split_at_mut(HEADER);
            let len = self
                .keys
                .open(secret, slots, Direction::Initiator, header.sequence, aad, sealed);
            opened += usize::from(len.is_ok());
        }
        opened
    }

    /// The proxy takes the copies, a batch at a time. Returns how many messages it forwarded.
    pub fn machine(&mut self) -> u64 {
        let before = self.proxy.counters.messages_forwarded;
        for batch in self.arrivals.chunks(BATCH) {
            self.proxy.receive(
                self.now,
                &mut Inbox {
                    slab: &mut self.slab,
                    arrivals: batch,
                },
            );
        }
        self.proxy.counters.messages_forwarded - before
    }

    /// Sends every packet from its sender's socket to the sink.
    pub fn send(&mut self) -> io::Result<usize> {
        if self.sockets.is_empty() {
            return Err(io::Error::other("this feed has no sockets"));
        }
        let before = self.counters.sent;
        let mut outbox = Outbox::new(false);
        let to = self.sink.local();
        for index in 0..self.packets.len() {
            if outbox.room() == 0 {
                self.flush(&mut outbox);
            }
            let packet = &self.packets[index];
            let bytes = &self.sealed[packet.start..packet.start + packet.len];
            outbox.reserve(packet.len)[..packet.len].copy_from_slice(bytes);
            outbox.commit(packet.sender, to, packet.len);
        }
        self.flush(&mut outbox);
        Ok((self.counters.sent - before) as usize)
    }

    fn flush(&mut self, outbox: &mut Outbox) {
        let (sockets, counters) = (&mut self.sockets, &mut self.counters);
        self.sender
            .send(&mut Kernel, sockets, outbox, &mut Cursor::default(), counters);
        outbox.clear();
    }

    /// Drains the sink into the proxy as its driver would. Returns how many messages it forwarded.
    pub fn receive(&mut self) -> u64 {
        let before = self.proxy.counters.messages_forwarded;
        loop {
            let received =
                self.receiver
                    .receive(&mut Kernel, &self.sink, PUBLIC_SOCKET, usize::MAX, &mut self.counters);
            self.proxy.receive(self.now, &mut self.receiver.inbox());
            self.receiver.clear();
            if received.drained {
                break;
            }
        }
        self.proxy.counters.messages_forwarded - before
    }

    pub fn sink(&self) -> i32 {
        self.sink.as_fd().as_raw_fd()
    }

    /// Lets all machines catch up with one another, including delayed acknowledgements.
    pub fn settle(&mut self) {
        let until = self.now + SETTLE_US;
        while self.now < until {
            while self.exchange() {}
            self.now += 1_000;
        }
    }

    /// All machines send once. Returns whether there was anything to send.
    fn exchange(&mut self) -> bool {
        let mut net = Vec::new();
        let outbox = &mut Outbox::new(false);
        speak(
            self.now,
            &mut self.proxy,
            &[LINK, PUBLIC_SOCKET],
            &[PROXY_LINK, PROXY_PUBLIC],
            outbox,
            &mut net,
        );
        speak(self.now, &mut self.broker, &[0], &[BROKER], outbox, &mut net);
        speak(self.now, &mut self.router, &[0], &[ROUTER], outbox, &mut net);
        for publisher in &mut self.publishers[self.awake..] {
            let client = &mut publisher.client;
            if client.deadline().is_some_and(|at| at <= self.now) {
                client.expire(self.now);
            }
            outbox.clear();
            client.transmit(self.now, outbox);
            for parcel in outbox.parcels() {
                net.push(Flying {
                    from: publisher.addr,
                    to: parcel.to,
                    bytes: outbox.bytes(parcel).to_vec(),
                });
            }
        }
        let any = !net.is_empty();
        for mut datagram in net {
            let arrival = |socket| Arrival {
                socket,
                from: datagram.from,
                start: 0,
                len: datagram.bytes.len() as u32,
            };
            let arrivals = match datagram.to.port {
                PROXY_LINK => [arrival(LINK)],
                PROXY_PUBLIC => [arrival(PUBLIC_SOCKET)],
                _ => [arrival(0)],
            };
            let inbox = &mut Inbox {
                slab: &mut datagram.bytes,
                arrivals: &arrivals,
            };
            match datagram.to.port {
                PROXY_LINK | PROXY_PUBLIC => self.proxy.receive(self.now, inbox),
                BROKER => self.broker.receive(self.now, inbox),
                ROUTER => self.router.receive(self.now, inbox),
                _ => {
                    if let Some(index) = self.by_addr.get(&datagram.to) {
                        let client = &mut self.publishers[*index].client;
                        client.receive(self.now, inbox);
                        client.drain_events(&mut Vec::<ClientEvent>::new());
                    }
                }
            }
        }
        let mut questions = Vec::new();
        self.proxy.drain_events(&mut questions);
        for event in questions {
            if let ProxyEvent::Authenticate(question) = event {
                self.proxy.answer(self.now, question.id, Ok(1.into()), b"");
            }
        }
        any
    }
}

/// A machine's turn: runs due timers, and appends its datagrams to those in transit.
pub(crate) fn speak<M: Machine>(
    now: Micros,
    machine: &mut M,
    sockets: &[SocketId],
    ports: &[u16],
    outbox: &mut Outbox,
    net: &mut Vec<Flying>,
) {
    if machine.deadline().is_some_and(|at| at <= now) {
        machine.expire(now);
    }
    loop {
        outbox.clear();
        let more = machine.transmit(now, outbox);
        for (socket, port) in sockets.iter().zip(ports) {
            for parcel in outbox.parcels().iter().filter(|parcel| parcel.socket == *socket) {
                net.push(Flying {
                    from: node_addr(*port),
                    to: parcel.to,
                    bytes: outbox.bytes(parcel).to_vec(),
                });
            }
        }
        if !more || outbox.is_empty() {
            return;
        }
    }
}

/// 0..count in an order determined by the seed (Fisher and Yates, splitmix64).
fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut state = seed;
    for at in (1..count).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        order.swap(at, ((mixed ^ (mixed >> 31)) % (at as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(sockets: bool) -> Feed {
        let config = FeedConfig {
            senders: 20,
            datagram_bytes: 256,
            seed: 3,
            sockets,
        };
        Feed::new(&config).expect("sockets can be had")
    }

    #[test]
    fn every_packet_is_authentic_and_taken_once() {
        let mut feed = feed(false);
        for _ in 0..30 {
            assert_eq!(feed.prepare(200), 200);
            assert!(feed.packets.iter().all(|packet| packet.len.abs_diff(256) <= 1));
            feed.load();
            assert_eq!(feed.open(), 200);
            feed.load();
            assert_eq!(feed.machine(), 200);
            feed.load();
            assert_eq!(feed.machine(), 0, "replays");
            feed.settle();
        }
    }

    #[test]
    fn packets_come_by_sockets_too() {
        let mut feed = feed(true);
        assert_eq!(feed.prepare(100), 100);
        assert_eq!(feed.send().expect("sockets are there"), 100);
        assert_eq!(feed.receive(), 100);
    }
}
