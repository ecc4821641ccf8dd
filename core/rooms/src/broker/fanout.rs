//! Data for gateways and proxies: room blocks by cursor, heads, repairs, acknowledgements.

use muster_transport::{append, frames_max, Heard, Micros, Outbox, Wants, Writer, FLAGS_AT, FRAME, HEADER};

use crate::wire::kinds;

use crate::role;

use super::resends::{Range, Resends};
use super::room::Room;
use super::{enqueue, Broker, GatewayPeer, NOTHING_MAX};
use crate::ring::{Arena, Entry};
use crate::segments::Built;
use crate::slots::Slots;
use crate::wire::publish::Ack;
use crate::wire::room::{
    read_link_repair, Consumed, LinkBlock, LinkHead, LinkLost, Message, ENDED, LINK_AGE_AT, LINK_BASE_AT, NUMBERED, OLD,
};
use crate::{age, limits};

/// One datagram in this many serves history first, even if messages wait.
const HISTORY_TURN: u32 = 4;
/// Datagrams remembered per gateway with the rooms they carried; beyond it, the oldest count as covered.
const RECENT_MAX: usize = 65_536;

impl Broker {
    /// A room has new messages, from offset `before` on: adds it to the queues of the gateways that get it from here.
    pub(super) fn room_grew(&mut self, now: Micros, at: u32, before: u64) {
        let Broker {
            rooms,
            gateways,
            links,
            relays,
            ..
        } = self;
        let count = rooms.end();
        let Some(room) = rooms.get_mut(at) else {
            return;
        };
        relays.note(now, at, room.gateways.len(), before);
        let mut served = room.served();
        while let Some(cursor) = served.next() {
            if cursor.queued {
                continue;
            }
            let Some(gateway) = gateways.get_mut(&cursor.gateway) else {
                continue;
            };
            cursor.queued = true;
            enqueue(&mut gateway.pending, at, count);
            links.table.mark(gateway.link);
        }
    }

    /// Takes a gateway's status: repeats the heads of rooms with lost datagrams, and a window may have opened.
    pub(super) fn heard(&mut self, slot: u32, node: u32, heard: &Heard) {
        let Some(gateway) = self.gateways.get_mut(&node) else {
            return;
        };
        let mut lost = Vec::new();
        while let Some((carrier, at)) = gateway.recent.front().copied() {
            if carrier > heard.status.highest {
                break;
            }
            if heard.lost(carrier) {
                lost.push(at);
            }
            gateway.recent.pop_front();
        }
        if !gateway.pending.is_empty() || !gateway.heads.is_empty() || !gateway.answers.is_empty() || gateway.resends()
        {
            self.links.table.mark(slot);
        }
        lost.sort_unstable();
        lost.dedup();
        for at in lost {
            self.head_due(at, node);
        }
    }

    /// Probes tails: repeats the heads of rooms with data that no status covers yet.
    pub(super) fn probe_tails(&mut self) {
        let mut due = Vec::new();
        for slot in self.links.probed() {
            let node = self.links.table.get(*slot).map(|link| link.data.peer.node);
            let Some((node, gateway)) = node.and_then(|node| Some((node, self.gateways.get(&node)?))) else {
                continue;
            };
            let mut rooms: Vec<u32> = gateway.recent.iter().map(|(_, at)| *at).collect();
            rooms.sort_unstable();
            rooms.dedup();
            due.extend(rooms.into_iter().map(|at| (at, node)));
        }
        for (at, node) in due {
            self.head_due(at, node);
        }
    }

    /// Takes a gateway's request to resend offsets. `false`: malformed.
    pub(super) fn repair_asked(&mut self, now: Micros, slot: u32, node: u32, body: &[u8]) -> bool {
        let Some((id, generation, history, ranges)) = read_link_repair(body) else {
            return false;
        };
        let ranges: Vec<(u64, u64)> = ranges.collect();
        // A gateway that asks here for another broker's room cannot reach its owner.
        let wants = || {
            self.interest
                .wants(node, id)
                .filter(|_| ranges.is_empty() && self.may_own(id))
        };
        let known = self.rooms.find(id);
        if history && generation == 0 {
            self.was_asked(now, slot, node, id, known);
            if let Some((question, _)) = ranges.first() {
                self.answer(slot, node, id, *question);
            }
            return true;
        }
        // The same holds if it asks for the head of a stream that ended here and that no publisher uses anymore.
        let rests = |at: &u32| {
            let room = self.rooms.get(*at);
            generation == 0 && room.is_some_and(|room| room.ended)
        };
        let at = match known {
            Some(at) if !rests(&at) => Some(at),
            known => wants().and_then(|check| self.open_room(now, id, check).ok()).or(known),
        };
        let Some(at) = at else { return true };
        let Some(room) = self.rooms.get_mut(at) else {
            return true;
        };
        if generation != room.generation || ranges.is_empty() {
            self.head_due(at, node);
            return true;
        }
        let next = room.ring.next();
        let Some(gateway) = self.gateways.get_mut(&node) else {
            return true;
        };
        let resends = if history {
            &mut gateway.history
        } else {
            &mut gateway.holes
        };
        resends.grow(now);
        for (first, last) in ranges {
            let last = last.min(next - 1);
            if first == 0 || first > last {
                continue;
            }
            match resends.ask(at, first, last) {
                Some(fresh) => self.counters.repairs_served += u64::from(fresh),
                None => self.counters.dropped_repair_limit += 1,
            }
        }
        self.links.table.mark(slot);
        true
    }

    /// Answers a gateway that asks, for a returning member, about a room's past here: with the head, or that there is
    /// nothing. If the gateway's interest is not known yet, the gateway asks again, since messages could be numbered
    /// in between.
    fn was_asked(&mut self, now: Micros, slot: u32, node: u32, id: u64, known: Option<u32>) {
        let life = self.life_of(node);
        let room = known.and_then(|at| Some((at, self.rooms.get_mut(at)?)));
        if let Some((at, room)) = room {
            if room.ended {
                room.add_gateway(now, node, life);
                // It may have wanted the room before and then stopped; it requests messages of that time as history.
                if let Some(cursor) = room.cursor(node) {
                    cursor.base = cursor.base.max(cursor.consumed);
                }
            }
            return self.head_due(at, node);
        }
        let knows = !self.has_in_scope(id) || self.interest.wants(node, id).is_some();
        let gateway = self.gateways.get_mut(&node);
        if let Some(gateway) = gateway.filter(|gateway| knows && gateway.nothing.len() < NOTHING_MAX) {
            gateway.nothing.push_back(id);
            self.links.table.mark(slot);
        }
    }

    /// Answers a gateway's question: what has been numbered of a room, as of now. A stream that was outlived counts as none, for
    /// nothing more is numbered in it.
    fn answer(&mut self, slot: u32, node: u32, id: u64, question: u64) {
        let at = self.rooms.find(id);
        let room = at.and_then(|at| self.rooms.get(at));
        let head = match room.filter(|room| !self.generations.are_over(room.generation)) {
            Some(room) => LinkHead {
                room: id,
                generation: room.generation,
                base: question,
                next: room.ring.next(),
            },
            None => LinkHead {
                base: question,
                ..LinkHead::nothing(id)
            },
        };
        let knows = room.is_some() || !self.has_in_scope(id) || self.interest.wants(node, id).is_some();
        let gateway = self.gateways.get_mut(&node);
        if let Some(gateway) = gateway.filter(|gateway| knows && gateway.answers.len() < NOTHING_MAX) {
            gateway.answers.push_back(head);
            self.links.table.mark(slot);
        }
    }

    /// Takes a gateway's report of progress.
    pub(super) fn consumed(&mut self, now: Micros, node: u32, body: &[u8]) -> bool {
        if body.len() % Consumed::LEN != 0 {
            return false;
        }
        for consumed in Consumed::read_all(body) {
            let at = self.rooms.find(consumed.room);
            let here = at.and_then(|at| self.rooms.get(at));
            let here = here.map(|room| (room.generation, room.ring.next()));
            let told = (consumed.generation, consumed.next);
            let later = here.map_or(consumed.generation > self.generations.last(), |here| {
                told.0 > here.0 || told.0 == here.0 && told.1 > here.1
            });
            // After the highest generation none is higher.
            if later && consumed.generation < u32::MAX {
                self.came_back(now, at, consumed.generation);
                continue;
            }
            let Some(at) = at else { continue };
            let Some(room) = self
                .rooms
                .get_mut(at)
                .filter(|room| room.generation == consumed.generation)
            else {
                continue;
            };
            let next = room.ring.next();
            if let Some(cursor) = room.cursor(node) {
                cursor.consumed = cursor.consumed.max(consumed.next.min(next));
                cursor.kept = (consumed.kept > 0).then_some(consumed.kept.min(next));
                cursor.told_at = now;
            }
            let (ended, withholds) = (room.ended, !room.withheld.is_empty());
            if ended {
                self.head_due(at, node); // it has not learned of the end, or an older head came after it
            }
            if withholds {
                self.release_room(now, at);
            }
        }
        true
    }

    /// Sends the links' own datagrams.
    pub(super) fn transmit_links(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let mut turns = self.links.table.ready_len();
        while turns > 0 && outbox.room() > 0 {
            turns -= 1;
            let Some(slot) = self.links.table.next_ready() else {
                break;
            };
            let Some(peer) = self.links.table.get(slot).map(|link| link.data.peer) else {
                continue;
            };
            match peer.role {
                role::GATEWAY => self.serve_gateway(now, slot, peer.node, outbox),
                role::EDGE => {
                    if self.publications.owe(peer.node) {
                        self.serve_proxy(now, slot, peer.node, outbox);
                    }
                    self.serve_gateway(now, slot, peer.node, outbox);
                }
                role::PROXY => self.serve_proxy(now, slot, peer.node, outbox),
                _ => {
                    if let Some(link) = self.links.table.get_mut(slot) {
                        link.data.probe = false;
                    }
                    if self.links.send(now, &mut self.node, slot, outbox, |_, _| false) {
                        self.links.table.mark(slot);
                    }
                }
            }
        }
        self.links.table.ready_len() > 0
    }

    fn serve_proxy(&mut self, now: Micros, slot: u32, proxy: u32, outbox: &mut Outbox) {
        let limit = frames_max(self.node.payload);
        let peer_is_gateway = self.gateways.contains_key(&proxy);
        while outbox.room() > 0 {
            let mut waiting: Vec<(u64, Ack)> = Vec::new();
            let mut bytes = 0;
            // Acknowledgements are not repeated from here: the publisher repeats its message instead.
            while bytes + Ack::LEN_MAX <= limit - 64 {
                let Some((session, ack)) = self.next_ack(now, proxy) else {
                    break;
                };
                bytes += ack.link_len();
                waiting.push((session, ack));
            }
            let Some(link) = self.links.table.get_mut(slot) else {
                return;
            };
            let probe = std::mem::take(&mut link.data.probe);
            let (all, mut written) = (waiting.len(), 0);
            let sent = self.links.send(now, &mut self.node, slot, outbox, |writer, _| {
                let fits = |(session, ack): &&(u64, Ack)| ack.write_link(writer, *session);
                written = waiting.iter().take_while(fits).count();
                false
            });
            if let Some(link) = self.links.table.get_mut(slot) {
                link.data.probe = probe && peer_is_gateway; // its heads are told next
            }
            self.counters.acknowledgements_sent += written as u64;
            if written < all {
                self.publications.keep(proxy, waiting.split_off(written));
            }
            if !sent || !self.publications.owe(proxy) {
                return;
            }
        }
        self.links.table.mark(slot);
    }

    fn serve_gateway(&mut self, now: Micros, slot: u32, node: u32, outbox: &mut Outbox) {
        let payload = self.node.payload;
        let limit = frames_max(payload);
        loop {
            let Broker {
                links,
                gateways,
                rooms,
                arena,
                segments,
                node: me,
                counters,
                ..
            } = self;
            let (Some(link), Some(gateway)) = (links.table.get_mut(slot), gateways.get_mut(&node)) else {
                return;
            };
            let probe = std::mem::take(&mut link.data.probe);
            let conn = &mut link.conn;
            let free = conn.flow.available(payload);
            if free == 0 && !probe && !conn.control_due(now) {
                break;
            }
            if outbox.room() == 0 {
                link.data.probe = probe;
                links.table.mark(slot);
                break;
            }
            let next = conn.flow.next();
            let away = conn.flow.measured() / 2;
            let spare = outbox.room() > 1 && free > 1;
            let buffer = outbox.reserve(payload);
            let mut writer = Writer::new(&mut buffer[HEADER..HEADER + limit]);
            let mut wants = conn.control(now, &mut writer);
            let before = writer.len();
            let mut more = false;
            write_heads(gateway, rooms, node, next, &mut writer);
            if free > 0 {
                gateway.turn = gateway.turn.wrapping_add(1);
                resend(
                    &mut gateway.holes,
                    Some((now, away)),
                    node,
                    rooms,
                    arena,
                    &mut writer,
                    counters,
                );
                if gateway.turn % HISTORY_TURN == 0 {
                    resend(&mut gateway.history, None, node, rooms, arena, &mut writer, counters);
                }
                'rooms: while let Some(at) = gateway.pending.front().copied() {
                    let Some(room) = rooms.get_mut(at) else {
                        gateway.pending.pop_front();
                        continue;
                    };
                    let head = room.ring.next();
                    let Ok(place) = room.place(node) else {
                        gateway.pending.pop_front();
                        continue;
                    };
                    let mut cursor = room.gateways[place];
                    let begins = cursor.next;
                    while cursor.next < head {
                        let first = cursor.next;
                        let segment = match first < room.ring.first() {
                            true => None,
                            false => segments.get(room.frames, first, head, limit, |writer| {
                                build(room, arena, first, head, true, writer)
                            }),
                        };
                        let fits = match &segment {
                            Some((bytes, _)) => bytes.len() <= writer.room(),
                            None => {
                                let lost = LinkLost {
                                    room: room.id,
                                    generation: room.generation,
                                    first: room.ring.readable(arena, first).max(first + 1).min(head),
                                };
                                cursor.next = lost.first;
                                lost.write(&mut writer)
                            }
                        };
                        if !fits {
                            more = true;
                            cursor.next = first;
                            room.gateways[place] = cursor;
                            if first > begins {
                                // It has had its turn; a room numbered faster than it is sent would starve all
                                // others.
                                gateway.pending.rotate_left(1);
                            }
                            break 'rooms;
                        }
                        note_carrier(gateway, next, at);
                        let Some((bytes, after)) = segment else { continue };
                        let start = writer.len();
                        writer.put(bytes);
                        let old = is_old(room, arena, now, after - 1);
                        address(&mut writer, start, cursor.base, old, now, away);
                        counters.messages_sent += after - first;
                        cursor.next = after;
                    }
                    cursor.queued = false;
                    room.gateways[place] = cursor;
                    gateway.pending.pop_front();
                }
                if !more {
                    resend(&mut gateway.history, None, node, rooms, arena, &mut writer, counters);
                }
                more |= gateway.resends();
            }
            more |= !gateway.heads.is_empty() || !gateway.answers.is_empty();
            if writer.len() > before {
                wants = Wants::Probes;
            }
            let len = writer.len();
            if len == 0 {
                break;
            }
            let total = HEADER + len + muster_transport::TAG;
            let pad = if more && spare && total * 4 >= payload * 3 {
                payload
            } else {
                0
            };
            let total = conn.seal(now, &mut me.keys, me.stamp, buffer, len, wants, pad);
            outbox.commit(conn.socket, conn.addr, total);
            gateway.holes.sent(total);
            gateway.history.sent(total);
            if !more {
                break;
            }
        }
        self.links.after(now, slot, false);
    }
}

fn note_carrier(gateway: &mut GatewayPeer, carrier: u64, at: u32) {
    if gateway.recent.back() != Some(&(carrier, at)) {
        if gateway.recent.len() >= RECENT_MAX {
            gateway.recent.pop_front();
        }
        gateway.recent.push_back((carrier, at));
    }
}

/// Writes as many due heads as fit.
fn write_heads(
    gateway: &mut GatewayPeer,
    rooms: &mut Slots<u64, Room>,
    node: u32,
    carrier: u64,
    writer: &mut Writer<'_>,
) {
    if gateway.heads.is_empty() && gateway.nothing.is_empty() && gateway.answers.is_empty() {
        return;
    }
    // Heads of ended rooms go into a frame of their own, and answers behind the heads that they are about.
    let (mut on, mut ended, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let fits = |count: usize, writer: &Writer<'_>| (count + 1) * LinkHead::LEN + 3 * FRAME <= writer.room();
    while fits(on.len(), writer) {
        let Some(room) = gateway.nothing.pop_front() else { break };
        on.push(LinkHead::nothing(room));
    }
    while fits(on.len() + ended.len(), writer) {
        let Some(at) = gateway.heads.pop_front() else { break };
        let Some(room) = rooms.get_mut(at) else {
            continue;
        };
        let (id, generation, end) = (room.id, room.generation, room.ended.then_some(room.ring.next()));
        let Some(cursor) = room.cursor(node) else { continue };
        cursor.head_due = false;
        let cursor = *cursor;
        let heads = if end.is_some() { &mut ended } else { &mut on };
        heads.push(LinkHead {
            room: id,
            generation,
            base: cursor.base,
            next: end.unwrap_or(room.sent(&cursor)),
        });
        note_carrier(gateway, carrier, at);
    }
    while fits(on.len() + ended.len() + answers.len(), writer) {
        let Some(answer) = gateway.answers.pop_front() else {
            break;
        };
        answers.push(answer);
    }
    for (flags, heads) in [(0, on), (ENDED, ended), (NUMBERED, answers)] {
        append(writer, kinds::LINK_HEADS, flags, |writer| {
            heads.iter().for_each(|head| head.write(writer));
            !heads.is_empty()
        });
    }
}

/// Resends into the datagram, within its space and the gateway's allowance. With `live` (the time, and the time to
/// the gateway), old messages are flagged and others get their age; history is wanted at any age.
fn resend(
    resends: &mut Resends,
    live: Option<(Micros, Micros)>,
    node: u32,
    rooms: &Slots<u64, Room>,
    arena: &Arena,
    writer: &mut Writer<'_>,
    counters: &mut super::BrokerCounters,
) {
    while let Some(mut range) = resends.take() {
        let Some(room) = rooms.get(range.room) else {
            resends.done(&range);
            continue;
        };
        let before = writer.len();
        let fitted = resend_range(&mut range, live, node, room, arena, writer, counters);
        resends.spend(writer.len() - before);
        if range.next > range.last {
            resends.done(&range);
        } else {
            resends.put_back(range);
        }
        if !fitted {
            return;
        }
    }
}

/// Writes one frame of a range. `false`: it did not fit.
fn resend_range(
    range: &mut Range,
    live: Option<(Micros, Micros)>,
    node: u32,
    room: &super::Room,
    arena: &Arena,
    writer: &mut Writer<'_>,
    counters: &mut super::BrokerCounters,
) -> bool {
    if range.next >= room.ring.next() {
        range.next = range.last + 1; // asked for in a stream that is over
        return true;
    }
    if room.ring.get(arena, range.next).is_none() {
        let lost = LinkLost {
            room: room.id,
            generation: room.generation,
            first: room.ring.readable(arena, range.next).max(range.next + 1),
        };
        let written = lost.write(writer);
        range.next = if written { lost.first } else { range.next };
        return written;
    }
    let start = writer.len();
    let young = live.is_some_and(|(now, _)| !is_old(room, arena, now, range.next));
    let Some(built) = build(room, arena, range.next, range.last + 1, young, writer) else {
        return false;
    };
    let base = room.place(node).map_or(range.next, |place| room.gateways[place].base);
    let (now, away) = live.unwrap_or_default();
    let old = live.is_some() && is_old(room, arena, now, built.next - 1);
    address(writer, start, base, old, now, away);
    counters.messages_repaired += built.next - range.next;
    range.next = built.next;
    true
}

/// Builds one frame of a room's messages `first..until`; `base` is filled in per gateway. With `aged`, messages born
/// together share a frame, which holds the first one's time of birth until it leaves.
fn build(
    room: &super::Room,
    arena: &Arena,
    first: u64,
    until: u64,
    aged: bool,
    writer: &mut Writer<'_>,
) -> Option<Built> {
    let mut next = first;
    let mut whole = until < room.ring.next();
    let born_of = |entry: &Entry<'_>| if aged { entry.born } else { 0 };
    let born = room.ring.get(arena, first).map_or(0, |entry| born_of(&entry));
    let kind = match born {
        0 => kinds::LINK_ROOM,
        _ => kinds::AGED_ROOM,
    };
    let written = append(writer, kind, 0, |writer| {
        let age = (born != 0).then_some(born);
        let mut block = LinkBlock::begin(writer, room.id, room.generation, 0, first, age);
        while next < until {
            let entry = room.ring.get(arena, next);
            let Some(entry) = entry.filter(|entry| age::is_as_old(born, born_of(entry))) else {
                whole = true;
                break;
            };
            let message = Message {
                publisher: entry.publisher,
                sequence: entry.sequence,
                flags: entry.flags,
                data: entry.data,
            };
            if !block.push(writer, &message) {
                whole = true;
                break;
            }
            next += 1;
        }
        block.finish(writer) > 0
    });
    written.then_some(Built { next, whole })
}

/// Fills in what differs per gateway in the frame at `start`: where its interest began, whether the frame comes too
/// late, and its age on arrival.
fn address(writer: &mut Writer<'_>, start: usize, base: u64, old: bool, now: Micros, away: Micros) {
    let frame = &mut writer.written()[start..];
    if frame[0] == kinds::AGED_ROOM.code() {
        age::pass_on(&mut frame[LINK_AGE_AT..], now, away);
    }
    frame[LINK_BASE_AT..LINK_BASE_AT + 8].copy_from_slice(&base.to_le_bytes());
    frame[FLAGS_AT] |= if old { OLD } else { 0 };
}

/// Whether a message waited for its gateway longer than members of a live room accept.
fn is_old(room: &Room, arena: &Arena, now: Micros, offset: u64) -> bool {
    room.ring
        .age(arena, now, offset)
        .is_some_and(|age| age > limits::MESSAGE_AGE_MAX)
}
