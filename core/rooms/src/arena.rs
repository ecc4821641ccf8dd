//! The memory of all rooms' recent messages, and how rooms, users and namespaces share it.
//!
//! Owns the bytes, their blocks and the eviction when all are in use. Knows no room's order, no session and no frame.
//! A position is a count that grows in each chain, so comparing numbers tells whether an entry was evicted.
//!
//! Each part of the arena (one for each namespace with a share, and one for all others) has two chains of blocks,
//! each oldest first. If a room or user exceeds its share of the quiet chain, its further messages go to the flood
//! chain. A quiet chain keeps half of its part, so a flood evicts at most the other half. Chains and parts may use
//! what others leave free.

use std::collections::VecDeque;

use muster_transport::Micros;
use serde::Deserialize;

use crate::wire::{GapReason, PublisherId, StreamGap};

/// Bytes of a block, the unit of eviction: some 260 messages of 200 bytes, evicted in about 10 us.
const BLOCK: usize = 1 << BLOCK_BITS;
const BLOCK_BITS: u32 = 16;
/// Bytes of an entry besides its data.
const ENTRY: usize = 48;
/// A room may hold one eighth of its part of the arena.
const ROOM_SHARE: usize = 8;
/// A room may hold 1/64 of its part in the quiet chain: 32 rooms fill the half that floods cannot evict.
const QUIET_ROOM_SHARE: usize = 64;
/// The same for a user: four fill that half. One user may write in many rooms, as a service does for everybody.
const QUIET_USER_SHARE: usize = 8;
/// Minimum memory of an arena, and of each part of it: 16 blocks.
const ARENA_BYTES_MIN: usize = 1 << 20;
/// Maximum number of namespaces with settings: their numbers and 0 fit into the seven free bits of a frame's flags.
pub const NAMESPACES_MAX: usize = 127;
/// Counting cells for the bytes of rooms and of users. Two share a cell with a probability of 1 in 65,536; then they
/// share one quota.
const CELLS: usize = 1 << 16;
/// The bits of a position from here on are the chain's number; the others are the offset in it.
const CHAIN_AT: u32 = 56;
/// Cells count bytes in units of eight.
const UNIT: usize = 8;

/// The settings of a namespace's rooms.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Listed")]
pub struct Retention {
    pub namespace: String,
    /// The part of the arena reserved for these rooms, in percent; 0: they use the common part.
    pub share_percent: usize,
    /// Maximum number of messages that a room keeps (a message of several datagrams counts as several).
    pub messages: Option<usize>,
    /// Maximum bytes that a room keeps, with 48 for each message.
    pub bytes: Option<usize>,
    /// How long a broker keeps a room without members and publishers.
    pub idle: Option<Micros>,
}

/// A [`Retention`] in a list: the namespace, its percent, and messages, bytes and seconds.
type Listed = (String, usize, Option<usize>, Option<usize>, Option<u64>);

impl From<Listed> for Retention {
    fn from((namespace, share_percent, messages, bytes, idle_s): Listed) -> Retention {
        Retention {
            namespace,
            share_percent,
            messages,
            bytes,
            idle: idle_s.map(|seconds| seconds * 1_000_000),
        }
    }
}

/// One entry of a room's sequence: a message or a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The owner's offset; for a gap, its first one.
    pub offset: u64,
    pub publisher: PublisherId,
    /// Publish sequence; for a gap, its last offset.
    pub sequence: u64,
    /// Chunk flags; for a gap, its reason.
    pub flags: u8,
    pub gap: bool,
    /// The index of its stream in the room.
    pub stream: u8,
    /// Milliseconds of the machine's clock when it was appended.
    pub at_ms: u32,
    /// When the message was born ([`crate::age`]); 0: unknown.
    pub born: u32,
    pub data: &'a [u8],
}

impl Entry<'_> {
    /// Its last offset; for a gap with an unknown end, the first.
    pub fn last(&self) -> u64 {
        if self.gap && self.sequence != StreamGap::OPEN {
            self.sequence
        } else {
            self.offset
        }
    }

    /// The reason of the gap; only meaningful if `gap`.
    pub fn reason(&self) -> GapReason {
        GapReason::from_u8(self.flags).unwrap_or(GapReason::Unrepaired)
    }
}

/// What a ring's entries are charged to: the cell of their room, and their namespace's number (0: without settings).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Home {
    pub room: u16,
    pub space: u8,
}

impl Home {
    /// A room's home. The room's id is a hash with a secret key, whose low bits choose the partition.
    pub fn of(room: u64) -> Self {
        Home {
            room: (room >> 48) as u16,
            space: 0,
        }
    }
}

muster_transport::counters! {
    /// Effects of the shares of rooms, users and namespaces on recent messages.
    pub struct ArenaCounters {
        /// Recent messages kept in the flood chain: their room exceeds its share.
        arena_beyond_room_share,
        /// Recent messages kept in the flood chain: their user exceeds its share.
        arena_beyond_user_share,
        /// Recent messages forgotten: their room reached its namespace's limit of messages.
        arena_beyond_messages,
        /// Recent messages forgotten: their room reached the limit of bytes of a room or of its namespace.
        arena_beyond_bytes,
    }
}

/// Limits of a namespace's rooms.
struct Space {
    namespace: Option<Retention>,
    part: u8,
    messages_max: usize,
    bytes_max: usize,
}

/// A part of the arena.
struct Part {
    /// Blocks that it owns, and blocks that it uses.
    share: usize,
    used: usize,
    /// Maximum number of units of a room, and of a user, in the quiet chain.
    room_max: u32,
    user_max: u32,
}

#[derive(Default)]
struct Chain {
    /// The number of the first block, and all blocks.
    first: u64,
    blocks: VecDeque<Block>,
}

/// A block in use.
struct Block {
    /// Its index in the memory.
    at: u32,
    used: u32,
    since: Micros,
}

/// The bytes of all rooms' recent entries.
pub struct Arena {
    bytes: Vec<u8>,
    /// Blocks used so far, and all blocks.
    begun: u32,
    blocks: u32,
    spaces: Vec<Space>,
    parts: Vec<Part>,
    /// For each part, a quiet chain and a flood chain.
    chains: Vec<Chain>,
    by_room: Vec<u32>,
    by_user: Vec<u32>,
    used: u64,
    /// The chain that last lost a block.
    lost: Option<usize>,
    pub counters: ArenaCounters,
    /// Number of entries examined.
    #[cfg(test)]
    pub looks: std::cell::Cell<usize>,
}

fn user_cell(user: u64, part: usize) -> usize {
    let mixed = (user ^ (part as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as usize % CELLS
}

impl Arena {
    /// An arena of `capacity` bytes, at least 1 MiB, without settings of namespaces. The system allocates the pages
    /// when they are first written.
    #[cfg(test)]
    pub fn new(capacity: usize) -> Self {
        Arena::with(capacity, &[])
    }

    /// As [`Arena::new`], with namespaces, which get the numbers from 1 on. Namespaces beyond [`NAMESPACES_MAX`] and
    /// shares beyond 100 % are ignored: the configuration refuses them.
    pub fn with(capacity: usize, namespaces: &[Retention]) -> Self {
        let blocks = capacity.max(ARENA_BYTES_MIN) / BLOCK;
        let part = |share: usize| Part {
            share,
            used: 0,
            room_max: (share * BLOCK / QUIET_ROOM_SHARE / UNIT) as u32,
            user_max: (share * BLOCK / QUIET_USER_SHARE / UNIT) as u32,
        };
        let (mut parts, mut spaces, mut left) = (vec![part(0)], Vec::new(), blocks);
        let namespaces = &namespaces[..namespaces.len().min(NAMESPACES_MAX)];
        for each in namespaces {
            let share = blocks * each.share_percent / 100;
            let own = share > 0 && share < left;
            if own {
                left -= share;
                parts.push(part(share));
            }
            let at = if own { parts.len() - 1 } else { 0 };
            spaces.push((at, Some(each.clone())));
        }
        parts[0] = part(left);
        let space = |(at, namespace): (usize, Option<Retention>)| {
            let (messages, bytes) = namespace.as_ref().map_or((None, None), |own| (own.messages, own.bytes));
            let most = parts[at].share * BLOCK / ROOM_SHARE;
            Space {
                namespace,
                part: at as u8,
                messages_max: messages.unwrap_or(usize::MAX),
                bytes_max: bytes.unwrap_or(most).min(parts[at].share * BLOCK / 2),
            }
        };
        let spaces = std::iter::once((0, None)).chain(spaces).map(space).collect();
        Arena {
            bytes: vec![0; blocks * BLOCK],
            begun: 0,
            blocks: blocks as u32,
            spaces,
            chains: parts
                .iter()
                .flat_map(|_| [Chain::default(), Chain::default()])
                .collect(),
            parts,
            by_room: vec![0; CELLS],
            by_user: vec![0; CELLS],
            used: 0,
            lost: None,
            counters: ArenaCounters::default(),
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        }
    }

    /// The number of a namespace; 0: it has no settings.
    pub fn number(&self, namespace: &str) -> u8 {
        let named = |space: &Space| space.namespace.as_ref().is_some_and(|own| own.namespace == namespace);
        self.spaces.iter().position(named).unwrap_or(0) as u8
    }

    /// How long a broker keeps a room without members and publishers, if its namespace sets it.
    pub fn idle(&self, home: Home) -> Option<Micros> {
        self.space(home).namespace.as_ref()?.idle
    }

    /// Bytes that one room may hold.
    pub fn room_bytes_max(&self, home: Home) -> usize {
        self.space(home).bytes_max
    }

    /// Messages that one room may hold.
    pub fn room_messages_max(&self, home: Home) -> usize {
        self.space(home).messages_max
    }

    fn space(&self, home: Home) -> &Space {
        self.spaces.get(usize::from(home.space)).unwrap_or(&self.spaces[0])
    }

    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Age of the entry that is evicted next; of the oldest one, before any eviction.
    pub fn age(&self, now: Micros) -> Micros {
        let chains = match self.lost {
            Some(chain) => &self.chains[chain..=chain],
            None => &self.chains[..],
        };
        let oldest = chains
            .iter()
            .filter_map(|chain| Some(chain.blocks.front()?.since))
            .min();
        oldest.map_or(0, |since| now.saturating_sub(since))
    }

    /// Bytes that an entry with `data` bytes takes.
    pub fn cost(data: usize) -> usize {
        (ENTRY + data).next_multiple_of(UNIT)
    }

    /// Whether an entry goes to the flood chain, because its room or its user has used up its share of the quiet one.
    #[inline]
    pub fn floods(&mut self, home: Home, entry: &Entry<'_>) -> bool {
        let at = usize::from(self.space(home).part);
        let (part, more) = (&self.parts[at], (Self::cost(entry.data.len()) / UNIT) as u32);
        if self.by_room[usize::from(home.room)] + more > part.room_max {
            self.counters.arena_beyond_room_share += 1;
            return true;
        }
        if self.by_user[user_cell(entry.publisher.user, at)] + more > part.user_max {
            self.counters.arena_beyond_user_share += 1;
            return true;
        }
        false
    }

    /// Appends an entry to the flood chain or the quiet one; the oldest entries of a chain make room. Returns its
    /// position.
    pub fn push(&mut self, now: Micros, home: Home, flood: bool, entry: &Entry<'_>) -> u64 {
        let cost = Self::cost(entry.data.len());
        assert!(cost <= BLOCK, "a message fits into a datagram");
        let part = usize::from(self.space(home).part);
        let chain = 2 * part + usize::from(flood);
        let last = self.chains[chain].blocks.back();
        if last.is_none_or(|block| block.used as usize + cost > BLOCK) {
            let at = self.block(part);
            self.parts[part].used += 1;
            let (used, since) = (0, now);
            self.chains[chain].blocks.push_back(Block { at, used, since });
        }
        if !flood {
            let units = (cost / UNIT) as u32;
            self.by_room[usize::from(home.room)] += units;
            self.by_user[user_cell(entry.publisher.user, part)] += units;
        }
        self.used += cost as u64;
        let known = &mut self.chains[chain];
        let number = known.first + known.blocks.len() as u64 - 1;
        let Some(block) = known.blocks.back_mut() else {
            unreachable!("an entry was pushed")
        };
        let within = block.used as usize;
        block.used += cost as u32;
        let at = block.at as usize * BLOCK + within;
        let bytes = &mut self.bytes[at..at + ENTRY + entry.data.len()];
        bytes[0..8].copy_from_slice(&entry.offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&entry.publisher.user.to_le_bytes());
        bytes[16..24].copy_from_slice(&entry.publisher.incarnation.to_le_bytes());
        bytes[24..32].copy_from_slice(&entry.sequence.to_le_bytes());
        bytes[32..36].copy_from_slice(&((now / 1000) as u32).to_le_bytes());
        bytes[36..38].copy_from_slice(&(entry.data.len() as u16).to_le_bytes());
        bytes[38..40].copy_from_slice(&home.room.to_le_bytes());
        bytes[40] = entry.flags;
        bytes[41] = u8::from(entry.gap);
        bytes[42] = entry.stream;
        bytes[44..48].copy_from_slice(&entry.born.to_le_bytes());
        bytes[ENTRY..].copy_from_slice(entry.data);
        (chain as u64) << CHAIN_AT | number << BLOCK_BITS | within as u64
    }

    /// A block for a part: a free one, or the one to be evicted.
    fn block(&mut self, part: usize) -> u32 {
        if self.begun < self.blocks {
            self.begun += 1;
            return self.begun - 1;
        }
        let chain = self.victim(part);
        let Some(block) = self.chains[chain].blocks.pop_front() else {
            unreachable!("all blocks are in chains")
        };
        self.chains[chain].first += 1;
        self.parts[chain / 2].used -= 1;
        self.used -= u64::from(block.used);
        self.lost = Some(chain);
        if chain % 2 == 0 {
            self.uncount(chain / 2, &block);
        }
        block.at
    }

    /// The chain that gives up a block. It is in the part that most exceeds its share, counting the coming block.
    /// There it is the flood chain if the quiet one has no more than half of the share, otherwise the chain with the
    /// older block.
    fn victim(&self, asking: usize) -> usize {
        let beyond = |at: &usize| {
            let part = &self.parts[*at];
            part.used as isize + isize::from(*at == asking) - part.share as isize
        };
        let part = (0..self.parts.len()).max_by_key(beyond).unwrap_or(0);
        let since = |chain: usize| self.chains[chain].blocks.front().map(|block| block.since);
        let (quiet, flood) = (2 * part, 2 * part + 1);
        match (since(quiet), since(flood)) {
            (Some(_), None) => quiet,
            (Some(calm), Some(wild))
                if self.chains[quiet].blocks.len() > self.parts[part].share / 2 && calm <= wild =>
            {
                quiet
            }
            _ => flood,
        }
    }

    /// A block of a quiet chain is evicted: uncharges its rooms and users.
    fn uncount(&mut self, part: usize, block: &Block) {
        let start = block.at as usize * BLOCK;
        let mut at = start;
        while at < start + block.used as usize {
            let Some(head) = self.bytes[at..].first_chunk::<ENTRY>() else {
                return;
            };
            let user = u64::from_le_bytes([
                head[8], head[9], head[10], head[11], head[12], head[13], head[14], head[15],
            ]);
            let cost = Self::cost(usize::from(u16::from_le_bytes([head[36], head[37]])));
            let room = usize::from(u16::from_le_bytes([head[38], head[39]]));
            self.by_room[room] -= (cost / UNIT) as u32;
            self.by_user[user_cell(user, part)] -= (cost / UNIT) as u32;
            at += cost;
        }
    }

    #[inline]
    fn chain(&self, position: u64) -> (&Chain, u64) {
        let number = (position & ((1 << CHAIN_AT) - 1)) >> BLOCK_BITS;
        (&self.chains[(position >> CHAIN_AT) as usize], number)
    }

    /// Whether the entry at a position of this arena is still there.
    #[inline]
    pub fn holds(&self, position: u64) -> bool {
        let (chain, number) = self.chain(position);
        number >= chain.first
    }

    /// The entry at `position`, if it is still there.
    #[inline]
    pub fn get(&self, position: u64) -> Option<Entry<'_>> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        let (chain, number) = self.chain(position);
        let block = chain.blocks.get(number.checked_sub(chain.first)? as usize)?;
        let at = block.at as usize * BLOCK + position as usize % BLOCK;
        let head: &[u8; ENTRY] = self.bytes[at..].first_chunk()?;
        let long = |at: usize| {
            u64::from_le_bytes([
                head[at],
                head[at + 1],
                head[at + 2],
                head[at + 3],
                head[at + 4],
                head[at + 5],
                head[at + 6],
                head[at + 7],
            ])
        };
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let len = usize::from(u16::from_le_bytes([head[36], head[37]]));
        Some(Entry {
            offset: long(0),
            publisher: PublisherId {
                user: long(8),
                incarnation: long(16),
            },
            sequence: long(24),
            flags: head[40],
            gap: head[41] != 0,
            stream: head[42],
            at_ms: word(32),
            born: word(44),
            data: &self.bytes[at + ENTRY..at + ENTRY + len],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn retention(namespace: &str, share_percent: usize) -> Retention {
        Retention {
            namespace: namespace.into(),
            share_percent,
            messages: None,
            bytes: None,
            idle: None,
        }
    }

    fn entry(user: u64, data: &[u8]) -> Entry<'_> {
        Entry {
            publisher: PublisherId { user, incarnation: 1 },
            data,
            ..Entry::default()
        }
    }

    /// A model of the arena: keeps each entry separately, and counts by scanning all.
    struct Model {
        /// The part of each namespace; the share of each part.
        parts: Vec<usize>,
        shares: Vec<usize>,
        /// For each chain, its blocks with time and number.
        chains: Vec<Vec<(Micros, usize)>>,
        /// Block, chain, room, user and cost of each present entry.
        entries: Vec<(usize, usize, u16, u64, usize)>,
        blocks: usize,
    }

    impl Model {
        fn had(&self, part: usize, of: impl Fn(u16, u64) -> bool) -> usize {
            let quiet = self
                .entries
                .iter()
                .filter(|(_, chain, room, user, _)| *chain == 2 * part && of(*room, *user));
            quiet.map(|(_, _, _, _, cost)| cost).sum()
        }

        fn floods(&self, home: Home, user: u64, cost: usize) -> bool {
            let part = self.parts[usize::from(home.space)];
            let share = self.shares[part] * BLOCK;
            self.had(part, |room, _| room == home.room) + cost > share / QUIET_ROOM_SHARE
                || self.had(part, |_, by| by == user) + cost > share / QUIET_USER_SHARE
        }

        fn victim(&self, asking: usize) -> usize {
            let mut best = (isize::MIN, 0);
            for (part, share) in self.shares.iter().enumerate() {
                let used = self.chains[2 * part].len() + self.chains[2 * part + 1].len() + usize::from(part == asking);
                best = best.max((used as isize - *share as isize, part));
            }
            let part = best.1;
            let (quiet, flood) = (&self.chains[2 * part], &self.chains[2 * part + 1]);
            let older = !quiet.is_empty() && (flood.is_empty() || quiet[0].0 <= flood[0].0);
            match flood.is_empty() || quiet.len() > self.shares[part] / 2 && older {
                true => 2 * part,
                false => 2 * part + 1,
            }
        }

        fn push(&mut self, now: Micros, home: Home, flood: bool, user: u64, cost: usize) {
            let part = self.parts[usize::from(home.space)];
            let chain = 2 * part + usize::from(flood);
            let in_block = |block: usize| self.entries.iter().filter(move |entry| entry.0 == block);
            let used = self.chains[chain]
                .last()
                .map(|(_, block)| in_block(*block).map(|entry| entry.4).sum::<usize>());
            if used.is_none_or(|used| used + cost > BLOCK) {
                let all: usize = self.chains.iter().map(Vec::len).sum();
                if all == self.shares.iter().sum::<usize>() {
                    let (_, gone) = {
                        let victim = self.victim(part);
                        self.chains[victim].remove(0)
                    };
                    self.entries.retain(|entry| entry.0 != gone);
                }
                self.blocks += 1;
                self.chains[chain].push((now, self.blocks));
            }
            let block = self.chains[chain].last().expect("one").1;
            self.entries.push((block, chain, home.room, user, cost));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn shares_agree_with_counting_everything(steps in prop::collection::vec((0u16..60, 0u8..3, 0u64..20, 0usize..6_000, 1usize..60), 1..60)) {
            let namespaces = [retention("a", 25), retention("b", 0)];
            let mut arena = Arena::with(1 << 20, &namespaces);
            let mut model = Model {
                parts: vec![0, 1, 0],
                shares: vec![12, 4],
                chains: vec![Vec::new(); 4],
                entries: Vec::new(),
                blocks: 0,
            };
            let (mut positions, mut number) = (Vec::new(), 0);
            for (room, space, user, len, times) in steps {
                let home = Home { room: room * 8 + u16::from(space), space };
                for _ in 0..times {
                    number += 1;
                    let data = vec![number as u8; len];
                    let (entry, cost) = (Entry { offset: number, ..entry(user, &data) }, Arena::cost(len));
                    let flood = arena.floods(home, &entry);
                    prop_assert_eq!(flood, model.floods(home, user, cost));
                    model.push(number, home, flood, user, cost);
                    let before = model.entries.last().expect("this one").0;
                    positions.push((arena.push(number, home, flood, &entry), before, number, len));
                }
            }
            let there = |block: usize| model.entries.iter().any(|entry| entry.0 == block);
            for (position, block, number, len) in positions {
                prop_assert_eq!(arena.holds(position), there(block), "number {}", number);
                let entry = arena.get(position);
                prop_assert_eq!(entry.is_some(), there(block));
                if let Some(entry) = entry {
                    prop_assert_eq!((entry.offset, entry.data), (number, &vec![number as u8; len][..]));
                }
            }
            prop_assert_eq!(arena.used(), model.entries.iter().map(|entry| entry.4 as u64).sum::<u64>());
        }

        /// The bound on floods: rooms within their shares lose nothing while they have at most half of their part
        /// together, and a namespace with a part of its own loses nothing to others.
        #[test]
        fn no_flood_evicts_rooms_within_their_share(
            floods in prop::collection::vec((0u16..3, 0u64..3, 0usize..1_400, 1usize..400), 1..60),
            quiet in prop::collection::vec(0usize..200, 60),
        ) {
            let mut arena = Arena::with(2 << 20, &[retention("a", 50)]);
            let mut kept = Vec::new();
            for (step, (room, user, len, times)) in floods.into_iter().enumerate() {
                // 60 quiet rooms, each of another user, with at most 15 KiB in total.
                let of = step as u16 % 60;
                for space in [0, 1] {
                    let home = Home { room: 1_000 + of, space };
                    let data = vec![1; quiet[step]];
                    let entry = entry(1_000 + u64::from(of), &data);
                    prop_assert!(!arena.floods(home, &entry));
                    kept.push(arena.push(0, home, false, &entry));
                }
                for _ in 0..times {
                    let (home, data) = (Home { room, space: 0 }, vec![2; len]);
                    let entry = entry(user, &data);
                    let flood = arena.floods(home, &entry);
                    arena.push(0, home, flood, &entry);
                }
            }
            prop_assert!(kept.iter().all(|position| arena.holds(*position)));
        }
    }

    #[test]
    fn an_unused_part_is_lent_until_its_owner_needs_it() {
        let mut arena = Arena::with(1 << 20, &[retention("a", 50)]);
        let data = [0; 1_000];
        let mut push = |space: u8, count: usize| {
            for number in 0..count {
                let home = Home {
                    room: number as u16,
                    space,
                };
                let entry = entry(number as u64, &data);
                let flood = arena.floods(home, &entry);
                arena.push(0, home, flood, &entry);
            }
            [arena.parts[0].used, arena.parts[1].used]
        };
        assert_eq!(push(0, 2_000), [16, 0], "all of it");
        assert_eq!(push(1, 2_000), [8, 8]);
        assert_eq!(push(0, 2_000), [8, 8]);
        assert_eq!(arena.number("a"), 1);
        assert_eq!(arena.number("b"), 0);
    }

    #[test]
    fn a_share_is_available_again_after_eviction() {
        let mut arena = Arena::new(1 << 20);
        let data = [0; 1_000];
        let mut floods = |room: u64, user: u64, count: usize| {
            let (home, entry) = (Home::of(room << 48), entry(user, &data));
            (0..count).any(|_| {
                let flood = arena.floods(home, &entry);
                arena.push(0, home, flood, &entry);
                flood
            })
        };
        assert!(!floods(1, 1, 15) && floods(1, 1, 2), "16 KiB of a room");
        assert!(
            (2..10).all(|room| !floods(room, 2, 15)) && floods(10, 2, 10),
            "128 KiB of a user"
        );
        assert!((100..200).all(|room| !floods(room, room, 15)));
        assert!(!floods(1, 1, 15) && !floods(11, 2, 15));
    }

    #[test]
    fn the_age_is_that_of_the_next_evicted_entry() {
        let mut arena = Arena::new(1 << 20);
        let data = [0; 1_000];
        for number in 0..2_000 {
            let entry = entry(1, &data);
            let home = Home::of(1);
            let flood = arena.floods(home, &entry);
            arena.push(number, home, flood, &entry);
            assert!(number > 0 || arena.age(0) == 0);
        }
        let flooded = arena.chains[1].blocks.front().map(|block| 2_000 - block.since);
        assert_eq!(
            Some(arena.age(2_000)),
            flooded,
            "the first messages of the room stay for good"
        );
        assert!(arena.counters.arena_beyond_room_share > 1_900);
    }
}
