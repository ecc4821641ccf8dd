//! The gateway: holds end clients, takes one copy of each room message from its owner and gives it to every member.
//!
//! This file orders the shared parts: sessions on one side, links on the other, rooms between them. `room` holds a
//! room, `rules` what it is made by, `timers` when it is looked at, `joins` who joins and leaves. `fanout` is the data for members,
//! `rounds` whose turn it is. `upstream` takes what brokers, routers and gateways send; `reports` holds what brokers are told and
//! asked, `progress` how far members are, `backlog` whether that is late; `membership` tells routers which rooms have members,
//! `relays` is what other gateways bring and get, `commands` holds commands.

mod awaited;
mod backlog;
mod commands;
mod cursors;
mod datagrams;
#[cfg(feature = "edge")]
pub mod edge;
mod fanout;
mod filtering;
mod holes;
mod joins;
mod latest;
mod members;
mod membership;
mod patience;
mod progress;
mod proofs;
mod relays;
mod reports;
pub mod room;
mod rounds;
mod rules;
mod stragglers;
mod timers;
mod turns;
mod upstream;

use std::collections::VecDeque;
use std::num::NonZeroU64;

use crate::wire::kinds;

use crate::layers::{room_placement, RoomLayers};

use crate::role;

use muster_transport::{
    Code, ControlRecord, Debt, Door, DoorKey, Entropy, Guest, HasLinks, KeyedState, LinkChange, Links, Lodge, Micros,
    Node, NodeConfig, NodeState, PlacedNode, Placement, Question, Rate, Records, ResetSecret, ServerKey, Sessions,
};

use self::commands::Commands;
use self::filtering::Filtering;
use self::members::Members;
use self::membership::Feeds;
use crate::accounts::{AccountId, Accounts, Bounds};
use crate::admission::HasGrant;
use crate::age::Ages;
use crate::arena::Arena;
use crate::filter::Filter;
use crate::interest::Page;
use crate::limits::{LINK_LOG_BYTES, ROOMS_MAX};
use crate::name::RoomName;
use crate::owners::Owners;
use crate::rights::Grant;
use crate::segments::Segments;
use crate::settings::{GatewaySettings, RoomsSettings};
use crate::slots::Slots;
use crate::wire::record::Record;
use crate::wire::room::REPAIR_RANGES;
use crate::wire::StreamId;
use relays::Relays;
use reports::{Ask, Reports};
use room::{Pen, Room, Waiting, Wanted, BACKFILL_WAIT};
use rounds::Rounds;
use rules::Rules;
use timers::Timers;

/// Rooms that one session may be a member of.
pub const SESSION_ROOMS: usize = 256;
/// Rooms that one search by name looks at: some milliseconds of a turn.
pub const LOOKED_MAX: usize = 20_000;
/// Joins a second of one session, and at once (a reconnect joins all its rooms).
pub const JOINS_A_SECOND: u32 = 5;
const JOINS: Rate = Rate {
    a_second: JOINS_A_SECOND,
    burst: SESSION_ROOMS as u32,
};
/// Control records a second from one session.
pub const CONTROL_RATE: u32 = 20;
/// Messages a second that owners are asked for so that one session's joins go on where it was, and at once: four rooms of
/// the most that is fetched for one, or all its rooms with 1,024 each.
pub const HISTORY_A_SECOND: u32 = 1_024;
pub const HISTORY_FIRST: u32 = 4 * room::BACKFILL_MAX as u32;
const HISTORY: Rate = Rate {
    a_second: HISTORY_A_SECOND,
    burst: HISTORY_FIRST,
};
/// A leave is told to the router after the room was empty for this long.
pub const LEAVE_HOLD: Micros = 2_000_000;
/// A join is answered without its history if that does not come within this time.
const JOIN_WAIT: Micros = 2 * BACKFILL_WAIT;
/// A join to a room with a silent owner is refused after this: longer than the restart of a broker or a router, shorter
/// than a program's patience.
pub const ANSWER_WAIT: Micros = 4_000_000;
/// An owner that was not heard of a room is asked for its head after this, then less and less often.
const HEAD_FIRST: Micros = 20_000;
const HEAD_MAX: Micros = 200_000;
/// Idle rooms that forget overwritten places at once.
const TRIMMED_AT_ONCE: usize = 4_096;

/// How a gateway is set up.
pub struct GatewayConfig {
    pub node: NodeConfig,
    pub name_key: [u8; 16],
    pub server_key: ServerKey,
    pub settings: GatewaySettings,
}

muster_transport::counters! {
    /// A gateway's events on rooms.
    pub struct GatewayCounters {
        /// Room messages taken from owners, or from gateways that pass them on.
        messages_received,
        /// Room messages given a place, each once.
        messages_placed,
        /// Room messages that had come before.
        messages_duplicate,
        /// Room messages passed on to other gateways, each once for each gateway.
        messages_relayed,
        /// Frames that were not passed on to a gateway, since it took too few; it asks their owner for them.
        relay_frames_skipped,
        /// Messages sent to members, repairs not counted.
        messages_sent,
        /// Messages not sent to members because their filters passed them.
        messages_filtered,
        /// Messages sent to members again because they asked.
        messages_repaired,
        /// Room messages dropped: no member here.
        dropped_no_member,
        /// Room messages dropped: of a gateway that is not to bring them, or before the owner told their stream.
        dropped_unasked,
        /// Room messages dropped: of a stream that has ended.
        dropped_stale_stream,
        /// Room messages dropped: too much is held ahead of a hole.
        dropped_held_full,
        /// Room messages dropped that had been held: their stream ended, or no member waits for them any more.
        dropped_held,
        /// Room messages dropped: from before the room's beginning here, and no join waits for them.
        dropped_unwanted,
        /// Room messages dropped: cut short, or too long for members.
        dropped_malformed,
        /// Room messages dropped, each a gap's part: they waited too long for this gateway, and the room is live.
        dropped_expired,
        /// Gaps put into rooms because a repair did not come.
        gaps_unrepaired,
        /// Cursors of slow members that were moved.
        cursors_moved,
        /// Members that a paced room waits for no more: they took a trickle for too long.
        members_given_up,
        /// Repair requests of members that were served.
        repairs_served,
        /// Repair requests dropped: beyond the requester's allowance.
        dropped_repair_limit,
        /// Joins that history was not fetched for: more than one session may have fetched.
        dropped_history_limit,
        /// Repair requests sent to owners.
        repairs_asked,
        /// Members admitted to rooms.
        joins,
        /// Joins refused, whatever the reason.
        joins_refused,
        /// Of these, joins refused: their user has places in as many rooms here as it may.
        joins_refused_user,
        /// Of these, joins refused: this gateway has too many rooms for another one, or for one more of its user.
        joins_refused_rooms,
        /// Members that left.
        leaves,
        /// Commands taken from brokers, each once.
        commands_received,
        /// Commands that came once more.
        commands_duplicate,
        /// Commands refused as too many are known; their senders hear `busy`, or that they expired where other gateways had them.
        dropped_commands_full,
        /// Commands told to members.
        commands_sent,
        /// Commands that members said they have.
        commands_delivered,
        /// Questions of brokers for a room's members that were answered.
        counts_answered,
        /// Sessions ended by an operator: their user was a member of a room.
        members_ended,
    }
}

/// Events for the gateway's control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayEvent {
    Authenticate(Question),
    Link(LinkChange),
}

/// A session's place in one room.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    pub room: u32,
    /// Low half of the datagram sequence that last carried this room's newest.
    pub carrier: u32,
    /// The next place to send.
    pub cursor: u64,
    /// The session's index in the room's member list.
    pub seat: u32,
    /// The place where the room's head was when it joined.
    pub joined_at: u64,
    /// The room's head is to be told again.
    pub head_due: bool,
    /// The cursor by which a paced room counts it; no place is 0.
    pub counted: Option<NonZeroU64>,
    /// A paced room waits for it no more, until it has caught up.
    pub given_up: bool,
    /// It has a filter.
    pub filtered: bool,
}

/// What a session has that lost something, left a room, or has a filter.
#[derive(Default)]
struct Aside {
    /// Rooms, with the first and last place to send again.
    repairs: VecDeque<(u32, u64, u64)>,
    /// Rooms that it left, and how many commands had come by then.
    left: Vec<(u64, u64)>,
    /// The filter of a join that follows, by its request.
    filter: Option<(u32, Filter)>,
    /// Those of its rooms.
    filters: Vec<Filtering>,
}

impl Aside {
    /// Whether nothing but repairs is in it.
    fn is_spare(&self) -> bool {
        self.left.is_empty() && self.filter.is_none() && self.filters.is_empty()
    }
}

/// The place behind those of a room that a session was told of, or will be with the next heads.
fn told(aside: &Option<Box<Aside>>, joined: &Joined) -> u64 {
    let filters = aside
        .iter()
        .filter(|_| joined.filtered)
        .flat_map(|aside| &aside.filters);
    let mut of_room = filters.filter(|filter| filter.room == joined.room);
    of_room
        .next()
        .map_or(joined.cursor, |filter| filter.told(joined.cursor))
}

/// A gateway's data per session.
pub struct Client {
    pub joined: Vec<Joined>,
    /// Joins that wait for their room.
    waiting: u32,
    /// The room with which the next datagram starts.
    turn: u32,
    joins: Debt,
    /// Messages that were fetched from owners because it came back.
    history: Debt,
    /// Bytes that may be resent on request, and since when it grows.
    allowance: i32,
    allowance_at: Micros,
    /// What few sessions have.
    aside: Option<Box<Aside>>,
    /// It is told the ages of messages.
    ages: bool,
    /// It knows headers of messages.
    headers: bool,
    /// By which it is known, once it has asked for a room.
    session: u64,
    /// What it may do in which rooms.
    grant: Grant,
    account: Option<AccountId>,
}

impl Client {
    fn has_repairs(&self) -> bool {
        self.aside.as_ref().is_some_and(|aside| !aside.repairs.is_empty())
    }

    /// The join with this request, which follows, is for what a filter lets through.
    fn ask_filter(&mut self, request: u32, filter: Filter) {
        self.aside.get_or_insert_default().filter = Some((request, filter));
    }

    /// Its filter in a room.
    #[cfg(feature = "edge")]
    fn filtering(&self, room: u32) -> Option<&Filtering> {
        self.aside.as_ref()?.filters.iter().find(|filter| filter.room == room)
    }

    /// The place behind those of a room that it was told of, or will be with the next heads.
    fn told(&self, joined: &Joined) -> u64 {
        told(&self.aside, joined)
    }

    #[cfg(feature = "edge")]
    fn filtering_mut(&mut self, room: u32) -> Option<&mut Filtering> {
        self.aside
            .as_mut()?
            .filters
            .iter_mut()
            .find(|filter| filter.room == room)
    }

    /// Whether it wants the latest message of a room alone.
    fn wants_latest(&self, room: u32) -> bool {
        let mut filters = self.aside.iter().flat_map(|aside| &aside.filters);
        filters.any(|filter| filter.room == room && filter.is_latest())
    }

    /// The filter that came for a join with this request.
    fn filter_of(&mut self, request: u32) -> Option<Filter> {
        let (of, filter) = self.aside.as_mut()?.filter.take()?;
        (of == request).then_some(filter)
    }

    /// Gives a room, which it is a member of or will be, this filter or none.
    fn set_filter(&mut self, room: u32, filter: Option<Filtering>) {
        if let Some(aside) = &mut self.aside {
            aside.filters.retain(|known| known.room != room);
        }
        if let Some(filter) = filter {
            self.aside.get_or_insert_default().filters.push(filter);
        }
    }

    fn forget_repairs(&mut self, handle: u32) {
        if let Some(aside) = &mut self.aside {
            aside.repairs.retain(|(room, _, _)| *room != handle);
        }
    }

    /// It leaves a room when this many commands have come.
    fn goes(&mut self, room: u64, commands: u64) {
        let left = &mut self.aside.get_or_insert_default().left;
        left.retain(|(known, _)| *known != room);
        if left.len() >= SESSION_ROOMS {
            left.remove(0);
        }
        left.push((room, commands));
    }

    /// It joins a room: how many commands had come when it left that, or 0.
    fn comes_back(&mut self, room: u64) -> u64 {
        let Some(aside) = &mut self.aside else { return 0 };
        let before = aside.left.iter().position(|(known, _)| *known == room);
        before.map_or(0, |at| aside.left.remove(at).1)
    }
}

impl HasGrant for Client {
    fn grant(&mut self) -> &mut Grant {
        &mut self.grant
    }

    fn account(&mut self) -> &mut Option<AccountId> {
        &mut self.account
    }
}

impl Default for Client {
    fn default() -> Self {
        Client {
            joined: Vec::new(),
            waiting: 0,
            turn: 0,
            joins: Debt::default(),
            history: Debt::default(),
            allowance: fanout::ALLOWANCE_FIRST,
            allowance_at: 0,
            aside: None,
            ages: false,
            headers: false,
            session: u64::MAX,
            grant: Grant::default(),
            account: None,
        }
    }
}

/// The gateway.
///
/// Its fields are parts with a file each, and no two of them change together. A message passes most of them within one call, so
/// they stand side by side here, where they can be borrowed apart.
pub struct Gateway<S = Sessions<Client>> {
    node: Node,
    links: Links,
    sessions: S,
    /// By their ids.
    rooms: Slots<u64, Room>,
    /// Members of all rooms in sum.
    members: usize,
    accounts: Accounts,
    rules: Rules,
    arena: Arena,
    segments: Segments,
    rounds: Rounds,
    timers: Timers,
    placement: Placement,
    owners: Owners,
    reports: Reports,
    relays: Relays,
    feeds: Feeds,
    commands: Commands,
    /// Another system that lives here.
    lodge: Lodge,
    /// The machine's clock in microseconds as of this turn.
    now: Micros,
    records: Records,
    pub counters: GatewayCounters,
    /// How old messages were when they got their place, by the broker that they came from.
    pub ages: Ages,
    events: VecDeque<GatewayEvent>,
}

impl<S: Members> Gateway<S> {
    /// A gateway of sessions, which are made with the node's random numbers.
    fn with(
        config: NodeConfig,
        name_key: [u8; 16],
        settings: RoomsSettings,
        sessions: impl FnOnce(&mut Node) -> S,
        seed: u64,
        mut entropy: Box<dyn Entropy>,
    ) -> Self {
        let link = Door::new(
            DoorKey::Cluster(Box::new(config.cluster.clone())),
            ResetSecret::new(config.reset_secret),
            entropy.as_mut(),
        );
        let mut node = Node::new(config.me, config.payload, seed, entropy);
        let (k0, k1) = (node.secret_u64(), node.secret_u64());
        let hash = KeyedState::new(k0, k1);
        let sessions = sessions(&mut node);
        let again = Micros::from(settings.membership_again_ms) * 1_000;
        Gateway {
            links: Links::new(link, config.cluster, LINK_LOG_BYTES),
            sessions,
            rooms: Slots::new(hash, ROOMS_MAX),
            members: 0,
            rules: Rules::new(name_key, &settings),
            arena: Arena::with(settings.arena_bytes, &settings.namespaces),
            segments: Segments::new(k0 ^ k1),
            rounds: Rounds::default(),
            timers: Timers::new(),
            placement: room_placement(0, Vec::new(), 1, 1),
            reports: Reports::default(),
            relays: Relays::default(),
            feeds: Feeds::new(config.me.node, again),
            commands: Commands::new(hash),
            accounts: Accounts::new(hash),
            owners: Owners::default(),
            lodge: Lodge::new(kinds::ALL),
            now: 0,
            records: Records::default(),
            counters: GatewayCounters::default(),
            ages: Ages::default(),
            events: VecDeque::new(),
            node,
        }
    }

    /// Takes the control plane's placement; one older than the present changes nothing.
    pub fn set_placement(&mut self, now: Micros, placement: Placement) {
        if placement.epoch() < self.placement.epoch() {
            return;
        }
        self.now = now;
        self.node.stamp.placement = placement.epoch();
        self.links.place(placement.numbers());
        self.owners.placed(now, &placement, &self.links);
        let before = std::mem::replace(&mut self.placement, placement);
        self.dial(now);
        self.repartition(now, before.routers());
        self.bury(now);
    }

    /// Sets what a user may have here, over all its sessions, and each session of
    /// [`SHARED_USER`](crate::command::SHARED_USER).
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.accounts.set(bounds);
    }

    /// Sets how many rooms there may be at once, at most [`ROOMS_MAX`]; those that are there stay.
    pub fn set_rooms_max(&mut self, rooms: usize) {
        self.rooms.set_max(rooms.min(ROOMS_MAX));
    }

    /// Uses the settings that may change while it runs.
    fn apply_rooms(&mut self, settings: &RoomsSettings, sessions: u32) {
        self.rules.history_max = settings.history_max;
        self.set_bounds(settings.bounds(sessions));
        self.set_rooms_max(settings.rooms_max);
    }

    /// Takes a guest in, which hears of sessions and links from now on.
    pub fn take_in(&mut self, guest: Box<dyn Guest>) {
        self.lodge.take_in(guest);
    }

    /// The place of its guest.
    pub fn lodge(&self) -> &Lodge {
        &self.lodge
    }

    /// Why the gateway cannot serve yet, if it cannot.
    pub fn not_ready(&self) -> Option<&'static str> {
        let mut brokers = self.placement.of(role::BROKER);
        let linked = brokers.any(|node| self.links.to(node.node).is_some());
        match (self.feeds.are_complete(self.placement.routers()), linked) {
            (false, _) => Some("no router is linked"),
            (_, false) => Some("no broker is linked"),
            _ => None,
        }
    }

    /// A service that other nodes offer clients and this gateway cannot, if any: running brokers or routers that it
    /// does not reach.
    pub fn cut_off(&self) -> Option<String> {
        let placement = &self.placement;
        let serving =
            |node: &&PlacedNode| node.state == NodeState::Running && node.partition < placement.routers().used();
        let mut routers = placement.of(role::ROUTER).filter(serving);
        if let Some(router) = routers.find(|node| !self.feeds.reach(node.partition)) {
            return Some(format!("no router of partition {} is linked", router.partition));
        }
        let partition = self
            .placement
            .unreached(role::BROKER, |node| self.links.to(node).is_some())?;
        Some(format!("no broker of partition {partition} is linked"))
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Every room that has members, or had them lately.
    pub fn rooms(&self) -> impl Iterator<Item = &Room> {
        self.rooms.iter().map(|(_, room)| room)
    }

    pub fn rooms_len(&self) -> usize {
        self.rooms.len()
    }

    /// Members of all rooms.
    pub fn members_len(&self) -> usize {
        self.members
    }

    /// Those in at most `limit` places from one on, and the next place, if there is one.
    pub fn rooms_from(&self, place: usize, limit: usize) -> (impl Iterator<Item = &Room>, Option<usize>) {
        self.rooms.page(place, limit)
    }

    /// At most `limit` rooms whose names contain a text, from a place on, and the place at which others may follow. One
    /// call looks at [`LOOKED_MAX`] rooms.
    pub fn rooms_named(&self, text: &str, place: usize, limit: usize) -> (Vec<&Room>, Option<usize>) {
        let end = place.saturating_add(LOOKED_MAX).min(self.rooms.end());
        let mut found = Vec::new();
        for at in place..end {
            let room = self.rooms.get(at as u32);
            found.extend(room.filter(|room| room.name.contains(text)));
            if found.len() >= limit && at + 1 < self.rooms.end() {
                return (found, Some(at + 1));
            }
        }
        (found, (end < self.rooms.end()).then_some(end))
    }

    /// Messages held now, because an earlier one is missing or because history is not whole.
    pub fn held(&self) -> u64 {
        self.rooms().map(|room| room.held_len() as u64).sum()
    }

    /// The rooms that this gateway wants, as routers and brokers should know them; pages as of [`Interest::page`].
    ///
    /// [`Interest::page`]: crate::interest::Interest::page
    pub fn wanted(&self, (gateway, place): (u32, u64), limit: usize) -> Page {
        let me = self.node.me.node;
        if gateway > me {
            return Page::default();
        }
        let place = if gateway == me { place } else { 0 };
        let (rooms, next) = self.rooms_from(usize::try_from(place).unwrap_or(usize::MAX), limit);
        Page {
            wanted: rooms.map(|room| (me, room.id)).collect(),
            next: next.map(|place| (me, place as u64)),
            visited: limit,
        }
    }

    /// A room by its name.
    pub fn room(&self, name: &RoomName<'_>) -> Option<&Room> {
        self.rooms.named(self.rules.key_of(name).id)
    }

    /// Cleans up after sessions that ended.
    fn cleanup(&mut self, now: Micros) {
        while let Some(gone) = self.sessions.gone() {
            self.lodge.ended(now, gone.id, gone.end);
            let client = gone.data;
            if let Some(account) = client.account {
                self.accounts
                    .leave(now, account, client.joined.len() + client.waiting as usize);
            }
            for joined in client.joined {
                self.unseat(now, gone.slot, &joined);
            }
            let left = client.aside.unwrap_or_default().left;
            self.commands_lost(now, client.session, &left);
        }
    }

    fn refuse(&mut self, slot: u32, request: u32, code: Code) {
        let retry_ms = if code.retry() { 500 } else { 0 };
        let refused = ControlRecord::Refused {
            request,
            code,
            retry_ms,
        };
        self.sessions.tell(slot, &Record::Control(refused));
    }

    fn schedule_room(&mut self, now: Micros, at: u32) {
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        let leave = room.empty_since.map(|since| since + LEAVE_HOLD);
        let first = room.waiting.first();
        let ready = first.is_some() && self.is_ready(now, room);
        let head = first
            .filter(|_| room.is_in_force() && !ready)
            .map(|waiting| now + (now - waiting.since).clamp(HEAD_FIRST, HEAD_MAX));
        let wait = first.map(|waiting| match waiting.tried.filter(|_| ready) {
            Some(since) => since + JOIN_WAIT,
            None => waiting.since + ANSWER_WAIT,
        });
        let around = room.ask_around_at.filter(|_| ready);
        let prove = room.proofs.as_ref().and_then(|proofs| proofs.asks).map(|(at, _)| at);
        if let Some(at_time) = [room.deadline(now), leave, head, wait, around, prove]
            .into_iter()
            .flatten()
            .min()
        {
            self.timers.look(now, at, at_time);
        }
    }

    fn expire_rooms(&mut self, now: Micros) {
        let mut wanted: Vec<Wanted> = Vec::new();
        while let Some(at) = self.timers.due_room(now) {
            let Some(room) = self.rooms.get_mut(at) else {
                continue;
            };
            if room.empty_since.is_some_and(|since| now >= since + LEAVE_HOLD) {
                self.close_room(now, at);
                continue;
            }
            let fetching = room.fetching();
            let mut pen = Pen {
                arena: &mut self.arena,
                counters: &mut self.counters,
                ages: &mut self.ages,
                placement: &self.placement,
                now,
            };
            let links = &self.links;
            let rtt = |stream: StreamId| {
                let link = links.to(stream.node).and_then(|slot| links.table.get(slot));
                link.map_or(0, |link| link.conn.flow.rtt())
            };
            if room.expire(&mut pen, rtt, &mut wanted, REPAIR_RANGES) {
                self.activate(at);
            }
            let Some(room) = self.rooms.get(at) else {
                continue;
            };
            if !room.waiting.is_empty() {
                if self.is_ready(now, room) {
                    // A member that asked for more history later asks for it again.
                    let ended = (fetching && !room.fetching()).then(|| now.saturating_sub(BACKFILL_WAIT));
                    let overdue = |waiting: &Waiting| waiting.tried.is_none_or(|since| now >= since + JOIN_WAIT);
                    let asks = room.ask_around_at.is_some_and(|at| now >= at);
                    if ended.is_some() || asks || room.waiting.first().is_some_and(overdue) {
                        self.admit_waiting(now, at, ended);
                    } else {
                        self.admit_fetched(now, at);
                    }
                } else {
                    let in_force = room.is_in_force();
                    self.refuse_overdue(now, at);
                    if in_force {
                        self.ask_heads(now, at);
                    }
                }
            }
            for wanted in wanted.drain(..) {
                let owner = wanted.stream.node;
                self.reports.ask(&mut self.links, owner, Ask::wanted(at, wanted));
            }
            self.prove(now, at);
            self.schedule_room(now, at);
        }
    }

    /// Runs the timers of links that are due.
    fn expire_links(&mut self, now: Micros) {
        self.links.expire(now, &mut self.node);
        self.link_changes(now);
        self.probe_children();
        self.hang_up_unused(now);
        if self.feeds.deadline().is_some_and(|at| at <= now) {
            self.review_homes(now);
        }
    }

    /// Runs the other timers, once sessions had theirs.
    fn expire_members(&mut self, now: Micros) {
        self.cleanup(now);
        self.bury(now);
        self.expire_rooms(now);
        self.expire_untold(now);
        self.expire_wakes(now);
        self.reports.flush(now, &mut self.links);
        self.expire_commands(now);
        self.node.sweep(now);
        self.trim(now);
        self.lodge.act(now, &mut self.links, &mut self.sessions);
    }

    /// When these have something to do next.
    fn rooms_deadline(&self) -> Option<Micros> {
        [
            self.links.deadline(),
            self.timers.deadline(),
            self.reports.deadline(),
            self.relays.deadline(),
            self.feeds.deadline(),
            self.commands.deadline(),
            self.lodge.deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn trim(&mut self, now: Micros) {
        if !self.timers.trims(now) {
            return;
        }
        for _ in 0..self.rooms.end().min(TRIMMED_AT_ONCE) {
            let next = self.rooms.next_turn();
            if let Some(room) = next.and_then(|at| self.rooms.get_mut(at)) {
                room.ring.trim(&self.arena);
            }
        }
    }
}

impl<S> HasLinks for Gateway<S> {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> (&mut Links, &mut Node) {
        (&mut self.links, &mut self.node)
    }
}
