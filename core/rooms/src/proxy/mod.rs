//! The proxy: forwards clients' messages to the room's owner, and the owner's acknowledgements back.
//!
//! It numbers nothing and keeps no message: a publisher repeats lost ones. It stamps each message with the
//! publisher's user, so no client can publish as another user. Knows no member. Commands go by [`crate::dispatch`].

mod links;
use std::collections::{BTreeMap, VecDeque};

use crate::wire::kinds;

use crate::layers::{room_placement, RoomLayers};

use crate::role;

use muster_ahead::fetch;

use muster_transport::{
    append, Arrival, Code, Control, ControlRecord, Denied, Door, DoorKey, Entropy, Frames, Guest, HasLinks,
    HasSessions, Health, Inbox, KeyedState, LinkChange, Links, Lodge, Machine, Micros, Node, NodeConfig, Outbox,
    Placement, Question, Records, ResetSecret, ServerKey, Sessions, HEADER, PUBLIC_SOCKET,
};

use crate::accounts::{AccountId, Accounts, Bounds};
use crate::admission::{self, HasGrant};
use crate::age::{self, Sampler};
use crate::arena::NAMESPACES_MAX;
use crate::command::{Ask, Outcome, Page};
use crate::dispatch::{Asker, Commands, Dispatch, Limits, Parts};
use crate::limits::{LINK_LOG_BYTES, SESSION_PUBLICATIONS_MAX};
use crate::name::{RoomKey, RoomName};
use crate::owners::Owners;
use crate::queue::Queue;
use crate::rights::{Admitted, Grant, Rights};
use crate::settings::ProxySettings;
use crate::wire::publish::{flags_of, numbered, Ack, LinkPublish, Publish, LINK_PUBLISH};
use crate::wire::record::Record;
use crate::wire::room::HEADERS;
use crate::wire::PublisherId;

/// Maximum number of control records per second of one session, each of which opens a room. Brokers remember an
/// unused room for 60 s, about 10 MB at this rate. They bound one user's share.
pub const CONTROL_RATE: u32 = 200;
/// Maximum bytes of publish frames that wait for one broker's window: a burst of 2,000 full frames.
pub const QUEUE_BYTES_MAX: usize = 2 << 20;
/// One session's share of these, once the queue is half full.
const QUEUE_SHARE_MAX: usize = QUEUE_BYTES_MAX / 8;
/// A session's smallest window, however much waits: the brokers of its other rooms may be free.
const WINDOW_MIN: u32 = 64 * 1024;
/// Distance in datagrams between the prefetch of a session, the prefetch of its parts, and its use.
const AHEAD: usize = 4;
/// Maximum number of acknowledgements that wait for one session.
const ACKS_MAX: usize = 512;

/// The configuration of a proxy.
pub struct ProxyConfig {
    pub node: NodeConfig,
    pub name_key: [u8; 16],
    pub server_key: ServerKey,
    pub settings: ProxySettings,
}

muster_transport::counters! {
    /// A proxy's events.
    pub struct ProxyCounters {
        /// Messages taken from clients.
        messages_received,
        /// Messages passed on to brokers.
        messages_forwarded,
        /// Messages passed on to another broker because the room's owner has no link.
        messages_detoured,
        /// Messages dropped: the room's owner is not linked; the publisher repeats them.
        dropped_no_owner,
        /// Messages dropped: the queue for the owner is full; the publisher repeats them.
        dropped_queue_full,
        /// Messages dropped: above their user's rate, of messages or of bytes; the publisher repeats them.
        dropped_rate,
        /// Messages dropped: they have headers, and the broker is of a release before them; the publisher repeats them.
        dropped_headers,
        /// Messages dropped: a handle that the session did not open, or has closed.
        dropped_handle,
        /// Acknowledgements passed on to clients.
        acknowledgements_forwarded,
        /// Acknowledgements dropped: the session is gone or does not read.
        dropped_acknowledgement,
        /// Rooms opened for publishing.
        rooms_opened,
        /// Rooms that publishers closed.
        rooms_closed,
        /// Opens refused, for any reason.
        opens_refused,
        /// Commands and member queries taken from clients.
        commands_received,
        /// Commands and member queries refused, for any reason.
        commands_refused,
        /// Commands and member queries sent to brokers, each try counted.
        commands_forwarded,
    }
}

/// Events for the proxy's control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyEvent {
    Authenticate(Question),
    Link(LinkChange),
}

/// A slot for a room opened for publishing.
#[derive(Clone, Copy)]
struct Place {
    key: RoomKey,
    incarnation: u64,
    /// The slot's number in the low bits, its number of former uses in the high ones: late data for a former use
    /// matches nothing.
    handle: u32,
    /// The number of the room's namespace, if it has settings.
    namespace: u8,
    open: bool,
}

/// A proxy's data per session.
#[derive(Default)]
#[repr(C)] // fields that every datagram needs come first
pub struct Publisher {
    places: Vec<Place>,
    account: Option<AccountId>,
    /// Bytes of this session in the queues to brokers.
    queued: usize,
    /// The session's window while nothing waits.
    share: u32,
    acks: VecDeque<Vec<u8>>,
    /// The user's rights by room.
    grant: Grant,
}

impl HasGrant for Publisher {
    fn grant(&mut self) -> &mut Grant {
        &mut self.grant
    }

    fn account(&mut self) -> &mut Option<AccountId> {
        &mut self.account
    }
}

impl Publisher {
    /// The window for a session: datagrams beyond the queue's space would be dropped.
    fn window(&self, queue: &Queue) -> u32 {
        let most = if queue.bytes() > QUEUE_BYTES_MAX / 2 {
            QUEUE_SHARE_MAX
        } else {
            QUEUE_BYTES_MAX / 2
        };
        let free = most.saturating_sub(self.queued) as u32;
        self.share.min(free.max(WINDOW_MIN))
    }

    /// The slot that `handle` names, if it is open.
    fn place(&mut self, handle: u32) -> Option<&mut Place> {
        let place = self.places.get_mut(handle as usize % SESSION_PUBLICATIONS_MAX)?;
        (place.open && place.handle == handle).then_some(place)
    }
}

/// A proxy: it forwards its clients' messages and commands to brokers, and the replies back.
///
/// Give it the nodes with [`Proxy::set_placement`], and run the verbs of [`Machine`] in every turn. For each
/// [`ProxyEvent::Authenticate`] call [`Proxy::answer`] with the user and its rights. [`Proxy::not_ready`] returns why
/// it does not serve yet.
pub struct Proxy {
    node: Node,
    links: Links,
    sessions: Sessions<Publisher>,
    queues: BTreeMap<u32, Queue>,
    owners: Owners,
    placement: Placement,
    name_key: [u8; 16],
    /// Namespaces with settings, numbered from 1 on.
    namespaces: Vec<String>,
    commands: Commands,
    limits: Limits,
    accounts: Accounts,
    ages: Sampler,
    /// The guest, and the kinds of link frames that are ours or the guest's.
    lodge: Lodge,
    /// Health of brokers, used for commands alone.
    pub health: Health,
    pub counters: ProxyCounters,
    events: VecDeque<ProxyEvent>,
}

impl Proxy {
    pub fn new(config: ProxyConfig, seed: u64, mut entropy: Box<dyn Entropy>) -> Self {
        let ProxyConfig {
            node: config,
            name_key,
            server_key,
            settings,
        } = config;
        let reset = || ResetSecret::new(config.reset_secret);
        let public = Door::new(DoorKey::Server(Box::new(server_key)), reset(), entropy.as_mut());
        let link = Door::new(
            DoorKey::Cluster(Box::new(config.cluster.clone())),
            reset(),
            entropy.as_mut(),
        );
        let mut node = Node::new(config.me, config.payload, seed, entropy);
        let hash = KeyedState::new(node.secret_u64(), node.secret_u64());
        let door = &settings.door;
        let mut proxy = Proxy {
            links: Links::new(link, config.cluster, LINK_LOG_BYTES),
            sessions: Sessions::new(public, door.keepalive_ms, door.idle_timeout_ms, CONTROL_RATE),
            queues: BTreeMap::new(),
            owners: Owners::default(),
            placement: room_placement(0, Vec::new(), 1, 1),
            name_key,
            namespaces: settings.namespaces.clone(),
            commands: Commands::new(hash),
            limits: Limits::new(hash),
            accounts: Accounts::new(hash),
            ages: Sampler::new(settings.age_every),
            lodge: Lodge::new(kinds::ALL),
            health: Health::default(),
            counters: ProxyCounters::default(),
            events: VecDeque::new(),
            node,
        };
        proxy.use_settings(&settings);
        proxy
    }

    /// Uses the settings that may change while it runs.
    pub fn use_settings(&mut self, settings: &ProxySettings) {
        settings.door.apply(self);
        self.set_command_limit(settings.command_rate, settings.command_burst);
        self.set_bounds(settings.bounds());
    }

    /// Takes the control plane's placement; an older one changes nothing.
    pub fn set_placement(&mut self, now: Micros, placement: Placement) {
        if placement.epoch() < self.placement.epoch() {
            return;
        }
        self.node.stamp.placement = placement.epoch();
        self.links.place(placement.numbers());
        self.links.dial(
            now,
            placement.of(role::BROKER).map(|node| (node.node, node.role, node.addr)),
        );
        self.owners.placed(now, &placement, &self.links);
        self.placement = placement;
    }

    /// Whether the proxy has done all that the placement demands: running brokers are linked.
    pub fn settled(&self) -> bool {
        Owners::are_linked(&self.placement, &self.links)
    }

    /// Installs a guest, which gets the events of sessions and links from now on.
    pub fn take_in(&mut self, guest: Box<dyn Guest>) {
        self.lodge.take_in(guest);
    }

    /// The place of its guest.
    pub fn lodge(&self) -> &Lodge {
        &self.lodge
    }

    /// Answers a [`ProxyEvent::Authenticate`]: the user and its rights, or why it is refused. `aside`: the guest's
    /// part of the credential.
    pub fn answer(&mut self, now: Micros, id: u64, said: Result<Admitted, Denied>, aside: &[u8]) {
        let (sessions, lodge, accounts) = (&mut self.sessions, &mut self.lodge, &mut self.accounts);
        let Some((slot, waiting)) = admission::admit(sessions, lodge, accounts, now, id, said, aside) else {
            return;
        };
        for bytes in waiting {
            if let Some(record) = Record::read(&bytes) {
                self.request(now, slot, record);
            }
        }
        self.sessions.reschedule(now, slot);
    }

    /// Sets a user's commands per second, and the burst; also for each session of
    /// [`SHARED_USER`](crate::command::SHARED_USER).
    pub fn set_command_limit(&mut self, rate: u32, burst: u32) {
        self.limits.set(rate, burst);
    }

    /// Sets the limits of a user, over all its sessions; and of each session of
    /// [`SHARED_USER`](crate::command::SHARED_USER).
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.accounts.set(bounds);
    }

    /// Why the proxy cannot serve yet, if it cannot.
    pub fn not_ready(&self) -> Option<&'static str> {
        let linked = self
            .placement
            .of(role::BROKER)
            .any(|node| self.links.to(node.node).is_some());
        (!linked).then_some("no broker is linked")
    }

    /// The service that this proxy cannot offer although its nodes run, if any: running brokers that it cannot reach.
    pub fn cut_off(&self) -> Option<String> {
        let partition = self
            .placement
            .unreached(role::BROKER, |node| self.links.to(node).is_some())?;
        Some(format!("no broker of partition {partition} is linked"))
    }

    /// Whether nothing waits for a broker.
    pub fn is_idle(&self) -> bool {
        self.queues.values().all(Queue::is_empty) && self.commands.is_idle() && self.lodge.is_idle()
    }

    fn take_session(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let Some((slot, len)) = self.sessions.receive(now, &mut self.node, arrival, datagram) else {
            return;
        };
        let (mut elicits, mut control) = (false, false);
        let mut records = Records::default();
        for frame in Frames::new(&datagram[HEADER..HEADER + len], kinds::ALL) {
            let Ok(frame) = frame else {
                self.sessions.counters.dropped_frame += 1;
                break;
            };
            elicits |= kinds::ALL.elicits(frame.kind);
            if frame.kind == kinds::PUBLISH {
                self.publish(now, slot, frame.body);
                continue;
            }
            control = true;
            match self.sessions.control(now, slot, arrival.from, &frame, &mut records) {
                Control::Other => self.sessions.counters.dropped_frame += 1,
                Control::Closed(_) => break,
                _ => {}
            }
        }
        for bytes in records.iter() {
            if let Some(record) = self.sessions.record(now, slot, bytes) {
                self.request(now, slot, record);
            }
        }
        self.sessions.after(now, slot, elicits, control);
        self.cleanup(now);
        while let Some(question) = self.sessions.question() {
            self.events.push_back(ProxyEvent::Authenticate(question));
        }
    }

    /// Cleans up after sessions that ended.
    fn cleanup(&mut self, now: Micros) {
        while let Some(gone) = self.sessions.gone() {
            self.lodge.ended(now, gone.id, gone.end);
            if let Some(account) = gone.data.account {
                self.accounts.leave(now, account, 0);
            }
        }
    }

    fn request(&mut self, now: Micros, slot: u32, record: Record<'_>) {
        let answer = match record {
            Record::Open {
                request,
                name,
                incarnation,
            } => match self.open(slot, name, incarnation) {
                Ok(handle) => Record::Opened { request, handle },
                Err(code) => {
                    self.counters.opens_refused += 1;
                    Record::Control(ControlRecord::Refused {
                        request,
                        code,
                        retry_ms: 0,
                    })
                }
            },
            Record::Headers => Record::Headers,
            Record::Close { handle } => return self.close(slot, handle),
            Record::Command {
                number,
                name,
                left_ms,
                ask,
            } => return self.command(now, slot, number, name, left_ms, ask),
            Record::Join { request, .. } => Record::Control(ControlRecord::Refused {
                request,
                code: Code::NotAllowed,
                retry_ms: 0,
            }),
            Record::Guest(record) => {
                let session = self.sessions.table.get(slot).map(|peer| peer.conn.id);
                if !session.is_some_and(|session| self.lodge.record(now, session, record)) {
                    self.sessions.counters.dropped_frame += 1;
                }
                return;
            }
            _ => return,
        };
        self.sessions.tell(slot, &answer);
    }

    fn open(&mut self, slot: u32, name: &[u8], incarnation: u64) -> Result<u32, Code> {
        let name = RoomName::from_bytes(name).map_err(|_| Code::BadRoomName)?;
        let key = name.key(&self.name_key);
        let Some(peer) = self.sessions.table.get_mut(slot) else {
            return Err(Code::Unknown);
        };
        if !peer.data.data.grant.of(&name).has(Rights::PUBLISH) {
            return Err(Code::NotAllowed);
        }
        let places = &mut peer.data.data.places;
        let known = |place: &&Place| place.open && place.key == key && place.incarnation == incarnation;
        if let Some(place) = places.iter().find(known) {
            return Ok(place.handle);
        }
        let at = places.iter().position(|place| !place.open).unwrap_or(places.len());
        if at >= SESSION_PUBLICATIONS_MAX {
            return Err(Code::TooManyRooms);
        }
        let used = places.get(at).map(|place| place.handle);
        let known = self.namespaces.iter().take(NAMESPACES_MAX);
        let namespace = known.zip(1..).find(|(known, _)| *known == name.namespace());
        let place = Place {
            key,
            namespace: namespace.map_or(0, |(_, number)| number),
            incarnation,
            handle: used.map_or(at as u32, |handle| handle.wrapping_add(SESSION_PUBLICATIONS_MAX as u32)),
            open: true,
        };
        match places.get_mut(at) {
            Some(free) => *free = place,
            None => places.push(place),
        }
        self.counters.rooms_opened += 1;
        Ok(place.handle)
    }

    /// Takes a session's command, or says at once why not.
    fn command(&mut self, now: Micros, slot: u32, number: u64, name: &[u8], time_ms: u32, ask: Ask<'_>) {
        let Some(peer) = self.sessions.table.get(slot) else {
            return;
        };
        let name = RoomName::from_bytes(name).map_err(|_| Code::BadRoomName);
        let asker = Asker {
            session: peer.conn.id,
            user: peer.data.user,
            room: name.map(|name| (name.key(&self.name_key), peer.data.data.grant.of(&name))),
        };
        self.dispatch(now, &asker, number, time_ms, ask);
    }

    /// Frees the slot of a room that is no longer published to.
    fn close(&mut self, slot: u32, handle: u32) {
        let Some(peer) = self.sessions.table.get_mut(slot) else {
            return;
        };
        if let Some(place) = peer.data.data.place(handle) {
            place.open = false;
            self.counters.rooms_closed += 1;
        }
    }

    fn publish(&mut self, now: Micros, slot: u32, body: &[u8]) {
        let Some(frame) = Publish::read(body) else {
            self.sessions.counters.dropped_frame += 1;
            return;
        };
        let len = LINK_PUBLISH + frame.messages.len();
        let payload = self.node.payload;
        let fits = len <= muster_transport::frames_max(payload) && numbered(frame.low, frame.first);
        let Some(flags) = flags_of(frame.messages, frame.count, payload).filter(|_| fits) else {
            self.sessions.counters.dropped_frame += 1;
            self.refuse(slot, &frame, Code::Malformed);
            return;
        };
        let count = u64::from(frame.count);
        self.counters.messages_received += count;
        let Some(peer) = self.sessions.table.get_mut(slot).filter(|peer| peer.data.is_open()) else {
            self.counters.dropped_handle += count;
            return;
        };
        let Some(open) = peer.data.data.place(frame.handle).copied() else {
            self.counters.dropped_handle += count;
            return;
        };
        let account = peer.data.data.account;
        if let Some(Err(wait)) = account.map(|id| self.accounts.publish(now, id, frame.count.into(), body.len())) {
            self.counters.dropped_rate += count;
            self.hold_off(slot, &frame, wait);
            return;
        }
        let (session, user) = (peer.conn.id, peer.data.user);
        let away = peer.conn.flow.measured() / 2;
        let Some(route) = self.owners.route(now, self.placement.own(), &self.links, open.key.id) else {
            self.counters.dropped_no_owner += count;
            self.refuse(slot, &frame, Code::NotReady);
            return;
        };
        if flags & HEADERS != 0 && !self.owners.knows_headers(route.node) {
            self.counters.dropped_headers += count;
            self.refuse(slot, &frame, Code::NotReady);
            return;
        }
        let passed = LinkPublish {
            room: open.key.id,
            check: open.key.check,
            publisher: PublisherId {
                user,
                incarnation: open.incarnation,
            },
            session,
            handle: frame.handle,
            sent_at: frame.sent_at,
            low: frame.low,
            first: frame.first,
            count: frame.count,
            messages: frame.messages,
            detour: route.detour,
            namespace: open.namespace,
            // The time of birth, until the frame leaves.
            age: (frame.count > 0 && self.ages.draws()).then(|| age::born(now, away)),
        };
        let queue = self.queues.entry(route.node).or_default();
        let cost = Queue::cost(len);
        let Some(peer) = self.sessions.table.get_mut(slot) else {
            return;
        };
        // Once the queue is half full, a session with much in it must wait.
        let greedy = queue.bytes() > QUEUE_BYTES_MAX / 2 && peer.data.data.queued + cost > QUEUE_SHARE_MAX;
        if queue.bytes() + cost > QUEUE_BYTES_MAX || greedy {
            self.counters.dropped_queue_full += count;
            return;
        }
        queue.push(session, len, |writer| {
            passed.write(writer);
        });
        let data = &mut peer.data.data;
        data.queued += cost;
        data.share = data.share.max(peer.conn.receive_window);
        peer.conn.receive_window = data.window(queue);
        self.counters.messages_forwarded += count;
        self.counters.messages_detoured += if route.detour { count } else { 0 };
        self.links.table.mark(route.slot);
    }

    /// Refuses a frame that goes to no owner, with the reason: without one the publisher would back off ever longer.
    fn refuse(&mut self, slot: u32, frame: &Publish<'_>, code: Code) {
        self.answer_with(slot, Ack::refusing(frame.handle, frame.low, code));
    }

    /// Refuses a frame above the rate of its user, who must wait for `wait`.
    fn hold_off(&mut self, slot: u32, frame: &Publish<'_>, wait: Micros) {
        self.answer_with(slot, Ack::putting_off(frame.handle, frame.low, wait));
    }

    fn answer_with(&mut self, slot: u32, ack: Ack) {
        let Some(peer) = self.sessions.table.get_mut(slot).filter(|peer| peer.data.is_open()) else {
            return;
        };
        let (ack, acks) = (ack.to_vec(), &mut peer.data.data.acks);
        // Skips a repeat that differs only in the wait, which the client learns soon enough.
        let again = |last: &Vec<u8>| last[..4] == ack[..4] && last[8..] == ack[8..];
        if !acks.back().is_some_and(again) && acks.len() < ACKS_MAX {
            acks.push_back(ack);
            self.sessions.table.mark(slot);
        }
    }

    fn serve_session(&mut self, now: Micros, slot: u32, outbox: &mut Outbox) {
        self.sessions.challenge(now, &mut self.node, slot, outbox);
        loop {
            if outbox.room() == 0 {
                self.sessions.table.mark(slot);
                break;
            }
            let Some(peer) = self.sessions.table.get_mut(slot) else {
                return;
            };
            peer.data.probe = false;
            let acks = &mut peer.data.data.acks;
            let mut more = false;
            let sent = peer.conn.send(
                now,
                &mut self.node.keys,
                self.node.stamp,
                outbox,
                self.node.payload,
                |writer, _| {
                    // Acknowledgements are not repeated from here: the publisher repeats its message instead.
                    while let Some(ack) = acks.front() {
                        if !append(writer, kinds::ACK, 0, |writer| !writer.put(ack).full()) {
                            more = true;
                            break;
                        }
                        acks.pop_front();
                    }
                    false
                },
            );
            if !more || !sent {
                break;
            }
        }
        self.sessions.reschedule(now, slot);
    }
}

impl Dispatch for Proxy {
    fn parts(&mut self) -> Parts<'_> {
        Parts {
            commands: &mut self.commands,
            limits: &mut self.limits,
            health: &mut self.health,
            links: &mut self.links,
            placement: &self.placement,
            dice: &mut self.node.dice,
            received: &mut self.counters.commands_received,
            refused: &mut self.counters.commands_refused,
            forwarded: &mut self.counters.commands_forwarded,
        }
    }

    fn command_done(&mut self, session: u64, number: u64, outcome: Outcome, retry: Micros, page: Option<Page>) {
        let Some(slot) = self.sessions.table.find(session) else {
            return; // a returning sender asks again
        };
        let retry_ms = match outcome.is_put_off() {
            true => u32::try_from(retry / 1_000 + 1).unwrap_or(u32::MAX), // no clock is exact
            false => 0,
        };
        let done = Record::CommandDone {
            number,
            outcome,
            retry_ms,
            page,
        };
        self.sessions.tell(slot, &done);
    }
}

impl HasLinks for Proxy {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> (&mut Links, &mut Node) {
        (&mut self.links, &mut self.node)
    }
}

impl HasSessions for Proxy {
    type Session = Publisher;

    fn sessions(&self) -> &Sessions<Publisher> {
        &self.sessions
    }

    fn sessions_mut(&mut self) -> (&mut Sessions<Publisher>, &mut Node) {
        (&mut self.sessions, &mut self.node)
    }
}

impl Machine for Proxy {
    type Event = ProxyEvent;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        // Each step prefetches a datagram's session and another's session parts, and processes a datagram for which
        // both are cached.
        let count = inbox.arrivals.len();
        let mut slots = [None; AHEAD];
        for step in 0..count + 2 * AHEAD {
            let slot = &mut slots[step % AHEAD];
            if let Some(publisher) = slot
                .take()
                .and_then(|slot| self.sessions.fetch_key(&self.node.keys, slot))
            {
                publisher.places.first().map(fetch);
                publisher.account.and_then(|id| self.accounts.rates(id)).map(fetch);
            }
            if step < count {
                let (arrival, datagram) = inbox.datagram(step);
                if arrival.socket == PUBLIC_SOCKET {
                    *slot = self.sessions.fetch(datagram);
                }
            }
            if let Some(index) = step.checked_sub(2 * AHEAD) {
                let (arrival, datagram) = inbox.datagram(index);
                if arrival.socket == PUBLIC_SOCKET {
                    self.take_session(now, arrival, datagram);
                } else {
                    self.take_link(now, arrival, datagram);
                }
            }
        }
        self.lodge.act(now, &mut self.links, &mut self.sessions);
    }

    fn expire(&mut self, now: Micros) {
        self.links.expire(now, &mut self.node);
        self.link_changes(now);
        self.sessions.expire(now, &mut self.node);
        self.cleanup(now);
        self.look_after_commands(now);
        self.judge_brokers(now);
        self.node.sweep(now);
        self.lodge.act(now, &mut self.links, &mut self.sessions);
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let mut more = self.links.transmit(now, &mut self.node, outbox);
        more |= self.sessions.transmit(now, &mut self.node, outbox);
        let mut turns = self.links.table.ready_len();
        while turns > 0 && outbox.room() > 0 {
            turns -= 1;
            let Some(slot) = self.links.table.next_ready() else {
                break;
            };
            self.serve_link(now, slot, outbox);
        }
        let mut turns = self.sessions.table.ready_len();
        while turns > 0 && outbox.room() > 0 {
            turns -= 1;
            let Some(slot) = self.sessions.table.next_ready() else {
                break;
            };
            self.serve_session(now, slot, outbox);
        }
        more || self.links.table.ready_len() > 0 || self.sessions.table.ready_len() > 0
    }

    fn deadline(&self) -> Option<Micros> {
        [
            self.links.deadline(),
            self.sessions.deadline(),
            self.commands.deadline(),
            self.lodge.deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn drain_events(&mut self, events: &mut Vec<ProxyEvent>) {
        events.extend(self.events.drain(..));
    }

    fn stalled(&mut self, _now: Micros) {
        // Frames that waited for an owner are older than the stall: the publishers repeat them.
        for queue in self.queues.values_mut() {
            drop_queue(&mut self.sessions, queue);
        }
    }
}

/// A frame of a session left a queue: announces the session's window if it has grown much.
fn gone(sessions: &mut Sessions<Publisher>, queue: &Queue, session: u64, cost: usize) {
    let Some(slot) = sessions.table.find(session) else {
        return;
    };
    let Some(peer) = sessions.table.get_mut(slot) else {
        return;
    };
    let data = &mut peer.data.data;
    data.queued = data.queued.saturating_sub(cost);
    let (window, before) = (data.window(queue), peer.conn.receive_window);
    if window > before && (window == data.share || window / 2 > before) {
        peer.conn.receive_window = window;
        peer.conn.tell_status();
        sessions.table.mark(slot);
    }
}

/// Drops the frames that wait here, since no broker will take them.
fn drop_queue(sessions: &mut Sessions<Publisher>, queue: &mut Queue) {
    while let Some((session, frame)) = queue.front() {
        let cost = Queue::cost(frame.len());
        queue.pop();
        gone(sessions, queue, session, cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CommandId, SHARED_USER};
    use crate::fixtures::proxy;

    #[test]
    fn only_the_shared_token_ends_a_members_sessions_and_never_those_of_its_own_user() {
        let mut proxy = proxy();
        for (at, (user, member, taken)) in [(7, 8, 0), (SHARED_USER, SHARED_USER, 0), (SHARED_USER, 8, 1)]
            .into_iter()
            .enumerate()
        {
            let slot = proxy.sessions.admit(at as u32, at as u64);
            let peer = proxy.sessions.table.get_mut(slot).expect("it is there");
            peer.data.user = user;
            peer.data.data.grant = Grant::everywhere(Rights::ALL);
            proxy.command(0, slot, 1, b"sports:final", 5_000, Ask::End { user: member });
            assert_eq!(proxy.counters.commands_received, taken, "{user} {member}");
        }
        assert_eq!(proxy.counters.commands_refused, 2);
    }

    /// Ten thousand commands that wait for members, of users with one each.
    #[test]
    fn a_command_that_waits_costs_nothing_before_its_time() {
        let mut proxy = proxy();
        for user in 0..10_000 {
            let slot = proxy.sessions.admit(user, u64::from(user));
            let peer = proxy.sessions.table.get_mut(slot).expect("it is there");
            peer.data.data.grant = Grant::everywhere(Rights::COMMAND);
            let name = format!("sports:{user}");
            proxy.command(0, slot, 1, name.as_bytes(), 60_000, Ask::tell(b"go"));
        }
        assert_eq!(proxy.counters.commands_received, 10_000);
        let ids: Vec<CommandId> = proxy.commands.pending.keys().copied().collect();
        for id in ids {
            proxy.commands.plan(id, 10_000_000);
        }
        let mut now = 0;
        while now < 1_000_000 {
            now += 1_000;
            proxy.look_after_commands(now);
        }
        assert_eq!(
            (proxy.commands.visits, proxy.commands.deadline()),
            (0, Some(10_000_000))
        );
    }
}
