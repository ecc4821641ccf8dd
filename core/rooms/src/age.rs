//! Ages of messages: a sample of the frames carries them, and each node keeps histograms by the previous node
//! (ROOM-26).
//!
//! An age is passed from hop to hop, so two machines' clocks are never compared. Each hop adds the time that the
//! message spent there, and half of the round trip of the incoming connection. Within a node the age is kept as a
//! time of birth by the node's own clock. Owns that arithmetic and the histograms. Knows no frame and no connection.

use std::collections::BTreeMap;

use muster_transport::{Micros, NODES_MAX};

/// Higher ages count as this: a paced room repairs for 3 s, a live one gives up after 5.
pub const AGE_MAX: u32 = 60_000_000;
/// Messages born within this many microseconds share one age in a block. Otherwise a room with many publishers would
/// need a block for each message.
pub const SAME_AGE: u32 = 500;
/// Upper bounds of the histogram's buckets, in microseconds; one more bucket is unbounded.
pub const BOUNDS: [u32; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];
/// For recent ages: after this many messages, earlier ones count half.
const HALVED_AFTER: f32 = 1_024.0;

/// The time of birth of a message with this age, as the low half of the clock; never 0, which means unknown.
#[inline]
pub fn born(now: Micros, age: u64) -> u32 {
    (now as u32).wrapping_sub(age.min(u64::from(AGE_MAX)) as u32) | 1
}

/// The present age of a message with this time of birth; wrong after more than an hour.
#[inline]
pub fn age(now: Micros, born: u32) -> u32 {
    let age = (now as u32).wrapping_sub(born);
    // A message born within this microsecond may seem to be born in the next one.
    if age == u32::MAX {
        0
    } else {
        age.min(AGE_MAX)
    }
}

/// Whether a message may join a block and share the age of the block's first message: if it is not older than that,
/// and only a little younger. So an age is never too low, and after two such hops at most a millisecond too high.
/// Messages without an age only join each other.
#[inline]
pub fn is_as_old(first: u32, born: u32) -> bool {
    (first == 0) == (born == 0) && born.wrapping_sub(first) <= SAME_AGE
}

/// Replaces the times of birth at the start of `field` by the ages at the end of a path that takes `away`.
pub fn pass_on(field: &mut [u8], now: Micros, away: Micros) {
    if let Some(field) = field.first_chunk_mut::<4>() {
        let then = u64::from(age(now, u32::from_le_bytes(*field))) + away;
        *field = (then.min(u64::from(AGE_MAX)) as u32).to_le_bytes();
    }
}

/// Decides which frames carry ages: one in this many.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    every: u32,
    left: u32,
}

impl Sampler {
    /// `every` 0: no frames.
    pub fn new(every: u32) -> Self {
        Sampler { every, left: 0 }
    }

    /// Whether the next frame carries ages.
    #[inline]
    pub fn draws(&mut self) -> bool {
        let draws = self.left == 0;
        self.left = if draws { self.every } else { self.left }.wrapping_sub(1);
        draws && self.every > 0
    }
}

/// Ages of messages that came from one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Number in each bucket; the last bucket is unbounded.
    pub counts: [u64; BOUNDS.len() + 1],
    pub sum_us: u64,
    pub least_us: u32,
    pub most_us: u32,
    /// When the last age was counted.
    noted_at: Micros,
    recent: [f32; BOUNDS.len() + 1],
}

impl Histogram {
    fn add(&mut self, age: u32) {
        let bucket = BOUNDS.partition_point(|bound| *bound < age);
        self.least_us = if self.count() == 0 { age } else { self.least_us.min(age) };
        self.most_us = self.most_us.max(age);
        self.counts[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(u64::from(age));
        if self.recent.iter().sum::<f32>() >= HALVED_AFTER {
            self.recent.iter_mut().for_each(|count| *count /= 2.0);
        }
        self.recent[bucket] += 1.0;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The age that this share of recent messages did not exceed; within a bucket, ages count as evenly spread.
    pub fn recent(&self, share: f32) -> Option<u32> {
        let wanted = share * self.recent.iter().sum::<f32>();
        let mut below = 0.0;
        let mut from = 0;
        for (count, to) in self.recent.iter().zip(BOUNDS.into_iter().chain([AGE_MAX])) {
            if *count > 0.0 && below + count >= wanted {
                let within = ((wanted - below) / count).clamp(0.0, 1.0);
                let age = from as f32 + within * (to - from) as f32;
                return Some((age as u32).clamp(self.least_us, self.most_us));
            }
            (below, from) = (below + count, to);
        }
        None
    }
}

/// Ages by the previous node, for a bounded number of nodes; beyond it, the node that was silent longest makes room.
#[derive(Default)]
pub struct Ages(BTreeMap<u32, Histogram>);

impl Ages {
    /// Counts a message that came from `node` and was born at `born`.
    pub fn note(&mut self, now: Micros, node: u32, born: u32) {
        if self.0.len() >= NODES_MAX && !self.0.contains_key(&node) {
            let silent = self.0.iter().min_by_key(|(_, histogram)| histogram.noted_at);
            let silent = silent.map(|(node, _)| *node);
            silent.and_then(|node| self.0.remove(&node));
        }
        let histogram = self.0.entry(node).or_default();
        histogram.noted_at = now;
        histogram.add(age(now, born));
    }

    /// Ages of messages that came from `node`; empty if there are none.
    pub fn of(&self, node: u32) -> Histogram {
        self.0.get(&node).copied().unwrap_or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Histogram)> {
        self.0.iter().map(|(node, histogram)| (*node, histogram))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_age_survives_a_node_with_any_clock(now in 0u64..u64::MAX / 2, before: u64, stays in 0u64..3_000_000_000) {
            let expected = (before.min(u64::from(AGE_MAX)) + stays).min(u64::from(AGE_MAX)) as u32;
            let found = age(now + stays, born(now, before));
            prop_assert!(found.abs_diff(expected) <= 1, "{found} {expected}");
        }

        #[test]
        fn the_age_of_a_blocks_first_message_is_never_too_low_for_the_others_and_little_too_high(
            now in u64::from(AGE_MAX)..u64::MAX / 2,
            older in 0u64..10_000_000,
            apart in 0u64..2_000,
        ) {
            let (first, other) = (born(now, older + apart), born(now, older));
            prop_assert_eq!(is_as_old(first, other), other.wrapping_sub(first) <= SAME_AGE);
            prop_assert!(!is_as_old(0, other) && !is_as_old(first, 0) && is_as_old(0, 0));
            prop_assert!(apart <= 2 || !is_as_old(other, first), "one that is older has a block of its own");
            if is_as_old(first, other) {
                let (told, own) = (age(now, first), age(now, other));
                prop_assert!((own..=own + SAME_AGE).contains(&told), "{told} instead of {own}");
            }
        }

        #[test]
        fn no_age_overflows_and_each_is_counted_once(ages in prop::collection::vec(any::<u32>(), 1..3_000)) {
            let mut histogram = Histogram::default();
            ages.iter().for_each(|age| histogram.add(*age));
            prop_assert_eq!(histogram.count(), ages.len() as u64);
            prop_assert_eq!(histogram.sum_us, ages.iter().map(|age| u64::from(*age)).sum::<u64>());
            let at_most = |bound: u32| ages.iter().filter(|age| **age <= bound).count() as u64;
            for (at, bound) in BOUNDS.into_iter().enumerate() {
                prop_assert_eq!(histogram.counts[..=at].iter().sum::<u64>(), at_most(bound));
            }
            let (middle, last) = (histogram.recent(0.5).unwrap(), histogram.recent(0.99).unwrap());
            prop_assert!(histogram.least_us <= middle && middle <= last && last <= histogram.most_us);
        }
    }

    #[test]
    fn recent_ages_weigh_more() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.recent(0.5), None);
        (0..10_000).for_each(|_| histogram.add(800));
        assert!((500..=1_000).contains(&histogram.recent(0.5).unwrap()));
        (0..3_000).for_each(|_| histogram.add(80_000));
        assert!((50_000..=100_000).contains(&histogram.recent(0.5).unwrap()));
        assert_eq!(histogram.counts[3], 10_000);
    }

    #[test]
    fn one_frame_in_n_is_sampled_and_none_if_n_is_0() {
        let drawn = |every| {
            let mut sampler = Sampler::new(every);
            (0..100).filter(|_| sampler.draws()).count()
        };
        assert_eq!([0, 1, 2, 50, 1_000].map(drawn), [0, 100, 50, 2, 1]);
    }

    #[test]
    fn the_number_of_nodes_is_bounded() {
        let mut ages = Ages::default();
        (0..NODES_MAX as u32 + 10).for_each(|node| ages.note(5, node, 3));
        assert_eq!(ages.iter().count(), NODES_MAX);
    }

    #[test]
    fn a_new_node_replaces_the_one_silent_longest() {
        let mut ages = Ages::default();
        let all = NODES_MAX as u32;
        (0..all).for_each(|node| ages.note(1_000 + u64::from(node), node, 3));
        ages.note(1_000_000, 0, 3);
        ages.note(1_000_000, all, 3);
        assert_eq!([0, 1, all].map(|node| ages.of(node).count()), [2, 0, 1]);
        assert_eq!(ages.iter().count(), NODES_MAX);
    }
}
