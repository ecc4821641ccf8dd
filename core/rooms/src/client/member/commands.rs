//! Commands to a room's member: the unread ones, and those received lately, since each may arrive through several
//! proxies.
//!
//! Owns both queues and their bounds. Knows no message.

use std::collections::VecDeque;

use crate::command::CommandId;

/// Maximum number of unread commands, and of received commands that are remembered.
const UNREAD_MAX: usize = 1_024;
const KNOWN_MAX: usize = 4_096;

/// Received commands.
#[derive(Default)]
pub struct Commands {
    unread: VecDeque<(CommandId, Box<[u8]>)>,
    /// Recently received ones, newest last.
    known: VecDeque<CommandId>,
}

impl Commands {
    /// Whether nothing is unread.
    pub(super) fn is_empty(&self) -> bool {
        self.unread.is_empty()
    }

    /// Whether this command was received lately.
    pub(super) fn contains(&self, id: &CommandId) -> bool {
        self.known.contains(id)
    }

    /// Takes a new command. `false`: the reader has left too many unread.
    pub(super) fn push(&mut self, id: CommandId, data: &[u8]) -> bool {
        if self.unread.len() >= UNREAD_MAX {
            return false;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back(id);
        self.unread.push_back((id, data.into()));
        true
    }

    /// Takes the next unread command.
    pub(super) fn pop(&mut self) -> Option<(CommandId, Box<[u8]>)> {
        self.unread.pop_front()
    }
}
