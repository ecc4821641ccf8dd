//! A wall clock whose steps never make messages fire early.
//!
//! Owns: [`TrustedClock`], which compares the wall clock with the monotonic one. Must not know: how clocks are read.
//!
//! A message fires when `wall >= due_at` *and* the monotonic clock has seen that time pass. So a wall clock that is
//! set back is followed at once (no message is early by it). One that is set ahead is reported, and followed only
//! after it has stood so for a while: until then time passes as the monotonic clock shows.

use crate::wheel::Millis;

/// The largest difference that ticks, scheduling and the slewing of NTP explain.
const STEP_MIN_MS: Millis = 500;

/// How long a wall clock that was set ahead must stay ahead before it is followed.
pub const HOLD_MS: Millis = 10_000;

/// A small difference ahead is followed by one part in this many of the time passed.
const DRIFT: Millis = 1_000;

/// A wall clock that was set: milliseconds, positive if ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    pub by_ms: i64,
}

/// The time by which messages fire.
#[derive(Clone, Debug)]
pub struct TrustedClock {
    /// The time of the last reading, and its monotonic time.
    time: Millis,
    monotonic: Millis,
    /// Elapsed time not yet used to follow a small difference ahead: at most `DRIFT`, which allows 1 ms.
    unused: Millis,
    /// Since when the wall clock is ahead, and by how much.
    ahead: Option<(Millis, Millis)>,
}

impl TrustedClock {
    /// Starts from the present wall clock. Both times in milliseconds.
    pub fn new(wall: Millis, monotonic: Millis) -> Self {
        TrustedClock {
            time: wall,
            monotonic,
            unused: 0,
            ahead: None,
        }
    }

    /// The time to fire by, and a newly noticed step (each step once).
    pub fn read(&mut self, wall: Millis, monotonic: Millis) -> (Millis, Option<ClockStep>) {
        let passed = monotonic.saturating_sub(self.monotonic);
        let expected = self.time + passed;
        let by_ms = wall as i64 - expected as i64;
        let (time, step) = if by_ms < -(STEP_MIN_MS as i64) {
            self.ahead = None;
            (wall, Some(ClockStep { by_ms }))
        } else if by_ms <= STEP_MIN_MS as i64 {
            self.ahead = None;
            (wall.min(expected + (self.unused + passed) / DRIFT), None)
        } else {
            self.read_ahead(wall, expected, monotonic)
        };
        let followed = time.saturating_sub(expected);
        self.unused = (self.unused + passed).saturating_sub(followed * DRIFT).min(DRIFT);
        (self.time, self.monotonic) = (time, monotonic);
        (time, step)
    }

    /// As `read`, for a wall clock that is ahead by more than drift explains.
    fn read_ahead(&mut self, wall: Millis, expected: Millis, monotonic: Millis) -> (Millis, Option<ClockStep>) {
        let by_ms = wall - expected;
        match self.ahead {
            Some((since, by)) if by_ms.abs_diff(by) <= STEP_MIN_MS => {
                if monotonic.saturating_sub(since) < HOLD_MS {
                    return (expected, None);
                }
                self.ahead = None;
                (wall, None)
            }
            _ => {
                self.ahead = Some((monotonic, by_ms));
                (expected, Some(ClockStep { by_ms: by_ms as i64 }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Millis = 3_600_000;
    const START: Millis = 1_780_000_000_000;

    #[test]
    fn clock_set_ahead_is_reported_once_and_followed_after_the_hold() {
        let mut clock = TrustedClock::new(START, 50);
        assert_eq!(clock.read(START + 10, 60), (START + 10, None));
        let step = ClockStep { by_ms: HOUR as i64 };
        assert_eq!(clock.read(START + HOUR + 20, 70), (START + 20, Some(step)));
        for passed in 1..HOLD_MS / 1_000 {
            let passed = passed * 1_000;
            assert_eq!(
                clock.read(START + HOUR + 20 + passed, 70 + passed),
                (START + 20 + passed, None)
            );
        }
        let passed = HOLD_MS;
        assert_eq!(
            clock.read(START + HOUR + 20 + passed, 70 + passed),
            (START + HOUR + 20 + passed, None)
        );
    }

    #[test]
    fn clock_set_ahead_and_back_was_never_followed() {
        let mut clock = TrustedClock::new(START, 0);
        clock.read(START + HOUR + 1_000, 1_000);
        assert_eq!(clock.read(START + 5_000, 5_000), (START + 5_000, None));
        let step = ClockStep { by_ms: HOUR as i64 };
        assert_eq!(clock.read(START + HOUR + 6_000, 6_000), (START + 6_000, Some(step)));
    }

    #[test]
    fn clock_set_back_is_followed_at_once() {
        let mut clock = TrustedClock::new(START, 0);
        let step = ClockStep { by_ms: -(HOUR as i64) };
        assert_eq!(
            clock.read(START + 1_000 - HOUR, 1_000),
            (START + 1_000 - HOUR, Some(step))
        );
        assert_eq!(clock.read(START + 2_000 - HOUR, 2_000), (START + 2_000 - HOUR, None));
    }

    #[test]
    fn slow_drift_is_followed() {
        let mut clock = TrustedClock::new(START, 0);
        let mut now = START;
        for second in 1..=10_000 {
            // 100 parts in a million, either way.
            let drift = second / 10;
            now = clock.read(START + second * 1_000 + drift, second * 1_000).0;
        }
        assert!(START + 10_001_000 - now < 20, "{now}");
    }

    #[test]
    fn long_agreement_does_not_allow_a_jump() {
        let mut clock = TrustedClock::new(START, 0);
        for second in 1..=3_600 {
            assert_eq!(
                clock.read(START + second * 1_000, second * 1_000),
                (START + second * 1_000, None)
            );
        }
        // Set ahead by 0.4 s, too little to be reported: followed by a thousandth, like any drift.
        for second in 3_601..=3_700 {
            let (now, step) = clock.read(START + second * 1_000 + 400, second * 1_000);
            let followed = now - (START + second * 1_000);
            assert!(
                step.is_none() && (1..=second - 3_600 + 1).contains(&followed),
                "{followed} ms by {second} s"
            );
        }
    }

    #[test]
    fn readings_close_together_follow_drift_too() {
        let mut clock = TrustedClock::new(START, 0);
        let mut now = START;
        for tick in 1..=100_000 {
            now = clock.read(START + tick * 10 + tick / 200, tick * 10).0;
        }
        assert!(START + 1_000_500 - now <= 1, "{now}");
    }

    proptest! {
        #[test]
        fn time_is_never_ahead_of_the_wall_clock_or_of_elapsed_time(
            steps in prop::collection::vec((0u64..5_000, prop_oneof![
                8 => Just(0i64),
                1 => -3_000i64..3_000,
                1 => -7_200_000i64..7_200_000,
            ]), 1..200),
        ) {
            let (mut wall, mut monotonic) = (START, 0);
            let mut clock = TrustedClock::new(wall, monotonic);
            let mut last = wall;
            // For each reading, the monotonic time and the difference of the wall clock from it.
            let mut seen = vec![(monotonic, wall - monotonic)];
            for (passed, step) in steps {
                monotonic += passed;
                wall = (wall + passed).saturating_add_signed(step);
                let (now, _) = clock.read(wall, monotonic);
                prop_assert!(now <= wall);
                seen.push((monotonic, wall - monotonic));
                // A jump is trusted only after the hold, except for small differences.
                if now > last + passed + passed / DRIFT + 1 {
                    let first = seen.iter().rposition(|&(at, _)| at + HOLD_MS <= monotonic);
                    let held = seen[first.expect("it stayed ahead for the hold")..].iter().map(|&(_, apart)| apart);
                    prop_assert!(held.clone().max() <= held.min().map(|least| least + 2 * STEP_MIN_MS));
                }
                last = now;
            }
        }
    }
}
