//! How long a paced room waits for each user: as long as its slowest session goes on, and little longer where it takes a
//! trickle, so that nobody can hold a room at a crawl, with however many sessions.
//!
//! Owns the time that each user has used up. Knows no session and no ring.

use std::collections::BTreeMap;

use muster_transport::Micros;

use crate::principal::Principal;

/// A member lags if its next message is older than this.
pub const LAG: Micros = 1_000_000;
/// A member that takes fewer bytes a second than this trickles: at 1,000 bytes each it would be 64 messages.
pub const TRICKLE: u64 = 64 * 1_024;
/// A room waits for trickling sessions of one user for this long in sum.
pub const PATIENCE: Micros = 5_000_000;
/// A user regains one part in this many of the time in which no session of it trickles: all within 50 s.
const REGAINED: Micros = 10;
/// How often progress is judged: at the least rate, a step is six datagrams.
const STEP: Micros = 100_000;
/// A user whose sessions were not the slowest for this long did not lag meanwhile.
const APART: Micros = 1_000_000;
/// Users before those that have all their time again are looked for. A user is here for 50 s after a step of 100 ms in which
/// the room waited for it, so there are 500 at most of 32 B each, and those of the last search.
const USERS_SPARE: usize = 64;

struct Used {
    time: Micros,
    at: Micros,
    place: u64,
}

impl Used {
    fn left(&self, now: Micros) -> Micros {
        self.time.saturating_sub(now.saturating_sub(self.at) / REGAINED)
    }
}

#[derive(Default)]
pub struct Patience(BTreeMap<Principal, Used>);

impl Patience {
    /// Whether the room still waits for a lagging session of this user, which stands at `place` and is the slowest.
    /// `bytes`: those from one place on to another.
    pub fn lasts(&mut self, now: Micros, user: Principal, place: u64, bytes: impl Fn(u64, u64) -> usize) -> bool {
        if self.0.len() >= USERS_SPARE && !self.0.contains_key(&user) {
            self.0.retain(|_, used| used.left(now) > 0);
        }
        let used = self.0.entry(user).or_insert(Used {
            time: 0,
            at: now,
            place,
        });
        let since = now.saturating_sub(used.at);
        if since < STEP {
            return used.time < PATIENCE;
        }
        let least = TRICKLE * since / 1_000_000;
        let trickles = since <= APART && (bytes(used.place, place) as u64) < least;
        let time = if trickles { used.time + since } else { used.left(now) };
        *used = Used {
            time: time.min(PATIENCE),
            at: now,
            place,
        };
        time < PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Principal = Principal::User(7);

    /// How long a room waits for a session that takes this many messages of 1,024 bytes a second; `None`: for good.
    fn waits(patience: &mut Patience, from: Micros, user: Principal, rate: u64) -> Option<Micros> {
        let bytes = |before: u64, after: u64| after.saturating_sub(before) as usize * 1_024;
        (0..1_000)
            .map(|step| step * 20_000)
            .find(|time| !patience.lasts(from + time, user, 100 + rate * time / 1_000_000, bytes))
    }

    #[test]
    fn a_room_waits_for_a_session_that_goes_on_and_five_seconds_for_one_that_trickles() {
        assert_eq!(waits(&mut Patience::default(), 0, USER, 100), None);
        for rate in [0, 10, 50] {
            assert_eq!(waits(&mut Patience::default(), 0, USER, rate), Some(PATIENCE), "{rate}");
        }
    }

    #[test]
    fn a_user_gets_no_more_with_another_session_and_regains_it_slowly() {
        let mut patience = Patience::default();
        assert_eq!(waits(&mut patience, 0, USER, 1), Some(PATIENCE));
        assert_eq!(waits(&mut patience, PATIENCE + 1, USER, 1), Some(0), "another session");
        assert_eq!(waits(&mut patience, PATIENCE, Principal::User(8), 1), Some(PATIENCE));
        let again = waits(&mut patience, 3 * PATIENCE, USER, 1).expect("it is not waited for");
        assert!(again <= 3 * PATIENCE / REGAINED + 2 * STEP, "{again}");
        assert_eq!(waits(&mut patience, 40 * PATIENCE, USER, 1), Some(PATIENCE));
    }

    #[test]
    fn users_that_have_all_their_time_are_forgotten() {
        let mut patience = Patience::default();
        for user in 0..10_000 {
            for step in 0..2 {
                patience.lasts(user * 200_000 + step * STEP, Principal::User(user), 1, |_, _| 0);
            }
        }
        assert!(patience.0.len() <= 600, "{}", patience.0.len());
    }
}
