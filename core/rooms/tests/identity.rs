//! Real machines where every node must prove its identity. A node that loses the right to take part is ignored at
//! once, and the others notice nothing.

mod common;

use common::*;
use muster_rooms::{role, Broker, Gateway, Proxy, Router};
use muster_transport::{DatagramKind, DoorCounters, FrameKind, Header, Identity, Role, ServerKey, HEADER, LINK_SOCKET};

fn me(node: u32, role: Role) -> Identity {
    let epoch = EPOCH;
    Identity { node, role, epoch }
}

/// The address of a test node.
fn place(node: u32) -> muster_transport::Addr {
    addr(9000 + node as u16)
}

fn linked<M: Subject>(rig: &Rig<M>) -> Vec<(u32, u32)> {
    rig.machine.links_of().proven().collect()
}

fn door<M: Subject>(rig: &Rig<M>) -> &DoorCounters {
    &rig.machine.links_of().door.counters
}

/// Runs each of these tests for every role that has links.
macro_rules! everywhere {
    ($($(#[$about:meta])* $name:ident;)*) => {$(
        #[test]
        $(#[$about])*
        fn $name() {
            of::$name::<Gateway>();
            of::$name::<Proxy>();
            of::$name::<Broker>();
            of::$name::<Router>();
        }
    )*};
}

everywhere! {
    a_node_removed_from_the_list_is_ignored_at_once;
    who_has_not_the_key_of_a_listed_node_is_let_in_nowhere_and_named;
    what_strangers_without_the_secret_say_accuses_no_node;
    a_hello_that_lost_its_identity_on_the_way_opens_nothing;
}

mod of {
    use super::*;

    pub fn a_node_removed_from_the_list_is_ignored_at_once<M: Subject>() {
        let count = linked(&Rig::<M>::identified()).len();
        assert!(count > 0, "{:?} has no peers", M::ROLE);
        for at in 0..count {
            let mut rig = Rig::<M>::identified();
            rig.turn();
            let before = linked(&rig);
            let (out, _) = before[at];
            let peer = (0..rig.peers.len()).find(|peer| rig.peers[*peer].addr == place(out));
            let peer = peer.expect("a peer of that number");
            let sealed: Vec<Vec<u8>> = sample_frames()
                .iter()
                .map(|frame| rig.peers[peer].seal(rig.now, frame))
                .collect();

            let kept: Vec<_> = NODES.into_iter().filter(|(node, _)| *node != out).collect();
            rig.know(&kept);
            // Before the next turn: its datagrams may be in the socket already.
            for (told, bytes) in sealed.iter().enumerate() {
                rig.give(LINK_SOCKET, place(out), bytes);
                let dropped = counter(&rig.machine, "link_dropped_unknown");
                assert_eq!(
                    dropped,
                    told as u64 + 1,
                    "{:?}: datagrams of node {out} are accepted",
                    M::ROLE
                );
            }
            rig.turn();
            assert_eq!(counter(&rig.machine, "links_shut_out"), 1);
            let closed = rig.peers[peer].frames(FrameKind::CLOSE);
            assert_eq!(closed, 1, "{:?}: node {out} was not told that it is out", M::ROLE);
            let others: Vec<_> = before.iter().copied().filter(|(node, _)| *node != out).collect();
            assert_eq!(linked(&rig), others, "{:?}: the others notice nothing", M::ROLE);
            let role = rig.peers[peer].role;
            assert_eq!(rig.connect(LINK_SOCKET, place(out), me(out, role)), None);

            rig.know(&NODES);
            rig.link(out, role);
            assert_eq!(linked(&rig).len(), before.len(), "a relisted node is admitted again");
        }
    }

    pub fn who_has_not_the_key_of_a_listed_node_is_let_in_nowhere_and_named<M: Subject>() {
        let unlisted: fn(u32) -> ServerKey = |_| node_key(77);
        let of_the_gateway: fn(u32) -> ServerKey = |_| node_key(GATEWAY);
        let of_the_proxy: fn(u32) -> ServerKey = |_| node_key(PROXY);
        let cases = [
            ("the secret alone", None, me(PROXY, role::PROXY)),
            ("a key that is not listed", Some(unlisted), me(PROXY, role::PROXY)),
            ("a number that is not listed", Some(unlisted), me(9, role::PROXY)),
            (
                "a gateway's key as the proxy",
                Some(of_the_gateway),
                me(PROXY, role::PROXY),
            ),
            (
                "a proxy's key as the gateway",
                Some(of_the_proxy),
                me(GATEWAY, role::GATEWAY),
            ),
            (
                "its own key in another role",
                Some(of_the_gateway),
                me(GATEWAY, role::BROKER),
            ),
            ("our own number", Some(unlisted), {
                let own = NODES.iter().find(|(_, role)| *role == M::ROLE).expect("a node");
                me(own.0, own.1)
            }),
        ];
        for (what, proof, who) in cases {
            let mut rig = Rig::<M>::identified();
            rig.turn();
            let before = (rig.machine.digest(), door(&rig).dropped_identity);
            rig.proof = proof;
            let let_in = rig.connect(LINK_SOCKET, addr(9_900), who);
            assert_eq!(let_in, None, "{:?}: {what}", M::ROLE);
            assert_eq!(rig.machine.digest(), before.0, "{:?}: {what}", M::ROLE);
            assert!(
                door(&rig).dropped_identity > before.1,
                "{:?}: {what} is not counted",
                M::ROLE
            );
        }
    }

    pub fn what_strangers_without_the_secret_say_accuses_no_node<M: Subject>() {
        let mut rig = Rig::<M>::identified();
        rig.turn();
        let before = door(&rig).dropped_hello_malformed;
        let mut told = 0;
        for node in [0, PROXY, GATEWAY, 77] {
            let from = stranger(node + 5);
            for cookied in [false, true] {
                let mut hello = vec![0; 1_200];
                let kind = DatagramKind::Hello;
                let key_id = 1;
                let header = Header {
                    key_id,
                    ..Header::clear(kind, 7)
                };
                header.write(&mut hello);
                if cookied {
                    let (_, cookie) = rig.out.pop_back().expect("a cookie");
                    hello[HEADER..HEADER + 16].copy_from_slice(&cookie[HEADER..HEADER + 16]);
                }
                hello[HEADER + 16..HEADER + 18].copy_from_slice(&57u16.to_le_bytes());
                hello[HEADER + 18..HEADER + 75].fill(0xa5);
                hello[HEADER + 75..HEADER + 79].copy_from_slice(&node.to_le_bytes());
                rig.give(LINK_SOCKET, from, &hello);
                rig.turn();
            }
            told += 1;
            assert_eq!(
                door(&rig).dropped_hello_malformed,
                before + told,
                "{:?}: as {node}",
                M::ROLE
            );
        }
        assert_eq!(door(&rig).dropped_identity, 0, "{:?}", M::ROLE);
    }

    pub fn a_hello_that_lost_its_identity_on_the_way_opens_nothing<M: Subject>() {
        let mut rig = Rig::<M>::identified();
        rig.turn();
        let before = (rig.machine.digest(), door(&rig).handshakes_accepted);
        rig.touch = |hello| {
            let noise = usize::from(u16::from_le_bytes([hello[HEADER + 16], hello[HEADER + 17]]));
            hello[HEADER + 18 + noise..].fill(0);
        };
        let (node, role) = if M::ROLE == role::PROXY {
            (GATEWAY, role::GATEWAY)
        } else {
            (PROXY, role::PROXY)
        };
        assert_eq!(rig.connect(LINK_SOCKET, place(node), me(node, role)), None);
        let after = (rig.machine.digest(), door(&rig).handshakes_accepted);
        assert_eq!(after, before, "{:?}", M::ROLE);
    }
}
