//! The identities of streams and publishers, and the gaps of a stream.
//!
//! Owns their layouts and the reasons of gaps. Knows no frame and no record.

use muster_transport::{Reader, Writer};

/// The identity of one numbered sequence of a room's messages: the owner, its life, and the generation of the room in
/// that life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct StreamId {
    pub node: u32,
    pub epoch: u32,
    pub generation: u32,
}

impl StreamId {
    pub const LEN: usize = 12;

    #[inline]
    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(StreamId {
            node: reader.u32()?,
            epoch: reader.u32()?,
            generation: reader.u32()?,
        })
    }

    #[inline]
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.u32(self.node).u32(self.epoch).u32(self.generation);
    }
}

/// A publisher: the authenticated user and one random number per life of the publishing client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PublisherId {
    pub user: u64,
    pub incarnation: u64,
}

/// Why offsets of a stream will not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum GapReason {
    /// The member was slower than the ring allows.
    Slow = 1,
    /// The owner died and its ring with it; the gap has no known end.
    OwnerLost = 2,
    /// A repair did not arrive in time.
    Unrepaired = 3,
    /// Older than the ring, at a join with positions.
    Expired = 4,
    /// The owner forgot the idle room and started a new stream.
    Restarted = 5,
    /// The reading program was slower than its policy allows; never on the wire.
    Reader = 6,
    /// Another owner continues: nothing is missing.
    Ended = 7,
}

impl GapReason {
    pub const ALL: [GapReason; 7] = [
        GapReason::Slow,
        GapReason::OwnerLost,
        GapReason::Unrepaired,
        GapReason::Expired,
        GapReason::Restarted,
        GapReason::Reader,
        GapReason::Ended,
    ];

    pub fn from_u8(value: u8) -> Option<Self> {
        GapReason::ALL.get(usize::from(value).wrapping_sub(1)).copied()
    }

    /// The name that users see.
    pub fn name(self) -> &'static str {
        match self {
            GapReason::Slow => "slow",
            GapReason::OwnerLost => "owner_lost",
            GapReason::Unrepaired => "unrepaired",
            GapReason::Expired => "expired",
            GapReason::Restarted => "restarted",
            GapReason::Reader => "reader",
            GapReason::Ended => "ended",
        }
    }
}

/// Offsets `first..=last` of `stream` that a member will not get; `last == u64::MAX` if the end is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamGap {
    pub stream: StreamId,
    pub first: u64,
    pub last: u64,
    pub reason: GapReason,
}

impl StreamGap {
    pub const LEN: usize = StreamId::LEN + 17;
    /// `last` of a gap with an unknown end.
    pub const OPEN: u64 = u64::MAX;

    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(StreamGap {
            stream: StreamId::read(reader)?,
            first: reader.number()?,
            last: reader.number_or_open()?,
            reason: GapReason::from_u8(reader.u8()?)?,
        })
    }

    pub fn write(&self, writer: &mut Writer<'_>) {
        self.stream.write(writer);
        writer.u64(self.first).u64(self.last).u8(self.reason as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_codes_has_every_reason_of_a_gap_and_no_other() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        let page = std::fs::read_to_string(path).expect("the page is part of the repository");
        let reasons = page
            .split("Reasons of gaps:")
            .nth(1)
            .and_then(|rest| rest.split("\n\n").next());
        let listed = reasons.expect("a sentence of reasons").split('`').skip(1).step_by(2);
        assert!(listed.eq(GapReason::ALL.map(GapReason::name)));
        for reason in GapReason::ALL {
            assert_eq!(GapReason::from_u8(reason as u8), Some(reason));
        }
    }
}
