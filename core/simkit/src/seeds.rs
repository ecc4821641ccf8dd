//! Runs many seeds one after the other; reports the failing ones, and the line that replays one.
//!
//! Owns the options that choose seeds, the progress, and the report of a failing seed. Knows no plan.

use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Instant;

/// One seed in this many runs twice.
const TWICE_EVERY: u64 = 50;

/// The options that choose seeds: `--seed N [--verbose] | --seeds A..B [--keep-going]`.
#[derive(Clone, Debug, Default)]
pub struct Seeds {
    pub range: Range<u64>,
    pub verbose: bool,
    pub keep_going: bool,
}

impl Seeds {
    /// Takes an argument with its value, if it is one of these. `None`: its value is missing or invalid.
    pub fn take(&mut self, argument: &str, rest: &mut impl Iterator<Item = String>) -> Option<bool> {
        match argument {
            "--seed" => {
                let seed: u64 = rest.next()?.parse().ok()?;
                self.range = seed..seed.checked_add(1)?;
            }
            "--seeds" => {
                let range = rest.next()?;
                let (first, last) = range.split_once("..")?;
                self.range = first.parse().ok()?..last.parse().ok()?;
            }
            "--verbose" => self.verbose = true,
            "--keep-going" => self.keep_going = true,
            _ => return Some(false),
        }
        Some(true)
    }

    pub fn count(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }
}

/// Returns a run's result, or its panic as a failure.
pub fn guarded<R: Default>(run: impl FnOnce() -> (R, Result<(), String>)) -> (R, Result<(), String>) {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        (R::default(), Err(format!("panic: {}", text.unwrap_or_default())))
    })
}

/// Runs some seeds twice: the same seed must give the same run. `again` is the second run.
pub fn same_twice<R: PartialEq>(seed: u64, alone: bool, first: &R, again: impl FnOnce() -> R) -> Result<(), String> {
    if (seed % TWICE_EVERY == 0 || alone) && again() != *first {
        return Err("a second run of the same seed differed".into());
    }
    Ok(())
}

/// The line that replays a seed. `options`: the system's own, which chose its plan, each after a space.
pub fn replay(package: &str, options: &str, seed: u64) -> String {
    format!("cargo run -p {package} --release --{options} --seed {seed} --verbose")
}

/// The progress of a number of runs.
pub struct Sweep {
    package: &'static str,
    what: &'static str,
    start: Instant,
    total: u64,
    pub done: u64,
    pub failed: u64,
}

impl Sweep {
    /// `what`: the plural noun for the counted runs.
    pub fn new(package: &'static str, what: &'static str, total: u64) -> Self {
        Sweep {
            package,
            what,
            start: Instant::now(),
            total,
            done: 0,
            failed: 0,
        }
    }

    /// Counts a run, and prints the reason of a failure with its replay line. `name`: the plan of the seed, or empty.
    pub fn note(&mut self, name: &str, options: &str, seed: u64, result: &Result<(), String>) {
        self.done += 1;
        if let Err(why) = result {
            self.failed += 1;
            println!(
                "{name}seed {seed} fails: {why}\n    {}",
                replay(self.package, options, seed)
            );
        }
        if std::io::stderr().is_terminal() {
            let rate = self.done as f64 / self.seconds();
            eprint!("\r{} of {} {}, {rate:.1} a second ", self.done, self.total, self.what);
            let _ = std::io::stderr().flush();
        }
    }

    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(arguments: &[&str]) -> Option<Seeds> {
        let mut seeds = Seeds::default();
        let mut rest = arguments.iter().map(|argument| argument.to_string());
        while let Some(argument) = rest.next() {
            seeds.take(&argument, &mut rest)?.then_some(())?;
        }
        Some(seeds)
    }

    #[test]
    fn seeds_are_chosen_by_number_or_range() {
        let one = taken(&["--seed", "7", "--verbose"]).expect("good options");
        assert_eq!((one.range, one.verbose, one.keep_going), (7..8, true, false));
        let many = taken(&["--seeds", "3..5", "--keep-going"]).expect("good options");
        assert_eq!((many.count(), many.keep_going), (2, true));
        for wrong in [&["--seeds", "3"][..], &["--seed"], &["--seed", "x"], &["--other"]] {
            assert!(taken(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_panic_is_reported_as_a_failure_with_its_text() {
        let (_, result) = guarded::<u8>(|| panic!("at seed {}", 3));
        assert_eq!(result, Err("panic: at seed 3".into()));
        assert_eq!(guarded(|| (5, Ok(()))), (5, Ok(())));
    }

    #[test]
    fn a_seed_whose_second_run_differs_is_found() {
        assert!(same_twice(100, false, &1, || 2).is_err());
        assert!(same_twice(101, true, &1, || 2).is_err());
        assert_eq!(same_twice(101, false, &1, || 2), Ok(()));
        assert_eq!(same_twice(100, false, &1, || 1), Ok(()));
    }
}
