//! The places of a room at a member: which is next, which exist, which came early, and which are asked for.
//!
//! Owns the numbering of a membership and the requests for missing places. Knows no content of a place.

use muster_transport::Micros;

use crate::asking::{Asking, Pace};
use crate::client::held::Held;
use crate::limits::{CROWDED_BYTES, CROWDED_MESSAGES};
use crate::wire::room::REPAIR_RANGES;

/// Wait times before holes are requested.
const PACE: Pace = Pace {
    reorder: 1_500,
    reorder_max: 6_000,
    again: 20_000,
    again_max: 500_000,
};

/// The places of a membership.
pub struct Places {
    /// The first place that was not taken yet; 0: there is no membership.
    pub(super) next: u64,
    /// Data behind a hole.
    pub(super) held: Held,
    /// A place below this exists.
    known: u64,
    asking: Asking,
    /// The gateway knows that something is missing, and does not know yet that nothing is anymore.
    lacks_told: bool,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            next: 0,
            held: Held::default(),
            known: 0,
            asking: Asking::new(PACE),
            lacks_told: false,
        }
    }
}

impl Places {
    /// A membership begins at this place.
    pub(super) fn begin(&mut self, index: u64) {
        self.next = index;
        self.known = index;
        self.asking.restart(index);
        self.lacks_told = false;
        self.held.clear();
    }

    /// The membership is over.
    pub(super) fn end(&mut self) {
        self.next = 0;
        self.lacks_told = false;
        self.held.clear();
    }

    /// Whether a place that arrives had been requested.
    #[inline]
    pub(super) fn is_repair(&self, index: u64) -> bool {
        index >= self.next && index < self.asking.asked() && !self.held.has(index)
    }

    /// Counts arrived places, and those that came twice: they had been requested too soon.
    #[inline]
    pub(super) fn came(&mut self, count: u32, twice: u32) {
        self.asking.came(count, twice);
    }

    /// Notes that all places below this exist.
    #[inline]
    pub(super) fn note_known(&mut self, now: Micros, index: u64) {
        self.known = self.known.max(index);
        self.asking.note(now, self.next, self.known);
    }

    /// The reader goes on: places missed while it stood still are not caused by reordering.
    pub(super) fn hurry(&mut self, now: Micros) {
        self.note_known(now, self.known);
        self.asking.hurry(now);
    }

    /// Whether so much waits behind a hole that the gateway must send only the missing data of the room.
    pub(super) fn is_crowded(&self) -> bool {
        self.held.bytes() > CROWDED_BYTES || self.held.places() > CROWDED_MESSAGES
    }

    /// When a hole is requested next.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.asking.deadline()
    }

    /// Whether nothing is missing anymore, and the gateway must learn that.
    #[inline]
    pub(super) fn is_whole_again(&self) -> bool {
        self.lacks_told && self.next >= self.known
    }

    /// The places to request now, and whether the gateway must be told.
    pub(super) fn ask(&mut self, now: Micros, rtt: Micros) -> (Vec<(u64, u64)>, bool) {
        let mut ranges = Vec::new();
        let places = (self.next, self.known);
        self.asking
            .ask(now, rtt, places, &self.held, REPAIR_RANGES, &mut ranges);
        let whole_again = self.is_whole_again();
        self.lacks_told = !ranges.is_empty() || self.lacks_told && !whole_again;
        let tells = whole_again || !ranges.is_empty();
        (ranges, tells)
    }
}
