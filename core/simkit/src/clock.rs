//! The clock of a process: its offset from the true time, and its rate.
//!
//! Owns the conversion between the two times. Knows no process.

use crate::Micros;

const MILLION: i64 = 1_000_000;

/// A clock that shows `shown` at the true time `since`, and gains `ppm` microseconds a second from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    since: Micros,
    shown: Micros,
    ppm: i64,
}

impl Clock {
    /// Its reading at a true time.
    pub fn at(&self, time: Micros) -> Micros {
        let elapsed = time.saturating_sub(self.since);
        if self.ppm == 0 {
            return self.shown + elapsed;
        }
        self.shown + scaled(elapsed, MILLION + self.ppm, MILLION)
    }

    /// The first true time at which it shows this or more.
    pub fn when(&self, shown: Micros) -> Micros {
        let left = shown.saturating_sub(self.shown);
        if self.ppm == 0 {
            return self.since.saturating_add(left);
        }
        let time = self.since.saturating_add(scaled(left, MILLION, MILLION + self.ppm));
        time.saturating_add(u64::from(self.at(time) < shown))
    }

    /// Sets it forward or back, at most to zero.
    pub fn step(&mut self, now: Micros, by: i64) {
        *self = Clock {
            since: now,
            shown: self.at(now).saturating_add_signed(by),
            ppm: self.ppm,
        };
    }

    /// Makes it gain this many microseconds a second from now on. Half speed is the slowest.
    pub fn drift(&mut self, now: Micros, ppm: i64) {
        *self = Clock {
            since: now,
            shown: self.at(now),
            ppm: ppm.max(-MILLION / 2),
        };
    }
}

/// `time * by / of`, saturated at the largest time.
fn scaled(time: Micros, by: i64, of: i64) -> Micros {
    let scaled = u128::from(time) * by.unsigned_abs() as u128 / of.unsigned_abs() as u128;
    Micros::try_from(scaled).unwrap_or(Micros::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_the_true_time_until_it_is_set() {
        let clock = Clock::default();
        assert_eq!((clock.at(7), clock.when(7)), (7, 7));
    }

    #[test]
    fn a_step_moves_all_later_times_and_none_below_zero() {
        let mut clock = Clock::default();
        clock.step(100, 50);
        assert_eq!((clock.at(100), clock.at(110), clock.when(160)), (150, 160, 110));
        clock.step(110, -500);
        assert_eq!((clock.at(110), clock.when(5)), (0, 115));
    }

    #[test]
    fn a_drifting_clocks_reading_is_due_neither_early_nor_two_microseconds_late() {
        for ppm in [-300_000, -17, 17, 90_000] {
            let mut clock = Clock::default();
            clock.drift(1_000, ppm);
            for shown in (2_000..3_000_000).step_by(9_973) {
                let due = clock.when(shown);
                assert!(clock.at(due) >= shown, "{ppm} {shown}");
                assert!(due < 2 || clock.at(due - 2) < shown, "{ppm} {shown}");
            }
        }
    }
}
