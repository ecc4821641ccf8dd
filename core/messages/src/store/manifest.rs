//! The content of a checkpoint: how much of the log each hour's files contain, so that the log can be trimmed.
//!
//! Owns the layout and its checks. Must not know: hours in memory, or when a checkpoint is due.

use super::op::{u32_at, u64_at};

const MAGIC: &[u8; 8] = b"MusterM1";
const HEAD_BYTES: usize = 32;
const HOUR_BYTES: usize = 24;

/// An hour's files at the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HourMark {
    pub hour: u32,
    /// Operations in its file.
    pub ops: u32,
    pub body_bytes: u64,
    /// Messages that have not ended.
    pub live: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Log records from this offset on are not in the files.
    pub applied: u64,
    /// Hours up to this one were loaded: their messages may be due in any other of them.
    pub loaded: u32,
    pub hours: Vec<HourMark>,
}

impl Manifest {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.hours.len() * HOUR_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.applied.to_le_bytes());
        bytes.extend_from_slice(&self.loaded.to_le_bytes());
        bytes.extend_from_slice(&(self.hours.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        for mark in &self.hours {
            bytes.extend_from_slice(&mark.hour.to_le_bytes());
            bytes.extend_from_slice(&mark.ops.to_le_bytes());
            bytes.extend_from_slice(&mark.body_bytes.to_le_bytes());
            bytes.extend_from_slice(&mark.live.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are no manifest or fail their checksum.
    pub fn decode(bytes: &[u8]) -> Option<Manifest> {
        let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if body.len() < HEAD_BYTES || &body[..8] != MAGIC || crc32c::crc32c(body) != u32_at(crc, 0) {
            return None;
        }
        let (head, hours) = body.split_at(HEAD_BYTES);
        if hours.len() != u32_at(head, 20) as usize * HOUR_BYTES {
            return None;
        }
        let hours = hours.chunks_exact(HOUR_BYTES).map(|bytes| HourMark {
            hour: u32_at(bytes, 0),
            ops: u32_at(bytes, 4),
            body_bytes: u64_at(bytes, 8),
            live: u32_at(bytes, 16),
        });
        Some(Manifest {
            applied: u64_at(head, 8),
            loaded: u32_at(head, 16),
            hours: hours.collect(),
        })
    }
}
