//! One ranking: items, or members of a leaderboard, by score, with exact ranks.
//!
//! Owns the order. Scores are pulled, never pushed: a touched item waits, and its score is looked up before the next
//! query, so no result differs from the counts. An unused ranking costs nothing: the first query builds it, and it is
//! dropped after many toggles without a query.

use crate::keyed::{Key, Keyed};
use hashbrown::HashMap;
use std::cmp::Ordering;

/// Entries of a chunk at which it is split: 16 bytes each, so an insertion moves 2 KiB on average.
const CHUNK_MAX: usize = 512;

/// Maximum number of touched items that wait: 1,024 of them take under 1 ms before a query.
const WAITING_MAX: usize = 1_024;

/// Touches without a query after which the ranking is dropped.
const IDLE_MAX: u32 = 1 << 20;

/// A score as bits that compare like the score: a count, or a non-negative float.
pub(crate) type ScoreBits = u64;

/// What items are ranked by.
pub(crate) trait Score: Copy + Ord + Default {}

impl<S: Copy + Ord + Default> Score for S {}

#[derive(Clone, Copy)]
struct Entry<S> {
    score: S,
    slot: u32,
}

#[derive(Clone, Copy, Default)]
struct Held<S> {
    /// The score with which the item is in the order, if it is.
    score: Option<S>,
    waits: bool,
}

#[derive(Default)]
pub(crate) struct Ranking<S = ScoreBits> {
    hot: Option<Box<Hot<S>>>,
}

#[derive(Default)]
struct Hot<S> {
    /// Lowest first: by score, then by key, as Redis orders a sorted set.
    chunks: Vec<Vec<Entry<S>>>,
    len: usize,
    held: HashMap<u32, Held<S>>,
    waiting: Vec<u32>,
    idle: u32,
}

impl<S: Score> Ranking<S> {
    /// The score of `slot` may have changed. `score` returns `None` for items that are not ranked.
    pub fn touch(&mut self, slot: u32, items: &Keyed<impl Key>, score: impl Fn(u32) -> Option<S>) {
        let Some(hot) = &mut self.hot else { return };
        hot.idle += 1;
        if hot.idle > IDLE_MAX {
            self.hot = None;
            return;
        }
        let held = hot.held.entry(slot).or_default();
        if !held.waits {
            held.waits = true;
            hot.waiting.push(slot);
            if hot.waiting.len() > WAITING_MAX {
                hot.settle(items, score);
            }
        }
    }

    /// Removes an item before its key is released.
    pub fn remove(&mut self, slot: u32, items: &Keyed<impl Key>) {
        let Some(hot) = &mut self.hot else { return };
        let Some(held) = hot.held.remove(&slot) else { return };
        if held.waits {
            hot.waiting.retain(|&other| other != slot);
        }
        if let Some(score) = held.score {
            hot.take_out(Entry { score, slot }, items);
        }
    }

    /// Drops the order, because every score has changed.
    pub fn drop_order(&mut self) {
        self.hot = None;
    }

    /// Number of items with a score.
    pub fn len(
        &mut self,
        items: &Keyed<impl Key>,
        members: impl Iterator<Item = u32>,
        score: impl Fn(u32) -> Option<S>,
    ) -> usize {
        self.settled(items, members, score).len
    }

    /// How many items are above `slot`.
    pub fn rank(
        &mut self,
        slot: u32,
        items: &Keyed<impl Key>,
        members: impl Iterator<Item = u32>,
        score: impl Fn(u32) -> Option<S>,
    ) -> Option<usize> {
        let hot = self.settled(items, members, score);
        let entry = Entry {
            score: hot.held.get(&slot)?.score?,
            slot,
        };
        let (chunk, at) = hot.place(entry, items).ok()?;
        let above: usize = hot.chunks[chunk + 1..].iter().map(Vec::len).sum();
        Some(above + hot.chunks[chunk].len() - 1 - at)
    }

    /// The rank that an item with this score and key would have.
    pub fn above(
        &mut self,
        wanted: (S, &[u8]),
        items: &Keyed<impl Key>,
        members: impl Iterator<Item = u32>,
        score: impl Fn(u32) -> Option<S>,
    ) -> usize {
        let hot = self.settled(items, members, score);
        let below = |entry: &Entry<S>| (entry.score, items.key(entry.slot)) <= wanted;
        let chunk = hot.chunks.partition_point(|chunk| chunk.last().is_some_and(below));
        let mut rest = hot.chunks[chunk..].iter();
        let here = rest
            .next()
            .map_or(0, |entries| entries.len() - entries.partition_point(below));
        here + rest.map(Vec::len).sum::<usize>()
    }

    /// How many items have a score for which `below` holds: it holds for all scores up to some one.
    pub fn below(
        &mut self,
        below: impl Fn(S) -> bool,
        items: &Keyed<impl Key>,
        members: impl Iterator<Item = u32>,
        score: impl Fn(u32) -> Option<S>,
    ) -> usize {
        let hot = self.settled(items, members, score);
        let under = |entry: &Entry<S>| below(entry.score);
        let whole = hot.chunks.partition_point(|chunk| chunk.last().is_some_and(under));
        let part = hot.chunks.get(whole).map_or(0, |chunk| chunk.partition_point(under));
        hot.chunks[..whole].iter().map(Vec::len).sum::<usize>() + part
    }

    /// `count` items and their scores, starting at rank `from`.
    pub fn page(
        &mut self,
        from: usize,
        count: usize,
        items: &Keyed<impl Key>,
        members: impl Iterator<Item = u32>,
        score: impl Fn(u32) -> Option<S>,
    ) -> Vec<(u32, S)> {
        let hot = self.settled(items, members, score);
        let (mut skip, mut page) = (from, Vec::new());
        for chunk in hot.chunks.iter().rev() {
            if skip >= chunk.len() {
                skip -= chunk.len();
                continue;
            }
            let wanted = count - page.len();
            page.extend(
                chunk
                    .iter()
                    .rev()
                    .skip(skip)
                    .take(wanted)
                    .map(|entry| (entry.slot, entry.score)),
            );
            skip = 0;
            if page.len() == count {
                break;
            }
        }
        page
    }

    fn settled(
        &mut self,
        items: &Keyed<impl Key>,
        members: impl Iterator<Item = u32>,
        score: impl Fn(u32) -> Option<S>,
    ) -> &mut Hot<S> {
        let hot = self
            .hot
            .get_or_insert_with(|| Box::new(Hot::build(items, members, &score)));
        hot.settle(items, score);
        hot.idle = 0;
        hot
    }
}

impl<S: Score> Hot<S> {
    fn build(items: &Keyed<impl Key>, members: impl Iterator<Item = u32>, score: impl Fn(u32) -> Option<S>) -> Hot<S> {
        let mut entries: Vec<Entry<S>> = members
            .filter_map(|slot| {
                Some(Entry {
                    score: score(slot)?,
                    slot,
                })
            })
            .collect();
        entries.sort_unstable_by(|a, b| order(a, b, items));
        entries.dedup_by_key(|entry| entry.slot);
        let held = entries
            .iter()
            .map(|entry| {
                (
                    entry.slot,
                    Held {
                        score: Some(entry.score),
                        waits: false,
                    },
                )
            })
            .collect();
        let chunks = entries.chunks(CHUNK_MAX / 2).map(<[Entry<S>]>::to_vec).collect();
        Hot {
            chunks,
            len: entries.len(),
            held,
            ..Hot::default()
        }
    }

    /// Puts every waiting item into its position.
    fn settle(&mut self, items: &Keyed<impl Key>, score: impl Fn(u32) -> Option<S>) {
        for slot in std::mem::take(&mut self.waiting) {
            let now = score(slot);
            let held = self.held.get_mut(&slot).expect("a waiting item is known");
            held.waits = false;
            let before = std::mem::replace(&mut held.score, now);
            if now.is_none() {
                self.held.remove(&slot);
            }
            if before == now {
                continue;
            }
            if let Some(score) = before {
                self.take_out(Entry { score, slot }, items);
            }
            if let Some(score) = now {
                self.put_in(Entry { score, slot }, items);
            }
        }
    }

    /// The chunk of an entry and its index there, or where it would be inserted.
    fn place(&self, entry: Entry<S>, items: &Keyed<impl Key>) -> Result<(usize, usize), (usize, usize)> {
        let below = |chunk: &Vec<Entry<S>>| {
            chunk
                .last()
                .is_some_and(|last| order(last, &entry, items) == Ordering::Less)
        };
        let chunk = self
            .chunks
            .partition_point(below)
            .min(self.chunks.len().saturating_sub(1));
        let Some(entries) = self.chunks.get(chunk) else {
            return Err((0, 0));
        };
        match entries.binary_search_by(|other| order(other, &entry, items)) {
            Ok(at) => Ok((chunk, at)),
            Err(at) => Err((chunk, at)),
        }
    }

    fn put_in(&mut self, entry: Entry<S>, items: &Keyed<impl Key>) {
        let Err((chunk, at)) = self.place(entry, items) else {
            return;
        };
        if self.chunks.is_empty() {
            self.chunks.push(Vec::with_capacity(CHUNK_MAX));
        }
        let entries = &mut self.chunks[chunk];
        entries.insert(at, entry);
        self.len += 1;
        if entries.len() >= CHUNK_MAX {
            let upper = entries.split_off(CHUNK_MAX / 2);
            self.chunks.insert(chunk + 1, upper);
        }
    }

    fn take_out(&mut self, entry: Entry<S>, items: &Keyed<impl Key>) {
        let (chunk, at) = self.place(entry, items).expect("an item with a score is in the order");
        self.chunks[chunk].remove(at);
        self.len -= 1;
        if self.chunks[chunk].is_empty() {
            self.chunks.remove(chunk);
        }
    }
}

fn order<S: Score>(a: &Entry<S>, b: &Entry<S>, items: &Keyed<impl Key>) -> Ordering {
    a.score
        .cmp(&b.score)
        .then_with(|| items.key(a.slot).cmp(items.key(b.slot)))
}
