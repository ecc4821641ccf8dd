//! Changes for a writer's store, in batches that are written atomically.
//!
//! Owns: [`Batch`] and [`Outgoing`]: a user's record goes with the changes reported about the user, and the applied
//! vector never before the users that it covers (I-4, H7, H8). A batch that was not written is given again. Knows no
//! store and no place.

use crate::places::{Change, Places};
use muster_transport::Micros;
use std::collections::BTreeMap;

/// How far a gateway's packets have been applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    pub ap: u32,
    pub epoch: u32,
    /// Everything up to this version. `None`: the gateway is gone, and its entry must be removed.
    pub version: Option<u64>,
}

/// One user of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserChange {
    pub user: u64,
    /// The record's bytes; empty: delete the field.
    pub record: Vec<u8>,
    /// Entries for the outbox, in order.
    pub changes: Vec<Change>,
    /// When the last device went offline, if the field is to be deleted.
    pub went: Option<Micros>,
}

/// A batch to be written as a whole or not at all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    pub users: Vec<UserChange>,
    pub vector: Vec<Applied>,
}

/// Changes that are not written yet.
#[derive(Default)]
pub struct Outgoing {
    /// The current pass: remaining users, and the vector that goes with the last of them.
    users: BTreeMap<u64, Vec<Change>>,
    vector: Vec<Applied>,
    in_flight: Option<Batch>,
}

impl Outgoing {
    /// The batch to write, with at most `users_max` users: the same one until it is written.
    pub fn next(
        &mut self,
        places: &mut Places,
        vector: &mut BTreeMap<u32, Applied>,
        users_max: usize,
    ) -> Option<&Batch> {
        if self.in_flight.is_none() {
            if self.users.is_empty() && self.vector.is_empty() {
                self.users = places.take_changed();
                self.vector = std::mem::take(vector).into_values().collect();
            }
            let mut batch = Batch::default();
            while batch.users.len() < users_max.max(1) {
                let Some((user, mut changes)) = self.users.pop_first() else {
                    break;
                };
                // A record is as of now, so all changes of the user until now go with it.
                changes.append(&mut places.take_changed_of(user));
                let record = places.record(user).encode();
                let went = places.take_went_of(user).filter(|_| record.is_empty());
                batch.users.push(UserChange {
                    user,
                    record,
                    changes,
                    went,
                });
            }
            if self.users.is_empty() {
                batch.vector = std::mem::take(&mut self.vector);
            }
            self.in_flight = (!batch.users.is_empty() || !batch.vector.is_empty()).then_some(batch);
        }
        self.in_flight.as_ref()
    }

    /// The batch has been written to the store.
    pub fn written(&mut self) {
        self.in_flight = None;
    }

    /// Takes everything that is not written, to start again: the changes to report, by user.
    pub fn take_back(&mut self) -> BTreeMap<u64, (Vec<Change>, Option<Micros>)> {
        let pass = std::mem::take(&mut self.users).into_iter();
        let mut back: BTreeMap<_, _> = pass.map(|(user, changes)| (user, (changes, None))).collect();
        self.vector.clear();
        for user in self.in_flight.take().into_iter().flat_map(|batch| batch.users) {
            // The users of the batch were taken out of the pass.
            back.insert(user.user, (user.changes, user.went));
        }
        back
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.vector.is_empty() && self.in_flight.is_none()
    }
}
