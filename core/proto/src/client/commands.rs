//! Commands, and questions for a room's members, at the client: those that its program sends, until it knows what became of them, and
//! those that come to its rooms.

use std::collections::{BTreeMap, VecDeque};

use super::{Client, ClientEvent, Side, State};
use crate::command::{left_ms, Ask, CommandId, Outcome, Page, COMMAND_BYTES_MAX, GRACE, LIFETIME_MAX};
use crate::limits::NAME_BYTES_MAX;
use crate::machine::Micros;
use crate::wire::record::Record;

/// Commands at once that nobody has said the outcome of.
const COMMANDS_MAX: usize = 256;

/// Why a command is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// Too many are not done.
    WouldBlock,
    /// Data, or the room's name, is too long.
    TooLong,
}

struct Command {
    name: Box<str>,
    ask: Ask<'static>,
    until: Micros,
    /// It stands in the log of the session that there is.
    told: bool,
}

/// What the program sent, by number.
#[derive(Default)]
pub(super) struct Commands {
    sent: BTreeMap<u64, Command>,
    /// What the gateway is to hear of commands that came: the log had no place.
    taken: VecDeque<(CommandId, bool)>,
}

impl Commands {
    /// The gateway is another one, or forgets who was there.
    pub(super) fn lost_gateway(&mut self) {
        self.taken.clear();
    }

    /// The proxy is another one: it is told all that is not done.
    pub(super) fn lost_session(&mut self) {
        self.sent.values_mut().for_each(|command| command.told = false);
    }

    /// When a command is over here, though nobody said so.
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.sent.values().map(|command| command.until + 4 * GRACE).min()
    }
}

impl Client {
    /// Tells every member of a room, within `lifetime`. [`ClientEvent::Commanded`] names the number when it is known what became
    /// of it.
    pub fn command(&mut self, now: Micros, name: &str, data: &[u8], lifetime: Micros) -> Result<u64, CommandError> {
        match data.len() > COMMAND_BYTES_MAX {
            true => Err(CommandError::TooLong),
            false => self.ask_all(now, name, Ask::tell(data), lifetime),
        }
    }

    /// Asks how many members a room has and, from a user on, who they are, those whose gateways answer within `lifetime`.
    /// [`ClientEvent::Commanded`] tells it with a page, or without one where no broker has said anything.
    pub fn count(&mut self, now: Micros, name: &str, from: Option<u64>, lifetime: Micros) -> Result<u64, CommandError> {
        self.ask_all(now, name, Ask::Count { from }, lifetime)
    }

    fn ask_all(&mut self, now: Micros, name: &str, ask: Ask<'_>, lifetime: Micros) -> Result<u64, CommandError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(CommandError::TooLong);
        }
        if self.commands.sent.len() >= COMMANDS_MAX {
            return Err(CommandError::WouldBlock);
        }
        let number = self.node.secret_u64();
        let command = Command {
            name: name.into(),
            ask: ask.keep(),
            until: now + lifetime.min(LIFETIME_MAX),
            told: false,
        };
        self.commands.sent.insert(number, command);
        self.open(now, Side::Proxy);
        Ok(number)
    }

    /// Puts into the logs what is not there yet.
    pub(super) fn tell_commands(&mut self, now: Micros) {
        let session = &mut self.sessions[Side::Proxy as usize];
        if let Some(conn) = session.conn.as_mut().filter(|_| session.state == State::Ready) {
            let untold = self.commands.sent.iter_mut().filter(|(_, command)| !command.told);
            for (number, command) in untold {
                let record = Record::Command {
                    number: *number,
                    name: command.name.as_bytes(),
                    left_ms: left_ms(now, command.until),
                    ask: command.ask.by_ref(),
                };
                command.told = conn.record(&record).is_some();
                if !command.told {
                    break; // tried again when something of the log is acknowledged
                }
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

    /// A command to a room came.
    pub(super) fn commanded(&mut self, handle: u32, id: CommandId, data: &[u8]) {
        let room = self
            .handles
            .iter()
            .find(|(known, _)| *known == handle)
            .map(|(_, room)| *room);
        let member = room.and_then(|room| self.rooms[room as usize].as_deref_mut());
        let mut taken = false;
        if let (Some(room), Some(member)) = (room, member) {
            taken = member.command(id, data);
            if taken && !member.told {
                member.told = true;
                self.events.push_back(ClientEvent::Readable { room });
            }
        }
        self.commands.taken.push_back((id, taken));
    }

    /// The proxy says what became of a command.
    pub(super) fn command_done(&mut self, number: u64, outcome: Outcome, retry_ms: u32, page: Option<Page>) {
        if self.commands.sent.remove(&number).is_some() {
            self.events.push_back(ClientEvent::Commanded {
                number,
                outcome,
                retry_ms,
                page,
            });
        }
    }

    /// Ends commands of which nobody says anything.
    pub(super) fn expire_commands(&mut self, now: Micros) {
        if self.commands.deadline().is_none_or(|at| now < at) {
            return;
        }
        let over = self
            .commands
            .sent
            .iter()
            .filter(|(_, command)| now >= command.until + 4 * GRACE);
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        for number in over {
            self.command_done(number, Outcome::expired(0), 0, None);
        }
    }
}
