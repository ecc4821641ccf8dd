//! Messages one at a time, for a schedule whose store keeps bytes, and the time to fire by.

use muster_messages::clock::TrustedClock;
use muster_messages::keeper::{Answer, Ask, Request};
use muster_messages::schedule::{Ahead, Change, Incarnation, Message, MessageId, Refusal, State, Step, NEVER};
use muster_messages::store::Inserted;
use muster_messages::stored::{Entry, Stored, STORED_BYTES};
use muster_messages::wheel::DUE_MAX;
use muster_messages::wire;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use pyo3::IntoPyObjectExt;

use crate::messages::{
    ahead as told_ahead, change, malformed, message, named, packed as replies, reason, Asked, Fields,
};

fn damaged() -> PyErr {
    PyOSError::new_err("damaged entry of a message")
}

fn stored(bytes: &[u8]) -> PyResult<Stored> {
    Stored::unpack(bytes).ok_or_else(damaged)
}

fn packed<'py>(py: Python<'py>, topic: u32, entry: Entry) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &Stored { topic, entry }.pack())
}

#[pyfunction]
pub fn stored_new(
    py: Python<'_>,
    id: u64,
    topic: u32,
    due_at: u64,
    expires_at: Option<u64>,
) -> Option<Bound<'_, PyBytes>> {
    let message = Message::new(MessageId(id), due_at, expires_at.unwrap_or(NEVER));
    (due_at < DUE_MAX).then(|| packed(py, topic, Entry::Message(message)))
}

/// New messages for one call: their topic, the time at which the first one is due, their places, and for each its entry
/// with the body behind it.
type Group<'py> = (u32, u64, Vec<usize>, Vec<Bound<'py, PyBytes>>);

/// New messages in groups of one topic and `at_once` messages at most; and an array of the replies, if none is known.
#[pyfunction]
pub fn stored_inserts<'py>(
    py: Python<'py>,
    messages: &[u8],
    body_bytes_max: usize,
    at_once: usize,
) -> PyResult<(Vec<Group<'py>>, Bound<'py, PyBytes>)> {
    let messages = wire::new_messages(messages).map_err(malformed)?;
    let mut answers = Vec::with_capacity(messages.len());
    let mut groups: Vec<Group<'py>> = Vec::new();
    for (place, new) in messages.iter().enumerate() {
        if new.body.len() > body_bytes_max {
            answers.push(Answer::BodyTooLong);
            continue;
        }
        if new.due_at >= DUE_MAX {
            answers.push(Answer::Refused(Refusal::BadTime));
            continue;
        }
        let message = Message::new(MessageId(new.number), new.due_at, new.expires_at);
        let entry = Entry::Message(message);
        let head = Stored {
            topic: new.topic,
            entry,
        }
        .pack();
        let value = PyBytes::new_with(py, STORED_BYTES + new.body.len(), |bytes| {
            bytes[..STORED_BYTES].copy_from_slice(&head);
            bytes[STORED_BYTES..].copy_from_slice(new.body);
            Ok(())
        })?;
        let open = |group: &&mut Group<'py>| group.0 == new.topic && group.2.len() < at_once;
        match groups.iter_mut().rev().find(open) {
            Some((_, soonest, places, values)) => {
                *soonest = new.due_at.min(*soonest);
                places.push(place);
                values.push(value);
            }
            None => groups.push((new.topic, new.due_at, vec![place], vec![value])),
        }
        answers.push(Answer::Inserted(Inserted::New(message)));
    }
    Ok((groups, PyBytes::new(py, &replies(&answers))))
}

#[pyfunction]
pub fn stored_meet<'py>(py: Python<'py>, there: &[u8], new: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (
        Stored {
            entry: Entry::Ahead { ahead, .. },
            ..
        },
        Stored {
            topic,
            entry: Entry::Message(mut message),
        },
    ) = (stored(there)?, stored(new)?)
    else {
        return Err(damaged());
    };
    ahead.meet(&mut message);
    Ok(packed(py, topic, Entry::Message(message)))
}

/// What is to be set, if anything, and the reply.
type Made<'py> = (Option<Bound<'py, PyBytes>>, Bound<'py, PyAny>);

fn refused<'py>(py: Python<'py>, refusal: Refusal) -> PyResult<Made<'py>> {
    let (reason, value) = reason(refusal);
    Ok((None, ("refused", reason, value).into_bound_py_any(py)?))
}

#[pyfunction]
pub fn stored_change<'py>(
    py: Python<'py>,
    there: Option<&[u8]>,
    now: u64,
    asked: (u64, String, Option<u32>, Option<i64>),
    ahead_ms: u64,
) -> PyResult<Made<'py>> {
    let (id, verb, version, time) = asked;
    let Request {
        ask: Ask::Change { id, change, expected },
        ..
    } = change((0, id, verb, version, time))?
    else {
        unreachable!("a change is asked for");
    };
    let before = there.map(stored).transpose()?;
    let (topic, ahead, until) = match before {
        Some(Stored {
            topic,
            entry: Entry::Message(mut now_is),
        }) => {
            let step = match now_is.apply(now, change, expected) {
                Ok(step) => step,
                Err(refusal) => return refused(py, refusal),
            };
            let reply = ("changed", message(py, &now_is)?, named(step)).into_bound_py_any(py)?;
            let set = (step != Step::CancelledBefore).then(|| packed(py, topic, Entry::Message(now_is)));
            return Ok((set, reply));
        }
        Some(Stored {
            topic,
            entry: Entry::Ahead { ahead, until, .. },
        }) => (topic, ahead, until),
        None => (0, Ahead::default(), (now + ahead_ms).min(DUE_MAX - 1)),
    };
    let mut ahead = ahead;
    let told = match expected {
        Some(_) => Err(Refusal::Unknown),
        None => ahead.ask(change),
    };
    if let Err(refusal) = told {
        return refused(py, refusal);
    }
    let set = packed(py, topic, Entry::Ahead { id, ahead, until });
    let (cancelled, at, by, bound) = told_ahead(&ahead);
    let reply = ("ahead", cancelled, at, by, bound).into_bound_py_any(py)?;
    Ok((Some(set), reply))
}

#[pyfunction]
pub fn stored_claim<'py>(
    py: Python<'py>,
    there: &[u8],
    now: u64,
    worker: u64,
    until: u64,
    attempts_max: u16,
) -> PyResult<Made<'py>> {
    let Stored {
        topic,
        entry: Entry::Message(mut found),
    } = stored(there)?
    else {
        return refused(py, Refusal::Unknown);
    };
    let change = Change::Claim {
        worker: Incarnation(worker),
        until,
        attempts_max,
    };
    match found.apply(now, change, None) {
        Ok(step) => {
            let reply = ("changed", message(py, &found)?, named(step)).into_bound_py_any(py)?;
            Ok((Some(packed(py, topic, Entry::Message(found))), reply))
        }
        Err(refusal) => refused(py, refusal),
    }
}

#[pyfunction]
pub fn stored_put<'py>(py: Python<'py>, there: &[u8], fields: Fields) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let before = stored(there)?;
    let message = fields.message()?;
    let newer = message.version > before.version() && matches!(before.entry, Entry::Message(_));
    Ok(newer.then(|| packed(py, before.topic, Entry::Message(message))))
}

/// What another record says was asked ahead of a message. `None`: the message is here.
#[pyfunction]
pub fn stored_put_ahead<'py>(
    py: Python<'py>,
    there: Option<&[u8]>,
    now: u64,
    asked: Asked,
    ahead_ms: u64,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let (topic, until) = match there.map(stored).transpose()? {
        None => (0, (now + ahead_ms).min(DUE_MAX - 1)),
        Some(Stored {
            topic,
            entry: Entry::Ahead { until, .. },
        }) => (topic, until),
        Some(_) => return Ok(None),
    };
    let (id, ahead) = (MessageId(asked.0), asked.ahead()?);
    Ok(Some(packed(py, topic, Entry::Ahead { id, ahead, until })))
}

/// A message (none for what is known ahead of one), its topic, when it is to be looked at, and its worker.
type Read<'py> = (Option<Bound<'py, PyTuple>>, u32, Option<u64>, u64);

#[pyfunction]
pub fn stored_read<'py>(py: Python<'py>, there: &[u8]) -> PyResult<Read<'py>> {
    let found = stored(there)?;
    let (told, worker) = match found.entry {
        Entry::Message(is) => match is.state {
            State::Firing { worker, .. } => (Some(message(py, &is)?), worker.0),
            _ => (Some(message(py, &is)?), 0),
        },
        Entry::Ahead { .. } => (None, 0),
    };
    Ok((told, found.topic, found.wake_at(), worker))
}

/// Time to fire by, for a schedule whose store is elsewhere.
#[pyclass(module = "muster_server._engines")]
pub struct FiringClock {
    clock: TrustedClock,
}

#[pymethods]
impl FiringClock {
    #[new]
    fn new(wall: u64, monotonic: u64) -> Self {
        FiringClock {
            clock: TrustedClock::new(wall, monotonic),
        }
    }

    fn read(&mut self, wall: u64, monotonic: u64) -> (u64, Option<i64>) {
        let (now, step) = self.clock.read(wall, monotonic);
        (now, step.map(|step| step.by_ms))
    }
}
