//! One process: a node behind its sockets.
//!
//! Owns the queue before the node (a bounded socket buffer), its clock, its next turn, and the check that its
//! deadlines do not spin. Knows no network and no system.

use std::collections::VecDeque;

use crate::node::{Bench, Node, Queued, Turn, Turned};
use crate::{charge, Addr, Clock, Micros, MS, SECOND};

/// A socket's default receive buffer on Linux.
const BUFFER_BYTES: u64 = 212_992;
/// A turn that comes this late counts as a standstill (`muster-driver`).
const STALL: Micros = 500 * MS;
/// Delay of a turn that was requested at once.
const AT_ONCE: Micros = 100;
/// Maximum number of turns in a row without input or output while the node's deadline is in the past.
const SPIN_MAX: u32 = 50;
/// Maximum number of turns within one second without input or output.
const IDLE_TURNS_MAX: u32 = 2_500;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Up,
    Paused,
    Down,
    /// It never returns.
    Removed,
}

pub struct Process<N> {
    pub node: N,
    pub state: State,
    pub epoch: u32,
    /// Its next start is in the same life.
    pub(crate) returns: bool,
    /// By socket.
    pub addrs: Vec<Addr>,
    pub clock: Clock,
    /// Since when it has stood still, if it does.
    pub paused_at: Micros,
    /// Number of datagrams that found no space in its sockets.
    pub overflowed: u64,
    queue: VecDeque<Queued>,
    queued: u64,
    expected: Option<Micros>,
    spins: u32,
    idle_turns: u32,
    idle_since: Micros,
}

impl<N: Node> Process<N> {
    pub(crate) fn new(node: N, epoch: u32, addrs: Vec<Addr>, clock: Clock) -> Self {
        Process {
            node,
            state: State::Up,
            epoch,
            returns: false,
            addrs,
            clock,
            paused_at: 0,
            overflowed: 0,
            queue: VecDeque::new(),
            queued: 0,
            expected: None,
            spins: 0,
            idle_turns: 0,
            idle_since: 0,
        }
    }

    /// Whether the process exists, even if it stands still.
    pub fn is_alive(&self) -> bool {
        matches!(self.state, State::Up | State::Paused)
    }

    /// Puts a datagram into the socket's buffer, if the process exists and there is space.
    pub(crate) fn deliver(&mut self, datagram: Queued) {
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

    pub(crate) fn die(&mut self, state: State) {
        self.state = state;
        self.queue.clear();
        self.queued = 0;
    }

    /// One turn. Appends its datagrams to the bench's `sent`; returns the true time of the next turn.
    pub(crate) fn turn(&mut self, now: Micros, bench: &mut Bench) -> Result<Option<Micros>, String> {
        let late = self.expected.map_or(0, |at| now.saturating_sub(at));
        let before = (self.queue.len(), bench.sent.len());
        let shown = self.clock.at(now);
        let mut turn = Turn {
            now: shown,
            stalled: late > STALL,
            queue: &mut self.queue,
            bench,
        };
        let Turned { more, deadline } = self.node.turn(&mut turn);
        let more = more || !self.queue.is_empty();
        self.queued = self.queue.iter().map(|datagram| charge(datagram.bytes.len())).sum();
        let idle = before.0 == 0 && bench.sent.len() == before.1;
        self.spins = if idle && deadline.is_some_and(|at| at <= shown) {
            self.spins + 1
        } else {
            0
        };
        if self.spins > SPIN_MAX {
            return Err(format!("spins: its deadline {deadline:?} stays in the past at {shown}"));
        }
        if now >= self.idle_since + SECOND {
            (self.idle_turns, self.idle_since) = (0, now);
        }
        let woke = self.expected.is_some_and(|at| at <= now);
        self.idle_turns += u32::from(idle && woke);
        if self.idle_turns > IDLE_TURNS_MAX {
            return Err(format!("turns {} times within a second without work", self.idle_turns));
        }
        let next = if more {
            Some(now + AT_ONCE)
        } else {
            deadline.map(|at| self.clock.when(at).max(now + 1))
        };
        self.expected = next;
        Ok(next)
    }
}
