//! One room at a gateway: its ring of places, the streams that filled it, the owner's outstanding data, and the
//! members.
//!
//! A *place* is the gateway's own dense number of a message or gap for members. Owners' offsets come in out of order
//! and with holes; places are given in order only, so a member never asks for a place that the gateway lacks.
//!
//! `source` is one owner's stream, `past` what is fetched and where members start, `returning` who comes back, `lacks` what such
//! members wait for, `announced` what routers know of the room.

mod announced;
mod lacks;
mod past;
mod returning;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;

use muster_transport::{Code, Micros, Placement};

use super::proofs::Proofs;
use super::rounds::Round;
use super::stragglers::Stragglers;
use super::turns::{Fronts, Turns};
use super::GatewayCounters;
use crate::age::{self, Ages};
use crate::asking::Pace;
use crate::limits::{CROWDED_BYTES, CROWDED_MESSAGES, CROWDED_WINDOW, MESSAGE_AGE_MAX};
use crate::ring::{Arena, Entry, Ring};
use crate::wire::publish::Positions;
use crate::wire::room::{LinkBlock, Message, STREAMS_MAX};
use crate::wire::{GapReason, PublisherId, StreamGap, StreamId};
use announced::Announced;
use lacks::Lacks;
pub use returning::{Lack, Reach, Returning, Waiting, Wanted};
use source::{age, why_over, Held, Hole};
pub use source::{History, Source, Start};

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

/// The context for writing places: the arena, the time, the counters, and the placement.
pub struct Pen<'a> {
    pub arena: &'a mut Arena,
    pub counters: &'a mut GatewayCounters,
    pub ages: &'a mut Ages,
    pub placement: &'a Placement,
    pub now: Micros,
}

/// A result of [`Room::last`], with the ring's end, the number of streams and the number of messages that it was
/// computed for.
type Found = ((u64, u64, usize, u32), (u64, History, bool));

/// One room.
///
/// Streams, ring and members are one thing here: whatever an owner sends may give places, end a stream and let members in, and each
/// of these looks at the others. Parts that stand alone are fields with a type of their own.
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
    pub stragglers: Stragglers,
    pub waiting: Vec<Waiting>,
    lacks: Lacks,
    #[cfg(test)]
    pub starts: usize,
    pub announced: Announced,
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
    pub round: Round,
    /// The first place that is not too old, and when that was looked for.
    young: (u64, Micros),
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
            stragglers: Stragglers::default(),
            waiting: Vec::new(),
            lacks: Lacks::default(),
            #[cfg(test)]
            starts: 0,
            announced: Announced::default(),
            heard: Vec::new(),
            proofs: None,
            returned: false,
            ask_around_at: None,
            refused: None,
            empty_since: None,
            round: Round::default(),
            young: (0, 0),
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
        self.is_in_force() && self.live().next().is_some()
    }

    /// Whether a member shows messages of streams that go on which this gateway has not got.
    pub fn lags(&self, positions: &Positions) -> bool {
        let lacks = |source: &Source| positions.of(source.stream).is_some_and(|had| had.offset >= source.next);
        self.live().any(lacks)
    }

    /// The first place that a member at `place` may still have. Places before its join are history, which has no age.
    pub fn oldest_for(&self, place: u64, joined_at: u64) -> u64 {
        let (young, _) = self.young;
        self.ring.first().max(if place >= joined_at { young } else { 0 })
    }

    /// Notes messages that are too old by now for members of a live room.
    pub fn age(&mut self, arena: &Arena, now: Micros) {
        let (_, looked_at) = self.young;
        if !self.paced && now >= looked_at + AGE_EVERY {
            self.young = (self.ring.find_age(arena, now, MESSAGE_AGE_MAX), now);
        }
    }

    /// Whether a member at `cursor` holds so much behind the place that it lacks that more would find no place there. Sent all the
    /// same, most of the room would have to be sent again, at the rate of repairs. It says so by its window, and reliably that it no
    /// longer does.
    pub fn is_crowded(&self, now: Micros, slot: u32, cursor: u64, window: u32) -> bool {
        window <= CROWDED_WINDOW
            && self.stragglers.lacked_by(now, slot).is_some_and(|lacks| {
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
        self.announced.is_in_force()
    }

    /// By now every running broker knows that this gateway wants the room. A broker that never heard of a leave in
    /// between reports nothing that others numbered in that time.
    pub fn note_in_force(&mut self) {
        if self.announced.note_in_force() {
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
            } else if offset == next && !self.is_early(pen.now, at, pen.now, (message.publisher, message.sequence)) {
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layers::room_placement;
    use crate::wire::record::{Record, JOIN_GAPS};
    use crate::wire::room::{LinkBlock, FIRST, LAST};
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
