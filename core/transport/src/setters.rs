//! Queries and settings of the control plane for any machine that has links or sessions.
//!
//! Owns the setters that machines share; each machine gives access to its parts. Knows no role.

use std::collections::HashSet;

use crate::handshake::ClusterKeys;
use crate::links::Links;
use crate::machine::Micros;
use crate::node::Node;
use crate::sessions::Sessions;
use crate::versions::Versions;
use crate::wire::server::Server;
use crate::wire::Role;

/// A machine with links.
pub trait HasLinks {
    fn links(&self) -> &Links;

    /// The links, and the node that owns them.
    fn links_mut(&mut self) -> (&mut Links, &mut Node);

    /// Replaces the cluster's secrets; links are renewed with the current one.
    fn set_cluster(&mut self, now: Micros, cluster: ClusterKeys) {
        let (links, node) = self.links_mut();
        links.set_cluster(now, node, cluster);
    }

    /// Sets the shared secret from which this node derives its proof of link resets.
    fn set_reset(&mut self, shared: &[u8; 32]) {
        let (links, node) = self.links_mut();
        links.set_reset(node, shared);
    }

    /// Uses these versions of the protocol from now on, to stand in for another release.
    fn set_versions(&mut self, versions: Versions) {
        self.links_mut().1.versions = versions;
    }

    /// Sets the actual size of the link socket's receive buffer, in bytes.
    fn set_link_buffer(&mut self, bytes: u32) {
        self.links_mut().0.buffer = bytes;
    }
}

/// A machine with sessions.
pub trait HasSessions {
    /// The machine's data per session.
    type Session: Default;

    fn sessions(&self) -> &Sessions<Self::Session>;

    /// The sessions, and the node that owns them.
    fn sessions_mut(&mut self) -> (&mut Sessions<Self::Session>, &mut Node);

    /// Sets the actual size of the public socket's receive buffer, in bytes.
    fn set_session_buffer(&mut self, bytes: u32) {
        self.sessions_mut().0.buffer = bytes;
    }

    /// Sets the first and the longest reconnect wait, announced to clients that connect from now on.
    fn set_backoff(&mut self, first_ms: u32, max_ms: u32) {
        self.sessions_mut().0.set_backoff(first_ms, max_ms);
    }

    /// Sets the limit of sessions, and of handshakes per second from one network.
    fn set_session_limits(&mut self, sessions: usize, prefix_rate: u32) {
        self.sessions_mut().0.set_limits(sessions, prefix_rate);
    }

    /// Sets the servers announced to clients.
    fn set_servers(&mut self, now: Micros, servers: impl IntoIterator<Item = (Role, Vec<Server>)>) {
        let (sessions, node) = self.sessions_mut();
        sessions.set_servers(now, node, servers);
    }

    /// Ends the sessions of these users, and those opened by these tokens.
    fn revoke(&mut self, now: Micros, users: &HashSet<u64>, tokens: &HashSet<u64>) {
        self.sessions_mut().0.revoke(now, users, tokens);
    }

    /// Refuses new clients from now on, and sends present ones to other servers.
    fn drain(&mut self) {
        self.sessions_mut().0.drain();
    }

    /// Admits clients again.
    fn stay(&mut self) {
        self.sessions_mut().0.stay();
    }
}
