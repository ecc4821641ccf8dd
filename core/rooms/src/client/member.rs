//! One room at a member: messages in order, requests for missing ones, and messages that the reader has not taken
//! yet.

mod delivery;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use muster_transport::{KeyedState, Micros};

use crate::asking::{Asking, Pace};
use crate::chunks::{Assembler, Budget};
use crate::client::held::{Block, Content, Held};
use crate::client::seen::Received;
use crate::command::CommandId;
use crate::filter::Filter;
use crate::limits::{CROWDED_BYTES, CROWDED_MESSAGES};
use crate::wire::publish::{Course, Positions};
use crate::wire::room::{GapPlace, LeftOut, Passed, RoomBlock, Skip, REPAIR_RANGES};
use crate::wire::{GapReason, PublisherId, StreamGap, StreamId};
use delivery::{advance_past, goes_back};

/// Wait times before holes are requested.
pub const PACE: Pace = Pace {
    reorder: 1_500,
    reorder_max: 6_000,
    again: 20_000,
    again_max: 500_000,
};
/// Bytes that an unread item costs besides its data, and the number of items that are always kept.
const ITEM: usize = 64;
const GAPS_MIN: usize = 1_024;
/// Maximum number of publishers of a room whose history is remembered; beyond it, the quarter heard least recently is
/// forgotten at once, so the search happens once per 1,024 new ones.
const PUBLISHERS_MAX: usize = 4_096;
/// Maximum number of unread commands, and of received commands that are remembered.
const COMMANDS_UNREAD_MAX: usize = 1_024;
const COMMANDS_KNOWN_MAX: usize = 4_096;

/// What happens if the reader is slower than the room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Drops the oldest unread message.
    #[default]
    DropOldest,
    /// Drops the newest message.
    DropNewest,
    /// Takes nothing more from the gateway; then a live room drops messages for this member, a paced one waits.
    Block,
}

/// An item for the reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// A message: `data` is the next `len` bytes of the inbox.
    Message {
        stream: StreamId,
        /// Its offset (of its last chunk), and the first offset of the unbroken run of its chunks up to there.
        offset: u64,
        first: u64,
        sender: u64,
        /// When it, or its last chunk, was born ([`Item::age`]); 0: unknown.
        born: Micros,
        len: u32,
        /// Length of its headers, which are the first bytes of the data ([`decode`](crate::headers::decode)).
        headers: u16,
    },
    Gap(StreamGap),
    /// A command: `data` is the next `len` bytes.
    Command {
        sender: u64,
        number: u64,
        len: u32,
    },
}

impl Item {
    /// The time since a proxy took the message, if known.
    pub fn age(&self, now: Micros) -> Option<Micros> {
        match self {
            Item::Message { born, .. } if *born != 0 => Some(now.saturating_sub(*born)),
            _ => None,
        }
    }
}

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

/// Unread items and their bytes.
#[derive(Default)]
pub struct Reading {
    pub items: VecDeque<Item>,
    /// Bytes of the messages in `items`, back to back.
    pub bytes: VecDeque<u8>,
    /// Commands, which are read first.
    commands: VecDeque<(CommandId, Box<[u8]>)>,
}

impl Reading {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.commands.is_empty()
    }
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
    pub request: u32,
    pub handle: Option<u32>,
    /// The gateway owes a reply to the join.
    pub asked: bool,
    /// The gateway's handle of an earlier, cancelled join of this room while this join waits: the gateway already
    /// holds a membership.
    pub owed: Option<u32>,
    pub policy: Policy,
    /// Which messages it wants; all, without one.
    pub filter: Option<Box<Filter>>,
    pub inbox_bytes: usize,
    pub positions: Positions,
    /// The reader's position: `positions` without the unread items.
    read: Positions,
    /// How much history the program requests; and the gateway's reply: the number of messages, and whether that is
    /// all.
    pub history: u32,
    pub given: Option<(u32, bool)>,
    /// Per stream, the first offset that the gateway had not yet when it answered the last join; and whether
    /// everything before them, from this membership's position on, has arrived or still may.
    heads: Vec<(StreamId, u64)>,
    whole: bool,
    /// Messages delivered before the last join.
    delivered: u64,
    /// The program joined with positions: a message that begins before them is lost, not new.
    resumed: bool,
    pub reading: Reading,
    pub counters: MemberCounters,
    /// The reader was told that there is something to read.
    pub told: bool,
    /// When to repeat a refused join, and how often in a row it was refused.
    pub retry_at: Option<Micros>,
    pub refusals: u32,
    /// Refused for good: the join is not repeated.
    pub refused: bool,
    next: u64,
    known: u64,
    held: Held,
    asking: Asking,
    /// The gateway knows that something is missing, and does not know yet that nothing is anymore.
    lacks_told: bool,
    /// For each publisher, the received sequences, and the number of its last message.
    seen: HashMap<PublisherId, (Received, u64), KeyedState>,
    /// Number of messages received.
    heard: u64,
    assembler: Assembler<PublisherId>,
    /// Publishers whose unfinished message began before this membership.
    middle: BTreeSet<PublisherId>,
    /// Offsets of the chunks of unfinished messages.
    partial: BTreeMap<PublisherId, Vec<(StreamId, u64)>>,
    /// Recently received commands, newest last.
    commands: VecDeque<CommandId>,
    blocked: bool,
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
            request,
            handle: None,
            asked: false,
            owed: None,
            policy,
            filter: None,
            inbox_bytes,
            read: positions.clone(),
            resumed: !positions.0.is_empty(),
            positions,
            history: 0,
            given: None,
            heads: Vec::new(),
            whole: false,
            delivered: 0,
            reading: Reading::default(),
            counters: MemberCounters::default(),
            told: false,
            retry_at: None,
            refusals: 0,
            refused: false,
            next: 0,
            known: 0,
            held: Held::default(),
            asking: Asking::new(PACE),
            lacks_told: false,
            seen: HashMap::with_hasher(hash),
            heard: 0,
            assembler: Assembler::new(),
            middle: BTreeSet::new(),
            partial: BTreeMap::new(),
            commands: VecDeque::new(),
            blocked: false,
        }
    }

    /// Takes a command, once. `false`: the reader has left too many unread.
    pub fn command(&mut self, id: CommandId, data: &[u8]) -> bool {
        if self.commands.contains(&id) {
            return true;
        }
        if self.reading.commands.len() >= COMMANDS_UNREAD_MAX {
            self.counters.dropped_reader += 1;
            return false;
        }
        if self.commands.len() >= COMMANDS_KNOWN_MAX {
            self.commands.pop_front();
        }
        self.commands.push_back(id);
        self.counters.commands += 1;
        self.reading.commands.push_back((id, data.into()));
        true
    }

    /// The gateway confirmed the join.
    pub fn joined(&mut self, now: Micros, answer: &Answer) {
        let Answer {
            handle,
            index,
            start,
            heads,
            gaps,
            history,
            whole,
        } = answer;
        let (handle, index) = (*handle, *index);
        if self.handle == Some(handle) && self.next > 0 {
            return; // a repeated reply
        }
        let resumes = !self.positions.0.is_empty();
        self.counters.rejoined += u64::from(self.given.is_some());
        self.given.get_or_insert((*history, *whole));
        self.heads = start
            .0
            .iter()
            .map(|start| start.stream)
            .zip(heads.iter().copied())
            .collect();
        self.whole = resumes && *whole && gaps.is_empty();
        self.delivered = self.counters.delivered;
        self.handle = Some(handle);
        (self.asked, self.owed) = (false, None);
        (self.retry_at, self.refusals) = (None, 0);
        self.next = index;
        self.known = index;
        self.asking.restart(index);
        self.lacks_told = false;
        self.held.clear();
        self.blocked = false;
        self.assembler.renew(now);
        for gap in gaps {
            match goes_back(&self.positions, gap) {
                true => self.go_back(*gap),
                false => self.gap(*gap),
            }
        }
        for start in start.0.iter().copied() {
            if self.positions.of(start.stream).is_none() {
                if self.reading.items.is_empty() {
                    self.read.begin(start);
                }
                self.positions.begin(start);
            }
        }
    }

    /// Whether the last join continued the membership without loss; `None`: messages that the gateway had by then are
    /// still on their way.
    pub fn recovered(&self) -> Option<bool> {
        match self.whole {
            true => self.is_caught_up().then_some(true),
            false => Some(false),
        }
    }

    /// Whether everything that the gateway had when it answered the last join has arrived or is known to be lost.
    pub fn is_caught_up(&self) -> bool {
        let unfinished = |(stream, offset): &(StreamId, u64)| self.is_before_head(*stream, *offset);
        let behind = |(stream, head): &(StreamId, u64)| {
            let had = self.positions.of(*stream);
            // A stream that had ended there may have continued.
            had.is_none_or(|had| had.course != Course::Lost && had.offset + 1 < *head)
        };
        let comes = self.handle.is_none() || self.partial.values().flatten().any(unfinished);
        !comes && !self.heads.iter().any(behind)
    }

    fn is_before_head(&self, stream: StreamId, offset: u64) -> bool {
        let mut heads = self.heads.iter();
        heads.any(|(known, head)| *known == stream && offset < *head)
    }

    /// Messages from `first` on are lost to the reader: some that the gateway had when it answered, or some before
    /// the first message.
    fn note_lost(&mut self, stream: StreamId, first: u64) {
        self.whole &= !self.is_before_head(stream, first) && self.delivered < self.counters.delivered;
    }

    /// The positions for a later join: after all read messages, before unread or unfinished ones.
    pub fn resume_from(&self) -> &Positions {
        if self.reading.items.is_empty() && self.partial.is_empty() {
            &self.positions
        } else {
            &self.read
        }
    }

    /// The session is gone; received data is kept for the next join.
    pub fn lost_session(&mut self) {
        self.handle = None;
        (self.asked, self.owed) = (false, None);
        self.next = 0;
        self.lacks_told = false;
        self.held.clear();
        self.blocked = false;
    }

    pub fn block(&mut self, shared: &mut Shared<'_>, block: RoomBlock<'_>) {
        let (stream, first, bytes) = (block.stream, block.index, block.messages.bytes());
        let born = block.age.map_or(0, |age| shared.now.saturating_sub(age.into()).max(1));
        let (mut index, duplicates) = (first, self.counters.duplicates);
        for (offset, message) in (block.offset..).zip(block.messages) {
            if index >= self.next && index < self.asking.asked() && !self.held.has(index) {
                self.counters.repaired += 1;
            }
            if index == self.next && !self.full() {
                self.next += 1;
                self.message(shared, stream, offset, &message, born);
                if !self.held.is_empty() {
                    self.release(shared);
                }
            } else if index < self.next {
                self.counters.duplicates += 1;
            }
            index += 1;
        }
        if index > self.next {
            let came = Block {
                first,
                stream,
                offset: block.offset,
                count: (index - first) as u32,
                born,
                bytes,
            };
            self.counters.duplicates += self.held.block(first.max(self.next), came);
        }
        // The number of messages that came twice: they had been requested too soon.
        let twice = self.counters.duplicates - duplicates;
        self.asking.came((index - first) as u32, twice as u32);
        self.note_known(shared.now, index);
    }

    pub fn gap_place(&mut self, shared: &mut Shared<'_>, place: GapPlace) {
        if place.index == self.next && !self.full() {
            self.next += 1;
            self.gap(place.gap);
            self.release(shared);
        } else if place.index >= self.next {
            self.counters.duplicates += u64::from(!self.held.gap(place.index, place.gap));
        }
        self.note_known(shared.now, place.index + 1);
    }

    /// A filter passed what is at these places.
    pub fn passed(&mut self, shared: &mut Shared<'_>, passed: Passed) {
        let (first, end) = (passed.index, passed.end());
        let mut twice = self.next.clamp(first, end) - first;
        if twice < u64::from(passed.count) {
            if first <= self.next && !self.full() {
                self.pass(passed.from(self.next));
                self.release(shared);
            } else {
                twice += self.held.passed(first.max(self.next), passed);
            }
        }
        self.counters.duplicates += twice;
        self.asking.came(passed.count, twice as u32);
        self.note_known(shared.now, end);
    }

    /// Takes places that begin at the next one.
    fn pass(&mut self, passed: Passed) {
        self.next = passed.end();
        self.counters.filtered += u64::from(passed.count);
        self.positions
            .advance(passed.stream, passed.offset + u64::from(passed.count) - 1);
    }

    /// What stands at these places is left out.
    pub fn left_out(&mut self, shared: &mut Shared<'_>, left: &LeftOut) {
        let (first, end) = (left.index, left.end);
        let mut twice = self.next.clamp(first, end) - first;
        if self.next < end {
            if first <= self.next && !self.full() {
                self.leave_out(end, &left.resume);
                self.release(shared);
            } else {
                twice += self.held.left_out(first.max(self.next), left);
            }
        }
        self.counters.duplicates += twice;
        self.asking.came(1, u32::from(twice == end - first));
        self.note_known(shared.now, end);
    }

    /// Goes on at `end`, where each stream follows with this offset.
    fn leave_out(&mut self, end: u64, resume: &[(StreamId, u64)]) {
        self.counters.filtered += end.saturating_sub(self.next);
        self.next = end;
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
        self.note_known(now, index);
    }

    /// Everything below the skip's place that has not arrived is lost.
    pub fn skip(&mut self, shared: &mut Shared<'_>, skip: &Skip) {
        if skip.index <= self.next {
            return;
        }
        while let Some(taken) = self.held.take(self.next, skip.index) {
            match taken.content() {
                Content::Gap(gap) => {
                    self.lost_before(gap.stream, gap.first, skip.reason);
                    self.gap(gap);
                }
                Content::Passed(passed) => {
                    let passed = passed.from(self.next.max(passed.index));
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
                    for (_, offset, message) in block.messages(self.next).take_while(|(place, ..)| *place < ends) {
                        self.lost_before(block.stream, offset, skip.reason);
                        self.message(shared, block.stream, offset, &message, block.born);
                    }
                }
            }
            if taken.end() > skip.index {
                self.held.put_back(skip.index, taken);
                break;
            }
            self.next = taken.end();
            self.held.done(taken);
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
        self.next = skip.index;
        self.release(shared);
        self.note_known(shared.now, skip.index);
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

    fn note_known(&mut self, now: Micros, index: u64) {
        self.known = self.known.max(index);
        self.asking.note(now, self.next, self.known);
    }

    fn full(&mut self) -> bool {
        if self.policy == Policy::Block {
            self.blocked = self.reading.bytes.len() + self.reading.items.len() * 64 >= self.inbox_bytes;
        }
        self.blocked
    }

    /// Whether the reader's policy stops the gateway from sending.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether so much waits behind a hole that the gateway must send only the missing data of the room.
    pub fn is_crowded(&self) -> bool {
        self.held.bytes() > CROWDED_BYTES || self.held.places() > CROWDED_MESSAGES
    }

    /// Forgets the publishers heard least recently.
    fn forget_unheard(&mut self) {
        let mut heard: Vec<u64> = self.seen.values().map(|(_, heard)| *heard).collect();
        let (_, &mut oldest, _) = heard.select_nth_unstable(PUBLISHERS_MAX / 4);
        self.seen.retain(|_, (_, heard)| *heard >= oldest);
        self.middle.retain(|publisher| self.seen.contains_key(publisher));
    }

    /// Takes the next unread item; appends a message's bytes to `data`.
    pub fn read(&mut self, data: &mut Vec<u8>) -> Option<Item> {
        if let Some((id, bytes)) = self.reading.commands.pop_front() {
            data.extend_from_slice(&bytes);
            return Some(Item::Command {
                sender: id.user,
                number: id.number,
                len: bytes.len() as u32,
            });
        }
        let item = loop {
            let item = self.reading.items.pop_front()?;
            match item {
                Item::Message { stream, offset, .. } => {
                    self.read.advance(stream, offset);
                }
                Item::Gap(gap) => advance_past(&mut self.read, &gap),
                Item::Command { .. } => {}
            }
            if !matches!(item, Item::Gap(gap) if gap.reason == GapReason::Ended) {
                break item;
            }
        };
        if let Item::Message { len, .. } = item {
            let len = len as usize;
            let (front, back) = self.reading.bytes.as_slices();
            if front.len() >= len {
                data.extend_from_slice(&front[..len]);
            } else {
                data.extend_from_slice(front);
                data.extend_from_slice(&back[..len - front.len()]);
            }
            self.reading.bytes.drain(..len);
        }
        Some(item)
    }

    /// Called after reading: continues where the policy had stopped. Returns `true` if the gateway may send again.
    pub fn unblock(&mut self, shared: &mut Shared<'_>) -> bool {
        if !self.blocked || self.full() {
            return false;
        }
        self.release(shared);
        self.note_known(shared.now, self.known);
        self.asking.hurry(shared.now); // places missed while blocked are not caused by reordering
        !self.blocked
    }

    /// When this room needs time next.
    pub fn deadline(&self) -> Option<Micros> {
        let hole = self
            .asking
            .deadline()
            .filter(|_| !self.blocked && self.handle.is_some());
        [hole, self.old_at(), self.retry_at].into_iter().flatten().min()
    }

    /// When unfinished chunks are too old. Without a session they can't be completed, so their age doesn't count;
    /// unless the room was refused.
    fn old_at(&self) -> Option<Micros> {
        self.assembler
            .deadline()
            .filter(|_| self.handle.is_some() || self.refused)
    }

    /// Whether the gateway must learn that nothing is missing anymore.
    pub fn is_whole_again(&self) -> bool {
        self.lacks_told && self.next >= self.known && !self.blocked
    }

    /// The report that is due to the gateway now, if any.
    pub fn ask(&mut self, now: Micros, rtt: Micros) -> Option<Lack> {
        let handle = self.handle.filter(|_| !self.blocked)?;
        let mut ranges = Vec::new();
        let places = (self.next, self.known);
        self.asking
            .ask(now, rtt, places, &self.held, REPAIR_RANGES, &mut ranges);
        let whole_again = self.is_whole_again();
        self.counters.asked += u64::from(!ranges.is_empty());
        self.lacks_told = !ranges.is_empty() || self.lacks_told && !whole_again;
        let next = self.next;
        (whole_again || !ranges.is_empty()).then_some(Lack { handle, next, ranges })
    }

    /// Gives up chunks that are too old.
    pub fn expire(&mut self, shared: &mut Shared<'_>) {
        if self.old_at().is_none_or(|at| shared.now < at) {
            return;
        }
        let mut old = Vec::new();
        self.assembler
            .expire(shared.now, shared.budget, |publisher, abandoned| {
                old.push((publisher, abandoned))
            });
        old.into_iter()
            .for_each(|(publisher, abandoned)| self.abandon(publisher, abandoned));
    }

    /// Returns the process's shared memory.
    pub fn close(&mut self, budget: &mut Budget) {
        self.assembler.clear(budget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::room::{Message, WHOLE};

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
            (member.counters.delivered, member.counters.repeats, member.seen.len())
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
