//! An open schedule of messages, and how far a run along it has come.

use muster_transport::Micros;

use crate::swarm::{self, Tally};
use crate::Outcome;

/// The times at which messages fall due: evenly, after a ramp over which the rate rises from 0.
pub(crate) struct Schedule {
    pub(crate) start: Micros,
    /// Messages a microsecond.
    rate: f64,
    ramp: f64,
    total: u64,
}

impl Schedule {
    /// `rate` in messages a second; the ramp is the first part of `duration`.
    pub(crate) fn new(rate: f64, ramp: Micros, duration: Micros) -> Self {
        let (rate, ramp) = (rate / 1e6, ramp.min(duration) as f64);
        Schedule {
            start: 0,
            rate,
            ramp,
            total: (rate * (duration as f64 - ramp / 2.0)) as u64,
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// When the message with this number falls due, from 0.
    pub(crate) fn at(&self, index: u64) -> Micros {
        let (index, risen) = (index as f64, self.rate * self.ramp / 2.0);
        let after = if index < risen {
            (2.0 * index * self.ramp / self.rate).sqrt()
        } else {
            self.ramp + (index - risen) / self.rate
        };
        self.start + after as Micros
    }
}

/// A run along a schedule.
pub struct Pacing {
    pub(crate) schedule: Schedule,
    pub(crate) body: Vec<u8>,
    /// A message without credit is counted instead of sent later.
    pub(crate) shed: bool,
    /// The next message, and the next whose lateness is noted.
    pub(crate) due: u64,
    pub(crate) looked: u64,
    pub(crate) late: Vec<u32>,
    pub(crate) outcome: Outcome,
}

impl Pacing {
    pub(crate) fn new(size: usize, schedule: Schedule, shed: bool, outcome: Outcome) -> Self {
        Pacing {
            schedule,
            body: swarm::body(size),
            shed,
            due: 0,
            looked: 0,
            late: Vec::new(),
            outcome,
        }
    }

    /// Whether all messages of the schedule were sent.
    pub fn is_over(&self) -> bool {
        self.due >= self.schedule.total
    }

    /// Ends the schedule here.
    pub fn stop(&mut self) {
        self.schedule.total = self.due;
    }
}

/// The state of a run. Counts are since its beginning, lists since the last look.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub published: u64,
    pub tally: Tally,
    /// Of each delivery, in microseconds from the time at which its message fell due.
    pub latencies: Vec<u32>,
    /// How late the generator itself looked at each message that fell due, in microseconds.
    pub late: Vec<u32>,
    /// Members that are in all their rooms now.
    pub joined: usize,
    /// Messages that members got by repair, since they joined.
    pub repaired: u64,
    /// Sessions lost since the generator began.
    pub sessions_lost: u64,
    /// All messages were sent.
    pub over: bool,
    /// All members have all of them, or were told which are lost.
    pub complete: bool,
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn messages_fall_due_evenly_without_a_ramp() {
        let schedule = Schedule::new(1_000.0, 0, 2_000_000);
        assert_eq!(schedule.total(), 2_000);
        assert_eq!(
            (schedule.at(0), schedule.at(1), schedule.at(1_999)),
            (0, 1_000, 1_999_000)
        );
    }

    #[test]
    fn a_ramp_sends_half_as_many_messages_and_ends_at_the_rate() {
        let schedule = Schedule::new(1_000.0, 1_000_000, 2_000_000);
        assert_eq!(schedule.total(), 1_500);
        assert_eq!(schedule.at(500), 1_000_000);
        assert_eq!(schedule.at(1_499), 1_999_000);
        let times: Vec<u64> = (0..1_500).map(|index| schedule.at(index)).collect();
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
