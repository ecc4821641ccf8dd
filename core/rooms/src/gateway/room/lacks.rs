//! Conditions that members wait for before they are admitted to a room. All of them are looked at only when a condition has come.
//!
//! Owns these conditions, as of the last look. Knows no stream.

use super::{Lack, Waiting};

/// The conditions of waiting members.
#[derive(Default)]
pub struct Lacks {
    /// The first arrival of each stream that is waited for.
    history: Vec<(usize, u64)>,
    /// The lowest offset of each stream that a waiting member has and this gateway lacks.
    ahead: Vec<(usize, u64)>,
    /// Reports of streams at the last look at all, and at present.
    looked: u32,
    said: u32,
}

impl Lacks {
    /// Reports of streams so far.
    pub fn said(&self) -> u32 {
        self.said
    }

    /// A stream was reported: members that wait for a report must be examined.
    pub fn note_said(&mut self) {
        self.said = self.said.wrapping_add(1);
    }

    /// Whether a condition has come since all members were examined.
    pub fn any(&self, has_come: impl Fn(Lack) -> bool) -> bool {
        let come = |(at, wanted): &(usize, u64)| has_come(Lack::History(*at, *wanted));
        let proven = |(at, offset): &(usize, u64)| has_come(Lack::Proof(*at, *offset, self.said));
        self.looked != self.said || self.history.iter().any(come) || self.ahead.iter().any(proven)
    }

    /// All members have been examined.
    pub fn begin(&mut self) {
        self.history.clear();
        self.ahead.clear();
        self.looked = self.said;
    }

    /// These members wait on.
    pub fn note(&mut self, still: &[Waiting]) {
        // The order: history from the youngest on, and news from the oldest on.
        let note = |lacking: &mut Vec<(usize, u64)>, at: usize, wanted: u64, first: fn(u64, u64) -> u64| match lacking
            .iter_mut()
            .find(|(known, _)| *known == at)
        {
            Some((_, known)) => *known = first(*known, wanted),
            None => lacking.push((at, wanted)),
        };
        for waiting in still {
            match waiting.lacks {
                Some(Lack::History(at, wanted)) => note(&mut self.history, at, wanted, u64::max),
                Some(Lack::Proof(at, offset, _)) => note(&mut self.ahead, at, offset, u64::min),
                Some(Lack::Said(_)) | None => {}
            }
        }
    }
}
