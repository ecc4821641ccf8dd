//! One client's stream: the upgrade, then frames, and the session behind them.
//!
//! Owns: [`Connection`] (bytes in, questions and bytes out), [`Write`]. Must not know: sockets.

use bytes::Bytes;
use muster_transport::{Dice, Micros};

use crate::codes::Disconnect;
use crate::frame::Frame;
use crate::limits::{
    FRAMES_MAX, HEAD_BYTES_MAX, HEAD_WITHIN, MESSAGE_BYTES_MAX, UNKNOWN_BYTES_MAX, UNREAD_BYTES_MAX, WRITE_BYTES_MAX,
};
use crate::protocol::Encoding;
use crate::session::{Session, Turn};
use crate::websocket::{put_head, Close, Headed, Opcode, Read, Reader, Refusal, Violation};

/// Bytes for the socket: the receiver's own, shared ones, and again its own.
#[derive(Clone, Debug, Default)]
pub struct Write {
    pub head: Vec<u8>,
    pub shared: Vec<Bytes>,
    pub tail: Vec<u8>,
}

impl Write {
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.tail.is_empty()
    }

    pub fn clear(&mut self) {
        self.head.clear();
        self.shared.clear();
        self.tail.clear();
    }
}

enum Stage {
    /// The head of the upgrade request is awaited until then.
    Head(Micros),
    Open(Box<Session>),
    /// A close frame is to be written.
    Closing(Close, &'static str),
    /// All is written: the stream ends.
    Done,
}

/// A stream and its session.
pub struct Connection {
    stage: Stage,
    reader: Reader,
    /// Bytes that hold no whole frame, or that wait since the session is full.
    unread: Vec<u8>,
    /// Frames and answers without a message: they go first.
    raw: Vec<u8>,
}

impl Connection {
    pub fn new(now: Micros) -> Connection {
        Connection {
            stage: Stage::Head(now + HEAD_WITHIN),
            reader: Reader::default(),
            unread: Vec::new(),
            raw: Vec::new(),
        }
    }

    /// The session, once the stream is upgraded and until it ends.
    pub fn session(&mut self) -> Option<&mut Session> {
        match &mut self.stage {
            Stage::Open(session) => Some(session),
            _ => None,
        }
    }

    /// How frames for it are to be built.
    pub fn encoding(&self) -> Option<Encoding> {
        match &self.stage {
            Stage::Open(session) => Some(session.encoding()),
            _ => None,
        }
    }

    /// Whether the stream is to end now: all is written.
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done) && self.raw.is_empty()
    }

    /// Whether the socket is not to be read for now: replies wait. Call [`Connection::resume`] when they have left.
    pub fn is_full(&self) -> bool {
        matches!(&self.stage, Stage::Open(session) if session.is_full())
    }

    /// Whether [`Connection::write`] has bytes of its own.
    pub fn has_bytes(&self) -> bool {
        !self.raw.is_empty()
            || match &self.stage {
                // A session that an answer has ended is to be closed.
                Stage::Open(session) => session.has_bytes() || session.is_over(),
                Stage::Closing(..) => true,
                Stage::Head(_) | Stage::Done => false,
            }
    }

    /// Bytes of memory that it holds beside itself.
    pub fn held(&self) -> usize {
        let session = match &self.stage {
            Stage::Open(session) => size_of::<Session>() + session.held(),
            _ => 0,
        };
        self.unread.capacity() + self.raw.capacity() + self.reader.held() + session
    }

    /// When [`Connection::expire`] is to be called next.
    pub fn deadline(&self) -> Option<Micros> {
        match &self.stage {
            Stage::Head(until) => Some(*until),
            Stage::Open(session) => session.deadline(),
            Stage::Closing(..) | Stage::Done => None,
        }
    }

    /// Runs the timers due by `turn.now`.
    pub fn expire(&mut self, turn: &mut Turn<'_>, dice: &mut Dice) {
        match &mut self.stage {
            Stage::Head(until) if *until <= turn.now => {
                turn.counters.ended_late += 1;
                self.end(Stage::Done);
            }
            Stage::Open(session) => session.expire(turn, dice),
            _ => {}
        }
        self.settle();
    }

    /// Takes bytes of the stream, which are unmasked in place.
    pub fn receive(&mut self, turn: &mut Turn<'_>, bytes: &mut [u8]) {
        if matches!(self.stage, Stage::Closing(..) | Stage::Done) {
            return;
        }
        if let Stage::Open(session) = &mut self.stage {
            session.heard(turn.now);
        }
        if self.unread.is_empty() {
            let used = self.take(turn, bytes);
            if !matches!(self.stage, Stage::Closing(..) | Stage::Done) {
                self.unread.extend_from_slice(&bytes[used..]);
            }
        } else {
            self.unread.extend_from_slice(bytes);
            let fresh = bytes.len();
            self.take_unread(turn, fresh);
        }
    }

    /// Goes on with bytes that a full session left.
    pub fn resume(&mut self, turn: &mut Turn<'_>) {
        if !self.unread.is_empty() {
            self.take_unread(turn, self.unread.len());
        }
    }

    /// The peer sends no more, or the stream is gone.
    pub fn ended(&mut self, turn: &mut Turn<'_>) {
        if let Stage::Open(session) = &mut self.stage {
            turn.counters.ended_closed += 1;
            session.gone(turn.asks);
        }
        self.raw.clear();
        self.end(Stage::Done);
    }

    /// Ends the session; its client is told. The owner leaves its rooms by itself.
    pub fn disconnect(&mut self, end: Disconnect) {
        match &mut self.stage {
            Stage::Open(session) => session.disconnect(end),
            Stage::Head(_) => self.end(Stage::Done),
            Stage::Closing(..) | Stage::Done => {}
        }
        self.settle();
    }

    /// Writes its own bytes, with these frames behind them: all messages in one WebSocket message, which browsers take
    /// twice as fast as one for each. Returns how many frames it took: those that a write holds, or none if no session is open.
    pub fn write(&mut self, frames: &[Frame], write: &mut Write) -> usize {
        self.settle();
        write.head.extend_from_slice(&std::mem::take(&mut self.raw));
        match &mut self.stage {
            Stage::Open(session) => {
                let count = if session.is_open() { fitting(frames) } else { 0 };
                write_messages(session, &frames[..count], write);
                count
            }
            Stage::Closing(close, reason) => {
                Close::write(&mut write.tail, close.code, reason);
                self.end(Stage::Done);
                0
            }
            Stage::Head(_) | Stage::Done => 0,
        }
    }

    fn take_unread(&mut self, turn: &mut Turn<'_>, fresh: usize) {
        // A head is read again only when a line of it has ended.
        if matches!(self.stage, Stage::Head(_)) {
            let new = &self.unread[self.unread.len() - fresh..];
            if self.unread.len() < HEAD_BYTES_MAX && !new.contains(&b'\n') {
                return;
            }
        }
        let mut unread = std::mem::take(&mut self.unread);
        let used = self.take(turn, &mut unread);
        if matches!(self.stage, Stage::Closing(..) | Stage::Done) {
            return;
        }
        if used == unread.len() {
            // A large message's buffer is not kept.
            return;
        }
        unread.drain(..used);
        self.unread = unread;
    }

    /// Takes whole parts of `bytes` and returns their length.
    fn take(&mut self, turn: &mut Turn<'_>, bytes: &mut [u8]) -> usize {
        let mut used = 0;
        if let Stage::Head(_) = self.stage {
            match Headed::read(bytes, &turn.settings.path, &turn.settings.origins) {
                Headed::Incomplete => return 0,
                Headed::Refused(refusal) => return self.refuse(turn, &refusal, bytes.len()),
                Headed::Upgrade(upgrade, len) => {
                    if let Some(retry_s) = turn.settings.busy {
                        return self.refuse(turn, &Refusal::Busy { retry_s }, bytes.len());
                    }
                    turn.counters.upgrades += 1;
                    upgrade.write(&mut self.raw);
                    self.stage = Stage::Open(Box::new(Session::new(turn.now, upgrade.encoding, upgrade.native_pings)));
                    used = len;
                }
            }
        }
        while let Stage::Open(session) = &mut self.stage {
            if session.is_full() || session.is_over() {
                break;
            }
            let max = if session.is_open() {
                MESSAGE_BYTES_MAX
            } else {
                UNKNOWN_BYTES_MAX
            };
            let rest = &mut bytes[used..];
            let (read, len) = match self.reader.read(rest, max) {
                Ok(found) => found,
                Err(violation) => {
                    self.violation(turn, violation);
                    break;
                }
            };
            match read {
                Read::Nothing => break,
                Read::Fragment => {}
                Read::Message(place) => {
                    turn.counters.messages_received += 1;
                    session.receive(turn, &rest[place]);
                }
                Read::Assembled => {
                    turn.counters.messages_received += 1;
                    let message = self.reader.assembled();
                    session.receive(turn, &message);
                }
                Read::Ping(place) => {
                    let payload = &rest[place];
                    put_head(&mut self.raw, Opcode::Pong, payload.len());
                    self.raw.extend_from_slice(payload);
                    if self.raw.len() > UNREAD_BYTES_MAX {
                        turn.counters.ended_slow += 1;
                        session.gone(turn.asks);
                        self.end(Stage::Closing(close(Disconnect::SLOW), Disconnect::SLOW.reason));
                        break;
                    }
                }
                Read::Pong(_) => session.pong(turn),
                Read::Close(close) => {
                    turn.counters.ended_closed += 1;
                    session.gone(turn.asks);
                    self.end(Stage::Closing(close, ""));
                    break;
                }
            }
            used += len;
        }
        self.settle();
        used
    }

    fn refuse(&mut self, turn: &mut Turn<'_>, refusal: &Refusal, len: usize) -> usize {
        match refusal {
            Refusal::Busy { .. } => turn.counters.refused_busy += 1,
            Refusal::Origin(_) => turn.counters.refused_origin += 1,
            _ => turn.counters.refused_request += 1,
        }
        refusal.write(&mut self.raw);
        self.end(Stage::Done);
        len
    }

    fn violation(&mut self, turn: &mut Turn<'_>, violation: Violation) {
        turn.counters.ended_violation += 1;
        if let Stage::Open(session) = &mut self.stage {
            session.gone(turn.asks);
        }
        let code = violation.code();
        self.end(Stage::Closing(Close { code }, violation.reason()));
    }

    /// A session that is over is closed once its last replies are written.
    fn settle(&mut self) {
        let Stage::Open(session) = &mut self.stage else {
            return;
        };
        if !session.is_over() {
            return;
        }
        let end = session.end().unwrap_or(Disconnect::CLOSED);
        let mut last = Write::default();
        write_messages(session, &[], &mut last);
        self.raw.append(&mut last.head);
        self.end(Stage::Closing(close(end), end.reason));
    }

    fn end(&mut self, stage: Stage) {
        self.stage = stage;
        self.unread = Vec::new();
        self.reader = Reader::default();
    }
}

fn close(end: Disconnect) -> Close {
    Close { code: end.code }
}

/// How many frames one write holds: one at least.
fn fitting(frames: &[Frame]) -> usize {
    let mut bytes = 0;
    let over = frames.iter().take(FRAMES_MAX).position(|frame| {
        let full = bytes >= WRITE_BYTES_MAX;
        bytes += frame.bytes().len();
        full
    });
    over.unwrap_or(frames.len().min(FRAMES_MAX))
}

fn write_messages(session: &mut Session, frames: &[Frame], write: &mut Write) {
    let encoding = session.encoding();
    let own = session.replies().bytes();
    let apart = usize::from(encoding == Encoding::Json);
    let parts = frames.len() + usize::from(!own.is_empty());
    if parts > 0 {
        let shared: usize = frames.iter().map(|frame| frame.bytes().len()).sum();
        let opcode = match encoding {
            Encoding::Json => Opcode::Text,
            Encoding::Protobuf => Opcode::Binary,
        };
        put_head(&mut write.head, opcode, own.len() + shared + (parts - 1) * apart);
        write.head.extend_from_slice(own);
        let mut first = own.is_empty();
        for frame in frames {
            assert!(frame.encoding() == encoding, "a frame of the session's own encoding");
            if !std::mem::take(&mut first) && apart > 0 {
                write.shared.push(Bytes::from_static(b"\n"));
            }
            write.shared.push(frame.bytes().clone());
        }
    }
    for ping in session.native_pings() {
        put_head(&mut write.tail, Opcode::Ping, 8);
        write.tail.extend_from_slice(&ping.to_be_bytes());
    }
    session.replies_written();
}
