//! Nodes that were ever linked: their latest lives, and how their links fared.
//!
//! Owns what is remembered of them, and which one is forgotten. Knows no link; the caller says which nodes have one.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::NODES_MAX;
use crate::machine::Micros;
use crate::node::Identity;
use crate::past::Past;

/// How long a lost node that had dialled us is reported: it may return, or be gone for good.
const LOST_TOLD: Micros = 3_600_000_000;

/// The latest life (epoch) that a node proved.
struct Life {
    epoch: u32,
    /// When it was linked, or when its link was lost.
    at: Micros,
}

/// The remembered nodes, at most [`NODES_MAX`]. Of the nodes that are neither linked nor placed, the one gone for
/// longest makes room.
#[derive(Default)]
pub(super) struct History {
    lives: BTreeMap<u32, Life>,
    /// The history of links to some of these nodes.
    past: BTreeMap<u32, Past>,
    /// Nodes that the placement names.
    placed: BTreeSet<u32>,
}

impl History {
    /// The highest epoch that `node` proved.
    pub(super) fn epoch_of(&self, node: u32) -> Option<u32> {
        self.lives.get(&node).map(|life| life.epoch)
    }

    /// Whether a later life of the node was seen.
    pub(super) fn is_over(&self, peer: &Identity) -> bool {
        self.epoch_of(peer.node).is_some_and(|known| known > peer.epoch)
    }

    /// When a remembered node was linked, or when its link was lost.
    pub(super) fn changed_at(&self, node: u32) -> Option<Micros> {
        self.lives.get(&node).map(|life| life.at)
    }

    /// The remembered history of the links to `node`.
    pub(super) fn past(&self, node: u32) -> Option<&Past> {
        self.past.get(&node)
    }

    /// Nodes whose links changed lately, and their histories.
    pub(super) fn recent(&self, now: Micros) -> impl Iterator<Item = (u32, &Past)> + '_ {
        let fresh = move |past: &Past| now < past.changed_at + LOST_TOLD;
        let recent = self.past.iter().filter(move |(_, past)| fresh(past));
        recent.map(|(node, past)| (*node, past))
    }

    /// Sets the nodes that the placement names: none of them is forgotten.
    pub(super) fn place(&mut self, nodes: impl Iterator<Item = u32>) {
        self.placed = nodes.collect();
    }

    /// Whether another node can be remembered; forgets one for it if necessary.
    pub(super) fn make_place(&mut self, node: u32, linked: &BTreeMap<u32, u32>) -> bool {
        if self.lives.len() < NODES_MAX || self.lives.contains_key(&node) {
            return true;
        }
        let gone = self.lives.iter();
        let gone = gone.filter(|(node, _)| !linked.contains_key(node) && !self.placed.contains(node));
        let Some((&longest, _)) = gone.min_by_key(|(_, life)| life.at) else {
            return false;
        };
        self.lives.remove(&longest);
        self.past.remove(&longest);
        true
    }

    /// A link to the peer came up. `ended`: when its former life was last heard, if that ended unnoticed.
    pub(super) fn up(&mut self, now: Micros, peer: &Identity, ended: Option<Micros>) {
        let epoch = peer.epoch;
        self.lives.insert(peer.node, Life { epoch, at: now });
        let past = self.past.entry(peer.node).or_insert(Past::new(now, peer.role));
        if let Some(at) = ended {
            past.fall(at);
        }
        past.rise(now);
    }

    /// The link to `node` ended `now`; it was lost, and last heard at `lost`, or has no more use.
    pub(super) fn down(&mut self, now: Micros, node: u32, lost: Option<Micros>) {
        if let Some(life) = self.lives.get_mut(&node) {
            life.at = now;
        }
        match lost {
            None => self.forget(node),
            Some(at) => {
                if let Some(past) = self.past.get_mut(&node) {
                    past.fall(at);
                }
            }
        }
    }

    /// Forgets how the links to `node` fared, but not its life.
    pub(super) fn forget(&mut self, node: u32) {
        self.past.remove(&node);
    }

    /// The number of remembered lives, and of histories.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.lives.len(), self.past.len())
    }
}
