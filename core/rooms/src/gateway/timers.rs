//! When rooms, and sessions with filters, are looked at next.
//!
//! Owns the times. What is done then is the business of `mod`, for rooms, and of `fanout`, for sessions.

use std::collections::VecDeque;

use muster_transport::{Micros, Wheel};

use super::filtering::TOLD_AFTER;

/// The interval at which idle rooms forget overwritten places.
const TRIM_EVERY: Micros = 1_000_000;

pub(super) struct Timers {
    rooms: Wheel,
    trim_at: Micros,
    /// When sessions are to be told of what their filters passed: all wait equally long.
    untold: VecDeque<(Micros, u32)>,
    /// When sessions are to be given the latest message of a room.
    wakes: Wheel,
}

impl Timers {
    pub fn new() -> Self {
        Timers {
            rooms: Wheel::new(),
            trim_at: 0,
            untold: VecDeque::new(),
            wakes: Wheel::new(),
        }
    }

    /// When a room is looked at.
    pub fn of_room(&self, at: u32) -> Option<Micros> {
        self.rooms.deadline(at)
    }

    /// A room is looked at then, or sooner.
    pub fn look(&mut self, now: Micros, at: u32, then: Micros) {
        if self.of_room(at).is_none_or(|known| then < known) {
            self.rooms.schedule(at, then.max(now + 1));
        }
    }

    /// A room is not looked at any more.
    pub fn forget_room(&mut self, at: u32) {
        self.rooms.cancel(at);
    }

    /// A room whose time has come.
    pub fn due_room(&mut self, now: Micros) -> Option<u32> {
        self.rooms.pop(now)
    }

    /// Whether idle rooms are to forget overwritten places now.
    pub fn trims(&mut self, now: Micros) -> bool {
        let due = now >= self.trim_at;
        if due {
            self.trim_at = now + TRIM_EVERY;
        }
        due
    }

    /// A session's filter has passed something.
    pub fn note_passed(&mut self, now: Micros, slot: u32) {
        self.untold.push_back((now + TOLD_AFTER, slot));
    }

    /// A session that is to be told what its filter passed.
    pub fn due_untold(&mut self, now: Micros) -> Option<u32> {
        let (_, slot) = self.untold.front().copied().filter(|(at, _)| *at <= now)?;
        self.untold.pop_front();
        Some(slot)
    }

    /// A session gets the latest message of a room then, or sooner.
    pub fn wake(&mut self, slot: u32, then: Micros) {
        if self.wakes.deadline(slot).is_none_or(|known| then < known) {
            self.wakes.schedule(slot, then);
        }
    }

    /// A session whose time has come.
    pub fn due_wake(&mut self, now: Micros) -> Option<u32> {
        self.wakes.pop(now)
    }

    /// When rooms or sessions are looked at next.
    pub fn deadline(&self) -> Option<Micros> {
        let untold = self.untold.front().map(|(at, _)| *at);
        [self.rooms.next(), untold, self.wakes.next()]
            .into_iter()
            .flatten()
            .min()
    }
}
