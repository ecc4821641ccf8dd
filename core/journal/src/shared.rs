//! State shared by the owner of a log and its readers: the segments, and up to where records are durable.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use crate::format::SegmentName;

/// One segment that the log holds.
pub(crate) struct Segment<F> {
    pub name: SegmentName,
    pub first: u64,
    pub salt: u64,
    pub file: F,
    /// The offset of the next segment's first record, once it exists.
    pub end: OnceLock<u64>,
}

/// State shared by the owner and its readers.
pub(crate) struct Shared<F> {
    /// All records below this offset are durable.
    pub durable: AtomicU64,
    /// Oldest first; never empty.
    pub segments: Mutex<VecDeque<Arc<Segment<F>>>>,
}

impl<F> Shared<F> {
    /// The offset of the oldest record that is still there.
    pub fn start(&self) -> u64 {
        let segments = self.segments.lock().expect("no panic holds this lock");
        segments.front().map_or(0, |first| first.first)
    }
}
