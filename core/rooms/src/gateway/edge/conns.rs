//! The connections of an edge, by slot: those that are there, those with something to send, and when each is looked at.
//!
//! Owns these, and what their streams are to do. What a connection has is [`Conn`]'s own.

use std::collections::VecDeque;

use muster_transport::{Micros, Wheel};

use super::orders::Orders;
use super::Conn;

pub(super) struct Conns {
    by_slot: Vec<Option<Box<Conn>>>,
    len: usize,
    ready: VecDeque<u32>,
    wheel: Wheel,
    pub orders: Orders,
}

impl Conns {
    pub fn new() -> Self {
        Conns {
            by_slot: Vec::new(),
            len: 0,
            ready: VecDeque::new(),
            wheel: Wheel::new(),
            orders: Orders::default(),
        }
    }

    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Conn> {
        self.by_slot.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Conn> {
        self.by_slot.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Connections that are there.
    pub fn len(&self) -> usize {
        self.len
    }

    /// All connections with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Conn)> {
        let conns = (0..).zip(&self.by_slot);
        conns.filter_map(|(slot, conn)| Some((slot, conn.as_deref()?)))
    }

    pub fn add(&mut self, slot: u32, conn: Conn) {
        let at = slot as usize;
        if self.by_slot.len() <= at {
            self.by_slot.resize_with(at + 1, || None);
        }
        self.len += 1;
        self.by_slot[at] = Some(Box::new(conn));
    }

    pub fn remove(&mut self, slot: u32) -> Option<Box<Conn>> {
        let conn = self.by_slot.get_mut(slot as usize)?.take()?;
        self.wheel.cancel(slot);
        self.len -= 1;
        Some(conn)
    }

    /// A connection has something to send, or may have.
    pub fn mark(&mut self, slot: u32) {
        let Some(conn) = self.get_mut(slot) else { return };
        if !std::mem::replace(&mut conn.queued, true) {
            self.ready.push_back(slot);
        }
    }

    /// How many have something to send.
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// The next of them.
    pub fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Notes what a connection waits for now.
    pub fn settle(&mut self, now: Micros, slot: u32) {
        let Some(conn) = self.by_slot.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        let full = conn.connection.is_full();
        if full != conn.paused {
            conn.paused = full;
            self.orders.read(conn.stream, !full);
        }
        let deadline = [conn.connection.deadline(), conn.server_subs.again_at()]
            .into_iter()
            .flatten()
            .min();
        match deadline {
            Some(at) => self.wheel.schedule(slot, at.max(now)),
            None => self.wheel.cancel(slot),
        }
        if conn.connection.has_bytes() || conn.connection.is_done() {
            self.mark(slot);
        }
    }

    /// A connection whose time has come.
    pub fn due(&mut self, now: Micros) -> Option<u32> {
        self.wheel.pop(now)
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.wheel.next()
    }
}
