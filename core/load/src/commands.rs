//! Commands of a swarm's members: the outcome and the receivers of each.
//!
//! Owns the record of every command, from its intended time to its reply and the members that read it. A command's
//! content begins with its index in that record, so a reader is known to have got exactly this command. Knows no
//! client.

use std::collections::HashMap;

use muster_rooms::command::{Outcome, Verdict, GRACE};
use muster_transport::Micros;

/// A client ends a command by itself this long after its time; replies after that count as late, plus a margin for a
/// busy core.
const END_AFTER: Micros = 4 * GRACE;
const SLACK: Micros = 250_000;
/// How long a slow generator is given to notice that all commands are answered.
const PATIENCE: Micros = 10_000_000;
/// If a member's session is lost within this time, its gateway may have lost it before the member noticed.
const UNNOTICED: Micros = 5_000_000;

/// How members send commands.
#[derive(Clone, Copy, Debug)]
pub struct Commanding {
    /// Number of commands of each member.
    pub each: usize,
    /// Interval between the commands of a member. The commands of all members are spread evenly.
    pub every: Micros,
    pub lifetime: Micros,
    pub bytes: usize,
    /// One command in this many goes to a room without members; 0: none.
    pub vacant: usize,
}

/// The outcomes of a run's commands.
#[derive(Clone, Debug, Default)]
pub struct Commanded {
    pub sent: u64,
    /// Replies by kind.
    pub delivered: u64,
    pub no_member: u64,
    pub expired: u64,
    pub refused: u64,
    /// Commands without any reply, and those answered after the time that the protocol allows.
    pub silent: u64,
    pub late: u64,
    /// Members that read a command for the first time; that read one again; that read one never sent.
    pub told: u64,
    pub doubled: u64,
    pub strays: u64,
    /// Members present all the time that missed a delivered command, or one reported as having no member; and those
    /// among them whose session was lost meanwhile.
    pub missed: u64,
    pub away: u64,
    /// The difference between counted and actual members.
    pub miscounted: u64,
    /// Commands that expired though every member had them.
    pub expired_told: u64,
    /// Microseconds from the intended time to the reply, without refusals.
    pub latencies: Vec<u32>,
    /// From the first command to the last reply.
    pub wall: Micros,
    /// How late commands were sent, 99th percentile, in microseconds.
    pub late_p99: u32,
}

struct Command {
    /// `None`: a room without members.
    room: Option<usize>,
    number: u64,
    intended: Micros,
    until: Micros,
    answer: Option<(Micros, Outcome)>,
    readers: Vec<u32>,
}

/// When a client was a member, as far as it knew.
struct Stay {
    member: u32,
    from: Micros,
    until: Option<Micros>,
}

/// All commands of a run, and the members of each room.
#[derive(Default)]
pub struct Ledger {
    all: Vec<Command>,
    /// The content of this run's first command.
    first: u64,
    by_number: HashMap<u64, usize>,
    doubled: u64,
    strays: u64,
    stays: HashMap<usize, Vec<Stay>>,
}

impl Ledger {
    /// Begins a run: replies to earlier ones are ignored.
    pub fn begin(&mut self, count: usize) {
        *self = Ledger {
            first: self.first + self.all.len() as u64,
            all: Vec::with_capacity(count),
            by_number: HashMap::with_capacity(count),
            stays: std::mem::take(&mut self.stays),
            ..Ledger::default()
        };
    }

    pub fn joined(&mut self, now: Micros, room: usize, member: u32) {
        let (from, until) = (now, None);
        self.stays.entry(room).or_default().push(Stay { member, from, until });
    }

    /// A member's session was lost.
    pub fn lost(&mut self, now: Micros, room: usize, member: u32) {
        let stays = self.stays.entry(room).or_default().iter_mut().rev();
        if let Some(stay) = stays.into_iter().find(|stay| stay.member == member) {
            stay.until.get_or_insert(now);
        }
    }

    /// The first bytes of the next command's content.
    pub fn content(&self) -> [u8; 8] {
        (self.first + self.all.len() as u64).to_le_bytes()
    }

    /// A client accepted a command.
    pub fn sent(&mut self, room: Option<usize>, number: u64, intended: Micros, until: Micros) {
        self.by_number.insert(number, self.all.len());
        self.all.push(Command {
            room,
            number,
            intended,
            until,
            answer: None,
            readers: Vec::new(),
        });
    }

    /// A client did not accept a command, for lack of space. It reports that at once, so it counts as a refusal.
    pub fn refused(&mut self, now: Micros, room: Option<usize>, intended: Micros) {
        let outcome = Outcome::refused(muster_transport::Code::Busy);
        self.all.push(Command {
            room,
            number: 0,
            intended,
            until: now,
            answer: Some((now, outcome)),
            readers: Vec::new(),
        });
    }

    /// A sender got the outcome of a command.
    pub fn answered(&mut self, now: Micros, number: u64, outcome: Outcome) {
        if let Some(at) = self.by_number.remove(&number) {
            self.all[at].answer = Some((now, outcome));
        }
    }

    /// A member read a command.
    pub fn read(&mut self, member: u32, room: usize, number: u64, content: Option<u64>) {
        let at = content.and_then(|content| content.checked_sub(self.first));
        let command = at.and_then(|at| self.all.get_mut(at as usize));
        match command.filter(|command| (command.room, command.number) == (Some(room), number)) {
            Some(command) if command.readers.contains(&member) => self.doubled += 1,
            Some(command) => command.readers.push(member),
            // It may belong to an earlier run.
            None if content.is_some_and(|content| content < self.first) => {}
            None => self.strays += 1,
        }
    }

    pub fn all_answered(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Until when replies are worth waiting for.
    pub fn over_at(&self) -> Micros {
        self.all.iter().map(|command| command.until).max().unwrap_or(0) + END_AFTER + PATIENCE
    }

    /// The results of a run that began at `start`.
    pub fn account(&self, start: Micros) -> Commanded {
        let mut done = Commanded {
            sent: self.all.len() as u64,
            doubled: self.doubled,
            strays: self.strays,
            ..Commanded::default()
        };
        for command in &self.all {
            let had = command.readers.len() as u64;
            done.told += had;
            let Some((at, outcome)) = command.answer else {
                done.silent += 1;
                continue;
            };
            done.late += u64::from(at > command.until + END_AFTER + SLACK);
            done.wall = done.wall.max(at.saturating_sub(start));
            let kind = match outcome.verdict {
                Verdict::Delivered => &mut done.delivered,
                Verdict::NoMember => &mut done.no_member,
                Verdict::Expired => &mut done.expired,
                Verdict::Refused(_) => &mut done.refused,
            };
            *kind += 1;
            match outcome.verdict {
                Verdict::Delivered | Verdict::NoMember => {
                    let (missed, away) = self.untold(command, at);
                    (done.missed, done.away) = (done.missed + missed, done.away + away);
                    done.miscounted += u64::from(outcome.members).abs_diff(had);
                }
                Verdict::Expired => done.expired_told += u64::from(self.untold(command, at) == (0, 0)),
                Verdict::Refused(_) => {
                    done.strays += had;
                    continue;
                }
            }
            let waited = at.saturating_sub(command.intended);
            done.latencies.push(u32::try_from(waited).unwrap_or(u32::MAX));
        }
        done
    }

    /// Members that have not read a command when it was answered: those that were there all the time, and those that
    /// may not have been.
    fn untold(&self, command: &Command, answered: Micros) -> (u64, u64) {
        let known = command.room.and_then(|room| self.stays.get(&room));
        let mut members: HashMap<u32, bool> = HashMap::new();
        for stay in known.into_iter().flatten() {
            let lasts = stay.from <= command.intended && stay.until.is_none_or(|until| until > answered + UNNOTICED);
            *members.entry(stay.member).or_default() |= lasts;
        }
        let untold = members.iter().filter(|(member, _)| !command.readers.contains(member));
        untold.fold((0, 0), |(missed, away), (_, lasts)| match lasts {
            true => (missed + 1, away),
            false => (missed, away + 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verdict: Verdict, members: u32) -> Outcome {
        Outcome { verdict, members }
    }

    /// Commands 1 to 6 in a room of two, the last to a room without members, all sent at 0 with a lifetime of one
    /// second.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for member in [7, 8] {
            ledger.joined(0, 0, member);
        }
        for number in 1..=6u64 {
            assert_eq!(ledger.content(), (number - 1).to_le_bytes());
            ledger.sent((number < 6).then_some(0), number, 0, 1_000_000);
        }
        ledger
    }

    #[test]
    fn correct_delivery_leaves_nothing_to_report() {
        let mut ledger = ledger();
        for number in 1..=5 {
            ledger.read(7, 0, number, Some(number - 1));
            ledger.read(8, 0, number, Some(number - 1));
            ledger.answered(100, number, outcome(Verdict::Delivered, 2));
        }
        assert!(!ledger.all_answered());
        ledger.answered(900, 6, outcome(Verdict::NoMember, 0));
        assert!(ledger.all_answered());
        let done = ledger.account(0);
        assert_eq!((done.sent, done.delivered, done.no_member, done.told), (6, 5, 1, 10));
        assert_eq!((done.silent, done.late, done.doubled, done.strays), (0, 0, 0, 0));
        assert_eq!((done.missed, done.miscounted), (0, 0));
        assert_eq!((done.latencies, done.wall), (vec![100, 100, 100, 100, 100, 900], 900));
    }

    #[test]
    fn each_kind_of_fault_is_counted_separately() {
        let mut ledger = ledger();
        ledger.read(7, 0, 1, Some(0));
        ledger.read(7, 0, 1, Some(0));
        ledger.answered(1, 1, outcome(Verdict::Delivered, 2)); // one member got it twice, the other not at all
        ledger.read(7, 0, 2, Some(1));
        ledger.answered(1, 2, outcome(Verdict::NoMember, 0)); // one was there and got it, one was there
        ledger.read(7, 0, 3, Some(2));
        ledger.read(8, 0, 3, Some(2));
        ledger.answered(3_000_000, 3, outcome(Verdict::Expired, 1)); // in truth all had it; late
        ledger.read(7, 0, 4, Some(3));
        ledger.answered(1, 4, outcome(Verdict::Refused(muster_transport::Code::Busy), 0)); // refused, but delivered
        ledger.read(7, 0, 5, Some(99));
        ledger.read(7, 0, 5, None);
        ledger.read(7, 1, 5, Some(4));
        let done = ledger.account(0);
        assert_eq!(
            (done.delivered, done.no_member, done.expired, done.refused),
            (1, 1, 1, 1)
        );
        assert_eq!((done.silent, done.late, done.doubled, done.strays), (2, 1, 1, 4));
        assert_eq!((done.missed, done.miscounted, done.expired_told), (2, 2, 1));
        assert_eq!(done.latencies, [1, 1, 3_000_000]);
    }

    #[test]
    fn replies_of_an_earlier_run_are_ignored_in_the_next() {
        let mut ledger = ledger();
        ledger.begin(1);
        assert_eq!(ledger.content(), 6u64.to_le_bytes());
        ledger.sent(Some(0), 9, 0, 10);
        ledger.read(7, 0, 5, Some(4));
        ledger.answered(1, 5, outcome(Verdict::Delivered, 1));
        ledger.read(7, 0, 9, Some(6));
        ledger.answered(1, 9, outcome(Verdict::Delivered, 1));
        let done = ledger.account(0);
        assert_eq!((done.sent, done.told, done.strays, done.missed), (1, 1, 0, 1));
    }

    #[test]
    fn a_member_that_missed_a_command_and_may_have_been_away_is_not_counted_as_missed() {
        let mut ledger = Ledger::default();
        ledger.joined(0, 0, 7);
        ledger.joined(100, 0, 8); // joins while the command is in progress
        ledger.joined(0, 0, 9);
        ledger.sent(Some(0), 1, 50, 1_000_000);
        ledger.answered(200, 1, outcome(Verdict::NoMember, 0));
        let account = |ledger: &Ledger| (ledger.account(0).missed, ledger.account(0).away);
        assert_eq!(account(&ledger), (2, 1));
        ledger.lost(200 + UNNOTICED, 0, 7);
        assert_eq!(account(&ledger), (1, 2));
        ledger.joined(300 + UNNOTICED, 0, 7);
        assert_eq!(account(&ledger), (1, 2));
        ledger.lost(201 + UNNOTICED, 0, 9);
        assert_eq!(account(&ledger), (1, 2));
    }
}
