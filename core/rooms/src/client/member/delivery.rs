//! A message on its way to the reader: order of its publisher, chunks, budget, gaps.

use super::{Item, Member, Policy, Reading, Shared, GAPS_MIN, ITEM, PUBLISHERS_MAX};
use crate::chunks::{Abandoned, Outcome, Reason};
use crate::client::held::Content;
use crate::client::seen::Received;
use crate::headers;
use crate::wire::publish::{Course, Position, Positions};
use crate::wire::room::{Message, Passed, FIRST, HEADERS, WHOLE};
use crate::wire::{GapReason, PublisherId, StreamGap, StreamId};
use muster_transport::Micros;
use std::collections::hash_map::Entry;
use std::ops::RangeInclusive;

/// Whether a gap says that the owner of a stream never numbered what these positions cover.
pub(super) fn goes_back(positions: &Positions, gap: &StreamGap) -> bool {
    let covers = |had: Position| gap.first <= had.offset;
    gap.reason == GapReason::Restarted && gap.last == StreamGap::OPEN && positions.of(gap.stream).is_some_and(covers)
}

/// Moves positions past a gap; for a gap without an end, only to its beginning.
pub(super) fn advance_past(positions: &mut Positions, gap: &StreamGap) {
    if goes_back(positions, gap) {
        positions.go_back(gap.stream, gap.first);
    } else if gap.last == StreamGap::OPEN {
        let ended = gap.reason == GapReason::Ended;
        positions.end(gap.stream, gap.first, if ended { Course::Ended } else { Course::Lost });
    } else {
        positions.advance(gap.stream, gap.last);
    }
}

impl Member {
    /// Takes held data that is next in order.
    pub(super) fn release(&mut self, shared: &mut Shared<'_>) {
        while !self.full() {
            let Some(taken) = self.held.take(self.next, self.next + 1) else {
                break;
            };
            match taken.content() {
                Content::Gap(gap) => {
                    self.next += 1;
                    self.gap(gap);
                }
                Content::Passed(passed) => {
                    let count = (taken.end() - self.next) as u32;
                    self.pass(Passed {
                        count,
                        ..passed.from(self.next)
                    });
                }
                Content::LeftOut(resume) => self.leave_out(taken.end(), resume),
                Content::Block(block) => {
                    for (place, offset, message) in block.messages(self.next) {
                        if place == taken.end() || self.full() {
                            break;
                        }
                        self.next += 1;
                        self.message(shared, block.stream, offset, &message, block.born);
                    }
                }
            }
            if self.next < taken.end() {
                self.held.put_back(self.next, taken);
            } else {
                self.held.done(taken);
            }
        }
    }

    pub(super) fn message(
        &mut self,
        shared: &mut Shared<'_>,
        stream: StreamId,
        offset: u64,
        message: &Message<'_>,
        born: Micros,
    ) {
        if !self.positions.advance(stream, offset) {
            self.counters.repeats += 1; // this gateway was behind the previous one
            return;
        }
        if self.seen.len() >= PUBLISHERS_MAX && !self.seen.contains_key(&message.publisher) {
            self.forget_unheard();
        }
        self.heard += 1;
        let seen = match self.seen.entry(message.publisher) {
            Entry::Vacant(place) => {
                place.insert((Received::new(message.sequence), self.heard));
                false
            }
            Entry::Occupied(mut known) => {
                let (seen, heard) = known.get_mut();
                *heard = self.heard;
                if !seen.take(message.sequence) {
                    self.counters.repeats += 1; // another owner numbered it again
                    return;
                }
                true
            }
        };
        if message.flags & FIRST != 0 && !self.middle.is_empty() {
            self.middle.remove(&message.publisher);
        }
        if message.flags & WHOLE == WHOLE && !self.partial.contains_key(&message.publisher) {
            self.deliver(stream, offset..=offset, message, message.sequence, born, message.data);
            return;
        }
        let (outcome, abandoned) = self.assembler.push(
            shared.now,
            message.publisher,
            message.sequence,
            message.flags,
            message.data,
            shared.budget,
        );
        if let Some(abandoned) = abandoned {
            self.abandon(message.publisher, abandoned);
        }
        if matches!(outcome, Outcome::Dropped(_)) {
            self.forget(message.publisher, message.sequence, 1);
        }
        match outcome {
            Outcome::Complete(data) => {
                let mut chunks = self.partial.remove(&message.publisher).unwrap_or_default();
                let begins = message.sequence.saturating_sub(chunks.len() as u64);
                let mut first = offset;
                while let Some((of, before)) = chunks.pop() {
                    if (of, before + 1) != (stream, first) {
                        break; // messages of other publishers are in between
                    }
                    first = before;
                }
                let data = data.into_owned();
                self.deliver(stream, first..=offset, message, begins, born, &data);
            }
            Outcome::Partial => self
                .partial
                .entry(message.publisher)
                .or_default()
                .push((stream, offset)),
            // A member that joins in the middle of a message starts with the next one: nothing is lost, unless there
            // was a gap.
            Outcome::Dropped(Reason::NoFirst) if !seen && !self.resumed && self.counters.gaps == 0 => {
                self.middle.insert(message.publisher);
            }
            Outcome::Dropped(Reason::NoFirst) if self.middle.contains(&message.publisher) => {}
            Outcome::Dropped(_) => self.lost_chunks(&[(stream, offset)]),
        }
    }

    /// The unfinished message of a publisher cannot be completed from these chunks, which become gaps. Another owner
    /// may send all of them again.
    pub(super) fn abandon(&mut self, publisher: PublisherId, abandoned: Abandoned) {
        self.forget(publisher, abandoned.first_seq, abandoned.count);
        if let Some(chunks) = self.partial.remove(&publisher) {
            self.lost_chunks(&chunks);
        }
    }

    /// Messages that could not be used are expected again.
    pub(super) fn forget(&mut self, publisher: PublisherId, first: u64, count: u64) {
        if let Some((seen, _)) = self.seen.get_mut(&publisher) {
            (first..first.saturating_add(count)).for_each(|sequence| seen.forget(sequence));
        }
    }

    pub(super) fn lost_chunks(&mut self, chunks: &[(StreamId, u64)]) {
        for (stream, offset) in chunks {
            self.push_gap(StreamGap {
                stream: *stream,
                first: *offset,
                last: *offset,
                reason: GapReason::Unrepaired,
            });
            self.counters.lost += 1;
        }
    }

    /// Takes a gap, except for messages already received from a better informed gateway.
    pub(super) fn gap(&mut self, mut gap: StreamGap) {
        let had = self.positions.of(gap.stream);
        gap.first = gap.first.max(had.map_or(0, |had| had.offset + 1));
        let told = gap.last == StreamGap::OPEN && had.is_some_and(|had| had.course == Course::Lost);
        if told || gap.first > gap.last {
            return;
        }
        if gap.reason == GapReason::Ended {
            self.positions.end(gap.stream, gap.first, Course::Ended);
            self.reading.items.push_back(Item::Gap(gap)); // for the reader's position; the reader never sees it
            return;
        }
        advance_past(&mut self.positions, &gap);
        if gap.last != StreamGap::OPEN {
            self.counters.lost = self
                .counters
                .lost
                .saturating_add(gap.last.saturating_sub(gap.first).saturating_add(1));
        }
        self.push_gap(gap);
    }

    /// The positions are of an earlier state of the owner: the stream goes on before them, with other messages.
    pub(super) fn go_back(&mut self, gap: StreamGap) {
        self.positions.go_back(gap.stream, gap.first);
        self.push_gap(gap);
    }

    pub(super) fn push_gap(&mut self, gap: StreamGap) {
        self.note_lost(gap.stream, gap.first);
        if let Some(Item::Gap(last)) = self.reading.items.back_mut() {
            let next = last.last.checked_add(1) == Some(gap.first);
            if next && (last.stream, last.reason) == (gap.stream, gap.reason) {
                last.last = gap.last;
                return;
            }
        }
        self.counters.gaps += 1;
        let max = (self.inbox_bytes / ITEM).max(GAPS_MIN);
        if self.reading.items.len() >= max {
            // A gap takes memory as well: beyond the reader's limit, neighbouring gaps of one stream are merged.
            if let Some(Item::Gap(last)) = self.reading.items.back_mut() {
                if last.stream == gap.stream {
                    last.last = last.last.max(gap.last);
                    return;
                }
            }
            if self.reading.items.len() >= 2 * max {
                return; // no honest room has this many streams
            }
        }
        self.reading.items.push_back(Item::Gap(gap));
    }

    /// `last` is its last chunk, `begins` the sequence of its first one, `data` that of all of them.
    pub(super) fn deliver(
        &mut self,
        stream: StreamId,
        offsets: RangeInclusive<u64>,
        last: &Message<'_>,
        begins: u64,
        born: Micros,
        data: &[u8],
    ) {
        let (first, offset) = offsets.into_inner();
        let headers = match last.flags & HEADERS {
            0 => 0,
            _ => headers::split(data).map_or(0, |(block, _)| block.len() as u16),
        };
        let block = (headers > 0).then(|| &data[..usize::from(headers)]);
        // Its gateway does the same, unless that is of before filters.
        if self
            .filter
            .as_ref()
            .is_some_and(|filter| !filter.lets(last.publisher, begins, block))
        {
            self.counters.filtered += 1;
            return;
        }
        let inbox_bytes = self.inbox_bytes;
        let reading = &mut self.reading;
        let full = |reading: &Reading| reading.bytes.len() + data.len() + (reading.items.len() + 1) * 64 > inbox_bytes;
        if self.policy == Policy::DropNewest && full(reading) {
            self.dropped(stream, first, offset);
            return;
        }
        if self.policy == Policy::DropOldest {
            while full(&self.reading) {
                let Some(at) = self
                    .reading
                    .items
                    .iter()
                    .position(|item| matches!(item, Item::Message { .. }))
                else {
                    break;
                };
                let Some(Item::Message {
                    stream,
                    offset,
                    first,
                    len,
                    ..
                }) = self.reading.items.get(at).copied()
                else {
                    break;
                };
                self.reading.bytes.drain(..len as usize);
                self.counters.dropped_reader += 1;
                self.note_lost(stream, first);
                let gap = StreamGap {
                    stream,
                    first,
                    last: offset,
                    reason: GapReason::Reader,
                };
                // Neighbouring drops become one gap.
                let merged = match at.checked_sub(1).and_then(|before| self.reading.items.get_mut(before)) {
                    Some(Item::Gap(known)) if known.reason == GapReason::Reader && known.stream == stream => {
                        known.last = offset;
                        true
                    }
                    _ => false,
                };
                if merged {
                    self.reading.items.remove(at);
                } else {
                    self.reading.items[at] = Item::Gap(gap);
                }
            }
        }
        self.counters.delivered += 1;
        self.counters.delivered_bytes += data.len() as u64;
        self.reading.items.push_back(Item::Message {
            stream,
            offset,
            first,
            sender: last.publisher.user,
            born,
            len: data.len() as u32,
            headers,
        });
        self.reading.bytes.extend(data);
    }

    pub(super) fn dropped(&mut self, stream: StreamId, first: u64, offset: u64) {
        self.counters.dropped_reader += 1;
        self.note_lost(stream, first);
        match self.reading.items.back_mut() {
            Some(Item::Gap(gap)) if gap.reason == GapReason::Reader && gap.stream == stream => gap.last = offset,
            _ => self.push_gap(StreamGap {
                stream,
                first,
                last: offset,
                reason: GapReason::Reader,
            }),
        }
    }
}
