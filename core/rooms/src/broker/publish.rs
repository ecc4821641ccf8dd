//! Publishing at the owner: order per publisher, numbering, acknowledgements and credit.

use std::collections::{BTreeMap, VecDeque};

use crate::wire::kinds;

use muster_transport::{Code, Frame, Links, Micros};

use super::{Broker, GatewayPeer, Users, PUBLISHERS_MAX, SWEPT_AT_ONCE, WITHHOLD_EVERY};
use crate::order::{held_cost, Decision, Publisher, Run};
use crate::ring::Entry;
use crate::wire::publish::{flags_of, numbered, published, Ack, LinkPublish, ACK_RANGES, ACK_RUNS, PROMPT};
use crate::wire::room::KEPT;
use crate::wire::{PublisherId, StreamId};
use crate::{age, limits};

/// One publisher in one room.
pub struct Publication {
    room: u64,
    id: PublisherId,
    /// The generation of the room's stream that the order belongs to.
    generation: u32,
    order: Publisher,
    /// Where acknowledgements go: the publisher's latest proxy, and its numbers for session and room.
    proxy: u32,
    session: u64,
    handle: u32,
    low: u64,
    /// The highest sequence that it has credit for, by all acknowledgements sent: later messages are dropped.
    credited: u64,
    code: Code,
    /// It repeated numbered messages, so it may lack their offsets.
    repeated: bool,
    /// The clock of the last frame, until an acknowledgement echoes it.
    echo: u32,
    ack_due: bool,
    withheld: bool,
    /// It has waited long enough: the next acknowledgement grants credit.
    granted: bool,
    /// Messages since the last acknowledgement, and whether that waits to be combined.
    fresh_messages: u32,
    fresh_bytes: usize,
    late: bool,
}

/// Maximum number of refusals for one proxy that wait to leave; for others the publishers ask again.
const REFUSALS_MAX: usize = 256;

/// Pending acknowledgements to one proxy, by publication.
#[derive(Default)]
pub(super) struct Acks {
    due: VecDeque<u32>,
    /// Complete ones, by session: refusals, and acknowledgements for which there was no space.
    said: VecDeque<(u64, Ack)>,
    /// Those that wait to be combined, since when, and when an acknowledgement last left.
    late: Vec<u32>,
    since: Option<Micros>,
    sent_at: Micros,
}

impl Acks {
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.said.is_empty()
    }

    /// When the waiting acknowledgements must leave.
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.since.map(|since| since + limits::PUBLISH_ACK_DELAY_MAX)
    }
}

/// The result of a frame: whether it was well formed, and whether all of it was numbered and no publisher waits for a
/// reply.
struct Applied {
    good: bool,
    smooth: bool,
}

impl Publication {
    /// Messages held because an earlier one is missing.
    pub fn held(&self) -> u64 {
        self.order.held_len() as u64
    }

    /// Whether the publisher waits for nothing and can do without an acknowledgement for a while.
    fn can_wait(&self) -> bool {
        self.fresh_messages < limits::PUBLISH_ACK_MESSAGES && self.fresh_bytes < limits::PUBLISH_ACK_BYTES
    }
}

impl Broker {
    /// Takes a proxy's publish frame. `false`: malformed.
    pub(super) fn publish(&mut self, now: Micros, slot: u32, proxy: u32, frame: &Frame<'_>) -> bool {
        let read = match frame.kind {
            kinds::AGED_PUBLISH => LinkPublish::read_aged(frame.flags, frame.body),
            _ => LinkPublish::read(frame.flags, frame.body),
        };
        let Some(frame) = read else {
            return false;
        };
        self.counters.messages_received += u64::from(frame.count);
        // A message that no gateway could forward would be a hole that never closes.
        if !numbered(frame.low, frame.first) || flags_of(frame.messages, frame.count, self.node.payload).is_none() {
            self.counters.dropped_malformed += u64::from(frame.count);
            self.refuse(slot, proxy, &frame, Code::Malformed);
            return false;
        }
        let Some(at) = self.publication(now, &frame) else {
            self.counters.dropped_full += u64::from(frame.count);
            self.refuse(slot, proxy, &frame, Code::Busy);
            return true;
        };
        let room = self.admit(now, &frame);
        let mut owed = false;
        if let Some(publication) = self.publications[at as usize].as_deref_mut() {
            // A pending acknowledgement goes to the publisher's present proxy.
            if publication.proxy != proxy && std::mem::take(&mut publication.ack_due) {
                owed = true;
                if let Some(acks) = self.acks.get_mut(&publication.proxy) {
                    acks.due.retain(|due| *due != at);
                }
            }
            (publication.proxy, publication.session, publication.handle) = (proxy, frame.session, frame.handle);
            publication.low = publication.low.max(frame.low);
            publication.echo = frame.sent_at;
            publication.code = room.err().unwrap_or(Code::Ok);
        }
        let Ok(room_at) = room else {
            self.acknowledge(at, Some(slot));
            return true;
        };
        let applied = self.apply(now, at, room_at, &frame);
        let waits = !owed
            && applied.smooth
            && self.publications[at as usize]
                .as_deref_mut()
                .is_some_and(|publication| publication.can_wait());
        if waits {
            self.acknowledge_later(now, at);
        } else {
            self.acknowledge(at, Some(slot));
        }
        applied.good
    }

    /// Tells a publisher without an entry here why its messages are refused.
    fn refuse(&mut self, slot: u32, proxy: u32, frame: &LinkPublish<'_>, code: Code) {
        let said = &mut self.acks.entry(proxy).or_default().said;
        if said.len() < REFUSALS_MAX {
            said.push_back((frame.session, Ack::refusing(frame.handle, frame.low, code)));
        }
        self.links.table.mark(slot);
    }

    /// The room in which a frame's messages may be numbered, or why not.
    fn admit(&mut self, now: Micros, frame: &LinkPublish<'_>) -> Result<u32, Code> {
        let owned = self.owns(frame.room) || frame.detour && self.may_own(frame.room);
        let ready = self.knows();
        let room = match (ready, owned) {
            (true, true) => self.open_room(now, frame.room, frame.check),
            _ => Err(Code::NotReady),
        };
        let dropped = match room {
            Ok(_) => return room,
            Err(Code::NameCollision) => &mut self.counters.dropped_name_collision,
            Err(_) if !ready => &mut self.counters.dropped_not_ready,
            Err(_) if !owned => &mut self.counters.dropped_not_owner,
            Err(_) => &mut self.counters.dropped_full,
        };
        *dropped += u64::from(frame.count);
        room
    }

    /// The publisher's state in the room; made if it is new.
    fn publication(&mut self, now: Micros, frame: &LinkPublish<'_>) -> Option<u32> {
        let key = (frame.room, frame.publisher);
        if let Some(at) = self.publishers.get(&key) {
            return Some(*at);
        }
        if self.publishers.len() >= PUBLISHERS_MAX || !self.users.enter(frame.publisher.user) {
            return None;
        }
        let mut order = Publisher::new(frame.low);
        order.offer(now, 0, 0); // notes the time
        let publication = Some(Box::new(Publication {
            room: frame.room,
            id: frame.publisher,
            generation: 0,
            order,
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
        }));
        let at = match self.free_publications.pop() {
            Some(at) => {
                self.publications[at as usize] = publication;
                at
            }
            None => {
                self.publications.push(publication);
                self.publications.len() as u32 - 1
            }
        };
        self.publishers.insert(key, at);
        Some(at)
    }

    /// Numbers messages in order and holds early ones.
    fn apply(&mut self, now: Micros, at: u32, room_at: u32, frame: &LinkPublish<'_>) -> Applied {
        let rough = Applied {
            good: true,
            smooth: false,
        };
        let Broker {
            rooms,
            publications,
            users,
            arena,
            counters,
            ages,
            namespaces,
            ..
        } = self;
        let (Some(room), Some(publication)) = (
            rooms[room_at as usize].as_deref_mut(),
            publications[at as usize].as_deref_mut(),
        ) else {
            return rough;
        };
        room.used_at = now;
        let (publisher, proxy) = (publication.id, publication.proxy);
        let known = namespaces.get(&proxy).and_then(|known| known.get(&frame.namespace));
        if let Some(space) = known.filter(|_| frame.namespace > 0) {
            room.ring.home.space = *space;
        }
        let born = frame.age.map_or(0, |age| age::born(now, age.into()));
        // Another broker numbered and credited the skipped messages: the publisher's credit here moves by as many.
        let skipped = frame.low.saturating_sub(publication.order.cumulative() + 1);
        publication.credited = publication.credited.saturating_add(skipped);
        if publication.generation != room.generation {
            // Numbers of an earlier stream mean nothing in this one.
            counters.dropped_held += publication.held();
            users.release(publisher.user, publication.order.cost());
            publication.order = Publisher::new(frame.low);
            publication.order.offer(now, 0, 0);
            publication.credited = frame.low - 1 + limits::UNACKED_MESSAGES_MAX;
            publication.generation = room.generation;
        }
        let order = &mut publication.order;
        let before = room.ring.next();
        let (held_before, cost_before) = (order.held_len(), order.cost());
        order.settle(frame.low);
        users.release(publisher.user, cost_before - order.cost());
        let mut cost = order.cost();
        // `false`: its user would have too much remembered, since it does not confirm; it will repeat the message.
        let mut number =
            |order: &mut Publisher, users: &mut Users, sequence: u64, flags: u8, born: u32, data: &[u8]| {
                let offset = room.ring.next();
                let more = order.run_cost(offset);
                if more > 0 && !users.remember(publisher.user, more) {
                    return false;
                }
                cost += more;
                let entry = Entry {
                    offset,
                    publisher,
                    sequence,
                    flags,
                    gap: false,
                    stream: 0,
                    at_ms: 0,
                    born,
                    data,
                };
                room.ring.push(arena, now, &entry);
                order.applied(sequence, offset);
                counters.messages_published += 1;
                if born > 0 {
                    ages.note(now, proxy, born);
                }
                true
            };
        let (mut released, mut bytes_held) = (0, 0);
        while let Some(ready) = order.pop_ready() {
            released += u64::from(number(order, users, ready.seq, ready.flags, ready.born, &ready.data));
        }
        let (mut seen, mut held, mut repeated, mut ahead, mut unpaid) = (0, 0, 0, 0, 0);
        let credited = publication.credited;
        let mut prompt = frame.count == 0;
        for (sequence, (flags, data)) in (frame.first..).zip(published(frame.messages, frame.count)) {
            seen += 1;
            prompt |= flags & PROMPT != 0;
            let flags = flags & KEPT;
            if sequence > credited {
                unpaid += 1;
                continue;
            }
            match order.offer(now, sequence, data.len()) {
                Decision::Apply if number(order, users, sequence, flags, born, data) => {
                    while let Some(ready) = order.pop_ready() {
                        released += u64::from(number(order, users, ready.seq, ready.flags, ready.born, &ready.data));
                    }
                }
                Decision::Hold if users.hold(publisher.user, held_cost(data.len())) => {
                    order.hold(sequence, flags, born, data);
                    bytes_held += held_cost(data.len());
                    held += 1;
                }
                Decision::Duplicate { .. } => repeated += 1,
                Decision::Apply | Decision::Hold | Decision::Refuse(_) => ahead += 1,
            }
        }
        users.release(publisher.user, (cost + bytes_held).saturating_sub(order.cost()));
        counters.messages_held += held;
        counters.dropped_held += held_before as u64 + held - released - order.held_len() as u64;
        counters.messages_repeated += repeated;
        counters.dropped_ahead += ahead;
        counters.dropped_credit += unpaid;
        if frame.count == 0 {
            order.offer(now, 0, 0);
        }
        publication.repeated |= repeated > 0;
        publication.fresh_messages += u32::from(seen);
        publication.fresh_bytes += frame.messages.len();
        if room.ring.next() > before {
            self.room_grew(now, room_at, before);
        }
        Applied {
            good: seen == frame.count,
            smooth: !prompt && held + repeated + ahead + unpaid == 0,
        }
    }

    /// Schedules an acknowledgement soon; at once if none has left for as long as it would wait, so that a rare
    /// message needs no extra wake-up.
    fn acknowledge_later(&mut self, now: Micros, at: u32) {
        let Some(publication) = self.publications[at as usize].as_deref_mut() else {
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
            self.release_acks(proxy);
        }
    }

    /// Sends acknowledgements that have waited long enough.
    pub(super) fn acknowledge_late(&mut self, now: Micros) {
        let due = |acks: &Acks| acks.deadline().is_some_and(|at| now >= at);
        let proxies = self.acks.iter().filter(|(_, acks)| due(acks));
        for proxy in proxies.map(|(proxy, _)| *proxy).collect::<Vec<_>>() {
            self.release_acks(proxy);
        }
    }

    fn release_acks(&mut self, proxy: u32) {
        let Some(acks) = self.acks.get_mut(&proxy) else { return };
        acks.since = None;
        let mut late = std::mem::take(&mut acks.late);
        for at in late.drain(..) {
            let Some(publication) = self.publications[at as usize].as_deref_mut() else {
                continue;
            };
            publication.late = false;
            if publication.fresh_messages > 0 {
                self.acknowledge(at, None);
            }
        }
        if let Some(acks) = self.acks.get_mut(&proxy) {
            acks.late = late; // reuses its memory
        }
    }

    /// Schedules an acknowledgement to the publisher; `slot`: its proxy's link, if at hand. Without a link there is
    /// no receiver: the publisher asks again by repeating.
    fn acknowledge(&mut self, at: u32, slot: Option<u32>) {
        let Some(publication) = self.publications[at as usize].as_deref_mut() else {
            return;
        };
        let Some(slot) = slot.or_else(|| self.links.to(publication.proxy)) else {
            return;
        };
        if !publication.ack_due {
            publication.ack_due = true;
            self.acks.entry(publication.proxy).or_default().due.push_back(at);
        }
        self.links.table.mark(slot);
    }

    /// A proxy's link is lost, and its pending acknowledgements with it.
    pub(super) fn forget_acks(&mut self, proxy: u32) {
        let Some(acks) = self.acks.remove(&proxy) else { return };
        for at in acks.due.into_iter().chain(acks.late) {
            let Some(publication) = self.publications[at as usize].as_deref_mut() else {
                continue;
            };
            (publication.ack_due, publication.late) = (false, false);
            if publication.proxy != proxy {
                self.acknowledge(at, None);
            }
        }
    }

    /// The next acknowledgement for a proxy, and its session.
    pub(super) fn next_ack(&mut self, now: Micros, proxy: u32) -> Option<(u64, Ack)> {
        loop {
            let acks = self.acks.get_mut(&proxy)?;
            if let Some(said) = acks.said.pop_front() {
                return Some(said);
            }
            let at = acks.due.pop_front()?;
            acks.sent_at = now;
            let Some(publication) = self.publications[at as usize].as_deref_mut() else {
                continue;
            };
            publication.ack_due = false;
            (publication.fresh_messages, publication.fresh_bytes) = (0, 0);
            let (node, epoch) = (self.node.me.node, self.node.me.epoch);
            let mut stream = StreamId {
                node,
                epoch,
                generation: 0,
            };
            let mut withheld = false;
            if let Some(room_at) = self.by_id.get(&publication.room).copied() {
                if let Some(room) = self.rooms[room_at as usize].as_deref_mut() {
                    stream.generation = match publication.generation {
                        0 => room.generation,
                        numbered_in => numbered_in,
                    };
                    let (links, gateways) = (&self.links, &self.gateways);
                    withheld = room.withholds(&self.arena, now, |node| gateway_rtt(links, gateways, node));
                    withheld &= !std::mem::take(&mut publication.granted);
                    if withheld && !publication.withheld {
                        publication.withheld = true;
                        if room.withheld.is_empty() {
                            self.withheld.push(room_at);
                        }
                        room.withheld.push((at, now));
                        self.withheld_at.get_or_insert(now + WITHHOLD_EVERY);
                        self.counters.credit_withheld += 1;
                    }
                }
            }
            let mut ranges = [(0, 0); ACK_RANGES];
            let missing = publication.order.missing_ranges(&mut ranges);
            let mut runs = [Run::default(); ACK_RUNS];
            let from = match std::mem::take(&mut publication.repeated) {
                true => publication.low,
                false => publication.low.max(publication.order.last_runs(ACK_RUNS)),
            };
            let known = publication.order.runs(from, &mut runs);
            // Held messages no longer count as in flight.
            let (messages, bytes) = match (withheld, &publication.order) {
                (true, _) => (0, 0),
                (false, order) => (
                    limits::CREDIT_MESSAGES as usize + order.held_len(),
                    limits::CREDIT_BYTES + order.held_bytes(),
                ),
            };
            let credited = publication.order.cumulative() + messages as u64;
            publication.credited = publication.credited.max(credited);
            let ack = Ack {
                handle: publication.handle,
                echo: std::mem::take(&mut publication.echo),
                code: publication.code,
                cumulative: publication.order.cumulative(),
                highest: publication.order.highest(),
                credit_messages: messages as u16,
                credit_bytes: bytes as u32,
                stream,
                missing: ranges[..missing].to_vec(),
                runs: runs[..known]
                    .iter()
                    .map(|run| (run.seq, run.offset, run.count.min(u32::from(u16::MAX)) as u16))
                    .collect(),
            };
            return Some((publication.session, ack));
        }
    }

    /// Puts back acknowledgements that did not fit: their content exists only once.
    pub(super) fn keep_acks(&mut self, proxy: u32, left: Vec<(u64, Ack)>) {
        if let Some(acks) = self.acks.get_mut(&proxy) {
            left.into_iter().rev().for_each(|ack| acks.said.push_front(ack));
        }
    }

    /// Checks the publishers whose credit is withheld.
    pub(super) fn release_withheld(&mut self, now: Micros) {
        if self.withheld_at.is_none_or(|at| now < at) {
            return;
        }
        self.withheld_at = None;
        // A publisher released and withheld again meanwhile is listed twice.
        self.withheld.sort_unstable();
        self.withheld.dedup();
        let mut released = Vec::new();
        let (links, gateways) = (&self.links, &self.gateways);
        let (rooms, arena) = (&mut self.rooms, &self.arena);
        self.withheld.retain(|at| {
            let Some(room) = rooms[*at as usize].as_deref_mut() else {
                return false;
            };
            let withholds = room.withholds(arena, now, |node| gateway_rtt(links, gateways, node));
            released.extend(room.release(now, withholds));
            !room.withheld.is_empty()
        });
        if !self.withheld.is_empty() {
            self.withheld_at = Some(now + WITHHOLD_EVERY);
            // If a gateway's report of progress was lost, it repeats the report when it gets a head.
            for at in self.withheld.clone() {
                let Some(room) = self.rooms[at as usize].as_deref() else {
                    continue;
                };
                let behind: Vec<u32> = room
                    .gateways
                    .iter()
                    .filter(|cursor| cursor.behind_since.is_some() || cursor.late_since.is_some())
                    .map(|cursor| cursor.gateway)
                    .collect();
                behind.into_iter().for_each(|node| self.head_due(at, node));
            }
        }
        self.grant(released);
    }

    /// As [`Broker::release_withheld`], for one room whose gateway has reported its progress.
    pub(super) fn release_room(&mut self, now: Micros, at: u32) {
        let (links, gateways, arena) = (&self.links, &self.gateways, &self.arena);
        let Some(room) = self.rooms[at as usize].as_deref_mut() else {
            return;
        };
        let withholds = room.withholds(arena, now, |node| gateway_rtt(links, gateways, node));
        let released = room.release(now, withholds).collect();
        self.grant(released);
    }

    fn grant(&mut self, released: Vec<u32>) {
        for at in released {
            if let Some(publication) = self.publications[at as usize].as_deref_mut() {
                (publication.withheld, publication.granted) = (false, true);
            }
            self.acknowledge(at, None);
        }
    }

    /// Forgets publishers that were idle for long, a part of them per call.
    pub(super) fn sweep_publishers(&mut self, now: Micros) {
        for _ in 0..self.publications.len().min(SWEPT_AT_ONCE) {
            self.sweep_publication = (self.sweep_publication + 1) % self.publications.len();
            let place = &mut self.publications[self.sweep_publication];
            let idle = |known: &Publication| {
                !known.ack_due && !known.withheld && now >= known.order.last_seen() + limits::PUBLISHER_IDLE
            };
            let Some(gone) = place.take_if(|known| idle(known)) else {
                continue;
            };
            self.counters.dropped_held += gone.held();
            self.free_publications.push(self.sweep_publication as u32);
            self.publishers.remove(&(gone.room, gone.id));
            self.users.release(gone.id.user, gone.order.cost());
            self.users.leave(gone.id.user);
        }
    }
}

/// The round trip to a gateway, if it has a link.
fn gateway_rtt(links: &Links, gateways: &BTreeMap<u32, GatewayPeer>, node: u32) -> Option<Micros> {
    let slot = gateways.get(&node)?.link;
    Some(links.table.get(slot)?.conn.flow.rtt())
}
