//! The announcement of a room to routers: its version, and whether every broker knows of the room by now.
//!
//! Owns the partitions that owe an answer. `membership` tells the routers.

use muster_transport::Layer;

/// The partitions of routers that hear of a room.
pub type Hearing = [Option<u16>; 2];

#[derive(Default)]
pub struct Announced {
    version: u64,
    owed: Hearing,
    in_force: bool,
}

impl Announced {
    /// The version of the last change that routers were told.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Routers of these partitions are told a change; none: that nobody is here any more.
    pub fn tell(&mut self, version: u64, hearing: Option<Hearing>) {
        self.version = version;
        self.owed = hearing.unwrap_or(self.owed);
    }

    /// The partitions of routers have changed: others are to answer, but none of those before that has answered.
    pub fn move_to(&mut self, before: Hearing, after: Hearing) {
        let owes = |partition: &u16| !before.contains(&Some(*partition)) || self.owed.contains(&Some(*partition));
        self.owed = after.map(|partition| partition.filter(owes));
    }

    /// Every broker that asks routers of a partition knows of this room.
    pub fn answered(&mut self, partition: u16) {
        let owed = self.owed.iter_mut().filter(|owed| **owed == Some(partition));
        owed.for_each(|owed| *owed = None);
    }

    /// Whether a router owes an answer that counts.
    pub fn is_owed(&self, routers: Layer) -> bool {
        self.owed.iter().flatten().any(|partition| routers.counts(*partition))
    }

    /// Every running broker of the room knows that this gateway wants it.
    pub fn is_in_force(&self) -> bool {
        self.in_force
    }

    /// Notes this. `false`: it was so before.
    pub fn note_in_force(&mut self) -> bool {
        !std::mem::replace(&mut self.in_force, true)
    }
}
