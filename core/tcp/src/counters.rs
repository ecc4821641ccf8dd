//! Events of byte streams.
//!
//! Owns: [`Counters`].

muster_transport::counters! {
    /// Events of a process's byte streams.
    pub struct Counters {
        /// Turns.
        turns,
        /// Turns that ended with work left.
        turns_cut,
        /// Streams accepted.
        accepted,
        /// Streams refused: as many are open as may be.
        refused_full,
        /// Streams refused: their address has as many as it may.
        refused_address,
        /// Streams refused: the process has no descriptor left.
        refused_descriptors,
        /// Streams reset: they had not proven themselves in time, or newer ones took their place.
        half_open_ended,
        /// Streams that their peers closed.
        closed,
        /// Streams that broke: reset, or not acknowledged for too long.
        broken,
        /// Streams whose TLS failed.
        tls_failed,
        /// TLS handshakes done.
        tls_handshakes,
        /// Bytes received.
        received_bytes,
        /// Bytes sent.
        sent_bytes,
        /// Calls that sent.
        sends,
        /// Calls that sent a part only, or nothing.
        sends_cut,
    }
}
