//! The kinds of processes, and the faults of a process or a path.
//!
//! Owns these words alone. Knows no plan.

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

/// A fault of a process or a path. The machines use a clock that is never set, so no plan steps it.
pub type Fault = muster_simkit::Fault<Upkeep>;

/// An operator's action on servers.
#[derive(Clone, Copy, Debug)]
pub enum Upkeep {
    /// The placement says that the process drains, and after a while that it runs again; all hear of it within
    /// `spread`.
    Drain {
        process: usize,
        pause: Micros,
        spread: Micros,
    },
    /// The process is told to end and sends its clients to others; it starts again this long after its end.
    End { process: usize, down: Micros },
}
