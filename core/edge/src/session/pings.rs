//! Pings, their pongs, silence, and the receipts that pongs are.
//!
//! Owns: [`Pings`]. SDKs handle a stream strictly in order, so the pong for a ping proves all messages before it.

use muster_transport::{soonest, Dice, Micros};

use super::{Session, State, Turn};
use crate::ask::Ask;
use crate::codes::Disconnect;
use crate::limits::{PINGS_MAX, SILENT_MAX};

pub(super) struct Pings {
    native: bool,
    /// Pings that were written, and pongs that came.
    sent: u64,
    answered: u64,
    /// A receipt waits for a ping that could not be sent.
    wanted: bool,
    /// A receipt waits for the pong of this ping.
    receipt: u64,
    /// The last message among the unwritten ones is the last ping: its length at that time.
    tail: Option<usize>,
    /// WebSocket pings that are to be written.
    native_due: u32,
    next: Option<Micros>,
    /// The pong of the last ping is due.
    pong_by: Option<Micros>,
    heard: Micros,
    /// The owner is asked whether a silent client's kernel still takes bytes.
    asked: bool,
}

impl Pings {
    pub fn new(native: bool) -> Pings {
        Pings {
            native,
            sent: 0,
            answered: 0,
            wanted: false,
            receipt: 0,
            tail: None,
            native_due: 0,
            next: None,
            pong_by: None,
            heard: 0,
            asked: false,
        }
    }

    pub fn deadline(&self) -> Option<Micros> {
        let mut at = self.next;
        soonest(&mut at, self.pong_by);
        at
    }

    pub fn has_native(&self) -> bool {
        self.native_due > 0
    }

    pub fn written(&mut self) {
        self.tail = None;
    }
}

impl Session {
    /// Begins to ping, the first time at a random half to whole of the interval, so that clients that came together do not
    /// stay together. Returns what the client is told.
    pub(super) fn begin_pings(&mut self, turn: &Turn<'_>, dice: &mut Dice) -> (u32, bool) {
        let every = turn.settings.ping_every;
        self.pings.heard = turn.now;
        self.pings.next = Some(turn.now + every / 2 + dice.below(every / 2 + 1));
        match self.pings.native {
            true => (0, false),
            false => (every.div_ceil(1_000_000) as u32, true),
        }
    }

    /// Something came from the client.
    pub fn heard(&mut self, now: Micros) {
        self.pings.heard = now;
        self.pings.asked = false;
    }

    /// The number of pings whose pongs prove that the client has all that was written so far, messages that wait to be written
    /// included: [`Ask::Received`] will say so. Frames count from when they were handed to be written.
    pub fn receipt(&mut self) -> u64 {
        if self.state != State::Open {
            return u64::MAX;
        }
        let pings = &mut self.pings;
        let proves = match pings.tail == Some(self.replies.bytes().len()) && pings.tail != Some(0) {
            true => pings.sent,
            false if pings.sent - pings.answered >= PINGS_MAX => {
                pings.wanted = true;
                pings.sent + 1
            }
            false => {
                self.ping();
                self.pings.sent
            }
        };
        self.pings.receipt = proves;
        proves
    }

    /// Answers [`Ask::Silent`]: whether the kernel holds bytes that the client's has not acknowledged. If it does, the client
    /// is gone; if not, a tab may be frozen, and a bound ends that.
    pub fn silence(&mut self, turn: &mut Turn<'_>, unacknowledged: bool) {
        let pings = &mut self.pings;
        if self.state != State::Open || !std::mem::take(&mut pings.asked) {
            return;
        }
        if unacknowledged || turn.now >= pings.heard + SILENT_MAX {
            turn.counters.ended_no_pong += 1;
            self.over(Disconnect::NO_PONG, turn.asks);
        }
    }

    /// WebSocket pings that are to be written now, by number.
    pub fn native_pings(&mut self) -> std::ops::RangeInclusive<u64> {
        let due = u64::from(std::mem::take(&mut self.pings.native_due));
        self.pings.sent + 1 - due..=self.pings.sent
    }

    /// A pong came, of either kind.
    pub fn pong(&mut self, turn: &mut Turn<'_>) {
        if self.state != State::Open {
            return;
        }
        let pings = &mut self.pings;
        if pings.answered == pings.sent {
            turn.counters.pongs_unasked += 1;
            return;
        }
        let before = pings.answered;
        pings.answered += 1;
        if pings.answered == pings.sent {
            pings.pong_by = None;
        }
        if pings.receipt > before {
            let pings = pings.answered;
            turn.asks.push(Ask::Received { pings });
        }
        if std::mem::take(&mut self.pings.wanted) {
            self.ping();
        }
    }

    pub(super) fn expire_pings(&mut self, turn: &mut Turn<'_>, dice: &mut Dice) {
        if self.pings.pong_by.is_some_and(|by| by <= turn.now) {
            self.pings.pong_by = None;
            // Anything that was heard since proves as much as a pong.
            if turn.now.saturating_sub(self.pings.heard) >= turn.settings.pong_within {
                self.pings.asked = true;
                turn.asks.push(Ask::Silent);
            }
        }
        if self.pings.next.is_some_and(|next| next <= turn.now) {
            // A few ms of chance keep clients apart that were pinged together by a standstill.
            self.pings.next = Some(turn.now + turn.settings.ping_every - dice.below(turn.settings.ping_every / 64 + 1));
            if self.pings.sent - self.pings.answered < PINGS_MAX {
                self.ping();
            }
            self.pings.pong_by.get_or_insert(turn.now + turn.settings.pong_within);
        }
    }

    fn ping(&mut self) {
        self.pings.sent += 1;
        if self.pings.native {
            self.pings.native_due += 1;
        } else {
            self.replies.ping();
        }
        self.pings.tail = Some(self.replies.bytes().len());
    }
}
