//! Reliable commands: rare, never lost silently, unordered. All roles share this, also for questions about a room's
//! members, which take the same way.
//!
//! A command goes client, proxy, broker, gateways, members by the control logs of each hop, and its outcome returns the
//! same way; a client sends copies by several proxies (ROOM-14). Senders and receivers keep it until then. Its sender
//! and a random number identify it, so a copy, and another try by another way, is the same command. Knows no role.

use std::borrow::Cow;
use std::collections::BTreeSet;

use muster_transport::{Code, Micros};

/// Bytes of a command: with its frame and the longest room name it fits into a record.
pub const COMMAND_BYTES_MAX: usize = 800;
/// The longest lifetime of a command.
pub const LIFETIME_MAX: Micros = 60_000_000;
/// A hop nearer to the sender waits this much longer than the one behind it, to hear that one's final answer.
pub const GRACE: Micros = 250_000;
/// The interval at which a proxy reviews open commands, for a silent broker; and the wait of a broker for a restarting
/// gateway, or for the interest to be known.
pub const LOOK_EVERY: Micros = 50_000;
/// Members have this long to leave a gateway that has no link any more; then it counts as one without members.
pub const AWAY_GRACE: Micros = 1_500_000;
/// An outcome is remembered for this long, for repeated questions and late copies.
pub const REMEMBER: Micros = 10_000_000;
/// Commands at once of which a server keeps the bytes: 64 MiB with them, and a minute of 1,000 a second. Users and
/// rooms share them, see [`crate::shares`].
pub const COMMANDS_MAX: usize = 1 << 16;
/// The same with those that it only remembers, some 250 B each, so 64 MiB more: 15 s of 17,000 a second that are done at once.
pub const KNOWN_MAX: usize = 1 << 18;
/// Answers of members that a gateway waits for, shared in the same way: of each session that there may be for one command, or of
/// 4,096 for 256. Some 100 B each, so 100 MiB.
pub const AWAITED_MAX: usize = 1 << 20;
/// Of these, this many are given up in one turn, some 30 ms of work: the rest has the next one.
pub const ENDED_A_TURN: usize = 1 << 16;
/// The user of sessions with the shared token of all programs; no other credential means this user. It is limited
/// session by session.
pub const SHARED_USER: u64 = 1;
/// Commands of one user at one proxy by default: this many a second, and this many at once after a pause.
pub const COMMAND_RATE: u32 = 1;
pub const COMMAND_BURST: u32 = 1;
/// The same of questions for members.
pub const COUNT_RATE: u32 = 1;
pub const COUNT_BURST: u32 = 5;
/// The rate of commands that a client copies to spare sessions. Further ones use the main session alone: they should be
/// rare.
pub const SPREAD_RATE: u32 = 1;
pub const SPREAD_BURST: u32 = 5;
/// A client sends at most this many copies of a command at once, each by another proxy.
pub const COPIES: usize = 3;
/// The wait told to the sender of a temporarily refused command.
pub const RETRY: Micros = 1_000_000;
/// Users that one answer names: 800 bytes, so that they fit into a record with the rest of it.
pub const USERS_MAX: usize = 100;
/// Hops that an answer tells of: a broker, and the slowest of its gateways.
pub const HOPS_MAX: usize = 16;

/// A command's identity: its sender and a random number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId {
    pub user: u64,
    pub number: u64,
}

impl CommandId {
    pub const FIRST: CommandId = CommandId { user: 0, number: 0 };
    pub const LAST: CommandId = CommandId {
        user: u64::MAX,
        number: u64::MAX,
    };
}

/// A request to all gateways with members of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// To tell each member this: a command.
    Tell(Cow<'a, [u8]>),
    /// Count the members and, from a user on, list their users.
    Count { from: Option<u64> },
}

impl Default for Ask<'_> {
    fn default() -> Self {
        Ask::Tell(Cow::default())
    }
}

impl<'a> Ask<'a> {
    pub fn tell(data: &'a [u8]) -> Self {
        Ask::Tell(Cow::Borrowed(data))
    }

    pub fn by_ref(&self) -> Ask<'_> {
        match self {
            Ask::Tell(data) => Ask::tell(data),
            Ask::Count { from } => Ask::Count { from: *from },
        }
    }

    pub fn keep(self) -> Ask<'static> {
        match self {
            Ask::Tell(data) => Ask::Tell(Cow::Owned(data.into_owned())),
            Ask::Count { from } => Ask::Count { from },
        }
    }
}

/// A node's time to answer, by the asking node's clock: the way there, the node's own work, and the way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    pub node: u32,
    pub took_us: u32,
}

impl Hop {
    pub fn new(node: u32, asked: Micros, now: Micros) -> Self {
        let took_us = u32::try_from(now.saturating_sub(asked)).unwrap_or(u32::MAX);
        Hop { node, took_us }
    }
}

/// A room's members: users in order, each once, and whether there may be more behind the last one. `hops`: the path of
/// the question. At a broker: its gateways, the slowest first. At a proxy: that broker, then these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub users: Vec<u64>,
    pub more: bool,
    pub hops: Vec<Hop>,
}

impl Page {
    /// The lowest of them, as many as an answer names.
    pub fn of(users: impl Iterator<Item = u64>) -> Self {
        let (mut lowest, mut more) = (BTreeSet::new(), false);
        for user in users {
            let full = lowest.len() >= USERS_MAX;
            if full && lowest.last().is_some_and(|last| user > *last) {
                more = true;
            } else if lowest.insert(user) && full {
                lowest.pop_last();
                more = true;
            }
        }
        Page {
            users: lowest.into_iter().collect(),
            more,
            hops: Vec::new(),
        }
    }

    /// Several gateways' as one: only as far as all of them have named theirs.
    pub fn merged<'p>(pages: impl Iterator<Item = &'p Page> + Clone) -> Self {
        let ends = pages.clone().filter(|page| page.more);
        let until = ends.map(|page| page.users.last().copied()).min();
        let named = |user: &u64| until.is_none_or(|until| until.is_some_and(|until| *user <= until));
        let mut page = Page::of(pages.flat_map(|page| page.users.iter().copied()).filter(named));
        page.more |= until.is_some();
        page
    }
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every member was told and has said so.
    Delivered,
    /// The room has no member.
    NoMember,
    /// Time was over before all had said so.
    Expired,
    /// It was not tried.
    Refused(Code),
}

/// How a command ended, and how many members it reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub verdict: Verdict,
    pub members: u32,
}

impl Outcome {
    /// The outcome once all asked gateways have answered.
    pub fn of(members: u32) -> Self {
        let verdict = match members {
            0 => Verdict::NoMember,
            _ => Verdict::Delivered,
        };
        Outcome { verdict, members }
    }

    pub fn expired(members: u32) -> Self {
        let verdict = Verdict::Expired;
        Outcome { verdict, members }
    }

    pub fn refused(code: Code) -> Self {
        let verdict = Verdict::Refused(code);
        Outcome { verdict, members: 0 }
    }

    /// Whether it was not tried, and may be later.
    pub fn is_put_off(self) -> bool {
        matches!(self.verdict, Verdict::Refused(code) if code.retry())
    }
}

/// The rest of a lifetime in milliseconds, at least 1.
pub fn left_ms(now: Micros, until: Micros) -> u32 {
    u32::try_from(until.saturating_sub(now) / 1_000).map_or(u32::MAX, |left| left.max(1))
}

/// When a lifetime that was told is over.
pub fn until(now: Micros, left_ms: u32) -> Micros {
    now + (Micros::from(left_ms) * 1_000).min(LIFETIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Page after page names every user of every gateway once, in order, whatever each gateway could look at.
        #[test]
        fn page_after_page_names_everybody(
            gateways in prop::collection::vec(prop::collection::vec(0u64..500, 0..300), 0..4),
        ) {
            let everybody: BTreeSet<u64> = gateways.iter().flatten().copied().collect();
            let (mut named, mut from) = (Vec::<u64>::new(), 0);
            loop {
                let of = |users: &Vec<u64>| Page::of(users.iter().copied().filter(|user| *user >= from));
                let pages: Vec<Page> = gateways.iter().map(of).collect();
                let page = Page::merged(pages.iter());
                prop_assert!(page.users.len() <= USERS_MAX);
                named.extend(&page.users);
                match page.users.last().filter(|_| page.more) {
                    Some(last) => from = last + 1,
                    None => break,
                }
            }
            prop_assert_eq!(named, everybody.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn who_could_not_look_names_nobody_and_says_that_there_may_be_more() {
        let (some, none) = (
            Page::of([1, 2].into_iter()),
            Page {
                users: vec![],
                more: true,
                hops: Vec::new(),
            },
        );
        assert_eq!(Page::merged([some, none.clone()].iter()), none);
    }
}
