//! The state machine: applies records in the log's order, answers queries.
//!
//! Owns the order in which one record changes likers, counts, trends, rankings, lists and dirty marks. Knows no
//! clock, no log and no socket: times come with records and queries. The same records give the same results, live or
//! replayed.

mod changes;
use crate::boards::{Boards, Which};
use crate::cut::Cut;
use crate::erasure::Erasures;
use crate::items::Items;
use crate::leaderboards::{Leaderboards, Scored, Ties};
use crate::likers::Likers;
use crate::limits::{ERASURES_MAX, LEADERBOARDS_MAX, LEADERBOARD_MEMBERS_MAX, NOT_OFFSETS_MAX, PAGE_MAX, SEGMENT_IDS};
use crate::record::{BitOp, Record};
use crate::trend::{Trends, WINDOWS};
use crate::users::Users;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The configuration of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Keep each user's items, newest first, with the time of each like: 12 bytes per like, 12 per user.
    pub items_by_user: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { items_by_user: true }
    }
}

/// The result of a record.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Answer {
    /// Whether the user liked the item before.
    Was(bool),
    /// Whether the item existed.
    Deleted(bool),
    /// The length in bytes of the string that Redis would store.
    Bytes(u64),
    Scored(Scored),
    /// How many members left.
    Removed(u64),
    Done,
}

/// Why a record changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("record has offset {found}, expected {expected}")]
    Gap { expected: u64, found: u64 },
    #[error("malformed record at offset {0}")]
    Malformed(u64),
    /// The log has no segment of dense ids left.
    #[error("no dense id left at offset {0}")]
    NoDenseId(u64),
    /// The segment at this offset overlaps an existing one.
    #[error("segment of dense ids at offset {0} overlaps another")]
    SegmentTaken(u64),
    #[error("BITOP NOT supports keys of at most {NOT_OFFSETS_MAX} bits")]
    TooLong,
    /// The key is a leaderboard, or an item.
    #[error("key has another type")]
    WrongType,
    #[error("resulting score is not a number (NaN)")]
    NotANumber,
    #[error("a leaderboard has at most {LEADERBOARD_MEMBERS_MAX} members")]
    TooManyMembers,
    #[error("there are already {LEADERBOARDS_MAX} leaderboards")]
    TooManyLeaderboards,
    #[error("the user is being erased")]
    Erasing,
    #[error("no such erasure")]
    NoErasure,
    /// An erasure has slots that it has not gone through.
    #[error("erasure has not come that far")]
    NotSwept,
    #[error("{ERASURES_MAX} erasures are under way; wait until one has ended")]
    TooManyErasures,
}

/// One item's row for write-behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub key: Vec<u8>,
    /// Increases with each change of the item: overwrite only a row with a lower one.
    pub modification: u64,
    /// `None` if the item was deleted.
    pub likes: Option<RowLikes>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowLikes {
    pub count: u64,
    /// Dense ids in the portable roaring format.
    pub likers: Vec<u8>,
}

/// The key of a changed item, and its count; `None` if it was deleted.
pub type ChangedItem = (Vec<u8>, Option<u64>);

/// An item in a ranking.
#[derive(Clone, PartialEq, Debug)]
pub struct Ranked<'a> {
    pub key: &'a [u8],
    pub score: f64,
}

/// The likes, counts and rankings of one log.
///
/// The owner appends each [`Record`] to its log, and calls [`Engine::apply`] with its offset once it is durable.
/// First it appends the record that [`Engine::segment_needed`] returns, if any. Queries such as [`Engine::rank`] and
/// [`Engine::page`] read the state at any time. [`Engine::rows`] and [`Engine::written`] write changed items behind
/// to a database.
///
/// ```no_run
/// use muster_likes::{Answer, Engine, Options, Record};
///
/// let mut engine = Engine::new(Options::default());
/// let mut offset = 0;
/// let mut apply = |engine: &mut Engine, record: &Record<'_>| {
///     let mut bytes = Vec::new();
///     record.encode(&mut bytes);
///     // here the owner appends `bytes` to its log and waits until it is durable
///     offset += 1;
///     engine.apply(offset - 1, &bytes)
/// };
/// let segment = engine.segment_needed(1).expect("a new engine has no ids");
/// apply(&mut engine, &segment)?;
/// let like = Record::Set { at_ms: 1_790_000_000_000, key: b"share:7", user: 2017, likes: true };
/// assert_eq!(apply(&mut engine, &like)?, Answer::Was(false));
/// assert_eq!(engine.rank(b"rank", b"share:7"), Some(0));
/// # Ok::<(), muster_likes::ApplyError>(())
/// ```
pub struct Engine {
    pub(crate) options: Options,
    pub(crate) users: Users,
    pub(crate) items: Items,
    pub(crate) boards: Boards,
    pub(crate) trends: Trends,
    /// The latest time of a record.
    pub(crate) now_ms: u64,
    /// The offset of the next record.
    pub(crate) offset: u64,
    /// Slots of items changed since their row was written.
    pub(crate) dirty: BTreeSet<u32>,
    /// Deleted items whose rows must be deleted too.
    pub(crate) deleted: BTreeMap<Box<[u8]>, u64>,
    pub(crate) likes: u64,
    pub(crate) leaderboards: Leaderboards,
    /// Members of all leaderboards.
    pub(crate) members: u64,
    /// The snapshot in progress.
    pub(crate) cut: Option<Box<Cut>>,
    pub(crate) erasures: Erasures,
    news: News,
}

/// Items changed since they were last reported, for whoever displays counts.
#[derive(Default)]
struct News {
    wanted: bool,
    slots: VecDeque<u32>,
    deleted: VecDeque<Box<[u8]>>,
    /// More items changed than fit: the caller must check all items.
    lost: bool,
}

impl Default for Engine {
    fn default() -> Engine {
        Engine::new(Options::default())
    }
}

impl Engine {
    /// An engine at offset 0.
    pub fn new(options: Options) -> Engine {
        Engine {
            options,
            users: Users::new(options.items_by_user),
            items: Items::default(),
            boards: Boards::default(),
            trends: Trends::default(),
            now_ms: 0,
            offset: 0,
            dirty: BTreeSet::new(),
            deleted: BTreeMap::new(),
            likes: 0,
            leaderboards: Leaderboards::default(),
            members: 0,
            cut: None,
            erasures: Erasures::default(),
            news: News::default(),
        }
    }

    /// Prefetches what the coming records will need, so that the processor waits for many memory locations at once.
    /// Changes nothing.
    pub fn look_ahead<'a>(&self, records: impl Iterator<Item = &'a [u8]>) {
        for record in records {
            if let Some(Record::Set { user, .. } | Record::OneOf { user, .. }) = Record::decode(record) {
                std::hint::black_box(self.users.find(user));
            }
        }
    }

    pub fn options(&self) -> Options {
        self.options
    }

    /// Applies the record with this offset, which must be the next one. After an error other than [`ApplyError::Gap`]
    /// the record counts as skipped.
    pub fn apply(&mut self, offset: u64, record: &[u8]) -> Result<Answer, ApplyError> {
        if offset != self.offset {
            return Err(ApplyError::Gap {
                expected: self.offset,
                found: offset,
            });
        }
        self.offset += 1;
        let record = Record::decode(record).ok_or(ApplyError::Malformed(offset))?;
        match record {
            Record::Set {
                at_ms,
                key,
                user,
                likes,
            } => self.set(at_ms, key, user, likes),
            Record::OneOf {
                at_ms,
                key,
                user,
                others,
            } => {
                self.advance(at_ms);
                let answer = self.set(at_ms, key, user, true)?;
                for other in others {
                    if other != key && self.items.find(other).is_some() {
                        self.set(at_ms, other, user, false)?;
                    }
                }
                Ok(answer)
            }
            Record::Delete { at_ms, key } => {
                self.advance(at_ms);
                Ok(Answer::Deleted(self.delete(key)))
            }
            Record::Segment { first, ids } => match self.users.add_segment(first, ids) {
                true => Ok(Answer::Done),
                false => Err(ApplyError::SegmentTaken(offset)),
            },
            Record::BitOp {
                at_ms,
                op,
                target,
                sources,
            } => {
                self.advance(at_ms);
                for key in sources.iter().chain([&target]) {
                    self.is_no_leaderboard(key)?;
                }
                self.bit_operation(op, target, &sources)
            }
            Record::Fields { at_ms, key, fields } => {
                self.advance(at_ms);
                self.is_no_leaderboard(key)?;
                self.set_fields(key, &fields);
                Ok(Answer::Done)
            }
            Record::Scores {
                at_ms,
                key,
                how,
                scores,
            } => {
                self.advance(at_ms);
                self.put_scores(key, how, &scores).map(Answer::Scored)
            }
            Record::Unscore { at_ms, key, members } => {
                self.advance(at_ms);
                self.remove_members(key, &members).map(Answer::Removed)
            }
            Record::Ties { at_ms, key, ties } => {
                self.advance(at_ms);
                self.set_ties(key, ties)?;
                Ok(Answer::Done)
            }
            Record::Erase { at_ms, .. }
            | Record::EraseStep { at_ms, .. }
            | Record::Erased { at_ms, .. }
            | Record::ErasureDone { at_ms, .. } => {
                self.advance(at_ms);
                self.apply_to_erasure(&record)
            }
        }
    }

    /// The offset of the next record to apply.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The record that must be in the log before records that may need `ids` new dense ids; `None` if enough are
    /// left.
    ///
    /// Segments follow one another; a log that shares dense ids with others takes its segments from their allocator
    /// instead.
    pub fn segment_needed(&self, ids: u64) -> Option<Record<'static>> {
        let left = self.users.ids_left();
        if left >= ids {
            return None;
        }
        let first = self.users.next_segment()?;
        let wanted = (ids - left).next_multiple_of(u64::from(SEGMENT_IDS));
        let ids = wanted.min(u64::from(u32::MAX - first)) as u32;
        (ids > 0).then_some(Record::Segment { first, ids })
    }

    // Queries.

    pub fn exists(&self, key: &[u8]) -> bool {
        self.items.find(key).is_some()
    }

    pub fn count(&self, key: &[u8]) -> u64 {
        self.items.by_key(key).map_or(0, |item| item.likers.len())
    }

    pub fn likes(&self, key: &[u8], user: u64) -> bool {
        let item = self.items.by_key(key);
        item.zip(self.users.find(user))
            .is_some_and(|(item, dense)| item.likers.contains(dense))
    }

    /// All likers of an item, in the order of their dense ids.
    pub fn likers(&self, key: &[u8]) -> impl Iterator<Item = u64> + '_ {
        let dense = self.items.by_key(key).map(|item| item.likers.iter());
        dense.into_iter().flatten().map(|dense| self.users.id(dense))
    }

    /// As [`Engine::likers`], starting with the `from`th.
    pub fn likers_from(&self, key: &[u8], from: u64) -> impl Iterator<Item = u64> + '_ {
        let dense = self.items.by_key(key).map(|item| item.likers.iter_from(from));
        dense.into_iter().flatten().map(|dense| self.users.id(dense))
    }

    /// About `count` likers of an item from a cursor on, and the cursor to continue with, 0 at the end. A user who likes
    /// the item during the whole scan is returned once, whatever changes meanwhile.
    pub fn scan_likers(&self, key: &[u8], cursor: u64, count: usize) -> (u64, Vec<u64>) {
        // A cursor is the next dense id: ids stay, and no user's comes before one that was returned.
        let (Some(item), Ok(from)) = (self.items.by_key(key), u32::try_from(cursor)) else {
            return (0, Vec::new());
        };
        let mut dense = item.likers.iter_at(from);
        let users = dense.by_ref().take(count).map(|dense| self.users.id(dense)).collect();
        (dense.next().map_or(0, u64::from), users)
    }

    /// At most `most` users who like all of `keys`.
    pub fn likers_of_all(&self, keys: &[&[u8]], most: usize) -> Vec<u64> {
        let none = Likers::default();
        let sets: Vec<&Likers> = keys
            .iter()
            .map(|key| self.items.by_key(key).map_or(&none, |item| &item.likers))
            .collect();
        if sets.is_empty() {
            return Vec::new();
        }
        Likers::combine(BitOp::And, &sets)
            .iter()
            .take(most)
            .map(|dense| self.users.id(dense))
            .collect()
    }

    /// The newest likers of an item, newest first; at most [`crate::NEWEST_MAX`] are known.
    pub fn newest(&self, key: &[u8], count: usize) -> Vec<u64> {
        let item = self.items.by_key(key);
        let newest = item.into_iter().flat_map(|item| item.newest.iter().rev());
        newest.take(count).map(|&dense| self.users.id(dense)).collect()
    }

    /// The items that a user likes, newest first.
    pub fn items_of(&self, user: u64, from: usize, count: usize) -> Vec<&[u8]> {
        self.liked_by(user, from, count)
            .into_iter()
            .map(|(key, _)| key)
            .collect()
    }

    /// As [`Engine::items_of`], with the time of each like in seconds since 1970; `None`: it was made by a version that
    /// kept no times, or restored from a row.
    pub fn liked_by(&self, user: u64, from: usize, count: usize) -> Vec<(&[u8], Option<u32>)> {
        let Some(dense) = self.users.find(user) else {
            return Vec::new();
        };
        let most = from.saturating_add(count.min(PAGE_MAX));
        let liked = self.users.items(dense, most, |slot| self.items.likes(slot, dense));
        let entry = |(slot, at_s): (u32, u32)| (self.items.key(slot), (at_s > 0).then_some(at_s));
        liked.into_iter().skip(from).map(entry).collect()
    }

    /// How many items a query of a user's items may scan.
    pub fn items_to_walk(&self, user: u64) -> u32 {
        self.users.find(user).map_or(0, |dense| self.users.chain_len(dense))
    }

    /// Offset of the last change plus 1; 0 for an item that does not exist.
    pub fn modification(&self, key: &[u8]) -> u64 {
        self.items.by_key(key).map_or(0, |item| item.modification)
    }

    /// The length in bytes of the string that Redis would store.
    pub fn string_bytes(&self, key: &[u8]) -> u64 {
        self.items.by_key(key).map_or(0, |item| item.bits.div_ceil(8) as u64)
    }

    /// The fields of an item; first the one of its kind.
    pub fn fields(&self, key: &[u8]) -> Vec<&[u8]> {
        let fields = self.items.by_key(key).map_or(&[][..], |item| &item.fields);
        fields.iter().map(|&field| self.boards.name(field)).collect()
    }

    /// The item's score in a window at `now_ms`: see [`crate::WINDOWS`].
    pub fn trend(&self, key: &[u8], window: usize, now_ms: u64) -> f64 {
        self.items.by_key(key).map_or(0.0, |item| {
            self.trends.value(window, item.trends[window], now_ms.max(self.now_ms))
        })
    }

    /// Whether `key` names a ranking of items.
    pub fn is_ranking(key: &[u8]) -> bool {
        Which::parse(key).is_some()
    }

    /// Whether `key` is a leaderboard with members, or a window of one.
    pub fn is_leaderboard(&self, key: &[u8]) -> bool {
        let board = self
            .leaderboards
            .parse(key)
            .and_then(|(slot, _)| self.leaderboards.get(slot));
        board.is_some_and(|board| board.members.len() > 0)
    }

    /// Number of items in a ranking, or of members in a leaderboard.
    pub fn ranking_len(&mut self, ranking: &[u8]) -> usize {
        if let Some((slot, _)) = self.leaderboards.parse(ranking) {
            return self.leaderboards.get_mut(slot).members.len();
        }
        Which::parse(ranking).map_or(0, |which| self.boards.len(which, &self.items))
    }

    /// The rank of an item or of a member: how many are above it.
    pub fn rank(&mut self, ranking: &[u8], key: &[u8]) -> Option<usize> {
        if let Some((slot, by)) = self.leaderboards.parse(ranking) {
            return self.leaderboards.get_mut(slot).rank(by, key);
        }
        let (which, slot) = (Which::parse(ranking)?, self.items.find(key)?);
        self.boards.rank(which, slot, &self.items)
    }

    /// The rank that `key` would have with this count in a ranking by count, not counting the present item of that
    /// key. `None` for a ranking by a window.
    pub fn above(&mut self, ranking: &[u8], count: u64, key: &[u8]) -> Option<usize> {
        let which = Which::parse(ranking).filter(|which| which.by == 0)?;
        let above = self.boards.above(which, (count, key), &self.items);
        let own = self.items.find(key);
        let own = own.and_then(|slot| self.boards.score(which, slot, &self.items));
        Some(above - usize::from(own.is_some_and(|score| score > count)))
    }

    /// The score of an item in a ranking, or of a member in a leaderboard, at `now_ms`.
    pub fn score(&self, ranking: &[u8], key: &[u8], now_ms: u64) -> Option<f64> {
        if let Some((slot, by)) = self.leaderboards.parse(ranking) {
            let board = self.leaderboards.get(slot)?;
            let number = board.number(by, board.members.find(key)?);
            return Some(self.number_value(by, number, now_ms));
        }
        let (which, slot) = (Which::parse(ranking)?, self.items.find(key)?);
        let bits = self.boards.score(which, slot, &self.items)?;
        Some(self.score_value(which, bits, now_ms))
    }

    /// `count` items of a ranking, or members of a leaderboard, starting at rank `from`, best first; equal scores by
    /// key, the greater first, or as [`Ties`] has it.
    pub fn page(&mut self, ranking: &[u8], from: usize, count: usize, now_ms: u64) -> Vec<Ranked<'_>> {
        let count = count.min(PAGE_MAX);
        if let Some((slot, by)) = self.leaderboards.parse(ranking) {
            let page = self.leaderboards.get_mut(slot).page(by, from, count);
            let board = self.leaderboards.get(slot).expect("it was there");
            let ranked = |slot| Ranked {
                key: board.members.key(slot),
                score: self.number_value(by, board.number(by, slot), now_ms),
            };
            return page.into_iter().map(ranked).collect();
        }
        let Some(which) = Which::parse(ranking) else {
            return Vec::new();
        };
        let page = self.boards.page(which, from, count, &self.items);
        let ranked = |(slot, bits)| Ranked {
            key: self.items.key(slot),
            score: self.score_value(which, bits, now_ms),
        };
        page.into_iter().map(ranked).collect()
    }

    /// How many members of a leaderboard have a score below `bound`, or up to it. 0 for a key that is none.
    pub fn members_below(&mut self, key: &[u8], bound: f64, or_equal: bool) -> usize {
        let slot = self.leaderboards.find(key);
        slot.map_or(0, |slot| self.leaderboards.get_mut(slot).below(bound, or_equal))
    }

    /// What decides between equal scores of a leaderboard.
    pub fn ties(&self, key: &[u8]) -> Ties {
        self.leaderboards.by_key(key).map_or(Ties::Name, |board| board.ties)
    }

    /// Leaderboards with members from slot `cursor` on, and the cursor to continue with, 0 at the end. One that exists
    /// during the whole scan is returned once.
    pub fn scan_leaderboards(&self, cursor: u64, count: usize) -> (u64, Vec<&[u8]>) {
        let slots = u64::from(self.leaderboards.slots());
        let (from, to) = (cursor.min(slots), cursor.saturating_add(count as u64).min(slots));
        let boards = (from as u32..to as u32).filter_map(|slot| self.leaderboards.get(slot));
        let names = boards
            .filter(|board| board.members.len() > 0)
            .map(|board| &board.name[..]);
        (if to == slots { 0 } else { to }, names.collect())
    }

    pub fn leaderboard_count(&self) -> usize {
        self.leaderboards.len()
    }

    /// Members of all leaderboards.
    pub fn member_count(&self) -> u64 {
        self.members
    }

    /// Keys from slot `cursor` on, and the cursor to continue with, 0 at the end. A key that exists during the whole
    /// scan is returned once.
    pub fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<&[u8]>) {
        let from = cursor.min(u64::from(self.items.slots())) as u32;
        let to = (u64::from(from) + count as u64).min(u64::from(self.items.slots())) as u32;
        let keys = (from..to)
            .filter_map(|slot| self.items.get(slot))
            .map(|item| &item.key[..])
            .collect();
        let next = if to == self.items.slots() { 0 } else { u64::from(to) };
        (next, keys)
    }

    pub fn item_count(&self) -> usize {
        self.items.len()
    }

    /// Slots of items and of leaderboards, those that are free included.
    pub fn slots(&self) -> (u32, u32) {
        (self.items.slots(), self.leaderboards.slots())
    }

    /// Users with a dense id.
    pub fn user_count(&self) -> usize {
        self.users.len() - self.users.erased().len() as usize
    }

    /// Likes of all items, without the results of bit operations.
    pub fn like_count(&self) -> u64 {
        self.likes
    }

    /// Heap bytes of all sets of likers.
    pub fn liker_bytes(&self) -> usize {
        self.items.iter().map(|(_, item)| item.likers.heap_bytes()).sum()
    }

    // Write-behind.

    /// Number of items and deletions that are not written yet.
    pub fn dirty_len(&self) -> usize {
        self.dirty.len() + self.deleted.len()
    }

    /// Up to `count` rows to write, of about `bytes` in total, and the cursor to continue with in this pass, `None`
    /// at its end. Nothing is marked as written.
    pub fn rows(&self, cursor: u64, count: usize, bytes: usize) -> (Option<u64>, Vec<Row>) {
        let mut taken = 0;
        let from = cursor.saturating_sub(1).min(u64::from(u32::MAX)) as u32;
        let mut rows = Vec::new();
        if cursor == 0 {
            rows.extend(self.deleted.iter().map(|(key, &modification)| Row {
                key: key.to_vec(),
                modification,
                likes: None,
            }));
        }
        let mut next = None;
        for &slot in self.dirty.range(from..) {
            if rows.len() >= count.max(1) || taken >= bytes {
                next = Some(u64::from(slot) + 1);
                break;
            }
            let item = self.items.get(slot).expect("a dirty slot is in use");
            let mut likers = Vec::new();
            item.likers
                .bitmap()
                .serialize_into(&mut likers)
                .expect("a vector accepts all bytes");
            taken += likers.len();
            let likes = Some(RowLikes {
                count: item.likers.len(),
                likers,
            });
            rows.push(Row {
                key: item.key.to_vec(),
                modification: item.modification,
                likes,
            });
        }
        (next, rows)
    }

    /// The row with this modification is written: clears the dirty mark unless the item has changed since.
    pub fn written(&mut self, key: &[u8], modification: u64) {
        if self.deleted.get(key).is_some_and(|&deleted| deleted <= modification) {
            self.deleted.remove(key);
        }
        let Some(slot) = self.items.find(key) else { return };
        let item = self.items.get_mut(slot);
        if item.modification <= modification {
            item.dirty = false;
            item.likers.shrink(); // an item unchanged for a pass
            self.dirty.remove(&slot);
        }
    }

    /// All rows of changes below `offset` are written.
    pub fn written_below(&mut self, offset: u64) {
        let old = |&slot: &u32| self.items.get(slot).is_some_and(|item| item.modification <= offset);
        let slots: Vec<u32> = self.dirty.iter().copied().filter(old).collect();
        for slot in slots {
            self.items.get_mut(slot).dirty = false;
            self.dirty.remove(&slot);
        }
        self.deleted.retain(|_, &mut deleted| deleted > offset);
    }

    /// From now on [`Engine::changed_items`] reports changes.
    pub fn watch(&mut self) {
        self.news.wanted = true;
    }

    /// Up to `count` items that changed since they were last reported, with their counts, `None` if they were
    /// deleted; and whether some were lost because more than [`NEWS_MAX`] waited: then check all items.
    pub fn changed_items(&mut self, count: usize) -> (Vec<ChangedItem>, bool) {
        let mut told = Vec::new();
        while told.len() < count {
            let Some(key) = self.news.deleted.pop_front() else {
                break;
            };
            told.push((key.into_vec(), None));
        }
        while told.len() < count {
            let Some(slot) = self.news.slots.pop_front() else { break };
            // A slot that now holds another item is listed twice; an empty one, for no item.
            if self.items.get(slot).is_some_and(|item| item.told) {
                let item = self.items.get_mut(slot);
                item.told = false;
                if !item.derived {
                    told.push((item.key.to_vec(), Some(item.likers.len())));
                }
            }
        }
        (told, std::mem::take(&mut self.news.lost))
    }

    /// All dense ids in order of assignment, starting with the `from`th, with their users, `None` for one that was
    /// erased. Rows are added and deleted, never changed.
    pub fn users_from(&self, from: usize) -> impl Iterator<Item = (u32, Option<u64>)> + '_ {
        self.users.pairs(from)
    }

    // Changes.

    fn advance(&mut self, at_ms: u64) {
        self.now_ms = self.now_ms.max(at_ms);
        for (window, shrink) in self.trends.advance(self.now_ms).into_iter().enumerate() {
            let Some(shrink) = shrink else { continue };
            self.all_items_will_change();
            self.all_leaderboards_will_change();
            for item in self.items.iter_mut() {
                item.trends[window] *= shrink;
            }
            self.boards.drop_window(window);
            for board in self.leaderboards.iter_mut() {
                board.shrink(window, shrink);
            }
        }
    }

    fn number_value(&self, by: usize, number: f64, now_ms: u64) -> f64 {
        match by {
            0 => number,
            by => self.trends.value(by - 1, number, now_ms.max(self.now_ms)),
        }
    }

    fn score_value(&self, which: Which, bits: u64, now_ms: u64) -> f64 {
        match which.by {
            0 => bits as f64,
            by => self.trends.value(by - 1, f64::from_bits(bits), now_ms.max(self.now_ms)),
        }
    }
}

/// The part of a key before its first colon: the item's kind, and a field of all items of that kind.
pub(crate) fn kind(key: &[u8]) -> Option<&[u8]> {
    let colon = key.iter().position(|&byte| byte == b':')?;
    Some(&key[..colon])
}

const _: () = assert!(WINDOWS.len() == 3, "snapshots hold three scores an item");
