//! Members that come back: what they wait for, and what owners must be asked.

use super::super::proofs::{Numbered, Proofs};
use super::Room;
use crate::filter::Filter;
use crate::wire::publish::{Course, Position, Positions};
use crate::wire::StreamId;
use muster_transport::Micros;

/// A request for an owner.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    pub stream: StreamId,
    pub history: bool,
    pub ranges: Vec<(u64, u64)>,
}

/// The way to a broker's life from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// It has a link.
    Linked,
    /// It may have one soon.
    MaySpeak,
    Gone,
}

/// A member that returns.
#[derive(Clone, Copy)]
pub struct Returning<'a> {
    pub positions: &'a Positions,
    /// The number of the last question before it asked to join: answers to later ones say what its owners had numbered.
    pub asked_before: u64,
    /// History that is not here now is lost to it.
    pub last_try: bool,
    /// It has waited long enough for all else as well.
    pub overdue: bool,
    /// It drops messages at offsets that it shows, so it may begin before them.
    pub drops_covered: bool,
}

/// A join that waits for its room to be ready, or for history.
pub struct Waiting {
    pub session: u64,
    /// Which messages it wants; all, without one.
    pub filter: Option<Box<Filter>>,
    pub request: u32,
    /// It wants to know what there is, and no place in the room.
    pub peek: bool,
    pub positions: Positions,
    /// Messages that are to come first.
    pub history: u32,
    pub since: Micros,
    /// The number of the last question that brokers were asked before.
    pub asked_before: u64,
    /// Since when the room was ready and the join still waited.
    pub tried: Option<Micros>,
    /// The condition that it lacked at the last look.
    pub lacks: Option<Lack>,
}

/// The condition that a join waits for once its room is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// History of a stream, by number, from this offset on; or as much of it as comes.
    History(usize, u64),
    /// A report of a further stream; the number of reports at the last look.
    Said(u32),
    /// A stream, by number, up to this offset: its broker is asked whether it has numbered that. Or a further report, as before.
    Proof(usize, u64, u32),
}

impl Waiting {
    /// Whether it was a member before, and says up to where.
    pub fn returns(&self) -> bool {
        !self.positions.0.is_empty()
    }

    /// Whether it is owed messages from before its join.
    pub fn wants_past(&self) -> bool {
        self.returns() || self.history > 0
    }
}

impl Room {
    /// A broker that knows the room's interest has reported its state of the room.
    pub fn note_heard(&mut self, node: u32, epoch: u32) {
        if !self.has_heard(node, epoch) {
            self.heard.retain(|(known, _)| *known != node);
            self.heard.push((node, epoch));
        }
    }

    pub fn has_heard(&self, node: u32, epoch: u32) -> bool {
        self.heard.contains(&(node, epoch))
    }

    /// Whether a member waits that came back with positions by `at`, with a session that is `open`.
    pub fn awaits_return(&self, at: Micros, open: impl Fn(u64) -> bool) -> bool {
        let by_then = self.waiting.iter().take_while(|waiting| waiting.since <= at);
        by_then
            .filter(|waiting| waiting.returns() && !waiting.peek)
            .any(|waiting| open(waiting.session))
    }

    /// Whether a waiting member wants earlier messages.
    pub fn has_past_wanted(&self) -> bool {
        self.waiting.iter().any(Waiting::wants_past)
    }

    /// A stream was reported: members that wait for a report must be examined.
    pub fn note_said(&mut self) {
        self.lacks.note_said();
    }

    /// Whether the condition of a join is met, or is not awaited any more.
    pub fn has_come(&self, lack: Lack) -> bool {
        let known = self.lacks.said();
        match lack {
            Lack::Said(said) => said != known,
            Lack::Proof(at, offset, said) => {
                let source = self.sources.get(at);
                said != known || source.is_none_or(|source| source.over || source.next > offset)
            }
            Lack::History(at, wanted) => {
                let source = self.sources.get(at);
                source.is_none_or(|source| source.backfill.is_none() || source.away || source.low <= wanted)
            }
        }
    }

    /// Whether an awaited condition has come since all members were examined.
    pub fn has_what_is_lacked(&self) -> bool {
        self.lacks.any(|lack| self.has_come(lack))
    }

    /// These members wait on: all that do, or some more.
    pub fn keep_waiting(&mut self, mut still: Vec<Waiting>, all: bool) {
        if all {
            self.lacks.begin();
        }
        self.lacks.note(&still);
        self.waiting.append(&mut still);
        if self.waiting.is_empty() && self.unproven().next().is_none() {
            self.proofs = None;
        }
    }

    /// Takes a broker's answer to a question. `false`: nobody waits for one.
    pub fn note_numbered(&mut self, answer: Numbered) -> bool {
        let asked = !self.waiting.is_empty() || self.unproven().next().is_some();
        asked && self.proofs.get_or_insert_default().note(answer)
    }

    /// Whether a position's owner has numbered it, as of an answer to a question after `asked_before`, if that is known.
    pub(super) fn has_numbered(&self, had: &Position, asked_before: u64) -> Option<bool> {
        match self.proofs.as_deref() {
            Some(proofs) => proofs.has_numbered(had.stream, had.offset, asked_before),
            None => Proofs::default().has_numbered(had.stream, had.offset, asked_before),
        }
    }

    /// The brokers that a member's positions must be asked from: those of streams that this room does not know, and of streams of
    /// which it does not know so much.
    pub fn to_ask<'a>(&'a self, positions: &'a Positions) -> impl Iterator<Item = StreamId> + 'a {
        let ahead = |had: &&Position| match self.find(had.stream) {
            Some(at) => self.sources[at].is_ahead(had.offset),
            None => had.course == Course::GoesOn,
        };
        positions.0.iter().filter(ahead).map(|had| had.stream)
    }

    /// Notes offsets of a member that comes in, which no broker could be asked for. Tells whether there are any.
    pub fn note_unproven(&mut self, session: u64, returning: &Returning<'_>) -> bool {
        let asked_before = returning.asked_before;
        let mut any = false;
        for had in &returning.positions.0 {
            let ahead = self
                .find(had.stream)
                .is_some_and(|at| self.sources[at].is_ahead(had.offset));
            if ahead && self.has_numbered(had, asked_before).is_none() {
                let proofs = self.proofs.get_or_insert_default();
                proofs.add(session, (had.stream, had.offset), asked_before);
                any = true;
            }
        }
        any
    }

    /// The streams of which members have offsets that no broker could be asked for.
    pub fn unproven(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.proofs.iter().flat_map(|proofs| proofs.unproven())
    }

    /// Members whose offsets their brokers never numbered, by session. `ended`: no answer is waited for any more from the broker of
    /// a stream.
    pub fn take_denied(&mut self, ended: impl Fn(StreamId) -> bool) -> Vec<u64> {
        let Some(mut proofs) = self.proofs.take() else {
            return Vec::new();
        };
        let is_ahead = |stream, offset| self.find(stream).is_some_and(|at| self.sources[at].is_ahead(offset));
        let denied = proofs.take_denied(is_ahead, ended);
        self.proofs = Some(proofs);
        denied
    }
}
