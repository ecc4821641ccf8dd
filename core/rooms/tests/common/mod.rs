//! One real machine among peers that have valid keys and behave badly, for the hostile tests and the fuzz targets.
//!
//! Owns [`Rig`] (a machine, its clock, its datagrams), [`Peer`] (the other end of a session or link, which can seal
//! any bytes) and the entry functions of the fuzz targets. A panic of the machine is a finding.
#![allow(dead_code)]

use muster_rooms::wire::kinds;
use muster_rooms::{role, room_placement, Bounds};
use std::collections::{BTreeMap, VecDeque};

use muster_rooms::command::{Ask, CommandId, Outcome, Page};
use muster_rooms::filter::Filter;
use muster_rooms::wire::{
    write_link_question, write_link_repair, write_repair, Ack, Consumed, GapPlace, GapReason, LeftOut, LinkBlock,
    LinkHead, LinkLost, LinkPublish, Membership, Message, Passed, Positions, Publish, PublisherId, Record,
    RelayedBlock, RelayedHead, RoomBlock, Skip, StreamGap, StreamId, NUMBERED, WHOLE,
};
use muster_rooms::{
    Admitted, Broker, BrokerConfig, BrokerSettings, Client, ClientConfig, DoorSettings, Endpoint, Gateway,
    GatewayConfig, GatewayEvent, GatewaySettings, Grant, Policy, Proxy, ProxyConfig, ProxyEvent, ProxySettings,
    Retention, Rights, RoomKey, RoomName, RoomsSettings, Router, RouterConfig, RouterSettings,
};
use muster_transport::{
    append, prologue, respond, Addr, AllowList, Arrival, ClusterKeys, Code, Conn, ControlRecord, DatagramKind, Demand,
    Denied, Dice, Door, DoorKey, Encode, Entropy, FrameKind, Frames, HasLinks, HasSessions, Header, Identity, Inbox,
    InitiatorKey, KeyCache, Knock, Links, Listed, Machine, Micros, NodeConfig, Outbox, PlacedNode, Placement, Reader,
    Records, ResetSecret, ResponderKey, Role, Scope, Server, ServerKey, SocketId, Stamp, Status, Versions, Wants,
    Writer, HEADER, LINK_SOCKET, PUBLIC_SOCKET, VERSION,
};

pub const PAYLOAD: usize = 1200;
pub const NAME_KEY: [u8; 16] = [9; 16];
pub const ROOM: &str = "sports:final";
pub const OWN: u16 = 100;
pub const EPOCH: u32 = 1000;
/// Numbers of the simulated nodes.
pub const GATEWAY: u32 = 1;
pub const PROXY: u32 = 2;
pub const BROKER: u32 = 3;
pub const ROUTER: u32 = 4;

pub struct Seeded(pub Dice);

impl Entropy for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.roll() as u8);
    }
}

/// A user's command to the room that all have joined.
pub fn go(number: u64) -> Record<'static> {
    Record::Command {
        number,
        name: ROOM.as_bytes(),
        left_ms: 5_000,
        ask: Ask::tell(b"go"),
    }
}

pub fn entropy(seed: u64) -> Box<dyn Entropy> {
    Box::new(Seeded(Dice::new(seed)))
}

pub fn addr(port: u16) -> Addr {
    std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()
}

/// An address in a network of its own, with its own port.
pub fn stranger(number: u32) -> Addr {
    let [a, b, c, d] = number.wrapping_add(1).to_be_bytes();
    std::net::SocketAddr::from(([a | 32, b, c, d], 7)).into()
}

pub fn cluster() -> ClusterKeys {
    ClusterKeys {
        current: (1, [7; 32]),
        other: None,
        allow: None,
    }
}

pub fn server_key() -> ServerKey {
    ServerKey::from_private([1; 32])
}

/// The key with which a node proves its identity.
pub fn node_key(node: u32) -> ServerKey {
    ServerKey::from_private([node as u8 + 100; 32])
}

/// The simulated nodes' numbers, each with its role.
pub const NODES: [(u32, Role); 4] = [
    (GATEWAY, role::GATEWAY),
    (PROXY, role::PROXY),
    (BROKER, role::BROKER),
    (ROUTER, role::ROUTER),
];

/// The keys for links of node `own`, with these nodes on the list.
pub fn listed(demand: Demand, own: u32, nodes: &[(u32, Role)]) -> ClusterKeys {
    let line = |(node, role): &(u32, Role)| {
        let (role, key) = (*role, node_key(*node).public());
        (*node, Listed { role, key })
    };
    let nodes = nodes.iter().map(line).collect();
    let own = node_key(own);
    let allow = Some(AllowList { own, nodes, demand });
    ClusterKeys { allow, ..cluster() }
}

pub fn room_key(name: &str) -> RoomKey {
    RoomName::parse(name).unwrap().key(&NAME_KEY)
}

pub fn room_id(name: &str) -> u64 {
    room_key(name).id
}

/// A gateway's membership report of the room.
pub fn membership(version: u64, present: bool) -> Membership {
    Membership {
        present,
        ..membership_of(ROOM, version)
    }
}

/// A room that is wanted.
pub fn membership_of(name: &str, version: u64) -> Membership {
    let RoomKey { id: room, check } = room_key(name);
    Membership {
        room,
        check,
        version,
        present: true,
    }
}

pub fn placement() -> Placement {
    let nodes = [
        (GATEWAY, role::GATEWAY),
        (PROXY, role::PROXY),
        (BROKER, role::BROKER),
        (ROUTER, role::ROUTER),
    ];
    let nodes = nodes.map(|(node, role)| PlacedNode::new(node, role, addr(9000 + node as u16)));
    room_placement(1, nodes.to_vec(), 1, 1)
}

pub fn identity(node: u32, role: Role) -> Identity {
    Identity {
        node,
        role,
        epoch: EPOCH,
    }
}

/// Most tests use sessions of a single user.
const UNBOUNDED: Bounds = Bounds {
    sessions: u32::MAX,
    places: u32::MAX,
    messages: 0,
    bytes: 0,
};

/// The user that the tests' authenticator returns: one with all rights, also by number, or one with these rights in
/// rooms of `sports`.
pub fn user_of(credential: &[u8]) -> Result<Admitted, Denied> {
    if let Some(words) = credential.strip_prefix(b"sports:*=") {
        let words = std::str::from_utf8(words).expect("words");
        let grant = Grant::new([("sports:*", Rights::of(words.split(',')))]).expect("a pattern");
        let admission = 43.into();
        return Ok(Admitted { admission, grant });
    }
    if let Some(number) = credential.strip_prefix(b"user ") {
        let number = std::str::from_utf8(number).expect("a number");
        return Ok(number.parse::<u64>().expect("a number").into());
    }
    match credential {
        b"token" => Ok(42.into()),
        b"no right" => Err(Denied::Right),
        _ => Err(Denied::Credential),
    }
}

/// The tests' view of a role.
pub trait Subject: Machine + Sized {
    const ROLE: Role;
    fn build(seed: u64) -> Self;
    /// Answers the machine's questions to the control plane: every credential belongs to user 42.
    fn authenticate(&mut self, now: Micros);
    /// A digest of the state that may not change without authority.
    fn digest(&self) -> String;
    /// Calls `each` with every counter.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));
    /// Its links to other nodes. A client has none.
    fn links_of(&self) -> &Links {
        unreachable!("clients have no links")
    }
    /// Replaces the secrets, or the list of nodes.
    fn take_cluster(&mut self, _now: Micros, _keys: ClusterKeys) {
        unreachable!("clients have no links")
    }
    /// Adds the peers that the role needs, and some state.
    fn settle(rig: &mut Rig<Self>);
}

/// The sum of the counters of dropped or refused data.
pub fn refused<M: Subject>(machine: &M) -> u64 {
    let mut sum = 0;
    machine.counters(&mut |name, value| {
        if [
            "dropped",
            "refused",
            "withheld",
            "cookies",
            "duplicate",
            "unknown",
            "resets",
        ]
        .iter()
        .any(|part| name.contains(part))
        {
            sum += value;
        }
    });
    sum
}

pub fn counter<M: Subject>(machine: &M, wanted: &str) -> u64 {
    let mut found = None;
    machine.counters(&mut |name, value| {
        if name == wanted {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("no counter {wanted}"))
}

/// The other end of a session or a link.
pub struct Peer {
    pub conn: Conn<128>,
    pub addr: Addr,
    pub socket: SocketId,
    pub role: Role,
    keys: KeyCache,
    /// Frames received, newest last; old ones are dropped.
    pub got: VecDeque<(FrameKind, Vec<u8>)>,
    records: Vec<Vec<u8>>,
    /// Whether it acknowledges datagrams.
    pub polite: bool,
    /// Whether datagrams to it are lost.
    pub deaf: bool,
    pub last: Vec<u8>,
    pub received: u64,
    counts: [usize; 64],
    /// Number of frames with a flag.
    pub flagged: usize,
}

impl Peer {
    /// Seals any plaintext.
    pub fn seal(&mut self, now: Micros, plaintext: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; HEADER + plaintext.len() + 16];
        buffer[HEADER..HEADER + plaintext.len()].copy_from_slice(plaintext);
        let stamp = Stamp {
            epoch: EPOCH,
            placement: 1,
        };
        let len = self.conn.seal(
            now,
            &mut self.keys,
            stamp,
            &mut buffer,
            plaintext.len(),
            Wants::Nothing,
            0,
        );
        buffer.truncate(len);
        self.last = buffer.clone();
        buffer
    }

    /// Takes the records received from its control log.
    pub fn take_records(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.records)
    }

    pub fn frames(&self, kind: FrameKind) -> usize {
        self.counts[usize::from(kind.code())]
    }
}

/// Bytes received from and sent to an address.
#[derive(Clone, Copy, Default, Debug)]
pub struct Account {
    pub received: u64,
    pub sent: u64,
}

pub struct Rig<M: Subject> {
    pub machine: M,
    pub now: Micros,
    pub peers: Vec<Peer>,
    pub accounts: BTreeMap<Addr, Account>,
    /// Datagrams for addresses that belong to no peer.
    pub out: VecDeque<(Addr, Vec<u8>)>,
    outbox: Outbox,
    entropy: Seeded,
    /// Datagrams sent in the last turn.
    pub left: usize,
    /// The keys with which peers prove their identities when they link, if they do.
    pub proof: Option<fn(u32) -> ServerKey>,
    /// A modification of their hellos in transit.
    pub touch: fn(&mut [u8]),
    /// The clients' statement in their hellos; empty: that of the first release.
    pub offer: Vec<u8>,
    /// What the client's servers reply to its statement.
    pub says: fn(&[u8]) -> Vec<u8>,
}

/// A gateway with a broker's link (peer 0) and a router's (peer 1).
pub fn linked_gateway() -> Rig<Gateway> {
    let mut rig = Rig::<Gateway>::bare();
    rig.link(BROKER, role::BROKER);
    rig.link(ROUTER, role::ROUTER);
    rig
}

impl<M: Subject> Rig<M> {
    pub fn bare() -> Self {
        Rig {
            machine: M::build(1),
            now: 1_000_000,
            peers: Vec::new(),
            accounts: BTreeMap::new(),
            out: VecDeque::new(),
            outbox: Outbox::new(false),
            entropy: Seeded(Dice::new(77)),
            left: 0,
            proof: None,
            touch: |_| {},
            offer: Vec::new(),
            says: |_| Vec::new(),
        }
    }

    /// A rig in which every node must prove its identity, and those that the role knows have done so.
    pub fn identified() -> Self {
        let mut rig = Rig::bare();
        rig.know(&NODES);
        rig.proof = Some(node_key);
        M::settle(&mut rig);
        rig
    }

    /// Sets the list to exactly these nodes.
    pub fn know(&mut self, nodes: &[(u32, Role)]) {
        let own = NODES.iter().find(|(_, role)| *role == M::ROLE).map(|(node, _)| *node);
        let keys = listed(Demand::Required, own.expect("a node"), nodes);
        self.machine.take_cluster(self.now, keys);
    }

    pub fn new() -> Self {
        let mut rig = Rig::bare();
        M::settle(&mut rig);
        rig
    }

    pub fn give(&mut self, socket: SocketId, from: Addr, bytes: &[u8]) {
        let mut slab = bytes.to_vec();
        let arrival = Arrival {
            socket,
            from,
            start: 0,
            len: slab.len() as u32,
        };
        self.accounts.entry(from).or_default().received += slab.len() as u64;
        let mut inbox = Inbox {
            slab: &mut slab,
            arrivals: &[arrival],
        };
        self.machine.receive(self.now, &mut inbox);
    }

    /// Runs the machine, and delivers its datagrams to its peers.
    pub fn turn(&mut self) {
        self.machine.authenticate(self.now);
        if self.machine.deadline().is_some_and(|at| at <= self.now) {
            self.machine.expire(self.now);
        }
        let mut events = Vec::new();
        self.machine.drain_events(&mut events);
        self.left = 0;
        for _ in 0..64 {
            self.outbox.clear();
            let more = self.machine.transmit(self.now, &mut self.outbox);
            let mut sent = Vec::new();
            for parcel in self.outbox.parcels() {
                let bytes = self.outbox.bytes(parcel);
                sent.extend(
                    bytes
                        .chunks(parcel.segment as usize)
                        .map(|one| (parcel.to, one.to_vec())),
                );
            }
            self.left += sent.len();
            for (to, bytes) in sent {
                self.accounts.entry(to).or_default().sent += bytes.len() as u64;
                self.hear(to, bytes);
            }
            if !more {
                break;
            }
        }
        for at in 0..self.peers.len() {
            if self.peers[at].polite && self.peers[at].conn.control_due(self.now) {
                self.outbox.clear();
                let (now, peer) = (self.now, &mut self.peers[at]);
                let stamp = Stamp {
                    epoch: EPOCH,
                    placement: 1,
                };
                peer.conn
                    .send_control(now, &mut peer.keys, stamp, &mut self.outbox, PAYLOAD);
                let (socket, from) = (peer.socket, peer.addr);
                let sent: Vec<Vec<u8>> = self
                    .outbox
                    .parcels()
                    .iter()
                    .map(|one| self.outbox.bytes(one).to_vec())
                    .collect();
                sent.iter().for_each(|bytes| self.give(socket, from, bytes));
            }
        }
    }

    fn hear(&mut self, to: Addr, mut bytes: Vec<u8>) {
        let Ok(header) = Header::read(&bytes) else {
            panic!("the machine sent a datagram without a header")
        };
        let found = self
            .peers
            .iter_mut()
            .find(|peer| header.kind == DatagramKind::Data && peer.conn.id == header.connection);
        let Some(peer) = found else {
            self.out.push_back((to, bytes));
            if self.out.len() > 256 {
                self.out.pop_front();
            }
            return;
        };
        if peer.deaf {
            return;
        }
        let Ok(len) = peer.conn.open(self.now, &mut peer.keys, &header, &mut bytes) else {
            return;
        };
        peer.received += 1;
        let mut elicits = false;
        for frame in Frames::new(&bytes[HEADER..HEADER + len], kinds::ALL) {
            let frame = frame.expect("our own frames are well formed");
            elicits |= kinds::ALL.elicits(frame.kind);
            peer.counts[usize::from(frame.kind.code())] += 1;
            peer.flagged += usize::from(frame.flags != 0);
            peer.got.push_back((frame.kind, frame.body.to_vec()));
            if peer.got.len() > 512 {
                peer.got.pop_front();
            }
            let mut records = Records::default();
            peer.conn.control_frame(self.now, &frame, &mut records);
            peer.records.extend(records.iter().map(<[u8]>::to_vec));
        }
        if elicits {
            peer.conn.elicited(self.now);
        }
    }

    /// Runs in steps of `step` until `until`.
    pub fn pass(&mut self, time: Micros, step: Micros) {
        let end = self.now + time;
        while self.now < end {
            self.now += step.min(end - self.now);
            self.turn();
        }
    }

    /// Sends a plaintext sealed by a peer.
    pub fn say(&mut self, peer: usize, plaintext: &[u8]) {
        let bytes = self.peers[peer].seal(self.now, plaintext);
        let (socket, from) = (self.peers[peer].socket, self.peers[peer].addr);
        self.give(socket, from, &bytes);
    }

    /// Sends one frame.
    pub fn frame(&mut self, peer: usize, kind: u8, body: &[u8]) {
        let mut bytes = vec![kind, 0];
        bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(body);
        self.say(peer, &bytes);
    }

    /// Appends a record to the peer's control log and sends it.
    pub fn record(&mut self, peer: usize, bytes: &[u8]) {
        if self.peers[peer].conn.log.push(bytes).is_err() {
            return;
        }
        let last = self.peers[peer].conn.log.last();
        let mut body = last.to_le_bytes().to_vec();
        body.extend_from_slice(&1u16.to_le_bytes());
        body.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        body.extend_from_slice(bytes);
        self.frame(peer, FrameKind::LOG.code(), &body);
        // It arrived at once: the peer need not repeat it.
        let mut scratch = [0; 1500];
        while self.peers[peer]
            .conn
            .log
            .next_frame(self.now, 1, 0, &mut scratch)
            .is_some()
        {}
        self.peers[peer].conn.log.acknowledge(last);
    }

    pub fn tell(&mut self, peer: usize, record: &Record<'_>) {
        record.encode(|bytes| self.record(peer, bytes));
    }

    /// A client's hello with the machine's cookie, and its source address.
    pub fn at_the_door(&mut self, number: u32) -> (Addr, Vec<u8>) {
        let (from, key) = (stranger(number), server_key().public());
        let id = u64::from(number) << 32;
        let mut knock = Knock::new(id, InitiatorKey::Client(&key), 0, &[], &mut self.entropy);
        let hello = |outbox: &mut Outbox, knock: &mut Knock| {
            outbox.clear();
            knock.hello(PUBLIC_SOCKET, addr(OWN), PAYLOAD, outbox);
            outbox.bytes(&outbox.parcels()[0]).to_vec()
        };
        let first = hello(&mut self.outbox, &mut knock);
        self.give(PUBLIC_SOCKET, from, &first);
        self.turn();
        let cookie = self.out.iter().rev().find(|(to, _)| *to == from);
        assert!(knock.cookie(&cookie.expect("a cookie").1));
        (from, hello(&mut self.outbox, &mut knock))
    }

    /// Opens a session or link to the machine; `None` if it was refused.
    pub fn connect(&mut self, socket: SocketId, from: Addr, me: Identity) -> Option<usize> {
        let id = u64::from_le_bytes({
            let mut bytes = [0; 8];
            self.entropy.fill(&mut bytes);
            bytes
        });
        let (server, cluster) = (server_key().public(), cluster());
        let payload = me.to_bytes();
        let mut knock = if socket == PUBLIC_SOCKET {
            Knock::new(id, InitiatorKey::Client(&server), 0, &self.offer, &mut self.entropy)
        } else {
            let (key_id, secret) = &cluster.current;
            let mine = self.proof.map(|key| key(me.node));
            let other = NODES.iter().find(|(_, role)| *role == M::ROLE);
            match mine.as_ref().zip(other) {
                Some((own, (node, role))) => {
                    let (peer, role) = (&node_key(*node).public(), *role);
                    let key = InitiatorKey::Node { secret, own, peer };
                    let line = Listed { role, key: *peer };
                    Knock::new(id, key, *key_id, &payload, &mut self.entropy).of_node(me.node, secret, line)
                }
                None => Knock::new(id, InitiatorKey::Link(secret), *key_id, &payload, &mut self.entropy),
            }
        };
        for _ in 0..4 {
            self.outbox.clear();
            knock.hello(socket, addr(OWN), PAYLOAD, &mut self.outbox);
            let mut hello = self.outbox.bytes(&self.outbox.parcels()[0]).to_vec();
            (self.touch)(&mut hello);
            self.give(socket, from, &hello);
            self.turn();
            while let Some((to, bytes)) = self.out.pop_front() {
                let header = Header::read(&bytes).unwrap();
                if to != from || header.connection != id {
                    continue;
                }
                match header.kind {
                    DatagramKind::Cookie => seen(knock.cookie(&bytes)),
                    DatagramKind::Accept => {
                        let opened = knock.accept(&bytes)?;
                        let conn = Conn::new(
                            id,
                            opened.peer,
                            socket,
                            addr(OWN),
                            opened.secret,
                            true,
                            u8::from(socket == LINK_SOCKET),
                            1 << 20,
                            self.now,
                        );
                        return Some(self.enrol(conn, from, socket, me.role));
                    }
                    _ => {}
                }
            }
            self.now += 1_000;
        }
        None
    }

    fn enrol(&mut self, mut conn: Conn<128>, from: Addr, socket: SocketId, role: Role) -> usize {
        conn.receive_window = 4 << 20;
        self.peers.push(Peer {
            conn,
            addr: from,
            socket,
            role,
            keys: KeyCache::default(),
            got: VecDeque::new(),
            records: Vec::new(),
            polite: true,
            deaf: false,
            last: Vec::new(),
            received: 0,
            counts: [0; 64],
            flagged: 0,
        });
        let at = self.peers.len() - 1;
        self.frame(at, FrameKind::PING.code(), &[]);
        self.turn();
        at
    }

    /// Links a node to the machine.
    pub fn link(&mut self, node: u32, role: Role) -> usize {
        self.connect(LINK_SOCKET, addr(9000 + node as u16), identity(node, role))
            .expect("a node with the secret is let in")
    }

    /// Links a node in its next life.
    pub fn link_again(&mut self, node: u32, role: Role) -> usize {
        let epoch = EPOCH + 1;
        let me = Identity {
            epoch,
            ..identity(node, role)
        };
        self.connect(LINK_SOCKET, addr(9000 + node as u16), me)
            .expect("a node with the secret is let in")
    }

    /// A session that has shown no credential.
    pub fn unknown(&mut self, number: u32) -> usize {
        let me = identity(0, Role::CLIENT);
        self.connect(PUBLIC_SOCKET, stranger(number), me)
            .expect("a client is let in")
    }

    /// An authenticated session.
    pub fn session(&mut self, number: u32) -> usize {
        self.session_of(number, b"token")
    }

    /// A session opened by a credential.
    pub fn session_of(&mut self, number: u32, credential: &[u8]) -> usize {
        let at = self.unknown(number);
        self.show(at, credential);
        at
    }

    /// A session shows a credential.
    pub fn show(&mut self, at: usize, credential: &[u8]) {
        self.tell(at, &Record::Control(ControlRecord::Authenticate { credential }));
        self.turn();
        self.turn();
    }

    pub fn join(&mut self, peer: usize, request: u32, name: &str, positions: Positions) {
        self.tell(
            peer,
            &Record::Join {
                request,
                name: name.as_bytes(),
                positions,
                history: 0,
            },
        );
        self.turn();
    }
}

// ---- frames as peers write them

pub fn body(write: impl FnOnce(&mut Writer<'_>) -> bool) -> Vec<u8> {
    let mut bytes = [0; 1_400];
    let mut writer = Writer::new(&mut bytes);
    assert!(write(&mut writer), "the sample fits");
    let len = writer.len();
    bytes[..len].to_vec()
}

pub fn stream(generation: u32) -> StreamId {
    StreamId {
        node: BROKER,
        epoch: EPOCH,
        generation,
    }
}

pub const PUBLISHER: PublisherId = PublisherId {
    user: 42,
    incarnation: 5,
};

pub fn message(sequence: u64, data: &[u8]) -> Message<'_> {
    Message {
        publisher: PUBLISHER,
        sequence,
        flags: WHOLE,
        data,
    }
}

/// A broker's block of messages from `offset` on.
pub fn link_room(generation: u32, offset: u64, data: &[&[u8]]) -> Vec<u8> {
    link_room_of(ROOM, generation, offset, data)
}

pub fn link_room_of(name: &str, generation: u32, offset: u64, data: &[&[u8]]) -> Vec<u8> {
    body(|writer| {
        append(writer, kinds::LINK_ROOM, 0, |writer| {
            let mut block = LinkBlock::begin(writer, room_id(name), generation, 1, offset, None);
            for (at, data) in data.iter().enumerate() {
                block.push(writer, &message(offset + at as u64, data));
            }
            block.finish(writer) > 0
        })
    })
}

/// A broker's block as a gateway passes it on.
pub fn relayed(block: &[u8]) -> Vec<u8> {
    let frame = Frames::new(block, kinds::ALL).next().expect("a frame").expect("good");
    RelayedBlock::of(&frame, (BROKER, EPOCH), 0).expect("a block").into()
}

/// A proxy's publish frame.
pub fn link_publish(incarnation: u64, low: u64, first: u64, data: &[&[u8]]) -> Vec<u8> {
    link_publish_of(42, incarnation, low, first, data)
}

pub fn link_publish_of(user: u64, incarnation: u64, low: u64, first: u64, data: &[&[u8]]) -> Vec<u8> {
    link_publish_in(ROOM, PublisherId { user, incarnation }, low, first, data)
}

pub fn link_publish_in(room: &str, publisher: PublisherId, low: u64, first: u64, data: &[&[u8]]) -> Vec<u8> {
    link_publish_from(0, room, publisher, low, first, data)
}

/// As [`link_publish`], with the proxy's number of the room's namespace.
pub fn link_publish_from(
    namespace: u8,
    room: &str,
    publisher: PublisherId,
    low: u64,
    first: u64,
    data: &[&[u8]],
) -> Vec<u8> {
    let messages = messages(data);
    body(|writer| {
        LinkPublish {
            room: room_id(room),
            check: room_key(room).check,
            publisher,
            session: 7,
            handle: 0,
            sent_at: 1,
            low,
            first,
            count: data.len() as u8,
            messages: &messages,
            detour: false,
            age: None,
            namespace,
        }
        .write(writer)
    })
}

pub fn messages(data: &[&[u8]]) -> Vec<u8> {
    let mut messages = Vec::new();
    for data in data {
        messages.extend_from_slice(&(data.len() as u16).to_le_bytes());
        messages.push(WHOLE);
        messages.extend_from_slice(data);
    }
    messages
}

/// A client's publish frame.
pub fn publish(handle: u32, low: u64, first: u64, data: &[&[u8]]) -> Vec<u8> {
    let messages = messages(data);
    body(|writer| {
        Publish {
            handle,
            sent_at: 1,
            low,
            first,
            count: data.len() as u8,
            messages: &messages,
        }
        .write(writer)
    })
}

/// At least one valid frame of every kind except [`FrameKind::LOG`], about the state that `settle` makes.
pub fn sample_frames() -> Vec<Vec<u8>> {
    let room = room_id(ROOM);
    let place = muster_rooms::FIRST_PLACE;
    let plain =
        |kind: FrameKind, bytes: Vec<u8>| body(|writer| append(writer, kind, 0, |writer| !writer.put(&bytes).full()));
    let ack = Ack {
        handle: 0,
        echo: 1,
        code: Code::Ok,
        cumulative: 1,
        highest: 3,
        credit_messages: 256,
        credit_bytes: 1 << 18,
        stream: stream(1),
        missing: vec![(2, 2)],
        runs: vec![(1, 1, 1)],
    };
    let passed = Passed {
        handle: 0,
        index: place,
        stream: stream(1),
        offset: 1,
        count: 2,
    };
    let left = LeftOut {
        handle: 0,
        index: place,
        end: place + 3,
        resume: vec![(stream(1), 4)],
    };
    vec![
        body(|writer| {
            Status {
                highest: 3,
                received: 3,
                delay: 10,
                window: 100_000,
                missing: [(2, 2), (1, 1), (0, 0), (0, 0)],
                missing_len: 2,
            }
            .write(writer)
        }),
        plain(FrameKind::LOG_ACK, 2u64.to_le_bytes().to_vec()),
        plain(FrameKind::PING, vec![]),
        plain(FrameKind::PATH_CHALLENGE, vec![1; 8]),
        plain(FrameKind::PATH_RESPONSE, vec![1; 8]),
        body(|writer| {
            append(writer, kinds::ROOM, 0, |writer| {
                let mut block = RoomBlock::begin(writer, 0, place, stream(1), 1, None);
                block.push(writer, &message(1, b"one"));
                block.push(writer, &message(2, b"two"));
                block.finish(writer) > 0
            })
        }),
        body(|writer| {
            append(writer, kinds::AGED_MEMBER_ROOM, 0, |writer| {
                let mut block = RoomBlock::begin(writer, 0, place, stream(1), 1, Some(9));
                block.push(writer, &message(1, b"one"));
                block.finish(writer) > 0
            })
        }),
        body(|writer| {
            GapPlace {
                handle: 0,
                index: place + 2,
                gap: StreamGap {
                    stream: stream(1),
                    first: 3,
                    last: 4,
                    reason: GapReason::Unrepaired,
                },
            }
            .write(writer)
        }),
        body(|writer| passed.write(writer)),
        body(|writer| left.write(writer)),
        body(|writer| {
            Skip {
                handle: 0,
                index: place + 9,
                reason: GapReason::Slow,
                resume: vec![(stream(1), 11)],
            }
            .write(writer)
        }),
        plain(
            kinds::HEADS,
            [&0u32.to_le_bytes()[..], &(place + 5).to_le_bytes()].concat(),
        ),
        body(|writer| write_repair(writer, 0, place, &[(place, place), (place + 1, place + 3)])),
        link_room(1, 1, &[b"one", b"two"]),
        link_room(1, 5, &[b"five"]),
        body(|writer| {
            append(writer, kinds::LINK_HEADS, 0, |writer| {
                LinkHead {
                    room,
                    generation: 1,
                    base: 1,
                    next: 4,
                }
                .write(writer);
                true
            })
        }),
        body(|writer| {
            append(writer, kinds::LINK_HEADS, NUMBERED, |writer| {
                LinkHead {
                    room,
                    generation: 1,
                    base: 1,
                    next: 4,
                }
                .write(writer);
                true
            })
        }),
        relayed(&link_room(1, 1, &[b"one", b"two"])),
        relayed(&link_room(1, 5, &[b"five"])),
        body(|writer| {
            append(writer, kinds::RELAYED_HEADS, 0, |writer| {
                RelayedHead {
                    room,
                    stream: stream(1),
                    next: 9,
                }
                .write(writer);
                true
            })
        }),
        body(|writer| write_link_repair(writer, room, 1, false, &[(1, 1), (2, 5)])),
        body(|writer| write_link_question(writer, room, 1)),
        body(|writer| {
            LinkLost {
                room,
                generation: 1,
                first: 3,
            }
            .write(writer)
        }),
        body(|writer| {
            append(writer, kinds::CONSUMED, 0, |writer| {
                Consumed {
                    room,
                    generation: 1,
                    next: 2,
                    kept: 1,
                }
                .write(writer);
                true
            })
        }),
        publish(0, 1, 1, &[b"one", b"two"]),
        publish(0, 1, 4, &[b"four"]),
        link_publish(5, 1, 1, &[b"one", b"two"]),
        link_publish(5, 1, 4, &[b"four"]),
        body(|writer| ack.write_link(writer, 7)),
        body(|writer| ack.write(writer)),
        plain(FrameKind::CLOSE, vec![0]),
    ]
}

/// A valid record of every kind.
pub fn sample_records() -> Vec<Vec<u8>> {
    let room = room_id(ROOM);
    let (node, epoch, scope) = (GATEWAY, EPOCH, Scope::ALL);
    let command = CommandId { user: 1, number: 6 };
    let page = Page::of([1, 2].into_iter());
    let gap = StreamGap {
        stream: stream(1),
        first: 1,
        last: 4,
        reason: GapReason::Expired,
    };
    let filter = Filter::latest([("pair", vec!["EUR", "USD"])], 2, Some(100)).expect("a good filter");
    let records = [
        Record::Control(ControlRecord::Authenticate { credential: b"token" }),
        Record::Filter { request: 9, filter },
        Record::Join {
            request: 9,
            name: ROOM.as_bytes(),
            positions: Positions::at([(stream(1), 1)]),
            history: 100,
        },
        Record::Leave { handle: 0 },
        Record::Ages,
        Record::Headers,
        Record::Close { handle: 0 },
        Record::Open {
            request: 9,
            name: ROOM.as_bytes(),
            incarnation: 5,
        },
        Record::Control(ControlRecord::Ready {
            user: 42,
            token: [6; 16],
            keepalive_ms: 1000,
        }),
        Record::Control(ControlRecord::Pace {
            backoff_ms: 100,
            backoff_max_ms: 0,
        }),
        Record::Control(ControlRecord::Lease { left_ms: 900_000 }),
        Record::Control(ControlRecord::Servers {
            role: role::PROXY,
            servers: vec![Server {
                addr: addr(9002),
                key: server_key().public(),
                weight: 1,
            }],
        }),
        Record::Control(ControlRecord::Refused {
            request: 1,
            code: Code::RateLimited,
            retry_ms: 9,
        }),
        Record::Control(ControlRecord::Refused {
            request: 0,
            code: Code::Busy,
            retry_ms: 9,
        }),
        Record::Joined {
            request: 1,
            handle: 0,
            index: 1 << 32,
            start: Positions::at([(stream(1), 4)]),
            heads: vec![6],
            gaps: vec![gap],
            history: 2,
            whole: true,
        },
        Record::Opened { request: 2, handle: 0 },
        Record::SnapshotBegin { scope, version: 5 },
        Record::Membership(membership(6, true)),
        Record::Membership(membership(7, false)),
        Record::SnapshotEnd { scope, version: 5 },
        Record::Covered { offset: 3 },
        Record::GatewayBegin {
            node,
            epoch,
            scope,
            version: 5,
        },
        Record::GatewayMembership {
            node,
            epoch,
            membership: membership(6, true),
        },
        Record::Relays,
        Record::RelayTaken { room, node, on: true },
        Record::RelayedBy {
            room,
            node: 51,
            role: role::GATEWAY.code(),
            addr: addr(9051),
        },
        Record::RelayAsked {
            room,
            broker: BROKER,
            on: true,
        },
        Record::RelayAnswer {
            room,
            broker: BROKER,
            on: true,
        },
        Record::RoomRefused {
            room,
            code: Code::NameCollision,
        },
        Record::GatewayEnd {
            node,
            epoch,
            scope,
            version: 5,
        },
        Record::GatewayGone { node, epoch, scope },
        Record::Complete { scope },
        Record::Subscribe { scope },
        Record::Unsubscribe,
        Record::GatewaySeen { node, up: true },
        Record::GatewaySeen { node, up: false },
        Record::BrokerTold { node, told: true },
        Record::BrokerTold { node, told: false },
        Record::Control(ControlRecord::LinkReady { token: [3; 16] }),
        Record::Command {
            number: 6,
            name: ROOM.as_bytes(),
            left_ms: 5_000,
            ask: Ask::tell(b"go"),
        },
        Record::CommandDone {
            number: 6,
            outcome: Outcome::of(2),
            retry_ms: 0,
            page: None,
        },
        Record::Command {
            number: 7,
            name: ROOM.as_bytes(),
            left_ms: 1_000,
            ask: Ask::Count { from: Some(1) },
        },
        Record::CommandDone {
            number: 7,
            outcome: Outcome::of(2),
            retry_ms: 0,
            page: Some(page.clone()),
        },
        Record::CommandTold {
            handle: 0,
            command,
            data: b"go",
        },
        Record::CommandTaken { command, taken: true },
        Record::LinkCommand {
            command,
            session: 7,
            room,
            check: 8,
            left_ms: 5_000,
            ask: Ask::tell(b"go"),
        },
        Record::LinkCommandDone {
            command,
            session: 7,
            outcome: Outcome::expired(1),
            page: None,
        },
        Record::LinkCommand {
            command,
            session: 7,
            room,
            check: 8,
            left_ms: 1_000,
            ask: Ask::Count { from: None },
        },
        Record::LinkCommandDone {
            command,
            session: 7,
            outcome: Outcome::of(2),
            page: Some(page),
        },
    ];
    records.iter().map(|record| record.encode(<[u8]>::to_vec)).collect()
}

/// The kind of the only frame in `bytes`, and its body.
pub fn split_frame(bytes: &[u8]) -> (u8, &[u8]) {
    (bytes[0], &bytes[4..])
}

/// A mutation of `bytes`: numbers made extreme, bits flipped, cut, stretched.
pub fn mutate(dice: &mut Dice, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len() as u64 + 1) as usize;
        let extremes = [
            0,
            1,
            u64::MAX,
            u64::MAX - 1,
            1 << 63,
            1 << 62,
            (1 << 62) + 1,
            1 << 32,
            1 << 31,
            65_535,
            256,
        ];
        let number = extremes[dice.below(extremes.len() as u64) as usize].to_le_bytes();
        match dice.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => bytes[at] = dice.roll() as u8,
            2 => bytes.truncate(at),
            3 => bytes.extend((0..dice.below(40)).map(|_| dice.roll() as u8).collect::<Vec<_>>()),
            4 => number[..4]
                .iter()
                .zip(bytes.iter_mut().skip(at))
                .for_each(|(new, old)| *old = *new),
            _ => number
                .iter()
                .zip(bytes.iter_mut().skip(at))
                .for_each(|(new, old)| *old = *new),
        }
    }
    bytes.truncate(4_000);
    bytes
}

// ---- the five roles

fn sessions_digest<T: Default>(sessions: &muster_transport::Sessions<T>) -> (usize, usize) {
    let open = sessions
        .table
        .slots()
        .filter(|slot| sessions.table.get(*slot).is_some_and(|peer| peer.data.is_open()));
    (sessions.table.len(), open.count())
}

/// How a node of a rig is set up.
pub fn node_config(node: u32, role: Role, reset: u8) -> NodeConfig {
    NodeConfig {
        me: identity(node, role),
        payload: PAYLOAD,
        cluster: cluster(),
        reset_secret: [reset; 32],
    }
}

fn door() -> DoorSettings {
    DoorSettings {
        keepalive_ms: 1_000,
        idle_timeout_ms: 10_000,
        ..DoorSettings::default()
    }
}

impl Subject for Gateway {
    const ROLE: Role = role::GATEWAY;

    fn build(seed: u64) -> Self {
        let rooms = RoomsSettings {
            namespaces: vec![kept()],
            paced_namespaces: vec!["paced".into()],
            ..RoomsSettings::default()
        };
        let config = GatewayConfig {
            node: node_config(GATEWAY, role::GATEWAY, 3),
            name_key: NAME_KEY,
            server_key: server_key(),
            settings: GatewaySettings { door: door(), rooms },
        };
        let mut gateway = Gateway::new(config, seed, entropy(seed));
        gateway.set_placement(1_000_000, placement());
        gateway.set_bounds(UNBOUNDED);
        gateway
    }

    fn authenticate(&mut self, now: Micros) {
        let mut events = Vec::new();
        self.drain_events(&mut events);
        for event in events {
            if let GatewayEvent::Authenticate(question) = event {
                self.answer(now, question.id, user_of(&question.credential), b"");
            }
        }
    }

    fn digest(&self) -> String {
        let rooms: Vec<_> = self
            .rooms()
            .map(|room| {
                (
                    room.id,
                    room.ring.next(),
                    room.members.len(),
                    room.waiting.len(),
                    room.is_in_force(),
                    room.sources()
                        .iter()
                        .map(|source| (source.stream, source.next_offset()))
                        .collect::<Vec<_>>(),
                )
            })
            .collect();
        let links: Vec<_> = self.links().proven().collect();
        format!("{rooms:?} {links:?} {:?}", sessions_digest(self.sessions()))
    }

    fn links_of(&self) -> &Links {
        self.links()
    }

    fn take_cluster(&mut self, now: Micros, keys: ClusterKeys) {
        self.set_cluster(now, keys);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters.each(|name, _, value| each(name, value));
        self.links().counters.each(|name, _, value| each(name, value));
        self.links().door.counters.each(|name, _, value| each(name, value));
        self.sessions().counters.each(|name, _, value| each(name, value));
        self.sessions().door.counters.each(|name, _, value| each(name, value));
    }

    /// 0, 1: sessions (0 is in the room); 2: the broker; 3: the router; 4: a proxy.
    fn settle(rig: &mut Rig<Self>) {
        rig.session(1);
        rig.session(2);
        rig.link(BROKER, role::BROKER);
        rig.link(ROUTER, role::ROUTER);
        rig.link(PROXY, role::PROXY);
        rig.join(0, 1, ROOM, Positions::default());
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        rig.say(2, &link_room(1, 1, &[b"one", b"two"]));
        rig.pass(60_000, 5_000);
    }
}

impl Subject for Proxy {
    const ROLE: Role = role::PROXY;

    fn build(seed: u64) -> Self {
        let config = ProxyConfig {
            node: node_config(PROXY, role::PROXY, 4),
            name_key: NAME_KEY,
            server_key: server_key(),
            settings: ProxySettings {
                door: door(),
                ..ProxySettings::default()
            },
        };
        let mut proxy = Proxy::new(config, seed, entropy(seed));
        proxy.set_placement(1_000_000, placement());
        proxy.set_bounds(UNBOUNDED);
        proxy
    }

    fn authenticate(&mut self, now: Micros) {
        let mut events = Vec::new();
        self.drain_events(&mut events);
        for event in events {
            if let ProxyEvent::Authenticate(question) = event {
                self.answer(now, question.id, user_of(&question.credential), b"");
            }
        }
    }

    fn digest(&self) -> String {
        let links: Vec<_> = self.links().proven().collect();
        format!(
            "{links:?} {:?} {} {}",
            sessions_digest(self.sessions()),
            self.is_idle(),
            self.counters.rooms_opened
        )
    }

    fn links_of(&self) -> &Links {
        self.links()
    }

    fn take_cluster(&mut self, now: Micros, keys: ClusterKeys) {
        self.set_cluster(now, keys);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters.each(|name, _, value| each(name, value));
        self.links().counters.each(|name, _, value| each(name, value));
        self.links().door.counters.each(|name, _, value| each(name, value));
        self.sessions().counters.each(|name, _, value| each(name, value));
        self.sessions().door.counters.each(|name, _, value| each(name, value));
    }

    /// 0, 1: sessions (0 publishes to the room); 2: the broker; 3: a gateway.
    fn settle(rig: &mut Rig<Self>) {
        rig.session(1);
        rig.session(2);
        rig.link(BROKER, role::BROKER);
        rig.link(GATEWAY, role::GATEWAY);
        rig.tell(
            0,
            &Record::Open {
                request: 1,
                name: ROOM.as_bytes(),
                incarnation: 5,
            },
        );
        rig.say(0, &publish(0, 1, 1, &[b"one"]));
        rig.pass(60_000, 5_000);
    }
}

/// A broker reports the head of one of its rooms to a gateway.
pub fn tells_head(rig: &mut Rig<Gateway>, broker: usize, head: LinkHead) {
    let frame = body(|writer| {
        head.write(writer);
        true
    });
    rig.frame(broker, kinds::LINK_HEADS.code(), &frame);
}

/// A router reports a gateway's only room to a broker.
pub fn names_gateway(rig: &mut Rig<Broker>, router: usize, node: u32, membership: Membership) {
    names_life(rig, router, (node, EPOCH), membership);
}

/// As [`names_gateway`], with the gateway's life.
pub fn names_life(rig: &mut Rig<Broker>, router: usize, (node, epoch): (u32, u32), membership: Membership) {
    let (scope, version) = (Scope::ALL, membership.version);
    rig.tell(
        router,
        &Record::GatewayBegin {
            node,
            epoch,
            scope,
            version,
        },
    );
    rig.tell(
        router,
        &Record::GatewayMembership {
            node,
            epoch,
            membership,
        },
    );
    rig.tell(
        router,
        &Record::GatewayEnd {
            node,
            epoch,
            scope,
            version,
        },
    );
}

/// A namespace with settings.
pub const KEPT: &[u8] = b"kept";

pub fn kept() -> Retention {
    Retention {
        namespace: "kept".into(),
        share_percent: 0,
        messages: Some(300),
        bytes: Some(64 << 10),
        idle: Some(10_000_000),
    }
}

impl Subject for Broker {
    const ROLE: Role = role::BROKER;

    fn build(seed: u64) -> Self {
        let config = BrokerConfig {
            node: node_config(BROKER, role::BROKER, 5),
            name_key: NAME_KEY,
            settings: BrokerSettings {
                namespaces: vec![kept()],
                ..BrokerSettings::default()
            },
        };
        let mut broker = Broker::new(config, seed, entropy(seed));
        broker.set_placement(1_000_000, placement());
        broker
    }

    fn authenticate(&mut self, _now: Micros) {}

    fn digest(&self) -> String {
        let rooms: Vec<_> = self
            .rooms()
            .map(|room| (room.id, room.generation, room.ring.next(), room.gateways.len()))
            .collect();
        let links: Vec<_> = self.links().proven().collect();
        format!(
            "{rooms:?} {links:?} {:?} {}",
            self.interest().wanted(),
            self.is_running()
        )
    }

    fn links_of(&self) -> &Links {
        self.links()
    }

    fn take_cluster(&mut self, now: Micros, keys: ClusterKeys) {
        self.set_cluster(now, keys);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters.each(|name, _, value| each(name, value));
        self.links().counters.each(|name, _, value| each(name, value));
        self.links().door.counters.each(|name, _, value| each(name, value));
    }

    /// 0: a proxy; 1: the gateway; 2: the router.
    fn settle(rig: &mut Rig<Self>) {
        rig.link(PROXY, role::PROXY);
        rig.link(GATEWAY, role::GATEWAY);
        rig.link(ROUTER, role::ROUTER);
        names_gateway(rig, 2, GATEWAY, membership(1, true));
        rig.tell(2, &Record::Complete { scope: Scope::ALL });
        rig.say(0, &link_publish(5, 1, 1, &[b"one", b"two", b"three"]));
        rig.pass(60_000, 5_000);
    }
}

impl Subject for Router {
    const ROLE: Role = role::ROUTER;

    fn build(seed: u64) -> Self {
        let config = RouterConfig {
            node: node_config(ROUTER, role::ROUTER, 6),
            settings: RouterSettings::default(),
        };
        let mut router = Router::new(config, seed, entropy(seed));
        router.set_placement(1_000_000, placement());
        router
    }

    fn authenticate(&mut self, _now: Micros) {}

    fn digest(&self) -> String {
        let links: Vec<_> = self.links().proven().collect();
        format!("{links:?} {:?}", self.interest().wanted())
    }

    fn links_of(&self) -> &Links {
        self.links()
    }

    fn take_cluster(&mut self, now: Micros, keys: ClusterKeys) {
        self.set_cluster(now, keys);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters.each(|name, _, value| each(name, value));
        self.links().counters.each(|name, _, value| each(name, value));
        self.links().door.counters.each(|name, _, value| each(name, value));
    }

    /// 0: the gateway; 1: the broker; 2: a proxy.
    fn settle(rig: &mut Rig<Self>) {
        rig.link(GATEWAY, role::GATEWAY);
        rig.link(BROKER, role::BROKER);
        rig.link(PROXY, role::PROXY);
        let (scope, version) = (Scope::ALL, 1);
        rig.tell(0, &Record::SnapshotBegin { scope, version });
        rig.tell(0, &Record::Membership(membership(1, true)));
        rig.tell(0, &Record::SnapshotEnd { scope, version });
        rig.tell(1, &Record::Subscribe { scope });
        rig.pass(60_000, 5_000);
    }
}

impl Subject for Client {
    const ROLE: Role = Role::CLIENT;

    fn build(seed: u64) -> Self {
        let endpoint = |port| {
            vec![Endpoint {
                addr: addr(port),
                key: server_key().public(),
            }]
        };
        let config = ClientConfig {
            gateways: endpoint(9001),
            proxies: endpoint(9002),
            learns: [LEARNS.get(); 2],
            credential: b"token".to_vec(),
            payload: PAYLOAD,
            inbox_bytes: 1 << 16,
            socket: 0,
        };
        let mut client = Client::new(config, seed, entropy(seed));
        client.join(1_000_000, ROOM, Positions::default(), Policy::DropOldest);
        let publication = client.publication(1_000_000, ROOM).unwrap().publication;
        for ticket in 1..=3 {
            let _ = client.publish(publication, b"hello", ticket);
        }
        client
    }

    fn authenticate(&mut self, _now: Micros) {}

    fn digest(&self) -> String {
        let room = self.room(0).map(|room| {
            (
                room.join.handle,
                room.counters,
                room.positions.clone(),
                room.reading.len(),
            )
        });
        let publication = self
            .publishing(0)
            .map(|known| (known.handle, known.published, known.unacknowledged()));
        use muster_rooms::Side;
        format!(
            "{room:?} {publication:?} {} {}",
            self.is_ready(Side::Gateway),
            self.is_ready(Side::Proxy)
        )
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters.each(|name, _, value| each(name, value));
    }

    /// 0: the gateway; 1: the proxy.
    fn settle(rig: &mut Rig<Self>) {
        rig.serve(9001);
        rig.serve(9002);
        for at in 0..2 {
            let ready = Record::Control(ControlRecord::Ready {
                user: 42,
                token: [at as u8; 16],
                keepalive_ms: 1000,
            });
            rig.tell(at, &ready);
        }
        rig.tell(
            0,
            &Record::Joined {
                request: 1,
                handle: 0,
                index: 1 << 32,
                start: Positions::default(),
                heads: vec![],
                gaps: vec![],
                history: 0,
                whole: true,
            },
        );
        rig.tell(1, &Record::Opened { request: 2, handle: 0 });
        rig.pass(60_000, 5_000);
    }
}

thread_local! {
    static LEARNS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Rig<Client> {
    /// A client that was given only these gateways, and has done nothing yet.
    pub fn learning_from(gateways: &[Endpoint]) -> Self {
        let config = ClientConfig {
            gateways: gateways.to_vec(),
            proxies: vec![],
            learns: [true; 2],
            credential: b"token".to_vec(),
            payload: PAYLOAD,
            inbox_bytes: 1 << 16,
            socket: 0,
        };
        let mut rig = Rig::bare();
        rig.machine = Client::new(config, 1, entropy(1));
        rig
    }

    /// A client that learns servers from other servers, and has connected to none yet.
    pub fn new_to_all() -> Self {
        LEARNS.set(true);
        let rig = Rig::bare();
        LEARNS.set(false);
        rig
    }

    /// A client that learns servers from other servers.
    pub fn learning() -> Self {
        LEARNS.set(true);
        let rig = Rig::new();
        LEARNS.set(false);
        rig
    }

    /// Answers the client's hello at one of its endpoints.
    pub fn serve(&mut self, port: u16) {
        for _ in 0..2_000 {
            self.turn();
            while let Some((to, bytes)) = self.out.pop_front() {
                let header = Header::read(&bytes).unwrap();
                if header.kind != DatagramKind::Hello || to != addr(port) {
                    continue;
                }
                let mut reader = Reader::new(&bytes[HEADER..]);
                let noise = reader.array::<16>().and_then(|_| reader.bytes16()).unwrap();
                let key = server_key();
                let bound = prologue(VERSION, header.connection, 0, b"client");
                let says = self.says;
                let done = respond(ResponderKey::Client(&key), &bound, noise, says, &mut self.entropy).unwrap();
                let id = 1 << 40 | (self.peers.len() as u64) << 16 | u64::from(port);
                let mut answer = vec![0; HEADER];
                Header::clear(DatagramKind::Accept, header.connection).write(&mut answer);
                answer.extend_from_slice(&id.to_le_bytes());
                answer.extend_from_slice(&(done.message2.len() as u16).to_le_bytes());
                answer.extend_from_slice(&done.message2);
                self.give(0, addr(port), &answer);
                let conn = Conn::new(
                    id,
                    header.connection,
                    0,
                    addr(OWN),
                    done.secret,
                    false,
                    0,
                    1 << 20,
                    self.now,
                );
                self.enrol(
                    conn,
                    addr(port),
                    0,
                    if port == 9001 { role::GATEWAY } else { role::PROXY },
                );
                return;
            }
            self.now += 10_000;
        }
        panic!("the client does not try {port}");
    }
}

// ---- entry functions of the fuzz targets

/// Ignores the value: the test is that it can be parsed.
fn seen<T>(_: T) {}

/// Any bytes as the frames of an opened datagram; every body is parsed by its kind.
pub fn fuzz_frames(data: &[u8]) {
    for frame in Frames::new(data, kinds::ALL).flatten() {
        let body = frame.body;
        match frame.kind {
            FrameKind::STATUS => seen(Status::read(body).map(|status| {
                let mut bytes = [0; 64];
                status.write(&mut Writer::new(&mut bytes));
            })),
            FrameKind::LOG => seen(muster_transport::LogReceiver::new(1_000).receive(body, |_| {})),
            kinds::ROOM => seen(RoomBlock::read(body).map(|block| block.messages.count())),
            kinds::AGED_MEMBER_ROOM => seen(RoomBlock::read_aged(body).map(|block| block.messages.count())),
            kinds::LINK_ROOM => seen(LinkBlock::read(body).map(|block| block.messages.count())),
            kinds::AGED_ROOM => seen(LinkBlock::read_aged(body).map(|block| block.messages.count())),
            kinds::GAP => seen(GapPlace::read(body)),
            kinds::PASSED => seen(Passed::read(body)),
            kinds::LEFT_OUT => seen(LeftOut::read(body)),
            kinds::SKIP => seen(Skip::read(body)),
            kinds::HEADS => seen(muster_rooms::wire::heads(body).count()),
            kinds::REPAIR => seen(muster_rooms::wire::read_repair(body).map(|(_, _, ranges)| ranges.count())),
            kinds::LINK_REPAIR => {
                seen(muster_rooms::wire::read_link_repair(body).map(|(_, _, _, ranges)| ranges.count()))
            }
            kinds::RELAYED_ROOM => seen(RelayedBlock::read(body).map(|read| read.block.messages.count())),
            kinds::AGED_RELAYED_ROOM => seen(RelayedBlock::read_aged(body).map(|read| read.block.messages.count())),
            kinds::RELAYED_HEADS => seen(RelayedHead::read_all(body).count()),
            kinds::LINK_HEADS => seen(LinkHead::read_all(body).count()),
            kinds::LINK_LOST => seen(LinkLost::read(body)),
            kinds::CONSUMED => seen(Consumed::read_all(body).count()),
            kinds::PUBLISH => {
                let Some(publish) = Publish::read(body) else { continue };
                for (_, data) in muster_rooms::wire::published(publish.messages, publish.count) {
                    seen(muster_rooms::headers::well_formed(data));
                    seen(muster_rooms::headers::decode(data).count());
                }
            }
            kinds::LINK_PUBLISH => seen(LinkPublish::read(0, body)),
            kinds::AGED_PUBLISH => seen(LinkPublish::read_aged(0, body)),
            kinds::LINK_ACK => seen(Ack::read_link(body).is_some()),
            kinds::ACK => seen(Ack::read(body)),
            _ => {}
        }
    }
    let _ = Header::read(data);
}

/// Any bytes as a record: one that can be parsed must be written and parsed back the same.
pub fn fuzz_records(data: &[u8]) {
    if let Some(record) = Record::read(data) {
        let mut bytes = [0; 2048];
        let mut writer = Writer::new(&mut bytes);
        if record.write(&mut writer) {
            let written = writer.written().to_vec();
            assert_eq!(Record::read(&written), Some(record));
        }
    }
    if let Ok(name) = RoomName::from_bytes(data) {
        assert_eq!(
            RoomName::parse(&name.to_string()).map(|same| same.key(&NAME_KEY)),
            Ok(name.key(&NAME_KEY))
        );
    }
}

/// Datagrams of strangers at a door for clients, and at two for nodes, without and with identities. Each step: sender
/// (u8), door (u8), kind (u8), length (u16), bytes.
pub fn fuzz_handshake(data: &[u8]) {
    let mut source = Seeded(Dice::new(3));
    let keys = [
        DoorKey::Server(Box::new(server_key())),
        DoorKey::Cluster(Box::new(cluster())),
        DoorKey::Cluster(Box::new(listed(Demand::Offered, BROKER, &NODES))),
    ];
    let mut doors = keys.map(|key| Door::new(key, ResetSecret::new([3; 32]), &mut source));
    let (mut outbox, mut now) = (Outbox::new(false), 1_000_000);
    let mut accounts: BTreeMap<Addr, Account> = BTreeMap::new();
    let mut cookies: BTreeMap<(usize, u8), [u8; 16]> = BTreeMap::new();
    let mut reader = Reader::new(data);
    while let (Some(who), Some(place), Some(what), Some(bytes)) =
        (reader.u8(), reader.u8(), reader.u8(), reader.bytes16())
    {
        let (from, at) = (stranger(u32::from(who)), usize::from(place) % doors.len());
        let mut datagram = bytes.to_vec();
        if what & 1 != 0 {
            // A hello of full length with the cookie that the door gave, with any bytes behind it.
            datagram.resize(1200.max(datagram.len()), 0);
            Header {
                key_id: 1,
                ..Header::clear(DatagramKind::Hello, u64::from(who))
            }
            .write(&mut datagram);
            if let Some(cookie) = cookies.get(&(at, who)) {
                datagram[HEADER..HEADER + 16].copy_from_slice(cookie);
            }
        }
        let arrival = Arrival {
            socket: 0,
            from,
            start: 0,
            len: datagram.len() as u32,
        };
        let Ok(header) = Header::read(&datagram) else { continue };
        accounts.entry(from).or_default().received += datagram.len() as u64;
        match header.kind {
            DatagramKind::Hello => doors[at].hello(now, arrival, &header, &datagram),
            _ => doors[at].unknown(now, arrival, &header),
        }
        if what & 2 != 0 {
            now += u64::from(what) * 1_000;
        }
        while let Some(accepted) = doors[at].accept(now, |said| Versions::new(1, 2).answer(said), &mut source) {
            doors[at].answer(now, &accepted, 99);
        }
        outbox.clear();
        doors[at].transmit(&mut outbox);
        for parcel in outbox.parcels() {
            let bytes = outbox.bytes(parcel);
            accounts.entry(parcel.to).or_default().sent += bytes.len() as u64;
            if Header::read(bytes).is_ok_and(|header| header.kind == DatagramKind::Cookie) {
                cookies.insert((at, who), bytes[HEADER..HEADER + 16].try_into().unwrap());
            }
        }
    }
    // Each door keeps a separate account of an address.
    for (addr, account) in accounts {
        assert!(account.sent <= 3 * account.received, "{addr:?}: {account:?}");
    }
}

/// Below the seal: records of peers with valid keys, and time. Each step: kind (u8), peer (u8), then its own data.
pub fn fuzz_role<M: Subject>(data: &[u8]) {
    let mut rig = Rig::<M>::new();
    let frames = sample_frames();
    let mut reader = Reader::new(data);
    let mut steps = 0;
    while let (Some(what), Some(who)) = (reader.u8(), reader.u8()) {
        steps += 1;
        if steps > 400 {
            break;
        }
        let peer = usize::from(who) % rig.peers.len();
        let rest = |reader: &mut Reader<'_>| {
            reader
                .u8()
                .and_then(|len| reader.take(usize::from(len)).map(<[u8]>::to_vec))
        };
        match what % 8 {
            0 => {
                let step = [
                    100, 1_000, 5_000, 20_000, 60_000, 210_000, 1_100_000, 6_000_000, 61_000_000,
                ];
                let time = step[usize::from(who) % step.len()];
                rig.pass(time, (time / 8).max(100));
                rig.pass(3_000, 1_000);
            }
            1 => {
                let Some(bytes) = rest(&mut reader) else { break };
                rig.give(rig.peers[peer].socket, rig.peers[peer].addr, &bytes);
            }
            2 | 3 => {
                let Some(bytes) = rest(&mut reader) else { break };
                rig.say(peer, &bytes);
            }
            4 => {
                let (Some(kind), Some(bytes)) = (reader.u8(), rest(&mut reader)) else {
                    break;
                };
                rig.frame(peer, kind % 23, &bytes);
            }
            5 => {
                let Some(bytes) = rest(&mut reader) else { break };
                rig.record(peer, &bytes);
            }
            6 => {
                // A sample with one of its numbers replaced.
                let (Some(which), Some(at), Some(size)) = (reader.u8(), reader.u8(), reader.u8()) else {
                    break;
                };
                let mut bytes = frames[usize::from(which) % frames.len()].clone();
                let number = reader.u64().unwrap_or(u64::MAX).to_le_bytes();
                let at = 4 + usize::from(at) % (bytes.len() - 3).max(1);
                let size = 1 << (size % 4);
                number[..size]
                    .iter()
                    .zip(bytes.iter_mut().skip(at))
                    .for_each(|(new, old)| *old = *new);
                rig.say(peer, &bytes);
            }
            _ => match who % 4 {
                0 => rig.peers[peer].polite ^= true,
                1 => {
                    let (bytes, socket, from) = (
                        rig.peers[peer].last.clone(),
                        rig.peers[peer].socket,
                        rig.peers[peer].addr,
                    );
                    rig.give(socket, from, &bytes);
                }
                2 => rig.machine.stalled(rig.now),
                _ => rig.turn(),
            },
        }
    }
    rig.pass(300_000, 20_000);
    rig.pass(3_000_000, 500_000);
}

pub fn fuzz_gateway(data: &[u8]) {
    fuzz_role::<Gateway>(data)
}

pub fn fuzz_proxy(data: &[u8]) {
    fuzz_role::<Proxy>(data)
}

pub fn fuzz_broker(data: &[u8]) {
    fuzz_role::<Broker>(data)
}

pub fn fuzz_router(data: &[u8]) {
    fuzz_role::<Router>(data)
}

pub fn fuzz_client(data: &[u8]) {
    fuzz_role::<Client>(data)
}

/// A fuzz target's name and its entry.
pub type Target = (&'static str, fn(&[u8]));

/// Every fuzz target by name.
pub const TARGETS: [Target; 8] = [
    ("frames", fuzz_frames),
    ("records", fuzz_records),
    ("handshake", fuzz_handshake),
    ("gateway", fuzz_gateway),
    ("proxy", fuzz_proxy),
    ("broker", fuzz_broker),
    ("router", fuzz_router),
    ("client", fuzz_client),
];

/// Initial inputs: every sample frame and record, by every peer.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "frames" => sample_frames(),
        "records" => sample_records(),
        "handshake" => {
            let mut seed = Vec::new();
            for what in [1u8, 1, 3, 0] {
                seed.extend_from_slice(&[1, what >> 1, what, 130, 0]);
                seed.extend((0..130).map(|at: u8| {
                    if what == 0 && at < 2 {
                        [0x4d, 0x14][usize::from(at)]
                    } else {
                        at
                    }
                }));
            }
            vec![seed]
        }
        _ => (0..5u8)
            .map(|peer| {
                let mut seed = Vec::new();
                for frame in sample_frames().iter().rev().skip(1).rev() {
                    seed.extend_from_slice(&[2, peer, frame.len() as u8]);
                    seed.extend_from_slice(frame);
                    seed.extend_from_slice(&[7, 3]);
                }
                for record in sample_records() {
                    seed.extend_from_slice(&[5, peer, record.len() as u8]);
                    seed.extend_from_slice(&record);
                }
                seed.extend_from_slice(&[0, 3, 0, 5, 0, 6]);
                seed
            })
            .collect(),
    }
}
