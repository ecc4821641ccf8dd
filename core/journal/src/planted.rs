//! Known bugs, each behind a switch, to see that the tests find it.
//!
//! Without the feature `planted` every question is answered "no" at compile time, and nothing of this is left.

/// One bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
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
    /// Damage in the middle is cut as if it were a torn tail.
    DamageCut,
}

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in all journals of this thread, or none.
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
