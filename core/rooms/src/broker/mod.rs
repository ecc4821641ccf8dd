//! The broker: numbers its rooms' messages, keeps them in rings, and sends one copy to each gateway that wants the
//! room.
//!
//! This file orders the shared parts. `reports` holds what routers report, `interest` what changes with it; `rooms` the life of
//! rooms, `generations` those of their streams, `gains` rooms that begin; `publications` the publishers, `publish` numbers what they
//! send, `withheld` is their credit; `fanout` the data for gateways, `relays` those that pass rooms on, `commands` commands.

mod commands;
mod fanout;
mod gains;
mod generations;
mod interest;
mod publications;
mod publish;
pub mod relays;
mod reports;
mod resends;
pub mod room;
mod rooms;
pub mod users;
mod withheld;

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::wire::kinds;

use crate::layers::{room_placement, RoomLayers};

use crate::role;

use muster_transport::{
    Arrival, Code, Control, Door, DoorKey, Entropy, Frame, Frames, HasLinks, Identity, Inbox, KeyedState, LinkChange,
    Links, Machine, Micros, Node, NodeConfig, Outbox, Placement, Records, ResetSecret, Scope, HEADER,
};

use crate::age::Ages;
use crate::arena::Arena;
use crate::interest::{Change, Interest};
use crate::limits::{LINK_LOG_BYTES, ROOMS_MAX};
use crate::name::RoomName;
use crate::segments::Segments;
use crate::settings::BrokerSettings;
use crate::slots::Slots;
use crate::untold::Untold;
use crate::wire::record::Record;
use crate::wire::room::LinkHead;
use commands::{Commands, Request};
use gains::Gains;
use generations::Generations;
use publications::Publications;
use relays::Relays;
use reports::Reports;
use resends::Resends;
use room::Room;
use withheld::Withheld;

/// Maximum number of publishers at once, each about 150 B while idle.
pub const PUBLISHERS_MAX: usize = 1 << 20;
/// Maximum number of publishers of one user: a user that opens rooms endlessly leaves most entries to others.
pub const USER_PUBLICATIONS_MAX: usize = PUBLISHERS_MAX / 4;
/// A room without interest and publishers is forgotten after this, unless its namespace sets another time; if it is
/// made again, it is a new stream.
pub const ROOM_IDLE: Micros = 60_000_000;
/// A room that another broker owns ends here after this time without a publication.
pub const DETOUR_IDLE: Micros = 5_000_000;
/// Longest time for which credit is withheld because of a late gateway.
pub const WITHHOLD_MAX: Micros = 500_000;
/// While a member would otherwise lose messages, a paced room grants each publisher only one credit in this time.
pub const PACED_MAX: Micros = 5_000_000;
/// How often idle state is checked.
const SWEEP_EVERY: Micros = 1_000_000;
/// Idle entries checked in one sweep: about a millisecond of work, and all entries within two minutes.
const SWEPT_AT_ONCE: usize = 8_192;
/// Capacity for changes of membership that stays allocated.
const CHANGES_KEPT: usize = 1_024;
/// Maximum number of rooms per gateway with a pending reply "nothing here"; the gateway asks again for further ones.
const NOTHING_MAX: usize = 4_096;
/// Entries in a gateway's queue of rooms, beyond two per room, before duplicates are removed.
const QUEUE_SPARE: usize = 1_024;

/// The configuration of a broker.
pub struct BrokerConfig {
    pub node: NodeConfig,
    /// The key to compute a room's id from its name, for `room`; otherwise a broker knows rooms only by id.
    pub name_key: [u8; 16],
    pub settings: BrokerSettings,
}

muster_transport::counters! {
    /// A broker's events on rooms.
    pub struct BrokerCounters {
        /// Messages taken from proxies.
        messages_received,
        /// Messages numbered.
        messages_published,
        /// Messages that had been numbered before.
        messages_repeated,
        /// Messages held because an earlier one is missing.
        messages_held,
        /// Messages dropped: too far ahead of a missing one; the publisher repeats them.
        dropped_ahead,
        /// Messages dropped: beyond their publisher's credit; it repeats them.
        dropped_credit,
        /// Messages dropped after being held: another broker numbered them, or their publisher is gone.
        dropped_held,
        /// Messages dropped: malformed publish frames.
        dropped_malformed,
        /// Messages dropped: this broker does not know the interest of all gateways yet.
        dropped_not_ready,
        /// Messages dropped: another broker owns the room.
        dropped_not_owner,
        /// Messages dropped: too many rooms or publishers.
        dropped_full,
        /// Messages dropped: the room's number belongs to another name.
        dropped_name_collision,
        /// Rooms refused to gateways: too many.
        refused_full,
        /// Rooms refused to gateways: the room's number belongs to another name.
        refused_name_collision,
        /// Messages sent to gateways, repairs not counted.
        messages_sent,
        /// Messages sent to gateways again on request.
        messages_repaired,
        /// Repair requests of gateways accepted.
        repairs_served,
        /// Repair requests dropped: beyond the requester's allowance.
        dropped_repair_limit,
        /// Times that a gateway had more of a stream than this broker: it had come back from an earlier state, as of a snapshot.
        rolled_back,
        /// Times that credit was withheld because a gateway was late.
        credit_withheld,
        /// Rooms made, each a new stream.
        rooms_made,
        /// Rooms ended because another broker continues them.
        rooms_handed_over,
        /// Rooms forgotten because they were unused.
        rooms_forgotten,
        /// Acknowledgements sent to proxies.
        acknowledgements_sent,
        /// Times that a gateway began to get a room by another gateway.
        relays_begun,
        /// Times that this ended, so that it got the room from its broker again.
        relays_ended,
        /// Gateways forgotten because no router knows them anymore.
        gateways_expired,
        /// Commands and member queries taken from proxies, each counted once.
        commands_received,
        /// Commands and member queries sent to gateways.
        commands_sent,
    }
}

/// One gateway, across its links.
struct GatewayPeer {
    link: u32,
    epoch: u32,
    /// Rooms with something to send, and rooms of recent datagrams.
    pending: VecDeque<u32>,
    heads: VecDeque<u32>,
    /// Rooms with a pending reply "nothing here".
    nothing: VecDeque<u64>,
    /// Pending answers to its questions.
    answers: VecDeque<LinkHead>,
    recent: VecDeque<(u64, u32)>,
    /// Its requests to resend: holes, and history for members that returned.
    holes: Resends,
    history: Resends,
    /// It passes rooms on, and takes them by others.
    relays: bool,
    /// Number of datagrams so far, to alternate between kinds of data.
    turn: u32,
}

/// Adds a room to a gateway's queue. A room that went and came again may be in it several times, so duplicates are
/// removed now and then.
fn enqueue(queue: &mut VecDeque<u32>, at: u32, rooms: usize) {
    queue.push_back(at);
    if queue.len() > 2 * rooms + QUEUE_SPARE {
        let mut known = HashSet::new();
        queue.retain(|at| known.insert(*at));
    }
}

impl GatewayPeer {
    /// Whether something may be resent now.
    fn resends(&self) -> bool {
        self.holes.is_due() || self.history.is_due()
    }
}

/// The broker of a partition: the owner of its rooms. It numbers each room's messages, keeps recent ones in a ring,
/// and sends one copy of each to every gateway that wants the room.
///
/// A caller makes it with [`Broker::new`] and gives it the nodes with [`Broker::set_placement`] (again after each
/// change). Then it runs the verbs of [`Machine`] in every turn: `receive` for each batch of datagrams, `expire`,
/// `transmit` until it returns `false`, and `drain_events`. The next turn is due at `deadline`, or when a datagram
/// comes. [`Broker::not_ready`] returns why it does not serve yet.
///
/// Its fields are parts with a file each, and no two of them change together. A message or a report passes most of them within one
/// call, so they stand side by side here, where they can be borrowed apart.
///
/// ```no_run
/// use muster_rooms::{role, room_placement, Broker, BrokerConfig, BrokerSettings};
/// use muster_transport::{ClusterKeys, Entropy, Identity, Machine, NodeConfig, Outbox};
///
/// # struct Zeros;
/// # impl Entropy for Zeros {
/// #     fn fill(&mut self, bytes: &mut [u8]) {
/// #         bytes.fill(0);
/// #     }
/// # }
/// # let entropy = Box::new(Zeros);
/// let node = NodeConfig {
///     me: Identity { node: 3, role: role::BROKER, epoch: 1 },
///     payload: 1_200,
///     cluster: ClusterKeys { current: (1, [7; 32]), other: None, allow: None },
///     reset_secret: [3; 32],
/// };
/// let config = BrokerConfig { node, name_key: [9; 16], settings: BrokerSettings::default() };
/// let mut broker = Broker::new(config, 1, entropy);
/// let now = 1_000_000; // microseconds of a monotonic clock
/// broker.set_placement(now, room_placement(1, Vec::new(), 1, 1));
///
/// // One turn without datagrams:
/// broker.expire(now);
/// let mut outbox = Outbox::new(true);
/// while broker.transmit(now, &mut outbox) {
///     // send the parcels of `outbox`
///     outbox.clear();
/// }
/// let _next_turn = broker.deadline();
/// ```
pub struct Broker {
    node: Node,
    links: Links,
    interest: Interest,
    reports: Reports,
    untold: Untold,
    /// By their ids.
    rooms: Slots<u64, Room>,
    generations: Generations,
    gains: Gains,
    publications: Publications,
    withheld: Withheld,
    gateways: BTreeMap<u32, GatewayPeer>,
    commands: Commands,
    relays: Relays,
    arena: Arena,
    segments: Segments,
    placement: Placement,
    name_key: [u8; 16],
    sweep_at: Micros,
    records: Records,
    changes: Vec<Change>,
    pub counters: BrokerCounters,
    /// Ages of messages when they were numbered, by the proxy that they came from.
    pub ages: Ages,
    events: VecDeque<LinkChange>,
}

impl Broker {
    pub fn new(config: BrokerConfig, seed: u64, mut entropy: Box<dyn Entropy>) -> Self {
        let BrokerConfig {
            node: config,
            name_key,
            settings,
        } = config;
        let door = Door::new(
            DoorKey::Cluster(Box::new(config.cluster.clone())),
            ResetSecret::new(config.reset_secret),
            entropy.as_mut(),
        );
        let mut node = Node::new(config.me, config.payload, seed, entropy);
        let hash = KeyedState::new(node.secret_u64(), node.secret_u64());
        Broker {
            links: Links::new(door, config.cluster, LINK_LOG_BYTES),
            interest: Interest::new(hash),
            reports: Reports::new(config.me.node),
            untold: Untold::default(),
            rooms: Slots::new(hash, ROOMS_MAX),
            generations: Generations::default(),
            gains: Gains::default(),
            publications: Publications::new(hash),
            withheld: Withheld::default(),
            gateways: BTreeMap::new(),
            commands: Commands::new(hash),
            relays: Relays::new(settings.relay_above),
            arena: Arena::with(settings.arena_bytes, &settings.namespaces),
            segments: Segments::new(node.secret_u64()),
            placement: room_placement(0, Vec::new(), 1, 1),
            name_key,
            sweep_at: 0,
            records: Records::default(),
            changes: Vec::new(),
            counters: BrokerCounters::default(),
            ages: Ages::default(),
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
        let me = self.node.me.node;
        let scope = placement.scope(me);
        let needed = placement.of(role::ROUTER);
        let needed = needed.filter(|node| placement.scope_of(node).meet(scope).is_some());
        self.links
            .dial(now, needed.map(|node| (node.node, node.role, node.addr)));
        let narrowed = scope != self.scope();
        let before = std::mem::replace(&mut self.placement, placement);
        self.drop_gateways(now, &before);
        if narrowed {
            // Rooms that moved to other brokers have ended here: their gateways are served until the rooms are
            // forgotten.
            self.interest.keep(scope);
            self.commands_placed(now);
        }
        self.resubscribe(now);
        self.review_homes(now);
        if !before.own().owns_as(self.placement.own()) {
            self.placed(now, &before);
        }
    }

    /// Notes which gateways the placement names no longer.
    fn drop_gateways(&mut self, now: Micros, before: &Placement) {
        for gateway in self.reports.placed(before, &self.placement, &self.interest) {
            self.commands_reached(now, gateway);
        }
    }

    /// Whether the broker has done all that the placement demands: it gets reports from routers of every partition
    /// that has some of its rooms, and these reports are complete.
    pub fn settled(&self) -> bool {
        self.is_running() && self.reports.are_told(&self.placement)
    }

    /// Why the broker cannot serve yet, if it cannot.
    pub fn not_ready(&self) -> Option<&'static str> {
        (!self.is_running()).then_some("the interest of gateways is not known yet")
    }

    /// Whether all interest is known: messages are numbered only then.
    pub fn is_running(&self) -> bool {
        self.reports.are_running()
    }

    pub fn interest(&self) -> &Interest {
        &self.interest
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// A room by its name.
    pub fn room(&self, name: &RoomName<'_>) -> Option<&Room> {
        self.rooms.named(name.key(&self.name_key).id)
    }

    /// Number of messages held because an earlier one is missing.
    pub fn held(&self) -> u64 {
        self.publications.held()
    }

    /// Bytes of held messages, including their overhead.
    pub fn held_bytes(&self) -> usize {
        self.publications.held_bytes()
    }

    pub fn rooms(&self) -> impl Iterator<Item = &Room> {
        self.rooms.iter().map(|(_, room)| room)
    }

    pub fn rooms_len(&self) -> usize {
        self.rooms.len()
    }

    /// The rooms in at most `limit` slots from one on, and the next slot, if there is one.
    pub fn rooms_from(&self, place: usize, limit: usize) -> (impl Iterator<Item = &Room>, Option<usize>) {
        self.rooms.page(place, limit)
    }

    /// Maximum number of memberships that the broker keeps, like its limit of rooms.
    pub fn interest_max(&self) -> usize {
        self.rooms.max()
    }

    fn owns(&self, room: u64) -> bool {
        self.placement.own().owner(room) == Some(self.node.me.node)
    }

    /// Whether the room may be numbered here while its owner is unreachable. A draining broker begins nothing that
    /// would end with its life.
    fn may_own(&self, room: u64) -> bool {
        self.placement.own().replicas(room).contains(&self.node.me.node)
    }

    /// Whether the room belongs to this broker's partition, even if the broker does not serve yet or drains.
    fn has_in_scope(&self, room: u64) -> bool {
        let me = self.placement.node(self.node.me.node);
        let scope = me.and_then(|me| Scope::new(self.placement.own().layer().used(), me.partition));
        scope.is_some_and(|scope| scope.has(room))
    }

    /// The newest life of a gateway that is known in any part of the broker.
    fn life_of(&self, gateway: u32) -> u32 {
        let linked = self.links.epoch_of(gateway);
        self.interest.epoch_of(gateway).max(linked).unwrap_or(0)
    }

    fn take_link(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let received = self.links.receive(now, &mut self.node, arrival, datagram);
        self.link_changes(now);
        let Some((slot, len)) = received else { return };
        let Some(peer) = self.links.table.get(slot).map(|link| link.data.peer) else {
            return;
        };
        let mut elicits = false;
        let mut records = std::mem::take(&mut self.records);
        for frame in Frames::new(&datagram[HEADER..HEADER + len], kinds::ALL) {
            let Ok(frame) = frame else {
                self.links.counters.link_dropped_frame += 1;
                break;
            };
            elicits |= kinds::ALL.elicits(frame.kind);
            match self.links.control(now, slot, &frame, &mut records) {
                Control::Heard(heard) if role::has_members(peer.role) => self.heard(slot, peer.node, &heard),
                Control::Other if !self.frame(now, slot, peer, &frame) => self.links.counters.link_dropped_frame += 1,
                Control::Closed(_) => break,
                _ => {}
            }
        }
        for bytes in records.iter() {
            let Some(record) = Record::read(bytes) else {
                self.links.counters.link_dropped_frame += 1;
                continue;
            };
            if !self.links.link_record(slot, &record) && !self.record(now, peer, &record) {
                self.links.counters.link_dropped_frame += 1;
            }
        }
        records.clear();
        self.records = records;
        self.links.after(now, slot, elicits);
        self.link_changes(now);
    }

    /// Takes a frame of rooms. `false`: malformed, or this peer may not send it.
    fn frame(&mut self, now: Micros, slot: u32, peer: Identity, frame: &Frame<'_>) -> bool {
        match (peer.role, frame.kind) {
            // Members of an edge publish by their gateway.
            (role::PROXY | role::EDGE, kinds::LINK_PUBLISH | kinds::AGED_PUBLISH) => {
                self.publish(now, slot, peer.node, frame)
            }
            (role::GATEWAY | role::EDGE, kinds::LINK_REPAIR) => self.repair_asked(now, slot, peer.node, frame.body),
            (role::GATEWAY | role::EDGE, kinds::CONSUMED) => self.consumed(now, peer.node, frame.body),
            _ => false,
        }
    }

    /// Takes a record of rooms. `false`: this peer may not send it.
    fn record(&mut self, now: Micros, peer: Identity, record: &Record<'_>) -> bool {
        match (peer.role, record) {
            (
                role::PROXY | role::EDGE,
                Record::LinkCommand {
                    command,
                    session,
                    room,
                    check,
                    left_ms,
                    ask,
                },
            ) => {
                let (id, session, room, check, left_ms) = (*command, *session, *room, *check, *left_ms);
                let asked = Request {
                    id,
                    session,
                    room,
                    check,
                    left_ms,
                    ask: ask.by_ref(),
                };
                self.command(now, peer.node, asked);
                true
            }
            (
                role::GATEWAY | role::EDGE,
                Record::LinkCommandDone {
                    command, outcome, page, ..
                },
            ) => {
                self.command_handled(now, (peer.node, peer.epoch), *command, *outcome, page.clone());
                true
            }
            (role::PROXY | role::EDGE, Record::Namespace { number, name }) => {
                let known = std::str::from_utf8(name).map_or(0, |name| self.arena.number(name));
                self.publications.note_namespace(peer.node, *number, known);
                true
            }
            (role::GATEWAY | role::EDGE, Record::Relays) => {
                self.relay_found(peer.node);
                true
            }
            (role::GATEWAY | role::EDGE, Record::RelayTaken { room, node, on }) => {
                self.relay_taken(now, peer.node, *room, *node, *on);
                true
            }
            (role::ROUTER, _) => self.membership(now, peer.node, record),
            _ => false,
        }
    }

    fn link_changes(&mut self, now: Micros) {
        while let Some(change) = self.links.change() {
            match change {
                LinkChange::Up { slot, peer } if role::has_members(peer.role) => {
                    if peer.role == role::EDGE {
                        self.links.record(now, slot, &Record::Headers);
                    }
                    self.gateway_up(now, slot, peer);
                }
                LinkChange::Up { slot, peer } if peer.role == role::PROXY => {
                    self.links.record(now, slot, &Record::Headers);
                }
                LinkChange::Up { peer, .. } if peer.role == role::ROUTER => self.review_homes(now),
                LinkChange::Down { peer, .. } if peer.role == role::ROUTER => {
                    self.reports.router_lost(peer.node);
                    self.interest.leave(peer.node);
                    self.review_homes(now);
                }
                LinkChange::Down { peer, .. } => {
                    self.publications.forget_acks(&mut self.links, peer.node);
                    if self.links.to(peer.node).is_none() {
                        self.publications.forget_namespaces(peer.node);
                    }
                    if peer.role != role::PROXY {
                        self.gateways.remove(&peer.node);
                        self.relay_lost(now, peer.node);
                        self.commands_reached(now, peer.node);
                    }
                }
                LinkChange::Up { .. }
                | LinkChange::Refused { .. }
                | LinkChange::Mistaken { .. }
                | LinkChange::Unlisted { .. }
                | LinkChange::Differs { .. }
                | LinkChange::Stranger { .. } => {}
            }
            self.reports.link_changed(now, &change, &self.links);
            self.events.push_back(change);
        }
    }

    fn gateway_up(&mut self, now: Micros, slot: u32, peer: Identity) {
        self.commands_reached(now, peer.node);
        self.relay_lost(now, peer.node);
        let mut gateway = GatewayPeer {
            link: slot,
            epoch: peer.epoch,
            pending: VecDeque::new(),
            heads: VecDeque::new(),
            nothing: VecDeque::new(),
            answers: VecDeque::new(),
            recent: VecDeque::new(),
            holes: Resends::new(),
            history: Resends::new(),
            relays: false,
            turn: 0,
        };
        // Data in flight on the former link counts as lost: all heads are repeated.
        for (at, room) in self.rooms.iter_mut() {
            let Some(cursor) = room.renew(now, peer.node, peer.epoch) else {
                continue;
            };
            cursor.head_due = true;
            cursor.queued = true;
            gateway.heads.push_back(at);
            gateway.pending.push_back(at);
        }
        self.gateways.insert(peer.node, gateway);
        self.links.table.mark(slot);
        let code = Code::Busy;
        for room in self.untold.take(peer.node, peer.epoch) {
            self.links.record(now, slot, &Record::RoomRefused { room, code });
        }
        // Rooms that were refused to it, or that it may have now.
        let lacks = |(room, _): &(u64, u64)| {
            let known = self.rooms.named(*room);
            known.is_none_or(|room| room.place(peer.node).is_err())
        };
        let wanted = self.interest.rooms_of(peer.node, Scope::ALL);
        let wanted = wanted.map(|known| (known.room, known.check));
        let lacking: Vec<(u64, u64)> = wanted.filter(lacks).collect();
        for (room, check) in lacking {
            let change = Change {
                gateway: peer.node,
                room,
                check,
                present: true,
            };
            self.interest_changed(now, change);
        }
    }
}

impl HasLinks for Broker {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> (&mut Links, &mut Node) {
        (&mut self.links, &mut self.node)
    }
}

impl Machine for Broker {
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
        self.reports.review_doubt(now, &self.placement);
        if self.reports.review_at().is_some_and(|at| at <= now) {
            self.review_homes(now);
        }
        self.probe_tails();
        self.publications.acknowledge_late(now, &mut self.links);
        self.release_withheld(now);
        self.expire_commands(now);
        self.gain(now);
        self.look_at_relays(now);
        self.sweep(now);
        self.node.sweep(now);
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let more = self.links.transmit(now, &mut self.node, outbox);
        self.transmit_links(now, outbox) || more
    }

    fn deadline(&self) -> Option<Micros> {
        let sweep = (self.rooms.end() > 0 || !self.publications.is_empty()).then_some(self.sweep_at);
        [
            self.reports.doubts_until(),
            self.gains.deadline(),
            self.links.deadline(),
            self.withheld.deadline(),
            self.publications.deadline(),
            sweep,
            self.reports.review_at(),
            self.commands.deadline(),
            self.relays.deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn drain_events(&mut self, events: &mut Vec<LinkChange>) {
        events.extend(self.events.drain(..));
    }

    fn stalled(&mut self, _now: Micros) {}
}

#[cfg(test)]
mod tests {
    use super::gains::{GAINED_AT_ONCE, GAIN_EVERY};
    use super::*;
    use crate::command::{Ask, CommandId};
    use crate::ring::Entry;
    use muster_transport::fixtures::{node, Zeros};

    fn broker() -> Broker {
        let config = BrokerConfig {
            node: node(role::BROKER),
            name_key: [1; 16],
            settings: BrokerSettings::default(),
        };
        let mut broker = Broker::new(config, 1, Box::new(Zeros));
        let node = muster_transport::PlacedNode::new(1, role::BROKER, Default::default());
        broker.placement = room_placement(1, vec![node], 1, 1);
        broker.reports.begin(4, Scope::ALL);
        let (node, epoch, scope, version) = (2, 1, Scope::ALL, 0);
        assert!(broker.membership(
            0,
            4,
            &Record::GatewayBegin {
                node,
                epoch,
                scope,
                version
            }
        ));
        assert!(broker.membership(
            0,
            4,
            &Record::GatewayEnd {
                node,
                epoch,
                scope,
                version
            }
        ));
        broker
    }

    /// A router's report of a room of gateway 2.
    fn told(room: u64, version: u64, present: bool) -> Record<'static> {
        let membership = crate::wire::record::Membership {
            room,
            check: room,
            version,
            present,
        };
        Record::GatewayMembership {
            node: 2,
            epoch: 1,
            membership,
        }
    }

    #[test]
    fn a_router_cannot_report_more_rooms_than_the_limit() {
        let mut broker = broker();
        broker.rooms.set_max(3);
        for room in 10..20 {
            assert!(broker.membership(0, 4, &told(room, room, room % 2 == 0)));
        }
        assert_eq!((broker.interest.len(), broker.counters.refused_full), (3, 2));
        assert!(broker.membership(0, 4, &told(12, 30, false)), "what is known may end");
        assert_eq!(broker.interest.wanted(), [(2, 10), (2, 14)]);
    }

    #[test]
    fn a_gateway_learns_of_refusals_once_it_is_linked() {
        let mut broker = broker();
        broker.rooms.set_max(1);
        for room in [10, 11, 12] {
            assert!(broker.membership(0, 4, &told(room, room, true)));
        }
        assert!(broker.membership(0, 4, &told(12, 13, false)));
        assert_eq!(broker.untold.take(2, 1), [11]);
    }

    #[test]
    fn late_reports_of_an_ended_life_cause_no_refusal() {
        let mut broker = broker();
        broker.rooms.set_max(1);
        assert!(broker.membership(0, 4, &told(10, 1, true)));
        assert!(broker.interest.begin(4, (2, 2), (Scope::ALL, 0), &mut Vec::new()));
        broker.rooms.set_max(0);
        assert!(broker.membership(0, 4, &told(11, 2, true)));
        assert_eq!(
            (broker.counters.refused_full, broker.untold.take(2, 1)),
            (0, Vec::new())
        );
    }

    /// After its partition has doubled, the room belongs to another broker, so no router reports to this one that the
    /// life is over.
    #[test]
    fn a_restarted_gateway_gets_nothing_of_its_earlier_life() {
        let mut broker = broker();
        assert!(broker.membership(0, 4, &told(10, 1, true)));
        let room = broker.rooms.get_mut(0).expect("the room");
        for offset in 1..=5 {
            let entry = Entry {
                offset,
                ..Entry::default()
            };
            room.ring.push(&mut broker.arena, 0, &entry);
        }
        let mut base = |epoch| {
            let (node, role) = (2, role::GATEWAY);
            broker.gateway_up(0, 0, Identity { node, role, epoch });
            let room = broker.rooms.get_mut(0).expect("the room");
            room.cursor(2).map(|cursor| (cursor.base, cursor.next))
        };
        assert_eq!([1, 2].map(&mut base), [Some((1, 1)), Some((6, 6))]);
    }

    /// Regression: the broker stood still for 250 ms when it gained 300,000 rooms; at a million its links would have
    /// timed out.
    #[test]
    fn gained_rooms_begin_in_batches_and_at_once_if_needed() {
        let map = |epoch, node| {
            let node = muster_transport::PlacedNode::new(node, role::BROKER, Default::default());
            room_placement(epoch, vec![node], 1, 1)
        };
        let mut broker = broker();
        broker.set_placement(0, map(2, 9));
        let count = 3 * GAINED_AT_ONCE as u64;
        for room in 1..=count {
            assert!(broker.membership(0, 4, &told(room, room, true)));
        }
        assert_eq!(broker.rooms().count(), 0, "another one's");
        broker.set_placement(0, map(3, 1));
        assert_eq!(broker.rooms().count(), GAINED_AT_ONCE);
        let [_, unbegun] = broker.gains.ends().expect("the last one");
        assert!(broker.open_room(0, unbegun, unbegun).is_ok());
        assert_eq!(broker.rooms().count(), GAINED_AT_ONCE + 1);
        let [left, _] = broker.gains.ends().expect("the next one");
        assert!(broker.membership(0, 4, &told(left, count + 1, false)));
        broker.expire(0);
        assert_eq!(broker.deadline(), Some(GAIN_EVERY));
        (1..=2).for_each(|turn| broker.expire(turn * GAIN_EVERY));
        assert_eq!(
            broker.rooms().count() as u64,
            count - 1,
            "all but the one that was left"
        );
        assert_eq!(broker.gains.ends(), None);
        let gateways = |room: &Room| room.gateways.len();
        assert!(broker.rooms().all(|room| gateways(room) == 1));
    }

    /// Regression: each time the room came, its head joined a queue that a link without a window never empties.
    #[test]
    fn rooms_that_come_and_go_are_queued_once_per_gateway() {
        let mut broker = broker();
        let peer = Identity {
            node: 2,
            role: role::GATEWAY,
            epoch: 1,
        };
        broker.gateway_up(0, 0, peer);
        for version in 1..10_000 {
            assert!(broker.membership(0, 4, &told(10 + version / 2 % 3, version, version % 2 == 0)));
        }
        let gateway = &broker.gateways[&2];
        let waiting = gateway.heads.len() + gateway.pending.len();
        assert!(waiting <= 2 * (QUEUE_SPARE + 2 * broker.rooms.end()), "{waiting} wait");
        assert!(gateway.heads.contains(&0));
    }

    #[test]
    fn a_full_broker_refuses_rooms_to_gateways_and_publishers() {
        let mut broker = broker();
        broker.rooms.set_max(1);
        for room in [10, 11] {
            let change = Change {
                gateway: 2,
                room,
                check: room,
                present: true,
            };
            broker.interest_changed(0, change);
        }
        assert_eq!((broker.rooms().count(), broker.counters.refused_full), (1, 1));
        assert_eq!(broker.open_room(0, 11, 11), Err(Code::Busy));
        assert_eq!(broker.open_room(0, 10, 11), Err(Code::NameCollision));
        assert_eq!(broker.open_room(0, 10, 10), Ok(0));
    }

    /// No gateway wants any room here, so each command ends at once.
    #[test]
    fn a_hundred_thousand_commands_of_five_thousand_users_at_one_a_second_are_all_taken() {
        let mut broker = broker();
        assert!(broker.membership(0, 4, &Record::Complete { scope: Scope::ALL }));
        for number in 0..100_000 {
            let now = number * 200;
            broker.expire_commands(now);
            let asked = commands::Request {
                id: CommandId { user: 1, number },
                session: 1,
                room: number % 1_000,
                check: 0,
                left_ms: 5_000,
                ask: Ask::tell(b"now"),
            };
            broker.command(now, 3, asked);
            assert_eq!(broker.counters.commands_received, number + 1);
        }
    }
}
