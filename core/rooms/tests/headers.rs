//! Headers of messages: cut off for former peers, refused if wrong, held back where they would be lost.

mod common;

use common::*;
use muster_rooms::headers::{decode, encode, HEADERS_BYTES_MAX};
use muster_rooms::wire::{
    kinds, message_max, published, Ack, LinkBlock, LinkHead, LinkPublish, Message, Positions, Publish, PublisherId,
    Record, RoomBlock, FIRST, HEADERS, LAST, WHOLE,
};
use muster_rooms::{role, room_placement, Broker, Client, Gateway, Item, Policy, Proxy, PublishError, FIRST_PLACE};
use muster_transport::{append, Code, ControlRecord, Micros, PlacedNode};

const GOAL: [(&str, &str); 2] = [("kind", "goal"), ("minute", "12")];

fn block() -> Vec<u8> {
    encode(GOAL).unwrap()
}

fn headed(data: &[u8]) -> Vec<u8> {
    [block(), data.to_vec()].concat()
}

/// Lets time pass in steps of 5 ms.
fn pass<M: Subject>(rig: &mut Rig<M>, time: Micros) {
    rig.pass(time, 5_000);
}

/// A broker's block of messages with these flags, from offset 1 on.
fn link_room_with(pieces: &[(u8, &[u8])]) -> Vec<u8> {
    body(|writer| {
        append(writer, kinds::LINK_ROOM, 0, |writer| {
            let mut block = LinkBlock::begin(writer, room_id(ROOM), 1, 1, 1, None);
            for (sequence, (flags, data)) in (1..).zip(pieces) {
                let flags = *flags;
                let piece = Message {
                    flags,
                    ..message(sequence, data)
                };
                assert!(block.push(writer, &piece));
            }
            block.finish(writer) > 0
        })
    })
}

/// Flags and data of the messages that a member got.
fn got(rig: &mut Rig<Gateway>, peer: usize) -> Vec<(u8, Vec<u8>)> {
    let got = std::mem::take(&mut rig.peers[peer].got);
    let rooms = got.iter().filter(|(kind, _)| *kind == kinds::ROOM);
    let blocks = rooms.filter_map(|(_, body)| RoomBlock::read(body));
    let pieces = blocks.flat_map(|block| block.messages);
    pieces.map(|piece| (piece.flags, piece.data.to_vec())).collect()
}

/// Peers 0 and 1 are members, the second of which does not know headers; 2 is the broker.
fn two_members() -> Rig<Gateway> {
    let mut rig = Rig::<Gateway>::bare();
    rig.session(1);
    rig.session(2);
    rig.link(BROKER, role::BROKER);
    rig.link(ROUTER, role::ROUTER);
    rig.tell(0, &Record::Headers);
    rig.join(0, 7, ROOM, Positions::default());
    rig.join(1, 8, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    let head = LinkHead {
        room: room_id(ROOM),
        generation: 1,
        base: 1,
        next: 1,
    };
    tells_head(&mut rig, 2, head);
    pass(&mut rig, 100_000);
    rig
}

#[test]
fn a_gateway_cuts_headers_off_for_members_that_do_not_know_them() {
    let mut rig = two_members();
    let (whole, first) = (headed(b"one"), headed(b"two, fir"));
    let pieces: [(u8, &[u8]); 4] = [
        (WHOLE | HEADERS, &whole),
        (WHOLE, b"plain"),
        (FIRST | HEADERS, &first),
        (LAST | HEADERS, b"st and last"),
    ];
    rig.say(2, &link_room_with(&pieces));
    rig.turn();
    let as_sent = pieces.map(|(flags, data)| (flags, data.to_vec()));
    assert_eq!(got(&mut rig, 0), as_sent);
    let plain = [
        (WHOLE, &b"one"[..]),
        (WHOLE, b"plain"),
        (FIRST, b"two, fir"),
        (LAST, b"st and last"),
    ];
    let plain = plain.map(|(flags, data)| (flags, data.to_vec()));
    assert_eq!(got(&mut rig, 1), plain);
    for (peer, wanted) in [(0, &as_sent[0]), (1, &plain[0])] {
        let asked =
            body(|writer| muster_rooms::wire::write_repair(writer, 0, FIRST_PLACE, &[(FIRST_PLACE, FIRST_PLACE)]));
        rig.say(peer, &asked);
        rig.turn();
        assert_eq!(got(&mut rig, peer), std::slice::from_ref(wanted), "a repeated message");
    }
}

/// A proxy's frame with a message of these flags.
fn link_publish_with(flags: u8, sequence: u64, data: &[u8]) -> Vec<u8> {
    let mut messages = messages(&[data]);
    messages[2] = flags;
    let publisher = PublisherId {
        user: 42,
        incarnation: 5,
    };
    body(|writer| {
        LinkPublish {
            room: room_id(ROOM),
            check: room_key(ROOM).check,
            publisher,
            session: 7,
            handle: 0,
            sent_at: 1,
            low: 1,
            first: sequence,
            count: 1,
            messages: &messages,
            detour: false,
            age: None,
            namespace: 0,
        }
        .write(writer)
    })
}

#[test]
fn a_broker_passes_headers_on_and_refuses_wrong_ones() {
    let mut rig = Rig::<Broker>::new();
    let proxy = rig.link(PROXY + 5, role::PROXY);
    let records = rig.peers[proxy].take_records();
    let says = |bytes: &Vec<u8>| matches!(Record::read(bytes), Some(Record::Headers));
    assert!(records.iter().any(says), "a proxy is told that it knows headers");
    let malformed = |rig: &Rig<Broker>| counter(&rig.machine, "dropped_malformed");
    let before = malformed(&rig);
    let cut = &headed(b"")[..10];
    rig.say(proxy, &link_publish_with(WHOLE | HEADERS, 1, cut));
    rig.turn();
    assert_eq!(malformed(&rig), before + 1);
    rig.say(proxy, &link_publish_with(WHOLE | HEADERS, 1, &headed(b"one")));
    rig.say(proxy, &link_publish_with(LAST | HEADERS, 2, cut));
    rig.turn();
    assert_eq!(malformed(&rig), before + 1, "only a first chunk begins with a block");
}

/// A session at a proxy with the handle 0 for the room, and the broker's link.
fn publishing() -> (Rig<Proxy>, usize) {
    let mut rig = Rig::<Proxy>::bare();
    let broker = PlacedNode::new(BROKER, role::BROKER, addr(9000));
    rig.machine
        .set_placement(rig.now, room_placement(2, vec![broker], 1, 1));
    rig.session(1);
    let broker = rig.link(BROKER, role::BROKER);
    rig.tell(
        0,
        &Record::Open {
            request: 1,
            name: ROOM.as_bytes(),
            incarnation: 5,
        },
    );
    rig.turn();
    (rig, broker)
}

fn publish_with(flags: u8, sequence: u64, data: &[u8]) -> Vec<u8> {
    let mut messages = messages(&[data]);
    messages[2] = flags;
    body(|writer| {
        Publish {
            handle: 0,
            sent_at: 1,
            low: 1,
            first: sequence,
            count: 1,
            messages: &messages,
        }
        .write(writer)
    })
}

/// The codes of the acknowledgements that the session got since the last call.
fn codes(rig: &mut Rig<Proxy>) -> Vec<Code> {
    let got = std::mem::take(&mut rig.peers[0].got);
    let acks = got.iter().filter(|(kind, _)| *kind == kinds::ACK);
    acks.map(|(_, body)| Ack::read(body).expect("well formed").code)
        .collect()
}

#[test]
fn a_proxy_holds_headers_back_from_a_broker_that_does_not_know_them() {
    let (mut rig, broker) = publishing();
    rig.say(0, &publish_with(WHOLE | HEADERS, 1, b"no block"));
    rig.turn();
    assert_eq!(codes(&mut rig), [Code::Malformed]);
    rig.say(0, &publish_with(WHOLE | HEADERS, 1, &headed(b"one")));
    rig.turn();
    assert_eq!(codes(&mut rig), [Code::NotReady]);
    assert_eq!(counter(&rig.machine, "dropped_headers"), 1);
    rig.say(0, &publish_with(WHOLE, 1, b"plain"));
    rig.turn();
    assert_eq!(rig.peers[broker].frames(kinds::LINK_PUBLISH), 1);
    rig.tell(broker, &Record::Headers);
    rig.say(0, &publish_with(WHOLE | HEADERS, 2, &headed(b"two")));
    rig.turn();
    assert_eq!(
        (codes(&mut rig), rig.peers[broker].frames(kinds::LINK_PUBLISH)),
        (vec![], 2)
    );
}

#[test]
fn a_proxy_tells_a_client_that_asks_that_it_knows_headers() {
    let (mut rig, _) = publishing();
    rig.peers[0].take_records();
    rig.tell(0, &Record::Headers);
    rig.turn();
    let records = rig.peers[0].take_records();
    assert!(
        matches!(Record::read(&records[0]), Some(Record::Headers)),
        "{records:?}"
    );
}

/// Flags and data of the messages that a proxy got since the last call.
fn sent(rig: &mut Rig<Client>, proxy: usize) -> Vec<(u8, Vec<u8>)> {
    let got = std::mem::take(&mut rig.peers[proxy].got);
    let frames = got.iter().filter(|(kind, _)| *kind == kinds::PUBLISH);
    let read = frames.filter_map(|(_, body)| Publish::read(body));
    let all = read.flat_map(|frame| published(frame.messages, frame.count).collect::<Vec<_>>());
    all.map(|(flags, data)| (flags, data.to_vec())).collect()
}

#[test]
fn a_client_sends_headers_only_to_a_proxy_that_knows_them() {
    let mut rig = Rig::<Client>::new();
    let opened = rig.machine.publication(rig.now, "sports:two").expect("a place");
    rig.turn();
    let records = rig.peers[1].take_records();
    let request = records.iter().find_map(|bytes| match Record::read(bytes) {
        Some(Record::Open {
            request,
            name: b"sports:two",
            ..
        }) => Some(request),
        _ => None,
    });
    let request = request.expect("the room is opened");
    rig.tell(1, &Record::Opened { request, handle: 5 });
    sent(&mut rig, 1);
    rig.machine.publish(opened.publication, b"plain", 0).unwrap();
    rig.machine
        .publish_headed(opened.publication, &block(), b"one", 0)
        .unwrap();
    rig.machine.publish(opened.publication, b"later", 0).unwrap();
    pass(&mut rig, 2_000);
    let first = sent(&mut rig, 1);
    assert_eq!(
        first,
        [(WHOLE, b"plain".to_vec())],
        "the message behind the headers waits too"
    );
    rig.tell(1, &Record::Headers);
    rig.turn();
    let all = sent(&mut rig, 1);
    let wanted = [(WHOLE | HEADERS, headed(b"one")), (WHOLE, b"later".to_vec())];
    assert!(wanted.iter().all(|piece| all.contains(piece)), "{all:?}");
    // Bounds.
    let number = opened.publication;
    let room = muster_rooms::limits::MESSAGE_BYTES_MAX - block().len();
    let long = vec![b'x'; room + 1];
    assert_eq!(
        rig.machine.publish_headed(number, &block(), &long, 0),
        Err(PublishError::TooLong)
    );
    assert_eq!(rig.machine.publish_headed(number, &block(), &long[1..], 0), Ok(()));
    assert_eq!(
        rig.machine.publish_headed(number, &[b'x'; 1_200], b"", 0),
        Err(PublishError::TooLong),
        "a block in two chunks"
    );
    assert!(HEADERS_BYTES_MAX <= message_max(1_200));
}

#[test]
fn a_member_reads_headers_apart_from_the_data() {
    let mut rig = Rig::<Client>::new();
    let room = rig
        .machine
        .join(rig.now, "sports:one", Positions::default(), Policy::DropOldest);
    let records = rig.peers[0].take_records();
    assert!(records
        .iter()
        .any(|bytes| matches!(Record::read(bytes), Some(Record::Headers))));
    rig.tell(
        0,
        &Record::Joined {
            request: 3,
            handle: 3,
            index: FIRST_PLACE,
            start: Positions::default(),
            heads: vec![],
            gaps: vec![],
            history: 0,
            whole: true,
        },
    );
    let (whole, first) = (headed(b"one"), headed(b"two, fir"));
    let pieces: [(u8, &[u8]); 4] = [
        (WHOLE | HEADERS, &whole),
        (WHOLE, b"plain"),
        (FIRST | HEADERS, &first),
        (LAST | HEADERS, b"st and last"),
    ];
    let frame = body(|writer| {
        let mut block = RoomBlock::begin(writer, 3, FIRST_PLACE, stream(1), 1, None);
        for (sequence, (flags, data)) in (1..).zip(pieces) {
            let piece = Message {
                flags,
                ..message(sequence, data)
            };
            assert!(block.push(writer, &piece));
        }
        block.finish(writer) == pieces.len()
    });
    rig.frame(0, kinds::ROOM.code(), &frame);
    let mut read = Vec::new();
    loop {
        let mut bytes = Vec::new();
        let Some(Item::Message { headers, .. }) = rig.machine.read(rig.now, room, &mut bytes) else {
            break;
        };
        let (block, data) = bytes.split_at(headers.into());
        let named: Vec<_> = decode(block).map(|(name, value)| format!("{name}={value}")).collect();
        read.push((named.join(" "), String::from_utf8(data.to_vec()).unwrap()));
    }
    let wanted = [
        ("kind=goal minute=12", "one"),
        ("", "plain"),
        ("kind=goal minute=12", "two, first and last"),
    ];
    assert_eq!(read, wanted.map(|(named, data)| (named.to_string(), data.to_string())));
}

#[test]
fn a_client_holds_headers_back_again_at_its_next_proxy() {
    let mut rig = Rig::<Client>::new();
    rig.tell(1, &Record::Headers);
    rig.peers[1].polite = false;
    rig.pass(8_000_000, 10_000);
    rig.out.clear();
    rig.serve(9002);
    let next = rig.peers.len() - 1;
    rig.tell(
        next,
        &Record::Control(ControlRecord::Ready {
            user: 42,
            token: [0; 16],
            keepalive_ms: 1_000,
        }),
    );
    rig.tell(next, &Record::Opened { request: 2, handle: 0 });
    rig.machine.publish_headed(0, &block(), b"one", 0).unwrap();
    pass(&mut rig, 10_000);
    let headed = |sent: Vec<(u8, Vec<u8>)>| sent.contains(&(WHOLE | HEADERS, headed(b"one")));
    assert!(!headed(sent(&mut rig, next)));
    rig.tell(next, &Record::Headers);
    rig.turn();
    assert!(headed(sent(&mut rig, next)));
}
