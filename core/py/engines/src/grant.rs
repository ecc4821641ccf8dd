//! The rights of one user, room by room, for Python.

use muster_rooms::{Admitted, Grant as RoomGrant, Rights, RoomName};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The rights that a token gives: a list of words for each pattern of room names.
#[pyclass(module = "muster_server._engines", frozen, eq)]
#[derive(Clone, PartialEq, Eq)]
pub struct Grant(RoomGrant);

impl From<RoomGrant> for Grant {
    fn from(grant: RoomGrant) -> Self {
        Grant(grant)
    }
}

impl Grant {
    /// The user with these rights.
    pub fn admits(&self, user: u64) -> Admitted {
        Admitted {
            grant: self.0.clone(),
            ..Admitted::from(user)
        }
    }
}

#[pymethods]
impl Grant {
    #[new]
    fn new(patterns: Vec<(String, Vec<String>)>) -> PyResult<Self> {
        let rights = |words: &[String]| Rights::of(words.iter().map(String::as_str));
        let entries = patterns.iter().map(|(text, words)| (text.as_str(), rights(words)));
        RoomGrant::new(entries)
            .map(Grant)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The words of the rights in a room. Raises `ValueError` unless it is a room's name.
    fn words(&self, room: &str) -> PyResult<Vec<&'static str>> {
        let name = RoomName::parse(room).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(self.0.of(&name).words().collect())
    }

    /// Whether one of these words is there in some room.
    fn has_any(&self, words: Vec<String>) -> bool {
        self.0.has_any(Rights::of(words.iter().map(String::as_str)))
    }
}
