//! Members over UDP: sessions that carry their rooms' datagrams.
//!
//! Owns: what a gateway does with datagrams of its public socket, and the order of its turn. `fanout` sends.

use muster_transport::{
    Arrival, Code, Control, Denied, Door, DoorKey, Entropy, Frames, HasSessions, Heard, Inbox, Machine, Micros, Node,
    Outbox, ResetSecret, Sessions, HEADER, PUBLIC_SOCKET,
};

use super::{Client, Gateway, GatewayConfig, GatewayEvent, CONTROL_RATE};
use crate::admission;
use crate::rights::Admitted;
use crate::settings::GatewaySettings;
use crate::wire::kinds;
use crate::wire::record::Record;

impl Gateway {
    pub fn new(config: GatewayConfig, seed: u64, mut entropy: Box<dyn Entropy>) -> Self {
        let public = Door::new(
            DoorKey::Server(Box::new(config.server_key)),
            ResetSecret::new(config.node.reset_secret),
            entropy.as_mut(),
        );
        let door = &config.settings.door;
        let sessions = Sessions::new(public, door.keepalive_ms, door.idle_timeout_ms, CONTROL_RATE);
        let rooms = config.settings.rooms.clone();
        let mut gateway = Gateway::with(config.node, config.name_key, rooms, |_| sessions, seed, entropy);
        gateway.use_settings(&config.settings);
        gateway
    }

    /// Uses the settings that may change while it runs.
    pub fn use_settings(&mut self, settings: &GatewaySettings) {
        settings.door.apply(self);
        self.apply_rooms(&settings.rooms, settings.door.user_sessions_max);
    }

    /// Whether nothing is left to do after a drain.
    pub fn is_drained(&self) -> bool {
        self.sessions.is_drained() && self.lodge.is_idle()
    }

    /// Answers a [`GatewayEvent::Authenticate`]: the user and its rights, or why it is refused. `aside`: what the
    /// credential says for a guest.
    pub fn answer(&mut self, now: Micros, id: u64, said: Result<Admitted, Denied>, aside: &[u8]) {
        self.now = now;
        let (sessions, lodge, accounts) = (&mut self.sessions, &mut self.lodge, &mut self.accounts);
        let Some((slot, waiting)) = admission::admit(sessions, lodge, accounts, now, id, said, aside) else {
            return;
        };
        for bytes in waiting {
            if let Some(record) = Record::read(&bytes) {
                self.request(now, slot, record);
            }
        }
        self.sessions.reschedule(now, slot);
    }

    fn take_session(&mut self, now: Micros, arrival: Arrival, datagram: &mut [u8]) {
        let Some((slot, len)) = self.sessions.receive(now, &mut self.node, arrival, datagram) else {
            return;
        };
        let (mut elicits, mut control) = (false, false);
        let mut last: Option<Heard> = None;
        let mut records = std::mem::take(&mut self.records);
        for frame in Frames::new(&datagram[HEADER..HEADER + len], kinds::ALL) {
            let Ok(frame) = frame else {
                self.sessions.counters.dropped_frame += 1;
                break;
            };
            elicits |= kinds::ALL.elicits(frame.kind);
            control |= frame.kind != kinds::REPAIR;
            match self.sessions.control(now, slot, arrival.from, &frame, &mut records) {
                // However many a datagram holds, the rooms are gone through once.
                Control::Heard(heard) if last.is_some_and(|last| last.status.highest > heard.status.highest) => {}
                Control::Heard(heard) => last = Some(heard),
                Control::Other if frame.kind == kinds::REPAIR && self.repair_asked(now, slot, frame.body) => {}
                Control::Other => self.sessions.counters.dropped_frame += 1,
                Control::Closed(_) => break,
                _ => {}
            }
        }
        if let Some(heard) = last {
            self.heard(slot, &heard);
        }
        for bytes in records.iter() {
            if let Some(record) = self.sessions.record(now, slot, bytes) {
                self.request(now, slot, record);
            }
        }
        records.clear();
        self.records = records;
        self.tell_untold(slot);
        self.sessions.after(now, slot, elicits, control);
        self.cleanup(now);
        while let Some(question) = self.sessions.question() {
            self.events.push_back(GatewayEvent::Authenticate(question));
        }
    }

    fn request(&mut self, now: Micros, slot: u32, record: Record<'_>) {
        match record {
            Record::Join {
                request,
                name,
                positions,
                history,
            } => {
                if let Err(code) = self.join(now, slot, request, name, (positions, history)) {
                    self.counters.joins_refused += 1;
                    self.refuse(slot, request, code);
                }
            }
            Record::Filter { request, filter } => {
                if let Some(peer) = self.sessions.table.get_mut(slot) {
                    peer.data.data.ask_filter(request, filter);
                }
            }
            Record::Leave { handle } => self.leave(now, slot, handle),
            Record::Ages => {
                if let Some(peer) = self.sessions.table.get_mut(slot) {
                    peer.data.data.ages = true;
                }
            }
            Record::Headers => {
                if let Some(peer) = self.sessions.table.get_mut(slot) {
                    peer.data.data.headers = true;
                }
            }
            Record::Open { request, .. } => self.refuse(slot, request, Code::NotAllowed),
            Record::CommandTaken { command, taken } => self.command_taken(now, slot, command, taken),
            Record::Guest(record) => {
                let session = self.sessions.table.get(slot).map(|peer| peer.conn.id);
                if !session.is_some_and(|session| self.lodge.record(now, session, record)) {
                    self.sessions.counters.dropped_frame += 1;
                }
            }
            _ => {}
        }
        self.sessions.table.mark(slot);
    }
}

impl HasSessions for Gateway {
    type Session = Client;

    fn sessions(&self) -> &Sessions<Client> {
        &self.sessions
    }

    fn sessions_mut(&mut self) -> (&mut Sessions<Client>, &mut Node) {
        (&mut self.sessions, &mut self.node)
    }
}

impl Machine for Gateway {
    type Event = GatewayEvent;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        self.now = now;
        for index in 0..inbox.arrivals.len() {
            let (arrival, datagram) = inbox.datagram(index);
            if arrival.socket == PUBLIC_SOCKET {
                self.take_session(now, arrival, datagram);
            } else {
                self.take_link(now, arrival, datagram);
            }
        }
        self.lodge.act(now, &mut self.links, &mut self.sessions);
    }

    fn expire(&mut self, now: Micros) {
        self.now = now;
        self.expire_links(now);
        self.sessions.expire(now, &mut self.node);
        self.expire_members(now);
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        let mut more = self.links.transmit(now, &mut self.node, outbox);
        more |= self.sessions.transmit(now, &mut self.node, outbox);
        more |= self.transmit_links(now, outbox);
        more |= self.fan_out(now, outbox);
        more
    }

    fn deadline(&self) -> Option<Micros> {
        [self.sessions.deadline(), self.rooms_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn drain_events(&mut self, events: &mut Vec<GatewayEvent>) {
        events.extend(self.events.drain(..));
    }

    fn stalled(&mut self, _now: Micros) {}
}
