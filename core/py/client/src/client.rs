//! The client's engine: one member and publisher, over one socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use muster_driver::Driver;
use muster_presence::{Device, Letters, Outcome, Reading, Told, DATA_BYTES_MAX};
use muster_rooms::command::Verdict;
use muster_rooms::filter::Filter;
use muster_rooms::wire::{Positions, StreamGap};
use muster_rooms::{Client, ClientConfig, ClientEvent, CommandError, Item, Policy, PublishError, Side};
use muster_transport::{Addr, Code, Reader, Writer};
use muster_udp::{monotonic_now, KernelEntropy, Socket};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::items::{self, stream_tuple, Message, Position, StreamTuple};
use muster_py_common::{self as convert, endpoints, EndpointEntry, FaultRule};

/// Bytes of the longest encoded positions.
const POSITIONS_MAX: usize = 1 + 4 * 20;
/// Bytes of a credential: one record of a log takes some more.
const CREDENTIAL_MAX: usize = 1_000;
/// Results of `publish`.
const TAKEN: u8 = 0;
const WOULD_BLOCK: u8 = 1;
const TOO_LONG: u8 = 2;
const REFUSED: u8 = 3;

/// Sessions with a gateway and a proxy, the rooms that are read and those that are written.
#[pyclass(module = "muster._core")]
pub struct ClientEngine {
    driver: Option<Driver<Client>>,
    events: Vec<ClientEvent>,
    data: Vec<u8>,
    /// Messages to users, over the same sessions.
    letters: Letters,
    told: Vec<Told>,
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("the client is closed")
}

fn any(ip: impl Into<IpAddr>) -> Addr {
    Addr::from(SocketAddr::new(ip.into(), 0))
}

fn check_credential(credential: &[u8]) -> PyResult<()> {
    match credential.len() <= CREDENTIAL_MAX {
        true => Ok(()),
        false => Err(PyValueError::new_err("a credential has at most 1,000 bytes")),
    }
}

type GapTuple = (StreamTuple, u64, Option<u64>, &'static str);

fn gap_tuple(gap: &StreamGap) -> GapTuple {
    let last = (gap.last != StreamGap::OPEN).then_some(gap.last);
    (stream_tuple(gap.stream), gap.first, last, gap.reason.name())
}

impl ClientEngine {
    fn get(&self) -> PyResult<&Driver<Client>> {
        self.driver.as_ref().ok_or_else(closed)
    }

    fn get_mut(&mut self) -> PyResult<&mut Driver<Client>> {
        self.driver.as_mut().ok_or_else(closed)
    }

    /// Opens the session with a proxy, and takes the records of unicast there.
    fn carry_to_proxy(&mut self) -> PyResult<()> {
        self.get_mut()?.machine_mut().open(monotonic_now(), Side::Proxy);
        self.carry_letters()?;
        self.get_mut()?.kick();
        Ok(())
    }

    /// Takes the records of unicast to its part of the client, and what that says to the sessions.
    fn carry_letters(&mut self) -> PyResult<()> {
        let letters = &mut self.letters;
        self.events.retain(|event| match event {
            ClientEvent::Guest { record, .. } => {
                letters.take(record);
                false
            }
            ClientEvent::Ready { side: Side::Proxy, .. } => {
                letters.proxy_ready();
                true
            }
            ClientEvent::Down {
                side: Side::Gateway, ..
            } => {
                letters.gateway_lost();
                true
            }
            _ => true,
        });
        if letters.has_untold() {
            let driver = self.driver.as_mut().ok_or_else(closed)?;
            let mut told = 0;
            letters.tell_proxy(monotonic_now(), |record| {
                let took = driver.machine_mut().tell_guest(Side::Proxy, record);
                told += u32::from(took);
                took
            });
            letters.tell_gateway(|record| {
                let took = driver.machine_mut().tell_guest(Side::Gateway, record);
                told += u32::from(took);
                took
            });
            if told > 0 {
                driver.kick();
            }
        }
        self.told.append(&mut self.letters.events());
        Ok(())
    }
}

/// A device's name, if it is known, and what became of the message there.
fn device_outcome((device, outcome): &(Option<Device>, Outcome)) -> (Option<String>, &'static str) {
    let name = device.map(|device| String::from_utf8_lossy(device.name()).into_owned());
    let outcome = match outcome {
        Outcome::Delivered => "delivered",
        Outcome::NotOnline => "not_online",
        Outcome::Expired => "expired",
        Outcome::Unknown => "unknown",
    };
    (name, outcome)
}

#[pymethods]
impl ClientEngine {
    #[new]
    #[pyo3(signature = (*, gateways, proxies, credential, seed, learns = [false; 2], recv_buffer = 0, send_buffer = 0,
        payload_bytes = 1200, inbox_bytes = 8 << 20, ages = false, faults = None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        gateways: Vec<EndpointEntry>,
        proxies: Vec<EndpointEntry>,
        credential: Vec<u8>,
        seed: u64,
        learns: [bool; 2],
        recv_buffer: usize,
        send_buffer: usize,
        payload_bytes: usize,
        inbox_bytes: usize,
        ages: bool,
        faults: Option<Vec<FaultRule>>,
    ) -> PyResult<Self> {
        check_credential(&credential)?;
        let config = ClientConfig {
            gateways: endpoints(gateways)?,
            proxies: endpoints(proxies)?,
            learns,
            credential,
            payload: payload_bytes,
            inbox_bytes,
            socket: 0,
        };
        let options = convert::socket_options(recv_buffer, send_buffer);
        // A socket of both families, to reach any server; of one on a machine without IPv6.
        let socket = Socket::bind(any(Ipv6Addr::UNSPECIFIED), &options)
            .or_else(|_| Socket::bind(any(Ipv4Addr::UNSPECIFIED), &options))?;
        let mut machine = Client::new(config, seed, Box::new(KernelEntropy));
        if ages {
            machine.set_ages();
        }
        let mut driver = Driver::new(machine, vec![socket])?;
        let buffer = driver.sockets()[0].buffers().receive_bytes;
        driver
            .machine_mut()
            .set_buffer(u32::try_from(buffer).unwrap_or(u32::MAX));
        driver.set_faults(convert::faults(seed, faults, None)?);
        Ok(ClientEngine {
            driver: Some(driver),
            events: Vec::new(),
            data: Vec::new(),
            letters: Letters::default(),
            told: Vec::new(),
        })
    }

    fn fd(&self) -> PyResult<i32> {
        Ok(self.get()?.fd().as_raw_fd())
    }

    /// Receives a batch, lets time pass, sends. Bit 0: more waits; bit 1: events wait.
    fn turn(&mut self) -> PyResult<u8> {
        let driver = self.driver.as_mut().ok_or_else(closed)?;
        let turn = driver.turn();
        driver.events(&mut self.events);
        self.carry_letters()?;
        let events = !self.events.is_empty() || !self.told.is_empty();
        Ok(u8::from(turn.more) | u8::from(events) << 1)
    }

    fn events<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for told in self.told.drain(..) {
            let event: Bound<'py, PyTuple> = match told {
                Told::Done {
                    number,
                    refused,
                    outcomes,
                } => {
                    let outcomes: Vec<_> = outcomes.iter().map(device_outcome).collect();
                    ("sent", number, refused.map(Code::name), outcomes).into_pyobject(py)?
                }
                Told::Readable => ("received",).into_pyobject(py)?,
            };
            list.append(event)?;
        }
        let mut events = self.events.drain(..).peekable();
        while let Some(event) = events.next() {
            let event: Bound<'py, PyTuple> = match event {
                ClientEvent::Guest { .. } => continue,
                ClientEvent::Ready { side, user } => ("ready", side as usize, user).into_pyobject(py)?,
                ClientEvent::Leased { side, left_ms } => ("leased", side as usize, left_ms).into_pyobject(py)?,
                ClientEvent::Down {
                    side,
                    reason,
                    retry,
                    wait_ms,
                } => ("down", side as usize, reason, retry, wait_ms).into_pyobject(py)?,
                ClientEvent::Differs {
                    side,
                    addr,
                    theirs,
                    release,
                } => {
                    let (host, port) = convert::host_port(addr);
                    let (lowest, highest) = (theirs.lowest(), theirs.highest());
                    ("differs", side as usize, host, port, lowest, highest, release).into_pyobject(py)?
                }
                ClientEvent::Joined { room, gaps } => {
                    ("joined", room, gaps.iter().map(gap_tuple).collect::<Vec<_>>()).into_pyobject(py)?
                }
                ClientEvent::Refused {
                    room,
                    publication,
                    code,
                } => ("refused", room, publication, code.name()).into_pyobject(py)?,
                ClientEvent::Readable { room } => (intern!(py, "readable"), room).into_pyobject(py)?,
                ClientEvent::Writable { publication } => ("writable", publication).into_pyobject(py)?,
                ClientEvent::Vacant => ("vacant",).into_pyobject(py)?,
                ClientEvent::Commanded {
                    number,
                    outcome,
                    retry_ms,
                    page,
                } => {
                    let verdict = match outcome.verdict {
                        Verdict::Delivered => "delivered",
                        Verdict::NoMember => "no_member",
                        Verdict::Expired => "expired",
                        Verdict::Refused(code) => code.name(),
                    };
                    let page = page.map(|page| {
                        let hops: Vec<_> = page.hops.iter().map(|hop| (hop.node, hop.took_us)).collect();
                        (page.users, page.more, hops)
                    });
                    ("commanded", number, verdict, outcome.members, retry_ms, page).into_pyobject(py)?
                }
                ClientEvent::Published(first) => {
                    // All in a row: a burst of publishes is acknowledged together.
                    let (mut tickets, mut positions) = (Vec::new(), Vec::new());
                    let mut next = Some(ClientEvent::Published(first));
                    while let Some(ClientEvent::Published(done)) = next {
                        tickets.push(done.ticket);
                        positions.push(Position::new(done.stream, done.offset));
                        next = events.next_if(|event| matches!(event, ClientEvent::Published(_)));
                    }
                    (intern!(py, "published"), tickets, positions).into_pyobject(py)?
                }
            };
            list.append(event)?;
        }
        Ok(list)
    }

    /// Opens a session and keeps it open: 0 with a gateway, 1 with a proxy.
    fn open(&mut self, side: usize) -> PyResult<()> {
        let side = if side == 0 { Side::Gateway } else { Side::Proxy };
        let driver = self.get_mut()?;
        driver.machine_mut().open(monotonic_now(), side);
        driver.kick();
        Ok(())
    }

    /// The servers are elsewhere, or want another credential: sessions that are not good are opened there.
    fn redirect(
        &mut self,
        gateways: Vec<EndpointEntry>,
        proxies: Vec<EndpointEntry>,
        credential: Vec<u8>,
    ) -> PyResult<()> {
        check_credential(&credential)?;
        let (gateways, proxies) = (endpoints(gateways)?, endpoints(proxies)?);
        let driver = self.get_mut()?;
        driver
            .machine_mut()
            .redirect(monotonic_now(), gateways, proxies, credential);
        driver.kick();
        Ok(())
    }

    /// Speaks these versions of the protocol from now on: stands in for another release.
    fn speak(&mut self, lowest: u8, highest: u8) -> PyResult<()> {
        let versions = convert::versions(lowest, highest)?;
        self.get_mut()?.machine_mut().set_versions(versions);
        Ok(())
    }

    /// The version of the protocol that a session uses; None while there is none.
    fn version(&self, side: usize) -> PyResult<Option<u8>> {
        let side = if side == 0 { Side::Gateway } else { Side::Proxy };
        Ok(self.get()?.machine().version(side))
    }

    fn is_ready(&self, side: usize) -> PyResult<bool> {
        Ok(self
            .get()?
            .machine()
            .is_ready(if side == 0 { Side::Gateway } else { Side::Proxy }))
    }

    /// Becomes a member of a room; the policy is 0 drop_oldest, 1 drop_newest, 2 block. Returns the room's number here.
    /// With `equal`, values by name of a header, the room's messages are filtered; also by `one_in` and `at_most_per_s` then.
    #[pyo3(signature = (name, positions = None, policy = 0, history = 0, equal = None, one_in = 1, at_most_per_s = None))]
    #[allow(clippy::too_many_arguments)]
    fn join(
        &mut self,
        name: &str,
        positions: Option<&[u8]>,
        policy: u8,
        history: u32,
        equal: Option<Vec<(String, Vec<String>)>>,
        one_in: u32,
        at_most_per_s: Option<u32>,
    ) -> PyResult<u32> {
        let equal = equal.map(|equal| {
            let all = equal.iter();
            let all = all.map(|(name, values)| (name.as_str(), values.iter().map(String::as_str)));
            Filter::latest(all, one_in, at_most_per_s).map_err(|error| PyValueError::new_err(error.to_string()))
        });
        let filter = equal.transpose()?;
        let positions = match positions {
            Some(bytes) => Positions::read(&mut Reader::new(bytes))
                .ok_or_else(|| PyValueError::new_err("these are no positions"))?,
            None => Positions::default(),
        };
        let policy = match policy {
            0 => Policy::DropOldest,
            1 => Policy::DropNewest,
            2 => Policy::Block,
            _ => return Err(PyValueError::new_err("a policy is 0, 1 or 2")),
        };
        let driver = self.get_mut()?;
        let (now, machine) = (monotonic_now(), driver.machine_mut());
        let room = match (filter, history) {
            (Some(filter), _) => machine.join_filtered(now, name, (positions, history), filter, policy),
            (None, 0) => machine.join(now, name, positions, policy),
            (None, _) => machine.join_last(now, name, history, policy),
        };
        driver.kick();
        Ok(room)
    }

    fn leave(&mut self, room: u32) -> PyResult<()> {
        let driver = self.get_mut()?;
        driver.machine_mut().leave(room);
        driver.kick();
        Ok(())
    }

    /// At most `limit` unread items of a room that the program calls `name`, and the position before them, as of `positions`.
    fn read<'py>(
        &mut self,
        py: Python<'py>,
        room: u32,
        name: &Bound<'py, PyString>,
        limit: usize,
    ) -> PyResult<(Option<Bound<'py, PyBytes>>, Bound<'py, PyList>)> {
        let now = monotonic_now();
        let before = self.positions(py, room)?;
        let list = PyList::empty(py);
        let ClientEngine { driver, data, .. } = self;
        let driver = driver.as_mut().ok_or_else(closed)?;
        // Only then the gateway is to be told that it may go on.
        let blocked = driver.machine().room(room).is_some_and(|member| member.is_blocked());
        for _ in 0..limit {
            data.clear();
            let item = match driver.machine_mut().read(now, room, data) {
                Some(
                    item @ Item::Message {
                        stream,
                        offset,
                        sender,
                        headers,
                        ..
                    },
                ) => {
                    let age = item.age(now).map(|age| age as f64 / 1e6);
                    let (headers, data) = data.split_at(headers.into());
                    Message::create(name, (stream, offset), sender, headers, data, age)?
                }
                Some(Item::Gap(gap)) => items::gap(py, name, &gap)?,
                Some(Item::Command { sender, number, .. }) => items::command(py, name, number, sender, data)?,
                None => break,
            };
            list.append(item)?;
        }
        if blocked {
            driver.kick();
        }
        Ok((before, list))
    }

    /// The position behind the read items of a room, for a later join: opaque bytes.
    fn positions<'py>(&self, py: Python<'py>, room: u32) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(member) = self.get()?.machine().room(room) else {
            return Ok(None);
        };
        let mut bytes = [0; POSITIONS_MAX];
        let mut writer = Writer::new(&mut bytes);
        member.resume_from().write(&mut writer);
        Ok(Some(PyBytes::new(py, writer.written())))
    }

    /// Whether the last join of a room went on with nothing lost (None: that is on its way), how many messages of history came with
    /// the first one, and whether these are all.
    fn joined(&self, room: u32) -> PyResult<Option<(Option<bool>, u32, bool)>> {
        let member = self.get()?.machine().room(room);
        Ok(member.map(|member| {
            let (messages, whole) = member.join.given().unwrap_or_default();
            (member.recovered(), messages, whole)
        }))
    }

    /// Opens a room for publishing. Returns its number here, and that of the one which was closed for it. None: an event tells
    /// when there is a place.
    fn publication(&mut self, name: &str) -> PyResult<Option<(u32, Option<u32>)>> {
        let driver = self.get_mut()?;
        let opened = driver.machine_mut().publication(monotonic_now(), name);
        driver.kick();
        Ok(opened.map(|opened| (opened.publication, opened.closed)))
    }

    /// Takes a message: 0 taken, 1 no credit, 2 too long, 3 the room was refused. An event names `ticket` unless it is 0. What was
    /// taken leaves with the next turn, which the caller makes soon: the timer is not set for each message. `headers` come of
    /// `encode_headers`.
    #[pyo3(signature = (publication, data, ticket, headers = None))]
    fn publish(&mut self, publication: u32, data: &[u8], ticket: u64, headers: Option<&[u8]>) -> PyResult<u8> {
        let machine = self.get_mut()?.machine_mut();
        let taken = match headers {
            None => machine.publish(publication, data, ticket),
            Some(headers) => machine.publish_headed(publication, headers, data, ticket),
        };
        Ok(match taken {
            Ok(()) => TAKEN,
            Err(PublishError::WouldBlock) => WOULD_BLOCK,
            Err(PublishError::TooLong) => TOO_LONG,
            Err(PublishError::Refused(_)) => REFUSED,
        })
    }

    /// Sends a command with this lifetime; an event names the returned number. None: too many are open.
    fn command(&mut self, name: &str, data: &[u8], lifetime_us: u64) -> PyResult<Option<u64>> {
        let driver = self.get_mut()?;
        let number = driver.machine_mut().command(monotonic_now(), name, data, lifetime_us);
        driver.kick();
        match number {
            Ok(number) => Ok(Some(number)),
            Err(CommandError::WouldBlock) => Ok(None),
            Err(CommandError::TooLong) => Err(PyValueError::new_err("a command, or its room's name, is too long")),
        }
    }

    /// Asks for the number of a room's members and, from a user on, their users; an event names the returned number.
    /// None: too many questions are open.
    #[pyo3(signature = (name, lifetime_us, first = None))]
    fn members(&mut self, name: &str, lifetime_us: u64, first: Option<u64>) -> PyResult<Option<u64>> {
        let driver = self.get_mut()?;
        let number = driver.machine_mut().count(monotonic_now(), name, first, lifetime_us);
        driver.kick();
        Ok(number.ok())
    }

    /// Ends the sessions with which a user is a member of a room; an event names the returned number. None: too many are open.
    fn end_member(&mut self, name: &str, user: u64, lifetime_us: u64) -> PyResult<Option<u64>> {
        let driver = self.get_mut()?;
        let number = driver
            .machine_mut()
            .end_member(monotonic_now(), name, user, lifetime_us);
        driver.kick();
        Ok(number.ok())
    }

    /// Sends a message to the devices of a user, or to one of them; an event names its number, which is random. False: too many are
    /// open.
    fn send(&mut self, number: u64, user: u64, device: Option<&str>, data: &[u8], lifetime_us: u64) -> PyResult<bool> {
        let device = device.map(convert::device).transpose()?;
        if data.len() > DATA_BYTES_MAX {
            return Err(PyValueError::new_err(format!(
                "a message to a user has at most {DATA_BYTES_MAX} bytes, not {}",
                data.len()
            )));
        }
        let until = monotonic_now() + lifetime_us;
        if self.letters.send(number, user, device, until, data).is_err() {
            return Ok(false);
        }
        self.carry_to_proxy()?;
        Ok(true)
    }

    /// Asks that the sessions of a user's devices end, or that of one of them; an event names its number, as of a message. False: too
    /// many are open.
    fn end(&mut self, number: u64, user: u64, device: Option<&str>, lifetime_us: u64) -> PyResult<bool> {
        let device = device.map(convert::device).transpose()?;
        let until = monotonic_now() + lifetime_us;
        if self.letters.end(number, user, device, until).is_err() {
            return Ok(false);
        }
        self.carry_to_proxy()?;
        Ok(true)
    }

    /// A message's outcome is waited for no more.
    fn forget(&mut self, number: u64) {
        self.letters.forget(number);
    }

    /// At most `limit` messages that came for this client's user: sender, its number, data.
    fn received<'py>(&mut self, py: Python<'py>, limit: usize) -> Vec<(u64, u64, Bound<'py, PyBytes>)> {
        let mut all = Vec::new();
        while all.len() < limit {
            let Some(one) = self.letters.read() else { break };
            all.push((one.sender, one.number, PyBytes::new(py, &one.data)));
        }
        all
    }

    /// When messages for this client's user count as delivered: 0 once they are here, 1 never, as nobody reads, 2 once `confirm`
    /// names them.
    fn set_reading(&mut self, reading: u8) -> PyResult<()> {
        self.letters.set_reading(match reading {
            0 => Reading::Here,
            1 => Reading::Nobody,
            2 => Reading::Confirmed,
            _ => return Err(PyValueError::new_err("a reading is 0, 1 or 2")),
        });
        self.carry_letters()
    }

    /// The reader of the program has this message.
    fn confirm(&mut self, sender: u64, number: u64) -> PyResult<()> {
        self.letters.confirm(sender, number);
        self.carry_letters()
    }

    /// Messages (chunks counted one by one) that the owner has not acknowledged: the sequence of the first, and their number.
    fn unacknowledged(&self, publication: u32) -> PyResult<(u64, usize)> {
        Ok(self
            .get()?
            .machine()
            .publishing(publication)
            .map_or((0, 0), |known| (known.low(), known.unacknowledged())))
    }

    /// Why the owner, or the proxy, takes nothing now, where it said so last, and in how many seconds the client asks again.
    fn put_off(&self, publication: u32) -> PyResult<Option<(&'static str, f64)>> {
        let Some(known) = self.get()?.machine().publishing(publication) else {
            return Ok(None);
        };
        let left = known.held_for(monotonic_now()) as f64 / 1e6;
        Ok(known.put_off().map(|code| (code.name(), left)))
    }

    fn counters(&self) -> PyResult<Vec<(String, String, u64)>> {
        let driver = self.get()?;
        let mut list = Vec::new();
        driver
            .machine()
            .counters
            .each(|name, help, value| list.push((name.to_string(), help.to_string(), value)));
        Ok(list)
    }

    /// A room's counters.
    fn room_stats<'py>(&self, py: Python<'py>, room: u32) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(member) = self.get()?.machine().room(room) else {
            return Ok(None);
        };
        let counters = member.counters;
        let stats = PyDict::new(py);
        stats.set_item("delivered", counters.delivered)?;
        stats.set_item("delivered_bytes", counters.delivered_bytes)?;
        stats.set_item("gaps", counters.gaps)?;
        stats.set_item("lost", counters.lost)?;
        stats.set_item("duplicates", counters.duplicates)?;
        stats.set_item("repeats", counters.repeats)?;
        stats.set_item("repairs_asked", counters.asked)?;
        stats.set_item("repaired", counters.repaired)?;
        stats.set_item("dropped_reader", counters.dropped_reader)?;
        stats.set_item("filtered", counters.filtered)?;
        stats.set_item("commands", counters.commands)?;
        stats.set_item("rejoined", counters.rejoined)?;
        Ok(Some(stats))
    }

    /// Smoothed round trip in microseconds: 0 to the gateway, 1 to the proxy.
    fn rtt_us(&self, side: usize) -> PyResult<Option<u64>> {
        Ok(self
            .get()?
            .machine()
            .rtt(if side == 0 { Side::Gateway } else { Side::Proxy }))
    }

    fn address(&self) -> PyResult<(String, u16)> {
        Ok(convert::host_port(self.get()?.sockets()[0].local()))
    }

    /// Receive buffer asked for and effective, in bytes.
    fn buffer(&self) -> PyResult<(usize, usize)> {
        let buffers = self.get()?.sockets()[0].buffers();
        Ok((buffers.receive_asked.unwrap_or(0), buffers.receive_bytes))
    }

    /// Says goodbye to the servers and closes the socket.
    fn close(&mut self) {
        // Taken first: the socket is closed even where the engine panics.
        if let Some(mut driver) = self.driver.take() {
            driver.machine_mut().close();
            driver.kick();
            driver.turn();
        }
    }
}
