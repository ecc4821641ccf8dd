//! The simulator: one process, virtual time, one seed.
//!
//! Runs the five real role machines and the programs of their clients over a network with loss, bursts, duplicates,
//! reordering, jitter, corruption and one-way cuts, kills, restarts and pauses processes, heals everything, and then demands
//! what `oracle` and `world` say. A run is a function of its seed: a failing one is replayed by its number.

pub mod agenda;
pub mod beside;
pub mod commands;
pub mod identities;
pub mod matrix;
pub mod net;
pub mod oracle;
pub mod plan;
pub mod process;
pub mod world;

pub use plan::Plan;
pub use world::{Summary, World};

/// Runs one seed of the plans that `draw` makes.
pub fn run(seed: u64, draw: impl Fn(u64) -> Plan, verbose: bool) -> (Summary, Result<(), String>) {
    let world = std::panic::AssertUnwindSafe(|| World::new(seed, draw(seed), verbose).run());
    std::panic::catch_unwind(world).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        (Summary::default(), Err(format!("panic: {}", text.unwrap_or_default())))
    })
}
