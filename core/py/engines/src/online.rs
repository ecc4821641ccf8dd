//! The engines of an online proxy and of a unicast service, and what gateways with presence have.

use std::convert::Infallible;
use std::os::fd::AsRawFd;

use muster_presence::{
    Courier, DeliverySettings, GuestSettings, Post, PostConfig, PresenceSettings, Sending, Splitting, Station,
    StationSettings, Task, TwoDoors, Unnamed, Wall, Whereabouts,
};
use muster_transport::{Identity, Role};
use muster_udp::{monotonic_now, KernelEntropy};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::convert;
use crate::keeping::Told;
use crate::server::{closed, engine, RoleMachine, Running};
use crate::setup::{self, LinkOptions};
use crate::undelivered::Undelivered;

/// A device of a user: its gateway, its name, and whether it is online.
type Device = (u32, String, bool);

/// The wall clock of this machine.
struct Clock;

impl Wall for Clock {
    fn now_ms(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The part of presence in the settings of a gateway or an edge, if there is one.
pub fn guest(settings: &[u8]) -> PyResult<Option<PresenceSettings>> {
    Ok(setup::settings::<GuestSettings>(settings)?.presence)
}

/// The guest of a gateway.
pub fn station(me: Identity, settings: &PresenceSettings) -> PyResult<Box<Station>> {
    let unnamed = Unnamed::One(convert::device("device")?);
    Ok(Box::new(stationed(me, settings, unnamed)?))
}

/// The guest of an edge: pages that share a token each have a device of their own.
pub fn two_doors(me: Identity, settings: &PresenceSettings, queue: Option<&Undelivered>) -> PyResult<Box<TwoDoors>> {
    let station = stationed(me, settings, Unnamed::Each(convert::device("web")?))?;
    Ok(Box::new(TwoDoors::new(station, sending(me, queue))))
}

/// The guest of a proxy. `queue`: of messages that no device has.
pub fn sending(me: Identity, queue: Option<&Undelivered>) -> Sending {
    let mut sending = Sending::new(me, muster_rooms::command::SHARED_USER);
    if let Some(queue) = queue {
        sending.hand_on(queue.begin());
    }
    sending
}

fn stationed(me: Identity, settings: &PresenceSettings, unnamed: Unnamed) -> PyResult<Station> {
    let settings = StationSettings {
        access: settings.access(),
        deliveries: DeliverySettings::default(),
        nobody: muster_rooms::command::SHARED_USER,
        unnamed,
    };
    Ok(Station::new(me, settings, monotonic_now(), Box::new(Clock)))
}

impl Told for Splitting {
    fn event<'py>(_py: Python<'py>, event: Infallible) -> PyResult<Bound<'py, PyTuple>> {
        match event {}
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        let help = "Writers that are linked and have said where they are";
        each("presence_writers", help, self.writers_len() as f64);
    }
}

impl Told for Courier {
    /// A user whose gateways are to be looked up.
    fn event<'py>(py: Python<'py>, user: u64) -> PyResult<Bound<'py, PyTuple>> {
        ("route", user).into_pyobject(py)
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        let help = "Messages to users without an answer";
        each("unicast_pending", help, self.pending_len() as f64);
    }
}

type ProxyNode = Post<Splitting>;
type UnicastNode = Post<Courier>;
engine!(
    /// Takes gateways' packets to every writer of every site.
    OnlineProxyEngine, ProxyNode, silent
);
engine!(
    /// Takes messages to the devices of one user.
    UnicastEngine, UnicastNode, silent
);

/// A node of presence at work, which dials nodes of these roles.
pub(crate) fn running<T: Task>(
    mut links: LinkOptions,
    role: Role,
    dials: Vec<Role>,
    task: T,
) -> PyResult<Option<Running<Post<T>>>>
where
    Post<T>: RoleMachine<Beside = ()>,
{
    let config = PostConfig {
        node: links.config(role, None)?,
        dials,
    };
    let machine = Post::new(config, links.seed, Box::new(KernelEntropy), task);
    links.run(machine)
}

#[pymethods]
impl OnlineProxyEngine {
    #[new]
    fn new(links: LinkOptions, site: u16) -> PyResult<Self> {
        let dials = vec![
            muster_rooms::role::GATEWAY,
            muster_rooms::role::EDGE,
            muster_presence::role::ONLINE_WRITER,
        ];
        let role = muster_presence::role::ONLINE_PROXY;
        Ok(OnlineProxyEngine {
            running: running(links, role, dials, Splitting::new(site))?,
        })
    }
}

#[pymethods]
impl UnicastEngine {
    #[new]
    fn new(links: LinkOptions, site: u16) -> PyResult<Self> {
        let dials = vec![
            muster_rooms::role::GATEWAY,
            muster_rooms::role::EDGE,
            muster_rooms::role::PROXY,
        ];
        let role = muster_presence::role::UNICAST;
        Ok(UnicastEngine {
            running: running(links, role, dials, Courier::new(site))?,
        })
    }

    /// Whether there are readers to look users up with.
    fn readers(&mut self, known: bool) -> PyResult<()> {
        let running = self.get_mut()?;
        running
            .driver
            .machine_mut()
            .with(|courier, _| courier.set_readers(known));
        running.driver.kick();
        Ok(())
    }

    /// Where users are: gateway, device and whether it is online of each device, or None where nobody could say.
    fn routed(&mut self, found: Vec<(u64, Option<Vec<Device>>)>) -> PyResult<()> {
        let placed = |(gateway, device, is_online): Device| {
            let device = convert::device(&device)?;
            Ok(Whereabouts {
                gateway,
                device,
                is_online,
            })
        };
        let found = found.into_iter().map(|(user, places)| {
            let places = places.map(|places| places.into_iter().map(placed).collect::<PyResult<Vec<_>>>());
            Ok((user, places.transpose()?))
        });
        let found = found.collect::<PyResult<Vec<_>>>()?;
        let running = self.get_mut()?;
        running.driver.machine_mut().with(|courier, mail| {
            let now = monotonic_now();
            found
                .into_iter()
                .for_each(|(user, places)| courier.routed(now, user, places, mail));
        });
        running.driver.kick();
        Ok(())
    }
}
