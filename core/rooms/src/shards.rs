//! A map by room id that can be read in pages, each at a cost independent of the map's size.
//!
//! Many small hash tables, by the first bits of a room's *place*: its id times an odd number, so that any ids are
//! spread and each has a place of its own. Places order the pages, and stay the same while the map grows. Knows no
//! gateway.

use std::collections::hash_map::{Entry, HashMap};

use muster_transport::KeyedState;

/// Average rooms of a table before the number of tables doubles. A page scans one table more than it needs, some 50
/// us. Smaller tables would be more numerous, and their headers would miss every cache.
const SHARD: usize = 3_400;
/// The capacity of a table with 4,096 slots: three standard deviations above the average.
const CAPACITY: usize = 3_584;

pub struct Shards<V> {
    /// Their number is a power of two.
    tables: Vec<HashMap<u64, V, KeyedState>>,
    len: usize,
    hash: KeyedState,
}

/// A part of all rooms, ordered by place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub rooms: Vec<u64>,
    /// The place at which the next page starts, if there may be more.
    pub next: Option<u64>,
    /// Number of rooms and tables scanned.
    pub visited: usize,
}

fn place(room: u64) -> u64 {
    room.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<V> Shards<V> {
    pub fn new(hash: KeyedState) -> Self {
        Shards {
            tables: vec![HashMap::with_hasher(hash)],
            len: 0,
            hash,
        }
    }

    fn table_of(&self, place: u64) -> usize {
        // Shifting 64 bits by 64 gives `None`: a single table.
        place.checked_shr(64 - self.tables.len().ilog2()).unwrap_or(0) as usize
    }

    /// The first place of a table, if there is such a table.
    fn first(&self, table: usize) -> Option<u64> {
        (table < self.tables.len()).then(|| (table as u64).checked_shl(64 - self.tables.len().ilog2()).unwrap_or(0))
    }

    pub fn get(&self, room: u64) -> Option<&V> {
        self.tables[self.table_of(place(room))].get(&room)
    }

    pub fn get_mut(&mut self, room: u64) -> Option<&mut V> {
        let table = self.table_of(place(room));
        self.tables[table].get_mut(&room)
    }

    pub fn contains(&self, room: u64) -> bool {
        self.get(room).is_some()
    }

    /// The room's value; if it has none, `value` is stored, and `None` returned.
    pub fn get_or_insert(&mut self, room: u64, value: V) -> Option<&mut V> {
        if self.len >= SHARD * self.tables.len() {
            self.double();
        }
        let table = self.table_of(place(room));
        match self.tables[table].entry(room) {
            Entry::Occupied(had) => Some(had.into_mut()),
            Entry::Vacant(place) => {
                place.insert(value);
                self.len += 1;
                None
            }
        }
    }

    pub fn remove(&mut self, room: u64) -> Option<V> {
        let table = self.table_of(place(room));
        let removed = self.tables[table].remove(&room);
        self.len -= usize::from(removed.is_some());
        removed
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64, &V) -> bool) {
        for table in &mut self.tables {
            let before = table.len();
            table.retain(|room, value| keep(*room, value));
            self.len -= before - table.len();
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.tables.iter().flatten().map(|(room, value)| (*room, value))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn double(&mut self) {
        let half = 1 << (63 - self.tables.len().ilog2());
        let mut tables = Vec::with_capacity(2 * self.tables.len());
        for table in std::mem::take(&mut self.tables) {
            let mut halves = [(); 2].map(|()| HashMap::with_capacity_and_hasher(CAPACITY, self.hash));
            for (room, value) in table {
                halves[usize::from(place(room) & half != 0)].insert(room, value);
            }
            tables.extend(halves);
        }
        self.tables = tables;
    }

    /// At most `limit` rooms whose place is `from` or later. Scans about `limit` rooms and tables plus one table, so
    /// a page may be short though there is a `next` one.
    pub fn page(&self, from: u64, limit: usize) -> Page {
        let mut page = Page::default();
        let mut at = self.table_of(from);
        page.next = Some(from);
        while page.visited < limit {
            let Some(table) = self.tables.get(at) else {
                page.next = None;
                break;
            };
            page.visited += 1 + table.len();
            let mut rooms: Vec<(u64, u64)> = table.keys().map(|room| (place(*room), *room)).collect();
            rooms.retain(|(place, _)| *place >= from);
            rooms.sort_unstable();
            let taken = rooms.len().min(limit - page.rooms.len());
            page.rooms.extend(rooms[..taken].iter().map(|(_, room)| *room));
            at += 1;
            page.next = rooms.get(taken).map(|(place, _)| *place).or(self.first(at));
            if taken < rooms.len() || page.next.is_none() {
                break;
            }
        }
        page
    }
}

/// The content of at most `limit` slots of a list from one on, and the next slot, if there is one.
pub fn places<T>(list: &[Option<Box<T>>], from: usize, limit: usize) -> (impl Iterator<Item = &T>, Option<usize>) {
    let end = from.saturating_add(limit).min(list.len());
    let page = list[from.min(end)..end].iter().flatten().map(|item| &**item);
    (page, (end < list.len()).then_some(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn shards(rooms: impl Iterator<Item = u64>) -> Shards<u64> {
        let mut shards = Shards::new(KeyedState::new(1, 2));
        rooms.for_each(|room| assert_eq!(shards.get_or_insert(room, !room), None));
        shards
    }

    /// The rooms of all pages, and the most that one page scanned.
    fn pages(shards: &Shards<u64>, limit: usize) -> (Vec<u64>, usize) {
        let (mut rooms, mut most, mut from) = (Vec::new(), 0, Some(0));
        while let Some(place) = from {
            let page = shards.page(place, limit);
            assert!(page.rooms.len() <= limit && page.next.is_none_or(|next| next > place));
            rooms.extend(page.rooms);
            most = page.visited.max(most);
            from = page.next;
        }
        (rooms, most)
    }

    #[test]
    fn a_page_of_a_million_rooms_scans_only_its_own_and_one_table() {
        let shards = shards(1..=1_000_000);
        let largest = shards.tables.iter().map(HashMap::len).max().unwrap();
        assert!(largest < 2 * SHARD, "{largest}");
        for from in [0, 1 << 63, u64::MAX] {
            let visited = shards.page(from, 100).visited;
            assert!(visited <= 100 + 2 * SHARD, "{visited}");
        }
        let (rooms, most) = pages(&shards, 1_000);
        assert!(most <= 1_000 + 2 * SHARD, "{most}");
        assert_eq!(
            (rooms.len(), rooms.into_iter().collect::<BTreeSet<_>>().len()),
            (1_000_000, 1_000_000)
        );
    }

    #[test]
    fn an_emptied_map_is_scanned_in_parts() {
        let mut shards = shards(1..=1_000_000);
        shards.retain(|room, _| room == 7);
        assert_eq!(shards.len(), 1);
        let (rooms, most) = pages(&shards, 100);
        assert_eq!((rooms, most <= 102), (vec![7], true), "{most}");
    }

    #[test]
    fn each_lasting_room_is_listed_once_while_the_map_grows_and_shrinks() {
        let mut shards = shards(1..=1_000);
        let first = shards.page(0, 400);
        (10_001..=20_000).for_each(|room| assert_eq!(shards.get_or_insert(room, 0), None));
        assert!((1..=500).all(|room| shards.remove(room).is_some()));
        let mut met: Vec<u64> = first.rooms;
        let mut from = first.next;
        while let Some(place) = from {
            let page = shards.page(place, 400);
            met.extend(page.rooms);
            from = page.next;
        }
        met.retain(|room| (501..=1_000).contains(room));
        met.sort_unstable();
        assert_eq!(met, (501..=1_000).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0u64..3_000), 0..5_000)) {
            let (mut shards, mut map) = (shards(0..0), BTreeMap::new());
            for (at, (put, room)) in steps.into_iter().enumerate() {
                if put {
                    let had = shards.get_or_insert(room, at as u64).map(|had| std::mem::replace(had, at as u64));
                    prop_assert_eq!(had, map.insert(room, at as u64));
                } else {
                    prop_assert_eq!(shards.remove(room), map.remove(&room));
                }
                prop_assert_eq!(shards.get(room), map.get(&room));
                prop_assert_eq!(shards.len(), map.len());
            }
            let all: BTreeMap<u64, u64> = shards.iter().map(|(room, value)| (room, *value)).collect();
            prop_assert_eq!(&all, &map);
            let mut paged = pages(&shards, 50).0;
            paged.sort_unstable();
            prop_assert_eq!(paged, map.into_keys().collect::<Vec<_>>());
        }
    }
}
