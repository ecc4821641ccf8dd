//! Data of servers: datagrams, their frames and records.

use super::joining::put_off;
use super::member::Answer;
use super::sessions::{Slot, State, FAR};
use super::{Client, ClientEvent, Side};
use crate::wire::kinds;
use crate::wire::publish::Ack;
use crate::wire::record::Record;
use crate::wire::room::{heads, GapPlace, LeftOut, Passed, RoomBlock, Skip};
use muster_transport::{
    Arrival, Code, Control, ControlRecord, DatagramKind, Frame, FrameKind, Frames, Header, Micros, Records, HEADER,
};

impl Client {
    pub(super) fn datagram(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        self.counters.datagrams_received += 1;
        let Ok(header) = Header::read(datagram) else {
            self.counters.datagrams_dropped += 1;
            return;
        };
        match header.kind {
            DatagramKind::Data => {
                let opened = self.find(header.connection).and_then(|slot| {
                    let session = &mut self.sessions[slot.at()];
                    let conn = session.conn.as_mut()?;
                    let before = conn.heard_at;
                    let len = conn.open(now, &mut self.node.keys, &header, datagram).ok()?;
                    session.silence.hear(now.saturating_sub(before));
                    Some((slot, len))
                });
                match opened {
                    Some((slot, len)) => self.frames(now, slot, &datagram[HEADER..HEADER + len]),
                    None => self.counters.datagrams_dropped += 1,
                }
            }
            DatagramKind::Cookie | DatagramKind::Accept => self.handshake(now, arrival, &header, datagram),
            DatagramKind::Reset => self.reset(now, &header, datagram),
            DatagramKind::Hello => self.counters.datagrams_dropped += 1,
        }
    }

    pub(super) fn frames(&mut self, now: Micros, slot: Slot, bytes: &[u8]) {
        let mut elicits = false;
        for frame in Frames::new(bytes, kinds::ALL) {
            let Ok(frame) = frame else {
                self.counters.datagrams_dropped += 1;
                break;
            };
            elicits |= kinds::ALL.elicits(frame.kind);
            let Some(conn) = self.sessions[slot.at()].conn.as_mut() else {
                return;
            };
            let mut records = Records::default();
            let control = conn.control_frame(now, &frame, &mut records);
            let rtt = conn.flow.measured();
            match control {
                Control::Other => self.role_frame(now, slot, &frame),
                // Members stay at their gateway, which holds their data.
                Control::Heard(heard) if slot == Slot::PROXY => {
                    let session = &mut self.sessions[slot.at()];
                    if session.servers.hear(now, rtt, &heard.status) && session.state == State::Ready {
                        self.lose(now, slot, FAR);
                        return;
                    }
                }
                Control::Closed(_) => {
                    self.lose(now, slot, "closed");
                    return;
                }
                _ => {}
            }
            // At once: messages that follow the reply to a join may be in the same datagram.
            for bytes in records.iter() {
                if self.sessions[slot.at()].conn.is_none() {
                    return; // the previous record refused the session
                }
                if let Some(record) = Record::read(bytes) {
                    self.record(now, slot, record);
                }
            }
        }
        if let Some(conn) = self.sessions[slot.at()].conn.as_mut() {
            if elicits {
                conn.elicited(now);
            }
        }
    }

    pub(super) fn role_frame(&mut self, now: Micros, slot: Slot, frame: &Frame<'_>) {
        match (slot, frame.kind) {
            (_, FrameKind::PATH_CHALLENGE) => {
                self.sessions[slot.at()].challenge = frame.body.try_into().ok();
            }
            (Slot::Main(Side::Gateway), kinds::ROOM | kinds::AGED_MEMBER_ROOM) => {
                let block = match frame.kind {
                    kinds::ROOM => RoomBlock::read(frame.body),
                    _ => RoomBlock::read_aged(frame.body),
                };
                if let Some(block) = block {
                    let handle = block.handle;
                    let upto = block.index.saturating_add(block.messages.left() as u64);
                    self.with_room(now, handle, upto, |member, shared| member.block(shared, block));
                }
            }
            (Slot::Main(Side::Gateway), kinds::GAP) => {
                if let Some(place) = GapPlace::read(frame.body) {
                    self.with_room(now, place.handle, place.index.saturating_add(1), |member, shared| {
                        member.gap_place(shared, place)
                    });
                }
            }
            (Slot::Main(Side::Gateway), kinds::PASSED) => {
                if let Some(passed) = Passed::read(frame.body) {
                    self.with_room(now, passed.handle, passed.end(), |member, shared| {
                        member.passed(shared, passed)
                    });
                }
            }
            (Slot::Main(Side::Gateway), kinds::LEFT_OUT) => {
                if let Some(left) = LeftOut::read(frame.body) {
                    self.with_room(now, left.handle, left.end, |member, shared| {
                        member.left_out(shared, &left)
                    });
                }
            }
            (Slot::Main(Side::Gateway), kinds::SKIP) => {
                if let Some(skip) = Skip::read(frame.body) {
                    self.with_room(now, skip.handle, skip.index, |member, shared| {
                        member.skip(shared, &skip)
                    });
                }
            }
            (Slot::Main(Side::Gateway), kinds::HEADS) => {
                for (handle, index) in heads(frame.body) {
                    self.with_room(now, handle, index, |member, shared| member.head(shared.now, index));
                }
            }
            (Slot::PROXY, kinds::ACK) => {
                if let Some(ack) = Ack::read(frame.body) {
                    self.acknowledged(now, &ack);
                }
            }
            _ => self.counters.datagrams_dropped += 1,
        }
    }

    pub(super) fn acknowledged(&mut self, now: Micros, ack: &Ack) {
        let mut known = self.publications.iter_mut();
        let Some(publication) = known.find(|known| known.handle == Some(ack.handle) && known.refused.is_none()) else {
            return;
        };
        let (events, before) = (&mut self.events, publication.published);
        publication.acknowledged(now, ack, |published| {
            events.push_back(ClientEvent::Published(published))
        });
        self.counters.published += publication.published - before;
        let number = publication.number;
        if let Some(code) = publication.refused {
            events.push_back(ClientEvent::Refused {
                room: number,
                publication: true,
                code,
            });
        } else if publication.take_writable() {
            events.push_back(ClientEvent::Writable { publication: number });
        }
    }

    pub(super) fn record(&mut self, now: Micros, slot: Slot, record: Record<'_>) {
        match record {
            Record::Control(ControlRecord::Ready {
                user,
                token,
                keepalive_ms,
            }) => {
                let session = &mut self.sessions[slot.at()];
                session.token = Some(token);
                session.silence.set_keepalive(keepalive_ms);
                session.state = State::Ready;
                session.attempt.succeeded();
                session.farewell.opened();
                if let Slot::Main(side) = slot {
                    self.events.push_back(ClientEvent::Ready { side, user });
                }
                self.keep_spares(now);
            }
            Record::Control(ControlRecord::Lease { left_ms }) => {
                self.sessions[slot.at()].leased = true;
                if let Slot::Main(side) = slot {
                    self.events.push_back(ClientEvent::Leased { side, left_ms });
                }
            }
            Record::Control(ControlRecord::Pace {
                backoff_ms,
                backoff_max_ms,
            }) => self.sessions[slot.at()].attempt.set_backoff(backoff_ms, backoff_max_ms),
            Record::Control(ControlRecord::Servers { role, servers }) => {
                if let Slot::Main(side) = slot {
                    self.told_servers(now, side, role, &servers);
                    self.keep_spares(now);
                }
            }
            Record::Control(ControlRecord::Refused {
                request: 0,
                code,
                retry_ms,
            }) => {
                let session = &self.sessions[slot.at()];
                let (named, before) = (session.servers.disbelieves(), session.servers.current().cloned());
                self.lose(now, slot, code.name());
                let session = &mut self.sessions[slot.at()];
                // A draining server will be gone by then, and others have not answered.
                if code.retry() && code != Code::Draining && before.as_ref() == session.servers.current() {
                    let wait = put_off(&mut self.node.dice, retry_ms, 0);
                    session.attempt.delay(now + wait);
                }
                let replaced = matches!(code, Code::Replaced | Code::Ended);
                if replaced || !code.retry() && !named {
                    let session = &mut self.sessions[slot.at()];
                    (session.state, session.replaced) = (State::Refused, replaced);
                    if let Slot::Main(side) = slot {
                        self.events.pop_back();
                        self.events.push_back(ClientEvent::Down {
                            side,
                            reason: code.name(),
                            retry: false,
                            wait_ms: retry_ms,
                        });
                    }
                }
            }
            Record::Control(ControlRecord::Refused {
                request,
                code,
                retry_ms,
            }) => self.refused(now, request, code, retry_ms),
            Record::Joined {
                request,
                handle,
                index,
                start,
                heads,
                gaps,
                history,
                whole,
            } => {
                let Some(room) = self.rooms.by_request(request) else {
                    self.orphan_joined(request, handle);
                    return;
                };
                let early = self.rooms.set_handle(room, handle);
                let answer = Answer {
                    handle,
                    index,
                    start,
                    heads,
                    gaps,
                    history,
                    whole,
                };
                if let Some(member) = self.rooms.get_mut(room) {
                    member.joined(now, &answer);
                    if let Some(upto) = early {
                        member.head(now, upto);
                    }
                    if member.is_readable() && member.tell() {
                        self.events.push_back(ClientEvent::Readable { room });
                    }
                    let deadline = member.deadline();
                    self.rooms.check(deadline);
                }
                let gaps = answer.gaps;
                self.events.push_back(ClientEvent::Joined { room, gaps });
            }
            Record::Headers if slot == Slot::Main(Side::Proxy) => {
                self.publications.pass_headers();
            }
            Record::Guest(record) => {
                if let Slot::Main(side) = slot {
                    let record = record.to_vec();
                    self.events.push_back(ClientEvent::Guest { side, record });
                }
            }
            Record::CommandTold { handle, command, data } => self.commanded(handle, command, data),
            Record::CommandDone {
                number,
                outcome,
                retry_ms,
                page,
            } => self.command_answered(now, slot, number, outcome, retry_ms, page),
            Record::Opened { request, handle } => {
                if let Some(publication) = self.publications.by_request(request) {
                    publication.opened(now, handle);
                }
            }
            _ => self.counters.datagrams_dropped += 1,
        }
    }
}
