//! Windows: a like counts 1 at first and half of that after the window's length; a like taken back counts against it
//! in the same way.
//!
//! Owns the weights. All scores of a window decay at one rate, so their order changes only with toggles: a score is
//! stored as of a fixed time, the landmark, and later toggles weigh more (forward decay, Cormode et al. 2009).
//! Weights are computed by square roots and products alone, which IEEE 754 rounds identically on every machine: a
//! replay gives the same bits.

/// The windows by name; each name is also its suffix in a ranking's key.
pub const WINDOWS: [(&str, u64); 3] = [("1h", 3_600_000), ("24h", 86_400_000), ("7d", 604_800_000)];

/// Half-lives after which scores are moved to a new landmark: weights stay below 2^512, their sums below 2^1023.
const LANDMARK_HALVES: u64 = 512;

const FRACTION_BITS: u32 = 20;

/// The scores of one item, one per window, as of the landmarks.
pub(crate) type Scores = [f64; WINDOWS.len()];

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Trends {
    /// In ms; 0 before the first toggle.
    pub landmarks: [u64; WINDOWS.len()],
    /// 2^(1/2), 2^(1/4), …
    roots: [f64; FRACTION_BITS as usize],
    /// The last requested time and its weights: most toggles of a group share one.
    last: (u64, Scores),
}

impl Default for Trends {
    fn default() -> Trends {
        let mut root = 2.0_f64;
        let roots = std::array::from_fn(|_| {
            root = root.sqrt();
            root
        });
        Trends {
            landmarks: [0; WINDOWS.len()],
            roots,
            last: (u64::MAX, [0.0; WINDOWS.len()]),
        }
    }
}

impl Trends {
    /// The weight of a toggle at `at_ms`, which must not be before any landmark.
    pub fn weights(&mut self, at_ms: u64) -> Scores {
        if self.last.0 != at_ms {
            self.last = (at_ms, std::array::from_fn(|window| self.weight(window, at_ms)));
        }
        self.last.1
    }

    /// The value at `at_ms` of a score stored as of the landmark.
    pub fn value(&self, window: usize, score: f64, at_ms: u64) -> f64 {
        let halves = at_ms.saturating_sub(self.landmarks[window]) / WINDOWS[window].1;
        if halves >= 2 * LANDMARK_HALVES - 2 {
            return 0.0;
        }
        score / self.weight(window, at_ms.max(self.landmarks[window]))
    }

    /// Moves landmarks that are too old; returns for each window the power of two by which all scores shrink, if any.
    pub fn advance(&mut self, at_ms: u64) -> [Option<f64>; WINDOWS.len()] {
        std::array::from_fn(|window| {
            let (landmark, half) = (self.landmarks[window], WINDOWS[window].1);
            let halves = at_ms.saturating_sub(landmark) / half;
            if halves < LANDMARK_HALVES {
                return None;
            }
            self.landmarks[window] = landmark + halves * half;
            self.last.0 = u64::MAX;
            let shrink = if halves < 1_022 {
                f64::from_bits((1_023 - halves) << 52)
            } else {
                0.0
            };
            Some(shrink)
        })
    }

    fn weight(&self, window: usize, at_ms: u64) -> f64 {
        let (since, half) = (at_ms - self.landmarks[window], WINDOWS[window].1);
        let fraction = ((since % half) << FRACTION_BITS) / half;
        let mut weight = f64::from_bits((1_023 + since / half) << 52);
        for (at, root) in self.roots.iter().enumerate() {
            if fraction >> (FRACTION_BITS as usize - 1 - at) & 1 == 1 {
                weight *= root;
            }
        }
        weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_doubles_in_a_half_life_and_rises_in_between() {
        let mut trends = Trends::default();
        let begin = 1_790_000_000_000;
        trends.advance(begin);
        for (window, (_, half)) in WINDOWS.iter().enumerate() {
            let first = trends.weights(begin)[window];
            assert!((trends.weights(begin + half)[window] / first - 2.0).abs() < 1e-12);
            let mut last = 0.0;
            for step in 0..1_000 {
                let weight = trends.weights(begin + half * step / 500)[window];
                assert!((weight / first - 2.0_f64.powf(step as f64 / 500.0)).abs() < 1e-4);
                assert!(weight > last);
                last = weight;
            }
        }
    }

    #[test]
    fn moved_landmark_leaves_values_as_they_are() {
        let mut trends = Trends::default();
        let begin = 1_790_000_000_000;
        trends.advance(begin);
        let score = trends.weights(begin)[0];
        let later = begin + 600 * WINDOWS[0].1;
        let before = trends.value(0, score, later);
        let shrink = trends.advance(later)[0].unwrap();
        let after = trends.value(0, score * shrink, later);
        assert_eq!(before, after);
        assert!(before > 0.0);
        assert_eq!(trends.value(0, score, begin + 5_000 * WINDOWS[0].1), 0.0);
    }
}
