//! The list of nodes and their keys that an operator maintains, and this node's own key.
//!
//! Owns the decision whether a link may be made, accepted and kept, beyond the cluster's secret. Knows no datagram and
//! no link. The control plane supplies the list, never from the registry.

use std::collections::BTreeMap;

use crate::keys::{PublicKey, ServerKey};
use crate::node::Identity;
use crate::wire::Role;

/// How far a node goes in having identities proven. A cluster that runs goes from one to the next without losing a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Demand {
    /// Links are made without proof, and accepted with one and without.
    Accepted,
    /// Links are made with proof, and accepted with one and without.
    Offered,
    /// A link without proof is neither made nor accepted nor kept.
    Required,
}

/// The list's entry for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    pub role: Role,
    pub key: PublicKey,
}

/// The reason why a node that says hello is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stranger {
    /// It proves no identity, and has to.
    Unproven,
    /// The list has no such node.
    Unlisted,
    /// It has not the key that the list has for this node, or not the cluster's secret.
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

/// The fate of a link when the list changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    Keep,
    /// It is to be made anew with proof, and ends after a while where it is not.
    Renew,
    /// Its key is not that node's any more.
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
    /// With which key the node has to prove itself that a link is made to. `Ok(None)`: links are made without.
    pub fn dials(&self, node: u32, role: Role) -> Result<Option<&Listed>, Stranger> {
        if self.demand == Demand::Accepted {
            return Ok(None);
        }
        let listed = self.nodes.get(&node).filter(|listed| listed.role == role);
        listed.map(Some).ok_or(Stranger::Unlisted)
    }

    /// The entry whose key a node must prove when it says hello as `node`; 0: it names no number. `Ok(None)`: no proof
    /// is required.
    pub fn admits(&self, node: u32) -> Result<Option<&Listed>, Stranger> {
        match (node, self.demand) {
            (0, Demand::Required) => Err(Stranger::Unproven),
            (0, _) => Ok(None),
            _ => self.nodes.get(&node).map(Some).ok_or(Stranger::Unlisted),
        }
    }

    /// The fate of a link to `peer` that was made with this key, or without one.
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
    fn a_link_is_made_to_a_listed_node_of_the_role_it_is_listed_for() {
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
            "what is offered falls back to nothing"
        );
    }

    #[test]
    fn who_proves_nothing_is_let_in_until_it_is_required_and_who_is_not_listed_never() {
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
