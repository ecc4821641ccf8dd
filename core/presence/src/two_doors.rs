//! Presence and unicast in an edge, whose clients have one connection for what others have two doors for.
//!
//! Owns [`TwoDoors`]: a gateway's guest and a proxy's guest as one. Must not know: what either does.

use crate::role;
use crate::sending::Sending;
use crate::station::Station;
use crate::wire::Message;
use muster_transport::{End, Frame, FrameKinds, Guest, Host, Identity, Micros};

/// The guest of an edge.
pub struct TwoDoors {
    station: Station,
    sending: Sending,
}

impl TwoDoors {
    pub fn new(station: Station, sending: Sending) -> Self {
        TwoDoors { station, sending }
    }
}

impl Guest for TwoDoors {
    fn kinds(&self) -> FrameKinds {
        self.station.kinds().or(self.sending.kinds())
    }

    fn opened(&mut self, now: Micros, session: u64, user: u64, said: &[u8]) {
        self.station.opened(now, session, user, said);
        self.sending.opened(now, session, user, said);
    }

    fn renewed(&mut self, now: Micros, session: u64, said: &[u8]) {
        self.station.renewed(now, session, said);
        self.sending.renewed(now, session, said);
    }

    fn ended(&mut self, now: Micros, session: u64, end: End) {
        self.station.ended(now, session, end);
        self.sending.ended(now, session, end);
    }

    fn record(&mut self, now: Micros, session: u64, record: &[u8]) -> bool {
        self.sending.record(now, session, record) || self.station.record(now, session, record)
    }

    fn link(&mut self, now: Micros, peer: Identity, up: bool) {
        self.station.link(now, peer, up);
        self.sending.link(now, peer, up);
    }

    fn frame(&mut self, now: Micros, peer: Identity, frame: &Frame<'_>) -> bool {
        match Message::read(frame.kind, frame.body) {
            Some(Message::UnicastAnswer(_)) => self.sending.frame(now, peer, frame),
            Some(Message::Here(_)) if peer.role == role::UNICAST => self.sending.frame(now, peer, frame),
            _ => self.station.frame(now, peer, frame),
        }
    }

    fn act(&mut self, now: Micros, host: &mut dyn Host) {
        self.station.act(now, host);
        self.sending.act(now, host);
    }

    fn deadline(&self) -> Option<Micros> {
        self.station.deadline().into_iter().chain(self.sending.deadline()).min()
    }

    fn is_idle(&self) -> bool {
        self.station.is_idle() && self.sending.is_idle()
    }

    fn each_counter(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        self.station.each_counter(&mut *each);
        self.sending.each_counter(each);
    }

    fn each_gauge(&self, each: &mut dyn FnMut(&'static str, &'static str, f64)) {
        self.station.each_gauge(&mut *each);
        self.sending.each_gauge(each);
    }
}
