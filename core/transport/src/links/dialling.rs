//! Links that this node opens: the hellos to dialled nodes, and their answers.
//!
//! Orders the dials, the table of links, the list of nodes and the reports; owns nothing.

use super::link::Link;
use super::{LinkChange, Links, LINK_SOCKET};
use crate::conn::Conn;
use crate::door::Knock;
use crate::handshake::InitiatorKey;
use crate::machine::{Arrival, Micros};
use crate::node::{Identity, Node};
use crate::versions::NoVersion;
use crate::wire::header::Header;
use crate::wire::Role;

impl Links {
    /// A node that we dial has accepted the handshake.
    pub(super) fn opened(&mut self, now: Micros, node: &Node, arrival: Arrival, header: &Header, datagram: &[u8]) {
        let Some((target, dial)) = self.dials.answered_by(header.connection, arrival.from) else {
            self.counters.link_dropped_unknown += 1;
            return;
        };
        let role = dial.role;
        let Some(knock) = dial.knock.as_mut() else { return };
        let Some(opened) = knock.accept(datagram) else {
            self.counters.link_dropped_forged += 1;
            return;
        };
        let key = knock.listed.map(|listed| listed.key);
        let meant = |peer: &Identity| peer.role == role && (key.is_none() || peer.node == target);
        let said = Identity::read(&opened.payload).filter(|(peer, _)| meant(peer));
        let said = said.and_then(|(peer, behind)| match node.versions.answered(behind) {
            Err(NoVersion::Malformed) => None,
            answered => Some((peer, answered)),
        });
        let Some((peer, version)) = said else {
            dial.missed(now);
            self.table.release(header.connection);
            self.counters.link_dropped_frame += 1;
            return;
        };
        let key_id = knock.key_id;
        dial.answered();
        if peer.node == target {
            dial.found(version.is_ok());
        } else if self.dials.contains(peer.node) || self.is_linked(&peer) {
            self.table.release(header.connection);
            self.mistaken(now, target, peer.node);
            return;
        }
        let version = match version {
            Ok(version) => version,
            Err(no_version) => {
                self.table.release(header.connection);
                return self.differs(now, target, role, no_version);
            }
        };
        let conn = Conn::new(
            header.connection,
            opened.peer,
            LINK_SOCKET,
            arrival.from,
            opened.secret,
            true,
            key_id,
            self.log_bytes,
            now,
        );
        let link = Link::new(now, peer, version, key);
        let slot = self.table.fill(header.connection, conn, link);
        self.prove(now, slot);
    }

    /// Whether there is a link to a node in this life, or in a later one.
    fn is_linked(&self, peer: &Identity) -> bool {
        let link = self.to(peer.node).and_then(|slot| self.table.get(slot));
        link.is_some_and(|link| link.data.peer.epoch >= peer.epoch)
    }

    /// Another node has answered at the address of a node that we dial: its link stays, and the dial backs off.
    fn mistaken(&mut self, now: Micros, target: u32, found: u32) {
        let Some(dial) = self.dials.get_mut(target) else {
            return;
        };
        dial.mistaken(now);
        if dial.tell() {
            self.counters.links_mistaken += 1;
            let (node, role) = (target, dial.role);
            self.reports.push(LinkChange::Mistaken { node, role, found });
        }
    }

    /// A dialled node speaks no version of ours.
    fn differs(&mut self, now: Micros, target: u32, role: Role, no_version: NoVersion) {
        let (Some(dial), NoVersion::Other { theirs, .. }) = (self.dials.get_mut(target), no_version) else {
            return;
        };
        dial.differs(now);
        self.counters.links_other_version += 1;
        if dial.tell() {
            let node = target;
            self.reports.push(LinkChange::Differs { node, role, theirs });
        }
    }

    /// Prepares the hellos that are due.
    pub(super) fn dial_due(&mut self, now: Micros, node: &mut Node) {
        let payload = node.me.with(&node.versions.offer());
        for target in self.dials.due(now) {
            if !self.wanting(target) {
                continue;
            }
            let Some(dial) = self.dials.get_mut(target) else {
                continue;
            };
            if dial.knock.is_none() {
                let (key_id, secret) = &self.cluster.current;
                let allow = self.cluster.allow.as_ref();
                let listed = match allow.map_or(Ok(None), |allow| allow.dials(target, dial.role)) {
                    Ok(listed) => listed,
                    Err(_) => {
                        dial.unlisted(now);
                        if dial.tell() {
                            self.counters.links_unlisted += 1;
                            let (node, role) = (target, dial.role);
                            self.reports.push(LinkChange::Unlisted { node, role });
                        }
                        continue;
                    }
                };
                let id = self.table.reserve(node.secret_u32());
                let mut knock = |key| Knock::new(id, key, *key_id, &payload, node.entropy.as_mut());
                dial.knock = Some(match allow.zip(listed) {
                    Some((allow, listed)) => {
                        let (own, peer) = (&allow.own, &listed.key);
                        knock(InitiatorKey::Node { secret, own, peer }).of_node(node.me.node, secret, *listed)
                    }
                    _ => knock(InitiatorKey::Link(secret)),
                });
            }
            dial.hello(now, &mut node.dice);
            if dial.is_refused(now) && dial.tell() {
                self.counters.links_refused += 1;
                let (node, role) = (target, dial.role);
                self.reports.push(LinkChange::Refused { node, role });
            }
        }
    }
}
