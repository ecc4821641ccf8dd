//! Known bugs of rooms, each behind a switch, to see that the suite finds it (`docs/testing.md`).

muster_planted::planted! {
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
    /// A broker whose partition gave up half of its rooms neglects gateways that still lack messages of them.
    NarrowingForgets,
    /// A source's report of its remaining rooms also counts for rooms that it no longer reports.
    FormerScopeGrows,
    /// A database's memory overrules a gateway's report.
    HintOverrules,
    /// A new subscriber hears only news.
    SubscribedUntold,
    /// A command counts as delivered once a gateway was told it.
    ToldIsDelivered,
    /// A gateway counts as gone without asking the routers' opinion.
    AwayUnasked,
    /// A member takes each copy of a command.
    CommandsForgotten,
    /// If several proxies bring copies of a command, the last one gets the outcome.
    LastAskerAnswered,
    /// A late record of a gateway's earlier life counts.
    EarlierLifeReturns,
    /// A broker that loses its router forgets that one's reports.
    RouterTakesItAlong,
    /// Rooms that a broker does not know and no source reports are in force anyway.
    UntoldUncounted,
    /// A broker hears that it knows everything from a router that has not heard its peers.
    PeersUnheard,
    /// An edge says that a client got all that it missed, though messages between are lost.
    RecoveredWithHole,
    /// An edge builds one frame for members whatever form they take.
    FormsMixed,
}
