//! Reliable commands: rare, never lost silently, unordered. All roles share this, also for queries of a room's
//! members, which take the same path.
//!
//! A command goes from client to proxy, broker, gateways and members by the control logs of each hop, and its outcome
//! returns the same way; a client sends copies through several proxies (ROOM-14). Senders and receivers keep it until
//! then. Its sender and a random number identify it, so copies and retries on other paths are the same command. Knows
//! no role.

use std::borrow::Cow;
use std::collections::BTreeSet;

use muster_transport::{Code, Micros};

/// Maximum bytes of a command: with its frame and the longest room name it fits into a record.
pub const COMMAND_BYTES_MAX: usize = 800;
/// The longest lifetime of a command.
pub const LIFETIME_MAX: Micros = 60_000_000;
/// Each hop waits this much longer than the next one, so that it still gets that hop's final reply.
pub const GRACE: Micros = 250_000;
/// How often a proxy reviews open commands, in case a broker is silent; and how long a broker waits for a restarting
/// gateway, or for unknown interest.
pub const LOOK_EVERY: Micros = 50_000;
/// Time for members to leave a gateway that lost its link; then it counts as one without members.
pub const AWAY_GRACE: Micros = 1_500_000;
/// An outcome is remembered for this long, for repeats and late copies.
pub const REMEMBER: Micros = 10_000_000;
/// Maximum number of commands whose bytes a server keeps: 64 MiB with them, and a minute of 1,000 a second. Users and
/// rooms share them, see [`crate::shares`].
pub const COMMANDS_MAX: usize = 1 << 16;
/// Maximum number of commands including those that are only remembered, some 250 B each, so 64 MiB more: 15 s of
/// 17,000 a second that end at once.
pub const KNOWN_MAX: usize = 1 << 18;
/// Maximum number of members' replies that a gateway waits for, shared in the same way: one command to every possible
/// session, or 256 commands to 4,096 sessions. Some 100 B each, so 100 MiB.
pub const AWAITED_MAX: usize = 1 << 20;
/// Maximum number of these that are given up in one turn, some 30 ms of work: the next turn continues.
pub const ENDED_A_TURN: usize = 1 << 16;
/// The user of all sessions with the shared token; no other credential has this user. It is limited session by
/// session.
pub const SHARED_USER: u64 = 1;
/// Default rate of one user's commands at one proxy, per second, and the burst after a pause.
pub const COMMAND_RATE: u32 = 1;
pub const COMMAND_BURST: u32 = 1;
/// The same for member queries.
pub const COUNT_RATE: u32 = 1;
pub const COUNT_BURST: u32 = 5;
/// The rate of commands that a client copies to spare sessions. Further ones use only the main session: they should
/// be rare.
pub const SPREAD_RATE: u32 = 1;
pub const SPREAD_BURST: u32 = 5;
/// Maximum number of copies of a command that a client sends at once, each through another proxy.
pub const COPIES: usize = 3;
/// The wait announced to the sender of a temporarily refused command.
pub const RETRY: Micros = 1_000_000;
/// Maximum number of users in one reply: 800 bytes, so that they fit into a record with the rest of it.
pub const USERS_MAX: usize = 100;
/// Maximum number of hops in a reply: a broker, and the slowest of its gateways.
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
    /// Deliver this to each member: a command.
    Tell(Cow<'a, [u8]>),
    /// Count the members and, from a user on, list their users.
    Count { from: Option<u64> },
    /// End the sessions with which a user is a member. Only a client with the shared token may ask.
    End { user: u64 },
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

    /// Whether it changes something, so that a repeat counts as the same command. A question is new each time.
    pub fn acts(&self) -> bool {
        !matches!(self, Ask::Count { .. })
    }

    pub fn by_ref(&self) -> Ask<'_> {
        match self {
            Ask::Tell(data) => Ask::tell(data),
            Ask::Count { from } => Ask::Count { from: *from },
            Ask::End { user } => Ask::End { user: *user },
        }
    }

    pub fn keep(self) -> Ask<'static> {
        match self {
            Ask::Tell(data) => Ask::Tell(Cow::Owned(data.into_owned())),
            Ask::Count { from } => Ask::Count { from },
            Ask::End { user } => Ask::End { user },
        }
    }
}

/// How long a node took to reply, by the asking node's clock: the way there, the node's own work, and the way back.
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

/// A room's members: users in order, each once, and whether there may be more behind the last one. `hops`: the path
/// of the query. From a broker: its gateways, slowest first. From a proxy: that broker, then these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub users: Vec<u64>,
    pub more: bool,
    pub hops: Vec<Hop>,
}

impl Page {
    /// The lowest users, as many as a reply holds.
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

    /// Merges the pages of several gateways, up to the user that all of them have covered.
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
    /// Every member got it and has confirmed it.
    Delivered,
    /// The room has no member.
    NoMember,
    /// The time was over before all members had confirmed it.
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
    /// The outcome once all gateways have replied.
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

    /// Whether it was not tried, and may be tried later.
    pub fn is_put_off(self) -> bool {
        matches!(self.verdict, Verdict::Refused(code) if code.retry())
    }
}

/// The rest of a lifetime in milliseconds, at least 1.
pub fn left_ms(now: Micros, until: Micros) -> u32 {
    u32::try_from(until.saturating_sub(now) / 1_000).map_or(u32::MAX, |left| left.max(1))
}

/// When a received lifetime is over.
pub fn until(now: Micros, left_ms: u32) -> Micros {
    now + (Micros::from(left_ms) * 1_000).min(LIFETIME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Page after page lists every user of every gateway once, in order, whatever part each gateway could scan.
        #[test]
        fn pages_list_every_user_once(
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
    fn a_gateway_that_could_not_scan_lists_nobody_and_reports_more() {
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
