//! One room at its owner: the ring of numbered messages and a cursor for each gateway that wants them.

use crate::machine::Micros;
use crate::ring::{Arena, Ring};

/// A gateway's place in a room.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    pub gateway: u32,
    /// The first offset that this gateway is to have.
    pub base: u64,
    /// The next offset to send.
    pub next: u64,
    /// The first offset that the gateway says it lacks.
    pub consumed: u64,
    /// In the gateway's queue of rooms with something to send.
    pub queued: bool,
    pub head_due: bool,
    /// Since when it is more than half a ring behind.
    pub behind_since: Option<Micros>,
}

/// One room.
pub struct Room {
    pub id: u64,
    /// The other 64 bits of the name's hash: whoever names the room first has it.
    pub check: u64,
    pub generation: u32,
    /// What its built frames are known by.
    pub frames: u32,
    pub ring: Ring,
    pub gateways: Vec<Cursor>,
    /// Publishers that were told to wait.
    pub withheld: Vec<u32>,
    pub used_at: Micros,
}

impl Room {
    pub fn new(id: u64, check: u64, generation: u32, frames: u32, now: Micros) -> Self {
        Room {
            id,
            check,
            generation,
            frames,
            ring: Ring::new(1),
            gateways: Vec::new(),
            withheld: Vec::new(),
            used_at: now,
        }
    }

    pub fn cursor(&mut self, gateway: u32) -> Option<&mut Cursor> {
        self.gateways.iter_mut().find(|cursor| cursor.gateway == gateway)
    }

    /// Bytes of the ring that `consumed` is behind the head.
    fn behind(&self, consumed: u64) -> usize {
        let len = self.ring.len() as u64;
        if len == 0 {
            return 0;
        }
        let behind = self.ring.next().saturating_sub(consumed).min(len);
        (self.ring.bytes() as u64 * behind / len) as usize
    }

    /// Whether publishers are to wait for a gateway that is more than half a ring behind, for half a second at most.
    pub fn withholds(&mut self, arena: &Arena, now: Micros, live: impl Fn(u32) -> bool, wait: Micros) -> bool {
        let half = arena.room_bytes_max() / 2;
        if self.ring.bytes() <= half {
            self.gateways.iter_mut().for_each(|cursor| cursor.behind_since = None);
            return false;
        }
        let mut withholds = false;
        for at in 0..self.gateways.len() {
            let behind = self.behind(self.gateways[at].consumed) > half;
            let cursor = &mut self.gateways[at];
            if !behind {
                cursor.behind_since = None;
            } else if live(cursor.gateway) {
                let since = *cursor.behind_since.get_or_insert(now);
                withholds |= now < since + wait;
            }
        }
        withholds
    }
}
