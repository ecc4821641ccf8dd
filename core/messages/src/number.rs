//! The numbers that identify messages in the schedule, computed from their topics and ids.
//!
//! Owns: [`Numbers`]. Must not know: the source of the key.

use blake2::digest::consts::U8;
use blake2::digest::Mac;
use blake2::Blake2bMac;

/// The numbers of one topic's messages: keyed BLAKE2b, so that without the key nobody finds two ids with the same
/// number.
#[derive(Clone)]
pub struct Numbers {
    begun: Blake2bMac<U8>,
}

impl Numbers {
    /// `None`: the key is empty or longer than 64 bytes.
    pub fn new(key: &[u8], topic: u32) -> Option<Numbers> {
        let mut begun = Blake2bMac::new_with_salt_and_personal(key, &[], &[]).ok()?;
        begun.update(&topic.to_le_bytes());
        Some(Numbers { begun })
    }

    pub fn of(&self, id: &str) -> u64 {
        let digest = self.begun.clone().chain_update(id.as_bytes()).finalize();
        u64::from_le_bytes(digest.into_bytes().into())
    }
}
