//! Bounds of presence and unicast, each with its arithmetic.
//!
//! Owns: numbers. Must not know: the machines that keep to them.

use muster_transport::Micros;

const SECOND: Micros = 1_000_000;
const KIB: usize = 1_024;

// ---- Frames ------------------------------------------------------------------------------------------------------

/// Bytes of the longest frame with its header: a datagram of 1,200 B has 1,156 for frames, the rest is for a status beside it.
pub const FRAME_BYTES_MAX: usize = 1_100;
/// Bytes of events in one packet: the longest header of a frame that carries events is 32 B, 4 more head the frame. About 38 events.
pub const PACKET_EVENTS_BYTES_MAX: usize = 1_024;
/// Ranges in one ask: 32 * 12 B. More gaps are asked for by the next ask.
pub const RANGES_MAX: usize = 32;
/// Bytes of a device's name: a kind, a colon and a number of 64 bits in hex (6 + 1 + 16).
pub const DEVICE_BYTES_MAX: usize = 23;

// ---- Nodes ---------------------------------------------------------------------------------------------------------

/// A node tells its peers so often where it works.
pub const HERE_EVERY: Micros = SECOND;

// ---- Access point ------------------------------------------------------------------------------------------------

/// Devices of one user at one gateway: their outcomes fit one answer of unicast, 32 * 25 B. A user with more is refused at the door.
pub const DEVICES_MAX: usize = 32;
/// A device that a newer one of its user replaced is refused until it has not tried for so long.
pub const BARRED_FOR: Micros = 30 * SECOND;
/// Devices that a gateway refuses for that reason: 80 B each in two maps. One of more gives way to the newest.
pub const BARS_MAX: usize = 65_536;
/// Writers whose full state is on its way at once; others wait. The shards of one site share a gateway's devices, so 64 writers of four
/// sites keep each device four times: 100,000 devices take about 16 MB, which leave within 2 s.
pub const FULLS_MAX: usize = 64;
/// A full state is dropped when its writer has it, or after so long without an ask or a chunk to send.
pub const FULL_IDLE: Micros = 10 * SECOND;
/// How long a writer waits before it asks again, where all full states are taken. One of 1,600 devices leaves in 8 ms.
pub const FULL_WAIT_MS: u32 = 100;
/// Bytes of full states that may leave in one turn: 60 datagrams.
pub const FULL_BURST_BYTES: u64 = 64 * KIB as u64;
/// Bytes of answers to one ask for versions; the rest is asked for again.
pub const ANSWER_BYTES_MAX: usize = 64 * KIB;
/// An idle gateway repeats its newest version so often.
pub const BEAT_EVERY: Micros = SECOND;

// ---- Writer --------------------------------------------------------------------------------------------------------

/// Versions between the highest complete one and the highest seen: at 20 packets a second, 200 s. A larger jump is a resync (I-3).
pub const WINDOW: u64 = 4_096;
/// Chunks of one full state for one shard: at 30 devices in each, 2 million devices. A larger count is a lie.
pub const CHUNKS_MAX: u32 = 1 << 16;
/// Bytes of packets that a writer keeps while a full state comes: 5 s of 50 full packets a second. Packets beyond are asked for later.
pub const HELD_BYTES_MAX: usize = 256 * KIB;
/// A gateway puts a writer off for no longer.
pub const WAIT_MS_MAX: u32 = 5_000;
/// Gateways that a writer follows: as many as there may be nodes.
pub const SOURCES_MAX: usize = muster_transport::NODES_MAX;

// ---- Unicast -------------------------------------------------------------------------------------------------------

/// Senders whose numbers a gateway remembers, each a proxy: 1,024 * (window of 8 KiB and a map).
pub const SENDERS_MAX: usize = 1_024;
/// Blocks of 64 numbers in a sender's window: at least 65,472 messages back, 8 KiB.
pub const SENDER_BLOCKS: usize = 1_024;
/// Messages of one sender that a gateway still has to answer for, or has answered of late: 3 s of 20,000 a second.
pub const SENDER_MESSAGES_MAX: usize = 65_536;
/// Bytes of message bodies that a gateway holds back for order, in all.
pub const REORDER_BYTES_MAX: usize = 1_024 * KIB;
/// Bytes of one message: a frame of 1,100 B less 4 of its header, 60 of its own, a device's name and the rest spare.
pub const BODY_BYTES_MAX: usize = 1_000;
/// Bytes of a message's data: its body has 16 more, and with 33 B of its record before it fits a record of 1,024.
pub const DATA_BYTES_MAX: usize = 960;
/// Outcomes of an answer: 40 * 25 B, so that a record of 1,024 B holds them. Where there are more devices, the last one has no name and
/// stands for those that are not named.
pub const OUTCOMES_MAX: usize = 40;
/// Messages of one session, and of all sessions of a proxy, that wait for their outcome: the second with 1 KiB each.
pub const SESSION_SENDS_MAX: usize = 1_024;
pub const SENDS_MAX: usize = 65_536;
/// Pairs of a session and a user for which a proxy knows the message before: 40 B each.
pub const ORDERS_MAX: usize = 131_072;
/// Messages that a unicast service knows, done ones included, with 1 KiB each.
pub const COURIER_MESSAGES_MAX: usize = 131_072;
/// Users whose gateways a unicast service remembers.
pub const ROUTES_MAX: usize = 65_536;
/// Messages that a client has and its program has not read: their number and their bytes.
pub const INBOX_MAX: usize = 1_024;
pub const INBOX_BYTES_MAX: usize = 1_024 * KIB;
/// Messages that a client knows by sender and number, so that none is read twice.
pub const KNOWN_MAX: usize = 4_096;
/// The longest time that a message may live.
pub const EXPIRES_MS_MAX: u32 = 600_000;
/// A sender that is silent for so long, with no message left, is forgotten: longer than any message lives.
pub const SENDER_IDLE: Micros = 660 * SECOND;
