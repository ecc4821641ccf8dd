//! Commands and member queries at the client: sent ones until their outcome is known, and received ones.
//!
//! A command goes through up to three proxy sessions at once, and the first proxy with an outcome decides (ROOM-14).
//! A query goes through the main session alone: a second query would want the present state.

use std::collections::{BTreeMap, VecDeque};

use muster_transport::{Bucket, Micros};

use super::spares::SPARE_IDLE;
use super::{Client, ClientEvent, Side, Slot, State};
use crate::command::{
    left_ms, Ask, CommandId, Outcome, Page, Verdict, COMMAND_BYTES_MAX, COPIES, GRACE, LIFETIME_MAX, SPREAD_BURST,
    SPREAD_RATE,
};
use crate::limits::NAME_BYTES_MAX;
use crate::wire::record::Record;

/// Maximum number of commands without a known outcome.
const COMMANDS_MAX: usize = 256;

/// Why a command is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// Too many commands are open.
    WouldBlock,
    /// The data or the room's name is too long.
    TooLong,
}

/// The state of a command in one session with a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Way {
    #[default]
    Untold,
    /// It is in the log of the present session.
    Told,
    /// The proxy did not try it; it may be asked again at this time.
    Refused {
        again_at: Micros,
    },
    Answered,
}

/// A proxy's reply to a command.
struct Answer {
    outcome: Outcome,
    retry_ms: u32,
    page: Option<Page>,
}

impl Answer {
    /// The rank of a reply if proxies disagree: brokers learn of interest at different times, and one may have found
    /// a member that another missed.
    fn weight(&self) -> u8 {
        match self.outcome.verdict {
            Verdict::Refused(_) => 0,
            Verdict::Expired if self.outcome.members == 0 => 1,
            Verdict::NoMember => 2,
            Verdict::Expired => 3,
            Verdict::Delivered => 4,
        }
    }
}

struct Command {
    name: Box<str>,
    ask: Ask<'static>,
    until: Micros,
    /// Whether it also goes through spare sessions.
    spread: bool,
    /// The main session, then the spares.
    ways: [Way; COPIES],
    /// A session that carried it ended before its proxy replied: it may have been tried, so it can no longer count as
    /// refused.
    doubtful: bool,
    /// The best reply so far.
    answer: Option<Answer>,
    /// Until then another proxy may have a better reply.
    settles_at: Option<Micros>,
}

impl Command {
    fn is_refused(&self) -> bool {
        self.answer.as_ref().is_none_or(|answer| answer.weight() == 0)
    }

    /// Whether the replies so far decide the outcome.
    fn is_done(&self, now: Micros) -> bool {
        let Some(answer) = &self.answer else { return false };
        let open = self.ways.contains(&Way::Told);
        match answer.outcome.verdict {
            Verdict::Delivered => true,
            Verdict::Refused(code) => !code.retry() || !open && !self.doubtful,
            Verdict::NoMember | Verdict::Expired => !open || self.settles_at.is_none_or(|at| now >= at),
        }
    }

    /// When it ends here without a reply.
    fn ends_at(&self) -> Micros {
        self.until + 4 * GRACE
    }

    /// When it must be checked.
    fn deadline(&self) -> Micros {
        let again = self.ways.iter().filter_map(|way| match way {
            Way::Refused { again_at } if self.doubtful => Some(*again_at),
            _ => None,
        });
        let first = again.chain(self.settles_at).min();
        first.map_or(self.ends_at(), |at| at.min(self.ends_at()))
    }
}

/// The program's commands, by number.
pub(super) struct Commands {
    sent: BTreeMap<u64, Command>,
    /// The rate of commands that also go through spare sessions. Others go to one proxy alone, so more sessions do
    /// not allow more commands.
    rate: Bucket,
    /// When the last command that used spares ended.
    ended_at: Option<Micros>,
    /// Acknowledgements of received commands that found no space in the gateway's log.
    taken: VecDeque<(CommandId, bool)>,
}

impl Default for Commands {
    fn default() -> Self {
        Commands {
            sent: BTreeMap::new(),
            rate: Bucket::new(SPREAD_RATE, SPREAD_BURST),
            ended_at: None,
            taken: VecDeque::new(),
        }
    }
}

impl Commands {
    /// The gateway changed, or has forgotten its sessions.
    pub(super) fn lost_gateway(&mut self) {
        self.taken.clear();
    }

    /// A session with a proxy is over: the next one gets all open commands.
    pub(super) fn lost_session(&mut self, slot: Slot) {
        let lost = way_by(slot);
        for command in self.sent.values_mut() {
            if std::mem::take(&mut command.ways[lost]) == Way::Told {
                command.doubtful |= command.ask.acts();
            }
        }
    }

    /// Until when spares are useful; [`Micros::MAX`] while there are commands.
    pub(super) fn spares_until(&self) -> Option<Micros> {
        match self.sent.values().any(|command| command.spread) {
            true => Some(Micros::MAX),
            false => self.ended_at.map(|at| at + SPARE_IDLE),
        }
    }

    /// When a command must be checked.
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.sent.values().map(Command::deadline).min()
    }
}

/// The index of a session with a proxy in [`Command::ways`].
fn way_by(slot: Slot) -> usize {
    slot.at() - Slot::PROXY.at()
}

impl Client {
    /// Sends data to every member of a room, within `lifetime`. [`ClientEvent::Commanded`] names the returned number
    /// when the outcome is known.
    pub fn command(&mut self, now: Micros, name: &str, data: &[u8], lifetime: Micros) -> Result<u64, CommandError> {
        match data.len() > COMMAND_BYTES_MAX {
            true => Err(CommandError::TooLong),
            false => self.ask_all(now, name, Ask::tell(data), lifetime),
        }
    }

    /// Queries the number of a room's members and, if `from` is given, their users from that one on, at gateways that
    /// answer within `lifetime`. [`ClientEvent::Commanded`] brings a page, or none if no broker has answered.
    pub fn count(&mut self, now: Micros, name: &str, from: Option<u64>, lifetime: Micros) -> Result<u64, CommandError> {
        self.ask_all(now, name, Ask::Count { from }, lifetime)
    }

    /// Ends the sessions with which a user is a member of a room, within `lifetime`. [`ClientEvent::Commanded`] tells how
    /// many. Only a client with the shared token may.
    pub fn end_member(&mut self, now: Micros, name: &str, user: u64, lifetime: Micros) -> Result<u64, CommandError> {
        self.ask_all(now, name, Ask::End { user }, lifetime)
    }

    fn ask_all(&mut self, now: Micros, name: &str, ask: Ask<'_>, lifetime: Micros) -> Result<u64, CommandError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(CommandError::TooLong);
        }
        if self.commands.sent.len() >= COMMANDS_MAX {
            return Err(CommandError::WouldBlock);
        }
        let number = self.node.secret_u64();
        let within = self.commands.rate.take(now, 1);
        let command = Command {
            name: name.into(),
            spread: within && matches!(ask, Ask::Tell(_)),
            ask: ask.keep(),
            until: now + lifetime.min(LIFETIME_MAX),
            ways: Default::default(),
            doubtful: false,
            answer: None,
            settles_at: None,
        };
        self.commands.sent.insert(number, command);
        self.open(now, Side::Proxy);
        self.keep_spares(now);
        Ok(number)
    }

    /// Puts missing commands into the logs.
    pub(super) fn tell_commands(&mut self, now: Micros) {
        for (way, session) in self.sessions[Side::Proxy as usize..].iter_mut().enumerate() {
            let Some(conn) = session.conn.as_mut().filter(|_| session.state == State::Ready) else {
                continue;
            };
            let sent = self.commands.sent.iter_mut();
            for (number, command) in sent.filter(|(_, command)| way == 0 || command.spread) {
                if command.ways[way] != Way::Untold {
                    continue;
                }
                let record = Record::Command {
                    number: *number,
                    name: command.name.as_bytes(),
                    left_ms: left_ms(now, command.until),
                    ask: command.ask.by_ref(),
                };
                if conn.record(&record).is_none() {
                    break; // tried again when the log has space
                }
                command.ways[way] = Way::Told;
            }
        }
        if let Some(conn) = &mut self.sessions[Side::Gateway as usize].conn {
            while let Some((command, taken)) = self.commands.taken.front().copied() {
                if conn.record(&Record::CommandTaken { command, taken }).is_none() {
                    return;
                }
                self.commands.taken.pop_front();
            }
        }
    }

    /// A command to a room arrived.
    pub(super) fn commanded(&mut self, handle: u32, id: CommandId, data: &[u8]) {
        let room = self.rooms.by_handle(handle);
        let member = room.and_then(|room| self.rooms.get_mut(room));
        let mut taken = false;
        if let (Some(room), Some(member)) = (room, member) {
            taken = member.command(id, data);
            if taken && member.tell() {
                self.events.push_back(ClientEvent::Readable { room });
            }
        }
        self.commands.taken.push_back((id, taken));
    }

    /// A proxy reports the outcome of a command.
    pub(super) fn command_answered(
        &mut self,
        now: Micros,
        slot: Slot,
        number: u64,
        outcome: Outcome,
        retry_ms: u32,
        page: Option<Page>,
    ) {
        if slot == Slot::Main(Side::Gateway) {
            self.counters.datagrams_dropped += 1;
            return;
        }
        let Some(command) = self.commands.sent.get_mut(&number) else {
            return; // another proxy was faster
        };
        command.ways[way_by(slot)] = match outcome.is_put_off() {
            true => Way::Refused {
                again_at: now + Micros::from(retry_ms.clamp(10, 60_000)) * 1_000,
            },
            false => Way::Answered,
        };
        let answer = Answer {
            outcome,
            retry_ms,
            page,
        };
        if answer.weight() > 0 {
            command.settles_at.get_or_insert(now + GRACE);
        }
        let known = command.answer.as_ref();
        // If several proxies refuse temporarily, the latest refusal counts, since all proxies are tried again.
        let better = |known: &Answer| match (known.weight(), answer.weight()) {
            (0, 0) => !outcome.is_put_off() || known.outcome.is_put_off() && answer.retry_ms > known.retry_ms,
            (known, answer) => answer > known,
        };
        if known.is_none_or(better) {
            command.answer = Some(answer);
        }
        if command.is_done(now) {
            self.end_command(now, number);
        }
    }

    /// Reports the outcome of a command to the program: the best reply so far, otherwise that its time is over.
    fn end_command(&mut self, now: Micros, number: u64) {
        let Some(command) = self.commands.sent.remove(&number) else {
            return;
        };
        if command.spread {
            self.commands.ended_at = Some(now);
        }
        let known = command.is_done(now) || !command.is_refused();
        let answer = command.answer.filter(|_| known).unwrap_or(Answer {
            outcome: Outcome::expired(0),
            retry_ms: 0,
            page: None,
        });
        self.events.push_back(ClientEvent::Commanded {
            number,
            outcome: answer.outcome,
            retry_ms: answer.retry_ms,
            page: answer.page,
        });
    }

    /// Ends commands without a reply, or without a better one; asks again at proxies that refused a command which may
    /// have been tried.
    pub(super) fn expire_commands(&mut self, now: Micros) {
        if self.commands.deadline().is_none_or(|at| now < at) {
            return;
        }
        let mut over = Vec::new();
        for (number, command) in &mut self.commands.sent {
            let doubtful = command.doubtful;
            for way in &mut command.ways {
                let again = matches!(way, Way::Refused { again_at } if doubtful && now >= *again_at);
                if again {
                    *way = Way::Untold;
                }
            }
            if now >= command.ends_at() || command.is_done(now) {
                over.push(*number);
            }
        }
        for number in over {
            self.end_command(now, number);
        }
    }
}
