//! The roles of rooms: their codes on the wire, and the names that users see.
//!
//! Owns the codes 2 to 5, and 9. Knows no machine.

use muster_transport::Role;

pub const PROXY: Role = Role::new(2);
pub const BROKER: Role = Role::new(3);
pub const ROUTER: Role = Role::new(4);
pub const GATEWAY: Role = Role::new(5);
/// A gateway with another door. Its members publish by it, so brokers take from it what they take from a proxy as well.
pub const EDGE: Role = Role::new(9);

const NAMES: [(Role, &str); 6] = [
    (Role::CLIENT, "client"),
    (PROXY, "proxy"),
    (BROKER, "broker"),
    (ROUTER, "router"),
    (GATEWAY, "gateway"),
    (EDGE, "edge"),
];

/// Whether nodes of a role have members of rooms.
pub fn has_members(role: Role) -> bool {
    matches!(role, GATEWAY | EDGE)
}

/// Whether nodes of a role pass on messages and commands of clients.
pub fn has_publishers(role: Role) -> bool {
    matches!(role, PROXY | EDGE)
}

/// The name of a role; `unknown` for a role of another system.
pub fn name(role: Role) -> &'static str {
    let known = NAMES.iter().find(|(known, _)| *known == role);
    known.map_or("unknown", |(_, name)| name)
}

/// The role with this name.
pub fn named(name: &str) -> Option<Role> {
    let nodes = NAMES.iter().filter(|(role, _)| *role != Role::CLIENT);
    nodes.copied().find(|(_, known)| *known == name).map(|(role, _)| role)
}
