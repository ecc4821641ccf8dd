//! Presence and unicast: which device of which user is at which gateway, correct at every site, and messages to a
//! user's devices.
//!
//! - [`AccessPoint`] is the part in a gateway: sessions that come and go become packets of events, numbered per life
//!   of the gateway.
//! - [`Splitter`] is an online proxy's turn: a packet in, a frame for every writer of every site out.
//! - [`Writer`] keeps one shard's view and makes batches for its store; [`Record`] is a user's entry in the store.
//! - [`Table`] is a reader's copy of one shard's store.
//! - [`Deliveries`] is in a gateway too: messages of unicast services to the devices there.
//! - [`Message`] is any of their frames.
//! - [`Station`] puts both into a gateway of another system, and [`Sending`] puts unicast into its proxy; [`Letters`]
//!   is unicast in a client.
//! - [`Post`] is a node that has links and runs one [`Task`] on their frames: [`Keeping`] is a writer's,
//!   [`Splitting`] an online proxy's, [`Courier`] a unicast service's.
//! - [`Claims`] is a credential's content for both, and [`Recipients`] the users to whom its client may send.
//!
//! No I/O, no clock, no threads, no random source: `now` is passed in.
#![forbid(unsafe_code)]

mod access;
mod alarms;
mod apart;
mod assembly;
mod bars;
mod batch;
mod bucket;
mod contest;
mod courier;
mod device;
mod event;
mod few;
mod fulls;
mod keeping;
pub mod kinds;
mod letters;
mod limits;
mod map;
mod pack;
mod parse;
mod peers;
mod places;
mod policy;
mod post;
mod quick;
mod recipients;
mod records;
mod ring;
pub mod role;
mod sending;
mod settings;
mod split;
mod splitting;
mod station;
mod table;
mod tracker;
mod two_doors;
mod undelivered;
mod unicast;
mod version;
mod wire;
mod writer;

pub use access::{AccessCounters, AccessPoint, AccessSettings, Closing, To, TooManyDevices};
pub use apart::Apart;
pub use batch::{Applied, Batch, UserChange};
pub use bucket::{bucket, Record, StoredDevice};
pub use courier::{Courier, CourierCounters, Whereabouts};
pub use device::Device;
pub use event::{Entry, Event, Reason, State};
pub use keeping::{Keeping, KeepingCounters, Work};
pub use letters::{told_to_device, Letters, Reading, Received, SendError, Told};
pub use limits::{
    BARRED_FOR, BODY_BYTES_MAX, CHUNKS_MAX, DATA_BYTES_MAX, DEVICES_MAX, DEVICE_BYTES_MAX, FRAME_BYTES_MAX, RANGES_MAX,
    SESSION_SENDS_MAX, TABLE_SEEN_MAX, TABLE_SEEN_S, TABLE_USERS_MAX, UNDELIVERED_MAX, WINDOW,
};
pub use map::{ShardMap, Target};
pub use pack::{pack, Answers, Lookup, Packed, Part};
pub use parse::page;
pub use places::{Change, ChangeId, Key, SYNTHETIC};
pub use policy::{Policies, Policy};
pub use post::{MailCounters, Post, PostConfig, PostEvent, Task};
pub use recipients::{Claims, RecipientError, Recipients};
pub use records::{Letter, Outcomes, Receipt, Record as GuestRecord};
pub use sending::Sending;
pub use settings::{GuestSettings, PresenceSettings};
pub use split::{Framed, Splitter};
pub use splitting::{Splitting, SplittingCounters};
pub use station::{Station, StationSettings, Unnamed, Wall};
pub use table::{Table, TableError};
pub use tracker::{Gap, Gaps, Took};
pub use two_doors::TwoDoors;
pub use undelivered::{undelivered, Undelivered};
pub use unicast::{Deliveries, DeliveryCounters, DeliverySettings, Push};
pub use version::after;
pub use wire::{
    Ask, Beat, Chunk, Empty, Entries, Events, FullAsk, Here, Message, MessageId, Origin, Outcome, Ranges, Report,
    Shard, Share, Supersede, TooOld, Unicast, UnicastAnswer, Wait,
};
pub use writer::{
    Due, FullNeeded, Refusal, SourceView, Standing, Verdict, Why, Writer, WriterCounters, WriterSettings,
};
