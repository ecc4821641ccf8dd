//! A room's past: what its ring has, what is fetched from owners, where a member starts.

use super::super::turns::Fronts;
use super::source::{age, why_over, Backfill, History, Source, Start};
use super::{Lack, Lately, Pen, Reach, Returning, Room, BACKFILL_MAX, BACKFILL_WAIT, CHUNKS_MAX, LAST_PLACES_MAX};
use crate::ring::{Arena, Entry};
use crate::wire::publish::{Course, Position, Positions};
use crate::wire::room::{FIRST, LAST};
use crate::wire::{GapReason, PublisherId, StreamGap, StreamId};
use muster_transport::{Micros, NUMBER_MAX};
use std::collections::BTreeSet;

impl Room {
    /// The first offset of stream `at` that the places from `place` on have.
    pub(super) fn first_at(&self, arena: &Arena, at: usize, place: u64) -> Option<u64> {
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
    pub(super) fn last(&self, arena: &Arena, count: u32) -> (u64, History, bool) {
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
    pub(super) fn last_again(&mut self, arena: &Arena, count: u32) -> (u64, History, bool) {
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

    /// Moves held history that directly precedes its stream in the ring to the front of the ring.
    pub(super) fn prepend(&mut self, pen: &mut Pen<'_>) {
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
    pub(super) fn end_backfills(&mut self, pen: &mut Pen<'_>) {
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
    pub(super) fn fetched(&self) -> impl Iterator<Item = (usize, &Source)> {
        let sources = self.sources.iter().enumerate();
        sources.filter(|(_, source)| source.backfill.is_some())
    }

    /// The stream whose held history gets the next place in front of the ring. Across streams, a publisher's messages
    /// keep their order. `lately` keeps the held ones between calls.
    pub(super) fn next_in_front(&self, lately: &mut Option<Lately>) -> Option<usize> {
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
    pub(super) fn lately(&self) -> Lately {
        let mut lately = Lately::new();
        for (at, source) in self.fetched() {
            for (offset, held) in source.held.range(..source.low) {
                let theirs = lately.entry((at, held.publisher)).or_default();
                theirs.push((*offset, held.sequence));
            }
        }
        lately
    }

    /// Requests from the owner the part of a stream from `wanted` on that the ring lacks. `false`: impossible.
    pub(super) fn fetch_from(
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

    pub(super) fn note_start(&mut self) {
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
            return Start::Fetch(Lack::Said(self.lacks.said()));
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
                return Start::Fetch(Lack::Said(self.lacks.said()));
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
                    lack = Some(Lack::Proof(at, had.offset, self.lacks.said()));
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
                lack = Some(Lack::Proof(at, had.offset, self.lacks.said()));
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
