//! The pace at which a draining server sends its clients away: evenly, so that they don't all reach the other servers
//! at once.
//!
//! Owns the pace over slots. Knows no session; times are passed in.

use crate::machine::Micros;

/// Time in which all clients are sent away; and the number per millisecond if they are few.
const SPREAD: Micros = 500_000;
const LEAST: u64 = 4;
/// Interval between two steps.
const STEP: Micros = 2_000;

/// A pass over all slots, from the first to the last.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parting {
    since: Option<Micros>,
    slots: u32,
    next: u32,
    /// When the next step is due.
    at: Micros,
}

impl Parting {
    /// The slots to be sent away now; `slots`: their number when the pass begins.
    pub fn due(&mut self, now: Micros, slots: u32) -> std::ops::Range<u32> {
        let since = *self.since.get_or_insert_with(|| {
            self.slots = slots;
            now
        });
        let elapsed = now.saturating_sub(since);
        let evenly = u64::from(self.slots) * elapsed.min(SPREAD) / SPREAD;
        let least = LEAST * (1 + elapsed / 1_000);
        let upto = evenly.max(least).min(self.slots.into()) as u32;
        self.at = now + STEP;
        let from = std::mem::replace(&mut self.next, upto);
        from..upto
    }

    pub fn is_done(&self) -> bool {
        self.since.is_some() && self.next == self.slots
    }

    /// When the next slots are due, one step after the last.
    pub fn deadline(&self) -> Option<Micros> {
        (!self.is_done()).then_some(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_clients_are_sent_away_evenly_and_few_at_once() {
        let mut many = Parting::default();
        assert!(!many.is_done());
        assert_eq!(many.due(1_000, 100_000), 0..4);
        assert_eq!(many.due(251_000, 100_000), 4..50_000);
        assert!(!many.is_done());
        assert_eq!(
            many.due(900_000, 100_100),
            50_000..100_000,
            "later ones are refused at the door"
        );
        assert!(many.is_done());
        let mut few = Parting::default();
        assert_eq!((few.due(0, 6), few.due(2_000, 6)), (0..4, 4..6));
        assert!(few.is_done() && few.deadline().is_none());
        let mut none = Parting::default();
        assert!(none.due(0, 0).is_empty() && none.is_done());
    }
}
