//! Bounds that several parts of rooms share, or that a part's users must know, each with its reason.
//!
//! Owns: numbers. Must not know: the parts that use them. A bound of one part alone is defined there.

use muster_transport::Micros;

const MS: Micros = 1_000;
const SECOND: Micros = 1_000_000;
const KIB: usize = 1_024;
const MIB: usize = 1_024 * KIB;

// ---- Datagrams and messages -------------------------------------------------------------------------------------

/// The largest message, in chunks: 64 KiB are 61 of [`chunk_max`] bytes, about the content of one slice
/// ([`SLICE_DATAGRAMS`]).
///
/// [`chunk_max`]: crate::client::chunk_max
/// [`SLICE_DATAGRAMS`]: muster_transport::SLICE_DATAGRAMS
pub const MESSAGE_BYTES_MAX: usize = 64 * KIB;
/// Maximum bytes of unfinished messages of one session: four of the largest messages.
pub const ASSEMBLY_SESSION_BYTES_MAX: usize = 256 * KIB;
/// Maximum bytes of unfinished messages of a whole process: 256 sessions at their limit.
pub const ASSEMBLY_PROCESS_BYTES_MAX: usize = 64 * MIB;
/// An unfinished message older than this is given up. Equal to [`MESSAGE_AGE_MAX`]: its rest would be a gap anyway.
pub const ASSEMBLY_AGE_MAX: Micros = 5 * SECOND;

/// A member that holds more messages of a room than this behind a hole is crowded: it announces the window below to
/// its gateway, and gets only the missing messages of the room. It has space for four times as many, since the
/// announcement takes time.
pub const CROWDED_MESSAGES: usize = 4_096;
pub const CROWDED_BYTES: usize = MIB;
/// 13 full datagrams.
pub const CROWDED_WINDOW: u32 = 32 * KIB as u32;

// ---- Sessions and rooms -----------------------------------------------------------------------------------------

/// Maximum number of rooms that a role knows at once: some 5.2 GiB at a gateway, 1.2 GiB at a broker (1.3 and 0.3 KiB
/// each), and as many as a link's log can report.
pub const ROOMS_MAX: usize = 4 << 20;
/// Maximum bytes of control records that a link may have unacknowledged: a snapshot of [`ROOMS_MAX`] rooms, and
/// changes meanwhile.
pub const LINK_LOG_BYTES: usize = log_bytes(ROOMS_MAX);

/// The same for a snapshot of this many rooms: 66 B each, and a sixteenth for changes meanwhile.
pub const fn log_bytes(rooms: usize) -> usize {
    rooms * (66 + 5)
}

/// Maximum number of memberships that a router holds, over all gateways, unless configured otherwise: 16 M x 64 B are
/// 1 GiB.
pub const MEMBERSHIPS_MAX: usize = 16 << 20;
/// A gateway that is away for this long counts as having no members.
pub const GATEWAY_LEASE: Micros = 30 * SECOND;
/// Longest room name including its namespace, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 200;
/// Longest namespace, in bytes of `a-z`, `0-9`, `_`, `-`.
pub const NAMESPACE_BYTES_MAX: usize = 32;
/// Longest room name within its namespace, in bytes: 32 + 1 + 160 stays below [`NAME_BYTES_MAX`].
pub const ROOM_BYTES_MAX: usize = 160;

/// Maximum number of sessions of one user at one gateway or proxy, unless configured otherwise: more than a person's
/// devices or a backend's processes need. A gateway of a million sessions has space for 16,384 such users.
pub const USER_SESSIONS_MAX: u32 = 64;
/// Maximum number of memberships of one user at one gateway, over all its sessions, unless configured otherwise: four
/// sessions at their limit, some 1.3 MiB of rooms that nobody else is in.
pub const USER_PLACES_MAX: u32 = 1_024;
/// Maximum number of messages, and bytes of publish frames, that a proxy takes from one user per second, unless
/// configured otherwise. 16 MiB are an eighth of 1 Gbit/s and a sixteenth of a broker's default arena.
pub const USER_MESSAGES_A_SECOND: u32 = 100_000;
pub const USER_BYTES_A_SECOND: u32 = 16 << 20;

// ---- Publishing -------------------------------------------------------------------------------------------------

/// Maximum number of rooms that one session may have open for publishing: 10 KiB of entries at its proxy.
pub const SESSION_PUBLICATIONS_MAX: usize = 256;
/// Maximum number of messages of one publisher in flight to a room's owner: 256 at a round trip of 10 ms are 25,600 a
/// second.
pub const CREDIT_MESSAGES: u64 = 256;
/// The same in bytes: four of the largest messages, or 256 of 1 KiB.
pub const CREDIT_BYTES: usize = 256 * KIB;
/// Maximum number of messages held for one publisher and room because an earlier one is missing. They no longer count
/// as in flight, so the credit grows by them: while a hole is repaired, in one to three round trips, publishing
/// continues at full rate.
pub const HELD_MESSAGES_MAX: usize = 768;
/// The same in bytes: twelve messages of the largest size, or 768 of 1 KiB.
pub const HELD_BYTES_MAX: usize = 768 * KIB;
/// Messages that one publisher may have unacknowledged in one room.
pub const UNACKED_MESSAGES_MAX: u64 = CREDIT_MESSAGES + HELD_MESSAGES_MAX as u64;
/// Number of applied messages whose offsets are remembered to answer repeats: a publisher within its credit cannot
/// repeat older ones.
pub const REMEMBERED_MESSAGES: usize = UNACKED_MESSAGES_MAX as usize;
/// A publisher that sent nothing to a room for this long is forgotten; it starts again at its lowest unacknowledged
/// message.
pub const PUBLISHER_IDLE: Micros = 60 * SECOND;
/// The longest delay of an acknowledgement that no publisher waits for, if another left to the same proxy within that
/// time: at 1,000 messages a second one covers five.
pub const PUBLISH_ACK_DELAY_MAX: Micros = 5 * MS;
/// Messages after which an acknowledgement is not delayed further: an eighth of the credit, so that the publisher
/// never runs out of it.
pub const PUBLISH_ACK_MESSAGES: u32 = 32;
/// The same in bytes.
pub const PUBLISH_ACK_BYTES: usize = 32 * KIB;
/// How long a gateway delays a report of its progress, so that one frame covers many messages.
pub const CONSUMED_WAIT: Micros = 20 * MS;
/// The same for a room that comes by another gateway: a broker takes these reports of more gateways than it sends to.
pub const RELAYED_WAIT: Micros = 60 * MS;

// ---- Relays --------------------------------------------------------------------------------------------------------

/// A busy room on more gateways than this is passed on by some of them, unless configured otherwise: below it a broker sends a
/// message to all in less than the time of one more hop.
pub const RELAY_ABOVE: usize = 24;

// ---- Rings, repair, age -----------------------------------------------------------------------------------------

/// Older messages become a gap: a real-time message that late is better not delivered.
pub const MESSAGE_AGE_MAX: Micros = 5 * SECOND;

const _: () = assert!(MEMBERSHIPS_MAX >= 10_000_000);
const _: () = assert!(NAMESPACE_BYTES_MAX + 1 + ROOM_BYTES_MAX <= NAME_BYTES_MAX);
const _: () = assert!(ASSEMBLY_SESSION_BYTES_MAX >= MESSAGE_BYTES_MAX);
