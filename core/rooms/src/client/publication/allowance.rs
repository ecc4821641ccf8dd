//! What the owner of a room lets this publisher send: credit, and waits while it accepts nothing.
//!
//! Owns the owner's last word. Knows no message.

use muster_transport::{Code, Micros};

use super::NOT_READY_WAIT;
use crate::limits;
use crate::wire::publish::Ack;

/// How often a publisher without credit asks the owner.
const POLL_EVERY: Micros = 100_000;
/// Longest such wait: a limit may have been raised meanwhile.
const HOLD_MAX: Micros = 60_000_000;

/// Credit and waits.
pub(super) struct Allowance {
    messages: usize,
    bytes: usize,
    /// When an owner that gives no credit is asked.
    poll_at: Option<Micros>,
    poll_due: bool,
    /// Until when the owner accepts nothing, and why. Nothing is sent before, and little until it accepts again.
    hold_until: Option<Micros>,
    put_off: Option<Code>,
}

impl Default for Allowance {
    fn default() -> Self {
        Allowance {
            messages: limits::CREDIT_MESSAGES as usize,
            bytes: limits::CREDIT_BYTES,
            poll_at: None,
            poll_due: false,
            hold_until: None,
            put_off: None,
        }
    }
}

impl Allowance {
    /// Whether there is credit for this much unacknowledged data.
    #[inline]
    pub(super) fn covers(&self, messages: usize, bytes: usize) -> bool {
        messages <= self.messages && bytes <= self.bytes
    }

    /// Whether a quarter of the credit is free beside this much unacknowledged data.
    pub(super) fn is_roomy(&self, messages: usize, bytes: usize) -> bool {
        messages * 4 <= self.messages * 3 && bytes * 4 <= self.bytes * 3
    }

    /// Takes the credit of an acknowledgement.
    pub(super) fn credit(&mut self, now: Micros, ack: &Ack) {
        self.messages = usize::from(ack.credit_messages);
        self.bytes = ack.credit_bytes as usize;
        self.poll_at = (self.messages == 0).then_some(now + POLL_EVERY);
    }

    /// The owner, or the proxy, accepts nothing for a while. Returns until when.
    pub(super) fn hold(&mut self, now: Micros, ack: &Ack) -> Micros {
        let wait = ack.wait().unwrap_or(0).clamp(NOT_READY_WAIT, HOLD_MAX);
        self.put_off = Some(ack.code);
        self.hold_until = Some(now + wait);
        now + wait
    }

    /// The owner accepts messages.
    pub(super) fn accept(&mut self) {
        (self.hold_until, self.put_off) = (None, None);
    }

    /// The next proxy may accept messages.
    pub(super) fn lost_session(&mut self) {
        self.hold_until = None;
    }

    /// The room is refused: nothing is waited for.
    pub(super) fn refuse(&mut self) {
        (self.poll_at, self.hold_until) = (None, None);
    }

    /// Runs the due timers.
    pub(super) fn expire(&mut self, now: Micros) {
        if self.hold_until.is_some_and(|at| now >= at) {
            self.hold_until = None;
        }
        if self.poll_at.is_some_and(|at| now >= at) {
            self.poll_at = Some(now + POLL_EVERY);
            self.poll_due = true;
        }
    }

    /// When [`Allowance::expire`] is due.
    pub(super) fn deadline(&self) -> Option<Micros> {
        [self.poll_at, self.hold_until].into_iter().flatten().min()
    }

    /// How long nothing may be sent.
    pub(super) fn held_for(&self, now: Micros) -> Micros {
        self.hold_until.map_or(0, |at| at.saturating_sub(now))
    }

    /// Whether nothing may be sent now.
    #[inline]
    pub(super) fn is_held(&self) -> bool {
        self.hold_until.is_some()
    }

    /// Why the owner accepted nothing when it was last asked.
    #[inline]
    pub(super) fn put_off(&self) -> Option<Code> {
        self.put_off
    }

    /// Whether the owner must be asked for credit.
    #[inline]
    pub(super) fn is_poll_due(&self) -> bool {
        self.poll_due
    }

    /// A frame leaves, which asks for credit as well.
    #[inline]
    pub(super) fn polled(&mut self) {
        self.poll_due = false;
    }
}
