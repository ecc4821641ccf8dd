//! What the sockets did and what they lost, by reason.
//!
//! Owns: [`Counters`]. Two sums always hold: datagrams handed over = `sent` + every `lost_*` + what is still pending,
//! and what the kernel handed up = `received` (single datagrams) + `truncated` (whole super-packets).

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a set of sockets, in datagrams unless said.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Every counter with its name, for whoever exports them.
            pub fn each(&self) -> [(&'static str, u64); [$(stringify!($name)),*].len()] {
                [$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    received,
    received_bytes,
    /// Super-packets that GRO made of several datagrams.
    received_joined,
    receive_calls,
    /// Messages that were longer than their slot and so were dropped whole.
    truncated,
    /// Errors of a receive call other than "nothing there".
    receive_errors,
    sent,
    sent_bytes,
    /// Super-packets that left by UDP_SEGMENT.
    sent_joined,
    send_calls,
    /// Calls that took fewer messages than they were given; the rest was resumed.
    short_counts,
    /// Times that a send buffer was full.
    blocked,
    /// Times that the device's queue was full (ENOBUFS).
    starved,
    /// Sends that met the error of an earlier datagram and were repeated.
    repeated,
    /// Sockets for which the kernel refused UDP_SEGMENT; they send singly for good.
    gso_refused,
    lost_starved,
    lost_refused,
    lost_too_large,
    lost_denied,
    lost_unreachable,
    lost_other,
    /// Datagrams that waited too long behind a full buffer.
    lost_stale,
}

impl Counters {
    /// Datagrams given up, for whatever reason.
    pub fn lost(&self) -> u64 {
        self.lost_starved
            + self.lost_refused
            + self.lost_too_large
            + self.lost_denied
            + self.lost_unreachable
            + self.lost_other
            + self.lost_stale
    }
}
