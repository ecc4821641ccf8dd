//! The servers announced to clients, and the pace at which all clients learn of a change (ROOM-25).
//!
//! Owns the list and the pace. Knows no session; the caller sends a drawn list.

use crate::dice::Dice;
use crate::limits::NODES_MAX;
use crate::machine::Micros;
use crate::wire::server::{Server, SERVERS_MAX};
use crate::wire::Role;

/// Interval between steps of a round. A round also begins this long after a change, since changes often come in
/// groups.
const STEP: Micros = 20_000;
const GATHER: Micros = 500_000;
/// Sessions informed per second during a round: 5,000 x 2 x 835 B are 8 MB/s, beside a server's other data.
const A_SECOND: u64 = 5_000;
/// Maximum number of draws for one list until it has enough different servers; with very unequal weights it names
/// fewer.
const DRAWS: usize = 4 * SERVERS_MAX;

/// Servers of one role.
#[derive(Debug, Default, PartialEq)]
struct List {
    servers: Vec<Server>,
    /// Cumulative sums of the weights.
    upto: Vec<u64>,
}

impl List {
    fn of(servers: Vec<Server>) -> Self {
        let mut sum = 0;
        let upto = servers.iter().map(|server| {
            sum += u64::from(server.weight);
            sum
        });
        List {
            upto: upto.collect(),
            servers,
        }
    }

    /// All servers; or if there are too many for one record, a random choice by weight.
    fn draw(&self, dice: &mut Dice) -> Vec<Server> {
        if self.servers.len() <= SERVERS_MAX {
            return self.servers.clone();
        }
        let sum = self.upto.last().copied().unwrap_or(0);
        let mut drawn = Vec::with_capacity(SERVERS_MAX);
        for _ in 0..DRAWS {
            let roll = dice.below(sum);
            let at = self.upto.partition_point(|upto| *upto <= roll);
            if !drawn.contains(&at) {
                drawn.push(at);
            }
            if drawn.len() == SERVERS_MAX {
                break;
            }
        }
        drawn.into_iter().map(|at| self.servers[at]).collect()
    }
}

/// A round of announcements over the slots of all sessions.
#[derive(Clone, Copy, Debug)]
struct Round {
    at: Micros,
    next: u32,
}

/// The servers announced to clients, and the progress of the round that informs connected clients.
#[derive(Debug, Default)]
pub struct Naming {
    lists: Vec<(Role, List)>,
    round: Option<Round>,
    /// The list changed again since the round began.
    changed: bool,
}

impl Naming {
    /// Replaces the servers of these roles. Drops servers of weight 0, and those beyond the [`NODES_MAX`]th of a
    /// role. Returns whether the list changed.
    pub fn set(&mut self, now: Micros, servers: impl IntoIterator<Item = (Role, Vec<Server>)>) -> bool {
        let believed = |(role, servers): (Role, Vec<Server>)| {
            let weighty = servers.into_iter().filter(|server| server.weight > 0);
            let servers: Vec<Server> = weighty.take(NODES_MAX).collect();
            (!servers.is_empty()).then(|| (role, List::of(servers)))
        };
        let lists: Vec<(Role, List)> = servers.into_iter().filter_map(believed).collect();
        if lists == self.lists {
            return false;
        }
        self.lists = lists;
        match self.round {
            Some(_) => self.changed = true,
            None => self.begin(now),
        }
        true
    }

    fn begin(&mut self, now: Micros) {
        self.changed = false;
        self.round = Some(Round {
            at: now + GATHER,
            next: 0,
        });
    }

    /// Draws the list for one client. A role without servers is left out, so that the client keeps the ones it knows.
    pub fn draw(&self, dice: &mut Dice) -> Vec<(Role, Vec<Server>)> {
        let lists = self.lists.iter();
        lists.map(|(role, list)| (*role, list.draw(dice))).collect()
    }

    /// The slots to be informed now, of `slots` in all.
    pub fn due(&mut self, now: Micros, slots: u32) -> std::ops::Range<u32> {
        let Some(round) = self.round.as_mut().filter(|round| now >= round.at) else {
            return 0..0;
        };
        // However late the call is: missed steps are not caught up.
        let from = round.next;
        round.next = (from + (A_SECOND * STEP / 1_000_000) as u32).min(slots);
        round.at = now + STEP;
        let due = from.min(slots)..round.next;
        if round.next >= slots {
            self.round = None;
            if self.changed {
                self.begin(now);
            }
        }
        due
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.round.map(|round| round.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::FRONT;
    use crate::machine::Addr;

    fn server(port: u16, weight: u16) -> Server {
        Server {
            addr: Addr { ip: [7; 16], port },
            key: [3; 32],
            weight,
        }
    }

    /// How often each of these servers appears in the drawn lists.
    fn told(servers: &[Server], times: usize) -> Vec<usize> {
        let mut naming = Naming::default();
        naming.set(0, [(FRONT, servers.to_vec())]);
        let mut dice = Dice::new(7);
        let mut counts = vec![0; servers.len()];
        for _ in 0..times {
            for (role, named) in naming.draw(&mut dice) {
                assert_eq!(role, FRONT);
                assert!(named.len() <= SERVERS_MAX);
                named
                    .iter()
                    .for_each(|named| counts[usize::from(named.addr.port) - 1] += 1);
            }
        }
        counts
    }

    #[test]
    fn few_servers_are_all_named_and_those_of_weight_0_are_not() {
        let counts = told(&[server(1, 1), server(2, 0), server(3, 9)], 10);
        assert_eq!(counts, [10, 0, 10]);
        assert!(told(&[], 3).is_empty());
    }

    #[test]
    fn each_draw_of_many_servers_names_some_by_weight() {
        let servers: Vec<Server> = (1..=200)
            .map(|port| server(port, if port <= 100 { 1 } else { 4 }))
            .collect();
        let counts = told(&servers, 1_000);
        let (light, heavy): (usize, usize) = (counts[..100].iter().sum(), counts[100..].iter().sum());
        assert_eq!(light + heavy, 1_000 * SERVERS_MAX);
        assert!((3 * light..5 * light).contains(&heavy), "{light} {heavy}");
        assert!(counts.iter().all(|count| *count > 0));
    }

    #[test]
    fn all_slots_learn_of_a_change_evenly_and_again_of_a_later_one() {
        let mut naming = Naming::default();
        assert!(naming.deadline().is_none());
        naming.set(0, [(FRONT, vec![server(1, 1)])]);
        naming.set(0, [(FRONT, vec![server(1, 1)])]);
        let rounds = |naming: &mut Naming, from: Micros| {
            let (mut slots, mut now) = (0, from);
            while let Some(at) = naming.deadline() {
                now = at;
                slots += naming.due(now, 10_000).len();
            }
            (slots, now - from)
        };
        assert!(naming.due(GATHER - 1, 10_000).is_empty());
        let (slots, took) = rounds(&mut naming, 0);
        assert_eq!(slots, 10_000);
        assert!((1_000_000..3_000_000).contains(&took), "{took} us");
        naming.set(took, [(FRONT, vec![server(2, 1)])]);
        naming.due(took + GATHER, 10_000);
        naming.set(took + GATHER, [(FRONT, vec![server(3, 1)])]);
        assert_eq!(rounds(&mut naming, took).0, 20_000 - 100);
    }
}
