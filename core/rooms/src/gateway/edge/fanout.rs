//! Messages for members: each takes from its rooms' rings by cursor, as much as its socket takes.
//!
//! No queue per member: a frame is built once for all members of one form that stand at one place, and each send is the member's
//! own bytes with shared frames behind them. A member whose socket is full is not looked at until it has taken all.

use std::cell::Cell;

use muster_edge::limits::{FRAMES_MAX, WRITE_BYTES_MAX};
use muster_edge::Unsubscribe;
use muster_tcp::Outbox;
use muster_transport::Micros;

use super::frames::{News, Turn};
use super::{form, Edge};
use crate::gateway::filtering::LOOKED_MAX;
use crate::gateway::latest::Standing;
use crate::gateway::members::Members;
use crate::wire::GapReason;

/// A step of a cursor that counts once so many frames have left.
pub(super) struct Step {
    frames: usize,
    sub: usize,
    next: u64,
    /// Places before it that a filter passes.
    passed: u64,
    /// It has messages.
    told: bool,
    /// How a client stands behind it that wants the latest message.
    standing: Option<Standing>,
}

/// A subscription that ends behind the messages before its place.
struct Ending {
    room: u32,
    reason: &'static str,
    lost: bool,
}

impl Edge {
    /// Fills one slice. Returns whether more waits.
    pub(super) fn fan_out_streams(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        for stream in std::mem::take(&mut self.sessions.proven) {
            outbox.proven(stream);
        }
        for stream in std::mem::take(&mut self.sessions.aborts) {
            outbox.abort(stream);
        }
        for (stream, read) in std::mem::take(&mut self.sessions.reads) {
            outbox.read(stream, read);
        }
        // Connections that want much (history, replies) leave rooms with news half of the slice.
        let left = if self.active.is_empty() { 0 } else { outbox.room() / 2 };
        for _ in 0..self.sessions.ready.len() {
            if outbox.room() <= left {
                break;
            }
            let Some(slot) = self.sessions.ready.pop_front() else {
                break;
            };
            self.serve_stream(now, slot, outbox);
        }
        // The room of the last slice comes after those that became active since.
        if self.active.len() > 1 {
            self.active.rotate_left(1);
        }
        let (due, mut served) = (now >= self.sessions.write_at, false);
        while due && outbox.room() > 0 {
            let Some(at) = self.active.front().copied() else { break };
            let Some(room) = self.rooms[at as usize]
                .as_deref_mut()
                .filter(|room| room.serve_left > 0 && !room.members.is_empty())
            else {
                if let Some(room) = self.rooms[at as usize].as_deref_mut() {
                    room.active = false;
                }
                self.active.pop_front();
                continue;
            };
            served = true;
            room.serve_left -= 1;
            room.serve_at = if room.serve_at + 1 >= room.members.len() {
                0
            } else {
                room.serve_at + 1
            };
            let slot = room.members[room.serve_at];
            self.serve_stream(now, slot, outbox);
        }
        if served && self.active.is_empty() {
            // Messages from now on leave together.
            self.sessions.write_at = now + self.sessions.write_interval;
        }
        due && !self.active.is_empty() || !self.sessions.ready.is_empty()
    }

    /// Gives one connection its due messages.
    fn serve_stream(&mut self, now: Micros, slot: u32, outbox: &mut Outbox) {
        let Edge {
            sessions,
            rooms,
            arena,
            counters,
            wakes,
            ..
        } = self;
        let Some(conn) = sessions.conns.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        conn.queued = false;
        if conn.blocked.is_some() {
            return; // it comes back when its socket has taken all
        }
        let (mut steps, mut endings) = (std::mem::take(&mut sessions.steps), Vec::new());
        steps.clear();
        let (mut bytes, mut paced, mut more, looked) = (0, false, false, Cell::new(0));
        sessions.frames.clear();
        if !conn.over {
            let count = conn.subs.len();
            for step in 0..count {
                let index = (conn.client.turn as usize + step) % count;
                let sub = &conn.subs[index];
                if sub.made && conn.pauses(now, sub.subscription) {
                    continue; // its gap is told later, and no message passes it
                }
                let Some(room) = rooms[sub.room as usize].as_deref() else {
                    continue;
                };
                let Some(joined) = conn.client.joined.iter().find(|joined| joined.room == sub.room) else {
                    continue;
                };
                let (mut cursor, head) = (joined.cursor, room.ring.next());
                let filter = joined.filtered.then(|| conn.client.filtering(sub.room)).flatten();
                let Some(mut form) = form(conn, sub) else { break };
                let ending = |reason, lost| Ending {
                    room: sub.room,
                    reason,
                    lost,
                };
                if let Some((filter, standing)) = filter.and_then(|filter| Some((filter, filter.standing()?))) {
                    if bytes >= WRITE_BYTES_MAX || sessions.frames.len() >= FRAMES_MAX {
                        more = true;
                        break;
                    }
                    let named = (i64::from(sub.room) + 1, form);
                    let filter = (filter, &looked);
                    let turn = sessions
                        .built
                        .latest(room, arena, named, (cursor, now), standing, filter);
                    let Turn {
                        next,
                        passed,
                        standing,
                        frame,
                        ends,
                    } = turn;
                    let told = frame.is_some();
                    if let Some(frame) = frame {
                        bytes += frame.bytes().len();
                        sessions.frames.push(frame);
                    }
                    more |= ends.is_none() && next < head;
                    match ends {
                        Some(News::Lost(reason)) => endings.push(ending(reason.name(), true)),
                        Some(_) => endings.push(ending("another owner", false)),
                        None => {}
                    }
                    if let Some(at) = standing.newest.map(|_| standing.due_at) {
                        if wakes.deadline(slot).is_none_or(|known| at < known) {
                            wakes.schedule(slot, at);
                        }
                    }
                    paced |= room.paced;
                    steps.push(Step {
                        frames: sessions.frames.len(),
                        sub: index,
                        next,
                        passed,
                        told,
                        standing: Some(standing),
                    });
                    if more {
                        conn.client.turn = index as u32;
                        break;
                    }
                    continue;
                }
                while cursor < head {
                    if bytes >= WRITE_BYTES_MAX || sessions.frames.len() >= FRAMES_MAX || looked.get() > LOOKED_MAX {
                        more = true;
                        break;
                    }
                    let oldest = room.oldest_for(cursor, joined.joined_at);
                    let number = i64::from(sub.room) + 1;
                    let (news, passed) = match filter {
                        _ if cursor < oldest => (News::Lost(GapReason::Slow), 0),
                        None => (sessions.built.news(room, arena, number, cursor, form), 0),
                        Some(filter) => {
                            let filter = (filter, &looked);
                            sessions.built.filtered(room, arena, number, cursor, form, filter)
                        }
                    };
                    let told = matches!(news, News::Messages(..));
                    match news {
                        News::Messages(frame, next) => {
                            form.deltas = form.deltas.behind_a_message();
                            bytes += frame.bytes().len();
                            sessions.frames.push(frame);
                            cursor = next;
                        }
                        News::Nothing(next) => cursor = next,
                        News::Lost(reason) => {
                            endings.push(ending(reason.name(), true));
                            break;
                        }
                        News::Another => {
                            endings.push(ending("another owner", false));
                            break;
                        }
                    }
                    paced |= room.paced;
                    steps.push(Step {
                        frames: sessions.frames.len(),
                        sub: index,
                        next: cursor,
                        passed,
                        told,
                        standing: None,
                    });
                }
                if more {
                    conn.client.turn = index as u32;
                    break;
                }
            }
            if conn.client.turn as usize >= count {
                conn.client.turn = 0;
            }
        }
        let own = conn.connection.has_bytes();
        let write = &mut sessions.write;
        write.clear();
        let taken = conn.connection.write(&sessions.frames, write);
        more |= taken < sessions.frames.len();
        for step in steps.iter().take_while(|step| step.frames <= taken) {
            let sub = &mut conn.subs[step.sub];
            let room = sub.room;
            if step.told {
                sub.deltas = sub.deltas.behind_a_message();
            }
            if let Some(joined) = conn.client.joined.iter_mut().find(|joined| joined.room == room) {
                counters.messages_filtered += step.passed;
                counters.messages_sent += step.next - joined.cursor - step.passed;
                joined.cursor = step.next;
            }
            if let Some(standing) = step.standing {
                if let Some(filter) = conn.client.filtering_mut(room) {
                    filter.stand(standing);
                }
            }
        }
        sessions.steps = steps;
        if !write.is_empty() {
            outbox.send(conn.stream, &write.head, &write.shared, &write.tail);
        }
        sessions.counters.frames_built = sessions.built.built;
        let resumes = conn.paused && !conn.connection.is_full();
        let done = conn.connection.is_done();
        if done {
            outbox.close(conn.stream);
            sessions.wheel.cancel(slot);
            sessions.finish(slot, muster_transport::End::Closed);
            sessions.conns[slot as usize] = None;
            sessions.len -= 1;
            self.cleanup(now);
            return;
        }
        let ended = !endings.is_empty();
        if taken == self.sessions.frames.len() {
            for ending in endings {
                if self.begin_again(now, slot, ending.room, ending.reason, ending.lost) {
                    continue;
                }
                let counters = &mut self.sessions.counters;
                counters.gaps_told += u64::from(ending.lost);
                counters.streams_changed += u64::from(!ending.lost);
                self.counters.cursors_moved += u64::from(ending.lost);
                if !ending.lost {
                    self.note_left(now, slot, ending.room);
                }
                self.end_subscription(now, slot, ending.room, Unsubscribe::INSUFFICIENT, ending.reason);
            }
        }
        if more {
            self.sessions.mark(slot);
        }
        if paced {
            self.note_cursors(slot);
        }
        if own || resumes || ended {
            self.sessions.settle(now, slot);
        }
        if resumes {
            // Replies have left: commands that were left unread are read now.
            self.run(now, slot, |connection, turn, _| connection.resume(turn));
        }
    }
}
