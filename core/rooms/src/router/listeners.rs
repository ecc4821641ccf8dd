//! Nodes that listen: which memberships they are told, and when their copy is complete.

use super::reports::hint_to;
use super::{Listener, Router, SETTLE};
use crate::role;
use crate::wire::record::Record;
use muster_transport::{Identity, Micros, Scope};
use std::collections::VecDeque;

impl Router {
    /// Keeps the latest change in a life of this epoch for the database.
    pub(super) fn note(&mut self, epoch: u32, version: u64) {
        if let Some(kept) = &mut self.kept {
            kept.note(epoch, &self.changes, version);
        }
    }

    /// Sends a listener all that is known of every gateway.
    pub(super) fn tell_all(&mut self, now: Micros, listener: u32) {
        let gateways: Vec<u32> = self.interest.gateways().map(|(node, _)| node).collect();
        gateways.into_iter().for_each(|node| self.tell(now, listener, node));
    }

    /// Sends a listener all that is known of a gateway, at once, so that nothing comes in between.
    pub(super) fn tell(&mut self, now: Micros, listener: u32, node: u32) {
        let Router {
            links,
            interest,
            listeners,
            counters,
            hinted,
            placement,
            node: me,
            ..
        } = self;
        let Some(listener) = listeners.get_mut(&listener) else {
            return;
        };
        let Some(epoch) = interest.epoch_of(node) else { return };
        let own = placement.scope(me.me.node).meet(listener.scope);
        if let Some(scope) = own.filter(|_| hinted.contains(&node) && !listener.peer) {
            let rooms = interest.rooms_of(node, scope);
            let offset = hint_to(now, links, listener.slot, (node, epoch, scope), rooms, counters);
            listener.told = offset.unwrap_or(listener.told);
        }
        for (scope, version) in interest.wholes(node) {
            let Some(scope) = scope.meet(listener.scope) else {
                continue;
            };
            let (slot, mut offset) = (listener.slot, None);
            let mut log = |record: &Record<'_>| offset = links.record(now, slot, record).or(offset);
            log(&Record::GatewayBegin {
                node,
                epoch,
                scope,
                version,
            });
            for membership in interest.rooms_of(node, scope) {
                counters.memberships_sent += 1;
                log(&Record::GatewayMembership {
                    node,
                    epoch,
                    membership,
                });
            }
            log(&Record::GatewayEnd {
                node,
                epoch,
                scope,
                version,
            });
            listener.told = offset.unwrap_or(listener.told);
        }
    }

    /// Reports to gateways and peers what all brokers have confirmed.
    pub(super) fn cover(&mut self, now: Micros) {
        let (mut brokers, mut peers) = (u64::MAX, u64::MAX);
        for listener in self.listeners.values_mut() {
            let (upto, least) = if listener.peer {
                (listener.covered, &mut peers)
            } else {
                let link = self.links.table.get(listener.slot);
                (link.map_or(u64::MAX, |link| link.conn.log.acknowledged()), &mut brokers)
            };
            while listener.bursts.front().is_some_and(|(_, offset)| *offset <= upto) {
                listener.bursts.pop_front();
            }
            let open = listener.bursts.front();
            *least = open.map_or(u64::MAX, |(burst, _)| burst - 1).min(*least);
        }
        // A broker without a router may serve all the same, or start to, without knowing the covered rooms.
        let untold = self.brokers_missing.waits();
        for (node, source) in &mut self.sources {
            let own = self.listeners.get(node).is_none_or(|listener| !listener.peer);
            let done = match own {
                true if untold => 0,
                true => brokers.min(peers),
                false => brokers,
            };
            while let Some((offset, _)) = source.uncovered.front().filter(|(_, burst)| *burst <= done) {
                source.covered = *offset;
                source.uncovered.pop_front();
            }
            if source.covered > source.told {
                let offset = source.covered;
                source.told = offset;
                self.links.record(now, source.slot, &Record::Covered { offset });
            }
        }
    }

    /// A listener subscribes to a scope: it gets all that is known of every gateway.
    pub(super) fn listen(&mut self, now: Micros, slot: u32, peer: Identity, scope: Scope) {
        let listener = Listener {
            slot,
            scope,
            peer: peer.role == role::ROUTER,
            complete: peer.role == role::ROUTER,
            told: 0,
            covered: 0,
            bursts: VecDeque::new(),
        };
        self.listeners.insert(peer.node, listener);
        self.tell_all(now, peer.node);
        if let Some(listener) = self.listeners.get_mut(&peer.node).filter(|listener| listener.told > 0) {
            // Reports that not all listeners had in time count as covered once this one has them too.
            listener.bursts.push_back((1, listener.told));
        }
        if peer.role == role::BROKER {
            self.tell_peers(now, peer.node, true);
            for node in &self.away {
                let (node, up) = (*node, false);
                self.links.record(now, slot, &Record::GatewaySeen { node, up });
            }
        }
        self.review_missing(now);
    }

    /// A listener has left; peers learn of it before anything counts as covered without it.
    pub(super) fn unlisten(&mut self, now: Micros, node: u32) {
        let was = self.listeners.remove(&node);
        if was.is_some_and(|listener| !listener.peer) {
            self.tell_peers(now, node, false);
        }
        self.review_missing(now);
    }

    /// Tells peers whether a broker is served here.
    pub(super) fn tell_peers(&mut self, now: Micros, node: u32, told: bool) {
        for peer in self.listeners.values().filter(|listener| listener.peer) {
            self.links.record(now, peer.slot, &Record::BrokerTold { node, told });
        }
    }

    /// Tells brokers that their knowledge is complete, once that holds: every gateway of the placement has reported
    /// its rooms, and every peer its knowledge of others', or the wait for it is over.
    pub(super) fn complete(&mut self, now: Micros) {
        let Some(started) = self.started else { return };
        let scope = self.scope();
        let loaded = |node: &muster_transport::PlacedNode| self.interest.is_loaded(node.node, scope);
        let mut gateways = self.placement.of(role::GATEWAY).chain(self.placement.of(role::EDGE));
        self.complete |= now >= started + SETTLE || gateways.all(loaded);
        if !self.complete || self.peers_missing.waits() {
            return;
        }
        for listener in self.listeners.values_mut().filter(|listener| !listener.complete) {
            listener.complete = true;
            if let Some(scope) = listener.scope.meet(scope) {
                self.links.record(now, listener.slot, &Record::Complete { scope });
            }
        }
    }
}
