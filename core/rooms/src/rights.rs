//! What a user may do in which rooms, by its token.
//!
//! Owns: [`Rights`], [`Grant`]. Must not know: tokens, sessions, the rooms that exist. A role looks once per join, per
//! opening of a publication and per question, never per message.

use std::fmt;

use muster_transport::{Admission, Denied};

use crate::name::{RoomName, DEFAULT_NAMESPACE};

/// A set of rights in one room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights(u8);

impl Rights {
    pub const NONE: Rights = Rights(0);
    /// To be a member.
    pub const READ: Rights = Rights(1);
    pub const PUBLISH: Rights = Rights(2);
    /// To send commands to the members.
    pub const COMMAND: Rights = Rights(4);
    /// To ask who the members are.
    pub const MEMBERS: Rights = Rights(8);
    /// To ask for messages from before the join.
    pub const HISTORY: Rights = Rights(16);
    pub const ALL: Rights = Rights(31);

    /// Each right and its word in a token.
    pub const WORDS: [(&'static str, Rights); 5] = [
        ("read", Rights::READ),
        ("publish", Rights::PUBLISH),
        ("command", Rights::COMMAND),
        ("members", Rights::MEMBERS),
        ("history", Rights::HISTORY),
    ];

    /// The rights of these words. Other words mean nothing: a later version may know them.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Rights {
        let right = |word| Rights::WORDS.iter().find(|(known, _)| *known == word);
        let rights = words.into_iter().filter_map(right);
        Rights(rights.fold(0, |bits, (_, right)| bits | right.0))
    }

    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let mine = Rights::WORDS.into_iter().filter(move |(_, right)| self.has(*right));
        mine.map(|(word, _)| word)
    }

    /// Whether all of these are among them.
    pub fn has(self, others: Rights) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether one of these is among them.
    pub fn has_any(self, others: Rights) -> bool {
        self.0 & others.0 != 0
    }

    /// These rights and others.
    pub fn and(self, others: Rights) -> Rights {
        Rights(self.0 | others.0)
    }

    /// The rights that are also among others.
    pub fn within(self, others: Rights) -> Rights {
        Rights(self.0 & others.0)
    }
}

/// A room's name, or how names begin, and the rights there.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pattern {
    namespace: Box<str>,
    room: Box<str>,
    /// Rooms whose names go on have them too.
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

/// The most specific first. Their number is bound by the length of a credential.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Patterns(Box<[Pattern]>);

/// The rights of one user, room by room. Most are alike in all rooms: these take no memory beyond the session's 16 B.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Where no pattern matches.
    elsewhere: Rights,
    patterns: Option<Box<Patterns>>,
}

impl Default for Grant {
    /// Nothing.
    fn default() -> Self {
        Grant::everywhere(Rights::NONE)
    }
}

/// A text that is no pattern of room names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatternError(String);

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no pattern: use a room's name, the beginning of one and *, or * alone",
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

    /// The rights of each pattern: a room's name, the beginning of one with `*` behind it, or `*`. A pattern without a
    /// namespace is of the default one, as a name is. The most specific pattern that matches a room decides: its name,
    /// else the longest beginning. A pattern that comes twice has the rights of both.
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
        // Those that match one room have one namespace, and of two beginnings one begins the other.
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

    /// Whether one of these rights is there in some room.
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
        // A name that begins so is enough: a room of one letter where nothing follows the colon.
        let name = format!("{namespace}:{}", if room.is_empty() { "x" } else { room });
        return RoomName::parse(&name).map(|_| (namespace, room)).map_err(|_| wrong());
    }
    let name = RoomName::parse(text).map_err(|_| wrong())?;
    Ok((name.namespace(), name.room()))
}

/// A user who is let in, with its rights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admitted {
    pub admission: Admission,
    pub grant: Grant,
}

impl From<u64> for Admitted {
    /// A user with every right everywhere, as the holder of the shared token.
    fn from(user: u64) -> Self {
        Admitted {
            admission: user.into(),
            grant: Grant::everywhere(Rights::ALL),
        }
    }
}

/// The parts of an answer: one for the session, one for the role.
pub(crate) fn apart(said: Result<Admitted, Denied>) -> (Result<Admission, Denied>, Grant) {
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
    fn nothing_is_given_where_no_pattern_matches() {
        let grant = grant(&[("chat:7", &["read"])]).unwrap();
        assert_eq!(rights(&grant, "chat:70"), Rights::NONE);
        assert_eq!(rights(&grant, "chat:7"), Rights::READ);
        assert!(!grant.has_any(Rights::PUBLISH));
        assert_eq!(rights(&Grant::default(), "chat:7"), Rights::NONE);
    }

    #[test]
    fn a_pattern_is_a_name_or_its_beginning_and_nothing_else() {
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
    fn unknown_words_mean_nothing_and_all_words_are_all_rights() {
        assert_eq!(Rights::of(["fly", "read"]), Rights::READ);
        assert_eq!(Rights::of(Rights::WORDS.map(|(word, _)| word)), Rights::ALL);
        assert_eq!(Rights::ALL.words().count(), 5);
    }

    /// The rules once more: of all patterns that match the full name, an exact one, else the longest.
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
