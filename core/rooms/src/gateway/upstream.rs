//! A gateway's exchange with brokers and routers: room blocks in, repair requests and progress out.

use std::collections::BTreeSet;

use crate::wire::kinds;

use crate::layers::RoomLayers;

use crate::role;

use muster_transport::{Arrival, Control, Frame, Frames, LinkChange, Micros, Outbox, PlacedLayer, PlacedNode, HEADER};

use super::members::Members;
use super::proofs::Numbered;
use super::reports::Ask;
use super::room::{Pen, Room, Waiting};
use super::{Gateway, GatewayEvent, JOIN_WAIT};
use crate::age;
use crate::arena::NAMESPACES_MAX;
use crate::command::Ask as Asked;
use crate::wire::publish::Course;
use crate::wire::record::Record;
use crate::wire::room::{message_max, LinkBlock, LinkHead, LinkLost, ENDED, NUMBERED, OLD, STREAMS_MAX};
use crate::wire::StreamId;

/// A broker silent for longer than this may have numbered messages that were lost on the way: a live link brings two
/// datagrams in this time.
const QUIET: Micros = 500_000;

/// The wait for an owner once another cluster's owner has reported: longer than the detection of a dead link and the
/// question to the next owner.
const HEADS_WAIT: Micros = 1_500_000;

impl<S: Members> Gateway<S> {
    pub(super) fn take_link(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let Some((slot, len)) = self.links.receive(now, &mut self.node, arrival, datagram) else {
            self.link_changes(now);
            return;
        };
        self.link_changes(now); // before the records of a new link
        let Some(peer) = self.links.table.get(slot).map(|link| link.data.peer) else {
            return;
        };
        let mut elicits = false;
        let mut records = std::mem::take(&mut self.records);
        let kinds = self.lodge.kinds();
        for frame in Frames::new(&datagram[HEADER..HEADER + len], kinds) {
            let Ok(frame) = frame else {
                self.links.counters.link_dropped_frame += 1;
                break;
            };
            elicits |= kinds.elicits(frame.kind);
            match self.links.control(now, slot, &frame, &mut records) {
                Control::Other => {
                    let taken = match peer.role == role::BROKER {
                        true => self.take_broker(now, peer.node, peer.epoch, &frame),
                        false if role::has_members(peer.role) && self.take_relayed(now, peer.node, &frame) => true,
                        false => self.lodge.frame(now, peer, &frame),
                    };
                    self.links.counters.link_dropped_frame += u64::from(!taken);
                }
                // Its window may be open again.
                Control::Heard(_) if self.waits_for_link(peer.node) => self.links.table.mark(slot),
                Control::Closed(_) => break,
                _ => {}
            }
        }
        for bytes in records.iter() {
            let Some(record) = Record::read(bytes) else {
                self.links.counters.link_dropped_frame += 1;
                continue;
            };
            if self.links.link_record(slot, &record) {
                continue;
            }
            match record {
                Record::Headers if peer.role == role::BROKER => self.owners.note_headers(peer.node),
                Record::Covered { offset } if peer.role == role::ROUTER => self.covered(now, peer.node, offset),
                Record::RelayedBy { room, node, role, addr } if peer.role == role::BROKER => {
                    self.relayed_by(now, peer.node, room, (node, role, addr));
                }
                Record::RelayAsked { room, broker, on } if role::has_members(peer.role) => {
                    self.relay_asked(now, peer.node, (room, broker), on);
                }
                Record::RelayAnswer { room, broker, on } if role::has_members(peer.role) => {
                    self.relay_answer(now, peer.node, (room, broker), on);
                }
                Record::RoomRefused { room, code } if matches!(peer.role, role::ROUTER | role::BROKER) => {
                    self.room_refused(now, room, code);
                }
                Record::LinkCommand {
                    command,
                    room,
                    check,
                    left_ms,
                    ask,
                    ..
                } if peer.role == role::BROKER => match ask {
                    Asked::Tell(data) => self.command(now, peer.node, command, (room, check), left_ms, &data),
                    Asked::Count { from } => self.count(now, peer.node, command, (room, check), from),
                    Asked::End { user } => self.end_member(now, peer.node, command, (room, check), left_ms, user),
                },
                Record::LinkCommandDone {
                    command, outcome, page, ..
                } if peer.role == role::BROKER && self.sessions.broker_answer(peer.node, command, outcome, &page) => {}
                _ => self.links.counters.link_dropped_frame += 1,
            }
        }
        records.clear();
        self.records = records;
        self.links.after(now, slot, elicits);
        self.link_changes(now);
        self.cleanup(now);
    }

    /// Whether something waits for a link's window.
    fn waits_for_link(&self, node: u32) -> bool {
        self.lodge.waits(node) || self.sessions.waits_for_link(node) || self.relays.waits(node)
    }

    /// An owner told of a room's places; `before`: the next one until then.
    fn room_told(&mut self, now: Micros, at: u32, before: u64) {
        if let Some(room) = self.rooms.get_mut(at) {
            room.note_hole(now);
            if room.ring.next() > before {
                self.activate(at);
            }
        }
        self.admit_waiting(now, at, None);
        self.schedule_room(now, at);
    }

    /// The same where nothing was taken, but another stream may have been ended to make place.
    fn room_grew(&mut self, now: Micros, at: u32, before: u64) {
        let room = self.rooms.get(at);
        if room.is_some_and(|room| room.ring.next() > before) {
            self.room_told(now, at, before);
        }
    }

    /// Takes a broker's frame. `false`: malformed or not a broker's to send.
    fn take_broker(&mut self, now: Micros, node: u32, epoch: u32, frame: &Frame<'_>) -> bool {
        let stream = |generation| StreamId {
            node,
            epoch,
            generation,
        };
        match frame.kind {
            kinds::LINK_ROOM | kinds::AGED_ROOM => {
                let read = match frame.kind {
                    kinds::AGED_ROOM => LinkBlock::read_aged(frame.body),
                    _ => LinkBlock::read(frame.body),
                };
                let Some(block) = read else {
                    return false;
                };
                let count = block.messages.left() as u64;
                self.counters.messages_received += count;
                let Some(at) = self.rooms.find(block.room) else {
                    self.counters.dropped_no_member += count;
                    return true;
                };
                self.take_block(now, at, stream(block.generation), block, frame);
                true
            }
            kinds::LINK_HEADS => {
                for head in LinkHead::read_all(frame.body) {
                    let Some(at) = self.rooms.find(head.room) else {
                        continue;
                    };
                    let Some(room) = self.rooms.get_mut(at) else {
                        continue;
                    };
                    if frame.flags & NUMBERED != 0 {
                        let answer = Numbered {
                            node,
                            epoch,
                            generation: head.generation,
                            next: head.next,
                            question: head.base,
                        };
                        if room.note_numbered(answer) {
                            self.prove(now, at);
                            self.admit_waiting(now, at, None);
                            self.schedule_room(now, at);
                        }
                        continue;
                    }
                    room.note_heard(node, epoch);
                    if head.generation == 0 {
                        self.admit_waiting(now, at, None);
                        self.schedule_room(now, at);
                        continue;
                    }
                    let before = room.ring.next();
                    let mut pen = Pen {
                        arena: &mut self.arena,
                        counters: &mut self.counters,
                        ages: &mut self.ages,
                        placement: &self.placement,
                        now,
                    };
                    let stream = stream(head.generation);
                    let known = match frame.flags & ENDED != 0 {
                        true => room.ended(&mut pen, stream, head.base, head.next),
                        false => room.head(&mut pen, stream, head.base, head.next),
                    };
                    if !known {
                        self.counters.dropped_stale_stream += 1;
                        self.room_grew(now, at, before);
                        self.tell_owner(at, node);
                        continue;
                    }
                    // An owner that repeats its head may not have heard how far we are.
                    room.tell_owners(Some(stream));
                    self.relays.heads_due(&mut self.links, (head.room, node));
                    self.room_told(now, at, before);
                    self.note_consumed(at);
                }
                true
            }
            kinds::LINK_LOST => {
                let Some(lost) = LinkLost::read(frame.body) else {
                    return false;
                };
                let Some(at) = self.rooms.find(lost.room) else {
                    return true;
                };
                let Some(room) = self.rooms.get_mut(at) else {
                    return true;
                };
                let mut pen = Pen {
                    arena: &mut self.arena,
                    counters: &mut self.counters,
                    ages: &mut self.ages,
                    placement: &self.placement,
                    now,
                };
                let grew = room.lost(&mut pen, stream(lost.generation), lost.first);
                let ended = (!room.fetching()).then_some(now);
                if grew {
                    self.activate(at);
                }
                self.admit_waiting(now, at, ended);
                self.schedule_room(now, at);
                true
            }
            _ => self.sessions.broker_frame(now, frame),
        }
    }

    /// Takes a block of a stream, which came from its owner or by another gateway, and passes it on.
    pub(super) fn take_block(
        &mut self,
        now: Micros,
        at: u32,
        stream: StreamId,
        block: LinkBlock<'_>,
        frame: &Frame<'_>,
    ) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let before = room.ring.next();
        let count = block.messages.left() as u64;
        let until = block.offset + count;
        let (id, fresh) = (room.id, !room.has_to(stream, until));
        let passes = fresh && self.relays.passes_on(id, stream.node);
        let born = block.age.map_or(0, |age| age::born(now, age.into()));
        let mut pen = Pen {
            arena: &mut self.arena,
            counters: &mut self.counters,
            ages: &mut self.ages,
            placement: &self.placement,
            now,
        };
        if frame.flags & OLD != 0 && !room.paced {
            let offsets = block.offset..until;
            let known = room.outdated(&mut pen, stream, block.base, offsets);
            if !known {
                self.counters.dropped_stale_stream += count;
            }
            if known && passes {
                self.pass_on(frame, id, stream, born, count);
            }
            return self.room_told(now, at, before);
        }
        let data_max = message_max(self.node.payload);
        let grew = room.ingest(&mut pen, stream, block, data_max);
        room.note_hole(now);
        let Some(grew) = grew else {
            self.counters.dropped_stale_stream += count;
            self.room_grew(now, at, before);
            return self.tell_owner(at, stream.node);
        };
        // Nothing of it was new. Its owner may have come back from an earlier state and number offsets again.
        if !grew && !room.fetching() && room.has_to(stream, until) {
            self.tell_owner(at, stream.node);
        }
        if passes {
            self.pass_on(frame, id, stream, born, count);
        }
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let unfinished = room.has_hole() || room.fetching() || room.waits();
        if grew {
            self.activate(at);
        }
        if unfinished {
            self.schedule_room(now, at);
        }
        self.admit_fetched(now, at);
    }

    pub(super) fn link_changes(&mut self, now: Micros) {
        while let Some(change) = self.links.change() {
            match change {
                LinkChange::Up { peer, .. } => self.lodge.link(now, peer, true),
                LinkChange::Down { peer, .. } if self.links.to(peer.node).is_none() => {
                    self.lodge.link(now, peer, false)
                }
                _ => {}
            }
            match change {
                LinkChange::Up { slot, peer } => match peer.role {
                    role::ROUTER => self.router_up(now, slot),
                    role::BROKER => {
                        for (name, number) in self.sessions.namespaces().iter().take(NAMESPACES_MAX).zip(1..) {
                            let name = name.as_bytes();
                            self.links.record(now, slot, &Record::Namespace { number, name });
                        }
                        self.forget_relays_of(now, peer.node);
                        self.links.record(now, slot, &Record::Relays);
                        self.sessions.broker_found();
                        self.owner_up(now, peer.node, peer.epoch);
                    }
                    role if role::has_members(role) => self.gateway_up(now, peer.node),
                    _ => {}
                },
                LinkChange::Down { peer, .. } if role::has_members(peer.role) => self.gateway_lost(now, peer.node),
                LinkChange::Down { peer, .. } if peer.role == role::ROUTER => self.home_lost(now, peer.node),
                LinkChange::Down { peer, .. } => {
                    self.forget_relays_of(now, peer.node);
                    self.reports.forget_asks(peer.node);
                    if peer.role == role::BROKER && self.links.to(peer.node).is_none() {
                        self.owners.lost(now, peer.node);
                        self.sessions.broker_lost(peer.node);
                        for (_, room) in self.rooms.iter_mut() {
                            room.owner_away(peer.node, true);
                        }
                        self.bury(now);
                    }
                }
                LinkChange::Refused { .. }
                | LinkChange::Mistaken { .. }
                | LinkChange::Unlisted { .. }
                | LinkChange::Differs { .. }
                | LinkChange::Stranger { .. } => {}
            }
            self.events.push_back(GatewayEvent::Link(change));
        }
    }

    /// A broker's link is new: streams of its earlier life have ended, and a broker that lives on gets our progress.
    fn owner_up(&mut self, now: Micros, node: u32, epoch: u32) {
        self.owners.up(node);
        self.owner_gone(now, node, Some(epoch));
        let rooms: Vec<u32> = self.rooms.used().collect();
        for at in rooms {
            let Some(room) = self.rooms.get_mut(at) else {
                continue;
            };
            let theirs = room
                .live()
                .map(|source| source.stream)
                .find(|stream| stream.node == node);
            room.owner_away(node, false);
            let unproven = room
                .unproven()
                .any(|stream| (stream.node, stream.epoch) == (node, epoch));
            if let Some(proofs) = room.proofs.as_mut().filter(|_| unproven) {
                proofs.asks = Some((now, now + JOIN_WAIT));
            }
            if theirs.is_some() {
                room.tell_owners(theirs);
                self.note_consumed(at);
            }
            if unproven {
                self.schedule_room(now, at);
            }
        }
    }

    /// A broker speaks of a room as if it knew less of it than this gateway does: it is told how far that is.
    fn tell_owner(&mut self, at: u32, node: u32) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let theirs = room
            .live()
            .map(|source| source.stream)
            .find(|stream| stream.node == node);
        if theirs.is_some() {
            room.tell_owners(theirs);
            self.note_consumed(at);
        }
    }

    /// Gives up brokers that are away and that the placement does not name any more, or that have been away for too long.
    pub(super) fn bury(&mut self, now: Micros) {
        for node in self.owners.gone(now, &self.placement) {
            self.owner_gone(now, node, None);
        }
    }

    /// Ends a broker's streams, but for those of its present life.
    fn owner_gone(&mut self, now: Micros, node: u32, life: Option<u32>) {
        let rooms: Vec<u32> = self.rooms.used().collect();
        for at in rooms {
            let Some(room) = self.rooms.get_mut(at) else {
                continue;
            };
            let mut pen = Pen {
                arena: &mut self.arena,
                counters: &mut self.counters,
                ages: &mut self.ages,
                placement: &self.placement,
                now,
            };
            if room.owner_gone(&mut pen, node, life) {
                self.activate(at);
                self.schedule_room(now, at);
            }
        }
    }

    /// Notes to tell those owners of a room soon that do not know how far it is.
    pub(super) fn note_consumed(&mut self, at: u32) {
        if let Some(room) = self.rooms.get_mut(at) {
            self.reports.note(self.now, at, room, &self.relays);
        }
    }

    /// Asks the owners of a room that have not said where it stands.
    pub(super) fn ask_heads(&mut self, now: Micros, at: u32) {
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        let route = |brokers: &PlacedLayer| self.owners.route(now, brokers, &self.links, room.id);
        let silent: Vec<u32> = self.silent(now, room).filter_map(route).map(|to| to.node).collect();
        for node in silent {
            self.reports.ask(&mut self.links, node, Ask::head(at));
        }
    }

    /// The clusters whose owner of a room could report its head, and has not.
    fn silent<'a>(&'a self, now: Micros, room: &'a Room) -> impl Iterator<Item = &'a PlacedLayer> {
        let clusters = self.placement.broker_clusters();
        let silent = clusters.filter(move |(at, brokers)| {
            let may_speak = || {
                self.owners.awaits_owner(now, brokers, room.id)
                    || self.owners.route(now, brokers, &self.links, room.id).is_some()
            };
            room.live().all(|source| source.cluster != *at) && may_speak()
        });
        silent.map(|(_, brokers)| brokers)
    }

    /// Whether members of a room can be admitted: the owner in every reachable cluster has reported its head. After a
    /// long wait, the missing ones no longer matter.
    pub(super) fn is_ready(&self, now: Micros, room: &Room) -> bool {
        let patient = |waiting: &Waiting| now < waiting.since + HEADS_WAIT;
        let waits = self.placement.broker_clusters().nth(1).is_some()
            && room.live().count() < STREAMS_MAX
            && room.waiting.first().is_none_or(patient);
        room.is_ready() && !(waits && self.silent(now, room).next().is_some())
    }

    /// The brokers that may have messages of a room and have not reported, each in its present life: those of its
    /// partition in each cluster, and those whose streams a waiting member knows. Of brokers without a link, only
    /// awaited ones, and those that may yet speak of a stream that a member was in the midst of.
    pub(super) fn unheard(&self, now: Micros, room: &Room, waiting: &[Waiting]) -> Vec<u32> {
        let clusters = self.placement.broker_clusters();
        let parts: Vec<_> = clusters.map(|(_, brokers)| brokers.layer().hearing(room.id)).collect();
        let streams = waiting.iter().flat_map(|waiting| &waiting.positions.0);
        let had: BTreeSet<u32> = streams.clone().map(|position| position.stream.node).collect();
        let in_midst = |node: u32| {
            let mut streams = streams.clone();
            streams.any(|position| position.course == Course::GoesOn && position.stream.node == node)
        };
        let brokers = self.placement.of(role::BROKER);
        let hears = |broker: &PlacedNode| parts[usize::from(broker.cluster)].contains(&Some(broker.partition));
        let brokers = brokers.filter(|broker| hears(broker) || had.contains(&broker.node));
        let nodes = brokers.map(|broker| broker.node);
        let unheard = nodes.filter(|node| match self.links.to(*node) {
            Some(_) => self
                .links
                .epoch_of(*node)
                .is_some_and(|epoch| !room.has_heard(*node, epoch)),
            None => self.owners.awaits(now, *node) || self.owners.may_speak(now, *node) && in_midst(*node),
        });
        unheard.collect()
    }

    /// Whether nothing is on its way that an owner of a room numbered: all of them are linked, and have been heard of late.
    pub(super) fn hears_owners(&self, now: Micros, room: &Room) -> bool {
        let streams = room.live().map(|source| source.stream.node);
        let clusters = self.placement.broker_clusters();
        let mut owners = streams.chain(clusters.filter_map(|(_, brokers)| brokers.owner(room.id)));
        owners.all(|node| self.links.heard_at(node).is_some_and(|at| now < at + QUIET))
    }

    /// Asks brokers for their state of a room.
    pub(super) fn ask_around(&mut self, at: u32, nodes: BTreeSet<u32>) {
        let question = self.reports.next_question();
        for node in nodes {
            self.reports.ask(&mut self.links, node, Ask::question(at, question));
        }
    }

    /// Sends the links' own datagrams.
    pub(super) fn transmit_links(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let mut turns = self.links.table.ready_len();
        while turns > 0 && outbox.room() > 0 {
            turns -= 1;
            let Some(slot) = self.links.table.next_ready() else {
                break;
            };
            self.serve_link(now, slot, outbox);
        }
        self.links.table.ready_len() > 0
    }

    fn serve_link(&mut self, now: Micros, slot: u32, outbox: &mut Outbox) {
        let Some(link) = self.links.table.get_mut(slot) else {
            return;
        };
        let peer = link.data.peer;
        let probe = std::mem::take(&mut link.data.probe);
        let away = link.conn.flow.measured() / 2;
        let free = link.conn.flow.available(self.node.payload) > 0;
        let mails = free && self.lodge.waits(peer.node);
        let relays = (free || probe) && self.relays.waits(peer.node);
        let publishes = free && self.sessions.waits_for_link(peer.node);
        let mut outgoing = self.reports.take(peer.node);
        self.take_consumed(now, peer.node, &mut outgoing);
        let Gateway {
            links,
            node,
            rooms,
            counters,
            lodge,
            sessions,
            relays: relaying,
            ..
        } = self;
        let (mut again, mut written) = (false, false);
        links.send(now, node, slot, outbox, |writer, _| {
            written = true;
            again = outgoing.write(rooms, writer, counters);
            let mut elicits = mails && lodge.fill(peer.node, writer);
            if publishes {
                elicits |= sessions.fill_link(peer.node, writer).0;
            }
            if relays {
                let (some, skipped) = relaying.fill(now, peer.node, (away, free), rooms, writer);
                counters.relay_frames_skipped += skipped;
                elicits |= some;
            }
            elicits
        });
        let mut waits = mails && self.lodge.waits(peer.node);
        waits |= publishes && self.sessions.waits_for_link(peer.node);
        waits |= relays && free && self.relays.waits(peer.node);
        again |= written && (outgoing.is_due() || waits);
        if !written {
            outgoing.keep(rooms);
        }
        self.reports.put_back(peer.node, outgoing);
        if again {
            self.links.table.mark(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::gateway;
    use crate::name::RoomName;
    use crate::rights::{Grant, Rights};
    use crate::wire::publish::Positions;
    use crate::wire::room::{Message, FIRST, LAST};
    use crate::wire::PublisherId;
    use muster_transport::Writer;

    const NAME: &str = "sports:final";
    const STREAM: StreamId = StreamId {
        node: 5,
        epoch: 1,
        generation: 1,
    };

    /// Opens the room; its owner's head is `next`.
    fn open(gateway: &mut Gateway, next: u64) -> (u32, u64) {
        let name = RoomName::parse(NAME).expect("a name");
        let key = name.key(&[1; 16]);
        let at = gateway.open_room(0, key, &name, None).expect("place");
        let mut pen = Pen {
            arena: &mut gateway.arena,
            counters: &mut gateway.counters,
            ages: &mut gateway.ages,
            placement: &gateway.placement,
            now: 0,
        };
        let room = gateway.rooms.get_mut(at).expect("the room");
        room.note_in_force();
        assert!(room.head(&mut pen, STREAM, next, next));
        (at, key.id)
    }

    /// A session of a user that may read each room.
    fn reader(gateway: &mut Gateway, number: u32) -> u32 {
        let slot = gateway.sessions.admit(number, u64::from(number));
        let peer = gateway.sessions.table.get_mut(slot).expect("a session");
        peer.data.data.grant = Grant::everywhere(Rights::READ);
        slot
    }

    /// The owner sends ten messages from `offset` on.
    fn ten(gateway: &mut Gateway, room: u64, offset: u64) {
        let mut bytes = [0; 1_024];
        let mut writer = Writer::new(&mut bytes);
        let mut block = LinkBlock::begin(&mut writer, room, STREAM.generation, 1, offset, None);
        for sequence in offset..offset + 10 {
            let message = Message {
                publisher: PublisherId {
                    user: 7,
                    incarnation: 0,
                },
                sequence,
                flags: FIRST | LAST,
                data: b"x",
            };
            assert!(block.push(&mut writer, &message));
        }
        block.finish(&mut writer);
        let len = writer.len();
        let frame = Frame {
            kind: kinds::LINK_ROOM,
            flags: 0,
            body: &bytes[..len],
        };
        assert!(gateway.take_broker(1, STREAM.node, STREAM.epoch, &frame));
    }

    #[test]
    fn who_waits_for_history_is_looked_at_when_it_has_come_and_not_for_each_part_of_it() {
        let (joins, frames) = (2_000, 200);
        let mut gateway = gateway(16 << 20);
        let (at, id) = open(&mut gateway, 5_001);
        for number in 0..joins {
            let slot = reader(&mut gateway, number);
            let had = if number % 2 == 0 { 3_000 } else { 4_000 };
            let positions = Positions::at([(STREAM, had)]);
            gateway
                .join(0, slot, 1, NAME.as_bytes(), (positions, 0))
                .expect("it waits");
        }
        for frame in 1..=frames {
            let room = gateway.rooms.get(at).expect("the room");
            let half = if frame > frames / 2 { joins as usize / 2 } else { 0 };
            assert_eq!(room.members.len(), half, "{frame}");
            ten(&mut gateway, id, 5_001 - 10 * frame);
            gateway.now += 1_000;
            gateway.expire_rooms(gateway.now);
        }
        let room = gateway.rooms.get(at).expect("the room");
        assert_eq!((room.members.len(), room.waiting.len()), (joins as usize, 0));
        assert!(
            room.starts <= 3 * joins as usize + frames as usize,
            "{} looks",
            room.starts
        );
    }

    /// The only member leaves while another one waits, which then becomes the only one: nothing may be left to do when
    /// the room of the first would have been forgotten.
    #[test]
    fn a_room_that_somebody_left_while_another_waited_is_not_looked_at_for_it_again() {
        let mut gateway = gateway(1 << 20);
        let (at, id) = open(&mut gateway, 21);
        let slots = [0, 1].map(|number| reader(&mut gateway, number));
        for (slot, positions) in slots
            .into_iter()
            .zip([Positions::default(), Positions::at([(STREAM, 0)])])
        {
            gateway
                .join(0, slot, 1, NAME.as_bytes(), (positions, 0))
                .expect("it waits or is a member");
        }
        gateway.leave(0, slots[0], at);
        ten(&mut gateway, id, 11);
        ten(&mut gateway, id, 1);
        let room = gateway.rooms.get(at).expect("the room");
        assert_eq!((room.members.len(), room.waiting.len()), (1, 0));
        for _ in 0..10 {
            gateway.now += 1_000_000;
            gateway.expire_rooms(gateway.now);
        }
        let next = gateway.timers.of_room(at);
        assert!(
            next.is_none_or(|next| next > gateway.now + 100_000),
            "{next:?} at {}",
            gateway.now
        );
    }
}
