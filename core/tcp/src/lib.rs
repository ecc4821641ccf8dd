//! Byte streams of clients on Linux: listeners, limits, one inner epoll for an outer event loop, shared bytes sent by vector,
//! TLS.
//!
//! Start from [`Tcp`] (one bounded turn per call), [`Streams`] (the machine that it serves) and [`Outbox`]. The turn is the
//! counterpart of `muster-driver`'s for datagrams; a process with both gives the same machine to both.
//!
//! Owns: sockets, their options, bytes that they have not taken, half-open streams, TLS. Must not know: any protocol.
//! `unsafe` stands in `syscalls` alone.
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod counters;
mod limits;
mod listener;
mod owed;
mod stream;
mod stream_id;
mod streams;
#[allow(unsafe_code)]
mod syscalls;
mod tcp;
mod tls;

pub use counters::Counters;
pub use limits::{Budget, Limits, ACCEPTS_MAX, LINGER, LINGER_BYTES, READ_BYTES, REFUSED_MAX, SLICE_SENDS};
pub use listener::LISTENERS_MAX;
pub use rustls::ServerConfig as TlsConfig;
pub use stream_id::StreamId;
pub use streams::{Ended, Ordered, Outbox, Streams};
pub use tcp::{Tcp, Turn};
pub use tls::{tls_config, TlsError};
