//! A preallocated slab that receives batches of datagrams, and the positions of the datagrams in it.
//!
//! Owns: [`Receiver`]. Knows the format of no datagram; splits super-packets by the size that the kernel reports.

use muster_transport::{Arrival, Inbox, SocketId};

use crate::address::{self, Name};
use crate::counters::Counters;
use crate::socket::Socket;
use crate::syscalls::{Incoming, Syscalls};

/// With GRO: a super-packet can have 65,507 B, and a shorter slot would truncate it. 16 x 64 KiB = 1 MiB.
pub const GRO_SLOTS: usize = 16;
pub const GRO_SLOT_BYTES: usize = 65_536;
/// Without GRO: slots longer than an Ethernet frame, and an odd number of cache lines, so that the starts of the
/// slots do not all share two sets of the cache (4 % of the cost of receiving a packet). 64 slots are 124 KiB.
pub const PLAIN_SLOTS: usize = 64;
pub const PLAIN_SLOT_BYTES: usize = 1_984;

/// The result of one receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Slots that were filled.
    pub slots: usize,
    /// Whether fewer came than there were slots: the queue is empty, and another call would be wasted.
    pub drained: bool,
}

/// Space for the one control message that is requested, UDP_GRO's int; aligned as a `cmsghdr` must be.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 64;

/// One slab for any number of sockets: it collects batches of several sockets before a machine processes them.
pub struct Receiver {
    slab: Box<[u8]>,
    slot_bytes: usize,
    used: usize,
    headers: Box<[libc::mmsghdr]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    iovs: Box<[libc::iovec]>,
    arrivals: Vec<Arrival>,
}

// SAFETY: the raw pointers in `headers` and `iovs` point into boxes that the same value owns, and are set again
// before each call that follows them.
unsafe impl Send for Receiver {}
// SAFETY: nothing follows them through a shared reference.
unsafe impl Sync for Receiver {}

impl Receiver {
    /// A slab for sockets with GRO, or for sockets that all lack it.
    pub fn new(gro: bool) -> Self {
        if gro {
            Self::with_slots(GRO_SLOTS, GRO_SLOT_BYTES)
        } else {
            Self::with_slots(PLAIN_SLOTS, PLAIN_SLOT_BYTES)
        }
    }

    fn with_slots(slots: usize, slot_bytes: usize) -> Self {
        let empty_iov = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Receiver {
            slab: vec![0; slots * slot_bytes].into_boxed_slice(),
            slot_bytes,
            used: 0,
            // SAFETY: a header is plain integers and pointers; all zero is an empty one.
            headers: vec![unsafe { std::mem::zeroed() }; slots].into_boxed_slice(),
            iovs: vec![empty_iov; slots].into_boxed_slice(),
            names: vec![address::empty(); slots].into_boxed_slice(),
            controls: vec![Control([0; CONTROL_BYTES]); slots].into_boxed_slice(),
            arrivals: Vec::with_capacity(slots.max(1_024)),
        }
    }

    /// Whether super-packets fit into a slot.
    pub fn takes_joined(&self) -> bool {
        self.slot_bytes >= GRO_SLOT_BYTES
    }

    /// Number of slots of a whole batch.
    pub fn slots(&self) -> usize {
        self.headers.len()
    }

    /// Slots that are still free.
    pub fn room(&self) -> usize {
        self.headers.len() - self.used
    }

    /// Receives at most `slots_max` messages (one is a plain recvmsg) behind the present content of the slab.
    pub fn receive(
        &mut self,
        syscalls: &mut impl Syscalls,
        socket: &Socket,
        id: SocketId,
        slots_max: usize,
        counters: &mut Counters,
    ) -> Received {
        let asked = slots_max.min(self.room());
        debug_assert!(asked > 0, "no free slot");
        let first = self.used;
        self.point(first, asked);
        // A call can hit one pending error of the socket, or a signal; the next one then sees the queue.
        let mut filled = None;
        for _ in 0..2 {
            counters.receive_calls += 1;
            let mut incoming = Incoming {
                headers: &mut self.headers[first..first + asked],
            };
            match syscalls.receive(std::os::fd::AsFd::as_fd(socket), &mut incoming) {
                Ok(count) => filled = Some(count.min(asked)),
                Err(libc::EAGAIN) => filled = Some(0),
                Err(libc::EINTR) => continue,
                Err(_) => {
                    counters.receive_errors += 1;
                    continue;
                }
            }
            break;
        }
        let count = filled.unwrap_or(0);
        for slot in first..first + count {
            self.place(slot, id, counters);
        }
        self.used += count;
        Received {
            slots: count,
            drained: count < asked,
        }
    }

    /// The datagrams in the slab, for a machine to open in place.
    pub fn inbox(&mut self) -> Inbox<'_> {
        Inbox {
            slab: &mut self.slab,
            arrivals: &self.arrivals,
        }
    }

    /// The slab and the positions of its datagrams, to alter received datagrams.
    pub fn parts(&mut self) -> (&mut [u8], &mut Vec<Arrival>) {
        (&mut self.slab, &mut self.arrivals)
    }

    /// Datagrams in the slab.
    pub fn datagrams(&self) -> usize {
        self.arrivals.len()
    }

    /// Makes the whole slab free again.
    pub fn clear(&mut self) {
        self.used = 0;
        self.arrivals.clear();
    }

    /// Points the headers of free slots to their buffers. Needed before every call: the kernel alters them, and
    /// earlier pointers would not outlive a machine's mutable view of the slab.
    fn point(&mut self, first: usize, count: usize) {
        let slots = first..first + count;
        let room = self.slab[first * self.slot_bytes..].chunks_exact_mut(self.slot_bytes);
        let parts = self.iovs[slots.clone()].iter_mut().zip(&mut self.names[slots.clone()]);
        let parts = parts.zip(&mut self.controls[slots.clone()]).zip(room);
        for (header, (((iov, name), control), bytes)) in self.headers[slots].iter_mut().zip(parts) {
            *iov = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            header.msg_len = 0;
            header.msg_hdr.msg_name = (&raw mut *name).cast();
            header.msg_hdr.msg_namelen = address::NAME_BYTES;
            header.msg_hdr.msg_iov = iov;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = (&raw mut *control).cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            header.msg_hdr.msg_flags = 0;
        }
    }

    /// Notes the datagrams of a filled slot.
    fn place(&mut self, slot: usize, socket: SocketId, counters: &mut Counters) {
        let header = &self.headers[slot];
        // The reported length is the truncated one, so only the flag shows that something is missing.
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
            counters.truncated += 1;
            return;
        }
        let len = (header.msg_len as usize).min(self.slot_bytes);
        let start = slot * self.slot_bytes;
        let from = address::read(&self.names[slot]);
        let segment = match self.segment(slot) {
            Some(segment) if segment < len => {
                counters.received_joined += 1;
                segment
            }
            // An empty datagram, too: it is legal and arrives as such.
            _ => len.max(1),
        };
        let mut offset = 0;
        loop {
            let part = segment.min(len - offset);
            self.arrivals.push(Arrival {
                socket,
                from,
                start: (start + offset) as u32,
                len: part as u32,
            });
            counters.received += 1;
            offset += part;
            if offset >= len {
                break;
            }
        }
        counters.received_bytes += len as u64;
    }

    /// The size of the datagrams that the kernel joined in `slot`, if it did.
    fn segment(&self, slot: usize) -> Option<usize> {
        let header = &self.headers[slot].msg_hdr;
        if header.msg_controllen == 0 {
            return None;
        }
        // SAFETY: the control buffer is ours, and the kernel wrote well-formed messages of the length in the header.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(header);
            while !message.is_null() {
                if (*message).cmsg_level == libc::SOL_UDP && (*message).cmsg_type == libc::UDP_GRO {
                    let size = libc::CMSG_DATA(message).cast::<libc::c_int>().read_unaligned();
                    return usize::try_from(size).ok().filter(|size| *size > 0);
                }
                message = libc::CMSG_NXTHDR(header, message);
            }
        }
        None
    }
}
