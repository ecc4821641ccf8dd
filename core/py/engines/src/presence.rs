//! Presence and unicast: a gateway's access point, the split of an online proxy, a shard's writer, a user's record.

use muster_presence::{
    bucket, kinds, AccessPoint, Answers, Applied, Ask, Device, FullAsk, Lookup, Message, Origin, Part,
    PresenceSettings, Ranges, Reason, Record, Refusal, Shard, ShardMap, Splitter, Standing, State, Table, TableError,
    To, Verdict, Why, Writer,
};
use muster_transport::Frames;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use crate::convert;
use crate::setup;

/// Gateway, its epoch, whether it is followed, highest complete version, highest seen, missing versions.
pub type SourceEntry = (u32, u32, bool, u64, u64, u64);
/// Gateway, why its full state is needed, the transaction that asks, chunks that are missing, when it asks to be asked again.
pub type FullEntry = (u32, &'static str, Option<u64>, Ranges, Option<u64>);
/// Gateway, its epoch, device, version, index, state, time of the event.
type Held = (u32, u32, String, u64, u16, &'static str, u64);
/// Gateway, its epoch, version, index, device, state, time of the event.
type Told = (u32, u32, u64, u64, String, &'static str, u64);
/// User, record and changes; gateways with epoch and version.
type WholeBatch<'py> = (Vec<(u64, Bound<'py, PyBytes>, Vec<Told>)>, Vec<(u32, u32, Option<u64>)>);
/// Site, shards, shard, frame.
type Framed<'py> = (u16, u16, u16, Bound<'py, PyBytes>);

fn name(device: &Device) -> String {
    String::from_utf8_lossy(device.name()).into_owned()
}

pub fn reason(name: &str) -> PyResult<Reason> {
    let found = Reason::ALL.into_iter().find(|reason| reason.name() == name);
    found.ok_or_else(|| PyValueError::new_err(format!("unknown reason {name:?}")))
}

fn state(state: State) -> &'static str {
    match state {
        State::Online => "online",
        State::Offline(reason) => reason.name(),
    }
}

pub fn shard(shards: u16, index: u16) -> PyResult<Shard> {
    match index < shards {
        true => Ok(Shard { of: shards, index }),
        false => Err(PyValueError::new_err(format!("no shard {index} of {shards}"))),
    }
}

/// Calls `take` with each frame, until it gives an error or a frame is malformed.
fn frames<'a>(bytes: &'a [u8], mut take: impl FnMut(Message<'a>)) -> PyResult<()> {
    for frame in Frames::new(bytes, kinds::ALL) {
        let frame = frame.map_err(|_| PyValueError::new_err("malformed frame"))?;
        let message = Message::read(frame.kind, frame.body);
        take(message.ok_or_else(|| PyValueError::new_err(format!("malformed frame of kind {}", frame.kind.code())))?);
    }
    Ok(())
}

/// The devices that are online at one gateway.
#[pyclass(module = "muster_server._engines")]
pub struct PresenceAccess(AccessPoint);

#[pymethods]
impl PresenceAccess {
    #[new]
    #[pyo3(signature = (settings, *, ap, epoch, now, version=0))]
    fn new(settings: &[u8], ap: u32, epoch: u32, now: u64, version: u64) -> PyResult<Self> {
        let settings: PresenceSettings = setup::settings(settings)?;
        let access = AccessPoint::new(Origin { ap, epoch }, version, settings.access(), now);
        Ok(PresenceAccess(access))
    }

    /// A linked writer says its site, shards and shard; None: its link is down.
    fn writer(&mut self, node: u32, place: Option<(u16, u16, u16)>) -> PyResult<()> {
        let place = place.map(|(site, of, index)| Ok::<_, PyErr>((site, shard(of, index)?)));
        self.0.writer(node, place.transpose()?);
        Ok(())
    }

    /// How long a device that another one replaced has to wait, in us; None: it may come.
    fn barred(&mut self, now: u64, user: u64, device_name: &str, takes_over: bool) -> PyResult<Option<u64>> {
        Ok(self.0.barred(now, user, convert::device(device_name)?, takes_over))
    }

    fn online(
        &mut self,
        now: u64,
        wall_ms: u64,
        user: u64,
        device_name: &str,
        session: u64,
    ) -> PyResult<Vec<(u64, &'static str)>> {
        let closings = self
            .0
            .online(now, wall_ms, user, convert::device(device_name)?, session);
        let closings = closings.map_err(|_| PyOverflowError::new_err("too many devices of one user"))?;
        Ok(closings
            .into_iter()
            .map(|one| (one.session, one.reason.name()))
            .collect())
    }

    fn offline(
        &mut self,
        now: u64,
        wall_ms: u64,
        user: u64,
        device_name: &str,
        session: u64,
        why: &str,
    ) -> PyResult<()> {
        self.0
            .offline(now, wall_ms, user, convert::device(device_name)?, session, reason(why)?);
        Ok(())
    }

    fn drain(&mut self, now: u64, wall_ms: u64) {
        self.0.drain(now, wall_ms);
    }

    /// Frames of a writer, and the sessions that are to end by them.
    fn feed(&mut self, now: u64, writer: u32, bytes: &[u8]) -> PyResult<Vec<(u64, &'static str)>> {
        let (access, mut closings) = (&mut self.0, Vec::new());
        frames(bytes, |message| match message {
            Message::Ask(ask) => access.ask(writer, &ask),
            Message::FullAsk(ask) => access.full_ask(now, writer, &ask),
            Message::Supersede(one) => closings.extend(access.superseded(now, writer, &one)),
            _ => {}
        })?;
        Ok(closings
            .into_iter()
            .map(|one| (one.session, one.reason.name()))
            .collect())
    }

    fn expire(&mut self, now: u64) {
        self.0.expire(now);
    }

    fn deadline(&self) -> Option<u64> {
        self.0.deadline()
    }

    fn take<'py>(&mut self, py: Python<'py>) -> Vec<(Option<u32>, Bound<'py, PyBytes>)> {
        let out = self.0.take_out().into_iter().map(|(to, frame)| {
            let writer = match to {
                To::Proxies => None,
                To::Writer(writer) => Some(writer),
            };
            (writer, PyBytes::new(py, &frame))
        });
        out.collect()
    }

    fn version(&self) -> u64 {
        self.0.version()
    }

    fn devices(&self) -> Vec<(u64, String)> {
        self.0.devices().map(|(user, device)| (user, name(&device))).collect()
    }
}

/// Splits a gateway's frames of one turn for every writer of every site.
#[pyfunction]
pub fn presence_split<'py>(
    py: Python<'py>,
    map: u32,
    sites: Vec<(u16, u16)>,
    bytes: &[u8],
) -> PyResult<Vec<Framed<'py>>> {
    let map = ShardMap { version: map, sites };
    let mut splitter = Splitter::new(&map);
    let mut good = true;
    frames(bytes, |message| match message {
        Message::Report(report) => good &= splitter.report(&report),
        Message::Beat(beat) => splitter.beat(&beat),
        _ => good = false,
    })?;
    if !good {
        return Err(PyValueError::new_err("no packet of a gateway"));
    }
    let framed = splitter.finish().into_iter().map(|(target, frame)| {
        let Shard { of, index } = target.shard;
        (target.site, of, index, PyBytes::new(py, &frame))
    });
    Ok(framed.collect())
}

/// The frame that asks a gateway for versions.
#[pyfunction]
pub fn presence_ask<'py>(
    py: Python<'py>,
    transaction: u64,
    shard_of: (u16, u16),
    origin: (u32, u32),
    ranges: Ranges,
) -> PyResult<Bound<'py, PyBytes>> {
    checked(&ranges)?;
    let ask = Message::Ask(Ask {
        transaction,
        shard: shard(shard_of.0, shard_of.1)?,
        origin: Origin {
            ap: origin.0,
            epoch: origin.1,
        },
        ranges,
    });
    Ok(PyBytes::new(py, &ask.to_frame()))
}

/// The frame that asks a gateway for its full state, or for chunks of it.
#[pyfunction]
pub fn presence_full_ask<'py>(
    py: Python<'py>,
    transaction: u64,
    shard_of: (u16, u16),
    ap: u32,
    chunks: Ranges,
) -> PyResult<Bound<'py, PyBytes>> {
    checked(&chunks)?;
    let ask = Message::FullAsk(FullAsk {
        transaction,
        shard: shard(shard_of.0, shard_of.1)?,
        ap,
        chunks,
    });
    Ok(PyBytes::new(py, &ask.to_frame()))
}

/// Ranges that fit a frame.
fn checked(ranges: &Ranges) -> PyResult<()> {
    let fits = |(first, last): &(u64, u64)| last.wrapping_sub(*first) <= u64::from(u32::MAX);
    match ranges.len() <= muster_presence::RANGES_MAX && ranges.iter().all(fits) {
        true => Ok(()),
        false => Err(PyValueError::new_err("too many ranges, or too long ones")),
    }
}

/// Users to be looked up in the shards of a site.
#[pyclass(module = "muster_server._engines", frozen)]
pub struct PresenceLookup(Lookup);

#[pymethods]
impl PresenceLookup {
    #[new]
    fn new(users: Vec<u64>, shards: u16) -> Self {
        PresenceLookup(Lookup::new(users, shards))
    }

    /// The shards that have some of them.
    fn shards(&self) -> Vec<u16> {
        self.0.shards().collect()
    }

    /// The question to a shard's store: its users, and their buckets.
    fn question<'py>(&self, py: Python<'py>, shard: u16, buckets: u32) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        let (users, buckets) = self.0.question(shard, buckets);
        (PyBytes::new(py, &users), PyBytes::new(py, &buckets))
    }

    /// The answer of the site in MessagePack, from what its shards answered: shard, bytes or a copy of the shard, their clock and keepalive
    /// in ms. `lost`: also devices that their gateway lost recently.
    #[pyo3(signature = (site, parts, lost = false))]
    fn found<'py>(
        &self,
        py: Python<'py>,
        site: u16,
        parts: Vec<(u16, Looked<'py>, u64, u64)>,
        lost: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let parts: Vec<Part<'_>> = parts
            .iter()
            .map(|(shard, answers, now_ms, alive_ms)| Part {
                shard: *shard,
                answers: match answers {
                    Looked::Store(bytes) => Answers::Store(bytes),
                    Looked::Table(table) => Answers::Table(&table.0),
                },
                now_ms: *now_ms,
                alive_ms: *alive_ms,
            })
            .collect();
        let found = self.0.found(site, &parts, lost);
        let found = found.ok_or_else(|| PyValueError::new_err("the store's answer is malformed"))?;
        Ok(PyBytes::new(py, &found))
    }
}

/// Where a shard's answers are.
#[derive(FromPyObject)]
enum Looked<'py> {
    Store(PyBackedBytes),
    Table(PyRef<'py, PresenceTable>),
}

/// A reader's copy of one shard's store.
#[pyclass(module = "muster_server._engines")]
pub struct PresenceTable(Table);

fn table_error(error: TableError) -> PyErr {
    PyValueError::new_err(match error {
        TableError::Malformed => "the store's answer is malformed".to_owned(),
        TableError::TooManyUsers => {
            format!(
                "the shard has more than {} users online",
                muster_presence::TABLE_USERS_MAX
            )
        }
    })
}

#[pymethods]
impl PresenceTable {
    #[new]
    #[pyo3(signature = (*, shards, buckets, seed))]
    fn new(shards: u16, buckets: u32, seed: u64) -> PyResult<Self> {
        match shards > 0 && (1..=1 << 20).contains(&buckets) {
            true => Ok(PresenceTable(Table::new(shards, buckets, seed))),
            false => Err(PyValueError::new_err(format!(
                "no table of {shards} shards and {buckets} buckets"
            ))),
        }
    }

    /// Starts to load from a store that has at least this number of batches.
    fn begin(&mut self, batches: u64) {
        self.0.begin(batches);
    }

    /// A page of the store's records. Returns the number of its users.
    fn page(&mut self, bytes: &[u8]) -> PyResult<usize> {
        self.0.page(bytes).map_err(table_error)
    }

    /// A page of the store's last-seen times.
    fn seen_page(&mut self, bytes: &[u8]) -> PyResult<()> {
        self.0.seen_page(bytes).map_err(table_error)
    }

    /// All pages were taken.
    fn loaded(&mut self) {
        self.0.loaded();
    }

    /// A batch, which the store wrote at second `at_s`. False: one before it is missing.
    fn batch(&mut self, number: u64, users: &[u8], gone: &[u8], at_s: u64) -> PyResult<bool> {
        self.0.batch(number, users, gone, at_s).map_err(table_error)
    }

    #[getter]
    fn is_whole(&self) -> bool {
        self.0.is_whole()
    }

    #[getter]
    fn batches(&self) -> u64 {
        self.0.batches()
    }

    #[getter]
    fn users(&self) -> usize {
        self.0.users_len()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// The devices of a record in the store.
#[pyfunction]
pub fn presence_record(bytes: &[u8]) -> PyResult<Vec<Held>> {
    let record = Record::decode(bytes).ok_or_else(|| PyValueError::new_err("no record of this format"))?;
    let held = record.0.iter().map(|held| {
        let Origin { ap, epoch } = held.origin;
        let device = name(&held.device);
        (
            ap,
            epoch,
            device,
            held.version,
            held.index,
            state(held.state),
            held.at_ms,
        )
    });
    Ok(held.collect())
}

/// The bucket that a user's record lies in.
#[pyfunction]
pub fn presence_bucket(user: u64, shards: u16, buckets: u32) -> u32 {
    bucket(user, shards, buckets)
}

/// Gateways with versions to ask for.
pub fn due(writer: &Writer, now: u64) -> Vec<(u32, u32, Ranges)> {
    let due = writer.due(now).into_iter();
    due.map(|due| (due.origin.ap, due.origin.epoch, due.ranges)).collect()
}

/// Gateways whose full state is needed.
pub fn fulls(writer: &Writer) -> Vec<FullEntry> {
    let fulls = writer.fulls().into_iter().map(|full| {
        let why = match full.why {
            Why::Unknown => "unknown",
            Why::NewEpoch => "new_epoch",
            Why::Jump => "jump",
            Why::TooOld => "too_old",
        };
        (full.ap, why, full.asked, full.missing, full.put_off)
    });
    fulls.collect()
}

/// Whether the shard may be read; and the gateway that it is behind of.
pub fn standing(writer: &mut Writer, now: u64) -> (&'static str, Option<u32>) {
    match writer.standing(now) {
        Standing::InSync => ("in_sync", None),
        Standing::Starting => ("starting", None),
        Standing::Deaf => ("deaf", None),
        Standing::Behind { ap } => ("behind", Some(ap)),
    }
}

/// Each gateway, as a writer knows it.
pub fn sources(writer: &Writer) -> Vec<SourceEntry> {
    let sources = writer.sources().map(|one| {
        let Origin { ap, epoch } = one.origin;
        (ap, epoch, one.resync.is_none(), one.complete, one.highest, one.missing)
    });
    sources.collect()
}

/// A writer's counters: name, help and value.
pub fn writer_counters(writer: &Writer) -> [(&'static str, &'static str, u64); 14] {
    let counters = writer.counters();
    [
        ("presence_events", "Events applied", counters.events),
        ("presence_packets", "Packets with events applied", counters.packets),
        (
            "presence_empty_versions",
            "Versions without events applied",
            counters.empty_versions,
        ),
        (
            "presence_duplicates",
            "Packets dropped: they came by the other path",
            counters.duplicates,
        ),
        ("presence_held", "Packets that waited for a full state", counters.held),
        (
            "presence_held_dropped",
            "Packets dropped while a full state came; they are asked for",
            counters.held_dropped,
        ),
        (
            "presence_old_epoch",
            "Frames refused: of an earlier life of the gateway",
            counters.old_epoch,
        ),
        (
            "presence_wrong_shard",
            "Frames refused: split for another shard",
            counters.wrong_shard,
        ),
        ("presence_malformed", "Frames refused: malformed", counters.malformed),
        (
            "presence_too_many_sources",
            "Frames refused: too many gateways",
            counters.too_many_sources,
        ),
        (
            "presence_unasked",
            "Frames refused: nobody asked for them",
            counters.unasked,
        ),
        (
            "presence_resyncs",
            "Gateways whose full state became necessary",
            counters.resyncs,
        ),
        ("presence_fulls", "Full states put in force", counters.fulls),
        (
            "presence_lost",
            "Gateways that were lost with their users",
            counters.lost,
        ),
    ]
}

/// One shard's view of all gateways.
#[pyclass(module = "muster_server._engines")]
pub struct PresenceWriter(Writer);

#[pymethods]
impl PresenceWriter {
    #[new]
    #[pyo3(signature = (settings, *, shards, index, epoch))]
    fn new(settings: &[u8], shards: u16, index: u16, epoch: u32) -> PyResult<Self> {
        let settings: PresenceSettings = setup::settings(settings)?;
        Ok(PresenceWriter(Writer::new(
            shard(shards, index)?,
            epoch,
            settings.writer(),
        )))
    }

    fn restore_applied(&mut self, now: u64, ap: u32, epoch: u32, version: u64) {
        let version = Some(version);
        self.0.restore_applied(now, &Applied { ap, epoch, version });
    }

    fn restore_user(&mut self, now: u64, user: u64, record: &[u8]) -> bool {
        self.0.restore_user(now, user, record)
    }

    fn expect(&mut self, now: u64, aps: Vec<u32>) {
        self.0.expect(now, &aps);
    }

    fn remove(&mut self, now: u64, aps: Vec<u32>) {
        self.0.remove(now, &aps);
    }

    fn rewrite(&mut self) {
        self.0.rewrite();
    }

    /// Frames of proxies and gateways, and what became of each.
    fn feed(&mut self, now: u64, bytes: &[u8]) -> PyResult<Vec<&'static str>> {
        let writer = &mut self.0;
        let mut verdicts = Vec::new();
        frames(bytes, |message| {
            let verdict = match message {
                Message::Share(share) => writer.share(now, &share),
                Message::Empty(empty) => writer.empty(now, &empty),
                Message::Beat(beat) => writer.beat(now, &beat),
                Message::TooOld(old) => writer.too_old(now, &old),
                Message::Chunk(chunk) => writer.chunk(now, &chunk),
                Message::Wait(wait) => writer.wait(now, &wait),
                _ => Verdict::Refused(Refusal::Unasked),
            };
            verdicts.push(match verdict {
                Verdict::Applied => "applied",
                Verdict::Duplicate => "duplicate",
                Verdict::Held => "held",
                Verdict::Refused(Refusal::OldEpoch) => "old_epoch",
                Verdict::Refused(Refusal::WrongShard) => "wrong_shard",
                Verdict::Refused(Refusal::Malformed) => "malformed",
                Verdict::Refused(Refusal::TooManySources) => "too_many_sources",
                Verdict::Refused(Refusal::Unasked) => "unasked",
            });
        })?;
        Ok(verdicts)
    }

    fn due(&self, now: u64) -> Vec<(u32, u32, Ranges)> {
        due(&self.0, now)
    }

    fn asked(&mut self, ap: u32, ranges: Ranges, transaction: u64) {
        self.0.asked(ap, &ranges, transaction);
    }

    fn waits(&self, ap: u32, transaction: u64) -> u64 {
        self.0.waits(ap, transaction)
    }

    fn release(&mut self, ap: u32, transaction: u64) {
        self.0.release(ap, transaction);
    }

    fn fulls(&self) -> Vec<FullEntry> {
        fulls(&self.0)
    }

    fn full_asked(&mut self, ap: u32, transaction: u64) {
        self.0.full_asked(ap, transaction);
    }

    fn expire(&mut self, now: u64) {
        self.0.expire(now);
    }

    fn stalled(&mut self, now: u64) {
        self.0.stalled(now);
    }

    /// Frames that end sessions, each with its gateway.
    fn supersedes<'py>(&mut self, py: Python<'py>, now: u64) -> Vec<(u32, Bound<'py, PyBytes>)> {
        let told = self.0.take_supersedes(now).into_iter();
        told.map(|one| (one.origin.ap, PyBytes::new(py, &Message::Supersede(one).to_frame())))
            .collect()
    }

    fn deadline(&self, now: u64) -> Option<u64> {
        self.0.deadline(now)
    }

    fn batch<'py>(&mut self, py: Python<'py>, users_max: usize) -> Option<WholeBatch<'py>> {
        let batch = self.0.batch(users_max)?;
        let users = batch.users.iter().map(|user| {
            let changes = user.changes.iter().map(|change| {
                let Origin { ap, epoch } = change.id.origin;
                let (version, index) = (change.id.version, change.id.index);
                (
                    ap,
                    epoch,
                    version,
                    index,
                    name(&change.device),
                    state(change.state),
                    change.at_ms,
                )
            });
            (user.user, PyBytes::new(py, &user.record), changes.collect())
        });
        let vector = batch.vector.iter().map(|one| (one.ap, one.epoch, one.version));
        Some((users.collect(), vector.collect()))
    }

    fn written(&mut self) {
        self.0.written();
    }

    fn is_written(&self) -> bool {
        self.0.is_written()
    }

    /// The second: the gateway that the shard is behind of.
    fn standing(&mut self, now: u64) -> (&'static str, Option<u32>) {
        standing(&mut self.0, now)
    }

    fn online(&self) -> Vec<(u64, String, u32)> {
        let online = self.0.online();
        online.map(|(user, device, ap)| (user, name(&device), ap)).collect()
    }

    fn sources(&self) -> Vec<SourceEntry> {
        sources(&self.0)
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, _, count) in writer_counters(&self.0) {
            dict.set_item(name.trim_start_matches("presence_"), count)?;
        }
        Ok(dict)
    }
}
