//! The unacknowledged messages of a publication: which were sent, which are due, and which the owner lacks.
//!
//! Owns the messages and their sequences. Knows no credit and no server; when a message counts as lost is a matter of
//! `timing`.

use std::collections::VecDeque;

use muster_transport::{soonest, Micros, Writer};

use super::timing::Timing;
use super::Published;
use crate::chunks::Chunks;
use crate::limits;
use crate::wire::publish::{Ack, ACK_RANGES, PROMPT, PUBLISHED, PUBLISH_MESSAGES};
use crate::wire::room::{HEADERS, LAST};

/// Number of messages repeated when no acknowledgement comes, and in flight while the owner accepts none.
const PROBES: usize = 2;

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

/// What an acknowledgement covers.
pub(super) struct Acknowledged {
    /// It covers at least one message.
    pub(super) progress: bool,
    /// Whole messages.
    pub(super) messages: u64,
}

/// Messages that were written into a frame.
pub(super) struct Filled {
    /// Sequence of the first one, and their number.
    pub(super) first: u64,
    pub(super) count: usize,
    /// The number of those that were sent before.
    pub(super) repeated: u64,
    /// None was in flight before.
    pub(super) fresh: bool,
}

/// Messages in the order of their sequences.
pub(super) struct Backlog {
    messages: VecDeque<Unacked>,
    /// Sequence of the first of `messages`.
    low: u64,
    bytes: usize,
    /// Index of the first message that was never sent.
    unsent: usize,
    /// The number of chunks of messages with headers.
    headed: usize,
    /// The highest sequence that the owner has.
    highest: u64,
    /// The time from which messages above the highest one, or reported missing, count as lost.
    lost_at: Option<Micros>,
    /// A message that was sent may be due again.
    any_due: bool,
}

impl Default for Backlog {
    fn default() -> Self {
        Backlog {
            messages: VecDeque::new(),
            low: 1,
            bytes: 0,
            unsent: 0,
            headed: 0,
            highest: 0,
            lost_at: None,
            any_due: false,
        }
    }
}

impl Backlog {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sequence of the first message, or else of the next one. It never falls.
    #[inline]
    pub(super) fn low(&self) -> u64 {
        self.low
    }

    /// Sequence of the next message that will be sent the first time.
    #[cfg(test)]
    pub(super) fn next(&self) -> u64 {
        self.low + self.unsent as u64
    }

    /// Whether a message was sent.
    #[inline]
    pub(super) fn is_in_flight(&self) -> bool {
        self.unsent > 0
    }

    /// Whether a message has headers.
    #[cfg(feature = "edge")]
    pub(super) fn is_headed(&self) -> bool {
        self.headed > 0
    }

    /// When [`Backlog::repeat_lost`] is due.
    pub(super) fn lost_at(&self) -> Option<Micros> {
        self.lost_at
    }

    /// Adds a message with these flags, which is this long.
    pub(super) fn push(&mut self, also: u8, chunks: Chunks<'_>, len: usize, ticket: u64) {
        if also & HEADERS != 0 {
            self.headed += chunks.len();
        }
        for (flags, chunk) in chunks {
            let ticket = if flags & LAST != 0 { ticket } else { 0 };
            self.messages.push_back(Unacked {
                data: chunk.into(),
                flags: flags | also | if ticket == 0 { 0 } else { PROMPT },
                ticket,
                sent_at: None,
                repeated: false,
                missing: false,
                due: true,
            });
        }
        self.bytes += len;
    }

    /// Removes what an acknowledgement covers; calls `done` for each message with a ticket.
    pub(super) fn acknowledge(&mut self, ack: &Ack, mut done: impl FnMut(Published)) -> Acknowledged {
        let (mut run, mut messages, mut progress) = (0, 0, false);
        while self.low <= ack.cumulative {
            let Some(message) = self.messages.front() else {
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
            messages += u64::from(message.flags & LAST != 0);
            self.headed -= usize::from(message.flags & HEADERS != 0);
            self.messages.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
            self.low += 1;
        }
        Acknowledged { progress, messages }
    }

    /// Marks the sequences that the owner reports as missing; it has all others below the last one reported.
    pub(super) fn note_missing(&mut self, ack: &Ack) {
        self.highest = ack.highest;
        let missing = &ack.missing;
        let kept = usize::try_from((self.highest + 1).saturating_sub(self.low)).unwrap_or(usize::MAX);
        let mut ranges = missing.iter().copied().peekable();
        for (sequence, message) in (self.low..).zip(self.messages.iter_mut().take(kept.min(self.unsent))) {
            while ranges.next_if(|(_, last)| *last < sequence).is_some() {}
            match ranges.peek() {
                Some((first, _)) => message.missing = *first <= sequence,
                None if missing.len() < ACK_RANGES => message.missing = false,
                None => break,
            }
        }
        self.any_due |= self.messages.iter().take(self.unsent).any(|message| message.due);
    }

    /// How long the owner may delay the acknowledgement of the oldest message.
    #[inline]
    pub(super) fn company(&self) -> Micros {
        self.messages.front().map_or(0, Unacked::company)
    }

    /// Repeats sequences reported missing, at once if they were sent only once. Messages beyond all that the owner
    /// has are repeated after each round trip: they are lost, or were dropped as too far ahead. Returns whether one is
    /// repeated while the round trip is in doubt.
    pub(super) fn repeat_lost(&mut self, now: Micros, timing: &Timing) -> bool {
        let (wait, in_doubt) = (timing.lost_after(), timing.in_doubt());
        let beyond = self.highest.saturating_add(1).saturating_sub(self.low);
        let beyond = usize::try_from(beyond).unwrap_or(usize::MAX);
        let mut doubted = false;
        self.lost_at = None;
        for (index, message) in self.messages.iter_mut().take(self.unsent).enumerate() {
            if message.due || index < beyond && !message.missing {
                continue;
            }
            let Some(sent_at) = message.sent_at else { continue };
            let at = match index < beyond {
                true if !message.repeated => sent_at,
                true => sent_at + wait,
                false if in_doubt => sent_at + timing.wait() + message.company(),
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
        doubted
    }

    /// No acknowledgement comes: repeats the oldest message, which triggers one that names the other missing ones. A
    /// burst of repeats would only add load.
    pub(super) fn probe(&mut self) {
        let oldest = self.messages.iter_mut().take(PROBES);
        for message in oldest.filter(|message| message.sent_at.is_some()) {
            message.due = true;
            self.any_due = true;
        }
    }

    /// Drops all messages.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        (self.bytes, self.unsent, self.headed) = (0, 0, 0);
        self.lost_at = None;
    }

    /// No message is in flight anymore: resets all to unsent.
    pub(super) fn renew(&mut self) {
        self.highest = 0;
        self.lost_at = None;
        self.any_due = true;
        for message in &mut self.messages {
            (message.sent_at, message.repeated, message.missing, message.due) = (None, false, false, true);
        }
    }

    /// How many messages may be in flight: all, a few while the owner accepts none (`put_off`), or those before the
    /// first with headers while the server does not pass these on.
    #[inline]
    pub(super) fn reach(&self, put_off: bool, passes_headers: bool) -> usize {
        let all = match put_off {
            true => self.messages.len().min(PROBES),
            false => self.messages.len(),
        };
        if self.headed == 0 || passes_headers {
            return all;
        }
        let headed = self.messages.iter().position(|message| message.flags & HEADERS != 0);
        headed.map_or(all, |at| at.min(all))
    }

    /// Whether a message within the reach can be sent.
    #[inline]
    pub(super) fn is_due(&self, reach: usize) -> bool {
        self.unsent < reach || self.any_due
    }

    /// The server passes on messages with headers, so some may be due again.
    pub(super) fn look_again(&mut self) {
        self.any_due = true;
    }

    /// Writes due messages within the reach: those to be repeated first. `stops`: the publisher waits for the
    /// acknowledgement of the last one.
    #[inline]
    pub(super) fn fill(&mut self, now: Micros, reach: usize, stops: bool, writer: &mut Writer<'_>) -> Filled {
        let due = |message: &Unacked| message.due;
        let lacking = self
            .any_due
            .then(|| self.messages.iter().take(self.unsent.min(reach)).position(due))
            .flatten();
        // Messages beyond the reach wait for the owner's next report.
        self.any_due = lacking.is_some();
        let start = lacking.unwrap_or(self.unsent);
        let (mut count, mut repeated) = (0, 0);
        let end = reach.min(self.messages.len());
        let first = start.min(end);
        for (index, message) in (first..).zip(self.messages.range_mut(first..end)) {
            if count == PUBLISH_MESSAGES || !message.due || writer.room() < PUBLISHED + message.data.len() {
                break;
            }
            repeated += u64::from(index < self.unsent);
            message.repeated |= message.sent_at.is_some();
            if message.repeated || stops && index + 1 == end {
                message.flags |= PROMPT;
            }
            writer
                .u16(message.data.len() as u16)
                .u8(message.flags)
                .put(&message.data);
            message.sent_at = Some(now);
            message.due = false;
            count += 1;
        }
        let fresh = self.unsent == 0;
        self.unsent = self.unsent.max(start + count);
        Filled {
            first: self.low + start as u64,
            count,
            repeated,
            fresh,
        }
    }
}
