//! Events of the edge's connections.
//!
//! Owns: [`Counters`].

muster_transport::counters! {
    /// Events of all connections of a process.
    pub struct Counters {
        /// Upgrades granted.
        upgrades,
        /// Upgrades refused: no HTTP, no upgrade to WebSocket, another path or version.
        refused_request,
        /// Upgrades refused: a page of another origin.
        refused_origin,
        /// Upgrades refused: the edge takes no more clients for now.
        refused_busy,
        /// Connections ended: their upgrade or connect command did not come in time.
        ended_late,
        /// Connections ended: a breach of WebSocket.
        ended_violation,
        /// Connections ended: a breach of the client protocol.
        ended_bad_request,
        /// Connections ended: no pong.
        ended_no_pong,
        /// Connections ended: they read too slowly.
        ended_slow,
        /// Connections ended: the time of their token was over.
        ended_expired,
        /// Connections ended by their clients.
        ended_closed,
        /// Connections ended by the edge for another reason.
        ended_refused,
        /// Messages of clients.
        messages_received,
        /// Commands of clients.
        commands,
        /// Commands refused: more a second than a session may send, or too many without an answer.
        commands_limited,
        /// Errors answered to commands.
        errors,
        /// Subscriptions that were ended so that the client asks again.
        resubscriptions,
        /// The same, put off since the last one was less than a second ago.
        resubscriptions_put_off,
        /// Pongs that no ping asked for.
        pongs_unasked,
    }
}
