//! Known bugs, each behind a switch, to see that the tests find it.
//!
//! Without the feature `planted` every question is answered "no" at compile time, and nothing of this is left.

/// One bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
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

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in all engines of this thread, or none.
    pub fn set(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub use switch::{is, set};

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}
