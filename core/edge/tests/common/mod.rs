//! A browser for tests: it masks frames as a client does and reads what a connection writes; no socket is between them.
#![allow(dead_code)]

use bytes::Bytes;
use muster_edge::protocol::Encoding;
use muster_edge::websocket::{mask, Origins};
use muster_edge::{Admission, Ask, Connection, Counters, Frame, Session, Settings, Ticket, Turn, Write};
use muster_transport::{Dice, Micros};
use serde_json::Value;

pub const SECOND: Micros = 1_000_000;
/// When tests begin.
pub const START: Micros = 1_000 * SECOND;

/// One connection of the edge, with its clock and its client.
pub struct Browser {
    pub now: Micros,
    pub settings: Settings,
    pub connection: Connection,
    pub counters: Counters,
    pub dice: Dice,
    /// Questions that no test has looked at.
    pub asks: Vec<Ask>,
    /// Bytes that the connection wrote and the browser has not read.
    pub written: Vec<u8>,
    /// How the client's frames are cut on their way.
    pub cut: Option<usize>,
}

/// A frame of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    pub opcode: u8,
    pub payload: Vec<u8>,
}

impl Browser {
    /// A client whose stream is not upgraded.
    pub fn new() -> Browser {
        Browser {
            now: START,
            settings: Settings {
                version: "muster".to_owned(),
                ..Settings::default()
            },
            connection: Connection::new(START),
            counters: Counters::default(),
            dice: Dice::new(1),
            asks: Vec::new(),
            written: Vec::new(),
            cut: None,
        }
    }

    /// A client whose stream is upgraded.
    pub fn upgraded(encoding: Encoding) -> Browser {
        let mut browser = Browser::new();
        browser.settings.origins = Origins::Any;
        let query = match encoding {
            Encoding::Json => "",
            Encoding::Protobuf => "?cf_protocol=protobuf",
        };
        browser.bytes(request(&format!("/connection/websocket{query}"), "").as_bytes());
        let answer = browser.take_written();
        assert!(
            answer.starts_with(b"HTTP/1.1 101 "),
            "{}",
            String::from_utf8_lossy(&answer)
        );
        browser
    }

    /// A client of JSON that was admitted as this user, for good.
    pub fn admitted(user: &str) -> Browser {
        let mut browser = Browser::upgraded(Encoding::Json);
        browser.say(r#"{"id":1,"connect":{"token":"t"}}"#);
        browser.admit(user, None);
        browser.heard();
        browser
    }

    pub fn admit(&mut self, user: &str, ttl_s: Option<u32>) {
        let Some(Ask::Authenticate { ticket, .. }) = self.ask() else {
            panic!("a token is to be judged");
        };
        let admission = Admission {
            user,
            client: "c1",
            ttl_s,
            ..Admission::default()
        };
        self.turn(|connection, turn, dice| {
            let session = connection.session().expect("it is upgraded");
            session.admit(turn, dice, ticket, &admission);
        });
    }

    pub fn turn<T>(&mut self, f: impl FnOnce(&mut Connection, &mut Turn<'_>, &mut Dice) -> T) -> T {
        let mut turn = Turn {
            now: self.now,
            settings: &self.settings,
            asks: &mut self.asks,
            counters: &mut self.counters,
        };
        f(&mut self.connection, &mut turn, &mut self.dice)
    }

    pub fn session(&mut self) -> &mut Session {
        self.connection.session().expect("the session is there")
    }

    /// The oldest question.
    pub fn ask(&mut self) -> Option<Ask> {
        (!self.asks.is_empty()).then(|| self.asks.remove(0))
    }

    /// Bytes of the stream.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let cut = self.cut.unwrap_or(usize::MAX);
        for piece in bytes.chunks(cut) {
            let mut piece = piece.to_vec();
            self.turn(|connection, turn, _| connection.receive(turn, &mut piece));
        }
    }

    /// One message.
    pub fn say(&mut self, text: &str) {
        self.bytes(&frame(0x81, text.as_bytes()));
    }

    pub fn say_bytes(&mut self, bytes: &[u8]) {
        self.bytes(&frame(0x82, bytes));
    }

    /// Has the time pass, in the steps that the connection asks for.
    pub fn pass(&mut self, time: Micros) {
        let until = self.now + time;
        while let Some(at) = self.connection.deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.turn(|connection, turn, dice| connection.expire(turn, dice));
        }
        self.now = until;
    }

    pub fn write(&mut self, frames: &[Frame]) {
        let mut write = Write::default();
        self.connection.write(frames, &mut write);
        self.written.extend(write.head);
        write
            .shared
            .iter()
            .for_each(|part: &Bytes| self.written.extend_from_slice(part));
        self.written.extend(write.tail);
    }

    pub fn take_written(&mut self) -> Vec<u8> {
        self.write(&[]);
        std::mem::take(&mut self.written)
    }

    /// The frames that came.
    pub fn frames(&mut self) -> Vec<Got> {
        frames(&self.take_written())
    }

    /// The messages that came, as JSON.
    pub fn heard(&mut self) -> Vec<Value> {
        let messages = self.frames().into_iter().filter(|frame| frame.opcode == 1);
        let text = messages.map(|frame| String::from_utf8(frame.payload).expect("UTF-8"));
        let lines: Vec<String> = text
            .flat_map(|text| text.split('\n').map(str::to_owned).collect::<Vec<_>>())
            .collect();
        lines
            .iter()
            .map(|line| serde_json::from_str(line).expect(line))
            .collect()
    }

    /// The code and reason of the close frame that came, which must be the last one.
    pub fn closed(&mut self) -> Option<(u16, String)> {
        let last = self.frames().pop()?;
        assert!(self.connection.is_done(), "a close frame ends the stream");
        (last.opcode == 8).then(|| {
            let (code, reason) = last.payload.split_first_chunk::<2>().expect("a code");
            (
                u16::from_be_bytes(*code),
                String::from_utf8(reason.to_vec()).expect("UTF-8"),
            )
        })
    }

    /// Asks for a channel and answers with what it asked.
    pub fn asks_to_join(&mut self, id: u32, channel: &str) -> (Ticket, muster_edge::Subscription) {
        self.say(&format!(r#"{{"id":{id},"subscribe":{{"channel":"{channel}"}}}}"#));
        match self.ask() {
            Some(Ask::Join {
                ticket, subscription, ..
            }) => (ticket, subscription),
            other => panic!("a channel is asked for, not {other:?}"),
        }
    }

    pub fn joined(&mut self, id: u32, channel: &str) -> muster_edge::Subscription {
        let (ticket, subscription) = self.asks_to_join(id, channel);
        let now = self.now;
        assert!(self.session().joined(now, ticket, &Default::default()));
        subscription
    }
}

/// An upgrade request with these headers more.
pub fn request(target: &str, more: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: edge.example.com\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
}

/// A client's frame: its first byte, then the payload, masked.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        0..126 => out.push(0x80 | payload.len() as u8),
        126..=0xffff => {
            out.push(0x80 | 126);
            out.extend((payload.len() as u16).to_be_bytes());
        }
        _ => {
            out.push(0x80 | 127);
            out.extend((payload.len() as u64).to_be_bytes());
        }
    }
    let key = [0x37, 0xfa, 0x21, 0x3d];
    out.extend(key);
    let start = out.len();
    out.extend_from_slice(payload);
    mask(key, &mut out[start..]);
    out
}

/// The server's frames, which must be whole.
pub fn frames(mut bytes: &[u8]) -> Vec<Got> {
    let mut found = Vec::new();
    while let [first, second, rest @ ..] = bytes {
        assert_eq!(second & 0x80, 0, "a server's frames are not masked");
        let (len, rest) = match second & 0x7f {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            127 => (u64::from_be_bytes(rest[..8].try_into().unwrap()) as usize, &rest[8..]),
            len => (usize::from(len), rest),
        };
        assert_eq!(first & 0xf0, 0x80, "whole and without extensions");
        found.push(Got {
            opcode: first & 0x0f,
            payload: rest[..len].to_vec(),
        });
        bytes = &rest[len..];
    }
    assert!(bytes.is_empty());
    found
}
