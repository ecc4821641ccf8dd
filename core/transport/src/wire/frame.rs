//! Frames, the content of a sealed datagram: kind, flags, 16-bit length, body. A kind of 0 is padding to the end.

use crate::codec::{Reader, Writer};
use crate::limits::MISSING_RANGES_MAX;

/// Bytes in front of a frame's body.
pub const FRAME: usize = 4;
/// The offset of a frame's flags.
pub const FLAGS_AT: usize = 1;

/// The kind of a frame: 1 to 7 belong to every connection, others to systems. A peer may send only the kinds that
/// `docs/protocol.md` and its role's machine allow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FrameKind(u8);

impl FrameKind {
    /// The receiver's report of received datagrams ([`Status`]).
    pub const STATUS: FrameKind = FrameKind(1);
    /// Records of the reliable control log.
    pub const LOG: FrameKind = FrameKind(2);
    /// Next control-log offset expected, u64.
    pub const LOG_ACK: FrameKind = FrameKind(3);
    /// Asks for a status; empty.
    pub const PING: FrameKind = FrameKind(4);
    /// Eight bytes to be echoed from a new address.
    pub const PATH_CHALLENGE: FrameKind = FrameKind(5);
    /// The echo.
    pub const PATH_RESPONSE: FrameKind = FrameKind(6);
    /// The connection ends; code u8.
    pub const CLOSE: FrameKind = FrameKind(7);

    /// A kind of frame of a system.
    pub const fn new(code: u8) -> Self {
        assert!(code > FrameKind::CLOSE.0 && code < KINDS_MAX);
        FrameKind(code)
    }

    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Upper bound of kinds, exclusive: each is one bit in a word.
const KINDS_MAX: u8 = 64;

/// The kinds of frames that a machine understands: those of every connection, and those of its system.
#[derive(Clone, Copy, Debug)]
pub struct FrameKinds {
    known: u64,
    silent: u64,
}

impl FrameKinds {
    /// The kinds of every connection.
    pub const TRANSPORT: FrameKinds = {
        let none = FrameKinds { known: 0, silent: 0 };
        let known = none.with(&[FrameKind::LOG, FrameKind::PING], false);
        let silent = [
            FrameKind::STATUS,
            FrameKind::LOG_ACK,
            FrameKind::PATH_CHALLENGE,
            FrameKind::PATH_RESPONSE,
            FrameKind::CLOSE,
        ];
        known.with(&silent, true)
    };

    /// Adds kinds. A datagram with only `silent` ones needs no status.
    pub const fn with(mut self, kinds: &[FrameKind], silent: bool) -> Self {
        let mut at = 0;
        while at < kinds.len() {
            let bit = 1 << kinds[at].0;
            assert!(self.known & bit == 0, "two frames of one kind");
            self.known |= bit;
            if silent {
                self.silent |= bit;
            }
            at += 1;
        }
        self
    }

    /// The kinds of both sets.
    pub const fn or(self, other: FrameKinds) -> Self {
        FrameKinds {
            known: self.known | other.known,
            silent: self.silent | other.silent,
        }
    }

    /// The kind of this code, if it is understood.
    #[inline]
    pub const fn find(self, code: u8) -> Option<FrameKind> {
        if code < KINDS_MAX && self.known >> code & 1 != 0 {
            Some(FrameKind(code))
        } else {
            None
        }
    }

    /// Whether a datagram with such a frame elicits a status.
    #[inline]
    pub const fn elicits(self, kind: FrameKind) -> bool {
        self.silent >> kind.0 & 1 == 0
    }
}

/// One frame, borrowed from an opened datagram.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub kind: FrameKind,
    pub flags: u8,
    pub body: &'a [u8],
}

/// A frame is malformed; the rest of the datagram is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadFrame;

/// Iterates over the frames of an opened datagram; ends after the first malformed one.
pub struct Frames<'a> {
    reader: Reader<'a>,
    kinds: FrameKinds,
}

impl<'a> Frames<'a> {
    /// A kind that is not in `kinds` counts as malformed.
    #[inline]
    pub fn new(bytes: &'a [u8], kinds: FrameKinds) -> Self {
        Frames {
            reader: Reader::new(bytes),
            kinds,
        }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, BadFrame>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let kind = self.reader.u8()?;
        if kind == 0 {
            self.reader = Reader::new(&[]);
            return None;
        }
        let parsed = (|| {
            let flags = self.reader.u8()?;
            let body = self.reader.bytes16()?;
            Some(Frame {
                kind: self.kinds.find(kind)?,
                flags,
                body,
            })
        })();
        if parsed.is_none() {
            self.reader = Reader::new(&[]);
        }
        Some(parsed.ok_or(BadFrame))
    }
}

/// Appends one frame whose body `write` fills. Writes nothing if it does not fit or `write` returns `false`.
#[inline]
pub fn append(
    writer: &mut Writer<'_>,
    kind: FrameKind,
    flags: u8,
    write: impl FnOnce(&mut Writer<'_>) -> bool,
) -> bool {
    let start = writer.len();
    if writer.room() < FRAME {
        return false;
    }
    writer.u8(kind.code()).u8(flags).u16(0);
    let good = write(writer);
    let len = writer.len() - start - FRAME;
    if !good || writer.full() || len > usize::from(u16::MAX) {
        writer.truncate(start);
        return false;
    }
    writer.patch_u16(start + 2, len as u16);
    true
}

/// Maximum number of missing runs of datagram sequences in a status.
pub const STATUS_RANGES: usize = MISSING_RANGES_MAX;

/// A receiver's report: which of its peer's datagrams arrived, and how many bytes it can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Highest datagram sequence accepted.
    pub highest: u64,
    /// Total number of datagrams accepted, wrapping.
    pub received: u32,
    /// Microseconds between the arrival of `highest` and this status.
    pub delay: u32,
    /// Bytes of socket buffer that the peer may fill.
    pub window: u32,
    /// Sequences below `highest` that are missing, newest first, inclusive.
    pub missing: [(u64, u64); STATUS_RANGES],
    pub missing_len: u8,
}

impl Status {
    /// Bytes of the longest status frame.
    pub const LEN_MAX: usize = FRAME + 21 + STATUS_RANGES * 4;

    pub fn read(body: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let mut status = Status {
            highest: reader.u64()?,
            received: reader.u32()?,
            delay: reader.u32()?,
            window: reader.u32()?,
            ..Status::default()
        };
        status.missing_len = reader.u8()?;
        if usize::from(status.missing_len) > STATUS_RANGES {
            return None;
        }
        for range in &mut status.missing[..usize::from(status.missing_len)] {
            let last = status.highest.checked_sub(u64::from(reader.u16()?))?;
            let first = last.checked_sub(u64::from(reader.u16()?))?;
            *range = (first, last);
        }
        reader.is_empty().then_some(status)
    }

    pub fn write(&self, writer: &mut Writer<'_>) -> bool {
        append(writer, FrameKind::STATUS, 0, |writer| {
            writer
                .u64(self.highest)
                .u32(self.received)
                .u32(self.delay)
                .u32(self.window)
                .u8(self.missing_len);
            for (first, last) in &self.missing[..usize::from(self.missing_len)] {
                let (Ok(below), Ok(run)) = (u16::try_from(self.highest - last), u16::try_from(last - first)) else {
                    return false;
                };
                writer.u16(below).u16(run);
            }
            true
        })
    }

    /// The missing runs.
    pub fn missing(&self) -> &[(u64, u64)] {
        &self.missing[..usize::from(self.missing_len)]
    }

    /// Whether `sequence` is known to have arrived, or is older than this status covers.
    pub fn covers(&self, sequence: u64) -> bool {
        sequence <= self.highest
            && !self
                .missing()
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_one_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let frames: Vec<_> = Frames::new(&bytes, FrameKinds::TRANSPORT).collect();
            prop_assert!(frames.iter().rev().skip(1).all(Result::is_ok));
            prop_assert!(frames.len() <= bytes.len() / FRAME + 1);
        }

        #[test]
        fn status_survives_the_wire(highest in 1000u64.., received: u32, delay: u32, window: u32, ranges in prop::collection::vec((0u64..200, 0u64..100), 0..=4)) {
            let mut status = Status { highest, received, delay, window, missing_len: ranges.len() as u8, ..Status::default() };
            for (slot, (below, run)) in status.missing.iter_mut().zip(&ranges) {
                *slot = (highest - below - run, highest - below);
            }
            let mut bytes = [0; 64];
            let mut writer = Writer::new(&mut bytes);
            prop_assert!(status.write(&mut writer));
            let len = writer.len();
            let frame = Frames::new(&bytes[..len], FrameKinds::TRANSPORT).next().unwrap().unwrap();
            prop_assert_eq!(frame.kind, FrameKind::STATUS);
            prop_assert_eq!(Status::read(frame.body), Some(status));
        }
    }
}
