//! The history of all links to one node: start of the observation, uptime, number of losses.
//!
//! Owns times and counts. Knows no link and no frame; times are passed in.

use crate::machine::Micros;
use crate::wire::frame::Status;
use crate::wire::Role;

/// Datagrams after which earlier ones count half: two minutes of pings, or a moment on a busy link.
const HALVED_AFTER: f32 = 1_024.0;

/// The history of the links to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    pub role: Role,
    /// When the first link came up.
    pub since: Micros,
    /// Number of links lost.
    pub failures: u64,
    pub up: bool,
    /// When a link last came up or was lost.
    pub changed_at: Micros,
    /// Uptime before `changed_at`.
    up_for: Micros,
}

impl Past {
    pub fn new(now: Micros, role: Role) -> Self {
        Past {
            role,
            since: now,
            failures: 0,
            up: true,
            changed_at: now,
            up_for: 0,
        }
    }

    /// A link came up.
    pub fn rise(&mut self, now: Micros) {
        if !self.up {
            (self.up, self.changed_at) = (true, now.max(self.changed_at));
        }
    }

    /// The link was lost; the peer's last datagram came at `at`.
    pub fn fall(&mut self, at: Micros) {
        if self.up {
            self.up_for += at.saturating_sub(self.changed_at);
            (self.up, self.changed_at) = (false, at.max(self.changed_at));
            self.failures += 1;
        }
    }

    /// The share of the time since the first link in which a link was up.
    pub fn availability(&self, now: Micros) -> f64 {
        let lasts = if self.up {
            now.saturating_sub(self.changed_at)
        } else {
            0
        };
        match now.saturating_sub(self.since) {
            0 => 1.0,
            observed => ((self.up_for + lasts) as f64 / observed as f64).min(1.0),
        }
    }
}

/// The recent share of datagrams that a peer has not received; a datagram that was overtaken counts as lost for a
/// while.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loss {
    highest: u64,
    received: u32,
    sent: f32,
    lost: f32,
}

impl Loss {
    /// Takes a status of the peer.
    pub fn hear(&mut self, status: &Status) {
        let Some(sent) = status.highest.checked_sub(self.highest).filter(|sent| *sent > 0) else {
            return; // an older status, overtaken on the way
        };
        // Datagrams sent before may have arrived now.
        let received = status.received.wrapping_sub(self.received) as i32;
        (self.highest, self.received) = (status.highest, status.received);
        if self.sent > HALVED_AFTER {
            (self.sent, self.lost) = (self.sent / 2.0, self.lost / 2.0);
        }
        self.sent += sent as f32;
        self.lost = (self.lost + sent as f32 - received as f32).max(0.0);
    }

    /// The highest datagram that the peer has reported, and how many it had received by then.
    pub fn told(&self) -> (u64, u32) {
        (self.highest, self.received)
    }

    pub fn share(&self) -> f64 {
        f64::from(self.lost / self.sent.max(1.0)).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::STORE;

    #[test]
    fn availability_is_the_share_of_the_time_since_the_first_link() {
        let mut past = Past::new(1_000, STORE);
        assert_eq!(past.availability(1_000), 1.0);
        past.fall(1_400);
        past.fall(1_500); // once
        assert_eq!((past.availability(1_400), past.availability(1_800)), (1.0, 0.5));
        past.rise(1_800);
        assert_eq!((past.availability(2_000), past.failures, past.up), (0.6, 1, true));
    }

    fn status(highest: u64, received: u32) -> Status {
        Status {
            highest,
            received,
            ..Status::default()
        }
    }

    #[test]
    fn loss_counts_missing_datagrams_until_they_arrive() {
        let mut loss = Loss::default();
        assert_eq!(loss.share(), 0.0);
        loss.hear(&status(100, 90));
        assert!((loss.share() - 0.1).abs() < 1e-6);
        loss.hear(&status(50, 50)); // overtaken
        loss.hear(&status(200, 200));
        assert_eq!(loss.share(), 0.0);
    }

    #[test]
    fn old_loss_is_forgotten() {
        let mut loss = Loss::default();
        loss.hear(&status(1_000, 500));
        (2..40).for_each(|round| loss.hear(&status(1_000 * round, 500 + 1_000 * (round as u32 - 1))));
        assert!(loss.share() < 0.001, "{}", loss.share());
    }
}
