//! What came of a room ahead of a hole: blocks as they came, and gaps.
//!
//! What comes behind a hole waits only for the hole, so of a block nothing is taken apart before its turn: it is kept in one
//! piece of memory, as often as there are holes in between. Knows no reader and no hole.

use std::collections::VecDeque;

use crate::asking::Came;
use crate::wire::room::{BlockMessages, Message};
use crate::wire::{StreamGap, StreamId};

/// Messages, and bytes of blocks, held ahead of a hole.
pub const HELD_MAX: usize = 16_384;
pub const HELD_BYTES_MAX: usize = 4 << 20;
/// Buffers of blocks that have gone, for those that come.
const SPARE_MAX: usize = 64;

/// A block as it came: messages at consecutive places.
#[derive(Clone, Copy)]
pub struct Block<B> {
    /// Place and offset of the first.
    pub first: u64,
    pub stream: StreamId,
    pub offset: u64,
    /// How many there are, all of them well formed.
    pub count: usize,
    pub bytes: B,
}

impl Block<Vec<u8>> {
    /// Place, offset and message of each from a place on.
    pub fn messages(&self, from: u64) -> impl Iterator<Item = (u64, u64, Message<'_>)> {
        let numbers = (self.first..).zip(self.offset..);
        let all = numbers.zip(BlockMessages::of(self.count, &self.bytes));
        all.map(|((place, offset), message)| (place, offset, message))
            .skip_while(move |(place, ..)| *place < from)
    }
}

pub enum Kept {
    Block(Block<Vec<u8>>),
    Gap(StreamGap),
}

impl Kept {
    fn bytes(&self) -> usize {
        match self {
            Kept::Block(block) => block.bytes.len(),
            Kept::Gap(_) => 0,
        }
    }
}

/// What is held from a place on, up to the one before `end`.
pub struct Part {
    from: u64,
    pub end: u64,
    pub kept: Kept,
}

impl Part {
    fn places(&self) -> usize {
        (self.end - self.from) as usize
    }
}

/// All that is held, by place; no two parts have one in common. What comes is mostly behind all that is here, and what goes
/// is before it.
#[derive(Default)]
pub struct Held {
    parts: VecDeque<Part>,
    places: usize,
    bytes: usize,
    /// Emptied buffers. Beside a hole that is always there a block costs no allocation.
    spare: Vec<Vec<u8>>,
}

impl Held {
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Places that are held.
    pub fn places(&self) -> usize {
        self.places
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn clear(&mut self) {
        *self = Held::default();
    }

    pub fn has(&self, place: u64) -> bool {
        self.end_of(place).is_some()
    }

    /// Where the part ends that has a place.
    fn end_of(&self, place: u64) -> Option<u64> {
        let part = self.parts.get(self.behind(place).checked_sub(1)?)?;
        (part.end > place).then_some(part.end)
    }

    /// Which is the first part that begins behind a place.
    fn behind(&self, place: u64) -> usize {
        match self.parts.back() {
            Some(last) if last.from > place => self.parts.partition_point(|part| part.from <= place),
            _ => self.parts.len(),
        }
    }

    /// Keeps what a block brings from a place on, if there is room. Gives how much of it was held already.
    pub fn block(&mut self, from: u64, block: Block<&[u8]>) -> u64 {
        let (mut at, end, mut known) = (from, block.first + block.count as u64, 0);
        while at < end {
            if let Some(until) = self.end_of(at) {
                known += until.min(end) - at;
                at = until;
                continue;
            }
            let until = self.parts.get(self.behind(at)).map_or(end, |next| next.from.min(end));
            if self.has_room((until - at) as usize, block.bytes.len()) {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.extend_from_slice(block.bytes);
                let kept = Kept::Block(Block {
                    first: block.first,
                    stream: block.stream,
                    offset: block.offset,
                    count: block.count,
                    bytes,
                });
                self.place(Part {
                    from: at,
                    end: until,
                    kept,
                });
            }
            at = until;
        }
        known
    }

    /// Keeps a gap, if there is room. `false`: the place is held already.
    pub fn gap(&mut self, place: u64, gap: StreamGap) -> bool {
        let new = !self.has(place);
        if new && self.has_room(1, 0) {
            let kept = Kept::Gap(gap);
            self.place(Part {
                from: place,
                end: place + 1,
                kept,
            });
        }
        new
    }

    /// What finds no room is asked for when its turn comes.
    fn has_room(&self, places: usize, bytes: usize) -> bool {
        self.places + places <= HELD_MAX && self.bytes + bytes <= HELD_BYTES_MAX
    }

    /// What was taken is done with.
    pub fn done(&mut self, part: Part) {
        if self.parts.is_empty() {
            self.spare = Vec::new();
        } else if let Kept::Block(Block { mut bytes, .. }) = part.kept {
            if self.spare.len() < SPARE_MAX {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
    }

    /// Puts back what is left of a part that was taken.
    pub fn put_back(&mut self, from: u64, part: Part) {
        self.place(Part { from, ..part });
    }

    fn place(&mut self, part: Part) {
        self.places += part.places();
        self.bytes += part.kept.bytes();
        self.parts.insert(self.behind(part.from), part);
    }

    /// Takes the first part if it begins below a place, and drops what lies before `next` wholly.
    pub fn take(&mut self, next: u64, below: u64) -> Option<Part> {
        while self.parts.front().is_some_and(|part| part.from < below) {
            let part = self.parts.pop_front()?;
            self.places -= part.places();
            self.bytes -= part.kept.bytes();
            if part.end > next {
                return Some(part);
            }
        }
        None
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
    use crate::codec::Writer;
    use crate::wire::room::{BlockWriter, WHOLE};
    use crate::wire::{GapReason, PublisherId};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const STREAM: StreamId = StreamId {
        node: 1,
        epoch: 2,
        generation: 3,
    };
    /// What is at a place has this offset, and says its place.
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

    #[derive(Clone, Debug)]
    enum Step {
        Block(u64, u64),
        Gap(u64),
        /// Takes what is in turn, so many places at most.
        Take(usize),
        /// Goes on elsewhere.
        Skip(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u64..60, 1u64..20).prop_map(|(ahead, count)| Step::Block(ahead, count)),
            1 => (0u64..60).prop_map(Step::Gap),
            2 => (1usize..30).prop_map(Step::Take),
            1 => (0u64..40).prop_map(Step::Skip),
        ]
    }

    proptest! {
        /// What comes out, and what is missing, is as if each message were kept by itself.
        #[test]
        fn each_place_is_held_once_and_comes_in_its_turn(steps in prop::collection::vec(step(), 0..60)) {
            let (mut held, mut model, mut next) = (Held::default(), BTreeMap::<u64, bool>::new(), 1u64);
            for step in steps {
                match step {
                    Step::Block(ahead, count) => {
                        let first = (next + ahead).saturating_sub(10).max(1);
                        let bytes = block(first, count);
                        let came = Block { first, stream: STREAM, offset: first + AHEAD, count: count as usize, bytes: &bytes[..] };
                        let known = held.block(first.max(next), came);
                        let places = first.max(next)..first + count;
                        prop_assert_eq!(known, places.clone().filter(|place| model.contains_key(place)).count() as u64);
                        places.for_each(|place| { model.entry(place).or_insert(true); });
                    }
                    Step::Gap(ahead) => {
                        let gap = StreamGap { stream: STREAM, first: 1, last: 1, reason: GapReason::Slow };
                        prop_assert_eq!(held.gap(next + ahead, gap), !model.contains_key(&(next + ahead)));
                        model.entry(next + ahead).or_insert(false);
                    }
                    Step::Take(mut most) => while most > 0 {
                        let Some(part) = held.take(next, next + 1) else {
                            prop_assert!(!model.contains_key(&next));
                            break;
                        };
                        match &part.kept {
                            Kept::Gap(_) => {
                                prop_assert_eq!(model.remove(&next), Some(false));
                                (next, most) = (next + 1, most - 1);
                            }
                            Kept::Block(block) => for (place, offset, message) in block.messages(next) {
                                if place == part.end || most == 0 {
                                    break;
                                }
                                prop_assert_eq!((place, offset), (next, place + AHEAD));
                                prop_assert_eq!((message.data, message.sequence), (&place.to_le_bytes()[..], place));
                                prop_assert_eq!(model.remove(&next), Some(true));
                                (next, most) = (next + 1, most - 1);
                            }
                        }
                        if next < part.end {
                            held.put_back(next, part);
                        } else {
                            held.done(part);
                        }
                    },
                    Step::Skip(by) => {
                        next += by;
                        model = model.split_off(&next);
                    }
                }
                for place in next..next + 100 {
                    prop_assert_eq!(held.has(place), model.contains_key(&place));
                }
                let runs = held.runs(next, next + 100).flat_map(|(first, end)| first.max(next)..end);
                prop_assert_eq!(runs.collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
            }
            while held.take(u64::MAX, u64::MAX).is_some() {}
            prop_assert_eq!((held.places(), held.bytes()), (0, 0));
        }
    }
}
