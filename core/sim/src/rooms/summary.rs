//! The statistics of one run.

use std::collections::BTreeMap;

use muster_transport::Micros;

use super::{Rooms, Sim};
use crate::matrix::Step;
use crate::plan::Kind;

/// Counters of all lives of all processes of a kind.
pub type Accounts = BTreeMap<(Kind, &'static str), u64>;

/// The statistics of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub trace: u64,
    pub published: u64,
    pub delivered: u64,
    pub gaps: u64,
    pub reordered: u64,
    pub datagrams: u64,
    pub lost: u64,
    pub overflowed: u64,
    pub virtual_us: Micros,
    pub minimum: u64,
    pub reasons: BTreeMap<String, u64>,
    pub accounts: Accounts,
    /// Messages with an age at brokers and gateways: their number, and the least and greatest age.
    pub ages: BTreeMap<Kind, (u64, u32, u32)>,
    /// For each killed process: its role, and the time from its return until every member had received a new message.
    pub returns: Vec<(Kind, Micros)>,
    /// Delivered commands, expired ones, and member queries that all gateways answered.
    pub commands: (u64, u64, u64),
    /// The longest time until a sender learned that a command or query was delivered.
    pub slowest: Micros,
    /// Joins that continued a membership without loss, and messages of history.
    pub joins: (u64, u64),
    /// The step during which the plan's fault happened.
    pub struck: Option<Step>,
}

impl Rooms {
    pub(super) fn summary(self, world: &Sim, virtual_us: Micros) -> Summary {
        Summary {
            trace: world.trace(),
            published: self.oracle.messages.len() as u64,
            delivered: self.oracle.delivered,
            gaps: self.oracle.gaps,
            reordered: self.oracle.reordered,
            datagrams: world.net.sent,
            lost: world.net.lost,
            overflowed: world.processes.iter().map(|process| process.overflowed).sum(),
            virtual_us,
            minimum: self.minimum(),
            reasons: self.oracle.gap_reasons(),
            accounts: self.accounts,
            ages: self.ages,
            returns: self.returns,
            joins: (self.recovered, self.asked),
            commands: (self.commands.delivered, self.commands.expired, self.commands.counted),
            slowest: self.commands.slowest,
            struck: self.struck.fell,
        }
    }
}
