//! Reliable commands: seldom, never lost without a word, in no order. What all roles know of them.
//!
//! A command goes client, proxy, broker, gateways, members by the control logs of each hop, and what became of it goes back the
//! same way. Who sends and who is told keep it until then; it is known by who sent it and a random number, so that another try by
//! another way is the same command. Knows no role.

use crate::machine::Micros;
use crate::wire::Code;

/// Bytes of a command: with its frame and the longest room name it fits into a record.
pub const COMMAND_BYTES_MAX: usize = 800;
/// The longest that anybody tries.
pub const LIFETIME_MAX: Micros = 60_000_000;
/// A hop nearer to the sender waits so much longer than the one behind it, to hear what that one says at the end.
pub const GRACE: Micros = 250_000;
/// How often what is not done is looked at: a gateway that came back, a member that went, a broker that does not answer.
pub const LOOK_EVERY: Micros = 50_000;
/// What became of a command is remembered so long after its end, for who asks again and for copies that come late.
pub const REMEMBER: Micros = 10_000_000;
/// Commands that a server knows at once: with their bytes 64 MiB, and a minute of 1,000 a second.
pub const COMMANDS_MAX: usize = 1 << 16;

/// A command by who sent it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId {
    pub user: u64,
    pub number: u64,
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every member was told and has said so.
    Delivered,
    /// Nobody is in the room.
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
    /// Of one that all who were asked have answered.
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
}

/// What is left of a lifetime, in milliseconds and never nothing.
pub fn left_ms(now: Micros, until: Micros) -> u32 {
    u32::try_from(until.saturating_sub(now) / 1_000).map_or(u32::MAX, |left| left.max(1))
}

/// When a lifetime that was told is over.
pub fn until(now: Micros, left_ms: u32) -> Micros {
    now + (Micros::from(left_ms) * 1_000).min(LIFETIME_MAX)
}
