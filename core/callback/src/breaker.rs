//! A circuit breaker: stops calls that only fail, and lets some through to try again.
//!
//! Owns: the states of one breaker. Must not know: what it guards, queues, clocks (time is passed in as
//! microseconds).

use crate::target::{Limits, Micros, SECOND};

/// Longest time for which a breaker stays open.
const OPEN_MAX: Micros = 300 * SECOND;

/// Trial calls after the pause: one success closes the breaker, and it opens again if all of them fail. A single
/// trial would only test one message, which may be the one that its target can't accept.
const TRIALS: u32 = 3;

/// What the result of a call shows about the health of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    Bad,
    /// It shows nothing.
    Unknown,
}

/// Identifies the trial that a call belongs to; a call of an earlier one shows nothing about this one.
pub(crate) type Life = u32;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until: Micros,
        span: Micros,
    },
    /// Some calls are in progress as a trial.
    Trial {
        span: Micros,
        begun: u32,
        failed: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Breaker {
    state: State,
    life: Life,
}

impl Breaker {
    pub fn new() -> Self {
        Breaker {
            state: State::Closed { failures: 0 },
            life: 0,
        }
    }

    /// Whether no failures are remembered.
    pub fn is_fresh(&self) -> bool {
        self.state == State::Closed { failures: 0 }
    }

    /// Whether it is open or in trial.
    pub fn is_broken(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    /// Until when no call may begin; `None` if one may begin or wait.
    pub fn held_until(&self, now: Micros) -> Option<Micros> {
        match self.state {
            State::Open { until, .. } if until > now => Some(until),
            _ => None,
        }
    }

    /// Whether a call may begin now.
    pub fn takes(&self, now: Micros) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until, .. } => until <= now,
            State::Trial { begun, .. } => begun < TRIALS,
        }
    }

    /// A call begins; returns the life that it belongs to.
    pub fn begin(&mut self) -> Life {
        match &mut self.state {
            State::Closed { .. } => {}
            State::Open { span, .. } => {
                let span = *span;
                self.life = self.life.wrapping_add(1);
                self.state = State::Trial {
                    span,
                    begun: 1,
                    failed: 0,
                };
            }
            State::Trial { begun, .. } => *begun += 1,
        }
        self.life
    }

    /// A call ended.
    pub fn end(&mut self, now: Micros, life: Life, health: Health, limits: &Limits) {
        match (health, self.state) {
            (Health::Good, _) => self.state = State::Closed { failures: 0 },
            (Health::Bad, State::Closed { failures }) if failures + 1 >= limits.failures_max => {
                self.open(now, limits.open_us);
            }
            (Health::Bad, State::Closed { failures }) => self.state = State::Closed { failures: failures + 1 },
            (Health::Bad, State::Trial { span, begun, failed }) if life == self.life => {
                if failed + 1 >= TRIALS {
                    self.open(now, (span * 2).min(OPEN_MAX));
                } else {
                    self.state = State::Trial {
                        span,
                        begun,
                        failed: failed + 1,
                    };
                }
            }
            // A trial without a result is repeated.
            (Health::Unknown, State::Trial { span, begun, failed }) if life == self.life => {
                self.state = State::Trial {
                    span,
                    begun: begun - 1,
                    failed,
                };
            }
            _ => {}
        }
    }

    fn open(&mut self, now: Micros, span: Micros) {
        self.life = self.life.wrapping_add(1);
        self.state = State::Open {
            until: now + span,
            span,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            failures_max: 3,
            open_us: 10 * SECOND,
            ..Limits::default()
        }
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::new();
        for _ in 0..3 {
            let life = breaker.begin();
            breaker.end(0, life, Health::Bad, &limits());
        }
        assert_eq!(breaker.held_until(0), Some(10 * SECOND));
        breaker
    }

    #[test]
    fn one_bad_trial_of_three_does_not_open_it_again() {
        let mut breaker = opened();
        let now = 10 * SECOND;
        let lives = [breaker.begin(), breaker.begin(), breaker.begin()];
        assert!(!breaker.takes(now), "three calls try at once");
        breaker.end(now, lives[0], Health::Bad, &limits());
        assert_eq!(breaker.held_until(now), None);
        breaker.end(now, lives[1], Health::Good, &limits());
        assert!(breaker.is_fresh());
    }

    #[test]
    fn three_bad_trials_open_it_for_twice_as_long() {
        let mut breaker = opened();
        let now = 10 * SECOND;
        for _ in 0..3 {
            assert!(breaker.takes(now));
            let life = breaker.begin();
            breaker.end(now, life, Health::Bad, &limits());
        }
        assert_eq!(breaker.held_until(now), Some(30 * SECOND));
    }

    #[test]
    fn inconclusive_trial_is_repeated() {
        let mut breaker = opened();
        let lives = [breaker.begin(), breaker.begin(), breaker.begin()];
        breaker.end(10 * SECOND, lives[2], Health::Unknown, &limits());
        assert!(breaker.takes(10 * SECOND));
    }

    #[test]
    fn call_from_before_the_pause_fails_no_trial() {
        let mut breaker = Breaker::new();
        let old: Vec<_> = (0..6).map(|_| breaker.begin()).collect();
        for life in &old[..3] {
            breaker.end(0, *life, Health::Bad, &limits());
        }
        let life = breaker.begin();
        for old in &old[3..] {
            breaker.end(10 * SECOND, *old, Health::Bad, &limits());
        }
        assert_eq!(breaker.held_until(10 * SECOND), None);
        breaker.end(10 * SECOND, life, Health::Good, &limits());
        assert!(breaker.is_fresh());
    }
}
