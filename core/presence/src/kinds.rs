//! The kinds of frames that presence and unicast have.
//!
//! Owns the codes 24 to 37. Knows no layout.

use muster_transport::{FrameKind, FrameKinds};

/// A packet of events, gateway to online proxy.
pub const REPORT: FrameKind = FrameKind::new(24);
/// One shard's events of a packet, proxy or gateway to writer.
pub const SHARE: FrameKind = FrameKind::new(25);
/// Versions without events for a shard, proxy or gateway to writer.
pub const EMPTY: FrameKind = FrameKind::new(26);
/// A gateway's newest version, gateway to proxy to writer.
pub const BEAT: FrameKind = FrameKind::new(27);
/// Request for versions, writer to gateway.
pub const ASK: FrameKind = FrameKind::new(28);
/// Requested versions are gone, gateway to writer.
pub const TOO_OLD: FrameKind = FrameKind::new(29);
/// Request for the full state or for chunks of it, writer to gateway.
pub const FULL_ASK: FrameKind = FrameKind::new(30);
/// A piece of a full state, gateway to writer.
pub const CHUNK: FrameKind = FrameKind::new(31);
/// All slots for full states are taken, gateway to writer.
pub const WAIT: FrameKind = FrameKind::new(32);
/// Request to close an older session, writer to gateway.
pub const SUPERSEDE: FrameKind = FrameKind::new(33);
/// A message to a user, unicast service to gateway.
pub const UNICAST: FrameKind = FrameKind::new(34);
/// Its outcome, gateway to unicast service.
pub const UNICAST_ANSWER: FrameKind = FrameKind::new(35);
/// A node's site and shard, between any two nodes of presence.
pub const HERE: FrameKind = FrameKind::new(36);
/// Request to end a user's sessions, proxy to unicast service to gateway; the answer is that of a message.
pub const END: FrameKind = FrameKind::new(37);

/// Frames that fill paths: a status must cover them, so that their sender sees loss.
pub const ELICITING: [FrameKind; 4] = [REPORT, SHARE, CHUNK, UNICAST];
/// Frames that timers of presence request or repeat.
pub const SILENT: [FrameKind; 10] = [
    EMPTY,
    BEAT,
    ASK,
    TOO_OLD,
    FULL_ASK,
    WAIT,
    SUPERSEDE,
    UNICAST_ANSWER,
    HERE,
    END,
];

/// The frames that machines of presence understand.
pub const ALL: FrameKinds = FrameKinds::TRANSPORT.with(&ELICITING, false).with(&SILENT, true);
