//! One client's session: commands in, questions out; answers in, replies out.
//!
//! Owns: [`Session`], the order of its states, its tickets and its timers. Must not know: WebSocket, rooms, tokens' content.

mod admission;
mod commands;
mod pings;
mod subscriptions;

pub use admission::Admission;

use muster_transport::{soonest, Debt, Dice, Micros};

use crate::ask::{Ask, Subject, Ticket};
use crate::codes::{Disconnect, Failure};
use crate::counters::Counters;
use crate::limits::{CONNECT_WITHIN, RECOVERED_BYTES_MAX, UNREAD_BYTES_MAX, WAITING_REPLIES_MAX};
use crate::protocol::{ClientInfo, Encoding, HistoryResult, Push, Replies};
use crate::settings::Settings;
use pings::Pings;
use subscriptions::Subscriptions;

/// What a session needs of its owner in a call that takes bytes or time.
pub struct Turn<'a> {
    pub now: Micros,
    pub settings: &'a Settings,
    pub asks: &'a mut Vec<Ask>,
    pub counters: &'a mut Counters,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its connect command is awaited.
    Fresh,
    /// Its token is judged.
    Asking,
    Open,
    Over,
}

pub struct Session {
    state: State,
    replies: Replies,
    /// Commands that came while the token was judged.
    waiting: Vec<u8>,
    subscriptions: Subscriptions,
    pings: Pings,
    debt: Debt,
    /// Questions without an answer.
    asked: u32,
    user: Box<str>,
    client: Box<str>,
    /// The connect command must have come by then; later, the token's end.
    until: Option<Micros>,
    /// How it ended, for the close frame.
    end: Option<Disconnect>,
}

impl Session {
    /// `native_pings`: the client wants WebSocket's pings in place of the protocol's.
    pub fn new(now: Micros, encoding: Encoding, native_pings: bool) -> Session {
        Session {
            state: State::Fresh,
            replies: Replies::new(encoding),
            waiting: Vec::new(),
            subscriptions: Subscriptions::default(),
            pings: Pings::new(native_pings),
            debt: Debt::default(),
            asked: 0,
            user: Box::default(),
            client: Box::default(),
            until: Some(now + CONNECT_WITHIN),
            end: None,
        }
    }

    pub fn encoding(&self) -> Encoding {
        self.replies.encoding()
    }

    /// Whether a token was accepted, and the session is not over.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// How it ended, if a close frame is to tell it.
    pub fn end(&self) -> Option<Disconnect> {
        self.end
    }

    /// The user that it was admitted as.
    pub fn user(&self) -> &str {
        &self.user
    }

    pub fn client(&self) -> &str {
        &self.client
    }

    /// Messages that wait to be written.
    pub fn replies(&self) -> &Replies {
        &self.replies
    }

    /// Whether anything waits to be written.
    pub fn has_bytes(&self) -> bool {
        !self.replies.bytes().is_empty() || self.pings.has_native()
    }

    /// The messages have been written.
    pub fn replies_written(&mut self) {
        self.replies.clear();
        self.pings.written();
    }

    /// Whether its commands are left unread for now, as its replies are.
    pub fn is_full(&self) -> bool {
        self.replies.bytes().len() >= UNREAD_BYTES_MAX
    }

    /// Bytes of memory that it holds beside itself.
    pub fn held(&self) -> usize {
        self.waiting.capacity() + self.replies.bytes().len()
    }

    /// When [`Session::expire`] is to be called next.
    pub fn deadline(&self) -> Option<Micros> {
        let mut at = None;
        if self.state != State::Over {
            soonest(&mut at, self.until);
        }
        if self.state == State::Open {
            soonest(&mut at, self.pings.deadline());
            soonest(&mut at, self.subscriptions.deadline());
        }
        at
    }

    /// Runs the timers due by `turn.now`.
    pub fn expire(&mut self, turn: &mut Turn<'_>, dice: &mut Dice) {
        if self.state == State::Over {
            return;
        }
        if self.until.is_some_and(|until| until <= turn.now) {
            match self.state {
                State::Open => {
                    turn.counters.ended_expired += 1;
                    self.over(Disconnect::EXPIRED, turn.asks);
                }
                _ => {
                    turn.counters.ended_late += 1;
                    self.over(Disconnect::STALE, turn.asks);
                }
            }
            return;
        }
        if self.state == State::Open {
            self.expire_subscriptions(turn);
            self.expire_pings(turn, dice);
            self.bound(turn);
        }
    }

    /// Ends the session; its client is told in a close frame. The owner leaves its rooms by itself.
    pub fn disconnect(&mut self, end: Disconnect) {
        self.over(end, &mut Vec::new());
    }

    /// The stream is gone, or its client said so.
    pub fn gone(&mut self, asks: &mut Vec<Ask>) {
        if self.state != State::Over {
            self.over(Disconnect::CLOSED, asks);
            self.end = None;
        }
    }

    /// Answers any question with an error. After one to its connect command a client brings another token, mostly by another
    /// connection.
    pub fn fail(&mut self, ticket: Ticket, failure: Failure) {
        if !self.answered() {
            return;
        }
        match ticket.subject {
            Subject::Connect => {
                self.state = State::Fresh;
                self.waiting = Vec::new();
            }
            // The client has left it meanwhile, and has its answer.
            Subject::Subscription(subscription) if !self.subscriptions.refuse(subscription) => return,
            _ => {}
        }
        self.replies.error(ticket.command, failure);
    }

    /// Answers a publish command.
    pub fn published(&mut self, ticket: Ticket) {
        debug_assert_eq!(ticket.subject, Subject::Publish);
        if self.answered() {
            self.replies.publish(ticket.command);
        }
    }

    /// Answers a presence command with clients by their ids.
    pub fn presence<'a>(&mut self, ticket: Ticket, clients: impl IntoIterator<Item = (&'a str, ClientInfo<'a>)>) {
        debug_assert_eq!(ticket.subject, Subject::Presence);
        if self.answered() {
            self.replies.presence(ticket.command, clients);
        }
    }

    pub fn presence_stats(&mut self, ticket: Ticket, clients: u32, users: u32) {
        debug_assert_eq!(ticket.subject, Subject::PresenceStats);
        if self.answered() {
            self.replies.presence_stats(ticket.command, clients, users);
        }
    }

    /// Answers a history command, and returns how many publications are in the answer: those beyond the bound are not.
    pub fn history(&mut self, ticket: Ticket, result: &HistoryResult<'_>) -> usize {
        debug_assert_eq!(ticket.subject, Subject::History);
        match self.answered() {
            true => self.replies.history(ticket.command, result, RECOVERED_BYTES_MAX),
            false => 0,
        }
    }

    pub fn rpc(&mut self, ticket: Ticket, data: &[u8]) {
        debug_assert_eq!(ticket.subject, Subject::Rpc);
        if self.answered() {
            self.replies.rpc(ticket.command, data);
        }
    }

    /// Tells the client something outside of any channel.
    pub fn message(&mut self, data: &[u8]) {
        if self.state == State::Open {
            self.replies.push("", 0, &Push::Message { data });
        }
    }

    /// Tells the client something of a channel that concerns it alone, or too few for a shared frame: who comes and goes.
    pub fn push(&mut self, channel: &str, push: &Push<'_>) {
        if self.state == State::Open {
            self.replies.push(channel, 0, push);
        }
    }

    /// One question has its answer. False: the session is over, so nothing is replied.
    fn answered(&mut self) -> bool {
        self.asked = self.asked.saturating_sub(1);
        self.state != State::Over
    }

    /// Ends it as slow if too much waits to be written.
    fn bound(&mut self, turn: &mut Turn<'_>) {
        if self.replies.bytes().len() > WAITING_REPLIES_MAX && self.state != State::Over {
            turn.counters.ended_slow += 1;
            self.over(Disconnect::SLOW, turn.asks);
        }
    }

    fn over(&mut self, end: Disconnect, asks: &mut Vec<Ask>) {
        if self.state == State::Over {
            return;
        }
        self.state = State::Over;
        self.end = Some(end);
        self.until = None;
        self.waiting = Vec::new();
        self.subscriptions = Subscriptions::default();
        asks.push(Ask::Ended { code: end.code });
    }
}
