//! Admission of calls to targets: queue, concurrency, token bucket, circuit breaker.
//!
//! Owns: which call is next. Must not know: HTTP, clocks (time is passed in as microseconds), the content of a call.
//!
//! - A *route* is a group of calls to one URL. It has its own queue, slots, breaker and pause: responses of one URL
//!   stop no other one.
//! - An *origin* (scheme, host, port) has the routes to it. It has slots and a token bucket for all of them, and a
//!   breaker that opens only if it is unreachable.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::breaker::{Breaker, Life};

pub(crate) use crate::breaker::Health;

/// Microseconds since the caller started.
pub(crate) type Micros = u64;

pub(crate) const SECOND: Micros = 1_000_000;

/// Maximum number of routes remembered, and of origins. Beyond it an idle one is forgotten, together with its
/// failures.
const TARGETS_MAX: usize = 10_000;

/// Number of routes that can fill an origin: three that hang leave slots for others until their breakers open.
pub(crate) const ROUTES_AT_ONCE: usize = 4;

/// Limits of one target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Concurrent calls of a route; an origin allows four times as many.
    pub concurrency: usize,
    /// Long-term rate of calls per second to an origin; `None`: unlimited.
    pub rate: Option<f64>,
    /// Burst of calls after a pause.
    pub burst: f64,
    /// Maximum number of waiting calls of a route.
    pub queue_max: usize,
    /// Longest wait of a call, in microseconds.
    pub wait_max_us: u64,
    /// Failures in a row that open the breaker.
    pub failures_max: u32,
    /// How long the breaker stays open at first, in microseconds. Doubled after failed trials, up to 5 minutes.
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
    /// The target failed too often recently, or requested a pause.
    Held,
    /// Too many calls wait for the target, or this one waited too long.
    Busy,
    /// The caller is stopping.
    Stopping,
}

/// Why a target gets no calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The origin is unreachable.
    Unreachable,
    /// The URL failed too often in a row.
    Failing,
    /// The URL requested a pause by `Retry-After`.
    Paused,
}

/// A target that gets no calls, or only trials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldTarget {
    /// `None`: the whole origin.
    pub group: Option<u64>,
    pub url: String,
    pub hold: Hold,
    /// If this is now or earlier, it is in trial.
    pub until: Micros,
}

/// Identifies a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub origin: String,
    pub group: u64,
    pub url: String,
}

/// The right to a call that has begun: return it with [`Targets::done`].
#[derive(Debug)]
pub(crate) struct Ticket {
    route: Arc<Route>,
    route_life: Life,
    origin_life: Life,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// What the call shows about the origin.
    pub origin: Health,
    pub route: Health,
    /// The pause that the route requested.
    pub pause: Option<Micros>,
}

/// A call that is returned unmade.
#[derive(Debug, PartialEq)]
pub(crate) struct NotMade<T> {
    pub call: T,
    pub why: Why,
    pub retry_in: Micros,
}

struct Calls<T> {
    queue: VecDeque<(Micros, T)>,
    in_flight: usize,
    breaker: Breaker,
    /// The target requested a pause until this time.
    paused_until: Micros,
}

struct Origin<T> {
    routes: HashMap<Arc<Route>, Calls<T>>,
    /// Routes with waiting calls, in turn.
    line: VecDeque<Arc<Route>>,
    in_flight: usize,
    tokens: f64,
    counted_at: Micros,
    breaker: Breaker,
    /// No call will have waited too long before this time.
    expire_at: Micros,
}

/// Targets by name, each with its waiting calls.
pub(crate) struct Targets<T> {
    limits: Limits,
    in_flight_max: usize,
    in_flight: usize,
    origins: HashMap<String, Origin<T>>,
    /// Number of routes of all origins.
    routes: usize,
    /// Origins with waiting calls, in turn.
    line: VecDeque<String>,
    /// The held targets have changed since the last report.
    changed: bool,
}

impl<T> Targets<T> {
    pub fn new(limits: Limits, in_flight_max: usize) -> Self {
        Targets {
            limits,
            in_flight_max,
            in_flight: 0,
            origins: HashMap::new(),
            routes: 0,
            line: VecDeque::new(),
            changed: false,
        }
    }

    /// Queues a call for a route, or returns it.
    pub fn push(&mut self, now: Micros, route: Route, call: T) -> Result<(), NotMade<T>> {
        let busy = |call| NotMade {
            call,
            why: Why::Busy,
            retry_in: SECOND,
        };
        if !self.make_room(&route) {
            return Err(busy(call));
        }
        let burst = self.limits.burst;
        let origin = self.origins.entry(route.origin.clone()).or_insert_with(|| Origin {
            routes: HashMap::new(),
            line: VecDeque::new(),
            in_flight: 0,
            tokens: burst,
            counted_at: now,
            breaker: Breaker::new(),
            expire_at: Micros::MAX,
        });
        let held = origin.breaker.held_until(now);
        let known = origin.routes.get(&route);
        if let Some(until) = known.and_then(|calls| calls.held_until(now)).max(held) {
            return Err(NotMade {
                call,
                why: Why::Held,
                retry_in: until - now,
            });
        }
        if known.is_some_and(|calls| calls.queue.len() >= self.limits.queue_max) {
            return Err(busy(call));
        }
        if known.is_none() {
            let calls = Calls {
                queue: VecDeque::new(),
                in_flight: 0,
                breaker: Breaker::new(),
                paused_until: 0,
            };
            origin.routes.insert(Arc::new(route.clone()), calls);
            self.routes += 1;
        }
        let (name, _) = origin.routes.get_key_value(&route).expect("it is there");
        let name = Arc::clone(name);
        let calls = origin.routes.get_mut(&route).expect("it is there");
        if calls.queue.is_empty() {
            if origin.line.is_empty() {
                self.line.push_back(route.origin);
            }
            origin.line.push_back(name);
        }
        calls.queue.push_back((now, call));
        origin.expire_at = origin.expire_at.min(now + self.limits.wait_max_us);
        Ok(())
    }

    /// Whether there is space for this route. Forgets idle ones for it.
    fn make_room(&mut self, route: &Route) -> bool {
        let known = self.origins.get(&route.origin);
        if known.is_some_and(|origin| origin.routes.contains_key(route)) {
            return true;
        }
        if self.routes >= TARGETS_MAX {
            let idle = self.origins.values().flat_map(|origin| &origin.routes);
            let idle = idle.filter(|(_, calls)| calls.in_flight == 0 && calls.queue.is_empty());
            let Some(idle) = idle.map(|(route, _)| Arc::clone(route)).next() else {
                return false;
            };
            let origin = self.origins.get_mut(&idle.origin).expect("it has this route");
            origin.routes.remove(&idle);
            self.routes -= 1;
            self.changed = true;
        }
        if self.origins.len() >= TARGETS_MAX && !self.origins.contains_key(&route.origin) {
            let idle = self.origins.iter().find(|(_, origin)| origin.routes.is_empty());
            let Some(name) = idle.map(|(name, _)| name.clone()) else {
                return false;
            };
            self.origins.remove(&name);
            self.changed = true;
        }
        true
    }

    /// The next call to make: origins take turns, and so do the routes of each. Appends calls that can't be made to
    /// `back`.
    pub fn next(&mut self, now: Micros, back: &mut Vec<NotMade<T>>) -> Option<(Ticket, T)> {
        for _ in 0..self.line.len() {
            if self.in_flight >= self.in_flight_max {
                return None;
            }
            let name = self.line.pop_front()?;
            let origin = self.origins.get_mut(&name).expect("origins in line are kept");
            let before = origin.routes.len();
            let next = origin.next(now, &self.limits, back);
            self.routes -= before - origin.routes.len();
            if !origin.line.is_empty() {
                self.line.push_back(name);
            } else if origin.is_forgettable(now, &self.limits) {
                self.origins.remove(&name);
            }
            if let Some(next) = next {
                self.in_flight += 1;
                return Some(next);
            }
        }
        None
    }

    /// A call ended.
    pub fn done(&mut self, now: Micros, ticket: &Ticket, end: End) {
        let Ticket {
            route,
            route_life,
            origin_life,
        } = ticket;
        self.in_flight -= 1;
        let origin = self
            .origins
            .get_mut(&route.origin)
            .expect("origins with calls are kept");
        let calls = origin.routes.get_mut(route).expect("routes with calls are kept");
        origin.in_flight -= 1;
        calls.in_flight -= 1;
        let before = (origin.breaker.is_broken(), calls.breaker.is_broken());
        origin.breaker.end(now, *origin_life, end.origin, &self.limits);
        calls.breaker.end(now, *route_life, end.route, &self.limits);
        if let Some(pause) = end.pause {
            calls.paused_until = calls.paused_until.max(now + pause);
        }
        let after = (origin.breaker.is_broken(), calls.breaker.is_broken());
        self.changed |= before.0 || before.1 || before != after || end.pause.is_some();
        if calls.is_forgettable(now) {
            origin.routes.remove(route);
            self.routes -= 1;
        }
        if origin.is_forgettable(now, &self.limits) {
            self.origins.remove(&route.origin);
        }
    }

    /// When to call `next` again even if no call ends: for a token, the end of a pause, or a call that waited too
    /// long.
    pub fn wake_at(&self, now: Micros) -> Option<Micros> {
        self.line
            .iter()
            .filter_map(|name| self.origins.get(name))
            .map(|origin| origin.wake_at(now, &self.limits, self.in_flight < self.in_flight_max))
            .min()
    }

    /// All waiting calls.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.line.clear();
        self.origins.values_mut().flat_map(|origin| {
            origin.line.clear();
            origin
                .routes
                .values_mut()
                .flat_map(|calls| calls.queue.drain(..).map(|(_, call)| call))
        })
    }

    /// Whether the held targets have changed since the last report.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// The caller has reported the present held targets.
    pub fn changes_told(&mut self) {
        self.changed = false;
    }

    /// At most `max` held targets; whole origins first.
    pub fn held(&self, now: Micros, max: usize) -> Vec<HeldTarget> {
        let origins = self.origins.iter().filter(|(_, origin)| origin.breaker.is_broken());
        let origins = origins.map(|(name, origin)| HeldTarget {
            group: None,
            url: name.clone(),
            hold: Hold::Unreachable,
            until: origin.breaker.held_until(now).unwrap_or(now),
        });
        let routes = self.origins.values().flat_map(|origin| &origin.routes);
        let routes = routes.filter_map(|(route, calls)| {
            let broken = calls.breaker.held_until(now).unwrap_or(now);
            let (hold, until) = match (calls.breaker.is_broken(), calls.paused_until) {
                (_, paused) if paused > broken => (Hold::Paused, paused),
                (true, _) => (Hold::Failing, broken),
                _ => return None,
            };
            Some(HeldTarget {
                group: Some(route.group),
                url: route.url.clone(),
                hold,
                until,
            })
        });
        origins.chain(routes).take(max).collect()
    }
}

impl<T> Origin<T> {
    fn next(&mut self, now: Micros, limits: &Limits, back: &mut Vec<NotMade<T>>) -> Option<(Ticket, T)> {
        let held = self.breaker.held_until(now);
        if held.is_some() || now >= self.expire_at {
            self.drop_waiting(now, held, limits, back);
        }
        if !self.is_ready(now, limits) {
            return None;
        }
        for _ in 0..self.line.len() {
            let route = self.line.pop_front()?;
            let calls = self.routes.get_mut(&route).expect("routes in line are kept");
            if let Some(until) = calls.held_until(now) {
                calls.give_back(until - now, back);
                continue;
            }
            if calls.in_flight >= limits.concurrency || !calls.breaker.takes(now) {
                self.line.push_back(route);
                continue;
            }
            let (_, call) = calls.queue.pop_front().expect("routes in line have calls");
            let ticket = Ticket {
                route: Arc::clone(&route),
                route_life: calls.breaker.begin(),
                origin_life: self.breaker.begin(),
            };
            calls.in_flight += 1;
            self.in_flight += 1;
            if limits.rate.is_some() {
                self.tokens -= 1.0;
            }
            if !calls.queue.is_empty() {
                self.line.push_back(route);
            }
            return Some((ticket, call));
        }
        None
    }

    /// Returns the calls that waited too long, or all of them if the origin is held.
    fn drop_waiting(&mut self, now: Micros, held: Option<Micros>, limits: &Limits, back: &mut Vec<NotMade<T>>) {
        self.expire_at = Micros::MAX;
        let (routes, expire_at) = (&mut self.routes, &mut self.expire_at);
        self.line.retain(|route| {
            let calls = routes.get_mut(route).expect("routes in line are kept");
            match held {
                Some(until) => calls.give_back(until - now, back),
                None => calls.drop_late(now, limits, back),
            }
            if let Some((since, _)) = calls.queue.front() {
                *expire_at = (*expire_at).min(since + limits.wait_max_us);
                return true;
            }
            if calls.is_forgettable(now) {
                routes.remove(route);
            }
            false
        });
    }

    fn refill(&self, now: Micros, limits: &Limits) -> f64 {
        let rate = limits.rate.unwrap_or_default();
        let passed = now.saturating_sub(self.counted_at) as f64 / SECOND as f64;
        (self.tokens + passed * rate).min(limits.burst)
    }

    /// Whether a new one would be the same.
    fn is_forgettable(&self, now: Micros, limits: &Limits) -> bool {
        let is_full = limits.rate.is_none() || self.refill(now, limits) >= limits.burst;
        self.routes.is_empty() && self.breaker.is_fresh() && is_full
    }

    fn has_places(&self, limits: &Limits) -> bool {
        self.in_flight < limits.concurrency.saturating_mul(ROUTES_AT_ONCE)
    }

    fn is_ready(&mut self, now: Micros, limits: &Limits) -> bool {
        if limits.rate.is_some() {
            self.tokens = self.refill(now, limits);
            self.counted_at = now;
        }
        self.has_places(limits) && (limits.rate.is_none() || self.tokens >= 1.0) && self.breaker.takes(now)
    }

    /// `places`: a call could begin if there were a token.
    fn wake_at(&self, now: Micros, limits: &Limits, places: bool) -> Micros {
        let token = match limits.rate {
            Some(rate) if self.tokens < 1.0 && places && self.has_places(limits) => {
                self.counted_at + ((1.0 - self.tokens) / rate * SECOND as f64).ceil() as Micros
            }
            _ => Micros::MAX,
        };
        self.expire_at.min(token).max(now + 1)
    }
}

impl<T> Calls<T> {
    /// Until when this route gets no calls; `None` if a call may begin or wait.
    fn held_until(&self, now: Micros) -> Option<Micros> {
        let paused = Some(self.paused_until).filter(|until| *until > now);
        self.breaker.held_until(now).max(paused)
    }

    /// Whether it is in its initial state.
    fn is_forgettable(&self, now: Micros) -> bool {
        self.in_flight == 0 && self.queue.is_empty() && self.breaker.is_fresh() && self.paused_until <= now
    }

    fn give_back(&mut self, retry_in: Micros, back: &mut Vec<NotMade<T>>) {
        back.extend(self.queue.drain(..).map(|(_, call)| NotMade {
            call,
            why: Why::Held,
            retry_in,
        }));
    }

    fn drop_late(&mut self, now: Micros, limits: &Limits, back: &mut Vec<NotMade<T>>) {
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

    /// The route of topic 1 to a host's `/hook`.
    fn to(host: &str) -> Route {
        at(1, host, "/hook")
    }

    fn at(group: u64, host: &str, path: &str) -> Route {
        Route {
            origin: format!("http://{host}:80"),
            group,
            url: format!("http://{host}{path}"),
        }
    }

    const GOOD: End = End {
        origin: Health::Good,
        route: Health::Good,
        pause: None,
    };
    /// A response with status 500.
    const BAD: End = End {
        route: Health::Bad,
        ..GOOD
    };
    const UNREACHABLE: End = End {
        origin: Health::Bad,
        route: Health::Unknown,
        pause: None,
    };

    /// Begins all calls that can begin, in order.
    fn begin(targets: &mut Targets<u32>, now: Micros) -> Vec<(Ticket, u32)> {
        let mut back = Vec::new();
        let mut begun: Vec<_> = std::iter::from_fn(|| targets.next(now, &mut back)).collect();
        assert_eq!(back, []);
        begun.sort_by_key(|(_, call)| *call);
        begun
    }

    fn calls(begun: &[(Ticket, u32)]) -> Vec<u32> {
        begun.iter().map(|(_, call)| *call).collect()
    }

    /// Calls a route until its breaker opens at 0.
    fn fail(targets: &mut Targets<u32>, route: &Route, end: End) {
        for call in 0..3 {
            targets.push(0, route.clone(), call).unwrap();
            let begun = begin(targets, 0);
            assert_eq!(calls(&begun), [call]);
            targets.done(0, &begun[0].0, end);
        }
    }

    #[test]
    fn failing_or_paused_url_delays_no_other_of_its_origin() {
        let mut targets = Targets::new(limits(), 100);
        let others = [at(2, "a", "/hook"), at(1, "a", "/other")];
        fail(&mut targets, &to("a"), BAD);
        targets.push(0, at(3, "a", "/later"), 7).unwrap();
        let begun = begin(&mut targets, 0);
        let pause = Some(60 * SECOND);
        targets.done(0, &begun[0].0, End { pause, ..BAD });
        for (route, until) in [(to("a"), 10 * SECOND), (at(3, "a", "/later"), 60 * SECOND)] {
            let held = targets.push(0, route, 8).unwrap_err();
            assert_eq!((held.why, held.retry_in), (Why::Held, until));
        }
        for (call, route) in (10..).zip(others) {
            targets.push(0, route, call).unwrap();
        }
        assert_eq!(calls(&begin(&mut targets, 0)), [10, 11]);
        let mut held = targets.held(0, 10);
        held.sort_by_key(|held| held.group);
        let told: Vec<_> = held.iter().map(|each| (each.group, each.hold, each.until)).collect();
        assert_eq!(
            told,
            [
                (Some(1), Hold::Failing, 10 * SECOND),
                (Some(3), Hold::Paused, 60 * SECOND)
            ]
        );
        assert!(targets.has_changed());
    }

    #[test]
    fn origin_that_cannot_be_connected_to_is_held_as_a_whole() {
        let mut targets = Targets::new(limits(), 100);
        fail(&mut targets, &to("a"), UNREACHABLE);
        for route in [to("a"), at(2, "a", "/other")] {
            assert_eq!(targets.push(0, route, 1).unwrap_err().retry_in, 10 * SECOND);
        }
        assert_eq!(targets.held(0, 10)[0].hold, Hold::Unreachable);
        targets.push(10 * SECOND, to("b"), 2).unwrap();
        // Trials may use any of its routes.
        targets.push(10 * SECOND, at(2, "a", "/other"), 3).unwrap();
        let begun = begin(&mut targets, 10 * SECOND);
        assert_eq!(calls(&begun), [2, 3]);
        targets.done(10 * SECOND, &begun[1].0, GOOD);
        assert_eq!(targets.held(10 * SECOND, 10), []);
    }

    #[test]
    fn urls_that_hang_leave_slots_to_others_of_their_origin() {
        let mut targets = Targets::new(limits(), 100);
        for group in 1..=3 {
            for call in 0..10 {
                targets.push(0, at(group, "a", "/hangs"), call).unwrap();
            }
        }
        assert_eq!(begin(&mut targets, 0).len(), 6);
        targets.push(1, at(4, "a", "/hook"), 99).unwrap();
        assert_eq!(calls(&begin(&mut targets, 1)), [99]);
        // The total concurrency of the origin is bounded.
        for call in 0..10 {
            targets.push(1, at(5, "a", "/hook"), call).unwrap();
        }
        assert_eq!(begin(&mut targets, 1).len(), 1);
    }

    #[test]
    fn routes_that_answer_are_not_remembered() {
        let mut targets = Targets::new(limits(), 100);
        for order in 0..50 {
            targets.push(0, at(1, "a", &format!("/order/{order}")), order).unwrap();
            let begun = begin(&mut targets, 0);
            targets.done(0, &begun[0].0, GOOD);
        }
        assert_eq!((targets.routes, targets.origins.len()), (0, 0));
    }

    #[test]
    fn routes_beyond_the_limit_replace_idle_ones() {
        let mut targets = Targets::new(limits(), 100);
        for order in 0..TARGETS_MAX as u32 + 5 {
            targets.push(0, at(1, "a", &format!("/order/{order}")), order).unwrap();
            let begun = begin(&mut targets, 0);
            targets.done(0, &begun[0].0, BAD);
        }
        assert_eq!(targets.routes, TARGETS_MAX);
        assert_eq!(targets.origins["http://a:80"].routes.len(), TARGETS_MAX);
    }

    #[test]
    fn slow_target_uses_only_its_own_slots() {
        let mut targets = Targets::new(limits(), 100);
        for call in 0..50 {
            targets.push(0, to("slow"), call).unwrap();
        }
        targets.push(0, to("other"), 99).unwrap();
        let begun = begin(&mut targets, 0);
        assert_eq!(calls(&begun), [0, 1, 99]);
        targets.done(1, &begun[0].0, GOOD);
        assert_eq!(calls(&begin(&mut targets, 1)), [2]);
    }

    #[test]
    fn breaker_opens_after_failures_in_a_row_and_calls_wait_for_its_trials() {
        let mut targets = Targets::new(limits(), 100);
        fail(&mut targets, &to("down"), BAD);
        let held = targets.push(SECOND, to("down"), 3).unwrap_err();
        assert_eq!((held.why, held.retry_in), (Why::Held, 9 * SECOND));
        for call in 4..9 {
            targets.push(10 * SECOND, to("down"), call).unwrap();
        }
        // Two slots, so two trials; the third call waits for their results.
        let begun = begin(&mut targets, 10 * SECOND);
        assert_eq!(calls(&begun), [4, 5]);
        targets.done(11 * SECOND, &begun[0].0, BAD);
        let third = begin(&mut targets, 11 * SECOND);
        assert_eq!(calls(&third), [6]);
        targets.done(11 * SECOND, &begun[1].0, BAD);
        assert_eq!(calls(&begin(&mut targets, 11 * SECOND)), []);
        targets.done(11 * SECOND, &third[0].0, BAD);
        let mut back = Vec::new();
        assert!(targets.next(11 * SECOND, &mut back).is_none());
        assert_eq!(
            back.iter().map(|back| back.retry_in).collect::<Vec<_>>(),
            [20 * SECOND; 2]
        );
        targets.push(31 * SECOND, to("down"), 9).unwrap();
        let begun = begin(&mut targets, 31 * SECOND);
        targets.done(32 * SECOND, &begun[0].0, GOOD);
        targets.push(32 * SECOND, to("down"), 10).unwrap();
        targets.push(32 * SECOND, to("down"), 11).unwrap();
        assert_eq!(calls(&begin(&mut targets, 32 * SECOND)), [10, 11]);
    }

    #[test]
    fn waiting_calls_are_returned_when_held_or_too_old() {
        let mut targets = Targets::new(limits(), 100);
        for call in 0..5 {
            targets.push(0, to("down"), call).unwrap();
        }
        let begun = begin(&mut targets, 0);
        assert_eq!(calls(&begun), [0, 1]);
        let mut back = Vec::new();
        let wake_at = targets.wake_at(0).unwrap();
        assert_eq!(wake_at, 5 * SECOND);
        targets.push(wake_at, to("down"), 9).unwrap();
        assert!(targets.next(wake_at, &mut back).is_none());
        assert_eq!(
            back.iter().map(|back| (back.call, back.why)).collect::<Vec<_>>(),
            [(2, Why::Busy), (3, Why::Busy), (4, Why::Busy)]
        );
        back.clear();
        let pause = Some(60 * SECOND);
        targets.done(wake_at, &begun[0].0, End { pause, ..GOOD });
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
            let mut flying: Vec<Ticket> = Vec::new();
            let mut back = Vec::new();
            for (passed, pushes, end) in steps {
                now += passed;
                for _ in 0..pushes {
                    given += 1;
                    if targets.push(now, to("one"), given).is_err() {
                        out += 1;
                    }
                }
                while let Some((ticket, _)) = targets.next(now, &mut back) {
                    begun += 1;
                    flying.push(ticket);
                }
                out += back.drain(..).count() as u32;
                prop_assert!(flying.len() <= 2);
                prop_assert!(f64::from(begun) <= burst + rate * now as f64 / SECOND as f64 + 1e-6);
                if end {
                    for ticket in flying.drain(..) {
                        targets.done(now, &ticket, GOOD);
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
