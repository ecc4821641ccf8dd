//! Draws of a plan from a seed, and seeded bytes for keys.
//!
//! Knows no plan. Each kind of fault is present or absent, and weak or strong, independently (swarm testing), so that
//! runs differ more than averages would.

use crate::{Dice, Entropy, Micros, Weather};

/// The draw of one plan.
pub struct Draw(Dice);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(Dice::new(seed))
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    /// Mostly small numbers, rarely large ones up to `high`.
    pub fn skewed(&mut self, high: u64) -> u64 {
        let shift = self.below(6);
        self.below((high >> shift).max(1))
    }

    /// The properties of a near network, or of a far one.
    pub fn weather(&mut self, near: bool) -> Weather {
        let mut weather = Weather {
            latency: if near {
                self.within(20, 2_000)
            } else {
                self.within(50, 40_000)
            },
            ..Weather::default()
        };
        if self.chance(60) {
            weather.jitter = self.skewed(if near { 3_000 } else { 20_000 });
        }
        if self.chance(60) {
            weather.loss = self.skewed(100_000);
        }
        if self.chance(20) {
            weather.burst_in = self.skewed(10_000);
            weather.burst_out = self.within(30_000, 300_000);
        }
        if self.chance(40) {
            weather.duplicate = self.skewed(60_000);
        }
        if self.chance(40) {
            weather.reorder = self.skewed(60_000);
        }
        if self.chance(25) {
            weather.corrupt = self.skewed(20_000);
        }
        weather
    }
}

/// Seeded bytes in place of the kernel's.
pub struct Seeded(Dice);

impl Seeded {
    pub fn new(seed: u64) -> Seeded {
        Seeded(Dice::new(seed))
    }
}

impl Entropy for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let random = self.0.roll().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
    }
}

/// The first reading of clocks: in two of three seeds they soon pass a value at which 32 bits of microseconds, or of
/// milliseconds, wrap.
pub fn clock(seed: u64) -> Micros {
    match seed % 3 {
        0 => 0,
        1 => (1 << 32) - 4 * crate::SECOND,
        _ => (1 << 32) * crate::MS - 4 * crate::SECOND,
    }
}
