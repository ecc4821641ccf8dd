//! The users of a gateway or a proxy: an account each, with its sessions, its memberships and its publish rate.
//!
//! Owns these accounts and their bounds, so that a user gets no more with many sessions than with one. The shared
//! token's user is an exception: each of its sessions has an account of its own. Knows no session, room or message.

use std::collections::{HashMap, VecDeque};

use muster_transport::{Bucket, KeyedState, Micros};

use crate::command::SHARED_USER;
use crate::limits;

/// The limits of a user at one gateway or proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub sessions: u32,
    /// Memberships in rooms over all its sessions; a room counts once for each session.
    pub places: u32,
    /// Messages, and bytes of publish frames, per second; the burst is one second's worth. 0: unlimited.
    pub messages: u32,
    pub bytes: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            sessions: limits::USER_SESSIONS_MAX,
            places: limits::USER_PLACES_MAX,
            messages: limits::USER_MESSAGES_A_SECOND,
            bytes: limits::USER_BYTES_A_SECOND,
        }
    }
}

/// What a user has: 24 B, and 16 B for its index entry.
struct Account {
    user: u64,
    sessions: u32,
    places: u32,
    /// Its last session has ended, so it is in [`Accounts::left`].
    left: bool,
}

/// What a user publishes: 32 B. A gateway has none of these.
pub struct Rates {
    messages: Bucket,
    bytes: Bucket,
}

impl Rates {
    fn new(bounds: &Bounds) -> Self {
        let [messages, bytes] = [bounds.messages, bounds.bytes].map(|rate| Bucket::new(rate, rate));
        Rates { messages, bytes }
    }

    fn owe_nothing(&self, now: Micros) -> bool {
        self.messages.is_full(now) && self.bytes.is_full(now)
    }
}

/// An account's number, which its sessions store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccountId(u32);

/// One account for each user with a session, and for each that left less than a second ago: at most as many as
/// sessions, plus those that leave within a second.
pub struct Accounts {
    bounds: Bounds,
    by_user: HashMap<u64, u32, KeyedState>,
    all: Vec<Account>,
    /// By account number, up to the highest that has published.
    rates: Vec<Rates>,
    free: Vec<u32>,
    /// Accounts whose last session has ended, oldest first. They are kept until their debts are paid, so that a
    /// returning user still has its debt.
    left: VecDeque<u32>,
}

impl Accounts {
    pub fn new(hash: KeyedState) -> Self {
        Accounts {
            bounds: Bounds::default(),
            by_user: HashMap::with_hasher(hash),
            all: Vec::new(),
            rates: Vec::new(),
            free: Vec::new(),
            left: VecDeque::new(),
        }
    }

    /// Sets new bounds; what users have beyond them stays.
    pub fn set(&mut self, bounds: Bounds) {
        self.bounds = bounds;
        for rates in &mut self.rates {
            rates.messages.set_rate(bounds.messages, bounds.messages);
            rates.bytes.set_rate(bounds.bytes, bounds.bytes);
        }
    }

    /// Whether a user may have one more session.
    pub fn admits(&self, user: u64) -> bool {
        let account = self.by_user.get(&user).and_then(|at| self.all.get(*at as usize));
        account.is_none_or(|account| account.sessions < self.bounds.sessions)
    }

    /// Adds a session of a user.
    pub fn enter(&mut self, now: Micros, user: u64) -> AccountId {
        self.forget(now);
        let known = self.by_user.get(&user).copied();
        let at = known.unwrap_or_else(|| self.open(user));
        self.all[at as usize].sessions += 1;
        AccountId(at)
    }

    fn open(&mut self, user: u64) -> u32 {
        let account = Account {
            user,
            sessions: 0,
            places: 0,
            left: false,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = account;
                if let Some(rates) = self.rates.get_mut(at as usize) {
                    *rates = Rates::new(&self.bounds);
                }
                at
            }
            None => {
                // Grows by an eighth: doubling would leave half of a large table empty.
                if self.all.len() == self.all.capacity() {
                    self.all.reserve_exact(64.max(self.all.len() / 8));
                }
                self.all.push(account);
                self.all.len() as u32 - 1
            }
        };
        if user != SHARED_USER {
            self.by_user.insert(user, at);
        }
        at
    }

    /// Removes a session of a user, and this many of its memberships.
    pub fn leave(&mut self, now: Micros, id: AccountId, places: usize) {
        self.part(id, places);
        let account = &mut self.all[id.0 as usize];
        account.sessions -= 1;
        if account.sessions == 0 && !std::mem::replace(&mut account.left, true) {
            self.left.push_back(id.0);
        }
        self.forget(now);
    }

    /// Frees accounts without sessions or debts: at most two per call, which keeps pace with sessions that come and
    /// go.
    fn forget(&mut self, now: Micros) {
        for _ in 0..2 {
            let Some(at) = self.left.front().copied() else { return };
            let account = &mut self.all[at as usize];
            let back = account.sessions > 0;
            let owes = self.rates.get(at as usize).is_some_and(|rates| !rates.owe_nothing(now));
            if !back && owes {
                return;
            }
            self.left.pop_front();
            account.left = false;
            if !back {
                self.by_user.remove(&account.user);
                self.free.push(at);
            }
        }
    }

    /// Whether the user may join one more room.
    pub fn has_place(&self, id: AccountId) -> bool {
        self.all[id.0 as usize].places < self.bounds.places
    }

    /// Adds a membership in a room.
    pub fn join(&mut self, id: AccountId) {
        self.all[id.0 as usize].places += 1;
    }

    /// Removes memberships in rooms.
    pub fn part(&mut self, id: AccountId, places: usize) {
        self.all[id.0 as usize].places -= places as u32;
    }

    /// The user's memberships in rooms.
    pub fn places(&self, id: AccountId) -> usize {
        self.all[id.0 as usize].places as usize
    }

    /// Charges a frame of messages; or returns how long the user must wait, and charges nothing.
    pub fn publish(&mut self, now: Micros, id: AccountId, messages: u32, bytes: usize) -> Result<(), Micros> {
        let at = id.0 as usize;
        while self.rates.len() <= at {
            self.rates.push(Rates::new(&self.bounds));
        }
        let rates = &mut self.rates[at];
        let (of_messages, of_bytes) = (self.bounds.messages > 0, self.bounds.bytes > 0);
        let by_messages = if of_messages { rates.messages.wait(now) } else { 0 };
        let by_bytes = if of_bytes { rates.bytes.wait(now) } else { 0 };
        let wait = by_messages.max(by_bytes);
        if wait > 0 {
            return Err(wait);
        }
        if of_messages {
            rates.messages.owe(now, messages);
        }
        if of_bytes {
            rates.bytes.owe(now, bytes as u32);
        }
        Ok(())
    }

    /// The rates of an account, to prefetch them.
    pub fn rates(&self, id: AccountId) -> Option<&Rates> {
        self.rates.get(id.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;
    const ANN: u64 = 7;

    fn accounts() -> Accounts {
        let mut accounts = Accounts::new(KeyedState::new(1, 2));
        accounts.set(Bounds {
            sessions: 3,
            places: 4,
            messages: 100,
            bytes: 10_000,
        });
        accounts
    }

    /// How many frames are accepted in a second, if one message of 50 bytes comes each millisecond.
    fn taken(accounts: &mut Accounts, from: Micros, ids: &[AccountId]) -> usize {
        let comes = (0..1_000).map(|step| (from + step * 1_000, ids[step as usize % ids.len()]));
        comes
            .filter(|(now, id)| accounts.publish(*now, *id, 1, 50).is_ok())
            .count()
    }

    #[test]
    fn sessions_per_user_are_limited_except_for_the_shared_user() {
        let mut accounts = accounts();
        let ids: Vec<AccountId> = (0..3).map(|_| accounts.enter(0, ANN)).collect();
        assert!(!accounts.admits(ANN) && accounts.admits(ANN + 1));
        accounts.leave(0, ids[0], 0);
        assert!(accounts.admits(ANN));
        for _ in 0..10 {
            accounts.enter(0, SHARED_USER);
        }
        assert!(accounts.admits(SHARED_USER));
    }

    #[test]
    fn all_sessions_of_a_user_share_its_places_and_a_session_that_ends_gives_its_own_back() {
        let mut accounts = accounts();
        let ids = [accounts.enter(0, ANN), accounts.enter(0, ANN)];
        let other = accounts.enter(0, ANN + 1);
        let joins = |accounts: &mut Accounts, id| {
            let may = accounts.has_place(id);
            if may {
                accounts.join(id);
            }
            may
        };
        assert_eq!((0..6).filter(|at| joins(&mut accounts, ids[at % 2])).count(), 4);
        assert!(joins(&mut accounts, other));
        accounts.leave(0, ids[0], 2);
        assert_eq!((0..6).filter(|_| joins(&mut accounts, ids[1])).count(), 2);
    }

    #[test]
    fn a_user_publishes_at_its_rate_with_any_number_of_sessions() {
        for sessions in 1..=3 {
            let mut accounts = accounts();
            let ids: Vec<AccountId> = (0..sessions).map(|_| accounts.enter(0, ANN)).collect();
            let first = taken(&mut accounts, 0, &ids);
            assert!((199..=202).contains(&first), "the burst and the rate: {first}");
            let second = taken(&mut accounts, SECOND, &ids);
            assert!((99..=101).contains(&second), "{second}");
        }
    }

    #[test]
    fn bytes_have_a_rate_of_their_own_and_a_refusal_says_how_long_to_wait() {
        let mut accounts = accounts();
        let id = accounts.enter(0, ANN);
        assert_eq!(accounts.publish(0, id, 1, 12_000), Ok(()), "an excess becomes a debt");
        assert_eq!(accounts.publish(0, id, 1, 1), Err(200_100));
        assert_eq!(accounts.publish(200_100, id, 1, 1), Ok(()));
        accounts.set(Bounds {
            messages: 0,
            bytes: 0,
            ..Bounds::default()
        });
        assert_eq!(taken(&mut accounts, 0, &[id]), 1_000);
    }

    #[test]
    fn a_returning_user_keeps_its_debt_and_one_without_debt_is_forgotten() {
        let mut accounts = accounts();
        let id = accounts.enter(0, ANN);
        assert_eq!(accounts.publish(0, id, 150, 0), Ok(()));
        accounts.leave(0, id, 0);
        let again = accounts.enter(0, ANN);
        assert!(accounts.publish(0, again, 1, 0).is_err());
        accounts.leave(0, again, 0);
        for user in 0..1_000 {
            let id = accounts.enter(2 * SECOND, 100 + user);
            accounts.leave(2 * SECOND, id, 0);
        }
        assert!(accounts.all.len() <= 2 && accounts.by_user.len() <= 1);
    }
}
