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
    /// One member's repair requests use up the allowance of all.
    RequestLimitShared,
    /// A gateway passes on messages behind a hole.
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
    /// A broker numbers messages before it knows the interested gateways.
    NumbersBeforeInterest,
    /// If several sources report a room, the last report counts, not the newest.
    LastWordWins,
    /// A gateway that starts again keeps the rooms of its earlier life.
    EarlierLifeKept,
    /// A snapshot removes nothing: rooms left unreported stay.
    SnapshotsOnlyAdd,
    /// A router passes a peer's reports on to its peers.
    PeersPassOn,
    /// While partitions double, a gateway tells the old ones only news.
    NewPartitionUntold,
    /// A broker whose partition gave up half of its rooms neglects gateways that still lack messages of them.
    NarrowingForgets,
    /// A source's report of its remaining rooms also counts for rooms that it no longer reports.
    FormerScopeGrows,
    /// After the switch of a doubling a join is answered though the new partition has not heard of it.
    NewPartitionUncounted,
    /// A database's memory overrules a gateway's report.
    HintOverrules,
    /// A new subscriber hears only news.
    SubscribedUntold,
    /// The number of running brokers decides a room's owner.
    OwnerByNumber,
    /// A command counts as delivered once a gateway was told it.
    ToldIsDelivered,
    /// A gateway counts as gone without asking the routers' opinion.
    AwayUnasked,
    /// A member takes each copy of a command.
    CommandsForgotten,
    /// If several proxies bring copies of a command, the last one gets the outcome.
    LastAskerAnswered,
    /// A link on which nothing comes stays.
    SilenceUnnoticed,
    /// A late record of a gateway's earlier life counts.
    EarlierLifeReturns,
    /// A broker that loses its router forgets that one's reports.
    RouterTakesItAlong,
    /// Rooms that a broker does not know and no source reports are in force anyway.
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
    /// One second decides whether a peer is left out.
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
