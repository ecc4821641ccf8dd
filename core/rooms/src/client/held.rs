//! Data of a room that arrived ahead of a hole: blocks as received, gaps, and what a filter passed or left out.
//!
//! Such data waits only for the hole, so a block is not parsed before its turn. It stays in one piece of memory,
//! referenced once for each stretch between holes. Knows no reader and no hole.

use std::collections::VecDeque;

use muster_transport::Micros;

use crate::asking::Came;
use crate::limits::{CROWDED_BYTES, CROWDED_MESSAGES};
use crate::wire::room::{BlockMessages, LeftOut, Message, Passed};
use crate::wire::{StreamGap, StreamId};

/// Maximum number of messages held ahead of a hole, and maximum bytes of their blocks.
pub const HELD_MAX: usize = 4 * CROWDED_MESSAGES;
pub const HELD_BYTES_MAX: usize = 4 * CROWDED_BYTES;
/// Minimum size of a memory chunk for blocks; later ones are as large as the held data.
const CHUNK_MIN: usize = 2 << 10;
const CHUNK_MAX: usize = 32 << 10;

/// A block as received: messages with consecutive places.
#[derive(Clone, Copy)]
pub struct Block<B> {
    /// Place and offset of the first message.
    pub first: u64,
    pub stream: StreamId,
    pub offset: u64,
    /// How many messages it has, all well formed.
    pub count: u32,
    /// When they were born; 0: unknown.
    pub born: Micros,
    pub bytes: B,
}

/// A chunk's index, and a position in the chunk.
#[derive(Clone, Copy)]
struct Span {
    chunk: u32,
    at: u32,
    len: u32,
}

enum HeldItem {
    Block(Block<Span>),
    Gap(StreamGap),
    Passed(Passed),
    LeftOut(Box<[(StreamId, u64)]>),
}

/// Held data from one place to another, `end` exclusive.
struct Stretch {
    from: u64,
    end: u64,
    kept: HeldItem,
}

impl Stretch {
    /// Places that it counts as. What is left out needs no memory, however much it is.
    fn places(&self) -> usize {
        match self.kept {
            HeldItem::LeftOut(_) => 1,
            _ => (self.end - self.from) as usize,
        }
    }
}

/// A stretch that was taken out, with the chunk that holds its block.
pub struct Taken {
    part: Stretch,
    chunk: Vec<u8>,
}

/// The content of a stretch: a block, a gap at one place, a run that a filter passed, or what was left out, with the first offset
/// behind it in each stream.
pub enum Content<'a> {
    Block(Block<&'a [u8]>),
    Gap(StreamGap),
    Passed(Passed),
    LeftOut(&'a [(StreamId, u64)]),
}

impl Taken {
    /// The place behind it.
    pub fn end(&self) -> u64 {
        self.part.end
    }

    pub fn content(&self) -> Content<'_> {
        match &self.part.kept {
            HeldItem::Gap(gap) => Content::Gap(*gap),
            HeldItem::Passed(passed) => Content::Passed(*passed),
            HeldItem::LeftOut(resume) => Content::LeftOut(resume),
            HeldItem::Block(block) => {
                let Span { at, len, .. } = block.bytes;
                Content::Block(block.with(&self.chunk[at as usize..(at + len) as usize]))
            }
        }
    }
}

impl<B> Block<B> {
    /// The same block with its bytes elsewhere.
    fn with<C>(&self, bytes: C) -> Block<C> {
        Block {
            first: self.first,
            stream: self.stream,
            offset: self.offset,
            count: self.count,
            born: self.born,
            bytes,
        }
    }
}

impl<'a> Block<&'a [u8]> {
    /// Place, offset and message of each from a place on.
    pub fn messages(&self, from: u64) -> impl Iterator<Item = (u64, u64, Message<'a>)> {
        let numbers = (self.first..).zip(self.offset..);
        let all = numbers.zip(BlockMessages::of(self.count as usize, self.bytes));
        all.map(|((place, offset), message)| (place, offset, message))
            .skip_while(move |(place, ..)| *place < from)
    }
}

/// Memory of blocks, in the order of arrival. Blocks that arrived together are released together, so a chunk is soon
/// free as a whole, and a block needs no allocation of its own.
#[derive(Default)]
struct Chunks {
    all: Vec<Chunk>,
    /// Indices of chunks without a block.
    free: Vec<u32>,
    /// The chunk that gets the next block.
    filling: u32,
    /// Bytes of all chunks that hold a block.
    bytes: usize,
}

#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    blocks: u32,
}

impl Chunks {
    fn push(&mut self, bytes: &[u8]) -> Span {
        let fits = |chunk: &Chunk| chunk.bytes.capacity() - chunk.bytes.len() >= bytes.len();
        let filling = self.all.get(self.filling as usize);
        if !filling.is_some_and(fits) {
            if filling.is_none_or(|chunk| chunk.blocks > 0) {
                self.filling = self.free.pop().unwrap_or(self.all.len() as u32);
                if self.filling as usize == self.all.len() {
                    self.all.push(Chunk::default());
                }
            }
            let capacity = self.bytes.clamp(CHUNK_MIN, CHUNK_MAX).max(bytes.len());
            self.all[self.filling as usize].bytes = Vec::with_capacity(capacity);
        }
        let chunk = &mut self.all[self.filling as usize];
        let at = chunk.bytes.len() as u32;
        chunk.bytes.extend_from_slice(bytes);
        chunk.blocks += 1;
        self.bytes += bytes.len();
        Span {
            chunk: self.filling,
            at,
            len: bytes.len() as u32,
        }
    }

    fn lend(&mut self, span: Span) -> Vec<u8> {
        std::mem::take(&mut self.all[span.chunk as usize].bytes)
    }

    fn give_back(&mut self, span: Span, bytes: Vec<u8>) {
        self.all[span.chunk as usize].bytes = bytes;
    }

    fn forget(&mut self, span: Span) {
        let chunk = &mut self.all[span.chunk as usize];
        chunk.blocks -= 1;
        if chunk.blocks == 0 {
            self.bytes -= chunk.bytes.len();
            chunk.bytes.clear();
            if span.chunk != self.filling {
                chunk.bytes = Vec::new();
                self.free.push(span.chunk);
            }
        }
    }
}

/// All held stretches by place, disjoint. New data mostly goes to the end, and taken data leaves at the front.
#[derive(Default)]
pub struct Held {
    parts: VecDeque<Stretch>,
    places: usize,
    chunks: Chunks,
}

impl Held {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Number of places held.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Bytes of the memory in use, including released parts of it.
    pub fn bytes(&self) -> usize {
        self.chunks.bytes
    }

    pub fn clear(&mut self) {
        *self = Held::default();
    }

    pub fn has(&self, place: u64) -> bool {
        self.end_before(self.behind(place)) > place
    }

    /// The end of the stretch before the one at `index`.
    fn end_before(&self, index: usize) -> u64 {
        let before = index.checked_sub(1).and_then(|before| self.parts.get(before));
        before.map_or(0, |part| part.end)
    }

    /// The index of the first stretch that begins behind a place.
    fn behind(&self, place: u64) -> usize {
        match self.parts.back() {
            Some(last) if last.from > place => self.parts.partition_point(|part| part.from <= place),
            _ => self.parts.len(),
        }
    }

    /// Keeps a block's messages from a place on, if there is space. Returns how many of them were held already.
    pub fn block(&mut self, from: u64, block: Block<&[u8]>) -> u64 {
        let end = block.first + u64::from(block.count);
        self.fill((from, end), (usize::MAX, block.bytes.len()), |chunks| {
            HeldItem::Block(block.with(chunks.push(block.bytes)))
        })
    }

    /// The same for a run that a filter passed.
    pub fn passed(&mut self, from: u64, passed: Passed) -> u64 {
        self.fill((from, passed.end()), (usize::MAX, 0), |_| HeldItem::Passed(passed))
    }

    /// The same for what was left out.
    pub fn left_out(&mut self, from: u64, left: &LeftOut) -> u64 {
        self.fill((from, left.end), (1, 0), |_| {
            HeldItem::LeftOut(left.resume.as_slice().into())
        })
    }

    /// Keeps what fills these places where nothing is held yet; it counts as so many at most, and has so many bytes.
    fn fill(
        &mut self,
        (from, end): (u64, u64),
        (places, bytes): (usize, usize),
        mut kept: impl FnMut(&mut Chunks) -> HeldItem,
    ) -> u64 {
        let (mut at, mut known) = (from, 0);
        while at < end {
            let index = self.behind(at);
            let held = self.end_before(index);
            if held > at {
                known += held.min(end) - at;
                at = held;
                continue;
            }
            let until = self.parts.get(index).map_or(end, |next| next.from.min(end));
            if self.has_room(places.min((until - at) as usize), bytes) {
                let kept = kept(&mut self.chunks);
                self.insert(index, at, until, kept);
            }
            at = until;
        }
        known
    }

    /// Keeps a gap, if there is space. `false`: the place is held already.
    pub fn gap(&mut self, place: u64, gap: StreamGap) -> bool {
        let index = self.behind(place);
        if self.end_before(index) > place {
            return false;
        }
        if self.has_room(1, 0) {
            self.insert(index, place, place + 1, HeldItem::Gap(gap));
        }
        true
    }

    /// Whether this much fits; data without space is requested again later.
    fn has_room(&self, places: usize, bytes: usize) -> bool {
        self.places + places <= HELD_MAX && self.chunks.bytes + bytes <= HELD_BYTES_MAX
    }

    fn insert(&mut self, index: usize, from: u64, end: u64, kept: HeldItem) {
        let part = Stretch { from, end, kept };
        self.places += part.places();
        self.parts.insert(index, part);
    }

    /// Takes the first stretch if it begins below a place, and drops stretches wholly before `next`. The caller must
    /// put it back, or mark it done.
    pub fn take(&mut self, next: u64, below: u64) -> Option<Taken> {
        while self.parts.front().is_some_and(|part| part.from < below) {
            let part = self.parts.pop_front()?;
            self.places -= part.places();
            let mut chunk = Vec::new();
            if let HeldItem::Block(block) = &part.kept {
                chunk = self.chunks.lend(block.bytes);
            }
            let taken = Taken { part, chunk };
            if taken.end() > next {
                return Some(taken);
            }
            self.done(taken);
        }
        None
    }

    /// Frees taken data.
    pub fn done(&mut self, taken: Taken) {
        if self.parts.is_empty() {
            self.clear(); // a room without a hole, the usual case, keeps no memory for held data
        } else if let HeldItem::Block(block) = taken.part.kept {
            self.chunks.give_back(block.bytes, taken.chunk);
            self.chunks.forget(block.bytes);
        }
    }

    /// Puts back the rest of a taken stretch.
    pub fn put_back(&mut self, from: u64, taken: Taken) {
        let Stretch { end, kept, .. } = taken.part;
        if let HeldItem::Block(block) = &kept {
            self.chunks.give_back(block.bytes, taken.chunk);
        }
        self.insert(0, from, end, kept);
    }
}

impl Came for Held {
    fn runs(&self, from: u64, below: u64) -> impl Iterator<Item = (u64, u64)> {
        let parts = self.parts.range(self.behind(from).saturating_sub(1)..);
        parts
            .map(|part| (part.from, part.end))
            .skip_while(move |(_, end)| *end <= from)
            .take_while(move |(first, _)| *first < below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::room::{BlockWriter, WHOLE};
    use crate::wire::{GapReason, PublisherId};
    use muster_transport::Writer;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const STREAM: StreamId = StreamId {
        node: 1,
        epoch: 2,
        generation: 3,
    };
    /// Offsets are this much lower than places in the test; the content names the place.
    const AHEAD: u64 = 1_000;

    fn block(first: u64, count: u64) -> Vec<u8> {
        let mut bytes = [0; 4096];
        let mut writer = Writer::new(&mut bytes);
        let mut block = BlockWriter::begin(&mut writer);
        for place in first..first + count {
            let publisher = PublisherId {
                user: place % 3,
                incarnation: 1,
            };
            let message = Message {
                publisher,
                sequence: place,
                flags: WHOLE,
                data: &place.to_le_bytes(),
            };
            assert!(block.push(&mut writer, &message));
        }
        block.finish(&mut writer);
        writer.written()[1..].to_vec()
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Kind {
        Message,
        Gap,
        Passed,
        LeftOut,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Block(u64, u64),
        Gap(u64),
        Passed(u64, u64),
        LeftOut(u64, u64),
        /// Takes the next places in order, at most this many.
        Take(usize),
        /// Continues elsewhere.
        Skip(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u64..60, 1u64..20).prop_map(|(ahead, count)| Step::Block(ahead, count)),
            1 => (0u64..60).prop_map(Step::Gap),
            2 => (0u64..60, 1u64..20).prop_map(|(ahead, count)| Step::Passed(ahead, count)),
            2 => (0u64..60, 1u64..90).prop_map(|(ahead, count)| Step::LeftOut(ahead, count)),
            2 => (1usize..30).prop_map(Step::Take),
            1 => (0u64..40).prop_map(Step::Skip),
        ]
    }

    proptest! {
        /// Output and missing places are the same as if each message were kept separately.
        #[test]
        fn each_place_is_held_once_and_comes_in_order(steps in prop::collection::vec(step(), 0..60)) {
            let (mut held, mut model, mut next, mut most_parts) = (Held::default(), BTreeMap::<u64, Kind>::new(), 1u64, 0);
            for step in steps {
                match step {
                    Step::Block(ahead, count) => {
                        let first = (next + ahead).saturating_sub(10).max(1);
                        let bytes = block(first, count);
                        let came = Block { first, stream: STREAM, offset: first + AHEAD, count: count as u32, born: first, bytes: &bytes[..] };
                        let known = held.block(first.max(next), came);
                        let places = first.max(next)..first + count;
                        prop_assert_eq!(known, places.clone().filter(|place| model.contains_key(place)).count() as u64);
                        places.for_each(|place| { model.entry(place).or_insert(Kind::Message); });
                    }
                    Step::Gap(ahead) => {
                        let gap = StreamGap { stream: STREAM, first: 1, last: 1, reason: GapReason::Slow };
                        prop_assert_eq!(held.gap(next + ahead, gap), !model.contains_key(&(next + ahead)));
                        model.entry(next + ahead).or_insert(Kind::Gap);
                    }
                    Step::Passed(ahead, count) => {
                        let first = (next + ahead).saturating_sub(10).max(1);
                        let passed = Passed { handle: 1, index: first, stream: STREAM, offset: first + AHEAD, count: count as u32 };
                        let places = first.max(next)..first + count;
                        let known = held.passed(first.max(next), passed);
                        prop_assert_eq!(known, places.clone().filter(|place| model.contains_key(place)).count() as u64);
                        places.for_each(|place| { model.entry(place).or_insert(Kind::Passed); });
                    }
                    Step::LeftOut(ahead, count) => {
                        let first = (next + ahead).saturating_sub(10).max(1);
                        let left = LeftOut { handle: 1, index: first, end: first + count, resume: vec![(STREAM, first + count)] };
                        let places = first.max(next)..left.end;
                        let known = held.left_out(first.max(next), &left);
                        prop_assert_eq!(known, places.clone().filter(|place| model.contains_key(place)).count() as u64);
                        places.for_each(|place| { model.entry(place).or_insert(Kind::LeftOut); });
                    }
                    Step::Take(mut most) => while most > 0 {
                        let Some(taken) = held.take(next, next + 1) else {
                            prop_assert!(!model.contains_key(&next));
                            break;
                        };
                        match taken.content() {
                            Content::Gap(_) => {
                                prop_assert_eq!(model.remove(&next), Some(Kind::Gap));
                                (next, most) = (next + 1, most - 1);
                            }
                            Content::Passed(passed) => while next < taken.end() && most > 0 {
                                prop_assert_eq!(passed.from(next).offset, next + AHEAD);
                                prop_assert_eq!(model.remove(&next), Some(Kind::Passed));
                                (next, most) = (next + 1, most - 1);
                            },
                            Content::LeftOut(resume) => {
                                prop_assert_eq!(resume[0].0, STREAM);
                                while next < taken.end() {
                                    prop_assert_eq!(model.remove(&next), Some(Kind::LeftOut));
                                    next += 1;
                                }
                                most -= 1;
                            }
                            Content::Block(block) => for (place, offset, message) in block.messages(next) {
                                if place == taken.end() || most == 0 {
                                    break;
                                }
                                prop_assert_eq!((place, offset, block.born), (next, place + AHEAD, block.first));
                                prop_assert_eq!((message.data, message.sequence), (&place.to_le_bytes()[..], place));
                                prop_assert_eq!(model.remove(&next), Some(Kind::Message));
                                (next, most) = (next + 1, most - 1);
                            }
                        }
                        if next < taken.end() {
                            held.put_back(next, taken);
                        } else {
                            held.done(taken);
                        }
                    },
                    Step::Skip(by) => {
                        next += by;
                        model = model.split_off(&next);
                    }
                }
                let (chunks, parts) = (&held.chunks.all, &held.parts);
                most_parts = parts.len().max(most_parts);
                prop_assert!(chunks.len() <= most_parts + 1);
                prop_assert_eq!(held.bytes(), chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>());
                prop_assert!(held.bytes() <= parts.len().max(1) * CHUNK_MAX);
                for place in next..next + 200 {
                    prop_assert_eq!(held.has(place), model.contains_key(&place));
                }
                let runs = held.runs(next, next + 200).flat_map(|(first, end)| first.max(next)..end);
                prop_assert_eq!(runs.collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
            }
            while held.take(u64::MAX, u64::MAX).is_some() {}
            prop_assert_eq!((held.places(), held.bytes()), (0, 0));
        }
    }
}
