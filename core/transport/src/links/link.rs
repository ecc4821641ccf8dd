//! The state of one link besides its connection.
//!
//! Owns the peer's identity, what it proved and when the link must end. Knows no table and no timer.

use crate::handshake::same;
use crate::keys::PublicKey;
use crate::machine::Micros;
use crate::node::Identity;
use crate::past::Loss;

/// The state of one link.
pub struct Link {
    pub peer: Identity,
    /// The version of the protocol that both ends use.
    pub version: u8,
    /// A sealed datagram came from the peer, so its identity is current.
    pub proven: bool,
    /// The tail must be probed: the role sends heads with the next datagram.
    pub probe: bool,
    /// The loss of datagrams that we sent.
    pub loss: Loss,
    /// The peer's proof of a reset.
    token: Option<[u8; 16]>,
    pub(super) made_at: Micros,
    /// The key that the peer proved, if any.
    pub key: Option<PublicKey>,
    /// When the link ends, and why: its key or proof is no longer accepted.
    ends: Option<(Micros, Ends)>,
}

/// Why a living link will end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ends {
    /// The cluster's secret that it was made with is no longer accepted.
    KeyDropped,
    /// The peer has not proven its identity, though proof is required.
    NoIdentity,
}

impl Ends {
    pub(super) fn name(self) -> &'static str {
        match self {
            Ends::KeyDropped => "key dropped",
            Ends::NoIdentity => "no identity",
        }
    }
}

impl Link {
    /// A link whose handshake ended `now`. `key`: the key that the peer proved, if any.
    pub(super) fn new(now: Micros, peer: Identity, version: u8, key: Option<PublicKey>) -> Self {
        Link {
            peer,
            version,
            proven: false,
            probe: false,
            loss: Loss::default(),
            token: None,
            made_at: now,
            key,
            ends: None,
        }
    }

    /// Sets the token that a reset of the peer will carry.
    pub(super) fn set_token(&mut self, token: [u8; 16]) {
        self.token = Some(token);
    }

    /// Whether a reset with this token is the peer's.
    pub(super) fn is_reset_by(&self, token: Option<[u8; 16]>) -> bool {
        self.token.zip(token).is_some_and(|(known, token)| same(&known, &token))
    }

    /// Ends the link at this time, unless it ends before.
    pub(super) fn end_by(&mut self, at: Micros, why: Ends) {
        if self.ends.is_none_or(|(before, _)| at < before) {
            self.ends = Some((at, why));
        }
    }

    /// The peer need not prove its identity any longer.
    pub(super) fn excuse_proof(&mut self) {
        self.ends = self.ends.filter(|(_, why)| *why != Ends::NoIdentity);
    }

    /// Whether the link will end because its key or proof is no longer accepted.
    pub(super) fn is_outdated(&self) -> bool {
        self.ends.is_some()
    }

    /// When the link ends, if it does.
    pub(super) fn ends_at(&self) -> Option<Micros> {
        self.ends.map(|(at, _)| at)
    }

    /// Why the link ends by `now`.
    pub(super) fn over(&self, now: Micros) -> Option<Ends> {
        self.ends.filter(|(at, _)| now >= *at).map(|(_, why)| why)
    }
}
