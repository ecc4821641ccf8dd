//! The settings of each role, by the names that they have in the configuration. The control plane passes them as JSON;
//! `Default` is the configuration's default, except for memory.
//!
//! Owns: names, units and defaults. Must not know: where settings come from, nor who uses them.

use muster_transport::HasSessions;
use serde::Deserialize;

use crate::accounts::Bounds;
use crate::arena::Retention;
use crate::limits;

const MIB: usize = 1 << 20;

/// Sessions of a gateway or a proxy.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct DoorSettings {
    /// Silence after which a keepalive is sent.
    pub keepalive_ms: u32,
    /// Silence after which a peer counts as lost.
    pub idle_timeout_ms: u32,
    pub sessions_max: usize,
    /// Handshakes a second from one network.
    pub accept_rate: u32,
    /// The first and the longest pause of a client before it comes back.
    pub backoff_ms: u32,
    pub backoff_max_ms: u32,
    pub user_sessions_max: u32,
}

impl Default for DoorSettings {
    fn default() -> Self {
        let (backoff_ms, backoff_max_ms) = muster_transport::BACKOFF_DEFAULT;
        DoorSettings {
            keepalive_ms: 15_000,
            idle_timeout_ms: 45_000,
            sessions_max: muster_transport::SESSIONS_MAX,
            accept_rate: muster_transport::PREFIX_RATE,
            backoff_ms,
            backoff_max_ms,
            user_sessions_max: limits::USER_SESSIONS_MAX,
        }
    }
}

impl DoorSettings {
    /// Sets those of sessions.
    pub(crate) fn apply(&self, machine: &mut impl HasSessions) {
        machine.set_backoff(self.backoff_ms, self.backoff_max_ms);
        machine.set_session_limits(self.sessions_max, self.accept_rate);
    }
}

/// Rooms of a gateway or an edge.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct RoomsSettings {
    /// Memory for recent messages, allocated at the start.
    pub arena_bytes: usize,
    /// Namespaces with settings of their own.
    pub namespaces: Vec<Retention>,
    /// Namespaces of paced rooms.
    pub paced_namespaces: Vec<String>,
    /// Messages of history that a join may ask for.
    pub history_max: u32,
    pub rooms_max: usize,
    /// Rooms of one user, over all its sessions; a room counts once for each session.
    pub user_rooms_max: u32,
    /// A report to a router that is not acknowledged after this is repeated; 0: only when it may be lost (ROOM-11).
    pub membership_again_ms: u32,
    /// Whether several messages may share a datagram (off only to measure).
    pub bundle: bool,
}

impl Default for RoomsSettings {
    fn default() -> Self {
        RoomsSettings {
            arena_bytes: MIB,
            namespaces: Vec::new(),
            paced_namespaces: Vec::new(),
            history_max: 1_024,
            rooms_max: limits::ROOMS_MAX,
            user_rooms_max: limits::USER_PLACES_MAX,
            membership_again_ms: 10,
            bundle: true,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GatewaySettings {
    #[serde(flatten)]
    pub door: DoorSettings,
    #[serde(flatten)]
    pub rooms: RoomsSettings,
}

impl RoomsSettings {
    pub(crate) fn bounds(&self, sessions: u32) -> Bounds {
        Bounds {
            sessions,
            places: self.user_rooms_max,
            ..Bounds::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct ProxySettings {
    #[serde(flatten)]
    pub door: DoorSettings,
    /// One of this many publish frames carries the age of its messages; 0: none.
    pub age_every: u32,
    /// Commands of one user a second, and at once after a pause.
    pub command_rate: u32,
    pub command_burst: u32,
    /// Messages, and bytes of publish frames, of one user a second; 0: no limit.
    pub user_message_rate: u32,
    pub user_byte_rate: u32,
    /// Namespaces with settings at brokers, which get their names and numbers.
    pub namespaces: Vec<String>,
}

impl Default for ProxySettings {
    fn default() -> Self {
        ProxySettings {
            door: DoorSettings::default(),
            age_every: 0,
            command_rate: 1,
            command_burst: 1,
            user_message_rate: limits::USER_MESSAGES_A_SECOND,
            user_byte_rate: limits::USER_BYTES_A_SECOND,
            namespaces: Vec::new(),
        }
    }
}

impl ProxySettings {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            sessions: self.door.user_sessions_max,
            messages: self.user_message_rate,
            bytes: self.user_byte_rate,
            ..Bounds::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct BrokerSettings {
    /// Memory for recent messages, allocated at the start.
    pub arena_bytes: usize,
    /// Namespaces with settings of their own.
    pub namespaces: Vec<Retention>,
    /// A busy room on more gateways than this goes to some of them, which pass it on to the others; 0: each gateway gets it from the
    /// broker.
    pub relay_above: usize,
}

impl Default for BrokerSettings {
    fn default() -> Self {
        BrokerSettings {
            arena_bytes: MIB,
            namespaces: Vec::new(),
            relay_above: limits::RELAY_ABOVE,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct RouterSettings {
    /// Memberships over all gateways, 64 B each.
    pub memberships_max: usize,
}

impl Default for RouterSettings {
    fn default() -> Self {
        RouterSettings {
            memberships_max: limits::MEMBERSHIPS_MAX,
        }
    }
}

#[cfg(feature = "edge")]
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct EdgeSettings {
    #[serde(flatten)]
    pub rooms: RoomsSettings,
    pub user_sessions_max: u32,
    /// Web sites whose pages may connect; empty: the edge's own host alone; `*`: any.
    pub origins: Vec<String>,
    pub connections_max: usize,
    /// Connections of one address; 0: no limit.
    pub address_connections_max: u32,
    /// Connections without an accepted token.
    pub half_open_max: usize,
    /// A client whose kernel acknowledges nothing for this time is closed.
    pub user_timeout_ms: u32,
    pub ping_ms: u64,
    pub pong_ms: u64,
    /// Commands of one session a second, and at once after a pause.
    pub command_rate: u32,
    pub command_burst: u32,
    /// A client whose socket takes nothing for this long is slow.
    pub stall_ms: u64,
    /// A drain sends clients away over this time.
    pub drain_s: f64,
    /// Messages of rooms leave this long after each other; 0: each at once.
    pub write_interval_ms: u64,
    /// Joins and leaves are sent in rooms with at most this many users; 0: in none.
    pub join_leave_max: usize,
    /// The server's version, as clients are told.
    pub version: String,
    /// Methods that the control plane answers.
    pub methods: Vec<String>,
}

#[cfg(feature = "edge")]
impl Default for EdgeSettings {
    fn default() -> Self {
        EdgeSettings {
            rooms: RoomsSettings::default(),
            user_sessions_max: limits::USER_SESSIONS_MAX,
            origins: Vec::new(),
            connections_max: 100_000,
            address_connections_max: 0,
            half_open_max: 4_096,
            user_timeout_ms: 20_000,
            ping_ms: 25_000,
            pong_ms: 8_000,
            command_rate: 100,
            command_burst: 512,
            stall_ms: 10_000,
            drain_s: 10.0,
            write_interval_ms: 0,
            join_leave_max: 0,
            version: String::new(),
            methods: Vec::new(),
        }
    }
}
