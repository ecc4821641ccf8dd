//! A toy machine, a scripted kernel, and sockets on loopback.
#![allow(dead_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use muster_driver::Driver;
use muster_transport::{Addr, Inbox, Machine, Micros, Outbox, SocketId};
use muster_udp::{Errno, Incoming, Kernel, Outgoing, Socket, SocketOptions, Syscalls};

/// Sends each received datagram to every member, or back to its sender if there is none; may tick.
#[derive(Default)]
pub struct Toy {
    pub members: Vec<Addr>,
    pub tick_us: Option<Micros>,
    pub next_tick: Option<Micros>,
    pub ticks: Vec<Micros>,
    pub received: Vec<(SocketId, Vec<u8>)>,
    /// The time of each reception.
    pub received_at: Vec<Micros>,
    pub stalled_at: Vec<Micros>,
    pub behind_at: Vec<Micros>,
    /// Claims that its next turn was due long ago.
    pub impatient: bool,
    /// Claims that more waits when nothing does.
    pub cries_wolf: bool,
    pub queue: VecDeque<(SocketId, Addr, Vec<u8>)>,
    /// The member that gets the front of the queue next.
    pub member: usize,
    /// Receivers of the replies to the next datagrams, in place of their senders.
    pub others: Vec<Addr>,
}

impl Toy {
    pub fn with_members(members: Vec<Addr>) -> Self {
        Toy {
            members,
            ..Toy::default()
        }
    }

    pub fn ticking(mut self, now: Micros, tick_us: Micros) -> Self {
        (self.tick_us, self.next_tick) = (Some(tick_us), Some(now + tick_us));
        self
    }

    pub fn say(&mut self, socket: SocketId, to: Addr, bytes: &[u8]) {
        self.queue.push_back((socket, to, bytes.to_vec()));
    }

    /// Number of datagrams that it still wants to send.
    pub fn waiting(&self) -> usize {
        (self.queue.len() * self.members.len().max(1)).saturating_sub(self.member)
    }
}

impl Machine for Toy {
    type Event = usize;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        for index in 0..inbox.arrivals.len() {
            let (arrival, bytes) = inbox.datagram(index);
            self.received.push((arrival.socket, bytes.to_vec()));
            self.received_at.push(now);
            if !bytes.is_empty() {
                let mut told = std::mem::take(&mut self.others);
                if told.is_empty() {
                    told.push(arrival.from);
                }
                self.queue
                    .extend(told.into_iter().map(|to| (arrival.socket, to, bytes.to_vec())));
            }
        }
    }

    fn expire(&mut self, now: Micros) {
        self.ticks.push(now);
        self.next_tick = self.tick_us.map(|tick| now + tick);
    }

    fn transmit(&mut self, _: Micros, outbox: &mut Outbox) -> bool {
        while outbox.room() > 0 {
            let Some((socket, from, bytes)) = self.queue.front() else {
                return self.cries_wolf;
            };
            let to = self.members.get(self.member).unwrap_or(from);
            outbox.reserve(bytes.len()).copy_from_slice(bytes);
            outbox.commit(*socket, *to, bytes.len());
            self.member += 1;
            if self.member >= self.members.len() {
                self.member = 0;
                self.queue.pop_front();
            }
        }
        !self.queue.is_empty()
    }

    fn deadline(&self) -> Option<Micros> {
        if self.impatient {
            Some(0)
        } else {
            self.next_tick
        }
    }

    fn drain_events(&mut self, events: &mut Vec<usize>) {
        events.push(self.received.len());
    }

    fn stalled(&mut self, now: Micros) {
        self.stalled_at.push(now);
    }
}

/// The behaviour of a test's kernel; shared with the test, which alters it between turns.
pub struct Desk {
    pub clock: Micros,
    /// How far the clock advances with each reading.
    pub step_us: Micros,
    /// How much further it advances with each of the next readings.
    pub jumps_us: VecDeque<Micros>,
    /// How far it advances for each datagram received.
    pub datagram_us: Micros,
    /// Results of the next sends; after them everything is accepted.
    pub answers: VecDeque<Result<usize, Errno>>,
    /// Whether accepted datagrams really leave.
    pub sends: bool,
    pub taken: u64,
}

#[derive(Clone)]
pub struct FakeKernel(pub Rc<RefCell<Desk>>);

impl FakeKernel {
    /// A kernel whose clock stands still, so far ahead that the driver's real timer never fires.
    pub fn new() -> Self {
        let clock = muster_udp::monotonic_now() + 3_600_000_000;
        let desk = Desk {
            clock,
            step_us: 0,
            jumps_us: VecDeque::new(),
            datagram_us: 0,
            answers: VecDeque::new(),
            sends: true,
            taken: 0,
        };
        FakeKernel(Rc::new(RefCell::new(desk)))
    }

    pub fn now(&self) -> Micros {
        self.0.borrow().clock
    }

    pub fn advance(&self, by_us: Micros) {
        self.0.borrow_mut().clock += by_us;
    }

    /// Makes the process stand still just before the `reading`th reading of the clock from now on, counted from 0.
    pub fn stop(&self, reading: usize, for_us: Micros) {
        let mut desk = self.0.borrow_mut();
        desk.jumps_us = std::iter::repeat_n(0, reading).chain([for_us]).collect();
    }

    pub fn answer(&self, answers: &[Result<usize, Errno>]) {
        self.0.borrow_mut().answers.extend(answers);
    }
}

impl Syscalls for FakeKernel {
    fn now(&mut self) -> Micros {
        let mut desk = self.0.borrow_mut();
        desk.clock += desk.step_us + desk.jumps_us.pop_front().unwrap_or(0);
        desk.clock
    }

    fn receive(&mut self, socket: BorrowedFd<'_>, incoming: &mut Incoming<'_>) -> Result<usize, Errno> {
        Kernel.receive(socket, incoming)
    }

    fn send(&mut self, socket: BorrowedFd<'_>, outgoing: &mut Outgoing<'_>) -> Result<usize, Errno> {
        let mut desk = self.0.borrow_mut();
        let count = desk
            .answers
            .pop_front()
            .unwrap_or(Ok(outgoing.len()))?
            .min(outgoing.len());
        desk.taken += count as u64;
        desk.clock += count as u64 * desk.datagram_us;
        if desk.sends {
            return Kernel.send(socket, &mut outgoing.first(count));
        }
        Ok(count)
    }
}

pub fn loopback(port: u16) -> Addr {
    Addr::from(SocketAddr::from(([127, 0, 0, 1], port)))
}

pub fn socket() -> Socket {
    Socket::bind(loopback(0), &SocketOptions::default()).unwrap()
}

/// A plain socket connected to `target`.
pub fn friend(target: Addr) -> UdpSocket {
    let friend = UdpSocket::bind("127.0.0.1:0").unwrap();
    friend.connect(SocketAddr::from(target)).unwrap();
    friend.set_nonblocking(true).unwrap();
    friend
}

/// Everything that a plain socket has received.
pub fn heard(friend: &UdpSocket) -> Vec<Vec<u8>> {
    let mut buffer = [0; 2_048];
    std::iter::from_fn(|| friend.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())).collect()
}

/// A driver of `toy` with one socket, on a scripted kernel.
pub fn told(toy: Toy) -> (Driver<Toy, FakeKernel>, FakeKernel, Addr) {
    let told = FakeKernel::new();
    let socket = socket();
    let local = socket.local();
    (
        Driver::with_syscalls(toy, vec![socket], told.clone()).unwrap(),
        told,
        local,
    )
}
