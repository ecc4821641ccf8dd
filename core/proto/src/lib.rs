//! What happens to a packet: one state machine per role, all with the same few verbs.
//!
//! No I/O, no clock, no threads, no random source: `now`, `seed` and (apart, for keys) `entropy`
//! come in from outside, so a machine is a function of its inputs and a simulator can replay it.
#![forbid(unsafe_code)]

pub mod address;
pub mod age;
pub mod allow;
pub mod asking;
pub mod broker;
pub mod chunks;
pub mod client;
pub mod codec;
pub mod command;
pub mod conn;
pub mod counters;
pub mod door;
#[cfg(test)]
mod fixtures;
pub mod flow;
pub mod gateway;
pub mod handshake;
pub mod hash;
pub mod health;
pub mod homes;
pub mod interest;
pub mod kept;
pub mod limits;
pub mod links;
pub mod log;
pub mod machine;
pub mod missing;
pub mod name;
pub mod naming;
pub mod node;
pub mod order;
pub mod owners;
pub mod parting;
pub mod past;
pub mod placement;
pub mod planted;
pub mod proxy;
pub mod queue;
pub mod ring;
pub mod router;
pub mod scope;
pub mod seal;
pub mod segments;
pub mod sessions;
pub mod shards;
pub mod shares;
pub mod table;
pub mod timer;
pub mod unread;
pub mod untold;
pub mod window;
pub mod wire;
