//! Questions of clients that the control plane answers: on their tokens, and calls of its methods.
//!
//! Owns those that are open, and events on their way to the control plane. Knows no room.

use std::collections::{HashMap, VecDeque};

use muster_edge::protocol::Position;
use muster_edge::{Join, Subscription, Ticket};
use muster_transport::{KeyedState, Question};

use super::{Conn, EdgeEvent};

/// A question for the control plane.
pub(super) enum Asked {
    /// With the positions that the client has in rooms of its token.
    Connect(Ticket, Vec<(String, Position)>),
    Refresh(Ticket),
    Subscribe(Ticket, Subscription, Box<Join>),
    SubRefresh(Ticket, Subscription, String),
    Call(Ticket),
}

pub(super) struct ControlPlane {
    /// Each with the session that asks.
    asked: HashMap<u64, (u64, Asked), KeyedState>,
    /// The number of the last one.
    last: u64,
    events: VecDeque<EdgeEvent>,
    /// Its methods.
    methods: Vec<String>,
}

impl ControlPlane {
    pub fn new(hash: KeyedState, methods: Vec<String>) -> Self {
        ControlPlane {
            asked: HashMap::with_hasher(hash),
            last: 0,
            events: VecDeque::new(),
            methods,
        }
    }

    /// Whether it answers calls of this method.
    pub fn has(&self, method: &str) -> bool {
        self.methods.iter().any(|known| known == method)
    }

    fn note(&mut self, session: u64, asked: Asked) -> u64 {
        self.last += 1;
        self.asked.insert(self.last, (session, asked));
        self.last
    }

    /// Asks what a token opens: of all rooms, or of one.
    pub fn ask(&mut self, session: u64, asked: Asked, credential: Vec<u8>, room: Option<String>) {
        let id = self.note(session, asked);
        let question = Question { id, credential };
        self.events.push_back(match room {
            None => EdgeEvent::Authenticate(question),
            Some(room) => EdgeEvent::Subscribe(question, room),
        });
    }

    /// Passes a call of a user on. A session has as many of them open as its bound of questions allows.
    pub fn call(&mut self, conn: &Conn, ticket: Ticket, method: &str, data: &[u8]) {
        let question = self.note(conn.session(), Asked::Call(ticket));
        self.events.push_back(EdgeEvent::Call {
            question,
            user: conn.user,
            grant: conn.client.grant.clone(),
            method: method.to_owned(),
            data: data.to_vec(),
        });
    }

    /// The question that has its answer now, and the session that asked.
    pub fn take(&mut self, id: u64) -> Option<(u64, Asked)> {
        self.asked.remove(&id)
    }

    /// The same, if it is a call.
    pub fn take_call(&mut self, id: u64) -> Option<(u64, Ticket)> {
        let &(session, Asked::Call(ticket)) = self.asked.get(&id)? else {
            return None;
        };
        self.asked.remove(&id);
        Some((session, ticket))
    }

    /// A session is over.
    pub fn forget(&mut self, session: u64) {
        self.asked.retain(|_, (asker, _)| *asker != session);
    }

    pub fn drain_events(&mut self) -> impl Iterator<Item = EdgeEvent> + '_ {
        self.events.drain(..)
    }
}
