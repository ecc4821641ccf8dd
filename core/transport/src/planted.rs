//! Known bugs, each behind a switch, to see that the suite finds it (`docs/testing.md`).
//!
//! Owns the bugs of this crate, and the macro that gives a system's crate its own. Without the feature `planted` every
//! question is answered "no" at compile time, and nothing of this is left.

/// Declares a crate's bugs as `Bug`, with `is`, which asks for one, and `set`, which plants one. The crate needs a
/// feature `planted`.
#[macro_export]
macro_rules! planted {
    ($($(#[$doc:meta])+ $bug:ident,)+) => {
        /// One bug.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $($(#[$doc])+ $bug,)+
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
    };
}

planted! {
    /// A sequence counts as seen before its datagram proved genuine.
    WindowBeforeOpen,
    /// Both directions of a connection seal with the same nonces.
    DirectionMissing,
    /// The tail is probed once only.
    TailProbeStopsEarly,
    /// While partitions double, the old ones alone hear of a room.
    NewPartitionUntold,
    /// After the switch of a doubling a room is in force though the new partition has not heard of it.
    NewPartitionUncounted,
    /// The number of running nodes decides a room's owner.
    OwnerByNumber,
    /// A link on which nothing comes stays.
    SilenceUnnoticed,
    /// Links are left with the secret that they were made with, until that is dropped.
    SecretNotRenewed,
    /// The link of a node that is taken from the list of nodes stays.
    ShutOutStays,
    /// A peer that was left out of choices stays so.
    LeftOutForGood,
    /// However many peers of a group are left out, one more may be.
    NoneLeft,
    /// One second decides whether a peer is left out.
    JudgedInHaste,
}
