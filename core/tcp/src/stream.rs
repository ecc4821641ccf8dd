//! One stream: its socket, its TLS, and what it owes.
//!
//! Owns: [`Stream`]. Must not know: other streams, the machine.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;

use crate::limits::VECTORS_MAX;
use crate::owed::Owed;
use crate::syscalls;
use crate::tls::Tls;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// It has not proven itself.
    HalfOpen,
    Open,
    /// The machine has closed it: what it owes leaves, and then it lingers.
    Closing,
    /// All is sent; what comes is dropped.
    Lingering,
}

pub(crate) struct Stream {
    pub socket: OwnedFd,
    pub phase: Phase,
    /// The key of its address's count; 0: it is not counted.
    pub address: u64,
    /// The machine knows of it.
    pub told: bool,
    /// It was refused: it only lingers.
    pub refused: bool,
    /// The machine wants its bytes.
    pub read: bool,
    /// The peer sends no more.
    pub finished: bool,
    /// What the inner epoll was asked for.
    pub watched: (bool, bool),
    /// Bytes dropped while it lingers.
    pub dropped: u32,
    owed: Option<Box<Owed>>,
    pub tls: Option<Box<Tls>>,
}

/// What came of sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub bytes: usize,
    /// Nothing is owed.
    pub all: bool,
}

impl Stream {
    pub fn new(socket: OwnedFd, address: u64, tls: Option<Box<Tls>>) -> Stream {
        Stream {
            socket,
            phase: Phase::HalfOpen,
            address,
            told: false,
            refused: false,
            read: true,
            finished: false,
            watched: (true, false),
            dropped: 0,
            owed: None,
            tls,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// What the inner epoll is to watch it for.
    pub fn wanted(&self) -> (bool, bool) {
        let reads = !self.finished && (self.read || self.phase == Phase::Lingering);
        (reads, self.owed.is_some())
    }

    /// Sends its own bytes, shared ones, and its own again. What the socket does not take is owed.
    pub fn send(&mut self, head: &[u8], shared: &[Bytes], tail: &[u8]) -> io::Result<Sent> {
        if self.owed.is_some() {
            self.owe(head, shared, tail, 0);
            return Ok(Sent { bytes: 0, all: false });
        }
        let mut vectors = [IoSlice::new(&[]); VECTORS_MAX];
        let ends = usize::from(!head.is_empty()) + usize::from(!tail.is_empty());
        if shared.len() + ends > VECTORS_MAX || self.tls.is_some() {
            self.owe(head, shared, tail, 0);
            return self.flush();
        }
        let parts = std::iter::once(head)
            .chain(shared.iter().map(|part| &part[..]))
            .chain(std::iter::once(tail));
        let (mut count, mut total) = (0, 0);
        for part in parts.filter(|part| !part.is_empty()) {
            vectors[count] = IoSlice::new(part);
            (count, total) = (count + 1, total + part.len());
        }
        let bytes = match syscalls::send(self.socket.as_fd(), &vectors[..count]) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if bytes < total {
            self.owe(head, shared, tail, bytes);
        }
        Ok(Sent {
            bytes,
            all: bytes == total,
        })
    }

    /// Sends what is owed, as far as the socket takes it.
    pub fn flush(&mut self) -> io::Result<Sent> {
        let (socket, mut bytes) = (self.socket.as_fd(), 0);
        let mut owed = self.owed.take().unwrap_or_default();
        let all = loop {
            let mut vectors = Vec::new();
            owed.vectors(&mut vectors);
            let total: usize = vectors.iter().map(|part| part.len()).sum();
            let taken = match &mut self.tls {
                None if vectors.is_empty() => break true,
                None => match syscalls::send(socket, &vectors) {
                    Ok(taken) => taken,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                    Err(error) => return Err(error),
                },
                Some(tls) => {
                    let taken = tls.write(&vectors);
                    drop(vectors);
                    owed.advance(taken);
                    let (all, sent) = tls.flush(socket)?;
                    bytes += sent;
                    if owed.is_empty() || !all {
                        break all;
                    }
                    // Before its handshake has ended, TLS takes no more than its buffer holds.
                    if taken + sent == 0 {
                        break false;
                    }
                    continue;
                }
            };
            drop(vectors);
            bytes += taken;
            owed.advance(taken);
            if taken < total {
                break false;
            }
        };
        // A stream whose encrypted bytes wait owes too, also if all plain ones are taken.
        if !all {
            self.owed = Some(owed);
        }
        Ok(Sent { bytes, all })
    }

    fn owe(&mut self, head: &[u8], shared: &[Bytes], tail: &[u8], mut sent: usize) {
        let owed = self.owed.get_or_insert_default();
        owed.push(head, &mut sent, |from| Bytes::copy_from_slice(&head[from..]));
        for part in shared {
            owed.push(part, &mut sent, |from| part.slice(from..));
        }
        owed.push(tail, &mut sent, |from| Bytes::copy_from_slice(&tail[from..]));
    }
}
