//! A message on its way to the reader: order of its publisher, chunks, budget, gaps.

use super::publishers::Joined;
use super::{Item, Member, Policy, Shared};
use crate::client::held::Content;
use crate::headers;
use crate::wire::publish::{Course, Position, Positions};
use crate::wire::room::{Message, Passed, HEADERS, WHOLE};
use crate::wire::{GapReason, StreamGap, StreamId};
use muster_transport::Micros;
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
            let Some(taken) = self.places.held.take(self.places.next, self.places.next + 1) else {
                break;
            };
            match taken.content() {
                Content::Gap(gap) => {
                    self.places.next += 1;
                    self.gap(gap);
                }
                Content::Passed(passed) => {
                    let count = (taken.end() - self.places.next) as u32;
                    self.pass(Passed {
                        count,
                        ..passed.from(self.places.next)
                    });
                }
                Content::LeftOut(resume) => self.leave_out(taken.end(), resume),
                Content::Block(block) => {
                    for (place, offset, message) in block.messages(self.places.next) {
                        if place == taken.end() || self.full() {
                            break;
                        }
                        self.places.next += 1;
                        self.message(shared, block.stream, offset, &message, block.born);
                    }
                }
            }
            if self.places.next < taken.end() {
                self.places.held.put_back(self.places.next, taken);
            } else {
                self.places.held.done(taken);
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
        let Some(known) = self.publishers.hear(message) else {
            self.counters.repeats += 1; // another owner numbered it again
            return;
        };
        if message.flags & WHOLE == WHOLE && !self.publishers.is_unfinished(message.publisher) {
            self.deliver(stream, offset..=offset, message, message.sequence, born, message.data);
            return;
        }
        let (joined, given_up) = self.publishers.join(shared, (stream, offset), message);
        if let Some(chunks) = given_up {
            self.lost_chunks(&chunks);
        }
        match joined {
            Joined::Whole { data, begins, first } => {
                self.deliver(stream, first..=offset, message, begins, born, &data);
            }
            Joined::Partial => {}
            // A member that joins in the middle of a message starts with the next one: nothing is lost, unless there
            // was a gap.
            Joined::NoFirst if !known && !self.resumed && self.counters.gaps == 0 => {
                self.publishers.note_middle(message.publisher);
            }
            Joined::NoFirst if self.publishers.is_in_middle(message.publisher) => {}
            Joined::NoFirst | Joined::Lost => self.lost_chunks(&[(stream, offset)]),
        }
    }

    /// The chunks of a message that cannot be completed become gaps.
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
            self.reading.end(gap);
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
        self.counters.gaps += u64::from(self.reading.push_gap(gap));
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
        match self.reading.policy() {
            Policy::DropNewest if self.reading.exceeds(data.len()) => {
                self.dropped(stream, first, offset);
                return;
            }
            Policy::DropOldest => {
                while self.reading.exceeds(data.len()) {
                    let Some((stream, first)) = self.reading.drop_oldest() else {
                        break;
                    };
                    self.counters.dropped_reader += 1;
                    self.note_lost(stream, first);
                }
            }
            _ => {}
        }
        self.counters.delivered += 1;
        self.counters.delivered_bytes += data.len() as u64;
        let message = Item::Message {
            stream,
            offset,
            first,
            sender: last.publisher.user,
            born,
            len: data.len() as u32,
            headers,
        };
        self.reading.push(message, data);
    }

    pub(super) fn dropped(&mut self, stream: StreamId, first: u64, offset: u64) {
        self.counters.dropped_reader += 1;
        self.note_lost(stream, first);
        if !self.reading.extend_dropped(stream, offset) {
            self.push_gap(StreamGap {
                stream,
                first,
                last: offset,
                reason: GapReason::Reader,
            });
        }
    }
}
