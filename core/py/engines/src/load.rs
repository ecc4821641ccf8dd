//! The load generator's engine.

use muster_load::{Commanded, Commanding, Load, LoadConfig, Outcome, Pacing, Progress, Tally};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::convert::{self, endpoints, EndpointEntry, FaultRule};

/// Thousands of members and one publisher in this thread, checking every byte.
#[pyclass(module = "muster_server._engines")]
pub struct LoadEngine {
    load: Load,
    /// The run that `schedule` began.
    pacing: Option<Pacing>,
}

fn micros(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e6) as u64
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
    result.set_item("repaired", progress.repaired)?;
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
        gateways: Vec<EndpointEntry>,
        proxies: Vec<EndpointEntry>,
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

    /// Ends the schedule: `advance` publishes nothing more.
    fn stop(&mut self) {
        if let Some(pacing) = &mut self.pacing {
            pacing.stop();
        }
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
    fn redirect(&mut self, gateways: Vec<EndpointEntry>, proxies: Option<Vec<EndpointEntry>>) -> PyResult<()> {
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
