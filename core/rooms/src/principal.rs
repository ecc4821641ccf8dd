//! A user whom a limit counts, or one session where many share a user.
//!
//! Owns: [`Principal`]. Must not know: the kind of limit.

use crate::command::SHARED_USER;

/// Has limits of its own, with however many sessions a user has.
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
