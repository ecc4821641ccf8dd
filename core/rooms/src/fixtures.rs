//! Helpers that build roles for unit tests.

use muster_transport::fixtures::{cluster, me, Zeros};
use muster_transport::ServerKey;

use crate::role;

use crate::gateway::{Gateway, GatewayConfig};
use crate::proxy::{Proxy, ProxyConfig};

/// A gateway with this many bytes for recent messages.
pub fn gateway(arena_bytes: usize) -> Gateway {
    let config = GatewayConfig {
        namespaces: Vec::new(),
        me: me(role::GATEWAY),
        payload: 1_200,
        arena_bytes,
        keepalive_ms: 1_000,
        idle_ms: 4_000,
        name_key: [1; 16],
        history_max: 0,
        membership_again_ms: 0,
        paced: Vec::new(),
        bundle: true,
        server_key: ServerKey::from_private([2; 32]),
        cluster: cluster(),
        reset_secret: [1; 32],
    };
    Gateway::new(config, 1, Box::new(Zeros))
}

/// A proxy without links.
pub fn proxy() -> Proxy {
    let config = ProxyConfig {
        namespaces: Vec::new(),
        me: me(role::PROXY),
        payload: 1_200,
        keepalive_ms: 1_000,
        idle_ms: 4_000,
        name_key: [1; 16],
        server_key: ServerKey::from_private([2; 32]),
        cluster: cluster(),
        reset_secret: [1; 32],
        age_every: 0,
    };
    Proxy::new(config, 1, Box::new(Zeros))
}
