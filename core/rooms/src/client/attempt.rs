//! Attempts to open a session: one handshake's hellos, and the waits between handshakes.
//!
//! Owns their times. Knows no connection and no list of servers.

use muster_transport::{Addr, Dice, Knock, Micros, Outbox, SocketId, BACKOFF_FIRST, BACKOFF_MAX};

use super::{ATTEMPT_MAX, HELLO_FIRST, HELLO_MAX, UNANSWERED_MAX};

/// Limits of the reconnect waits that a server may announce: least first wait, and a tenth of the longest wait.
const PACE_MIN: Micros = 10_000;
const PACE_MAX: Micros = 60_000_000;

/// The present attempt, or the wait for the next one.
pub(super) struct Attempt {
    pub(super) knock: Option<Knock>,
    /// Failed attempts in a row.
    pub(super) count: u32,
    /// When the next attempt begins, or the next hello leaves.
    pub(super) next_at: Micros,
    until: Micros,
    hello_due: bool,
    /// The interval between hellos.
    wait: Micros,
    /// The round trip of the previous session, or measured by the cookie; 0: unknown.
    rtt: Micros,
    /// The first and the longest reconnect wait, as the last server announced them.
    backoff: (Micros, Micros),
}

impl Default for Attempt {
    fn default() -> Self {
        Attempt {
            knock: None,
            count: 0,
            next_at: 0,
            until: 0,
            hello_due: false,
            wait: 0,
            rtt: 0,
            backoff: (BACKOFF_FIRST, BACKOFF_MAX),
        }
    }
}

impl Attempt {
    /// Schedules an attempt, and cancels one that has begun.
    pub(super) fn restart(&mut self, at: Micros) {
        self.knock = None;
        self.count = 0;
        self.next_at = at;
    }

    /// An attempt begins: its first hello leaves.
    pub(super) fn begin(&mut self, now: Micros, knock: Knock) {
        self.knock = Some(knock);
        self.until = now + ATTEMPT_MAX;
        self.hello(now, HELLO_FIRST);
    }

    /// A hello leaves; the next one waits at least until a reply can have come.
    fn hello(&mut self, now: Micros, wait: Micros) {
        self.wait = wait.max(self.rtt + self.rtt / 2);
        self.next_at = now + self.wait;
        self.hello_due = true;
    }

    /// No reply has come: another hello leaves.
    pub(super) fn repeat(&mut self, now: Micros, dice: &mut Dice) {
        self.hello(now, (2 * self.wait).min(HELLO_MAX));
        self.next_at += dice.below(self.wait / 2);
    }

    /// Takes a cookie, to be shown with the next hello at once.
    pub(super) fn cookie(&mut self, now: Micros, datagram: &[u8]) {
        if self.knock.as_mut().is_some_and(|knock| knock.cookie(datagram)) {
            if self.rtt == 0 {
                self.rtt = (now + ATTEMPT_MAX - self.until).min(HELLO_MAX);
            }
            self.hello(now, HELLO_FIRST);
        }
    }

    /// The handshake is over: the server must accept the session in time.
    pub(super) fn opened(&mut self, now: Micros) {
        self.knock = None;
        self.until = now + ATTEMPT_MAX * 2;
    }

    /// The session is accepted.
    pub(super) fn succeeded(&mut self) {
        self.count = 0;
    }

    /// Whether the attempt has taken too long.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        now >= self.until
    }

    /// When the attempt has taken too long.
    pub(super) fn ends_at(&self) -> Micros {
        self.until
    }

    /// The reply may be in the socket: the attempt is not over yet.
    pub(super) fn extend(&mut self, now: Micros) {
        self.until = self.until.max(now + 1);
    }

    /// The next attempt waits until then.
    pub(super) fn delay(&mut self, until: Micros) {
        self.next_at = self.next_at.max(until);
    }

    /// The session is lost. `rtt`: its round trip. Returns the longest wait before the next attempt.
    pub(super) fn lost(&mut self, was_ready: bool, rtt: Micros) -> Micros {
        let unanswered = self.knock.take().is_some_and(|knock| !knock.is_answered());
        let (first, longest) = self.backoff;
        let longest = if unanswered { UNANSWERED_MAX.max(first) } else { longest };
        self.rtt = rtt;
        self.count = if was_ready { 0 } else { self.count + 1 };
        match was_ready {
            true => first,
            false => (first << self.count.min(8)).min(longest),
        }
    }

    /// The longest wait before an attempt to return to a server that works.
    pub(super) fn first_wait(&self) -> Micros {
        self.backoff.0
    }

    /// A server announces the first and the longest reconnect wait.
    pub(super) fn set_backoff(&mut self, first_ms: u32, longest_ms: u32) {
        let first = (Micros::from(first_ms) * 1_000).clamp(PACE_MIN, PACE_MAX);
        let longest = (Micros::from(longest_ms) * 1_000).clamp(first, 10 * PACE_MAX);
        self.backoff = (first, longest);
    }

    /// Writes the hello that is due.
    pub(super) fn transmit(&mut self, socket: SocketId, to: Option<Addr>, payload: usize, outbox: &mut Outbox) {
        if self.hello_due && outbox.room() > 0 {
            self.hello_due = false;
            if let (Some(knock), Some(addr)) = (&self.knock, to) {
                knock.hello(socket, addr, payload, outbox);
            }
        }
    }
}
