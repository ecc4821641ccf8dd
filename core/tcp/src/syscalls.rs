//! The calls into the kernel: the only `unsafe` of this crate.
//!
//! Owns: their arguments and the meaning of their results. Must not know: streams.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use muster_transport::Addr;

/// Accepts one connection: not blocking, closed on exec.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, Addr)> {
    // SAFETY: an address is plain integers; all zero is an empty one.
    let mut name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the name has the length that is said, and outlives the call.
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), (&raw mut name).cast(), &mut len, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok((socket, address(&name)))
}

fn address(name: &libc::sockaddr_storage) -> Addr {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel wrote an address of this family, and the storage is larger and aligned for it.
            let v4 = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = u32::from_be(v4.sin_addr.s_addr).into();
            SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))).into()
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let ip = v6.sin6_addr.s6_addr.into();
            SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, 0)).into()
        }
        _ => Addr::default(),
    }
}

/// Receives what is there. `Ok(0)`: the peer sends no more.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        // SAFETY: the buffer has the length that is said, and outlives the call.
        let count = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Sends parts in order, as much as the kernel takes.
pub(crate) fn send(socket: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: a header is plain integers and pointers; all zero is an empty one.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // An `IoSlice` is an iovec by its contract. The kernel only reads through it.
    header.msg_iov = parts.as_ptr().cast_mut().cast();
    header.msg_iovlen = parts.len() as _;
    loop {
        // SAFETY: the header and all that it points to outlive the call.
        let count = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL) };
        match usize::try_from(count) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Sends no more: the peer reads the end once it has read the rest.
pub(crate) fn finish(socket: BorrowedFd<'_>) {
    // SAFETY: no pointers. An error means that the peer is gone, which the next read says.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) };
}

/// Has the next close reset the connection.
pub(crate) fn set_reset(socket: BorrowedFd<'_>) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    set(socket, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// What every stream has set. An option that the kernel refuses leaves its default.
pub(crate) fn prepare(socket: BorrowedFd<'_>, user_timeout_ms: u32, keepalive_s: u32, send_buffer: usize) {
    let int = |value: usize| libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
    set(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1);
    if user_timeout_ms > 0 {
        let value = int(user_timeout_ms as usize);
        set(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &value);
    }
    if keepalive_s > 0 {
        let value = int(keepalive_s as usize);
        set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1);
        set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &value);
        set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &value);
    }
    if send_buffer > 0 {
        set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &int(send_buffer));
    }
}

/// Bytes that were sent and that the peer's kernel has not acknowledged.
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one int, which outlives it.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    match result {
        0 => usize::try_from(bytes).unwrap_or(0),
        _ => 0,
    }
}

fn set<T>(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &T) {
    // SAFETY: the value has the length that is said, and outlives the call.
    unsafe {
        let len = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const *value).cast(), len);
    }
}
