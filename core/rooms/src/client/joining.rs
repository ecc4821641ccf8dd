//! Joining and leaving rooms: requests, their answers, and repeats.

use super::member::{Member, Policy, Shared};
use super::{Client, ClientEvent, Side, REFUSED_MAX};
use crate::filter::Filter;
use crate::name::RoomName;
use crate::wire::publish::Positions;
use crate::wire::record::Record;
use muster_transport::{soonest, Code, Dice, Micros};

/// A record without space in a session's log is tried again after this.
pub(super) const LOG_FULL_WAIT: Micros = 50_000;

/// Maximum number of rooms whose messages may arrive before the reply to their join: the 256 of a session that joins
/// them all at once, and as many that it has just left.
pub(super) const EARLY_MAX: usize = 512;

/// The wait before a refused request is repeated, after this many refusals in a row.
pub(super) fn put_off(dice: &mut Dice, retry_ms: u32, refusals: u32) -> Micros {
    let said = Micros::from(retry_ms.clamp(10, 60_000)) * 1_000;
    let wait = (said << refusals.min(8)).min(REFUSED_MAX.max(said));
    wait + dice.below(wait)
}

/// Whether two names denote one room.
pub(super) fn same_room(one: &str, other: &str) -> bool {
    match (RoomName::parse(one), RoomName::parse(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

impl Client {
    pub(super) fn enter(
        &mut self,
        now: Micros,
        name: &str,
        (positions, history): (Positions, u32),
        filter: Option<Box<Filter>>,
        policy: Policy,
    ) -> u32 {
        if !self.is_joining() {
            self.early.clear(); // of rooms that were left; their handles may be in use again by now
        }
        self.request += 1;
        let mut member = Member::new(name, self.request, positions, policy, self.inbox_bytes, self.hash);
        (member.history, member.filter) = (history, filter);
        let room = match self.rooms.iter().position(Option::is_none) {
            Some(at) => {
                self.rooms[at] = Some(Box::new(member));
                at as u32
            }
            None => {
                self.rooms.push(Some(Box::new(member)));
                self.rooms.len() as u32 - 1
            }
        };
        self.open(now, Side::Gateway);
        self.ask_join(now, room);
        room
    }

    pub(super) fn ask_join(&mut self, now: Micros, room: u32) {
        let Some(member) = self.rooms[room as usize].as_deref_mut() else {
            return;
        };
        let session = &mut self.sessions[Side::Gateway as usize];
        if !session.ready || member.refused {
            return;
        }
        let free = self.leaves.is_empty();
        if let Some(conn) = &mut session.conn {
            let join = Record::Join {
                request: member.request,
                name: member.name.as_bytes(),
                positions: member.positions.clone(),
                history: if member.positions.0.is_empty() {
                    member.history
                } else {
                    0
                },
            };
            let mut filtered = || match &member.filter {
                Some(filter) => conn.record(&Record::Filter {
                    request: member.request,
                    filter: Filter::clone(filter),
                }),
                None => Some(0),
            };
            member.asked = free && filtered().is_some() && conn.record(&join).is_some();
            member.retry_at = (!member.asked).then_some(now + LOG_FULL_WAIT);
            soonest(&mut self.check_at, member.retry_at);
        }
    }

    pub(super) fn tell_leave(&mut self, handle: u32) {
        self.leaves.push_back(handle);
        self.tell_leaves();
    }

    pub(super) fn tell_leaves(&mut self) {
        let Some(conn) = &mut self.sessions[Side::Gateway as usize].conn else {
            return;
        };
        while let Some(handle) = self.leaves.front().copied() {
            if conn.record(&Record::Leave { handle }).is_none() {
                return;
            }
            self.leaves.pop_front();
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
        let found = self
            .handles
            .iter()
            .find(|(known, _)| *known == handle)
            .map(|(_, room)| *room);
        let Some(member) = found.and_then(|room| self.rooms[room as usize].as_deref_mut()) else {
            self.counters.frames_unknown_room += 1;
            self.note_early(handle, upto);
            return;
        };
        act(
            member,
            &mut Shared {
                budget: &mut self.budget,
                now,
            },
        );
        let narrow = member.is_blocked() || member.is_crowded();
        let whole_again = member.is_whole_again();
        soonest(&mut self.check_at, member.deadline());
        if !member.told && !member.reading.is_empty() {
            member.told = true;
            self.events.push_back(ClientEvent::Readable {
                room: found.unwrap_or_default(),
            });
        }
        let conn = self.sessions[Side::Gateway as usize].conn.as_deref();
        if conn.is_some_and(|conn| narrow || conn.receive_window != self.window) {
            self.set_window();
        }
        if let Some(room) = found.filter(|room| whole_again && !self.repairs.contains(room)) {
            self.repairs.push_back(room);
        }
    }

    /// Notes messages of a room whose join is not answered yet, because the reply was lost or overtaken. For the
    /// gateway they have arrived, so the member itself must know that it has to request them.
    pub(super) fn note_early(&mut self, handle: u32, upto: u64) {
        if !self.is_joining() {
            return;
        }
        if let Some((_, known)) = self.early.iter_mut().find(|(known, _)| *known == handle) {
            *known = upto.max(*known);
        } else if self.early.len() < EARLY_MAX {
            self.early.push((handle, upto));
        }
    }

    pub(super) fn is_joining(&self) -> bool {
        let mut rooms = self.rooms.iter().flatten();
        rooms.any(|member| member.handle.is_none() && !member.refused)
    }

    /// The reply to a join came after its room was left: leaves the room, unless it has been joined again since; the
    /// gateway holds one membership for both joins.
    pub(super) fn orphan_joined(&mut self, request: u32, handle: u32) {
        let Some(at) = self.orphans.iter().position(|(known, _)| *known == request) else {
            return;
        };
        let (_, name) = self.orphans.swap_remove(at);
        let mut rooms = self.rooms.iter_mut().flatten();
        match rooms.find(|member| same_room(&member.name, &name)) {
            Some(again) => again.owed = Some(handle).filter(|_| again.handle.is_none()),
            None => self.tell_leave(handle),
        }
    }

    pub(super) fn refused(&mut self, now: Micros, request: u32, code: Code, retry_ms: u32) {
        self.orphans.retain(|(known, _)| *known != request);
        for (at, member) in self
            .rooms
            .iter_mut()
            .enumerate()
            .filter_map(|(at, room)| Some((at, room.as_deref_mut()?)))
        {
            if member.request == request {
                member.asked = false;
                if code.retry() {
                    member.retry_at = Some(now + put_off(&mut self.node.dice, retry_ms, member.refusals));
                    member.refusals += 1;
                    soonest(&mut self.check_at, member.retry_at);
                } else {
                    member.refused = true;
                    soonest(&mut self.check_at, member.deadline());
                    self.events.push_back(ClientEvent::Refused {
                        room: at as u32,
                        publication: false,
                        code,
                    });
                }
                return;
            }
        }
        let mut known = self.publications.iter_mut();
        let Some(publication) = known.find(|known| known.request == request) else {
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
        if self.check_at.is_none_or(|at| now < at) {
            return;
        }
        self.check_at = None;
        let mut joins = Vec::new();
        for (at, room) in self.rooms.iter_mut().enumerate() {
            let Some(member) = room.as_deref_mut() else { continue };
            member.expire(&mut Shared {
                budget: &mut self.budget,
                now,
            });
            if !member.told && !member.reading.is_empty() {
                // The gap of a message that stays unfinished: nothing later may report it.
                member.told = true;
                self.events.push_back(ClientEvent::Readable { room: at as u32 });
            }
            if member.retry_at.is_some_and(|at| now >= at) {
                member.retry_at = None;
                joins.push(at as u32);
            }
            if member.deadline().is_some_and(|due| now >= due) && !self.repairs.contains(&(at as u32)) {
                self.repairs.push_back(at as u32);
            } else {
                soonest(&mut self.check_at, member.deadline());
            }
        }
        joins.into_iter().for_each(|room| self.ask_join(now, room));
    }
}
