//! The settings of the protocol's front.

use super::slots::Cluster;

/// An operator's settings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Users and passwords; if empty, every client is admitted.
    pub passwords: Vec<(String, String)>,
    /// `None`: a single node with all keys.
    pub cluster: Option<Cluster>,
}
