//! Frames: what a seal holds. Kind, flags, 16-bit length, body; a zero kind is padding to the end.

use crate::codec::{Reader, Writer};
use crate::limits::MISSING_RANGES_MAX;

/// Bytes in front of a frame's body.
pub const FRAME: usize = 4;
/// Where a frame's flags stand, from its first byte.
pub const FLAGS_AT: usize = 1;

/// What a frame is. The whitelist of who may send which is in `docs/protocol.md` and in each role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// What the receiver has seen ([`Status`]).
    Status = 1,
    /// Records of the reliable control log.
    Log = 2,
    /// Next control-log offset expected, u64.
    LogAck = 3,
    /// Wants a status; empty.
    Ping = 4,
    /// Eight bytes to be echoed from a new address.
    PathChallenge = 5,
    /// The echo.
    PathResponse = 6,
    /// The connection ends; code u8.
    Close = 7,
    /// A room's messages, gateway to member ([`crate::wire::room`]).
    Room = 8,
    /// One place in a room's sequence that holds a gap, gateway to member.
    Gap = 9,
    /// The member's cursor was moved, gateway to member.
    Skip = 10,
    /// Heads of rooms, gateway to member.
    Heads = 11,
    /// Ask for places again, member to gateway.
    Repair = 12,
    /// A room's messages, broker to gateway.
    LinkRoom = 13,
    /// Heads of rooms, broker to gateway.
    LinkHeads = 14,
    /// Ask for offsets again, gateway to broker.
    LinkRepair = 15,
    /// Offsets that the owner no longer has, broker to gateway.
    LinkLost = 16,
    /// How far the gateway is, gateway to broker.
    Consumed = 17,
    /// Messages to publish, client to proxy ([`crate::wire::publish`]).
    Publish = 18,
    /// Messages to publish, proxy to broker.
    LinkPublish = 19,
    /// Acknowledgement of publishing, broker to proxy.
    LinkAck = 20,
    /// Acknowledgement of publishing, proxy to client.
    Ack = 21,
    /// A link publish frame that says how old its messages are.
    AgedPublish = 22,
    /// A link room frame that says how old its messages are.
    AgedRoom = 23,
}

impl FrameKind {
    pub const ALL: [FrameKind; 23] = [
        FrameKind::Status,
        FrameKind::Log,
        FrameKind::LogAck,
        FrameKind::Ping,
        FrameKind::PathChallenge,
        FrameKind::PathResponse,
        FrameKind::Close,
        FrameKind::Room,
        FrameKind::Gap,
        FrameKind::Skip,
        FrameKind::Heads,
        FrameKind::Repair,
        FrameKind::LinkRoom,
        FrameKind::LinkHeads,
        FrameKind::LinkRepair,
        FrameKind::LinkLost,
        FrameKind::Consumed,
        FrameKind::Publish,
        FrameKind::LinkPublish,
        FrameKind::LinkAck,
        FrameKind::Ack,
        FrameKind::AgedPublish,
        FrameKind::AgedRoom,
    ];

    #[inline]
    pub fn from_u8(value: u8) -> Option<Self> {
        FrameKind::ALL.get(usize::from(value).wrapping_sub(1)).copied()
    }

    /// Whether a datagram with such a frame must be covered by a status.
    #[inline]
    pub fn elicits(self) -> bool {
        use FrameKind::{Close, Consumed, LinkRepair, LogAck, PathChallenge, PathResponse, Repair, Status};
        !matches!(
            self,
            Status | LogAck | PathChallenge | PathResponse | Close | Repair | LinkRepair | Consumed
        )
    }
}

/// One frame, borrowed from an opened datagram.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub kind: FrameKind,
    pub flags: u8,
    pub body: &'a [u8],
}

/// Why the frames of a datagram are refused from here on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadFrame;

/// Walks the frames of an opened datagram; ends after the first bad one.
pub struct Frames<'a> {
    reader: Reader<'a>,
}

impl<'a> Frames<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Frames {
            reader: Reader::new(bytes),
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
                kind: FrameKind::from_u8(kind)?,
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

/// Appends one frame whose body `write` fills. Nothing is left behind where it did not fit or `write` says no.
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
    writer.u8(kind as u8).u8(flags).u16(0);
    let good = write(writer);
    let len = writer.len() - start - FRAME;
    if !good || writer.full() || len > usize::from(u16::MAX) {
        writer.truncate(start);
        return false;
    }
    writer.patch_u16(start + 2, len as u16);
    true
}

/// Missing runs of datagram sequences that a status can name.
pub const STATUS_RANGES: usize = MISSING_RANGES_MAX;

/// What a receiver has seen of its peer's datagrams, and how much more it can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Highest datagram sequence accepted.
    pub highest: u64,
    /// Datagrams accepted in all, wrapping.
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
        append(writer, FrameKind::Status, 0, |writer| {
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

    /// Whether `sequence` is known to have arrived (or to be older than this status tells).
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
            let frames: Vec<_> = Frames::new(&bytes).collect();
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
            let frame = Frames::new(&bytes[..len]).next().unwrap().unwrap();
            prop_assert_eq!(frame.kind, FrameKind::Status);
            prop_assert_eq!(Status::read(frame.body), Some(status));
        }
    }
}
