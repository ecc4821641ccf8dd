//! The machines of rooms, on top of `muster-transport`.
//!
//! Start from the machines, which share a few verbs ([`muster_transport::Machine`]): a message goes from a [`Client`]
//! to a [`Proxy`], then to the [`Broker`] that owns its room, and from there through a [`Gateway`] to every member; a
//! [`Router`] informs brokers of the interest of gateways. Their bytes are in [`wire`], their bounds in [`limits`].
//!
//! No I/O, no clock, no threads, no random source: the caller passes in `now`, `seed` and (separately, for keys)
//! `entropy`. So a machine is a function of its inputs and a simulator can replay it.
#![forbid(unsafe_code)]

mod accounts;
mod admission;
mod age;
mod arena;
mod asking;
mod broker;
mod changes;
mod chunks;
mod client;
pub mod command;
mod dispatch;
pub mod filter;
#[cfg(test)]
mod fixtures;
mod gateway;
pub mod headers;
mod interest;
mod layers;
pub mod limits;
mod missing;
mod name;
mod order;
mod owners;
mod principal;
mod proxy;
mod queue;
mod rights;
mod ring;
pub mod role;
mod router;
mod segments;
mod settings;
mod shards;
mod shares;
mod slots;
mod untold;
pub mod wire;

pub use accounts::Bounds;
pub use age::{Ages, BOUNDS as AGE_BOUNDS};
pub use arena::Retention;
pub use broker::room::Room as OwnedRoom;
pub use broker::users::USER_HELD_MAX;
pub use broker::{Broker, BrokerConfig, BrokerCounters, DETOUR_IDLE, USER_PUBLICATIONS_MAX};
pub use client::member::{Item, Policy};
pub use client::publication::PublishError;
pub use client::{Client, ClientConfig, ClientEvent, CommandError, Endpoint, Side, SILENCE_MAX, SPREAD};
#[cfg(feature = "edge")]
pub use gateway::edge::{
    DeviceOutcome, Edge, EdgeConfig, EdgeCounters, EdgeEvent, EdgeRefusal, EdgeSessions, Letters, Recipient, Sent,
};
pub use gateway::room::{Room as GatewayRoom, BACKFILL_WAIT, FIRST_PLACE, HOLE_WAIT};
pub use gateway::{Gateway, GatewayConfig, GatewayCounters, GatewayEvent, ANSWER_WAIT, SESSION_ROOMS};
pub use interest::{Change, Interest};
pub use layers::{room_placement, RoomLayers};
pub use missing::{LOST_WAIT, MISSING_WAIT};
pub use name::{RoomKey, RoomName};
pub use owners::{DETOUR_AFTER, SPEAKS_WITHIN};
pub use proxy::{Proxy, ProxyConfig, ProxyCounters, ProxyEvent};
pub use rights::{Admitted, Grant, PatternError, Rights};
pub use router::{Router, RouterConfig, SETTLE};
#[cfg(feature = "edge")]
pub use settings::EdgeSettings;
pub use settings::{BrokerSettings, DoorSettings, GatewaySettings, ProxySettings, RoomsSettings, RouterSettings};
