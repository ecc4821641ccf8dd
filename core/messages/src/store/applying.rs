//! Records on their way into the index: staged, applied, and replayed at the start.

use super::error::{Denied, OpenError};
use super::files::Files;
use super::hour::{dead_hour_of, hour_of, Hour, Load, DEAD_BASE};
use super::index::Place;
use super::jobs::{Snapshot, Task};
use super::near::Near;
use super::op::{Kind, Op, BODY_BYTES_MAX, FRAME_BYTES, OP_BYTES};
use super::ready::Ready;
use super::record::Record;
use super::Store;
use super::{jobs, record};
use crate::schedule::{Ahead, Change, Message, MessageId, State, Step, Version};
use crate::wheel::{Millis, Progress, Wheel, DUE_MAX};
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
        let Some(place) = self.index.get(id) else {
            return if self.work.rebuilding {
                Err(Denied::Rebuilding)
            } else {
                Ok(None)
            };
        };
        let (op, home) = match place {
            Place::Near(at) => {
                let near = self.near.get(at);
                (near.op, near.home)
            }
            Place::Far { hour, op } => (self.hours[&hour].read_op(self.files.as_ref(), op)?, hour),
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
        let stays = wanted == found.home || (wanted <= self.loaded && found.home <= self.loaded);
        if stays {
            self.stage(was_live, found.home, None, op, None)?;
            return Ok((found.home, op));
        }
        if found.body_in_group {
            return Err(Denied::CommitFirst);
        }
        let mut body = Vec::new();
        self.hours[&found.home].read_body(self.files.as_ref(), &found.op, &mut body)?;
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
            let written = self.hours.get(&home).map_or(0, |hour| hour.bodies.len());
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
        let Record { op, home, .. } = *record;
        let loaded = self.loaded;
        let hour = self.hours.entry(home).or_insert_with(|| {
            // Everything in an hour that is created now comes after its loading.
            let load = if home <= loaded && !replaying {
                Load::Loaded
            } else {
                Load::Far
            };
            Hour::new(home, 0, 0, 0, load)
        });
        let before = hour.buffered();
        if let Some(body) = record.body {
            if op.body_at != hour.bodies.len() {
                return Err(format!(
                    "body in hour {home:08x} goes to {}, not {}",
                    hour.bodies.len(),
                    op.body_at
                ));
            }
            hour.append_body(op.id, body);
        }
        let number = hour.append_op(record.op_bytes);
        hour.dirty = true;
        let is_live = op.kind.is_live();
        hour.live += u32::from(is_live);
        self.buffered += hour.buffered() - before;
        self.live += u64::from(is_live);
        let left = self
            .hours
            .get_mut(&record.from.unwrap_or(home))
            .ok_or("message leaves an unknown hour")?;
        left.live = left
            .live
            .checked_sub(u32::from(record.was_live))
            .ok_or("hour lost count of its messages")?;
        self.live -= u64::from(record.was_live);
        if record.from.is_some() {
            let gone = Op { kind: Kind::Gone, ..op };
            left.append_op(&gone.encode());
            left.dirty = true;
            self.buffered += OP_BYTES;
        }
        if replaying {
            // Messages stay in any loaded hour; after a crash they must not have to wait for that hour.
            if home < DEAD_BASE && op.wake_at().is_some_and(|at| hour_of(at) < home) {
                self.loaded = self.loaded.max(home);
            }
        } else {
            self.seat(op, home, number);
        }
        Ok(())
    }

    /// Keeps the location of a message after a change: in memory while it is near.
    pub(super) fn seat(&mut self, op: Op, home: u32, number: u32) {
        let near = match self.index.get(op.id) {
            Some(Place::Near(at)) => Some(at),
            _ => None,
        };
        let wake_at = op.wake_at();
        if let Some(wake_at) = wake_at.filter(|at| *at < self.horizon) {
            let at = match near {
                Some(at) => at,
                None => {
                    let at = self.near.insert(Near {
                        op,
                        home,
                        number,
                        token: None,
                    });
                    self.index.set(op.id, Place::Near(at));
                    at
                }
            };
            let near = self.near.get_mut(at);
            (near.op, near.home, near.number) = (op, home, number);
            match near.token {
                Some(token) => {
                    self.wheel.reschedule(token, wake_at);
                }
                None => near.token = Some(self.wheel.insert(wake_at, u64::from(at))),
            }
            return;
        }
        if let Some(at) = near {
            if let Some(token) = self.near.remove(at).token {
                self.wheel.cancel(token);
            }
        }
        if op.kind == Kind::Gone {
            self.index.remove(op.id);
            return;
        }
        self.index.set(op.id, Place::Far { hour: home, op: number });
        if let (Some(wake_at), Some(hour)) = (wake_at, self.hours.get_mut(&home)) {
            hour.wakes(wake_at, number);
        }
    }

    /// Makes sure that a message in memory is in the wheel.
    pub(super) fn arm(&mut self, id: MessageId, at: Millis) {
        if let Some(Place::Near(place)) = self.index.get(id) {
            let near = self.near.get_mut(place);
            if near.token.is_none() {
                near.token = Some(self.wheel.insert(at, u64::from(place)));
            }
        }
    }

    /// Turns the wheel back to the time of a clock that went back: otherwise it would fire nothing until the clock
    /// has caught up.
    pub(super) fn rewind(&mut self, now: Millis) {
        self.wheel = Wheel::new(now);
        for (place, near) in self.near.iter_mut() {
            if near.token.is_some() {
                let at = near.op.wake_at().expect("only live operations are in memory");
                near.token = Some(self.wheel.insert(at, u64::from(place)));
            }
        }
    }

    /// Brings messages into memory that the near window has reached.
    pub(super) fn admit(&mut self, budget: usize) -> Result<Progress, Denied> {
        let mut left = budget.max(1);
        let horizon = self.horizon;
        // Loaded hours beyond the horizon may also hold messages due before it, which were advanced.
        for (number, hour) in self.hours.range_mut(..=self.loaded) {
            while let Some(op) = hour.next_before(horizon) {
                let far = Place::Far { hour: *number, op };
                let found = hour.read_op(self.files.as_ref(), op)?;
                if self.index.get(found.id) == Some(far) {
                    let wake_at = found.wake_at().expect("only live operations are in the order");
                    let at = self.near.insert(Near {
                        op: found,
                        home: *number,
                        number: op,
                        token: None,
                    });
                    self.near.get_mut(at).token = Some(self.wheel.insert(wake_at, u64::from(at)));
                    self.index.set(found.id, Place::Near(at));
                }
                left -= 1;
                if left == 0 {
                    return Ok(Progress::More);
                }
            }
        }
        Ok(Progress::Current)
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
            if self.buffered > self.settings.buffer_bytes {
                self.relieve();
            }
        }
        Ok(())
    }

    /// Loads the hours that are due or near, and requests the locations of the rest.
    pub(super) fn load_near(&mut self, now: Millis) -> Result<(), OpenError> {
        self.loaded = self.loaded.max(hour_of(now + self.settings.lead_ms));
        let numbers: Vec<u32> = self.hours.range(..=self.loaded).map(|(number, _)| *number).collect();
        let snapshots: Vec<Snapshot> = numbers.iter().map(|number| self.snapshot(*number)).collect();
        let messages = snapshots
            .iter()
            .map(|snapshot| self.hours[&snapshot.hour].live as usize)
            .sum();
        self.index = jobs::rebuild(self.files.as_ref(), &snapshots, messages)?;
        for snapshot in &snapshots {
            let sorted = jobs::order(self.files.as_ref(), snapshot)?;
            let hour = self.hours.get_mut(&snapshot.hour).expect("it was just listed");
            hour.set_sorted(sorted);
        }
        let numbers: Vec<u32> = self.hours.range(self.loaded + 1..).map(|(number, _)| *number).collect();
        let messages = numbers.iter().map(|number| self.hours[number].live as usize).sum();
        let hours: Vec<Snapshot> = numbers.iter().map(|number| self.snapshot(*number)).collect();
        self.work.rebuilding = !hours.is_empty();
        if self.work.rebuilding {
            self.work.waiting.push_back(Task::Rebuild { hours, messages });
        }
        Ok(())
    }
}
