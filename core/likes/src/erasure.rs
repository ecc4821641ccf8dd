//! Where erasures of users are.
//!
//! Owns the phases, the counts and the bounds. Knows no engine: `erasing.rs` has the steps.

use crate::limits::{ERASED_KINDS_MAX, ERASURES_LISTED_MAX};
use std::collections::BTreeMap;

/// What an erasure does next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub enum Phase {
    /// It goes through the items.
    Likes,
    /// It goes through the leaderboards.
    Leaderboards,
    /// Nothing of the user is left but the id.
    Check,
    /// The state names the user no more; files from before do.
    Files,
    Done,
}

impl Phase {
    pub(crate) const ALL: [Phase; 5] = [
        Phase::Likes,
        Phase::Leaderboards,
        Phase::Check,
        Phase::Files,
        Phase::Done,
    ];

    /// Its name for clients.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Likes => "likes",
            Phase::Leaderboards => "leaderboards",
            Phase::Check => "check",
            Phase::Files => "files",
            Phase::Done => "done",
        }
    }
}

/// One erasure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Erasure {
    pub phase: Phase,
    /// `None` from [`Phase::Files`] on.
    pub user: Option<u64>,
    /// The dense id that the user had, from [`Phase::Files`] on; `None` if the user never liked an item.
    pub dense: Option<u32>,
    /// The slot to continue with, of items or of leaderboards.
    pub slot: u32,
    /// Slots of items, and of leaderboards, that were gone through.
    pub items: u64,
    pub leaderboards: u64,
    /// Likes taken back, by kind; of items without a kind, and of kinds beyond [`ERASED_KINDS_MAX`], at `""`.
    pub kinds: BTreeMap<Vec<u8>, u64>,
    /// Results of bit operations that the user was taken out of.
    pub derived: u64,
    /// Entries in leaderboards that were removed.
    pub members: u64,
    /// The offset of the record that dropped the user's id, plus 1: snapshots and segments below it name the user.
    pub since: u64,
    /// When it began; in [`Phase::Done`], when it ended.
    pub at_ms: u64,
    /// Snapshots and segments that were left at the end.
    pub snapshots: u32,
    pub segments: u32,
}

impl Erasure {
    /// Counts a like that was taken back.
    pub(crate) fn count(&mut self, kind: &[u8]) {
        let apart = self.kinds.len() < ERASED_KINDS_MAX || self.kinds.contains_key(kind);
        let kind = if apart { kind } else { b"" };
        *self.kinds.entry(kind.to_vec()).or_default() += 1;
    }

    pub(crate) fn new(user: u64, at_ms: u64) -> Erasure {
        Erasure {
            phase: Phase::Likes,
            user: Some(user),
            dense: None,
            slot: 0,
            items: 0,
            leaderboards: 0,
            kinds: BTreeMap::new(),
            derived: 0,
            members: 0,
            since: 0,
            at_ms,
            snapshots: 0,
            segments: 0,
        }
    }
}

/// The erasures of one engine.
#[derive(Default)]
pub(crate) struct Erasures {
    pub jobs: BTreeMap<u64, Erasure>,
    /// The users of erasures up to [`Phase::Check`].
    pub users: Vec<u64>,
    /// Jobs in [`Phase::Files`] with their users. In memory only: nothing that is written names them.
    pub gone: Vec<(u64, u64)>,
}

impl Erasures {
    pub fn restore(&mut self, job: u64, erasure: Erasure) {
        self.users.extend(erasure.user);
        self.jobs.insert(job, erasure);
    }

    pub fn under_way(&self) -> usize {
        self.jobs
            .values()
            .filter(|erasure| erasure.phase != Phase::Done)
            .count()
    }

    /// Drops the oldest of those that have ended, if there are too many.
    pub fn prune(&mut self) {
        let ended = self.jobs.iter().filter(|(_, erasure)| erasure.phase == Phase::Done);
        let mut ended: Vec<(u64, u64)> = ended.map(|(&job, erasure)| (erasure.at_ms, job)).collect();
        ended.sort_unstable();
        for &(_, job) in ended.iter().take(ended.len().saturating_sub(ERASURES_LISTED_MAX)) {
            self.jobs.remove(&job);
        }
    }
}
