//! Static keys of servers: what the supervisor writes beside an address.

use muster_proto::handshake::ServerKey;
use pyo3::prelude::*;

use crate::convert::array;

/// The X25519 public key that belongs to 32 private bytes.
#[pyfunction]
pub fn public_key(private: &[u8]) -> PyResult<Vec<u8>> {
    Ok(ServerKey::from_private(array(private, "a private key")?)
        .public()
        .to_vec())
}
