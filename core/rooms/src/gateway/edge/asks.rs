//! Answers to what a session asks: tokens by the control plane, rooms by the gateway.

use muster_edge::limits::TOKEN_GRACE;
use muster_edge::{Ask, Connection, Disconnect, Failure, Ticket, Turn, Unsubscribe};
use muster_transport::{Denied, Dice, End, Micros};

use super::control::Asked;
use super::entries::Entering;
use super::publishing::From;
use super::questions::Answers;
use super::{history, Answer, Edge, EdgeRefusal, Receipt, Ticketed};
use crate::accounts::AccountId;
use crate::gateway::members::Members;
use crate::name::RoomName;
use crate::rights::{split_verdict, Admitted, Rights};

impl Edge {
    /// Runs `f` on a connection, and answers what it asks.
    pub(super) fn run(&mut self, now: Micros, slot: u32, f: impl FnOnce(&mut Connection, &mut Turn<'_>, &mut Dice)) {
        self.sessions.with(now, slot, f);
        self.answer_asks(now, slot);
        self.settle_answers(now);
        self.sessions.settle(now, slot);
    }

    /// Answers the questions that have been noted for a connection.
    pub(super) fn answer_asks(&mut self, now: Micros, slot: u32) {
        loop {
            let asks = self.sessions.protocol.take_asks();
            if asks.is_empty() {
                return;
            }
            for ask in asks {
                self.answer_ask(now, slot, ask);
            }
        }
    }

    pub(super) fn fail(&mut self, now: Micros, slot: u32, ticket: Ticket, failure: Failure) {
        if let Some(session) = self.sessions.conn_mut(slot).and_then(|conn| conn.connection.session()) {
            session.fail(ticket, failure);
        }
        self.sessions.settle(now, slot);
    }

    fn answer_ask(&mut self, now: Micros, slot: u32, ask: Ask) {
        let Some(session) = self.sessions.conn(slot).map(super::Conn::session) else {
            return;
        };
        match ask {
            Ask::Authenticate {
                ticket, token, subs, ..
            } => {
                self.sessions
                    .control
                    .ask(session, Asked::Connect(ticket, subs), token.into_bytes(), None);
            }
            Ask::Renew { ticket, token } => {
                self.sessions
                    .control
                    .ask(session, Asked::Refresh(ticket), token.into_bytes(), None);
            }
            Ask::Join {
                ticket,
                subscription,
                mut join,
            } => {
                if join.token.is_empty() {
                    return self.subscribe(now, slot, ticket, subscription, join);
                }
                let token = std::mem::take(&mut join.token);
                let channel = join.channel.clone();
                let asked = Asked::Subscribe(ticket, subscription, join);
                self.sessions
                    .control
                    .ask(session, asked, token.into_bytes(), Some(channel));
            }
            Ask::RenewJoin {
                ticket,
                subscription,
                channel,
                token,
            } => {
                let asked = Asked::SubRefresh(ticket, subscription, channel.clone());
                self.sessions
                    .control
                    .ask(session, asked, token.into_bytes(), Some(channel));
            }
            Ask::Leave { subscription } => self.unsubscribe(now, slot, subscription),
            Ask::Publish { ticket, channel, data } => {
                self.sessions.counters.publications_received += 1;
                if let Err(failure) = self.publish(now, slot, ticket, &channel, (&[], &data), false) {
                    self.sessions.counters.publications_refused += 1;
                    self.fail(now, slot, ticket, failure);
                }
            }
            Ask::History {
                ticket,
                channel,
                limit,
                since,
                reverse,
            } => {
                let limit = limit.map_or(usize::MAX, |limit| limit as usize);
                let wanted = history::Wanted {
                    limit,
                    since,
                    reverse,
                    positions: false,
                };
                self.history(now, slot, ticket, &channel, wanted);
            }
            Ask::Presence { ticket, channel } => {
                let ask = crate::command::Ask::Count { from: Some(0) };
                self.ask_members(now, slot, Answers::Presence(ticket), &channel, 0, ask);
            }
            Ask::PresenceStats { ticket, channel } => {
                let ask = crate::command::Ask::Count { from: Some(0) };
                self.ask_members(now, slot, Answers::Stats(ticket), &channel, 0, ask);
            }
            Ask::Rpc { ticket, method, data } => self.call(now, slot, ticket, &method, &data),
            Ask::Send { .. } => {}
            Ask::Received { pings } => self.received_pings(now, slot, pings),
            Ask::Silent => {
                if let Some(conn) = self.sessions.conn(slot) {
                    let stream = conn.stream;
                    self.sessions.conns.orders.silent(stream);
                }
            }
            Ask::Ended { .. } => self.sessions.finish(slot, End::Closed),
        }
    }

    /// Takes a message to a room, by its owner.
    pub(super) fn publish(
        &mut self,
        now: Micros,
        slot: u32,
        ticket: Ticket,
        channel: &str,
        (headers, data): (&[u8], &[u8]),
        is_call: bool,
    ) -> Result<(), Failure> {
        let name = RoomName::parse(channel).map_err(|_| Failure::BadRequest)?;
        let key = self.rules.key_of(&name);
        let known = self.sessions.namespaces.iter().zip(1..);
        let namespace = known.clone().find(|(known, _)| *known == name.namespace());
        let namespace = namespace.map_or(0, |(_, number)| number);
        let conn = self.sessions.live(slot).ok_or(Failure::Internal)?;
        let (session, user, incarnation) = (conn.session(), conn.user, conn.incarnation);
        let (granted, account) = (conn.client.grant.of(&name), conn.client.account);
        if !self.sessions.rights(slot, &key, granted).has(Rights::PUBLISH) {
            return Err(Failure::PermissionDenied);
        }
        let taken = |accounts: &mut crate::accounts::Accounts, id: AccountId| {
            accounts.publish(now, id, 1, headers.len() + data.len())
        };
        if account.is_some_and(|id| taken(&mut self.accounts, id).is_err()) {
            return Err(Failure::TooManyRequests);
        }
        let from = From {
            session,
            user,
            incarnation,
            room: key,
            namespace,
            is_call,
        };
        let openings = &mut self.sessions.conns.get_mut(slot).ok_or(Failure::Internal)?.openings;
        let opened = || {
            *openings = openings.wrapping_add(1);
            *openings
        };
        self.sessions
            .publishing
            .publish(now, from, ticket, (headers, data), opened)
    }

    /// Gives sessions what rooms, owners and guests have answered.
    pub(super) fn settle_answers(&mut self, now: Micros) {
        while let Some((slot, answer)) = self.sessions.answers.pop_front() {
            match answer {
                Answer::Joined {
                    request,
                    handle,
                    place,
                    gaps,
                    whole,
                } => self.room_joined(now, slot, (request, handle, place), &gaps, whole),
                Answer::Refused { request, code } => {
                    self.subscription_refused(now, slot, request, super::publishing::failure(code));
                }
                Answer::Command { handle, command, data } => self.tell_member(now, slot, handle, command, &data),
                Answer::Letter(record) => self.take_record(now, slot, record),
            }
        }
        self.settle_questions(now);
        while let Some(done) = self.sessions.publishing.done() {
            let Some(slot) = self.sessions.slot_of(done.session) else {
                continue;
            };
            if let Some(session) = self.sessions.conn_mut(slot).and_then(|conn| conn.connection.session()) {
                match done.end {
                    Ok(None) => session.published(done.ticket),
                    Ok(Some((stream, offset))) => {
                        let at =
                            super::positions::told(&crate::wire::publish::Positions::at([(stream, offset)]), stream);
                        let text = format!(r#"{{"epoch":"{}","offset":{}}}"#, at.epoch, at.offset);
                        session.rpc(done.ticket, text.as_bytes());
                    }
                    Err(failure) => session.fail(done.ticket, failure),
                }
            }
            self.sessions.counters.publications_acknowledged += u64::from(done.end.is_ok());
            self.sessions.settle(now, slot);
        }
        self.cleanup(now);
    }

    /// Tells a member a command, and asks for its receipt.
    fn tell_member(&mut self, now: Micros, slot: u32, handle: u32, command: crate::command::CommandId, data: &[u8]) {
        let Some(room) = self.rooms.get(handle) else {
            return;
        };
        let Some(conn) = self.sessions.conns.get_mut(slot) else {
            return;
        };
        let Some(sub) = conn.subs.iter().find(|sub| sub.room == handle) else {
            return;
        };
        let name = if sub.bare {
            super::frames::bare(&room.name)
        } else {
            &room.name
        };
        let (value, is_json) = muster_edge::protocol::as_json(data);
        let encoded = if is_json { "" } else { ",\"encoding\":\"base64\"" };
        let name = serde_json::Value::from(name);
        let mut text = format!(
            "{{\"muster\":\"command\",\"room\":{name},\"user\":\"{}\"{encoded},\"data\":",
            command.user
        )
        .into_bytes();
        text.extend(value);
        text.push(b'}');
        if let Some(session) = conn.connection.session() {
            session.message(&text);
            let pings = session.receipt();
            conn.add_receipt(pings, Receipt::Command(command));
        }
        self.sessions.settle(now, slot);
    }

    /// A client has all that was written before so many pings.
    fn received_pings(&mut self, now: Micros, slot: u32, pings: u64) {
        loop {
            let Some(conn) = self.sessions.live_mut(slot) else {
                return;
            };
            let session = conn.session();
            let Some(aside) = &mut conn.aside else { return };
            if aside.receipts.front().is_none_or(|(behind, _)| *behind > pings) {
                return;
            }
            match aside.receipts.pop_front() {
                Some((_, Receipt::Command(command))) => self.command_taken(now, slot, command, true),
                Some((_, Receipt::Letter(record))) => {
                    self.sessions.counters.letters_delivered += 1;
                    self.lodge.record(now, session, &record);
                }
                None => return,
            }
        }
    }

    // ---- Tokens -----------------------------------------------------------------------------------------------------

    /// Answers an [`EdgeEvent`](super::EdgeEvent): the user and its rights, or why not. `aside`: what the credential says for a
    /// guest. `rooms`: the client is subscribed to these before its connect command is answered.
    pub fn answer_question(
        &mut self,
        now: Micros,
        id: u64,
        said: Result<Admitted, EdgeRefusal>,
        aside: &[u8],
        rooms: &[String],
    ) {
        self.now = now;
        let Some((session, asked)) = self.sessions.control.take(id) else {
            return;
        };
        let slot = session as u32;
        if self
            .sessions
            .conn(slot)
            .is_none_or(|conn| conn.session() != session || conn.over)
        {
            return;
        }
        match asked {
            Asked::Connect(ticket, positions) => {
                let entering = Entering::new(ticket, rooms, &positions, aside);
                self.connected(now, slot, said, entering);
            }
            Asked::Refresh(ticket) => self.refreshed(now, slot, ticket, said, aside),
            Asked::Subscribe(ticket, subscription, join) => {
                match self.ticketed(now, slot, &join.channel, said) {
                    Ok(_) => self.subscribe(now, slot, ticket, subscription, join),
                    Err(failure) => self.fail(now, slot, ticket, failure),
                };
            }
            Asked::SubRefresh(ticket, subscription, channel) => match self.ticketed(now, slot, &channel, said) {
                Ok(ttl_s) => {
                    if let Some(session) = self.sessions.conn_mut(slot).and_then(|conn| conn.connection.session()) {
                        session.sub_renewed(now, ticket, ttl_s);
                    }
                }
                Err(Failure::PermissionDenied) => {
                    self.fail(now, slot, ticket, Failure::PermissionDenied);
                    self.unsubscribe(now, slot, subscription);
                }
                Err(failure) => self.fail(now, slot, ticket, failure),
            },
            Asked::Call(ticket) => self.fail(now, slot, ticket, Failure::Internal),
        }
        self.answer_asks(now, slot);
        self.settle_answers(now);
        self.sessions.settle(now, slot);
        self.sessions.stirred = true;
    }

    /// Answers an [`EdgeEvent::Call`](super::EdgeEvent::Call), with JSON.
    pub fn answer_call(&mut self, now: Micros, id: u64, said: Result<&[u8], Failure>) {
        self.now = now;
        let Some((session, ticket)) = self.sessions.control.take_call(id) else {
            return;
        };
        let Some(slot) = self.sessions.slot_of(session) else {
            return;
        };
        if let Some(session) = self.sessions.conn_mut(slot).and_then(|conn| conn.connection.session()) {
            match said {
                Ok(data) => session.rpc(ticket, data),
                Err(failure) => session.fail(ticket, failure),
            }
        }
        self.sessions.settle(now, slot);
        self.sessions.stirred = true;
    }

    fn connected(&mut self, now: Micros, slot: u32, said: Result<Admitted, EdgeRefusal>, mut entering: Entering) {
        let admitted = said.and_then(|admitted| match self.accounts.admits(admitted.admission.user) {
            true => Ok(admitted),
            false => Err(EdgeRefusal::Denied(Denied::Sessions)),
        });
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => return self.refuse_connect(now, slot, entering.ticket, refusal),
        };
        let (admission, grant) = split_verdict(Ok(admitted));
        let Ok(admission) = admission else { return };
        let account = self.accounts.enter(now, admission.user);
        let Some(conn) = self.sessions.conn_mut(slot) else {
            return;
        };
        (conn.open, conn.user, conn.token) = (true, admission.user, admission.token);
        (conn.client.grant, conn.client.account) = (grant, Some(account));
        let (session, stream) = (conn.session(), conn.stream);
        let proven = std::mem::replace(&mut conn.proven, true);
        conn.client.session = session;
        if !proven {
            self.sessions.conns.orders.proven(stream);
        }
        entering.until = admission.until;
        self.enter(now, slot, entering);
    }

    fn refuse_connect(&mut self, now: Micros, slot: u32, ticket: Ticket, refusal: EdgeRefusal) {
        let end = match refusal {
            EdgeRefusal::Expired => return self.fail(now, slot, ticket, Failure::TokenExpired),
            EdgeRefusal::Denied(Denied::Later) => return self.fail(now, slot, ticket, Failure::Internal),
            EdgeRefusal::Denied(Denied::Credential) => Disconnect::INVALID_TOKEN,
            EdgeRefusal::Denied(Denied::Right) => Disconnect::PERMISSION_DENIED,
            EdgeRefusal::Denied(Denied::Sessions) => Disconnect::CONNECTION_LIMIT,
        };
        self.sessions.disconnect(now, slot, end, End::Closed);
    }

    fn refreshed(&mut self, now: Micros, slot: u32, ticket: Ticket, said: Result<Admitted, EdgeRefusal>, aside: &[u8]) {
        let admitted = match said {
            Ok(admitted) => admitted,
            Err(EdgeRefusal::Expired) => return self.fail(now, slot, ticket, Failure::TokenExpired),
            Err(EdgeRefusal::Denied(Denied::Later | Denied::Sessions)) => {
                return self.fail(now, slot, ticket, Failure::Internal)
            }
            Err(EdgeRefusal::Denied(Denied::Credential)) => {
                return self
                    .sessions
                    .disconnect(now, slot, Disconnect::INVALID_TOKEN, End::Closed)
            }
            Err(EdgeRefusal::Denied(Denied::Right)) => {
                return self
                    .sessions
                    .disconnect(now, slot, Disconnect::PERMISSION_DENIED, End::Closed)
            }
        };
        let (admission, grant) = split_verdict(Ok(admitted));
        let Ok(admission) = admission else { return };
        let Some(conn) = self.sessions.live_mut(slot) else {
            return;
        };
        let same = conn.user == admission.user;
        let (session, spread) = (conn.session(), conn.incarnation);
        if same {
            conn.token = admission.token;
            conn.client.grant = grant;
            self.lodge.renewed(now, session, aside);
        }
        let (user, ttl_s) = (admission.user.to_string(), ttl(now, admission.until, spread));
        self.sessions.with(now, slot, |connection, turn, _| {
            if let Some(session) = connection.session() {
                session.renewed(turn, ticket, &user, ttl_s);
            }
        });
        if same {
            self.leave_forbidden(now, slot);
        }
    }

    /// Ends subscriptions that the session has no right to any more.
    fn leave_forbidden(&mut self, now: Micros, slot: u32) {
        let Some(conn) = self.sessions.live(slot) else { return };
        let forbidden = |room: &u32| {
            let room = self.rooms.get(*room);
            let name = room.and_then(|room| RoomName::parse(&room.name).ok());
            name.is_some_and(|name| {
                let (key, granted) = (self.rules.key_of(&name), conn.client.grant.of(&name));
                !self.sessions.rights(slot, &key, granted).has(Rights::READ)
            })
        };
        let rooms: Vec<u32> = conn.subs.iter().map(|sub| sub.room).filter(forbidden).collect();
        for room in rooms {
            self.end_subscription(
                now,
                slot,
                room,
                Unsubscribe::SERVER,
                "the new token gives no right to read",
            );
        }
    }

    /// Takes the rights of a token for one room, and returns the seconds that it is good for.
    fn ticketed(
        &mut self,
        now: Micros,
        slot: u32,
        channel: &str,
        said: Result<Admitted, EdgeRefusal>,
    ) -> Result<Option<u32>, Failure> {
        let admitted = said.map_err(|refusal| match refusal {
            EdgeRefusal::Expired => Failure::TokenExpired,
            EdgeRefusal::Denied(Denied::Later) => Failure::Internal,
            EdgeRefusal::Denied(_) => Failure::PermissionDenied,
        })?;
        let name = RoomName::parse(channel).map_err(|_| Failure::BadRequest)?;
        let (room, rights) = (self.rules.key_of(&name), admitted.grant.of(&name));
        let conn = self.sessions.live_mut(slot).ok_or(Failure::Internal)?;
        if conn.user != admitted.admission.user {
            return Err(Failure::PermissionDenied);
        }
        conn.ticketed.retain(|ticketed| ticketed.room != room);
        if conn.ticketed.len() >= muster_edge::limits::SUBSCRIPTIONS_MAX {
            conn.ticketed.remove(0);
        }
        let until = admitted.admission.until;
        conn.ticketed.push(Ticketed { room, rights, until });
        Ok(ttl(now, until, conn.incarnation))
    }
}

/// The whole seconds that a client is told, one at least: less than are left by up to a twentieth, so that clients whose tokens
/// end together, as after a storm of reconnects, bring the next ones over a while. Never by more than the grace, so no session
/// ends before its token. `spread`: the client's incarnation, which is random.
pub(super) fn ttl(now: Micros, until: Option<Micros>, spread: u64) -> Option<u32> {
    let left = until?.saturating_sub(now) / 1_000_000;
    let sooner = (spread >> 16) % ((left / 20).min(TOKEN_GRACE / 1_000_000) + 1);
    Some(u32::try_from(left - sooner).unwrap_or(u32::MAX).max(1))
}
