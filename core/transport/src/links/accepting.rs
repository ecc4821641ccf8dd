//! Links that other nodes open: the handshakes that the door lets in, and those that are not proven yet.
//!
//! Orders the door, the table of links and the reports; owns nothing.

use super::link::Link;
use super::{Links, UNPROVEN_LIFE, UNPROVEN_MAX};
use crate::allow::Stranger;
use crate::conn::Conn;
use crate::door::Accepted;
use crate::machine::Micros;
use crate::node::{Identity, Node};

impl Links {
    /// Makes the link of a handshake, to be proven by its first sealed datagram.
    fn make(&mut self, now: Micros, node: &mut Node, accepted: &Accepted) -> Option<u32> {
        let (peer, offer) = Identity::read(&accepted.payload)?;
        if let Some((node, listed)) = accepted.proved {
            if (peer.node, peer.role) != (node, listed.role) {
                self.door.refuse(node, Stranger::Impostor);
                return None;
            }
        }
        if peer.node == node.me.node || self.history.is_over(&peer) {
            self.counters.link_refused_epoch += 1;
            return None;
        }
        let version = match node.versions.choose(offer) {
            Ok(version) => version,
            Err(theirs) => {
                self.door.refuse_version(now, accepted);
                self.reports.differs(now, &peer, theirs);
                return None;
            }
        };
        if self.unproven.len() >= UNPROVEN_MAX {
            self.forget_unproven(now, true);
        }
        let random = node.secret_u32();
        let log_bytes = self.log_bytes;
        let slot = self.table.insert(random, |id| {
            let conn = Conn::new(
                id,
                accepted.initiator,
                accepted.socket,
                accepted.from,
                accepted.secret.clone(),
                false,
                accepted.key_id,
                log_bytes,
                now,
            );
            let key = accepted.proved.map(|(_, listed)| listed.key);
            (conn, Link::new(now, peer, version, key))
        });
        self.unproven.push_back(slot);
        Some(slot)
    }

    /// Ends accepted links that were not proven in time; `one`: the oldest at once.
    pub(super) fn forget_unproven(&mut self, now: Micros, one: bool) {
        let mut forced = one;
        while let Some(slot) = self.unproven.front().copied() {
            match self.table.get(slot) {
                Some(link) if !link.data.proven => {
                    if !forced && now < link.data.made_at + UNPROVEN_LIFE {
                        return;
                    }
                    forced = false;
                    self.table.remove(slot);
                }
                _ => {}
            }
            self.unproven.pop_front();
        }
    }

    /// Answers the handshakes that the door lets in.
    pub(super) fn accept(&mut self, now: Micros, node: &mut Node) {
        let (me, versions) = (node.me, node.versions);
        let payload = |said: &[u8]| me.with(&versions.answer(Identity::read(said).map_or(&[], |(_, offer)| offer)));
        while let Some(accepted) = self.door.accept(now, payload, node.entropy.as_mut()) {
            if let Some(slot) = self.make(now, node, &accepted) {
                let id = self.table.get(slot).map_or(0, |link| link.conn.id);
                self.door.answer(now, &accepted, id);
            }
        }
        if let Some((node, why)) = self.door.stranger() {
            self.reports.stranger(now, node, why);
        }
    }
}
