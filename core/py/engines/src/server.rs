//! The engines of the four server roles: a machine, its sockets, and the calls of Python.

use muster_rooms::role;
use std::collections::HashSet;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use muster_driver::{Budget, Driver, FaultCounters, Turn};
use muster_rooms::wire::Membership;
use muster_rooms::{
    Admitted, Ages, Broker, BrokerConfig, Gateway, GatewayConfig, GatewayEvent, GatewaySettings, Proxy, ProxyConfig,
    ProxyEvent, ProxySettings, RoomName, Router, RouterConfig,
};
use muster_transport::{
    Admission, ClusterKeys, Denied, HasLinks, HasSessions, LinkChange, Machine, Micros, Role, Server,
};
use muster_udp::{monotonic_now, KernelEntropy, Near, Socket};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::convert::{self, array};
use crate::grant::Grant;
use crate::mailboxes::Mailboxes;
use crate::online;
use crate::recipients::{claims, Recipients};
use crate::setup::{self, DoorOptions, HostPort, LinkOptions};
use crate::undelivered::Undelivered;

/// A way in beside a driver's sockets.
pub trait Beside<M: RoleMachine> {
    /// The descriptor that stands for both; `None`: the driver's own does.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// One turn of both.
    fn turn(&mut self, driver: &mut Driver<M, Near>) -> Turn {
        driver.turn()
    }

    /// From now on a turn of both lingers for at most `most`. False: the driver alone does so.
    fn linger(&mut self, _most: Micros) -> bool {
        false
    }

    /// Times that a turn lingered and something came.
    fn lingered(&self) -> u64 {
        0
    }

    /// Addresses that it listens at.
    fn addresses(&self) -> Vec<HostPort> {
        Vec::new()
    }

    /// Uses the settings that may change while it runs.
    fn apply(&mut self, _settings: &M::Settings) {}

    fn each_counter(&self, _each: &mut dyn FnMut(&'static str, &'static str, u64)) {}
}

impl<M: RoleMachine> Beside<M> for () {}

/// A role's machine as the binding needs it.
pub trait RoleMachine: Machine + HasLinks + Sized {
    type Beside: Beside<Self>;
    /// `IgnoredAny`: none that change while it runs.
    type Settings: DeserializeOwned;
    fn not_ready(&self) -> Option<&'static str>;
    fn set_buffers(&mut self, bytes: &[u32]);
    fn event<'py>(py: Python<'py>, event: Self::Event) -> PyResult<Bound<'py, PyTuple>>;
    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64));
    /// Counters of its clients' connections, where these are none of its sessions.
    fn each_connection_counter(&self, _each: &mut dyn FnMut(&'static str, &'static str, u64)) {}
    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64));
    /// How old messages were that came, and from which role they come.
    fn ages(&self) -> Option<(&Ages, Role)> {
        None
    }
    fn take_cluster(&mut self, now: Micros, cluster: ClusterKeys) {
        self.set_cluster(now, cluster);
    }
    /// Why a peer is left out of choices, if it is.
    fn ejected(&self, _node: u32) -> Option<&'static str> {
        None
    }
    /// Uses the settings that may change while it runs.
    fn apply(&mut self, _settings: &Self::Settings) {}
    fn drained(&self) -> bool {
        true
    }
    fn begin_drain(&mut self) {
        if let Some(clients) = self.clients() {
            clients.drain();
        }
    }
    fn end_drain(&mut self) {
        if let Some(clients) = self.clients() {
            clients.stay();
        }
    }
    /// The settings of sessions, where the role has them.
    fn clients(&mut self) -> Option<&mut dyn Clients> {
        None
    }
    /// A service that other nodes offer clients and this one cannot, if any.
    fn cut_off(&self) -> Option<String> {
        None
    }
}

/// [`HasSessions`] without the type of a role's session data.
pub trait Clients {
    fn set_servers(&mut self, now: Micros, gateways: Vec<Server>, proxies: Vec<Server>);
    fn drain(&mut self);
    fn stay(&mut self);
}

impl<M: HasSessions> Clients for M {
    fn set_servers(&mut self, now: Micros, gateways: Vec<Server>, proxies: Vec<Server>) {
        HasSessions::set_servers(self, now, [(role::GATEWAY, gateways), (role::PROXY, proxies)]);
    }

    fn drain(&mut self) {
        HasSessions::drain(self);
    }

    fn stay(&mut self) {
        HasSessions::stay(self);
    }
}

impl RoleMachine for Gateway {
    type Beside = ();
    type Settings = GatewaySettings;

    fn not_ready(&self) -> Option<&'static str> {
        Gateway::not_ready(self)
    }

    fn set_buffers(&mut self, bytes: &[u32]) {
        self.set_link_buffer(bytes[0]);
        self.set_session_buffer(bytes[1]);
    }

    fn event<'py>(py: Python<'py>, event: GatewayEvent) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            GatewayEvent::Authenticate(question) => {
                ("authenticate", question.id, PyBytes::new(py, &question.credential)).into_pyobject(py)
            }
            GatewayEvent::Link(change) => convert::link_event(py, &change),
        }
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(&mut *each);
        self.arena().counters.each(&mut *each);
        self.sessions().counters.each(&mut *each);
        self.sessions().door.counters.each(&mut *each);
        self.lodge().each_counter(each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        each(
            "sessions",
            "Sessions, half-open ones included",
            self.sessions().table.len() as f64,
        );
        each("rooms", "Rooms with members here", self.rooms_len() as f64);
        each("members", "Members of rooms here", self.members_len() as f64);
        each(
            "arena_bytes",
            "Bytes of recent messages held",
            self.arena().used() as f64,
        );
        each(
            "arena_age_seconds",
            "Age of the message that is pushed out next; until one is, of the oldest",
            self.arena().age(monotonic_now()) as f64 / 1e6,
        );
        each(
            "cut_off",
            "1 while a partition has brokers or routers that serve, and none of them is linked",
            f64::from(u8::from(self.cut_off().is_some())),
        );
        self.lodge().each_gauge(each);
    }

    fn ages(&self) -> Option<(&Ages, Role)> {
        Some((&self.ages, role::BROKER))
    }

    fn apply(&mut self, settings: &GatewaySettings) {
        self.use_settings(settings);
    }

    fn cut_off(&self) -> Option<String> {
        Gateway::cut_off(self)
    }

    fn clients(&mut self) -> Option<&mut dyn Clients> {
        Some(self)
    }

    fn drained(&self) -> bool {
        self.is_drained()
    }
}

impl RoleMachine for Proxy {
    type Beside = ();
    type Settings = ProxySettings;

    fn not_ready(&self) -> Option<&'static str> {
        Proxy::not_ready(self)
    }

    fn set_buffers(&mut self, bytes: &[u32]) {
        self.set_link_buffer(bytes[0]);
        self.set_session_buffer(bytes[1]);
    }

    fn event<'py>(py: Python<'py>, event: ProxyEvent) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            ProxyEvent::Authenticate(question) => {
                ("authenticate", question.id, PyBytes::new(py, &question.credential)).into_pyobject(py)
            }
            ProxyEvent::Link(change) => convert::link_event(py, &change),
        }
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(&mut *each);
        self.health.counters.each(&mut *each);
        self.sessions().counters.each(&mut *each);
        self.sessions().door.counters.each(&mut *each);
        self.lodge().each_counter(each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        each(
            "sessions",
            "Sessions, half-open ones included",
            self.sessions().table.len() as f64,
        );
        each(
            "brokers_left_out",
            "Brokers that are left out of the choice for commands",
            self.health.ejected_len() as f64,
        );
        each(
            "cut_off",
            "1 while a partition has brokers or routers that serve, and none of them is linked",
            f64::from(u8::from(self.cut_off().is_some())),
        );
        self.lodge().each_gauge(each);
    }

    fn ejected(&self, node: u32) -> Option<&'static str> {
        Some(self.health.ejected(node)?.name())
    }

    fn apply(&mut self, settings: &ProxySettings) {
        self.use_settings(settings);
    }

    fn cut_off(&self) -> Option<String> {
        Proxy::cut_off(self)
    }

    fn clients(&mut self) -> Option<&mut dyn Clients> {
        Some(self)
    }

    fn drained(&self) -> bool {
        self.is_idle() && self.sessions().is_drained()
    }
}

impl RoleMachine for Broker {
    type Beside = ();
    type Settings = IgnoredAny;

    fn not_ready(&self) -> Option<&'static str> {
        Broker::not_ready(self)
    }

    fn set_buffers(&mut self, bytes: &[u32]) {
        self.set_link_buffer(bytes[0]);
    }

    fn event<'py>(py: Python<'py>, event: LinkChange) -> PyResult<Bound<'py, PyTuple>> {
        convert::link_event(py, &event)
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(&mut *each);
        self.arena().counters.each(&mut *each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        each("rooms", "Rooms known here", self.rooms_len() as f64);
        each(
            "interest",
            "Rooms wanted, once per gateway",
            self.interest().len() as f64,
        );
        each("interest_max", INTEREST_MAX, self.interest_max() as f64);
        each(
            "arena_bytes",
            "Bytes of recent messages held",
            self.arena().used() as f64,
        );
        each(
            "arena_age_seconds",
            "Age of the message that is pushed out next; until one is, of the oldest",
            self.arena().age(monotonic_now()) as f64 / 1e6,
        );
    }

    fn ages(&self) -> Option<(&Ages, Role)> {
        Some((&self.ages, role::PROXY))
    }

    fn take_cluster(&mut self, now: Micros, cluster: ClusterKeys) {
        self.set_reset(cluster.reset_root());
        self.set_cluster(now, cluster);
    }
}

impl RoleMachine for Router {
    type Beside = ();
    type Settings = IgnoredAny;

    fn not_ready(&self) -> Option<&'static str> {
        Router::not_ready(self)
    }

    fn set_buffers(&mut self, bytes: &[u32]) {
        self.set_link_buffer(bytes[0]);
    }

    fn event<'py>(py: Python<'py>, event: LinkChange) -> PyResult<Bound<'py, PyTuple>> {
        convert::link_event(py, &event)
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(&mut *each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        each(
            "interest",
            "Rooms wanted, once per gateway",
            self.interest().len() as f64,
        );
        each("interest_max", INTEREST_MAX, self.interest_max() as f64);
    }

    fn take_cluster(&mut self, now: Micros, cluster: ClusterKeys) {
        self.set_reset(cluster.reset_root());
        self.set_cluster(now, cluster);
    }
}

const INTEREST_MAX: &str = "Rooms wanted, once per gateway, that there is place for";

/// A driver, and its news since the last look.
pub(crate) struct Running<M: RoleMachine> {
    pub(crate) driver: Driver<M, Near>,
    pub(crate) beside: M::Beside,
    events: Vec<M::Event>,
    ready: Option<bool>,
    ready_changed: bool,
    /// Standstills that were told.
    stalls: u64,
    /// In a process of several engines, which linger together: its turns that came by it.
    lingered: Option<Arc<AtomicU64>>,
}

impl<M: RoleMachine> Running<M> {
    pub(crate) fn new(machine: M, sockets: Vec<Socket>, faults: Option<muster_driver::Faults>) -> PyResult<Self>
    where
        M::Beside: Default,
    {
        Self::with(machine, sockets, faults, M::Beside::default())
    }

    pub(crate) fn with(
        machine: M,
        sockets: Vec<Socket>,
        faults: Option<muster_driver::Faults>,
        beside: M::Beside,
    ) -> PyResult<Self> {
        let mut driver = Driver::with_syscalls(machine, sockets, Near::default())?;
        let bytes: Vec<u32> = driver
            .sockets()
            .iter()
            .map(|socket| u32::try_from(socket.buffers().receive_bytes).unwrap_or(u32::MAX))
            .collect();
        driver.machine_mut().set_buffers(&bytes);
        driver.set_faults(faults);
        Ok(Running {
            driver,
            beside,
            events: Vec::new(),
            ready: None,
            ready_changed: false,
            stalls: 0,
            lingered: None,
        })
    }

    /// From now on a turn lingers for at most `most`, unless it would hold up those of other engines.
    pub(crate) fn linger(&mut self, most: Micros) {
        if self.lingered.is_none() && !self.beside.linger(most) {
            self.driver.set_budget(Budget {
                linger_us: most,
                ..Budget::default()
            });
        }
    }

    /// Uses the settings that may change while it runs.
    pub(crate) fn apply(&mut self, json: &[u8]) -> PyResult<()> {
        let settings = setup::settings(json)?;
        self.beside.apply(&settings);
        self.driver.machine_mut().apply(&settings);
        self.driver.kick();
        Ok(())
    }

    /// From now on datagrams to engines of the same process go through memory. Its turns no longer linger: the mailboxes do that
    /// for all. Returns its number there.
    pub(crate) fn join(&mut self, mailboxes: &mut Mailboxes) -> PyResult<usize> {
        let (number, lingered) = mailboxes.enter(self.fd())?;
        self.lingered = Some(lingered);
        let (near, sockets) = self.driver.syscalls_mut();
        mailboxes.set_bits(number, near.join(&mailboxes.inner, sockets));
        self.driver.set_budget(Budget::default());
        self.beside.linger(0);
        self.driver.kick();
        Ok(number)
    }

    /// The descriptor to watch.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.beside.fd().unwrap_or_else(|| self.driver.fd())
    }

    pub(crate) fn turn(&mut self) -> u8 {
        let turn = self.beside.turn(&mut self.driver);
        self.driver.events(&mut self.events);
        let ready = self.driver.machine().not_ready().is_none();
        if self.ready != Some(ready) {
            self.ready = Some(ready);
            self.ready_changed = true;
        }
        let stalled = self.stalls != self.driver.counters().stalls;
        u8::from(turn.more) | u8::from(!self.events.is_empty() || self.ready_changed || stalled) << 1
    }

    pub(crate) fn events<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for event in self.events.drain(..) {
            list.append(M::event(py, event)?)?;
        }
        if std::mem::take(&mut self.ready_changed) {
            match self.driver.machine().not_ready() {
                None => list.append(("ready",))?,
                Some(reason) => list.append(("not_ready", reason))?,
            }
        }
        let counters = self.driver.counters();
        if std::mem::replace(&mut self.stalls, counters.stalls) != counters.stalls {
            list.append(("stalled", counters.stalled_us as f64 / 1e6))?;
        }
        Ok(list)
    }

    pub(crate) fn counters(&self) -> Vec<(String, String, u64)> {
        let mut list = Vec::new();
        let mut add = |prefix: &str, name: &str, help: &str, value: u64| {
            list.push((format!("{prefix}{name}"), help.to_string(), value));
        };
        let machine = self.driver.machine();
        machine.each_counter(&mut |name, help, value| add("", name, help, value));
        machine.each_connection_counter(&mut |name, help, value| add("connections_", name, help, value));
        self.beside
            .each_counter(&mut |name, help, value| add("tcp_", name, help, value));
        let links = machine.links();
        links.counters.each(|name, help, value| add("", name, help, value));
        let door = &links.door.counters;
        door.each(|name, help, value| add("link_", name, help, value));
        let udp = self.driver.udp_counters();
        udp.each(|name, help, value| add("udp_", name, help, value));
        let near = self.driver.syscalls().counters();
        let help = "Of the sent datagrams, those given to another node of the same process, through memory.";
        add("", "memory_sent", help, near.put);
        let help = "Of the sent datagrams, those lost between nodes of one process: the receiver's buffer was full.";
        add("", "memory_lost_full", help, near.lost_full);
        let counters = self.driver.counters();
        let help = "Times that the loop stood still for more than 500 ms.";
        add("", "stalls", help, counters.stalls);
        let help = "Datagrams dropped: they were queued while the loop stood still.";
        add("", "dropped_stalled", help, counters.discarded);
        let help = "Times that the sockets were looked at: in each turn, and in it again after each slice and while it lingers.";
        add("", "looks", help, counters.looks);
        let help = "Times that a turn waited for the next datagram itself, and it came.";
        let shared = self
            .lingered
            .as_ref()
            .map_or(0, |lingered| lingered.load(Ordering::Relaxed));
        add(
            "",
            "turns_lingered",
            help,
            counters.lingered + self.beside.lingered() + shared,
        );
        let help = "Turns that ended with work left, because their time or their datagrams ran out.";
        add("", "turns_cut", help, counters.turns_cut);
        let none = FaultCounters::default();
        let faults = self.driver.fault_counters().unwrap_or(&none);
        faults.each(|name, help, value| add("faults_", name, help, value));
        list
    }

    pub(crate) fn gauges(&self) -> Vec<(String, String, f64)> {
        let mut list = Vec::new();
        self.driver
            .machine()
            .each_gauge(&mut |name, help, value| list.push((name.into(), help.into(), value)));
        list
    }

    pub(crate) fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = PyDict::new(py);
        status.set_item("not_ready", self.driver.machine().not_ready())?;
        status.set_item("faults_injected", self.driver.fault_counters().is_some())?;
        let (links, now) = (self.driver.machine().links(), monotonic_now());
        let machine = self.driver.machine();
        status.set_item("links", convert::links(py, links, now, |node| machine.ejected(node))?)?;
        status.set_item("links_lost", convert::links_lost(py, links, now)?)?;
        if let Some((ages, role)) = self.driver.machine().ages() {
            status.set_item("ages", convert::ages(py, ages, links, role)?)?;
        }
        let gauges = PyDict::new(py);
        for (name, _, value) in self.gauges() {
            gauges.set_item(name, value)?;
        }
        status.set_item("gauges", gauges)?;
        let counters = PyDict::new(py);
        for (name, _, value) in self.counters() {
            counters.set_item(name, value)?;
        }
        status.set_item("counters", counters)?;
        Ok(status)
    }

    /// Addresses that it listens at beside its sockets.
    pub(crate) fn beside_addresses(&self) -> Vec<HostPort> {
        self.beside.addresses()
    }

    /// Sockets as Python counts them: that for clients first.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.driver.sockets().iter().rev()
    }
}

pub(crate) fn closed() -> PyErr {
    PyRuntimeError::new_err("the engine is closed")
}

macro_rules! engine {
    ($(#[$doc:meta])* $name:ident, $machine:ident, $extra:tt) => {
        $(#[$doc])*
        #[pyclass(module = "muster_server._engines")]
        pub struct $name {
            running: Option<Running<$machine>>,
        }

        impl $name {
            fn get(&self) -> PyResult<&Running<$machine>> {
                self.running.as_ref().ok_or_else(closed)
            }

            fn get_mut(&mut self) -> PyResult<&mut Running<$machine>> {
                self.running.as_mut().ok_or_else(closed)
            }
        }

        #[pymethods]
        impl $name {
            fn fd(&self) -> PyResult<i32> {
                Ok(self.get()?.fd().as_raw_fd())
            }

            fn join(&mut self, mailboxes: &mut $crate::mailboxes::Mailboxes) -> PyResult<usize> {
                self.get_mut()?.join(mailboxes)
            }

            fn linger(&mut self, us: u64) -> PyResult<()> {
                self.get_mut()?.linger(us);
                Ok(())
            }

            fn turn(&mut self, py: Python<'_>) -> PyResult<u8> {
                let running = self.get_mut()?;
                Ok(py.detach(|| running.turn()))
            }

            fn events<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
                self.get_mut()?.events(py)
            }

            fn take_late(&mut self) -> PyResult<f64> {
                Ok(self.get_mut()?.driver.take_late() as f64 / 1e6)
            }

            #[pyo3(signature = (epoch, nodes, partitions, growth = (0, 0), beside = vec![]))]
            fn placement(
                &mut self,
                epoch: u32,
                nodes: Vec<convert::NodeEntry>,
                partitions: (u16, u16),
                growth: (u8, u8),
                beside: Vec<convert::ClusterEntry>,
            ) -> PyResult<()> {
                let placement = convert::placement(epoch, nodes, partitions, growth)?;
                let placement = convert::beside(placement, beside)?;
                let running = self.get_mut()?;
                running.driver.machine_mut().set_placement(monotonic_now(), placement);
                running.driver.kick();
                Ok(())
            }

            #[pyo3(signature = (key, other = None, allow = None))]
            fn cluster_keys(
                &mut self,
                key: $crate::setup::ClusterKey,
                other: Option<$crate::setup::ClusterKey>,
                allow: Option<convert::Allow>,
            ) -> PyResult<()> {
                let keys = $crate::setup::cluster(&key, other.as_ref(), allow)?;
                let running = self.get_mut()?;
                running.driver.machine_mut().take_cluster(monotonic_now(), keys);
                running.driver.kick();
                Ok(())
            }

            /// Speaks these versions of the protocol from now on: stands in for another release.
            fn speak(&mut self, lowest: u8, highest: u8) -> PyResult<()> {
                let versions = convert::versions(lowest, highest)?;
                let machine = self.get_mut()?.driver.machine_mut();
                muster_transport::HasLinks::set_versions(machine, versions);
                Ok(())
            }

            /// Uses the settings that may change while it runs: JSON as at the start.
            fn settings(&mut self, json: &[u8]) -> PyResult<()> {
                self.get_mut()?.apply(json)
            }

            fn servers(
                &mut self,
                gateways: Vec<convert::ServerEntry>,
                proxies: Vec<convert::ServerEntry>,
            ) -> PyResult<()> {
                let (gateways, proxies) = (convert::servers(gateways)?, convert::servers(proxies)?);
                let driver = &mut self.get_mut()?.driver;
                if let Some(clients) = driver.machine_mut().clients() {
                    clients.set_servers(monotonic_now(), gateways, proxies);
                }
                driver.kick();
                Ok(())
            }

            fn settled(&self) -> PyResult<bool> {
                Ok(self.get()?.driver.machine().settled())
            }

            fn counters(&self) -> PyResult<Vec<(String, String, u64)>> {
                Ok(self.get()?.counters())
            }

            fn gauges(&self) -> PyResult<Vec<(String, String, f64)>> {
                Ok(self.get()?.gauges())
            }

            fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                self.get()?.status(py)
            }

            fn addresses(&self) -> PyResult<Vec<(String, u16)>> {
                let running = self.get()?;
                let sockets = running.sockets().map(|socket| convert::host_port(socket.local()));
                Ok(running.beside_addresses().into_iter().chain(sockets).collect())
            }

            fn buffers(&self) -> PyResult<Vec<(usize, usize)>> {
                let buffers = self.get()?.sockets().map(|socket| socket.buffers());
                Ok(buffers.map(|buffers| (buffers.receive_asked.unwrap_or(0), buffers.receive_bytes)).collect())
            }

            fn drain(&mut self) -> PyResult<()> {
                let running = self.get_mut()?;
                running.driver.machine_mut().begin_drain();
                running.driver.kick();
                Ok(())
            }

            fn drained(&self) -> PyResult<bool> {
                let running = self.get()?;
                Ok(running.driver.pending() == 0 && running.driver.machine().drained())
            }

            fn stay(&mut self) -> PyResult<()> {
                self.get_mut()?.driver.machine_mut().end_drain();
                Ok(())
            }

            fn cut_off(&self) -> PyResult<Option<String>> {
                Ok(self.get()?.driver.machine().cut_off())
            }

            fn close(&mut self) {
                self.running = None;
            }
        }

        engine!(@ $name, $machine, $extra);
    };
    (@ $name:ident, $machine:ident, answers) => {
        #[pymethods]
        impl $name {
            #[allow(clippy::too_many_arguments)]
            #[pyo3(signature = (question_id, user, denied = "bad_credential", *, grant = None, left_ms = None, token = 0, device = None, recipients = None, takes_over = false))]
            fn answer(
                &mut self,
                question_id: u64,
                user: Option<u64>,
                denied: &str,
                grant: Option<&Grant>,
                left_ms: Option<u64>,
                token: u64,
                device: Option<&[u8]>,
                recipients: Option<&Recipients>,
                takes_over: bool,
            ) -> PyResult<()> {
                let why = Denied::ALL.into_iter().find(|known| known.code().name() == denied);
                let why = why.ok_or_else(|| PyValueError::new_err(format!("{denied}: no reason to refuse a credential")))?;
                let now = monotonic_now();
                let admitted = |user| Admitted {
                    admission: Admission {
                        user,
                        until: left_ms.map(|left| now.saturating_add(left.saturating_mul(1_000))),
                        token,
                    },
                    ..grant.map_or_else(|| Admitted::from(user), |grant| grant.admits(user))
                };
                let running = self.get_mut()?;
                let said = user.map(admitted).ok_or(why);
                running.driver.machine_mut().answer(now, question_id, said, &claims(device, takes_over, recipients));
                running.driver.kick();
                Ok(())
            }

            fn revoke(&mut self, users: HashSet<u64>, tokens: HashSet<u64>) -> PyResult<()> {
                let running = self.get_mut()?;
                running.driver.machine_mut().revoke(monotonic_now(), &users, &tokens);
                running.driver.kick();
                Ok(())
            }
        }
    };
    (@ $name:ident, $machine:ident, apart) => {};
    (@ $name:ident, $machine:ident, silent) => {
        #[pymethods]
        impl $name {
            /// This role asks nothing.
            #[pyo3(signature = (_question_id, _user, _denied = ""))]
            fn answer(&mut self, _question_id: u64, _user: Option<u64>, _denied: &str) {}
        }
    };
}

pub(crate) use engine;

engine!(
    /// Holds end clients and gives each member of a room its messages.
    GatewayEngine, Gateway, answers
);
engine!(
    /// Takes clients' messages to the rooms' owners.
    ProxyEngine, Proxy, answers
);
engine!(
    /// Numbers rooms' messages and gives each gateway one copy.
    BrokerEngine, Broker, silent
);
engine!(
    /// Gives every broker the gateways' membership.
    RouterEngine, Router, silent
);

/// Rooms, and the place at which others follow.
pub(crate) type RoomsPage<'py> = (Bound<'py, PyList>, Option<usize>);
/// (gateway, room id) each, and from where on others follow.
pub(crate) type InterestPage = (Vec<(u32, u64)>, Option<(u32, u64)>);

#[pymethods]
impl GatewayEngine {
    #[new]
    #[pyo3(signature = (links, door, settings, coalesce = true))]
    fn new(mut links: LinkOptions, door: DoorOptions, settings: &[u8], coalesce: bool) -> PyResult<Self> {
        let config = GatewayConfig {
            node: links.config(role::GATEWAY, Some(&door))?,
            name_key: door.name_key()?,
            server_key: door.server_key()?,
            settings: setup::settings(settings)?,
        };
        let me = config.node.me;
        let coalesce = coalesce && config.settings.rooms.bundle;
        let mut machine = Gateway::new(config, links.seed, Box::new(KernelEntropy));
        if let Some(settings) = online::guest(settings)? {
            machine.take_in(online::station(me, &settings)?);
        }
        let mut running = links.run_with(machine, &door)?;
        if !coalesce {
            running.driver.set_coalesce(false);
        }
        Ok(GatewayEngine { running: Some(running) })
    }

    /// At most `limit` rooms that have members here and `text` in their names, from a place on, and the place at which others
    /// may follow.
    #[pyo3(signature = (place, limit, text = ""))]
    fn rooms<'py>(&self, py: Python<'py>, place: usize, limit: usize, text: &str) -> PyResult<RoomsPage<'py>> {
        let (rooms, next) = self.get()?.driver.machine().rooms_named(text, place, limit);
        let list = PyList::empty(py);
        for room in rooms {
            list.append(room_dict(py, room)?)?;
        }
        Ok((list, next))
    }

    /// At most `limit` (gateway, room id) that this gateway wants, from a (gateway, place) on, and the next place: the
    /// truth for routers and brokers.
    fn interest(&self, from: (u32, u64), limit: usize) -> PyResult<InterestPage> {
        let page = self.get()?.driver.machine().wanted(from, limit);
        Ok((page.wanted, page.next))
    }

    /// One room, if it has members here.
    fn room<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Ok(name) = RoomName::parse(name) else {
            return Ok(None);
        };
        self.get()?
            .driver
            .machine()
            .room(&name)
            .map(|room| room_dict(py, room))
            .transpose()
    }
}

pub(crate) fn room_dict<'py>(py: Python<'py>, room: &muster_rooms::GatewayRoom) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("name", &*room.name)?;
    entry.set_item("members", room.members.len())?;
    entry.set_item("joining", room.waiting.len())?;
    entry.set_item("flow", if room.paced { "paced" } else { "live" })?;
    entry.set_item("in_force", room.is_in_force())?;
    entry.set_item("held", room.ring.len())?;
    entry.set_item("held_bytes", room.ring.bytes())?;
    let newest = room.newest();
    entry.set_item("next_offset", newest.map_or(1, |source| source.next_offset()))?;
    let stream = newest.map(|source| source.stream);
    entry.set_item(
        "stream",
        stream.map(|stream| (stream.node, stream.epoch, stream.generation)),
    )?;
    entry.set_item("streams", room.live().count())?;
    Ok(entry)
}

#[pymethods]
impl ProxyEngine {
    #[new]
    #[pyo3(signature = (links, door, settings, unicast = false, undelivered = None))]
    fn new(
        mut links: LinkOptions,
        door: DoorOptions,
        settings: &[u8],
        unicast: bool,
        undelivered: Option<&Undelivered>,
    ) -> PyResult<Self> {
        let config = ProxyConfig {
            node: links.config(role::PROXY, Some(&door))?,
            name_key: door.name_key()?,
            server_key: door.server_key()?,
            settings: setup::settings(settings)?,
        };
        let me = config.node.me;
        let mut machine = Proxy::new(config, links.seed, Box::new(KernelEntropy));
        if unicast {
            machine.take_in(Box::new(online::sending(me, undelivered)));
        }
        let running = links.run_with(machine, &door)?;
        Ok(ProxyEngine { running: Some(running) })
    }

    /// A proxy keeps no room.
    #[pyo3(signature = (_place, _limit, _text = ""))]
    fn rooms<'py>(&self, py: Python<'py>, _place: usize, _limit: usize, _text: &str) -> RoomsPage<'py> {
        (PyList::empty(py), None)
    }

    /// A proxy knows of no interest.
    fn interest(&self, _from: (u32, u64), _limit: usize) -> InterestPage {
        (Vec::new(), None)
    }

    /// A proxy keeps no room.
    fn room(&self, _name: &str) -> Option<u8> {
        None
    }
}

#[pymethods]
impl BrokerEngine {
    #[new]
    fn new(mut links: LinkOptions, name_key: &[u8], settings: &[u8]) -> PyResult<Self> {
        let config = BrokerConfig {
            node: links.config(role::BROKER, None)?,
            name_key: array(name_key, "a name key")?,
            settings: setup::settings(settings)?,
        };
        let machine = Broker::new(config, links.seed, Box::new(KernelEntropy));
        Ok(BrokerEngine {
            running: links.run(machine)?,
        })
    }

    /// At most `limit` rooms known here, from a place on, and the place at which others follow. A broker does not know names.
    #[pyo3(signature = (place, limit, text = ""))]
    fn rooms<'py>(&self, py: Python<'py>, place: usize, limit: usize, text: &str) -> PyResult<RoomsPage<'py>> {
        let list = PyList::empty(py);
        if !text.is_empty() {
            return Ok((list, None));
        }
        let (rooms, next) = self.get()?.driver.machine().rooms_from(place, limit);
        for room in rooms {
            list.append(owned_dict(py, room)?)?;
        }
        Ok((list, next))
    }

    /// At most `limit` (gateway, room id) that are wanted, as far as this broker knows, from a (gateway, place) on, and where
    /// others follow.
    fn interest(&self, from: (u32, u64), limit: usize) -> PyResult<InterestPage> {
        let page = self.get()?.driver.machine().interest().page(from, limit);
        Ok((page.wanted, page.next))
    }

    /// One room, if it is known here.
    fn room<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Ok(name) = RoomName::parse(name) else {
            return Ok(None);
        };
        self.get()?
            .driver
            .machine()
            .room(&name)
            .map(|room| owned_dict(py, room))
            .transpose()
    }
}

fn owned_dict<'py>(py: Python<'py>, room: &muster_rooms::OwnedRoom) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("id", format!("{:016x}", room.id))?;
    entry.set_item("generation", room.generation)?;
    entry.set_item("next_offset", room.ring.next())?;
    entry.set_item("held", room.ring.len())?;
    entry.set_item("held_bytes", room.ring.bytes())?;
    let gateways: Vec<(u32, u64, u64)> = room
        .gateways
        .iter()
        .map(|cursor| (cursor.gateway, cursor.next, cursor.consumed))
        .collect();
    entry.set_item("gateways", gateways)?;
    Ok(entry)
}

/// A gateway and its epoch.
type Life = (u32, u32);
/// Gateway, epoch, room, check, version, present.
type KeptChange = (u32, u32, u64, u64, u64, bool);

#[pymethods]
impl RouterEngine {
    #[new]
    fn new(mut links: LinkOptions, settings: &[u8]) -> PyResult<Self> {
        let config = RouterConfig {
            node: links.config(role::ROUTER, None)?,
            settings: setup::settings(settings)?,
        };
        let machine = Router::new(config, links.seed, Box::new(KernelEntropy));
        Ok(RouterEngine {
            running: links.run(machine)?,
        })
    }

    /// At most `limit` (gateway, room id) that are wanted, from a (gateway, place) on, and where others follow.
    fn interest(&self, from: (u32, u64), limit: usize) -> PyResult<InterestPage> {
        let page = self.get()?.driver.machine().interest().page(from, limit);
        Ok((page.wanted, page.next))
    }

    /// Remembers changes for `take_changes` from now on, at most this many rooms at a time.
    fn keep_changes(&mut self, max: usize) -> PyResult<()> {
        self.get_mut()?.driver.machine_mut().keep(max);
        Ok(())
    }

    /// Lives that ended, then (gateway, epoch, room, check, version, present) of at most `limit` rooms that changed.
    fn take_changes(&mut self, limit: usize) -> PyResult<(Vec<Life>, Vec<KeptChange>)> {
        let (ended, changed) = self.get_mut()?.driver.machine_mut().take_kept(limit);
        let changed = changed
            .into_iter()
            .map(|((gateway, epoch), said)| (gateway, epoch, said.room, said.check, said.version, said.present));
        Ok((ended, changed.collect()))
    }

    /// Changes that wait to be taken, and how many had no place.
    fn changes_kept(&self) -> PyResult<(usize, u64)> {
        Ok(self.get()?.driver.machine().kept())
    }

    /// Gives a database's memory of a gateway's life, (room, check, version) each; returns how many hold now.
    fn hint(&mut self, gateway: u32, epoch: u32, rooms: Vec<(u64, u64, u64)>) -> PyResult<usize> {
        let rooms = rooms.into_iter().map(|(room, check, version)| Membership {
            room,
            check,
            version,
            present: true,
        });
        let rooms: Vec<Membership> = rooms.collect();
        let running = self.get_mut()?;
        let machine = running.driver.machine_mut();
        let taken = machine.hint(monotonic_now(), (gateway, epoch), &rooms);
        running.driver.kick();
        Ok(taken)
    }

    /// A router keeps no room.
    #[pyo3(signature = (_place, _limit, _text = ""))]
    fn rooms<'py>(&self, py: Python<'py>, _place: usize, _limit: usize, _text: &str) -> RoomsPage<'py> {
        (PyList::empty(py), None)
    }

    /// A router keeps no room.
    fn room(&self, _name: &str) -> Option<u8> {
        None
    }
}
