//! Values of Python that more than one compiled module takes, and back: addresses, faults, sockets. It knows no engine.

use std::net::{SocketAddr, ToSocketAddrs};

use muster_driver::{Direction, Faults, Rule};
use muster_presence::Device;
use muster_rooms::Endpoint;
use muster_transport::{Addr, SocketId, Versions};
use muster_udp::SocketOptions;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

type Peer = Option<(String, u16)>;

/// Direction, peer (`None`: every client), loss, duplicate, corrupt, reorder, then hold, delay and jitter in ms; the mean length of
/// a burst, where losses are to come in such.
#[derive(FromPyObject)]
pub enum FaultRule {
    Bursts((String, Peer, f64, f64, f64, f64, u32, u32, u32, f64)),
    Plain((String, Peer, f64, f64, f64, f64, u32, u32, u32)),
}

/// Exactly `N` bytes.
pub fn array<const N: usize>(bytes: &[u8], what: &str) -> PyResult<[u8; N]> {
    bytes
        .try_into()
        .map_err(|_| PyValueError::new_err(format!("{what} has {N} bytes, not {}", bytes.len())))
}

/// An address as (host, port). A name is resolved once.
pub fn addr(host: &str, port: u16) -> PyResult<Addr> {
    let mut found = (host, port)
        .to_socket_addrs()
        .map_err(|error| PyOSError::new_err(format!("{host}:{port}: {error}")))?;
    found
        .next()
        .map(Addr::from)
        .ok_or_else(|| PyOSError::new_err(format!("{host}:{port}: no address")))
}

/// An address as Python gets it.
pub fn host_port(addr: Addr) -> (String, u16) {
    let address = SocketAddr::from(addr);
    (address.ip().to_string(), address.port())
}

/// A device by its name.
pub fn device(name: &str) -> PyResult<Device> {
    Device::new(name.as_bytes()).ok_or_else(|| PyValueError::new_err(format!("invalid device {name:?}")))
}

/// From the lowest version of the protocol to the highest.
pub fn versions(lowest: u8, highest: u8) -> PyResult<Versions> {
    match 0 < lowest && lowest <= highest {
        true => Ok(Versions::new(lowest, highest)),
        false => Err(PyValueError::new_err("versions are from 1 on, the lowest first")),
    }
}

/// Servers as clients are given them: host, port and public key each.
pub type EndpointEntry = (String, u16, Vec<u8>);

pub fn endpoints(list: Vec<EndpointEntry>) -> PyResult<Vec<Endpoint>> {
    list.into_iter()
        .map(|(host, port, key)| {
            Ok(Endpoint {
                addr: addr(&host, port)?,
                key: array(&key, "a public key")?,
            })
        })
        .collect()
}

pub fn socket_options(recv_buffer: usize, send_buffer: usize) -> SocketOptions {
    let asked = |bytes: usize| (bytes > 0).then_some(bytes);
    SocketOptions {
        receive_bytes: asked(recv_buffer),
        send_bytes: asked(send_buffer),
        gro: true,
    }
}

/// The rules of injected faults; `public` is the socket that clients speak to, if there is one.
pub fn faults(seed: u64, rules: Option<Vec<FaultRule>>, public: Option<SocketId>) -> PyResult<Option<Faults>> {
    let Some(rules) = rules.filter(|rules| !rules.is_empty()) else {
        return Ok(None);
    };
    let mut made = Vec::new();
    for rule in rules {
        let ((direction, peer, loss, duplicate, corrupt, reorder, reorder_ms, delay_ms, jitter_ms), burst) = match rule
        {
            FaultRule::Plain(rule) => (rule, 1.0),
            FaultRule::Bursts((a, b, c, d, e, f, g, h, i, burst)) => ((a, b, c, d, e, f, g, h, i), burst),
        };
        let mut rule = Rule::new(match direction.as_str() {
            "in" => Direction::In,
            "out" => Direction::Out,
            other => {
                return Err(PyValueError::new_err(format!(
                    "a fault's direction is in or out, not {other}"
                )))
            }
        });
        match peer {
            Some((host, port)) => rule.remote = Some(addr(&host, port)?),
            None => rule.socket = public,
        }
        (rule.loss, rule.duplicate, rule.corrupt, rule.reorder) = (loss, duplicate, corrupt, reorder);
        (rule.reorder_ms, rule.delay_ms, rule.jitter_ms) = (reorder_ms, delay_ms, jitter_ms);
        rule.burst = burst;
        made.push(rule);
    }
    Faults::new(seed, made)
        .map(Some)
        .map_err(|error| PyValueError::new_err(format!("{error:?}")))
}
