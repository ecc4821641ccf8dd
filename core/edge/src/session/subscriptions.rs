//! A session's subscriptions by channel, their ends, and the pause between announced gaps.
//!
//! Owns: [`Subscriptions`]. SDKs answer an unsubscribe push from 2500 on with a subscribe command at once, without a back-off:
//! so for one channel such pushes are a second apart. Meanwhile the subscription is over for the owner, and nothing of it is
//! delivered, so that no message passes the gap.

use muster_transport::{soonest, Micros};

use super::admission::{ends, refresh};
use super::{Session, State, Turn};
use crate::ask::{Ask, Subject, Subscription, Ticket};
use crate::codes::Unsubscribe;
use crate::limits::{RECOVERED_BYTES_MAX, RESUBSCRIBE_EVERY, SUBSCRIPTIONS_MAX};
use crate::protocol::{Push, SubscribeResult};

#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// The owner has not answered the command with this id.
    Asked(u32),
    Live,
    /// It is over, and the client is told later.
    Held(Box<Held>),
    /// It is over, and the client knows.
    Past,
}

/// An end that is told at this time.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Held {
    at: Micros,
    code: Unsubscribe,
    reason: Box<str>,
}

struct Entry {
    channel: Box<str>,
    subscription: Subscription,
    state: Phase,
    /// When the client was last told to subscribe again.
    told_at: Option<Micros>,
    /// The end of its token.
    until: Option<Micros>,
}

impl Entry {
    /// Whether the client has it, or asked for it.
    fn is_there(&self) -> bool {
        !matches!(self.state, Phase::Past)
    }

    fn deadline(&self) -> Option<Micros> {
        match &self.state {
            Phase::Held(held) => Some(held.at),
            Phase::Live => self.until,
            Phase::Asked(_) | Phase::Past => None,
        }
    }
}

#[derive(Default)]
pub(super) struct Subscriptions {
    entries: Vec<Entry>,
    last: u32,
}

impl Subscriptions {
    /// The number of subscriptions that are live or asked for.
    pub fn len(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_there()).count()
    }

    pub fn deadline(&self) -> Option<Micros> {
        let mut at = None;
        for entry in &self.entries {
            soonest(&mut at, entry.deadline());
        }
        at
    }

    /// Whether a subscribe command comes too early: the channel's subscription is asked for, or there.
    pub fn is_taken(&self, channel: &str) -> bool {
        self.named(channel)
            .is_some_and(|entry| matches!(entry.state, Phase::Asked(_) | Phase::Live))
    }

    /// The live subscription of a channel.
    pub fn live(&self, channel: &str) -> Option<Subscription> {
        let entry = self.named(channel)?;
        (entry.state == Phase::Live).then_some(entry.subscription)
    }

    /// Whether messages of this subscription may be given to the session.
    pub fn is_live(&self, subscription: Subscription) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.subscription == subscription && entry.state == Phase::Live)
    }

    fn begin(&mut self, now: Micros, channel: &str, command: u32) -> Subscription {
        self.forget(now);
        self.last = self.last.wrapping_add(1);
        let subscription = Subscription(self.last);
        let told_at = match self.entries.iter().position(|entry| *entry.channel == *channel) {
            Some(at) => self.entries.swap_remove(at).told_at,
            None => None,
        };
        if self.entries.is_empty() {
            self.entries.reserve_exact(1); // most have one; a list by itself makes place for four
        }
        self.entries.push(Entry {
            channel: channel.into(),
            subscription,
            state: Phase::Asked(command),
            told_at,
            until: None,
        });
        subscription
    }

    /// One that the server made.
    pub fn begin_live(&mut self, now: Micros, channel: &str, result: &SubscribeResult<'_>) -> Subscription {
        let subscription = self.begin(now, channel, 0);
        if let Some(entry) = self.entries.last_mut() {
            entry.state = Phase::Live;
            entry.until = ends(now, result.expires.then_some(result.ttl_s));
        }
        subscription
    }

    /// The owner refuses it. False: the client has left it meanwhile, and has its answer.
    pub fn refuse(&mut self, subscription: Subscription) -> bool {
        let at = self
            .entries
            .iter()
            .position(|entry| entry.subscription == subscription && matches!(entry.state, Phase::Asked(_)));
        at.map(|at| self.entries[at].state = Phase::Past).is_some()
    }

    /// The client leaves a channel. Returns the subscription that is over by that, with the id of its command if that has no
    /// answer yet.
    pub fn leave(&mut self, channel: &str) -> Option<(Subscription, Option<u32>)> {
        let entry = self.entries.iter_mut().find(|entry| *entry.channel == *channel)?;
        match std::mem::replace(&mut entry.state, Phase::Past) {
            Phase::Asked(command) => Some((entry.subscription, Some(command))),
            Phase::Live => Some((entry.subscription, None)),
            Phase::Held(_) | Phase::Past => None,
        }
    }

    /// Forgets ends that were told more than a pause ago.
    fn forget(&mut self, now: Micros) {
        self.entries.retain(|entry| {
            let pause = entry.told_at.is_some_and(|told| now < told + RESUBSCRIBE_EVERY);
            entry.is_there() || pause
        });
        // A client that leaves and comes in a hurry: the pauses of the oldest are given up.
        if self.entries.len() >= 2 * SUBSCRIPTIONS_MAX {
            self.entries.retain(Entry::is_there);
        }
    }

    fn named(&self, channel: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| *entry.channel == *channel)
    }
}

/// Tells a client of a subscription that it did not ask for.
fn subscribe_push<'a>(result: &SubscribeResult<'a>) -> Push<'a> {
    Push::Subscribe {
        recoverable: result.recoverable,
        epoch: result.epoch,
        offset: result.offset,
        positioned: result.positioned,
        data: result.data,
    }
}

impl Session {
    /// Whether messages of this subscription may be given to the session.
    pub fn has(&self, subscription: Subscription) -> bool {
        self.state == State::Open && self.subscriptions.is_live(subscription)
    }

    pub(super) fn begin_subscription(&mut self, now: Micros, command: u32, channel: &str) -> (Subscription, Ticket) {
        let subscription = self.subscriptions.begin(now, channel, command);
        (subscription, self.ticket(command, Subject::Subscription(subscription)))
    }

    /// Answers a subscribe command. Publications beyond the bound of a reply follow as pushes. False: the client has left
    /// meanwhile, and the owner forgets it.
    pub fn joined(&mut self, now: Micros, ticket: Ticket, result: &SubscribeResult<'_>) -> bool {
        let Subject::Subscription(subscription) = ticket.subject else {
            debug_assert!(false, "the ticket of a subscribe command");
            return false;
        };
        if !self.answered() {
            return false;
        }
        let entries = &mut self.subscriptions.entries;
        let Some(entry) = entries
            .iter_mut()
            .find(|entry| entry.subscription == subscription && matches!(entry.state, Phase::Asked(_)))
        else {
            return false;
        };
        entry.state = Phase::Live;
        entry.until = ends(now, result.expires.then_some(result.ttl_s));
        let written = self.replies.subscribe(ticket.command, result, RECOVERED_BYTES_MAX);
        for publication in &result.publications[written..] {
            self.replies
                .push(&entry.channel, result.id, &Push::Publication(publication));
        }
        true
    }

    /// The server subscribes the session by itself: the client is told, and the subscription is live.
    pub fn subscribed(&mut self, now: Micros, channel: &str, result: &SubscribeResult<'_>) -> Option<Subscription> {
        if self.state != State::Open
            || self.subscriptions.is_taken(channel)
            || self.subscriptions.len() >= SUBSCRIPTIONS_MAX
        {
            return None;
        }
        let subscription = self.subscriptions.begin_live(now, channel, result);
        self.replies.push(channel, 0, &subscribe_push(result));
        Some(subscription)
    }

    /// A subscription that the server made begins again at another position, and stays. `lost`: why messages are missing before
    /// it; SDKs tell an application of the end and of the new beginning, and do not subscribe themselves.
    pub fn began_again(&mut self, channel: &str, lost: Option<&str>, result: &SubscribeResult<'_>) {
        if self.state != State::Open || self.subscriptions.live(channel).is_none() {
            return;
        }
        if let Some(reason) = lost {
            let code = Unsubscribe::INSUFFICIENT;
            self.replies.push(channel, 0, &Push::Unsubscribe { code, reason });
        }
        self.replies.push(channel, 0, &subscribe_push(result));
    }

    /// Answers a sub_refresh command.
    pub fn sub_renewed(&mut self, now: Micros, ticket: Ticket, ttl_s: Option<u32>) {
        let Subject::SubRefresh(subscription) = ticket.subject else {
            debug_assert!(false, "the ticket of a sub_refresh command");
            return;
        };
        if !self.answered() {
            return;
        }
        let entries = &mut self.subscriptions.entries;
        if let Some(entry) = entries.iter_mut().find(|entry| entry.subscription == subscription) {
            entry.until = ends(now, ttl_s);
        }
        self.replies.sub_refresh(ticket.command, refresh(ttl_s));
    }

    /// Ends a subscription from the server's side. It is over for the owner at once. Where the client will subscribe again, it
    /// is told a second after it was last told so for this channel.
    pub fn unsubscribed(&mut self, turn: &mut Turn<'_>, subscription: Subscription, code: Unsubscribe, reason: &str) {
        let entries = &mut self.subscriptions.entries;
        let Some(entry) = entries
            .iter_mut()
            .find(|entry| entry.subscription == subscription && entry.state == Phase::Live)
        else {
            return;
        };
        let at = match entry.told_at {
            Some(told) if code.returns() => told + RESUBSCRIBE_EVERY,
            _ => turn.now,
        };
        if at > turn.now {
            turn.counters.resubscriptions_put_off += 1;
        }
        entry.state = Phase::Held(Box::new(Held {
            at,
            code,
            reason: crate::protocol::shortened(reason).into(),
        }));
        self.tell_ends(turn);
    }

    pub(super) fn expire_subscriptions(&mut self, turn: &mut Turn<'_>) {
        let over =
            |entry: &&mut Entry| entry.state == Phase::Live && entry.until.is_some_and(|until| until <= turn.now);
        let mut left = Vec::new();
        for entry in self.subscriptions.entries.iter_mut().filter(over) {
            left.push(entry.subscription);
        }
        for subscription in left {
            self.unsubscribed(turn, subscription, Unsubscribe::EXPIRED, "subscription expired");
            turn.asks.push(Ask::Leave { subscription });
        }
        self.tell_ends(turn);
    }

    /// Tells the client of the ends that are due.
    fn tell_ends(&mut self, turn: &mut Turn<'_>) {
        for entry in &mut self.subscriptions.entries {
            let Phase::Held(held) = &entry.state else {
                continue;
            };
            if held.at > turn.now {
                continue;
            }
            let (code, reason) = (held.code, &*held.reason);
            let push = Push::Unsubscribe { code, reason };
            self.replies.push(&entry.channel, 0, &push);
            entry.state = Phase::Past;
            if code.returns() {
                entry.told_at = Some(turn.now);
                turn.counters.resubscriptions += 1;
            }
        }
    }
}
