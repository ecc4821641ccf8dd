//! Datagrams that go between sockets of one process.

use std::net::{SocketAddr, UdpSocket};

use muster_transport::{Addr, Outbox};
use muster_udp::{Counters, Cursor, Mailboxes, Near, Receiver, Sender, Sent, Socket, SocketOptions, MAILBOXES_MAX};

struct Node {
    near: Near,
    sockets: Vec<Socket>,
    receiver: Receiver,
    sender: Sender,
    counters: Counters,
    bits: u64,
}

impl Node {
    fn new(mailboxes: &Mailboxes, options: SocketOptions) -> Node {
        let mut near = Near::default();
        let sockets = vec![Socket::bind(address("127.0.0.1:0"), &options).unwrap()];
        let bits = near.join(mailboxes, &sockets);
        Node {
            near,
            receiver: Receiver::new(options.gro),
            sockets,
            sender: Sender::new(),
            counters: Counters::default(),
            bits,
        }
    }

    fn at(&self) -> Addr {
        self.sockets[0].local()
    }

    fn send(&mut self, parcels: &[(Addr, &[u8])]) {
        let mut outbox = Outbox::new(true);
        for (to, bytes) in parcels {
            outbox.reserve(bytes.len()).copy_from_slice(bytes);
            outbox.commit(0, *to, bytes.len());
        }
        let (near, sockets, counters) = (&mut self.near, &mut self.sockets, &mut self.counters);
        let sent = self
            .sender
            .send(near, sockets, &outbox, &mut Cursor::default(), counters);
        assert_eq!(sent, Sent::All);
    }

    /// One call. Returns the source and the bytes of each datagram.
    fn receive(&mut self) -> Vec<(Addr, Vec<u8>)> {
        self.receiver.clear();
        let (near, counters) = (&mut self.near, &mut self.counters);
        self.receiver.receive(near, &self.sockets[0], 0, usize::MAX, counters);
        let count = self.receiver.datagrams();
        let mut inbox = self.receiver.inbox();
        (0..count)
            .map(|index| {
                let (arrival, bytes) = inbox.datagram(index);
                (arrival.from, bytes.to_vec())
            })
            .collect()
    }
}

fn address(text: &str) -> Addr {
    Addr::from(text.parse::<SocketAddr>().unwrap())
}

fn plain() -> SocketOptions {
    SocketOptions {
        gro: false,
        ..SocketOptions::default()
    }
}

#[test]
fn datagrams_within_the_process_go_through_memory_and_others_through_the_kernel() {
    for options in [SocketOptions::default(), plain()] {
        let mailboxes = Mailboxes::new();
        let (mut one, mut two) = (Node::new(&mailboxes, options), Node::new(&mailboxes, options));
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (to, beyond) = (two.at(), Addr::from(far.local_addr().unwrap()));
        one.send(&[(to, b"aa"), (to, b"bb"), (to, b"c"), (beyond, b"dd"), (to, b"ee")]);
        assert_eq!(mailboxes.waiting(), two.bits);
        let from = one.at();
        assert_eq!(
            two.receive(),
            [b"aa".to_vec(), b"bb".to_vec(), b"c".to_vec(), b"ee".to_vec()].map(|bytes| (from, bytes))
        );
        assert_eq!(mailboxes.waiting(), 0);
        let mut bytes = [0; 8];
        let (len, came_from) = far.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..len], Addr::from(came_from)), (&b"dd"[..], from));
        assert_eq!(
            (one.near.counters().put, one.counters.sent, one.counters.lost()),
            (4, 5, 0)
        );
    }
}

#[test]
fn a_flood_of_mail_or_of_the_kernel_does_not_starve_the_other() {
    let mailboxes = Mailboxes::new();
    let (mut one, mut two) = (Node::new(&mailboxes, plain()), Node::new(&mailboxes, plain()));
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (to, slots) = (two.at(), two.receiver.slots());
    let flood = |one: &mut Node, near: usize, beyond: usize| {
        for _ in 0..near {
            one.send(&[(to, b"near")]);
        }
        for _ in 0..beyond {
            far.send_to(b"far", SocketAddr::from(to)).unwrap();
        }
    };
    let heard = |two: &mut Node| {
        let all = [two.receive(), two.receive()].concat();
        (
            all.iter().any(|(_, bytes)| bytes == b"near"),
            all.iter().any(|(_, bytes)| bytes == b"far"),
        )
    };
    flood(&mut one, 3 * slots, 1);
    assert_eq!(heard(&mut two), (true, true));
    while !two.receive().is_empty() {}
    flood(&mut one, 1, 3 * slots);
    assert_eq!(heard(&mut two), (true, true));
}

#[test]
fn one_receive_takes_from_both_if_there_are_slots() {
    let mailboxes = Mailboxes::new();
    let (mut one, mut two) = (Node::new(&mailboxes, plain()), Node::new(&mailboxes, plain()));
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..3 {
        far.send_to(b"far", SocketAddr::from(two.at())).unwrap();
        one.send(&[(two.at(), b"near")]);
        assert_eq!(two.receive().len(), 2);
        assert_eq!(mailboxes.waiting(), 0);
    }
}

#[test]
fn a_mailbox_holds_as_much_as_the_receive_buffer_and_the_rest_is_lost_and_counted() {
    let mailboxes = Mailboxes::new();
    let small = SocketOptions {
        receive_bytes: Some(16 << 10),
        ..plain()
    };
    let (mut one, mut two) = (Node::new(&mailboxes, plain()), Node::new(&mailboxes, small));
    let bytes = [7; 1_000];
    for _ in 0..100 {
        one.send(&[(two.at(), &bytes)]);
    }
    let held = two.sockets[0].buffers().receive_bytes / (1_000 + 768);
    let counters = one.near.counters();
    assert_eq!((counters.put, counters.lost_full), (held as u64, 100 - held as u64));
    let read: usize = (0..4).map(|_| two.receive().len()).sum();
    assert_eq!((read, mailboxes.waiting()), (held, 0));
    one.send(&[(two.at(), &bytes)]);
    assert_eq!(two.receive().len(), 1, "there is room again");
}

#[test]
fn datagrams_to_a_closed_socket_go_to_the_kernel() {
    let mailboxes = Mailboxes::new();
    let (mut one, two) = (Node::new(&mailboxes, plain()), Node::new(&mailboxes, plain()));
    let to = two.at();
    one.send(&[(to, b"read by nobody")]);
    drop(two);
    assert_eq!(mailboxes.waiting(), 0);
    let next = UdpSocket::bind(SocketAddr::from(to)).unwrap();
    one.send(&[(to, b"x")]);
    let mut bytes = [0; 8];
    assert_eq!(next.recv(&mut bytes).unwrap(), 1);
}

#[test]
fn an_unspecified_address_and_a_surplus_socket_get_no_mailbox() {
    let mailboxes = Mailboxes::new();
    let everywhere = [Socket::bind(address("0.0.0.0:0"), &plain()).unwrap()];
    assert_eq!(Near::default().join(&mailboxes, &everywhere), 0);
    let nodes: Vec<Node> = (0..MAILBOXES_MAX + 1).map(|_| Node::new(&mailboxes, plain())).collect();
    assert_eq!(nodes.iter().fold(0, |bits, node| bits | node.bits), u64::MAX);
    assert_eq!(nodes[MAILBOXES_MAX].bits, 0);
}

#[test]
fn runs_arrive_whole_and_read_bytes_are_compacted() {
    let mailboxes = Mailboxes::new();
    let options = SocketOptions::default();
    let (mut one, mut two) = (Node::new(&mailboxes, options), Node::new(&mailboxes, options));
    let to = two.at();
    let run: Vec<Vec<u8>> = (0..40u8).map(|index| vec![index; 1_200]).collect();
    let parcels: Vec<(Addr, &[u8])> = run.iter().map(|bytes| (to, &bytes[..])).collect();
    for round in 0..20 {
        one.send(&parcels);
        let got: Vec<Vec<u8>> = two.receive().into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(got, run, "round {round}");
    }
    if one.sockets[0].gso() && two.sockets[0].gro() {
        assert!(two.counters.received_joined > 0);
    }
}
