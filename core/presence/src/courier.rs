//! The task of a unicast service: forwards a proxy's message to the gateways of its user, and combines their replies.
//!
//! Owns [`Courier`]: where users are, remembered for seconds; tries at each gateway until it replies or the message's
//! time is over; an outcome for each device. Nothing important is lost when it dies: the proxy asks another service,
//! and gateways remember the numbers of messages that they had. Knows no reader: it requests routes by events, and
//! the control plane brings them.

use crate::alarms::Alarms;
use crate::device::Device;
use crate::few::Few;
use crate::limits::{COURIER_MESSAGES_MAX, EXPIRES_MS_MAX, ROUTES_MAX};
use crate::post::Task;
use crate::quick::QuickMap;
use crate::records::{merge, Outcomes};
use crate::role;
use crate::wire::{Here, Message, MessageId, Outcome, Unicast, UnicastAnswer};
use muster_transport::{Identity, Mail, Micros};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// First interval before a silent gateway gets a message again, and the longest; it doubles each time.
const AGAIN: Micros = 150_000;
const AGAIN_MAX: Micros = 1_000_000;
/// Interval before a route that was not brought is requested again.
const ROUTE_AGAIN: Micros = 300_000;
/// How long a route is trusted: a gateway that replies "not here" ends it sooner.
const ROUTE_LIFE: Micros = 2_000_000;
/// If every gateway of a route replies "not here", the user may be moving: the route is requested again after each of
/// these waits.
const MOVES: [Micros; 2] = [50_000, 300_000];
/// How long after a message's time its gateways' last replies are accepted.
const GRACE: Micros = 150_000;
/// How long an outcome is kept, for proxies that ask again.
const KEEP: Micros = 2_000_000;
/// Entries are forgotten up to this much later, so that they need no wake-up of their own.
const FORGET_LATE: Micros = 500_000;

muster_transport::counters! {
    /// Counts of a unicast service.
    pub struct CourierCounters {
        /// Messages to users received from proxies.
        unicast_messages,
        /// Messages received again.
        unicast_messages_again,
        /// Frames sent to gateways, each try counted.
        unicast_pushed,
        /// Devices that confirmed their message.
        unicast_delivered,
        /// Messages to users without a device online.
        unicast_not_online,
        /// Messages that a device or a gateway did not confirm in time.
        unicast_expired,
        /// Devices with an unknown outcome: their gateway was lost.
        unicast_unknown,
        /// Routes asked for.
        unicast_routes_asked,
        /// Messages sent by a known route.
        unicast_routes_known,
        /// Messages dropped: too many are known.
        unicast_dropped_full,
    }
}

/// A device of a user, and the gateway that a reader has it at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whereabouts {
    pub gateway: u32,
    pub device: Device,
    /// `false`: its gateway was lost recently.
    pub is_online: bool,
}

/// The state of a message at one gateway.
struct Way {
    gateway: u32,
    /// Devices that a reader had there.
    devices: Vec<Device>,
    at: Micros,
    wait: Micros,
    outcomes: Option<Outcomes>,
}

/// A message without an outcome.
struct Order {
    proxy: u32,
    after: u64,
    user: u64,
    device: Option<Device>,
    /// It ends the devices' sessions.
    ends: bool,
    body: Vec<u8>,
    until: Micros,
    ways: Few<Way>,
    /// Since when it waits for a route.
    asked_at: Option<Micros>,
    moves: usize,
    due: Micros,
}

impl Way {
    /// The outcome of a gateway's devices if it does not reply; of no particular device if none is known.
    fn without_answer(
        &self,
        outcome: Outcome,
        wanted: Option<Device>,
    ) -> impl Iterator<Item = (Option<Device>, Outcome)> + '_ {
        let nobody = self.devices.is_empty().then_some((wanted, outcome));
        let devices = self.devices.iter().map(move |device| (Some(*device), outcome));
        devices.chain(nobody)
    }

    /// A gateway's reply, completed with the devices that it does not know.
    fn whole(&self, mut outcomes: Outcomes) -> Outcomes {
        let names = |outcomes: &Outcomes, device: &Device| outcomes.iter().any(|(of, _)| *of == Some(*device));
        let gone: Vec<Device> = self
            .devices
            .iter()
            .copied()
            .filter(|device| !names(&outcomes, device))
            .collect();
        outcomes.extend(gone.into_iter().map(|device| (Some(device), Outcome::NotOnline)));
        outcomes
    }
}

impl Order {
    /// Adds all gateways of a route to the message's. Returns whether one of them has yet to reply.
    fn aim(&mut self, now: Micros, route: &[Whereabouts], mail: &Mail) -> bool {
        self.asked_at = None;
        for one in route {
            let is_wanted = self.device.is_none_or(|device| device == one.device);
            let device = is_wanted.then_some(one.device);
            let known = self.ways.iter_mut().find(|way| way.gateway == one.gateway);
            match known {
                Some(way) => way
                    .devices
                    .extend(device.filter(|device| !way.devices.contains(device))),
                None => self.ways.push(Way {
                    gateway: one.gateway,
                    devices: device.into_iter().collect(),
                    at: now,
                    wait: AGAIN,
                    outcomes: None,
                }),
            }
        }
        for way in self.ways.iter_mut() {
            let is_named = route.iter().any(|one| one.gateway == way.gateway && one.is_online);
            match &way.outcomes {
                // A gateway that is gone, and that readers no longer list, will not reply for its devices.
                None if !is_named && !mail.is_linked(way.gateway) => {
                    way.outcomes = Some(way.without_answer(Outcome::Unknown, self.device).collect());
                }
                // A gateway that replied "not here" is asked again if the route still lists it.
                Some(outcomes) if is_named && is_not_here(outcomes) => {
                    (way.at, way.wait, way.outcomes) = (now, AGAIN, None);
                }
                _ => {}
            }
        }
        self.is_open()
    }

    /// What gateways replied.
    fn known(&self) -> impl Iterator<Item = (Option<Device>, Outcome)> + '_ {
        let answers = self.ways.iter().filter_map(|way| way.outcomes.as_ref());
        answers.flatten().copied()
    }

    /// Whether a gateway has not replied.
    fn is_open(&self) -> bool {
        self.ways.iter().any(|way| way.outcomes.is_none())
    }

    /// Sends the message to the gateways that are due. Returns their number, and when the next is due.
    fn push(&mut self, now: Micros, id: MessageId, mail: &mut Mail) -> (u64, Micros) {
        let left_ms = self.until.saturating_sub(now) / 1_000;
        let unicast = Unicast {
            id,
            after: self.after,
            user: self.user,
            device: self.device,
            expires_ms: u32::try_from(left_ms).unwrap_or(u32::MAX).max(1),
            body: &self.body,
        };
        let message = match self.ends {
            true => Message::End(unicast),
            false => Message::Unicast(unicast),
        };
        let (ways, mut next, mut pushed) = (&mut self.ways, self.until + GRACE, 0);
        message.encode(|frame| {
            for way in ways.iter_mut().filter(|way| way.outcomes.is_none()) {
                if way.at <= now {
                    mail.send(way.gateway, frame);
                    pushed += 1;
                    way.at = now + way.wait;
                    way.wait = (2 * way.wait).min(AGAIN_MAX);
                }
                next = next.min(way.at);
            }
        });
        (pushed, next)
    }
}

/// Where a user is.
struct Route {
    places: Vec<Whereabouts>,
    until: Micros,
}

/// The task of a unicast service.
pub struct Courier {
    here: Here,
    orders: QuickMap<MessageId, Order>,
    alarms: Alarms<MessageId>,
    /// The outcomes of recent messages, as frames: kept apart from open messages, since there are many more.
    answers: QuickMap<MessageId, Box<[u8]>>,
    /// When they are forgotten.
    done: VecDeque<(Micros, MessageId)>,
    routes: BTreeMap<u64, Route>,
    /// Messages that wait for a user's route.
    waiting: BTreeMap<u64, Vec<MessageId>>,
    /// Users whose routes must be requested.
    asks: Vec<u64>,
    readers: bool,
    pub counters: CourierCounters,
}

impl Courier {
    pub fn new(site: u16) -> Self {
        Courier {
            here: Here { site, shard: None },
            orders: QuickMap::default(),
            alarms: Alarms::default(),
            answers: QuickMap::default(),
            done: VecDeque::new(),
            routes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            asks: Vec::new(),
            readers: false,
            counters: CourierCounters::default(),
        }
    }

    /// Sets whether any reader is available to bring routes.
    pub fn set_readers(&mut self, known: bool) {
        self.readers = known;
    }

    /// Messages without an answer.
    pub fn pending_len(&self) -> usize {
        self.orders.len()
    }

    /// A reader's reply: where a user is; `None` if nobody knows.
    pub fn routed(&mut self, now: Micros, user: u64, places: Option<Vec<Whereabouts>>, mail: &mut Mail) {
        let Some(places) = places else {
            return; // its timer requests it again
        };
        for id in self.waiting.remove(&user).unwrap_or_default() {
            self.go(now, id, &places, mail);
        }
        let is_online = places.iter().any(|one| one.is_online);
        if is_online && (self.routes.len() < ROUTES_MAX || self.routes.contains_key(&user)) {
            let until = now + ROUTE_LIFE;
            self.routes.insert(user, Route { places, until });
        }
    }

    /// Sends a message to the gateways of a route.
    fn go(&mut self, now: Micros, id: MessageId, places: &[Whereabouts], mail: &mut Mail) {
        let Some(order) = self.orders.get_mut(&id) else {
            return;
        };
        match order.aim(now, places, mail) {
            true => self.push(now, id, mail),
            false => self.answer(now, id, mail),
        }
    }

    /// Sends a message to the gateways that are due, and schedules the next check.
    fn push(&mut self, now: Micros, id: MessageId, mail: &mut Mail) {
        let Some(order) = self.orders.get_mut(&id) else {
            return;
        };
        let (pushed, next) = order.push(now, id, mail);
        self.counters.unicast_pushed += pushed;
        self.plan(id, next);
    }

    /// Finds the route for a message: the known one, or from a reader.
    fn find(&mut self, now: Micros, id: MessageId, mail: &mut Mail) {
        let Some(order) = self.orders.get_mut(&id) else { return };
        let user = order.user;
        if let Some(route) = self.routes.get(&user).filter(|route| now < route.until) {
            self.counters.unicast_routes_known += 1;
            match order.aim(now, &route.places, mail) {
                true => self.push(now, id, mail),
                false => self.answer(now, id, mail),
            }
            return;
        }
        order.asked_at = Some(now);
        let waiting = self.waiting.entry(user).or_default();
        // One request for all that wait.
        if waiting.is_empty() {
            self.asks.push(user);
            self.counters.unicast_routes_asked += 1;
        }
        if !waiting.contains(&id) {
            waiting.push(id);
        }
        self.plan(id, now + ROUTE_AGAIN);
    }

    fn plan(&mut self, id: MessageId, at: Micros) {
        if let Some(order) = self.orders.get_mut(&id) {
            order.due = at.min(order.until + GRACE);
            self.alarms.set(order.due, id);
        }
    }

    fn take(&mut self, now: Micros, proxy: u32, unicast: &Unicast<'_>, ends: bool, mail: &mut Mail) {
        let id = unicast.id;
        if let Some(answer) = self.answers.get(&id) {
            self.counters.unicast_messages_again += 1;
            mail.send(proxy, answer);
            return;
        }
        if self.orders.len() + self.answers.len() >= COURIER_MESSAGES_MAX {
            self.counters.unicast_dropped_full += 1;
            return;
        }
        let entry = match self.orders.entry(id) {
            Entry::Vacant(entry) => entry,
            Entry::Occupied(_) => {
                self.counters.unicast_messages_again += 1;
                return;
            }
        };
        self.counters.unicast_messages += 1;
        let order = entry.insert(Order {
            proxy,
            after: unicast.after,
            user: unicast.user,
            device: unicast.device,
            ends,
            body: unicast.body.to_vec(),
            until: now + Micros::from(unicast.expires_ms.min(EXPIRES_MS_MAX)) * 1_000,
            ways: Few::default(),
            asked_at: None,
            moves: 0,
            due: now,
        });
        // The usual case: one look-up of the route, and no second one of the message.
        let route = self.routes.get(&unicast.user).filter(|route| now < route.until);
        match route.is_some_and(|route| order.aim(now, &route.places, mail)) {
            true => {
                self.counters.unicast_routes_known += 1;
                let (pushed, next) = order.push(now, id, mail);
                self.counters.unicast_pushed += pushed;
                order.due = next.min(order.until + GRACE);
                self.alarms.set(order.due, id);
            }
            false => self.find(now, id, mail),
        }
    }

    fn answered(&mut self, now: Micros, gateway: u32, id: MessageId, outcomes: Outcomes, mail: &mut Mail) {
        let Some(order) = self.orders.get_mut(&id) else {
            return;
        };
        let Some(way) = order.ways.iter_mut().find(|way| way.gateway == gateway) else {
            return;
        };
        let outcomes = way.whole(outcomes);
        let gone = |(_, outcome): &(Option<Device>, Outcome)| *outcome == Outcome::NotOnline;
        if outcomes.iter().any(gone) {
            self.routes.remove(&order.user); // it is outdated
        }
        way.outcomes = Some(outcomes);
        if order.is_open() {
            return;
        }
        let nobody = order.known().all(|one| gone(&one));
        // Another device of the user may be moving: the readers are asked once more. If all devices are, they are
        // asked twice.
        let moved = order.moves == 0 && merge(order.known()).iter().any(gone);
        match MOVES.get(order.moves).filter(|_| nobody || moved) {
            Some(wait) => {
                order.moves += 1;
                self.plan(id, now + wait);
            }
            None => self.answer(now, id, mail),
        }
    }

    /// Sends the proxy the outcome as far as it is known.
    fn answer(&mut self, now: Micros, id: MessageId, mail: &mut Mail) {
        let Some(order) = self.orders.remove(&id) else {
            return;
        };
        let open = order.ways.iter().filter(|way| way.outcomes.is_none());
        let unsaid = open.flat_map(|way| {
            let outcome = match mail.is_linked(way.gateway) {
                true => Outcome::Expired,
                false => Outcome::Unknown,
            };
            way.without_answer(outcome, order.device)
        });
        // No reader could tell where the user is.
        let nowhere = order.asked_at.is_some() && now >= order.until && order.ways.is_empty();
        let nowhere = nowhere.then_some((order.device, Outcome::Expired));
        let mut outcomes = merge(order.known().chain(unsaid).chain(nowhere));
        if outcomes.is_empty() {
            outcomes.push((order.device, Outcome::NotOnline));
        }
        let count = |wanted| outcomes.iter().filter(|(_, outcome)| *outcome == wanted).count() as u64;
        self.counters.unicast_delivered += count(Outcome::Delivered);
        self.counters.unicast_expired += u64::from(count(Outcome::Expired) > 0);
        self.counters.unicast_unknown += count(Outcome::Unknown);
        let nobody = count(Outcome::NotOnline) == outcomes.len() as u64;
        self.counters.unicast_not_online += u64::from(nobody);
        let answer = Message::UnicastAnswer(UnicastAnswer { id, ap: 0, outcomes });
        let answer = answer.encode(|frame| {
            mail.send(order.proxy, frame);
            frame.into()
        });
        self.answers.insert(id, answer);
        self.done.push_back((now + KEEP, id));
    }

    fn look(&mut self, now: Micros, id: MessageId, mail: &mut Mail) {
        let Some(order) = self.orders.get_mut(&id) else { return };
        if now >= order.until {
            if let Some(waiting) = self.waiting.get_mut(&order.user) {
                waiting.retain(|other| *other != id);
            }
            return self.answer(now, id, mail);
        }
        // A gateway that was silent for that long may be gone, and its user elsewhere; likewise if all reply "not
        // here".
        let user = order.user;
        let silent = order
            .ways
            .iter()
            .any(|way| way.outcomes.is_none() && way.wait > 2 * AGAIN);
        let moved = !order.is_open();
        let asks = order.asked_at.is_some() || silent || moved;
        self.push(now, id, mail);
        if asks {
            if let Some(waiting) = self.waiting.get_mut(&user) {
                waiting.retain(|other| *other != id); // the request, or its reply, may be lost
            }
            self.routes.remove(&user);
            self.find(now, id, mail);
        }
    }
}

/// Whether a gateway has no such device.
fn is_not_here(outcomes: &[(Option<Device>, Outcome)]) -> bool {
    outcomes.iter().all(|(_, outcome)| *outcome == Outcome::NotOnline)
}

impl Task for Courier {
    type Event = u64;

    fn here(&self) -> Here {
        self.here
    }

    fn not_ready(&self) -> Option<&'static str> {
        (!self.readers).then_some("no online reader is known")
    }

    fn message(&mut self, now: Micros, peer: Identity, message: Message<'_>, mail: &mut Mail) -> bool {
        let ends = matches!(message, Message::End(_));
        match message {
            Message::Here(_) => true,
            // A proxy numbers its own messages alone.
            Message::Unicast(unicast) | Message::End(unicast) => {
                let own = (unicast.id.server, unicast.id.epoch) == (peer.node, peer.epoch);
                if own {
                    self.take(now, peer.node, &unicast, ends, mail);
                }
                own && peer.role != role::UNICAST
            }
            Message::UnicastAnswer(answer) if answer.ap == peer.node => {
                self.answered(now, peer.node, answer.id, answer.outcomes, mail);
                true
            }
            _ => false,
        }
    }

    fn link(&mut self, now: Micros, peer: Identity, up: bool, _mail: &mut Mail) {
        if !up {
            self.routes
                .retain(|_, route| route.places.iter().all(|one| one.gateway != peer.node));
        }
        // Messages that a gateway has not answered are sent again, or sent elsewhere.
        let mut late = Vec::new();
        for (id, order) in &mut self.orders {
            let mut ways = order.ways.iter_mut();
            let way = ways.find(|way| way.gateway == peer.node && way.outcomes.is_none());
            if let Some(way) = way {
                (way.at, way.wait) = (now, if up { AGAIN } else { AGAIN_MAX });
                late.push(*id);
            }
        }
        late.sort_unstable(); // the messages of one proxy, in the order of their arrival
        for id in late {
            self.plan(id, now);
        }
    }

    fn expire(&mut self, now: Micros, mail: &mut Mail) {
        while let Some((_, id)) = self.done.front().copied().filter(|(at, _)| *at <= now) {
            self.done.pop_front();
            self.answers.remove(&id);
        }
        loop {
            let orders = &self.orders;
            let stands = |at: Micros, id: &MessageId| {
                let order = orders.get(id);
                order.is_some_and(|order| order.due == at)
            };
            let Some(id) = self.alarms.due(now, stands) else { break };
            self.look(now, id, mail);
        }
    }

    fn deadline(&self, _now: Micros) -> Option<Micros> {
        let done = self.done.front().map(|(at, _)| at + FORGET_LATE);
        self.alarms.first().into_iter().chain(done).min()
    }

    fn events(&mut self, into: &mut Vec<u64>) {
        into.append(&mut self.asks);
    }
}
