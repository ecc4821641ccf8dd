//! The node of a process, and one turn of it, like the driver's turn of a machine.
//!
//! Owns the batches in and out, and the state that a turn leaves for the next. Knows no network.

use std::collections::VecDeque;

use crate::{Addr, Arrival, Inbox, Machine, Micros, Outbox, SocketId};

/// Maximum number of datagrams that a turn takes in one batch.
const BATCH: usize = 64;
/// Maximum number of slices that a turn sends.
const SLICES: usize = 8;

/// The node of a process. Every [`Machine`] is one; a system with several kinds uses an enum whose turn calls
/// [`Turn::of`]. A node that is no machine takes and sends datagrams by itself.
pub trait Node {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned;
}

impl<M: Machine> Node for M {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        turn.of(self)
    }
}

/// When a node wants its next turn, by its own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turned {
    /// More datagrams could leave at once.
    pub more: bool,
    pub deadline: Option<Micros>,
}

/// A datagram in a socket's buffer.
pub struct Queued {
    pub socket: SocketId,
    pub from: Addr,
    pub bytes: Vec<u8>,
}

/// A sent datagram.
pub struct Sent {
    pub socket: SocketId,
    pub to: Addr,
    pub bytes: Vec<u8>,
}

/// The buffers of turns, reused by one turn after the other.
pub struct Bench {
    outbox: Outbox,
    /// The datagrams that the turn sent.
    pub sent: Vec<Sent>,
    pub spare: Spare,
    slab: Vec<u8>,
    arrivals: Vec<Arrival>,
}

/// Buffers of delivered datagrams, for reuse.
#[derive(Default)]
pub struct Spare(Vec<Vec<u8>>);

impl Bench {
    pub fn new(outbox: Outbox) -> Self {
        Bench {
            outbox,
            sent: Vec::new(),
            spare: Spare::default(),
            slab: Vec::new(),
            arrivals: Vec::new(),
        }
    }
}

impl Spare {
    pub fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.0.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        copy
    }

    pub fn done(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.0.push(bytes);
    }
}

/// One turn of a process.
pub struct Turn<'a> {
    pub(crate) now: Micros,
    pub(crate) stalled: bool,
    pub(crate) queue: &'a mut VecDeque<Queued>,
    pub(crate) bench: &'a mut Bench,
}

impl Turn<'_> {
    /// The time by the process's own clock.
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Whether the process stood still until now.
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// The next datagram in the sockets: its socket, sender and bytes.
    pub fn take(&mut self) -> Option<(SocketId, Addr, Vec<u8>)> {
        let Queued { socket, from, bytes } = self.queue.pop_front()?;
        Some((socket, from, bytes))
    }

    /// Sends a datagram.
    pub fn send(&mut self, socket: SocketId, to: Addr, bytes: &[u8]) {
        let bytes = self.bench.spare.copy(bytes);
        self.bench.sent.push(Sent { socket, to, bytes });
    }

    /// A machine's turn: passes in received datagrams, runs due timers, and sends.
    pub fn of<M: Machine>(&mut self, machine: &mut M) -> Turned {
        if self.stalled {
            if M::DISCARDS_STALE {
                self.queue.clear();
            }
            machine.stalled(self.now);
        }
        let due = machine.deadline().is_some_and(|at| at <= self.now);
        if due && M::DISCARDS_STALE {
            machine.expire(self.now);
        }
        let mut more = self.transmit(machine);
        while !self.queue.is_empty() {
            let count = self.queue.len().min(BATCH);
            self.bench.slab.clear();
            self.bench.arrivals.clear();
            for datagram in self.queue.drain(..count) {
                self.bench.arrivals.push(Arrival {
                    socket: datagram.socket,
                    from: datagram.from,
                    start: self.bench.slab.len() as u32,
                    len: datagram.bytes.len() as u32,
                });
                self.bench.slab.extend_from_slice(&datagram.bytes);
                self.bench.spare.done(datagram.bytes);
            }
            let Bench { slab, arrivals, .. } = &mut *self.bench;
            machine.receive(self.now, &mut Inbox { slab, arrivals });
            more = self.transmit(machine);
        }
        // A machine that does not discard stale datagrams receives those in the sockets before its timers run, as in
        // the driver.
        if due && !M::DISCARDS_STALE {
            machine.expire(self.now);
            more = self.transmit(machine);
        }
        let deadline = machine.deadline();
        Turned { more, deadline }
    }

    fn transmit<M: Machine>(&mut self, machine: &mut M) -> bool {
        for _ in 0..SLICES {
            let Bench {
                outbox, sent, spare, ..
            } = &mut *self.bench;
            outbox.clear();
            let more = machine.transmit(self.now, outbox);
            for parcel in outbox.parcels() {
                for bytes in outbox.bytes(parcel).chunks(usize::from(parcel.segment)) {
                    let (socket, to) = (parcel.socket, parcel.to);
                    let bytes = spare.copy(bytes);
                    sent.push(Sent { socket, to, bytes });
                }
            }
            // A machine that promises more and gives nothing would be asked forever.
            if !more || outbox.is_empty() {
                return false;
            }
        }
        true
    }
}
