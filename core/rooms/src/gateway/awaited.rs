//! Pairs of command and session with an outstanding answer, sent or about to be sent. Both indexes exist, so an event
//! costs only its own pairs.
//!
//! Owns these pairs. Knows no log and no outcome.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::command::CommandId;

#[derive(Default)]
pub(super) struct Awaited {
    by_command: BTreeSet<(CommandId, u64)>,
    by_session: BTreeSet<(u64, CommandId)>,
    /// Those that had no place in the session's log, by session and room.
    untold: BTreeSet<(u64, u64, CommandId)>,
    #[cfg(test)]
    pub visits: usize,
}

impl Awaited {
    fn visit(&mut self) {
        #[cfg(test)]
        {
            self.visits += 1;
        }
    }

    /// Pairs of a command and a session.
    pub fn len(&self) -> usize {
        self.by_command.len()
    }

    pub fn add(&mut self, id: CommandId, room: u64, session: u64, told: bool) {
        self.visit();
        self.by_command.insert((id, session));
        self.by_session.insert((session, id));
        if !told {
            self.untold.insert((session, room, id));
        }
    }

    /// An answer is waited for no more. `false`: it was not.
    pub fn remove(&mut self, id: CommandId, room: u64, session: u64) -> bool {
        self.visit();
        self.untold.remove(&(session, room, id));
        self.by_session.remove(&(session, id)) && self.by_command.remove(&(id, session))
    }

    /// A session that has not answered a command.
    pub fn session_of(&self, id: CommandId) -> Option<u64> {
        let of = self.by_command.range((id, 0)..=(id, u64::MAX)).next();
        of.map(|(_, session)| *session)
    }

    /// A command that a session has not answered.
    pub fn command_of(&self, session: u64) -> Option<CommandId> {
        let of = self
            .by_session
            .range((session, CommandId::FIRST)..=(session, CommandId::LAST))
            .next();
        of.map(|(_, id)| *id)
    }

    /// A command that a session was not told, and the room; in one of these rooms.
    pub fn untold(&self, session: u64, rooms: RangeInclusive<u64>) -> Option<(u64, CommandId)> {
        let span = (session, *rooms.start(), CommandId::FIRST)..=(session, *rooms.end(), CommandId::LAST);
        let of = self.untold.range(span).next();
        of.map(|(_, room, id)| (*room, *id))
    }

    pub fn all_told(&self) -> bool {
        self.untold.is_empty()
    }

    pub fn told(&mut self, id: CommandId, room: u64, session: u64) {
        self.visit();
        self.untold.remove(&(session, room, id));
    }
}
