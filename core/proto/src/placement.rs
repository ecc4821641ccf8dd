//! Who is where: an immutable snapshot that the control plane hands to the data plane.
//!
//! Owns the choice of a room's partition and owner (rendezvous hashing). Knows no connection.

use crate::machine::Addr;
use crate::scope::Scope;
use crate::wire::Role;

/// Partitions that brokers, or routers, may have.
pub const PARTITIONS_MAX: u16 = 256;

/// How far a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It does not know yet what it must know to serve.
    Init,
    #[default]
    Running,
    /// It is about to end: what it has is served on, nothing new is given to it.
    Draining,
}

/// One registered node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub node: u32,
    pub role: Role,
    /// Where its link socket listens.
    pub addr: Addr,
    /// Of brokers and routers: which rooms are its (`room % partitions`).
    pub partition: u16,
    pub state: State,
}

impl Node {
    /// A running node of the first partition.
    pub fn new(node: u32, role: Role, addr: Addr) -> Self {
        Node {
            node,
            role,
            addr,
            partition: 0,
            state: State::Running,
        }
    }
}

/// All nodes as of a placement epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    epoch: u32,
    nodes: Vec<Node>,
    brokers: u16,
    routers: u16,
    /// The running brokers of each partition.
    running: Vec<Vec<u32>>,
}

impl Default for Placement {
    fn default() -> Self {
        Placement::new(0, Vec::new(), 1, 1)
    }
}

impl Placement {
    /// `brokers` and `routers` are numbers of partitions, powers of two; what is none is taken for the next lower one.
    pub fn new(epoch: u32, nodes: Vec<Node>, brokers: u16, routers: u16) -> Self {
        let power = |count: u16| 1 << count.clamp(1, PARTITIONS_MAX).ilog2();
        let (brokers, routers) = (power(brokers), power(routers));
        let mut running = vec![Vec::new(); usize::from(brokers)];
        for node in &nodes {
            if node.role == Role::Broker && node.state == State::Running {
                if let Some(partition) = running.get_mut(usize::from(node.partition)) {
                    partition.push(node.node);
                }
            }
        }
        Placement {
            epoch,
            nodes,
            brokers,
            routers,
            running,
        }
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The nodes of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Node> + '_ {
        self.nodes.iter().filter(move |node| node.role == role)
    }

    /// A node by its number.
    pub fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.iter().find(|known| known.node == node)
    }

    /// Numbers of partitions of brokers and of routers.
    pub fn partitions(&self) -> (u16, u16) {
        (self.brokers, self.routers)
    }

    /// The rooms that are a broker's or a router's by its partition; of others all.
    pub fn scope(&self, node: u32) -> Scope {
        let of = |node: &Node| match node.role {
            Role::Broker => Scope::new(self.brokers, node.partition),
            Role::Router => Scope::new(self.routers, node.partition),
            _ => None,
        };
        self.node(node).and_then(of).unwrap_or(Scope::ALL)
    }

    /// Whether every room has the same owner as in `other`.
    pub fn owns_as(&self, other: &Placement) -> bool {
        self.running == other.running
    }

    /// The broker that owns `room`.
    pub fn owner(&self, room: u64) -> Option<u32> {
        self.owner_among(room, |_| true)
    }

    /// The running brokers of the room's partition: all of them know who wants the room.
    pub fn replicas(&self, room: u64) -> &[u32] {
        &self.running[(room % u64::from(self.brokers)) as usize]
    }

    /// The running broker of the room's partition that has the highest rendezvous weight of those that can be `reached`, so that
    /// a change of brokers moves 1/n of the rooms.
    pub fn owner_among(&self, room: u64, reached: impl Fn(u32) -> bool) -> Option<u32> {
        let brokers = self.replicas(room).iter().copied().filter(|node| reached(*node));
        brokers.max_by_key(|node| (weight(room, *node), *node))
    }
}

/// A well-mixed weight of (what, node): two rounds of the SplitMix64 finaliser.
pub fn weight(what: u64, node: u32) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    mix(what ^ mix(u64::from(node).wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brokers(count: u32, partitions: u16) -> Placement {
        let nodes = (0..count).map(|node| Node {
            partition: (node % u32::from(partitions)) as u16,
            ..Node::new(node + 1, Role::Broker, Addr::default())
        });
        Placement::new(1, nodes.collect(), partitions, 1)
    }

    #[test]
    fn a_new_broker_takes_only_its_share_of_rooms() {
        let (before, after) = (brokers(4, 1), brokers(5, 1));
        let moved = (0..10_000)
            .filter(|room| before.owner(*room) != after.owner(*room))
            .count();
        assert!((1_700..2_300).contains(&moved), "{moved}");
        assert!((0..10_000).all(|room| before.owner(room) == after.owner(room) || after.owner(room) == Some(5)));
    }

    #[test]
    fn a_room_is_owned_in_its_partition_by_who_runs() {
        let placement = brokers(8, 4);
        for room in 0..1_000 {
            let owner = placement.owner(room).and_then(|node| placement.node(node)).unwrap();
            assert_eq!(u64::from(owner.partition), room % 4);
            let other = placement.owner_among(room, |node| node != owner.node).unwrap();
            assert_eq!(placement.node(other).unwrap().partition, owner.partition);
        }
        let mut nodes = placement.nodes.clone();
        nodes.iter_mut().for_each(|node| {
            node.state = match node.node {
                1..=4 => State::Running,
                5 | 6 => State::Init,
                _ => State::Draining,
            }
        });
        let placement = Placement::new(2, nodes, 4, 1);
        assert!((0..100).all(|room| placement.owner(room) == Some(room as u32 % 4 + 1)));
    }

    #[test]
    fn numbers_of_partitions_are_powers_of_two() {
        for (count, taken) in [(0, 1), (3, 2), (4, 4), (u16::MAX, PARTITIONS_MAX)] {
            assert_eq!(Placement::new(1, Vec::new(), count, count).partitions(), (taken, taken));
        }
    }

    #[test]
    fn nobody_owns_a_room_where_there_is_no_broker() {
        assert_eq!(Placement::default().owner(1), None);
        assert_eq!(brokers(1, 2).owner(1), None);
    }
}
