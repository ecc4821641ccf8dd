//! Frames that wait for the links that carry them.
//!
//! Owns [`Mail`]: a queue per node, bounded in bytes. A full queue drops what is new and counts it: the senders of these frames
//! repeat them by clocks of their own. Knows no frame's meaning.

use std::collections::{BTreeMap, VecDeque};

use crate::codec::Writer;
use crate::links::Links;

/// Bytes that wait for one node: at 1,100 B a frame, 950 frames, more than a link has in flight.
pub const MAIL_BYTES_MAX: usize = 1 << 20;
/// The cost of a frame beside its bytes.
const FRAME_COST: usize = 32;

#[derive(Default)]
struct Waiting {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// Frames by the node that they are for.
#[derive(Default)]
pub struct Mail {
    waiting: BTreeMap<u32, Waiting>,
    /// Frames dropped: the node has no link, or too much waits for it.
    pub dropped: u64,
}

impl Mail {
    /// Takes a whole frame for a linked node. `false`: it is dropped.
    pub fn send(&mut self, links: &mut Links, node: u32, frame: Vec<u8>) -> bool {
        let cost = FRAME_COST + frame.len();
        let slot = links.to(node);
        let waiting = slot.map(|_| self.waiting.entry(node).or_default());
        let (Some(slot), Some(waiting)) = (slot, waiting.filter(|known| known.bytes + cost <= MAIL_BYTES_MAX)) else {
            self.dropped += 1;
            return false;
        };
        waiting.bytes += cost;
        waiting.frames.push_back(frame);
        links.table.mark(slot);
        true
    }

    /// Whether anything waits for a node.
    pub fn waits(&self, node: u32) -> bool {
        self.waiting.contains_key(&node)
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes as many of a node's frames as fit. Returns whether any did.
    pub fn fill(&mut self, node: u32, writer: &mut Writer<'_>) -> bool {
        let Some(waiting) = self.waiting.get_mut(&node) else {
            return false;
        };
        let mut wrote = false;
        while let Some(frame) = waiting.frames.front().filter(|frame| frame.len() <= writer.room()) {
            writer.put(frame);
            waiting.bytes -= FRAME_COST + frame.len();
            waiting.frames.pop_front();
            wrote = true;
        }
        if waiting.frames.is_empty() {
            self.waiting.remove(&node);
        }
        wrote
    }

    /// The node's link is lost: what waited for it is of no use any more.
    pub fn forget(&mut self, node: u32) {
        if let Some(waiting) = self.waiting.remove(&node) {
            self.dropped += waiting.frames.len() as u64;
        }
    }
}
