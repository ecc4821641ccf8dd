//! Where each node is: its address, partition and cluster, in an immutable snapshot that the control plane hands to
//! the data plane.
//!
//! Owns the choice of a room's partition and owner (rendezvous hashing). Knows no connection.

use crate::machine::Addr;
use crate::scope::{Scope, PARTITIONS_MAX};
use crate::wire::Role;

/// The stage of a node's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// It is starting, and does not know enough to serve yet.
    Init,
    #[default]
    Running,
    /// It is about to end: it keeps serving its present rooms or clients, and gets no new ones.
    Draining,
}

/// The progress of a doubling of a layer's partitions. A partition keeps its number, and gives the upper half of its
/// rooms to the partition whose number is higher by the old count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Growth {
    #[default]
    None,
    /// The new partitions learn of their rooms, but serve none yet.
    Prepare,
    /// The new partitions serve; the old ones still learn of their former rooms.
    Switched,
}

/// The number of partitions in a layer: the nodes of one role that divide the rooms among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    count: u16,
    growth: Growth,
}

impl Layer {
    /// `count`: a power of two; other numbers are rounded down to one. A layer at its maximum cannot grow.
    pub fn new(count: u16, growth: Growth) -> Self {
        let count = 1 << count.clamp(1, PARTITIONS_MAX).ilog2();
        let growth = if count == PARTITIONS_MAX { Growth::None } else { growth };
        Layer { count, growth }
    }

    /// Number of partitions that serve rooms.
    pub fn used(self) -> u16 {
        match self.growth {
            Growth::Switched => 2 * self.count,
            _ => self.count,
        }
    }

    /// Number of partitions that have nodes, or will have soon.
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

    /// The partitions that learn of a room.
    pub fn hearing(self, room: u64) -> [Option<u16>; 2] {
        let part = |count: u16| (room % u64::from(count)) as u16;
        let (old, new) = (part(self.count), part(self.all()));
        [Some(old), Some(new).filter(|new| *new != old)]
    }

    /// Whether a room counts as known only once all nodes of this partition have learned of it: a node whose map is
    /// one step older or newer may ask only these.
    pub fn counts(self, partition: u16) -> bool {
        partition < self.used()
    }

    /// The rooms that the nodes of a partition learn of.
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
    /// The address of its link socket.
    pub addr: Addr,
    /// In a layer: its partition, which has the rooms with `room % partitions` equal to this.
    pub partition: u16,
    /// In a layer: its cluster.
    pub cluster: u16,
    pub state: NodeState,
}

impl PlacedNode {
    /// A running node in the first partition of the first cluster.
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

/// The nodes of one layer in one cluster, by serving partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedLayer {
    role: Role,
    cluster: u16,
    layer: Layer,
    /// The running nodes of each serving partition.
    running: Vec<Vec<u32>>,
}

/// A layer that a placement does not mention: one partition without nodes.
static UNPLACED: PlacedLayer = PlacedLayer {
    role: Role::CLIENT,
    cluster: 0,
    layer: Layer {
        count: 1,
        growth: Growth::None,
    },
    running: Vec::new(),
};

impl PlacedLayer {
    fn new(role: Role, layer: Layer, nodes: &[PlacedNode], cluster: u16) -> Self {
        let mut running = vec![Vec::new(); usize::from(layer.used())];
        for node in nodes.iter().filter(|node| node.cluster == cluster) {
            if node.role == role && node.state == NodeState::Running {
                if let Some(partition) = running.get_mut(usize::from(node.partition)) {
                    partition.push(node.node);
                }
            }
        }
        PlacedLayer {
            role,
            cluster,
            layer,
            running,
        }
    }

    /// The number of partitions and the stage of growth.
    pub fn layer(&self) -> Layer {
        self.layer
    }

    /// Whether every room has the same owner as in `other`.
    pub fn owns_as(&self, other: &PlacedLayer) -> bool {
        self.running == other.running
    }

    /// The node that owns `room`.
    pub fn owner(&self, room: u64) -> Option<u32> {
        self.owner_among(room, |_| true)
    }

    /// The running nodes of the room's partition: each of them knows which nodes want the room.
    pub fn replicas(&self, room: u64) -> &[u32] {
        let partition = usize::from(self.layer.of(room));
        self.running.get(partition).map_or(&[], Vec::as_slice)
    }

    /// The running nodes of each serving partition.
    pub fn partitions(&self) -> impl Iterator<Item = &[u32]> {
        self.running.iter().map(Vec::as_slice)
    }

    /// Of the running nodes of the room's partition that can be `reached`, the one with the highest rendezvous
    /// weight, so that a change of nodes moves 1/n of the rooms.
    pub fn owner_among(&self, room: u64, reached: impl Fn(u32) -> bool) -> Option<u32> {
        let nodes = self.replicas(room).iter().copied().filter(|node| reached(*node));
        nodes.max_by_key(|node| (weight(room, *node), *node))
    }
}

/// All nodes at a placement epoch. A role that has partitions is a layer. A system lists its layers, and a layer may
/// have several clusters: whole sets of its nodes, each with partitions of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    epoch: u32,
    nodes: Vec<PlacedNode>,
    /// A short list, searched linearly: the layers of each role by cluster.
    layers: Vec<PlacedLayer>,
}

impl Placement {
    /// A placement with one cluster of each of these layers.
    pub fn new(epoch: u32, nodes: Vec<PlacedNode>, layers: impl IntoIterator<Item = (Role, Layer)>) -> Self {
        let placed = layers
            .into_iter()
            .map(|(role, layer)| PlacedLayer::new(role, layer, &nodes, 0));
        Placement {
            epoch,
            layers: placed.collect(),
            nodes,
        }
    }

    /// Adds the nodes of one more cluster of a layer, in partitions of their own.
    pub fn beside(mut self, role: Role, nodes: impl IntoIterator<Item = PlacedNode>, layer: impl Into<Layer>) -> Self {
        let cluster = self.clusters(role).count() as u16;
        self.nodes
            .extend(nodes.into_iter().map(|node| PlacedNode { cluster, ..node }));
        self.layers
            .push(PlacedLayer::new(role, layer.into(), &self.nodes, cluster));
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

    /// The clusters of a layer, each with its number.
    pub fn clusters(&self, role: Role) -> impl Iterator<Item = (u16, &PlacedLayer)> {
        let placed = self.layers.iter().filter(move |placed| placed.role == role);
        placed.map(|placed| (placed.cluster, placed))
    }

    /// The cluster that a node is in; the first one if the placement does not name the node.
    pub fn cluster_of(&self, node: u32) -> u16 {
        self.node(node).map_or(0, |node| node.cluster)
    }

    /// The first partition of a layer that has running nodes, none of which is `linked`.
    pub fn unreached(&self, role: Role, linked: impl Fn(u32) -> bool) -> Option<u16> {
        let partitions = self
            .clusters(role)
            .flat_map(|(_, placed)| (0..).zip(placed.partitions()));
        let mut cut = partitions.filter(|(_, nodes)| !nodes.is_empty() && !nodes.iter().any(|node| linked(*node)));
        cut.next().map(|(partition, _)| partition)
    }

    /// The first cluster of a layer. For a node of that layer, or a node that knows only one cluster, it is the
    /// node's own.
    #[inline]
    pub fn layer(&self, role: Role) -> &PlacedLayer {
        self.layers
            .iter()
            .find(|placed| placed.role == role)
            .unwrap_or(&UNPLACED)
    }

    /// The rooms that a node of a layer learns of by its partition; all rooms for other nodes.
    pub fn scope(&self, node: u32) -> Scope {
        self.node(node).map_or(Scope::ALL, |node| self.scope_of(node))
    }

    /// As [`Placement::scope`], for a node of the placement, without a search.
    pub fn scope_of(&self, node: &PlacedNode) -> Scope {
        let mut layers = self.layers.iter();
        let placed = layers.find(|placed| placed.role == node.role && placed.cluster == node.cluster);
        let scope = placed.and_then(|placed| placed.layer.scope(node.partition));
        scope.unwrap_or(Scope::ALL)
    }

    /// The share of a node's rooms that a partition of another layer has, if any.
    pub fn part(&self, node: u32, role: Role, partition: u16) -> Option<Scope> {
        self.layer(role).layer.scope(partition)?.meet(self.scope(node))
    }
}

/// A well-mixed weight of (subject, node): two rounds of the SplitMix64 finaliser.
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
    use crate::fixtures::{INDEX, STORE};

    fn placed(epoch: u32, nodes: Vec<PlacedNode>, store: impl Into<Layer>, index: impl Into<Layer>) -> Placement {
        Placement::new(epoch, nodes, [(STORE, store.into()), (INDEX, index.into())])
    }

    fn brokers(count: u32, partitions: u16) -> Placement {
        let nodes = (0..count).map(|node| PlacedNode {
            partition: (node % u32::from(partitions)) as u16,
            ..PlacedNode::new(node + 1, STORE, Addr::default())
        });
        placed(1, nodes.collect(), partitions, 1)
    }

    #[test]
    fn a_new_broker_takes_only_its_share_of_rooms() {
        let (before, after) = (brokers(4, 1), brokers(5, 1));
        let moved = (0..10_000)
            .filter(|room| before.layer(STORE).owner(*room) != after.layer(STORE).owner(*room))
            .count();
        assert!((1_700..2_300).contains(&moved), "{moved}");
        assert!((0..10_000).all(|room| {
            let after = after.layer(STORE).owner(room);
            before.layer(STORE).owner(room) == after || after == Some(5)
        }));
    }

    #[test]
    fn a_running_node_of_its_partition_owns_a_room() {
        let placement = brokers(8, 4);
        for room in 0..1_000 {
            let owner = placement
                .layer(STORE)
                .owner(room)
                .and_then(|node| placement.node(node))
                .unwrap();
            assert_eq!(u64::from(owner.partition), room % 4);
            let other = placement
                .layer(STORE)
                .owner_among(room, |node| node != owner.node)
                .unwrap();
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
        let placement = placed(2, nodes, 4, 1);
        assert!((0..100).all(|room| placement.layer(STORE).owner(room) == Some(room as u32 % 4 + 1)));
    }

    #[test]
    fn each_cluster_has_partitions_and_owners_of_its_own() {
        let node = |node: u32, partition| PlacedNode {
            partition,
            ..PlacedNode::new(node, STORE, Addr::default())
        };
        let one = placed(1, vec![node(1, 0), node(2, 0)], 1, 4);
        let both = one
            .clone()
            .beside(STORE, [node(3, 0), node(4, 1)], Layer::new(1, Growth::Switched));
        let second = both.clusters(STORE).nth(1).unwrap().1;
        for room in 0..100 {
            assert_eq!(both.layer(STORE).owner(room), one.layer(STORE).owner(room));
            assert_eq!(second.owner(room), Some(3 + (room % 2) as u32));
        }
        assert_eq!([1, 3, 4, 9].map(|broker| both.cluster_of(broker)), [0, 1, 1, 0]);
        assert_eq!([1, 4].map(|broker| both.scope(broker).part()), [(1, 0), (2, 1)]);
        assert_eq!(both.part(4, INDEX, 2), None);
        assert_eq!(both.part(4, INDEX, 3).map(Scope::part), Some((4, 3)));
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
    fn a_switch_moves_half_of_the_rooms_and_preparing_moves_none() {
        let node = |node: u32| PlacedNode {
            partition: (node - 1) as u16,
            ..PlacedNode::new(node, STORE, Addr::default())
        };
        let grown = |growth| placed(1, (1..=4).map(node).collect(), Layer::new(2, growth), 1);
        let [before, prepares, switched] = [Growth::None, Growth::Prepare, Growth::Switched].map(grown);
        assert!(
            before.layer(STORE).owns_as(prepares.layer(STORE)) && !before.layer(STORE).owns_as(switched.layer(STORE))
        );
        let owners = |placement: &Placement| [0, 1, 2, 3].map(|room| placement.layer(STORE).owner(room).unwrap());
        assert_eq!((owners(&prepares), owners(&switched)), ([1, 2, 1, 2], [1, 2, 3, 4]));
    }

    #[test]
    fn nobody_owns_a_room_where_there_is_no_node() {
        assert_eq!(Placement::default().layer(STORE).owner(1), None);
        assert_eq!(brokers(1, 2).layer(STORE).owner(1), None);
    }
}
