//! The home of a node in each partition of a layer: the replica with the highest rendezvous weight, so that nodes
//! spread evenly over replicas.
//!
//! Owns the choice, and the move from one home to the next: the old home stays until the new one is settled. Knows no
//! record.

use std::collections::BTreeMap;

use crate::machine::Micros;
use crate::placement::{weight, NodeState, Placement};
use crate::wire::Role;

/// A better replica must be linked for this long before it becomes the home, so that a flapping one is ignored.
pub const BETTER_AFTER: Micros = 5_000_000;

/// An instruction for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Send this node the state, or ask it for its own.
    Begin { partition: u16, node: u32 },
    /// This node is no longer a home.
    End { node: u32 },
}

/// One partition's home, and the next one.
#[derive(Clone, Copy, Default)]
struct Home {
    current: Option<u32>,
    next: Option<u32>,
}

/// The homes of one node.
pub struct Homes {
    me: u32,
    role: Role,
    homes: BTreeMap<u16, Home>,
    due: Option<Micros>,
}

/// Running ranks above starting, and starting above draining; a node outside the placement ranks last.
fn rank(placement: &Placement, node: u32) -> u8 {
    match placement.node(node).map(|node| node.state) {
        Some(NodeState::Running) => 3,
        Some(NodeState::Init) => 2,
        Some(NodeState::Draining) => 1,
        None => 0,
    }
}

impl Homes {
    /// `role`: the role of the layer that the homes are in.
    pub fn new(me: u32, role: Role) -> Self {
        Homes {
            me,
            role,
            homes: BTreeMap::new(),
            due: None,
        }
    }

    /// Checks whether other homes are wanted in the partitions that are `needed`. `since` returns when a node was
    /// linked.
    pub fn review(
        &mut self,
        now: Micros,
        placement: &Placement,
        needed: impl Fn(u16) -> bool,
        since: impl Fn(u32) -> Option<Micros>,
    ) -> Vec<Move> {
        let mut moves = Vec::new();
        let partitions = placement.layer(self.role).layer().all();
        self.due = None;
        self.homes.retain(|partition, home| {
            let elsewhere = |node: u32| placement.node(node).is_some_and(|node| node.partition != *partition);
            let moved = home.current.is_some_and(elsewhere) || home.next.is_some_and(elsewhere);
            let kept = *partition < partitions && needed(*partition) && !moved;
            if !kept {
                let ended = home.current.into_iter().chain(home.next);
                moves.extend(ended.map(|node| Move::End { node }));
            }
            kept
        });
        for partition in (0..partitions).filter(|partition| needed(*partition)) {
            let home = self.homes.entry(partition).or_default();
            let replicas = placement
                .of(self.role)
                .filter(|node| node.partition == partition && since(node.node).is_some());
            let me = u64::from(self.me);
            let best = replicas.max_by_key(|node| {
                let rank = rank(placement, node.node);
                (rank, weight(me, node.node), node.node)
            });
            let Some(best) = best.map(|node| node.node) else {
                continue;
            };
            let begin = Move::Begin { partition, node: best };
            match home.current {
                None => {
                    home.current = Some(best);
                    moves.push(begin);
                }
                Some(current) if current == best => {
                    moves.extend(home.next.take().map(|node| Move::End { node }));
                }
                Some(_) if home.next == Some(best) => {}
                Some(current) => {
                    let at = since(best).unwrap_or(now) + BETTER_AFTER;
                    if now < at && rank(placement, current) >= rank(placement, best) {
                        self.due = Some(self.due.map_or(at, |due| due.min(at)));
                        continue;
                    }
                    moves.extend(home.next.replace(best).map(|node| Move::End { node }));
                    moves.push(begin);
                }
            }
        }
        moves
    }

    /// The nodes that must know a partition's rooms.
    pub fn of(&self, partition: u16) -> impl Iterator<Item = u32> {
        let home = self.homes.get(&partition).copied().unwrap_or_default();
        home.current.into_iter().chain(home.next)
    }

    /// Whether each partition has a home.
    pub fn are_complete(&self, partitions: u16) -> bool {
        (0..partitions).all(|partition| self.of(partition).next().is_some())
    }

    /// A node has the full state: if it was the next home, it takes over, and the previous home ends.
    pub fn settled(&mut self, node: u32) -> Option<u32> {
        let home = self.homes.values_mut().find(|home| home.next == Some(node))?;
        home.next = None;
        home.current.replace(node)
    }

    /// The link to a node is lost.
    pub fn lost(&mut self, node: u32) {
        for home in self.homes.values_mut() {
            home.next = home.next.filter(|next| *next != node);
            if home.current == Some(node) {
                home.current = home.next.take();
            }
        }
    }

    /// When [`Homes::review`] is due without another event.
    pub fn due(&self) -> Option<Micros> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::INDEX;
    use crate::placement::PlacedNode;

    /// Two partitions of two routers each, 1 to 4; some are in another state.
    fn placement(states: &[(u32, NodeState)]) -> Placement {
        let nodes = (1..=4).map(|node| PlacedNode {
            partition: (node % 2) as u16,
            state: states
                .iter()
                .find(|(of, _)| *of == node)
                .map_or(NodeState::Running, |(_, state)| *state),
            ..PlacedNode::new(node, INDEX, Default::default())
        });
        Placement::new(1, nodes.collect(), [(INDEX, 2.into())])
    }

    fn begun(moves: &[Move]) -> Vec<(u16, u32)> {
        let begun = moves.iter().filter_map(|step| match step {
            Move::Begin { partition, node } => Some((*partition, *node)),
            Move::End { .. } => None,
        });
        begun.collect()
    }

    /// A node whose best router of partition 1 is number 1, and the worse one 3.
    fn homes() -> Homes {
        let me = (100..).find(|me| weight(*me, 1) > weight(*me, 3)).unwrap();
        Homes::new(me as u32, INDEX)
    }

    #[test]
    fn every_partition_has_one_home_and_nodes_spread_over_the_replicas() {
        let mut homed = [0; 5];
        for me in 100..1_100 {
            let mut homes = Homes::new(me, INDEX);
            let moves = homes.review(0, &placement(&[]), |_| true, |_| Some(0));
            let begun = begun(&moves);
            assert_eq!((begun.len(), homes.are_complete(2)), (2, true));
            begun.iter().for_each(|(_, node)| homed[*node as usize] += 1);
        }
        assert!(homed[1..].iter().all(|count| (400..600).contains(count)), "{homed:?}");
    }

    #[test]
    fn a_stable_better_home_replaces_the_old_one_once_it_is_settled() {
        let (mut homes, placement) = (homes(), placement(&[]));
        let mut review = |now, one: Option<Micros>| {
            let since = |node| if node == 1 { one } else { Some(0) };
            let moves = homes.review(now, &placement, |partition| partition == 1, since);
            (begun(&moves), homes.due())
        };
        assert_eq!(review(0, None), (vec![(1, 3)], None));
        assert_eq!(review(10, Some(10)), (vec![], Some(10 + BETTER_AFTER)));
        assert_eq!(review(10 + BETTER_AFTER, Some(10)), (vec![(1, 1)], None));
        assert_eq!(homes.of(1).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(homes.settled(3), None);
        assert_eq!(homes.settled(1), Some(3));
        assert_eq!(homes.of(1).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_home_that_is_lost_or_drains_is_left_at_once() {
        let mut homes = homes();
        let review = |homes: &mut Homes, states: &[(u32, NodeState)], linked: &[u32]| {
            let since = |node| linked.contains(&node).then_some(0);
            begun(&homes.review(1, &placement(states), |partition| partition == 1, since))
        };
        let drains = [(1, NodeState::Draining)];
        assert_eq!(review(&mut homes, &[], &[1, 3]), [(1, 1)]);
        assert_eq!(review(&mut homes, &drains, &[1, 3]), [(1, 3)]);
        homes.lost(1);
        assert_eq!(homes.of(1).collect::<Vec<_>>(), [3]);
        homes.lost(3);
        assert_eq!(review(&mut homes, &drains, &[1]), [(1, 1)], "better than nobody");
        homes.lost(1);
        assert_eq!(
            review(&mut homes, &[(1, NodeState::Init)], &[1, 3]),
            [(1, 3)],
            "a running node comes first"
        );
    }

    #[test]
    fn a_home_that_is_no_longer_needed_is_ended() {
        let mut homes = homes();
        homes.review(0, &placement(&[]), |_| true, |_| Some(0));
        let moves = homes.review(0, &placement(&[]), |partition| partition == 0, |_| Some(0));
        assert_eq!(moves, [Move::End { node: 1 }]);
        assert_eq!(homes.of(1).next(), None);
    }
}
