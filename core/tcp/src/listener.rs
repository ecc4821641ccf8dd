//! Listeners, and the counts that decide who is accepted.
//!
//! Owns: [`Listeners`], [`Addresses`], the spare descriptor. Must not know: streams.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use muster_transport::{Addr, Micros};
use muster_udp::Poll;

use crate::limits::ACCEPT_RETRY;
use crate::syscalls;

/// Tokens of listeners in the inner epoll are this and above; the timer has the last one.
pub(crate) const LISTENER_TOKEN: u64 = u64::MAX - 64;
/// Addresses that one process listens at.
pub const LISTENERS_MAX: usize = 32;

/// What a listener gave.
pub(crate) enum Accepted {
    One(OwnedFd, Addr),
    /// The process has no descriptor left; this one is accepted with the spare one, to be refused.
    Last(OwnedFd),
    Nothing,
}

pub(crate) struct Listeners {
    sockets: Vec<TcpListener>,
    /// Given up for a moment when no descriptor is left, so that a client learns why.
    spare: Option<File>,
    /// Nothing is accepted before that.
    pub rests_until: Option<Micros>,
}

impl Listeners {
    pub fn new() -> Listeners {
        Listeners {
            sockets: Vec::new(),
            spare: spare(),
            rests_until: None,
        }
    }

    pub fn add(&mut self, poll: &Poll, socket: TcpListener) -> io::Result<()> {
        if self.sockets.len() >= LISTENERS_MAX {
            return Err(io::Error::other("more than 32 addresses to listen at"));
        }
        socket.set_nonblocking(true)?;
        poll.add(socket.as_fd(), LISTENER_TOKEN + self.sockets.len() as u64)?;
        self.sockets.push(socket);
        Ok(())
    }

    pub fn close(&mut self) {
        self.sockets.clear();
        self.rests_until = None;
    }

    pub fn accept(&mut self, index: usize) -> io::Result<Accepted> {
        let Some(listener) = self.sockets.get(index) else {
            return Ok(Accepted::Nothing);
        };
        let error = match syscalls::accept(listener.as_fd()) {
            Ok((socket, from)) => return Ok(Accepted::One(socket, from)),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Ok(Accepted::Nothing),
            Some(libc::EMFILE | libc::ENFILE) if self.spare.take().is_some() => {
                match syscalls::accept(listener.as_fd()) {
                    Ok((socket, _)) => Ok(Accepted::Last(socket)),
                    Err(_) => Err(error),
                }
            }
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => Err(error),
            // The client is gone again (ECONNABORTED), or the network had an error of its own (accept(2)).
            _ => Ok(Accepted::Nothing),
        }
    }

    /// Has the spare descriptor opened again.
    pub fn save(&mut self) {
        if self.spare.is_none() {
            self.spare = spare();
        }
    }

    /// Stops accepting until the process may have a descriptor again.
    pub fn rest(&mut self, now: Micros, poll: &Poll) {
        self.rests_until = Some(now + ACCEPT_RETRY);
        self.watch(poll, false);
    }

    /// Accepts again if it rested long enough.
    pub fn wake(&mut self, now: Micros, poll: &Poll) {
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
            self.save();
            self.watch(poll, true);
        }
    }

    fn watch(&self, poll: &Poll, readable: bool) {
        for (index, socket) in self.sockets.iter().enumerate() {
            // It is open and was added: this cannot fail but for memory, and then the next rest tries again.
            let _ = poll.watch(socket.as_fd(), LISTENER_TOKEN + index as u64, readable, false);
        }
    }

    pub fn addresses(&self) -> impl Iterator<Item = io::Result<std::net::SocketAddr>> + '_ {
        self.sockets.iter().map(TcpListener::local_addr)
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Streams by address.
#[derive(Default)]
pub(crate) struct Addresses {
    counts: HashMap<u64, u32>,
}

impl Addresses {
    /// Counts one stream more of an address; `None`: it has `max` already. 0: no limit, and nothing is counted.
    pub fn take(&mut self, from: Addr, max: u32) -> Option<u64> {
        if max == 0 {
            return Some(0);
        }
        let key = key(from);
        let count = self.counts.entry(key).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(key)
    }

    pub fn give(&mut self, key: u64) {
        if let std::collections::hash_map::Entry::Occupied(mut entry) = self.counts.entry(key) {
            match entry.get() {
                0 | 1 => {
                    entry.remove();
                }
                count => *entry.get_mut() = count - 1,
            }
        }
    }
}

/// A whole address of IPv4, a /64 of IPv6: one customer's least.
fn key(from: Addr) -> u64 {
    let (high, low) = from.ip.split_at(8);
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    match number(high) {
        0 => number(low),
        high => high,
    }
}
