//! The messages due within one hour of the clock: two files, their unwritten ends in memory, and the remaining order.
//!
//! Owns: the unwritten ends, the order of a loaded hour. Must not know: the index, the log.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use super::files::{FileName, Files};
use super::op::{frame_head, Op, FRAME_BYTES, OP_BYTES};
use crate::schedule::MessageId;
use crate::wheel::Millis;

pub(crate) const HOUR_MS: Millis = 3_600_000;

/// Dead letters are stored in separate hours, one for each day: above all hours of the clock, which end at
/// 19,546,850.
pub(crate) const DEAD_BASE: u32 = 1 << 30;
const DAY_MS: Millis = 24 * HOUR_MS;

/// The hour of a time below `DUE_MAX`.
pub(crate) fn hour_of(time: Millis) -> u32 {
    (time / HOUR_MS) as u32
}

/// The hour for dead letters of a day.
pub(crate) fn dead_hour_of(time: Millis) -> u32 {
    DEAD_BASE + (time / DAY_MS) as u32
}

/// A file that only grows, with its unwritten end in memory.
#[derive(Default)]
pub(crate) struct Tail {
    flushed: u64,
    buf: Vec<u8>,
}

impl Tail {
    pub fn at(flushed: u64) -> Self {
        Tail {
            flushed,
            buf: Vec::new(),
        }
    }

    pub fn len(&self) -> u64 {
        self.flushed + self.buf.len() as u64
    }

    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    pub fn buffered(&self) -> &[u8] {
        &self.buf
    }

    /// A copy that ends at byte `end`, with the bytes in memory.
    pub fn until(&self, end: u64) -> Tail {
        let in_memory = end.saturating_sub(self.flushed) as usize;
        Tail {
            flushed: self.flushed.min(end),
            buf: self.buf[..in_memory].to_vec(),
        }
    }

    pub fn append(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Fills `out` from byte `at`; it is an error if the file is shorter.
    pub fn read<F: Files>(&self, files: &F, name: FileName, at: u64, out: &mut [u8]) -> io::Result<()> {
        let on_disk = (self.flushed.saturating_sub(at) as usize).min(out.len());
        let (disk, memory) = out.split_at_mut(on_disk);
        if !disk.is_empty() && files.read_at(name, at, disk)? < disk.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let from = (at + on_disk as u64 - self.flushed.min(at + on_disk as u64)) as usize;
        match self.buf.get(from..from + memory.len()) {
            _ if memory.is_empty() => {}
            Some(bytes) => memory.copy_from_slice(bytes),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    /// Writes the bytes in memory; returns their number. After an error they are still in memory.
    pub fn flush<F: Files>(&mut self, files: &F, name: FileName) -> io::Result<usize> {
        if self.buf.is_empty() {
            return Ok(0);
        }
        files.write_at(name, self.flushed, &self.buf)?;
        let written = self.buf.len();
        self.flushed += written as u64;
        // Not kept: with many hours, capacities would exceed the limit of the buffers.
        self.buf = Vec::new();
        Ok(written)
    }
}

/// Whether the order of an hour is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Far,
    Loading,
    Loaded,
}

pub(crate) struct Hour {
    pub hour: u32,
    pub ops: Tail,
    pub bodies: Tail,
    /// Messages that have not ended.
    pub live: u32,
    /// Written since the last checkpoint.
    pub dirty: bool,
    pub load: Load,
    /// Operations by wake time, latest first, as of loading the hour. Outdated ones are skipped.
    sorted: Vec<(Millis, u32)>,
    /// Operations added since then, by wake time.
    late: BinaryHeap<Reverse<(Millis, u32)>>,
}

impl Hour {
    pub fn new(hour: u32, ops: u32, body_bytes: u64, live: u32, load: Load) -> Self {
        Hour {
            hour,
            ops: Tail::at(u64::from(ops) * OP_BYTES as u64),
            bodies: Tail::at(body_bytes),
            live,
            dirty: false,
            load,
            sorted: Vec::new(),
            late: BinaryHeap::new(),
        }
    }

    pub fn op_count(&self) -> u32 {
        (self.ops.len() / OP_BYTES as u64) as u32
    }

    pub fn buffered(&self) -> usize {
        self.ops.buffered().len() + self.bodies.buffered().len()
    }

    /// Adds an operation; returns its number.
    pub fn append_op(&mut self, bytes: &[u8]) -> u32 {
        let number = self.op_count();
        self.ops.append(bytes);
        number
    }

    pub fn append_body(&mut self, id: MessageId, body: &[u8]) {
        self.bodies.append(&frame_head(id, body));
        self.bodies.append(body);
    }

    pub fn read_op<F: Files>(&self, files: &F, number: u32) -> io::Result<Op> {
        let mut bytes = [0; OP_BYTES];
        let at = u64::from(number) * OP_BYTES as u64;
        self.ops.read(files, FileName::Ops(self.hour), at, &mut bytes)?;
        Op::decode(&bytes).ok_or_else(|| damaged("operation", self.hour, at))
    }

    /// Reads the body of `op` into `out` and checks it.
    pub fn read_body<F: Files>(&self, files: &F, op: &Op, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        out.resize(FRAME_BYTES + op.body_bytes as usize, 0);
        self.bodies.read(files, FileName::Bodies(self.hour), op.body_at, out)?;
        let head = frame_head(op.id, &out[FRAME_BYTES..]);
        if head != out[..FRAME_BYTES] {
            return Err(damaged("body", self.hour, op.body_at));
        }
        out.drain(..FRAME_BYTES);
        Ok(())
    }

    pub fn flush<F: Files>(&mut self, files: &F) -> io::Result<usize> {
        let bodies = self.bodies.flush(files, FileName::Bodies(self.hour))?;
        let ops = self.ops.flush(files, FileName::Ops(self.hour))?;
        Ok(bodies + ops)
    }

    /// Sets the order of the operations, latest time first.
    pub fn set_sorted(&mut self, sorted: Vec<(Millis, u32)>) {
        self.sorted = sorted;
        self.load = Load::Loaded;
    }

    /// Notes when an operation wakes, unless loading will find it.
    pub fn wakes(&mut self, at: Millis, op: u32) {
        if self.load != Load::Far {
            self.late.push(Reverse((at, op)));
        }
    }

    /// The next operation that wakes before `horizon`. `None` before the hour is loaded, so that they come in order.
    pub fn next_before(&mut self, horizon: Millis) -> Option<u32> {
        if self.load != Load::Loaded {
            return None;
        }
        let sorted = self.sorted.last().copied();
        let late = self.late.peek().map(|Reverse(entry)| *entry);
        let next = match (sorted, late) {
            (Some(sorted), Some(late)) => sorted.min(late),
            (one, other) => one.or(other)?,
        };
        if next.0 >= horizon {
            return None;
        }
        if sorted == Some(next) {
            self.sorted.pop();
            if self.sorted.is_empty() {
                self.sorted = Vec::new();
            }
        } else {
            self.late.pop();
        }
        Some(next.1)
    }

    /// Bytes of memory in use.
    pub fn memory(&self) -> usize {
        let buffers = self.ops.buf.capacity() + self.bodies.buf.capacity();
        let order = self.sorted.capacity() + self.late.capacity();
        size_of::<Self>() + buffers + order * size_of::<(Millis, u32)>()
    }
}

pub(crate) fn damaged(what: &str, hour: u32, at: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("damaged {what} in hour {hour:08x} at byte {at}"),
    )
}
