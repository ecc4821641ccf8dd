//! What clients are told of servers: the wait before they come back, and where else they may go.
//!
//! Owns these announcements. Knows no session; `naming` owns the pace at which present clients learn of a change.

use std::ops::Range;

use super::BACKOFF_DEFAULT;
use crate::dice::Dice;
use crate::machine::Micros;
use crate::naming::Naming;
use crate::node::Node;
use crate::wire::record::ControlRecord;
use crate::wire::server::Server;
use crate::wire::Role;

/// The announcements of a server.
pub(super) struct Announcing {
    /// The first and the longest reconnect wait, in ms; `None`: the default.
    backoff: Option<(u32, u32)>,
    naming: Naming,
    dice: Dice,
}

impl Default for Announcing {
    fn default() -> Self {
        Announcing {
            backoff: None,
            naming: Naming::default(),
            dice: Dice::new(0),
        }
    }
}

impl Announcing {
    /// Sets the first and the longest reconnect wait, in ms.
    pub(super) fn set_backoff(&mut self, first: u32, longest: u32) {
        self.backoff = ((first, longest) != BACKOFF_DEFAULT).then_some((first, longest));
    }

    /// The record for a new session, unless the default holds.
    pub(super) fn backoff(&self) -> Option<ControlRecord<'static>> {
        self.backoff.map(|(backoff_ms, backoff_max_ms)| ControlRecord::Pace {
            backoff_ms,
            backoff_max_ms,
        })
    }

    /// Sets the servers.
    pub(super) fn set_servers(
        &mut self,
        now: Micros,
        node: &mut Node,
        servers: impl IntoIterator<Item = (Role, Vec<Server>)>,
    ) {
        if self.naming.set(now, servers) {
            self.dice = Dice::new(node.dice.roll());
        }
    }

    /// The servers for one client, by role.
    pub(super) fn draw(&mut self) -> Vec<(Role, Vec<Server>)> {
        self.naming.draw(&mut self.dice)
    }

    /// The slots of present clients to be told now, of `slots` in all.
    pub(super) fn due(&mut self, now: Micros, slots: u32) -> Range<u32> {
        self.naming.due(now, slots)
    }

    /// When [`Announcing::due`] is next not empty.
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.naming.deadline()
    }
}
