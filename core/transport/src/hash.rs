//! Keyed hashing for maps whose keys a stranger can choose.
//!
//! Owns: [`KeyedState`]. Must not know: the hashed values, the origin of its key. The standard library's keyed hasher
//! draws its own randomness, which a replayable machine may not; its unkeyed one can be flooded with collisions.

use std::hash::BuildHasher;

use siphasher::sip::SipHasher13;

/// Builds SipHash-1-3 hashers with one key: `HashMap::with_hasher(KeyedState::new(k0, k1))`.
/// The key is derived from the process's seed and must not be guessable in production.
#[derive(Clone, Copy)]
pub struct KeyedState {
    k0: u64,
    k1: u64,
}

impl KeyedState {
    pub fn new(k0: u64, k1: u64) -> Self {
        KeyedState { k0, k1 }
    }
}

impl BuildHasher for KeyedState {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.k0, self.k1)
    }
}

/// Does not print the key, so that owners of a map can derive `Debug`.
impl std::fmt::Debug for KeyedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyedState(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_key_hashes_alike_and_another_key_does_not() {
        let hash = |k0, k1| KeyedState::new(k0, k1).hash_one(42u64);
        assert_eq!(hash(1, 2), hash(1, 2));
        assert_ne!(hash(1, 2), hash(1, 3));
        assert_ne!(hash(1, 2), hash(2, 2));
    }
}
