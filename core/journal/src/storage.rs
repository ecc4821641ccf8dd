//! What the log needs of a file system: segments that exist in full, and the epoch of their owner.
//!
//! Owns the seam between the log and its storage, so that tests put a storage with faults below it. Knows no path and no frame.

use crate::format::SegmentName;
use std::io;

/// One segment's bytes. Shared by the log and its readers.
pub trait SegmentFile: Send + Sync + 'static {
    /// Fills `buf` from byte `at`; answers the bytes read, fewer only at the file's end.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at byte `at`.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Returns once everything written so far survives a loss of power. After an error nothing is known of it.
    fn sync(&self) -> io::Result<()>;

    /// Cuts the file to `bytes`.
    fn cut(&self, bytes: u64) -> io::Result<()>;
}

/// The segments of one log.
pub trait Storage: Send {
    type File: SegmentFile;

    /// The names of all segments, in any order.
    fn list(&mut self) -> io::Result<Vec<SegmentName>>;

    fn open(&mut self, name: SegmentName) -> io::Result<Self::File>;

    /// Makes a segment of `bytes` with `header` at its begin; the rest is zeros or the bytes of a removed segment.
    /// Its blocks exist and its name survives a loss of power when this returns. A full disk ([`is_full`]) leaves no segment.
    fn begin(&mut self, name: SegmentName, header: &[u8], bytes: u64) -> io::Result<Self::File>;

    /// A hint that `begin` with `bytes` comes soon.
    fn prepare(&mut self, bytes: u64);

    /// Removes a segment for good; one that is gone already is no error. A `reusable` one may come back from `begin`; a former owner may still write any other.
    fn remove(&mut self, name: SegmentName, reusable: bool) -> io::Result<()>;

    /// The highest epoch that ever claimed this log.
    fn owner(&self) -> io::Result<u64>;

    /// A number that nobody outside can predict.
    fn salt(&mut self) -> u64;

    /// The offset that [`Storage::keep_acked`] was last told, or an earlier one after a loss of power. `None`: nothing is known of it.
    fn acked(&self) -> io::Result<Option<u64>>;

    /// Keeps beside the segments that all records below `end` are durable, so that a later opening notices a cut tail.
    ///
    /// Called after each group, so it syncs nothing unless `synced` asks for it. It may never say more than is durable; it may say less.
    fn keep_acked(&mut self, end: u64, synced: bool) -> io::Result<()>;
}

/// Whether `error` says that the disk, or the owner's share of it, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
