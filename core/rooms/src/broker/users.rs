//! Each user's share of a broker: publisher entries, and bytes held behind a missing message.
//!
//! Owns the counts and their bounds. Knows no publisher and no message.

use std::collections::HashMap;

use muster_transport::KeyedState;

use super::USER_PUBLICATIONS_MAX;

/// Maximum bytes held for all publishers: 85 publishers with [`HELD_BYTES_MAX`](crate::limits::HELD_BYTES_MAX) each,
/// or half a second at 1 Gbit/s.
pub const HELD_MAX: usize = 64 << 20;
/// Maximum bytes held or remembered: even if publishers leave holes, orderly ones are only limited by the held bytes.
const REMEMBERED_MAX: usize = 4 * HELD_MAX;
/// Maximum bytes held for one user: a user that leaves holes endlessly leaves most of the memory to others.
pub const USER_HELD_MAX: usize = HELD_MAX / 4;

#[derive(Default)]
struct User {
    publications: u32,
    held: usize,
}

/// All users that publish.
pub struct Users {
    by_id: HashMap<u64, User, KeyedState>,
    held: usize,
}

impl Users {
    pub fn new(hash: KeyedState) -> Self {
        Users {
            by_id: HashMap::with_hasher(hash),
            held: 0,
        }
    }

    /// Total bytes held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Adds a publisher of a user. `false`: there are too many.
    pub fn enter(&mut self, user: u64) -> bool {
        let user = self.by_id.entry(user).or_default();
        let enters = (user.publications as usize) < USER_PUBLICATIONS_MAX;
        user.publications += u32::from(enters);
        enters
    }

    /// Removes a publisher of a user; nothing may be held for it anymore.
    pub fn leave(&mut self, id: u64) {
        if let Some(user) = self.by_id.get_mut(&id) {
            user.publications -= 1;
            if user.publications == 0 {
                self.by_id.remove(&id);
            }
        }
    }

    /// Remembers this many more bytes for a user, even if no more can be held. `false`: beyond its share.
    pub fn remember(&mut self, user: u64, bytes: usize) -> bool {
        let Some(user) = self.by_id.get_mut(&user) else {
            return false;
        };
        let may = user.held + bytes <= USER_HELD_MAX && self.held + bytes <= REMEMBERED_MAX;
        if may {
            user.held += bytes;
            self.held += bytes;
        }
        may
    }

    /// Holds this many more bytes for a user. `false`: beyond its share.
    pub fn hold(&mut self, user: u64, bytes: usize) -> bool {
        let Some(user) = self.by_id.get_mut(&user) else {
            return false;
        };
        if user.held + bytes > USER_HELD_MAX || self.held + bytes > HELD_MAX {
            return false;
        }
        user.held += bytes;
        self.held += bytes;
        true
    }

    /// Releases this many held bytes.
    pub fn release(&mut self, user: u64, bytes: usize) {
        if let Some(user) = self.by_id.get_mut(&user) {
            user.held -= bytes;
            self.held -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_a_full_share_leaves_the_others_theirs() {
        let mut users = Users::new(KeyedState::new(1, 2));
        (1..=5).for_each(|user| assert!(users.enter(user)));
        assert!(users.hold(1, USER_HELD_MAX));
        assert!(!users.hold(1, 1));
        (2..=4).for_each(|user| assert!(users.hold(user, USER_HELD_MAX)));
        assert!(!users.hold(5, 1), "all is taken");
        users.release(1, 1);
        assert!(users.hold(5, 1) && !users.hold(1, 1));
        assert_eq!(users.held(), HELD_MAX);
    }
}
