//! The verbs of a machine whose clients come by byte streams, and the slice that carries its bytes out.
//!
//! Owns: [`Streams`], [`Outbox`]. Knows no socket.

use std::ops::Range;

use bytes::Bytes;
use muster_transport::{Addr, Micros};

use crate::limits::SLICE_SENDS;
use crate::stream_id::StreamId;

/// How a stream ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The peer closed it.
    Closed,
    /// It was reset, or nothing was acknowledged for too long.
    Broken,
    /// It had not proven itself in time, or its place was needed.
    HalfOpen,
    /// Its TLS failed.
    Tls,
}

/// A machine that speaks over streams: deterministic for (inputs, time). A [`crate::Tcp`] calls it.
pub trait Streams {
    /// A client has connected. Whatever is said to it counts only once it has proven itself ([`Outbox::proven`]).
    fn opened(&mut self, now: Micros, stream: StreamId, from: Addr);

    /// Bytes came; they may be changed in place.
    fn received(&mut self, now: Micros, stream: StreamId, bytes: &mut [u8]);

    /// The peer sends no more. It may still read: close the stream when all is said.
    fn finished(&mut self, now: Micros, stream: StreamId);

    /// The socket did not take all. The rest leaves by itself; put nothing more until [`Streams::drained`].
    fn blocked(&mut self, now: Micros, stream: StreamId);

    /// All that was put has been taken by the kernel.
    fn drained(&mut self, now: Micros, stream: StreamId);

    /// The stream is gone. Not called for one that the machine closed or aborted.
    fn ended(&mut self, now: Micros, stream: StreamId, how: Ended);

    /// Runs the timers due by `now`.
    fn expire(&mut self, now: Micros);

    /// Fills one slice. Returns whether more waits that could leave at once.
    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool;

    /// When [`Streams::expire`] is to be called next, if ever.
    fn deadline(&self) -> Option<Micros>;
}

#[derive(Clone, Debug)]
pub(crate) enum Order {
    Send {
        stream: StreamId,
        head: Range<usize>,
        shared: Range<usize>,
        tail: Range<usize>,
    },
    Close(StreamId),
    Abort(StreamId),
    Read(StreamId, bool),
    Proven(StreamId),
}

/// One order of a slice, for a carrier other than [`crate::Tcp`]: a simulated one.
#[derive(Clone, Copy, Debug)]
pub enum Ordered<'a> {
    Send {
        stream: StreamId,
        head: &'a [u8],
        shared: &'a [Bytes],
        tail: &'a [u8],
    },
    Close(StreamId),
    Abort(StreamId),
    Read(StreamId, bool),
    Proven(StreamId),
}

/// One slice of a machine's orders, carried out in their order.
#[derive(Default)]
pub struct Outbox {
    pub(crate) slab: Vec<u8>,
    pub(crate) shared: Vec<Bytes>,
    pub(crate) orders: Vec<Order>,
    sends: usize,
}

impl Outbox {
    /// Sends that still fit into this slice.
    pub fn room(&self) -> usize {
        SLICE_SENDS.saturating_sub(self.sends)
    }

    pub fn is_empty(&self) -> bool {
        self.orders.is_empty()
    }

    /// Sends bytes of the stream's own, then shared ones, which are not copied, then its own again.
    pub fn send(&mut self, stream: StreamId, head: &[u8], shared: &[Bytes], tail: &[u8]) {
        let place = |slab: &mut Vec<u8>, bytes: &[u8]| {
            let start = slab.len();
            slab.extend_from_slice(bytes);
            start..slab.len()
        };
        let head = place(&mut self.slab, head);
        let tail = place(&mut self.slab, tail);
        let start = self.shared.len();
        self.shared.extend(shared.iter().cloned());
        self.sends += 1;
        self.orders.push(Order::Send {
            stream,
            head,
            shared: start..self.shared.len(),
            tail,
        });
    }

    /// Ends a stream once all that was put has left. The machine hears of it no more.
    pub fn close(&mut self, stream: StreamId) {
        self.orders.push(Order::Close(stream));
    }

    /// Resets a stream. The machine hears of it no more.
    pub fn abort(&mut self, stream: StreamId) {
        self.orders.push(Order::Abort(stream));
    }

    /// Reads the stream no more, so that its peer is held up by its own window; or reads it again.
    pub fn read(&mut self, stream: StreamId, read: bool) {
        self.orders.push(Order::Read(stream, read));
    }

    /// The client has shown that it may be here: the stream is half-open no more.
    pub fn proven(&mut self, stream: StreamId) {
        self.orders.push(Order::Proven(stream));
    }

    /// The orders, in their order.
    pub fn orders(&self) -> impl Iterator<Item = Ordered<'_>> {
        self.orders.iter().map(|order| match order {
            Order::Send {
                stream,
                head,
                shared,
                tail,
            } => Ordered::Send {
                stream: *stream,
                head: &self.slab[head.clone()],
                shared: &self.shared[shared.clone()],
                tail: &self.slab[tail.clone()],
            },
            Order::Close(stream) => Ordered::Close(*stream),
            Order::Abort(stream) => Ordered::Abort(*stream),
            Order::Read(stream, read) => Ordered::Read(*stream, *read),
            Order::Proven(stream) => Ordered::Proven(*stream),
        })
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.slab.clear();
        self.shared.clear();
        self.orders.clear();
        self.sends = 0;
    }
}
