//! The client's engine for Python: names and types, no logic. All that the wheel of `muster` brings compiled.

mod client;
mod items;

use std::collections::BTreeMap;

use muster_rooms::{headers, RoomName};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The version of the compiled library, equal to that of the distribution `muster`.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The mistake in a room name, if any.
#[pyfunction]
fn room_name_error(name: &str) -> Option<String> {
    RoomName::parse(name).err().map(|error| error.to_string())
}

/// Encodes headers of a message for `ClientEngine.publish`; none are no bytes. Raises `ValueError`.
#[pyfunction]
fn encode_headers<'py>(py: Python<'py>, named: BTreeMap<String, String>) -> PyResult<Bound<'py, PyBytes>> {
    let pairs = named.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let block = headers::encode(pairs).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &block))
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let spoken = muster_transport::Versions::OURS;
    module.add("PROTOCOLS", (spoken.lowest(), spoken.highest()))?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add_function(wrap_pyfunction!(room_name_error, module)?)?;
    module.add_function(wrap_pyfunction!(encode_headers, module)?)?;
    module.add_class::<client::ClientEngine>()?;
    module.add_class::<items::Message>()?;
    module.add_class::<items::Position>()
}
