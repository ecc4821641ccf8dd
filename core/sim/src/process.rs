//! One process: a role machine behind its sockets, turned as the driver turns it.
//!
//! Owns the queue in front of the machine (a socket buffer with its bound), the machine's next turn, and the watch that its
//! deadlines do not spin. Knows no network and no oracle.

use std::collections::VecDeque;

use muster_proto::broker::Broker;
use muster_proto::client::Client;
use muster_proto::flow::charge;
use muster_proto::gateway::Gateway;
use muster_proto::machine::{Addr, Arrival, Inbox, Machine, Micros, Outbox, SocketId};
use muster_proto::proxy::Proxy;
use muster_proto::router::Router;

/// A socket's receive buffer, as Linux gives it by default.
pub const BUFFER_BYTES: u64 = 212_992;
/// A turn that comes this late has stood still (`muster-driver`).
const STALL: Micros = 500_000;
/// Datagrams that a turn takes in one batch.
const BATCH: usize = 64;
/// Slices that a turn sends.
const SLICES: usize = 8;
/// Turns in a row that neither took nor gave anything while the machine's deadline stood in the past.
const SPIN_MAX: u32 = 50;
/// Turns of one second that neither took nor gave anything.
const IDLE_TURNS_MAX: u32 = 2_500;

pub enum Role {
    Gateway(Box<Gateway>),
    Proxy(Box<Proxy>),
    Broker(Box<Broker>),
    Router(Box<Router>),
    Client(Box<Client>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Up,
    Paused,
    Down,
    Removed,
}

pub struct Queued {
    pub socket: SocketId,
    pub from: Addr,
    pub bytes: Vec<u8>,
}

/// A datagram on its way out.
pub struct Sent {
    pub socket: SocketId,
    pub to: Addr,
    pub bytes: Vec<u8>,
}

/// What turns work with, one after the other, so that it is not made anew for each.
pub struct Bench {
    pub outbox: Outbox,
    /// What the turn sent.
    pub sent: Vec<Sent>,
    pub spare: Spare,
    slab: Vec<u8>,
    arrivals: Vec<Arrival>,
}

/// What datagrams at their end leave behind for others.
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

pub struct Process {
    pub role: Role,
    pub state: State,
    pub epoch: u32,
    pub addrs: Vec<Addr>,
    queue: VecDeque<Queued>,
    queued: u64,
    pub overflowed: u64,
    expected: Option<Micros>,
    spins: u32,
    idle_turns: u32,
    idle_since: Micros,
    pub datagrams_in: u64,
}

impl Process {
    pub fn new(role: Role, epoch: u32, addrs: Vec<Addr>) -> Self {
        Process {
            role,
            state: State::Up,
            epoch,
            addrs,
            queue: VecDeque::new(),
            queued: 0,
            overflowed: 0,
            expected: None,
            spins: 0,
            idle_turns: 0,
            idle_since: 0,
            datagrams_in: 0,
        }
    }

    /// Whether there is a process, be it one that stands still.
    pub fn is_alive(&self) -> bool {
        matches!(self.state, State::Up | State::Paused)
    }

    /// Puts a datagram into the socket's buffer, if there is one and it has space.
    pub fn deliver(&mut self, datagram: Queued) {
        let cost = charge(datagram.bytes.len());
        if !self.is_alive() {
            return;
        }
        if self.queued + cost > BUFFER_BYTES {
            self.overflowed += 1;
            return;
        }
        self.queued += cost;
        self.queue.push_back(datagram);
    }

    pub fn die(&mut self) {
        self.state = State::Down;
        self.queue.clear();
        self.queued = 0;
    }

    /// One turn. What it sends goes to the end of the bench's `sent`; the result is when the next turn is due.
    pub fn turn(&mut self, now: Micros, bench: &mut Bench) -> Result<Option<Micros>, String> {
        let late = self.expected.map_or(0, |at| now.saturating_sub(at));
        let before = (self.queue.len(), bench.sent.len());
        let mut turn = Turn {
            now,
            stalled: late > STALL,
            queue: &mut self.queue,
            bench,
        };
        let (more, deadline) = match &mut self.role {
            Role::Gateway(machine) => turn.of(machine.as_mut()),
            Role::Proxy(machine) => turn.of(machine.as_mut()),
            Role::Broker(machine) => turn.of(machine.as_mut()),
            Role::Router(machine) => turn.of(machine.as_mut()),
            Role::Client(machine) => turn.of(machine.as_mut()),
        };
        self.queued = 0;
        self.datagrams_in += before.0 as u64;
        let idle = before.0 == 0 && bench.sent.len() == before.1;
        self.spins = if idle && deadline.is_some_and(|at| at <= now) {
            self.spins + 1
        } else {
            0
        };
        if self.spins > SPIN_MAX {
            return Err(format!("spins: its deadline {deadline:?} stays in the past at {now}"));
        }
        if now >= self.idle_since + 1_000_000 {
            (self.idle_turns, self.idle_since) = (0, now);
        }
        let woke = self.expected.is_some_and(|at| at <= now);
        self.idle_turns += u32::from(idle && woke);
        if self.idle_turns > IDLE_TURNS_MAX {
            return Err(format!("turns {} times within a second for nothing", self.idle_turns));
        }
        let next = if more {
            Some(now + 100)
        } else {
            deadline.map(|at| at.max(now + 1))
        };
        self.expected = next;
        Ok(next)
    }
}

struct Turn<'a> {
    now: Micros,
    stalled: bool,
    queue: &'a mut VecDeque<Queued>,
    bench: &'a mut Bench,
}

impl Turn<'_> {
    fn of<M: Machine>(&mut self, machine: &mut M) -> (bool, Option<Micros>) {
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
        // Who discards nothing hears what lies in the sockets before time passes, as in the driver.
        if due && !M::DISCARDS_STALE {
            machine.expire(self.now);
            more = self.transmit(machine);
        }
        (more, machine.deadline())
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
            // A machine that says "more" and gives nothing would be asked for ever.
            if !more || outbox.is_empty() {
                return false;
            }
        }
        true
    }
}
