//! The simulator of rooms: one process, virtual time, one seed.
//!
//! Plugs the five real role machines and the programs of their clients into `muster-simkit`, which supplies time,
//! network and faults. Ends all faults, and then applies the checks of `oracle`, `commands` and `rooms`.

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
