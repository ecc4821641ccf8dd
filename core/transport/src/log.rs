//! Control records over one connection: each is delivered once and in order, whatever the network does.
//!
//! Owns: [`LogSender`], [`LogReceiver`], [`Records`] and the body of a log frame. Must not know: a record's meaning,
//! the carrier of a frame, the measurement of the round-trip time (`rto` is passed in).
//!
//! Records are numbered densely from 1 by *log offset*. A frame body is, little endian: first offset (8), count (2),
//! then for each record length (2) and bytes. The receiver acknowledges cumulatively. Each side takes 24 bytes while
//! idle: most sessions have no control record in flight.

use crate::limits::{
    LOG_AGAIN_RECORDS_MAX, LOG_BACKOFF_MAX, LOG_FLIGHT_BYTES_MAX, LOG_FLIGHT_RECORDS_MAX, LOG_RECORD_BYTES_MAX,
};
use crate::machine::Micros;
use std::collections::{BTreeMap, VecDeque};

/// Bytes that each queued record adds to its length when a bound is checked: empty records are not free either.
pub const RECORD_COST: usize = 32;
/// How often a lost record is repeated at once. After that, a peer that answers but never acknowledges gets repeats
/// by timeout only.
const PROMPT_REPEATS: u8 = 8;

const FRAME_HEADER: usize = 10;
const RECORD_HEADER: usize = 2;

/// Why a record was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// Unacknowledged records fill the bound. The caller waits, or gives the connection up.
    Full,
    /// Longer than [`LOG_RECORD_BYTES_MAX`].
    TooLong,
}

/// The frame body is malformed: the peer's fault. Nothing of it was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The sending side.
pub struct LogSender {
    /// `None` whenever everything is acknowledged.
    queue: Option<Box<Queue>>,
    /// The offset that the next pushed record gets.
    next: u64,
    bytes_max: u32,
    /// A few unacknowledged records are sent once more after this, in µs; 0: never.
    again: u32,
}

struct Queue {
    /// The records from the first unacknowledged one on; the first `sent` of them have been sent at least once.
    records: VecDeque<Record>,
    sent: usize,
    flight_bytes: usize,
    /// The highest datagram sequence that a status of the peer covers; 0 before the first status.
    heard: u64,
    /// The records' bytes back to back, starting at `front`; one buffer, so that no record needs an allocation.
    bytes: Vec<u8>,
    front: usize,
    /// Position (counted from the first byte ever pushed into this queue) of `bytes[0]`.
    base: u64,
    cost: usize,
    again: u32,
}

struct Record {
    at: u64,
    sent: Micros,
    len: u16,
    repeats: u8,
    /// The record was sent once more early, while few were unacknowledged.
    again: bool,
    /// Low half of the sequence of the datagram that last carried the record.
    carrier: u32,
}

impl LogSender {
    /// `bytes_max`: bound on unacknowledged records, each counted with [`RECORD_COST`].
    pub fn new(bytes_max: usize) -> Self {
        LogSender {
            queue: None,
            next: 1,
            bytes_max: u32::try_from(bytes_max).unwrap_or(u32::MAX),
            again: 0,
        }
    }

    /// Sends an unacknowledged record once more after `wait`, before its timeout, if no more than
    /// [`LOG_AGAIN_RECORDS_MAX`] are unacknowledged; 0: never.
    pub fn send_again_after(&mut self, wait: Micros) {
        self.again = u32::try_from(wait).unwrap_or(u32::MAX);
        if let Some(queue) = self.queue.as_deref_mut() {
            queue.again = self.again;
        }
    }

    /// Queues a record and returns its log offset.
    pub fn push(&mut self, record: &[u8]) -> Result<u64, PushError> {
        if record.len() > LOG_RECORD_BYTES_MAX {
            return Err(PushError::TooLong);
        }
        let cost = record.len() + RECORD_COST;
        if self.pending_bytes() + cost > self.bytes_max as usize {
            return Err(PushError::Full);
        }
        let queue = self.queue.get_or_insert_with(|| Box::new(Queue::new(self.again)));
        let at = queue.base + queue.bytes.len() as u64;
        queue.bytes.extend_from_slice(record);
        queue.records.push_back(Record {
            at,
            sent: 0,
            len: record.len() as u16,
            repeats: 0,
            again: false,
            carrier: 0,
        });
        queue.cost += cost;
        let offset = self.next;
        self.next += 1;
        Ok(offset)
    }

    /// Writes the next frame body of due records into `buf` and returns its length; call until `None`. A record is
    /// due if it was never sent and fits in flight, if it was lost, or if it was sent longer than `rto` ago (doubled
    /// with each repeat, up to a second). Also returns `None` if the next due record does not fit (never with space
    /// for [`LOG_RECORD_BYTES_MAX`] and two headers). `carrier`: the sequence of the datagram that carries the frame.
    pub fn next_frame(&mut self, now: Micros, rto: Micros, carrier: u64, buf: &mut [u8]) -> Option<usize> {
        let first_offset = self.first_unacknowledged();
        let queue = self.queue.as_deref_mut()?;
        let first = (0..queue.records.len().min(queue.sent + 1)).find(|&index| queue.is_due(index, now, rto))?;
        let mut used = FRAME_HEADER;
        let mut index = first;
        while index < queue.records.len() && index - first < usize::from(u16::MAX) && queue.is_due(index, now, rto) {
            let bytes = queue.bytes_of(index);
            let end = used + RECORD_HEADER + bytes.len();
            if end > buf.len() {
                break;
            }
            buf[used..used + RECORD_HEADER].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
            buf[used + RECORD_HEADER..end].copy_from_slice(bytes);
            used = end;
            queue.mark_sent(index, now, rto, carrier);
            index += 1;
        }
        if index == first {
            return None;
        }
        buf[..8].copy_from_slice(&(first_offset + first as u64).to_le_bytes());
        buf[8..FRAME_HEADER].copy_from_slice(&((index - first) as u16).to_le_bytes());
        Some(used)
    }

    /// The peer's statuses cover all datagrams up to `sequence`. If one of these carried the first record and it is
    /// still unacknowledged, the frame or its acknowledgement was lost.
    pub fn heard(&mut self, sequence: u64) {
        if let Some(queue) = self.queue.as_deref_mut() {
            queue.heard = queue.heard.max(sequence);
        }
    }

    /// The peer has everything up to and including `upto`. Records never sent cannot be acknowledged: a higher number
    /// counts as the last sent record.
    pub fn acknowledge(&mut self, upto: u64) {
        let first = self.first_unacknowledged();
        let Some(queue) = self.queue.as_deref_mut() else { return };
        let count = upto.saturating_add(1).saturating_sub(first).min(queue.sent as u64);
        for _ in 0..count {
            let record = queue.records.pop_front().expect("sent records are queued");
            let len = usize::from(record.len);
            queue.front += len;
            queue.flight_bytes -= len + RECORD_HEADER;
            queue.cost -= len + RECORD_COST;
            queue.sent -= 1;
        }
        if queue.records.is_empty() {
            self.queue = None;
        } else if queue.front > queue.bytes.len() / 2 {
            // Each byte is moved at most once each time that half of the buffer is acknowledged.
            queue.bytes.drain(..queue.front);
            queue.base += queue.front as u64;
            queue.front = 0;
        }
    }

    /// The highest offset that the peer has acknowledged, 0 before the first.
    pub fn acknowledged(&self) -> u64 {
        self.first_unacknowledged() - 1
    }

    /// The offset of the last record pushed, 0 before the first.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// The offset of the last record that has left at least once, 0 before the first.
    pub fn last_sent(&self) -> u64 {
        self.acknowledged() + self.queue.as_ref().map_or(0, |queue| queue.sent as u64)
    }

    /// The size that counts towards `bytes_max`: the bytes and [`RECORD_COST`] of every record not yet acknowledged.
    pub fn pending_bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.cost)
    }

    /// Whether there may be no space for the next record.
    pub fn is_crowded(&self) -> bool {
        self.pending_bytes() + LOG_RECORD_BYTES_MAX + RECORD_COST > self.bytes_max as usize
    }

    /// Whether everything pushed is acknowledged.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.queue.is_none()
    }

    /// When [`LogSender::next_frame`] has something to repeat; 0 (at once) if an unsent record may leave, `None` when
    /// idle.
    pub fn deadline(&self, rto: Micros) -> Option<Micros> {
        let queue = self.queue.as_ref()?;
        if queue.may_send_new() || queue.is_lost(0) {
            return Some(0);
        }
        queue
            .records
            .iter()
            .take(queue.sent)
            .map(|record| queue.due(record, rto))
            .min()
    }

    /// Whether [`LogSender::next_frame`] would write something into a buffer that is large enough.
    pub fn has_due(&self, now: Micros, rto: Micros) -> bool {
        self.deadline(rto).is_some_and(|deadline| deadline <= now)
    }

    fn first_unacknowledged(&self) -> u64 {
        self.next - self.queue.as_ref().map_or(0, |queue| queue.records.len() as u64)
    }
}

impl Queue {
    fn new(again: u32) -> Self {
        Queue {
            records: VecDeque::new(),
            sent: 0,
            flight_bytes: 0,
            heard: 0,
            bytes: Vec::new(),
            front: 0,
            base: 0,
            cost: 0,
            again,
        }
    }

    fn bytes_of(&self, index: usize) -> &[u8] {
        let record = &self.records[index];
        let start = (record.at - self.base) as usize;
        &self.bytes[start..start + usize::from(record.len)]
    }

    /// Whether the first record never sent may go now.
    fn may_send_new(&self) -> bool {
        let Some(record) = self.records.get(self.sent) else {
            return false;
        };
        let bytes = self.flight_bytes + usize::from(record.len) + RECORD_HEADER;
        self.sent < LOG_FLIGHT_RECORDS_MAX && bytes <= LOG_FLIGHT_BYTES_MAX
    }

    fn is_due(&self, index: usize, now: Micros, rto: Micros) -> bool {
        if index < self.sent {
            self.due(&self.records[index], rto) <= now || self.is_lost(index)
        } else {
            index == self.sent && self.may_send_new()
        }
    }

    fn due(&self, record: &Record, rto: Micros) -> Micros {
        let due = record.due(rto);
        if record.again {
            due.min(record.sent + Micros::from(self.again))
        } else {
            due
        }
    }

    /// Whether a sent record left with the first one, in a datagram that was lost. Losses of other records show once
    /// the first one is acknowledged.
    fn is_lost(&self, index: usize) -> bool {
        let (first, record) = (&self.records[0], &self.records[index]);
        let heard = self.heard > 0 && (self.heard as u32).wrapping_sub(record.carrier) as i32 >= 0;
        self.sent > 0 && heard && record.carrier == first.carrier && record.repeats < PROMPT_REPEATS
    }

    fn mark_sent(&mut self, index: usize, now: Micros, rto: Micros, carrier: u64) {
        let few = self.again > 0 && self.records.len() <= LOG_AGAIN_RECORDS_MAX;
        let lost = index < self.sent && self.is_lost(index);
        let record = &mut self.records[index];
        record.carrier = carrier as u32;
        if index < self.sent {
            // An early repeat does not count as the timeout's repeat, which still comes at its time.
            if !std::mem::take(&mut record.again) || lost || record.due(rto) <= now {
                record.sent = now;
                record.repeats = record.repeats.saturating_add(1);
            }
        } else {
            (record.sent, record.again) = (now, few);
            self.sent += 1;
            self.flight_bytes += usize::from(record.len) + RECORD_HEADER;
        }
    }
}

impl Record {
    fn due(&self, rto: Micros) -> Micros {
        // 2^20 exceeds the cap for any rto of at least a microsecond; a path slower than the cap keeps its own rto.
        let wait = rto
            .saturating_mul(1 << self.repeats.min(20))
            .min(LOG_BACKOFF_MAX.max(rto));
        self.sent.saturating_add(wait)
    }
}

/// The receiving side.
pub struct LogReceiver {
    /// Records that came before their predecessors; `None` if there are none.
    held: Option<Box<EarlyRecords>>,
    next: u64,
    bytes_max: u32,
    ack_due: bool,
}

#[derive(Default)]
struct EarlyRecords {
    records: BTreeMap<u64, Box<[u8]>>,
    cost: usize,
}

impl LogReceiver {
    /// `bytes_max`: bound on records held out of order, each counted with [`RECORD_COST`]. The peer repeats records
    /// that are dropped for it.
    pub fn new(bytes_max: usize) -> Self {
        LogReceiver {
            held: None,
            next: 1,
            bytes_max: u32::try_from(bytes_max).unwrap_or(u32::MAX),
            ack_due: false,
        }
    }

    /// Takes a frame body and delivers every record that is next in order. A malformed body delivers nothing.
    pub fn receive(&mut self, frame_body: &[u8], mut deliver: impl FnMut(&[u8])) -> Result<(), Malformed> {
        let (first, count) = validate(frame_body)?;
        // Also after a repeat that brings nothing: it shows that our acknowledgement was lost.
        self.ack_due = true;
        let mut rest = &frame_body[FRAME_HEADER..];
        for offset in first..first + count {
            let len = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            let record = &rest[RECORD_HEADER..RECORD_HEADER + len];
            rest = &rest[RECORD_HEADER + len..];
            if offset == self.next {
                deliver(record);
                self.next += 1;
                self.deliver_held(&mut deliver);
            } else if offset > self.next {
                self.hold(offset, record);
            }
        }
        Ok(())
    }

    /// The offset to be delivered next; everything below it was delivered.
    pub fn next_expected(&self) -> u64 {
        self.next
    }

    /// Whether an acknowledgement must be sent.
    pub fn ack_due(&self) -> bool {
        self.ack_due
    }

    /// Takes the cumulative acknowledgement to send; then none is due.
    pub fn take_ack(&mut self) -> u64 {
        self.ack_due = false;
        self.next - 1
    }

    /// Sets the bound on records held out of order.
    pub fn hold_at_most(&mut self, bytes_max: usize) {
        self.bytes_max = u32::try_from(bytes_max).unwrap_or(u32::MAX);
    }

    /// Bytes held out of order, as counted towards `bytes_max`.
    pub fn held_bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.cost)
    }

    fn deliver_held(&mut self, deliver: &mut impl FnMut(&[u8])) {
        let Some(held) = self.held.as_deref_mut() else { return };
        while let Some(entry) = held.records.first_entry() {
            if *entry.key() > self.next {
                break;
            }
            let record = entry.remove();
            held.cost -= record.len() + RECORD_COST;
            deliver(&record);
            self.next += 1;
        }
        if held.records.is_empty() {
            self.held = None;
        }
    }

    fn hold(&mut self, offset: u64, record: &[u8]) {
        let cost = record.len() + RECORD_COST;
        if self.held_bytes() + cost > self.bytes_max as usize {
            return;
        }
        let held = self.held.get_or_insert_with(Box::default);
        held.records.entry(offset).or_insert_with(|| {
            held.cost += cost;
            record.into()
        });
    }
}

/// Memory for records that stays allocated; more is freed.
const RECORDS_KEPT: usize = 64 << 10;

/// The delivered records, in order, in one buffer, so that no record needs an allocation.
#[derive(Default)]
pub struct Records {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Records {
    pub fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(RECORDS_KEPT);
        self.ends.clear();
        self.ends.shrink_to(RECORDS_KEPT / size_of::<usize>());
    }
}

/// The first offset and the count of a frame body, if it is well formed to its last byte.
fn validate(body: &[u8]) -> Result<(u64, u64), Malformed> {
    let (header, mut rest) = body.split_first_chunk::<FRAME_HEADER>().ok_or(Malformed)?;
    let first = u64::from_le_bytes(header[..8].try_into().expect("eight bytes"));
    let count = u64::from(u16::from_le_bytes([header[8], header[9]]));
    if first == 0 || count == 0 || first.checked_add(count).is_none() {
        return Err(Malformed);
    }
    for _ in 0..count {
        let (len, bytes) = rest.split_first_chunk::<RECORD_HEADER>().ok_or(Malformed)?;
        let len = usize::from(u16::from_le_bytes(*len));
        if len > LOG_RECORD_BYTES_MAX {
            return Err(Malformed);
        }
        rest = bytes.get(len..).ok_or(Malformed)?;
    }
    if rest.is_empty() {
        Ok((first, count))
    } else {
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A buffer of this size always takes the next due record.
    const FRAME_BYTES_ENOUGH: usize = FRAME_HEADER + RECORD_HEADER + LOG_RECORD_BYTES_MAX;

    const RTO: Micros = 20_000;

    #[test]
    fn records_are_in_order_and_memory_is_bounded_after_they_are_taken() {
        let mut records = Records::default();
        let long = vec![7; 2 * RECORDS_KEPT];
        for record in [b"one".as_slice(), b"", &long] {
            records.push(record);
        }
        assert_eq!(records.iter().collect::<Vec<_>>(), [b"one".as_slice(), b"", &long]);
        (0..RECORDS_KEPT).for_each(|_| records.push(b""));
        records.clear();
        assert!(records.is_empty() && records.iter().next().is_none());
        assert!(records.bytes.capacity() <= RECORDS_KEPT && 8 * records.ends.capacity() <= RECORDS_KEPT);
        records.push(b"two");
        assert_eq!(records.iter().collect::<Vec<_>>(), [b"two"]);
    }

    fn frames(sender: &mut LogSender, now: Micros, size: usize) -> Vec<Vec<u8>> {
        let mut buf = vec![0; size];
        let mut frames = Vec::new();
        while let Some(len) = sender.next_frame(now, RTO, now / 1_000 + 100, &mut buf) {
            frames.push(buf[..len].to_vec());
        }
        frames
    }

    fn record(number: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|at| (number * 31 + at * 7) as u8).collect()
    }

    proptest! {
        /// The model is the list of pushed records: under any loss, duplication and reordering, the receiver delivers
        /// the same list.
        #[test]
        fn any_schedule_delivers_exactly_what_was_pushed(
            lens in proptest::collection::vec(prop_oneof![0..40usize, 0..1_100usize], 1..120),
            held_max in 0..6_000usize,
            // For each frame: whether it is lost, whether it is duplicated, and its delay in turns; then the same for
            // each acknowledgement.
            fates in proptest::collection::vec((0..3u8, 0..3u8, 0..6usize), 1..300),
            sizes in proptest::collection::vec(FRAME_BYTES_ENOUGH..1_500, 1..5),
            again in prop_oneof![Just(0), 1..2 * RTO],
        ) {
            let mut sender = LogSender::new(1 << 20);
            sender.send_again_after(again);
            let mut receiver = LogReceiver::new(held_max);
            let (mut delivered, mut pushed) = (Vec::new(), Vec::new());
            let mut late: Vec<(usize, Option<Vec<u8>>, u64)> = Vec::new();
            let mut fates = fates.into_iter();
            let mut now = 0;
            for turn in 0.. {
                prop_assert!(turn < 20_000, "it must come to an end");
                // A few records a turn, so that repeats and first sendings mix.
                for _ in 0..turn % 4 {
                    if let Some(&len) = lens.get(pushed.len()) {
                        let record = record(pushed.len() as u64, len);
                        prop_assert_eq!(sender.push(&record), Ok(pushed.len() as u64 + 1));
                        pushed.push(record);
                    }
                }
                let due = sender.has_due(now, RTO);
                let sent = frames(&mut sender, now, sizes[turn % sizes.len()]);
                prop_assert_eq!(due, !sent.is_empty());
                prop_assert!(!sender.has_due(now, RTO));
                let ack = receiver.ack_due().then(|| receiver.take_ack());
                for item in sent.into_iter().map(|frame| (Some(frame), 0)).chain(ack.map(|ack| (None, ack))) {
                    // When the fates are used up, the network is reliable, so that the test ends.
                    let (lost, copied, delay) = fates.next().unwrap_or((1, 1, 0));
                    if lost != 0 {
                        late.push((turn + delay, item.0.clone(), item.1));
                    }
                    if copied == 0 {
                        late.push((turn + delay / 2, item.0, item.1));
                    }
                }
                let (here, rest) = late.into_iter().partition(|item| item.0 <= turn);
                late = rest;
                let here: Vec<_> = here;
                for (_, frame, ack) in here {
                    match frame {
                        Some(frame) => {
                            let result = receiver.receive(&frame, |record| delivered.push(record.to_vec()));
                            prop_assert_eq!(result, Ok(()));
                        }
                        None => sender.acknowledge(ack),
                    }
                    prop_assert!(receiver.held_bytes() <= held_max);
                }
                prop_assert_eq!(&delivered[..], &pushed[..delivered.len()]);
                prop_assert_eq!(receiver.next_expected(), delivered.len() as u64 + 1);
                prop_assert!(sender.acknowledged() <= delivered.len() as u64);
                if pushed.len() == lens.len() && sender.is_idle() {
                    break;
                }
                now += 5_000;
            }
            prop_assert_eq!(delivered, pushed);
            prop_assert_eq!((sender.pending_bytes(), receiver.held_bytes()), (0, 0));
        }

        #[test]
        fn bytes_from_anyone_never_panic(body in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = LogReceiver::new(1_000).receive(&body, |_| {});
        }
    }

    #[test]
    fn an_idle_pair_takes_48_bytes() {
        assert_eq!(size_of::<LogSender>() + size_of::<LogReceiver>(), 48);
    }

    #[test]
    fn a_frame_body_has_this_layout() {
        let mut sender = LogSender::new(1_000);
        sender.push(b"ab").unwrap();
        sender.push(b"").unwrap();
        assert_eq!(frames(&mut sender, 0, 1_200), [b"\x01\0\0\0\0\0\0\0\x02\0\x02\0ab\0\0"]);
    }

    #[test]
    fn repeats_slow_down_to_one_a_second() {
        let mut sender = LogSender::new(1_000);
        sender.push(b"x").unwrap();
        assert_eq!(sender.deadline(RTO), Some(0));
        let mut times = Vec::new();
        for now in 0..4_000 {
            if !frames(&mut sender, now * 1_000, 1_200).is_empty() {
                times.push(now);
            }
        }
        assert_eq!(times, [0, 20, 60, 140, 300, 620, 1_260, 2_260, 3_260]);
        assert_eq!(sender.deadline(RTO), Some(4_260_000));
    }

    #[test]
    fn records_in_reported_datagrams_without_acknowledgement_are_repeated_at_once() {
        let mut sender = LogSender::new(1_000);
        sender.push(b"x").unwrap();
        let mut times = Vec::new();
        for now in 0..3_000 {
            if now >= 3 {
                sender.heard(100 + now - 3); // the peer reports a datagram three milliseconds later
            }
            if !frames(&mut sender, now * 1_000, 1_200).is_empty() {
                times.push(now);
            }
        }
        // A peer that answers forever and never acknowledges gets no more prompt repeats; then only timeouts count.
        assert_eq!(times, [0, 3, 6, 9, 12, 15, 18, 21, 24, 1_024, 2_024]);
    }

    #[test]
    fn an_early_repeat_does_not_delay_the_timeouts_repeat() {
        let mut sender = LogSender::new(1_000);
        sender.send_again_after(10_000);
        sender.push(b"x").unwrap();
        let sent = |sender: &mut LogSender, until: u64| {
            let times = (0..until).filter(|now| !frames(sender, now * 1_000, 1_200).is_empty());
            times.collect::<Vec<_>>()
        };
        assert_eq!(sent(&mut sender, 400), [0, 10, 20, 60, 140, 300]);
        sender.acknowledge(1);
        sender.push(b"y").unwrap();
        assert_eq!(sent(&mut sender, 5), [0]);
        sender.acknowledge(2);
        assert_eq!((sent(&mut sender, 100), sender.deadline(RTO)), (vec![], None));
    }

    #[test]
    fn no_early_repeat_if_many_records_are_in_flight_or_a_loss_is_known() {
        let mut sender = LogSender::new(1 << 20);
        sender.send_again_after(10_000);
        for number in 0..=LOG_AGAIN_RECORDS_MAX as u64 {
            sender.push(&record(number, 40)).unwrap();
        }
        frames(&mut sender, 0, 1_200);
        sender.acknowledge(10);
        assert_eq!(sender.deadline(RTO), Some(RTO));
        sender.acknowledge(u64::MAX);
        sender.push(b"x").unwrap();
        frames(&mut sender, 1_000, 1_200);
        sender.heard(101);
        assert_eq!(frames(&mut sender, 2_000, 1_200).len(), 1);
        assert_eq!(
            sender.deadline(RTO),
            Some(2_000 + 2 * RTO),
            "a repeat, and the only one"
        );
    }

    #[test]
    fn only_the_lost_records_of_a_burst_are_repeated_at_once() {
        let mut sender = LogSender::new(1 << 20);
        let mut buf = [0; 1_200];
        for carrier in 1..=5 {
            sender.push(&record(carrier, 1_000)).unwrap();
            assert!(sender.next_frame(0, RTO, carrier, &mut buf).is_some());
        }
        sender.acknowledge(1);
        sender.heard(5);
        assert!(sender.has_due(1, RTO));
        assert!(sender.next_frame(1, RTO, 6, &mut buf).is_some());
        assert_eq!(buf[0], 2, "the second");
        assert!(!sender.has_due(1, RTO), "the others have perhaps come");
        sender.acknowledge(5);
        assert!(sender.is_idle());
    }

    #[test]
    fn data_in_flight_is_bounded() {
        let mut sender = LogSender::new(1 << 20);
        for number in 0..100 {
            sender.push(&record(number, 1_000)).unwrap();
        }
        let first = frames(&mut sender, 0, 1_200);
        assert_eq!(first.len(), LOG_FLIGHT_BYTES_MAX / 1_002);
        assert_eq!(sender.deadline(RTO), Some(RTO));
        sender.acknowledge(1);
        assert!(sender.has_due(1, RTO));
        assert_eq!(frames(&mut sender, 1, 1_200).len(), 1);
    }

    #[test]
    fn a_full_log_refuses_records() {
        let mut sender = LogSender::new(100);
        assert_eq!(sender.push(&[0; 1_101]), Err(PushError::TooLong));
        assert_eq!(sender.push(&[0; 36]), Ok(1));
        assert_eq!(sender.push(&[0; 1]), Err(PushError::Full));
        assert_eq!(sender.push(&[]), Ok(2));
        assert_eq!(sender.pending_bytes(), 100);
    }

    #[test]
    fn unsent_records_cannot_be_acknowledged() {
        let mut sender = LogSender::new(1_000);
        sender.push(b"a").unwrap();
        sender.acknowledge(u64::MAX);
        assert_eq!((sender.acknowledged(), sender.is_idle()), (0, false));
        frames(&mut sender, 0, 1_200);
        sender.acknowledge(u64::MAX);
        assert_eq!((sender.acknowledged(), sender.is_idle()), (1, true));
    }

    #[test]
    fn a_malformed_body_delivers_nothing() {
        let mut sender = LogSender::new(1_000);
        sender.push(b"ab").unwrap();
        sender.push(b"cd").unwrap();
        let good = frames(&mut sender, 0, 1_200).remove(0);
        let mut long = good.clone();
        long.push(0);
        let mut zero = good.clone();
        zero[0] = 0;
        let mut none = good[..10].to_vec();
        none[8] = 0;
        let mut past = good.clone();
        past[..8].fill(0xff);
        let mut receiver = LogReceiver::new(1_000);
        for bad in [
            &good[..0],
            &good[..9],
            &good[..good.len() - 1],
            &long,
            &zero,
            &none,
            &past,
        ] {
            assert_eq!(receiver.receive(bad, |_| panic!("delivered")), Err(Malformed));
        }
        assert!(!receiver.ack_due());
        let mut count = 0;
        receiver.receive(&good, |_| count += 1).unwrap();
        assert_eq!((count, receiver.take_ack(), receiver.ack_due()), (2, 2, false));
    }
}
