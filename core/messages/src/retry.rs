//! When a failed callback is retried.
//!
//! Owns: [`RetryTable`]. Must not know: messages, clocks, the source of randomness.

use crate::wheel::Millis;

/// Largest random extension of an interval, in thousandths, so that calls that failed together are not retried
/// together.
const JITTER_MAX: u32 = 1_000;

/// The longest interval: a week.
const INTERVAL_MAX: Millis = 7 * 24 * 3_600_000;

/// Maximum number of retries of one message.
const RETRIES_MAX: usize = 100;

/// Intervals between the attempts of a message: its topic's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryTable {
    intervals: Vec<Millis>,
    jitter: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetryError {
    #[error("{0} retries are too many (limit {RETRIES_MAX})")]
    Retries(usize),
    #[error("retry interval of {0} ms is too long (limit {INTERVAL_MAX} ms)")]
    Interval(Millis),
    #[error("jitter of {0} thousandths is too large (limit {JITTER_MAX})")]
    Jitter(u32),
}

impl RetryTable {
    /// Intervals in milliseconds, starting after the first attempt; jitter in thousandths of each.
    pub fn new(intervals: Vec<Millis>, jitter: u32) -> Result<RetryTable, RetryError> {
        if intervals.len() > RETRIES_MAX {
            return Err(RetryError::Retries(intervals.len()));
        }
        if let Some(interval) = intervals.iter().find(|interval| **interval > INTERVAL_MAX) {
            return Err(RetryError::Interval(*interval));
        }
        if jitter > JITTER_MAX {
            return Err(RetryError::Jitter(jitter));
        }
        Ok(RetryTable { intervals, jitter })
    }

    /// Total attempts of a message.
    pub fn attempts_max(&self) -> u16 {
        self.intervals.len() as u16 + 1
    }

    /// When to retry after `attempts` of them failed, the last one at `now`; `None`: never.
    ///
    /// Never before the interval, nor before the target's own `Retry-After`. `random` is any number.
    pub fn next(&self, attempts: u16, now: Millis, retry_after: Option<Millis>, random: u64) -> Option<Millis> {
        let interval = *self.intervals.get(usize::from(attempts.max(1)) - 1)?;
        // Below 2^30 ms * 1,000: no overflow.
        let longest = interval * Millis::from(self.jitter) / 1_000;
        let spread = random % (longest + 1);
        Some(now + (interval + spread).max(retry_after.unwrap_or(0).min(INTERVAL_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_retries_come_at_their_intervals_and_then_none() {
        let table = RetryTable::new(vec![1_000, 10_000, 60_000, 300_000, 3_000_000], 100).unwrap();
        assert_eq!(table.attempts_max(), 6);
        for (attempts, interval) in (1..).zip([1_000, 10_000, 60_000, 300_000, 3_000_000]) {
            for random in [0, 1, 99, 100, 101, 12_345, u64::MAX] {
                let next = table.next(attempts, 50, None, random).unwrap();
                assert!(
                    (50 + interval..=50 + interval + interval / 10).contains(&next),
                    "{attempts}: {next}"
                );
            }
        }
        assert_eq!(table.next(6, 50, None, 0), None);
    }

    #[test]
    fn target_may_ask_for_more_time_but_not_for_less_or_forever() {
        let table = RetryTable::new(vec![10_000], 0).unwrap();
        assert_eq!(table.next(1, 0, Some(500), 7), Some(10_000));
        assert_eq!(table.next(1, 0, Some(20_000), 7), Some(20_000));
        assert_eq!(table.next(1, 0, Some(Millis::MAX), 7), Some(INTERVAL_MAX));
        assert_eq!(table.next(2, 0, Some(1), 7), None);
    }

    #[test]
    fn absurd_tables_are_refused() {
        assert_eq!(RetryTable::new(vec![1; 101], 0), Err(RetryError::Retries(101)));
        assert_eq!(
            RetryTable::new(vec![INTERVAL_MAX + 1], 0),
            Err(RetryError::Interval(INTERVAL_MAX + 1))
        );
        assert_eq!(RetryTable::new(vec![1], 1_001), Err(RetryError::Jitter(1_001)));
        assert_eq!(RetryTable::new(vec![], 0).unwrap().next(1, 0, None, 0), None);
    }
}
