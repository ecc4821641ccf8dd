//! Timers: one deadline per key, in ticks of 1 ms.
//!
//! Owns: [`Wheel`]. Must not know: what a key stands for, or any clock (time is passed in with every call).
//!
//! The wheel has two parts. A *ring* of 2,048 slots of one tick holds the current block of 1,024 ticks and the next
//! one, so every deadline of the next second is in its exact tick. Above it, eight levels of 64 slots hold all later
//! blocks (64^8 blocks outlast the 64-bit microsecond clock, so nothing is ever clamped); the keys of a level's slot
//! move down when the ring reaches it. Slots are circular lists threaded through one array of 16-byte nodes, one per
//! key: a reschedule unlinks and relinks in place, nothing stale is left behind and memory is bounded by the largest
//! key. Bitmaps of the occupied slots let an advance skip empty ones, so a stall of days costs no more than the keys
//! that fell due in it.

use muster_ahead::fetch;

use crate::machine::Micros;

/// Microseconds of a tick.
pub const TICK: Micros = 1_000;

/// Ticks of a block, as a power of two.
const BLOCK_BITS: u32 = 10;
/// Slots of the ring: two blocks.
const RING: usize = 2 << BLOCK_BITS;
const RING_WORDS: usize = RING / 64;
/// Levels over the ring, each of 64 slots.
const LEVELS: usize = 8;
const LEVEL_BITS: u32 = 6;
/// The list of keys that are due and not yet popped.
const DUE: u32 = (RING + LEVELS * 64) as u32;
/// Nodes below this index are list heads; the others are keys.
const FIRST_KEY: u32 = DUE + 1;

/// Links of a key within the list of its slot; a node that is in no list points at itself.
#[derive(Clone, Copy)]
struct Link {
    tick: u64,
    prev: u32,
    next: u32,
}

/// Deadlines by key. Keys are meant to be dense (indices into a slab): the table grows to the largest one used.
pub struct Wheel {
    /// The first tick that has not passed yet.
    tick: u64,
    live: usize,
    nodes: Vec<Link>,
    /// One bit per ring slot that is not empty, and one per word of those bits that is not 0.
    ring: [u64; RING_WORDS],
    ring_words: u32,
    levels: [u64; LEVELS],
}

impl Default for Wheel {
    fn default() -> Self {
        Self::new()
    }
}

impl Wheel {
    pub fn new() -> Self {
        let nodes = (0..FIRST_KEY)
            .map(|index| Link {
                tick: 0,
                prev: index,
                next: index,
            })
            .collect();
        Wheel {
            tick: 0,
            live: 0,
            nodes,
            ring: [0; RING_WORDS],
            ring_words: 0,
            levels: [0; LEVELS],
        }
    }

    /// Sets the only deadline of `key`, replacing an earlier one. A time in the past means the next tick: a key never
    /// comes up twice during a round of [`Wheel::pop`], so a round always ends.
    pub fn schedule(&mut self, key: u32, at: Micros) {
        assert!(key < u32::MAX - FIRST_KEY, "keys are slab indices");
        let index = FIRST_KEY + key;
        if index as usize >= self.nodes.len() {
            let from = self.nodes.len() as u32;
            // Grows by at least an eighth: doubling would leave half of a large table empty.
            let more = (index + 1 - from).max(from / 8);
            if index as usize >= self.nodes.capacity() {
                self.nodes.reserve_exact(more as usize);
            }
            self.nodes.extend((from..=index).map(|index| Link {
                tick: 0,
                prev: index,
                next: index,
            }));
        }
        self.unlink(index);
        // Rounded up: a deadline fires up to a tick late, never early.
        let tick = at.div_ceil(TICK).max(self.tick);
        self.nodes[index as usize].tick = tick;
        self.place(index);
    }

    /// Prefetches the memory that [`Wheel::schedule`] will need.
    #[inline]
    pub fn fetch(&self, key: u32) {
        if let Some(node) = self.nodes.get(FIRST_KEY.saturating_add(key) as usize) {
            fetch(node);
        }
    }

    /// Forgets the deadline of `key`, if it has one.
    pub fn cancel(&mut self, key: u32) {
        let index = FIRST_KEY.saturating_add(key);
        if (index as usize) < self.nodes.len() {
            self.unlink(index);
        }
    }

    /// The deadline of `key`, rounded to its tick, if it has one.
    pub fn deadline(&self, key: u32) -> Option<Micros> {
        let index = FIRST_KEY.checked_add(key)?;
        let node = self.nodes.get(index as usize)?;
        (node.next != index).then(|| node.tick.saturating_mul(TICK))
    }

    /// Removes and returns one key whose deadline is at or before `now`; call until `None`. Keys come in the order of
    /// their ticks, within a tick mostly in the order of scheduling.
    pub fn pop(&mut self, now: Micros) -> Option<u32> {
        let target = now / TICK;
        if self.tick <= target {
            self.advance(target);
        }
        let index = self.nodes[DUE as usize].next;
        if index == DUE {
            return None;
        }
        self.unlink(index);
        Some(index - FIRST_KEY)
    }

    /// No key is due before this. It is the exact tick for deadlines within a second of the last pop, otherwise a
    /// lower bound at which a pop will refine it; a time in the past if keys wait to be popped.
    pub fn next(&self) -> Option<Micros> {
        let tick = if self.nodes[DUE as usize].next != DUE {
            self.tick.saturating_sub(1)
        } else if let Some(tick) = self.first_in_ring() {
            tick
        } else {
            self.first_above()? << BLOCK_BITS
        };
        Some(tick.saturating_mul(TICK))
    }

    /// Keys that have a deadline.
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The last block that the ring holds.
    fn horizon(&self) -> u64 {
        (self.tick >> BLOCK_BITS) + 1
    }

    /// Moves every key of the ticks up to `target` to the due list.
    fn advance(&mut self, target: u64) {
        while self.tick <= target {
            let block = self.tick >> BLOCK_BITS;
            let stop = target.min(((block + 1) << BLOCK_BITS) - 1);
            while let Some(tick) = self.first_in_ring().filter(|&tick| tick <= stop) {
                self.make_due(tick as usize & (RING - 1));
            }
            self.tick = stop + 1;
            if self.tick >> BLOCK_BITS == block {
                return;
            }
            // A new block. If the ring is empty, all blocks up to the target can be skipped, or up to the one before
            // the next occupied block.
            if self.ring_words == 0 {
                let occupied = self.first_above().map_or(u64::MAX, |above| above - 1);
                let next = occupied.min(target >> BLOCK_BITS).max(block + 1);
                self.tick = self.tick.max(next << BLOCK_BITS);
            }
            self.deal();
        }
    }

    /// Moves the keys of level slots that contain the horizon down, the highest level first.
    fn deal(&mut self) {
        let horizon = self.horizon();
        for level in (0..LEVELS).rev() {
            let slot = (horizon >> (LEVEL_BITS * level as u32)) as usize & 63;
            if self.levels[level] >> slot & 1 == 1 {
                let head = (RING + level * 64 + slot) as u32;
                loop {
                    let index = self.nodes[head as usize].next;
                    if index == head {
                        break;
                    }
                    self.unlink(index);
                    self.place(index);
                }
            }
        }
    }

    /// Appends the whole list of a ring slot to the due list.
    fn make_due(&mut self, slot: usize) {
        let Link {
            prev: last,
            next: first,
            ..
        } = self.nodes[slot];
        let end = self.nodes[DUE as usize].prev;
        self.nodes[end as usize].next = first;
        self.nodes[first as usize].prev = end;
        self.nodes[last as usize].next = DUE;
        self.nodes[DUE as usize].prev = last;
        self.nodes[slot].prev = slot as u32;
        self.nodes[slot].next = slot as u32;
        self.mark_empty(slot as u32);
    }

    /// Links an unlinked node into the list that its tick belongs to.
    fn place(&mut self, index: u32) {
        let tick = self.nodes[index as usize].tick;
        let (block, horizon) = (tick >> BLOCK_BITS, self.horizon());
        let head = if block <= horizon {
            let slot = tick as usize & (RING - 1);
            self.ring[slot / 64] |= 1 << (slot % 64);
            self.ring_words |= 1 << (slot / 64);
            slot
        } else {
            // The level of the highest digit in which block and horizon differ: all its occupied slots lie ahead.
            let level = ((block ^ horizon).ilog2() / LEVEL_BITS) as usize;
            let slot = (block >> (LEVEL_BITS * level as u32)) as usize & 63;
            self.levels[level] |= 1 << slot;
            RING + level * 64 + slot
        };
        let last = self.nodes[head].prev;
        self.nodes[index as usize].prev = last;
        self.nodes[index as usize].next = head as u32;
        self.nodes[last as usize].next = index;
        self.nodes[head].prev = index;
        self.live += 1;
    }

    /// Takes a node out of its list, if it is in one.
    fn unlink(&mut self, index: u32) {
        let Link { prev, next, .. } = self.nodes[index as usize];
        if next == index {
            return;
        }
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
        self.nodes[index as usize].prev = index;
        self.nodes[index as usize].next = index;
        self.live -= 1;
        if prev == next {
            self.mark_empty(prev);
        }
    }

    /// Clears the bit of a slot whose list has become empty.
    fn mark_empty(&mut self, head: u32) {
        let head = head as usize;
        if head < RING {
            self.ring[head / 64] &= !(1 << (head % 64));
            if self.ring[head / 64] == 0 {
                self.ring_words &= !(1 << (head / 64));
            }
        } else if head < DUE as usize {
            self.levels[(head - RING) / 64] &= !(1 << (head % 64));
        }
    }

    /// The earliest tick in the ring that holds a key.
    fn first_in_ring(&self) -> Option<u64> {
        if self.ring_words == 0 {
            return None;
        }
        // The ring's order starts at the slot of the current tick: the rest of its word, then word by word, and last
        // the part of its word that lies a round ahead.
        let start = self.tick as usize & (RING - 1);
        let (word, bit) = (start / 64, start % 64);
        let here = self.ring[word] & (u64::MAX << bit);
        let slot = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else {
            let ahead = self.ring_words.rotate_right(word as u32 + 1).trailing_zeros() as usize;
            let other = (word + 1 + ahead) % RING_WORDS;
            other * 64 + self.ring[other].trailing_zeros() as usize
        };
        Some(self.tick + (slot.wrapping_sub(start) & (RING - 1)) as u64)
    }

    /// The first block of the earliest level slot that holds a key.
    fn first_above(&self) -> Option<u64> {
        let horizon = self.horizon();
        let level = (0..LEVELS).find(|&level| self.levels[level] != 0)?;
        let shift = LEVEL_BITS * level as u32;
        let slot = u64::from(self.levels[level].trailing_zeros());
        Some((((horizon >> shift) & !63) | slot) << shift)
    }
}

const _: () = assert!(RING_WORDS == 32, "one u32 says which words of the ring hold anything");
// A head's bit within its level is its index modulo 64.
const _: () = assert!(RING % 64 == 0);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A map from key to tick; keys are due at ticks that are not later than now.
    #[derive(Default)]
    struct Model {
        deadlines: BTreeMap<u32, u64>,
        tick: u64,
    }

    impl Model {
        fn schedule(&mut self, key: u32, at: Micros) {
            self.deadlines.insert(key, at.div_ceil(TICK).max(self.tick));
        }

        fn expire(&mut self, now: Micros) -> Vec<(u64, u32)> {
            let target = now / TICK;
            self.tick = self.tick.max(target + 1);
            let mut due: Vec<_> = self
                .deadlines
                .iter()
                .filter(|(_, &tick)| tick <= target)
                .map(|(&key, &tick)| (tick, key))
                .collect();
            due.sort_unstable();
            for (_, key) in &due {
                self.deadlines.remove(key);
            }
            due
        }

        fn earliest(&self) -> Option<Micros> {
            self.deadlines.values().min().map(|tick| tick * TICK)
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Schedule(u32, Micros),
        Cancel(u32),
        Pass(Micros),
        PassToNext,
    }

    fn span() -> impl Strategy<Value = Micros> {
        prop_oneof![
            0..3_000u64,
            0..2_000_000u64,
            0..200_000_000u64,
            0..100_000_000_000_000u64,
            Just(1_024_000u64)
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..40u32, span()).prop_map(|(key, after)| Step::Schedule(key, after)),
            1 => (0..44u32).prop_map(Step::Cancel),
            3 => span().prop_map(Step::Pass),
            3 => Just(Step::PassToNext),
        ]
    }

    proptest! {
        #[test]
        fn every_key_comes_due_in_its_tick_and_never_early(
            start in prop_oneof![Just(0u64), Just(1_722_000_000_000_000u64), 0..1u64 << 50],
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut wheel = Wheel::new();
            let mut model = Model::default();
            let mut now = start;
            for step in steps {
                match step {
                    Step::Schedule(key, after) => {
                        // Sometimes in the past, to cover that case too.
                        let at = (now + after).saturating_sub(500);
                        wheel.schedule(key, at);
                        model.schedule(key, at);
                    }
                    Step::Cancel(key) => {
                        wheel.cancel(key);
                        model.deadlines.remove(&key);
                    }
                    Step::Pass(span) => now += span,
                    Step::PassToNext => now = wheel.next().unwrap_or(now).max(now),
                }
                let expected = model.expire(now);
                let mut got = Vec::new();
                let mut last = 0;
                for (tick, _) in &expected {
                    let key = wheel.pop(now).expect("a due key");
                    let found = expected.iter().find(|(_, other)| *other == key).expect("only due keys");
                    prop_assert!(found.0 >= last, "in the order of ticks");
                    prop_assert_eq!(*tick, found.0);
                    last = found.0;
                    got.push(*found);
                }
                prop_assert_eq!(wheel.pop(now), None);
                got.sort_unstable();
                prop_assert_eq!(got, expected);
                prop_assert_eq!(wheel.len(), model.deadlines.len());
                for key in 0..44 {
                    prop_assert_eq!(wheel.deadline(key), model.deadlines.get(&key).map(|tick| tick * TICK));
                }
                match (wheel.next(), model.earliest()) {
                    (None, None) => {}
                    (Some(next), Some(earliest)) => {
                        prop_assert!(next <= earliest);
                        prop_assert!(next > now, "a bound in the past would not let anyone sleep");
                        prop_assert!(next == earliest || earliest > now + 1_000_000, "exact within a second");
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }

    #[test]
    fn a_key_rescheduled_to_now_within_a_round_waits_for_the_next_tick() {
        let mut wheel = Wheel::new();
        wheel.schedule(7, 10_000);
        assert_eq!(wheel.pop(10_000), Some(7));
        wheel.schedule(7, 10_000);
        assert_eq!(wheel.pop(10_000), None);
        assert_eq!(wheel.next(), Some(11_000));
        assert_eq!(wheel.pop(10_999), None);
        assert_eq!(wheel.pop(11_000), Some(7));
    }

    #[test]
    fn a_due_key_can_still_be_cancelled_or_moved() {
        let mut wheel = Wheel::new();
        for key in 0..3 {
            wheel.schedule(key, 5_000);
        }
        assert_eq!(wheel.pop(5_000), Some(0));
        wheel.cancel(1);
        wheel.schedule(2, 6_000);
        assert_eq!(wheel.pop(5_999), None);
        assert_eq!(wheel.pop(6_000), Some(2));
        assert!(wheel.is_empty());
    }

    #[test]
    fn the_last_microsecond_is_a_deadline_like_any_other() {
        let mut wheel = Wheel::new();
        wheel.schedule(1, Micros::MAX - 999);
        wheel.schedule(2, Micros::MAX);
        assert_eq!(wheel.pop(Micros::MAX - 5_000_000), None);
        assert!(wheel.next().is_some());
        // Rounding up puts the last part of a tick beyond the end of time, so such a deadline never fires.
        assert_eq!(wheel.pop(Micros::MAX), Some(1));
        assert_eq!(wheel.pop(Micros::MAX), None);
        assert_eq!(wheel.len(), 1);
    }

    #[test]
    #[ignore = "a measurement: run it with --release --ignored --nocapture"]
    fn cost_of_an_insert_and_of_an_idle_tick() {
        let mut wheel = Wheel::new();
        let keys = 100_000u32;
        for key in 0..keys {
            wheel.schedule(key, 3_600_000_000);
        }
        let mut seed = 1u64;
        let rounds = 2_000_000u32;
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            wheel.schedule((seed >> 33) as u32 % keys, 2_000_000_000 + (seed >> 20) % 60_000_000);
        }
        println!("insert {} ns", start.elapsed().as_nanos() / u128::from(rounds));
        let start = std::time::Instant::now();
        for tick in 0..1_900_000 {
            assert_eq!(wheel.pop(tick * TICK), None);
        }
        println!("idle tick {} ns", start.elapsed().as_nanos() / 1_900_000);
    }
}
