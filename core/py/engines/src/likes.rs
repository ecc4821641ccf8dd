//! Likes with their log: connections, batches, questions.

use std::os::fd::{AsFd, AsRawFd};

use muster_journal::{AppendError, Committer, Group, Journal, Owner, ReadError, GROUP_BYTES_MAX};
use muster_likes::resp::{Clients, Cluster, ConnectionId, Front, Node, Settings};
use muster_likes::{Engine, Options, Phase, Record, ERASE_SLOTS_MAX, PAGE_MAX, WINDOWS};
use muster_tcp::{Limits, Tcp};
use pyo3::exceptions::{PyLookupError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::edge::{listener, tls_of};
use crate::setup::HostPort;

/// Written to a client beyond the limit.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";
/// A silent client is asked by its kernel after this many seconds, as by Redis.
const KEEPALIVE_S: u32 = 300;

/// A node of a cluster: id, host, port, slots from the first to the second.
type ClusterNode = (String, String, u16, Vec<(u16, u16)>);

/// Key, modification, and count and likers unless the item was deleted.
type Row<'py> = (Bound<'py, PyBytes>, u64, Option<(u64, Bound<'py, PyBytes>)>);

/// Key, and count unless the item was deleted.
type Changed<'py> = (Bound<'py, PyBytes>, Option<u64>);

/// The sockets of clients.
struct Door {
    tcp: Tcp,
    clients: Clients,
}

/// One node's likes over its durable log in a folder, or over a log that its owner has. `fileno` is readable when `durable` is to be called,
/// `clients_fileno` when `turn` is.
#[pyclass(module = "muster_server._engines")]
pub struct LikesEngine {
    front: Front,
    door: Option<Door>,
    committer: Option<Committer>,
    spare: Group,
    epoch: u64,
    /// The owner takes batches and makes them durable.
    log_elsewhere: bool,
    skipped: u64,
}

#[pymethods]
impl LikesEngine {
    /// Opens the log, restores `snapshot` and replays the records behind it. Without a folder the log is elsewhere.
    ///
    /// `one_of`: groups of kinds that exclude one another. A log in the folder that has no record goes on at offset `begin`; a sole owner gets an epoch above `after`. Raises `ValueError` for a snapshot that is
    /// damaged, `LookupError` where the log lacks records behind the snapshot, `OSError` for a log that is damaged, locked or another owner's.
    #[new]
    #[pyo3(signature = (*, folder, segment_bytes=2 * GROUP_BYTES_MAX as u64, epoch=None, snapshot=None, items_by_user=true, passwords=Vec::new(), one_of=Vec::new(), begin=0, after=0))]
    #[allow(clippy::too_many_arguments)] // each has a name in Python
    fn new(
        py: Python<'_>,
        folder: Option<&str>,
        segment_bytes: u64,
        epoch: Option<u64>,
        snapshot: Option<Vec<u8>>,
        items_by_user: bool,
        passwords: Vec<(String, String)>,
        one_of: Vec<Vec<String>>,
        begin: u64,
        after: u64,
    ) -> PyResult<LikesEngine> {
        if segment_bytes < 2 * GROUP_BYTES_MAX as u64 {
            return Err(PyValueError::new_err(format!(
                "segment_bytes is below {}",
                2 * GROUP_BYTES_MAX
            )));
        }
        let owner = epoch.map_or(Owner::Sole, Owner::Epoch);
        let options = Options { items_by_user };
        let settings = Settings {
            passwords,
            one_of,
            cluster: None,
        };
        py.detach(|| {
            let Some(folder) = folder else {
                return Ok(LikesEngine {
                    front: Front::new(restored(snapshot, options)?, settings),
                    door: None,
                    committer: None,
                    spare: Group::new(),
                    epoch: epoch.unwrap_or(0),
                    log_elsewhere: true,
                    skipped: 0,
                });
            };
            let engine = restored(snapshot, options)?;
            let options = muster_journal::Options {
                segment_bytes,
                owner,
                begin,
                after,
            };
            let journal = Journal::open(folder, options).map_err(|error| PyOSError::new_err(error.to_string()))?;
            let engine = replayed(&journal, engine)?;
            let (epoch, skipped) = (journal.epoch(), journal.skipped().end - journal.skipped().start);
            let committer = Some(Committer::new(journal)?);
            Ok(LikesEngine {
                front: Front::new(engine, settings),
                door: None,
                committer,
                spare: Group::new(),
                epoch,
                log_elsewhere: false,
                skipped,
            })
        })
    }

    /// Offsets that the log passed over when it was opened, since it had no record and was to begin higher.
    fn skipped(&self) -> u64 {
        self.skipped
    }

    fn fileno(&self) -> PyResult<i32> {
        Ok(self.committer()?.as_fd().as_raw_fd())
    }

    /// Ends the log cleanly; waits for the batch under way.
    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(committer) = self.committer.take() else {
            return Ok(());
        };
        py.detach(|| committer.close())
            .map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// Listens for clients. `tls`: certificates and their key, in PEM. Returns the address. Raises `OSError` if it is in use, and `ValueError` for
    /// a certificate or key that is none.
    #[allow(clippy::needless_pass_by_value)] // the binding gives tuples as values
    fn listen(
        &mut self,
        bind: HostPort,
        connections_max: usize,
        tls: Option<(Vec<u8>, Vec<u8>)>,
    ) -> PyResult<(String, u16)> {
        let mut tcp = Tcp::new(Limits {
            streams: connections_max,
            user_timeout_ms: 0,
            keepalive_s: KEEPALIVE_S,
            refusal: TOO_MANY.into(),
            ..Limits::default()
        })?;
        if let Some((certificates, key)) = tls {
            tcp.set_tls(Some(tls_of(&certificates, &key)?));
        }
        let socket = listener(&bind)?;
        let address = socket.local_addr()?;
        tcp.listen(socket)?;
        self.door = Some(Door {
            tcp,
            clients: Clients::default(),
        });
        Ok((address.ip().to_string(), address.port()))
    }

    fn clients_fileno(&self) -> PyResult<i32> {
        Ok(self.door()?.tcp.fd().as_raw_fd())
    }

    /// Serves the sockets within a bound, then starts a batch unless one is under way. `clients_fileno` stays readable while more is to be done.
    fn turn(&mut self, now_ms: u64) -> PyResult<()> {
        if let Some(door) = &mut self.door {
            door.tcp.turn(&mut door.clients.serving(&mut self.front, now_ms));
        }
        self.start_batch()
    }

    /// Accepts no more clients; those that are here stay.
    fn stop_listening(&mut self) {
        if let Some(door) = &mut self.door {
            door.tcp.stop_listening();
        }
    }

    /// Accepts no more bytes, until `go_on`.
    fn hold(&mut self) {
        if let Some(door) = &mut self.door {
            door.clients.hold();
        }
    }

    /// Accepts bytes again; those that came meanwhile go first.
    fn go_on(&mut self) {
        if let Some(door) = &mut self.door {
            door.clients.go_on();
        }
    }

    /// Closes all sockets, after writing what they take at once.
    fn close_clients(&mut self, now_ms: u64) -> PyResult<()> {
        if let Some(door) = &mut self.door {
            door.tcp.stop_listening();
            door.clients.close();
        }
        self.turn(now_ms)?;
        self.door = None;
        Ok(())
    }

    /// Clients that are connected, that connected since the start, and that were refused.
    fn clients(&self) -> (usize, u64, u64) {
        self.door.as_ref().map_or((0, 0, 0), |door| {
            let counters = door.tcp.counters();
            let refused = counters.refused_full + counters.refused_descriptors;
            (door.clients.len(), counters.accepted, refused)
        })
    }

    /// Opens a connection without a socket, for commands of this process; answers its number.
    fn connect(&mut self) -> u32 {
        self.front.open().0
    }

    /// A connection's bytes; answers whether it takes no more until `take` says so. Starts a batch unless one is under way.
    fn feed(&mut self, connection: u32, data: &[u8], now_ms: u64) -> PyResult<bool> {
        self.front.feed(ConnectionId(connection), data, now_ms);
        self.start_batch()?;
        Ok(self.front.is_full(ConnectionId(connection)))
    }

    /// Whether changes wait to be durable.
    fn pending(&self) -> bool {
        self.front.is_pending()
    }

    /// Why no change is taken any more, if so.
    fn refusal(&self) -> Option<&str> {
        self.front.refusal()
    }

    /// Of this owner of the log.
    fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The offset of the next record.
    fn offset(&self) -> u64 {
        self.front.engine().offset()
    }

    /// A connection's replies, whether it has ended, and whether it takes no more until the next call.
    fn take<'py>(
        &mut self,
        py: Python<'py>,
        connection: u32,
        now_ms: u64,
    ) -> PyResult<(Bound<'py, PyBytes>, bool, bool)> {
        let id = ConnectionId(connection);
        let replies = PyBytes::new(py, &self.front.take_replies(id));
        self.feed(connection, &[], now_ms)?; // what a full connection left unparsed
        Ok((replies, self.front.ends(id), self.front.is_full(id)))
    }

    /// Applies the batch that is durable, if one is, and starts the next. Called when `fileno` is readable.
    fn durable(&mut self, now_ms: u64) -> PyResult<bool> {
        let Some(appended) = self.committer()?.poll() else {
            return Ok(false);
        };
        match appended.result {
            Ok(offsets) => self.front.batch_is_durable(offsets.start, now_ms),
            Err(error) => {
                let (text, for_good) = match &error {
                    AppendError::DiskFull { .. } | AppendError::TooLarge { .. } => (format!("MISCONF {error}"), false),
                    AppendError::Fenced { .. } => (format!("CLUSTERDOWN {error}"), true),
                    AppendError::Failed(_) | AppendError::Refused => (format!("MISCONF {error}"), true),
                };
                self.front.batch_failed(&text, for_good, now_ms);
            }
        }
        self.spare = appended.group;
        self.start_batch()?;
        Ok(true)
    }

    /// The records that are to be made durable next, each behind its length, and their number. `None` while there are none or a batch is under way.
    fn begin_batch<'py>(&mut self, py: Python<'py>) -> Option<(Bound<'py, PyBytes>, usize)> {
        if !self.log_elsewhere {
            return None;
        }
        let records = self.front.begin_batch()?;
        let (mut payload, mut count) = (Vec::new(), 0);
        for record in records {
            payload.extend_from_slice(&(record.len() as u32).to_le_bytes());
            payload.extend_from_slice(record);
            count += 1;
        }
        Some((PyBytes::new(py, &payload), count))
    }

    /// The batch is durable, its first record at `first`: applies it and replies.
    fn batch_is_durable(&mut self, first: u64, now_ms: u64) -> PyResult<()> {
        let expected = self.front.engine().offset();
        if first != expected {
            return Err(PyValueError::new_err(format!(
                "batch is at offset {first} and not at {expected}"
            )));
        }
        self.front.batch_is_durable(first, now_ms);
        Ok(())
    }

    /// The batch is not in the log; `text`, which begins with an error's code, is the reply to its changes, and to all later ones if it is `for_good`.
    fn batch_failed(&mut self, text: &str, for_good: bool, now_ms: u64) {
        self.front.batch_failed(text, for_good, now_ms);
    }

    /// Applies records of the log, the first at `first`, as they were applied when they were new.
    fn replay(&mut self, py: Python<'_>, first: u64, payload: &[u8]) -> PyResult<()> {
        let engine = self.front.engine_mut();
        let expected = engine.offset();
        if first != expected {
            return Err(PyValueError::new_err(format!(
                "batch is at offset {first} and not at {expected}"
            )));
        }
        py.detach(|| {
            let mut rest = payload;
            while let Some((len, after)) = rest.split_first_chunk::<4>() {
                let (record, after) = after
                    .split_at_checked(u32::from_le_bytes(*len) as usize)
                    .ok_or_else(|| PyValueError::new_err("payload ends within a record"))?;
                // A record that could not be applied when it was new can't be applied now either.
                let _ = engine.apply(engine.offset(), record);
                rest = after;
            }
            Ok(())
        })
    }

    /// Whether no later owner has claimed the log in the folder. Raises `OSError`.
    fn owns(&self) -> PyResult<bool> {
        self.committer()?
            .owns()
            .map_err(|error| PyOSError::new_err(error.to_string()))
    }

    /// Another node has the log from now on: everything is dropped. The log is closed, and nothing is pending.
    fn forget(&mut self) -> PyResult<()> {
        if self.committer.is_some() || self.front.is_pending() {
            return Err(PyRuntimeError::new_err("the log is open, or changes wait for it"));
        }
        self.front.forget();
        Ok(())
    }

    /// Users and passwords of later clients.
    fn set_passwords(&mut self, passwords: Vec<(String, String)>) {
        self.front.set_passwords(passwords);
    }

    /// From now on questions, and changes if `changes_too`, get `text`, which begins with an error's code, as their reply; None: they are served again.
    fn suspend(&mut self, text: Option<String>, changes_too: bool) {
        self.front.suspend(text, changes_too);
    }

    /// Nodes as (id, host, port, [(first slot, last slot)]), the place of this one, the table's epoch; and whether this one serves no item, whatever slots
    /// it stands for.
    #[pyo3(signature = (nodes, me, epoch, *, door=false))]
    fn set_cluster(&mut self, nodes: Vec<ClusterNode>, me: usize, epoch: u64, door: bool) -> PyResult<()> {
        if me >= nodes.len() {
            return Err(PyValueError::new_err("this node is not among the cluster's nodes"));
        }
        let node = |(id, host, port, slots)| Node { id, host, port, slots };
        let nodes = nodes.into_iter().map(node).collect();
        self.front.set_cluster(Some(Cluster { nodes, me, door, epoch }));
        Ok(())
    }

    fn count(&self, key: &[u8]) -> u64 {
        self.front.engine().count(key)
    }

    fn likes(&self, key: &[u8], user: u64) -> bool {
        self.front.engine().likes(key, user)
    }

    /// Count, whether the viewer likes it, `None` without a viewer, and the newest likers of each item, at most ten.
    #[allow(clippy::needless_pass_by_value)] // the binding gives lists as values
    fn feed_page(&self, keys: Vec<Vec<u8>>, viewer: Option<u64>, newest: usize) -> Vec<(u64, Option<bool>, Vec<u64>)> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let entries = self.front.engine().feed(&keys, viewer, newest);
        entries.map(|entry| (entry.count, entry.likes, entry.newest)).collect()
    }

    fn modification(&self, key: &[u8]) -> u64 {
        self.front.engine().modification(key)
    }

    /// The newest likers, newest first.
    fn newest(&self, key: &[u8], count: usize) -> Vec<u64> {
        self.front.engine().newest(key, count)
    }

    /// Likers in the order of their dense ids.
    fn likers(&self, key: &[u8], start: u64, count: usize) -> Vec<u64> {
        self.front
            .engine()
            .likers_from(key, start)
            .take(count.min(PAGE_MAX))
            .collect()
    }

    /// Users who like all of `keys`.
    #[allow(clippy::needless_pass_by_value)] // the binding gives lists as values
    fn both(&self, keys: Vec<Vec<u8>>) -> Vec<u64> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        self.front.engine().likers_of_all(&keys, PAGE_MAX)
    }

    /// Items that a user likes, newest first.
    fn items<'py>(&self, py: Python<'py>, user: u64, start: usize, count: usize) -> Vec<Bound<'py, PyBytes>> {
        let items = self.front.engine().items_of(user, start, count);
        items.into_iter().map(|key| PyBytes::new(py, key)).collect()
    }

    /// The same with the time of each like in seconds since 1970; `None`: a version that kept no times made it.
    fn liked<'py>(
        &self,
        py: Python<'py>,
        user: u64,
        start: usize,
        count: usize,
    ) -> Vec<(Bound<'py, PyBytes>, Option<u32>)> {
        let liked = self.front.engine().liked_by(user, start, count);
        liked
            .into_iter()
            .map(|(key, at_s)| (PyBytes::new(py, key), at_s))
            .collect()
    }

    fn fields<'py>(&self, py: Python<'py>, key: &[u8]) -> Vec<Bound<'py, PyBytes>> {
        self.front
            .engine()
            .fields(key)
            .into_iter()
            .map(|field| PyBytes::new(py, field))
            .collect()
    }

    /// The value of each window, in the order of `windows`.
    fn trends(&self, key: &[u8], now_ms: u64) -> Vec<f64> {
        (0..WINDOWS.len())
            .map(|window| self.front.engine().trend(key, window, now_ms))
            .collect()
    }

    /// Names of the windows and their half-lives in ms.
    #[staticmethod]
    fn windows() -> Vec<(&'static str, u64)> {
        WINDOWS.to_vec()
    }

    /// How many items of a ranking, or members of a leaderboard, stand above this one.
    fn rank(&mut self, ranking: &[u8], key: &[u8]) -> Option<usize> {
        self.front.engine_mut().rank(ranking, key)
    }

    fn ranking_len(&mut self, ranking: &[u8]) -> usize {
        self.front.engine_mut().ranking_len(ranking)
    }

    /// Items of a ranking, or members of a leaderboard, with their scores, best first.
    fn page<'py>(
        &mut self,
        py: Python<'py>,
        ranking: &[u8],
        start: usize,
        count: usize,
        now_ms: u64,
    ) -> Vec<(Bound<'py, PyBytes>, f64)> {
        let page = self.front.engine_mut().page(ranking, start, count, now_ms);
        page.into_iter()
            .map(|ranked| (PyBytes::new(py, ranked.key), ranked.score))
            .collect()
    }

    /// Rows that are not written behind yet, and the cursor to go on with.
    fn rows<'py>(&self, py: Python<'py>, cursor: u64, count: usize, bytes: usize) -> (Option<u64>, Vec<Row<'py>>) {
        let (next, rows) = self.front.engine().rows(cursor, count, bytes);
        let row = |row: muster_likes::Row| {
            let likes = row.likes.map(|likes| (likes.count, PyBytes::new(py, &likes.likers)));
            (PyBytes::new(py, &row.key), row.modification, likes)
        };
        (next, rows.into_iter().map(row).collect())
    }

    /// The row of this modification is written.
    fn written(&mut self, key: &[u8], modification: u64) {
        self.front.engine_mut().written(key, modification);
    }

    /// All rows of changes below `offset` are written.
    fn written_below(&mut self, offset: u64) {
        self.front.engine_mut().written_below(offset);
    }

    /// Items and deletions that are not written yet.
    fn dirty(&self) -> usize {
        self.front.engine().dirty_len()
    }

    /// From now on `changed` tells what changes.
    fn watch(&mut self) {
        self.front.engine_mut().watch();
    }

    /// Items that changed, with their counts, `None` where they were deleted; and whether some were lost.
    fn changed<'py>(&mut self, py: Python<'py>, count: usize) -> (Vec<Changed<'py>>, bool) {
        let (items, lost) = self.front.engine_mut().changed_items(count);
        let item = |(key, count): (Vec<u8>, _)| (PyBytes::new(py, &key), count);
        (items.into_iter().map(item).collect(), lost)
    }

    /// Keys from slot `cursor` on with their counts, and the cursor to go on with, 0 at the end.
    fn scan<'py>(&self, py: Python<'py>, cursor: u64, count: usize) -> (u64, Vec<(Bound<'py, PyBytes>, u64)>) {
        let engine = self.front.engine();
        let (next, keys) = engine.scan(cursor, count);
        let item = |key| (PyBytes::new(py, key), engine.count(key));
        (next, keys.into_iter().map(item).collect())
    }

    /// Takes users with the dense ids of their rows, None for one that was erased, in the order of the ids' hand-out. Raises `ValueError` where the
    /// state has others.
    #[allow(clippy::needless_pass_by_value)] // the binding gives lists as values
    fn take_users(&mut self, users: Vec<(u32, Option<u64>)>) -> PyResult<()> {
        let engine = self.front.engine_mut();
        let taken = users.iter().try_for_each(|&(dense, user)| match user {
            Some(user) => engine.take_user(dense, user),
            None => engine.take_erased(dense),
        });
        taken.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Takes an item as its row has it, unless the item that is here is as new. Raises `ValueError` for a row that is damaged.
    fn take_row(&mut self, key: Vec<u8>, modification: u64, likes: Option<(u64, Vec<u8>)>) -> PyResult<bool> {
        let likes = likes.map(|(count, likers)| muster_likes::RowLikes { count, likers });
        let row = muster_likes::Row {
            key,
            modification,
            likes,
        };
        let taken = self.front.engine_mut().take_row(&row);
        taken.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Applies the records of a log that may be damaged, from the state's offset on: up to the first that is lost, or, across
    /// gaps, all whole ones. Below `rows_end` it applies leaderboards alone, which no row has. Raises `OSError`.
    #[pyo3(signature = (folder, across_gaps, rows_end=0))]
    fn apply_log(&mut self, py: Python<'_>, folder: &str, across_gaps: bool, rows_end: u64) -> PyResult<u64> {
        let engine = self.front.engine_mut();
        let (mut applied, mut stopped) = (0, false);
        py.detach(|| {
            muster_journal::check(folder, |records| {
                for (offset, record) in records {
                    stopped |= offset > engine.offset() && !across_gaps;
                    if stopped || offset < engine.offset() {
                        continue;
                    }
                    if offset < rows_end {
                        engine.apply_to_leaderboards(offset, record);
                    } else {
                        engine.skip_to(offset);
                        engine.need_id();
                        let _ = engine.apply(offset, record); // as when it was new
                    }
                    applied += 1;
                }
            })
        })
        .map_err(|error| PyOSError::new_err(format!("{folder}: {error}")))?;
        Ok(applied)
    }

    /// The next record has this offset, if that is higher.
    fn skip_to(&mut self, offset: u64) {
        self.front.engine_mut().skip_to(offset);
    }

    /// Dense ids and users in the order of the ids' hand-out, from the `start`th on; None for a user that was erased.
    fn users(&self, start: usize, count: usize) -> Vec<(u32, Option<u64>)> {
        self.front.engine().users_from(start).take(count).collect()
    }

    /// The whole state below `offset` of the log.
    fn snapshot<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.front.engine_mut().snapshot())
    }

    /// Begins a snapshot of the state below the offset that it answers; records go on meanwhile.
    fn begin_snapshot(&mut self) -> u64 {
        self.front.engine_mut().begin_snapshot()
    }

    /// Its next part, of about `bytes`; empty at the end.
    fn snapshot_part<'py>(&mut self, py: Python<'py>, bytes: usize) -> Bound<'py, PyBytes> {
        let part = self.front.engine_mut().snapshot_part(bytes).unwrap_or_default();
        PyBytes::new(py, &part)
    }

    /// Drops the log's segments below `offset`: a snapshot holds them.
    fn trim(&self, offset: u64) -> PyResult<()> {
        self.committer()?.trim(offset);
        Ok(())
    }

    /// Erasures under way: job, phase, number of slots gone through, the dense id that the user had, and the offset behind the record that dropped
    /// the user's id, 0 before it.
    fn erasures(&self) -> Vec<(u64, &'static str, u64, Option<u32>, u64)> {
        let erasures = self.front.engine().erasures().iter();
        let under_way = erasures.filter(|(_, erasure)| erasure.phase != Phase::Done);
        under_way
            .map(|(&job, erasure)| {
                let looked = erasure.items + erasure.leaderboards;
                (job, erasure.phase.name(), looked, erasure.dense, erasure.since)
            })
            .collect()
    }

    /// Whether a change of this user is refused, because the user is being erased.
    fn refuses(&self, user: u64) -> bool {
        self.front.engine().refuses(user)
    }

    /// Items and leaderboards with a trace of an erasure's user among `count` slots from `cursor` on, behind the cursor to go on with, 0 at the end.
    fn traces(&self, job: u64, cursor: u64, count: u64) -> (u64, u64) {
        self.front.engine().traces(job, cursor, count)
    }

    /// Appends the next step of an erasure: of its slots, or the one that drops the user's id. Answers whether the log takes it.
    fn erase_step(&mut self, job: u64, at_ms: u64, drop_id: bool) -> PyResult<bool> {
        self.go_on_erasing(&match drop_id {
            true => Record::Erased { at_ms, job },
            false => Record::EraseStep {
                at_ms,
                job,
                slots: ERASE_SLOTS_MAX,
            },
        })
    }

    /// Appends the end of an erasure, with the numbers of snapshots and segments that are left. Answers whether the log takes it.
    fn erasure_done(&mut self, job: u64, at_ms: u64, snapshots: u32, segments: u32) -> PyResult<bool> {
        self.go_on_erasing(&Record::ErasureDone {
            at_ms,
            job,
            snapshots,
            segments,
        })
    }

    /// Orders a segment of the log without bytes of former ones; trimmed ones are deleted until `reuse_again`.
    fn begin_clean(&self) -> PyResult<()> {
        self.committer()?.begin_clean();
        Ok(())
    }

    /// The first offset of that segment, None while orders are under way. Raises `OSError` if it could not be begun.
    fn clean(&self) -> PyResult<Option<u64>> {
        let committer = self.committer()?;
        if !committer.is_idle() {
            return Ok(None);
        }
        committer.clean().transpose().map_err(PyOSError::new_err)
    }

    /// The log may use trimmed segments again.
    fn reuse_again(&self) -> PyResult<()> {
        self.committer()?.reuse_again();
        Ok(())
    }

    /// The offset of the oldest record in the log, and the number of its segments.
    fn log_files(&self) -> PyResult<(u64, usize)> {
        let committer = self.committer()?;
        Ok((committer.start(), committer.segments()))
    }

    fn figures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (engine, figures) = (self.front.engine(), PyDict::new(py));
        figures.set_item("offset", engine.offset())?;
        figures.set_item("items", engine.item_count())?;
        figures.set_item("users", engine.user_count())?;
        figures.set_item("likes", engine.like_count())?;
        figures.set_item("leaderboards", engine.leaderboard_count())?;
        figures.set_item("members", engine.member_count())?;
        figures.set_item("not_written_behind", engine.dirty_len())?;
        figures.set_item("commands", self.front.traffic().1)?;
        figures.set_item("feeds", self.front.feeds().pages)?;
        figures.set_item("feed_items", self.front.feeds().items)?;
        figures.set_item("erasures", self.erasures().len())?;
        figures.set_item("refusal", self.front.refusal())?;
        figures.set_item("trouble", self.front.trouble())?;
        figures.set_item("not_taken", self.front.not_taken())?;
        Ok(figures)
    }
}

impl LikesEngine {
    fn door(&self) -> PyResult<&Door> {
        let closed = || PyRuntimeError::new_err("the likes engine does not listen");
        self.door.as_ref().ok_or_else(closed)
    }

    fn committer(&self) -> PyResult<&Committer> {
        self.committer
            .as_ref()
            .ok_or_else(|| PyRuntimeError::new_err("the likes engine is closed"))
    }

    fn go_on_erasing(&mut self, record: &Record<'_>) -> PyResult<bool> {
        let taken = self.front.go_on_erasing(record);
        self.start_batch()?;
        Ok(taken)
    }

    fn start_batch(&mut self) -> PyResult<()> {
        if self.log_elsewhere {
            return Ok(());
        }
        let mut group = std::mem::take(&mut self.spare);
        group.clear();
        let Some(records) = self.front.begin_batch() else {
            self.spare = group;
            return Ok(());
        };
        for record in records {
            group.push(record).expect("a batch fits into a group");
        }
        self.committer()?.append(group);
        Ok(())
    }
}

fn restored(snapshot: Option<Vec<u8>>, options: Options) -> PyResult<Engine> {
    match snapshot {
        Some(bytes) => Engine::restore(&bytes, options).map_err(|error| PyValueError::new_err(error.to_string())),
        None => Ok(Engine::new(options)),
    }
}

fn replayed(journal: &Journal, mut engine: Engine) -> PyResult<Engine> {
    let damaged = |error: &dyn std::fmt::Display| PyOSError::new_err(error.to_string());
    let mut reader = journal.reader(engine.offset()).map_err(|error| match error {
        ReadError::Trimmed { .. } | ReadError::Beyond { .. } => PyLookupError::new_err(error.to_string()),
        error => damaged(&error),
    })?;
    while let Some(records) = reader.next_group().map_err(|error| damaged(&error))? {
        for (offset, record) in records {
            // A record that could not be applied when it was new can't be applied now either.
            let _ = engine.apply(offset, record);
        }
    }
    Ok(engine)
}
