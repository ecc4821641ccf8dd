//! The rules by which a gateway makes rooms: their settings, and the key of their names.
//!
//! Owns these. Knows no room.

use crate::name::{RoomKey, RoomName};
use crate::settings::RoomsSettings;

pub(super) struct Rules {
    name_key: [u8; 16],
    paced_namespaces: Vec<String>,
    /// Most messages of history that a join may ask for.
    pub history_max: u32,
    /// Messages that follow each other go in one frame.
    pub bundle: bool,
}

impl Rules {
    pub fn new(name_key: [u8; 16], settings: &RoomsSettings) -> Self {
        Rules {
            name_key,
            paced_namespaces: settings.paced_namespaces.clone(),
            history_max: settings.history_max,
            bundle: settings.bundle,
        }
    }

    pub fn key_of(&self, name: &RoomName<'_>) -> RoomKey {
        name.key(&self.name_key)
    }

    /// Whether publishers of a room wait for its slowest member.
    pub fn paces(&self, name: &RoomName<'_>) -> bool {
        self.paced_namespaces
            .iter()
            .any(|namespace| namespace == name.namespace())
    }
}
