//! Commands of a client, checked and turned into questions.
//!
//! Owns: the checks that need no room: lengths, order, rate. Must not know: rights.

use bytes::Bytes;

use super::{Session, State, Turn};
use crate::ask::{Ask, Join, Subject, Ticket};
use crate::codes::{Disconnect, Failure};
use crate::limits::{
    ASKS_MAX, CHANNEL_BYTES_MAX, DATA_BYTES_MAX, METHOD_BYTES_MAX, SUBSCRIPTIONS_MAX, TOKEN_BYTES_MAX,
    WAITING_BYTES_MAX, WAITING_REPLIES_MAX,
};
use crate::protocol::{
    commands, wanted_tags, Command, Connect, Encoding, History, Position, Request, SubRefresh, Subscribe, Unfit,
};

/// Flags of a subscribe command: a number in place of the channel's name; the error 112 in place of a loss.
const COMPACTION: i64 = 1;
const REJECT_UNRECOVERED: i64 = 2;
/// Answers a subscribe command whose channel the client left before the owner answered. The error is temporary: an SDK may have
/// subscribed again meanwhile, and takes the answer for that of its newest command. After a lasting error it would stay away.
const LEFT: Failure = Failure::Own {
    code: 400,
    message: "left before it was answered",
    temporary: true,
};
/// Characters of a client's name and version that are handed on.
const NAME_CHARS_MAX: usize = 64;

impl Session {
    /// Takes one message of the client: any number of commands.
    pub fn receive(&mut self, turn: &mut Turn<'_>, message: &[u8]) {
        let encoding = self.encoding();
        let mut commands = commands(encoding, message);
        loop {
            if self.state == State::Over {
                return;
            }
            if self.state == State::Asking {
                return self.wait(turn, commands.rest());
            }
            let Some(command) = commands.next() else { break };
            let Ok(command) = command else {
                return self.bad_request(turn);
            };
            turn.counters.commands += 1;
            self.command(turn, command);
            if self.replies.bytes().len() > WAITING_REPLIES_MAX {
                return self.bound(turn);
            }
        }
    }

    /// Keeps commands until the token is judged.
    fn wait(&mut self, turn: &mut Turn<'_>, rest: &[u8]) {
        if self.waiting.len() + rest.len() >= WAITING_BYTES_MAX {
            turn.counters.ended_refused += 1;
            return self.over(Disconnect::CONNECTION_LIMIT, turn.asks);
        }
        if !rest.is_empty() {
            if !self.waiting.is_empty() && self.encoding() == Encoding::Json {
                self.waiting.push(b'\n');
            }
            self.waiting.extend_from_slice(rest);
        }
    }

    fn bad_request(&mut self, turn: &mut Turn<'_>) {
        turn.counters.ended_bad_request += 1;
        self.over(Disconnect::BAD_REQUEST, turn.asks);
    }

    fn command(&mut self, turn: &mut Turn<'_>, command: Command<'_>) {
        let id = command.id;
        match command.request {
            Request::Pong if id == 0 => return self.pong(turn),
            Request::Connect(connect) if self.state == State::Fresh && id != 0 => {
                return self.connect(turn, id, &connect)
            }
            _ if self.state == State::Fresh => return self.bad_request(turn),
            Request::Pong | Request::Ping | Request::Connect(_) => return self.bad_request(turn),
            Request::Send { .. } => {}
            _ if id == 0 => return self.bad_request(turn),
            _ => {}
        }
        let limited = !self.debt.take(turn.now, turn.settings.commands, 1) || self.asked >= ASKS_MAX;
        if limited {
            turn.counters.commands_limited += 1;
            return self.error(turn, id, Failure::TooManyRequests);
        }
        if let Err(failure) = self.ask(turn, id, command.request) {
            self.error(turn, id, failure);
        }
    }

    fn error(&mut self, turn: &mut Turn<'_>, id: u32, failure: Failure) {
        turn.counters.errors += 1;
        if id != 0 {
            self.replies.error(id, failure);
        }
    }

    fn connect(&mut self, turn: &mut Turn<'_>, id: u32, connect: &Connect<'_>) {
        if connect.token.len() > TOKEN_BYTES_MAX || connect.subs.len() > SUBSCRIPTIONS_MAX {
            return self.bad_request(turn);
        }
        self.state = State::Asking;
        let ask = Ask::Authenticate {
            ticket: self.ticket(id, Subject::Connect),
            token: connect.token.clone().into_owned(),
            data: owned(connect.data),
            name: named(&connect.name),
            version: named(&connect.version),
            subs: connect
                .subs
                .iter()
                .filter(|(_, sub)| sub.recover)
                .map(|(channel, sub)| (channel.clone(), position(sub)))
                .collect(),
        };
        turn.asks.push(ask);
    }

    fn ask(&mut self, turn: &mut Turn<'_>, id: u32, request: Request<'_>) -> Result<(), Failure> {
        let ask = match request {
            Request::Subscribe(subscribe) => return self.subscribe(turn, id, &subscribe),
            Request::Unsubscribe { channel } => return self.unsubscribe(turn, id, &channel),
            Request::Refresh { token } => Ask::Renew {
                token: checked_token(&token)?,
                ticket: self.ticket(id, Subject::Refresh),
            },
            Request::SubRefresh(refresh) => return self.sub_refresh(turn, id, &refresh),
            Request::Publish { channel, data, keyed } => {
                if keyed {
                    return Err(Failure::NotAvailable);
                }
                let (channel, data) = (checked_channel(&channel)?, checked_data(data)?);
                if data.is_empty() {
                    return Err(Failure::BadRequest);
                }
                let ticket = self.ticket(id, Subject::Publish);
                Ask::Publish { ticket, channel, data }
            }
            Request::Presence { channel } => Ask::Presence {
                channel: checked_channel(&channel)?,
                ticket: self.ticket(id, Subject::Presence),
            },
            Request::PresenceStats { channel } => Ask::PresenceStats {
                channel: checked_channel(&channel)?,
                ticket: self.ticket(id, Subject::PresenceStats),
            },
            Request::History(history) => self.asked_history(id, history)?,
            Request::Rpc { method, data } => {
                if method.len() > METHOD_BYTES_MAX {
                    return Err(Failure::MethodNotFound);
                }
                let data = checked_data(data)?;
                let ticket = self.ticket(id, Subject::Rpc);
                let method = method.into_owned();
                Ask::Rpc { ticket, method, data }
            }
            Request::Send { data } => Ask::Send {
                data: checked_data(data)?,
            },
            Request::Connect(_) | Request::Pong | Request::Ping => return Err(Failure::BadRequest),
        };
        turn.asks.push(ask);
        Ok(())
    }

    fn asked_history(&mut self, id: u32, history: History<'_>) -> Result<Ask, Failure> {
        let channel = checked_channel(&history.channel)?;
        Ok(Ask::History {
            ticket: self.ticket(id, Subject::History),
            channel,
            limit: u32::try_from(history.limit).ok(),
            since: history.since,
            reverse: history.reverse,
        })
    }

    fn subscribe(&mut self, turn: &mut Turn<'_>, id: u32, subscribe: &Subscribe<'_>) -> Result<(), Failure> {
        let channel = checked_channel(&subscribe.channel)?;
        let token = match subscribe.token.is_empty() {
            true => String::new(),
            false => checked_token(&subscribe.token)?,
        };
        if subscribe.kind != 0 {
            return Err(Failure::NotAvailable);
        }
        let tags = match subscribe.filter.map(|bytes| wanted_tags(self.encoding(), bytes)) {
            None => None,
            Some(Ok(tags)) => tags,
            Some(Err(Unfit::Malformed)) => return Err(Failure::BadRequest),
            Some(Err(Unfit::Operator)) => return Err(Failure::filter("a tags filter has eq, in and and alone")),
        };
        if self.subscriptions.is_taken(&channel) {
            return Err(Failure::AlreadySubscribed);
        }
        if self.subscriptions.len() >= SUBSCRIPTIONS_MAX {
            return Err(Failure::LimitExceeded);
        }
        let data = checked_data(subscribe.data)?;
        let (subscription, ticket) = self.begin_subscription(turn.now, id, &channel);
        let join = Join {
            channel,
            token,
            recover: subscribe.recover.then(|| position(subscribe)),
            data,
            tags: tags.unwrap_or_default(),
            positioned: subscribe.positioned,
            recoverable: subscribe.recoverable,
            join_leave: subscribe.join_leave,
            delta: subscribe.delta == "fossil",
            // In Protobuf the SDK for JavaScript (5.8.0) asks for it, but finds no subscription by a number.
            compaction: subscribe.flag & COMPACTION != 0 && self.encoding() == Encoding::Json,
            reject_unrecovered: subscribe.flag & REJECT_UNRECOVERED != 0,
        };
        turn.asks.push(Ask::Join {
            ticket,
            subscription,
            join: Box::new(join),
        });
        Ok(())
    }

    /// Ends a subscription. One that is not there is left as well: the client and the server agree.
    fn unsubscribe(&mut self, turn: &mut Turn<'_>, id: u32, channel: &str) -> Result<(), Failure> {
        let channel = checked_channel(channel)?;
        if let Some((subscription, unanswered)) = self.subscriptions.leave(&channel) {
            if let Some(command) = unanswered {
                self.replies.error(command, LEFT);
            }
            turn.asks.push(Ask::Leave { subscription });
        }
        self.replies.unsubscribe(id);
        Ok(())
    }

    fn sub_refresh(&mut self, turn: &mut Turn<'_>, id: u32, refresh: &SubRefresh<'_>) -> Result<(), Failure> {
        let channel = checked_channel(&refresh.channel)?;
        if refresh.kind != 0 {
            return Err(Failure::NotAvailable);
        }
        let token = checked_token(&refresh.token)?;
        let subscription = self.subscriptions.live(&channel).ok_or(Failure::BadRequest)?;
        turn.asks.push(Ask::RenewJoin {
            ticket: self.ticket(id, Subject::SubRefresh(subscription)),
            subscription,
            channel,
            token,
        });
        Ok(())
    }

    pub(super) fn ticket(&mut self, command: u32, subject: Subject) -> Ticket {
        self.asked += 1;
        Ticket { command, subject }
    }
}

fn position(subscribe: &Subscribe<'_>) -> Position {
    Position {
        offset: subscribe.offset,
        epoch: subscribe.epoch.clone().into_owned(),
    }
}

/// A client's name or version, cut to its bound.
fn named(text: &str) -> String {
    text.chars().take(NAME_CHARS_MAX).collect()
}

fn owned(data: Option<&[u8]>) -> Bytes {
    data.map_or_else(Bytes::new, Bytes::copy_from_slice)
}

fn checked_channel(channel: &str) -> Result<String, Failure> {
    match channel.is_empty() || channel.len() > CHANNEL_BYTES_MAX {
        true => Err(Failure::BadRequest),
        false => Ok(channel.to_owned()),
    }
}

fn checked_token(token: &str) -> Result<String, Failure> {
    match token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        true => Err(Failure::BadRequest),
        false => Ok(token.to_owned()),
    }
}

fn checked_data(data: Option<&[u8]>) -> Result<Bytes, Failure> {
    match data.is_some_and(|data| data.len() > DATA_BYTES_MAX) {
        true => Err(Failure::BadRequest),
        false => Ok(owned(data)),
    }
}
