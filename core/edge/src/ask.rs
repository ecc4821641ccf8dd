//! What a session asks of its owner, and by what the owner answers.
//!
//! Owns: [`Ask`], [`Ticket`]. A session knows no room: it asks, and takes the answer to its client.

use bytes::Bytes;

use crate::protocol::{Position, WantedTags};

/// Names one question of a session. Answer each once, with the verb of its kind or with `fail`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// The id of the client's command.
    pub(crate) command: u32,
    pub(crate) subject: Subject,
}

/// What a question is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Subject {
    Connect,
    Refresh,
    Subscription(Subscription),
    SubRefresh(Subscription),
    Publish,
    Presence,
    PresenceStats,
    History,
    Rpc,
}

/// Names one subscription of a session, from its subscribe command to its end. A later one to the same channel has
/// another number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Subscription(pub u32);

/// A subscription that a client asks for.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Join {
    pub channel: String,
    /// A token for this channel; empty: the session's own rights hold.
    pub token: String,
    /// All that came after this is wanted.
    pub recover: Option<Position>,
    pub data: Bytes,
    /// Only messages with these tags are wanted; empty: all.
    pub tags: WantedTags,
    pub positioned: bool,
    pub recoverable: bool,
    pub join_leave: bool,
    /// The client understands fossil deltas.
    pub delta: bool,
    /// The client understands a number in place of the channel's name.
    pub compaction: bool,
    /// If not all that came after `recover` is there, the answer is the error 112.
    pub reject_unrecovered: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Judge this token; answer with `admit`, `fail` or `disconnect`.
    Authenticate {
        ticket: Ticket,
        token: String,
        data: Bytes,
        name: String,
        version: String,
        subs: Vec<(String, Position)>,
    },
    /// Judge this token of a session that goes on; answer with `renewed`, `fail` or `disconnect`.
    Renew { ticket: Ticket, token: String },
    /// Answer with `joined` or `fail`.
    Join {
        ticket: Ticket,
        subscription: Subscription,
        join: Box<Join>,
    },
    /// Judge this token of a subscription that goes on; answer with `sub_renewed` or `fail`.
    RenewJoin {
        ticket: Ticket,
        subscription: Subscription,
        channel: String,
        token: String,
    },
    /// The subscription is over: nothing of it is given to the session any more.
    Leave { subscription: Subscription },
    /// Answer with `published` or `fail`.
    Publish {
        ticket: Ticket,
        channel: String,
        data: Bytes,
    },
    /// Answer with `presence` or `fail`.
    Presence { ticket: Ticket, channel: String },
    /// Answer with `presence_stats` or `fail`.
    PresenceStats { ticket: Ticket, channel: String },
    /// Answer with `history` or `fail`. Limit 0: the position only; `None`: all there is.
    History {
        ticket: Ticket,
        channel: String,
        limit: Option<u32>,
        since: Option<Position>,
        reverse: bool,
    },
    /// Answer with `rpc` or `fail`.
    Rpc {
        ticket: Ticket,
        method: String,
        data: Bytes,
    },
    /// A message without an answer.
    Send { data: Bytes },
    /// All that was written before this many pings has reached the client: see `receipt`.
    Received { pings: u64 },
    /// Nothing has been heard since a ping that should have been answered by now. Answer with `silence`.
    Silent,
    /// The session is over, with this code; all of its subscriptions are.
    Ended { code: u16 },
}
