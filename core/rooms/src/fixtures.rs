//! Helpers that build roles for unit tests.

use muster_transport::fixtures::{node, Zeros};
use muster_transport::ServerKey;

use crate::role;

use crate::gateway::{Gateway, GatewayConfig};
use crate::proxy::{Proxy, ProxyConfig};
use crate::settings::{DoorSettings, GatewaySettings, ProxySettings, RoomsSettings};

/// Sessions that end within seconds.
fn door() -> DoorSettings {
    DoorSettings {
        keepalive_ms: 1_000,
        idle_timeout_ms: 4_000,
        ..DoorSettings::default()
    }
}

/// A gateway with this many bytes for recent messages.
pub fn gateway(arena_bytes: usize) -> Gateway {
    let rooms = RoomsSettings {
        arena_bytes,
        history_max: 0,
        membership_again_ms: 0,
        ..RoomsSettings::default()
    };
    let config = GatewayConfig {
        node: node(role::GATEWAY),
        name_key: [1; 16],
        server_key: ServerKey::from_private([2; 32]),
        settings: GatewaySettings { door: door(), rooms },
    };
    Gateway::new(config, 1, Box::new(Zeros))
}

/// A proxy without links.
pub fn proxy() -> Proxy {
    let settings = ProxySettings {
        door: door(),
        ..ProxySettings::default()
    };
    let config = ProxyConfig {
        node: node(role::PROXY),
        name_key: [1; 16],
        server_key: ServerKey::from_private([2; 32]),
        settings,
    };
    Proxy::new(config, 1, Box::new(Zeros))
}
