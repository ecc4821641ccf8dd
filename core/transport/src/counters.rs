//! Counters that cost an addition each and can still be listed by name.
//!
//! Owns: the macro [`counters!`](crate::counters!). Must not know: the counted events, the readers.
//!
//! The packet path adds to a plain field; only a reader pays for names. One declaration gives the field, its
//! Prometheus name and its help line, so the three cannot differ.

/// Declares a struct of `u64` counters, each with its help as a doc line:
///
/// ```
/// muster_transport::counters! {
///     /// What the gateway counted since it started.
///     pub struct GatewayCounters {
///         /// Datagrams taken from the socket.
///         datagrams_received,
///         /// Datagrams dropped because their window says they are copies.
///         dropped_duplicate,
///     }
/// }
/// let mut counters = GatewayCounters::default();
/// counters.datagrams_received += 64;
/// counters.each(|name, help, value| println!("# HELP {name} {help}\n{name} {value}"));
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[doc = $help:literal])+ $counter:ident ),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        $visibility struct $name {
            $( $(#[doc = $help])+ pub $counter: u64, )+
        }

        impl $name {
            /// Calls `f` with name, help and value of every counter, in the order of their declaration.
            pub fn each(&self, mut f: impl FnMut(&'static str, &'static str, u64)) {
                $( f(stringify!($counter), concat!($($help),+).trim_ascii(), self.$counter); )+
            }
        }
    };
}

#[cfg(test)]
mod tests {
    crate::counters! {
        /// Used by the test.
        pub struct Counters {
            /// Datagrams taken.
            received,
            /// Datagrams dropped,
            /// whatever the reason.
            dropped,
        }
    }

    #[test]
    fn counters_are_listed_in_order_with_name_and_help() {
        let mut counters = Counters::default();
        counters.received += 5;
        counters.dropped += 1;
        let before = counters.clone();
        counters.dropped += 1;
        assert_ne!(counters, before);
        let mut listed = Vec::new();
        counters.each(|name, help, value| listed.push((name, help, value)));
        assert_eq!(
            listed,
            [
                ("received", "Datagrams taken.", 5),
                ("dropped", "Datagrams dropped, whatever the reason.", 2)
            ]
        );
    }
}
