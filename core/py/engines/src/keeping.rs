//! The engines of presence: an online writer's node, and a gateway without sessions for benches and tests.

use std::convert::Infallible;
use std::os::fd::AsRawFd;

use muster_driver::STALL_US;
use muster_presence::{
    page, AccessPoint, Apart, Applied, Change, ChangeId, Keeping, Origin, Post, PostEvent, PresenceSettings, Ranges,
    Reason, State, Task, Work, Writer,
};
use muster_transport::HasLinks;
use muster_udp::monotonic_now;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::convert;
use crate::online;
use crate::presence::{self, FullEntry, SourceEntry};
use crate::server::{closed, engine, RoleMachine, Running};
use crate::setup::{self, LinkOptions};

/// Figures of a node of presence, beyond those of every node.
pub trait Told: Task {
    /// An event of its task: name first.
    fn event<'py>(py: Python<'py>, event: Self::Event) -> PyResult<Bound<'py, PyTuple>>;
    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64));
    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64));
}

impl<T: Told> RoleMachine for Post<T> {
    type Beside = ();
    type Settings = serde::de::IgnoredAny;

    fn not_ready(&self) -> Option<&'static str> {
        Post::not_ready(self)
    }

    fn set_buffers(&mut self, bytes: &[u32]) {
        self.set_link_buffer(bytes[0]);
    }

    fn event<'py>(py: Python<'py>, event: PostEvent<T::Event>) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            PostEvent::Link(change) => convert::link_event(py, &change),
            PostEvent::Task(event) => T::event(py, event),
        }
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters().each(&mut *each);
        self.task.each_counter(each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        each(
            "presence_waiting",
            "Frames that wait for a link's window",
            self.waiting() as f64,
        );
        self.task.each_gauge(each);
    }
}

impl Told for Keeping {
    fn event<'py>(py: Python<'py>, event: Work) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            Work::Unwritten => ("unwritten",).into_pyobject(py),
            Work::Missing => ("missing",).into_pyobject(py),
        }
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(&mut *each);
        for (name, help, value) in presence::writer_counters(&self.writer) {
            each(name, help, value);
        }
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        let writer = &self.writer;
        each(
            "presence_online",
            "Devices online in this shard",
            writer.online_len() as f64,
        );
        each(
            "presence_gateways",
            "Gateways that this writer follows",
            writer.sources().count() as f64,
        );
        let missing: u64 = writer.sources().map(|source| source.missing).sum();
        each(
            "presence_missing",
            "Versions of gateways that are missing",
            missing as f64,
        );
    }
}

impl Told for Apart {
    fn event<'py>(_py: Python<'py>, event: Infallible) -> PyResult<Bound<'py, PyTuple>> {
        match event {}
    }

    fn each_counter(&self, _each: &mut dyn FnMut(&'static str, &'static str, u64)) {}

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        let online = self.access.devices().count();
        each("presence_online", "Devices online here", online as f64);
    }
}

type WriterNode = Post<Keeping>;
type GatewayNode = Post<Apart>;

/// Users, changes for the feed, and the four arguments of the store's script.
type PackedBatch<'py> = (
    usize,
    usize,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

engine!(
    /// Keeps one shard of a site's store true.
    OnlineWriterEngine, WriterNode, silent
);
engine!(
    /// A gateway without sessions, whose devices come and go by calls.
    PresenceGatewayEngine, GatewayNode, silent
);

#[pymethods]
impl OnlineWriterEngine {
    #[new]
    #[pyo3(signature = (links, settings, *, site, shards, shard))]
    fn new(links: LinkOptions, settings: &[u8], site: u16, shards: u16, shard: u16) -> PyResult<Self> {
        let role = muster_presence::role::ONLINE_WRITER;
        let dials = vec![muster_rooms::role::GATEWAY, muster_rooms::role::EDGE];
        let settings: PresenceSettings = setup::settings(settings)?;
        let shard = presence::shard(shards, shard)?;
        let writer = Writer::new(shard, links.me(role).epoch, settings.writer());
        let keeping = Keeping::new(site, shard, dials.clone(), writer);
        Ok(OnlineWriterEngine {
            running: online::running(links, role, dials, keeping)?,
        })
    }

    /// The time that all calls of this engine go by.
    fn now(&self) -> u64 {
        monotonic_now()
    }

    // ---- What the store had

    fn restore_applied(&mut self, ap: u32, epoch: u32, version: u64) -> PyResult<()> {
        let version = Some(version);
        let applied = Applied { ap, epoch, version };
        self.with(|keeping| keeping.writer.restore_applied(monotonic_now(), &applied))
    }

    /// A page of records. The first: users read; the second: users whose record is none of this format or shard.
    fn restore_users(&mut self, bytes: &[u8]) -> PyResult<(usize, Vec<u64>)> {
        let users = page(bytes).ok_or_else(|| PyValueError::new_err("the store's page is malformed"))?;
        let now = monotonic_now();
        self.with(|keeping| {
            let wrong = users
                .iter()
                .filter(|(user, record)| !keeping.writer.restore_user(now, *user, record));
            let wrong: Vec<u64> = wrong.map(|(user, _)| *user).collect();
            (users.len() - wrong.len(), wrong)
        })
    }

    /// What the feed told last of this device; after all records of the store.
    fn restore_told(
        &mut self,
        user: u64,
        device_name: &str,
        of: (u32, u32, u64, u64),
        at_ms: u64,
        online: bool,
    ) -> PyResult<()> {
        let (ap, epoch, version, index) = of;
        let origin = Origin { ap, epoch };
        let id = ChangeId { origin, version, index };
        let change = Change {
            id,
            user,
            device: convert::device(device_name)?,
            state: match online {
                true => State::Online,
                false => State::Offline(Reason::Lost),
            },
            at_ms,
        };
        self.with(|keeping| keeping.writer.restore_told(monotonic_now(), &change))
    }

    /// The store has been read.
    fn open(&mut self) -> PyResult<()> {
        self.with(|keeping| keeping.open(monotonic_now()))
    }

    fn rewrite(&mut self) -> PyResult<()> {
        self.with(|keeping| keeping.writer.rewrite())
    }

    // ---- For the compensation runner

    fn due(&self, now: u64) -> PyResult<Vec<(u32, u32, Ranges)>> {
        Ok(presence::due(self.writer()?, now))
    }

    /// Whether nothing is missing. The next time that something is, there is an event.
    fn is_whole(&mut self) -> PyResult<bool> {
        self.with(Keeping::is_whole)
    }

    fn asked(&mut self, ap: u32, ranges: Ranges, transaction: u64) -> PyResult<()> {
        self.with(|keeping| keeping.writer.asked(ap, &ranges, transaction))
    }

    fn waits(&self, ap: u32, transaction: u64) -> PyResult<u64> {
        Ok(self.writer()?.waits(ap, transaction))
    }

    fn release(&mut self, ap: u32, transaction: u64) -> PyResult<()> {
        self.with(|keeping| keeping.writer.release(ap, transaction))
    }

    fn fulls(&self) -> PyResult<Vec<FullEntry>> {
        Ok(presence::fulls(self.writer()?))
    }

    fn full_asked(&mut self, ap: u32, transaction: u64) -> PyResult<()> {
        self.with(|keeping| keeping.writer.full_asked(ap, transaction))
    }

    /// Sends a frame to a linked node.
    fn send(&mut self, node: u32, frame: &[u8]) -> PyResult<()> {
        let running = self.get_mut()?;
        running.driver.machine_mut().with(|_, mail| mail.send(node, frame));
        running.driver.kick();
        Ok(())
    }

    // ---- For the store

    /// The next batch for the store; the same again until `written`.
    fn batch<'py>(&mut self, py: Python<'py>, users_max: usize, buckets: u32) -> PyResult<Option<PackedBatch<'py>>> {
        let packed = self.with(|keeping| keeping.batch(monotonic_now(), users_max, buckets))?;
        Ok(packed.map(|packed| {
            let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
            (
                packed.users_len,
                packed.feed_len,
                bytes(&packed.users),
                bytes(&packed.gone),
                bytes(&packed.vector),
                bytes(&packed.feed),
            )
        }))
    }

    fn written(&mut self) -> PyResult<()> {
        self.with(|keeping| keeping.writer.written())
    }

    fn is_written(&self) -> PyResult<bool> {
        Ok(self.writer()?.is_written())
    }

    fn standing(&mut self) -> PyResult<(&'static str, Option<u32>)> {
        let now = monotonic_now();
        // If the process stood still, this may run before the turn that notices it.
        let due = self.get_mut()?.driver.due();
        let stood = due.is_some_and(|due| due + STALL_US < now);
        self.with(|keeping| {
            if stood {
                keeping.writer.stalled(now);
            }
            presence::standing(&mut keeping.writer, now)
        })
    }

    fn sources(&self) -> PyResult<Vec<SourceEntry>> {
        Ok(presence::sources(self.writer()?))
    }

    fn online_len(&self) -> PyResult<usize> {
        Ok(self.writer()?.online_len())
    }
}

impl OnlineWriterEngine {
    fn writer(&self) -> PyResult<&Writer> {
        Ok(&self.get()?.driver.machine().task.writer)
    }

    fn with<R>(&mut self, with: impl FnOnce(&mut Keeping) -> R) -> PyResult<R> {
        Ok(self.get_mut()?.driver.machine_mut().with(|keeping, _| with(keeping)))
    }
}

#[pymethods]
impl PresenceGatewayEngine {
    #[new]
    #[pyo3(signature = (links, settings, *, version = 0))]
    fn new(links: LinkOptions, settings: &[u8], version: u64) -> PyResult<Self> {
        let settings: PresenceSettings = setup::settings(settings)?;
        let me = links.me(muster_rooms::role::GATEWAY);
        let origin = Origin {
            ap: me.node,
            epoch: me.epoch,
        };
        let access = AccessPoint::new(origin, version, settings.access(), monotonic_now());
        Ok(PresenceGatewayEngine {
            running: online::running(links, me.role, Vec::new(), Apart::new(access))?,
        })
    }

    fn online(&mut self, wall_ms: u64, users: Vec<u64>, device_name: &str, session: u64) -> PyResult<()> {
        let device = convert::device(device_name)?;
        self.with(|apart| {
            for user in users {
                let opened = apart.access.online(monotonic_now(), wall_ms, user, device, session);
                opened.map_err(|_| PyOverflowError::new_err("too many devices of one user"))?;
            }
            Ok(())
        })?
    }

    fn offline(&mut self, wall_ms: u64, users: Vec<u64>, device_name: &str, session: u64, why: &str) -> PyResult<()> {
        let (device, reason) = (convert::device(device_name)?, presence::reason(why)?);
        self.with(|apart| {
            for user in users {
                apart
                    .access
                    .offline(monotonic_now(), wall_ms, user, device, session, reason);
            }
        })
    }

    fn drain_devices(&mut self, wall_ms: u64) -> PyResult<()> {
        self.with(|apart| apart.access.drain(monotonic_now(), wall_ms))
    }

    fn devices_len(&self) -> PyResult<usize> {
        Ok(self.get()?.driver.machine().task.access.devices().count())
    }
}

impl PresenceGatewayEngine {
    /// Changes leave with the next turn.
    fn with<R>(&mut self, with: impl FnOnce(&mut Apart) -> R) -> PyResult<R> {
        let running = self.get_mut()?;
        let given = running.driver.machine_mut().with(|apart, mail| {
            let given = with(apart);
            apart.leave(mail);
            given
        });
        running.driver.kick();
        Ok(given)
    }
}
