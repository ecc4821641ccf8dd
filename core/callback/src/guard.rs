//! The addresses to which callbacks may go.
//!
//! Owns: the refused ranges and the exceptions. Must not know: names; it is called after resolution.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Refuses every address that is not public unicast, except in allowed networks.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    pub allowed: Vec<IpNet>,
}

impl Guard {
    pub fn permits(&self, address: IpAddr) -> bool {
        // Checked in canonical form: an IPv4 address can be written in IPv6.
        let address = address.to_canonical();
        if self.allowed.iter().any(|network| network.contains(&address)) {
            return true;
        }
        match address {
            IpAddr::V4(address) => is_public_v4(address),
            IpAddr::V6(address) => is_public_v6(address),
        }
    }
}

/// Source: the IANA IPv4 Special-Purpose Address Registry.
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let refused = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || a == 0
        || (a == 100 && b & 0xc0 == 64) // shared by carriers
        || (a == 192 && b == 0 && c == 0) // protocol assignments
        || (a == 192 && b == 88 && c == 99) // 6to4 relays
        || (a == 198 && b & 0xfe == 18) // benchmarks
        || a >= 224; // multicast, reserved, broadcast
    !refused
}

/// Source: the IANA IPv6 Special-Purpose Address Registry. Global unicast is 2000::/3.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let v4_at = |at: usize| {
        let [a, b] = segments[at].to_be_bytes();
        let [c, d] = segments[at + 1].to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        // NAT64 and 6to4 carry an IPv4 address.
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => is_public_v4(v4_at(6)),
        [0x2002, ..] => is_public_v4(v4_at(1)),
        // Protocol assignments (Teredo among them), documentation.
        [0x2001, b, ..] if b < 0x200 || b == 0xdb8 => false,
        [0x3fff, b, ..] if b < 0x1000 => false,
        [a, ..] => a & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_pass() {
        let guard = Guard::default();
        let refused = [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12:3456::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::",
            "2001::1",
            "2001:db8::1",
            "100::1",
            "5f00::1",
            "3fff::1",
        ];
        for address in refused {
            assert!(!guard.permits(address.parse().unwrap()), "{address}");
        }
        let permitted = [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::101:101",
            "::ffff:1.1.1.1",
            "2001:4860:4860::8888",
        ];
        for address in permitted {
            assert!(guard.permits(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn allowed_network_passes_in_any_form_and_no_other_does() {
        let guard = Guard {
            allowed: vec!["127.0.0.0/8".parse().unwrap()],
        };
        for address in ["127.0.0.1", "::ffff:127.0.0.1"] {
            assert!(guard.permits(address.parse().unwrap()), "{address}");
        }
        for address in ["10.0.0.1", "::1", "169.254.169.254"] {
            assert!(!guard.permits(address.parse().unwrap()), "{address}");
        }
    }
}
