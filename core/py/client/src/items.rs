//! The values of single messages, for Python: [`Message`] and [`Position`]. They are made here because a class of Python takes
//! longer for each than the engine takes for its delivery. The rarer items, gaps and commands, are made of Python's classes.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use muster_rooms::headers;
use muster_rooms::wire::{StreamGap, StreamId};
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyType};

/// Bytes of `bytes(position)`.
const POSITION: usize = 20;
/// Bytes of the content that `repr` shows.
const SHOWN: usize = 40;

pub type StreamTuple = (u32, u32, u32);

pub fn stream_tuple(stream: StreamId) -> StreamTuple {
    (stream.node, stream.epoch, stream.generation)
}

fn stream_id((node, epoch, generation): StreamTuple) -> StreamId {
    StreamId {
        node,
        epoch,
        generation,
    }
}

/// A callable of Python, found once.
struct Known {
    module: &'static str,
    name: &'static str,
    found: PyOnceLock<Py<PyAny>>,
}

impl Known {
    const fn new(module: &'static str, name: &'static str) -> Self {
        Known {
            module,
            name,
            found: PyOnceLock::new(),
        }
    }

    fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        let found = self
            .found
            .get_or_try_init(py, || py.import(self.module)?.getattr(self.name).map(Bound::unbind))?;
        Ok(found.bind(py))
    }
}

static COMMAND: Known = Known::new("muster.items", "Command");
static GAP: Known = Known::new("muster.items", "Gap");
static STREAM: Known = Known::new("muster.items", "Stream");
static LOADS: Known = Known::new("json", "loads");

fn stream_of<'py>(py: Python<'py>, stream: StreamId) -> PyResult<Bound<'py, PyAny>> {
    STREAM.get(py)?.call1(stream_tuple(stream))
}

/// A gap of a room, as Python's class.
pub fn gap<'py>(py: Python<'py>, room: &Bound<'py, PyString>, gap: &StreamGap) -> PyResult<Bound<'py, PyAny>> {
    let last = (gap.last != StreamGap::OPEN).then_some(gap.last);
    GAP.get(py)?
        .call1((stream_of(py, gap.stream)?, gap.first, last, gap.reason.name(), room))
}

/// A command to the members of a room, as Python's class.
pub fn command<'py>(
    py: Python<'py>,
    room: &Bound<'py, PyString>,
    number: u64,
    sender: u64,
    data: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    COMMAND.get(py)?.call1((room, number, sender, PyBytes::new(py, data)))
}

/// The place of one message in its room's stream. Immutable; `<` and `>` only within one stream.
#[pyclass(module = "muster", frozen)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    stream: StreamId,
    offset: u64,
}

impl Position {
    pub fn new(stream: StreamId, offset: u64) -> Self {
        Position { stream, offset }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StreamId {
            node,
            epoch,
            generation,
        } = self.stream;
        write!(f, "{node}.{epoch}.{generation}:{}", self.offset)
    }
}

#[pymethods]
impl Position {
    #[new]
    fn made(stream: StreamTuple, offset: u64) -> Self {
        Position::new(stream_id(stream), offset)
    }

    /// Make a position of `bytes(position)`. Raises `ValueError`.
    #[classmethod]
    fn from_bytes(_class: &Bound<'_, PyType>, data: &[u8]) -> PyResult<Self> {
        let Ok(data) = <&[u8; POSITION]>::try_from(data) else {
            let wrong = format!("a position has {POSITION} bytes, not {}", data.len());
            return Err(PyValueError::new_err(wrong));
        };
        let word = |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let offset = u64::from(word(12)) | u64::from(word(16)) << 32;
        Ok(Position::new(stream_id((word(0), word(4), word(8))), offset))
    }

    /// The stream that `offset` counts in.
    #[getter]
    fn stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stream_of(py, self.stream)
    }

    /// The message's number, from 1 without holes. A message in several datagrams takes several and has the last.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let (node, epoch, generation) = stream_tuple(self.stream);
        let mut bytes = [0; POSITION];
        bytes[..4].copy_from_slice(&node.to_le_bytes());
        bytes[4..8].copy_from_slice(&epoch.to_le_bytes());
        bytes[8..12].copy_from_slice(&generation.to_le_bytes());
        bytes[12..].copy_from_slice(&self.offset.to_le_bytes());
        PyBytes::new(py, &bytes)
    }

    fn __richcmp__<'py>(&self, other: &Bound<'py, PyAny>, op: CompareOp) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        let Ok(other) = other.cast::<Position>().map(Bound::get) else {
            if matches!(op, CompareOp::Eq | CompareOp::Ne) {
                return Ok(py.NotImplemented().into_bound(py));
            }
            let kind = other.get_type().name()?;
            let wrong = format!("a position compares with positions, not with {kind}");
            return Err(PyTypeError::new_err(wrong));
        };
        let order = match op {
            CompareOp::Eq | CompareOp::Ne if self.stream != other.stream => Ordering::Less,
            _ if self.stream != other.stream => {
                let wrong = format!("{self} and {other} are in different streams: neither is before the other");
                return Err(PyValueError::new_err(wrong));
            }
            _ => self.offset.cmp(&other.offset),
        };
        Ok(op.matches(order).into_pyobject(py)?.to_owned().into_any())
    }

    fn __hash__(&self) -> u64 {
        hashed(self)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (StreamTuple, u64)) {
        (py.get_type::<Self>(), (stream_tuple(self.stream), self.offset))
    }

    fn __str__(&self) -> String {
        self.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Position {self}>")
    }
}

/// Room, stream, offset, sender, data, age and headers of a message, of which another is made.
type Fields<'py> = (
    Py<PyString>,
    StreamTuple,
    u64,
    u64,
    Py<PyBytes>,
    Option<f64>,
    Bound<'py, PyDict>,
);

/// A published message of `room`. `sender` is the user that the servers authenticated. `age`: seconds from its arrival at a proxy
/// until this object was made; None where that is not known. It does not count for equality.
#[pyclass(module = "muster", frozen)]
pub struct Message {
    #[pyo3(get)]
    room: Py<PyString>,
    #[pyo3(get)]
    data: Py<PyBytes>,
    #[pyo3(get)]
    sender: u64,
    #[pyo3(get)]
    age: Option<f64>,
    at: Position,
    /// The block of its headers; empty if it has none.
    block: Box<[u8]>,
}

impl Message {
    /// As an object of Python.
    pub fn create<'py>(
        room: &Bound<'py, PyString>,
        (stream, offset): (StreamId, u64),
        sender: u64,
        headers: &[u8],
        data: &[u8],
        age: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = room.py();
        let message = Message {
            room: room.clone().unbind(),
            data: PyBytes::new(py, data).unbind(),
            sender,
            age,
            at: Position::new(stream, offset),
            block: headers.into(),
        };
        Ok(Bound::new(py, message)?.into_any())
    }
}

#[pymethods]
impl Message {
    #[new]
    #[pyo3(signature = (room, stream, offset, sender, data, age = None, headers = None))]
    #[allow(clippy::too_many_arguments)]
    fn made(
        room: Py<PyString>,
        stream: StreamTuple,
        offset: u64,
        sender: u64,
        data: Py<PyBytes>,
        age: Option<f64>,
        headers: Option<BTreeMap<String, String>>,
    ) -> PyResult<Self> {
        let named = headers.iter().flatten();
        let block = headers::encode(named.map(|(name, value)| (name.as_str(), value.as_str())));
        Ok(Message {
            room,
            data,
            sender,
            age,
            at: Position::made(stream, offset),
            block: block.map_err(|error| PyValueError::new_err(error.to_string()))?.into(),
        })
    }

    #[classattr]
    fn __match_args__() -> (&'static str, &'static str, &'static str, &'static str) {
        ("room", "position", "sender", "data")
    }

    /// The message's position in the room; each access makes a new object.
    #[getter]
    fn position(&self) -> Position {
        self.at
    }

    /// The headers, each access as a new dict; empty if the message has none.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let named = PyDict::new(py);
        for (name, value) in headers::decode(&self.block) {
            named.set_item(name, value)?;
        }
        Ok(named)
    }

    /// The content as JSON. Raises `ValueError` if it is none.
    fn json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        LOADS.get(py)?.call1((self.data.bind(py),))
    }

    fn __eq__<'py>(&self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = other.py();
        let Ok(other) = other.cast::<Message>().map(Bound::get) else {
            return Ok(py.NotImplemented().into_bound(py));
        };
        let same = self.at == other.at
            && self.sender == other.sender
            && self.block == other.block
            && self.data.as_bytes(py) == other.data.as_bytes(py)
            && self.room.bind(py).as_any().eq(other.room.bind(py))?;
        Ok(same.into_pyobject(py)?.to_owned().into_any())
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(hashed(&(self.room.bind(py).hash()?, self.at)))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, Fields<'py>)> {
        let (room, data) = (self.room.clone_ref(py), self.data.clone_ref(py));
        let stream = stream_tuple(self.at.stream);
        let headers = self.headers(py)?;
        let fields = (room, stream, self.at.offset, self.sender, data, self.age, headers);
        Ok((py.get_type::<Self>(), fields))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let bytes = self.data.as_bytes(py);
        let shown = match bytes.len() > SHOWN {
            true => PyBytes::new(py, &[&bytes[..SHOWN], b"..."].concat()),
            false => self.data.bind(py).clone(),
        };
        let (room, position, sender) = (self.room.bind(py).repr()?, self.at, self.sender);
        let headers = match self.block.is_empty() {
            true => String::new(),
            false => format!(", headers={}", self.headers(py)?.repr()?),
        };
        Ok(format!(
            "Message(room={room}, position={position}, sender={sender}, data={}{headers})",
            shown.repr()?
        ))
    }
}

fn hashed(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
