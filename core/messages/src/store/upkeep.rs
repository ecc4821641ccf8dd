//! Work beside requests: checkpoints, files of hours, scrubbing, and files that are not needed any more.

use super::error::Denied;
use super::files::Files;
use super::hour::{hour_of, Hour, Load, HOUR_MS};
use super::index::Place;
use super::jobs::{Answer, Finished, Job, Listing, Task};
use super::manifest::Manifest;
use super::scrub::{HourPart, Scrub, Scrubbed};
use super::{Store, FLUSH_BYTES, FORGET_MAX, SCRUB_MAX};
use crate::schedule::MessageId;
use crate::wheel::Millis;
use muster_journal::Storage;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// A checkpoint in progress.
pub(super) enum Checkpoint {
    None,
    /// Hours from this one on are not flushed yet.
    Flushing {
        from: u32,
        manifest: Manifest,
    },
    /// The job runs: when it is back, the log may be trimmed below this offset.
    Syncing {
        applied: u64,
    },
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// When files are flushed and synced.
pub(super) struct Checkpoints {
    pub(super) state: Checkpoint,
    /// Bytes of the log since the last one.
    pub(super) bytes_since: u64,
    pub(super) done: u64,
    /// The hour that was flushed last.
    pub(super) flushed_hour: u32,
    /// Hours whose files are removed after the next one.
    pub(super) removed: Vec<u32>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Checkpoints {
            state: Checkpoint::None,
            bytes_since: 0,
            done: 0,
            flushed_hour: 0,
            removed: Vec::new(),
        }
    }
}

/// Jobs that wait, and what they are for.
#[derive(Default)]
pub(super) struct Work {
    pub(super) waiting: VecDeque<Task>,
    pub(super) rebuilding: bool,
    /// An hour whose messages are being forgotten, with the ids that are left.
    pub(super) forgetting: Option<(u32, Vec<(u64, bool)>)>,
    pub(super) asked_ids: bool,
    pub(super) listings: usize,
    pub(super) listed: Vec<Listing>,
    pub(super) scrub: Option<Scrub>,
    pub(super) scrubbed: Option<Scrubbed>,
}

impl<S: Storage, F: Files> Store<S, F> {
    /// Requests a check that every operation, body, count and the index agree, as they are now: jobs read all files,
    /// and ticks look up what they found. `false`: a scrub is in progress. Staged changes are left out.
    pub fn ask_scrub(&mut self) -> Result<bool, Denied> {
        if self.work.rebuilding {
            return Err(Denied::Rebuilding);
        }
        if self.work.scrub.is_some() {
            return Ok(false);
        }
        let known = self.work.forgetting.is_none().then(|| self.places.len());
        self.work.scrub = Some(Scrub::new(self.hours.marks(), known));
        Ok(true)
    }

    /// Takes the findings of the scrub.
    pub fn take_scrubbed(&mut self) -> Option<Scrubbed> {
        self.work.scrubbed.take()
    }

    /// The next work for another thread, if any. Pass its result to [`Store::finish`].
    pub fn next_job(&mut self) -> Option<Job<F>> {
        let task = self.work.waiting.pop_front()?;
        let files = Arc::clone(&self.files);
        Some(Job { files, task })
    }

    /// Takes the result of a job. After an error of a sync or a read the store refuses all calls: open it again.
    pub fn finish(&mut self, finished: Finished) -> io::Result<()> {
        let answer = finished.0.inspect_err(|_| self.failed = true)?;
        match answer {
            Answer::Loaded { hour, sorted } => self.hours.set_sorted(hour, sorted),
            Answer::Rebuilt(older) => {
                self.places.fill_from(older);
                self.work.rebuilding = false;
            }
            Answer::Ids { hour, ids } => self.work.forgetting = Some((hour, ids)),
            Answer::Listed(listing) => {
                self.work.listings -= 1;
                self.work.listed.push(listing);
            }
            Answer::Scrubbed(read) => {
                let there = self.hours.has(read.hour);
                match &mut self.work.scrub {
                    Some(scrub) if there => scrub.take(read),
                    Some(scrub) => scrub.pass_over(),
                    None => {}
                }
            }
            Answer::Checkpointed => {
                if let Checkpoint::Syncing { applied } =
                    std::mem::replace(&mut self.checkpoints.state, Checkpoint::None)
                {
                    self.checkpoints.done += 1;
                    if let Err(error) = self.log.trim(applied) {
                        self.failed = true;
                        return Err(io::Error::other(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// Requests the hours that begin within the lead. Not before all locations are known, since they are needed to
    /// check an order.
    pub(super) fn ask_for_hours(&mut self, now: Millis) {
        let wanted = hour_of(now + self.settings.lead_ms);
        if self.work.rebuilding {
            return;
        }
        for number in self.hours.load_up_to(wanted) {
            let snapshot = self.hours.snapshot(number);
            self.hours.get_mut(number).expect("it was just listed").load = Load::Loading;
            self.work.waiting.push_back(Task::Load(snapshot));
        }
    }

    /// Forgets the messages of an hour that is over, some at a time, then the hour.
    pub(super) fn forget(&mut self) {
        if let Some((number, ids)) = &mut self.work.forgetting {
            let number = *number;
            for (id, dead) in ids.drain(ids.len().saturating_sub(FORGET_MAX)..) {
                let forgotten = self.places.forget(MessageId(id), number);
                self.ended.dead_forgotten += u64::from(forgotten && dead);
            }
            // A manifest that is fixed but not flushed yet counts the hour's bytes in memory.
            if ids.is_empty() && !matches!(self.checkpoints.state, Checkpoint::Flushing { .. }) {
                self.work.forgetting = None;
                self.work.asked_ids = false;
                if self.hours.remove(number) {
                    self.checkpoints.removed.push(number);
                }
            }
            return;
        }
        if self.work.asked_ids || self.work.rebuilding {
            return;
        }
        let history = (self.settings.history_ms / HOUR_MS) as u32;
        let dead_days = self.floor / 24 - self.settings.dead_days.min(self.floor / 24);
        let Some(number) = self.hours.outlived(self.floor.saturating_sub(history), dead_days) else {
            return;
        };
        let snapshot = self.hours.snapshot(number);
        self.work.asked_ids = true;
        self.work.waiting.push_back(Task::Ids(snapshot));
    }

    /// Looks up some of what a scrub has read, or has the next hour read.
    pub(super) fn go_on_scrubbing(&mut self) {
        let Some(mut scrub) = self.work.scrub.take() else {
            return;
        };
        let (hour, some) = scrub.some(SCRUB_MAX);
        for (id, op) in some {
            if let Some(said) = self.misplaced(&scrub, MessageId(id), hour, op) {
                scrub.fault(said);
            }
        }
        while let Some(mark) = scrub.next_mark() {
            match self.hours.find(mark.hour) {
                Some(hour) => self.work.waiting.push_back(Task::Scrub(HourPart::of(hour, mark))),
                None => scrub.pass_over(),
            }
        }
        match scrub.ended() {
            Some(found) => self.work.scrubbed = Some(found),
            None => self.work.scrub = Some(scrub),
        }
    }

    /// The fault of the index, if a file had the message at this operation when the scrub began.
    pub(super) fn misplaced(&self, scrub: &Scrub, id: MessageId, hour: u32, op: u32) -> Option<String> {
        let place = match self.places.get(id) {
            Some(Place::Near(at)) => {
                let near = self.places.near(at);
                Some((near.home, near.number))
            }
            Some(Place::Far { hour, op }) => Some((hour, op)),
            None => None,
        };
        let is_right = match place {
            Some(place) if place == (hour, op) => true,
            Some((hour, op)) => scrub.is_later(hour, op),
            // It left since then, or is being forgotten with its hour.
            None => {
                let forgets = matches!(self.work.forgetting, Some((forgotten, _)) if forgotten == hour);
                let now = self.hours.find(hour).map(Hour::op_count);
                forgets || now.is_none_or(|now| now > 0 && scrub.is_later(hour, now - 1))
            }
        };
        (!is_right).then(|| format!("message {:016x} is at {:?}, indexed at {place:?}", id.0, (hour, op)))
    }

    /// Flushes some hours, in turn.
    pub(super) fn relieve(&mut self) {
        let goal = self.settings.buffer_bytes / 2;
        let mut left = FLUSH_BYTES;
        while self.hours.buffered() > goal && left > 0 {
            let Some(number) = self.hours.next_buffered(self.checkpoints.flushed_hour) else {
                if self.checkpoints.flushed_hour == 0 {
                    return;
                }
                self.checkpoints.flushed_hour = 0;
                continue;
            };
            match self.flush(number) {
                Some(written) => left = left.saturating_sub(written),
                None => return,
            }
            self.checkpoints.flushed_hour = number + 1;
        }
    }

    /// Writes an hour's bytes in memory. `None` if the disk is full or failed.
    pub(super) fn flush(&mut self, number: u32) -> Option<usize> {
        match self.hours.flush(number, self.files.as_ref())? {
            Ok(written) => {
                self.disk_full = false;
                Some(written)
            }
            Err(error) if is_full(&error) => {
                self.disk_full = true;
                None
            }
            Err(_) => {
                self.failed = true;
                None
            }
        }
    }

    /// Fixes the content of the next checkpoint, unless one is in progress.
    pub(super) fn begin_checkpoint(&mut self) {
        if !matches!(self.checkpoints.state, Checkpoint::None) {
            return;
        }
        let manifest = Manifest {
            applied: self.applied,
            loaded: self.hours.loaded(),
            hours: self.hours.marks(),
        };
        self.checkpoints.bytes_since = 0;
        self.checkpoints.state = Checkpoint::Flushing { from: 0, manifest };
    }

    /// Flushes some hours for a checkpoint; when all are flushed, hands out the job.
    pub(super) fn flush_checkpoint(&mut self) {
        if !matches!(self.checkpoints.state, Checkpoint::Flushing { .. }) {
            return;
        }
        let Checkpoint::Flushing { mut from, manifest } =
            std::mem::replace(&mut self.checkpoints.state, Checkpoint::None)
        else {
            unreachable!("it was just seen");
        };
        let mut left = FLUSH_BYTES;
        while let Some(number) = self.hours.next_buffered(from) {
            match self.flush(number) {
                Some(written) => left = left.saturating_sub(written),
                None => {
                    self.checkpoints.state = Checkpoint::Flushing { from, manifest };
                    return;
                }
            }
            from = number + 1;
            if left == 0 {
                self.checkpoints.state = Checkpoint::Flushing { from, manifest };
                return;
            }
        }
        let sync = self.hours.take_dirty();
        // The manifest still names an hour that was forgotten after it was fixed: its files wait for the next one.
        let named = |hour: &u32| manifest.hours.binary_search_by_key(hour, |mark| mark.hour).is_ok();
        let (kept, remove) = self.checkpoints.removed.drain(..).partition(named);
        self.checkpoints.removed = kept;
        self.checkpoints.state = Checkpoint::Syncing {
            applied: manifest.applied,
        };
        self.work.waiting.push_back(Task::Checkpoint {
            sync,
            manifest: manifest.encode(),
            remove,
            pause: self.settings.sync_pause,
        });
    }
}
