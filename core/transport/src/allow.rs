//! The operator's list of nodes and their keys, and this node's own key.
//!
//! Owns the decision whether a link may be made, accepted and kept, beyond the cluster's secret. Knows no datagram
//! and no link. The control plane supplies the list, never the registry.

use std::collections::BTreeMap;

use crate::keys::{PublicKey, ServerKey};
use crate::node::Identity;
use crate::wire::Role;

/// How strictly a node requires proof of identity. A running cluster moves from one level to the next without losing
/// a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Demand {
    /// Dials without proof; accepts links with and without proof.
    Accepted,
    /// Dials with proof; accepts links with and without proof.
    Offered,
    /// Links without proof are not made, accepted or kept.
    Required,
}

/// The list's entry for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    pub role: Role,
    pub key: PublicKey,
}

/// Why a hello of a node is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stranger {
    /// It proves no identity, though proof is required.
    Unproven,
    /// The list has no such node.
    Unlisted,
    /// It lacks the key that the list has for this node, or the cluster's secret.
    Impostor,
}

impl Stranger {
    pub fn name(self) -> &'static str {
        match self {
            Stranger::Unproven => "no identity",
            Stranger::Unlisted => "not listed",
            Stranger::Impostor => "another key",
        }
    }
}

/// What happens to a link when the list changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Keep,
    /// It must be renewed with proof, or it ends after a grace period.
    Renew,
    /// Its key no longer belongs to that node.
    End,
}

/// The list, and how strictly this node applies it.
#[derive(Clone, PartialEq, Eq)]
pub struct AllowList {
    pub own: ServerKey,
    pub nodes: BTreeMap<u32, Listed>,
    pub demand: Demand,
}

impl AllowList {
    /// The list's entry whose key a dialled node must prove. `Ok(None)`: dial without proof.
    pub fn dials(&self, node: u32, role: Role) -> Result<Option<&Listed>, Stranger> {
        if self.demand == Demand::Accepted {
            return Ok(None);
        }
        let listed = self.nodes.get(&node).filter(|listed| listed.role == role);
        listed.map(Some).ok_or(Stranger::Unlisted)
    }

    /// The entry whose key a node must prove when its hello names `node`; 0: it names none. `Ok(None)`: no proof is
    /// required.
    pub fn admits(&self, node: u32) -> Result<Option<&Listed>, Stranger> {
        match (node, self.demand) {
            (0, Demand::Required) => Err(Stranger::Unproven),
            (0, _) => Ok(None),
            _ => self.nodes.get(&node).map(Some).ok_or(Stranger::Unlisted),
        }
    }

    /// The fate of an existing link to `peer` that was made with this key, or without one.
    pub fn judge(&self, peer: Identity, key: Option<PublicKey>) -> Standing {
        let listed = self.nodes.get(&peer.node).filter(|listed| listed.role == peer.role);
        match key {
            Some(key) if listed.is_some_and(|listed| listed.key == key) => Standing::Keep,
            Some(_) => Standing::End,
            None if self.demand < Demand::Required => Standing::Keep,
            None if listed.is_some() => Standing::Renew,
            None => Standing::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{FRONT, INDEX, STORE};

    fn list(demand: Demand) -> AllowList {
        let listed = |role, key| Listed { role, key: [key; 32] };
        AllowList {
            own: ServerKey::from_private([9; 32]),
            nodes: [(1, listed(STORE, 1)), (2, listed(FRONT, 2))].into(),
            demand,
        }
    }

    fn peer(node: u32, role: Role) -> Identity {
        Identity { node, role, epoch: 1 }
    }

    #[test]
    fn only_a_listed_node_in_its_listed_role_is_dialled() {
        let required = list(Demand::Required);
        assert_eq!(
            required.dials(1, STORE).map(|listed| listed.map(|of| of.key)),
            Ok(Some([1; 32]))
        );
        assert_eq!(required.dials(2, STORE), Err(Stranger::Unlisted), "a gateway's key");
        assert_eq!(required.dials(3, STORE), Err(Stranger::Unlisted));
        assert_eq!(list(Demand::Accepted).dials(3, STORE), Ok(None));
        assert_eq!(
            list(Demand::Offered).dials(3, STORE),
            Err(Stranger::Unlisted),
            "no proof is offered"
        );
    }

    #[test]
    fn unproven_nodes_are_admitted_until_proof_is_required_and_unlisted_ones_never() {
        for demand in [Demand::Accepted, Demand::Offered, Demand::Required] {
            assert!(list(demand)
                .admits(2)
                .is_ok_and(|of| of.is_some_and(|of| of.key == [2; 32])));
            assert_eq!(list(demand).admits(3), Err(Stranger::Unlisted));
        }
        assert_eq!(list(Demand::Offered).admits(0), Ok(None));
        assert_eq!(list(Demand::Required).admits(0), Err(Stranger::Unproven));
    }

    #[test]
    fn a_link_lives_as_long_as_its_key_is_the_one_listed_for_that_node_and_role() {
        let judged =
            |demand, node, role, key: Option<u8>| list(demand).judge(peer(node, role), key.map(|key| [key; 32]));
        for demand in [Demand::Accepted, Demand::Offered, Demand::Required] {
            assert_eq!(judged(demand, 2, FRONT, Some(2)), Standing::Keep);
            assert_eq!(judged(demand, 2, FRONT, Some(1)), Standing::End, "another's key");
            assert_eq!(judged(demand, 2, INDEX, Some(2)), Standing::End, "another role");
            assert_eq!(judged(demand, 3, FRONT, Some(2)), Standing::End, "not listed");
        }
        assert_eq!(judged(Demand::Offered, 3, FRONT, None), Standing::Keep);
        assert_eq!(judged(Demand::Required, 2, FRONT, None), Standing::Renew);
        assert_eq!(judged(Demand::Required, 3, FRONT, None), Standing::End);
    }
}
