//! Known bugs behind switches: a crate declares its own, and its tests plant one at a time to check that they find it
//! (`core/planted/README.md`). It knows no bug.

/// Declares a crate's bugs as `Bug`, whose `is` says whether one is planted, and `set`, which plants one.
macro_rules! planted {
    ($($(#[$doc:meta])+ $bug:ident,)+) => {
        /// One bug.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $($(#[$doc])+ $bug,)+
        }

        thread_local! {
            static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
        }

        /// Plants a bug in all machines of this thread, or removes it.
        pub fn set(bug: Option<Bug>) {
            PLANTED.set(bug);
        }

        impl Bug {
            /// Whether this bug is planted.
            pub(crate) fn is(self) -> bool {
                PLANTED.get() == Some(self)
            }
        }
    };
}
