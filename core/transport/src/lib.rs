//! The transport between nodes, and between a client and a node. It knows no system.
//!
//! Start from [`Machine`] (the verbs of every role), [`Links`] (connections among nodes), [`Sessions`] (connections
//! of clients), [`Conn`] (one sealed connection of either kind) and [`Placement`] (where each node is).
//!
//! No I/O, no clock, no threads, no random source: the caller passes in `now`, `seed` and (separately, for keys)
//! `entropy`. So a machine is a function of its inputs and a simulator can replay it.
#![forbid(unsafe_code)]

mod address;
mod allow;
mod codec;
mod config;
mod conn;
mod counters;
mod dice;
mod door;
#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
mod flow;
mod guest;
mod handshake;
mod hash;
mod health;
mod homes;
mod keys;
mod limits;
mod links;
mod log;
mod machine;
mod mail;
mod marks;
mod naming;
mod node;
mod parting;
mod past;
mod placement;
mod scope;
mod seal;
mod sessions;
mod setters;
mod table;
mod timer;
mod unread;
mod versions;
mod window;
mod wire;

pub use address::{Bucket, Buckets, Debt, Rate, Taken};
pub use allow::{AllowList, Demand, Listed};
pub use codec::{Reader, Writer, NUMBER_MAX};
pub use config::NodeConfig;
pub use conn::{Conn, Control, Heard, Reject, Stamp, Wants, SESSION_LOG_BYTES, TAIL_PROBES};
pub use dice::Dice;
pub use door::{reset_token, Door, DoorCounters, DoorKey, Knock, PREFIX_RATE};
pub use flow::charge;
pub use guest::{Guest, GuestSessions, Host, Lodge};
pub use handshake::{hello_proof, prologue, respond, same, ClusterKeys, InitiatorKey, ResetSecret, ResponderKey};
pub use hash::KeyedState;
pub use health::{Health, HealthCounters, Reading, Reason};
pub use homes::{Homes, Move};
pub use keys::ServerKey;
pub use limits::{MISSING_RANGES_MAX, NODES_MAX};
pub use links::{frames_max, LinkChange, Links, DEAD_AFTER, DIAL_MAX, LINK_SOCKET};
pub use log::{LogReceiver, LogSender, Records};
pub use machine::{
    soonest, Addr, Arrival, Entropy, Inbox, Machine, Micros, Outbox, SocketId, OUTBOX_BYTES, SLICE_DATAGRAMS,
};
pub use mail::{Filled, Mail};
pub use node::{Identity, Node};
pub use past::{Loss, Past};
pub use placement::{weight, Growth, Layer, NodeState, PlacedLayer, PlacedNode, Placement};
pub use scope::{Scope, PARTITIONS_MAX};
pub use seal::{Direction, KeyCache, KeySlots, Secret, TAG};
pub use sessions::{
    Admission, Answered, Denied, End, Gone, Question, Sessions, BACKOFF_DEFAULT, BACKOFF_FIRST, BACKOFF_MAX,
    EARLY_BYTES_MAX, EARLY_UNKNOWN_MAX, PUBLIC_SOCKET, SESSIONS_MAX, SESSION_BLOCKS, WAITING_BYTES_MAX,
};
pub use setters::{HasLinks, HasSessions};
pub use timer::Wheel;
pub use versions::{NoVersion, Versions};
pub use wire::frame::{append, Frame, FrameKind, FrameKinds, Frames, Status, FLAGS_AT, FRAME};
pub use wire::header::{DatagramKind, Header, HEADER, VERSION};
pub use wire::record::{Access, ControlRecord, Encode, Raw, SystemRecord, GUEST_KINDS, RECORD_MAX};
pub use wire::server::{Server, SERVERS_MAX};
pub use wire::{Code, Role};
