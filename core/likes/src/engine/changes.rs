//! Changes of the engine by its records: likes, scores, bit operations, fields.

use super::{kind, Answer, ApplyError, Engine};
use crate::items::Item;
use crate::leaderboards::{How, Leaderboard, NotANumber, Scored, Ties};
use crate::likers::Likers;
use crate::limits::{NEWEST_MAX, NEWS_MAX, NOT_OFFSETS_MAX};
use crate::record::BitOp;

impl Engine {
    pub(super) fn set(&mut self, at_ms: u64, key: &[u8], user: u64, likes: bool) -> Result<Answer, ApplyError> {
        self.advance(at_ms);
        self.is_no_leaderboard(key)?;
        if self.is_erasing(user) {
            return Err(ApplyError::Erasing);
        }
        let offset = self.offset - 1;
        let dense = match likes {
            true => Some(self.users.find_or_add(user).ok_or(ApplyError::NoDenseId(offset))?),
            false => self.users.find(user),
        };
        let slot = self.find_or_add(key);
        self.item_will_change(slot);
        let item = self.items.get_mut(slot);
        item.bits = item.bits.max(u128::from(user) + 1);
        let was = match (dense, likes) {
            (Some(dense), true) => !item.likers.insert(dense),
            (Some(dense), false) => item.likers.remove(dense),
            (None, _) => false,
        };
        let Some(dense) = dense.filter(|_| was != likes) else {
            return Ok(Answer::Was(was));
        };
        self.toggled(slot, dense, likes);
        Ok(Answer::Was(was))
    }

    /// A user was added to the likers of an item, or removed: the rest of the state follows.
    pub(crate) fn toggled(&mut self, slot: u32, dense: u32, likes: bool) {
        let item = self.items.get_mut(slot);
        let listed = !item.derived;
        if listed {
            let weights = self.trends.weights(self.now_ms);
            for (score, weight) in item.trends.iter_mut().zip(weights) {
                *score = if likes {
                    *score + weight
                } else {
                    (*score - weight).max(0.0)
                };
            }
            match likes {
                true => {
                    if item.newest.len() == NEWEST_MAX {
                        item.newest.remove(0);
                    }
                    item.newest.push(dense);
                    self.likes += 1;
                }
                false => {
                    item.newest.retain(|&other| other != dense);
                    item.refill_newest();
                    self.likes -= 1;
                }
            }
        }
        self.changed(slot);
        if listed {
            self.chain_will_change(dense);
            let items = &self.items;
            match likes {
                true => {
                    let at_s = (self.now_ms / 1_000).min(u64::from(u32::MAX)) as u32;
                    self.users.liked(dense, slot, at_s, |other| items.likes(other, dense));
                }
                false => self.users.took_back(dense),
            }
            self.boards.touch(slot, &self.items);
        }
    }

    pub(super) fn is_no_leaderboard(&self, key: &[u8]) -> Result<(), ApplyError> {
        match self.leaderboards.find(key) {
            Some(_) => Err(ApplyError::WrongType),
            None => Ok(()),
        }
    }

    /// The leaderboard of this key, a new one if necessary.
    pub(super) fn leaderboard(&mut self, key: &[u8]) -> Result<u32, ApplyError> {
        if self.items.find(key).is_some() {
            return Err(ApplyError::WrongType);
        }
        match self.leaderboards.find(key) {
            Some(slot) => Ok(slot),
            None if self.leaderboards.has_room() => Ok(self.leaderboards.add(Leaderboard::new(key, self.offset))),
            None => Err(ApplyError::TooManyLeaderboards),
        }
    }

    pub(super) fn put_scores(&mut self, key: &[u8], how: How, scores: &[(f64, &[u8])]) -> Result<Scored, ApplyError> {
        if self.items.find(key).is_none() && scores.iter().any(|(_, name)| self.is_erasing_member(name)) {
            return Err(ApplyError::Erasing);
        }
        let slot = self.leaderboard(key)?;
        let mut done = Scored::default();
        let mut result = match self.leaderboards.get_mut(slot).takes(scores) {
            true => Ok(()),
            false => Err(ApplyError::TooManyMembers),
        };
        let weights = self.trends.weights(self.now_ms);
        for &(number, name) in scores {
            if result.is_err() {
                break;
            }
            let board = self.leaderboards.get_mut(slot);
            done.score = match board.outcome(how, number, name) {
                Ok(score) => score,
                Err(NotANumber) => {
                    result = Err(ApplyError::NotANumber);
                    break;
                }
            };
            let (Some(score), former) = (done.score, board.score(name)) else {
                continue;
            };
            if former == Some(score) {
                continue;
            }
            match former {
                Some(_) => done.changed += 1,
                None => done.added += 1,
            }
            self.member_will_change(slot, name);
            self.leaderboards.get_mut(slot).put(name, score, weights, self.offset);
        }
        self.members += done.added;
        self.drop_if_nothing(slot);
        result.map(|()| done)
    }

    pub(super) fn remove_members(&mut self, key: &[u8], names: &[&[u8]]) -> Result<u64, ApplyError> {
        if self.items.find(key).is_some() {
            return Err(ApplyError::WrongType);
        }
        let Some(slot) = self.leaderboards.find(key) else {
            return Ok(0);
        };
        let mut removed = 0;
        for name in names {
            removed += u64::from(self.remove_member(slot, name));
        }
        self.members -= removed;
        self.drop_if_nothing(slot);
        Ok(removed)
    }

    /// Removes a member, if the leaderboard has it.
    pub(crate) fn remove_member(&mut self, slot: u32, name: &[u8]) -> bool {
        self.member_will_change(slot, name);
        let board = self.leaderboards.get_mut(slot);
        let member = board.members.find(name);
        member.map(|member| board.remove(member)).is_some()
    }

    pub(super) fn set_ties(&mut self, key: &[u8], ties: Ties) -> Result<(), ApplyError> {
        let slot = self.leaderboard(key)?;
        self.leaderboard_will_change(slot);
        self.leaderboards.get_mut(slot).set_ties(ties, self.offset);
        self.drop_if_nothing(slot);
        Ok(())
    }

    pub(crate) fn drop_if_nothing(&mut self, slot: u32) {
        if self.leaderboards.get_mut(slot).is_nothing() {
            self.leaderboard_will_change(slot);
            self.leaderboards.remove(slot);
        }
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        if let Some(slot) = self.leaderboards.find(key) {
            self.all_members_will_change(slot);
            let members = self.leaderboards.remove(slot).members.len();
            self.members -= members as u64;
            return members > 0;
        }
        let Some(slot) = self.items.find(key) else { return false };
        self.item_will_change(slot);
        self.boards.leave(slot, &self.items);
        self.dirty.remove(&slot);
        let item = self.items.remove(slot);
        if self.news.wanted && !item.derived {
            match self.news.deleted.len() < NEWS_MAX {
                true => self.news.deleted.push_back(item.key.clone()),
                false => self.news.lost = true,
            }
        }
        if !item.derived {
            self.likes -= item.likers.len();
        }
        self.deleted.insert(item.key, self.offset);
        true
    }

    pub(super) fn bit_operation(&mut self, op: BitOp, target: &[u8], sources: &[&[u8]]) -> Result<Answer, ApplyError> {
        let offset = self.offset - 1;
        let bytes = sources.iter().map(|key| self.string_bytes(key)).max().unwrap_or(0);
        let result = match op {
            BitOp::Not => {
                let bits = bytes
                    .checked_mul(8)
                    .filter(|&bits| bits <= NOT_OFFSETS_MAX)
                    .ok_or(ApplyError::TooLong)?;
                let mut result = roaring::RoaringBitmap::new();
                for user in 0..bits {
                    if !self.likes(sources[0], user) && !self.is_erasing(user) {
                        result.insert(self.users.find_or_add(user).ok_or(ApplyError::NoDenseId(offset))?);
                    }
                }
                result
            }
            op => {
                let none = Likers::default();
                let likers = |key: &&[u8]| self.items.by_key(key).map_or(&none, |item| &item.likers);
                let sets: Vec<&Likers> = sources.iter().map(likers).collect();
                let mut result = Likers::combine(op, &sets);
                for dense in self.erasing() {
                    result.remove(dense);
                }
                result
            }
        };
        self.delete(target);
        if bytes > 0 {
            let slot = self.find_or_add(target);
            self.boards.leave(slot, &self.items);
            let bits = self.blurred_for_all(u128::from(bytes) * 8);
            let item = self.items.get_mut(slot);
            item.likers = Likers::from_bitmap(result);
            item.bits = bits;
            item.derived = true;
            item.fields = Box::default();
            self.changed(slot);
        }
        Ok(Answer::Bytes(bytes))
    }

    pub(super) fn set_fields(&mut self, key: &[u8], names: &[&[u8]]) {
        let slot = self.find_or_add(key);
        if self.items.get_mut(slot).derived {
            return;
        }
        self.item_will_change(slot);
        self.boards.leave(slot, &self.items);
        let mut fields: Vec<u32> = kind(key).into_iter().map(|kind| self.boards.field(kind)).collect();
        for name in names {
            let field = self.boards.field(name);
            if !fields.contains(&field) {
                fields.push(field);
            }
        }
        self.items.get_mut(slot).fields = fields.into();
        self.boards.enter(slot, &self.items);
        self.changed(slot);
    }

    pub(crate) fn find_or_add(&mut self, key: &[u8]) -> u32 {
        if let Some(slot) = self.items.find(key) {
            return slot;
        }
        let fields = kind(key).into_iter().map(|kind| self.boards.field(kind)).collect();
        let slot = self.items.add(Item {
            key: key.into(),
            fields,
            ..Item::default()
        });
        self.boards.enter(slot, &self.items);
        self.deleted.remove(key);
        self.changed(slot);
        slot
    }

    pub(super) fn changed(&mut self, slot: u32) {
        let item = self.items.get_mut(slot);
        item.modification = self.offset;
        if !item.dirty {
            item.dirty = true;
            self.dirty.insert(slot);
        }
        if self.news.wanted && !item.told {
            match self.news.slots.len() < NEWS_MAX {
                true => {
                    item.told = true;
                    self.news.slots.push_back(slot);
                }
                false => self.news.lost = true,
            }
        }
    }
}
