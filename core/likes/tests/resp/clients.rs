//! Clients by byte streams: each gets the replies that one alone would get, however streams are cut, blocked and held up.

use crate::node::{line, Node, NOW_MS};
use muster_likes::resp::{Clients, Settings};
use muster_tcp::{Ended, Ordered, Outbox, StreamId, Streams};
use muster_transport::Addr;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The sockets of clients, as a `Tcp` would have them.
struct Sockets {
    node: Node,
    clients: Clients,
    said: BTreeMap<u32, Vec<u8>>,
    /// Streams that take nothing now.
    blocked: Vec<u32>,
    unread: Vec<u32>,
    closed: Vec<u32>,
}

fn from() -> Addr {
    SocketAddr::from(([127, 0, 0, 1], 1)).into()
}

fn stream(slot: u32) -> StreamId {
    StreamId::new(slot, 1)
}

impl Sockets {
    fn new(clients: u32) -> Sockets {
        let mut sockets = Sockets {
            node: Node::new(Settings::default()),
            clients: Clients::default(),
            said: BTreeMap::new(),
            blocked: Vec::new(),
            unread: Vec::new(),
            closed: Vec::new(),
        };
        for slot in 0..clients {
            let mut serving = sockets.clients.serving(&mut sockets.node.front, NOW_MS);
            serving.opened(0, stream(slot), from());
        }
        sockets
    }

    /// Bytes of a client; false if its socket is not read.
    fn receive(&mut self, slot: u32, bytes: &[u8]) -> bool {
        let read = !self.unread.contains(&slot) && !self.closed.contains(&slot);
        if read {
            let mut serving = self.clients.serving(&mut self.node.front, NOW_MS);
            serving.received(0, stream(slot), &mut bytes.to_vec());
        }
        read
    }

    fn transmit(&mut self) {
        loop {
            let mut outbox = Outbox::default();
            let more = self
                .clients
                .serving(&mut self.node.front, NOW_MS)
                .transmit(0, &mut outbox);
            for order in outbox.orders() {
                match order {
                    Ordered::Send { stream: to, head, .. } => {
                        let slot = to.slot() as u32;
                        assert!(!self.closed.contains(&slot), "nothing is sent behind the end");
                        self.said.entry(slot).or_default().extend_from_slice(head);
                        if self.blocked.contains(&slot) {
                            self.clients.serving(&mut self.node.front, NOW_MS).blocked(0, to);
                        }
                    }
                    Ordered::Close(to) => self.closed.push(to.slot() as u32),
                    Ordered::Read(to, true) => self.unread.retain(|&slot| slot != to.slot() as u32),
                    Ordered::Read(to, false) => self.unread.push(to.slot() as u32),
                    Ordered::Proven(_) => {}
                    Ordered::Abort(_) => panic!("no client is reset"),
                }
            }
            if !more || outbox.is_empty() {
                return;
            }
        }
    }

    fn release(&mut self, slot: u32) {
        if self.blocked.contains(&slot) {
            self.blocked.retain(|&other| other != slot);
            self.clients
                .serving(&mut self.node.front, NOW_MS)
                .drained(0, stream(slot));
        }
    }

    fn commit(&mut self) {
        if self.node.begin() {
            self.node.finish();
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Receive(u32, usize),
    Transmit,
    Commit,
    Block(u32),
    Release(u32),
    Hold,
    GoOn,
}

const CLIENTS: u32 = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..CLIENTS, 1usize..200).prop_map(|(slot, bytes)| Step::Receive(slot, bytes)),
        4 => Just(Step::Transmit),
        2 => Just(Step::Commit),
        1 => (0..CLIENTS).prop_map(Step::Block),
        1 => (0..CLIENTS).prop_map(Step::Release),
        1 => Just(Step::Hold),
        1 => Just(Step::GoOn),
    ];
    prop::collection::vec(step, 0..200)
}

/// Commands whose replies depend on this client's own former ones alone.
fn program(slot: u32) -> impl Strategy<Value = Vec<String>> {
    let command = prop_oneof![
        (0..9u32).prop_map(move |user| format!("SETBIT own:{slot} {user} 1")),
        (0..9u32).prop_map(move |user| format!("GETBIT own:{slot} {user}")),
        Just(format!("BITCOUNT own:{slot}")),
        Just("PING hello".to_owned()),
    ];
    prop::collection::vec(command, 0..40)
}

proptest! {
    #[test]
    fn each_client_gets_the_replies_of_one_alone(
        programs in (program(0), program(1), program(2)),
        steps in steps(),
        quits in prop::collection::vec(any::<bool>(), CLIENTS as usize),
    ) {
        let programs = [programs.0, programs.1, programs.2];
        let mut sockets = Sockets::new(CLIENTS);
        let mut left: Vec<Vec<u8>> = Vec::new();
        let mut wanted: Vec<Vec<u8>> = Vec::new();
        for (program, &quits) in programs.iter().zip(&quits) {
            let mut bytes: Vec<u8> = program.iter().flat_map(|words| line(words)).collect();
            if quits {
                bytes.extend(line("QUIT"));
            }
            let mut alone = Node::new(Settings::default());
            let client = alone.front.open();
            wanted.push(alone.ask(client, &bytes));
            left.push(bytes);
        }
        for step in steps {
            match step {
                Step::Receive(slot, bytes) => {
                    let piece: Vec<u8> = left[slot as usize].iter().copied().take(bytes).collect();
                    if sockets.receive(slot, &piece) {
                        left[slot as usize].drain(..piece.len());
                    }
                }
                Step::Transmit => sockets.transmit(),
                Step::Commit => sockets.commit(),
                Step::Block(slot) if !sockets.blocked.contains(&slot) => {
                    sockets.blocked.push(slot);
                    sockets.clients.serving(&mut sockets.node.front, NOW_MS).blocked(0, stream(slot));
                }
                Step::Block(_) => {}
                Step::Release(slot) => sockets.release(slot),
                Step::Hold => sockets.clients.hold(),
                Step::GoOn => sockets.clients.go_on(),
            }
        }
        (0..CLIENTS).for_each(|slot| sockets.release(slot));
        sockets.clients.go_on();
        for _ in 0..8 {
            sockets.transmit();
            for slot in 0..CLIENTS {
                let piece = std::mem::take(&mut left[slot as usize]);
                if !sockets.receive(slot, &piece) {
                    left[slot as usize] = piece;
                }
            }
            sockets.commit();
        }
        sockets.transmit();
        for (slot, wanted) in (0..CLIENTS).zip(&wanted) {
            let said = sockets.said.remove(&slot).unwrap_or_default();
            prop_assert_eq!(String::from_utf8(said).unwrap(), String::from_utf8(wanted.clone()).unwrap());
            prop_assert_eq!(sockets.closed.contains(&slot), quits[slot as usize]);
        }
        prop_assert_eq!(sockets.clients.len(), quits.iter().filter(|&&quits| !quits).count());
    }
}

#[test]
fn a_client_that_sends_no_more_gets_its_replies_and_is_closed() {
    let mut sockets = Sockets::new(1);
    sockets.receive(
        0,
        &[line("SETBIT share:1 7 1"), line("GETBIT share:1 7"), b"*2\r\n".to_vec()].concat(),
    );
    sockets
        .clients
        .serving(&mut sockets.node.front, NOW_MS)
        .finished(0, stream(0));
    sockets.transmit();
    assert!(sockets.closed.is_empty(), "its change is not durable yet");
    sockets.commit();
    sockets.transmit();
    assert_eq!(sockets.said[&0], b":0\r\n:1\r\n");
    assert_eq!(sockets.closed, [0]);
}

#[test]
fn a_client_that_does_not_read_is_not_read() {
    let mut sockets = Sockets::new(2);
    sockets.blocked.push(0);
    let mut sent = 0;
    while sockets.receive(0, &line("PING hello").repeat(1_000)) {
        sent += 1;
        sockets.transmit();
        assert!(sent < 10, "its replies are held without a bound");
    }
    assert!(sockets.receive(1, &line("PING")), "others are read");
    sockets.release(0);
    sockets.transmit();
    assert_eq!(sockets.said[&0].len(), sent * 1_000 * b"$5\r\nhello\r\n".len());
    assert!(sockets.receive(0, &line("PING")));
}

#[test]
fn changes_of_a_client_that_is_gone_stay_and_its_place_is_another_ones() {
    let mut sockets = Sockets::new(1);
    sockets.receive(0, &line("SETBIT share:1 7 1"));
    let mut serving = sockets.clients.serving(&mut sockets.node.front, NOW_MS);
    serving.ended(0, stream(0), Ended::Broken);
    serving.opened(0, StreamId::new(0, 2), from());
    serving.received(0, stream(0), &mut line("PING"));
    serving.received(0, StreamId::new(0, 2), &mut line("GETBIT share:1 7"));
    sockets.transmit();
    sockets.commit();
    sockets.transmit();
    assert_eq!(
        sockets.said[&0], b":0\r\n",
        "a question is answered from what is durable"
    );
    assert!(sockets.node.front.engine().likes(b"share:1", 7));
}
