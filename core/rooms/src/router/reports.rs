//! Reports of gateways: their lives, snapshots and memberships, and what is refused.

use super::{GatewayLinks, Listener, Router, RouterCounters};
use crate::interest::Taken;
use crate::limits::GATEWAY_LEASE;
use crate::role;
use crate::wire::record::{Membership, Record};
use muster_transport::Encode;
use muster_transport::{Code, Identity, Links, Micros, NodeState, Scope, NODES_MAX};
use std::collections::btree_map::Entry;

/// Sends a broker rooms that no gateway has confirmed: a snapshot that begins and does not end, so that it removes
/// nothing and completes nothing. Returns the offset of the last record.
pub(super) fn hint_to(
    now: Micros,
    links: &mut Links,
    slot: u32,
    (node, epoch, scope): (u32, u32, Scope),
    rooms: impl Iterator<Item = Membership>,
    counters: &mut RouterCounters,
) -> Option<u64> {
    let begin = Record::GatewayBegin {
        node,
        epoch,
        scope,
        version: 0,
    };
    let mut offset = links.record(now, slot, &begin);
    for membership in rooms {
        counters.memberships_sent += 1;
        let told = Record::GatewayMembership {
            node,
            epoch,
            membership,
        };
        offset = links.record(now, slot, &told).or(offset);
    }
    offset
}

impl Router {
    /// Takes a record. Returns whether it must be covered. `None`: this peer may not send it.
    pub(super) fn record(&mut self, now: Micros, slot: u32, peer: Identity, record: &Record<'_>) -> Option<bool> {
        let own = role::has_members(peer.role);
        let life = (peer.node, peer.epoch);
        match (peer.role, record) {
            (role::GATEWAY | role::EDGE, Record::SnapshotBegin { scope, version }) => {
                self.begin(now, peer.node, life, (*scope, *version));
                Some(false)
            }
            (role::GATEWAY | role::EDGE, Record::Membership(membership)) => {
                Some(self.membership(now, peer.node, life, membership))
            }
            (role::GATEWAY | role::EDGE, Record::SnapshotEnd { scope, version }) => {
                Some(self.end(now, peer.node, life, (*scope, *version), own))
            }
            (
                role::ROUTER,
                Record::GatewayBegin {
                    node,
                    epoch,
                    scope,
                    version,
                },
            ) => {
                self.begin(now, peer.node, (*node, *epoch), (*scope, *version));
                Some(false)
            }
            (
                role::ROUTER,
                Record::GatewayMembership {
                    node,
                    epoch,
                    membership,
                },
            ) => Some(self.membership(now, peer.node, (*node, *epoch), membership)),
            (
                role::ROUTER,
                Record::GatewayEnd {
                    node,
                    epoch,
                    scope,
                    version,
                },
            ) => Some(self.end(now, peer.node, (*node, *epoch), (*scope, *version), own)),
            (role::ROUTER, Record::GatewaySeen { node, up }) => {
                self.seen(now, *node, Some(peer.node), *up);
                Some(false)
            }
            (role::ROUTER, Record::BrokerTold { node, told }) => {
                if let Some(source) = self.sources.get_mut(&peer.node) {
                    if *told && source.brokers.len() < NODES_MAX {
                        source.brokers.insert(*node);
                    } else {
                        source.brokers.remove(node);
                    }
                    self.review_missing(now);
                }
                Some(false)
            }
            (role::ROUTER, Record::Complete { .. }) => {
                if let Some(source) = self.sources.get_mut(&peer.node) {
                    source.whole = true;
                    self.review_missing(now);
                }
                Some(false)
            }
            (role::ROUTER, Record::Covered { offset }) => {
                let last = self.links.table.get(slot).map_or(0, |link| link.conn.log.last());
                if let Some(listener) = self.listeners.get_mut(&peer.node) {
                    listener.covered = (*offset).min(last).max(listener.covered);
                }
                Some(false)
            }
            (role::BROKER, Record::Subscribe { scope }) => {
                self.listen(now, slot, peer, *scope);
                Some(false)
            }
            (role::BROKER, Record::Unsubscribe) => {
                self.unlisten(now, peer.node);
                Some(false)
            }
            _ => None,
        }
    }

    pub(super) fn begin(&mut self, now: Micros, source: u32, life: (u32, u32), snapshot: (Scope, u64)) {
        self.changes.clear();
        let before = self.interest.epoch_of(life.0);
        if !self.interest.begin(source, life, snapshot, &mut self.changes) {
            self.counters.dropped_stale_epoch += 1;
            return;
        }
        if before != Some(life.1) {
            self.hinted.remove(&life.0);
            if let Some(kept) = &mut self.kept {
                kept.find(life.0);
                life.1
                    .checked_sub(1)
                    .into_iter()
                    .for_each(|over| kept.end(life.0, over));
            }
        }
        // A gateway without any link expires like one whose link was lost.
        if let Entry::Vacant(place) = self.gateways.entry(life.0) {
            place.insert(GatewayLinks::away(now));
            self.review_away(now);
        }
    }

    pub(super) fn membership(&mut self, now: Micros, source: u32, life: (u32, u32), membership: &Membership) -> bool {
        self.counters.memberships_received += 1;
        let (node, epoch) = life;
        let full = membership.present && self.interest.len() >= self.rooms_max;
        if full && self.interest.wants(node, membership.room).is_none() {
            self.refuse(now, life, membership.room);
            return true;
        }
        self.untold.taken(life, membership.room);
        self.changes.clear();
        let taken = self.interest.apply(source, life, membership, &mut self.changes);
        self.note(epoch, membership.version);
        let (brokers, peers) = match taken {
            Taken::Stale => {
                self.counters.dropped_stale_epoch += 1;
                return true;
            }
            Taken::Open => return false,
            // A peer may know less than this router: it gets everything that the gateway itself reports here.
            Taken::Known | Taken::News => (taken == Taken::News, source == node),
        };
        let membership = *membership;
        let told = Record::GatewayMembership {
            node,
            epoch,
            membership,
        };
        let Router {
            links,
            listeners,
            counters,
            ..
        } = self;
        if brokers || peers {
            told.encode(|bytes| {
                for listener in listeners.values_mut() {
                    let wants = if listener.peer { peers } else { brokers };
                    if !wants || !listener.scope.has(membership.room) {
                        continue;
                    }
                    if let Some(offset) = links.log(now, listener.slot, bytes) {
                        listener.told = offset;
                        counters.memberships_sent += 1;
                    }
                }
            });
        }
        true
    }

    pub(super) fn end(
        &mut self,
        now: Micros,
        source: u32,
        life: (u32, u32),
        snapshot: (Scope, u64),
        own: bool,
    ) -> bool {
        self.changes.clear();
        let taken = self.interest.end(source, life, snapshot, &mut self.changes);
        if taken == Taken::Stale {
            self.counters.dropped_stale_epoch += 1;
            return true;
        }
        self.note(life.1, snapshot.1);
        self.hinted.remove(&life.0);
        self.counters.snapshots_received += 1;
        let (node, _) = life;
        // A broker knew as much as this router, unless this one had fallen behind: then only a full report reveals
        // rooms that are gone.
        let news = taken == Taken::News;
        let wants = |listener: &Listener| if listener.peer { own } else { news };
        let told: Vec<u32> = self
            .listeners
            .iter()
            .filter(|(_, listener)| wants(listener))
            .map(|(listener, _)| *listener)
            .collect();
        told.into_iter().for_each(|listener| self.tell(now, listener, node));
        self.complete(now);
        true
    }

    /// There is no space for a gateway's room; the gateway learns it before the room could count as covered, or with
    /// its next link.
    pub(super) fn refuse(&mut self, now: Micros, life: (u32, u32), room: u64) {
        self.counters.refused_full += 1;
        match self.links.to_life(life) {
            Some(slot) => self.tell_refused(now, slot, room),
            None => self.untold.note(life, room),
        }
    }

    pub(super) fn tell_refused(&mut self, now: Micros, slot: u32, room: u64) {
        let code = Code::Busy;
        self.links.record(now, slot, &Record::RoomRefused { room, code });
    }

    /// A source's records of one datagram are covered once all listeners have theirs up to here.
    pub(super) fn end_burst(&mut self, source: u32) {
        self.burst += 1;
        let burst = self.burst;
        if let Some(source) = self.sources.get_mut(&source) {
            source.uncovered.push_back((source.logged, burst));
        }
        for listener in self.listeners.values_mut() {
            let told = listener.told;
            if listener.bursts.back().map_or(told > 0, |(_, last)| told > *last) {
                listener.bursts.push_back((burst, told));
            }
        }
    }

    /// Finds missing nodes of the placement, and continues work that waited for others.
    pub(super) fn review_missing(&mut self, now: Micros) {
        let (me, scope) = (self.node.me.node, self.scope());
        let others = |role| {
            let nodes = self.placement.of(role).filter(|node| node.node != me);
            nodes.filter(|node| node.state != NodeState::Draining)
        };
        let peers = others(role::ROUTER).filter(|node| {
            let whole = self.sources.get(&node.node).is_some_and(|source| source.whole);
            !whole && self.placement.scope_of(node) == scope
        });
        let told = |node: u32| {
            self.listeners.contains_key(&node) || self.sources.values().any(|source| source.brokers.contains(&node))
        };
        let brokers =
            others(role::BROKER).filter(|node| self.placement.scope_of(node).meet(scope).is_some() && !told(node.node));
        let peers = peers.map(|node| node.node).collect();
        let brokers = brokers.map(|node| node.node).collect();
        self.peers_missing.review(now, &peers);
        self.brokers_missing.review(now, &brokers);
        self.review_away(now);
        self.cover(now);
        self.complete(now);
    }

    pub(super) fn expire_gateways(&mut self, now: Micros) {
        let expired = |seen: &GatewayLinks| seen.is_away() && now >= seen.away_since + GATEWAY_LEASE;
        let gone: Vec<u32> = self
            .gateways
            .iter()
            .filter(|(_, seen)| expired(seen))
            .map(|(node, _)| *node)
            .collect();
        for node in gone {
            self.gateways.remove(&node);
            self.away.remove(&node);
            self.untold.forget(node);
            let Some(epoch) = self.interest.epoch_of(node) else {
                continue;
            };
            self.counters.gateways_expired += 1;
            self.changes.clear();
            self.interest.gone(node, epoch, Scope::ALL, &mut self.changes);
            self.hinted.remove(&node);
            let named = self.started.is_none() || self.placement.node(node).is_some();
            match &mut self.kept {
                // It may be alive and linked to others: its silence here shows nothing about its rooms.
                Some(kept) if named => kept.lose(node, epoch),
                Some(kept) => kept.end(node, epoch),
                None => {}
            }
            let own = self.scope();
            for listener in self.listeners.values().filter(|listener| !listener.peer) {
                if let Some(scope) = listener.scope.meet(own) {
                    let gone = Record::GatewayGone { node, epoch, scope };
                    self.links.record(now, listener.slot, &gone);
                }
            }
        }
    }
}
