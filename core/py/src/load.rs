//! The load generator's engine.

use muster_load::{
    Commanded, Commanding, Cost, Feed, FeedConfig, Known, Load, LoadConfig, Outcome, Pacing, Plane, Progress, Tally,
    WheelTimes,
};
use muster_rooms::Endpoint;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::convert::{self, array, FaultRule};

/// Thousands of members and one publisher in this thread, checking every byte.
#[pyclass(module = "muster._core")]
pub struct LoadEngine {
    load: Load,
    /// The run that `schedule` began.
    pacing: Option<Pacing>,
}

fn micros(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e6) as u64
}

fn endpoints(list: Vec<(String, u16, Vec<u8>)>) -> PyResult<Vec<Endpoint>> {
    list.into_iter()
        .map(|(host, port, key)| {
            Ok(Endpoint {
                addr: convert::addr(&host, port)?,
                key: array(&key, "a public key")?,
            })
        })
        .collect()
}

fn tally(result: &Bound<'_, PyDict>, tally: &Tally) -> PyResult<()> {
    result.set_item("delivered", tally.delivered)?;
    result.set_item("delivered_bytes", tally.bytes)?;
    result.set_item("out_of_turn", tally.out_of_turn)?;
    result.set_item("corrupted", tally.corrupted)?;
    result.set_item("gaps", tally.gaps)?;
    result.set_item("lost", tally.lost)
}

fn outcome<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(py);
    result.set_item("published", outcome.published)?;
    result.set_item("acknowledged", outcome.acknowledged)?;
    tally(&result, &outcome.tally)?;
    result.set_item("wall_us", outcome.wall)?;
    result.set_item("late_p99_us", outcome.late_p99)?;
    result.set_item("late_max_us", outcome.late_max)?;
    result.set_item("complete", outcome.complete)?;
    result.set_item("shed", outcome.shed)?;
    result.set_item("datagrams", outcome.datagrams)?;
    result.set_item("datagram_bytes", outcome.datagram_bytes)?;
    result.set_item("datagrams_joined", outcome.datagrams_joined)?;
    let times = &outcome.latencies;
    for (name, list) in [
        ("latencies_us", &times.all),
        ("first_us", &times.first),
        ("middle_us", &times.middle),
        ("last_us", &times.last),
    ] {
        result.set_item(name, words(py, list))?;
    }
    Ok(result)
}

fn progress<'py>(py: Python<'py>, progress: &Progress) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(py);
    result.set_item("published", progress.published)?;
    tally(&result, &progress.tally)?;
    result.set_item("latencies_us", words(py, &progress.latencies))?;
    result.set_item("late_us", words(py, &progress.late))?;
    result.set_item("joined", progress.joined)?;
    result.set_item("sessions_lost", progress.sessions_lost)?;
    result.set_item("over", progress.over)?;
    result.set_item("complete", progress.complete)?;
    Ok(result)
}

fn commanded<'py>(py: Python<'py>, done: &Commanded) -> PyResult<Bound<'py, PyDict>> {
    let result = PyDict::new(py);
    for (name, count) in [
        ("sent", done.sent),
        ("delivered", done.delivered),
        ("no_member", done.no_member),
        ("expired", done.expired),
        ("refused", done.refused),
        ("silent", done.silent),
        ("late", done.late),
        ("told", done.told),
        ("doubled", done.doubled),
        ("strays", done.strays),
        ("missed", done.missed),
        ("away", done.away),
        ("miscounted", done.miscounted),
        ("expired_told", done.expired_told),
        ("wall_us", done.wall),
    ] {
        result.set_item(name, count)?;
    }
    result.set_item("late_p99_us", done.late_p99)?;
    result.set_item("latencies_us", words(py, &done.latencies))?;
    Ok(result)
}

/// As little-endian `u32`.
fn words<'py>(py: Python<'py>, list: &[u32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = list.iter().flat_map(|time| time.to_le_bytes()).collect();
    PyBytes::new(py, &bytes)
}

#[pymethods]
impl LoadEngine {
    #[new]
    #[pyo3(signature = (*, gateways, proxies, credential, members, rooms, seed, rooms_each = 1, recv_buffer = 0, gro = true, faults = None, commanding = false, proxies_each = None, knocking = 128, members_each = 1, publishers = 1, learns = false))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        gateways: Vec<(String, u16, Vec<u8>)>,
        proxies: Vec<(String, u16, Vec<u8>)>,
        credential: Vec<u8>,
        members: usize,
        rooms: Vec<String>,
        seed: u64,
        rooms_each: usize,
        recv_buffer: usize,
        gro: bool,
        faults: Option<Vec<FaultRule>>,
        commanding: bool,
        proxies_each: Option<usize>,
        knocking: usize,
        members_each: usize,
        publishers: usize,
        learns: bool,
    ) -> PyResult<Self> {
        let config = LoadConfig {
            gateways: endpoints(gateways)?,
            proxies: endpoints(proxies)?,
            credential,
            members,
            rooms,
            rooms_each,
            commanding,
            proxies_each,
            knocking_max: knocking,
            seed,
            members_each,
            publishers,
            learns,
            receive_bytes: (recv_buffer > 0).then_some(recv_buffer),
            gro,
            faults: convert::faults(seed, faults, None)?,
        };
        Ok(LoadEngine {
            load: Load::new(config)?,
            pacing: None,
        })
    }

    /// Waits until all have joined; gives how many have.
    fn connect(&mut self, py: Python<'_>, timeout: f64) -> usize {
        py.detach(|| self.load.connect(micros(timeout)))
    }

    /// Publishes as fast as credit allows, at most `window` messages a member ahead of delivery.
    #[pyo3(signature = (size, seconds, patience = 10.0, window = None))]
    fn saturate<'py>(
        &mut self,
        py: Python<'py>,
        size: usize,
        seconds: f64,
        patience: f64,
        window: Option<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let done = py.detach(|| self.load.saturate(size, window, micros(seconds), micros(patience)));
        outcome(py, &done)
    }

    /// Publishes on a fixed schedule.
    #[pyo3(signature = (size, rate, seconds, patience = 10.0, shed = false))]
    fn pace<'py>(
        &mut self,
        py: Python<'py>,
        size: usize,
        rate: f64,
        seconds: f64,
        patience: f64,
        shed: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let done = py.detach(|| self.load.pace(size, rate, micros(seconds), micros(patience), shed));
        outcome(py, &done)
    }

    /// Begins to publish `rate` messages a second for `seconds`, of which the first `ramp` raise the rate from 0.
    fn schedule(&mut self, size: usize, rate: f64, seconds: f64, ramp: f64) {
        self.pacing = Some(self.load.schedule(size, rate, micros(ramp), micros(seconds)));
    }

    /// Publishes what falls due within `seconds`; once all is sent, waits that long for the last deliveries.
    fn advance<'py>(&mut self, py: Python<'py>, seconds: f64) -> PyResult<Bound<'py, PyDict>> {
        let LoadEngine { load, pacing } = self;
        let Some(pacing) = pacing.as_mut() else {
            return Err(PyValueError::new_err("no schedule: call schedule() first"));
        };
        progress(py, &py.detach(|| load.advance(pacing, micros(seconds))))
    }

    /// Every member sends `each` commands of `size` bytes, one every `every` seconds; one of `vacant` to a room without
    /// members.
    #[pyo3(signature = (each, every, expires, size = 64, vacant = 0))]
    fn command<'py>(
        &mut self,
        py: Python<'py>,
        each: usize,
        every: f64,
        expires: f64,
        size: usize,
        vacant: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        let how = Commanding {
            each,
            every: micros(every),
            lifetime: micros(expires),
            bytes: size,
            vacant,
        };
        commanded(py, &py.detach(|| self.load.command(&how)))
    }

    /// Receives others' messages for this long; returns their tally.
    fn listen<'py>(&mut self, py: Python<'py>, size: usize, seconds: f64) -> PyResult<Bound<'py, PyDict>> {
        let result = PyDict::new(py);
        tally(&result, &py.detach(|| self.load.listen(size, micros(seconds))))?;
        Ok(result)
    }

    /// Runs without publishing.
    fn idle(&mut self, py: Python<'_>, seconds: f64) {
        py.detach(|| self.load.idle(micros(seconds)));
    }

    /// Sets the servers of members; a good session stays at its server. Without proxies unless they command.
    #[pyo3(signature = (gateways, proxies = None))]
    fn redirect(
        &mut self,
        gateways: Vec<(String, u16, Vec<u8>)>,
        proxies: Option<Vec<(String, u16, Vec<u8>)>>,
    ) -> PyResult<()> {
        self.load
            .redirect(&endpoints(gateways)?, &endpoints(proxies.unwrap_or_default())?);
        Ok(())
    }

    /// From `at` on, seconds of the monotonic clock, it is noted of every place how long nothing comes that was published
    /// later.
    fn watch(&mut self, at: f64) {
        self.load.watch(micros(at));
    }

    /// Two lists of `u32`, with one value per place: microseconds from that time to the first such message (the highest
    /// number: none came), and the longest time without one.
    fn heard<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        let short = |time: u64| u32::try_from(time).unwrap_or(u32::MAX);
        let (first, silence): (Vec<u32>, Vec<u32>) = self
            .load
            .heard()
            .map(|(first, silence)| (first.map_or(u32::MAX, short), short(silence)))
            .unzip();
        (words(py, &first), words(py, &silence))
    }

    /// Members that are in all their rooms now.
    fn joined(&self) -> usize {
        self.load.joined()
    }

    /// Ends all sessions; nothing may be run after.
    fn close(&mut self) {
        self.load.close();
    }

    fn sessions_lost(&self) -> u64 {
        self.load.sessions_lost()
    }

    /// Receive buffer that each socket really has.
    fn buffer(&self) -> usize {
        self.load.buffer()
    }
}

/// Sealed publishes of many real sessions, and the proxy that takes them; the caller times each step.
#[pyclass(module = "muster._core")]
pub struct FeedEngine {
    feed: Feed,
}

#[pymethods]
impl FeedEngine {
    #[new]
    #[pyo3(signature = (*, senders, datagram_bytes, seed, sockets = false))]
    fn new(senders: usize, datagram_bytes: usize, seed: u64, sockets: bool) -> PyResult<Self> {
        let config = FeedConfig {
            senders,
            datagram_bytes,
            seed,
            sockets,
        };
        Ok(FeedEngine {
            feed: Feed::new(&config)?,
        })
    }

    /// Seals new packets; gives how many.
    fn prepare(&mut self, count: usize) -> usize {
        self.feed.prepare(count)
    }

    /// Lays copies of the packets where they are opened in place.
    fn load(&mut self) {
        self.feed.load();
    }

    /// Opens the copies and nothing else; gives how many were authentic.
    fn open(&mut self) -> usize {
        self.feed.open()
    }

    /// The proxy takes the copies; gives how many messages it passed on.
    fn machine(&mut self) -> u64 {
        self.feed.machine()
    }

    /// Each packet leaves its own sender's socket for the sink; gives how many did.
    fn send(&mut self) -> PyResult<usize> {
        Ok(self.feed.send()?)
    }

    /// Drains the sink into the proxy; gives how many messages it passed on.
    fn receive(&mut self) -> u64 {
        self.feed.receive()
    }

    /// Broker, router and senders catch up.
    fn settle(&mut self) {
        self.feed.settle();
    }

    /// Descriptor of the socket that packets are sent to.
    fn sink(&self) -> i32 {
        self.feed.sink()
    }
}

/// CPU ns of the gateway, the router and the brokers, and bytes that came to brokers.
type Costs = (u64, u64, u64, u64);

fn costs(cost: &Cost) -> Costs {
    (cost.gateway, cost.router, cost.brokers, cost.broker_bytes)
}

/// A gateway, a router and brokers in memory, and their costs of membership and of changes of the map.
#[pyclass(module = "muster._core")]
pub struct ScaleEngine {
    plane: Plane,
    joined: Cost,
}

#[pymethods]
impl ScaleEngine {
    #[new]
    #[pyo3(signature = (*, rooms, partitions, seed, members = 1))]
    fn new(rooms: usize, partitions: u16, seed: u64, members: usize) -> PyResult<Self> {
        let (plane, joined) = Plane::new(rooms, members.max(1), partitions, seed).map_err(PyTimeoutError::new_err)?;
        Ok(ScaleEngine { plane, joined })
    }

    /// The costs until every room had its members.
    fn joined(&self) -> Costs {
        costs(&self.joined)
    }

    /// Another replica of the first partition starts; the cost until it knows its rooms, and how many it knows.
    fn start_broker(&mut self) -> PyResult<(Costs, usize)> {
        let (cost, known) = self.plane.start_broker().map_err(PyTimeoutError::new_err)?;
        Ok((costs(&cost), known))
    }

    /// The brokers' partitions double; the cost of each step.
    fn double(&mut self) -> PyResult<Vec<Costs>> {
        let steps = self.plane.double().map_err(PyTimeoutError::new_err)?;
        Ok(steps.iter().map(costs).collect())
    }

    /// Changes of a map of this many nodes; the cost of each, of brokers for one.
    fn change_map(&mut self, nodes: usize, times: usize) -> Vec<Costs> {
        self.plane.change_map(nodes, times).iter().map(costs).collect()
    }
}

/// A router with memberships of many gateways, for as long as this lives.
#[pyclass(module = "muster._core")]
pub struct KnownRooms {
    known: Known,
}

#[pymethods]
impl KnownRooms {
    #[new]
    #[pyo3(signature = (*, gateways, each, seed))]
    fn new(gateways: u32, each: u64, seed: u64) -> Self {
        KnownRooms {
            known: Known::new(gateways, each, seed),
        }
    }

    fn __len__(&self) -> usize {
        self.known.len()
    }
}

/// Times of a wheel with so many entries, in nanoseconds of the processor; and its bytes for each.
#[pyfunction]
pub fn wheel_times(py: Python<'_>, entries: usize) -> PyResult<Bound<'_, PyDict>> {
    if entries < 100 {
        return Err(PyValueError::new_err("a wheel of less than 100 entries is not timed"));
    }
    let times = py.detach(|| WheelTimes::measure(entries));
    let result = PyDict::new(py);
    result.set_item("insert_ns", times.insert_ns)?;
    result.set_item("cancel_ns", times.cancel_ns)?;
    result.set_item("cancel_any_ns", times.cancel_any_ns)?;
    result.set_item("tick_ns", times.tick_ns)?;
    result.set_item("entry_bytes", times.entry_bytes)?;
    Ok(result)
}
