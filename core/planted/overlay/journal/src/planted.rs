//! Known bugs of the log, each behind a switch, to check that the tests find it (`docs/testing.md`).

#[macro_use]
#[path = "../../switch.rs"]
mod switch;

planted! {
    /// A torn group counts as whole.
    TailUnchecked,
    /// Frames of a segment's earlier life are valid in its next one.
    SaltMissing,
    /// A fenced owner still acknowledges appends.
    OwnerUnasked,
    /// The log continues after a failed sync.
    SyncRetried,
    /// A group is acknowledged before it is synced.
    SyncMissing,
    /// The last group found by an opening may be only in the cache.
    TailNotSynced,
    /// The acknowledged offset is written before its records are durable.
    AckedEarly,
    /// Damage in the middle is cut like a torn tail.
    DamageCut,
    /// A clean segment has the bytes of a trimmed one behind its own.
    OldBytesStay,
}
