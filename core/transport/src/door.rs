//! What happens before a connection exists: cookies, handshakes, resets, and the byte allowance of unproven
//! addresses.
//!
//! A role has one door before its sessions and one before its links. The door keeps only bounded accounts of
//! strangers. Knows no session, no link and no role.

use std::collections::VecDeque;

use crate::address::{Bucket, PrefixBuckets, Unproven, PREFIXES_MAX, UNPROVEN_MAX};
use crate::allow::{AllowList, Listed, Stranger};
use crate::codec::{Reader, Writer};
use crate::handshake::{
    hello_proof, opens, prologue, respond, same, ClusterKeys, CookieJar, Initiator, InitiatorKey, ResetSecret,
    ResponderKey,
};
use crate::hash::KeyedState;
use crate::keys::ServerKey;
use crate::machine::{Addr, Arrival, Entropy, Micros, Outbox, SocketId};
use crate::seal::Secret;
use crate::wire::header::{DatagramKind, Header, HEADER, VERSION};

/// Handshakes answered per look at the sockets; half as many for nodes that prove an identity, which cost twice the
/// multiplications. Later ones wait half a millisecond.
pub const HANDSHAKES_A_LOOK: usize = 4;
/// The cost of a handshake with an identity, in plain handshakes.
const NODE_HANDSHAKE: usize = 2;
/// Maximum number of hellos with a valid cookie that wait to be answered.
pub const WAITING_MAX: usize = 256;
/// Handshakes per second from one /24 or /56 unless configured otherwise; the burst is twice this.
pub const PREFIX_RATE: u32 = 1_000;
/// Resets a second from this process.
pub const RESETS_A_SECOND: u32 = 1_000;
/// Shortest hello: its length proves the path's size and bounds amplification.
pub const HELLO_MIN: usize = 1_200;
/// Maximum number of replies that wait to leave.
const REPLIES_MAX: usize = 1_024;
/// The longest handshake message that is parsed.
const NOISE_MAX: usize = 320;
const PURPOSE_CLIENT: &[u8] = b"client";
const PURPOSE_LINK: &[u8] = b"link";

/// The key by which a responder is known.
pub enum DoorKey {
    /// Sessions: open to any client that knows our public key.
    Server(Box<ServerKey>),
    /// Links: open to a node with the cluster's secret and, where identities are proven, with the key listed for its
    /// number.
    Cluster(Box<ClusterKeys>),
}

struct Waiting {
    socket: SocketId,
    from: Addr,
    initiator: u64,
    key_id: u8,
    /// The node number that the sender claims and must prove; 0: none.
    node: u32,
    /// Proof that the sender has the cluster's secret.
    proof: [u8; 16],
    noise: Vec<u8>,
}

/// The key that answers a hello, and the list's entry that the sender must prove.
type Answer<'a> = (ResponderKey<'a>, Option<Listed>);

impl Waiting {
    /// The keys for a reply to a hello on a link. `Err(None)`: the sender lacks the cluster's secret. This is checked
    /// first, without a multiplication, so a stranger cannot make a listed node look like an impostor.
    fn answered<'a>(&self, allow: Option<&'a AllowList>, secret: &'a [u8; 32]) -> Result<Answer<'a>, Option<Stranger>> {
        let Some(allow) = allow else {
            return Ok((ResponderKey::Link(secret), None));
        };
        let proves = self.node != 0;
        if proves
            && !same(
                &hello_proof(secret, self.initiator, self.node, &self.noise),
                &self.proof,
            )
        {
            return Err(None);
        }
        match allow.admits(self.node) {
            Ok(Some(listed)) => {
                let (own, peer) = (&allow.own, &listed.key);
                Ok((ResponderKey::Node { secret, own, peer }, Some(*listed)))
            }
            Ok(None) => Ok((ResponderKey::Link(secret), None)),
            Err(_) if !proves && !opens(secret, &self.bound(PURPOSE_LINK), &self.noise) => Err(None),
            Err(stranger) => Err(Some(stranger)),
        }
    }

    fn bound(&self, purpose: &[u8]) -> Vec<u8> {
        prologue(VERSION, self.initiator, 0, purpose)
    }
}

struct Reply {
    socket: SocketId,
    to: Addr,
    bytes: Vec<u8>,
}

/// A handshake that the door accepted; the connection must be made before the reply leaves.
pub struct Accepted {
    pub socket: SocketId,
    pub from: Addr,
    /// The connection id that the initiator chose.
    pub initiator: u64,
    pub key_id: u8,
    pub secret: Secret,
    /// The identity that the initiator proved: its number and its entry in the list.
    pub proved: Option<(u32, Listed)>,
    /// The initiator's statement about itself. Act on it only after a sealed datagram from it.
    pub payload: Vec<u8>,
    message: Vec<u8>,
}

#[cfg(test)]
impl Accepted {
    /// An accepted handshake without a datagram behind it.
    pub fn of(initiator: u64) -> Self {
        Accepted {
            socket: 0,
            from: Addr::default(),
            initiator,
            key_id: 0,
            secret: Secret::new([3; 16]),
            proved: None,
            payload: Vec::new(),
            message: Vec::new(),
        }
    }
}

crate::counters! {
    /// Events before a connection exists.
    pub struct DoorCounters {
        /// Hellos without a valid cookie, answered with one.
        cookies_sent,
        /// Handshakes answered.
        handshakes_accepted,
        /// Datagrams dropped: a hello shorter than the minimum.
        dropped_hello_short,
        /// Datagrams dropped: not a valid handshake message.
        dropped_hello_malformed,
        /// Datagrams dropped: a repeat of a hello that waits already.
        dropped_hello_repeated,
        /// Datagrams dropped: too many hellos from one address prefix.
        dropped_hello_rate,
        /// Datagrams dropped: too many hellos waiting.
        dropped_hello_busy,
        /// Datagrams dropped: a cluster key id that this node does not have.
        dropped_key_unknown,
        /// Datagrams dropped: a hello with the cluster's secret, without the key that the list of nodes has for its sender.
        dropped_identity,
        /// Handshakes refused: no version of the protocol in common.
        refused_version,
        /// Replies withheld: the address is unproven and its byte allowance is used up.
        withheld_unproven,
        /// Resets sent for connections of an earlier life.
        resets_sent,
    }
}

/// The way in for connections of one socket.
pub struct Door {
    key: DoorKey,
    cookies: CookieJar,
    reset: ResetSecret,
    unproven: Unproven,
    prefixes: PrefixBuckets,
    resets: Bucket,
    waiting: VecDeque<Waiting>,
    replies: VecDeque<Reply>,
    /// The last node refused for its identity: the number that it claimed (0: none), and why.
    stranger: Option<(u32, Stranger)>,
    looked_at: Micros,
    left: usize,
    pub counters: DoorCounters,
}

impl Door {
    pub fn new(key: DoorKey, reset: ResetSecret, entropy: &mut dyn Entropy) -> Self {
        let mut hash = || {
            let mut bytes = [0; 8];
            entropy.fill(&mut bytes);
            u64::from_le_bytes(bytes)
        };
        let (k0, k1) = (hash(), hash());
        Door {
            key,
            cookies: CookieJar::new(entropy),
            reset,
            unproven: Unproven::new(UNPROVEN_MAX, KeyedState::new(k0, k1)),
            prefixes: PrefixBuckets::new(PREFIXES_MAX, PREFIX_RATE, 2 * PREFIX_RATE, KeyedState::new(k1, k0)),
            resets: Bucket::new(RESETS_A_SECOND, RESETS_A_SECOND / 10),
            waiting: VecDeque::new(),
            replies: VecDeque::new(),
            stranger: None,
            looked_at: 0,
            left: 0,
            counters: DoorCounters::default(),
        }
    }

    fn purpose(&self) -> &'static [u8] {
        match self.key {
            DoorKey::Server(_) => PURPOSE_CLIENT,
            DoorKey::Cluster(_) => PURPOSE_LINK,
        }
    }

    /// Replaces the cluster's secrets, on a door for links.
    pub fn set_cluster(&mut self, cluster: ClusterKeys) {
        self.key = DoorKey::Cluster(Box::new(cluster));
    }

    /// Derives reset tokens from another secret from now on; earlier tokens become invalid.
    pub fn set_reset(&mut self, reset: ResetSecret) {
        self.reset = reset;
    }

    /// Sets the handshakes per second accepted from one network; the burst is twice this.
    pub fn set_prefix_rate(&mut self, rate: u32) {
        self.prefixes.set_rate(rate, rate.saturating_mul(2));
    }

    /// The token that proves a reset of connection `id`.
    pub fn token(&self, id: u64) -> [u8; 16] {
        self.reset.token(self.purpose(), id)
    }

    /// Replies to a datagram of `received` bytes, which were noted when it came.
    fn reply(&mut self, now: Micros, socket: SocketId, to: Addr, received: usize, bytes: Vec<u8>) -> bool {
        if self.replies.len() >= REPLIES_MAX || !self.unproven.may_reply(now, to, received, bytes.len()) {
            self.counters.withheld_unproven += 1;
            return false;
        }
        self.replies.push_back(Reply { socket, to, bytes });
        true
    }

    /// Whether `bytes` more may be sent to an unproven address, for a path check of a connection.
    pub fn may_send(&mut self, now: Micros, to: Addr, received: usize, bytes: usize) -> bool {
        self.unproven.may_answer(now, to, received, bytes)
    }

    /// The address has shown that it receives datagrams.
    pub fn proven(&mut self, addr: Addr) {
        self.unproven.proven(addr);
    }

    /// Takes a hello.
    pub fn hello(&mut self, now: Micros, arrival: Arrival, header: &Header, datagram: &[u8]) {
        if datagram.len() < HELLO_MIN {
            self.counters.dropped_hello_short += 1;
            return;
        }
        let mut reader = Reader::new(&datagram[HEADER..]);
        let (Some(cookie), Some(noise)) = (reader.array::<16>(), reader.bytes16()) else {
            self.counters.dropped_hello_malformed += 1;
            return;
        };
        self.unproven.received(now, arrival.from, datagram.len());
        if !self.cookies.check(now, arrival.from, &cookie) {
            let cookie = self.cookies.cookie(now, arrival.from);
            let mut bytes = clear(DatagramKind::Cookie, header.connection);
            bytes.extend_from_slice(&cookie);
            if self.reply(now, arrival.socket, arrival.from, datagram.len(), bytes) {
                self.counters.cookies_sent += 1;
            }
            return;
        }
        let (node, proof) = (reader.u32().unwrap_or(0), reader.array().unwrap_or_default());
        if noise.is_empty() || noise.len() > NOISE_MAX {
            self.counters.dropped_hello_malformed += 1;
        } else if self.waits_already(arrival.from, header.connection) {
            self.counters.dropped_hello_repeated += 1;
        } else if !self.prefixes.take(now, arrival.from) {
            self.counters.dropped_hello_rate += 1;
        } else if self.waiting.len() >= WAITING_MAX {
            self.counters.dropped_hello_busy += 1;
        } else {
            let (socket, from) = (arrival.socket, arrival.from);
            self.waiting.push_back(Waiting {
                socket,
                from,
                initiator: header.connection,
                key_id: header.key_id,
                node,
                proof,
                noise: noise.to_vec(),
            });
        }
    }

    /// Whether a hello of this initiator waits already, so that another one adds nothing.
    fn waits_already(&self, from: Addr, initiator: u64) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|hello| (hello.from, hello.initiator) == (from, initiator))
    }

    /// Whether a handshake could be answered now.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Answers the next waiting handshake, a few per look. `payload` makes our statement for the initiator out of its
    /// own.
    pub fn accept(
        &mut self,
        now: Micros,
        payload: impl Fn(&[u8]) -> Vec<u8>,
        entropy: &mut dyn Entropy,
    ) -> Option<Accepted> {
        if self.looked_at != now {
            self.looked_at = now;
            self.left = HANDSHAKES_A_LOOK;
        }
        while self.left > 0 {
            let hello = self.waiting.pop_front()?;
            let (key, purpose, listed) = match &self.key {
                DoorKey::Server(key) => (ResponderKey::Client(key), PURPOSE_CLIENT, None),
                DoorKey::Cluster(keys) => {
                    let Some(secret) = keys.find(hello.key_id) else {
                        self.counters.dropped_key_unknown += 1;
                        continue;
                    };
                    match hello.answered(keys.allow.as_ref(), secret) {
                        Ok((key, listed)) => (key, PURPOSE_LINK, listed),
                        Err(stranger) => {
                            self.left -= usize::from(hello.node == 0);
                            match stranger {
                                Some(stranger) => self.refuse(hello.node, stranger),
                                None => self.counters.dropped_hello_malformed += 1,
                            }
                            continue;
                        }
                    }
                }
            };
            let cost = listed.map_or(1, |_| NODE_HANDSHAKE);
            self.left = self.left.saturating_sub(cost);
            let bound = hello.bound(purpose);
            match respond(key, &bound, &hello.noise, &payload, entropy) {
                Ok(done) => {
                    self.counters.handshakes_accepted += 1;
                    return Some(Accepted {
                        socket: hello.socket,
                        from: hello.from,
                        initiator: hello.initiator,
                        key_id: hello.key_id,
                        secret: done.secret,
                        proved: listed.map(|listed| (hello.node, listed)),
                        payload: done.payload1,
                        message: done.message2,
                    });
                }
                Err(_) if listed.is_some() => self.refuse(hello.node, Stranger::Impostor),
                Err(_) => self.counters.dropped_hello_malformed += 1,
            }
        }
        None
    }

    /// Records that a node which named this number was refused.
    pub fn refuse(&mut self, node: u32, stranger: Stranger) {
        self.counters.dropped_identity += 1;
        self.stranger = Some((node, stranger));
    }

    /// Takes the last node refused for its identity, if it was not taken before.
    pub fn stranger(&mut self) -> Option<(u32, Stranger)> {
        self.stranger.take()
    }

    /// Tells the initiator, by the statement in the reply, that no version is in common. No connection is made.
    pub fn refuse_version(&mut self, now: Micros, accepted: &Accepted) {
        self.counters.refused_version += 1;
        self.answer(now, accepted, 0);
    }

    /// Sends the reply to an accepted handshake, whose connection has the id `id`.
    pub fn answer(&mut self, now: Micros, accepted: &Accepted, id: u64) {
        let mut bytes = clear(DatagramKind::Accept, accepted.initiator);
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&(accepted.message.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&accepted.message);
        self.reply(now, accepted.socket, accepted.from, HELLO_MIN, bytes);
    }

    /// Replies with a reset to a datagram of an unknown connection, if the reset is shorter than the datagram.
    pub fn unknown(&mut self, now: Micros, arrival: Arrival, header: &Header) {
        let mut bytes = clear(DatagramKind::Reset, header.connection);
        bytes.extend_from_slice(&self.token(header.connection));
        if (arrival.len as usize) <= bytes.len() || !self.resets.take(now, 1) {
            return;
        }
        self.unproven.received(now, arrival.from, arrival.len as usize);
        if self.reply(now, arrival.socket, arrival.from, arrival.len as usize, bytes) {
            self.counters.resets_sent += 1;
        }
    }

    /// Whether a reply waits to leave.
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Moves replies into the slice.
    pub fn transmit(&mut self, outbox: &mut Outbox) {
        while outbox.room() > 0 {
            let Some(reply) = self.replies.pop_front() else { return };
            outbox.reserve(reply.bytes.len()).copy_from_slice(&reply.bytes);
            outbox.commit(reply.socket, reply.to, reply.bytes.len());
        }
    }
}

fn clear(kind: DatagramKind, connection: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    Header::clear(kind, connection).write(&mut bytes);
    bytes
}

/// The initiator's side: one attempt to open a connection.
pub struct Knock {
    /// The id that we chose for the connection.
    pub id: u64,
    pub key_id: u8,
    /// The list's entry for the node that must answer, where both ends prove identities.
    pub listed: Option<Listed>,
    node: u32,
    proof: [u8; 16],
    handshake: Initiator,
    noise: Vec<u8>,
    cookie: [u8; 16],
}

/// The result of a successful attempt.
pub struct Opened {
    pub peer: u64,
    pub secret: Secret,
    pub payload: Vec<u8>,
}

impl Knock {
    /// `payload`: our statement for the responder.
    pub fn new(id: u64, key: InitiatorKey<'_>, key_id: u8, payload: &[u8], entropy: &mut dyn Entropy) -> Self {
        let purpose = match key {
            InitiatorKey::Link(_) | InitiatorKey::Node { .. } => PURPOSE_LINK,
            InitiatorKey::Client(_) => PURPOSE_CLIENT,
        };
        let (handshake, noise) = Initiator::new(key, &prologue(VERSION, id, 0, purpose), payload, entropy);
        Knock {
            id,
            key_id,
            listed: None,
            node: 0,
            proof: [0; 16],
            handshake,
            noise,
            cookie: [0; 16],
        }
    }

    /// Claims this node number, which its key proves, and stores the list's entry for the node that must answer.
    pub fn of_node(mut self, node: u32, secret: &[u8; 32], listed: Listed) -> Self {
        (self.node, self.listed) = (node, Some(listed));
        self.proof = hello_proof(secret, self.id, node, &self.noise);
        self
    }

    /// Writes the hello, padded to `payload` bytes, into the slice.
    pub fn hello(&self, socket: SocketId, to: Addr, payload: usize, outbox: &mut Outbox) {
        let len = payload.max(HELLO_MIN);
        let buffer = &mut outbox.reserve(len)[..len];
        buffer.fill(0);
        let header = Header {
            key_id: self.key_id,
            ..Header::clear(DatagramKind::Hello, self.id)
        };
        header.write(buffer);
        Writer::new(&mut buffer[HEADER..])
            .put(&self.cookie)
            .bytes16(&self.noise)
            .u32(self.node)
            .put(&self.proof);
        outbox.commit(socket, to, len);
    }

    /// Takes a cookie. `true`: send the hello again at once.
    pub fn cookie(&mut self, datagram: &[u8]) -> bool {
        match Reader::new(&datagram[HEADER..]).array() {
            Some(cookie) if cookie != self.cookie => {
                self.cookie = cookie;
                true
            }
            _ => false,
        }
    }

    /// Whether a cookie came, so there is a responder.
    pub fn is_answered(&self) -> bool {
        self.cookie != [0; 16]
    }

    /// Takes an accept message. A forged one changes nothing.
    pub fn accept(&mut self, datagram: &[u8]) -> Option<Opened> {
        let mut reader = Reader::new(&datagram[HEADER..]);
        let (peer, noise) = (reader.u64()?, reader.bytes16()?);
        let done = self.handshake.finish(noise).ok()?;
        Some(Opened {
            peer,
            secret: done.secret,
            payload: done.payload2,
        })
    }
}

/// The token in a reset.
pub fn reset_token(datagram: &[u8]) -> Option<[u8; 16]> {
    Reader::new(&datagram[HEADER..]).array()
}
