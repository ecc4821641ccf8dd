//! The router: takes its partition of each gateway's membership and forwards it to the interested brokers, and to its
//! peers.
//!
//! The replicas of a partition are peers without a leader: a router forwards a gateway's reports to its peers and
//! brokers, and a peer's reports only to its own brokers, so nothing circulates. Logs are reliable and in order per
//! link. This role maps the offsets of received records to those of sent ones, so a gateway learns when every broker
//! has its report. Knows no message and no member.

mod listeners;
mod reports;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::wire::kinds;

use crate::layers::room_placement;

use crate::role;

use muster_transport::{
    Arrival, Control, Door, DoorKey, Entropy, Frames, HasLinks, Identity, Inbox, KeyedState, LinkChange, Links,
    Machine, Micros, Node, NodeConfig, NodeState, Outbox, Placement, Records, ResetSecret, Scope, HEADER, NODES_MAX,
};

use crate::changes::{ChangeQueue, Changed};
use crate::interest::{Change, Interest};
use crate::limits::{log_bytes, GATEWAY_LEASE, LINK_LOG_BYTES};
use crate::missing::{Missing, LOST_WAIT, MISSING_WAIT};
use crate::settings::RouterSettings;
use crate::untold::Untold;
use crate::wire::record::{Membership, Record};
use reports::hint_to;

/// How long a new router waits for gateways that the placement names before it reports that its knowledge is
/// complete.
pub const SETTLE: Micros = 1_000_000;

/// A gateway and its epoch.
type Life = (u32, u32);

/// The configuration of a router.
pub struct RouterConfig {
    pub node: NodeConfig,
    pub settings: RouterSettings,
}

muster_transport::counters! {
    /// A router's events.
    pub struct RouterCounters {
        /// Membership changes taken from gateways and peers.
        memberships_received,
        /// Membership changes sent to brokers and peers.
        memberships_sent,
        /// Snapshots of gateways taken whole.
        snapshots_received,
        /// Records dropped: from a gateway's earlier life, or without a preceding snapshot.
        dropped_stale_epoch,
        /// Gateways forgotten because they stayed away.
        gateways_expired,
        /// Membership changes refused: too many rooms.
        refused_full,
    }
}

/// A source of membership reports: a gateway reports its own, a peer those of gateways.
struct Source {
    slot: u32,
    /// Offsets of its log that some broker has not confirmed yet, each with the burst that forwarded it.
    uncovered: VecDeque<(u64, u64)>,
    logged: u64,
    covered: u64,
    told: u64,
    /// For a peer: whether it has reported its knowledge from before the link, and the brokers that it serves.
    whole: bool,
    brokers: BTreeSet<u32>,
}

/// A receiver of reports: a subscribed broker, or a peer.
struct Listener {
    slot: u32,
    scope: Scope,
    peer: bool,
    /// Whether it was told that its knowledge is complete.
    complete: bool,
    /// The offset of its last record; and for a peer, what it confirmed for all its brokers.
    told: u64,
    covered: u64,
    /// Bursts that it has not confirmed, each with the offset of its last record here.
    bursts: VecDeque<(u64, u64)>,
}

/// The routers with a link to a gateway: this one, and peers.
struct GatewayLinks {
    here: bool,
    peers: BTreeSet<u32>,
    /// Since when no router has a link.
    away_since: Micros,
}

/// A router: it knows which gateways want the rooms of its partition, and informs brokers.
///
/// Give it the nodes with [`Router::set_placement`], and run the verbs of [`Machine`] in every turn. With a database,
/// pass remembered memberships to [`Router::hint`], and take changes with [`Router::take_kept`] after
/// [`Router::keep`]. [`Router::not_ready`] returns why it does not serve yet.
pub struct Router {
    node: Node,
    links: Links,
    interest: Interest,
    gateways: BTreeMap<u32, GatewayLinks>,
    /// Gateways that have no link to any router of this partition, as reported to brokers.
    away: BTreeSet<u32>,
    /// Gateways known by hints, fully or partly.
    hinted: BTreeSet<u32>,
    /// Changes for a database, if there is one.
    kept: Option<ChangeQueue>,
    sources: BTreeMap<u32, Source>,
    listeners: BTreeMap<u32, Listener>,
    /// Number of datagrams so far with records to forward.
    burst: u64,
    placement: Placement,
    started: Option<Micros>,
    complete: bool,
    /// Peers that have not reported all that they know. While one is waited for, no broker learns that its knowledge
    /// is complete.
    peers_missing: Missing,
    /// Brokers that no router serves: while one is waited for, nothing counts as covered.
    brokers_missing: Missing,
    /// Maximum number of memberships over all gateways.
    rooms_max: usize,
    untold: Untold,
    records: Records,
    changes: Vec<Change>,
    pub counters: RouterCounters,
    events: VecDeque<LinkChange>,
}

impl Router {
    pub fn new(config: RouterConfig, seed: u64, mut entropy: Box<dyn Entropy>) -> Self {
        let memberships_max = config.settings.memberships_max;
        let config = config.node;
        let door = Door::new(
            DoorKey::Cluster(Box::new(config.cluster.clone())),
            ResetSecret::new(config.reset_secret),
            entropy.as_mut(),
        );
        let mut node = Node::new(config.me, config.payload, seed, entropy);
        let hash = KeyedState::new(node.secret_u64(), node.secret_u64());
        // A peer gets everything at once.
        let links = Links::new(door, config.cluster, LINK_LOG_BYTES.max(log_bytes(memberships_max)));
        Router {
            links,
            interest: Interest::new(hash),
            gateways: BTreeMap::new(),
            away: BTreeSet::new(),
            hinted: BTreeSet::new(),
            kept: None,
            sources: BTreeMap::new(),
            listeners: BTreeMap::new(),
            burst: 0,
            placement: room_placement(0, Vec::new(), 1, 1),
            started: None,
            complete: false,
            peers_missing: Missing::default(),
            brokers_missing: Missing::default(),
            rooms_max: memberships_max,
            untold: Untold::default(),
            records: Records::default(),
            changes: Vec::new(),
            counters: RouterCounters::default(),
            events: VecDeque::new(),
            node,
        }
    }

    /// Takes the control plane's placement; an older one changes nothing.
    pub fn set_placement(&mut self, now: Micros, placement: Placement) {
        if placement.epoch() < self.placement.epoch() {
            return;
        }
        self.node.stamp.placement = placement.epoch();
        self.links.place(placement.numbers());
        self.started.get_or_insert(now);
        let me = self.node.me.node;
        let scope = placement.scope(me);
        let mut misled = Vec::new();
        if scope != self.scope() {
            self.interest.keep(scope);
            if let Some(kept) = &mut self.kept {
                kept.keep(scope);
            }
            // A listener takes reports as complete for its old scope until it learns of the smaller one.
            let wider = self
                .listeners
                .iter()
                .filter(|(_, listener)| !listener.scope.within(scope));
            misled.extend(wider.map(|(node, _)| *node));
            let peers = self.listeners.values_mut().filter(|listener| listener.peer);
            peers.for_each(|listener| listener.scope = scope);
        }
        // Of two peers the one with the lower number dials.
        let peers = placement.of(role::ROUTER).filter(|node| node.node > me);
        let peers = peers.filter(|node| placement.scope_of(node) == scope);
        self.links
            .dial(now, peers.map(|node| (node.node, node.role, node.addr)));
        self.placement = placement;
        if let Some(kept) = &mut self.kept {
            kept.removed(|node| self.placement.node(node).is_none());
        }
        misled.into_iter().for_each(|listener| self.tell_all(now, listener));
        self.review_missing(now);
    }

    /// Why the router cannot serve yet, if it cannot.
    pub fn not_ready(&self) -> Option<&'static str> {
        match (self.started, self.complete) {
            (None, _) => Some("there is no placement yet"),
            (_, false) => Some("the rooms of gateways are not known yet"),
            _ => None,
        }
    }

    /// Whether the router has done all that the placement demands.
    pub fn settled(&self) -> bool {
        let (me, scope) = (self.node.me.node, self.scope());
        let mut others = self.placement.of(role::ROUTER).filter(|node| node.node != me);
        let apart = |node: &muster_transport::PlacedNode| {
            node.state == NodeState::Running
                && self.placement.scope_of(node) == scope
                && self.links.to(node.node).is_none()
        };
        self.not_ready().is_none() && !others.any(apart)
    }

    pub fn interest(&self) -> &Interest {
        &self.interest
    }

    /// Maximum number of memberships that the router keeps.
    pub fn interest_max(&self) -> usize {
        self.rooms_max
    }

    /// Keeps changes for `take_kept` from now on, at most this many rooms at a time.
    pub fn keep(&mut self, max: usize) {
        let hash = KeyedState::new(self.node.secret_u64(), self.node.secret_u64());
        self.kept = Some(ChangeQueue::new(max, hash));
    }

    /// How many changes wait to be taken, and how many did not fit.
    pub fn kept(&self) -> (usize, u64) {
        self.kept.as_ref().map_or((0, 0), |kept| (kept.len(), kept.dropped))
    }

    /// Takes ended lives, which must be forgotten first, and the present state of at most `limit` changed rooms, each
    /// with the gateway's life.
    pub fn take_kept(&mut self, limit: usize) -> (Vec<Life>, Vec<(Life, Membership)>) {
        let Router { kept, interest, .. } = self;
        let Some(kept) = kept else {
            return (Vec::new(), Vec::new());
        };
        let mut taken = Vec::new();
        for _ in 0..limit {
            let Some(Changed { life, room, version }) = kept.take() else {
                break;
            };
            // A life that is over without a successor is reported by its end.
            if interest.epoch_of(life.0) == Some(life.1) {
                let known = interest.known(life.0, room);
                let left = Membership {
                    room,
                    check: 0,
                    version,
                    present: false,
                };
                taken.push((life, known.unwrap_or(left)));
            }
        }
        (kept.take_ended(), taken)
    }

    /// Takes a membership that a database remembers as a hint: it holds until the gateway has reported its rooms, or
    /// was away as long as any other gateway may be. Returns how many hold now.
    pub fn hint(&mut self, now: Micros, life: (u32, u32), memberships: &[Membership]) -> usize {
        let (own, (node, epoch)) = (self.scope(), life);
        self.changes.clear();
        let mut taken = Vec::new();
        for membership in memberships.iter().filter(|membership| own.has(membership.room)) {
            let place = self.interest.len() < self.rooms_max;
            if place && self.interest.hint(life, membership, &mut self.changes) {
                taken.push(membership);
            }
        }
        if taken.is_empty() {
            return 0;
        }
        self.gateways.entry(node).or_insert_with(|| GatewayLinks::away(now));
        self.hinted.insert(node);
        let Router {
            links,
            listeners,
            counters,
            ..
        } = self;
        for listener in listeners.values_mut().filter(|listener| !listener.peer) {
            let Some(scope) = own.meet(listener.scope) else {
                continue;
            };
            let rooms = taken.iter().filter(|membership| scope.has(membership.room));
            let offset = hint_to(
                now,
                links,
                listener.slot,
                (node, epoch, scope),
                rooms.map(|each| **each),
                counters,
            );
            listener.told = offset.unwrap_or(listener.told);
        }
        taken.len()
    }

    /// The rooms of this router's partition.
    fn scope(&self) -> Scope {
        self.placement.scope(self.node.me.node)
    }

    fn take_link(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let received = self.links.receive(now, &mut self.node, arrival, datagram);
        self.link_changes(now);
        let Some((slot, len)) = received else { return };
        let Some(peer) = self.links.table.get(slot).map(|link| link.data.peer) else {
            return;
        };
        let (mut elicits, mut acknowledged) = (false, false);
        let mut records = std::mem::take(&mut self.records);
        for frame in Frames::new(&datagram[HEADER..HEADER + len], kinds::ALL) {
            let Ok(frame) = frame else {
                self.links.counters.link_dropped_frame += 1;
                break;
            };
            elicits |= kinds::ALL.elicits(frame.kind);
            match self.links.control(now, slot, &frame, &mut records) {
                Control::Other => self.links.counters.link_dropped_frame += 1,
                Control::Acknowledged(_) => acknowledged = true,
                Control::Closed(_) => break,
                _ => {}
            }
        }
        let mut heard = false;
        for bytes in records.iter() {
            if let Some(source) = self.sources.get_mut(&peer.node) {
                // Every record of its log counts, even a malformed one, so that offsets agree.
                source.logged += 1;
            }
            let Some(record) = Record::read(bytes) else {
                self.links.counters.link_dropped_frame += 1;
                continue;
            };
            if self.links.link_record(slot, &record) {
                continue;
            }
            match self.record(now, slot, peer, &record) {
                Some(passed_on) => heard |= passed_on,
                None => self.links.counters.link_dropped_frame += 1,
            }
        }
        if heard {
            self.end_burst(peer.node);
        }
        self.links.after(now, slot, elicits);
        self.link_changes(now);
        if acknowledged || !records.is_empty() {
            self.cover(now);
        }
        records.clear();
        self.records = records;
    }

    /// Reports to brokers which gateways have no link to any router of this partition; unknown while a peer has not
    /// reported.
    fn review_away(&mut self, now: Micros) {
        let (me, scope) = (self.node.me.node, self.scope());
        let mut peers = self.placement.of(role::ROUTER).filter(|node| node.node != me);
        let hears = |node: &muster_transport::PlacedNode| {
            let whole = self.sources.get(&node.node).is_some_and(|source| source.whole);
            whole || self.placement.scope_of(node) != scope
        };
        let all = peers.all(hears);
        let away = self.gateways.iter().filter(|(_, seen)| all && seen.is_away());
        let away: BTreeSet<u32> = away.map(|(node, _)| *node).collect();
        let before = std::mem::replace(&mut self.away, away);
        for node in before.symmetric_difference(&self.away) {
            let (node, up) = (*node, before.contains(node));
            for listener in self.listeners.values().filter(|listener| !listener.peer) {
                self.links.record(now, listener.slot, &Record::GatewaySeen { node, up });
            }
        }
    }

    fn link_changes(&mut self, now: Micros) {
        while let Some(change) = self.links.change() {
            match change {
                LinkChange::Up { slot, peer } => self.link_up(now, slot, peer),
                LinkChange::Down { slot, peer, .. } => self.link_down(now, slot, peer),
                LinkChange::Refused { .. }
                | LinkChange::Mistaken { .. }
                | LinkChange::Unlisted { .. }
                | LinkChange::Differs { .. }
                | LinkChange::Stranger { .. } => {}
            }
            self.events.push_back(change);
        }
    }

    fn link_up(&mut self, now: Micros, slot: u32, peer: Identity) {
        if !(role::has_members(peer.role) || peer.role == role::ROUTER) {
            // A broker subscribes to one of the routers of this partition.
            return self.brokers_missing.wait(now, peer.node, MISSING_WAIT);
        }
        let source = Source {
            slot,
            uncovered: VecDeque::new(),
            logged: 0,
            covered: 0,
            told: 0,
            whole: false,
            brokers: BTreeSet::new(),
        };
        self.sources.insert(peer.node, source);
        if role::has_members(peer.role) {
            let refused = self.untold.take(peer.node, peer.epoch);
            refused.into_iter().for_each(|room| self.tell_refused(now, slot, room));
            return self.seen(now, peer.node, None, true);
        }
        self.listen(now, slot, peer, self.scope());
        let here: Vec<u32> = self
            .gateways
            .iter()
            .filter(|(_, seen)| seen.here)
            .map(|(node, _)| *node)
            .collect();
        for node in here {
            self.links.record(now, slot, &Record::GatewaySeen { node, up: true });
        }
        let brokers = self.listeners.iter().filter(|(_, listener)| !listener.peer);
        for (node, _) in brokers {
            let (node, told) = (*node, true);
            self.links.record(now, slot, &Record::BrokerTold { node, told });
        }
        let scope = self.scope();
        self.links.record(now, slot, &Record::Complete { scope });
        self.review_missing(now);
    }

    fn link_down(&mut self, now: Micros, slot: u32, peer: Identity) {
        if self.sources.get(&peer.node).is_some_and(|source| source.slot == slot) {
            self.sources.remove(&peer.node);
            self.interest.leave(peer.node);
            if role::has_members(peer.role) {
                self.seen(now, peer.node, None, false);
            } else {
                let seen: Vec<u32> = self.gateways.keys().copied().collect();
                seen.into_iter()
                    .for_each(|node| self.seen(now, node, Some(peer.node), false));
            }
        }
        if self
            .listeners
            .get(&peer.node)
            .is_some_and(|listener| listener.slot == slot)
        {
            self.unlisten(now, peer.node);
        }
        self.review_missing(now);
        match peer.role {
            role::BROKER => self.brokers_missing.wait(now, peer.node, LOST_WAIT),
            role::ROUTER => self.wait_for_told(now),
            _ => {}
        }
    }

    /// A peer's link is lost. Brokers that it served may miss its reports from now on; or it still serves them and is
    /// only cut off from this router. Waits for these brokers to notice and subscribe here.
    fn wait_for_told(&mut self, now: Micros) {
        for node in self.brokers_missing.nodes() {
            let wait = match self.links.to(node) {
                Some(_) => MISSING_WAIT,
                None => LOST_WAIT,
            };
            self.brokers_missing.wait(now, node, wait);
        }
    }

    /// A gateway's link came up or was lost, here or at a peer.
    fn seen(&mut self, now: Micros, node: u32, peer: Option<u32>, up: bool) {
        // Links are bounded separately.
        let full = peer.is_some() && self.gateways.len() >= NODES_MAX;
        if !self.gateways.contains_key(&node) && (!up || full) {
            return;
        }
        let seen = self.gateways.entry(node).or_insert_with(|| GatewayLinks::away(now));
        let was_away = seen.is_away();
        match peer {
            None => seen.here = up,
            Some(peer) if up => drop(seen.peers.insert(peer)),
            Some(peer) => drop(seen.peers.remove(&peer)),
        }
        if seen.is_away() && !was_away {
            seen.away_since = now;
        }
        if peer.is_none() {
            for listener in self.listeners.values().filter(|listener| listener.peer) {
                self.links.record(now, listener.slot, &Record::GatewaySeen { node, up });
            }
        }
        self.review_away(now);
    }
}

impl GatewayLinks {
    fn away(since: Micros) -> Self {
        GatewayLinks {
            here: false,
            peers: BTreeSet::new(),
            away_since: since,
        }
    }

    fn is_away(&self) -> bool {
        !self.here && self.peers.is_empty()
    }
}

impl HasLinks for Router {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> (&mut Links, &mut Node) {
        (&mut self.links, &mut self.node)
    }
}

impl Machine for Router {
    type Event = LinkChange;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        for index in 0..inbox.arrivals.len() {
            let (arrival, datagram) = inbox.datagram(index);
            self.take_link(now, arrival, datagram);
        }
    }

    fn expire(&mut self, now: Micros) {
        self.links.expire(now, &mut self.node);
        self.link_changes(now);
        self.complete(now);
        let over = [&mut self.peers_missing, &mut self.brokers_missing].map(|missing| missing.expire(now));
        if over.contains(&true) {
            self.review_missing(now);
        }
        self.expire_gateways(now);
        self.node.sweep(now);
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let mut more = self.links.transmit(now, &mut self.node, outbox);
        let mut turns = self.links.table.ready_len();
        while turns > 0 && outbox.room() > 0 {
            turns -= 1;
            let Some(slot) = self.links.table.next_ready() else {
                break;
            };
            let Some(link) = self.links.table.get_mut(slot) else {
                continue;
            };
            link.data.probe = false;
            if self.links.send(now, &mut self.node, slot, outbox, |_, _| false) {
                self.links.table.mark(slot); // a log may need several datagrams; an empty send ends it
            }
        }
        more |= self.links.table.ready_len() > 0;
        more
    }

    fn deadline(&self) -> Option<Micros> {
        let complete = self.started.filter(|_| !self.complete).map(|at| at + SETTLE);
        let away = self
            .gateways
            .values()
            .filter(|seen| seen.is_away())
            .map(|seen| seen.away_since + GATEWAY_LEASE)
            .min();
        let missing = [self.peers_missing.deadline(), self.brokers_missing.deadline()];
        let due = [self.links.deadline(), complete, away].into_iter().chain(missing);
        due.flatten().min()
    }

    fn drain_events(&mut self, events: &mut Vec<LinkChange>) {
        events.extend(self.events.drain(..));
    }

    fn stalled(&mut self, _now: Micros) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MEMBERSHIPS_MAX;
    use muster_transport::fixtures::{me, node, Zeros};

    fn router() -> Router {
        router_of(MEMBERSHIPS_MAX)
    }

    fn router_of(memberships_max: usize) -> Router {
        let config = RouterConfig {
            node: node(role::ROUTER),
            settings: RouterSettings { memberships_max },
        };
        Router::new(config, 1, Box::new(Zeros))
    }

    fn said(room: u64, version: u64, present: bool) -> Membership {
        let check = if present { 1 } else { 0 };
        Membership {
            room,
            check,
            version,
            present,
        }
    }

    /// A gateway reports all its rooms.
    fn snapshot(router: &mut Router, life: (u32, u32), version: u64, rooms: &[(u64, u64)]) {
        router.begin(0, life.0, life, (Scope::ALL, version));
        for (room, version) in rooms {
            router.membership(0, life.0, life, &said(*room, *version, true));
        }
        assert!(router.end(0, life.0, life, (Scope::ALL, version), true));
    }

    /// A placement with this router, the first of `partitions`.
    fn routers(epoch: u32, partitions: u16) -> Placement {
        let me =
            muster_transport::PlacedNode::new(me(role::ROUTER).node, role::ROUTER, muster_transport::Addr::default());
        room_placement(epoch, vec![me], 1, partitions)
    }

    #[test]
    fn a_database_gets_each_change_once_and_its_own_hints_are_no_changes() {
        let mut router = router();
        snapshot(&mut router, (2, 5), 1, &[(9, 1)]);
        assert_eq!(router.take_kept(9), (vec![], vec![]), "nobody asked");
        router.keep(100);
        assert_eq!(router.hint(0, (3, 5), &[said(10, 1, true), said(11, 2, true)]), 2);
        assert_eq!(router.kept(), (0, 0));
        snapshot(&mut router, (3, 5), 6, &[(11, 2), (12, 4)]);
        let (ended, mut changed) = router.take_kept(9);
        changed.sort_unstable_by_key(|(_, said)| said.room);
        assert_eq!(ended, [], "that life was known");
        let left = ((3, 5), said(10, 6, false));
        assert_eq!(changed, [left, ((3, 5), said(12, 4, true))]);
        router.membership(0, 3, (3, 5), &said(12, 7, false));
        router.membership(0, 3, (3, 5), &said(12, 8, true));
        assert_eq!(router.take_kept(9), (vec![], vec![((3, 5), said(12, 8, true))]));
        snapshot(&mut router, (3, 6), 1, &[(13, 1)]);
        assert_eq!(router.take_kept(9).0, [(3, 5)], "a new life ends those before it");
    }

    #[test]
    fn a_restarted_gateway_keeps_no_unreported_rooms() {
        let mut router = router();
        router.keep(100);
        snapshot(&mut router, (3, 5), 1_000, &[(10, 1_000)]);
        snapshot(&mut router, (3, 6), 1, &[]);
        assert_eq!(router.take_kept(9), (vec![(3, 5)], vec![]));
        router.membership(0, 3, (3, 6), &said(10, 3, true));
        assert_eq!(router.take_kept(9), (vec![], vec![((3, 6), said(10, 3, true))]));
    }

    #[test]
    fn a_router_reports_no_changes_of_rooms_that_it_gave_away() {
        let mut router = router();
        router.set_placement(0, routers(1, 1));
        router.keep(100);
        snapshot(&mut router, (3, 5), 1, &[]);
        router.membership(0, 3, (3, 5), &said(10, 6, true));
        router.membership(0, 3, (3, 5), &said(11, 7, true));
        router.set_placement(0, routers(2, 2));
        assert_eq!(router.take_kept(9).1, [((3, 5), said(10, 6, true))]);
        assert_eq!(router.kept(), (0, 0));
    }

    #[test]
    fn a_hint_of_an_absent_gateway_expires() {
        let mut router = router();
        router.keep(100);
        router.set_placement(0, routers(1, 1));
        router.hint(7, (3, 5), &[said(10, 1, true)]);
        assert_eq!(router.interest.wanted(), [(3, 10)]);
        assert_eq!(router.deadline(), Some(7 + GATEWAY_LEASE));
        router.expire_gateways(6 + GATEWAY_LEASE);
        assert_eq!(router.interest.wanted(), [(3, 10)]);
        router.expire_gateways(7 + GATEWAY_LEASE);
        assert_eq!(
            (router.interest.wanted(), router.take_kept(9)),
            (vec![], (vec![(3, 5)], vec![]))
        );
    }

    /// Regression: a router cut off from gateways, but not from the database, deleted other routers' rows there.
    #[test]
    fn an_unreachable_router_ends_no_life_of_placed_gateways() {
        let mut router = router();
        router.keep(100);
        router.hint(0, (3, 5), &[said(10, 1, true)]);
        snapshot(&mut router, (4, 5), 1, &[(11, 1)]);
        assert_eq!(router.take_kept(9).0, [(4, 4)], "the life before");
        router.expire_gateways(GATEWAY_LEASE);
        assert_eq!(
            (router.interest.wanted(), router.counters.gateways_expired),
            (vec![], 2)
        );
        assert_eq!(router.take_kept(9), (vec![], vec![]), "there was no map yet");
        let map = |epoch, gateways: &[u32]| {
            let addr = muster_transport::Addr::default();
            let gateways = gateways
                .iter()
                .map(|node| muster_transport::PlacedNode::new(*node, role::GATEWAY, addr));
            room_placement(epoch, gateways.collect(), 1, 1)
        };
        router.set_placement(GATEWAY_LEASE, map(1, &[3, 4, 5]));
        snapshot(&mut router, (5, 5), 1, &[]);
        snapshot(&mut router, (4, 5), 3, &[(11, 1)]);
        assert_eq!(router.take_kept(9).0, [(4, 4), (5, 4)]);
        router.expire_gateways(2 * GATEWAY_LEASE);
        assert_eq!(router.take_kept(9).0, []);
        snapshot(&mut router, (5, 6), 1, &[]);
        assert_eq!(router.take_kept(9).0, [(5, 5)]);
        router.set_placement(2 * GATEWAY_LEASE, map(2, &[4]));
        assert_eq!(router.take_kept(9).0, [(3, 5)], "it is removed, and so are its rooms");
    }

    #[test]
    fn hints_do_not_exceed_the_limit() {
        let mut router = router_of(2);
        let rooms = [said(10, 1, true), said(11, 1, true), said(12, 1, true)];
        assert_eq!(router.hint(0, (3, 5), &rooms), 2);
    }

    #[test]
    fn a_full_router_refuses_rooms_until_there_is_space() {
        let mut router = router_of(3);
        let scope = Scope::ALL;
        for gateway in [2, 3] {
            router.begin(0, gateway, (gateway, 1), (scope, 0));
            assert!(router.end(0, gateway, (gateway, 1), (scope, 0), true));
        }
        let mut say = |gateway: u32, room: u64, version: u64, present: bool| {
            assert!(router.membership(0, gateway, (gateway, 1), &said(room, version, present)));
            (router.interest.wanted().len(), router.counters.refused_full)
        };
        say(2, 10, 1, true);
        say(2, 11, 2, true);
        assert_eq!(say(3, 10, 1, true), (3, 0));
        assert_eq!(say(3, 12, 2, true), (3, 1), "one too many");
        assert_eq!(say(2, 10, 3, true), (3, 1), "a known room may change");
        assert_eq!(say(2, 10, 4, false), (2, 1), "and end");
        router.begin(0, 2, (2, 1), (scope, 5));
        assert!(router.end(0, 2, (2, 1), (scope, 5), true));
        assert!(router.membership(0, 3, (3, 1), &said(12, 3, true)));
        assert_eq!(
            (router.interest.wanted(), router.counters.refused_full),
            (vec![(3, 10), (3, 12)], 1)
        );
    }
}
