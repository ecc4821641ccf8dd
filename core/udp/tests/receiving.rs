//! Datagrams that arrive in the slab, and those dropped and counted.

use std::net::UdpSocket;
use std::os::fd::BorrowedFd;

use muster_transport::{Addr, Micros};
use muster_udp::{
    Counters, Errno, Incoming, Kernel, Outgoing, Received, Receiver, Socket, SocketOptions, Syscalls, PLAIN_SLOTS,
    PLAIN_SLOT_BYTES,
};

fn socket(gro: bool) -> Socket {
    let loopback = Addr::from("127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap());
    Socket::bind(
        loopback,
        &SocketOptions {
            gro,
            ..SocketOptions::default()
        },
    )
    .unwrap()
}

/// A plain sender that is connected to `target`.
fn friend(target: &Socket) -> UdpSocket {
    let friend = UdpSocket::bind("127.0.0.1:0").unwrap();
    friend.connect(std::net::SocketAddr::from(target.local())).unwrap();
    friend
}

#[test]
fn empty_and_largest_datagrams_arrive_whole() {
    let target = socket(true);
    let friend = friend(&target);
    let largest: Vec<u8> = (0..65_507u32).map(|index| index as u8).collect();
    for bytes in [&b""[..], &largest, b"x"] {
        assert_eq!(friend.send(bytes).unwrap(), bytes.len());
    }
    let (mut receiver, mut counters) = (Receiver::new(true), Counters::default());
    let received = receiver.receive(&mut Kernel, &target, 5, usize::MAX, &mut counters);
    assert_eq!(
        received,
        Received {
            slots: 3,
            drained: true
        }
    );
    let from = Addr::from(friend.local_addr().unwrap());
    let mut inbox = receiver.inbox();
    for (index, wanted) in [&b""[..], &largest, b"x"].into_iter().enumerate() {
        let (arrival, bytes) = inbox.datagram(index);
        assert_eq!(bytes, wanted);
        assert_eq!((arrival.socket, arrival.from), (5, from));
    }
    assert_eq!(
        (counters.received, counters.received_bytes, counters.truncated),
        (3, 65_508, 0)
    );
}

#[test]
fn a_datagram_longer_than_its_slot_is_dropped_and_counted() {
    let target = socket(false);
    let friend = friend(&target);
    for len in [PLAIN_SLOT_BYTES, PLAIN_SLOT_BYTES + 1, 65_507, 3] {
        friend.send(&vec![7; len]).unwrap();
    }
    let (mut receiver, mut counters) = (Receiver::new(false), Counters::default());
    receiver.receive(&mut Kernel, &target, 0, usize::MAX, &mut counters);
    let lengths: Vec<u32> = receiver.inbox().arrivals.iter().map(|arrival| arrival.len).collect();
    assert_eq!(lengths, [PLAIN_SLOT_BYTES as u32, 3]);
    assert_eq!((counters.received, counters.truncated), (2, 2));
}

#[test]
fn super_packets_in_a_slab_without_room_for_them_are_counted_as_truncated() {
    use muster_transport::Outbox;
    use muster_udp::{Cursor, Sender};
    let target = socket(true);
    let mut outbox = Outbox::new(true);
    for number in 0..5u8 {
        outbox.reserve(1_200).fill(number);
        outbox.commit(0, target.local(), 1_200);
    }
    let mut counters = Counters::default();
    let mut sources = [socket(true)];
    Sender::new().send(
        &mut Kernel,
        &mut sources,
        &outbox,
        &mut Cursor::default(),
        &mut counters,
    );
    assert_eq!(counters.sent_joined, 1);
    let mut receiver = Receiver::new(false);
    let received = receiver.receive(&mut Kernel, &target, 0, usize::MAX, &mut counters);
    assert_eq!((received.slots, receiver.datagrams()), (1, 0));
    assert_eq!(counters.truncated, 1, "without the flag this loss would be silent");
}

#[test]
fn a_full_batch_is_not_drained_and_a_short_one_costs_no_further_call() {
    let target = socket(false);
    let friend = friend(&target);
    for number in 0..PLAIN_SLOTS as u8 + 3 {
        friend.send(&[number]).unwrap();
    }
    let (mut receiver, mut counters) = (Receiver::new(false), Counters::default());
    let mut seen = Vec::new();
    for wanted in [
        Received {
            slots: PLAIN_SLOTS,
            drained: false,
        },
        Received {
            slots: 3,
            drained: true,
        },
    ] {
        assert_eq!(
            receiver.receive(&mut Kernel, &target, 0, usize::MAX, &mut counters),
            wanted
        );
        seen.extend(receiver.inbox().arrivals.iter().map(|arrival| arrival.start as usize));
        let mut inbox = receiver.inbox();
        let first = inbox.datagram(0).1[0];
        assert_eq!(first, if wanted.drained { PLAIN_SLOTS as u8 } else { 0 });
        receiver.clear();
    }
    assert_eq!(counters.receive_calls, 2);
    assert_eq!(seen[1], PLAIN_SLOT_BYTES);
}

#[test]
fn several_sockets_share_one_batch() {
    let targets = [socket(true), socket(true), socket(true)];
    for (number, target) in targets.iter().enumerate() {
        friend(target).send(&[number as u8]).unwrap();
    }
    let (mut receiver, mut counters) = (Receiver::new(true), Counters::default());
    for (id, target) in targets.iter().enumerate() {
        let received = receiver.receive(&mut Kernel, target, id as u32, 1, &mut counters);
        assert_eq!(
            received,
            Received {
                slots: 1,
                drained: false
            }
        );
    }
    assert_eq!(receiver.room(), receiver.slots() - 3);
    let mut inbox = receiver.inbox();
    for index in 0..3 {
        let (arrival, bytes) = inbox.datagram(index);
        assert_eq!((arrival.socket, &*bytes), (index as u32, &[index as u8][..]));
    }
    receiver.clear();
    assert_eq!(receiver.room(), receiver.slots());
}

/// Returns the given errors, then calls the kernel.
struct Failing(Vec<Errno>);

impl Syscalls for Failing {
    fn now(&mut self) -> Micros {
        0
    }

    fn receive(&mut self, socket: BorrowedFd<'_>, incoming: &mut Incoming<'_>) -> Result<usize, Errno> {
        self.0.pop().map_or_else(|| Kernel.receive(socket, incoming), Err)
    }

    fn send(&mut self, _: BorrowedFd<'_>, _: &mut Outgoing<'_>) -> Result<usize, Errno> {
        unreachable!("receives only")
    }
}

#[test]
fn a_pending_error_of_the_socket_is_counted_and_does_not_hide_the_queue() {
    for (errno, errors) in [
        (libc::ECONNREFUSED, 1),
        (libc::ENOMEM, 1),
        (libc::EINTR, 0),
        (libc::EAGAIN, 0),
    ] {
        let target = socket(true);
        friend(&target).send(b"behind").unwrap();
        let (mut receiver, mut counters) = (Receiver::new(true), Counters::default());
        receiver.receive(&mut Failing(vec![errno]), &target, 0, usize::MAX, &mut counters);
        let wanted = usize::from(errno != libc::EAGAIN);
        assert_eq!(
            (receiver.datagrams(), counters.receive_errors),
            (wanted, errors),
            "errno {errno}"
        );
    }
}

#[test]
fn a_lasting_error_ends_the_attempt() {
    let target = socket(true);
    let (mut receiver, mut counters) = (Receiver::new(true), Counters::default());
    let received = receiver.receive(&mut Failing(vec![libc::EIO; 9]), &target, 0, usize::MAX, &mut counters);
    assert_eq!(
        received,
        Received {
            slots: 0,
            drained: true
        }
    );
    assert_eq!(counters.receive_errors, 2);
}
