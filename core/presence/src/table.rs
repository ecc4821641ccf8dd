//! A reader's copy of one shard's store: packed records of users, and when those that are offline were last seen.
//!
//! Owns: [`Table`]. It is loaded by pages of the store while batches arrive, and then has what the store had after the
//! last batch that it took. A batch that is missing is noticed by its number. Knows no store, no clock and no freshness:
//! its owner decides whether it may be asked (`systems/presence/near.py`).
//!
//! Users are spread over pages of bytes by a keyed hash; a page has an entry of each user, one after the other: the user
//! (8 B), the length of its record (1 B, or 5), the record. Pages are added one at a time (linear hashing), so that no
//! user waits for a table to be copied. With one device a user takes about 50 B.

use crate::bucket::bucket;
use crate::limits::{TABLE_SEEN_MAX, TABLE_SEEN_S, TABLE_USERS_MAX};
use crate::parse::{digits, page, take, Value};
use std::collections::BTreeSet;

/// Users of a page on average: a look-up reads half of them, and a page has 40 B beside its content.
const FILL: usize = 8;

/// Why a table can't take what its store gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    Malformed,
    /// The shard has more than [`TABLE_USERS_MAX`] users online.
    TooManyUsers,
}

/// Last-seen times of one bucket.
#[derive(Default)]
struct Seen {
    /// The second at which the store forgets the bucket.
    ends_s: u64,
    users: Vec<u64>,
    at_s: Vec<u32>,
}

/// The copy of one shard.
pub struct Table {
    shards: u16,
    seed: u64,
    pages: Vec<Vec<u8>>,
    /// The greatest power of two that is at most the number of pages.
    base: usize,
    users: usize,
    bytes: usize,
    seen: Vec<Option<Box<Seen>>>,
    seen_users: usize,
    /// Number of the last batch.
    batches: u64,
    /// Users in a batch that arrived while the table is loaded: a page may be older. `None`: it is not being loaded.
    touched: Option<BTreeSet<u64>>,
    is_whole: bool,
}

impl Table {
    /// An empty table for one shard of `shards`, of a store with this number of buckets. `seed` keys the hash.
    pub fn new(shards: u16, buckets: u32, seed: u64) -> Self {
        Table {
            shards,
            seed,
            pages: vec![Vec::new()],
            base: 1,
            users: 0,
            bytes: 0,
            seen: (0..buckets).map(|_| None).collect(),
            seen_users: 0,
            batches: 0,
            touched: None,
            is_whole: false,
        }
    }

    // ---- Loading ----------------------------------------------------------------------------------------------------

    /// Starts to load: forgets all. Pages that were read later have at least what the store had after batch `batches`.
    pub fn begin(&mut self, batches: u64) {
        *self = Table::new(self.shards, self.seen.len() as u32, self.seed);
        (self.batches, self.touched) = (batches, Some(BTreeSet::new()));
    }

    /// A page of the store's records. Returns the number of its users.
    pub fn page(&mut self, bytes: &[u8]) -> Result<usize, TableError> {
        let users = page(bytes).ok_or(TableError::Malformed)?;
        for (user, record) in &users {
            if !self.is_touched(*user) {
                self.put(*user, record)?;
            }
        }
        Ok(users.len())
    }

    /// A page of the store's last-seen times: the store's clock in seconds (4 B); then for each bucket its number, the
    /// seconds until it is forgotten, the number of its users (4 B each), and its users, each with the second (4 B).
    pub fn seen_page(&mut self, bytes: &[u8]) -> Result<(), TableError> {
        self.read_seen(bytes).ok_or(TableError::Malformed)
    }

    fn read_seen(&mut self, bytes: &[u8]) -> Option<()> {
        let mut rest = bytes;
        let now_s = u64::from(number(&mut rest)?);
        while !rest.is_empty() {
            let (at, left_s, count) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
            for _ in 0..count {
                let (user, at_s) = (user(&mut rest)?, number(&mut rest)?);
                if !self.is_touched(user) {
                    self.went(at, user, at_s, now_s, u64::from(left_s))?;
                }
            }
        }
        Some(())
    }

    /// All pages were taken, so the table is a copy.
    pub fn loaded(&mut self) {
        (self.touched, self.is_whole) = (None, true);
    }

    // ---- Batches ----------------------------------------------------------------------------------------------------

    /// Takes a batch as a writer packs it for its store, which wrote it at second `at_s`. `false`: it is not the next
    /// one, and the table must be loaded again; an earlier one changes nothing.
    pub fn batch(&mut self, number: u64, users: &[u8], gone: &[u8], at_s: u64) -> Result<bool, TableError> {
        if number != self.batches + 1 {
            self.is_whole &= number <= self.batches;
            return Ok(number <= self.batches);
        }
        for (user, record) in page(users).ok_or(TableError::Malformed)? {
            self.touch(user);
            self.put(user, record)?;
        }
        self.read_gone(gone, at_s).ok_or(TableError::Malformed)?;
        self.batches = number;
        Ok(true)
    }

    fn read_gone(&mut self, bytes: &[u8], at_s: u64) -> Option<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (at, ago_s, user) = (number(&mut rest)?, number(&mut rest)?, user(&mut rest)?);
            self.touch(user);
            self.remove(user);
            let seen_s = u32::try_from(at_s.saturating_sub(u64::from(ago_s))).unwrap_or(u32::MAX);
            self.went(at, user, seen_s, at_s, TABLE_SEEN_S)?;
        }
        Some(())
    }

    // ---- Looking ----------------------------------------------------------------------------------------------------

    /// What the store would answer: a user's record, or the second at which it was last seen.
    pub(crate) fn get(&self, user: u64, now_s: u64) -> Value<'_> {
        match self.find(self.place(user), user) {
            Some(entry) => Value::Text(entry.record),
            None => Value::Number(self.seen_s(user, now_s)),
        }
    }

    fn seen_s(&self, user: u64, now_s: u64) -> u32 {
        let at = bucket(user, self.shards, self.seen.len() as u32);
        let seen = self.seen.get(at as usize).and_then(Option::as_ref);
        let Some(seen) = seen.filter(|seen| now_s < seen.ends_s) else {
            return 0;
        };
        let place = seen.users.iter().position(|known| *known == user);
        place.map_or(0, |place| seen.at_s[place])
    }

    /// Whether it is a copy of the store after [`Table::batches`].
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Number of users with a record.
    pub fn users_len(&self) -> usize {
        self.users
    }

    /// Bytes of memory, without those that the allocator adds.
    pub fn bytes(&self) -> usize {
        let pages = self.pages.capacity() * std::mem::size_of::<Vec<u8>>();
        let buckets = self.seen.capacity() * std::mem::size_of::<Option<Box<Seen>>>();
        self.bytes + pages + buckets + self.seen_users * 12
    }

    // ---- Helpers ----------------------------------------------------------------------------------------------------

    /// Whether a batch had the user while the table is loaded, so that a page of it may be older.
    fn is_touched(&self, user: u64) -> bool {
        self.touched.as_ref().is_some_and(|touched| touched.contains(&user))
    }

    fn touch(&mut self, user: u64) {
        if let Some(touched) = &mut self.touched {
            touched.insert(user);
        }
    }

    fn hash(&self, user: u64) -> u64 {
        let mut hash = user ^ self.seed;
        hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ hash >> 31
    }

    /// The page of a user.
    fn place(&self, user: u64) -> usize {
        let hash = self.hash(user) as usize;
        match hash & (2 * self.base - 1) {
            place if place < self.pages.len() => place,
            _ => hash & (self.base - 1),
        }
    }

    fn find(&self, place: usize, user: u64) -> Option<Entry<'_>> {
        Entries(&self.pages[place], 0).find(|entry| entry.user == user)
    }

    fn put(&mut self, user: u64, record: &[u8]) -> Result<(), TableError> {
        let place = self.place(user);
        let known = self
            .find(place, user)
            .map(|entry| (entry.begin, entry.end, entry.record.len()));
        let page = &mut self.pages[place];
        let before = page.capacity();
        match known {
            Some((_, end, len)) if len == record.len() => page[end - len..end].copy_from_slice(record),
            _ => {
                if let Some((begin, end, _)) = known {
                    page.drain(begin..end);
                } else if self.users >= TABLE_USERS_MAX {
                    return Err(TableError::TooManyUsers);
                }
                append(page, user, record);
                self.bytes = self.bytes + page.capacity() - before;
                if known.is_none() {
                    self.users += 1;
                    self.grow();
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, user: u64) {
        let place = self.place(user);
        let Some(Entry { begin, end, .. }) = self.find(place, user) else {
            return;
        };
        let page = &mut self.pages[place];
        let before = page.capacity();
        page.drain(begin..end);
        page.shrink_to_fit();
        self.bytes = self.bytes + page.capacity() - before;
        self.users -= 1;
    }

    /// Adds a page when there are more users than the pages should have.
    fn grow(&mut self) {
        if self.users <= self.pages.len() * FILL {
            return;
        }
        let new = self.pages.len();
        let old = new - self.base;
        let page = std::mem::take(&mut self.pages[old]);
        self.bytes -= page.capacity();
        self.pages.push(Vec::new());
        if self.pages.len() == 2 * self.base {
            self.base *= 2;
        }
        let mut parts = [Vec::new(), Vec::new()];
        for entry in Entries(&page, 0) {
            let part = &mut parts[usize::from(self.place(entry.user) == new)];
            part.extend_from_slice(&page[entry.begin..entry.end]);
        }
        for (at, mut part) in [old, new].into_iter().zip(parts) {
            part.shrink_to_fit();
            self.bytes += part.capacity();
            self.pages[at] = part;
        }
    }

    /// A user was last seen at `at_s`; its bucket is forgotten `left_s` after `now_s`. As the store's scripts do it: a
    /// bucket with too many users is emptied.
    fn went(&mut self, at: u32, user: u64, at_s: u32, now_s: u64, left_s: u64) -> Option<()> {
        let seen = self.seen.get_mut(at as usize)?.get_or_insert_default();
        if seen.ends_s <= now_s {
            self.seen_users -= seen.users.len();
            (seen.users, seen.at_s) = (Vec::new(), Vec::new());
        }
        match seen.users.iter().position(|known| *known == user) {
            Some(place) => seen.at_s[place] = at_s,
            None if seen.users.len() >= TABLE_SEEN_MAX => {
                self.seen_users -= seen.users.len();
                (seen.users, seen.at_s) = (Vec::new(), Vec::new());
            }
            None => {
                self.seen_users += 1;
                seen.users.push(user);
                seen.at_s.push(at_s);
            }
        }
        seen.ends_s = seen.ends_s.max(now_s + left_s);
        Some(())
    }
}

/// One user of a page.
struct Entry<'a> {
    user: u64,
    record: &'a [u8],
    /// Where it begins and ends in its page.
    begin: usize,
    end: usize,
}

/// The users of a page from a place on.
struct Entries<'a>(&'a [u8], usize);

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        let Entries(page, begin) = *self;
        let head: &[u8; 9] = page.get(begin..)?.first_chunk()?;
        let user = u64::from_le_bytes(*head.first_chunk()?);
        let (len, at) = match head[8] {
            u8::MAX => {
                let len: &[u8; 4] = page.get(begin + 9..)?.first_chunk()?;
                (u32::from_le_bytes(*len) as usize, begin + 13)
            }
            len => (usize::from(len), begin + 9),
        };
        let record = page.get(at..at + len)?;
        let end = at + len;
        self.1 = end;
        Some(Entry {
            user,
            record,
            begin,
            end,
        })
    }
}

/// Adds a user to a page, which takes no more memory than it needs.
fn append(page: &mut Vec<u8>, user: u64, record: &[u8]) {
    page.reserve_exact(13 + record.len());
    page.extend_from_slice(&user.to_le_bytes());
    match u8::try_from(record.len()) {
        Ok(len) if len < u8::MAX => page.push(len),
        _ => {
            page.push(u8::MAX);
            page.extend_from_slice(&(record.len() as u32).to_le_bytes());
        }
    }
    page.extend_from_slice(record);
}

/// A number of 4 B.
fn number(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*take(rest, 4)?.first_chunk()?))
}

/// A user in digits, after 1 B of length.
fn user(rest: &mut &[u8]) -> Option<u64> {
    let len = usize::from(take(rest, 1)?[0]);
    digits(take(rest, len)?)
}
