//! Redis's protocol in front of the engine.
//!
//! A socket's bytes go into [`Front::feed`]; changes become records of a batch, which the owner makes durable and
//! then reports; replies come out in the order of each connection's commands. The reply to a change is the result of
//! applying its record. A query after a change of the same connection waits for it; other queries are answered at
//! once, from durable data. [`Clients`] connects it to byte streams.

mod clients;
mod commands;
mod front;
mod glob;
mod parser;
mod questions;
mod ranges;
mod reply;
mod scan;
mod session;
mod sets;
mod settings;
mod slots;

pub use clients::{Clients, Serving};
pub use front::{ConnectionId, Feeds, Front};
pub use settings::Settings;
pub use slots::{slot, Cluster, Node, SLOTS};
