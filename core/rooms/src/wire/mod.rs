//! The wire parts of rooms: frames of messages and repairs, and records of joins, membership and commands.
//!
//! Owns these byte layouts (`docs/protocol.md` is their table, `tests/vectors/` their golden examples). Knows no role
//! and keeps no state: parsing gives borrowed views, writing appends to a [`Writer`](muster_transport::Writer).

pub mod kinds;
pub(crate) mod publish;
pub(crate) mod record;
pub(crate) mod room;
mod stream;

pub use publish::{published, Ack, Course, LinkPublish, Position, Positions, Publish, PROMPT};
pub use record::{Membership, Record};
pub use room::{
    heads, message_max, read_link_repair, read_repair, write_link_question, write_link_repair, write_repair,
    BlockWriter, Consumed, GapPlace, LeftOut, LinkBlock, LinkHead, LinkLost, Message, Passed, RelayedBlock,
    RelayedHead, RoomBlock, Skip, ENDED, FIRST, HEADERS, LAST, LINK_BLOCK, NUMBERED, OLD, WHOLE,
};
pub use stream::{GapReason, PublisherId, StreamGap, StreamId};
