//! Times the timing wheel of delayed messages at a given number of entries.
//!
//! Owns the measured operations and their CPU time. Must not know: the schedule around a wheel.

use std::hint::black_box;

use muster_messages::wheel::{Millis, Wheel};
use muster_udp::thread_cpu_now;

const START: Millis = 1_780_000_000_000;
const HOUR: Millis = 3_600_000;
/// Due times are spread over a week that begins in an hour.
const SPREAD: Millis = 7 * 24 * HOUR;
/// Idle ticks: less than the hour.
const TICKS: Millis = 1_000_000;
/// One entry in this many is cancelled, twice.
const CANCELLED: usize = 10;
/// Maximum number of entries that one call may fire.
const BUDGET: usize = 4_096;

/// CPU nanoseconds per call, and bytes per entry.
#[derive(Clone, Copy, Debug)]
pub struct WheelTimes {
    pub insert_ns: f64,
    /// In the order of the inserts, as for calls that are answered in turn.
    pub cancel_ns: f64,
    /// In random order: the entry and its neighbours are not in the caches.
    pub cancel_any_ns: f64,
    /// A tick of 1 ms with nothing due.
    pub tick_ns: f64,
    pub entry_bytes: f64,
}

impl WheelTimes {
    /// Times a wheel of `entries`, at least 100.
    pub fn measure(entries: usize) -> WheelTimes {
        assert!(entries >= 100, "too few to time");
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = move |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let dues: Vec<Millis> = (0..entries).map(|_| START + HOUR + draw(SPREAD)).collect();
        let mut wheel = Wheel::new(START);
        let mut tokens = Vec::with_capacity(entries);
        let insert_ns = each(entries, || {
            for (due, key) in dues.iter().zip(0..) {
                tokens.push(wheel.insert(*due, key));
            }
        });
        let entry_bytes = wheel.memory() as f64 / entries as f64;
        let mut fired = Vec::new();
        let tick_ns = each(TICKS as usize, || {
            for now in START..START + TICKS {
                black_box(wheel.advance(now, BUDGET, &mut fired));
            }
        });
        assert!(fired.is_empty(), "nothing is due yet");
        let count = entries / CANCELLED;
        let in_order: Vec<_> = tokens.drain(..count).collect();
        let cancel_ns = each(count, || {
            for token in in_order {
                black_box(wheel.cancel(token));
            }
        });
        for index in (1..tokens.len()).rev() {
            tokens.swap(index, draw(index as u64 + 1) as usize);
        }
        let cancel_any_ns = each(count, || {
            for token in tokens.drain(..count) {
                black_box(wheel.cancel(token));
            }
        });
        assert_eq!(wheel.len(), entries - 2 * count, "each cancel took one entry");
        WheelTimes {
            insert_ns,
            cancel_ns,
            cancel_any_ns,
            tick_ns,
            entry_bytes,
        }
    }
}

fn each(count: usize, work: impl FnOnce()) -> f64 {
    let begin = thread_cpu_now();
    work();
    (thread_cpu_now() - begin) as f64 / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_wheel_has_all_figures() {
        let times = WheelTimes::measure(10_000);
        assert!(times.insert_ns > 0.0 && times.cancel_ns > 0.0 && times.cancel_any_ns > 0.0);
        assert!(times.tick_ns > 0.0 && times.entry_bytes >= 32.0);
    }
}
