//! Known bugs of likes, each behind a switch, to check that the tests find it (`docs/testing.md`).

#[macro_use]
#[path = "../../switch.rs"]
mod switch;

planted! {
    /// A ranking uses the count from before the toggle.
    RankBeforeCount,
    /// Two users get the same dense id.
    DenseIdTwice,
    /// A dirty mark is cleared even if the item changed since its row was taken.
    DirtyClearedBlindly,
    /// A row carries the modification number from before the change.
    OldModification,
    /// A second like of the same user counts.
    TwiceCountsTwice,
    /// A user who took the like back stays among the newest likers.
    RingKeepsTakenBack,
    /// A restored engine treats every item as written.
    DirtyNotRestored,
    /// Items changed during a snapshot are not saved in their old state.
    CutNotKept,
    /// The result of a bit operation keeps the user whose erasure has passed its slot.
    ErasedComesBack,
    /// A snapshot in progress loses the ids of users behind one that is erased.
    ErasedWithinCut,
    /// The dense id of an erased user is given to another one.
    ErasedIdReused,
    /// A reply leaves before its record is durable.
    ReplyBeforeDurable,
}
