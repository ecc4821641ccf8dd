//! The bounds of a turn, each with its reason.
//!
//! Owns: [`Budget`] and its unused part within a turn.

use muster_transport::{Micros, SLICE_DATAGRAMS};

/// A loop called later than this after its time, or whose clock advanced by this much between two readings within a
/// turn, has stood still; queued datagrams are stale.
pub const STALL_US: Micros = 500_000;
/// Longest sleep of the timer, so that a standstill is noticed even while a machine waits for nothing. Four wake-ups
/// a second cost an idle process some 0.01 % of a core.
pub const BEAT_US: Micros = 250_000;
/// Sealed datagrams that waited longer than this behind a full buffer are given up, as too late for real time.
pub const AGE_MAX_US: Micros = 250_000;
/// The wait for kernel memory (ENOBUFS), whose end no event reports. At 1 Gbit/s, 200 KiB leave in this time.
pub const RETRY_US: Micros = 2_000;
/// Maximum number of messages that are discarded after a standstill, so that a flood cannot block the loop: an 8 MiB
/// buffer holds 10,000 small ones; this is 26 such sockets, or 0.2 s of work.
pub const DISCARDED_MAX: usize = 262_144;

/// Datagrams of one socket that are received per datagram of a slice before the next slice leaves. Each member
/// replies to its datagrams. If a sender gets four replies per datagram, they wait, and data for others waits with
/// them.
pub const HEARD_EACH: usize = 2;

/// The longest time that data for others waits behind one slice and the datagrams received before it.
pub const ROUND_US: Micros = 200;
/// The shortest slice: checking the sockets costs as much as one or two datagrams.
pub const SLICE_MIN: usize = 16;
/// Maximum number of datagrams by which the next slice may grow.
const SLICE_STEP: usize = 8;

/// If turns follow each other within this time, the timer is not moved back to a later deadline. It then fires once
/// too early for each status owed (50 ms); moving it would cost a system call for each.
pub const CLOSE_US: Micros = 5_000;

/// The bounds of one turn. Each is checked between batches, so it may be exceeded by one batch.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Datagrams taken in.
    pub received_max: usize,
    /// Datagrams sent. A bound on input alone would starve the loop: one datagram may go to 1,000 members.
    pub sent_max: usize,
    pub turn_us: Micros,
    /// How long a turn may linger while datagrams follow each other closely; 0 for loops with other work.
    pub linger_us: Micros,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            received_max: 1_024,
            sent_max: 2_048,
            turn_us: 1_000,
            linger_us: 0,
        }
    }
}

/// The used part of a turn's budget.
pub(crate) struct Spent {
    pub received: usize,
    pub sent: usize,
    /// Whether sending met a full buffer: trying again in the same turn is useless.
    pub stuck: bool,
    /// Whether the process stood still since `now`. Then the turn ends, and the next one, which is late by that time,
    /// handles the standstill.
    pub stood: bool,
    /// The last reading of the clock: after each slice and its received datagrams, so that no reply has the time of
    /// its request.
    pub now: Micros,
    budget: Budget,
    until: Micros,
}

impl Spent {
    pub fn new(budget: Budget, now: Micros) -> Self {
        Spent {
            received: 0,
            sent: 0,
            stuck: false,
            stood: false,
            now,
            budget,
            until: now + budget.turn_us,
        }
    }

    /// Number of datagrams that may still be received.
    pub fn receivable(&self) -> usize {
        self.budget.received_max.saturating_sub(self.received)
    }

    /// Whether the process stood still before `clock`.
    pub fn stood(&mut self, clock: Micros) -> bool {
        self.stood |= clock.saturating_sub(self.now) > STALL_US;
        self.stood
    }

    /// Time since the last reading.
    pub fn lap(&mut self, clock: Micros) -> Micros {
        let time = clock.saturating_sub(self.now);
        if !self.stood(clock) {
            self.now = clock;
        }
        time
    }

    pub fn is_over(&mut self, clock: Micros) -> bool {
        self.lap(clock);
        self.stood
            || self.received >= self.budget.received_max
            || self.sent >= self.budget.sent_max
            || clock >= self.until
    }
}

/// How many datagrams a slice holds: fewer if each takes long, as when a hundred thousand sessions have their turn
/// and none of them is in a cache.
pub(crate) struct Slice {
    pub datagrams: usize,
}

impl Slice {
    pub fn new() -> Self {
        Slice {
            datagrams: SLICE_DATAGRAMS,
        }
    }

    /// Updates the size after a full slice that took `time`, including the datagrams received before it.
    pub fn took(&mut self, time: Micros) {
        let fits = self.datagrams as u64 * ROUND_US / time.max(1);
        let (least, most) = (self.datagrams / 2, self.datagrams + SLICE_STEP);
        self.datagrams = (fits as usize).clamp(least, most).clamp(SLICE_MIN, SLICE_DATAGRAMS);
    }
}
