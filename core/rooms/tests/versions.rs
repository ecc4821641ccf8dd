//! Two releases against each other, before a connection exists: which version they choose, and that nobody on the
//! path lowers it.

use std::cell::Cell;

use muster_rooms::{role, Broker, Client, Gateway, Side};
use muster_transport::{HasLinks, HasSessions, Identity, Role, Versions, HEADER, LINK_SOCKET, PUBLIC_SOCKET};

mod common;
use common::{addr, identity, stranger, Rig, Subject, GATEWAY};

const NEXT: Versions = Versions::new(1, 2);
const CLIENT: Identity = Identity {
    node: 0,
    role: Role::CLIENT,
    epoch: 0,
};
/// Bytes of message 1 of a client that offers versions: its key, two bytes, a tag.
const MESSAGE1: usize = 32 + 2 + 16;
/// Cookie and length before it.
const BEFORE: usize = HEADER + 18;

thread_local! {
    /// The index of the hello's byte that is changed in transit.
    static AT: Cell<usize> = const { Cell::new(0) };
}

fn next_gateway() -> Rig<Gateway> {
    let mut rig = Rig::<Gateway>::bare();
    rig.machine.set_versions(NEXT);
    rig.offer = NEXT.offer();
    rig
}

#[test]
fn changing_the_offer_in_transit_gives_no_session_of_a_lower_version() {
    let mut rig = next_gateway();
    assert!(rig.connect(PUBLIC_SOCKET, stranger(1), CLIENT).is_some(), "unchanged");
    let before = rig.machine.sessions().door.counters.handshakes_accepted;
    rig.touch = |hello| hello[AT.get()] ^= 1;
    for at in BEFORE..BEFORE + MESSAGE1 {
        AT.set(at);
        assert!(rig.connect(PUBLIC_SOCKET, stranger(2), CLIENT).is_none(), "byte {at}");
    }
    assert_eq!(rig.machine.sessions().door.counters.handshakes_accepted, before);
}

#[test]
fn cutting_off_the_offer_gives_no_session() {
    let mut rig = next_gateway();
    rig.touch = |hello| {
        hello[HEADER + 16] -= 2;
        hello.copy_within(BEFORE + 34..BEFORE + MESSAGE1, BEFORE + 32);
    };
    assert!(rig.connect(PUBLIC_SOCKET, stranger(1), CLIENT).is_none());
    assert_eq!(rig.machine.sessions().door.counters.handshakes_accepted, 0);
}

#[test]
fn a_node_of_another_version_gets_no_link_with_any_hello() {
    let mut rig = Rig::<Broker>::bare();
    rig.machine.set_versions(Versions::new(2, 3));
    let me = identity(GATEWAY, role::GATEWAY);
    rig.connect(LINK_SOCKET, addr(9001), me);
    assert_eq!(
        rig.machine.links().proven().count(),
        0,
        "it offers nothing, so version 1"
    );
    assert_eq!(rig.machine.links().door.counters.refused_version, 1);
}

/// The version that a client of the next release uses with servers that reply like this.
fn used(says: fn(&[u8]) -> Vec<u8>) -> Option<u8> {
    let mut rig = Rig::<Client>::bare();
    rig.machine.set_versions(NEXT);
    rig.says = says;
    Client::settle(&mut rig);
    rig.machine.version(Side::Gateway)
}

#[test]
fn a_client_treats_a_server_without_versions_as_the_first_version() {
    assert_eq!(used(|_| Vec::new()), Some(1));
    assert_eq!(used(|offer| Versions::new(1, 3).answer(offer)), Some(2));
}

/// The server proves its key but is dishonest: it answers an offer with a lower version than both support.
#[test]
fn a_lower_version_than_both_support_is_refused() {
    let mut rig = Rig::<Client>::bare();
    rig.machine.set_versions(NEXT);
    rig.says = |_| vec![1, 1, 2];
    rig.serve(9001);
    assert_eq!(rig.machine.version(Side::Gateway), None);
}

#[test]
fn the_last_server_without_a_common_version_ends_the_attempts() {
    let mut rig = Rig::<Client>::bare();
    rig.says = |offer| Versions::new(4, 5).answer(offer);
    rig.serve(9001);
    assert_eq!(rig.machine.version(Side::Gateway), None);
    let sent = |rig: &Rig<Client>, port| rig.accounts.get(&addr(port)).map_or(0, |account| account.sent);
    let before = [9001, 9002].map(|port| sent(&rig, port));
    for _ in 0..100 {
        rig.now += 1_000_000;
        rig.turn();
    }
    assert_eq!(sent(&rig, 9001), before[0]);
    assert!(sent(&rig, 9002) > before[1], "the proxy may be of another release");
}
