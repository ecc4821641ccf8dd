//! Helpers that build nodes for unit tests of this crate and of systems.

use crate::config::NodeConfig;
use crate::handshake::ClusterKeys;
use crate::machine::Entropy;
use crate::node::Identity;
use crate::wire::Role;

/// Roles of a system that serves clients.
pub const STORE: Role = Role::new(3);
pub const INDEX: Role = Role::new(4);
pub const FRONT: Role = Role::new(5);

/// Constant zeros in place of randomness.
pub struct Zeros;

impl Entropy for Zeros {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

/// Node 1 of its role, in its first life.
pub fn me(role: Role) -> Identity {
    Identity {
        node: 1,
        role,
        epoch: 1,
    }
}

/// How [`me`] is set up.
pub fn node(role: Role) -> NodeConfig {
    NodeConfig {
        me: me(role),
        payload: 1_200,
        cluster: cluster(),
        reset_secret: [1; 32],
    }
}

/// The secret of the test cluster.
pub fn cluster() -> ClusterKeys {
    ClusterKeys {
        current: (1, [7; 32]),
        other: None,
        allow: None,
    }
}
