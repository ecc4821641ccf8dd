//! One machine and its sockets.
//!
//! Owns: [`Driver`], the order of steps within a turn and the state between turns. Knows no role.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use muster_transport::{Machine, Micros, Outbox, SocketId};
use muster_udp::{Counters, Cursor, Kernel, Poll, Receiver, Sender, Sent, Socket, Syscalls, Timer, EVENTS_MAX};

use crate::budget::{
    Budget, Slice, Spent, AGE_MAX_US, BEAT_US, CLOSE_US, DISCARDED_MAX, HEARD_EACH, RETRY_US, STALL_US,
};
use crate::faults::{FaultCounters, Faults};
use crate::linger::{Linger, LINGER_WAIT};

/// Up to this many sockets are tried one by one; with more, it is cheaper to ask the epoll for ready ones.
const TRIED_SOCKETS_MAX: usize = 2;
/// The timer's token in the inner epoll; each socket's token is its index.
const TIMER_TOKEN: u64 = u64::MAX;

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether the budget ran out before the work: call again as soon as others have had their turn. Otherwise wait
    /// until the descriptor is readable.
    pub more: bool,
}

/// The driver's events; [`Counters`] counts datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCounters {
    pub turns: u64,
    /// Times that sockets were checked: in each turn, and again after each slice and while lingering.
    pub looks: u64,
    /// Times that a turn lingered and something arrived.
    pub lingered: u64,
    /// Turns that ended with work left.
    pub turns_cut: u64,
    /// Times that the timer was set.
    pub timer_sets: u64,
    /// Times that the loop was found to have stood still.
    pub stalls: u64,
    /// Length of the last standstill.
    pub stalled_us: u64,
    /// Datagrams received but dropped unseen after a standstill.
    pub discarded: u64,
    /// Longest delay of a turn behind its time, since it was last read.
    pub late_us_max: u64,
}

/// Faults, and the machine's outbox while they apply: its datagrams are never joined, so that each has a separate
/// fate.
struct Injected {
    faults: Faults,
    intake: Outbox,
}

/// The progress of a batch and its replies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    /// The budget is exhausted.
    Cut,
    /// The machine has more that could leave.
    More,
    All,
}

/// Drives a machine. Watch [`Driver::fd`] for reading and call [`Driver::turn`] when it is readable; nothing else
/// needs a timer. Call [`Driver::kick`] after a call of [`Driver::machine_mut`] that may have something to send, and
/// take events with [`Driver::events`].
pub struct Driver<M: Machine, S: Syscalls = Kernel> {
    machine: M,
    syscalls: S,
    sockets: Vec<Socket>,
    receiver: Receiver,
    sender: Sender,
    /// The slice that is being sent, how far it got, and when it was filled.
    outbox: Outbox,
    cursor: Cursor,
    filled_at: Micros,
    /// The full socket that the driver waits for.
    blocked: Option<SocketId>,
    /// When to retry a send for which the kernel had no memory.
    retry_at: Option<Micros>,
    poll: Poll,
    timer: Timer,
    armed: Option<Micros>,
    /// When the next turn is due at the latest; `None` before the first.
    expected: Option<Micros>,
    linger: Linger,
    more: bool,
    /// Number of sockets that must be read before timers run, if datagrams must be received first.
    unheard: Option<usize>,
    /// One of these sockets was read and holds more.
    behind: bool,
    budget: Budget,
    slice: Slice,
    injected: Option<Box<Injected>>,
    counters: DriverCounters,
    udp_counters: Counters,
}

impl<M: Machine> Driver<M> {
    /// A driver of `machine` on the real kernel; a socket's index is its [`SocketId`].
    pub fn new(machine: M, sockets: Vec<Socket>) -> io::Result<Self> {
        Self::with_syscalls(machine, sockets, Kernel)
    }
}

impl<M: Machine, S: Syscalls> Driver<M, S> {
    pub fn with_syscalls(machine: M, sockets: Vec<Socket>, syscalls: S) -> io::Result<Self> {
        let mut driver = Driver {
            machine,
            syscalls,
            sockets: Vec::with_capacity(sockets.len()),
            receiver: Receiver::new(sockets.iter().any(Socket::gro)),
            sender: Sender::new(),
            outbox: Outbox::new(true),
            cursor: Cursor::default(),
            filled_at: 0,
            blocked: None,
            retry_at: None,
            poll: Poll::new()?,
            timer: Timer::new()?,
            armed: None,
            expected: None,
            linger: Linger::default(),
            more: false,
            unheard: None,
            behind: false,
            budget: Budget::default(),
            slice: Slice::new(),
            injected: None,
            counters: DriverCounters::default(),
            udp_counters: Counters::default(),
        };
        driver.poll.add(driver.timer.as_fd(), TIMER_TOKEN)?;
        for socket in sockets {
            driver.add_socket(socket)?;
        }
        // The first turn is due now, but a slow start does not count as a standstill.
        let now = driver.syscalls.now();
        driver.arm(now);
        Ok(driver)
    }

    /// Adds a socket and returns its id.
    pub fn add_socket(&mut self, socket: Socket) -> io::Result<SocketId> {
        let id = self.sockets.len() as SocketId;
        self.poll.add(socket.as_fd(), u64::from(id))?;
        if socket.gro() && !self.receiver.takes_joined() {
            self.receiver = Receiver::new(true);
        }
        self.sockets.push(socket);
        Ok(id)
    }

    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Sets whether runs to one destination leave as super-packets.
    pub fn set_coalesce(&mut self, coalesce: bool) {
        self.outbox.set_coalesce(coalesce);
    }

    /// Sets the injected faults, or removes them. Datagrams that the old ones hold back are dropped.
    pub fn set_faults(&mut self, faults: Option<Faults>) {
        self.injected = faults.map(|faults| {
            Box::new(Injected {
                faults,
                intake: Outbox::new(false),
            })
        });
    }

    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, for calls of the control plane. Call [`Driver::kick`] if it may now have something to send.
    pub fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    pub fn syscalls(&self) -> &S {
        &self.syscalls
    }

    /// The system calls and the sockets that they are for.
    pub fn syscalls_mut(&mut self) -> (&mut S, &[Socket]) {
        (&mut self.syscalls, &self.sockets)
    }

    /// Moves the machine's events to the end of `events`.
    pub fn events(&mut self, events: &mut Vec<M::Event>) {
        self.machine.drain_events(events);
    }

    pub fn sockets(&self) -> &[Socket] {
        &self.sockets
    }

    pub fn counters(&self) -> DriverCounters {
        self.counters
    }

    /// The longest delay of a turn behind its time since the last call.
    pub fn take_late(&mut self) -> Micros {
        std::mem::take(&mut self.counters.late_us_max)
    }

    pub fn udp_counters(&self) -> &Counters {
        &self.udp_counters
    }

    pub fn fault_counters(&self) -> Option<&FaultCounters> {
        self.injected.as_ref().map(|injected| injected.faults.counters())
    }

    /// Datagrams from the machine that have neither left nor been given up.
    pub fn pending(&self) -> usize {
        self.cursor.remaining(&self.outbox)
    }

    /// When the next turn is due at the latest; `None` before the first.
    pub fn due(&self) -> Option<Micros> {
        self.expected
    }

    /// Readable whenever a turn is due.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// Makes a turn due now. Before the first turn it does nothing: that one is due already, without counting as
    /// late.
    pub fn kick(&mut self) {
        let now = self.syscalls.now();
        self.arm(now);
        self.expected = self.expected.map(|expected| expected.min(now));
    }

    /// Waits without an outer loop until a turn is due, at most `timeout`. Returns whether one is.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.more || self.poll.wait(timeout) > 0
    }

    /// Receives, runs timers and sends, within the budget. Then lingers, if the budget allows it and turns follow
    /// each other closely: waiting here for the next datagram costs less than a pass through the outer loop.
    pub fn turn(&mut self) -> Turn {
        let now = self.syscalls.now();
        let close = now <= self.linger.ended() + CLOSE_US;
        self.counters.turns += 1;
        self.linger.begin(now, self.budget.linger_us);
        let mut more = self.step(now, None);
        while let Some(until) = (!more)
            .then(|| self.syscalls.now())
            .and_then(|now| self.linger.until(now))
        {
            self.arm(until); // ends the wait: a timeout would set one for each datagram
            let ready = self.poll.wait(LINGER_WAIT);
            if ready == 0 {
                break;
            }
            let came = (0..ready).any(|index| self.poll.ready(index).token != TIMER_TOKEN);
            self.counters.lingered += u64::from(came);
            self.linger.waited(came);
            let now = self.syscalls.now();
            more = self.step(now, Some(ready));
        }
        self.counters.turns_cut += u64::from(more);
        self.linger.end(self.syscalls.now());
        self.more = more;
        if !more && !close {
            self.settle();
        }
        Turn { more }
    }

    /// One round of a turn. `ready`: how many descriptors are known to be ready; if unknown, all are checked. Returns
    /// whether the budget ran out first.
    fn step(&mut self, mut now: Micros, ready: Option<usize>) -> bool {
        let late = self.expected.map_or(0, |expected| now.saturating_sub(expected));
        self.counters.late_us_max = self.counters.late_us_max.max(late);
        if late > STALL_US {
            self.counters.stalls += 1;
            self.counters.stalled_us = late;
            if M::DISCARDS_STALE {
                self.discard();
            }
            now = self.syscalls.now(); // discarding much takes long, but is no standstill
            self.machine.stalled(now);
        }
        if self.armed.is_some_and(|at| at <= now) {
            self.armed = None;
        }
        // A machine that does not discard stale datagrams receives those in the sockets before its timers run: peers
        // were not silent, this process was slow.
        if self.machine.deadline().is_some_and(|at| at <= now) {
            if M::DISCARDS_STALE || self.sockets.is_empty() {
                self.machine.expire(now);
            } else if self.unheard.is_none() {
                (self.unheard, self.behind) = (Some(self.sockets.len()), false);
            }
        }
        self.give_up_stale(now);
        while let Some(mut inbox) = self.injected.as_mut().and_then(|injected| injected.faults.arrive(now)) {
            self.machine.receive(now, &mut inbox);
        }

        let mut spent = Spent::new(self.budget, now);
        let more = match ready {
            None if self.sockets.len() <= TRIED_SOCKETS_MAX => self.serve_each(&mut spent),
            ready => self.serve_ready(ready, &mut spent),
        };
        if more {
            // From here on, not from the turn's end: the process may have stood still before that.
            self.expected = Some(spent.now);
        } else {
            self.expect(spent.now);
        }
        more
    }

    /// Tries the sockets one by one until all are empty. Returns whether the budget ran out first.
    fn serve_each(&mut self, spent: &mut Spent) -> bool {
        let count = self.sockets.len();
        let mut drained = [false; TRIED_SOCKETS_MAX];
        // A different socket goes first in every turn, so that none waits behind a flood on its neighbour.
        let first = self.counters.turns as usize;
        // Without a socket the machine may still want to send, but has no peer.
        while drained[..count].contains(&false) {
            self.counters.looks += 1;
            for step in 0..count {
                let id = (first + step) % count;
                drained[id] = drained[id] || self.hear_most(spent, id);
            }
            // After each slice all sockets are checked again, so that one message to thousands does not delay the
            // next message.
            match self.serve(spent, 1) {
                Served::Cut => return true,
                Served::More => drained = [false; TRIED_SOCKETS_MAX],
                Served::All => {}
            }
        }
        false
    }

    /// Asks for the ready sockets, unless known, and collects their datagrams into common batches. Returns whether
    /// the budget ran out. If there are few sockets and more than one slice, they are tried one by one from then on.
    fn serve_ready(&mut self, mut known: Option<usize>, spent: &mut Spent) -> bool {
        let few = self.sockets.len() <= TRIED_SOCKETS_MAX;
        let slices_max = if few { 1 } else { usize::MAX };
        loop {
            self.counters.looks += 1;
            let ready = known.take().unwrap_or_else(|| self.poll.wait(Duration::ZERO));
            let all = ready < EVENTS_MAX;
            let mut all_drained = all;
            for index in 0..ready {
                let event = self.poll.ready(index);
                if event.token == TIMER_TOKEN || !event.readable {
                    continue;
                }
                if self.receiver.room() == 0 && self.serve(spent, slices_max) == Served::Cut {
                    return true;
                }
                if spent.receivable() <= self.receiver.datagrams() {
                    self.serve(spent, slices_max);
                    return true;
                }
                all_drained &= match self.unheard {
                    Some(_) => self.hear_most(spent, event.token as usize),
                    None => self.receive(event.token as usize, usize::MAX),
                };
            }
            if all {
                self.unheard = self.unheard.map(|_| 0); // no other socket has data
            }
            match self.serve(spent, slices_max) {
                Served::Cut => return true,
                Served::More if few => return self.serve_each(spent),
                _ if all_drained => return false,
                _ => {}
            }
        }
    }

    /// Receives from one socket into the slab. Returns whether the socket is empty.
    fn receive(&mut self, index: usize, slots_max: usize) -> bool {
        let (socket, id) = (&self.sockets[index], index as SocketId);
        let received = self
            .receiver
            .receive(&mut self.syscalls, socket, id, slots_max, &mut self.udp_counters);
        received.drained
    }

    /// Receives from one socket as much as the next slice may need, and passes it to the machine, except for the last
    /// batch, which stays in the slab. Returns whether the socket is empty.
    fn hear_most(&mut self, spent: &mut Spent, index: usize) -> bool {
        let most = HEARD_EACH * self.slice.datagrams;
        let mut left = most;
        if spent.receivable() > self.receiver.datagrams() {
            self.unheard = self.unheard.map(|left| left.saturating_sub(1));
        }
        while left > 0 && spent.receivable() > self.receiver.datagrams() {
            if self.receiver.room() == 0 {
                self.hear(spent);
            }
            let before = self.receiver.datagrams();
            if self.receive(index, left) {
                return true;
            }
            left = left.saturating_sub(self.receiver.datagrams() - before);
        }
        self.behind |= left < most;
        false
    }

    /// Passes the slab to the machine, unless a standstill made it stale. Returns the number of datagrams.
    fn hear(&mut self, spent: &mut Spent) -> usize {
        let count = self.receiver.datagrams();
        spent.received += count;
        if count > 0 && spent.stood(self.syscalls.now()) && M::DISCARDS_STALE {
            self.counters.discarded += count as u64;
        } else if count > 0 {
            if let Some(injected) = &mut self.injected {
                let (slab, arrivals) = self.receiver.parts();
                injected.faults.filter(spent.now, slab, arrivals);
            }
            self.machine.receive(spent.now, &mut self.receiver.inbox());
        }
        self.receiver.clear();
        count
    }

    /// Passes the slab to the machine and sends its replies, at most this many slices.
    fn serve(&mut self, spent: &mut Spent, slices_max: usize) -> Served {
        let count = self.hear(spent);
        if self.unheard == Some(0) {
            self.unheard = None;
            if self.behind {
                self.machine.behind(spent.now);
            }
            self.machine.expire(spent.now);
        }
        let more = self.transmit(spent, slices_max);
        match (more || count > 0 || spent.stood) && spent.is_over(self.syscalls.now()) {
            true => Served::Cut,
            false if more => Served::More,
            false => Served::All,
        }
    }

    /// Sends slices, at least one, while the machine has any and the budget lasts. Returns whether more could leave.
    fn transmit(&mut self, spent: &mut Spent, slices_max: usize) -> bool {
        if spent.stuck || spent.stood || !self.send(spent) {
            return false;
        }
        let mut slices = 0;
        loop {
            let (given, more) = self.fill(spent.now);
            spent.sent += given;
            // A machine that promises more and gives nothing would be asked forever.
            if given == 0 || !self.send(spent) || !more {
                return false;
            }
            slices += 1;
            let clock = self.syscalls.now();
            if given == self.slice.datagrams {
                self.slice.took(spent.lap(clock));
            }
            if slices == slices_max || spent.is_over(clock) {
                return true;
            }
        }
    }

    /// Fills the empty outbox. Returns how many datagrams were taken and whether more wait; with faults, the outbox
    /// may hold fewer than were taken.
    fn fill(&mut self, now: Micros) -> (usize, bool) {
        self.filled_at = now;
        let Some(injected) = &mut self.injected else {
            self.outbox.set_limit(self.slice.datagrams);
            let more = self.machine.transmit(now, &mut self.outbox);
            return (self.outbox.datagrams(), more);
        };
        let Injected { faults, intake } = &mut **injected;
        if faults.overdue(now) {
            faults.release(now, &mut self.outbox);
            return (self.outbox.datagrams(), true);
        }
        // Released datagrams share a slice with new ones: a separate slice costs as much as a full one.
        let more = self.machine.transmit(now, intake);
        let given = intake.datagrams();
        faults.pass(now, intake, &mut self.outbox);
        let passed = self.outbox.datagrams();
        faults.release(now, &mut self.outbox);
        (given + self.outbox.datagrams() - passed, more || faults.leaves(now))
    }

    /// Sends the outbox. Returns whether it is empty now; if not, it is tried again when something changes.
    fn send(&mut self, spent: &mut Spent) -> bool {
        if self.outbox.is_empty() {
            return true;
        }
        if self.retry_at.is_some_and(|at| spent.now < at) {
            spent.stuck = true;
            return false;
        }
        self.retry_at = None;
        let (cursor, counters) = (&mut self.cursor, &mut self.udp_counters);
        match self
            .sender
            .send(&mut self.syscalls, &mut self.sockets, &self.outbox, cursor, counters)
        {
            Sent::All => {
                self.empty_outbox();
                true
            }
            Sent::Blocked(id) => {
                self.watch_room(Some(id));
                spent.stuck = true;
                false
            }
            Sent::Starved => {
                self.watch_room(None);
                self.retry_at = Some(spent.now + RETRY_US);
                spent.stuck = true;
                false
            }
        }
    }

    fn empty_outbox(&mut self) {
        self.outbox.clear();
        self.cursor = Cursor::default();
        self.retry_at = None;
        self.watch_room(None);
    }

    /// Makes the epoll report when the socket `id` can send again, and no other socket.
    fn watch_room(&mut self, id: Option<SocketId>) {
        if self.blocked == id {
            return;
        }
        for (id, writable) in [(self.blocked, false), (id, true)] {
            if let Some(id) = id {
                let changed = self
                    .poll
                    .set_writable(self.sockets[id as usize].as_fd(), u64::from(id), writable);
                assert!(changed.is_ok(), "a registered socket can be watched for space");
            }
        }
        self.blocked = id;
    }

    /// Gives up a slice that has waited too long.
    fn give_up_stale(&mut self, now: Micros) {
        if !self.outbox.is_empty() && now.saturating_sub(self.filled_at) > AGE_MAX_US {
            self.udp_counters.lost_stale += self.cursor.remaining(&self.outbox) as u64;
            self.empty_outbox();
        }
    }

    /// Drops datagrams that queued in the sockets while the loop stood still.
    fn discard(&mut self) {
        let mut left = DISCARDED_MAX;
        for index in 0..self.sockets.len() {
            loop {
                let drained = self.receive(index, usize::MAX);
                left = left.saturating_sub(self.receiver.slots() - self.receiver.room());
                self.counters.discarded += self.receiver.datagrams() as u64;
                self.receiver.clear();
                if drained || left == 0 {
                    break;
                }
            }
            if left == 0 {
                return;
            }
        }
    }

    /// Schedules the next turn: at the latest after [`BEAT_US`].
    fn expect(&mut self, now: Micros) {
        let waiting = (!self.outbox.is_empty()).then_some(self.filled_at + AGE_MAX_US + 1);
        let held = self
            .injected
            .as_ref()
            .and_then(|injected| injected.faults.due(self.outbox.is_empty()));
        let due = [self.machine.deadline(), self.retry_at, waiting, held]
            .into_iter()
            .flatten()
            .min();
        let at = due.map_or(now + BEAT_US, |due| due.min(now + BEAT_US));
        self.arm(at);
        // A deadline in the past makes a turn due at once; it does not make that turn late.
        self.expected = Some(at.max(now));
    }

    /// Moves the timer to the deadline, once a turn: a needless wake-up costs more, unless turns follow each other
    /// closely.
    fn settle(&mut self) {
        if let (Some(armed), Some(due)) = (self.armed, self.expected) {
            if armed < due {
                self.armed = None;
                self.arm(due);
            }
        }
    }

    /// Sets the timer unless it fires earlier anyway.
    fn arm(&mut self, at: Micros) {
        if self.armed.is_none_or(|armed| at < armed) {
            self.timer.set(at);
            self.counters.timer_sets += 1;
            self.armed = Some(at);
        }
    }
}
