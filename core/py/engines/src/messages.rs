//! Delayed messages: the schedule's thread, the callbacks' thread, and the policies.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_callback::{
    Answer as CallAnswer, Call, CallSettings, Caller, Hold, Identity, Outcome, Secret, Secrets,
    Settings as CallerSettings, Tls, Why,
};
use muster_firing::{Firing, Topic};
use muster_journal::{Options, Owner};
use muster_messages::dispatch::{Assignment, Dispatcher, Load, Policy, Worker};
use muster_messages::keeper::{Answer, Ask, Keeper, Reply, Request};
use muster_messages::ledger::{Ledger, Said};
use muster_messages::number::Numbers;
use muster_messages::retry::RetryTable;
use muster_messages::schedule::{
    Ahead, Bound as AheadBound, Change, Due, Incarnation, Message, MessageId, Refusal, State, Step, NEVER,
};
use muster_messages::store::{Changed, Filter, Inserted, OpenError, Salvage, Scrubbed, Settings, Stats};
use muster_messages::wire::{self, Frame, Malformed, Verb};
use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use pyo3::IntoPyObjectExt;

use crate::setup;

/// A durable schedule in a thread of its own: batches of requests in, batches of replies out.
#[pyclass(module = "muster_server._engines")]
pub struct ScheduleKeeper {
    keeper: Option<Keeper>,
    steps: Vec<i64>,
    /// What was asked in arrays and is not answered.
    arrays: HashMap<u64, Array>,
}

enum Array {
    /// New messages, by their topics.
    Messages(Vec<u32>),
    Results,
}

/// Fires in one array, and about how many bytes of them.
const FIRES_MAX: usize = 256;
const FIRES_BYTES: usize = 1 << 20;

/// Number, id, topic, due_at, expires_at, body.
type NewMessage = (u64, u64, u32, u64, Option<u64>, Vec<u8>);
/// Number, id, verb, version or claim, time.
type NamedChange = (u64, u64, String, Option<u32>, Option<i64>);

fn closed() -> PyErr {
    PyValueError::new_err("closed")
}

#[pymethods]
impl ScheduleKeeper {
    #[new]
    #[pyo3(signature = (settings, *, path, epoch = None, segment_bytes = 128 << 20))]
    fn new(py: Python<'_>, settings: &[u8], path: PathBuf, epoch: Option<u64>, segment_bytes: u64) -> PyResult<Self> {
        let settings: Settings = setup::settings(settings)?;
        if settings.near_ms >= settings.lead_ms {
            return Err(PyValueError::new_err("near_ms must be less than lead_ms"));
        }
        let options = Options {
            segment_bytes,
            owner: epoch.map_or(Owner::Sole, Owner::Epoch),
            ..Options::default()
        };
        let keeper = py
            .detach(|| Keeper::start(path, options, settings))
            .map_err(|error| match error {
                OpenError::Log(muster_journal::OpenError::Locked) => PyBlockingIOError::new_err(error.to_string()),
                error => PyOSError::new_err(error.to_string()),
            })?;
        Ok(ScheduleKeeper {
            keeper: Some(keeper),
            steps: Vec::new(),
            arrays: HashMap::new(),
        })
    }

    fn fd(&self) -> PyResult<i32> {
        Ok(self.keeper()?.as_fd().as_raw_fd())
    }

    fn insert(&self, messages: Vec<NewMessage>) -> PyResult<()> {
        let requests = messages
            .into_iter()
            .map(|(number, id, topic, due_at, expires_at, body)| Request {
                number,
                ask: Ask::Insert {
                    id: MessageId(id),
                    topic,
                    due_at,
                    expires_at: expires_at.unwrap_or(NEVER),
                    body,
                },
            });
        self.keeper()?.submit(requests.collect());
        Ok(())
    }

    fn insert_packed(&mut self, number: u64, messages: &[u8]) -> PyResult<()> {
        let asks = wire::new_messages(messages).map_err(malformed)?;
        let topics = asks.iter().map(|new| new.topic).collect();
        let asks = asks.into_iter().map(|new| Ask::Insert {
            id: MessageId(new.number),
            topic: new.topic,
            due_at: new.due_at,
            expires_at: new.expires_at,
            body: new.body.to_vec(),
        });
        let ask = Ask::Many(asks.collect());
        self.keeper()?.submit(vec![Request { number, ask }]);
        self.arrays.insert(number, Array::Messages(topics));
        Ok(())
    }

    fn settle(&mut self, number: u64, results: &[u8]) -> PyResult<()> {
        let asks = wire::outcomes(results).map_err(malformed)?;
        let asks = asks.into_iter().map(|result| {
            let claim = result.claim;
            let change = match result.verb {
                Verb::Deliver => Change::Deliver { claim },
                Verb::Fail => Change::Fail {
                    claim,
                    next: result.next,
                },
                Verb::Release => Change::Release {
                    claim,
                    next: result.next.unwrap_or(0),
                },
            };
            Ask::Change {
                id: MessageId(result.number),
                change,
                expected: None,
            }
        });
        let ask = Ask::Many(asks.collect());
        self.keeper()?.submit(vec![Request { number, ask }]);
        self.arrays.insert(number, Array::Results);
        Ok(())
    }

    fn change(&self, changes: Vec<NamedChange>) -> PyResult<()> {
        let requests: PyResult<Vec<Request>> = changes.into_iter().map(change).collect();
        self.keeper()?.submit(requests?);
        Ok(())
    }

    fn put(&self, messages: Vec<(u64, Fields)>) -> PyResult<()> {
        let requests: PyResult<Vec<Request>> = messages
            .into_iter()
            .map(|(number, fields)| {
                let message = fields.message()?;
                Ok(Request {
                    number,
                    ask: Ask::Put { message },
                })
            })
            .collect();
        self.keeper()?.submit(requests?);
        Ok(())
    }

    fn put_ahead(&self, asked: Vec<(u64, Asked)>) -> PyResult<()> {
        let requests = asked.into_iter().map(|(number, asked)| {
            let (id, ahead) = (MessageId(asked.0), asked.ahead()?);
            let ask = Ask::PutAhead { id, ahead };
            Ok(Request { number, ask })
        });
        let requests = requests.collect::<PyResult<Vec<_>>>()?;
        self.keeper()?.submit(requests);
        Ok(())
    }

    fn get(&self, messages: Vec<(u64, u64)>) -> PyResult<()> {
        let requests = messages.into_iter().map(|(number, id)| Request {
            number,
            ask: Ask::Get { id: MessageId(id) },
        });
        self.keeper()?.submit(requests.collect());
        Ok(())
    }

    fn serve(
        &self,
        number: u64,
        topic: u32,
        worker: u64,
        lease_ms: u64,
        attempts_max: u16,
        credit: usize,
    ) -> PyResult<()> {
        let ask = Ask::Serve {
            topic,
            worker: Incarnation(worker),
            lease_ms,
            attempts_max,
            credit,
        };
        self.keeper()?.submit(vec![Request { number, ask }]);
        Ok(())
    }

    fn leave(&self, worker: u64) -> PyResult<()> {
        let worker = Incarnation(worker);
        self.keeper()?.submit(vec![Request {
            number: 0,
            ask: Ask::Leave { worker },
        }]);
        Ok(())
    }

    #[pyo3(signature = (number, topic, begin, end, states, limit, after = None))]
    #[allow(clippy::too_many_arguments)]
    fn find(
        &self,
        number: u64,
        topic: Option<u32>,
        begin: u64,
        end: u64,
        states: Vec<String>,
        limit: usize,
        after: Option<(u64, u64)>,
    ) -> PyResult<()> {
        let mut filter = Filter {
            topic,
            from: begin,
            to: end,
            scheduled: false,
            firing: false,
            done: false,
            dead: false,
            withdrawn: false,
            after: after.map(|(at, id)| (at, MessageId(id))),
            limit,
        };
        for state in states {
            match state.as_str() {
                "scheduled" => filter.scheduled = true,
                "firing" => filter.firing = true,
                "done" => filter.done = true,
                "dead" => filter.dead = true,
                "withdrawn" => filter.withdrawn = true,
                _ => return Err(PyValueError::new_err(format!("unknown state `{state}`"))),
            }
        }
        self.keeper()?.submit(vec![Request {
            number,
            ask: Ask::List(filter),
        }]);
        Ok(())
    }

    fn stats(&self, number: u64) -> PyResult<()> {
        self.keeper()?.submit(vec![Request {
            number,
            ask: Ask::Stats,
        }]);
        Ok(())
    }

    fn overdue(&self, number: u64) -> PyResult<()> {
        self.keeper()?.submit(vec![Request {
            number,
            ask: Ask::Overdue,
        }]);
        Ok(())
    }

    fn scrub(&self, number: u64) -> PyResult<()> {
        self.keeper()?.submit(vec![Request {
            number,
            ask: Ask::Scrub,
        }]);
        Ok(())
    }

    fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (mut replies, mut steps) = (Vec::new(), Vec::new());
        let failed = self.keeper()?.take(&mut replies, &mut steps);
        self.steps.extend(steps.iter().map(|step| step.by_ms));
        if replies.is_empty() {
            failed.map_err(PyOSError::new_err)?;
        }
        let list = PyList::empty(py);
        // By number of a worker's requests: few.
        let mut frames: Vec<(u64, Frame)> = Vec::new();
        for reply in replies {
            let number = reply.number;
            match reply.answer {
                Answer::Fire {
                    message,
                    topic,
                    claim,
                    until,
                    body,
                } => {
                    let place = frames.iter().position(|(other, _)| *other == number);
                    let place = place.unwrap_or_else(|| {
                        frames.push((number, Frame::default()));
                        frames.len() - 1
                    });
                    let frame = &mut frames[place].1;
                    frame.push_fire(&wire::Fire {
                        number: message.id.0,
                        topic,
                        claim,
                        until,
                        due_at: message.due_at,
                        attempts: message.attempts,
                        envelope: &body,
                    });
                    if frame.len() >= FIRES_MAX || frame.bytes() >= FIRES_BYTES {
                        let frame = std::mem::take(frame).finish();
                        list.append((number, "fires", PyBytes::new(py, &frame)))?;
                    }
                }
                Answer::Many(answers) => match self.arrays.remove(&number) {
                    Some(Array::Messages(topics)) => {
                        let again = answers.contains(&Answer::Rebuilding);
                        let bytes = PyBytes::new(py, &packed(&answers));
                        list.append((number, "packed", bytes, counts(&topics, &answers), again))?;
                    }
                    _ => {
                        let said: Vec<u8> = answers.iter().map(|answer| said(answer).byte()).collect();
                        list.append((number, "settled", PyBytes::new(py, &said)))?;
                    }
                },
                answer => list.append(answered(py, Reply { number, answer })?)?,
            }
        }
        for (number, frame) in frames {
            if !frame.is_empty() {
                list.append((number, "fires", PyBytes::new(py, &frame.finish())))?;
            }
        }
        Ok(list)
    }

    fn clock_steps(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.steps)
    }

    fn close(&mut self, py: Python<'_>) {
        let keeper = self.keeper.take();
        py.detach(|| drop(keeper));
    }
}

impl ScheduleKeeper {
    fn keeper(&self) -> PyResult<&Keeper> {
        self.keeper.as_ref().ok_or_else(closed)
    }
}

pub(crate) fn change((number, id, verb, version, time): NamedChange) -> PyResult<Request> {
    let missing = |what: &str| PyValueError::new_err(format!("change `{verb}` needs {what}"));
    let claim = || version.ok_or_else(|| missing("a claim"));
    let at = |time: i64| u64::try_from(time).map_err(|_| PyValueError::new_err(format!("negative time {time}")));
    let given = || time.ok_or_else(|| missing("a time"));
    let (change, expected) = match verb.as_str() {
        "cancel" => (Change::Cancel, version),
        "due_at" => (Change::Reschedule(Due::At(at(given()?)?)), version),
        "later" => (Change::Reschedule(Due::Later(at(given()?)?)), version),
        "sooner" => (Change::Reschedule(Due::Sooner(at(given()?)?)), version),
        "due_by" => (Change::Reschedule(Due::By(given()?)), version),
        "deliver" => (Change::Deliver { claim: claim()? }, None),
        "fail" => {
            let next = time.map(at).transpose()?;
            (Change::Fail { claim: claim()?, next }, None)
        }
        "release" => {
            let next = at(given()?)?;
            (Change::Release { claim: claim()?, next }, None)
        }
        "extend" => {
            let until = at(given()?)?;
            (Change::Extend { claim: claim()?, until }, None)
        }
        "wake" => (Change::Wake { at: at(given()?)? }, version),
        "replay" => (Change::Replay { due_at: at(given()?)? }, version),
        "drop" => (Change::Drop, version),
        _ => return Err(PyValueError::new_err(format!("unknown change `{verb}`"))),
    };
    let ask = Ask::Change {
        id: MessageId(id),
        change,
        expected,
    };
    Ok(Request { number, ask })
}

pub(crate) fn malformed(error: Malformed) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The outcome of a result.
fn said(answer: &Answer) -> Said {
    match answer {
        Answer::Changed(Changed::Done(Step::Delivered, _)) => Said::Delivered,
        Answer::Changed(Changed::Done(Step::Retrying, _)) => Said::Retrying,
        Answer::Changed(Changed::Done(Step::Buried, _)) => Said::Buried,
        Answer::Changed(Changed::Done(Step::Released, _)) => Said::Released,
        Answer::DiskFull | Answer::Rebuilding => Said::NotNow,
        _ => Said::Refused,
    }
}

/// How many of these messages are new, by topic.
fn counts(topics: &[u32], answers: &[Answer]) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    for (topic, answer) in topics.iter().zip(answers) {
        if matches!(answer, Answer::Inserted(Inserted::New(_))) {
            *counts.entry(*topic).or_default() += 1;
        }
    }
    counts
}

/// What came of inserts: an array, each as `take` tells it.
pub(crate) fn packed(answers: &[Answer]) -> Vec<u8> {
    let mut frame = Frame::default();
    for answer in answers {
        match answer {
            Answer::Inserted(Inserted::New(message)) => frame.push_inserted(message, false),
            Answer::Inserted(Inserted::Before(message)) => frame.push_inserted(message, true),
            Answer::Refused(refusal) => frame.push_words(&["refused", reason(*refusal).0]),
            Answer::Rebuilding => frame.push_words(&["rebuilding"]),
            Answer::DiskFull => frame.push_words(&["disk_full"]),
            Answer::BodyTooLong => frame.push_words(&["body_too_long"]),
            _ => frame.push_words(&["failed"]),
        }
    }
    frame.finish()
}

pub(crate) fn message<'py>(py: Python<'py>, message: &Message) -> PyResult<Bound<'py, PyTuple>> {
    let (state, time) = wire::named(message.state);
    let expires_at = (message.expires_at != NEVER).then_some(message.expires_at);
    (
        message.id.0,
        message.version,
        message.due_at,
        expires_at,
        message.attempts,
        state,
        time,
    )
        .into_pyobject(py)
}

fn answered<'py>(py: Python<'py>, reply: Reply) -> PyResult<Bound<'py, PyAny>> {
    let number = reply.number;
    match reply.answer {
        Answer::Inserted(Inserted::New(new)) => (number, "inserted", message(py, &new)?).into_bound_py_any(py),
        Answer::Inserted(Inserted::Before(old)) => (number, "before", message(py, &old)?).into_bound_py_any(py),
        Answer::Changed(Changed::Done(step, now)) => {
            (number, "changed", message(py, &now)?, named(step)).into_bound_py_any(py)
        }
        Answer::Put(Some(now)) => (number, "put", message(py, &now)?).into_bound_py_any(py),
        Answer::Put(None) => (number, "before").into_bound_py_any(py),
        Answer::Changed(Changed::Ahead(asked)) => {
            let (cancelled, at, by, bound) = ahead(&asked);
            (number, "ahead", cancelled, at, by, bound).into_bound_py_any(py)
        }
        Answer::PutAhead(true) => (number, "put").into_bound_py_any(py),
        Answer::PutAhead(false) => (number, "before").into_bound_py_any(py),
        Answer::Found(None) => (number, "unknown").into_bound_py_any(py),
        Answer::Found(Some((found, topic, body))) => {
            (number, "found", message(py, &found)?, topic, PyBytes::new(py, &body)).into_bound_py_any(py)
        }
        // Told in arrays.
        Answer::Fire { .. } | Answer::Many(_) => (number, "failed").into_bound_py_any(py),
        Answer::Stats(stats) => (number, "stats", stats_dict(py, &stats)?).into_bound_py_any(py),
        Answer::Overdue(found) => {
            let named: Vec<_> = found.iter().map(|each| (each.topic, each.count, each.oldest)).collect();
            (number, "overdue", named).into_bound_py_any(py)
        }
        Answer::Listed(listing) => {
            let named = PyList::empty(py);
            for (found, topic) in &listing.messages {
                named.append((message(py, found)?, *topic))?;
            }
            (number, "listed", named, listing.times, listing.cut).into_bound_py_any(py)
        }
        Answer::Scrubbed(found) => {
            let Scrubbed {
                messages,
                bodies,
                faults,
                fault_count,
                ..
            } = found;
            (number, "scrubbed", messages, bodies, fault_count, faults).into_bound_py_any(py)
        }
        Answer::Busy => (number, "busy").into_bound_py_any(py),
        Answer::Refused(refusal) => {
            let (reason, value) = reason(refusal);
            (number, "refused", reason, value).into_bound_py_any(py)
        }
        Answer::Rebuilding => (number, "rebuilding").into_bound_py_any(py),
        Answer::DiskFull => (number, "disk_full").into_bound_py_any(py),
        Answer::BodyTooLong => (number, "body_too_long").into_bound_py_any(py),
        Answer::Failed => (number, "failed").into_bound_py_any(py),
    }
}

pub(crate) fn reason(refusal: Refusal) -> (&'static str, Option<u64>) {
    match refusal {
        Refusal::Unknown => ("unknown", None),
        Refusal::Fired => ("fired", None),
        Refusal::Withdrawn => ("withdrawn", None),
        Refusal::Expired => ("expired", None),
        Refusal::Early { at } => ("early", Some(at)),
        Refusal::Held { until } => ("held", Some(until)),
        Refusal::ClaimLost => ("claim_lost", None),
        Refusal::Version { current } => ("version", Some(u64::from(current))),
        Refusal::NotLater { at } => ("not_later", Some(at)),
        Refusal::NotSooner { at } => ("not_sooner", Some(at)),
        Refusal::NotDead => ("not_dead", None),
        Refusal::BadTime => ("bad_time", None),
    }
}

fn stats_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("live", stats.live)?;
    dict.set_item("near", stats.near)?;
    dict.set_item("ready", stats.ready)?;
    dict.set_item("known", stats.known)?;
    dict.set_item("hours", stats.hours)?;
    dict.set_item("buffered_bytes", stats.buffered)?;
    dict.set_item("memory_bytes", stats.memory)?;
    dict.set_item("near_memory_bytes", stats.near_memory)?;
    dict.set_item("checkpoints", stats.checkpoints)?;
    dict.set_item("applied", stats.applied)?;
    dict.set_item("whole", stats.whole)?;
    dict.set_item("dead_forgotten", stats.dead_forgotten)?;
    dict.set_item("expired", stats.expired)?;
    dict.set_item("buried", stats.buried)?;
    Ok(dict)
}

/// Makes HTTP callbacks in a thread of its own.
#[pyclass(module = "muster_server._engines")]
pub struct CallbackClient {
    caller: Option<Caller>,
    /// Parsed once for each list of texts.
    secrets: HashMap<Vec<String>, Arc<Secrets>>,
}

/// Lists of secrets kept parsed. Beyond, all are parsed again.
const SECRETS_MAX: usize = 10_000;

/// The longest pause that a target of a [`CallbackClient`] may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Number, webhook id, URL, content type, body, secrets, timeout in seconds.
type NewCall = (u64, String, String, String, Vec<u8>, Vec<String>, f64);
/// Number, outcome, status, detail, seconds until it may be tried again, seconds that it took.
type CallResult<'py> = (u64, &'static str, Option<u16>, Bound<'py, PyAny>, Option<f64>, f64);

#[pymethods]
impl CallbackClient {
    #[new]
    #[pyo3(signature = (settings, *, roots = Vec::new()))]
    fn new(settings: &[u8], roots: Vec<Vec<u8>>) -> PyResult<Self> {
        let settings = calls(settings, roots, None)?;
        let caller = Caller::start(settings).map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(CallbackClient {
            caller: Some(caller),
            secrets: HashMap::new(),
        })
    }

    fn fd(&self) -> PyResult<i32> {
        Ok(self.caller()?.as_fd().as_raw_fd())
    }

    /// The number of calls taken, from the first on.
    fn submit(&mut self, calls: Vec<NewCall>) -> PyResult<usize> {
        let given = calls.len();
        let calls: PyResult<Vec<Call>> = calls.into_iter().map(|call| self.call(call)).collect();
        Ok(given - self.caller()?.submit(calls?).len())
    }

    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<CallResult<'py>>> {
        let caller = self.caller()?;
        let mut answers = Vec::new();
        caller.take(&mut answers);
        if answers.is_empty() && !caller.is_running() {
            return Err(PyOSError::new_err("the thread of callbacks ended"));
        }
        answers.into_iter().map(|answer| called(py, answer)).collect()
    }

    fn close(&mut self, py: Python<'_>) {
        let caller = self.caller.take();
        py.detach(|| drop(caller));
    }
}

impl CallbackClient {
    fn caller(&self) -> PyResult<&Caller> {
        self.caller.as_ref().ok_or_else(closed)
    }

    fn call(&mut self, (number, id, url, content_type, body, secrets, timeout): NewCall) -> PyResult<Call> {
        if self.secrets.len() >= SECRETS_MAX {
            self.secrets.clear();
        }
        let secrets = match self.secrets.get(&secrets) {
            Some(parsed) => Arc::clone(parsed),
            None => {
                let parsed = parsed(&secrets)?;
                self.secrets.insert(secrets, Arc::clone(&parsed));
                parsed
            }
        };
        Ok(Call {
            number,
            id,
            url,
            content_type,
            body: body.into(),
            secrets,
            timeout: seconds(timeout)?,
            group: 0,
            pause_max: PAUSE_MAX,
            keeps_answer: false,
        })
    }
}

fn calls(settings: &[u8], authorities: Vec<Vec<u8>>, identity: Option<Identity>) -> PyResult<CallerSettings> {
    let settings: CallSettings = setup::settings(settings)?;
    settings
        .caller(Tls { authorities, identity })
        .map_err(PyValueError::new_err)
}

fn parsed(secrets: &[String]) -> PyResult<Arc<Secrets>> {
    let parsed: Result<_, _> = secrets.iter().map(|text| Secret::parse(text)).collect();
    let parsed = parsed.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(Arc::new(Secrets(parsed)))
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| PyValueError::new_err(format!("invalid duration of {seconds} s")))
}

fn called(py: Python<'_>, answer: CallAnswer) -> PyResult<CallResult<'_>> {
    let took = answer.took.as_secs_f64();
    let (outcome, status, detail, retry_in) = match answer.outcome {
        Outcome::Delivered { status, .. } => ("delivered", Some(status), "".into_bound_py_any(py)?, None),
        Outcome::Refused {
            status,
            retry_after,
            body,
        } => ("refused", Some(status), PyBytes::new(py, &body).into_any(), retry_after),
        Outcome::Failed(failure) => ("failed", None, failure.name().into_bound_py_any(py)?, None),
        Outcome::NotMade { why, retry_in } => {
            let detail = match why {
                Why::Held => "held",
                Why::Busy => "busy",
                Why::Stopping => "stopping",
            };
            ("not_made", None, detail.into_bound_py_any(py)?, Some(retry_in))
        }
    };
    let retry_in = retry_in.map(|retry_in| retry_in.as_secs_f64());
    Ok((answer.number, outcome, status, detail, retry_in, took))
}

/// A worker's callbacks: arrays of fires in, arrays of results out.
#[pyclass(module = "muster_server._engines")]
pub struct FiringEngine {
    firing: Option<Firing>,
}

/// Number, callback, secrets, timeout in seconds, intervals of retries in ms, their jitter, the longest pause in seconds.
type NewTopic = (u32, String, Vec<String>, f64, Vec<u64>, u32, f64);

/// Topic (none: the whole origin), URL, why, seconds left.
type HeldTarget = (Option<u64>, String, &'static str, f64);

#[pymethods]
impl FiringEngine {
    #[new]
    #[pyo3(signature = (settings, *, authorities = Vec::new(), identity = None))]
    fn new(settings: &[u8], authorities: Vec<Vec<u8>>, identity: Option<(Vec<Vec<u8>>, Vec<u8>)>) -> PyResult<Self> {
        let identity = identity.map(|(chain, key)| Identity { chain, key });
        let settings = calls(settings, authorities, identity)?;
        let firing = Firing::start(settings).map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(FiringEngine { firing: Some(firing) })
    }

    fn fd(&self) -> PyResult<i32> {
        Ok(self.firing()?.as_fd().as_raw_fd())
    }

    fn topics(&mut self, topics: Vec<NewTopic>) -> PyResult<()> {
        let made = topics
            .into_iter()
            .map(|(number, callback, secrets, timeout, intervals, jitter, pause_max)| {
                let retries = RetryTable::new(intervals, jitter);
                let topic = Topic {
                    callback,
                    secrets: parsed(&secrets)?,
                    timeout: seconds(timeout)?,
                    retries: retries.map_err(|error| PyValueError::new_err(error.to_string()))?,
                    pause_max: seconds(pause_max)?,
                };
                Ok((number, topic))
            });
        let made = made.collect::<PyResult<Vec<_>>>()?;
        self.firing_mut()?.set_topics(made);
        Ok(())
    }

    fn take<'py>(&mut self, py: Python<'py>, now: u64, fires: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let back = self.firing_mut()?.take(now, fires).map_err(malformed)?;
        Ok(back.map(|back| PyBytes::new(py, &back)))
    }

    fn collect(&mut self, now: u64, random: u64) -> PyResult<()> {
        Ok(self.firing_mut()?.collect(now, random)?)
    }

    fn tell(&mut self, results: &[u8]) -> PyResult<()> {
        self.firing_mut()?.tell(results).map_err(malformed)
    }

    fn piece<'py>(&self, py: Python<'py>, max: usize) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.firing()?.piece(max)))
    }

    fn told(&mut self, taken: &[u8]) -> PyResult<()> {
        self.firing_mut()?.told(taken);
        Ok(())
    }

    fn waiting(&self) -> PyResult<usize> {
        Ok(self.firing()?.waiting())
    }

    fn under_way(&self) -> PyResult<usize> {
        Ok(self.firing()?.under_way())
    }

    fn held(&self) -> PyResult<Vec<HeldTarget>> {
        let held = self.firing()?.held().into_iter().map(|each| {
            let why = match each.hold {
                Hold::Unreachable => "unreachable",
                Hold::Failing => "failing",
                Hold::Paused => "paused",
            };
            (each.group, each.url, why, each.left.as_secs_f64())
        });
        Ok(held.collect())
    }

    fn made(&self) -> PyResult<HashMap<&'static str, u64>> {
        let made = self.firing()?.made();
        Ok(HashMap::from([
            ("delivered", made.delivered),
            ("refused", made.refused),
            ("failed", made.failed),
            ("not_made", made.not_made),
            ("out_of_time", made.out_of_time),
        ]))
    }

    fn close(&mut self, py: Python<'_>) {
        let firing = self.firing.take();
        py.detach(|| drop(firing));
    }
}

impl FiringEngine {
    fn firing(&self) -> PyResult<&Firing> {
        self.firing.as_ref().ok_or_else(closed)
    }

    fn firing_mut(&mut self) -> PyResult<&mut Firing> {
        self.firing.as_mut().ok_or_else(closed)
    }
}

/// The claims of one worker's life.
#[pyclass(module = "muster_server._engines")]
#[derive(Default)]
pub struct ClaimLedger {
    ledger: Ledger,
}

/// Topic, attempts, milliseconds that they took, fired, retries, dead, by lateness, whether places are free.
type NamedSum = (u32, u64, f64, u64, u64, u64, Vec<u64>, bool);

#[pymethods]
impl ClaimLedger {
    #[new]
    fn new() -> Self {
        ClaimLedger::default()
    }

    fn __len__(&self) -> usize {
        self.ledger.len()
    }

    fn held(&self, topic: u32) -> usize {
        self.ledger.held(topic)
    }

    /// Topic, fires, overdue ones.
    fn begin(&mut self, fires: &[u8], now: u64, overdue_ms: u64) -> PyResult<Vec<(u32, usize, usize)>> {
        let fires = wire::fires(fires).map_err(malformed)?;
        let begun = self.ledger.begin(&fires, now, overdue_ms).into_iter();
        Ok(begun.map(|each| (each.topic, each.count, each.overdue)).collect())
    }

    fn settle(
        &mut self,
        results: &[u8],
        said: &[u8],
        now: u64,
        grace_ms: u64,
        bounds_ms: Vec<i64>,
    ) -> PyResult<Vec<NamedSum>> {
        let outcomes = wire::outcomes(results).map_err(malformed)?;
        let said: Option<Vec<Said>> = said.iter().map(|byte| Said::of(*byte)).collect();
        let said = said.filter(|said| said.len() == outcomes.len());
        let said = said.ok_or_else(|| PyValueError::new_err("each result has one byte of an answer"))?;
        let sums = self
            .ledger
            .settle(&outcomes, &said, now, grace_ms, &bounds_ms)
            .into_iter();
        let named = sums.map(|sum| {
            (
                sum.topic,
                sum.attempts,
                sum.took_ms,
                sum.fired,
                sum.retries,
                sum.dead,
                sum.late,
                sum.freed,
            )
        });
        Ok(named.collect())
    }

    fn sweep(&mut self, now: u64) -> Vec<u32> {
        self.ledger.sweep(now)
    }

    fn drain(&mut self) -> Vec<(u64, u32)> {
        self.ledger.drain()
    }
}

/// The numbers of a topic's messages.
#[pyfunction]
pub fn message_numbers(key: &[u8], topic: u32, ids: Vec<Bound<'_, PyString>>) -> PyResult<Vec<u64>> {
    let numbers = Numbers::new(key, topic).ok_or_else(|| PyValueError::new_err("a key has 1 to 64 bytes"))?;
    ids.iter().map(|id| Ok(numbers.of(&id.to_cow()?))).collect()
}

/// Place, number, outcome, status, answer.
type Dying<'py> = (usize, u64, String, Option<u16>, Bound<'py, PyBytes>);

/// The results by which a message dies.
#[pyfunction]
pub fn dying_results<'py>(py: Python<'py>, results: &[u8]) -> PyResult<Vec<Dying<'py>>> {
    let outcomes = wire::outcomes(results).map_err(malformed)?;
    let dying = outcomes
        .iter()
        .enumerate()
        .filter(|(_, each)| each.verb == Verb::Fail && each.next.is_none());
    let named = dying.map(|(place, each)| {
        let answer = PyBytes::new(py, each.answer);
        (place, each.number, each.outcome.to_owned(), each.status, answer)
    });
    Ok(named.collect())
}

/// Whether a received callback is signed by this secret, and lately.
#[pyfunction]
pub fn webhook_verify(secret: &str, id: &str, time: u64, body: &[u8], signature: &str, now: u64) -> PyResult<bool> {
    let secret = Secret::parse(secret).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(muster_callback::verify(&secret, id, time, body, signature, now))
}

/// When callbacks that failed are made again.
#[pyclass(module = "muster_server._engines")]
pub struct RetryPlan {
    table: RetryTable,
}

#[pymethods]
impl RetryPlan {
    #[new]
    #[pyo3(signature = (intervals_ms, *, jitter))]
    fn new(intervals_ms: Vec<u64>, jitter: u32) -> PyResult<Self> {
        let table = RetryTable::new(intervals_ms, jitter).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(RetryPlan { table })
    }

    fn attempts_max(&self) -> u16 {
        self.table.attempts_max()
    }

    #[pyo3(signature = (attempts, now, retry_after_ms, random))]
    fn next(&self, attempts: u16, now: u64, retry_after_ms: Option<u64>, random: u64) -> Option<u64> {
        self.table.next(attempts, now, retry_after_ms, random)
    }
}

/// Incarnation, weight, held messages.
type NamedWorker = (u64, u32, u64);

fn workers(list: Vec<NamedWorker>) -> Vec<Worker> {
    let worker = |(incarnation, weight, held)| Worker {
        incarnation: Incarnation(incarnation),
        weight,
        held,
    };
    list.into_iter().map(worker).collect()
}

/// Chooses the workers of one topic in turn.
#[pyclass(module = "muster_server._engines")]
pub struct WorkerDispatch {
    dispatcher: Dispatcher,
}

#[pymethods]
impl WorkerDispatch {
    #[new]
    fn new(policy: &str) -> PyResult<Self> {
        let policy = match policy {
            "random" => Policy::Random,
            "round-robin" => Policy::RoundRobin,
            "weighted-round-robin" => Policy::WeightedRoundRobin,
            "weighted-random" => Policy::WeightedRandom,
            "least-loaded" => Policy::LeastLoaded,
            _ => return Err(PyValueError::new_err(format!("unknown policy `{policy}`"))),
        };
        Ok(WorkerDispatch {
            dispatcher: Dispatcher::new(policy),
        })
    }

    fn choose(&mut self, among: Vec<NamedWorker>, random: u64) -> Option<usize> {
        self.dispatcher.choose(&workers(among), random)
    }
}

/// The places of up to `count` different workers for a new topic.
#[pyfunction]
pub fn assign_workers(how: &str, among: Vec<NamedWorker>, count: usize, random: Vec<u64>) -> PyResult<Vec<usize>> {
    let how = match how {
        "random" => Assignment::Random,
        "least-loaded" => Assignment::LeastLoaded,
        _ => return Err(PyValueError::new_err(format!("unknown assignment `{how}`"))),
    };
    if random.len() < among.len() {
        return Err(PyValueError::new_err("one random number for each worker is needed"));
    }
    let mut random = random.into_iter();
    let next = || random.next().expect("there is one for each worker");
    Ok(muster_messages::dispatch::assign(how, &workers(among), count, next))
}

/// A worker's weight by the parts of messages, memory and processor that are in use.
#[pyfunction]
pub fn worker_weight(held: f64, memory: f64, cpu: f64) -> u32 {
    Load { held, memory, cpu }.weight()
}

pub(crate) fn named(step: Step) -> &'static str {
    match step {
        Step::Cancelled | Step::CancelledBefore => "cancelled",
        Step::Rescheduled => "rescheduled",
        Step::Claimed { .. } => "claimed",
        Step::Expired => "expired",
        Step::Buried => "buried",
        Step::Delivered => "delivered",
        Step::Retrying => "retrying",
        Step::Released => "released",
        Step::Extended { .. } => "extended",
        Step::Woken => "woken",
        Step::Replayed => "replayed",
        Step::Dropped => "dropped",
    }
}

/// Id, and what was asked ahead of its message: cancelled, at, by, how `at` stands to the message's own time.
#[derive(FromPyObject)]
pub struct Asked(pub u64, bool, Option<u64>, i64, String);

impl Asked {
    pub(crate) fn ahead(self) -> PyResult<Ahead> {
        let Asked(_, cancelled, at, by, bound) = self;
        let bound = match bound.as_str() {
            "exact" => AheadBound::Exact,
            "later" => AheadBound::Later,
            "sooner" => AheadBound::Sooner,
            _ => return Err(PyValueError::new_err(format!("unknown bound `{bound}`"))),
        };
        Ok(Ahead {
            cancelled,
            at,
            bound,
            by,
        })
    }
}

/// Whether cancelled, at, by, how `at` stands to the message's own time.
pub(crate) fn ahead(ahead: &Ahead) -> (bool, Option<u64>, i64, &'static str) {
    let bound = match ahead.bound {
        AheadBound::Exact => "exact",
        AheadBound::Later => "later",
        AheadBound::Sooner => "sooner",
    };
    (ahead.cancelled, ahead.at, ahead.by, bound)
}

/// A message as replies have it, and the worker that holds it (0: nobody).
#[derive(FromPyObject)]
pub struct Fields(u64, u32, u64, Option<u64>, u16, String, Option<u64>, u64);

impl Fields {
    pub(crate) fn message(self) -> PyResult<Message> {
        let Fields(id, version, due_at, expires_at, attempts, state, time, worker) = self;
        let at = || time.ok_or_else(|| PyValueError::new_err(format!("state `{state}` needs a time")));
        let state = match state.as_str() {
            "scheduled" => State::Scheduled,
            "firing" => State::Firing {
                worker: Incarnation(worker),
                until: at()?,
            },
            "retry" => State::Retry { next: at()? },
            "done" => State::Done,
            "dead" => State::Dead,
            "cancelled" => State::Cancelled,
            "expired" => State::Expired,
            _ => return Err(PyValueError::new_err(format!("unknown state `{state}`"))),
        };
        Ok(Message {
            id: MessageId(id),
            version,
            due_at,
            expires_at: expires_at.unwrap_or(NEVER),
            attempts,
            state,
        })
    }
}

/// What a schedule's files hold: messages that are whole, ids of those whose body is lost, faults as (file, byte, text), and the number of all faults.
type Held = (u64, Vec<u64>, Vec<(String, u64, String)>, u64);

/// Reads the files of a schedule that no process has open. With `into`, a folder without a schedule, writes all whole messages there. Raises `OSError`.
#[pyfunction]
#[pyo3(signature = (folder, into=None, *, segment_bytes, now_ms))]
pub fn salvage_schedule(
    py: Python<'_>,
    folder: PathBuf,
    into: Option<PathBuf>,
    segment_bytes: u64,
    now_ms: u64,
) -> PyResult<Held> {
    py.detach(|| {
        let salvage = Salvage::read(&folder).map_err(|error| PyOSError::new_err(error.to_string()))?;
        if let Some(into) = into {
            let options = Options {
                segment_bytes,
                ..Options::default()
            };
            let written = salvage.write(into, options, now_ms);
            written.map_err(|error| PyOSError::new_err(error.to_string()))?;
        }
        let found = salvage.found;
        let faults = found.faults.into_iter().map(|fault| (fault.file, fault.at, fault.text));
        Ok((found.messages, found.lost, faults.collect(), found.fault_count))
    })
}
