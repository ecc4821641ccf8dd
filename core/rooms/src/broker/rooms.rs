//! Rooms of a broker: opened, renewed, ended, gained from another broker.

use super::room::Room;
use super::{enqueue, Broker, DETOUR_IDLE, ROOM_IDLE, SWEEP_EVERY, SWEPT_AT_ONCE};
use crate::interest::Change;
use crate::layers::RoomLayers;
use muster_transport::{Code, Micros, Placement, Scope};

impl Broker {
    /// The room's slot; opens the room if it is new. If a room is new or resumes, the gateways that want it get its
    /// head.
    pub(super) fn open_room(&mut self, now: Micros, id: u64, check: u64) -> Result<u32, Code> {
        if let Some((at, room)) = self.rooms.named_mut(id) {
            if room.check != check {
                return Err(Code::NameCollision);
            }
            let goes_on = std::mem::take(&mut room.ended);
            if goes_on {
                room.used_at = now;
            }
            if self.generations.are_over(room.generation) {
                self.renew_room(now, at);
            } else if goes_on {
                self.tell_heads(at);
            }
            return Ok(at);
        }
        if self.rooms.left() == 0 {
            return Err(Code::Busy);
        }
        self.generations.raise();
        let generation = self.generations.last();
        let mut room = Box::new(Room::new(id, check, generation, self.segments.name(), now));
        for gateway in self.interest.who_wants(id, check) {
            room.add_gateway(now, gateway, self.life_of(gateway));
        }
        let at = self.rooms.add(id, room);
        self.counters.rooms_made += 1;
        self.tell_heads(at);
        Ok(at)
    }

    /// A gateway has more of a stream than this broker ever numbered, or has a later stream: the broker has come back from an
    /// earlier state of this life, as of a snapshot. Its offsets would be given twice, so all of its rooms begin new streams:
    /// this one at once, others before they number anything. A gateway's word is enough; a member's never is.
    pub(super) fn came_back(&mut self, now: Micros, at: Option<u32>, generation: u32) {
        let known = at.and_then(|at| self.rooms.get(at));
        let (here, ended) = known.map_or((0, false), |room| (room.generation, room.ended));
        self.counters.rolled_back += u64::from(self.generations.came_back(here, generation));
        if let Some(at) = at.filter(|_| !ended) {
            self.renew_room(now, at);
        }
    }

    /// Begins a new stream of a room. Gateways learn of it, and tell their members that the rest of the former one is lost.
    pub(super) fn renew_room(&mut self, now: Micros, at: u32) {
        let (generation, frames) = (self.generations.raise(), self.segments.name());
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        room.restart(now, generation, frames);
        self.tell_heads(at);
    }

    /// Schedules a room's head for all gateways that want the room.
    pub(super) fn tell_heads(&mut self, at: u32) {
        for place in 0.. {
            let room = self.rooms.get(at);
            let Some(gateway) = room.and_then(|room| Some(room.gateways.get(place)?.gateway)) else {
                return;
            };
            self.head_due(at, gateway);
        }
    }

    /// Another broker continues a room: its gateways learn where it ends here.
    pub(super) fn end_room(&mut self, now: Micros, at: u32) {
        let Some(room) = self.rooms.get_mut(at).filter(|room| !room.ended) else {
            return;
        };
        room.ended = true;
        self.counters.rooms_handed_over += 1;
        self.dissolve_tree(now, at);
        self.tell_heads(at);
    }

    /// The placement changed: rooms of other brokers end here now, and our rooms begin. A room that is here only
    /// while its owner has no link ends now if it may no longer be here, otherwise later.
    pub(super) fn placed(&mut self, now: Micros, before: &Placement) {
        let me = self.node.me.node;
        for at in 0..self.rooms.end() as u32 {
            let room = self.rooms.get(at);
            let moved = |room: &Room| before.own().owner(room.id) == Some(me) && !self.owns(room.id);
            if room.is_some_and(|room| moved(room) || !self.may_own(room.id)) {
                self.end_room(now, at);
            }
        }
        let placement = &self.placement;
        let owns = |room| placement.own().owner(room) == Some(me);
        for (gateway, _) in self.interest.gateways() {
            let wanted = self.interest.rooms_of(gateway, Scope::ALL);
            let wanted = wanted.filter(|known| owns(known.room) && before.own().owner(known.room) != Some(me));
            self.gains.extend(wanted.map(|known| Change {
                gateway,
                room: known.room,
                check: known.check,
                present: true,
            }));
        }
        self.gain(now);
    }

    /// Begins some of the gained rooms, so that gateways learn their heads.
    pub(super) fn gain(&mut self, now: Micros) {
        for change in self.gains.due(now) {
            let wants = self.interest.wants(change.gateway, change.room) == Some(change.check);
            if wants && self.owns(change.room) {
                self.interest_changed(now, change);
            }
        }
    }

    /// Schedules a room's head for a gateway.
    pub(super) fn head_due(&mut self, at: u32, node: u32) {
        let Some(gateway) = self.gateways.get_mut(&node) else {
            return;
        };
        let slot = gateway.link;
        let Some(cursor) = self.rooms.get_mut(at).and_then(|room| room.cursor(node)) else {
            return;
        };
        if !cursor.head_due {
            cursor.head_due = true;
            enqueue(&mut gateway.heads, at, self.rooms.end());
        }
        self.links.table.mark(slot);
    }

    pub(super) fn sweep(&mut self, now: Micros) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP_EVERY;
        self.forget_unnamed(now);
        for _ in 0..self.rooms.end().min(SWEPT_AT_ONCE) {
            let next = self.rooms.next_turn();
            let Some((at, room)) = next.and_then(|at| Some((at, self.rooms.get_mut(at)?))) else {
                continue;
            };
            room.ring.trim(&self.arena);
            let rests = room.tree_rests(now);
            let idle = now.saturating_sub(room.used_at);
            let (id, ended) = (room.id, room.ended);
            let unused = (room.gateways.is_empty() || ended) && room.withheld.is_empty();
            let kept = self.arena.idle(room.ring.home).unwrap_or(ROOM_IDLE);
            if rests {
                self.dissolve_tree(now, at);
            }
            if !ended && idle >= DETOUR_IDLE && !self.owns(id) {
                self.end_room(now, at);
            } else if unused && idle >= kept {
                self.relays.forget(at);
                self.rooms.remove(id);
                self.counters.rooms_forgotten += 1;
            }
        }
        self.counters.dropped_held += self.publications.sweep(now);
    }
}
