//! Clients that change their address: the new one is accepted once a challenge sent there is answered.
//!
//! Owns the check of one session. Knows no credential and no log.

use super::Sessions;
use crate::codec::Writer;
use crate::conn::Wants;
use crate::machine::{Addr, Arrival, Micros, Outbox};
use crate::node::Node;
use crate::wire::frame::append;
use crate::wire::{FrameKind, HEADER};

/// Interval between path checks of one session.
const PATH_EVERY: Micros = 1_000_000;

/// A check whether a session's client is at another address.
pub(super) struct PathCheck {
    addr: Addr,
    challenge: [u8; 8],
    received: usize,
    at: Micros,
    due: bool,
}

impl PathCheck {
    /// Takes an answer that came from this address. Returns the address, if it is the checked one.
    pub(super) fn verify(check: &mut Option<Box<PathCheck>>, from: Addr, answer: &[u8]) -> Option<Addr> {
        let verified = check.take_if(|check| check.addr == from && answer == check.challenge)?;
        Some(verified.addr)
    }
}

impl<T: Default> Sessions<T> {
    /// The newest datagram came from another address: sends a path check there before the address is accepted.
    pub(super) fn moved(&mut self, now: Micros, node: &mut Node, slot: u32, arrival: Arrival) {
        let challenge = node.secret_u64().to_le_bytes();
        let Some(peer) = self.table.get_mut(slot) else { return };
        match &mut peer.data.path {
            Some(check) if now < check.at + PATH_EVERY => {
                if check.addr == arrival.from {
                    check.received += arrival.len as usize;
                }
                return;
            }
            path => {
                *path = Some(Box::new(PathCheck {
                    addr: arrival.from,
                    challenge,
                    received: arrival.len as usize,
                    at: now,
                    due: true,
                }));
            }
        }
        self.table.mark(slot);
    }

    /// Sends a due path challenge to the new address, if the allowance of that address permits.
    pub fn challenge(&mut self, now: Micros, node: &mut Node, slot: u32, outbox: &mut Outbox) {
        let Some(peer) = self.table.get_mut(slot) else { return };
        let Some(check) = peer.data.path.as_mut().filter(|check| check.due) else {
            return;
        };
        check.due = false;
        let (addr, challenge, received) = (check.addr, check.challenge, check.received);
        if outbox.room() == 0 || !self.door.may_send(now, addr, received, 80) {
            return;
        }
        let buffer = outbox.reserve(node.payload);
        let mut writer = Writer::new(&mut buffer[HEADER..]);
        append(&mut writer, FrameKind::PATH_CHALLENGE, 0, |writer| {
            writer.put(&challenge);
            true
        });
        let len = writer.len();
        let total = peer
            .conn
            .seal(now, &mut node.keys, node.stamp, buffer, len, Wants::Nothing, 0);
        outbox.commit(peer.conn.socket, addr, total);
    }
}
