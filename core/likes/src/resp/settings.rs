//! The settings of the protocol's front.

use super::slots::Cluster;

/// An operator's settings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Users and passwords; none: every client is let in.
    pub passwords: Vec<(String, String)>,
    /// None: one node, all keys here.
    pub cluster: Option<Cluster>,
}
