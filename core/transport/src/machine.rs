//! The verbs that every role machine has, and the batches that carry datagrams in and out of it.
//!
//! Owns: [`Machine`], [`Addr`], [`Inbox`], [`Outbox`], [`Entropy`]. Knows no role, no frame, no key.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Microseconds of a monotonic clock. Read once per turn by the driver.
pub type Micros = u64;

/// The machine's socket that received a datagram or sends it: an index that the role defines.
pub type SocketId = u32;

/// Maximum number of datagrams that one slice seals before it is sent (`docs/protocol.md`, fan-out).
pub const SLICE_DATAGRAMS: usize = 64;
/// The largest UDP payload that IPv4 can carry; a super-packet of segments may not exceed it.
pub const SUPER_PACKET_BYTES: usize = 65_507;
/// Bytes that an [`Outbox`] holds: one slice of full-size datagrams of 1,472 B (a jumbo link is refused).
pub const OUTBOX_BYTES: usize = SLICE_DATAGRAMS * 1_472;

/// An address, IPv4 as v4-mapped IPv6, so that one layout serves everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Addr {
    pub ip: [u8; 16],
    pub port: u16,
}

impl Addr {
    /// Whether it is the unspecified address, which stands for all addresses of a host.
    pub fn is_unspecified(&self) -> bool {
        let ip = Ipv6Addr::from(self.ip);
        ip.to_ipv4_mapped()
            .map_or(ip.is_unspecified(), |v4| v4.is_unspecified())
    }
}

impl From<SocketAddr> for Addr {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Addr {
            ip: ip.octets(),
            port: address.port(),
        }
    }
}

impl From<Addr> for SocketAddr {
    fn from(address: Addr) -> Self {
        let v6 = Ipv6Addr::from(address.ip);
        let ip = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4);
        SocketAddr::new(ip, address.port)
    }
}

impl std::fmt::Debug for Addr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", SocketAddr::from(*self))
    }
}

/// The position of one received datagram in the [`Inbox`] slab.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub socket: SocketId,
    pub from: Addr,
    pub start: u32,
    pub len: u32,
}

/// One batch of received datagrams, opened in place. Super-packets are split before they get here.
pub struct Inbox<'a> {
    pub slab: &'a mut [u8],
    pub arrivals: &'a [Arrival],
}

impl Inbox<'_> {
    /// The `index`-th datagram with its arrival.
    pub fn datagram(&mut self, index: usize) -> (Arrival, &mut [u8]) {
        let arrival = self.arrivals[index];
        let start = arrival.start as usize;
        (arrival, &mut self.slab[start..start + arrival.len as usize])
    }
}

/// One destination's run of datagrams in an [`Outbox`]: each is `segment` bytes long, the last may be shorter. A
/// longer run leaves as a UDP_SEGMENT super-packet if the kernel can do that, otherwise one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parcel {
    pub socket: SocketId,
    pub to: Addr,
    pub start: u32,
    pub len: u32,
    pub segment: u16,
}

impl Parcel {
    /// Datagrams in this run.
    pub fn datagrams(&self) -> usize {
        (self.len as usize).div_ceil(self.segment.max(1) as usize)
    }

    /// Merges the next parcel into this one, if both can be one super-packet.
    fn joins(&mut self, next: &Parcel) -> bool {
        let whole = self.len % u32::from(self.segment) == 0;
        let fits = next.len <= u32::from(self.segment) && (self.len + next.len) as usize <= SUPER_PACKET_BYTES;
        let joins = whole && fits && next.to == self.to && next.socket == self.socket;
        if joins {
            self.len += next.len;
        }
        joins
    }
}

/// One slice of sealed datagrams on its way out: filled by the machine, sent by the driver.
pub struct Outbox {
    slab: Vec<u8>,
    used: usize,
    parcels: Vec<Parcel>,
    datagrams: usize,
    /// Datagrams that this slice may hold.
    limit: usize,
    coalesce: bool,
}

impl Outbox {
    /// `coalesce`: whether runs to one destination may become super-packets.
    pub fn new(coalesce: bool) -> Self {
        Outbox {
            slab: vec![0; OUTBOX_BYTES],
            used: 0,
            parcels: Vec::with_capacity(SLICE_DATAGRAMS),
            datagrams: 0,
            limit: SLICE_DATAGRAMS,
            coalesce,
        }
    }

    /// Datagrams that still fit into this slice.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.datagrams)
    }

    /// Datagrams that a slice may hold.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Limits the next slices, where [`SLICE_DATAGRAMS`] would delay others for too long. Call only while the outbox
    /// is empty.
    pub fn set_limit(&mut self, limit: usize) {
        debug_assert!(self.is_empty());
        self.limit = limit.clamp(1, SLICE_DATAGRAMS);
    }

    pub fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    pub fn datagrams(&self) -> usize {
        self.datagrams
    }

    pub fn parcels(&self) -> &[Parcel] {
        &self.parcels
    }

    pub fn bytes(&self, parcel: &Parcel) -> &[u8] {
        &self.slab[parcel.start as usize..(parcel.start + parcel.len) as usize]
    }

    pub fn clear(&mut self) {
        self.used = 0;
        self.datagrams = 0;
        self.parcels.clear();
    }

    /// Switches coalescing (the driver turns it off when the kernel refuses UDP_SEGMENT).
    pub fn set_coalesce(&mut self, coalesce: bool) {
        self.coalesce = coalesce;
    }

    /// Space for one datagram of at most `len_max` bytes; finish it with [`Outbox::commit`]. Only call with [`Outbox::room`] left.
    pub fn reserve(&mut self, len_max: usize) -> &mut [u8] {
        assert!(self.datagrams < self.limit, "slice is full");
        &mut self.slab[self.used..self.used + len_max]
    }

    /// Takes the first `len` bytes of the last reservation as a datagram to `to`.
    pub fn commit(&mut self, socket: SocketId, to: Addr, len: usize) {
        debug_assert!(len > 0);
        self.add(Parcel {
            socket,
            to,
            start: self.used as u32,
            len: len as u32,
            segment: len as u16,
        });
    }

    /// Appends a datagram that lies at or behind the end; moves it down if there is a gap.
    fn add(&mut self, parcel: Parcel) {
        let place = parcel.start as usize..(parcel.start + parcel.len) as usize;
        self.datagrams += 1;
        let last = self.parcels.last_mut().filter(|_| self.coalesce);
        if !last.is_some_and(|last| last.joins(&parcel)) {
            self.used = place.end;
            self.parcels.push(parcel);
            return;
        }
        if place.start > self.used {
            self.slab.copy_within(place, self.used);
        }
        self.used += parcel.len as usize;
    }

    /// Moves all datagrams of another outbox into this one except those that `keep` refuses. This outbox must be
    /// empty; the other must have no joined datagrams.
    pub fn sift(&mut self, from: &mut Outbox, mut keep: impl FnMut(SocketId, &Addr, &mut [u8]) -> bool) {
        std::mem::swap(&mut self.slab, &mut from.slab);
        for parcel in from.parcels.drain(..) {
            let place = parcel.start as usize..(parcel.start + parcel.len) as usize;
            if keep(parcel.socket, &parcel.to, &mut self.slab[place]) {
                self.add(parcel);
            }
        }
        from.clear();
    }
}

/// Unpredictable bytes for keys, cookies and tokens. Drivers pass the kernel's; only the simulator passes seeded
/// ones.
pub trait Entropy: Send + Sync {
    fn fill(&mut self, bytes: &mut [u8]);
}

/// A role: deterministic for (inputs, time, seed, entropy).
pub trait Machine {
    /// Events for the control plane; few, bounded, never one per packet.
    type Event;

    /// Whether datagrams that were queued while the loop stood still are to be discarded unread.
    const DISCARDS_STALE: bool = true;

    /// Takes a batch of datagrams. Bad ones are counted by reason and dropped, never an error.
    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>);

    /// Runs the timers due by `now`.
    fn expire(&mut self, now: Micros);

    /// Fills one slice. Returns whether more datagrams could leave at once.
    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool;

    /// When [`Machine::expire`] is to be called next, if at all.
    fn deadline(&self) -> Option<Micros>;

    /// Moves the events since the last call to the end of `events`.
    fn drain_events(&mut self, events: &mut Vec<Self::Event>);

    /// The loop stood still until `now`: datagrams queued before are stale (`docs/protocol.md`, stalls).
    fn stalled(&mut self, now: Micros);

    /// Called before `expire` on machines that discard nothing, while a socket still holds unread datagrams: a peer
    /// that is about to time out may have answered.
    fn behind(&mut self, _now: Micros) {}
}

/// Lowers `at` to `due`, if that is earlier.
pub fn soonest(at: &mut Option<Micros>, due: Option<Micros>) {
    *at = at.iter().copied().chain(due).min();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_datagrams_of_a_slice_are_joined_where_possible() {
        let addr = |port: u16| Addr::from(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
        let (mut from, mut outbox) = (Outbox::new(false), Outbox::new(true));
        for (port, bytes) in [
            (1, "aa"),
            (1, "bb"),
            (1, "cc"),
            (2, "dd"),
            (2, "e"),
            (2, "ff"),
            (2, "gg"),
            (1, "hh"),
        ] {
            from.reserve(bytes.len()).copy_from_slice(bytes.as_bytes());
            from.commit(0, addr(port), bytes.len());
        }
        outbox.sift(&mut from, |_, _, bytes| {
            bytes.make_ascii_uppercase();
            bytes != b"BB" && bytes != b"FF" && bytes != b"HH"
        });
        outbox.reserve(2).copy_from_slice(b"II");
        outbox.commit(0, addr(2), 2);
        let left: Vec<_> = outbox
            .parcels()
            .iter()
            .map(|one| (one.to.port, outbox.bytes(one)))
            .collect();
        assert_eq!(left, [(1, &b"AACC"[..]), (2, b"DDE"), (2, b"GGII")]);
        assert_eq!(
            (outbox.datagrams(), from.is_empty(), from.room()),
            (6, true, SLICE_DATAGRAMS)
        );
    }
}
