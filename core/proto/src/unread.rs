//! What sessions were told and have not acknowledged: how much that is in all, and who has acknowledged nothing for longest.
//!
//! Owns these sums and that order. Knows no log: what a session's holds comes in.

use std::collections::BTreeMap;

/// Where a session stands among those that have something to acknowledge; 0: it has nothing.
pub type Seat = u64;

/// All of them.
#[derive(Default)]
pub struct Unread {
    bytes: usize,
    last: Seat,
    /// Their slots, the one first that has acknowledged nothing for longest.
    seats: BTreeMap<Seat, u32>,
}

impl Unread {
    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A session that had so many bytes unacknowledged has others now. Who acknowledges some goes to the end.
    pub fn note(&mut self, slot: u32, seat: &mut Seat, before: usize, after: usize) {
        self.bytes = self.bytes + after - before;
        if after < before || after == 0 {
            self.seats.remove(seat);
            *seat = 0;
        }
        if after > 0 && *seat == 0 {
            self.last += 1;
            *seat = self.last;
            self.seats.insert(*seat, slot);
        }
    }

    /// The slot of who has acknowledged nothing for longest.
    pub fn longest(&self) -> Option<u32> {
        self.seats.first_key_value().map(|(_, slot)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_acknowledges_goes_to_the_end_and_who_has_nothing_left_is_not_there() {
        let mut unread = Unread::default();
        let mut seats = [0; 3];
        for slot in 0..3 {
            unread.note(slot as u32, &mut seats[slot], 0, 10);
        }
        assert_eq!((unread.longest(), unread.bytes()), (Some(0), 30));
        unread.note(0, &mut seats[0], 10, 15);
        assert_eq!(unread.longest(), Some(0), "to be told more is no progress");
        unread.note(0, &mut seats[0], 15, 5);
        assert_eq!(unread.longest(), Some(1));
        unread.note(1, &mut seats[1], 10, 0);
        unread.note(2, &mut seats[2], 10, 0);
        assert_eq!((unread.longest(), unread.bytes()), (Some(0), 5));
        unread.note(0, &mut seats[0], 5, 0);
        assert_eq!((unread.longest(), unread.bytes(), seats), (None, 0, [0; 3]));
    }
}
