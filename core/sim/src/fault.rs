//! The kinds of processes, and the faults of a process or a path.
//!
//! Owns only these types. Knows no plan.

use muster_transport::Micros;

/// The kind of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Gateway,
    Proxy,
    Broker,
    Router,
    Client,
}

/// A fault of a process or a path. The machines' clock is monotonic and never set, so no plan steps it.
pub type Fault = muster_simkit::Fault<Upkeep>;

/// An operator's action on servers.
#[derive(Clone, Copy, Debug)]
pub enum Upkeep {
    /// The placement marks the process as draining, and after a while as running again; all nodes learn of it within
    /// `spread`.
    Drain {
        process: usize,
        pause: Micros,
        spread: Micros,
    },
    /// The process must end: it sends its clients to others, and starts again this long after its end.
    End { process: usize, down: Micros },
}
