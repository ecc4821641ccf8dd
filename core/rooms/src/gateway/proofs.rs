//! What the owners of a room's streams have numbered, where members show more than this gateway knows of.
//!
//! Owns the brokers' answers, and the members that came in while none could be had. Knows no ring and no link.

use muster_transport::Micros;

use crate::wire::StreamId;

/// Offsets of members of a room that no broker could be asked for, 40 bytes each: as many as come within a second when a gateway
/// dies. Further ones count as denied.
const UNPROVEN_MAX: usize = 65_536;

/// A broker's answer to a question: the first offset that it had not numbered then, in its present stream; generation 0: it has
/// none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbered {
    pub node: u32,
    pub epoch: u32,
    pub generation: u32,
    pub next: u64,
    pub question: u64,
}

/// A member with an offset that is not known here, and whose owner could not be asked.
struct Unproven {
    session: u64,
    stream: StreamId,
    offset: u64,
    asked_before: u64,
}

/// The proofs of one room.
#[derive(Default)]
pub struct Proofs {
    /// The newest answer of each broker.
    answers: Vec<Numbered>,
    unproven: Vec<Unproven>,
    /// When brokers are asked again about unproven members, and until when.
    pub asks: Option<(Micros, Micros)>,
}

impl Proofs {
    /// Takes an answer. `false`: it was overtaken.
    pub fn note(&mut self, answer: Numbered) -> bool {
        match self.answers.iter_mut().find(|known| known.node == answer.node) {
            Some(known) if known.question > answer.question => return false,
            Some(known) => *known = answer,
            None => self.answers.push(answer),
        }
        true
    }

    /// Whether a stream's broker has numbered an offset. `None`: its last answer does not say, for it came to a question up to
    /// `asked_before`, since which more may have been numbered, or is about a later stream.
    pub fn has_numbered(&self, stream: StreamId, offset: u64, asked_before: u64) -> Option<bool> {
        let theirs = |known: &&Numbered| (known.node, known.epoch) == (stream.node, stream.epoch);
        let answer = self.answers.iter().find(theirs);
        if answer.is_some_and(|answer| answer.generation == stream.generation && offset < answer.next) {
            return Some(true);
        }
        let denies = |answer: &Numbered| answer.question > asked_before && answer.generation <= stream.generation;
        answer.is_some_and(denies).then_some(false)
    }

    /// Whether no further unproven offset finds place.
    pub fn is_full(&self) -> bool {
        self.unproven.len() >= UNPROVEN_MAX
    }

    /// A member has come in with an offset that no broker could be asked for.
    pub fn add(&mut self, session: u64, (stream, offset): (StreamId, u64), asked_before: u64) {
        self.unproven.push(Unproven {
            session,
            stream,
            offset,
            asked_before,
        });
    }

    /// The streams of unproven offsets.
    pub fn unproven(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.unproven.iter().map(|member| member.stream)
    }

    /// The sessions with offsets that their brokers never numbered. Forgets them, and those that are not ahead any more. `ended`:
    /// no answer is waited for any more from the broker of a stream.
    pub fn take_denied(
        &mut self,
        is_ahead: impl Fn(StreamId, u64) -> bool,
        ended: impl Fn(StreamId) -> bool,
    ) -> Vec<u64> {
        let mut denied = Vec::new();
        for member in std::mem::take(&mut self.unproven) {
            if !is_ahead(member.stream, member.offset) {
                continue;
            }
            match self.has_numbered(member.stream, member.offset, member.asked_before) {
                Some(true) => {}
                Some(false) => denied.push(member.session),
                None if ended(member.stream) => denied.push(member.session),
                None => self.unproven.push(member),
            }
        }
        denied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(generation: u32) -> StreamId {
        StreamId {
            node: 5,
            epoch: 3,
            generation,
        }
    }

    fn answer(question: u64, generation: u32, next: u64) -> Numbered {
        Numbered {
            node: 5,
            epoch: 3,
            generation,
            next,
            question,
        }
    }

    #[test]
    fn an_answer_proves_what_was_numbered_for_ever_and_denies_the_rest_for_who_came_before_the_question() {
        let mut proofs = Proofs::default();
        assert_eq!(proofs.has_numbered(stream(2), 10, 0), None);
        assert!(proofs.note(answer(7, 2, 11)));
        assert_eq!(
            [6, 7].map(|before| proofs.has_numbered(stream(2), 10, before)),
            [Some(true); 2]
        );
        assert_eq!(
            [6, 7].map(|before| proofs.has_numbered(stream(2), 11, before)),
            [Some(false), None]
        );
        assert_eq!(proofs.has_numbered(stream(3), 1, 6), Some(false), "a later stream");
        assert_eq!(proofs.has_numbered(stream(1), 1, 6), None, "an earlier one is over");
        let other_life = StreamId { epoch: 4, ..stream(2) };
        assert_eq!(proofs.has_numbered(other_life, 10, 6), None);
        assert!(!proofs.note(answer(6, 2, 5)), "overtaken");
        assert!(proofs.note(answer(8, 0, 0)));
        assert_eq!(
            proofs.has_numbered(stream(2), 10, 7),
            Some(false),
            "it has nothing of the room"
        );
    }

    #[test]
    fn a_session_is_denied_once_and_forgotten_when_its_offset_is_proven_or_known() {
        let mut proofs = Proofs::default();
        for (session, offset) in [(1, 10), (2, 20), (3, 30)] {
            proofs.add(session, (stream(2), offset), 7);
        }
        assert!(proofs.take_denied(|_, offset| offset > 10, |_| false).is_empty());
        assert_eq!(proofs.unproven().count(), 2, "one is known here by now");
        proofs.note(answer(8, 2, 21));
        assert_eq!(proofs.take_denied(|_, _| true, |_| false), [3]);
        assert_eq!(proofs.unproven().count(), 0);
        proofs.add(4, (stream(2), 40), 8);
        assert_eq!(proofs.take_denied(|_, _| true, |_| true), [4], "no answer comes");
    }
}
