//! Publishing by members: one publication for each connection and room, and frames on their way to brokers, as from a proxy.
//!
//! Owns publications, their timers and the queues to brokers. Must not know: sockets, tokens, rights.

use std::collections::{BTreeMap, HashMap, VecDeque};

use muster_edge::{Failure, Ticket};
use muster_transport::{frames_max, Code, Frames, Links, Micros, Placement, Wheel, Writer};

use crate::client::chunk_max;
use crate::client::publication::{Publication, PublishError, NOT_READY_WAIT};
use crate::layers::RoomLayers;
use crate::limits::SESSION_PUBLICATIONS_MAX;
use crate::name::RoomKey;
use crate::owners::Owners;
use crate::queue::Queue;
use crate::wire::kinds;
use crate::wire::publish::{publish_body_max, Ack, LinkPublish, Publish, LINK_PUBLISH};
use crate::wire::{PublisherId, StreamId};

/// Publications at once: a broker has place for as many of one user.
const PUBLICATIONS_MAX: usize = 1 << 16;
/// A publication that nothing was published to for this long is closed.
const IDLE: Micros = 60_000_000;
/// Frames that wait for a broker's window, in bytes per broker, as at a proxy.
const QUEUE_BYTES_MAX: usize = 2 << 20;

/// A room to which a connection publishes.
struct Outlet {
    session: u64,
    user: u64,
    room: RoomKey,
    namespace: u8,
    handle: u32,
    used_at: Micros,
    queued: bool,
    publication: Publication,
}

/// A message that its publisher waits for.
struct Waiting {
    session: u64,
    ticket: Ticket,
    outlet: u32,
    is_call: bool,
}

/// How a message ended.
pub(super) struct Done {
    pub session: u64,
    pub ticket: Ticket,
    /// Where it stands, if its publisher asked by a call.
    pub end: Result<Option<(StreamId, u64)>, Failure>,
}

/// A publisher, and what it publishes to.
pub(super) struct From {
    pub session: u64,
    pub user: u64,
    pub incarnation: u64,
    pub room: RoomKey,
    pub namespace: u8,
    /// The client asked by a call that is answered with the position.
    pub is_call: bool,
}

pub(super) struct Publishing {
    payload: usize,
    outlets: Vec<Option<Box<Outlet>>>,
    uses: u32,
    free: Vec<u32>,
    by_room: HashMap<(u64, u64), u32>,
    /// Publications of each connection that has some.
    counts: HashMap<u64, usize>,
    waiting: HashMap<u64, Waiting>,
    tickets: u64,
    wheel: Wheel,
    /// Publications with something to send.
    due: VecDeque<u32>,
    queues: BTreeMap<u32, Queue>,
    done: VecDeque<Done>,
}

impl Publishing {
    pub fn new(payload: usize) -> Self {
        Publishing {
            payload,
            outlets: Vec::new(),
            uses: 0,
            free: Vec::new(),
            by_room: HashMap::new(),
            counts: HashMap::new(),
            waiting: HashMap::new(),
            tickets: 0,
            wheel: Wheel::new(),
            due: VecDeque::new(),
            queues: BTreeMap::new(),
            done: VecDeque::new(),
        }
    }

    /// Publications that are open.
    pub fn len(&self) -> usize {
        self.by_room.len()
    }

    /// Whether nothing waits for a broker.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.queues.values().all(Queue::is_empty)
    }

    pub fn deadline(&self) -> Option<Micros> {
        match self.due.is_empty() && self.done.is_empty() {
            true => self.wheel.next(),
            false => Some(0),
        }
    }

    /// Takes a message; `opened` numbers a publication that is new. [`Done`] says how it ended.
    pub fn publish(
        &mut self,
        now: Micros,
        from: From,
        ticket: Ticket,
        (headers, data): (&[u8], &[u8]),
        opened: impl FnOnce() -> u16,
    ) -> Result<(), Failure> {
        let key = (from.session, from.room.id);
        let at = match self.by_room.get(&key) {
            Some(at) => *at,
            None => self.open(now, &from, opened)?,
        };
        let Some(outlet) = self.outlets[at as usize].as_deref_mut() else {
            return Err(Failure::Internal);
        };
        self.tickets += 1;
        outlet.used_at = now;
        match outlet
            .publication
            .push_headed(headers, data, self.tickets, chunk_max(self.payload))
        {
            Ok(()) => {}
            Err(PublishError::WouldBlock) => return Err(Failure::TooManyRequests),
            Err(PublishError::TooLong) => return Err(Failure::BadRequest),
            Err(PublishError::Refused(code)) => return Err(failure(code)),
        }
        let waiting = Waiting {
            session: from.session,
            ticket,
            outlet: at,
            is_call: from.is_call,
        };
        self.waiting.insert(self.tickets, waiting);
        self.note_due(now, at);
        Ok(())
    }

    fn open(&mut self, now: Micros, from: &From, opened: impl FnOnce() -> u16) -> Result<u32, Failure> {
        if self.len() >= PUBLICATIONS_MAX {
            return Err(Failure::TooManyRequests);
        }
        if self
            .counts
            .get(&from.session)
            .is_some_and(|count| *count >= SESSION_PUBLICATIONS_MAX)
        {
            return Err(Failure::LimitExceeded);
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.outlets.push(None);
            self.outlets.len() as u32 - 1
        });
        self.uses = self.uses.wrapping_add(1);
        let handle = at | self.uses << 16;
        let incarnation = from.incarnation | u64::from(opened());
        let mut publication = Publication::new("", 0, 0, incarnation);
        publication.opened(now, handle);
        self.outlets[at as usize] = Some(Box::new(Outlet {
            session: from.session,
            user: from.user,
            room: from.room,
            namespace: from.namespace,
            handle,
            used_at: now,
            queued: false,
            publication,
        }));
        self.by_room.insert((from.session, from.room.id), at);
        *self.counts.entry(from.session).or_default() += 1;
        Ok(at)
    }

    fn note_due(&mut self, now: Micros, at: u32) {
        let Some(outlet) = self.outlets[at as usize].as_deref_mut() else {
            return;
        };
        // Only `pump` knows by which broker a message with headers goes.
        if outlet.publication.is_due() || outlet.publication.waits_for_headers() {
            if !std::mem::replace(&mut outlet.queued, true) {
                self.due.push_back(at);
            }
            return;
        }
        let idle = outlet.publication.is_idle().then_some(outlet.used_at + IDLE);
        let due = outlet.publication.deadline();
        if let Some(at_time) = due.into_iter().chain(idle).min() {
            self.wheel.schedule(at, at_time.max(now + 1));
        }
    }

    /// Runs the timers that are due.
    pub fn expire(&mut self, now: Micros) {
        while let Some(at) = self.wheel.pop(now) {
            let Some(outlet) = self.outlets[at as usize].as_deref_mut() else {
                continue;
            };
            if outlet.publication.is_idle() && now >= outlet.used_at + IDLE {
                self.close(at);
                continue;
            }
            outlet.publication.expire(now);
            self.note_due(now, at);
        }
    }

    fn close(&mut self, at: u32) {
        if let Some(outlet) = self.outlets[at as usize].take() {
            self.by_room.remove(&(outlet.session, outlet.room.id));
            if let Some(count) = self.counts.get_mut(&outlet.session) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&outlet.session);
                }
            }
            self.wheel.cancel(at);
            self.free.push(at);
        }
    }

    /// The connection is gone: what it published goes on its way, and nobody waits for the answers.
    pub fn ended(&mut self, session: u64) {
        self.waiting.retain(|_, waiting| waiting.session != session);
    }

    /// Writes frames for the brokers that their rooms belong to.
    pub fn pump(&mut self, now: Micros, owners: &Owners, placement: &Placement, links: &mut Links) {
        for _ in 0..self.due.len() {
            let Some(at) = self.due.pop_front() else { return };
            let Some(outlet) = self.outlets[at as usize].as_deref_mut() else {
                continue;
            };
            outlet.queued = false;
            let Some(route) = owners.route(now, placement.own(), links, outlet.room.id) else {
                self.wheel.schedule(at, now + NOT_READY_WAIT / 4);
                continue;
            };
            outlet.publication.set_passes_headers(owners.knows_headers(route.node));
            let queue = self.queues.entry(route.node).or_default();
            let mut wrote = false;
            while outlet.publication.is_due() && queue.bytes() < QUEUE_BYTES_MAX {
                let mut bytes = [0; 1_500];
                let len = frames_max(self.payload).min(bytes.len());
                let mut writer = Writer::new(&mut bytes[..len]);
                if !outlet
                    .publication
                    .write(now, publish_body_max(self.payload), &mut writer)
                {
                    break;
                }
                let len = writer.len();
                let frame = Frames::new(&bytes[..len], kinds::ALL).next();
                let Some(publish) = frame.and_then(Result::ok).and_then(|frame| Publish::read(frame.body)) else {
                    break;
                };
                let passed = LinkPublish {
                    room: outlet.room.id,
                    check: outlet.room.check,
                    publisher: PublisherId {
                        user: outlet.user,
                        incarnation: outlet.publication.incarnation,
                    },
                    session: outlet.session,
                    handle: outlet.handle,
                    sent_at: publish.sent_at,
                    low: publish.low,
                    first: publish.first,
                    count: publish.count,
                    messages: publish.messages,
                    detour: route.detour,
                    namespace: outlet.namespace,
                    age: None,
                };
                queue.push(outlet.session, LINK_PUBLISH + publish.messages.len(), |writer| {
                    passed.write(writer);
                });
                wrote = true;
            }
            if wrote {
                links.table.mark(route.slot);
            }
            match outlet.publication.is_due() {
                true => self.wheel.schedule(at, now + NOT_READY_WAIT / 4), // the queue is full
                false if outlet.publication.waits_for_headers() => self.wheel.schedule(at, now + NOT_READY_WAIT),
                false => self.note_due(now, at),
            }
        }
    }

    /// Whether frames wait for a broker.
    pub fn waits_for(&self, node: u32) -> bool {
        self.queues.get(&node).is_some_and(|queue| !queue.is_empty())
    }

    /// Writes frames that wait for a broker: whether any were, and whether more wait.
    pub fn fill(&mut self, node: u32, writer: &mut Writer<'_>) -> (bool, bool) {
        let Some(queue) = self.queues.get_mut(&node) else {
            return (false, false);
        };
        let mut any = false;
        while let Some((_, frame)) = queue.front() {
            if frame.len() > writer.room() {
                return (any, true);
            }
            writer.put(frame);
            queue.pop();
            any = true;
        }
        (any, false)
    }

    /// Takes a broker's acknowledgement. `false`: malformed.
    pub fn acknowledged(&mut self, now: Micros, body: &[u8]) -> bool {
        let Some((session, ack)) = Ack::read_link(body).and_then(|(session, ack)| Some((session, Ack::read(ack)?)))
        else {
            return false;
        };
        let at = ack.handle & 0xffff;
        let Some(outlet) = self.outlets.get_mut(at as usize).and_then(Option::as_deref_mut) else {
            return true;
        };
        if outlet.handle != ack.handle || outlet.session != session {
            return true;
        }
        let (waiting, done) = (&mut self.waiting, &mut self.done);
        outlet.publication.acknowledged(now, &ack, |published| {
            if let Some(waiting) = waiting.remove(&published.ticket) {
                done.push_back(Done {
                    session: waiting.session,
                    ticket: waiting.ticket,
                    end: Ok(waiting.is_call.then_some((published.stream, published.offset))),
                });
            }
        });
        if let Some(code) = outlet.publication.refused {
            let theirs = waiting.iter().filter(|(_, waiting)| waiting.outlet == at);
            let theirs: Vec<u64> = theirs.map(|(ticket, _)| *ticket).collect();
            let ended = theirs.iter().filter_map(|ticket| waiting.remove(ticket));
            done.extend(ended.map(|waiting| Done {
                session: waiting.session,
                ticket: waiting.ticket,
                end: Err(failure(code)),
            }));
            self.close(at); // another message opens it anew
            return true;
        }
        self.note_due(now, at);
        true
    }

    /// A broker has no link any more: what waits for it is repeated to the rooms' next owners.
    pub fn lost(&mut self, node: u32) {
        self.queues.remove(&node);
    }

    /// A message that has ended.
    pub fn done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }
}

/// The error for a client of a code for a publisher or member.
pub(super) fn failure(code: Code) -> Failure {
    match code {
        Code::NotAllowed | Code::BadCredential => Failure::PermissionDenied,
        Code::BadRoomName | Code::Malformed | Code::TooMuchHistory => Failure::BadRequest,
        Code::NameCollision => Failure::UnknownChannel,
        Code::TooManyRooms | Code::TooManyDevices => Failure::LimitExceeded,
        Code::RateLimited => Failure::TooManyRequests,
        _ => Failure::Internal,
    }
}
