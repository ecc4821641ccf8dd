//! A client's rooms: members by number, by the gateway's handle and by request, and what is on its way to the gateway.
//!
//! Owns the members, their shared memory, and the joins, leaves and requests that wait. Knows no session: `joining`
//! puts records into its log.

use std::collections::VecDeque;
use std::ops::Range;

use muster_transport::{soonest, KeyedState, Micros, Writer};

use super::member::{Member, Policy, Shared};
use crate::chunks::Budget;
use crate::filter::Filter;
use crate::limits::CROWDED_WINDOW;
use crate::name::RoomName;
use crate::wire::publish::Positions;
use crate::wire::room::write_repair;

/// Maximum number of rooms whose messages may arrive before the reply to their join: the 256 of a session that joins
/// them all at once, and as many that it has just left.
const EARLY_MAX: usize = 512;

/// Bytes that a request for one room's missing places may need.
const REPAIR_BYTES: usize = 256;

/// Whether two names denote one room.
fn same_room(one: &str, other: &str) -> bool {
    match (RoomName::parse(one), RoomName::parse(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// What a report of the gateway did to a room.
pub(super) struct Reported {
    pub(super) room: u32,
    /// The program must be told that there is something to read.
    pub(super) readable: bool,
    /// The room takes less than the gateway may send.
    pub(super) narrow: bool,
    /// The gateway must learn that nothing is missing anymore.
    pub(super) whole_again: bool,
}

/// The rooms of a client.
pub(super) struct Rooms {
    members: Vec<Option<Box<Member>>>,
    /// Rooms by handle; a client has only a few.
    handles: Vec<(u32, u32)>,
    /// Rooms with missing places to request.
    repairs: VecDeque<u32>,
    /// Joins that were cancelled before they were answered.
    orphans: Vec<(u32, Box<str>)>,
    /// Handles and known places of rooms whose join is not answered yet.
    early: Vec<(u32, u64)>,
    /// Handles whose leave found no space in the log yet. Joins wait for them.
    pub(super) leaves: VecDeque<u32>,
    /// When a room needs time next.
    check_at: Option<Micros>,
    budget: Budget,
    /// Maximum number of unread bytes per room.
    inbox_bytes: usize,
    hash: KeyedState,
}

impl Rooms {
    pub(super) fn new(inbox_bytes: usize, hash: KeyedState) -> Self {
        Rooms {
            members: Vec::new(),
            handles: Vec::new(),
            repairs: VecDeque::new(),
            orphans: Vec::new(),
            early: Vec::new(),
            leaves: VecDeque::new(),
            check_at: None,
            budget: Budget::default(),
            inbox_bytes,
            hash,
        }
    }

    /// Adds a room. Returns its number.
    pub(super) fn enter(
        &mut self,
        request: u32,
        name: &str,
        (positions, history): (Positions, u32),
        filter: Option<Box<Filter>>,
        policy: Policy,
    ) -> u32 {
        if !self.is_joining() {
            self.early.clear(); // of rooms that were left; their handles may be in use again by now
        }
        let mut member = Member::new(name, request, positions, policy, self.inbox_bytes, self.hash);
        (member.join.history, member.filter) = (history, filter);
        let member = Some(Box::new(member));
        match self.members.iter().position(Option::is_none) {
            Some(at) => {
                self.members[at] = member;
                at as u32
            }
            None => {
                self.members.push(member);
                self.members.len() as u32 - 1
            }
        }
    }

    /// Removes a room. Returns the handles that must be left, in order; `None`: there is no such room.
    pub(super) fn leave(&mut self, room: u32) -> Option<impl Iterator<Item = u32>> {
        let mut member = self.members.get_mut(room as usize).and_then(Option::take)?;
        member.close(&mut self.budget);
        let (owed, handle) = (member.join.owed, member.join.handle);
        match handle {
            Some(handle) => self.handles.retain(|(known, _)| *known != handle),
            None if member.join.is_asked() => self.orphans.push((member.join.request, member.name)),
            None => {}
        }
        Some(owed.into_iter().chain(handle))
    }

    /// The numbers of all rooms, and of free places among them.
    pub(super) fn numbers(&self) -> Range<u32> {
        0..self.members.len() as u32
    }

    pub(super) fn get(&self, room: u32) -> Option<&Member> {
        self.members.get(room as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, room: u32) -> Option<&mut Member> {
        self.members.get_mut(room as usize)?.as_deref_mut()
    }

    /// A room with what all rooms share.
    pub(super) fn with_shared(&mut self, now: Micros, room: u32) -> Option<(&mut Member, Shared<'_>)> {
        let member = self.members.get_mut(room as usize)?.as_deref_mut()?;
        let budget = &mut self.budget;
        Some((member, Shared { budget, now }))
    }

    /// The room of a handle.
    pub(super) fn by_handle(&self, handle: u32) -> Option<u32> {
        let found = self.handles.iter().find(|(known, _)| *known == handle);
        found.map(|(_, room)| *room)
    }

    /// The room of a request.
    pub(super) fn by_request(&self, request: u32) -> Option<u32> {
        let is_its = |room: &Option<Box<Member>>| room.as_deref().is_some_and(|room| room.join.request == request);
        self.members.iter().position(is_its).map(|at| at as u32)
    }

    /// Whether the gateway has answered a join.
    pub(super) fn has_joined(&self) -> bool {
        !self.handles.is_empty()
    }

    /// Whether a join is not answered yet.
    fn is_joining(&self) -> bool {
        let mut members = self.members.iter().flatten();
        members.any(|member| member.join.is_open())
    }

    /// Sets the handle of a room. Returns the place below which messages came before.
    pub(super) fn set_handle(&mut self, room: u32, handle: u32) -> Option<u64> {
        self.handles.retain(|(known, other)| *known != handle && *other != room);
        self.handles.push((handle, room));
        let early = self.early.iter().position(|(known, _)| *known == handle);
        early.map(|at| self.early.swap_remove(at).1)
    }

    /// The cancelled join of this request, if it was not answered: the name of its room.
    pub(super) fn take_orphan(&mut self, request: u32) -> Option<Box<str>> {
        let at = self.orphans.iter().position(|(known, _)| *known == request)?;
        Some(self.orphans.swap_remove(at).1)
    }

    /// The room with this name.
    pub(super) fn named(&mut self, name: &str) -> Option<&mut Member> {
        let mut members = self.members.iter_mut().flatten();
        members
            .find(|member| same_room(&member.name, name))
            .map(|member| &mut **member)
    }

    /// Applies a report to the room of `handle`. `None`: there is none.
    #[inline]
    pub(super) fn report(
        &mut self,
        now: Micros,
        handle: u32,
        act: impl FnOnce(&mut Member, &mut Shared<'_>),
    ) -> Option<Reported> {
        let room = self.by_handle(handle)?;
        let (member, mut shared) = self.with_shared(now, room)?;
        act(member, &mut shared);
        let reported = Reported {
            room,
            readable: member.is_readable() && member.tell(),
            narrow: member.is_blocked() || member.is_crowded(),
            whole_again: member.is_whole_again(),
        };
        let deadline = member.deadline();
        soonest(&mut self.check_at, deadline);
        Some(reported)
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

    /// A room needs time at `at`.
    pub(super) fn check(&mut self, at: Option<Micros>) {
        soonest(&mut self.check_at, at);
    }

    /// When [`Rooms::expire`] is due.
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.check_at
    }

    /// Runs the due timers of rooms; calls `readable` for each that the program must be told of. Returns the rooms
    /// whose join is repeated.
    pub(super) fn expire(&mut self, now: Micros, mut readable: impl FnMut(u32)) -> Vec<u32> {
        let mut joins = Vec::new();
        if self.check_at.is_none_or(|at| now < at) {
            return joins;
        }
        self.check_at = None;
        for room in self.numbers() {
            let Some((member, mut shared)) = self.with_shared(now, room) else {
                continue;
            };
            member.expire(&mut shared);
            if member.is_readable() && member.tell() {
                // The gap of a message that stays unfinished: nothing later may report it.
                readable(room);
            }
            if member.join.take_retry(now) {
                joins.push(room);
            }
            let deadline = member.deadline();
            if deadline.is_some_and(|due| now >= due) && !self.repairs.contains(&room) {
                self.repairs.push_back(room);
            } else {
                soonest(&mut self.check_at, deadline);
            }
        }
        joins
    }

    /// A room has something to tell the gateway about missing places.
    pub(super) fn repair(&mut self, room: u32) {
        if !self.repairs.contains(&room) {
            self.repairs.push_back(room);
        }
    }

    /// Whether a room has something to tell the gateway about missing places.
    #[inline]
    pub(super) fn has_repairs(&self) -> bool {
        !self.repairs.is_empty()
    }

    /// Writes requests for missing places, as far as they fit.
    pub(super) fn write_repairs(&mut self, now: Micros, rtt: Micros, writer: &mut Writer<'_>) {
        while let Some(room) = self.repairs.front().copied() {
            if let Some(member) = self.members[room as usize].as_deref_mut() {
                if writer.room() < REPAIR_BYTES {
                    break;
                }
                if let Some(lack) = member.ask(now, rtt) {
                    write_repair(writer, lack.handle, lack.next, &lack.ranges);
                }
                soonest(&mut self.check_at, member.deadline());
            }
            self.repairs.pop_front();
        }
    }

    /// How much of a window the gateway may use, which all rooms share: nothing while one room is blocked, little while
    /// one is crowded.
    pub(super) fn narrow(&self, window: u32) -> u32 {
        let rooms = || self.members.iter().flatten();
        if rooms().any(|room| room.is_blocked()) {
            0
        } else if rooms().any(|room| room.is_crowded()) {
            window.min(CROWDED_WINDOW)
        } else {
            window
        }
    }

    /// The session with the gateway is lost, and with it all handles.
    pub(super) fn lost_session(&mut self) {
        self.handles.clear();
        self.orphans.clear();
        self.leaves.clear();
        self.early.clear();
        self.repairs.clear();
        let members = self.members.iter_mut().flatten();
        members.for_each(|member| member.lost_session());
    }
}
