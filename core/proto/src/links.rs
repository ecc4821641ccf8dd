//! Links with other roles: dialling, accepting, proving, keeping alive, losing.
//!
//! Owns the table of links, the door before them and the dials. Knows which node a link leads to, not what is said on it:
//! frames that are not control come back to the role.

use std::collections::{BTreeMap, VecDeque};

use crate::conn::{Conn, Control, Reject};
use crate::door::{reset_token, Accepted, Door, Knock};
use crate::handshake::{same, ClusterKeys, InitiatorKey};
use crate::limits::NODES_MAX;
use crate::machine::{Addr, Arrival, Micros, Outbox, SocketId};
use crate::node::{Identity, Node};
use crate::past::{Loss, Past};
use crate::planted::{self, Bug};
use crate::table::Table;
use crate::wire::header::{DatagramKind, Header, HEADER};
use crate::wire::record::Record;
use crate::wire::{Frame, Role};

/// Blocks of a link's replay window: 8,192 datagrams.
pub const LINK_BLOCKS: usize = 128;
/// A link on which nothing else leaves says so after this, and again so soon while nothing is heard.
pub const PING_IDLE: Micros = 200_000;
pub const PING_AGAIN: Micros = 100_000;
/// A link on which nothing was heard for this long is dead; eight pings were lost or the peer stands still.
pub const DEAD_AFTER: Micros = 1_000_000;
/// Hellos of one dial follow each other after this, doubled up to the second figure.
pub const DIAL_FIRST: Micros = 50_000;
pub const DIAL_MAX: Micros = 250_000;
/// Handshakes that wait for their first sealed datagram; older ones make way.
pub const UNPROVEN_LIFE: Micros = 5_000_000;
/// Control records that a link may have unacknowledged: a snapshot of 4 M rooms (`ROOMS_MAX` of every role) at 66 B, and
/// what changes meanwhile.
pub const LINK_LOG_BYTES: usize = 288 << 20;
/// A node that dialled us and has gone is told of for so long: it may come back, or be gone for good.
const LOST_TOLD: Micros = 3_600_000_000;
/// Unproven links at once.
const UNPROVEN_MAX: usize = 256;

crate::counters! {
    /// What happened on links.
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
        /// Links refused: too many nodes.
        link_refused_full,
        /// Links that came up.
        links_up,
        /// Links that were lost.
        links_down,
        /// Links given up: more was to be told than their logs hold.
        links_log_full,
    }
}

/// What a link leads to.
pub struct Link {
    pub peer: Identity,
    /// A sealed datagram came from the peer: it is who it says, now.
    pub proven: bool,
    /// The tail is to be probed: the role sends heads with the next datagram.
    pub probe: bool,
    /// Of what we sent.
    pub loss: Loss,
    token: Option<[u8; 16]>,
    made_at: Micros,
}

/// A link came or went.
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
}

struct Dial {
    addr: Addr,
    role: Role,
    knock: Option<Knock>,
    at: Micros,
    wait: Micros,
    due: bool,
}

/// All links of a node, over one socket.
pub struct Links {
    pub table: Table<LINK_BLOCKS, Link>,
    pub door: Door,
    pub counters: LinkCounters,
    socket: SocketId,
    cluster: ClusterKeys,
    by_node: BTreeMap<u32, u32>,
    epochs: BTreeMap<u32, u32>,
    past: BTreeMap<u32, Past>,
    dials: BTreeMap<u32, Dial>,
    changes: VecDeque<LinkChange>,
    unproven: VecDeque<u32>,
    /// Bytes that the link socket's receive buffer really holds.
    pub buffer: u32,
}

impl Links {
    pub fn new(door: Door, cluster: ClusterKeys, socket: SocketId) -> Self {
        Links {
            table: Table::default(),
            door,
            counters: LinkCounters::default(),
            socket,
            cluster,
            by_node: BTreeMap::new(),
            epochs: BTreeMap::new(),
            past: BTreeMap::new(),
            dials: BTreeMap::new(),
            changes: VecDeque::new(),
            unproven: VecDeque::new(),
            buffer: 212_992,
        }
    }

    /// The proven link to `node`.
    pub fn to(&self, node: u32) -> Option<u32> {
        self.by_node.get(&node).copied()
    }

    /// Since when there is a proven link to `node`.
    pub fn since(&self, node: u32) -> Option<Micros> {
        let link = self.table.get(self.to(node)?)?;
        Some(link.data.made_at)
    }

    /// When something was last heard on the proven link to `node`.
    pub fn heard_at(&self, node: u32) -> Option<Micros> {
        let link = self.table.get(self.to(node)?)?;
        Some(link.conn.heard_at)
    }

    /// Proven links, by node.
    pub fn proven(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.by_node.iter().map(|(node, slot)| (*node, *slot))
    }

    /// What is remembered of the way to `node`.
    pub fn past(&self, node: u32) -> Option<&Past> {
        self.past.get(&node)
    }

    /// Nodes to which there is no link: those that are dialled, and for a while those that dialled us.
    pub fn lost(&self, now: Micros) -> impl Iterator<Item = (u32, Role, Option<&Past>)> + '_ {
        let dialled = self.dials.iter().map(|(node, dial)| (*node, dial.role));
        let fresh = move |past: &Past| now < past.changed_at + LOST_TOLD;
        let others = self.past.iter().filter(move |(_, past)| fresh(past));
        let others = others.filter(|(node, _)| !self.dials.contains_key(node));
        let all = dialled.chain(others.map(|(node, past)| (*node, past.role)));
        all.filter(|(node, _)| !self.by_node.contains_key(node))
            .map(|(node, role)| (node, role, self.past.get(&node)))
    }

    /// The highest epoch that `node` proved.
    pub fn epoch_of(&self, node: u32) -> Option<u32> {
        self.epochs.get(&node).copied()
    }

    /// Keeps links to exactly these nodes open from our side.
    pub fn dial(&mut self, now: Micros, nodes: impl Iterator<Item = (u32, Role, Addr)>) {
        let wanted: BTreeMap<u32, (Role, Addr)> = nodes.map(|(node, role, addr)| (node, (role, addr))).collect();
        let (table, past, linked) = (&mut self.table, &mut self.past, &self.by_node);
        self.dials.retain(|node, dial| {
            let kept = wanted.get(node).is_some_and(|(_, addr)| *addr == dial.addr);
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
            });
        }
    }

    /// The next link that came or went.
    pub fn change(&mut self) -> Option<LinkChange> {
        self.changes.pop_front()
    }

    /// Takes a datagram of the link socket. `Some`: sealed frames of a proven link, with their length behind the header.
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
                Some(dial) => {
                    if dial.knock.as_mut().is_some_and(|knock| knock.cookie(datagram)) {
                        // It is there: whatever is missing from here on was lost on the way.
                        (dial.due, dial.at, dial.wait) = (true, now + DIAL_FIRST, 2 * DIAL_FIRST);
                    }
                }
                None => self.counters.link_dropped_unknown += 1,
            },
            DatagramKind::Accept => self.opened(now, arrival, &header, datagram),
            DatagramKind::Reset => self.reset(now, &header, arrival, datagram),
        }
        None
    }

    fn dial_of(&mut self, id: u64, from: Addr) -> Option<&mut Dial> {
        self.dials
            .values_mut()
            .find(|dial| dial.addr == from && dial.knock.as_ref().is_some_and(|knock| knock.id == id))
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
            self.door.unknown(now, arrival, header);
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

    /// A sealed datagram came on a link that we accepted: the peer is there and knows the secret.
    fn prove(&mut self, now: Micros, slot: u32) {
        let Some(link) = self.table.get_mut(slot) else { return };
        link.data.proven = true;
        let peer = link.data.peer;
        if self.epochs.get(&peer.node).is_some_and(|known| *known > peer.epoch) {
            self.counters.link_refused_epoch += 1;
            self.table.remove(slot);
            return;
        }
        if self.epochs.len() >= NODES_MAX && !self.epochs.contains_key(&peer.node) {
            self.counters.link_refused_full += 1;
            self.table.remove(slot);
            return;
        }
        self.epochs.insert(peer.node, peer.epoch);
        let past = self.past.entry(peer.node).or_insert(Past::new(now, peer.role));
        if let Some(replaced) = self.by_node.insert(peer.node, slot) {
            if let Some(old) = self.table.remove(replaced) {
                if old.data.peer.epoch != peer.epoch {
                    past.fall(old.conn.heard_at); // its former life ended unseen
                }
                self.counters.links_down += 1;
                self.changes.push_back(LinkChange::Down {
                    slot: replaced,
                    peer: old.data.peer,
                    reason: "replaced",
                });
            }
        }
        past.rise(now);
        self.counters.links_up += 1;
        let window = self.buffer / (self.by_node.len() as u32).max(1);
        let token = self
            .table
            .get(slot)
            .map(|link| self.door.token(link.conn.id))
            .unwrap_or_default();
        if let Some(link) = self.table.get_mut(slot) {
            link.conn.receive_window = window;
            link.conn.record(&Record::LinkReady { token });
            link.conn.ask_status();
        }
        self.table.mark(slot);
        self.reschedule(now, slot);
        self.changes.push_back(LinkChange::Up { slot, peer });
    }

    fn opened(&mut self, now: Micros, arrival: Arrival, header: &Header, datagram: &[u8]) {
        let key_id = self.cluster.current.0;
        let Some(dial) = self.dial_of(header.connection, arrival.from) else {
            self.counters.link_dropped_unknown += 1;
            return;
        };
        let role = dial.role;
        let Some(knock) = dial.knock.as_mut() else { return };
        let Some(opened) = knock.accept(datagram) else {
            self.counters.link_dropped_forged += 1;
            return;
        };
        let Some(peer) = Identity::from_bytes(&opened.payload).filter(|peer| peer.role == role) else {
            self.counters.link_dropped_frame += 1;
            return;
        };
        dial.knock = None;
        dial.wait = DIAL_FIRST;
        let conn = Conn::new(
            header.connection,
            opened.peer,
            self.socket,
            arrival.from,
            opened.secret,
            true,
            key_id,
            LINK_LOG_BYTES,
            now,
        );
        let slot = self.table.fill(
            header.connection,
            conn,
            Link {
                peer,
                proven: false,
                probe: false,
                loss: Loss::default(),
                token: None,
                made_at: now,
            },
        );
        self.prove(now, slot);
    }

    fn reset(&mut self, now: Micros, header: &Header, arrival: Arrival, datagram: &[u8]) {
        // The connection named is the peer's id: the one that we put into what we sent.
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

    /// Appends a record to a link's log. `None`: there is no such link, or its log is full. Then the link is given up: what was
    /// not told once only the snapshot on the next link can tell.
    pub fn record(&mut self, now: Micros, slot: u32, record: &Record<'_>) -> Option<u64> {
        record.encode(|bytes| self.log(now, slot, bytes))
    }

    /// The same with a record's bytes, for who tells several links the same.
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

    /// Notes a record that links exchange among themselves; others are the role's.
    pub fn link_record(&mut self, slot: u32, record: &Record<'_>) -> bool {
        if let Record::LinkReady { token } = record {
            if let Some(link) = self.table.get_mut(slot) {
                link.data.token = Some(*token);
            }
            return true;
        }
        false
    }

    /// Takes a frame that every link understands.
    pub fn control(&mut self, now: Micros, slot: u32, frame: &Frame<'_>, records: &mut Vec<Vec<u8>>) -> Control {
        let Some(link) = self.table.get_mut(slot) else {
            return Control::Done;
        };
        let control = link.conn.control_frame(now, frame, records);
        match &control {
            Control::Heard(heard) => link.data.loss.hear(&heard.status),
            Control::Closed(_) => self.lose(now, slot, "closed"),
            Control::Bad => self.counters.link_dropped_frame += 1,
            _ => {}
        }
        control
    }

    /// After the frames of one datagram: notes that they want a status, and when the link next needs time.
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
        let Some(link) = self.table.remove(slot) else { return };
        let peer = link.data.peer;
        if self.by_node.get(&peer.node) == Some(&slot) {
            self.by_node.remove(&peer.node);
            if let Some(past) = self.past.get_mut(&peer.node) {
                past.fall(link.conn.heard_at);
            }
            self.counters.links_down += 1;
            self.changes.push_back(LinkChange::Down { slot, peer, reason });
        }
        if let Some(dial) = self.dials.get_mut(&peer.node) {
            dial.at = now;
        }
    }

    fn make(&mut self, now: Micros, node: &mut Node, accepted: &Accepted) -> Option<u32> {
        let peer = Identity::from_bytes(&accepted.payload)?;
        if peer.node == node.me.node || self.epochs.get(&peer.node).is_some_and(|known| *known > peer.epoch) {
            self.counters.link_refused_epoch += 1;
            return None;
        }
        if self.unproven.len() >= UNPROVEN_MAX {
            self.forget_unproven(now, true);
        }
        let random = node.secret_u32();
        let slot = self.table.insert(random, |id| {
            let conn = Conn::new(
                id,
                accepted.initiator,
                accepted.socket,
                accepted.from,
                accepted.secret.clone(),
                false,
                accepted.key_id,
                LINK_LOG_BYTES,
                now,
            );
            (
                conn,
                Link {
                    peer,
                    proven: false,
                    probe: false,
                    loss: Loss::default(),
                    token: None,
                    made_at: now,
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

    /// When a link next needs time, `now` at the soonest.
    fn due(&self, now: Micros, slot: u32) -> Option<Micros> {
        let link = self.table.get(slot).filter(|link| link.data.proven)?;
        let at = ping_at(&link.conn).min(link.conn.heard_at + DEAD_AFTER);
        Some(link.conn.deadline().map_or(at, |due| due.min(at)).max(now))
    }

    fn reschedule(&mut self, now: Micros, slot: u32) {
        self.table.schedule(slot, self.due(now, slot));
    }

    /// Lets pass what is due: pings, probes, losses, dials, waiting handshakes.
    pub fn expire(&mut self, now: Micros, node: &mut Node) {
        while let Some(slot) = self.table.pop_due(now) {
            let Some(link) = self.table.get_mut(slot) else { continue };
            if now >= link.conn.heard_at + DEAD_AFTER && !planted::is(Bug::SilenceUnnoticed) {
                self.lose(now, slot, "silent");
                continue;
            }
            let mut ready = false;
            if link.conn.flow.timeout(now) || now >= ping_at(&link.conn) {
                link.conn.ask_status();
                ready = true;
            }
            if link.conn.tail_due(now) {
                link.data.probe = true;
                ready = true;
            }
            if ready || link.conn.control_due(now) {
                self.table.mark(slot);
            }
            // What is due but not sent yet must not spin: look again in a millisecond.
            self.reschedule(now + 1_000, slot);
        }
        self.forget_unproven(now, false);
        let payload = node.me.to_bytes();
        for (target, dial) in &mut self.dials {
            if self.by_node.contains_key(target) || now < dial.at {
                continue;
            }
            if dial.knock.is_none() {
                let id = self.table.reserve(node.secret_u32());
                let (key_id, secret) = &self.cluster.current;
                dial.knock = Some(Knock::new(
                    id,
                    InitiatorKey::Link(secret),
                    *key_id,
                    &payload,
                    node.entropy.as_mut(),
                ));
            }
            dial.due = true;
            dial.at = now + dial.wait + node.dice.below(dial.wait / 4 + 1);
            dial.wait = (dial.wait * 2).min(DIAL_MAX);
        }
        self.accept(now, node);
    }

    fn accept(&mut self, now: Micros, node: &mut Node) {
        let payload = node.me.to_bytes();
        while let Some(accepted) = self.door.accept(now, &payload, node.entropy.as_mut()) {
            if let Some(slot) = self.make(now, node, &accepted) {
                let id = self.table.get(slot).map_or(0, |link| link.conn.id);
                self.door.answer(now, &accepted, id);
            }
        }
    }

    /// Fills the slice with what stands before connections: answers and hellos. True: more waits.
    pub fn transmit(&mut self, now: Micros, node: &mut Node, outbox: &mut Outbox) -> bool {
        self.accept(now, node);
        self.door.transmit(outbox);
        for dial in self.dials.values_mut().filter(|dial| dial.due) {
            if outbox.room() == 0 {
                return true;
            }
            dial.due = false;
            if let Some(knock) = &dial.knock {
                knock.hello(self.socket, dial.addr, node.payload, outbox);
            }
        }
        self.door.has_replies() || self.door.waits()
    }

    /// Sends one datagram on a link: control, then what `fill` writes.
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

    /// When [`Links::expire`] has something next.
    pub fn deadline(&self) -> Option<Micros> {
        let dial = self
            .dials
            .iter()
            .filter(|(node, _)| !self.by_node.contains_key(node))
            .map(|(_, dial)| dial.at)
            .min();
        let unproven = self
            .unproven
            .front()
            .and_then(|slot| self.table.get(*slot))
            .map(|link| link.data.made_at + UNPROVEN_LIFE);
        let waits = self.door.waits().then_some(0);
        [self.table.deadline(), dial, unproven, waits]
            .into_iter()
            .flatten()
            .min()
    }
}

/// When a link that has nothing else to send says that it is there.
fn ping_at(conn: &Conn<LINK_BLOCKS>) -> Micros {
    let unanswered = conn.sent_at >= conn.heard_at + PING_AGAIN;
    conn.sent_at + if unanswered { PING_AGAIN } else { PING_IDLE }
}

/// Bytes of frames that a datagram of `payload` bytes has room for.
pub const fn frames_max(payload: usize) -> usize {
    payload - HEADER - crate::seal::TAG
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::DoorKey;
    use crate::fixtures::{cluster, Zeros};
    use crate::handshake::ResetSecret;
    use crate::seal::Secret;

    fn links() -> Links {
        let key = DoorKey::Cluster(Box::new(cluster()));
        Links::new(Door::new(key, ResetSecret::new([1; 32]), &mut Zeros), cluster(), 0)
    }

    /// A link to node 9, proven.
    fn linked(links: &mut Links, id: u32, epoch: u32) -> (u32, Identity) {
        let peer = Identity {
            node: 9,
            role: Role::Router,
            epoch,
        };
        let link = Link {
            peer,
            proven: false,
            probe: false,
            loss: Loss::default(),
            token: None,
            made_at: 0,
        };
        let secret = Secret::new([1; 16]);
        let conn = |id| Conn::new(id, 1, 0, Addr::default(), secret, false, 1, 1_000, 0);
        let slot = links.table.insert(id, |id| (conn(id), link));
        links.prove(0, slot);
        (slot, peer)
    }

    #[test]
    fn a_link_that_is_replaced_goes_down_under_its_own_slot() {
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

    #[test]
    fn nodes_without_end_are_not_remembered() {
        let mut links = links();
        links.epochs = (100..100 + NODES_MAX as u32).map(|node| (node, 1)).collect();
        linked(&mut links, 5, 1);
        assert_eq!((links.change(), links.counters.link_refused_full), (None, 1));
        links.epochs.insert(9, 1);
        linked(&mut links, 5, 2);
        assert!(links.change().is_some(), "who was here before may come back");
    }

    #[test]
    fn a_link_whose_log_is_full_is_given_up() {
        let mut links = links();
        let (slot, peer) = linked(&mut links, 5, 1);
        assert!(matches!(links.change(), Some(LinkChange::Up { .. })));
        let mut told = 0;
        while links.record(0, slot, &Record::Unsubscribe).is_some() {
            told += 1;
        }
        assert!((10..40).contains(&told), "{told} records of 33 B in 1,000 B");
        let reason = "log full";
        assert_eq!(links.change(), Some(LinkChange::Down { slot, peer, reason }));
        assert_eq!((links.to(9), links.counters.links_log_full), (None, 1));
        assert_eq!(links.record(0, slot, &Record::Unsubscribe), None);
        assert_eq!((links.change(), links.counters.links_log_full), (None, 1), "once");
    }
}
