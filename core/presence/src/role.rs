//! The roles of presence that have links: their codes on the wire, and the names that users see.
//!
//! Owns the codes 6 to 8. Knows no machine.

use muster_transport::Role;

pub const ONLINE_PROXY: Role = Role::new(6);
pub const ONLINE_WRITER: Role = Role::new(7);
pub const UNICAST: Role = Role::new(8);

const NAMES: [(Role, &str); 3] = [
    (ONLINE_PROXY, "online-proxy"),
    (ONLINE_WRITER, "online-writer"),
    (UNICAST, "unicast"),
];

/// The name of a role of presence.
pub fn name(role: Role) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == role).map(|(_, name)| *name)
}

/// The role of presence that has this name.
pub fn named(name: &str) -> Option<Role> {
    NAMES.iter().find(|(_, known)| *known == name).map(|(role, _)| *role)
}
