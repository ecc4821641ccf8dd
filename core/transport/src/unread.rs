//! Unacknowledged replies of sessions: those that wait for space in a log, their total size, and the session that has
//! acknowledged nothing for longest.
//!
//! Owns these sums, that order and the waiting replies. Knows no session: the size of a session's log is passed in.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::LOG_RECORD_BYTES_MAX;
use crate::log::LogSender;

/// Maximum number of waiting replies of one session: one for each of its rooms, plus further requests. Each is a
/// record, so these are 320 KiB.
const LATE_MAX: usize = 300;

/// Replies that found no space in a log, in order.
#[derive(Default)]
pub struct Late {
    records: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Late {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `false`: there are too many.
    pub fn push(&mut self, record: &[u8]) -> bool {
        let fits = self.records.len() < LATE_MAX && record.len() <= LOG_RECORD_BYTES_MAX;
        if fits {
            self.bytes += record.len();
            self.records.push_back(record.into());
        }
        fits
    }

    /// Moves waiting replies into the log while there is space. Returns whether none is left.
    pub fn tell(&mut self, log: &mut LogSender) -> bool {
        while let Some(record) = self.records.front() {
            if log.push(record).is_err() {
                return false;
            }
            self.bytes -= record.len();
            self.records.pop_front();
        }
        true
    }
}

/// A session's rank among those with unacknowledged bytes; 0: none.
pub type Rank = u64;

/// All sessions with unacknowledged bytes.
#[derive(Default)]
pub struct Unread {
    bytes: usize,
    last: Rank,
    /// Their slots; first the one that has acknowledged nothing for longest.
    ranks: BTreeMap<Rank, u32>,
}

impl Unread {
    /// Total bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Notes a change of a session's unacknowledged bytes. A session that acknowledges some goes to the end.
    pub fn note(&mut self, slot: u32, rank: &mut Rank, before: usize, after: usize) {
        self.bytes = self.bytes + after - before;
        if after < before || after == 0 {
            self.ranks.remove(rank);
            *rank = 0;
        }
        if after > 0 && *rank == 0 {
            self.last += 1;
            *rank = self.last;
            self.ranks.insert(*rank, slot);
        }
    }

    /// The slot of the session that has acknowledged nothing for longest.
    pub fn longest(&self) -> Option<u32> {
        self.ranks.first_key_value().map(|(_, slot)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledging_session_moves_to_the_end_and_an_idle_one_leaves_the_order() {
        let mut unread = Unread::default();
        let mut ranks = [0; 3];
        for (slot, rank) in (0..).zip(&mut ranks) {
            unread.note(slot, rank, 0, 10);
        }
        assert_eq!((unread.longest(), unread.bytes()), (Some(0), 30));
        unread.note(0, &mut ranks[0], 10, 15);
        assert_eq!(unread.longest(), Some(0), "more sent bytes are no progress");
        unread.note(0, &mut ranks[0], 15, 5);
        assert_eq!(unread.longest(), Some(1));
        unread.note(1, &mut ranks[1], 10, 0);
        unread.note(2, &mut ranks[2], 10, 0);
        assert_eq!((unread.longest(), unread.bytes()), (Some(0), 5));
        unread.note(0, &mut ranks[0], 5, 0);
        assert_eq!((unread.longest(), unread.bytes(), ranks), (None, 0, [0; 3]));
    }
}
