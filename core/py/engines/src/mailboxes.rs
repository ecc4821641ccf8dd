//! What the engines of one process share: mailboxes between them, and one descriptor for all of theirs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use muster_driver::{Linger, LINGER_WAIT};
use muster_transport::Micros;
use muster_udp::{monotonic_now, Poll, Timer, MAILBOXES_MAX};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

/// The engines of one process. An engine takes part from its `join` until it is closed; its number is free once it has left.
#[pyclass(module = "muster_server._engines")]
pub struct Mailboxes {
    pub(crate) inner: muster_udp::Mailboxes,
    poll: Poll,
    /// Ends a wait of a round that lingers; whether it is set.
    timer: Timer,
    armed: bool,
    linger: Linger,
    linger_us: Micros,
    /// By their numbers here. A number may be free.
    engines: Vec<Option<Member>>,
}

/// An engine that takes part.
#[derive(Default)]
struct Member {
    /// Its bits in what waits.
    bits: u64,
    /// Its turns that came while a round lingered.
    lingered: Arc<AtomicU64>,
}

/// The timer's token; engines have their numbers.
const TIMER_TOKEN: u64 = MAILBOXES_MAX as u64;

impl Mailboxes {
    /// The number of a new engine with this descriptor, and the count of its turns that came while a round lingered. It has no
    /// mailbox yet.
    pub(crate) fn enter(&mut self, fd: BorrowedFd<'_>) -> PyResult<(usize, Arc<AtomicU64>)> {
        let free = self.engines.iter().position(Option::is_none);
        let number = free.unwrap_or(self.engines.len());
        if number == MAILBOXES_MAX {
            return Err(PyOverflowError::new_err(format!(
                "{MAILBOXES_MAX} engines are the most in one process"
            )));
        }
        self.poll.add(fd, number as u64)?;
        let member = Member::default();
        let lingered = member.lingered.clone();
        match free {
            Some(number) => self.engines[number] = Some(member),
            None => self.engines.push(Some(member)),
        }
        Ok((number, lingered))
    }

    /// Sets the bits of the mailboxes of an engine.
    pub(crate) fn set_bits(&mut self, number: usize, bits: u64) {
        if let Some(member) = &mut self.engines[number] {
            member.bits = bits;
        }
    }

    fn readable(&mut self, timeout: Duration) -> u64 {
        let ready = self.poll.wait(timeout);
        let tokens = (0..ready).map(|index| self.poll.ready(index).token);
        tokens
            .filter(|token| *token != TIMER_TOKEN)
            .fold(0, |found, token| found | 1 << token)
    }

    /// Waits within the time of the timer, which is set first unless it is. Returns who is due; 0: nobody came in that time.
    fn wait_until(&mut self, until: Micros) -> u64 {
        if !self.armed {
            self.timer.set(until);
            self.armed = true;
        }
        let due = self.readable(LINGER_WAIT);
        if due == 0 {
            self.disarm();
        }
        due
    }

    /// Counts the turns that come by lingering.
    fn count(&self, due: u64) {
        for (number, member) in self.engines.iter().enumerate() {
            if let Some(member) = member.as_ref().filter(|_| due & 1 << number != 0) {
                member.lingered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn disarm(&mut self) {
        if self.armed {
            self.timer.set(Micros::MAX);
            self.armed = false;
        }
    }
}

#[pymethods]
impl Mailboxes {
    #[new]
    fn new() -> PyResult<Self> {
        let (poll, timer) = (Poll::new()?, Timer::new()?);
        poll.add(timer.as_fd(), TIMER_TOKEN)?;
        Ok(Mailboxes {
            inner: muster_udp::Mailboxes::new(),
            poll,
            timer,
            armed: false,
            linger: Linger::default(),
            linger_us: 0,
            engines: Vec::new(),
        })
    }

    fn fd(&self) -> i32 {
        self.poll.as_fd().as_raw_fd()
    }

    fn mail(&self) -> u64 {
        let waiting = self.inner.waiting();
        if waiting == 0 {
            return 0;
        }
        let each = self.engines.iter().enumerate();
        each.filter(|(_, member)| member.as_ref().is_some_and(|member| member.bits & waiting != 0))
            .fold(0, |found, (number, _)| found | 1 << number)
    }

    fn leave(&mut self, number: usize) {
        if let Some(engine) = self.engines.get_mut(number) {
            *engine = None;
        }
    }

    fn linger(&mut self, us: u64) {
        self.linger_us = us;
    }

    fn begin(&mut self) -> u64 {
        self.linger.begin(monotonic_now(), self.linger_us);
        self.readable(Duration::ZERO)
    }

    fn wait(&mut self, py: Python<'_>) -> u64 {
        while let Some(until) = self.linger.until(monotonic_now()) {
            let due = py.detach(|| self.wait_until(until));
            self.linger.waited(due != 0);
            if due != 0 {
                self.count(due);
                return due;
            }
        }
        0
    }

    fn end(&mut self) {
        self.disarm();
        self.linger.end(monotonic_now());
    }
}
