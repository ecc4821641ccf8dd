//! Replies and pushes, written once for both encodings.
//!
//! Owns: [`Replies`] and the parts of replies. The numbers and names of the fields stand here and nowhere else.

use std::borrow::Cow;

use serde::Deserialize;

use super::fields::{Encoding, Fields};
use super::json::is_json;
use crate::codes::{Failure, Unsubscribe};
use crate::limits::REASON_BYTES_MAX;

/// A place in a channel's stream.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(default)]
pub struct Position {
    pub offset: u64,
    pub epoch: String,
}

/// A client, as others see it. The `info` fields are JSON for JSON clients.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct ClientInfo<'a> {
    pub user: Cow<'a, str>,
    pub client: Cow<'a, str>,
    pub conn_info: &'a [u8],
    pub chan_info: &'a [u8],
}

impl ClientInfo<'_> {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.or_empty("user", "\"\"", |fields| fields.string(1, "user", &self.user));
        fields.or_empty("client", "\"\"", |fields| fields.string(2, "client", &self.client));
        fields.bytes(3, "conn_info", self.conn_info);
        fields.bytes(4, "chan_info", self.chan_info);
    }
}

/// One message of a channel. Offset 0: it has no position.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Publication<'a> {
    pub data: &'a [u8],
    pub info: Option<ClientInfo<'a>>,
    pub offset: u64,
    /// Names and values. For a JSON client, `encoding` is the protocol's own where the data is no JSON.
    pub tags: Vec<(&'a str, &'a str)>,
    /// The data is what makes the message out of the one before it.
    pub delta: bool,
    /// The client takes deltas: in JSON the data is a string, of JSON or of a delta.
    pub quoted: bool,
    /// Milliseconds since 1970; 0: unknown.
    pub time_ms: i64,
    pub epoch: &'a str,
}

/// The tag of data that is no JSON, for a JSON client.
const BASE64: (&str, &str) = ("encoding", "base64");

impl Publication<'_> {
    pub(crate) fn write(&self, fields: &mut Fields<'_>) {
        let quoted = self.quoted && fields.encoding() == Encoding::Json;
        let is_json = quoted || fields.encoding() == Encoding::Protobuf || is_json(self.data);
        match self.data.is_empty() && fields.encoding() == Encoding::Json {
            // A publication of a JSON client always has data.
            true => fields.checked_bytes(4, "data", b"null", true),
            false if quoted => fields.string(4, "data", &String::from_utf8_lossy(self.data)),
            false => fields.checked_bytes(4, "data", self.data, is_json),
        }
        if let Some(info) = &self.info {
            fields.object(5, "info", |fields| info.write(fields));
        }
        fields.unsigned(6, "offset", self.offset);
        let encoded = (!is_json && !self.data.is_empty()).then_some(BASE64);
        let own = |(name, _): &(&str, &str)| encoded.is_none() || *name != BASE64.0;
        fields.strings(7, "tags", self.tags.iter().copied().filter(own).chain(encoded));
        fields.boolean(8, "delta", self.delta);
        fields.signed(9, "time", self.time_ms);
        fields.string(14, "epoch", self.epoch);
    }
}

/// The answer to a connect command. `ping_s` 0: the server sends no pings.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct ConnectResult<'a> {
    pub client: &'a str,
    pub version: &'a str,
    pub expires: bool,
    pub ttl_s: u32,
    pub data: &'a [u8],
    /// Subscriptions that the server made.
    pub subs: &'a [(&'a str, SubscribeResult<'a>)],
    pub ping_s: u32,
    pub pong: bool,
    pub session: &'a str,
    pub node: &'a str,
    pub time_ms: i64,
}

impl ConnectResult<'_> {
    fn write(&self, fields: &mut Fields<'_>) {
        fields.string(1, "client", self.client);
        fields.string(2, "version", self.version);
        fields.boolean(3, "expires", self.expires);
        fields.unsigned(4, "ttl", self.ttl_s.into());
        fields.bytes(5, "data", self.data);
        let subs = self.subs.iter().map(|(channel, sub)| (*channel, sub));
        fields.map(6, "subs", subs, |sub, fields| {
            sub.write(fields, usize::MAX);
        });
        fields.unsigned(7, "ping", self.ping_s.into());
        fields.boolean(8, "pong", self.pong);
        fields.string(9, "session", self.session);
        fields.string(10, "node", self.node);
        fields.signed(11, "time", self.time_ms);
    }
}

/// The answer to a subscribe command.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct SubscribeResult<'a> {
    pub expires: bool,
    pub ttl_s: u32,
    pub recoverable: bool,
    pub epoch: &'a str,
    pub publications: &'a [Publication<'a>],
    /// All that came after the client's position is in `publications`, or behind the reply.
    pub recovered: bool,
    pub offset: u64,
    pub positioned: bool,
    pub data: &'a [u8],
    pub was_recovering: bool,
    pub delta: bool,
    /// Stands for the channel's name in pushes.
    pub id: i64,
}

impl SubscribeResult<'_> {
    /// Writes it with the publications that fit, and returns how many do.
    fn write(&self, fields: &mut Fields<'_>, bytes_max: usize) -> usize {
        fields.boolean(1, "expires", self.expires);
        fields.unsigned(2, "ttl", self.ttl_s.into());
        fields.boolean(3, "recoverable", self.recoverable);
        fields.string(6, "epoch", self.epoch);
        let written = fitting(self.publications, bytes_max);
        fields.list(7, "publications", &self.publications[..written], Publication::write);
        fields.boolean(8, "recovered", self.recovered);
        fields.unsigned(9, "offset", self.offset);
        fields.boolean(10, "positioned", self.positioned);
        fields.bytes(11, "data", self.data);
        fields.boolean(12, "was_recovering", self.was_recovering);
        fields.boolean(13, "delta", self.delta);
        fields.signed(14, "id", self.id);
        written
    }
}

/// How many of the first publications have at most this many bytes.
fn fitting(publications: &[Publication<'_>], bytes_max: usize) -> usize {
    let mut bytes = 0;
    let over = publications.iter().position(|one| {
        // In base64 data grows by a third; the rest of a publication has some 200 B.
        let tags: usize = one.tags.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
        bytes += one.data.len() * 4 / 3 + tags + 200;
        bytes > bytes_max
    });
    over.unwrap_or(publications.len())
}

/// The answer to a history command.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct HistoryResult<'a> {
    pub publications: &'a [Publication<'a>],
    pub epoch: &'a str,
    pub offset: u64,
}

/// The answer to a refresh or sub_refresh command. `ttl_s` 0: it does not expire.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RefreshResult {
    pub expires: bool,
    pub ttl_s: u32,
}

/// News for a client that it did not ask for.
#[derive(Clone, PartialEq, Debug)]
pub enum Push<'a> {
    Publication(&'a Publication<'a>),
    Join(&'a ClientInfo<'a>),
    Leave(&'a ClientInfo<'a>),
    Unsubscribe {
        code: Unsubscribe,
        reason: &'a str,
    },
    /// For the session, without a channel.
    Message {
        data: &'a [u8],
    },
    /// The server subscribed the session.
    Subscribe {
        recoverable: bool,
        epoch: &'a str,
        offset: u64,
        positioned: bool,
        data: &'a [u8],
    },
    Refresh(RefreshResult),
}

impl Push<'_> {
    fn write(&self, fields: &mut Fields<'_>) {
        match self {
            Push::Publication(publication) => fields.object(4, "pub", |fields| publication.write(fields)),
            Push::Join(info) => fields.object(5, "join", |fields| {
                fields.object(1, "info", |fields| info.write(fields));
            }),
            Push::Leave(info) => fields.object(6, "leave", |fields| {
                fields.object(1, "info", |fields| info.write(fields));
            }),
            Push::Unsubscribe { code, reason } => fields.object(7, "unsubscribe", |fields| {
                fields.unsigned(2, "code", code.0.into());
                fields.string(3, "reason", shortened(reason));
            }),
            Push::Message { data } => fields.object(8, "message", |fields| fields.bytes(1, "data", data)),
            Push::Subscribe {
                recoverable,
                epoch,
                offset,
                positioned,
                data,
            } => fields.object(9, "subscribe", |fields| {
                fields.boolean(1, "recoverable", *recoverable);
                fields.string(4, "epoch", epoch);
                fields.unsigned(5, "offset", *offset);
                fields.boolean(6, "positioned", *positioned);
                fields.bytes(7, "data", data);
            }),
            Push::Refresh(refresh) => fields.object(12, "refresh", |fields| {
                fields.boolean(1, "expires", refresh.expires);
                fields.unsigned(2, "ttl", refresh.ttl_s.into());
            }),
        }
    }
}

/// A reason cut to its bound, at a character.
pub(crate) fn shortened(reason: &str) -> &str {
    let end = (0..=REASON_BYTES_MAX.min(reason.len()))
        .rev()
        .find(|end| reason.is_char_boundary(*end));
    &reason[..end.unwrap_or(0)]
}

/// Messages for one client or for many, joined as one WebSocket frame carries them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replies {
    encoding: Encoding,
    bytes: Vec<u8>,
}

impl Replies {
    pub fn new(encoding: Encoding) -> Replies {
        Replies {
            encoding,
            bytes: Vec::new(),
        }
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Forgets the messages. A buffer that one large reply made is not kept.
    pub fn clear(&mut self) {
        match self.bytes.capacity() > KEPT_BYTES {
            true => self.bytes = Vec::new(),
            false => self.bytes.clear(),
        }
    }

    /// An empty message.
    pub fn ping(&mut self) {
        self.message(|_| {});
    }

    pub fn error(&mut self, id: u32, failure: Failure) {
        let (code, message, temporary) = failure.parts();
        self.reply(id, |fields| {
            fields.object(2, "error", |fields| {
                fields.unsigned(1, "code", code.into());
                fields.string(2, "message", message);
                fields.boolean(3, "temporary", temporary);
            });
        });
    }

    /// A push to a channel, or to the session if the name is empty. `id`, if not 0, stands for the name.
    pub fn push(&mut self, channel: &str, id: i64, push: &Push<'_>) {
        self.message(|fields| {
            fields.object(4, "push", |fields| {
                fields.signed(1, "id", id);
                if id == 0 {
                    fields.string(2, "channel", channel);
                }
                push.write(fields);
            });
        });
    }

    pub fn connect(&mut self, id: u32, result: &ConnectResult<'_>) {
        self.reply(id, |fields| fields.object(5, "connect", |fields| result.write(fields)));
    }

    /// Returns how many publications are in the reply.
    pub fn subscribe(&mut self, id: u32, result: &SubscribeResult<'_>, bytes_max: usize) -> usize {
        let mut written = 0;
        self.reply(id, |fields| {
            fields.object(6, "subscribe", |fields| written = result.write(fields, bytes_max));
        });
        written
    }

    pub fn unsubscribe(&mut self, id: u32) {
        self.reply(id, |fields| fields.object(7, "unsubscribe", |_| {}));
    }

    pub fn publish(&mut self, id: u32) {
        self.reply(id, |fields| fields.object(8, "publish", |_| {}));
    }

    /// Clients by their ids.
    pub fn presence<'a>(&mut self, id: u32, clients: impl IntoIterator<Item = (&'a str, ClientInfo<'a>)>) {
        self.reply(id, |fields| {
            fields.object(9, "presence", |fields| {
                fields.or_empty("presence", "{}", |fields| {
                    fields.map(1, "presence", clients, |info, fields| info.write(fields));
                });
            });
        });
    }

    pub fn presence_stats(&mut self, id: u32, clients: u32, users: u32) {
        self.reply(id, |fields| {
            fields.object(10, "presence_stats", |fields| {
                fields.or_empty("num_clients", "0", |fields| {
                    fields.unsigned(1, "num_clients", clients.into())
                });
                fields.or_empty("num_users", "0", |fields| fields.unsigned(2, "num_users", users.into()));
            });
        });
    }

    /// Returns how many publications are in the reply.
    pub fn history(&mut self, id: u32, result: &HistoryResult<'_>, bytes_max: usize) -> usize {
        let written = fitting(result.publications, bytes_max);
        self.reply(id, |fields| {
            fields.object(11, "history", |fields| {
                fields.or_empty("publications", "[]", |fields| {
                    fields.list(1, "publications", &result.publications[..written], Publication::write);
                });
                fields.or_empty("epoch", "\"\"", |fields| fields.string(2, "epoch", result.epoch));
                fields.or_empty("offset", "0", |fields| fields.unsigned(3, "offset", result.offset));
            });
        });
        written
    }

    pub fn rpc(&mut self, id: u32, data: &[u8]) {
        self.reply(id, |fields| {
            fields.object(13, "rpc", |fields| fields.bytes(1, "data", data))
        });
    }

    pub fn refresh(&mut self, id: u32, client: &str, version: &str, result: RefreshResult) {
        self.reply(id, |fields| {
            fields.object(14, "refresh", |fields| {
                fields.string(1, "client", client);
                fields.string(2, "version", version);
                fields.boolean(3, "expires", result.expires);
                fields.unsigned(4, "ttl", result.ttl_s.into());
            });
        });
    }

    pub fn sub_refresh(&mut self, id: u32, result: RefreshResult) {
        self.reply(id, |fields| {
            fields.object(15, "sub_refresh", |fields| {
                fields.boolean(1, "expires", result.expires);
                fields.unsigned(2, "ttl", result.ttl_s.into());
            });
        });
    }

    fn reply(&mut self, id: u32, write: impl FnOnce(&mut Fields<'_>)) {
        self.message(|fields| {
            fields.unsigned(1, "id", id.into());
            write(fields);
        });
    }

    fn message(&mut self, write: impl FnOnce(&mut Fields<'_>)) {
        Fields::message_into(&mut self.bytes, self.encoding, write);
    }
}

/// Capacity that an idle session keeps.
const KEPT_BYTES: usize = 64;
