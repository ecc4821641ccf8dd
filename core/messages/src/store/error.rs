//! The errors of the store, one enum per operation.

use std::io;

use muster_journal::AppendError;

use crate::schedule::Refusal;

/// Why a store can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Log(#[from] muster_journal::OpenError),
    #[error(transparent)]
    Read(#[from] muster_journal::ReadError),
    /// Durable bytes are damaged or missing. Nothing was changed.
    #[error("message store is damaged: {0}")]
    Damaged(String),
    #[error("message store failed: {0}")]
    Io(#[from] io::Error),
}

/// Why a message was not accepted or changed. The store is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// The message's state does not allow it.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// For some seconds after opening, the store may not know yet whether it has this message. Ask again.
    #[error("message store is still reading its index")]
    Rebuilding,
    /// The group is full, or contains something that this change needs. Commit, then ask again.
    #[error("group is full: commit first")]
    CommitFirst,
    #[error("body of {bytes} bytes is too long (limit {max})")]
    BodyTooLong { bytes: usize, max: usize },
    /// The disk is full. Existing messages still fire and change.
    #[error("disk is full")]
    DiskFull,
    /// An earlier failure left the store's state uncertain: open it again.
    #[error("message store is closed to changes after a failure")]
    Failed,
    #[error("message store failed: {0}")]
    Io(#[from] io::Error),
}

/// Why a group is not durable. Replies since the last commit do not hold.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The group is not in the store, and the store continues: repeat its changes when there is space.
    #[error("disk is full")]
    DiskFull,
    /// The group may be in the store or not. Open the store again to find out.
    #[error("message store failed: {0}")]
    Failed(#[source] AppendError),
    /// An earlier failure left the store's state uncertain: open it again.
    #[error("message store is closed to changes after a failure")]
    Refused,
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Self {
        Denied::Refused(refusal)
    }
}
