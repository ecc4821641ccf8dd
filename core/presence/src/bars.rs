//! Devices that a newer one of their user replaced, and which may not come back for a while.
//!
//! Owns: [`Bars`]. Without it, two programs of one user that each open a new client when they are replaced end each other for ever. A bar
//! ends after a quiet time: each try begins it again, so a program that keeps trying never comes in, and one that waits does.
//! Knows no session and no policy.

use crate::device::Device;
use crate::limits::{BARRED_FOR, BARS_MAX};
use muster_transport::Micros;
use std::collections::BTreeMap;

/// The bars of one gateway.
#[derive(Default)]
pub struct Bars {
    ends: BTreeMap<(u64, Device), Micros>,
    /// Bars by their end, with those that were begun again.
    queue: BTreeMap<(Micros, u64, Device), ()>,
}

impl Bars {
    /// A newer device took this one's place. Where too many are barred, the bar that ends first gives way.
    pub fn begin(&mut self, now: Micros, user: u64, device: Device) {
        self.expire(now);
        self.remove(user, device);
        if self.ends.len() >= BARS_MAX {
            if let Some((&(_, user, device), ())) = self.queue.first_key_value() {
                self.remove(user, device);
            }
        }
        let ends = now + BARRED_FOR;
        self.ends.insert((user, device), ends);
        self.queue.insert((ends, user, device), ());
    }

    /// The device may come.
    pub fn remove(&mut self, user: u64, device: Device) {
        if let Some(ends) = self.ends.remove(&(user, device)) {
            self.queue.remove(&(ends, user, device));
        }
    }

    /// A device tries to come. Gives the time that it has to wait from now on; `None`: it may come.
    pub fn tried(&mut self, now: Micros, user: u64, device: Device) -> Option<Micros> {
        self.expire(now);
        self.ends.get(&(user, device))?;
        self.begin(now, user, device);
        Some(BARRED_FOR)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    fn expire(&mut self, now: Micros) {
        while let Some((&(ends, user, device), ())) = self.queue.first_key_value() {
            if ends > now {
                break;
            }
            self.remove(user, device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &[u8]) -> Device {
        Device::new(name).expect("a name")
    }

    #[test]
    fn a_bar_ends_after_a_time_without_tries() {
        let mut bars = Bars::default();
        let phone = device(b"phone");
        assert_eq!(bars.tried(0, 7, phone), None);
        bars.begin(0, 7, phone);
        let mut now = 0;
        for _ in 0..10 {
            now += BARRED_FOR - 1;
            assert_eq!(bars.tried(now, 7, phone), Some(BARRED_FOR));
        }
        assert_eq!(
            bars.tried(now, 7, device(b"laptop")),
            None,
            "another device of the user"
        );
        assert_eq!(bars.tried(now, 8, phone), None, "another user");
        now += BARRED_FOR;
        assert_eq!(bars.tried(now, 7, phone), None);
        assert_eq!(bars.len(), 0);
    }

    #[test]
    fn the_oldest_bar_gives_way_where_there_are_too_many() {
        let mut bars = Bars::default();
        for user in 0..BARS_MAX as u64 + 10 {
            bars.begin(user, user, device(b"phone"));
        }
        assert_eq!(bars.len(), BARS_MAX);
        assert_eq!(bars.tried(0, 9, device(b"phone")), None);
        assert_eq!(bars.tried(0, 10, device(b"phone")), Some(BARRED_FOR));
    }
}
