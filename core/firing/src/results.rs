//! Results, in the order in which they occurred, until the center has them.

use std::borrow::Cow;
use std::collections::VecDeque;

use muster_messages::schedule::Version;
use muster_messages::wheel::Millis;
use muster_messages::wire::{outcomes, Frame, Malformed, Outcome, Verb};

/// A result that is kept until confirmed: see [`Outcome`].
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub number: u64,
    pub topic: u32,
    pub claim: Version,
    pub verb: Verb,
    pub next: Option<Millis>,
    pub lateness_ms: i64,
    pub took_ms: f64,
    pub outcome: Cow<'static, str>,
    pub status: Option<u16>,
    pub answer: Vec<u8>,
}

impl Record {
    /// A result without figures, of a fire that succeeded.
    pub fn of(number: u64, topic: u32, claim: Version) -> Record {
        Record {
            number,
            topic,
            claim,
            verb: Verb::Deliver,
            next: None,
            lateness_ms: -1,
            took_ms: 0.0,
            outcome: "".into(),
            status: None,
            answer: Vec::new(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Results {
    waiting: VecDeque<Record>,
}

impl Results {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn push(&mut self, record: Record) {
        self.waiting.push_back(record);
    }

    pub fn extend(&mut self, array: &[u8]) -> Result<(), Malformed> {
        self.waiting.extend(outcomes(array)?.into_iter().map(|outcome| Record {
            verb: outcome.verb,
            next: outcome.next,
            lateness_ms: outcome.lateness_ms,
            took_ms: outcome.took_ms,
            outcome: outcome.outcome.to_owned().into(),
            status: outcome.status,
            answer: outcome.answer.to_vec(),
            ..Record::of(outcome.number, outcome.topic, outcome.claim)
        }));
        Ok(())
    }

    pub fn piece(&self, max: usize) -> Vec<u8> {
        let mut frame = Frame::default();
        for record in self.waiting.iter().take(max) {
            frame.push_outcome(&Outcome {
                number: record.number,
                topic: record.topic,
                claim: record.claim,
                verb: record.verb,
                next: record.next,
                lateness_ms: record.lateness_ms,
                took_ms: record.took_ms,
                outcome: &record.outcome,
                status: record.status,
                answer: &record.answer,
            });
        }
        frame.finish()
    }

    pub fn told(&mut self, taken: &[u8]) {
        let told = taken.len().min(self.waiting.len());
        let kept: Vec<Record> = self
            .waiting
            .drain(..told)
            .zip(taken)
            .filter_map(|(record, taken)| (*taken == 0).then_some(record))
            .collect();
        for record in kept.into_iter().rev() {
            self.waiting.push_front(record);
        }
    }
}
