//! The broker that a proxy or a gateway uses for a room: its owner, or the next one while the owner is unreachable.
//!
//! Owns the time since when each broker is away, and which ones know headers. Knows neither the traffic with it nor whether it will return.

use std::collections::{BTreeMap, BTreeSet};

use crate::role;

use muster_transport::{Links, Micros, NodeState, PlacedLayer, Placement};

use crate::limits::GATEWAY_LEASE;

/// How long an owner without a link is waited for before another broker is used: a process that died is mostly back
/// by then, and a link takes as long to come up.
pub const DETOUR_AFTER: Micros = 300_000;

/// A broker without a link that is silent for this long counts as dead for nodes that had messages of it.
pub const SPEAKS_WITHIN: Micros = 1_000_000;

/// The broker for a room's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub node: u32,
    pub slot: u32,
    /// The broker is not the room's owner.
    pub detour: bool,
}

/// Brokers without a link, and since when.
#[derive(Default)]
pub struct Owners {
    away: BTreeMap<u32, Micros>,
    /// Linked brokers that know headers of messages.
    headed: BTreeSet<u32>,
    /// There has been more than one broker to number a room's messages.
    several: bool,
}

impl Owners {
    /// Takes a new placement: its nodes that were never linked are waited for from now on.
    pub fn placed(&mut self, now: Micros, placement: &Placement, links: &Links) {
        self.several |= placement.of(role::BROKER).nth(1).is_some();
        for node in placement.of(role::BROKER).map(|node| node.node) {
            if links.to(node).is_none() {
                self.away.entry(node).or_insert(now);
            }
        }
    }

    /// Whether there has been more than one broker to number a room's messages.
    pub fn were_several(&self) -> bool {
        self.several
    }

    pub fn up(&mut self, node: u32) {
        self.away.remove(&node);
    }

    /// A linked broker knows headers: messages with headers may go there.
    pub fn note_headers(&mut self, node: u32) {
        self.headed.insert(node);
    }

    pub fn knows_headers(&self, node: u32) -> bool {
        self.headed.contains(&node)
    }

    pub fn lost(&mut self, now: Micros, node: u32) {
        self.headed.remove(&node); // it may come back as another release
        self.away.entry(node).or_insert(now);
    }

    /// Whether a broker without a link may be alive all the same: it lost the link recently.
    pub fn awaits(&self, now: Micros, node: u32) -> bool {
        self.away.get(&node).is_some_and(|since| now < since + DETOUR_AFTER)
    }

    /// Whether messages of a broker without a link may still arrive: over a lossy link, or on a busy machine, that
    /// takes longer than a detour waits. Only after this time are its remaining messages reported as lost.
    pub fn may_speak(&self, now: Micros, node: u32) -> bool {
        self.away.get(&node).is_some_and(|since| now < since + SPEAKS_WITHIN)
    }

    /// Forgets brokers that the placement no longer names, or that have been away for too long; returns them.
    pub fn gone(&mut self, now: Micros, placement: &Placement) -> Vec<u32> {
        let dead = |node: u32, since: Micros| placement.node(node).is_none() || now >= since + GATEWAY_LEASE;
        let gone = self.away.iter().filter(|(node, since)| dead(**node, **since));
        let gone: Vec<u32> = gone.map(|(node, _)| *node).collect();
        self.away.retain(|node, _| !gone.contains(node));
        gone
    }

    /// Whether every running broker has a link.
    pub fn are_linked(placement: &Placement, links: &Links) -> bool {
        let mut running = placement
            .of(role::BROKER)
            .filter(|node| node.state == NodeState::Running);
        running.all(|node| links.to(node.node).is_some())
    }

    /// Whether the room's owner has lost its link only recently.
    pub fn awaits_owner(&self, now: Micros, brokers: &PlacedLayer, room: u64) -> bool {
        brokers.owner(room).is_some_and(|owner| self.awaits(now, owner))
    }

    /// The broker of a cluster to use for `room`, if there is one now.
    pub fn route(&self, now: Micros, brokers: &PlacedLayer, links: &Links, room: u64) -> Option<Route> {
        let route = |node, detour| links.to(node).map(|slot| Route { node, slot, detour });
        let owner = brokers.owner(room)?;
        if let Some(route) = route(owner, false) {
            return Some(route);
        }
        if self.awaits(now, owner) {
            return None;
        }
        route(brokers.owner_among(room, |node| links.to(node).is_some())?, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: on a busy machine, a new gateway waited 300 ms for a link, told members that its broker was lost,
    /// and then sent them that broker's messages.
    #[test]
    fn a_broker_without_a_link_may_speak_for_longer_than_messages_wait_for_it() {
        let mut owners = Owners::default();
        owners.lost(5, 7);
        let later = |time| 5 + time;
        assert!(owners.awaits(later(DETOUR_AFTER - 1), 7) && !owners.awaits(later(DETOUR_AFTER), 7));
        assert!(owners.may_speak(later(DETOUR_AFTER), 7) && owners.may_speak(later(SPEAKS_WITHIN - 1), 7));
        assert!(!owners.may_speak(later(SPEAKS_WITHIN), 7) && !owners.may_speak(5, 8));
        owners.up(7);
        assert!(!owners.may_speak(later(1), 7), "its link shows that it is alive");
    }
}
