//! How an engine is made: what each node with links has, what each node with clients has, and the role's settings.

use muster_driver::Faults;
use muster_transport::{ClusterKeys, Identity, NodeConfig, ResetSecret, Role, ServerKey, SocketId, PUBLIC_SOCKET};
use muster_udp::Socket;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

use crate::convert::{self, allow_list, array, Allow, FaultRule};
use crate::server::{RoleMachine, Running};

pub(crate) type HostPort = (String, u16);
/// A secret of the cluster, and its id.
pub(crate) type ClusterKey = (u8, Vec<u8>);

/// The arguments of each node with links, by name.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct LinkOptions {
    node: u32,
    epoch: u32,
    link_bind: HostPort,
    cluster_key: ClusterKey,
    #[pyo3(default)]
    cluster_other: Option<ClusterKey>,
    #[pyo3(default)]
    cluster_allow: Option<Allow>,
    pub seed: u64,
    recv_buffer: usize,
    send_buffer: usize,
    payload_bytes: usize,
    #[pyo3(default)]
    faults: Option<Vec<FaultRule>>,
}

/// Further ones of a node that clients connect to.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct DoorOptions {
    pub bind: HostPort,
    name_key: Vec<u8>,
    #[pyo3(default)]
    server_key: Vec<u8>,
    reset_secret: Vec<u8>,
}

impl DoorOptions {
    pub fn name_key(&self) -> PyResult<[u8; 16]> {
        array(&self.name_key, "a name key")
    }

    pub fn server_key(&self) -> PyResult<ServerKey> {
        Ok(ServerKey::from_private(array(&self.server_key, "a server key")?))
    }
}

impl LinkOptions {
    pub fn me(&self, role: Role) -> Identity {
        Identity {
            node: self.node,
            role,
            epoch: self.epoch,
        }
    }

    /// How a node of this role is set up. Without a door it resets links by the cluster's secret: it has no file for one
    /// of its own.
    pub fn config(&mut self, role: Role, door: Option<&DoorOptions>) -> PyResult<NodeConfig> {
        let cluster = cluster(
            &self.cluster_key,
            self.cluster_other.as_ref(),
            self.cluster_allow.take(),
        )?;
        let reset_secret = match door {
            Some(door) => ResetSecret::of_node(&array(&door.reset_secret, "a reset secret")?, self.node),
            None => ResetSecret::of_node(cluster.reset_root(), self.node),
        };
        Ok(NodeConfig {
            me: self.me(role),
            payload: self.payload_bytes,
            cluster,
            reset_secret,
        })
    }

    /// The sockets: that of links, and that of clients if they come over UDP.
    pub fn sockets(&self, clients: Option<&HostPort>) -> PyResult<Vec<Socket>> {
        let addresses: Vec<&HostPort> = [Some(&self.link_bind), clients].into_iter().flatten().collect();
        bound(&addresses, self.recv_buffer, self.send_buffer)
    }

    /// Faults of the network that tests ask for, not at this socket.
    pub fn faults(&mut self, but: Option<SocketId>) -> PyResult<Option<Faults>> {
        convert::faults(self.seed, self.faults.take(), but)
    }

    /// A node that has no clients over UDP, at work.
    pub fn run<M: RoleMachine>(mut self, machine: M) -> PyResult<Option<Running<M>>>
    where
        M::Beside: Default,
    {
        let (sockets, faults) = (self.sockets(None)?, self.faults(None)?);
        Running::new(machine, sockets, faults).map(Some)
    }

    /// A node that has, at work.
    pub fn run_with<M: RoleMachine>(mut self, machine: M, door: &DoorOptions) -> PyResult<Running<M>>
    where
        M::Beside: Default,
    {
        let (sockets, faults) = (self.sockets(Some(&door.bind))?, self.faults(Some(PUBLIC_SOCKET))?);
        Running::new(machine, sockets, faults)
    }
}

/// The cluster's secrets: that of new links, and another one that is accepted; and the list of nodes that may link.
pub(crate) fn cluster(key: &ClusterKey, other: Option<&ClusterKey>, allow: Option<Allow>) -> PyResult<ClusterKeys> {
    let read = |key: &ClusterKey| array(&key.1, "a cluster secret").map(|secret| (key.0, secret));
    let (current, other) = (read(key)?, other.map(read).transpose()?);
    if other.is_some_and(|(id, _)| id == current.0) {
        return Err(PyValueError::new_err("two cluster secrets with one id"));
    }
    let allow = allow.map(allow_list).transpose()?;
    Ok(ClusterKeys { current, other, allow })
}

/// Settings, as JSON with the names that they have in the configuration.
pub(crate) fn settings<S: DeserializeOwned>(json: &[u8]) -> PyResult<S> {
    serde_json::from_slice(json).map_err(|error| PyValueError::new_err(format!("settings: {error}")))
}

fn bound(addresses: &[&HostPort], recv_buffer: usize, send_buffer: usize) -> PyResult<Vec<Socket>> {
    let options = convert::socket_options(recv_buffer, send_buffer);
    let mut sockets = Vec::new();
    for (host, port) in addresses {
        let socket = Socket::bind(convert::addr(host, *port)?, &options);
        sockets.push(socket.map_err(|error| os_error(&error, host, *port))?);
    }
    Ok(sockets)
}

/// An error of the system about an address, with its number.
pub(crate) fn os_error(error: &std::io::Error, host: &str, port: u16) -> PyErr {
    let text = format!("{host}:{port}");
    match error.raw_os_error() {
        Some(code) => pyo3::exceptions::PyOSError::new_err((code, error.to_string(), text)),
        None => pyo3::exceptions::PyOSError::new_err(format!("{text}: {error}")),
    }
}
