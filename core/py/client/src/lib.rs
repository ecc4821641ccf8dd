//! The client's engine for Python: names and types, no logic. All that the wheel of `muster` brings compiled.

mod client;
mod items;

use muster_rooms::RoomName;
use pyo3::prelude::*;

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

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let spoken = muster_transport::Versions::OURS;
    module.add("PROTOCOLS", (spoken.lowest(), spoken.highest()))?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add_function(wrap_pyfunction!(room_name_error, module)?)?;
    module.add_class::<client::ClientEngine>()?;
    module.add_class::<items::Message>()?;
    module.add_class::<items::Position>()
}
