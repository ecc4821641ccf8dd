//! The settings of the protocol's front.

use super::slots::Cluster;

/// An operator's settings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Users and passwords; if empty, every client is admitted.
    pub passwords: Vec<(String, String)>,
    /// Groups of kinds of which a user may like one item with the same rest of the key: a like of one takes the others
    /// back.
    pub one_of: Vec<Vec<String>>,
    /// `None`: a single node with all keys.
    pub cluster: Option<Cluster>,
}

impl Settings {
    /// The keys of the kinds that exclude this item's.
    pub(crate) fn excluded(&self, key: &[u8]) -> Vec<Vec<u8>> {
        let Some(colon) = key.iter().position(|&byte| byte == b':') else {
            return Vec::new();
        };
        let (kind, rest) = key.split_at(colon);
        let group = self
            .one_of
            .iter()
            .find(|group| group.iter().any(|each| each.as_bytes() == kind));
        let others = group.into_iter().flatten().filter(|other| other.as_bytes() != kind);
        others.map(|other| [other.as_bytes(), rest].concat()).collect()
    }
}
