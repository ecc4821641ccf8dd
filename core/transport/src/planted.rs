//! Known bugs of what carries packets, each behind a switch, to see that the suite finds it (`docs/testing.md`).

muster_planted::planted! {
    /// A sequence counts as seen before its datagram proved genuine.
    WindowBeforeOpen,
    /// Both directions of a connection seal with the same nonces.
    DirectionMissing,
    /// The tail is probed once only.
    TailProbeStopsEarly,
    /// While partitions double, the old ones alone hear of a room.
    NewPartitionUntold,
    /// After the switch of a doubling a room is in force though the new partition has not heard of it.
    NewPartitionUncounted,
    /// The number of running nodes decides a room's owner.
    OwnerByNumber,
    /// A link on which nothing comes stays.
    SilenceUnnoticed,
    /// Links are left with the secret that they were made with, until that is dropped.
    SecretNotRenewed,
    /// The link of a node that is taken from the list of nodes stays.
    ShutOutStays,
    /// A peer that was left out of choices stays so.
    LeftOutForGood,
    /// However many peers of a group are left out, one more may be.
    NoneLeft,
    /// One second decides whether a peer is left out.
    JudgedInHaste,
}
