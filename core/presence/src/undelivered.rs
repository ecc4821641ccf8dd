//! Messages of users that no device has, for a control plane that hands them on: to a push gateway, or into an inbox.
//!
//! Owns [`Undelivered`] and the queue of them. Must not know: where they go.

use crate::limits::UNDELIVERED_MAX;
use crate::wire::Outcome;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};

/// A message to a user that no device has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Undelivered {
    pub sender: u64,
    /// The sender's number of the message: the same in each try, by whichever proxy.
    pub number: u64,
    pub user: u64,
    /// Of the outcomes of the devices the one that leaves most open.
    pub outcome: Outcome,
    pub data: Vec<u8>,
}

/// A queue: its beginning is the guest's, its end the control plane's.
pub fn undelivered() -> (SyncSender<Undelivered>, Receiver<Undelivered>) {
    sync_channel(UNDELIVERED_MAX)
}

/// Of outcomes none of which is `Delivered`, the one that leaves most open.
pub fn worst(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let openness = |outcome: &Outcome| match outcome {
        Outcome::Unknown => 3,
        Outcome::Expired => 2,
        Outcome::NotOnline => 1,
        Outcome::Delivered => 0,
    };
    outcomes.into_iter().max_by_key(openness).unwrap_or(Outcome::NotOnline)
}
