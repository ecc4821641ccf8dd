//! Static keys of servers: what the supervisor writes beside an address.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};

/// The X25519 public key that belongs to 32 private bytes.
#[pyfunction]
pub fn public_key(private: &[u8]) -> PyResult<Vec<u8>> {
    if private.len() != 32 {
        return Err(PyValueError::new_err(format!(
            "a private key has 32 bytes, not {}",
            private.len()
        )));
    }
    let mut pair = DefaultResolver
        .resolve_dh(&DHChoice::Curve25519)
        .expect("snow is built with Curve25519");
    pair.set(private);
    Ok(pair.pubkey().to_vec())
}
