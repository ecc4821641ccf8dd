//! The log's needs of a file system: preallocated segments, and the epoch of their owner.
//!
//! Owns the interface between the log and its storage, so that tests can use a storage with faults. Knows no path and
//! no frame.

use crate::format::SegmentName;
use std::io;

/// One segment's bytes. Shared by the log and its readers.
pub trait SegmentFile: Send + Sync + 'static {
    /// Fills `buf` from byte `at`; returns the bytes read, fewer only at the end of the file.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at byte `at`.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns once everything written so far survives a power loss. After an error its state is unknown.
    fn sync(&self) -> io::Result<()>;

    /// Truncates the file to `bytes`.
    fn cut(&self, bytes: u64) -> io::Result<()>;
}

/// The segments of one log.
pub trait Storage: Send {
    type File: SegmentFile;

    /// The names of all segments, in any order.
    fn list(&mut self) -> io::Result<Vec<SegmentName>>;

    fn open(&mut self, name: SegmentName) -> io::Result<Self::File>;

    /// Creates a segment of `bytes` that begins with `header`; the rest is zeros or the bytes of a removed segment.
    /// When this returns, its blocks are allocated and its name survives a power loss. If the disk is full
    /// ([`is_full`]), no segment is left.
    fn begin(&mut self, name: SegmentName, header: &[u8], bytes: u64) -> io::Result<Self::File>;

    /// A hint that `begin` with `bytes` comes soon.
    fn prepare(&mut self, bytes: u64);

    /// Removes a segment permanently; it is no error if it is gone already. `begin` may reuse a `reusable` one; a
    /// former owner may still write to any other.
    fn remove(&mut self, name: SegmentName, reusable: bool) -> io::Result<()>;

    /// Deletes removed segments that were kept for reuse.
    fn drop_spares(&mut self) -> io::Result<()>;

    /// The highest epoch that ever claimed this log.
    fn owner(&self) -> io::Result<u64>;

    /// A number that outsiders can't predict.
    fn salt(&mut self) -> u64;

    /// The last offset given to [`Storage::keep_acked`], or an earlier one after a power loss. `None`: unknown.
    fn acked(&self) -> io::Result<Option<u64>>;

    /// Stores besides the segments that all records below `end` are durable, so that a later opening notices a
    /// truncated tail.
    ///
    /// Called after each group, so it syncs only if `synced` is set. The stored offset may be lower than the true
    /// one, but never higher.
    fn keep_acked(&mut self, end: u64, synced: bool) -> io::Result<()>;
}

/// Whether `error` means that the disk, or the owner's quota, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
