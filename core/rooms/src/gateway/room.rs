//! One room at a gateway: its ring of places, the streams that filled it, the owner's outstanding data, and the
//! members.
//!
//! A *place* is the gateway's own dense number of a message or gap for members. Owners' offsets come in out of order
//! and with holes; places are given in order only, so a member never asks for a place that the gateway lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use muster_transport::{Code, Micros, Placement, NUMBER_MAX};

use super::cursors::Cursors;
use super::holes::Holes;
use super::patience::Patience;
use super::proofs::{Numbered, Proofs};
use super::turns::{Fronts, Turns};
use super::GatewayCounters;
use crate::age::{self, Ages};
use crate::asking::{Asking, Pace};
use crate::filter::Filter;
use crate::limits::{CROWDED_BYTES, CROWDED_MESSAGES, CROWDED_WINDOW, MESSAGE_AGE_MAX};
use crate::planted::{self, Bug};
use crate::ring::{Arena, Entry, Ring};
use crate::wire::publish::{Course, Position, Positions};
use crate::wire::room::{LinkBlock, Message, FIRST, LAST, STREAMS_MAX};
use crate::wire::{GapReason, PublisherId, StreamGap, StreamId};

/// The first place of a room; history can be put in front of it, until the room loses the first that it has.
pub const FIRST_PLACE: u64 = 1 << 32;
/// The wait before a hole becomes a gap: in a live room, and in a paced one, where the publishers wait too.
pub const HOLE_WAIT: Micros = 200_000;
pub const HOLE_WAIT_PACED: Micros = 3_000_000;
/// The most of it that counts between two looks: there is time for some requests, however late the loop is.
const HOLE_LOOK: Micros = HOLE_WAIT / 4;
/// When holes are asked for.
pub const PACE: Pace = Pace {
    reorder: 1_500,
    reorder_max: 5_000,
    again: 15_000,
    again_max: 15_000,
};
/// Messages and bytes held ahead of a hole, per room; never more than the room's share of the arena, which would not keep them.
pub const HELD_MAX: usize = 8_192;
pub const HELD_BYTES_MAX: usize = 8 << 20;
/// How long a message waits from when it came for the one before it, which another broker may have: by then its tail was probed, and
/// a hole that is known then is waited for.
const TURN_WAIT: Micros = 250_000;
const TURN_AGAIN: Micros = 10_000;
/// The interval of the search for old messages.
const AGE_EVERY: Micros = 250_000;
/// How long a join with positions waits for history from the owner.
pub const BACKFILL_WAIT: Micros = 1_000_000;
/// Messages of history that a join fetches from the owner, and how many of them at a time, the youngest first: this
/// many are held until they are complete.
pub const BACKFILL_MAX: u64 = 65_536;
const BACKFILL_STEP: u64 = 1_024;
/// Places that are looked through for the last messages of a room, beside those of the longest for each message that is found.
const LAST_PLACES_MAX: u64 = 8_192;
const CHUNKS_MAX: u64 = 64;
/// From a stream that is heard of late, at most this many earlier messages are requested; others are reported lost.
const LATE_MAX: u64 = 256;

/// Held history: offsets and sequences, by stream and publisher.
type Lately = BTreeMap<(usize, PublisherId), Vec<(u64, u64)>>;

struct Held {
    came_at: Micros,
    publisher: PublisherId,
    sequence: u64,
    flags: u8,
    born: u32,
    data: Box<[u8]>,
}

/// A request for an owner.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    pub stream: StreamId,
    pub history: bool,
    pub ranges: Vec<(u64, u64)>,
}

/// History wanted from the owner.
struct Backfill {
    from: u64,
    until: Micros,
}

/// The way to a broker's life from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// It has a link.
    Linked,
    /// It may have one soon.
    MaySpeak,
    Gone,
}

/// A member that returns.
#[derive(Clone, Copy)]
pub struct Returning<'a> {
    pub positions: &'a Positions,
    /// The number of the last question before it asked to join: answers to later ones say what its owners had numbered.
    pub asked_before: u64,
    /// History that is not here now is lost to it.
    pub last_try: bool,
    /// It has waited long enough for all else as well.
    pub overdue: bool,
    /// It drops messages at offsets that it shows, so it may begin before them.
    pub drops_covered: bool,
}

/// A join that waits for its room to be ready, or for history.
pub struct Waiting {
    pub session: u64,
    /// Which messages it wants; all, without one.
    pub filter: Option<Box<Filter>>,
    pub request: u32,
    /// It wants to know what there is, and no place in the room.
    pub peek: bool,
    pub positions: Positions,
    /// Messages that are to come first.
    pub history: u32,
    pub since: Micros,
    /// The number of the last question that brokers were asked before.
    pub asked_before: u64,
    /// Since when the room was ready and the join still waited.
    pub tried: Option<Micros>,
    /// The condition that it lacked at the last look.
    pub lacks: Option<Lack>,
}

/// The condition that a join waits for once its room is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// History of a stream, by number, from this offset on; or as much of it as comes.
    History(usize, u64),
    /// A report of a further stream; the number of reports at the last look.
    Said(u32),
    /// A stream, by number, up to this offset: its broker is asked whether it has numbered that. Or a further report, as before.
    Proof(usize, u64, u32),
}

impl Waiting {
    /// Whether it was a member before, and says up to where.
    pub fn returns(&self) -> bool {
        !self.positions.0.is_empty()
    }

    /// Whether it is owed messages from before its join.
    pub fn wants_past(&self) -> bool {
        self.returns() || self.history > 0
    }
}

/// The context for writing places: the arena, the time, the counters, and the placement.
pub struct Pen<'a> {
    pub arena: &'a mut Arena,
    pub counters: &'a mut GatewayCounters,
    pub ages: &'a mut Ages,
    pub placement: &'a Placement,
    pub now: Micros,
}

/// The place at which a member starts, or that history must come first.
pub enum Start {
    At {
        place: u64,
        gaps: Vec<StreamGap>,
        history: History,
    },
    Fetch(Lack),
}

/// The length of the history for a member that asked for the last messages, and whether it is as much as asked, or all.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct History {
    pub messages: u32,
    pub whole: bool,
}

/// A stream of the room, as far as this gateway is with it.
pub struct Source {
    pub stream: StreamId,
    /// The cluster that its broker is in.
    pub cluster: u16,
    /// The room says that the rest is lost or that there is none. The stream's owner may go on all the same.
    pub over: bool,
    /// The owner has not been told how far this is; and whether it will be.
    pub consumed_dirty: bool,
    pub consumed_queued: bool,
    /// The ring's first place that is this stream's, and the one after its last.
    first_place: u64,
    end_place: u64,
    /// The next wanted offset, the first in the ring, and the first one never mentioned.
    next: u64,
    low: u64,
    known: u64,
    /// The first offset that its owner numbered when every broker knew of this gateway, as far as is known.
    base: u64,
    /// The owner said that nothing follows from this offset on.
    ends_at: Option<u64>,
    /// The reason with which its rest will be reported as lost, once held messages that wait for another broker's have
    /// had their turn.
    ending: Option<GapReason>,
    /// The owner has no link.
    away: bool,
    /// Its next message waits for another broker's, and came then.
    waits: Option<Micros>,
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    hole: Option<Hole>,
    asking: Asking,
    /// When history is asked for again.
    fetch_at: Micros,
    backfill: Option<Backfill>,
}

/// A hole that is waited for. Time in which nobody asked, as this process stood still, does not count.
#[derive(Debug)]
struct Hole {
    waited: Micros,
    looked_at: Micros,
}

impl Hole {
    fn new(now: Micros) -> Self {
        Hole {
            waited: 0,
            looked_at: now,
        }
    }

    fn look(&mut self, now: Micros) {
        self.waited += now.saturating_sub(self.looked_at).min(HOLE_LOOK);
        self.looked_at = now;
    }

    /// When it is to be looked at, so that all time counts.
    fn deadline(&self, wait: Micros) -> Micros {
        self.looked_at + wait.saturating_sub(self.waited).min(HOLE_LOOK)
    }
}

/// The order by age of two streams of one node.
fn age(stream: StreamId) -> (u32, u32) {
    (stream.epoch, stream.generation)
}

/// Why a stream is over, given another one of its node: one of the same life means that the room was forgotten and made anew.
fn why_over(stream: StreamId, other: Option<StreamId>) -> GapReason {
    match other.is_some_and(|other| other.epoch == stream.epoch) {
        true => GapReason::Restarted,
        false => GapReason::OwnerLost,
    }
}

impl Source {
    fn new(stream: StreamId, cluster: u16, next: u64, place: u64) -> Self {
        let mut asking = Asking::new(PACE);
        asking.restart(next);
        Source {
            stream,
            cluster,
            over: false,
            consumed_dirty: false,
            consumed_queued: false,
            first_place: place,
            end_place: place,
            next,
            low: next,
            known: next,
            base: next,
            ends_at: None,
            ending: None,
            away: false,
            waits: None,
            held: BTreeMap::new(),
            held_bytes: 0,
            hole: None,
            asking,
            fetch_at: 0,
            backfill: None,
        }
    }

    /// The first offset that the gateway does not have.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// Whether offsets are missing before the known head.
    fn has_hole(&self) -> bool {
        self.waits.is_none() && self.next < self.known
    }

    /// More of it may come, as far as is known.
    pub fn is_live(&self) -> bool {
        !self.over && self.ending.is_none()
    }

    /// Whether nothing is known here of an offset, though the stream may go on.
    fn is_ahead(&self, offset: u64) -> bool {
        !self.is_lost() && offset >= self.next.max(self.known)
    }

    /// Nothing more is expected of it, and its end is unknown: its rest is lost.
    fn is_lost(&self) -> bool {
        self.over && self.ends_at.is_none()
    }

    /// The owner speaks of it as one that has not ended, or not any more.
    fn goes_on(&mut self) {
        (self.over, self.ends_at) = (false, None);
    }

    /// Drops held messages at offsets before `until`.
    fn drop_held(&mut self, counters: &mut GatewayCounters, until: u64) {
        let rest = self.held.split_off(&until);
        let dropped = std::mem::replace(&mut self.held, rest);
        self.held_bytes -= dropped.values().map(|held| held.data.len()).sum::<usize>();
        counters.dropped_held += dropped.len() as u64;
    }

    /// No member waits for history any more, so history without a place is dropped.
    fn end_backfill(&mut self, counters: &mut GatewayCounters) {
        self.backfill = None;
        self.drop_held(counters, self.low);
    }

    /// Whether an offset came already, or is of before the ring and no join waits for it; counts it then.
    fn had(&self, counters: &mut GatewayCounters, offset: u64) -> bool {
        if offset < self.low {
            let wanted = self.backfill.as_ref().is_some_and(|wanted| offset >= wanted.from);
            if !wanted {
                counters.dropped_unwanted += 1;
                return true;
            }
        }
        let had = (self.low..self.next).contains(&offset) || self.held.contains_key(&offset);
        counters.messages_duplicate += u64::from(had);
        had
    }

    fn take_held(&mut self, offset: u64) -> Option<Held> {
        let held = self.held.remove(&offset)?;
        self.held_bytes -= held.data.len();
        Some(held)
    }

    /// The begin of the history that is fetched next.
    fn step(&self, backfill: &Backfill) -> u64 {
        backfill.from.max(self.low.saturating_sub(BACKFILL_STEP))
    }

    /// Whether enough history has arrived: at least half a step, down to a place that stays while it is examined.
    fn has_fetched(&self) -> bool {
        self.backfill.as_ref().is_none_or(|backfill| {
            const HALF: u64 = BACKFILL_STEP / 2;
            let here = self.low.saturating_sub(1) / HALF * HALF;
            let step = backfill.from.max(here.saturating_sub(HALF))..self.low;
            step.end - step.start == self.held.range(step).count() as u64
        })
    }

    /// Ranges of history that the owner is to be asked for now.
    fn fetch(&mut self, now: Micros, rtt: Micros, ranges: usize) -> Vec<(u64, u64)> {
        let mut history = Vec::new();
        let Some(backfill) = self.backfill.as_ref().filter(|_| now >= self.fetch_at) else {
            return history;
        };
        self.fetch_at = now + PACE.again.max(2 * rtt.min(BACKFILL_WAIT / 8));
        let mut from = self.step(backfill);
        let held = self.held.range(from..self.low).map(|(offset, _)| *offset);
        for offset in held.chain([self.low]) {
            if offset > from && history.len() < ranges {
                history.push((from, offset - 1));
            }
            from = offset + 1;
        }
        history
    }

    /// When something is missing or overdue next.
    fn deadline(&self, now: Micros, hole_wait: Micros) -> Option<Micros> {
        let hole = self.has_hole().then(|| match &self.hole {
            Some(hole) => self
                .asking
                .deadline()
                .map_or(u64::MAX, |at| at.max(now))
                .min(hole.deadline(hole_wait)),
            None => now + PACE.reorder,
        });
        let backfill = self
            .backfill
            .as_ref()
            .map(|backfill| backfill.until.min(self.fetch_at.max(now)));
        let turn = self.waits.map(|since| (since + TURN_WAIT).max(now + TURN_AGAIN));
        [hole, backfill, turn].into_iter().flatten().min()
    }
}

/// A result of [`Room::last`], with the ring's end, the number of streams and the number of messages that it was
/// computed for.
type Found = ((u64, u64, usize, u32), (u64, History, bool));

/// One room.
pub struct Room {
    pub id: u64,
    /// The other 64 bits of the name's hash: two names with one id are told apart.
    pub check: u64,
    pub name: Box<str>,
    pub paced: bool,
    /// The key of its built frames.
    pub frames: u32,
    pub ring: Ring,
    /// The streams that fill the ring, by the number that entries name them with.
    sources: Vec<Source>,
    found: Option<Box<Found>>,
    turns: Option<Box<Turns>>,
    fronts: Option<Box<Fronts>>,
    pub members: Vec<u32>,
    /// Missing places in a paced room, and the cursors.
    pub holes: Holes,
    pub cursors: Cursors,
    pub patience: Patience,
    pub waiting: Vec<Waiting>,
    /// Conditions of waiting members: the first arrival of each stream, the number of reports at the last look at all,
    /// and at present.
    lacking: Vec<(usize, u64)>,
    /// The lowest offset of each stream that a waiting member has and this gateway lacks.
    ahead: Vec<(usize, u64)>,
    looked: u32,
    said: u32,
    #[cfg(test)]
    pub starts: usize,
    /// Version of the last membership change told to routers.
    pub version: u64,
    /// Router partitions that have not said yet that every broker that asks them knows of this room.
    pub owed: [Option<u16>; 2],
    /// Every running broker of the room knows that this gateway wants it.
    in_force: bool,
    /// Brokers, each with its epoch, that have reported their state of this room since it is known here.
    heard: Vec<(u32, u32)>,
    /// Whether owners have numbered what members show, while that is asked.
    pub proofs: Option<Box<Proofs>>,
    /// A member came back here, and may have missed messages of streams that are not known yet.
    pub returned: bool,
    /// When brokers are asked again about such streams, while a member waits for that.
    pub ask_around_at: Option<Micros>,
    /// Why the router or the owner will have nothing of it.
    pub refused: Option<Code>,
    /// Since when there has been no member.
    pub empty_since: Option<Micros>,
    /// Fan-out: whether the room is in the queue, and how many members this round still has to look at.
    pub active: bool,
    pub serve_at: usize,
    pub serve_left: usize,
    /// The first place that is not too old, and when that was looked for.
    too_old: u64,
    aged_at: Micros,
}

impl Room {
    pub fn new(id: u64, check: u64, name: &str, paced: bool, frames: u32) -> Self {
        Room {
            id,
            check,
            name: name.into(),
            paced,
            frames,
            ring: Ring::of(FIRST_PLACE, id),
            sources: Vec::new(),
            found: None,
            turns: None,
            fronts: None,
            members: Vec::new(),
            holes: Holes::default(),
            cursors: Cursors::default(),
            patience: Patience::default(),
            waiting: Vec::new(),
            lacking: Vec::new(),
            ahead: Vec::new(),
            looked: 0,
            said: 0,
            #[cfg(test)]
            starts: 0,
            version: 0,
            owed: [None; 2],
            in_force: false,
            heard: Vec::new(),
            proofs: None,
            returned: false,
            ask_around_at: None,
            refused: None,
            empty_since: None,
            active: false,
            serve_at: 0,
            serve_left: 0,
            too_old: 0,
            aged_at: 0,
        }
    }

    /// The streams that the ring knows, by number.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    pub fn source_mut(&mut self, at: usize) -> Option<&mut Source> {
        self.sources.get_mut(at)
    }

    /// The streams that go on.
    pub fn live(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.is_live())
    }

    /// The stream that brought something last, of those that go on if there are some.
    pub fn newest(&self) -> Option<&Source> {
        self.sources
            .iter()
            .max_by_key(|source| (source.is_live(), source.end_place))
    }

    /// Whether members can be admitted: brokers know the gateway's interest, and an owner has reported its head.
    /// Messages numbered later arrive or are announced, even if that owner dies first.
    pub fn is_ready(&self) -> bool {
        self.in_force && self.live().next().is_some()
    }

    /// A broker that knows the room's interest has reported its state of the room.
    pub fn note_heard(&mut self, node: u32, epoch: u32) {
        if !self.has_heard(node, epoch) {
            self.heard.retain(|(known, _)| *known != node);
            self.heard.push((node, epoch));
        }
    }

    pub fn has_heard(&self, node: u32, epoch: u32) -> bool {
        self.heard.contains(&(node, epoch))
    }

    /// Whether a member waits that came back with positions by `at`, with a session that is `open`.
    pub fn awaits_return(&self, at: Micros, open: impl Fn(u64) -> bool) -> bool {
        let by_then = self.waiting.iter().take_while(|waiting| waiting.since <= at);
        by_then
            .filter(|waiting| waiting.returns() && !waiting.peek)
            .any(|waiting| open(waiting.session))
    }

    /// Whether a waiting member wants earlier messages.
    pub fn has_past_wanted(&self) -> bool {
        self.waiting.iter().any(Waiting::wants_past)
    }

    /// A stream was reported: members that wait for a report must be examined.
    pub fn note_said(&mut self) {
        self.said = self.said.wrapping_add(1);
    }

    /// Whether the condition of a join is met, or is not awaited any more.
    pub fn has_come(&self, lack: Lack) -> bool {
        match lack {
            Lack::Said(said) => said != self.said,
            Lack::Proof(at, offset, said) => {
                let source = self.sources.get(at);
                said != self.said || source.is_none_or(|source| source.over || source.next > offset)
            }
            Lack::History(at, wanted) => {
                let source = self.sources.get(at);
                source.is_none_or(|source| source.backfill.is_none() || source.away || source.low <= wanted)
            }
        }
    }

    /// Whether an awaited condition has come since all members were examined.
    pub fn has_what_is_lacked(&self) -> bool {
        let come = |(at, wanted): &(usize, u64)| self.has_come(Lack::History(*at, *wanted));
        let proven = |(at, offset): &(usize, u64)| self.has_come(Lack::Proof(*at, *offset, self.said));
        self.looked != self.said || self.lacking.iter().any(come) || self.ahead.iter().any(proven)
    }

    /// These members wait on: all that do, or some more.
    pub fn keep_waiting(&mut self, mut still: Vec<Waiting>, all: bool) {
        if all {
            self.lacking.clear();
            self.ahead.clear();
            self.looked = self.said;
        }
        // The order: history from the youngest on, and news from the oldest on.
        let note = |lacking: &mut Vec<(usize, u64)>, at: usize, wanted: u64, first: fn(u64, u64) -> u64| match lacking
            .iter_mut()
            .find(|(known, _)| *known == at)
        {
            Some((_, known)) => *known = first(*known, wanted),
            None => lacking.push((at, wanted)),
        };
        for waiting in &still {
            match waiting.lacks {
                Some(Lack::History(at, wanted)) => note(&mut self.lacking, at, wanted, u64::max),
                Some(Lack::Proof(at, offset, _)) => note(&mut self.ahead, at, offset, u64::min),
                Some(Lack::Said(_)) | None => {}
            }
        }
        self.waiting.append(&mut still);
        if self.waiting.is_empty() && self.unproven().next().is_none() {
            self.proofs = None;
        }
    }

    /// Takes a broker's answer to a question. `false`: nobody waits for one.
    pub fn note_numbered(&mut self, answer: Numbered) -> bool {
        let asked = !self.waiting.is_empty() || self.unproven().next().is_some();
        asked && self.proofs.get_or_insert_default().note(answer)
    }

    /// Whether a position's owner has numbered it, as of an answer to a question after `asked_before`, if that is known.
    fn has_numbered(&self, had: &Position, asked_before: u64) -> Option<bool> {
        match self.proofs.as_deref() {
            Some(proofs) => proofs.has_numbered(had.stream, had.offset, asked_before),
            None => Proofs::default().has_numbered(had.stream, had.offset, asked_before),
        }
    }

    /// The brokers that a member's positions must be asked from: those of streams that this room does not know, and of streams of
    /// which it does not know so much.
    pub fn to_ask<'a>(&'a self, positions: &'a Positions) -> impl Iterator<Item = StreamId> + 'a {
        let ahead = |had: &&Position| match self.find(had.stream) {
            Some(at) => self.sources[at].is_ahead(had.offset),
            None => had.course == Course::GoesOn,
        };
        positions.0.iter().filter(ahead).map(|had| had.stream)
    }

    /// Notes offsets of a member that comes in, which no broker could be asked for. Tells whether there are any.
    pub fn note_unproven(&mut self, session: u64, returning: &Returning<'_>) -> bool {
        let asked_before = returning.asked_before;
        let mut any = false;
        for had in &returning.positions.0 {
            let ahead = self
                .find(had.stream)
                .is_some_and(|at| self.sources[at].is_ahead(had.offset));
            if ahead && self.has_numbered(had, asked_before).is_none() {
                let proofs = self.proofs.get_or_insert_default();
                proofs.add(session, (had.stream, had.offset), asked_before);
                any = true;
            }
        }
        any
    }

    /// The streams of which members have offsets that no broker could be asked for.
    pub fn unproven(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.proofs.iter().flat_map(|proofs| proofs.unproven())
    }

    /// Members whose offsets their brokers never numbered, by session. `ended`: no answer is waited for any more from the broker of
    /// a stream.
    pub fn take_denied(&mut self, ended: impl Fn(StreamId) -> bool) -> Vec<u64> {
        let Some(mut proofs) = self.proofs.take() else {
            return Vec::new();
        };
        let is_ahead = |stream, offset| self.find(stream).is_some_and(|at| self.sources[at].is_ahead(offset));
        let denied = proofs.take_denied(is_ahead, ended);
        self.proofs = Some(proofs);
        denied
    }

    /// Whether a member shows messages of streams that go on which this gateway has not got.
    pub fn lags(&self, positions: &Positions) -> bool {
        let lacks = |source: &Source| positions.of(source.stream).is_some_and(|had| had.offset >= source.next);
        self.live().any(lacks)
    }

    /// Whether a router partition is waited for.
    pub fn owes(&self, partition: u16) -> bool {
        self.owed.contains(&Some(partition))
    }

    /// Notes messages that are too old by now for members of a live room.
    pub fn age(&mut self, arena: &Arena, now: Micros) {
        if !self.paced && now >= self.aged_at + AGE_EVERY {
            (self.aged_at, self.too_old) = (now, self.ring.find_age(arena, now, MESSAGE_AGE_MAX));
        }
    }

    /// The first place that a member at `place` may still have. Places before its join are history, which has no age.
    pub fn oldest_for(&self, place: u64, joined_at: u64) -> u64 {
        let too_old = if place >= joined_at { self.too_old } else { 0 };
        self.ring.first().max(too_old)
    }

    /// Whether a member at `cursor` holds so much behind the place that it lacks that more would find no place there. Sent all the
    /// same, most of the room would have to be sent again, at the rate of repairs. It says so by its window, and reliably that it no
    /// longer does.
    pub fn is_crowded(&self, now: Micros, slot: u32, cursor: u64, window: u32) -> bool {
        window <= CROWDED_WINDOW
            && self.holes.of(now, slot).is_some_and(|lacks| {
                let bytes = self.ring.bytes_from(lacks).saturating_sub(self.ring.bytes_from(cursor));
                bytes > CROWDED_BYTES || cursor.saturating_sub(lacks) > CROWDED_MESSAGES as u64
            })
    }

    /// The last member may be gone: the room then counts as left.
    pub fn note_empty(&mut self, now: Micros) {
        if self.members.is_empty() && self.waiting.is_empty() {
            self.empty_since.get_or_insert(now);
        }
    }

    /// Owners are to be told anew how far this is: all, or that of one stream.
    pub fn tell_owners(&mut self, of: Option<StreamId>) {
        for source in &mut self.sources {
            source.consumed_dirty |= source.is_live() && of.is_none_or(|stream| stream == source.stream);
        }
    }

    /// The number of a stream.
    fn find(&self, stream: StreamId) -> Option<usize> {
        self.sources.iter().position(|source| source.stream == stream)
    }

    /// Whether all offsets of a stream below `until` are here, or were given up.
    pub fn has_to(&self, stream: StreamId, until: u64) -> bool {
        self.find(stream).is_some_and(|at| until <= self.sources[at].next)
    }

    /// Whether a stream is its node's youngest here, and goes on.
    pub fn is_present(&self, stream: StreamId) -> bool {
        let at = self.youngest(stream.node);
        at.is_some_and(|at| self.sources[at].stream == stream && self.sources[at].is_live())
    }

    /// A node's stream that goes on, and the first offset of it that is not known of.
    pub fn known_of(&self, node: u32) -> Option<(StreamId, u64)> {
        let mut live = self.live().filter(|source| source.stream.node == node);
        live.next().map(|source| (source.stream, source.known))
    }

    /// A stream that is here goes up to this offset at least.
    pub fn note_known(&mut self, stream: StreamId, next: u64) {
        if let Some(at) = self.find(stream) {
            let source = &mut self.sources[at];
            source.known = source.known.max(next);
        }
    }

    /// The number of a node's youngest stream.
    fn youngest(&self, node: u32) -> Option<usize> {
        let streams = self.sources.iter().map(|source| source.stream).enumerate();
        let streams = streams.filter(|(_, stream)| stream.node == node);
        streams.max_by_key(|(_, stream)| age(*stream)).map(|(at, _)| at)
    }

    /// The first offset of stream `at` that the places from `place` on have.
    fn first_at(&self, arena: &Arena, at: usize, place: u64) -> Option<u64> {
        let source = &self.sources[at];
        let places = place.max(source.first_place).max(self.ring.first())..source.end_place;
        let (_, entry) = self.ring.find_stream(arena, places, at as u8)?;
        Some(entry.offset)
    }

    /// The first offset of stream `at` that the places from `place` on have, or that follows or would; `u64::MAX` where its end is
    /// not known.
    pub fn offset_at(&self, arena: &Arena, at: usize, place: u64) -> u64 {
        let source = &self.sources[at];
        self.first_at(arena, at, place)
            .unwrap_or(if source.is_lost() { u64::MAX } else { source.next })
    }

    /// The positions of a member that starts at `place`, in ended streams as well: a stream that it does not know when
    /// it returns began later.
    pub fn position_at(&self, arena: &Arena, place: u64) -> Positions {
        let position = |(at, source): (usize, &Source)| {
            let first = self.first_at(arena, at, place);
            Position {
                stream: source.stream,
                offset: first.unwrap_or(source.next).saturating_sub(1),
                course: match (first, source.over, source.ends_at) {
                    (None, true, Some(_)) => Course::Ended,
                    (None, true, None) => Course::Lost,
                    _ => Course::GoesOn,
                },
            }
        };
        Positions(self.sources.iter().enumerate().map(position).collect())
    }

    /// The first offset of each stream that was never mentioned.
    pub fn heads(&self) -> impl Iterator<Item = u64> + '_ {
        self.sources.iter().map(|source| source.known.max(source.next))
    }

    /// Whether brokers have known of this gateway's members since a member was at these positions, so that all later
    /// messages of any of them are here or announced. A stream that had ended before that proves nothing.
    pub fn heard_since(&self, positions: &Positions) -> bool {
        let had = |source: &Source| positions.of(source.stream).map(|had| had.offset);
        let went_on = |source: &Source| source.ends_at.is_none_or(|end| source.base < end);
        self.sources
            .iter()
            .any(|source| went_on(source) && had(source).is_some_and(|had| had >= source.base))
    }

    /// Whether the rest of a stream is lost, which a member at these positions does not know.
    pub fn lost_since(&self, positions: &Positions) -> bool {
        let knows = |stream| positions.of(stream).is_some_and(|had| had.course == Course::Lost);
        // The same for a stream whose last messages have not had their turn.
        let mut lost = self
            .sources
            .iter()
            .filter(|source| !source.is_live() && source.ends_at.is_none());
        lost.any(|source| !knows(source.stream))
    }

    /// The place from which on the ring has the last `count` whole messages, how many they are, and whether the ring has lost
    /// none that was before them; and whether there are older places that were not looked at, for there is a bound to that:
    /// publishers may leave any number of messages unfinished.
    fn last(&self, arena: &Arena, count: u32) -> (u64, History, bool) {
        let oldest = self.ring.readable(arena, self.ring.first());
        let mut readable = self.ring.next().saturating_sub(LAST_PLACES_MAX).max(oldest);
        let (mut place, mut messages, mut all) = (self.ring.next(), 0, true);
        // Publishers whose message's last chunk was passed.
        let mut open = BTreeSet::new();
        for at in (oldest..self.ring.next()).rev() {
            if messages == count || at < readable {
                break;
            }
            let Some(entry) = self.ring.get(arena, at) else { break };
            if entry.gap {
                all &= entry.flags == GapReason::Ended as u8;
                open.clear();
                continue;
            }
            if entry.flags & LAST != 0 {
                open.insert(entry.publisher);
            }
            if entry.flags & FIRST != 0 && open.remove(&entry.publisher) {
                (place, messages) = (at, messages + 1);
                readable = readable.saturating_sub(CHUNKS_MAX).max(oldest);
            }
        }
        let begun = |source: &Source| source.low <= 1 && source.first_place >= readable;
        let whole = messages == count || all && self.sources.iter().all(begun);
        (place, History { messages, whole }, readable > oldest)
    }

    /// The same, looked for once while nothing comes: many join at once when a gateway is gone.
    fn last_again(&mut self, arena: &Arena, count: u32) -> (u64, History, bool) {
        let oldest = self.ring.readable(arena, self.ring.first());
        let at = (oldest, self.ring.next(), self.sources.len(), count);
        match self.found.as_deref() {
            Some((known, found)) if *known == at => *found,
            _ => {
                let found = self.last(arena, count);
                self.found = (count > 0).then(|| Box::new((at, found)));
                found
            }
        }
    }

    /// All streams, with the next offset for a member that continues at `place`.
    pub fn resume_at(&self, arena: &Arena, place: u64) -> Vec<(StreamId, u64)> {
        let sources = self.sources.iter().enumerate();
        sources
            .map(|(at, source)| (source.stream, self.offset_at(arena, at, place)))
            .collect()
    }

    /// Messages held, ahead of a hole or until history is whole.
    pub fn held_len(&self) -> usize {
        self.sources.iter().map(|source| source.held.len()).sum()
    }

    /// Drops all that is held.
    pub fn drop_held(&mut self, counters: &mut GatewayCounters) {
        for source in &mut self.sources {
            source.drop_held(counters, u64::MAX);
        }
    }

    fn append(&mut self, pen: &mut Pen<'_>, at: usize, offset: u64, message: &Message<'_>, born: u32) {
        let entry = Entry {
            offset,
            publisher: message.publisher,
            sequence: message.sequence,
            flags: message.flags,
            gap: false,
            stream: at as u8,
            at_ms: 0,
            born,
            data: message.data,
        };
        let place = self.ring.push(pen.arena, pen.now, &entry);
        pen.counters.messages_placed += 1;
        let source = &mut self.sources[at];
        if born > 0 {
            pen.ages.note(pen.now, source.stream.node, born);
        }
        source.next = offset + 1;
        (source.end_place, source.hole, source.consumed_dirty) = (place + 1, None, true);
        if let Some(turns) = &mut self.turns {
            turns.note(message.publisher, message.sequence);
        }
    }

    fn append_gap(&mut self, pen: &mut Pen<'_>, at: usize, last: u64, reason: GapReason) {
        let source = &mut self.sources[at];
        let entry = Entry {
            offset: source.next,
            publisher: PublisherId::default(),
            sequence: last,
            flags: reason as u8,
            gap: true,
            stream: at as u8,
            at_ms: 0,
            born: 0,
            data: &[],
        };
        let place = self.ring.push(pen.arena, pen.now, &entry);
        pen.counters.gaps_unrepaired += u64::from(reason == GapReason::Unrepaired);
        (source.end_place, source.hole, source.consumed_dirty) = (place + 1, None, true);
    }

    /// Nothing more is expected of a stream. Once its messages here had their turn, members are told that its rest is
    /// lost, or that there is none.
    fn end(&mut self, pen: &mut Pen<'_>, at: usize, reason: GapReason) {
        if self.sources[at].over {
            return;
        }
        // The messages here may be the last of the stream.
        let last = self.sources[at].held.keys().next_back().copied();
        self.give_up(pen, at, last.map_or(0, |last| last + 1), GapReason::Unrepaired);
        let source = &mut self.sources[at];
        if source.waits.is_some() {
            source.ending = Some(reason);
            source.end_backfill(pen.counters);
            return;
        }
        self.end_now(pen, at, reason);
    }

    fn end_now(&mut self, pen: &mut Pen<'_>, at: usize, reason: GapReason) {
        if self.sources[at].over {
            return;
        }
        self.append_gap(pen, at, StreamGap::OPEN, reason);
        self.note_said();
        let source = &mut self.sources[at];
        source.over = true;
        (source.ending, source.waits) = (None, None);
        source.known = source.next;
        source.backfill = None;
        source.drop_held(pen.counters, u64::MAX);
    }

    /// An owner has lost its link, or has one again.
    pub fn owner_away(&mut self, node: u32, away: bool) {
        let theirs = self.sources.iter_mut().filter(|source| source.stream.node == node);
        theirs.for_each(|source| source.away = away);
    }

    /// Whether the next message of stream `at` waits for its predecessor, which another broker may still bring. For
    /// another cluster this holds only if its publisher is known here, as new publishers mostly stay with their own
    /// cluster. All messages that came by one time wait until one time, however many lack a predecessor.
    fn is_early(&mut self, now: Micros, at: usize, came_at: Micros, (publisher, sequence): (PublisherId, u64)) -> bool {
        let turns = self.turns.as_ref();
        let early = turns.is_some_and(|turns| !turns.has_come(publisher, sequence));
        let known = turns.is_some_and(|turns| early && turns.knows(publisher));
        let cluster = self.sources[at].cluster;
        let (since, hole_wait) = (self.sources[at].waits.unwrap_or(came_at), self.hole_wait());
        let mut others = self.sources.iter().enumerate().filter(|(number, _)| *number != at);
        let comes = |other: &Source| {
            let waits = now < since + TURN_WAIT || other.has_hole() && now < since + TURN_WAIT + hole_wait;
            !other.over && !other.away && other.waits.is_none() && waits
        };
        // A message that itself waits goes first, and this one's stream will not bring it.
        let goes_first = |other: &Source| {
            let held = other.held.get(&other.next).filter(|_| other.waits.is_some());
            held.is_some_and(|held| held.publisher == publisher && held.sequence < sequence)
        };
        let waits = |other: &Source| (known || other.cluster == cluster) && comes(other) || goes_first(other);
        let early = early && others.any(|(_, other)| waits(other));
        self.sources[at].waits = early.then_some(since);
        early
    }

    /// Continues streams whose next message has waited for another stream's.
    fn take_turns(&mut self, pen: &mut Pen<'_>) {
        let mut before = 0;
        while self.turns.is_some() && before != self.ring.next() {
            before = self.ring.next();
            for at in 0..self.sources.len() {
                if self.sources[at].waits.is_some() {
                    self.release(pen, at);
                    self.end_in_turn(pen, at);
                }
            }
        }
        if self.live().nth(1).is_none() && !self.waits() {
            self.turns = None;
        }
    }

    /// Ends a stream that was to end, if nothing of it waits any more.
    fn end_in_turn(&mut self, pen: &mut Pen<'_>, at: usize) {
        let source = &self.sources[at];
        if let Some(reason) = source.ending.filter(|_| source.waits.is_none()) {
            self.end(pen, at, reason);
        }
    }

    /// The owner of streams is gone for good, or begins anew as `life`. Tells whether places were added.
    pub fn owner_gone(&mut self, pen: &mut Pen<'_>, node: u32, life: Option<u32>) -> bool {
        let before = self.ring.next();
        for at in 0..self.sources.len() {
            let stream = self.sources[at].stream;
            if stream.node == node && life != Some(stream.epoch) {
                self.end(pen, at, GapReason::OwnerLost);
            }
        }
        self.ring.next() > before
    }

    /// The number of a stream that is spoken of; it is new if need be. `None`: its owner has begun another one since, or there
    /// are too many.
    fn open(&mut self, pen: &mut Pen<'_>, stream: StreamId, base: u64) -> Option<usize> {
        let youngest = self.youngest(stream.node);
        if let Some(at) = youngest {
            let known = self.sources[at].stream;
            if known == stream {
                let source = &mut self.sources[at];
                source.over &= source.ends_at.is_some();
                source.ending = None;
                return youngest;
            }
            if age(known) > age(stream) {
                return None;
            }
        }
        for at in 0..self.sources.len() {
            let known = self.sources[at].stream;
            if known.node == stream.node {
                self.end(pen, at, why_over(known, Some(stream)));
            }
        }
        // A member that was present throughout wants the new stream from its beginning, and so does one that returned
        // before the stream was known.
        let first = match youngest {
            None if !self.returned => base.max(1),
            _ => 1,
        };
        let at = self.number_for_one_more(pen)?;
        let cluster = pen.placement.cluster_of(stream.node);
        let source = Source::new(stream, cluster, first, self.ring.next());
        self.note_said();
        match self.sources.get_mut(at) {
            Some(before) => *before = source,
            None => {
                if self.sources.is_empty() {
                    self.sources.reserve_exact(1); // most rooms have one; a list by itself makes place for four
                }
                self.sources.push(source);
            }
        }
        if youngest.is_none() {
            self.start_late(pen, at, base);
        }
        Some(at)
    }

    /// A free number, or else that of the quietest stream that is over. `None`: all go on, and the quietest was ended.
    fn number_for_one_more(&mut self, pen: &mut Pen<'_>) -> Option<usize> {
        if self.sources.len() < STREAMS_MAX {
            return Some(self.sources.len());
        }
        let quietest = |over: bool| {
            let sources = self
                .sources
                .iter()
                .enumerate()
                .filter(|(_, source)| source.over == over);
            // One that only waits to end goes before one that lives.
            let quiet = sources.min_by_key(|(_, source)| (source.is_live(), source.end_place));
            quiet.map(|(at, _)| at)
        };
        match (quietest(true), quietest(false)) {
            (Some(at), _) => {
                // Places whose stream cannot be named any more cannot be sent.
                self.ring.drop_below(pen.arena, self.sources[at].end_place);
                Some(at)
            }
            // It makes way once its end is told; the new one speaks again.
            (None, Some(at)) => {
                self.end(pen, at, GapReason::OwnerLost);
                self.end_now(pen, at, GapReason::OwnerLost); // messages that wait there have no turn
                None
            }
            (None, None) => None,
        }
    }

    /// A stream that begins before this gateway wanted the room: only its newest messages are requested.
    fn start_late(&mut self, pen: &mut Pen<'_>, at: usize, base: u64) {
        let from = base.saturating_sub(LATE_MAX);
        if self.sources[at].next < from {
            self.append_gap(pen, at, from - 1, GapReason::Expired);
            self.sources[at].next = from;
            self.sources[at].asking.restart(from);
        }
        let source = &mut self.sources[at];
        source.base = base.max(1);
        source.known = source.known.max(source.next).max(base);
    }

    pub fn is_in_force(&self) -> bool {
        self.in_force
    }

    /// By now every running broker knows that this gateway wants the room. A broker that never heard of a leave in
    /// between reports nothing that others numbered in that time.
    pub fn note_in_force(&mut self) {
        if !self.in_force {
            self.in_force = true;
            self.sources
                .iter_mut()
                .for_each(|source| source.base = source.base.max(source.known));
        }
    }

    /// Takes the owner's report of its head.
    pub fn head(&mut self, pen: &mut Pen<'_>, stream: StreamId, base: u64, next: u64) -> bool {
        let Some(at) = self.open(pen, stream, base) else {
            return false;
        };
        let source = &mut self.sources[at];
        source.known = source.known.max(next);
        source.goes_on();
        true
    }

    /// Takes the owner's report of the end of a stream.
    pub fn ended(&mut self, pen: &mut Pen<'_>, stream: StreamId, base: u64, next: u64) -> bool {
        let known = self.find(stream).is_some();
        let Some(at) = self.open(pen, stream, base) else {
            return false;
        };
        let source = &mut self.sources[at];
        if !known {
            source.base = next; // its owner may remember an earlier time in which this gateway wanted the room
        }
        source.known = source.known.max(next);
        source.ends_at = Some(next);
        self.finish(pen);
        true
    }

    /// Ends complete streams, and continues those that waited for their end.
    fn finish(&mut self, pen: &mut Pen<'_>) {
        for at in 0..self.sources.len() {
            self.end_in_turn(pen, at);
            let source = &self.sources[at];
            if !source.over && source.ends_at.is_some_and(|end| source.next >= end) {
                self.end(pen, at, GapReason::Ended);
            }
        }
        if self.sources.len() > 1 {
            self.take_turns(pen);
        }
    }

    /// Takes a block of the owner's messages. One of more than `data_max` bytes could not be sent to members: it stays a hole,
    /// and becomes a gap. Tells whether places were added; `None`: the block is of a stream that is no more.
    pub fn ingest(
        &mut self,
        pen: &mut Pen<'_>,
        stream: StreamId,
        block: LinkBlock<'_>,
        data_max: usize,
    ) -> Option<bool> {
        let LinkBlock {
            base, offset, messages, ..
        } = block;
        let born = block.age.map_or(0, |age| age::born(pen.now, age.into()));
        let (before, count) = (self.ring.next(), messages.left() as u64);
        let at = self.open(pen, stream, base)?;
        if self.turns.is_none() && self.sources.len() > 1 && self.live().nth(1).is_some() {
            self.turns = Some(Box::new(Turns::of(&self.ring, pen.arena)));
        }
        let (mut taken, twice) = (0, pen.counters.messages_duplicate);
        for (offset, message) in (offset..).zip(messages) {
            taken += 1;
            let next = self.sources[at].next;
            if message.data.len() > data_max {
                pen.counters.dropped_malformed += 1;
            } else if offset == next && !self.is_early(pen.now, at, pen.now, (message.publisher, message.sequence))
                || offset > next && planted::is(Bug::ForwardsPastHole)
            {
                self.append(pen, at, offset, &message, born);
                if !self.sources[at].held.is_empty() {
                    // It may have waited for its turn.
                    let twice = self.sources[at].take_held(offset).is_some();
                    pen.counters.messages_duplicate += u64::from(twice);
                    self.release(pen, at);
                }
            } else if !self.sources[at].had(pen.counters, offset) {
                self.hold(pen, at, offset, &message, born);
            }
            let source = &mut self.sources[at];
            source.known = source.known.max(offset + 1);
            if source.ends_at.is_some_and(|end| offset >= end) {
                source.goes_on();
            }
        }
        // A lost message comes once: one that comes twice had been requested too soon.
        let twice = pen.counters.messages_duplicate - twice;
        self.sources[at].asking.came(taken as u32, twice as u32);
        // A lie in a length ends a block.
        pen.counters.dropped_malformed += count - taken;
        if self.sources[at].backfill.is_some() {
            self.prepend(pen);
        }
        self.finish(pen);
        Some(self.ring.next() > before)
    }

    fn hold(&mut self, pen: &mut Pen<'_>, at: usize, offset: u64, message: &Message<'_>, born: u32) {
        let bytes_max = HELD_BYTES_MAX.min(pen.arena.room_bytes_max(self.ring.home));
        let bytes: usize = self.sources.iter().map(|source| source.held_bytes).sum();
        let held_max = HELD_MAX.min(pen.arena.room_messages_max(self.ring.home));
        if self.held_len() >= held_max || bytes + message.data.len() > bytes_max {
            pen.counters.dropped_held_full += 1;
            return;
        }
        let source = &mut self.sources[at];
        source.held_bytes += message.data.len();
        let held = Held {
            came_at: pen.now,
            publisher: message.publisher,
            sequence: message.sequence,
            flags: message.flags,
            born,
            data: message.data.into(),
        };
        source.held.insert(offset, held);
    }

    /// Appends held messages directly behind the stream's part in the ring.
    fn release(&mut self, pen: &mut Pen<'_>, at: usize) {
        loop {
            let next = self.sources[at].next;
            let who = |held: &Held| (held.came_at, (held.publisher, held.sequence));
            let Some((came_at, message)) = self.sources[at].held.get(&next).map(who) else {
                self.sources[at].waits = None;
                return;
            };
            if self.is_early(pen.now, at, came_at, message) {
                return;
            }
            let Some(held) = self.sources[at].take_held(next) else {
                return;
            };
            let message = Message {
                publisher: held.publisher,
                sequence: held.sequence,
                flags: held.flags,
                data: &held.data,
            };
            self.append(pen, at, next, &message, held.born);
        }
    }

    /// Moves held history that directly precedes its stream in the ring to the front of the ring.
    fn prepend(&mut self, pen: &mut Pen<'_>) {
        if !self.ring.takes_history(pen.arena) {
            for source in self.sources.iter_mut().filter(|source| source.backfill.is_some()) {
                source.end_backfill(pen.counters);
            }
        }
        if self.fetched().nth(1).is_none() {
            self.fronts = None;
        } else if self.fronts.is_none() {
            self.fronts = Some(Box::new(Fronts::of(&self.ring, pen.arena)));
        }
        let mut lately = None;
        while let Some(at) = self.next_in_front(&mut lately) {
            let source = &mut self.sources[at];
            let Some(held) = source.take_held(source.low - 1) else {
                break;
            };
            source.low -= 1;
            source.fetch_at = pen.now;
            let entry = Entry {
                offset: source.low,
                publisher: held.publisher,
                sequence: held.sequence,
                flags: held.flags,
                gap: false,
                stream: at as u8,
                at_ms: 0,
                born: 0,
                data: &held.data,
            };
            self.ring.push_front(pen.arena, pen.now, &entry);
            source.first_place = self.ring.first();
            pen.counters.messages_placed += 1;
            if let Some(fronts) = &mut self.fronts {
                fronts.note(held.publisher, held.sequence);
            }
            if source.backfill.as_ref().is_some_and(|wanted| source.low <= wanted.from) {
                source.end_backfill(pen.counters);
            }
        }
    }

    /// Ends waits for history that lasted too long; waiting data goes on.
    fn end_backfills(&mut self, pen: &mut Pen<'_>) {
        let now = pen.now;
        let late = |source: &Source| source.backfill.as_ref().is_some_and(|wanted| now >= wanted.until);
        if !self.sources.iter().any(late) {
            return;
        }
        let lacks = |source: &Source| {
            source
                .low
                .checked_sub(1)
                .is_none_or(|front| !source.held.contains_key(&front))
        };
        for source in self.sources.iter_mut().filter(|source| late(source) && lacks(source)) {
            source.end_backfill(pen.counters);
        }
        self.prepend(pen);
        for source in self.sources.iter_mut().filter(|source| late(source)) {
            source.end_backfill(pen.counters);
        }
    }

    /// The streams whose history is being fetched, by number.
    fn fetched(&self) -> impl Iterator<Item = (usize, &Source)> {
        let sources = self.sources.iter().enumerate();
        sources.filter(|(_, source)| source.backfill.is_some())
    }

    /// The stream whose held history gets the next place in front of the ring. Across streams, a publisher's messages
    /// keep their order. `lately` keeps the held ones between calls.
    fn next_in_front(&self, lately: &mut Option<Lately>) -> Option<usize> {
        let front = |source: &Source| {
            let held = source.held.get(&source.low.checked_sub(1)?)?;
            Some((held.publisher, held.sequence))
        };
        let Some(fronts) = &self.fronts else {
            let (at, source) = self.fetched().next()?;
            return front(source).map(|_| at);
        };
        let ready = || self.fetched().filter_map(|(at, source)| Some((at, front(source)?)));
        let mut follows = ready().filter(|(_, (publisher, sequence))| fronts.follows(*publisher, *sequence));
        if let Some((at, _)) = follows.next() {
            return Some(at);
        }
        // Another one's may have to go first, which has not come.
        if self.fetched().any(|(_, source)| !source.has_fetched()) {
            return None;
        }
        let lately = lately.get_or_insert_with(|| self.lately());
        let later = |at: usize, (publisher, sequence): (PublisherId, u64)| {
            self.fetched().any(|(other, source)| {
                let last = lately.get(&(other, publisher)).map_or(&[][..], Vec::as_slice);
                // A message with a place is no longer held.
                let offset = last.partition_point(|(offset, _)| *offset < source.low).checked_sub(1);
                other != at && offset.is_some_and(|offset| last[offset].1 > sequence)
            })
        };
        let first = ready().find(|(at, message)| !later(*at, *message));
        first.or_else(|| ready().next()).map(|(at, _)| at)
    }

    /// Offsets and sequences of held history, by stream and publisher.
    fn lately(&self) -> Lately {
        let mut lately = Lately::new();
        for (at, source) in self.fetched() {
            for (offset, held) in source.held.range(..source.low) {
                let theirs = lately.entry((at, held.publisher)).or_default();
                theirs.push((*offset, held.sequence));
            }
        }
        lately
    }

    /// The owner no longer has offsets below `first` of `stream`.
    pub fn lost(&mut self, pen: &mut Pen<'_>, stream: StreamId, first: u64) -> bool {
        let Some(at) = self.find(stream) else {
            return false;
        };
        let source = &mut self.sources[at];
        if let Some(wanted) = &mut source.backfill {
            wanted.from = wanted.from.max(first);
            if source.low <= wanted.from {
                source.end_backfill(pen.counters);
            }
        }
        if source.over || source.next >= first {
            return false;
        }
        self.give_up(pen, at, first, GapReason::Unrepaired);
        self.finish(pen);
        true
    }

    /// The owner's messages at `offsets` are too old for the room's members: all missing ones before their end become a
    /// gap. `false`: the stream has ended.
    pub fn outdated(&mut self, pen: &mut Pen<'_>, stream: StreamId, base: u64, offsets: Range<u64>) -> bool {
        let until = offsets.end;
        let Some(at) = self.open(pen, stream, base) else {
            return false;
        };
        for offset in offsets {
            let had = self.sources[at].had(pen.counters, offset);
            pen.counters.dropped_expired += u64::from(!had);
        }
        self.give_up(pen, at, until, GapReason::Expired);
        self.finish(pen);
        true
    }

    /// Makes everything missing of a stream before `until` a gap, and keeps held messages in between.
    fn give_up(&mut self, pen: &mut Pen<'_>, at: usize, until: u64, reason: GapReason) {
        while self.sources[at].next < until {
            let source = &self.sources[at];
            let held = source.held.range(source.next..until).next();
            let end = held.map_or(until, |(offset, _)| *offset);
            if end > source.next {
                self.append_gap(pen, at, end - 1, reason);
                self.sources[at].next = end;
            }
            self.release(pen, at);
            if self.sources[at].waits.is_some() {
                break; // missing messages behind it are given up in their turn
            }
        }
        let source = &mut self.sources[at];
        source.known = source.known.max(source.next);
    }

    /// How long a hole is waited for here.
    fn hole_wait(&self) -> Micros {
        match self.paced {
            true => HOLE_WAIT_PACED,
            false => HOLE_WAIT,
        }
    }

    /// Whether offsets are missing before a known head.
    pub fn has_hole(&self) -> bool {
        self.sources.iter().any(Source::has_hole)
    }

    /// Runs the timers of holes and history; `rtt`: that of a stream's owner. Returns the requests for owners, and
    /// whether places were added.
    pub fn expire(
        &mut self,
        pen: &mut Pen<'_>,
        rtt: impl Fn(StreamId) -> Micros,
        wanted: &mut Vec<Wanted>,
        ranges: usize,
    ) -> bool {
        let (now, before, hole_wait) = (pen.now, self.ring.next(), self.hole_wait());
        self.end_backfills(pen);
        if self.fronts.is_some() {
            self.prepend(pen); // an awaited stream may have ended
        }
        for at in 0..self.sources.len() {
            let source = &mut self.sources[at];
            let (stream, rtt) = (source.stream, rtt(source.stream));
            let mut holes = Vec::new();
            if source.has_hole() {
                let hole = source.hole.get_or_insert(Hole::new(now));
                hole.look(now);
                if hole.waited >= hole_wait {
                    let held = source.held.range(source.next..).next();
                    let end = held.map_or(source.known, |(offset, _)| *offset);
                    self.give_up(pen, at, end, GapReason::Unrepaired);
                } else if source.asking.deadline().is_some_and(|due| now >= due) {
                    let offsets = (source.next, source.known);
                    // However slow the link is, there is time for some tries.
                    let rtt = rtt.min(HOLE_WAIT / 8);
                    source.asking.ask(now, rtt, offsets, &source.held, ranges, &mut holes);
                }
            }
            let source = &mut self.sources[at];
            let history = source.fetch(now, rtt, ranges);
            for (history, ranges) in [(false, holes), (true, history)] {
                if !ranges.is_empty() {
                    wanted.push(Wanted {
                        stream,
                        history,
                        ranges,
                    });
                }
            }
        }
        self.finish(pen);
        self.ring.next() > before
    }

    /// When [`Room::expire`] has something to do next.
    pub fn deadline(&self, now: Micros) -> Option<Micros> {
        let hole_wait = self.hole_wait();
        let sources = self.sources.iter();
        sources.filter_map(|source| source.deadline(now, hole_wait)).min()
    }

    /// Notes since when there are holes; call after a block.
    pub fn note_hole(&mut self, now: Micros) {
        for source in &mut self.sources {
            if source.has_hole() {
                source.hole.get_or_insert(Hole::new(now));
            }
            source.asking.note(now, source.next, source.known);
        }
    }

    /// Whether a message waits for one of another stream.
    pub fn waits(&self) -> bool {
        self.sources.iter().any(|source| source.waits.is_some())
    }

    /// Whether history is being fetched.
    pub fn fetching(&self) -> bool {
        self.sources.iter().any(|source| source.backfill.is_some())
    }

    /// Requests from the owner the part of a stream from `wanted` on that the ring lacks. `false`: impossible.
    fn fetch_from(
        &mut self,
        arena: &Arena,
        now: Micros,
        at: usize,
        wanted: u64,
        may_fetch: &mut impl FnMut(u64) -> bool,
    ) -> bool {
        let takes_history = self.ring.takes_history(arena);
        let source = &mut self.sources[at];
        let from = wanted.max(source.low.saturating_sub(BACKFILL_MAX)).max(1);
        let more = source.backfill.as_ref().map_or(source.low, |backfill| backfill.from);
        if !takes_history || source.away || source.ending.is_some() || !may_fetch(more.saturating_sub(from)) {
            return false;
        }
        match &mut source.backfill {
            Some(backfill) => backfill.from = backfill.from.min(from),
            None => {
                let until = now + BACKFILL_WAIT;
                source.backfill = Some(Backfill { from, until });
                source.fetch_at = now;
            }
        }
        true
    }

    fn note_start(&mut self) {
        #[cfg(test)]
        {
            self.starts += 1;
        }
    }

    /// The start of a member that joins with the last `count` messages. `last_try`, `may_fetch`: as in [`Room::start`].
    pub fn start_with(
        &mut self,
        arena: &Arena,
        now: Micros,
        count: u32,
        last_try: bool,
        mut may_fetch: impl FnMut(u64) -> bool,
    ) -> Start {
        self.note_start();
        if let Some((at, _)) = self.fetched().next().filter(|_| count > 0 && !last_try) {
            return Start::Fetch(Lack::History(at, 0));
        }
        let (place, history, older) = self.last_again(arena, count);
        let missing = if older { 0 } else { u64::from(count - history.messages) };
        let mut lack = None;
        for at in 0..self.sources.len() {
            let source = &self.sources[at];
            let before = source.low > 1 && !source.is_lost();
            if missing > 0 && before && !last_try {
                let wanted = source.low.saturating_sub(missing);
                if self.fetch_from(arena, now, at, wanted, &mut may_fetch) {
                    lack = Some(Lack::History(at, 0));
                }
            }
        }
        match lack {
            Some(lack) => Start::Fetch(lack),
            None => Start::At {
                place,
                gaps: Vec::new(),
                history,
            },
        }
    }

    /// The start of a member that joins with at least one position. `reach`: the way to the broker of a stream. `may_fetch`: whether
    /// this number of messages may be requested; if not, they are lost to the member.
    pub fn start(
        &mut self,
        arena: &Arena,
        now: Micros,
        returning: &Returning<'_>,
        reach: impl Fn(StreamId) -> Reach,
        mut may_fetch: impl FnMut(u64) -> bool,
    ) -> Start {
        self.note_start();
        let Returning {
            positions,
            asked_before,
            last_try,
            overdue,
            drops_covered,
        } = *returning;
        let mut place = self.ring.next();
        let (mut gaps, mut denied) = (Vec::new(), Vec::new());
        if self.sources.is_empty() {
            return Start::Fetch(Lack::Said(self.said));
        }
        for position in &positions.0 {
            if position.course != Course::GoesOn || self.find(position.stream).is_some() {
                continue;
            }
            let had = position.stream;
            let known = self.youngest(had.node).map(|at| self.sources[at].stream);
            let never = self.has_numbered(position, asked_before) == Some(false);
            // If the member knows a younger stream than the room, or a live one of another owner, that stream will come
            // here too, unless its broker says that there is none.
            let comes = known.map_or(reach(had) != Reach::Gone, |known| age(known) < age(had));
            if comes && !never && !last_try {
                return Start::Fetch(Lack::Said(self.said));
            }
            gaps.push(StreamGap {
                stream: had,
                first: (position.offset + 1).min(NUMBER_MAX), // for one that no owner has given, but that can be said
                last: StreamGap::OPEN,
                reason: match never {
                    true => GapReason::Restarted,
                    false => why_over(had, known),
                },
            });
        }
        let mut lack = None;
        for at in 0..self.sources.len() {
            let source = &self.sources[at];
            // A stream that the member has not heard of is wanted from its beginning.
            let had = positions.of(source.stream);
            let wanted = had.map_or(1, |had| had.offset.saturating_add(1));
            let course = had.map(|had| had.course);
            if let Some(had) = had.filter(|had| source.is_ahead(had.offset)) {
                let proven = self.has_numbered(&had, asked_before);
                let linked = reach(had.stream) == Reach::Linked;
                if proven.is_none() && linked && !overdue {
                    lack = Some(Lack::Proof(at, had.offset, self.said));
                    continue;
                }
                // A broker that has a link and does not answer knows no such question. Where none can be asked, it is asked later.
                if proven == Some(false)
                    || proven.is_none() && (linked || self.proofs.as_ref().is_some_and(|proofs| proofs.is_full()))
                {
                    denied.push(at);
                    continue;
                }
            }
            let comes =
                had.filter(|had| !drops_covered && source.is_live() && !source.away && had.offset >= source.next);
            if let Some(had) = comes.filter(|_| !overdue) {
                lack = Some(Lack::Proof(at, had.offset, self.said));
                continue;
            }
            if source.over && course == Some(Course::GoesOn) {
                place = place.min(source.end_place - 1); // if it says so
            }
            if wanted >= source.next || source.over && course == Some(Course::Lost) {
                continue;
            }
            let low = source.low;
            if source.first_place >= self.ring.first() && wanted < low {
                // A later life of its owner has nothing of it.
                let may_come = !last_try && !source.is_lost();
                if may_come && self.fetch_from(arena, now, at, wanted, &mut may_fetch) {
                    lack = Some(Lack::History(at, wanted));
                    continue;
                }
                let source = &self.sources[at];
                gaps.push(StreamGap {
                    stream: source.stream,
                    first: wanted,
                    last: low - 1,
                    reason: GapReason::Expired,
                });
                place = place.min(source.first_place);
                continue;
            }
            let (stream, places) = (source.stream, source.first_place..source.end_place);
            let readable = self.ring.readable(arena, self.ring.first());
            let found = self.ring.find_offset(arena, places, at as u8, wanted).max(readable);
            let next = self.offset_at(arena, at, found);
            if next > wanted {
                gaps.push(StreamGap {
                    stream,
                    first: wanted,
                    last: if next == u64::MAX { StreamGap::OPEN } else { next - 1 },
                    reason: GapReason::Expired,
                });
            }
            place = place.min(found);
        }
        if let Some(lack) = lack {
            return Start::Fetch(lack);
        }
        // Its positions are of an earlier state of the broker, or of another instance: it goes back to what there is.
        gaps.extend(denied.into_iter().map(|at| StreamGap {
            stream: self.sources[at].stream,
            first: self.offset_at(arena, at, place),
            last: StreamGap::OPEN,
            reason: GapReason::Restarted,
        }));
        Start::At {
            place,
            gaps,
            history: History::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layers::room_placement;
    use crate::wire::record::{Record, JOIN_GAPS};
    use crate::wire::room::LinkBlock;
    use muster_transport::{Encode, Writer};

    /// The context for a room without placement at time 0.
    macro_rules! pen {
        ($arena:expr) => {
            pen!($arena, &mut GatewayCounters::default())
        };
        ($arena:expr, $counters:expr) => {
            Pen {
                arena: $arena,
                counters: $counters,
                ages: &mut Ages::default(),
                placement: &room_placement(0, Vec::new(), 1, 1),
                now: 0,
            }
        };
    }

    fn returning(positions: &Positions, last_try: bool) -> Returning<'_> {
        Returning {
            positions,
            asked_before: 0,
            last_try,
            overdue: last_try,
            drops_covered: true,
        }
    }

    /// The number of requests for history before it is given up, with an owner this far away.
    fn asked(rtt: Micros) -> usize {
        let (mut arena, mut counters) = (Arena::new(1 << 20), GatewayCounters::default());
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        let stream = StreamId {
            node: 5,
            epoch: 1,
            generation: 1,
        };
        let mut pen = pen!(&mut arena, &mut counters);
        assert!(room.head(&mut pen, stream, 101, 101));
        let had = Positions::at([(stream, 40)]);
        let start = room.start(pen.arena, 0, &returning(&had, false), |_| Reach::Gone, |_| true);
        assert!(matches!(start, Start::Fetch(_)));
        let mut times = 0;
        for now in (0..=BACKFILL_WAIT).step_by(1_000) {
            pen.now = now;
            let mut wanted = Vec::new();
            room.expire(&mut pen, |_| rtt, &mut wanted, 4);
            for wanted in wanted {
                assert_eq!((wanted.history, wanted.ranges), (true, vec![(41, 100)]));
                times += 1;
            }
        }
        assert!(!room.fetching());
        times
    }

    #[test]
    fn history_is_asked_for_again_when_its_answer_is_overdue_but_some_times_however_slow_the_owner() {
        assert_eq!([asked(500), asked(50_000), asked(60_000_000)], [67, 10, 4]);
    }

    const STREAM: StreamId = StreamId {
        node: 5,
        epoch: 1,
        generation: 1,
    };

    #[test]
    fn a_room_of_one_stream_has_no_place_for_more() {
        let mut pen = pen!(&mut Arena::new(1 << 20));
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        assert!(room.head(&mut pen, STREAM, 1, 1));
        assert_eq!(room.sources.capacity(), 1);
    }

    #[test]
    fn a_stream_that_had_ended_does_not_say_since_when_its_owner_knows_of_this_gateway() {
        let (mut arena, mut counters) = (Arena::new(1 << 20), GatewayCounters::default());
        let mut pen = pen!(&mut arena, &mut counters);
        let had = Positions::at([(STREAM, 21)]);
        let mut late = Room::new(1, 2, "sports:final", false, 0);
        assert!(late.ended(&mut pen, STREAM, 1, 22));
        assert!(!late.heard_since(&had));
        let mut there = Room::new(1, 2, "sports:final", false, 0);
        assert!(there.head(&mut pen, STREAM, 1, 22));
        assert!(there.ended(&mut pen, STREAM, 1, 22));
        assert!(there.heard_since(&had));
    }

    /// A room whose ring has entries of these publishers and flags, with dense offsets from `first` on.
    fn filled(arena: &mut Arena, first: u64, entries: &[(u64, u8)]) -> Room {
        let mut counters = GatewayCounters::default();
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        let mut pen = pen!(arena, &mut counters);
        assert!(room.head(&mut pen, STREAM, first, first));
        for (offset, (user, flags)) in (first..).zip(entries) {
            let message = Message {
                publisher: PublisherId {
                    user: *user,
                    incarnation: 0,
                },
                sequence: offset,
                flags: *flags,
                data: b"x",
            };
            match flags {
                0 if *user == 0 => {
                    room.append_gap(&mut pen, 0, offset, GapReason::Unrepaired);
                    room.sources[0].next += 1;
                }
                _ => room.append(&mut pen, 0, offset, &message, 0),
            }
        }
        room.sources[0].known = room.sources[0].next;
        room
    }

    #[test]
    fn who_is_new_waits_for_no_other_cluster_and_who_was_here_for_what_it_said_there() {
        let mut arena = Arena::new(1 << 20);
        let mut room = filled(&mut arena, 101, &[(7, FIRST | LAST); 3]);
        let mut pen = pen!(&mut arena);
        assert!(room.head(&mut pen, StreamId { node: 6, ..STREAM }, 1, 1));
        room.turns = Some(Box::new(Turns::of(&room.ring, &arena)));
        let mut waits = |cluster, user, sequence| {
            room.sources[1].cluster = cluster;
            let incarnation = 0;
            room.is_early(0, 1, 0, (PublisherId { user, incarnation }, sequence))
        };
        assert_eq!([0, 1].map(|cluster| waits(cluster, 8, 50)), [true, false]);
        assert_eq!([0, 1].map(|cluster| waits(cluster, 7, 105)), [true, true]);
        assert_eq!([0, 1].map(|cluster| waits(cluster, 7, 104)), [false, false]);
    }

    /// Publishers that never finish a message fill the room: a join for the last messages must not search it all.
    #[test]
    fn unfinished_messages_are_looked_through_so_far_and_no_further() {
        let mut arena = Arena::new(16 << 20);
        let mut room = filled(&mut arena, 101, &[(7, 0); 20_000]);
        arena.looks.set(0);
        let start = room.start_with(&arena, 0, 1, false, |_| true);
        assert!(matches!(
            start,
            Start::At {
                history: History {
                    messages: 0,
                    whole: false
                },
                ..
            }
        ));
        assert!(
            arena.looks.get() as u64 <= LAST_PLACES_MAX + 100,
            "{} looks",
            arena.looks.get()
        );
        room.start_with(&arena, 0, 1, false, |_| true);
        assert!(
            arena.looks.get() as u64 <= LAST_PLACES_MAX + 200,
            "it was looked through"
        );
    }

    #[test]
    fn all_messages_are_found_however_many_chunks_they_have() {
        let mut chunks = [(7, 0); 10];
        (chunks[0].1, chunks[9].1) = (FIRST, LAST);
        let mut arena = Arena::new(16 << 20);
        let room = filled(&mut arena, 1, &chunks.repeat(1_024));
        assert_eq!(last_of(&room, &arena, 1_024), (0, 1_024, true));
    }

    /// The start of the last `count` messages, counted from the first place, and the number of complete ones there.
    fn last_of(room: &Room, arena: &Arena, count: u32) -> (u64, u32, bool) {
        let (place, history, _) = room.last(arena, count);
        (place - FIRST_PLACE, history.messages, history.whole)
    }

    #[test]
    fn the_last_messages_are_whole_ones_however_their_chunks_lie() {
        const BOTH: u8 = FIRST | LAST;
        let mut arena = Arena::new(1 << 20);
        // One of two chunks (0, 3), one between them (1), one of three (2, 4, 5), and one that has not ended (6).
        let chunks = [
            (7, FIRST),
            (8, BOTH),
            (9, FIRST),
            (7, LAST),
            (9, 0),
            (9, LAST),
            (8, FIRST),
        ];
        let room = filled(&mut arena, 1, &chunks);
        let found = [0, 1, 2, 3, 4].map(|count| last_of(&room, &arena, count));
        assert_eq!(
            found,
            [(7, 0, true), (2, 1, true), (1, 2, true), (0, 3, true), (0, 3, true)]
        );
    }

    #[test]
    fn history_with_a_loss_in_it_or_that_began_elsewhere_is_not_all() {
        const BOTH: u8 = FIRST | LAST;
        let mut arena = Arena::new(1 << 20);
        let room = filled(&mut arena, 1, &[(7, BOTH), (0, 0), (7, BOTH)]);
        assert_eq!(last_of(&room, &arena, 5), (0, 2, false));
        assert_eq!(last_of(&room, &arena, 1), (2, 1, true));
        let room = filled(&mut arena, 2, &[(7, BOTH), (7, BOTH)]);
        assert_eq!(last_of(&room, &arena, 5), (0, 2, false));
    }

    #[test]
    fn what_the_ring_lacks_of_the_last_messages_is_asked_of_the_owner_and_no_more() {
        let mut arena = Arena::new(1 << 20);
        let mut room = filled(&mut arena, 101, &[(7, FIRST | LAST); 3]);
        let mut asked = Vec::new();
        let start = room.start_with(&arena, 0, 10, false, |count| {
            asked.push(count);
            true
        });
        assert!(matches!(start, Start::Fetch(_)));
        assert_eq!(asked, [7]);
        let mut wanted = Vec::new();
        let mut counters = GatewayCounters::default();
        let mut pen = Pen {
            arena: &mut arena,
            counters: &mut counters,
            ages: &mut Ages::default(),
            placement: &room_placement(0, Vec::new(), 1, 1),
            now: 1,
        };
        room.expire(&mut pen, |_| 1_000, &mut wanted, 4);
        let ranges: Vec<_> = wanted
            .into_iter()
            .map(|wanted| (wanted.history, wanted.ranges))
            .collect();
        assert_eq!(ranges, [(true, vec![(94, 100)])]);
        let start = room.start_with(&arena, 0, 10, true, |_| true);
        let Start::At { history, .. } = start else {
            panic!("the last try waits")
        };
        assert_eq!((history.messages, history.whole), (3, false));
    }

    #[test]
    fn a_gateway_has_heard_all_since_a_position_that_is_not_before_it_began() {
        let mut arena = Arena::new(1 << 20);
        let room = filled(&mut arena, 101, &[(7, FIRST | LAST); 3]);
        let heard = |offset| room.heard_since(&Positions::at([(STREAM, offset)]));
        assert_eq!([100, 101, 103].map(heard), [false, true, true]);
        let other = StreamId { node: 6, ..STREAM };
        assert!(!room.heard_since(&Positions::at([(other, 200)])));
    }

    #[test]
    fn a_gateway_vouches_for_nothing_that_was_numbered_before_every_broker_knew_of_it() {
        let mut arena = Arena::new(1 << 20);
        let mut room = filled(&mut arena, 101, &[(7, FIRST | LAST); 3]);
        room.note_in_force();
        let mut heard = |offset| room.heard_since(&Positions::at([(STREAM, offset)]));
        assert_eq!([103, 104].map(&mut heard), [false, true]);
    }

    #[test]
    fn a_stream_that_is_heard_of_after_somebody_came_back_begins_earlier() {
        let (mut arena, mut counters) = (Arena::new(1 << 20), GatewayCounters::default());
        let mut pen = pen!(&mut arena, &mut counters);
        let mut began = |returned, base| {
            let mut room = Room::new(1, 2, "sports:final", false, 0);
            room.returned = returned;
            assert!(room.head(&mut pen, STREAM, base, base + 4));
            let source = &room.sources[0];
            (source.next, source.known, source.base, room.ring.next() - FIRST_PLACE)
        };
        assert_eq!(began(false, 1_001), (1_001, 1_005, 1_001, 0));
        assert_eq!(began(true, 101), (1, 105, 101, 0));
        assert_eq!(
            began(true, 1_001),
            (1_001 - LATE_MAX, 1_005, 1_001, 1),
            "and a gap before it"
        );
    }

    /// A block of one stream's messages, by publisher and sequence, as an owner sends it.
    fn block(room: &mut Room, pen: &mut Pen<'_>, stream: StreamId, offset: u64, messages: &[(u64, u64)]) {
        let mut bytes = [0; 1_024];
        let mut writer = Writer::new(&mut bytes);
        let mut block = LinkBlock::begin(&mut writer, room.id, stream.generation, 1, offset, None);
        for (user, sequence) in messages {
            let publisher = PublisherId {
                user: *user,
                incarnation: 0,
            };
            let message = Message {
                publisher,
                sequence: *sequence,
                flags: FIRST | LAST,
                data: b"x",
            };
            assert!(block.push(&mut writer, &message));
        }
        block.finish(&mut writer);
        let len = writer.len();
        let block = LinkBlock::read(&bytes[..len]).expect("a block");
        room.ingest(pen, stream, block, 1_000);
    }

    /// A member returns with a stream that had ended before it was known here, in a room whose first places are gone;
    /// found when its history is requested, or arrives.
    #[test]
    fn a_place_that_was_given_once_is_never_given_again() {
        for gone_first in [true, false] {
            let mut arena = Arena::new(1 << 20);
            let mut room = filled(&mut arena, 1, &[(7, FIRST | LAST); 100]);
            let mut pen = pen!(&mut arena);
            let (ended, first) = (StreamId { node: 6, ..STREAM }, FIRST_PLACE + 50);
            assert!(room.ended(&mut pen, ended, 150, 150));
            let had = Positions::at([(STREAM, 100), (ended, 100)]);
            let start = |room: &mut Room, arena: &Arena| match room.start(
                arena,
                0,
                &returning(&had, false),
                |_| Reach::Gone,
                |_| true,
            ) {
                Start::At { gaps, .. } => Some(gaps),
                Start::Fetch(_) => None,
            };
            if !gone_first {
                assert_eq!(start(&mut room, pen.arena), None);
            }
            room.ring.drop_below(pen.arena, first);
            let gap = StreamGap {
                stream: ended,
                first: 101,
                last: 149,
                reason: GapReason::Expired,
            };
            if gone_first {
                assert_eq!(start(&mut room, pen.arena), Some(vec![gap]));
            }
            for offset in (101..150).step_by(7) {
                let said: Vec<_> = (offset..offset + 7).map(|sequence| (8, sequence)).collect();
                block(&mut room, &mut pen, ended, offset, &said);
            }
            assert_eq!((room.ring.first(), room.fetching()), (first, false));
            assert_eq!(start(&mut room, pen.arena), Some(vec![gap]), "what it lacks is told");
        }
    }

    /// A sequence that a publisher left out, or says so, is waited for once for all later messages, not for each in
    /// turn.
    #[test]
    fn a_publisher_that_jumps_again_and_again_holds_nobody_for_longer_than_one_turn() {
        let mut arena = Arena::new(1 << 20);
        let mut pen = pen!(&mut arena);
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        for node in [5, 6] {
            assert!(room.head(&mut pen, StreamId { node, ..STREAM }, 1, 1));
        }
        const JUMPS: u64 = 40;
        for jump in 0..JUMPS {
            pen.now += 1_000;
            let (jumps, good) = ((8, 1 + 100 * jump), (7, 1 + jump));
            block(&mut room, &mut pen, STREAM, 1 + 2 * jump, &[jumps, good]);
        }
        let all = FIRST_PLACE + 2 * JUMPS;
        assert_eq!(room.ring.next(), FIRST_PLACE + 2, "the first jump is waited for");
        while pen.now < 500_000 && room.ring.next() < all {
            pen.now = room.deadline(pen.now).expect("it waits").max(pen.now + 1_000);
            room.expire(&mut pen, |_| 1_000, &mut Vec::new(), 4);
        }
        assert_eq!((room.ring.next(), pen.now <= 300_000), (all, true), "{} us", pen.now);
    }

    /// A broker dies, or numbers a room anew, while its messages wait for another broker's: these have their turn
    /// first.
    #[test]
    fn what_waits_for_its_turn_has_it_though_its_stream_ends() {
        for comes in [true, false] {
            let mut arena = Arena::new(1 << 20);
            let mut pen = pen!(&mut arena);
            let mut room = Room::new(1, 2, "sports:final", false, 0);
            let [first, second] = [5, 6].map(|node| StreamId { node, ..STREAM });
            for stream in [first, second] {
                assert!(room.head(&mut pen, stream, 1, 1));
            }
            block(&mut room, &mut pen, first, 1, &[(7, 1)]);
            block(&mut room, &mut pen, second, 1, &[(7, 3), (8, 1)]);
            block(&mut room, &mut pen, second, 4, &[(7, 4)]);
            room.owner_gone(&mut pen, second.node, Some(second.epoch + 1));
            assert!(
                room.lost_since(&Positions::at([(second, 1)])),
                "nobody has missed nothing"
            );
            let again = StreamId {
                epoch: second.epoch + 1,
                ..second
            };
            assert!(room.head(&mut pen, again, 1, 1));
            block(&mut room, &mut pen, again, 1, &[(7, 5)]);
            if comes {
                block(&mut room, &mut pen, first, 2, &[(7, 2)]);
            }
            while let Some(due) = room.deadline(pen.now).filter(|due| *due < 1_000_000) {
                pen.now = due.max(pen.now + 1_000);
                room.expire(&mut pen, |_| 1_000, &mut Vec::new(), 4);
            }
            assert!(pen.now < 300_000, "{} us", pen.now);
            let placed: Vec<_> = (room.ring.first()..room.ring.next())
                .map(|place| room.ring.get(pen.arena, place).expect("a place"))
                .map(|entry| (entry.gap, entry.publisher.user, entry.sequence, entry.stream))
                .collect();
            let mut all = vec![(false, 7, 1, 0), (false, 7, 2, 0)];
            all.truncate(1 + usize::from(comes));
            // Offset 3 never came, and the end of the stream is unknown.
            all.extend([(false, 7, 3, 1), (false, 8, 1, 1), (true, 0, 3, 1), (false, 7, 4, 1)]);
            all.extend([(true, 0, StreamGap::OPEN, 1), (false, 7, 5, 2)]);
            assert_eq!((placed, pen.counters.dropped_held), (all, 0));
            assert_eq!(
                room.live().map(|source| source.stream).collect::<Vec<_>>(),
                [first, again]
            );
        }
    }

    /// Two brokers of one host: the awaited one goes too, and messages of the next life must not overtake waiting ones.
    #[test]
    fn what_waited_for_who_is_gone_too_goes_before_what_comes_next() {
        let mut arena = Arena::new(1 << 20);
        let mut pen = pen!(&mut arena);
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        let [first, second] = [5, 6].map(|node| StreamId { node, ..STREAM });
        for stream in [first, second] {
            assert!(room.head(&mut pen, stream, 1, 1));
        }
        block(&mut room, &mut pen, first, 1, &[(7, 1)]);
        block(&mut room, &mut pen, second, 1, &[(7, 3), (7, 4)]);
        room.owner_gone(&mut pen, second.node, Some(second.epoch + 1));
        let again = StreamId {
            epoch: second.epoch + 1,
            ..second
        };
        assert!(room.head(&mut pen, again, 1, 1));
        room.owner_away(first.node, true);
        block(&mut room, &mut pen, again, 1, &[(7, 5)]);
        let placed =
            (room.ring.first()..room.ring.next()).map(|place| room.ring.get(pen.arena, place).expect("a place"));
        let sequences: Vec<_> = placed.filter(|entry| !entry.gap).map(|entry| entry.sequence).collect();
        assert_eq!(sequences, [1, 3, 4, 5]);
    }

    #[test]
    fn a_stream_that_only_waits_to_end_makes_way_before_one_that_lives() {
        let mut arena = Arena::new(1 << 20);
        let mut pen = pen!(&mut arena);
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        let streams: Vec<_> = (5..)
            .take(STREAMS_MAX)
            .map(|node| StreamId { node, ..STREAM })
            .collect();
        for stream in &streams {
            assert!(room.head(&mut pen, *stream, 1, 1));
        }
        block(&mut room, &mut pen, streams[0], 1, &[(7, 1)]);
        block(&mut room, &mut pen, streams[1], 1, &[(8, 1)]);
        block(&mut room, &mut pen, streams[1], 2, &[(7, 3)]);
        room.owner_gone(&mut pen, streams[1].node, Some(streams[1].epoch + 1));
        room.head(&mut pen, StreamId { node: 50, ..STREAM }, 1, 1);
        let live: Vec<_> = room.live().map(|source| source.stream.node).collect();
        let others: Vec<_> = streams
            .iter()
            .map(|stream| stream.node)
            .filter(|node| *node != 6)
            .collect();
        assert_eq!(live, others);
    }

    #[test]
    fn the_answer_to_a_join_names_every_gap_that_there_can_be() {
        let mut arena = Arena::new(1 << 20);
        let mut pen = pen!(&mut arena);
        let stream = |node| StreamId { node, ..STREAM };
        let nodes = 0..STREAMS_MAX as u32;
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        for node in nodes.clone() {
            assert!(room.ended(&mut pen, stream(node), 150, 150));
        }
        let unknown = nodes.map(|node| stream(100 + node));
        let had = Positions::at(unknown.clone().map(|stream| (stream, 7)));
        let start = room.start(pen.arena, 0, &returning(&had, true), |_| Reach::Gone, |_| true);
        let Start::At { place, gaps, history } = start else {
            panic!("the last try waits")
        };
        let told = Record::Joined {
            request: 1,
            handle: 2,
            index: place,
            start: room.position_at(pen.arena, place),
            heads: room.heads().collect(),
            gaps,
            history: history.messages,
            whole: false,
        };
        let bytes = told.encode(<[u8]>::to_vec);
        let Some(Record::Joined { gaps, .. }) = Record::read(&bytes) else {
            panic!("it is not read as it was written")
        };
        let gap = |stream: StreamId| {
            gaps.iter()
                .find(|gap| gap.stream == stream)
                .map(|gap| (gap.first, gap.last))
        };
        assert!(
            unknown.clone().all(|stream| gap(stream) == Some((8, StreamGap::OPEN))),
            "{gaps:?}"
        );
        let late = room.sources().iter().map(|source| source.stream);
        assert!(late.clone().all(|stream| gap(stream) == Some((1, 149))), "{gaps:?}");
        assert_eq!((gaps.len(), bytes.len()), (JOIN_GAPS, 712));
    }

    #[test]
    fn history_does_not_go_before_what_other_rooms_have_overwritten() {
        let mut arena = Arena::new(1 << 20);
        let mut room = filled(&mut arena, 101, &[(7, FIRST | LAST); 3]);
        let mut others = 1..;
        while let (Some(_), Some(user)) = (room.ring.get(&arena, FIRST_PLACE), others.next()) {
            let publisher = PublisherId { user, incarnation: 1 };
            let entry = Entry {
                publisher,
                ..Entry::default()
            };
            Ring::of(1, user << 48).push(&mut arena, 0, &entry);
        }
        let asked = |room: &mut Room, count| {
            let start = room.start_with(&arena, 0, count, false, |_| true);
            matches!(start, Start::Fetch(_))
        };
        assert!(!asked(&mut room, 2) && !asked(&mut room, 10));
    }

    proptest! {
        /// Three brokers numbered messages of four publishers, each for a while; a member came back after that.
        #[test]
        fn history_of_several_owners_keeps_each_publishers_order(
            said in prop::collection::vec((0u64..4, 0usize..3), 1..120),
            dice in prop::collection::vec(any::<usize>(), 120),
            cut in 1usize..9,
        ) {
            let (mut arena, mut counters, mut ages) = (Arena::new(1 << 20), GatewayCounters::default(), Ages::default());
            let placement = room_placement(0, Vec::new(), 1, 1);
            let mut pen = Pen {
                arena: &mut arena,
                counters: &mut counters,
                ages: &mut ages,
                placement: &placement,
                now: 0,
            };
            let streams = [5, 6, 7].map(|node| StreamId { node, ..STREAM });
            let (mut sequences, mut numbered) = ([0; 4], [const { Vec::new() }; 3]);
            for (user, owner) in said {
                sequences[user as usize] += 1;
                numbered[owner].push((user, sequences[user as usize]));
            }
            let mut room = Room::new(1, 2, "sports:final", false, 0);
            for (stream, messages) in streams.iter().zip(&numbered) {
                let next = messages.len() as u64 + 1;
                room.head(&mut pen, *stream, next, next);
            }
            let start = room.start(pen.arena, 0, &returning(&Positions::at(streams.map(|stream| (stream, 0))), false), |_| Reach::Gone, |_| true);
            prop_assert!(matches!(start, Start::Fetch(_)));
            let mut parts: Vec<_> = (0..3)
                .flat_map(|at| numbered[at].chunks(cut).enumerate().map(move |(part, messages)| (at, part * cut + 1, messages)))
                .collect();
            for draw in dice {
                if parts.is_empty() {
                    break;
                }
                let (at, offset, messages) = parts.swap_remove(draw % parts.len());
                block(&mut room, &mut pen, streams[at], offset as u64, messages);
            }
            let placed: Vec<_> = (room.ring.first()..room.ring.next())
                .map(|place| room.ring.get(pen.arena, place).expect("a place"))
                .map(|entry| (entry.publisher.user, entry.sequence, entry.stream, entry.offset))
                .collect();
            prop_assert_eq!(placed.len(), numbered.iter().map(Vec::len).sum::<usize>());
            let grow = |mut those: Box<dyn Iterator<Item = u64> + '_>| {
                let mut last = 0;
                those.all(|number| std::mem::replace(&mut last, number) < number)
            };
            for user in 0..4 {
                prop_assert!(grow(Box::new(placed.iter().filter(|entry| entry.0 == user).map(|entry| entry.1))));
            }
            for stream in 0..3 {
                prop_assert!(grow(Box::new(placed.iter().filter(|entry| entry.2 == stream).map(|entry| entry.3))));
            }
        }
    }

    /// Two owners, and each message another publisher's, so that nothing says which goes first: that costs a question for each
    /// step of the history and not for each message.
    #[test]
    fn deep_history_of_two_owners_comes_step_by_step() {
        const EACH: u64 = 3_000;
        let (mut arena, mut counters, mut ages) = (Arena::new(4 << 20), GatewayCounters::default(), Ages::default());
        let placement = room_placement(0, Vec::new(), 1, 1);
        let mut pen = Pen {
            arena: &mut arena,
            counters: &mut counters,
            ages: &mut ages,
            placement: &placement,
            now: 0,
        };
        let streams = [5, 6].map(|node| StreamId { node, ..STREAM });
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        for stream in streams {
            room.head(&mut pen, stream, EACH + 1, EACH + 1);
        }
        let had = Positions::at(streams.map(|stream| (stream, 0)));
        assert!(matches!(
            room.start(pen.arena, 0, &returning(&had, false), |_| Reach::Gone, |_| true),
            Start::Fetch(_)
        ));
        let mut turns = 0;
        while room.fetching() {
            turns += 1;
            pen.now += 15_000;
            let mut wanted = Vec::new();
            room.expire(&mut pen, |_| 1_000, &mut wanted, 4);
            for wanted in wanted {
                for (first, last) in wanted.ranges {
                    for offset in first..=last {
                        let user = offset + u64::from(wanted.stream.node) * EACH;
                        block(&mut room, &mut pen, wanted.stream, offset, &[(user, 1)]);
                    }
                }
            }
        }
        assert_eq!(room.ring.next() - room.ring.first(), 2 * EACH);
        assert!(turns < 20, "{turns}");
    }

    #[test]
    fn a_hole_is_waited_for_as_long_as_the_room_has_it() {
        let stream = StreamId {
            node: 5,
            epoch: 1,
            generation: 1,
        };
        for (paced, wait) in [(false, HOLE_WAIT), (true, HOLE_WAIT_PACED)] {
            let (mut arena, mut counters) = (Arena::new(1 << 20), GatewayCounters::default());
            let mut room = Room::new(1, 2, "sports:final", paced, 0);
            let mut pen = pen!(&mut arena, &mut counters);
            assert!(room.head(&mut pen, stream, 1, 1));
            room.head(&mut pen, stream, 1, 8);
            room.note_hole(0);
            let (mut asked, mut until) = (0, None);
            while until.is_none() && pen.now < 10_000_000 {
                let mut wanted = Vec::new();
                let told = room.expire(&mut pen, |_| 1_000, &mut wanted, 4);
                asked += wanted.len();
                until = told.then_some(pen.now);
                pen.now = room.deadline(pen.now).unwrap_or(u64::MAX).max(pen.now + 1_000);
            }
            let until = until.expect("a gap at last");
            assert!((wait..wait + 20_000).contains(&until), "{until} us");
            assert!(asked as u64 >= wait / 25_000, "asked {asked} times");
        }
    }

    /// Found: after 300 ms in which the process stood still, messages that their owner still had were a gap at once.
    #[test]
    fn time_in_which_the_process_stood_still_is_no_time_that_a_hole_was_waited_for() {
        let (mut arena, mut counters) = (Arena::new(1 << 20), GatewayCounters::default());
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        let mut pen = pen!(&mut arena, &mut counters);
        assert!(room.head(&mut pen, STREAM, 1, 1));
        room.head(&mut pen, STREAM, 1, 8);
        room.note_hole(0);
        let mut asks = |still: Micros, pen: &mut Pen<'_>| {
            let due = room.deadline(pen.now).expect("a hole has a deadline");
            pen.now = due.max(pen.now + 1_000) + still;
            let mut wanted = Vec::new();
            assert!(
                !room.expire(pen, |_| 1_000, &mut wanted, 4),
                "given up at {} us",
                pen.now
            );
            !wanted.is_empty()
        };
        for still in [0, 10 * HOLE_WAIT, 0, 10 * HOLE_WAIT] {
            assert!(asks(still, &mut pen), "the owner is asked");
        }
        let until = pen.now + HOLE_WAIT / 4;
        while pen.now < until {
            asks(0, &mut pen);
        }
    }
}
