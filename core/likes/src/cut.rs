//! A snapshot under way: which parts of the state at its beginning are in it already, and the bytes of the next part.
//!
//! Owns the bookkeeping; what is written is the snapshot's. Knows no engine.

use hashbrown::HashSet;

/// A snapshot under way: the state at its beginning, less what is in the parts already.
pub(crate) struct Cut {
    pub out: Out,
    pub crc: u32,
    /// Users and slots at the cut.
    pub users: usize,
    pub slots: u32,
    /// Users whose ids, users whose chains, and slots that are done; beyond them those that were saved early.
    pub ids_done: usize,
    pub chains_done: usize,
    pub slots_done: u32,
    /// Slots that were free at the cut count as saved.
    pub slots_saved: HashSet<u32>,
    pub chains_saved: HashSet<u32>,
    pub ended: bool,
}

pub(crate) struct Out(pub Vec<u8>);

impl Out {
    pub fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    pub fn u32s(&mut self, numbers: &[u32]) {
        self.u32(numbers.len() as u32);
        numbers.iter().for_each(|&number| self.u32(number));
    }
}
