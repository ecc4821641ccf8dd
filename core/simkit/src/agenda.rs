//! The agenda of a run: events and the processes' turns, ordered by time and then by planning.
//!
//! Does not interpret events. Turns are most frequent and are replanned all the time, so each process has a single
//! entry for its next one, and outdated events never pile up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Micros;

/// When something happens, and the number under which it was planned.
type Time = (Micros, u64);

const NEVER: Time = (Micros::MAX, u64::MAX);

pub enum Next<E> {
    Turn(usize),
    Event(E),
}

pub struct Agenda<E> {
    events: BinaryHeap<Reverse<Timed<E>>>,
    /// The next turn of each process, and the earliest.
    turns: Vec<Time>,
    next_turn: usize,
    number: u64,
}

struct Timed<E> {
    time: Time,
    event: E,
}

impl<E> PartialEq for Timed<E> {
    fn eq(&self, other: &Self) -> bool {
        self.time == other.time
    }
}
impl<E> Eq for Timed<E> {}
impl<E> PartialOrd for Timed<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Timed<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.time.cmp(&other.time)
    }
}

impl<E> Agenda<E> {
    pub fn new(processes: usize) -> Self {
        Agenda {
            events: BinaryHeap::new(),
            turns: vec![NEVER; processes],
            next_turn: 0,
            number: 0,
        }
    }

    fn time(&mut self, at: Micros) -> Time {
        self.number += 1;
        (at, self.number)
    }

    pub fn push(&mut self, at: Micros, event: E) {
        let time = self.time(at);
        self.events.push(Reverse(Timed { time, event }));
    }

    /// Schedules a turn of a process at this time at the latest.
    pub fn turn_at(&mut self, process: usize, at: Micros) {
        if at >= self.turns[process].0 {
            return;
        }
        let time = self.time(at);
        self.turns[process] = time;
        if time < self.turns[self.next_turn] {
            self.next_turn = process;
        }
    }

    /// Takes the next event or turn.
    pub fn pop(&mut self) -> Option<(Micros, Next<E>)> {
        let turn = self.turns[self.next_turn];
        if self.events.peek().is_none_or(|Reverse(timed)| turn < timed.time) {
            let process = self.next_turn;
            self.turns[process] = NEVER;
            let times = self.turns.iter().enumerate();
            self.next_turn = times.min_by_key(|(_, time)| **time).map_or(0, |(process, _)| process);
            return (turn != NEVER).then_some((turn.0, Next::Turn(process)));
        }
        let Reverse(timed) = self.events.pop()?;
        Some((timed.time.0, Next::Event(timed.event)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(agenda: &mut Agenda<&'static str>) -> Vec<(Micros, String)> {
        let next = std::iter::from_fn(|| agenda.pop());
        let named = next.map(|(at, next)| match next {
            Next::Turn(process) => (at, process.to_string()),
            Next::Event(event) => (at, event.to_owned()),
        });
        named.collect()
    }

    fn named(all: &[(Micros, &str)]) -> Vec<(Micros, String)> {
        all.iter().map(|(at, name)| (*at, (*name).to_owned())).collect()
    }

    #[test]
    fn events_at_one_time_happen_in_the_order_of_planning() {
        let mut agenda = Agenda::new(3);
        agenda.push(5, "a");
        agenda.turn_at(2, 5);
        agenda.push(5, "b");
        agenda.turn_at(0, 5);
        agenda.push(4, "c");
        assert_eq!(
            taken(&mut agenda),
            named(&[(4, "c"), (5, "a"), (5, "2"), (5, "b"), (5, "0")])
        );
        assert!(agenda.pop().is_none());
    }

    #[test]
    fn a_process_has_only_one_next_turn() {
        let mut agenda = Agenda::new(2);
        agenda.turn_at(0, 9);
        agenda.turn_at(1, 8);
        agenda.turn_at(0, 7);
        agenda.turn_at(0, 10);
        assert_eq!(taken(&mut agenda), named(&[(7, "0"), (8, "1")]));
        agenda.turn_at(0, 10);
        assert_eq!(taken(&mut agenda), named(&[(10, "0")]));
    }
}
