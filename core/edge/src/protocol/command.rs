//! The commands of a client, borrowed from the message that carries them.
//!
//! Owns: their types. The numbers of the fields stand in `protobuf`, their names are those of these structs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::json::raw;

/// Why a message is refused: the client does not speak the protocol, so its session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// One command. `id` 0: no reply is expected.
#[derive(Clone, PartialEq, Debug)]
pub struct Command<'a> {
    pub id: u32,
    pub request: Request<'a>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Request<'a> {
    /// An empty command: the answer to a ping.
    Pong,
    Connect(Box<Connect<'a>>),
    Subscribe(Box<Subscribe<'a>>),
    Unsubscribe {
        channel: Cow<'a, str>,
    },
    /// `keyed`: to a map, which Muster has not.
    Publish {
        channel: Cow<'a, str>,
        data: Option<&'a [u8]>,
        keyed: bool,
    },
    Presence {
        channel: Cow<'a, str>,
    },
    PresenceStats {
        channel: Cow<'a, str>,
    },
    History(History<'a>),
    /// An old command of clients, which every server refuses today.
    Ping,
    Send {
        data: Option<&'a [u8]>,
    },
    Rpc {
        method: Cow<'a, str>,
        data: Option<&'a [u8]>,
    },
    Refresh {
        token: Cow<'a, str>,
    },
    SubRefresh(SubRefresh<'a>),
}

#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
#[serde(default)]
pub struct Connect<'a> {
    #[serde(borrow)]
    pub token: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "raw")]
    pub data: Option<&'a [u8]>,
    #[serde(borrow)]
    pub subs: BTreeMap<String, Subscribe<'a>>,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub version: Cow<'a, str>,
    pub flag: i64,
}

#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
#[serde(default)]
pub struct Subscribe<'a> {
    #[serde(borrow)]
    pub channel: Cow<'a, str>,
    #[serde(borrow)]
    pub token: Cow<'a, str>,
    pub recover: bool,
    #[serde(borrow)]
    pub epoch: Cow<'a, str>,
    pub offset: u64,
    #[serde(borrow, deserialize_with = "raw")]
    pub data: Option<&'a [u8]>,
    pub positioned: bool,
    pub recoverable: bool,
    pub join_leave: bool,
    #[serde(borrow)]
    pub delta: Cow<'a, str>,
    /// A filter by tags, in the encoding of the command.
    #[serde(borrow, rename = "tf", deserialize_with = "raw")]
    pub filter: Option<&'a [u8]>,
    pub flag: i64,
    /// 0: a stream. Maps and shared polls have others.
    #[serde(rename = "type")]
    pub kind: i32,
}

#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
#[serde(default)]
pub struct History<'a> {
    #[serde(borrow)]
    pub channel: Cow<'a, str>,
    /// 0: the position only; below 0: all there is.
    pub limit: i32,
    pub since: Option<super::Position>,
    pub reverse: bool,
}

#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
#[serde(default)]
pub struct SubRefresh<'a> {
    #[serde(borrow)]
    pub channel: Cow<'a, str>,
    #[serde(borrow)]
    pub token: Cow<'a, str>,
    /// 0: a token. Shared polls have others.
    #[serde(rename = "type")]
    pub kind: i32,
}
