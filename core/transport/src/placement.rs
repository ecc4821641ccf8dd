//! Who is where: an immutable snapshot that the control plane hands to the data plane.
//!
//! Owns the choice of a room's partition and owner (rendezvous hashing). Knows no connection.

use crate::machine::Addr;
use crate::planted::{self, Bug};
use crate::scope::{Scope, PARTITIONS_MAX};
use crate::wire::Role;

/// How far a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It does not know yet what it must know to serve.
    Init,
    #[default]
    Running,
    /// It is about to end: what it has is served on, nothing new is given to it.
    Draining,
}

/// How far the doubling of a layer's partitions is. A partition keeps its number, and gives its upper half of rooms to the one
/// whose number is higher by what there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Growth {
    #[default]
    None,
    /// The new partitions hear of their rooms, and serve none.
    Prepare,
    /// The new partitions serve; the old ones still hear of what they had.
    Switched,
}

/// How many partitions the brokers have, or the routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    count: u16,
    growth: Growth,
}

impl Layer {
    /// `count` is a power of two; what is none is taken for the next lower one. What has no place to grow does not.
    pub fn new(count: u16, growth: Growth) -> Self {
        let count = 1 << count.clamp(1, PARTITIONS_MAX).ilog2();
        let growth = if count == PARTITIONS_MAX { Growth::None } else { growth };
        Layer { count, growth }
    }

    /// How many partitions rooms are dealt to.
    pub fn used(self) -> u16 {
        match self.growth {
            Growth::Switched => 2 * self.count,
            _ => self.count,
        }
    }

    /// How many partitions have nodes, or are about to.
    pub fn all(self) -> u16 {
        match self.growth {
            Growth::None => self.count,
            _ => 2 * self.count,
        }
    }

    /// The partition that serves a room.
    pub fn of(self, room: u64) -> u16 {
        (room % u64::from(self.used())) as u16
    }

    /// The partitions that hear of a room.
    pub fn hearing(self, room: u64) -> [Option<u16>; 2] {
        let part = |count: u16| (room % u64::from(count)) as u16;
        let all = if planted::is(Bug::NewPartitionUntold) {
            self.count
        } else {
            self.all()
        };
        let (old, new) = (part(self.count), part(all));
        [Some(old), Some(new).filter(|new| *new != old)]
    }

    /// Whether all nodes of a partition must have heard of a room before it counts as known: there may be somebody whose map is
    /// one step older or newer, and who asks none but them.
    pub fn counts(self, partition: u16) -> bool {
        let used = if planted::is(Bug::NewPartitionUncounted) {
            self.count
        } else {
            self.used()
        };
        partition < used
    }

    /// The rooms that the nodes of a partition hear of.
    pub fn scope(self, partition: u16) -> Option<Scope> {
        let grown = (u32::from(partition) + 1).next_power_of_two();
        Scope::new(u16::try_from(grown).ok()?.max(self.count), partition)
    }
}

impl From<u16> for Layer {
    fn from(count: u16) -> Self {
        Layer::new(count, Growth::None)
    }
}

/// One registered node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedNode {
    pub node: u32,
    pub role: Role,
    /// Where its link socket listens.
    pub addr: Addr,
    /// Of brokers and routers: which rooms are its (`room % partitions`).
    pub partition: u16,
    /// Of brokers: which of the placement's clusters it is in.
    pub cluster: u16,
    pub state: NodeState,
}

impl PlacedNode {
    /// A running node of the first partition, and of the first cluster.
    pub fn new(node: u32, role: Role, addr: Addr) -> Self {
        PlacedNode {
            node,
            role,
            addr,
            partition: 0,
            cluster: 0,
            state: NodeState::Running,
        }
    }
}

/// The brokers of one cluster: a whole publish/subscribe system, with partitions of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brokers {
    layer: Layer,
    /// The running ones of each partition that serves.
    running: Vec<Vec<u32>>,
}

impl Brokers {
    fn new(layer: Layer, nodes: &[PlacedNode], cluster: u16) -> Self {
        let mut running = vec![Vec::new(); usize::from(layer.used())];
        for node in nodes.iter().filter(|node| node.cluster == cluster) {
            if node.role == Role::Broker && node.state == NodeState::Running {
                if let Some(partition) = running.get_mut(usize::from(node.partition)) {
                    partition.push(node.node);
                }
            }
        }
        Brokers { layer, running }
    }

    /// Their partitions.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// Whether every room has the same owner as in `other`.
    pub fn owns_as(&self, other: &Brokers) -> bool {
        self.running == other.running
    }

    /// The broker that owns `room`.
    pub fn owner(&self, room: u64) -> Option<u32> {
        self.owner_among(room, |_| true)
    }

    /// The running brokers of the room's partition: all of them know who wants the room.
    pub fn replicas(&self, room: u64) -> &[u32] {
        &self.running[usize::from(self.layer.of(room))]
    }

    /// The running brokers of each partition that serves.
    pub fn partitions(&self) -> impl Iterator<Item = &[u32]> {
        self.running.iter().map(Vec::as_slice)
    }

    /// The running broker of the room's partition that has the highest rendezvous weight of those that can be `reached`, so that
    /// a change of brokers moves 1/n of the rooms.
    pub fn owner_among(&self, room: u64, reached: impl Fn(u32) -> bool) -> Option<u32> {
        let mut brokers = self.replicas(room).iter().copied().filter(|node| reached(*node));
        if planted::is(Bug::OwnerByNumber) {
            let brokers: Vec<u32> = brokers.by_ref().collect();
            return brokers.get((room % brokers.len().max(1) as u64) as usize).copied();
        }
        brokers.max_by_key(|node| (weight(room, *node), *node))
    }
}

/// All nodes as of a placement epoch. A broker or a proxy is told the brokers of its own cluster only, a router or a gateway those
/// of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    epoch: u32,
    nodes: Vec<PlacedNode>,
    routers: Layer,
    /// One at least.
    clusters: Vec<Brokers>,
}

impl Default for Placement {
    fn default() -> Self {
        Placement::new(0, Vec::new(), 1, 1)
    }
}

impl Placement {
    /// A placement with one cluster of brokers.
    pub fn new(epoch: u32, nodes: Vec<PlacedNode>, brokers: impl Into<Layer>, routers: impl Into<Layer>) -> Self {
        let clusters = vec![Brokers::new(brokers.into(), &nodes, 0)];
        Placement {
            epoch,
            nodes,
            routers: routers.into(),
            clusters,
        }
    }

    /// The same with the brokers of one more cluster, in partitions of their own.
    pub fn beside(mut self, brokers: impl IntoIterator<Item = PlacedNode>, layer: impl Into<Layer>) -> Self {
        let cluster = self.clusters.len() as u16;
        self.nodes
            .extend(brokers.into_iter().map(|node| PlacedNode { cluster, ..node }));
        self.clusters.push(Brokers::new(layer.into(), &self.nodes, cluster));
        self
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The nodes of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &PlacedNode> + '_ {
        self.nodes.iter().filter(move |node| node.role == role)
    }

    /// The numbers of all nodes.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.nodes.iter().map(|node| node.node)
    }

    /// A node by its number.
    pub fn node(&self, node: u32) -> Option<&PlacedNode> {
        self.nodes.iter().find(|known| known.node == node)
    }

    /// The clusters of brokers, each with its place.
    pub fn clusters(&self) -> impl Iterator<Item = (u16, &Brokers)> {
        (0..).zip(&self.clusters)
    }

    /// The cluster that a broker is in; of one that is not named, the first.
    pub fn cluster_of(&self, broker: u32) -> u16 {
        self.node(broker).map_or(0, |node| node.cluster)
    }

    /// A partition of brokers some of whom run, and none of whom is `linked`.
    pub fn unreached(&self, linked: impl Fn(u32) -> bool) -> Option<u16> {
        let partitions = self.clusters.iter().flat_map(|brokers| (0..).zip(brokers.partitions()));
        let mut cut =
            partitions.filter(|(_, brokers)| !brokers.is_empty() && !brokers.iter().any(|node| linked(*node)));
        cut.next().map(|(partition, _)| partition)
    }

    /// The brokers of the first cluster: to a broker or a proxy, its own.
    pub fn own(&self) -> &Brokers {
        &self.clusters[0]
    }

    /// The partitions of routers.
    pub fn routers(&self) -> Layer {
        self.routers
    }

    /// The rooms that a broker or a router hears of by its partition; others all.
    pub fn scope(&self, node: u32) -> Scope {
        self.node(node).map_or(Scope::ALL, |node| self.scope_of(node))
    }

    /// The same of one of the map's nodes, which need not be looked for.
    pub fn scope_of(&self, node: &PlacedNode) -> Scope {
        let scope = match node.role {
            Role::Broker => self.clusters[usize::from(node.cluster)].layer.scope(node.partition),
            Role::Router => self.routers.scope(node.partition),
            _ => None,
        };
        scope.unwrap_or(Scope::ALL)
    }

    /// The part of a broker's rooms that a partition of routers has, if any.
    pub fn part(&self, broker: u32, router: u16) -> Option<Scope> {
        self.routers.scope(router)?.meet(self.scope(broker))
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
        let nodes = (0..count).map(|node| PlacedNode {
            partition: (node % u32::from(partitions)) as u16,
            ..PlacedNode::new(node + 1, Role::Broker, Addr::default())
        });
        Placement::new(1, nodes.collect(), partitions, 1)
    }

    #[test]
    fn a_new_broker_takes_only_its_share_of_rooms() {
        let (before, after) = (brokers(4, 1), brokers(5, 1));
        let moved = (0..10_000)
            .filter(|room| before.own().owner(*room) != after.own().owner(*room))
            .count();
        assert!((1_700..2_300).contains(&moved), "{moved}");
        assert!((0..10_000).all(|room| {
            let after = after.own().owner(room);
            before.own().owner(room) == after || after == Some(5)
        }));
    }

    #[test]
    fn a_room_is_owned_in_its_partition_by_who_runs() {
        let placement = brokers(8, 4);
        for room in 0..1_000 {
            let owner = placement
                .own()
                .owner(room)
                .and_then(|node| placement.node(node))
                .unwrap();
            assert_eq!(u64::from(owner.partition), room % 4);
            let other = placement.own().owner_among(room, |node| node != owner.node).unwrap();
            assert_eq!(placement.node(other).unwrap().partition, owner.partition);
        }
        let mut nodes = placement.nodes.clone();
        nodes.iter_mut().for_each(|node| {
            node.state = match node.node {
                1..=4 => NodeState::Running,
                5 | 6 => NodeState::Init,
                _ => NodeState::Draining,
            }
        });
        let placement = Placement::new(2, nodes, 4, 1);
        assert!((0..100).all(|room| placement.own().owner(room) == Some(room as u32 % 4 + 1)));
    }

    #[test]
    fn each_cluster_has_partitions_and_owners_of_its_own() {
        let node = |node: u32, partition| PlacedNode {
            partition,
            ..PlacedNode::new(node, Role::Broker, Addr::default())
        };
        let one = Placement::new(1, vec![node(1, 0), node(2, 0)], 1, 4);
        let both = one
            .clone()
            .beside([node(3, 0), node(4, 1)], Layer::new(1, Growth::Switched));
        let second = both.clusters().nth(1).unwrap().1;
        for room in 0..100 {
            assert_eq!(both.own().owner(room), one.own().owner(room));
            assert_eq!(second.owner(room), Some(3 + (room % 2) as u32));
        }
        assert_eq!([1, 3, 4, 9].map(|broker| both.cluster_of(broker)), [0, 1, 1, 0]);
        assert_eq!([1, 4].map(|broker| both.scope(broker).part()), [(1, 0), (2, 1)]);
        assert_eq!(both.part(4, 2), None);
        assert_eq!(both.part(4, 3).map(Scope::part), Some((4, 3)));
    }

    #[test]
    fn numbers_of_partitions_are_powers_of_two() {
        for (count, taken) in [(0, 1), (3, 2), (4, 4), (u16::MAX, PARTITIONS_MAX)] {
            assert_eq!(Layer::from(count), Layer::from(taken));
            assert_eq!(Layer::from(count).all(), taken);
        }
        let full = Layer::new(PARTITIONS_MAX, Growth::Switched);
        assert_eq!((full.used(), full.all()), (PARTITIONS_MAX, PARTITIONS_MAX));
    }

    #[test]
    fn a_layer_that_grows_first_tells_the_new_partitions_then_lets_them_serve() {
        use Growth::{None, Prepare, Switched};
        let layer = |count, growth| Layer::new(count, growth);
        let used =
            [(2, None), (2, Prepare), (2, Switched), (4, None)].map(|(count, growth)| layer(count, growth).used());
        assert_eq!(used, [2, 2, 4, 4]);
        let scope = |growth, partition| layer(2, growth).scope(partition).unwrap().part();
        for growth in [None, Prepare, Switched] {
            assert_eq!(
                [0, 1, 2, 3].map(|partition| scope(growth, partition)),
                [(2, 0), (2, 1), (4, 2), (4, 3)]
            );
        }
        assert_eq!(layer(4, None).scope(1).unwrap().part(), (4, 1));
        let heard = [None, Prepare, Switched].map(|growth| layer(2, growth).hearing(7));
        assert_eq!(heard, [[Some(1), Option::None], [Some(1), Some(3)], [Some(1), Some(3)]]);
        assert_eq!(layer(2, Switched).hearing(5), [Some(1), Option::None]);
        let counts = [None, Prepare, Switched].map(|growth| [1, 3].map(|partition| layer(2, growth).counts(partition)));
        assert_eq!(counts, [[true, false], [true, false], [true, true]]);
    }

    #[test]
    fn a_switch_moves_half_of_the_rooms_and_what_prepares_none() {
        let node = |node: u32| PlacedNode {
            partition: (node - 1) as u16,
            ..PlacedNode::new(node, Role::Broker, Addr::default())
        };
        let placed = |growth| Placement::new(1, (1..=4).map(node).collect(), Layer::new(2, growth), 1);
        let [before, prepares, switched] = [Growth::None, Growth::Prepare, Growth::Switched].map(placed);
        assert!(before.own().owns_as(prepares.own()) && !before.own().owns_as(switched.own()));
        let owners = |placement: &Placement| [0, 1, 2, 3].map(|room| placement.own().owner(room).unwrap());
        assert_eq!((owners(&prepares), owners(&switched)), ([1, 2, 1, 2], [1, 2, 3, 4]));
    }

    #[test]
    fn nobody_owns_a_room_where_there_is_no_broker() {
        assert_eq!(Placement::default().own().owner(1), None);
        assert_eq!(brokers(1, 2).own().owner(1), None);
    }
}
