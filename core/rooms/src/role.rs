//! The roles of rooms: their codes on the wire, and the names that users see.
//!
//! Owns the codes 2 to 5. Knows no machine.

use muster_transport::Role;

pub const PROXY: Role = Role::new(2);
pub const BROKER: Role = Role::new(3);
pub const ROUTER: Role = Role::new(4);
pub const GATEWAY: Role = Role::new(5);

const NAMES: [(Role, &str); 5] = [
    (Role::CLIENT, "client"),
    (PROXY, "proxy"),
    (BROKER, "broker"),
    (ROUTER, "router"),
    (GATEWAY, "gateway"),
];

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
