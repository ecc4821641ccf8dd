//! The sender's reaction to each answer of the kernel.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use muster_transport::{Addr, Micros, Outbox};
use muster_udp::{
    Counters, Cursor, Errno, Incoming, Kernel, Outgoing, Receiver, Sender, Sent, Socket, SocketOptions, Syscalls,
};

/// Returns the given results, then takes everything; records the calls.
#[derive(Default)]
struct Script {
    answers: VecDeque<Result<usize, Errno>>,
    taken: Vec<(Addr, Vec<u8>, bool)>,
    calls: usize,
    refuse_joined: Option<Errno>,
}

impl Script {
    fn with(answers: &[Result<usize, Errno>]) -> Self {
        Script {
            answers: answers.iter().copied().collect(),
            ..Script::default()
        }
    }

    fn payloads(&self) -> Vec<Vec<u8>> {
        self.taken.iter().map(|(_, bytes, _)| bytes.clone()).collect()
    }
}

impl Syscalls for Script {
    fn now(&mut self) -> Micros {
        0
    }

    fn receive(&mut self, _: BorrowedFd<'_>, _: &mut Incoming<'_>) -> Result<usize, Errno> {
        self.answers.pop_front().unwrap_or(Err(libc::EAGAIN))
    }

    fn send(&mut self, _: BorrowedFd<'_>, outgoing: &mut Outgoing<'_>) -> Result<usize, Errno> {
        self.calls += 1;
        if let (Some(errno), true) = (self.refuse_joined, outgoing.is_joined(0)) {
            return Err(errno);
        }
        let mut count = self
            .answers
            .pop_front()
            .unwrap_or(Ok(outgoing.len()))?
            .min(outgoing.len());
        if self.refuse_joined.is_some() {
            count = (0..count).find(|index| outgoing.is_joined(*index)).unwrap_or(count);
        }
        for index in 0..count {
            self.taken.push((
                outgoing.to(index),
                outgoing.bytes(index).to_vec(),
                outgoing.is_joined(index),
            ));
        }
        Ok(count)
    }
}

struct Bench {
    sockets: Vec<Socket>,
    sender: Sender,
    outbox: Outbox,
    cursor: Cursor,
    counters: Counters,
}

fn address(text: &str) -> Addr {
    Addr::from(text.parse::<SocketAddr>().unwrap())
}

fn socket() -> Socket {
    Socket::bind(address("127.0.0.1:0"), &SocketOptions::default()).unwrap()
}

fn peer(number: u16) -> Addr {
    let mut peer = address("127.0.0.1:0");
    peer.port = 20_000 + number;
    peer
}

impl Bench {
    fn new() -> Self {
        Bench {
            sockets: vec![socket()],
            sender: Sender::new(),
            outbox: Outbox::new(true),
            cursor: Cursor::default(),
            counters: Counters::default(),
        }
    }

    fn put(&mut self, socket: u32, to: Addr, bytes: &[u8]) {
        self.outbox.reserve(bytes.len()).copy_from_slice(bytes);
        self.outbox.commit(socket, to, bytes.len());
    }

    /// One datagram to each of `count` peers, filled with its number.
    fn fan_out(count: usize) -> Self {
        let mut bench = Bench::new();
        for number in 0..count {
            bench.put(0, peer(number as u16), &[number as u8; 9]);
        }
        bench
    }

    fn send(&mut self, syscalls: &mut impl Syscalls) -> Sent {
        self.sender.send(
            syscalls,
            &mut self.sockets,
            &self.outbox,
            &mut self.cursor,
            &mut self.counters,
        )
    }

    /// Nothing vanishes: every datagram handed over is sent, lost or pending.
    fn assert_accounted(&self) {
        let pending = self.cursor.remaining(&self.outbox) as u64;
        assert_eq!(
            self.counters.sent + self.counters.lost() + pending,
            self.outbox.datagrams() as u64
        );
    }
}

fn numbers(from: u8, to: u8) -> Vec<Vec<u8>> {
    (from..to).map(|number| vec![number; 9]).collect()
}

#[test]
fn a_slice_leaves_in_one_call() {
    let (mut bench, mut script) = (Bench::fan_out(64), Script::default());
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(script.calls, 1);
    assert_eq!(script.payloads(), numbers(0, 64));
    assert!(script
        .taken
        .iter()
        .enumerate()
        .all(|(index, (to, ..))| *to == peer(index as u16)));
    assert_eq!((bench.counters.sent, bench.counters.sent_bytes), (64, 64 * 9));
    bench.assert_accounted();
}

#[test]
fn a_short_count_is_resumed_behind_what_was_taken() {
    let (mut bench, mut script) = (Bench::fan_out(10), Script::with(&[Ok(3), Ok(1)]));
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(script.calls, 3);
    assert_eq!(script.payloads(), numbers(0, 10));
    assert_eq!((bench.counters.short_counts, bench.counters.sent), (2, 10));
    bench.assert_accounted();
}

#[test]
fn a_full_buffer_keeps_the_rest_for_later() {
    let (mut bench, mut script) = (Bench::fan_out(10), Script::with(&[Ok(4), Err(libc::EAGAIN)]));
    assert_eq!(bench.send(&mut script), Sent::Blocked(0));
    assert_eq!(bench.cursor.remaining(&bench.outbox), 6);
    assert_eq!(bench.counters.blocked, 1);
    bench.assert_accounted();
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(script.payloads(), numbers(0, 10));
    bench.assert_accounted();
}

#[test]
fn kernel_without_memory_is_retried_once_and_then_loses_single_datagrams() {
    let mut bench = Bench::fan_out(4);
    let mut script = Script::with(&[Ok(1), Err(libc::ENOBUFS)]);
    assert_eq!(bench.send(&mut script), Sent::Starved);
    assert_eq!(bench.cursor.remaining(&bench.outbox), 3);
    script.answers = [Err(libc::ENOBUFS), Ok(1), Err(libc::ENOBUFS)].into_iter().collect();
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(script.payloads(), [vec![0; 9], vec![2; 9]]);
    assert_eq!((bench.counters.starved, bench.counters.lost_starved), (1, 2));
    bench.assert_accounted();
}

#[test]
fn a_refusal_belongs_to_an_earlier_datagram_so_the_same_one_is_sent_again_once() {
    let refused = Err(libc::ECONNREFUSED);
    let (mut bench, mut script) = (Bench::fan_out(5), Script::with(&[Ok(2), refused]));
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(script.payloads(), numbers(0, 5));
    assert_eq!((bench.counters.repeated, bench.counters.lost()), (1, 0));

    let (mut bench, mut script) = (Bench::fan_out(5), Script::with(&[Ok(2), refused, refused]));
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(script.payloads(), [numbers(0, 2), numbers(3, 5)].concat());
    assert_eq!((bench.counters.repeated, bench.counters.lost_refused), (1, 1));
    bench.assert_accounted();
}

#[test]
fn a_signal_repeats_the_call() {
    let (mut bench, mut script) = (Bench::fan_out(3), Script::with(&[Err(libc::EINTR)]));
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(script.payloads(), numbers(0, 3));
    assert_eq!(bench.counters.repeated, 1);
}

#[test]
fn every_other_errno_costs_one_datagram_and_is_counted_by_its_reason() {
    type Reason = fn(&Counters) -> u64;
    let cases: [(Errno, Reason); 9] = [
        (libc::EMSGSIZE, |counters| counters.lost_too_large),
        (libc::EPERM, |counters| counters.lost_denied),
        (libc::EACCES, |counters| counters.lost_denied),
        (libc::EHOSTUNREACH, |counters| counters.lost_unreachable),
        (libc::ENETUNREACH, |counters| counters.lost_unreachable),
        (libc::EINVAL, |counters| counters.lost_other),
        (libc::EIO, |counters| counters.lost_other),
        (libc::ENOMEM, |counters| counters.lost_other),
        (libc::EAFNOSUPPORT, |counters| counters.lost_other),
    ];
    for (errno, reason) in cases {
        let (mut bench, mut script) = (Bench::fan_out(6), Script::with(&[Ok(2), Err(errno)]));
        assert_eq!(bench.send(&mut script), Sent::All, "errno {errno}");
        assert_eq!(
            script.payloads(),
            [numbers(0, 2), numbers(3, 6)].concat(),
            "errno {errno}"
        );
        assert_eq!(
            (reason(&bench.counters), bench.counters.lost()),
            (1, 1),
            "errno {errno}"
        );
        assert_eq!(bench.counters.gso_refused, 0, "errno {errno}");
        bench.assert_accounted();
    }
}

#[test]
fn a_call_that_sends_nothing_without_an_error_does_not_hang() {
    let (mut bench, mut script) = (Bench::fan_out(2), Script::with(&[Ok(0)]));
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(bench.counters.lost_other, 1);
    bench.assert_accounted();
}

/// A run of three datagrams to one peer between two single ones.
fn joined() -> Bench {
    let mut bench = Bench::new();
    bench.put(0, peer(0), b"first");
    for bytes in [b"aaaaa", b"bbbbb"] {
        bench.put(0, peer(1), bytes);
    }
    bench.put(0, peer(1), b"cc");
    bench.put(0, peer(2), b"last");
    bench
}

#[test]
fn a_refused_super_packet_goes_out_singly_and_so_does_all_that_follows() {
    for errno in [libc::EINVAL, libc::EIO] {
        let (mut bench, mut script) = (
            joined(),
            Script {
                refuse_joined: Some(errno),
                ..Script::default()
            },
        );
        assert!(bench.sockets[0].gso(), "this kernel knows UDP_SEGMENT");
        assert_eq!(bench.send(&mut script), Sent::All);
        let wanted: [&[u8]; 5] = [b"first", b"aaaaa", b"bbbbb", b"cc", b"last"];
        assert_eq!(script.payloads(), wanted);
        assert_eq!(
            (bench.counters.gso_refused, bench.counters.sent, bench.counters.lost()),
            (1, 5, 0)
        );
        assert!(!bench.sockets[0].gso());
        bench.assert_accounted();

        (bench.cursor, script.calls) = (Cursor::default(), 0);
        assert_eq!(bench.send(&mut script), Sent::All);
        assert_eq!(script.calls, 1, "a socket that lost GSO does not try again");
        assert_eq!(bench.counters.gso_refused, 1);
    }
}

#[test]
fn a_bad_address_does_not_cost_the_socket_its_super_packets() {
    let mut bench = joined();
    let mut script = Script::with(&[
        Ok(1),
        Err(libc::EINVAL),
        Err(libc::EINVAL),
        Err(libc::EINVAL),
        Err(libc::EINVAL),
    ]);
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(
        (
            bench.counters.gso_refused,
            bench.counters.lost_other,
            bench.counters.sent
        ),
        (0, 3, 2)
    );
    assert!(bench.sockets[0].gso());
    bench.assert_accounted();
}

#[test]
fn if_only_the_short_last_datagram_fits_the_mtu_it_is_sent_and_the_socket_keeps_gso() {
    for whole in [libc::EMSGSIZE, libc::EINVAL] {
        let mut bench = joined();
        let mut script = Script::with(&[
            Ok(1),
            Err(whole),
            Err(libc::EMSGSIZE),
            Err(libc::EMSGSIZE),
            Ok(1),
            Ok(1),
        ]);
        assert_eq!(bench.send(&mut script), Sent::All);
        assert_eq!(
            (
                bench.counters.gso_refused,
                bench.counters.lost_too_large,
                bench.counters.sent
            ),
            (0, 2, 3)
        );
        assert!(bench.sockets[0].gso());
        bench.assert_accounted();
    }
}

#[test]
fn a_blocked_rest_of_a_refused_super_packet_is_resumed_inside_it() {
    let mut bench = joined();
    let mut script = Script::with(&[Ok(1), Err(libc::EINVAL), Ok(1), Err(libc::EAGAIN)]);
    assert_eq!(bench.send(&mut script), Sent::Blocked(0));
    assert_eq!(bench.cursor.remaining(&bench.outbox), 3);
    bench.assert_accounted();
    assert_eq!(bench.send(&mut script), Sent::All);
    let wanted: [&[u8]; 5] = [b"first", b"aaaaa", b"bbbbb", b"cc", b"last"];
    assert_eq!(script.payloads(), wanted);
    bench.assert_accounted();
}

#[test]
fn parcels_of_several_sockets_leave_in_runs() {
    let mut bench = Bench::new();
    bench.sockets.push(socket());
    for id in [0, 0, 1, 1, 0, 7] {
        bench.put(id, peer(id as u16), &[id as u8]);
    }
    let mut script = Script::default();
    assert_eq!(bench.send(&mut script), Sent::All);
    assert_eq!(script.calls, 3);
    assert_eq!(bench.counters.lost_other, 1, "there is no socket 7");
    bench.assert_accounted();
}

/// Receives all that has come to `socket`, in batches.
fn received(socket: &Socket, counters: &mut Counters) -> Vec<Vec<u8>> {
    let mut receiver = Receiver::new(socket.gro());
    let mut datagrams = Vec::new();
    loop {
        let received = receiver.receive(&mut Kernel, socket, 0, usize::MAX, counters);
        let mut inbox = receiver.inbox();
        for index in 0..inbox.arrivals.len() {
            datagrams.push(inbox.datagram(index).1.to_vec());
        }
        receiver.clear();
        if received.drained {
            return datagrams;
        }
    }
}

#[test]
fn a_super_packet_crosses_the_real_kernel_in_both_kinds_of_slab() {
    for gro in [true, false] {
        let target = Socket::bind(
            address("127.0.0.1:0"),
            &SocketOptions {
                gro,
                ..SocketOptions::default()
            },
        )
        .unwrap();
        let mut bench = Bench::new();
        let mut wanted = Vec::new();
        for number in 0..40u8 {
            let len = if number == 39 { 700 } else { 1_200 };
            wanted.push(vec![number; len]);
            bench.put(0, target.local(), &vec![number; len]);
        }
        assert_eq!(bench.send(&mut Kernel), Sent::All);
        assert_eq!((bench.counters.sent, bench.counters.sent_joined), (40, 1));
        let mut counters = Counters::default();
        assert_eq!(received(&target, &mut counters), wanted);
        assert_eq!((counters.received, counters.truncated), (40, 0));
        assert_eq!(counters.received_joined, u64::from(gro));
    }
}

#[test]
fn a_dead_peer_in_the_middle_of_a_batch_costs_the_others_nothing() {
    let (one, two) = (socket(), socket());
    let dead = socket().local();
    let mut bench = Bench::new();
    for round in 0..10u8 {
        for to in [one.local(), dead, two.local()] {
            bench.put(0, to, &[round; 20]);
        }
    }
    assert_eq!(bench.send(&mut Kernel), Sent::All);
    assert_eq!(bench.counters.lost(), 0);
    for target in [&one, &two] {
        assert_eq!(received(target, &mut Counters::default()).len(), 10);
    }
}

#[test]
fn both_families_reach_a_socket_bound_to_every_address() {
    let options = SocketOptions::default();
    let target = Socket::bind(address("[::]:0"), &options).unwrap();
    let mut to = [address("127.0.0.1:0"), address("[::1]:0")];
    for (to, from) in to.iter_mut().zip(["127.0.0.1:0", "[::1]:0"]) {
        // A machine without IPv6 cannot show more.
        let Ok(socket) = Socket::bind(address(from), &options) else {
            continue;
        };
        to.port = target.local().port;
        let mut bench = Bench::new();
        let source = socket.local();
        bench.sockets = vec![socket];
        bench.put(0, *to, b"hello");
        assert_eq!(bench.send(&mut Kernel), Sent::All);
        let mut receiver = Receiver::new(true);
        receiver.receive(&mut Kernel, &target, 3, 1, &mut Counters::default());
        let mut inbox = receiver.inbox();
        let (arrival, bytes) = inbox.datagram(0);
        assert_eq!((arrival.from, arrival.socket, &*bytes), (source, 3, &b"hello"[..]));
    }
}

#[test]
fn an_address_of_the_other_family_is_counted_and_skipped() {
    let target = socket();
    let mut bench = Bench::new();
    bench.put(0, address("[2001:db8::1]:9"), b"nowhere");
    bench.put(0, target.local(), b"here");
    assert_eq!(bench.send(&mut Kernel), Sent::All);
    assert_eq!(bench.counters.lost(), 1);
    assert_eq!(received(&target, &mut Counters::default()), [b"here"]);
    bench.assert_accounted();
}
