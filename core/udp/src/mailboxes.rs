//! Datagrams between sockets of one process, through memory.
//!
//! Owns: [`Mailboxes`], where such sockets find each other, and [`Near`], the calls of a driver whose sockets have a
//! mailbox: a datagram to an address with a mailbox goes there, all others go to the kernel. A mailbox is bounded
//! like the receive buffer that it replaces, and what does not fit is lost and counted in the same way. Knows no
//! driver: the owner of the sockets asks [`Mailboxes::waiting`] which mailboxes are non-empty, and runs their
//! drivers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use muster_transport::{Addr, Micros};

use crate::socket::Socket;
use crate::syscalls::{Errno, Incoming, Kernel, Outgoing, Syscalls};

/// Maximum number of mailboxes of one process: a bit each in [`Mailboxes::waiting`].
pub const MAILBOXES_MAX: usize = 64;
/// Maximum bytes already read that a mailbox keeps before the rest moves to the front.
const READ_MAX: usize = 1 << 16;
/// Memory that an empty mailbox keeps: about 200 bundles of 1,200 bytes, as many as one turn reads. Memory beyond it,
/// after a flood, is freed.
const KEPT_BYTES: usize = 256 << 10;

/// A datagram, or a run of datagrams of equal size, in a mailbox.
struct Mail {
    from: Addr,
    len: u32,
    /// The size of each datagram of a run except the last.
    segment: Option<u16>,
}

struct Mailbox {
    address: Addr,
    /// Whether the owner's slots can hold whole runs.
    joined: bool,
    bytes: Vec<u8>,
    /// How many of `bytes` were read.
    read: usize,
    mail: VecDeque<Mail>,
    bytes_max: usize,
}

impl Mailbox {
    fn has_room(&self, len: usize) -> bool {
        // The kernel charges its overhead to a buffer as well, so a flood of empty datagrams is bounded too.
        let held = self.bytes.len() - self.read + (self.mail.len() + 1) * OVERHEAD_BYTES;
        held + len <= self.bytes_max
    }

    fn put(&mut self, from: Addr, bytes: &[u8], segment: Option<u16>) {
        self.bytes.extend_from_slice(bytes);
        self.mail.push_back(Mail {
            from,
            len: bytes.len() as u32,
            segment,
        });
    }

    fn take(&mut self, incoming: &mut Incoming<'_>) -> usize {
        let count = incoming.len().min(self.mail.len());
        for (slot, mail) in self.mail.drain(..count).enumerate() {
            let end = self.read + mail.len as usize;
            incoming.write(slot, &mail.from, &self.bytes[self.read..end], mail.segment);
            self.read = end;
        }
        if self.mail.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            self.read = 0;
        } else if self.read > READ_MAX {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
        count
    }
}

/// Bytes that the kernel charges a receive buffer for one small datagram.
const OVERHEAD_BYTES: usize = 768;

#[derive(Default)]
struct Inner {
    boxes: Vec<Option<Mailbox>>,
}

impl Inner {
    fn find(&mut self, to: &Addr) -> Option<(usize, &mut Mailbox)> {
        self.boxes
            .iter_mut()
            .enumerate()
            .find_map(|(index, one)| one.as_mut().filter(|one| one.address == *to).map(|one| (index, one)))
    }
}

/// The mailboxes of one process. Clones share them.
#[derive(Clone, Default)]
pub struct Mailboxes {
    inner: Arc<Mutex<Inner>>,
    waiting: Arc<AtomicU64>,
}

impl Mailboxes {
    pub fn new() -> Self {
        Mailboxes::default()
    }

    /// One bit for each non-empty mailbox.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Acquire)
    }

    /// Opens a mailbox for a new owner and returns its number. `None` if there are [`MAILBOXES_MAX`], or the socket
    /// is bound to all addresses of the host: its peers then reach it through the kernel.
    fn open(&self, socket: &Socket) -> Option<usize> {
        let address = socket.local();
        if address.is_unspecified() {
            return None;
        }
        let mailbox = Mailbox {
            address,
            joined: socket.gro(),
            bytes: Vec::new(),
            read: 0,
            mail: VecDeque::new(),
            bytes_max: socket.buffers().receive_bytes,
        };
        let mut inner = self.lock();
        let free = inner.boxes.iter().position(Option::is_none);
        let index = free.unwrap_or(inner.boxes.len());
        if index == MAILBOXES_MAX {
            return None;
        }
        match free {
            Some(index) => inner.boxes[index] = Some(mailbox),
            None => inner.boxes.push(Some(mailbox)),
        }
        Some(index)
    }

    fn has_mail(&self, index: usize) -> bool {
        self.waiting() & 1 << index != 0
    }

    /// Moves datagrams into free slots. Returns their number.
    fn take(&self, index: usize, incoming: &mut Incoming<'_>) -> usize {
        let mut inner = self.lock();
        let Some(mailbox) = &mut inner.boxes[index] else {
            return 0;
        };
        let count = mailbox.take(incoming);
        if mailbox.mail.is_empty() {
            self.waiting.fetch_and(!(1 << index), Ordering::AcqRel);
        }
        count
    }

    fn close(&self, index: usize) {
        self.lock().boxes[index] = None;
        self.waiting.fetch_and(!(1 << index), Ordering::AcqRel);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A socket with a mailbox.
struct Own {
    fd: RawFd,
    address: Addr,
    index: usize,
    /// Whether the kernel's datagrams come before those in the mailbox. Alternates between calls with mail, so that a
    /// flood of either delays the other by only one batch.
    kernel_first: bool,
}

/// The kernel's calls, combined with the mailboxes of the process once it has joined some.
#[derive(Default)]
pub struct Near {
    kernel: Kernel,
    mailboxes: Mailboxes,
    own: Vec<Own>,
    counters: NearCounters,
}

/// Datagrams that went through memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NearCounters {
    /// Datagrams put into mailboxes.
    pub put: u64,
    /// Datagrams lost: the mailbox was full.
    pub lost_full: u64,
}

impl Near {
    /// Gives mailboxes to those of these sockets that can have one. Returns their bits in [`Mailboxes::waiting`].
    pub fn join<'a>(&mut self, mailboxes: &Mailboxes, sockets: impl IntoIterator<Item = &'a Socket>) -> u64 {
        self.leave();
        self.mailboxes = mailboxes.clone();
        for socket in sockets {
            if let Some(index) = mailboxes.open(socket) {
                self.own.push(Own {
                    fd: socket.as_fd().as_raw_fd(),
                    address: socket.local(),
                    index,
                    kernel_first: false,
                });
            }
        }
        self.own.iter().fold(0, |bits, own| bits | 1 << own.index)
    }

    pub fn counters(&self) -> NearCounters {
        self.counters
    }

    fn leave(&mut self) {
        for own in self.own.drain(..) {
            self.mailboxes.close(own.index);
        }
    }

    /// Puts messages into mailboxes, up to the first without one. Returns how many it took, and how many after them
    /// have no mailbox.
    fn put(&mut self, from: Addr, outgoing: &Outgoing<'_>) -> (usize, usize) {
        let mut inner = self.mailboxes.lock();
        let (mut taken, mut bits) = (0, 0);
        while taken < outgoing.len() {
            let Some((index, mailbox)) = inner.find(&outgoing.to(taken)) else {
                break;
            };
            let (bytes, segment) = (outgoing.bytes(taken), outgoing.segment(taken));
            let whole = if mailbox.joined {
                bytes.len()
            } else {
                segment.map_or(bytes.len(), usize::from)
            };
            for part in parts(bytes, whole) {
                let datagrams = segment
                    .map_or(1, |segment| part.len().div_ceil(usize::from(segment)))
                    .max(1) as u64;
                if mailbox.has_room(part.len()) {
                    mailbox.put(from, part, segment.filter(|segment| part.len() > usize::from(*segment)));
                    self.counters.put += datagrams;
                } else {
                    self.counters.lost_full += datagrams;
                }
            }
            bits |= 1 << index;
            taken += 1;
        }
        let mut far = taken;
        while far < outgoing.len() && inner.find(&outgoing.to(far)).is_none() {
            far += 1;
        }
        drop(inner);
        if bits != 0 {
            self.mailboxes.waiting.fetch_or(bits, Ordering::AcqRel);
        }
        (taken, far - taken)
    }
}

/// The datagrams of a message; an empty message is one datagram.
fn parts(bytes: &[u8], whole: usize) -> impl Iterator<Item = &[u8]> {
    let empty = bytes.is_empty().then_some(bytes);
    empty.into_iter().chain(bytes.chunks(whole.max(1)))
}

impl Drop for Near {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Syscalls for Near {
    fn now(&mut self) -> Micros {
        self.kernel.now()
    }

    fn receive(&mut self, socket: BorrowedFd<'_>, incoming: &mut Incoming<'_>) -> Result<usize, Errno> {
        let fd = socket.as_raw_fd();
        let Some(own) = self.own.iter_mut().find(|own| own.fd == fd) else {
            return self.kernel.receive(socket, incoming);
        };
        if !self.mailboxes.has_mail(own.index) {
            return self.kernel.receive(socket, incoming);
        }
        own.kernel_first = !own.kernel_first;
        let (index, kernel_first) = (own.index, own.kernel_first);
        let mut count = 0;
        for kernel in [kernel_first, !kernel_first] {
            if count == incoming.len() {
                break;
            }
            let mut rest = incoming.rest(count);
            count += match kernel {
                false => self.mailboxes.take(index, &mut rest),
                // There is mail, so the call as a whole succeeds. A lasting error comes again.
                true => self.kernel.receive(socket, &mut rest).unwrap_or(0),
            };
        }
        Ok(count)
    }

    fn send(&mut self, socket: BorrowedFd<'_>, outgoing: &mut Outgoing<'_>) -> Result<usize, Errno> {
        let fd = socket.as_raw_fd();
        let Some(from) = self.own.iter().find(|own| own.fd == fd).map(|own| own.address) else {
            return self.kernel.send(socket, outgoing);
        };
        match self.put(from, outgoing) {
            (0, far) => self.kernel.send(socket, &mut outgoing.first(far)),
            (taken, _) => Ok(taken),
        }
    }
}
