//! Which sessions of a user may coexist.
//!
//! Owns: [`Policy`], and which policy a user has. Knows no session.

use serde::Deserialize;

use crate::device::Device;

/// How many devices of a user may be online.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub enum Policy {
    /// Any number.
    #[default]
    #[serde(rename = "many")]
    Many,
    /// One of each kind.
    #[serde(rename = "one per kind")]
    OnePerKind,
    #[serde(rename = "one")]
    One,
}

impl Policy {
    /// Whether a newer session of `newer` ends an older one of `older`. Two sessions of one device never coexist.
    pub fn ends(self, older: &Device, newer: &Device) -> bool {
        older == newer
            || match self {
                Policy::Many => false,
                Policy::OnePerKind => older.kind() == newer.kind(),
                Policy::One => true,
            }
    }
}

/// The policy of each namespace of users, which is a range of their numbers. The first range that contains a user
/// counts.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// First and last user, and their policy.
    pub ranges: Vec<(u64, u64, Policy)>,
    /// The policy for users in no range.
    pub otherwise: Policy,
}

impl Policies {
    pub fn of(&self, user: u64) -> Policy {
        let within = |(first, last, _): &&(u64, u64, Policy)| (*first..=*last).contains(&user);
        let found = self.ranges.iter().find(within);
        found.map_or(self.otherwise, |(_, _, policy)| *policy)
    }
}
