//! File work that the store hands out, so that its own thread never waits for it.
//!
//! Owns: what a job reads, syncs and removes. Must not know: the store's state; a job contains all that it needs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::files::{FileName, Files};
use super::hour::damaged;
use super::index::{Index, Place};
use super::op::{Kind, Op, OP_BYTES};
use super::scrub::{self, HourPart};
use crate::schedule::{Message, MessageId, State};
use crate::wheel::Millis;

/// Bytes of operations read at once: 16,384 operations.
const CHUNK_BYTES: usize = 1 << 20;

/// Maximum number of messages that one listing collects: 100 MB. Beyond it, the listing is marked as cut.
const LISTED_MAX: usize = 1_000_000;

/// The operations of an hour at one moment.
pub(crate) struct Snapshot {
    pub hour: u32,
    /// Bytes of its file.
    pub flushed: u64,
    /// Later operations, not in the file yet.
    pub tail: Vec<u8>,
}

pub(crate) enum Task {
    /// Reads the order of an hour.
    Load(Snapshot),
    /// Reads the locations of the messages of these hours.
    Rebuild { hours: Vec<Snapshot>, messages: usize },
    /// Reads the ids of the messages of an hour.
    Ids(Snapshot),
    /// Finds the messages of these hours that match an operator's filter.
    List {
        number: u64,
        hours: Vec<Snapshot>,
        filter: Filter,
    },
    /// Reads an hour and checks it.
    Scrub(HourPart),
    /// Syncs these files, then writes the manifest, then removes the files of these hours.
    Checkpoint {
        sync: Vec<FileName>,
        manifest: Vec<u8>,
        remove: Vec<u32>,
        /// Pause between two syncs, for commits of the log in between.
        pause: Duration,
    },
}

/// A unit of work for any thread. The store continues meanwhile; pass the result to `Store::finish`.
pub struct Job<F> {
    pub(crate) files: Arc<F>,
    pub(crate) task: Task,
}

pub(crate) enum Answer {
    Loaded {
        hour: u32,
        sorted: Vec<(Millis, u32)>,
    },
    Rebuilt(Index),
    /// Each message of the hour, and whether it is a dead letter.
    Ids {
        hour: u32,
        ids: Vec<(u64, bool)>,
    },
    Listed(Listing),
    Scrubbed(scrub::Read),
    Checkpointed,
}

/// Which messages a listing contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// `None`: all topics.
    pub topic: Option<u32>,
    /// By the time of the next attempt; for ended messages, by their due time.
    pub from: Millis,
    pub to: Millis,
    pub scheduled: bool,
    pub firing: bool,
    pub done: bool,
    pub dead: bool,
    pub withdrawn: bool,
    /// Lists only messages after this time and id, the last of the previous page. All are counted.
    pub after: Option<(Millis, MessageId)>,
    /// Maximum number of messages listed: those with the earliest times.
    pub limit: usize,
}

impl Filter {
    fn takes(&self, op: &Op) -> Option<(Millis, Message)> {
        let message = op.message()?;
        let wanted = match message.state {
            State::Scheduled | State::Retry { .. } => self.scheduled,
            State::Firing { .. } => self.firing,
            State::Done => self.done,
            State::Dead => self.dead,
            State::Cancelled | State::Expired => self.withdrawn,
        };
        let time = match message.state {
            State::Retry { next } => next,
            _ => message.due_at,
        };
        let takes = wanted && self.topic.is_none_or(|topic| topic == op.topic) && self.from <= time && time < self.to;
        takes.then_some((time, message))
    }
}

/// The result of a listing, as of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub number: u64,
    /// The messages with their topics, earliest first.
    pub messages: Vec<(Message, u32)>,
    /// Times of all that match, in order.
    pub times: Vec<Millis>,
    /// There are more messages than were counted.
    pub cut: bool,
}

/// The result of a [`Job`].
pub struct Finished(pub(crate) io::Result<Answer>);

impl<F: Files> Job<F> {
    /// Runs the job: milliseconds to seconds of reads or syncs.
    pub fn run(self) -> Finished {
        let files = self.files.as_ref();
        Finished(match self.task {
            Task::Load(snapshot) => order(files, &snapshot).map(|sorted| Answer::Loaded {
                hour: snapshot.hour,
                sorted,
            }),
            Task::Rebuild { hours, messages } => rebuild(files, &hours, messages).map(Answer::Rebuilt),
            Task::Ids(snapshot) => ids(files, &snapshot).map(|ids| Answer::Ids {
                hour: snapshot.hour,
                ids,
            }),
            Task::List { number, hours, filter } => list(files, number, &hours, filter).map(Answer::Listed),
            Task::Scrub(part) => Ok(Answer::Scrubbed(scrub::read(files, &part))),
            Task::Checkpoint {
                sync,
                manifest,
                remove,
                pause,
            } => checkpoint(files, &sync, pause, &manifest, &remove),
        })
    }
}

/// Wake times and numbers of the operations that have a wake time, latest first.
pub(crate) fn order<F: Files>(files: &F, snapshot: &Snapshot) -> io::Result<Vec<(Millis, u32)>> {
    let mut sorted = Vec::new();
    each_op(files, snapshot, |number, op| {
        if op.kind.is_live() {
            sorted.extend(op.wake_at().map(|at| (at, number)));
        }
    })?;
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    Ok(sorted)
}

/// The locations of all messages of some hours, about `messages` of them.
pub(crate) fn rebuild<F: Files>(files: &F, hours: &[Snapshot], messages: usize) -> io::Result<Index> {
    let mut index = Index::new();
    index.reserve(messages);
    for snapshot in hours {
        let hour = snapshot.hour;
        let mut gone = false;
        each_op(files, snapshot, |_, op| gone |= op.kind == Kind::Gone)?;
        if gone {
            // A message that left the hour may be in one that was read before: find the hour's last operations first.
            let mut last: hashbrown::HashMap<u64, (u32, bool)> = hashbrown::HashMap::new();
            each_op(files, snapshot, |number, op| {
                last.insert(op.id.0, (number, op.kind == Kind::Gone));
            })?;
            for (id, (op, gone)) in last {
                if !gone {
                    index.set(MessageId(id), Place::Far { hour, op });
                }
            }
        } else {
            each_op(files, snapshot, |op, found| {
                index.set(found.id, Place::Far { hour, op })
            })?;
        }
    }
    Ok(index)
}

fn ids<F: Files>(files: &F, snapshot: &Snapshot) -> io::Result<Vec<(u64, bool)>> {
    let mut last: hashbrown::HashMap<u64, bool> = hashbrown::HashMap::new();
    each_op(files, snapshot, |_, op| {
        last.insert(op.id.0, op.kind == Kind::Message(State::Dead));
    })?;
    Ok(last.into_iter().collect())
}

fn list<F: Files>(files: &F, number: u64, hours: &[Snapshot], filter: Filter) -> io::Result<Listing> {
    let mut all: Vec<(Millis, u32, Message)> = Vec::new();
    let mut cut = false;
    for snapshot in hours {
        // The last operation of each message of this hour.
        let mut found: hashbrown::HashMap<u64, (Millis, u32, Message)> = hashbrown::HashMap::new();
        each_op(files, snapshot, |_, op| match filter.takes(&op) {
            Some((time, message)) if found.len() + all.len() < LISTED_MAX || found.contains_key(&op.id.0) => {
                found.insert(op.id.0, (time, op.topic, message));
            }
            Some(_) => cut = true,
            None => {
                found.remove(&op.id.0);
            }
        })?;
        all.extend(found.into_values());
    }
    all.sort_unstable_by_key(|(time, _, message)| (*time, message.id));
    let times = all.iter().map(|(time, ..)| *time).collect();
    let first = match filter.after {
        Some(after) => all.partition_point(|(time, _, message)| (*time, message.id) <= after),
        None => 0,
    };
    let page = all.into_iter().skip(first).take(filter.limit);
    Ok(Listing {
        number,
        messages: page.map(|(_, topic, message)| (message, topic)).collect(),
        times,
        cut,
    })
}

fn checkpoint<F: Files>(
    files: &F,
    sync: &[FileName],
    pause: Duration,
    manifest: &[u8],
    remove: &[u32],
) -> io::Result<Answer> {
    for name in sync {
        files.sync(*name)?;
        std::thread::sleep(pause);
    }
    files.sync_names()?;
    files.replace(FileName::Manifest, manifest)?;
    for hour in remove {
        files.remove(FileName::Ops(*hour))?;
        files.remove(FileName::Bodies(*hour))?;
    }
    Ok(Answer::Checkpointed)
}

/// Calls `give` with all operations in order, each with its number.
pub(crate) fn each_op<F: Files>(files: &F, snapshot: &Snapshot, mut give: impl FnMut(u32, Op)) -> io::Result<()> {
    let mut number = 0;
    let mut chunk = vec![0; CHUNK_BYTES.min(snapshot.flushed as usize)];
    let mut at = 0;
    let mut decode = |bytes: &[u8]| {
        for bytes in bytes.chunks(OP_BYTES) {
            let at = u64::from(number) * OP_BYTES as u64;
            give(
                number,
                Op::decode(bytes).ok_or_else(|| damaged("operation", snapshot.hour, at))?,
            );
            number += 1;
        }
        Ok::<(), io::Error>(())
    };
    while at < snapshot.flushed {
        let want = chunk.len().min((snapshot.flushed - at) as usize);
        let read = files.read_at(FileName::Ops(snapshot.hour), at, &mut chunk[..want])?;
        if read < want {
            return Err(damaged("end", snapshot.hour, at + read as u64));
        }
        decode(&chunk[..read])?;
        at += read as u64;
    }
    decode(&snapshot.tail)
}
