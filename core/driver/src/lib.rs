//! Joins a role machine to its sockets, one bounded turn at a time.
//!
//! Owns: the turn, its budget, unsent datagrams, the inner epoll's wake-ups, injected faults. Must not know: any role,
//! frame or key, or the meaning of an errno.
#![forbid(unsafe_code)]

mod budget;
mod driver;
mod faults;
mod linger;

pub use budget::{Budget, AGE_MAX_US, BEAT_US, CLOSE_US, DISCARDED_MAX, RETRY_US, ROUND_US, SLICE_MIN, STALL_US};
pub use driver::{Driver, DriverCounters, Turn};
pub use faults::{Direction, FaultCounters, Faults, Rule, RuleError, HELD_MAX};
pub use linger::{Linger, LINGER_WAIT};
