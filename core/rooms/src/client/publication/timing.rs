//! How long acknowledgements take, and when unacknowledged messages are repeated.
//!
//! Owns the measured times of one room's owner. Knows no message.

use muster_transport::Micros;

/// Minimum and maximum interval between repeats of an unacknowledged message.
const REPEAT_MIN: Micros = 2_000;
const REPEAT_MAX: Micros = 1_000_000;
/// The interval before an acknowledgement has been timed.
const REPEAT_FIRST: Micros = 40_000;
/// The interval doubles up to this while no acknowledgement comes, unless the owner is further away: an owner that
/// returns silently is found within this time.
pub(super) const BACK_OFF_MAX: Micros = 250_000;
/// A message that an acknowledgement does not cover may be this much slower than the one before it.
const BEYOND_SLACK: Micros = 1_000;
/// Acknowledgements that took longer are not timed.
const SAMPLE_MAX: Micros = 60_000_000;

/// The times of acknowledgements.
pub(super) struct Timing {
    /// Smoothed time from sending a frame to its acknowledgement; 0: unknown.
    rtt: Micros,
    var: Micros,
    /// When the oldest messages are repeated, and the interval, which doubles until an acknowledgement is timed.
    repeat_at: Micros,
    repeat_wait: Micros,
    /// The owner was away until then, or is far: the first acknowledgement of a frame that left later tells which.
    from: Option<Micros>,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            rtt: 0,
            var: 0,
            repeat_at: 0,
            repeat_wait: REPEAT_FIRST,
            from: None,
        }
    }
}

impl Timing {
    /// An acknowledgement took `sample` microseconds. `put_off`: the owner had accepted nothing.
    pub(super) fn hear(&mut self, now: Micros, sample: u32, put_off: bool) {
        let sample = Micros::from(sample).max(1);
        if sample > SAMPLE_MAX {
            return; // the clock is of an earlier turn, or not ours
        }
        let tells = self.from.map(|from| now.saturating_sub(sample) >= from);
        if tells == Some(false) {
            return;
        }
        let late = sample > self.patience();
        let away = tells.is_none() && late && (put_off || self.in_doubt());
        let off = self.rtt.abs_diff(sample);
        (self.rtt, self.var) = match self.rtt {
            // Later than the patience: the path has changed. Much sooner: its queue is gone.
            known if known == 0 || late || tells.is_some() => (sample, sample / 2),
            known if sample < known / 4 => ((known + sample) / 2, self.var / 2),
            known => ((known * 7 + sample) / 8, (self.var * 3 + off) / 4),
        };
        self.repeat_wait = self.patience();
        self.from = away.then_some(now);
        if away {
            self.repeat_wait = self.repeat_wait.min(BACK_OFF_MAX);
        }
    }

    /// How long an acknowledgement may take (RFC 6298).
    pub(super) fn patience(&self) -> Micros {
        if self.rtt == 0 {
            REPEAT_FIRST
        } else {
            (self.rtt + 4 * self.var).clamp(REPEAT_MIN, REPEAT_MAX)
        }
    }

    /// Whether the measured round trip may be outdated.
    pub(super) fn in_doubt(&self) -> bool {
        self.rtt == 0 || self.repeat_wait > self.patience()
    }

    /// The interval between repeats of the oldest messages.
    pub(super) fn wait(&self) -> Micros {
        self.repeat_wait
    }

    /// How long after it was sent a message counts as lost, once later ones have arrived.
    pub(super) fn lost_after(&self) -> Micros {
        match self.rtt {
            0 => self.repeat_wait,
            rtt => rtt + rtt / 4 + BEYOND_SLACK,
        }
    }

    /// No acknowledgement comes.
    pub(super) fn back_off(&mut self) {
        self.repeat_wait = (self.repeat_wait * 2).min(BACK_OFF_MAX.max(self.patience()));
    }

    /// Nothing is in flight anymore.
    pub(super) fn renew(&mut self) {
        self.repeat_wait = self.patience();
    }

    /// The oldest messages are repeated one interval after `from`.
    pub(super) fn repeat_from(&mut self, from: Micros) {
        self.repeat_at = from + self.repeat_wait;
    }

    /// When the oldest messages are repeated.
    pub(super) fn repeat_at(&self) -> Micros {
        self.repeat_at
    }
}
