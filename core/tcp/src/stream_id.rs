//! The names of streams.
//!
//! Owns: [`StreamId`].

/// Names one stream: a slot, and how often it was used, so that a late order for a stream that is gone meets no other one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId {
    slot: u32,
    use_of_slot: u32,
}

impl StreamId {
    pub fn new(slot: u32, use_of_slot: u32) -> StreamId {
        StreamId { slot, use_of_slot }
    }

    /// A small number that no other open stream has.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// The name as a number.
    pub fn token(self) -> u64 {
        u64::from(self.use_of_slot) << 32 | u64::from(self.slot)
    }

    pub fn from_token(token: u64) -> StreamId {
        StreamId {
            slot: token as u32,
            use_of_slot: (token >> 32) as u32,
        }
    }

    pub(crate) fn use_of_slot(self) -> u32 {
        self.use_of_slot
    }
}
