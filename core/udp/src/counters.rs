//! Traffic of the sockets, and losses by reason.
//!
//! Owns: [`Counters`]. Two sums always hold: datagrams handed over = `sent` + every `lost_*` + still pending ones,
//! and messages from the kernel = `received` (single datagrams) + `truncated` (whole super-packets).

muster_transport::counters! {
    /// Counters of a set of sockets.
    pub struct Counters {
        /// Datagrams taken from the kernel.
        received,
        /// Bytes of the datagrams taken from the kernel.
        received_bytes,
        /// Super-packets received that GRO joined from several datagrams.
        received_joined,
        /// Receive calls, including those that found no datagram.
        receive_calls,
        /// Messages of the kernel dropped whole: longer than their slot.
        truncated,
        /// Errors of a receive call other than "nothing there".
        receive_errors,
        /// Datagrams that the kernel took, also those that a full queue of the device then lost.
        sent,
        /// Bytes of the datagrams that the kernel took.
        sent_bytes,
        /// Super-packets that left by UDP_SEGMENT.
        sent_joined,
        /// Calls that sent.
        send_calls,
        /// Send calls that took only part of their messages; the rest was resumed.
        short_counts,
        /// Times that a send buffer was full.
        blocked,
        /// Times that the kernel had no memory for a datagram (ENOBUFS).
        starved,
        /// Sends repeated because they returned the error of an earlier datagram.
        repeated,
        /// Sockets for which the kernel refused UDP_SEGMENT; they send singly for good.
        gso_refused,
        /// Datagrams given up: the kernel still had no memory for them.
        lost_starved,
        /// Datagrams given up: no socket listens at the destination (ICMP).
        lost_refused,
        /// Datagrams given up: longer than the path carries.
        lost_too_large,
        /// Datagrams given up: a system rule (firewall) forbids them.
        lost_denied,
        /// Datagrams given up: no route to the destination.
        lost_unreachable,
        /// Datagrams given up: another error.
        lost_other,
        /// Datagrams given up: they waited too long behind a full buffer.
        lost_stale,
    }
}

impl Counters {
    /// Datagrams given up, for any reason.
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
