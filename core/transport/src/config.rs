//! How a node is set up.

use crate::handshake::ClusterKeys;
use crate::node::Identity;

/// What every node has, whatever its role.
#[derive(Clone)]
pub struct NodeConfig {
    pub me: Identity,
    /// UDP payload bytes of the largest datagram.
    pub payload: usize,
    pub cluster: ClusterKeys,
    pub reset_secret: [u8; 32],
}
