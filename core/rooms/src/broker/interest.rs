//! Reports of routers: which gateways want which rooms, and when a broker knows enough to serve.

use super::{Broker, CHANGES_KEPT};
use crate::command::AWAY_GRACE;
use crate::interest::Change;
use crate::layers::RoomLayers;
use crate::limits::GATEWAY_LEASE;
use crate::role;
use crate::wire::record::Record;
use muster_transport::{Code, Micros, Move, Scope, NODES_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// A router's reports since this broker subscribed to it.
pub(super) struct RouterReports {
    pub(super) scope: Scope,
    pub(super) gateways: BTreeSet<u32>,
    /// Gateways to which no router of the partition has a link, and since when this is known here.
    pub(super) away: BTreeMap<u32, Micros>,
    pub(super) complete: bool,
}

/// Whether the known interest may be outdated. While a broker was cut off, or stood still, others may have taken it
/// for dead and confirmed joins without it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    None,
    /// It is cut off.
    Alone,
    /// It was cut off and has a link again; if no router is reachable by then, it continues with its old knowledge.
    Until(Micros),
}

impl Broker {
    /// The time from which a gateway counts as having no members of a room. It has no link here, nor to any router
    /// that reports the room, or has left the placement; and its members had time to move to another gateway.
    pub(super) fn gone_at(&self, gateway: u32, room: u64) -> Option<Micros> {
        if self.links.to(gateway).is_some() {
            return None;
        }
        let since = match self.dropped.contains(&gateway) {
            true => 0,
            false => {
                let telling = self.routers.values().filter(|told| told.scope.has(room));
                let away: Option<Vec<Micros>> = telling.map(|told| told.away.get(&gateway).copied()).collect();
                away?.into_iter().max()?
            }
        };
        Some(since.max(self.links.lost_at(gateway).unwrap_or(0)) + AWAY_GRACE)
    }

    /// The rooms of this broker's partition.
    pub(super) fn scope(&self) -> Scope {
        self.placement.scope(self.node.me.node)
    }

    /// The share of its rooms that a router's partition has, if any.
    pub(super) fn part(&self, router: u16) -> Option<Scope> {
        self.placement.part(self.node.me.node, role::ROUTER, router)
    }

    /// Subscribes again to routers of whose partition this broker now needs another share.
    pub(super) fn resubscribe(&mut self, now: Micros) {
        let partition = |router: u32| self.placement.node(router).map(|node| node.partition);
        let asked = self.routers.iter().filter_map(|(router, told)| {
            let partition = partition(*router)?;
            let other = self.part(partition).is_some_and(|part| part != told.scope);
            other.then_some((partition, *router))
        });
        for (partition, router) in asked.collect::<Vec<_>>() {
            self.subscribe(now, partition, router);
        }
    }

    /// Whether the reports of its present routers are complete.
    pub(super) fn is_told(&self) -> bool {
        let told = |partition: u16, part: Scope| {
            let mut homes = self.homes.of(partition).filter_map(|router| self.routers.get(&router));
            homes.any(|told| told.complete && told.scope == part)
        };
        let mut partitions = 0..self.placement.routers().all();
        partitions.all(|partition| self.part(partition).is_none_or(|part| told(partition, part)))
    }

    /// Whether it knows the interest of gateways: messages are numbered only then.
    pub(super) fn knows(&self) -> bool {
        self.running && self.doubt == Doubt::None
    }

    /// Ends the doubt once its knowledge is confirmed, or cannot improve.
    pub(super) fn review_doubt(&mut self, now: Micros) {
        let over = matches!(self.doubt, Doubt::Until(at) if at <= now);
        if over || self.is_told() {
            self.doubt = Doubt::None;
        }
    }

    /// Subscribes to the routers that it needs from now on.
    pub(super) fn review_homes(&mut self, now: Micros) {
        let (links, placement) = (&self.links, &self.placement);
        let me = self.node.me.node;
        let needed = |router| placement.part(me, role::ROUTER, router).is_some();
        let since = |node| links.since_as(node, role::ROUTER);
        let moves = self.homes.review(now, placement, needed, since);
        for step in moves {
            match step {
                Move::Begin { partition, node } => self.subscribe(now, partition, node),
                Move::End { node } => self.unsubscribe(now, node),
            }
        }
    }

    pub(super) fn subscribe(&mut self, now: Micros, partition: u16, router: u32) {
        let (Some(scope), Some(slot)) = (self.part(partition), self.links.to(router)) else {
            return;
        };
        self.links.record(now, slot, &Record::Subscribe { scope });
        let told = RouterReports {
            scope,
            gateways: BTreeSet::new(),
            away: BTreeMap::new(),
            complete: false,
        };
        self.routers.insert(router, told);
    }

    pub(super) fn unsubscribe(&mut self, now: Micros, router: u32) {
        self.routers.remove(&router);
        self.interest.leave(router);
        if let Some(slot) = self.links.to(router) {
            self.links.record(now, slot, &Record::Unsubscribe);
        }
    }

    /// Takes a router's record. `false`: only routers may send it.
    pub(super) fn membership(&mut self, now: Micros, router: u32, record: &Record<'_>) -> bool {
        let mut changes = std::mem::take(&mut self.changes);
        let told = self.routers.get_mut(&router);
        match (told, record) {
            (
                Some(told),
                Record::GatewayBegin {
                    node,
                    epoch,
                    scope,
                    version,
                },
            ) => {
                let (life, snapshot) = ((*node, *epoch), (*scope, *version));
                if self.interest.begin(router, life, snapshot, &mut changes) {
                    told.gateways.insert(*node);
                }
            }
            (
                Some(_),
                Record::GatewayMembership {
                    node,
                    epoch,
                    membership,
                },
            ) => {
                let life = (*node, *epoch);
                let lives = self.interest.epoch_of(*node) == Some(*epoch);
                let full = membership.present && self.interest.len() >= self.rooms_max;
                if full && lives && self.interest.wants(*node, membership.room).is_none() {
                    self.refuse_room(now, life, membership.room, Code::Busy);
                    if self.links.to_life(life).is_none() {
                        self.untold.note(life, membership.room);
                    }
                } else {
                    self.untold.taken(life, membership.room);
                    self.interest.apply(router, life, membership, &mut changes);
                }
            }
            (
                Some(_),
                Record::GatewayEnd {
                    node,
                    epoch,
                    scope,
                    version,
                },
            ) => {
                let (life, snapshot) = ((*node, *epoch), (*scope, *version));
                self.interest.end(router, life, snapshot, &mut changes);
            }
            (Some(told), Record::GatewayGone { node, scope, .. }) => {
                // The router has waited long enough.
                told.gateways.remove(node);
                told.away.remove(node);
                self.unnamed.insert((*node, *scope), now.saturating_sub(GATEWAY_LEASE));
                self.forget_unnamed(now);
            }
            (Some(told), Record::GatewaySeen { node, up }) => {
                if *up || told.away.len() >= NODES_MAX {
                    told.away.remove(node);
                } else {
                    told.away.entry(*node).or_insert(now);
                }
                self.commands_reached(now, *node);
            }
            (Some(told), Record::Complete { scope }) => {
                // The earlier subscription may have covered another share.
                told.complete |= told.scope.within(*scope);
                let settled = told.complete;
                self.complete.insert(*scope);
                self.running |= self.is_complete();
                self.review_doubt(now);
                if let Some(old) = settled.then(|| self.homes.settled(router)).flatten() {
                    self.unsubscribe(now, old);
                }
            }
            // A report sent before the router learned that it is no longer subscribed to.
            (
                None,
                Record::GatewayBegin { .. }
                | Record::GatewayMembership { .. }
                | Record::GatewayEnd { .. }
                | Record::GatewayGone { .. }
                | Record::GatewaySeen { .. }
                | Record::Complete { .. },
            ) => {}
            _ => return false,
        }
        for change in changes.drain(..) {
            self.interest_changed(now, change);
        }
        changes.shrink_to(CHANGES_KEPT);
        self.changes = changes;
        true
    }

    /// Whether the reports cover every share of this broker's rooms.
    pub(super) fn is_complete(&self) -> bool {
        let mut parts = (0..self.placement.routers().all()).filter_map(|router| self.part(router));
        parts.all(|part| self.complete.iter().any(|scope| part.within(*scope)))
    }

    pub(super) fn interest_changed(&mut self, now: Micros, change: Change) {
        self.command_wanted(now, change.gateway, change.room, change.present);
        if !change.present {
            let at = self.by_id.get(&change.room).copied();
            if let Some((at, room)) = at.and_then(|at| Some((at, self.rooms[at as usize].as_deref_mut()?))) {
                room.used_at = now;
                self.gateway_leaves(now, at, change.gateway);
            }
            return;
        }
        let at = if self.owns(change.room) {
            match self.open_room(now, change.room, change.check) {
                Ok(at) => at,
                Err(code) => {
                    let epoch = self.interest.epoch_of(change.gateway).unwrap_or(0);
                    return self.refuse_room(now, (change.gateway, epoch), change.room, code);
                }
            }
        } else {
            // Another broker's room: its gateways learn its state here.
            match self.by_id.get(&change.room) {
                Some(at) => *at,
                None => return,
            }
        };
        let life = self.life_of(change.gateway);
        let Some(room) = self.rooms[at as usize].as_deref_mut() else {
            return;
        };
        room.add_gateway(now, change.gateway, life);
        // The gateway learns the stream at once, before the first message.
        self.head_due(at, change.gateway);
    }

    /// Tells a gateway that its interest in a room is refused.
    pub(super) fn refuse_room(&mut self, now: Micros, life: (u32, u32), room: u64, code: Code) {
        match code {
            Code::NameCollision => self.counters.refused_name_collision += 1,
            _ => self.counters.refused_full += 1,
        }
        if let Some(slot) = self.links.to_life(life) {
            self.links.record(now, slot, &Record::RoomRefused { room, code });
        }
    }

    /// Forgets gateways that have no link here or to a router: a router that started without a link to them cannot
    /// report the end of interest that it never knew.
    pub(super) fn forget_unnamed(&mut self, now: Micros) {
        let asked: BTreeSet<Scope> = self
            .routers
            .values()
            .filter(|told| told.complete)
            .map(|told| told.scope)
            .collect();
        let named = |node, scope| {
            let mut telling = self.routers.values().filter(|told| Scope::within(scope, told.scope));
            telling.any(|told| told.gateways.contains(&node))
        };
        let lives = |node, epoch| {
            let peer = self.gateways.get(&node);
            peer.is_some_and(|peer| peer.epoch == epoch)
        };
        let mut away = BTreeMap::new();
        for (node, epoch) in self.interest.gateways() {
            let unnamed = asked.iter().filter(|scope| !named(node, **scope));
            away.extend(unnamed.map(|scope| ((node, *scope), (epoch, lives(node, epoch)))));
        }
        self.unnamed.retain(|of, _| away.contains_key(of));
        let mut changes = Vec::new();
        for ((node, scope), (epoch, lives)) in away {
            let since = *self.unnamed.entry((node, scope)).or_insert(now);
            if !lives && now >= since + GATEWAY_LEASE {
                self.unnamed.remove(&(node, scope));
                self.interest.gone(node, epoch, scope, &mut changes);
                self.untold.forget(node);
                self.counters.gateways_expired += 1;
            }
        }
        for change in changes {
            self.interest_changed(now, change);
        }
    }
}
