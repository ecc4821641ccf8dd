//! The loops of benches that measure the machines without servers: names and types, no logic. No wheel has this module.

use muster_load::{Cost, Feed, FeedConfig, Known, Plane, WheelTimes};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Sealed publishes of many real sessions, and the proxy that takes them; the caller times each step.
#[pyclass(module = "bench.loops._loops")]
struct FeedEngine {
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
#[pyclass(module = "bench.loops._loops")]
struct ScaleEngine {
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
#[pyclass(module = "bench.loops._loops")]
struct KnownRooms {
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

/// CPU time of each operation on a wheel with `entries` entries, in nanoseconds, and the bytes of an entry.
#[pyfunction]
fn wheel_times(py: Python<'_>, entries: usize) -> PyResult<Bound<'_, PyDict>> {
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

#[pymodule]
fn _loops(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FeedEngine>()?;
    module.add_class::<KnownRooms>()?;
    module.add_class::<ScaleEngine>()?;
    module.add_function(wrap_pyfunction!(wheel_times, module)?)
}
