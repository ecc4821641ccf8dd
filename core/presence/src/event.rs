//! Changes of a device at a gateway, and their encoding.
//!
//! Owns: [`Event`] (a change in a packet), [`Entry`] (a device in a full state), [`Reason`]. Does not interpret
//! versions.

use crate::device::Device;
use muster_transport::{Reader, Writer};

/// Why a device is offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The client closed its session.
    Closed = 1,
    /// Nothing came from the client for too long, or its gateway is gone.
    Lost = 2,
    /// The gateway sent its clients away.
    Drained = 3,
    /// A newer session replaced it.
    Replaced = 4,
    /// An operator or a backend closed the session.
    Kicked = 5,
}

impl Reason {
    pub const ALL: [Reason; 5] = [
        Reason::Closed,
        Reason::Lost,
        Reason::Drained,
        Reason::Replaced,
        Reason::Kicked,
    ];

    pub fn from_u8(code: u8) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| *reason as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Reason::Closed => "closed",
            Reason::Lost => "lost",
            Reason::Drained => "drained",
            Reason::Replaced => "replaced",
            Reason::Kicked => "kicked",
        }
    }
}

/// A device's state in an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum State {
    Online,
    Offline(Reason),
}

impl State {
    pub fn code(self) -> u8 {
        match self {
            State::Online => 0,
            State::Offline(reason) => reason as u8,
        }
    }

    pub fn from_u8(code: u8) -> Option<State> {
        match code {
            0 => Some(State::Online),
            code => Reason::from_u8(code).map(State::Offline),
        }
    }
}

/// One change of one device. `index` is its position in the gateway's packet, even if the packet was split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    pub index: u16,
    pub user: u64,
    pub device: Device,
    pub state: State,
    /// The gateway's wall clock in milliseconds; for display, never for ordering (H4).
    pub at_ms: u64,
}

impl Event {
    /// Longest event, in bytes: 2 + 8 + 24 + 1 + 8.
    pub const LEN_MAX: usize = 19 + Device::LEN_MAX;

    pub(crate) fn len(&self) -> usize {
        20 + self.device.name().len()
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Event> {
        Some(Event {
            index: reader.u16()?,
            user: reader.u64()?,
            device: Device::read(reader)?,
            state: State::from_u8(reader.u8()?)?,
            at_ms: reader.u64()?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        writer.u16(self.index).u64(self.user);
        self.device.write(writer);
        writer.u8(self.state.code()).u64(self.at_ms);
    }
}

/// One online device in a full state: since when, and by which event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub user: u64,
    pub device: Device,
    pub version: u64,
    pub index: u16,
    pub since_ms: u64,
}

impl Entry {
    pub(crate) fn len(&self) -> usize {
        27 + self.device.name().len()
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Entry> {
        Some(Entry {
            user: reader.u64()?,
            device: Device::read(reader)?,
            version: reader.u64()?,
            index: reader.u16()?,
            since_ms: reader.u64()?,
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        writer.u64(self.user);
        self.device.write(writer);
        writer.u64(self.version).u16(self.index).u64(self.since_ms);
    }
}

/// Reads items to the end of `bytes`. `None`: one is malformed. Allocates no more than the bytes hold.
pub(crate) fn read_all<T>(bytes: &[u8], read: impl Fn(&mut Reader<'_>) -> Option<T>) -> Option<Vec<T>> {
    let mut reader = Reader::new(bytes);
    let mut all = Vec::new();
    while !reader.is_empty() {
        all.push(read(&mut reader)?);
    }
    Some(all)
}
