//! The errors of the store, one enum per operation.

use std::io;

use muster_journal::AppendError;

use crate::schedule::Refusal;

/// Why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Log(#[from] muster_journal::OpenError),
    #[error(transparent)]
    Read(#[from] muster_journal::ReadError),
    /// Bytes that were durable are damaged or missing. Nothing was changed.
    #[error("message store is damaged: {0}")]
    Damaged(String),
    #[error("message store failed: {0}")]
    Io(#[from] io::Error),
}

/// Why a message was not taken or changed. The store is as before.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// The message's state does not allow it.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// Some seconds after opening: it is not known yet whether the store has this message. Ask again.
    #[error("message store still reads its index")]
    Rebuilding,
    /// The group is full, or holds what this change needs. Commit, then ask again.
    #[error("group is full: commit first")]
    CommitFirst,
    #[error("body of {bytes} bytes is too long (at most {max})")]
    BodyTooLong { bytes: usize, max: usize },
    /// The disk is full. Messages that are there still fire and change.
    #[error("disk is full")]
    DiskFull,
    /// An earlier failure left the store in doubt: open it again.
    #[error("message store refuses changes since it failed")]
    Failed,
    #[error("message store failed: {0}")]
    Io(#[from] io::Error),
}

/// Why a group is not durable. What was answered since the last commit does not hold.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The group is not in the store, and the store goes on: ask for its changes again when there is room.
    #[error("disk is full")]
    DiskFull,
    /// The group may be in the store or not. Open it again to know.
    #[error("message store failed: {0}")]
    Failed(#[source] AppendError),
    /// An earlier failure left the store in doubt: open it again.
    #[error("message store refuses changes since it failed")]
    Refused,
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Denied::Refused(refusal)
    }
}
