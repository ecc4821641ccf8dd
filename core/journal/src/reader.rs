//! Reads records in order from any offset, while the log's owner appends.
//!
//! Owns its position in the log and the check of each frame. Never returns a record that is not durable, and never
//! skips a damaged one.

use crate::error::{Corruption, ReadError};
use crate::format::{Frame, Records, FRAME_BYTES, HEADER_BYTES};
use crate::shared::{Segment, Shared};
use crate::storage::SegmentFile;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Bytes read at once: 256 KiB, two groups of 512 records of 200 bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// A position in the log. Made by [`crate::Log::reader`]; may be moved to another thread.
pub struct Reader<F: SegmentFile> {
    shared: Arc<Shared<F>>,
    segment: Arc<Segment<F>>,
    /// Bytes of the segment from `chunk_at`.
    chunk: Vec<u8>,
    chunk_at: u64,
    /// The durable offset before the chunk was read: bytes of later records may have been read before they were
    /// written.
    chunk_durable: u64,
    /// Where the next frame begins.
    at: u64,
    /// The offset of the next frame's first record.
    frame_first: u64,
    /// The first offset to return.
    next: u64,
}

impl<F: SegmentFile> Reader<F> {
    pub(crate) fn new(shared: Arc<Shared<F>>, from: u64) -> Result<Reader<F>, ReadError> {
        let end = shared.durable.load(Ordering::Acquire);
        if from > end {
            return Err(ReadError::Beyond { end });
        }
        let segment = {
            let segments = shared.segments.lock().expect("no panic holds this lock");
            let after = segments.partition_point(|segment| segment.first <= from);
            let start = segments.front().map_or(0, |first| first.first);
            Arc::clone(
                after
                    .checked_sub(1)
                    .and_then(|at| segments.get(at))
                    .ok_or(ReadError::Trimmed { start })?,
            )
        };
        let frame_first = segment.first;
        Ok(Reader {
            shared,
            segment,
            chunk: Vec::new(),
            chunk_at: 0,
            chunk_durable: 0,
            at: HEADER_BYTES,
            frame_first,
            next: from,
        })
    }

    /// The offset of the next record.
    pub fn offset(&self) -> u64 {
        self.next
    }

    /// The records of the next group, or `None` at the end of the durable records.
    ///
    /// After an error the reader's position is unchanged.
    pub fn next_group(&mut self) -> Result<Option<Records<'_>>, ReadError> {
        loop {
            if self.frame_first >= self.shared.durable.load(Ordering::Acquire) {
                return Ok(None);
            }
            if self.segment.end.get().is_some_and(|&end| self.frame_first >= end) {
                self.enter_next_segment()?;
                continue;
            }
            let (frame, from) = self.read_frame()?;
            let first = frame.first;
            self.at += frame.total_bytes();
            self.frame_first = first + u64::from(frame.count);
            if self.frame_first > self.next {
                let wanted = std::mem::replace(&mut self.next, self.frame_first);
                let payload = &self.chunk[from..from + frame.payload_bytes];
                return Ok(Some(Records::new(first, payload).from(wanted)));
            }
        }
    }

    /// The frame at `at`, checked, and the index of its payload in the chunk.
    fn read_frame(&mut self) -> Result<(Frame, usize), ReadError> {
        self.fill(FRAME_BYTES)?;
        let salt = self.segment.salt;
        let head = (self.at - self.chunk_at) as usize;
        let Some(frame) = Frame::decode(&self.chunk[head..], salt).filter(|frame| self.follows(frame)) else {
            return Err(self.damaged());
        };
        self.fill(FRAME_BYTES + frame.payload_bytes)?;
        let from = (self.at - self.chunk_at) as usize + FRAME_BYTES;
        match self.chunk.get(from..from + frame.payload_bytes) {
            Some(payload) if frame.holds(payload, salt) => Ok((frame, from)),
            _ => Err(self.damaged()),
        }
    }

    fn follows(&self, frame: &Frame) -> bool {
        frame.first == self.frame_first && frame.count > 0
    }

    /// Reads `bytes` from `at` into the chunk, fewer only at the end of the file.
    fn fill(&mut self, bytes: usize) -> Result<(), ReadError> {
        let held = (self.chunk_at + self.chunk.len() as u64).saturating_sub(self.at);
        if self.at >= self.chunk_at && held >= bytes as u64 && self.frame_first < self.chunk_durable {
            return Ok(());
        }
        self.chunk_durable = self.shared.durable.load(Ordering::Acquire);
        self.chunk_at = self.at;
        self.chunk.resize(bytes.max(CHUNK_BYTES), 0);
        let read = self.segment.file.read_at(self.at, &mut self.chunk)?;
        self.chunk.truncate(read);
        Ok(())
    }

    fn enter_next_segment(&mut self) -> Result<(), ReadError> {
        let segments = self.shared.segments.lock().expect("no panic holds this lock");
        let next = segments.iter().find(|segment| segment.name > self.segment.name);
        let next = next.expect("a segment that ended has a successor");
        if next.first > self.frame_first {
            return Err(ReadError::Trimmed { start: next.first });
        }
        let next = Arc::clone(next);
        drop(segments);
        self.segment = next;
        self.chunk.clear();
        (self.chunk_at, self.at) = (0, HEADER_BYTES);
        Ok(())
    }

    /// Bytes of a trimmed segment may have been overwritten by a newer one's; otherwise they are damaged.
    fn damaged(&mut self) -> ReadError {
        self.chunk.clear(); // a second try reads again
        let segments = self.shared.segments.lock().expect("no panic holds this lock");
        let start = segments.front().map_or(0, |first| first.first);
        if !segments.iter().any(|segment| segment.name == self.segment.name) {
            return ReadError::Trimmed { start };
        }
        ReadError::Corrupt(Corruption::Frame {
            segment: self.segment.name,
            at: self.at,
            offset: self.frame_first,
        })
    }
}
