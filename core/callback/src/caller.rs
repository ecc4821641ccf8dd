//! The thread that makes the calls, and its two ends.
//!
//! Owns: the thread, batches in and out, the wake-up. Must not know: the purpose of a call.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{Client, Failure, Place, Tls};
use crate::guard::Guard;
use crate::target::{End, Health, HeldTarget, Limits, Micros, Route, Targets, Ticket, Why, ROUTES_AT_ONCE};
use crate::{Answer, Call, Held, Outcome};

/// Results are handed over in batches: at this number, or after this time. Each batch wakes the other side, which
/// costs more than a call. A worker gathers results for longer than that.
const TOLD_MAX: usize = 256;
const TELL_AFTER: Duration = Duration::from_millis(4);

/// Maximum number of held targets that are reported, and how often they are checked while they change.
const HELD_MAX: usize = 256;
const HELD_EVERY: Duration = Duration::from_millis(100);

/// Threads that resolve names. A name that hangs blocks one until its resolver gives up.
const RESOLVERS_MAX: usize = 32;

#[derive(Clone, Debug)]
pub struct Settings {
    pub guard: Guard,
    pub tls: Tls,
    /// Limits of every target.
    pub limits: Limits,
    /// Maximum number of concurrent calls to all targets: a descriptor each.
    pub in_flight_max: usize,
    /// Maximum number of calls submitted and not completed.
    pub calls_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            guard: Guard::default(),
            tls: Tls::default(),
            limits: Limits::default(),
            in_flight_max: 1_000,
            calls_max: 100_000,
        }
    }
}

/// State shared by both ends of the thread.
struct Shared {
    answers: Mutex<Answers>,
    held: Mutex<HeldTargets>,
    /// The thread's end of the wake-up socket.
    wake: UnixStream,
}

#[derive(Default)]
struct Answers {
    ready: Vec<Answer>,
    /// Number of calls submitted and not taken out.
    open: usize,
}

/// Held targets, with times of the engine's clock.
struct HeldTargets {
    begin: Instant,
    targets: Vec<HeldTarget>,
}

/// Makes callbacks in its own thread. Dropping it ends the thread and aborts calls in progress.
///
/// [`Caller::submit`] hands in calls, [`Caller::take`] returns their results; the descriptor is readable when there
/// are some.
pub struct Caller {
    calls: Option<mpsc::UnboundedSender<Vec<Call>>>,
    shared: Arc<Shared>,
    wake: UnixStream,
    calls_max: usize,
    thread: Option<JoinHandle<()>>,
}

impl Caller {
    pub fn start(settings: Settings) -> io::Result<Caller> {
        let (wake, other) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        let client = Client::new(
            Arc::new(settings.guard.clone()),
            &settings.tls,
            settings.limits.concurrency.saturating_mul(ROUTES_AT_ONCE),
        )
        .map_err(io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(RESOLVERS_MAX)
            .build()?;
        let shared = Arc::new(Shared {
            answers: Mutex::default(),
            held: Mutex::new(HeldTargets {
                begin: Instant::now(),
                targets: Vec::new(),
            }),
            wake: other,
        });
        // Bounded by `calls_max`: see `submit`.
        let (calls, inbox) = mpsc::unbounded_channel();
        let calls_max = settings.calls_max;
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("callbacks".to_owned())
            .spawn(move || {
                runtime.block_on(Engine::new(settings, client, theirs).run(inbox));
                // Not waited for: a name that hangs must not delay the end.
                runtime.shutdown_background();
            })?;
        Ok(Caller {
            calls: Some(calls),
            shared,
            wake,
            calls_max,
            thread: Some(thread),
        })
    }

    /// Submits calls while there is space; returns the rest. Every accepted call gets one result.
    pub fn submit(&self, mut calls: Vec<Call>) -> Vec<Call> {
        let mut answers = self.shared.lock();
        let room = self.calls_max.saturating_sub(answers.open).min(calls.len());
        let rest = calls.split_off(room);
        answers.open += calls.len();
        drop(answers);
        if let (Some(sender), false) = (&self.calls, calls.is_empty()) {
            // Only a panic in the thread closes the channel; then no result comes.
            let _ = sender.send(calls);
        }
        rest
    }

    /// Moves the available results to `out`.
    pub fn take(&self, out: &mut Vec<Answer>) {
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(read) if read == bytes.len()) {}
        let mut answers = self.shared.lock();
        answers.open -= answers.ready.len();
        out.append(&mut answers.ready);
    }

    /// Targets that get no calls now, or only trials; only some of them if there are many.
    pub fn held(&self) -> Vec<Held> {
        let held = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
        let now = held.begin.elapsed().as_micros() as Micros;
        let told = held.targets.iter().map(|target| Held {
            group: target.group,
            url: target.url.clone(),
            hold: target.hold,
            left: Duration::from_micros(target.until.saturating_sub(now)),
        });
        told.collect()
    }

    /// Whether the thread runs. It ends early only after a panic.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl AsFd for Caller {
    /// Readable when there are results: for an event loop.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Answers> {
        // A panic leaves the list consistent.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_over(&self, told: &mut Vec<Answer>) {
        if told.is_empty() {
            return;
        }
        let mut answers = self.lock();
        let first = answers.ready.is_empty();
        answers.ready.append(told);
        drop(answers);
        if first {
            // A full pipe wakes the reader as well.
            let _ = (&self.wake).write(&[1]);
        }
    }
}

/// A call with its parsed destination.
struct Placed {
    place: Place,
    call: Call,
}

struct Ended {
    ticket: Ticket,
    number: u64,
    outcome: Outcome,
    took: Duration,
}

struct Engine {
    targets: Targets<Placed>,
    guard: Guard,
    client: Client,
    shared: Arc<Shared>,
    begin: Instant,
    /// Results not handed over yet, and when they will be.
    told: Vec<Answer>,
    tell_at: Option<Instant>,
    /// When held targets were last reported.
    held_at: Instant,
}

impl Engine {
    fn new(settings: Settings, client: Client, shared: Arc<Shared>) -> Engine {
        let begin = shared.held.lock().unwrap_or_else(PoisonError::into_inner).begin;
        Engine {
            targets: Targets::new(settings.limits, settings.in_flight_max),
            guard: settings.guard,
            client,
            shared,
            begin,
            told: Vec::new(),
            tell_at: None,
            held_at: begin,
        }
    }

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Vec<Call>>) {
        let (ended, mut endings) = mpsc::unbounded_channel::<Ended>();
        loop {
            self.begin_calls(&ended);
            let wake_at = self.targets.wake_at(self.now());
            let wake_at = wake_at.map(|at| self.begin + Duration::from_micros(at));
            let held_at = self.tell_held();
            let wake_at = wake_at.into_iter().chain(self.tell_at).chain(held_at).min();
            let wake = wake_at.unwrap_or(self.begin);
            tokio::select! {
                calls = inbox.recv() => match calls {
                    Some(calls) => self.take_in(calls),
                    None => break,
                },
                Some(first) = endings.recv() => {
                    self.end(first);
                    while let Ok(next) = endings.try_recv() {
                        self.end(next);
                    }
                }
                () = tokio::time::sleep_until(wake), if wake_at.is_some() => {}
            }
            if self.told.len() >= TOLD_MAX || self.tell_at.is_some_and(|at| at <= Instant::now()) {
                self.tell_at = None;
                self.shared.hand_over(&mut self.told);
            }
        }
        let left: Vec<u64> = self.targets.drain().map(|placed| placed.call.number).collect();
        for number in left {
            self.not_made(number, Why::Stopping, 0);
        }
        self.shared.hand_over(&mut self.told);
    }

    /// Reports the held targets; or returns when it will, if it reported recently.
    fn tell_held(&mut self) -> Option<Instant> {
        let at = self.held_at + HELD_EVERY;
        if !self.targets.has_changed() {
            return None;
        }
        if Instant::now() < at {
            return Some(at);
        }
        self.held_at = Instant::now();
        let targets = self.targets.held(self.now(), HELD_MAX);
        let mut held = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.targets = targets;
        self.targets.changes_told();
        None
    }

    fn tell(&mut self, answer: Answer) {
        self.told.push(answer);
        self.tell_at.get_or_insert_with(|| Instant::now() + TELL_AFTER);
    }

    fn not_made(&mut self, number: u64, why: Why, retry_in: Micros) {
        let retry_in = Duration::from_micros(retry_in);
        self.tell(Answer {
            number,
            outcome: Outcome::NotMade { why, retry_in },
            took: Duration::ZERO,
        });
    }

    fn now(&self) -> Micros {
        self.begin.elapsed().as_micros() as Micros
    }

    fn take_in(&mut self, calls: Vec<Call>) {
        let now = self.now();
        for call in calls {
            match Place::parse(&call.url, &self.guard) {
                Err(failure) => self.tell(Answer {
                    number: call.number,
                    outcome: Outcome::Failed(failure),
                    took: Duration::ZERO,
                }),
                Ok(place) => {
                    let route = Route {
                        origin: place.origin.clone(),
                        group: call.group,
                        url: call.url.clone(),
                    };
                    if let Err(back) = self.targets.push(now, route, Placed { place, call }) {
                        self.not_made(back.call.call.number, back.why, back.retry_in);
                    }
                }
            }
        }
    }

    fn begin_calls(&mut self, ended: &mpsc::UnboundedSender<Ended>) {
        let now = self.now();
        let mut back = Vec::new();
        while let Some((ticket, Placed { place, call })) = self.targets.next(now, &mut back) {
            let (client, ended) = (self.client.clone(), ended.clone());
            tokio::spawn(async move {
                let begin = Instant::now();
                let outcome = client.call(place.uri, &call).await;
                let took = begin.elapsed();
                let number = call.number;
                // The engine is gone only at the end of the thread.
                let _ = ended.send(Ended {
                    ticket,
                    number,
                    outcome,
                    took,
                });
            });
        }
        for back in back {
            self.not_made(back.call.call.number, back.why, back.retry_in);
        }
    }

    fn end(&mut self, ended: Ended) {
        let Ended {
            ticket,
            number,
            outcome,
            took,
        } = ended;
        self.targets.done(self.now(), &ticket, meaning(&outcome));
        self.tell(Answer { number, outcome, took });
    }
}

/// What an outcome shows about the origin and the URL.
fn meaning(outcome: &Outcome) -> End {
    let mut pause = None;
    let (origin, route) = match outcome {
        Outcome::Delivered { .. } => (Health::Good, Health::Good),
        Outcome::Refused {
            status, retry_after, ..
        } => {
            if matches!(status, 429 | 503) {
                pause = retry_after.map(|pause| pause.as_micros() as Micros);
            }
            match status {
                429 | 500.. => (Health::Good, Health::Bad),
                // It responds, so the status concerns only the call.
                _ => (Health::Good, Health::Good),
            }
        }
        Outcome::Failed(Failure::Connect | Failure::Tls | Failure::Unresolved) => (Health::Bad, Health::Unknown),
        // Perhaps connected, but without a response.
        Outcome::Failed(Failure::Timeout | Failure::Broken) => (Health::Unknown, Health::Bad),
        Outcome::Failed(Failure::BadUrl | Failure::ForbiddenAddress) | Outcome::NotMade { .. } => {
            (Health::Unknown, Health::Unknown)
        }
    };
    End { origin, route, pause }
}
