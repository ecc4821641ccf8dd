//! Restores state from write-behind rows of users and items, when a log or a snapshot is lost.
//!
//! Owns how a row becomes an item again. A row holds the likers and their number; the times of likes, fields besides
//! the kind's, the scores of windows and leaderboards are only in snapshots and logs. Knows no database.

use crate::engine::{Engine, Row};
use crate::likers::Likers;
use crate::limits::SEGMENT_IDS;
use crate::record::Record;
use roaring::RoaringBitmap;

/// Why a row can't be restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RowError {
    #[error("user {0} has another dense id in the state than in its row")]
    OtherUser(u64),
    #[error("dense ids have a gap before {0}")]
    Gap(u32),
    #[error("bitmap of likers is damaged")]
    Damaged,
    #[error("bitmap of likers contains dense id {0}, which belongs to no user")]
    UnknownUser(u32),
    #[error("bitmap has {found} likers, and the row counts {counted}")]
    OtherCount { found: u64, counted: u64 },
}

impl Engine {
    /// Restores a user with the dense id of its row; rows come in the order in which ids were assigned. A user that
    /// exists already is compared.
    pub fn take_user(&mut self, dense: u32, user: u64) -> Result<(), RowError> {
        match self.users.find(user) {
            Some(known) if known == dense => return Ok(()),
            Some(_) => return Err(RowError::OtherUser(user)),
            None => {}
        }
        self.need_id();
        match self.users.find_or_add(user) {
            Some(given) if given == dense => Ok(()),
            _ => Err(RowError::Gap(dense)),
        }
    }

    /// Restores the dense id of a user who was erased, in the same order as [`Engine::take_user`]. If the state still has
    /// the user, the user goes now, with everything that the state has of it.
    pub fn take_erased(&mut self, dense: u32) -> Result<(), RowError> {
        if self.users.has(dense) {
            if !self.users.erased().contains(dense) {
                self.erase_at_once(dense);
            }
            return Ok(());
        }
        self.need_id();
        match self.users.add_erased() {
            Some(given) if given == dense => Ok(()),
            _ => Err(RowError::Gap(dense)),
        }
    }

    /// Restores an item from its row, unless the present item is as new; returns whether it was restored.
    pub fn take_row(&mut self, row: &Row) -> Result<bool, RowError> {
        if self
            .modification(&row.key)
            .max(self.deleted.get(&row.key[..]).copied().unwrap_or(0))
            >= row.modification
        {
            return Ok(false);
        }
        let Some(likes) = &row.likes else {
            self.delete(&row.key);
            self.deleted.insert(row.key[..].into(), row.modification);
            return Ok(true);
        };
        let mut bitmap = RoaringBitmap::deserialize_from(&likes.likers[..]).map_err(|_| RowError::Damaged)?;
        if bitmap.len() != likes.count {
            return Err(RowError::OtherCount {
                found: bitmap.len(),
                counted: likes.count,
            });
        }
        // The row may be older than the erasure of a user.
        bitmap -= self.users.erased();
        let older = bitmap.len() < likes.count;
        if let Some(dense) = bitmap.iter().find(|&dense| !self.users.has(dense)) {
            return Err(RowError::UnknownUser(dense));
        }
        let slot = self.find_or_add(&row.key);
        self.boards.leave(slot, &self.items);
        let highest = bitmap.iter().map(|dense| u128::from(self.users.id(dense)) + 1).max();
        let item = self.items.get_mut(slot);
        let former = std::mem::replace(&mut item.likers, Likers::from_bitmap(bitmap));
        let likers = item.likers.bitmap();
        item.bits = item.bits.max(highest.unwrap_or(0));
        item.newest.retain(|&dense| likers.contains(dense));
        item.refill_newest();
        item.modification = row.modification + u64::from(older);
        if older {
            item.dirty = true;
            self.dirty.insert(slot);
        }
        if item.derived {
            return Ok(true);
        }
        let former = former.bitmap();
        self.likes = self.likes + likers.len() - former.len();
        for dense in &former - &likers {
            self.users.took_back(dense);
        }
        for dense in &likers - &former {
            let items = &self.items;
            self.users.liked(dense, slot, 0, |other| items.likes(other, dense));
        }
        self.boards.enter(slot, &self.items);
        Ok(true)
    }

    /// Applies a record of which the rows have all but leaderboards and erasures, which no row has.
    pub fn apply_to_leaderboards(&mut self, offset: u64, record: &[u8]) {
        let wanted = match Record::decode(record) {
            Some(Record::Scores { .. } | Record::Unscore { .. } | Record::Ties { .. }) => true,
            Some(Record::Erase { .. } | Record::EraseStep { .. }) => true,
            Some(Record::Erased { .. } | Record::ErasureDone { .. }) => true,
            Some(Record::Delete { key, .. }) => self.leaderboards.find(key).is_some(),
            _ => false,
        };
        self.skip_to(offset);
        if wanted {
            let _ = self.apply(offset, record); // as when it was new
        }
        self.skip_to(offset + 1);
    }

    /// Assigns dense ids where the log lost the segments; remaining segments keep their ids.
    pub fn need_id(&mut self) {
        if self.users.ids_left() == 0 {
            if let Some(first) = self.users.next_segment() {
                self.users.add_segment(first, SEGMENT_IDS.min(u32::MAX - first));
            }
        }
    }

    /// The next record has this offset, if that is higher: records in between are lost, or in rows.
    pub fn skip_to(&mut self, offset: u64) {
        self.offset = self.offset.max(offset);
    }
}
