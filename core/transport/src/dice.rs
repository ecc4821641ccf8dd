//! Random numbers for jitter and choice, from a seed passed in.
//!
//! Owns the generator and weighted draws. Must not be used for keys.

/// A small random generator (SplitMix64). Never for keys.
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            self.roll() % bound
        }
    }

    /// Draws two and returns the first, or the second if the first is worse.
    pub fn better<T: Copy>(&mut self, from: Vec<T>, worse: impl FnOnce(T, T) -> bool) -> Option<T> {
        self.better_by(from, |_| 1, worse)
    }

    /// As [`Dice::better`], with a weight for each item.
    pub fn better_by<T: Copy>(
        &mut self,
        mut from: Vec<T>,
        weight: impl Fn(T) -> u64,
        worse: impl FnOnce(T, T) -> bool,
    ) -> Option<T> {
        if from.len() < 2 {
            return from.pop();
        }
        let at = self.weighted(&from, &weight);
        let one = from.swap_remove(at);
        let other = from[self.weighted(&from, &weight)];
        Some(if worse(one, other) { other } else { one })
    }

    /// A random index in a list, by weight.
    fn weighted<T: Copy>(&mut self, from: &[T], weight: impl Fn(T) -> u64) -> usize {
        let mut left = self.below(from.iter().map(|one| weight(*one)).sum());
        let at = from.iter().position(|one| match left.checked_sub(weight(*one)) {
            Some(less) => {
                left = less;
                false
            }
            None => true,
        });
        at.unwrap_or(0)
    }
}
