//! Functions without an engine: the static keys of servers, and the owner of a room.

use muster_rooms::{RoomLayers, RoomName};
use muster_transport::ServerKey;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::{array, placement, NodeEntry};

/// The X25519 public key that belongs to 32 private bytes.
#[pyfunction]
pub fn public_key(private: &[u8]) -> PyResult<Vec<u8>> {
    Ok(ServerKey::from_private(array(private, "a private key")?)
        .public()
        .to_vec())
}

/// Whether a node can prove by the private half of this public key that it is that node.
#[pyfunction]
pub fn key_proves(public: &[u8]) -> PyResult<bool> {
    Ok(ServerKey::proves(&array(public, "a public key")?))
}

/// The broker that owns each of these rooms, by a map as engines take it; None where no broker of its partition runs.
#[pyfunction]
#[pyo3(signature = (names, name_key, nodes, partitions, growth = (0, 0)))]
pub fn room_owners(
    names: Vec<String>,
    name_key: &[u8],
    nodes: Vec<NodeEntry>,
    partitions: (u16, u16),
    growth: (u8, u8),
) -> PyResult<Vec<Option<u32>>> {
    let (key, map) = (array(name_key, "a name key")?, placement(0, nodes, partitions, growth)?);
    let owner = |name: &String| match RoomName::parse(name) {
        Ok(room) => Ok(map.own().owner(room.key(&key).id)),
        Err(error) => Err(PyValueError::new_err(error.to_string())),
    };
    names.iter().map(owner).collect()
}
