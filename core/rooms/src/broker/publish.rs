//! Publishing at the owner: admission, numbering and credit. `publications` has the publishers, `withheld` the rooms whose
//! publishers wait for credit.

use std::collections::BTreeMap;

use crate::wire::kinds;

use muster_transport::{Code, Frame, Links, Micros};

use super::publications::Due;
use super::users::Users;
use super::{Broker, GatewayPeer};
use crate::age;
use crate::order::{held_cost, Decision, Publisher};
use crate::ring::Entry;
use crate::wire::publish::{flags_of, numbered, published, Ack, LinkPublish, PROMPT};
use crate::wire::room::KEPT;
use crate::wire::StreamId;

/// The result of a frame: whether it was well formed, and whether all of it was numbered and no publisher waits for a
/// reply.
struct Applied {
    good: bool,
    smooth: bool,
}

impl Broker {
    /// Takes a proxy's publish frame. `false`: malformed.
    pub(super) fn publish(&mut self, now: Micros, slot: u32, proxy: u32, frame: &Frame<'_>) -> bool {
        let read = match frame.kind {
            kinds::AGED_PUBLISH => LinkPublish::read_aged(frame.flags, frame.body),
            _ => LinkPublish::read(frame.flags, frame.body),
        };
        let Some(frame) = read else {
            return false;
        };
        self.counters.messages_received += u64::from(frame.count);
        // A message that no gateway could forward would be a hole that never closes.
        if !numbered(frame.low, frame.first) || flags_of(frame.messages, frame.count, self.node.payload).is_none() {
            self.counters.dropped_malformed += u64::from(frame.count);
            self.publications
                .refuse(&mut self.links, slot, proxy, &frame, Code::Malformed);
            return false;
        }
        let Some(at) = self.publications.enter(now, &frame) else {
            self.counters.dropped_full += u64::from(frame.count);
            self.publications
                .refuse(&mut self.links, slot, proxy, &frame, Code::Busy);
            return true;
        };
        let room = self.admit(now, &frame);
        let code = room.err().unwrap_or(Code::Ok);
        let owed = self.publications.comes_by(at, proxy, &frame, code);
        let Ok(room_at) = room else {
            self.publications.acknowledge(&mut self.links, at, Some(slot));
            return true;
        };
        let applied = self.apply(now, at, room_at, &frame);
        if !owed && applied.smooth && self.publications.can_wait(at) {
            self.publications.acknowledge_later(now, &mut self.links, at);
        } else {
            self.publications.acknowledge(&mut self.links, at, Some(slot));
        }
        applied.good
    }

    /// The room in which a frame's messages may be numbered, or why not.
    fn admit(&mut self, now: Micros, frame: &LinkPublish<'_>) -> Result<u32, Code> {
        let owned = self.owns(frame.room) || frame.detour && self.may_own(frame.room);
        let ready = self.reports.are_known();
        let room = match (ready, owned) {
            (true, true) => self.open_room(now, frame.room, frame.check),
            _ => Err(Code::NotReady),
        };
        let dropped = match room {
            Ok(_) => return room,
            Err(Code::NameCollision) => &mut self.counters.dropped_name_collision,
            Err(_) if !ready => &mut self.counters.dropped_not_ready,
            Err(_) if !owned => &mut self.counters.dropped_not_owner,
            Err(_) => &mut self.counters.dropped_full,
        };
        *dropped += u64::from(frame.count);
        room
    }

    /// Numbers messages in order and holds early ones.
    fn apply(&mut self, now: Micros, at: u32, room_at: u32, frame: &LinkPublish<'_>) -> Applied {
        let rough = Applied {
            good: true,
            smooth: false,
        };
        let Broker {
            rooms,
            publications,
            arena,
            counters,
            ages,
            ..
        } = self;
        let space = publications.namespace(at, frame.namespace);
        let (Some(room), Some((publication, users))) = (rooms.get_mut(room_at), publications.with_users(at)) else {
            return rough;
        };
        room.used_at = now;
        if let Some(space) = space {
            room.ring.home.space = space;
        }
        let (publisher, proxy) = (publication.id, publication.proxy);
        let born = frame.age.map_or(0, |age| age::born(now, age.into()));
        // Another broker numbered and credited the skipped messages: the publisher's credit here moves by as many.
        let skipped = frame.low.saturating_sub(publication.order.cumulative() + 1);
        publication.credited = publication.credited.saturating_add(skipped);
        if publication.generation != room.generation {
            counters.dropped_held += publication.held();
            users.release(publisher.user, publication.order.cost());
            publication.begin(now, room.generation, frame.low);
        }
        let order = &mut publication.order;
        let before = room.ring.next();
        let (held_before, cost_before) = (order.held_len(), order.cost());
        order.settle(frame.low);
        users.release(publisher.user, cost_before - order.cost());
        let mut cost = order.cost();
        // `false`: its user would have too much remembered, since it does not confirm; it will repeat the message.
        let mut number =
            |order: &mut Publisher, users: &mut Users, sequence: u64, flags: u8, born: u32, data: &[u8]| {
                let offset = room.ring.next();
                let more = order.run_cost(offset);
                if more > 0 && !users.remember(publisher.user, more) {
                    return false;
                }
                cost += more;
                let entry = Entry {
                    offset,
                    publisher,
                    sequence,
                    flags,
                    gap: false,
                    stream: 0,
                    at_ms: 0,
                    born,
                    data,
                };
                room.ring.push(arena, now, &entry);
                order.applied(sequence, offset);
                counters.messages_published += 1;
                if born > 0 {
                    ages.note(now, proxy, born);
                }
                true
            };
        let (mut released, mut bytes_held) = (0, 0);
        while let Some(ready) = order.pop_ready() {
            released += u64::from(number(order, users, ready.seq, ready.flags, ready.born, &ready.data));
        }
        let (mut seen, mut held, mut repeated, mut ahead, mut unpaid) = (0, 0, 0, 0, 0);
        let credited = publication.credited;
        let mut prompt = frame.count == 0;
        for (sequence, (flags, data)) in (frame.first..).zip(published(frame.messages, frame.count)) {
            seen += 1;
            prompt |= flags & PROMPT != 0;
            let flags = flags & KEPT;
            if sequence > credited {
                unpaid += 1;
                continue;
            }
            match order.offer(now, sequence, data.len()) {
                Decision::Apply if number(order, users, sequence, flags, born, data) => {
                    while let Some(ready) = order.pop_ready() {
                        released += u64::from(number(order, users, ready.seq, ready.flags, ready.born, &ready.data));
                    }
                }
                Decision::Hold if users.hold(publisher.user, held_cost(data.len())) => {
                    order.hold(sequence, flags, born, data);
                    bytes_held += held_cost(data.len());
                    held += 1;
                }
                Decision::Duplicate { .. } => repeated += 1,
                Decision::Apply | Decision::Hold | Decision::Refuse(_) => ahead += 1,
            }
        }
        users.release(publisher.user, (cost + bytes_held).saturating_sub(order.cost()));
        counters.messages_held += held;
        counters.dropped_held += held_before as u64 + held - released - order.held_len() as u64;
        counters.messages_repeated += repeated;
        counters.dropped_ahead += ahead;
        counters.dropped_credit += unpaid;
        if frame.count == 0 {
            order.offer(now, 0, 0);
        }
        publication.repeated |= repeated > 0;
        publication.fresh_messages += u32::from(seen);
        publication.fresh_bytes += frame.messages.len();
        if room.ring.next() > before {
            self.room_grew(now, room_at, before);
        }
        Applied {
            good: seen == frame.count,
            smooth: !prompt && held + repeated + ahead + unpaid == 0,
        }
    }

    /// The next acknowledgement for a proxy, and its session.
    pub(super) fn next_ack(&mut self, now: Micros, proxy: u32) -> Option<(u64, Ack)> {
        loop {
            let at = match self.publications.next_due(now, proxy)? {
                Due::Said(said) => return Some(said),
                Due::Of(at) => at,
            };
            let Some(publication) = self.publications.get_mut(at) else {
                continue;
            };
            let (node, epoch) = (self.node.me.node, self.node.me.epoch);
            let mut stream = StreamId {
                node,
                epoch,
                generation: 0,
            };
            let mut withheld = false;
            if let Some((room_at, room)) = self.rooms.named_mut(publication.room) {
                stream.generation = match publication.generation {
                    0 => room.generation,
                    numbered_in => numbered_in,
                };
                let (links, gateways) = (&self.links, &self.gateways);
                withheld = room.withholds(&self.arena, now, |node| gateway_rtt(links, gateways, node));
                withheld &= !std::mem::take(&mut publication.granted);
                if withheld && !publication.withheld {
                    publication.withheld = true;
                    self.withheld.note(now, room_at, room.withheld.is_empty());
                    room.withheld.push((at, now));
                    self.counters.credit_withheld += 1;
                }
            }
            return Some((publication.session, publication.acknowledge(stream, withheld)));
        }
    }

    /// Checks the publishers whose credit is withheld.
    pub(super) fn release_withheld(&mut self, now: Micros) {
        let mut released = Vec::new();
        let (links, gateways) = (&self.links, &self.gateways);
        let (rooms, arena) = (&mut self.rooms, &self.arena);
        let looked = self.withheld.look(now, |at| {
            let Some(room) = rooms.get_mut(at) else {
                return false;
            };
            let withholds = room.withholds(arena, now, |node| gateway_rtt(links, gateways, node));
            released.extend(room.release(now, withholds));
            !room.withheld.is_empty()
        });
        // If a gateway's report of progress was lost, it repeats the report when it gets a head.
        for at in looked {
            let Some(room) = self.rooms.get(at) else {
                continue;
            };
            let behind: Vec<u32> = room
                .gateways
                .iter()
                .filter(|cursor| cursor.behind_since.is_some() || cursor.late_since.is_some())
                .map(|cursor| cursor.gateway)
                .collect();
            behind.into_iter().for_each(|node| self.head_due(at, node));
        }
        self.publications.grant(&mut self.links, released);
    }

    /// As [`Broker::release_withheld`], for one room whose gateway has reported its progress.
    pub(super) fn release_room(&mut self, now: Micros, at: u32) {
        let (links, gateways, arena) = (&self.links, &self.gateways, &self.arena);
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let withholds = room.withholds(arena, now, |node| gateway_rtt(links, gateways, node));
        let released = room.release(now, withholds).collect();
        self.publications.grant(&mut self.links, released);
    }
}

/// The round trip to a gateway, if it has a link.
fn gateway_rtt(links: &Links, gateways: &BTreeMap<u32, GatewayPeer>, node: u32) -> Option<Micros> {
    let slot = gateways.get(&node)?.link;
    Some(links.table.get(slot)?.conn.flow.rtt())
}
