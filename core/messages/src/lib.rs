//! Delayed messages: when each is due, what may happen to it, and where it is stored until then.
//!
//! Start from [`keeper::Keeper`], a thread with the durable schedule; [`store::Store`], the schedule itself;
//! [`schedule::Message`], the life of a message; and [`wheel::Wheel`], deadlines of 1 ms. [`wire`] and [`ledger`]:
//! fires and results in large batches. [`dispatch`], [`retry`] and [`clock`] hold the policies. Only the keeper reads
//! a clock. Must not know: network sockets, callbacks, settings of topics, other systems.
#![forbid(unsafe_code)]

pub mod clock;
pub mod dispatch;
pub mod keeper;
pub mod ledger;
pub mod number;
pub mod retry;
pub mod schedule;
pub mod store;
pub mod stored;
pub mod wheel;
pub mod wire;
