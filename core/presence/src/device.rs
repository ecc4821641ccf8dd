//! A device's name: how a token names one of a user's devices.
//!
//! Owns: [`Device`], its bounds and its kind. Knows no session.

use crate::limits::DEVICE_BYTES_MAX;
use muster_transport::{Reader, Writer};

/// A name of 1 to 23 printable characters without space and comma; the part before the first colon is its kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    bytes: [u8; DEVICE_BYTES_MAX],
    len: u8,
}

impl Device {
    /// Longest encoded name, in bytes.
    pub const LEN_MAX: usize = 1 + DEVICE_BYTES_MAX;
    /// A device ordered before all others; no real device has this name.
    pub(crate) const LOWEST: Device = Device {
        bytes: [0; DEVICE_BYTES_MAX],
        len: 0,
    };

    /// `None`: empty, too long, or with an invalid byte.
    pub fn new(name: &[u8]) -> Option<Device> {
        let good = |byte: &u8| byte.is_ascii_graphic() && *byte != b',';
        if name.is_empty() || name.len() > DEVICE_BYTES_MAX || !name.iter().all(good) {
            return None;
        }
        let mut bytes = [0; DEVICE_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name);
        let len = name.len() as u8;
        Some(Device { bytes, len })
    }

    pub fn name(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The kind: `phone` of `phone:3f`, and of `phone`.
    pub fn kind(&self) -> &[u8] {
        self.name().split(|byte| *byte == b':').next().unwrap_or(&[])
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Device> {
        let len = reader.u8()?;
        Device::new(reader.take(usize::from(len))?)
    }

    /// Reads a device, or an empty name for none.
    pub(crate) fn read_any(reader: &mut Reader<'_>) -> Option<Option<Device>> {
        match reader.u8()? {
            0 => Some(None),
            len => Device::new(reader.take(usize::from(len))?).map(Some),
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        writer.u8(self.len).put(self.name());
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_kind_and_bounds() {
        let kind = |name: &[u8]| Device::new(name).map(|device| device.kind().to_vec());
        assert_eq!(kind(b"phone:3f"), Some(b"phone".to_vec()));
        assert_eq!(kind(b"laptop"), Some(b"laptop".to_vec()));
        for wrong in [&b""[..], b"a b", b"a,b", b"a\n", &[b'x'; 24], "\u{e9}".as_bytes()] {
            assert_eq!(Device::new(wrong), None, "{wrong:?}");
        }
    }
}
