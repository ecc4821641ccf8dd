//! Reports and requests for brokers: how far this gateway is in their streams, and which messages it lacks.
//!
//! Owns these queues and their times. Knows no session; `progress` says how far a stream is.

use std::collections::{BTreeMap, VecDeque};

use muster_transport::{append, Links, Micros, Writer};

use super::backlog::Backlog;
use super::relays::Relays;
use super::room::{Room, Wanted};
use super::GatewayCounters;
use crate::limits::{CONSUMED_WAIT, RELAYED_WAIT};
use crate::slots::Slots;
use crate::wire::kinds;
use crate::wire::room::{write_link_question, write_link_repair, Consumed};

/// Repair requests to one broker that wait for space.
const ASKS_MAX: usize = 4_096;

/// The reports and requests that wait for brokers.
#[derive(Default)]
pub(super) struct Reports {
    by_broker: BTreeMap<u32, Outgoing>,
    /// When progress is told next.
    consumed_at: Option<Micros>,
    /// The same for rooms that come by other gateways.
    relayed_at: Option<Micros>,
    /// The number of the last question.
    questions: u64,
    pub backlog: Backlog,
}

impl Reports {
    /// The number of the last question to brokers.
    pub fn questions(&self) -> u64 {
        self.questions
    }

    /// The number of a further one.
    pub fn next_question(&mut self) -> u64 {
        self.questions += 1;
        self.questions
    }

    /// Asks a broker, if it has a link.
    pub fn ask(&mut self, links: &mut Links, node: u32, ask: Ask) {
        let Some(slot) = links.to(node) else { return };
        let asks = &mut self.by_broker.entry(node).or_default().asks;
        if asks.len() < ASKS_MAX {
            asks.push_back(ask);
            links.table.mark(slot);
        }
    }

    /// A broker's link is lost: there is nobody to ask. Rooms with holes ask their next owner.
    pub fn forget_asks(&mut self, node: u32) {
        if let Some(outgoing) = self.by_broker.get_mut(&node) {
            outgoing.asks.clear();
        }
    }

    /// Notes to tell those owners of a room soon that do not know how far it is.
    pub fn note(&mut self, now: Micros, at: u32, room: &mut Room, relays: &Relays) {
        let id = room.id;
        for number in 0..room.sources().len() {
            let Some(source) = room.source_mut(number).filter(|source| source.consumed_dirty) else {
                continue;
            };
            source.consumed_dirty = false;
            let node = source.stream.node;
            let relayed = relays.bring(id, node);
            match relayed {
                true => self.relayed_at.get_or_insert(now + RELAYED_WAIT),
                false => self.consumed_at.get_or_insert(now + CONSUMED_WAIT),
            };
            if !source.consumed_queued {
                source.consumed_queued = true;
                let outgoing = self.by_broker.entry(node).or_default();
                match relayed {
                    true => outgoing.relayed.push((at, number)),
                    false => outgoing.consumed.push_back((at, number)),
                }
            }
        }
    }

    /// A part of the progress is told once more, for more has come than is told now.
    pub fn tell_again(&mut self, now: Micros) {
        self.consumed_at.get_or_insert(now + CONSUMED_WAIT);
    }

    /// Marks the links of brokers that are to be told of progress now.
    pub fn flush(&mut self, now: Micros, links: &mut Links) {
        let relayed = self.relayed_at.is_some_and(|at| now >= at);
        if relayed {
            self.relayed_at = None;
            for outgoing in self.by_broker.values_mut() {
                outgoing.consumed.extend(outgoing.relayed.drain(..));
            }
        }
        if !relayed && self.consumed_at.is_none_or(|at| now < at) {
            return;
        }
        self.consumed_at = None;
        for (node, outgoing) in &mut self.by_broker {
            outgoing.due = outgoing.consumed.len();
            if let Some(slot) = links.to(*node).filter(|_| outgoing.due > 0) {
                self.consumed_at = Some(now + CONSUMED_WAIT);
                links.table.mark(slot);
            }
        }
    }

    /// When [`Reports::flush`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        self.consumed_at.into_iter().chain(self.relayed_at).min()
    }

    /// Takes what waits for a broker, to be put back with [`Reports::put_back`].
    pub fn take(&mut self, node: u32) -> Outgoing {
        self.by_broker.get_mut(&node).map(std::mem::take).unwrap_or_default()
    }

    pub fn put_back(&mut self, node: u32, outgoing: Outgoing) {
        if let Some(place) = self.by_broker.get_mut(&node) {
            *place = outgoing;
        }
    }
}

/// Pending reports and requests to one broker.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Streams of rooms with progress to report, by room and number. The first `due` ones are due.
    pub consumed: VecDeque<(u32, usize)>,
    due: usize,
    /// The same of rooms that come by other gateways.
    relayed: Vec<(u32, usize)>,
    asks: VecDeque<Ask>,
    /// The report in the current datagram. Its memory is kept: an allocation of a kilobyte waited 0.3 to 2 ms while the
    /// heap merged the freed memory of a hundred thousand sessions.
    pub told: Vec<((u32, usize), Consumed)>,
}

impl Outgoing {
    /// The next stream whose progress is told.
    pub fn next(&mut self) -> Option<(u32, usize)> {
        let next = self.consumed.pop_front()?;
        self.due = self.due.saturating_sub(1);
        Some(next)
    }

    /// Whether progress is still due.
    pub fn is_due(&self) -> bool {
        self.due > 0
    }

    /// Writes the report and requests. Returns whether requests are left that had no space.
    pub fn write(&mut self, rooms: &Slots<u64, Room>, writer: &mut Writer<'_>, counters: &mut GatewayCounters) -> bool {
        if !self.told.is_empty() {
            append(writer, kinds::CONSUMED, 0, |writer| {
                self.told.iter().for_each(|(_, consumed)| consumed.write(writer));
                true
            });
        }
        while let Some(ask) = self.asks.pop_front() {
            let Some(room) = rooms.get(ask.at) else {
                continue;
            };
            let fits = match ask.question {
                Some(number) => write_link_question(writer, room.id, number),
                None => write_link_repair(writer, room.id, ask.generation, ask.history, &ask.ranges),
            };
            if !fits {
                self.asks.push_front(ask);
                return true;
            }
            counters.repairs_asked += 1;
        }
        false
    }

    /// The link has no window: the broker is told when it has.
    pub fn keep(&mut self, rooms: &mut Slots<u64, Room>) {
        for ((at, number), _) in self.told.drain(..).rev() {
            let room = rooms.get_mut(at);
            let source = room.and_then(|room| room.source_mut(number));
            if let Some(source) = source.filter(|source| !source.consumed_queued) {
                source.consumed_queued = true;
                self.consumed.push_front((at, number));
            }
        }
    }
}

/// A repair request that waits for space.
pub(super) struct Ask {
    at: u32,
    /// The broker's stream; 0 asks for the head of the present one.
    generation: u32,
    history: bool,
    ranges: Vec<(u64, u64)>,
    /// The number of a question for a broker's state of the room, also if it is not the owner, and without beginning a stream.
    question: Option<u64>,
}

impl Ask {
    /// Asks for the head of the owner's stream.
    pub fn head(at: u32) -> Self {
        Ask {
            at,
            generation: 0,
            history: false,
            ranges: Vec::new(),
            question: None,
        }
    }

    /// Asks for messages of a stream.
    pub fn wanted(at: u32, wanted: Wanted) -> Self {
        Ask {
            at,
            generation: wanted.stream.generation,
            history: wanted.history,
            ranges: wanted.ranges,
            question: None,
        }
    }

    /// Asks what a broker has of a room.
    pub fn question(at: u32, number: u64) -> Self {
        Ask {
            question: Some(number),
            ..Ask::head(at)
        }
    }
}
