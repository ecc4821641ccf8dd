//! How long nothing is heard of a server while all is well: the longest lull of late.
//!
//! Owns that estimate. Knows no session; times come in.

use muster_transport::Micros;

/// The lulls of a stretch, and its duration: one burst is only part of one.
const LULLS: u32 = 4;
const STRETCH: Micros = 500_000;

/// The longest lull of this stretch and of the one before it. So a longer one counts at once, and shorter ones after one stretch
/// or two, whatever came before.
#[derive(Default)]
pub(super) struct Lulls {
    before: Micros,
    longest: Micros,
    count: u32,
    lasted: Micros,
}

impl Lulls {
    /// Nothing is known yet but the longest that there can be.
    pub fn new(longest: Micros) -> Self {
        Lulls {
            before: longest,
            ..Lulls::default()
        }
    }

    /// A datagram was received this long after the one before.
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
    fn a_few_short_ones_are_believed_a_longer_one_at_once_and_a_burst_is_none() {
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
