//! The proxy's links to brokers: what they answer, and what waits for them.

use super::{drop_queue, gone, Proxy, ProxyEvent, ACKS_MAX};
use crate::arena::NAMESPACES_MAX;
use crate::dispatch::Dispatch;
use crate::layers::RoomLayers;
use crate::queue::Queue;
use crate::wire::kinds;
use crate::wire::publish::{Ack, PUBLISH_AGE_AT};
use crate::wire::record::Record;
use crate::{age, role};
use muster_transport::{Arrival, Control, Frames, LinkChange, Micros, Outbox, Reading, Records, HEADER};
use std::collections::BTreeSet;

impl Proxy {
    pub(super) fn take_link(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let received = self.links.receive(now, &mut self.node, arrival, datagram);
        self.link_changes(now);
        let Some((slot, len)) = received else { return };
        let Some(peer) = self.links.table.get(slot).map(|link| link.data.peer) else {
            return;
        };
        let (mut elicits, mut records, known) = (false, Records::default(), self.lodge.kinds());
        for frame in Frames::new(&datagram[HEADER..HEADER + len], known) {
            let Ok(frame) = frame else {
                self.links.counters.link_dropped_frame += 1;
                break;
            };
            elicits |= known.elicits(frame.kind);
            match self.links.control(now, slot, &frame, &mut records) {
                Control::Other if frame.kind == kinds::LINK_ACK && peer.role == role::BROKER => {
                    match Ack::read_link(frame.body) {
                        Some((session, ack)) => self.acknowledged(session, ack),
                        None => self.links.counters.link_dropped_frame += 1,
                    }
                }
                Control::Other => {
                    let taken = self.lodge.frame(now, peer, &frame);
                    self.links.counters.link_dropped_frame += u64::from(!taken);
                }
                Control::Heard(_) if self.lodge.waits(peer.node) => self.links.table.mark(slot),
                Control::Heard(_) if self.queues.get(&peer.node).is_some_and(|queue| !queue.is_empty()) => {
                    self.links.table.mark(slot);
                }
                Control::Closed(_) => break,
                _ => {}
            }
        }
        for bytes in records.iter() {
            match Record::read(bytes) {
                Some(Record::LinkCommandDone {
                    command, outcome, page, ..
                }) if peer.role == role::BROKER => {
                    self.command_answered(now, Some(peer.node), command, outcome, page);
                }
                Some(Record::Headers) if peer.role == role::BROKER => self.owners.note_headers(peer.node),
                Some(record) if self.links.link_record(slot, &record) => {}
                _ => self.links.counters.link_dropped_frame += 1,
            }
        }
        self.links.after(now, slot, elicits);
        self.link_changes(now);
    }

    pub(super) fn acknowledged(&mut self, session: u64, ack: &[u8]) {
        let slot = self.sessions.table.find(session);
        let peer = slot
            .and_then(|slot| self.sessions.table.get_mut(slot))
            .filter(|peer| peer.data.data.acks.len() < ACKS_MAX);
        let (Some(slot), Some(peer)) = (slot, peer) else {
            self.counters.dropped_acknowledgement += 1;
            return;
        };
        self.counters.acknowledgements_forwarded += 1;
        peer.data.data.acks.push_back(ack.to_vec());
        self.sessions.table.mark(slot);
    }

    pub(super) fn link_changes(&mut self, now: Micros) {
        let mut changed = false;
        while let Some(change) = self.links.change() {
            changed |= matches!(change, LinkChange::Up { .. } | LinkChange::Down { .. });
            match change {
                LinkChange::Up { peer, .. } => self.lodge.link(now, peer, true),
                LinkChange::Down { peer, .. } if self.links.to(peer.node).is_none() => {
                    self.lodge.link(now, peer, false)
                }
                _ => {}
            }
            match change {
                LinkChange::Up { slot, peer } if peer.role == role::BROKER => {
                    self.owners.up(peer.node);
                    for (name, number) in self.namespaces.iter().take(NAMESPACES_MAX).zip(1..) {
                        let name = name.as_bytes();
                        self.links.record(now, slot, &Record::Namespace { number, name });
                    }
                }
                LinkChange::Down { peer, .. } if peer.role == role::BROKER && self.links.to(peer.node).is_none() => {
                    self.owners.lost(now, peer.node);
                    self.health.lost(peer.node);
                    // The publishers repeat these messages to their rooms' new owners.
                    if let Some(mut queue) = self.queues.remove(&peer.node) {
                        drop_queue(&mut self.sessions, &mut queue);
                    }
                }
                LinkChange::Up { .. }
                | LinkChange::Down { .. }
                | LinkChange::Refused { .. }
                | LinkChange::Mistaken { .. }
                | LinkChange::Unlisted { .. }
                | LinkChange::Differs { .. }
                | LinkChange::Stranger { .. } => {}
            }
            self.events.push_back(ProxyEvent::Link(change));
        }
        if changed {
            self.command_links_changed(now);
        }
    }

    /// Judges once a second the health of the brokers of each partition.
    pub(super) fn judge_brokers(&mut self, now: Micros) {
        if !self.health.is_due(now) {
            return;
        }
        let links = &self.links;
        let read = |node: u32| {
            let link = links.to(node).and_then(|slot| links.table.get(slot))?;
            Some(Reading {
                since: links.since(node)?,
                rtt: link.conn.flow.measured(),
                told: link.data.loss.told(),
            })
        };
        let brokers = self.placement.own();
        let running: BTreeSet<u32> = brokers.partitions().flatten().copied().collect();
        self.health.keep(|node| running.contains(&node));
        for partition in brokers.partitions() {
            let group: Vec<_> = partition.iter().map(|node| (*node, read(*node))).collect();
            self.health.judge(&group);
        }
    }

    pub(super) fn serve_link(&mut self, now: Micros, slot: u32, outbox: &mut Outbox) {
        let payload = self.node.payload;
        loop {
            let Some(link) = self.links.table.get_mut(slot) else {
                return;
            };
            let node = link.data.peer.node;
            let probe = std::mem::take(&mut link.data.probe);
            let free = link.conn.flow.available(payload);
            let away = link.conn.flow.measured() / 2;
            let queue = self.queues.get_mut(&node);
            if outbox.room() == 0 {
                link.data.probe = probe;
                self.links.table.mark(slot);
                return;
            }
            let mut sent_any = false;
            let mut more = false;
            let (sessions, lodge) = (&mut self.sessions, &mut self.lodge);
            let sent = self.links.send(now, &mut self.node, slot, outbox, |writer, _| {
                if free > 0 {
                    sent_any = lodge.fill(node, writer);
                    more = lodge.waits(node);
                }
                let Some(queue) = queue.filter(|_| free > 0) else {
                    return sent_any;
                };
                while let Some((session, frame)) = queue.front() {
                    if frame.len() > writer.room() {
                        more = true;
                        break;
                    }
                    let start = writer.len();
                    writer.put(frame);
                    if frame[0] == kinds::AGED_PUBLISH.code() {
                        age::pass_on(&mut writer.written()[start + PUBLISH_AGE_AT..], now, away);
                    }
                    let cost = Queue::cost(frame.len());
                    queue.pop();
                    gone(sessions, queue, session, cost);
                    sent_any = true;
                }
                sent_any
            });
            if !more || !sent {
                return;
            }
        }
    }
}
