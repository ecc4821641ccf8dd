//! A durable log of records for one owner at a time: preallocated segments, one sync per group, checksums, fencing.
//!
//! - What [`Log::append`] has answered survives kill -9 and loss of power, in order, once.
//! - What it has not answered may be there after a crash or not: records carry ids of their own where that matters.
//! - A group that a crash tore is cut at the next opening. Damage of anything that was durable is told ([`Corruption`]) and never passed over; only damage
//!   of the very last group before a crash can't be told from a torn one.
//! - After a failed write or sync the log refuses; it is never tried again and answered.
//! - What was acknowledged is kept beside the segments: a tail that was cut off later is told, and no crash is taken for that.
//! - A full disk is told before anything is written; the log goes on when there is room.
//! - [`check`] reads a damaged log to its end, and says what is lost.
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
//!     // apply it, answer its sender
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
//! journal.trim(2)?; // whole segments go; their files are used again
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start from [`Journal`], [`Group`] and [`Reader`]; [`Committer`] is for event loops. Tests with faults put their own [`Storage`] below [`Log`].
#![forbid(unsafe_code)]

mod check;
mod committer;
mod directory;
mod error;
mod format;
mod log;
pub mod planted;
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
