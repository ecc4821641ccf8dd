//! The calls of clients, and commands and questions of members for a room: presence, its numbers, `muster.command` and
//! `muster.members`.
//!
//! They go by brokers, as a proxy sends them ([`crate::dispatch`]).

use std::collections::{BTreeMap, HashMap, VecDeque};

use muster_edge::protocol::ClientInfo;
use muster_edge::{Failure, Ticket};
use muster_transport::{Code, Health, KeyedState, Micros};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::join_leave::member_names;
use super::publishing::failure;
use super::{history, Edge};
use crate::command::{Ask, CommandId, Outcome, Page, Verdict, COMMAND_BYTES_MAX, LIFETIME_MAX};
use crate::dispatch::{Asker, Commands, Dispatch, Limits, Parts};
use crate::gateway::members::Members;
use crate::headers;
use crate::name::RoomName;

/// A question is answered within this, or fails.
pub(super) const ANSWER_MS: u32 = 2_000;
/// The lifetime of a command that names none.
const COMMAND_MS: u32 = 5_000;

/// How an answer is told.
#[derive(Clone, Copy)]
pub(super) enum Answers {
    Presence(Ticket),
    Stats(Ticket),
    Members(Ticket),
    Command(Ticket),
    /// For the joins and leaves of the room with this id, asked at this time.
    Watch(u64, Micros),
}

/// A question under way.
pub(super) struct Asking {
    session: u64,
    answers: Answers,
}

impl Answers {
    fn ticket(self) -> Option<Ticket> {
        match self {
            Answers::Presence(ticket)
            | Answers::Stats(ticket)
            | Answers::Members(ticket)
            | Answers::Command(ticket) => Some(ticket),
            Answers::Watch(..) => None,
        }
    }
}

/// Methods that take a [`Call`].
const METHODS: [&str; 5] = [
    "muster.command",
    "muster.members",
    "muster.publish",
    "muster.positions",
    "muster.gaps",
];

/// The data of a call for a room.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call<'a> {
    room: String,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    /// Headers of a message.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Seconds that a command lives.
    #[serde(default)]
    expires: Option<f64>,
    /// The first user of a page of members.
    #[serde(default)]
    from: u64,
}

/// Commands and questions of members, under way to brokers.
pub(super) struct Questions {
    commands: Commands,
    limits: Limits,
    health: Health,
    /// How each is answered, by its number.
    asking: HashMap<u64, Asking>,
    /// Answers of brokers that were not looked at.
    outcomes: VecDeque<(u32, CommandId, Outcome, Option<Page>)>,
    /// Links to brokers came or went.
    links_changed: bool,
}

impl Questions {
    pub fn new(hash: KeyedState) -> Self {
        Questions {
            commands: Commands::new(hash),
            limits: Limits::new(hash),
            health: Health::default(),
            asking: HashMap::new(),
            outcomes: VecDeque::new(),
            links_changed: false,
        }
    }

    /// A question is under way.
    pub fn note(&mut self, number: u64, session: u64, answers: Answers) {
        self.asking.insert(number, Asking { session, answers });
    }

    /// A broker has answered.
    pub fn answered(&mut self, node: u32, command: CommandId, outcome: Outcome, page: Option<Page>) {
        self.outcomes.push_back((node, command, outcome, page));
    }

    /// A link to a broker came or went.
    pub fn note_links(&mut self) {
        self.links_changed = true;
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.commands.deadline()
    }
}

impl Edge {
    /// A client calls a method.
    pub(super) fn call(&mut self, now: Micros, slot: u32, ticket: Ticket, method: &str, data: &[u8]) {
        if method == "muster.send" {
            return self.send_letter(now, slot, ticket, data);
        }
        let sessions = &mut self.sessions;
        if sessions.control.has(method) {
            if let Some(conn) = sessions.conns.get(slot).filter(|conn| conn.is_live()) {
                sessions.control.call(conn, ticket, method, data);
            }
            return;
        }
        if !METHODS.contains(&method) {
            return self.fail(now, slot, ticket, Failure::MethodNotFound);
        }
        let Ok(call) = serde_json::from_slice::<Call<'_>>(data) else {
            return self.fail(now, slot, ticket, Failure::BadRequest);
        };
        let data = call.data.map_or(&b"null"[..], |data| data.get().as_bytes());
        match method {
            "muster.command" if data.len() > COMMAND_BYTES_MAX => self.fail(now, slot, ticket, Failure::BadRequest),
            "muster.command" => {
                let longest = (LIFETIME_MAX / 1_000) as f64;
                let left = call
                    .expires
                    .map_or(COMMAND_MS, |seconds| (seconds * 1_000.0).clamp(1.0, longest) as u32);
                self.ask_members(now, slot, Answers::Command(ticket), &call.room, left, Ask::tell(data));
            }
            "muster.members" => {
                let ask = Ask::Count { from: Some(call.from) };
                self.ask_members(now, slot, Answers::Members(ticket), &call.room, 0, ask);
            }
            "muster.positions" => {
                let wanted = history::Wanted {
                    limit: 0,
                    since: None,
                    reverse: false,
                    positions: true,
                };
                self.history(now, slot, ticket, &call.room, wanted);
            }
            "muster.gaps" => match RoomName::parse(&call.room) {
                Ok(name) => self.tell_missed(now, slot, ticket, &name.to_string()),
                Err(_) => self.fail(now, slot, ticket, Failure::BadRequest),
            },
            "muster.publish" => {
                self.sessions.counters.publications_received += 1;
                let named = call.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                let taken = headers::encode(named)
                    .map_err(|_| Failure::BadRequest)
                    .and_then(|headers| self.publish(now, slot, ticket, &call.room, (&headers, data), true));
                if let Err(failure) = taken {
                    self.sessions.counters.publications_refused += 1;
                    self.fail(now, slot, ticket, failure);
                }
            }
            _ => self.fail(now, slot, ticket, Failure::MethodNotFound),
        }
    }

    /// Sends a command or question on its way. `left_ms` 0: as long as a question lives.
    pub(super) fn ask_members(
        &mut self,
        now: Micros,
        slot: u32,
        answers: Answers,
        channel: &str,
        left_ms: u32,
        ask: Ask<'_>,
    ) {
        let Some(conn) = self.sessions.live(slot) else { return };
        let (session, user) = (conn.session(), conn.user);
        let room = RoomName::parse(channel).map_err(|_| Code::BadRoomName).map(|name| {
            let (key, granted) = (self.rules.key_of(&name), conn.client.grant.of(&name));
            (key, self.sessions.rights(slot, &key, granted))
        });
        let number = self.node.secret_u64();
        self.sessions.questions.note(number, session, answers);
        let left_ms = if left_ms == 0 { ANSWER_MS } else { left_ms };
        let asker = Asker { session, user, room };
        self.dispatch(now, &asker, number, left_ms, ask);
    }

    /// Takes what brokers have answered.
    pub(super) fn settle_questions(&mut self, now: Micros) {
        if std::mem::take(&mut self.sessions.questions.links_changed) {
            self.command_links_changed(now);
        }
        while let Some((node, id, outcome, page)) = self.sessions.questions.outcomes.pop_front() {
            self.command_answered(now, Some(node), id, outcome, page);
        }
    }

    fn tell_outcome_of(&mut self, asking: &Asking, outcome: Outcome, page: Option<Page>) {
        let page = page.unwrap_or_default();
        if let Answers::Watch(room, asked_at) = asking.answers {
            return self.watch_answered(self.now, (room, asked_at), &outcome, &page);
        }
        let Some(ticket) = asking.answers.ticket() else { return };
        let Some(slot) = self.sessions.slot_of(asking.session) else {
            return;
        };
        let Some(session) = self.sessions.conn_mut(slot).and_then(|conn| conn.connection.session()) else {
            return;
        };
        match (outcome.verdict, asking.answers) {
            (Verdict::Refused(code), _) => session.fail(ticket, failure(code)),
            (verdict, Answers::Command(_)) => {
                let word = match verdict {
                    Verdict::Delivered => "delivered",
                    Verdict::NoMember => "no_member",
                    Verdict::Expired | Verdict::Refused(_) => "expired",
                };
                let text = format!(r#"{{"outcome":"{word}","members":{}}}"#, outcome.members);
                session.rpc(ticket, text.as_bytes());
            }
            (Verdict::Expired, _) => session.fail(ticket, Failure::Internal),
            (_, Answers::Presence(_)) => {
                let named: Vec<(String, String)> = page.users.iter().map(|user| member_names(*user)).collect();
                let clients = named.iter().map(|(user, client)| {
                    let info = ClientInfo {
                        user: user.as_str().into(),
                        client: client.as_str().into(),
                        ..ClientInfo::default()
                    };
                    (client.as_str(), info)
                });
                session.presence(ticket, clients);
            }
            (_, Answers::Stats(_)) => {
                // Beyond one page, users are not counted: there are as many as members at most.
                let users = if page.more {
                    outcome.members
                } else {
                    page.users.len() as u32
                };
                session.presence_stats(ticket, outcome.members, users);
            }
            (_, Answers::Watch(..)) => {}
            (_, Answers::Members(_)) => {
                let users: Vec<String> = page.users.iter().map(u64::to_string).collect();
                let text = format!(
                    r#"{{"members":{},"users":[{}],"more":{}}}"#,
                    outcome.members,
                    users.join(","),
                    page.more
                );
                session.rpc(ticket, text.as_bytes());
            }
        }
        let now = self.now;
        self.sessions.settle(now, slot);
    }
}

impl Dispatch for Edge {
    fn parts(&mut self) -> Parts<'_> {
        Parts {
            commands: &mut self.sessions.questions.commands,
            limits: &mut self.sessions.questions.limits,
            health: &mut self.sessions.questions.health,
            links: &mut self.links,
            placement: &self.placement,
            dice: &mut self.node.dice,
            received: &mut self.sessions.counters.members_commands,
            refused: &mut self.sessions.counters.members_commands_refused,
            forwarded: &mut self.sessions.counters.members_commands_forwarded,
        }
    }

    fn command_done(&mut self, _session: u64, number: u64, outcome: Outcome, _retry: Micros, page: Option<Page>) {
        if let Some(asking) = self.sessions.questions.asking.remove(&number) {
            self.tell_outcome_of(&asking, outcome, page);
        }
    }
}
