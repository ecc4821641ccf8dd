//! Waits within a turn for what several descriptors bring next: by one epoll, which stands for all of them.
//!
//! Owns: [`Lingering`]. Must not know: what is behind a descriptor.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use muster_driver::{Linger, LINGER_WAIT};
use muster_transport::Micros;
use muster_udp::{monotonic_now, Poll, Timer};
use pyo3::prelude::*;

/// Descriptors that one of these watches: each has a bit.
pub const WATCHED_MAX: usize = u64::BITS as usize;
const TIMER_TOKEN: u64 = WATCHED_MAX as u64;

/// A single descriptor for several, each with a number, and waits for them while turns follow each other closely.
pub struct Lingering {
    poll: Poll,
    /// Ends a wait; whether it is set.
    timer: Timer,
    armed: bool,
    linger: Linger,
    /// How long a turn may linger.
    most: Micros,
}

impl Lingering {
    pub fn new() -> PyResult<Lingering> {
        let (poll, timer) = (Poll::new()?, Timer::new()?);
        poll.add(timer.as_fd(), TIMER_TOKEN)?;
        Ok(Lingering {
            poll,
            timer,
            armed: false,
            linger: Linger::default(),
            most: 0,
        })
    }

    /// Watches a descriptor under this number, which is below [`WATCHED_MAX`], until it is closed.
    pub fn add(&self, fd: BorrowedFd<'_>, number: usize) -> PyResult<()> {
        assert!(number < WATCHED_MAX, "each number has a bit");
        Ok(self.poll.add(fd, number as u64)?)
    }

    /// Readable whenever one of them is.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// From now on a turn lingers for at most `most`.
    pub fn set(&mut self, most: Micros) {
        self.most = most;
    }

    /// A turn begins.
    pub fn begin(&mut self) {
        self.linger.begin(monotonic_now(), self.most);
    }

    /// The descriptors that are readable now, a bit for each.
    pub fn due(&mut self) -> u64 {
        self.readable(Duration::ZERO)
    }

    /// Waits until one is readable. Returns the bits of all that are; 0: the turn is to linger no more.
    pub fn wait(&mut self) -> u64 {
        while let Some(until) = self.linger.until(monotonic_now()) {
            if !self.armed {
                self.timer.set(until);
                self.armed = true;
            }
            let due = self.readable(LINGER_WAIT);
            self.linger.waited(due != 0);
            if due != 0 {
                return due;
            }
            self.disarm();
        }
        0
    }

    /// The turn has ended.
    pub fn end(&mut self) {
        self.disarm();
        self.linger.end(monotonic_now());
    }

    fn readable(&mut self, timeout: Duration) -> u64 {
        let ready = self.poll.wait(timeout);
        let tokens = (0..ready).map(|index| self.poll.ready(index).token);
        tokens
            .filter(|token| *token != TIMER_TOKEN)
            .fold(0, |found, token| found | 1 << token)
    }

    fn disarm(&mut self) {
        if self.armed {
            self.timer.set(Micros::MAX);
            self.armed = false;
        }
    }
}
