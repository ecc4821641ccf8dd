//! Records on their way into the index: staged, applied, and replayed at the start.

use super::error::{Denied, OpenError};
use super::files::Files;
use super::hour::{dead_hour_of, hour_of};
use super::index::Place;
use super::jobs::Task;
use super::op::{Kind, Op, BODY_BYTES_MAX, FRAME_BYTES};
use super::ready::Ready;
use super::record::Record;
use super::Store;
use super::{jobs, record};
use crate::schedule::{Ahead, Change, Message, MessageId, State, Step, Version};
use crate::wheel::{Millis, DUE_MAX};
use muster_journal::{Group, PushError, Storage};

/// A message with the changes of the group.
pub(super) struct Staged {
    pub(super) op: Op,
    pub(super) home: u32,
    /// Its body is in the group, not in the hour's file yet.
    pub(super) body_in_group: bool,
}

/// The group that is not committed yet.
pub(super) struct Staging {
    pub(super) group: Group,
    pub(super) messages: hashbrown::HashMap<u64, Staged>,
    /// Bytes of bodies, by hour.
    pub(super) bodies: hashbrown::HashMap<u32, u64>,
    /// Claims, to be made ready again if the group fails.
    pub(super) claims: Vec<(u32, Millis, MessageId)>,
    /// Messages that were due when they came: a claim in the same group needs no commit of its own.
    pub(super) due: Ready,
}

impl Default for Staging {
    fn default() -> Self {
        Staging {
            group: Group::new(),
            messages: hashbrown::HashMap::new(),
            bodies: hashbrown::HashMap::new(),
            claims: Vec::new(),
            due: Ready::default(),
        }
    }
}

impl<S: Storage, F: Files> Store<S, F> {
    /// A message with the changes of the group, or as it was committed.
    pub(super) fn look_up(&self, id: MessageId) -> Result<Option<Staged>, Denied> {
        if let Some(staged) = self.staging.messages.get(&id.0) {
            return Ok(Some(Staged { ..*staged }).filter(|staged| staged.op.kind != Kind::Gone));
        }
        let Some(place) = self.places.get(id) else {
            return if self.work.rebuilding {
                Err(Denied::Rebuilding)
            } else {
                Ok(None)
            };
        };
        let (op, home) = match place {
            Place::Near(at) => {
                let near = self.places.near(at);
                (near.op, near.home)
            }
            Place::Far { hour, op } => (self.hours.get(hour).read_op(self.files.as_ref(), op)?, hour),
        };
        Ok(Some(Staged {
            op,
            home,
            body_in_group: false,
        }))
    }

    /// Applies a change to a message that was looked up, and stages it.
    pub(super) fn apply(
        &mut self,
        now: Millis,
        found: Staged,
        change: Change,
        expected: Option<Version>,
    ) -> Result<(Step, Message, (u32, Op)), Denied> {
        let mut message = found.op.message().expect("requests ahead were handled before");
        let was_live = !message.state.is_terminal();
        let step = message.apply(now, change, expected)?;
        if step == Step::CancelledBefore {
            return Ok((step, message, (found.home, found.op)));
        }
        let staged = self.settle(now, found, was_live, &message)?;
        Ok((step, message, staged))
    }

    /// Stages the new state of a message that was looked up, in the hour to which it now belongs.
    pub(super) fn settle(
        &mut self,
        now: Millis,
        found: Staged,
        was_live: bool,
        message: &Message,
    ) -> Result<(u32, Op), Denied> {
        let op = found.op.with(message);
        let wanted = match message.state {
            State::Scheduled | State::Retry { .. } => hour_of(message.wake_at().expect("it waits")).max(self.floor),
            State::Dead => dead_hour_of(now),
            _ => found.home,
        };
        // Opening reads all loaded hours together, so a message may stay in any of them.
        let loaded = self.hours.loaded();
        let stays = wanted == found.home || (wanted <= loaded && found.home <= loaded);
        if stays {
            self.stage(was_live, found.home, None, op, None)?;
            return Ok((found.home, op));
        }
        if found.body_in_group {
            return Err(Denied::CommitFirst);
        }
        let mut body = Vec::new();
        self.hours
            .get(found.home)
            .read_body(self.files.as_ref(), &found.op, &mut body)?;
        self.stage(was_live, wanted, Some(found.home), op, Some(&body))?;
        Ok((wanted, op))
    }

    pub(super) fn stage_ahead(&mut self, now: Millis, id: MessageId, ahead: Ahead) -> Result<(), Denied> {
        let op = Op {
            id,
            version: 0,
            topic: 0,
            due_at: (now + self.settings.ahead_ms).min(DUE_MAX - 1),
            expires_at: 0,
            attempts: 0,
            body_at: 0,
            body_bytes: 0,
            kind: Kind::Ahead(ahead),
        };
        self.stage(false, hour_of(op.due_at).max(self.floor), None, op, None)
    }

    pub(super) fn stage(
        &mut self,
        was_live: bool,
        home: u32,
        from: Option<u32>,
        mut op: Op,
        body: Option<&[u8]>,
    ) -> Result<(), Denied> {
        if let Some(body) = body {
            let written = self.hours.find(home).map_or(0, |hour| hour.bodies.len());
            op.body_at = written + self.staging.bodies.get(&home).copied().unwrap_or(0);
            op.body_bytes = body.len() as u32;
        }
        let head = record::head(was_live, home, from, body.is_some());
        match self
            .staging
            .group
            .push_parts(&[&head, &op.encode(), body.unwrap_or_default()])
        {
            Ok(_) => {}
            Err(PushError::Full) => return Err(Denied::CommitFirst),
            Err(PushError::TooLong(_)) => unreachable!("a body is at most {BODY_BYTES_MAX} bytes"),
        }
        if let Some(body) = body {
            *self.staging.bodies.entry(home).or_default() += (FRAME_BYTES + body.len()) as u64;
        }
        let before = self
            .staging
            .messages
            .get(&op.id.0)
            .is_some_and(|staged| staged.body_in_group);
        self.staging.messages.insert(
            op.id.0,
            Staged {
                op,
                home,
                body_in_group: body.is_some() || before,
            },
        );
        Ok(())
    }

    /// Appends a record of the log to its hour. While the log is replayed, locations are not kept.
    pub(super) fn take_in(&mut self, record: &Record<'_>, replaying: bool) -> Result<(), String> {
        let number = self.hours.take_in(record, replaying)?;
        if !replaying {
            self.places.seat(record.op, record.home, number, &mut self.hours);
        }
        Ok(())
    }

    /// Stages the end of requests ahead of messages that never came.
    pub(super) fn drop_outdated(&mut self) -> Result<(), Denied> {
        while let Some(id) = self.outdated.pop() {
            let Some(found) = self.look_up(id)? else { continue };
            if !matches!(found.op.kind, Kind::Ahead(_)) {
                continue;
            }
            let op = Op {
                kind: Kind::Gone,
                ..found.op
            };
            match self.stage(true, found.home, None, op, None) {
                Ok(()) => {}
                Err(Denied::CommitFirst) => {
                    self.outdated.push(id);
                    break;
                }
                Err(denied) => return Err(denied),
            }
        }
        Ok(())
    }

    pub(super) fn replay(&mut self) -> Result<(), OpenError> {
        let mut reader = self.log.reader(self.applied)?;
        while let Some(records) = reader.next_group()? {
            for (offset, bytes) in records {
                let damaged = |what: String| OpenError::Damaged(format!("log record {offset}: {what}"));
                let record = Record::decode(bytes).ok_or_else(|| damaged("unknown form".to_owned()))?;
                self.take_in(&record, true).map_err(damaged)?;
                self.applied = offset + 1;
                self.checkpoints.bytes_since += bytes.len() as u64;
            }
            if self.hours.buffered() > self.settings.buffer_bytes {
                self.relieve();
            }
        }
        Ok(())
    }

    /// Loads the hours that are due or near, and requests the locations of the rest.
    pub(super) fn load_near(&mut self, now: Millis) -> Result<(), OpenError> {
        self.hours.load_up_to(hour_of(now + self.settings.lead_ms));
        let numbers = self.hours.numbers(..=self.hours.loaded());
        let (snapshots, messages) = self.hours.snapshots(&numbers);
        let index = jobs::rebuild(self.files.as_ref(), &snapshots, messages)?;
        self.places.set_index(index);
        for snapshot in &snapshots {
            let sorted = jobs::order(self.files.as_ref(), snapshot)?;
            self.hours.set_sorted(snapshot.hour, sorted);
        }
        let numbers = self.hours.numbers(self.hours.loaded() + 1..);
        let (hours, messages) = self.hours.snapshots(&numbers);
        self.work.rebuilding = !hours.is_empty();
        if self.work.rebuilding {
            self.work.waiting.push_back(Task::Rebuild { hours, messages });
        }
        Ok(())
    }
}
