//! The claims of one worker, and the outcome of its results.
//!
//! Owns: claims by message, their count by topic, sums of results by topic. Must not know: credits, the store, how
//! the schedule answers results except for [`Said`].

use std::collections::HashMap;

use crate::schedule::Version;
use crate::wheel::Millis;
use crate::wire::{Fire, Outcome, Verb};

/// The schedule's reply to a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Delivered,
    Retrying,
    Buried,
    Released,
    /// The claim is not the live one, or the message is unknown.
    Refused,
    /// The disk is full, or the store is still reading its index: nothing changed; send it again.
    NotNow,
}

impl Said {
    /// One byte, for programs.
    pub fn byte(self) -> u8 {
        match self {
            Said::Delivered => b'd',
            Said::Retrying => b'r',
            Said::Buried => b'b',
            Said::Released => b'l',
            Said::Refused => b'x',
            Said::NotNow => b'n',
        }
    }

    pub fn of(byte: u8) -> Option<Said> {
        Some(match byte {
            b'd' => Said::Delivered,
            b'r' => Said::Retrying,
            b'b' => Said::Buried,
            b'l' => Said::Released,
            b'x' => Said::Refused,
            b'n' => Said::NotNow,
            _ => return None,
        })
    }
}

/// New fires of one topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    pub topic: u32,
    pub count: usize,
    /// First attempts later than the overdue limit.
    pub overdue: usize,
}

/// Sums of results of one topic.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sum {
    pub topic: u32,
    pub attempts: u64,
    pub took_ms: f64,
    pub fired: u64,
    pub retries: u64,
    pub dead: u64,
    /// First attempts by lateness; one bucket more than there are bounds.
    pub late: Vec<u64>,
    /// A claim ended, so credits are free.
    pub freed: bool,
}

struct Claim {
    topic: u32,
    claim: Version,
    until: Millis,
}

/// The claims of one worker's life.
#[derive(Default)]
pub struct Ledger {
    claims: HashMap<u64, Claim>,
    held: HashMap<u32, usize>,
}

impl Ledger {
    pub fn len(&self) -> usize {
        self.claims.len()
    }

    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// How many messages of a topic the worker holds.
    pub fn held(&self, topic: u32) -> usize {
        self.held.get(&topic).copied().unwrap_or(0)
    }

    /// Adds these claims.
    pub fn begin(&mut self, fires: &[Fire<'_>], now: Millis, overdue_ms: Millis) -> Vec<Begun> {
        let mut begun: Vec<Begun> = Vec::new();
        for fire in fires {
            let topic = fire.topic;
            let place = begun.iter().position(|each| each.topic == topic).unwrap_or_else(|| {
                begun.push(Begun {
                    topic,
                    ..Begun::default()
                });
                begun.len() - 1
            });
            begun[place].count += 1;
            begun[place].overdue += usize::from(fire.attempts <= 1 && fire.due_at + overdue_ms <= now);
            let claim = Claim {
                topic,
                claim: fire.claim,
                until: fire.until,
            };
            if self.claims.insert(fire.number, claim).is_none() {
                *self.held.entry(topic).or_default() += 1;
            }
        }
        begun
    }

    /// Takes the schedule's replies to results. A message that its target does not accept now keeps its slot until
    /// `grace_ms` before it is due again: so a target that is down, even with very many messages, costs no more than
    /// the slots of this worker each time.
    pub fn settle(
        &mut self,
        outcomes: &[Outcome<'_>],
        said: &[Said],
        now: Millis,
        grace_ms: Millis,
        bounds_ms: &[i64],
    ) -> Vec<Sum> {
        let mut sums: Vec<Sum> = Vec::new();
        for (outcome, said) in outcomes.iter().zip(said) {
            if *said == Said::NotNow {
                continue;
            }
            let topic = outcome.topic;
            let place = sums.iter().position(|each| each.topic == topic).unwrap_or_else(|| {
                sums.push(Sum {
                    topic,
                    late: vec![0; bounds_ms.len() + 1],
                    ..Sum::default()
                });
                sums.len() - 1
            });
            let sum = &mut sums[place];
            if outcome.verb != Verb::Release {
                sum.attempts += 1;
                sum.took_ms += outcome.took_ms;
                if outcome.lateness_ms >= 0 {
                    sum.late[bounds_ms.partition_point(|bound| *bound < outcome.lateness_ms)] += 1;
                }
            }
            sum.fired += u64::from(*said == Said::Delivered);
            sum.retries += u64::from(*said == Said::Retrying);
            sum.dead += u64::from(*said == Said::Buried);
            match outcome.next {
                Some(next) if *said == Said::Released && next > now => {
                    self.hold(outcome.number, outcome.claim, next.saturating_sub(grace_ms));
                }
                _ => {
                    self.end(outcome.number, outcome.claim);
                    sum.freed = true;
                }
            }
        }
        sums
    }

    /// Forgets claims that ran out before `now`. Returns their topics.
    pub fn sweep(&mut self, now: Millis) -> Vec<u32> {
        let mut topics = Vec::new();
        let held = &mut self.held;
        self.claims.retain(|_, claim| {
            let stays = claim.until >= now;
            if !stays {
                topics.push(claim.topic);
                *held.get_mut(&claim.topic).expect("each claim is counted") -= 1;
            }
            stays
        });
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    /// Forgets all; returns the messages and their claims.
    pub fn drain(&mut self) -> Vec<(u64, Version)> {
        self.held.clear();
        self.claims
            .drain()
            .map(|(number, claim)| (number, claim.claim))
            .collect()
    }

    fn hold(&mut self, number: u64, claim: Version, until: Millis) {
        if let Some(found) = self.claims.get_mut(&number).filter(|found| found.claim == claim) {
            found.until = until;
        }
    }

    fn end(&mut self, number: u64, claim: Version) {
        if self.claims.get(&number).is_some_and(|found| found.claim == claim) {
            let found = self.claims.remove(&number).expect("it was just seen");
            *self.held.get_mut(&found.topic).expect("each claim is counted") -= 1;
        }
    }
}
