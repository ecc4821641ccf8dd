//! Unicast at a gateway: a message to a user's devices arrives on two paths, is pushed to each device once, and gets
//! an outcome for each.
//!
//! Owns: [`Deliveries`]: the `(server, epoch, sequence)` seen before, order within a small window per sender, an
//! outcome per device, expiry. Knows no session, no service's address and no presence: the gateway passes in the
//! devices of a user and carries pushes to them.
//!
//! Order: a message names the sender's previous one to the same user. If that one has not arrived, the message waits
//! for the reorder time; after that the order is given up, not the message.

use crate::alarms::Alarms;
use crate::device::Device;
use crate::few::Few;
use crate::limits::{EXPIRES_MS_MAX, REORDER_BYTES_MAX, SENDERS_MAX, SENDER_BLOCKS, SENDER_IDLE, SENDER_MESSAGES_MAX};
use crate::quick::QuickMap;
use crate::wire::{Message, MessageId, Outcome, Unicast, UnicastAnswer};
use muster_transport::Micros;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bits of one block.
const BITS: u64 = u64::BITS as u64;

/// The settings of deliveries.
#[derive(Clone, Copy, Debug)]
pub struct DeliverySettings {
    /// How long a message waits for its predecessor.
    pub reorder: Micros,
    /// How long an outcome is kept, for services that ask again: they do so within a second.
    pub keep: Micros,
}

impl Default for DeliverySettings {
    fn default() -> Self {
        DeliverySettings {
            reorder: 30_000,
            keep: 3_000_000,
        }
    }
}

/// A message for one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Push {
    pub id: MessageId,
    pub user: u64,
    pub device: Device,
    /// It must not be pushed after this.
    pub expires: Micros,
    pub body: Vec<u8>,
}

/// Counters; `accepted` messages end in outcomes of devices or are still `pending`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeliveryCounters {
    pub accepted: u64,
    pub duplicates: u64,
    pub not_here: u64,
    /// Outcomes of devices of accepted messages.
    pub delivered: u64,
    pub offline: u64,
    /// Devices whose program reads no messages.
    pub unread: u64,
    pub expired: u64,
    /// Messages that waited for their predecessor, and those delivered without it.
    pub reordered: u64,
    pub out_of_order: u64,
    /// Messages refused: of an earlier life of the sender, below its window, beyond a bound.
    pub old_epoch: u64,
    pub too_old: u64,
    pub full: u64,
}

/// Sequences seen of one sender: a ring of blocks of 64, like the transport's replay window.
struct Seen {
    highest: u64,
    blocks: Box<[u64; SENDER_BLOCKS]>,
}

impl Seen {
    fn new() -> Self {
        Seen {
            highest: 0,
            blocks: Box::new([0; SENDER_BLOCKS]),
        }
    }

    /// Whether it is below the window, so that it is unknown whether it arrived.
    fn is_old(&self, sequence: u64) -> bool {
        sequence == 0 || (self.highest / BITS).saturating_sub(sequence / BITS) >= SENDER_BLOCKS as u64
    }

    fn has(&self, sequence: u64) -> bool {
        sequence <= self.highest && self.blocks[Self::slot(sequence)] >> (sequence % BITS) & 1 == 1
    }

    fn note(&mut self, sequence: u64) {
        if sequence > self.highest {
            let old = self.highest / BITS;
            for step in 1..=(sequence / BITS - old).min(SENDER_BLOCKS as u64) {
                self.blocks[Self::slot((old + step) * BITS)] = 0;
            }
            self.highest = sequence;
        }
        self.blocks[Self::slot(sequence)] |= 1 << (sequence % BITS);
    }

    fn slot(sequence: u64) -> usize {
        (sequence / BITS) as usize % SENDER_BLOCKS
    }
}

/// A target device of a message, and its outcome.
type Target = (Device, Option<Outcome>);

/// An accepted message that is remembered.
struct Kept {
    user: u64,
    /// Services that sent it and expect an outcome: one of each of two sites, and one more after a restart.
    askers: Few<u32>,
    targets: Few<Target>,
    expires: Micros,
    /// The body, while it waits for its predecessor.
    body: Option<Vec<u8>>,
}

impl Kept {
    fn is_done(&self) -> bool {
        self.targets.iter().all(|(_, outcome)| outcome.is_some())
    }
}

/// Capacity for messages that a device without any keeps: 16 B each.
const PENDING_KEPT: usize = 64;
/// How often silent senders are searched.
const SWEEP_EVERY: Micros = 1_000_000;

/// Maximum number of services that get the outcome of one message.
const ASKERS_MAX: usize = 4;

/// One life of one sender.
struct Sender {
    epoch: u32,
    seen: Seen,
    messages: QuickMap<u64, Kept>,
    /// Waiting messages, by the predecessor that they wait for.
    waiting: BTreeMap<u64, Vec<u64>>,
    heard: Micros,
}

/// The next action for a message, at its time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Order,
    Expiry,
}

/// Finished messages are forgotten up to this much later, so that they need no wake-up of their own.
const FORGET_LATE: Micros = 500_000;

/// The messages of unicast services at one gateway.
///
/// The gateway calls [`Deliveries::offer`] for each message of a service, sends what [`Deliveries::take_pushes`]
/// returns to devices, and reports [`Deliveries::delivered`] and [`Deliveries::offline`]. [`Deliveries::take_out`]
/// returns the outcomes for services; [`Deliveries::expire`] runs the timers.
pub struct Deliveries {
    ap: u32,
    settings: DeliverySettings,
    senders: BTreeMap<u32, Sender>,
    sweep_at: Micros,
    alarms: Alarms<(MessageId, Due)>,
    /// Finished messages, and when they are forgotten.
    done: VecDeque<(Micros, MessageId)>,
    /// The messages that users' devices have not confirmed, oldest first; a device that is here keeps its entry.
    pending: HashMap<(u64, Device), VecDeque<MessageId>>,
    pending_len: usize,
    held_bytes: usize,
    pushes: Vec<Push>,
    out: Vec<(u32, Vec<u8>)>,
    counters: DeliveryCounters,
}

impl Deliveries {
    pub fn new(ap: u32, settings: DeliverySettings) -> Self {
        Deliveries {
            ap,
            settings,
            senders: BTreeMap::new(),
            sweep_at: 0,
            alarms: Alarms::default(),
            done: VecDeque::new(),
            pending: HashMap::new(),
            pending_len: 0,
            held_bytes: 0,
            pushes: Vec::new(),
            out: Vec::new(),
            counters: DeliveryCounters::default(),
        }
    }

    /// Takes a message from a service. `devices`: the user's devices that are online here.
    pub fn offer(&mut self, now: Micros, service: u32, unicast: &Unicast<'_>, devices: impl Iterator<Item = Device>) {
        let id = unicast.id;
        if !self.knows(now, id) {
            return;
        }
        let Some(sender) = self.senders.get_mut(&id.server) else {
            return;
        };
        if let Some(kept) = sender.messages.get_mut(&id.sequence) {
            self.counters.duplicates += 1;
            let knows = kept.askers.iter().any(|asker| *asker == service);
            if !knows && kept.askers.len() < ASKERS_MAX {
                kept.askers.push(service);
            }
            if kept.is_done() {
                let bytes = answer(self.ap, id, &kept.targets);
                self.out.push((service, bytes));
            }
            return;
        }
        if sender.seen.is_old(id.sequence) || sender.seen.has(id.sequence) {
            self.counters.too_old += 1;
            return;
        }
        let wanted = |device: &Device| unicast.device.is_none_or(|only| only == *device);
        let targets: Few<Target> = devices.filter(wanted).map(|device| (device, None)).collect();
        if targets.is_empty() {
            // Nothing is remembered: the user may come here while the message is still alive.
            self.counters.not_here += 1;
            let outcomes = vec![(unicast.device, Outcome::NotOnline)];
            let ap = self.ap;
            let message = Message::UnicastAnswer(UnicastAnswer { id, ap, outcomes });
            self.out.push((service, message.to_frame()));
            return;
        }
        let before = unicast.after;
        let waits = before != 0
            && !sender.seen.is_old(before)
            && (!sender.seen.has(before) || sender.messages.get(&before).is_some_and(|kept| kept.body.is_some()));
        let fits = !waits || self.held_bytes + unicast.body.len() <= REORDER_BYTES_MAX;
        if sender.messages.len() >= SENDER_MESSAGES_MAX || !fits {
            self.counters.full += 1;
            return;
        }
        sender.seen.note(id.sequence);
        let expires = now + Micros::from(unicast.expires_ms.min(EXPIRES_MS_MAX)) * 1_000;
        for (device, _) in targets.iter() {
            self.pending.entry((unicast.user, *device)).or_default().push_back(id);
            self.pending_len += 1;
        }
        self.counters.accepted += 1;
        self.alarms.set(expires, (id, Due::Expiry));
        let mut kept = Kept {
            user: unicast.user,
            askers: Few::from_iter([service]),
            targets,
            expires,
            body: None,
        };
        if waits {
            kept.body = Some(unicast.body.to_vec());
            self.held_bytes += unicast.body.len();
            sender.messages.insert(id.sequence, kept);
            sender.waiting.entry(before).or_default().push(id.sequence);
            self.counters.reordered += 1;
            self.alarms.set(now + self.settings.reorder, (id, Due::Order));
            return;
        }
        push(&mut self.pushes, id, &kept, unicast.body);
        sender.messages.insert(id.sequence, kept);
        let waiting = match sender.waiting.is_empty() {
            true => None,
            false => sender.waiting.remove(&id.sequence),
        };
        for sequence in waiting.unwrap_or_default() {
            self.release(MessageId { sequence, ..id });
        }
    }

    /// Takes a service's request to end sessions. Returns the devices whose sessions must end; each is reported as delivered.
    pub fn end_sessions(
        &mut self,
        now: Micros,
        service: u32,
        asked: &Unicast<'_>,
        devices: impl Iterator<Item = Device>,
    ) -> Vec<Device> {
        let before = self.pushes.len();
        self.offer(now, service, asked, devices);
        let pushes = self.pushes.split_off(before);
        let (ends, others): (Vec<Push>, Vec<Push>) = pushes.into_iter().partition(|push| push.id == asked.id);
        self.pushes.extend(others);
        for push in &ends {
            self.delivered(now, push.id, push.user, push.device);
        }
        ends.into_iter().map(|push| push.device).collect()
    }

    /// A device confirmed the message.
    pub fn delivered(&mut self, now: Micros, id: MessageId, user: u64, device: Device) {
        if self.take_pending(id, user, device) {
            self.counters.delivered += 1;
            self.settle(now, id, device, Outcome::Delivered);
        }
    }

    /// A device's program reads no messages: as for presence it is online, as for messages it is not.
    pub fn unread(&mut self, now: Micros, id: MessageId, user: u64, device: Device) {
        if self.take_pending(id, user, device) {
            self.counters.unread += 1;
            self.settle(now, id, device, Outcome::NotOnline);
        }
    }

    /// A device is gone: what it did not take it does not get here.
    pub fn offline(&mut self, now: Micros, user: u64, device: Device) {
        let ids = self.pending.remove(&(user, device)).unwrap_or_default();
        self.pending_len -= ids.len();
        for id in ids {
            self.counters.offline += 1;
            self.settle(now, id, device, Outcome::NotOnline);
        }
    }

    /// Removes a pending message of a device, because it has an outcome. `false`: it had one already.
    fn take_pending(&mut self, id: MessageId, user: u64, device: Device) -> bool {
        let Some(ids) = self.pending.get_mut(&(user, device)) else {
            return false;
        };
        // Devices nearly always confirm in the order of their messages.
        let found = match ids.front() == Some(&id) {
            true => ids.pop_front(),
            false => ids.iter().position(|one| *one == id).and_then(|at| ids.remove(at)),
        };
        if ids.is_empty() {
            ids.shrink_to(PENDING_KEPT);
        }
        self.pending_len -= usize::from(found.is_some());
        found.is_some()
    }

    /// Runs the timers due by `now`.
    pub fn expire(&mut self, now: Micros) {
        while let Some((_, id)) = self.done.front().copied().filter(|(at, _)| *at <= now) {
            self.done.pop_front();
            if let Some(sender) = self.sender(id) {
                sender.messages.remove(&id.sequence);
            }
        }
        loop {
            let senders = &self.senders;
            let Some((id, due)) = self.alarms.due(now, |at, (id, due)| stands(senders, at, *id, *due)) else {
                break;
            };
            match due {
                Due::Order => {
                    if let Some(sender) = self.sender(id) {
                        sender.waiting.retain(|_, waiting| {
                            waiting.retain(|sequence| *sequence != id.sequence);
                            !waiting.is_empty()
                        });
                    }
                    if self.kept(id).is_some_and(|kept| kept.body.is_some()) {
                        self.counters.out_of_order += 1;
                        self.release(id);
                    }
                }
                Due::Expiry => self.end(now, id),
            }
        }
        if self.sweep_at <= now {
            self.sweep_at = now + SWEEP_EVERY;
            self.senders
                .retain(|_, sender| !sender.messages.is_empty() || now < sender.heard + SENDER_IDLE);
        }
    }

    pub fn deadline(&self) -> Option<Micros> {
        let done = self.done.front().map(|(at, _)| at + FORGET_LATE);
        self.alarms.first().into_iter().chain(done).min()
    }

    /// Takes the messages for devices, in order.
    pub fn take_pushes(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.pushes)
    }

    /// Takes the outcomes, each for a service.
    pub fn take_out(&mut self) -> Vec<(u32, Vec<u8>)> {
        std::mem::take(&mut self.out)
    }

    /// Messages not confirmed yet, counted per device.
    pub fn pending_len(&self) -> usize {
        self.pending_len
    }

    pub fn counters(&self) -> DeliveryCounters {
        self.counters
    }

    /// Makes an entry for the sender's life. `false`: it is an earlier life, or there are too many senders.
    fn knows(&mut self, now: Micros, id: MessageId) -> bool {
        let known = self.senders.len();
        match self.senders.get_mut(&id.server) {
            Some(sender) if id.epoch < sender.epoch => {
                self.counters.old_epoch += 1;
                return false;
            }
            Some(sender) if id.epoch == sender.epoch => sender.heard = now,
            None if known >= SENDERS_MAX => {
                self.counters.full += 1;
                return false;
            }
            _ => {
                self.drop_sender(id.server);
                let sender = Sender {
                    epoch: id.epoch,
                    seen: Seen::new(),
                    messages: QuickMap::default(),
                    waiting: BTreeMap::new(),
                    heard: now,
                };
                self.senders.insert(id.server, sender);
            }
        }
        true
    }

    /// A restarted sender waits for no outcome of its earlier life. Pushes are still on their way.
    fn drop_sender(&mut self, server: u32) {
        let Some(sender) = self.senders.remove(&server) else {
            return;
        };
        for (sequence, kept) in sender.messages {
            let id = MessageId {
                server,
                epoch: sender.epoch,
                sequence,
            };
            self.held_bytes -= kept.body.map_or(0, |body| body.len());
            for (device, outcome) in kept.targets.iter() {
                if outcome.is_none() {
                    self.counters.expired += 1;
                    self.take_pending(id, kept.user, *device);
                }
            }
        }
    }

    fn sender(&mut self, id: MessageId) -> Option<&mut Sender> {
        self.senders
            .get_mut(&id.server)
            .filter(|sender| sender.epoch == id.epoch)
    }

    fn kept(&mut self, id: MessageId) -> Option<&mut Kept> {
        self.sender(id)?.messages.get_mut(&id.sequence)
    }

    /// Pushes a message, and those that wait for it.
    fn release(&mut self, id: MessageId) {
        let mut ready = vec![id];
        while let Some(id) = ready.pop() {
            let sender = self
                .senders
                .get_mut(&id.server)
                .filter(|sender| sender.epoch == id.epoch);
            let Some(sender) = sender else { continue };
            let Some(kept) = sender.messages.get_mut(&id.sequence) else {
                continue;
            };
            let Some(body) = kept.body.take() else { continue };
            self.held_bytes -= body.len();
            push(&mut self.pushes, id, kept, &body);
            let waiting = sender.waiting.remove(&id.sequence).unwrap_or_default();
            ready.extend(waiting.into_iter().map(|sequence| MessageId { sequence, ..id }));
        }
    }

    /// The message has expired: unconfirmed devices get that outcome.
    fn end(&mut self, now: Micros, id: MessageId) {
        let Some(kept) = self.kept(id) else { return };
        let user = kept.user;
        let body = kept.body.take().map_or(0, |body| body.len());
        let open = kept.targets.iter().filter(|(_, outcome)| outcome.is_none());
        let open: Vec<Device> = open.map(|(device, _)| *device).collect();
        self.held_bytes -= body;
        for device in open {
            self.take_pending(id, user, device);
            self.counters.expired += 1;
            self.settle(now, id, device, Outcome::Expired);
        }
    }

    /// A device's outcome is known; with the last one, the outcomes of all are sent.
    fn settle(&mut self, now: Micros, id: MessageId, device: Device, outcome: Outcome) {
        let (ap, forgotten_at) = (self.ap, now + self.settings.keep);
        let Some(kept) = self.kept(id) else { return };
        for target in kept.targets.iter_mut().filter(|(of, _)| *of == device) {
            target.1 = Some(outcome);
        }
        if kept.is_done() {
            let askers: Few<u32> = kept.askers.iter().copied().collect();
            let bytes = answer(ap, id, &kept.targets);
            self.out.extend(askers.iter().map(|service| (*service, bytes.clone())));
            self.done.push_back((forgotten_at, id));
        }
    }
}

/// Whether there is still something to do. A wait for order is always checked.
fn stands(senders: &BTreeMap<u32, Sender>, at: Micros, id: MessageId, due: Due) -> bool {
    let kept = || {
        let sender = senders.get(&id.server).filter(|sender| sender.epoch == id.epoch)?;
        sender.messages.get(&id.sequence)
    };
    due == Due::Order || kept().is_some_and(|kept| kept.expires == at && !kept.is_done())
}

/// Pushes a message to its devices that have no outcome yet.
fn push(pushes: &mut Vec<Push>, id: MessageId, kept: &Kept, body: &[u8]) {
    let open = kept.targets.iter().filter(|(_, outcome)| outcome.is_none());
    pushes.extend(open.map(|(device, _)| Push {
        id,
        user: kept.user,
        device: *device,
        expires: kept.expires,
        body: body.to_vec(),
    }));
}

fn answer(ap: u32, id: MessageId, targets: &Few<Target>) -> Vec<u8> {
    let outcomes = targets
        .iter()
        .filter_map(|(device, outcome)| Some((Some(*device), (*outcome)?)));
    let outcomes = outcomes.collect();
    Message::UnicastAnswer(UnicastAnswer { id, ap, outcomes }).to_frame()
}
