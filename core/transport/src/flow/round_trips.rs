//! The round trips of one connection: usual, longest and shortest ones, and how much of one a queue of ours explains.
//!
//! Owns these estimates. Knows no window and no datagram.

use super::{QUEUE_MAX, RTO_MAX, RTO_MIN};
use crate::machine::Micros;

/// The smallest round trip is forgotten after this, since paths change.
const LEAST_AGE: Micros = 10_000_000;

/// Round trips in microseconds.
pub(super) struct RoundTrips {
    /// Smoothed; 0: unknown.
    smoothed: u32,
    /// The longest recent round trip; each shorter sample lowers it by a quarter of the difference.
    longest: u32,
    least: u32,
    least_at: Micros,
    /// The part of the round trip that neither the path nor our own queue explains: the path became longer or
    /// varies, or the receiver is busy.
    not_ours: u32,
}

impl Default for RoundTrips {
    fn default() -> Self {
        RoundTrips {
            smoothed: 0,
            longest: 0,
            least: u32::MAX,
            least_at: 0,
            not_ours: 0,
        }
    }
}

impl RoundTrips {
    /// Smoothed round trip; 0 before the first sample.
    #[inline]
    pub(super) fn measured(&self) -> Micros {
        Micros::from(self.smoothed)
    }

    /// The longest recent round trip; 0 before the first sample.
    #[inline]
    pub(super) fn longest(&self) -> Micros {
        Micros::from(self.longest)
    }

    /// Smoothed round trip; a conservative guess before the first sample.
    #[inline]
    pub(super) fn usual(&self) -> Micros {
        if self.smoothed == 0 {
            20_000
        } else {
            Micros::from(self.smoothed)
        }
    }

    #[cfg(test)]
    pub(super) fn least(&self) -> u32 {
        self.least
    }

    /// Takes a round trip.
    #[inline]
    pub(super) fn sample(&mut self, now: Micros, rtt: u32) {
        self.smoothed = if self.smoothed == 0 {
            rtt
        } else {
            (u64::from(self.smoothed) * 7 / 8 + u64::from(rtt) / 8) as u32
        };
        self.lasted(rtt);
        let old = now - self.least_at > LEAST_AGE;
        if old || rtt <= self.least {
            self.least = rtt;
            self.least_at = now;
        }
        if old {
            self.not_ours = 0;
        }
    }

    /// A status took this long, for the longest recent round trip alone.
    #[inline]
    pub(super) fn lasted(&mut self, rtt: u32) {
        self.longest = rtt.max(self.longest - self.longest / 4);
    }

    /// The shortest silence after which everything in flight is given up.
    #[inline]
    pub(super) fn patience(&self) -> Micros {
        (4 * self.usual()).max(3 * self.longest() / 2).clamp(RTO_MIN, RTO_MAX)
    }

    /// The longest round trip that shows no queue.
    #[inline]
    pub(super) fn unqueued_max(&self) -> u32 {
        self.least.saturating_add(self.not_ours).saturating_add(QUEUE_MAX)
    }

    /// Whether the round trip has grown by a queue.
    #[inline]
    pub(super) fn is_queued(&self) -> bool {
        self.smoothed > self.unqueued_max()
    }

    /// The part of the round trip that a queue of ours may explain.
    pub(super) fn excess(&self) -> u32 {
        self.smoothed - self.least - self.not_ours
    }

    /// This round trip is as long for another reason than a queue of ours.
    pub(super) fn excuse(&mut self, rtt: u32) {
        self.not_ours = rtt - self.least;
    }

    /// The same for the smoothed one.
    pub(super) fn excuse_all(&mut self) {
        self.excuse(self.smoothed);
    }
}
