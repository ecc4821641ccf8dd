//! One unconnected datagram socket and its options.
//!
//! Owns: [`Socket`], [`SocketOptions`], [`Buffers`]. Knows no batch.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_int, SOL_SOCKET};
use muster_transport::Addr;

use crate::address;
use crate::poll::{check, owned};

/// The options of a socket. A size of `None` keeps the system's default, which holds about 256 small datagrams.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    pub receive_bytes: Option<usize>,
    pub send_bytes: Option<usize>,
    /// Lets the kernel join received datagrams of one flow (GRO).
    pub gro: bool,
}

impl Default for SocketOptions {
    fn default() -> Self {
        // 8 MiB hold some 10,000 small datagrams: 100 ms at 100,000 a second. Sending needs a few slices only.
        SocketOptions {
            receive_bytes: Some(8 << 20),
            send_bytes: Some(4 << 20),
            gro: true,
        }
    }
}

/// The requested and the granted size. The kernel charges its own overhead (832 B for a datagram of 64 B) to the
/// buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    pub receive_asked: Option<usize>,
    pub receive_bytes: usize,
    pub send_asked: Option<usize>,
    pub send_bytes: usize,
}

impl Buffers {
    /// Whether the kernel granted less than requested; a starting server should warn loudly.
    pub fn is_short(&self) -> bool {
        self.receive_asked.is_some_and(|asked| self.receive_bytes < asked)
            || self.send_asked.is_some_and(|asked| self.send_bytes < asked)
    }
}

/// An unconnected, non-blocking datagram socket with IP_RECVERR off: an ICMP error of one peer never affects another.
/// The kernel then does not report a full device queue either: such drops count as sent, and in the host's
/// `SndbufErrors`.
pub struct Socket {
    fd: OwnedFd,
    local: Addr,
    v4: bool,
    gro: bool,
    /// Whether super-packets may be sent; permanently off once the kernel has refused one.
    pub(crate) gso: bool,
    buffers: Buffers,
}

impl Socket {
    /// Binds to `address`: an IPv4 socket for an IPv4 address, otherwise an IPv6 one, which also accepts IPv4 peers
    /// if the address is unspecified.
    pub fn bind(address: Addr, options: &SocketOptions) -> io::Result<Self> {
        let v4 = address::is_v4(&address);
        let family = if v4 { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers; the descriptor is checked before it is owned.
        let fd = unsafe { owned(libc::socket(family, kind, 0))? };
        if !v4 {
            set(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
            set(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 0)?;
            // Fragments would hide a wrong size until a firewall drops them. A system without the option still works.
            let _ = set(
                &fd,
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_PROBE,
            );
        }
        // On an IPv6 socket these options affect its v4-mapped peers.
        let _ = set(&fd, libc::IPPROTO_IP, libc::IP_RECVERR, 0);
        let _ = set(&fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        let buffers = Buffers {
            receive_asked: options.receive_bytes,
            receive_bytes: size(&fd, options.receive_bytes, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?,
            send_asked: options.send_bytes,
            send_bytes: size(&fd, options.send_bytes, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?,
        };
        let gro = options.gro && set(&fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let gso = get(&fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();

        let mut name = address::empty();
        let len = address::write(&address, v4, &mut name);
        // SAFETY: `name` holds an address of `len` bytes.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) })?;
        let mut len = address::NAME_BYTES;
        // SAFETY: `name` has room for `len` bytes.
        check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut name).cast(), &mut len) })?;
        Ok(Socket {
            fd,
            local: address::read(&name),
            v4,
            gro,
            gso,
            buffers,
        })
    }

    /// The bound address, with the port that the kernel chose if none was given.
    pub fn local(&self) -> Addr {
        self.local
    }

    pub fn buffers(&self) -> Buffers {
        self.buffers
    }

    /// Whether the kernel joins received datagrams.
    pub fn gro(&self) -> bool {
        self.gro
    }

    /// Whether super-packets are sent whole.
    pub fn gso(&self) -> bool {
        self.gso
    }

    pub(crate) fn is_v4(&self) -> bool {
        self.v4
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Requests a buffer of `bytes`, beyond the system's limit if that is allowed, and reads back the granted size (the
/// kernel reports twice the size; half is meant for its overhead).
fn size(fd: &OwnedFd, bytes: Option<usize>, forced: c_int, plain: c_int) -> io::Result<usize> {
    if let Some(bytes) = bytes {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
        if set(fd, SOL_SOCKET, forced, bytes).is_err() {
            set(fd, SOL_SOCKET, plain, bytes)?;
        }
    }
    Ok(get(fd, SOL_SOCKET, plain)? as usize / 2)
}

fn set(fd: &OwnedFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` outlives the call and is `len` bytes long.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) })
}

fn get(fd: &OwnedFd, level: c_int, option: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` has room for `len` bytes.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn address(text: &str) -> Addr {
        Addr::from(text.parse::<SocketAddr>().unwrap())
    }

    #[test]
    fn default_receive_buffer_is_read_back_and_told_from_a_larger_one() {
        let plain = SocketOptions {
            receive_bytes: None,
            send_bytes: None,
            gro: false,
        };
        let small = Socket::bind(address("127.0.0.1:0"), &plain).unwrap().buffers();
        assert_eq!(small.receive_asked, None);
        assert!(
            small.receive_bytes > 0 && !small.is_short(),
            "no size was requested, so none is short: {small:?}"
        );
        let large = Socket::bind(address("127.0.0.1:0"), &SocketOptions::default())
            .unwrap()
            .buffers();
        assert!(large.receive_bytes >= small.receive_bytes);
        assert_eq!(
            large.is_short(),
            large.receive_bytes < 8 << 20 || large.send_bytes < 4 << 20
        );
    }

    #[test]
    fn a_buffer_smaller_than_asked_is_short() {
        let buffers = Buffers {
            receive_asked: Some(8),
            receive_bytes: 7,
            send_asked: None,
            send_bytes: 1,
        };
        assert!(buffers.is_short());
        assert!(!Buffers {
            receive_bytes: 8,
            ..buffers
        }
        .is_short());
    }

    #[test]
    fn bound_address_carries_the_chosen_port() {
        let socket = Socket::bind(address("127.0.0.1:0"), &SocketOptions::default()).unwrap();
        assert_eq!(socket.local().ip, address("127.0.0.1:0").ip);
        assert_ne!(socket.local().port, 0);
        assert!(
            Socket::bind(socket.local(), &SocketOptions::default()).is_err(),
            "a port in use is refused"
        );
    }

    #[test]
    fn fragmentation_is_forbidden_and_icmp_errors_are_not_queued() {
        let socket = Socket::bind(address("127.0.0.1:0"), &SocketOptions::default()).unwrap();
        assert_eq!(
            get(&socket.fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER).unwrap(),
            libc::IP_PMTUDISC_PROBE
        );
        assert_eq!(get(&socket.fd, libc::IPPROTO_IP, libc::IP_RECVERR).unwrap(), 0);
    }
}
