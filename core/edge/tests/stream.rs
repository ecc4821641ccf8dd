//! A client and the edge over a byte stream that cuts, stalls and ends halfway, by seeds: what is seen was published or is
//! announced as lost, in order, never twice; a receipt is true; resubscriptions are bounded.
//!
//! `EDGE_SEEDS` says how many runs (200).

mod common;

use std::collections::VecDeque;

use common::{frame, request, SECOND, START};
use muster_edge::protocol::{Encoding, Position, Publication, SubscribeResult};
use muster_edge::websocket::Origins;
use muster_edge::{
    Admission, Ask, Connection, Counters, Frame, Settings, Subscription, Ticket, Turn, Unsubscribe, Write,
};
use muster_transport::{Dice, Micros};
use serde_json::Value;

/// Messages that the room keeps: few, so that a slow member loses some.
const RING: u64 = 16;
/// Bytes that the kernel takes for a client that reads nothing.
const WINDOW: usize = 4_000;

/// The edge's side of one connection, with its stream.
struct Line {
    connection: Connection,
    to_client: VecDeque<u8>,
    to_edge: VecDeque<u8>,
    joined: Option<(Subscription, u64)>,
    /// Receipts asked, with the last offset that was written before.
    receipts: Vec<(u64, u64)>,
    /// The owner's answers that are on their way.
    asked: Vec<(Ticket, Subscription, Option<Position>)>,
}

/// The SDK: it subscribes again at once on 2500, and after each reconnect, with its position.
#[derive(Default)]
struct Client {
    input: Vec<u8>,
    upgraded: bool,
    id: u32,
    /// The place behind the last message that it has, or that it was told is lost.
    offset: u64,
    live: bool,
    seen: Vec<u64>,
    /// Ranges that were announced as lost.
    lost: Vec<(u64, u64)>,
    resubscribed: Vec<Micros>,
}

struct World {
    dice: Dice,
    now: Micros,
    settings: Settings,
    counters: Counters,
    next: u64,
    line: Option<Line>,
    client: Client,
    connects: usize,
    proven: u64,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            dice: Dice::new(seed),
            now: START,
            settings: Settings {
                origins: Origins::Any,
                ..Settings::default()
            },
            counters: Counters::default(),
            next: 1,
            line: None,
            client: Client::default(),
            connects: 0,
            proven: 0,
        }
    }

    fn connect(&mut self) {
        self.client.input.clear();
        (self.client.upgraded, self.client.live) = (false, false);
        self.connects += 1;
        let mut line = Line {
            connection: Connection::new(self.now),
            to_client: VecDeque::new(),
            to_edge: request("/connection/websocket", "").into_bytes().into(),
            joined: None,
            receipts: Vec::new(),
            asked: Vec::new(),
        };
        line.to_edge.extend(frame(0x81, br#"{"id":1,"connect":{"token":"t"}}"#));
        self.line = Some(line);
        self.subscribe();
    }

    fn say(&mut self, text: &str) {
        if let Some(line) = &mut self.line {
            line.to_edge.extend(frame(0x81, text.as_bytes()));
        }
    }

    fn subscribe(&mut self) {
        self.client.id += 1;
        let (id, offset) = (self.client.id + 1, self.client.offset);
        self.say(&format!(
            r#"{{"id":{id},"subscribe":{{"channel":"a:b","recover":true,"epoch":"e","offset":{offset}}}}}"#
        ));
    }

    fn turn(&mut self, f: impl FnOnce(&mut Connection, &mut Turn<'_>, &mut Dice)) -> Result<(), String> {
        let Some(mut line) = self.line.take() else {
            return Ok(());
        };
        let mut asks = Vec::new();
        let mut turn = Turn {
            now: self.now,
            settings: &self.settings,
            asks: &mut asks,
            counters: &mut self.counters,
        };
        f(&mut line.connection, &mut turn, &mut self.dice);
        for ask in asks {
            match ask {
                Ask::Authenticate { ticket, .. } => {
                    let admission = Admission {
                        user: "7",
                        client: "c",
                        ..Admission::default()
                    };
                    let mut more = Vec::new();
                    let mut turn = Turn {
                        now: self.now,
                        settings: &self.settings,
                        asks: &mut more,
                        counters: &mut self.counters,
                    };
                    let session = line.connection.session().expect("it asked");
                    session.admit(&mut turn, &mut self.dice, ticket, &admission);
                    for ask in more {
                        if let Ask::Join {
                            ticket,
                            subscription,
                            join,
                        } = ask
                        {
                            line.asked.push((ticket, subscription, join.recover));
                        }
                    }
                }
                Ask::Join {
                    ticket,
                    subscription,
                    join,
                } => line.asked.push((ticket, subscription, join.recover)),
                Ask::Leave { .. } | Ask::Ended { .. } => line.joined = None,
                Ask::Received { pings } => {
                    for (receipt, offset) in &line.receipts {
                        let has = self.client.offset >= *offset;
                        if *receipt <= pings && !has {
                            return Err(format!("receipt {receipt} is false: offset {offset}"));
                        }
                        self.proven += u64::from(*receipt <= pings);
                    }
                    line.receipts.retain(|(receipt, _)| *receipt > pings);
                }
                Ask::Silent => {}
                other => return Err(format!("not asked for: {other:?}")),
            }
        }
        self.line = Some(line);
        Ok(())
    }

    /// The owner answers what it was asked.
    fn answer(&mut self) {
        let (now, next) = (self.now, self.next);
        let Some(line) = &mut self.line else { return };
        for (ticket, subscription, from) in std::mem::take(&mut line.asked) {
            let Some(session) = line.connection.session() else {
                return;
            };
            let from = from.expect("it recovers").offset;
            let oldest = next.saturating_sub(RING).max(1);
            let recovered = from + 1 >= oldest;
            let data: Vec<_> = (from + 1..next).map(|offset| (offset, offset.to_string())).collect();
            let missed = data.iter().filter(|_| recovered).map(|(offset, data)| Publication {
                data: data.as_bytes(),
                offset: *offset,
                ..Publication::default()
            });
            let publications: Vec<_> = missed.collect();
            let result = SubscribeResult {
                recovered,
                was_recovering: true,
                epoch: "e",
                offset: if recovered { from } else { next - 1 },
                publications: &publications,
                ..SubscribeResult::default()
            };
            if session.joined(now, ticket, &result) {
                line.joined = Some((subscription, next));
            }
        }
    }

    /// The edge writes what is due, as far as the stream takes it.
    fn write(&mut self) -> Result<(), String> {
        let (now, next) = (self.now, self.next);
        let oldest = next.saturating_sub(RING).max(1);
        let receipts = self.dice.below(4) == 0;
        let Some(line) = &mut self.line else { return Ok(()) };
        if line.to_client.len() >= WINDOW {
            return Ok(());
        }
        let mut frames = Vec::new();
        if let Some((subscription, cursor)) = line.joined {
            let session = line.connection.session();
            if !session.is_some_and(|session| session.has(subscription)) {
                line.joined = None;
            } else if cursor < oldest {
                line.joined = None;
                let mut asks = Vec::new();
                let mut turn = Turn {
                    now,
                    settings: &self.settings,
                    asks: &mut asks,
                    counters: &mut self.counters,
                };
                let session = line.connection.session().expect("it is there");
                session.unsubscribed(&mut turn, subscription, Unsubscribe::INSUFFICIENT, "slow");
            } else if cursor < next {
                let data: Vec<_> = (cursor..next).map(|offset| (offset, offset.to_string())).collect();
                let due = data.iter().map(|(offset, data)| Publication {
                    data: data.as_bytes(),
                    offset: *offset,
                    ..Publication::default()
                });
                let (frame, count) = Frame::publications(Encoding::Json, "a:b", 0, due, 300).expect("one at least");
                frames.push(frame);
                line.joined = Some((subscription, cursor + count as u64));
            }
        }
        let mut write = Write::default();
        let taken = line.connection.write(&frames, &mut write);
        if taken < frames.len() {
            return Err("a frame that was due was not taken".to_owned());
        }
        line.to_client.extend(write.head);
        write.shared.iter().for_each(|part| line.to_client.extend(part));
        line.to_client.extend(write.tail);
        if let (true, false, Some((_, cursor))) = (receipts, frames.is_empty(), line.joined) {
            if let Some(session) = line.connection.session() {
                line.receipts.push((session.receipt(), cursor - 1));
            }
        }
        self.turn(|connection, turn, _| connection.resume(turn))
    }

    /// The client reads.
    fn read(&mut self, bytes: usize) -> Result<(), String> {
        let Some(line) = &mut self.line else { return Ok(()) };
        let count = bytes.min(line.to_client.len());
        self.client.input.extend(line.to_client.drain(..count));
        if !self.client.upgraded {
            let end = self.client.input.windows(4).position(|four| four == b"\r\n\r\n");
            let Some(end) = end else { return Ok(()) };
            self.client.input.drain(..end + 4);
            self.client.upgraded = true;
        }
        while let Some((opcode, payload)) = whole(&mut self.client.input) {
            if opcode == 8 {
                self.line = None;
                return Ok(());
            }
            for line in String::from_utf8(payload)
                .map_err(|error| error.to_string())?
                .split('\n')
            {
                self.hear(&serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: &Value) -> Result<(), String> {
        if message == &serde_json::json!({}) {
            self.say("{}");
            return Ok(());
        }
        if let Some(reply) = message.get("subscribe") {
            self.client.live = true;
            match reply["recovered"] == true {
                true => {
                    for one in reply["publications"].as_array().into_iter().flatten() {
                        self.see(one)?;
                    }
                }
                false => {
                    let top = reply["offset"].as_u64().unwrap_or(0);
                    if top < self.client.offset {
                        return Err(format!("the stream went back to {top}"));
                    }
                    self.client.lost.push((self.client.offset + 1, top));
                    self.client.offset = top;
                }
            }
        } else if message["push"]["pub"].is_object() {
            if !self.client.live {
                return Err("a message without a subscription".to_owned());
            }
            self.see(&message["push"]["pub"])?;
        } else if message["push"]["unsubscribe"]["code"] == 2500 {
            self.client.live = false;
            self.client.resubscribed.push(self.now);
            self.subscribe();
        } else if message.get("error").is_some() {
            return Err(message.to_string());
        }
        Ok(())
    }

    fn see(&mut self, publication: &Value) -> Result<(), String> {
        let offset = publication["offset"].as_u64().unwrap_or(0);
        if offset != self.client.offset + 1 || publication["data"] != offset {
            return Err(format!("{publication} behind {}", self.client.offset));
        }
        self.client.offset = offset;
        self.client.seen.push(offset);
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        match self.dice.below(20) {
            0..=4 => self.next += self.dice.below(3),
            5 => self.next += self.dice.below(2 * RING), // a burst
            6..=9 => {
                let count = 1 + self.dice.below(600) as usize;
                self.read(count)?;
            }
            10..=13 => {
                let count = 1 + self.dice.below(80) as usize;
                let Some(line) = &mut self.line else { return Ok(()) };
                let count = count.min(line.to_edge.len());
                let mut bytes: Vec<u8> = line.to_edge.drain(..count).collect();
                self.turn(|connection, turn, _| connection.receive(turn, &mut bytes))?;
            }
            14..=16 => self.write()?,
            17 => self.answer(),
            18 => {
                self.now += self.dice.below(SECOND / 4);
                self.turn(|connection, turn, dice| connection.expire(turn, dice))?;
            }
            _ => match self.dice.below(40) {
                // The stream is gone in the midst of a frame, or its client has ended its half.
                0 => self.line = None,
                1 => {
                    self.turn(|connection, turn, _| connection.ended(turn))?;
                    self.line = None;
                }
                _ => {}
            },
        }
        let over = |line: &mut Line| line.connection.is_done() && line.to_client.is_empty();
        if self.line.as_mut().is_none_or(over) {
            self.connect();
        }
        Ok(())
    }

    fn judge(&self) -> Result<(), String> {
        let mut all: Vec<u64> = self.client.seen.clone();
        for (first, last) in &self.client.lost {
            all.extend(*first..=*last);
        }
        all.sort_unstable();
        let wanted: Vec<u64> = (1..self.next).collect();
        if all != wanted {
            return Err(format!(
                "{} of {} seen or announced, each once",
                all.len(),
                wanted.len()
            ));
        }
        // One a second; the count begins again with each connection.
        let most = ((self.now - START) / SECOND) as usize + self.connects;
        match self.client.resubscribed.len() {
            count if count > most => Err(format!("subscribed again {count} times, {most} at most")),
            _ => Ok(()),
        }
    }
}

/// The first whole frame of the server, taken out.
fn whole(input: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let (first, second) = (*input.first()?, *input.get(1)?);
    let (len, start) = match second {
        126 => (usize::from(u16::from_be_bytes([*input.get(2)?, *input.get(3)?])), 4),
        127 => (u64::from_be_bytes(input.get(2..10)?.try_into().ok()?) as usize, 10),
        len => (usize::from(len), 2),
    };
    input.get(start..start + len)?;
    let payload = input.drain(..start + len).skip(start).collect();
    Some((first & 0x0f, payload))
}

fn run(seed: u64) -> Result<World, String> {
    let mut world = World::new(seed);
    world.connect();
    for _ in 0..3_000 {
        world.step()?;
    }
    // Peace: everything is read, and the client comes to the head.
    for _ in 0..400 {
        if world.line.is_none() {
            world.connect();
        }
        let mut bytes: Vec<u8> = world
            .line
            .as_mut()
            .map_or(vec![], |line| line.to_edge.drain(..).collect());
        world.turn(|connection, turn, _| connection.receive(turn, &mut bytes))?;
        world.answer();
        world.now += SECOND / 100;
        world.turn(|connection, turn, dice| connection.expire(turn, dice))?;
        world.write()?;
        world.read(usize::MAX)?;
    }
    world.judge()?;
    Ok(world)
}

#[test]
fn seeds_see_or_announce_everything_once_over_faulty_streams() {
    let count = std::env::var("EDGE_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(200);
    let (mut lost, mut connects, mut proven, mut told) = (0, 0, 0, 0);
    for seed in 0..count {
        let world = run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        lost += world.client.lost.iter().filter(|(first, last)| last >= first).count();
        connects += world.connects;
        proven += world.proven;
        told += world.client.resubscribed.len();
    }
    // The faults are there.
    assert!(
        lost > 0 && connects > count as usize && proven > 0 && told > 0,
        "{lost} {connects} {proven} {told}"
    );
}
