//! Known bugs behind switches: a crate declares its own, and its tests plant one at a time to check that they find it
//! (`docs/testing.md`).
//!
//! Without the crate's feature `planted` every check for a bug is `false` at compile time, and no code of it is left.
//! It knows no bug.

#![forbid(unsafe_code)]

/// Declares a crate's bugs as `Bug`, with `is`, which checks for one, and `set`, which plants one. The crate needs a
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

            /// Plants a bug in all machines of this thread, or removes it.
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
