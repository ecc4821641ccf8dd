//! The engine of an edge: a gateway's links over UDP, and members by WebSocket. One descriptor stands for both.

use std::collections::HashSet;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd};

use muster_driver::{Driver, Turn};
use muster_edge::websocket::Refusal;
use muster_edge::Failure;
use muster_rooms::{role, Admitted, Ages, Edge, EdgeConfig, EdgeEvent, EdgeRefusal, EdgeSettings, Letters, RoomName};
use muster_tcp::{tls_config, Limits, Tcp};
use muster_transport::{Admission, Denied, Micros, Role};
use muster_udp::{monotonic_now, KernelEntropy, Near};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::convert;
use crate::grant::Grant;
use crate::letters::UserLetters;
use crate::lingering::Lingering;
use crate::online;
use crate::recipients::{claims, Recipients};
use crate::server::{closed, engine, room_dict, Beside, InterestPage, RoleMachine, RoomsPage, Running};
use crate::setup::{self, os_error, DoorOptions, HostPort, LinkOptions};
use crate::undelivered::Undelivered;

/// Seconds after which a client may retry when the edge is full.
const RETRY_S: u32 = 5;

/// Numbers of the two descriptors, and their bits.
const LINKS: usize = 0;
const CLIENTS: usize = 1;
/// Rounds of a turn that follow each other without a wait, where each has brought work for the other side.
const ROUNDS_MAX: usize = 4;

/// The streams of an edge, and the descriptor for them and its links.
pub struct Streams {
    tcp: Tcp,
    lingering: Lingering,
    lingered: u64,
}

impl Streams {
    fn new(tcp: Tcp) -> PyResult<Streams> {
        let lingering = Lingering::new()?;
        lingering.add(tcp.fd(), CLIENTS)?;
        Ok(Streams {
            tcp,
            lingering,
            lingered: 0,
        })
    }

    /// Serves the sides that are due, and whichever has work by that. Returns whether more is left.
    fn round(&mut self, driver: &mut Driver<Edge, Near>, due: u64) -> bool {
        let (mut links, mut clients) = (due & 1 << LINKS != 0, due & 1 << CLIENTS != 0);
        let mut more = false;
        for _ in 0..ROUNDS_MAX {
            if links {
                more |= driver.turn().more;
            }
            // Publications that came by a link leave in the same turn.
            if clients || driver.machine().waits_for_streams(monotonic_now()) {
                more |= self.tcp.turn(driver.machine_mut()).more;
                self.look_after_silent(driver.machine_mut());
            } else {
                self.tcp.settle(driver.machine());
            }
            // And so do requests of clients, for brokers.
            (links, clients) = (driver.machine_mut().take_stirred(), false);
            if more || !links {
                return more;
            }
        }
        true
    }

    /// Asks the kernel about clients that say nothing.
    fn look_after_silent(&mut self, machine: &mut Edge) {
        for stream in machine.take_silent() {
            machine.silence(monotonic_now(), stream, self.tcp.is_unacknowledged(stream));
        }
    }
}

impl Beside<Edge> for Streams {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.lingering.fd())
    }

    fn turn(&mut self, driver: &mut Driver<Edge, Near>) -> Turn {
        self.lingering.begin();
        // Both: a link's datagrams may wait in memory, of which no descriptor tells.
        let mut due = 1 << LINKS | 1 << CLIENTS;
        let more = loop {
            if self.round(driver, due) {
                break true;
            }
            due = self.lingering.wait();
            if due == 0 {
                break false;
            }
            self.lingered += 1;
        };
        self.lingering.end();
        Turn { more }
    }

    fn linger(&mut self, most: Micros) -> bool {
        self.lingering.set(most);
        true
    }

    fn lingered(&self) -> u64 {
        self.lingered
    }

    fn addresses(&self) -> Vec<HostPort> {
        let known = self.tcp.addresses().flatten();
        known
            .map(|address| (address.ip().to_string(), address.port()))
            .collect()
    }

    fn apply(&mut self, settings: &EdgeSettings) {
        self.tcp.set_limits(limits(settings));
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.tcp.counters().each(each);
    }
}

impl RoleMachine for Edge {
    type Beside = Streams;
    type Settings = EdgeSettings;

    fn not_ready(&self) -> Option<&'static str> {
        Edge::not_ready(self)
    }

    fn set_buffers(&mut self, bytes: &[u32]) {
        muster_transport::HasLinks::set_link_buffer(self, bytes[0]);
    }

    fn event<'py>(py: Python<'py>, event: EdgeEvent) -> PyResult<Bound<'py, PyTuple>> {
        match event {
            EdgeEvent::Authenticate(question) => {
                ("authenticate", question.id, PyBytes::new(py, &question.credential)).into_pyobject(py)
            }
            EdgeEvent::Subscribe(question, channel) => (
                "subscribe",
                question.id,
                PyBytes::new(py, &question.credential),
                channel,
            )
                .into_pyobject(py),
            EdgeEvent::Call {
                question,
                user,
                grant,
                method,
                data,
            } => (
                "call",
                question,
                user,
                Grant::from(grant),
                method,
                PyBytes::new(py, &data),
            )
                .into_pyobject(py),
            EdgeEvent::Link(change) => convert::link_event(py, &change),
        }
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.counters.each(&mut *each);
        self.arena().counters.each(&mut *each);
        self.edge_counters().1.each(&mut *each);
        self.lodge().each_counter(each);
    }

    fn each_connection_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.edge_counters().0.each(each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        each(
            "connections",
            "Connections, half-open ones included",
            self.connections_len() as f64,
        );
        each(
            "publications",
            "Rooms that connections publish to, once for each connection",
            self.publications_len() as f64,
        );
        each(
            "watched_rooms",
            "Rooms whose joins and leaves are told to clients here",
            self.watches_len() as f64,
        );
        each("rooms", "Rooms with members here", self.rooms_len() as f64);
        each("members", "Members of rooms here", self.members_len() as f64);
        each(
            "arena_bytes",
            "Bytes of recent messages held",
            self.arena().used() as f64,
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

    fn apply(&mut self, settings: &EdgeSettings) {
        self.use_settings(settings);
    }

    fn cut_off(&self) -> Option<String> {
        Edge::cut_off(self)
    }

    fn begin_drain(&mut self) {
        self.drain_members(monotonic_now());
    }

    fn end_drain(&mut self) {
        self.stay_members();
    }

    fn drained(&self) -> bool {
        self.members_drained()
    }
}

engine!(
    /// Holds clients by WebSocket and gives each member of a room its messages.
    EdgeEngine, Edge, apart
);

/// The limits of streams; those that come when it is full are told so.
fn limits(settings: &EdgeSettings) -> Limits {
    let mut refusal = Vec::new();
    Refusal::Busy { retry_s: RETRY_S }.write(&mut refusal);
    Limits {
        streams: settings.connections_max,
        streams_of_address: settings.address_connections_max,
        half_open: settings.half_open_max,
        user_timeout_ms: settings.user_timeout_ms,
        refusal: refusal.into(),
        ..Limits::default()
    }
}

#[pymethods]
impl EdgeEngine {
    #[new]
    #[pyo3(signature = (links, door, settings, tls = None, undelivered = None))]
    fn new(
        mut links: LinkOptions,
        door: DoorOptions,
        settings: &[u8],
        tls: Option<(Vec<u8>, Vec<u8>)>,
        undelivered: Option<&Undelivered>,
    ) -> PyResult<Self> {
        let presence = online::guest(settings)?;
        let config = EdgeConfig {
            node: links.config(role::EDGE, Some(&door))?,
            name_key: door.name_key()?,
            settings: setup::settings(settings)?,
            letters: presence.is_some().then(|| Box::new(UserLetters) as Box<dyn Letters>),
        };
        let me = config.node.me;
        let mut tcp = Tcp::new(limits(&config.settings))?;
        if let Some((certificates, key)) = tls {
            tcp.set_tls(Some(tls_of(&certificates, &key)?));
        }
        tcp.listen(listener(&door.bind)?)?;
        let sockets = links.sockets(None)?;
        let mut machine = Edge::edge(config, links.seed, Box::new(KernelEntropy));
        if let Some(settings) = presence {
            machine.take_in(online::two_doors(me, &settings, undelivered)?);
        }
        let running = Running::with(machine, sockets, links.faults(None)?, Streams::new(tcp)?)?;
        running.beside.lingering.add(running.driver.fd(), LINKS)?;
        Ok(EdgeEngine { running: Some(running) })
    }

    /// Answers a question of `authenticate` or `subscribe`.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (question_id, user, denied = "bad_credential", *, grant = None, left_ms = None, token = 0, device = None, recipients = None, takes_over = false, rooms = Vec::new()))]
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
        rooms: Vec<String>,
    ) -> PyResult<()> {
        let why = match denied {
            "expired" => EdgeRefusal::Expired,
            _ => {
                let known = Denied::ALL.into_iter().find(|known| known.code().name() == denied);
                let unknown = || PyValueError::new_err(format!("{denied}: no reason to refuse a credential"));
                EdgeRefusal::Denied(known.ok_or_else(unknown)?)
            }
        };
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
        running.driver.machine_mut().answer_question(
            now,
            question_id,
            said,
            &claims(device, takes_over, recipients),
            &rooms,
        );
        running.driver.kick();
        Ok(())
    }

    /// Answers a call of a client, with JSON; without data the call has failed for this reason.
    #[pyo3(signature = (question_id, data, failure = "internal"))]
    fn answer_call(&mut self, question_id: u64, data: Option<&[u8]>, failure: &str) -> PyResult<()> {
        let why = match failure {
            "internal" => Failure::Internal,
            "bad_request" => Failure::BadRequest,
            "not_allowed" => Failure::PermissionDenied,
            "not_available" => Failure::NotAvailable,
            "too_many_requests" => Failure::TooManyRequests,
            _ => return Err(PyValueError::new_err(format!("{failure}: no reason why a call fails"))),
        };
        let running = self.get_mut()?;
        let machine = running.driver.machine_mut();
        machine.answer_call(monotonic_now(), question_id, data.ok_or(why));
        running.driver.kick();
        Ok(())
    }

    fn revoke(&mut self, users: HashSet<u64>, tokens: HashSet<u64>) -> PyResult<()> {
        let running = self.get_mut()?;
        running
            .driver
            .machine_mut()
            .revoke_members(monotonic_now(), &users, &tokens);
        running.driver.kick();
        Ok(())
    }

    /// Connections that come from now on are encrypted by these certificates and this key, in PEM.
    fn tls(&mut self, certificates: &[u8], key: &[u8]) -> PyResult<()> {
        let config = tls_of(certificates, key)?;
        self.get_mut()?.beside.tcp.set_tls(Some(config));
        Ok(())
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

    /// At most `limit` (gateway, room id) that this edge wants, from a (gateway, place) on, and the next place.
    fn interest(&self, from: (u32, u64), limit: usize) -> PyResult<InterestPage> {
        let page = self.get()?.driver.machine().wanted(from, limit);
        Ok((page.wanted, page.next))
    }

    /// One room, if it has members here.
    fn room<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Ok(name) = RoomName::parse(name) else {
            return Ok(None);
        };
        let room = self.get()?.driver.machine().room(&name);
        room.map(|room| room_dict(py, room)).transpose()
    }
}

pub fn tls_of(certificates: &[u8], key: &[u8]) -> PyResult<std::sync::Arc<muster_tcp::TlsConfig>> {
    tls_config(certificates, key).map_err(|error| PyValueError::new_err(error.to_string()))
}

pub fn listener((host, port): &HostPort) -> PyResult<TcpListener> {
    TcpListener::bind((host.as_str(), *port)).map_err(|error| os_error(&error, host, *port))
}
