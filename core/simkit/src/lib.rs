//! A simulator for any system of machines: one thread, virtual time, one seed.
//!
//! A [`System`] supplies the nodes of its processes, its load and its checks. The kit supplies time and the network
//! with loss, bursts, duplicates, reordering, jitter, corruption, delays and cuts. It also supplies the faults of
//! processes: kill, pause, restart with the next epoch, clocks that step or drift, an unreachable control plane. A
//! run is a function of its seed, so a failing one is replayed by its number. Start with [`System`], [`Setup`] and
//! [`run`].
//!
//! Knows no role and no system.
#![forbid(unsafe_code)]

mod agenda;
mod clock;
mod draw;
mod fault;
mod flight;
mod net;
mod node;
mod process;
mod run;
mod seeds;
mod system;
mod world;

pub use muster_transport::{Addr, Arrival, Dice, Entropy, Inbox, Machine, Micros, Outbox, SocketId};

use muster_transport::charge;

pub use clock::Clock;
pub use draw::{clock, Draw, Seeded};
pub use fault::{partition, Fault};
pub use net::{Net, Weather};
pub use node::{Node, Turn, Turned};
pub use process::{Process, State};
pub use run::{run, Ran};
pub use seeds::{guarded, replay, same_twice, Seeds, Sweep};
pub use system::System;
pub use world::{Setup, World, EPOCH, TOLD_AGAIN};

pub const MS: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;
