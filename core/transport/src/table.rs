//! A role's peers of one kind: sessions with clients, or links with other nodes.
//!
//! Owns the slots, the ids that stand in datagrams, the queue of peers that have something to send, and one timer per
//! peer. Knows no role; `T` is the role's data.

use std::collections::VecDeque;

use muster_ahead::fetch_part;

use crate::conn::Conn;
use crate::machine::Micros;
use crate::timer::Wheel;

/// Slots are allocated in pieces, so that growing neither copies nor doubles the memory of idle peers.
const PIECE: usize = 256;
const NEVER: Micros = Micros::MAX;

/// The fields of a role's data that every datagram needs should be within this many first bytes.
const HOT_DATA: usize = 64;

/// One peer: its connection and the role's data.
#[repr(C)] // so that fields that every datagram needs are adjacent
pub struct Peer<const BLOCKS: usize, T> {
    pub conn: Conn<BLOCKS>,
    scheduled: Micros,
    queued: bool,
    pub data: T,
}

/// A table of peers. An id is `random << 32 | slot`, so a datagram of an earlier connection matches no peer.
pub struct Table<const BLOCKS: usize, T> {
    pieces: Vec<Vec<Option<Peer<BLOCKS, T>>>>,
    free: Vec<u32>,
    live: usize,
    ready: VecDeque<u32>,
    wheel: Wheel,
}

impl<const BLOCKS: usize, T> Default for Table<BLOCKS, T> {
    fn default() -> Self {
        Table {
            pieces: Vec::new(),
            free: Vec::new(),
            live: 0,
            ready: VecDeque::new(),
            wheel: Wheel::new(),
        }
    }
}

impl<const BLOCKS: usize, T> Table<BLOCKS, T> {
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    fn place(&self, slot: u32) -> Option<&Option<Peer<BLOCKS, T>>> {
        self.pieces.get(slot as usize / PIECE)?.get(slot as usize % PIECE)
    }

    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Peer<BLOCKS, T>> {
        self.place(slot)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Peer<BLOCKS, T>> {
        self.pieces
            .get_mut(slot as usize / PIECE)?
            .get_mut(slot as usize % PIECE)?
            .as_mut()
    }

    /// Prefetches the memory that a datagram for the peer in a slot will need.
    #[inline]
    pub fn fetch(&self, slot: u32) {
        if let Some(place) = self.place(slot) {
            let data = std::mem::offset_of!(Peer<BLOCKS, T>, data);
            fetch_part(place, Conn::<BLOCKS>::HOT..data + HOT_DATA);
            self.wheel.fetch(slot);
        }
    }

    /// The slot of the connection with this id, if that connection still exists.
    #[inline]
    pub fn find(&self, id: u64) -> Option<u32> {
        let slot = id as u32;
        (self.get(slot)?.conn.id == id).then_some(slot)
    }

    /// Reserves an empty slot, and returns the id for a connection that is being opened.
    pub fn reserve(&mut self, random: u32) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
                self.pieces.push(Vec::with_capacity(PIECE));
            }
            let next = (self.pieces.len() - 1) * PIECE + self.pieces[self.pieces.len() - 1].len();
            self.pieces[next / PIECE].push(None);
            next as u32
        });
        u64::from(random) << 32 | u64::from(slot)
    }

    /// Releases a slot that was reserved or emptied.
    pub fn release(&mut self, id: u64) {
        let slot = id as u32;
        if self.place(slot).is_some_and(Option::is_none) {
            self.free.push(slot);
        }
    }

    /// Fills a reserved slot.
    pub fn fill(&mut self, id: u64, conn: Conn<BLOCKS>, data: T) -> u32 {
        let slot = id as u32;
        self.pieces[slot as usize / PIECE][slot as usize % PIECE] = Some(Peer {
            conn,
            data,
            queued: false,
            scheduled: NEVER,
        });
        self.live += 1;
        slot
    }

    /// Adds a peer; `make` gets the id that it will have. `random` makes the id unguessable and unlike earlier ones.
    pub fn insert(&mut self, random: u32, make: impl FnOnce(u64) -> (Conn<BLOCKS>, T)) -> u32 {
        let id = self.reserve(random);
        let (conn, data) = make(id);
        self.fill(id, conn, data)
    }

    pub fn remove(&mut self, slot: u32) -> Option<Peer<BLOCKS, T>> {
        let peer = self.take(slot)?;
        self.free.push(slot);
        Some(peer)
    }

    /// Empties a slot, which stays reserved until it is released.
    pub fn take(&mut self, slot: u32) -> Option<Peer<BLOCKS, T>> {
        let peer = self
            .pieces
            .get_mut(slot as usize / PIECE)?
            .get_mut(slot as usize % PIECE)?
            .take()?;
        if peer.scheduled != NEVER {
            self.wheel.cancel(slot);
        }
        self.live -= 1;
        Some(peer)
    }

    /// Upper bound of slot numbers, exclusive.
    pub fn capacity(&self) -> u32 {
        self.pieces.iter().map(Vec::len).sum::<usize>() as u32
    }

    /// Slots in use.
    pub fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.capacity()).filter(|slot| self.get(*slot).is_some())
    }

    /// Adds the peer to the queue of those that have something to send.
    #[inline]
    pub fn mark(&mut self, slot: u32) {
        if let Some(peer) = self.get_mut(slot) {
            if !peer.queued {
                peer.queued = true;
                self.ready.push_back(slot);
            }
        }
    }

    /// Whether the peer is queued to send.
    pub fn waits(&self, slot: u32) -> bool {
        self.get(slot).is_some_and(|peer| peer.queued)
    }

    /// Takes the next peer that has something to send from the queue.
    #[inline]
    pub fn next_ready(&mut self) -> Option<u32> {
        while let Some(slot) = self.ready.pop_front() {
            if let Some(peer) = self.get_mut(slot) {
                if peer.queued {
                    peer.queued = false;
                    return Some(slot);
                }
            }
        }
        None
    }

    /// Peers in the queue, gone ones included.
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Schedules the peer at `at`. An earlier scheduled time stands.
    #[inline]
    pub fn schedule(&mut self, slot: u32, at: Option<Micros>) {
        let Some(at) = at else { return };
        let Some(peer) = self.get_mut(slot) else { return };
        if at < peer.scheduled {
            peer.scheduled = at;
            self.wheel.schedule(slot, at);
        }
    }

    /// Schedules the peer at `at`, even if that is later than the time scheduled: for when the awaited event has
    /// come.
    pub fn postpone(&mut self, slot: u32, at: Option<Micros>) {
        let Some(at) = at else { return };
        let Some(peer) = self.get_mut(slot) else { return };
        if at != peer.scheduled {
            peer.scheduled = at;
            self.wheel.schedule(slot, at);
        }
    }

    /// The next peer that is due.
    pub fn pop_due(&mut self, now: Micros) -> Option<u32> {
        while let Some(slot) = self.wheel.pop(now) {
            if let Some(peer) = self.get_mut(slot) {
                peer.scheduled = NEVER;
                return Some(slot);
            }
        }
        None
    }

    /// When [`Table::pop_due`] returns the next peer.
    pub fn deadline(&self) -> Option<Micros> {
        self.wheel.next()
    }
}
