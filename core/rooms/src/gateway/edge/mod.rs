//! An edge: a gateway with another door. Its members come by WebSocket and speak the Centrifuge client protocol.
//!
//! Owns: [`EdgeSessions`], the connections and what each has of rooms. `conns` holds them by slot, `orders` what their streams are to
//! do, `protocol` what they share of theirs. `asks` answers clients' questions, `control` has those that the control plane answers and
//! `questions` those that brokers do; `fanout` gives members their messages, `publishing` takes theirs to brokers, `ending` sends
//! clients away, `machine` orders a turn. Rooms, links, rings, commands and counts are the gateway's own.

mod asks;
mod conns;
mod control;
mod ending;
mod entries;
mod fanout;
mod filters;
mod frames;
mod history;
mod join_leave;
mod joins;
mod letters;
mod machine;
mod missed;
mod orders;
mod positions;
mod protocol;
mod publishing;
mod questions;

use std::collections::VecDeque;

use muster_edge::{Connection, Disconnect, Join, Subscription, Ticket, Turn};
use muster_tcp::StreamId;
use muster_transport::{Code, Dice, End, Gone, GuestSessions, Micros, Writer};

use self::conns::Conns;
use self::control::ControlPlane;
use self::ending::{Drain, Stalls};
use self::fanout::Fanout;
use self::join_leave::Watches;
use self::protocol::Protocol;
use self::publishing::Publishing;
use self::questions::Questions;
use super::members::Members;
use super::{Client, Gateway};
use crate::command::{CommandId, Outcome, Page};
use crate::name::RoomKey;
use crate::rights::Rights;
use crate::wire::publish::Positions;
use crate::wire::record::Record;
use crate::wire::{StreamGap, StreamId as StreamOwner};

pub use machine::{EdgeConfig, EdgeEvent, EdgeRefusal};

/// An edge.
pub type Edge = Gateway<EdgeSessions>;

/// Letters to users, of another system that lives here: their records, and how clients see them.
pub trait Letters: Send + Sync {
    /// The JSON that tells a client of this record, and the record that says that it has it. `None`: it is no letter.
    fn letter(&self, record: &[u8]) -> Option<(Vec<u8>, Vec<u8>)>;

    /// The record that sends a letter under this number. `None`: the device's name or the data is no good.
    fn send(&self, number: u64, to: &Recipient<'_>, data: &[u8]) -> Option<Vec<u8>>;

    /// The answer that a record has to a letter sent from here; `None`: it has none.
    fn sent(&self, record: &[u8]) -> Option<Sent>;

    /// The outcome for each device. `lost`: an earlier record on the letter, if there was one.
    fn outcomes(&self, lost: Option<&[u8]>, record: &[u8]) -> Vec<DeviceOutcome>;
}

/// To whom a letter goes, and how long it lives.
pub struct Recipient<'a> {
    pub user: u64,
    /// `None`: all devices.
    pub device: Option<&'a str>,
    pub left_ms: u32,
}

/// A device's name, if it is known, and what became of the letter there.
pub type DeviceOutcome = (Option<String>, &'static str);

/// A record on a letter, by the letter's number.
pub enum Sent {
    /// More is known than the outcomes say, which follow.
    Lost(u64),
    Outcomes(u64),
    Refused(u64, Code),
}

muster_transport::counters! {
    /// An edge's events on its members, beside a gateway's and a connection's.
    pub struct EdgeCounters {
        /// Subscriptions answered.
        subscriptions,
        /// Subscriptions refused, whatever the reason.
        subscriptions_refused,
        /// Subscriptions that asked for what was missed and got all of it.
        recovered,
        /// The same, without all of it.
        unrecovered,
        /// Subscriptions ended or begun again: messages are lost for the member.
        gaps_told,
        /// Subscriptions ended or begun again: another owner numbers the room, and nothing is lost.
        streams_changed,
        /// Frames of publications built, each once for all members of one form.
        frames_built,
        /// Messages taken from members to publish.
        publications_received,
        /// Messages of members refused: no right, a bad name, too many or too long.
        publications_refused,
        /// Messages of members that an owner has acknowledged.
        publications_acknowledged,
        /// Joins and leaves told to clients, each client counted.
        joins_leaves_told,
        /// Commands and questions for a room's members: those of clients, and those that tell joins and leaves.
        members_commands,
        /// Commands and such questions refused, whatever the reason.
        members_commands_refused,
        /// Commands and such questions told to brokers, each try counted.
        members_commands_forwarded,
        /// History commands answered.
        histories,
        /// Letters taken from members to send.
        letters_received,
        /// Letters of members refused, whatever the reason.
        letters_refused,
        /// Letters told to members.
        letters_sent,
        /// Letters that members have, as a pong says.
        letters_delivered,
        /// Connections ended: their sockets took nothing for too long.
        ended_stalled,
        /// Connections ended by a drain.
        ended_drained,
    }
}

/// The state of a connection in one room.
struct Sub {
    room: u32,
    subscription: Subscription,
    /// The room's number of the stream that its offsets are of.
    stream: u8,
    compact: bool,
    bare: bool,
    deltas: Deltas,
    /// The server made it, by the client's token.
    made: bool,
}

/// Whether a client takes a message as the difference to the one before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Deltas {
    No,
    /// Its next message comes whole.
    First,
    Next,
}

impl Deltas {
    fn behind_a_message(self) -> Deltas {
        match self {
            Deltas::No => Deltas::No,
            Deltas::First | Deltas::Next => Deltas::Next,
        }
    }
}

/// A question of a client that waits for its room.
struct Pending {
    request: u32,
    ticket: Ticket,
    kind: PendingKind,
}

enum PendingKind {
    Join(Subscription, Box<Join>, Option<Positions>),
    /// Its client has left meanwhile.
    Left,
    /// A room of the client's token, by its number there.
    Entry(usize),
    History(Box<history::Wanted>),
}

/// A client's word that it has something, proven by the pong of a ping behind it.
enum Receipt {
    Command(CommandId),
    /// Events for the guest.
    Letter(Vec<u8>),
}

/// A letter of a client whose outcomes are awaited.
struct Sending {
    number: u64,
    ticket: Ticket,
    lost: Option<Vec<u8>>,
}

/// Messages that a client was told it cannot have.
struct Missed {
    room: Box<str>,
    /// `None`: nothing is known of the position that the client showed.
    gap: Option<StreamGap>,
}

/// Rights in one room by a token of its own.
struct Ticketed {
    room: RoomKey,
    rights: Rights,
    until: Option<Micros>,
}

/// What few connections have.
#[derive(Default)]
struct Aside {
    receipts: VecDeque<(u64, Receipt)>,
    sendings: Vec<Sending>,
    missed: VecDeque<Missed>,
    left: VecDeque<Left>,
}

/// Where a client stood whose room has got another owner.
struct Left {
    /// The room's handle and id.
    room: (u32, u64),
    place: u64,
    /// The stream of its offsets, and the offset that it shows if it has all before that place.
    shown: (StreamOwner, u64),
    until: Micros,
}

struct Conn {
    stream: StreamId,
    connection: Connection,
    /// The state that rooms keep of it.
    client: Client,
    user: u64,
    token: u64,
    /// The number that its messages are published under; the lower 16 bits count openings.
    incarnation: u64,
    openings: u16,
    requests: u32,
    subs: Vec<Sub>,
    pending: Vec<Pending>,
    ticketed: Vec<Ticketed>,
    aside: Option<Box<Aside>>,
    /// Its token is good, and rooms of the token are on their way.
    entering: Option<Box<entries::Entering>>,
    server_subs: entries::ServerSubs,
    open: bool,
    /// Its rooms are left; only its last bytes are to be written.
    over: bool,
    queued: bool,
    paused: bool,
    proven: bool,
    /// Since when its socket has taken nothing.
    blocked: Option<Micros>,
}

impl Conn {
    fn session(&self) -> u64 {
        self.stream.token()
    }

    /// Whether it is open, and its part in rooms not over.
    #[inline]
    fn is_live(&self) -> bool {
        self.open && !self.over
    }

    /// The question of this request, which has its answer.
    fn take_pending(&mut self, request: u32) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.request == request)?;
        let pending = self.pending.swap_remove(at);
        if self.pending.is_empty() {
            self.pending = Vec::new(); // most ask when they come, and then never again
        }
        Some(pending)
    }

    fn add_sub(&mut self, sub: Sub) {
        if self.subs.is_empty() {
            self.subs.reserve_exact(1); // most have one; a list by itself makes place for four
        }
        self.subs.push(sub);
    }

    fn add_receipt(&mut self, pings: u64, receipt: Receipt) {
        self.aside.get_or_insert_default().receipts.push_back((pings, receipt));
    }
}

/// An answer of a room to a session.
enum Answer {
    Joined {
        request: u32,
        handle: u32,
        place: u64,
        gaps: Vec<StreamGap>,
        whole: bool,
    },
    Refused {
        request: u32,
        code: Code,
    },
    Command {
        handle: u32,
        command: CommandId,
        data: Vec<u8>,
    },
    Letter(Vec<u8>),
}

/// The connections of an edge.
pub struct EdgeSessions {
    protocol: Protocol,
    pub(crate) counters: EdgeCounters,
    conns: Conns,
    /// Answers of rooms and of the guest that were not given yet, by slot.
    answers: VecDeque<(u32, Answer)>,
    gone: Vec<Gone<Client>>,
    control: ControlPlane,
    fanout: Fanout,
    publishing: Publishing,
    questions: Questions,
    watches: Watches,
    letters: Option<Box<dyn Letters>>,
    stalls: Stalls,
    drain: Drain,
    /// Something came by a stream since links had a turn.
    stirred: bool,
    /// Namespaces with settings, as brokers are told of them.
    namespaces: Vec<String>,
}

impl EdgeSessions {
    fn conn(&self, slot: u32) -> Option<&Conn> {
        self.conns.get(slot)
    }

    fn conn_mut(&mut self, slot: u32) -> Option<&mut Conn> {
        self.conns.get_mut(slot)
    }

    /// An open connection.
    fn live(&self, slot: u32) -> Option<&Conn> {
        self.conn(slot).filter(|conn| conn.is_live())
    }

    fn live_mut(&mut self, slot: u32) -> Option<&mut Conn> {
        self.conn_mut(slot).filter(|conn| conn.is_live())
    }

    /// Runs `f` with a connection's session parts. `None`: the connection is gone.
    fn with<R>(
        &mut self,
        now: Micros,
        slot: u32,
        f: impl FnOnce(&mut Connection, &mut Turn<'_>, &mut Dice) -> R,
    ) -> Option<R> {
        let conn = self.conns.get_mut(slot)?;
        Some(self.protocol.run(now, &mut conn.connection, f))
    }

    /// Notes what a connection waits for now.
    fn settle(&mut self, now: Micros, slot: u32) {
        self.conns.settle(now, slot);
    }

    /// A connection's part in rooms is over.
    fn finish(&mut self, slot: u32, end: End) {
        let Some(conn) = self.conn_mut(slot) else { return };
        if std::mem::replace(&mut conn.over, true) {
            return;
        }
        let gone = Gone {
            slot,
            id: conn.session(),
            end,
            data: std::mem::take(&mut conn.client),
        };
        conn.subs = Vec::new();
        conn.pending = Vec::new();
        conn.aside = None;
        (conn.entering, conn.server_subs) = (None, Default::default());
        let session = gone.id;
        self.publishing.ended(session);
        self.control.forget(session);
        self.gone.push(gone);
    }

    /// Resets a connection.
    fn abort(&mut self, slot: u32) {
        self.finish(slot, End::Lost);
        if let Some(conn) = self.conns.remove(slot) {
            self.conns.orders.abort(conn.stream);
        }
    }

    /// Ends a connection, which hears why.
    fn disconnect(&mut self, now: Micros, slot: u32, end: Disconnect, why: End) {
        if let Some(conn) = self.conn_mut(slot) {
            conn.connection.disconnect(end);
        }
        self.finish(slot, why);
        self.settle(now, slot);
    }
}

/// The end of a session for a reason of rooms or of a guest.
fn end_for(code: Code) -> Disconnect {
    match code {
        Code::Replaced => Disconnect::REPLACED,
        Code::Ended => Disconnect::FORCE,
        Code::TooManyDevices => Disconnect::CONNECTION_LIMIT,
        Code::BadDevice => Disconnect::INVALID_TOKEN,
        Code::Draining => Disconnect::SHUTDOWN,
        Code::BadCredential | Code::NotAllowed => Disconnect::PERMISSION_DENIED,
        _ => Disconnect::FORCE_RECONNECT,
    }
}

impl GuestSessions for EdgeSessions {
    fn offer_guest(&mut self, session: u64, record: &[u8]) -> bool {
        let Some(slot) = self.slot_of(session) else {
            return false;
        };
        if self.live(slot).is_none_or(|conn| conn.connection.is_full()) {
            return false;
        }
        self.answers.push_back((slot, Answer::Letter(record.to_vec())));
        true
    }

    fn end_guest(&mut self, now: Micros, session: u64, code: Code, _wait_ms: u32) {
        if let Some(slot) = self.slot_of(session) {
            self.refuse(now, slot, code);
        }
    }
}

impl Members for EdgeSessions {
    // A browser takes whatever comes.
    const DROPS_COVERED: bool = false;

    fn client(&self, slot: u32) -> Option<&Client> {
        self.live(slot).map(|conn| &conn.client)
    }

    fn client_mut(&mut self, slot: u32) -> Option<&mut Client> {
        self.live_mut(slot).map(|conn| &mut conn.client)
    }

    fn slot_of(&self, session: u64) -> Option<u32> {
        let slot = session as u32;
        let conn = self.live(slot)?;
        (conn.session() == session).then_some(slot)
    }

    fn session_of(&self, slot: u32) -> Option<u64> {
        self.live(slot).map(Conn::session)
    }

    fn user_of(&self, slot: u32) -> Option<u64> {
        self.live(slot).map(|conn| conn.user)
    }

    fn mark(&mut self, slot: u32) {
        self.conns.mark(slot);
    }

    fn rights(&self, slot: u32, room: &RoomKey, granted: Rights) -> Rights {
        let ticketed = self.live(slot).into_iter().flat_map(|conn| &conn.ticketed);
        ticketed
            .filter(|ticketed| ticketed.room == *room)
            .fold(granted, |rights, ticketed| rights.and(ticketed.rights))
    }

    fn tell(&mut self, slot: u32, record: &Record<'_>) {
        let answer = match record {
            Record::Joined {
                request,
                handle,
                index,
                gaps,
                whole,
                ..
            } => Answer::Joined {
                request: *request,
                handle: *handle,
                place: *index,
                gaps: gaps.clone(),
                whole: *whole,
            },
            Record::Control(muster_transport::ControlRecord::Refused { request, code, .. }) => Answer::Refused {
                request: *request,
                code: *code,
            },
            _ => return,
        };
        self.answers.push_back((slot, answer));
    }

    fn offer(&mut self, slot: u32, record: &Record<'_>) -> bool {
        let Record::CommandTold { handle, command, data } = record else {
            return false;
        };
        if self
            .live(slot)
            .is_none_or(|conn| conn.connection.is_full() || conn.entering.is_some())
        {
            return false;
        }
        let answer = Answer::Command {
            handle: *handle,
            command: *command,
            data: data.to_vec(),
        };
        self.answers.push_back((slot, answer));
        true
    }

    fn refuse(&mut self, now: Micros, slot: u32, code: Code) {
        self.disconnect(now, slot, end_for(code), End::Refused(code));
    }

    fn gone(&mut self) -> Option<Gone<Client>> {
        self.gone.pop()
    }

    fn is_shut(&self, slot: u32, _payload: usize) -> bool {
        self.live(slot).is_some_and(|conn| conn.blocked.is_some())
    }

    fn fill_link(&mut self, node: u32, writer: &mut Writer<'_>) -> (bool, bool) {
        self.publishing.fill(node, writer)
    }

    fn waits_for_link(&self, node: u32) -> bool {
        self.publishing.waits_for(node)
    }

    fn broker_frame(&mut self, now: Micros, frame: &muster_transport::Frame<'_>) -> bool {
        frame.kind == crate::wire::kinds::LINK_ACK && self.publishing.acknowledged(now, frame.body)
    }

    fn broker_answer(&mut self, node: u32, command: CommandId, outcome: Outcome, page: &Option<Page>) -> bool {
        self.questions.answered(node, command, outcome, page.clone());
        true
    }

    fn broker_found(&mut self) {
        self.questions.note_links();
    }

    fn broker_lost(&mut self, node: u32) {
        self.questions.note_links();
        self.publishing.lost(node);
    }

    fn namespaces(&self) -> &[String] {
        &self.namespaces
    }
}

/// How a client's frames are built.
fn form(conn: &Conn, sub: &Sub) -> Option<frames::Form> {
    Some(frames::Form {
        encoding: conn.connection.encoding()?,
        stream: sub.stream,
        compact: sub.compact,
        bare: sub.bare,
        deltas: sub.deltas,
    })
}
