//! Bounds of byte streams and of a turn, each with its reason beside it.
//!
//! Owns: numbers, and [`Limits`] and [`Budget`], which a process may set. Must not know: the parts that use them.

use bytes::Bytes;
use muster_transport::Micros;

const SECOND: Micros = 1_000_000;
const KIB: usize = 1_024;

/// Connections that one turn accepts: a handshake with TLS takes 0.2 ms, which no other client waits for here, and accepting
/// 10 µs each.
pub const ACCEPTS_MAX: usize = 64;
/// The buffer that all streams share for reading. Linux hands over at most as much in one call where a client fills its window.
pub const READ_BYTES: usize = 64 * KIB;
/// Sends that a machine puts into one slice, between two looks at the sockets.
pub const SLICE_SENDS: usize = 64;
/// Vectors of one call. The kernel takes 1,024; a hundred short messages fill a segment many times over.
pub const VECTORS_MAX: usize = 128;
/// Plain bytes that a TLS session takes before they are encrypted and sent: four records.
pub const TLS_BUFFER_BYTES: usize = 64 * KIB;
/// A stream that was refused or closed reads and drops this long, so that its last bytes are not lost to a reset.
pub const LINGER: Micros = 2 * SECOND;
/// Bytes that it drops: a client that goes on sending is reset.
pub const LINGER_BYTES: u32 = 256 * KIB as u32;
/// Streams that were refused and linger; further ones are reset.
pub const REFUSED_MAX: usize = 256;
/// After the process has run out of descriptors, nothing is accepted for this long.
pub const ACCEPT_RETRY: Micros = 100_000;

/// How many streams there may be, and how long they may do nothing.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Streams at once.
    pub streams: usize,
    /// Streams of one address (of one /64 in IPv6); 0: no limit, as behind a proxy.
    pub streams_of_address: u32,
    /// Streams that have not proven themselves: the oldest make room for new ones.
    pub half_open: usize,
    /// How long they may take.
    pub half_open_life: Micros,
    /// A peer whose kernel has acknowledged nothing for this long is gone, in ms (TCP_USER_TIMEOUT); 0: the kernel decides.
    pub user_timeout_ms: u32,
    /// A silent peer is asked by its kernel after this many seconds; 0: never.
    pub keepalive_s: u32,
    /// The kernel's buffer for sending, in bytes; 0: the kernel decides.
    pub send_buffer: usize,
    /// Written to a stream that is refused, if it is not encrypted.
    pub refusal: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            streams: 1 << 20,
            streams_of_address: 0,
            half_open: 4_096,
            half_open_life: 10 * SECOND,
            user_timeout_ms: 20_000,
            keepalive_s: 20,
            send_buffer: 0,
            refusal: Bytes::new(),
        }
    }
}

/// The bounds of one turn. Each is checked between batches, so it may be exceeded by one.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes taken in.
    pub received_max: usize,
    /// Sends: one message may go to 1,000 members.
    pub sent_max: usize,
    pub turn_us: Micros,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            received_max: 1_024 * KIB,
            sent_max: 2_048,
            turn_us: 1_000,
        }
    }
}
