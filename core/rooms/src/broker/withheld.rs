//! Rooms whose publishers wait for credit, because a gateway is late.
//!
//! Owns which rooms they are, and when they are looked at. Each room knows its publishers.

use muster_transport::Micros;

/// How often withheld credit is looked at.
const WITHHOLD_EVERY: Micros = 20_000;

#[derive(Default)]
pub(super) struct Withheld {
    rooms: Vec<u32>,
    at: Option<Micros>,
}

impl Withheld {
    /// Credit of a publisher of this room is withheld; `first`: of no other one there.
    pub fn note(&mut self, now: Micros, room: u32, first: bool) {
        if first {
            self.rooms.push(room);
        }
        self.at.get_or_insert(now + WITHHOLD_EVERY);
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.at
    }

    /// Looks at each room, if that is due: those that still withhold credit are returned, and looked at again.
    pub fn look(&mut self, now: Micros, mut withholds: impl FnMut(u32) -> bool) -> Vec<u32> {
        if self.at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        // A room that released its publishers and withheld again meanwhile is listed twice.
        self.rooms.sort_unstable();
        self.rooms.dedup();
        self.rooms.retain(|room| withholds(*room));
        self.at = (!self.rooms.is_empty()).then_some(now + WITHHOLD_EVERY);
        self.rooms.clone()
    }
}
