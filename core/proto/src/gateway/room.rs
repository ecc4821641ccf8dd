//! One room at a gateway: its ring of places, the streams that filled it, what the owner still owes, who is a member.
//!
//! A *place* is the gateway's own dense number of what members get: a message or a gap. Owners' offsets come in out of order
//! and with holes; places are given in order only, so a member never asks for what the gateway lacks.

use std::collections::BTreeMap;
use std::ops::Range;

use super::GatewayCounters;
use crate::asking::{Asking, Pace};
use crate::codec::NUMBER_MAX;
use crate::limits::MESSAGE_AGE_MAX;
use crate::machine::Micros;
use crate::planted::{self, Bug};
use crate::ring::{Arena, Entry, Ring};
use crate::wire::publish::Positions;
use crate::wire::room::{BlockMessages, Message, STREAMS_MAX};
use crate::wire::{Code, GapReason, PublisherId, StreamGap, StreamId};

/// The first place of a room; history can be put in front of it.
pub const FIRST_PLACE: u64 = 1 << 32;
/// How long a hole is waited for before it becomes a gap.
pub const HOLE_WAIT: Micros = 200_000;
/// When holes are asked for.
pub const PACE: Pace = Pace {
    reorder: 5_000,
    again: 15_000,
    again_max: 15_000,
};
/// Messages and bytes held ahead of a hole, per room; never more than the room's share of the arena, which would not keep them.
pub const HELD_MAX: usize = 8_192;
pub const HELD_BYTES_MAX: usize = 8 << 20;
/// How often a room looks for what became too old.
const AGE_EVERY: Micros = 250_000;
/// How long a join with positions waits for history from the owner.
pub const BACKFILL_WAIT: Micros = 1_000_000;
/// Messages of history that a join fetches from the owner, and how many of them at a time, the youngest first: so many are
/// held until they are whole.
pub const BACKFILL_MAX: u64 = 65_536;
const BACKFILL_STEP: u64 = 1_024;

struct Held {
    publisher: PublisherId,
    sequence: u64,
    flags: u8,
    data: Box<[u8]>,
}

/// A stream and the place where it began.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub stream: StreamId,
    pub place: u64,
}

/// What the owner is to be asked for.
#[derive(Default)]
pub struct Wanted {
    pub holes: Vec<(u64, u64)>,
    pub history: Vec<(u64, u64)>,
}

/// History wanted from the owner.
struct Backfill {
    from: u64,
    until: Micros,
}

/// A join that waits for its room to be ready, or for history.
pub struct Waiting {
    pub session: u64,
    pub request: u32,
    pub positions: Positions,
    pub since: Micros,
    /// Since when the room was ready and the join still waited.
    pub tried: Option<Micros>,
}

/// What a room writes its places with: the arena they go to, the time, and who counts what became of each message.
pub struct Pen<'a> {
    pub arena: &'a mut Arena,
    pub counters: &'a mut GatewayCounters,
    pub now: Micros,
}

/// Where a member starts, or that history must come first.
pub enum Start {
    At { place: u64, gaps: Vec<StreamGap> },
    Fetch,
}

/// One room.
pub struct Room {
    pub id: u64,
    /// The other 64 bits of the name's hash: two names with one id are told apart.
    pub check: u64,
    pub name: Box<str>,
    pub paced: bool,
    /// What its built frames are known by.
    pub frames: u32,
    pub ring: Ring,
    pub spans: Vec<Span>,
    pub members: Vec<u32>,
    pub waiting: Vec<Waiting>,
    /// Version of the last membership change told to routers.
    pub version: u64,
    /// Every running broker of the room knows that this gateway wants it.
    pub in_force: bool,
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
    /// The owner has not been told how far the room is; and whether it will be.
    pub consumed_dirty: bool,
    pub consumed_queued: bool,
    /// Next offset wanted, the first that the ring has, and the first that nobody has spoken of.
    next: u64,
    low: u64,
    known: u64,
    held: BTreeMap<u64, Held>,
    held_bytes: usize,
    hole_since: Option<Micros>,
    asking: Asking,
    /// When history is asked for again.
    fetch_at: Micros,
    backfill: Option<Backfill>,
}

impl Room {
    pub fn new(id: u64, check: u64, name: &str, paced: bool, frames: u32) -> Self {
        Room {
            id,
            check,
            name: name.into(),
            paced,
            frames,
            ring: Ring::new(FIRST_PLACE),
            spans: Vec::new(),
            members: Vec::new(),
            waiting: Vec::new(),
            version: 0,
            in_force: false,
            refused: None,
            empty_since: None,
            active: false,
            serve_at: 0,
            serve_left: 0,
            too_old: 0,
            aged_at: 0,
            consumed_dirty: false,
            consumed_queued: false,
            next: 1,
            low: 1,
            known: 1,
            held: BTreeMap::new(),
            held_bytes: 0,
            hole_since: None,
            asking: Asking::new(PACE),
            fetch_at: 0,
            backfill: None,
        }
    }

    /// The stream that fills the ring now.
    pub fn stream(&self) -> Option<StreamId> {
        self.spans.last().map(|span| span.stream)
    }

    /// Whether members can be admitted: brokers know that they are wanted here, and the owner has said where it stands. What
    /// it numbers from then on comes or is announced, even if it dies first.
    pub fn is_ready(&self) -> bool {
        self.in_force && self.stream().is_some()
    }

    /// Notes what is too old by now for members of a live room.
    pub fn age(&mut self, arena: &Arena, now: Micros) {
        if !self.paced && now >= self.aged_at + AGE_EVERY {
            (self.aged_at, self.too_old) = (now, self.ring.find_age(arena, now, MESSAGE_AGE_MAX));
        }
    }

    /// The first place that a member may still have who stands at `place`. What was here before it joined is history, which has no age.
    pub fn oldest_for(&self, place: u64, joined_at: u64) -> u64 {
        let too_old = if place >= joined_at { self.too_old } else { 0 };
        self.ring.first().max(too_old)
    }

    /// Nobody may be left: the room is then as empty as one that was left.
    pub fn note_empty(&mut self, now: Micros) {
        if self.members.is_empty() && self.waiting.is_empty() {
            self.empty_since.get_or_insert(now);
        }
    }

    /// The stream of a place, and the place after its last one.
    pub fn span_of(&self, place: u64) -> Option<(StreamId, u64)> {
        let at = self.spans.iter().rposition(|span| span.place <= place)?;
        Some((
            self.spans[at].stream,
            self.spans.get(at + 1).map_or(u64::MAX, |span| span.place),
        ))
    }

    /// The first offset of the current stream that the gateway does not have.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// The first offset that the places `start..end` of one stream have at or after `place`; `u64::MAX` if none follows.
    pub fn offset_at(&self, arena: &Arena, start: u64, end: u64, place: u64) -> u64 {
        if place >= end {
            return u64::MAX;
        }
        if place >= self.ring.next() {
            return self.next;
        }
        self.ring
            .get(arena, place.max(start))
            .map_or(self.next, |entry| entry.offset)
    }

    /// What a member that starts at `place` is taken to have had, if the stream is known.
    pub fn position_at(&self, arena: &Arena, place: u64) -> Positions {
        let Some((stream, end)) = self.span_of(place) else {
            return Positions::default();
        };
        let start = self
            .spans
            .iter()
            .rfind(|span| span.place <= place)
            .map_or(0, |span| span.place);
        match self.offset_at(arena, start, end, place) {
            u64::MAX => Positions::default(),
            next => Positions(vec![(stream, next.saturating_sub(1))]),
        }
    }

    /// Messages held, ahead of a hole or until history is whole.
    pub fn held_len(&self) -> usize {
        self.held.len()
    }

    fn append(&mut self, pen: &mut Pen<'_>, offset: u64, message: &Message<'_>) {
        let entry = Entry {
            offset,
            publisher: message.publisher,
            sequence: message.sequence,
            flags: message.flags,
            gap: false,
            at_ms: 0,
            data: message.data,
        };
        self.ring.push(pen.arena, pen.now, &entry);
        pen.counters.messages_placed += 1;
        self.next = offset + 1;
        self.hole_since = None;
        self.consumed_dirty = true;
    }

    fn append_gap(&mut self, pen: &mut Pen<'_>, first: u64, last: u64, reason: GapReason) {
        let entry = Entry {
            offset: first,
            publisher: PublisherId::default(),
            sequence: last,
            flags: reason as u8,
            gap: true,
            at_ms: 0,
            data: &[],
        };
        self.ring.push(pen.arena, pen.now, &entry);
        pen.counters.gaps_unrepaired += u64::from(reason == GapReason::Unrepaired);
        self.hole_since = None;
        self.consumed_dirty = true;
    }

    /// Makes `stream` the current one if it is newer. `false`: it is older, its block is stale.
    fn open_stream(&mut self, pen: &mut Pen<'_>, stream: StreamId, base: u64) -> bool {
        match self.stream() {
            Some(current) if current == stream => return true,
            Some(current)
                if current.node == stream.node
                    && (current.epoch, current.generation) > (stream.epoch, stream.generation) =>
            {
                return false;
            }
            Some(current) => {
                let same_life = current.node == stream.node && current.epoch == stream.epoch;
                let reason = if same_life {
                    GapReason::Restarted
                } else {
                    GapReason::OwnerLost
                };
                self.append_gap(pen, self.next, StreamGap::OPEN, reason);
                // Who was a member all along wants the new stream from its beginning.
                self.start_stream(pen, stream, 1);
            }
            None => self.start_stream(pen, stream, base.max(1)),
        }
        true
    }

    fn start_stream(&mut self, pen: &mut Pen<'_>, stream: StreamId, next: u64) {
        if self.spans.len() == STREAMS_MAX {
            self.spans.remove(0);
            // Places whose stream nobody can name any more can't be sent.
            self.ring.drop_below(pen.arena, self.spans[0].place);
        }
        self.spans.push(Span {
            stream,
            place: self.ring.next(),
        });
        (self.next, self.low, self.known) = (next, next, next);
        self.drop_held(pen.counters, u64::MAX);
        self.hole_since = None;
        self.asking.restart(next);
        self.backfill = None;
    }

    /// Drops what is held of offsets before `until`.
    pub fn drop_held(&mut self, counters: &mut GatewayCounters, until: u64) {
        let rest = self.held.split_off(&until);
        let dropped = std::mem::replace(&mut self.held, rest);
        self.held_bytes -= dropped.values().map(|held| held.data.len()).sum::<usize>();
        counters.dropped_held += dropped.len() as u64;
    }

    /// Nobody waits for history any more, so what came of it and has no place goes.
    fn end_backfill(&mut self, pen: &mut Pen<'_>) {
        self.backfill = None;
        self.drop_held(pen.counters, self.low);
    }

    /// Takes what the owner says of its head.
    pub fn head(&mut self, pen: &mut Pen<'_>, stream: StreamId, base: u64, next: u64) -> bool {
        if !self.open_stream(pen, stream, base) {
            return false;
        }
        self.known = self.known.max(next);
        true
    }

    /// Takes a block of the owner's messages. One of more than `data_max` bytes could not be sent to members: it stays a hole,
    /// and becomes a gap. Tells whether places were added; `None`: the block is of a stream that is no more.
    pub fn ingest(
        &mut self,
        pen: &mut Pen<'_>,
        stream: StreamId,
        base: u64,
        offset: u64,
        messages: BlockMessages<'_>,
        data_max: usize,
    ) -> Option<bool> {
        if !self.open_stream(pen, stream, base) {
            return None;
        }
        let (before, count) = (self.ring.next(), messages.left() as u64);
        let mut taken = 0;
        for (offset, message) in (offset..).zip(messages) {
            taken += 1;
            if message.data.len() > data_max {
                pen.counters.dropped_malformed += 1;
            } else if offset == self.next || offset > self.next && planted::is(Bug::ForwardsPastHole) {
                self.append(pen, offset, &message);
                if !self.held.is_empty() {
                    self.release(pen);
                }
            } else if !self.had(pen.counters, offset) {
                self.hold(pen, offset, &message);
            }
            self.known = self.known.max(offset + 1);
        }
        // A lie in a length ends a block.
        pen.counters.dropped_malformed += count - taken;
        if self.backfill.is_some() {
            self.prepend(pen);
        }
        Some(self.ring.next() > before)
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

    fn hold(&mut self, pen: &mut Pen<'_>, offset: u64, message: &Message<'_>) {
        let bytes_max = HELD_BYTES_MAX.min(pen.arena.room_bytes_max());
        if self.held.len() >= HELD_MAX || self.held_bytes + message.data.len() > bytes_max {
            pen.counters.dropped_held_full += 1;
            return;
        }
        self.held_bytes += message.data.len();
        let held = Held {
            publisher: message.publisher,
            sequence: message.sequence,
            flags: message.flags,
            data: message.data.into(),
        };
        self.held.insert(offset, held);
    }

    fn take_held(&mut self, offset: u64) -> Option<Held> {
        let held = self.held.remove(&offset)?;
        self.held_bytes -= held.data.len();
        Some(held)
    }

    /// Appends what was held directly behind the ring.
    fn release(&mut self, pen: &mut Pen<'_>) {
        while let Some(held) = self.take_held(self.next) {
            let message = Message {
                publisher: held.publisher,
                sequence: held.sequence,
                flags: held.flags,
                data: &held.data,
            };
            self.append(pen, self.next, &message);
        }
    }

    /// Puts history that was held directly in front of the ring into it.
    fn prepend(&mut self, pen: &mut Pen<'_>) {
        // History can only go before a stream that fills the ring from its first place.
        if self.spans.last().is_none_or(|span| span.place != self.ring.first()) {
            return self.end_backfill(pen);
        }
        while let Some(held) = self.low.checked_sub(1).and_then(|offset| self.take_held(offset)) {
            self.low -= 1;
            self.fetch_at = pen.now;
            let entry = Entry {
                offset: self.low,
                publisher: held.publisher,
                sequence: held.sequence,
                flags: held.flags,
                gap: false,
                at_ms: 0,
                data: &held.data,
            };
            self.ring.push_front(pen.arena, pen.now, &entry);
            pen.counters.messages_placed += 1;
        }
        if let Some(span) = self.spans.last_mut() {
            span.place = self.ring.first();
        }
        if self.backfill.as_ref().is_some_and(|wanted| self.low <= wanted.from) {
            self.end_backfill(pen);
        }
    }

    /// The owner no longer has offsets below `first` of `stream`.
    pub fn lost(&mut self, pen: &mut Pen<'_>, stream: StreamId, first: u64) -> bool {
        if self.stream() != Some(stream) {
            return false;
        }
        if let Some(wanted) = &mut self.backfill {
            wanted.from = wanted.from.max(first);
            if self.low <= wanted.from {
                self.end_backfill(pen);
            }
        }
        if self.next >= first {
            return false;
        }
        self.give_up(pen, first, GapReason::Unrepaired);
        true
    }

    /// What the owner had for this gateway at `offsets` is older than the room's members want: all that is missing before its
    /// end is a gap. `false`: of a stream that is no more.
    pub fn outdated(&mut self, pen: &mut Pen<'_>, stream: StreamId, base: u64, offsets: Range<u64>) -> bool {
        let until = offsets.end;
        if !self.head(pen, stream, base, until) {
            return false;
        }
        for offset in offsets {
            let had = self.had(pen.counters, offset);
            pen.counters.dropped_expired += u64::from(!had);
        }
        self.give_up(pen, until, GapReason::Expired);
        true
    }

    /// Makes everything missing before `until` a gap, keeping what is held in between.
    fn give_up(&mut self, pen: &mut Pen<'_>, until: u64, reason: GapReason) {
        while self.next < until {
            let end = self
                .held
                .range(self.next..until)
                .next()
                .map_or(until, |(offset, _)| *offset);
            if end > self.next {
                self.append_gap(pen, self.next, end - 1, reason);
                self.next = end;
            }
            self.release(pen);
        }
        self.known = self.known.max(self.next);
    }

    /// Whether offsets are missing before the known head.
    pub fn has_hole(&self) -> bool {
        self.next < self.known
    }

    /// Lets the wait for holes and history pass. Gives ranges to ask the owner for; `grew` tells whether places were added.
    pub fn expire(&mut self, pen: &mut Pen<'_>, rtt: Micros, wanted: &mut Wanted, ranges: usize) -> bool {
        let now = pen.now;
        let mut grew = false;
        if self.has_hole() {
            let since = *self.hole_since.get_or_insert(now);
            if now >= since + HOLE_WAIT {
                let end = self
                    .held
                    .range(self.next..)
                    .next()
                    .map_or(self.known, |(offset, _)| *offset);
                self.give_up(pen, end, GapReason::Unrepaired);
                grew = true;
            } else if self.asking.deadline().is_some_and(|at| now >= at) {
                let offsets = (self.next, self.known);
                // However slow the link is, there is time for some tries.
                let rtt = rtt.min(HOLE_WAIT / 8);
                self.asking
                    .ask(now, rtt, offsets, &self.held, ranges, &mut wanted.holes);
            }
        }
        if let Some(backfill) = &self.backfill {
            if now >= backfill.until {
                self.end_backfill(pen);
            } else if now >= self.fetch_at {
                self.fetch_at = now + PACE.again.max(2 * rtt.min(BACKFILL_WAIT / 8));
                let mut from = backfill.from.max(self.low.saturating_sub(BACKFILL_STEP));
                let held = self.held.range(from..self.low).map(|(offset, _)| *offset);
                for offset in held.chain([self.low]) {
                    if offset > from && wanted.history.len() < ranges {
                        wanted.history.push((from, offset - 1));
                    }
                    from = offset + 1;
                }
            }
        }
        grew
    }

    /// When [`Room::expire`] has something to do next.
    pub fn deadline(&self, now: Micros) -> Option<Micros> {
        let hole = self.has_hole().then(|| match self.hole_since {
            Some(since) => self
                .asking
                .deadline()
                .map_or(u64::MAX, |at| at.max(now))
                .min(since + HOLE_WAIT),
            None => now + PACE.reorder,
        });
        let backfill = self
            .backfill
            .as_ref()
            .map(|backfill| backfill.until.min(self.fetch_at.max(now)));
        [hole, backfill].into_iter().flatten().min()
    }

    /// Notes since when there is a hole; call after a block.
    pub fn note_hole(&mut self, now: Micros) {
        if self.has_hole() && self.hole_since.is_none() {
            self.hole_since = Some(now);
        }
        self.asking.note(now, self.next, self.known);
    }

    /// Whether history is being fetched.
    pub fn fetching(&self) -> bool {
        self.backfill.is_some()
    }

    /// Where a member that joins with `positions` starts. `last_try`: what is not there now is lost to it, as are messages
    /// that `may_fetch` does not allow to ask the owner for.
    pub fn start(
        &mut self,
        arena: &Arena,
        now: Micros,
        positions: &Positions,
        last_try: bool,
        may_fetch: impl FnOnce(u64) -> bool,
    ) -> Start {
        let Some((had, offset)) = positions.0.last().copied() else {
            return Start::At {
                place: self.ring.next(),
                gaps: Vec::new(),
            };
        };
        let Some(current) = self.spans.last().copied() else {
            return Start::Fetch;
        };
        let mut gaps = Vec::new();
        let known = self.spans.iter().position(|span| span.stream == had);
        let (at, wanted) = match known {
            Some(at) => (at, offset.saturating_add(1)),
            None if had.node == current.stream.node
                && (had.epoch, had.generation) > (current.stream.epoch, current.stream.generation) =>
            {
                // The member saw a younger stream than we did: it will come here too.
                return if last_try {
                    Start::At {
                        place: self.ring.next(),
                        gaps,
                    }
                } else {
                    Start::Fetch
                };
            }
            None => {
                let same_life = had.node == current.stream.node && had.epoch == current.stream.epoch;
                let reason = if same_life {
                    GapReason::Restarted
                } else {
                    GapReason::OwnerLost
                };
                gaps.push(StreamGap {
                    stream: had,
                    first: (offset + 1).min(NUMBER_MAX), // for one that no owner has given, but that can be said
                    last: StreamGap::OPEN,
                    reason,
                });
                // The stream that follows is wanted from its beginning.
                (self.spans.len() - 1, 1)
            }
        };
        let span = self.spans[at];
        let is_current = at + 1 == self.spans.len();
        if is_current && wanted >= self.next {
            return Start::At {
                place: self.ring.next(),
                gaps,
            };
        }
        let first_offset = if is_current && span.place >= self.ring.first() {
            Some(self.low)
        } else {
            None
        };
        if let Some(low) = first_offset {
            if wanted < low {
                let from = wanted.max(low.saturating_sub(BACKFILL_MAX)).max(1);
                let more = self.backfill.as_ref().map_or(low, |backfill| backfill.from);
                if !last_try && may_fetch(more.saturating_sub(from)) {
                    let until = now + BACKFILL_WAIT;
                    match &mut self.backfill {
                        Some(backfill) => backfill.from = backfill.from.min(from),
                        None => {
                            self.backfill = Some(Backfill { from, until });
                            self.fetch_at = now;
                        }
                    }
                    return Start::Fetch;
                }
                gaps.push(StreamGap {
                    stream: span.stream,
                    first: wanted,
                    last: low - 1,
                    reason: GapReason::Expired,
                });
                return Start::At {
                    place: self.ring.first(),
                    gaps,
                };
            }
        }
        let place = self.locate(arena, at, wanted);
        self.gaps_before(arena, at, wanted, place, &mut gaps);
        Start::At { place, gaps }
    }

    /// The first readable place at or after offset `wanted` of the stream of span `at`.
    fn locate(&self, arena: &Arena, at: usize, wanted: u64) -> u64 {
        let end = self.spans.get(at + 1).map_or(self.ring.next(), |span| span.place);
        let readable = self.ring.readable(arena, self.ring.first());
        self.ring
            .find_offset(arena, self.spans[at].place..end, wanted)
            .max(readable)
    }

    /// What lies between offset `wanted` of the stream of span `at` and `place`: the rest of that stream and of those after it.
    fn gaps_before(&self, arena: &Arena, at: usize, wanted: u64, place: u64, gaps: &mut Vec<StreamGap>) {
        let mut first = wanted;
        for (index, span) in self.spans.iter().enumerate().skip(at) {
            let end = self.spans.get(index + 1).map_or(u64::MAX, |next| next.place);
            let next = self.offset_at(arena, span.place, end, place);
            if next > first {
                gaps.push(StreamGap {
                    stream: span.stream,
                    first,
                    last: if next == u64::MAX { StreamGap::OPEN } else { next - 1 },
                    reason: GapReason::Expired,
                });
            }
            if next != u64::MAX {
                return;
            }
            first = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often history is asked for before it is given up, of an owner that takes so long to answer.
    fn asked(rtt: Micros) -> usize {
        let (mut arena, mut counters) = (Arena::new(1 << 20), GatewayCounters::default());
        let mut room = Room::new(1, 2, "sports:final", false, 0);
        let stream = StreamId {
            node: 5,
            epoch: 1,
            generation: 1,
        };
        let mut pen = Pen {
            arena: &mut arena,
            counters: &mut counters,
            now: 0,
        };
        assert!(room.head(&mut pen, stream, 101, 101));
        let had = Positions(vec![(stream, 40)]);
        assert!(matches!(room.start(pen.arena, 0, &had, false, |_| true), Start::Fetch));
        let mut times = 0;
        for now in (0..=BACKFILL_WAIT).step_by(1_000) {
            pen.now = now;
            let mut wanted = Wanted::default();
            room.expire(&mut pen, rtt, &mut wanted, 4);
            assert!(wanted.history.is_empty() || wanted.history == [(41, 100)]);
            times += wanted.history.len();
        }
        assert!(!room.fetching());
        times
    }

    #[test]
    fn history_is_asked_for_again_when_its_answer_is_overdue_but_some_times_however_slow_the_owner() {
        assert_eq!([asked(500), asked(50_000), asked(60_000_000)], [67, 10, 4]);
    }
}
