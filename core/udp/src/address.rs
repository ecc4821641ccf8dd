//! Conversion of socket addresses to and from the kernel's form.
//!
//! Owns: the translation between [`Addr`] and `sockaddr`. One `sockaddr_in6` is large enough for either family.

use libc::{sockaddr_in, sockaddr_in6, socklen_t, AF_INET, AF_INET6};
use muster_transport::Addr;

const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Space for an address of either family.
pub(crate) type Name = sockaddr_in6;

pub(crate) const NAME_BYTES: socklen_t = size_of::<Name>() as socklen_t;
const V4_BYTES: socklen_t = size_of::<sockaddr_in>() as socklen_t;

pub(crate) fn empty() -> Name {
    // SAFETY: a sockaddr consists of plain integers; all zeros is the unspecified family.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn is_v4(address: &Addr) -> bool {
    address.ip[..12] == V4_MAPPED
}

/// Writes `address` for a socket of the family `v4` and returns its length. For an IPv4 socket, too, an IPv6 address
/// is written as such: the kernel then refuses it, which is counted like any other refusal.
pub(crate) fn write(address: &Addr, v4: bool, name: &mut Name) -> socklen_t {
    if v4 && is_v4(address) {
        // SAFETY: `Name` is larger than sockaddr_in and at least as aligned; both are plain integers.
        let short = unsafe { &mut *(name as *mut Name).cast::<sockaddr_in>() };
        short.sin_family = AF_INET as libc::sa_family_t;
        short.sin_port = address.port.to_be();
        short.sin_addr.s_addr = u32::from_ne_bytes([address.ip[12], address.ip[13], address.ip[14], address.ip[15]]);
        short.sin_zero = [0; 8];
        return V4_BYTES;
    }
    name.sin6_family = AF_INET6 as libc::sa_family_t;
    name.sin6_port = address.port.to_be();
    name.sin6_flowinfo = 0;
    name.sin6_addr.s6_addr = address.ip;
    name.sin6_scope_id = 0;
    NAME_BYTES
}

/// Reads an address from the kernel. An unknown family reads as the unspecified address, to which no machine replies.
pub(crate) fn read(name: &Name) -> Addr {
    match i32::from(name.sin6_family) {
        AF_INET => {
            // SAFETY: as in `write`; the family says which of the two layouts the kernel wrote.
            let short = unsafe { &*(name as *const Name).cast::<sockaddr_in>() };
            let mut ip = [0; 16];
            ip[..12].copy_from_slice(&V4_MAPPED);
            ip[12..].copy_from_slice(&short.sin_addr.s_addr.to_ne_bytes());
            Addr {
                ip,
                port: u16::from_be(short.sin_port),
            }
        }
        AF_INET6 => Addr {
            ip: name.sin6_addr.s6_addr,
            port: u16::from_be(name.sin6_port),
        },
        _ => Addr::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn an_address_survives_conversion_to_the_kernels_form_and_back() {
        for (text, v4) in [
            ("192.0.2.7:4711", true),
            ("192.0.2.7:4711", false),
            ("[2001:db8::9]:1", false),
        ] {
            let address = Addr::from(text.parse::<SocketAddr>().unwrap());
            let mut name = empty();
            let len = write(&address, v4, &mut name);
            assert_eq!(len, if v4 { V4_BYTES } else { NAME_BYTES });
            assert_eq!(read(&name), address);
        }
    }
}
