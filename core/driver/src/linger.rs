//! When a turn lingers: it waits for the next datagram itself, which costs less than a pass through the outer loop.
//!
//! Owns: [`Linger`], for the turns of one machine and for the rounds of machines that share a process. Reads no clock
//! and waits for nothing.

use std::time::Duration;

use muster_transport::Micros;

/// A turn that begins within this time after the last one may linger: at 2,000 datagrams a second and more.
const BRISK_US: Micros = 500;
/// It stops lingering after a silence of one to two of these, so that other work of the outer loop does not wait in
/// vain.
const SILENCE_US: Micros = 1_000;
/// Timeout of a wait, only in case its own timer is lost. It is longer than the kernel's tick of 1 to 10 ms: for a
/// shorter timeout the kernel would reprogram its clock for each datagram.
pub const LINGER_WAIT: Duration = Duration::from_millis(20);

/// When turns began and ended, and how long the present one may wait for datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linger {
    /// The end of the last turn.
    ended: Micros,
    /// The present turn lingers until this time; 0: it does not linger.
    until: Micros,
    /// Whether something arrived since the present wait began.
    heard: bool,
}

impl Linger {
    /// A turn begins. It may linger for `most` if turns follow each other closely.
    pub fn begin(&mut self, now: Micros, most: Micros) {
        let brisk = now <= self.ended + BRISK_US;
        self.until = if brisk { now + most } else { 0 };
        self.heard = false;
    }

    /// Until when to wait, unless a wait that ends sooner is in progress; `None`: stop lingering.
    pub fn until(&self, now: Micros) -> Option<Micros> {
        (now < self.until).then(|| self.until.min(now + SILENCE_US))
    }

    /// Something `came` during the wait, or the wait is over.
    pub fn waited(&mut self, came: bool) {
        if !came && !self.heard {
            self.until = 0;
        }
        self.heard = came;
    }

    /// The turn has ended.
    pub fn end(&mut self, now: Micros) {
        (self.ended, self.until) = (now, 0);
    }

    /// The end of the last turn.
    pub fn ended(&self) -> Micros {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Micros = 2_000;
    const ENDED: Micros = 1_000_000;

    fn after(pause: Micros, most: Micros) -> Linger {
        let mut linger = Linger::default();
        linger.begin(ENDED, most);
        linger.end(ENDED);
        linger.begin(ENDED + pause, most);
        linger
    }

    #[test]
    fn a_turn_soon_after_the_last_one_lingers_as_long_as_it_may() {
        let linger = after(BRISK_US, MOST);
        let (now, end) = (ENDED + BRISK_US, ENDED + BRISK_US + MOST);
        assert_eq!(linger.until(now), Some(now + SILENCE_US));
        assert_eq!((linger.until(end - 1), linger.until(end)), (Some(end), None));
        assert_eq!(after(BRISK_US + 1, MOST).until(now + 1), None, "one apart does not");
        assert_eq!(after(0, 0).until(ENDED), None, "nor does any where none may");
    }

    #[test]
    fn it_gives_up_after_a_silence() {
        let mut linger = after(0, MOST);
        linger.waited(true);
        linger.waited(false);
        assert!(
            linger.until(ENDED + SILENCE_US).is_some(),
            "something came in that time"
        );
        linger.waited(false);
        assert_eq!(linger.until(ENDED + SILENCE_US), None);
    }

    #[test]
    fn the_first_turn_does_not_linger_nor_does_one_that_has_ended() {
        let mut linger = Linger::default();
        linger.begin(ENDED, MOST);
        assert_eq!(linger.until(ENDED), None);
        let mut linger = after(0, MOST);
        linger.end(ENDED + 100);
        assert_eq!((linger.until(ENDED + 100), linger.ended()), (None, ENDED + 100));
    }
}
