//! Known bugs of rooms, each behind a switch, to check that the tests find it (`docs/testing.md`).

#[macro_use]
#[path = "../../switch.rs"]
mod switch;

planted! {
    /// One member's repair requests use up the allowance of all.
    RequestLimitShared,
    /// A gateway passes on messages behind a hole.
    ForwardsPastHole,
    /// A restarted publisher is taken for its earlier life.
    NoIncarnation,
    /// A room that was forgotten and made again continues the old stream's name.
    GenerationKept,
    /// A leave is sent after a join that came later.
    LeaveOvertakesJoin,
    /// A chunk's declared length is trusted.
    ChunkLengthTrusted,
    /// A broker numbers messages before it knows the interested gateways.
    NumbersBeforeInterest,
    /// If several sources report a room, the last report counts instead of the newest.
    LastWordWins,
    /// A gateway that starts again keeps the rooms of its earlier life.
    EarlierLifeKept,
    /// A snapshot removes nothing: rooms left unreported stay.
    SnapshotsOnlyAdd,
    /// A router forwards a peer's reports to its peers.
    PeersPassOn,
    /// A broker whose partition gave up half of its rooms neglects gateways that still lack messages of them.
    NarrowingForgets,
    /// A source's report of its remaining rooms also counts for rooms that it no longer reports.
    FormerScopeGrows,
    /// A membership from the database overrules a gateway's report.
    HintOverrules,
    /// A new subscriber gets only changes, without a snapshot.
    SubscribedUntold,
    /// A command counts as delivered once it was sent to a gateway.
    ToldIsDelivered,
    /// A gateway counts as gone although routers may still reach it.
    AwayUnasked,
    /// A member delivers each copy of a command.
    CommandsForgotten,
    /// If several proxies send copies of a command, only the last one gets the outcome.
    LastAskerAnswered,
    /// A late record of a gateway's earlier life counts.
    EarlierLifeReturns,
    /// A broker that loses its router forgets that router's reports.
    RouterTakesItAlong,
    /// Rooms that a broker does not know and no source reports count as covered anyway.
    UntoldUncounted,
    /// A router without its peers' reports tells a broker that its knowledge is complete.
    PeersUnheard,
    /// A gateway believes a member's positions though their owner never numbered them.
    AheadBelieved,
    /// A gateway takes positions that it does not know of for ones that their owner never numbered.
    AheadDenied,
    /// A broker does not serve the gateways again that a lost gateway passed a room on to.
    SilentRelayStays,
    /// A broker that came back from an earlier state of its life goes on with its streams.
    ReturnUnnoticed,
    /// A gateway passes some messages that a member's filter lets through.
    FilterPassesWanted,
    /// A gateway answers requests of members with a filter as if it passed all that they lack.
    RepairsPassAll,
    /// A gateway sends what it sent to a member that wants the latest message not again.
    LatestNotAgain,
    /// A gateway forgets the newest message where its time had not come when the room fell silent.
    LatestNotLast,
    /// An edge says that a client got all that it missed, though messages between are lost.
    RecoveredWithHole,
    /// An edge builds one frame for members whatever form they take.
    FormsMixed,
}
