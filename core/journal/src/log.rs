//! The log of one owner: opens an existing log, appends groups, trims.
//!
//! Owns the order of writes: an append returns after the group is synced and it is certain that no later owner has
//! claimed the log. Knows no path.

use crate::error::{AppendError, Corruption, OpenError, ReadError};
use crate::format::{begins_frame, Frame, Group, Header, SegmentName, FRAME_ALIGN, FRAME_BYTES, HEADER_BYTES};
use crate::reader::Reader;
use crate::shared::{Segment, Shared};
use crate::storage::{is_full, SegmentFile, Storage};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The smallest segment: its header and one page of frames.
pub const SEGMENT_BYTES_MIN: u64 = 2 * HEADER_BYTES;

/// Bytes of a segment searched at once for a frame behind a damaged one.
const SCAN_BYTES: usize = 1 << 20;

/// A durable log of records, open for its one owner.
///
/// `Journal` is the log in a folder; tests put other storages below.
pub struct Log<S: Storage> {
    storage: S,
    epoch: u64,
    segment_bytes: u64,
    shared: Arc<Shared<S::File>>,
    active: Arc<Segment<S::File>>,
    /// Position of the next frame in the active segment.
    at: u64,
    prepared: bool,
    /// Segments that readers can no longer reach and that the storage still has.
    trimmed: VecDeque<SegmentName>,
    refuses: bool,
    /// Whether trimmed segments may become segments again, with their old bytes behind the new ones.
    reuses: bool,
    torn: bool,
    /// The offsets that opening skipped.
    skipped: Range<u64>,
}

impl<S: Storage> Log<S> {
    /// Opens the log for the owner of `epoch`, which `storage` has already claimed. No other process may open it
    /// until this returns.
    ///
    /// Each opening creates a new segment, so that nothing is ever written behind a torn group.
    pub fn with_storage(storage: S, epoch: u64, segment_bytes: u64) -> Result<Log<S>, OpenError> {
        Log::with_storage_from(storage, epoch, segment_bytes, 0)
    }

    /// As [`Log::with_storage`]; a log without a record starts at offset `begin` or higher.
    pub fn with_storage_from(mut storage: S, epoch: u64, segment_bytes: u64, begin: u64) -> Result<Log<S>, OpenError> {
        if segment_bytes < SEGMENT_BYTES_MIN {
            return Err(OpenError::SegmentTooSmall(segment_bytes, SEGMENT_BYTES_MIN));
        }
        let chain = Chain::read(&mut storage)?;
        let mut segments = chain.segments;
        let mut removed = chain.left_over;
        let mut tail = Tail::default();
        let acked = storage.acked()?.unwrap_or(0);
        if let Some(last) = segments.back() {
            tail = Tail::find(last)?;
            if tail.end < acked {
                return Err(OpenError::Corrupt(Corruption::Cut {
                    segment: last.name,
                    at: tail.at,
                    offset: tail.end,
                    acked,
                }));
            }
            tail.make_durable(last)?;
        } else if acked > 0 {
            return Err(OpenError::Corrupt(Corruption::Gone(acked)));
        }
        let newest = segments.back().map(|last| last.name);
        let cut = match segments.back() {
            Some(last) if tail.end == last.first => {
                removed.push(last.name);
                segments.pop_back();
                None
            }
            last => last.map(|last| (Arc::clone(last), tail.at)),
        };
        let found = tail.end;
        if segments.is_empty() {
            tail.end = found.max(begin); // there is no record: only numbers are skipped
        }
        let id = newest.map_or(0, |name| name.id + 1);
        let before = segments.back().map(|last| last.name);
        let header = Header {
            name: SegmentName { epoch, id },
            before,
            first: tail.end,
            salt: storage.salt(),
        };
        let file = storage
            .begin(header.name, &header.encode(), segment_bytes)
            .map_err(|error| match is_full(&error) {
                true => OpenError::DiskFull { segment_bytes },
                false => OpenError::Io(error),
            })?;
        if let Some((last, at)) = cut {
            last.file.cut(at)?;
            let _ = last.end.set(tail.end);
        }
        for name in removed {
            storage.remove(name, false)?;
        }
        let active = Segment {
            name: header.name,
            first: header.first,
            salt: header.salt,
            file,
            end: OnceLock::new(),
        };
        let active = Arc::new(active);
        segments.push_back(Arc::clone(&active));
        let shared = Arc::new(Shared {
            durable: AtomicU64::new(tail.end),
            segments: Mutex::new(segments),
        });
        let mut log = Log {
            storage,
            epoch,
            segment_bytes,
            shared,
            active,
            at: HEADER_BYTES,
            prepared: false,
            trimmed: VecDeque::new(),
            refuses: false,
            reuses: true,
            torn: tail.torn,
            skipped: found..tail.end,
        };
        match log.storage.owner()? {
            by if by > epoch => Err(OpenError::Fenced { by }),
            _ => {
                log.storage.keep_acked(tail.end, true)?;
                Ok(log)
            }
        }
    }

    /// The offset of the oldest record that the log still holds.
    pub fn start(&self) -> u64 {
        self.shared.start()
    }

    /// The offset that the next record gets: all below it are durable.
    pub fn end(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    pub(crate) fn storage(&self) -> &S {
        &self.storage
    }

    pub(crate) fn shared(&self) -> Arc<Shared<S::File>> {
        Arc::clone(&self.shared)
    }

    /// The epoch of this owner.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether opening cut a group that a crash had left half written: its append never returned.
    pub fn cut_torn_group(&self) -> bool {
        self.torn
    }

    /// The offsets that opening skipped, because the log had no record and had to begin higher.
    pub fn skipped(&self) -> Range<u64> {
        self.skipped.clone()
    }

    /// Makes all records of `group` durable; returns their offsets. The group is unchanged, so that its records can
    /// be applied.
    ///
    /// After [`AppendError::DiskFull`] and [`AppendError::TooLarge`] the log can be used further; after any other
    /// error it refuses, since it is unknown what a failed sync left on the disk.
    pub fn append(&mut self, group: &mut Group) -> Result<Range<u64>, AppendError> {
        if self.refuses {
            return Err(AppendError::Refused);
        }
        let first = self.end();
        if group.is_empty() {
            return Ok(first..first);
        }
        let bytes = group.frame_bytes() as u64;
        if bytes > self.segment_bytes - HEADER_BYTES {
            return Err(AppendError::TooLarge {
                bytes,
                segment_bytes: self.segment_bytes,
            });
        }
        if self.at + bytes > self.segment_bytes {
            self.roll(first)?;
        }
        let active = &self.active;
        let written = group.with_frame(first, active.salt, |frame| active.file.write_at(self.at, frame));
        self.settle(written)?;
        self.at += bytes;
        let end = first + u64::from(group.len());
        self.keep_acked(end, false)?;
        self.shared.durable.store(end, Ordering::Release);
        if !self.prepared && self.at > self.segment_bytes / 2 {
            self.storage.prepare(self.segment_bytes);
            self.prepared = true;
        }
        Ok(first..end)
    }

    /// A reader of all records from `from` on, including later ones as they become durable.
    pub fn reader(&self, from: u64) -> Result<Reader<S::File>, ReadError> {
        Reader::new(Arc::clone(&self.shared), from)
    }

    /// Drops the segments whose records are all below `below`; returns the log's new start. A crash may undo it.
    pub fn trim(&mut self, below: u64) -> Result<u64, AppendError> {
        match self.storage.owner() {
            Ok(by) if by > self.epoch => return Err(AppendError::Fenced { by }),
            owner => owner.map_err(AppendError::Failed)?,
        };
        {
            let mut segments = self.shared.segments.lock().expect("no panic holds this lock");
            while segments.len() > 1 && segments[1].first <= below {
                self.trimmed.extend(segments.pop_front().map(|segment| segment.name));
            }
        }
        // Oldest first: after a failure the log has no gap, and the next trim begins with the rest.
        while let Some(&name) = self.trimmed.front() {
            self.storage
                .remove(name, name.epoch == self.epoch && self.reuses)
                .map_err(AppendError::Failed)?;
            self.trimmed.pop_front();
        }
        Ok(self.start())
    }

    /// Begins a segment that has no byte of an earlier one, and lets trimmed segments be deleted from now on, until
    /// [`Log::reuse_again`]. Returns the segment's first offset: once the log is trimmed to it, no file of the log has a
    /// record from before.
    pub fn begin_clean(&mut self) -> Result<u64, AppendError> {
        if self.refuses {
            return Err(AppendError::Refused);
        }
        match self.storage.owner() {
            Ok(by) if by > self.epoch => return Err(AppendError::Fenced { by }),
            owner => owner.map_err(AppendError::Failed)?,
        };
        let first = self.end();
        self.reuses = false;
        self.storage.drop_spares().map_err(AppendError::Failed)?;
        self.roll(first)?;
        Ok(first)
    }

    /// Trimmed segments may be used again.
    pub fn reuse_again(&mut self) {
        self.reuses = true;
    }

    /// Number of segments that the log holds.
    pub fn segments(&self) -> usize {
        self.shared.segments.lock().expect("no panic holds this lock").len()
    }

    /// Closes the log cleanly: the next opening then reports damage of its last group, which a crash could explain
    /// otherwise.
    pub fn close(mut self) -> Result<(), AppendError> {
        let seal = Frame::seal(self.end(), self.active.salt);
        if self.refuses {
            return Err(AppendError::Refused);
        }
        if self.at + seal.len() as u64 > self.segment_bytes {
            return self.keep_acked(self.end(), true); // a full segment has no space for a torn group either
        }
        let written = self.active.file.write_at(self.at, &seal);
        self.settle(written)?;
        self.keep_acked(self.end(), true)
    }

    /// Called after checking the owner: acknowledged records are durable, and a later owner has found them.
    fn keep_acked(&mut self, end: u64, synced: bool) -> Result<(), AppendError> {
        self.storage.keep_acked(end, synced).map_err(|error| {
            self.refuses = true;
            AppendError::Failed(error)
        })
    }

    /// Syncs the written bytes; refuses permanently if that fails or there is a later owner.
    fn settle(&mut self, written: io::Result<()>) -> Result<(), AppendError> {
        let synced = written.and_then(|()| self.active.file.sync());
        let owner = synced.and_then(|()| self.storage.owner());
        let result = match owner {
            Ok(by) if by > self.epoch => Err(AppendError::Fenced { by }),
            Ok(_) => Ok(()),
            Err(error) => Err(AppendError::Failed(error)),
        };
        self.refuses = result.is_err();
        result
    }

    fn roll(&mut self, first: u64) -> Result<(), AppendError> {
        let name = SegmentName {
            epoch: self.epoch,
            id: self.active.name.id + 1,
        };
        let header = Header {
            name,
            before: Some(self.active.name),
            first,
            salt: self.storage.salt(),
        };
        let segment_bytes = self.segment_bytes;
        let file = match self.storage.begin(name, &header.encode(), segment_bytes) {
            Ok(file) => file,
            Err(error) if is_full(&error) => return Err(AppendError::DiskFull { segment_bytes }),
            Err(error) => {
                self.refuses = true;
                return Err(AppendError::Failed(error));
            }
        };
        let next = Arc::new(Segment {
            name,
            first,
            salt: header.salt,
            file,
            end: OnceLock::new(),
        });
        self.shared
            .segments
            .lock()
            .expect("no panic holds this lock")
            .push_back(Arc::clone(&next));
        let _ = self.active.end.set(first);
        self.active = next;
        self.at = HEADER_BYTES;
        self.prepared = false;
        Ok(())
    }
}

/// The segments that make up the log.
struct Chain<F> {
    segments: VecDeque<Arc<Segment<F>>>,
    /// Segments of owners that were fenced, and empty ones of earlier openings.
    left_over: Vec<SegmentName>,
}

impl<F: SegmentFile> Chain<F> {
    /// Follows the headers back from the newest segment.
    fn read<S: Storage<File = F>>(storage: &mut S) -> Result<Chain<F>, OpenError> {
        let mut names = storage.list()?;
        names.sort_unstable();
        let mut segments: VecDeque<Arc<Segment<F>>> = VecDeque::new();
        let mut next = names.last().copied();
        while let Some(name) = next {
            let file = storage.open(name)?;
            let mut page = vec![0; HEADER_BYTES as usize];
            let read = file.read_at(0, &mut page)?;
            let header = Header::decode(&page[..read]).filter(|header| header.name == name);
            let header = header.ok_or(Corruption::Header(name))?;
            let end = OnceLock::new();
            if let Some(after) = segments.front() {
                if header.first > after.first || name >= after.name {
                    return Err(Corruption::Header(name).into());
                }
                let _ = end.set(after.first);
            }
            segments.push_front(Arc::new(Segment {
                name,
                first: header.first,
                salt: header.salt,
                file,
                end,
            }));
            next = header.before.filter(|before| names.binary_search(before).is_ok());
            if let (None, Some(before)) = (next, header.before) {
                // Trimmed, unless an older segment is still there: segments are removed oldest first.
                if names.iter().any(|other| other.id <= before.id) {
                    return Err(Corruption::Missing(before).into());
                }
            }
        }
        names.retain(|name| !segments.iter().any(|segment| segment.name == *name));
        Ok(Chain {
            segments,
            left_over: names,
        })
    }
}

/// Where the last segment's frames end.
#[derive(Default)]
struct Tail {
    end: u64,
    at: u64,
    torn: bool,
    /// Position and bytes of the last frame.
    last_frame: (u64, Vec<u8>),
}

impl Tail {
    fn find<F: SegmentFile>(segment: &Segment<F>) -> Result<Tail, OpenError> {
        let mut tail = Tail {
            end: segment.first,
            at: HEADER_BYTES,
            ..Tail::default()
        };
        let mut bytes = Vec::new();
        loop {
            bytes.resize(FRAME_BYTES, 0);
            let read = segment.file.read_at(tail.at, &mut bytes)?;
            let frame = Frame::decode(&bytes[..read], segment.salt).filter(|frame| frame.first == tail.end);
            let Some(frame) = frame else { break };
            bytes.resize(frame.total_bytes() as usize, 0);
            let read = segment.file.read_at(tail.at, &mut bytes)?;
            let payload = bytes[..read].get(FRAME_BYTES..FRAME_BYTES + frame.payload_bytes);
            if !payload.is_some_and(|payload| frame.holds(payload, segment.salt)) {
                tail.torn = true;
                break;
            }
            if frame.seal {
                return Ok(tail);
            }
            tail.last_frame.0 = tail.at;
            std::mem::swap(&mut tail.last_frame.1, &mut bytes);
            tail.end += u64::from(frame.count);
            tail.at += frame.total_bytes();
        }
        if tail.frame_behind(segment)? {
            let damage = Corruption::Frame {
                segment: segment.name,
                at: tail.at,
                offset: tail.end,
            };
            return Err(damage.into());
        }
        Ok(tail)
    }

    /// The last frame may have been read from the cache only: its owner died before the sync, or the sync failed. It
    /// counts from now on, so it is written again.
    fn make_durable<F: SegmentFile>(&self, segment: &Segment<F>) -> io::Result<()> {
        let (at, bytes) = &self.last_frame;
        if bytes.is_empty() {
            return Ok(());
        }
        segment.file.write_at(*at, bytes)?;
        segment.file.sync()
    }

    /// Whether a later frame of this segment follows: it was written after the one at `at` was durable, so that one
    /// is damaged rather than torn.
    fn frame_behind<F: SegmentFile>(&self, segment: &Segment<F>) -> io::Result<bool> {
        let mut chunk = vec![0; SCAN_BYTES];
        let mut from = self.at + FRAME_ALIGN;
        loop {
            let read = segment.file.read_at(from, &mut chunk)?;
            let mut at = 0;
            while at + FRAME_BYTES <= read {
                let bytes = &chunk[at..at + FRAME_BYTES];
                if begins_frame(bytes) && Frame::decode(bytes, segment.salt).is_some_and(|frame| frame.first > self.end)
                {
                    return Ok(true);
                }
                at += FRAME_ALIGN as usize;
            }
            if read < chunk.len() {
                return Ok(false);
            }
            from += (SCAN_BYTES - FRAME_BYTES) as u64;
        }
    }
}
