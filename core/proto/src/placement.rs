//! Who is where: an immutable snapshot that the control plane hands to the data plane.
//!
//! Owns the choice of a room's owner (rendezvous hashing). Knows no connection.

use crate::machine::Addr;
use crate::wire::Role;

/// One registered node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub node: u32,
    pub role: Role,
    /// Where its link socket listens.
    pub addr: Addr,
}

/// All nodes as of a placement epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub epoch: u32,
    pub nodes: Vec<Node>,
}

impl Placement {
    /// The nodes of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Node> + '_ {
        self.nodes.iter().filter(move |node| node.role == role)
    }

    /// The broker that owns `room`: the highest rendezvous weight, so that a change of brokers moves 1/n of the rooms.
    pub fn owner(&self, room: u64) -> Option<u32> {
        self.of(Role::Broker)
            .max_by_key(|node| (weight(room, node.node), node.node))
            .map(|node| node.node)
    }
}

/// A well-mixed weight of (room, node): two rounds of the SplitMix64 finaliser.
fn weight(room: u64, node: u32) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    mix(room ^ mix(u64::from(node).wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brokers(count: u32) -> Placement {
        let nodes = (1..=count)
            .map(|node| Node {
                node,
                role: Role::Broker,
                addr: Addr::default(),
            })
            .collect();
        Placement { epoch: 1, nodes }
    }

    #[test]
    fn a_new_broker_takes_only_its_share_of_rooms() {
        let (before, after) = (brokers(4), brokers(5));
        let moved = (0..10_000)
            .filter(|room| before.owner(*room) != after.owner(*room))
            .count();
        assert!((1_700..2_300).contains(&moved), "{moved}");
        assert!((0..10_000).all(|room| before.owner(room) == after.owner(room) || after.owner(room) == Some(5)));
    }

    #[test]
    fn nobody_owns_a_room_where_there_is_no_broker() {
        assert_eq!(Placement::default().owner(1), None);
    }
}
