//! The wire parts that every system shares: the clear header, the frames inside the seal, and the records inside the
//! control log.
//!
//! Owns these byte layouts (`docs/protocol.md` is their table, `tests/vectors/` their golden examples). Knows no system
//! and keeps no state: parsing gives borrowed views, writing appends to a [`crate::codec::Writer`].

pub mod frame;
pub mod header;
pub mod record;
pub mod server;

pub use frame::{Frame, FrameKind};
pub use header::HEADER;

/// The reason for a refusal: a number, a name, and whether a retry may help. All systems share the numbers; a code
/// about one system's subject is sent by that system alone.
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
    Replaced = 12,
    /// The user has the maximum number of devices at this gateway.
    TooManyDevices = 13,
    /// The credential names an invalid device.
    BadDevice = 14,
    /// An operator ended the session.
    Ended = 15,
    Unknown = 255,
}

impl Code {
    pub const ALL: [Code; 17] = [
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
        Code::Replaced,
        Code::TooManyDevices,
        Code::BadDevice,
        Code::Ended,
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
            Code::Replaced => "replaced",
            Code::TooManyDevices => "too_many_devices",
            Code::BadDevice => "bad_device",
            Code::Ended => "ended",
            Code::Unknown => "unknown",
        }
    }

    /// Whether the same request may succeed later.
    pub fn retry(self) -> bool {
        matches!(self, Code::NotReady | Code::RateLimited | Code::Draining | Code::Busy)
    }
}

/// The role of a node: a code that each system assigns to its own roles; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Role(u8);

impl Role {
    /// A client of any system.
    pub const CLIENT: Role = Role(1);

    pub const fn new(code: u8) -> Self {
        assert!(code > 0, "0 is no role");
        Role(code)
    }

    pub fn from_u8(code: u8) -> Option<Self> {
        (code > 0).then_some(Role(code))
    }

    pub const fn code(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_codes_has_every_code_and_no_other() {
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
    }
}
