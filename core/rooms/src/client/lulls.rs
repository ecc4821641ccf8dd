//! The longest recent interval between datagrams of a healthy server.
//!
//! Owns that estimate. Knows no session; times are passed in.

use muster_transport::Micros;

/// Minimum number of lulls in a stretch, and its minimum duration, so that a burst is only part of one.
const LULLS: u32 = 4;
const STRETCH: Micros = 500_000;

/// The longest lull of this stretch and of the previous one. So a longer lull counts at once, and shorter ones after
/// one or two stretches.
#[derive(Default)]
pub(super) struct Lulls {
    before: Micros,
    longest: Micros,
    count: u32,
    lasted: Micros,
}

impl Lulls {
    /// Starts with the longest possible lull.
    pub fn new(longest: Micros) -> Self {
        Lulls {
            before: longest,
            ..Lulls::default()
        }
    }

    /// A datagram arrived this long after the previous one.
    pub fn hear(&mut self, lull: Micros) {
        self.longest = self.longest.max(lull);
        self.count += 1;
        self.lasted += lull;
        if self.count >= LULLS && self.lasted >= STRETCH {
            *self = Lulls::new(self.longest);
        }
    }

    pub fn longest(&self) -> Micros {
        self.longest.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lulls_count_after_a_stretch_a_longer_one_at_once_and_a_burst_never() {
        let mut lulls = Lulls::new(15_000_000);
        let mut hear = |lull, count| {
            (0..count).for_each(|_| lulls.hear(lull));
            lulls.longest()
        };
        assert_eq!(hear(100_000, 4), 15_000_000);
        assert_eq!(hear(100_000, 1), 100_000);
        assert_eq!(hear(700_000, 1), 700_000);
        assert_eq!(hear(0, 1_000), 700_000, "all at once");
        assert_eq!(hear(1_000, 499), 700_000, "no stretch is shorter");
        assert_eq!(hear(1_000, 1), 1_000);
    }
}
