//! Links with other nodes: dialling, accepting, proving, keeping alive, losing.
//!
//! Owns the table of links and the door before them; `dials`, `history` and `reports` own what the links share. Knows
//! the node at the other end of a link, not its traffic: frames that are not control are returned to the role.

mod accepting;
mod dialling;
mod dials;
mod history;
mod link;
mod reports;

use std::collections::{BTreeMap, VecDeque};

use crate::allow::{Demand, Standing};
use crate::conn::{Conn, Control, Reject};
use crate::door::{reset_token, Door};
use crate::handshake::{ClusterKeys, ResetSecret};
use crate::log::Records;
use crate::machine::{Addr, Arrival, Micros, Outbox, SocketId};
use crate::node::Node;
use crate::past::Past;
use crate::table::Table;
use crate::wire::frame::append;
use crate::wire::header::{DatagramKind, Header, HEADER};
use crate::wire::record::{ControlRecord, Encode, SystemRecord};
use crate::wire::{Code, Frame, FrameKind, Role};
use dials::Dials;
use history::History;
use link::{Ends, Link};
pub use reports::LinkChange;
use reports::Reports;

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
/// Maximum number of unproven links at once.
const UNPROVEN_MAX: usize = 256;
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

/// All links of a node, over one socket.
pub struct Links {
    pub table: Table<LINK_BLOCKS, Link>,
    pub door: Door,
    pub counters: LinkCounters,
    cluster: ClusterKeys,
    /// Slots of the proven links, by node.
    by_node: BTreeMap<u32, u32>,
    history: History,
    dials: Dials,
    reports: Reports,
    /// Slots of accepted links, oldest first, until their first sealed datagram.
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
            history: History::default(),
            dials: Dials::default(),
            reports: Reports::default(),
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
        let lost = !self.by_node.contains_key(&node);
        self.history.changed_at(node).filter(|_| lost)
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
        self.history.past(node)
    }

    /// Nodes without a link: dialled ones, and for a while those that dialled us.
    pub fn lost(&self, now: Micros) -> impl Iterator<Item = (u32, Role, Option<&Past>)> + '_ {
        let others = self.history.recent(now);
        let others = others.filter(|(node, _)| !self.dials.contains(*node));
        let all = self.dials.nodes().chain(others.map(|(node, past)| (node, past.role)));
        all.filter(|(node, _)| !self.by_node.contains_key(node))
            .map(|(node, role)| (node, role, self.history.past(node)))
    }

    /// The highest epoch that `node` proved; may be forgotten once the node is gone and not placed.
    pub fn epoch_of(&self, node: u32) -> Option<u32> {
        self.history.epoch_of(node)
    }

    /// Sets the nodes that the placement names: none of them is forgotten.
    pub fn place(&mut self, nodes: impl Iterator<Item = u32>) {
        self.history.place(nodes);
    }

    /// Keeps links to exactly these nodes open from our side.
    pub fn dial(&mut self, now: Micros, nodes: impl Iterator<Item = (u32, Role, Addr)>) {
        let wanted: BTreeMap<u32, (Role, Addr)> = nodes.map(|(node, role, addr)| (node, (role, addr))).collect();
        for (node, _) in self.dials.nodes() {
            if !wanted.contains_key(&node) && !self.by_node.contains_key(&node) {
                self.history.forget(node);
            }
        }
        let table = &mut self.table;
        self.dials.set(now, wanted, |id| table.release(id));
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
        let (table, linked) = (&mut self.table, &self.by_node);
        let dice = &mut node.dice;
        let wait = |node: u32| match linked.contains_key(&node) {
            true => dice.below(RENEW_SPREAD),
            false => 0,
        };
        self.dials.renew(now, wait, |id| table.release(id));
        let slots: Vec<u32> = self.by_node.values().chain(&self.unproven).copied().collect();
        for slot in slots {
            let Some(link) = self.table.get_mut(slot) else { continue };
            let (peer, key, proved) = (link.data.peer, link.conn.key_id(), link.data.key);
            let accepted = self.cluster.find(key);
            let accepted = accepted.is_some_and(|secret| before.find(key) == Some(secret));
            let allow = self.cluster.allow.as_ref();
            let (ends_at, why) = match allow.map_or(Standing::Keep, |allow| allow.judge(peer, proved)) {
                Standing::End => {
                    // Now, not at the next timer: its datagrams may be in the socket already.
                    self.counters.links_shut_out += u64::from(link.data.proven);
                    self.end(now, slot, "shut out");
                    continue;
                }
                Standing::Renew => (now + RENEW_GRACE, Ends::NoIdentity),
                Standing::Keep if accepted => {
                    link.data.excuse_proof();
                    continue;
                }
                Standing::Keep => (now + RENEW_GRACE, Ends::KeyDropped),
            };
            link.data.end_by(ends_at, why);
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
            link.data.is_outdated() || link.conn.key_id() != self.cluster.current.0 || unproved
        })
    }

    /// The next change of a link.
    pub fn change(&mut self) -> Option<LinkChange> {
        self.reports.pop()
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
            DatagramKind::Cookie => match self.dials.answered_by(header.connection, arrival.from) {
                Some((_, dial)) => dial.cookie(now, datagram),
                None => self.counters.link_dropped_unknown += 1,
            },
            DatagramKind::Accept => self.opened(now, node, arrival, &header, datagram),
            DatagramKind::Reset => self.reset(now, &header, arrival, datagram),
        }
        None
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
        if self.history.is_over(&peer) {
            self.counters.link_refused_epoch += 1;
            self.table.remove(slot);
            return;
        }
        if !self.history.make_place(peer.node, &self.by_node) {
            self.counters.link_refused_full += 1;
            self.table.remove(slot);
            return;
        }
        let (mut renewed, mut ended) = (false, None);
        if let Some(replaced) = self.by_node.insert(peer.node, slot) {
            if let Some(old) = self.table.remove(replaced) {
                if old.data.peer.epoch != peer.epoch {
                    ended = Some(old.conn.heard_at);
                }
                let other = (old.conn.key_id(), old.data.key) != made_with;
                renewed = old.data.peer == peer && (old.data.is_outdated() || other);
                self.counters.links_down += u64::from(!renewed);
                self.renewed.extend(renewed.then_some((old.conn.id, now)));
                self.reports.push(LinkChange::Down {
                    slot: replaced,
                    peer: old.data.peer,
                    reason: if renewed { "renewed" } else { "replaced" },
                });
            }
        }
        self.history.up(now, &peer, ended);
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
        self.reports.push(LinkChange::Up { slot, peer });
    }

    fn reset(&mut self, now: Micros, header: &Header, arrival: Arrival, datagram: &[u8]) {
        // The reset names the peer's connection id, which stands in our datagrams.
        let token = reset_token(datagram);
        let found = self.by_node.values().copied().find(|slot| {
            self.table.get(*slot).is_some_and(|link| {
                link.conn.peer == header.connection && link.conn.addr == arrival.from && link.data.is_reset_by(token)
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
                link.data.set_token(*token);
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
            let lost = (reason != UNUSED).then_some(link.conn.heard_at);
            self.history.down(now, peer.node, lost);
            self.counters.links_down += u64::from(reason != UNUSED);
            self.reports.push(LinkChange::Down { slot, peer, reason });
        }
        if let Some(dial) = self.dials.get_mut(peer.node) {
            dial.hurry(now);
        }
        Some(link.conn)
    }

    /// When a link next needs time; `now` at the earliest.
    fn due(&self, now: Micros, slot: u32) -> Option<Micros> {
        let link = self.table.get(slot).filter(|link| link.data.proven)?;
        let at = ping_at(&link.conn).min(link.conn.heard_at + DEAD_AFTER);
        let at = link.data.ends_at().map_or(at, |ends| ends.min(at));
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
            if let Some(why) = link.data.over(now) {
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
        self.dials.transmit(node.payload, outbox)
            || self.door.has_replies()
            || self.door.waits()
            || !self.closing.is_empty()
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
        let dial = self.dials.deadline(|node| self.wanting(node));
        let unproven = self
            .unproven
            .front()
            .and_then(|slot| self.table.get(*slot))
            .map(|link| link.data.made_at + UNPROVEN_LIFE);
        let waits = (self.door.waits() || !self.reports.is_empty()).then_some(0);
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
mod tests;
