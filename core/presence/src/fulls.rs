//! Full states that a gateway sends to writers: captured once as of a version, sent in paced chunks, kept until the
//! writer has them all.
//!
//! Owns: [`Fulls`]. Knows no session: the access point passes in the devices.

use crate::event::Entry;
use crate::limits::{FRAME_BYTES_MAX, FULLS_MAX, FULL_BURST_BYTES, FULL_IDLE, PACKET_EVENTS_BYTES_MAX};
use crate::wire::{Chunk, Entries, Message, Origin, Ranges};
use muster_transport::{Micros, Writer};
use std::collections::BTreeSet;

const SECOND: u64 = 1_000_000;

/// A full state being sent to a writer.
struct Full {
    writer: u32,
    transaction: u64,
    version: u64,
    chunks: Vec<Box<[u8]>>,
    /// Chunks to send, by index.
    waiting: BTreeSet<u32>,
    touched: Micros,
}

/// The full states of one gateway.
pub struct Fulls {
    fulls: Vec<Full>,
    bytes_per_second: u64,
    /// Bytes that may leave at `filled`.
    allowance: u64,
    filled: Micros,
}

impl Fulls {
    pub fn new(now: Micros, bytes_per_second: u64) -> Self {
        Fulls {
            fulls: Vec::new(),
            bytes_per_second: bytes_per_second.max(1),
            allowance: FULL_BURST_BYTES,
            filled: now,
        }
    }

    /// Requests chunks of a full state in progress, or all of it. `false`: there is none of this transaction.
    pub fn again(&mut self, now: Micros, writer: u32, transaction: u64, chunks: &Ranges) -> bool {
        let known = |full: &&mut Full| full.writer == writer && full.transaction == transaction;
        let Some(full) = self.fulls.iter_mut().find(known) else {
            return false;
        };
        full.touched = now;
        let count = full.chunks.len() as u32;
        if chunks.is_empty() && full.waiting.is_empty() {
            // Nothing of it arrived.
            full.waiting.extend(0..count);
        }
        for (first, last) in chunks {
            let last = (*last).min(u64::from(count.saturating_sub(1)));
            full.waiting.extend((*first..=last).map(|index| index as u32));
        }
        true
    }

    /// A writer has the whole state: frees its slot.
    pub fn taken(&mut self, writer: u32, transaction: u64) {
        self.fulls
            .retain(|full| (full.writer, full.transaction) != (writer, transaction));
    }

    /// Whether another state may be captured. A newer one of the same writer replaces its older one. If all slots are
    /// taken, a state whose chunks have all left makes room: a writer that misses a chunk of it asks for a new one.
    pub fn has_room(&mut self, now: Micros, writer: u32) -> bool {
        self.fulls
            .retain(|full| full.writer != writer && now < full.touched + FULL_IDLE);
        if self.fulls.len() >= FULLS_MAX {
            let left = self.fulls.iter().filter(|full| full.waiting.is_empty());
            if let Some(oldest) = left.map(|full| (full.touched, full.writer)).min() {
                self.fulls.retain(|full| full.writer != oldest.1);
            }
        }
        self.fulls.len() < FULLS_MAX
    }

    /// Captures the state as of `version`.
    pub fn begin(
        &mut self,
        now: Micros,
        writer: u32,
        transaction: u64,
        version: u64,
        entries: impl Iterator<Item = Entry>,
    ) {
        let chunks = cut(entries);
        self.fulls.push(Full {
            writer,
            transaction,
            version,
            waiting: (0..chunks.len() as u32).collect(),
            chunks,
            touched: now,
        });
    }

    /// Sends the chunks that may leave now, each to its writer.
    pub fn send(&mut self, now: Micros, origin: Origin, mut give: impl FnMut(u32, Vec<u8>)) {
        let gained = now.saturating_sub(self.filled).min(SECOND) * self.bytes_per_second / SECOND;
        if gained > 0 {
            self.allowance = (self.allowance + gained).min(FULL_BURST_BYTES);
            self.filled = now;
        }
        // One chunk of each in turn, so that a large state does not delay a small one.
        while self.allowance >= FRAME_BYTES_MAX as u64 {
            let Some(at) = self.fulls.iter().position(|full| !full.waiting.is_empty()) else {
                return;
            };
            let full = &mut self.fulls[at];
            let Some(index) = full.waiting.pop_first() else { return };
            full.touched = now;
            let chunk = Message::Chunk(Chunk {
                transaction: full.transaction,
                origin,
                version: full.version,
                index,
                count: full.chunks.len() as u32,
                entries: Entries(&full.chunks[index as usize]),
            });
            let bytes = chunk.to_frame();
            self.allowance -= bytes.len() as u64;
            give(full.writer, bytes);
            let turn = self.fulls.remove(at);
            self.fulls.push(turn);
        }
    }

    /// When more chunks may leave.
    pub fn deadline(&self) -> Option<Micros> {
        let waits = self.fulls.iter().any(|full| !full.waiting.is_empty());
        let lacks = (FRAME_BYTES_MAX as u64).saturating_sub(self.allowance);
        waits.then(|| self.filled + (lacks * SECOND).div_ceil(self.bytes_per_second))
    }
}

/// The chunks of a state: at least one, so that an empty state is sent too.
fn cut(entries: impl Iterator<Item = Entry>) -> Vec<Box<[u8]>> {
    let mut chunks = Vec::new();
    let mut bytes = [0; PACKET_EVENTS_BYTES_MAX];
    let mut writer = Writer::new(&mut bytes);
    for entry in entries {
        if entry.len() > writer.room() {
            chunks.push(writer.written().into());
            writer.truncate(0);
        }
        entry.write(&mut writer);
    }
    chunks.push(writer.written().into());
    chunks
}
