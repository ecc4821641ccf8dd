//! The bytes in flight, as the receiver's buffer is charged for them.
//!
//! Owns the sums of charges and the bursts in flight. Knows no window and no round trip.

use super::charge;
use crate::machine::Micros;
use crate::marks::{Mark, Marks};

/// Maximum number of bursts whose send time is remembered; older ones are merged (64 x 24 B = 1.5 KiB while something
/// is in flight).
const MARKS: usize = 64;

/// Charges of sent and of acknowledged datagrams.
#[derive(Default)]
pub(super) struct Charges {
    sent: u64,
    acked: u64,
    marks: Marks,
}

impl Charges {
    /// The charge of everything sent.
    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// The charge of what is in flight.
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.sent - self.acked
    }

    /// A datagram of `len` bytes leaves.
    #[inline]
    pub(super) fn push(&mut self, now: Micros, sequence: u64, len: usize) {
        self.sent += charge(len);
        let full = self.marks.len() >= MARKS;
        match self.marks.back_mut() {
            Some(mark) if mark.at == now || full => {
                mark.sequence = sequence;
                mark.charged = self.sent;
            }
            _ => self.marks.push_back(Mark {
                sequence,
                charged: self.sent,
                at: now,
            }),
        }
    }

    /// A status covers the `newly` sequences up to `highest`. Returns when the burst of the last one left, if that
    /// gives a valid round trip.
    #[inline]
    pub(super) fn cover(&mut self, highest: u64, newly: u64) -> Option<Micros> {
        let mut sample = None;
        while let Some(mark) = self.marks.front() {
            if mark.sequence <= highest {
                self.acked = mark.charged;
                sample = mark.timed();
                self.marks.pop_front();
                if mark.sequence == highest {
                    break;
                }
            } else {
                // Within a burst datagrams are alike, so the share of the count is the share of the charge.
                let before = self.acked;
                let left = mark.sequence - highest;
                let total = left + newly.min(mark.sequence);
                self.acked = mark.charged - (mark.charged - before) * left / total.max(1);
                sample = mark.timed();
                break;
            }
        }
        sample
    }

    /// Nothing is in flight anymore.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.acked = self.sent;
        self.marks.clear();
    }

    /// The last datagram in flight, and its send time; 0: none.
    pub(super) fn last(&self) -> (u64, Micros) {
        self.marks.back().map_or((0, 0), |mark| (mark.sequence, mark.at))
    }

    /// The process stood still: bursts in flight give no round trip.
    pub(super) fn forget_times(&mut self) {
        self.marks.forget_times();
    }
}
