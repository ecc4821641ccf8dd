//! One room at a member: messages in order, requests for missing ones, and messages that the reader has not taken
//! yet.
//!
//! Orders its parts: `join` (the gateway's reply), `places` (what comes next, and what is missing), `publishers`
//! (repeats and chunks), `recovery` (whether a join lost something), `reading` and `commands` (what the reader has not
//! taken).

mod commands;
mod delivery;
mod join;
mod places;
mod publishers;
mod reading;
mod recovery;

use muster_transport::{KeyedState, Micros};

use crate::chunks::Budget;
use crate::client::held::{Block, Content};
use crate::command::CommandId;
use crate::filter::Filter;
use crate::wire::publish::{Course, Positions};
use crate::wire::room::{GapPlace, LeftOut, Passed, RoomBlock, Skip};
use crate::wire::{GapReason, StreamGap, StreamId};
use commands::Commands;
use delivery::{advance_past, goes_back};
use join::Join;
use places::Places;
use publishers::Publishers;
use reading::Reading;
pub use reading::{Item, Policy};
use recovery::Recovery;

/// Counts of one room.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct MemberCounters {
    pub delivered: u64,
    pub delivered_bytes: u64,
    pub gaps: u64,
    pub lost: u64,
    pub duplicates: u64,
    pub repeats: u64,
    pub asked: u64,
    /// Messages that arrived after they had been requested.
    pub repaired: u64,
    pub dropped_reader: u64,
    /// Messages, or chunks of them, that its filter passed.
    pub filtered: u64,
    pub commands: u64,
    /// Times that the room was joined again because a session was lost.
    pub rejoined: u64,
}

/// The parts of a client that its rooms share.
pub struct Shared<'a> {
    pub budget: &'a mut Budget,
    pub now: Micros,
}

/// A gateway's reply to a join.
pub struct Answer {
    pub handle: u32,
    pub index: u64,
    pub start: Positions,
    pub heads: Vec<u64>,
    pub gaps: Vec<StreamGap>,
    pub history: u32,
    pub whole: bool,
}

/// A report to the gateway of missing places in a room.
pub struct Lack {
    pub handle: u32,
    /// The first missing place.
    pub next: u64,
    /// Places to request; empty when nothing is missing anymore.
    pub ranges: Vec<(u64, u64)>,
}

/// One room of a member.
pub struct Member {
    pub name: Box<str>,
    /// Which messages it wants; all, without one.
    pub filter: Option<Box<Filter>>,
    pub join: Join,
    pub positions: Positions,
    pub reading: Reading,
    pub counters: MemberCounters,
    commands: Commands,
    places: Places,
    publishers: Publishers,
    recovery: Recovery,
    /// The program joined with positions: a message that begins before them is lost, not new.
    resumed: bool,
}

impl Member {
    pub fn new(
        name: &str,
        request: u32,
        positions: Positions,
        policy: Policy,
        inbox_bytes: usize,
        hash: KeyedState,
    ) -> Self {
        Member {
            name: name.into(),
            filter: None,
            join: Join::new(request),
            reading: Reading::new(policy, inbox_bytes, positions.clone()),
            resumed: !positions.0.is_empty(),
            positions,
            counters: MemberCounters::default(),
            commands: Commands::default(),
            places: Places::default(),
            publishers: Publishers::new(hash),
            recovery: Recovery::default(),
        }
    }

    /// Whether the reader has something to read.
    pub fn is_readable(&self) -> bool {
        !self.reading.is_empty() || !self.commands.is_empty()
    }

    /// Whether the reader must be told that there is something to read: once, until it has read everything.
    pub fn tell(&mut self) -> bool {
        self.reading.tell()
    }

    /// Takes a command, once. `false`: the reader has left too many unread.
    pub fn command(&mut self, id: CommandId, data: &[u8]) -> bool {
        if self.commands.contains(&id) {
            return true;
        }
        if !self.commands.push(id, data) {
            self.counters.dropped_reader += 1;
            return false;
        }
        self.counters.commands += 1;
        true
    }

    /// The gateway confirmed the join.
    pub fn joined(&mut self, now: Micros, answer: &Answer) {
        if self.join.handle == Some(answer.handle) && self.places.next > 0 {
            return; // a repeated reply
        }
        let resumes = !self.positions.0.is_empty();
        self.counters.rejoined += u64::from(self.join.answered(answer));
        let whole = resumes && answer.whole && answer.gaps.is_empty();
        self.recovery = Recovery::new(&answer.start, &answer.heads, whole, self.counters.delivered);
        self.places.begin(answer.index);
        self.reading.free();
        self.publishers.renew(now);
        for gap in &answer.gaps {
            match goes_back(&self.positions, gap) {
                true => self.go_back(*gap),
                false => self.gap(*gap),
            }
        }
        for start in answer.start.0.iter().copied() {
            if self.positions.of(start.stream).is_none() {
                self.reading.begin(start);
                self.positions.begin(start);
            }
        }
    }

    /// Whether the last join continued the membership without loss; `None`: messages that the gateway had by then are
    /// still on their way.
    pub fn recovered(&self) -> Option<bool> {
        match self.recovery.is_whole() {
            true => self.is_caught_up().then_some(true),
            false => Some(false),
        }
    }

    /// Whether everything that the gateway had when it answered the last join has arrived or is known to be lost.
    pub fn is_caught_up(&self) -> bool {
        let unfinished = |(stream, offset): &(StreamId, u64)| self.recovery.is_before_head(*stream, *offset);
        let comes = self.join.handle.is_none() || self.publishers.unfinished().any(unfinished);
        !comes && !self.recovery.is_behind(&self.positions)
    }

    /// Messages from `first` on are lost to the reader.
    fn note_lost(&mut self, stream: StreamId, first: u64) {
        self.recovery.note_lost(stream, first, self.counters.delivered);
    }

    /// The positions for a later join: after all read messages, before unread or unfinished ones.
    pub fn resume_from(&self) -> &Positions {
        if self.reading.is_empty() && self.publishers.is_complete() {
            &self.positions
        } else {
            self.reading.position()
        }
    }

    /// The session is gone; received data is kept for the next join.
    pub fn lost_session(&mut self) {
        self.join.lost_session();
        self.places.end();
        self.reading.free();
    }

    pub fn block(&mut self, shared: &mut Shared<'_>, block: RoomBlock<'_>) {
        let (stream, first, bytes) = (block.stream, block.index, block.messages.bytes());
        let born = block.age.map_or(0, |age| shared.now.saturating_sub(age.into()).max(1));
        let (mut index, duplicates) = (first, self.counters.duplicates);
        for (offset, message) in (block.offset..).zip(block.messages) {
            if self.places.is_repair(index) {
                self.counters.repaired += 1;
            }
            if index == self.places.next && !self.full() {
                self.places.next += 1;
                self.message(shared, stream, offset, &message, born);
                if !self.places.held.is_empty() {
                    self.release(shared);
                }
            } else if index < self.places.next {
                self.counters.duplicates += 1;
            }
            index += 1;
        }
        if index > self.places.next {
            let came = Block {
                first,
                stream,
                offset: block.offset,
                count: (index - first) as u32,
                born,
                bytes,
            };
            self.counters.duplicates += self.places.held.block(first.max(self.places.next), came);
        }
        // The number of messages that came twice: they had been requested too soon.
        let twice = self.counters.duplicates - duplicates;
        self.places.came((index - first) as u32, twice as u32);
        self.places.note_known(shared.now, index);
    }

    pub fn gap_place(&mut self, shared: &mut Shared<'_>, place: GapPlace) {
        if place.index == self.places.next && !self.full() {
            self.places.next += 1;
            self.gap(place.gap);
            self.release(shared);
        } else if place.index >= self.places.next {
            self.counters.duplicates += u64::from(!self.places.held.gap(place.index, place.gap));
        }
        self.places.note_known(shared.now, place.index + 1);
    }

    /// A filter passed what is at these places.
    pub fn passed(&mut self, shared: &mut Shared<'_>, passed: Passed) {
        let (first, end) = (passed.index, passed.end());
        let mut twice = self.places.next.clamp(first, end) - first;
        if twice < u64::from(passed.count) {
            if first <= self.places.next && !self.full() {
                self.pass(passed.from(self.places.next));
                self.release(shared);
            } else {
                twice += self.places.held.passed(first.max(self.places.next), passed);
            }
        }
        self.counters.duplicates += twice;
        self.places.came(passed.count, twice as u32);
        self.places.note_known(shared.now, end);
    }

    /// Takes places that begin at the next one.
    fn pass(&mut self, passed: Passed) {
        self.places.next = passed.end();
        self.counters.filtered += u64::from(passed.count);
        self.positions
            .advance(passed.stream, passed.offset + u64::from(passed.count) - 1);
    }

    /// What stands at these places is left out.
    pub fn left_out(&mut self, shared: &mut Shared<'_>, left: &LeftOut) {
        let (first, end) = (left.index, left.end);
        let mut twice = self.places.next.clamp(first, end) - first;
        if self.places.next < end {
            if first <= self.places.next && !self.full() {
                self.leave_out(end, &left.resume);
                self.release(shared);
            } else {
                twice += self.places.held.left_out(first.max(self.places.next), left);
            }
        }
        self.counters.duplicates += twice;
        self.places.came(1, u32::from(twice == end - first));
        self.places.note_known(shared.now, end);
    }

    /// Goes on at `end`, where each stream follows with this offset.
    fn leave_out(&mut self, end: u64, resume: &[(StreamId, u64)]) {
        self.counters.filtered += end.saturating_sub(self.places.next);
        self.places.next = end;
        let Positions(known) = &mut self.positions;
        let over = |of: &StreamId| {
            let next = resume.iter().find(|(stream, _)| stream == of).map(|(_, next)| *next);
            !resume.is_empty() && next.is_none_or(|next| next == u64::MAX)
        };
        // Streams of unknown end: a later join with them learns what they lack.
        let over = known
            .iter_mut()
            .filter(|had| had.course == Course::GoesOn && over(&had.stream));
        over.for_each(|had| had.course = Course::Lost);
        for (stream, next) in resume.iter().filter(|(_, next)| *next != u64::MAX) {
            self.positions.advance(*stream, next.saturating_sub(1));
        }
    }

    pub fn head(&mut self, now: Micros, index: u64) {
        self.places.note_known(now, index);
    }

    /// Everything below the skip's place that has not arrived is lost.
    pub fn skip(&mut self, shared: &mut Shared<'_>, skip: &Skip) {
        if skip.index <= self.places.next {
            return;
        }
        while let Some(taken) = self.places.held.take(self.places.next, skip.index) {
            match taken.content() {
                Content::Gap(gap) => {
                    self.lost_before(gap.stream, gap.first, skip.reason);
                    self.gap(gap);
                }
                Content::Passed(passed) => {
                    let passed = passed.from(self.places.next.max(passed.index));
                    self.lost_before(passed.stream, passed.offset, skip.reason);
                    let count = taken.end().min(skip.index).saturating_sub(passed.index);
                    let count = count as u32;
                    if count > 0 {
                        self.pass(Passed { count, ..passed });
                    }
                }
                Content::LeftOut(resume) if taken.end() <= skip.index => self.leave_out(taken.end(), resume),
                Content::LeftOut(_) => {}
                Content::Block(block) => {
                    let ends = taken.end().min(skip.index);
                    for (_, offset, message) in block.messages(self.places.next).take_while(|(place, ..)| *place < ends)
                    {
                        self.lost_before(block.stream, offset, skip.reason);
                        self.message(shared, block.stream, offset, &message, block.born);
                    }
                }
            }
            if taken.end() > skip.index {
                self.places.held.put_back(skip.index, taken);
                break;
            }
            self.places.next = taken.end();
            self.places.held.done(taken);
        }
        // A stream that continued, and that the gateway no longer names, has an unknown end.
        for left in self.positions.clone().0 {
            let named = |(stream, _): &(StreamId, u64)| *stream == left.stream;
            let went_on = left.course == Course::GoesOn;
            if went_on && !skip.resume.is_empty() && !skip.resume.iter().any(named) {
                self.lost_before(left.stream, u64::MAX, skip.reason);
            }
        }
        for (stream, next) in &skip.resume {
            self.lost_before(*stream, *next, skip.reason);
        }
        self.places.next = skip.index;
        self.release(shared);
        self.places.note_known(shared.now, skip.index);
    }

    /// Adds a gap for the missing part of `stream` before offset `next`.
    fn lost_before(&mut self, stream: StreamId, next: u64, reason: GapReason) {
        let first = self.positions.of(stream).map_or(0, |had| had.offset) + 1;
        if next > first {
            let last = if next == u64::MAX { StreamGap::OPEN } else { next - 1 };
            self.gap(StreamGap {
                stream,
                first,
                last,
                reason,
            });
        }
    }

    #[inline]
    fn full(&mut self) -> bool {
        self.reading.full()
    }

    /// Whether the reader's policy stops the gateway from sending.
    pub fn is_blocked(&self) -> bool {
        self.reading.is_blocked()
    }

    /// Whether so much waits behind a hole that the gateway must send only the missing data of the room.
    pub fn is_crowded(&self) -> bool {
        self.places.is_crowded()
    }

    /// Takes the next unread item; appends a message's bytes to `data`.
    pub fn read(&mut self, data: &mut Vec<u8>) -> Option<Item> {
        if let Some((id, bytes)) = self.commands.pop() {
            data.extend_from_slice(&bytes);
            return Some(Item::Command {
                sender: id.user,
                number: id.number,
                len: bytes.len() as u32,
            });
        }
        let item = self.reading.pop(data);
        if item.is_none() {
            self.reading.drained();
        }
        item
    }

    /// Called after reading: continues where the policy had stopped. Returns `true` if the gateway may send again.
    pub fn unblock(&mut self, shared: &mut Shared<'_>) -> bool {
        if !self.is_blocked() || self.full() {
            return false;
        }
        self.release(shared);
        self.places.hurry(shared.now);
        !self.is_blocked()
    }

    /// When this room needs time next.
    pub fn deadline(&self) -> Option<Micros> {
        let asks = !self.is_blocked() && self.join.handle.is_some();
        let hole = self.places.deadline().filter(|_| asks);
        [hole, self.old_at(), self.join.retry_at].into_iter().flatten().min()
    }

    /// When unfinished chunks are too old. Without a session they can't be completed, so their age doesn't count;
    /// unless the room was refused.
    fn old_at(&self) -> Option<Micros> {
        self.publishers.deadline().filter(|_| !self.join.is_open())
    }

    /// Whether the gateway must learn that nothing is missing anymore.
    pub fn is_whole_again(&self) -> bool {
        self.places.is_whole_again() && !self.is_blocked()
    }

    /// The report that is due to the gateway now, if any.
    pub fn ask(&mut self, now: Micros, rtt: Micros) -> Option<Lack> {
        let handle = self.join.handle.filter(|_| !self.is_blocked())?;
        let (ranges, tells) = self.places.ask(now, rtt);
        self.counters.asked += u64::from(!ranges.is_empty());
        let next = self.places.next;
        tells.then_some(Lack { handle, next, ranges })
    }

    /// Gives up chunks that are too old.
    pub fn expire(&mut self, shared: &mut Shared<'_>) {
        if self.old_at().is_none_or(|at| shared.now < at) {
            return;
        }
        for chunks in self.publishers.expire(shared) {
            self.lost_chunks(&chunks);
        }
    }

    /// Returns the process's shared memory.
    pub fn close(&mut self, budget: &mut Budget) {
        self.publishers.close(budget);
    }
}

#[cfg(test)]
mod tests {
    use super::publishers::PUBLISHERS_MAX;
    use super::*;
    use crate::wire::room::{Message, WHOLE};
    use crate::wire::PublisherId;

    #[test]
    fn recently_heard_publishers_are_remembered() {
        let mut budget = Budget::new(1 << 20);
        let mut shared = Shared {
            budget: &mut budget,
            now: 0,
        };
        let hash = KeyedState::new(1, 2);
        let mut member = Member::new("room", 1, Positions::default(), Policy::DropOldest, 1 << 10, hash);
        let mut say = |node: u32, offset: u64, user: u64, sequence: u64| {
            let publisher = PublisherId { user, incarnation: 1 };
            let (stream, flags) = (
                StreamId {
                    node,
                    epoch: 1,
                    generation: 1,
                },
                WHOLE,
            );
            let message = Message {
                publisher,
                sequence,
                flags,
                data: b"x",
            };
            member.message(&mut shared, stream, offset, &message, 0);
            (
                member.counters.delivered,
                member.counters.repeats,
                member.publishers.len(),
            )
        };
        say(1, 1, 1, 1);
        let others = 3 * PUBLISHERS_MAX as u64;
        for other in 0..others {
            say(1, 2 + 2 * other, 2 + other, 1);
            say(1, 3 + 2 * other, 1, 2 + other);
        }
        let (delivered, repeats, seen) = say(2, 1, 1, 1);
        assert_eq!(
            (delivered, repeats),
            (1 + 2 * others, 1),
            "another owner numbered it again"
        );
        assert!(seen <= PUBLISHERS_MAX);
    }
}
