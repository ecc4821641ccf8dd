//! Changes of the interest of gateways in rooms, as routers report them. `reports` knows which routers report, and whether that is
//! enough to serve.

use super::{Broker, GatewayPeer, CHANGES_KEPT};
use crate::command::AWAY_GRACE;
use crate::interest::Change;
use crate::wire::record::Record;
use muster_transport::{Code, Micros, Move, Scope};

impl Broker {
    /// The time from which a gateway counts as having no members of a room. It has no link here, nor to any router
    /// that reports the room, or has left the placement; and its members had time to move to another gateway.
    pub(super) fn gone_at(&self, gateway: u32, room: u64) -> Option<Micros> {
        if self.links.to(gateway).is_some() {
            return None;
        }
        let since = self.reports.away_since(gateway, room)?;
        Some(since.max(self.links.lost_at(gateway).unwrap_or(0)) + AWAY_GRACE)
    }

    /// The rooms of this broker's partition.
    pub(super) fn scope(&self) -> Scope {
        self.placement.scope(self.node.me.node)
    }

    /// Subscribes again to routers of whose partition this broker now needs another share.
    pub(super) fn resubscribe(&mut self, now: Micros) {
        for (partition, router) in self.reports.outdated(&self.placement) {
            self.subscribe(now, partition, router);
        }
    }

    /// Subscribes to the routers that it needs from now on.
    pub(super) fn review_homes(&mut self, now: Micros) {
        for step in self.reports.review(now, &self.placement, &self.links) {
            match step {
                Move::Begin { partition, node } => self.subscribe(now, partition, node),
                Move::End { node } => self.unsubscribe(now, node),
            }
        }
    }

    fn subscribe(&mut self, now: Micros, partition: u16, router: u32) {
        let scope = self.reports.part(&self.placement, partition);
        if let Some((scope, slot)) = scope.zip(self.links.to(router)) {
            self.links.record(now, slot, &Record::Subscribe { scope });
            self.reports.begin(router, scope);
        }
    }

    fn unsubscribe(&mut self, now: Micros, router: u32) {
        self.reports.forget(router);
        self.interest.leave(router);
        if let Some(slot) = self.links.to(router) {
            self.links.record(now, slot, &Record::Unsubscribe);
        }
    }

    /// Takes a router's record. `false`: only routers may send it.
    pub(super) fn membership(&mut self, now: Micros, router: u32, record: &Record<'_>) -> bool {
        let mut changes = std::mem::take(&mut self.changes);
        let told = self.reports.of(router);
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
                let full = membership.present && self.interest.len() >= self.rooms.max();
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
                self.reports.note_gone(now, *node, *scope);
                self.forget_unnamed(now);
            }
            (Some(told), Record::GatewaySeen { node, up }) => {
                told.note_seen(now, *node, *up);
                self.commands_reached(now, *node);
            }
            (Some(told), Record::Complete { scope }) => {
                // The earlier subscription may have covered another share.
                told.complete |= told.scope.within(*scope);
                if let Some(old) = self.reports.completed(now, &self.placement, router, *scope) {
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

    pub(super) fn interest_changed(&mut self, now: Micros, change: Change) {
        self.command_wanted(now, change.gateway, change.room, change.present);
        if !change.present {
            if let Some((at, room)) = self.rooms.named_mut(change.room) {
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
            match self.rooms.find(change.room) {
                Some(at) => at,
                None => return,
            }
        };
        let life = self.life_of(change.gateway);
        let Some(room) = self.rooms.get_mut(at) else {
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
        let gateways = &self.gateways;
        let lives = |node, epoch| {
            let peer = gateways.get(&node);
            peer.is_some_and(|peer: &GatewayPeer| peer.epoch == epoch)
        };
        let mut changes = Vec::new();
        for (node, epoch, scope) in self.reports.take_unnamed(now, &self.interest, lives) {
            self.interest.gone(node, epoch, scope, &mut changes);
            self.untold.forget(node);
            self.counters.gateways_expired += 1;
        }
        for change in changes {
            self.interest_changed(now, change);
        }
    }
}
