//! One room that this client publishes to: unacknowledged messages, credit, due repeats.

use std::collections::VecDeque;

use muster_transport::{soonest, Code, Micros, Writer};

use crate::chunks::split;
use crate::limits;
use crate::wire::publish::{Ack, Publish, ACK_RANGES, PROMPT, PUBLISH, PUBLISHED, PUBLISH_MESSAGES};
use crate::wire::room::{HEADERS, LAST};
use crate::wire::StreamId;

/// Minimum and maximum interval between repeats of an unacknowledged message.
pub const REPEAT_MIN: Micros = 2_000;
pub const REPEAT_MAX: Micros = 1_000_000;
/// The interval before an acknowledgement has been timed.
const REPEAT_FIRST: Micros = 40_000;
/// The interval doubles up to this while no acknowledgement comes, unless the owner is further away: an owner that
/// returns silently is found within this time.
const BACK_OFF_MAX: Micros = 250_000;
/// Number of messages repeated when no acknowledgement comes.
const PROBES: usize = 2;
/// A message that an acknowledgement does not cover may be this much slower than the one before it.
const BEYOND_SLACK: Micros = 1_000;
/// How often a publisher without credit asks the owner.
pub const POLL_EVERY: Micros = 100_000;
/// Wait before asking an owner again that is not ready, or a proxy whose user exceeds the rate, unless the reply
/// names a longer one.
pub const NOT_READY_WAIT: Micros = 100_000;
/// Longest such wait: a limit may have been raised meanwhile.
const HOLD_MAX: Micros = 60_000_000;
/// Acknowledgements that took longer are not timed.
const SAMPLE_MAX: Micros = 60_000_000;

struct Unacked {
    data: Box<[u8]>,
    flags: u8,
    ticket: u64,
    sent_at: Option<Micros>,
    repeated: bool,
    /// The owner lacks it, and has later ones.
    missing: bool,
    due: bool,
}

impl Unacked {
    /// How long the owner may delay its acknowledgement of the message.
    fn company(&self) -> Micros {
        if self.flags & PROMPT != 0 {
            0
        } else {
            limits::PUBLISH_ACK_DELAY_MAX
        }
    }
}

/// The time stamp of a frame.
fn clock(now: Micros) -> u32 {
    (now as u32).max(1)
}

/// Why a message is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishError {
    /// Out of credit: wait for the room to become writable.
    WouldBlock,
    TooLong,
    /// The room was refused.
    Refused(Code),
}

/// A message that was acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    pub ticket: u64,
    pub stream: StreamId,
    pub offset: u64,
}

/// A room opened for publishing.
pub struct Publication {
    pub name: Box<str>,
    /// The program's number for it.
    pub number: u32,
    /// The count of messages published when this room was last used; it orders rooms by their last use.
    pub used: u64,
    pub request: u32,
    pub handle: Option<u32>,
    pub incarnation: u64,
    pub retry_at: Option<Micros>,
    /// How often in a row it was temporarily refused.
    pub refusals: u32,
    pub refused: Option<Code>,
    /// The program was told to wait.
    pub waiting: bool,
    pub published: u64,
    pub repeated: u64,
    unacked: VecDeque<Unacked>,
    /// Sequence of the first of `unacked`.
    low: u64,
    bytes: usize,
    credit_messages: usize,
    credit_bytes: usize,
    /// Index of the first message that was never sent.
    unsent: usize,
    /// Smoothed time from sending a frame to its acknowledgement.
    ack_rtt: Micros,
    ack_var: Micros,
    /// The highest sequence that the owner has; and the time from which messages above it, or reported missing, count
    /// as lost.
    highest: u64,
    lost_at: Option<Micros>,
    any_due: bool,
    /// When the oldest messages are repeated, and the interval, which doubles until an acknowledgement is timed.
    repeat_at: Micros,
    repeat_wait: Micros,
    /// The owner was away until then, or is far: the first acknowledgement of a frame that left later tells which.
    timed_from: Option<Micros>,
    poll_at: Option<Micros>,
    poll_due: bool,
    /// Until when the owner accepts nothing, and why. Nothing is sent before, and little until it accepts again.
    hold_until: Option<Micros>,
    pub put_off: Option<Code>,
    /// The number of unacknowledged chunks of messages with headers, which wait until the server passes these on.
    headed: usize,
    passes_headers: bool,
}

impl Publication {
    pub fn new(name: &str, number: u32, request: u32, incarnation: u64) -> Self {
        Publication {
            name: name.into(),
            number,
            used: 0,
            request,
            handle: None,
            incarnation,
            retry_at: None,
            refusals: 0,
            refused: None,
            waiting: false,
            published: 0,
            repeated: 0,
            unacked: VecDeque::new(),
            low: 1,
            bytes: 0,
            credit_messages: limits::CREDIT_MESSAGES as usize,
            credit_bytes: limits::CREDIT_BYTES,
            unsent: 0,
            ack_rtt: 0,
            ack_var: 0,
            highest: 0,
            lost_at: None,
            any_due: false,
            repeat_at: 0,
            repeat_wait: REPEAT_FIRST,
            timed_from: None,
            poll_at: None,
            poll_due: false,
            hold_until: None,
            put_off: None,
            headed: 0,
            passes_headers: false,
        }
    }

    /// Whether no message and no caller waits.
    pub fn is_idle(&self) -> bool {
        self.refused.is_some() || self.unacked.is_empty() && !self.waiting
    }

    /// Number of unacknowledged messages (each chunk counts).
    pub fn unacknowledged(&self) -> usize {
        self.unacked.len()
    }

    /// Sequence of the first unacknowledged message, or else of the next one. It never falls.
    pub fn low(&self) -> u64 {
        self.low
    }

    /// Accepts a message if there is credit for all of it. The acknowledgement names `ticket`, unless it is 0.
    pub fn push(&mut self, data: &[u8], ticket: u64, chunk_max: usize) -> Result<(), PublishError> {
        self.push_as(0, data, ticket, chunk_max)
    }

    /// The same for a message with this block of headers ([`encode`](crate::headers::encode)), which must fit into one chunk. Both
    /// together are as long as a message may be.
    pub fn push_headed(
        &mut self,
        headers: &[u8],
        data: &[u8],
        ticket: u64,
        chunk_max: usize,
    ) -> Result<(), PublishError> {
        match headers.len() {
            0 => self.push(data, ticket, chunk_max),
            len if len > chunk_max || len + data.len() > limits::MESSAGE_BYTES_MAX => Err(PublishError::TooLong),
            _ => self.push_as(HEADERS, &[headers, data].concat(), ticket, chunk_max),
        }
    }

    fn push_as(&mut self, also: u8, data: &[u8], ticket: u64, chunk_max: usize) -> Result<(), PublishError> {
        if let Some(code) = self.refused {
            return Err(PublishError::Refused(code));
        }
        let chunks = split(data, chunk_max).map_err(|_| PublishError::TooLong)?;
        let fits =
            self.unacked.len() + chunks.len() <= self.credit_messages && self.bytes + data.len() <= self.credit_bytes;
        if !fits {
            self.waiting = true;
            return Err(PublishError::WouldBlock);
        }
        if also & HEADERS != 0 {
            self.headed += chunks.len();
        }
        for (flags, chunk) in chunks {
            let ticket = if flags & LAST != 0 { ticket } else { 0 };
            self.unacked.push_back(Unacked {
                data: chunk.into(),
                flags: flags | also | if ticket == 0 { 0 } else { PROMPT },
                ticket,
                sent_at: None,
                repeated: false,
                missing: false,
                due: true,
            });
        }
        self.bytes += data.len();
        Ok(())
    }

    /// Takes the owner's acknowledgement; calls `done` for each message with a ticket.
    pub fn acknowledged(&mut self, now: Micros, ack: &Ack, mut done: impl FnMut(Published)) {
        let mut run = 0;
        let mut progress = false;
        if ack.code == Code::Ok && ack.echo != 0 {
            self.timed(now, clock(now).wrapping_sub(ack.echo));
        }
        while self.low <= ack.cumulative {
            let Some(message) = self.unacked.front() else {
                self.low = ack.cumulative + 1;
                break;
            };
            if message.ticket != 0 {
                while ack
                    .runs
                    .get(run)
                    .is_some_and(|(first, _, count)| first + u64::from(*count) <= self.low)
                {
                    run += 1;
                }
                let Some((first, offset, _)) = ack.runs.get(run).filter(|(first, _, _)| *first <= self.low) else {
                    break; // its offset was in a lost acknowledgement: once repeated, the owner sends it again
                };
                done(Published {
                    ticket: message.ticket,
                    stream: ack.stream,
                    offset: offset + (self.low - first),
                });
            }
            progress = true;
            self.bytes -= message.data.len();
            self.published += u64::from(message.flags & LAST != 0);
            self.headed -= usize::from(message.flags & HEADERS != 0);
            self.unacked.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
            self.low += 1;
        }
        self.credit_messages = usize::from(ack.credit_messages);
        self.credit_bytes = ack.credit_bytes as usize;
        self.poll_at = (self.credit_messages == 0).then_some(now + POLL_EVERY);
        if ack.code.retry() {
            self.afresh();
            self.put_off = Some(ack.code);
            let wait = ack.wait().unwrap_or(0).clamp(NOT_READY_WAIT, HOLD_MAX);
            self.hold_until = Some(now + wait);
            self.repeat_at = now + wait + self.repeat_wait;
            return;
        }
        if ack.code != Code::Ok {
            return self.refuse(ack.code);
        }
        self.hold_until = None;
        self.put_off = None;
        if progress {
            self.repeat_at = now + self.repeat_wait + self.company();
        }
        self.highest = ack.highest;
        self.note_missing(&ack.missing);
        self.any_due |= self.unacked.iter().take(self.unsent).any(|message| message.due);
        self.repeat_lost(now);
    }

    /// Marks the sequences that the owner reports as missing; it has all others below the last one reported.
    fn note_missing(&mut self, missing: &[(u64, u64)]) {
        let kept = usize::try_from((self.highest + 1).saturating_sub(self.low)).unwrap_or(usize::MAX);
        let mut ranges = missing.iter().copied().peekable();
        for (sequence, message) in (self.low..).zip(self.unacked.iter_mut().take(kept.min(self.unsent))) {
            while ranges.next_if(|(_, last)| *last < sequence).is_some() {}
            match ranges.peek() {
                Some((first, _)) => message.missing = *first <= sequence,
                None if missing.len() < ACK_RANGES => message.missing = false,
                None => break,
            }
        }
    }

    /// How long the owner may delay the acknowledgement of the oldest message.
    fn company(&self) -> Micros {
        self.unacked.front().map_or(0, Unacked::company)
    }

    /// An acknowledgement took `sample` microseconds.
    fn timed(&mut self, now: Micros, sample: u32) {
        let sample = Micros::from(sample).max(1);
        if sample > SAMPLE_MAX {
            return; // the clock is of an earlier turn, or not ours
        }
        let tells = self.timed_from.map(|from| now.saturating_sub(sample) >= from);
        if tells == Some(false) {
            return;
        }
        let late = sample > self.patience();
        let away = tells.is_none() && late && (self.put_off.is_some() || self.in_doubt());
        let off = self.ack_rtt.abs_diff(sample);
        (self.ack_rtt, self.ack_var) = match self.ack_rtt {
            // Later than the patience: the path has changed. Much sooner: its queue is gone.
            known if known == 0 || late || tells.is_some() => (sample, sample / 2),
            known if sample < known / 4 => ((known + sample) / 2, self.ack_var / 2),
            known => ((known * 7 + sample) / 8, (self.ack_var * 3 + off) / 4),
        };
        self.repeat_wait = self.patience();
        self.timed_from = away.then_some(now);
        if away {
            self.repeat_wait = self.repeat_wait.min(BACK_OFF_MAX);
        }
    }

    /// How long an acknowledgement may take (RFC 6298).
    fn patience(&self) -> Micros {
        if self.ack_rtt == 0 {
            REPEAT_FIRST
        } else {
            (self.ack_rtt + 4 * self.ack_var).clamp(REPEAT_MIN, REPEAT_MAX)
        }
    }

    /// Whether the measured round trip may be outdated.
    fn in_doubt(&self) -> bool {
        self.ack_rtt == 0 || self.repeat_wait > self.patience()
    }

    /// Repeats sequences reported missing, at once if they were sent only once. Messages beyond all that the owner
    /// has are repeated after each round trip: they are lost, or were dropped as too far ahead.
    fn repeat_lost(&mut self, now: Micros) {
        let wait = match self.ack_rtt {
            0 => self.repeat_wait,
            rtt => rtt + rtt / 4 + BEYOND_SLACK,
        };
        let in_doubt = self.in_doubt();
        let beyond = self.highest.saturating_add(1).saturating_sub(self.low);
        let beyond = usize::try_from(beyond).unwrap_or(usize::MAX);
        let mut doubted = false;
        self.lost_at = None;
        for (index, message) in self.unacked.iter_mut().take(self.unsent).enumerate() {
            if message.due || index < beyond && !message.missing {
                continue;
            }
            let Some(sent_at) = message.sent_at else { continue };
            let at = match index < beyond {
                true if !message.repeated => sent_at,
                true => sent_at + wait,
                false if in_doubt => sent_at + self.repeat_wait + message.company(),
                false => sent_at + wait + message.company(),
            };
            if now >= at {
                message.due = true;
                self.any_due = true;
                doubted |= in_doubt && index >= beyond;
            } else {
                soonest(&mut self.lost_at, Some(at));
            }
        }
        if doubted {
            self.back_off();
        }
    }

    fn back_off(&mut self) {
        self.repeat_wait = (self.repeat_wait * 2).min(BACK_OFF_MAX.max(self.patience()));
    }

    /// The room is refused: unacknowledged messages are dropped.
    pub fn refuse(&mut self, code: Code) {
        self.refused = Some(code);
        self.unacked.clear();
        (self.bytes, self.unsent, self.headed) = (0, 0, 0);
        (self.retry_at, self.poll_at, self.lost_at, self.hold_until) = (None, None, None, None);
    }

    /// The proxy opened the room with this handle.
    pub fn opened(&mut self, now: Micros, handle: u32) {
        self.handle = Some(handle);
        (self.retry_at, self.refusals) = (None, 0);
        self.repeat_at = now + self.repeat_wait;
    }

    /// The proxy is gone: everything unacknowledged is sent again through the next one.
    pub fn lost_session(&mut self) {
        self.handle = None;
        self.passes_headers = false;
        self.hold_until = None;
        self.afresh();
    }

    /// No unacknowledged message is in flight anymore: resets all to unsent.
    fn afresh(&mut self) {
        self.repeat_wait = self.patience();
        self.highest = 0;
        self.lost_at = None;
        self.any_due = true;
        for message in &mut self.unacked {
            (message.sent_at, message.repeated, message.missing, message.due) = (None, false, false, true);
        }
    }

    /// Runs the due timers: waits for the owner, for credit and for acknowledgements.
    pub fn expire(&mut self, now: Micros) {
        if self.hold_until.is_some_and(|at| now >= at) {
            self.hold_until = None;
        }
        if self.poll_at.is_some_and(|at| now >= at) {
            self.poll_at = Some(now + POLL_EVERY);
            self.poll_due = true;
        }
        if self.lost_at.is_some_and(|at| now >= at) {
            self.repeat_lost(now);
        }
        if self.handle.is_none() || self.unacked.is_empty() || self.unsent == 0 || now < self.repeat_at {
            return;
        }
        // The oldest message triggers an acknowledgement, which names the other missing ones: a burst of repeats
        // would only add load.
        for message in self
            .unacked
            .iter_mut()
            .take(PROBES)
            .filter(|message| message.sent_at.is_some())
        {
            message.due = true;
            self.any_due = true;
        }
        self.back_off();
        self.repeat_at = now + self.repeat_wait;
    }

    /// When this room needs time next.
    pub fn deadline(&self) -> Option<Micros> {
        let repeat = (self.handle.is_some() && !self.unacked.is_empty() && self.unsent > 0).then_some(self.repeat_at);
        let lost = self.lost_at.filter(|_| self.handle.is_some());
        [repeat, lost, self.poll_at, self.hold_until, self.retry_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// How long nothing may be sent because the owner or the proxy accepts nothing now.
    pub fn held_for(&self, now: Micros) -> Micros {
        self.hold_until.map_or(0, |at| at.saturating_sub(now))
    }

    /// Whether anything can be sent now.
    pub fn is_due(&self) -> bool {
        self.handle.is_some()
            && self.refused.is_none()
            && self.hold_until.is_none()
            && (self.unsent < self.reach() || self.any_due || self.poll_due)
    }

    /// How many unacknowledged messages may be in flight: all, a few while the owner accepts none, or those before the first with
    /// headers while the server does not pass these on.
    fn reach(&self) -> usize {
        let all = match self.put_off {
            Some(_) => self.unacked.len().min(PROBES),
            None => self.unacked.len(),
        };
        if self.headed == 0 || self.passes_headers {
            return all;
        }
        let headed = self.unacked.iter().position(|message| message.flags & HEADERS != 0);
        headed.map_or(all, |at| at.min(all))
    }

    /// Whether a message with headers waits for a server that passes these on.
    #[cfg(feature = "edge")]
    pub fn waits_for_headers(&self) -> bool {
        self.headed > 0 && !self.passes_headers
    }

    /// Whether the server passes on messages with headers.
    pub fn set_passes_headers(&mut self, passes: bool) {
        self.any_due |= passes && !self.passes_headers;
        self.passes_headers = passes;
    }

    /// Writes one publish frame, if something is due and fits. Returns whether it wrote one.
    pub fn write(&mut self, now: Micros, body_max: usize, writer: &mut Writer<'_>) -> bool {
        let Some(handle) = self.handle.filter(|_| self.is_due()) else {
            return false;
        };
        let mut body = [0; 1500];
        let space = body_max.min(writer.room().saturating_sub(PUBLISH)).min(body.len());
        let reach = self.reach();
        let due = |message: &Unacked| message.due;
        let lacking = self
            .any_due
            .then(|| self.unacked.iter().take(self.unsent.min(reach)).position(due))
            .flatten();
        // Messages beyond the reach wait for the owner's next report.
        self.any_due = lacking.is_some();
        let start = lacking.unwrap_or(self.unsent);
        let mut messages = Writer::new(&mut body[..space]);
        let mut count = 0;
        let end = reach.min(self.unacked.len());
        let first = start.min(end);
        // A wait that stops all sending.
        let stops = self.waiting || self.put_off.is_some();
        for (index, message) in (first..).zip(self.unacked.range_mut(first..end)) {
            if count == PUBLISH_MESSAGES || !message.due || messages.room() < PUBLISHED + message.data.len() {
                break;
            }
            self.repeated += u64::from(index < self.unsent);
            message.repeated |= message.sent_at.is_some();
            if message.repeated || stops && index + 1 == end {
                message.flags |= PROMPT;
            }
            messages
                .u16(message.data.len() as u16)
                .u8(message.flags)
                .put(&message.data);
            message.sent_at = Some(now);
            message.due = false;
            count += 1;
        }
        if count == 0 && !self.poll_due {
            return false;
        }
        self.poll_due = false;
        if self.unsent == 0 {
            self.repeat_at = now + self.repeat_wait + self.company();
        }
        self.unsent = self.unsent.max(start + count);
        let first = self.low + start as u64;
        let len = messages.len();
        Publish {
            handle,
            sent_at: clock(now),
            low: self.low,
            first,
            count: count as u8,
            messages: &body[..len],
        }
        .write(writer)
    }

    /// Whether the program that was told to wait can continue.
    pub fn take_writable(&mut self) -> bool {
        let writable = self.waiting
            && self.unacked.len() * 4 <= self.credit_messages * 3
            && self.bytes * 4 <= self.credit_bytes * 3;
        if writable {
            self.waiting = false;
        }
        writable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Publishes `count` messages, one each `every`, to an owner with round trip `rtt` that loses nothing; returns
    /// how many were repeated.
    fn repeats(publication: &mut Publication, start: Micros, count: u64, every: Micros, rtt: Micros) -> u64 {
        let (mut now, mut acks, before) = (start, VecDeque::new(), publication.repeated);
        let mut owned = publication.low - 1;
        let end = owned + count;
        for step in 0.. {
            now = start + step * 1_000;
            if owned + (publication.unacked.len() as u64) < end && (now - start) % every == 0 {
                publication.push(b"message", 0, 1_000).unwrap();
            }
            while acks.front().is_some_and(|(at, _)| *at <= now) {
                let (_, ack) = acks.pop_front().unwrap();
                publication.acknowledged(now, &ack, |_| {});
            }
            publication.expire(now);
            let mut bytes = [0; 1_200];
            let mut writer = Writer::new(&mut bytes);
            while publication.is_due() && publication.write(now, 1_000, &mut writer) {}
            if !writer.is_empty() {
                let sent = publication.low + publication.unsent as u64 - 1;
                let ack = Ack {
                    handle: 1,
                    echo: clock(now),
                    code: Code::Ok,
                    cumulative: sent,
                    highest: sent,
                    credit_messages: 256,
                    credit_bytes: 1 << 18,
                    stream: StreamId::default(),
                    missing: vec![],
                    runs: vec![],
                };
                acks.push_back((now + rtt, ack));
            }
            owned = publication.low - 1;
            if owned == end {
                break;
            }
        }
        assert!(now > start);
        publication.repeated - before
    }

    /// A publication whose owner has been silent for long after quick acknowledgements.
    fn left_alone() -> (Publication, Micros) {
        let mut publication = Publication::new("live:room", 0, 1, 1);
        publication.opened(1, 1);
        repeats(&mut publication, 1, 200, 10_000, 1_000);
        publication.push(b"message", 0, 1_000).unwrap();
        let start = 10_000_000;
        for now in (start..start + 5_000_000).step_by(1_000) {
            sends(&mut publication, now);
        }
        assert_eq!(publication.repeat_wait, BACK_OFF_MAX);
        (publication, start + 5_000_000)
    }

    fn sends(publication: &mut Publication, now: Micros) -> bool {
        publication.expire(now);
        publication.is_due() && publication.write(now, 1_000, &mut Writer::new(&mut [0; 1_200]))
    }

    /// Number of sendings in the next 150 ms.
    fn pace(publication: &mut Publication, from: Micros) -> usize {
        let times = (from..from + 150_000).step_by(1_000);
        times.filter(|now| sends(publication, *now)).count()
    }

    #[test]
    fn repeats_are_fast_again_once_the_owner_returns() {
        let (mut silent, now) = left_alone();
        assert!(pace(&mut silent, now) <= 1);
        let word = |publication: &Publication, now, code, epoch| Ack {
            handle: 1,
            echo: clock(now - 1_000),
            code,
            cumulative: publication.low - 1,
            highest: publication.low - 1,
            credit_messages: 256,
            credit_bytes: 1 << 18,
            stream: StreamId {
                epoch,
                ..StreamId::default()
            },
            missing: vec![],
            runs: vec![],
        };
        let (mut not_ready, now) = left_alone();
        not_ready.acknowledged(now, &word(&not_ready, now, Code::NotReady, 1), |_| {});
        let often = pace(&mut not_ready, now);
        assert!((3..=7).contains(&often), "{often} times once it is asked again");
        let (mut anew, now) = left_alone();
        anew.acknowledged(now, &word(&anew, now, Code::Ok, 1), |_| {});
        let often = pace(&mut anew, now);
        assert!((4..=8).contains(&often), "{often} times");
        let (mut another_way, now) = left_alone();
        another_way.lost_session();
        assert_eq!(pace(&mut another_way, now), 0, "there is no way yet");
        another_way.opened(now + 150_000, 1);
        let often = pace(&mut another_way, now + 150_000);
        assert!((4..=8).contains(&often), "{often} times");
    }

    #[test]
    fn a_message_is_repeated_until_its_offset_is_known() {
        let mut publication = Publication::new("live:room", 0, 1, 1);
        publication.opened(1, 1);
        (1..=3).for_each(|ticket| publication.push(b"message", ticket % 3, 1_000).unwrap());
        sends(&mut publication, 1);
        let ack = |runs: Vec<(u64, u64, u16)>| Ack {
            handle: 1,
            echo: 0,
            code: Code::Ok,
            cumulative: 3,
            highest: 3,
            credit_messages: 256,
            credit_bytes: 1 << 18,
            stream: StreamId::default(),
            missing: vec![],
            runs,
        };
        let mut placed = Vec::new();
        publication.acknowledged(2, &ack(vec![(2, 12, 2)]), |done| {
            placed.push((done.ticket, done.offset))
        });
        assert_eq!(
            (placed.len(), publication.unacknowledged()),
            (0, 3),
            "a publisher that waits for the first has no offset"
        );
        publication.acknowledged(3, &ack(vec![(1, 11, 1)]), |done| {
            placed.push((done.ticket, done.offset))
        });
        assert_eq!((&placed[..], publication.unacknowledged()), (&[(1, 11)][..], 2));
        assert!(
            (4..1_000_000).step_by(1_000).any(|now| sends(&mut publication, now)),
            "it asks again"
        );
        publication.acknowledged(5, &ack(vec![(2, 12, 2)]), |done| {
            placed.push((done.ticket, done.offset))
        });
        assert_eq!(
            (&placed[..], publication.unacknowledged()),
            (&[(1, 11), (2, 12)][..], 0)
        );
    }

    #[test]
    fn waiting_for_an_absent_owner_is_not_taken_as_its_round_trip() {
        for refused in [false, true] {
            let (mut publication, mut now) = left_alone();
            let heard = |publication: &mut Publication, now, code, took: Micros| {
                let ack = Ack {
                    handle: 1,
                    echo: clock(now - took),
                    code,
                    cumulative: publication.low - 1,
                    highest: publication.low - 1,
                    credit_messages: 256,
                    credit_bytes: 1 << 18,
                    stream: StreamId::default(),
                    missing: vec![],
                    runs: vec![],
                };
                publication.acknowledged(now, &ack, |_| {});
            };
            if refused {
                heard(&mut publication, now, Code::NotReady, 2_000);
                now += NOT_READY_WAIT;
            }
            for took in [900_000, 850_000, 800_000] {
                heard(&mut publication, now, Code::Ok, took);
            }
            let again = (now..)
                .step_by(1_000)
                .find(|now| sends(&mut publication, *now))
                .unwrap();
            assert!(again <= now + BACK_OFF_MAX, "{} us", again - now);
            heard(&mut publication, again + 2_000, Code::Ok, 2_000);
            assert!(publication.patience() < 20_000, "{} us", publication.patience());
        }
    }

    #[test]
    fn a_far_owner_is_not_taken_for_a_lossy_one() {
        for rtt in [80_000, 300_000, 900_000] {
            let mut publication = Publication::new("live:room", 0, 1, 1);
            publication.opened(1, 1);
            let repeated = repeats(&mut publication, 1, 200, 36_000, rtt);
            assert!(repeated <= 40, "{repeated} of 200 messages were repeated at {rtt} us");
            // The same for a near owner that moves away.
            let mut publication = Publication::new("live:room", 0, 1, 1);
            publication.opened(1, 1);
            assert_eq!(repeats(&mut publication, 1, 200, 36_000, 4_000), 0);
            let repeated = repeats(&mut publication, 1_000_000_000, 200, 36_000, rtt);
            assert!(repeated <= 40, "{repeated} of 200 messages were repeated at {rtt} us");
        }
    }

    /// A path that loses one datagram in this many each way, and an owner behind it that holds early messages up to
    /// its bound.
    struct Path {
        one_in: u64,
        dice: u64,
        now: Micros,
        owner: Owner,
        /// The path delays everything and loses nothing.
        shut: bool,
        there: VecDeque<(Micros, Vec<u8>)>,
        back: VecDeque<(Micros, Ack)>,
        datagrams: u64,
    }

    /// The owner, if it is reachable and ready.
    #[derive(Default)]
    struct Owner {
        epoch: u32,
        here: bool,
        ready: bool,
        cumulative: u64,
        held: std::collections::BTreeSet<u64>,
    }

    impl Owner {
        fn new(epoch: u32, ready: bool) -> Self {
            Owner {
                epoch,
                here: true,
                ready,
                ..Owner::default()
            }
        }
    }

    const ONE_WAY: Micros = 2_000;

    impl Path {
        fn new(one_in: u64, seed: u64) -> Self {
            let (there, back) = Default::default();
            let dice = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            Path {
                one_in,
                dice,
                now: 1,
                owner: Owner::new(1, true),
                shut: false,
                there,
                back,
                datagrams: 0,
            }
        }

        fn loses(&mut self) -> bool {
            self.dice ^= self.dice << 13;
            self.dice ^= self.dice >> 7;
            self.dice ^= self.dice << 17;
            self.dice % self.one_in == 0
        }

        fn arrives(&mut self, body: &[u8]) -> Option<Ack> {
            let frame = Publish::read(body).unwrap();
            let owner = &mut self.owner;
            if !owner.here {
                return None;
            }
            if owner.ready {
                owner.cumulative = owner.cumulative.max(frame.low - 1);
                for at in frame.first..frame.first + u64::from(frame.count) {
                    if at == owner.cumulative + 1 || owner.held.len() < limits::HELD_MESSAGES_MAX {
                        owner.held.insert(at);
                    }
                    while owner.held.remove(&(owner.cumulative + 1)) {
                        owner.cumulative += 1;
                    }
                }
                owner.held = owner.held.split_off(&owner.cumulative);
            }
            let highest = owner.held.last().copied().unwrap_or(owner.cumulative);
            let mut missing: Vec<(u64, u64)> = Vec::new();
            let mut next = owner.cumulative + 1;
            for at in owner.held.iter().copied() {
                if at > next && missing.len() < ACK_RANGES {
                    missing.push((next, at - 1));
                }
                next = at + 1;
            }
            Some(Ack {
                handle: 1,
                echo: frame.sent_at,
                code: if owner.ready { Code::Ok } else { Code::NotReady },
                cumulative: owner.cumulative,
                highest,
                credit_messages: 256,
                credit_bytes: 1 << 18,
                stream: StreamId {
                    node: 2,
                    epoch: owner.epoch,
                    generation: 1,
                },
                missing,
                runs: vec![],
            })
        }

        /// Runs until `end`, or until all is acknowledged; returns the elapsed time.
        fn run(&mut self, publication: &mut Publication, time: Micros) -> Micros {
            let start = self.now;
            while self.now < start + time && publication.unacknowledged() > 0 {
                self.now += 500;
                let now = self.now;
                while !self.shut && self.there.front().is_some_and(|(at, _)| *at <= now) {
                    let (_, body) = self.there.pop_front().unwrap();
                    if let Some(ack) = self.arrives(&body).filter(|_| !self.loses()) {
                        self.back.push_back((now + ONE_WAY, ack));
                    }
                }
                while self.back.front().is_some_and(|(at, _)| *at <= now) {
                    let (_, ack) = self.back.pop_front().unwrap();
                    publication.acknowledged(now, &ack, |_| {});
                }
                publication.expire(now);
                while publication.is_due() {
                    let mut bytes = [0; 1_200];
                    let mut writer = Writer::new(&mut bytes);
                    if !publication.write(now, 1_000, &mut writer) {
                        break;
                    }
                    let len = writer.len();
                    self.datagrams += 1;
                    if !self.loses() {
                        self.there
                            .push_back((now + ONE_WAY, bytes[muster_transport::FRAME..len].to_vec()));
                    }
                }
            }
            self.now - start
        }
    }

    fn full() -> Publication {
        let mut publication = Publication::new("live:room", 0, 1, 1);
        publication.opened(1, 1);
        while publication.push(&[7; 900], 0, 1_000).is_ok() {}
        publication
    }

    const SECOND: Micros = 1_000_000;

    /// Fills the client's credit, then calls `happens`; checks the time until everything is acknowledged again.
    fn recovery(name: &str, limit: Micros, happens: impl Fn(&mut Path, &mut Publication)) {
        let mut took: Vec<(Micros, u64)> = (0..300)
            .map(|seed| {
                let (mut path, mut publication) = (Path::new(50, seed), full());
                path.run(&mut publication, 3 * ONE_WAY);
                happens(&mut path, &mut publication);
                let before = path.datagrams;
                (path.run(&mut publication, 60 * SECOND), path.datagrams - before)
            })
            .collect();
        took.sort_unstable();
        let worst = took[took.len() - 1].0;
        let datagrams: u64 = took.iter().map(|(_, datagrams)| datagrams).sum();
        eprintln!(
            "{name}: p50 {} p90 {} worst {worst} datagrams {}",
            took[150].0,
            took[270].0,
            datagrams / 300
        );
        if std::env::var("ALL").is_err() {
            assert!(worst < limit, "{name}: {worst} us");
        }
    }

    #[test]
    fn a_lost_datagram_costs_round_trips_not_seconds() {
        recovery("nothing", SECOND, |_, _| {});
        recovery("another session", SECOND, |path, publication| {
            path.owner.here = false;
            path.run(publication, 3 * SECOND);
            publication.lost_session();
            path.run(publication, SECOND);
            publication.opened(path.now, 1);
            path.owner.here = true;
        });
        recovery("an owner that was away", 2 * SECOND, |path, publication| {
            path.owner.here = false;
            path.run(publication, 3 * SECOND);
            path.owner.here = true;
        });
        recovery("what waited for the owner", SECOND, |path, publication| {
            path.shut = true;
            path.run(publication, SECOND / 3);
            path.shut = false;
        });
        recovery("another owner", 2 * SECOND, |path, publication| {
            path.owner.here = false;
            path.run(publication, 3 * SECOND);
            path.owner = Owner::new(2, true);
        });
        recovery(
            "another owner that is not ready at first",
            2 * SECOND,
            |path, publication| {
                path.owner.here = false;
                path.run(publication, 3 * SECOND);
                path.owner = Owner::new(2, false);
                path.run(publication, 2 * SECOND);
                path.owner.ready = true;
            },
        );
    }
}
