//! What the engines of one process share: mailboxes between them, and one descriptor for all of theirs.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use muster_udp::MAILBOXES_MAX;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::lingering::{Lingering, WATCHED_MAX};

const _: () = assert!(MAILBOXES_MAX <= WATCHED_MAX);

/// The engines of one process. An engine takes part from its `join` until it is closed; its number is free once it has left.
#[pyclass(module = "muster_server._engines")]
pub struct Mailboxes {
    pub(crate) inner: muster_udp::Mailboxes,
    lingering: Lingering,
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
        self.lingering.add(fd, number)?;
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

    /// Counts the turns that come by lingering.
    fn count(&self, due: u64) {
        for (number, member) in self.engines.iter().enumerate() {
            if let Some(member) = member.as_ref().filter(|_| due & 1 << number != 0) {
                member.lingered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[pymethods]
impl Mailboxes {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Mailboxes {
            inner: muster_udp::Mailboxes::new(),
            lingering: Lingering::new()?,
            engines: Vec::new(),
        })
    }

    fn fd(&self) -> i32 {
        self.lingering.fd().as_raw_fd()
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
        self.lingering.set(us);
    }

    fn begin(&mut self) -> u64 {
        self.lingering.begin();
        self.lingering.due()
    }

    fn wait(&mut self, py: Python<'_>) -> u64 {
        let due = py.detach(|| self.lingering.wait());
        self.count(due);
        due
    }

    fn end(&mut self) {
        self.lingering.end();
    }
}
