//! Relays: gateways that pass a room on to others. Each side by itself, among peers that hold valid keys; the whole is
//! `muster-sim --relays`.

use muster_rooms::wire::{kinds, write_link_repair, Consumed, Record, RelayedBlock, RelayedHead, RoomBlock, StreamId};
use muster_rooms::{role, Broker, Gateway};
use muster_transport::{append, Addr, FrameKind, Frames, Scope};

mod common;
use common::{
    addr, body, counter, link_publish, link_room, membership, names_gateway, room_id, stream, Rig, BROKER, EPOCH, ROOM,
};

/// The gateway that brings a room to the rig's gateway, or gets one of it.
const OTHER: u32 = 51;

fn relayed_by(node: u32) -> Record<'static> {
    Record::RelayedBy {
        room: room_id(ROOM),
        node,
        role: role::GATEWAY.code(),
        addr: if node > 0 { addr(9_051) } else { Addr::default() },
    }
}

fn asked(on: bool) -> Record<'static> {
    let (room, broker) = (room_id(ROOM), BROKER);
    Record::RelayAsked { room, broker, on }
}

fn answer(on: bool) -> Record<'static> {
    let (room, broker) = (room_id(ROOM), BROKER);
    Record::RelayAnswer { room, broker, on }
}

/// A block of any stream as another gateway passes it on.
fn relayed_room(stream: StreamId, offset: u64, data: &[&[u8]]) -> Vec<u8> {
    let frame = link_room(stream.generation, offset, data);
    let frame = Frames::new(&frame, kinds::ALL).next().expect("a frame").expect("good");
    RelayedBlock::of(&frame, (stream.node, stream.epoch), 0)
        .expect("a block")
        .into()
}

fn records(rig: &mut Rig<impl common::Subject>, peer: usize) -> Vec<Vec<u8>> {
    rig.pass(200_000, 5_000);
    rig.peers[peer].take_records()
}

fn told(records: &[Vec<u8>], wanted: &Record<'_>) -> usize {
    records
        .iter()
        .filter(|bytes| Record::read(bytes).as_ref() == Some(wanted))
        .count()
}

/// Offsets that member 0 of a gateway got, in order.
fn offsets(rig: &Rig<Gateway>) -> Vec<u64> {
    let rooms = rig.peers[0].got.iter().filter(|(kind, _)| *kind == kinds::ROOM);
    rooms
        .flat_map(|(_, body)| {
            let block = RoomBlock::read(body).expect("a block");
            let first = block.offset;
            (first..).take(block.messages.count()).collect::<Vec<_>>()
        })
        .collect()
}

/// A gateway with a member of the room, its broker (peer 2), and another gateway (the last peer) that is to bring the room.
fn child() -> (Rig<Gateway>, usize) {
    let mut rig = Rig::<Gateway>::new();
    let other = rig.link(OTHER, role::GATEWAY);
    rig.tell(2, &relayed_by(OTHER));
    rig.pass(200_000, 5_000);
    (rig, other)
}

#[test]
fn a_child_asks_its_relay_and_tells_the_broker_once_that_has_agreed() {
    let (mut rig, other) = child();
    let taken = |on| Record::RelayTaken {
        room: room_id(ROOM),
        node: OTHER,
        on,
    };
    let before = records(&mut rig, 2);
    assert_eq!(told(&before, &Record::Relays), 1);
    assert_eq!((told(&before, &taken(true)), told(&before, &taken(false))), (0, 0));
    assert_eq!(told(&records(&mut rig, other), &asked(true)), 1);
    rig.tell(other, &answer(true));
    assert_eq!(told(&records(&mut rig, 2), &taken(true)), 1);
    rig.tell(other, &answer(false));
    assert_eq!(told(&records(&mut rig, 2), &taken(false)), 1, "it says no more");
    rig.tell(2, &relayed_by(0));
    assert_eq!(told(&records(&mut rig, other), &asked(false)), 1);
}

#[test]
fn a_gateway_takes_a_room_only_from_the_gateway_that_its_broker_named() {
    let mut rig = Rig::<Gateway>::new();
    let other = rig.link(OTHER, role::GATEWAY);
    let next = rig.machine.rooms().next().expect("a room").ring.next();
    let known = rig.machine.rooms().next().expect("a room").sources()[0].next_offset();
    let says = |rig: &mut Rig<Gateway>, stream| rig.say(other, &relayed_room(stream, known, &[b"new"]));
    let places = |rig: &Rig<Gateway>| rig.machine.rooms().next().expect("a room").ring.next() - next;
    says(&mut rig, stream(1));
    assert_eq!((places(&rig), counter(&rig.machine, "dropped_unasked")), (0, 1));
    rig.tell(2, &relayed_by(OTHER + 1));
    says(&mut rig, stream(1));
    assert_eq!(
        (places(&rig), counter(&rig.machine, "dropped_unasked")),
        (0, 2),
        "another one is named"
    );
    rig.tell(2, &relayed_by(OTHER));
    for made_up in [
        stream(2),
        StreamId {
            epoch: EPOCH + 1,
            ..stream(1)
        },
        StreamId {
            node: BROKER + 1,
            ..stream(1)
        },
    ] {
        says(&mut rig, made_up);
    }
    assert_eq!(
        (places(&rig), counter(&rig.machine, "dropped_unasked")),
        (0, 5),
        "streams that no broker told"
    );
    says(&mut rig, stream(1));
    assert_eq!((places(&rig), counter(&rig.machine, "dropped_unasked")), (1, 5));
}

/// The child asks the broker for what its relay lost.
#[test]
fn a_child_asks_its_broker_for_what_its_relay_did_not_bring() {
    let (mut rig, other) = child();
    rig.tell(other, &answer(true));
    let known = rig.machine.rooms().next().expect("a room").sources()[0].next_offset();
    rig.say(other, &relayed_room(stream(1), known + 2, &[b"third"]));
    rig.pass(20_000, 1_000);
    let repairs = |rig: &Rig<Gateway>| rig.peers[2].frames(kinds::LINK_REPAIR);
    let asked_for_hole = repairs(&rig);
    assert!(asked_for_hole > 0);
    rig.say(2, &link_room(1, known, &[b"first", b"second"]));
    rig.pass(50_000, 5_000);
    let got = offsets(&rig);
    assert!(got.ends_with(&[known, known + 1, known + 2]), "{got:?}");
    let settled = repairs(&rig);
    rig.pass(100_000, 5_000);
    assert_eq!(repairs(&rig), settled);
    // Its relay knows of one more.
    let head = RelayedHead {
        room: room_id(ROOM),
        stream: stream(1),
        next: known + 4,
    };
    rig.say(
        other,
        &body(|writer| {
            append(writer, kinds::RELAYED_HEADS, 0, |writer| {
                head.write(writer);
                true
            })
        }),
    );
    rig.pass(20_000, 1_000);
    assert!(repairs(&rig) > settled);
}

/// A gateway that another one asked for its room (the last peer).
fn relay() -> (Rig<Gateway>, usize) {
    let mut rig = Rig::<Gateway>::new();
    let other = rig.link(OTHER, role::GATEWAY);
    rig.tell(other, &asked(true));
    let answers = records(&mut rig, other);
    assert_eq!(told(&answers, &answer(true)), 1);
    (rig, other)
}

fn frames_of(rig: &Rig<Gateway>, peer: usize, kind: FrameKind) -> Vec<Vec<u8>> {
    let got = rig.peers[peer].got.iter().filter(|(of, _)| *of == kind);
    got.map(|(_, body)| body.clone()).collect()
}

#[test]
fn a_relay_passes_on_what_is_new_to_it_once_and_in_the_same_turn() {
    let (mut rig, other) = relay();
    assert!(
        rig.peers[other].frames(kinds::RELAYED_HEADS) > 0,
        "the head, so that nothing is missed"
    );
    let known = rig.machine.rooms().next().expect("a room").sources()[0].next_offset();
    for _ in 0..2 {
        rig.say(2, &link_room(1, known, &[b"first", b"second"]));
    }
    rig.turn();
    let passed = frames_of(&rig, other, kinds::RELAYED_ROOM);
    assert_eq!(passed.len(), 1, "what it had before it does not pass on");
    let read = RelayedBlock::read(&passed[0]).expect("a block");
    assert_eq!((read.broker, read.block.offset), ((BROKER, EPOCH), known));
    assert_eq!(
        read.block
            .messages
            .map(|message| message.data.to_vec())
            .collect::<Vec<_>>(),
        [b"first".to_vec(), b"second".to_vec()]
    );
    assert_eq!(counter(&rig.machine, "messages_relayed"), 2);
    rig.tell(other, &asked(false));
    rig.say(2, &link_room(1, known + 2, &[b"third"]));
    rig.turn();
    assert_eq!(rig.peers[other].frames(kinds::RELAYED_ROOM), 1);
}

#[test]
fn a_relay_says_no_for_a_room_that_it_does_not_have() {
    let mut rig = Rig::<Gateway>::new();
    let other = rig.link(OTHER, role::GATEWAY);
    for (room, broker) in [(1, BROKER), (room_id(ROOM), BROKER + 1)] {
        rig.tell(other, &Record::RelayAsked { room, broker, on: true });
        let answers = records(&mut rig, other);
        assert_eq!(
            told(
                &answers,
                &Record::RelayAnswer {
                    room,
                    broker,
                    on: false
                }
            ),
            1
        );
    }
}

/// A child that takes nothing costs the relay a bounded queue, and learns of the rest by the head.
#[test]
fn a_child_without_a_window_costs_a_bounded_queue() {
    let (mut rig, other) = relay();
    rig.peers[other].polite = false;
    let known = rig.machine.rooms().next().expect("a room").sources()[0].next_offset();
    for offset in known..known + 1_000 {
        rig.say(2, &link_room(1, offset, &[&[7; 1_000]]));
        rig.turn();
    }
    let skipped = counter(&rig.machine, "relay_frames_skipped");
    assert!((1_000 - 256 - 64..1_000).contains(&skipped), "{skipped}");
    let own = rig.machine.rooms().next().expect("a room").sources()[0].next_offset();
    assert_eq!(own, known + 1_000, "its own members have it");
}

/// A broker with a proxy (peer 0), a router (peer 2), and gateways that pass rooms on.
struct Rooms {
    rig: Rig<Broker>,
    /// Node and peer of each gateway, and the frames and relays that it was told of.
    gateways: Vec<(u32, usize)>,
    published: u64,
}

impl Rooms {
    fn new(count: u32) -> Self {
        let mut rig = Rig::<Broker>::new();
        let mut gateways = Vec::new();
        for node in 60..60 + count {
            let peer = rig.link(node, role::GATEWAY);
            names_gateway(&mut rig, 2, node, membership(1, true));
            rig.tell(peer, &Record::Relays);
            gateways.push((node, peer));
        }
        rig.tell(2, &Record::Complete { scope: Scope::ALL });
        rig.pass(100_000, 5_000);
        let mut rooms = Rooms {
            rig,
            gateways,
            published: 3,
        };
        rooms.take();
        rooms
    }

    fn take(&mut self) {
        for (_, peer) in &self.gateways {
            self.rig.peers[*peer].take_records();
        }
    }

    /// Publishes a message a millisecond, and all gateways of `alive` report progress.
    fn run(&mut self, millis: u64, alive: impl Fn(u32) -> bool) {
        for _ in 0..millis {
            self.published += 1;
            let low = self.published;
            self.rig.say(0, &link_publish(5, low, low, &[b"x"]));
            if self.published % 20 == 0 {
                self.consumed(1);
                for (node, peer) in self.gateways.clone() {
                    if alive(node) {
                        self.consumed(peer);
                    }
                }
            }
            self.rig.pass(1_000, 1_000);
        }
    }

    fn consumed(&mut self, peer: usize) {
        let known = self.rig.machine.rooms().next().expect("the room");
        let (generation, next) = (known.generation, known.ring.next());
        let frame = body(|writer| {
            append(writer, kinds::CONSUMED, 0, |writer| {
                let room = room_id(ROOM);
                Consumed {
                    room,
                    generation,
                    next,
                    kept: 0,
                }
                .write(writer);
                true
            })
        });
        self.rig.say(peer, &frame);
    }

    /// Whom each gateway was told to get the room by, last.
    fn ways(&mut self) -> Vec<(u32, usize, u32)> {
        let mut ways = Vec::new();
        for (node, peer) in self.gateways.clone() {
            for bytes in self.rig.peers[peer].take_records() {
                if let Some(Record::RelayedBy { node: relay, .. }) = Record::read(&bytes) {
                    ways.push((node, peer, relay));
                }
            }
        }
        ways
    }

    /// Frames that each gateway got while `work` ran.
    fn sent(&mut self, work: impl FnOnce(&mut Self)) -> Vec<usize> {
        let count = |rooms: &Rooms| -> Vec<usize> {
            let peers = rooms.gateways.iter().map(|(_, peer)| *peer);
            peers
                .map(|peer| rooms.rig.peers[peer].frames(kinds::LINK_ROOM))
                .collect()
        };
        let before = count(self);
        work(self);
        count(self)
            .into_iter()
            .zip(before)
            .map(|(now, before)| now - before)
            .collect()
    }

    /// Makes the room busy until a tree is there, and all children have taken their relays. Returns the children.
    fn with_tree(count: u32) -> (Self, Vec<(u32, usize, u32)>) {
        let mut rooms = Rooms::new(count);
        rooms.run(1_300, |_| true);
        let ways = rooms.ways();
        for (_, peer, node) in &ways {
            let taken = Record::RelayTaken {
                room: room_id(ROOM),
                node: *node,
                on: true,
            };
            rooms.rig.tell(*peer, &taken);
        }
        (rooms, ways)
    }
}

#[test]
fn a_busy_room_on_many_gateways_is_sent_to_their_square_root() {
    let (mut rooms, children) = Rooms::with_tree(36);
    // 37 gateways with that of the rig, which knows no relays.
    assert_eq!(children.len(), 36 - 7);
    let relays: std::collections::BTreeSet<u32> = children.iter().map(|(_, _, relay)| *relay).collect();
    assert_eq!(relays.len(), 7);
    assert!(children.iter().all(|(child, ..)| !relays.contains(child)));
    for relay in &relays {
        let count = children.iter().filter(|(_, _, of)| of == relay).count();
        assert!(count <= 7, "{count} children of {relay}");
    }
    let sent = rooms.sent(|rooms| rooms.run(100, |_| true));
    for ((node, _), sent) in rooms.gateways.clone().iter().zip(sent) {
        assert_eq!(sent > 0, relays.contains(node), "{node}: {sent} frames");
    }
    assert_eq!(counter(&rooms.rig.machine, "relays_begun"), 29);
}

#[test]
fn nothing_changes_for_rooms_below_the_limit_or_without_load() {
    let mut rooms = Rooms::new(20);
    rooms.run(1_500, |_| true);
    assert_eq!(rooms.ways(), []);
    let mut rooms = Rooms::new(36);
    for _ in 0..20 {
        rooms.run(1, |_| true);
        rooms.rig.pass(200_000, 20_000);
    }
    assert_eq!(rooms.ways(), [], "five messages a second");
}

#[test]
fn only_the_children_of_a_lost_relay_are_served_by_the_broker() {
    let (mut rooms, children) = Rooms::with_tree(36);
    rooms.run(100, |_| true);
    let lost = children[0].2;
    let orphans: Vec<u32> = children.iter().filter(|way| way.2 == lost).map(|way| way.0).collect();
    let peer = rooms.gateways.iter().find(|(node, _)| *node == lost).expect("it").1;
    rooms.rig.frame(peer, FrameKind::CLOSE.code(), &[0]);
    rooms.take();
    let sent = rooms.sent(|rooms| rooms.run(30, |node| node != lost));
    for ((node, _), sent) in rooms.gateways.clone().iter().zip(sent) {
        let served = orphans.contains(node) || children.iter().all(|way| way.0 != *node) && *node != lost;
        assert_eq!(sent > 0, served, "{node}: {sent} frames");
    }
    rooms.run(1_100, |node| node != lost);
    let again = rooms.ways();
    let moved = |way: &(u32, usize, u32)| way.2 > 0;
    let given: Vec<u32> = again.iter().copied().filter(moved).map(|way| way.0).collect();
    assert!(
        orphans.iter().filter(|orphan| !given.contains(orphan)).count() <= 1,
        "one may be a relay now"
    );
    assert!(given.iter().all(|node| orphans.contains(node)), "no others move");
}

/// A relay is alive as far as its link says, but its children get nothing.
#[test]
fn children_that_fall_behind_are_served_by_the_broker_again() {
    let (mut rooms, children) = Rooms::with_tree(36);
    rooms.run(100, |_| true);
    let silent = children[0].2;
    let behind: Vec<u32> = children.iter().filter(|way| way.2 == silent).map(|way| way.0).collect();
    rooms.take();
    let sent = rooms.sent(|rooms| rooms.run(600, |node| !behind.contains(&node)));
    for ((node, _), sent) in rooms.gateways.clone().iter().zip(sent) {
        let child = children.iter().any(|way| way.0 == *node);
        assert_eq!(sent > 0, !child || behind.contains(node), "{node}: {sent} frames");
    }
    // If all are behind, the broker is slow, or the publishers are fast.
    let (mut rooms, children) = Rooms::with_tree(36);
    rooms.run(100, |_| true);
    let sent = rooms.sent(|rooms| rooms.run(600, |_| false));
    for ((node, _), sent) in rooms.gateways.clone().iter().zip(sent) {
        assert_eq!(
            sent == 0,
            children.iter().any(|way| way.0 == *node),
            "{node}: {sent} frames"
        );
    }
    let heads = rooms.rig.peers[children[0].1].frames(kinds::LINK_HEADS);
    assert!(heads > 1, "but it tells them the head");
}

#[test]
fn a_room_that_falls_silent_or_loses_its_gateways_needs_no_tree() {
    let (mut rooms, children) = Rooms::with_tree(36);
    rooms.take();
    rooms.rig.pass(130_000_000, 500_000);
    let ended: Vec<u32> = rooms.ways().iter().filter(|way| way.2 == 0).map(|way| way.0).collect();
    assert_eq!(ended.len(), children.len());
    let (mut rooms, children) = Rooms::with_tree(36);
    rooms.take();
    for (node, _) in rooms.gateways.clone().into_iter().take(25) {
        names_gateway(&mut rooms.rig, 2, node, membership(2, false));
    }
    rooms.run(1_200, |_| true);
    let left = rooms.gateways[25..].iter().map(|(node, _)| *node);
    let left: Vec<u32> = left.filter(|node| children.iter().any(|way| way.0 == *node)).collect();
    let ended: Vec<u32> = rooms.ways().iter().filter(|way| way.2 == 0).map(|way| way.0).collect();
    assert!(left.iter().all(|node| ended.contains(node)), "{left:?} of {ended:?}");
    let sent = rooms.sent(|rooms| rooms.run(20, |_| true));
    assert!(sent[25..].iter().all(|sent| *sent > 0));
}

/// A child asks for offsets in the stream, as without relays.
#[test]
fn a_child_gets_repairs_from_the_broker() {
    let (mut rooms, children) = Rooms::with_tree(36);
    rooms.run(100, |_| true);
    let peer = children[0].1;
    let before = rooms.rig.peers[peer].frames(kinds::LINK_ROOM);
    let repair = body(|writer| write_link_repair(writer, room_id(ROOM), 1, false, &[(10, 12)]));
    rooms.rig.say(peer, &repair);
    rooms.rig.pass(10_000, 1_000);
    assert!(rooms.rig.peers[peer].frames(kinds::LINK_ROOM) > before);
    assert_eq!(counter(&rooms.rig.machine, "messages_repaired"), 3);
}
