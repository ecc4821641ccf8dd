//! Messages for members: each takes from its rooms' rings by cursor, as much as its socket takes.
//!
//! No queue per member: a frame is built once for all members of one form that stand at one place, and each send is the member's
//! own bytes with shared frames behind them. A member whose socket is full is not looked at until it has taken all.

use std::cell::Cell;

use muster_edge::limits::{FRAMES_MAX, WRITE_BYTES_MAX};
use muster_edge::{Frame, Unsubscribe, Write};
use muster_tcp::Outbox;
use muster_transport::Micros;

use super::frames::{Built, News, Turn};
use super::{form, Edge};
use crate::gateway::filtering::LOOKED_MAX;
use crate::gateway::latest::Standing;
use crate::gateway::members::Members;
use crate::wire::GapReason;

/// When messages leave, and what one connection is given at a time.
pub(super) struct Fanout {
    /// Messages of rooms leave this long after each other, those of the meantime together; and when they leave next.
    interval: Micros,
    at: Micros,
    built: Built,
    /// Memory of a turn, used again.
    frames: Vec<Frame>,
    steps: Vec<Step>,
    write: Write,
}

impl Fanout {
    pub fn new(built: Built) -> Self {
        Fanout {
            interval: 0,
            at: 0,
            built,
            frames: Vec::new(),
            steps: Vec::new(),
            write: Write::default(),
        }
    }

    pub fn set_interval(&mut self, interval: Micros) {
        // Messages that wait by the former interval wait no longer than by this one.
        let began = self.at.saturating_sub(self.interval);
        self.at = self.at.min(began + interval);
        self.interval = interval;
    }

    /// When messages leave next.
    pub fn leaves_at(&self) -> Micros {
        self.at
    }

    pub fn is_due(&self, now: Micros) -> bool {
        now >= self.at
    }

    /// All have left: messages from now on leave together.
    fn leave_together(&mut self, now: Micros) {
        self.at = now + self.interval;
    }
}

/// A step of a cursor that counts once so many frames have left.
struct Step {
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
        self.sessions.conns.orders.give(outbox);
        // Connections that want much (history, replies) leave rooms with news half of the slice.
        let left = if self.rounds.is_empty() { 0 } else { outbox.room() / 2 };
        for _ in 0..self.sessions.conns.ready_len() {
            if outbox.room() <= left {
                break;
            }
            let Some(slot) = self.sessions.conns.next_ready() else {
                break;
            };
            self.serve_stream(now, slot, outbox);
        }
        // The room of the last slice comes after those that became active since.
        self.rounds.rotate();
        let (due, mut served) = (self.sessions.fanout.is_due(now), false);
        while due && outbox.room() > 0 {
            let Some(slot) = self.rounds.next(&mut self.rooms) else {
                break;
            };
            served = true;
            self.serve_stream(now, slot, outbox);
        }
        if served && self.rounds.is_empty() {
            self.sessions.fanout.leave_together(now);
        }
        due && !self.rounds.is_empty() || self.sessions.conns.ready_len() > 0
    }

    /// Gives one connection its due messages.
    fn serve_stream(&mut self, now: Micros, slot: u32, outbox: &mut Outbox) {
        let Edge {
            sessions,
            rooms,
            arena,
            counters,
            timers,
            ..
        } = self;
        let Some(conn) = sessions.conns.get_mut(slot) else {
            return;
        };
        let fanout = &mut sessions.fanout;
        conn.queued = false;
        if conn.blocked.is_some() {
            return; // it comes back when its socket has taken all
        }
        let (mut steps, mut endings) = (std::mem::take(&mut fanout.steps), Vec::new());
        steps.clear();
        let (mut bytes, mut paced, mut more, looked) = (0, false, false, Cell::new(0));
        fanout.frames.clear();
        if !conn.over {
            let count = conn.subs.len();
            for step in 0..count {
                let index = (conn.client.turn as usize + step) % count;
                let sub = &conn.subs[index];
                if sub.made && conn.server_subs.pause(now, sub.subscription) {
                    continue; // its gap is told later, and no message passes it
                }
                let Some(room) = rooms.get(sub.room) else {
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
                    if bytes >= WRITE_BYTES_MAX || fanout.frames.len() >= FRAMES_MAX {
                        more = true;
                        break;
                    }
                    let named = (i64::from(sub.room) + 1, form);
                    let filter = (filter, &looked);
                    let turn = fanout.built.latest(room, arena, named, (cursor, now), standing, filter);
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
                        fanout.frames.push(frame);
                    }
                    more |= ends.is_none() && next < head;
                    match ends {
                        Some(News::Lost(reason)) => endings.push(ending(reason.name(), true)),
                        Some(_) => endings.push(ending("another owner", false)),
                        None => {}
                    }
                    if let Some(at) = standing.newest.map(|_| standing.due_at) {
                        timers.wake(slot, at);
                    }
                    paced |= room.paced;
                    steps.push(Step {
                        frames: fanout.frames.len(),
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
                    if bytes >= WRITE_BYTES_MAX || fanout.frames.len() >= FRAMES_MAX || looked.get() > LOOKED_MAX {
                        more = true;
                        break;
                    }
                    let oldest = room.oldest_for(cursor, joined.joined_at);
                    let number = i64::from(sub.room) + 1;
                    let (news, passed) = match filter {
                        _ if cursor < oldest => (News::Lost(GapReason::Slow), 0),
                        None => (fanout.built.news(room, arena, number, cursor, form), 0),
                        Some(filter) => {
                            let filter = (filter, &looked);
                            fanout.built.filtered(room, arena, number, cursor, form, filter)
                        }
                    };
                    let told = matches!(news, News::Messages(..));
                    match news {
                        News::Messages(frame, next) => {
                            form.deltas = form.deltas.behind_a_message();
                            bytes += frame.bytes().len();
                            fanout.frames.push(frame);
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
                        frames: fanout.frames.len(),
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
        let write = &mut fanout.write;
        write.clear();
        let taken = conn.connection.write(&fanout.frames, write);
        more |= taken < fanout.frames.len();
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
        fanout.steps = steps;
        if !write.is_empty() {
            outbox.send(conn.stream, &write.head, &write.shared, &write.tail);
        }
        sessions.counters.frames_built = fanout.built.built;
        let resumes = conn.paused && !conn.connection.is_full();
        let done = conn.connection.is_done();
        if done {
            outbox.close(conn.stream);
            sessions.finish(slot, muster_transport::End::Closed);
            sessions.conns.remove(slot);
            self.cleanup(now);
            return;
        }
        let ended = !endings.is_empty();
        if taken == self.sessions.fanout.frames.len() {
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
