//! Known bugs of presence and unicast, each behind a switch, to see that the suite finds it (`docs/testing.md`).

muster_planted::planted! {
    /// A proxy sends a version only to the writers that have events in it (H1).
    EmptyUnsent,
    /// A writer takes packets of any epoch (H2).
    EpochIgnored,
    /// A full state adds devices and takes none away (H5).
    FullMerged,
    /// The applied vector leaves before the users that it speaks of (H7).
    VectorApart,
    /// The second path's copy of a packet counts as a change.
    DuplicateCounted,
    /// A writer says that it is in sync whatever it lacks (H7).
    AliveOutOfSync,
    /// A late packet overrules a newer one (H4).
    LateOverrules,
    /// The last packets of a gateway that falls idle are not missed.
    TailForgotten,
    /// A message that came by both paths is delivered twice.
    DeliveredTwice,
}
