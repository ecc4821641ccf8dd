//! Unicast in a proxy: the guest that takes messages of its clients to unicast services, and tells their outcomes.
//!
//! Owns [`Sending`]: a number for each message in this life of the proxy, two services of two sites for each, tries until an outcome or the
//! end of its time. Both services bring the same number, so a gateway takes one of them. Knows no gateway.

use crate::device::Device;
use crate::kinds;
use crate::limits::{EXPIRES_MS_MAX, ORDERS_MAX, SENDS_MAX, SESSION_SENDS_MAX};
use crate::peers::Peers;
use crate::records::{says_more, Letter, Outcomes, Record};
use crate::role;
use crate::wire::{Message, MessageId, Outcome, Unicast};
use muster_transport::{Code, End, Frame, FrameKinds, Guest, Host, Identity, Micros};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Services that say nothing are asked again after this, doubled up to the second figure.
const AGAIN: Micros = 250_000;
const AGAIN_MAX: Micros = 1_000_000;
/// A message without a service that is linked is looked at after this.
const UNLINKED: Micros = 50_000;
/// Where one service knows of no device, the other one has this long to know better.
const SETTLE: Micros = 300_000;
/// A service's last word may come so long after the end of a message's time.
const GRACE: Micros = 250_000;
/// A session whose log was nearly full is offered its outcomes again after this.
const OFFER_AGAIN: Micros = 20_000;

/// A client's session.
struct Client {
    user: u64,
    pending: usize,
}

/// A message on its way.
struct Pending {
    session: u64,
    sender: u64,
    number: u64,
    after: u64,
    user: u64,
    device: Option<Device>,
    body: Vec<u8>,
    until: Micros,
    /// Services that were asked, how often, and those that answered.
    asked: BTreeMap<u32, (u32, bool)>,
    wait: Micros,
    best: Option<Outcomes>,
    settles_at: Option<Micros>,
    due: Micros,
}

muster_transport::counters! {
    /// A proxy's messages to users.
    struct SendingCounters {
        /// Messages to users taken from clients.
        unicast_sends,
        /// Messages to users refused: as many are under way as may be.
        unicast_sends_refused,
        /// Tries of messages to users, each service counted.
        unicast_sends_forwarded,
        /// Messages to users that a device has.
        unicast_sends_delivered,
        /// Messages to users of whom no device is online.
        unicast_sends_not_online,
        /// Messages to users that no device had in their time, as far as is known.
        unicast_sends_expired,
    }
}

/// The guest of a proxy.
pub struct Sending {
    me: Identity,
    clients: HashMap<u64, Client>,
    services: Peers,
    pending: BTreeMap<u64, Pending>,
    by_number: HashMap<(u64, u64), u64>,
    due: BTreeSet<(Micros, u64)>,
    /// The last message of a session to a user, where a device has it or may get it.
    orders: BTreeMap<(u64, u64), u64>,
    newest: u64,
    /// Outcomes for sessions.
    told: VecDeque<(u64, Vec<u8>)>,
    again_at: Option<Micros>,
    /// Messages that came and have not been tried.
    fresh: Vec<u64>,
    counters: SendingCounters,
}

impl Sending {
    pub fn new(me: Identity) -> Self {
        Sending {
            me,
            clients: HashMap::new(),
            services: Peers::new(role::UNICAST, me.node),
            pending: BTreeMap::new(),
            by_number: HashMap::new(),
            due: BTreeSet::new(),
            orders: BTreeMap::new(),
            newest: 0,
            told: VecDeque::new(),
            again_at: None,
            fresh: Vec::new(),
            counters: SendingCounters::default(),
        }
    }

    fn take(&mut self, now: Micros, session: u64, send: Record<'_>) {
        let Record::Send {
            number,
            user,
            device,
            left_ms,
            data,
        } = send
        else {
            return;
        };
        let Some(client) = self.clients.get_mut(&session) else {
            return;
        };
        let sender = client.user;
        if let Some(known) = self.by_number.get(&(sender, number)) {
            // The client lost its session and came back here.
            if let Some(pending) = self.pending.get_mut(known) {
                pending.session = session;
            }
            return;
        }
        if client.pending >= SESSION_SENDS_MAX || self.pending.len() >= SENDS_MAX {
            self.counters.unicast_sends_refused += 1;
            return self.tell(session, number, Some(Code::Busy), Outcomes::new());
        }
        client.pending += 1;
        self.counters.unicast_sends += 1;
        self.newest += 1;
        let sequence = self.newest;
        let full = self.orders.len() >= ORDERS_MAX && !self.orders.contains_key(&(session, user));
        let after = match full {
            true => 0,
            false => self.orders.insert((session, user), sequence).unwrap_or(0),
        };
        let letter = Letter { sender, number, data };
        let pending = Pending {
            session,
            sender,
            number,
            after,
            user,
            device,
            body: letter.to_body(),
            until: now + Micros::from(left_ms.min(EXPIRES_MS_MAX)) * 1_000,
            asked: BTreeMap::new(),
            wait: AGAIN,
            best: None,
            settles_at: None,
            due: now,
        };
        self.pending.insert(sequence, pending);
        self.by_number.insert((sender, number), sequence);
        self.due.insert((now, sequence));
        self.fresh.push(sequence);
    }

    fn plan(&mut self, sequence: u64, at: Micros) {
        if let Some(pending) = self.pending.get_mut(&sequence) {
            self.due.remove(&(pending.due, sequence));
            pending.due = at.min(pending.until + GRACE);
            self.due.insert((pending.due, sequence));
        }
    }

    /// Asks two services that were asked least often.
    fn ask(&mut self, now: Micros, sequence: u64, host: &mut dyn Host) {
        let Some(pending) = self.pending.get_mut(&sequence) else {
            return;
        };
        let tries = |node: u32| pending.asked.get(&node).map_or(0, |(tries, _)| *tries);
        let fewest = self.services.nodes().map(tries).min().unwrap_or(0);
        let [first, second] = self.services.choose(pending.user, |node| tries(node) == fewest);
        let left_ms = pending.until.saturating_sub(now) / 1_000;
        let unicast = Message::Unicast(Unicast {
            id: MessageId {
                server: self.me.node,
                epoch: self.me.epoch,
                sequence,
            },
            after: pending.after,
            user: pending.user,
            device: pending.device,
            expires_ms: u32::try_from(left_ms).unwrap_or(u32::MAX).max(1),
            body: &pending.body,
        });
        let (frame, mut wait) = (unicast.to_frame(), UNLINKED);
        for service in [first, second].into_iter().flatten() {
            if host.frame(service, frame.clone()) {
                pending.asked.entry(service).or_default().0 += 1;
                self.counters.unicast_sends_forwarded += 1;
                wait = pending.wait;
            }
        }
        if wait != UNLINKED {
            pending.wait = (2 * pending.wait).min(AGAIN_MAX);
        }
        self.plan(sequence, now + wait);
    }

    fn answered(&mut self, now: Micros, service: u32, sequence: u64, outcomes: Outcomes) {
        let Some(pending) = self.pending.get_mut(&sequence) else {
            return; // the other service was sooner
        };
        if let Some((_, answered)) = pending.asked.get_mut(&service) {
            *answered = true;
        }
        if pending.best.as_ref().is_none_or(|best| says_more(&outcomes, best)) {
            pending.best = Some(outcomes);
        }
        let best = pending.best.as_deref().unwrap_or_default();
        let delivered = best.iter().any(|(_, outcome)| *outcome == Outcome::Delivered);
        let open = pending.asked.values().any(|(_, answered)| !answered);
        if delivered || !open {
            self.finish(sequence);
        } else {
            let at = *pending.settles_at.get_or_insert(now + SETTLE);
            self.plan(sequence, at);
        }
    }

    /// Tells the client what is known.
    fn finish(&mut self, sequence: u64) {
        let Some(pending) = self.pending.remove(&sequence) else {
            return;
        };
        self.due.remove(&(pending.due, sequence));
        self.by_number.remove(&(pending.sender, pending.number));
        let unknown = || vec![(pending.device, Outcome::Expired)];
        let outcomes = pending.best.filter(|best| !best.is_empty()).unwrap_or_else(unknown);
        let any = |wanted| outcomes.iter().any(|(_, outcome)| *outcome == wanted);
        let (delivered, expired) = (any(Outcome::Delivered), any(Outcome::Expired));
        let counter = match (delivered, expired) {
            (true, _) => &mut self.counters.unicast_sends_delivered,
            (false, true) => &mut self.counters.unicast_sends_expired,
            (false, false) => &mut self.counters.unicast_sends_not_online,
        };
        *counter += 1;
        let of = (pending.session, pending.user);
        if !delivered && self.orders.get(&of) == Some(&sequence) {
            self.orders.remove(&of); // no device has it: the next one waits for nothing
        }
        if let Some(client) = self.clients.get_mut(&pending.session) {
            client.pending = client.pending.saturating_sub(1);
        }
        self.tell(pending.session, pending.number, None, outcomes);
    }

    fn tell(&mut self, session: u64, number: u64, refused: Option<Code>, outcomes: Outcomes) {
        let sent = Record::Sent {
            number,
            refused,
            outcomes,
        };
        // As many as there are messages: a client that has gone hears nothing, and asks again by number.
        if self.told.len() < SENDS_MAX {
            self.told.push_back((session, sent.to_bytes()));
        }
    }

    fn look(&mut self, now: Micros, sequence: u64, host: &mut dyn Host) {
        let Some(pending) = self.pending.get(&sequence) else {
            return;
        };
        let settled = pending.settles_at.is_some_and(|at| now >= at);
        match settled || now >= pending.until + GRACE {
            true => self.finish(sequence),
            false => self.ask(now, sequence, host),
        }
    }
}

impl Guest for Sending {
    fn kinds(&self) -> FrameKinds {
        kinds::ALL
    }

    fn opened(&mut self, _now: Micros, session: u64, user: u64, _device: &[u8]) {
        self.clients.insert(session, Client { user, pending: 0 });
    }

    fn ended(&mut self, _now: Micros, session: u64, _end: End) {
        if self.clients.remove(&session).is_none() {
            return;
        }
        let of: Vec<(u64, u64)> = self
            .orders
            .range((session, 0)..=(session, u64::MAX))
            .map(|(of, _)| *of)
            .collect();
        for of in of {
            self.orders.remove(&of);
        }
    }

    fn record(&mut self, now: Micros, session: u64, record: &[u8]) -> bool {
        match Record::read(record) {
            Some(send @ Record::Send { .. }) => {
                self.take(now, session, send);
                true
            }
            _ => false,
        }
    }

    fn link(&mut self, now: Micros, peer: Identity, up: bool) {
        self.services.link(peer, up);
        if up || peer.role != role::UNICAST {
            return;
        }
        // What a dead service had is tried at once by another one.
        let had = |pending: &Pending| pending.asked.get(&peer.node).is_some_and(|(_, answered)| !answered);
        let late: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| had(pending))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in late {
            if let Some(pending) = self.pending.get_mut(&sequence) {
                pending.asked.remove(&peer.node);
            }
            self.plan(sequence, now);
        }
    }

    fn frame(&mut self, now: Micros, peer: Identity, frame: &Frame<'_>) -> bool {
        match Message::read(frame.kind, frame.body) {
            Some(Message::Here(here)) => {
                self.services.here(peer, here.site);
                true
            }
            Some(Message::UnicastAnswer(answer)) if peer.role == role::UNICAST => {
                if (answer.id.server, answer.id.epoch) == (self.me.node, self.me.epoch) {
                    self.answered(now, peer.node, answer.id.sequence, answer.outcomes);
                }
                true
            }
            _ => false,
        }
    }

    fn act(&mut self, now: Micros, host: &mut dyn Host) {
        // In the order in which they came.
        for sequence in std::mem::take(&mut self.fresh) {
            self.ask(now, sequence, host);
        }
        while let Some((_, sequence)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.look(now, sequence, host);
        }
        let mut waiting = VecDeque::new();
        for (session, record) in std::mem::take(&mut self.told) {
            if self.clients.contains_key(&session) && !host.offer(session, &record) {
                waiting.push_back((session, record));
            }
        }
        self.told = waiting;
        self.again_at = (!self.told.is_empty()).then_some(now + OFFER_AGAIN);
    }

    fn deadline(&self) -> Option<Micros> {
        let due = self.due.first().map(|(at, _)| *at);
        due.into_iter().chain(self.again_at).min()
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.told.is_empty()
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        let help = "Messages to users that wait for their outcome";
        each("unicast_sends_pending", help, self.pending.len() as f64);
    }
}
