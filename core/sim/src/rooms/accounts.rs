//! What happened to the messages that reached a role, over all lives of all processes.
//!
//! Owns the sums of the machines' counters, and the check that they add up.

use muster_rooms::Ages;

use super::{Role, Rooms, Sim};
use crate::plan::Kind;

/// What can happen to a message that reached a role, besides being dropped.
const KEPT: [(Kind, &[&str]); 3] = [
    (Kind::Proxy, &["messages_forwarded"]),
    (Kind::Broker, &["messages_published", "messages_repeated", "held"]),
    (Kind::Gateway, &["messages_placed", "messages_duplicate", "held"]),
];
/// The sum of the counters of dropped messages.
const DROPPED: &str = "messages_dropped";

/// Whether each count of a counter with this help is the end of one message here.
fn is_drop(help: &str) -> bool {
    help.starts_with("Messages dropped") || help.starts_with("Room messages dropped")
}

impl Rooms {
    /// Adds a process's counters to the accounts, at the end of its life or of the run.
    pub(super) fn count(&mut self, world: &mut Sim, process: usize) {
        let (kind, accounts) = (self.plan.kind(process), &mut self.accounts);
        let mut sum = |name, value| *accounts.entry((kind, name)).or_default() += value;
        let mut add = |name, help, value| {
            sum(name, value);
            if is_drop(help) {
                sum(DROPPED, value);
            }
        };
        match &world.processes[process].node {
            Role::Proxy(machine) => {
                machine.counters.each(&mut add);
                machine.health.counters.each(&mut add);
            }
            Role::Broker(machine) => {
                machine.counters.each(&mut add);
                add("held", "", machine.held());
                note_ages(self.ages.entry(kind).or_insert((0, u32::MAX, 0)), &machine.ages);
            }
            Role::Gateway(machine) => {
                machine.counters.each(&mut add);
                add("held", "", machine.held());
                note_ages(self.ages.entry(kind).or_insert((0, u32::MAX, 0)), &machine.ages);
            }
            Role::Client(machine) => machine.counters.each(&mut add),
            Role::Router(_) => {}
        }
    }

    /// Each message was forwarded, had come before, is held, or was dropped with a reason (I-8).
    pub(super) fn accounts(&self) -> Result<(), String> {
        for (kind, kept) in KEPT {
            let of = |name| self.accounts.get(&(kind, name)).copied().unwrap_or(0);
            let accounted = kept.iter().copied().map(of).sum::<u64>() + of(DROPPED);
            let received = of("messages_received");
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

/// Counts messages that carry their age, and the least and the greatest age.
fn note_ages((count, least, most): &mut (u64, u32, u32), ages: &Ages) {
    for (_, histogram) in ages.iter() {
        *count += histogram.count();
        *least = (*least).min(histogram.least_us);
        *most = (*most).max(histogram.most_us);
    }
}

#[cfg(test)]
mod tests {
    use muster_rooms::{BrokerCounters, GatewayCounters, ProxyCounters};

    use super::*;

    /// Counters with "dropped" in their name that count something other than messages.
    const OTHERS: [&str; 5] = [
        "dropped_acknowledgement",
        "dropped_repair_limit",
        "dropped_repair_limit",
        "dropped_history_limit",
        "dropped_commands_full",
    ];

    #[test]
    fn every_counter_of_dropped_messages_is_accounted() {
        let mut others = Vec::new();
        let mut drops = 0;
        let mut look = |name: &'static str, help: &str, _: u64| match is_drop(help) {
            true => drops += 1,
            false if name.starts_with("dropped_") => others.push(name),
            false => {}
        };
        ProxyCounters::default().each(&mut look);
        BrokerCounters::default().each(&mut look);
        GatewayCounters::default().each(&mut look);
        assert!(drops >= 19, "{drops}");
        assert_eq!(
            others, OTHERS,
            "begin the help of a counter of messages with 'Messages dropped'"
        );
    }
}
