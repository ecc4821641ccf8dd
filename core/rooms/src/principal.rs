//! Whom a limit counts: a user, or one session of the shared user.
//!
//! Owns: [`Principal`]. Must not know: the kind of limit.

use crate::command::SHARED_USER;

/// A holder of limits: a user with any number of sessions, or one session of the shared user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Principal {
    User(u64),
    Session(u64),
}

impl Principal {
    /// The principal of a session of this user.
    pub fn of(user: u64, session: u64) -> Self {
        match user {
            SHARED_USER => Principal::Session(session),
            user => Principal::User(user),
        }
    }
}
