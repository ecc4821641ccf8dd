//! Known bugs of the transport, each behind a switch, to check that the tests find it (`docs/testing.md`).

#[macro_use]
#[path = "../../switch.rs"]
mod switch;

planted! {
    /// A sequence counts as seen before its datagram is authenticated.
    WindowBeforeOpen,
    /// Both directions of a connection seal with the same nonces.
    DirectionMissing,
    /// The tail is probed only once.
    TailProbeStopsEarly,
    /// While partitions double, only the old ones learn of a room.
    NewPartitionUntold,
    /// After the switch of a doubling a room counts as known though the new partition has not learned of it.
    NewPartitionUncounted,
    /// The number of running nodes decides a room's owner.
    OwnerByNumber,
    /// A link on which nothing arrives stays.
    SilenceUnnoticed,
    /// Links keep the secret that they were made with until it is dropped.
    SecretNotRenewed,
    /// The link of a node that was removed from the list stays.
    ShutOutStays,
    /// An excluded peer is never readmitted.
    LeftOutForGood,
    /// Any number of peers of a group may be excluded.
    NoneLeft,
    /// One bad second excludes a peer.
    JudgedInHaste,
}
