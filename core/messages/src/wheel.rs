//! Deadlines of messages in ticks of 1 ms, with bounded work per tick.
//!
//! Owns: [`Wheel`]. Must not know: messages, files, or any clock (time is passed in with every call).
//!
//! The wheel is a *ring* of 2,048 slots of one tick, which holds the current block of 1,024 ticks and the next one,
//! below six levels of 128 slots. A slot of level 0 is a block; a slot of level k + 1 is 64 slots of level k. Each
//! level holds its current group of 64 slots and the next group.
//!
//! An ordinary hierarchical wheel moves a whole slot down when it is reached, so one tick may have to move a million
//! entries. Here the *next* slot of each level moves down during the current one, in proportion to the time that has
//! passed. When its time comes, it is empty. After a jump of the clock the rest moves in bounded steps.
//!
//! Slots are doubly linked lists through one array of 32-byte nodes: insert, cancel and move are O(1), and memory is
//! 32 to 40 bytes per entry at the highest number of entries ever live at once, plus 70 KiB.

/// Milliseconds of the clock in which due times are given.
pub type Millis = u64;

/// Upper bound of due times, exclusive: the year 4199 of the Unix clock. The top level covers all of it.
pub const DUE_MAX: Millis = 1 << 46;

const BLOCK_BITS: u32 = 10;
const RING: usize = 2 << BLOCK_BITS;
const RING_WORDS: usize = RING / 64;
const LEVELS: usize = 6;
const LEVEL_BITS: u32 = 6;
const LEVEL_SLOTS: usize = 2 << LEVEL_BITS;
const SLOTS: usize = RING + LEVELS * LEVEL_SLOTS;
const NONE: u32 = u32::MAX;
/// Minimum capacity for nodes. It grows by a quarter: doubling would cost up to 64 bytes per entry.
const NODES_MIN: usize = 1_024;
/// The slot of nodes in the free list.
const FREE: u16 = u16::MAX;

/// Identifies one entry of the wheel until it fires or is cancelled; after that it is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    index: u32,
    life: u32,
}

/// An entry that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    pub due: Millis,
    pub key: u64,
    pub token: Token,
}

/// Whether a call of [`Wheel::advance`] finished its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All entries due by `now` have been returned.
    Current,
    /// The budget ran out first: call again with the same `now`.
    More,
}

#[derive(Clone, Copy)]
struct Node {
    due: Millis,
    key: u64,
    prev: u32,
    next: u32,
    /// Odd while the node is in use; a token contains the value of its entry's life.
    life: u32,
    slot: u16,
}

#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
    len: u32,
}

/// Entries by due time. An entry is a 64-bit key that the wheel does not interpret.
pub struct Wheel {
    /// The current tick: the greatest `now` that was advanced to, or less while work is left.
    tick: Millis,
    len: usize,
    nodes: Vec<Node>,
    free: u32,
    slots: Vec<Slot>,
    /// One bit per ring slot that is not empty.
    ring: [u64; RING_WORDS],
    /// One bit per slot of a level that is not empty.
    levels: [u128; LEVELS],
}

impl Wheel {
    /// A wheel whose clock is at `now`.
    pub fn new(now: Millis) -> Self {
        assert!(now < DUE_MAX, "the clock lies below DUE_MAX");
        let empty = Slot {
            head: NONE,
            tail: NONE,
            len: 0,
        };
        Wheel {
            tick: now,
            len: 0,
            nodes: Vec::new(),
            free: NONE,
            slots: vec![empty; SLOTS],
            ring: [0; RING_WORDS],
            levels: [0; LEVELS],
        }
    }

    /// Reserves space for `entries` without a reallocation.
    pub fn with_capacity(now: Millis, entries: usize) -> Self {
        let mut wheel = Self::new(now);
        wheel.nodes.reserve_exact(entries);
        wheel
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory in use.
    pub fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + SLOTS * size_of::<Slot>() + size_of::<Self>()
    }

    /// Adds an entry. One that is already due fires at the next [`Wheel::advance`], after earlier ones of that kind.
    pub fn insert(&mut self, due: Millis, key: u64) -> Token {
        assert!(due < DUE_MAX, "a due time lies below DUE_MAX");
        let index = if self.free == NONE {
            let index = u32::try_from(self.nodes.len()).ok().filter(|index| *index != NONE);
            let index = index.expect("a wheel holds less than 2^32 entries");
            if self.nodes.len() == self.nodes.capacity() {
                self.nodes.reserve_exact(NODES_MIN.max(self.nodes.len() / 4));
            }
            self.nodes.push(Node {
                due,
                key,
                prev: NONE,
                next: NONE,
                life: 1,
                slot: FREE,
            });
            index
        } else {
            let index = self.free;
            let node = &mut self.nodes[index as usize];
            self.free = node.next;
            node.due = due;
            node.key = key;
            node.life = node.life.wrapping_add(1);
            index
        };
        self.len += 1;
        self.place(index);
        Token {
            index,
            life: self.nodes[index as usize].life,
        }
    }

    /// Removes an entry if `token` is still valid; returns its due time and key.
    pub fn cancel(&mut self, token: Token) -> Option<(Millis, u64)> {
        let node = *self.live(token)?;
        self.unlink(token.index);
        self.release(token.index);
        Some((node.due, node.key))
    }

    /// Changes the due time of an entry; its token stays. `false` if `token` is no longer valid.
    pub fn reschedule(&mut self, token: Token, due: Millis) -> bool {
        assert!(due < DUE_MAX, "a due time lies below DUE_MAX");
        if self.live(token).is_none() {
            return false;
        }
        self.unlink(token.index);
        self.nodes[token.index as usize].due = due;
        self.place(token.index);
        true
    }

    /// The due time of an entry, if `token` is still valid.
    pub fn due(&self, token: Token) -> Option<Millis> {
        self.live(token).map(|node| node.due)
    }

    /// Appends the entries due by `now` to `out`, in the order of their ticks. Entries fired and entries moved to
    /// lower levels each cost one of `budget` (at least 1); so a call takes at most about `budget` * 100 ns.
    ///
    /// A clock that went back fires nothing and undoes nothing.
    pub fn advance(&mut self, now: Millis, budget: usize, out: &mut Vec<Fired>) -> Progress {
        assert!(now < DUE_MAX, "the clock lies below DUE_MAX");
        let mut left = budget.max(1);
        loop {
            if !self.settle(&mut left) {
                return Progress::More;
            }
            // The current tick fires first: entries that were overdue are there.
            if self.tick <= now && !self.fire(&mut left, out) {
                return Progress::More;
            }
            if self.tick >= now {
                return Progress::Current;
            }
            let next = self.next_stop(now);
            self.deal_ahead(next, &mut left);
            self.tick = next;
        }
    }

    /// A time before which nothing falls due: exact within the next second, otherwise the start of the earliest slot
    /// with an entry. `None` for an empty wheel.
    pub fn next_due(&self) -> Option<Millis> {
        if self.len == 0 {
            return None;
        }
        let mut earliest = self.next_in_ring(self.tick).unwrap_or(Millis::MAX);
        for level in 0..LEVELS {
            if let Some(start) = self.next_in_level(level) {
                earliest = earliest.min(start.max(self.tick));
            }
        }
        Some(earliest)
    }

    fn live(&self, token: Token) -> Option<&Node> {
        let node = self.nodes.get(token.index as usize)?;
        (node.life == token.life && node.life & 1 == 1).then_some(node)
    }

    fn release(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.life = node.life.wrapping_add(1);
        node.next = self.free;
        self.free = index;
        self.len -= 1;
    }

    /// Links a node into the lowest slot that covers its due time.
    fn place(&mut self, index: u32) {
        let due = self.nodes[index as usize].due.max(self.tick);
        let slot = if due >> BLOCK_BITS <= (self.tick >> BLOCK_BITS) + 1 {
            let slot = due as usize % RING;
            self.ring[slot / 64] |= 1 << (slot % 64);
            slot
        } else {
            // A level fits if the due time is in its current group or in the next one.
            let mut level = 0;
            while due >> group_bits(level) > (self.tick >> group_bits(level)) + 1 {
                level += 1;
            }
            let slot = (due >> slot_bits(level)) as usize % LEVEL_SLOTS;
            self.levels[level] |= 1 << slot;
            RING + level * LEVEL_SLOTS + slot
        };
        let list = &mut self.slots[slot];
        let tail = std::mem::replace(&mut list.tail, index);
        list.len += 1;
        if tail == NONE {
            list.head = index;
        } else {
            self.nodes[tail as usize].next = index;
        }
        let node = &mut self.nodes[index as usize];
        node.prev = tail;
        node.next = NONE;
        node.slot = slot as u16;
    }

    fn unlink(&mut self, index: u32) {
        let Node { prev, next, slot, .. } = self.nodes[index as usize];
        let slot = slot as usize;
        if prev == NONE {
            self.slots[slot].head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next == NONE {
            self.slots[slot].tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
        self.slots[slot].len -= 1;
        if self.slots[slot].len == 0 {
            match slot.checked_sub(RING) {
                None => self.ring[slot / 64] &= !(1 << (slot % 64)),
                Some(above) => self.levels[above / LEVEL_SLOTS] &= !(1 << (above % LEVEL_SLOTS)),
            }
        }
    }

    /// Moves down what is left in the slots of the current tick, from the top level. `false` if the budget ran out.
    fn settle(&mut self, left: &mut usize) -> bool {
        for level in (0..LEVELS).rev() {
            let slot = (self.tick >> slot_bits(level)) as usize % LEVEL_SLOTS;
            if self.levels[level] & (1 << slot) != 0 {
                let slot = RING + level * LEVEL_SLOTS + slot;
                let count = self.slots[slot].len as usize;
                if !self.deal(slot, count, left) {
                    return false;
                }
            }
        }
        true
    }

    /// Before time passes from the current tick to `next`, moves down that share of each level's next slot, within
    /// the budget: [`Wheel::settle`] does the rest.
    fn deal_ahead(&mut self, next: Millis, left: &mut usize) {
        for level in (0..LEVELS).rev() {
            let span = slot_bits(level);
            let slot = ((self.tick >> span) + 1) as usize % LEVEL_SLOTS;
            if self.levels[level] & (1 << slot) == 0 {
                continue;
            }
            let slot = RING + level * LEVEL_SLOTS + slot;
            // The slot is occupied, so `next` is at its start or before: 0 < passed <= remaining < 2^41, and the
            // product stays below 2^73.
            let waiting = u128::from(self.slots[slot].len);
            let passed = u128::from(next - self.tick);
            let remaining = u128::from((1 << span) - (self.tick & ((1 << span) - 1)));
            let share = (waiting * passed).div_ceil(remaining) as usize;
            self.deal(slot, share, left);
        }
    }

    fn deal(&mut self, slot: usize, count: usize, left: &mut usize) -> bool {
        for _ in 0..count {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let index = self.slots[slot].head;
            self.unlink(index);
            self.place(index);
        }
        true
    }

    /// Fires the current tick. `false` if the budget ran out.
    fn fire(&mut self, left: &mut usize, out: &mut Vec<Fired>) -> bool {
        let slot = self.tick as usize % RING;
        while self.slots[slot].head != NONE {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            let index = self.slots[slot].head;
            let Node { due, key, life, .. } = self.nodes[index as usize];
            self.unlink(index);
            self.release(index);
            out.push(Fired {
                due,
                key,
                token: Token { index, life },
            });
        }
        true
    }

    /// The next tick to process, at most `now`: one with entries, or the end of a slot of a level in use.
    fn next_stop(&self, now: Millis) -> Millis {
        if self.len == 0 {
            return now;
        }
        let mut stop = now;
        if let Some(tick) = self.next_in_ring(self.tick + 1) {
            stop = stop.min(tick);
        }
        for level in 0..LEVELS {
            if let Some(start) = self.next_in_level(level) {
                stop = stop.min(start);
            }
        }
        stop.max(self.tick + 1)
    }

    /// The first tick from `from` on that has entries in the ring.
    fn next_in_ring(&self, from: Millis) -> Option<Millis> {
        let end = ((self.tick >> BLOCK_BITS) + 2) << BLOCK_BITS;
        let mut tick = from;
        while tick < end {
            let slot = tick as usize % RING;
            let word = self.ring[slot / 64] >> (slot % 64);
            if word != 0 {
                return Some(tick + Millis::from(word.trailing_zeros()));
            }
            tick = (tick | 63) + 1;
        }
        None
    }

    /// The start of the first slot of a level that has entries.
    fn next_in_level(&self, level: usize) -> Option<Millis> {
        if self.levels[level] == 0 {
            return None;
        }
        let current = self.tick >> slot_bits(level);
        let turned = self.levels[level].rotate_right((current % LEVEL_SLOTS as u64) as u32);
        Some((current + u64::from(turned.trailing_zeros())) << slot_bits(level))
    }
}

/// Number of bits of a tick within a slot of a level.
const fn slot_bits(level: usize) -> u32 {
    BLOCK_BITS + LEVEL_BITS * level as u32
}

/// Number of bits of a tick within a group of 64 slots of a level, which is one slot of the level above.
const fn group_bits(level: usize) -> u32 {
    slot_bits(level + 1)
}

const _: () = assert!(size_of::<Node>() == 32 && SLOTS < FREE as usize);
const _: () = assert!(1 << group_bits(LEVELS - 1) == DUE_MAX);
