//! A full state being received: chunks in any order, some twice, some lost.
//!
//! Owns: [`Assembly`]. Knows no gateway and no place. Memory grows with received chunks, never with the announced
//! count.

use crate::event::Entry;
use crate::limits::RANGES_MAX;
use crate::wire::Ranges;
use std::collections::BTreeMap;

/// The chunks of one state, as of one version in one life of a gateway.
pub struct Assembly {
    pub epoch: u32,
    pub version: u64,
    count: u32,
    chunks: BTreeMap<u32, Vec<Entry>>,
}

impl Assembly {
    pub fn new(epoch: u32, version: u64, count: u32) -> Self {
        Assembly {
            epoch,
            version,
            count,
            chunks: BTreeMap::new(),
        }
    }

    /// Whether a chunk of such a state belongs here.
    pub fn is(&self, epoch: u32, version: u64, count: u32) -> bool {
        (self.epoch, self.version, self.count) == (epoch, version, count)
    }

    pub fn put(&mut self, index: u32, entries: Vec<Entry>) {
        self.chunks.entry(index).or_insert(entries);
    }

    pub fn is_complete(&self) -> bool {
        self.chunks.len() as u64 == u64::from(self.count)
    }

    /// Missing chunks; if there are many, the first of them.
    pub fn missing(&self) -> Ranges {
        let mut ranges = Ranges::new();
        let mut next = 0;
        for index in self.chunks.keys().copied().chain([self.count]) {
            if index > next && ranges.len() < RANGES_MAX {
                ranges.push((u64::from(next), u64::from(index) - 1));
            }
            next = index + 1;
        }
        ranges
    }

    /// All devices.
    pub fn entries(self) -> Vec<Entry> {
        self.chunks.into_values().flatten().collect()
    }
}
