//! Every bound of the room plane in one place, each with its unit in the name and its reason beside it.
//!
//! Owns: numbers. Must not know: who uses them. A bound that an operator may set is a default here; what is fixed by
//! the wire (and so may differ between two versions only with the protocol's number) says so.

use crate::machine::Micros;

const MS: Micros = 1_000;
const SECOND: Micros = 1_000_000;
const KIB: usize = 1_024;
const MIB: usize = 1_024 * KIB;

// ---- Datagrams and messages -------------------------------------------------------------------------------------

/// UDP payload of a datagram. IPv6 guarantees 1,280 on every path; less 40 (IPv6) and 8 (UDP) leaves 1,232, less 32
/// for one level of tunnelling leaves 1,200, which is also QUIC's minimum. A link may be set higher.
pub const DATAGRAM_BYTES: usize = 1_200;
/// The clear header of a datagram, at most (fixed by the wire).
pub const HEADER_BYTES_MAX: usize = 28;
/// The authentication tag of AES-128-GCM (fixed by the wire).
pub const TAG_BYTES: usize = 16;
/// Frames that fit into one datagram: 1,200 - 28 - 16.
pub const FRAMES_BYTES_MAX: usize = DATAGRAM_BYTES - HEADER_BYTES_MAX - TAG_BYTES;
/// What a message costs in a room block beside its bytes: length, publisher handle, sequence delta. Five messages of
/// 200 B are 5 * 208 = 1,040 of 1,156 bytes, which leaves 116 for the block itself.
pub const MESSAGE_OVERHEAD_BYTES_MAX: usize = 8;
/// The largest message, in chunks: 64 KiB are 60 chunks of [`CHUNK_BYTES`], about what one slice sends ([`SLICE_DATAGRAMS`]).
///
/// [`SLICE_DATAGRAMS`]: crate::machine::SLICE_DATAGRAMS
pub const MESSAGE_BYTES_MAX: usize = 64 * KIB;
/// Payload of one chunk. 1,156 less 8 (message) and less 40 for frame and block headers (room handle, stream, first
/// offset) or for a publish frame's, rounded down: a chunk fits alone in a datagram in either direction.
pub const CHUNK_BYTES: usize = 1_100;
/// Unfinished messages of one session: four of the largest at a time.
pub const ASSEMBLY_SESSION_BYTES_MAX: usize = 256 * KIB;
/// Unfinished messages of a whole process: 256 sessions that use all of theirs.
pub const ASSEMBLY_PROCESS_BYTES_MAX: usize = 64 * MIB;
/// An unfinished message older than this is given up; equal to [`MESSAGE_AGE_MAX`], later its rest is a gap anyway.
pub const ASSEMBLY_AGE_MAX: Micros = 5 * SECOND;

// ---- Windows, keys, sessions ------------------------------------------------------------------------------------

/// Blocks of 64 numbers in a link's replay window: 8,192 numbers are 20 ms at 400,000 datagrams a second, more
/// than a data centre reorders. 1 KiB each.
pub const LINK_WINDOW_BLOCKS: usize = 128;
/// The same of a client session: 1,024 numbers, 128 B, so that 100,000 sessions cost 12.8 MB.
pub const SESSION_WINDOW_BLOCKS: usize = 16;
/// Datagrams sealed with one key, as a power of two: the key generation is sequence >> 24. 2^24 stays below the
/// 2^24.5 of RFC 9001 for AES-128-GCM (fixed by the wire).
pub const KEY_GENERATION_BITS: u32 = 24;
/// Silence after which a client sends to keep its NAT binding: RFC 4787 allows no less than two minutes, but common
/// routers forget after 30 s, and half of that leaves one loss free.
pub const KEEPALIVE: Micros = 15 * SECOND;
/// The same in a local trial, where one wants to see a dead peer soon.
pub const KEEPALIVE_LOCAL: Micros = SECOND;
/// A session that sent nothing for this long is gone: three keepalives lost, and a bit.
pub const SESSION_IDLE_MAX: Micros = 50 * SECOND;

// ---- Handshakes and strangers -----------------------------------------------------------------------------------

/// Handshakes that one turn answers. At 110-180 µs of public-key work each, a turn is delayed by less than 0.75 ms.
pub const HANDSHAKES_PER_TURN_MAX: usize = 4;
/// Handshakes begun and not finished: 4,096 of 256 B are 1 MiB.
pub const HALF_OPEN_MAX: usize = 4_096;
/// How long an unfinished handshake is kept: three tries of a client at 1 s, and the path.
pub const HALF_OPEN_AGE_MAX: Micros = 5 * SECOND;
/// Questions to the authenticator that wait for an answer; more clients hear that they should try later.
pub const AUTH_PENDING_MAX: usize = 256;
/// Unauthenticated bytes never draw more than this many times themselves, over all answers to an address (RFC 9000).
pub const AMPLIFICATION_MAX: usize = 3;
/// Resets sent in a second to sessions that are unknown here: a restarted gateway tells 100,000 clients within
/// 100 s even if none tries twice, and a flood of garbage draws no flood.
pub const RESETS_PER_SECOND: u32 = 1_000;
/// Between two path checks of one session: an address that flaps costs one challenge a second.
pub const PATH_CHECK_INTERVAL: Micros = SECOND;
/// Bytes of a path challenge: guessing it takes 2^64 tries (fixed by the wire).
pub const PATH_CHALLENGE_BYTES: usize = 8;

// ---- Flow and congestion ----------------------------------------------------------------------------------------

/// A status goes out after this many datagrams ...
pub const STATUS_EVERY_DATAGRAMS: u32 = 32;
/// ... or after this time, whichever is first, and only while something is unacknowledged.
pub const STATUS_INTERVAL: Micros = 50 * MS;
/// Missing ranges in a status or an acknowledgement: 4 * 16 B. A fifth is repaired once the first is.
pub const MISSING_RANGES_MAX: usize = 4;
/// How far below the highest number a status looks for them: eight times [`STATUS_EVERY_DATAGRAMS`], so that every
/// loss is named in several statuses.
pub const STATUS_SPAN: u64 = 256;
/// Congestion window at the start, in datagrams (RFC 6928, RFC 9002).
pub const CWND_INITIAL_DATAGRAMS: u32 = 10;
/// The congestion window never falls below this, else a lost status could stop a sender (RFC 9002).
pub const CWND_MIN_DATAGRAMS: u32 = 2;
/// What remains of the congestion window after a congested round trip, in percent (CUBIC's factor, RFC 9438).
pub const CWND_DECREASE_PERCENT: u32 = 70;
/// A round trip that lost more than this is congested, in percent; single losses of a radio link are not.
pub const CWND_LOSS_PERCENT: u32 = 5;
/// So is one whose smoothed time exceeds the minimum by this, in percent: queues are filling.
pub const CWND_RTT_RISE_PERCENT: u32 = 50;
/// Tail probes: when a sender repeats its highest number to a receiver whose status does not cover it, counted from
/// the last sending. Each time is three times the one before: a near receiver is asked soon, a far one not too often.
pub const TAIL_PROBES: [Micros; 3] = [20 * MS, 60 * MS, 180 * MS];
/// A retransmission timeout before any round trip was measured (RFC 8085 says 1 s for a path nothing is known of; the
/// handshake has measured one before anything is sent, so this is seldom used).
pub const RTO_INITIAL: Micros = SECOND;
/// Below this a retransmission would race the peer's batched acknowledgement ([`ACK_DELAY_MAX`]) on a fast path.
pub const RTO_MIN: Micros = 30 * MS;

// ---- Control records --------------------------------------------------------------------------------------------

/// The longest record: 1,156 of frames less 12 (log body and record length) leaves 1,144; the rest is for frame headers.
pub const LOG_RECORD_BYTES_MAX: usize = 1_100;
/// Records sent and not acknowledged, in bytes: 29 datagrams, so a join storm does not flood a path by itself.
pub const LOG_FLIGHT_BYTES_MAX: usize = 32 * KIB;
/// The same in records; each look for what is due goes over them (24 B each, 24 KiB).
pub const LOG_FLIGHT_RECORDS_MAX: usize = 1_024;
/// Records that came out of order, held by the receiver: twice what is in flight, as each also counts its own cost.
pub const LOG_HELD_BYTES_MAX: usize = 64 * KIB;
/// Repeats of a record are never further apart, so a healed path is found within a second.
pub const LOG_BACKOFF_MAX: Micros = SECOND;
/// How long an acknowledgement of control records may wait for company.
pub const ACK_DELAY_MAX: Micros = 20 * MS;

// ---- Sessions and rooms -----------------------------------------------------------------------------------------

/// Rooms that one session may be in: 256 cursors of 16 B are 4 KiB.
pub const ROOMS_PER_SESSION_MAX: usize = 256;
/// Joins of one session in a second. A client in all 256 rooms is back within 51 s after a restart; its first burst
/// is [`JOIN_BURST`].
pub const JOINS_PER_SECOND: u32 = 5;
/// Joins that a fresh session may make at once: those that ride on the credential's datagram.
pub const JOIN_BURST: u32 = 20;
/// Control frames of one session in a second: four for each join, and keepalives.
pub const CONTROL_FRAMES_PER_SECOND: u32 = 20;
/// Rooms that one publisher may bring into being by publishing, in a second: a room costs memory, a name nothing.
pub const ROOM_CREATIONS_PER_SECOND: u32 = 10;
/// A room's name with its namespace, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 200;
/// A namespace, in bytes of `a-z`, `0-9`, `_`, `-`.
pub const NAMESPACE_BYTES_MAX: usize = 32;
/// A room within its namespace, in bytes: 32 + 1 + 160 stays below [`NAME_BYTES_MAX`].
pub const ROOM_BYTES_MAX: usize = 160;
/// A room's last leave is told upwards after this: who reloads a page is back before it.
pub const LEAVE_HOLD: Micros = 2 * SECOND;

// ---- Publishing -------------------------------------------------------------------------------------------------

/// Messages that one publisher may have unacknowledged in one room: 256 at a round trip of 10 ms are 25,600 a second.
pub const CREDIT_MESSAGES: u64 = 256;
/// The same in bytes: four of the largest messages, or 256 of 1 KiB.
pub const CREDIT_BYTES: usize = 256 * KIB;
/// The broker withholds credit for a lagging gateway no longer than this, then that gateway gets a gap: the time
/// after which a role counts as stalled ([`STALL`]).
pub const CREDIT_WITHHELD_MAX: Micros = 500 * MS;
/// A gateway lags when its acknowledged offset is this part of the ring behind; the other half covers what is on
/// its way while credit is withheld.
pub const CREDIT_LAG_RING_DIVISOR: usize = 2;
/// Messages held for one publisher and room because an earlier one is missing: a quarter of the credit; what
/// arrives beyond is repeated by the publisher.
pub const HELD_MESSAGES_MAX: usize = 64;
/// The same in bytes: one message of the largest size, or 64 of 1 KiB.
pub const HELD_BYTES_MAX: usize = 64 * KIB;
/// Applied messages whose offsets are remembered to answer repeats: the credit, since nothing older can be repeated
/// by a publisher that keeps to it.
pub const REMEMBERED_MESSAGES: usize = 256;
/// A publisher that sent nothing to a room for this long is forgotten; it starts again at its lowest unacknowledged.
pub const PUBLISHER_IDLE: Micros = 60 * SECOND;
/// A publisher's acknowledgement may wait this long for company, when nobody waits for it: at 1,000 messages a second one
/// acknowledgement covers five.
pub const PUBLISH_ACK_DELAY_MAX: Micros = 5 * MS;
/// Or until this many messages wait for it: an eighth of the credit, so that the publisher's pipe never runs dry.
pub const PUBLISH_ACK_MESSAGES: u32 = 32;
/// The same in bytes.
pub const PUBLISH_ACK_BYTES: usize = 32 * KIB;

// ---- Rings, repair, age -----------------------------------------------------------------------------------------

/// The arena of all rings in a process: 256 MiB are 2 s (the alarm, [`RING_AGE_ALARM`]) at 128 MiB a second.
pub const RING_ARENA_BYTES: usize = 256 * MIB;
/// One room holds at most this part of the arena, so that eight loud rooms cannot starve the rest further than this.
pub const RING_ROOM_DIVISOR: usize = 8;
/// An oldest byte younger than this raises the alarm: ten repairs of [`REPAIR_WAIT_MAX`] still fit.
pub const RING_AGE_ALARM: Micros = 2 * SECOND;
/// What an idle room costs, in bytes: 1,000,000 rooms are 96 MB.
pub const ROOM_IDLE_BYTES_MAX: usize = 96;
/// A gateway waits this long for a repair, then sends a gap: the last of [`TAIL_PROBES`] and a round trip of 20 ms.
pub const REPAIR_WAIT_MAX: Micros = 200 * MS;
/// Bytes resent to a requester, as a part of what was sent to it ...
pub const RESEND_SHARE_DIVISOR: u64 = 4;
/// ... and this many a second besides, so that one who was sent little can still be repaired: one largest message.
pub const RESEND_BYTES_PER_SECOND: u64 = 64 * 1_024;
/// Positions in a set: a member that saw four owners of a room within its ring's age has other worries.
pub const POSITIONS_MAX: usize = 4;
/// What is older becomes a gap: a real-time message that late is better not delivered.
pub const MESSAGE_AGE_MAX: Micros = 5 * SECOND;
/// A loop that stood still for longer discards the datagrams queued meanwhile and repairs from positions: the
/// kernel's buffer is overrun long before, so the queue holds the oldest part of what came, not the newest.
pub const STALL: Micros = 500 * MS;

const _: () = assert!(NAMESPACE_BYTES_MAX + 1 + ROOM_BYTES_MAX <= NAME_BYTES_MAX);
const _: () = assert!(CHUNK_BYTES + MESSAGE_OVERHEAD_BYTES_MAX + 40 <= FRAMES_BYTES_MAX);
const _: () = assert!(LOG_RECORD_BYTES_MAX + 12 + 8 <= FRAMES_BYTES_MAX);
const _: () = assert!(ASSEMBLY_SESSION_BYTES_MAX >= MESSAGE_BYTES_MAX && HELD_BYTES_MAX >= CHUNK_BYTES);
const _: () = assert!(RTO_MIN > ACK_DELAY_MAX);
