//! Messages of users that no device has, for Python.

use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::Mutex;

use muster_presence::{undelivered, Outcome, Undelivered as Letter};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Sender, number, user, outcome and data of a message.
type Taken<'py> = (u64, u64, u64, &'static str, Bound<'py, PyBytes>);

/// The queue between an engine and what hands them on.
#[pyclass(module = "muster_server._engines", frozen)]
pub struct Undelivered {
    begin: SyncSender<Letter>,
    /// Only Python takes from it: one thread.
    end: Mutex<Receiver<Letter>>,
}

impl Undelivered {
    /// Where an engine puts them.
    pub fn begin(&self) -> SyncSender<Letter> {
        self.begin.clone()
    }
}

#[pymethods]
impl Undelivered {
    #[new]
    fn new() -> Self {
        let (begin, end) = undelivered();
        Undelivered {
            begin,
            end: Mutex::new(end),
        }
    }

    /// Takes some, the oldest first.
    fn take<'py>(&self, py: Python<'py>, most: usize) -> Vec<Taken<'py>> {
        let Ok(end) = self.end.lock() else { return Vec::new() };
        let taken = |letter: Letter| {
            let outcome = match letter.outcome {
                Outcome::Unknown => "unknown",
                Outcome::Expired => "expired",
                Outcome::NotOnline | Outcome::Delivered => "not_online",
            };
            let data = PyBytes::new(py, &letter.data);
            (letter.sender, letter.number, letter.user, outcome, data)
        };
        end.try_iter().take(most).map(taken).collect()
    }
}
