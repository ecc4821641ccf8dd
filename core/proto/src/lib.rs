//! What happens to a packet: one state machine per role, all with the same few verbs.
//!
//! No I/O, no clock, no threads, no random source: `now`, `seed` and (apart, for keys) `entropy`
//! come in from outside, so a machine is a function of its inputs and a simulator can replay it.
#![forbid(unsafe_code)]

pub mod address;
pub mod chunks;
pub mod counters;
pub mod handshake;
pub mod hash;
pub mod limits;
pub mod log;
pub mod machine;
pub mod name;
pub mod order;
pub mod seal;
pub mod timer;
pub mod window;
