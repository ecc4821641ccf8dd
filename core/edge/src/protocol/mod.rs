//! The Centrifuge client protocol, version 2, in its two encodings.
//!
//! Owns: the field table ([`fields`] writes it, [`json`] and [`protobuf`] read it), commands and replies. Must not know:
//! WebSocket, sessions, rooms.

mod command;
mod fields;
mod json;
mod message;
mod protobuf;
mod reply;
mod tags;

pub use command::{Command, Connect, History, Malformed, Request, SubRefresh, Subscribe};
pub use fields::{Encoding, Fields};
pub use json::{as_json, is_json};
pub use message::{commands, Commands};
pub(crate) use reply::shortened;
pub use reply::{
    ClientInfo, ConnectResult, HistoryResult, Position, Publication, Push, RefreshResult, Replies, SubscribeResult,
};
pub use tags::{wanted_tags, Unfit, WantedTags};
