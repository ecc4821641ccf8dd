//! The system calls of a turn behind a trait, so that tests can inject short counts, every errno and any time.
//!
//! Owns: [`Syscalls`], [`Kernel`] and the opaque views of message headers. Safe code can shorten and read a view but
//! not build one: the kernel dereferences its pointers.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use muster_transport::{Addr, Micros};

use crate::address;

/// An error number of the kernel.
pub type Errno = i32;

/// Free message slots that a receive call may fill.
pub struct Incoming<'a> {
    pub(crate) headers: &'a mut [libc::mmsghdr],
}

impl Incoming<'_> {
    pub fn len(&self) -> usize {
        self.headers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Only the first `count` slots.
    pub fn first(&mut self, count: usize) -> Incoming<'_> {
        Incoming {
            headers: &mut self.headers[..count],
        }
    }

    /// The slots from `count` on.
    pub(crate) fn rest(&mut self, count: usize) -> Incoming<'_> {
        Incoming {
            headers: &mut self.headers[count..],
        }
    }

    /// Fills a slot as the kernel would: `segment` is the size of the datagrams in `bytes`, if there are several.
    pub(crate) fn write(&mut self, slot: usize, from: &Addr, bytes: &[u8], segment: Option<u16>) {
        let header = &mut self.headers[slot];
        // SAFETY: only this crate makes headers; each points to one iovec, a name and a control buffer with space for
        // the lengths in it, all exclusive for the view's life.
        unsafe {
            let iov = &*header.msg_hdr.msg_iov;
            let len = bytes.len().min(iov.iov_len);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), iov.iov_base.cast::<u8>(), len);
            header.msg_len = len as u32;
            header.msg_hdr.msg_flags = if len < bytes.len() { libc::MSG_TRUNC } else { 0 };
            let name = &mut *header.msg_hdr.msg_name.cast::<address::Name>();
            header.msg_hdr.msg_namelen = address::write(from, true, name);
            let Some(segment) = segment else {
                header.msg_hdr.msg_controllen = 0;
                return;
            };
            let message = libc::CMSG_FIRSTHDR(&header.msg_hdr);
            (*message).cmsg_level = libc::SOL_UDP;
            (*message).cmsg_type = libc::UDP_GRO;
            (*message).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
            libc::CMSG_DATA(message)
                .cast::<libc::c_int>()
                .write_unaligned(libc::c_int::from(segment));
            header.msg_hdr.msg_controllen = libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) as _;
        }
    }
}

/// Messages for a send call.
pub struct Outgoing<'a> {
    pub(crate) headers: &'a mut [libc::mmsghdr],
    /// The bytes that the headers point to.
    pub(crate) bytes: PhantomData<&'a [u8]>,
}

impl Outgoing<'_> {
    pub fn len(&self) -> usize {
        self.headers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Only the first `count` messages.
    pub fn first(&mut self, count: usize) -> Outgoing<'_> {
        Outgoing {
            headers: &mut self.headers[..count],
            bytes: PhantomData,
        }
    }

    /// The destination of the `index`-th message.
    pub fn to(&self, index: usize) -> Addr {
        // SAFETY: every header of a view points to a name of its own that lives as long as the view.
        address::read(unsafe { &*self.headers[index].msg_hdr.msg_name.cast::<address::Name>() })
    }

    /// The content of the `index`-th message.
    pub fn bytes(&self, index: usize) -> &[u8] {
        // SAFETY: every header of a view points to one iovec into bytes that live as long as the view.
        unsafe {
            let iov = &*self.headers[index].msg_hdr.msg_iov;
            std::slice::from_raw_parts(iov.iov_base.cast::<u8>(), iov.iov_len)
        }
    }

    /// Whether the kernel is asked to split the `index`-th message into datagrams (UDP_SEGMENT).
    pub fn is_joined(&self, index: usize) -> bool {
        self.headers[index].msg_hdr.msg_controllen != 0
    }

    /// The datagram size into which the kernel is asked to split the `index`-th message, if it is.
    pub fn segment(&self, index: usize) -> Option<u16> {
        if !self.is_joined(index) {
            return None;
        }
        // SAFETY: a header with a control buffer has one message in it, UDP_SEGMENT's u16.
        unsafe {
            let message = libc::CMSG_FIRSTHDR(&self.headers[index].msg_hdr);
            Some(libc::CMSG_DATA(message).cast::<u16>().read_unaligned())
        }
    }
}

/// The kernel's services for a turn.
pub trait Syscalls {
    /// Monotonic microseconds.
    fn now(&mut self) -> Micros;

    /// Fills slots from the first one on without waiting; returns how many were filled.
    fn receive(&mut self, socket: BorrowedFd<'_>, incoming: &mut Incoming<'_>) -> Result<usize, Errno>;

    /// Sends messages from the first one on without waiting; returns how many left. An error belongs to the first
    /// message.
    fn send(&mut self, socket: BorrowedFd<'_>, outgoing: &mut Outgoing<'_>) -> Result<usize, Errno>;
}

/// The real kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Syscalls for Kernel {
    fn now(&mut self) -> Micros {
        monotonic_now()
    }

    fn receive(&mut self, socket: BorrowedFd<'_>, incoming: &mut Incoming<'_>) -> Result<usize, Errno> {
        let fd = socket.as_raw_fd();
        // With thousands of sockets a single slot is the rule; recvmmsg would look for a second message in vain.
        if let [only] = &mut *incoming.headers {
            // SAFETY: only this crate makes headers; their pointers are valid and exclusive for the view's life.
            let len = unsafe { libc::recvmsg(fd, &mut only.msg_hdr, libc::MSG_DONTWAIT) };
            only.msg_len = u32::try_from(len).map_err(|_| errno())?;
            return Ok(1);
        }
        let (first, count) = (incoming.headers.as_mut_ptr(), incoming.headers.len() as u32);
        // SAFETY: as above.
        let got = unsafe { libc::recvmmsg(fd, first, count, libc::MSG_DONTWAIT as _, std::ptr::null_mut()) };
        usize::try_from(got).map_err(|_| errno())
    }

    fn send(&mut self, socket: BorrowedFd<'_>, outgoing: &mut Outgoing<'_>) -> Result<usize, Errno> {
        let (first, count) = (outgoing.headers.as_mut_ptr(), outgoing.headers.len() as u32);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: only this crate makes headers; their pointers are valid for the view's life.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), first, count, flags as _) };
        usize::try_from(sent).map_err(|_| errno())
    }
}

/// Microseconds of CLOCK_MONOTONIC, the clock of [`crate::Timer`].
pub fn monotonic_now() -> Micros {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// Nanoseconds of CPU that the calling thread has used, user and system together.
pub fn thread_cpu_now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
