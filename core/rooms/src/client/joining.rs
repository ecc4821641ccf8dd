//! Joining and leaving rooms: requests, their answers, and repeats.

use super::member::{Member, Policy, Shared};
use super::{Client, ClientEvent, Side, REFUSED_MAX};
use crate::filter::Filter;
use crate::wire::publish::Positions;
use crate::wire::record::Record;
use muster_transport::{Code, Dice, Micros};

/// A record without space in a session's log is tried again after this.
pub(super) const LOG_FULL_WAIT: Micros = 50_000;

/// The wait before a refused request is repeated, after this many refusals in a row.
pub(super) fn put_off(dice: &mut Dice, retry_ms: u32, refusals: u32) -> Micros {
    let said = Micros::from(retry_ms.clamp(10, 60_000)) * 1_000;
    let wait = (said << refusals.min(8)).min(REFUSED_MAX.max(said));
    wait + dice.below(wait)
}

impl Client {
    pub(super) fn enter(
        &mut self,
        now: Micros,
        name: &str,
        from: (Positions, u32),
        filter: Option<Box<Filter>>,
        policy: Policy,
    ) -> u32 {
        self.request += 1;
        let room = self.rooms.enter(self.request, name, from, filter, policy);
        self.open(now, Side::Gateway);
        self.ask_join(now, room);
        room
    }

    pub(super) fn ask_join(&mut self, now: Micros, room: u32) {
        let free = self.rooms.leaves.is_empty();
        let Some(member) = self.rooms.get_mut(room) else {
            return;
        };
        let session = &mut self.sessions[Side::Gateway as usize];
        if !session.ready || member.join.is_refused() {
            return;
        }
        if let Some(conn) = &mut session.conn {
            let join = Record::Join {
                request: member.join.request,
                name: member.name.as_bytes(),
                positions: member.positions.clone(),
                history: if member.positions.0.is_empty() {
                    member.join.history
                } else {
                    0
                },
            };
            let mut filtered = || match &member.filter {
                Some(filter) => conn.record(&Record::Filter {
                    request: member.join.request,
                    filter: Filter::clone(filter),
                }),
                None => Some(0),
            };
            let told = free && filtered().is_some() && conn.record(&join).is_some();
            member.join.ask(now, told);
            let retry_at = member.join.retry_at;
            self.rooms.check(retry_at);
        }
    }

    pub(super) fn tell_leave(&mut self, handle: u32) {
        self.rooms.leaves.push_back(handle);
        self.tell_leaves();
    }

    pub(super) fn tell_leaves(&mut self) {
        let Some(conn) = &mut self.sessions[Side::Gateway as usize].conn else {
            return;
        };
        while let Some(handle) = self.rooms.leaves.front().copied() {
            if conn.record(&Record::Leave { handle }).is_none() {
                return;
            }
            self.rooms.leaves.pop_front();
        }
    }

    /// Applies a report on places below `upto` to the room of `handle`.
    pub(super) fn with_room(
        &mut self,
        now: Micros,
        handle: u32,
        upto: u64,
        act: impl FnOnce(&mut Member, &mut Shared<'_>),
    ) {
        let Some(reported) = self.rooms.report(now, handle, act) else {
            self.counters.frames_unknown_room += 1;
            self.rooms.note_early(handle, upto);
            return;
        };
        if reported.readable {
            self.events.push_back(ClientEvent::Readable { room: reported.room });
        }
        let conn = self.sessions[Side::Gateway as usize].conn.as_deref();
        if conn.is_some_and(|conn| reported.narrow || conn.receive_window != self.window) {
            self.set_window();
        }
        if reported.whole_again {
            self.rooms.repair(reported.room);
        }
    }

    /// The reply to a join came after its room was left: leaves the room, unless it has been joined again since; the
    /// gateway holds one membership for both joins.
    pub(super) fn orphan_joined(&mut self, request: u32, handle: u32) {
        let Some(name) = self.rooms.take_orphan(request) else {
            return;
        };
        match self.rooms.named(&name) {
            Some(again) => again.join.owed = Some(handle).filter(|_| again.join.handle.is_none()),
            None => self.tell_leave(handle),
        }
    }

    pub(super) fn refused(&mut self, now: Micros, request: u32, code: Code, retry_ms: u32) {
        self.rooms.take_orphan(request);
        if let Some(room) = self.rooms.by_request(request) {
            let Some(member) = self.rooms.get_mut(room) else { return };
            let check_at = match code.retry() {
                true => {
                    let wait = put_off(&mut self.node.dice, retry_ms, member.join.refusals);
                    member.join.put_off(now + wait);
                    member.join.retry_at
                }
                false => {
                    member.join.refuse();
                    self.events.push_back(ClientEvent::Refused {
                        room,
                        publication: false,
                        code,
                    });
                    member.deadline()
                }
            };
            return self.rooms.check(check_at);
        }
        let Some(publication) = self.publications.by_request(request) else {
            return;
        };
        if code.retry() {
            publication.retry_at = Some(now + put_off(&mut self.node.dice, retry_ms, publication.refusals));
            publication.refusals += 1;
            return;
        }
        publication.refuse(code);
        self.events.push_back(ClientEvent::Refused {
            room: publication.number,
            publication: true,
            code,
        });
    }

    pub(super) fn expire_rooms(&mut self, now: Micros) {
        let events = &mut self.events;
        let readable = |room| events.push_back(ClientEvent::Readable { room });
        for room in self.rooms.expire(now, readable) {
            self.ask_join(now, room);
        }
    }
}
