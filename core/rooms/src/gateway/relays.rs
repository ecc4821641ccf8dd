//! Rooms that come by another gateway, and rooms that this one passes on to others (`broker/relays.rs`).
//!
//! The broker tells a gateway, the *child*, which other one, the *relay*, is to bring it a room. The child dials the relay and asks
//! it; once the relay has agreed, it tells the broker. The relay passes each frame on as it came, before its own members get it.
//! The child takes a room from no other gateway than the one that the broker named.
//!
//! Owns: who brings what to whom, and the frames that wait for a child. Must not know: places and repair, which stay between each
//! gateway and the broker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_transport::{append, Addr, Frame, Links, Micros, Role, Writer, FRAME};

use super::members::Members;
use super::room::Room;
use super::Gateway;
use crate::age;
use crate::role;
use crate::slots::Slots;
use crate::wire::kinds;
use crate::wire::record::Record;
use crate::wire::room::{RelayedBlock, RelayedHead, LINK_AGE_AT};
use crate::wire::StreamId;

/// Frames that wait for one child, about 300 KiB that it shares with others; the oldest makes room, and the child asks for it.
const FRAMES_MAX: usize = 256;
/// Maximum number of gateways that one gateway takes rooms from, and that it passes one room on to.
const RELAYS_MAX: usize = 256;
const CHILDREN_MAX: usize = 256;
/// A link to another gateway ends when it was of no use for this long.
const UNUSED: Micros = 10_000_000;
const UNUSED_EVERY: Micros = 1_000_000;

/// A room at a broker.
type Key = (u64, u32);

/// The gateway that is to bring a room.
struct Parent {
    relay: u32,
    role: Role,
    addr: Addr,
    /// It has agreed.
    on: bool,
}

/// Frames and heads that wait for a child.
#[derive(Default)]
struct Queue {
    frames: VecDeque<Arc<[u8]>>,
    /// Rooms whose head it is told.
    heads: BTreeSet<Key>,
}

#[derive(Default)]
pub(super) struct Relays {
    parents: BTreeMap<Key, Parent>,
    children: BTreeMap<Key, BTreeSet<u32>>,
    queues: BTreeMap<u32, Queue>,
    /// Linked gateways, and when each was last of use.
    linked: BTreeMap<u32, Micros>,
    look_at: Option<Micros>,
}

impl Relays {
    /// Whether a room of a broker comes by another gateway.
    pub fn bring(&self, room: u64, broker: u32) -> bool {
        !self.parents.is_empty() && self.parents.get(&(room, broker)).is_some_and(|parent| parent.on)
    }

    /// Whether this gateway is to bring a room of a broker.
    fn is_parent(&self, key: Key, relay: u32) -> bool {
        self.parents.get(&key).is_some_and(|parent| parent.relay == relay)
    }

    /// The relays, with their roles and addresses.
    pub fn dialled(&self) -> impl Iterator<Item = (u32, Role, Addr)> + '_ {
        self.parents
            .values()
            .map(|parent| (parent.relay, parent.role, parent.addr))
    }

    /// Whether a room of a broker is passed on.
    pub fn passes_on(&self, room: u64, broker: u32) -> bool {
        !self.children.is_empty() && self.children.contains_key(&(room, broker))
    }

    /// Whether something waits for a gateway.
    pub fn waits(&self, node: u32) -> bool {
        let queue = self.queues.get(&node);
        queue.is_some_and(|queue| !queue.frames.is_empty() || !queue.heads.is_empty())
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.look_at
    }

    /// Queues a frame for each child of a room. Returns how many are to get it, and how many older frames made room.
    fn queue(&mut self, links: &mut Links, key: Key, frame: &Arc<[u8]>) -> (u64, u64) {
        let (mut count, mut dropped) = (0, 0);
        for child in self.children.get(&key).into_iter().flatten() {
            let Some(slot) = links.to(*child) else { continue };
            let queue = self.queues.entry(*child).or_default();
            if queue.frames.len() >= FRAMES_MAX {
                queue.frames.pop_front();
                queue.heads.insert(key);
                dropped += 1;
            }
            queue.frames.push_back(frame.clone());
            links.table.mark(slot);
            count += 1;
        }
        (count, dropped)
    }

    /// The children of a room are told its head.
    pub fn heads_due(&mut self, links: &mut Links, key: Key) {
        for child in self.children.get(&key).into_iter().flatten() {
            if let Some(slot) = links.to(*child) {
                self.queues.entry(*child).or_default().heads.insert(key);
                links.table.mark(slot);
            }
        }
    }

    /// A child may lack the last of what was passed on: it is told the heads of its rooms.
    fn probe(&mut self, child: u32) {
        let keys: Vec<Key> = self
            .children
            .iter()
            .filter(|(_, children)| children.contains(&child))
            .map(|(key, _)| *key)
            .collect();
        if !keys.is_empty() {
            self.queues.entry(child).or_default().heads.extend(keys);
        }
    }

    /// A child gets a room no more.
    fn forget_child(&mut self, key: Key, child: u32) {
        if let Some(children) = self.children.get_mut(&key) {
            children.remove(&child);
            if children.is_empty() {
                self.children.remove(&key);
            }
        }
    }

    /// Writes what waits for a child, which is `away`: heads, then as many frames as fit if `free`. Returns whether anything was written, and how many
    /// frames were too long for a datagram.
    pub fn fill(
        &mut self,
        now: Micros,
        child: u32,
        (away, free): (Micros, bool),
        rooms: &Slots<u64, Room>,
        writer: &mut Writer<'_>,
    ) -> (bool, u64) {
        let head = |key: Key| head_of(rooms.named(key.0)?, key);
        let Some(queue) = self.queues.get_mut(&child) else {
            return (false, 0);
        };
        let (before, mut dropped) = (writer.len(), 0);
        append(writer, kinds::RELAYED_HEADS, 0, |writer| {
            let mut any = false;
            while writer.room() >= RelayedHead::LEN {
                let Some(key) = queue.heads.pop_first() else { break };
                if let Some(head) = head(key) {
                    head.write(writer);
                    any = true;
                }
            }
            any
        });
        while let Some(frame) = queue.frames.front().filter(|_| free) {
            if frame.len() > writer.room() {
                if writer.len() > before || !writer.is_empty() {
                    break;
                }
                dropped += 1;
            } else {
                let start = writer.len();
                writer.put(frame);
                if frame[0] == kinds::AGED_RELAYED_ROOM.code() {
                    age::pass_on(&mut writer.written()[start + LINK_AGE_AT..], now, away);
                }
            }
            queue.frames.pop_front();
        }
        (writer.len() > before, dropped)
    }
}

/// What this gateway knows of a broker's stream of a room.
fn head_of(room: &Room, key: Key) -> Option<RelayedHead> {
    let (stream, next) = room.known_of(key.1)?;
    Some(RelayedHead {
        room: room.id,
        stream,
        next,
    })
}

impl<S: Members> Gateway<S> {
    /// Dials the nodes of the placement and the relays.
    pub(super) fn dial(&mut self, now: Micros) {
        let placed = self.placement.of(role::BROKER).chain(self.placement.of(role::ROUTER));
        let placed = placed.map(|node| (node.node, node.role, node.addr));
        self.links.dial(now, self.relays.dialled().chain(placed));
    }

    /// A broker names the gateway that is to bring a room; 0: it sends the room itself.
    pub(super) fn relayed_by(&mut self, now: Micros, broker: u32, room: u64, relay: (u32, u8, Addr)) {
        let (node, code, addr) = relay;
        let key = (room, broker);
        self.forget_parent(now, key, (node > 0).then_some(node));
        let role = Role::from_u8(code).filter(|role| role::has_members(*role));
        let relays: BTreeSet<u32> = self.relays.dialled().map(|(relay, ..)| relay).collect();
        let place = relays.contains(&node) || relays.len() < RELAYS_MAX;
        let known = self.rooms.has(room);
        match role.filter(|_| node > 0 && node != self.node.me.node && known && place) {
            Some(role) => {
                let on = false;
                let relay = node;
                self.relays.parents.insert(key, Parent { relay, role, addr, on });
                self.dial(now);
                self.ask_relay(now, node, key, true);
            }
            None if node > 0 => self.tell_taken(now, key, node, false),
            None => {}
        }
    }

    /// A room does not come by its relay any more, unless that stays.
    fn forget_parent(&mut self, now: Micros, key: Key, stays: Option<u32>) {
        let Some(parent) = self.relays.parents.remove(&key) else {
            return;
        };
        if stays != Some(parent.relay) {
            self.ask_relay(now, parent.relay, key, false);
            self.dial(now);
        }
    }

    fn ask_relay(&mut self, now: Micros, relay: u32, (room, broker): Key, on: bool) {
        if let Some(slot) = self.links.to(relay) {
            self.links.record(now, slot, &Record::RelayAsked { room, broker, on });
        }
    }

    /// Tells a broker whether a room comes by a gateway.
    fn tell_taken(&mut self, now: Micros, (room, broker): Key, node: u32, on: bool) {
        if let Some(slot) = self.links.to(broker) {
            self.links.record(now, slot, &Record::RelayTaken { room, node, on });
        }
    }

    /// A gateway asks for a room.
    pub(super) fn relay_asked(&mut self, now: Micros, child: u32, (room, broker): Key, on: bool) {
        let key = (room, broker);
        if !on {
            self.relays.forget_child(key, child);
            return;
        }
        let children = self.relays.children.get(&key).map_or(0, BTreeSet::len);
        let gets = self.rooms.has(room) && self.links.since_as(broker, role::BROKER).is_some();
        let on = gets && children < CHILDREN_MAX;
        if on {
            self.relays.children.entry(key).or_default().insert(child);
            self.relays.queues.entry(child).or_default().heads.insert(key);
        }
        self.answer_child(now, child, key, on);
    }

    fn answer_child(&mut self, now: Micros, child: u32, (room, broker): Key, on: bool) {
        if let Some(slot) = self.links.to(child) {
            self.links.record(now, slot, &Record::RelayAnswer { room, broker, on });
        }
    }

    /// A gateway brings a room from now on, or not.
    pub(super) fn relay_answer(&mut self, now: Micros, relay: u32, key: Key, on: bool) {
        match self.relays.parents.get_mut(&key) {
            Some(parent) if parent.relay == relay => parent.on = on,
            _ => return,
        }
        self.tell_taken(now, key, relay, on);
    }

    /// A gateway has a link: it is asked for the rooms that it is to bring.
    pub(super) fn gateway_up(&mut self, now: Micros, node: u32) {
        self.relays.linked.insert(node, now);
        self.relays.look_at.get_or_insert(now + UNUSED_EVERY);
        let theirs = self.relays.parents.iter().filter(|(_, parent)| parent.relay == node);
        for key in theirs.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.ask_relay(now, node, key, true);
        }
    }

    /// A gateway's link is lost: it brings nothing, and gets nothing.
    pub(super) fn gateway_lost(&mut self, now: Micros, node: u32) {
        self.relays.linked.remove(&node);
        self.relays.queues.remove(&node);
        self.relays.children.retain(|_, children| {
            children.remove(&node);
            !children.is_empty()
        });
        let mut off = Vec::new();
        for (key, parent) in &mut self.relays.parents {
            if parent.relay == node && std::mem::take(&mut parent.on) {
                off.push(*key);
            }
        }
        off.into_iter().for_each(|key| self.tell_taken(now, key, node, false));
    }

    /// A broker's link is lost or new: it sends rooms itself until it says otherwise, and nothing of it is passed on.
    pub(super) fn forget_relays_of(&mut self, now: Micros, broker: u32) {
        self.forget_relays(now, |key| key.1 == broker);
    }

    /// The same for a room that is closed.
    pub(super) fn forget_relays_in(&mut self, now: Micros, room: u64) {
        self.forget_relays(now, |key| key.0 == room);
    }

    fn forget_relays(&mut self, now: Micros, which: impl Fn(&Key) -> bool) {
        let parents: Vec<Key> = self.relays.parents.keys().copied().filter(&which).collect();
        for key in parents {
            self.forget_parent(now, key, None);
        }
        let rooms: Vec<Key> = self.relays.children.keys().copied().filter(&which).collect();
        for key in rooms {
            for child in self.relays.children.remove(&key).unwrap_or_default() {
                self.answer_child(now, child, key, false);
            }
        }
    }

    /// Whether a gateway may bring a stream, and which room that is: the stream's broker has named that gateway, and told its
    /// own head.
    fn brings(&self, from: u32, room: u64, stream: StreamId) -> Option<u32> {
        let at = self.rooms.find(room)?;
        let known = self.rooms.get(at)?.is_present(stream);
        (known && self.relays.is_parent((room, stream.node), from)).then_some(at)
    }

    /// Takes a frame of another gateway. `false`: malformed, or not a gateway's to send.
    pub(super) fn take_relayed(&mut self, now: Micros, from: u32, frame: &Frame<'_>) -> bool {
        let read = match frame.kind {
            kinds::RELAYED_ROOM => RelayedBlock::read(frame.body),
            kinds::AGED_RELAYED_ROOM => RelayedBlock::read_aged(frame.body),
            kinds::RELAYED_HEADS => {
                for head in RelayedHead::read_all(frame.body) {
                    let Some(at) = self.brings(from, head.room, head.stream) else {
                        continue;
                    };
                    let Some(room) = self.rooms.get_mut(at) else {
                        continue;
                    };
                    room.note_known(head.stream, head.next);
                    room.note_hole(now);
                    self.schedule_room(now, at);
                }
                return true;
            }
            _ => return false,
        };
        let Some(RelayedBlock { broker, block }) = read else {
            return false;
        };
        let (node, epoch) = broker;
        let count = block.messages.left() as u64;
        self.counters.messages_received += count;
        let stream = StreamId {
            node,
            epoch,
            generation: block.generation,
        };
        match self.brings(from, block.room, stream) {
            Some(at) => self.take_block(now, at, stream, block, frame),
            None => self.counters.dropped_unasked += count,
        }
        true
    }

    /// Passes a frame on to the gateways that get the room by this one.
    pub(super) fn pass_on(&mut self, frame: &Frame<'_>, room: u64, stream: StreamId, born: u32, messages: u64) {
        let Some(bytes) = RelayedBlock::of(frame, (stream.node, stream.epoch), born) else {
            return;
        };
        debug_assert_eq!(bytes.len(), FRAME + frame.body.len());
        let (count, dropped) = self.relays.queue(&mut self.links, (room, stream.node), &bytes.into());
        self.counters.messages_relayed += count * messages;
        self.counters.relay_frames_skipped += dropped;
    }

    /// Tells gateways whose tail is to be probed the heads of their rooms.
    pub(super) fn probe_children(&mut self) {
        if self.relays.children.is_empty() {
            return;
        }
        for slot in self.links.probed() {
            if let Some(peer) = self.links.table.get(*slot).map(|link| link.data.peer) {
                self.relays.probe(peer.node);
            }
        }
    }

    /// Ends links to gateways that were of no use for long.
    pub(super) fn hang_up_unused(&mut self, now: Micros) {
        if self.relays.look_at.is_none_or(|at| now < at) {
            return;
        }
        let Relays {
            parents,
            children,
            linked,
            ..
        } = &mut self.relays;
        let used: BTreeSet<u32> = parents.values().map(|parent| parent.relay).collect();
        let used: BTreeSet<u32> = children.values().flatten().copied().chain(used).collect();
        let mut unused = Vec::new();
        for (node, used_at) in linked {
            if used.contains(node) {
                *used_at = now;
            } else if now >= *used_at + UNUSED {
                unused.push(*node);
            }
        }
        self.relays.look_at = (!self.relays.linked.is_empty()).then_some(now + UNUSED_EVERY);
        unused.into_iter().for_each(|node| self.links.hang_up(now, node));
        self.link_changes(now);
    }
}
