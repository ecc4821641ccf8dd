//! A room's recent messages in order: positions in the process's arena.
//!
//! Owns each room's index, and which part of it can be read together. Knows no session, no cursor and no frame. The
//! arena owns the bytes and evicts them. It evicts floods separately, so a room's places form runs, each in one chain
//! of the arena, oldest first.

use std::collections::VecDeque;
use std::ops::Range;

use muster_transport::Micros;

pub use crate::arena::{Arena, Entry, Home};

/// A room stays in the flood chain for this long after a message that exceeded a share.
const FLOOD_HOLD_MS: u32 = 10_000;
/// Maximum number of runs of places, each in one chain. With this many a room stays in the flood chain until older
/// runs are gone.
const RUNS_MAX: usize = 16;
/// A ring longer than this keeps an index of streams: a shorter one is scanned as fast.
const NOTED_FROM: usize = 1_024;
/// Number of places in a group, and in a group of groups.
const GROUPS: [u64; 2] = [64, 4_096];

/// The streams among the places, by groups of places: a bit per stream, shared by streams whose numbers differ by 32.
#[derive(Default)]
struct Streams([Groups; 2]);

#[derive(Default)]
struct Groups {
    first: u64,
    masks: VecDeque<u32>,
}

impl Groups {
    fn note(&mut self, group: u64, bit: u32) {
        if self.masks.is_empty() {
            self.first = group;
        }
        while group < self.first {
            self.masks.push_front(0);
            self.first -= 1;
        }
        let at = (group - self.first) as usize;
        if at >= self.masks.len() {
            self.masks.resize(at + 1, 0);
        }
        self.masks[at] |= bit;
    }

    fn has(&self, group: u64, bit: u32) -> bool {
        let at = group.checked_sub(self.first);
        at.and_then(|at| self.masks.get(at as usize))
            .is_some_and(|mask| mask & bit != 0)
    }

    fn drop_below(&mut self, group: u64) {
        while self.first < group && self.masks.pop_front().is_some() {
            self.first += 1;
        }
    }
}

impl Streams {
    fn note(&mut self, place: u64, stream: u8) {
        for (groups, size) in self.0.iter_mut().zip(GROUPS) {
            groups.note(place / size, 1 << (stream % 32));
        }
    }

    fn drop_below(&mut self, place: u64) {
        for (groups, size) in self.0.iter_mut().zip(GROUPS) {
            groups.drop_below(place / size);
        }
    }

    /// The first place within `places` that may belong to a stream; no place before it does.
    fn next(&self, places: Range<u64>, stream: u8) -> Option<u64> {
        let (mut place, bit) = (places.start, 1 << (stream % 32));
        while place < places.end {
            let mut levels = self.0.iter().zip(GROUPS).rev();
            match levels.find(|(groups, size)| !groups.has(place / size, bit)) {
                Some((_, size)) => place = (place / size + 1) * size,
                None => return Some(place),
            }
        }
        None
    }
}

/// One room's places `first..next`, dense. 88 bytes, and no heap memory while the room is idle.
#[derive(Default)]
pub struct Ring {
    /// Its room and namespace, which its bytes are charged to.
    pub home: Home,
    first: u64,
    positions: VecDeque<u64>,
    /// The first places of all runs except the first. Boxed: most rings have none, and each idle room has a ring.
    #[allow(clippy::box_collection)]
    runs: Option<Box<VecDeque<u64>>>,
    /// Whether the last run is in the flood chain of its namespace's part.
    flood: bool,
    space: u8,
    /// When a message last exceeded a share, in milliseconds.
    beyond_ms: u32,
    /// Whether the places put in front are in the flood chain.
    front_flood: bool,
    /// Kept for a long ring only.
    streams: Option<Box<Streams>>,
    bytes: usize,
    /// How many of the first places were put in front of older ones.
    fronted: usize,
    /// Whether places have been dropped.
    dropped: bool,
}

impl Ring {
    /// An empty ring; its first place will be `first`.
    pub fn new(first: u64) -> Self {
        Ring {
            first,
            ..Ring::default()
        }
    }

    /// An empty ring for the room with this id.
    pub fn of(first: u64, room: u64) -> Self {
        Ring {
            home: Home::of(room),
            ..Ring::new(first)
        }
    }

    /// An entry of this stream has got this place.
    fn note_stream(&mut self, arena: &Arena, place: u64, stream: u8) {
        if let Some(streams) = &mut self.streams {
            streams.note(place, stream);
        } else if self.positions.len() >= NOTED_FROM {
            let mut streams = Box::<Streams>::default();
            for place in self.first..self.next() {
                if let Some(entry) = self.get(arena, place) {
                    streams.note(place, entry.stream);
                }
            }
            self.streams = Some(streams);
        }
    }

    /// The oldest place still held (equals [`Ring::next`] when empty).
    #[inline]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The place that the next entry gets.
    #[inline]
    pub fn next(&self) -> u64 {
        self.first + self.positions.len() as u64
    }

    pub fn len(&self) -> usize {
        self.positions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Bytes of the arena that this room's index covers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Estimated bytes of the entries from `place` on, by their average size.
    pub fn bytes_from(&self, place: u64) -> usize {
        let len = self.positions.len() as u64;
        let from = self.next().saturating_sub(place).min(len);
        (self.bytes as u64 * from).checked_div(len).unwrap_or(0) as usize
    }

    /// Whether the entries from `place` on are more than half of what the room may hold.
    pub fn is_half(&self, arena: &Arena, place: u64) -> bool {
        let messages = self.next().saturating_sub(place) as usize;
        self.bytes_from(place) > arena.room_bytes_max(self.home) / 2
            || messages > arena.room_messages_max(self.home) / 2
    }

    /// Appends an entry and drops the room's oldest entries beyond its limits. Returns its place.
    pub fn push(&mut self, arena: &mut Arena, now: Micros, entry: &Entry<'_>) -> u64 {
        let place = self.next();
        let now_ms = (now / 1_000) as u32;
        let beyond = arena.floods(self.home, entry);
        if beyond {
            self.beyond_ms = now_ms;
        }
        let runs = self.runs.as_ref().map_or(0, |runs| runs.len());
        let holds = now_ms.wrapping_sub(self.beyond_ms) < FLOOD_HOLD_MS || runs + 2 >= RUNS_MAX;
        let flood = beyond || self.flood && holds;
        if (flood, self.home.space) != (self.flood, self.space) {
            (self.flood, self.space) = (flood, self.home.space);
            if self.positions.len() > self.fronted {
                self.runs.get_or_insert_default().push_back(place);
            }
        }
        let position = arena.push(now, self.home, flood, entry);
        self.positions.push_back(position);
        self.note_stream(arena, place, entry.stream);
        self.bytes += Arena::cost(entry.data.len());
        while self.positions.len() > arena.room_messages_max(self.home) {
            arena.counters.arena_beyond_messages += 1;
            self.pop(arena);
        }
        while self.bytes > arena.room_bytes_max(self.home) && self.positions.len() > 1 {
            arena.counters.arena_beyond_bytes += 1;
            self.pop(arena);
        }
        if self.begins_lost(arena) {
            self.trim(arena);
        }
        place
    }

    /// The index of the first place of the second run.
    fn second(&self) -> Option<usize> {
        let second = self.runs.as_ref()?.front()?;
        Some((second - self.first) as usize)
    }

    /// Whether the first place, or the first place of the second run, is overwritten: everything before it is then no
    /// longer read.
    fn begins_lost(&self, arena: &Arena) -> bool {
        let lost = |index: usize| !self.positions.get(index).is_some_and(|position| arena.holds(*position));
        lost(0) || self.second().is_some_and(lost)
    }

    /// Whether entries can be put in front: only while nothing is lost. Otherwise a member at a dropped place would
    /// get wrong entries, or that place twice; and no reader passes overwritten places.
    pub fn takes_history(&self, arena: &Arena) -> bool {
        !self.dropped && self.readable(arena, self.first) == self.first
    }

    /// Puts an entry in front of all others. It is appended to the arena, so it outlives the entries behind it;
    /// reading stops at the first of them that is gone.
    pub fn push_front(&mut self, arena: &mut Arena, now: Micros, entry: &Entry<'_>) {
        if self.fronted == 0 {
            self.front_flood = arena.floods(self.home, entry);
        }
        let position = arena.push(now, self.home, self.front_flood, entry);
        self.first -= 1;
        self.positions.push_front(position);
        self.fronted += 1;
        self.note_stream(arena, self.first, entry.stream);
        self.bytes += Arena::cost(entry.data.len());
    }

    fn pop(&mut self, arena: &Arena) {
        if let Some(position) = self.positions.pop_front() {
            self.first += 1;
            if let Some(streams) = self.streams.as_deref_mut().filter(|_| self.first % GROUPS[0] == 0) {
                streams.drop_below(self.first);
            }
            self.dropped = true;
            self.fronted = self.fronted.saturating_sub(1);
            if let Some(runs) = self.runs.as_deref_mut() {
                if runs.front().is_some_and(|second| *second <= self.first) {
                    runs.pop_front();
                }
                if runs.is_empty() {
                    self.runs = None;
                }
            }
            // An overwritten entry's size is unknown; the average stands for it.
            let average = self.bytes / (self.positions.len() + 1);
            let cost = arena
                .get(position)
                .map_or(average, |entry| Arena::cost(entry.data.len()));
            self.bytes = if self.positions.is_empty() {
                0
            } else {
                self.bytes.saturating_sub(cost)
            };
        }
    }

    /// Forgets overwritten places and those before an overwritten run, and frees the index's memory once it is empty.
    pub fn trim(&mut self, arena: &Arena) {
        while !self.positions.is_empty() && self.begins_lost(arena) {
            self.pop(arena);
        }
        if self.positions.is_empty() {
            self.positions = VecDeque::new();
            self.streams = None;
        }
    }

    /// Forgets every place below `place`.
    pub fn drop_below(&mut self, arena: &Arena, place: u64) {
        while self.first < place && !self.positions.is_empty() {
            self.pop(arena);
        }
    }

    /// The entry at `place`, if it is still held.
    #[inline]
    pub fn get<'a>(&self, arena: &'a Arena, place: u64) -> Option<Entry<'a>> {
        let index = place.checked_sub(self.first)?;
        arena.get(*self.positions.get(usize::try_from(index).ok()?)?)
    }

    /// The first place at or after `from` that is readable together with everything after it.
    pub fn readable(&self, arena: &Arena, from: u64) -> u64 {
        let from = from.max(self.first);
        // Places put in front, youngest first, then runs of appended ones, each oldest first.
        let front = self.fronted.min(self.positions.len());
        let lost = |index: usize| {
            self.positions
                .get(index)
                .is_some_and(|position| !arena.holds(*position))
        };
        let mut high = self.positions.len();
        let later = self.runs.iter().flat_map(|runs| runs.iter().rev());
        let later = later.map(|start| (start - self.first) as usize);
        for start in later.chain(std::iter::once(front)) {
            if high > start && lost(start) {
                let mut low = start;
                while low < high {
                    let middle = low + (high - low) / 2;
                    if lost(middle) {
                        low = middle + 1;
                    } else {
                        high = middle;
                    }
                }
                return from.max(self.first + low as u64);
            }
            high = start;
        }
        match front > 0 && lost(front - 1) {
            true => from.max(self.first + front as u64),
            false => from,
        }
    }

    /// The first place within `places` that has an entry of a stream, and that entry.
    pub fn find_stream<'a>(&self, arena: &'a Arena, places: Range<u64>, stream: u8) -> Option<(u64, Entry<'a>)> {
        let mut places = places.start.max(self.first)..places.end.min(self.next());
        loop {
            if let Some(streams) = &self.streams {
                places.start = streams.next(places.clone(), stream)?;
            }
            let place = places.next()?;
            if let Some(entry) = self.get(arena, place).filter(|entry| entry.stream == stream) {
                return Some((place, entry));
            }
        }
    }

    /// The first place within `places` with an entry of the stream that ends at `offset` or later (a stream's offsets
    /// increase there); without one, a place behind all of its others.
    pub fn find_offset(&self, arena: &Arena, places: Range<u64>, stream: u8, offset: u64) -> u64 {
        let (mut low, mut high) = (places.start.max(self.first), places.end.min(self.next()));
        let end = high;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.find_stream(arena, middle..high, stream) {
                Some((place, entry)) if entry.last() < offset => low = place + 1,
                _ => high = middle,
            }
        }
        self.find_stream(arena, low..end, stream)
            .map_or(low, |(place, _)| place)
    }

    /// How long ago an entry was appended, in whole milliseconds, which wrap after 49 days.
    pub fn age(&self, arena: &Arena, now: Micros, place: u64) -> Option<Micros> {
        let at_ms = self.get(arena, place)?.at_ms;
        Some(Micros::from(((now / 1_000) as u32).wrapping_sub(at_ms)) * 1_000)
    }

    /// The first place that was appended at most `age` ago; history in front does not count, however recently it
    /// came.
    pub fn find_age(&self, arena: &Arena, now: Micros, age: Micros) -> u64 {
        let front = self.fronted.min(self.positions.len()) as u64;
        let (mut low, mut high) = (self.readable(arena, self.first + front), self.next());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.age(arena, now, middle).is_some_and(|of| of <= age) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PublisherId;
    use proptest::prelude::*;

    fn entry(offset: u64, data: &[u8]) -> Entry<'_> {
        Entry {
            offset,
            publisher: PublisherId {
                user: 1,
                incarnation: 2,
            },
            sequence: offset,
            flags: 3,
            gap: false,
            stream: 0,
            at_ms: 0,
            born: 0,
            data,
        }
    }

    proptest! {
        #[test]
        fn the_readable_part_agrees_with_a_full_scan(steps in prop::collection::vec((0u8..5, 0usize..60_000), 1..120), from in 0u64..300) {
            let mut arena = Arena::new(1 << 20);
            let (mut ring, mut other) = (Ring::new(100), Ring::new(1));
            for (what, len) in steps {
                let data = vec![0; len];
                let entry = entry(1, &data);
                match what {
                    0 if ring.first() > 0 => ring.push_front(&mut arena, 0, &entry),
                    1 => ring.trim(&arena),
                    2 => drop(other.push(&mut arena, 0, &entry)),
                    _ => drop(ring.push(&mut arena, 0, &entry)),
                }
                let last_lost = ring.positions.iter().rposition(|position| !arena.holds(*position));
                let from = from.max(ring.first());
                let expected = last_lost.map_or(from, |index| from.max(ring.first() + index as u64 + 1));
                prop_assert_eq!(ring.readable(&arena, from), expected);
            }
        }
    }

    #[test]
    fn an_idle_room_costs_at_most_96_bytes() {
        assert!(std::mem::size_of::<Ring>() <= 96);
    }

    proptest! {
        #[test]
        fn finding_a_stream_agrees_with_a_full_scan(
            steps in prop::collection::vec((0u8..6, 0u8..9, 1usize..400), 1..60),
            from in 0u64..40_000,
            stream in 0u8..9,
        ) {
            let mut arena = Arena::new(1 << 20);
            let mut ring = Ring::new(20_000);
            for (what, stream, times) in steps {
                for _ in 0..times {
                    let entry = Entry { stream, ..entry(1, &[0; 8]) };
                    match what {
                        0 => ring.push_front(&mut arena, 0, &entry),
                        1 => ring.drop_below(&arena, ring.first() + 1),
                        2 => ring.trim(&arena),
                        _ => drop(ring.push(&mut arena, 0, &entry)),
                    }
                }
            }
            let places = from.max(ring.first())..ring.next();
            let has = |place: &u64| ring.get(&arena, *place).is_some_and(|entry| entry.stream == stream);
            let expected = places.clone().find(has);
            prop_assert_eq!(ring.find_stream(&arena, places, stream).map(|(place, _)| place), expected);
        }
    }

    /// Regression: for a rarely used stream, each join and each skip scanned the whole room.
    #[test]
    fn a_sparse_stream_is_found_without_a_full_scan() {
        let mut arena = Arena::new(256 << 20);
        let mut ring = Ring::new(1);
        for place in 1..=400_000 {
            let entry = Entry {
                stream: u8::from(place == 1 || place == 399_999),
                ..entry(place, b"text")
            };
            ring.push(&mut arena, 0, &entry);
        }
        assert_eq!(ring.len(), 400_000);
        arena.looks.set(0);
        let found = ring.find_stream(&arena, 2..ring.next(), 1).map(|(place, _)| place);
        assert_eq!(found, Some(399_999));
        assert!(ring.find_stream(&arena, 2..399_999, 1).is_none());
        assert_eq!(ring.find_offset(&arena, 2..ring.next(), 1, 300_000), 399_999);
        assert_eq!(ring.find_offset(&arena, 1..ring.next(), 1, 300_000), 399_999);
        assert_eq!(ring.find_offset(&arena, 1..ring.next(), 1, 400_000), 400_000);
        let looks = arena.looks.get();
        assert!(looks < 5_000, "{looks} entries");
    }

    #[test]
    fn a_room_holds_at_most_its_share() {
        let mut arena = Arena::new(1 << 20);
        let mut ring = Ring::new(1);
        for offset in 1..=5000 {
            ring.push(&mut arena, 0, &entry(offset, &[0; 100]));
        }
        assert!(ring.bytes() <= arena.room_bytes_max(ring.home));
        assert_eq!(ring.next(), 5001);
        assert!(ring.get(&arena, ring.first()).is_some());
        assert!(ring.get(&arena, ring.first() - 1).is_none());
    }

    /// Regression, seen at a broker: 73 MB/s in one room, or by one user in many rooms, evicted all messages of a
    /// quiet room.
    #[test]
    fn a_flood_in_one_room_or_by_one_user_leaves_a_quiet_rooms_history() {
        let user = |user| Entry {
            publisher: PublisherId { user, incarnation: 1 },
            ..entry(1, &[0; 1_000])
        };
        for (rooms, users) in [(1, 1), (1, 500), (500, 1)] {
            let mut arena = Arena::new(1 << 20);
            let (mut quiet, mut flooded) = (
                Ring::of(1, 9_999 << 48),
                Vec::from_iter((0..rooms).map(|room| Ring::of(1, (room as u64) << 48))),
            );
            for _ in 0..10 {
                quiet.push(&mut arena, 0, &user(1_000));
            }
            for number in 0..10_000 {
                flooded[number % rooms].push(&mut arena, 0, &user((number % users) as u64));
            }
            assert_eq!(quiet.readable(&arena, 1), 1, "{rooms} rooms, {users} users");
            let newest = flooded[9_999 % rooms].next() - 1;
            assert!(flooded[9_999 % rooms].get(&arena, newest).is_some());
        }
    }

    proptest! {
        /// Every place that a ring still claims reads as it was written; evicted rooms forget.
        #[test]
        fn rings_agree_with_plain_lists(writes in prop::collection::vec((0usize..4, 0usize..9000), 1..800)) {
            let mut arena = Arena::new(1 << 20);
            let mut rings: Vec<Ring> = (0..4).map(|_| Ring::new(1)).collect();
            let mut model: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 4];
            for (step, (room, len)) in writes.into_iter().enumerate() {
                let data = vec![step as u8; len];
                let offset = model[room].len() as u64 + 1;
                let place = rings[room].push(&mut arena, step as u64, &entry(offset, &data));
                prop_assert_eq!(place, offset);
                model[room].push(data);
            }
            for (ring, messages) in rings.iter_mut().zip(&model) {
                ring.trim(&arena);
                prop_assert_eq!(ring.next(), messages.len() as u64 + 1);
                for place in ring.first()..ring.next() {
                    let entry = ring.get(&arena, place).expect("held");
                    prop_assert_eq!(entry.offset, place);
                    prop_assert_eq!(entry.data, &messages[place as usize - 1][..]);
                    prop_assert_eq!(ring.find_offset(&arena, 0..u64::MAX, 0, place), place);
                }
                prop_assert!(ring.get(&arena, ring.next()).is_none());
            }
        }
    }
}
