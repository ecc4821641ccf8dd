//! Slow and obvious models that the crate is compared with.

pub mod wheel;
