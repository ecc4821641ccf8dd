//! The toy's two kinds of nodes: replicas of a log of adds, and clients that add.
//!
//! A replica is a machine. A client is none: it takes and sends datagrams by itself.

use muster_simkit::{Addr, Inbox, Machine, Micros, Node, Outbox, Turn, Turned, MS};

use super::Bug;

/// The client, and the number of its add.
pub type Entry = (u8, u32);

/// A client asks the next replica if it has no reply after this time.
const RETRY: Micros = 60 * MS;
/// How often a replica sends all its entries to the others.
const TELL_EVERY: Micros = 150 * MS;
const ADD: u8 = 1;
const DONE: u8 = 2;
const ALL: u8 = 3;

/// A datagram: its kind, entries of 5 B each, and a checksum.
fn datagram(kind: u8, entries: &[Entry]) -> Vec<u8> {
    let mut bytes = vec![kind];
    for (client, number) in entries {
        bytes.push(*client);
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&sum(&bytes).to_le_bytes());
    bytes
}

fn sum(bytes: &[u8]) -> u64 {
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

fn parse(bytes: &[u8], bug: Option<Bug>) -> Option<(u8, Vec<Entry>)> {
    let (body, tail) = bytes.split_last_chunk::<8>()?;
    if u64::from_le_bytes(*tail) != sum(body) && bug != Some(Bug::TrustsBytes) {
        return None;
    }
    let (kind, entries) = body.split_first()?;
    let entry = |piece: &[u8]| (piece[0], u32::from_le_bytes([piece[1], piece[2], piece[3], piece[4]]));
    Some((*kind, entries.chunks_exact(5).map(entry).collect()))
}

pub struct Replica {
    bug: Option<Bug>,
    pub log: Vec<Entry>,
    others: Vec<Addr>,
    out: Vec<(Addr, Vec<u8>)>,
    tell_at: Micros,
}

impl Replica {
    pub fn new(bug: Option<Bug>, now: Micros, log: Vec<Entry>) -> Self {
        Replica {
            bug,
            log,
            others: Vec::new(),
            out: Vec::new(),
            tell_at: now + TELL_EVERY,
        }
    }

    pub fn set_others(&mut self, others: Vec<Addr>) {
        self.others = others;
    }

    fn note(&mut self, entry: Entry) {
        if !self.log.contains(&entry) {
            self.log.push(entry);
        }
    }
}

impl Machine for Replica {
    type Event = ();

    fn receive(&mut self, _now: Micros, inbox: &mut Inbox<'_>) {
        for index in 0..inbox.arrivals.len() {
            let (arrival, bytes) = inbox.datagram(index);
            let Some((kind, entries)) = parse(bytes, self.bug) else {
                continue;
            };
            match kind {
                ADD if self.bug == Some(Bug::CountsTwice) => self.log.extend_from_slice(&entries),
                ADD | ALL => entries.iter().for_each(|entry| self.note(*entry)),
                _ => continue,
            }
            if kind == ADD {
                self.out.push((arrival.from, datagram(DONE, &entries)));
            }
        }
    }

    fn expire(&mut self, now: Micros) {
        if now >= self.tell_at {
            self.tell_at = now + TELL_EVERY;
            let all = datagram(ALL, &self.log);
            self.out.extend(self.others.iter().map(|other| (*other, all.clone())));
        }
    }

    fn transmit(&mut self, _now: Micros, outbox: &mut Outbox) -> bool {
        let count = self.out.len().min(outbox.room());
        for (to, bytes) in self.out.drain(..count) {
            outbox.reserve(bytes.len()).copy_from_slice(&bytes);
            outbox.commit(0, to, bytes.len());
        }
        !self.out.is_empty()
    }

    fn deadline(&self) -> Option<Micros> {
        Some(self.tell_at)
    }

    fn drain_events(&mut self, _events: &mut Vec<()>) {}

    fn stalled(&mut self, _now: Micros) {}
}

pub struct Client {
    bug: Option<Bug>,
    name: u8,
    replicas: Vec<Addr>,
    /// Waiting adds, the present one with its next attempt, and how many were begun and are done.
    pub waiting: u32,
    asked: Option<(u32, Micros)>,
    pub begun: u32,
    pub done: u32,
    attempts: usize,
}

impl Client {
    pub fn new(bug: Option<Bug>, name: u8, replicas: Vec<Addr>) -> Self {
        Client {
            bug,
            name,
            replicas,
            waiting: 0,
            asked: None,
            begun: 0,
            done: 0,
            attempts: 0,
        }
    }
}

impl Node for Client {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        let now = turn.now();
        while let Some((_, _, bytes)) = turn.take() {
            let done = parse(&bytes, self.bug).filter(|(kind, _)| *kind == DONE);
            let Some((_, entries)) = done else { continue };
            if self.asked.is_some_and(|(number, _)| entries == [(self.name, number)]) {
                self.asked = None;
                self.done += 1;
            }
        }
        if self.asked.is_none() && self.waiting > 0 {
            (self.waiting, self.begun) = (self.waiting - 1, self.begun + 1);
            let number = match self.bug {
                Some(Bug::NumbersByClock) => (now / (20 * MS)) as u32,
                _ => self.begun,
            };
            self.asked = Some((number, now));
        }
        if let Some((number, at)) = self.asked.filter(|(_, at)| now >= *at) {
            let to = self.replicas[self.attempts % self.replicas.len()];
            self.attempts += 1;
            turn.send(0, to, &datagram(ADD, &[(self.name, number)]));
            self.asked = Some((number, at.max(now) + RETRY));
        }
        Turned {
            more: false,
            deadline: self.asked.map(|(_, at)| at),
        }
    }
}
