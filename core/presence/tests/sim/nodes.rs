//! Gateways, proxies and writers as nodes of the kit: the crate's machines behind datagrams of one frame each.
//!
//! Each writer has a small runner of the test: it requests what is due, with a bound in flight, and again after a
//! time.

use std::collections::BTreeMap;

use muster_presence::{kinds, AccessPoint, Ask, FullAsk, Message, Ranges, ShardMap, Splitter, Standing, To, Writer};
use muster_simkit::{Addr, Micros, Node, Turn, Turned, MS};
use muster_transport::Frames;

/// How often the runner runs.
const RUN_EVERY: Micros = 20 * MS;
/// A request without a reply is given up after this; a full state is requested again.
const ASK_AGAIN: Micros = 200 * MS;
const FULL_AGAIN: Micros = 300 * MS;
const ASKS_MAX: usize = 4;
const FULLS_MAX: usize = 2;
/// Tries of one full state before another one is started.
const TRIES: u32 = 5;

fn sum(bytes: &[u8]) -> [u8; 8] {
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold).to_le_bytes()
}

/// A frame with a checksum in place of a seal.
fn sealed(frame: &[u8]) -> Vec<u8> {
    [frame, &sum(frame)].concat()
}

/// Calls `take` with the frame of a datagram, if it is intact.
fn opened(bytes: &[u8], take: impl FnOnce(Message<'_>)) {
    let Some((frame, tail)) = bytes.split_last_chunk::<8>() else {
        return;
    };
    if sum(frame) != *tail {
        return;
    }
    let Some(Ok(frame)) = Frames::new(frame, kinds::ALL).next() else {
        return;
    };
    let message = Message::read(frame.kind, frame.body).expect("what a machine wrote is read");
    take(message);
}

pub struct Gateway {
    pub access: AccessPoint,
    /// The destinations of each packet and beat.
    pub proxies: Vec<Addr>,
    pub writers: BTreeMap<Addr, u32>,
}

impl Node for Gateway {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        let now = turn.now();
        while let Some((_, from, bytes)) = turn.take() {
            let Some(writer) = self.writers.get(&from).copied() else {
                continue;
            };
            opened(&bytes, |message| match message {
                Message::Ask(ask) => self.access.ask(writer, &ask),
                Message::FullAsk(ask) => self.access.full_ask(now, writer, &ask),
                other => panic!("a gateway hears {other:?}"),
            });
        }
        self.access.expire(now);
        for (to, frame) in self.access.take_out() {
            let frame = sealed(&frame);
            match to {
                To::Proxies => self.proxies.iter().for_each(|proxy| turn.send(0, *proxy, &frame)),
                To::Writer(number) => {
                    let addr = self.writers.iter().find(|(_, writer)| **writer == number);
                    turn.send(0, *addr.expect("a writer that asked").0, &frame);
                }
            }
        }
        Turned {
            more: false,
            deadline: self.access.deadline(),
        }
    }
}

pub struct Proxy {
    pub map: ShardMap,
    /// By site and shard's index.
    pub writers: BTreeMap<(u16, u16), Addr>,
}

impl Node for Proxy {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        let mut splitter = Splitter::new(&self.map);
        while let Some((_, _, bytes)) = turn.take() {
            opened(&bytes, |message| match message {
                Message::Report(report) => assert!(splitter.report(&report), "a gateway's packet is read"),
                Message::Beat(beat) => splitter.beat(&beat),
                other => panic!("a proxy hears {other:?}"),
            });
        }
        for (target, frame) in splitter.finish() {
            let addr = self.writers[&(target.site, target.shard.index)];
            turn.send(0, addr, &sealed(&frame));
        }
        Turned::default()
    }
}

/// A requested full state.
struct FullAsked {
    transaction: u64,
    again: Micros,
    tries: u32,
}

pub struct Online {
    pub writer: Writer,
    pub shard: muster_presence::Shard,
    pub gateways: BTreeMap<u32, Addr>,
    pub standing: Standing,
    asks: BTreeMap<u64, (u32, Micros)>,
    fulls: BTreeMap<u32, FullAsked>,
    transactions: u64,
    run_at: Micros,
    pub asked: u64,
    pub fulls_asked: u64,
}

impl Online {
    pub fn new(
        writer: Writer,
        shard: muster_presence::Shard,
        gateways: BTreeMap<u32, Addr>,
        now: Micros,
        epoch: u32,
    ) -> Self {
        Online {
            writer,
            shard,
            gateways,
            standing: Standing::Starting,
            asks: BTreeMap::new(),
            fulls: BTreeMap::new(),
            transactions: u64::from(epoch) << 32,
            run_at: now,
            asked: 0,
            fulls_asked: 0,
        }
    }

    fn next(&mut self) -> u64 {
        self.transactions += 1;
        self.transactions
    }

    fn run(&mut self, now: Micros, turn: &mut Turn<'_>) {
        let over: Vec<u64> = self
            .asks
            .iter()
            .filter(|(transaction, (ap, until))| *until <= now || self.writer.waits(*ap, **transaction) == 0)
            .map(|(transaction, _)| *transaction)
            .collect();
        for transaction in over {
            let (ap, _) = self.asks.remove(&transaction).expect("it is there");
            self.writer.release(ap, transaction);
        }
        for due in self.writer.due(now) {
            if self.asks.len() >= ASKS_MAX {
                break;
            }
            let transaction = self.next();
            self.writer.asked(due.origin.ap, &due.ranges, transaction);
            self.asks.insert(transaction, (due.origin.ap, now + ASK_AGAIN));
            let ask = Ask {
                transaction,
                shard: self.shard,
                origin: due.origin,
                ranges: due.ranges,
            };
            self.asked += 1;
            turn.send(0, self.gateways[&due.origin.ap], &sealed(&Message::Ask(ask).to_frame()));
        }
        let needed = self.writer.fulls();
        let taken: Vec<u32> = self.fulls.keys().copied().collect();
        for ap in taken.into_iter().filter(|ap| needed.iter().all(|full| full.ap != *ap)) {
            let asked = self.fulls.remove(&ap).expect("it is there");
            let ask = FullAsk {
                transaction: asked.transaction,
                shard: self.shard,
                ap,
                chunks: vec![FullAsk::HAS_ALL],
            };
            turn.send(0, self.gateways[&ap], &sealed(&Message::FullAsk(ask).to_frame()));
        }
        for full in needed {
            let known = self
                .fulls
                .get(&full.ap)
                .map(|known| (known.transaction, known.again, known.tries));
            let (transaction, tries, chunks) = match known {
                Some((transaction, again, _)) if now < again && full.asked == Some(transaction) => continue,
                Some((transaction, _, tries)) if full.asked == Some(transaction) && tries < TRIES => {
                    (transaction, tries + 1, full.missing)
                }
                None if self.fulls.len() >= FULLS_MAX => continue,
                _ => {
                    let transaction = self.next();
                    self.writer.full_asked(full.ap, transaction);
                    self.fulls_asked += 1;
                    (transaction, 0, Ranges::new())
                }
            };
            let again = now + FULL_AGAIN;
            self.fulls.insert(
                full.ap,
                FullAsked {
                    transaction,
                    again,
                    tries,
                },
            );
            let ask = FullAsk {
                transaction,
                shard: self.shard,
                ap: full.ap,
                chunks,
            };
            turn.send(0, self.gateways[&full.ap], &sealed(&Message::FullAsk(ask).to_frame()));
        }
    }
}

impl Node for Online {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        let now = turn.now();
        if turn.is_stalled() {
            self.writer.stalled(now);
        }
        while let Some((_, _, bytes)) = turn.take() {
            let writer = &mut self.writer;
            opened(&bytes, |message| {
                match message {
                    Message::Share(share) => writer.share(now, &share),
                    Message::Empty(empty) => writer.empty(now, &empty),
                    Message::Beat(beat) => writer.beat(now, &beat),
                    Message::TooOld(old) => writer.too_old(now, &old),
                    Message::Chunk(chunk) => writer.chunk(now, &chunk),
                    Message::Wait(wait) => writer.wait(now, &wait),
                    other => panic!("a writer hears {other:?}"),
                };
            });
        }
        self.writer.expire(now);
        if now >= self.run_at {
            self.run_at = now + RUN_EVERY;
            self.run(now, turn);
        }
        self.standing = self.writer.standing(now);
        let due = self.writer.deadline(now);
        Turned {
            more: false,
            deadline: due.into_iter().chain([self.run_at]).min(),
        }
    }
}

pub enum Presence {
    Gateway(Box<Gateway>),
    Proxy(Proxy),
    Writer(Box<Online>),
}

impl Node for Presence {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        match self {
            Presence::Gateway(gateway) => gateway.turn(turn),
            Presence::Proxy(proxy) => proxy.turn(turn),
            Presence::Writer(writer) => writer.turn(turn),
        }
    }
}
