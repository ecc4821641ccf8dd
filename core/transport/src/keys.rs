//! X25519 keys of servers and nodes.
//!
//! Owns key pairs and the validation of public keys. Knows no handshake and no list.

use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::Dh;

use crate::machine::Entropy;

/// Bytes of an X25519 key, private, public or ephemeral.
pub(crate) const KEY: usize = 32;

/// An X25519 public key.
pub type PublicKey = [u8; KEY];

/// A key pair. A server proves its identity with it to clients, which got the public key with its address; a node to
/// other nodes, which have the public key from a list. Kept across restarts.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerKey {
    private: [u8; KEY],
    public: [u8; KEY],
}

impl ServerKey {
    pub fn generate(entropy: &mut dyn Entropy) -> Self {
        let mut private = [0; KEY];
        entropy.fill(&mut private);
        ServerKey::from_private(private)
    }

    pub fn from_private(private: [u8; KEY]) -> Self {
        let mut dh = curve();
        dh.set(&private);
        ServerKey {
            private,
            public: dh.pubkey().try_into().expect("X25519 keys have 32 bytes"),
        }
    }

    pub fn public(&self) -> [u8; KEY] {
        self.public
    }

    /// Whether a public key can prove an identity. Anyone can compute the shared secret of a small-order key such as
    /// 0.
    pub fn proves(public: &PublicKey) -> bool {
        let mut shared = [0; KEY];
        let mut dh = curve();
        dh.set(&[1; KEY]);
        dh.dh(public, &mut shared).is_ok() && shared != [0; KEY]
    }

    /// The private key, to store it.
    pub fn private(&self) -> &[u8; KEY] {
        &self.private
    }
}

pub(crate) fn curve() -> Box<dyn Dh> {
    DefaultResolver
        .resolve_dh(&DHChoice::Curve25519)
        .expect("snow is built with X25519")
}
