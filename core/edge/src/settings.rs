//! Settings that all sessions of a process share.
//!
//! Owns: [`Settings`] with its defaults.

use muster_transport::{Micros, Rate};

use crate::limits::{COMMANDS_A_SECOND, COMMANDS_BURST, PING_EVERY, PONG_WITHIN};
use crate::websocket::Origins;

#[derive(Clone, Debug)]
pub struct Settings {
    /// The path of upgrades.
    pub path: String,
    pub origins: Origins,
    /// New clients are refused, and told to come again after this many seconds.
    pub busy: Option<u32>,
    pub ping_every: Micros,
    pub pong_within: Micros,
    /// Commands of one session.
    pub commands: Rate,
    /// The server's version and node, as clients are told.
    pub version: String,
    pub node: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            path: "/connection/websocket".to_owned(),
            origins: Origins::default(),
            busy: None,
            ping_every: PING_EVERY,
            pong_within: PONG_WITHIN,
            commands: Rate {
                a_second: COMMANDS_A_SECOND,
                burst: COMMANDS_BURST,
            },
            version: String::new(),
            node: String::new(),
        }
    }
}
