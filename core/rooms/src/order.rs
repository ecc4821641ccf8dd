//! One publisher in one room, as the room's owner sees it: the next sequence, held messages, and offsets of applied
//! ones.
//!
//! Owns: [`Publisher`]. Must not know: rings, streams, the publisher's identity, the format of an acknowledgement.
//! The caller numbers messages; this type only decides when, and remembers the offsets.
//!
//! For each message: [`settle`](Publisher::settle) with the frame's lowest unacknowledged sequence, then
//! [`offer`](Publisher::offer); on `Apply` number it and call [`applied`](Publisher::applied), on `Hold` call
//! [`hold`](Publisher::hold). Whenever the sequence has moved, [`pop_ready`](Publisher::pop_ready) until `None`.

use std::collections::{BTreeMap, VecDeque};

use muster_transport::{Micros, MISSING_RANGES_MAX};

use crate::limits::{HELD_BYTES_MAX, HELD_MESSAGES_MAX, REMEMBERED_MESSAGES, UNACKED_MESSAGES_MAX};
use crate::wire::publish::ACK_RUNS;

/// Bytes that a held message costs besides its data: its entry and its allocation.
const HELD_COST: usize = 64;
/// Runs of offsets remembered per publisher without a charge: as many as an acknowledgement names.
const RUNS_FREE: usize = ACK_RUNS;

/// The cost of a held message of `len` bytes.
pub fn held_cost(len: usize) -> usize {
    len + HELD_COST
}

/// The sequence numbers of one publisher in one room: dense, from 1.
#[derive(Debug)]
pub struct Publisher {
    next: u64,
    last_seen: Micros,
    /// Messages that came before their predecessors; `None` if there are none.
    held: Option<Box<Held>>,
    /// Offsets of the last messages applied, oldest first, as runs without holes in the sequence; they end just below
    /// `next`, so their sequences need not be stored.
    remembered: VecDeque<OffsetRun>,
    remembered_len: u32,
}

#[derive(Debug, Default)]
struct Held {
    messages: BTreeMap<u64, (u8, u32, Box<[u8]>)>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct OffsetRun {
    offset: u64,
    count: u32,
}

/// Applied messages with consecutive sequences and consecutive offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub seq: u64,
    pub offset: u64,
    pub count: u32,
}

/// A held message that is next in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub seq: u64,
    pub flags: u8,
    pub born: u32,
    pub data: Box<[u8]>,
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is next: number it.
    Apply,
    /// An earlier one is missing: keep it.
    Hold,
    /// It was applied before, at this offset if that is still remembered, or it is held already (no offset). The
    /// publisher has missed an acknowledgement, so one is due.
    Duplicate { offset: Option<u64> },
    /// It is dropped; the publisher will repeat it.
    Refuse(Refusal),
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Sequence 0: the publisher's fault.
    Zero,
    /// Beyond the credit: the publisher's fault.
    BeyondCredit,
    /// It would exceed [`HELD_MESSAGES_MAX`] or [`HELD_BYTES_MAX`].
    HeldFull,
}

impl Publisher {
    /// A publisher not known so far starts at the lowest sequence that it reports as unacknowledged.
    pub fn new(lowest_unacked: u64) -> Self {
        Publisher {
            next: lowest_unacked.max(1),
            last_seen: 0,
            held: None,
            remembered: VecDeque::new(),
            remembered_len: 0,
        }
    }

    /// The publisher has acknowledgements for everything below `lowest_unacked`. Their offsets need not be
    /// remembered. If another owner sent these, messages missing here below it will never come.
    pub fn settle(&mut self, lowest_unacked: u64) {
        while let Some(front) = self.remembered.front_mut() {
            let below = lowest_unacked.saturating_sub(self.next - u64::from(self.remembered_len));
            if below == 0 {
                break;
            }
            if below < u64::from(front.count) {
                front.offset += below;
                front.count -= below as u32;
                self.remembered_len -= below as u32;
                break;
            }
            self.remembered_len -= front.count;
            self.remembered.pop_front();
        }
        if self.remembered.is_empty() && self.remembered.capacity() > 4 {
            // Most publishers are idle most of the time: 1,024 single runs are 16 KiB.
            self.remembered = VecDeque::new();
        }
        if lowest_unacked > self.next {
            self.next = lowest_unacked;
            self.drop_held_below(lowest_unacked);
        }
    }

    /// What to do with message `seq` of `bytes_len` bytes. Changes only [`Publisher::last_seen`].
    pub fn offer(&mut self, now: Micros, seq: u64, bytes_len: usize) -> Decision {
        self.last_seen = now;
        if seq == 0 {
            return Decision::Refuse(Refusal::Zero);
        }
        if seq < self.next {
            return Decision::Duplicate {
                offset: self.offset_of(seq),
            };
        }
        if seq == self.next {
            return Decision::Apply;
        }
        if seq - self.next >= UNACKED_MESSAGES_MAX {
            return Decision::Refuse(Refusal::BeyondCredit);
        }
        match &self.held {
            Some(held) if held.messages.contains_key(&seq) => Decision::Duplicate { offset: None },
            Some(held) if held.messages.len() >= HELD_MESSAGES_MAX || held.bytes + bytes_len > HELD_BYTES_MAX => {
                Decision::Refuse(Refusal::HeldFull)
            }
            None if bytes_len > HELD_BYTES_MAX => Decision::Refuse(Refusal::HeldFull),
            _ => Decision::Hold,
        }
    }

    /// Holds a message for which [`Publisher::offer`] returned `Hold`.
    pub fn hold(&mut self, seq: u64, flags: u8, born: u32, data: &[u8]) {
        debug_assert_eq!(self.offer(self.last_seen, seq, data.len()), Decision::Hold);
        let held = self.held.get_or_insert_with(Box::default);
        held.bytes += data.len();
        held.messages.insert(seq, (flags, born, data.into()));
    }

    /// Removes the held message that is next in order. Number it and call [`Publisher::applied`]; if it is dropped
    /// instead, the publisher will repeat it.
    pub fn pop_ready(&mut self) -> Option<Ready> {
        let held = self.held.as_deref_mut()?;
        let (flags, born, data) = held.messages.remove(&self.next)?;
        held.bytes -= data.len();
        if held.messages.is_empty() {
            self.held = None;
        }
        Some(Ready {
            seq: self.next,
            flags,
            born,
            data,
        })
    }

    /// Message `seq`, the next in order, has been numbered `offset`.
    pub fn applied(&mut self, seq: u64, offset: u64) {
        assert_eq!(seq, self.next, "messages are applied in order");
        self.next += 1;
        // The publisher may have repeated a message whose held copy became ready by `settle`.
        self.drop_held_below(self.next);
        match self.remembered.back_mut() {
            Some(back) if back.offset + u64::from(back.count) == offset => back.count += 1,
            _ => self.remembered.push_back(OffsetRun { offset, count: 1 }),
        }
        self.remembered_len += 1;
        if self.remembered_len as usize > REMEMBERED_MESSAGES {
            self.remembered_len -= 1;
            let front = self.remembered.front_mut().expect("more than none is remembered");
            front.offset += 1;
            front.count -= 1;
            if front.count == 0 {
                self.remembered.pop_front();
            }
        }
    }

    /// The offset of `seq`, if it is among the last [`REMEMBERED_MESSAGES`] and not settled.
    pub fn offset_of(&self, seq: u64) -> Option<u64> {
        let mut run = [Run::default()];
        (seq < self.next && self.runs(seq, &mut run) == 1 && run[0].seq == seq).then_some(run[0].offset)
    }

    /// The remembered messages from `from_seq` on, as runs in ascending order; returns how many fit into `out`.
    pub fn runs(&self, from_seq: u64, out: &mut [Run]) -> usize {
        let mut seq = self.next - u64::from(self.remembered_len);
        let mut count = 0;
        for run in &self.remembered {
            let end = seq + u64::from(run.count);
            if end > from_seq {
                let Some(slot) = out.get_mut(count) else { break };
                let skipped = from_seq.saturating_sub(seq);
                *slot = Run {
                    seq: seq + skipped,
                    offset: run.offset + skipped,
                    count: run.count - skipped as u32,
                };
                count += 1;
            }
            seq = end;
        }
        count
    }

    /// The first sequence of the last `count` remembered runs.
    pub fn last_runs(&self, count: usize) -> u64 {
        let last = self.remembered.iter().rev().take(count);
        self.next - last.map(|run| u64::from(run.count)).sum::<u64>()
    }

    /// Every sequence up to this one has been applied, or settled elsewhere; 0 before the first.
    pub fn cumulative(&self) -> u64 {
        self.next - 1
    }

    /// The highest sequence applied or held; nothing above it has been kept.
    pub fn highest(&self) -> u64 {
        let held = self
            .held
            .as_ref()
            .and_then(|held| held.messages.keys().next_back().copied());
        held.unwrap_or(self.next - 1)
    }

    /// The first runs of sequences missing between applied and held ones, lowest first, each (first, last) inclusive;
    /// returns their number.
    pub fn missing_ranges(&self, out: &mut [(u64, u64); MISSING_RANGES_MAX]) -> usize {
        let Some(held) = &self.held else { return 0 };
        let mut count = 0;
        let mut expected = self.next;
        for &seq in held.messages.keys() {
            if seq > expected {
                if count == out.len() {
                    break;
                }
                out[count] = (expected, seq - 1);
                count += 1;
            }
            expected = seq + 1;
        }
        count
    }

    /// When the publisher last offered something; the caller forgets it after [`PUBLISHER_IDLE`].
    ///
    /// [`PUBLISHER_IDLE`]: crate::limits::PUBLISHER_IDLE
    pub fn last_seen(&self) -> Micros {
        self.last_seen
    }

    /// Number of messages held.
    pub fn held_len(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.messages.len())
    }

    /// Bytes of the messages held.
    pub fn held_bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.bytes)
    }

    /// The cost of everything kept: the held messages, each by [`held_cost`], and remembered offsets beyond those of
    /// one acknowledgement.
    pub fn cost(&self) -> usize {
        let runs = self.remembered.len().saturating_sub(RUNS_FREE);
        self.held_bytes() + self.held_len() * HELD_COST + runs * size_of::<OffsetRun>()
    }

    /// The growth of [`Publisher::cost`] when the next message is numbered `offset`.
    pub fn run_cost(&self, offset: u64) -> usize {
        let goes_on = |back: &OffsetRun| back.offset + u64::from(back.count) == offset;
        match self.remembered.len() < RUNS_FREE || self.remembered.back().is_some_and(goes_on) {
            true => 0,
            false => size_of::<OffsetRun>(),
        }
    }

    fn drop_held_below(&mut self, seq: u64) {
        let Some(held) = self.held.as_deref_mut() else { return };
        while let Some(entry) = held.messages.first_entry().filter(|entry| *entry.key() < seq) {
            held.bytes -= entry.remove().2.len();
        }
        if held.messages.is_empty() {
            self.held = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn accept(publisher: &mut Publisher, seq: u64, offset: &mut u64) -> Vec<u64> {
        let mut applied = Vec::new();
        match publisher.offer(0, seq, 10) {
            Decision::Apply => {
                publisher.applied(seq, *offset);
                *offset += 1;
                applied.push(seq);
            }
            Decision::Hold => publisher.hold(seq, 3, 5, &[seq as u8; 10]),
            _ => {}
        }
        while let Some(ready) = publisher.pop_ready() {
            assert_eq!(
                (ready.flags, ready.born, &ready.data[..]),
                (3, 5, &[ready.seq as u8; 10][..])
            );
            publisher.applied(ready.seq, *offset);
            *offset += 1;
            applied.push(ready.seq);
        }
        applied
    }

    #[test]
    fn offsets_remembered_beyond_those_of_an_acknowledgement_count() {
        let mut publisher = Publisher::new(1);
        for seq in 1..=100 {
            let (before, more) = (publisher.cost(), publisher.run_cost(2 * seq));
            publisher.applied(seq, 2 * seq);
            assert_eq!(publisher.cost(), before + more, "{seq}");
        }
        assert_eq!(publisher.cost(), (100 - RUNS_FREE) * size_of::<OffsetRun>());
        assert_eq!(publisher.run_cost(201), 0, "it goes on");
        publisher.settle(100);
        assert_eq!(publisher.cost(), 0);
    }

    #[test]
    fn the_last_runs_begin_where_counting_from_the_end_puts_them() {
        let mut publisher = Publisher::new(1);
        for (sequence, offset) in [(1, 10), (2, 11), (3, 20), (4, 30), (5, 31), (6, 40)] {
            publisher.applied(sequence, offset);
        }
        let begin: Vec<u64> = (0..6).map(|count| publisher.last_runs(count)).collect();
        assert_eq!(begin, [7, 6, 4, 3, 1, 1]);
    }

    /// A list of all applied and a set of all held messages; every result is found by scanning them.
    struct Model {
        start: u64,
        lowest: u64,
        applied: Vec<(u64, u64)>,
        held: BTreeSet<(u64, usize)>,
    }

    impl Model {
        fn next(&self) -> u64 {
            self.applied
                .last()
                .map_or(self.start, |(seq, _)| seq + 1)
                .max(self.lowest)
        }

        fn offer(&self, seq: u64, len: usize) -> Decision {
            let bytes: usize = self.held.iter().map(|(_, len)| len).sum();
            if seq == 0 {
                Decision::Refuse(Refusal::Zero)
            } else if seq < self.next() {
                Decision::Duplicate {
                    offset: self.offset_of(seq),
                }
            } else if seq == self.next() {
                Decision::Apply
            } else if seq >= self.next() + 1_024 {
                Decision::Refuse(Refusal::BeyondCredit)
            } else if self.held.iter().any(|(held, _)| *held == seq) {
                Decision::Duplicate { offset: None }
            } else if self.held.len() == 768 || bytes + len > 786_432 {
                Decision::Refuse(Refusal::HeldFull)
            } else {
                Decision::Hold
            }
        }

        fn remembered(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
            let from = self.applied.len().saturating_sub(1_024);
            self.applied[from..]
                .iter()
                .copied()
                .filter(|(seq, _)| *seq >= self.lowest)
        }

        fn offset_of(&self, seq: u64) -> Option<u64> {
            self.remembered()
                .find(|(applied, _)| *applied == seq)
                .map(|(_, offset)| offset)
        }

        fn runs(&self, from_seq: u64) -> Vec<Run> {
            let mut runs: Vec<Run> = Vec::new();
            for (seq, offset) in self.remembered().filter(|(seq, _)| *seq >= from_seq) {
                match runs.last_mut() {
                    Some(run) if run.offset + u64::from(run.count) == offset => run.count += 1,
                    _ => runs.push(Run { seq, offset, count: 1 }),
                }
            }
            runs
        }

        fn missing(&self) -> Vec<(u64, u64)> {
            let mut runs: Vec<(u64, u64)> = Vec::new();
            let highest = self.held.last().map_or(0, |(seq, _)| *seq);
            for seq in (self.next()..highest).filter(|seq| !self.held.iter().any(|(held, _)| held == seq)) {
                match runs.last_mut() {
                    Some(run) if run.1 + 1 == seq => run.1 = seq,
                    _ => runs.push((seq, seq)),
                }
            }
            runs.truncate(4);
            runs
        }
    }

    proptest! {
        #[test]
        fn results_agree_with_plain_lists(
            start in prop_oneof![Just(0u64), Just(1u64), (1u64 << 32) - 50..1 << 33],
            steps in proptest::collection::vec(
                (prop_oneof![6 => 0..3i64, 3 => -20..90i64, 1 => -400..1_200i64], 0..30_000usize, 0..3u64, 0..40u8), 1..600),
        ) {
            let mut publisher = Publisher::new(start);
            let mut model = Model { start: start.max(1), lowest: 0, applied: Vec::new(), held: BTreeSet::new() };
            let mut offset = 77;
            for (now, (ahead, len, others, settle)) in steps.into_iter().enumerate() {
                if settle == 0 {
                    // The publisher has acknowledgements for some of it, rarely for more than this owner has.
                    let lowest = model.next().saturating_sub(len as u64 % 50) + u64::from(len % 7 == 0) * 9;
                    publisher.settle(lowest);
                    model.lowest = model.lowest.max(lowest);
                    model.held.retain(|(seq, _)| *seq >= model.lowest);
                }
                let seq = model.next().saturating_add_signed(ahead);
                let decision = publisher.offer(now as u64, seq, len);
                prop_assert_eq!(decision, model.offer(seq, len));
                // Others publish into the room as well, so offsets have holes.
                offset += others / 2;
                match decision {
                    Decision::Apply => {
                        publisher.applied(seq, offset);
                        model.applied.push((seq, offset));
                        offset += 1;
                        model.held.retain(|(held, _)| *held != seq);
                    }
                    Decision::Hold => {
                        publisher.hold(seq, seq as u8, 0, &vec![seq as u8; len]);
                        model.held.insert((seq, len));
                    }
                    _ => {}
                }
                while let Some(ready) = publisher.pop_ready() {
                    prop_assert_eq!(ready.seq, model.next());
                    let held = (ready.seq, ready.data.len());
                    prop_assert!(model.held.remove(&held) && ready.flags == ready.seq as u8);
                    publisher.applied(ready.seq, offset);
                    model.applied.push((ready.seq, offset));
                    offset += 1 + others / 2;
                }
                prop_assert!(!model.held.iter().any(|(seq, _)| *seq <= publisher.cumulative() + 1));
                prop_assert_eq!(publisher.cumulative(), model.next() - 1);
                prop_assert_eq!(publisher.last_seen(), now as u64);
                prop_assert_eq!(publisher.held_bytes(), model.held.iter().map(|(_, len)| len).sum::<usize>());
                let highest = model.held.last().map_or(model.next() - 1, |(seq, _)| *seq);
                prop_assert_eq!(publisher.highest(), highest);
                let mut missing = [(0, 0); 4];
                let count = publisher.missing_ranges(&mut missing);
                prop_assert_eq!(&missing[..count], &model.missing()[..]);
                for from in [0, seq.saturating_sub(30), seq] {
                    let expected = model.runs(from);
                    let mut runs = [Run::default(); 300];
                    let count = publisher.runs(from, &mut runs);
                    prop_assert_eq!(&runs[..count], &expected[..]);
                    prop_assert_eq!(publisher.runs(from, &mut runs[..2]), expected.len().min(2));
                }
                prop_assert_eq!(publisher.offset_of(seq), model.offset_of(seq));
            }
        }

        #[test]
        fn any_order_of_repeats_is_applied_once_in_order(order in Just((1..=60u64).collect::<Vec<_>>()).prop_shuffle()) {
            let mut publisher = Publisher::new(1);
            let (mut applied, mut offset) = (Vec::new(), 0);
            for &seq in order.iter().chain(&order) {
                applied.extend(accept(&mut publisher, seq, &mut offset));
            }
            prop_assert_eq!(applied, (1..=60).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_unknown_publisher_starts_at_its_lowest_unacknowledged() {
        let mut publisher = Publisher::new(40);
        assert_eq!(publisher.cumulative(), 39);
        assert_eq!(publisher.offer(5, 39, 1), Decision::Duplicate { offset: None });
        assert_eq!(publisher.offer(6, 40, 1), Decision::Apply);
        assert_eq!(publisher.offer(7, 41, 1), Decision::Hold);
        assert_eq!(publisher.last_seen(), 7);
    }

    #[test]
    fn messages_acknowledged_by_another_owner_are_not_waited_for() {
        let mut publisher = Publisher::new(1);
        let mut offset = 1;
        for seq in [1, 2, 5, 9] {
            accept(&mut publisher, seq, &mut offset);
        }
        publisher.settle(8);
        assert_eq!((publisher.cumulative(), publisher.held_bytes()), (7, 10));
        assert_eq!(accept(&mut publisher, 8, &mut offset), [8, 9]);
    }

    #[test]
    fn the_offsets_of_the_last_1_024_answer_repeats() {
        let mut publisher = Publisher::new(1);
        for seq in 1..=1_100 {
            publisher.applied(seq, seq * 2);
        }
        assert_eq!(publisher.offset_of(76), None);
        assert_eq!(publisher.offer(0, 77, 1), Decision::Duplicate { offset: Some(154) });
        assert_eq!(publisher.offset_of(1_100), Some(2_200));
        assert_eq!(publisher.offset_of(1_101), None);
        publisher.settle(1_101);
        assert_eq!(publisher.offset_of(1_100), None);
        assert_eq!(publisher.remembered.capacity(), 0);
    }

    #[test]
    fn held_messages_are_bounded() {
        let mut publisher = Publisher::new(1);
        for seq in 2..770 {
            assert_eq!(publisher.offer(0, seq, 1), Decision::Hold);
            publisher.hold(seq, 3, 0, b"x");
        }
        assert_eq!(publisher.offer(0, 770, 1), Decision::Refuse(Refusal::HeldFull));
        assert_eq!(publisher.offer(0, 1_025, 1), Decision::Refuse(Refusal::BeyondCredit));
        assert_eq!(publisher.offer(0, 1, 1), Decision::Apply);
    }

    #[test]
    fn an_idle_publisher_is_small() {
        assert!(size_of::<Publisher>() <= 64);
    }
}
