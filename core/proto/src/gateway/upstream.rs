//! What a gateway says with brokers and routers: room blocks in, repair requests and progress out.

use super::room::{Pen, Room};
use super::{Gateway, GatewayEvent};
use crate::conn::Control;
use crate::limits::CONSUMED_WAIT;
use crate::links::LinkChange;
use crate::machine::{Arrival, Micros, Outbox};
use crate::wire::frame::append;
use crate::wire::header::HEADER;
use crate::wire::record::Record;
use crate::wire::room::{message_max, write_link_repair, Consumed, LinkBlock, LinkHead, LinkLost, OLD};
use crate::wire::{Frame, FrameKind, Frames, Role, StreamId};

/// Repair requests that wait for space.
const ASKS_MAX: usize = 4_096;

/// A repair request that waits for space.
pub(super) struct Ask {
    at: u32,
    /// Whom it is for.
    node: u32,
    history: bool,
    ranges: Vec<(u64, u64)>,
}

impl Gateway {
    pub(super) fn take_link(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let Some((slot, len)) = self.links.receive(now, &mut self.node, arrival, datagram) else {
            self.link_changes(now);
            return;
        };
        let Some(peer) = self.links.table.get(slot).map(|link| link.data.peer) else {
            return;
        };
        let mut elicits = false;
        let mut records = std::mem::take(&mut self.records);
        for frame in Frames::new(&datagram[HEADER..HEADER + len]) {
            let Ok(frame) = frame else {
                self.links.counters.link_dropped_frame += 1;
                break;
            };
            elicits |= frame.kind.elicits();
            match self.links.control(now, slot, &frame, &mut records) {
                Control::Other => {
                    let allowed = peer.role == Role::Broker;
                    if !allowed || !self.take_broker(now, peer.node, peer.epoch, &frame) {
                        self.links.counters.link_dropped_frame += 1;
                    }
                }
                Control::Closed(_) => break,
                _ => {}
            }
        }
        for bytes in records.drain(..) {
            let Some(record) = Record::read(&bytes) else {
                self.links.counters.link_dropped_frame += 1;
                continue;
            };
            if self.links.link_record(slot, &record) {
                continue;
            }
            match record {
                Record::Covered { offset } if peer.role == Role::Router => self.covered(now, peer.node, offset),
                Record::RoomRefused { room, code } if matches!(peer.role, Role::Router | Role::Broker) => {
                    self.room_refused(now, room, code);
                }
                _ => self.links.counters.link_dropped_frame += 1,
            }
        }
        self.records = records;
        self.links.after(now, slot, elicits);
        self.link_changes(now);
        self.cleanup(now);
    }

    /// An owner told of a room's places; `before`: the next one until then.
    fn room_told(&mut self, now: Micros, at: u32, before: u64) {
        if let Some(room) = self.rooms[at as usize].as_deref_mut() {
            room.note_hole(now);
            if room.ring.next() > before {
                self.activate(at);
            }
        }
        self.admit_waiting(now, at, false);
        self.schedule_room(now, at);
    }

    /// Takes a broker's frame. `false`: malformed or not a broker's to send.
    fn take_broker(&mut self, now: Micros, node: u32, epoch: u32, frame: &Frame<'_>) -> bool {
        let stream = |generation| StreamId {
            node,
            epoch,
            generation,
        };
        match frame.kind {
            FrameKind::LinkRoom => {
                let Some(block) = LinkBlock::read(frame.body) else {
                    return false;
                };
                let count = block.messages.left() as u64;
                self.counters.messages_received += count;
                let Some(at) = self.by_id.get(&block.room).copied() else {
                    self.counters.dropped_no_member += count;
                    return true;
                };
                let Some(room) = self.rooms[at as usize].as_deref_mut() else {
                    return true;
                };
                let before = room.ring.next();
                let mut pen = Pen {
                    arena: &mut self.arena,
                    counters: &mut self.counters,
                    now,
                };
                let stream = stream(block.generation);
                if frame.flags & OLD != 0 && !room.paced {
                    let offsets = block.offset..block.offset + count;
                    if !room.outdated(&mut pen, stream, block.base, offsets) {
                        self.counters.dropped_stale_stream += count;
                    }
                    self.room_told(now, at, before);
                    return true;
                }
                let data_max = message_max(self.node.payload);
                let grew = room.ingest(&mut pen, stream, block.base, block.offset, block.messages, data_max);
                room.note_hole(now);
                let Some(grew) = grew else {
                    self.counters.dropped_stale_stream += count;
                    return true;
                };
                let room_has_hole = room.has_hole() || room.fetching();
                let waiting = !room.waiting.is_empty();
                if grew {
                    self.activate(at);
                }
                if room_has_hole {
                    self.schedule_room(now, at);
                }
                if waiting {
                    self.admit_waiting(now, at, false);
                }
                true
            }
            FrameKind::LinkHeads => {
                for head in LinkHead::read_all(frame.body) {
                    let Some(at) = self.by_id.get(&head.room).copied() else {
                        continue;
                    };
                    let Some(room) = self.rooms[at as usize].as_deref_mut() else {
                        continue;
                    };
                    let before = room.ring.next();
                    let mut pen = Pen {
                        arena: &mut self.arena,
                        counters: &mut self.counters,
                        now,
                    };
                    if !room.head(&mut pen, stream(head.generation), head.base, head.next) {
                        self.counters.dropped_stale_stream += 1;
                        continue;
                    }
                    self.room_told(now, at, before);
                    // An owner that repeats its head may not have heard how far we are.
                    self.note_consumed(at);
                }
                true
            }
            FrameKind::LinkLost => {
                let Some(lost) = LinkLost::read(frame.body) else {
                    return false;
                };
                let Some(at) = self.by_id.get(&lost.room).copied() else {
                    return true;
                };
                let Some(room) = self.rooms[at as usize].as_deref_mut() else {
                    return true;
                };
                let mut pen = Pen {
                    arena: &mut self.arena,
                    counters: &mut self.counters,
                    now,
                };
                if room.lost(&mut pen, stream(lost.generation), lost.first) {
                    self.activate(at);
                }
                self.admit_waiting(
                    now,
                    at,
                    !self.rooms[at as usize].as_deref().is_some_and(|room| room.fetching()),
                );
                self.schedule_room(now, at);
                true
            }
            _ => false,
        }
    }

    pub(super) fn link_changes(&mut self, now: Micros) {
        while let Some(change) = self.links.change() {
            match change {
                LinkChange::Up { peer, .. } => match peer.role {
                    Role::Router => self.review_homes(now),
                    Role::Broker => self.owner_up(now, peer.node),
                    _ => {}
                },
                LinkChange::Down { peer, .. } if peer.role == Role::Router => self.home_lost(now, peer.node),
                // Nobody is left to be asked; rooms with holes ask again, whoever owns them then.
                LinkChange::Down { peer, .. } => self.asks.retain(|ask| ask.node != peer.node),
            }
            self.events.push_back(GatewayEvent::Link(change));
        }
    }

    /// A broker's link is new: its rooms' progress is told, so that a broker that lives on knows where we are.
    fn owner_up(&mut self, now: Micros, node: u32) {
        let rooms: Vec<u32> = self.by_id.values().copied().collect();
        for at in rooms {
            let Some(room) = self.rooms[at as usize].as_deref() else {
                continue;
            };
            if self.placement.owner(room.id) == Some(node) && room.stream().is_some() {
                self.note_consumed(at);
            }
        }
        let _ = now;
    }

    /// Who numbers a room's messages, and the slot of the link there.
    fn owner(&self, room: &Room) -> Option<(u32, u32)> {
        let numbers = room.stream().map(|stream| stream.node);
        let node = numbers.or_else(|| self.placement.owner(room.id))?;
        Some((node, self.links.to(node)?))
    }

    /// How long a room's owner takes to answer.
    pub(super) fn owner_rtt(&self, room: &Room) -> Micros {
        let link = self.owner(room).and_then(|(_, slot)| self.links.table.get(slot));
        link.map_or(0, |peer| peer.conn.flow.rtt())
    }

    /// Asks a room's owner for ranges, as history or as holes; for none: where its head is.
    pub(super) fn ask(&mut self, at: u32, history: bool, ranges: Vec<(u64, u64)>) {
        let Some((node, slot)) = self.rooms[at as usize].as_deref().and_then(|room| self.owner(room)) else {
            return;
        };
        if self.asks.len() < ASKS_MAX {
            self.asks.push_back(Ask {
                at,
                node,
                history,
                ranges,
            });
            self.links.table.mark(slot);
        }
    }

    /// A room's progress is to be told to its owner soon.
    pub(super) fn note_consumed(&mut self, at: u32) {
        let Some(room) = self.rooms[at as usize].as_deref_mut() else {
            return;
        };
        if !room.consumed_queued {
            room.consumed_queued = true;
            self.consumed.push_back(at);
            self.consumed_at.get_or_insert(self.now + CONSUMED_WAIT);
        }
        room.consumed_dirty = false;
    }

    pub(super) fn flush_consumed(&mut self, now: Micros) {
        if self.consumed_at.is_none_or(|at| now < at) {
            return;
        }
        self.consumed_at = (!self.consumed.is_empty()).then_some(now + CONSUMED_WAIT);
        let brokers: Vec<u32> = self.links.proven().map(|(_, slot)| slot).collect();
        for slot in brokers {
            if self
                .links
                .table
                .get(slot)
                .is_some_and(|link| link.data.peer.role == Role::Broker)
            {
                self.links.table.mark(slot);
            }
        }
    }

    /// How far this gateway has passed on a room: what it has in order; in a paced room what its slowest member was sent, and in a
    /// live one, while the gateway is behind with most of its members, what the middle one was sent.
    fn progress(&mut self, now: Micros, at: u32) -> Option<(u32, Consumed)> {
        let room = self.rooms[at as usize].as_deref()?;
        let stream = room.stream()?;
        let start = room.spans.last().map_or(0, |span| span.place);
        let sessions = &self.sessions.table;
        let joined = |slot: &u32| {
            let joined = &sessions.get(*slot)?.data.data.joined;
            joined.iter().find(|joined| joined.room == at)
        };
        let place = if room.paced {
            let cursors = room.members.iter().filter_map(joined).map(|joined| joined.cursor);
            cursors.min()
        } else {
            let live = self.backlog.sample(&room.members).filter_map(joined);
            let live = live.filter(|joined| joined.cursor >= joined.joined_at);
            let mut cursors: Vec<u64> = live.map(|joined| joined.cursor).collect();
            self.backlog.note(now, room, &self.arena, &mut cursors)
        };
        let next = match place {
            Some(place) if place < start => 1,
            Some(place) => room
                .offset_at(&self.arena, start, u64::MAX, place)
                .min(room.next_offset()),
            None => room.next_offset(),
        };
        Some((
            stream.node,
            Consumed {
                room: room.id,
                generation: stream.generation,
                next,
            },
        ))
    }

    /// Sends what links have to say.
    pub(super) fn transmit_links(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let mut turns = self.links.table.ready_len();
        while turns > 0 && outbox.room() > 0 {
            turns -= 1;
            let Some(slot) = self.links.table.next_ready() else {
                break;
            };
            self.serve_link(now, slot, outbox);
        }
        self.links.table.ready_len() > 0
    }

    fn serve_link(&mut self, now: Micros, slot: u32, outbox: &mut Outbox) {
        let Some(link) = self.links.table.get_mut(slot) else {
            return;
        };
        let peer = link.data.peer;
        let probe = std::mem::take(&mut link.data.probe);
        let step = link.conn.tail_step();
        let broker = peer.role == Role::Broker;
        let mut told: Vec<Consumed> = Vec::new();
        if broker {
            let room = (self.node.payload / 2) / Consumed::LEN;
            for _ in 0..self.consumed.len() {
                if told.len() >= room {
                    break;
                }
                let Some(at) = self.consumed.pop_front() else { break };
                match self.progress(now, at) {
                    Some((node, consumed)) if node == peer.node => {
                        told.push(consumed);
                        if let Some(room) = self.rooms[at as usize].as_deref_mut() {
                            let again = !room.paced && consumed.next < room.next_offset();
                            room.consumed_queued = again;
                            self.consumed.extend(again.then_some(at));
                        }
                    }
                    Some(_) => self.consumed.push_back(at),
                    None => {
                        if let Some(room) = self.rooms[at as usize].as_deref_mut() {
                            room.consumed_queued = false;
                        }
                    }
                }
            }
            if self.consumed.is_empty() {
                self.consumed_at = None;
            }
        }
        let Gateway {
            links,
            node,
            asks,
            rooms,
            counters,
            ..
        } = self;
        let mut again = false;
        links.send(now, node, slot, outbox, |writer, _| {
            if !told.is_empty() {
                append(writer, FrameKind::Consumed, 0, |writer| {
                    told.iter().for_each(|consumed| consumed.write(writer));
                    true
                });
            }
            if broker {
                for _ in 0..asks.len() {
                    let Some(ask) = asks.pop_front() else { break };
                    if ask.node != peer.node {
                        asks.push_back(ask);
                        continue;
                    }
                    let Some(room) = rooms[ask.at as usize].as_deref() else {
                        continue;
                    };
                    let generation = room.stream().map_or(0, |stream| stream.generation);
                    if !write_link_repair(writer, room.id, generation, ask.history, &ask.ranges) {
                        asks.push_front(ask);
                        again = true;
                        break;
                    }
                    counters.repairs_asked += 1;
                }
            }
            false
        });
        if probe {
            if let Some(link) = self.links.table.get_mut(slot) {
                link.conn.tail_probed(now, step);
            }
        }
        if again {
            self.links.table.mark(slot);
        }
    }
}
