//! The entry functions of the edge's fuzz targets (`core/fuzz`), which `hostile.rs` runs too. A panic is the finding.

use muster_edge::protocol::{as_json, commands, is_json, Encoding};
use muster_edge::websocket::{mask, Headed, Origins};
use muster_edge::{Admission, Ask, Connection, Counters, Frame, Settings, Turn, Write};
use muster_transport::{Dice, Micros};

pub type Target = fn(&[u8]);

/// Targets by name; each has a folder in `core/fuzz/corpus`.
#[allow(dead_code)]
pub const TARGETS: [(&str, Target); 4] = [
    ("edge_head", fuzz_edge_head),
    ("edge_stream", fuzz_edge_stream),
    ("edge_json", fuzz_edge_json),
    ("edge_protobuf", fuzz_edge_protobuf),
];

/// The head of an upgrade request, whole and byte by byte: the same outcome.
pub fn fuzz_edge_head(data: &[u8]) {
    let origins = Origins::Listed(vec!["https://*.example.com".to_owned()]);
    let whole = Headed::read(data, "/connection/websocket", &origins);
    if let Headed::Upgrade(_, len) = whole {
        assert!(len <= data.len());
        assert_eq!(
            Headed::read(&data[..len - 1], "/connection/websocket", &origins),
            Headed::Incomplete
        );
    }
}

/// A stream behind its upgrade. The first byte says how it is cut, the second which encoding it has and whether the client
/// masks: for the fuzzer frames that are masked with zeros are easier to make.
pub fn fuzz_edge_stream(data: &[u8]) {
    let [cut, choice, stream @ ..] = data else { return };
    let encoding = if choice & 1 == 0 {
        Encoding::Json
    } else {
        Encoding::Protobuf
    };
    let mut world = World::new(encoding);
    for piece in stream.chunks(usize::from(*cut).max(1)) {
        world.take(piece);
        if choice & 2 != 0 {
            world.now += 1_000_000;
            world.turn(|connection, turn, dice| connection.expire(turn, dice));
        }
        world.write();
        assert!(world.connection.held() < 2 << 20, "bounded");
    }
    world.turn(|connection, turn, _| connection.ended(turn));
    assert!(world.ended <= 1, "a session ends once");
}

pub fn fuzz_edge_json(data: &[u8]) {
    assert!(commands(Encoding::Json, data).count() <= data.len());
    let (text, is) = as_json(data);
    assert_eq!(is, is_json(data));
    assert!(!text.contains(&b'\n') && is_json(&text));
}

pub fn fuzz_edge_protobuf(data: &[u8]) {
    assert!(commands(Encoding::Protobuf, data).count() <= data.len());
}

/// A connection and an owner that answers everything at once.
struct World {
    now: Micros,
    settings: Settings,
    connection: Connection,
    counters: Counters,
    dice: Dice,
    asks: Vec<Ask>,
    ended: usize,
}

impl World {
    fn new(encoding: Encoding) -> World {
        let mut world = World {
            now: 1_000_000,
            settings: Settings::default(),
            connection: Connection::new(1_000_000),
            counters: Counters::default(),
            dice: Dice::new(1),
            asks: Vec::new(),
            ended: 0,
        };
        let query = if encoding == Encoding::Json {
            ""
        } else {
            "?format=protobuf"
        };
        let head = format!(
            "GET /connection/websocket{query} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        world.take(head.as_bytes());
        let connect: &[u8] = match encoding {
            Encoding::Json => b"{\"id\":1,\"connect\":{}}",
            Encoding::Protobuf => &[4, 8, 1, 0x22, 0],
        };
        let mut frame = vec![0x82, 0x80 | connect.len() as u8, 1, 2, 3, 4];
        frame.extend_from_slice(connect);
        mask([1, 2, 3, 4], &mut frame[6..]);
        world.take(&frame);
        assert!(world.connection.session().is_some_and(|session| session.is_open()));
        world
    }

    fn turn(&mut self, f: impl FnOnce(&mut Connection, &mut Turn<'_>, &mut Dice)) {
        let mut turn = Turn {
            now: self.now,
            settings: &self.settings,
            asks: &mut self.asks,
            counters: &mut self.counters,
        };
        f(&mut self.connection, &mut turn, &mut self.dice);
        while !self.asks.is_empty() {
            let ask = self.asks.remove(0);
            self.answer(ask);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        self.turn(|connection, turn, _| connection.receive(turn, &mut bytes));
    }

    fn write(&mut self) {
        let frame = self.connection.encoding().map(|encoding| {
            let data = muster_edge::protocol::Publication {
                data: b"1",
                offset: 1,
                ..Default::default()
            };
            Frame::publications(encoding, "a:b", 0, [data], usize::MAX)
                .expect("one")
                .0
        });
        let mut write = Write::default();
        self.connection.write(frame.as_slice(), &mut write);
        self.turn(|connection, turn, _| connection.resume(turn));
    }

    fn answer(&mut self, ask: Ask) {
        let now = self.now;
        if let Ask::Ended { .. } = ask {
            self.ended += 1;
            return;
        }
        let Some(session) = self.connection.session() else {
            return;
        };
        let mut turn = Turn {
            now,
            settings: &self.settings,
            asks: &mut self.asks,
            counters: &mut self.counters,
        };
        match ask {
            Ask::Authenticate { ticket, .. } => {
                let admission = Admission {
                    user: "7",
                    client: "c",
                    ttl_s: Some(60),
                    ..Admission::default()
                };
                session.admit(&mut turn, &mut self.dice, ticket, &admission);
            }
            Ask::Renew { ticket, token } => session.renewed(&mut turn, ticket, &token, None),
            Ask::Join {
                ticket, subscription, ..
            } => {
                session.joined(now, ticket, &Default::default());
                session.receipt();
                session.unsubscribed(&mut turn, subscription, muster_edge::Unsubscribe::INSUFFICIENT, "slow");
            }
            Ask::RenewJoin { ticket, .. } => session.sub_renewed(now, ticket, Some(1)),
            Ask::Publish { ticket, .. } => session.published(ticket),
            Ask::Presence { ticket, .. } => session.presence(ticket, []),
            Ask::PresenceStats { ticket, .. } => session.presence_stats(ticket, 1, 1),
            Ask::History { ticket, .. } => _ = session.history(ticket, &Default::default()),
            Ask::Rpc { ticket, data, .. } => session.rpc(ticket, &data),
            Ask::Silent => session.silence(&mut turn, false),
            Ask::Send { .. } | Ask::Leave { .. } | Ask::Received { .. } | Ask::Ended { .. } => {}
        }
    }
}
