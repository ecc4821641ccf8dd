//! Links of two and more nodes that exchange datagrams, without traffic of their own.

use super::*;
use crate::allow::{AllowList, Listed};
use crate::door::{DoorKey, Knock};
use crate::fixtures::{cluster, me, Zeros, FRONT, INDEX, STORE};
use crate::handshake::InitiatorKey;
use crate::keys::ServerKey;
use crate::limits::NODES_MAX;
use crate::machine::{Addr, Entropy};
use crate::node::Identity;
use crate::seal::Secret;
use crate::versions::Versions;
use crate::wire::frame::{FrameKinds, Frames};

fn links() -> Links {
    let key = DoorKey::Cluster(Box::new(cluster()));
    Links::new(
        Door::new(key, ResetSecret::new([1; 32]), &mut Zeros),
        cluster(),
        1 << 20,
    )
}

/// Entropy that counts up from a start value.
struct Counted(u8);

impl Entropy for Counted {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| {
            self.0 = self.0.wrapping_mul(5).wrapping_add(3);
            *byte = self.0;
        });
    }
}

/// A link to node 9, proven.
fn linked(links: &mut Links, id: u32, epoch: u32) -> (u32, Identity) {
    linked_to(links, 0, id, 9, epoch)
}

fn linked_to(links: &mut Links, now: Micros, id: u32, node: u32, epoch: u32) -> (u32, Identity) {
    let peer = Identity {
        node,
        role: INDEX,
        epoch,
    };
    let link = Link::new(now, peer, 1, None);
    let secret = Secret::new([1; 16]);
    let conn = |id| Conn::new(id, 1, 0, Addr::default(), secret, false, 1, 1_000, now);
    let slot = links.table.insert(id, |id| (conn(id), link));
    links.prove(now, slot);
    (slot, peer)
}

/// One of two nodes without traffic of their own.
struct End {
    links: Links,
    node: Node,
    addr: Addr,
    seen: Vec<LinkChange>,
}

impl End {
    fn new(number: u32, role: Role) -> Self {
        let mut me = me(role);
        me.node = number;
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], number as u16)).into();
        let node = Node::new(me, 1_200, number.into(), Box::new(Counted(number as u8)));
        let (links, seen) = (links(), vec![]);
        End {
            links,
            node,
            addr,
            seen,
        }
    }

    fn transmit(&mut self, now: Micros) -> Vec<(Addr, Vec<u8>)> {
        let mut outbox = Outbox::new(false);
        self.links.transmit(now, &mut self.node, &mut outbox);
        let ready: Vec<u32> = self.links.proven().map(|(_, slot)| slot).collect();
        for slot in ready {
            self.links.send(now, &mut self.node, slot, &mut outbox, |_, _| false);
        }
        outbox
            .parcels()
            .iter()
            .map(|parcel| (parcel.to, outbox.bytes(parcel).to_vec()))
            .collect()
    }

    fn receive(&mut self, now: Micros, from: Addr, mut datagram: Vec<u8>) {
        let len = datagram.len() as u32;
        let (socket, start) = (0, 0);
        let arrival = Arrival {
            socket,
            from,
            start,
            len,
        };
        let Some((slot, len)) = self.links.receive(now, &mut self.node, arrival, &mut datagram) else {
            return;
        };
        let mut elicits = false;
        for frame in Frames::new(&datagram[HEADER..HEADER + len], FrameKinds::TRANSPORT) {
            let frame = frame.expect("a frame of ours");
            elicits |= FrameKinds::TRANSPORT.elicits(frame.kind);
            self.links.control(now, slot, &frame, &mut Records::default());
        }
        self.links.after(now, slot, elicits);
    }
}

/// Exchanges the nodes' datagrams for this many milliseconds.
fn live(from: Micros, millis: u64, ends: &mut [End]) -> Micros {
    let mut now = from;
    while now < from + millis * 1_000 {
        now += 1_000;
        for at in 0..ends.len() {
            let End { links, node, addr, .. } = &mut ends[at];
            let from = *addr;
            links.expire(now, node);
            for (to, datagram) in ends[at].transmit(now) {
                if let Some(end) = ends.iter_mut().find(|end| end.addr == to) {
                    end.receive(now, from, datagram);
                }
            }
        }
        for end in ends.iter_mut() {
            end.seen.extend(std::iter::from_fn(|| end.links.change()));
        }
    }
    now
}

/// Regression: the dialling node continued a handshake forever that was over.
#[test]
fn a_dialled_node_is_found_after_another_role_answered_at_its_address() {
    let mut ends = [End::new(1, STORE), End::new(6, FRONT)];
    let addr = ends[1].addr;
    ends[0].links.dial(0, std::iter::once((5, INDEX, addr)));
    let now = live(0, 1_000, &mut ends);
    assert!(ends[0].links.to(6).is_none());
    ends[1] = End::new(5, INDEX);
    ends[1].addr = addr;
    let now = live(now, 10_000, &mut ends);
    assert!(ends[0].links.to(5).is_some());
    // The number and the address come back in another role.
    ends[1] = End::new(5, FRONT);
    ends[1].addr = addr;
    ends[0].links.dial(now, std::iter::once((5, FRONT, addr)));
    live(now, 10_000, &mut ends);
    let slot = ends[0].links.to(5).expect("a link");
    let role = ends[0].links.table.get(slot).map(|link| link.data.peer.role);
    assert_eq!(role, Some(FRONT));
}

/// A broker that dials a router.
fn dialling() -> [End; 2] {
    let mut ends = [End::new(1, STORE), End::new(2, INDEX)];
    let router = (2, INDEX, ends[1].addr);
    ends[0].links.dial(0, std::iter::once(router));
    ends
}

/// Regression: a broker is gone and another one has its address. Each dial of one replaced the other's link,
/// twenty times a second.
#[test]
fn a_node_at_anothers_address_keeps_its_link_and_is_reported_once() {
    let mut ends = [End::new(1, STORE), End::new(6, INDEX)];
    let addr = ends[1].addr;
    let dials = [5, 6].map(|node| (node, INDEX, addr));
    ends[0].links.dial(0, dials.into_iter());
    let mut now = live(0, 1_000, &mut ends);
    assert_eq!(ends.each_ref().map(|end| end.links.counters.links_up), [1, 1]);
    now = live(now, 20_000, &mut ends);
    assert_eq!(ends[0].told(), ["mistaken", "up"], "once");
    assert_eq!(ends.each_ref().map(|end| end.links.counters.links_up), [1, 1]);
    let asked = ends[1].links.door.counters.handshakes_accepted;
    assert!((4..=12).contains(&asked), "{asked} handshakes");
    assert!(ends[0].links.to(5).is_none());
    // The dialled broker returns to its address.
    ends[1] = End::new(5, INDEX);
    ends[1].addr = addr;
    live(now, 10_000, &mut ends);
    assert!(ends[0].links.to(5).is_some() && ends[0].links.to(6).is_none());
}

impl End {
    fn speaks(mut self, lowest: u8, highest: u8) -> Self {
        self.node.versions = Versions::new(lowest, highest);
        self
    }

    /// The version of its link.
    fn version(&self) -> Option<u8> {
        let (_, slot) = self.links.proven().next()?;
        self.links.table.get(slot).map(|link| link.data.version)
    }
}

#[test]
fn nodes_of_two_releases_use_the_highest_version_that_both_speak() {
    for (one, other, used) in [
        ((1, 1), (1, 1), 1),
        ((1, 2), (1, 1), 1),
        ((1, 1), (1, 2), 1),
        ((1, 3), (2, 4), 3),
        ((2, 2), (1, 2), 2),
    ] {
        let mut ends = dialling().map(Some);
        let mut end = |at: usize, (lowest, highest)| ends[at].take().expect("once").speaks(lowest, highest);
        let mut ends = [end(0, one), end(1, other)];
        live(0, 500, &mut ends);
        assert_eq!(
            ends.each_ref().map(End::version),
            [Some(used); 2],
            "{one:?} dials {other:?}"
        );
    }
}

#[test]
fn nodes_without_a_common_version_are_reported_once_and_link_after_an_upgrade() {
    for (one, other) in [((1, 1), (2, 3)), ((3, 4), (1, 2)), ((2, 2), (1, 1))] {
        let [dialler, dialled] = dialling();
        let (mut ends, addr) = ([dialler.speaks(one.0, one.1), dialled.speaks(other.0, other.1)], 1);
        let mut now = live(0, 9_000, &mut ends);
        assert_eq!(
            ends.each_mut().map(End::told),
            [["differs"]; 2],
            "{one:?} dials {other:?}"
        );
        assert_eq!(ends.each_ref().map(End::version), [None; 2]);
        let tries = ends[0].links.counters.links_other_version;
        assert_eq!(tries, 2, "it waits long");
        assert_eq!(ends[1].links.door.counters.refused_version, tries);
        let before = ends[addr].addr;
        ends[addr] = End::new(2, INDEX).speaks(one.0, other.1.max(one.1));
        ends[addr].addr = before;
        now = live(now, 6_000, &mut ends);
        assert_eq!(ends.each_mut().map(End::told), [["up"]; 2], "at {now}");
    }
}

/// Releases from before there were versions read exactly these nine bytes.
#[test]
fn a_node_of_the_first_version_sends_the_bytes_of_earlier_releases() {
    let [dialler, dialled] = dialling();
    let me = dialler.node.me;
    assert_eq!(me.with(&dialler.node.versions.offer()), me.to_bytes());
    assert_eq!(me.with(&dialled.node.versions.answer(&[])), me.to_bytes());
    assert_eq!(Identity::read(&me.to_bytes()), Some((me, &[][..])));
}

const A: (u8, [u8; 32]) = (1, [7; 32]);
const B: (u8, [u8; 32]) = (2, [8; 32]);

fn keys(current: (u8, [u8; 32]), other: Option<(u8, [u8; 32])>) -> ClusterKeys {
    let allow = None;
    ClusterKeys { current, other, allow }
}

impl End {
    fn set(&mut self, now: Micros, current: (u8, [u8; 32]), other: Option<(u8, [u8; 32])>) {
        self.links.set_cluster(now, &mut self.node, keys(current, other));
    }

    fn key(&self) -> Option<u8> {
        let (_, slot) = self.links.proven().next()?;
        self.links.table.get(slot).map(|link| link.conn.key_id())
    }

    /// Changes of links since the last call.
    fn told(&mut self) -> Vec<&'static str> {
        let seen = self.seen.drain(..).map(|change| match change {
            LinkChange::Up { .. } => "up",
            LinkChange::Down { reason, .. } => reason,
            LinkChange::Refused { .. } => "refused",
            LinkChange::Unlisted { .. } => "unlisted",
            LinkChange::Mistaken { .. } => "mistaken",
            LinkChange::Differs { .. } => "differs",
            LinkChange::Stranger { why, .. } => why.name(),
        });
        seen.collect()
    }
}

#[test]
fn a_secret_is_replaced_while_links_live_and_nodes_with_only_the_old_one_are_refused() {
    let mut ends = dialling();
    let mut now = live(0, 500, &mut ends);
    assert_eq!(ends.each_mut().map(End::told), [["up"], ["up"]]);
    for at in [0, 1] {
        ends[at].set(now, A, Some(B));
        now = live(now, 1_500, &mut ends);
    }
    assert_eq!(ends.each_ref().map(End::key), [Some(1), Some(1)]);
    assert_eq!(
        ends.each_mut().map(End::told),
        [[], [] as [&str; 0]],
        "to accept one more is no reason"
    );

    ends[1].set(now, B, Some(A)); // a node that was dialled renews nothing
    now = live(now, 1_500, &mut ends);
    assert_eq!(ends[1].key(), Some(1));
    ends[0].set(now, B, Some(A));
    now = live(now, 1_500, &mut ends);
    assert_eq!(ends.each_ref().map(End::key), [Some(2), Some(2)]);
    assert_eq!(ends[0].told(), ["renewed", "up"], "never without a link");

    for at in [0, 1] {
        ends[at].set(now, B, None);
        now = live(now, 1_500 + RENEW_GRACE / 1_000, &mut ends);
    }
    assert!(ends
        .each_mut()
        .map(End::told)
        .concat()
        .iter()
        .all(|change| *change != "key dropped"));
    assert_eq!(ends.each_ref().map(|end| end.links.counters.links_key_dropped), [0, 0]);

    ends[0] = End::new(3, STORE);
    let router = (2, INDEX, ends[1].addr);
    ends[0].links.dial(now, std::iter::once(router));
    live(now, 1_000 + REFUSED_AFTER / 1_000, &mut ends);
    assert_eq!(ends[0].told(), ["refused"], "once");
    assert!(ends[1].links.door.counters.dropped_key_unknown > 0);
}

#[test]
fn a_link_with_a_dropped_key_ends_at_both_ends_after_the_grace_period() {
    for (drops, other) in [(0, 1), (1, 0)] {
        let mut ends = dialling();
        let now = live(0, 500, &mut ends);
        ends.iter_mut().for_each(|end| drop(end.told()));
        ends[drops].set(now, B, None);
        let now = live(now, RENEW_GRACE / 1_000 - 10, &mut ends);
        assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
        live(now, 50, &mut ends);
        assert_eq!(
            (ends[drops].told(), ends[other].told()),
            (vec!["key dropped"], vec!["closed"])
        );
        assert_eq!(ends.each_ref().map(End::key), [None, None]);
        assert_eq!(ends[drops].links.counters.links_key_dropped, 1);
    }
}

#[test]
fn the_same_id_with_another_secret_is_another_key() {
    let mut ends = dialling();
    let now = live(0, 500, &mut ends);
    for end in &mut ends {
        end.told();
        end.set(now, (1, [9; 32]), None);
    }
    live(now, 1_500, &mut ends);
    assert_eq!(ends[0].told(), ["renewed", "up"]);
    assert!(ends.iter().all(|end| end.links.proven().count() == 1));
}

fn own(node: u32) -> ServerKey {
    ServerKey::from_private([node as u8 + 100; 32])
}

/// A list of these nodes, as the node with this key holds it.
fn list(demand: Demand, mine: u32, nodes: &[(u32, Role)]) -> ClusterKeys {
    let listed = |(node, role): &(u32, Role)| {
        let (role, key) = (*role, own(*node).public());
        (*node, Listed { role, key })
    };
    let allow = Some(AllowList {
        own: own(mine),
        nodes: nodes.iter().map(listed).collect(),
        demand,
    });
    ClusterKeys { allow, ..keys(A, None) }
}

const BROKER: (u32, Role) = (1, STORE);
const ROUTER: (u32, Role) = (2, INDEX);
const GATEWAY: (u32, Role) = (3, FRONT);
const OTHER: (u32, Role) = (4, FRONT);
const ALL: [(u32, Role); 4] = [BROKER, ROUTER, GATEWAY, OTHER];

impl End {
    fn know(&mut self, now: Micros, keys: ClusterKeys) {
        self.links.set_cluster(now, &mut self.node, keys);
    }

    /// A node that has its listed key.
    fn listed((node, role): (u32, Role)) -> Self {
        let mut end = End::new(node, role);
        end.know(0, list(Demand::Required, node, &ALL));
        end
    }

    fn dials(&mut self, now: Micros, other: &End) {
        let Identity { node, role, .. } = other.node.me;
        self.links.dial(now, std::iter::once((node, role, other.addr)));
    }

    fn linked(&self) -> Vec<u32> {
        self.links.proven().map(|(node, _)| node).collect()
    }

    fn refused(&self) -> u64 {
        self.links.door.counters.dropped_identity
    }
}

#[test]
fn a_node_removed_from_the_list_is_shut_out_at_once_and_others_keep_their_links() {
    let mut ends = [BROKER, ROUTER, GATEWAY, OTHER].map(End::listed);
    let [broker, router, gateway, other] = &mut ends;
    broker.dials(0, router);
    gateway.dials(0, router);
    other.dials(0, router);
    let mut now = live(0, 500, &mut ends);
    assert_eq!(ends[1].linked(), [1, 3, 4]);
    ends.iter_mut().for_each(|end| drop(end.told()));

    ends[1].know(now, list(Demand::Required, 2, &[BROKER, ROUTER, OTHER]));
    now = live(now, 50, &mut ends);
    assert_eq!((ends[1].linked(), ends[2].linked()), (vec![1, 4], vec![]));
    assert_eq!(ends[1].links.counters.links_shut_out, 1);
    now = live(now, 3_000 + REFUSED_AFTER / 1_000, &mut ends);
    assert_eq!(
        ends[1].told(),
        ["shut out", "not listed"],
        "once, however often it comes"
    );
    assert_eq!(ends[2].told(), ["closed", "refused"]);
    assert!(ends[1].refused() > 1);
    for quiet in [0, 3] {
        assert_eq!(ends[quiet].told(), [] as [&str; 0]);
    }

    ends[1].know(now, list(Demand::Required, 2, &ALL));
    live(now, 500, &mut ends);
    assert_eq!(ends[1].linked(), [1, 3, 4], "a relisted node is admitted again");
}

#[test]
fn the_clusters_secret_alone_or_anothers_key_makes_no_link() {
    let liar = |number, role, mine| {
        let mut end = End::new(number, role);
        end.know(0, list(Demand::Offered, mine, &ALL));
        end
    };
    let mut plain = End::new(3, FRONT);
    plain.know(0, keys(A, None));
    let mut meek = End::new(3, FRONT);
    meek.know(0, list(Demand::Accepted, 3, &ALL));
    let cases = [
        (plain, "no identity"),
        (meek, "no identity"),
        (liar(3, FRONT, 9), "another key"),
        (liar(4, FRONT, 3), "another key"),
        (liar(3, STORE, 3), "another key"),
        (liar(1, STORE, 3), "another key"),
        (liar(9, FRONT, 9), "not listed"),
    ];
    for (stranger, why) in cases {
        let me = stranger.node.me;
        let mut ends = [stranger, End::listed(ROUTER)];
        let [stranger, router] = &mut ends;
        stranger.dials(0, router);
        live(0, 200 + REFUSED_AFTER / 1_000, &mut ends);
        assert_eq!(ends.each_ref().map(End::linked), [[], [] as [u32; 0]], "{me:?}");
        assert_eq!(ends[1].told(), [why], "{me:?}");
        assert!(ends[1].refused() > 0);
    }
}

#[test]
fn a_dialled_node_must_have_its_listed_key() {
    let other_key = |demand, mine| {
        let mut end = End::new(2, INDEX);
        end.know(0, list(demand, mine, &ALL));
        end
    };
    let mut plain = End::new(2, INDEX);
    plain.know(0, keys(A, None));
    let mut ahead = End::new(5, INDEX);
    ahead.addr = other_key(Demand::Required, 2).addr;
    ahead.know(0, list(Demand::Required, 2, &ALL)); // it has a listed key, but claims another node's number
    for dialled in [
        plain,
        other_key(Demand::Required, 3),
        other_key(Demand::Offered, 1),
        ahead,
    ] {
        let mut ends = [End::listed(BROKER), dialled];
        let router = (2, INDEX, ends[1].addr);
        ends[0].links.dial(0, std::iter::once(router));
        live(0, 500 + REFUSED_AFTER / 1_000, &mut ends);
        let who = ends[1].node.me;
        assert_eq!(ends[0].linked(), [] as [u32; 0], "{who:?}");
        assert_eq!(ends[0].told(), ["refused"], "{who:?}");
    }
    let mut ends = [End::listed(BROKER), End::listed(GATEWAY)];
    let as_router = (3, INDEX, ends[1].addr);
    ends[0].links.dial(0, std::iter::once(as_router));
    live(0, 1_000, &mut ends);
    assert_eq!(
        ends[0].told(),
        ["unlisted"],
        "the key of a gateway is that of no router"
    );
    assert_eq!(ends[0].links.counters.links_unlisted, 1);
    assert_eq!(ends[1].links.counters.link_datagrams_received, 0);
}

#[test]
fn a_replayed_hello_replaces_no_link() {
    let mut ends = [End::listed(GATEWAY), End::listed(ROUTER)];
    let [gateway, router] = &mut ends;
    gateway.dials(0, router);
    let (mut now, mut hellos) = (0, vec![]);
    while router.linked().is_empty() {
        now += 1_000;
        gateway.links.expire(now, &mut gateway.node);
        for (_, datagram) in gateway.transmit(now) {
            let hello = Header::read(&datagram).is_ok_and(|header| header.kind == DatagramKind::Hello);
            hellos.extend(hello.then(|| datagram.clone()));
            router.receive(now, gateway.addr, datagram);
        }
        for (_, datagram) in router.transmit(now) {
            gateway.receive(now, router.addr, datagram);
        }
    }
    let hello = hellos.pop().expect("the one with a cookie");
    now = live(now, 500, &mut ends);
    ends.iter_mut().for_each(|end| drop(end.told()));
    let from = ends[0].addr;
    for _ in 0..3 {
        ends[1].receive(now, from, hello.clone());
        now = live(now, 500, &mut ends);
    }
    assert!(ends[1].links.door.counters.handshakes_accepted > 3);
    assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
    assert_eq!(ends.each_ref().map(End::linked), [[2], [3]]);

    ends[1].know(now, list(Demand::Required, 2, &[ROUTER]));
    live(now, 50, &mut ends);
    let accepted = ends[1].links.door.counters.handshakes_accepted;
    ends[1].receive(now, from, hello);
    live(now, 500, &mut ends);
    assert_eq!(ends[1].links.door.counters.handshakes_accepted, accepted);
}

#[test]
fn identities_are_introduced_and_removed_in_steps_without_losing_a_link() {
    let mut ends = dialling();
    let mut now = live(0, 500, &mut ends);
    ends.iter_mut().for_each(|end| drop(end.told()));
    let demands = [Demand::Accepted, Demand::Offered, Demand::Required];
    let there = demands.into_iter().chain([Demand::Offered, Demand::Accepted]);
    for demand in there {
        for at in [1, 0] {
            ends[at].know(now, list(demand, at as u32 + 1, &ALL));
            now = live(now, 1_500 + RENEW_GRACE / 1_000, &mut ends);
        }
        let proved = ends[0].links.proven().all(|(_, slot)| {
            let link = ends[0].links.table.get(slot);
            link.is_some_and(|link| link.data.key == Some(own(2).public()))
        });
        let told = ends.each_mut().map(End::told);
        if demand == Demand::Offered && told[0].is_empty() {
            assert!(proved, "on the way back");
        } else {
            let renewed = if demand == Demand::Offered {
                vec!["renewed", "up"]
            } else {
                vec![]
            };
            assert_eq!(told, [renewed.clone(), renewed], "{demand:?}");
        }
    }
    for end in &mut ends {
        end.know(now, keys(A, None));
    }
    live(now, 1_500 + RENEW_GRACE / 1_000, &mut ends);
    assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
}

#[test]
fn a_link_without_identity_ends_if_one_of_its_ends_requires_proof() {
    let mut ends = dialling();
    let now = live(0, 500, &mut ends);
    ends.iter_mut().for_each(|end| drop(end.told()));
    ends[1].know(now, list(Demand::Required, 2, &ALL));
    let now = live(now, RENEW_GRACE / 1_000 - 10, &mut ends);
    assert_eq!(ends[1].linked(), [1], "it has time to prove itself");
    live(now, 200, &mut ends);
    assert_eq!(
        ends[1].told(),
        ["no identity", "no identity"],
        "the link, and who comes again without"
    );
    assert_eq!(ends[1].linked(), [] as [u32; 0]);
}

#[test]
fn dropping_the_proof_requirement_keeps_links() {
    let mut ends = dialling();
    let now = live(0, 500, &mut ends);
    ends.iter_mut().for_each(|end| drop(end.told()));
    ends[1].know(now, list(Demand::Required, 2, &ALL));
    let now = live(now, RENEW_GRACE / 2_000, &mut ends);
    ends[1].know(now, list(Demand::Offered, 2, &ALL));
    live(now, 2 * RENEW_GRACE / 1_000, &mut ends);
    assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
}

#[test]
fn the_secret_is_replaced_while_nodes_prove_identities() {
    let mut ends = [BROKER, ROUTER].map(End::listed);
    let [broker, router] = &mut ends;
    broker.dials(0, router);
    let mut now = live(0, 500, &mut ends);
    ends.iter_mut().for_each(|end| drop(end.told()));
    for (current, other) in [(A, Some(B)), (B, Some(A)), (B, None)] {
        for at in [1, 0] {
            let allow = list(Demand::Required, at as u32 + 1, &ALL).allow;
            ends[at].know(
                now,
                ClusterKeys {
                    allow,
                    ..keys(current, other)
                },
            );
            now = live(now, 1_500 + RENEW_GRACE / 1_000, &mut ends);
        }
    }
    assert_eq!(ends.each_ref().map(End::key), [Some(2), Some(2)]);
    assert_eq!(ends.each_mut().map(End::told), [["renewed", "up"], ["renewed", "up"]]);
    let proved = |end: &End| {
        end.links
            .proven()
            .all(|(_, slot)| end.links.table.get(slot).is_some_and(|link| link.data.key.is_some()))
    };
    assert!(ends.iter().all(proved));

    let allow = list(Demand::Required, 2, &[ROUTER]).allow;
    ends[1].know(now, ClusterKeys { allow, ..keys(B, None) });
    live(now, 500, &mut ends);
    assert_eq!(ends[1].linked(), [] as [u32; 0]);
}

#[test]
fn nodes_that_dial_each_other_at_once_keep_one_link() {
    let mut ends = [BROKER, ROUTER].map(End::listed);
    for (at, other) in [(0, 1), (1, 0)] {
        let Identity { node, role, .. } = ends[other].node.me;
        let target = (node, role, ends[other].addr);
        ends[at].links.dial(0, std::iter::once(target));
    }
    let now = live(0, 2_000, &mut ends);
    ends.iter_mut().for_each(|end| drop(end.told()));
    live(now, 5_000, &mut ends);
    assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
    assert_eq!(ends.each_ref().map(End::linked), [[2], [1]]);
}

/// Nodes that prove an identity cost more multiplications, so fewer of their handshakes are answered per look.
#[test]
fn fewer_expensive_handshakes_are_answered_per_look() {
    let mut end = End::listed(ROUTER);
    let (secret, owner, addr) = (A.1, own(3), End::new(3, FRONT).addr);
    let payload = Identity {
        node: 3,
        role: FRONT,
        epoch: 1,
    }
    .to_bytes();
    let mut outbox = crate::machine::Outbox::new(false);
    for id in 1..=10 {
        let key = InitiatorKey::Node {
            secret: &secret,
            own: &owner,
            peer: &own(2).public(),
        };
        let listed = Listed {
            role: INDEX,
            key: own(2).public(),
        };
        let mut knock = Knock::new(id, key, 1, &payload, &mut Counted(id as u8)).of_node(3, &secret, listed);
        for _ in 0..2 {
            outbox.clear();
            knock.hello(0, addr, 1_200, &mut outbox);
            let hello = outbox.bytes(&outbox.parcels()[0]).to_vec();
            end.receive(id, addr, hello);
            for (_, datagram) in end.transmit(0) {
                knock.cookie(&datagram);
            }
        }
    }
    let before = end.links.door.counters.handshakes_accepted;
    end.links.expire(1_000_000, &mut end.node);
    let accepted = end.links.door.counters.handshakes_accepted - before;
    assert_eq!(accepted, crate::door::HANDSHAKES_A_LOOK as u64 / 2);
}

#[test]
fn a_link_that_has_no_more_use_is_no_loss_at_either_end() {
    let mut ends = dialling();
    let now = live(0, 500, &mut ends);
    ends.iter_mut().for_each(|end| drop(end.told()));
    ends[0].links.dial(now, std::iter::empty());
    ends[0].links.hang_up(now, 2);
    let now = live(now, 5_000, &mut ends);
    assert_eq!(ends.each_mut().map(End::told), [["unused"], ["unused"]]);
    for end in &ends {
        assert_eq!((end.linked(), end.links.counters.links_down), (vec![], 0));
        assert_eq!(end.links.lost(now).count(), 0);
    }
}

#[test]
fn a_replaced_link_is_reported_lost_with_its_own_slot() {
    let mut links = links();
    let (slot, peer) = linked(&mut links, 5, 1);
    assert_eq!(links.change(), Some(LinkChange::Up { slot, peer }));
    let (next, again) = linked(&mut links, 6, 2);
    let reason = "replaced";
    assert_eq!(links.change(), Some(LinkChange::Down { slot, peer, reason }));
    assert_eq!(
        links.change(),
        Some(LinkChange::Up {
            slot: next,
            peer: again
        })
    );
}

/// As many nodes as are remembered come and go, one a second; a returning node must match its remembered life.
fn after_as_many_as_are_remembered(links: &mut Links) -> Micros {
    for node in 100..100 + NODES_MAX as u32 {
        let now = Micros::from(node) * 1_000_000;
        let (slot, _) = linked_to(links, now, node, node, 5);
        assert_eq!(links.to(node), Some(slot));
        links.lose(now, slot, "closed");
    }
    (100 + NODES_MAX as Micros) * 1_000_000
}

#[test]
fn a_new_node_replaces_the_one_gone_for_longest() {
    let mut links = links();
    let now = after_as_many_as_are_remembered(&mut links);
    let (slot, _) = linked_to(&mut links, now, 1, 9, 1);
    assert_eq!((links.to(9), links.counters.link_refused_full), (Some(slot), 0));
    assert_eq!(links.history.len(), (NODES_MAX, NODES_MAX));
    assert_eq!((links.epoch_of(100), links.epoch_of(101)), (None, Some(5)));
    linked_to(&mut links, now, 2, 101, 4);
    assert_eq!((links.to(101), links.counters.link_refused_epoch), (None, 1));
}

#[test]
fn linked_and_placed_nodes_are_never_forgotten() {
    let mut links = links();
    let now = after_as_many_as_are_remembered(&mut links);
    links.place([100, 102].into_iter());
    linked_to(&mut links, now, 1, 101, 6);
    linked_to(&mut links, now, 2, 9, 1);
    let known = [100, 101, 102, 103].map(|node| links.epoch_of(node));
    assert_eq!(known, [Some(5), Some(6), Some(5), None]);
    links.place(100..100 + NODES_MAX as u32);
    linked_to(&mut links, now, 3, 8, 1);
    assert_eq!((links.to(8), links.counters.link_refused_full), (None, 1));
}

#[test]
fn a_link_whose_log_is_full_is_given_up() {
    let mut links = links();
    let (slot, peer) = linked(&mut links, 5, 1);
    assert!(matches!(links.change(), Some(LinkChange::Up { .. })));
    let mut told = 0;
    while links.log(0, slot, &[200]).is_some() {
        told += 1;
    }
    assert!((10..40).contains(&told), "{told} records of 33 B in 1,000 B");
    let reason = "log full";
    assert_eq!(links.change(), Some(LinkChange::Down { slot, peer, reason }));
    assert_eq!((links.to(9), links.counters.links_log_full), (None, 1));
    assert_eq!(links.log(0, slot, &[200]), None);
    assert_eq!((links.change(), links.counters.links_log_full), (None, 1), "once");
}
