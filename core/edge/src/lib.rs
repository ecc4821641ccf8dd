//! Sessions of browsers, phones and programs in any language: WebSocket and the Centrifuge client protocol.
//!
//! Start from [`Connection`] (bytes of one stream in, questions and bytes out), [`Session`] (the verbs that answer),
//! [`Ask`] (the questions) and [`Frame`] (publications built once for all receivers of one encoding).
//!
//! No I/O, no clock, no threads, no random source: `now` and dice come in from outside. It knows no room, no token's content
//! and no socket: its owner answers, and carries the bytes.
#![forbid(unsafe_code)]

mod ask;
mod codes;
mod connection;
mod counters;
mod fossil;
mod frame;
pub mod limits;
pub mod protocol;
mod session;
mod settings;
pub mod websocket;

pub use ask::{Ask, Join, Subscription, Ticket};
pub use codes::{Disconnect, Failure, Unsubscribe};
pub use connection::{Connection, Write};
pub use counters::Counters;
pub use frame::{held, Frame};
pub use session::{Admission, Session, Turn};
pub use settings::Settings;
