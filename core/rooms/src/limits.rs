//! Bounds that several parts of rooms keep to, or that a part's users must know, each with its reason beside it.
//!
//! Owns: numbers. Must not know: the parts that use them. A bound that concerns one part alone stands there.

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
/// Unfinished messages of one session: four of the largest at a time.
pub const ASSEMBLY_SESSION_BYTES_MAX: usize = 256 * KIB;
/// Unfinished messages of a whole process: 256 sessions that use all of theirs.
pub const ASSEMBLY_PROCESS_BYTES_MAX: usize = 64 * MIB;
/// An unfinished message older than this is given up; equal to [`MESSAGE_AGE_MAX`], later its rest is a gap anyway.
pub const ASSEMBLY_AGE_MAX: Micros = 5 * SECOND;

/// A member that holds more than this of a room behind a hole is crowded: it tells its gateway the window below, and gets the
/// missing messages and nothing else of the room. It has place for four times as much, as it does not say so at once.
pub const CROWDED_MESSAGES: usize = 4_096;
pub const CROWDED_BYTES: usize = MIB;
/// 13 full datagrams.
pub const CROWDED_WINDOW: u32 = 32 * KIB as u32;

// ---- Sessions and rooms -----------------------------------------------------------------------------------------

/// Rooms that a role knows at once: some 5.2 GiB at a gateway, 1.2 GiB at a broker (1.3 and 0.3 KiB each), and as many as a link's log can
/// tell.
pub const ROOMS_MAX: usize = 4 << 20;
/// Control records that a link may have unacknowledged: a snapshot of [`ROOMS_MAX`] rooms, and changes meanwhile.
pub const LINK_LOG_BYTES: usize = log_bytes(ROOMS_MAX);

/// The same for a snapshot of this many rooms: 66 B each, and a sixteenth for changes meanwhile.
pub const fn log_bytes(rooms: usize) -> usize {
    rooms * (66 + 5)
}

/// Memberships that a router holds, over all gateways, unless the configuration says otherwise: 16 M x 64 B are 1 GiB.
pub const MEMBERSHIPS_MAX: usize = 16 << 20;
/// A gateway that is away for this long has no members any more.
pub const GATEWAY_LEASE: Micros = 30 * SECOND;
/// A gateway repeats an unacknowledged report to a router after this, unless the configuration says otherwise
/// (ROOM-11).
pub const MEMBERSHIP_AGAIN_MS: u32 = 10;
/// A room's name with its namespace, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 200;
/// A namespace, in bytes of `a-z`, `0-9`, `_`, `-`.
pub const NAMESPACE_BYTES_MAX: usize = 32;
/// A room within its namespace, in bytes: 32 + 1 + 160 stays below [`NAME_BYTES_MAX`].
pub const ROOM_BYTES_MAX: usize = 160;

/// Sessions of one user at one gateway or proxy, unless the configuration says otherwise: more than a person has devices, and a
/// backend's processes. A gateway of a million sessions has place for 16,384 users that take all of theirs.
pub const USER_SESSIONS_MAX: u32 = 64;
/// Places of one user in rooms at one gateway, over all its sessions, unless the configuration says otherwise: four sessions
/// with all of theirs, some 1.3 MiB of rooms that nobody else is in.
pub const USER_PLACES_MAX: u32 = 1_024;
/// Messages, and bytes of publish frames, that a proxy takes from one user in a second, unless the configuration says
/// otherwise. 16 MiB are an eighth of 1 Gbit/s and a sixteenth of a broker's default arena.
pub const USER_MESSAGES_A_SECOND: u32 = 100_000;
pub const USER_BYTES_A_SECOND: u32 = 16 << 20;

/// Messages that a join may ask to come first, unless the configuration says otherwise: one request to an owner brings
/// as many.
pub const HISTORY_DEFAULT: u32 = 1_024;

// ---- Publishing -------------------------------------------------------------------------------------------------

/// Rooms that one session may have open for publishing: 10 KiB of places at its proxy.
pub const SESSION_PUBLICATIONS_MAX: usize = 256;
/// Messages of one publisher that may be on their way to a room's owner: 256 at a round trip of 10 ms are 25,600 a second.
pub const CREDIT_MESSAGES: u64 = 256;
/// The same in bytes: four of the largest messages, or 256 of 1 KiB.
pub const CREDIT_BYTES: usize = 256 * KIB;
/// Messages held for one publisher and room because an earlier one is missing. They are on their way no more, so the credit
/// grows by them: while a hole is mended, in a round trip or three, as much goes on coming as where there is none.
pub const HELD_MESSAGES_MAX: usize = 768;
/// The same in bytes: twelve messages of the largest size, or 768 of 1 KiB.
pub const HELD_BYTES_MAX: usize = 768 * KIB;
/// Messages that one publisher may have unacknowledged in one room.
pub const UNACKED_MESSAGES_MAX: u64 = CREDIT_MESSAGES + HELD_MESSAGES_MAX as u64;
/// Applied messages whose offsets are remembered to answer repeats: as many, since a publisher that keeps to its credit
/// cannot repeat older ones.
pub const REMEMBERED_MESSAGES: usize = UNACKED_MESSAGES_MAX as usize;
/// A publisher that sent nothing to a room for this long is forgotten; it starts again at its lowest unacknowledged.
pub const PUBLISHER_IDLE: Micros = 60 * SECOND;
/// The longest delay of an acknowledgement that no publisher waits for, if another left to the same proxy within that
/// time: at 1,000 messages a second one covers five.
pub const PUBLISH_ACK_DELAY_MAX: Micros = 5 * MS;
/// Or until this many messages wait for it: an eighth of the credit, so that the publisher's pipe never runs dry.
pub const PUBLISH_ACK_MESSAGES: u32 = 32;
/// The same in bytes.
pub const PUBLISH_ACK_BYTES: usize = 32 * KIB;
/// A gateway tells its progress this long after it was made, so that one frame tells of many messages.
pub const CONSUMED_WAIT: Micros = 20 * MS;

// ---- Rings, repair, age -----------------------------------------------------------------------------------------

/// Older messages become a gap: a real-time message that late is better not delivered.
pub const MESSAGE_AGE_MAX: Micros = 5 * SECOND;

const _: () = assert!(MEMBERSHIPS_MAX >= 10_000_000);
const _: () = assert!(NAMESPACE_BYTES_MAX + 1 + ROOM_BYTES_MAX <= NAME_BYTES_MAX);
const _: () = assert!(ASSEMBLY_SESSION_BYTES_MAX >= MESSAGE_BYTES_MAX);
