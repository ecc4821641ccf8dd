//! The errors of the journal, one enum per operation.

use crate::format::SegmentName;
use std::io;

/// Why a journal can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the journal open.
    #[error("journal is open in another process")]
    Locked,
    /// A later owner has claimed the journal.
    #[error("journal belongs to the owner of epoch {by}")]
    Fenced { by: u64 },
    /// Durable bytes are damaged. Nothing was changed.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// No space for a first segment. Nothing was changed.
    #[error("disk is full: no space for a segment of {segment_bytes} bytes")]
    DiskFull { segment_bytes: u64 },
    #[error("segment size {0} is too small (minimum {1} bytes)")]
    SegmentTooSmall(u64, u64),
    #[error("journal storage failed: {0}")]
    Io(#[from] io::Error),
}

/// Why a group is not durable.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// A later owner has claimed the journal; this one appends nothing anymore. The group may or may not be in the
    /// log.
    #[error("journal now belongs to the owner of epoch {by}")]
    Fenced { by: u64 },
    /// No space for the next segment. The group is not in the log; append it again when there is space.
    #[error("disk is full: no space for a segment of {segment_bytes} bytes")]
    DiskFull { segment_bytes: u64 },
    /// The group does not fit into a segment.
    #[error("group of {bytes} bytes does not fit into a segment of {segment_bytes} bytes")]
    TooLarge { bytes: u64, segment_bytes: u64 },
    /// A write or a sync failed. The group may or may not be in the log: open the journal again to find out.
    #[error("journal storage failed: {0}")]
    Failed(#[source] io::Error),
    /// An earlier append failed, so this journal accepts nothing more: open it again.
    #[error("journal refuses appends after an earlier failure")]
    Refused,
}

/// Why records can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The requested records were trimmed.
    #[error("records below offset {start} were trimmed")]
    Trimmed { start: u64 },
    /// The offset is beyond the end of the log.
    #[error("offset is beyond the end of the log at {end}")]
    Beyond { end: u64 },
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    #[error("journal storage failed: {0}")]
    Io(#[from] io::Error),
}

/// Where durable bytes are damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Corruption {
    #[error("segment {} of epoch {} has a damaged header", .0.id, .0.epoch)]
    Header(SegmentName),
    #[error("segment {} of epoch {} is damaged at byte {at}: records from offset {offset} are unreadable", segment.id, segment.epoch)]
    Frame { segment: SegmentName, at: u64, offset: u64 },
    #[error("segment {} of epoch {} is missing", .0.id, .0.epoch)]
    Missing(SegmentName),
    /// The last segment ends too early.
    #[error("records from offset {offset} to {} were acknowledged and are missing: segment {} of epoch {} ends at byte {at}", acked - 1, segment.id, segment.epoch)]
    Cut {
        segment: SegmentName,
        at: u64,
        offset: u64,
        acked: u64,
    },
    /// No segment is left.
    #[error("records up to offset {} were acknowledged and are missing: no segment is left", .0 - 1)]
    Gone(u64),
}
