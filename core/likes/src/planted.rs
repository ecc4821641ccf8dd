//! Known bugs of likes, each behind a switch, to see that the suite finds it (`docs/testing.md`).

muster_planted::planted! {
    /// A ranking takes the count from before the toggle.
    RankBeforeCount,
    /// Two users get one dense id.
    DenseIdTwice,
    /// A dirty mark is cleared whatever happened since the row was taken.
    DirtyClearedBlindly,
    /// A row carries the modification number from before the change.
    OldModification,
    /// A second like of the same user counts.
    TwiceCountsTwice,
    /// A user who took the like back stays among the newest likers.
    RingKeepsTakenBack,
    /// A restored engine takes every item for written.
    DirtyNotRestored,
    /// What changes while a snapshot is made is not saved as it was before.
    CutNotKept,
    /// A reply leaves before its record is durable.
    ReplyBeforeDurable,
}
