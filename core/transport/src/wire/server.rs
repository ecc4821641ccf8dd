//! A server as announced to clients: its address, the key that it proves, and its share of the clients.

use crate::codec::{Reader, Writer};
use crate::machine::Addr;

/// Servers that one record names: 16 x 52 bytes fit into a record.
pub const SERVERS_MAX: usize = 16;

/// A server that has sessions with clients. One of weight 2 is drawn twice as often as one of weight 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Server {
    pub addr: Addr,
    pub key: [u8; 32],
    pub weight: u16,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Option<Vec<Server>> {
    let count = usize::from(reader.u8()?);
    if count > SERVERS_MAX {
        return None;
    }
    let server = |_| {
        Some(Server {
            addr: Addr {
                ip: reader.array()?,
                port: reader.u16()?,
            },
            key: reader.array()?,
            weight: reader.u16()?,
        })
    };
    (0..count).map(server).collect()
}

pub(super) fn write(servers: &[Server], writer: &mut Writer<'_>) {
    let servers = &servers[..servers.len().min(SERVERS_MAX)];
    writer.u8(servers.len() as u8);
    for server in servers {
        writer
            .put(&server.addr.ip)
            .u16(server.addr.port)
            .put(&server.key)
            .u16(server.weight);
    }
}
