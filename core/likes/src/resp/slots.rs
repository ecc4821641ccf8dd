//! Redis Cluster's hash slots, and which node serves which.
//!
//! Owns the slot of a key and the table that clients get. Knows no connection; the owner passes in the table from the
//! registry.

/// Number of slots in a cluster.
pub const SLOTS: u16 = 16_384;

/// A node that serves slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// 40 hexadecimal digits, as clients expect.
    pub id: String,
    pub host: String,
    pub port: u16,
    /// Ranges of slots, both ends included.
    pub slots: Vec<(u16, u16)>,
}

impl Node {
    pub fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|&(from, to)| (from..=to).contains(&slot))
    }
}

/// All nodes of a cluster, and which of them this one is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    pub nodes: Vec<Node>,
    /// Index of this node in `nodes`.
    pub me: usize,
    /// This port serves no item, whatever slots it is listed for: it only redirects clients to the other nodes.
    pub door: bool,
    pub epoch: u64,
}

impl Cluster {
    /// The node that serves a slot.
    pub fn owner(&self, slot: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.serves(slot))
    }
}

/// The slot of a key: of the part between the first `{` and the next `}` if that is not empty, otherwise of the whole
/// key.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, as in the Redis Cluster specification.
fn crc16(bytes: &[u8]) -> u16 {
    bytes
        .iter()
        .fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
    }
}
