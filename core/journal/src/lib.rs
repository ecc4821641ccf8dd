//! A durable log of records for one owner at a time: preallocated segments, one sync per group, checksums, fencing.
//!
//! - Records for which [`Log::append`] has returned survive kill -9 and power loss, in order, once.
//! - Other records may be present after a crash or not: give records ids of their own if that matters.
//! - The next opening cuts a group that a crash tore. Damage of durable bytes is reported ([`Corruption`]) and never
//!   skipped; only damage of the very last group before a crash can't be told from a torn one.
//! - After a failed write or sync the log refuses all appends; a failed append is never retried and acknowledged.
//! - The acknowledged offset is stored besides the segments: a tail that was cut off later is reported, not taken for a
//!   crash.
//! - A full disk is reported before anything is written; the log continues when there is space.
//! - [`check`] reads a damaged log to its end, and reports what is lost.
//!
//! ```
//! use muster_journal::{Group, Journal, Options};
//!
//! let folder = tempfile::tempdir()?;
//! let options = Options { segment_bytes: 1 << 20, ..Options::default() };
//! let mut journal = Journal::open(folder.path(), options)?;
//! let mut group = Group::new();
//! group.push(b"first")?;
//! group.push(b"second")?;
//! assert_eq!(journal.append(&mut group)?, 0..2); // durable now
//! for (offset, record) in group.records(0) {
//!     // apply it, reply to its sender
//! #   let _ = (offset, record);
//! }
//! group.clear();
//! journal.close()?;
//!
//! let mut journal = Journal::open(folder.path(), options)?;
//! let mut reader = journal.reader(1)?; // may go to another thread
//! let mut read = Vec::new();
//! while let Some(records) = reader.next_group()? {
//!     read.extend(records.map(|(offset, record)| (offset, record.to_vec())));
//! }
//! assert_eq!(read, [(1, b"second".to_vec())]);
//! journal.trim(2)?; // removes whole segments, whose files are reused
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start from [`Journal`], [`Group`] and [`Reader`]; [`Committer`] is for event loops. Tests with faults use their own [`Storage`] for [`Log`].
#![forbid(unsafe_code)]

mod check;
mod committer;
mod directory;
mod error;
mod format;
mod log;
mod reader;
mod shared;
mod storage;

pub use check::{check, Checked, Fault};
pub use committer::{Appended, Committer};
pub use directory::{Directory, Options, Owner};
pub use error::{AppendError, Corruption, OpenError, ReadError};
pub use format::{Group, PushError, Records, SegmentName, GROUP_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MAX};
pub use log::{Log, SEGMENT_BYTES_MIN};
pub use reader::Reader;
pub use storage::{SegmentFile, Storage};

/// The log in a folder.
pub type Journal = Log<Directory>;

/// A reader of a [`Journal`].
pub type JournalReader = Reader<std::fs::File>;
