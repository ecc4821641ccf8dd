//! Frames of a room's range, built once per turn and copied for each receiver that stands at the same place.
//!
//! Owns the built bytes. Knows neither ring nor frame: the caller builds. Bounded: when full, everything is forgotten.

use std::collections::HashMap;

use crate::codec::Writer;
use crate::hash::KeyedState;

/// Bytes of built frames that are kept.
const BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Segment {
    start: u32,
    len: u16,
    next: u64,
    /// Nothing can be added to it any more.
    whole: bool,
}

/// Built frames by (room, first place).
pub struct Segments {
    bytes: Vec<u8>,
    index: HashMap<(u32, u64), Segment, KeyedState>,
    last: Option<((u32, u64), Segment)>,
}

/// What a builder says of the frame that it wrote.
pub struct Built {
    /// The place after the last one in the frame.
    pub next: u64,
    /// The frame ended for another reason than the head of the room.
    pub whole: bool,
}

impl Segments {
    pub fn new(seed: u64) -> Self {
        Segments {
            bytes: Vec::with_capacity(BYTES),
            index: HashMap::with_hasher(KeyedState::new(seed, !seed)),
            last: None,
        }
    }

    /// The frame that starts at `place` of `room`, and the place after it; built of at most `limit` bytes if need be.
    #[inline]
    pub fn get(
        &mut self,
        room: u32,
        place: u64,
        head: u64,
        limit: usize,
        build: impl FnOnce(&mut Writer<'_>) -> Option<Built>,
    ) -> Option<(&[u8], u64)> {
        let key = (room, place);
        let known = match self.last {
            Some((last, segment)) if last == key => Some(segment),
            _ => self.index.get(&key).copied(),
        };
        let segment = match known {
            Some(segment) if (segment.whole || segment.next >= head) && usize::from(segment.len) <= limit => segment,
            _ => self.build(key, limit, build)?,
        };
        self.last = Some((key, segment));
        let start = segment.start as usize;
        Some((&self.bytes[start..start + usize::from(segment.len)], segment.next))
    }

    fn build(
        &mut self,
        key: (u32, u64),
        limit: usize,
        build: impl FnOnce(&mut Writer<'_>) -> Option<Built>,
    ) -> Option<Segment> {
        if self.bytes.len() + limit > BYTES {
            self.clear();
        }
        let start = self.bytes.len();
        self.bytes.resize(start + limit, 0);
        let mut writer = Writer::new(&mut self.bytes[start..]);
        let built = build(&mut writer);
        let len = writer.len();
        self.bytes.truncate(start + len);
        let built = built?;
        let segment = Segment {
            start: start as u32,
            len: len as u16,
            next: built.next,
            whole: built.whole,
        };
        self.index.insert(key, segment);
        Some(segment)
    }

    /// Forgets everything: a room's number was given to another room.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.index.clear();
        self.last = None;
    }
}
