//! Maps 64-bit user ids to dense 32-bit ids and back, and keeps each user's items.
//!
//! Owns the segments of dense ids that the log assigned, the map, and the lists. Knows an item only by its number.
//!
//! A list is a chain of nodes, newest first, each with the second of its like. A like adds a node; taking it back leaves the node, so that no toggle
//! walks a long list. Reading skips nodes whose item the user no longer likes. A chain is rebuilt when fewer than
//! half of its nodes can count: each toggle pays O(1) for that.

use hashbrown::{DefaultHashBuilder, HashSet, HashTable};
use roaring::RoaringBitmap;
use std::hash::BuildHasher;

const NONE: u32 = u32::MAX;

/// Nodes that a chain may have beyond twice its items before it is rebuilt.
const SLACK: u32 = 16;

/// Parts of the map: the growth of one part moves 1/256 of the users, in under 1 ms at 5 million.
const PARTS: usize = 256;

/// Dense ids `first..first + ids`; `base` is the index of the first in the list of users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub first: u32,
    pub ids: u32,
    base: u32,
}

/// A node of a user's list, by which a later page finds it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub node: u32,
    /// How often the list was rebuilt before.
    pub rebuilt: u32,
    pub item: u32,
    pub at_s: u32,
}

struct User {
    id: u64,
    /// The newest node of the chain.
    head: u32,
    nodes: u32,
    /// At least the number of items that this user likes.
    likes_at_most: u32,
    /// Increases whenever the chain is rebuilt.
    rebuilt: u32,
}

impl User {
    fn new(id: u64) -> User {
        User {
            id,
            head: NONE,
            nodes: 0,
            likes_at_most: 0,
            rebuilt: 0,
        }
    }
}

struct Node {
    item: u32,
    older: u32,
    /// Seconds since 1970; 0: unknown.
    at_s: u32,
}

#[derive(Default)]
pub(crate) struct Users {
    hasher: DefaultHashBuilder,
    /// Indices in `list`.
    parts: Vec<HashTable<u32>>,
    list: Vec<User>,
    /// Dense ids of users that were erased. They are never given to others.
    erased: RoaringBitmap,
    /// Sorted by their first id.
    segments: Vec<Segment>,
    /// Total number of ids in all segments.
    ids: u64,
    nodes: Vec<Node>,
    free: u32,
    lists: bool,
}

/// The part of the map for users with this hash. It uses none of the bits that `HashTable` uses: the lowest ones for
/// a slot, the highest seven for a tag. With bits of the slot, all users of a part would start at every 256th slot.
fn part(hash: u64) -> usize {
    (hash >> 40) as usize % PARTS
}

impl Users {
    pub fn new(lists: bool) -> Users {
        Users {
            parts: (0..PARTS).map(|_| HashTable::new()).collect(),
            free: NONE,
            lists,
            ..Users::default()
        }
    }

    /// Number of users that ever got a dense id, those that were erased included.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The dense ids of users that were erased.
    pub fn erased(&self) -> &RoaringBitmap {
        &self.erased
    }

    /// Dense ids that are not assigned yet.
    pub fn ids_left(&self) -> u64 {
        self.ids - self.list.len() as u64
    }

    /// The first dense id above all segments, if there is one.
    pub fn next_segment(&self) -> Option<u32> {
        self.segments
            .last()
            .map_or(Some(0), |last| last.first.checked_add(last.ids))
    }

    /// Adds a segment; `false` and no change if it is empty or overlaps an existing one.
    pub fn add_segment(&mut self, first: u32, ids: u32) -> bool {
        let at = self.segments.partition_point(|segment| segment.first < first);
        let end = u64::from(first) + u64::from(ids);
        let below = at.checked_sub(1).map(|below| self.segments[below]);
        let overlaps = below.is_some_and(|below| u64::from(below.first) + u64::from(below.ids) > u64::from(first))
            || self.segments.get(at).is_some_and(|above| end > u64::from(above.first));
        if ids == 0 || end > u64::from(NONE) || overlaps {
            return false;
        }
        // Ids are assigned in the order of the segments' arrival.
        self.segments.insert(
            at,
            Segment {
                first,
                ids,
                base: self.ids as u32,
            },
        );
        self.ids += u64::from(ids);
        true
    }

    /// In the order of their arrival.
    pub fn segments(&self) -> Vec<Segment> {
        let mut segments = self.segments.clone();
        segments.sort_unstable_by_key(|segment| segment.base);
        segments
    }

    /// The dense id of a user, if it has one.
    pub fn find(&self, id: u64) -> Option<u32> {
        let hash = self.hasher.hash_one(id);
        let part = &self.parts[part(hash)];
        let place = *part.find(hash, |&place| self.list[place as usize].id == id)?;
        Some(self.dense(place))
    }

    /// The dense id of a user, a new one if necessary; `None` if none is left.
    pub fn find_or_add(&mut self, id: u64) -> Option<u32> {
        if let Some(dense) = self.find(id) {
            return Some(dense);
        }
        if self.ids_left() == 0 {
            return None;
        }
        let hash = self.hasher.hash_one(id);
        let place = self.list.len() as u32;
        self.list.push(User::new(id));
        let (list, hasher) = (&self.list, &self.hasher);
        self.parts[part(hash)].insert_unique(hash, place, |&place| hasher.hash_one(list[place as usize].id));
        Some(self.dense(place))
    }

    /// The user of a dense id.
    pub fn id(&self, dense: u32) -> u64 {
        self.list[self.place(dense) as usize].id
    }

    /// Erases a user: the id and the list go, and the dense id stays without a user.
    pub fn erase(&mut self, dense: u32) {
        let place = self.place(dense);
        let hash = self.hasher.hash_one(self.list[place as usize].id);
        if let Ok(found) = self.parts[part(hash)].find_entry(hash, |&other| other == place) {
            found.remove();
        }
        self.free_chain(place as usize);
        self.list[place as usize] = User::new(0);
        self.erased.insert(dense);
    }

    /// Restores the place of an erased user; `None` if no dense id is left.
    pub fn add_erased(&mut self) -> Option<u32> {
        if self.ids_left() == 0 {
            return None;
        }
        let place = self.list.len() as u32;
        self.list.push(User::new(0));
        let dense = self.dense(place);
        self.erased.insert(dense);
        Some(dense)
    }

    /// The dense id of the next new user; `None` if none is left.
    pub fn next_dense(&self) -> Option<u32> {
        (self.ids_left() > 0).then(|| self.dense(self.list.len() as u32))
    }

    /// Users in the order in which their dense ids were assigned, starting with the `from`th; 0 for one that was erased.
    pub fn ids(&self, from: usize) -> impl Iterator<Item = u64> + '_ {
        self.list[from.min(self.list.len())..].iter().map(|user| user.id)
    }

    /// As [`Users::ids`], with the dense ids; `None` for a user that was erased.
    pub fn pairs(&self, from: usize) -> impl Iterator<Item = (u32, Option<u64>)> + '_ {
        (from as u32..).zip(self.ids(from)).map(|(place, id)| {
            let dense = self.dense(place);
            (dense, (!self.erased.contains(dense)).then_some(id))
        })
    }

    /// User `dense` likes `item` since `at_s`. `likes` returns whether a user likes an item now.
    pub fn liked(&mut self, dense: u32, item: u32, at_s: u32, likes: impl Fn(u32) -> bool) {
        if !self.lists {
            return;
        }
        let place = self.place(dense) as usize;
        let user = &mut self.list[place];
        if user.nodes >= 2 * user.likes_at_most + SLACK {
            self.make_anew(place, likes);
        }
        let node = Node {
            item,
            older: self.list[place].head,
            at_s,
        };
        let at = match self.free {
            NONE => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
            free => {
                self.free = self.nodes[free as usize].older;
                self.nodes[free as usize] = node;
                free
            }
        };
        let user = &mut self.list[place];
        user.head = at;
        user.nodes += 1;
        user.likes_at_most += 1;
    }

    pub fn took_back(&mut self, dense: u32) {
        let place = self.place(dense) as usize;
        self.list[place].likes_at_most = self.list[place].likes_at_most.saturating_sub(1);
    }

    /// The items that a user likes with the seconds of the likes, newest first, each once; at most `most` of them.
    pub fn items(&self, dense: u32, most: usize, likes: impl Fn(u32) -> bool) -> Vec<(u32, u32)> {
        let mut seen = HashSet::new();
        let mut items = Vec::new();
        let mut at = self.list[self.place(dense) as usize].head;
        while let Some(node) = self.nodes.get(at as usize).filter(|_| items.len() < most) {
            if seen.insert(node.item) && likes(node.item) {
                items.push((node.item, node.at_s));
            }
            at = node.older;
        }
        items
    }

    /// Rebuilds a list that has nodes of items that the user likes no more.
    pub fn compact(&mut self, dense: u32, likes: impl Fn(u32) -> bool) {
        // Their numbers do not tell whether an item is there twice: the number of likes is a bound.
        self.make_anew(self.place(dense) as usize, likes);
    }

    /// Items that a user likes with the seconds of the likes, newest first, behind a place of the list: at most `most`
    /// of at most `walked` nodes, and the place of the last one, `None` at the end.
    ///
    /// If the list was rebuilt since, the place is searched again, by the item or else by the second.
    pub fn list_behind(
        &self,
        dense: u32,
        behind: Option<Place>,
        walked: usize,
        likes: impl Fn(u32) -> bool,
        most: usize,
    ) -> (Option<Place>, Vec<(u32, u32)>) {
        let user = &self.list[self.place(dense) as usize];
        let mut at = match behind {
            None => user.head,
            Some(place) => self.behind(user, place),
        };
        let (mut last, mut items, mut walked) = (behind, Vec::new(), walked);
        while let Some(node) = self.nodes.get(at as usize).filter(|_| items.len() < most && walked > 0) {
            if likes(node.item) {
                items.push((node.item, node.at_s));
            }
            last = Some(Place {
                node: at,
                rebuilt: user.rebuilt,
                item: node.item,
                at_s: node.at_s,
            });
            walked -= 1;
            at = node.older;
        }
        (last.filter(|_| at != NONE), items)
    }

    /// The node behind a place.
    fn behind(&self, user: &User, place: Place) -> u32 {
        let is_it = |node: &Node| (node.item, node.at_s) == (place.item, place.at_s);
        if let Some(node) = self.nodes.get(place.node as usize).filter(|node| is_it(node)) {
            if user.rebuilt == place.rebuilt {
                return node.older;
            }
        }
        let chain = |from: u32| {
            std::iter::successors(self.nodes.get(from as usize), |node| {
                self.nodes.get(node.older as usize)
            })
        };
        if let Some(node) = chain(user.head).find(|node| is_it(node)) {
            return node.older;
        }
        let mut at = user.head;
        while let Some(node) = self.nodes.get(at as usize).filter(|node| node.at_s > place.at_s) {
            at = node.older;
        }
        at
    }

    /// Number of nodes that a walk through a user's items may visit.
    pub fn chain_len(&self, dense: u32) -> u32 {
        self.list[self.place(dense) as usize].nodes
    }

    /// The chain of the `place`th user as it is, newest first, with the seconds of the likes, and the bound on its items:
    /// for snapshots.
    pub fn chain(&self, place: usize) -> (u32, impl Iterator<Item = (u32, u32)> + '_) {
        let user = &self.list[place];
        let first = self.nodes.get(user.head as usize);
        let nodes = std::iter::successors(first, |node| self.nodes.get(node.older as usize));
        (user.likes_at_most, nodes.map(|node| (node.item, node.at_s)))
    }

    /// Restores a chain from [`Users::chain`] for the `place`th user, which has none yet.
    pub fn restore_chain(&mut self, place: usize, likes_at_most: u32, items: &[(u32, u32)]) {
        let mut head = NONE;
        for &(item, at_s) in items.iter().rev() {
            self.nodes.push(Node {
                item,
                older: head,
                at_s,
            });
            head = self.nodes.len() as u32 - 1;
        }
        let user = &mut self.list[place];
        (user.head, user.nodes, user.likes_at_most) = (head, items.len() as u32, likes_at_most);
    }

    fn make_anew(&mut self, place: usize, likes: impl Fn(u32) -> bool) {
        let items = self.items(self.dense(place as u32), usize::MAX, likes);
        self.free_chain(place);
        let mut head = NONE;
        for &(item, at_s) in items.iter().rev() {
            let at = self.free;
            let node = Node {
                item,
                older: head,
                at_s,
            };
            self.free = std::mem::replace(&mut self.nodes[at as usize], node).older;
            head = at;
        }
        let user = &mut self.list[place];
        (user.head, user.nodes, user.likes_at_most) = (head, items.len() as u32, items.len() as u32);
        user.rebuilt = user.rebuilt.wrapping_add(1);
    }

    fn free_chain(&mut self, place: usize) {
        let mut at = self.list[place].head;
        while let Some(node) = self.nodes.get_mut(at as usize) {
            (node.item, node.at_s) = (0, 0);
            let older = std::mem::replace(&mut node.older, self.free);
            self.free = at;
            at = older;
        }
    }

    fn dense(&self, place: u32) -> u32 {
        // It is nearly always the last segment, where new users are added.
        let of = |segment: &&Segment| place >= segment.base && place - segment.base < segment.ids;
        let segment = self
            .segments
            .iter()
            .rev()
            .find(of)
            .expect("each user has an id of a segment");
        segment.first + (place - segment.base)
    }

    /// Whether a user has this dense id.
    pub fn has(&self, dense: u32) -> bool {
        let after = self.segments.partition_point(|segment| segment.first <= dense);
        after.checked_sub(1).is_some_and(|at| {
            let segment = self.segments[at];
            let place = u64::from(segment.base) + u64::from(dense - segment.first);
            dense - segment.first < segment.ids && place < self.list.len() as u64
        })
    }

    pub fn place(&self, dense: u32) -> u32 {
        let after = self.segments.partition_point(|segment| segment.first <= dense);
        let segment = self.segments[after - 1];
        segment.base + (dense - segment.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_one_part_start_at_all_slots_of_its_table() {
        let users = Users::new(false);
        let hashes = (0..200_000).map(|id| users.hasher.hash_one(id as u64));
        let places: HashSet<_> = hashes
            .filter(|&hash| part(hash) == 3)
            .map(|hash| hash as usize % 1_024)
            .collect();
        // About 781 users: random balls in 1,024 boxes hit about 546 of them, this hash 390 to 550 by its seed. With
        // bits of the slot it would be 4.
        assert!(places.len() > 200, "{}", places.len());
    }

    #[test]
    fn ids_come_from_the_segments_in_order_of_arrival() {
        let mut users = Users::new(true);
        assert_eq!(users.find_or_add(5), None);
        assert!(users.add_segment(100, 2));
        assert!(users.add_segment(10, 2));
        for (first, ids) in [(99, 2), (101, 1), (9, 2), (11, 100), (50, 0), (u32::MAX - 1, 2)] {
            assert!(!users.add_segment(first, ids), "{first} {ids}");
        }
        let dense: Vec<_> = [7, u64::MAX, 7, 0, 8, 9]
            .iter()
            .map(|&id| users.find_or_add(id))
            .collect();
        assert_eq!(dense, [Some(100), Some(101), Some(100), Some(10), Some(11), None]);
        assert_eq!([100, 101, 10, 11].map(|dense| users.id(dense)), [7, u64::MAX, 0, 8]);
        assert_eq!(users.next_segment(), Some(102));
        assert_eq!(users.find(9), None);
    }

    #[test]
    fn toggling_forever_keeps_a_chain_short() {
        let mut users = Users::new(true);
        users.add_segment(0, 1);
        let user = users.find_or_add(1).unwrap();
        users.liked(user, 9, 77, |item| item == 9);
        for at_s in 0..10_000 {
            users.liked(user, 3, at_s, |item| item == 9);
            users.took_back(user);
        }
        assert_eq!(users.items(user, 9, |item| item == 9), [(9, 77)]);
        assert_eq!(users.items(user, 0, |item| item == 9), []);
        assert!(users.nodes.len() < 40, "{} nodes", users.nodes.len());
    }
}
