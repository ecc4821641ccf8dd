//! What a node reports of its links: changes, nodes that can't be linked, strangers.
//!
//! Owns the queue of reports, and how often strangers are reported. Knows no link.

use std::collections::{BTreeMap, VecDeque};

use super::STRANGER_TOLD;
use crate::allow::Stranger;
use crate::machine::Micros;
use crate::node::Identity;
use crate::versions::Versions;
use crate::wire::Role;

/// A link came up, was lost, or can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    Up {
        slot: u32,
        peer: Identity,
    },
    Down {
        slot: u32,
        peer: Identity,
        reason: &'static str,
    },
    /// A node answers but refuses our handshakes.
    Refused {
        node: u32,
        role: Role,
    },
    /// At a node's address another node answers, which is dialled itself or has a link already.
    Mistaken {
        node: u32,
        role: Role,
        found: u32,
    },
    /// A node should be linked, but the list of nodes lacks it, or has it in another role.
    Unlisted {
        node: u32,
        role: Role,
    },
    /// A node speaks these versions of the protocol, and none of ours.
    Differs {
        node: u32,
        role: Role,
        theirs: Versions,
    },
    /// A stranger was refused; `node`: the number that it claimed, 0 if none.
    Stranger {
        node: u32,
        why: Stranger,
    },
}

/// Reports that the role has not taken yet.
#[derive(Default)]
pub(super) struct Reports {
    waiting: VecDeque<LinkChange>,
    /// When a stranger of each kind was last reported.
    strangers: BTreeMap<Stranger, Micros>,
    /// When a dialling node without a version in common was last reported.
    differed_at: Option<Micros>,
}

impl Reports {
    pub(super) fn push(&mut self, change: LinkChange) {
        self.waiting.push_back(change);
    }

    /// Takes the next report.
    pub(super) fn pop(&mut self) -> Option<LinkChange> {
        self.waiting.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A stranger was refused: reported once per [`STRANGER_TOLD`] for each kind.
    pub(super) fn stranger(&mut self, now: Micros, node: u32, why: Stranger) {
        if self.strangers.get(&why).is_none_or(|at| now >= at + STRANGER_TOLD) {
            self.strangers.insert(why, now);
            self.push(LinkChange::Stranger { node, why });
        }
    }

    /// A node that dials us speaks no version of ours; a replayed hello may cause this any number of times.
    pub(super) fn differs(&mut self, now: Micros, peer: &Identity, theirs: Option<Versions>) {
        if self.differed_at.is_none_or(|at| now >= at + STRANGER_TOLD) {
            self.differed_at = Some(now);
            let (node, role) = (peer.node, peer.role);
            let told = theirs.map(|theirs| LinkChange::Differs { node, role, theirs });
            self.waiting.extend(told);
        }
    }
}
