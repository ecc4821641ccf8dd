//! Known bugs, each behind a switch, to see that the suite finds it (`docs/testing.md`).
//!
//! Without the feature `planted` every question is answered "no" at compile time, and nothing of this is left.

/// One bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A sequence counts as seen before its datagram proved genuine.
    WindowBeforeOpen,
    /// Both directions of a connection seal with the same nonces.
    DirectionMissing,
    /// One member's repair requests use up what all may have.
    RequestLimitShared,
    /// A gateway passes on what lies behind a hole.
    ForwardsPastHole,
    /// A publisher that starts again is taken for its earlier life.
    NoIncarnation,
    /// A room that was forgotten and made again continues the old stream's name.
    GenerationKept,
    /// A leave is told after a join that came later.
    LeaveOvertakesJoin,
    /// A message is as long as it says.
    ChunkLengthTrusted,
    /// The tail is probed once only.
    TailProbeStopsEarly,
    /// A broker numbers messages before it knows who wants them.
    NumbersBeforeInterest,
    /// Of what several sources tell of a room the last counts, not the newest.
    LastWordWins,
    /// A gateway that starts again keeps the rooms of its earlier life.
    EarlierLifeKept,
    /// A snapshot takes nothing away: what was left while nobody told stays.
    SnapshotsOnlyAdd,
    /// A router passes on to its peers what came from one of them.
    PeersPassOn,
    /// While partitions double, a gateway tells the old ones only of what is new.
    NewPartitionUntold,
    /// A broker whose partition gave up half of its rooms leaves those alone who still lack something of them.
    NarrowingForgets,
    /// What a source tells of the rest of its rooms counts for those too of which it does not tell any more.
    FormerScopeGrows,
    /// After the switch of a doubling a join is answered though the new partition has not heard of it.
    NewPartitionUncounted,
    /// What a database remembers stands against what a gateway has told.
    HintOverrules,
    /// Who subscribes hears only what is new.
    SubscribedUntold,
    /// Who owns a room follows from how many brokers run.
    OwnerByNumber,
    /// A command counts as delivered once a gateway was told it.
    ToldIsDelivered,
    /// What routers say of a gateway is not asked before it counts as gone.
    AwayUnasked,
    /// A member takes each copy of a command.
    CommandsForgotten,
    /// Of several proxies that bring copies of a command the last one hears what became of it.
    LastAskerAnswered,
    /// A link on which nothing comes stays.
    SilenceUnnoticed,
    /// What comes late of an earlier life of a gateway counts.
    EarlierLifeReturns,
    /// A broker that loses its router forgets what that one told.
    RouterTakesItAlong,
    /// What a broker does not know that nobody tells is in force all the same.
    UntoldUncounted,
    /// A broker hears that it knows everything from a router that has not heard its peers.
    PeersUnheard,
    /// Links are left with the secret that they were made with, until that is dropped.
    SecretNotRenewed,
    /// The link of a node that is taken from the list of nodes stays.
    ShutOutStays,
    /// A broker that was left out of commands stays so.
    LeftOutForGood,
    /// However many brokers of a partition are left out, one more may be.
    NoneLeft,
    /// One second decides who is left out.
    JudgedInHaste,
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in all machines of this thread, or none.
    pub fn set(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub use switch::{is, set};

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}
