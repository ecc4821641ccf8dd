//! A message walks through all five machines in memory, over a network without faults.

use muster_rooms::{role, room_placement};
use std::collections::VecDeque;

use muster_rooms::wire::Positions;
use muster_rooms::{
    Broker, BrokerConfig, BrokerSettings, Client, ClientConfig, ClientEvent, DoorSettings, Endpoint, Gateway,
    GatewayConfig, GatewayEvent, GatewaySettings, Item, Policy, Proxy, ProxyConfig, ProxyEvent, ProxySettings,
    RoomsSettings, Router, RouterConfig, RouterSettings, Side,
};
use muster_transport::{
    Addr, Arrival, ClusterKeys, Dice, Entropy, Identity, Inbox, Machine, Micros, NodeConfig, Outbox, PlacedNode,
    ServerKey, SocketId,
};

struct Seeded(Dice);

impl Entropy for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.roll() as u8);
    }
}

fn entropy(seed: u64) -> Box<dyn Entropy> {
    Box::new(Seeded(Dice::new(seed)))
}

fn addr(port: u16) -> Addr {
    std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()
}

struct Datagram {
    from: Addr,
    to: Addr,
    bytes: Vec<u8>,
}

fn step<M: Machine>(now: Micros, machine: &mut M, sockets: &[Addr], net: &mut VecDeque<Datagram>) -> usize {
    let mut moved = 0;
    let mut kept = VecDeque::new();
    while let Some(mut datagram) = net.pop_front() {
        let Some(socket) = sockets.iter().position(|addr| *addr == datagram.to) else {
            kept.push_back(datagram);
            continue;
        };
        let arrival = Arrival {
            socket: socket as SocketId,
            from: datagram.from,
            start: 0,
            len: datagram.bytes.len() as u32,
        };
        machine.receive(
            now,
            &mut Inbox {
                slab: &mut datagram.bytes,
                arrivals: &[arrival],
            },
        );
        moved += 1;
    }
    *net = kept;
    if machine.deadline().is_some_and(|at| at <= now) {
        machine.expire(now);
    }
    let mut outbox = Outbox::new(true);
    for _ in 0..100 {
        outbox.clear();
        let more = machine.transmit(now, &mut outbox);
        for parcel in outbox.parcels() {
            for bytes in outbox.bytes(parcel).chunks(parcel.segment as usize) {
                net.push_back(Datagram {
                    from: sockets[parcel.socket as usize],
                    to: parcel.to,
                    bytes: bytes.to_vec(),
                });
                moved += 1;
            }
        }
        if !more {
            break;
        }
    }
    moved
}

#[test]
fn a_message_walks_through_all_five_machines() {
    let cluster = ClusterKeys {
        current: (1, [7; 32]),
        other: None,
        allow: None,
    };
    let (gateway_key, proxy_key) = (ServerKey::from_private([1; 32]), ServerKey::from_private([2; 32]));
    let nodes = [
        (1, role::GATEWAY, 101),
        (2, role::PROXY, 201),
        (3, role::BROKER, 301),
        (4, role::ROUTER, 401),
    ];
    let nodes = nodes.map(|(node, role, port)| PlacedNode::new(node, role, addr(port)));
    let placement = room_placement(1, nodes.to_vec(), 1, 1);
    let me = |node, role| Identity {
        node,
        role,
        epoch: 1000,
    };
    let endpoints = |port, key: &ServerKey| {
        vec![Endpoint {
            addr: addr(port),
            key: key.public(),
        }]
    };
    let client_config = ClientConfig {
        gateways: endpoints(102, &gateway_key),
        proxies: endpoints(202, &proxy_key),
        learns: [false; 2],
        credential: b"token".to_vec(),
        payload: 1200,
        inbox_bytes: 1 << 20,
        socket: 0,
    };
    let node = |number, role| NodeConfig {
        me: me(number, role),
        payload: 1200,
        cluster: cluster.clone(),
        reset_secret: [number as u8; 32],
    };
    let door = DoorSettings {
        keepalive_ms: 1000,
        idle_timeout_ms: 10_000,
        ..DoorSettings::default()
    };
    let rooms = RoomsSettings {
        history_max: 0,
        membership_again_ms: 0,
        ..RoomsSettings::default()
    };
    let mut gateway = Gateway::new(
        GatewayConfig {
            node: node(1, role::GATEWAY),
            name_key: [9; 16],
            server_key: gateway_key,
            settings: GatewaySettings {
                door: door.clone(),
                rooms,
            },
        },
        1,
        entropy(1),
    );
    let mut proxy = Proxy::new(
        ProxyConfig {
            node: node(2, role::PROXY),
            name_key: [9; 16],
            server_key: proxy_key,
            settings: ProxySettings {
                door,
                age_every: 2,
                ..ProxySettings::default()
            },
        },
        2,
        entropy(2),
    );
    let broker_config = BrokerConfig {
        node: node(3, role::BROKER),
        name_key: [9; 16],
        settings: BrokerSettings::default(),
    };
    let mut broker = Broker::new(broker_config, 3, entropy(3));
    let mut router = Router::new(
        RouterConfig {
            node: node(4, role::ROUTER),
            settings: RouterSettings::default(),
        },
        4,
        entropy(4),
    );
    let mut client = Client::new(client_config, 5, entropy(5));
    client.set_ages();
    gateway.set_placement(0, placement.clone());
    proxy.set_placement(0, placement.clone());
    broker.set_placement(0, placement.clone());
    router.set_placement(0, placement);
    let room = client.join(0, "sports:final", Positions::default(), Policy::DropOldest);
    let publication = client.publication(0, "sports:final").unwrap().publication;
    let mut net = VecDeque::new();
    let mut now: Micros = 1;
    let (mut joined, mut published, mut received) = (false, Vec::new(), Vec::new());
    let mut sent = 0;
    let mut ages = Vec::new();
    while now < 5_000_000 && received.len() < 1000 {
        loop {
            let moved = step(now, &mut client, &[addr(501)], &mut net)
                + step(now, &mut proxy, &[addr(201), addr(202)], &mut net)
                + step(now, &mut broker, &[addr(301)], &mut net)
                + step(now, &mut router, &[addr(401)], &mut net)
                + step(now, &mut gateway, &[addr(101), addr(102)], &mut net);
            net.retain(|datagram| [501, 201, 202, 301, 401, 101, 102].contains(&datagram.to.port));
            let mut questions = Vec::new();
            gateway.drain_events(&mut questions);
            for event in questions {
                if let GatewayEvent::Authenticate(question) = event {
                    assert_eq!(question.credential, b"token");
                    gateway.answer(now, question.id, Ok(42.into()), b"");
                }
            }
            let mut questions = Vec::new();
            proxy.drain_events(&mut questions);
            for event in questions {
                if let ProxyEvent::Authenticate(question) = event {
                    proxy.answer(now, question.id, Ok(42.into()), b"");
                }
            }
            let mut events = Vec::new();
            client.drain_events(&mut events);
            for event in events {
                match event {
                    ClientEvent::Joined { .. } => joined = true,
                    ClientEvent::Published(done) => published.push(done),
                    ClientEvent::Down { reason, .. } => panic!("session lost: {reason}"),
                    _ => {}
                }
            }
            if joined && client.is_ready(Side::Proxy) && sent < 1000 {
                while sent < 1000
                    && client
                        .publish(publication, format!("message {sent}").as_bytes(), sent + 1)
                        .is_ok()
                {
                    sent += 1;
                }
            }
            let mut data = Vec::new();
            while let Some(item) = client.read(now, room, &mut data) {
                match item {
                    Item::Message { sender, .. } => {
                        assert_eq!(sender, 42);
                        ages.extend(item.age(now));
                        received.push(String::from_utf8(std::mem::take(&mut data)).unwrap());
                    }
                    Item::Command { .. } => unreachable!("nobody sends any"),
                    Item::Gap(gap) => panic!("{gap:?}"),
                }
            }
            if moved == 0 {
                break;
            }
        }
        now += 1_000;
    }
    assert!(
        joined,
        "joined; broker running: {}, interest {:?}",
        broker.is_running(),
        broker.interest().wanted()
    );
    assert_eq!(
        received,
        (0..1000).map(|n| format!("message {n}")).collect::<Vec<_>>(),
        "after {now} us, {sent} sent"
    );
    // Every second frame has ages, each for several messages.
    assert!((100..900).contains(&ages.len()), "{}", ages.len());
    assert!(ages.iter().all(|age| *age < now), "{ages:?}");
    assert_eq!(published.len(), 1000);
    assert!(published
        .iter()
        .zip(1..)
        .all(|(done, n)| done.ticket == n && done.offset == n));
    assert!(now < 1_000_000, "took {now} us");
}
