//! Frames of a room's range, built once per turn and copied for each receiver at the same place.
//!
//! Owns the built bytes. Knows neither ring nor frame: the caller builds. Bounded: when full, everything is
//! forgotten.

use std::collections::HashMap;

use muster_transport::{KeyedState, Writer};

/// Maximum bytes of built frames kept.
const BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Segment {
    start: u32,
    len: u16,
    next: u64,
    /// Nothing can be added to the frame.
    whole: bool,
}

/// Built frames by (room, first place).
pub struct Segments {
    /// The last key given to a room.
    named: u32,
    bytes: Vec<u8>,
    index: HashMap<(u32, u64), Segment, KeyedState>,
    last: Option<((u32, u64), Segment)>,
}

/// A builder's description of its frame.
pub struct Built {
    /// The place after the last one in the frame.
    pub next: u64,
    /// The frame ended before the head of the room, for lack of space or another reason.
    pub whole: bool,
}

impl Segments {
    pub fn new(seed: u64) -> Self {
        Segments {
            named: 0,
            bytes: Vec::with_capacity(BYTES),
            index: HashMap::with_hasher(KeyedState::new(seed, !seed)),
            last: None,
        }
    }

    /// A new key for a room: no other room has frames under it, not even a former one.
    pub fn name(&mut self) -> u32 {
        self.named = self.named.wrapping_add(1);
        if self.named == 0 {
            self.clear(); // keys wrap around
        }
        self.named
    }

    /// The frame that starts at `place` of `room`, and the place after it; built within `limit` bytes if necessary.
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

    fn clear(&mut self) {
        self.bytes.clear();
        self.index.clear();
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The frame of a room at place 1, built from `text` if it is not cached; and whether it was built.
    fn get(segments: &mut Segments, room: u32, text: &[u8]) -> (Vec<u8>, bool) {
        let mut built = false;
        let frame = segments.get(room, 1, 2, 100, |writer| {
            built = true;
            writer.put(text);
            Some(Built { next: 2, whole: true })
        });
        (frame.expect("it is built").0.to_vec(), built)
    }

    #[test]
    fn a_new_room_gets_no_frames_of_a_former_one() {
        let mut segments = Segments::new(1);
        let (kept, gone) = (segments.name(), segments.name());
        get(&mut segments, kept, b"kept");
        get(&mut segments, gone, b"gone");
        let new = segments.name();
        assert_eq!(get(&mut segments, new, b"new"), (b"new".to_vec(), true));
        assert_eq!(get(&mut segments, kept, b"built again"), (b"kept".to_vec(), false));
    }

    #[test]
    fn keys_that_wrap_around_find_no_frames() {
        let mut segments = Segments::new(1);
        let old = segments.name();
        get(&mut segments, old, b"old");
        segments.named = u32::MAX;
        segments.name();
        assert_eq!(segments.name(), old);
        assert_eq!(get(&mut segments, old, b"new"), (b"new".to_vec(), true));
    }
}
