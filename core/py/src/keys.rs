//! Functions without an engine: the static keys of servers, and what a room name must be.

use muster_proto::handshake::ServerKey;
use muster_proto::name::RoomName;
use pyo3::prelude::*;

use crate::convert::array;

/// The X25519 public key that belongs to 32 private bytes.
#[pyfunction]
pub fn public_key(private: &[u8]) -> PyResult<Vec<u8>> {
    Ok(ServerKey::from_private(array(private, "a private key")?)
        .public()
        .to_vec())
}

/// What is wrong with a room name, if anything is.
#[pyfunction]
pub fn room_name_error(name: &str) -> Option<String> {
    RoomName::parse(name).err().map(|error| error.to_string())
}
