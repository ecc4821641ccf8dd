//! Unicast in a proxy: the guest that passes its clients' messages to unicast services, and reports their outcomes.
//!
//! Owns [`Sending`]: a number for each message in this life of the proxy, a service for each and one of another site
//! if the first is late, tries until an outcome or the end of the message's time. All services send the same number,
//! so a gateway accepts one of them. A client may send only to the users in its credential. Knows no gateway.

use crate::alarms::Alarms;
use crate::device::Device;
use crate::few::Few;
use crate::kinds;
use crate::limits::{EXPIRES_MS_MAX, ORDERS_MAX, SENDS_MAX, SESSION_SENDS_MAX};
use crate::peers::Peers;
use crate::quick::QuickMap;
use crate::recipients::{Claims, Recipients};
use crate::records::{merge, Letter, Outcomes, Record};
use crate::role;
use crate::undelivered::{worst, Undelivered};
use crate::wire::{Message, MessageId, Outcome, Unicast};
use muster_transport::{Code, End, Frame, FrameKinds, Guest, Host, Identity, Micros};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::mpsc::SyncSender;

/// Bounds of the delay after which a second service is asked because the first is later than replies recently were.
const HEDGE_MIN: Micros = 20_000;
const HEDGE_MAX: Micros = 200_000;
/// First interval before silent services are asked again, and the longest; it doubles each time.
const AGAIN: Micros = 250_000;
const AGAIN_MAX: Micros = 1_000_000;
/// Interval of checks while no service is linked.
const UNLINKED: Micros = 50_000;
/// If one service knows no device, how long the other one may take to find some.
const SETTLE: Micros = 300_000;
/// How long after a message's time a service's last reply is accepted.
const GRACE: Micros = 250_000;
/// Interval before a session whose log was nearly full is offered its outcomes again.
const OFFER_AGAIN: Micros = 20_000;

/// A client's session.
struct Client {
    user: u64,
    recipients: Recipients,
    pending: usize,
    /// Refusals that wait for space in its log.
    refusals: usize,
}

/// A request to a service.
struct ServiceRequest {
    service: u32,
    tries: u32,
    answered: bool,
}

/// Outcomes for a session.
struct Answer {
    session: u64,
    /// The devices whose gateway was lost, sent first.
    lost: Option<Vec<u8>>,
    record: Vec<u8>,
    is_refusal: bool,
}

/// An open message.
struct Pending {
    session: u64,
    sender: u64,
    number: u64,
    after: u64,
    user: u64,
    device: Option<Device>,
    /// It ends the devices' sessions.
    ends: bool,
    body: Vec<u8>,
    until: Micros,
    asked: Few<ServiceRequest>,
    /// When the first service was asked.
    asked_at: Option<Micros>,
    wait: Micros,
    best: Option<Outcomes>,
    settles_at: Option<Micros>,
    due: Micros,
}

muster_transport::counters! {
    /// A proxy's messages to users.
    struct SendingCounters {
        /// Messages to users received from clients.
        unicast_sends,
        /// Messages to users refused: too many are in progress.
        unicast_sends_refused,
        /// Messages to users refused: their sender has no right to send to that user.
        unicast_sends_forbidden,
        /// Messages to users for which a second service was asked because the first was late or knew no device.
        unicast_sends_hedged,
        /// Tries of messages to users, each service counted.
        unicast_sends_forwarded,
        /// Messages to users confirmed by a device.
        unicast_sends_delivered,
        /// Messages to users without a device online.
        unicast_sends_not_online,
        /// Messages to users that no device confirmed in time.
        unicast_sends_expired,
        /// Messages of users to users of whom no device has them, to be handed on (presence.not_online).
        unicast_undelivered,
        /// Such messages dropped: too many waited to be handed on.
        unicast_undelivered_dropped,
    }
}

/// How long replies recently took, as a round trip is measured for repeats.
struct Pace {
    mean: Micros,
    deviation: Micros,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            mean: HEDGE_MIN,
            deviation: HEDGE_MIN / 4,
        }
    }
}

impl Pace {
    fn note(&mut self, took: Micros) {
        let took = took.min(AGAIN_MAX);
        self.deviation = (3 * self.deviation + took.abs_diff(self.mean)) / 4;
        self.mean = (7 * self.mean + took) / 8;
    }

    /// A reply that takes longer is late.
    fn late(&self) -> Micros {
        (self.mean + 4 * self.deviation).clamp(HEDGE_MIN, HEDGE_MAX)
    }
}

/// The guest of a proxy.
pub struct Sending {
    me: Identity,
    nobody: u64,
    clients: QuickMap<u64, Client>,
    services: Peers,
    pending: QuickMap<u64, Pending>,
    by_number: HashMap<(u64, u64), u64>,
    alarms: Alarms<u64>,
    /// The last message of a session to a user, if a device has it or may get it.
    orders: BTreeMap<(u64, u64), u64>,
    newest: u64,
    pace: Pace,
    told: VecDeque<Answer>,
    again_at: Option<Micros>,
    /// New messages that have not been tried.
    fresh: Vec<u64>,
    /// Where messages go that no device has.
    undelivered: Option<SyncSender<Undelivered>>,
    counters: SendingCounters,
}

impl Sending {
    /// `nobody`: the user of the shared token, which alone may end sessions.
    pub fn new(me: Identity, nobody: u64) -> Self {
        Sending {
            me,
            nobody,
            clients: QuickMap::default(),
            services: Peers::new(role::UNICAST, me.node),
            pending: QuickMap::default(),
            by_number: HashMap::new(),
            alarms: Alarms::default(),
            orders: BTreeMap::new(),
            newest: 0,
            pace: Pace::default(),
            told: VecDeque::new(),
            again_at: None,
            fresh: Vec::new(),
            undelivered: None,
            counters: SendingCounters::default(),
        }
    }

    /// Puts messages of users that no device has into this queue. Those with the shared token are not put there: their
    /// programs hand them on by themselves.
    pub fn hand_on(&mut self, queue: SyncSender<Undelivered>) {
        self.undelivered = Some(queue);
    }

    fn take(&mut self, now: Micros, session: u64, asked: Record<'_>) {
        let (number, user, device, left_ms, data, ends) = match asked {
            Record::Send {
                number,
                user,
                device,
                left_ms,
                data,
            } => (number, user, device, left_ms, data, false),
            Record::End {
                number,
                user,
                device,
                left_ms,
            } => (number, user, device, left_ms, &[][..], true),
            _ => return,
        };
        let Some(client) = self.clients.get_mut(&session) else {
            return;
        };
        let sender = client.user;
        if let Some(known) = self.by_number.get(&(sender, number)) {
            // The client lost its session and returned here.
            if let Some(pending) = self.pending.get_mut(known) {
                pending.session = session;
            }
            return;
        }
        let may = client.recipients.has(user) && (!ends || sender == self.nobody);
        if !may {
            self.counters.unicast_sends_forbidden += 1;
            return self.tell(session, number, Some(Code::NotAllowed), Outcomes::new());
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
        let after = match full || ends {
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
            ends,
            body: letter.to_body(),
            until: now + Micros::from(left_ms.min(EXPIRES_MS_MAX)) * 1_000,
            asked: Few::default(),
            asked_at: None,
            wait: AGAIN,
            best: None,
            settles_at: None,
            due: now,
        };
        self.pending.insert(sequence, pending);
        self.by_number.insert((sender, number), sequence);
        self.fresh.push(sequence);
    }

    fn plan(&mut self, sequence: u64, at: Micros) {
        if let Some(pending) = self.pending.get_mut(&sequence) {
            pending.due = at.min(pending.until + GRACE);
            self.alarms.set(pending.due, sequence);
        }
    }

    /// Asks one service first, always the same for a user, then one of another site, then the two asked least often.
    fn ask(&mut self, now: Micros, sequence: u64, host: &mut dyn Host) {
        let Some(pending) = self.pending.get_mut(&sequence) else {
            return;
        };
        let asked = &pending.asked;
        let tries = |node: u32| asked.iter().find(|one| one.service == node).map_or(0, |one| one.tries);
        let fewest = || self.services.nodes().map(tries).min().unwrap_or(0);
        let (services, next) = match asked.iter().map(|one| one.tries).sum::<u32>() {
            0 => ([self.services.first(pending.user), None], self.pace.late()),
            1 => {
                let other = self.services.choose(pending.user, |_| true)[1].filter(|other| tries(*other) == 0);
                let fewest = fewest();
                let another = || self.services.choose(pending.user, |node| tries(node) == fewest)[0];
                ([other.or_else(another), None], pending.wait)
            }
            _ => {
                let fewest = fewest();
                let services = self.services.choose(pending.user, |node| tries(node) == fewest);
                (services, pending.wait)
            }
        };
        let hedged = pending.asked.len() == 1;
        let left_ms = pending.until.saturating_sub(now) / 1_000;
        let unicast = Unicast {
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
        };
        let message = match pending.ends {
            true => Message::End(unicast),
            false => Message::Unicast(unicast),
        };
        let (asked, counters, mut wait) = (&mut pending.asked, &mut self.counters, UNLINKED);
        message.encode(|frame| {
            for service in services.into_iter().flatten() {
                if !host.frame(service, frame) {
                    continue;
                }
                counters.unicast_sends_forwarded += 1;
                wait = next;
                if let Some(one) = asked.iter_mut().find(|one| one.service == service) {
                    one.tries += 1;
                    continue;
                }
                asked.push(ServiceRequest {
                    service,
                    tries: 1,
                    answered: false,
                });
            }
        });
        pending.asked_at.get_or_insert(now);
        self.counters.unicast_sends_hedged += u64::from(hedged && pending.asked.len() == 2);
        if wait == pending.wait {
            pending.wait = (2 * pending.wait).min(AGAIN_MAX);
        }
        pending.due = pending.settles_at.unwrap_or(now + wait).min(pending.until + GRACE);
        self.alarms.set(pending.due, sequence);
    }

    fn answered(&mut self, now: Micros, service: u32, sequence: u64, outcomes: Outcomes) {
        let Some(pending) = self.pending.get_mut(&sequence) else {
            return; // the other service was faster
        };
        if let Some(one) = pending.asked.iter_mut().find(|one| one.service == service) {
            one.answered = true;
        }
        // One of the two services may have asked a reader that knew less.
        let before = pending.best.take().unwrap_or_default();
        pending.best = Some(merge(before.into_iter().chain(outcomes)));
        let best = pending.best.as_deref().unwrap_or_default();
        let all = |wanted| best.iter().all(|(_, outcome)| *outcome == wanted);
        let delivered = best.iter().any(|(_, outcome)| *outcome == Outcome::Delivered);
        let (every_device, nobody) = (all(Outcome::Delivered), all(Outcome::NotOnline));
        let open = pending.asked.iter().any(|one| !one.answered);
        if delivered {
            self.pace.note(now - pending.asked_at.unwrap_or(now));
        }
        // The other service may find a device that moved and that this one found nowhere.
        if delivered && (every_device || !open) {
            self.finish(sequence);
        } else if open {
            let at = *pending.settles_at.get_or_insert(now + SETTLE);
            self.plan(sequence, at);
        } else if nobody && pending.asked.len() == 1 && self.services.nodes().count() > 1 {
            // Another site may know more: it is asked at once.
            pending.settles_at = Some(now + SETTLE);
            self.plan(sequence, now);
        } else {
            self.finish(sequence);
        }
    }

    /// Reports the outcome as far as known to the client.
    fn finish(&mut self, sequence: u64) {
        let Some(pending) = self.pending.remove(&sequence) else {
            return;
        };
        self.by_number.remove(&(pending.sender, pending.number));
        let unknown = || vec![(pending.device, Outcome::Expired)];
        let outcomes = pending.best.filter(|best| !best.is_empty()).unwrap_or_else(unknown);
        let any = |wanted| outcomes.iter().any(|(_, outcome)| *outcome == wanted);
        let (delivered, expired) = (any(Outcome::Delivered), any(Outcome::Expired) || any(Outcome::Unknown));
        let counter = match (delivered, expired) {
            (true, _) => &mut self.counters.unicast_sends_delivered,
            (false, true) => &mut self.counters.unicast_sends_expired,
            (false, false) => &mut self.counters.unicast_sends_not_online,
        };
        *counter += 1;
        let of = (pending.session, pending.user);
        if !delivered && self.orders.get(&of) == Some(&sequence) {
            self.orders.remove(&of); // no device has it: the next message need not wait
        }
        if let Some(client) = self.clients.get_mut(&pending.session) {
            client.pending = client.pending.saturating_sub(1);
        }
        if let Some(queue) = self.undelivered.as_ref() {
            if !delivered && !pending.ends && pending.sender != self.nobody {
                let letter = Letter::read(&pending.body);
                let put = queue.try_send(Undelivered {
                    sender: pending.sender,
                    number: pending.number,
                    user: pending.user,
                    outcome: worst(outcomes.iter().map(|(_, outcome)| *outcome)),
                    data: letter.map(|letter| letter.data.to_vec()).unwrap_or_default(),
                });
                match put {
                    Ok(()) => self.counters.unicast_undelivered += 1,
                    Err(_) => self.counters.unicast_undelivered_dropped += 1,
                }
            }
        }
        self.tell(pending.session, pending.number, None, outcomes);
    }

    fn tell(&mut self, session: u64, number: u64, refused: Option<Code>, outcomes: Outcomes) {
        let lost = outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Unknown);
        let devices: Vec<Option<Device>> = lost.map(|(device, _)| *device).collect();
        let lost = (!devices.is_empty()).then(|| Record::Lost { number, devices }.to_bytes());
        let sent = Record::Sent {
            number,
            refused,
            outcomes,
        };
        // As many as there are messages: a client that is gone gets nothing, and asks again by number. Refusals have
        // no message, so each client may have as many of them as open messages.
        let is_refusal = refused.is_some();
        if is_refusal {
            let client = self.clients.get_mut(&session);
            let Some(client) = client.filter(|client| client.refusals < SESSION_SENDS_MAX) else {
                return;
            };
            client.refusals += 1;
        }
        if is_refusal || self.told.len() < SENDS_MAX {
            self.told.push_back(Answer {
                session,
                lost,
                record: sent.to_bytes(),
                is_refusal,
            });
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

/// The users to whom a client may send, by its credential; malformed: none.
fn recipients(said: &[u8]) -> Recipients {
    Claims::read(said).map(|claims| claims.recipients).unwrap_or_default()
}

impl Guest for Sending {
    fn kinds(&self) -> FrameKinds {
        kinds::ALL
    }

    fn opened(&mut self, _now: Micros, session: u64, user: u64, said: &[u8]) {
        let client = Client {
            user,
            recipients: recipients(said),
            pending: 0,
            refusals: 0,
        };
        self.clients.insert(session, client);
    }

    fn renewed(&mut self, _now: Micros, session: u64, said: &[u8]) {
        if let Some(client) = self.clients.get_mut(&session) {
            client.recipients = recipients(said);
        }
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
            Some(asked @ (Record::Send { .. } | Record::End { .. })) => {
                self.take(now, session, asked);
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
        // Messages of a dead service are tried at once by another one.
        let mut late = Vec::new();
        for (sequence, pending) in &mut self.pending {
            let asked = pending.asked.len();
            pending.asked.retain(|one| one.service != peer.node || one.answered);
            if pending.asked.len() < asked {
                late.push(*sequence);
            }
        }
        late.sort_unstable(); // in the order of arrival
        for sequence in late {
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
        // In the order of arrival.
        let mut fresh = std::mem::take(&mut self.fresh);
        for sequence in fresh.drain(..) {
            self.ask(now, sequence, host);
        }
        self.fresh = fresh;
        loop {
            let pending = &self.pending;
            let stands = |at: Micros, sequence: &u64| pending.get(sequence).is_some_and(|pending| pending.due == at);
            let Some(sequence) = self.alarms.due(now, stands) else {
                break;
            };
            self.look(now, sequence, host);
        }
        for _ in 0..self.told.len() {
            let Some(mut answer) = self.told.pop_front() else {
                break;
            };
            let Some(client) = self.clients.get_mut(&answer.session) else {
                continue;
            };
            if answer
                .lost
                .as_ref()
                .is_some_and(|lost| host.offer(answer.session, lost))
            {
                answer.lost = None;
            }
            if answer.lost.is_none() && host.offer(answer.session, &answer.record) {
                client.refusals -= usize::from(answer.is_refusal);
            } else {
                self.told.push_back(answer);
            }
        }
        self.again_at = (!self.told.is_empty()).then_some(now + OFFER_AGAIN);
    }

    fn deadline(&self) -> Option<Micros> {
        self.alarms.first().into_iter().chain(self.again_at).min()
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
