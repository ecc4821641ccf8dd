//! Reports of routers on the interest of gateways: from which routers they come, and when they are enough to serve.
//!
//! Owns the routers that are subscribed to, and gateways that are away or unnamed. The interest itself is in `crate::interest`.

use std::collections::{BTreeMap, BTreeSet};

use muster_transport::{Homes, LinkChange, Links, Micros, Move, Placement, Scope, NODES_MAX};

use crate::interest::Interest;
use crate::layers::RoomLayers;
use crate::limits::GATEWAY_LEASE;
use crate::missing::MISSING_WAIT;
use crate::role;

/// A router's reports since this broker subscribed to it.
pub(super) struct RouterReports {
    pub scope: Scope,
    pub gateways: BTreeSet<u32>,
    /// Gateways to which no router of the partition has a link, and since when this is known here.
    pub away: BTreeMap<u32, Micros>,
    pub complete: bool,
}

/// Whether the known interest may be outdated. While a broker was cut off, or stood still, others may have taken it
/// for dead and confirmed joins without it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    /// It is cut off.
    Alone,
    /// It was cut off and has a link again; if no router is reachable by then, it continues with its old knowledge.
    Until(Micros),
}

impl RouterReports {
    /// Some router of the partition has a link to a gateway, or none has.
    pub fn note_seen(&mut self, now: Micros, gateway: u32, up: bool) {
        if up || self.away.len() >= NODES_MAX {
            self.away.remove(&gateway);
        } else {
            self.away.entry(gateway).or_insert(now);
        }
    }
}

/// The reports of all routers.
pub(super) struct Reports {
    /// This broker's node.
    me: u32,
    homes: Homes,
    /// Routers that it has subscribed to.
    routers: BTreeMap<u32, RouterReports>,
    /// Shares of its rooms that some router has reported in full. A broker with all shares counts as running.
    complete: BTreeSet<Scope>,
    running: bool,
    doubt: Doubt,
    /// Gateways that a router of the part should know but no router names, and since when.
    unnamed: BTreeMap<(u32, Scope), Micros>,
    /// Gateways that an earlier placement named and the present one does not.
    dropped: BTreeSet<u32>,
}

impl Reports {
    pub fn new(me: u32) -> Self {
        Reports {
            me,
            homes: Homes::new(me, role::ROUTER),
            routers: BTreeMap::new(),
            complete: BTreeSet::new(),
            running: false,
            doubt: Doubt::None,
            unnamed: BTreeMap::new(),
            dropped: BTreeSet::new(),
        }
    }

    /// Whether all interest has been known since it started.
    pub fn are_running(&self) -> bool {
        self.running
    }

    /// Whether the interest of gateways is known now: messages are numbered only then.
    pub fn are_known(&self) -> bool {
        self.running && self.doubt == Doubt::None
    }

    /// The share of its rooms that a router's partition has, if any.
    pub fn part(&self, placement: &Placement, router: u16) -> Option<Scope> {
        placement.part(self.me, role::ROUTER, router)
    }

    /// Whether the reports of its present routers are complete.
    pub fn are_told(&self, placement: &Placement) -> bool {
        let told = |partition: u16, part: Scope| {
            let mut homes = self.homes.of(partition).filter_map(|router| self.routers.get(&router));
            homes.any(|told| told.complete && told.scope == part)
        };
        let mut partitions = 0..placement.routers().all();
        partitions.all(|partition| self.part(placement, partition).is_none_or(|part| told(partition, part)))
    }

    /// Whether the reports cover every share of this broker's rooms.
    fn are_complete(&self, placement: &Placement) -> bool {
        let mut parts = (0..placement.routers().all()).filter_map(|router| self.part(placement, router));
        parts.all(|part| self.complete.iter().any(|scope| part.within(*scope)))
    }

    /// A router has reported this share in full. Returns a router that is not needed any more.
    pub fn completed(&mut self, now: Micros, placement: &Placement, router: u32, scope: Scope) -> Option<u32> {
        self.complete.insert(scope);
        self.running |= self.are_complete(placement);
        self.review_doubt(now, placement);
        let settled = self.routers.get(&router).is_some_and(|told| told.complete);
        settled.then(|| self.homes.settled(router)).flatten()
    }

    /// A link came or went: without any, others may take this broker for dead.
    pub fn link_changed(&mut self, now: Micros, change: &LinkChange, links: &Links) {
        self.doubt = match (change, self.doubt) {
            (LinkChange::Up { .. }, Doubt::Alone) => Doubt::Until(now + MISSING_WAIT),
            (LinkChange::Down { .. }, _) if links.proven().next().is_none() => Doubt::Alone,
            (_, doubt) => doubt,
        };
    }

    /// Ends the doubt once its knowledge is confirmed, or cannot improve.
    pub fn review_doubt(&mut self, now: Micros, placement: &Placement) {
        let over = matches!(self.doubt, Doubt::Until(at) if at <= now);
        if over || self.are_told(placement) {
            self.doubt = Doubt::None;
        }
    }

    /// When the doubt ends.
    pub fn doubts_until(&self) -> Option<Micros> {
        match self.doubt {
            Doubt::Until(at) => Some(at),
            Doubt::None | Doubt::Alone => None,
        }
    }

    /// When [`Reports::review`] is due.
    pub fn review_at(&self) -> Option<Micros> {
        self.homes.due()
    }

    /// The routers that it needs from now on, and those that it does not.
    pub fn review(&mut self, now: Micros, placement: &Placement, links: &Links) -> Vec<Move> {
        let me = self.me;
        let needed = |router| placement.part(me, role::ROUTER, router).is_some();
        let since = |node| links.since_as(node, role::ROUTER);
        self.homes.review(now, placement, needed, since)
    }

    /// Routers of whose partition this broker now needs another share.
    pub fn outdated(&self, placement: &Placement) -> Vec<(u16, u32)> {
        let other = self.routers.iter().filter_map(|(router, told)| {
            let partition = placement.node(*router)?.partition;
            let other = self.part(placement, partition).is_some_and(|part| part != told.scope);
            other.then_some((partition, *router))
        });
        other.collect()
    }

    /// A router is subscribed to: what it reported before counts no more.
    pub fn begin(&mut self, router: u32, scope: Scope) {
        let told = RouterReports {
            scope,
            gateways: BTreeSet::new(),
            away: BTreeMap::new(),
            complete: false,
        };
        self.routers.insert(router, told);
    }

    /// The reports of a router that is subscribed to.
    pub fn of(&mut self, router: u32) -> Option<&mut RouterReports> {
        self.routers.get_mut(&router)
    }

    pub fn forget(&mut self, router: u32) {
        self.routers.remove(&router);
    }

    /// The link to a router is lost.
    pub fn router_lost(&mut self, router: u32) {
        self.forget(router);
        self.homes.lost(router);
    }

    /// Since when a gateway has had no link to any router that reports a room, or 0: it has left the placement.
    pub fn away_since(&self, gateway: u32, room: u64) -> Option<Micros> {
        match self.dropped.contains(&gateway) {
            true => Some(0),
            false => {
                let telling = self.routers.values().filter(|told| told.scope.has(room));
                let away: Option<Vec<Micros>> = telling.map(|told| told.away.get(&gateway).copied()).collect();
                away?.into_iter().max()
            }
        }
    }

    /// A placement replaces another one: notes which gateways it names no longer, and returns them. Forgets those that it names
    /// again, and those without interest.
    pub fn placed(&mut self, before: &Placement, after: &Placement, interest: &Interest) -> Vec<u32> {
        let named = |placement: &Placement| -> BTreeSet<u32> {
            let gateways = placement.of(role::GATEWAY).chain(placement.of(role::EDGE));
            gateways.map(|node| node.node).collect()
        };
        let (before, after) = (named(before), named(after));
        self.dropped
            .retain(|gateway| !after.contains(gateway) && interest.epoch_of(*gateway).is_some());
        let dropped: Vec<u32> = before.difference(&after).copied().collect();
        self.dropped.extend(&dropped);
        dropped
    }

    /// A router has waited long enough for a gateway.
    pub fn note_gone(&mut self, now: Micros, gateway: u32, scope: Scope) {
        self.unnamed.insert((gateway, scope), now.saturating_sub(GATEWAY_LEASE));
    }

    /// Gateways that no router of a share has named for so long that their interest ends, with their epochs, unless they live. A
    /// router that started without a link to them cannot report the end of interest that it never knew.
    pub fn take_unnamed(
        &mut self,
        now: Micros,
        interest: &Interest,
        lives: impl Fn(u32, u32) -> bool,
    ) -> Vec<(u32, u32, Scope)> {
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
        let mut away = BTreeMap::new();
        for (node, epoch) in interest.gateways() {
            let unnamed = asked.iter().filter(|scope| !named(node, **scope));
            away.extend(unnamed.map(|scope| ((node, *scope), (epoch, lives(node, epoch)))));
        }
        self.unnamed.retain(|of, _| away.contains_key(of));
        let mut taken = Vec::new();
        for ((node, scope), (epoch, lives)) in away {
            let since = *self.unnamed.entry((node, scope)).or_insert(now);
            if !lives && now >= since + GATEWAY_LEASE {
                self.unnamed.remove(&(node, scope));
                taken.push((node, epoch, scope));
            }
        }
        taken
    }
}
