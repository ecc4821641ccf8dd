//! The linked nodes of one role with their sites, and the choice of two of them.
//!
//! Owns [`Peers`]. Frames that take two paths go to nodes of two sites, if there are two. Knows no frame.

use muster_transport::{weight, Identity, Role};
use std::collections::BTreeMap;

/// Nodes of one role.
pub struct Peers {
    role: Role,
    /// By node: its site, once announced.
    linked: BTreeMap<u32, Option<u16>>,
    /// The subject whose choice is cached until a peer comes or goes.
    own: u64,
    chosen: [Option<u32>; 2],
}

impl Peers {
    /// `own`: the subject for which [`Peers::two`] is called most often.
    pub fn new(role: Role, own: u32) -> Self {
        Peers {
            role,
            linked: BTreeMap::new(),
            own: own.into(),
            chosen: [None; 2],
        }
    }

    /// A link came up or was lost.
    pub fn link(&mut self, peer: Identity, up: bool) {
        if peer.role != self.role {
            return;
        }
        match up {
            true => {
                self.linked.entry(peer.node).or_insert(None);
            }
            false => {
                self.linked.remove(&peer.node);
            }
        }
        self.chosen = self.choose(self.own, |_| true);
    }

    /// A peer announces its site.
    pub fn here(&mut self, peer: Identity, site: u16) {
        let known = self.linked.get_mut(&peer.node).filter(|known| **known != Some(site));
        if let Some(known) = known {
            *known = Some(site);
            self.chosen = self.choose(self.own, |_| true);
        }
    }

    /// Linked nodes.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + '_ {
        self.linked.keys().copied()
    }

    /// Two nodes of two sites, otherwise two of one site, otherwise one: always the same for one subject while the
    /// peers are the same.
    pub fn two(&self, subject: u32) -> [Option<u32>; 2] {
        match u64::from(subject) == self.own {
            true => self.chosen,
            false => self.choose(subject.into(), |_| true),
        }
    }

    /// The first of the two for a subject.
    pub fn first(&self, subject: u64) -> Option<u32> {
        self.linked
            .keys()
            .copied()
            .max_by_key(|node| (weight(subject, *node), *node))
    }

    /// As [`Peers::two`], among nodes that `may` be chosen.
    pub fn choose(&self, subject: u64, may: impl Fn(u32) -> bool) -> [Option<u32>; 2] {
        let heaviest = |but: Option<(u32, Option<u16>)>, other_site: bool| {
            let nodes = self.linked.iter().filter(|(node, _)| may(**node));
            let nodes = nodes.filter(|(node, site)| {
                but.is_none_or(|(first, at)| **node != first && !(other_site && (**site == at || site.is_none())))
            });
            let found = nodes.max_by_key(|(node, _)| (weight(subject, **node), **node));
            found.map(|(node, site)| (*node, *site))
        };
        let first = heaviest(None, false);
        let second = first.and_then(|_| heaviest(first, true).or_else(|| heaviest(first, false)));
        [first, second].map(|found| found.map(|(node, _)| node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: Role = Role::new(6);

    fn peer(node: u32, role: Role) -> Identity {
        Identity { node, role, epoch: 1 }
    }

    fn peers(sites: &[(u32, u16)]) -> Peers {
        let mut peers = Peers::new(ROLE, 1);
        for (node, site) in sites {
            peers.link(peer(*node, ROLE), true);
            peers.here(peer(*node, ROLE), *site);
        }
        peers
    }

    #[test]
    fn two_nodes_are_of_two_sites_if_possible() {
        let peers = peers(&[(10, 1), (11, 1), (12, 1), (20, 2)]);
        for subject in 0..50 {
            let two = peers.two(subject).map(Option::unwrap);
            assert_eq!(peers.first(subject.into()), Some(two[0]));
            assert!(two.contains(&20) && two[0] != two[1], "{two:?}");
        }
        let firsts: std::collections::BTreeSet<_> = (0..50).map(|subject| peers.two(subject)[0]).collect();
        assert_eq!(firsts.len(), 4, "all have their part");
    }

    #[test]
    fn one_site_gives_two_of_its_own_and_one_node_is_alone() {
        let mut peers = peers(&[(10, 1), (11, 1)]);
        assert!(peers.two(1).iter().all(Option::is_some));
        peers.link(peer(11, ROLE), false);
        assert_eq!(peers.two(1), [Some(10), None]);
        peers.link(peer(12, Role::new(7)), true);
        assert_eq!(peers.two(1), [Some(10), None], "another role's node is none");
        peers.link(peer(10, ROLE), false);
        assert_eq!(peers.two(1), [None, None]);
    }
}
