//! The handshake that gives two ends a shared [`Secret`], and the small proofs around it: cookies and reset tokens.
//!
//! Owns: the Noise handshakes of links (NNpsk0, and KKpsk0 where nodes prove identities) and clients (NK), their keys,
//! [`hello_proof`], [`CookieJar`], [`ResetSecret`].
//! Must not know: datagrams, padding, retransmission, half-open tables, admission. It keeps no state between calls
//! except in the values that it returns.

use ring::{hkdf, hmac};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use crate::allow::AllowList;
use crate::keys::{PublicKey, ServerKey, KEY};
use crate::machine::{Addr, Entropy, Micros};
use crate::seal::{expand, Secret};

/// Bytes that a handshake message may carry besides the handshake itself.
pub const PAYLOAD_MAX: usize = 256;

/// The longest handshake message: an ephemeral key, the payload, its tag.
pub const MESSAGE_MAX: usize = KEY + PAYLOAD_MAX + crate::seal::TAG;

/// How often cookies change. A cookie is valid for at least this long and at most twice this long.
pub const COOKIE_PERIOD: Micros = 120_000_000;

/// Why a handshake message was refused. The network causes all of these: count, drop, stay silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeError {
    /// Too short to be a handshake message, or longer than [`MESSAGE_MAX`].
    Length,
    /// The sender lacks the keys of this handshake: forged, damaged, another prologue, or another cluster secret.
    Forged,
    /// The handshake is complete already; message 2 was repeated.
    Finished,
}

/// The initiator's prior knowledge. It decides the pattern.
#[derive(Clone, Copy)]
pub enum InitiatorKey<'a> {
    /// Both ends know the cluster's secret, whose key id the header names: NNpsk0.
    Link(&'a [u8; 32]),
    /// Besides that secret, each end knows the other's public key and must hold its own private key: KKpsk0.
    Node {
        secret: &'a [u8; 32],
        own: &'a ServerKey,
        peer: &'a PublicKey,
    },
    /// The client got the server's public key with its address; the server accepts any client: NK.
    Client(&'a [u8; 32]),
}

/// The responder's prior knowledge, the counterpart of [`InitiatorKey`].
#[derive(Clone, Copy)]
pub enum ResponderKey<'a> {
    Link(&'a [u8; 32]),
    Node {
        secret: &'a [u8; 32],
        own: &'a ServerKey,
        peer: &'a PublicKey,
    },
    Client(&'a ServerKey),
}

/// The header fields that both ends must agree on; if an attacker changes any of them, the handshake fails. Ids that
/// are not known yet (the responder's, when message 1 leaves) are 0.
pub fn prologue(version: u8, initiator: u64, responder: u64, purpose: &[u8]) -> Vec<u8> {
    // The purpose has a variable length, so it comes last and no two inputs look alike.
    [
        b"muster".as_slice(),
        &[version],
        &initiator.to_be_bytes(),
        &responder.to_be_bytes(),
        purpose,
    ]
    .concat()
}

/// A handshake that waits for message 2.
///
/// It holds the ephemeral key, so it is kept only as long as a reply may come. If message 1 was lost, or a cookie
/// must go with it, the same message 1 is sent again.
pub struct Initiator {
    state: HandshakeState,
}

/// The initiator's result of a finished handshake.
pub struct Established {
    pub secret: Secret,
    /// The responder's statement, forward-secret and fresh: it answers our ephemeral key.
    pub payload2: Vec<u8>,
}

impl Initiator {
    /// Starts a handshake and returns it with message 1.
    ///
    /// `payload1` is sealed only with the responder's prior knowledge. A recorded message 1 can be sent again, and
    /// later owners of the server's private key (or the cluster's secret) can read it. Put nothing into it that causes
    /// an action.
    ///
    /// # Panics
    /// If `payload1` is longer than [`PAYLOAD_MAX`].
    pub fn new(key: InitiatorKey<'_>, prologue: &[u8], payload1: &[u8], entropy: &mut dyn Entropy) -> (Self, Vec<u8>) {
        let (name, known) = match key {
            InitiatorKey::Link(psk) => (LINK, PriorKeys::psk(psk)),
            InitiatorKey::Node { secret, own, peer } => (NODE, PriorKeys::node(secret, own, peer)),
            InitiatorKey::Client(server) => {
                let remote = Some(server);
                (
                    CLIENT,
                    PriorKeys {
                        remote,
                        ..PriorKeys::default()
                    },
                )
            }
        };
        let mut state = build(name, known, prologue, entropy, Builder::build_initiator);
        let message1 = write(&mut state, payload1);
        (Initiator { state }, message1)
    }

    /// Takes message 2. After an error the handshake is unchanged: a stranger's garbage must not spoil it for the
    /// genuine reply.
    pub fn finish(&mut self, message2: &[u8]) -> Result<Established, HandshakeError> {
        if self.state.is_handshake_finished() {
            return Err(HandshakeError::Finished);
        }
        let payload2 = read(&mut self.state, message2)?;
        Ok(Established {
            secret: split(&mut self.state),
            payload2,
        })
    }
}

/// The responder's result of one message 1.
pub struct Responded {
    pub message2: Vec<u8>,
    /// The initiator's statement, possibly replayed. Do not act on it before the initiator has sealed a datagram with
    /// the secret, which proves that it is present.
    pub payload1: Vec<u8>,
    pub secret: Secret,
}

/// Answers message 1 at once. Each call draws a fresh ephemeral key, so a repeated message 1 gives another secret, and
/// nothing is remembered here. Costs two multiplications for a link, four for a client, six for a node that proves an
/// identity: admit by cookie and bucket first.
///
/// `payload2` makes our statement out of the initiator's.
///
/// # Panics
/// If the statement is longer than [`PAYLOAD_MAX`].
pub fn respond(
    key: ResponderKey<'_>,
    prologue: &[u8],
    message1: &[u8],
    payload2: impl FnOnce(&[u8]) -> Vec<u8>,
    entropy: &mut dyn Entropy,
) -> Result<Responded, HandshakeError> {
    let (name, known) = match key {
        ResponderKey::Link(psk) => (LINK, PriorKeys::psk(psk)),
        ResponderKey::Node { secret, own, peer } => (NODE, PriorKeys::node(secret, own, peer)),
        ResponderKey::Client(server) => {
            let local = Some(server.private());
            (
                CLIENT,
                PriorKeys {
                    local,
                    ..PriorKeys::default()
                },
            )
        }
    };
    let mut state = build(name, known, prologue, entropy, Builder::build_responder);
    let payload1 = read(&mut state, message1)?;
    let message2 = write(&mut state, &payload2(&payload1));
    Ok(Responded {
        message2,
        payload1,
        secret: split(&mut state),
    })
}

/// Whether a holder of the secret made message 1 of a link without identity. Costs no multiplication.
pub fn opens(secret: &[u8; 32], prologue: &[u8], message1: &[u8]) -> bool {
    let mut state = build(
        LINK,
        PriorKeys::psk(secret),
        prologue,
        &mut Still,
        Builder::build_responder,
    );
    read(&mut state, message1).is_ok()
}

/// Proof that the sender of this hello, which may claim to be `node`, has the cluster's secret. Without it, checking
/// a stranger's message 1 would cost two multiplications.
pub fn hello_proof(secret: &[u8; 32], initiator: u64, node: u32, message1: &[u8]) -> [u8; 16] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let (initiator, node) = (initiator.to_be_bytes(), node.to_be_bytes());
    mac(&key, &[b"muster hello", &initiator, &node, message1])
}

/// The cluster's secrets by key id, for making and accepting links. A replacement has three steps: all nodes learn
/// the next secret, then use it, then drop the previous one.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKeys {
    /// The secret for new links.
    pub current: (u8, [u8; 32]),
    /// Accepted as well: the next secret, later the previous one.
    pub other: Option<(u8, [u8; 32])>,
    /// The list of nodes and keys, where nodes must prove identities.
    pub allow: Option<AllowList>,
}

impl ClusterKeys {
    /// The secret of a key id, if it is accepted. Safe for untrusted input.
    pub fn find(&self, key_id: u8) -> Option<&[u8; 32]> {
        std::iter::once(&self.current)
            .chain(&self.other)
            .find(|(id, _)| *id == key_id)
            .map(|(_, secret)| secret)
    }

    /// The root of this node's [`ResetSecret`] if no file gives one: the node's own key if it has one, so that
    /// knowing the cluster's secret does not suffice to end links.
    pub fn reset_root(&self) -> &[u8; 32] {
        let own = self.allow.as_ref().map(|list| list.own.private());
        own.unwrap_or(&self.current.1)
    }
}

/// Proof that an address receives datagrams, without state per address.
///
/// A cookie includes the number of its period instead of a secret that changes each period: cookies live as long, and
/// nothing must be rotated.
pub struct CookieJar {
    key: hmac::Key,
}

impl CookieJar {
    pub fn new(entropy: &mut dyn Entropy) -> Self {
        let mut secret = [0; 32];
        entropy.fill(&mut secret);
        CookieJar {
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
        }
    }

    pub fn cookie(&self, now: Micros, addr: Addr) -> [u8; 16] {
        self.of_period(now / COOKIE_PERIOD, addr)
    }

    /// Whether `cookie` was given to `addr` in this period or the one before.
    pub fn check(&self, now: Micros, addr: Addr, cookie: &[u8; 16]) -> bool {
        let period = now / COOKIE_PERIOD;
        let made = |period| same(&self.of_period(period, addr), cookie);
        made(period) || period.checked_sub(1).is_some_and(made)
    }

    fn of_period(&self, period: u64, addr: Addr) -> [u8; 16] {
        mac(
            &self.key,
            &[
                b"muster cookie",
                &period.to_be_bytes(),
                &addr.ip,
                &addr.port.to_be_bytes(),
            ],
        )
    }
}

/// Makes the tokens that prove to a client that its session is gone. Kept across restarts.
pub struct ResetSecret([u8; 32]);

impl ResetSecret {
    pub fn new(bytes: [u8; 32]) -> Self {
        ResetSecret(bytes)
    }

    /// A node's own reset secret, derived from a shared one. It is the same in every life of the node, and differs
    /// between nodes: a connection unknown at one node may be alive at another.
    pub fn of_node(shared: &[u8; 32], node: u32) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, shared);
        let tag = hmac::sign(&key, &[b"muster node reset".as_slice(), &node.to_be_bytes()].concat());
        tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }

    /// The client gets the token sealed at join, and in the clear when the session is unknown. `purpose` separates
    /// the doors of a node: a connection unknown at one may be alive behind the other.
    pub fn token(&self, purpose: &[u8], session_id: u64) -> [u8; 16] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        mac(&key, &[b"muster reset", &session_id.to_be_bytes(), purpose])
    }
}

/// Whether two cookies or tokens are equal, in constant time.
pub fn same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b) == 0
}

const LINK: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const NODE: &str = "Noise_KKpsk0_25519_ChaChaPoly_SHA256";
const CLIENT: &str = "Noise_NK_25519_ChaChaPoly_SHA256";

/// The keys from which a pattern starts.
#[derive(Default)]
struct PriorKeys<'a> {
    psk: Option<&'a [u8; 32]>,
    local: Option<&'a [u8; KEY]>,
    remote: Option<&'a [u8; KEY]>,
}

impl<'a> PriorKeys<'a> {
    fn psk(psk: &'a [u8; 32]) -> Self {
        let psk = Some(psk);
        PriorKeys {
            psk,
            ..PriorKeys::default()
        }
    }

    fn node(secret: &'a [u8; 32], own: &'a ServerKey, peer: &'a PublicKey) -> Self {
        PriorKeys {
            psk: Some(secret),
            local: Some(own.private()),
            remote: Some(peer),
        }
    }
}

/// An entropy source for calls that draw no ephemeral key.
struct Still;

impl Entropy for Still {
    fn fill(&mut self, _bytes: &mut [u8]) {}
}

fn build<'a>(
    name: &str,
    known: PriorKeys<'a>,
    prologue: &'a [u8],
    entropy: &mut dyn Entropy,
    end: impl FnOnce(Builder<'a>) -> Result<HandshakeState, snow::Error>,
) -> HandshakeState {
    let mut ephemeral = [0; KEY];
    entropy.fill(&mut ephemeral);
    let params = name.parse().expect("the names are constants");
    let builder = Builder::with_resolver(params, Box::new(Resolver { ephemeral })).prologue(prologue);
    let known = builder.and_then(|mut builder| {
        if let Some(psk) = known.psk {
            builder = builder.psk(0, psk)?;
        }
        if let Some(key) = known.local {
            builder = builder.local_private_key(key)?;
        }
        if let Some(key) = known.remote {
            builder = builder.remote_public_key(key)?;
        }
        Ok(builder)
    });
    known.and_then(end).expect("each pattern gets the keys it asks for")
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() <= PAYLOAD_MAX, "handshake payload of {} B", payload.len());
    let mut message = vec![0; MESSAGE_MAX];
    let len = state
        .write_message(payload, &mut message)
        .expect("our turn, and the message has room");
    message.truncate(len);
    message
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    if !(KEY + crate::seal::TAG..=MESSAGE_MAX).contains(&message.len()) {
        return Err(HandshakeError::Length);
    }
    let mut payload = vec![0; message.len()];
    let len = state
        .read_message(message, &mut payload)
        .map_err(|_| HandshakeError::Forged)?;
    payload.truncate(len);
    Ok(payload)
}

/// Noise has no AES-128, so its two keys are combined into one secret of ours, bound to the whole transcript.
fn split(state: &mut HandshakeState) -> Secret {
    let (one, other) = state.dangerously_get_raw_split();
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, state.get_handshake_hash());
    let prk = salt.extract(&[one, other].concat());
    Secret::new(expand(&prk, &[b"muster session"]))
}

fn mac(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 16] {
    let mut context = hmac::Context::with_key(key);
    parts.iter().for_each(|part| context.update(part));
    context.sign().as_ref()[..16].try_into().expect("SHA-256 has 32 bytes")
}

/// snow's own primitives, with our randomness.
struct Resolver {
    ephemeral: [u8; KEY],
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once {
            bytes: Some(self.ephemeral),
        }))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// The bytes of one ephemeral key. A second draw is an error; the key is never repeated.
struct Once {
    bytes: Option<[u8; KEY]>,
}

impl Random for Once {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        let bytes = self
            .bytes
            .take()
            .filter(|bytes| bytes.len() == dest.len())
            .ok_or(snow::Error::Rng)?;
        dest.copy_from_slice(&bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::{Direction, KeyCache, KeySlots};
    use proptest::prelude::*;

    /// SplitMix64: any seed will do for a test.
    struct Seeded(u64);

    impl Entropy for Seeded {
        fn fill(&mut self, bytes: &mut [u8]) {
            for chunk in bytes.chunks_mut(8) {
                self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = self.0;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                chunk.copy_from_slice(&(z ^ (z >> 31)).to_be_bytes()[..chunk.len()]);
            }
        }
    }

    /// Gives the bytes of a golden vector.
    struct Given(Vec<u8>);

    impl Entropy for Given {
        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.0);
        }
    }

    const PSK: [u8; 32] = [9; 32];

    /// A responder's statement that ignores the initiator's.
    fn says(payload2: &'static [u8]) -> impl FnOnce(&[u8]) -> Vec<u8> {
        |_| payload2.to_vec()
    }

    /// A comparable print of a secret: bytes that it seals.
    fn print(secret: &Secret) -> [u8; 16] {
        KeyCache::new(1).seal(secret, &mut KeySlots::default(), Direction::Initiator, 0, b"", &mut [])
    }

    fn is<T>(result: Result<T, HandshakeError>, error: HandshakeError) -> bool {
        result.is_err_and(|found| found == error)
    }

    fn server() -> ServerKey {
        ServerKey::generate(&mut Seeded(77))
    }

    /// The key pair of the dialling node.
    fn dialler() -> ServerKey {
        ServerKey::generate(&mut Seeded(76))
    }

    /// Runs a test with every pattern.
    fn each_pattern(test: impl Fn(InitiatorKey<'_>, ResponderKey<'_>)) {
        let server = server();
        test(InitiatorKey::Link(&PSK), ResponderKey::Link(&PSK));
        test(InitiatorKey::Client(&server.public()), ResponderKey::Client(&server));
        let (dialler, secret) = (dialler(), &PSK);
        let (own, peer) = (&dialler, &server.public());
        let dial = InitiatorKey::Node { secret, own, peer };
        let (own, peer) = (&server, &dialler.public());
        test(dial, ResponderKey::Node { secret, own, peer });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn both_ends_share_a_secret_and_get_each_others_payload(
            seed: u64,
            prologue in prop::collection::vec(any::<u8>(), 0..64),
            payload1 in prop::collection::vec(any::<u8>(), 0..=PAYLOAD_MAX),
            payload2 in prop::collection::vec(any::<u8>(), 0..=PAYLOAD_MAX),
        ) {
            each_pattern(|dial, answer| {
                let (mut initiator, message1) =
                    Initiator::new(dial, &prologue, &payload1, &mut Seeded(seed));
                let responded =
                    respond(answer, &prologue, &message1, |_| payload2.clone(), &mut Seeded(!seed)).expect("genuine");
                let established = initiator.finish(&responded.message2).expect("genuine");
                assert!(message1.len() <= MESSAGE_MAX && responded.message2.len() <= MESSAGE_MAX);
                assert_eq!(responded.payload1, payload1);
                assert_eq!(established.payload2, payload2);
                assert_eq!(print(&established.secret), print(&responded.secret));
            });
        }

        #[test]
        fn no_bytes_from_a_stranger_panic_or_pass(
            message in prop::collection::vec(any::<u8>(), 0..MESSAGE_MAX + 8),
        ) {
            each_pattern(|dial, answer| {
                assert!(respond(answer, b"", &message, says(b""), &mut Seeded(1)).is_err());
                assert!(Initiator::new(dial, b"", b"", &mut Seeded(2)).0.finish(&message).is_err());
            });
        }
    }

    #[test]
    fn every_flipped_byte_of_either_message_is_refused_and_the_genuine_one_still_finishes() {
        each_pattern(|dial, answer| {
            let (mut initiator, message1) = Initiator::new(dial, b"p", b"payload 1", &mut Seeded(1));
            for i in 0..message1.len() {
                let mut bad = message1.clone();
                bad[i] ^= 1;
                assert!(
                    respond(answer, b"p", &bad, says(b""), &mut Seeded(2)).is_err(),
                    "byte {i} of message 1"
                );
            }
            let genuine = respond(answer, b"p", &message1, says(b"payload 2"), &mut Seeded(2)).expect("genuine");
            for i in 0..genuine.message2.len() {
                let mut bad = genuine.message2.clone();
                bad[i] ^= 1;
                assert!(
                    is(initiator.finish(&bad), HandshakeError::Forged),
                    "byte {i} of message 2"
                );
                assert!(
                    initiator.finish(&genuine.message2[..i]).is_err(),
                    "message 2 cut to {i} bytes"
                );
            }
            assert!(is(initiator.finish(&[0; MESSAGE_MAX + 1]), HandshakeError::Length));
            assert!(is(initiator.finish(&[0; MESSAGE_MAX]), HandshakeError::Forged));
            let established = initiator.finish(&genuine.message2).expect("genuine");
            assert_eq!(print(&established.secret), print(&genuine.secret));
            assert!(is(initiator.finish(&genuine.message2), HandshakeError::Finished));
        });
    }

    #[test]
    fn replayed_message1_gives_another_secret() {
        each_pattern(|dial, answer| {
            let (_, message1) = Initiator::new(dial, b"", b"", &mut Seeded(1));
            let mut entropy = Seeded(2);
            let mut secrets =
                [0, 1].map(|_| respond(answer, b"", &message1, says(b""), &mut entropy).expect("genuine"));
            assert_ne!(print(&secrets[0].secret), print(&secrets[1].secret));
            assert_ne!(std::mem::take(&mut secrets[0].message2), secrets[1].message2);
        });
    }

    #[test]
    fn answer_to_another_message1_does_not_finish() {
        each_pattern(|dial, answer| {
            let (mut initiator, _) = Initiator::new(dial, b"", b"", &mut Seeded(1));
            let (_, other) = Initiator::new(dial, b"", b"", &mut Seeded(2));
            let responded = respond(answer, b"", &other, says(b""), &mut Seeded(3)).expect("genuine");
            assert!(is(initiator.finish(&responded.message2), HandshakeError::Forged));
        });
    }

    /// Statements are part of the transcript: an attacker on the path who substitutes its own message leaves the
    /// initiator without a session.
    #[test]
    fn a_substituted_statement_finishes_no_handshake() {
        each_pattern(|dial, answer| {
            let (mut initiator, _) = Initiator::new(dial, b"", &[1, 2], &mut Seeded(1));
            let (mut between, bare) = Initiator::new(dial, b"", b"", &mut Seeded(2));
            let responded = respond(answer, b"", &bare, |offer| offer.to_vec(), &mut Seeded(3)).expect("genuine");
            assert!(is(initiator.finish(&responded.message2), HandshakeError::Forged));
            let own = between
                .finish(&responded.message2)
                .expect("it has the keys that all have");
            assert_eq!(own.payload2, b"", "but that is a session of its own, not ours");
        });
    }

    #[test]
    fn another_prologue_is_refused() {
        let ours = prologue(1, 7, 0, b"gateway to broker");
        let others = [
            prologue(2, 7, 0, b"gateway to broker"),
            prologue(1, 8, 0, b"gateway to broker"),
            prologue(1, 7, 1, b"gateway to broker"),
            prologue(1, 7, 0, b"gateway to router"),
        ];
        each_pattern(|dial, answer| {
            let (_, message1) = Initiator::new(dial, &ours, b"", &mut Seeded(1));
            for other in &others {
                assert!(is(
                    respond(answer, other, &message1, says(b""), &mut Seeded(2)),
                    HandshakeError::Forged
                ));
            }
        });
    }

    #[test]
    fn wrong_cluster_secret_wrong_server_key_and_wrong_pattern_are_refused() {
        let (server, other) = (server(), ServerKey::generate(&mut Seeded(78)));
        let (_, link) = Initiator::new(InitiatorKey::Link(&PSK), b"", b"", &mut Seeded(1));
        let (_, client) = Initiator::new(InitiatorKey::Client(&server.public()), b"", b"", &mut Seeded(1));
        let refused = |key, message1: &[u8]| {
            is(
                respond(key, b"", message1, says(b""), &mut Seeded(2)),
                HandshakeError::Forged,
            )
        };
        assert!(refused(ResponderKey::Link(&[8; 32]), &link));
        assert!(refused(ResponderKey::Client(&other), &client));
        assert!(refused(ResponderKey::Client(&server), &link));
        assert!(refused(ResponderKey::Link(&PSK), &client));

        let (dialler, secret) = (dialler(), &PSK);
        let (own, peer) = (&dialler, &server.public());
        let (_, node) = Initiator::new(InitiatorKey::Node { secret, own, peer }, b"", b"", &mut Seeded(1));
        let (own, peer) = (&server, &dialler.public());
        assert!(!refused(ResponderKey::Node { secret, own, peer }, &node));
        let (secret, mine, theirs) = (&[8; 32], &other, &other.public());
        assert!(refused(ResponderKey::Node { secret, own, peer }, &node));
        let secret = &PSK;
        assert!(
            refused(
                ResponderKey::Node {
                    secret,
                    own: mine,
                    peer
                },
                &node
            ),
            "meant for another"
        );
        assert!(
            refused(
                ResponderKey::Node {
                    secret,
                    own,
                    peer: theirs
                },
                &node
            ),
            "from another"
        );
        assert!(refused(ResponderKey::Link(&PSK), &node));
        assert!(
            refused(ResponderKey::Node { secret, own, peer }, &link),
            "no proof, no link"
        );
    }

    #[test]
    fn cluster_keys_find_the_two_that_are_accepted_and_nothing_else() {
        let mut keys = ClusterKeys {
            current: (1, [1; 32]),
            other: Some((2, [2; 32])),
            allow: None,
        };
        assert_eq!(keys.find(1), Some(&[1; 32]));
        assert_eq!(keys.find(2), Some(&[2; 32]));
        assert_eq!(keys.find(3), None);
        keys.other = None;
        assert_eq!(keys.find(2), None);
    }

    #[test]
    fn same_entropy_gives_the_same_bytes_and_other_entropy_does_not() {
        each_pattern(|dial, answer| {
            let run = |seed| {
                let (_, message1) = Initiator::new(dial, b"p", b"1", &mut Seeded(seed));
                let responded = respond(answer, b"p", &message1, says(b"2"), &mut Seeded(seed + 1)).expect("genuine");
                (message1, responded.message2, print(&responded.secret))
            };
            assert_eq!(run(5), run(5));
            assert_ne!(run(5), run(6));
        });
    }

    #[test]
    #[should_panic(expected = "handshake payload")]
    fn payload_over_the_limit_is_our_own_mistake() {
        Initiator::new(InitiatorKey::Link(&PSK), b"", &[0; PAYLOAD_MAX + 1], &mut Seeded(1));
    }

    #[test]
    fn server_key_survives_being_stored() {
        let key = server();
        assert_eq!(ServerKey::from_private(*key.private()).public(), key.public());
        assert_ne!(key.public(), ServerKey::generate(&mut Seeded(78)).public());
    }

    #[test]
    fn cookie_holds_for_its_period_and_the_next_and_for_its_address_only() {
        let jar = CookieJar::new(&mut Seeded(1));
        let addr = Addr { ip: [1; 16], port: 5 };
        let given = 3 * COOKIE_PERIOD + 17;
        let cookie = jar.cookie(given, addr);
        assert!(jar.check(given, addr, &cookie));
        assert!(jar.check(given + COOKIE_PERIOD, addr, &cookie));
        assert!(jar.check(5 * COOKIE_PERIOD - 1, addr, &cookie));
        assert!(!jar.check(5 * COOKIE_PERIOD, addr, &cookie));
        assert!(
            !jar.check(given - COOKIE_PERIOD, addr, &cookie),
            "not before it was given"
        );
        assert!(!jar.check(given, Addr { port: 6, ..addr }, &cookie));
        assert!(!jar.check(given, Addr { ip: [2; 16], ..addr }, &cookie));
        assert!(!CookieJar::new(&mut Seeded(2)).check(given, addr, &cookie));
        assert!(
            jar.check(0, addr, &jar.cookie(0, addr)),
            "there is no period before the first"
        );
        for bit in 0..128 {
            let mut cookie = cookie;
            cookie[bit / 8] ^= 1 << (bit % 8);
            assert!(!jar.check(given, addr, &cookie), "bit {bit}");
        }
    }

    #[test]
    fn reset_token_depends_on_secret_and_session_and_survives_a_restart() {
        let token = ResetSecret::new([1; 32]).token(b"client", 7);
        assert!(same(&token, &ResetSecret::new([1; 32]).token(b"client", 7)));
        assert!(!same(&token, &ResetSecret::new([1; 32]).token(b"client", 8)));
        assert!(!same(&token, &ResetSecret::new([2; 32]).token(b"client", 7)));
        assert!(!same(&token, &ResetSecret::new([1; 32]).token(b"link", 7)));
    }

    #[test]
    fn a_public_key_of_small_order_proves_nothing() {
        assert!(ServerKey::proves(&server().public()));
        let one = std::array::from_fn(|at| u8::from(at == 0));
        let order_8 = hex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800");
        for small in [[0; 32], one, order_8.try_into().expect("32 bytes")] {
            assert!(!ServerKey::proves(&small), "{small:02x?}");
        }
    }

    #[test]
    fn golden_vectors_agree_with_another_implementation() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/handshake.json");
        let text = std::fs::read_to_string(path).expect("vectors are part of the repository");
        let vectors: serde_json::Value = serde_json::from_str(&text).expect("vectors are JSON");
        let field = |case: &serde_json::Value, name: &str| hex(case[name].as_str().expect("a string"));
        let key = |case: &serde_json::Value, name| -> [u8; 32] { field(case, name).try_into().expect("32 bytes") };
        let cases = vectors["handshakes"].as_array().expect("a list of handshakes");
        assert_eq!(cases.len(), 3);
        for case in cases {
            let bytes = |name| field(case, name);
            let server;
            let psk;
            let public;
            let (dialler, other);
            let (dial, answer) = if case["pattern"] == CLIENT {
                server = ServerKey::from_private(key(case, "server_private"));
                public = server.public();
                assert_eq!(public, key(case, "server_public"));
                (InitiatorKey::Client(&public), ResponderKey::Client(&server))
            } else if case["pattern"] == NODE {
                psk = key(case, "cluster_secret");
                dialler = ServerKey::from_private(key(case, "initiator_private"));
                server = ServerKey::from_private(key(case, "responder_private"));
                (public, other) = (dialler.public(), server.public());
                assert_eq!(
                    (public, other),
                    (key(case, "initiator_public"), key(case, "responder_public"))
                );
                let node = case["node"].as_u64().expect("a number") as u32;
                let proof = hello_proof(&psk, 0x0102_0304_0506_0708, node, &bytes("message1"));
                assert_eq!(proof.to_vec(), bytes("proof"));
                let (secret, own, peer) = (&psk, &dialler, &other);
                let dial = InitiatorKey::Node { secret, own, peer };
                let (own, peer) = (&server, &public);
                (dial, ResponderKey::Node { secret, own, peer })
            } else {
                psk = key(case, "cluster_secret");
                (InitiatorKey::Link(&psk), ResponderKey::Link(&psk))
            };
            assert_eq!(prologue(1, 0x0102_0304_0506_0708, 0, b"test"), bytes("prologue"));
            let mut entropy = Given(bytes("initiator_entropy"));
            let (mut initiator, message1) = Initiator::new(dial, &bytes("prologue"), &bytes("payload1"), &mut entropy);
            assert_eq!(message1, bytes("message1"));
            let mut entropy = Given(bytes("responder_entropy"));
            let responded = respond(
                answer,
                &bytes("prologue"),
                &message1,
                |_| bytes("payload2"),
                &mut entropy,
            );
            let responded = responded.expect("genuine");
            assert_eq!(responded.message2, bytes("message2"));
            let expected = Secret::new(bytes("secret").try_into().expect("16 bytes"));
            assert_eq!(print(&responded.secret), print(&expected));
            let established = initiator.finish(&responded.message2).expect("genuine");
            assert_eq!(print(&established.secret), print(&expected));
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digit = |c: u8| (c as char).to_digit(16).expect("a hex digit") as u8;
        text.as_bytes()
            .chunks(2)
            .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
            .collect()
    }

    /// `cargo test --release -p muster-transport handshake::tests::cost -- --ignored --nocapture`
    #[test]
    #[ignore = "prints microseconds, proves nothing"]
    fn cost_of_a_handshake() {
        each_pattern(|dial, answer| {
            let rounds = 2_000;
            let start = std::time::Instant::now();
            let begun = (0..rounds).map(|seed| Initiator::new(dial, b"", b"", &mut Seeded(seed)));
            let mut begun: Vec<_> = begun.collect();
            let new = start.elapsed();
            let start = std::time::Instant::now();
            let answered = begun
                .iter()
                .map(|(_, message1)| respond(answer, b"", message1, says(b""), &mut Seeded(0)));
            let answered: Vec<_> = answered.map(|responded| responded.expect("genuine").message2).collect();
            let respond = start.elapsed();
            let start = std::time::Instant::now();
            for ((initiator, _), message2) in begun.iter_mut().zip(&answered) {
                assert!(initiator.finish(message2).is_ok());
            }
            let each = |time: std::time::Duration| time.as_micros() as f64 / rounds as f64;
            println!(
                "new {:.0} us, respond {:.0} us, finish {:.0} us",
                each(new),
                each(respond),
                each(start.elapsed())
            );
        });
    }
}
