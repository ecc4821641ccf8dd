//! The thread that makes the calls, and its two ends.
//!
//! Owns: the thread, batches in and out, the wake-up. Must not know: what a call is for.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{Client, Failure, Place, TlsRoots};
use crate::guard::Guard;
use crate::target::{Health, Limits, Micros, Targets, Why};
use crate::{Answer, Call, Outcome};

/// Answers are handed over together: so many, or all after this time. Each time wakes the other side, which costs more
/// than a call. A worker gathers results for longer than that.
const TOLD_MAX: usize = 256;
const TELL_AFTER: Duration = Duration::from_millis(4);

/// Threads that resolve names. A name that hangs takes one until its resolver gives up.
const RESOLVERS_MAX: usize = 32;

#[derive(Clone, Debug)]
pub struct Settings {
    pub guard: Guard,
    pub roots: TlsRoots,
    /// Limits of every target.
    pub limits: Limits,
    /// Calls at once to all targets: a descriptor each.
    pub in_flight_max: usize,
    /// Calls that are handed in and not answered.
    pub calls_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            guard: Guard::default(),
            roots: TlsRoots::default(),
            limits: Limits::default(),
            in_flight_max: 1_000,
            calls_max: 100_000,
        }
    }
}

/// What both ends of the thread see.
struct Shared {
    answers: Mutex<Answers>,
    /// The thread's end of the wake-up.
    wake: UnixStream,
}

#[derive(Default)]
struct Answers {
    ready: Vec<Answer>,
    /// Calls handed in and not taken out.
    open: usize,
}

/// Makes callbacks in a thread of its own. Dropping it ends the thread: calls on their way are cut off.
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
            &settings.roots,
            settings.limits.concurrency,
        )
        .map_err(io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(RESOLVERS_MAX)
            .build()?;
        let shared = Arc::new(Shared {
            answers: Mutex::default(),
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
                // Not waited for: a name that hangs must not hold up the end.
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

    /// Hands in calls, as many as there is room for; gives back the rest. Every call taken is answered once.
    pub fn submit(&self, mut calls: Vec<Call>) -> Vec<Call> {
        let mut answers = self.shared.lock();
        let room = self.calls_max.saturating_sub(answers.open).min(calls.len());
        let rest = calls.split_off(room);
        answers.open += calls.len();
        drop(answers);
        if let (Some(sender), false) = (&self.calls, calls.is_empty()) {
            // Only a panic in the thread closes the channel; then no answer comes.
            let _ = sender.send(calls);
        }
        rest
    }

    /// Moves the answers that are there to `out`.
    pub fn take(&self, out: &mut Vec<Answer>) {
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(read) if read == bytes.len()) {}
        let mut answers = self.shared.lock();
        answers.open -= answers.ready.len();
        out.append(&mut answers.ready);
    }

    /// Whether the thread runs. It ends early only by a fault of its own.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl AsFd for Caller {
    /// Readable when answers are there: for an event loop.
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
        // A panic leaves the list whole.
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
            // A full pipe wakes as well.
            let _ = (&self.wake).write(&[1]);
        }
    }
}

/// A call with where it goes.
struct Placed {
    place: Place,
    call: Call,
}

struct Ended {
    target: String,
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
    /// Answers that are not handed over yet, and when they are.
    told: Vec<Answer>,
    tell_at: Option<Instant>,
}

impl Engine {
    fn new(settings: Settings, client: Client, shared: Arc<Shared>) -> Engine {
        Engine {
            targets: Targets::new(settings.limits, settings.in_flight_max),
            guard: settings.guard,
            client,
            shared,
            begin: Instant::now(),
            told: Vec::new(),
            tell_at: None,
        }
    }

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Vec<Call>>) {
        let (ended, mut endings) = mpsc::unbounded_channel::<Ended>();
        loop {
            self.begin_calls(&ended);
            let wake_at = self.targets.wake_at(self.now());
            let wake_at = wake_at.map(|at| self.begin + Duration::from_micros(at));
            let wake_at = wake_at.into_iter().chain(self.tell_at).min();
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
                    let target = place.target.clone();
                    if let Err(back) = self.targets.push(now, &target, Placed { place, call }) {
                        self.not_made(back.call.call.number, back.why, back.retry_in);
                    }
                }
            }
        }
    }

    fn begin_calls(&mut self, ended: &mpsc::UnboundedSender<Ended>) {
        let now = self.now();
        let mut back = Vec::new();
        while let Some((target, Placed { place, call })) = self.targets.next(now, &mut back) {
            let (client, ended) = (self.client.clone(), ended.clone());
            tokio::spawn(async move {
                let begin = Instant::now();
                let outcome = client.call(place.uri, &call).await;
                let took = begin.elapsed();
                let number = call.number;
                // The engine is gone only at the end of the thread.
                let _ = ended.send(Ended {
                    target,
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
            target,
            number,
            outcome,
            took,
        } = ended;
        let (health, pause) = match &outcome {
            Outcome::Delivered { .. } => (Health::Good, None),
            Outcome::Refused {
                status, retry_after, ..
            } => match status {
                429 | 503 => (Health::Bad, *retry_after),
                500.. => (Health::Bad, None),
                // It answers: what it says is about the call.
                _ => (Health::Good, None),
            },
            Outcome::Failed(Failure::BadUrl) | Outcome::NotMade { .. } => (Health::Unknown, None),
            Outcome::Failed(_) => (Health::Bad, None),
        };
        let pause = pause.map(|pause| pause.as_micros() as Micros);
        self.targets.done(self.now(), &target, health, pause);
        self.tell(Answer { number, outcome, took });
    }
}
