//! A user's rights by room, from its token.
//!
//! Owns: [`Rights`], [`Grant`]. Must not know: tokens, sessions, the rooms that exist. A role checks once per join,
//! per opening of a publication and per query, never per message.

use std::fmt;

use muster_transport::{Admission, Denied};

use crate::name::{RoomName, DEFAULT_NAMESPACE};

/// A set of rights in one room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights(u8);

impl Rights {
    pub const NONE: Rights = Rights(0);
    /// To join as a member.
    pub const READ: Rights = Rights(1);
    pub const PUBLISH: Rights = Rights(2);
    /// To send commands to the members.
    pub const COMMAND: Rights = Rights(4);
    /// To list the members.
    pub const MEMBERS: Rights = Rights(8);
    /// To request messages from before the join.
    pub const HISTORY: Rights = Rights(16);
    pub const ALL: Rights = Rights(31);

    /// Each right and its name in a token.
    pub const WORDS: [(&'static str, Rights); 5] = [
        ("read", Rights::READ),
        ("publish", Rights::PUBLISH),
        ("command", Rights::COMMAND),
        ("members", Rights::MEMBERS),
        ("history", Rights::HISTORY),
    ];

    /// The rights with these names. Unknown names are ignored: a later version may define them.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Rights {
        let right = |word| Rights::WORDS.iter().find(|(known, _)| *known == word);
        let rights = words.into_iter().filter_map(right);
        Rights(rights.fold(0, |bits, (_, right)| bits | right.0))
    }

    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let mine = Rights::WORDS.into_iter().filter(move |(_, right)| self.has(*right));
        mine.map(|(word, _)| word)
    }

    /// Whether all of these rights are included.
    pub fn has(self, others: Rights) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether any of these rights is included.
    pub fn has_any(self, others: Rights) -> bool {
        self.0 & others.0 != 0
    }

    /// These rights and others.
    pub fn and(self, others: Rights) -> Rights {
        Rights(self.0 | others.0)
    }

    /// The rights that are in both.
    pub fn within(self, others: Rights) -> Rights {
        Rights(self.0 & others.0)
    }
}

/// A room's name or a prefix of names, and the rights there.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pattern {
    namespace: Box<str>,
    room: Box<str>,
    /// Whether the pattern is a prefix.
    prefix: bool,
    rights: Rights,
}

impl Pattern {
    fn matches(&self, name: &RoomName<'_>) -> bool {
        *self.namespace == *name.namespace()
            && match self.prefix {
                true => name.room().starts_with(&*self.room),
                false => *self.room == *name.room(),
            }
    }
}

/// Most specific first. The length of a credential bounds their number.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Patterns(Box<[Pattern]>);

/// The rights of one user, room by room. Most are the same in all rooms: these take no memory beyond the session's 16
/// B.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Rights in rooms that match no pattern.
    elsewhere: Rights,
    patterns: Option<Box<Patterns>>,
}

impl Default for Grant {
    /// No rights.
    fn default() -> Self {
        Grant::everywhere(Rights::NONE)
    }
}

/// A text that is not a pattern of room names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatternError(String);

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid pattern {:?}: use a room name, a prefix followed by *, or * alone",
            self.0
        )
    }
}

impl std::error::Error for PatternError {}

impl Grant {
    /// The same rights in all rooms.
    pub fn everywhere(rights: Rights) -> Self {
        Grant {
            elsewhere: rights,
            patterns: None,
        }
    }

    /// The rights of each pattern: a room's name, a prefix with `*` behind it, or `*`. A pattern without a namespace
    /// belongs to the default one, as a name does. The most specific pattern that matches a room decides: its name,
    /// otherwise the longest prefix. A pattern that occurs twice has the rights of both.
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a str, Rights)>) -> Result<Self, PatternError> {
        let mut grant = Grant::default();
        let mut patterns: Vec<Pattern> = Vec::new();
        for (text, rights) in entries {
            if text == "*" {
                grant.elsewhere.0 |= rights.0;
                continue;
            }
            let prefix = text.ends_with('*');
            let (namespace, room) = parts(text.strip_suffix('*').unwrap_or(text), prefix)?;
            let same =
                |known: &&mut Pattern| (&*known.namespace, &*known.room, known.prefix) == (namespace, room, prefix);
            match patterns.iter_mut().find(same) {
                Some(known) => known.rights.0 |= rights.0,
                None => patterns.push(Pattern {
                    namespace: namespace.into(),
                    room: room.into(),
                    prefix,
                    rights,
                }),
            }
        }
        // All patterns that match one room have the same namespace, and of two prefixes the shorter is a prefix of
        // the longer.
        patterns.sort_by_key(|pattern| (pattern.prefix, std::cmp::Reverse(pattern.room.len())));
        grant.patterns = (!patterns.is_empty()).then(|| Box::new(Patterns(patterns.into())));
        Ok(grant)
    }

    fn patterns(&self) -> &[Pattern] {
        self.patterns.as_ref().map_or(&[], |patterns| &patterns.0)
    }

    /// The rights in a room.
    pub fn of(&self, name: &RoomName<'_>) -> Rights {
        let pattern = self.patterns().iter().find(|pattern| pattern.matches(name));
        pattern.map_or(self.elsewhere, |pattern| pattern.rights)
    }

    /// Whether any of these rights exists in some room.
    pub fn has_any(&self, rights: Rights) -> bool {
        let patterns = self.patterns().iter().map(|pattern| pattern.rights);
        patterns.chain([self.elsewhere]).any(|had| had.has_any(rights))
    }
}

/// Namespace and room of a pattern without its `*`.
fn parts(text: &str, prefix: bool) -> Result<(&str, &str), PatternError> {
    let wrong = || PatternError(text.chars().take(40).collect());
    if prefix {
        let (namespace, room) = text.split_once(':').unwrap_or((DEFAULT_NAMESPACE, text));
        // Checks a name that begins with the pattern; a room of one letter if nothing follows the colon.
        let name = format!("{namespace}:{}", if room.is_empty() { "x" } else { room });
        return RoomName::parse(&name).map(|_| (namespace, room)).map_err(|_| wrong());
    }
    let name = RoomName::parse(text).map_err(|_| wrong())?;
    Ok((name.namespace(), name.room()))
}

/// An admitted user, with its rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admitted {
    pub admission: Admission,
    pub grant: Grant,
}

impl From<u64> for Admitted {
    /// A user with every right everywhere, like the holder of the shared token.
    fn from(user: u64) -> Self {
        Admitted {
            admission: user.into(),
            grant: Grant::everywhere(Rights::ALL),
        }
    }
}

/// Splits a verdict: one part for the session, one for the role.
pub(crate) fn split_verdict(said: Result<Admitted, Denied>) -> (Result<Admission, Denied>, Grant) {
    match said {
        Ok(admitted) => (Ok(admitted.admission), admitted.grant),
        Err(denied) => (Err(denied), Grant::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rights(grant: &Grant, name: &str) -> Rights {
        grant.of(&RoomName::parse(name).expect("a name"))
    }

    fn grant(entries: &[(&str, &[&str])]) -> Result<Grant, PatternError> {
        Grant::new(
            entries
                .iter()
                .map(|(text, words)| (*text, Rights::of(words.iter().copied()))),
        )
    }

    #[test]
    fn the_most_specific_pattern_decides() {
        let grant = grant(&[
            ("*", &["members"]),
            ("sports:*", &["read"]),
            ("sports:final*", &["read", "publish"]),
            ("sports:final", &[]),
            ("lobby", &["command"]),
            ("lob*", &["history"]),
        ])
        .unwrap();
        for (name, wanted) in [
            ("sports:semi", Rights::READ),
            ("sports:finals", Rights::of(["read", "publish"])),
            ("sports:final", Rights::NONE),
            ("sportsbook:final", Rights::MEMBERS),
            ("default:lobby", Rights::COMMAND),
            ("lobby:2", Rights::MEMBERS),
            ("lobster", Rights::HISTORY),
        ] {
            assert_eq!(rights(&grant, name), wanted, "{name}");
        }
        assert!(grant.has_any(Rights::PUBLISH));
    }

    #[test]
    fn no_rights_if_no_pattern_matches() {
        let grant = grant(&[("chat:7", &["read"])]).unwrap();
        assert_eq!(rights(&grant, "chat:70"), Rights::NONE);
        assert_eq!(rights(&grant, "chat:7"), Rights::READ);
        assert!(!grant.has_any(Rights::PUBLISH));
        assert_eq!(rights(&Grant::default(), "chat:7"), Rights::NONE);
    }

    #[test]
    fn a_pattern_is_a_name_or_a_prefix() {
        for text in [
            "", "a*b", "**", "*:room", "sp*:room", "Sports:*", ":x", "chat:", "a\nb", "chat:\n*",
        ] {
            assert!(grant(&[(text, &["read"])]).is_err(), "{text:?}");
        }
        for text in ["*", "x", "x*", "chat:*", "chat:a:b*", "chat:é*"] {
            assert!(grant(&[(text, &["read"])]).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn unknown_words_are_ignored_and_all_words_give_all_rights() {
        assert_eq!(Rights::of(["fly", "read"]), Rights::READ);
        assert_eq!(Rights::of(Rights::WORDS.map(|(word, _)| word)), Rights::ALL);
        assert_eq!(Rights::ALL.words().count(), 5);
    }

    /// The same rules, applied by scanning: of all patterns that match the full name, an exact one, otherwise the
    /// longest.
    fn model(entries: &[(String, u8)], name: &str) -> u8 {
        let full = |text: &str| match text.contains(':') || text == "*" {
            true => text.to_string(),
            false => format!("default:{text}"),
        };
        let name = full(name);
        let rank = |text: &str| match text.strip_suffix('*') {
            Some(start) => name.starts_with(start).then_some(start.len()),
            None => (text == name).then_some(usize::MAX),
        };
        let ranked = entries
            .iter()
            .filter_map(|(text, bits)| Some((rank(&full(text))?, *bits)));
        let ranked: Vec<(usize, u8)> = ranked.collect();
        let best = ranked.iter().map(|(rank, _)| *rank).max();
        let best = ranked.iter().filter(|(rank, _)| Some(*rank) == best);
        best.fold(0, |all, (_, bits)| all | bits)
    }

    proptest! {
        #[test]
        fn rights_are_those_of_the_rules(
            entries in prop::collection::vec(("([ab]:)?[ab]{1,3}[*]?|[ab]:[*]|[*]", 0u8..32), 0..8),
            name in "([ab]:)?[ab]{1,4}",
        ) {
            let given = entries.iter().map(|(text, bits)| (text.as_str(), Rights(*bits)));
            let grant = Grant::new(given).unwrap();
            prop_assert_eq!(rights(&grant, &name), Rights(model(&entries, &name)));
        }
    }
}
