//! The embedded schedule store: a log, and two files for every hour of due times.
//!
//! Owns: what is staged, committed and applied; when files are flushed, synced, loaded and removed. `hours` owns the
//! files' contents, `places` where each message is. Must not know: clocks (time is passed in), threads (jobs are handed
//! out), callbacks, topics' settings.
//!
//! - A change is *staged*, then a whole group is *committed*: one write and sync of the log. Only then do its results
//!   hold.
//! - A committed change is appended to the files of its message's hour, in memory first. A checkpoint syncs these
//!   files and writes a manifest; then the log is trimmed. Opening reads the manifest and replays the log from there.
//! - Only messages due within the near window are in memory, besides 20 to 39 bytes of index for each message. An
//!   hour is read and sorted before its time; its files are removed when all its messages have ended.
//! - If a message's due time moves to another hour, the message moves there with its body; the old hour records that.
//!
//! `applying` brings records into the index, `upkeep` does the work beside requests.
//! The store has no thread: [`Store::next_job`] hands out work that reads or syncs files, and [`Store::finish`] takes
//! its result.

mod applying;
mod error;
mod files;
mod hour;
mod hours;
mod index;
mod jobs;
mod manifest;
mod near;
pub(crate) mod op;
mod overdue;
mod places;
mod ready;
mod record;
mod salvage;
mod scrub;
mod upkeep;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_journal::{AppendError, Directory, Journal, Log, Options, Storage};
use serde::Deserialize;

use crate::schedule::{Ahead, Change, Incarnation, Message, MessageId, Refusal, State, Step, Version};
use crate::wheel::{Millis, Progress, DUE_MAX};

pub use error::{CommitError, Denied, OpenError};
pub use files::{FileName, Files, Folder};
pub use jobs::{Filter, Finished, Job, Listing};
pub use op::BODY_BYTES_MAX;
pub use overdue::Overdue;
pub use salvage::{Fault, Found, Salvage, WriteError};
pub use scrub::Scrubbed;

use applying::Staging;
use hour::{hour_of, HOUR_MS};
use hours::Hours;
use jobs::Task;
use manifest::Manifest;
use op::{Kind, Op};
use overdue::Look;
use places::Places;
use ready::Ready;
use record::Record;
use upkeep::{Checkpoint, Checkpoints, Work};

/// Maximum bytes flushed to hour files in one call: about a millisecond of writes to the page cache.
const FLUSH_BYTES: usize = 2 << 20;

/// If the clock goes back by more, the store follows; if by less, it waits for the clock.
const CLOCK_BACK_MS: Millis = 100;

/// Maximum number of listings that wait or run at once: a file thread reads them one after another.
const LISTINGS_MAX: usize = 4;

/// Maximum number of ids of a past hour that one tick forgets.
const FORGET_MAX: usize = 4_096;

/// Maximum number of messages that one tick of a scrub looks up in the index.
const SCRUB_MAX: usize = 4_096;

/// A store in a folder.
pub type FolderStore = Store<Directory, Folder>;

/// The settings of a schedule, by the names that they have in the configuration. The control plane passes them as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Messages due within this time are kept in memory.
    pub near_ms: Millis,
    /// How long before its start an hour is loaded. More than `near_ms` by the time that loading may take.
    pub lead_ms: Millis,
    /// How long after its hour an ended message is still known: shown, and not accepted a second time.
    pub history_ms: Millis,
    /// Days for which a dead letter is kept.
    pub dead_days: u32,
    /// How long a cancel or reschedule waits for its message.
    pub ahead_ms: Millis,
    /// Bytes of hour files in memory before they are flushed.
    pub buffer_bytes: usize,
    /// Bytes of the log between two checkpoints. Opening replays up to twice this.
    pub checkpoint_bytes: u64,
    /// Pause between two syncs of a checkpoint.
    #[serde(skip)]
    pub sync_pause: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            near_ms: 60_000,
            lead_ms: 600_000,
            history_ms: HOUR_MS,
            dead_days: 30,
            ahead_ms: 24 * HOUR_MS,
            buffer_bytes: 16 << 20,
            checkpoint_bytes: 64 << 20,
            sync_pause: Duration::from_millis(2),
        }
    }
}

/// A message to insert.
#[derive(Clone, Copy, Debug)]
pub struct NewMessage<'a> {
    pub id: MessageId,
    pub topic: u32,
    pub due_at: Millis,
    pub expires_at: Millis,
    pub body: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    New(Message),
    /// The message exists already; nothing changed.
    Before(Message),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The change took place; the message as it is now.
    Done(Step, Message),
    /// The store has no such message. If it comes within `ahead_ms`, these requests apply then.
    Ahead(Ahead),
}

/// A worker's request for messages: see [`Change::Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    pub topic: u32,
    pub worker: Incarnation,
    pub until: Millis,
    pub attempts_max: u16,
    /// Maximum number of messages to claim.
    pub max: usize,
}

/// A message to call back, under a live claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fire {
    pub message: Message,
    pub topic: u32,
    /// Identifies the claim in the change that ends it.
    pub claim: Version,
    home: u32,
    op: Op,
}

/// Statistics of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages that have not ended, and requests ahead of messages.
    pub live: u64,
    /// Messages in memory.
    pub near: usize,
    /// Messages due and not claimed.
    pub ready: usize,
    /// Messages known, including ended ones within the history.
    pub known: usize,
    pub hours: usize,
    /// Bytes of hour files not flushed yet.
    pub buffered: usize,
    /// Bytes of memory for all messages; `near_memory` of them for the near window.
    pub memory: usize,
    pub near_memory: usize,
    /// Number of checkpoints since opening.
    pub checkpoints: u64,
    /// Number of changes ever committed: the log's offset.
    pub applied: u64,
    /// Whether the whole index is loaded.
    pub whole: bool,
    /// Dead letters that were forgotten since opening, `dead_days` after they died.
    pub dead_forgotten: u64,
    /// Messages that expired since opening.
    pub expired: u64,
    /// Messages that became dead letters since opening because their last claim ran out.
    pub buried: u64,
}

/// The durable schedule of messages.
///
/// Open it with [`Store::open`]. Stage changes with [`Store::insert`], [`Store::change`] and [`Store::claim`], then
/// make the group durable with [`Store::commit`]; only then do the results hold. Call [`Store::tick`] about every
/// millisecond. Run the jobs of [`Store::next_job`] in another thread and return each result with [`Store::finish`].
/// [`Store::close`] makes a last checkpoint.
///
/// ```no_run
/// use muster_journal::Options;
/// use muster_messages::schedule::{Change, Incarnation, MessageId, NEVER};
/// use muster_messages::store::{Claims, NewMessage, Settings, Store};
///
/// let folder = tempfile::tempdir()?;
/// let now = 1_790_000_000_000; // milliseconds since 1970
/// let options = Options { segment_bytes: 16 << 20, ..Options::default() };
/// let mut store = Store::open(folder.path().join("store"), options, Settings::default(), now)?;
/// let id = MessageId(7);
/// store.insert(NewMessage { id, topic: 1, due_at: now + 50, expires_at: NEVER, body: b"hello" })?;
/// store.commit()?; // durable now
///
/// let now = now + 50;
/// store.tick(now, 1_000)?;
/// let worker = Incarnation(1);
/// let claims = Claims { topic: 1, worker, until: now + 30_000, attempts_max: 5, max: 10 };
/// let mut fires = Vec::new();
/// store.claim(now, claims, &mut fires)?;
/// store.commit()?;
/// // a worker calls back, then:
/// store.change(now, id, Change::Deliver { claim: fires[0].claim }, None)?;
/// store.commit()?;
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Store<S: Storage, F: Files> {
    log: Log<S>,
    files: Arc<F>,
    settings: Settings,
    hours: Hours,
    places: Places,
    ready: Ready,
    overdue: Look,
    /// Requests ahead of a message whose wait is over.
    outdated: Vec<MessageId>,
    /// No message is stored in an hour of the clock below this one anymore.
    floor: u32,
    now: Millis,
    /// Records of the log below this offset are applied.
    applied: u64,
    staging: Staging,
    checkpoints: Checkpoints,
    work: Work,
    disk_full: bool,
    failed: bool,
    ended: Ended,
}

/// Messages that ended since opening without a worker's word.
#[derive(Default)]
struct Ended {
    dead_forgotten: u64,
    expired: u64,
    buried: u64,
}

impl Store<Directory, Folder> {
    /// Opens or creates the store in folder `path`: its log in `log/`, its hours in `hours/`.
    pub fn open(path: impl AsRef<Path>, options: Options, settings: Settings, now: Millis) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let log = Journal::open(path.join("log"), options)?;
        let files = Folder::open(path.join("hours"))?;
        Self::with_parts(log, files, settings, now)
    }
}

impl<S: Storage, F: Files> Store<S, F> {
    /// As [`Store::open`], with any log and files. Loads the hours that are due or near; a job reads the rest.
    pub fn with_parts(log: Log<S>, files: F, settings: Settings, now: Millis) -> Result<Self, OpenError> {
        assert!(
            settings.near_ms < settings.lead_ms,
            "hours are loaded before the near window reaches them"
        );
        let mut names = files.list()?;
        let manifest = if names.contains(&FileName::Manifest) {
            let mut bytes = vec![0; files.len(FileName::Manifest)? as usize];
            let read = files.read_at(FileName::Manifest, 0, &mut bytes)?;
            Manifest::decode(&bytes[..read]).ok_or_else(|| OpenError::Damaged("manifest".to_owned()))?
        } else if log.start() == 0 {
            Manifest::default()
        } else {
            return Err(OpenError::Damaged("manifest is missing".to_owned()));
        };
        if manifest.applied > log.end() || manifest.applied < log.start() {
            let (start, end) = (log.start(), log.end());
            let applied = manifest.applied;
            return Err(OpenError::Damaged(format!(
                "log holds {start}..{end}, files end at {applied}"
            )));
        }
        let mut store = Store {
            files: Arc::new(files),
            settings,
            hours: Hours::of(&manifest),
            places: Places::new(now, now + settings.near_ms),
            ready: Ready::default(),
            overdue: Look::default(),
            outdated: Vec::new(),
            floor: hour_of(now),
            now,
            applied: manifest.applied,
            staging: Staging::default(),
            checkpoints: Checkpoints::default(),
            work: Work {
                rebuilding: true,
                ..Work::default()
            },
            disk_full: false,
            failed: false,
            ended: Ended::default(),
            log,
        };
        for mark in &manifest.hours {
            let hour = store.hours.get(mark.hour);
            let lengths = [
                (FileName::Ops(mark.hour), hour.ops.flushed()),
                (FileName::Bodies(mark.hour), hour.bodies.flushed()),
            ];
            for (name, bytes) in lengths {
                let found = store.files.len(name)?;
                if found < bytes {
                    return Err(OpenError::Damaged(format!("{name:?} has {found} of {bytes} bytes")));
                }
            }
        }
        // Files of hours that are not in the manifest: removed or created after it was written.
        names.retain(|name| matches!(name, FileName::Ops(hour) | FileName::Bodies(hour) if !store.hours.has(*hour)));
        for name in names {
            store.files.remove(name)?;
        }
        store.replay()?;
        store.load_near(now)?;
        Ok(store)
    }

    // ---- changes

    /// Stages a message. The same id is the same message: a second insert changes nothing.
    pub fn insert(&mut self, new: NewMessage<'_>) -> Result<Inserted, Denied> {
        self.usable()?;
        if self.disk_full {
            return Err(Denied::DiskFull);
        }
        if new.due_at >= DUE_MAX {
            return Err(Refusal::BadTime.into());
        }
        if new.body.len() > BODY_BYTES_MAX {
            return Err(Denied::BodyTooLong {
                bytes: new.body.len(),
                max: BODY_BYTES_MAX,
            });
        }
        let mut message = Message::new(new.id, new.due_at, new.expires_at);
        let mut ahead_in = None;
        if let Some(found) = self.look_up(new.id)? {
            match found.op.kind {
                Kind::Ahead(ahead) => {
                    ahead.meet(&mut message);
                    ahead_in = Some(found.home);
                }
                _ => {
                    return Ok(Inserted::Before(
                        found.op.message().expect("the index has no other kind"),
                    ))
                }
            }
        }
        let op = Op {
            id: new.id,
            version: message.version,
            topic: new.topic,
            due_at: message.due_at,
            expires_at: message.expires_at,
            attempts: 0,
            body_at: 0,
            body_bytes: new.body.len() as u32,
            kind: Kind::Message(message.state),
        };
        let home = hour_of(message.due_at).max(self.floor);
        // It leaves no hour if it goes to the same one: otherwise the hour's last entry would be that it left.
        let from = ahead_in.filter(|from| *from != home);
        self.stage(ahead_in.is_some(), home, from, op, Some(new.body))?;
        if message.state == State::Scheduled && message.due_at <= self.now {
            self.staging.due.push(new.topic, message.due_at, new.id);
        }
        Ok(Inserted::New(message))
    }

    /// Stages a change of a message, if the message's version is `expected` (`None`: any).
    pub fn change(
        &mut self,
        now: Millis,
        id: MessageId,
        change: Change,
        expected: Option<Version>,
    ) -> Result<Changed, Denied> {
        self.usable()?;
        let Some(found) = self.look_up(id)? else {
            if expected.is_some() || !matches!(change, Change::Cancel | Change::Reschedule(_)) {
                return Err(Refusal::Unknown.into());
            }
            let mut ahead = Ahead::default();
            ahead.ask(change)?;
            self.stage_ahead(now, id, ahead)?;
            return Ok(Changed::Ahead(ahead));
        };
        if let Kind::Ahead(mut ahead) = found.op.kind {
            if expected.is_some() {
                return Err(Refusal::Unknown.into());
            }
            ahead.ask(change)?;
            let op = Op {
                kind: Kind::Ahead(ahead),
                ..found.op
            };
            self.stage(true, found.home, None, op, None)?;
            return Ok(Changed::Ahead(ahead));
        }
        let (step, message, _) = self.apply(now, found, change, expected)?;
        Ok(Changed::Done(step, message))
    }

    /// Stages a message from another record of the same messages: only a greater version replaces it (I-2). `None`:
    /// the version is not greater.
    pub fn put(&mut self, now: Millis, message: Message) -> Result<Option<Message>, Denied> {
        self.usable()?;
        let found = self.look_up(message.id)?.ok_or(Refusal::Unknown)?;
        let Some(before) = found.op.message() else {
            return Err(Refusal::Unknown.into());
        };
        if message.version <= before.version {
            return Ok(None);
        }
        if message.due_at >= DUE_MAX || message.wake_at().is_some_and(|at| at >= DUE_MAX) {
            return Err(Refusal::BadTime.into());
        }
        self.settle(now, found, !before.state.is_terminal(), &message)?;
        Ok(Some(message))
    }

    /// Stages requests ahead of a message from another record. `false`: the message exists already.
    pub fn put_ahead(&mut self, now: Millis, id: MessageId, ahead: Ahead) -> Result<bool, Denied> {
        self.usable()?;
        match self.look_up(id)? {
            None => self.stage_ahead(now, id, ahead)?,
            Some(found) if matches!(found.op.kind, Kind::Ahead(_)) => {
                let op = Op {
                    kind: Kind::Ahead(ahead),
                    ..found.op
                };
                self.stage(true, found.home, None, op, None)?;
            }
            Some(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Stages claims of due messages, oldest due time first, then of those that this group inserts. Appends them to
    /// `out`; messages that have expired or used up their attempts end instead.
    pub fn claim(&mut self, now: Millis, asked: Claims, out: &mut Vec<Fire>) -> Result<(), Denied> {
        self.usable()?;
        let Claims {
            topic,
            worker,
            until,
            attempts_max,
            max,
        } = asked;
        let change = Change::Claim {
            worker,
            until,
            attempts_max,
        };
        let wanted = out.len() + max;
        while out.len() < wanted {
            let committed = self.ready.pop(topic);
            let is_new = committed.is_none();
            let Some((due, id)) = committed.or_else(|| self.staging.due.pop(topic)) else {
                break;
            };
            let Some(found) = self.look_up(id)? else { continue };
            let topic_of = found.op.topic;
            match self.apply(now, found, change, None) {
                Ok((Step::Claimed { claim }, message, staged)) => {
                    if !is_new {
                        self.staging.claims.push((topic, due, id));
                    }
                    out.push(Fire {
                        message,
                        topic: topic_of,
                        claim,
                        home: staged.0,
                        op: staged.1,
                    });
                }
                Ok((step, ..)) => {
                    self.ended.expired += u64::from(step == Step::Expired);
                    self.ended.buried += u64::from(step == Step::Buried);
                    if !is_new {
                        self.staging.claims.push((topic, due, id));
                    }
                }
                // It was cancelled, rescheduled or claimed since it became due; or the clock went back.
                Err(Denied::Refused(Refusal::Early { at } | Refusal::Held { until: at })) => self.places.arm(id, at),
                Err(Denied::Refused(_)) => {}
                Err(denied) => {
                    if !is_new {
                        self.ready.push(topic, due, id);
                    }
                    return match denied {
                        Denied::CommitFirst => Ok(()),
                        denied => Err(denied),
                    };
                }
            }
        }
        Ok(())
    }

    /// Makes everything staged durable and applies it: now the results hold. Returns the number of changes.
    pub fn commit(&mut self) -> Result<u32, CommitError> {
        if self.failed {
            return Err(CommitError::Refused);
        }
        let count = self.staging.group.len();
        if count == 0 {
            return Ok(0);
        }
        let mut group = std::mem::take(&mut self.staging.group);
        let appended = self.log.append(&mut group);
        self.staging.messages.clear();
        self.staging.bodies.clear();
        self.staging.due.clear();
        let result = match appended {
            Ok(range) => {
                for (_, record) in group.records(range.start) {
                    let record = Record::decode(record).expect("the group was made here");
                    self.take_in(&record, false)
                        .expect("positions were assigned in this order");
                }
                self.applied = range.end;
                self.checkpoints.bytes_since += group.payload_bytes() as u64;
                self.staging.claims.clear();
                Ok(count)
            }
            Err(AppendError::DiskFull { .. } | AppendError::TooLarge { .. }) => {
                for (topic, due, id) in self.staging.claims.drain(..) {
                    self.ready.push(topic, due, id);
                }
                Err(CommitError::DiskFull)
            }
            Err(error) => {
                self.failed = true;
                Err(CommitError::Failed(error))
            }
        };
        group.clear();
        self.staging.group = group;
        if result.is_ok() && self.hours.buffered() > self.settings.buffer_bytes {
            self.relieve();
        }
        result
    }

    // ---- reads

    /// A message with its staged changes.
    pub fn get(&self, id: MessageId) -> Result<Option<(Message, u32)>, Denied> {
        let found = self.look_up(id)?;
        Ok(found.and_then(|found| Some((found.op.message()?, found.op.topic))))
    }

    /// Reads the body of a claimed message into `out`.
    pub fn body(&self, fire: &Fire, out: &mut Vec<u8>) -> io::Result<()> {
        let hour = self.hours.find(fire.home).ok_or(io::ErrorKind::NotFound)?;
        hour.read_body(self.files.as_ref(), &fire.op, out)
    }

    /// Reads the body of any message into `out`; `false` if there is no such message.
    pub fn body_of(&self, id: MessageId, out: &mut Vec<u8>) -> Result<bool, Denied> {
        let Some(found) = self
            .look_up(id)?
            .filter(|found| matches!(found.op.kind, Kind::Message(_)))
        else {
            return Ok(false);
        };
        if found.body_in_group {
            return Err(Denied::CommitFirst);
        }
        self.hours
            .get(found.home)
            .read_body(self.files.as_ref(), &found.op, out)?;
        Ok(true)
    }

    /// Topics that have messages to claim.
    pub fn ready_topics(&self) -> impl Iterator<Item = u32> + '_ {
        let new = self.staging.due.topics().filter(|topic| !self.ready.has(*topic));
        self.ready.topics().chain(new)
    }

    /// No message is due before this time, as far as known now.
    pub fn next_due(&self) -> Option<Millis> {
        self.places.next_due()
    }

    /// Whether every message can be looked up: `false` for some seconds after opening.
    pub fn is_whole(&self) -> bool {
        !self.work.rebuilding
    }

    pub fn stats(&self) -> Stats {
        let (index_memory, near_memory) = self.places.memory();
        Stats {
            live: self.hours.live(),
            near: self.places.all_near().len(),
            ready: self.ready.len(),
            known: self.places.len(),
            hours: self.hours.len(),
            buffered: self.hours.buffered(),
            memory: index_memory + self.hours.memory() + near_memory,
            near_memory,
            checkpoints: self.checkpoints.done,
            applied: self.applied,
            whole: !self.work.rebuilding,
            dead_forgotten: self.ended.dead_forgotten,
            expired: self.ended.expired,
            buried: self.ended.buried,
        }
    }

    /// Messages that have been due for at least a second and wait for the result of their first attempt, by topic;
    /// some seconds old. Claims that last beyond the near window are left out.
    pub fn overdue(&self) -> &[Overdue] {
        self.overdue.told()
    }

    /// Requests a listing; its job reads all hours that can hold such messages. `false`: too many are in progress.
    /// Staged changes are left out.
    pub fn ask_list(&mut self, number: u64, filter: Filter) -> bool {
        if self.work.listings >= LISTINGS_MAX {
            return false;
        }
        let (first, last) = (hour_of(filter.from.min(DUE_MAX)), hour_of(filter.to.min(DUE_MAX)));
        // Messages of loaded hours may be stored in any of these.
        // A message that has ended stays in the hour of its last attempt or in the day of its death, after its due time.
        let ended = filter.done || filter.dead || filter.withdrawn;
        let holds = |hour: u32| hour <= self.hours.loaded() || (first <= hour && (hour <= last || ended));
        let mut numbers = self.hours.numbers(..);
        numbers.retain(|hour| holds(*hour));
        let (hours, _) = self.hours.snapshots(&numbers);
        self.work.listings += 1;
        self.work.waiting.push_back(Task::List { number, hours, filter });
        true
    }

    /// Takes the finished listings.
    pub fn take_listed(&mut self) -> Vec<Listing> {
        std::mem::take(&mut self.work.listed)
    }

    // ---- time

    /// Advances the store to `now`: messages become ready, hours are loaded, forgotten, flushed. `budget` bounds each
    /// part of it. Call it about every millisecond, and again at once after [`Progress::More`].
    pub fn tick(&mut self, now: Millis, budget: usize) -> Result<Progress, Denied> {
        self.usable()?;
        if now + CLOCK_BACK_MS < self.now {
            self.places.rewind(now);
        }
        self.now = now;
        // A clock that went back moves no limit back.
        self.places.reach(now + self.settings.near_ms);
        let floor = hour_of(now);
        if floor > self.floor {
            self.floor = floor;
            self.begin_checkpoint();
        }
        self.ask_for_hours(now);
        let mut progress = self.places.admit(budget, self.files.as_ref(), &mut self.hours)?;
        let (ready, outdated) = (&mut self.ready, &mut self.outdated);
        let fired = self.places.advance(now, budget, |op, due| match op.kind {
            Kind::Ahead(_) => outdated.push(op.id),
            _ => ready.push(op.topic, due, op.id),
        });
        if fired == Progress::More {
            progress = Progress::More;
        }
        self.drop_outdated()?;
        self.overdue.go_on(now, self.places.all_near());
        self.forget();
        self.go_on_scrubbing();
        // While the disk is full, a checkpoint tries to flush with every tick.
        if self.disk_full || self.checkpoints.bytes_since >= self.settings.checkpoint_bytes {
            self.begin_checkpoint();
        }
        self.flush_checkpoint();
        Ok(progress)
    }

    /// Makes a checkpoint now, in this thread, so that the next opening has nothing to replay.
    pub fn close(mut self) -> io::Result<()> {
        self.work.waiting.retain(|task| matches!(task, Task::Checkpoint { .. }));
        let mut last = false;
        loop {
            self.flush_checkpoint();
            if self.disk_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            match (self.next_job(), &self.checkpoints.state) {
                (Some(job), _) => self.finish(job.run())?,
                (None, Checkpoint::Flushing { .. }) if !self.failed => {}
                (None, Checkpoint::None) if !last => {
                    last = true;
                    self.begin_checkpoint();
                }
                // Done; or it failed, or a checkpoint's job was never returned: the next opening replays.
                (None, _) => break,
            }
        }
        self.log.close().map_err(io::Error::other)
    }

    fn usable(&self) -> Result<(), Denied> {
        if self.failed {
            return Err(Denied::Failed);
        }
        Ok(())
    }
}
