//! Links with other nodes: dialling, accepting, proving, keeping alive, losing.
//!
//! Owns the table of links, the door before them and the dials. Knows the node at the other end of a link, not its
//! traffic: frames that are not control are returned to the role.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::allow::{Demand, Standing, Stranger};
use crate::conn::{Conn, Control, Reject};
use crate::door::{reset_token, Accepted, Door, Knock};
use crate::handshake::{same, ClusterKeys, InitiatorKey, ResetSecret};
use crate::keys::PublicKey;
use crate::limits::NODES_MAX;
use crate::log::Records;
use crate::machine::{Addr, Arrival, Micros, Outbox, SocketId};
use crate::node::{Identity, Node};
use crate::past::{Loss, Past};
use crate::table::Table;
use crate::versions::{NoVersion, Versions};
use crate::wire::frame::append;
use crate::wire::header::{DatagramKind, Header, HEADER};
use crate::wire::record::{ControlRecord, Encode, SystemRecord};
use crate::wire::{Code, Frame, FrameKind, Role};

/// Blocks of a link's replay window: 8,192 datagrams.
pub const LINK_BLOCKS: usize = 128;
/// An otherwise idle link sends a ping after this time, and repeats it at this interval while nothing arrives.
pub const PING_IDLE: Micros = 200_000;
pub const PING_AGAIN: Micros = 100_000;
/// A link on which nothing arrived for this long is dead: eight pings were lost, or the peer stands still.
pub const DEAD_AFTER: Micros = 1_000_000;
/// First interval between hellos of one dial, and the longest; it doubles each time.
pub const DIAL_FIRST: Micros = 50_000;
pub const DIAL_MAX: Micros = 250_000;
/// How long a handshake waits for its first sealed datagram.
pub const UNPROVEN_LIFE: Micros = 5_000_000;
/// The socket of links, of every machine.
pub const LINK_SOCKET: SocketId = 0;
/// How long a lost node that had dialled us is reported: it may return, or be gone for good.
const LOST_TOLD: Micros = 3_600_000_000;
/// Maximum number of unproven links at once.
const UNPROVEN_MAX: usize = 256;
/// If another node answers a dial, the wait before the next try doubles each time, up to this.
const MISTAKEN_MAX: Micros = 5_000_000;
/// Links with an outdated key are renewed spread over this time: a node with 2,000 of them then answers two
/// handshakes a millisecond.
const RENEW_SPREAD: Micros = 1_000_000;
/// How long a link whose key is no longer accepted lives unless renewed: the spread, plus a few lost dials.
pub const RENEW_GRACE: Micros = 3_000_000;
/// A node that answers our hellos only with cookies for this long refuses our handshakes.
pub const REFUSED_AFTER: Micros = 3_000_000;
/// Why a link ends that has no more use: no loss.
const UNUSED: &str = "unused";
/// Shortest interval between two reports of one kind of stranger, since strangers choose the numbers that they claim.
pub const STRANGER_TOLD: Micros = 10_000_000;

crate::counters! {
    /// Events on links.
    pub struct LinkCounters {
        /// Datagrams taken on the link socket.
        link_datagrams_received,
        /// Datagrams dropped: too short, no magic, wrong version or kind.
        link_dropped_header,
        /// Datagrams dropped: no such link.
        link_dropped_unknown,
        /// Datagrams dropped: seen before.
        link_dropped_duplicate,
        /// Datagrams dropped: older than the replay window.
        link_dropped_old,
        /// Datagrams dropped: a key generation out of turn.
        link_dropped_generation,
        /// Datagrams dropped: the seal does not open.
        link_dropped_forged,
        /// Frames dropped: malformed, or not this peer's to send.
        link_dropped_frame,
        /// Handshakes refused: the node's epoch is lower than one seen.
        link_refused_epoch,
        /// Links that did not come up: the dialled node has no protocol version in common with this one.
        links_other_version,
        /// Links refused: too many nodes.
        link_refused_full,
        /// Links that came up.
        links_up,
        /// Links that were lost.
        links_down,
        /// Links given up: their control log was full.
        links_log_full,
        /// Links renewed with another key while the old link lived.
        links_renewed,
        /// Links ended: their key is no longer accepted.
        links_key_dropped,
        /// Links ended: the peer's key is no longer in the list of nodes, or the peer did not prove one in time.
        links_shut_out,
        /// Nodes that should be linked but are not in the list of nodes, or have another role there.
        links_unlisted,
        /// Nodes that answered but kept refusing our handshakes: their secret or list differs, or lacks this node.
        links_refused,
        /// Nodes at whose address another node answers, which is dialled itself or has a link already.
        links_mistaken,
    }
}

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
    token: Option<[u8; 16]>,
    made_at: Micros,
    /// The key that the peer proved, if any.
    pub key: Option<PublicKey>,
    /// When the link ends, and why: its key or proof is no longer accepted.
    ends: Option<(Micros, Ends)>,
}

/// Why a living link will end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// The cluster's secret that it was made with is no longer accepted.
    KeyDropped,
    /// The peer has not proven its identity, though proof is required.
    NoIdentity,
}

impl Ends {
    fn name(self) -> &'static str {
        match self {
            Ends::KeyDropped => "key dropped",
            Ends::NoIdentity => "no identity",
        }
    }
}

/// A link came up, was lost, or can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    Up {
        slot: u32,
        peer: Identity,
    },
    Down {
        slot: u32,
        peer: Identity,
        reason: &'static str,
    },
    /// A node answers but refuses our handshakes.
    Refused {
        node: u32,
        role: Role,
    },
    /// At a node's address another node answers, which is dialled itself or has a link already.
    Mistaken {
        node: u32,
        role: Role,
        found: u32,
    },
    /// A node should be linked, but the list of nodes lacks it, or has it in another role.
    Unlisted {
        node: u32,
        role: Role,
    },
    /// A node speaks these versions of the protocol, and none of ours.
    Differs {
        node: u32,
        role: Role,
        theirs: Versions,
    },
    /// A stranger was refused; `node`: the number that it claimed, 0 if none.
    Stranger {
        node: u32,
        why: Stranger,
    },
}

struct Dial {
    addr: Addr,
    role: Role,
    knock: Option<Knock>,
    at: Micros,
    wait: Micros,
    due: bool,
    /// Since when the node has answered with cookies alone.
    answered_at: Option<Micros>,
    /// The wait since another node answered; 0: none has.
    mistaken: Micros,
    told: bool,
}

/// The latest life (epoch) that a node proved.
struct Life {
    epoch: u32,
    /// When it was linked, or when its link was lost.
    at: Micros,
}

/// All links of a node, over one socket.
pub struct Links {
    pub table: Table<LINK_BLOCKS, Link>,
    pub door: Door,
    pub counters: LinkCounters,
    cluster: ClusterKeys,
    by_node: BTreeMap<u32, u32>,
    /// Nodes that were ever linked, at most [`NODES_MAX`]. Of the nodes that are neither linked nor placed, the one
    /// gone for longest makes room.
    lives: BTreeMap<u32, Life>,
    /// The history of links to some of these nodes.
    past: BTreeMap<u32, Past>,
    /// Nodes that the placement names.
    placed: BTreeSet<u32>,
    dials: BTreeMap<u32, Dial>,
    changes: VecDeque<LinkChange>,
    /// When a stranger of each kind was last reported.
    strangers: BTreeMap<Stranger, Micros>,
    /// When a dialling node without a version in common was last reported.
    differed_at: Option<Micros>,
    unproven: VecDeque<u32>,
    /// Links whose tail was found to need a probe by the last [`Links::expire`].
    probed: Vec<u32>,
    /// Ended links whose peers must still be told, and why.
    closing: VecDeque<(Conn<LINK_BLOCKS>, Code)>,
    /// Ids of renewed links, and when each was renewed: the peer sent datagrams for them before it learned of the
    /// renewal, and a reset would end the living link.
    renewed: VecDeque<(u64, Micros)>,
    /// Actual size of the link socket's receive buffer, in bytes.
    pub buffer: u32,
    /// Maximum bytes of unacknowledged control records per link.
    log_bytes: usize,
}

impl Links {
    /// `log_bytes`: maximum bytes of unacknowledged control records per link.
    pub fn new(door: Door, cluster: ClusterKeys, log_bytes: usize) -> Self {
        Links {
            table: Table::default(),
            door,
            counters: LinkCounters::default(),
            cluster,
            by_node: BTreeMap::new(),
            lives: BTreeMap::new(),
            past: BTreeMap::new(),
            placed: BTreeSet::new(),
            dials: BTreeMap::new(),
            changes: VecDeque::new(),
            strangers: BTreeMap::new(),
            differed_at: None,
            unproven: VecDeque::new(),
            probed: Vec::new(),
            closing: VecDeque::new(),
            renewed: VecDeque::new(),
            buffer: 212_992,
            log_bytes,
        }
    }

    /// The slot of the proven link to `node`.
    pub fn to(&self, node: u32) -> Option<u32> {
        self.by_node.get(&node).copied()
    }

    /// Since when there is a proven link to `node` in this role; the number may have belonged to a node of another
    /// role before.
    pub fn since_as(&self, node: u32, role: Role) -> Option<Micros> {
        let link = self.table.get(self.to(node)?)?;
        (link.data.peer.role == role).then_some(link.data.made_at)
    }

    /// The slot of the proven link to a node in this life.
    pub fn to_life(&self, (node, epoch): (u32, u32)) -> Option<u32> {
        let slot = self.to(node)?;
        self.table
            .get(slot)
            .is_some_and(|link| link.data.peer.epoch == epoch)
            .then_some(slot)
    }

    /// Since when there is a proven link to `node`.
    pub fn since(&self, node: u32) -> Option<Micros> {
        let link = self.table.get(self.to(node)?)?;
        Some(link.data.made_at)
    }

    /// When the last link to `node` was lost, if there is none now and the loss is remembered.
    pub fn lost_at(&self, node: u32) -> Option<Micros> {
        let life = self.lives.get(&node).filter(|_| !self.by_node.contains_key(&node))?;
        Some(life.at)
    }

    /// When something last arrived on the proven link to `node`.
    pub fn heard_at(&self, node: u32) -> Option<Micros> {
        let link = self.table.get(self.to(node)?)?;
        Some(link.conn.heard_at)
    }

    /// The links whose tail was found to need a probe by the last [`Links::expire`].
    pub fn probed(&self) -> &[u32] {
        &self.probed
    }

    /// Proven links, by node.
    pub fn proven(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.by_node.iter().map(|(node, slot)| (*node, *slot))
    }

    /// The remembered history of the links to `node`.
    pub fn past(&self, node: u32) -> Option<&Past> {
        self.past.get(&node)
    }

    /// Nodes without a link: dialled ones, and for a while those that dialled us.
    pub fn lost(&self, now: Micros) -> impl Iterator<Item = (u32, Role, Option<&Past>)> + '_ {
        let dialled = self.dials.iter().map(|(node, dial)| (*node, dial.role));
        let fresh = move |past: &Past| now < past.changed_at + LOST_TOLD;
        let others = self.past.iter().filter(move |(_, past)| fresh(past));
        let others = others.filter(|(node, _)| !self.dials.contains_key(node));
        let all = dialled.chain(others.map(|(node, past)| (*node, past.role)));
        all.filter(|(node, _)| !self.by_node.contains_key(node))
            .map(|(node, role)| (node, role, self.past.get(&node)))
    }

    /// The highest epoch that `node` proved; may be forgotten once the node is gone and not placed.
    pub fn epoch_of(&self, node: u32) -> Option<u32> {
        self.lives.get(&node).map(|life| life.epoch)
    }

    /// Sets the nodes that the placement names: none of them is forgotten.
    pub fn place(&mut self, nodes: impl Iterator<Item = u32>) {
        self.placed = nodes.collect();
    }

    /// Keeps links to exactly these nodes open from our side.
    pub fn dial(&mut self, now: Micros, nodes: impl Iterator<Item = (u32, Role, Addr)>) {
        let wanted: BTreeMap<u32, (Role, Addr)> = nodes.map(|(node, role, addr)| (node, (role, addr))).collect();
        let (table, past, linked) = (&mut self.table, &mut self.past, &self.by_node);
        self.dials.retain(|node, dial| {
            let kept = wanted.get(node) == Some(&(dial.role, dial.addr));
            if !wanted.contains_key(node) && !linked.contains_key(node) {
                past.remove(node);
            }
            if let Some(knock) = dial.knock.as_ref().filter(|_| !kept) {
                table.release(knock.id);
            }
            kept
        });
        for (node, (role, addr)) in wanted {
            self.dials.entry(node).or_insert(Dial {
                addr,
                role,
                knock: None,
                at: now,
                wait: DIAL_FIRST,
                due: false,
                answered_at: None,
                mistaken: 0,
                told: false,
            });
        }
    }

    /// Replaces the secrets and the list of nodes. New links use the current secret. The dialling node renews links
    /// that have another secret, or that lack a proof which is now required; they live on meanwhile. Links with a key
    /// that is no longer accepted end within [`RENEW_GRACE`]. Links to nodes that left the list end at once.
    pub fn set_cluster(&mut self, now: Micros, node: &mut Node, cluster: ClusterKeys) {
        if cluster == self.cluster {
            return;
        }
        let before = std::mem::replace(&mut self.cluster, cluster);
        self.door.set_cluster(self.cluster.clone());
        for (target, dial) in &mut self.dials {
            if let Some(knock) = dial.knock.take() {
                self.table.release(knock.id);
            }
            dial.due = false;
            let linked = self.by_node.contains_key(target);
            dial.at = now + if linked { node.dice.below(RENEW_SPREAD) } else { 0 };
            dial.wait = DIAL_FIRST;
            (dial.answered_at, dial.told) = (None, false);
        }
        let slots: Vec<u32> = self.by_node.values().chain(&self.unproven).copied().collect();
        for slot in slots {
            let Some(link) = self.table.get_mut(slot) else { continue };
            let (peer, key, proved) = (link.data.peer, link.conn.key_id(), link.data.key);
            let accepted = self.cluster.find(key);
            let accepted = accepted.is_some_and(|secret| before.find(key) == Some(secret));
            let allow = self.cluster.allow.as_ref();
            let ends = match allow.map_or(Standing::Keep, |allow| allow.judge(peer, proved)) {
                Standing::End => {
                    // Now, not at the next timer: its datagrams may be in the socket already.
                    self.counters.links_shut_out += u64::from(link.data.proven);
                    self.end(now, slot, "shut out");
                    continue;
                }
                Standing::Renew => (now + RENEW_GRACE, Ends::NoIdentity),
                Standing::Keep if accepted => {
                    link.data.ends = link.data.ends.filter(|(_, why)| *why != Ends::NoIdentity); // proof is no longer required
                    continue;
                }
                Standing::Keep => (now + RENEW_GRACE, Ends::KeyDropped),
            };
            if link.data.ends.is_none_or(|(at, _)| ends.0 < at) {
                link.data.ends = Some(ends);
            }
            if link.data.proven {
                self.reschedule(now, slot);
            }
        }
    }

    /// Sets the shared secret from which this node derives its proof of resets.
    pub fn set_reset(&mut self, node: &Node, shared: &[u8; 32]) {
        let own = ResetSecret::of_node(shared, node.me.node);
        self.door.set_reset(ResetSecret::new(own));
    }

    /// Whether a dialled node needs a new link: it has none, or one without the current key.
    fn wanting(&self, node: u32) -> bool {
        self.to(node).and_then(|slot| self.table.get(slot)).is_none_or(|link| {
            let allow = self.cluster.allow.as_ref();
            let unproved = link.data.key.is_none() && allow.is_some_and(|allow| allow.demand > Demand::Accepted);
            link.data.ends.is_some() || link.conn.key_id() != self.cluster.current.0 || unproved
        })
    }

    /// The next change of a link.
    pub fn change(&mut self) -> Option<LinkChange> {
        self.changes.pop_front()
    }

    /// Takes a datagram of the link socket. `Some`: the slot of a proven link, and the length of the sealed frames
    /// behind the header.
    pub fn receive(
        &mut self,
        now: Micros,
        node: &mut Node,
        arrival: Arrival,
        datagram: &mut [u8],
    ) -> Option<(u32, usize)> {
        self.counters.link_datagrams_received += 1;
        let Ok(header) = Header::read(datagram) else {
            self.counters.link_dropped_header += 1;
            return None;
        };
        match header.kind {
            DatagramKind::Data => return self.data(now, node, arrival, &header, datagram),
            DatagramKind::Hello => self.door.hello(now, arrival, &header, datagram),
            DatagramKind::Cookie => match self.dial_of(header.connection, arrival.from) {
                Some((_, dial)) => {
                    if dial.knock.as_mut().is_some_and(|knock| knock.cookie(datagram)) {
                        // The node is reachable: anything missing from here on was lost on the way.
                        (dial.due, dial.at, dial.wait) = (true, now + DIAL_FIRST, 2 * DIAL_FIRST);
                        dial.answered_at.get_or_insert(now);
                    }
                }
                None => self.counters.link_dropped_unknown += 1,
            },
            DatagramKind::Accept => self.opened(now, node, arrival, &header, datagram),
            DatagramKind::Reset => self.reset(now, &header, arrival, datagram),
        }
        None
    }

    /// The dial that this datagram answers, with its node.
    fn dial_of(&mut self, id: u64, from: Addr) -> Option<(u32, &mut Dial)> {
        let mut dials = self.dials.iter_mut().map(|(node, dial)| (*node, dial));
        dials.find(|(_, dial)| dial.addr == from && dial.knock.as_ref().is_some_and(|knock| knock.id == id))
    }

    fn data(
        &mut self,
        now: Micros,
        node: &mut Node,
        arrival: Arrival,
        header: &Header,
        datagram: &mut [u8],
    ) -> Option<(u32, usize)> {
        let Some(slot) = self.table.find(header.connection) else {
            self.counters.link_dropped_unknown += 1;
            if !self.renewed.iter().any(|(id, _)| *id == header.connection) {
                self.door.unknown(now, arrival, header);
            }
            return None;
        };
        let link = self.table.get_mut(slot)?;
        let len = match link.conn.open(now, &mut node.keys, header, datagram) {
            Ok(len) => len,
            Err(reject) => {
                *match reject {
                    Reject::Duplicate => &mut self.counters.link_dropped_duplicate,
                    Reject::Old => &mut self.counters.link_dropped_old,
                    Reject::Generation => &mut self.counters.link_dropped_generation,
                    Reject::Forged => &mut self.counters.link_dropped_forged,
                } += 1;
                return None;
            }
        };
        if !link.data.proven {
            self.prove(now, slot);
        }
        Some((slot, len))
    }

    /// A sealed datagram came on a link that we accepted: the peer is present and knows the secret.
    fn prove(&mut self, now: Micros, slot: u32) {
        let Some(link) = self.table.get_mut(slot) else { return };
        link.data.proven = true;
        let (peer, made_with) = (link.data.peer, (link.conn.key_id(), link.data.key));
        if self.is_over(&peer) {
            self.counters.link_refused_epoch += 1;
            self.table.remove(slot);
            return;
        }
        if !self.make_place(peer.node) {
            self.counters.link_refused_full += 1;
            self.table.remove(slot);
            return;
        }
        let epoch = peer.epoch;
        self.lives.insert(peer.node, Life { epoch, at: now });
        let past = self.past.entry(peer.node).or_insert(Past::new(now, peer.role));
        let mut renewed = false;
        if let Some(replaced) = self.by_node.insert(peer.node, slot) {
            if let Some(old) = self.table.remove(replaced) {
                if old.data.peer.epoch != peer.epoch {
                    past.fall(old.conn.heard_at); // its former life ended unnoticed
                }
                let other = (old.conn.key_id(), old.data.key) != made_with;
                renewed = old.data.peer == peer && (old.data.ends.is_some() || other);
                self.counters.links_down += u64::from(!renewed);
                self.renewed.extend(renewed.then_some((old.conn.id, now)));
                self.changes.push_back(LinkChange::Down {
                    slot: replaced,
                    peer: old.data.peer,
                    reason: if renewed { "renewed" } else { "replaced" },
                });
            }
        }
        past.rise(now);
        self.counters.links_up += u64::from(!renewed);
        self.counters.links_renewed += u64::from(renewed);
        let window = self.buffer / (self.by_node.len() as u32).max(1);
        let token = self
            .table
            .get(slot)
            .map(|link| self.door.token(link.conn.id))
            .unwrap_or_default();
        if let Some(link) = self.table.get_mut(slot) {
            link.conn.receive_window = window;
            link.conn.record(&ControlRecord::LinkReady { token });
            link.conn.ask_status();
        }
        self.table.mark(slot);
        self.reschedule(now, slot);
        self.changes.push_back(LinkChange::Up { slot, peer });
    }

    /// Whether a later life of the node was seen.
    fn is_over(&self, peer: &Identity) -> bool {
        self.epoch_of(peer.node).is_some_and(|known| known > peer.epoch)
    }

    /// Whether another node can be remembered; forgets one for it if necessary.
    fn make_place(&mut self, node: u32) -> bool {
        if self.lives.len() < NODES_MAX || self.lives.contains_key(&node) {
            return true;
        }
        let gone = self.lives.iter();
        let gone = gone.filter(|(node, _)| !self.by_node.contains_key(node) && !self.placed.contains(node));
        let Some((&longest, _)) = gone.min_by_key(|(_, life)| life.at) else {
            return false;
        };
        self.lives.remove(&longest);
        self.past.remove(&longest);
        true
    }

    fn opened(&mut self, now: Micros, node: &Node, arrival: Arrival, header: &Header, datagram: &[u8]) {
        let Some((target, dial)) = self.dial_of(header.connection, arrival.from) else {
            self.counters.link_dropped_unknown += 1;
            return;
        };
        let role = dial.role;
        let Some(knock) = dial.knock.as_mut() else { return };
        let Some(opened) = knock.accept(datagram) else {
            self.counters.link_dropped_forged += 1;
            return;
        };
        let key = knock.listed.map(|listed| listed.key);
        let meant = |peer: &Identity| peer.role == role && (key.is_none() || peer.node == target);
        let said = Identity::read(&opened.payload).filter(|(peer, _)| meant(peer));
        let said = said.and_then(|(peer, behind)| match node.versions.answered(behind) {
            Err(NoVersion::Malformed) => None,
            answered => Some((peer, answered)),
        });
        let Some((peer, version)) = said else {
            // The handshake is over for this attempt; the next one may reach the right node.
            (dial.knock, dial.due, dial.at) = (None, false, now + DIAL_MAX);
            self.table.release(header.connection);
            self.counters.link_dropped_frame += 1;
            return;
        };
        let key_id = knock.key_id;
        dial.knock = None;
        dial.wait = DIAL_FIRST;
        dial.answered_at = None;
        if peer.node == target {
            (dial.mistaken, dial.told) = (0, dial.told && version.is_err());
        } else if self.dials.contains_key(&peer.node) || self.is_linked(&peer) {
            self.table.release(header.connection);
            self.mistaken(now, target, peer.node);
            return;
        }
        let version = match version {
            Ok(version) => version,
            Err(no_version) => {
                self.table.release(header.connection);
                return self.differs(now, target, role, no_version);
            }
        };
        let conn = Conn::new(
            header.connection,
            opened.peer,
            LINK_SOCKET,
            arrival.from,
            opened.secret,
            true,
            key_id,
            self.log_bytes,
            now,
        );
        let slot = self.table.fill(
            header.connection,
            conn,
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
            },
        );
        self.prove(now, slot);
    }

    /// Whether there is a link to a node in this life, or in a later one.
    fn is_linked(&self, peer: &Identity) -> bool {
        let link = self.to(peer.node).and_then(|slot| self.table.get(slot));
        link.is_some_and(|link| link.data.peer.epoch >= peer.epoch)
    }

    /// Another node has answered at the address of a node that we dial: its link stays, and the dial backs off.
    fn mistaken(&mut self, now: Micros, target: u32, found: u32) {
        let Some(dial) = self.dials.get_mut(&target) else {
            return;
        };
        dial.mistaken = (2 * dial.mistaken).clamp(DIAL_MAX, MISTAKEN_MAX);
        (dial.due, dial.at) = (false, now + dial.mistaken);
        if !dial.told {
            dial.told = true;
            self.counters.links_mistaken += 1;
            let (node, role) = (target, dial.role);
            self.changes.push_back(LinkChange::Mistaken { node, role, found });
        }
    }

    /// A dialled node speaks no version of ours: one of the two must be upgraded, so the dial waits long.
    fn differs(&mut self, now: Micros, target: u32, role: Role, no_version: NoVersion) {
        let (Some(dial), NoVersion::Other { theirs, .. }) = (self.dials.get_mut(&target), no_version) else {
            return;
        };
        (dial.due, dial.at) = (false, now + MISTAKEN_MAX);
        self.counters.links_other_version += 1;
        if !std::mem::replace(&mut dial.told, true) {
            let node = target;
            self.changes.push_back(LinkChange::Differs { node, role, theirs });
        }
    }

    fn reset(&mut self, now: Micros, header: &Header, arrival: Arrival, datagram: &[u8]) {
        // The reset names the peer's connection id, which stands in our datagrams.
        let token = reset_token(datagram);
        let found = self.by_node.values().copied().find(|slot| {
            self.table.get(*slot).is_some_and(|link| {
                link.conn.peer == header.connection
                    && link.conn.addr == arrival.from
                    && link
                        .data
                        .token
                        .zip(token)
                        .is_some_and(|(known, token)| same(&known, &token))
            })
        });
        match found {
            Some(slot) => self.lose(now, slot, "reset"),
            None => self.counters.link_dropped_unknown += 1,
        }
    }

    /// Appends a record to a link's log. `None`: there is no such link, or its log is full. Then the link is given
    /// up, since only the snapshot on the next link can repair a missing record.
    pub fn record(&mut self, now: Micros, slot: u32, record: &impl Encode) -> Option<u64> {
        record.encode(|bytes| self.log(now, slot, bytes))
    }

    /// As [`Links::record`], with the encoded record, so that several links can share it.
    pub fn log(&mut self, now: Micros, slot: u32, bytes: &[u8]) -> Option<u64> {
        let link = self.table.get_mut(slot)?;
        let offset = link.conn.log.push(bytes).ok();
        if offset.is_some() {
            self.table.mark(slot);
        } else {
            self.counters.links_log_full += 1;
            self.lose(now, slot, "log full");
        }
        offset
    }

    /// Handles a record of the links themselves; `false`: the record is the role's.
    pub fn link_record<'a>(&mut self, slot: u32, record: &impl SystemRecord<'a>) -> bool {
        if let Some(ControlRecord::LinkReady { token }) = record.control() {
            if let Some(link) = self.table.get_mut(slot) {
                link.data.token = Some(*token);
            }
            return true;
        }
        false
    }

    /// Takes a frame that every link understands.
    pub fn control(&mut self, now: Micros, slot: u32, frame: &Frame<'_>, records: &mut Records) -> Control {
        let Some(link) = self.table.get_mut(slot) else {
            return Control::Done;
        };
        let control = link.conn.control_frame(now, frame, records);
        match &control {
            Control::Heard(heard) => link.data.loss.hear(&heard.status),
            Control::Closed(Code::Ok) => self.lose(now, slot, UNUSED),
            Control::Closed(_) => self.lose(now, slot, "closed"),
            Control::Bad => self.counters.link_dropped_frame += 1,
            _ => {}
        }
        control
    }

    /// Called after the frames of one datagram: notes that they elicit a status, and when the link next needs time.
    pub fn after(&mut self, now: Micros, slot: u32, elicits: bool) {
        let Some(link) = self.table.get_mut(slot) else { return };
        if elicits {
            link.conn.elicited(now);
        }
        if link.conn.control_due(now) {
            self.table.mark(slot);
        }
        self.table.postpone(slot, self.due(now, slot));
    }

    /// Gives up a link; if we dialled it, we dial again.
    pub fn lose(&mut self, now: Micros, slot: u32, reason: &'static str) {
        self.take(now, slot, reason);
    }

    /// Ends the link to a node that has no more use, and tells the node.
    pub fn hang_up(&mut self, now: Micros, node: u32) {
        if let Some(slot) = self.to(node) {
            self.end(now, slot, UNUSED);
        }
    }

    /// Ends a link and tells the peer, so that it need not wait for a timeout.
    fn end(&mut self, now: Micros, slot: u32, reason: &'static str) {
        let proven = self.table.get(slot).is_some_and(|link| link.data.proven);
        let ended = self.take(now, slot, reason);
        let code = match reason {
            UNUSED => Code::Ok,
            _ => Code::NotAllowed,
        };
        self.closing.extend(ended.filter(|_| proven).map(|conn| (conn, code)));
    }

    fn take(&mut self, now: Micros, slot: u32, reason: &'static str) -> Option<Conn<LINK_BLOCKS>> {
        let link = self.table.remove(slot)?;
        let peer = link.data.peer;
        if self.by_node.get(&peer.node) == Some(&slot) {
            self.by_node.remove(&peer.node);
            if let Some(life) = self.lives.get_mut(&peer.node) {
                life.at = now;
            }
            if reason == UNUSED {
                self.past.remove(&peer.node);
            } else if let Some(past) = self.past.get_mut(&peer.node) {
                past.fall(link.conn.heard_at);
            }
            self.counters.links_down += u64::from(reason != UNUSED);
            self.changes.push_back(LinkChange::Down { slot, peer, reason });
        }
        if let Some(dial) = self.dials.get_mut(&peer.node) {
            dial.at = now;
        }
        Some(link.conn)
    }

    fn make(&mut self, now: Micros, node: &mut Node, accepted: &Accepted) -> Option<u32> {
        let (peer, offer) = Identity::read(&accepted.payload)?;
        if let Some((node, listed)) = accepted.proved {
            if (peer.node, peer.role) != (node, listed.role) {
                self.door.refuse(node, Stranger::Impostor);
                return None;
            }
        }
        if peer.node == node.me.node || self.is_over(&peer) {
            self.counters.link_refused_epoch += 1;
            return None;
        }
        let version = match node.versions.choose(offer) {
            Ok(version) => version,
            Err(theirs) => {
                self.door.refuse_version(now, accepted);
                // A replayed hello may cause this any number of times.
                if self.differed_at.is_none_or(|at| now >= at + STRANGER_TOLD) {
                    self.differed_at = Some(now);
                    let (node, role) = (peer.node, peer.role);
                    let told = theirs.map(|theirs| LinkChange::Differs { node, role, theirs });
                    self.changes.extend(told);
                }
                return None;
            }
        };
        if self.unproven.len() >= UNPROVEN_MAX {
            self.forget_unproven(now, true);
        }
        let random = node.secret_u32();
        let log_bytes = self.log_bytes;
        let slot = self.table.insert(random, |id| {
            let conn = Conn::new(
                id,
                accepted.initiator,
                accepted.socket,
                accepted.from,
                accepted.secret.clone(),
                false,
                accepted.key_id,
                log_bytes,
                now,
            );
            (
                conn,
                Link {
                    peer,
                    version,
                    proven: false,
                    probe: false,
                    loss: Loss::default(),
                    token: None,
                    made_at: now,
                    key: accepted.proved.map(|(_, listed)| listed.key),
                    ends: None,
                },
            )
        });
        self.unproven.push_back(slot);
        Some(slot)
    }

    fn forget_unproven(&mut self, now: Micros, one: bool) {
        let mut forced = one;
        while let Some(slot) = self.unproven.front().copied() {
            match self.table.get(slot) {
                Some(link) if !link.data.proven => {
                    if !forced && now < link.data.made_at + UNPROVEN_LIFE {
                        return;
                    }
                    forced = false;
                    self.table.remove(slot);
                }
                _ => {}
            }
            self.unproven.pop_front();
        }
    }

    /// When a link next needs time; `now` at the earliest.
    fn due(&self, now: Micros, slot: u32) -> Option<Micros> {
        let link = self.table.get(slot).filter(|link| link.data.proven)?;
        let at = ping_at(&link.conn).min(link.conn.heard_at + DEAD_AFTER);
        let at = link.data.ends.map_or(at, |(ends, _)| ends.min(at));
        Some(link.conn.deadline().map_or(at, |due| due.min(at)).max(now))
    }

    fn reschedule(&mut self, now: Micros, slot: u32) {
        self.table.schedule(slot, self.due(now, slot));
    }

    /// Runs the timers due by `now`: pings, probes, losses, dials, waiting handshakes.
    pub fn expire(&mut self, now: Micros, node: &mut Node) {
        self.probed.clear();
        while let Some(slot) = self.table.pop_due(now) {
            let Some(link) = self.table.get_mut(slot) else { continue };
            if now >= link.conn.heard_at + DEAD_AFTER {
                self.lose(now, slot, "silent");
                continue;
            }
            if let Some((_, why)) = link.data.ends.filter(|(at, _)| now >= *at) {
                let dropped = why == Ends::KeyDropped;
                self.counters.links_key_dropped += u64::from(dropped);
                self.counters.links_shut_out += u64::from(!dropped);
                self.end(now, slot, why.name());
                continue;
            }
            let mut ready = false;
            if link.conn.flow.timeout(now) || now >= ping_at(&link.conn) {
                link.conn.ask_status();
                ready = true;
            }
            if link.conn.tail_due(now) {
                link.data.probe = true;
                self.probed.push(slot);
                ready = true;
            }
            if ready || link.conn.control_due(now) {
                self.table.mark(slot);
            }
            // A due datagram that is not sent yet must not cause a busy loop: look again in a millisecond.
            self.reschedule(now + 1_000, slot);
        }
        self.forget_unproven(now, false);
        while self.renewed.front().is_some_and(|(_, at)| now >= at + DEAD_AFTER) {
            self.renewed.pop_front();
        }
        self.dial_due(now, node);
        self.accept(now, node);
    }

    fn dial_due(&mut self, now: Micros, node: &mut Node) {
        let payload = node.me.with(&node.versions.offer());
        let due: Vec<u32> = self
            .dials
            .iter()
            .filter(|(_, dial)| now >= dial.at)
            .map(|(target, _)| *target)
            .collect();
        for target in due {
            if !self.wanting(target) {
                continue;
            }
            let Some(dial) = self.dials.get_mut(&target) else {
                continue;
            };
            if dial.knock.is_none() {
                let (key_id, secret) = &self.cluster.current;
                let allow = self.cluster.allow.as_ref();
                let listed = match allow.map_or(Ok(None), |allow| allow.dials(target, dial.role)) {
                    Ok(listed) => listed,
                    Err(_) => {
                        dial.at = now + DIAL_MAX;
                        if !dial.told {
                            dial.told = true;
                            self.counters.links_unlisted += 1;
                            let (node, role) = (target, dial.role);
                            self.changes.push_back(LinkChange::Unlisted { node, role });
                        }
                        continue;
                    }
                };
                let id = self.table.reserve(node.secret_u32());
                let mut knock = |key| Knock::new(id, key, *key_id, &payload, node.entropy.as_mut());
                dial.knock = Some(match allow.zip(listed) {
                    Some((allow, listed)) => {
                        let (own, peer) = (&allow.own, &listed.key);
                        knock(InitiatorKey::Node { secret, own, peer }).of_node(node.me.node, secret, *listed)
                    }
                    _ => knock(InitiatorKey::Link(secret)),
                });
            }
            dial.due = true;
            dial.at = now + dial.wait + node.dice.below(dial.wait / 4 + 1);
            dial.wait = (dial.wait * 2).min(DIAL_MAX);
            if dial.answered_at.is_some_and(|at| now >= at + REFUSED_AFTER) && !dial.told {
                dial.told = true;
                self.counters.links_refused += 1;
                let (node, role) = (target, dial.role);
                self.changes.push_back(LinkChange::Refused { node, role });
            }
        }
    }

    fn accept(&mut self, now: Micros, node: &mut Node) {
        let (me, versions) = (node.me, node.versions);
        let payload = |said: &[u8]| me.with(&versions.answer(Identity::read(said).map_or(&[], |(_, offer)| offer)));
        while let Some(accepted) = self.door.accept(now, payload, node.entropy.as_mut()) {
            if let Some(slot) = self.make(now, node, &accepted) {
                let id = self.table.get(slot).map_or(0, |link| link.conn.id);
                self.door.answer(now, &accepted, id);
            }
        }
        if let Some((node, why)) = self.door.stranger() {
            if self.strangers.get(&why).is_none_or(|at| now >= at + STRANGER_TOLD) {
                self.strangers.insert(why, now);
                self.changes.push_back(LinkChange::Stranger { node, why });
            }
        }
    }

    /// Fills the slice with datagrams outside connections: replies and hellos. `true`: more waits.
    pub fn transmit(&mut self, now: Micros, node: &mut Node, outbox: &mut Outbox) -> bool {
        self.accept(now, node);
        self.door.transmit(outbox);
        while outbox.room() > 0 {
            let Some((mut conn, code)) = self.closing.pop_front() else {
                break;
            };
            conn.send(now, &mut node.keys, node.stamp, outbox, node.payload, |writer, _| {
                append(writer, FrameKind::CLOSE, 0, |writer| !writer.u8(code as u8).full());
                false
            });
        }
        for dial in self.dials.values_mut().filter(|dial| dial.due) {
            if outbox.room() == 0 {
                return true;
            }
            dial.due = false;
            if let Some(knock) = &dial.knock {
                knock.hello(LINK_SOCKET, dial.addr, node.payload, outbox);
            }
        }
        self.door.has_replies() || self.door.waits() || !self.closing.is_empty()
    }

    /// Sends one datagram on a link: control, then the frames of `fill`.
    pub fn send(
        &mut self,
        now: Micros,
        node: &mut Node,
        slot: u32,
        outbox: &mut Outbox,
        fill: impl FnOnce(&mut crate::codec::Writer<'_>, u64) -> bool,
    ) -> bool {
        let Some(link) = self.table.get_mut(slot) else {
            return false;
        };
        let sent = link
            .conn
            .send(now, &mut node.keys, node.stamp, outbox, node.payload, fill);
        self.reschedule(now, slot);
        sent
    }

    /// When [`Links::expire`] is due.
    pub fn deadline(&self) -> Option<Micros> {
        let dial = self
            .dials
            .iter()
            .filter(|(node, _)| self.wanting(**node))
            .map(|(_, dial)| dial.at)
            .min();
        let unproven = self
            .unproven
            .front()
            .and_then(|slot| self.table.get(*slot))
            .map(|link| link.data.made_at + UNPROVEN_LIFE);
        let waits = (self.door.waits() || !self.changes.is_empty()).then_some(0);
        [self.table.deadline(), dial, unproven, waits]
            .into_iter()
            .flatten()
            .min()
    }
}

/// When an idle link sends its next ping.
fn ping_at(conn: &Conn<LINK_BLOCKS>) -> Micros {
    let unanswered = conn.sent_at >= conn.heard_at + PING_AGAIN;
    conn.sent_at + if unanswered { PING_AGAIN } else { PING_IDLE }
}

/// Bytes that a datagram of `payload` bytes has for frames.
pub const fn frames_max(payload: usize) -> usize {
    payload - HEADER - crate::seal::TAG
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allow::{AllowList, Listed};
    use crate::door::DoorKey;
    use crate::fixtures::{cluster, me, Zeros, FRONT, INDEX, STORE};
    use crate::keys::ServerKey;
    use crate::machine::Entropy;
    use crate::seal::Secret;
    use crate::wire::frame::{FrameKinds, Frames};

    fn links() -> Links {
        let key = DoorKey::Cluster(Box::new(cluster()));
        Links::new(
            Door::new(key, ResetSecret::new([1; 32]), &mut Zeros),
            cluster(),
            1 << 20,
        )
    }

    /// Entropy that counts up from a start value.
    struct Counted(u8);

    impl Entropy for Counted {
        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.iter_mut().for_each(|byte| {
                self.0 = self.0.wrapping_mul(5).wrapping_add(3);
                *byte = self.0;
            });
        }
    }

    /// A link to node 9, proven.
    fn linked(links: &mut Links, id: u32, epoch: u32) -> (u32, Identity) {
        linked_to(links, 0, id, 9, epoch)
    }

    fn linked_to(links: &mut Links, now: Micros, id: u32, node: u32, epoch: u32) -> (u32, Identity) {
        let peer = Identity {
            node,
            role: INDEX,
            epoch,
        };
        let link = Link {
            peer,
            version: 1,
            proven: false,
            probe: false,
            loss: Loss::default(),
            token: None,
            made_at: now,
            key: None,
            ends: None,
        };
        let secret = Secret::new([1; 16]);
        let conn = |id| Conn::new(id, 1, 0, Addr::default(), secret, false, 1, 1_000, now);
        let slot = links.table.insert(id, |id| (conn(id), link));
        links.prove(now, slot);
        (slot, peer)
    }

    /// One of two nodes without traffic of their own.
    struct End {
        links: Links,
        node: Node,
        addr: Addr,
        seen: Vec<LinkChange>,
    }

    impl End {
        fn new(number: u32, role: Role) -> Self {
            let mut me = me(role);
            me.node = number;
            let addr = std::net::SocketAddr::from(([127, 0, 0, 1], number as u16)).into();
            let node = Node::new(me, 1_200, number.into(), Box::new(Counted(number as u8)));
            let (links, seen) = (links(), vec![]);
            End {
                links,
                node,
                addr,
                seen,
            }
        }

        fn transmit(&mut self, now: Micros) -> Vec<(Addr, Vec<u8>)> {
            let mut outbox = Outbox::new(false);
            self.links.transmit(now, &mut self.node, &mut outbox);
            let ready: Vec<u32> = self.links.proven().map(|(_, slot)| slot).collect();
            for slot in ready {
                self.links.send(now, &mut self.node, slot, &mut outbox, |_, _| false);
            }
            outbox
                .parcels()
                .iter()
                .map(|parcel| (parcel.to, outbox.bytes(parcel).to_vec()))
                .collect()
        }

        fn receive(&mut self, now: Micros, from: Addr, mut datagram: Vec<u8>) {
            let len = datagram.len() as u32;
            let (socket, start) = (0, 0);
            let arrival = Arrival {
                socket,
                from,
                start,
                len,
            };
            let Some((slot, len)) = self.links.receive(now, &mut self.node, arrival, &mut datagram) else {
                return;
            };
            let mut elicits = false;
            for frame in Frames::new(&datagram[HEADER..HEADER + len], FrameKinds::TRANSPORT) {
                let frame = frame.expect("a frame of ours");
                elicits |= FrameKinds::TRANSPORT.elicits(frame.kind);
                self.links.control(now, slot, &frame, &mut Records::default());
            }
            self.links.after(now, slot, elicits);
        }
    }

    /// Exchanges the nodes' datagrams for this many milliseconds.
    fn live(from: Micros, millis: u64, ends: &mut [End]) -> Micros {
        let mut now = from;
        while now < from + millis * 1_000 {
            now += 1_000;
            for at in 0..ends.len() {
                let End { links, node, addr, .. } = &mut ends[at];
                let from = *addr;
                links.expire(now, node);
                for (to, datagram) in ends[at].transmit(now) {
                    if let Some(end) = ends.iter_mut().find(|end| end.addr == to) {
                        end.receive(now, from, datagram);
                    }
                }
            }
            for end in ends.iter_mut() {
                end.seen.extend(std::iter::from_fn(|| end.links.change()));
            }
        }
        now
    }

    /// Regression: the dialling node continued a handshake forever that was over.
    #[test]
    fn a_dialled_node_is_found_after_another_role_answered_at_its_address() {
        let mut ends = [End::new(1, STORE), End::new(6, FRONT)];
        let addr = ends[1].addr;
        ends[0].links.dial(0, std::iter::once((5, INDEX, addr)));
        let now = live(0, 1_000, &mut ends);
        assert!(ends[0].links.to(6).is_none());
        ends[1] = End::new(5, INDEX);
        ends[1].addr = addr;
        let now = live(now, 10_000, &mut ends);
        assert!(ends[0].links.to(5).is_some());
        // The number and the address come back in another role.
        ends[1] = End::new(5, FRONT);
        ends[1].addr = addr;
        ends[0].links.dial(now, std::iter::once((5, FRONT, addr)));
        live(now, 10_000, &mut ends);
        let slot = ends[0].links.to(5).expect("a link");
        let role = ends[0].links.table.get(slot).map(|link| link.data.peer.role);
        assert_eq!(role, Some(FRONT));
    }

    /// A broker that dials a router.
    fn dialling() -> [End; 2] {
        let mut ends = [End::new(1, STORE), End::new(2, INDEX)];
        let router = (2, INDEX, ends[1].addr);
        ends[0].links.dial(0, std::iter::once(router));
        ends
    }

    /// Regression: a broker is gone and another one has its address. Each dial of one replaced the other's link,
    /// twenty times a second.
    #[test]
    fn a_node_at_anothers_address_keeps_its_link_and_is_reported_once() {
        let mut ends = [End::new(1, STORE), End::new(6, INDEX)];
        let addr = ends[1].addr;
        let dials = [5, 6].map(|node| (node, INDEX, addr));
        ends[0].links.dial(0, dials.into_iter());
        let mut now = live(0, 1_000, &mut ends);
        assert_eq!(ends.each_ref().map(|end| end.links.counters.links_up), [1, 1]);
        now = live(now, 20_000, &mut ends);
        assert_eq!(ends[0].told(), ["mistaken", "up"], "once");
        assert_eq!(ends.each_ref().map(|end| end.links.counters.links_up), [1, 1]);
        let asked = ends[1].links.door.counters.handshakes_accepted;
        assert!((4..=12).contains(&asked), "{asked} handshakes");
        assert!(ends[0].links.to(5).is_none());
        // The dialled broker returns to its address.
        ends[1] = End::new(5, INDEX);
        ends[1].addr = addr;
        live(now, 10_000, &mut ends);
        assert!(ends[0].links.to(5).is_some() && ends[0].links.to(6).is_none());
    }

    impl End {
        fn speaks(mut self, lowest: u8, highest: u8) -> Self {
            self.node.versions = Versions::new(lowest, highest);
            self
        }

        /// The version of its link.
        fn version(&self) -> Option<u8> {
            let (_, slot) = self.links.proven().next()?;
            self.links.table.get(slot).map(|link| link.data.version)
        }
    }

    #[test]
    fn nodes_of_two_releases_use_the_highest_version_that_both_speak() {
        for (one, other, used) in [
            ((1, 1), (1, 1), 1),
            ((1, 2), (1, 1), 1),
            ((1, 1), (1, 2), 1),
            ((1, 3), (2, 4), 3),
            ((2, 2), (1, 2), 2),
        ] {
            let mut ends = dialling().map(Some);
            let mut end = |at: usize, (lowest, highest)| ends[at].take().expect("once").speaks(lowest, highest);
            let mut ends = [end(0, one), end(1, other)];
            live(0, 500, &mut ends);
            assert_eq!(
                ends.each_ref().map(End::version),
                [Some(used); 2],
                "{one:?} dials {other:?}"
            );
        }
    }

    #[test]
    fn nodes_without_a_common_version_are_reported_once_and_link_after_an_upgrade() {
        for (one, other) in [((1, 1), (2, 3)), ((3, 4), (1, 2)), ((2, 2), (1, 1))] {
            let [dialler, dialled] = dialling();
            let (mut ends, addr) = ([dialler.speaks(one.0, one.1), dialled.speaks(other.0, other.1)], 1);
            let mut now = live(0, 9_000, &mut ends);
            assert_eq!(
                ends.each_mut().map(End::told),
                [["differs"]; 2],
                "{one:?} dials {other:?}"
            );
            assert_eq!(ends.each_ref().map(End::version), [None; 2]);
            let tries = ends[0].links.counters.links_other_version;
            assert_eq!(tries, 2, "it waits long");
            assert_eq!(ends[1].links.door.counters.refused_version, tries);
            let before = ends[addr].addr;
            ends[addr] = End::new(2, INDEX).speaks(one.0, other.1.max(one.1));
            ends[addr].addr = before;
            now = live(now, 6_000, &mut ends);
            assert_eq!(ends.each_mut().map(End::told), [["up"]; 2], "at {now}");
        }
    }

    /// Releases from before there were versions read exactly these nine bytes.
    #[test]
    fn a_node_of_the_first_version_sends_the_bytes_of_earlier_releases() {
        let [dialler, dialled] = dialling();
        let me = dialler.node.me;
        assert_eq!(me.with(&dialler.node.versions.offer()), me.to_bytes());
        assert_eq!(me.with(&dialled.node.versions.answer(&[])), me.to_bytes());
        assert_eq!(Identity::read(&me.to_bytes()), Some((me, &[][..])));
    }

    const A: (u8, [u8; 32]) = (1, [7; 32]);
    const B: (u8, [u8; 32]) = (2, [8; 32]);

    fn keys(current: (u8, [u8; 32]), other: Option<(u8, [u8; 32])>) -> ClusterKeys {
        let allow = None;
        ClusterKeys { current, other, allow }
    }

    impl End {
        fn set(&mut self, now: Micros, current: (u8, [u8; 32]), other: Option<(u8, [u8; 32])>) {
            self.links.set_cluster(now, &mut self.node, keys(current, other));
        }

        fn key(&self) -> Option<u8> {
            let (_, slot) = self.links.proven().next()?;
            self.links.table.get(slot).map(|link| link.conn.key_id())
        }

        /// Changes of links since the last call.
        fn told(&mut self) -> Vec<&'static str> {
            let seen = self.seen.drain(..).map(|change| match change {
                LinkChange::Up { .. } => "up",
                LinkChange::Down { reason, .. } => reason,
                LinkChange::Refused { .. } => "refused",
                LinkChange::Unlisted { .. } => "unlisted",
                LinkChange::Mistaken { .. } => "mistaken",
                LinkChange::Differs { .. } => "differs",
                LinkChange::Stranger { why, .. } => why.name(),
            });
            seen.collect()
        }
    }

    #[test]
    fn a_secret_is_replaced_while_links_live_and_nodes_with_only_the_old_one_are_refused() {
        let mut ends = dialling();
        let mut now = live(0, 500, &mut ends);
        assert_eq!(ends.each_mut().map(End::told), [["up"], ["up"]]);
        for at in [0, 1] {
            ends[at].set(now, A, Some(B));
            now = live(now, 1_500, &mut ends);
        }
        assert_eq!(ends.each_ref().map(End::key), [Some(1), Some(1)]);
        assert_eq!(
            ends.each_mut().map(End::told),
            [[], [] as [&str; 0]],
            "to accept one more is no reason"
        );

        ends[1].set(now, B, Some(A)); // a node that was dialled renews nothing
        now = live(now, 1_500, &mut ends);
        assert_eq!(ends[1].key(), Some(1));
        ends[0].set(now, B, Some(A));
        now = live(now, 1_500, &mut ends);
        assert_eq!(ends.each_ref().map(End::key), [Some(2), Some(2)]);
        assert_eq!(ends[0].told(), ["renewed", "up"], "never without a link");

        for at in [0, 1] {
            ends[at].set(now, B, None);
            now = live(now, 1_500 + RENEW_GRACE / 1_000, &mut ends);
        }
        assert!(ends
            .each_mut()
            .map(End::told)
            .concat()
            .iter()
            .all(|change| *change != "key dropped"));
        assert_eq!(ends.each_ref().map(|end| end.links.counters.links_key_dropped), [0, 0]);

        ends[0] = End::new(3, STORE);
        let router = (2, INDEX, ends[1].addr);
        ends[0].links.dial(now, std::iter::once(router));
        live(now, 1_000 + REFUSED_AFTER / 1_000, &mut ends);
        assert_eq!(ends[0].told(), ["refused"], "once");
        assert!(ends[1].links.door.counters.dropped_key_unknown > 0);
    }

    #[test]
    fn a_link_with_a_dropped_key_ends_at_both_ends_after_the_grace_period() {
        for (drops, other) in [(0, 1), (1, 0)] {
            let mut ends = dialling();
            let now = live(0, 500, &mut ends);
            ends.iter_mut().for_each(|end| drop(end.told()));
            ends[drops].set(now, B, None);
            let now = live(now, RENEW_GRACE / 1_000 - 10, &mut ends);
            assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
            live(now, 50, &mut ends);
            assert_eq!(
                (ends[drops].told(), ends[other].told()),
                (vec!["key dropped"], vec!["closed"])
            );
            assert_eq!(ends.each_ref().map(End::key), [None, None]);
            assert_eq!(ends[drops].links.counters.links_key_dropped, 1);
        }
    }

    #[test]
    fn the_same_id_with_another_secret_is_another_key() {
        let mut ends = dialling();
        let now = live(0, 500, &mut ends);
        for end in &mut ends {
            end.told();
            end.set(now, (1, [9; 32]), None);
        }
        live(now, 1_500, &mut ends);
        assert_eq!(ends[0].told(), ["renewed", "up"]);
        assert!(ends.iter().all(|end| end.links.proven().count() == 1));
    }

    fn own(node: u32) -> ServerKey {
        ServerKey::from_private([node as u8 + 100; 32])
    }

    /// A list of these nodes, as the node with this key holds it.
    fn list(demand: Demand, mine: u32, nodes: &[(u32, Role)]) -> ClusterKeys {
        let listed = |(node, role): &(u32, Role)| {
            let (role, key) = (*role, own(*node).public());
            (*node, Listed { role, key })
        };
        let allow = Some(AllowList {
            own: own(mine),
            nodes: nodes.iter().map(listed).collect(),
            demand,
        });
        ClusterKeys { allow, ..keys(A, None) }
    }

    const BROKER: (u32, Role) = (1, STORE);
    const ROUTER: (u32, Role) = (2, INDEX);
    const GATEWAY: (u32, Role) = (3, FRONT);
    const OTHER: (u32, Role) = (4, FRONT);
    const ALL: [(u32, Role); 4] = [BROKER, ROUTER, GATEWAY, OTHER];

    impl End {
        fn know(&mut self, now: Micros, keys: ClusterKeys) {
            self.links.set_cluster(now, &mut self.node, keys);
        }

        /// A node that has its listed key.
        fn listed((node, role): (u32, Role)) -> Self {
            let mut end = End::new(node, role);
            end.know(0, list(Demand::Required, node, &ALL));
            end
        }

        fn dials(&mut self, now: Micros, other: &End) {
            let Identity { node, role, .. } = other.node.me;
            self.links.dial(now, std::iter::once((node, role, other.addr)));
        }

        fn linked(&self) -> Vec<u32> {
            self.links.proven().map(|(node, _)| node).collect()
        }

        fn refused(&self) -> u64 {
            self.links.door.counters.dropped_identity
        }
    }

    #[test]
    fn a_node_removed_from_the_list_is_shut_out_at_once_and_others_keep_their_links() {
        let mut ends = [BROKER, ROUTER, GATEWAY, OTHER].map(End::listed);
        let [broker, router, gateway, other] = &mut ends;
        broker.dials(0, router);
        gateway.dials(0, router);
        other.dials(0, router);
        let mut now = live(0, 500, &mut ends);
        assert_eq!(ends[1].linked(), [1, 3, 4]);
        ends.iter_mut().for_each(|end| drop(end.told()));

        ends[1].know(now, list(Demand::Required, 2, &[BROKER, ROUTER, OTHER]));
        now = live(now, 50, &mut ends);
        assert_eq!((ends[1].linked(), ends[2].linked()), (vec![1, 4], vec![]));
        assert_eq!(ends[1].links.counters.links_shut_out, 1);
        now = live(now, 3_000 + REFUSED_AFTER / 1_000, &mut ends);
        assert_eq!(
            ends[1].told(),
            ["shut out", "not listed"],
            "once, however often it comes"
        );
        assert_eq!(ends[2].told(), ["closed", "refused"]);
        assert!(ends[1].refused() > 1);
        for quiet in [0, 3] {
            assert_eq!(ends[quiet].told(), [] as [&str; 0]);
        }

        ends[1].know(now, list(Demand::Required, 2, &ALL));
        live(now, 500, &mut ends);
        assert_eq!(ends[1].linked(), [1, 3, 4], "a relisted node is admitted again");
    }

    #[test]
    fn the_clusters_secret_alone_or_anothers_key_makes_no_link() {
        let liar = |number, role, mine| {
            let mut end = End::new(number, role);
            end.know(0, list(Demand::Offered, mine, &ALL));
            end
        };
        let mut plain = End::new(3, FRONT);
        plain.know(0, keys(A, None));
        let mut meek = End::new(3, FRONT);
        meek.know(0, list(Demand::Accepted, 3, &ALL));
        let cases = [
            (plain, "no identity"),
            (meek, "no identity"),
            (liar(3, FRONT, 9), "another key"),
            (liar(4, FRONT, 3), "another key"),
            (liar(3, STORE, 3), "another key"),
            (liar(1, STORE, 3), "another key"),
            (liar(9, FRONT, 9), "not listed"),
        ];
        for (stranger, why) in cases {
            let me = stranger.node.me;
            let mut ends = [stranger, End::listed(ROUTER)];
            let [stranger, router] = &mut ends;
            stranger.dials(0, router);
            live(0, 200 + REFUSED_AFTER / 1_000, &mut ends);
            assert_eq!(ends.each_ref().map(End::linked), [[], [] as [u32; 0]], "{me:?}");
            assert_eq!(ends[1].told(), [why], "{me:?}");
            assert!(ends[1].refused() > 0);
        }
    }

    #[test]
    fn a_dialled_node_must_have_its_listed_key() {
        let other_key = |demand, mine| {
            let mut end = End::new(2, INDEX);
            end.know(0, list(demand, mine, &ALL));
            end
        };
        let mut plain = End::new(2, INDEX);
        plain.know(0, keys(A, None));
        let mut ahead = End::new(5, INDEX);
        ahead.addr = other_key(Demand::Required, 2).addr;
        ahead.know(0, list(Demand::Required, 2, &ALL)); // it has a listed key, but claims another node's number
        for dialled in [
            plain,
            other_key(Demand::Required, 3),
            other_key(Demand::Offered, 1),
            ahead,
        ] {
            let mut ends = [End::listed(BROKER), dialled];
            let router = (2, INDEX, ends[1].addr);
            ends[0].links.dial(0, std::iter::once(router));
            live(0, 500 + REFUSED_AFTER / 1_000, &mut ends);
            let who = ends[1].node.me;
            assert_eq!(ends[0].linked(), [] as [u32; 0], "{who:?}");
            assert_eq!(ends[0].told(), ["refused"], "{who:?}");
        }
        let mut ends = [End::listed(BROKER), End::listed(GATEWAY)];
        let as_router = (3, INDEX, ends[1].addr);
        ends[0].links.dial(0, std::iter::once(as_router));
        live(0, 1_000, &mut ends);
        assert_eq!(
            ends[0].told(),
            ["unlisted"],
            "the key of a gateway is that of no router"
        );
        assert_eq!(ends[0].links.counters.links_unlisted, 1);
        assert_eq!(ends[1].links.counters.link_datagrams_received, 0);
    }

    #[test]
    fn a_replayed_hello_replaces_no_link() {
        let mut ends = [End::listed(GATEWAY), End::listed(ROUTER)];
        let [gateway, router] = &mut ends;
        gateway.dials(0, router);
        let (mut now, mut hellos) = (0, vec![]);
        while router.linked().is_empty() {
            now += 1_000;
            gateway.links.expire(now, &mut gateway.node);
            for (_, datagram) in gateway.transmit(now) {
                let hello = Header::read(&datagram).is_ok_and(|header| header.kind == DatagramKind::Hello);
                hellos.extend(hello.then(|| datagram.clone()));
                router.receive(now, gateway.addr, datagram);
            }
            for (_, datagram) in router.transmit(now) {
                gateway.receive(now, router.addr, datagram);
            }
        }
        let hello = hellos.pop().expect("the one with a cookie");
        now = live(now, 500, &mut ends);
        ends.iter_mut().for_each(|end| drop(end.told()));
        let from = ends[0].addr;
        for _ in 0..3 {
            ends[1].receive(now, from, hello.clone());
            now = live(now, 500, &mut ends);
        }
        assert!(ends[1].links.door.counters.handshakes_accepted > 3);
        assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
        assert_eq!(ends.each_ref().map(End::linked), [[2], [3]]);

        ends[1].know(now, list(Demand::Required, 2, &[ROUTER]));
        live(now, 50, &mut ends);
        let accepted = ends[1].links.door.counters.handshakes_accepted;
        ends[1].receive(now, from, hello);
        live(now, 500, &mut ends);
        assert_eq!(ends[1].links.door.counters.handshakes_accepted, accepted);
    }

    #[test]
    fn identities_are_introduced_and_removed_in_steps_without_losing_a_link() {
        let mut ends = dialling();
        let mut now = live(0, 500, &mut ends);
        ends.iter_mut().for_each(|end| drop(end.told()));
        let demands = [Demand::Accepted, Demand::Offered, Demand::Required];
        let there = demands.into_iter().chain([Demand::Offered, Demand::Accepted]);
        for demand in there {
            for at in [1, 0] {
                ends[at].know(now, list(demand, at as u32 + 1, &ALL));
                now = live(now, 1_500 + RENEW_GRACE / 1_000, &mut ends);
            }
            let proved = ends[0].links.proven().all(|(_, slot)| {
                let link = ends[0].links.table.get(slot);
                link.is_some_and(|link| link.data.key == Some(own(2).public()))
            });
            let told = ends.each_mut().map(End::told);
            if demand == Demand::Offered && told[0].is_empty() {
                assert!(proved, "on the way back");
            } else {
                let renewed = if demand == Demand::Offered {
                    vec!["renewed", "up"]
                } else {
                    vec![]
                };
                assert_eq!(told, [renewed.clone(), renewed], "{demand:?}");
            }
        }
        for end in &mut ends {
            end.know(now, keys(A, None));
        }
        live(now, 1_500 + RENEW_GRACE / 1_000, &mut ends);
        assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
    }

    #[test]
    fn a_link_without_identity_ends_if_one_of_its_ends_requires_proof() {
        let mut ends = dialling();
        let now = live(0, 500, &mut ends);
        ends.iter_mut().for_each(|end| drop(end.told()));
        ends[1].know(now, list(Demand::Required, 2, &ALL));
        let now = live(now, RENEW_GRACE / 1_000 - 10, &mut ends);
        assert_eq!(ends[1].linked(), [1], "it has time to prove itself");
        live(now, 200, &mut ends);
        assert_eq!(
            ends[1].told(),
            ["no identity", "no identity"],
            "the link, and who comes again without"
        );
        assert_eq!(ends[1].linked(), [] as [u32; 0]);
    }

    #[test]
    fn dropping_the_proof_requirement_keeps_links() {
        let mut ends = dialling();
        let now = live(0, 500, &mut ends);
        ends.iter_mut().for_each(|end| drop(end.told()));
        ends[1].know(now, list(Demand::Required, 2, &ALL));
        let now = live(now, RENEW_GRACE / 2_000, &mut ends);
        ends[1].know(now, list(Demand::Offered, 2, &ALL));
        live(now, 2 * RENEW_GRACE / 1_000, &mut ends);
        assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
    }

    #[test]
    fn the_secret_is_replaced_while_nodes_prove_identities() {
        let mut ends = [BROKER, ROUTER].map(End::listed);
        let [broker, router] = &mut ends;
        broker.dials(0, router);
        let mut now = live(0, 500, &mut ends);
        ends.iter_mut().for_each(|end| drop(end.told()));
        for (current, other) in [(A, Some(B)), (B, Some(A)), (B, None)] {
            for at in [1, 0] {
                let allow = list(Demand::Required, at as u32 + 1, &ALL).allow;
                ends[at].know(
                    now,
                    ClusterKeys {
                        allow,
                        ..keys(current, other)
                    },
                );
                now = live(now, 1_500 + RENEW_GRACE / 1_000, &mut ends);
            }
        }
        assert_eq!(ends.each_ref().map(End::key), [Some(2), Some(2)]);
        assert_eq!(ends.each_mut().map(End::told), [["renewed", "up"], ["renewed", "up"]]);
        let proved = |end: &End| {
            end.links
                .proven()
                .all(|(_, slot)| end.links.table.get(slot).is_some_and(|link| link.data.key.is_some()))
        };
        assert!(ends.iter().all(proved));

        let allow = list(Demand::Required, 2, &[ROUTER]).allow;
        ends[1].know(now, ClusterKeys { allow, ..keys(B, None) });
        live(now, 500, &mut ends);
        assert_eq!(ends[1].linked(), [] as [u32; 0]);
    }

    #[test]
    fn nodes_that_dial_each_other_at_once_keep_one_link() {
        let mut ends = [BROKER, ROUTER].map(End::listed);
        for (at, other) in [(0, 1), (1, 0)] {
            let Identity { node, role, .. } = ends[other].node.me;
            let target = (node, role, ends[other].addr);
            ends[at].links.dial(0, std::iter::once(target));
        }
        let now = live(0, 2_000, &mut ends);
        ends.iter_mut().for_each(|end| drop(end.told()));
        live(now, 5_000, &mut ends);
        assert_eq!(ends.each_mut().map(End::told), [[], [] as [&str; 0]]);
        assert_eq!(ends.each_ref().map(End::linked), [[2], [1]]);
    }

    /// Nodes that prove an identity cost more multiplications, so fewer of their handshakes are answered per look.
    #[test]
    fn fewer_expensive_handshakes_are_answered_per_look() {
        let mut end = End::listed(ROUTER);
        let (secret, owner, addr) = (A.1, own(3), End::new(3, FRONT).addr);
        let payload = Identity {
            node: 3,
            role: FRONT,
            epoch: 1,
        }
        .to_bytes();
        let mut outbox = crate::machine::Outbox::new(false);
        for id in 1..=10 {
            let key = InitiatorKey::Node {
                secret: &secret,
                own: &owner,
                peer: &own(2).public(),
            };
            let listed = Listed {
                role: INDEX,
                key: own(2).public(),
            };
            let mut knock = Knock::new(id, key, 1, &payload, &mut Counted(id as u8)).of_node(3, &secret, listed);
            for _ in 0..2 {
                outbox.clear();
                knock.hello(0, addr, 1_200, &mut outbox);
                let hello = outbox.bytes(&outbox.parcels()[0]).to_vec();
                end.receive(id, addr, hello);
                for (_, datagram) in end.transmit(0) {
                    knock.cookie(&datagram);
                }
            }
        }
        let before = end.links.door.counters.handshakes_accepted;
        end.links.expire(1_000_000, &mut end.node);
        let accepted = end.links.door.counters.handshakes_accepted - before;
        assert_eq!(accepted, crate::door::HANDSHAKES_A_LOOK as u64 / 2);
    }

    #[test]
    fn a_link_that_has_no_more_use_is_no_loss_at_either_end() {
        let mut ends = dialling();
        let now = live(0, 500, &mut ends);
        ends.iter_mut().for_each(|end| drop(end.told()));
        ends[0].links.dial(now, std::iter::empty());
        ends[0].links.hang_up(now, 2);
        let now = live(now, 5_000, &mut ends);
        assert_eq!(ends.each_mut().map(End::told), [["unused"], ["unused"]]);
        for end in &ends {
            assert_eq!((end.linked(), end.links.counters.links_down), (vec![], 0));
            assert_eq!(end.links.lost(now).count(), 0);
        }
    }

    #[test]
    fn a_replaced_link_is_reported_lost_with_its_own_slot() {
        let mut links = links();
        let (slot, peer) = linked(&mut links, 5, 1);
        assert_eq!(links.change(), Some(LinkChange::Up { slot, peer }));
        let (next, again) = linked(&mut links, 6, 2);
        let reason = "replaced";
        assert_eq!(links.change(), Some(LinkChange::Down { slot, peer, reason }));
        assert_eq!(
            links.change(),
            Some(LinkChange::Up {
                slot: next,
                peer: again
            })
        );
    }

    /// As many nodes as are remembered come and go, one a second; a returning node must match its remembered life.
    fn after_as_many_as_are_remembered(links: &mut Links) -> Micros {
        for node in 100..100 + NODES_MAX as u32 {
            let now = Micros::from(node) * 1_000_000;
            let (slot, _) = linked_to(links, now, node, node, 5);
            assert_eq!(links.to(node), Some(slot));
            links.lose(now, slot, "closed");
        }
        (100 + NODES_MAX as Micros) * 1_000_000
    }

    #[test]
    fn a_new_node_replaces_the_one_gone_for_longest() {
        let mut links = links();
        let now = after_as_many_as_are_remembered(&mut links);
        let (slot, _) = linked_to(&mut links, now, 1, 9, 1);
        assert_eq!((links.to(9), links.counters.link_refused_full), (Some(slot), 0));
        assert_eq!((links.lives.len(), links.past.len()), (NODES_MAX, NODES_MAX));
        assert_eq!((links.epoch_of(100), links.epoch_of(101)), (None, Some(5)));
        linked_to(&mut links, now, 2, 101, 4);
        assert_eq!((links.to(101), links.counters.link_refused_epoch), (None, 1));
    }

    #[test]
    fn linked_and_placed_nodes_are_never_forgotten() {
        let mut links = links();
        let now = after_as_many_as_are_remembered(&mut links);
        links.place([100, 102].into_iter());
        linked_to(&mut links, now, 1, 101, 6);
        linked_to(&mut links, now, 2, 9, 1);
        let known = [100, 101, 102, 103].map(|node| links.epoch_of(node));
        assert_eq!(known, [Some(5), Some(6), Some(5), None]);
        links.place(100..100 + NODES_MAX as u32);
        linked_to(&mut links, now, 3, 8, 1);
        assert_eq!((links.to(8), links.counters.link_refused_full), (None, 1));
    }

    #[test]
    fn a_link_whose_log_is_full_is_given_up() {
        let mut links = links();
        let (slot, peer) = linked(&mut links, 5, 1);
        assert!(matches!(links.change(), Some(LinkChange::Up { .. })));
        let mut told = 0;
        while links.log(0, slot, &[200]).is_some() {
            told += 1;
        }
        assert!((10..40).contains(&told), "{told} records of 33 B in 1,000 B");
        let reason = "log full";
        assert_eq!(links.change(), Some(LinkChange::Down { slot, peer, reason }));
        assert_eq!((links.to(9), links.counters.links_log_full), (None, 1));
        assert_eq!(links.log(0, slot, &[200]), None);
        assert_eq!((links.change(), links.counters.links_log_full), (None, 1), "once");
    }
}
