//! A snapshot in progress: which parts of the state at its start are written already, and the bytes of the next part.
//!
//! Owns the bookkeeping; the snapshot decides what is written. Knows no engine.

/// A snapshot in progress: the state at its start, minus the parts already written.
pub(crate) struct Cut {
    pub out: Out,
    pub crc: u32,
    /// Number of users and of slots at the start.
    pub users: usize,
    pub slots: u32,
    /// Progress: users whose ids are done, users whose chains are done, and slots that are done. The sets hold those
    /// beyond it that were saved early.
    pub ids_done: usize,
    pub chains_done: usize,
    pub slots_done: u32,
    /// The offset of the snapshot: members that changed later were saved before.
    pub offset: u64,
    /// Progress through leaderboards: all before this one are done, and its members before this slot.
    pub leaderboard: u32,
    pub member: u32,
    /// Slots that were free at the start count as saved.
    pub slots_saved: Marks,
    pub chains_saved: Marks,
    pub ended: bool,
}

/// Marked numbers below a bound, a bit each: millions of them are marked, and passed over, within milliseconds.
pub(crate) struct Marks(Vec<u64>);

impl Marks {
    pub fn new(bound: usize, marked: &[u32]) -> Marks {
        let mut marks = Marks(vec![0; bound.div_ceil(64)]);
        marked.iter().for_each(|&number| marks.mark(number));
        marks
    }

    pub fn has(&self, number: u32) -> bool {
        self.0[number as usize / 64] >> (number % 64) & 1 == 1
    }

    pub fn mark(&mut self, number: u32) {
        self.0[number as usize / 64] |= 1 << (number % 64);
    }
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
