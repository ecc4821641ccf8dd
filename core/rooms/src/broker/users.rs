//! Each user's share of a broker: places for publishers, and bytes held behind a missing message.
//!
//! Owns the counts and their bounds. Knows no publisher and no message.

use std::collections::HashMap;

use muster_transport::KeyedState;

use super::USER_PUBLICATIONS_MAX;

/// Bytes held for all publishers: 85 publishers with [`HELD_BYTES_MAX`](crate::limits::HELD_BYTES_MAX) each, or half a
/// second at 1 Gbit/s.
pub const HELD_MAX: usize = 64 << 20;
/// The same plus what is remembered: four publishers that leave holes do not delay orderly ones beyond the held bytes.
const REMEMBERED_MAX: usize = 4 * HELD_MAX;
/// The part of these for one user: a user that leaves holes endlessly leaves most of it to others.
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

    /// Bytes held in all.
    pub fn held(&self) -> usize {
        self.held
    }

    /// One more publisher of a user. `false`: there are too many.
    pub fn enter(&mut self, user: u64) -> bool {
        let user = self.by_id.entry(user).or_default();
        let enters = (user.publications as usize) < USER_PUBLICATIONS_MAX;
        user.publications += u32::from(enters);
        enters
    }

    /// A publisher of a user is no more; nothing is held for it.
    pub fn leave(&mut self, id: u64) {
        if let Some(user) = self.by_id.get_mut(&id) {
            user.publications -= 1;
            if user.publications == 0 {
                self.by_id.remove(&id);
            }
        }
    }

    /// Remembers this many bytes more for a user, even if no more is held. `false`: beyond its share.
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

    /// Holds this many bytes more for a user. `false`: beyond its share.
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

    /// This many bytes are no longer held.
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
    fn a_user_that_has_all_its_part_held_leaves_the_others_theirs() {
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
