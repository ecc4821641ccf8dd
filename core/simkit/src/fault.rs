//! Faults of a process or a path, and those specific to a system.
//!
//! Owns the vocabulary of a plan of faults. `World::strike` applies them.

use crate::Micros;

/// `O`: the faults that only one system knows.
#[derive(Clone, Copy, Debug)]
pub enum Fault<O> {
    /// The process dies and starts again with the next epoch.
    Kill { process: usize, down: Micros },
    /// The process goes back to the beginning of its life: a machine that was set back to a snapshot.
    Return { process: usize, down: Micros },
    /// The process dies and never comes back.
    Remove { process: usize },
    /// The process stands still.
    Pause { process: usize, pause: Micros },
    /// Datagrams from one to the other are lost; the other direction stays open.
    Cut { from: usize, to: usize, pause: Micros },
    /// Datagrams from one to the other take this much longer.
    Delay {
        from: usize,
        to: usize,
        by: Micros,
        pause: Micros,
    },
    /// The process gets nothing from the control plane.
    Deaf { process: usize, pause: Micros },
    /// The process's clock is set forward or back.
    Step { process: usize, by: i64 },
    /// The process's clock gains this many microseconds a second, until faults end.
    Drift { process: usize, ppm: i64 },
    /// A fault specific to the system.
    Own(O),
}

/// Datagrams between the two sides are lost in both directions.
pub fn partition<O>(one: &[usize], other: &[usize], pause: Micros) -> Vec<Fault<O>> {
    let pairs = one.iter().flat_map(|from| other.iter().map(move |to| (*from, *to)));
    let both = pairs.flat_map(|(from, to)| [(from, to), (to, from)]);
    both.map(|(from, to)| Fault::Cut { from, to, pause }).collect()
}
