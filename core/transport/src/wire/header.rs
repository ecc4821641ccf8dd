//! The 28 bytes of clear header before every datagram's sealed part; they are its associated data.

/// Bytes of the header.
pub const HEADER: usize = 28;
/// First byte of every Muster datagram.
pub const MAGIC: u8 = 0x4D;
/// Version of the protocol, four bits.
pub const VERSION: u8 = 1;
/// Bytes of the longest datagram: the largest `payload_bytes` that a node may have, since a peer's may differ from
/// ours. A longer one, up to 65,507 B, comes from a stranger: it is dropped before a key is looked up.
pub const DATAGRAM_BYTES_MAX: usize = 1_472;
/// Flag: the sender asks for a status at once.
pub const STATUS_WANTED: u8 = 1;

/// The kind of a datagram, four bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DatagramKind {
    /// First handshake message, with a cookie, padded to the path's size.
    Hello = 1,
    /// A stateless reply to a hello without a valid cookie.
    Cookie = 2,
    /// Second handshake message.
    Accept = 3,
    /// Sealed frames.
    Data = 4,
    /// "This connection is unknown", with a token that proves it.
    Reset = 5,
}

/// The clear header.
///
/// | bytes | field |
/// |---|---|
/// | 0 | magic |
/// | 1 | version << 4 \| kind |
/// | 2 | key id: which cluster secret (links), 0 for clients |
/// | 3 | flags |
/// | 4..12 | connection: the id that the *receiver* gave (in a hello, cookie and accept: the initiator's) |
/// | 12..16 | epoch of the sending node (0 from clients) |
/// | 16..24 | datagram sequence, from 1 |
/// | 24..28 | placement epoch of the sender |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: DatagramKind,
    pub key_id: u8,
    pub flags: u8,
    pub connection: u64,
    pub epoch: u32,
    pub sequence: u64,
    pub placement: u32,
}

/// Why a datagram's clear header is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    Short,
    Long,
    Magic,
    Version,
    Kind,
}

impl Header {
    /// The header of a datagram outside sessions: the connection id, and nothing else.
    pub fn clear(kind: DatagramKind, connection: u64) -> Self {
        Header {
            kind,
            key_id: 0,
            flags: 0,
            connection,
            epoch: 0,
            sequence: 0,
            placement: 0,
        }
    }

    /// Parses the header of a whole datagram.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.len() > DATAGRAM_BYTES_MAX {
            return Err(HeaderError::Long);
        }
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Err(HeaderError::Short);
        };
        if bytes[0] != MAGIC {
            return Err(HeaderError::Magic);
        }
        if bytes[1] >> 4 != VERSION {
            return Err(HeaderError::Version);
        }
        let kind = match bytes[1] & 15 {
            1 => DatagramKind::Hello,
            2 => DatagramKind::Cookie,
            3 => DatagramKind::Accept,
            4 => DatagramKind::Data,
            5 => DatagramKind::Reset,
            _ => return Err(HeaderError::Kind),
        };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Ok(Header {
            kind,
            key_id: bytes[2],
            flags: bytes[3],
            connection: long(4),
            epoch: word(12),
            sequence: long(16),
            placement: word(24),
        })
    }

    #[inline]
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[0] = MAGIC;
        bytes[1] = VERSION << 4 | self.kind as u8;
        bytes[2] = self.key_id;
        bytes[3] = self.flags;
        bytes[4..12].copy_from_slice(&self.connection.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.placement.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn header_survives_the_wire(kind in 1u8..=5, key_id: u8, flags: u8, connection: u64, epoch: u32, sequence: u64, placement: u32) {
            let kind = [DatagramKind::Hello, DatagramKind::Cookie, DatagramKind::Accept, DatagramKind::Data, DatagramKind::Reset][kind as usize - 1];
            let header = Header { kind, key_id, flags, connection, epoch, sequence, placement };
            let mut bytes = [0; HEADER];
            header.write(&mut bytes);
            prop_assert_eq!(Header::read(&bytes), Ok(header));
        }

        #[test]
        fn datagram_longer_than_any_node_sends_is_refused(more in 0usize..64) {
            let mut bytes = vec![0; DATAGRAM_BYTES_MAX - 32 + more];
            let header = Header::clear(DatagramKind::Data, 7);
            header.write(&mut bytes);
            let read = if more > 32 { Err(HeaderError::Long) } else { Ok(header) };
            prop_assert_eq!(Header::read(&bytes), read);
        }

        #[test]
        fn any_bytes_give_a_header_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Header::read(&bytes);
        }
    }
}
