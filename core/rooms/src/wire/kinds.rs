//! The kinds of frames that rooms have.
//!
//! Owns the codes 8 to 24, and 38 to 42. Knows no layout.

use muster_transport::{FrameKind, FrameKinds};

/// A room's messages, gateway to member (`room`).
pub const ROOM: FrameKind = FrameKind::new(8);
/// One place in a room's sequence that holds a gap, gateway to member.
pub const GAP: FrameKind = FrameKind::new(9);
/// The member's cursor moved, gateway to member.
pub const SKIP: FrameKind = FrameKind::new(10);
/// Heads of rooms, gateway to member.
pub const HEADS: FrameKind = FrameKind::new(11);
/// Request for places, member to gateway.
pub const REPAIR: FrameKind = FrameKind::new(12);
/// A room's messages, broker to gateway.
pub const LINK_ROOM: FrameKind = FrameKind::new(13);
/// Heads of rooms, broker to gateway.
pub const LINK_HEADS: FrameKind = FrameKind::new(14);
/// Request for offsets, gateway to broker.
pub const LINK_REPAIR: FrameKind = FrameKind::new(15);
/// Offsets that the owner no longer has, broker to gateway.
pub const LINK_LOST: FrameKind = FrameKind::new(16);
/// The gateway's progress, gateway to broker.
pub const CONSUMED: FrameKind = FrameKind::new(17);
/// Messages to publish, client to proxy (`publish`).
pub const PUBLISH: FrameKind = FrameKind::new(18);
/// Messages to publish, proxy to broker.
pub const LINK_PUBLISH: FrameKind = FrameKind::new(19);
/// Acknowledgement of publishing, broker to proxy.
pub const LINK_ACK: FrameKind = FrameKind::new(20);
/// Acknowledgement of publishing, proxy to client.
pub const ACK: FrameKind = FrameKind::new(21);
/// A link publish frame that carries the age of its messages.
pub const AGED_PUBLISH: FrameKind = FrameKind::new(22);
/// A link room frame that carries the age of its messages.
pub const AGED_ROOM: FrameKind = FrameKind::new(23);
/// A room frame that carries the age of its messages, gateway to a member that asked for ages.
pub const AGED_MEMBER_ROOM: FrameKind = FrameKind::new(24);

/// Places of a room whose messages a member's filter passes, gateway to member.
pub const PASSED: FrameKind = FrameKind::new(38);

/// Places of a room of which a member wants the newest message alone, gateway to member.
pub const LEFT_OUT: FrameKind = FrameKind::new(39);

/// A room's messages, passed on by a gateway to another one (`room`).
pub const RELAYED_ROOM: FrameKind = FrameKind::new(40);
/// The same with the age of its messages.
pub const AGED_RELAYED_ROOM: FrameKind = FrameKind::new(41);
/// Heads of rooms, of a gateway that passes them on.
pub const RELAYED_HEADS: FrameKind = FrameKind::new(42);

const ELICITING: [FrameKind; 19] = [
    ROOM,
    GAP,
    SKIP,
    HEADS,
    LINK_ROOM,
    LINK_HEADS,
    LINK_LOST,
    PUBLISH,
    LINK_PUBLISH,
    LINK_ACK,
    ACK,
    AGED_PUBLISH,
    AGED_ROOM,
    AGED_MEMBER_ROOM,
    PASSED,
    LEFT_OUT,
    RELAYED_ROOM,
    AGED_RELAYED_ROOM,
    RELAYED_HEADS,
];
const SILENT: [FrameKind; 3] = [REPAIR, LINK_REPAIR, CONSUMED];

/// The frames that the machines of rooms understand. Repair requests and progress are silent: timers of their own
/// repeat them.
pub const ALL: FrameKinds = FrameKinds::TRANSPORT.with(&ELICITING, false).with(&SILENT, true);
