//! The simulator of rooms: one process, virtual time, one seed.
//!
//! Plugs the five real role machines and the programs of their clients into `muster-simkit`: its time, network and faults are
//! theirs. Heals everything, and then demands what `oracle`, `commands` and `rooms` say.

mod commands;
mod fault;
pub mod identities;
pub mod matrix;
mod oracle;
pub mod plan;
mod rooms;
mod second;

pub use plan::Plan;
pub use rooms::{play, run, Accounts, Summary};
