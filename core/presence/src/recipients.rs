//! The users to whom a client may send, and a credential's content for presence and unicast.
//!
//! Owns: [`Recipients`], [`Claims`] and their bytes, which a machine passes to its guest unparsed. Knows no token.

use std::fmt;

/// Numbers from here on may be hashes of texts, whose digits have no meaning.
const HASHED: u64 = 1 << 63;

/// The users to whom a client may send, as patterns of their decimal numbers. By default none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recipients {
    everyone: bool,
    /// Sorted; the length of a credential bounds their number.
    users: Box<[u64]>,
    /// Prefixes of users below [`HASHED`].
    beginnings: Box<[u64]>,
}

/// A text that is not a pattern of users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecipientError(String);

impl fmt::Display for RecipientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid pattern of users {:?}: use a user number, its first digits followed by *, or * alone",
            self.0
        )
    }
}

impl std::error::Error for RecipientError {}

impl Recipients {
    /// The users that match one of these patterns: a number, its first digits with `*` behind them, or `*`. A prefix
    /// matches no number from 2^63 on, which may be a text's.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, RecipientError> {
        let (mut everyone, mut users, mut beginnings) = (false, Vec::new(), Vec::new());
        for pattern in patterns {
            let wrong = || RecipientError(pattern.chars().take(40).collect());
            match pattern.strip_suffix('*') {
                Some("") => everyone = true,
                Some(first) => beginnings.push(number(first).ok_or_else(wrong)?),
                None => users.push(number(pattern).ok_or_else(wrong)?),
            }
        }
        users.sort_unstable();
        beginnings.sort_unstable();
        Ok(Recipients {
            everyone,
            users: users.into(),
            beginnings: beginnings.into(),
        })
    }

    /// All users.
    pub fn everyone() -> Self {
        Recipients {
            everyone: true,
            ..Recipients::default()
        }
    }

    /// Whether it contains no user.
    pub fn is_empty(&self) -> bool {
        !self.everyone && self.users.is_empty() && self.beginnings.is_empty()
    }

    /// Whether it contains a user. Checked for each message: at most 20 searches among the prefixes.
    pub fn has(&self, user: u64) -> bool {
        self.everyone || self.users.binary_search(&user).is_ok() || self.begins(user)
    }

    fn begins(&self, user: u64) -> bool {
        if self.beginnings.is_empty() || user >= HASHED {
            return false;
        }
        let mut digits = Some(user);
        while let Some(left) = digits {
            if self.beginnings.binary_search(&left).is_ok() {
                return true;
            }
            digits = (left >= 10).then_some(left / 10);
        }
        false
    }

    /// The patterns, separated by commas.
    fn text(&self) -> String {
        let everyone = self.everyone.then(|| "*".to_string());
        let users = self.users.iter().map(u64::to_string);
        let beginnings = self.beginnings.iter().map(|first| format!("{first}*"));
        everyone
            .into_iter()
            .chain(users)
            .chain(beginnings)
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// A decimal number in canonical form: without a sign or a leading zero.
fn number(text: &str) -> Option<u64> {
    let canonical = text == "0" || text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    canonical.then(|| text.parse().ok()).flatten()
}

/// A credential's content about its user's session: the device's name (may be empty), and to whom it may send.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claims {
    pub device: Vec<u8>,
    /// The user wants this device here, also where another one has just replaced it.
    pub takes_over: bool,
    pub recipients: Recipients,
}

/// The bit of the length that says that the device takes over.
const TAKES_OVER: u16 = 1 << 15;

impl Claims {
    /// Length of the device's name (2 B, little endian; the highest bit: it takes over), the name, and the patterns separated by commas.
    pub fn to_bytes(&self) -> Vec<u8> {
        let device = &self.device[..self.device.len().min(usize::from(TAKES_OVER - 1))];
        let over = if self.takes_over { TAKES_OVER } else { 0 };
        let mut bytes = (device.len() as u16 | over).to_le_bytes().to_vec();
        bytes.extend_from_slice(device);
        bytes.extend_from_slice(self.recipients.text().as_bytes());
        bytes
    }

    /// Empty bytes: no device, nobody to send to. `None`: malformed.
    pub fn read(bytes: &[u8]) -> Option<Claims> {
        let Some((len, rest)) = bytes.split_first_chunk() else {
            return bytes.is_empty().then(Claims::default);
        };
        let len = u16::from_le_bytes(*len);
        let (device, patterns) = rest.split_at_checked(usize::from(len & !TAKES_OVER))?;
        let patterns = std::str::from_utf8(patterns).ok()?;
        let patterns = patterns.split(',').filter(|pattern| !pattern.is_empty());
        Some(Claims {
            device: device.to_vec(),
            takes_over: len & TAKES_OVER != 0,
            recipients: Recipients::new(patterns).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pattern_is_a_number_or_its_first_digits() {
        for wrong in [
            "",
            "x",
            "+7",
            "07",
            "07*",
            "7**",
            "*7",
            "7*7",
            " 7",
            "-1",
            "18446744073709551616",
        ] {
            assert!(Recipients::new([wrong]).is_err(), "{wrong:?}");
        }
        let recipients = Recipients::new(["7", "10*", "0"]).expect("patterns");
        let may: Vec<u64> = (0..1_100).filter(|user| recipients.has(*user)).collect();
        let wanted = [0, 7, 10].into_iter().chain(100..110).chain(1_000..1_100);
        assert_eq!(may, wanted.collect::<Vec<u64>>());
        assert!(recipients.has(1_044_674_407_370_955_161));
        assert!(Recipients::new(["*"]).expect("a pattern").has(u64::MAX));
    }

    #[test]
    fn a_prefix_matches_no_hash_of_a_text() {
        let recipients = Recipients::new(["9*", "1*", "12000000000000000000"]).expect("patterns");
        assert!(recipients.has(HASHED - 1) && recipients.has(9));
        for hashed in [HASHED, 9_999_999_999_999_999_999, 10_446_744_073_709_551_615, u64::MAX] {
            assert!(!recipients.has(hashed), "{hashed}");
        }
        assert!(recipients.has(12_000_000_000_000_000_000), "it is named whole");
        assert!(Recipients::new(["*"]).expect("a pattern").has(HASHED));
    }

    #[test]
    fn without_a_pattern_there_is_nobody() {
        let nobody = Recipients::new([]).expect("no pattern is wrong");
        assert!(nobody.is_empty() && !nobody.has(0) && !nobody.has(7));
        assert_eq!(Claims::read(b""), Some(Claims::default()));
        assert!(!Recipients::new(["1*"]).expect("a pattern").is_empty());
    }

    #[test]
    fn claims_survive_encoding_or_are_refused() {
        for (device, takes_over, patterns) in [
            ("", false, vec![]),
            ("phone", true, vec!["*"]),
            ("phone:3f", false, vec!["7", "8", "10*", "2*"]),
        ] {
            let recipients = Recipients::new(patterns).expect("patterns");
            let device = device.as_bytes().to_vec();
            let claims = Claims {
                device,
                takes_over,
                recipients,
            };
            assert_eq!(Claims::read(&claims.to_bytes()), Some(claims));
        }
        for wrong in [&b"\x05"[..], b"\x05\0phon", b"\0\0x", b"\0\0\xff"] {
            assert_eq!(Claims::read(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        /// The same rules, applied to texts.
        #[test]
        fn users_agree_with_matching_texts(
            patterns in prop::collection::vec("[1-9][0-9]{0,3}[*]?", 0..6),
            user in 0u64..12_000,
        ) {
            let text = user.to_string();
            let wanted = patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(first) => text.starts_with(first),
                None => *pattern == text,
            });
            let recipients = Recipients::new(patterns.iter().map(String::as_str)).unwrap();
            prop_assert_eq!(recipients.has(user), wanted);
        }
    }
}
