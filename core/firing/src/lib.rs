//! A worker's part of delayed messages: arrays of fires in, callbacks, arrays of results out.
//!
//! Start from [`Firing`]. It makes the callbacks of messages that are due, with a known topic, a claim that outlasts
//! the call and a target that is a URL; it returns all other fires. It reads no clock: the wall clock is passed in.
//! Must not know: how fires and results travel, rooms, files of topics.
#![forbid(unsafe_code)]

mod results;
mod topic;

pub use results::Record;
pub use topic::Topic;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use muster_callback::{Answer, Call, Caller, Failure, Held as HeldTarget, Outcome as Answered, Settings};
use muster_messages::schedule::Version;
use muster_messages::wheel::Millis;
use muster_messages::wire::{envelope, fires, Fire, Frame, Malformed, Verb};

use results::Results;

/// A claim must outlast the callback's own deadline by at least this.
const MARGIN_MS: Millis = 1_000;

/// Minimum wait before a call is due again that its target cannot take now.
const AGAIN_MS: Millis = 250;

/// The media type of a check-back, whose response states an outcome.
const CHECK_TYPE: &str = "application/vnd.muster.check";

/// The outcomes that a check-back's response may state.
const STATED: [&[u8]; 2] = [b"OK", b"ABORT"];

/// Counts of callbacks by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    pub delivered: u64,
    pub refused: u64,
    pub failed: u64,
    pub not_made: u64,
    /// Not made because the claim does not outlast the call.
    pub out_of_time: u64,
}

/// A fire that is being called back for.
struct OpenFire {
    number: u64,
    topic_number: u32,
    claim: Version,
    /// The end of the claim, by the center's clock.
    until: Millis,
    attempts: u16,
    lateness_ms: i64,
    /// Its response must state an outcome, otherwise it counts as failed.
    is_check: bool,
    topic: Arc<Topic>,
}

/// Fires in progress at a worker, and results until the center has them. The center bounds their number.
pub struct Firing {
    caller: Caller,
    topics: HashMap<u32, Arc<Topic>>,
    calls: HashMap<u64, OpenFire>,
    /// The number of the last call.
    number: u64,
    results: Results,
    made: Made,
    /// Reused memory.
    answers: Vec<Answer>,
}

impl Firing {
    /// Starts the thread of callbacks.
    pub fn start(settings: Settings) -> io::Result<Firing> {
        Ok(Firing {
            caller: Caller::start(settings)?,
            topics: HashMap::new(),
            calls: HashMap::new(),
            number: 0,
            results: Results::default(),
            made: Made::default(),
            answers: Vec::new(),
        })
    }

    /// Replaces the topics, by number. Calls in progress keep theirs.
    pub fn set_topics(&mut self, topics: impl IntoIterator<Item = (u32, Topic)>) {
        self.topics = topics
            .into_iter()
            .map(|(number, topic)| (number, Arc::new(topic)))
            .collect();
    }

    /// Calls back for an array of fires. Returns the array of those that it does not make; `None`: there are none.
    pub fn take(&mut self, now: Millis, array: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let mut back = Frame::default();
        let mut calls = Vec::new();
        for fire in fires(array)? {
            match self.call(now, &fire) {
                Some(call) => calls.extend(call),
                None => back.push_fire(&fire),
            }
        }
        for call in self.caller.submit(calls) {
            let held = self.calls.remove(&call.number).expect("it was just kept");
            self.made.not_made += 1;
            self.release(&held, now + AGAIN_MS);
        }
        Ok((!back.is_empty()).then(|| back.finish()))
    }

    /// The call of a fire; `Some(None)`: there is no time for it. `None`: it is not made here.
    fn call(&mut self, now: Millis, fire: &Fire<'_>) -> Option<Option<Call>> {
        let first = fire.attempts <= 1;
        if first && fire.due_at > now {
            return None;
        }
        let topic = self.topics.get(&fire.topic)?;
        let message = envelope(fire.envelope).ok()?;
        let url = if message.target.is_empty() {
            topic.callback.as_str()
        } else {
            message.target
        };
        if !url.starts_with("https://") && !url.starts_with("http://") {
            return None;
        }
        let is_check = message.kind == CHECK_TYPE;
        let held = OpenFire {
            is_check,
            number: fire.number,
            topic_number: fire.topic,
            claim: fire.claim,
            until: fire.until,
            attempts: fire.attempts,
            lateness_ms: if first { (now - fire.due_at) as i64 } else { -1 },
            topic: Arc::clone(topic),
        };
        if now + topic.timeout.as_millis() as Millis + MARGIN_MS > fire.until {
            self.made.out_of_time += 1;
            self.release(&held, now);
            return Some(None);
        }
        self.number += 1;
        let call = Call {
            number: self.number,
            group: u64::from(fire.topic),
            id: message.id.to_owned(),
            url: url.to_owned(),
            content_type: message.kind.to_owned(),
            body: message.body.to_vec().into(),
            secrets: Arc::clone(&topic.secrets),
            timeout: topic.timeout,
            pause_max: topic.pause_max,
            keeps_answer: is_check,
        };
        self.calls.insert(self.number, held);
        Some(Some(call))
    }

    /// Takes the available results. `random`: any number, for the jitter of retries. An error: the thread ended.
    pub fn collect(&mut self, now: Millis, random: u64) -> io::Result<()> {
        let mut answers = std::mem::take(&mut self.answers);
        self.caller.take(&mut answers);
        if answers.is_empty() && !self.caller.is_running() {
            return Err(io::Error::other("the thread of callbacks ended"));
        }
        for answer in answers.drain(..) {
            self.answered(now, random, answer);
        }
        self.answers = answers;
        Ok(())
    }

    fn answered(&mut self, now: Millis, random: u64, answer: Answer) {
        let held = self.calls.remove(&answer.number).expect("each call is answered once");
        let record = Record {
            lateness_ms: held.lateness_ms,
            took_ms: answer.took.as_secs_f64() * 1_000.0,
            ..Record::of(held.number, held.topic_number, held.claim)
        };
        // This wall clock may have been set ahead since: no retry is later by more than the rest of the claim.
        let now = now.min(held.until);
        // A different number for each message of one burst, so that they are not retried together.
        let random = random ^ held.number;
        let next = |after: Option<Millis>| held.topic.retries.next(held.attempts, now, after, random);
        let record = match answer.outcome {
            Answered::Delivered { status, body } if held.is_check && !STATED.contains(&body.trim_ascii()) => {
                self.made.refused += 1;
                Record {
                    verb: Verb::Fail,
                    next: next(None),
                    outcome: "refused".into(),
                    status: Some(status),
                    answer: [b"the response to a check-back must be OK or ABORT, not: ", &body[..]].concat(),
                    ..record
                }
            }
            Answered::Delivered { status, .. } => {
                self.made.delivered += 1;
                Record {
                    verb: Verb::Deliver,
                    outcome: "delivered".into(),
                    status: Some(status),
                    ..record
                }
            }
            Answered::Refused {
                status,
                retry_after,
                body,
            } => {
                self.made.refused += 1;
                Record {
                    verb: Verb::Fail,
                    next: next(retry_after.map(|pause| pause.as_millis() as Millis)),
                    outcome: "refused".into(),
                    status: Some(status),
                    answer: body.to_vec(),
                    ..record
                }
            }
            Answered::Failed(failure) => {
                self.made.failed += 1;
                // No retry can succeed after these.
                let lasting = matches!(failure, Failure::BadUrl | Failure::ForbiddenAddress);
                Record {
                    verb: Verb::Fail,
                    next: if lasting { None } else { next(None) },
                    outcome: "failed".into(),
                    answer: failure.name().as_bytes().to_vec(),
                    ..record
                }
            }
            Answered::NotMade { retry_in, .. } => {
                self.made.not_made += 1;
                self.release(&held, now + AGAIN_MS.max(retry_in.as_millis() as Millis));
                return;
            }
        };
        self.results.push(record);
    }

    /// No attempt was made. If this wall clock is ahead of the center's, the message is due again at the end of its
    /// claim, as if there were no result: a clock that is set back delays it no longer.
    fn release(&mut self, held: &OpenFire, next: Millis) {
        self.results.push(Record {
            verb: Verb::Release,
            next: Some(next.min(held.until)),
            lateness_ms: -1,
            ..Record::of(held.number, held.topic_number, held.claim)
        });
    }

    /// Adds results of fires that were returned.
    pub fn tell(&mut self, array: &[u8]) -> Result<(), Malformed> {
        self.results.extend(array)
    }

    /// An array of the `max` oldest results. They stay here until [`Firing::told`].
    pub fn piece(&self, max: usize) -> Vec<u8> {
        self.results.piece(max)
    }

    /// The center has the results of the last piece whose byte is not 0; the others stay.
    pub fn told(&mut self, taken: &[u8]) {
        self.results.told(taken);
    }

    /// Number of results that the center does not have.
    pub fn waiting(&self) -> usize {
        self.results.len()
    }

    /// Number of callbacks in progress.
    pub fn under_way(&self) -> usize {
        self.calls.len()
    }

    /// Targets that get no calls now, by the numbers of their topics; only some of them if there are many.
    pub fn held(&self) -> Vec<HeldTarget> {
        self.caller.held()
    }

    pub fn made(&self) -> Made {
        self.made
    }
}

impl AsFd for Firing {
    /// Readable when there is something to collect.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.caller.as_fd()
    }
}
