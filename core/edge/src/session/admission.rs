//! Tokens: the answer to the connect command, and what a session goes on with.
//!
//! Owns: [`Admission`] and the times of tokens. Must not know: a token's content.

use muster_transport::{Dice, Micros};

use super::{Session, State, Turn};
use crate::ask::{Subject, Subscription, Ticket};
use crate::codes::Disconnect;
use crate::limits::{SUBSCRIPTIONS_MAX, TOKEN_GRACE};
use crate::protocol::{ConnectResult, Push, RefreshResult, SubscribeResult};

/// A user whom a token stands for.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Admission<'a> {
    /// As others see the user; the same for all sessions of one user.
    pub user: &'a str,
    /// As others see this session.
    pub client: &'a str,
    /// The token's end, in seconds from now; `None`: it has none.
    pub ttl_s: Option<u32>,
    /// For the client's application: JSON for JSON clients.
    pub data: &'a [u8],
    /// Subscriptions that come with the token.
    pub subs: &'a [(&'a str, SubscribeResult<'a>)],
    pub time_ms: i64,
}

impl Session {
    /// Answers the connect command; commands that came meanwhile are taken now. Returns the subscriptions that came with the
    /// token, in their order.
    pub fn admit(
        &mut self,
        turn: &mut Turn<'_>,
        dice: &mut Dice,
        ticket: Ticket,
        admission: &Admission<'_>,
    ) -> Vec<Subscription> {
        debug_assert_eq!(ticket.subject, Subject::Connect);
        if !self.answered() || self.state != State::Asking {
            return Vec::new();
        }
        self.state = State::Open;
        self.user = admission.user.into();
        self.client = admission.client.into();
        self.until = ends(turn.now, admission.ttl_s);
        let (ping_s, pong) = self.begin_pings(turn, dice);
        self.replies.connect(
            ticket.command,
            &ConnectResult {
                client: admission.client,
                version: &turn.settings.version,
                expires: admission.ttl_s.is_some(),
                ttl_s: admission.ttl_s.unwrap_or(0),
                data: admission.data,
                subs: admission.subs,
                ping_s,
                pong,
                session: "",
                node: &turn.settings.node,
                time_ms: admission.time_ms,
            },
        );
        let subs = admission.subs.iter().take(SUBSCRIPTIONS_MAX);
        let subscriptions = subs
            .map(|(channel, result)| self.subscriptions.begin_live(turn.now, channel, result))
            .collect();
        let waiting = std::mem::take(&mut self.waiting);
        self.receive(turn, &waiting);
        subscriptions
    }

    /// Answers a refresh command. A token of another user ends the session.
    pub fn renewed(&mut self, turn: &mut Turn<'_>, ticket: Ticket, user: &str, ttl_s: Option<u32>) {
        debug_assert_eq!(ticket.subject, Subject::Refresh);
        if !self.answered() {
            return;
        }
        if user != &*self.user {
            turn.counters.ended_refused += 1;
            return self.over(Disconnect::INVALID_TOKEN, turn.asks);
        }
        self.until = ends(turn.now, ttl_s);
        let client = std::mem::take(&mut self.client);
        self.replies
            .refresh(ticket.command, &client, &turn.settings.version, refresh(ttl_s));
        self.client = client;
    }

    /// The owner gives the session another end, or none, and the client is told.
    pub fn extend(&mut self, now: Micros, ttl_s: Option<u32>) {
        if self.state == State::Open {
            self.until = ends(now, ttl_s);
            self.replies.push("", 0, &Push::Refresh(refresh(ttl_s)));
        }
    }
}

/// When a token's holder ends unless another one comes.
pub(super) fn ends(now: Micros, ttl_s: Option<u32>) -> Option<Micros> {
    ttl_s.map(|ttl_s| now + Micros::from(ttl_s) * 1_000_000 + TOKEN_GRACE)
}

pub(super) fn refresh(ttl_s: Option<u32>) -> RefreshResult {
    RefreshResult {
        expires: ttl_s.is_some(),
        ttl_s: ttl_s.unwrap_or(0),
    }
}
