//! The last packets of a gateway, for writers that missed some.
//!
//! Owns: [`Ring`], bounded in bytes; the oldest packets make room. Knows no writer.

use crate::event::Event;
use crate::version::after;
use crate::wire::Events;
use std::collections::VecDeque;

/// Bytes that a packet costs besides its events.
const PACKET_BYTES: usize = 24;

/// Packets of consecutive versions.
#[derive(Debug)]
pub struct Ring {
    /// The version of the last packet, kept or not.
    newest: u64,
    packets: VecDeque<Box<[u8]>>,
    bytes: usize,
    bytes_max: usize,
}

impl Ring {
    /// An empty ring after `newest`.
    pub fn new(newest: u64, bytes_max: usize) -> Self {
        Ring {
            newest,
            packets: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Keeps the events of the next version.
    pub fn push(&mut self, events: &[u8]) {
        self.newest = self.newest.wrapping_add(1);
        self.bytes += PACKET_BYTES + events.len();
        self.packets.push_back(events.into());
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.packets.pop_front() else { return };
            self.bytes -= PACKET_BYTES + oldest.len();
        }
    }

    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The oldest version kept; the one after the newest if none is.
    pub fn oldest(&self) -> u64 {
        self.newest.wrapping_sub(self.packets.len() as u64).wrapping_add(1)
    }

    /// The events of a version, if it is kept.
    pub fn get(&self, version: u64) -> Option<Vec<Event>> {
        if after(version, self.newest) {
            return None;
        }
        let back = self.newest.wrapping_sub(version);
        let at = (self.packets.len() as u64).checked_sub(back + 1)?;
        Events(self.packets.get(at as usize)?).read()
    }
}
