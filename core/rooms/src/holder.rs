//! A user as the holder of something that is limited, or one session where many share a user.
//!
//! Owns: [`Holder`]. Must not know: the kind of limit.

use crate::command::SHARED_USER;

/// Whose share is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Holder {
    User(u64),
    Session(u64),
}

impl Holder {
    /// The holder of what a session of this user takes.
    pub fn of(user: u64, session: u64) -> Self {
        match user {
            SHARED_USER => Holder::Session(session),
            user => Holder::User(user),
        }
    }
}
