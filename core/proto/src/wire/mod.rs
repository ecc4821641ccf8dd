//! What is on the wire: the clear header, the frames inside the seal, and the records inside the control log.
//!
//! Owns every byte layout (`docs/protocol.md` is its table, `tests/vectors/` its golden examples). Knows no role and
//! keeps no state: parsing gives borrowed views, writing appends to a [`crate::codec::Writer`].

pub mod frame;
pub mod header;
pub mod publish;
pub mod record;
pub mod room;
pub mod server;

pub use frame::{Frame, FrameKind, Frames};
pub use header::{DatagramKind, Header, HEADER};

use crate::codec::{Reader, Writer};

/// Names one numbered sequence of a room's messages: who numbered it, in which life, and which of its rooms' lives.
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

/// Who published: the authenticated user and one random number per life of the publishing client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PublisherId {
    pub user: u64,
    pub incarnation: u64,
}

/// Why offsets of a stream will not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum GapReason {
    /// The member was slower than the ring keeps.
    Slow = 1,
    /// The owner died and its ring with it; the gap has no known end.
    OwnerLost = 2,
    /// A repair did not come in time.
    Unrepaired = 3,
    /// Older than the ring, at a join with positions.
    Expired = 4,
    /// The owner forgot the room (idle) and numbered it anew.
    Restarted = 5,
    /// The program that reads was slower than its policy allows; never on the wire.
    Reader = 6,
    /// Another owner goes on: nothing is missing.
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

/// Offsets `first..=last` of `stream` that a member will not get; `last == u64::MAX` where nobody knows the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamGap {
    pub stream: StreamId,
    pub first: u64,
    pub last: u64,
    pub reason: GapReason,
}

impl StreamGap {
    pub const LEN: usize = StreamId::LEN + 17;
    /// `last` of a gap whose end nobody knows.
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

/// What a refusal says: a number, a name, and whether trying again may help.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    BadCredential = 1,
    NotReady = 2,
    TooManyRooms = 3,
    RateLimited = 4,
    BadRoomName = 5,
    NameCollision = 6,
    Draining = 7,
    Busy = 8,
    NotAllowed = 9,
    Malformed = 10,
    TooMuchHistory = 11,
    Unknown = 255,
}

impl Code {
    pub const ALL: [Code; 13] = [
        Code::Ok,
        Code::BadCredential,
        Code::NotReady,
        Code::TooManyRooms,
        Code::RateLimited,
        Code::BadRoomName,
        Code::NameCollision,
        Code::Draining,
        Code::Busy,
        Code::NotAllowed,
        Code::Malformed,
        Code::TooMuchHistory,
        Code::Unknown,
    ];

    pub fn from_u8(value: u8) -> Self {
        Code::ALL
            .into_iter()
            .find(|code| *code as u8 == value)
            .unwrap_or(Code::Unknown)
    }

    pub fn name(self) -> &'static str {
        match self {
            Code::Ok => "ok",
            Code::BadCredential => "bad_credential",
            Code::NotReady => "not_ready",
            Code::TooManyRooms => "too_many_rooms",
            Code::RateLimited => "rate_limited",
            Code::BadRoomName => "bad_room_name",
            Code::NameCollision => "name_collision",
            Code::Draining => "draining",
            Code::Busy => "busy",
            Code::NotAllowed => "not_allowed",
            Code::Malformed => "malformed",
            Code::TooMuchHistory => "too_much_history",
            Code::Unknown => "unknown",
        }
    }

    /// Whether the same request may succeed later.
    pub fn retry(self) -> bool {
        matches!(self, Code::NotReady | Code::RateLimited | Code::Draining | Code::Busy)
    }
}

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Role {
    Client = 1,
    Proxy = 2,
    Broker = 3,
    Router = 4,
    Gateway = 5,
}

impl Role {
    pub fn from_u8(value: u8) -> Option<Self> {
        [Role::Client, Role::Proxy, Role::Broker, Role::Router, Role::Gateway]
            .into_iter()
            .find(|role| *role as u8 == value)
    }

    /// Whether clients have sessions with it.
    pub fn serves_clients(self) -> bool {
        matches!(self, Role::Gateway | Role::Proxy)
    }

    pub fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Proxy => "proxy",
            Role::Broker => "broker",
            Role::Router => "router",
            Role::Gateway => "gateway",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_codes_has_every_code_and_reason_and_no_other() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        let page = std::fs::read_to_string(path).expect("the page is part of the repository");
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| number"))
            .collect();
        let codes = Code::ALL.into_iter().filter(|code| *code != Code::Ok);
        let wanted: Vec<String> = codes
            .map(|code| {
                let retry = if code.retry() { "yes" } else { "no" };
                format!("| {} | `{}` | {retry} |", code as u8, code.name())
            })
            .collect();
        assert_eq!(rows.len(), wanted.len(), "{rows:?}");
        for (row, wanted) in rows.iter().zip(&wanted) {
            assert!(row.starts_with(wanted), "{row} is not {wanted}");
        }
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
