//! Bounds of a browser's session, each with its reason beside it.
//!
//! Owns: numbers. Must not know: the parts that use them.

use muster_transport::Micros;

const SECOND: Micros = 1_000_000;
const KIB: usize = 1_024;

// ---- Upgrade ----------------------------------------------------------------------------------------------------

/// The head of the upgrade request: a browser's cookies of one site have up to 4 KiB each, and proxies allow 8 KiB.
pub const HEAD_BYTES_MAX: usize = 8 * KIB;
/// Headers in it: browsers send some 20, and proxies add some.
pub const HEADERS_MAX: usize = 64;

// ---- WebSocket --------------------------------------------------------------------------------------------------

/// One message of a client: four publications of the largest size, or the subscribe commands of 256 rooms.
pub const MESSAGE_BYTES_MAX: usize = 256 * KIB;
/// The same before the client has shown a token: a token, and 256 rooms of 200 B in `subs`.
pub const UNKNOWN_BYTES_MAX: usize = 64 * KIB;
/// A control frame's payload (RFC 6455, 5.5).
pub const CONTROL_BYTES_MAX: usize = 125;
/// Shared frames in one write. The kernel takes 1,024 vectors, and a frame costs two of them with its separator.
pub const FRAMES_MAX: usize = 64;
/// Their bytes, one frame apart: as much as a slow reader holds in memory, which with a frame of 16 KiB stays below 64 KiB.
pub const WRITE_BYTES_MAX: usize = 40 * KIB;

// ---- Commands and replies ---------------------------------------------------------------------------------------

/// One publication, command or message, as at every door of Muster.
pub const DATA_BYTES_MAX: usize = 64 * KIB;
/// A token: as long as an HTTP header that carries one.
pub const TOKEN_BYTES_MAX: usize = 8 * KIB;
/// A channel's name: as long as a room's.
pub const CHANNEL_BYTES_MAX: usize = 200;
/// A method of an `rpc` command.
pub const METHOD_BYTES_MAX: usize = 64;
/// Subscriptions of one session: as many rooms as a session over UDP may have.
pub const SUBSCRIPTIONS_MAX: usize = 256;
/// Questions to the owner that have no answer yet: a reconnect asks for all rooms at once, and as much again beside it.
pub const ASKS_MAX: u32 = 512;
/// Commands that came while the token was judged, in bytes.
pub const WAITING_BYTES_MAX: usize = 64 * KIB;
/// Replies that a session leaves unread before its commands are left unread.
pub const UNREAD_BYTES_MAX: usize = 64 * KIB;
/// Replies and messages that wait for the socket: more, and the session ends as slow. It has place for the largest reply to
/// a subscribe command and the replies to one message of commands.
pub const WAITING_REPLIES_MAX: usize = 1_024 * KIB;
/// Publications in the reply to a subscribe command or a history command; those beyond come behind it as pushes. Clients that
/// take one WebSocket message of at most 1 MiB take it.
pub const RECOVERED_BYTES_MAX: usize = 512 * KIB;
/// Commands that a session may send at once: the rooms of a reconnect, and as much again.
pub const COMMANDS_BURST: u32 = 512;
/// Commands a second, unless the settings say otherwise.
pub const COMMANDS_A_SECOND: u32 = 100;
/// The reason of a close or an unsubscribe: a close frame has 125 B with its code.
pub const REASON_BYTES_MAX: usize = 120;
/// Depth of JSON that is handed to JSON clients: Python's parser ends at 1,000, and others below that.
pub const JSON_DEPTH_MAX: usize = 100;

// ---- Time -------------------------------------------------------------------------------------------------------

/// A session that has not sent its connect command by then ends.
pub const CONNECT_WITHIN: Micros = 10 * SECOND;
/// The same for the head of its upgrade request (slowloris).
pub const HEAD_WITHIN: Micros = 10 * SECOND;
/// Pings follow each other after this, unless the settings say otherwise: proxies cut what is silent for 60 s.
pub const PING_EVERY: Micros = 25 * SECOND;
/// A pong is awaited for this long.
pub const PONG_WITHIN: Micros = 8 * SECOND;
/// A session that is silent for this long ends even if its kernel took all bytes: a proxy before it may do so for a dead one.
/// A tab that a browser has frozen for less comes back without a loss.
pub const SILENT_MAX: Micros = 300 * SECOND;
/// After its time, a connection or subscription has this long to bring another token: SDKs ask for one when it is over.
pub const TOKEN_GRACE: Micros = 25 * SECOND;
/// Unsubscribe pushes that SDKs answer at once with a subscribe command follow each other after this for one channel.
pub const RESUBSCRIBE_EVERY: Micros = SECOND;

/// Pings without a pong: a receipt asked meanwhile is proven by a later ping.
pub const PINGS_MAX: u64 = 64;

const _: () = assert!(MESSAGE_BYTES_MAX >= 2 * DATA_BYTES_MAX);
const _: () = assert!(WAITING_REPLIES_MAX >= RECOVERED_BYTES_MAX + UNREAD_BYTES_MAX);
const _: () = assert!(REASON_BYTES_MAX + 2 <= CONTROL_BYTES_MAX);
