//! What each target may be given: queue, concurrency, token bucket, breaker.
//!
//! Owns: who is next. Must not know: HTTP, clocks (time comes in as microseconds), what a call carries.

use std::collections::{HashMap, VecDeque};

/// Microseconds since the caller began.
pub(crate) type Micros = u64;

const SECOND: Micros = 1_000_000;

/// How long a breaker stays open at most.
const OPEN_MAX: Micros = 300 * SECOND;

/// Targets remembered while they have nothing to do. Beyond, an idle one is forgotten, and with it that it failed.
const TARGETS_MAX: usize = 10_000;

/// Limits of one target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Calls at once.
    pub concurrency: usize,
    /// Calls a second in the long run; `None`: any number.
    pub rate: Option<f64>,
    /// Calls that may come at once after a pause.
    pub burst: f64,
    /// Calls waiting for their turn.
    pub queue_max: usize,
    /// How long a call may wait for its turn, in microseconds.
    pub wait_max_us: u64,
    /// Failures in a row that open the breaker.
    pub failures_max: u32,
    /// How long the breaker stays open at first, in microseconds. Twice as long after each failed trial, up to 5 minutes.
    pub open_us: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            concurrency: 32,
            rate: None,
            burst: 100.0,
            queue_max: 10_000,
            wait_max_us: 5 * SECOND,
            failures_max: 10,
            open_us: 5 * SECOND,
        }
    }
}

/// Why a call was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The target failed too often lately, or asked for a pause.
    Held,
    /// Too many calls wait for the target, or this one waited too long.
    Busy,
    /// The caller ends.
    Stopping,
}

/// How a call ended, as far as its target's health goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    Bad,
    /// Nothing was learned of the target.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Breaker {
    Closed {
        failures: u32,
    },
    Open {
        until: Micros,
        span: Micros,
    },
    /// One call is on its way to try.
    Trial {
        span: Micros,
    },
}

struct Target<T> {
    queue: VecDeque<(Micros, T)>,
    in_flight: usize,
    tokens: f64,
    counted_at: Micros,
    breaker: Breaker,
    /// The target asked for a pause until then.
    paused_until: Micros,
    /// It stands in the line of targets with calls.
    in_line: bool,
}

/// A call that is given back.
#[derive(Debug, PartialEq)]
pub(crate) struct NotMade<T> {
    pub call: T,
    pub why: Why,
    pub retry_in: Micros,
}

/// Targets by name, each with the calls that wait for it.
pub(crate) struct Targets<T> {
    limits: Limits,
    in_flight_max: usize,
    in_flight: usize,
    targets: HashMap<String, Target<T>>,
    /// Targets with calls that wait, in turn.
    line: VecDeque<String>,
}

impl<T> Targets<T> {
    pub fn new(limits: Limits, in_flight_max: usize) -> Self {
        Targets {
            limits,
            in_flight_max,
            in_flight: 0,
            targets: HashMap::new(),
            line: VecDeque::new(),
        }
    }

    /// Takes a call for a target, or gives it back.
    pub fn push(&mut self, now: Micros, name: &str, call: T) -> Result<(), NotMade<T>> {
        if !self.targets.contains_key(name) {
            if self.targets.len() >= TARGETS_MAX {
                let idle = self
                    .targets
                    .iter()
                    .find(|(_, target)| target.in_flight == 0 && target.queue.is_empty());
                match idle.map(|(name, _)| name.clone()) {
                    Some(name) => drop(self.targets.remove(&name)),
                    None => {
                        return Err(NotMade {
                            call,
                            why: Why::Busy,
                            retry_in: SECOND,
                        })
                    }
                }
            }
            let target = Target {
                queue: VecDeque::new(),
                in_flight: 0,
                tokens: self.limits.burst,
                counted_at: now,
                breaker: Breaker::Closed { failures: 0 },
                paused_until: 0,
                in_line: false,
            };
            self.targets.insert(name.to_owned(), target);
        }
        let target = self.targets.get_mut(name).expect("it was just made");
        if let Some(until) = target.held_until(now) {
            return Err(NotMade {
                call,
                why: Why::Held,
                retry_in: until - now,
            });
        }
        if target.queue.len() >= self.limits.queue_max {
            return Err(NotMade {
                call,
                why: Why::Busy,
                retry_in: SECOND,
            });
        }
        target.queue.push_back((now, call));
        if !target.in_line {
            target.in_line = true;
            self.line.push_back(name.to_owned());
        }
        Ok(())
    }

    /// The next call to make, with its target: targets take turns. Calls that can't be made are added to `back`.
    pub fn next(&mut self, now: Micros, back: &mut Vec<NotMade<T>>) -> Option<(String, T)> {
        for _ in 0..self.line.len() {
            if self.in_flight >= self.in_flight_max {
                return None;
            }
            let name = self.line.pop_front()?;
            let target = self.targets.get_mut(&name).expect("targets in line are kept");
            target.drop_waiting(now, &self.limits, back);
            if target.queue.is_empty() {
                target.in_line = false;
                continue;
            }
            let ready = target.ready(now, &self.limits);
            self.line.push_back(name.clone());
            if ready {
                let (_, call) = target.queue.pop_front().expect("it is not empty");
                target.begin(&self.limits);
                self.in_flight += 1;
                return Some((name, call));
            }
        }
        None
    }

    /// A call of a target ended. `pause`: how long the target asked to be left alone.
    pub fn done(&mut self, now: Micros, name: &str, health: Health, pause: Option<Micros>) {
        self.in_flight -= 1;
        let target = self.targets.get_mut(name).expect("targets with calls are kept");
        target.in_flight -= 1;
        if let Some(pause) = pause {
            target.paused_until = target.paused_until.max(now + pause);
        }
        target.breaker = match (health, target.breaker) {
            (Health::Good, _) => Breaker::Closed { failures: 0 },
            (Health::Bad, Breaker::Closed { failures }) if failures + 1 >= self.limits.failures_max => {
                let span = self.limits.open_us;
                Breaker::Open {
                    until: now + span,
                    span,
                }
            }
            (Health::Bad, Breaker::Closed { failures }) => Breaker::Closed { failures: failures + 1 },
            (Health::Bad, Breaker::Trial { span }) => {
                let span = (span * 2).min(OPEN_MAX);
                Breaker::Open {
                    until: now + span,
                    span,
                }
            }
            // A trial that tells nothing is made again.
            (Health::Unknown, Breaker::Trial { span }) => Breaker::Open { until: now, span },
            (_, breaker) => breaker,
        };
    }

    /// When to ask again though no call ends: a token, the end of a pause, or a call that waited too long.
    pub fn wake_at(&self, now: Micros) -> Option<Micros> {
        self.line
            .iter()
            .filter_map(|name| self.targets.get(name))
            .filter(|target| !target.queue.is_empty())
            .map(|target| target.wake_at(now, &self.limits))
            .min()
    }

    /// All calls that wait.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.line.clear();
        self.targets.values_mut().flat_map(|target| {
            target.in_line = false;
            target.queue.drain(..).map(|(_, call)| call)
        })
    }
}

impl<T> Target<T> {
    /// Until when nothing goes to this target; `None` if a call may go or wait.
    fn held_until(&self, now: Micros) -> Option<Micros> {
        let open = match self.breaker {
            Breaker::Open { until, .. } => until,
            // Until the trial has told, about as long as it was open.
            Breaker::Trial { span } => now + span,
            Breaker::Closed { .. } => 0,
        };
        Some(open.max(self.paused_until)).filter(|until| *until > now)
    }

    /// Gives back the calls that waited too long, and all of them while the target is held.
    fn drop_waiting(&mut self, now: Micros, limits: &Limits, back: &mut Vec<NotMade<T>>) {
        if let Some(until) = self.held_until(now) {
            let retry_in = until - now;
            back.extend(self.queue.drain(..).map(|(_, call)| NotMade {
                call,
                why: Why::Held,
                retry_in,
            }));
        }
        while self
            .queue
            .front()
            .is_some_and(|(since, _)| now.saturating_sub(*since) >= limits.wait_max_us)
        {
            let (_, call) = self.queue.pop_front().expect("it is not empty");
            back.push(NotMade {
                call,
                why: Why::Busy,
                retry_in: SECOND,
            });
        }
    }

    fn ready(&mut self, now: Micros, limits: &Limits) -> bool {
        if let Some(rate) = limits.rate {
            let passed = now.saturating_sub(self.counted_at) as f64 / SECOND as f64;
            self.tokens = (self.tokens + passed * rate).min(limits.burst);
            self.counted_at = now;
        }
        self.in_flight < limits.concurrency && (limits.rate.is_none() || self.tokens >= 1.0)
    }

    fn begin(&mut self, limits: &Limits) {
        self.in_flight += 1;
        if limits.rate.is_some() {
            self.tokens -= 1.0;
        }
        if let Breaker::Open { span, .. } = self.breaker {
            self.breaker = Breaker::Trial { span };
        }
    }

    fn wake_at(&self, now: Micros, limits: &Limits) -> Micros {
        let waited = self
            .queue
            .front()
            .map_or(Micros::MAX, |(since, _)| since + limits.wait_max_us);
        let token = match limits.rate {
            Some(rate) if self.tokens < 1.0 && self.in_flight < limits.concurrency => {
                self.counted_at + ((1.0 - self.tokens) / rate * SECOND as f64).ceil() as Micros
            }
            _ => Micros::MAX,
        };
        waited.min(token).max(now + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits() -> Limits {
        Limits {
            concurrency: 2,
            failures_max: 3,
            open_us: 10 * SECOND,
            ..Limits::default()
        }
    }

    fn begin(targets: &mut Targets<u32>, now: Micros) -> Vec<(String, u32)> {
        let mut back = Vec::new();
        let begun = std::iter::from_fn(|| targets.next(now, &mut back)).collect();
        assert_eq!(back, []);
        begun
    }

    #[test]
    fn slow_target_takes_its_own_places_and_no_others() {
        let mut targets = Targets::new(limits(), 100);
        for call in 0..50 {
            targets.push(0, "slow", call).unwrap();
        }
        targets.push(0, "other", 99).unwrap();
        let mut begun = begin(&mut targets, 0);
        begun.sort();
        assert_eq!(
            begun,
            [("other".to_owned(), 99), ("slow".to_owned(), 0), ("slow".to_owned(), 1)]
        );
        targets.done(1, "slow", Health::Good, None);
        assert_eq!(begin(&mut targets, 1), [("slow".to_owned(), 2)]);
    }

    #[test]
    fn breaker_opens_after_failures_in_a_row_and_tries_one_call_after_its_time() {
        let mut targets = Targets::new(limits(), 100);
        for call in 0..3 {
            targets.push(0, "down", call).unwrap();
            assert_eq!(begin(&mut targets, 0).len(), 1);
            targets.done(0, "down", Health::Bad, None);
        }
        let held = targets.push(SECOND, "down", 3).unwrap_err();
        assert_eq!((held.why, held.retry_in), (Why::Held, 9 * SECOND));
        targets.push(10 * SECOND, "down", 4).unwrap();
        assert_eq!(begin(&mut targets, 10 * SECOND).len(), 1);
        // The trial is under way: no second call.
        assert_eq!(targets.push(10 * SECOND, "down", 5).unwrap_err().why, Why::Held);
        targets.done(11 * SECOND, "down", Health::Bad, None);
        assert_eq!(targets.push(11 * SECOND, "down", 6).unwrap_err().retry_in, 20 * SECOND);
        targets.push(31 * SECOND, "down", 7).unwrap();
        assert_eq!(begin(&mut targets, 31 * SECOND).len(), 1);
        targets.done(32 * SECOND, "down", Health::Good, None);
        targets.push(32 * SECOND, "down", 8).unwrap();
        targets.push(32 * SECOND, "down", 9).unwrap();
        assert_eq!(begin(&mut targets, 32 * SECOND).len(), 2);
    }

    #[test]
    fn calls_that_wait_are_given_back_when_the_breaker_opens_and_when_they_waited_too_long() {
        let mut targets = Targets::new(limits(), 100);
        for call in 0..5 {
            targets.push(0, "down", call).unwrap();
        }
        assert_eq!(begin(&mut targets, 0).len(), 2);
        let mut back = Vec::new();
        let wake_at = targets.wake_at(0).unwrap();
        assert_eq!(wake_at, 5 * SECOND);
        targets.push(wake_at, "down", 9).unwrap();
        assert!(targets.next(wake_at, &mut back).is_none());
        assert_eq!(
            back.iter().map(|back| (back.call, back.why)).collect::<Vec<_>>(),
            [(2, Why::Busy), (3, Why::Busy), (4, Why::Busy)]
        );
        back.clear();
        targets.done(wake_at, "down", Health::Good, Some(60 * SECOND));
        assert!(targets.next(wake_at, &mut back).is_none());
        assert_eq!(
            (back[0].call, back[0].why, back[0].retry_in),
            (9, Why::Held, 60 * SECOND)
        );
    }

    proptest! {
        #[test]
        fn bucket_and_concurrency_hold_and_every_call_comes_out_once(
            rate in 1.0f64..50.0,
            burst in 1.0f64..10.0,
            steps in prop::collection::vec((0u64..300_000, 0u32..6, any::<bool>()), 1..200),
        ) {
            let limits = Limits { rate: Some(rate), burst, queue_max: 20, wait_max_us: SECOND, ..limits() };
            let mut targets = Targets::new(limits, 3);
            let (mut now, mut given, mut out, mut begun) = (0, 0u32, 0, 0u32);
            let mut flying: Vec<String> = Vec::new();
            let mut back = Vec::new();
            for (passed, pushes, end) in steps {
                now += passed;
                for _ in 0..pushes {
                    given += 1;
                    if targets.push(now, "one", given).is_err() {
                        out += 1;
                    }
                }
                while let Some((name, _)) = targets.next(now, &mut back) {
                    begun += 1;
                    flying.push(name);
                }
                out += back.drain(..).count() as u32;
                prop_assert!(flying.len() <= 2);
                prop_assert!(f64::from(begun) <= burst + rate * now as f64 / SECOND as f64 + 1e-6);
                if end {
                    for name in flying.drain(..) {
                        targets.done(now, &name, Health::Good, None);
                        out += 1;
                    }
                }
                if let Some(at) = targets.wake_at(now) {
                    prop_assert!(at > now);
                }
            }
            prop_assert_eq!(given, out + flying.len() as u32 + targets.drain().count() as u32);
        }
    }
}
