//! The states of one message, and the changes between them.
//!
//! Owns: [`Message`], its states and every change of them; [`Ahead`], requests about a message that came before the
//! message. Must not know: where messages are stored, topics, retry tables, clocks (time is passed in with every
//! change).
//!
//! Every change is compare-and-set: it names what it expects, takes place whole or not at all, and makes a new
//! version. A store that applies these changes one at a time, and a store that runs them as scripts, give the same
//! results.
//!
//! ```text
//!               cancel                              SCHEDULED, RETRY -> CANCELLED
//!               reschedule                          SCHEDULED, RETRY -> same state, new due time; to a time that is
//!                                                   later, or sooner, it is asked for so, and refused otherwise
//!               claim, at the due time              SCHEDULED, RETRY, FIRING that ran out -> FIRING
//!               claim, after expires_at             SCHEDULED, RETRY, FIRING that ran out -> EXPIRED
//!               claim, after the last attempt       FIRING that ran out -> DEAD
//!               extend                              FIRING of that claim -> FIRING until another time, a new claim
//!               deliver, fail, release              FIRING of that claim -> DONE, RETRY or DEAD, RETRY or SCHEDULED
//!               wake                                RETRY -> RETRY, next attempt at another time
//!               replay                              DEAD -> SCHEDULED
//! ```

use crate::wheel::{Millis, DUE_MAX};

/// A message's permanent id, chosen by the front: the same id is the same message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u64);

/// One life of a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

/// Counts the changes of a message, from 1.
pub type Version = u32;

/// `expires_at` of a message that never expires.
pub const NEVER: Millis = Millis::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for `due_at`.
    Scheduled,
    /// A worker may call back until the given time; then the claim has run out and another may take it.
    Firing { worker: Incarnation, until: Millis },
    /// An attempt failed; the next is due at `next`.
    Retry { next: Millis },
    /// A callback succeeded.
    Done,
    /// All attempts failed: a dead letter.
    Dead,
    /// Cancelled before it fired.
    Cancelled,
    /// Its `expires_at` came before a worker could fire it.
    Expired,
}

impl State {
    /// Whether only a replay or a drop can change it.
    pub fn is_terminal(self) -> bool {
        matches!(self, State::Done | State::Dead | State::Cancelled | State::Expired)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: MessageId,
    pub version: Version,
    /// Absolute. Set when the message is accepted; only a reschedule changes it.
    pub due_at: Millis,
    /// It does not fire after this time; [`NEVER`] for most.
    pub expires_at: Millis,
    /// Claims so far, without released ones.
    pub attempts: u16,
    pub state: State,
}

/// A new due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    At(Millis),
    /// At this time; refused if that is sooner than the present time.
    Later(Millis),
    /// At this time; refused if that is later than the present time.
    Sooner(Millis),
    /// Later by this many milliseconds; sooner if negative.
    By(i64),
}

/// A change that is asked for. `claim` is the version that [`Step::Claimed`] or the last [`Step::Extended`] gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Cancel,
    Reschedule(Due),
    /// Takes the right to call back until `until`. A message whose claim ran out after `attempts_max` attempts
    /// becomes a dead letter instead: it may be what stopped its workers.
    Claim {
        worker: Incarnation,
        until: Millis,
        attempts_max: u16,
    },
    /// The callback succeeded.
    Deliver {
        claim: Version,
    },
    /// The callback failed: another attempt at `next`, or none.
    Fail {
        claim: Version,
        next: Option<Millis>,
    },
    /// The callback was not made because the target is held back; not an attempt. Due again at `next`.
    Release {
        claim: Version,
        next: Millis,
    },
    /// The callback takes longer: the claim holds until `until`. Not an attempt.
    Extend {
        claim: Version,
        until: Millis,
    },
    /// A message that waits for its next attempt has it at `at`. Its due time stays.
    Wake {
        at: Millis,
    },
    /// A dead letter is scheduled again, with all its attempts.
    Replay {
        due_at: Millis,
    },
    /// A dead letter is given up: it is cancelled, and is forgotten with the letters of its day.
    Drop,
}

/// A change that took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Cancelled,
    Rescheduled,
    /// The version identifies the claim; the message's `attempts` includes this one.
    Claimed {
        claim: Version,
    },
    Expired,
    Buried,
    Delivered,
    Retrying,
    Released,
    /// The version is the claim's from now on.
    Extended {
        claim: Version,
    },
    Woken,
    Replayed,
    Dropped,
    /// It was cancelled before: nothing changed, the reply is the same.
    CancelledBefore,
}

/// Why a change was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No such message now. It may still come, or was forgotten after its end.
    Unknown,
    /// Already fired: a callback is in progress, or succeeded, or all attempts failed.
    Fired,
    Withdrawn,
    Expired,
    /// Not due before `at`.
    Early {
        at: Millis,
    },
    /// Another claim is live until `until`.
    Held {
        until: Millis,
    },
    /// The claim is no longer the live one.
    ClaimLost,
    /// The message has another version than expected.
    Version {
        current: Version,
    },
    /// It is due, or retried, at `at`, which is later than the requested later time.
    NotLater {
        at: Millis,
    },
    /// It is due, or retried, at `at`, which is sooner than the requested sooner time.
    NotSooner {
        at: Millis,
    },
    /// Only a dead letter can be replayed or dropped.
    NotDead,
    /// A time outside 0 .. [`DUE_MAX`], or a claim that ends before it begins.
    BadTime,
}

impl Message {
    /// A newly accepted message.
    pub fn new(id: MessageId, due_at: Millis, expires_at: Millis) -> Self {
        Message {
            id,
            version: 1,
            due_at,
            expires_at,
            attempts: 0,
            state: State::Scheduled,
        }
    }

    /// When it needs attention: due, next attempt, or the end of a claim. `None` once it has ended.
    pub fn wake_at(&self) -> Option<Millis> {
        match self.state {
            State::Scheduled => Some(self.due_at),
            State::Retry { next } => Some(next),
            State::Firing { until, .. } => Some(until),
            State::Done | State::Dead | State::Cancelled | State::Expired => None,
        }
    }

    /// Makes `change`, if the state allows it and the version is `expected` (`None`: any version).
    pub fn apply(&mut self, now: Millis, change: Change, expected: Option<Version>) -> Result<Step, Refusal> {
        if expected.is_some_and(|version| version != self.version) {
            return Err(Refusal::Version { current: self.version });
        }
        match change {
            Change::Cancel => match self.state {
                State::Cancelled => Ok(Step::CancelledBefore),
                _ => self.untouched().map(|()| self.set(State::Cancelled, Step::Cancelled)),
            },
            Change::Reschedule(due) => {
                self.untouched()?;
                // A message in retry moves from its next attempt.
                let due_at = due.from(self.wake_at().expect("a message that has not ended has a wake time"))?;
                self.due_at = due_at;
                let state = match self.state {
                    State::Retry { .. } => State::Retry { next: due_at },
                    state => state,
                };
                Ok(self.set(state, Step::Rescheduled))
            }
            Change::Claim {
                worker,
                until,
                attempts_max,
            } => self.claim(now, worker, until, attempts_max),
            Change::Deliver { claim } => {
                self.held_by(claim)?;
                Ok(self.set(State::Done, Step::Delivered))
            }
            Change::Fail { claim, next } => {
                self.held_by(claim)?;
                match next {
                    None => Ok(self.set(State::Dead, Step::Buried)),
                    Some(next) if next >= DUE_MAX => Err(Refusal::BadTime),
                    Some(next) => Ok(self.set(State::Retry { next }, Step::Retrying)),
                }
            }
            Change::Release { claim, next } => {
                self.held_by(claim)?;
                if next >= DUE_MAX {
                    return Err(Refusal::BadTime);
                }
                self.attempts -= 1;
                Ok(self.set(State::Retry { next }, Step::Released))
            }
            Change::Extend { claim, until } => {
                let worker = self.held_by(claim)?;
                if until <= now || until >= DUE_MAX {
                    return Err(Refusal::BadTime);
                }
                let step = Step::Extended {
                    claim: self.version.wrapping_add(1),
                };
                Ok(self.set(State::Firing { worker, until }, step))
            }
            Change::Wake { at } => {
                self.untouched()?;
                match self.state {
                    // Its due time comes by itself.
                    State::Scheduled => Err(Refusal::Early { at: self.due_at }),
                    _ if at >= DUE_MAX => Err(Refusal::BadTime),
                    _ => Ok(self.set(State::Retry { next: at }, Step::Woken)),
                }
            }
            Change::Replay { due_at } => match self.state {
                State::Dead if due_at >= DUE_MAX => Err(Refusal::BadTime),
                State::Dead => {
                    self.due_at = due_at;
                    self.expires_at = NEVER;
                    self.attempts = 0;
                    Ok(self.set(State::Scheduled, Step::Replayed))
                }
                _ => Err(Refusal::NotDead),
            },
            Change::Drop => match self.state {
                State::Dead => Ok(self.set(State::Cancelled, Step::Dropped)),
                _ => Err(Refusal::NotDead),
            },
        }
    }

    fn claim(&mut self, now: Millis, worker: Incarnation, until: Millis, attempts_max: u16) -> Result<Step, Refusal> {
        match self.state {
            State::Firing { until, .. } if now < until => return Err(Refusal::Held { until }),
            State::Firing { .. } if self.attempts >= attempts_max => return Ok(self.set(State::Dead, Step::Buried)),
            State::Firing { .. } => {}
            _ => {
                self.untouched()?;
                let at = self.wake_at().expect("a message that has not ended has a wake time");
                if now < at {
                    return Err(Refusal::Early { at });
                }
            }
        }
        if now >= self.expires_at {
            return Ok(self.set(State::Expired, Step::Expired));
        }
        if until <= now || until >= DUE_MAX {
            return Err(Refusal::BadTime);
        }
        self.attempts = self.attempts.saturating_add(1);
        let step = Step::Claimed {
            claim: self.version.wrapping_add(1),
        };
        Ok(self.set(State::Firing { worker, until }, step))
    }

    /// Whether it still waits for an attempt.
    fn untouched(&self) -> Result<(), Refusal> {
        match self.state {
            State::Scheduled | State::Retry { .. } => Ok(()),
            State::Firing { .. } | State::Done | State::Dead => Err(Refusal::Fired),
            State::Cancelled => Err(Refusal::Withdrawn),
            State::Expired => Err(Refusal::Expired),
        }
    }

    /// A claim holds until another takes it, even past its end: what its worker saw is then still the last word.
    fn held_by(&self, claim: Version) -> Result<Incarnation, Refusal> {
        match self.state {
            State::Firing { worker, .. } if self.version == claim => Ok(worker),
            _ => Err(Refusal::ClaimLost),
        }
    }

    fn set(&mut self, state: State, step: Step) -> Step {
        self.state = state;
        self.version = self.version.wrapping_add(1);
        step
    }
}

impl Due {
    /// The new time of a message that is due, or retried, at `at`.
    fn from(self, at: Millis) -> Result<Millis, Refusal> {
        let due_at = match self {
            Due::At(due_at) | Due::Later(due_at) | Due::Sooner(due_at) => due_at,
            Due::By(by) => at.saturating_add_signed(by),
        };
        match self {
            _ if due_at >= DUE_MAX => Err(Refusal::BadTime),
            Due::Later(_) if due_at < at => Err(Refusal::NotLater { at }),
            Due::Sooner(_) if due_at > at => Err(Refusal::NotSooner { at }),
            _ => Ok(due_at),
        }
    }
}

/// How a time requested ahead of a message relates to the message's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// It replaces the message's time.
    #[default]
    Exact,
    /// It replaces an earlier time.
    Later,
    /// It replaces a later time.
    Sooner,
}

/// Requests about a message that has not come yet: they apply when the message comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    pub cancelled: bool,
    pub at: Option<Millis>,
    /// The relation of `at` to the message's time.
    pub bound: Bound,
    /// Milliseconds added to `at`, or to the message's own due time.
    pub by: i64,
}

impl Ahead {
    /// Adds a request. Only cancel and reschedule are valid before the message.
    pub fn ask(&mut self, change: Change) -> Result<(), Refusal> {
        match change {
            Change::Cancel => self.cancelled = true,
            Change::Reschedule(Due::By(by)) => self.by = self.by.saturating_add(by),
            Change::Reschedule(Due::At(at) | Due::Later(at) | Due::Sooner(at)) if at >= DUE_MAX => {
                return Err(Refusal::BadTime)
            }
            Change::Reschedule(Due::At(at)) => self.set(at),
            Change::Reschedule(Due::Later(at)) => self.move_to(at, Bound::Later)?,
            Change::Reschedule(Due::Sooner(at)) => self.move_to(at, Bound::Sooner)?,
            _ => return Err(Refusal::Unknown),
        }
        Ok(())
    }

    fn set(&mut self, at: Millis) {
        (self.at, self.bound, self.by) = (Some(at), Bound::Exact, 0);
    }

    /// Requests a later time, or a sooner one, for a message whose own is unknown.
    ///
    /// An earlier move bounds the due time at `place`: not before it, or not after it. A time beyond that bound
    /// becomes the message's, whatever its own is. A time within the bound is refused unless it is certainly what was
    /// requested.
    fn move_to(&mut self, at: Millis, bound: Bound) -> Result<(), Refusal> {
        let goes_on = |place: Millis| match bound {
            Bound::Later => at >= place,
            _ => at <= place,
        };
        let refusal = |at: Millis| match bound {
            Bound::Later => Refusal::NotLater { at },
            _ => Refusal::NotSooner { at },
        };
        let place = self.at.map(|place| place.saturating_add_signed(self.by));
        match place {
            Some(place) if !goes_on(place) => Err(refusal(place)),
            // Bounded from the other side, or known exactly.
            Some(_) if self.bound != bound => {
                self.set(at);
                Ok(())
            }
            // The move by `self.by` comes after the bound, so it is subtracted here.
            _ => match at.checked_add_signed(self.by.saturating_neg()) {
                Some(at) => {
                    (self.at, self.bound) = (Some(at), bound);
                    Ok(())
                }
                None if bound == Bound::Later => Ok(()),
                None => {
                    self.set(at);
                    Ok(())
                }
            },
        }
    }

    /// Applies the earlier requests to the message.
    pub fn meet(&self, message: &mut Message) {
        let at = match (self.at, self.bound) {
            (None, _) => message.due_at,
            (Some(at), Bound::Exact) => at,
            (Some(at), Bound::Later) => at.max(message.due_at),
            (Some(at), Bound::Sooner) => at.min(message.due_at),
        };
        let due_at = at.saturating_add_signed(self.by).min(DUE_MAX - 1);
        if due_at != message.due_at {
            message.due_at = due_at;
            message.version += 1;
        }
        if self.cancelled {
            message.state = State::Cancelled;
            message.version += 1;
        }
    }
}
