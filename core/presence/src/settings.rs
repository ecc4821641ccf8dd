//! The settings of presence, by the names that they have in the configuration. The control plane passes them as JSON;
//! `Default` is the configuration's default.
//!
//! Owns: names, units and defaults. Must not know: where settings come from.

use serde::Deserialize;

use crate::access::AccessSettings;
use crate::policy::{Policies, Policy};
use crate::writer::WriterSettings;

/// Settings of gateways and writers; each uses its own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct PresenceSettings {
    /// How long events wait for others of the same packet.
    pub window_ms: u64,
    /// How long after a device goes offline that is reported.
    pub grace_ms: u64,
    /// A gateway that is silent for this long is lost with its users.
    pub lease_ms: u64,
    /// The policy for users in no range; absent: a writer ends no session.
    pub devices: Option<Policy>,
    /// Ranges of users, first and last, with their policies.
    pub users: Vec<(u64, u64, Policy)>,
}

impl Default for PresenceSettings {
    fn default() -> Self {
        PresenceSettings {
            window_ms: 50,
            grace_ms: 5_000,
            lease_ms: 10_000,
            devices: None,
            users: Vec::new(),
        }
    }
}

/// The part of presence in the settings of a gateway or an edge.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GuestSettings {
    /// Absent: there is no presence.
    pub presence: Option<PresenceSettings>,
}

impl PresenceSettings {
    pub fn access(&self) -> AccessSettings {
        AccessSettings {
            window: self.window_ms * 1_000,
            policies: self.policies().unwrap_or_default(),
            ..AccessSettings::default()
        }
    }

    pub fn writer(&self) -> WriterSettings {
        WriterSettings {
            grace: self.grace_ms * 1_000,
            lease: self.lease_ms * 1_000,
            policies: self.policies(),
            ..WriterSettings::default()
        }
    }

    fn policies(&self) -> Option<Policies> {
        self.devices.map(|otherwise| Policies {
            ranges: self.users.clone(),
            otherwise,
        })
    }
}
