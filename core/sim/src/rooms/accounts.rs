//! The fate of the messages that came to a role, over all lives of all processes.
//!
//! Owns the sums of the machines' counters, and the check that they add up.

use muster_rooms::Ages;

use super::{Role, Rooms, Sim};
use crate::plan::Kind;

/// The possible fates of a message that came to a role.
const ACCOUNTED: [(Kind, &[&str]); 3] = [
    (
        Kind::Proxy,
        &[
            "messages_forwarded",
            "dropped_no_owner",
            "dropped_queue_full",
            "dropped_rate",
            "dropped_handle",
        ],
    ),
    (
        Kind::Broker,
        &[
            "messages_published",
            "messages_repeated",
            "held",
            "dropped_ahead",
            "dropped_credit",
            "dropped_held",
            "dropped_malformed",
            "dropped_not_ready",
            "dropped_not_owner",
            "dropped_full",
            "dropped_name_collision",
        ],
    ),
    (
        Kind::Gateway,
        &[
            "messages_placed",
            "messages_duplicate",
            "held",
            "dropped_no_member",
            "dropped_stale_stream",
            "dropped_held_full",
            "dropped_held",
            "dropped_unwanted",
            "dropped_malformed",
            "dropped_expired",
        ],
    ),
];

impl Rooms {
    /// Adds a process's counters to the accounts, at the end of its life or of the run.
    pub(super) fn count(&mut self, world: &mut Sim, process: usize) {
        let (kind, accounts) = (self.plan.kind(process), &mut self.accounts);
        let mut add = |name, value| *accounts.entry((kind, name)).or_default() += value;
        match &world.processes[process].node {
            Role::Proxy(machine) => {
                machine.counters.each(|name, _, value| add(name, value));
                machine.health.counters.each(|name, _, value| add(name, value));
            }
            Role::Broker(machine) => {
                machine.counters.each(|name, _, value| add(name, value));
                add("held", machine.held());
                note_ages(self.ages.entry(kind).or_insert((0, u32::MAX, 0)), &machine.ages);
            }
            Role::Gateway(machine) => {
                machine.counters.each(|name, _, value| add(name, value));
                add("held", machine.held());
                note_ages(self.ages.entry(kind).or_insert((0, u32::MAX, 0)), &machine.ages);
            }
            Role::Client(machine) => machine.counters.each(|name, _, value| add(name, value)),
            Role::Router(_) => {}
        }
    }

    /// Each message was passed on, had come before, is held, or was dropped by reason (I-8).
    pub(super) fn accounts(&self) -> Result<(), String> {
        for (kind, names) in ACCOUNTED {
            let of = |name| self.accounts.get(&(kind, name)).copied().unwrap_or(0);
            let (received, accounted) = (of("messages_received"), names.iter().copied().map(of).sum::<u64>());
            if received != accounted {
                return Err(format!(
                    "of {received} messages that came to a {kind:?} {accounted} are accounted for: {:?}",
                    self.accounts
                ));
            }
        }
        Ok(())
    }
}

/// How many messages that carry their age were seen, the least and the most.
fn note_ages((count, least, most): &mut (u64, u32, u32), ages: &Ages) {
    for (_, histogram) in ages.iter() {
        *count += histogram.count();
        *least = (*least).min(histogram.least_us);
        *most = (*most).max(histogram.most_us);
    }
}
