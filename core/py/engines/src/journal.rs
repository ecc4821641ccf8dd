//! The durable log of records in a folder, for systems whose machines are not in Rust or whose log may be elsewhere too.

use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;

use muster_journal::{
    AppendError, Committer, Group, Journal as Opened, JournalReader, OpenError, Options, Owner, ReadError,
    GROUP_BYTES_MAX,
};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Bytes of groups that one call of `read` puts together: four chunks of the reader.
const READ_BYTES: usize = 1 << 20;

/// First offset, the one behind the last, and the kind and text of an error.
type Done = (u64, u64, Option<(&'static str, String)>);

/// A journal in a thread of its own. `fileno` is readable when `take` has something.
#[pyclass(module = "muster_server._engines", frozen)]
pub struct Journal {
    committer: Mutex<Option<Committer>>,
    /// The last reader: reading goes on where it ended.
    reader: Mutex<Option<JournalReader>>,
    spare: Mutex<Vec<Group>>,
}

#[pymethods]
impl Journal {
    #[new]
    #[pyo3(signature = (*, folder, segment_bytes, epoch = None, begin = 0, after = 0))]
    fn new(
        py: Python<'_>,
        folder: &str,
        segment_bytes: u64,
        epoch: Option<u64>,
        begin: u64,
        after: u64,
    ) -> PyResult<Journal> {
        if segment_bytes < 2 * GROUP_BYTES_MAX as u64 {
            let least = 2 * GROUP_BYTES_MAX;
            return Err(PyValueError::new_err(format!("segment_bytes is below {least}")));
        }
        let owner = epoch.map_or(Owner::Sole, Owner::Epoch);
        let committer = py.detach(|| {
            let options = Options {
                segment_bytes,
                owner,
                begin,
                after,
            };
            let journal = Opened::open(folder, options).map_err(|error| not_opened(&error))?;
            Committer::new(journal).map_err(|error| refused("failed", &error))
        })?;
        Ok(Journal {
            committer: Mutex::new(Some(committer)),
            reader: Mutex::new(None),
            spare: Mutex::new(Vec::new()),
        })
    }

    fn fileno(&self) -> PyResult<i32> {
        self.with(|committer| Ok(committer.as_fd().as_raw_fd()))
    }

    #[getter]
    fn epoch(&self) -> PyResult<u64> {
        self.with(|committer| Ok(committer.epoch()))
    }

    #[getter]
    fn start(&self) -> PyResult<u64> {
        self.with(|committer| Ok(committer.start()))
    }

    #[getter]
    fn end(&self) -> PyResult<u64> {
        self.with(|committer| Ok(committer.end()))
    }

    /// Appends a group: each record behind its length.
    fn append(&self, payload: &[u8]) -> PyResult<()> {
        let mut group = self.spare().pop().unwrap_or_default();
        group.clear();
        let mut rest = payload;
        while !rest.is_empty() {
            let record = rest
                .split_first_chunk::<4>()
                .and_then(|(len, after)| after.split_at_checked(u32::from_le_bytes(*len) as usize));
            let (record, after) = record.ok_or_else(|| PyValueError::new_err("payload ends within a record"))?;
            group
                .push(record)
                .map_err(|error| PyValueError::new_err(error.to_string()))?;
            rest = after;
        }
        self.with(|committer| {
            committer.append(group);
            Ok(())
        })
    }

    /// The groups that are done since the last call, in the order of their appending.
    fn take(&self) -> PyResult<Vec<Done>> {
        let mut done = Vec::new();
        while let Some(appended) = self.with(|committer| Ok(committer.poll()))? {
            done.push(match appended.result {
                Ok(offsets) => (offsets.start, offsets.end, None),
                Err(error) => (0, 0, Some((kind_of(&error), error.to_string()))),
            });
            self.spare().push(appended.group);
        }
        Ok(done)
    }

    /// First offset, number and bytes of the records from `offset` on: one group or some. None are there at the log's end.
    fn read<'py>(&self, py: Python<'py>, offset: u64) -> PyResult<(u64, u32, Bound<'py, PyBytes>)> {
        let mut payload = Vec::new();
        let count = py.detach(|| {
            let mut kept = self.reader.lock().expect("no panic holds this lock");
            let mut reader = match kept.take().filter(|reader| reader.offset() == offset) {
                Some(reader) => reader,
                None => self.with(|committer| committer.reader(offset).map_err(|error| not_read(&error)))?,
            };
            let mut count = 0;
            while payload.len() < READ_BYTES {
                let Some(records) = reader.next_group().map_err(|error| not_read(&error))? else {
                    break;
                };
                for (_, record) in records {
                    payload.extend_from_slice(&(record.len() as u32).to_le_bytes());
                    payload.extend_from_slice(record);
                    count += 1;
                }
            }
            *kept = Some(reader);
            Ok::<u32, PyErr>(count)
        })?;
        Ok((offset, count, PyBytes::new(py, &payload)))
    }

    /// Drops the segments below `offset`.
    fn trim(&self, offset: u64) -> PyResult<()> {
        self.with(|committer| {
            committer.trim(offset);
            Ok(())
        })
    }

    /// Waits for the groups under way and ends the log cleanly.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let committer = self.committer.lock().expect("no panic holds this lock").take();
        match py.detach(|| committer.map(Committer::close)) {
            // A log that refuses has told that already.
            None | Some(Ok(()) | Err(AppendError::Refused | AppendError::Fenced { .. })) => Ok(()),
            Some(Err(error)) => Err(refused(kind_of(&error), &error)),
        }
    }
}

impl Journal {
    fn with<T>(&self, work: impl FnOnce(&Committer) -> PyResult<T>) -> PyResult<T> {
        let committer = self.committer.lock().expect("no panic holds this lock");
        work(
            committer
                .as_ref()
                .ok_or_else(|| PyRuntimeError::new_err("the log is closed"))?,
        )
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Group>> {
        self.spare.lock().expect("no panic holds this lock")
    }
}

/// A place of a file that is damaged: file, byte, text, and the first record lost and the one behind the last.
type Fault = (String, u64, String, u64, u64);

/// Reads a log that may be damaged. Offset of its first record, the one behind the last, what is known to have been acknowledged, faults. Raises `OSError`.
#[pyfunction]
pub fn check_log(py: Python<'_>, folder: &str) -> PyResult<(u64, u64, Option<u64>, Vec<Fault>)> {
    let found = py
        .detach(|| muster_journal::check(folder, |_| {}))
        .map_err(|error| refused("failed", &error))?;
    let fault = |fault: muster_journal::Fault| (fault.file, fault.at, fault.text, fault.lost.start, fault.lost.end);
    let faults = found.faults.into_iter().map(fault).collect();
    Ok((found.records.start, found.records.end, found.acked, faults))
}

fn refused(kind: &'static str, error: &impl Display) -> PyErr {
    PyOSError::new_err((kind, error.to_string()))
}

fn kind_of(error: &AppendError) -> &'static str {
    match error {
        AppendError::Fenced { .. } => "fenced",
        AppendError::DiskFull { .. } => "full",
        AppendError::TooLarge { .. } => "too_large",
        AppendError::Failed(_) => "failed",
        AppendError::Refused => "refused",
    }
}

fn not_opened(error: &OpenError) -> PyErr {
    let kind = match error {
        OpenError::Locked => "locked",
        OpenError::Fenced { .. } => "fenced",
        OpenError::Corrupt(_) => "damaged",
        OpenError::DiskFull { .. } => "full",
        OpenError::SegmentTooSmall(..) | OpenError::Io(_) => "failed",
    };
    refused(kind, error)
}

fn not_read(error: &ReadError) -> PyErr {
    let kind = match error {
        ReadError::Trimmed { .. } => "trimmed",
        ReadError::Beyond { .. } => "beyond",
        ReadError::Corrupt(_) => "damaged",
        ReadError::Io(_) => "failed",
    };
    refused(kind, error)
}
