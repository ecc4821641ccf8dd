//! Known bugs of the log, each behind a switch, to see that the suite finds it (`docs/testing.md`).

muster_planted::planted! {
    /// A torn group counts as whole.
    TailUnchecked,
    /// Frames of a segment's earlier life are valid in its next one.
    SaltMissing,
    /// A fenced owner answers.
    OwnerUnasked,
    /// The log goes on after a failed sync.
    SyncRetried,
    /// A group is answered before it is synced.
    SyncMissing,
    /// The last group, which an opening found, may be in memory only.
    TailNotSynced,
    /// The acknowledged offset is written before its records are durable.
    AckedEarly,
    /// Damage in the middle is cut as if it were a torn tail.
    DamageCut,
}
