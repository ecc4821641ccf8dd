//! Nodes to which this one keeps links open: when a hello is due to each, and what its answers mean for the next one.
//!
//! Owns the dials and their waits. Knows no link; connection ids come from the table of links.

use std::collections::BTreeMap;

use super::{DIAL_FIRST, DIAL_MAX, LINK_SOCKET, REFUSED_AFTER};
use crate::dice::Dice;
use crate::door::Knock;
use crate::machine::{Addr, Micros, Outbox};
use crate::wire::Role;

/// If another node answers a dial, the wait before the next try doubles each time, up to this.
const MISTAKEN_MAX: Micros = 5_000_000;

/// A node to be linked.
pub(super) struct Dial {
    addr: Addr,
    pub(super) role: Role,
    /// The handshake that has begun.
    pub(super) knock: Option<Knock>,
    at: Micros,
    wait: Micros,
    due: bool,
    /// Since when the node has answered with cookies alone.
    answered_at: Option<Micros>,
    /// The wait since another node answered; 0: none has.
    mistaken: Micros,
    /// The role was told why no link comes up.
    told: bool,
}

impl Dial {
    fn new(now: Micros, role: Role, addr: Addr) -> Self {
        Dial {
            addr,
            role,
            knock: None,
            at: now,
            wait: DIAL_FIRST,
            due: false,
            answered_at: None,
            mistaken: 0,
            told: false,
        }
    }

    /// Takes a cookie. The node is reachable: anything missing from here on was lost on the way.
    pub(super) fn cookie(&mut self, now: Micros, datagram: &[u8]) {
        if self.knock.as_mut().is_some_and(|knock| knock.cookie(datagram)) {
            (self.due, self.at, self.wait) = (true, now + DIAL_FIRST, 2 * DIAL_FIRST);
            self.answered_at.get_or_insert(now);
        }
    }

    /// The handshake ended with an answer that fits no node; the next one may reach the right node.
    pub(super) fn missed(&mut self, now: Micros) {
        (self.knock, self.due, self.at) = (None, false, now + DIAL_MAX);
    }

    /// The handshake ended with a node's answer.
    pub(super) fn answered(&mut self) {
        self.knock = None;
        self.wait = DIAL_FIRST;
        self.answered_at = None;
    }

    /// The right node has answered. `speaks`: it has a protocol version in common with this one.
    pub(super) fn found(&mut self, speaks: bool) {
        (self.mistaken, self.told) = (0, self.told && !speaks);
    }

    /// Another node has answered at this address: the dial backs off.
    pub(super) fn mistaken(&mut self, now: Micros) {
        self.mistaken = (2 * self.mistaken).clamp(DIAL_MAX, MISTAKEN_MAX);
        (self.due, self.at) = (false, now + self.mistaken);
    }

    /// The node speaks no version of ours: one of the two must be upgraded, so the dial waits long.
    pub(super) fn differs(&mut self, now: Micros) {
        (self.due, self.at) = (false, now + MISTAKEN_MAX);
    }

    /// The list of nodes lacks the node: the next look is later.
    pub(super) fn unlisted(&mut self, now: Micros) {
        self.at = now + DIAL_MAX;
    }

    /// The link to the node is gone: a hello is due.
    pub(super) fn hurry(&mut self, now: Micros) {
        self.at = now;
    }

    /// A hello leaves with the next slice.
    pub(super) fn hello(&mut self, now: Micros, dice: &mut Dice) {
        self.due = true;
        self.at = now + self.wait + dice.below(self.wait / 4 + 1);
        self.wait = (self.wait * 2).min(DIAL_MAX);
    }

    /// Whether the node has answered only with cookies for so long that it refuses our handshakes.
    pub(super) fn is_refused(&self, now: Micros) -> bool {
        self.answered_at.is_some_and(|at| now >= at + REFUSED_AFTER)
    }

    /// Whether the role must be told why no link comes up: once.
    pub(super) fn tell(&mut self) -> bool {
        !std::mem::replace(&mut self.told, true)
    }
}

/// The dials, by node.
#[derive(Default)]
pub(super) struct Dials(BTreeMap<u32, Dial>);

impl Dials {
    pub(super) fn contains(&self, node: u32) -> bool {
        self.0.contains_key(&node)
    }

    pub(super) fn get_mut(&mut self, node: u32) -> Option<&mut Dial> {
        self.0.get_mut(&node)
    }

    /// The dialled nodes and their roles.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (u32, Role)> + '_ {
        self.0.iter().map(|(node, dial)| (*node, dial.role))
    }

    /// Dials exactly these nodes. `release` gets the connection ids of handshakes that are over.
    pub(super) fn set(&mut self, now: Micros, wanted: BTreeMap<u32, (Role, Addr)>, mut release: impl FnMut(u64)) {
        self.0.retain(|node, dial| {
            let kept = wanted.get(node) == Some(&(dial.role, dial.addr));
            if let Some(knock) = dial.knock.as_ref().filter(|_| !kept) {
                release(knock.id);
            }
            kept
        });
        for (node, (role, addr)) in wanted {
            self.0.entry(node).or_insert(Dial::new(now, role, addr));
        }
    }

    /// Begins all dials again, with other secrets: each after the wait that `wait` returns for its node. `release` gets
    /// the connection ids of handshakes that are over.
    pub(super) fn renew(&mut self, now: Micros, mut wait: impl FnMut(u32) -> Micros, mut release: impl FnMut(u64)) {
        for (target, dial) in &mut self.0 {
            if let Some(knock) = dial.knock.take() {
                release(knock.id);
            }
            dial.due = false;
            dial.at = now + wait(*target);
            dial.wait = DIAL_FIRST;
            (dial.answered_at, dial.told) = (None, false);
        }
    }

    /// The dial that a datagram with this connection id answers, with its node.
    pub(super) fn answered_by(&mut self, id: u64, from: Addr) -> Option<(u32, &mut Dial)> {
        let mut dials = self.0.iter_mut().map(|(node, dial)| (*node, dial));
        dials.find(|(_, dial)| dial.addr == from && dial.knock.as_ref().is_some_and(|knock| knock.id == id))
    }

    /// The nodes whose time has come.
    pub(super) fn due(&self, now: Micros) -> Vec<u32> {
        let due = self.0.iter().filter(|(_, dial)| now >= dial.at);
        due.map(|(target, _)| *target).collect()
    }

    /// Writes the due hellos. `true`: more wait for space.
    pub(super) fn transmit(&mut self, payload: usize, outbox: &mut Outbox) -> bool {
        for dial in self.0.values_mut().filter(|dial| dial.due) {
            if outbox.room() == 0 {
                return true;
            }
            dial.due = false;
            if let Some(knock) = &dial.knock {
                knock.hello(LINK_SOCKET, dial.addr, payload, outbox);
            }
        }
        false
    }

    /// When the first of the nodes that want a link is due.
    pub(super) fn deadline(&self, wants: impl Fn(u32) -> bool) -> Option<Micros> {
        let dials = self.0.iter().filter(|(node, _)| wants(**node));
        dials.map(|(_, dial)| dial.at).min()
    }
}
