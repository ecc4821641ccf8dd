//! The name of a room, and its number for servers.
//!
//! Owns: [`RoomName`], [`RoomKey`], [`NameError`]. Must not know: the existing rooms.
//!
//! A name is `namespace:room`, or `room` for the namespace `default`; the first colon separates. Clients only ever
//! send names: the hash key stays in servers, so outsiders cannot search for two names with the same id.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::limits::{NAMESPACE_BYTES_MAX, NAME_BYTES_MAX, ROOM_BYTES_MAX};

/// The namespace of a name without one.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A valid name, borrowed from the bytes that it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoomName<'a> {
    namespace: &'a str,
    room: &'a str,
}

/// A room's number for servers. `check` distinguishes two names with the same `id`, at join and at the first publish:
/// the second one is refused (`name_collision`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoomKey {
    pub id: u64,
    pub check: u64,
}

/// Why bytes are not a valid room name; the sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    Empty,
    TooLong,
    NotUtf8,
    BadNamespace,
    EmptyRoom,
    RoomTooLong,
    ControlCharacter,
    FormatCharacter,
    Star,
}

/// Invisible characters that change how others are shown, or end a line: Unicode's categories Cf, Zl and Zp, in
/// order. A test compares them with the Unicode data of another program.
const FORMAT: [(char, char); 21] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{2064}'),
    ('\u{2066}', '\u{206f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{fff9}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0001}', '\u{e0001}'),
    ('\u{e0020}', '\u{e007f}'),
];

fn is_format(letter: char) -> bool {
    let behind = FORMAT.partition_point(|(first, _)| *first <= letter);
    behind > 0 && letter <= FORMAT[behind - 1].1
}

impl<'a> RoomName<'a> {
    /// Parses the bytes of a name from the wire.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, NameError> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        Self::parse(std::str::from_utf8(bytes).map_err(|_| NameError::NotUtf8)?)
    }

    /// Parses a name as a user writes it.
    pub fn parse(name: &'a str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        let (namespace, room) = name.split_once(':').unwrap_or((DEFAULT_NAMESPACE, name));
        let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        if namespace.is_empty() || namespace.len() > NAMESPACE_BYTES_MAX || !namespace.bytes().all(allowed) {
            return Err(NameError::BadNamespace);
        }
        if room.is_empty() {
            return Err(NameError::EmptyRoom);
        }
        if room.len() > ROOM_BYTES_MAX {
            return Err(NameError::RoomTooLong);
        }
        if room.chars().any(char::is_control) {
            return Err(NameError::ControlCharacter);
        }
        if room.chars().any(is_format) {
            return Err(NameError::FormatCharacter);
        }
        if room.contains('*') {
            return Err(NameError::Star);
        }
        Ok(RoomName { namespace, room })
    }

    pub fn namespace(&self) -> &'a str {
        self.namespace
    }

    /// The part after the namespace; it may itself contain colons.
    pub fn room(&self) -> &'a str {
        self.room
    }

    /// The room's key under the cluster's hash key: SipHash-2-4 with 128 bits of the full name, namespace included.
    pub fn key(&self, hash_key: &[u8; 16]) -> RoomKey {
        let mut hasher = SipHasher24::new_with_key(hash_key);
        hasher.write(self.namespace.as_bytes());
        hasher.write(b":");
        hasher.write(self.room.as_bytes());
        let hash = hasher.finish128();
        RoomKey {
            id: hash.h1,
            check: hash.h2,
        }
    }
}

/// Formats the full name, with its namespace.
impl fmt::Display for RoomName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.namespace, self.room)
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameError::Empty => write!(f, "room name is empty"),
            NameError::TooLong => write!(f, "room name is longer than {NAME_BYTES_MAX} bytes"),
            NameError::NotUtf8 => write!(f, "room name is not valid UTF-8"),
            NameError::BadNamespace => {
                write!(
                    f,
                    "invalid namespace before the first colon: use 1 to {NAMESPACE_BYTES_MAX} characters of a-z, 0-9, _ and -"
                )
            }
            NameError::EmptyRoom => write!(f, "room name is empty after its namespace and colon"),
            NameError::RoomTooLong => write!(f, "room name is longer than {ROOM_BYTES_MAX} bytes after its namespace"),
            NameError::ControlCharacter => write!(f, "room name contains a control character"),
            NameError::FormatCharacter => {
                write!(f, "room name contains an invisible format or line separator character")
            }
            NameError::Star => write!(f, "room name contains *: use the name of one room, not a pattern"),
        }
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same rules, checked character by character.
    fn model(name: &str) -> Option<(String, String)> {
        let colon = name.chars().position(|letter| letter == ':');
        let (namespace, room): (String, String) = match colon {
            Some(at) => (name.chars().take(at).collect(), name.chars().skip(at + 1).collect()),
            None => ("default".into(), name.into()),
        };
        let good = (1..=32).contains(&namespace.len())
            && namespace
                .chars()
                .all(|letter| "abcdefghijklmnopqrstuvwxyz0123456789_-".contains(letter))
            && (1..=160).contains(&room.len())
            && !room
                .chars()
                .any(|letter| (letter as u32) < 0x20 || (0x7f..0xa0).contains(&(letter as u32)))
            && !room
                .chars()
                .any(|letter| letter == '*' || letter == '\u{200b}' || letter == '\u{2028}');
        good.then_some((namespace, room))
    }

    proptest! {
        #[test]
        fn a_name_is_valid_exactly_by_the_rules(
            name in prop_oneof!["[a-c:_-]{0,40}:?[a-z:é\\x00\\x7f]{0,6}", "[A-c:]{0,4}", "[a-z]{1,30}:[é]{70,90}",
                "[a*\u{200b}\u{200a}\u{2028}\u{2030}]{1,3}"],
        ) {
            let parsed = RoomName::parse(&name).ok();
            let expected = model(&name);
            prop_assert_eq!(parsed.map(|name| (name.namespace().into(), name.room().into())), expected);
            prop_assert_eq!(RoomName::from_bytes(name.as_bytes()), RoomName::parse(&name));
            if let Some(parsed) = parsed {
                let full = parsed.to_string();
                let again = RoomName::parse(&full).unwrap();
                prop_assert_eq!(again, parsed);
                let whole = SipHasher24::new_with_key(&[3; 16]).hash(full.as_bytes());
                prop_assert_eq!(parsed.key(&[3; 16]), RoomKey { id: whole.h1, check: whole.h2 });
            }
        }
    }

    #[test]
    fn every_fault_has_its_error() {
        let long = "x".repeat(161);
        let longer = "x".repeat(201);
        for (name, error) in [
            ("", NameError::Empty),
            (&longer, NameError::TooLong),
            (&long, NameError::RoomTooLong),
            (":room", NameError::BadNamespace),
            ("Chat:room", NameError::BadNamespace),
            ("chat:", NameError::EmptyRoom),
            ("a\nb", NameError::ControlCharacter),
            ("a\u{202e}b", NameError::FormatCharacter),
            ("a\u{2029}b", NameError::FormatCharacter),
            ("chat:*", NameError::Star),
        ] {
            assert_eq!(RoomName::parse(name), Err(error), "{name}");
        }
        assert_eq!(RoomName::from_bytes(b"\xff"), Err(NameError::NotUtf8));
    }

    #[test]
    fn the_default_namespace_may_be_left_out() {
        let key = [7; 16];
        let short = RoomName::parse("lobby").unwrap();
        let full = RoomName::parse("default:lobby").unwrap();
        assert_eq!(short.key(&key), full.key(&key));
        assert_ne!(short.key(&key), RoomName::parse("chat:lobby").unwrap().key(&key));
        assert_ne!(short.key(&key), short.key(&[8; 16]));
        assert_eq!(RoomName::parse("chat:a:b").unwrap().room(), "a:b");
    }

    #[test]
    fn a_key_is_the_published_siphash() {
        // Computed from the paper's description by an independent program, which also gives the paper's test vector:
        // two builds of a cluster must never disagree on a room.
        let key: [u8; 16] = std::array::from_fn(|at| at as u8);
        let got = RoomName::parse("default:lobby").unwrap().key(&key);
        assert_eq!(
            got,
            RoomKey {
                id: 0x5400_a213_36c3_4fa9,
                check: 0xec42_a722_f795_766b
            }
        );
    }
}
