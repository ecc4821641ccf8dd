//! One real machine among peers that follow the protocol: its replies, their times and their receivers.

mod common;

use common::*;
use muster_rooms::command::{CommandId, Outcome};
use muster_rooms::limits::{
    CROWDED_MESSAGES, CROWDED_WINDOW, GATEWAY_LEASE, MESSAGE_AGE_MAX, PUBLISH_ACK_DELAY_MAX, PUBLISH_ACK_MESSAGES,
};
use muster_rooms::wire::{
    kinds, message_max, read_link_repair, write_link_repair, write_repair, Ack, Consumed, Course, GapPlace, GapReason,
    LinkBlock, LinkHead, LinkLost, LinkPublish, Membership, Message, Position, Positions, PublisherId, Record,
    RoomBlock, Skip, StreamGap, StreamId, ENDED, FIRST, LAST, LINK_BLOCK, OLD, PROMPT, WHOLE,
};
use muster_rooms::{
    role, room_placement, Broker, Client, ClientEvent, Endpoint, Gateway, Item, Policy, Proxy, PublishError, RoomKey,
    Router, RouterConfig, RouterSettings, Side, ANSWER_WAIT, BACKFILL_WAIT, DETOUR_AFTER, DETOUR_IDLE, FIRST_PLACE,
    HOLE_WAIT, LOST_WAIT, MISSING_WAIT, SESSION_ROOMS, SILENCE_MAX, SPEAKS_WITHIN, USER_PUBLICATIONS_MAX,
};
use muster_transport::{
    append, weight, Addr, Code, ControlRecord, DatagramKind, Dice, FrameKind, HasSessions, Header, Machine, Micros,
    NodeState, Outbox, PlacedNode, Placement, Role, Scope, Server, Status, Writer, HEADER, NUMBER_MAX, PUBLIC_SOCKET,
    SLICE_DATAGRAMS,
};
use std::collections::BTreeSet;

/// Sessions 0 and 1, a broker's link and a router's: a gateway that knows no room yet.
fn gateway() -> Rig<Gateway> {
    gateway_since(1_000_000)
}

/// As [`gateway`], with a clock that begins at `now`.
fn gateway_since(now: u64) -> Rig<Gateway> {
    let mut rig = Rig::<Gateway>::bare();
    rig.now = now;
    rig.session(1);
    rig.session(2);
    rig.link(BROKER, role::BROKER);
    rig.link(ROUTER, role::ROUTER);
    rig
}

/// A gateway's reply to a join of a room without messages.
fn joined(request: u32, handle: u32) -> Record<'static> {
    Record::Joined {
        request,
        handle,
        index: FIRST_PLACE,
        start: Positions::default(),
        heads: vec![],
        gaps: vec![],
        history: 0,
        whole: true,
    }
}

/// The results of joins: joined, or refused with a code.
fn answers(rig: &mut Rig<Gateway>, member: usize) -> Vec<(u32, Result<(), Code>)> {
    let records = rig.peers[member].take_records();
    let answers = records.iter().filter_map(|bytes| match Record::read(bytes) {
        Some(Record::Joined { request, .. }) => Some((request, Ok(()))),
        Some(Record::Control(ControlRecord::Refused { request, code, .. })) => Some((request, Err(code))),
        _ => None,
    });
    answers.collect()
}

/// The gaps of a gateway's reply to a join, if it has come.
fn gaps_told(rig: &mut Rig<Gateway>, member: usize) -> Option<Vec<StreamGap>> {
    let records = rig.peers[member].take_records();
    records.iter().find_map(|bytes| match Record::read(bytes) {
        Some(Record::Joined { gaps, .. }) => Some(gaps),
        _ => None,
    })
}

/// The broker's head of the room.
fn head(rig: &mut Rig<Gateway>, generation: u32, next: u64) {
    head_of(rig, ROOM, generation, next);
}

fn head_of(rig: &mut Rig<Gateway>, name: &str, generation: u32, next: u64) {
    head_from(rig, 2, name, generation, next);
}

fn head_from(rig: &mut Rig<Gateway>, peer: usize, name: &str, generation: u32, next: u64) {
    let head = LinkHead {
        room: room_id(name),
        generation,
        base: next,
        next,
    };
    tells_head(rig, peer, head);
    rig.turn();
}

/// Runs for `time` with the links alive.
fn pass<M: Subject>(rig: &mut Rig<M>, time: u64) {
    let end = rig.now + time;
    while rig.now < end {
        rig.pass((end - rig.now).min(100_000), 20_000);
        for peer in 0..rig.peers.len() {
            rig.frame(peer, FrameKind::PING.code(), &[]);
        }
    }
}

#[test]
fn a_join_is_answered_once_the_owner_has_sent_the_rooms_head() {
    let mut rig = gateway();
    rig.join(0, 7, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    pass(&mut rig, 200_000);
    assert_eq!(
        answers(&mut rig, 0),
        [],
        "the broker knows, but nobody knows what the broker has"
    );
    assert!(rig.peers[2].frames(kinds::LINK_REPAIR) >= 2, "it is asked");
    head(&mut rig, 1, 4);
    assert_eq!(answers(&mut rig, 0), [(7, Ok(()))]);
    // From here on, messages lost with that broker are announced.
    head(&mut rig, 2, 1);
    pass(&mut rig, 50_000);
    assert_eq!(rig.peers[0].frames(kinds::GAP), 1);
}

/// A gateway whose placement names a second cluster, of one broker.
fn gateway_of_two_clusters() -> Rig<Gateway> {
    let mut rig = gateway();
    let partition = (room_id(ROOM) % 2) as u16;
    let other = PlacedNode {
        partition,
        ..PlacedNode::new(OTHER, role::BROKER, addr(9000 + OTHER as u16))
    };
    rig.machine
        .set_placement(rig.now, placement().beside(role::BROKER, [other], 2));
    rig
}

/// The broker of the second cluster.
const OTHER: u32 = 8;

/// A member has asked to join, and all routers have confirmed the interest.
fn joining(rig: &mut Rig<Gateway>) {
    rig.join(0, 7, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
}

#[test]
fn a_join_is_answered_once_each_cluster_has_sent_the_rooms_head() {
    let mut rig = gateway_of_two_clusters();
    let other = rig.link(OTHER, role::BROKER);
    joining(&mut rig);
    head(&mut rig, 1, 4);
    pass(&mut rig, 200_000);
    assert_eq!(answers(&mut rig, 0), []);
    let asked = rig.peers[2].frames(kinds::LINK_REPAIR);
    assert!(rig.peers[other].frames(kinds::LINK_REPAIR) >= 2, "it is asked");
    pass(&mut rig, 200_000);
    assert_eq!(rig.peers[2].frames(kinds::LINK_REPAIR), asked, "and it alone");
    head_from(&mut rig, other, ROOM, 1, 9);
    assert_eq!(answers(&mut rig, 0), [(7, Ok(()))]);
}

#[test]
fn an_absent_or_silent_cluster_delays_a_join_only_for_a_while() {
    for (linked, longest) in [(false, 400_000), (true, 1_600_000)] {
        let mut rig = gateway_of_two_clusters();
        if linked {
            rig.link(OTHER, role::BROKER);
        }
        joining(&mut rig);
        head(&mut rig, 1, 4);
        assert_eq!(answers(&mut rig, 0), [], "linked: {linked}");
        pass(&mut rig, longest);
        assert_eq!(answers(&mut rig, 0), [(7, Ok(()))], "linked: {linked}");
    }
}

#[test]
fn a_cluster_without_a_broker_of_the_partition_delays_no_join() {
    let mut rig = gateway_of_two_clusters();
    let none = placement().beside(role::BROKER, [], 1);
    rig.machine.set_placement(rig.now, none);
    joining(&mut rig);
    head(&mut rig, 1, 4);
    assert_eq!(answers(&mut rig, 0), [(7, Ok(()))]);
}

#[test]
fn a_member_at_its_room_limit_is_refused_another_but_may_rejoin_one() {
    let mut rig = gateway();
    let name = |at: u32| format!("sports:{at}");
    for at in 0..SESSION_ROOMS as u32 {
        rig.join(0, at, &name(at), Positions::default());
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        head_of(&mut rig, &name(at), 1 + at, 1);
    }
    assert_eq!(answers(&mut rig, 0).len(), SESSION_ROOMS);
    pass(&mut rig, 1_000_000);
    rig.join(0, 1_000, &name(SESSION_ROOMS as u32), Positions::default());
    rig.join(0, 1_001, &name(7), Positions::default());
    pass(&mut rig, 50_000);
    assert_eq!(
        answers(&mut rig, 0),
        [(1_000, Err(Code::TooManyRooms)), (1_001, Ok(()))]
    );
}

#[test]
fn a_join_with_an_impossible_position_gets_valid_numbers() {
    let mut rig = gateway();
    rig.join(0, 7, ROOM, Positions::at([(stream(1), NUMBER_MAX)]));
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 2, 1);
    pass(&mut rig, 50_000);
    assert_eq!(answers(&mut rig, 0), [(7, Ok(()))]);
}

#[test]
fn a_join_without_an_owner_is_refused_and_may_be_retried() {
    let mut rig = gateway();
    rig.join(0, 7, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    pass(&mut rig, ANSWER_WAIT / 2);
    rig.join(1, 8, ROOM, Positions::default());
    pass(&mut rig, ANSWER_WAIT / 2 + 100_000);
    assert_eq!(answers(&mut rig, 0), [(7, Err(Code::NotReady))]);
    assert_eq!(answers(&mut rig, 1), [], "a later join waits as long");
    rig.join(0, 7, ROOM, Positions::default());
    head(&mut rig, 1, 1);
    assert_eq!(answers(&mut rig, 0), [(7, Ok(()))]);
    assert_eq!(answers(&mut rig, 1), [(8, Ok(()))]);
    assert_eq!(counter(&rig.machine, "joins_refused"), 1);
}

#[test]
fn a_join_without_a_router_is_refused_and_leaves_no_room_behind() {
    let mut rig = Rig::<Gateway>::bare();
    rig.session(1);
    rig.join(0, 7, ROOM, Positions::default());
    pass(&mut rig, ANSWER_WAIT + 100_000);
    assert_eq!(answers(&mut rig, 0), [(7, Err(Code::NotReady))]);
    pass(&mut rig, 3_000_000);
    assert_eq!(rig.machine.rooms().count(), 0);
}

/// 0: the gateway; 1: a router that has reported it completely.
fn broker() -> Rig<Broker> {
    let mut rig = Rig::<Broker>::bare();
    rig.link(GATEWAY, role::GATEWAY);
    rig.link(ROUTER, role::ROUTER);
    names_gateway(&mut rig, 1, GATEWAY, membership(1, true));
    rig.tell(1, &Record::Complete { scope: Scope::ALL });
    assert_eq!(rig.machine.interest().wanted(), [(GATEWAY, room_id(ROOM))]);
    rig
}

#[test]
fn a_broker_accounts_for_held_messages_that_it_never_numbered() {
    let mut rig = Rig::<Broker>::new();
    let counts = |rig: &Rig<Broker>| {
        let names = [
            "messages_received",
            "messages_published",
            "messages_repeated",
            "dropped_held",
        ];
        (names.map(|name| counter(&rig.machine, name)), rig.machine.held())
    };
    let (before, _) = counts(&rig);
    let since = |rig: &Rig<Broker>| {
        let (now, held) = counts(rig);
        ([0, 1, 2, 3].map(|at| now[at] - before[at]), held)
    };
    let proxy = rig
        .peers
        .iter()
        .position(|peer| peer.role == role::PROXY)
        .expect("a proxy");
    rig.say(proxy, &link_publish(77, 1, 3, &[b"three", b"four", b"five"]));
    assert_eq!(since(&rig), ([3, 0, 0, 0], 3));
    // Another owner numbered up to the third, and the fourth comes again.
    rig.say(proxy, &link_publish(77, 4, 4, &[b"four"]));
    assert_eq!(since(&rig), ([4, 2, 1, 1], 0));
    rig.say(proxy, &link_publish(77, 6, 8, &[b"eight"]));
    assert_eq!(since(&rig), ([5, 2, 1, 1], 1));
    // If a gateway stays away, its data is forgotten too.
    rig.pass(130_000_000, 50_000);
    assert_eq!(since(&rig), ([5, 2, 1, 2], 0));
}

/// The publisher did not get the acknowledgement of the second message before its room moved, so it sends the message
/// again. Members drop what they have: `repeats` (`member.rs`).
#[test]
fn a_message_without_its_acknowledgement_is_numbered_once_by_each_of_two_owners() {
    let published = |rig: &Rig<Broker>| {
        let count = |name| counter(&rig.machine, name);
        (count("messages_published"), count("messages_repeated"))
    };
    let (mut former, mut next) = (broker(), broker());
    let (proxy, there) = (former.link(PROXY, role::PROXY), next.link(PROXY, role::PROXY));
    former.say(proxy, &link_publish(77, 1, 1, &[b"one", b"two"]));
    former.say(proxy, &link_publish(77, 2, 2, &[b"two"]));
    assert_eq!(published(&former), (2, 1), "an owner numbers a sequence once");
    next.say(there, &link_publish(77, 2, 2, &[b"two", b"three"]));
    next.say(there, &link_publish(77, 2, 2, &[b"two"]));
    assert_eq!(published(&next), (2, 1), "the second sequence once more");
}

/// Regression: messages held behind a hole counted against the credit: at 1 % loss a publisher reached a third of its
/// rate.
#[test]
fn held_messages_do_not_count_as_in_flight() {
    let mut rig = broker();
    let proxy = rig.link(PROXY, role::PROXY);
    let credit = |rig: &mut Rig<Broker>, first, messages: &[&[u8]]| {
        rig.say(proxy, &link_publish(77, 1, first, messages));
        rig.pass(10_000, 1_000);
        let mut acks = rig.peers[proxy].got.iter().filter(|(kind, _)| *kind == kinds::LINK_ACK);
        let (_, body) = acks.next_back().expect("an acknowledgement");
        let (_, ack) = Ack::read_link(body).expect("well formed");
        let ack = Ack::read(ack).expect("well formed");
        (ack.cumulative, ack.credit_messages, ack.credit_bytes)
    };
    assert_eq!(credit(&mut rig, 1, &[b"one"]), (1, 256, 256 << 10));
    assert_eq!(credit(&mut rig, 3, &[b"three", b"four"]), (1, 258, (256 << 10) + 9));
    assert_eq!(credit(&mut rig, 6, &[b"six"]), (1, 259, (256 << 10) + 12));
    assert_eq!(credit(&mut rig, 2, &[b"two"]), (4, 257, (256 << 10) + 3));
    assert_eq!(credit(&mut rig, 5, &[b"five"]), (6, 256, 256 << 10));
}

/// Regression: the broker stood still, and members joined without it: they never got the first messages that it
/// numbered afterwards.
#[test]
fn a_broker_that_was_cut_off_numbers_nothing_before_a_routers_report() {
    let cut_off = || {
        let mut rig = broker();
        for peer in [0, 1] {
            rig.frame(peer, FrameKind::CLOSE.code(), &[0]);
        }
        let proxy = rig.link(PROXY, role::PROXY);
        (rig, proxy)
    };
    let publishes = |rig: &mut Rig<Broker>, proxy: usize| {
        rig.say(proxy, &link_publish(77, 1, 1, &[b"one"]));
        let count = |name| counter(&rig.machine, name);
        (count("messages_published"), count("dropped_not_ready"))
    };
    let (mut rig, proxy) = cut_off();
    assert_eq!(publishes(&mut rig, proxy), (0, 1));
    let router = rig.link(ROUTER, role::ROUTER);
    names_gateway(&mut rig, router, GATEWAY, membership(1, true));
    assert_eq!(publishes(&mut rig, proxy), (0, 2));
    rig.tell(router, &Record::Complete { scope: Scope::ALL });
    assert_eq!(publishes(&mut rig, proxy), (1, 2));

    // If there is no router, it continues with its knowledge.
    let (mut rig, proxy) = cut_off();
    pass(&mut rig, MISSING_WAIT + 10_000);
    assert_eq!(publishes(&mut rig, proxy), (1, 0));

    // A broker that has lost only its routers does so at once.
    let mut rig = broker();
    let proxy = rig.link(PROXY, role::PROXY);
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(publishes(&mut rig, proxy), (1, 0));
}

#[test]
fn a_gateway_that_a_new_router_never_sees_is_forgotten() {
    let wanted = |rig: &Rig<Broker>| rig.machine.interest().len();
    let mut rig = broker();
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    pass(&mut rig, 2 * GATEWAY_LEASE);
    assert_eq!(wanted(&rig), 1, "a router that named it speaks for it");
    let router = rig.link(ROUTER, role::ROUTER);
    pass(&mut rig, 2 * GATEWAY_LEASE);
    assert_eq!(wanted(&rig), 1, "a router that is still loading reports nothing");
    rig.tell(router, &Record::Complete { scope: Scope::ALL });
    pass(&mut rig, GATEWAY_LEASE - 2_000_000);
    assert_eq!(wanted(&rig), 1, "the gateway has its lease to come back");
    pass(&mut rig, 4_000_000);
    assert_eq!(wanted(&rig), 0);
    assert_eq!(counter(&rig.machine, "gateways_expired"), 1);

    let mut rig = broker();
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    let router = rig.link(ROUTER, role::ROUTER);
    rig.tell(router, &Record::Complete { scope: Scope::ALL });
    pass(&mut rig, GATEWAY_LEASE - 2_000_000);
    names_gateway(&mut rig, router, GATEWAY, membership(1, true));
    pass(&mut rig, 2 * GATEWAY_LEASE);
    assert_eq!(wanted(&rig), 1, "it came back in time");
}

/// Only its link to the routers may be dead: its members would get nothing though it is alive.
#[test]
fn a_linked_gateway_is_kept_though_routers_forgot_it() {
    let mut rig = broker();
    let (node, epoch, scope) = (GATEWAY, EPOCH, Scope::ALL);
    rig.tell(1, &Record::GatewayGone { node, epoch, scope });
    pass(&mut rig, 2 * GATEWAY_LEASE);
    assert_eq!(rig.machine.interest().len(), 1);
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    pass(&mut rig, 2_000_000);
    assert_eq!(rig.machine.interest().len(), 0);
}

/// The membership reports to a peer: room versions, and the ends of snapshots.
fn told<M: Subject>(rig: &mut Rig<M>, peer: usize) -> Vec<String> {
    rig.pass(60_000, 5_000);
    let records = rig.peers[peer].take_records();
    let told = records.iter().filter_map(|bytes| match Record::read(bytes)? {
        Record::GatewayMembership { node, membership, .. } => {
            let sign = if membership.present { '+' } else { '-' };
            Some(format!("{node}: {sign}{}", membership.version))
        }
        Record::GatewayEnd { node, version, .. } => Some(format!("{node}: all up to {version}")),
        Record::GatewaySeen { node, up } => Some(format!("{node}: {}", if up { "seen" } else { "away" })),
        Record::GatewayGone { node, .. } => Some(format!("{node}: gone")),
        Record::BrokerTold { node, told } => Some(format!("{node} {}", if told { "told" } else { "untold" })),
        Record::Covered { .. } => Some("covered".into()),
        Record::Complete { .. } => Some("complete".into()),
        Record::SnapshotBegin { version, .. } => Some(format!("begins at {version}")),
        Record::SnapshotEnd { .. } => Some("ends".into()),
        Record::Membership(membership) => Some(format!("+{}", membership.version)),
        Record::Subscribe { .. } => Some("subscribes".into()),
        Record::Unsubscribe => Some("unsubscribes".into()),
        _ => None,
    });
    told.collect()
}

/// 0: the gateway; 1: the broker; 3, 4: two peers.
fn router() -> Rig<Router> {
    let mut rig = Rig::<Router>::new();
    assert_eq!(told(&mut rig, 0), ["covered"]);
    assert_eq!(told(&mut rig, 1), ["1: +1", "1: all up to 1", "complete"]);
    for (at, node) in [(3, 78), (4, 79)] {
        assert_eq!(rig.link(node, role::ROUTER), at);
        assert_eq!(told(&mut rig, at), INTRODUCTION);
    }
    rig
}

/// A new peer's reports of a router's gateway and broker.
const INTRODUCTION: [&str; 5] = ["1: +1", "1: all up to 1", "1: seen", "3 told", "complete"];

/// A peer reports another gateway's only room.
fn peer_names(rig: &mut Rig<Router>, peer: usize) {
    peer_names_life(rig, peer, EPOCH);
}

fn peer_names_life(rig: &mut Rig<Router>, peer: usize, epoch: u32) {
    let (node, scope, version) = (77, Scope::ALL, 5);
    let membership = membership(version, true);
    for record in [
        Record::GatewayBegin {
            node,
            epoch,
            scope,
            version,
        },
        Record::GatewayMembership {
            node,
            epoch,
            membership,
        },
        Record::GatewayEnd {
            node,
            epoch,
            scope,
            version,
        },
    ] {
        rig.tell(peer, &record);
    }
}

#[test]
fn reports_of_gateways_go_to_brokers_and_peers_and_those_of_peers_to_brokers_only() {
    let mut rig = router();
    rig.tell(0, &Record::Membership(membership(2, false)));
    for peer in [1, 3, 4] {
        assert_eq!(told(&mut rig, peer), ["1: -2"]);
    }
    peer_names(&mut rig, 3);
    assert_eq!(told(&mut rig, 1), ["77: away", "77: +5", "77: all up to 5"]);
    assert_eq!(told(&mut rig, 3), ["covered"]);
    assert_eq!(told(&mut rig, 4), [""; 0]);
    // The same from another peer adds nothing.
    peer_names(&mut rig, 4);
    assert_eq!(told(&mut rig, 1), [""; 0]);
    assert_eq!(told(&mut rig, 4), ["covered"]);
}

/// Otherwise its reports of its share would raise the version of everything requested, and the other share's reports
/// would add nothing.
#[test]
fn a_router_that_narrows_its_share_reports_that_first() {
    let mut rig = router();
    let partition = (room_id(ROOM) % 2) as u16;
    let router = PlacedNode {
        partition,
        ..PlacedNode::new(ROUTER, role::ROUTER, Addr::default())
    };
    rig.machine
        .set_placement(rig.now, room_placement(2, vec![router], 1, 2));
    rig.turn();
    for peer in [1, 3, 4] {
        assert_eq!(told(&mut rig, peer), ["1: +1", "1: all up to 1"]);
    }
    rig.tell(0, &Record::Membership(membership(2, false)));
    assert_eq!(told(&mut rig, 1), ["1: -2"]);
}

#[test]
fn a_gateway_is_covered_once_every_broker_has_it_and_every_peer_has_covered_it() {
    let mut rig = router();
    rig.tell(0, &Record::Membership(membership(2, false)));
    assert_eq!(told(&mut rig, 0), [""; 0]);
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    assert_eq!(told(&mut rig, 0), [""; 0]);
    rig.tell(4, &Record::Covered { offset: 1 << 20 });
    assert_eq!(told(&mut rig, 0), ["covered"]);
    // A former peer is not waited for.
    rig.tell(0, &Record::Membership(membership(3, true)));
    rig.tell(3, &Record::Covered { offset: 1 << 21 });
    assert_eq!(told(&mut rig, 0), [""; 0]);
    rig.frame(4, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(told(&mut rig, 0), ["covered"]);
}

/// The placement of all tests, with one more node.
fn placement_with(node: u32, role: Role) -> Placement {
    placement_with_all(&[node], role)
}

fn placement_with_all(more: &[u32], role: Role) -> Placement {
    let before = placement();
    let roles = [role::GATEWAY, role::PROXY, role::BROKER, role::ROUTER];
    let mut nodes: Vec<PlacedNode> = roles.iter().flat_map(|role| before.of(*role)).copied().collect();
    nodes.extend(
        more.iter()
            .map(|node| PlacedNode::new(*node, role, addr(9000 + *node as u16))),
    );
    room_placement(2, nodes, 1, 1)
}

/// Regression: a join was answered, and a broker that did not know of it owned the room next: it sent the members
/// nothing.
#[test]
fn an_unserved_broker_delays_the_coverage_of_reports_for_a_while() {
    const OTHER: u32 = 9;
    let mut rig = Rig::<Router>::new();
    assert_eq!(told(&mut rig, 0), ["covered"]);
    rig.machine.set_placement(rig.now, placement_with(OTHER, role::BROKER));
    let mut version = 1;
    let mut says = |rig: &mut Rig<Router>| {
        version += 1;
        rig.tell(0, &Record::Membership(membership(version, version % 2 == 1)));
        told(rig, 0)
    };
    assert_eq!(says(&mut rig), [""; 0]);
    pass(&mut rig, MISSING_WAIT);
    assert_eq!(told(&mut rig, 0), ["covered"], "it does not come");
    let other = rig.link(OTHER, role::BROKER);
    assert_eq!(says(&mut rig), [""; 0], "it lives");
    let peer = rig.link(78, role::ROUTER);
    let (node, told_there) = (OTHER, true);
    rig.tell(peer, &Record::Covered { offset: 1 << 20 });
    assert_eq!(told(&mut rig, 0), [""; 0]);
    rig.tell(peer, &Record::BrokerTold { node, told: told_there });
    assert_eq!(told(&mut rig, 0), ["covered"], "a peer tells it");
    rig.tell(peer, &Record::BrokerTold { node, told: false });
    assert_eq!(says(&mut rig), [""; 0]);
    rig.tell(peer, &Record::Covered { offset: 1 << 21 });
    assert_eq!(told(&mut rig, 0), [""; 0]);
    let scope = Scope::ALL;
    rig.tell(other, &Record::Subscribe { scope });
    assert_eq!(told(&mut rig, 0), ["covered"], "it has been told here");
    // It may have been away for as long as its link here was silent, and may notice that later.
    rig.frame(other, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(says(&mut rig), [""; 0]);
    rig.tell(peer, &Record::Covered { offset: 1 << 22 });
    assert_eq!(told(&mut rig, 0), [""; 0]);
    pass(&mut rig, LOST_WAIT);
    assert_eq!(told(&mut rig, 0), ["covered"]);
}

/// Regression: two routers got nothing from each other, and a broker moved from one to the other, whose report did
/// not arrive. A join was answered 2 s later, before the routers were linked again, and the broker did not count the
/// member.
#[test]
fn a_broker_served_by_a_silent_peer_is_waited_for() {
    const OTHER: u32 = 9;
    for linked in [true, false] {
        let mut rig = Rig::<Router>::new();
        rig.machine.set_placement(rig.now, placement_with(OTHER, role::BROKER));
        let other = rig.link(OTHER, role::BROKER);
        let peer = rig.link(78, role::ROUTER);
        rig.tell(other, &Record::Subscribe { scope: Scope::ALL });
        rig.tell(other, &Record::Unsubscribe);
        if !linked {
            rig.frame(other, FrameKind::CLOSE.code(), &[0]);
            let (node, told) = (OTHER, true);
            rig.tell(peer, &Record::BrokerTold { node, told });
        }
        let live_until = |rig: &mut Rig<Router>, until: Micros| {
            while rig.now < until {
                pass(rig, 50_000);
                let ends = [0, 1, peer, other];
                ends.into_iter()
                    .filter(|end| linked || *end != other)
                    .for_each(|end| rig.frame(end, FrameKind::PING.code(), &[]));
            }
        };
        let silent_at = rig.now + 1_000_000;
        live_until(&mut rig, silent_at);
        rig.frame(peer, FrameKind::CLOSE.code(), &[0]);
        told(&mut rig, 0);
        rig.tell(0, &Record::Membership(membership(2, false)));
        let wait = if linked { MISSING_WAIT } else { LOST_WAIT };
        live_until(&mut rig, silent_at + wait - 100_000);
        assert_eq!(told(&mut rig, 0), [""; 0], "linked: {linked}");
        live_until(&mut rig, silent_at + wait + 200_000);
        assert_eq!(told(&mut rig, 0), ["covered"], "linked: {linked}");
    }
}

/// Regression: a router without that cluster's brokers in its placement answered a join that they did not know of.
#[test]
fn an_unserved_broker_of_another_cluster_is_waited_for_too() {
    let mut rig = Rig::<Router>::new();
    assert_eq!(told(&mut rig, 0), ["covered"]);
    let other = PlacedNode::new(9, role::BROKER, addr(9009));
    rig.machine
        .set_placement(rig.now, placement().beside(role::BROKER, [other], 2));
    rig.tell(0, &Record::Membership(membership(2, true)));
    assert_eq!(told(&mut rig, 0), [""; 0]);
    let broker = rig.link(9, role::BROKER);
    let scope = Scope::new(2, 0).unwrap();
    rig.tell(broker, &Record::Subscribe { scope });
    assert_eq!(told(&mut rig, 0), ["covered"]);
}

/// Regression: it reported nothing to a broker about gateways that only its peer knew, and the broker began to number
/// messages for the others.
#[test]
fn no_broker_is_complete_before_the_routers_peers_have_reported() {
    let subscribes = |rig: &mut Rig<Router>, node| {
        let broker = rig.link(node, role::BROKER);
        rig.tell(broker, &Record::Subscribe { scope: Scope::ALL });
        assert_eq!(told(rig, broker), ["1: +1", "1: all up to 1"]);
        broker
    };
    let mut rig = Rig::<Router>::new();
    rig.machine.set_placement(rig.now, placement_with(78, role::ROUTER));
    let first = subscribes(&mut rig, 9);
    let peer = rig.link(78, role::ROUTER);
    assert_eq!(told(&mut rig, first), [""; 0], "it is linked, and says nothing yet");
    peer_names(&mut rig, peer);
    rig.tell(peer, &Record::Complete { scope: Scope::ALL });
    assert_eq!(
        told(&mut rig, first),
        ["77: +5", "77: all up to 5", "77: away", "complete"]
    );
    rig.frame(peer, FrameKind::CLOSE.code(), &[0]);
    rig.turn();
    let broker = rig.link(10, role::BROKER);
    rig.tell(broker, &Record::Subscribe { scope: Scope::ALL });
    assert!(!told(&mut rig, broker).contains(&"complete".to_owned()));
    pass(&mut rig, MISSING_WAIT);
    assert_eq!(told(&mut rig, broker), ["complete"], "it does not come back");
}

/// A number belongs to a name: the placement may name it while the link of its former role still exists.
#[test]
fn a_node_that_returns_as_a_router_gets_reports_on_its_new_link() {
    let mut rig = Rig::<Gateway>::bare();
    let nodes = |router| {
        let nodes = [(BROKER, role::BROKER), (70, role::BROKER), (router, role::ROUTER)];
        let known = |(node, role)| (node != router || role == role::ROUTER).then_some((node, role));
        let nodes = nodes.into_iter().filter_map(known);
        let nodes = nodes.map(|(node, role)| PlacedNode::new(node, role, addr(9000 + node as u16)));
        nodes.collect::<Vec<_>>()
    };
    let (router, now) = (ROUTER, rig.now);
    rig.machine.set_placement(now, room_placement(2, nodes(router), 1, 1));
    rig.link(BROKER, role::BROKER);
    let former = rig.link(70, role::BROKER);
    rig.machine.set_placement(rig.now, room_placement(3, nodes(70), 1, 1));
    rig.turn();
    let begins = |rig: &mut Rig<Gateway>, peer: usize| {
        let records = rig.peers[peer].take_records();
        let begins = |bytes: &&Vec<u8>| matches!(Record::read(bytes), Some(Record::SnapshotBegin { .. }));
        records.iter().filter(begins).count()
    };
    assert_eq!(begins(&mut rig, former), 0);
    rig.frame(former, FrameKind::CLOSE.code(), &[0]);
    rig.turn();
    let back = rig.link_again(70, role::ROUTER);
    rig.turn();
    assert_eq!(begins(&mut rig, back), 1);
}

/// A peer has a link to the gateway and space for its rooms; this router has neither. Silence would look like a quiet
/// room.
#[test]
fn a_gateway_learns_of_a_full_routers_refusals_once_linked() {
    for early in [false, true] {
        refused_without_a_link(early);
    }
}

fn refused_without_a_link(early: bool) {
    let mut rig = Rig::<Router>::bare();
    let config = RouterConfig {
        node: node_config(ROUTER, role::ROUTER, 6),
        settings: RouterSettings { memberships_max: 1 },
    };
    rig.machine = Router::new(config, 1, entropy(1));
    rig.machine.set_placement(rig.now, placement());
    rig.link(78, role::ROUTER);
    if early {
        rig.link(77, role::GATEWAY); // of its former life, whose loss was not noticed
    }
    let epoch = EPOCH + 1;
    peer_names_life(&mut rig, 0, epoch);
    let said = |room, version, present| Record::GatewayMembership {
        node: 77,
        epoch,
        membership: Membership {
            room,
            version,
            present,
            ..membership(version, present)
        },
    };
    for (room, version, present) in [(11, 6, true), (12, 7, true), (13, 8, true), (12, 9, false)] {
        rig.tell(0, &said(room, version, present));
    }
    assert_eq!(counter(&rig.machine, "refused_full"), 3);
    let refused = |rig: &mut Rig<Router>| {
        let at = rig.link_again(77, role::GATEWAY);
        rig.pass(60_000, 5_000);
        let records = rig.peers[at].take_records();
        let refused = records.iter().filter_map(|bytes| match Record::read(bytes) {
            Some(Record::RoomRefused { room, code }) => Some((room, code)),
            _ => None,
        });
        refused.collect::<Vec<_>>()
    };
    assert_eq!(refused(&mut rig), [(11, Code::Busy), (13, Code::Busy)]);
    assert_eq!(refused(&mut rig), [], "once");
}

#[test]
fn a_router_forgets_a_gateway_that_neither_it_nor_a_peer_has_a_link_to() {
    let wanted = |rig: &Rig<Router>| rig.machine.interest().len();
    let mut rig = router();
    rig.tell(
        3,
        &Record::GatewaySeen {
            node: GATEWAY,
            up: true,
        },
    );
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(told(&mut rig, 4), ["1: away"]);
    pass(&mut rig, 2 * GATEWAY_LEASE);
    assert_eq!(wanted(&rig), 1, "a peer has it");
    rig.tell(
        3,
        &Record::GatewaySeen {
            node: GATEWAY,
            up: false,
        },
    );
    pass(&mut rig, GATEWAY_LEASE - 1_000_000);
    assert_eq!(wanted(&rig), 1);
    pass(&mut rig, 2_000_000);
    assert_eq!(wanted(&rig), 0);
    assert_eq!(told(&mut rig, 1), ["1: away", "1: gone"]);
}

#[test]
fn brokers_learn_that_a_gateway_is_away_once_all_placed_routers_report_it() {
    let mut rig = Rig::<Router>::new();
    let broker = rig.link(9, role::BROKER);
    rig.tell(broker, &Record::Subscribe { scope: Scope::ALL });
    told(&mut rig, broker);
    rig.machine.set_placement(rig.now, placement_with(78, role::ROUTER));
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(told(&mut rig, broker), [""; 0], "the other one is not heard");
    let peer = rig.link(78, role::ROUTER);
    rig.tell(peer, &Record::Complete { scope: Scope::ALL });
    assert_eq!(told(&mut rig, broker), ["1: away"]);
    let late = rig.link(10, role::BROKER);
    rig.tell(late, &Record::Subscribe { scope: Scope::ALL });
    assert!(told(&mut rig, late).contains(&"1: away".to_owned()));
    rig.tell(
        peer,
        &Record::GatewaySeen {
            node: GATEWAY,
            up: true,
        },
    );
    assert_eq!(told(&mut rig, broker), ["1: seen"]);
    rig.tell(
        peer,
        &Record::GatewaySeen {
            node: GATEWAY,
            up: false,
        },
    );
    rig.frame(peer, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(
        told(&mut rig, broker),
        ["1: away", "1: seen"],
        "or may have been, which is unknown now"
    );
}

#[test]
fn a_peers_incomplete_report_of_an_absent_gateway_is_forgotten_too() {
    let mut rig = router();
    let (node, epoch, scope, version) = (77, EPOCH, Scope::ALL, 5);
    rig.tell(
        3,
        &Record::GatewayBegin {
            node,
            epoch,
            scope,
            version,
        },
    );
    let membership = membership(version, true);
    rig.tell(
        3,
        &Record::GatewayMembership {
            node,
            epoch,
            membership,
        },
    );
    rig.frame(3, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(rig.machine.interest().len(), 2);
    pass(&mut rig, GATEWAY_LEASE + 1_000_000);
    assert_eq!(rig.machine.interest().len(), 1);
    assert_eq!(told(&mut rig, 1), ["77: away", "77: gone"]);
}

#[test]
fn a_gateway_reports_everything_to_another_router_when_its_home_is_lost() {
    let mut rig = gateway();
    rig.join(0, 7, ROOM, Positions::default());
    assert_eq!(told(&mut rig, 3), ["begins at 0", "ends", "+1"]);
    rig.frame(3, FrameKind::CLOSE.code(), &[0]);
    let again = rig.link(ROUTER, role::ROUTER);
    assert_eq!(told(&mut rig, again), ["begins at 1", "+1", "ends"]);
    head(&mut rig, 1, 4);
    assert_eq!(answers(&mut rig, 0), []);
    rig.tell(again, &Record::Covered { offset: 1 << 20 });
    pass(&mut rig, 50_000);
    assert_eq!(answers(&mut rig, 0), [(7, Ok(()))]);
}

/// The next membership report to the router, lost or not: whether the room is wanted, after how many milliseconds the
/// router has it, and how often it was sent within 100 more.
fn tells_its_router(rig: &mut Rig<Gateway>, lost: bool) -> (bool, u64, usize) {
    let sent = |rig: &Rig<Gateway>| {
        let links = rig.machine.links_of();
        let link = links.to(ROUTER).and_then(|slot| links.table.get(slot));
        link.expect("a link").conn.log.last_sent()
    };
    let (before, frames) = (sent(rig), rig.peers[3].frames(FrameKind::LOG));
    rig.peers[3].deaf = lost;
    for _ in 0..3_000 {
        if sent(rig) > before {
            break;
        }
        pass(rig, 1_000);
    }
    rig.peers[3].deaf = false;
    for waited in 0..100 {
        let records = rig.peers[3].take_records();
        let mut told = records.iter().filter_map(|bytes| match Record::read(bytes)? {
            Record::Membership(membership) => Some(membership.present),
            _ => None,
        });
        if let Some(present) = told.next() {
            rig.pass(100_000, 1_000);
            return (present, waited, rig.peers[3].frames(FrameKind::LOG) - frames);
        }
        rig.pass(1_000, 1_000);
    }
    panic!("it does not come")
}

#[test]
fn a_lost_report_of_a_first_join_or_last_leave_is_repeated_after_ten_milliseconds() {
    let mut rig = Rig::<Gateway>::new();
    pass(&mut rig, 1_000_000);
    for (request, lost, after) in [(1, true, 10), (2, false, 0)] {
        rig.peers[3].take_records();
        let name = format!("other{request}");
        rig.tell(
            1,
            &Record::Join {
                request,
                name: name.as_bytes(),
                positions: Positions::default(),
                history: 0,
            },
        );
        assert_eq!(tells_its_router(&mut rig, lost), (true, after, 1), "a join");
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        head_of(&mut rig, &name, 1, 1);
        let records = rig.peers[1].take_records();
        let handle = records.iter().find_map(|bytes| match Record::read(bytes) {
            Some(Record::Joined { handle, .. }) => Some(handle),
            _ => None,
        });
        let handle = handle.expect("joined");
        rig.tell(1, &Record::Leave { handle });
        assert_eq!(tells_its_router(&mut rig, lost), (false, after, 1), "a leave");
    }
}

#[test]
fn greedy_strangers_keep_nobody_from_joining() {
    let mut rig = gateway();
    let join = |name| Record::Join {
        request: 1,
        name,
        positions: Positions::default(),
        history: 0,
    };
    for number in 10..30 {
        let stranger = rig.unknown(number);
        for at in 0..300 {
            rig.tell(stranger, &join(&[b'a'; 1_000][..if at < 290 { 1_000 } else { 1 }]));
        }
    }
    let shown = rig.unknown(30);
    rig.tell(
        shown,
        &Record::Control(ControlRecord::Authenticate { credential: b"token" }),
    );
    for _ in 0..300 {
        rig.tell(shown, &join(&[b'a'; 1_000])); // any holder of a credential may
    }
    let honest = rig.unknown(31);
    rig.tell(
        honest,
        &Record::Control(ControlRecord::Authenticate { credential: b"token" }),
    );
    rig.tell(honest, &join(ROOM.as_bytes()));
    rig.turn();
    rig.turn();
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 1, 1);
    rig.pass(60_000, 5_000);
    assert_eq!(answers(&mut rig, honest), [(1, Ok(()))]);
    assert_eq!(rig.machine.sessions().waiting_bytes(), 0);
}

#[test]
fn a_member_that_asks_for_repairs_notices_that_its_gateway_is_gone() {
    let mut rig = Rig::<Client>::new();
    let behind_a_hole = body(|writer| {
        let mut block = RoomBlock::begin(writer, 0, FIRST_PLACE + 5, stream(1), 6, None);
        block.push(writer, &message(6, b"six"));
        block.finish(writer) == 1
    });
    rig.frame(0, kinds::ROOM.code(), &behind_a_hole);
    rig.peers[0].polite = false;
    rig.pass(1_000_000 + SILENCE_MAX + 500_000, 10_000);
    assert!(rig.peers[0].frames(kinds::REPAIR) > 3, "it asks");
    assert!(!rig.machine.is_ready(Side::Gateway), "and opens another session");
}

#[test]
fn a_stall_of_the_client_does_not_lengthen_its_round_trips() {
    let mut rig = Rig::<Client>::new();
    rig.pass(1_000_000, 10_000);
    rig.machine
        .join(rig.now, "sports:one", Positions::default(), Policy::DropOldest);
    rig.peers[0].polite = false;
    rig.turn();
    rig.now += 3_000_000;
    rig.machine.stalled(rig.now);
    let came = rig.peers[0].received;
    let status = Status {
        highest: came,
        received: came as u32,
        window: 1 << 20,
        ..Status::default()
    };
    rig.say(0, &body(|writer| status.write(writer)));
    let rtt = rig.machine.rtt(Side::Gateway);
    assert!(rtt.is_some_and(|rtt| rtt < 100_000), "{rtt:?}");
}

/// The gateway's next message of a room, with a thousand bytes.
fn fill(rig: &mut Rig<Client>, handle: u32, at: u64) {
    let frame = body(|writer| {
        let mut block = RoomBlock::begin(writer, handle, FIRST_PLACE + at - 1, stream(1), at, None);
        block.push(writer, &message(at, &[7; 1_000]));
        block.finish(writer) == 1
    });
    rig.frame(0, kinds::ROOM.code(), &frame);
}

/// One message, or a chunk of one, from a separate publisher.
fn piece(rig: &mut Rig<Client>, at: u64, publisher: (u64, u64), flags: u8) {
    piece_from(rig, 0, at, publisher, flags);
}

/// As [`piece`], from one of several gateways.
fn piece_from(rig: &mut Rig<Client>, peer: usize, at: u64, (user, sequence): (u64, u64), flags: u8) {
    let frame = body(|writer| {
        let mut block = RoomBlock::begin(writer, 3, FIRST_PLACE + at - 1, stream(1), at, None);
        let publisher = PublisherId { user, incarnation: 1 };
        let piece = Message {
            publisher,
            flags,
            ..message(sequence, &[7; 1_000])
        };
        block.push(writer, &piece);
        block.finish(writer) == 1
    });
    rig.frame(peer, kinds::ROOM.code(), &frame);
}

/// A client that has joined a room with a policy; the room's handle is 3.
fn member_with(policy: Policy) -> (Rig<Client>, u32) {
    let mut rig = Rig::<Client>::new();
    let room = rig.machine.join(rig.now, "sports:one", Positions::default(), policy);
    let joined = Record::Joined {
        request: 3,
        handle: 3,
        index: FIRST_PLACE,
        start: Positions::default(),
        heads: vec![],
        gaps: vec![],
        history: 0,
        whole: true,
    };
    rig.tell(0, &joined);
    (rig, room)
}

/// The items that a program reads after a join with this policy and these events.
fn read_after(policy: Policy, before: impl FnOnce(&mut Rig<Client>, u32)) -> Vec<Item> {
    let (mut rig, room) = member_with(policy);
    before(&mut rig, room);
    let mut data = Vec::new();
    std::iter::from_fn(|| rig.machine.read(rig.now, room, &mut data)).collect()
}

#[test]
fn a_message_dropped_for_a_slow_reader_is_a_gap_from_its_first_chunk() {
    let dropped = |read: &[Item]| {
        let gaps = read.iter().filter_map(|item| match item {
            Item::Gap(gap) if gap.reason == GapReason::Reader => Some((gap.first, gap.last)),
            _ => None,
        });
        gaps.collect::<Vec<_>>()
    };
    let chunks = [FIRST, 0, LAST];
    let long = |rig: &mut Rig<Client>, at: u64| {
        (at..)
            .zip(chunks)
            .for_each(|(at, flags)| piece(rig, at, (1, at), flags))
    };
    // The space is for 61 of them.
    let newest = read_after(Policy::DropNewest, |rig, _| {
        (1..=60).for_each(|at| piece(rig, at, (1, at), WHOLE));
        long(rig, 61);
        long(rig, 64);
    });
    assert_eq!(dropped(&newest), [(61, 66)]);
    let oldest = read_after(Policy::DropOldest, |rig, _| {
        long(rig, 1);
        (4..=63).for_each(|at| piece(rig, at, (1, at), WHOLE));
    });
    assert_eq!(dropped(&oldest), [(1, 3)]);
    // A message read between the chunks does not belong to it.
    let oldest = read_after(Policy::DropOldest, |rig, room| {
        piece(rig, 1, (1, 1), FIRST);
        piece(rig, 2, (2, 1), WHOLE);
        assert!(rig.machine.read(rig.now, room, &mut Vec::new()).is_some());
        piece(rig, 3, (1, 2), LAST);
        (4..=64).for_each(|at| piece(rig, at, (1, at), WHOLE));
    });
    assert_eq!(dropped(&oldest), [(3, 3)]);
    let newest = read_after(Policy::DropNewest, |rig, _| {
        (1..=60).for_each(|at| piece(rig, at, (1, at), WHOLE));
        piece(rig, 61, (1, 61), FIRST);
        piece(rig, 62, (2, 1), WHOLE);
        piece(rig, 63, (1, 62), LAST);
    });
    assert_eq!(dropped(&newest), [(63, 63)]);
}

/// Regression: nothing else came in that room, so its reader kept waiting beside a gap.
#[test]
fn a_reader_learns_at_once_of_an_unfinished_message() {
    let (mut rig, room) = member_with(Policy::DropOldest);
    piece(&mut rig, 1, (1, 1), FIRST);
    let mut data = Vec::new();
    while rig.machine.read(rig.now, room, &mut data).is_some() {}
    let mut events = Vec::new();
    rig.machine.drain_events(&mut events);
    events.clear();
    for _ in 0..70 {
        rig.now += 100_000;
        rig.frame(0, FrameKind::PING.code(), &[]);
        rig.machine.expire(rig.now);
        rig.machine.drain_events(&mut events);
    }
    assert!(events.contains(&ClientEvent::Readable { room }), "{events:?}");
    let item = rig.machine.read(rig.now, room, &mut data);
    assert!(matches!(item, Some(Item::Gap(_))));
}

/// The gateway is away for eight seconds in the middle of a message. The received chunks are kept, and the rest comes
/// afterwards; if it does not, the message is given up in its time.
#[test]
fn a_partly_received_message_is_completed_after_an_outage() {
    for comes in [true, false] {
        let (mut rig, room) = member_with(Policy::DropOldest);
        piece(&mut rig, 1, (1, 1), WHOLE);
        piece(&mut rig, 2, (2, 1), FIRST);
        let mut data = Vec::new();
        let mut read = |rig: &mut Rig<Client>| rig.machine.read(rig.now, room, &mut data);
        assert!(matches!(read(&mut rig), Some(Item::Message { offset: 1, .. })));
        rig.peers[0].polite = false;
        rig.pass(8_000_000, 10_000);
        assert!(!rig.machine.is_ready(Side::Gateway));
        assert_eq!(read(&mut rig), None);
        rig.out.clear();
        rig.serve(9001);
        let back = rig.peers.len() - 1;
        let ready = Record::Control(ControlRecord::Ready {
            user: 42,
            token: [0; 16],
            keepalive_ms: 1_000,
        });
        rig.tell(back, &ready);
        let asked = rig.peers[back].take_records();
        let positions = asked.iter().find_map(|bytes| match Record::read(bytes) {
            Some(Record::Join {
                request: 3, positions, ..
            }) => Some(positions),
            _ => None,
        });
        assert_eq!(
            positions
                .and_then(|positions| positions.of(stream(1)))
                .map(|had| had.offset),
            Some(2)
        );
        let mut again = joined(3, 3);
        if let Record::Joined { index, .. } = &mut again {
            *index += 2;
        }
        rig.tell(back, &again);
        pass(&mut rig, 1_000_000);
        if comes {
            piece_from(&mut rig, back, 3, (2, 2), LAST);
            let whole = read(&mut rig);
            assert!(
                matches!(
                    whole,
                    Some(Item::Message {
                        first: 2,
                        offset: 3,
                        len: 2_000,
                        ..
                    })
                ),
                "{whole:?}"
            );
        }
        pass(&mut rig, 3_500_000);
        assert_eq!(read(&mut rig), None);
        pass(&mut rig, 1_000_000);
        let given_up = matches!(read(&mut rig), Some(Item::Gap(gap)) if (gap.first, gap.last) == (2, 2));
        assert_eq!(given_up, !comes);
    }
}

/// Regression: its chunks took memory from the rooms that the client is still in.
#[test]
fn a_partly_received_message_is_dropped_if_its_room_cannot_return() {
    let (mut rig, room) = member_with(Policy::DropOldest);
    piece(&mut rig, 1, (1, 1), WHOLE);
    piece(&mut rig, 2, (2, 1), FIRST);
    rig.peers[0].polite = false;
    rig.pass(8_000_000, 10_000);
    rig.out.clear();
    rig.serve(9001);
    let back = rig.peers.len() - 1;
    let (user, token, keepalive_ms) = (42, [0; 16], 1_000);
    rig.tell(
        back,
        &Record::Control(ControlRecord::Ready {
            user,
            token,
            keepalive_ms,
        }),
    );
    let (request, code, retry_ms) = (3, Code::NotAllowed, 0);
    rig.tell(
        back,
        &Record::Control(ControlRecord::Refused {
            request,
            code,
            retry_ms,
        }),
    );
    pass(&mut rig, 6_000_000);
    let mut data = Vec::new();
    let mut gone = false;
    while let Some(item) = rig.machine.read(rig.now, room, &mut data) {
        gone |= matches!(item, Item::Gap(gap) if (gap.first..=gap.last).contains(&2));
    }
    assert!(gone);
}

/// A returning session joins all its rooms at once: the replies may be lost, while later frames arrive.
#[test]
fn messages_before_the_reply_to_a_join_are_requested_in_every_room() {
    let mut rig = Rig::<Client>::new();
    let requests = 3..3 + 255;
    for request in requests.clone() {
        let name = format!("sports:{request}");
        rig.machine
            .join(rig.now, &name, Positions::default(), Policy::DropOldest);
    }
    requests.clone().for_each(|handle| fill(&mut rig, handle, 1));
    let mut asked = BTreeSet::new();
    for request in requests.clone() {
        rig.tell(0, &joined(request, request));
        rig.pass(10_000, 2_000);
        let repairs = rig.peers[0].got.drain(..).filter(|(kind, _)| *kind == kinds::REPAIR);
        asked.extend(repairs.map(|(_, body)| u32::from_le_bytes(body[..4].try_into().unwrap())));
    }
    let forgotten: Vec<_> = requests.filter(|handle| !asked.contains(handle)).collect();
    assert_eq!(forgotten, [0; 0]);
}

#[test]
fn late_data_of_a_left_room_is_not_requested_from_the_next_room_with_its_handle() {
    let mut rig = Rig::<Client>::new();
    let join = |rig: &mut Rig<Client>, name: &str| {
        rig.machine
            .join(rig.now, name, Positions::default(), Policy::DropOldest)
    };
    let answer = |rig: &mut Rig<Client>, request: u32, handle: u32| {
        rig.tell(0, &joined(request, handle));
    };
    let one = join(&mut rig, "sports:one");
    answer(&mut rig, 3, 3);
    rig.machine.leave(one);
    join(&mut rig, "sports:two");
    fill(&mut rig, 3, 9);
    answer(&mut rig, 4, 4);
    join(&mut rig, "sports:three");
    answer(&mut rig, 5, 3);
    rig.pass(100_000, 5_000);
    assert_eq!(rig.peers[0].frames(kinds::REPAIR), 0);
}

#[test]
fn the_window_is_closed_exactly_while_a_room_blocks() {
    let mut rig = Rig::<Client>::new();
    let rooms = [(3, "sports:one"), (4, "sports:two")].map(|(request, name)| {
        let room = rig.machine.join(rig.now, name, Positions::default(), Policy::Block);
        rig.tell(0, &joined(request, request));
        (1..=70).for_each(|at| fill(&mut rig, request, at));
        room
    });
    let open = |rig: &mut Rig<Client>| {
        rig.pass(100_000, 10_000);
        rig.peers[0].conn.flow.available(1_200) > 0
    };
    assert!(!open(&mut rig));
    let mut data = Vec::new();
    while rig.machine.read(rig.now, rooms[0], &mut data).is_some() {}
    assert!(!open(&mut rig), "the other one still blocks");
    rig.machine.leave(rooms[1]);
    assert!(open(&mut rig), "no room blocks anymore");
}

#[test]
fn a_silent_gateway_is_asked_repeatedly_before_it_is_given_up() {
    let mut rig = Rig::<Client>::new();
    rig.pass(3_000_000, 10_000);
    rig.peers[0].polite = false;
    let (start, mut asked) = (rig.now, Vec::new());
    while rig.machine.is_ready(Side::Gateway) {
        let before = rig.peers[0].frames(FrameKind::PING);
        rig.pass(10_000, 10_000);
        if rig.peers[0].frames(FrameKind::PING) > before {
            asked.push((rig.now - start) / 1_000);
        }
    }
    let pause = asked.windows(2).map(|two| two[1] - two[0]).max();
    // Shortly before it is given up, it is asked twenty times more: waiting out a burst of losses is cheaper than a
    // handshake.
    let last_from = (rig.now - start) / 1_000 - 500;
    let last = asked.iter().filter(|at| **at > last_from).count();
    assert!(pause <= Some(620) && asked.len() - last <= 20, "{asked:?}");
    assert!((18..=26).contains(&last), "{asked:?}");
    let lasted = rig.now - start - asked[0] * 1_000;
    assert!(lasted.abs_diff(SILENCE_MAX) <= 20_000, "{lasted}");
}

/// Hellos sent to an address in this time.
fn hellos<M: Subject>(rig: &mut Rig<M>, to: Addr, time: u64) -> Vec<(u64, u64)> {
    let (start, mut seen) = (rig.now, Vec::new());
    while rig.now < start + time {
        rig.turn();
        for (addr, bytes) in std::mem::take(&mut rig.out) {
            let header = Header::read(&bytes).expect("a header");
            if header.kind == DatagramKind::Hello && addr == to {
                seen.push(((rig.now - start) / 1_000, header.connection));
            }
        }
        rig.now += 5_000;
    }
    seen
}

/// The reply to a hello without a cookie.
fn cookie(connection: u64) -> Vec<u8> {
    let mut bytes = vec![7; HEADER + 16];
    Header::clear(DatagramKind::Cookie, connection).write(&mut bytes);
    bytes
}

#[test]
fn a_lost_hello_is_soon_repeated_and_a_far_server_has_time_to_answer() {
    let mut rig = Rig::<Client>::bare();
    let near = hellos(&mut rig, addr(9001), 250_000);
    assert!(near.len() >= 3, "{near:?}");
    rig.give(0, addr(9001), &cookie(near[0].1));
    let far = hellos(&mut rig, addr(9001), 600_000);
    assert_eq!(far[0].0, 0, "the cookie is shown at once");
    assert!(far[1].0 >= 200 && far.len() <= 3, "{far:?}");
    let mut rig = Rig::<Client>::bare();
    let first = hellos(&mut rig, addr(9001), 5_000);
    rig.give(0, addr(9001), &cookie(first[0].1));
    let near = hellos(&mut rig, addr(9001), 200_000);
    assert!(near.len() >= 3 && near[1].0 <= 55, "{near:?}");
}

#[test]
fn a_node_that_answered_once_is_dialled_faster_than_a_dead_one() {
    let mut rig = Rig::<Proxy>::bare();
    let broker = addr(9000 + BROKER as u16);
    let dead = hellos(&mut rig, broker, 3_000_000);
    assert!((10..=15).contains(&dead.len()), "{dead:?}");
    rig.give(0, broker, &cookie(dead[0].1));
    let back = hellos(&mut rig, broker, 200_000);
    assert!(back.len() >= 3 && back[0].0 == 0 && back[1].0 <= 55, "{back:?}");
}

/// A proxy, and a session that publishes to a room.
fn publishing() -> Rig<Proxy> {
    let mut rig = Rig::<Proxy>::bare();
    rig.session(1);
    let (request, incarnation) = (1, 5);
    let name = ROOM.as_bytes();
    rig.tell(
        0,
        &Record::Open {
            request,
            name,
            incarnation,
        },
    );
    rig.turn();
    rig
}

/// Handle, code and cumulative sequence of all acknowledgements.
fn acknowledgements(rig: &Rig<Proxy>) -> Vec<(u32, Code, u64)> {
    let got = rig.peers[0].got.iter();
    got.filter(|(kind, _)| *kind == kinds::ACK)
        .map(|(_, body)| Ack::read(body).expect("well formed"))
        .map(|ack| (ack.handle, ack.code, ack.cumulative))
        .collect()
}

#[test]
fn a_proxy_reports_an_absent_owner() {
    let mut rig = publishing();
    rig.say(0, &publish(0, 3, 4, &[b"four"]));
    rig.say(0, &publish(0, 3, 5, &[b"five"]));
    rig.turn();
    assert_eq!(acknowledgements(&rig), [(0, Code::NotReady, 2)], "once for both");
    assert_eq!(counter(&rig.machine, "dropped_no_owner"), 2);
}

#[test]
fn a_proxy_refuses_a_publish_frame_that_would_not_fit_into_a_link() {
    let longest = PAYLOAD - 113;
    let alone = message_max(PAYLOAD) + 1; // members could get none of it
    let largest = PAYLOAD - HEADER - 16 - 29; // the space in a client's own datagram
    let refused = |len| (len, Code::Malformed, 1);
    for (len, code, dropped) in [
        (longest, Code::NotReady, 0),
        refused(longest + 1),
        refused(3 + alone),
        refused(largest),
    ] {
        let mut rig = publishing();
        rig.say(0, &publish(0, 3, 4, &[&vec![0; len - 3]]));
        rig.turn();
        assert_eq!(acknowledgements(&rig), [(0, code, 2)]);
        assert_eq!(counter(&rig.machine, "dropped_frame"), dropped);
    }
}

/// Regression: the owner dropped them silently, so the publisher repeated them forever.
#[test]
fn a_proxy_refuses_invalid_sequences() {
    for (low, first, code) in [
        (1, 1 << 61, Code::NotReady),
        (0, 1, Code::Malformed),
        (1, 0, Code::Malformed),
        (1, (1 << 61) + 1, Code::Malformed),
        ((1 << 61) + 1, 1, Code::Malformed),
    ] {
        let mut rig = publishing();
        rig.say(0, &publish(0, low, first, &[b"one"]));
        rig.turn();
        let answers = acknowledgements(&rig);
        assert_eq!(answers.iter().map(|(_, code, _)| *code).collect::<Vec<_>>(), [code]);
    }
}

/// The numbers of the commands that a broker got.
fn told_commands(rig: &mut Rig<Proxy>, broker: usize) -> Vec<u64> {
    let records = rig.peers[broker].take_records();
    let number = |bytes: &Vec<u8>| match Record::read(bytes) {
        Some(Record::LinkCommand { command, .. }) => Some(command.number),
        _ => None,
    };
    records.iter().filter_map(number).collect()
}

#[test]
fn a_command_goes_to_another_broker_if_one_is_not_ready() {
    let mut rig = Rig::<Proxy>::bare();
    let nodes = [BROKER, BROKER + 50].map(|node| PlacedNode::new(node, role::BROKER, addr(9000 + node as u16)));
    rig.machine
        .set_placement(rig.now, room_placement(2, nodes.to_vec(), 1, 1));
    rig.machine.set_command_limit(1, 5);
    rig.session(1);
    let brokers = nodes.map(|node| rig.link(node.node, role::BROKER));
    for number in 0..5 {
        rig.tell(0, &go(number));
        rig.turn();
        let told = brokers.map(|broker| told_commands(&mut rig, broker));
        let [one, other] = if told[0].is_empty() { [1, 0] } else { [0, 1] };
        assert_eq!((&*told[one], &*told[other]), (&[number][..], &[][..]));
        let done = |outcome| Record::LinkCommandDone {
            command: CommandId { user: 42, number },
            session: 1,
            outcome,
            page: None,
        };
        rig.tell(brokers[one], &done(Outcome::refused(Code::NotReady)));
        rig.pass(100_000, 1_000);
        assert_eq!(told_commands(&mut rig, brokers[other]), [number]);
        rig.tell(brokers[other], &done(Outcome::of(1)));
        rig.pass(100_000, 1_000);
        assert_eq!(told_commands(&mut rig, brokers[one]), [0; 0]);
    }
}

fn open(rig: &mut Rig<Proxy>, request: u32) -> Record<'static> {
    let name = format!("sports:{request}");
    rig.peers[0].take_records();
    rig.tell(
        0,
        &Record::Open {
            request,
            name: name.as_bytes(),
            incarnation: u64::from(request),
        },
    );
    rig.pass(10_000, 1_000);
    let answer = rig.peers[0].take_records().pop().expect("an answer");
    match Record::read(&answer) {
        Some(Record::Opened { request, handle }) => Record::Opened { request, handle },
        Some(Record::Control(ControlRecord::Refused {
            request,
            code,
            retry_ms,
        })) => Record::Control(ControlRecord::Refused {
            request,
            code,
            retry_ms,
        }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_closed_slot_is_reused_and_gets_no_data_of_its_former_room() {
    let mut rig = Rig::<Proxy>::new();
    let (code, retry_ms) = (Code::TooManyRooms, 0);
    // The first is open already.
    for request in 2..257 {
        let handle = request - 1;
        assert_eq!(open(&mut rig, request), Record::Opened { request, handle });
    }
    let request = 257;
    let counts = |rig: &Rig<Proxy>| {
        let counters = &rig.machine.counters;
        [
            counters.messages_received,
            counters.messages_forwarded,
            counters.dropped_handle,
        ]
    };
    let before = counts(&rig);
    assert_eq!(
        open(&mut rig, request),
        Record::Control(ControlRecord::Refused {
            request,
            code,
            retry_ms
        })
    );
    rig.tell(0, &Record::Close { handle: 7 + 256 });
    assert_eq!(
        open(&mut rig, request),
        Record::Control(ControlRecord::Refused {
            request,
            code,
            retry_ms
        })
    );
    (0..2).for_each(|_| rig.tell(0, &Record::Close { handle: 7 }));
    let handle = 7 + 256;
    assert_eq!(open(&mut rig, request), Record::Opened { request, handle });
    assert_eq!(
        open(&mut rig, request),
        Record::Opened { request, handle },
        "asked twice"
    );
    assert_eq!(rig.machine.counters.rooms_closed, 1);
    // Late data for the eighth room is dropped, data for its successor arrives.
    rig.peers[2].got.clear();
    rig.say(0, &publish(7, 1, 1, &[b"late"]));
    rig.pass(10_000, 1_000);
    assert_eq!(rig.peers[2].frames(kinds::LINK_PUBLISH), 1, "of before");
    rig.say(0, &publish(handle, 1, 1, &[b"new", b"newer"]));
    rig.pass(10_000, 1_000);
    let passed = rig.peers[2].got.iter().find(|(kind, _)| *kind == kinds::LINK_PUBLISH);
    let passed = LinkPublish::read(0, &passed.expect("it went on").1).expect("well formed");
    let incarnation = u64::from(request);
    assert_eq!(
        (passed.room, passed.publisher.incarnation, passed.handle),
        (room_id("sports:257"), incarnation, handle)
    );
    assert_eq!(counts(&rig), [before[0] + 3, before[1] + 2, before[2] + 1]);
}

/// A client with all slots taken: 256 rooms are open, and the first has unacknowledged messages.
fn full_of_rooms() -> Rig<Client> {
    let mut rig = Rig::<Client>::new();
    for at in 1..256 {
        let opened = rig.machine.publication(rig.now, &format!("sports:{at}"));
        assert_eq!(
            opened.map(|opened| (opened.publication, opened.closed)),
            Some((at, None))
        );
        let (request, handle) = (2 + at, at);
        rig.turn();
        rig.tell(1, &Record::Opened { request, handle });
    }
    rig.pass(100_000, 5_000);
    rig.peers[1].take_records();
    rig
}

fn acknowledge(rig: &mut Rig<Client>, handle: u32, cumulative: u64) -> Vec<ClientEvent> {
    let ack = Ack {
        handle,
        echo: 0,
        code: Code::Ok,
        cumulative,
        highest: cumulative,
        credit_messages: 256,
        credit_bytes: 1 << 18,
        stream: stream(1),
        missing: vec![],
        runs: vec![(1, 1, 9)],
    };
    let mut events = Vec::new();
    rig.machine.drain_events(&mut events);
    events.clear();
    rig.say(1, &body(|writer| ack.write(writer)));
    rig.machine.drain_events(&mut events);
    events
}

#[test]
fn a_client_closes_the_room_that_it_used_longest_ago_for_another() {
    let mut rig = full_of_rooms();
    for at in [2, 1, 3] {
        assert_eq!(rig.machine.publish(at, b"used", 7), Ok(()));
        rig.pass(10_000, 1_000);
        acknowledge(&mut rig, at, 1);
    }
    (4..256).for_each(|at| assert_eq!(rig.machine.publish(at, b"used", 0), Ok(())));
    let opened = rig.machine.publication(rig.now, "sports:new").expect("a place");
    assert_eq!((opened.publication, opened.closed), (2 + 256, Some(2)));
    rig.pass(10_000, 1_000);
    let told = rig.peers[1].take_records();
    let told: Vec<_> = told
        .iter()
        .map(|bytes| Record::read(bytes).expect("well formed"))
        .collect();
    assert_eq!(told[0], Record::Close { handle: 2 });
    let Record::Open { request, .. } = told[1] else {
        panic!("{:?}", told[1])
    };
    // Late data for the closed room has no effect.
    assert!(rig.machine.publishing(2).is_none());
    let new = opened.publication;
    assert_eq!(
        rig.machine.publish(2, b"closed", 8),
        Err(PublishError::Refused(Code::Unknown))
    );
    assert_eq!(rig.machine.publish(new, b"new", 9), Ok(()));
    rig.tell(1, &Record::Opened { request: 4, handle: 2 });
    assert_eq!(rig.machine.publishing(new).and_then(|known| known.handle), None);
    rig.tell(1, &Record::Opened { request, handle: 258 });
    rig.pass(10_000, 1_000);
    assert_eq!(acknowledge(&mut rig, 2, 1), []);
    assert_eq!(rig.machine.publishing(new).map(|known| known.unacknowledged()), Some(1));
    let events = acknowledge(&mut rig, 258, 1);
    assert!(
        matches!(events[..], [ClientEvent::Published(done)] if done.ticket == 9),
        "{events:?}"
    );
    // It returns in a new life.
    let again = rig.machine.publication(rig.now, "sports:2").expect("a place");
    assert_eq!(again.closed, Some(1));
    rig.pass(10_000, 1_000);
    let told = rig.peers[1].take_records();
    assert!(told
        .iter()
        .any(|bytes| matches!(Record::read(bytes), Some(Record::Open { name: b"sports:2", .. }))));
}

/// The client's longest pause between hellos within two minutes in which no server admits it, with or without a
/// cookie.
fn longest_pause(mut rig: Rig<Client>, cookies: bool) -> u64 {
    let (mut last, mut longest) = (rig.now, 0);
    for _ in 0..12_000 {
        rig.pass(10_000, 10_000);
        let hello = rig.out.drain(..).find(|(to, _)| *to == addr(9001));
        let Some((_, bytes)) = hello else { continue };
        longest = longest.max(rig.now - last);
        last = rig.now;
        if cookies {
            let id = Header::read(&bytes).unwrap().connection;
            rig.give(0, addr(9001), &cookie(id));
        }
    }
    longest
}

#[test]
fn a_client_reconnects_within_a_second_but_spares_a_busy_server() {
    let longest_pause = |cookies| longest_pause(Rig::bare(), cookies);
    let (nobody, busy) = (longest_pause(false), longest_pause(true));
    assert!((200_000..1_000_000).contains(&nobody), "{nobody} us without a hello");
    assert!((3_000_000..6_000_000).contains(&busy), "{busy} us without a hello");
}

/// The rooms that the client asked to join and those that it left, by name and handle, in order.
fn joins_and_leaves(rig: &mut Rig<Client>) -> Vec<Result<String, u32>> {
    let records = rig.peers[0].take_records();
    let asked = records.iter().filter_map(|bytes| match Record::read(bytes) {
        Some(Record::Join { name, .. }) => Some(Ok(String::from_utf8(name.to_vec()).unwrap())),
        Some(Record::Leave { handle }) => Some(Err(handle)),
        _ => None,
    });
    asked.collect()
}

#[test]
fn more_joins_and_leaves_than_a_log_holds_are_sent_in_order() {
    let mut rig = Rig::<Client>::new();
    joins_and_leaves(&mut rig);
    let positions = Positions::at((1..=4).map(|epoch| (stream(epoch), 7)));
    let name = |at: usize| format!("sports:{at:0>150}");
    for at in 1..256 {
        rig.machine
            .join(rig.now, &name(at), positions.clone(), Policy::DropOldest);
    }
    rig.machine.leave(0);
    rig.machine
        .join(rig.now, ROOM, Positions::default(), Policy::DropOldest);
    for _ in 0..50 {
        rig.pass(20_000, 5_000);
        rig.frame(0, FrameKind::PING.code(), &[]);
    }
    let asked = joins_and_leaves(&mut rig);
    let mut names: Vec<_> = asked.iter().flatten().cloned().collect();
    names.sort();
    let mut wanted: Vec<_> = (1..256).map(name).chain([ROOM.to_string()]).collect();
    wanted.sort();
    assert_eq!(names, wanted);
    let left = asked.iter().position(|each| *each == Err(0));
    let again = asked.iter().position(|each| *each == Ok(ROOM.to_string()));
    assert!(left.is_some() && left < again, "left {left:?}, joined again {again:?}");
}

/// Regression: the cancelled join had made it a member, and no report ended that.
#[test]
fn a_cancelled_join_before_a_refused_one_leaves_no_member() {
    let mut rig = Rig::<Client>::new();
    let join = |rig: &mut Rig<Client>| {
        rig.machine
            .join(rig.now, "sports:one", Positions::default(), Policy::DropOldest)
    };
    let first = join(&mut rig);
    rig.turn();
    rig.machine.leave(first);
    let second = join(&mut rig);
    rig.turn();
    joins_and_leaves(&mut rig);
    rig.tell(0, &joined(3, 7));
    let refused = Record::Control(ControlRecord::Refused {
        request: 4,
        code: Code::TooMuchHistory,
        retry_ms: 0,
    });
    rig.tell(0, &refused);
    rig.turn();
    assert_eq!(joins_and_leaves(&mut rig), []);
    rig.machine.leave(second);
    rig.turn();
    assert_eq!(joins_and_leaves(&mut rig), [Err(7)]);
}

/// The addresses of the client's hellos since the last call.
fn knocks(rig: &mut Rig<Client>) -> Vec<Addr> {
    let sent = rig.out.drain(..);
    sent.filter(|(_, bytes)| Header::read(bytes).unwrap().kind == DatagramKind::Hello)
        .map(|(to, _)| to)
        .collect()
}

fn servers(ports: &[u16]) -> Vec<Endpoint> {
    let endpoint = |port: &u16| Endpoint {
        addr: addr(*port),
        key: server_key().public(),
    };
    ports.iter().map(endpoint).collect()
}

#[test]
fn a_client_given_other_servers_moves_at_once_but_keeps_a_working_session() {
    let mut rig = Rig::<Client>::new();
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    for _ in 0..300 {
        rig.pass(100_000, 20_000);
        rig.frame(1, FrameKind::PING.code(), &[]);
    }
    assert!(knocks(&mut rig).iter().all(|to| *to == addr(9001)));
    rig.machine
        .redirect(rig.now, servers(&[9005]), servers(&[9006]), b"token".to_vec());
    rig.pass(150_000, 10_000);
    let sent = knocks(&mut rig);
    assert!(!sent.is_empty() && sent.iter().all(|to| *to == addr(9005)), "{sent:?}");
    assert!(rig.machine.is_ready(Side::Proxy));
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    rig.pass(150_000, 10_000);
    assert!(knocks(&mut rig).contains(&addr(9006)));
}

/// Regression: after each change of the list of servers, all waiting clients came within 100 ms, whatever pace had
/// been announced to them.
#[test]
fn a_waiting_client_keeps_its_pace_when_a_server_is_added() {
    let next_hello = |gateways: &[u16]| {
        let mut rig = Rig::<Client>::new();
        let pace = Record::Control(ControlRecord::Pace {
            backoff_ms: 1_000,
            backoff_max_ms: 60_000,
        });
        rig.tell(0, &pace);
        rig.frame(0, FrameKind::CLOSE.code(), &[0]);
        let (mut attempts, mut until) = (BTreeSet::new(), Micros::MAX);
        while rig.now < until {
            rig.pass(10_000, 10_000);
            for (_, bytes) in std::mem::take(&mut rig.out) {
                let id = Header::read(&bytes).unwrap().connection;
                if attempts.insert(id) && attempts.len() == 5 {
                    until = rig.now + 2_050_000;
                }
                rig.give(0, addr(9001), &cookie(id));
            }
        }
        assert_eq!(attempts.len(), 5);
        rig.machine
            .redirect(rig.now, servers(gateways), servers(&[9002]), b"token".to_vec());
        let start = rig.now;
        while knocks(&mut rig).is_empty() {
            rig.pass(10_000, 10_000);
        }
        rig.now - start
    };
    let alone = next_hello(&[9001]);
    assert!(alone > 1_000_000, "{alone}");
    assert_eq!(next_hello(&[9005, 9001]), alone);
}

/// A server is busy, and announces when to ask again.
fn busy(request: u32, code: Code, retry_ms: u32) -> Record<'static> {
    Record::Control(ControlRecord::Refused {
        request,
        code,
        retry_ms,
    })
}

#[test]
fn a_client_waits_as_long_as_its_only_server_announces() {
    let until_hello = |mut rig: Rig<Client>, port: u16| {
        let start = rig.now;
        rig.tell(0, &busy(0, Code::Busy, 1_000));
        knocks(&mut rig);
        while !knocks(&mut rig).contains(&addr(port)) {
            rig.pass(10_000, 10_000);
        }
        rig.now - start
    };
    let opening = || {
        let mut rig = Rig::<Client>::bare();
        rig.serve(9001);
        rig
    };
    for rig in [Rig::new(), opening()] {
        let took = until_hello(rig, 9001);
        assert!((1_000_000..=2_010_000).contains(&took), "{took}");
    }
    let mut rig = Rig::<Client>::new();
    rig.machine
        .redirect(rig.now, servers(&[9001, 9005]), servers(&[9002]), b"token".to_vec());
    let took = until_hello(rig, 9005);
    assert!(took < 150_000, "another one is tried soon: {took}");
}

/// Regression: all that had waited for a room were refused at once, and returned at once.
#[test]
fn temporarily_refused_joins_and_opens_return_at_spread_times() {
    /// The waits, in steps of 10 ms, before a client asks again after each refusal.
    fn waits(seed: u64, side: Side, times: usize) -> Vec<u64> {
        let mut rig = Rig::<Client>::bare();
        rig.machine = Client::build(seed);
        Client::settle(&mut rig);
        match side {
            Side::Gateway => {
                rig.machine
                    .join(rig.now, "sports:one", Positions::default(), Policy::DropOldest);
            }
            Side::Proxy => {
                rig.machine.publication(rig.now, "sports:one");
            }
        }
        rig.turn();
        let peer = side as usize;
        let asks = |rig: &mut Rig<Client>| {
            let records = rig.peers[peer].take_records();
            let asks = |bytes: &Vec<u8>| match Record::read(bytes) {
                Some(Record::Join { request, .. } | Record::Open { request, .. }) => request == 3,
                _ => false,
            };
            records.iter().any(asks)
        };
        assert!(asks(&mut rig));
        let wait = |_| {
            rig.tell(peer, &busy(3, Code::NotReady, 500));
            let start = rig.now;
            while !asks(&mut rig) {
                rig.pass(10_000, 10_000);
            }
            (rig.now - start) / 10_000
        };
        (0..times).map(wait).collect()
    }
    for side in [Side::Gateway, Side::Proxy] {
        let first: Vec<u64> = (0..100).map(|seed| waits(seed, side, 1)[0]).collect();
        assert!(first.iter().all(|wait| (50..=102).contains(wait)), "{first:?}");
        let steps: BTreeSet<_> = first.iter().collect();
        assert!(steps.len() > 20, "{first:?}");
        let row = waits(1, side, 8);
        assert!(row[2] >= 200 && row.iter().all(|wait| *wait <= 402), "{row:?}");
    }
}

#[test]
fn a_wanted_session_opens_once_a_server_is_given() {
    let mut rig = Rig::<Client>::learning_from(&[]);
    rig.machine
        .join(rig.now, ROOM, Positions::default(), Policy::DropOldest);
    rig.pass(200_000, 20_000);
    assert_eq!(knocks(&mut rig), []);
    rig.machine
        .redirect(rig.now, servers(&[9001]), vec![], b"token".to_vec());
    rig.pass(40_000, 20_000);
    assert_eq!(knocks(&mut rig), [addr(9001)]);
}

/// Regression: it was requested again in each session, and came half alive again where a later request was accepted.
#[test]
fn a_finally_refused_room_is_not_requested_again() {
    let mut rig = Rig::<Client>::new();
    let joins_of_the_next_session = |rig: &mut Rig<Client>| {
        rig.frame(rig.peers.len() - 1, FrameKind::CLOSE.code(), &[0]);
        rig.serve(9001);
        let last = rig.peers.len() - 1;
        rig.tell(last, &ready(1_000));
        rig.pass(100_000, 10_000);
        let records = rig.peers[last].take_records();
        let is_join = |bytes: &&Vec<u8>| matches!(Record::read(bytes), Some(Record::Join { .. }));
        records.iter().filter(is_join).count()
    };
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    rig.machine
        .redirect(rig.now, servers(&[9001]), vec![], b"token".to_vec());
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    rig.serve(9001);
    assert_eq!(joins_of_the_next_session(&mut rig), 1);
    let refused = Record::Control(ControlRecord::Refused {
        request: 1,
        code: Code::NotAllowed,
        retry_ms: 0,
    });
    rig.tell(rig.peers.len() - 1, &refused);
    rig.turn();
    assert_eq!(joins_of_the_next_session(&mut rig), 0);
}

#[test]
fn a_client_leaves_a_silent_or_closing_server_and_returns_after_a_reset() {
    for seed in 0..8 {
        let lost = |lose: &dyn Fn(&mut Rig<Client>)| {
            let mut rig = Rig::<Client>::new();
            let gateways = servers(if seed % 2 == 0 { &[9001, 9005] } else { &[9005, 9001] });
            rig.machine
                .redirect(rig.now, gateways, servers(&[9002]), b"token".to_vec());
            rig.pass(10_000 * seed, 10_000);
            knocks(&mut rig);
            lose(&mut rig);
            while rig.machine.is_ready(Side::Gateway) {
                rig.pass(10_000, 10_000);
            }
            rig.pass(150_000, 10_000);
            knocks(&mut rig)[0]
        };
        assert_eq!(lost(&|rig| rig.peers[0].polite = false), addr(9005));
        assert_eq!(lost(&|rig| rig.frame(0, FrameKind::CLOSE.code(), &[0])), addr(9005));
        let reset = |rig: &mut Rig<Client>| {
            let mut bytes = vec![0; HEADER + 16];
            Header::clear(DatagramKind::Reset, 1 << 40 | 9001).write(&mut bytes);
            rig.give(0, addr(9001), &bytes);
        };
        assert_eq!(lost(&reset), addr(9001));
    }
}

/// Otherwise commands to its rooms would wait for it there, as long as a server keeps a silent client.
#[test]
fn a_gateway_given_up_as_silent_is_told_once_the_client_has_another() {
    let mut rig = Rig::<Client>::new();
    let closed = |rig: &Rig<Client>| rig.peers[0].frames(FrameKind::CLOSE);
    rig.peers[0].polite = false;
    while rig.machine.is_ready(Side::Gateway) {
        rig.pass(10_000, 10_000);
    }
    rig.serve(9001);
    assert_eq!(closed(&rig), 0, "perhaps nothing leaves yet");
    let ready = ready(1_000);
    rig.tell(2, &ready);
    rig.pass(2_000_000, 10_000);
    assert!(rig.machine.is_ready(Side::Gateway));
    assert_eq!(closed(&rig), 1);
}

#[test]
fn a_client_reconnects_at_the_announced_pace() {
    let told = |backoff_ms, backoff_max_ms| {
        let mut rig = Rig::<Client>::new();
        let pace = Record::Control(ControlRecord::Pace {
            backoff_ms,
            backoff_max_ms,
        });
        rig.tell(0, &pace);
        rig.frame(0, FrameKind::CLOSE.code(), &[0]);
        longest_pause(rig, false)
    };
    let (usual, slow) = (told(100, 5_000), told(4_000, 60_000));
    assert!(
        usual < 1_000_000 && (2_000_000..5_000_000).contains(&slow),
        "{usual} {slow}"
    );
    // Neither a malformed pace nor an extreme one.
    assert_eq!(told(0, 0), usual);
    assert!(told(u32::MAX, 1) <= 61_000_000);
}

#[test]
fn a_proxy_announces_an_unusual_pace_and_sends_all_clients_away_when_it_drains() {
    let told = |rig: &mut Rig<Proxy>, at: usize| -> Vec<Option<(u32, u32)>> {
        rig.session(at as u32);
        let records = rig.peers[at].take_records();
        let pace = |record: &Vec<u8>| match Record::read(record) {
            Some(Record::Control(ControlRecord::Pace {
                backoff_ms,
                backoff_max_ms,
            })) => Some((backoff_ms, backoff_max_ms)),
            _ => None,
        };
        records.iter().map(pace).collect()
    };
    let mut rig = Rig::<Proxy>::bare();
    rig.machine.set_backoff(2_000, 60_000);
    assert_eq!(told(&mut rig, 0), [None, Some((2_000, 60_000))]);
    rig.machine.set_backoff(100, 5_000);
    assert_eq!(told(&mut rig, 1), [None]);
    rig.machine.drain();
    assert!(!rig.machine.sessions().is_drained());
    rig.pass(20_000, 1_000);
    for at in 0..2 {
        let last = rig.peers[at].take_records().pop().expect("a word");
        let draining = |record| {
            matches!(
                record,
                Record::Control(ControlRecord::Refused {
                    request: 0,
                    code: Code::Draining,
                    ..
                })
            )
        };
        assert!(Record::read(&last).is_some_and(draining));
    }
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    rig.turn();
    assert!(!rig.machine.sessions().is_drained(), "one may not have heard it");
    rig.pass(1_100_000, 10_000);
    assert!(rig.machine.sessions().is_drained());
}

/// Regression: the session ended before its log repeated the refusal: the client got no reply, and waited for a
/// timeout.
#[test]
fn a_client_learns_that_it_is_sent_away_despite_early_losses() {
    let mut rig = gateway();
    rig.machine.drain();
    rig.peers[0].deaf = true;
    rig.pass(300_000, 10_000);
    rig.peers[0].deaf = false;
    rig.pass(600_000, 10_000);
    assert_eq!(answers(&mut rig, 0), [(0, Err(Code::Draining))]);
}

/// Regression: clients of a gateway without a link to any broker of a partition stayed there forever, though others
/// reached it.
#[test]
fn gateways_and_proxies_know_partitions_that_only_others_reach() {
    const OTHER: u32 = 9;
    let two_partitions = |state| {
        let before = placement_with(OTHER, role::BROKER);
        let roles = [role::GATEWAY, role::PROXY, role::BROKER, role::ROUTER];
        let mut nodes: Vec<PlacedNode> = roles.iter().flat_map(|role| before.of(*role)).copied().collect();
        for node in nodes.iter_mut().filter(|node| node.node == OTHER) {
            (node.partition, node.state) = (1, state);
        }
        room_placement(2, nodes, 2, 1)
    };
    let cut = Some("no broker of partition 1 is linked".to_owned());
    let mut gateway = Rig::<Gateway>::new();
    assert_eq!(gateway.machine.cut_off(), None);
    gateway
        .machine
        .set_placement(gateway.now, two_partitions(NodeState::Running));
    assert_eq!(
        (gateway.machine.cut_off(), gateway.machine.not_ready()),
        (cut.clone(), None)
    );
    gateway.link(OTHER, role::BROKER);
    assert_eq!(gateway.machine.cut_off(), None);
    let mut proxy = Rig::<Proxy>::new();
    proxy
        .machine
        .set_placement(proxy.now, two_partitions(NodeState::Running));
    assert_eq!(proxy.machine.cut_off(), cut);
    let mut unserved = Rig::<Proxy>::new();
    unserved
        .machine
        .set_placement(unserved.now, two_partitions(NodeState::Init));
    assert_eq!(unserved.machine.cut_off(), None, "no other one reaches it either");
    // A client that comes while others are sent away is refused, to return later.
    gateway.machine.drain();
    gateway.pass(1_100_000, 10_000);
    assert_eq!(gateway.machine.sessions().table.len(), 0);
    gateway.machine.stay();
    gateway.session(7);
    assert_eq!(gateway.machine.sessions().table.len(), 1);
}

#[test]
fn a_client_that_is_sent_away_closes_its_session_and_moves() {
    let mut rig = Rig::<Client>::new();
    rig.machine
        .redirect(rig.now, servers(&[9001, 9005]), servers(&[9002]), b"token".to_vec());
    let draining = Record::Control(ControlRecord::Refused {
        request: 0,
        code: Code::Draining,
        retry_ms: 1_000,
    });
    rig.tell(0, &draining);
    rig.pass(150_000, 1_000);
    assert_eq!(rig.peers[0].frames(FrameKind::CLOSE), 1);
    assert_eq!(knocks(&mut rig)[0], addr(9005));
}

/// Servers as announced by others.
fn named(ports: &[(u16, u16)]) -> Vec<Server> {
    let server = |(port, weight): &(u16, u16)| Server {
        addr: addr(*port),
        key: server_key().public(),
        weight: *weight,
    };
    ports.iter().map(server).collect()
}

/// The addresses that a client tries if it has lost its gateway for long, and still has its proxy.
fn tried(rig: &mut Rig<Client>, rounds: usize) -> Vec<Addr> {
    knocks(rig);
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    let mut tried = Vec::new();
    for _ in 0..rounds {
        rig.pass(100_000, 20_000);
        rig.frame(1, FrameKind::PING.code(), &[]);
        tried.extend(knocks(rig));
    }
    tried.dedup();
    tried
}

#[test]
fn a_client_tries_announced_servers_and_returns_to_its_given_one() {
    let mut rig = Rig::<Client>::learning();
    let role = role::GATEWAY;
    rig.tell(
        0,
        &Record::Control(ControlRecord::Servers {
            role,
            servers: named(&[(9001, 1), (9005, 1), (9006, 1)]),
        }),
    );
    let all = tried(&mut rig, 300);
    assert_ne!(all[0], addr(9001));
    for port in [9001, 9005, 9006] {
        assert!(all.contains(&addr(port)), "{port} was not tried: {all:?}");
    }
    // The latest list holds, and no server removes addresses given by the program.
    let servers = named(&[(9007, 1)]);
    rig.tell(1, &Record::Control(ControlRecord::Servers { role, servers }));
    let all = tried(&mut rig, 300);
    assert!(
        all[1..].iter().all(|to| [addr(9001), addr(9007)].contains(to)),
        "{all:?}"
    );
    assert!(all.contains(&addr(9001)) && all.contains(&addr(9007)), "{all:?}");
}

/// The address that a client chooses when its only gateway announces these at once.
fn spread(ports: &[(u16, u16)]) -> Vec<Addr> {
    let mut rig = Rig::<Client>::new_to_all();
    rig.serve(9001);
    rig.out.clear();
    let ready = Record::Control(ControlRecord::Ready {
        user: 42,
        token: [5; 16],
        keepalive_ms: 1000,
    });
    rig.tell(0, &ready);
    let servers = named(ports);
    rig.tell(
        0,
        &Record::Control(ControlRecord::Servers {
            role: role::GATEWAY,
            servers,
        }),
    );
    let mut tried = Vec::new();
    for _ in 0..50 {
        rig.pass(100_000, 10_000);
        tried.extend(knocks(&mut rig).into_iter().filter(|to| *to != addr(9002)));
    }
    tried.dedup();
    tried
}

#[test]
fn a_client_moves_to_the_drawn_server_and_back_if_it_is_absent() {
    assert_eq!(spread(&[(9001, 1)]), []);
    let tried = spread(&[(9005, 1)]);
    assert_eq!(tried[..2], [addr(9005), addr(9001)]);
}

#[test]
fn a_client_that_must_not_learn_keeps_its_given_servers() {
    let mut rig = Rig::<Client>::new();
    let servers = named(&[(9005, 1)]);
    rig.tell(
        0,
        &Record::Control(ControlRecord::Servers {
            role: role::GATEWAY,
            servers,
        }),
    );
    assert_eq!(tried(&mut rig, 100), [addr(9001)]);
}

#[test]
fn a_client_keeps_learned_servers_with_a_new_token() {
    let mut rig = Rig::<Client>::learning();
    let without_proxies = |rig: &mut Rig<Client>, token: &str| {
        rig.machine
            .redirect(rig.now, servers(&[9001]), vec![], token.as_bytes().to_vec());
    };
    without_proxies(&mut rig, "token");
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    rig.pass(200_000, 20_000);
    knocks(&mut rig);
    let due = rig.machine.deadline().unwrap();
    assert!(due > rig.now, "nobody is known to be waited for");
    let servers = named(&[(9002, 1), (9006, 1)]);
    rig.tell(
        0,
        &Record::Control(ControlRecord::Servers {
            role: role::PROXY,
            servers,
        }),
    );
    without_proxies(&mut rig, "another");
    rig.pass(1_000_000, 20_000);
    let tried = knocks(&mut rig);
    assert!(tried.contains(&addr(9002)) || tried.contains(&addr(9006)), "{tried:?}");
}

#[test]
fn a_client_without_proxies_uses_those_that_its_gateway_announces() {
    let mut rig = Rig::<Client>::learning();
    rig.machine
        .redirect(rig.now, servers(&[9001]), vec![], b"token".to_vec());
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    rig.pass(200_000, 20_000);
    knocks(&mut rig);
    let servers = named(&[(9002, 1)]);
    rig.tell(
        0,
        &Record::Control(ControlRecord::Servers {
            role: role::PROXY,
            servers,
        }),
    );
    rig.pass(200_000, 20_000);
    assert!(knocks(&mut rig).contains(&addr(9002)));
}

#[test]
fn a_publishing_client_learns_proxies_from_its_gateway() {
    let mut rig = Rig::<Client>::learning_from(&servers(&[9001]));
    rig.machine.publication(rig.now, ROOM);
    rig.pass(200_000, 20_000);
    assert_eq!(knocks(&mut rig)[0], addr(9001));
}

#[test]
fn a_session_stays_with_a_delisted_server_but_does_not_return_to_it() {
    let mut rig = Rig::<Client>::learning();
    let role = role::GATEWAY;
    let naming = |ports: &[(u16, u16)]| {
        Record::Control(ControlRecord::Servers {
            role,
            servers: named(ports),
        })
    };
    rig.tell(0, &naming(&[(9005, 1)]));
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    rig.serve(9005);
    let ready = Record::Control(ControlRecord::Ready {
        user: 42,
        token: [5; 16],
        keepalive_ms: 1000,
    });
    rig.tell(2, &ready);
    rig.tell(2, &naming(&[(9006, 1)]));
    rig.pass(60_000, 5_000);
    assert!(rig.machine.is_ready(Side::Gateway));
    knocks(&mut rig);
    rig.frame(2, FrameKind::CLOSE.code(), &[0]);
    let mut all = Vec::new();
    for _ in 0..200 {
        rig.pass(100_000, 20_000);
        rig.frame(1, FrameKind::PING.code(), &[]);
        all.extend(knocks(&mut rig));
    }
    assert!(all.contains(&addr(9001)) && all.contains(&addr(9006)) && !all.contains(&addr(9005)));
}

#[test]
fn a_server_announces_others_to_clients_but_not_to_strangers() {
    let told = |rig: &mut Rig<Proxy>, at: usize| -> Vec<(Role, Vec<Server>)> {
        let records = rig.peers[at].take_records();
        let named = |record: &Vec<u8>| match Record::read(record) {
            Some(Record::Control(ControlRecord::Servers { role, servers })) => Some((role, servers)),
            _ => None,
        };
        records.iter().filter_map(named).collect()
    };
    let mut rig = Rig::<Proxy>::bare();
    rig.session(0);
    assert_eq!(told(&mut rig, 0), [], "there is nothing to tell");
    let stranger = rig.unknown(1);
    let (gateways, proxies) = (named(&[(9001, 1), (9005, 0)]), named(&[(9002, 3)]));
    rig.machine
        .set_servers(rig.now, [(role::GATEWAY, gateways), (role::PROXY, proxies)]);
    rig.pass(1_000_000, 10_000);
    let all = [(role::GATEWAY, named(&[(9001, 1)])), (role::PROXY, named(&[(9002, 3)]))];
    assert_eq!(told(&mut rig, 0), all, "one of weight 0 is not named");
    assert_eq!(told(&mut rig, stranger), []);
    let late = rig.session(2);
    assert_eq!(told(&mut rig, late), all);
    // The same list again is not sent; and an empty list is never sent.
    rig.machine.set_servers(
        rig.now,
        [(role::GATEWAY, named(&[(9001, 1)])), (role::PROXY, named(&[(9002, 3)]))],
    );
    rig.pass(1_000_000, 10_000);
    assert_eq!(told(&mut rig, 0), []);
    rig.machine.set_servers(rig.now, [(role::PROXY, named(&[(9002, 3)]))]);
    rig.pass(1_000_000, 10_000);
    assert_eq!(told(&mut rig, 0), [(role::PROXY, named(&[(9002, 3)]))]);
}

#[test]
fn a_full_client_reports_when_a_slot_is_free() {
    let mut rig = full_of_rooms();
    (1..256).for_each(|at| assert_eq!(rig.machine.publish(at, b"used", 0), Ok(())));
    assert_eq!(rig.machine.publication(rig.now, "sports:new"), None);
    rig.pass(10_000, 1_000);
    assert_eq!(rig.peers[1].take_records().len(), 0);
    assert_eq!(acknowledge(&mut rig, 5, 0), []);
    assert_eq!(acknowledge(&mut rig, 5, 1), [ClientEvent::Vacant]);
    assert_eq!(acknowledge(&mut rig, 6, 1), [], "once");
    let opened = rig.machine.publication(rig.now, "sports:new").expect("a place");
    assert_eq!(opened.closed, Some(5));
    // An unanswered request cannot be attributed, so another one is sent.
    let opened = rig.machine.publication(rig.now, "sports:newer").expect("a place");
    assert_eq!(opened.closed, Some(6));
    assert_eq!(rig.machine.publication(rig.now, "sports:newest"), None);
}

#[test]
fn a_resumed_reader_requests_messages_missed_while_blocked() {
    let (mut rig, room) = member_with(Policy::Block);
    (1..=70).for_each(|at| fill(&mut rig, 3, at));
    fill(&mut rig, 3, 90);
    rig.pass(100_000, 10_000);
    assert_eq!(rig.peers[0].frames(kinds::REPAIR), 0);
    let mut data = Vec::new();
    while rig.machine.read(rig.now, room, &mut data).is_some() {}
    rig.pass(100_000, 10_000);
    assert!(rig.peers[0].frames(kinds::REPAIR) > 0);
}

#[test]
fn publications_take_turns_at_a_narrow_window() {
    let mut rig = Rig::<Client>::new();
    for (at, name) in (3..).zip(["sports:one", "sports:two", "sports:three"]) {
        let publication = rig.machine.publication(rig.now, name).unwrap().publication;
        rig.turn();
        rig.tell(
            1,
            &Record::Opened {
                request: at,
                handle: at,
            },
        );
        while rig.machine.publish(publication, &[7; 1_000], 0).is_ok() {}
    }
    rig.peers[1].polite = false;
    rig.peers[1].got.clear();
    rig.turn();
    let published = rig.peers[1].got.iter().filter(|(kind, _)| *kind == kinds::PUBLISH);
    let handles: Vec<u8> = published.map(|(_, body)| body[0]).collect();
    let of = |wanted: u8| handles.iter().filter(|handle| **handle == wanted).count();
    assert!((3..=5).all(|handle| of(handle) >= handles.len() / 3), "{handles:?}");
    assert!(handles.len() < 100, "the window is narrow: {handles:?}");
}

/// Acknowledgements that the proxy has from the broker.
fn acks(rig: &Rig<Broker>) -> usize {
    rig.peers.iter().map(|peer| peer.frames(kinds::LINK_ACK)).sum()
}

#[test]
fn an_acknowledgement_is_combined_unless_a_publisher_waits_for_it() {
    let mut rig = Rig::<Broker>::new();
    let publish = |rig: &mut Rig<Broker>, first: u64, count: u32, flags: u8| {
        let mut bytes = link_publish(77, 1, first, &vec![&b"x"[..]; count as usize]);
        let at = bytes.len() - 2; // the flags of the last message
        bytes[at] |= flags;
        rig.say(0, &bytes);
        rig.turn();
    };
    let before = acks(&rig);
    publish(&mut rig, 1, 1, 0);
    assert_eq!(acks(&rig), before + 1, "a rare one has waited already");
    let before = acks(&rig);
    publish(&mut rig, 2, 1, 0);
    publish(&mut rig, 3, 1, 0);
    assert_eq!(acks(&rig), before, "nobody waits");
    rig.pass(PUBLISH_ACK_DELAY_MAX, 1_000);
    assert_eq!(acks(&rig), before + 1, "one for both");
    publish(&mut rig, 4, 1, PROMPT);
    assert_eq!(acks(&rig), before + 2, "somebody waits");
    publish(&mut rig, 4, 1, 0);
    assert_eq!(
        acks(&rig),
        before + 3,
        "a repeat shows that the acknowledgement was lost"
    );
    publish(&mut rig, 6, 1, 0);
    assert_eq!(acks(&rig), before + 4, "5 is missing");
    publish(&mut rig, 5, 1, 0);
    rig.pass(PUBLISH_ACK_DELAY_MAX, 1_000);
    let before = acks(&rig);
    publish(&mut rig, 7, PUBLISH_ACK_MESSAGES, 0);
    assert_eq!(acks(&rig), before + 1, "this many do not wait");
    rig.pass(PUBLISH_ACK_DELAY_MAX, 1_000);
    assert_eq!(acks(&rig), before + 1, "once is enough");
}

#[test]
fn a_publisher_is_acknowledged_through_its_latest_proxy() {
    let mut rig = broker();
    let proxies = [PROXY, PROXY + 50].map(|node| rig.link(node, role::PROXY));
    let told = |rig: &Rig<Broker>| proxies.map(|proxy| rig.peers[proxy].frames(kinds::LINK_ACK));
    let publish = link_publish(77, 1, 1, &[b"one"]);
    rig.say(proxies[0], &publish);
    rig.say(proxies[1], &publish); // before anything left to the first proxy
    rig.pass(100_000, 5_000);
    assert_eq!(told(&rig), [0, 1]);
    rig.say(proxies[0], &link_publish(77, 2, 2, &[b"two"]));
    rig.pass(100_000, 5_000);
    assert_eq!(told(&rig), [1, 1]);
}

/// A gateway's request to a broker: room, whether it is for history, and ranges.
type RepairRequest = (u64, bool, Vec<(u64, u64)>);

fn asked(rig: &mut Rig<Gateway>) -> Vec<RepairRequest> {
    let got = rig.peers[2].got.drain(..);
    let asked = got.filter(|(kind, _)| *kind == kinds::LINK_REPAIR);
    let read = |body: &[u8]| read_link_repair(body).map(|(room, _, history, ranges)| (room, history, ranges.collect()));
    asked.filter_map(|(_, body)| read(&body)).collect()
}

#[test]
fn history_is_fetched_in_steps_within_each_sessions_share() {
    let mut rig = gateway();
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    let had = |generation| Positions::at([(stream(generation), 10)]);
    let names: Vec<String> = (0..6).map(|at| format!("sports:{at}")).collect();
    for (generation, name) in (1..).zip(&names[..5]) {
        rig.join(0, generation, name, had(generation));
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        head_of(&mut rig, name, generation, 1_000_000);
    }
    rig.join(1, 9, &names[5], had(6));
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head_of(&mut rig, &names[5], 6, 1_000_000);
    rig.pass(20_000, 1_000);
    let asked = asked(&mut rig);
    let fetched = |name: &str| {
        asked
            .iter()
            .any(|(room, history, _)| *room == room_id(name) && *history)
    };
    let fetched: Vec<bool> = names.iter().map(|name| fetched(name)).collect();
    assert_eq!(
        fetched,
        [true, true, true, true, false, true],
        "the fifth is one too many, and only for its member"
    );
    let ranges = asked.iter().flat_map(|(_, _, ranges)| ranges);
    assert!(ranges.clone().count() > 0);
    assert!(
        ranges
            .clone()
            .all(|(first, last)| (998_976..=999_999).contains(first) && *last == 999_999),
        "{asked:?}"
    );
    assert_eq!(
        answers(&mut rig, 0),
        [(5, Ok(()))],
        "a member without history gets the gap at once"
    );
    assert_eq!(counter(&rig.machine, "dropped_history_limit"), 1);
}

#[test]
fn one_members_history_delays_no_repair() {
    let mut rig = Rig::<Broker>::new();
    for first in 4..80 {
        rig.say(0, &link_publish(5, 1, first, &[&[7; 1_000]]));
    }
    rig.pass(100_000, 5_000);
    let ask = |rig: &mut Rig<Broker>, history: bool, first: u64, last: u64| {
        rig.say(
            1,
            &body(|writer| write_link_repair(writer, room_id(ROOM), 1, history, &[(first, last)])),
        );
    };
    // One after the other, so that all are served, until no more is allowed.
    let mut asked = 0;
    while counter(&rig.machine, "dropped_repair_limit") == 0 {
        ask(&mut rig, true, 1 + asked % 3, 75 + asked % 5);
        rig.turn();
        rig.now += 10;
        asked += 1;
        assert!(asked < 1_000);
    }
    let before = counter(&rig.machine, "messages_repaired");
    ask(&mut rig, false, 40, 40);
    rig.turn();
    assert_eq!(counter(&rig.machine, "messages_repaired"), before + 1);
    // And where both wait, the hole comes first.
    rig.pass(3_000_000, 20_000);
    rig.peers[1].got.clear();
    ask(&mut rig, true, 1, 75);
    ask(&mut rig, false, 50, 50);
    rig.turn();
    let first = rig.peers[1].got.iter().find(|(kind, _)| *kind == kinds::LINK_ROOM);
    let first = LinkBlock::read(&first.expect("an answer").1).map(|block| block.offset);
    assert_eq!(first, Some(50));
}

/// A proxy's frame for a room of another name with the same number.
fn collides(first: u64) -> Vec<u8> {
    let mut bytes = link_publish(77, 1, first, &[b"for another room"]);
    bytes[12] ^= 1;
    bytes
}

fn refusals<M: Subject>(rig: &mut Rig<M>, peer: usize) -> Vec<(u64, Code)> {
    let records = rig.peers[peer].take_records();
    let refusals = records.iter().filter_map(|bytes| match Record::read(bytes) {
        Some(Record::RoomRefused { room, code }) => Some((room, code)),
        _ => None,
    });
    refusals.collect()
}

#[test]
fn a_refused_publisher_is_admitted_once_others_are_forgotten() {
    let mut rig = Rig::<Broker>::new();
    let said = |rig: &mut Rig<Broker>, incarnation: u64| {
        rig.peers[0].got.clear();
        rig.say(0, &link_publish(incarnation, 1, 1, &[b"one"]));
        rig.pass(2 * PUBLISH_ACK_DELAY_MAX, PUBLISH_ACK_DELAY_MAX);
        let acks = rig.peers[0].got.iter().filter(|(kind, _)| *kind == kinds::LINK_ACK);
        let acks = acks.map(|(_, body)| Ack::read_link(body).expect("well formed"));
        let acks = acks.map(|(session, rest)| (session, Ack::read(rest).expect("well formed")));
        acks.map(|(session, ack)| (session, ack.handle, ack.code, ack.cumulative))
            .collect::<Vec<_>>()
    };
    for incarnation in 1_000..1_000 + USER_PUBLICATIONS_MAX as u64 {
        rig.say(0, &link_publish(incarnation, 1, 1, &[]));
    }
    rig.pass(100_000, 5_000);
    let refused = counter(&rig.machine, "dropped_full");
    assert_eq!(said(&mut rig, 1), [(7, 0, Code::Busy, 0)]);
    assert_eq!(counter(&rig.machine, "dropped_full"), refused + 1);
    assert_eq!(
        said(&mut rig, 1_000),
        [(7, 0, Code::Ok, 1)],
        "an admitted publisher keeps its entry"
    );
    pass(&mut rig, 125_000_000);
    assert_eq!(said(&mut rig, 1), [(7, 0, Code::Ok, 1)]);
}

/// A broker knows rooms by number only: proxies send it their namespaces.
#[test]
fn a_broker_keeps_a_room_by_its_namespaces_settings() {
    let mut rig = Rig::<Broker>::new();
    rig.tell(0, &Record::Namespace { number: 9, name: KEPT });
    rig.tell(
        0,
        &Record::Namespace {
            number: 8,
            name: b"unheard-of",
        },
    );
    let rooms = [("kept:room", 9), ("unheard-of:room", 8), ("other", 0), ("another", 77)];
    for (room, namespace) in rooms {
        for first in (1..=400).step_by(50) {
            let publisher = PublisherId {
                user: 7,
                incarnation: 7,
            };
            let messages = [b"message".as_slice(); 50];
            rig.say(
                0,
                &link_publish_from(namespace, room, publisher, first, first, &messages),
            );
            rig.turn();
        }
    }
    let held = |rig: &Rig<Broker>| {
        let room = |(name, _): (&str, u8)| rig.machine.rooms().find(|room| room.id == room_id(name));
        rooms.map(room).map(|room| room.map_or(0, |room| room.ring.len()))
    };
    assert_eq!(held(&rig), [300, 400, 400, 400]);
    pass(&mut rig, 20_000_000);
    assert_eq!(held(&rig), [0, 400, 400, 400], "10 s without a member");
    pass(&mut rig, 60_000_000);
    assert_eq!(held(&rig), [0; 4]);
}

#[test]
fn two_names_with_one_number_are_never_one_room() {
    // 0: a proxy; 1: the gateway that wants the room; 2: the router.
    let mut rig = Rig::<Broker>::new();
    let published = counter(&rig.machine, "messages_published");
    rig.say(0, &collides(1));
    rig.turn();
    assert_eq!(counter(&rig.machine, "messages_published"), published);
    assert_eq!(counter(&rig.machine, "dropped_name_collision"), 1);
    let acks = rig.peers[0].got.iter().filter(|(kind, _)| *kind == kinds::LINK_ACK);
    let code = acks.filter_map(|(_, body)| Ack::read_link(body).and_then(|(_, rest)| Ack::read(rest)));
    assert_eq!(code.map(|ack| ack.code).next_back(), Some(Code::NameCollision));

    let other = rig.link(77, role::GATEWAY);
    let mut membership = membership(1, true);
    membership.check ^= 1;
    names_gateway(&mut rig, 2, 77, membership);
    rig.turn();
    let refused = (room_id(ROOM), Code::NameCollision);
    assert_eq!(refusals(&mut rig, other), [refused]);
    // It learns so again on another link, and never of the other room.
    let other = rig.link(77, role::GATEWAY);
    rig.say(0, &link_publish(5, 1, 4, &[b"four"]));
    rig.pass(100_000, 5_000);
    assert_eq!(refusals(&mut rig, other), [refused]);
    assert_eq!(counter(&rig.machine, "refused_name_collision"), 2);
    assert_eq!(
        (
            rig.peers[other].frames(kinds::LINK_ROOM),
            rig.peers[other].frames(kinds::LINK_HEADS)
        ),
        (0, 0)
    );
    assert!(rig.peers[1].frames(kinds::LINK_ROOM) > 0);
}

#[test]
fn members_of_a_refused_room_learn_why() {
    for (from, code) in [(2, Code::NameCollision), (3, Code::Busy)] {
        let mut rig = gateway();
        rig.join(0, 7, ROOM, Positions::default());
        let room = room_id(ROOM);
        rig.tell(from, &Record::RoomRefused { room, code });
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        rig.join(1, 8, ROOM, Positions::default());
        assert_eq!(answers(&mut rig, 0), [(7, Err(code))]);
        assert_eq!(answers(&mut rig, 1), [(8, Err(code))]);
        // Once all members are gone, it may be tried again.
        pass(&mut rig, 3_000_000);
        assert_eq!(rig.machine.rooms().count(), 0);
        rig.join(1, 9, ROOM, Positions::default());
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        head(&mut rig, 1, 1);
        assert_eq!(answers(&mut rig, 1), [(9, Ok(()))]);
        // A member that loses its room learns of that too.
        rig.tell(from, &Record::RoomRefused { room, code });
        rig.turn();
        assert_eq!(answers(&mut rig, 1), [(0, Err(Code::Busy))]);
        pass(&mut rig, 4_000_000);
        assert_eq!(
            (rig.machine.rooms().count(), rig.machine.sessions().table.len()),
            (0, 1)
        );
    }
}

#[test]
fn a_publisher_of_a_refused_room_learns_once_and_stops() {
    let mut rig = Rig::<Client>::new();
    let ack = Ack {
        handle: 0,
        echo: 0,
        code: Code::NameCollision,
        cumulative: 0,
        highest: 0,
        credit_messages: 256,
        credit_bytes: 1 << 18,
        stream: stream(1),
        missing: vec![],
        runs: vec![],
    };
    let mut events = Vec::new();
    rig.machine.drain_events(&mut events);
    events.clear();
    rig.say(1, &body(|writer| ack.write(writer)));
    rig.machine.drain_events(&mut events);
    let refused = ClientEvent::Refused {
        room: 0,
        publication: true,
        code: Code::NameCollision,
    };
    assert_eq!(events, [refused]);
    let refused = Err(PublishError::Refused(Code::NameCollision));
    assert_eq!(rig.machine.publish(0, b"more", 0), refused);
    let sent = rig.peers[1].frames(kinds::PUBLISH);
    rig.pass(3_000_000, 10_000);
    assert_eq!(rig.peers[1].frames(kinds::PUBLISH), sent);
}

/// Regression: its joins were answered in one turn, which overflowed its log: its session ended, it returned, and so
/// on.
#[test]
fn a_member_of_many_rooms_with_many_streams_is_answered_for_all_of_them_at_once() {
    let mut rig = gateway();
    let brokers = (0..8).map(|more| BROKER + 50 * more);
    let node = |node: u32| PlacedNode::new(node, role::BROKER, addr(9000 + node as u16));
    let router = PlacedNode::new(ROUTER, role::ROUTER, addr(9000 + ROUTER as u16));
    let nodes = brokers.clone().map(node).chain([router]).collect();
    rig.machine.set_placement(rig.now, room_placement(2, nodes, 1, 1));
    let links: Vec<usize> = brokers
        .map(|broker| {
            if broker == BROKER {
                2
            } else {
                rig.link(broker, role::BROKER)
            }
        })
        .collect();
    let rooms = SESSION_ROOMS as u32;
    let name = |at: u32| format!("sports:{at}");
    let had = Positions::at([(stream(1), 0)]);
    for at in 0..rooms {
        rig.join(0, at, &name(at), had.clone());
        for link in &links {
            head_from(&mut rig, *link, &name(at), 1, 1);
        }
    }
    assert_eq!(answers(&mut rig, 0), []);
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    pass(&mut rig, 3_000_000);
    let answers = answers(&mut rig, 0);
    assert!(answers.iter().all(|(_, answer)| answer.is_ok()), "{answers:?}");
    assert_eq!(answers.len(), rooms as usize);
    assert_eq!(counter(&rig.machine, "sessions_log_full"), 0);
    assert_eq!(rig.machine.sessions().table.len(), 2);
}

#[test]
fn a_session_that_never_acknowledges_replies_ends() {
    let mut rig = gateway();
    rig.join(1, 1, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 1, 1);
    rig.peers[0].polite = false;
    for request in 10..2_000 {
        rig.join(0, request, ROOM, Positions::default());
        pass(&mut rig, 210_000);
        if rig.machine.sessions().table.len() == 1 {
            break;
        }
    }
    assert_eq!(counter(&rig.machine, "sessions_log_full"), 1);
    assert_eq!(rig.machine.sessions().table.len(), 1);
    let members: Vec<usize> = rig.machine.rooms().map(|room| room.members.len()).collect();
    assert_eq!(members, [1], "and is no longer a member");
}

#[test]
fn a_skip_over_a_gap_announces_what_is_missing_before_the_gap() {
    let mut rig = Rig::<Client>::new();
    let (stream, reason) = (stream(1), GapReason::Unrepaired);
    let gap = |first, last, reason| StreamGap {
        stream,
        first,
        last,
        reason,
    };
    let one = body(|writer| {
        let mut block = RoomBlock::begin(writer, 0, FIRST_PLACE, stream, 1, None);
        block.push(writer, &message(1, b"one"));
        block.finish(writer) == 1
    });
    rig.frame(0, kinds::ROOM.code(), &one);
    let ahead = GapPlace {
        handle: 0,
        index: FIRST_PLACE + 5,
        gap: gap(6, 9, reason),
    };
    rig.say(0, &body(|writer| ahead.write(writer)));
    let skip = Skip {
        handle: 0,
        index: FIRST_PLACE + 7,
        reason: GapReason::Slow,
        resume: vec![(stream, 11)],
    };
    rig.say(0, &body(|writer| skip.write(writer)));
    let (mut data, mut gaps) = (Vec::new(), Vec::new());
    while let Some(item) = rig.machine.read(rig.now, 0, &mut data) {
        if let Item::Gap(gap) = item {
            gaps.push(gap);
        }
    }
    let slow = GapReason::Slow;
    assert_eq!(gaps, [gap(2, 5, slow), gap(6, 9, reason), gap(10, 10, slow)]);
}

#[test]
fn messages_from_an_earlier_gateway_neither_repeat_nor_count_as_lost() {
    let mut rig = Rig::<Client>::new();
    let stream = stream(1);
    let mut at = FIRST_PLACE;
    // A restarted gateway may be behind its former life, and not know the owner's head.
    for (first, last) in [(1, 3), (2, 5)] {
        let block = body(|writer| {
            let mut block = RoomBlock::begin(writer, 0, at, stream, first, None);
            (first..=last).all(|offset| block.push(writer, &message(100 * at + offset, b"text")));
            block.finish(writer) > 0
        });
        rig.frame(0, kinds::ROOM.code(), &block);
        at += last - first + 1;
    }
    let gap = |first, last| StreamGap {
        stream,
        first,
        last,
        reason: GapReason::OwnerLost,
    };
    for named in [gap(2, 3), gap(4, 7), gap(6, StreamGap::OPEN)] {
        let place = GapPlace {
            handle: 0,
            index: at,
            gap: named,
        };
        rig.say(0, &body(|writer| place.write(writer)));
        at += 1;
    }
    let (mut data, mut offsets, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(item) = rig.machine.read(rig.now, 0, &mut data) {
        match item {
            Item::Message { offset, .. } => offsets.push(offset),
            Item::Gap(gap) => gaps.push(gap),
            Item::Command { .. } => unreachable!("nobody sends any"),
        }
    }
    assert_eq!(offsets, [1, 2, 3, 4, 5]);
    assert_eq!(gaps, [gap(6, StreamGap::OPEN)], "6 and 7, and an unknown rest");
}

#[test]
fn adjacent_gaps_are_read_as_one() {
    let mut rig = Rig::<Client>::new();
    let gap = |first, last, reason| StreamGap {
        stream: stream(1),
        first,
        last,
        reason,
    };
    let (slow, unrepaired) = (GapReason::Slow, GapReason::Unrepaired);
    let gaps = [
        gap(1, 4, slow),
        gap(5, 5, slow),
        gap(6, 9, unrepaired),
        gap(11, 12, unrepaired),
    ];
    for (at, gap) in gaps.into_iter().enumerate() {
        let place = GapPlace {
            handle: 0,
            index: FIRST_PLACE + at as u64,
            gap,
        };
        rig.say(0, &body(|writer| place.write(writer)));
    }
    let (mut data, mut read) = (Vec::new(), Vec::new());
    while let Some(Item::Gap(gap)) = rig.machine.read(rig.now, 0, &mut data) {
        read.push(gap);
    }
    assert_eq!(read, [gap(1, 5, slow), gap(6, 9, unrepaired), gap(11, 12, unrepaired)]);
}

/// A gateway that knows the room's stream from its first message on, and a member with an answered join.
fn live_room() -> Rig<Gateway> {
    let mut rig = gateway();
    rig.join(0, 7, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 1, 1);
    pass(&mut rig, 100_000);
    assert_eq!(answers(&mut rig, 0), [(7, Ok(()))]);
    rig
}

/// The member's data: gaps as (first, last, reason), and the first offset of each block of messages.
fn given(rig: &Rig<Gateway>) -> (Vec<(u64, u64, GapReason)>, Vec<u64>) {
    let got = |kind| rig.peers[0].got.iter().filter(move |(known, _)| *known == kind);
    let gaps = got(kinds::GAP).filter_map(|(_, body)| GapPlace::read(body));
    let blocks = got(kinds::ROOM).filter_map(|(_, body)| RoomBlock::read(body));
    assert_eq!(got(kinds::SKIP).count(), 0);
    (
        gaps.map(|place| (place.gap.first, place.gap.last, place.gap.reason))
            .collect(),
        blocks.map(|block| block.offset).collect(),
    )
}

/// An owner's block of messages of this age.
fn aged_link_room(offset: u64, age: u32, data: &[&[u8]]) -> Vec<u8> {
    body(|writer| {
        append(writer, kinds::AGED_ROOM, 0, |writer| {
            let mut block = LinkBlock::begin(writer, room_id(ROOM), 1, 1, offset, Some(age));
            for (at, data) in data.iter().enumerate() {
                block.push(writer, &message(offset + at as u64, data));
            }
            block.finish(writer) > 0
        })
    })
}

/// A member's blocks since the last call: the first offset, the number of messages and their age.
fn told_ages(rig: &mut Rig<Gateway>, peer: usize) -> Vec<(u64, usize, Option<u32>)> {
    let got = std::mem::take(&mut rig.peers[peer].got);
    let blocks = got.iter().filter_map(|(kind, body)| match *kind {
        kinds::ROOM => RoomBlock::read(body),
        kinds::AGED_MEMBER_ROOM => RoomBlock::read_aged(body),
        _ => None,
    });
    blocks
        .map(|block| (block.offset, block.messages.count(), block.age))
        .collect()
}

#[test]
fn known_ages_are_sent_only_to_members_that_ask() {
    let mut rig = live_room();
    rig.tell(0, &Record::Ages);
    rig.join(1, 8, ROOM, Positions::default());
    pass(&mut rig, 100_000);
    let longest = vec![b'x'; message_max(PAYLOAD)];
    rig.say(2, &aged_link_room(1, 5_000, &[b"one", b"two"]));
    rig.say(2, &link_room(1, 3, &[b"three"]));
    rig.say(2, &aged_link_room(4, 7_000, &[&longest]));
    rig.turn();
    let told = told_ages(&mut rig, 0);
    let counts: Vec<_> = told
        .iter()
        .map(|(first, count, age)| (*first, *count, age.is_some()))
        .collect();
    assert_eq!(
        counts,
        [(1, 2, true), (3, 1, false), (4, 1, false)],
        "the last has no space for it"
    );
    let age = told[0].2.expect("it is told");
    assert!((4_999..20_000).contains(&age), "to a microsecond: {age}");
    let others = told_ages(&mut rig, 1);
    assert_eq!(others.iter().map(|(_, count, _)| count).sum::<usize>(), 4);
    assert!(others.iter().all(|(.., age)| age.is_none()), "{others:?}");
    // A repeated message is older by then. An old time of birth is not trusted.
    for (wait, known) in [(1, true), (60, false)] {
        pass(&mut rig, wait * 1_000_000);
        told_ages(&mut rig, 0);
        rig.say(
            0,
            &body(|writer| write_repair(writer, 0, FIRST_PLACE, &[(FIRST_PLACE, FIRST_PLACE)])),
        );
        rig.turn();
        let again = told_ages(&mut rig, 0);
        assert_eq!(
            (again.len(), again[0].0, again[0].2.is_some()),
            (1, 1, known),
            "{again:?}"
        );
        assert!(again[0].2.is_none_or(|later| later >= age + 1_000_000), "{again:?}");
    }
}

#[test]
fn messages_delayed_too_long_are_a_gap_in_a_live_room() {
    let mut rig = live_room();
    let mut old = link_room(1, 1, &[b"one", b"two"]);
    old[1] |= OLD;
    rig.say(2, &old);
    rig.say(2, &link_room(1, 3, &[b"three"]));
    rig.turn();
    assert_eq!(given(&rig), (vec![(1, 2, GapReason::Expired)], vec![3]));
}

#[test]
fn messages_behind_an_abandoned_hole_are_not_too_old() {
    let mut rig = live_room();
    rig.say(2, &link_room(1, 2, &[b"two", b"three"]));
    rig.turn();
    pass(&mut rig, 400_000);
    assert_eq!(given(&rig), (vec![(1, 1, GapReason::Unrepaired)], vec![2]));
}

#[test]
fn an_unplaced_owner_is_reported_as_lost_not_slow() {
    let mut rig = live_room();
    rig.say(2, &link_room(1, 1, &[b"one"]));
    rig.turn();
    rig.peers[2].polite = false;
    for _ in 0..15 {
        rig.pass(100_000, 20_000);
        (0..2).for_each(|member| rig.frame(member, FrameKind::PING.code(), &[]));
    }
    rig.turn();
    rig.now += 50_000;
    rig.machine.set_placement(rig.now, room_placement(2, vec![], 1, 1));
    rig.turn();
    assert_eq!(given(&rig), (vec![(2, StreamGap::OPEN, GapReason::OwnerLost)], vec![1]));
}

#[test]
fn a_gateway_accounts_for_every_message_of_its_owners() {
    let mut rig = gateway();
    let mut known = [0; 11];
    // The counters that a step changes, by name.
    let mut changed = |rig: &Rig<Gateway>| {
        let names = [
            "messages_received",
            "messages_placed",
            "messages_duplicate",
            "dropped_no_member",
            "dropped_stale_stream",
            "dropped_held_full",
            "dropped_held",
            "dropped_unwanted",
            "dropped_malformed",
            "dropped_expired",
        ];
        let mut now = [0; 11];
        names
            .iter()
            .enumerate()
            .for_each(|(at, name)| now[at] = counter(&rig.machine, name));
        now[10] = rig.machine.held();
        let [received, accounted @ ..] = now;
        assert_eq!(received, accounted.iter().sum::<u64>(), "{now:?}");
        let before = std::mem::replace(&mut known, now);
        let changed = (0..11).filter(|at| now[*at] != before[*at]);
        let named = changed.map(|at| (*names.get(at).unwrap_or(&"held"), now[at] as i64 - before[at] as i64));
        named.collect::<Vec<_>>()
    };
    let said = |rig: &mut Rig<Gateway>, bytes: &[u8]| {
        rig.say(2, bytes);
        rig.turn();
    };
    said(&mut rig, &link_room(1, 4, &[b"four"]));
    assert_eq!(changed(&rig), [("messages_received", 1), ("dropped_no_member", 1)]);
    rig.join(0, 7, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 1, 5);
    said(&mut rig, &link_room(1, 4, &[b"four", b"five"]));
    assert_eq!(
        changed(&rig),
        [
            ("messages_received", 2),
            ("messages_placed", 1),
            ("dropped_unwanted", 1)
        ]
    );
    said(&mut rig, &link_room(1, 7, &[b"seven", b"eight"]));
    assert_eq!(changed(&rig), [("messages_received", 2), ("held", 2)]);
    said(&mut rig, &link_room(1, 7, &[b"seven"]));
    said(&mut rig, &link_room(1, 5, &[b"five"]));
    assert_eq!(changed(&rig), [("messages_received", 2), ("messages_duplicate", 2)]);
    let mut old = link_room(1, 6, &[b"six", b"seven"]);
    old[1] |= OLD;
    said(&mut rig, &old);
    assert_eq!(
        changed(&rig),
        [
            ("messages_received", 2),
            ("messages_placed", 2),
            ("messages_duplicate", 1),
            ("dropped_expired", 1),
            ("held", -2)
        ]
    );
    // Incomplete history, for a join that stops waiting.
    rig.join(1, 8, ROOM, Positions::at([(stream(1), 1)]));
    said(&mut rig, &link_room(1, 2, &[b"two"]));
    said(&mut rig, &link_room(1, 4, &[b"four"]));
    assert_eq!(
        changed(&rig),
        [("messages_received", 2), ("messages_placed", 1), ("held", 1)]
    );
    pass(&mut rig, BACKFILL_WAIT + 100_000);
    assert_eq!(changed(&rig), [("dropped_held", 1), ("held", -1)]);
    // A wrong count, and messages too long for members.
    let mut short = link_room(1, 9, &[b"nine"]);
    short[LINK_BLOCK - 1] += 3;
    said(&mut rig, &short);
    let long = vec![0; message_max(PAYLOAD) + 1];
    said(&mut rig, &link_room(1, 11, &[&long]));
    assert_eq!(
        changed(&rig),
        [
            ("messages_received", 5),
            ("messages_placed", 1),
            ("dropped_malformed", 4)
        ]
    );
    // A stream ends behind a hole: its messages here are the last ones.
    said(&mut rig, &link_room(1, 12, &[b"twelve"]));
    head(&mut rig, 2, 1);
    said(&mut rig, &link_room(1, 13, &[b"late"]));
    assert_eq!(
        changed(&rig),
        [
            ("messages_received", 2),
            ("messages_placed", 1),
            ("dropped_stale_stream", 1)
        ]
    );
    assert_eq!(counter(&rig.machine, "gaps_unrepaired"), 1, "the hole");
    // More than the room's share of the arena behind a hole.
    let held = rig.machine.arena().room_bytes_max(Default::default()) / 1_000;
    for offset in 2..held as u64 + 4 {
        rig.say(2, &link_room(2, offset, &[&[0; 1_000]]));
    }
    assert_eq!(
        changed(&rig),
        [
            ("messages_received", held as i64 + 2),
            ("dropped_held_full", 2),
            ("held", held as i64)
        ]
    );
    assert_eq!(counter(&rig.machine, "gaps_unrepaired"), 1);
    pass(&mut rig, 2 * HOLE_WAIT + 100_000);
    assert_eq!(
        changed(&rig),
        [("messages_placed", held as i64), ("held", -(held as i64))]
    );
    assert_eq!(
        counter(&rig.machine, "gaps_unrepaired"),
        3,
        "the hole, and what was not held"
    );
}

#[test]
fn a_broker_flags_messages_that_waited_too_long() {
    let mut rig = Rig::<Broker>::new();
    rig.peers[1].polite = false; // it stands still, and the window fills
    for sequence in 4..64 {
        rig.say(0, &link_publish(5, 4, sequence, &[&[0; 1_000]]));
    }
    rig.turn();
    assert_eq!(rig.peers[1].flagged, 0);
    pass(&mut rig, MESSAGE_AGE_MAX + 1_000_000);
    rig.peers[1].polite = true;
    pass(&mut rig, 2_000_000);
    let (flagged, all) = (rig.peers[1].flagged, rig.peers[1].frames(kinds::LINK_ROOM));
    assert!(flagged > 20, "{flagged} of {all}");
    rig.say(0, &link_publish(5, 64, 64, &[b"young"]));
    pass(&mut rig, 200_000);
    assert!(rig.peers[1].frames(kinds::LINK_ROOM) > all);
    assert_eq!(rig.peers[1].flagged, flagged);
}

/// A member of the room that had `count` messages.
fn member_that_had(count: u64) -> Rig<Gateway> {
    member_of(gateway(), count)
}

fn member_of(mut rig: Rig<Gateway>, count: u64) -> Rig<Gateway> {
    rig.join(0, 1, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 1, 1);
    for offset in 1..=count {
        rig.say(2, &link_room(1, offset, &[b"again"]));
    }
    pass(&mut rig, 100_000);
    rig
}

#[test]
fn a_room_waits_for_one_slice_of_a_large_room_not_for_all() {
    const QUIET: &str = "sports:quiet";
    let mut rig = gateway();
    for number in 3..=2 * SLICE_DATAGRAMS as u32 {
        let at = rig.session(number);
        rig.join(at, 1, ROOM, Positions::default());
    }
    rig.join(0, 1, QUIET, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head_of(&mut rig, ROOM, 1, 1);
    head_of(&mut rig, QUIET, 1, 1);
    rig.pass(100_000, 5_000);
    let slice = |rig: &mut Rig<Gateway>| {
        let mut outbox = Outbox::new(false);
        let more = rig.machine.transmit(rig.now, &mut outbox);
        let to: Vec<Addr> = outbox.parcels().iter().map(|parcel| parcel.to).collect();
        (to, more)
    };
    rig.say(2, &link_room_of(ROOM, 1, 1, &[b"to many"]));
    let (first, more) = slice(&mut rig);
    assert_eq!((first.len(), more), (SLICE_DATAGRAMS, true));
    rig.say(2, &link_room_of(QUIET, 1, 1, &[b"to one"]));
    let (second, _) = slice(&mut rig);
    assert_eq!(second.first(), Some(&rig.peers[0].addr));
    assert!(second.len() > 1, "the large room has the rest");
}

/// They fall silent one after the other, and end in one turn in which others take their slots.
#[test]
fn members_that_end_together_leave_though_their_slots_are_reused_at_once() {
    let mut rig = member_of(gateway(), 1);
    rig.join(1, 2, ROOM, Positions::default());
    for silent in [1, 0] {
        rig.now += 50_000;
        rig.frame(silent, FrameKind::PING.code(), &[]);
        rig.turn();
        rig.peers[silent].polite = false;
    }
    let linked = |rig: &mut Rig<Gateway>, time: u64| {
        for _ in 0..time / 100_000 {
            rig.pass(100_000, 20_000);
            (2..4).for_each(|link| rig.frame(link, FrameKind::PING.code(), &[]));
        }
    };
    linked(&mut rig, 9_500_000);
    let hellos = [11, 12].map(|number| rig.at_the_door(number));
    rig.now += 1_000_000;
    for (from, hello) in hellos {
        rig.give(PUBLIC_SOCKET, from, &hello);
    }
    let ended = |rig: &Rig<Gateway>| counter(&rig.machine, "sessions_expired");
    assert_eq!((ended(&rig), rig.machine.rooms().count()), (0, 1));
    rig.turn();
    assert_eq!((ended(&rig), rig.machine.sessions().table.len()), (2, 2));
    assert_eq!(rig.machine.rooms().map(|room| room.members.len()).sum::<usize>(), 0);
    linked(&mut rig, 3_000_000);
    assert_eq!(rig.machine.rooms().count(), 0, "nobody is in it");
}

#[test]
fn repairs_stop_once_a_member_has_left() {
    let mut rig = member_that_had(5);
    let repair = body(|writer| write_repair(writer, 0, FIRST_PLACE, &[(FIRST_PLACE, FIRST_PLACE + 4)]));
    let sent = |rig: &Rig<Gateway>| rig.peers[0].frames(kinds::ROOM);
    let before = sent(&rig);
    rig.say(0, &repair);
    pass(&mut rig, 20_000);
    assert!(sent(&rig) > before, "a member gets it");
    let before = sent(&rig);
    rig.say(0, &repair);
    rig.tell(0, &Record::Leave { handle: 0 });
    pass(&mut rig, 20_000);
    assert_eq!(sent(&rig), before);
}

const PACED: &str = "paced:final";

/// A gateway with two members of a paced room, 0 and 1, which have its first three messages.
fn paced_room() -> Rig<Gateway> {
    let mut rig = gateway();
    rig.join(0, 1, PACED, Positions::default());
    rig.join(1, 1, PACED, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head_of(&mut rig, PACED, 1, 1);
    rig.say(2, &link_room_of(PACED, 1, 1, &[b"one", b"two", b"three"]));
    pass(&mut rig, 200_000);
    rig.peers[2].got.clear();
    rig
}

/// The latest report to the broker on the paced room, since the last call: its members' progress, and their first
/// missing place.
fn progress(rig: &mut Rig<Gateway>) -> Option<(u64, u64)> {
    let got = std::mem::take(&mut rig.peers[2].got);
    let told = got.iter().filter(|(kind, _)| *kind == kinds::CONSUMED);
    let mut told = told.flat_map(|(_, body)| Consumed::read_all(body).collect::<Vec<_>>());
    let told = told.rfind(|consumed| consumed.room == room_id(PACED));
    told.map(|consumed| (consumed.next, consumed.kept))
}

/// Regression: it was sent the whole room through a narrow window, had no space for it, and got most of it again at
/// the rate of repairs.
#[test]
fn a_crowded_member_gets_missing_messages_first() {
    for (name, falls_silent) in [(ROOM, false), (PACED, false), (ROOM, true), (PACED, true)] {
        let mut rig = gateway();
        rig.join(0, 1, name, Positions::default());
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        head_of(&mut rig, name, 1, 1);
        rig.pass(100_000, 5_000);
        let tells_window = |rig: &mut Rig<Gateway>, bytes: u32| {
            rig.peers[0].conn.receive_window = bytes;
            rig.peers[0].conn.tell_status();
            rig.turn();
        };
        tells_window(&mut rig, CROWDED_WINDOW);
        let most = CROWDED_MESSAGES as u64;
        let late = FIRST_PLACE + most - 10; // the first is not remembered that long
        let lacks = body(|writer| write_repair(writer, 0, FIRST_PLACE, &[(late, late)]));
        let mut next = 1;
        while next < most + 1_000 {
            rig.say(2, &link_room_of(name, 1, next, &[b"x".as_slice(); 40]));
            next += 40;
            rig.say(0, &lacks);
            rig.pass(3_000, 1_000);
        }
        let sent = |rig: &Rig<Gateway>| counter(&rig.machine, "messages_sent");
        assert!((most..most + 700).contains(&sent(&rig)), "{name}: {}", sent(&rig));
        let repaired = counter(&rig.machine, "messages_repaired");
        rig.say(0, &lacks);
        rig.pass(20_000, 5_000);
        assert_eq!(counter(&rig.machine, "messages_repaired"), repaired + 1, "{name}");
        if falls_silent {
            rig.now += 1_600_000;
            rig.frame(0, FrameKind::PING.code(), &[]);
        } else {
            tells_window(&mut rig, 1 << 20);
        }
        rig.pass(500_000, 5_000);
        assert_eq!(sent(&rig), next - 1, "{name}, falls silent: {falls_silent}");
    }
}

#[test]
fn an_unchanged_gap_in_a_paced_room_causes_no_report() {
    let mut rig = paced_room();
    let nothing = body(|writer| write_repair(writer, 0, FIRST_PLACE + 3, &[]));
    for _ in 0..50 {
        rig.say(0, &nothing);
        rig.pass(20_000, 10_000);
    }
    assert_eq!(progress(&mut rig), None);
    let lacks = body(|writer| write_repair(writer, 0, FIRST_PLACE + 1, &[(FIRST_PLACE + 1, FIRST_PLACE + 1)]));
    for told in [Some((4, 2)), None, None] {
        rig.say(0, &lacks);
        rig.pass(50_000, 10_000);
        assert_eq!(progress(&mut rig), told);
    }
    rig.say(0, &nothing);
    rig.pass(50_000, 10_000);
    assert_eq!(progress(&mut rig), Some((4, 4)));
}

#[test]
fn a_paced_rooms_publisher_waits_for_the_slowest_member_until_it_continues_or_leaves() {
    for leaves in [false, true] {
        let mut rig = paced_room();
        rig.peers[1].polite = false;
        let mut offset = 4;
        for _ in 0..60 {
            rig.say(2, &link_room_of(PACED, 1, offset, &[&[b'x'; 1_000]]));
            offset += 1;
            rig.pass(10_000, 5_000);
        }
        let (slowest, _) = progress(&mut rig).expect("it is told");
        assert!(slowest < offset, "{slowest} of {offset}");
        if leaves {
            rig.tell(1, &Record::Leave { handle: 0 });
        } else {
            rig.peers[1].polite = true;
            rig.peers[1].conn.ask_status();
        }
        for peer in 0..rig.peers.len() {
            rig.frame(peer, FrameKind::PING.code(), &[]);
        }
        pass(&mut rig, 2_000_000);
        let told = progress(&mut rig);
        assert_eq!(told.map(|(next, _)| next), Some(offset), "left: {leaves}");
    }
}

#[test]
fn leaving_and_rejoining_a_room_causes_no_wake_ups() {
    let mut rig = member_that_had(1);
    rig.tell(0, &Record::Leave { handle: 0 });
    pass(&mut rig, 500_000);
    rig.join(0, 2, ROOM, Positions::default());
    pass(&mut rig, 100_000);
    assert_eq!(answers(&mut rig, 0), [(1, Ok(())), (2, Ok(()))]);
    let mut wakes = 0;
    for _ in 0..4_000 {
        wakes += u32::from(rig.machine.deadline().is_some_and(|at| at <= rig.now + 1_000));
        rig.pass(1_000, 1_000);
    }
    assert!(wakes < 400, "{wakes} turns in 4 s");
}

/// Session 0, which has stood still for longer than a live room waits, resumes; then comes the room's 60th message.
fn stood_still(rig: &mut Rig<Gateway>) {
    rig.peers[0].polite = false;
    for offset in 2..60 {
        rig.say(2, &link_room(1, offset, &[&[b'x'; 900]]));
    }
    for _ in 0..(MESSAGE_AGE_MAX + 1_000_000) / 100_000 {
        rig.pass(100_000, 20_000);
        for link in [2, 3] {
            rig.frame(link, FrameKind::PING.code(), &[]);
        }
    }
    rig.say(2, &link_room(1, 60, &[b"young"]));
    rig.peers[0].polite = true;
    rig.peers[0].conn.ask_status();
    rig.turn();
}

/// The number of room frames and of skips that session 0 gets until the 60th message arrives.
fn until_young(rig: &mut Rig<Gateway>) -> (usize, usize) {
    let frames = |rig: &Rig<Gateway>| [kinds::ROOM, kinds::SKIP].map(|kind| rig.peers[0].frames(kind));
    let [rooms, skips] = frames(rig);
    for _ in 0..20 {
        if rig.peers[0].got.iter().any(|(_, body)| body.ends_with(b"young")) {
            let now = frames(rig);
            return (now[0] - rooms, now[1] - skips);
        }
        rig.peers[0].conn.ask_status();
        pass(rig, 50_000);
    }
    panic!("the newest message does not come");
}

#[test]
fn a_member_that_stood_still_gets_no_old_messages_at_any_gateway_clock() {
    let wrap = (1 << 32) * 1_000;
    for clock in [1_000_000, wrap - 500_000, wrap - 3_000_000, wrap - 7_000_000] {
        let mut rig = member_of(gateway_since(clock), 1);
        stood_still(&mut rig);
        let (rooms, skips) = until_young(&mut rig);
        assert!(
            rooms <= 2 && skips <= 1,
            "clock {clock}: {rooms} messages and {skips} skips"
        );
    }
}

#[test]
fn a_live_member_without_a_window_gets_no_old_messages_either() {
    for returns in [false, true] {
        let mut rig = gateway();
        rig.join(0, 1, ROOM, Positions::default());
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        head(&mut rig, 1, 201);
        pass(&mut rig, 100_000);
        let window = std::mem::take(&mut rig.peers[0].conn.receive_window);
        for offset in 201..260 {
            rig.peers[0].conn.ask_status();
            rig.say(2, &link_room(1, offset, &[&[b'x'; 900]]));
            pass(&mut rig, 200_000);
        }
        if returns {
            rig.join(1, 2, ROOM, Positions::at([(stream(1), 100)]));
            for offset in (101..201).step_by(20) {
                rig.say(2, &link_room(1, offset, &[&b"history"[..]; 20]));
            }
            pass(&mut rig, 300_000);
            assert_eq!(
                answers(&mut rig, 1),
                [(2, Ok(()))],
                "history goes in front of what is old"
            );
        }
        rig.say(2, &link_room(1, 260, &[b"young"]));
        rig.peers[0].conn.receive_window = window;
        let (rooms, skips) = until_young(&mut rig);
        let young = (MESSAGE_AGE_MAX / 200_000) as usize;
        assert!(
            rooms > 10 && rooms <= young + 3 && skips == 1,
            "{rooms} messages and {skips} skips where a member returns: {returns}"
        );
    }
}

/// Regression: the skip was sent alone, since nothing young was left. It was lost, and the member learned of it only
/// with the next message, minutes later.
#[test]
fn a_lost_skip_is_repeated_even_if_nothing_follows() {
    let mut rig = gateway();
    rig.join(0, 1, ROOM, Positions::default());
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 1, 1);
    pass(&mut rig, 100_000);
    let window = std::mem::take(&mut rig.peers[0].conn.receive_window);
    for offset in 1..20 {
        rig.peers[0].conn.ask_status();
        rig.say(2, &link_room(1, offset, &[b"old"]));
        pass(&mut rig, 100_000);
    }
    for _ in 0..(MESSAGE_AGE_MAX + 1_000_000) / 100_000 {
        pass(&mut rig, 100_000);
        for link in [2, 3] {
            rig.frame(link, FrameKind::PING.code(), &[]);
        }
    }
    rig.peers[0].conn.receive_window = window;
    rig.peers[0].conn.tell_status();
    rig.peers[0].deaf = true;
    pass(&mut rig, 1_000_000);
    rig.peers[0].deaf = false;
    rig.peers[0].got.clear();
    for _ in 0..30 {
        pass(&mut rig, 100_000);
        for link in [2, 3] {
            rig.frame(link, FrameKind::PING.code(), &[]);
        }
    }
    let told = rig.peers[0].got.iter().find_map(|(kind, body)| match *kind {
        kinds::HEADS => Some(u64::from_le_bytes(body[4..12].try_into().expect("a place"))),
        kinds::SKIP => Some(Skip::read(body).expect("a skip").index),
        _ => None,
    });
    rig.say(2, &link_room(1, 20, &[b"young"]));
    pass(&mut rig, 100_000);
    let young = rig.peers[0].got.iter().find_map(|(kind, body)| match *kind {
        kinds::ROOM => Some(RoomBlock::read(body).expect("a block").index),
        _ => None,
    });
    assert!(young.is_some());
    assert_eq!(told, young);
}

/// A stream that had ended before this gateway knew it, and an earlier member whose next places are gone.
#[test]
fn history_for_a_returning_member_takes_no_place_that_another_still_needs() {
    let mut rig = gateway();
    rig.machine.set_placement(rig.now, placement_with(OTHER, role::BROKER));
    let other = rig.link(OTHER, role::BROKER);
    let mut rig = member_of(rig, 5);
    let window = std::mem::take(&mut rig.peers[0].conn.receive_window);
    rig.peers[0].conn.ask_status();
    rig.turn();
    for offset in 6..=200 {
        rig.say(2, &link_room(1, offset, &[&[b'x'; 900]]));
    }
    let ended = StreamId {
        node: OTHER,
        ..stream(1)
    };
    rig.join(1, 2, ROOM, Positions::at([(stream(1), 200), (ended, 100)]));
    let head = LinkHead {
        room: room_id(ROOM),
        generation: 1,
        base: 150,
        next: 150,
    };
    let heads = |writer: &mut Writer<'_>| {
        head.write(writer);
        true
    };
    rig.say(other, &body(|writer| append(writer, kinds::LINK_HEADS, ENDED, heads)));
    rig.turn();
    for offset in 101..150 {
        rig.say(other, &link_room(1, offset, &[b"history"]));
    }
    pass(&mut rig, 20_000);
    let gap = StreamGap {
        stream: ended,
        first: 101,
        last: 149,
        reason: GapReason::Expired,
    };
    assert_eq!(
        gaps_told(&mut rig, 1),
        Some(vec![gap]),
        "the returning member learns what it does not get"
    );
    rig.peers[0].got.clear();
    rig.peers[0].conn.receive_window = window;
    rig.peers[0].conn.ask_status();
    pass(&mut rig, 100_000);
    let heard = rig.peers[0].got.iter().find_map(|(kind, body)| match *kind {
        kinds::SKIP => Some(Ok(Skip::read(body).expect("a skip").resume)),
        kinds::ROOM => Some(Err(RoomBlock::read(body).expect("a block").stream)),
        _ => None,
    });
    let resume = heard.expect("it is served").expect("it is told that it was too slow");
    assert!(resume[0].1 > 6, "{resume:?}");
}

#[test]
fn a_member_that_stood_still_and_rejoins_gets_its_history() {
    let mut rig = member_that_had(1);
    stood_still(&mut rig);
    rig.peers[0].got.clear();
    rig.join(0, 2, ROOM, Positions::at([(stream(1), 1)]));
    until_young(&mut rig);
    let [rooms, skips] = [kinds::ROOM, kinds::SKIP].map(|kind| rig.peers[0].frames(kind));
    assert!(rooms > 20 && skips == 0, "{rooms} messages and {skips} skips");
}

/// The rest of a lost stream is reported in its order, so messages present here come before it.
#[test]
fn a_member_that_returns_to_a_lost_stream_has_not_recovered() {
    let whole = |rig: &mut Rig<Gateway>, request, positions| {
        rig.join(0, request, ROOM, positions);
        pass(rig, 20_000);
        let records = rig.peers[0].take_records();
        let mut answers = records.iter().filter_map(|bytes| match Record::read(bytes) {
            Some(Record::Joined { whole, .. }) => Some(whole),
            _ => None,
        });
        answers.next_back().expect("it is answered")
    };
    let mut rig = member_that_had(3);
    let had = |offset, course| {
        Positions(vec![Position {
            stream: stream(1),
            offset,
            course,
        }])
    };
    assert!(whole(&mut rig, 2, had(1, Course::GoesOn)), "all of it is here");
    rig.say(2, &link_room(2, 1, &[b"anew"]));
    pass(&mut rig, 20_000);
    for offset in [1, 3] {
        assert!(!whole(&mut rig, 3, had(offset, Course::GoesOn)), "{offset}");
    }
    assert!(whole(&mut rig, 5, had(3, Course::Lost)), "it knows");
}

#[test]
fn a_join_whose_history_went_with_its_owner_is_answered() {
    let mut rig = gateway();
    rig.join(0, 1, ROOM, Positions::at([(stream(1), 400)]));
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 1, 500);
    pass(&mut rig, 20_000);
    assert_eq!(answers(&mut rig, 0), [], "it waits for what it missed");
    rig.say(2, &link_room(2, 1, &[b"anew"]));
    pass(&mut rig, 2 * BACKFILL_WAIT + 100_000);
    assert_eq!(answers(&mut rig, 0), [(1, Ok(()))]);
}

/// Regression: a gateway died, and a room of another one had been owned by a broker that had died before. While the
/// placement named that broker, a join waited 2 s for it, and then got no message of the next owner.
#[test]
fn a_member_returning_from_an_unlinked_brokers_stream_gets_the_next_owners_messages() {
    for away in [2_000_000, 100_000] {
        let mut rig = gateway();
        rig.machine.set_placement(rig.now, placement_with(OTHER, role::BROKER));
        pass(&mut rig, away);
        let theirs = StreamId {
            node: OTHER,
            ..stream(1)
        };
        rig.join(0, 1, ROOM, Positions::at([(theirs, 50), (stream(1), 3)]));
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        head(&mut rig, 1, 10);
        pass(&mut rig, 20_000);
        if away < SPEAKS_WITHIN {
            pass(&mut rig, SPEAKS_WITHIN - away - 100_000);
            assert_eq!(answers(&mut rig, 0), [], "it may be there all the same");
            pass(&mut rig, 100_000);
        }
        let asked = rig.peers[2].got.iter().filter_map(|(kind, body)| match *kind {
            kinds::LINK_REPAIR => read_link_repair(body),
            _ => None,
        });
        let fetched: Vec<(u64, u64)> = asked.flat_map(|(_, _, _, ranges)| ranges).collect();
        assert_eq!(fetched.first(), Some(&(4, 9)), "away for {away}");
        rig.say(2, &link_room(1, 4, &[&b"history"[..]; 6]));
        pass(&mut rig, 20_000);
        let lost = StreamGap {
            stream: theirs,
            first: 51,
            last: StreamGap::OPEN,
            reason: GapReason::OwnerLost,
        };
        assert_eq!(gaps_told(&mut rig, 0), Some(vec![lost]), "away for {away}");
        pass(&mut rig, 20_000);
        assert!(rig.peers[0].frames(kinds::ROOM) > 0);
    }
}

/// Regression: a gateway that had just started took longer than 300 ms for the link to a broker. A returning member
/// was told that the rest of that broker's stream was lost, and then got it.
#[test]
fn a_gateway_slow_to_link_a_living_broker_reports_no_loss() {
    let mut rig = gateway();
    rig.machine.set_placement(rig.now, placement_with(OTHER, role::BROKER));
    let theirs = StreamId {
        node: OTHER,
        ..stream(1)
    };
    rig.join(0, 1, ROOM, Positions::at([(theirs, 50), (stream(1), 9)]));
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, 1, 10);
    pass(&mut rig, 2 * DETOUR_AFTER);
    assert_eq!(gaps_told(&mut rig, 0), None, "the broker may be there");
    let other = rig.link(OTHER, role::BROKER);
    head_from(&mut rig, other, ROOM, 1, 51);
    pass(&mut rig, 20_000);
    assert_eq!(gaps_told(&mut rig, 0), Some(vec![]), "it is, and nothing was missed");
    rig.say(other, &link_room(1, 51, &[b"next"]));
    pass(&mut rig, 500_000); // it may be queued behind one of the other broker
    assert_eq!(given(&rig), (vec![], vec![51]));
}

#[test]
fn losses_of_an_earlier_stream_are_no_gap_in_the_next() {
    let mut rig = member_that_had(3);
    rig.say(2, &link_room(2, 1, &[b"anew"]));
    let lost = |generation| LinkLost {
        room: room_id(ROOM),
        generation,
        first: 9,
    };
    pass(&mut rig, 20_000);
    let before = counter(&rig.machine, "gaps_unrepaired");
    rig.say(2, &body(|writer| lost(1).write(writer)));
    pass(&mut rig, 20_000);
    assert_eq!(counter(&rig.machine, "gaps_unrepaired"), before);
    rig.say(2, &body(|writer| lost(2).write(writer)));
    pass(&mut rig, 20_000);
    assert_eq!(counter(&rig.machine, "gaps_unrepaired"), before + 1);
}

/// Regression: it ended only rooms that it owned by the placement. A room that it had for an unlinked owner went with
/// its life: at a planned restart, members were told that the rest was lost.
#[test]
fn a_draining_broker_ends_rooms_it_had_for_others_too_and_begins_none() {
    let mut rig = broker();
    let proxy = rig.link(PROXY, role::PROXY);
    let room = room_id(ROOM);
    let owner = (BROKER + 1..).find(|node| weight(room, *node) > weight(room, BROKER));
    let owner = owner.expect("some node has a higher weight");
    let placed = |rig: &mut Rig<Broker>, epoch, state| {
        let mut me = PlacedNode::new(BROKER, role::BROKER, addr(9000));
        me.state = state;
        let other = PlacedNode::new(owner, role::BROKER, addr(9001));
        let router = PlacedNode::new(ROUTER, role::ROUTER, addr(9002));
        rig.machine
            .set_placement(rig.now, room_placement(epoch, vec![me, other, router], 1, 1));
        pass(rig, 10_000);
    };
    let is_open = |rig: &Rig<Broker>| {
        let known = rig.machine.rooms().find(|known| known.id == room);
        known.map(|known| (known.generation, !known.ended))
    };
    let asks = |rig: &mut Rig<Broker>| {
        rig.say(0, &body(|writer| write_link_repair(writer, room, 0, false, &[])));
        pass(rig, 10_000);
    };
    let detours = |rig: &mut Rig<Broker>| {
        let mut frame = link_publish(77, 1, 1, &[b"one"]);
        frame[1] |= 1; // a detour
        rig.say(proxy, &frame);
        pass(rig, 10_000);
        ["messages_published", "dropped_not_owner"].map(|name| counter(&rig.machine, name))
    };
    let begins = |rig: &mut Rig<Broker>| {
        asks(rig);
        let asked = is_open(rig);
        (asked, detours(rig), is_open(rig))
    };
    assert_eq!(is_open(&rig), Some((1, true)));
    placed(&mut rig, 2, NodeState::Running);
    assert_eq!(is_open(&rig), Some((1, false)));
    assert_eq!(begins(&mut rig), (Some((1, true)), [1, 0], Some((1, true))));
    placed(&mut rig, 3, NodeState::Draining);
    assert_eq!(is_open(&rig), Some((1, false)));
    assert_eq!(begins(&mut rig), (Some((1, false)), [1, 1], Some((1, false))));
}

#[test]
fn a_request_for_another_stream_gets_the_rooms_head() {
    let mut rig = Rig::<Broker>::new();
    let got = |rig: &Rig<Broker>| [kinds::LINK_ROOM, kinds::LINK_HEADS].map(|kind| rig.peers[1].frames(kind));
    let [rooms, heads] = got(&rig);
    let ask = |generation| body(|writer| write_link_repair(writer, room_id(ROOM), generation, false, &[(1, 3)]));
    rig.say(1, &ask(2));
    pass(&mut rig, 10_000);
    assert_eq!(got(&rig), [rooms, heads + 1]);
    rig.say(1, &ask(1));
    pass(&mut rig, 10_000);
    assert_eq!(got(&rig), [rooms + 1, heads + 1]);
}

/// The gateway wanted the room, then not, and wants it again for a returning member: messages that it would take as
/// new come after others.
#[test]
fn an_ended_stream_owes_a_gateway_only_what_it_has_not_passed_on() {
    let head = |consumed: Option<u64>| {
        let mut rig = Rig::<Broker>::new();
        let room = room_id(ROOM);
        let next = consumed.unwrap_or(1);
        let (generation, kept) = (1, 0);
        let consumed = Consumed {
            room,
            generation,
            next,
            kept,
        };
        rig.frame(
            1,
            kinds::CONSUMED.code(),
            &body(|writer| {
                consumed.write(writer);
                true
            }),
        );
        rig.turn();
        let nodes = [
            (GATEWAY, role::GATEWAY),
            (BROKER + 50, role::BROKER),
            (ROUTER, role::ROUTER),
        ];
        let nodes = nodes.map(|(node, role)| PlacedNode::new(node, role, addr(9000 + node as u16)));
        rig.machine
            .set_placement(rig.now, room_placement(2, nodes.to_vec(), 1, 1));
        pass(&mut rig, 10_000);
        rig.say(1, &body(|writer| write_link_repair(writer, room, 0, true, &[])));
        pass(&mut rig, 10_000);
        let heads = rig.peers[1].got.iter().filter(|(kind, _)| *kind == kinds::LINK_HEADS);
        let head = heads.flat_map(|(_, body)| LinkHead::read_all(body)).last();
        head.map(|head| (head.base, head.next))
    };
    assert_eq!(
        [None, Some(3), Some(4)].map(head),
        [Some((1, 4)), Some((3, 4)), Some((4, 4))]
    );
}

/// A room without publishers ends soon at a stand-in for its owner: a later member would wait for the owner.
#[test]
fn a_request_for_an_ended_rooms_head_gets_the_end() {
    let mut rig = broker();
    let room = room_id(ROOM);
    let owner = (10..).find(|node| weight(room, *node) > weight(room, BROKER)).unwrap();
    let nodes = [
        (GATEWAY, role::GATEWAY),
        (BROKER, role::BROKER),
        (owner, role::BROKER),
        (ROUTER, role::ROUTER),
    ];
    let nodes = nodes.map(|(node, role)| PlacedNode::new(node, role, addr(9000 + node as u16)));
    rig.machine
        .set_placement(rig.now, room_placement(2, nodes.to_vec(), 1, 1));
    let ask = body(|writer| write_link_repair(writer, room, 0, false, &[]));
    let heads = |rig: &Rig<Broker>| rig.peers[0].frames(kinds::LINK_HEADS);
    let ended = |rig: &Rig<Broker>| rig.peers[0].flagged;
    let before = ended(&rig);
    rig.say(0, &ask);
    pass(&mut rig, 10_000);
    assert_eq!((heads(&rig), ended(&rig)), (1, before), "it begins a stream or goes on");
    pass(&mut rig, 2 * DETOUR_IDLE);
    assert_eq!(ended(&rig), before + 1, "which ends, since nobody publishes");
    let told = heads(&rig);
    rig.say(0, &ask);
    pass(&mut rig, 10_000);
    assert_eq!(
        (heads(&rig), ended(&rig)),
        (told + 1, before + 1),
        "and continues, since a member waits"
    );

    pass(&mut rig, 2 * DETOUR_IDLE);
    let over = ended(&rig);
    let nodes = nodes.into_iter().filter(|node| node.node != BROKER).collect();
    rig.machine.set_placement(rig.now, room_placement(3, nodes, 1, 1));
    rig.say(0, &ask);
    pass(&mut rig, 10_000);
    assert_eq!(
        ended(&rig),
        over + 1,
        "a broker that may not own it does not begin it again"
    );
}

#[test]
fn a_busy_session_leaves_a_silent_server_soon_and_an_idle_one_asks_rarely() {
    let ask_all = |rig: &mut Rig<Client>| rig.peers[0].frames(FrameKind::PING);
    let redirected = |ports: &[u16]| {
        let mut rig = Rig::<Client>::new();
        rig.machine
            .redirect(rig.now, servers(ports), servers(&[9002]), b"token".to_vec());
        rig.pass(10_000, 10_000);
        rig
    };
    let silent_for = |rig: &mut Rig<Client>| {
        rig.peers[0].polite = false;
        let start = rig.now;
        while rig.machine.is_ready(Side::Gateway) {
            rig.pass(10_000, 10_000);
        }
        rig.now - start
    };
    let busy = |rig: &mut Rig<Client>| {
        for _ in 0..300 {
            rig.frame(0, FrameKind::PING.code(), &[]);
            rig.pass(20_000, 10_000);
        }
    };
    let mut rig = redirected(&[9001, 9005]);
    busy(&mut rig);
    let took = silent_for(&mut rig);
    assert!(took < 1_300_000, "{took}");
    let mut rig = redirected(&[9001]);
    busy(&mut rig);
    let took = silent_for(&mut rig);
    assert!(took > SILENCE_MAX, "there is nowhere else to go: {took}");
    // A burst is no reason to ask in between.
    let mut rig = redirected(&[9001, 9005]);
    let before = ask_all(&mut rig);
    for _ in 0..20 {
        (0..5).for_each(|_| rig.frame(0, FrameKind::PING.code(), &[]));
        rig.pass(800_000, 10_000);
    }
    let asked = ask_all(&mut rig) - before;
    assert!(asked <= 2, "{asked}");
}

/// A server confirms that a session is open.
fn ready(keepalive_ms: u32) -> Record<'static> {
    Record::Control(ControlRecord::Ready {
        user: 42,
        token: [2; 16],
        keepalive_ms,
    })
}

/// A client of two gateways and two proxies, with these keepalives.
fn between_two_each(keepalive_ms: u32) -> Rig<Client> {
    let mut rig = Rig::<Client>::new();
    let (gateways, proxies) = (servers(&[9001, 9005]), servers(&[9002, 9006]));
    rig.machine.redirect(rig.now, gateways, proxies, b"token".to_vec());
    let ready = ready(keepalive_ms);
    (0..2).for_each(|peer| rig.tell(peer, &ready));
    rig.pass(10_000, 10_000);
    rig
}

/// Such a client, with traffic that shows it how often servers send. Returns the time from a server's last datagram
/// until it is given up.
fn found_silent(side: Side, keepalive_ms: u32, hears: impl Fn(&mut Rig<Client>, usize)) -> Micros {
    let mut rig = between_two_each(keepalive_ms);
    hears(&mut rig, side as usize);
    rig.peers[side as usize].polite = false;
    let start = rig.now;
    while rig.machine.is_ready(side) {
        rig.pass(10_000, 10_000);
    }
    rig.now - start
}

/// A server's datagrams at this interval, this many times.
fn beats(every: Micros, count: u32) -> impl Fn(&mut Rig<Client>, usize) {
    move |rig, peer| {
        for _ in 0..count {
            rig.pass(every, 10_000);
            rig.frame(peer, FrameKind::PING.code(), &[]);
        }
    }
}

/// The longest time until a silent server is given up: until the client asks, then for a reply, plus a margin for the
/// clock's steps.
fn found_within(asks_after: Micros) -> Micros {
    asks_after + 750_000 + 30_000
}

#[test]
fn a_silent_server_is_found_within_a_keepalive_and_the_longest_reply_time() {
    for side in [Side::Gateway, Side::Proxy] {
        for (every, count) in [(1_000_000, 2), (1_000_000, 20), (5_000_000, 1), (10_000, 0)] {
            let took = found_silent(side, 400, beats(every, count));
            assert!(
                took < found_within(400_000),
                "{side:?}, {count} each {every} us: {took}"
            );
        }
    }
}

/// Regression: it took minutes to adapt from a keepalive of 15 s: each message removed a 32nd of the excess.
#[test]
fn a_client_adapts_to_frequent_data_after_a_few_messages() {
    for (every, count, asks_after) in [
        (100_000, 10, 250_000),
        (20_000, 30, 250_000),
        (333_000, 5, 666_000),
        (1_000_000, 5, 2_000_000),
    ] {
        let took = found_silent(Side::Gateway, 15_000, beats(every, count));
        assert!(took < found_within(asks_after), "{count} each {every} us: {took}");
    }
    let seldom = |rig: &mut Rig<Client>, peer: usize| {
        beats(50_000, 40)(rig, peer);
        beats(2_000_000, 2)(rig, peer);
    };
    let took = found_silent(Side::Gateway, 15_000, seldom);
    assert!(
        (2_000_000..found_within(4_000_000)).contains(&took),
        "a longer lull counts at once: {took}"
    );
}

/// Regression: a program that reads more slowly than data arrives took its server for silent, while the replies lay
/// in its own socket.
#[test]
fn a_client_behind_with_reading_finds_silence_only_once_it_has_read_everything() {
    let mut rig = between_two_each(15_000);
    beats(100_000, 20)(&mut rig, 0);
    rig.peers[0].polite = false;
    let (start, before) = (rig.now, rig.peers[0].frames(FrameKind::PING));
    while rig.now < start + 20_000_000 {
        rig.now += 10_000;
        rig.machine.behind(rig.now);
        rig.turn();
        assert!(rig.machine.is_ready(Side::Gateway));
    }
    let asked = rig.peers[0].frames(FrameKind::PING) - before;
    assert!((1..=4 * 20).contains(&asked), "{asked} questions in 20 s");
    let start = rig.now;
    while rig.machine.is_ready(Side::Gateway) {
        rig.pass(10_000, 10_000);
    }
    assert!(rig.now - start < found_within(0), "{}", rig.now - start);
}

/// Regression: one check of fifty that found unread datagrams kept a dead server forever.
#[test]
fn a_client_sometimes_behind_still_finds_silence() {
    for looks in [1, 25] {
        let mut rig = between_two_each(15_000);
        beats(100_000, 20)(&mut rig, 1);
        rig.peers[1].polite = false;
        let start = rig.now;
        for step in 1..=2_000 {
            rig.now += 10_000;
            if step % 50 < looks {
                rig.machine.behind(rig.now);
                rig.machine.expire(rig.now);
            }
            rig.turn();
            if !rig.machine.is_ready(Side::Proxy) {
                break;
            }
        }
        let took = rig.now - start;
        assert!(took < found_within(250_000) + 1_000_000, "{took}");
    }
}

/// With any traffic, it costs at most four requests in three seconds, and one per four received datagrams.
#[test]
fn liveness_requests_are_rare_with_any_traffic() {
    let mut dice = Dice::new(5);
    let mut bursts = vec![
        (1, 0, 300_000),
        (5, 0, 800_000),
        (20, 0, 600_000),
        (12, 50_000, 400_000),
        (60, 10_000, 300_000),
    ];
    bursts.extend((0..20).map(|_| {
        let count = 1 + dice.below(30) as u32;
        (count, 10_000 * dice.below(20), 10_000 * dice.below(200))
    }));
    for (count, every, pause) in bursts {
        let mut rig = Rig::<Client>::new();
        let ready = ready(15_000);
        rig.tell(0, &ready);
        rig.pass(1_000_000, 10_000);
        let (start, before, mut heard) = (rig.now, rig.peers[0].frames(FrameKind::PING), 0);
        while rig.now < start + 60_000_000 {
            beats(every, count)(&mut rig, 0);
            rig.pass(pause, 10_000);
            heard += count as usize;
        }
        let asked = rig.peers[0].frames(FrameKind::PING) - before;
        let seconds = ((rig.now - start) / 1_000_000) as usize;
        let most = (4 * seconds / 3).min(heard / 4) + 8;
        assert!(
            asked <= most,
            "{count} each {every} us and {pause} us of rest: {asked} questions in {seconds} s"
        );
    }
}

/// The last window announced to a peer.
fn told_window<M: Subject>(rig: &Rig<M>, peer: usize) -> Option<u32> {
    let statuses = rig.peers[peer]
        .got
        .iter()
        .rev()
        .filter(|(kind, _)| *kind == FrameKind::STATUS);
    statuses
        .map(|(_, body)| Status::read(body).expect("well formed").window)
        .next()
}

/// A proxy whose broker takes nothing, and a publisher that fills its window until it is small. Returns the first
/// window.
fn filled_proxy() -> (Rig<Proxy>, u32) {
    let mut rig = Rig::<Proxy>::new();
    rig.peers[2].polite = false;
    let publish_some = |rig: &mut Rig<Proxy>, first: u64| {
        for at in 0..32 {
            rig.say(0, &publish(0, 1, first + at, &[&[b'x'; 900]]));
        }
        rig.turn();
        told_window(rig, 0).expect("a status after 32 datagrams")
    };
    let all = publish_some(&mut rig, 1);
    let mut first = 33;
    while publish_some(&mut rig, first) > 64 * 1024 {
        first += 32;
        assert!(first < 10_000, "it is told nothing");
    }
    assert_eq!(counter(&rig.machine, "dropped_queue_full"), 0);
    (rig, all)
}

#[test]
fn a_publishers_window_shrinks_while_its_data_waits() {
    let (mut rig, all) = filled_proxy();
    rig.peers[2].polite = true;
    rig.pass(500_000, 10_000);
    assert_eq!(told_window(&rig, 0), Some(all), "it is told when there is room again");
}

#[test]
fn frames_for_a_lost_broker_are_dropped() {
    let (mut rig, all) = filled_proxy();
    assert!(!rig.machine.is_idle());
    rig.pass(2_000_000, 10_000);
    assert!(rig.machine.is_idle());
    assert_eq!(told_window(&rig, 0), Some(all), "its publishers may send again");
}

/// A large room's members get a message slice by slice: members that come and go between two slices must not cost
/// others their turn.
#[test]
fn joins_and_leaves_during_fan_out_skip_no_other_member() {
    for joins in [false, true] {
        let mut rig = gateway();
        for number in 3..=2 * SLICE_DATAGRAMS as u32 + 3 {
            let at = rig.session(number);
            rig.join(at, 1, ROOM, Positions::default());
        }
        let late = rig.session(1_000);
        rig.tell(3, &Record::Covered { offset: 1 << 20 });
        head(&mut rig, 1, 1);
        rig.pass(100_000, 5_000);
        let mut got = BTreeSet::new();
        let mut slice = |rig: &mut Rig<Gateway>| {
            let mut outbox = Outbox::new(false);
            let more = rig.machine.transmit(rig.now, &mut outbox);
            got.extend(outbox.parcels().iter().map(|parcel| parcel.to));
            (outbox.parcels().first().map(|parcel| parcel.to), more)
        };
        rig.say(2, &link_room(1, 1, &[b"to all"]));
        let (first, more) = slice(&mut rig);
        assert!(more);
        match joins {
            true => rig.join(late, 1, ROOM, Positions::default()),
            false => {
                let served = rig.peers.iter().position(|peer| Some(peer.addr) == first);
                rig.tell(served.expect("a member"), &Record::Leave { handle: 0 });
            }
        }
        while slice(&mut rig).1 {}
        let members = (0..rig.peers.len()).filter(|at| ![0, 1, 2, 3, late].contains(at));
        let has = |at: usize| got.contains(&rig.peers[at].addr) || rig.peers[at].frames(kinds::ROOM) > 0;
        let missed: Vec<usize> = members.filter(|at| !has(*at)).collect();
        assert_eq!(missed, Vec::<usize>::new(), "joins: {joins}");
    }
}

#[test]
fn one_owners_loss_does_not_end_the_wait_for_another_broker() {
    let mut rig = gateway();
    rig.machine.set_placement(rig.now, placement_with(OTHER, role::BROKER));
    let other = rig.link(OTHER, role::BROKER);
    let mut rig = member_of(rig, 5);
    let theirs = StreamId {
        node: OTHER,
        ..stream(1)
    };
    rig.join(1, 2, ROOM, Positions::at([(stream(1), 5), (theirs, 50)]));
    rig.turn();
    let lost = LinkLost {
        room: room_id(ROOM),
        generation: 1,
        first: 1,
    };
    rig.say(2, &body(|writer| lost.write(writer)));
    rig.turn();
    assert_eq!(answers(&mut rig, 1), [], "the other broker has not said what it has");
    head_from(&mut rig, other, ROOM, 1, 51);
    pass(&mut rig, 100_000);
    assert_eq!(gaps_told(&mut rig, 1), Some(vec![]));
}

#[test]
fn members_learn_at_once_that_another_stream_replaces_theirs() {
    let nodes: Vec<u32> = (100..108).collect();
    let mut rig = gateway();
    rig.machine
        .set_placement(rig.now, placement_with_all(&nodes, role::BROKER));
    let links: Vec<usize> = nodes.iter().map(|node| rig.link(*node, role::BROKER)).collect();
    let mut rig = member_of(rig, 1);
    for link in &links[..7] {
        head_from(&mut rig, *link, ROOM, 1, 1);
    }
    rig.pass(400_000, 20_000);
    let gaps = |rig: &Rig<Gateway>| rig.peers[0].frames(kinds::GAP);
    assert_eq!(gaps(&rig), 0);
    head_from(&mut rig, links[7], ROOM, 1, 1);
    assert_eq!(gaps(&rig), 1);
}

const QUIET: &str = "sports:quiet";
const QUIETS: PublisherId = PublisherId {
    user: 43,
    incarnation: 1,
};

/// A broker with a gateway that wants a second room.
fn broker_of_two() -> Rig<Broker> {
    let mut rig = Rig::<Broker>::new();
    let RoomKey { id: room, check } = room_key(QUIET);
    let quiet = Membership {
        room,
        check,
        ..membership(2, true)
    };
    let (node, epoch, membership) = (GATEWAY, EPOCH, quiet);
    let wants = Record::GatewayMembership {
        node,
        epoch,
        membership,
    };
    rig.tell(2, &wants);
    rig.pass(100_000, 5_000);
    rig
}

/// The gateway's data of the second room: offsets of messages, and the end of losses or of the stream.
fn heard_of_quiet(rig: &Rig<Broker>) -> (Vec<u64>, Option<u64>) {
    let (mut offsets, mut told) = (vec![], None);
    for (kind, body) in &rig.peers[1].got {
        match *kind {
            kinds::LINK_ROOM => {
                let block = LinkBlock::read(body).expect("well formed");
                if block.room == room_id(QUIET) {
                    offsets.push(block.offset);
                }
            }
            kinds::LINK_LOST => {
                let lost = LinkLost::read(body).expect("well formed");
                told = told.max((lost.room == room_id(QUIET)).then_some(lost.first));
            }
            kinds::LINK_HEADS => {
                let heads = LinkHead::read_all(body).filter(|head| head.room == room_id(QUIET));
                told = told.max(heads.map(|head| head.next).max());
            }
            _ => {}
        }
    }
    (offsets, told)
}

/// Regression: a room numbered faster than its gateway's link takes it kept all others of that gateway waiting.
#[test]
fn a_room_that_outruns_a_link_does_not_starve_others() {
    let mut rig = broker_of_two();
    rig.peers[1].conn.receive_window = 4 << 10;
    rig.peers[1].conn.ask_status();
    rig.turn();
    let mut sequence = 3;
    for turn in 0..20 {
        for _ in 0..400 {
            sequence += 1;
            rig.say(0, &link_publish(5, sequence, sequence, &[&[7; 1_000]]));
        }
        if turn == 5 {
            rig.peers[1].got.clear();
            rig.say(0, &link_publish_in(QUIET, QUIETS, 1, 1, &[b"one"]));
        }
        rig.pass(1_000, 1_000);
        let (heard, _) = heard_of_quiet(&rig);
        if !heard.is_empty() {
            return;
        }
        rig.peers[1].got.clear();
    }
    panic!("nothing of the quiet room");
}

/// Regression: while a link took nothing, other rooms evicted a quiet room's message: it was skipped without a
/// report. And the report was lost.
#[test]
fn a_message_evicted_before_sending_is_reported_lost_until_confirmed() {
    for deaf in [false, true] {
        let mut rig = broker_of_two();
        rig.peers[1].polite = false;
        for sequence in 4..104 {
            rig.say(0, &link_publish(5, sequence, sequence, &[&[7; 1_000]]));
        }
        rig.turn();
        rig.say(0, &link_publish_in(QUIET, QUIETS, 1, 1, &[b"one"]));
        // A single room, or user, would evict only its own messages.
        for number in 0..1_500 {
            let (user, sequence) = (1_000 + number % 300, 1 + number / 300);
            let publisher = PublisherId { user, incarnation: 1 };
            let room = format!("other-{user}");
            rig.say(
                0,
                &link_publish_in(&room, publisher, sequence, sequence, &[&[7; 1_000]]),
            );
        }
        rig.peers[1].got.clear();
        rig.peers[1].polite = true;
        rig.peers[1].conn.ask_status();
        if deaf {
            // The gateway again receives a window of data and reports it, but gets none of the broker's further data.
            rig.turn();
            rig.peers[1].deaf = true;
            rig.turn();
            rig.pass(20_000, 1_000);
            rig.peers[1].deaf = false;
        }
        pass(&mut rig, 3_000_000);
        assert_eq!(heard_of_quiet(&rig), (vec![], Some(2)), "deaf: {deaf}");
    }
}
