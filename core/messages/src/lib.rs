//! Delayed messages: when each is due, what may happen to it, and where it is kept until then.
//!
//! Owns: the wheel of the near window ([`wheel::Wheel`]) and the life of a message ([`schedule::Message`]). Must not
//! know: sockets, clocks, topics' settings, other systems.
#![forbid(unsafe_code)]

pub mod schedule;
pub mod wheel;
