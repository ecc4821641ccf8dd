//! The set of users who like one item, as dense ids.
//!
//! Owns the two forms of the set, and the portable roaring format in which it is stored. Knows no user ids.

use crate::limits::SMALL_MAX;
use crate::record::BitOp;
use roaring::RoaringBitmap;

pub(crate) enum Likers {
    /// Sorted; at most [`SMALL_MAX`].
    Few(Vec<u32>),
    /// With its size: counting a bitmap walks its containers.
    Many(Box<RoaringBitmap>, u64),
}

impl Default for Likers {
    fn default() -> Likers {
        Likers::Few(Vec::new())
    }
}

impl Likers {
    pub fn len(&self) -> u64 {
        match self {
            Likers::Few(few) => few.len() as u64,
            Likers::Many(_, len) => *len,
        }
    }

    pub fn contains(&self, dense: u32) -> bool {
        match self {
            Likers::Few(few) => few.binary_search(&dense).is_ok(),
            Likers::Many(many, _) => many.contains(dense),
        }
    }

    /// `true` if `dense` was new.
    pub fn insert(&mut self, dense: u32) -> bool {
        match self {
            Likers::Few(few) => {
                let Err(at) = few.binary_search(&dense) else {
                    return false;
                };
                if few.len() < SMALL_MAX {
                    if few.len() == few.capacity() {
                        few.reserve_exact(few.len() / 8 + 4); // doubling would leave a quarter of all memory empty
                    }
                    few.insert(at, dense);
                } else {
                    let mut many = RoaringBitmap::from_sorted_iter(few.iter().copied()).expect("the vector is sorted");
                    many.insert(dense);
                    *self = Likers::Many(Box::new(many), SMALL_MAX as u64 + 1);
                }
                true
            }
            Likers::Many(many, len) => {
                let new = many.insert(dense);
                *len += u64::from(new);
                new
            }
        }
    }

    /// `true` if `dense` was present.
    pub fn remove(&mut self, dense: u32) -> bool {
        match self {
            Likers::Few(few) => {
                let found = few.binary_search(&dense);
                found.map(|at| few.remove(at)).is_ok()
            }
            Likers::Many(many, len) => {
                let was = many.remove(dense);
                *len -= u64::from(was);
                // Only below half the limit, so that toggling at the limit converts nothing.
                if *len as usize <= SMALL_MAX / 2 {
                    *self = Likers::Few(many.iter().collect());
                }
                was
            }
        }
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Likers::Few(few) => Box::new(few.iter().copied()),
            Likers::Many(many, _) => Box::new(many.iter()),
        }
    }

    /// As [`Likers::iter`], from the highest id down.
    pub fn iter_down(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Likers::Few(few) => Box::new(few.iter().rev().copied()),
            Likers::Many(many, _) => Box::new(many.iter().rev()),
        }
    }

    /// As [`Likers::iter`], starting with the `from`th, without walking those before it.
    pub fn iter_from(&self, from: u64) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Likers::Few(few) => Box::new(few.iter().copied().skip(from as usize)),
            Likers::Many(many, _) => match u32::try_from(from).ok().and_then(|from| many.select(from)) {
                Some(first) => Box::new(many.range(first..)),
                None => Box::new(std::iter::empty()),
            },
        }
    }

    /// As [`Likers::iter`], starting with the first id that is at least `dense`.
    pub fn iter_at(&self, dense: u32) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            Likers::Few(few) => {
                let at = few.partition_point(|&other| other < dense);
                Box::new(few[at..].iter().copied())
            }
            Likers::Many(many, _) => Box::new(many.range(dense..)),
        }
    }

    pub fn bitmap(&self) -> RoaringBitmap {
        match self {
            Likers::Few(few) => RoaringBitmap::from_sorted_iter(few.iter().copied()).expect("the vector is sorted"),
            Likers::Many(many, _) => RoaringBitmap::clone(many),
        }
    }

    pub fn from_bitmap(bitmap: RoaringBitmap) -> Likers {
        match bitmap.len() {
            len if len as usize <= SMALL_MAX => Likers::Few(bitmap.iter().collect()),
            len => Likers::Many(Box::new(bitmap), len),
        }
    }

    /// The result over at least one set. `Not` is not defined on dense ids.
    pub fn combine(op: BitOp, sets: &[&Likers]) -> RoaringBitmap {
        let mut result = sets[0].bitmap();
        for set in &sets[1..] {
            match (op, set) {
                (BitOp::And, Likers::Few(few)) => {
                    let both = few.iter().copied().filter(|&dense| result.contains(dense));
                    result = RoaringBitmap::from_sorted_iter(both).expect("the vector is sorted");
                }
                (BitOp::And, Likers::Many(many, _)) => result &= &**many,
                (BitOp::Or, set) => result |= set.bitmap(),
                (BitOp::Xor | BitOp::Not, set) => result ^= set.bitmap(),
            }
        }
        result
    }

    /// Frees spare capacity.
    pub fn shrink(&mut self) {
        match self {
            Likers::Few(few) => few.shrink_to_fit(),
            Likers::Many(many, _) => **many = many.as_ref().clone(), // a clone's containers have no spare capacity
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Likers::Few(few) => few.capacity() * 4,
            Likers::Many(many, _) => {
                let statistics = many.statistics();
                // The crate counts four bytes for each value of an array container, which holds two.
                let bytes = statistics.n_bytes_array_containers / 2 + statistics.n_bytes_bitset_containers;
                bytes as usize + statistics.n_containers as usize * 40 + std::mem::size_of::<RoaringBitmap>()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn build(ids: &BTreeSet<u32>) -> Likers {
        let mut likers = Likers::default();
        for &id in ids {
            assert!(likers.insert(id) && !likers.insert(id));
        }
        likers
    }

    #[test]
    fn both_forms_hold_the_same_at_the_edge() {
        let mut likers = Likers::default();
        let mut model = BTreeSet::new();
        let ids = (0..6_000_u32).map(|at| at.wrapping_mul(2_654_435_761));
        for id in ids.clone() {
            assert_eq!(likers.insert(id), model.insert(id));
            assert_eq!(likers.len(), model.len() as u64);
        }
        assert!(matches!(likers, Likers::Many(..)));
        for id in ids {
            assert!(likers.contains(id));
            if id % 64 == 0 {
                assert!(likers.iter_down().eq(model.iter().rev().copied()));
                for dense in [0, id, id + 1, u32::MAX] {
                    assert!(likers.iter_at(dense).eq(model.range(dense..).copied()));
                }
                for from in [0, 1, model.len() / 2, model.len() - 1, model.len(), usize::MAX] {
                    assert!(likers.iter_from(from as u64).eq(model.iter().copied().skip(from)));
                }
            }
            assert!(likers.remove(id) && !likers.remove(id) && model.remove(&id));
            assert_eq!(likers.len(), model.len() as u64);
        }
        assert!(matches!(likers, Likers::Few(_)));
    }

    proptest! {
        #[test]
        fn operations_agree_with_plain_sets(sets in proptest::collection::vec(proptest::collection::btree_set(0..200_u32, 0..50), 1..4)) {
            let likers: Vec<Likers> = sets.iter().map(build).collect();
            let likers: Vec<&Likers> = likers.iter().collect();
            let fold = |op: fn(&BTreeSet<u32>, &BTreeSet<u32>) -> BTreeSet<u32>| {
                sets[1..].iter().fold(sets[0].clone(), |result, set| op(&result, set))
            };
            let ids = |op| Likers::combine(op, &likers).iter().collect::<BTreeSet<u32>>();
            prop_assert_eq!(ids(BitOp::And), fold(|a, b| a & b));
            prop_assert_eq!(ids(BitOp::Or), fold(|a, b| a | b));
            prop_assert_eq!(ids(BitOp::Xor), fold(|a, b| a ^ b));
        }
    }
}
