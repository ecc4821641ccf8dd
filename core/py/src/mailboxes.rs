//! What the engines of one process share: mailboxes between them, and one descriptor for all of theirs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use muster_udp::{Poll, MAILBOXES_MAX};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

/// The engines of one process. An engine takes part from its `join` until it is closed; its number is free once it has left.
#[pyclass(module = "muster._core")]
pub struct Mailboxes {
    pub(crate) inner: muster_udp::Mailboxes,
    poll: Poll,
    /// By the number of an engine here: its bits in what waits. A number without an engine has none.
    engines: Vec<Option<u64>>,
}

impl Mailboxes {
    /// The number of a new engine with this descriptor. It has no mailbox yet.
    pub(crate) fn enter(&mut self, fd: BorrowedFd<'_>) -> PyResult<usize> {
        let free = self.engines.iter().position(Option::is_none);
        let number = free.unwrap_or(self.engines.len());
        if number == MAILBOXES_MAX {
            return Err(PyOverflowError::new_err(format!(
                "{MAILBOXES_MAX} engines are the most in one process"
            )));
        }
        self.poll.add(fd, number as u64)?;
        match free {
            Some(number) => self.engines[number] = Some(0),
            None => self.engines.push(Some(0)),
        }
        Ok(number)
    }

    /// Sets the bits of the mailboxes of an engine.
    pub(crate) fn set_bits(&mut self, number: usize, bits: u64) {
        self.engines[number] = Some(bits);
    }

    fn readable(&mut self, timeout: Duration) -> u64 {
        let ready = self.poll.wait(timeout);
        (0..ready).fold(0, |found, index| found | 1 << self.poll.ready(index).token)
    }
}

#[pymethods]
impl Mailboxes {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Mailboxes {
            inner: muster_udp::Mailboxes::new(),
            poll: Poll::new()?,
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
        each.filter(|(_, bits)| bits.is_some_and(|bits| bits & waiting != 0))
            .fold(0, |found, (number, _)| found | 1 << number)
    }

    fn leave(&mut self, number: usize) {
        if let Some(engine) = self.engines.get_mut(number) {
            *engine = None;
        }
    }

    fn due(&mut self, py: Python<'_>, wait_ms: u64) -> u64 {
        match wait_ms {
            0 => self.readable(Duration::ZERO),
            wait => py.detach(|| self.readable(Duration::from_millis(wait))),
        }
    }
}
