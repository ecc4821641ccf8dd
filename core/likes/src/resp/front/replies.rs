//! Replies, and the changes that they wait for: a batch that is durable or failed, transactions, stalls.

use super::super::commands::{Command, Kind, Shape};
use super::super::reply::Reply;
use super::super::session::Figures;
use super::super::{commands, questions, session};
use super::{Batch, ConnectionId, Front, Ids, Operation, AHEAD, NOBODY};
use crate::engine::{Answer, ApplyError};
use crate::limits::{NOT_OFFSETS_MAX, SEGMENT_IDS};
use crate::record::{BitOp, Record};

pub(super) fn records<'a>(bytes: &'a [u8], ends: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let begins = std::iter::once(0).chain(ends.iter().copied());
    begins.zip(ends).map(|(begin, &end)| &bytes[begin..end])
}

pub(super) fn ids_wanted(record: &[u8]) -> u64 {
    match Record::decode(record) {
        Some(Record::Set { likes: true, .. } | Record::OneOf { .. }) => 1,
        Some(Record::BitOp { op: BitOp::Not, .. }) => NOT_OFFSETS_MAX,
        _ => 0,
    }
}

impl Front {
    /// The next records to make durable, as one group; `None` if there are none or a batch is in progress.
    pub fn begin_batch(&mut self) -> Option<impl Iterator<Item = &[u8]>> {
        if self.in_flight.is_some() || self.collecting.ends.is_empty() {
            return None;
        }
        let next = Batch {
            number: self.collecting.number + 1,
            ..Batch::default()
        };
        let batch = std::mem::replace(&mut self.collecting, next);
        let batch = self.in_flight.insert(batch);
        Some(records(&batch.bytes, &batch.ends))
    }

    /// Puts a record of an erasure into the next batch; `false` while the log takes no changes.
    pub fn go_on_erasing(&mut self, record: &Record) -> bool {
        let suspended = self
            .suspension
            .as_ref()
            .is_some_and(|suspension| suspension.changes_too);
        if self.refusal.is_some() || suspended {
            return false;
        }
        let batch = &mut self.collecting;
        record.encode(&mut batch.bytes);
        batch.ends.push(batch.bytes.len());
        batch.operations.push(Operation::Change {
            connection: NOBODY,
            shape: Shape::Ok,
        });
        true
    }

    /// The batch is durable, with its first record at `first`: applies it and replies.
    pub fn batch_is_durable(&mut self, first: u64, now_ms: u64) {
        let batch = self.in_flight.take().expect("a batch is under way");
        self.trouble = None;
        assert_eq!(first, self.engine.offset(), "the log and the engine go together");
        let Batch {
            bytes,
            ends,
            operations,
            ..
        } = batch;
        let (mut records, mut ahead) = (records(&bytes, &ends), records(&bytes, &ends));
        let (mut offset, mut deleted) = (first, 0);
        for (place, operation) in operations.into_iter().enumerate() {
            if place % AHEAD == 0 {
                self.engine.look_ahead(ahead.by_ref().take(AHEAD));
            }
            match operation {
                Operation::Segment => {
                    let record = records.next().expect("a record for each operation that has one");
                    self.ids.coming = self.ids.coming.saturating_sub(u64::from(SEGMENT_IDS));
                    self.engine
                        .apply(offset, record)
                        .expect("a segment behind all others is free");
                    offset += 1;
                }
                Operation::Change { connection, shape } => {
                    let record = records.next().expect("a record for each operation that has one");
                    self.ids.wanted -= ids_wanted(record);
                    let answer = self.engine.apply(offset, record);
                    offset += 1;
                    self.settle(connection, |reply| match (answer, shape) {
                        (Ok(Answer::Was(was)), _) => reply.integer(i64::from(was)),
                        (Ok(Answer::Bytes(bytes)), _) => reply.integer(bytes as i64),
                        (Ok(Answer::Deleted(was)), Shape::Deletion { last }) => {
                            deleted += i64::from(was);
                            if last {
                                reply.integer(std::mem::take(&mut deleted));
                            }
                        }
                        (Ok(Answer::Scored(scored)), Shape::Score) => match scored.score {
                            Some(score) => reply.double(score),
                            None => reply.null(),
                        },
                        (Ok(Answer::Scored(scored)), shape) => {
                            let changed = match shape {
                                Shape::Scored { changed: true } => scored.changed,
                                _ => 0,
                            };
                            reply.integer((scored.added + changed) as i64);
                        }
                        (Ok(Answer::Removed(members)), _) => reply.integer(members as i64),
                        (Ok(_), _) => reply.simple("OK"),
                        (Err(ApplyError::WrongType), _) => reply.error(commands::WRONG_TYPE),
                        (Err(ApplyError::Erasing), _) => reply.error(commands::ERASING),
                        (Err(error), _) => reply.error(&format!("ERR {error}")),
                    });
                }
                operation => self.finish(operation, now_ms),
            }
        }
        self.go_on(now_ms);
    }

    /// The batch is not in the log and never will be: its changes and the replies behind them get `text`, which
    /// begins with an error's code.
    ///
    /// With `for_good` every later change gets it too: the log refuses writes, or has a new owner.
    pub fn batch_failed(&mut self, text: &str, for_good: bool, now_ms: u64) {
        if for_good {
            self.refusal = Some(text.into());
        }
        self.trouble = Some(text.into());
        let next = Batch {
            number: self.collecting.number + 1,
            ..Batch::default()
        };
        let collected = std::mem::replace(&mut self.collecting, next);
        self.ids = Ids::default();
        for batch in self.in_flight.take().into_iter().chain([collected]) {
            for operation in batch.operations {
                match operation {
                    Operation::Segment => {}
                    Operation::Change { connection, shape } => {
                        let replies = shape != Shape::Deletion { last: false };
                        self.not_taken += 1;
                        self.settle(connection, |reply| {
                            if replies {
                                reply.error(text)
                            }
                        });
                    }
                    operation => self.finish(operation, now_ms),
                }
            }
        }
        self.go_on(now_ms);
    }

    /// Queues an operation behind the connection's last one.
    pub(super) fn wait(&mut self, place: u32, operation: Operation) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        connection.waiting += 1;
        let number = connection.batch;
        match &mut self.in_flight {
            Some(batch) if batch.number == number => batch.operations.push(operation),
            _ => self.collecting.operations.push(operation),
        }
    }

    pub(super) fn error(&mut self, place: u32, text: String) {
        match self.connection(place).map(|connection| connection.waiting) {
            Some(0) => self.reply(place, |reply| reply.error(&text)),
            Some(_) => self.wait(
                place,
                Operation::Error {
                    connection: place,
                    text,
                },
            ),
            None => {}
        }
    }

    /// A status or an error, in the order of the connection's replies.
    pub(super) fn say(&mut self, place: u32, said: Result<&'static str, String>) {
        match said {
            Err(text) => self.error(place, text),
            Ok(text) if self.connection(place).is_some_and(|connection| connection.waiting == 0) => {
                self.reply(place, |reply| reply.simple(text));
            }
            Ok(text) => self.wait(
                place,
                Operation::Status {
                    connection: place,
                    text,
                },
            ),
        }
    }

    /// The header of an array of `len` replies, in that order.
    pub(super) fn array(&mut self, place: u32, len: usize) {
        match self.connection(place).map(|connection| connection.waiting) {
            Some(0) => self.reply(place, |reply| reply.array(len)),
            Some(_) => self.wait(place, Operation::Array { connection: place, len }),
            None => {}
        }
    }

    pub(super) fn finish(&mut self, operation: Operation, now_ms: u64) {
        match operation {
            Operation::Later {
                connection,
                command,
                arguments,
            } => {
                let words: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
                self.answer(connection, command, &words, now_ms);
                self.settle(connection, |_| {});
            }
            Operation::Error { connection, text } => self.settle(connection, |reply| reply.error(&text)),
            Operation::Status { connection, text } => self.settle(connection, |reply| reply.simple(text)),
            Operation::Array { connection, len } => self.settle(connection, |reply| reply.array(len)),
            Operation::Segment | Operation::Change { .. } => unreachable!("has a record"),
        }
    }

    pub(super) fn answer(&mut self, place: u32, command: &Command, words: &[&[u8]], now_ms: u64) {
        let (connections, commands) = self.traffic();
        let figures = Figures { connections, commands };
        let Some(connection) = self.connections.get_mut(place as usize).and_then(Option::as_mut) else {
            return;
        };
        let (replies, session) = (&mut connection.replies, &mut connection.session);
        let begin = replies.len();
        let result = if let (Kind::Question, Some(suspension)) = (command.kind, &self.suspension) {
            Err(suspension.text.clone()) // it waited behind a change in the meantime
        } else if command.kind == Kind::Question {
            let mut reply = Reply {
                out: replies,
                resp3: session.resp3,
            };
            questions::answer(&mut self.engine, command, words, now_ms, &mut reply).map_err(String::from)
        } else {
            session::answer(session, &self.settings, &self.engine, &figures, command, words, replies)
        };
        if let Err(text) = result {
            replies.truncate(begin);
            Reply {
                out: replies,
                resp3: session.resp3,
            }
            .error(&text);
        } else if command.name == "LIKE.FEED" {
            self.feeds.pages += 1;
            self.feeds.items += command.keys(words).len() as u64;
        }
        connection.ends |= session.quits;
        self.mark_ready(place);
    }

    pub(super) fn reply(&mut self, place: u32, write: impl FnOnce(&mut Reply)) {
        if let Some(connection) = self.connection(place) {
            let resp3 = connection.session.resp3;
            write(&mut Reply {
                out: &mut connection.replies,
                resp3,
            });
            self.mark_ready(place);
        }
    }

    /// One operation of the connection is done.
    pub(super) fn settle(&mut self, place: u32, write: impl FnOnce(&mut Reply)) {
        self.reply(place, write);
        if let Some(connection) = self.connection(place) {
            connection.waiting -= 1;
            if connection.waiting == 0 {
                connection.waiting_bytes = 0;
            }
        }
        self.free_if_done(place);
    }

    pub(super) fn stall(&mut self, place: u32) {
        if let Some(connection) = self.connection(place) {
            if !std::mem::replace(&mut connection.stalled, true) {
                self.stalled.push(place);
            }
        }
    }

    /// Parses bytes that connections left unparsed, now that there is space.
    pub(super) fn go_on(&mut self, now_ms: u64) {
        let stalled = std::mem::take(&mut self.stalled);
        for &place in &stalled {
            if let Some(connection) = self.connection(place) {
                connection.stalled = false;
            }
            self.mark_ready(place);
        }
        for at in 0..self.ready.len() {
            let place = self.ready[at];
            if self
                .connection(place)
                .is_some_and(|connection| !connection.unparsed.is_empty() && !connection.is_full())
            {
                self.feed(ConnectionId(place), &[], now_ms);
            }
        }
    }

    pub(super) fn mark_ready(&mut self, place: u32) {
        if let Some(connection) = self.connection(place) {
            if connection.gone {
                connection.replies.clear();
            } else if !std::mem::replace(&mut connection.ready, true) {
                self.ready.push(place);
            }
        }
    }

    pub(super) fn free_if_done(&mut self, place: u32) {
        if self
            .connection(place)
            .is_some_and(|connection| connection.gone && connection.waiting == 0)
        {
            self.connections[place as usize] = None;
            self.ready.retain(|&other| other != place);
            self.free.push(place);
        }
    }
}
