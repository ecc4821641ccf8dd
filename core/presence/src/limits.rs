//! Bounds of presence and unicast, each with its arithmetic.
//!
//! Owns: numbers. Must not know: the machines that keep to them.

use muster_transport::Micros;

const SECOND: Micros = 1_000_000;
const KIB: usize = 1_024;

// ---- Frames ------------------------------------------------------------------------------------------------------

/// Longest frame with its header, in bytes: a datagram of 1,200 B has 1,156 for frames, the rest is for a status
/// beside it.
pub const FRAME_BYTES_MAX: usize = 1_100;
/// Maximum bytes of events in one packet: the longest header of a frame with events is 32 B, plus 4 for the frame's
/// own header. About 38 events.
pub const PACKET_EVENTS_BYTES_MAX: usize = 1_024;
/// Maximum number of ranges in one request: 32 * 12 B. Further gaps are requested next time.
pub const RANGES_MAX: usize = 32;
/// Longest name of a device, in bytes: a kind, a colon and a number of 64 bits in hex (6 + 1 + 16).
pub const DEVICE_BYTES_MAX: usize = 23;

// ---- Nodes ---------------------------------------------------------------------------------------------------------

/// How often a node announces its site and shard to its peers.
pub const HERE_EVERY: Micros = SECOND;

// ---- Access point ------------------------------------------------------------------------------------------------

/// Maximum number of devices of one user at one gateway: their outcomes fit into one unicast reply, 32 * 25 B.
/// Further devices are refused.
pub const DEVICES_MAX: usize = 32;
/// A device that a newer one of its user replaced is refused until it has not tried for so long.
pub const BARRED_FOR: Micros = 30 * SECOND;
/// Devices that a gateway refuses for that reason: 80 B each in two maps. One of more gives way to the newest.
pub const BARS_MAX: usize = 65_536;
/// Maximum number of writers that are sent a full state at once; others wait. The shards of one site share a
/// gateway's devices, so 64 writers of four sites keep each device four times: 100,000 devices take about 16 MB,
/// which leave within 2 s.
pub const FULLS_MAX: usize = 64;
/// A full state is dropped when its writer has it, or after this time without a request or a chunk to send.
pub const FULL_IDLE: Micros = 10 * SECOND;
/// How long a writer waits before it asks again when all slots for full states are taken. A state of 1,600 devices
/// leaves in 8 ms.
pub const FULL_WAIT_MS: u32 = 100;
/// Maximum bytes of full states that may leave in one turn: 60 datagrams.
pub const FULL_BURST_BYTES: u64 = 64 * KIB as u64;
/// Maximum bytes sent for one request for versions; the rest is requested again.
pub const ANSWER_BYTES_MAX: usize = 64 * KIB;
/// How often an idle gateway repeats its newest version.
pub const BEAT_EVERY: Micros = SECOND;

// ---- Writer --------------------------------------------------------------------------------------------------------

/// Maximum number of versions between the highest complete one and the highest seen: at 20 packets a second, 200 s. A
/// larger jump requires a resync (I-3).
pub const WINDOW: u64 = 4_096;
/// Maximum number of chunks of one full state for one shard: at 30 devices in each, 2 million devices. A larger count
/// is false.
pub const CHUNKS_MAX: u32 = 1 << 16;
/// Maximum bytes of packets that a writer keeps during a full state: 5 s of 50 full packets a second. Further packets
/// are requested later.
pub const HELD_BYTES_MAX: usize = 256 * KIB;
/// Longest time for which a gateway can put a writer off.
pub const WAIT_MS_MAX: u32 = 5_000;
/// Maximum number of gateways that a writer follows: as many as there may be nodes.
pub const SOURCES_MAX: usize = muster_transport::NODES_MAX;

// ---- Reader --------------------------------------------------------------------------------------------------------

/// Maximum number of users online in a reader's copy of one shard: 1 GiB at 64 B each. A shard with more is read in its
/// store.
pub const TABLE_USERS_MAX: usize = 16 << 20;
/// Maximum number of last-seen times in one bucket, as `systems/presence/scripts.py` has it (`SEEN_MAX`): with 8,192
/// buckets 2 million users of 12 B.
pub const TABLE_SEEN_MAX: usize = 256;
/// Seconds after the last change at which a bucket is forgotten (`SEEN_S` there): a week.
pub const TABLE_SEEN_S: u64 = 7 * 86_400;

// ---- Unicast -------------------------------------------------------------------------------------------------------

/// Maximum number of senders whose numbers a gateway remembers, each a proxy: 1,024 * (window of 8 KiB and a map).
pub const SENDERS_MAX: usize = 1_024;
/// Blocks of 64 numbers in a sender's window: at least the last 65,472 messages, 8 KiB.
pub const SENDER_BLOCKS: usize = 1_024;
/// Maximum number of messages of one sender that a gateway has yet to answer, or has answered recently: 3 s of 20,000
/// a second.
pub const SENDER_MESSAGES_MAX: usize = 65_536;
/// Total bytes of message bodies that a gateway holds back for order.
pub const REORDER_BYTES_MAX: usize = 1_024 * KIB;
/// Maximum bytes of a message's body: a frame of 1,100 B minus 4 of its header, 60 of its own fields, a device's name
/// and some spare.
pub const BODY_BYTES_MAX: usize = 1_000;
/// Maximum bytes of a message's data: its body has 16 more, and with 33 B of its record before it fits into a record of
/// 1,024.
pub const DATA_BYTES_MAX: usize = 960;
/// Maximum number of outcomes in one reply: 40 * 25 B, so that a record of 1,024 B holds them. If there are more
/// devices, the last outcome has no name and stands for the unnamed ones.
pub const OUTCOMES_MAX: usize = 40;
/// Maximum number of messages that wait for their outcome: of one session, and of all sessions of a proxy, the latter
/// with 1 KiB each.
pub const SESSION_SENDS_MAX: usize = 1_024;
pub const SENDS_MAX: usize = 65_536;
/// Maximum number of messages without a device that wait to be handed on, with 1 KiB each.
pub const UNDELIVERED_MAX: usize = 1_024;
/// Maximum number of pairs of a session and a user for which a proxy knows the previous message: 40 B each.
pub const ORDERS_MAX: usize = 131_072;
/// Maximum number of messages that a unicast service knows, including finished ones, with 1 KiB each.
pub const COURIER_MESSAGES_MAX: usize = 131_072;
/// Users whose gateways a unicast service remembers.
pub const ROUTES_MAX: usize = 65_536;
/// Maximum number of received messages that a client's program has not read, and maximum bytes of them.
pub const INBOX_MAX: usize = 1_024;
pub const INBOX_BYTES_MAX: usize = 1_024 * KIB;
/// Maximum number of messages that a client remembers by sender and number, so that none is read twice.
pub const KNOWN_MAX: usize = 4_096;
/// Longest lifetime of a message.
pub const EXPIRES_MS_MAX: u32 = 600_000;
/// A sender that is silent for this long, with no message left, is forgotten: longer than any message lives.
pub const SENDER_IDLE: Micros = 660 * SECOND;
