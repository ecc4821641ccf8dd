//! The part of the client protocol that all connections of an edge share.
//!
//! Owns its settings, its counters and the questions that a turn of one connection leaves. Knows no room.

use muster_edge::{Ask, Connection, Counters, Settings, Turn};
use muster_transport::{Dice, Micros};

pub(super) struct Protocol {
    pub settings: Settings,
    pub counters: Counters,
    asks: Vec<Ask>,
    dice: Dice,
}

impl Protocol {
    pub fn new(settings: Settings, dice: Dice) -> Self {
        Protocol {
            settings,
            counters: Counters::default(),
            asks: Vec::new(),
            dice,
        }
    }

    /// Runs `f` with a connection's session parts.
    pub fn run<R>(
        &mut self,
        now: Micros,
        connection: &mut Connection,
        f: impl FnOnce(&mut Connection, &mut Turn<'_>, &mut Dice) -> R,
    ) -> R {
        let mut turn = Turn {
            now,
            settings: &self.settings,
            asks: &mut self.asks,
            counters: &mut self.counters,
        };
        f(connection, &mut turn, &mut self.dice)
    }

    /// The questions that connections have left.
    pub fn take_asks(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks)
    }
}
