//! A message as the list of all accepted changes. Every result is derived from the list.

use muster_messages::schedule::{Change, Due, Incarnation, Message, Refusal, Step, Version};
use muster_messages::wheel::{Millis, DUE_MAX};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fact {
    Due(Millis),
    Woken(Millis),
    Claimed {
        worker: Incarnation,
        until: Millis,
    },
    /// The claim before it, until another time.
    Extended {
        until: Millis,
    },
    Failed {
        next: Millis,
    },
    Released {
        next: Millis,
    },
    Replayed(Millis),
    Delivered,
    Dead,
    Cancelled,
    Expired,
}

pub struct History {
    pub accepted: Message,
    pub facts: Vec<Fact>,
}

impl History {
    pub fn version(&self) -> Version {
        1 + self.facts.len() as Version
    }

    /// The facts since the last replay.
    fn life(&self) -> &[Fact] {
        let replay = self.facts.iter().rposition(|fact| matches!(fact, Fact::Replayed(_)));
        &self.facts[replay.unwrap_or(0)..]
    }

    pub fn due_at(&self) -> Millis {
        let mut dues = self.facts.iter().filter_map(|fact| match fact {
            Fact::Due(at) | Fact::Replayed(at) => Some(*at),
            _ => None,
        });
        dues.next_back().unwrap_or(self.accepted.due_at)
    }

    pub fn attempts(&self) -> usize {
        let claims = self
            .life()
            .iter()
            .filter(|fact| matches!(fact, Fact::Claimed { .. }))
            .count();
        claims
            - self
                .life()
                .iter()
                .filter(|fact| matches!(fact, Fact::Released { .. }))
                .count()
    }

    pub fn end(&self) -> Option<Fact> {
        let last = *self.facts.last()?;
        matches!(last, Fact::Delivered | Fact::Dead | Fact::Cancelled | Fact::Expired).then_some(last)
    }

    fn claim(&self) -> Option<Millis> {
        match self.facts.last() {
            Some(Fact::Claimed { until, .. } | Fact::Extended { until }) => Some(*until),
            _ => None,
        }
    }

    pub fn wake_at(&self) -> Millis {
        match self.facts.last() {
            None => self.accepted.due_at,
            Some(Fact::Claimed { until: at, .. } | Fact::Extended { until: at }) => *at,
            Some(
                Fact::Due(at)
                | Fact::Woken(at)
                | Fact::Replayed(at)
                | Fact::Failed { next: at }
                | Fact::Released { next: at },
            ) => *at,
            Some(_) => unreachable!("asked for a message that has ended"),
        }
    }

    fn expires_at(&self) -> Millis {
        let replayed = self.facts.iter().any(|fact| matches!(fact, Fact::Replayed(_)));
        if replayed {
            Millis::MAX
        } else {
            self.accepted.expires_at
        }
    }

    pub fn apply(&mut self, now: Millis, change: Change, expected: Option<Version>) -> Result<Step, Refusal> {
        let current = self.version();
        if expected.is_some_and(|expected| expected != current) {
            return Err(Refusal::Version { current });
        }
        let mine = |claim: Version| self.claim().is_some() && claim == current;
        let waits = match (self.end(), self.claim()) {
            (Some(Fact::Cancelled), _) => Err(Refusal::Withdrawn),
            (Some(Fact::Expired), _) => Err(Refusal::Expired),
            (Some(_), _) | (None, Some(_)) => Err(Refusal::Fired),
            (None, None) => Ok(()),
        };
        let good = |at: Millis| if at < DUE_MAX { Ok(at) } else { Err(Refusal::BadTime) };
        let (fact, step) = match change {
            Change::Cancel if self.end() == Some(Fact::Cancelled) => return Ok(Step::CancelledBefore),
            Change::Cancel => waits.map(|()| (Fact::Cancelled, Step::Cancelled))?,
            Change::Reschedule(due) => {
                waits?;
                let was = self.wake_at();
                let at = match due {
                    Due::At(at) | Due::Later(at) | Due::Sooner(at) => at,
                    Due::By(by) => was.saturating_add_signed(by),
                };
                let at = good(at)?;
                match due {
                    Due::Later(at) if at < was => return Err(Refusal::NotLater { at: was }),
                    Due::Sooner(at) if at > was => return Err(Refusal::NotSooner { at: was }),
                    _ => (Fact::Due(at), Step::Rescheduled),
                }
            }
            Change::Claim {
                worker,
                until,
                attempts_max,
            } => {
                if self.end().is_some() {
                    waits?;
                }
                if let Some(until) = self.claim() {
                    if now < until {
                        return Err(Refusal::Held { until });
                    }
                }
                if now < self.wake_at() {
                    return Err(Refusal::Early { at: self.wake_at() });
                }
                if self.claim().is_some() && self.attempts() >= attempts_max as usize {
                    (Fact::Dead, Step::Buried)
                } else if now >= self.expires_at() {
                    (Fact::Expired, Step::Expired)
                } else if until <= now || until >= DUE_MAX {
                    return Err(Refusal::BadTime);
                } else {
                    (Fact::Claimed { worker, until }, Step::Claimed { claim: current + 1 })
                }
            }
            Change::Deliver { claim } if mine(claim) => (Fact::Delivered, Step::Delivered),
            Change::Fail { claim, next: None } if mine(claim) => (Fact::Dead, Step::Buried),
            Change::Fail {
                claim,
                next: Some(next),
            } if mine(claim) => (Fact::Failed { next: good(next)? }, Step::Retrying),
            Change::Release { claim, next } if mine(claim) => (Fact::Released { next: good(next)? }, Step::Released),
            Change::Extend { claim, until } if mine(claim) => match until > now && until < DUE_MAX {
                true => (Fact::Extended { until }, Step::Extended { claim: current + 1 }),
                false => return Err(Refusal::BadTime),
            },
            Change::Deliver { .. } | Change::Fail { .. } | Change::Release { .. } | Change::Extend { .. } => {
                return Err(Refusal::ClaimLost)
            }
            Change::Wake { at } => {
                waits?;
                match self
                    .facts
                    .iter()
                    .rev()
                    .find(|fact| !matches!(fact, Fact::Due(_) | Fact::Woken(_)))
                {
                    None | Some(Fact::Replayed(_)) => return Err(Refusal::Early { at: self.due_at() }),
                    Some(_) => (Fact::Woken(good(at)?), Step::Woken),
                }
            }
            Change::Replay { due_at } if self.end() == Some(Fact::Dead) => {
                (Fact::Replayed(good(due_at)?), Step::Replayed)
            }
            Change::Drop if self.end() == Some(Fact::Dead) => (Fact::Cancelled, Step::Dropped),
            Change::Replay { .. } | Change::Drop => return Err(Refusal::NotDead),
        };
        self.facts.push(fact);
        Ok(step)
    }
}
