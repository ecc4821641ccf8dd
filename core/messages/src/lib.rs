//! Delayed messages: when each is due, what may happen to it, and where it is kept until then.
//!
//! Start from [`store::Store`], the embedded durable schedule; [`schedule::Message`], the life of a message; and
//! [`wheel::Wheel`], deadlines of 1 ms. [`dispatch`] and [`retry`] hold the policies. Must not know: sockets, clocks,
//! settings of topics, other systems.
#![forbid(unsafe_code)]

pub mod dispatch;
pub mod retry;
pub mod schedule;
pub mod store;
pub mod wheel;
