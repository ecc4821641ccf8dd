//! The silence of a session's server: when it is asked whether it is there, and when it counts as lost.
//!
//! Owns the times of requests, and the usual lulls of the server. Knows no list of servers.

use super::lulls::Lulls;
use super::{ASK_FIRST, ASK_MAX, SILENCE_MAX};
use muster_transport::{Conn, Dice, Micros, SESSION_BLOCKS};

/// Bounds of the silence that counts as a loss where another server can be tried: see [`SILENCE_MAX`].
const SILENCE_MIN: Micros = 750_000;
const SILENCE_RTTS: u64 = 5;

/// A busy server that falls silent is asked after twice its longest recent lull, but at least this, not only after a
/// keepalive.
const LULL_MIN: Micros = 250_000;

/// The interval for a server that has not received all datagrams yet.
const ASK_BEHIND: Micros = 500_000;

/// Before a session counts as lost, the client asks every `ASK_LAST_EVERY` for this long plus a round trip. A few
/// requests may all fall into one burst of losses, and twenty more cost less than another session.
const ASK_LAST: Micros = 500_000;
const ASK_LAST_EVERY: Micros = 20_000;

/// How long a reply may be owed. `others`: another server can be tried.
pub(super) fn silence_max(rtt: Micros, others: bool) -> Micros {
    match others {
        true => (SILENCE_RTTS * rtt).clamp(SILENCE_MIN, SILENCE_MAX),
        false => SILENCE_MAX,
    }
}

/// When a silent server is asked, and since when a reply is owed.
pub(super) struct Silence {
    keepalive: Micros,
    lulls: Lulls,
    asked_at: Option<Micros>,
    /// The interval between repeated requests.
    wait: Micros,
}

impl Default for Silence {
    fn default() -> Self {
        Silence {
            keepalive: 1_000_000,
            lulls: Lulls::default(),
            asked_at: None,
            wait: 0,
        }
    }
}

impl Silence {
    /// A session begins: nothing is owed.
    pub(super) fn begin(&mut self) {
        self.asked_at = None;
    }

    /// A server announces its longest silence.
    pub(super) fn set_keepalive(&mut self, keepalive_ms: u32) {
        self.keepalive = Micros::from(keepalive_ms.clamp(50, 600_000)) * 1_000;
        self.lulls = Lulls::new(self.keepalive);
    }

    /// A datagram arrived this long after the previous one.
    #[inline]
    pub(super) fn hear(&mut self, lull: Micros) {
        self.lulls.hear(lull);
    }

    /// Whether the server owes a reply.
    pub(super) fn is_asked(&self) -> bool {
        self.asked_at.is_some()
    }

    /// The server was last heard then: that may be the reply.
    pub(super) fn heard(&mut self, at: Micros) {
        self.asked_at = self.asked_at.filter(|asked| at < *asked);
    }

    /// The reply may be in the socket: the time since the last check, at `looked_at`, does not count.
    pub(super) fn excuse(&mut self, now: Micros, looked_at: Micros) {
        self.asked_at = self.asked_at.map(|at| at + now.saturating_sub(at.max(looked_at)));
    }

    /// Whether a reply is owed for longer than `max`.
    pub(super) fn is_over(&self, now: Micros, max: Micros) -> bool {
        self.asked_at.is_some_and(|at| now >= at + max)
    }

    /// The silence after which the client asks whether the server is there.
    fn patience(&self) -> Micros {
        (2 * self.lulls.longest()).max(LULL_MIN).min(self.keepalive)
    }

    /// When the server is asked: after the patience, and again after the wait since the last datagram sent to it.
    pub(super) fn ask_at(&self, conn: &Conn<SESSION_BLOCKS>) -> Micros {
        match self.asked_at {
            Some(_) => conn.heard_at.max(conn.sent_at) + self.wait.min(self.patience()),
            None => conn.heard_at + self.patience(),
        }
    }

    /// The server is asked; it counts as lost once a reply is owed for `max`. `behind`: its reply may be in the socket,
    /// and more requests would not help a server that falls behind, either.
    pub(super) fn ask(&mut self, now: Micros, dice: &mut Dice, behind: bool, rtt: Micros, max: Micros) {
        let wait = match self.asked_at {
            Some(_) => (2 * self.wait).min(ASK_MAX),
            None => ASK_FIRST,
        };
        let wait = wait.max(2 * rtt);
        let left = self.asked_at.map_or(max, |at| (at + max).saturating_sub(now));
        let last = left.saturating_sub(ASK_LAST + rtt).max(ASK_LAST_EVERY);
        self.wait = match behind {
            true => ASK_BEHIND,
            false => (wait + dice.below(wait / 2)).min(last),
        };
        self.asked_at.get_or_insert(now);
    }

    /// When the server counts as lost, if it owes a reply.
    pub(super) fn ends_at(&self, max: Micros) -> Option<Micros> {
        self.asked_at.map(|at| at + max)
    }
}
