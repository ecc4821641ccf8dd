//! Members that join and leave rooms: who waits for what, is admitted, proven, refused.

use super::filtering::Filtering;
use super::members::Members;
use super::room::{Lack, Reach, Returning, Room, Start, Waiting};
use super::{Gateway, Joined, ANSWER_WAIT, HEAD_FIRST, HEAD_MAX, HISTORY, JOINS, JOIN_WAIT, SESSION_ROOMS};
use crate::accounts::AccountId;
use crate::limits::ROOMS_MAX;
use crate::name::{RoomKey, RoomName};
use crate::owners::Owners;
use crate::rights::Rights;
use crate::wire::publish::Positions;
use crate::wire::record::Record;
use crate::wire::StreamId;
use muster_transport::{Code, Links, Micros, Placement};
use std::collections::BTreeSet;

/// The way to the broker of a stream, in the life that the stream is of.
pub(super) fn reach(now: Micros, links: &Links, placement: &Placement, owners: &Owners, stream: StreamId) -> Reach {
    let node = stream.node;
    let (linked, epoch) = (links.to(node).is_some(), links.epoch_of(node));
    if placement.node(node).is_none() || epoch.is_some_and(|epoch| epoch > stream.epoch) {
        return Reach::Gone;
    }
    match (linked, epoch == Some(stream.epoch)) {
        (true, true) => Reach::Linked,
        (true, false) => Reach::MaySpeak,
        (false, _) if owners.may_speak(now, node) => Reach::MaySpeak,
        (false, _) => Reach::Gone,
    }
}

impl<S: Members> Gateway<S> {
    pub(super) fn join(
        &mut self,
        now: Micros,
        slot: u32,
        request: u32,
        name: &[u8],
        (positions, history): (Positions, u32),
    ) -> Result<(), Code> {
        self.join_or_peek(now, slot, request, name, (positions, history), false)
    }

    /// The same; or (`peek`) an answer as to a join, without a place in the room.
    pub(super) fn join_or_peek(
        &mut self,
        now: Micros,
        slot: u32,
        request: u32,
        name: &[u8],
        (positions, history): (Positions, u32),
        peek: bool,
    ) -> Result<(), Code> {
        let name = RoomName::from_bytes(name).map_err(|_| Code::BadRoomName)?;
        let Some(session) = self.sessions.session_of(slot) else {
            return Ok(());
        };
        let Some(client) = self.sessions.client_mut(slot) else {
            return Ok(());
        };
        let (key, granted) = (self.rules.key_of(&name), client.grant.of(&name));
        let rights = self.sessions.rights(slot, &key, granted);
        let needed = match peek {
            true => Rights::HISTORY,
            false => Rights::READ,
        };
        if !rights.has(needed) || history > 0 && !rights.has(Rights::HISTORY) {
            return Err(Code::NotAllowed);
        }
        if history > self.rules.history_max {
            return Err(Code::TooMuchHistory);
        }
        let Some(client) = self.sessions.client_mut(slot) else {
            return Ok(());
        };
        if std::mem::replace(&mut client.session, session) != session {
            client.allowance_at = now;
        }
        let joined = &client.joined;
        let again = |at: &u32| joined.iter().any(|known| known.room == *at);
        let full = joined.len() + client.waiting as usize >= SESSION_ROOMS;
        let again = self.rooms.find(key.id).is_some_and(|at| again(&at));
        let account = client.account;
        if full && !again {
            return Err(Code::TooManyRooms);
        }
        if !again && account.is_some_and(|id| !self.accounts.has_place(id)) {
            self.counters.joins_refused_user += 1;
            return Err(Code::TooManyRooms);
        }
        if !client.joins.take(now, JOINS, 1) {
            return Err(Code::RateLimited);
        }
        let at = self.open_room(now, key, &name, account)?;
        let Some(room) = self.rooms.get_mut(at) else {
            return Err(Code::Busy);
        };
        if let Some(code) = room.refused {
            return Err(code);
        }
        if room.waiting.len() >= ROOMS_MAX {
            return Err(Code::Busy);
        }
        room.empty_since = None;
        let mut filter = None;
        if let Some(client) = self.sessions.client_mut(slot) {
            filter = client.filter_of(request);
            client.waiting += 1;
            account.iter().for_each(|id| self.accounts.join(*id));
        }
        let filter = filter.map(Box::new);
        let waiting = Waiting {
            session,
            filter,
            request,
            peek,
            positions,
            history,
            since: now,
            asked_before: self.reports.questions(),
            tried: None,
            lacks: None,
        };
        let asked_around = waiting.wants_past() && room.ask_around_at.is_some_and(|at| now < at);
        let first = room.waiting.len();
        room.waiting.push(waiting);
        // A further waiting member causes no look at the others, and none at itself while brokers are being asked.
        if !asked_around {
            self.admit(now, at, first, None);
        }
        self.schedule_room(now, at);
        Ok(())
    }

    /// The room with this key, made if it is new: for a session with this account, which may have at most as many as would
    /// be left for others.
    pub(super) fn open_room(
        &mut self,
        now: Micros,
        key: RoomKey,
        name: &RoomName<'_>,
        account: Option<AccountId>,
    ) -> Result<u32, Code> {
        if let Some(at) = self.rooms.find(key.id) {
            let same = self.rooms.get(at).is_some_and(|room| room.check == key.check);
            return if same { Ok(at) } else { Err(Code::NameCollision) };
        }
        let left = self.rooms.left();
        if left <= account.map_or(0, |id| self.accounts.places(id)) {
            self.counters.joins_refused_rooms += 1;
            return Err(Code::Busy);
        }
        let paced = self.rules.paces(name);
        let frames = self.segments.name();
        let mut room = Box::new(Room::new(key.id, key.check, &name.to_string(), paced, frames));
        room.ring.home.space = self.arena.number(name.namespace());
        let at = self.rooms.add(key.id, room);
        self.tell_membership(now, at, true);
        self.schedule_room(now, at);
        Ok(at)
    }

    /// Admits members that wait for this room and can start now. History that was awaited since before `ended` will not
    /// come.
    pub(super) fn admit_waiting(&mut self, now: Micros, at: u32, ended: Option<Micros>) {
        if let Some(room) = self.rooms.get_mut(at) {
            room.note_said();
        }
        self.admit(now, at, 0, ended);
    }

    /// The same where nothing but messages may have come.
    pub(super) fn admit_fetched(&mut self, now: Micros, at: u32) {
        let room = self.rooms.get(at);
        if room.is_some_and(|room| !room.waiting.is_empty() && room.has_what_is_lacked()) {
            self.admit(now, at, 0, None);
        }
    }

    /// The same of those from `first` on in the order in which they came.
    pub(super) fn admit(&mut self, now: Micros, at: u32, first: usize, ended: Option<Micros>) {
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        if room.waiting.len() <= first || !self.is_ready(now, room) {
            return;
        }
        // A member that returns, or wants history, is owed earlier messages, also of brokers that have not reported
        // them yet.
        let looked_at = &room.waiting[first..];
        let returning = looked_at.iter().any(Waiting::returns);
        let (unheard, hears) = if looked_at.iter().any(Waiting::wants_past) {
            (self.unheard(now, room, looked_at), self.hears_owners(now, room))
        } else {
            (Vec::new(), false)
        };
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let (links, placement, owners) = (&self.links, &self.placement, &self.owners);
        let reach = |stream| reach(now, links, placement, owners, stream);
        let mut asked: BTreeSet<u32> = unheard.iter().copied().collect();
        let (mut still, mut came, mut back) = (Vec::new(), Vec::new(), Vec::new());
        for mut waiting in room.waiting.split_off(first) {
            let Some(slot) = self.sessions.slot_of(waiting.session) else {
                continue;
            };
            let carrier = self.sessions.carrier(slot);
            let Some(client) = self.sessions.client_mut(slot) else {
                continue;
            };
            let tried = *waiting.tried.get_or_insert(now);
            let waits_for_history = matches!(waiting.lacks, Some(Lack::History(..)));
            // A member whose positions never become known is not kept waiting forever.
            let overdue = now >= tried + JOIN_WAIT;
            let last_try = waits_for_history && ended.is_some_and(|ended| tried <= ended) || overdue;
            if waiting.wants_past() && !unheard.is_empty() && !last_try {
                waiting.lacks = None;
                still.push(waiting);
                continue;
            }
            if waiting.lacks.is_some_and(|lack| !room.has_come(lack)) && !last_try {
                let unknown = room
                    .to_ask(&waiting.positions)
                    .filter(|had| reach(*had) == Reach::Linked);
                asked.extend(unknown.map(|had| had.node));
                still.push(waiting);
                continue;
            }
            let counters = &mut self.counters;
            let may_fetch = |count| {
                let may = client.history.take(now, HISTORY, count as u32);
                counters.dropped_history_limit += u64::from(!may);
                may
            };
            let positions = &waiting.positions;
            let member = Returning {
                positions,
                asked_before: waiting.asked_before,
                last_try,
                overdue,
                drops_covered: S::DROPS_COVERED,
            };
            let start = match positions.0.is_empty() {
                true => room.start_with(&self.arena, now, waiting.history, last_try, may_fetch),
                false => room.start(&self.arena, now, &member, reach, may_fetch),
            };
            let (place, gaps, history) = match start {
                Start::At { place, gaps, history } => (place, gaps, history),
                Start::Fetch(lack) => {
                    let unknown = room.to_ask(positions).filter(|had| reach(*had) == Reach::Linked);
                    asked.extend(unknown.map(|had| had.node));
                    waiting.lacks = Some(lack);
                    still.push(waiting);
                    continue;
                }
            };
            let unproven = !waiting.peek && room.note_unproven(waiting.session, &member);
            client.waiting -= 1;
            let head = room.ring.next();
            let mut since = if waiting.peek { 0 } else { client.comes_back(room.id) };
            match client.joined.iter_mut().find(|joined| joined.room == at) {
                _ if waiting.peek => client.account.iter().for_each(|id| self.accounts.part(*id, 1)),
                // A member already: it left and came back before it was told that it was one.
                Some(joined) => {
                    (joined.cursor, joined.carrier, joined.joined_at) = (place, carrier, head);
                    client.account.iter().for_each(|id| self.accounts.part(*id, 1));
                    since = self.counters.commands_received;
                }
                None => {
                    // Most sessions are members of one room: no spare places.
                    client.joined.reserve_exact(1);
                    client.joined.push(Joined {
                        room: at,
                        carrier,
                        cursor: place,
                        seat: room.members.len() as u32,
                        joined_at: head,
                        head_due: false,
                        counted: None,
                        given_up: false,
                        filtered: false,
                    });
                    room.members.push(slot);
                    room.empty_since = None;
                    room.round.joined();
                    self.members += 1;
                }
            }
            let mut messages = history.messages;
            if !waiting.peek {
                let filter = waiting.filter.take().map(|filter| Filtering::new(at, *filter, place));
                if let Some(joined) = client.joined.iter_mut().find(|joined| joined.room == at) {
                    joined.filtered = filter.is_some();
                }
                if let Some(filter) = filter.as_ref().filter(|_| messages > 0) {
                    messages = filter.messages_from(room, &self.arena, place);
                }
                client.set_filter(at, filter);
            }
            let joined = Record::Joined {
                request: waiting.request,
                handle: at,
                index: place,
                start: room.position_at(&self.arena, place),
                heads: room.heads().collect(),
                gaps,
                history: messages,
                whole: unheard.is_empty()
                    && !unproven
                    && (S::DROPS_COVERED || !room.lags(positions))
                    && match positions.0.is_empty() {
                        true => history.whole,
                        false => {
                            let announced = !self.owners.were_several() || room.heard_since(positions);
                            hears && announced && !room.lost_since(positions)
                        }
                    },
            };
            self.counters.joins += u64::from(!waiting.peek);
            self.sessions.tell(slot, &joined);
            if waiting.peek {
                continue;
            }
            came.push(slot);
            if waiting.returns() {
                room.returned = true;
                back.push((slot, since));
            }
        }
        room.keep_waiting(still, first == 0);
        room.note_empty(now);
        let id = room.id;
        let asks = room.has_past_wanted() && !asked.is_empty();
        let due = asks && room.ask_around_at.is_none_or(|at| now >= at);
        if due || !asks && first == 0 {
            room.ask_around_at = due.then_some(now + HEAD_FIRST);
        }
        if due {
            self.ask_around(at, asked);
        }
        came.into_iter().for_each(|slot| self.note_cursors(slot));
        back.into_iter()
            .for_each(|(slot, since)| self.tell_commands(now, slot, id, since));
        if returning {
            self.settle_commands(now, id);
        }
        self.schedule_room(now, at);
    }

    /// Asks brokers that can be asked again what they have numbered, for members that came in without that being known. Those that
    /// have offsets that their broker never numbered would hear nothing until it has: their sessions end, so that they ask again,
    /// and then learn it.
    pub(super) fn prove(&mut self, now: Micros, at: u32) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let Some((due, until)) = room.proofs.as_ref().and_then(|proofs| proofs.asks) else {
            return;
        };
        let (links, placement, owners) = (&self.links, &self.placement, &self.owners);
        let linked = |stream| reach(now, links, placement, owners, stream) == Reach::Linked;
        let ended = |stream| now >= until && linked(stream);
        let denied = room.take_denied(ended);
        let nodes: BTreeSet<u32> = room
            .unproven()
            .filter(|stream| linked(*stream))
            .map(|stream| stream.node)
            .collect();
        let asks = !nodes.is_empty() && now >= due;
        if let Some(proofs) = &mut room.proofs {
            proofs.asks = (!nodes.is_empty()).then_some((if asks { now + HEAD_MAX } else { due }, until));
        }
        if asks {
            self.ask_around(at, nodes);
        }
        for session in denied {
            let member = self.sessions.slot_of(session).and_then(|slot| {
                let client = self.sessions.client(slot)?;
                client.joined.iter().any(|joined| joined.room == at).then_some(slot)
            });
            if let Some(slot) = member {
                self.sessions.refuse(now, slot, Code::Busy);
            }
        }
    }

    /// Refuses members that wait too long for a room that is not ready; the client asks again.
    pub(super) fn refuse_overdue(&mut self, now: Micros, at: u32) {
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        // They wait in the order in which they came.
        let overdue = room
            .waiting
            .partition_point(|waiting| now >= waiting.since + ANSWER_WAIT);
        self.refuse_waiting(now, at, overdue, Code::NotReady);
    }

    /// Refuses the members that have waited longest.
    pub(super) fn refuse_waiting(&mut self, now: Micros, at: u32, count: usize, code: Code) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let refused: Vec<Waiting> = room.waiting.drain(..count).collect();
        room.note_empty(now);
        let returning = refused.iter().any(Waiting::returns).then_some(room.id);
        for waiting in refused {
            let Some(slot) = self.sessions.slot_of(waiting.session) else {
                continue;
            };
            if let Some(client) = self.sessions.client_mut(slot) {
                client.waiting -= 1;
                client.account.iter().for_each(|id| self.accounts.part(*id, 1));
            }
            self.counters.joins_refused += 1;
            self.refuse(slot, waiting.request, code);
        }
        if let Some(id) = returning {
            self.settle_commands(now, id);
        }
    }

    /// The router or the owner has no space for a room, or the owner has another room under its number. Waiting members
    /// are refused. Present members must join again and are then refused too, as silence would look like a quiet room.
    pub(super) fn room_refused(&mut self, now: Micros, id: u64, code: Code) {
        let Some(at) = self.rooms.find(id) else { return };
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        room.refused = Some(code);
        let (waiting, members) = (room.waiting.len(), room.members.clone());
        self.refuse_waiting(now, at, waiting, code);
        for slot in members {
            self.sessions.refuse(now, slot, Code::Busy);
        }
        self.schedule_room(now, at);
    }

    pub(super) fn leave(&mut self, now: Micros, slot: u32, handle: u32) {
        let Some(client) = self.sessions.client_mut(slot) else {
            return;
        };
        let Some(at) = client.joined.iter().position(|joined| joined.room == handle) else {
            return;
        };
        let joined = client.joined.swap_remove(at);
        client.account.iter().for_each(|id| self.accounts.part(*id, 1));
        client.forget_repairs(handle);
        client.set_filter(handle, None);
        if let Some(room) = self.rooms.get(handle).map(|room| room.id) {
            client.goes(room, self.counters.commands_received);
            let session = client.session;
            self.commands_left(now, session, room);
        }
        self.unseat(now, slot, &joined);
    }

    /// Takes a member out of a room's list.
    pub(super) fn unseat(&mut self, now: Micros, slot: u32, joined: &Joined) {
        let Some(room) = self.rooms.get_mut(joined.room) else {
            return;
        };
        room.stragglers.passes(slot, joined.counted);
        let seat = joined.seat as usize;
        if room.members.get(seat) != Some(&slot) {
            return; // taken out with another one, below
        }
        self.counters.leaves += 1;
        room.stragglers.forget(slot);
        room.members.swap_remove(seat);
        self.members -= 1;
        while let Some(moved) = room.members.get(seat).copied() {
            if let Some(client) = self.sessions.client_mut(moved) {
                if let Some(other) = client.joined.iter_mut().find(|other| other.room == joined.room) {
                    other.seat = joined.seat;
                }
                if room.round.is_under_way() {
                    self.sessions.mark(moved); // it may move from a seat before its turn to one after
                }
                break;
            }
            // The session in this seat ended in the same turn and cannot be told its new seat.
            self.counters.leaves += 1;
            room.stragglers.forget(moved);
            room.members.swap_remove(seat);
            self.members -= 1;
        }
        room.note_empty(now);
        if room.members.is_empty() {
            self.schedule_room(now, joined.room);
        } else {
            self.note_paced(joined.room);
        }
    }

    /// Forgets a room that has been empty long enough, and tells the router.
    pub(super) fn close_room(&mut self, now: Micros, at: u32) {
        self.tell_membership(now, at, false);
        let Some(id) = self.rooms.get(at).map(|room| room.id) else {
            return;
        };
        self.forget_relays_in(now, id);
        if let Some((_, mut room)) = self.rooms.remove(id) {
            room.drop_held(&mut self.counters);
        }
        self.timers.forget_room(at);
    }
}
