//! The router: takes each gateway's membership once and gives it to every broker that is linked.
//!
//! Logs are reliable and in order per link; this role maps the offsets of a gateway's log to those of the brokers' logs, so
//! that a gateway learns when every broker has what it said. Knows no message and no member.

use std::collections::{BTreeMap, VecDeque};

use crate::conn::{Conn, Control};
use crate::door::{Door, DoorKey};
use crate::handshake::{ClusterKeys, ResetSecret};
use crate::hash::KeyedState;
use crate::interest::Interest;
use crate::limits::{GATEWAY_LEASE, ROOMS_MAX};
use crate::links::{LinkChange, Links, LINK_BLOCKS};
use crate::machine::{Arrival, Entropy, Inbox, Machine, Micros, Outbox};
use crate::node::{Identity, Node};
use crate::placement::Placement;
use crate::wire::header::HEADER;
use crate::wire::record::{Membership, Record};
use crate::wire::{Code, Frames, Role};

/// How long a new router waits for gateways that the placement names before it says that it knows all there is to know.
pub const SETTLE: Micros = 1_000_000;

/// How a router is set up.
pub struct RouterConfig {
    pub me: Identity,
    pub payload: usize,
    pub cluster: ClusterKeys,
    pub reset_secret: [u8; 32],
}

crate::counters! {
    /// What a router did.
    pub struct RouterCounters {
        /// Membership changes taken from gateways.
        memberships_received,
        /// Membership changes told to brokers.
        memberships_sent,
        /// Snapshots of gateways taken whole.
        snapshots_received,
        /// Records dropped: of a gateway's earlier life.
        dropped_stale_epoch,
        /// Gateways forgotten because they stayed away.
        gateways_expired,
        /// Membership changes refused: too many rooms.
        refused_full,
    }
}

struct GatewayLink {
    slot: Option<u32>,
    away_since: Micros,
    /// Offsets of this gateway's log that some broker has not acknowledged: ours, and per broker link its own.
    uncovered: VecDeque<(u64, Vec<(u32, u64)>)>,
    logged: u64,
    covered: u64,
}

/// The router.
pub struct Router {
    node: Node,
    links: Links,
    interest: Interest,
    gateways: BTreeMap<u32, GatewayLink>,
    /// Broker node to its link, and whether it was told that everything was told.
    brokers: BTreeMap<u32, (u32, bool)>,
    placement: Placement,
    started: Option<Micros>,
    rooms_max: usize,
    pub counters: RouterCounters,
    events: VecDeque<LinkChange>,
}

impl Router {
    pub fn new(config: RouterConfig, seed: u64, mut entropy: Box<dyn Entropy>) -> Self {
        let door = Door::new(
            DoorKey::Cluster(Box::new(config.cluster.clone())),
            ResetSecret::new(config.reset_secret),
            entropy.as_mut(),
        );
        let mut node = Node::new(config.me, config.payload, seed, entropy);
        let hash = KeyedState::new(node.secret_u64(), node.secret_u64());
        Router {
            links: Links::new(door, config.cluster, crate::gateway::LINK_SOCKET),
            interest: Interest::new(hash),
            gateways: BTreeMap::new(),
            brokers: BTreeMap::new(),
            placement: Placement::default(),
            started: None,
            rooms_max: ROOMS_MAX, // over all gateways, tombstones included
            counters: RouterCounters::default(),
            events: VecDeque::new(),
            node,
        }
    }

    /// Takes the control plane's picture of who is where; one that is older than what is known changes nothing.
    pub fn set_placement(&mut self, now: Micros, placement: Placement) {
        if placement.epoch() < self.placement.epoch() {
            return;
        }
        self.node.stamp.placement = placement.epoch();
        self.started.get_or_insert(now);
        self.placement = placement;
    }

    pub fn set_buffers(&mut self, link: u32) {
        self.links.buffer = link;
    }

    /// Why the router cannot serve yet, if it cannot.
    pub fn not_ready(&self) -> Option<&'static str> {
        self.started.is_none().then_some("there is no placement yet")
    }

    pub fn interest(&self) -> &Interest {
        &self.interest
    }

    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Whether every gateway of the placement has told all its rooms, or had its time to.
    fn settled(&self, now: Micros) -> bool {
        let Some(started) = self.started else { return false };
        now >= started + SETTLE
            || self
                .placement
                .of(Role::Gateway)
                .all(|node| self.interest.is_loaded(node.node))
    }

    fn take_link(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let received = self.links.receive(now, &mut self.node, arrival, datagram);
        self.link_changes(now);
        let Some((slot, len)) = received else { return };
        let Some(peer) = self.links.table.get(slot).map(|link| link.data.peer) else {
            return;
        };
        let (mut elicits, mut records, mut acknowledged) = (false, Vec::new(), false);
        for frame in Frames::new(&datagram[HEADER..HEADER + len]) {
            let Ok(frame) = frame else {
                self.links.counters.link_dropped_frame += 1;
                break;
            };
            elicits |= frame.kind.elicits();
            match self.links.control(now, slot, &frame, &mut records) {
                Control::Other => self.links.counters.link_dropped_frame += 1,
                Control::Acknowledged(_) => acknowledged = true,
                Control::Closed(_) => break,
                _ => {}
            }
        }
        for bytes in records {
            if peer.role == Role::Gateway {
                // Every record of a gateway's log counts, also what cannot be read, so that offsets agree.
                self.logged(peer.node);
            }
            let Some(record) = Record::read(&bytes) else {
                self.links.counters.link_dropped_frame += 1;
                continue;
            };
            if self.links.link_record(slot, &record) {
                continue;
            }
            if peer.role != Role::Gateway || !self.membership(now, peer.node, peer.epoch, &record) {
                self.links.counters.link_dropped_frame += 1;
            }
        }
        self.links.after(now, slot, elicits);
        self.link_changes(now);
        if acknowledged || peer.role == Role::Gateway {
            self.cover(now);
        }
    }

    fn logged(&mut self, gateway: u32) {
        if let Some(link) = self.gateways.get_mut(&gateway) {
            link.logged += 1;
        }
    }

    /// Takes a gateway's record and passes it on. `false`: not a gateway's to send.
    fn membership(&mut self, now: Micros, gateway: u32, epoch: u32, record: &Record<'_>) -> bool {
        let mut changes = Vec::new();
        let (alive, told) = match *record {
            Record::SnapshotBegin { version } => {
                let alive = self.interest.begin(gateway, epoch, version, &mut changes);
                (
                    alive,
                    Record::GatewayBegin {
                        node: gateway,
                        epoch,
                        version,
                    },
                )
            }
            Record::Membership(membership) => {
                self.counters.memberships_received += 1;
                let full = membership.present && self.interest.kept() >= self.rooms_max;
                if full && !self.interest.knows(gateway, membership.room) {
                    self.refuse(now, gateway, membership.room);
                    return true;
                }
                let alive = self.interest.apply(gateway, epoch, membership, &mut changes);
                (
                    alive,
                    Record::GatewayMembership {
                        node: gateway,
                        epoch,
                        membership,
                    },
                )
            }
            Record::SnapshotEnd { version } => {
                self.counters.snapshots_received += 1;
                let alive = self.interest.end(gateway, epoch, version, &mut changes);
                (
                    alive,
                    Record::GatewayEnd {
                        node: gateway,
                        epoch,
                        version,
                    },
                )
            }
            _ => return false,
        };
        if !alive {
            self.counters.dropped_stale_epoch += 1;
            return true;
        }
        let mut offsets = Vec::with_capacity(self.brokers.len());
        for (slot, _) in self.brokers.values() {
            if let Some(offset) = self.links.record(now, *slot, &told) {
                offsets.push((*slot, offset));
                self.counters.memberships_sent += 1;
            }
        }
        if let Some(link) = self.gateways.get_mut(&gateway) {
            match link.uncovered.back_mut() {
                // While there is no broker, all that is said waits for the same: the next broker.
                Some((logged, waits)) if waits.is_empty() && offsets.is_empty() => *logged = link.logged,
                _ => link.uncovered.push_back((link.logged, offsets)),
            }
        }
        true
    }

    /// There is no place for a gateway's room; it hears so before it could take it for covered.
    fn refuse(&mut self, now: Micros, gateway: u32, room: u64) {
        self.counters.refused_full += 1;
        if let Some(slot) = self.gateways.get(&gateway).and_then(|gateway| gateway.slot) {
            let code = Code::Busy;
            self.links.record(now, slot, &Record::RoomRefused { room, code });
        }
    }

    /// Tells gateways how far every broker is.
    fn cover(&mut self, now: Micros) {
        if self.brokers.is_empty() {
            return;
        }
        let Router { links, gateways, .. } = self;
        for gateway in gateways.values_mut() {
            while let Some((offset, waits)) = gateway.uncovered.front() {
                let done = waits.iter().all(|(slot, offset)| {
                    links
                        .table
                        .get(*slot)
                        .is_none_or(|link| link.conn.log.acknowledged() >= *offset)
                });
                if !done {
                    break;
                }
                gateway.covered = gateway.covered.max(*offset);
                gateway.uncovered.pop_front();
            }
            let Some(slot) = gateway.slot else { continue };
            if gateway.covered > 0
                && gateway
                    .uncovered
                    .front()
                    .is_none_or(|(offset, _)| *offset > gateway.covered)
            {
                let offset = gateway.covered;
                if let Some(link) = links.table.get_mut(slot).filter(|link| link.data.told < offset) {
                    link.data.told = offset;
                    links.record(now, slot, &Record::Covered { offset });
                }
            }
        }
    }

    fn link_changes(&mut self, now: Micros) {
        while let Some(change) = self.links.change() {
            match change {
                LinkChange::Up { slot, peer } if peer.role == Role::Gateway => {
                    let gateway = GatewayLink {
                        slot: Some(slot),
                        away_since: now,
                        uncovered: VecDeque::new(),
                        logged: 0,
                        covered: 0,
                    };
                    self.gateways.insert(peer.node, gateway);
                }
                LinkChange::Up { slot, peer } if peer.role == Role::Broker => self.subscribe(now, slot, peer.node),
                LinkChange::Down { slot, peer, .. } => {
                    if let Some(gateway) = self
                        .gateways
                        .get_mut(&peer.node)
                        .filter(|gateway| gateway.slot == Some(slot))
                    {
                        gateway.slot = None;
                        gateway.away_since = now;
                    }
                    if self.brokers.get(&peer.node).is_some_and(|(broker, _)| *broker == slot) {
                        self.brokers.remove(&peer.node);
                        // The slot will be another link's, whose log begins anew.
                        for (_, waits) in self.gateways.values_mut().flat_map(|gateway| &mut gateway.uncovered) {
                            waits.retain(|(waited, _)| *waited != slot);
                        }
                        self.cover(now);
                    }
                }
                LinkChange::Up { .. } => {}
            }
            self.events.push_back(change);
        }
    }

    /// A broker's link is new: tell it all that is known of every gateway.
    fn subscribe(&mut self, now: Micros, slot: u32, broker: u32) {
        let mut ends = BTreeMap::new();
        if let Some(link) = self.links.table.get_mut(slot) {
            for (node, epoch, version) in self.interest.gateways() {
                let whole = self.interest.is_loaded(node) && !self.interest.is_open(node);
                let (seen, unseen) = self.interest.rooms_of(node);
                let tell = |link: &mut Conn<LINK_BLOCKS>, rooms: Vec<Membership>| {
                    for membership in rooms {
                        link.record(&Record::GatewayMembership {
                            node,
                            epoch,
                            membership,
                        });
                    }
                };
                self.counters.memberships_sent += (seen.len() + unseen.len()) as u64;
                // What a snapshot that is on its way has not named stands until its end, which will be passed on.
                tell(&mut link.conn, unseen);
                link.conn.record(&Record::GatewayBegin { node, epoch, version });
                tell(&mut link.conn, seen);
                if whole {
                    link.conn.record(&Record::GatewayEnd { node, epoch, version });
                }
                ends.insert(node, link.conn.log.last());
            }
        }
        self.brokers.insert(broker, (slot, false));
        // What gateways said and no broker had in time is in force once this broker has it.
        for (node, end) in ends {
            if let Some(gateway) = self.gateways.get_mut(&node) {
                gateway
                    .uncovered
                    .iter_mut()
                    .for_each(|(_, waits)| waits.push((slot, end)));
            }
        }
        self.complete(now);
        self.links.table.mark(slot);
    }

    /// Tells brokers that they know everything, once that is so.
    fn complete(&mut self, now: Micros) {
        if !self.settled(now) {
            return;
        }
        for (slot, complete) in self.brokers.values_mut().filter(|(_, complete)| !complete) {
            *complete = self.links.record(now, *slot, &Record::Complete).is_some();
        }
    }

    fn expire_gateways(&mut self, now: Micros) {
        let expired = |gateway: &GatewayLink| gateway.slot.is_none() && now >= gateway.away_since + GATEWAY_LEASE;
        let gone: Vec<u32> = self
            .gateways
            .iter()
            .filter(|(_, gateway)| expired(gateway))
            .map(|(node, _)| *node)
            .collect();
        for node in gone {
            self.gateways.remove(&node);
            let Some((_, epoch, _)) = self.interest.gateways().find(|(gateway, _, _)| *gateway == node) else {
                continue;
            };
            self.counters.gateways_expired += 1;
            self.interest.gone(node, epoch, &mut Vec::new());
            for (slot, _) in self.brokers.values() {
                self.links.record(now, *slot, &Record::GatewayGone { node, epoch });
            }
        }
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
            let step = link.conn.tail_step();
            if self.links.send(now, &mut self.node, slot, outbox, |_, _| false) {
                if let Some(link) = self.links.table.get_mut(slot) {
                    link.conn.tail_probed(now, step);
                }
                self.links.table.mark(slot); // a log may need several datagrams; an empty send ends it
            }
        }
        more |= self.links.table.ready_len() > 0;
        more
    }

    fn deadline(&self) -> Option<Micros> {
        let complete = self
            .started
            .filter(|_| self.brokers.values().any(|(_, complete)| !complete))
            .map(|at| at + SETTLE);
        let away = self
            .gateways
            .values()
            .filter(|gateway| gateway.slot.is_none())
            .map(|gateway| gateway.away_since + GATEWAY_LEASE)
            .min();
        [self.links.deadline(), complete, away].into_iter().flatten().min()
    }

    fn drain_events(&mut self, events: &mut Vec<LinkChange>) {
        events.extend(self.events.drain(..));
    }

    fn stalled(&mut self, _now: Micros) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Zeros;

    impl Entropy for Zeros {
        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }

    #[test]
    fn a_router_without_place_refuses_rooms_until_there_is_some() {
        let me = Identity {
            node: 1,
            role: Role::Router,
            epoch: 1,
        };
        let config = RouterConfig {
            me,
            payload: 1_200,
            cluster: ClusterKeys {
                current: (1, [7; 32]),
                next: None,
            },
            reset_secret: [1; 32],
        };
        let mut router = Router::new(config, 1, Box::new(Zeros));
        router.rooms_max = 3;
        let mut say = |gateway: u32, room: u64, version: u64, present: bool| {
            let membership = Membership {
                room,
                check: 1,
                version,
                present,
            };
            assert!(router.membership(0, gateway, 1, &Record::Membership(membership)));
            (router.interest.wanted().len(), router.counters.refused_full)
        };
        say(2, 10, 1, true);
        say(2, 11, 2, true);
        assert_eq!(say(3, 10, 1, true), (3, 0));
        assert_eq!(say(3, 12, 2, true), (3, 1), "one too many");
        assert_eq!(say(2, 10, 3, true), (3, 1), "what is known may change");
        assert_eq!(say(2, 10, 4, false), (2, 1), "and end");
        assert!(router.membership(0, 2, 1, &Record::SnapshotBegin { version: 5 }));
        assert!(router.membership(0, 2, 1, &Record::SnapshotEnd { version: 5 }));
        let membership = Membership {
            room: 12,
            check: 1,
            version: 3,
            present: true,
        };
        assert!(router.membership(0, 3, 1, &Record::Membership(membership)));
        assert_eq!(
            (router.interest.wanted(), router.counters.refused_full),
            (vec![(3, 10), (3, 12)], 1)
        );
    }
}
