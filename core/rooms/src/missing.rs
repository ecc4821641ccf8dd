//! Nodes that the placement names but that are not linked yet: each is waited for, for a bounded time.
//!
//! Owns the times. Knows no link and no role: its user names the missing nodes, and does the work that waits for
//! them.

use std::collections::{BTreeMap, BTreeSet};

use muster_transport::Micros;

/// How long a missing node is waited for: enough for a handshake lost several times over, or for a dead link's
/// timeout and another router. Short enough to answer a join in time if the node never comes.
pub const MISSING_WAIT: Micros = 2_000_000;
/// How long a node whose link was lost here may still believe in the link: it may notice the loss later than we do.
pub const LOST_WAIT: Micros = 300_000;

/// Missing nodes, each with the time until which it is waited for, if it still is.
#[derive(Default)]
pub struct Missing {
    nodes: BTreeMap<u32, Option<Micros>>,
}

impl Missing {
    /// Sets the nodes that are missing now.
    pub fn review(&mut self, now: Micros, missing: &BTreeSet<u32>) {
        self.nodes.retain(|node, _| missing.contains(node));
        for node in missing {
            self.nodes.entry(*node).or_insert(Some(now + MISSING_WAIT));
        }
    }

    /// Waits for a missing node from now on, for `wait`.
    pub fn wait(&mut self, now: Micros, node: u32, wait: Micros) {
        if let Some(until) = self.nodes.get_mut(&node) {
            *until = Some(now + wait);
        }
    }

    /// The missing nodes.
    pub fn nodes(&self) -> Vec<u32> {
        self.nodes.keys().copied().collect()
    }

    /// Whether any node is waited for.
    pub fn waits(&self) -> bool {
        self.nodes.values().any(Option::is_some)
    }

    /// Gives up nodes that have been waited for long enough. Returns whether there were any.
    pub fn expire(&mut self, now: Micros) -> bool {
        let mut over = false;
        for until in self
            .nodes
            .values_mut()
            .filter(|until| until.is_some_and(|at| at <= now))
        {
            *until = None;
            over = true;
        }
        over
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.nodes.values().flatten().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_node_is_waited_for_once_and_for_a_bounded_time() {
        let mut missing = Missing::default();
        let (one, both) = (BTreeSet::from([1]), BTreeSet::from([1, 2]));
        missing.review(0, &one);
        missing.review(500_000, &both);
        assert_eq!(missing.deadline(), Some(MISSING_WAIT));
        assert!(!missing.expire(MISSING_WAIT - 1));
        assert!(
            missing.expire(MISSING_WAIT) && missing.waits(),
            "the other one is waited for"
        );
        missing.wait(MISSING_WAIT, 2, LOST_WAIT);
        missing.wait(MISSING_WAIT, 3, MISSING_WAIT);
        assert_eq!(missing.deadline(), Some(MISSING_WAIT + LOST_WAIT));
        assert!(missing.expire(MISSING_WAIT + LOST_WAIT));
        missing.review(2 * MISSING_WAIT, &both);
        assert!(!missing.waits(), "once");
        missing.wait(2 * MISSING_WAIT, 1, MISSING_WAIT);
        assert_eq!(missing.deadline(), Some(3 * MISSING_WAIT));
        missing.review(MISSING_WAIT, &BTreeSet::new());
        assert!(!missing.waits(), "it came");
        missing.review(MISSING_WAIT, &one);
        assert!(missing.waits(), "it left again");
    }
}
