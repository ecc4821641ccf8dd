//! The embedded schedule store: a log, and two files for every hour of due times.
//!
//! Owns: what is staged, committed and applied; the near window; when files are flushed, synced, loaded and removed.
//! Must not know: clocks (time is passed in), threads (jobs are handed out), callbacks, topics' settings.
//!
//! - A change is *staged*, then a whole group is *committed*: one write and sync of the log. Only then do its results
//!   hold.
//! - A committed change is appended to the files of its message's hour, in memory first. A checkpoint syncs these
//!   files and writes a manifest; then the log is trimmed. Opening reads the manifest and replays the log from there.
//! - Only messages due within the near window are in memory, besides 20 to 39 bytes of index for each message. An
//!   hour is read and sorted before its time; its files are removed when all its messages have ended.
//! - If a message's due time moves to another hour, the message moves there with its body; the old hour records that.
//!
//! The store has no thread: [`Store::next_job`] hands out work that reads or syncs files, and [`Store::finish`] takes
//! its result.

mod error;
mod files;
mod hour;
mod index;
mod jobs;
mod manifest;
mod near;
pub(crate) mod op;
mod overdue;
mod ready;
mod record;
mod salvage;
mod scrub;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_journal::{AppendError, Directory, Group, Journal, Log, Options, PushError, Storage};
use serde::Deserialize;

use crate::schedule::{Ahead, Change, Incarnation, Message, MessageId, Refusal, State, Step, Version};
use crate::wheel::{Fired, Millis, Progress, Wheel, DUE_MAX};

pub use error::{CommitError, Denied, OpenError};
pub use files::{FileName, Files, Folder};
pub use jobs::{Filter, Finished, Job, Listing};
pub use op::BODY_BYTES_MAX;
pub use overdue::Overdue;
pub use salvage::{Fault, Found, Salvage, WriteError};
pub use scrub::Scrubbed;

use hour::{dead_hour_of, hour_of, Hour, Load, DEAD_BASE, HOUR_MS};
use index::{Index, Place};
use jobs::{Answer, Snapshot, Task};
use manifest::{HourMark, Manifest};
use near::{Near, Slab};
use op::{Kind, Op, FRAME_BYTES, OP_BYTES};
use overdue::Look;
use ready::Ready;
use record::Record;
use scrub::{HourPart, Scrub};

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

/// A message with the changes of the group.
struct Staged {
    op: Op,
    home: u32,
    /// Its body is in the group, not in the hour's file yet.
    body_in_group: bool,
}

/// A checkpoint in progress.
enum Checkpoint {
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
    index: Index,
    near: Slab,
    wheel: Wheel,
    hours: BTreeMap<u32, Hour>,
    ready: Ready,
    /// Messages of the group that were due when they came: a claim in the same group needs no commit of its own.
    new_due: Ready,
    overdue: Look,
    /// Requests ahead of a message whose wait is over.
    outdated: Vec<MessageId>,
    /// No message is stored in an hour of the clock below this one anymore.
    floor: u32,
    now: Millis,
    horizon: Millis,
    /// Hours up to this one are loaded, or are being loaded.
    loaded: u32,
    live: u64,
    buffered: usize,
    /// Records of the log below this offset are applied.
    applied: u64,
    group: Group,
    staged: hashbrown::HashMap<u64, Staged>,
    /// Bytes of bodies in the group, by hour.
    staged_bodies: hashbrown::HashMap<u32, u64>,
    /// Claims in the group, to be made ready again if it fails.
    staged_claims: Vec<(u32, Millis, MessageId)>,
    jobs: VecDeque<Task>,
    rebuilding: bool,
    checkpoint: Checkpoint,
    since_checkpoint: u64,
    checkpoints: u64,
    /// The hour that was flushed last.
    flushed_hour: u32,
    /// An hour whose messages are being forgotten, with the ids that are left.
    forgetting: Option<(u32, Vec<(u64, bool)>)>,
    asked_ids: bool,
    /// Hours whose files are removed after the next checkpoint.
    removed: Vec<u32>,
    disk_full: bool,
    failed: bool,
    fired: Vec<Fired>,
    dead_forgotten: u64,
    expired: u64,
    buried: u64,
    listings: usize,
    listed: Vec<Listing>,
    scrub: Option<Scrub>,
    scrubbed: Option<Scrubbed>,
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
            index: Index::new(),
            near: Slab::default(),
            wheel: Wheel::new(now),
            hours: BTreeMap::new(),
            ready: Ready::default(),
            new_due: Ready::default(),
            overdue: Look::default(),
            outdated: Vec::new(),
            floor: hour_of(now),
            now,
            horizon: now + settings.near_ms,
            loaded: manifest.loaded,
            live: 0,
            buffered: 0,
            applied: manifest.applied,
            group: Group::new(),
            staged: hashbrown::HashMap::new(),
            staged_bodies: hashbrown::HashMap::new(),
            staged_claims: Vec::new(),
            jobs: VecDeque::new(),
            rebuilding: true,
            checkpoint: Checkpoint::None,
            since_checkpoint: 0,
            checkpoints: 0,
            flushed_hour: 0,
            forgetting: None,
            asked_ids: false,
            removed: Vec::new(),
            disk_full: false,
            failed: false,
            fired: Vec::new(),
            dead_forgotten: 0,
            expired: 0,
            buried: 0,
            listings: 0,
            listed: Vec::new(),
            scrub: None,
            scrubbed: None,
            log,
        };
        for mark in &manifest.hours {
            let hour = Hour::new(mark.hour, mark.ops, mark.body_bytes, mark.live, Load::Far);
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
            store.live += u64::from(hour.live);
            store.hours.insert(mark.hour, hour);
        }
        // Files of hours that are not in the manifest: removed or created after it was written.
        names.retain(
            |name| matches!(name, FileName::Ops(hour) | FileName::Bodies(hour) if !store.hours.contains_key(hour)),
        );
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
            self.new_due.push(new.topic, message.due_at, new.id);
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
            let Some((due, id)) = committed.or_else(|| self.new_due.pop(topic)) else {
                break;
            };
            let Some(found) = self.look_up(id)? else { continue };
            let topic_of = found.op.topic;
            match self.apply(now, found, change, None) {
                Ok((Step::Claimed { claim }, message, staged)) => {
                    if !is_new {
                        self.staged_claims.push((topic, due, id));
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
                    self.expired += u64::from(step == Step::Expired);
                    self.buried += u64::from(step == Step::Buried);
                    if !is_new {
                        self.staged_claims.push((topic, due, id));
                    }
                }
                // It was cancelled, rescheduled or claimed since it became due; or the clock went back.
                Err(Denied::Refused(Refusal::Early { at } | Refusal::Held { until: at })) => self.arm(id, at),
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
        let count = self.group.len();
        if count == 0 {
            return Ok(0);
        }
        let mut group = std::mem::take(&mut self.group);
        let appended = self.log.append(&mut group);
        self.staged.clear();
        self.staged_bodies.clear();
        self.new_due.clear();
        let result = match appended {
            Ok(range) => {
                for (_, record) in group.records(range.start) {
                    let record = Record::decode(record).expect("the group was made here");
                    self.take_in(&record, false)
                        .expect("positions were assigned in this order");
                }
                self.applied = range.end;
                self.since_checkpoint += group.payload_bytes() as u64;
                self.staged_claims.clear();
                Ok(count)
            }
            Err(AppendError::DiskFull { .. } | AppendError::TooLarge { .. }) => {
                for (topic, due, id) in self.staged_claims.drain(..) {
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
        self.group = group;
        if result.is_ok() && self.buffered > self.settings.buffer_bytes {
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
        let hour = self.hours.get(&fire.home).ok_or(io::ErrorKind::NotFound)?;
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
        self.hours[&found.home].read_body(self.files.as_ref(), &found.op, out)?;
        Ok(true)
    }

    /// Topics that have messages to claim.
    pub fn ready_topics(&self) -> impl Iterator<Item = u32> + '_ {
        let new = self.new_due.topics().filter(|topic| !self.ready.has(*topic));
        self.ready.topics().chain(new)
    }

    /// No message is due before this time, as far as known now.
    pub fn next_due(&self) -> Option<Millis> {
        self.wheel.next_due()
    }

    /// Whether every message can be looked up: `false` for some seconds after opening.
    pub fn is_whole(&self) -> bool {
        !self.rebuilding
    }

    pub fn stats(&self) -> Stats {
        let hours: usize = self.hours.values().map(Hour::memory).sum();
        let near_memory = self.near.memory() + self.wheel.memory();
        Stats {
            live: self.live,
            near: self.near.len(),
            ready: self.ready.len(),
            known: self.index.len(),
            hours: self.hours.len(),
            buffered: self.buffered,
            memory: self.index.memory() + hours + near_memory,
            near_memory,
            checkpoints: self.checkpoints,
            applied: self.applied,
            whole: !self.rebuilding,
            dead_forgotten: self.dead_forgotten,
            expired: self.expired,
            buried: self.buried,
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
        if self.listings >= LISTINGS_MAX {
            return false;
        }
        let (first, last) = (hour_of(filter.from.min(DUE_MAX)), hour_of(filter.to.min(DUE_MAX)));
        // Messages of loaded hours may be stored in any of these.
        // A message that has ended stays in the hour of its last attempt or in the day of its death, after its due time.
        let ended = filter.done || filter.dead || filter.withdrawn;
        let holds = |hour: u32| hour <= self.loaded || (first <= hour && (hour <= last || ended));
        let numbers: Vec<u32> = self.hours.keys().copied().filter(|hour| holds(*hour)).collect();
        let hours = numbers.iter().map(|hour| self.snapshot(*hour)).collect();
        self.listings += 1;
        self.jobs.push_back(Task::List { number, hours, filter });
        true
    }

    /// Requests a check that every operation, body, count and the index agree, as they are now: jobs read all files,
    /// and ticks look up what they found. `false`: a scrub is in progress. Staged changes are left out.
    pub fn ask_scrub(&mut self) -> Result<bool, Denied> {
        if self.rebuilding {
            return Err(Denied::Rebuilding);
        }
        if self.scrub.is_some() {
            return Ok(false);
        }
        let known = self.forgetting.is_none().then(|| self.index.len());
        self.scrub = Some(Scrub::new(self.marks(), known));
        Ok(true)
    }

    /// Takes the findings of the scrub.
    pub fn take_scrubbed(&mut self) -> Option<Scrubbed> {
        self.scrubbed.take()
    }

    /// Takes the finished listings.
    pub fn take_listed(&mut self) -> Vec<Listing> {
        std::mem::take(&mut self.listed)
    }

    // ---- time

    /// Advances the store to `now`: messages become ready, hours are loaded, forgotten, flushed. `budget` bounds each
    /// part of it. Call it about every millisecond, and again at once after [`Progress::More`].
    pub fn tick(&mut self, now: Millis, budget: usize) -> Result<Progress, Denied> {
        self.usable()?;
        if now + CLOCK_BACK_MS < self.now {
            self.rewind(now);
        }
        self.now = now;
        // A clock that went back moves no limit back.
        self.horizon = self.horizon.max(now + self.settings.near_ms);
        let floor = hour_of(now);
        if floor > self.floor {
            self.floor = floor;
            self.begin_checkpoint();
        }
        self.ask_for_hours(now);
        let mut progress = self.admit(budget)?;
        let mut fired = std::mem::take(&mut self.fired);
        if self.wheel.advance(now, budget, &mut fired) == Progress::More {
            progress = Progress::More;
        }
        for fired in fired.drain(..) {
            let near = self.near.get_mut(fired.key as u32);
            near.token = None;
            match near.op.kind {
                Kind::Ahead(_) => self.outdated.push(near.op.id),
                _ => self.ready.push(near.op.topic, fired.due, near.op.id),
            }
        }
        self.fired = fired;
        self.drop_outdated()?;
        self.overdue.go_on(now, &self.near);
        self.forget();
        self.go_on_scrubbing();
        // While the disk is full, a checkpoint tries to flush with every tick.
        if self.disk_full || self.since_checkpoint >= self.settings.checkpoint_bytes {
            self.begin_checkpoint();
        }
        self.flush_checkpoint();
        Ok(progress)
    }

    /// The next work for another thread, if any. Pass its result to [`Store::finish`].
    pub fn next_job(&mut self) -> Option<Job<F>> {
        let task = self.jobs.pop_front()?;
        let files = Arc::clone(&self.files);
        Some(Job { files, task })
    }

    /// Takes the result of a job. After an error of a sync or a read the store refuses all calls: open it again.
    pub fn finish(&mut self, finished: Finished) -> io::Result<()> {
        let answer = finished.0.inspect_err(|_| self.failed = true)?;
        match answer {
            Answer::Loaded { hour, sorted } => {
                if let Some(hour) = self.hours.get_mut(&hour) {
                    hour.set_sorted(sorted);
                }
            }
            Answer::Rebuilt(mut older) => {
                for shard in 0..index::SHARDS {
                    self.index.fill_from(&mut older, shard);
                }
                self.rebuilding = false;
            }
            Answer::Ids { hour, ids } => self.forgetting = Some((hour, ids)),
            Answer::Listed(listing) => {
                self.listings -= 1;
                self.listed.push(listing);
            }
            Answer::Scrubbed(read) => {
                let there = self.hours.contains_key(&read.hour);
                match &mut self.scrub {
                    Some(scrub) if there => scrub.take(read),
                    Some(scrub) => scrub.pass_over(),
                    None => {}
                }
            }
            Answer::Checkpointed => {
                if let Checkpoint::Syncing { applied } = std::mem::replace(&mut self.checkpoint, Checkpoint::None) {
                    self.checkpoints += 1;
                    if let Err(error) = self.log.trim(applied) {
                        self.failed = true;
                        return Err(io::Error::other(error));
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes a checkpoint now, in this thread, so that the next opening has nothing to replay.
    pub fn close(mut self) -> io::Result<()> {
        self.jobs.retain(|task| matches!(task, Task::Checkpoint { .. }));
        let mut last = false;
        loop {
            self.flush_checkpoint();
            if self.disk_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            match (self.next_job(), &self.checkpoint) {
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

    // ---- inside

    fn usable(&self) -> Result<(), Denied> {
        if self.failed {
            return Err(Denied::Failed);
        }
        Ok(())
    }

    /// A message with the changes of the group, or as it was committed.
    fn look_up(&self, id: MessageId) -> Result<Option<Staged>, Denied> {
        if let Some(staged) = self.staged.get(&id.0) {
            return Ok(Some(Staged { ..*staged }).filter(|staged| staged.op.kind != Kind::Gone));
        }
        let Some(place) = self.index.get(id) else {
            return if self.rebuilding {
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
    fn apply(
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
    fn settle(&mut self, now: Millis, found: Staged, was_live: bool, message: &Message) -> Result<(u32, Op), Denied> {
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

    fn stage_ahead(&mut self, now: Millis, id: MessageId, ahead: Ahead) -> Result<(), Denied> {
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

    fn stage(
        &mut self,
        was_live: bool,
        home: u32,
        from: Option<u32>,
        mut op: Op,
        body: Option<&[u8]>,
    ) -> Result<(), Denied> {
        if let Some(body) = body {
            let written = self.hours.get(&home).map_or(0, |hour| hour.bodies.len());
            op.body_at = written + self.staged_bodies.get(&home).copied().unwrap_or(0);
            op.body_bytes = body.len() as u32;
        }
        let head = record::head(was_live, home, from, body.is_some());
        match self.group.push_parts(&[&head, &op.encode(), body.unwrap_or_default()]) {
            Ok(_) => {}
            Err(PushError::Full) => return Err(Denied::CommitFirst),
            Err(PushError::TooLong(_)) => unreachable!("a body is at most {BODY_BYTES_MAX} bytes"),
        }
        if let Some(body) = body {
            *self.staged_bodies.entry(home).or_default() += (FRAME_BYTES + body.len()) as u64;
        }
        let before = self.staged.get(&op.id.0).is_some_and(|staged| staged.body_in_group);
        self.staged.insert(
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
    fn take_in(&mut self, record: &Record<'_>, replaying: bool) -> Result<(), String> {
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
    fn seat(&mut self, op: Op, home: u32, number: u32) {
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
    fn arm(&mut self, id: MessageId, at: Millis) {
        if let Some(Place::Near(place)) = self.index.get(id) {
            let near = self.near.get_mut(place);
            if near.token.is_none() {
                near.token = Some(self.wheel.insert(at, u64::from(place)));
            }
        }
    }

    /// Turns the wheel back to the time of a clock that went back: otherwise it would fire nothing until the clock
    /// has caught up.
    fn rewind(&mut self, now: Millis) {
        self.wheel = Wheel::new(now);
        for (place, near) in self.near.iter_mut() {
            if near.token.is_some() {
                let at = near.op.wake_at().expect("only live operations are in memory");
                near.token = Some(self.wheel.insert(at, u64::from(place)));
            }
        }
    }

    /// Brings messages into memory that the near window has reached.
    fn admit(&mut self, budget: usize) -> Result<Progress, Denied> {
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
    fn drop_outdated(&mut self) -> Result<(), Denied> {
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

    // ---- files

    fn replay(&mut self) -> Result<(), OpenError> {
        let mut reader = self.log.reader(self.applied)?;
        while let Some(records) = reader.next_group()? {
            for (offset, bytes) in records {
                let damaged = |what: String| OpenError::Damaged(format!("log record {offset}: {what}"));
                let record = Record::decode(bytes).ok_or_else(|| damaged("unknown form".to_owned()))?;
                self.take_in(&record, true).map_err(damaged)?;
                self.applied = offset + 1;
                self.since_checkpoint += bytes.len() as u64;
            }
            if self.buffered > self.settings.buffer_bytes {
                self.relieve();
            }
        }
        Ok(())
    }

    /// Loads the hours that are due or near, and requests the locations of the rest.
    fn load_near(&mut self, now: Millis) -> Result<(), OpenError> {
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
        self.rebuilding = !hours.is_empty();
        if self.rebuilding {
            self.jobs.push_back(Task::Rebuild { hours, messages });
        }
        Ok(())
    }

    fn snapshot(&self, number: u32) -> Snapshot {
        let hour = &self.hours[&number];
        Snapshot {
            hour: number,
            flushed: hour.ops.flushed(),
            tail: hour.ops.buffered().to_vec(),
        }
    }

    /// Requests the hours that begin within the lead. Not before all locations are known, since they are needed to
    /// check an order.
    fn ask_for_hours(&mut self, now: Millis) {
        let wanted = hour_of(now + self.settings.lead_ms);
        if self.rebuilding || wanted <= self.loaded {
            return;
        }
        let numbers: Vec<u32> = self
            .hours
            .range(self.loaded + 1..=wanted)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            let snapshot = self.snapshot(number);
            self.hours.get_mut(&number).expect("it was just listed").load = Load::Loading;
            self.jobs.push_back(Task::Load(snapshot));
        }
        self.loaded = wanted;
    }

    /// Forgets the messages of an hour that is over, some at a time, then the hour.
    fn forget(&mut self) {
        if let Some((number, ids)) = &mut self.forgetting {
            let number = *number;
            for (id, dead) in ids.drain(ids.len().saturating_sub(FORGET_MAX)..) {
                let id = MessageId(id);
                if matches!(self.index.get(id), Some(Place::Far { hour, .. }) if hour == number) {
                    self.index.remove(id);
                    self.dead_forgotten += u64::from(dead);
                }
            }
            // A manifest that is fixed but not flushed yet counts the hour's bytes in memory.
            if ids.is_empty() && !matches!(self.checkpoint, Checkpoint::Flushing { .. }) {
                self.forgetting = None;
                self.asked_ids = false;
                if let Some(hour) = self.hours.remove(&number) {
                    self.buffered -= hour.buffered();
                    self.removed.push(number);
                }
            }
            return;
        }
        if self.asked_ids || self.rebuilding {
            return;
        }
        let history = (self.settings.history_ms / HOUR_MS) as u32;
        let over = |hour: &Hour| hour.live == 0 && hour.load == Load::Loaded;
        let of_clock = self
            .hours
            .range(..self.floor.saturating_sub(history))
            .find(|(_, hour)| over(hour));
        let dead_days = self.floor / 24 - self.settings.dead_days.min(self.floor / 24);
        let of_dead = self.hours.range(DEAD_BASE..DEAD_BASE + dead_days);
        let Some((&number, _)) = of_clock.or_else(|| of_dead.into_iter().next()) else {
            return;
        };
        let snapshot = self.snapshot(number);
        self.asked_ids = true;
        self.jobs.push_back(Task::Ids(snapshot));
    }

    /// All hours as they are, in order.
    fn marks(&self) -> Vec<HourMark> {
        let mark = |hour: &Hour| HourMark {
            hour: hour.hour,
            ops: hour.op_count(),
            body_bytes: hour.bodies.len(),
            live: hour.live,
        };
        self.hours.values().map(mark).collect()
    }

    /// Looks up some of what a scrub has read, or has the next hour read.
    fn go_on_scrubbing(&mut self) {
        let Some(mut scrub) = self.scrub.take() else { return };
        let (hour, some) = scrub.some(SCRUB_MAX);
        for (id, op) in some {
            if let Some(said) = self.misplaced(&scrub, MessageId(id), hour, op) {
                scrub.fault(said);
            }
        }
        while let Some(mark) = scrub.next_mark() {
            match self.hours.get(&mark.hour) {
                Some(hour) => self.jobs.push_back(Task::Scrub(HourPart::of(hour, mark))),
                None => scrub.pass_over(),
            }
        }
        match scrub.ended() {
            Some(found) => self.scrubbed = Some(found),
            None => self.scrub = Some(scrub),
        }
    }

    /// The fault of the index, if a file had the message at this operation when the scrub began.
    fn misplaced(&self, scrub: &Scrub, id: MessageId, hour: u32, op: u32) -> Option<String> {
        let place = match self.index.get(id) {
            Some(Place::Near(at)) => Some((self.near.get(at).home, self.near.get(at).number)),
            Some(Place::Far { hour, op }) => Some((hour, op)),
            None => None,
        };
        let is_right = match place {
            Some(place) if place == (hour, op) => true,
            Some((hour, op)) => scrub.is_later(hour, op),
            // It left since then, or is being forgotten with its hour.
            None => {
                let forgets = matches!(self.forgetting, Some((forgotten, _)) if forgotten == hour);
                let now = self.hours.get(&hour).map(Hour::op_count);
                forgets || now.is_none_or(|now| now > 0 && scrub.is_later(hour, now - 1))
            }
        };
        (!is_right).then(|| format!("message {:016x} is at {:?}, indexed at {place:?}", id.0, (hour, op)))
    }

    /// Flushes some hours, in turn.
    fn relieve(&mut self) {
        let goal = self.settings.buffer_bytes / 2;
        let mut left = FLUSH_BYTES;
        while self.buffered > goal && left > 0 {
            let next = self
                .hours
                .range(self.flushed_hour..)
                .find(|(_, hour)| hour.buffered() > 0);
            let Some(number) = next.map(|(number, _)| *number) else {
                if self.flushed_hour == 0 {
                    return;
                }
                self.flushed_hour = 0;
                continue;
            };
            match self.flush(number) {
                Some(written) => left = left.saturating_sub(written),
                None => return,
            }
            self.flushed_hour = number + 1;
        }
    }

    /// Writes an hour's bytes in memory. `None` if the disk is full or failed.
    fn flush(&mut self, number: u32) -> Option<usize> {
        let hour = self.hours.get_mut(&number)?;
        let before = hour.buffered();
        let flushed = hour.flush(self.files.as_ref());
        self.buffered -= before - hour.buffered();
        match flushed {
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
    fn begin_checkpoint(&mut self) {
        if !matches!(self.checkpoint, Checkpoint::None) {
            return;
        }
        let manifest = Manifest {
            applied: self.applied,
            loaded: self.loaded,
            hours: self.marks(),
        };
        self.since_checkpoint = 0;
        self.checkpoint = Checkpoint::Flushing { from: 0, manifest };
    }

    /// Flushes some hours for a checkpoint; when all are flushed, hands out the job.
    fn flush_checkpoint(&mut self) {
        if !matches!(self.checkpoint, Checkpoint::Flushing { .. }) {
            return;
        }
        let Checkpoint::Flushing { mut from, manifest } = std::mem::replace(&mut self.checkpoint, Checkpoint::None)
        else {
            unreachable!("it was just seen");
        };
        let mut left = FLUSH_BYTES;
        loop {
            let next = self.hours.range(from..).find(|(_, hour)| hour.buffered() > 0);
            let Some(number) = next.map(|(number, _)| *number) else {
                break;
            };
            match self.flush(number) {
                Some(written) => left = left.saturating_sub(written),
                None => {
                    self.checkpoint = Checkpoint::Flushing { from, manifest };
                    return;
                }
            }
            from = number + 1;
            if left == 0 {
                self.checkpoint = Checkpoint::Flushing { from, manifest };
                return;
            }
        }
        let mut sync = Vec::new();
        for hour in self.hours.values_mut().filter(|hour| hour.dirty) {
            hour.dirty = false;
            sync.push(FileName::Bodies(hour.hour));
            sync.push(FileName::Ops(hour.hour));
        }
        // The manifest still names an hour that was forgotten after it was fixed: its files wait for the next one.
        let named = |hour: &u32| manifest.hours.binary_search_by_key(hour, |mark| mark.hour).is_ok();
        let (kept, remove) = self.removed.drain(..).partition(named);
        self.removed = kept;
        self.checkpoint = Checkpoint::Syncing {
            applied: manifest.applied,
        };
        self.jobs.push_back(Task::Checkpoint {
            sync,
            manifest: manifest.encode(),
            remove,
            pause: self.settings.sync_pause,
        });
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
