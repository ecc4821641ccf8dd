//! Maps keyed by numbers that nodes of the cluster choose, never a stranger.
//!
//! Owns [`QuickMap`]: its hash is one multiplication per word, the same in every process. Numbers that a client
//! chooses belong into other maps.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;

/// Mixes words; odd, and near 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Default)]
pub struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    }

    /// The high bits are mixed best, and the table takes its slot from the low ones.
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, Hash};

    fn hash(value: impl Hash) -> u64 {
        BuildHasherDefault::<Quick>::default().hash_one(value)
    }

    #[test]
    fn consecutive_numbers_get_all_slots_and_all_tags() {
        for step in [1u64, 2, 1_024, 1 << 32] {
            let places: std::collections::BTreeSet<u64> =
                (0..4_096).map(|at| hash((7u32, 9u32, at * step)) % 4_096).collect();
            assert!(places.len() > 2_000, "{} places at step {step}", places.len());
            let tags: std::collections::BTreeSet<u64> = (0..4_096).map(|at| hash(at * step) >> 57).collect();
            assert_eq!(tags.len(), 128, "step {step}");
        }
        assert_ne!(hash((1u32, 2u32)), hash((2u32, 1u32)));
    }
}
