//! Known bugs, each behind a switch, to see that the tests find it.
//!
//! Without the feature `planted` every question is answered "no" at compile time, and nothing of this is left.

/// One bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
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

#[cfg(feature = "planted")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a bug in all machines of this thread, or none.
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
