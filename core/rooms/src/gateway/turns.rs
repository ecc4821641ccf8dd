//! The order of messages when several brokers number one room, as during a move: a publisher's message goes after its
//! predecessor, whichever broker has that.
//!
//! Kept only while more than one stream of a room goes on.

use std::collections::BTreeMap;

use crate::ring::{Arena, Ring};
use crate::wire::PublisherId;

/// Entries that are searched for each publisher's last message.
const LOOK_BACK: u64 = 4_096;
/// Publishers that are remembered; beyond, all are forgotten.
const PUBLISHERS_MAX: usize = 65_536;

/// The publisher of each message at these places.
fn said<'a>(
    ring: &'a Ring,
    arena: &'a Arena,
    places: impl Iterator<Item = u64> + 'a,
) -> impl Iterator<Item = (PublisherId, u64)> + 'a {
    let entries = places.filter_map(|place| ring.get(arena, place));
    let messages = entries.filter(|entry| !entry.gap);
    messages.map(|entry| (entry.publisher, entry.sequence))
}

/// Each publisher's last sequence with a place.
#[derive(Default)]
pub struct Turns(BTreeMap<PublisherId, u64>);

impl Turns {
    pub fn of(ring: &Ring, arena: &Arena) -> Self {
        let mut turns = Turns::default();
        let places = ring.first().max(ring.next().saturating_sub(LOOK_BACK))..ring.next();
        said(ring, arena, places).for_each(|(publisher, sequence)| turns.note(publisher, sequence));
        turns
    }

    pub fn note(&mut self, publisher: PublisherId, sequence: u64) {
        if self.0.len() >= PUBLISHERS_MAX {
            self.0.clear();
        }
        let last = self.0.entry(publisher).or_default();
        *last = sequence.max(*last);
    }

    /// Whether anything of this publisher has a place.
    pub fn knows(&self, publisher: PublisherId) -> bool {
        self.0.contains_key(&publisher)
    }

    /// Whether the message before this one has a place, or there is none.
    pub fn has_come(&self, publisher: PublisherId, sequence: u64) -> bool {
        sequence <= self.0.get(&publisher).copied().unwrap_or(0) + 1
    }
}

/// The same for history of several brokers, which is put in front: of each publisher, the first sequence that has a place.
pub struct Fronts(BTreeMap<PublisherId, u64>);

impl Fronts {
    pub fn of(ring: &Ring, arena: &Arena) -> Self {
        let mut fronts = Fronts(BTreeMap::new());
        let places = (ring.first()..ring.next().min(ring.first() + LOOK_BACK)).rev();
        said(ring, arena, places).for_each(|(publisher, sequence)| fronts.note(publisher, sequence));
        fronts
    }

    pub fn note(&mut self, publisher: PublisherId, sequence: u64) {
        if self.0.len() >= PUBLISHERS_MAX {
            self.0.clear();
        }
        self.0.insert(publisher, sequence);
    }

    /// Whether this message directly precedes one with a place.
    pub fn follows(&self, publisher: PublisherId, sequence: u64) -> bool {
        self.0.get(&publisher).is_some_and(|first| sequence + 1 >= *first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Entry;

    #[test]
    fn a_message_follows_the_one_before_it() {
        let (mut arena, mut ring) = (Arena::new(1 << 20), Ring::new(1));
        let publisher = PublisherId {
            user: 1,
            incarnation: 2,
        };
        for (sequence, gap) in [(4, false), (5, false), (9, true)] {
            let entry = Entry {
                publisher,
                sequence,
                gap,
                ..Entry::default()
            };
            ring.push(&mut arena, 0, &entry);
        }
        let mut turns = Turns::of(&ring, &arena);
        assert_eq!(
            [5, 6, 7].map(|sequence| turns.has_come(publisher, sequence)),
            [true, true, false]
        );
        turns.note(publisher, 6);
        assert!(turns.has_come(publisher, 7));
        let stranger = PublisherId {
            user: 2,
            incarnation: 2,
        };
        assert_eq!([1, 2].map(|sequence| turns.has_come(stranger, sequence)), [true, false]);
    }
}
