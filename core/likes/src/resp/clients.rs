//! Clients that come by byte streams: which stream has which connection, and what is read from it and sent to it now.
//!
//! Owns: [`Clients`]. Knows no socket: a [`muster_tcp::Tcp`] calls [`Serving`].

use super::front::{ConnectionId, Front};
use muster_tcp::{Ended, Outbox, StreamId, Streams};
use muster_transport::{Addr, Micros};
use std::collections::VecDeque;

/// Replies of one client in a slice, in bytes: then the others have their turn.
const SLICE_BYTES: usize = 1 << 20;

struct Client {
    stream: StreamId,
    connection: ConnectionId,
    proven: bool,
    /// The socket has not taken all replies.
    blocked: bool,
    /// The socket is read.
    read: bool,
    /// The client sends no more.
    finished: bool,
    /// It is in the list of those that the next slice looks at.
    due: bool,
    /// Bytes that came while none were accepted.
    kept: Vec<u8>,
}

/// All clients of a [`Front`] that come by byte streams.
#[derive(Default)]
pub struct Clients {
    /// By the slot of the stream.
    clients: Vec<Option<Client>>,
    /// The slot of each connection's stream.
    slots: Vec<Option<usize>>,
    due: VecDeque<usize>,
    len: usize,
    held: bool,
    closing: bool,
}

impl Clients {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Accepts no more bytes, until [`Clients::go_on`].
    pub fn hold(&mut self) {
        self.held = true;
        self.all_are_due();
    }

    /// Accepts bytes again; those that came meanwhile go first.
    pub fn go_on(&mut self) {
        self.held = false;
        self.all_are_due();
    }

    /// Closes all streams, behind the replies that are ready.
    pub fn close(&mut self) {
        self.closing = true;
        self.all_are_due();
    }

    /// The machine that a [`muster_tcp::Tcp`] serves. `now_ms`: the wall clock in ms since 1970.
    pub fn serving<'a>(&'a mut self, front: &'a mut Front, now_ms: u64) -> Serving<'a> {
        Serving {
            clients: self,
            front,
            now_ms,
        }
    }

    fn all_are_due(&mut self) {
        (0..self.clients.len()).for_each(|slot| self.is_due(slot));
    }

    fn is_due(&mut self, slot: usize) {
        if let Some(client) = self.clients.get_mut(slot).and_then(Option::as_mut) {
            if !std::mem::replace(&mut client.due, true) {
                self.due.push_back(slot);
            }
        }
    }

    fn get_mut(&mut self, stream: StreamId) -> Option<&mut Client> {
        let client = self.clients.get_mut(stream.slot())?.as_mut()?;
        (client.stream == stream).then_some(client)
    }

    fn remove(&mut self, slot: usize) -> Option<Client> {
        let client = self.clients.get_mut(slot)?.take()?;
        self.slots[client.connection.0 as usize] = None;
        self.len -= 1;
        Some(client) // it may stay in `due`: a later client of the slot is only looked at once more
    }
}

/// Clients with their front for one turn.
pub struct Serving<'a> {
    clients: &'a mut Clients,
    front: &'a mut Front,
    now_ms: u64,
}

impl Serving<'_> {
    /// Connections with replies are due.
    fn collect(&mut self) {
        for connection in self.front.ready() {
            if let Some(&Some(slot)) = self.clients.slots.get(connection.0 as usize) {
                self.clients.is_due(slot);
            }
        }
    }

    /// Sends one client its replies, and decides whether it is read.
    fn serve(&mut self, slot: usize, outbox: &mut Outbox) {
        let (held, closing) = (self.clients.held, self.clients.closing);
        let Some(client) = &mut self.clients.clients[slot] else {
            return;
        };
        client.due = false;
        let (stream, connection) = (client.stream, client.connection);
        if !std::mem::replace(&mut client.proven, true) {
            outbox.proven(stream);
        }
        let mut over = closing;
        if !client.blocked {
            if !held && !client.kept.is_empty() {
                let kept = std::mem::take(&mut client.kept);
                self.front.feed(connection, &kept, self.now_ms);
            }
            let mut replies = self.front.take_replies(connection);
            while replies.len() < SLICE_BYTES && self.front.has_unparsed(connection) {
                self.front.feed(connection, &[], self.now_ms);
                let more = self.front.take_replies(connection);
                if more.is_empty() {
                    break;
                }
                replies.extend_from_slice(&more);
            }
            if !replies.is_empty() {
                outbox.send(stream, &replies, &[], &[]);
            }
            if replies.len() >= SLICE_BYTES {
                client.due = true;
                self.clients.due.push_back(slot);
            } else {
                let all_said = client.finished && client.kept.is_empty() && self.front.is_done(connection);
                over |= self.front.ends(connection) || all_said;
            }
        }
        if over {
            outbox.close(stream);
            self.clients.remove(slot);
            return self.front.close(connection);
        }
        let Some(client) = &mut self.clients.clients[slot] else {
            return;
        };
        let read = !(held || client.blocked || client.finished || self.front.is_full(connection));
        if std::mem::replace(&mut client.read, read) != read {
            outbox.read(stream, read);
        }
    }
}

impl Streams for Serving<'_> {
    fn opened(&mut self, _now: Micros, stream: StreamId, _from: Addr) {
        let (slot, connection) = (stream.slot(), self.front.open());
        let clients = &mut *self.clients;
        if slot >= clients.clients.len() {
            clients.clients.resize_with(slot + 1, || None);
        }
        let number = connection.0 as usize;
        if number >= clients.slots.len() {
            clients.slots.resize(number + 1, None);
        }
        clients.slots[number] = Some(slot);
        clients.clients[slot] = Some(Client {
            stream,
            connection,
            proven: false,
            blocked: false,
            read: true,
            finished: false,
            due: false,
            kept: Vec::new(),
        });
        clients.len += 1;
        clients.is_due(slot);
    }

    fn received(&mut self, _now: Micros, stream: StreamId, bytes: &mut [u8]) {
        let held = self.clients.held;
        let Some(client) = self.clients.get_mut(stream) else {
            return;
        };
        if held || !client.kept.is_empty() {
            return client.kept.extend_from_slice(bytes);
        }
        let connection = client.connection;
        self.front.feed(connection, bytes, self.now_ms);
        if self.front.is_full(connection) {
            self.clients.is_due(stream.slot());
        }
    }

    fn finished(&mut self, _now: Micros, stream: StreamId) {
        if let Some(client) = self.clients.get_mut(stream) {
            client.finished = true;
            self.clients.is_due(stream.slot());
        }
    }

    fn blocked(&mut self, _now: Micros, stream: StreamId) {
        if let Some(client) = self.clients.get_mut(stream) {
            client.blocked = true;
            self.clients.is_due(stream.slot());
        }
    }

    fn drained(&mut self, _now: Micros, stream: StreamId) {
        if let Some(client) = self.clients.get_mut(stream) {
            client.blocked = false;
            self.clients.is_due(stream.slot());
        }
    }

    fn ended(&mut self, _now: Micros, stream: StreamId, _how: Ended) {
        if self.clients.get_mut(stream).is_some() {
            if let Some(client) = self.clients.remove(stream.slot()) {
                self.front.close(client.connection);
            }
        }
    }

    fn expire(&mut self, _now: Micros) {}

    fn transmit(&mut self, _now: Micros, outbox: &mut Outbox) -> bool {
        self.collect();
        while outbox.room() > 0 {
            let Some(slot) = self.clients.due.pop_front() else {
                self.collect();
                if self.clients.due.is_empty() {
                    return false;
                }
                continue;
            };
            self.serve(slot, outbox);
        }
        true
    }

    fn deadline(&self) -> Option<Micros> {
        None
    }
}
