//! Slow and obvious models that the crate is compared with.
#![allow(dead_code)] // Each test uses one of them.

pub mod schedule;
pub mod store;
pub mod wheel;
