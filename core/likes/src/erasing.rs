//! Erasing users: all likes, results of bit operations and entries in leaderboards, then the user's id.
//!
//! Owns the order of the steps. An erasure is a job of many records, so that no record stops the
//! node's loop for long, and a restart continues where the job was:
//!
//! 1. [`Record::Erase`] begins it. The user's changes are refused from here on.
//! 2. [`Record::EraseStep`], many times, goes through all slots: first of items, then of leaderboards.
//! 3. [`Record::Erased`] drops the user's id. The dense id stays without a user and is never given to another one, so a
//!    set of likers that is older than the erasure, in a row or a snapshot, can't become another user's likes.
//! 4. [`Record::ErasureDone`] follows when no snapshot and no segment of the log from before step 3 is left.
//!
//! Knows no file: the owner writes snapshots, and drops segments.

use crate::engine::{kind, Answer, ApplyError, Engine};
use crate::erasure::{Erasure, Phase};
use crate::limits::{ERASE_CHANGES_MAX, ERASE_SLOTS_MAX, ERASURES_MAX};
use crate::record::Record;
use std::collections::BTreeMap;

impl Engine {
    /// All erasures under way, and the last that ended, by job.
    pub fn erasures(&self) -> &BTreeMap<u64, Erasure> {
        &self.erasures.jobs
    }

    /// Whether a change of this user is refused now, because an erasure is under way.
    pub fn refuses(&self, user: u64) -> bool {
        self.is_erasing(user) || self.erasures.gone.iter().any(|&(_, gone)| gone == user)
    }

    /// As [`Engine::refuses`], of the member of a leaderboard: its name may be a user's number.
    pub fn refuses_member(&self, name: &[u8]) -> bool {
        let any = !self.erasures.users.is_empty() || !self.erasures.gone.is_empty();
        any && user_of(name).is_some_and(|user| self.refuses(user))
    }

    /// As [`Engine::refuses`], by what the log decides alone.
    pub(crate) fn is_erasing(&self, user: u64) -> bool {
        self.erasures.users.contains(&user)
    }

    pub(crate) fn is_erasing_member(&self, name: &[u8]) -> bool {
        !self.erasures.users.is_empty() && user_of(name).is_some_and(|user| self.is_erasing(user))
    }

    /// Users whose erasure is under way, by dense id.
    pub(crate) fn erasing(&self) -> impl Iterator<Item = u32> + '_ {
        self.erasures.users.iter().filter_map(|&user| self.users.find(user))
    }

    /// The length of a string that no user under way has determined: see [`blurred`].
    pub(crate) fn blurred_for_all(&self, bits: u128) -> u128 {
        let users = self.erasures.users.iter();
        users.fold(bits, |bits, &user| blurred(bits, user))
    }

    /// Applies a record of an erasure.
    pub(crate) fn apply_to_erasure(&mut self, record: &Record) -> Result<Answer, ApplyError> {
        match *record {
            Record::Erase { at_ms, job, user } => self.begin_erasure(at_ms, job, user)?,
            Record::EraseStep { job, slots, .. } => {
                let mut erasure = self.erasures.jobs.remove(&job).ok_or(ApplyError::NoErasure)?;
                if let Some(user) = erasure.user {
                    self.step_erasure(&mut erasure, user, slots.min(ERASE_SLOTS_MAX));
                }
                self.erasures.jobs.insert(job, erasure);
            }
            Record::Erased { job, .. } => {
                let erasure = self.erasures.jobs.get(&job).ok_or(ApplyError::NoErasure)?;
                if erasure.phase < Phase::Check {
                    return Err(ApplyError::NotSwept);
                }
                if let Some(user) = erasure.user {
                    self.drop_user(job, user);
                }
            }
            Record::ErasureDone {
                at_ms,
                job,
                snapshots,
                segments,
            } => {
                let erasure = self.erasures.jobs.get_mut(&job).ok_or(ApplyError::NoErasure)?;
                if erasure.phase < Phase::Files {
                    return Err(ApplyError::NotSwept);
                }
                if erasure.phase == Phase::Files {
                    (erasure.phase, erasure.at_ms) = (Phase::Done, at_ms);
                    (erasure.snapshots, erasure.segments) = (snapshots, segments);
                }
                self.erasures.gone.retain(|&(other, _)| other != job);
                self.erasures.prune();
            }
            _ => unreachable!("a record of an erasure"),
        }
        Ok(Answer::Done)
    }

    fn begin_erasure(&mut self, at_ms: u64, job: u64, user: u64) -> Result<(), ApplyError> {
        if self.erasures.jobs.contains_key(&job) {
            return Ok(()); // asked twice, since the first answer was lost
        }
        if self.erasures.under_way() >= ERASURES_MAX {
            return Err(ApplyError::TooManyErasures);
        }
        self.erasures.restore(job, Erasure::new(user, at_ms));
        Ok(())
    }

    /// Erases a user without a job, for as long as that takes.
    pub(crate) fn erase_at_once(&mut self, dense: u32) {
        let user = self.users.id(dense);
        let mut erasure = Erasure::new(user, self.now_ms);
        while erasure.phase < Phase::Check {
            self.step_erasure(&mut erasure, user, ERASE_SLOTS_MAX);
        }
        self.users.erase(dense);
    }

    fn step_erasure(&mut self, erasure: &mut Erasure, user: u64, slots: u32) {
        let mut changes = 0;
        if erasure.phase == Phase::Likes {
            let dense = self.users.find(user);
            let end = erasure.slot.saturating_add(slots).min(self.items.slots());
            while erasure.slot < end && changes < ERASE_CHANGES_MAX {
                let slot = erasure.slot;
                erasure.slot += 1;
                erasure.items += 1;
                let Some(item) = self.items.get(slot) else { continue };
                let bits = blurred(item.bits, user);
                let liked = dense.filter(|&dense| item.likers.contains(dense));
                if bits == item.bits && liked.is_none() {
                    continue;
                }
                changes += 1;
                self.item_will_change(slot);
                let item = self.items.get_mut(slot);
                item.bits = bits;
                let Some(dense) = liked else { continue };
                item.likers.remove(dense);
                match item.derived {
                    true => erasure.derived += 1,
                    false => erasure.count(kind(&item.key).unwrap_or_default()),
                }
                self.toggled(slot, dense, false);
            }
            if erasure.slot >= self.items.slots() {
                (erasure.phase, erasure.slot) = (Phase::Leaderboards, 0);
            }
        } else if erasure.phase == Phase::Leaderboards {
            let name = user.to_string();
            let end = erasure.slot.saturating_add(slots).min(self.leaderboards.slots());
            while erasure.slot < end && changes < ERASE_CHANGES_MAX {
                let slot = erasure.slot;
                erasure.slot += 1;
                erasure.leaderboards += 1;
                let board = self.leaderboards.get(slot);
                if board.is_some_and(|board| board.members.find(name.as_bytes()).is_some()) {
                    changes += 1;
                    erasure.members += 1;
                    self.remove_member(slot, name.as_bytes());
                    self.members -= 1;
                    self.drop_if_nothing(slot);
                }
            }
            if erasure.slot >= self.leaderboards.slots() {
                (erasure.phase, erasure.slot) = (Phase::Check, 0);
            }
        }
    }

    fn drop_user(&mut self, job: u64, user: u64) {
        let dense = self.users.find(user);
        if let Some(dense) = dense {
            self.ids_will_change();
            self.chain_will_change(dense);
            self.users.erase(dense);
        }
        let since = self.offset;
        let erasures = &mut self.erasures;
        if let Some(erasure) = erasures.jobs.get_mut(&job) {
            (erasure.phase, erasure.user, erasure.dense) = (Phase::Files, None, dense);
            erasure.since = since;
        }
        if let Some(at) = erasures.users.iter().position(|&other| other == user) {
            erasures.users.swap_remove(at); // another erasure of the same user has an entry of its own
        }
        erasures.gone.push((job, user));
    }

    /// Looks for traces that an erasure left, in up to `count` slots from cursor `from` on: the cursor to continue with,
    /// 0 at the end, and the number of items and leaderboards that have one.
    pub fn traces(&self, job: u64, from: u64, count: u64) -> (u64, u64) {
        let Some(erasure) = self.erasures.jobs.get(&job) else {
            return (0, 0);
        };
        let dense = erasure.dense.or_else(|| self.users.find(erasure.user?));
        let name = erasure.user.map(|user| user.to_string());
        let items = u64::from(self.items.slots());
        let all = items + u64::from(self.leaderboards.slots());
        let to = from.saturating_add(count).min(all);
        let item_has = |slot: u64| {
            self.items.get(slot as u32).is_some_and(|item| {
                let likes = dense.is_some_and(|dense| item.likers.contains(dense) || item.newest.contains(&dense));
                likes || erasure.user.is_some_and(|user| blurred(item.bits, user) != item.bits)
            })
        };
        let board_has = |slot: u64| {
            let board = self.leaderboards.get(slot as u32);
            board
                .zip(name.as_ref())
                .is_some_and(|(board, name)| board.members.find(name.as_bytes()).is_some())
        };
        let found = (from..to).filter(|&at| match at.checked_sub(items) {
            None => item_has(at),
            Some(slot) => board_has(slot),
        });
        let found = found.count() as u64;
        (if to >= all { 0 } else { to }, found)
    }
}

/// The length in bits of an item's string, or of the result of a bit operation, unless it tells that this user had the
/// highest number: then the next power of two.
fn blurred(bits: u128, user: u64) -> u128 {
    let own = u128::from(user) + 1;
    match bits == own || bits == own.next_multiple_of(8) {
        true => bits.next_power_of_two(),
        false => bits,
    }
}

/// The user whose number is the name of a leaderboard's member.
fn user_of(name: &[u8]) -> Option<u64> {
    let user: u64 = std::str::from_utf8(name).ok()?.parse().ok()?;
    (user.to_string().as_bytes() == name).then_some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plain_number_is_a_users_name() {
        assert_eq!(user_of(b"2017"), Some(2017));
        assert_eq!(user_of(b"18446744073709551615"), Some(u64::MAX));
        for name in [
            &b"02017"[..],
            b"+7",
            b"",
            b"7 ",
            b"18446744073709551616",
            b"alice",
            b"\xff",
        ] {
            assert_eq!(user_of(name), None);
        }
    }

    #[test]
    fn a_length_that_names_the_user_becomes_a_power_of_two() {
        for (bits, wanted) in [(2_018, 2_048), (2_024, 2_048), (2_017, 2_017), (2_032, 2_032), (0, 0)] {
            assert_eq!(blurred(bits, 2_017), wanted);
        }
        assert_eq!(blurred(1 << 64, u64::MAX), 1 << 64);
    }
}
