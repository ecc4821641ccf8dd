//! The part that every role shares: its identity, keys, two random sources, and datagram size.

use crate::conn::Stamp;
use crate::dice::Dice;
use crate::machine::{Entropy, Micros};
use crate::seal::KeyCache;
use crate::versions::Versions;
use crate::wire::Role;

/// How often rarely used expanded keys are freed, so that idle sessions hold none (a key is 576 B; deriving it again
/// takes 0.7 us).
pub const SWEEP_EVERY: Micros = 3_000_000;

/// A node's identity on links. The epoch strictly grows with each start (I-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub node: u32,
    pub role: Role,
    pub epoch: u32,
}

impl Identity {
    pub const LEN: usize = 9;

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.node.to_le_bytes());
        bytes[4] = self.role.code();
        bytes[5..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    /// Parses the identity, and returns the bytes behind it.
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (identity, behind) = bytes.split_first_chunk::<{ Self::LEN }>()?;
        let [a, b, c, d, role, e, f, g, h] = *identity;
        let identity = Identity {
            node: u32::from_le_bytes([a, b, c, d]),
            role: Role::from_u8(role)?,
            epoch: u32::from_le_bytes([e, f, g, h]),
        };
        Some((identity, behind))
    }

    /// Our statement in a handshake: the identity, followed by the version range `behind`.
    pub fn with(self, behind: &[u8]) -> Vec<u8> {
        [&self.to_bytes(), behind].concat()
    }
}

/// The common part of every role machine.
pub struct Node {
    pub me: Identity,
    pub stamp: Stamp,
    pub keys: KeyCache,
    pub dice: Dice,
    pub entropy: Box<dyn Entropy>,
    /// UDP payload bytes of the largest datagram.
    pub payload: usize,
    /// The versions of the protocol that it speaks.
    pub versions: Versions,
    sweep_at: Micros,
}

impl Node {
    pub fn new(me: Identity, payload: usize, seed: u64, entropy: Box<dyn Entropy>) -> Self {
        Node {
            me,
            stamp: Stamp {
                epoch: me.epoch,
                placement: 0,
            },
            keys: KeyCache::default(),
            dice: Dice::new(seed),
            entropy,
            payload,
            versions: Versions::OURS,
            sweep_at: 0,
        }
    }

    /// An unpredictable 32-bit number.
    pub fn secret_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.entropy.fill(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// An unpredictable 64-bit number.
    pub fn secret_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.entropy.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Frees expanded keys that were not used recently.
    pub fn sweep(&mut self, now: Micros) {
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            self.keys.sweep();
        }
    }
}
