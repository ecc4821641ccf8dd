//! Orders for streams, beside bytes: proven, read or not, reset.
//!
//! Owns the orders that have not been given yet. Knows no client.

use muster_tcp::{Outbox, StreamId};

#[derive(Default)]
pub(super) struct Orders {
    proven: Vec<StreamId>,
    aborts: Vec<StreamId>,
    reads: Vec<(StreamId, bool)>,
    silent: Vec<StreamId>,
}

impl Orders {
    /// A stream's client has shown a good token.
    pub fn proven(&mut self, stream: StreamId) {
        self.proven.push(stream);
    }

    /// A stream is to be reset.
    pub fn abort(&mut self, stream: StreamId) {
        self.aborts.push(stream);
    }

    /// A stream is to be read, or not.
    pub fn read(&mut self, stream: StreamId, on: bool) {
        self.reads.push((stream, on));
    }

    /// A stream's client says nothing.
    pub fn silent(&mut self, stream: StreamId) {
        self.silent.push(stream);
    }

    pub fn is_empty(&self) -> bool {
        self.proven.is_empty() && self.aborts.is_empty() && self.reads.is_empty() && self.silent.is_empty()
    }

    /// Gives the orders, but for those on silent streams.
    pub fn give(&mut self, outbox: &mut Outbox) {
        self.proven.drain(..).for_each(|stream| outbox.proven(stream));
        self.aborts.drain(..).for_each(|stream| outbox.abort(stream));
        self.reads.drain(..).for_each(|(stream, on)| outbox.read(stream, on));
    }

    /// Streams whose clients say nothing.
    pub fn take_silent(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.silent)
    }
}
