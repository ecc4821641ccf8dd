//! A thread that owns a store: batches of requests in, batches of replies out.
//!
//! Owns: the thread, the clock it reads, group commit, the thread of the store's jobs, credits of workers. Must not
//! know: callbacks, topics' settings, Python.
//!
//! All requests of one turn form one group: a reply leaves after the group is durable. A worker announces how many
//! messages of a topic it can take ([`Ask::Serve`]); due messages are claimed for it in the same group, so that a
//! worker has a message one commit after it is due. A message that is due when it comes is inserted and claimed by one
//! commit.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_journal::Options;

use crate::clock::{ClockStep, TrustedClock};
use crate::schedule::{Ahead, Change, Incarnation, Message, MessageId, Refusal, Version};
use crate::store::{
    Changed, Claims, CommitError, Denied, Filter, Finished, Fire, Folder, FolderStore, Inserted, Job, Listing,
    NewMessage, OpenError, Overdue, Scrubbed, Settings, Stats,
};
use crate::wheel::{Millis, Progress};

/// Interval between clock readings while a message is about to fall due, or files are worked on. It ends with a
/// millisecond of the clock: a message fires as soon as its millisecond begins.
const TICK: Duration = Duration::from_millis(1);

/// The interval while nothing is due and no request comes.
const IDLE_TICK: Duration = Duration::from_millis(10);

/// Maximum number of entries that one tick fires or admits: below a millisecond of work.
const TICK_BUDGET: usize = 4_096;

/// Maximum number of requests in one group: 512 are nearly as efficient as more, and later ones wait less.
const GROUP_MAX: usize = 1_024;

/// A request's content. `number` in a request is the caller's.
#[derive(Clone, Debug)]
pub enum Ask {
    Insert {
        id: MessageId,
        topic: u32,
        due_at: Millis,
        expires_at: Millis,
        body: Vec<u8>,
    },
    Change {
        id: MessageId,
        change: Change,
        expected: Option<Version>,
    },
    /// What another record of the same messages knows of a message: see [`Store::put`](crate::store::Store::put).
    Put {
        message: Message,
    },
    PutAhead {
        id: MessageId,
        ahead: Ahead,
    },
    Get {
        id: MessageId,
    },
    /// The worker takes `credit` more messages of a topic, each under a claim of `lease_ms`. They come as
    /// [`Answer::Fire`] with this request's number as they fall due; a later `Serve` of the same worker and topic
    /// takes over the remaining credit.
    Serve {
        topic: u32,
        worker: Incarnation,
        lease_ms: Millis,
        attempts_max: u16,
        credit: usize,
    },
    /// The worker takes no more: its remaining credits are void. Its claims stay. No reply.
    Leave {
        worker: Incarnation,
    },
    Stats,
    /// See [`Store::overdue`](crate::store::Store::overdue).
    Overdue,
    List(Filter),
    /// Checks that files and index agree: see [`Store::ask_scrub`](crate::store::Store::ask_scrub).
    Scrub,
    /// Inserts and changes that are answered together, in order.
    Many(Vec<Ask>),
}

#[derive(Clone, Debug)]
pub struct Request {
    pub number: u64,
    pub ask: Ask,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Inserted(Inserted),
    Changed(Changed),
    /// `None`: the store knew it already.
    Put(Option<Message>),
    /// `false`: the message exists already.
    PutAhead(bool),
    /// The message, its topic and body.
    Found(Option<(Message, u32, Vec<u8>)>),
    /// A message to call back, under a live claim until `until`.
    Fire {
        message: Message,
        topic: u32,
        claim: Version,
        until: Millis,
        body: Vec<u8>,
    },
    Stats(Stats),
    Overdue(Vec<Overdue>),
    Listed(Listing),
    Scrubbed(Scrubbed),
    Many(Vec<Answer>),
    /// Too many listings, or a scrub, are in progress.
    Busy,
    Refused(Refusal),
    /// Ask again: the store is still reading its index.
    Rebuilding,
    /// The disk is full. Nothing changed.
    DiskFull,
    BodyTooLong,
    /// The store failed and this thread ends: the request may have taken effect or not.
    Failed,
}

impl Ask {
    /// The number of entries that it adds to a group.
    fn weight(&self) -> usize {
        match self {
            Ask::Many(asks) => asks.len(),
            _ => 1,
        }
    }
}

impl Answer {
    /// The disk was full: in-memory changes of this group are undone.
    fn not_written(&mut self) {
        if matches!(
            self,
            Answer::Inserted(_) | Answer::Changed(_) | Answer::Put(_) | Answer::PutAhead(_)
        ) {
            *self = Answer::DiskFull;
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub number: u64,
    pub answer: Answer,
}

#[derive(Default)]
struct Outbox {
    replies: Vec<Reply>,
    steps: Vec<ClockStep>,
    failure: Option<String>,
}

struct Shared {
    outbox: Mutex<Outbox>,
    /// The thread's end of the wake-up socket.
    wake: UnixStream,
}

/// A store in its own thread. Dropping it makes a last checkpoint and ends the thread.
pub struct Keeper {
    requests: Option<Sender<Vec<Request>>>,
    shared: Arc<Shared>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Opens the store in folder `path` and starts its thread.
    pub fn start(path: PathBuf, options: Options, settings: Settings) -> Result<Keeper, OpenError> {
        let (wake, other) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        let store = FolderStore::open(path, options, settings, wall())?;
        let shared = Arc::new(Shared {
            outbox: Mutex::default(),
            wake: other,
        });
        let (requests, inbox) = mpsc::channel();
        let turn = Turn::new(store, Arc::clone(&shared))?;
        let thread = std::thread::Builder::new()
            .name("schedule".to_owned())
            .spawn(move || turn.run(&inbox))?;
        Ok(Keeper {
            requests: Some(requests),
            shared,
            wake,
            thread: Some(thread),
        })
    }

    /// Submits requests. Each gets one reply, except [`Ask::Leave`] (none) and [`Ask::Serve`] (one for each message).
    /// After a failure there are no replies.
    ///
    /// The caller bounds its unanswered requests.
    pub fn submit(&self, requests: Vec<Request>) {
        if let Some(sender) = &self.requests {
            // Closed after a failure, which `take` reports.
            let _ = sender.send(requests);
        }
    }

    /// Moves available replies to `replies`, and steps of the clock to `steps`. An error: the store failed; open it
    /// again.
    pub fn take(&self, replies: &mut Vec<Reply>, steps: &mut Vec<ClockStep>) -> Result<(), String> {
        let mut bytes = [0; 64];
        while matches!((&self.wake).read(&mut bytes), Ok(read) if read == bytes.len()) {}
        let mut outbox = self.shared.lock();
        replies.append(&mut outbox.replies);
        steps.append(&mut outbox.steps);
        outbox.failure.clone().map_or(Ok(()), Err)
    }
}

impl AsFd for Keeper {
    /// Readable when there are replies: for an event loop.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Outbox> {
        // A panic leaves the lists consistent.
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A full pipe wakes the reader as well.
        let _ = (&self.wake).write(&[1]);
    }
}

/// A worker's credits for a topic.
struct Service {
    number: u64,
    lease_ms: Millis,
    attempts_max: u16,
    credit: usize,
}

/// The thread's own state.
struct Turn {
    store: FolderStore,
    shared: Arc<Shared>,
    clock: TrustedClock,
    /// Its milliseconds begin with those of the wall clock, except for later adjustments of that clock.
    begin: Instant,
    /// The last reading of the clock.
    last: Millis,
    /// There is more to do than the last turn did.
    busy: bool,
    /// Workers by topic, in turn.
    services: HashMap<u32, Vec<(Incarnation, Service)>>,
    /// Replies that leave with the next commit.
    replies: Vec<Reply>,
    /// Results of a [`Ask::Many`] in progress. Those from `open` on wait for the next commit.
    many: Vec<Answer>,
    open: usize,
    /// For each such reply among `replies`, the index from which on its results wait for the next commit.
    opens: HashMap<usize, usize>,
    /// Claims that leave with the next commit: request, message, end of the claim.
    fires: Vec<(u64, Incarnation, Fire, Millis)>,
    jobs: Sender<Job<Folder>>,
    finished: Receiver<Finished>,
    jobs_out: usize,
    /// The request of the scrub in progress.
    scrub: u64,
}

impl Turn {
    fn new(store: FolderStore, shared: Arc<Shared>) -> io::Result<Turn> {
        let (jobs, todo) = mpsc::channel::<Job<Folder>>();
        let (done, finished) = mpsc::channel();
        std::thread::Builder::new()
            .name("schedule-files".to_owned())
            .spawn(move || {
                for job in todo {
                    if done.send(job.run()).is_err() {
                        break;
                    }
                }
            })?;
        let (now, begin) = (since_1970(), Instant::now());
        Ok(Turn {
            store,
            shared,
            clock: TrustedClock::new(now.as_millis() as Millis, 0),
            begin: begin - Duration::from_nanos(u64::from(now.subsec_nanos()) % 1_000_000),
            last: 0,
            busy: true,
            services: HashMap::new(),
            replies: Vec::new(),
            many: Vec::new(),
            open: 0,
            opens: HashMap::new(),
            fires: Vec::new(),
            jobs,
            finished,
            jobs_out: 0,
            scrub: 0,
        })
    }

    fn run(mut self, inbox: &Receiver<Vec<Request>>) {
        let ended = loop {
            match self.turn(inbox) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        let ended = ended.and_then(|()| {
            while self.jobs_out > 0 {
                let Ok(finished) = self.finished.recv() else { break };
                self.jobs_out -= 1;
                self.store.finish(finished).map_err(|error| error.to_string())?;
            }
            self.store.close().map_err(|error| error.to_string())
        });
        if let Err(failure) = ended {
            self.shared.lock().failure = Some(failure);
            self.shared.wake();
        }
    }

    /// Processes one group. `false` when there is no requester anymore.
    fn turn(&mut self, inbox: &Receiver<Vec<Request>>) -> Result<bool, String> {
        let mut taken = 0;
        let mut open = true;
        let mut batch = match inbox.recv_timeout(self.wait()) {
            Ok(batch) => Some(batch),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                open = false;
                None
            }
        };
        let now = self.now();
        let progress = self.store.tick(now, TICK_BUDGET).map_err(|denied| denied.to_string())?;
        while let Some(requests) = batch {
            for request in requests {
                taken += request.ask.weight();
                self.ask(now, request)?;
            }
            batch = if taken < GROUP_MAX { inbox.try_recv().ok() } else { None };
        }
        self.serve()?;
        self.commit()?;
        while let Some(job) = self.store.next_job() {
            self.jobs_out += 1;
            self.jobs.send(job).map_err(|_| "thread of files ended".to_owned())?;
        }
        while let Ok(finished) = self.finished.try_recv() {
            self.jobs_out -= 1;
            self.store.finish(finished).map_err(|error| error.to_string())?;
        }
        let listed = self.store.take_listed().into_iter().map(|listing| Reply {
            number: listing.number,
            answer: Answer::Listed(listing),
        });
        let scrubbed = self.store.take_scrubbed().map(|found| Reply {
            number: self.scrub,
            answer: Answer::Scrubbed(found),
        });
        let read: Vec<Reply> = listed.chain(scrubbed).collect();
        if !read.is_empty() {
            self.shared.lock().replies.extend(read);
            self.shared.wake();
        }
        self.busy = progress == Progress::More;
        Ok(open || self.busy)
    }

    /// How long to wait for requests.
    fn wait(&self) -> Duration {
        let passed = self.begin.elapsed();
        let tick = TICK - Duration::from_nanos(u64::from(passed.subsec_nanos()) % 1_000_000);
        let Some(due_at) = self.store.next_due().filter(|_| !self.busy && self.jobs_out == 0) else {
            return if self.busy || self.jobs_out > 0 {
                tick
            } else {
                IDLE_TICK
            };
        };
        let ahead = due_at.saturating_sub(self.last);
        tick + TICK * (ahead.min(IDLE_TICK.as_millis() as Millis) as u32).saturating_sub(1)
    }

    fn now(&mut self) -> Millis {
        let (now, step) = self.clock.read(wall(), self.begin.elapsed().as_millis() as Millis);
        self.last = now;
        if let Some(step) = step {
            self.shared.lock().steps.push(step);
            self.shared.wake();
        }
        now
    }

    fn ask(&mut self, now: Millis, request: Request) -> Result<(), String> {
        let Request { number, ask } = request;
        let answer = match ask {
            Ask::Many(asks) => {
                for ask in asks {
                    let answer = self.answer(now, number, &ask)?.unwrap_or(Answer::Busy);
                    self.many.push(answer);
                }
                self.opens.insert(self.replies.len(), self.open);
                self.open = 0;
                Answer::Many(std::mem::take(&mut self.many))
            }
            ask => match self.answer(now, number, &ask)? {
                Some(answer) => answer,
                None => return Ok(()),
            },
        };
        self.replies.push(Reply { number, answer });
        Ok(())
    }

    /// The reply to one request; `None`: it comes later, or never.
    fn answer(&mut self, now: Millis, number: u64, ask: &Ask) -> Result<Option<Answer>, String> {
        let answer = loop {
            let answered = match ask {
                Ask::Insert {
                    id,
                    topic,
                    due_at,
                    expires_at,
                    body,
                } => {
                    let new = NewMessage {
                        id: *id,
                        topic: *topic,
                        due_at: *due_at,
                        expires_at: *expires_at,
                        body,
                    };
                    self.store.insert(new).map(Answer::Inserted)
                }
                Ask::Change { id, change, expected } => {
                    self.store.change(now, *id, *change, *expected).map(Answer::Changed)
                }
                Ask::Put { message } => self.store.put(now, *message).map(Answer::Put),
                Ask::PutAhead { id, ahead } => self.store.put_ahead(now, *id, *ahead).map(Answer::PutAhead),
                Ask::Get { id } => self.get(*id),
                Ask::Serve {
                    topic,
                    worker,
                    lease_ms,
                    attempts_max,
                    credit,
                } => {
                    let services = self.services.entry(*topic).or_default();
                    let place = services.iter().position(|(other, _)| other == worker);
                    let left = place.map_or(0, |place| services.remove(place).1.credit);
                    let service = Service {
                        number,
                        lease_ms: *lease_ms,
                        attempts_max: *attempts_max,
                        credit: left + credit,
                    };
                    services.push((*worker, service));
                    return Ok(None);
                }
                Ask::Leave { worker } => {
                    for services in self.services.values_mut() {
                        services.retain(|(other, _)| other != worker);
                    }
                    self.services.retain(|_, services| !services.is_empty());
                    return Ok(None);
                }
                Ask::Stats => Ok(Answer::Stats(self.store.stats())),
                Ask::Overdue => Ok(Answer::Overdue(self.store.overdue().to_vec())),
                Ask::List(filter) => {
                    if self.store.ask_list(number, *filter) {
                        return Ok(None);
                    }
                    Ok(Answer::Busy)
                }
                Ask::Scrub => match self.store.ask_scrub() {
                    Ok(true) => {
                        self.scrub = number;
                        return Ok(None);
                    }
                    Ok(false) => Ok(Answer::Busy),
                    Err(denied) => Err(denied),
                },
                Ask::Many(_) => Ok(Answer::Busy),
            };
            match answered {
                Ok(answer) => break answer,
                Err(Denied::CommitFirst) => self.commit()?,
                Err(Denied::Refused(refusal)) => break Answer::Refused(refusal),
                Err(Denied::Rebuilding) => break Answer::Rebuilding,
                Err(Denied::DiskFull) => break Answer::DiskFull,
                Err(Denied::BodyTooLong { .. }) => break Answer::BodyTooLong,
                Err(denied @ (Denied::Failed | Denied::Io(_))) => {
                    self.fail();
                    return Err(denied.to_string());
                }
            }
        };
        Ok(Some(answer))
    }

    fn get(&mut self, id: MessageId) -> Result<Answer, Denied> {
        let Some((message, topic)) = self.store.get(id)? else {
            return Ok(Answer::Found(None));
        };
        let mut body = Vec::new();
        self.store.body_of(id, &mut body)?;
        Ok(Answer::Found(Some((message, topic, body))))
    }

    /// Claims due messages for the workers with credit, in turn.
    fn serve(&mut self) -> Result<(), String> {
        let topics: Vec<u32> = self.store.ready_topics().collect();
        let now = self.now();
        let mut claimed = Vec::new();
        for topic in topics {
            let Some(services) = self.services.get_mut(&topic) else {
                continue;
            };
            for (worker, service) in services.iter_mut().filter(|(_, service)| service.credit > 0) {
                let until = now + service.lease_ms;
                let claims = Claims {
                    topic,
                    worker: *worker,
                    until,
                    attempts_max: service.attempts_max,
                    max: service.credit.min(GROUP_MAX),
                };
                self.store
                    .claim(now, claims, &mut claimed)
                    .map_err(|denied| denied.to_string())?;
                service.credit -= claimed.len();
                let number = service.number;
                self.fires
                    .extend(claimed.drain(..).map(|fire| (number, *worker, fire, until)));
            }
            services.rotate_left(1);
        }
        Ok(())
    }

    /// Makes the group durable and releases its replies.
    fn commit(&mut self) -> Result<(), String> {
        let committed = self.store.commit();
        match committed {
            Ok(_) => {
                for (number, _, fire, until) in self.fires.drain(..) {
                    let mut body = Vec::new();
                    self.store.body(&fire, &mut body).map_err(|error| error.to_string())?;
                    let answer = Answer::Fire {
                        message: fire.message,
                        topic: fire.topic,
                        claim: fire.claim,
                        until,
                        body,
                    };
                    self.replies.push(Reply { number, answer });
                }
            }
            Err(CommitError::DiskFull) => {
                for (_, worker, fire, _) in self.fires.drain(..) {
                    let services = self.services.get_mut(&fire.topic);
                    let mut services = services.into_iter().flatten();
                    if let Some((_, service)) = services.find(|(other, _)| *other == worker) {
                        service.credit += 1;
                    }
                }
                for (place, reply) in self.replies.iter_mut().enumerate() {
                    match &mut reply.answer {
                        Answer::Many(answers) => {
                            let open = self.opens.get(&place).copied().unwrap_or(0);
                            answers[open..].iter_mut().for_each(Answer::not_written);
                        }
                        answer => answer.not_written(),
                    }
                }
                self.many[self.open..].iter_mut().for_each(Answer::not_written);
            }
            Err(error) => {
                self.fail();
                return Err(error.to_string());
            }
        }
        self.open = self.many.len();
        self.opens.clear();
        if !self.replies.is_empty() {
            self.shared.lock().replies.append(&mut self.replies);
            self.shared.wake();
        }
        Ok(())
    }

    /// Replies that the requests of this group may have taken effect or not.
    fn fail(&mut self) {
        for reply in &mut self.replies {
            reply.answer = Answer::Failed;
        }
        self.shared.lock().replies.append(&mut self.replies);
    }
}

fn wall() -> Millis {
    since_1970().as_millis() as Millis
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
