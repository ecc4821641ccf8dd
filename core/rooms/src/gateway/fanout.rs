//! Data for members: sessions take from their rooms' rings by cursor, as far as their windows allow.
//!
//! No queue per member. A frame of a (room, range) is built once and copied for each member at that place. Rooms take
//! turns slice by slice; a session that can take more than the slice had space for goes to the ready queue.

use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU64;

use crate::wire::kinds;

use muster_transport::{append, frames_max, Heard, Micros, Outbox, Wants, Writer, HEADER};

use super::filtering::{Filtering, View, Written};
use super::members::Members;
use super::room::Room;
use super::timers::Timers;
use super::{told, Aside, Client, Gateway, GatewayCounters, Joined};
use crate::age;
use crate::ring::{Arena, Entry};
use crate::segments::Built;
use crate::slots::Slots;
use crate::wire::room::{read_repair, GapPlace, Message, RoomBlock, Skip, HEAD, ROOM_AGE_AT};
use crate::wire::{GapReason, StreamGap};

/// Bytes that a member may have resent at once, at first; it grows by a quarter of the bytes sent to it and 64 KiB/s.
pub const ALLOWANCE_FIRST: i32 = 256 * 1024;
const ALLOWANCE_MAX: i32 = 4 << 20;
const ALLOWANCE_A_SECOND: u64 = 64 * 1024;
/// Repair ranges of one session that wait.
const REPAIRS_MAX: usize = 64;
/// A datagram of a run is padded to full size from here on, so that the run can leave as one super-packet.
const PAD_FROM: (usize, usize) = (3, 4);
/// Frames with ages are kept beside those without, at their place and this: places are below 2^62.
const AGED: u64 = 1 << 63;
/// The same for frames without headers.
const PLAIN: u64 = 1 << 62;
/// Older messages have no age any more: the time of birth has 32 bits, so it is good for 71 minutes.
const TOLD_WITHIN: Micros = age::AGE_MAX as Micros;

impl<S: Members> Gateway<S> {
    /// Puts a room into the fan-out queue; every member is looked at once from now.
    pub(super) fn activate(&mut self, at: u32) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        room.age(&self.arena, self.now);
        self.rounds.begin(at, room);
        self.note_consumed(at);
    }

    /// A session stands elsewhere in some of its rooms.
    pub(super) fn note_cursors(&mut self, slot: u32) {
        let Some(client) = self.sessions.client_mut(slot) else {
            return;
        };
        let mut moved = Vec::new();
        for joined in &mut client.joined {
            let room = self.rooms.get_mut(joined.room);
            let Some(room) = room.filter(|room| room.paced && joined.counted != NonZeroU64::new(joined.cursor)) else {
                continue;
            };
            joined.given_up &= joined.cursor < room.ring.next();
            if joined.given_up {
                continue;
            }
            let before = std::mem::replace(&mut joined.counted, NonZeroU64::new(joined.cursor));
            room.stragglers.stands(slot, before, joined.cursor);
            moved.push(joined.room);
        }
        moved.into_iter().for_each(|at| self.note_paced(at));
    }

    /// The slowest member of a room may have moved, or its gaps changed: publishers of a paced room wait for that.
    pub(super) fn note_paced(&mut self, at: u32) {
        if let Some(room) = self.rooms.get_mut(at).filter(|room| room.paced) {
            room.tell_owners(None);
            self.note_consumed(at);
        }
    }
}

impl Gateway {
    /// Fills the slice. True: more waits.
    pub(super) fn fan_out(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let mut turns = self.sessions.table.ready_len();
        // Sessions that want much (history, repairs) leave rooms with news half of the slice.
        let left = if self.rounds.is_empty() { 0 } else { outbox.limit() / 2 };
        while turns > 0 && outbox.room() > left {
            turns -= 1;
            let Some(slot) = self.sessions.table.next_ready() else {
                break;
            };
            self.serve(now, slot, outbox, left);
        }
        // The room of the last slice comes after those that became active since.
        self.rounds.rotate();
        while outbox.room() > 0 {
            let Some(slot) = self.rounds.next(&mut self.rooms) else {
                break;
            };
            self.serve(now, slot, outbox, 0);
        }
        !self.rounds.is_empty() || self.sessions.table.ready_len() > 0
    }

    /// Sends one session its due data, and leaves space for `left` datagrams in the slice.
    fn serve(&mut self, now: Micros, slot: u32, outbox: &mut Outbox, left: usize) {
        self.sessions.challenge(now, &mut self.node, slot, outbox);
        let limit = frames_max(self.node.payload);
        let payload = self.node.payload;
        let (mut moved, mut full, mut looked) = (false, false, 0);
        loop {
            let Gateway {
                sessions,
                rooms,
                arena,
                segments,
                node,
                counters,
                timers,
                ..
            } = self;
            let Some(peer) = sessions.table.get_mut(slot) else {
                return;
            };
            let (conn, session) = (&mut peer.conn, &mut peer.data);
            let probe = std::mem::take(&mut session.probe);
            let client = &mut session.data;
            let free = conn.flow.available(payload);
            if free == 0 && !probe && !conn.control_due(now) {
                break;
            }
            if outbox.room() <= left {
                session.probe = probe;
                full = true;
                break;
            }
            let next = conn.flow.next();
            let away = conn.flow.measured() / 2;
            if probe {
                let uncovered = conn.flow.in_flight() as u32;
                for joined in &mut client.joined {
                    joined.head_due |= (next as u32).wrapping_sub(joined.carrier) <= uncovered;
                }
            }
            if let Some(aside) = client.aside.as_deref_mut().filter(|aside| !aside.filters.is_empty()) {
                // A head counts the places that a filter passed: it goes with them.
                for joined in client.joined.iter().filter(|joined| joined.filtered && joined.head_due) {
                    let filters = &mut aside.filters.iter_mut();
                    filters
                        .filter(|filter| filter.room == joined.room)
                        .for_each(|filter| filter.due |= filter.is_untold());
                }
            }
            let spare = outbox.room() > 1 && free > 1;
            let buffer = outbox.reserve(payload);
            let mut writer = Writer::new(&mut buffer[HEADER..HEADER + limit]);
            let mut wants = conn.control(now, &mut writer);
            if write_heads(&mut writer, client, rooms, next as u32) {
                wants = wants.max(if probe { Wants::Status } else { Wants::Probes });
            }
            let mut more = false;
            if free > 0 {
                let before = writer.len();
                let (ages, plain) = (client.ages, !client.headers);
                let kept = if plain { PLAIN } else { 0 };
                repairs(client, rooms, arena, &mut writer, (now, away), counters);
                let count = client.joined.len();
                for step in 0..count {
                    let index = (client.turn as usize + step) % count;
                    let joined = &mut client.joined[index];
                    let Some(room) = rooms.get(joined.room) else {
                        continue;
                    };
                    if room.is_crowded(now, slot, joined.cursor, conn.flow.window()) {
                        continue;
                    }
                    if joined.filtered {
                        let view = View {
                            room,
                            arena,
                            now,
                            away,
                            ages,
                            plain,
                            looked: Cell::new(looked),
                        };
                        match filtered(
                            &view,
                            joined,
                            &mut client.aside,
                            counters,
                            &mut writer,
                            (next, slot),
                            timers,
                        ) {
                            Written::All | Written::Lost => {}
                            Written::Full => more = true,
                            Written::Paused => full = true,
                        }
                        looked = view.looked.get();
                        moved |= room.paced;
                        if more || full || !self.rules.bundle && writer.len() > before {
                            client.turn = index as u32;
                            break;
                        }
                        continue;
                    }
                    let head = room.ring.next();
                    while joined.cursor < head {
                        let oldest = room.oldest_for(joined.cursor, joined.joined_at);
                        moved |= room.paced;
                        if joined.cursor < oldest && !skip(room, arena, joined, oldest, next, &mut writer, counters) {
                            more = true;
                            break;
                        }
                        let place = joined.cursor;
                        let segment = if ages && is_young(room, arena, now, place) {
                            segments.get(room.frames, place | kept | AGED, head, limit, |writer| {
                                build::<true>(
                                    room,
                                    arena,
                                    joined.room,
                                    (place, head),
                                    self.rules.bundle,
                                    plain,
                                    writer,
                                )
                            })
                        } else {
                            segments.get(room.frames, place | kept, head, limit, |writer| {
                                build::<false>(
                                    room,
                                    arena,
                                    joined.room,
                                    (place, head),
                                    self.rules.bundle,
                                    plain,
                                    writer,
                                )
                            })
                        };
                        let Some((bytes, after)) = segment else {
                            // The arena overwrote the entry under the cursor: go on behind the overwritten part.
                            if !skip(room, arena, joined, place, next, &mut writer, counters) {
                                more = true;
                                break;
                            }
                            if joined.cursor == place {
                                break;
                            }
                            continue;
                        };
                        if bytes.len() > writer.room() {
                            more = true;
                            break;
                        }
                        let start = writer.len();
                        writer.put(bytes);
                        if ages {
                            tell_age(&mut writer, start, now, away);
                        }
                        counters.messages_sent += after - place;
                        joined.cursor = after;
                        joined.carrier = next as u32;
                        if !self.rules.bundle {
                            more |= after < head;
                            break;
                        }
                    }
                    if more || !self.rules.bundle && writer.len() > before {
                        client.turn = index as u32;
                        break;
                    }
                }
                if client.turn as usize >= count {
                    client.turn = 0;
                }
                if writer.len() > before {
                    wants = Wants::Probes;
                }
                more |= client.has_repairs();
            }
            let len = writer.len();
            if len == 0 {
                break;
            }
            let total = HEADER + len + muster_transport::TAG;
            let pad = if more && spare && total * PAD_FROM.1 >= payload * PAD_FROM.0 {
                payload
            } else {
                0
            };
            let total = conn.seal(now, &mut node.keys, node.stamp, buffer, len, wants, pad);
            outbox.commit(conn.socket, conn.addr, total);
            client.allowance = client.allowance.saturating_add(total as i32 / 4).min(ALLOWANCE_MAX);
            if !more {
                break;
            }
        }
        if full {
            self.sessions.table.mark(slot);
        }
        if moved {
            self.note_cursors(slot);
        }
        self.sessions.reschedule(now, slot);
    }

    /// A session's status came: lost carriers have their heads told again, and a window may have opened.
    pub(super) fn heard(&mut self, slot: u32, heard: &Heard) {
        let now = self.now;
        let Some(peer) = self.sessions.table.get_mut(slot) else {
            return;
        };
        let next = peer.conn.flow.next();
        let mut pending = peer.data.data.has_repairs();
        for joined in &mut peer.data.data.joined {
            let Some(room) = self.rooms.get_mut(joined.room) else {
                continue;
            };
            if heard.missing {
                let carrier = next - u64::from((next as u32).wrapping_sub(joined.carrier));
                if heard.lost(carrier) && carrier + 8_192 > next {
                    joined.head_due = true;
                    pending = true;
                }
            }
            pending |= joined.filtered;
            if joined.cursor < room.ring.next() {
                room.age(&self.arena, now);
                pending = true;
            }
        }
        if pending {
            self.sessions.table.mark(slot);
        }
    }

    /// Takes a member's request to have places again. `false`: malformed.
    pub(super) fn repair_asked(&mut self, now: Micros, slot: u32, body: &[u8]) -> bool {
        let Some((handle, next, ranges)) = read_repair(body) else {
            return false;
        };
        let Some(peer) = self.sessions.table.get_mut(slot) else {
            return true;
        };
        let client = &mut peer.data.data;
        let Some(joined) = client.joined.iter().find(|joined| joined.room == handle) else {
            return true;
        };
        // Publishers wait for nobody that wants the latest alone.
        let (cursor, given_up) = (client.told(joined), joined.given_up || client.wants_latest(handle));
        let mut lacks = false;
        let grown = (now.saturating_sub(client.allowance_at)).saturating_mul(ALLOWANCE_A_SECOND) / 1_000_000;
        client.allowance_at = now;
        client.allowance = client
            .allowance
            .saturating_add(i32::try_from(grown).unwrap_or(i32::MAX))
            .min(ALLOWANCE_MAX);
        for (first, last) in ranges {
            lacks = true;
            // Places that were never sent are not repaired: they come by themselves.
            if first >= cursor || last < first {
                continue;
            }
            let last = last.min(cursor - 1);
            let repairs = &mut client.aside.get_or_insert_default().repairs;
            if client.allowance <= 0 || repairs.len() >= REPAIRS_MAX {
                self.counters.dropped_repair_limit += 1;
            } else if !repairs.contains(&(handle, first, last)) {
                repairs.push_back((handle, first, last));
                self.counters.repairs_served += 1;
            }
        }
        if let Some(room) = self.rooms.get_mut(handle) {
            let lacking = lacks && next < cursor;
            let awaited = room.paced && !given_up;
            if room.stragglers.lacks(now, slot, lacking.then_some(next), awaited) {
                self.note_paced(handle);
            }
        }
        self.sessions.table.mark(slot);
        true
    }
}

impl<S: Members> Gateway<S> {
    /// Sessions that want the latest message of a room, whose time has come, are given it.
    pub(super) fn expire_wakes(&mut self, now: Micros) {
        while let Some(slot) = self.timers.due_wake(now) {
            if self.sessions.client_mut(slot).is_some() {
                self.sessions.mark(slot);
            }
        }
    }

    /// Sessions whose filters passed something a while ago are told of it.
    pub(super) fn expire_untold(&mut self, now: Micros) {
        while let Some(slot) = self.timers.due_untold(now) {
            let Some(client) = self.sessions.client_mut(slot) else {
                continue;
            };
            for filter in client.aside.iter_mut().flat_map(|aside| &mut aside.filters) {
                (filter.noted, filter.due) = (false, filter.is_untold());
            }
            self.sessions.mark(slot);
        }
    }
}

/// Writes what a member with a filter gets of a room.
fn filtered(
    view: &View<'_>,
    joined: &mut Joined,
    aside: &mut Option<Box<Aside>>,
    counters: &mut GatewayCounters,
    writer: &mut Writer<'_>,
    (carrier, slot): (u64, u32),
    timers: &mut Timers,
) -> Written {
    let filters = aside.iter_mut().flat_map(|aside| &mut aside.filters);
    let Some(filter) = filters.into_iter().find(|filter| filter.room == joined.room) else {
        return Written::All;
    };
    let before = writer.len();
    let mut written = filter.write(view, joined, writer, counters);
    while written == Written::Lost {
        // What it passed before is told first: it is not lost.
        let View { room, arena, .. } = *view;
        let oldest = room.oldest_for(joined.cursor, joined.joined_at).max(joined.cursor);
        let at = joined.cursor;
        if !filter.tell(writer) || !skip(room, arena, joined, oldest, carrier, writer, counters) {
            written = Written::Full;
        } else if joined.cursor == at {
            break;
        } else {
            written = filter.write(view, joined, writer, counters);
        }
    }
    if writer.len() > before {
        joined.carrier = carrier as u32;
    }
    if filter.is_untold() && !filter.noted {
        filter.noted = true;
        timers.note_passed(view.now, slot);
    }
    if let Some(at) = filter.wakes_at(view.now) {
        timers.wake(slot, at);
    }
    written
}

/// Writes the heads that are due. Returns whether any were.
fn write_heads(writer: &mut Writer<'_>, client: &mut Client, rooms: &Slots<u64, Room>, carrier: u32) -> bool {
    if !client.joined.iter().any(|joined| joined.head_due) {
        return false;
    }
    let Client { joined, aside, .. } = client;
    append(writer, kinds::HEADS, 0, |writer| {
        for joined in joined.iter_mut().filter(|joined| joined.head_due) {
            if writer.room() < HEAD {
                break;
            }
            joined.head_due = false;
            if rooms.get(joined.room).is_some() {
                joined.carrier = carrier;
                writer.u32(joined.room).u64(told(aside, joined));
            }
        }
        true
    })
}

/// Serves waiting repairs into the datagram, as far as it has space and the session has allowance.
fn repairs(
    client: &mut super::Client,
    rooms: &Slots<u64, Room>,
    arena: &Arena,
    writer: &mut Writer<'_>,
    (now, away): (Micros, Micros),
    counters: &mut super::GatewayCounters,
) {
    let Some(Aside {
        repairs: queue,
        filters,
        ..
    }) = client.aside.as_deref_mut()
    else {
        return;
    };
    while let Some((at, first, last)) = queue.front_mut() {
        if client.allowance <= 0 {
            break;
        }
        let (at, last) = (*at, *last);
        let Some(room) = rooms.get(at) else {
            queue.pop_front();
            continue;
        };
        let filter = filters.iter().find(|filter| filter.room == at);
        let readable = if filter.is_some_and(Filtering::is_latest) || room.ring.get(arena, *first).is_some() {
            *first
        } else {
            room.ring.readable(arena, *first)
        };
        if readable > *first {
            // Everything below is gone, for this member as for all.
            let before = writer.len();
            let told = skip_frame(room, arena, at, readable).write(writer);
            if !told {
                return;
            }
            client.allowance = client.allowance.saturating_sub((writer.len() - before) as i32);
            *first = readable;
        }
        if *first > last {
            queue.pop_front();
            continue;
        }
        let before = writer.len();
        if let Some(filter) = filter {
            let view = View {
                room,
                arena,
                now,
                away,
                ages: client.ages,
                plain: !client.headers,
                looked: Cell::new(0),
            };
            // Looking costs as much as sending a byte for each place.
            let next = filter.repair(&view, (*first, last + 1), writer);
            let cost = writer.len() - before + view.looked.get();
            client.allowance = client.allowance.saturating_sub(cost as i32);
            let Some(next) = next else { return };
            counters.messages_repaired += next - *first;
            *first = next;
            if *first > last {
                queue.pop_front();
            }
            continue;
        }
        let built = match client.ages && is_young(room, arena, now, *first) {
            true => build::<true>(room, arena, at, (*first, last + 1), true, !client.headers, writer),
            false => build::<false>(room, arena, at, (*first, last + 1), true, !client.headers, writer),
        };
        match built {
            Some(built) => {
                tell_age(writer, before, now, away);
                counters.messages_repaired += built.next - *first;
                client.allowance = client.allowance.saturating_sub((writer.len() - before) as i32);
                *first = built.next;
                if *first > last {
                    queue.pop_front();
                }
            }
            None => return,
        }
    }
    // Members ask again for places beyond the allowance, if they still lack them.
    counters.dropped_repair_limit += queue.len() as u64;
    *queue = VecDeque::new();
    client.aside.take_if(|aside| aside.is_spare());
}

/// Moves a cursor to the first readable place from `target` on and tells so in the datagram of this sequence. `false`: no space.
fn skip(
    room: &Room,
    arena: &Arena,
    joined: &mut Joined,
    target: u64,
    carrier: u64,
    writer: &mut Writer<'_>,
    counters: &mut super::GatewayCounters,
) -> bool {
    let target = room.ring.readable(arena, target);
    if target > joined.cursor {
        if !skip_frame(room, arena, joined.room, target).write(writer) {
            return false;
        }
        counters.cursors_moved += 1;
        joined.cursor = target;
        joined.carrier = carrier as u32; // no message may follow that would be
    }
    true
}

/// Says that all before `index` is lost.
fn skip_frame(room: &Room, arena: &Arena, handle: u32, index: u64) -> Skip {
    Skip {
        handle,
        index,
        reason: GapReason::Slow,
        resume: room.resume_at(arena, index),
    }
}

/// Whether a message came so lately that its time of birth says how old it is.
pub(super) fn is_young(room: &Room, arena: &Arena, now: Micros, place: u64) -> bool {
    room.ring.age(arena, now, place).is_some_and(|age| age < TOLD_WITHIN)
}

/// The frame at `start` is the same for all members, but for how old its messages will be when it comes, if it tells that.
pub(super) fn tell_age(writer: &mut Writer<'_>, start: usize, now: Micros, away: Micros) {
    let frame = &mut writer.written()[start..];
    if frame[0] == kinds::AGED_MEMBER_ROOM.code() {
        age::pass_on(&mut frame[ROOM_AGE_AT..], now, away);
    }
}

/// Builds one frame from `place` on: a block of messages, or one gap. With `AGED`, messages that were born together stand in a
/// block of their own, in which stands when the first was, until it leaves. With `plain`, messages have no headers.
pub(super) fn build<const AGED: bool>(
    room: &Room,
    arena: &Arena,
    handle: u32,
    (place, until): (u64, u64),
    bundle: bool,
    plain: bool,
    writer: &mut Writer<'_>,
) -> Option<Built> {
    let entry = room.ring.get(arena, place)?;
    let of = entry.stream;
    let stream = room.sources().get(usize::from(of))?.stream;
    if entry.gap {
        let gap = StreamGap {
            stream,
            first: entry.offset,
            last: entry.sequence,
            reason: entry.reason(),
        };
        let written = GapPlace {
            handle,
            index: place,
            gap,
        }
        .write(writer);
        return written.then_some(Built {
            next: place + 1,
            whole: true,
        });
    }
    let until = until.min(if bundle { u64::MAX } else { place + 1 });
    let mut next = place;
    let mut whole = until < room.ring.next();
    let born = if AGED { entry.born } else { 0 };
    let kind = match born {
        0 => kinds::ROOM,
        _ => kinds::AGED_MEMBER_ROOM,
    };
    let written = append(writer, kind, 0, |writer| {
        let age = (born != 0).then_some(born);
        let mut block = RoomBlock::begin(writer, handle, place, stream, entry.offset, age);
        while next < until {
            let entry = room.ring.get(arena, next);
            let fits =
                |entry: &Entry<'_>| !entry.gap && entry.stream == of && (!AGED || age::is_as_old(born, entry.born));
            let Some(entry) = entry.filter(fits) else {
                whole = true;
                break;
            };
            let message = Message {
                publisher: entry.publisher,
                sequence: entry.sequence,
                flags: entry.flags,
                data: entry.data,
            };
            let message = if plain { message.plain() } else { message };
            if !block.push(writer, &message) {
                whole = true;
                break;
            }
            next += 1;
        }
        block.finish(writer) > 0
    });
    if !written && born != 0 {
        // Its age would be four bytes too many: a member gets it without.
        return build::<false>(room, arena, handle, (place, place + 1), bundle, plain, writer);
    }
    written.then_some(Built { next, whole })
}
