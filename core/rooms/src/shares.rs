//! A bounded amount that many holders share: each may have at most as much as is left for others, so a small need
//! fits whatever one other takes. One alone gets half, two a third each, and many use it all.
//!
//! Owns each holder's amount. Must not know: the kind of amount.

use std::collections::HashMap;

use muster_transport::KeyedState;

/// A holder. Each item is charged to one user and one room.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    User(u64),
    Room(u64),
}

pub struct Shares {
    max: usize,
    used: usize,
    had: HashMap<Holder, usize, KeyedState>,
}

impl Shares {
    pub fn new(max: usize, hash: KeyedState) -> Self {
        let had = HashMap::with_hasher(hash);
        Shares { max, used: 0, had }
    }

    /// Whether these holders may have this much more: it is available, and each then has at most as much as is left.
    pub fn allow(&self, who: [Holder; 2], more: usize) -> bool {
        let had = |who| self.had.get(who).copied().unwrap_or(0);
        let left = self.max.checked_sub(self.used + more);
        left.is_some_and(|left| who.iter().all(|who| had(who) <= left))
    }

    pub fn take(&mut self, who: [Holder; 2], more: usize) {
        self.used += more;
        if more > 0 {
            who.iter().for_each(|who| *self.had.entry(*who).or_default() += more);
        }
    }

    pub fn give_back(&mut self, who: [Holder; 2], count: usize) {
        self.used -= count;
        for who in who {
            if let Some(had) = self.had.get_mut(&who) {
                *had -= count;
                if *had == 0 {
                    self.had.remove(&who);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> Shares {
        Shares::new(120, KeyedState::new(1, 2))
    }

    /// Each holder takes one at a time in turn until none gets any more; returns the amounts.
    fn taken(shares: &mut Shares, who: &[[Holder; 2]]) -> Vec<usize> {
        let mut had = vec![0; who.len()];
        loop {
            let before = had.clone();
            for (who, had) in who.iter().zip(&mut had) {
                if shares.allow(*who, 1) {
                    shares.take(*who, 1);
                    *had += 1;
                }
            }
            if had == before {
                return had;
            }
        }
    }

    #[test]
    fn one_gets_half_two_a_third_each_and_there_is_always_some_for_the_next() {
        let user = |user| [Holder::User(user), Holder::Room(100 + user)];
        assert_eq!(taken(&mut shares(), &[user(1)]), [60]);
        assert_eq!(taken(&mut shares(), &[1, 2].map(user)), [40, 40]);
        let mut shares = shares();
        assert_eq!(taken(&mut shares, &[1, 2, 3].map(user)), [30; 3]);
        assert!(shares.allow(user(4), 15));
        assert!(!shares.allow(user(4), 31));
    }

    #[test]
    fn a_room_has_a_share_like_a_user() {
        let mut shares = shares();
        let each: Vec<[Holder; 2]> = (0..100).map(|user| [Holder::User(user), Holder::Room(7)]).collect();
        assert_eq!(taken(&mut shares, &each).iter().sum::<usize>(), 60);
        assert!(shares.allow([Holder::User(1), Holder::Room(8)], 1));
    }

    #[test]
    fn many_holders_use_it_all_and_returned_amounts_are_available_again() {
        let mut shares = shares();
        let each: Vec<[Holder; 2]> = (0..130).map(|one| [Holder::User(one), Holder::Room(one)]).collect();
        let had = taken(&mut shares, &each);
        assert_eq!(had.iter().sum::<usize>(), 120);
        for (who, had) in each.iter().zip(had) {
            shares.give_back(*who, had);
        }
        assert!(shares.had.is_empty());
        assert!(shares.allow(each[0], 120), "all of it at once, where nobody has any");
    }
}
