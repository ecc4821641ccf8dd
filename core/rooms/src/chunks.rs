//! Messages larger than a datagram: split into chunks by the sender, joined by the receiver.
//!
//! Owns: [`split`], [`Assembler`], [`Budget`]. Must not know: rooms, offsets, the carrier of a chunk. Everything
//! between the two ends treats a chunk as a message of its own.
//!
//! A chunk carries no total length and no index: it follows its publisher's previous chunk. So the sequence alone
//! reveals a loss, and no length from the wire ever reserves memory: a message grows as bytes arrive.

use std::borrow::Cow;
use std::collections::BTreeMap;

use muster_transport::Micros;

use crate::limits::{ASSEMBLY_AGE_MAX, ASSEMBLY_PROCESS_BYTES_MAX, ASSEMBLY_SESSION_BYTES_MAX, MESSAGE_BYTES_MAX};

/// Flag of the first chunk of a message.
pub const FIRST: u8 = 1;
/// Flag of the last chunk of a message; a message in one chunk has both flags.
pub const LAST: u8 = 2;

/// Bytes that an unfinished message costs besides its data: its table entry, so that empty chunks are not free.
pub const ASSEMBLY_COST: usize = 96;

/// The message is longer than [`MESSAGE_BYTES_MAX`]: its author's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Splits a message into (flags, bytes) of at most `chunk_max` bytes each; an empty message is one empty chunk.
pub fn split(data: &[u8], chunk_max: usize) -> Result<Chunks<'_>, TooLong> {
    assert!(chunk_max > 0, "a chunk holds something");
    if data.len() > MESSAGE_BYTES_MAX {
        return Err(TooLong);
    }
    Ok(Chunks {
        rest: Some(data),
        first: FIRST,
        chunk_max,
    })
}

/// The chunks of one message, in order.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    rest: Option<&'a [u8]>,
    first: u8,
    chunk_max: usize,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take()?;
        let flags = std::mem::take(&mut self.first);
        if rest.len() <= self.chunk_max {
            return Some((flags | LAST, rest));
        }
        let (chunk, rest) = rest.split_at(self.chunk_max);
        self.rest = Some(rest);
        Some((flags, chunk))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.rest.map_or(0, |rest| rest.len().div_ceil(self.chunk_max).max(1));
        (len, Some(len))
    }
}

impl ExactSizeIterator for Chunks<'_> {}

/// Bytes shared by all assemblers of a process.
#[derive(Clone, Debug)]
pub struct Budget {
    used: usize,
    max: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(ASSEMBLY_PROCESS_BYTES_MAX)
    }
}

impl Budget {
    pub fn new(max: usize) -> Self {
        Budget { used: 0, max }
    }

    pub fn used(&self) -> usize {
        self.used
    }
}

/// The result of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The chunk completes this message. A message in one chunk is borrowed, not copied.
    Complete(Cow<'a, [u8]>),
    /// The chunk is kept; its message is incomplete.
    Partial,
    /// The chunk is dropped.
    Dropped(Reason),
}

/// Why a chunk was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its message began before the receiver listened, or was given up.
    NoFirst,
    /// Chunks before it are missing.
    Skipped,
    /// It belongs to a message already received.
    Repeated,
    /// The message exceeds [`MESSAGE_BYTES_MAX`].
    TooLong,
    /// Its message began more than [`ASSEMBLY_AGE_MAX`] ago.
    TooOld,
    /// This assembler is at [`ASSEMBLY_SESSION_BYTES_MAX`].
    SessionFull,
    /// The process has used up its [`Budget`].
    ProcessFull,
}

/// An unfinished message that was given up: its chunks `first_seq..first_seq + count` are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    pub first_seq: u64,
    pub count: u64,
}

/// Joins the chunks of one session: at most one unfinished message per publisher.
///
/// `K` identifies the number space of the sequences: a publisher within a room. Call [`Assembler::clear`] before
/// dropping an assembler, otherwise its bytes stay charged to the budget.
#[derive(Debug)]
pub struct Assembler<K> {
    unfinished: BTreeMap<K, Unfinished>,
    bytes: usize,
}

#[derive(Debug)]
struct Unfinished {
    first_seq: u64,
    next_seq: u64,
    started: Micros,
    data: Vec<u8>,
}

impl<K: Ord + Copy> Default for Assembler<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Copy> Assembler<K> {
    pub fn new() -> Self {
        Assembler {
            unfinished: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Takes the next chunk of a publisher; the caller has removed repeats. Returns its result, and the unfinished
    /// message that was given up because of it, if any.
    pub fn push<'a>(
        &mut self,
        now: Micros,
        publisher: K,
        seq: u64,
        flags: u8,
        data: &'a [u8],
        budget: &mut Budget,
    ) -> (Outcome<'a>, Option<Abandoned>) {
        let first = flags & FIRST != 0;
        let mut abandoned = None;
        if let Some(unfinished) = self.unfinished.get(&publisher) {
            if (unfinished.first_seq..unfinished.next_seq).contains(&seq) {
                return (Outcome::Dropped(Reason::Repeated), None);
            }
            let too_old = unfinished.is_too_old(now);
            if first || too_old || seq != unfinished.next_seq {
                abandoned = self.abandon(publisher, budget);
                if !first {
                    let reason = if too_old { Reason::TooOld } else { Reason::Skipped };
                    return (Outcome::Dropped(reason), abandoned);
                }
            }
        } else if !first {
            return (Outcome::Dropped(Reason::NoFirst), None);
        }
        if first && flags & LAST != 0 {
            return match data.len() {
                0..=MESSAGE_BYTES_MAX => (Outcome::Complete(Cow::Borrowed(data)), abandoned),
                _ => (Outcome::Dropped(Reason::TooLong), abandoned),
            };
        }
        match self.keep(now, publisher, seq, data, budget) {
            Err(reason) => {
                let given_up = self.abandon(publisher, budget);
                (Outcome::Dropped(reason), abandoned.or(given_up))
            }
            Ok(()) if flags & LAST != 0 => {
                let unfinished = self.remove(publisher, budget).expect("just kept");
                (Outcome::Complete(Cow::Owned(unfinished.data)), abandoned)
            }
            Ok(()) => (Outcome::Partial, abandoned),
        }
    }

    /// Gives up the unfinished message of a publisher, if there is one, because a gap covers its next chunk or the
    /// publisher left.
    pub fn abandon(&mut self, publisher: K, budget: &mut Budget) -> Option<Abandoned> {
        self.remove(publisher, budget).map(|unfinished| unfinished.abandoned())
    }

    /// Gives up messages that began too long ago.
    pub fn expire(&mut self, now: Micros, budget: &mut Budget, mut lost: impl FnMut(K, Abandoned)) {
        let bytes = &mut self.bytes;
        self.unfinished.retain(|publisher, unfinished| {
            let keep = !unfinished.is_too_old(now);
            if !keep {
                *bytes -= unfinished.cost();
                budget.used -= unfinished.cost();
                lost(*publisher, unfinished.abandoned());
            }
            keep
        });
    }

    /// Nothing could arrive for a while: restarts the age of unfinished messages.
    pub fn renew(&mut self, now: Micros) {
        self.unfinished
            .values_mut()
            .for_each(|unfinished| unfinished.started = now);
    }

    /// When [`Assembler::expire`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        let oldest = self.unfinished.values().map(|unfinished| unfinished.started).min()?;
        Some(oldest.saturating_add(ASSEMBLY_AGE_MAX + 1))
    }

    /// Returns all bytes to the budget.
    pub fn clear(&mut self, budget: &mut Budget) {
        budget.used -= std::mem::take(&mut self.bytes);
        self.unfinished.clear();
    }

    /// Appends a chunk that is next in order, if every bound allows it.
    fn keep(&mut self, now: Micros, publisher: K, seq: u64, data: &[u8], budget: &mut Budget) -> Result<(), Reason> {
        let (len, capacity, before) = match self.unfinished.get(&publisher) {
            Some(unfinished) => (unfinished.data.len(), unfinished.data.capacity(), unfinished.cost()),
            None => (0, 0, 0),
        };
        if len + data.len() > MESSAGE_BYTES_MAX {
            return Err(Reason::TooLong);
        }
        // Doubles like any vector, but is charged by its capacity, not by its content.
        let wanted = match len + data.len() {
            need if need <= capacity => capacity,
            need => need.max(capacity * 2).min(MESSAGE_BYTES_MAX),
        };
        let more = wanted + ASSEMBLY_COST - before;
        if self.bytes + more > ASSEMBLY_SESSION_BYTES_MAX {
            return Err(Reason::SessionFull);
        }
        if budget.used + more > budget.max {
            return Err(Reason::ProcessFull);
        }
        let unfinished = self.unfinished.entry(publisher).or_insert_with(|| Unfinished {
            first_seq: seq,
            next_seq: seq,
            started: now,
            data: Vec::new(),
        });
        unfinished.data.reserve_exact(wanted - len);
        unfinished.data.extend_from_slice(data);
        unfinished.next_seq = seq.saturating_add(1);
        // The allocator may give more than requested; the whole allocation is charged.
        let grown = unfinished.cost() - before;
        self.bytes += grown;
        budget.used += grown;
        Ok(())
    }

    fn remove(&mut self, publisher: K, budget: &mut Budget) -> Option<Unfinished> {
        let unfinished = self.unfinished.remove(&publisher)?;
        self.bytes -= unfinished.cost();
        budget.used -= unfinished.cost();
        Some(unfinished)
    }
}

impl Unfinished {
    fn cost(&self) -> usize {
        self.data.capacity() + ASSEMBLY_COST
    }

    fn is_too_old(&self, now: Micros) -> bool {
        now.saturating_sub(self.started) > ASSEMBLY_AGE_MAX
    }

    fn abandoned(&self) -> Abandoned {
        Abandoned {
            first_seq: self.first_seq,
            count: self.next_seq - self.first_seq,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Micros = 1_000_000;

    fn push<'a>(
        assembler: &mut Assembler<u8>,
        budget: &mut Budget,
        publisher: u8,
        seq: u64,
        flags: u8,
        data: &'a [u8],
    ) -> Outcome<'a> {
        assembler.push(0, publisher, seq, flags, data, budget).0
    }

    fn message(number: usize, len: usize) -> Vec<u8> {
        (0..len).map(|at| (number * 13 + at) as u8).collect()
    }

    proptest! {
        #[test]
        fn chunks_put_together_are_the_message(len in 0..=MESSAGE_BYTES_MAX, chunk_max in 1..70_000usize) {
            let data = message(1, len);
            let chunks = split(&data, chunk_max).unwrap();
            prop_assert_eq!(chunks.len(), len.div_ceil(chunk_max).max(1));
            let mut together = Vec::new();
            let count = chunks.len();
            for (at, (flags, chunk)) in chunks.enumerate() {
                prop_assert_eq!(flags, if at == 0 { FIRST } else { 0 } | if at + 1 == count { LAST } else { 0 });
                prop_assert!(chunk.len() <= chunk_max);
                together.extend_from_slice(chunk);
            }
            prop_assert_eq!(together, data);
        }

        /// The model knows which chunks arrived: exactly the messages whose chunks all arrived come out.
        #[test]
        fn exactly_the_messages_whose_chunks_all_arrived_come_out(
            lens in proptest::collection::vec(0..5_000usize, 1..30),
            fates in proptest::collection::vec(0..20u8, 1..400),
            publishers in 1..4u8,
        ) {
            let (mut assembler, mut budget) = (Assembler::new(), Budget::default());
            let mut queues = vec![Vec::new(); usize::from(publishers)];
            for (number, len) in lens.iter().enumerate() {
                let data = message(number, *len);
                let queue = &mut queues[number % usize::from(publishers)];
                for (flags, chunk) in split(&data, 700).unwrap() {
                    queue.push((number, flags, chunk.to_vec()));
                }
            }
            let mut whole = vec![true; lens.len()];
            let mut out = Vec::new();
            let mut given_up = 0;
            let mut kept = 0;
            let mut fates = fates.into_iter().cycle();
            let longest = queues.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..longest {
                for (publisher, queue) in queues.iter().enumerate() {
                    let Some((number, flags, chunk)) = queue.get(at) else { continue };
                    let fate = fates.next().unwrap();
                    if fate == 0 {
                        whole[*number] = false;
                        continue;
                    }
                    for _ in 0..if fate == 1 && flags & LAST == 0 { 2 } else { 1 } {
                        let seq = at as u64 + 1;
                        let (outcome, abandoned) =
                            assembler.push(at as u64, publisher as u8, seq, *flags, chunk, &mut budget);
                        given_up += abandoned.map_or(0, |lost| lost.count);
                        match outcome {
                            Outcome::Complete(data) => {
                                prop_assert_eq!(&data[..], &message(*number, lens[*number])[..]);
                                out.push(*number);
                                kept += if flags & FIRST == 0 { data.len().div_ceil(700) as u64 } else { 1 };
                            }
                            Outcome::Partial => {}
                            Outcome::Dropped(Reason::Repeated) => prop_assert_eq!(fate, 1),
                            Outcome::Dropped(reason) => {
                                prop_assert!(matches!(reason, Reason::NoFirst | Reason::Skipped));
                                prop_assert!(!whole[*number]);
                            }
                        }
                    }
                    prop_assert_eq!(assembler.bytes, budget.used());
                    prop_assert!(assembler.bytes <= ASSEMBLY_SESSION_BYTES_MAX);
                }
            }
            out.sort_unstable();
            let expected: Vec<_> = (0..lens.len()).filter(|&number| whole[number]).collect();
            prop_assert_eq!(out, expected);
            prop_assert!(given_up + kept <= queues.iter().map(|queue| queue.len() as u64).sum());
            assembler.expire(Micros::MAX, &mut budget, |_, _| {});
            prop_assert_eq!((assembler.bytes, budget.used(), assembler.deadline()), (0, 0, None));
        }
    }

    #[test]
    fn a_message_in_one_piece_is_not_copied() {
        let (mut assembler, mut budget) = (Assembler::new(), Budget::default());
        let outcome = push(&mut assembler, &mut budget, 1, 9, FIRST | LAST, b"whole");
        assert_eq!(outcome, Outcome::Complete(Cow::Borrowed(b"whole")));
        assert!(matches!(outcome, Outcome::Complete(Cow::Borrowed(_))));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_late_joiner_starts_at_the_next_first_chunk() {
        let (mut assembler, mut budget) = (Assembler::new(), Budget::default());
        assert_eq!(
            push(&mut assembler, &mut budget, 1, 4, 0, b"x"),
            Outcome::Dropped(Reason::NoFirst)
        );
        assert_eq!(
            push(&mut assembler, &mut budget, 1, 5, LAST, b"x"),
            Outcome::Dropped(Reason::NoFirst)
        );
        assert_eq!(push(&mut assembler, &mut budget, 1, 6, FIRST, b"a"), Outcome::Partial);
        assert_eq!(
            push(&mut assembler, &mut budget, 1, 7, LAST, b"b"),
            Outcome::Complete(Cow::Borrowed(b"ab"))
        );
    }

    #[test]
    fn a_lost_chunk_loses_the_whole_message_and_names_its_chunks() {
        let (mut assembler, mut budget) = (Assembler::new(), Budget::default());
        push(&mut assembler, &mut budget, 1, 6, FIRST, b"a");
        push(&mut assembler, &mut budget, 1, 7, 0, b"b");
        let lost = Some(Abandoned { first_seq: 6, count: 2 });
        assert_eq!(
            assembler.push(0, 1, 9, 0, b"d", &mut budget),
            (Outcome::Dropped(Reason::Skipped), lost)
        );
        assert_eq!(
            push(&mut assembler, &mut budget, 1, 10, LAST, b"e"),
            Outcome::Dropped(Reason::NoFirst)
        );
        push(&mut assembler, &mut budget, 1, 11, FIRST, b"a");
        let lost = Some(Abandoned {
            first_seq: 11,
            count: 1,
        });
        let whole = Outcome::Complete(Cow::Borrowed(&b"new"[..]));
        assert_eq!(
            assembler.push(0, 1, 14, FIRST | LAST, b"new", &mut budget),
            (whole, lost)
        );
        push(&mut assembler, &mut budget, 1, 15, FIRST, b"a");
        assert_eq!(
            assembler.abandon(1, &mut budget),
            Some(Abandoned {
                first_seq: 15,
                count: 1
            })
        );
        assert_eq!(assembler.abandon(1, &mut budget), None);
    }

    #[test]
    fn an_unfinished_message_lives_five_seconds() {
        let (mut assembler, mut budget) = (Assembler::new(), Budget::default());
        assembler.push(0, 1u8, 1, FIRST, b"a", &mut budget);
        assembler.push(SECOND, 2, 1, FIRST, b"a", &mut budget);
        let deadline = assembler.deadline().unwrap();
        assembler.expire(deadline - 1, &mut budget, |_, _| panic!("too early"));
        let mut lost = Vec::new();
        assembler.expire(deadline, &mut budget, |publisher, abandoned| {
            lost.push((publisher, abandoned.count))
        });
        assert_eq!(lost, [(1, 1)]);
        let (outcome, abandoned) = assembler.push(7 * SECOND, 2, 2, LAST, b"b", &mut budget);
        assert_eq!(
            (outcome, abandoned.unwrap().count),
            (Outcome::Dropped(Reason::TooOld), 1)
        );
        assert_eq!((assembler.bytes, budget.used()), (0, 0));
    }

    #[test]
    fn no_message_grows_beyond_the_largest() {
        let (mut assembler, mut budget) = (Assembler::new(), Budget::default());
        assert_eq!(split(&vec![0; MESSAGE_BYTES_MAX + 1], 1_000).err(), Some(TooLong));
        push(&mut assembler, &mut budget, 1, 1, FIRST, &[0; 60_000]);
        push(&mut assembler, &mut budget, 1, 2, 0, &[0; 5_536]);
        let (outcome, abandoned) = assembler.push(0, 1, 3, LAST, b"x", &mut budget);
        assert_eq!(
            (outcome, abandoned.unwrap().count),
            (Outcome::Dropped(Reason::TooLong), 2)
        );
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_session_and_the_process_have_their_bounds() {
        let (mut assembler, mut budget) = (Assembler::new(), Budget::default());
        let full = (0..=255).take_while(|&publisher| {
            push(&mut assembler, &mut budget, publisher, 1, FIRST, &[0; 50_000]) == Outcome::Partial
        });
        assert_eq!(full.count(), 5);
        assert_eq!(
            push(&mut assembler, &mut budget, 9, 1, FIRST, &[0; 50_000]),
            Outcome::Dropped(Reason::SessionFull)
        );
        assembler.clear(&mut budget);
        assert_eq!(budget.used(), 0);
        let mut small = Budget::new(1_000);
        assert_eq!(
            push(&mut assembler, &mut small, 1, 1, FIRST, &[0; 500]),
            Outcome::Partial
        );
        assert_eq!(
            push(&mut assembler, &mut small, 2, 1, FIRST, &[0; 500]),
            Outcome::Dropped(Reason::ProcessFull)
        );
        assert_eq!(
            push(&mut assembler, &mut small, 1, 2, 0, &[0; 500]),
            Outcome::Dropped(Reason::ProcessFull)
        );
        assert_eq!(small.used(), 0);
    }
}
