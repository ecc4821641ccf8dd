//! A share of all rooms: those whose number leaves `index` when divided by `count`, a power of two.

use crate::codec::{Reader, Writer};

/// Maximum number of partitions of a layer.
pub const PARTITIONS_MAX: u16 = 256;

/// A share of all rooms. Of two scopes, one contains the other or they are disjoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    count: u16,
    index: u16,
}

impl Scope {
    pub const ALL: Scope = Scope { count: 1, index: 0 };

    pub fn new(count: u16, index: u16) -> Option<Self> {
        let good = count.is_power_of_two() && count <= PARTITIONS_MAX && index < count;
        good.then_some(Scope { count, index })
    }

    /// Number of parts, and the index of this one.
    pub fn part(self) -> (u16, u16) {
        (self.count, self.index)
    }

    #[inline]
    pub fn has(self, room: u64) -> bool {
        room & u64::from(self.count - 1) == u64::from(self.index)
    }

    pub fn within(self, other: Scope) -> bool {
        self.count >= other.count && self.index & (other.count - 1) == other.index
    }

    /// The rooms in both scopes: the finer scope, or none.
    pub fn meet(self, other: Scope) -> Option<Scope> {
        match (self.within(other), other.within(self)) {
            (true, _) => Some(self),
            (_, true) => Some(other),
            _ => None,
        }
    }

    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Scope::new(reader.u16()?, reader.u16()?)
    }

    pub fn write(self, writer: &mut Writer<'_>) {
        writer.u16(self.count).u16(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_scopes_meet_in_the_finer_one() {
        let all = (0..=3).flat_map(|bits| (0..1 << bits).map(move |index| Scope::new(1 << bits, index).unwrap()));
        let all: Vec<Scope> = all.collect();
        let rooms = |scope: Scope| (0..64).filter(move |room| scope.has(*room));
        for one in &all {
            for other in &all {
                let common: Vec<u64> = rooms(*one).filter(|room| other.has(*room)).collect();
                let met: Vec<u64> = one.meet(*other).map_or(Vec::new(), |both| rooms(both).collect());
                assert_eq!(met, common, "{one:?} {other:?}");
                assert_eq!(one.within(*other), rooms(*one).all(|room| other.has(room)));
            }
        }
    }

    #[test]
    fn a_count_that_is_no_power_of_two_is_refused() {
        for (count, index) in [(0, 0), (3, 1), (1, 1), (4, 4), (512, 0)] {
            assert_eq!(Scope::new(count, index), None);
        }
    }
}
