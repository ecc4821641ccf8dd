//! The publishers of a broker, each in one room: their entries, and the acknowledgements that wait for their proxies.
//!
//! Owns these, each user's share of them, and the numbers by which proxies name namespaces. Knows no ring: `publish` numbers messages,
//! and decides on credit.

use std::collections::{BTreeMap, VecDeque};

use muster_transport::{Code, KeyedState, Links, Micros};

use super::users::Users;
use super::{PUBLISHERS_MAX, SWEPT_AT_ONCE};
use crate::limits;
use crate::order::{Publisher, Run};
use crate::slots::Slots;
use crate::wire::publish::{Ack, LinkPublish, ACK_RANGES, ACK_RUNS};
use crate::wire::{PublisherId, StreamId};

/// One publisher in one room.
pub struct Publication {
    pub room: u64,
    pub id: PublisherId,
    /// The generation of the room's stream that the order belongs to.
    pub generation: u32,
    pub order: Publisher,
    /// Where acknowledgements go: the publisher's latest proxy, and its numbers for session and room.
    pub proxy: u32,
    pub session: u64,
    handle: u32,
    low: u64,
    /// The highest sequence that it has credit for, by all acknowledgements sent: later messages are dropped.
    pub credited: u64,
    code: Code,
    /// It repeated numbered messages, so it may lack their offsets.
    pub repeated: bool,
    /// The clock of the last frame, until an acknowledgement echoes it.
    echo: u32,
    ack_due: bool,
    pub withheld: bool,
    /// It has waited long enough: the next acknowledgement grants credit.
    pub granted: bool,
    /// Messages since the last acknowledgement, and whether that waits to be combined.
    pub fresh_messages: u32,
    pub fresh_bytes: usize,
    late: bool,
}

/// Maximum number of refusals for one proxy that wait to leave; for others the publishers ask again.
const REFUSALS_MAX: usize = 256;

/// Pending acknowledgements to one proxy, by publication.
#[derive(Default)]
struct Acks {
    due: VecDeque<u32>,
    /// Complete ones, by session: refusals, and acknowledgements for which there was no space.
    said: VecDeque<(u64, Ack)>,
    /// Those that wait to be combined, since when, and when an acknowledgement last left.
    late: Vec<u32>,
    since: Option<Micros>,
    sent_at: Micros,
}

impl Acks {
    fn is_empty(&self) -> bool {
        self.due.is_empty() && self.said.is_empty()
    }

    /// When the waiting acknowledgements must leave.
    fn deadline(&self) -> Option<Micros> {
        self.since.map(|since| since + limits::PUBLISH_ACK_DELAY_MAX)
    }
}

impl Publication {
    /// A publisher that comes with this frame.
    fn new(now: Micros, frame: &LinkPublish<'_>) -> Self {
        Publication {
            room: frame.room,
            id: frame.publisher,
            generation: 0,
            order: order_from(now, frame.low),
            proxy: 0,
            session: 0,
            handle: 0,
            low: frame.low,
            // As much as it may have in flight with credit of another owner, or of one that forgot it.
            credited: frame.low - 1 + limits::UNACKED_MESSAGES_MAX,
            code: Code::Ok,
            repeated: false,
            echo: 0,
            ack_due: false,
            withheld: false,
            granted: false,
            fresh_messages: 0,
            fresh_bytes: 0,
            late: false,
        }
    }

    /// The room's stream is another one: numbers of an earlier one mean nothing in it.
    pub fn begin(&mut self, now: Micros, generation: u32, low: u64) {
        self.order = order_from(now, low);
        self.credited = low - 1 + limits::UNACKED_MESSAGES_MAX;
        self.generation = generation;
    }

    /// Messages held because an earlier one is missing.
    pub fn held(&self) -> u64 {
        self.order.held_len() as u64
    }

    /// Whether the publisher waits for nothing and can do without an acknowledgement for a while.
    fn can_wait(&self) -> bool {
        self.fresh_messages < limits::PUBLISH_ACK_MESSAGES && self.fresh_bytes < limits::PUBLISH_ACK_BYTES
    }

    /// Whether nothing waits for it, and it was idle for long.
    fn is_idle(&self, now: Micros) -> bool {
        !self.ack_due && !self.withheld && now >= self.order.last_seen() + limits::PUBLISHER_IDLE
    }

    /// The acknowledgement that is due, of what was numbered in a stream; with credit, or without if that is withheld.
    pub fn acknowledge(&mut self, stream: StreamId, withheld: bool) -> Ack {
        let mut ranges = [(0, 0); ACK_RANGES];
        let missing = self.order.missing_ranges(&mut ranges);
        let mut runs = [Run::default(); ACK_RUNS];
        let from = match std::mem::take(&mut self.repeated) {
            true => self.low,
            false => self.low.max(self.order.last_runs(ACK_RUNS)),
        };
        let known = self.order.runs(from, &mut runs);
        // Held messages no longer count as in flight.
        let (messages, bytes) = match (withheld, &self.order) {
            (true, _) => (0, 0),
            (false, order) => (
                limits::CREDIT_MESSAGES as usize + order.held_len(),
                limits::CREDIT_BYTES + order.held_bytes(),
            ),
        };
        let credited = self.order.cumulative() + messages as u64;
        self.credited = self.credited.max(credited);
        Ack {
            handle: self.handle,
            echo: std::mem::take(&mut self.echo),
            code: self.code,
            cumulative: self.order.cumulative(),
            highest: self.order.highest(),
            credit_messages: messages as u16,
            credit_bytes: bytes as u32,
            stream,
            missing: ranges[..missing].to_vec(),
            runs: runs[..known]
                .iter()
                .map(|run| (run.seq, run.offset, run.count.min(u32::from(u16::MAX)) as u16))
                .collect(),
        }
    }
}

/// The order of a publisher that begins at a sequence.
fn order_from(now: Micros, low: u64) -> Publisher {
    let mut order = Publisher::new(low);
    order.offer(now, 0, 0); // notes the time
    order
}

/// An acknowledgement that leaves next.
pub(super) enum Due {
    /// A complete one, and its session.
    Said((u64, Ack)),
    /// The acknowledgement of a publication.
    Of(u32),
}

/// All publishers.
pub(super) struct Publications {
    slots: Slots<(u64, PublisherId), Publication>,
    users: Users,
    /// By proxy node.
    acks: BTreeMap<u32, Acks>,
    /// By proxy node: the proxy's numbers of namespaces, and ours.
    namespaces: BTreeMap<u32, BTreeMap<u8, u8>>,
}

impl Publications {
    pub fn new(hash: KeyedState) -> Self {
        Publications {
            slots: Slots::new(hash, PUBLISHERS_MAX),
            users: Users::new(hash),
            acks: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut Publication> {
        self.slots.get_mut(at)
    }

    /// Number of messages held because an earlier one is missing.
    pub fn held(&self) -> u64 {
        self.slots.iter().map(|(_, publication)| publication.held()).sum()
    }

    /// A proxy names a namespace by a number.
    pub fn note_namespace(&mut self, proxy: u32, number: u8, known: u8) {
        self.namespaces.entry(proxy).or_default().insert(number, known);
    }

    /// A proxy has no link any more: its numbers mean nothing.
    pub fn forget_namespaces(&mut self, proxy: u32) {
        self.namespaces.remove(&proxy);
    }

    /// Our number of the namespace that a publisher's proxy names so; 0: it names none.
    pub fn namespace(&self, at: u32, number: u8) -> Option<u8> {
        if number == 0 {
            return None;
        }
        let proxy = self.slots.get(at)?.proxy;
        self.namespaces.get(&proxy)?.get(&number).copied()
    }

    /// A publisher, and the shares of all users.
    #[inline]
    pub fn with_users(&mut self, at: u32) -> Option<(&mut Publication, &mut Users)> {
        Some((self.slots.get_mut(at)?, &mut self.users))
    }

    /// Bytes of held messages, including their overhead.
    pub fn held_bytes(&self) -> usize {
        self.users.held()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.len() == 0
    }

    /// The publisher's state in the room; made if it is new. `None`: there are too many.
    pub fn enter(&mut self, now: Micros, frame: &LinkPublish<'_>) -> Option<u32> {
        let key = (frame.room, frame.publisher);
        if let Some(at) = self.slots.find(key) {
            return Some(at);
        }
        if self.slots.left() == 0 || !self.users.enter(frame.publisher.user) {
            return None;
        }
        Some(self.slots.add(key, Box::new(Publication::new(now, frame))))
    }

    /// A publisher sends by this proxy now, and its messages meet this code. Returns whether an acknowledgement is owed that had to
    /// go to another proxy.
    pub fn comes_by(&mut self, at: u32, proxy: u32, frame: &LinkPublish<'_>, code: Code) -> bool {
        let Some(publication) = self.slots.get_mut(at) else {
            return false;
        };
        // A pending acknowledgement goes to the publisher's present proxy.
        let owed = publication.proxy != proxy && std::mem::take(&mut publication.ack_due);
        if owed {
            if let Some(acks) = self.acks.get_mut(&publication.proxy) {
                acks.due.retain(|due| *due != at);
            }
        }
        (publication.proxy, publication.session, publication.handle) = (proxy, frame.session, frame.handle);
        publication.low = publication.low.max(frame.low);
        publication.echo = frame.sent_at;
        publication.code = code;
        owed
    }

    /// Tells a publisher without an entry here why its messages are refused.
    pub fn refuse(&mut self, links: &mut Links, slot: u32, proxy: u32, frame: &LinkPublish<'_>, code: Code) {
        let said = &mut self.acks.entry(proxy).or_default().said;
        if said.len() < REFUSALS_MAX {
            said.push_back((frame.session, Ack::refusing(frame.handle, frame.low, code)));
        }
        links.table.mark(slot);
    }

    /// Whether a publisher can do without an acknowledgement for a while.
    pub fn can_wait(&self, at: u32) -> bool {
        self.slots.get(at).is_some_and(Publication::can_wait)
    }

    /// Schedules an acknowledgement soon; at once if none has left for as long as it would wait, so that a rare
    /// message needs no extra wake-up.
    pub fn acknowledge_later(&mut self, now: Micros, links: &mut Links, at: u32) {
        let Some(publication) = self.slots.get_mut(at) else {
            return;
        };
        let proxy = publication.proxy;
        let acks = self.acks.entry(proxy).or_default();
        if !publication.late && !publication.ack_due {
            publication.late = true;
            acks.late.push(at);
            acks.since.get_or_insert(now);
        }
        if now >= acks.sent_at + limits::PUBLISH_ACK_DELAY_MAX {
            self.release(links, proxy);
        }
    }

    /// Sends acknowledgements that have waited long enough.
    pub fn acknowledge_late(&mut self, now: Micros, links: &mut Links) {
        let due = |acks: &Acks| acks.deadline().is_some_and(|at| now >= at);
        let proxies = self.acks.iter().filter(|(_, acks)| due(acks));
        for proxy in proxies.map(|(proxy, _)| *proxy).collect::<Vec<_>>() {
            self.release(links, proxy);
        }
    }

    /// When acknowledgements have waited long enough.
    pub fn deadline(&self) -> Option<Micros> {
        self.acks.values().filter_map(Acks::deadline).min()
    }

    fn release(&mut self, links: &mut Links, proxy: u32) {
        let Some(acks) = self.acks.get_mut(&proxy) else { return };
        acks.since = None;
        let mut late = std::mem::take(&mut acks.late);
        for at in late.drain(..) {
            let Some(publication) = self.slots.get_mut(at) else {
                continue;
            };
            publication.late = false;
            if publication.fresh_messages > 0 {
                self.acknowledge(links, at, None);
            }
        }
        if let Some(acks) = self.acks.get_mut(&proxy) {
            acks.late = late; // reuses its memory
        }
    }

    /// Schedules an acknowledgement to the publisher; `slot`: its proxy's link, if at hand. Without a link there is
    /// no receiver: the publisher asks again by repeating.
    pub fn acknowledge(&mut self, links: &mut Links, at: u32, slot: Option<u32>) {
        let Some(publication) = self.slots.get_mut(at) else {
            return;
        };
        let Some(slot) = slot.or_else(|| links.to(publication.proxy)) else {
            return;
        };
        if !publication.ack_due {
            publication.ack_due = true;
            self.acks.entry(publication.proxy).or_default().due.push_back(at);
        }
        links.table.mark(slot);
    }

    /// A proxy's link is lost, and its pending acknowledgements with it.
    pub fn forget_acks(&mut self, links: &mut Links, proxy: u32) {
        let Some(acks) = self.acks.remove(&proxy) else { return };
        for at in acks.due.into_iter().chain(acks.late) {
            let Some(publication) = self.slots.get_mut(at) else {
                continue;
            };
            (publication.ack_due, publication.late) = (false, false);
            if publication.proxy != proxy {
                self.acknowledge(links, at, None);
            }
        }
    }

    /// Whether acknowledgements wait for a proxy.
    pub fn owe(&self, proxy: u32) -> bool {
        self.acks.get(&proxy).is_some_and(|acks| !acks.is_empty())
    }

    /// The next acknowledgement for a proxy.
    pub fn next_due(&mut self, now: Micros, proxy: u32) -> Option<Due> {
        let acks = self.acks.get_mut(&proxy)?;
        if let Some(said) = acks.said.pop_front() {
            return Some(Due::Said(said));
        }
        let at = acks.due.pop_front()?;
        acks.sent_at = now;
        if let Some(publication) = self.slots.get_mut(at) {
            publication.ack_due = false;
            (publication.fresh_messages, publication.fresh_bytes) = (0, 0);
        }
        Some(Due::Of(at))
    }

    /// Puts back acknowledgements that did not fit: their content exists only once.
    pub fn keep(&mut self, proxy: u32, left: Vec<(u64, Ack)>) {
        if let Some(acks) = self.acks.get_mut(&proxy) {
            left.into_iter().rev().for_each(|ack| acks.said.push_front(ack));
        }
    }

    /// Publishers whose credit was withheld get it with their next acknowledgement.
    pub fn grant(&mut self, links: &mut Links, released: Vec<u32>) {
        for at in released {
            if let Some(publication) = self.slots.get_mut(at) {
                (publication.withheld, publication.granted) = (false, true);
            }
            self.acknowledge(links, at, None);
        }
    }

    /// Forgets publishers that were idle for long, a part of them per call. Returns how many messages were held for them.
    pub fn sweep(&mut self, now: Micros) -> u64 {
        let mut dropped = 0;
        for _ in 0..self.slots.end().min(SWEPT_AT_ONCE) {
            let next = self.slots.next_turn().and_then(|at| self.slots.get(at));
            let Some(idle) = next.filter(|known| known.is_idle(now)) else {
                continue;
            };
            let key = (idle.room, idle.id);
            let Some((_, gone)) = self.slots.remove(key) else {
                continue;
            };
            dropped += gone.held();
            self.users.release(gone.id.user, gone.order.cost());
            self.users.leave(gone.id.user);
        }
        dropped
    }
}
