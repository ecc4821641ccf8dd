//! The congestion window of one connection (RFC 8085): how it grows and how it is cut.
//!
//! Owns the window's arithmetic. Knows no loss, no queue and no time: its caller judges these.

use super::{CWND_CUT, CWND_FIRST, CWND_FLOOR, CWND_MAX};

/// A congestion window in datagrams, and the size up to which it grows fast.
#[derive(Clone, Copy, Default)]
pub(super) struct Congestion {
    pub(super) size: f32,
    pub(super) threshold: f32,
}

impl Congestion {
    /// The window of a new connection.
    pub(super) const FIRST: Congestion = Congestion {
        size: CWND_FIRST,
        threshold: CWND_MAX,
    };

    /// Whole datagrams.
    #[inline]
    pub(super) fn datagrams(&self) -> u64 {
        self.size as u64
    }

    #[inline]
    pub(super) fn is_at_floor(&self) -> bool {
        self.size < CWND_FLOOR + 1.0
    }

    /// This many datagrams arrived while the window was full.
    #[inline]
    pub(super) fn grow(&mut self, newly: u64) {
        let newly = newly as f32;
        self.size += if self.size < self.threshold {
            newly
        } else {
            newly / self.size
        };
        self.size = self.size.min(CWND_MAX);
    }

    /// The path is congested.
    pub(super) fn cut(&mut self) {
        self.size = (self.size * CWND_CUT).max(CWND_FLOOR);
        self.threshold = self.size;
    }

    /// Everything in flight is given up.
    pub(super) fn give_up(&mut self) {
        self.threshold = (self.size / 2.0).max(CWND_FLOOR);
        self.size = CWND_FLOOR;
    }

    /// An earlier window was not too large.
    pub(super) fn restore(&mut self, earlier: Congestion) {
        self.size = self.size.max(earlier.size);
        self.threshold = self.threshold.max(earlier.threshold);
    }
}
