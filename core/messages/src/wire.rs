//! Arrays that the system's nodes send each other, in MessagePack: fires, results, new messages.
//!
//! Owns: the order of the fields, and building and parsing arrays. Must not know: how they travel, the store,
//! callbacks. `systems/messages/shapes.py` defines the same shapes.

use rmp::{decode, encode, Marker};

use crate::schedule::{Message, State, Version, NEVER};
use crate::wheel::Millis;

/// Bytes reserved for the header of an array under construction: its count is known at the end.
const HEAD_BYTES: usize = 5;
const ARRAY_32: u8 = 0xdd;

/// The bytes have another shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record of {0} is malformed")]
pub struct Malformed(&'static str);

/// A message to call back, under a live claim until `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fire<'a> {
    pub number: u64,
    pub topic: u32,
    pub claim: Version,
    pub until: Millis,
    pub due_at: Millis,
    pub attempts: u16,
    pub envelope: &'a [u8],
}

/// The parts of a message that the schedule stores besides its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub id: &'a str,
    /// Empty: the topic's target.
    pub target: &'a str,
    /// The media type of the body.
    pub kind: &'a str,
    pub body: &'a [u8],
}

/// A worker's result of a fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The callback succeeded.
    Deliver,
    /// Another attempt at `next`, or none.
    Fail,
    /// No attempt was made: due again at `next`.
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome<'a> {
    pub number: u64,
    pub topic: u32,
    pub claim: Version,
    pub verb: Verb,
    pub next: Option<Millis>,
    /// From the due time of a first attempt to its start; -1: no attempt, or a later one.
    pub lateness_ms: i64,
    pub took_ms: f64,
    pub outcome: &'a str,
    pub status: Option<u16>,
    /// The start of the target's response.
    pub answer: &'a [u8],
}

/// A message to insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMessage<'a> {
    pub number: u64,
    pub topic: u32,
    pub due_at: Millis,
    pub expires_at: Millis,
    pub body: &'a [u8],
}

/// An array of records under construction.
pub struct Frame {
    bytes: Vec<u8>,
    count: u32,
}

impl Default for Frame {
    fn default() -> Self {
        Frame {
            bytes: vec![ARRAY_32, 0, 0, 0, 0],
            count: 0,
        }
    }
}

impl Frame {
    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The complete array, as it is sent.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[1..HEAD_BYTES].copy_from_slice(&self.count.to_be_bytes());
        self.bytes
    }

    pub fn push_fire(&mut self, fire: &Fire<'_>) {
        let out = self.next(7);
        uint(out, fire.number);
        uint(out, fire.topic.into());
        uint(out, fire.claim.into());
        uint(out, fire.until);
        uint(out, fire.due_at);
        uint(out, fire.attempts.into());
        bin(out, fire.envelope);
    }

    pub fn push_outcome(&mut self, outcome: &Outcome<'_>) {
        let out = self.next(10);
        uint(out, outcome.number);
        uint(out, outcome.topic.into());
        uint(out, outcome.claim.into());
        text(
            out,
            match outcome.verb {
                Verb::Deliver => "deliver",
                Verb::Fail => "fail",
                Verb::Release => "release",
            },
        );
        maybe(out, outcome.next);
        written(encode::write_sint(out, outcome.lateness_ms));
        written(encode::write_f64(out, outcome.took_ms));
        text(out, outcome.outcome);
        maybe(out, outcome.status.map(u64::from));
        bin(out, outcome.answer);
    }

    /// A message that is durable now (`before`: it was already).
    pub fn push_inserted(&mut self, message: &Message, before: bool) {
        let out = self.next(2);
        text(out, if before { "before" } else { "inserted" });
        written(encode::write_array_len(out, 7));
        let (state, time) = named(message.state);
        uint(out, message.id.0);
        uint(out, message.version.into());
        uint(out, message.due_at);
        maybe(out, (message.expires_at != NEVER).then_some(message.expires_at));
        uint(out, message.attempts.into());
        text(out, state);
        maybe(out, time);
    }

    /// A reply that consists only of words.
    pub fn push_words(&mut self, words: &[&str]) {
        let out = self.next(words.len() as u32);
        for word in words {
            text(out, word);
        }
    }

    fn next(&mut self, fields: u32) -> &mut Vec<u8> {
        self.count += 1;
        written(encode::write_array_len(&mut self.bytes, fields));
        &mut self.bytes
    }
}

/// The name of a state, and its time.
pub fn named(state: State) -> (&'static str, Option<Millis>) {
    match state {
        State::Scheduled => ("scheduled", None),
        State::Firing { until, .. } => ("firing", Some(until)),
        State::Retry { next } => ("retry", Some(next)),
        State::Done => ("done", None),
        State::Dead => ("dead", None),
        State::Cancelled => ("cancelled", None),
        State::Expired => ("expired", None),
    }
}

fn written<T, E>(result: Result<T, E>) {
    assert!(result.is_ok(), "a vector takes all");
}

fn uint(out: &mut Vec<u8>, value: u64) {
    written(encode::write_uint(out, value));
}

fn maybe(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        Some(value) => uint(out, value),
        None => out.push(Marker::Null.to_u8()),
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    written(encode::write_str(out, value));
}

fn bin(out: &mut Vec<u8>, value: &[u8]) {
    written(encode::write_bin(out, value));
}

/// Parses an array of fires.
pub fn fires(bytes: &[u8]) -> Result<Vec<Fire<'_>>, Malformed> {
    records(bytes, "a fire", 7, |at| {
        Some(Fire {
            number: at.int()?,
            topic: at.int()?,
            claim: at.int()?,
            until: at.int()?,
            due_at: at.int()?,
            attempts: at.int()?,
            envelope: at.bin()?,
        })
    })
}

/// Parses an array of results.
pub fn outcomes(bytes: &[u8]) -> Result<Vec<Outcome<'_>>, Malformed> {
    records(bytes, "a result", 10, |at| {
        Some(Outcome {
            number: at.int()?,
            topic: at.int()?,
            claim: at.int()?,
            verb: match at.text()? {
                "deliver" => Verb::Deliver,
                "fail" => Verb::Fail,
                "release" => Verb::Release,
                _ => return None,
            },
            next: at.maybe()?,
            lateness_ms: at.signed()?,
            took_ms: at.number()?,
            outcome: at.text()?,
            status: at.maybe()?,
            answer: at.bin()?,
        })
    })
}

/// Parses an array of new messages.
pub fn new_messages(bytes: &[u8]) -> Result<Vec<NewMessage<'_>>, Malformed> {
    records(bytes, "a new message", 5, |at| {
        Some(NewMessage {
            number: at.int()?,
            topic: at.int()?,
            due_at: at.int()?,
            expires_at: at.maybe()?.unwrap_or(NEVER),
            body: at.bin()?,
        })
    })
}

/// Parses an envelope; skips the time of acceptance.
pub fn envelope(bytes: &[u8]) -> Result<Envelope<'_>, Malformed> {
    Reader(bytes).envelope().ok_or(Malformed("an envelope"))
}

fn records<'a, T>(
    bytes: &'a [u8],
    name: &'static str,
    fields: u32,
    read: impl Fn(&mut Reader<'a>) -> Option<T>,
) -> Result<Vec<T>, Malformed> {
    let mut at = Reader(bytes);
    let count = at.len().ok_or(Malformed(name))? as usize;
    // A record has at least a byte for each field: a false count reserves no more than was sent.
    let mut out = Vec::with_capacity(count.min(bytes.len() / fields as usize));
    for _ in 0..count {
        if at.len() != Some(fields) {
            return Err(Malformed(name));
        }
        out.push(read(&mut at).ok_or(Malformed(name))?);
    }
    match at.0.is_empty() {
        true => Ok(out),
        false => Err(Malformed(name)),
    }
}

/// Reads fields one after another. `None`: another type, or the end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn envelope(mut self) -> Option<Envelope<'a>> {
        // A sixth and a seventh field are the message's key and tags: callbacks do not need them.
        if !matches!(self.len()?, 5..=7) {
            return None;
        }
        let (id, target, kind) = (self.text()?, self.text()?, self.text()?);
        self.signed()?;
        let body = self.bin()?;
        Some(Envelope { id, target, kind, body })
    }

    fn len(&mut self) -> Option<u32> {
        decode::read_array_len(&mut self.0).ok()
    }

    fn int<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let value: u64 = decode::read_int(&mut self.0).ok()?;
        T::try_from(value).ok()
    }

    fn signed(&mut self) -> Option<i64> {
        decode::read_int(&mut self.0).ok()
    }

    fn maybe<T: TryFrom<u64>>(&mut self) -> Option<Option<T>> {
        if self.0.first() == Some(&Marker::Null.to_u8()) {
            self.0 = &self.0[1..];
            return Some(None);
        }
        self.int().map(Some)
    }

    /// A float, or an integer in its place.
    fn number(&mut self) -> Option<f64> {
        if self.0.first() == Some(&Marker::F64.to_u8()) {
            return decode::read_f64(&mut self.0).ok();
        }
        self.signed().map(|value| value as f64)
    }

    fn text(&mut self) -> Option<&'a str> {
        let (text, rest) = decode::read_str_from_slice(self.0).ok()?;
        self.0 = rest;
        Some(text)
    }

    fn bin(&mut self) -> Option<&'a [u8]> {
        let len = decode::read_bin_len(&mut self.0).ok()? as usize;
        let (bin, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bin)
    }
}
