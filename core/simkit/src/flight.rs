//! Datagrams in transit.
//!
//! They are stored here, so that events of the agenda stay small and cheap to move.

use crate::{Addr, SocketId};

pub struct Datagram {
    pub to: u32,
    pub socket: SocketId,
    pub from: Addr,
    pub bytes: Vec<u8>,
}

#[derive(Default)]
pub struct Flight {
    places: Vec<Option<Datagram>>,
    free: Vec<u32>,
}

impl Flight {
    /// Stores a datagram until it arrives; returns its slot.
    pub fn put(&mut self, datagram: Datagram) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(datagram);
        place
    }

    /// Takes the datagram in a slot; each arrives once.
    pub fn take(&mut self, place: u32) -> Datagram {
        let datagram = self.places[place as usize].take();
        self.free.push(place);
        datagram.expect("a datagram arrives once")
    }
}
