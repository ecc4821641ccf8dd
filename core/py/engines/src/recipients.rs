//! To which users a client may send, for Python.

use muster_presence::{Claims, Recipients as PresenceRecipients};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The users that a token's patterns match.
#[pyclass(module = "muster_server._engines", frozen)]
pub struct Recipients(PresenceRecipients);

/// What a credential says for presence and unicast, as their guests read it.
pub fn claims(device: Option<&[u8]>, takes_over: bool, recipients: Option<&Recipients>) -> Vec<u8> {
    let claims = Claims {
        device: device.unwrap_or_default().to_vec(),
        takes_over,
        recipients: recipients.map(|known| known.0.clone()).unwrap_or_default(),
    };
    claims.to_bytes()
}

#[pymethods]
impl Recipients {
    #[new]
    fn new(patterns: Vec<String>) -> PyResult<Self> {
        PresenceRecipients::new(patterns.iter().map(String::as_str))
            .map(Recipients)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Whether a user is among them.
    fn has(&self, user: u64) -> bool {
        self.0.has(user)
    }

    /// Whether there is anybody.
    fn __bool__(&self) -> bool {
        !self.0.is_empty()
    }
}
