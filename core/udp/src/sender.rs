//! Sends the parcels of an [`Outbox`] and interprets each errno.
//!
//! Owns: [`Sender`], [`Cursor`]. Never waits and loses nothing silently: unsent parcels stay behind the cursor, given
//! up ones are counted by reason.

use std::marker::PhantomData;
use std::os::fd::AsFd;

use muster_transport::{Outbox, SocketId, SLICE_DATAGRAMS};

use crate::address::{self, Name};
use crate::counters::Counters;
use crate::socket::Socket;
use crate::syscalls::{Errno, Outgoing, Syscalls};

/// How far an outbox has been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    parcel: usize,
    /// Bytes of that parcel that have left as single datagrams.
    offset: u32,
    /// Whether the parcel at the cursor leaves as single datagrams, because the kernel refused it whole.
    singly: bool,
    /// Whether the message at the cursor was repeated once already.
    repeated: bool,
    /// Whether this outbox has already waited once for memory of the kernel.
    starved: bool,
}

impl Cursor {
    /// Datagrams of `outbox` that were not handed to the kernel yet.
    pub fn remaining(&self, outbox: &Outbox) -> usize {
        let parcels = outbox.parcels().get(self.parcel..).unwrap_or(&[]);
        let done = parcels
            .first()
            .map_or(0, |parcel| self.offset as usize / parcel.segment.max(1) as usize);
        parcels.iter().map(|parcel| parcel.datagrams()).sum::<usize>() - done
    }
}

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Everything was handed to the kernel or counted as lost.
    All,
    /// This socket's buffer is full. Continue with the same cursor when it is writable.
    Blocked(SocketId),
    /// The kernel has no memory (ENOBUFS), and no event will report the end of that. Continue with the same cursor in
    /// 1 to 2 ms; parcels that then still get no memory are given up.
    Starved,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// CMSG_SPACE for the u16 of UDP_SEGMENT.
const CONTROL_BYTES: usize = 24;

/// The part of the outbox that one message header covers.
#[derive(Clone, Copy, Default)]
struct Message {
    parcel: usize,
    offset: u32,
    len: u32,
    datagrams: u32,
}

/// Preallocated message headers for one slice.
pub struct Sender {
    headers: Box<[libc::mmsghdr]>,
    iovs: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    messages: Box<[Message]>,
}

// SAFETY: every raw pointer in it is set again before the call that follows it.
unsafe impl Send for Sender {}
// SAFETY: nothing follows them through a shared reference.
unsafe impl Sync for Sender {}

impl Default for Sender {
    fn default() -> Self {
        Self::new()
    }
}

impl Sender {
    pub fn new() -> Self {
        let empty_iov = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Sender {
            // SAFETY: a header is plain integers and pointers; all zero is an empty one.
            headers: vec![unsafe { std::mem::zeroed() }; SLICE_DATAGRAMS].into_boxed_slice(),
            iovs: vec![empty_iov; SLICE_DATAGRAMS].into_boxed_slice(),
            names: vec![address::empty(); SLICE_DATAGRAMS].into_boxed_slice(),
            controls: vec![Control([0; CONTROL_BYTES]); SLICE_DATAGRAMS].into_boxed_slice(),
            messages: vec![Message::default(); SLICE_DATAGRAMS].into_boxed_slice(),
        }
    }

    /// Sends the parcels behind `cursor`, with one call for each run of one socket. `sockets` are indexed by
    /// [`SocketId`].
    pub fn send(
        &mut self,
        syscalls: &mut impl Syscalls,
        sockets: &mut [Socket],
        outbox: &Outbox,
        cursor: &mut Cursor,
        counters: &mut Counters,
    ) -> Sent {
        while cursor.parcel < outbox.parcels().len() {
            let id = outbox.parcels()[cursor.parcel].socket;
            let Some(socket) = sockets.get_mut(id as usize) else {
                let parcel = &outbox.parcels()[cursor.parcel];
                counters.lost_other += parcel.datagrams() as u64;
                *cursor = Cursor {
                    parcel: cursor.parcel + 1,
                    starved: cursor.starved,
                    ..Cursor::default()
                };
                continue;
            };
            let count = self.prepare(socket, outbox, cursor);
            match self.send_run(syscalls, socket, count, outbox, cursor, counters) {
                Run::Over => {}
                Run::Blocked => return Sent::Blocked(id),
                Run::Starved => return Sent::Starved,
            }
        }
        Sent::All
    }

    /// Writes headers for the messages at the cursor that leave by the same socket.
    fn prepare(&mut self, socket: &Socket, outbox: &Outbox, cursor: &Cursor) -> usize {
        let parcels = outbox.parcels();
        let id = parcels[cursor.parcel].socket;
        let mut count = 0;
        let mut offset = cursor.offset;
        for (index, parcel) in parcels.iter().enumerate().skip(cursor.parcel) {
            if parcel.socket != id {
                break;
            }
            // A parcel partly sent as single datagrams continues so.
            let refused = cursor.singly && index == cursor.parcel;
            let whole = offset == 0 && socket.gso && !refused;
            let step = if whole {
                parcel.len
            } else {
                u32::from(parcel.segment.max(1))
            };
            let mut name = address::empty();
            let name_len = address::write(&parcel.to, socket.is_v4(), &mut name);
            loop {
                if count == self.headers.len() {
                    return count;
                }
                let len = step.min(parcel.len - offset);
                let datagrams = len.div_ceil(u32::from(parcel.segment.max(1))).max(1);
                self.messages[count] = Message {
                    parcel: index,
                    offset,
                    len,
                    datagrams,
                };
                let bytes = &outbox.bytes(parcel)[offset as usize..(offset + len) as usize];
                self.iovs[count] = libc::iovec {
                    iov_base: bytes.as_ptr().cast_mut().cast(),
                    iov_len: bytes.len(),
                };
                self.names[count] = name;
                let header = &mut self.headers[count].msg_hdr;
                header.msg_name = (&raw mut self.names[count]).cast();
                header.msg_namelen = name_len;
                header.msg_iov = &mut self.iovs[count];
                header.msg_iovlen = 1;
                self.join(count, (datagrams > 1).then_some(parcel.segment));
                count += 1;
                offset += len;
                if offset >= parcel.len {
                    break;
                }
            }
            offset = 0;
        }
        count
    }

    /// Asks the kernel to split a message into datagrams of `segment` bytes, or not to.
    fn join(&mut self, index: usize, segment: Option<u16>) {
        let header = &mut self.headers[index].msg_hdr;
        let Some(segment) = segment else {
            header.msg_control = std::ptr::null_mut();
            header.msg_controllen = 0;
            return;
        };
        header.msg_control = (&raw mut self.controls[index]).cast();
        header.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: the control buffer has room for one message header with a u16.
        unsafe {
            let message = libc::CMSG_FIRSTHDR(header);
            (*message).cmsg_level = libc::SOL_UDP;
            (*message).cmsg_type = libc::UDP_SEGMENT;
            (*message).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(message).cast::<u16>().write_unaligned(segment);
        }
    }

    /// Sends the first `count` prepared messages.
    fn send_run(
        &mut self,
        syscalls: &mut impl Syscalls,
        socket: &mut Socket,
        count: usize,
        outbox: &Outbox,
        cursor: &mut Cursor,
        counters: &mut Counters,
    ) -> Run {
        let mut done = 0;
        while done < count {
            counters.send_calls += 1;
            let mut outgoing = Outgoing {
                headers: &mut self.headers[done..count],
                bytes: PhantomData,
            };
            let errno = match syscalls.send(socket.as_fd(), &mut outgoing) {
                Ok(taken) if taken > 0 => {
                    let taken = taken.min(count - done);
                    counters.short_counts += u64::from(taken < count - done);
                    for message in &self.messages[done..done + taken] {
                        counters.sent += u64::from(message.datagrams);
                        counters.sent_bytes += u64::from(message.len);
                        counters.sent_joined += u64::from(message.datagrams > 1);
                    }
                    let refused_whole = cursor.singly && self.messages[done].offset == 0;
                    done += taken;
                    self.pass(outbox, cursor, done - 1);
                    // Only now is the joining at fault: a bad address or a device's MTU would have stopped the first
                    // datagram as well (a shorter last one may pass), and one peer must not slow down all others.
                    if refused_whole && socket.gso {
                        socket.gso = false;
                        counters.gso_refused += 1;
                        return Run::Over;
                    }
                    continue;
                }
                // The manual excludes a call that takes nothing without an error; skipping a message avoids an
                // endless loop.
                Ok(_) => 0,
                Err(errno) => errno,
            };
            let first = self.messages[done];
            match judge(errno, first.datagrams > 1, cursor) {
                Verdict::Wait => {
                    counters.blocked += 1;
                    return Run::Blocked;
                }
                Verdict::WaitForMemory => {
                    counters.starved += 1;
                    cursor.starved = true;
                    return Run::Starved;
                }
                Verdict::Repeat => {
                    counters.repeated += 1;
                    cursor.repeated = true;
                }
                Verdict::SendSingly => {
                    cursor.singly = true;
                    return Run::Over;
                }
                Verdict::GiveUp(reason) => {
                    *reason(counters) += u64::from(first.datagrams);
                    self.pass(outbox, cursor, done);
                    done += 1;
                }
            }
        }
        Run::Over
    }

    /// Moves the cursor behind a message.
    fn pass(&self, outbox: &Outbox, cursor: &mut Cursor, index: usize) {
        let message = self.messages[index];
        cursor.parcel = message.parcel;
        cursor.offset = message.offset + message.len;
        cursor.repeated = false;
        if cursor.offset >= outbox.parcels()[cursor.parcel].len {
            cursor.parcel += 1;
            cursor.offset = 0;
            cursor.singly = false;
        }
    }
}

enum Run {
    /// All were handled, or the rest must be prepared again.
    Over,
    Blocked,
    Starved,
}

enum Verdict {
    Wait,
    WaitForMemory,
    Repeat,
    SendSingly,
    GiveUp(fn(&mut Counters) -> &mut u64),
}

/// The meaning of an error for the message at the cursor.
fn judge(errno: Errno, joined: bool, cursor: &Cursor) -> Verdict {
    match errno {
        libc::EAGAIN => Verdict::Wait,
        libc::ENOBUFS if !cursor.starved => Verdict::WaitForMemory,
        libc::ENOBUFS => Verdict::GiveUp(|counters| &mut counters.lost_starved),
        // The error of an earlier datagram, reported to the next send; or a signal.
        libc::ECONNREFUSED | libc::EINTR if !cursor.repeated => Verdict::Repeat,
        libc::ECONNREFUSED => Verdict::GiveUp(|counters| &mut counters.lost_refused),
        // For a super-packet, newer kernels report the error of its datagrams; the last one may be short enough.
        libc::EMSGSIZE if joined => Verdict::SendSingly,
        libc::EMSGSIZE => Verdict::GiveUp(|counters| &mut counters.lost_too_large),
        // A device without checksum offload, or a kernel without the option.
        libc::EINVAL | libc::EIO if joined => Verdict::SendSingly,
        libc::EPERM | libc::EACCES => Verdict::GiveUp(|counters| &mut counters.lost_denied),
        libc::EHOSTUNREACH | libc::ENETUNREACH => Verdict::GiveUp(|counters| &mut counters.lost_unreachable),
        _ => Verdict::GiveUp(|counters| &mut counters.lost_other),
    }
}
