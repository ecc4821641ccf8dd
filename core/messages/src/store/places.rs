//! Where each message is: in memory with a timer while it is near, otherwise in the files of an hour.
//!
//! Owns: the index, the near window and its wheel, which change together. Must not know: the log, claims, when hours
//! are loaded.

use std::io;

use super::files::Files;
use super::hours::Hours;
use super::index::{self, Index, Place};
use super::near::{Near, Slab};
use super::op::{Kind, Op};
use crate::schedule::MessageId;
use crate::wheel::{Fired, Millis, Progress, Wheel};

/// The places of all messages.
pub(super) struct Places {
    index: Index,
    near: Slab,
    wheel: Wheel,
    /// Messages that wake before this time are in memory.
    horizon: Millis,
    fired: Vec<Fired>,
}

impl Places {
    pub fn new(now: Millis, horizon: Millis) -> Self {
        Places {
            index: Index::new(),
            near: Slab::default(),
            wheel: Wheel::new(now),
            horizon,
            fired: Vec::new(),
        }
    }

    pub fn get(&self, id: MessageId) -> Option<Place> {
        self.index.get(id)
    }

    /// The message in memory with this number.
    pub fn near(&self, at: u32) -> &Near {
        self.near.get(at)
    }

    /// The messages in memory.
    pub fn all_near(&self) -> &Slab {
        &self.near
    }

    /// Number of messages.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes of memory for the index, and for the near window.
    pub fn memory(&self) -> (usize, usize) {
        (self.index.memory(), self.near.memory() + self.wheel.memory())
    }

    /// No message in memory is due before this time.
    pub fn next_due(&self) -> Option<Millis> {
        self.wheel.next_due()
    }

    /// Replaces the index by one that was read.
    pub fn set_index(&mut self, index: Index) {
        self.index = index;
    }

    /// Adds the places of messages that are not known here.
    pub fn fill_from(&mut self, mut older: Index) {
        for shard in 0..index::SHARDS {
            self.index.fill_from(&mut older, shard);
        }
    }

    /// Forgets a message, if it is still in the files of this hour.
    pub fn forget(&mut self, id: MessageId, number: u32) -> bool {
        let is_there = matches!(self.index.get(id), Some(Place::Far { hour, .. }) if hour == number);
        if is_there {
            self.index.remove(id);
        }
        is_there
    }

    /// Moves the end of the near window; never back.
    pub fn reach(&mut self, horizon: Millis) {
        self.horizon = self.horizon.max(horizon);
    }

    /// Keeps the location of a message after a change: in memory while it is near.
    pub fn seat(&mut self, op: Op, home: u32, number: u32, hours: &mut Hours) {
        let near = match self.index.get(op.id) {
            Some(Place::Near(at)) => Some(at),
            _ => None,
        };
        let wake_at = op.wake_at();
        if let Some(wake_at) = wake_at.filter(|at| *at < self.horizon) {
            let at = match near {
                Some(at) => at,
                None => {
                    let at = self.near.insert(Near {
                        op,
                        home,
                        number,
                        token: None,
                    });
                    self.index.set(op.id, Place::Near(at));
                    at
                }
            };
            let near = self.near.get_mut(at);
            (near.op, near.home, near.number) = (op, home, number);
            match near.token {
                Some(token) => {
                    self.wheel.reschedule(token, wake_at);
                }
                None => near.token = Some(self.wheel.insert(wake_at, u64::from(at))),
            }
            return;
        }
        if let Some(at) = near {
            if let Some(token) = self.near.remove(at).token {
                self.wheel.cancel(token);
            }
        }
        if op.kind == Kind::Gone {
            self.index.remove(op.id);
            return;
        }
        self.index.set(op.id, Place::Far { hour: home, op: number });
        if let (Some(wake_at), Some(hour)) = (wake_at, hours.get_mut(home)) {
            hour.wakes(wake_at, number);
        }
    }

    /// Makes sure that a message in memory is in the wheel.
    pub fn arm(&mut self, id: MessageId, at: Millis) {
        if let Some(Place::Near(place)) = self.index.get(id) {
            let near = self.near.get_mut(place);
            if near.token.is_none() {
                near.token = Some(self.wheel.insert(at, u64::from(place)));
            }
        }
    }

    /// Turns the wheel back to the time of a clock that went back: otherwise it would fire nothing until the clock
    /// has caught up.
    pub fn rewind(&mut self, now: Millis) {
        self.wheel = Wheel::new(now);
        for (place, near) in self.near.iter_mut() {
            if near.token.is_some() {
                let at = near.op.wake_at().expect("only live operations are in memory");
                near.token = Some(self.wheel.insert(at, u64::from(place)));
            }
        }
    }

    /// Brings messages into memory that the near window has reached.
    pub fn admit<F: Files>(&mut self, budget: usize, files: &F, hours: &mut Hours) -> io::Result<Progress> {
        let mut left = budget.max(1);
        let horizon = self.horizon;
        // Loaded hours beyond the horizon may also hold messages due before it, which were advanced.
        for (number, hour) in hours.loaded_mut() {
            while let Some(op) = hour.next_before(horizon) {
                let far = Place::Far { hour: number, op };
                let found = hour.read_op(files, op)?;
                if self.index.get(found.id) == Some(far) {
                    let wake_at = found.wake_at().expect("only live operations are in the order");
                    let at = self.near.insert(Near {
                        op: found,
                        home: number,
                        number: op,
                        token: None,
                    });
                    self.near.get_mut(at).token = Some(self.wheel.insert(wake_at, u64::from(at)));
                    self.index.set(found.id, Place::Near(at));
                }
                left -= 1;
                if left == 0 {
                    return Ok(Progress::More);
                }
            }
        }
        Ok(Progress::Current)
    }

    /// Fires up to `budget` messages that are due by `now`; calls `due` for each, with its time.
    pub fn advance(&mut self, now: Millis, budget: usize, mut due: impl FnMut(&Op, Millis)) -> Progress {
        let progress = self.wheel.advance(now, budget, &mut self.fired);
        for fired in self.fired.drain(..) {
            let near = self.near.get_mut(fired.key as u32);
            near.token = None;
            due(&near.op, fired.due);
        }
        progress
    }
}
