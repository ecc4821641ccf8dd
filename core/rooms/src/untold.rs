//! Rooms refused for lack of space to gateways that had no link here: each gateway learns it with its next link,
//! since silence would look like a quiet room.
//!
//! Owns these rooms. Knows no link: its user tells it of links.

use std::collections::BTreeSet;

/// Maximum number of refusals remembered over all gateways; further ones are only counted.
const UNTOLD_MAX: usize = 1 << 16;

/// Gateway, its life, and the room that was refused.
#[derive(Default)]
pub struct Untold(BTreeSet<(u32, u32, u64)>);

impl Untold {
    pub fn note(&mut self, (gateway, epoch): (u32, u32), room: u64) {
        if self.0.len() < UNTOLD_MAX {
            self.0.insert((gateway, epoch, room));
        }
    }

    /// The gateway has reported the room since, and was not refused.
    pub fn taken(&mut self, (gateway, epoch): (u32, u32), room: u64) {
        if !self.0.is_empty() {
            self.0.remove(&(gateway, epoch, room));
        }
    }

    /// Takes the pending refusals of a gateway in this life. Those of other lives are dropped.
    pub fn take(&mut self, gateway: u32, epoch: u32) -> Vec<u64> {
        let first = (gateway, 0, 0);
        let rooms: Vec<_> = self.0.range(first..=(gateway, u32::MAX, u64::MAX)).copied().collect();
        for known in &rooms {
            self.0.remove(known);
        }
        let now = rooms.into_iter().filter(|(_, life, _)| *life == epoch);
        now.map(|(_, _, room)| room).collect()
    }

    /// The gateway is gone.
    pub fn forget(&mut self, gateway: u32) {
        self.take(gateway, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_learns_once_of_refusals_in_its_present_life() {
        let mut untold = Untold::default();
        for (life, room) in [((2, 1), 10), ((2, 2), 11), ((2, 2), 12), ((2, 2), 12), ((3, 1), 10)] {
            untold.note(life, room);
        }
        untold.taken((2, 2), 11);
        assert_eq!([2, 2].map(|gateway| untold.take(gateway, 2)), [vec![12], vec![]]);
        untold.forget(3);
        assert_eq!(untold.take(3, 1), [0; 0]);
    }

    #[test]
    fn remembered_refusals_are_bounded() {
        let mut untold = Untold::default();
        (0..UNTOLD_MAX as u64 + 10).for_each(|room| untold.note((2, 1), room));
        assert_eq!(untold.take(2, 1).len(), UNTOLD_MAX);
    }
}
