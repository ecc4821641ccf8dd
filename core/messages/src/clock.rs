//! A wall clock that no step makes run ahead.
//!
//! Owns: [`TrustedClock`], which compares the wall clock with the monotonic one. Must not know: how clocks are read.
//!
//! A message fires at `wall >= due_at` *and* when the monotonic clock has seen that time pass. So a wall clock that is
//! set back is followed at once (nothing is early by it), and one that is set ahead is told and followed only after it
//! has stood so for a while: until then time passes as the monotonic clock says.

use crate::wheel::Millis;

/// A difference that ticks, scheduling and the slewing of NTP explain.
const STEP_MIN_MS: Millis = 500;

/// How long a wall clock that was set ahead must stand before it is followed.
pub const HOLD_MS: Millis = 10_000;

/// A wall clock that was set: milliseconds, positive if ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    pub by_ms: i64,
}

/// Time to fire by.
#[derive(Clone, Debug)]
pub struct TrustedClock {
    /// The wall time and the monotonic time that belong together.
    wall: Millis,
    monotonic: Millis,
    /// The wall clock was seen ahead: since when, and by how much.
    ahead: Option<(Millis, Millis)>,
}

impl TrustedClock {
    /// Trusts the wall clock as it is at the start. Both in milliseconds.
    pub fn new(wall: Millis, monotonic: Millis) -> Self {
        TrustedClock {
            wall,
            monotonic,
            ahead: None,
        }
    }

    /// The time to fire by, and a step to tell of when one is noticed (once each).
    pub fn read(&mut self, wall: Millis, monotonic: Millis) -> (Millis, Option<ClockStep>) {
        let expected = self.wall + monotonic.saturating_sub(self.monotonic);
        let by_ms = wall as i64 - expected as i64;
        if by_ms < -(STEP_MIN_MS as i64) {
            self.ahead = None;
            self.follow(wall, monotonic);
            return (wall, Some(ClockStep { by_ms }));
        }
        if by_ms <= STEP_MIN_MS as i64 {
            self.ahead = None;
            // Small differences are followed downwards, and upwards by a thousandth of the time that passed.
            let most = expected + monotonic.saturating_sub(self.monotonic) / 1_000;
            let now = wall.min(most);
            if wall < expected || now > expected {
                self.follow(now, monotonic);
            }
            return (now, None);
        }
        match self.ahead {
            Some((since, by)) if by_ms.abs_diff(by as i64) <= STEP_MIN_MS => {
                if monotonic.saturating_sub(since) >= HOLD_MS {
                    self.ahead = None;
                    self.follow(wall, monotonic);
                    return (wall, None);
                }
                (expected, None)
            }
            _ => {
                self.ahead = Some((monotonic, by_ms as Millis));
                (expected, Some(ClockStep { by_ms }))
            }
        }
    }

    fn follow(&mut self, wall: Millis, monotonic: Millis) {
        (self.wall, self.monotonic) = (wall, monotonic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Millis = 3_600_000;
    const START: Millis = 1_780_000_000_000;

    #[test]
    fn clock_set_ahead_is_told_once_and_followed_after_it_stood() {
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

    proptest! {
        #[test]
        fn time_is_never_ahead_of_the_wall_nor_of_what_passed(
            steps in prop::collection::vec((0u64..5_000, prop_oneof![9 => Just(0i64), 1 => -7_200_000i64..7_200_000]), 1..200),
        ) {
            let (mut wall, mut monotonic) = (START, 0);
            let mut clock = TrustedClock::new(wall, monotonic);
            let (mut last, mut stood) = (wall, 0);
            for (passed, step) in steps {
                monotonic += passed;
                wall = (wall + passed).saturating_add_signed(step);
                stood = if step == 0 { stood + passed } else { 0 };
                let (now, _) = clock.read(wall, monotonic);
                prop_assert!(now <= wall);
                // A jump is trusted only when the wall clock has stood for the hold.
                prop_assert!(now <= last + passed + passed / 1_000 + 1 || stood + 5_000 >= HOLD_MS);
                last = now;
            }
        }
    }
}
