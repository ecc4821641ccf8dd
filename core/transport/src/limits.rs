//! Bounds that several parts of the transport keep to, or that its users must know, each with its reason beside it.
//!
//! Owns: numbers. Must not know: the parts that use them. A bound that concerns one part alone stands there.

use crate::machine::Micros;

const SECOND: Micros = 1_000_000;
const KIB: usize = 1_024;

// ---- Flow and congestion ----------------------------------------------------------------------------------------

/// Missing ranges in a status or an acknowledgement: 4 * 16 B. A fifth is repaired once the first is.
pub const MISSING_RANGES_MAX: usize = 4;
/// How far below the highest number a status looks for missing ones: eight times the datagrams that elicit a status,
/// so that several statuses name every loss.
pub const STATUS_SPAN: u64 = 256;

// ---- Control records --------------------------------------------------------------------------------------------

/// The longest record: 1,156 of frames less 12 (log body and record length) leaves 1,144; the rest is for frame headers.
pub const LOG_RECORD_BYTES_MAX: usize = 1_100;
/// Maximum bytes of records sent and not acknowledged: 29 datagrams, so a join storm does not flood a path by itself.
pub const LOG_FLIGHT_BYTES_MAX: usize = 32 * KIB;
/// The same limit in records; each search for due records scans them (24 B each, 24 KiB).
pub const LOG_FLIGHT_RECORDS_MAX: usize = 1_024;
/// Records are repeated before they are known to be lost only while at most this many are unacknowledged: a few joins
/// cost one more datagram, a join storm none.
pub const LOG_AGAIN_RECORDS_MAX: usize = 16;
/// Longest interval between repeats of a record, so a healed path is found within a second.
pub const LOG_BACKOFF_MAX: Micros = SECOND;

// ---- Nodes ---------------------------------------------------------------------------------------------------------

/// Maximum number of nodes that a role knows at once, even if strangers have the cluster's secret: links and views
/// for this many take some MB. Nodes that are gone make room.
pub const NODES_MAX: usize = 4_096;
