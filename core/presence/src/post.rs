//! A node of presence: its links with other nodes, and the task that handles their frames.
//!
//! Owns: [`Post`], which joins frames into datagrams and queues those that wait for a link's window. A frame that
//! does not fit is dropped and counted: presence and unicast request again whatever they miss. Does not interpret
//! frames: the [`Task`] does.

use crate::kinds;
use crate::limits::HERE_EVERY;
use crate::wire::{Here, Message};
use muster_transport::{
    Access, Arrival, Code, Control, ControlRecord, Door, DoorKey, Encode, Entropy, Frames, HasLinks, Identity, Inbox,
    LinkChange, Links, Machine, Mail, Micros, Node, NodeConfig, Outbox, Placement, Records, ResetSecret, Role,
    SystemRecord, Writer, HEADER,
};
use std::collections::VecDeque;

/// Maximum bytes of unacknowledged control records per link: nodes of presence exchange no records of their own.
const LOG_BYTES: usize = 4_096;

/// The configuration of a node.
pub struct PostConfig {
    pub node: NodeConfig,
    /// Roles whose nodes are dialled.
    pub dials: Vec<Role>,
}

/// What a node does with its frames.
pub trait Task: Send {
    /// An event for the control plane.
    type Event: Send;

    /// Its site and shard, sent to every peer.
    fn here(&self) -> Here;

    /// Why it cannot serve yet.
    fn not_ready(&self) -> Option<&'static str> {
        None
    }

    /// A newer placement is in force.
    fn placed(&mut self, _now: Micros, _placement: &Placement, _mail: &mut Mail) {}

    /// A link came up or was lost.
    fn link(&mut self, _now: Micros, _peer: Identity, _up: bool, _mail: &mut Mail) {}

    /// Takes a frame. `false`: this peer may not send it.
    fn message(&mut self, now: Micros, peer: Identity, message: Message<'_>, mail: &mut Mail) -> bool;

    /// All datagrams of the turn have been taken.
    fn flush(&mut self, _now: Micros, _mail: &mut Mail) {}

    /// Runs the timers due by `now`.
    fn expire(&mut self, _now: Micros, _mail: &mut Mail) {}

    /// When [`Task::expire`] is due.
    fn deadline(&self, _now: Micros) -> Option<Micros> {
        None
    }

    /// Moves its events to the end of `into`.
    fn events(&mut self, _into: &mut Vec<Self::Event>) {}

    /// The node stood still: no peer counts as silent for that time.
    fn stalled(&mut self, _now: Micros) {}
}

muster_transport::counters! {
    /// A node's frames.
    pub struct MailCounters {
        /// Frames of presence and unicast taken.
        presence_frames_received,
        /// Frames of presence and unicast sent.
        presence_frames_sent,
        /// Frames dropped: their link was down.
        presence_dropped_unlinked,
        /// Frames dropped: the queue of their link was full.
        presence_dropped_full,
    }
}

/// A record of a link: nodes of presence exchange no others.
struct LinkRecord<'a>(ControlRecord<'a>);

impl Encode for LinkRecord<'_> {
    fn write(&self, writer: &mut Writer<'_>) -> bool {
        self.0.write(writer)
    }
}

impl<'a> SystemRecord<'a> for LinkRecord<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        ControlRecord::read(bytes).map(LinkRecord)
    }

    fn control(&self) -> Option<&ControlRecord<'a>> {
        Some(&self.0)
    }

    fn access(&self) -> Access {
        Access::Open
    }

    fn is_free(&self) -> bool {
        true
    }

    fn refusal(&self, _code: Code, _after_ms: u32) -> Option<Self> {
        None
    }
}

/// An event of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostEvent<E> {
    Link(LinkChange),
    Task(E),
}

/// A node with its task.
pub struct Post<T: Task> {
    node: Node,
    links: Links,
    dials: Vec<Role>,
    placement: Placement,
    is_placed: bool,
    records: Records,
    mail: Mail,
    /// Number of frames taken.
    received: u64,
    here_at: Micros,
    /// The last time passed in.
    now: Micros,
    events: VecDeque<LinkChange>,
    /// The task's events that were not taken yet.
    told: Vec<T::Event>,
    pub task: T,
}

impl<T: Task> Post<T> {
    pub fn new(config: PostConfig, seed: u64, mut entropy: Box<dyn Entropy>, task: T) -> Self {
        let door = Door::new(
            DoorKey::Cluster(Box::new(config.node.cluster.clone())),
            ResetSecret::new(config.node.reset_secret),
            entropy.as_mut(),
        );
        Post {
            node: Node::new(config.node.me, config.node.payload, seed, entropy),
            links: Links::new(door, config.node.cluster, LOG_BYTES),
            dials: config.dials,
            placement: Placement::default(),
            is_placed: false,
            records: Records::default(),
            mail: Mail::default(),
            received: 0,
            here_at: 0,
            now: 0,
            events: VecDeque::new(),
            told: Vec::new(),
            task,
        }
    }

    /// Takes the control plane's placement; an older one changes nothing.
    pub fn set_placement(&mut self, now: Micros, placement: Placement) {
        if placement.epoch() < self.placement.epoch() {
            return;
        }
        let me = self.node.me.node;
        self.is_placed = true;
        self.node.stamp.placement = placement.epoch();
        self.links.place(placement.numbers());
        let dialled = self.dials.iter().flat_map(|role| placement.of(*role));
        let dialled: Vec<_> = dialled
            .filter(|node| node.node != me)
            .map(|node| (node.node, node.role, node.addr))
            .collect();
        self.links.dial(now, dialled.into_iter());
        self.placement = placement;
        self.task.placed(now, &self.placement, &mut self.mail);
        self.wake();
    }

    /// Why the node cannot serve yet, if it cannot.
    pub fn not_ready(&self) -> Option<&'static str> {
        match self.is_placed {
            false => Some("there is no placement yet"),
            true => self.task.not_ready(),
        }
    }

    /// Whether the node has done all that the placement demands.
    pub fn settled(&self) -> bool {
        self.not_ready().is_none()
    }

    /// Calls `with` with the task and the queues for links; frames put there leave with the next turn.
    pub fn with<R>(&mut self, with: impl FnOnce(&mut T, &mut Mail) -> R) -> R {
        let given = with(&mut self.task, &mut self.mail);
        self.wake();
        given
    }

    /// Number of frames that wait for a link's window.
    pub fn waiting(&self) -> usize {
        self.mail.waiting()
    }

    pub fn counters(&self) -> MailCounters {
        MailCounters {
            presence_frames_received: self.received,
            presence_frames_sent: self.mail.sent,
            presence_dropped_unlinked: self.mail.dropped_unlinked,
            presence_dropped_full: self.mail.dropped_full,
        }
    }

    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    fn take_link(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let received = self.links.receive(now, &mut self.node, arrival, datagram);
        self.link_changes(now);
        let Some((slot, len)) = received else { return };
        let Some(peer) = self.links.table.get(slot).map(|link| link.data.peer) else {
            return;
        };
        let mut elicits = false;
        let mut records = std::mem::take(&mut self.records);
        for frame in Frames::new(&datagram[HEADER..HEADER + len], kinds::ALL) {
            let Ok(frame) = frame else {
                self.links.counters.link_dropped_frame += 1;
                break;
            };
            elicits |= kinds::ALL.elicits(frame.kind);
            match self.links.control(now, slot, &frame, &mut records) {
                Control::Other => {
                    let message = Message::read(frame.kind, frame.body);
                    let taken = message.is_some_and(|message| self.task.message(now, peer, message, &mut self.mail));
                    self.received += u64::from(taken);
                    self.links.counters.link_dropped_frame += u64::from(!taken);
                }
                Control::Heard(_) => self.links.table.mark(slot), // a window may have opened
                Control::Closed(_) => break,
                _ => {}
            }
        }
        for bytes in records.iter() {
            let record = LinkRecord::read(bytes);
            if !record.is_some_and(|record| self.links.link_record(slot, &record)) {
                self.links.counters.link_dropped_frame += 1;
            }
        }
        self.links.after(now, slot, elicits);
        self.link_changes(now);
        records.clear();
        self.records = records;
    }

    fn link_changes(&mut self, now: Micros) {
        while let Some(change) = self.links.change() {
            match change {
                LinkChange::Up { peer, .. } => {
                    self.mail.open(peer.node);
                    let here = Message::Here(self.task.here());
                    here.encode(|frame| self.mail.send(peer.node, frame));
                    self.task.link(now, peer, true, &mut self.mail);
                }
                // Another link to the node may have come up before.
                LinkChange::Down { peer, .. } if self.links.to(peer.node).is_none() => {
                    self.mail.close(peer.node);
                    self.task.link(now, peer, false, &mut self.mail);
                }
                _ => {}
            }
            self.events.push_back(change);
        }
    }

    /// Queues links with new frames for their turn.
    fn wake(&mut self) {
        for node in self.mail.begun() {
            if let Some(slot) = self.links.to(node) {
                self.links.table.mark(slot);
            }
        }
    }

    fn serve(&mut self, now: Micros, slot: u32, outbox: &mut Outbox) {
        let payload = self.node.payload;
        loop {
            let Some(link) = self.links.table.get_mut(slot) else {
                return;
            };
            let node = link.data.peer.node;
            let probe = std::mem::take(&mut link.data.probe);
            let free = link.conn.flow.available(payload);
            let due = probe || link.conn.control_due(now);
            if !(due || free > 0 && self.mail.waits(node)) {
                return;
            }
            if outbox.room() == 0 {
                link.data.probe = probe;
                self.links.table.mark(slot);
                return;
            }
            let mail = &mut self.mail;
            let left = self.links.send(now, &mut self.node, slot, outbox, |writer, _| {
                free > 0 && mail.fill(node, writer, kinds::ALL).elicits
            });
            if !left {
                return;
            }
        }
    }
}

impl<T: Task> HasLinks for Post<T> {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> (&mut Links, &mut Node) {
        (&mut self.links, &mut self.node)
    }
}

impl<T: Task> Machine for Post<T> {
    type Event = PostEvent<T::Event>;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        self.now = now;
        for index in 0..inbox.arrivals.len() {
            let (arrival, datagram) = inbox.datagram(index);
            self.take_link(now, arrival, datagram);
        }
        self.task.flush(now, &mut self.mail);
        self.wake();
    }

    fn expire(&mut self, now: Micros) {
        self.now = now;
        self.links.expire(now, &mut self.node);
        self.link_changes(now);
        if now >= self.here_at {
            self.here_at = now + HERE_EVERY;
            let linked: Vec<u32> = self.mail.linked().collect();
            Message::Here(self.task.here()).encode(|frame| {
                for node in linked {
                    self.mail.send(node, frame);
                }
            });
        }
        self.task.expire(now, &mut self.mail);
        self.wake();
        self.node.sweep(now);
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let mut more = self.links.transmit(now, &mut self.node, outbox);
        let mut turns = self.links.table.ready_len();
        while turns > 0 && outbox.room() > 0 {
            turns -= 1;
            let Some(slot) = self.links.table.next_ready() else {
                break;
            };
            self.serve(now, slot, outbox);
        }
        more |= self.links.table.ready_len() > 0;
        more
    }

    fn deadline(&self) -> Option<Micros> {
        let due = [self.links.deadline(), Some(self.here_at), self.task.deadline(self.now)];
        due.into_iter().flatten().min()
    }

    fn drain_events(&mut self, events: &mut Vec<PostEvent<T::Event>>) {
        events.extend(self.events.drain(..).map(PostEvent::Link));
        self.task.events(&mut self.told);
        events.extend(self.told.drain(..).map(PostEvent::Task));
    }

    fn stalled(&mut self, now: Micros) {
        self.task.stalled(now);
    }
}
