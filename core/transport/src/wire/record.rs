//! Records of the reliable control log: they arrive once and in order, on sessions and on links.
//!
//! Owns the kinds that every system has, and the traits by which a log and a session handle a record. Systems add kinds
//! of their own by [`Encode`] and [`SystemRecord`]: the first byte of a record is its kind, and a system uses none of
//! the kinds here.

use crate::codec::{Reader, Writer};
use crate::wire::server::{self, Server};
use crate::wire::{Code, Role};

/// Longest record, in bytes.
pub const RECORD_MAX: usize = 1024;
/// Most records are no longer than this.
const RECORD_SHORT: usize = 256;

const AUTHENTICATE: u8 = 1;
const READY: u8 = 2;
const REFUSED: u8 = 3;
const LINK_READY: u8 = 25;
const PACE: u8 = 35;
const SERVERS: u8 = 36;
const LEASE: u8 = 37;

/// Records with this kind or higher belong to a guest: the system that has the session passes them on unparsed.
pub const GUEST_KINDS: u8 = 64;

/// A guest's record, whole.
pub struct Raw<'a>(pub &'a [u8]);

impl Encode for Raw<'_> {
    fn write(&self, writer: &mut Writer<'_>) -> bool {
        !writer.put(self.0).full()
    }

    fn encode<T>(&self, take: impl FnOnce(&[u8]) -> T) -> T {
        take(self.0)
    }
}

/// A record, as a log sees it.
pub trait Encode {
    /// Writes the record, its kind first; `false` if it does not fit.
    fn write(&self, writer: &mut Writer<'_>) -> bool;

    /// Calls `take` with the record's bytes.
    fn encode<T>(&self, take: impl FnOnce(&[u8]) -> T) -> T {
        // Nearly all are short, and clearing a kilobyte costs more than writing one of them.
        let mut short = [0; RECORD_SHORT];
        let mut writer = Writer::new(&mut short);
        if self.write(&mut writer) {
            return take(writer.written());
        }
        let mut bytes = [0; RECORD_MAX];
        let mut writer = Writer::new(&mut bytes);
        let fits = self.write(&mut writer);
        assert!(fits, "a record of ours is longer than RECORD_MAX");
        take(writer.written())
    }
}

/// When a session accepts a client's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The role gets it. It waits while the session's credential is being judged.
    Waits,
    /// The role gets it if the session is open; otherwise it is dropped.
    Open,
    /// Clients may not send it.
    Never,
}

/// A system's record, as a session or a link checks it before the role gets it.
pub trait SystemRecord<'a>: Encode + Sized {
    /// `None`: malformed, or a kind that the system lacks.
    fn read(bytes: &'a [u8]) -> Option<Self>;

    /// The transport's record inside this one, if it is one.
    fn control(&self) -> Option<&ControlRecord<'a>>;

    /// On sessions: whether and when a client may send it.
    fn access(&self) -> Access;

    /// On sessions: whether it is exempt from the session's rate limit, since it ends an earlier record's effect or
    /// responds to the server.
    fn is_free(&self) -> bool;

    /// On sessions: the reply to a refused record; `None`: the client expects no reply.
    fn refusal(&self, code: Code, retry_ms: u32) -> Option<Self>;
}

/// One record that every system has, borrowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRecord<'a> {
    // ---- client to server
    /// The credential, opaque to everything but the `Authenticator`.
    Authenticate { credential: &'a [u8] },
    // ---- server to client
    /// Authenticated as `user`. `token` proves a later reset of this session.
    Ready {
        user: u64,
        token: [u8; 16],
        keepalive_ms: u32,
    },
    /// A request was refused; request 0 refuses the session.
    Refused { request: u32, code: Code, retry_ms: u32 },
    /// The longest random wait before the first attempt to open another session after a loss, and before any attempt.
    Pace { backoff_ms: u32, backoff_max_ms: u32 },
    /// Servers of one role that clients may use; replaces all named before.
    Servers { role: Role, servers: Vec<Server> },
    /// The session's token ends after this; another token of the same user prolongs the session.
    Lease { left_ms: u32 },
    // ---- both ends of a link
    /// `token` proves a later reset of this link by the sender.
    LinkReady { token: [u8; 16] },
}

impl<'a> ControlRecord<'a> {
    /// `None`: malformed, or a system's record.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        let record = match r.u8()? {
            AUTHENTICATE => ControlRecord::Authenticate {
                credential: r.bytes16()?,
            },
            READY => ControlRecord::Ready {
                user: r.u64()?,
                token: r.array()?,
                keepalive_ms: r.u32()?,
            },
            REFUSED => ControlRecord::Refused {
                request: r.u32()?,
                code: Code::from_u8(r.u8()?),
                retry_ms: r.u32()?,
            },
            PACE => ControlRecord::Pace {
                backoff_ms: r.u32()?,
                backoff_max_ms: r.u32()?,
            },
            SERVERS => ControlRecord::Servers {
                role: Role::from_u8(r.u8()?)?,
                servers: server::read(r)?,
            },
            LEASE => ControlRecord::Lease { left_ms: r.u32()? },
            LINK_READY => ControlRecord::LinkReady { token: r.array()? },
            _ => return None,
        };
        reader.is_empty().then_some(record)
    }
}

impl Encode for ControlRecord<'_> {
    fn write(&self, w: &mut Writer<'_>) -> bool {
        match self {
            ControlRecord::Authenticate { credential } => {
                w.u8(AUTHENTICATE).bytes16(credential);
            }
            ControlRecord::Ready {
                user,
                token,
                keepalive_ms,
            } => {
                w.u8(READY).u64(*user).put(token).u32(*keepalive_ms);
            }
            ControlRecord::Refused {
                request,
                code,
                retry_ms,
            } => {
                w.u8(REFUSED).u32(*request).u8(*code as u8).u32(*retry_ms);
            }
            ControlRecord::Pace {
                backoff_ms,
                backoff_max_ms,
            } => {
                w.u8(PACE).u32(*backoff_ms).u32(*backoff_max_ms);
            }
            ControlRecord::Servers { role, servers } => {
                server::write(servers, w.u8(SERVERS).u8(role.code()));
            }
            ControlRecord::Lease { left_ms } => {
                w.u8(LEASE).u32(*left_ms);
            }
            ControlRecord::LinkReady { token } => {
                w.u8(LINK_READY).put(token);
            }
        };
        !w.full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Addr;
    use crate::wire::server::SERVERS_MAX;
    use proptest::prelude::*;

    #[test]
    fn every_record_survives_the_wire() {
        let records = [
            ControlRecord::Authenticate { credential: b"secret" },
            ControlRecord::Ready {
                user: 5,
                token: [6; 16],
                keepalive_ms: 7,
            },
            ControlRecord::Refused {
                request: 8,
                code: Code::RateLimited,
                retry_ms: 9,
            },
            ControlRecord::Pace {
                backoff_ms: 63,
                backoff_max_ms: 64,
            },
            ControlRecord::Servers {
                role: Role::new(2),
                servers: vec![
                    Server {
                        addr: Addr { ip: [65; 16], port: 66 },
                        key: [67; 32],
                        weight: 68,
                    };
                    SERVERS_MAX
                ],
            },
            ControlRecord::Lease { left_ms: 69 },
            ControlRecord::LinkReady { token: [32; 16] },
        ];
        for record in records {
            record.encode(|bytes| assert_eq!(ControlRecord::read(bytes), Some(record.clone())));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ControlRecord::read(&bytes);
        }
    }
}
