//! Known bugs of presence and unicast, each behind a switch, to check that the tests find it (`docs/testing.md`).

#[macro_use]
#[path = "../../switch.rs"]
mod switch;

planted! {
    /// A proxy sends a version only to the writers that have events in it (H1).
    EmptyUnsent,
    /// A writer accepts packets of any epoch (H2).
    EpochIgnored,
    /// A full state adds devices but removes none (H5).
    FullMerged,
    /// The applied vector leaves before the users that it covers (H7).
    VectorApart,
    /// The second path's copy of a packet counts as a change.
    DuplicateCounted,
    /// A writer reports that it is in sync although it lacks versions (H7).
    AliveOutOfSync,
    /// A writer that heard no gateway for long is in sync as soon as it hears one (H7).
    SilenceForgotten,
    /// A late packet overrules a newer one (H4).
    LateOverrules,
    /// The last packets of a gateway that falls idle are not noticed as missing.
    TailForgotten,
    /// A page of the store overrules a batch that a reader's copy took before.
    PageOverrules,
    /// A reader's copy takes a batch although one before it is missing.
    GapTaken,
    /// Users that went stay in a reader's copy.
    GoneKept,
    /// A message that arrived on both paths is delivered twice.
    DeliveredTwice,
}
