//! All streams of a process, and the turn that serves them.
//!
//! Owns: [`Tcp`], the order of things within a turn. Must not know: any protocol.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_transport::{soonest, Addr, Micros, Wheel};
use muster_udp::{monotonic_now, Poll, Timer, EVENTS_MAX};
use rustls::ServerConfig;

use crate::counters::Counters;
use crate::limits::{Budget, Limits, ACCEPTS_MAX, LINGER, LINGER_BYTES, READ_BYTES, REFUSED_MAX};
use crate::listener::{Accepted, Addresses, Listeners, LISTENERS_MAX, LISTENER_TOKEN};
use crate::stream::{Phase, Stream};
use crate::stream_id::StreamId;
use crate::streams::{Ended, Order, Outbox, Streams};
use crate::syscalls;
use crate::tls::Tls;

const TIMER_TOKEN: u64 = u64::MAX;
/// A time that no clock since the machine's start reaches: thirty years.
const NEVER: Micros = 1_000_000_000_000_000;

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether the budget ran out before the work: call again as soon as others have had their turn. If not, wait until the
    /// descriptor is readable.
    pub more: bool,
}

#[derive(Default)]
struct Slot {
    /// How often it was used.
    uses: u32,
    stream: Option<Stream>,
}

/// Serves a machine's streams. Watch [`Tcp::fd`] for reading and call [`Tcp::turn`]; nothing else needs a timer.
pub struct Tcp {
    poll: Poll,
    timer: Timer,
    armed: Option<Micros>,
    listeners: Listeners,
    addresses: Addresses,
    slots: Vec<Slot>,
    free: Vec<u32>,
    open: usize,
    /// Streams that were half-open when they came, in that order.
    half_open: VecDeque<StreamId>,
    half_open_len: usize,
    refused_len: usize,
    /// When a stream is half-open or lingers for too long, by slot.
    wheel: Wheel,
    buffer: Box<[u8]>,
    outbox: Outbox,
    limits: Limits,
    budget: Budget,
    tls: Option<Arc<ServerConfig>>,
    more: bool,
    counters: Counters,
}

/// The used part of a turn's budget.
struct Spent {
    now: Micros,
    until: Micros,
    received: usize,
    sent: usize,
}

impl Spent {
    fn is_over(&mut self, budget: Budget) -> bool {
        self.now = monotonic_now().max(self.now);
        self.received >= budget.received_max || self.sent >= budget.sent_max || self.now >= self.until
    }
}

impl Tcp {
    pub fn new(limits: Limits) -> io::Result<Tcp> {
        let tcp = Tcp {
            poll: Poll::new()?,
            timer: Timer::new()?,
            armed: None,
            listeners: Listeners::new(),
            addresses: Addresses::default(),
            slots: Vec::new(),
            free: Vec::new(),
            open: 0,
            half_open: VecDeque::new(),
            half_open_len: 0,
            refused_len: 0,
            wheel: Wheel::new(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            outbox: Outbox::default(),
            limits,
            budget: Budget::default(),
            tls: None,
            more: false,
            counters: Counters::default(),
        };
        tcp.poll.add(tcp.timer.as_fd(), TIMER_TOKEN)?;
        Ok(tcp)
    }

    /// Accepts at this socket too.
    pub fn listen(&mut self, socket: TcpListener) -> io::Result<()> {
        self.listeners.add(&self.poll, socket)
    }

    /// Accepts no more; present streams stay.
    pub fn stop_listening(&mut self) {
        self.listeners.close();
    }

    /// The addresses that it listens at.
    pub fn addresses(&self) -> impl Iterator<Item = io::Result<std::net::SocketAddr>> + '_ {
        self.listeners.addresses()
    }

    /// Limits of streams that come from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Streams that come from now on are encrypted by this, or not at all. Present ones keep theirs.
    pub fn set_tls(&mut self, tls: Option<Arc<ServerConfig>>) {
        self.tls = tls;
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Streams that are open, those that linger included.
    pub fn len(&self) -> usize {
        self.open
    }

    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Streams that have not proven themselves.
    pub fn half_open(&self) -> usize {
        self.half_open_len
    }

    /// Whether the peer's kernel has yet to acknowledge bytes that were sent.
    pub fn is_unacknowledged(&self, stream: StreamId) -> bool {
        self.stream(stream)
            .is_some_and(|stream| stream.owes() || syscalls::unacknowledged(stream.fd()) > 0)
    }

    /// Readable whenever a turn is due.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// Makes a turn due now.
    pub fn kick(&mut self) {
        self.arm(Some(1));
    }

    /// Waits without an outer loop until a turn is due, at most `timeout`. Returns whether one is.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.more || self.poll.wait(timeout) > 0
    }

    /// Accepts, receives, runs timers and sends, within the budget.
    pub fn turn(&mut self, machine: &mut impl Streams) -> Turn {
        let now = monotonic_now();
        let mut spent = Spent {
            now,
            until: now + self.budget.turn_us,
            received: 0,
            sent: 0,
        };
        self.counters.turns += 1;
        let more = loop {
            let ready = self.poll.wait(Duration::ZERO);
            for index in 0..ready {
                let ready = self.poll.ready(index);
                match ready.token {
                    TIMER_TOKEN => {}
                    token if (LISTENER_TOKEN..LISTENER_TOKEN + LISTENERS_MAX as u64).contains(&token) => {
                        self.accept(&mut spent, (token - LISTENER_TOKEN) as usize, machine);
                    }
                    token => {
                        let stream = StreamId::from_token(token);
                        if ready.writable {
                            self.flush(&mut spent, stream, machine);
                        }
                        if ready.readable {
                            self.read(&mut spent, stream, machine);
                        }
                    }
                }
                // The others are reported again: a round of the largest reads would last too long.
                if spent.received >= self.budget.received_max {
                    break;
                }
            }
            self.expire(spent.now, machine);
            let waits = self.transmit(&mut spent, machine);
            if spent.is_over(self.budget) {
                break true;
            }
            if !waits && ready < EVENTS_MAX {
                break false;
            }
        };
        self.more = more;
        self.counters.turns_cut += u64::from(more);
        self.settle(machine);
        Turn { more }
    }

    /// Has the next turn be due when the machine needs one: each turn does so, and a call of the machine beside it may change that.
    pub fn settle(&mut self, machine: &impl Streams) {
        let mut at = machine.deadline();
        soonest(&mut at, self.wheel.next());
        soonest(&mut at, self.listeners.rests_until);
        self.arm(if self.more { Some(1) } else { at });
    }

    fn arm(&mut self, at: Option<Micros>) {
        if self.armed != at {
            self.timer.set(at.unwrap_or(NEVER));
            self.armed = at;
        }
    }

    fn expire(&mut self, now: Micros, machine: &mut impl Streams) {
        self.listeners.wake(now, &self.poll);
        while let Some(slot) = self.wheel.pop(now) {
            let stream = self.named(slot);
            match self.stream(stream).map(|stream| stream.phase) {
                Some(Phase::HalfOpen) => {
                    self.end_half_open(now, stream, machine);
                }
                Some(Phase::Closing | Phase::Lingering) => self.reset(stream),
                Some(Phase::Open) | None => {}
            }
        }
        if machine.deadline().is_some_and(|deadline| deadline <= now) {
            machine.expire(now);
        }
    }

    // ---- Accepting --------------------------------------------------------------------------------------------------

    fn accept(&mut self, spent: &mut Spent, listener: usize, machine: &mut impl Streams) {
        for _ in 0..ACCEPTS_MAX {
            match self.listeners.accept(listener) {
                Ok(Accepted::One(socket, from)) => self.admit(spent.now, socket, from, machine),
                Ok(Accepted::Last(socket)) => {
                    self.counters.refused_descriptors += 1;
                    // It cannot linger: its descriptor is the spare one. If it is encrypted, it is closed without a byte.
                    let refusal = if self.tls.is_some() {
                        &[]
                    } else {
                        &self.limits.refusal[..]
                    };
                    let _ = syscalls::send(socket.as_fd(), &[std::io::IoSlice::new(refusal)]);
                    drop(socket);
                    self.listeners.save();
                }
                Ok(Accepted::Nothing) => return,
                Err(_) => return self.listeners.rest(spent.now, &self.poll),
            }
        }
    }

    fn admit(&mut self, now: Micros, socket: OwnedFd, from: Addr, machine: &mut impl Streams) {
        if self.open - self.refused_len >= self.limits.streams {
            self.counters.refused_full += 1;
            return self.refuse(now, socket);
        }
        let Some(address) = self.addresses.take(from, self.limits.streams_of_address) else {
            self.counters.refused_address += 1;
            return self.refuse(now, socket);
        };
        if self.half_open_len >= self.limits.half_open.max(1) {
            self.end_oldest(now, machine);
        }
        let tls = match self.tls.clone().map(Tls::new).transpose() {
            Ok(tls) => tls.map(Box::new),
            Err(_) => {
                self.counters.tls_failed += 1;
                return self.addresses.give(address);
            }
        };
        let (user_timeout_ms, keepalive_s) = (self.limits.user_timeout_ms, self.limits.keepalive_s);
        syscalls::prepare(socket.as_fd(), user_timeout_ms, keepalive_s, self.limits.send_buffer);
        let Some(stream) = self.add(Stream::new(socket, address, tls)) else {
            return self.addresses.give(address);
        };
        self.counters.accepted += 1;
        self.half_open_len += 1;
        self.half_open.push_back(stream);
        self.wheel
            .schedule(stream.slot() as u32, now + self.limits.half_open_life);
        let place = &mut self.slots[stream.slot()].stream;
        place.as_mut().expect("it was added").told = true;
        machine.opened(now, stream, from);
    }

    /// Tells a client why, if it can, and lingers so that it can read it.
    fn refuse(&mut self, now: Micros, socket: OwnedFd) {
        if self.tls.is_some() || self.limits.refusal.is_empty() || self.refused_len >= REFUSED_MAX {
            return syscalls::set_reset(socket.as_fd());
        }
        let mut stream = Stream::new(socket, 0, None);
        let refusal = self.limits.refusal.clone();
        if stream.send(&[], std::slice::from_ref(&refusal), &[]).is_err() || stream.owes() {
            return syscalls::set_reset(stream.fd());
        }
        syscalls::finish(stream.fd());
        stream.phase = Phase::Lingering;
        stream.refused = true;
        if let Some(stream) = self.add(stream) {
            self.refused_len += 1;
            self.wheel.schedule(stream.slot() as u32, now + LINGER);
        }
    }

    fn add(&mut self, stream: Stream) -> Option<StreamId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
        };
        let place = &mut self.slots[slot as usize];
        // Below the tokens of listeners and timer.
        place.uses = (place.uses + 1) & 0x7fff_ffff;
        let id = StreamId::new(slot, place.uses);
        if self.poll.add(stream.fd(), id.token()).is_err() {
            self.free.push(slot);
            return None;
        }
        place.stream = Some(stream);
        self.open += 1;
        Some(id)
    }

    fn end_oldest(&mut self, now: Micros, machine: &mut impl Streams) {
        while let Some(stream) = self.half_open.pop_front() {
            if self
                .stream(stream)
                .is_some_and(|stream| stream.phase == Phase::HalfOpen)
            {
                return self.end_half_open(now, stream, machine);
            }
        }
    }

    fn end_half_open(&mut self, now: Micros, stream: StreamId, machine: &mut impl Streams) {
        self.counters.half_open_ended += 1;
        self.reset(stream);
        machine.ended(now, stream, Ended::HalfOpen);
    }

    // ---- Receiving --------------------------------------------------------------------------------------------------

    fn read(&mut self, spent: &mut Spent, id: StreamId, machine: &mut impl Streams) {
        let Some(stream) = stream_mut(&mut self.slots, id) else {
            return;
        };
        if stream.finished {
            // Both directions are over, or an error is pending.
            return self.fail(spent.now, id, Ended::Closed, machine);
        }
        if stream.phase == Phase::Lingering || stream.phase == Phase::Closing {
            return self.drop_input(id);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        if stream.tls.is_some() {
            self.read_tls(spent, id, &mut buffer, machine);
        } else {
            match syscalls::receive(stream.fd(), &mut buffer) {
                Ok(0) => self.finished(spent.now, id, machine),
                Ok(count) => {
                    spent.received += count;
                    self.counters.received_bytes += count as u64;
                    machine.received(spent.now, id, &mut buffer[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.fail(spent.now, id, Ended::Broken, machine),
            }
        }
        self.buffer = buffer;
    }

    fn read_tls(&mut self, spent: &mut Spent, id: StreamId, buffer: &mut [u8], machine: &mut impl Streams) {
        let Some(stream) = stream_mut(&mut self.slots, id) else {
            return;
        };
        let socket = stream.socket.as_fd();
        let Some(tls) = &mut stream.tls else { return };
        let filled = tls.fill(socket);
        self.counters.tls_handshakes += u64::from(tls.has_begun());
        let mut ended = None;
        match filled {
            Ok(true) => {}
            Ok(false) => ended = Some(Ended::Closed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => ended = Some(Ended::Tls),
            Err(_) => ended = Some(Ended::Broken),
        }
        loop {
            let Some(tls) = stream_mut(&mut self.slots, id).and_then(|stream| stream.tls.as_mut()) else {
                return;
            };
            match tls.read(buffer) {
                Ok(0) => {
                    ended = ended.or(Some(Ended::Closed));
                    break;
                }
                Ok(count) => {
                    spent.received += count;
                    self.counters.received_bytes += count as u64;
                    machine.received(spent.now, id, &mut buffer[..count]);
                }
                Err(_) => break,
            }
        }
        match ended {
            None => self.flush_quietly(spent, id, machine),
            Some(Ended::Closed) => self.finished(spent.now, id, machine),
            Some(how) => self.fail(spent.now, id, how, machine),
        }
    }

    /// Sends what TLS has to say of itself.
    fn flush_quietly(&mut self, spent: &mut Spent, id: StreamId, machine: &mut impl Streams) {
        let Some(stream) = stream_mut(&mut self.slots, id).filter(|stream| !stream.owes()) else {
            return;
        };
        match stream.flush() {
            Ok(sent) => {
                self.counters.sent_bytes += sent.bytes as u64;
                if !sent.all {
                    machine.blocked(spent.now, id);
                }
                self.watch(id);
            }
            Err(_) => self.fail(spent.now, id, Ended::Broken, machine),
        }
    }

    fn finished(&mut self, now: Micros, id: StreamId, machine: &mut impl Streams) {
        let Some(stream) = stream_mut(&mut self.slots, id) else {
            return;
        };
        stream.finished = true;
        self.watch(id);
        machine.finished(now, id);
    }

    fn drop_input(&mut self, id: StreamId) {
        let Some(stream) = stream_mut(&mut self.slots, id) else {
            return;
        };
        match syscalls::receive(stream.socket.as_fd(), &mut self.buffer) {
            Ok(0) if stream.phase == Phase::Lingering => self.remove(id),
            Ok(0) => {
                stream.finished = true;
                self.watch(id);
            }
            Ok(count) => {
                stream.dropped = stream.dropped.saturating_add(count as u32);
                if stream.dropped > LINGER_BYTES {
                    syscalls::set_reset(stream.fd());
                    self.remove(id);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.remove(id),
        }
    }

    // ---- Sending ----------------------------------------------------------------------------------------------------

    fn transmit(&mut self, spent: &mut Spent, machine: &mut impl Streams) -> bool {
        loop {
            let mut outbox = std::mem::take(&mut self.outbox);
            let more = machine.transmit(spent.now, &mut outbox);
            self.carry_out(spent, &outbox, machine);
            let idle = outbox.is_empty();
            outbox.clear();
            self.outbox = outbox;
            if !more || idle {
                return false;
            }
            if spent.is_over(self.budget) {
                return true;
            }
        }
    }

    fn carry_out(&mut self, spent: &mut Spent, outbox: &Outbox, machine: &mut impl Streams) {
        for order in &outbox.orders {
            match order {
                Order::Send {
                    stream,
                    head,
                    shared,
                    tail,
                } => {
                    let (head, tail) = (&outbox.slab[head.clone()], &outbox.slab[tail.clone()]);
                    self.send(spent, *stream, head, &outbox.shared[shared.clone()], tail, machine);
                }
                Order::Close(stream) => self.close(spent.now, *stream),
                Order::Abort(stream) => self.reset(*stream),
                Order::Read(stream, read) => {
                    if let Some(place) = stream_mut(&mut self.slots, *stream) {
                        place.read = *read;
                        self.watch(*stream);
                    }
                }
                Order::Proven(stream) => {
                    let place = stream_mut(&mut self.slots, *stream);
                    if let Some(place) = place.filter(|place| place.phase == Phase::HalfOpen) {
                        place.phase = Phase::Open;
                        self.half_open_len -= 1;
                        self.wheel.cancel(stream.slot() as u32);
                        self.forget_proven();
                    }
                }
            }
        }
    }

    fn send(
        &mut self,
        spent: &mut Spent,
        id: StreamId,
        head: &[u8],
        shared: &[Bytes],
        tail: &[u8],
        machine: &mut impl Streams,
    ) {
        let Some(stream) = stream_mut(&mut self.slots, id).filter(|stream| stream.told) else {
            return;
        };
        let owed = stream.owes();
        spent.sent += 1;
        self.counters.sends += 1;
        match stream.send(head, shared, tail) {
            Ok(sent) => {
                self.counters.sent_bytes += sent.bytes as u64;
                if !sent.all {
                    self.counters.sends_cut += 1;
                    self.watch(id);
                    if !owed {
                        machine.blocked(spent.now, id);
                    }
                }
            }
            Err(_) => self.fail(spent.now, id, Ended::Broken, machine),
        }
    }

    fn flush(&mut self, spent: &mut Spent, id: StreamId, machine: &mut impl Streams) {
        let Some(stream) = stream_mut(&mut self.slots, id).filter(|stream| stream.owes()) else {
            return;
        };
        spent.sent += 1;
        match stream.flush() {
            Ok(sent) => {
                self.counters.sent_bytes += sent.bytes as u64;
                if sent.all {
                    let (closing, told) = (stream.phase == Phase::Closing, stream.told);
                    self.watch(id);
                    if closing {
                        self.linger(spent.now, id);
                    } else if told {
                        machine.drained(spent.now, id);
                    }
                }
            }
            Err(_) => self.fail(spent.now, id, Ended::Broken, machine),
        }
    }

    // ---- Ending -----------------------------------------------------------------------------------------------------

    fn close(&mut self, now: Micros, id: StreamId) {
        let Some(stream) = stream_mut(&mut self.slots, id).filter(|stream| stream.told) else {
            return;
        };
        stream.told = false;
        stream.read = true;
        if stream.phase == Phase::HalfOpen {
            self.half_open_len -= 1;
        }
        stream.phase = Phase::Closing;
        // A peer that takes nothing has as long as one that does not go.
        self.wheel.schedule(id.slot() as u32, now + LINGER);
        if !stream.owes() {
            self.linger(now, id);
        }
        self.forget_proven();
    }

    /// All is sent: the peer is told so, and has a while to go.
    fn linger(&mut self, now: Micros, id: StreamId) {
        let Some(stream) = stream_mut(&mut self.slots, id) else {
            return;
        };
        if let Some(tls) = &mut stream.tls {
            tls.close();
            let _ = tls.flush(stream.socket.as_fd());
        }
        syscalls::finish(stream.fd());
        stream.phase = Phase::Lingering;
        if stream.finished {
            return self.remove(id);
        }
        self.wheel.schedule(id.slot() as u32, now + LINGER);
        self.watch(id);
    }

    fn fail(&mut self, now: Micros, id: StreamId, how: Ended, machine: &mut impl Streams) {
        let Some(stream) = self.stream(id) else { return };
        let told = stream.told;
        match how {
            Ended::Closed => self.counters.closed += 1,
            Ended::Tls => self.counters.tls_failed += 1,
            Ended::Broken | Ended::HalfOpen => self.counters.broken += 1,
        }
        self.remove(id);
        if told {
            machine.ended(now, id, how);
        }
    }

    fn reset(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            syscalls::set_reset(stream.fd());
            self.remove(id);
        }
    }

    fn remove(&mut self, id: StreamId) {
        let place = &mut self.slots[id.slot()];
        let Some(stream) = place.stream.take() else { return };
        self.wheel.cancel(id.slot() as u32);
        self.free.push(id.slot() as u32);
        self.open -= 1;
        self.half_open_len -= usize::from(stream.phase == Phase::HalfOpen);
        self.refused_len -= usize::from(stream.refused);
        if stream.address != 0 {
            self.addresses.give(stream.address);
        }
    }

    // ---- Places -----------------------------------------------------------------------------------------------------

    fn stream(&self, id: StreamId) -> Option<&Stream> {
        let slot = self.slots.get(id.slot())?;
        slot.stream.as_ref().filter(|_| slot.uses == id.use_of_slot())
    }

    fn named(&self, slot: u32) -> StreamId {
        StreamId::new(slot, self.slots.get(slot as usize).map_or(0, |slot| slot.uses))
    }

    /// Has the inner epoll watch a stream for what it wants now.
    fn watch(&mut self, id: StreamId) {
        let Some(stream) = stream_mut(&mut self.slots, id) else {
            return;
        };
        let wanted = stream.wanted();
        if wanted != stream.watched {
            stream.watched = wanted;
            // It is open and was added, so this cannot fail but for memory.
            let _ = self.poll.watch(stream.socket.as_fd(), id.token(), wanted.0, wanted.1);
        }
    }

    /// Keeps the list of half-open streams as short as their number allows.
    fn forget_proven(&mut self) {
        if self.half_open.len() > 2 * self.half_open_len + 64 {
            let slots = &self.slots;
            self.half_open.retain(|id| {
                let slot = &slots[id.slot()];
                let stream = slot.stream.as_ref().filter(|_| slot.uses == id.use_of_slot());
                stream.is_some_and(|stream| stream.phase == Phase::HalfOpen)
            });
        }
    }
}

fn stream_mut(slots: &mut [Slot], id: StreamId) -> Option<&mut Stream> {
    let slot = slots.get_mut(id.slot())?;
    slot.stream.as_mut().filter(|_| slot.uses == id.use_of_slot())
}
