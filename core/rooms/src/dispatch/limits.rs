//! Limits on a user's commands and member queries at this node.
//!
//! Owns a bucket per user for each of the two, and the commands already counted: a copy or a retry is the same
//! command. Knows no session and no broker.

use std::collections::{HashMap, VecDeque};

use muster_transport::{Buckets, Code, KeyedState, Micros, Taken};

use crate::command::{Ask, CommandId, COMMAND_BURST, COMMAND_RATE, COUNT_BURST, COUNT_RATE, GRACE, RETRY};
use crate::principal::Principal;

/// Maximum number of users at once with debt, for commands and for queries each: 65,536 x 32 B = 2 MiB, of which two
/// thirds always fit. A debt is paid off in one second, so this serves 44,000 users a second, twice the capacity of a
/// proxy.
const USERS_MAX: usize = 1 << 16;
/// Maximum number of commands known as counted: 65,536 x some 90 B = 6 MiB. Beyond it the oldest is forgotten, and a
/// retry of it would count once more.
const COUNTED_MAX: usize = 1 << 16;
/// How long after its time a command counts as over, when its sender and the brokers have finished with it; a later
/// one is new. Brokers forget it later than this, so that no repeat is delivered again without being counted.
const COUNTED_AFTER: Micros = 4 * GRACE;

/// A command and its room: the same number for another room is another command.
type What = (CommandId, u64);

/// Why a command is refused, and the wait before another try.
pub(crate) type Refusal = (Code, Micros);

pub(crate) struct Limits {
    /// Rate and burst.
    commands: (u32, u32),
    /// Made with the first command, and the first query.
    buckets: [Option<Buckets<Principal>>; 2],
    counted: HashMap<What, Micros, KeyedState>,
    order: VecDeque<What>,
    hash: KeyedState,
}

impl Limits {
    pub(crate) fn new(hash: KeyedState) -> Self {
        Limits {
            commands: (COMMAND_RATE, COMMAND_BURST),
            buckets: [None, None],
            counted: HashMap::with_hasher(hash),
            order: VecDeque::new(),
            hash,
        }
    }

    /// Sets a user's commands per second, and the burst. Earlier debt is forgiven.
    pub(crate) fn set(&mut self, rate: u32, burst: u32) {
        if std::mem::replace(&mut self.commands, (rate, burst)) != (rate, burst) {
            self.buckets[0] = None;
        }
    }

    /// Charges a command or a query that lives until `until`, unless it is counted already; or returns why not.
    pub(crate) fn take(
        &mut self,
        now: Micros,
        id: CommandId,
        room: u64,
        session: u64,
        until: Micros,
        ask: &Ask<'_>,
    ) -> Result<(), Refusal> {
        let what = (id, room);
        // Copies of a command are counted once; a query is new each time, and has no copies.
        let told = ask.acts();
        if told && self.counted.get(&what).is_some_and(|until| now < *until) {
            return Ok(());
        }
        let principal = Principal::of(id.user, session);
        let (at, (rate, burst)) = match ask {
            Ask::Tell(_) | Ask::End { .. } => (0, self.commands),
            Ask::Count { .. } => (1, (COUNT_RATE, COUNT_BURST)),
        };
        let buckets = self.buckets[at].get_or_insert_with(|| Buckets::new(USERS_MAX, rate, burst, self.hash));
        match buckets.take(now, principal) {
            Taken::Yes => {
                if told {
                    self.note(what, until + COUNTED_AFTER);
                }
                Ok(())
            }
            Taken::Wait(wait) => Err((Code::RateLimited, wait)),
            Taken::Full => Err((Code::Busy, RETRY)),
        }
    }

    fn note(&mut self, what: What, until: Micros) {
        if self.counted.insert(what, until).is_some() {
            return; // it is in the order already
        }
        self.order.push_back(what);
        if self.order.len() > COUNTED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.counted.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::SHARED_USER;

    const SECOND: Micros = 1_000_000;
    const ANN: u64 = 7;
    const ROOM: u64 = 9;

    fn limits() -> Limits {
        Limits::new(KeyedState::new(1, 2))
    }

    fn command(limits: &mut Limits, now: Micros, user: u64, session: u64, number: u64) -> Result<(), Refusal> {
        limits.take(
            now,
            CommandId { user, number },
            ROOM,
            session,
            now + SECOND,
            &Ask::tell(b"go"),
        )
    }

    #[test]
    fn a_user_has_one_per_second_over_all_sessions_and_learns_the_wait() {
        let mut limits = limits();
        assert_eq!(command(&mut limits, 0, ANN, 1, 1), Ok(()));
        assert_eq!(
            command(&mut limits, 300_000, ANN, 2, 2),
            Err((Code::RateLimited, 700_000))
        );
        assert_eq!(command(&mut limits, 300_000, ANN + 1, 2, 2), Ok(()), "another user");
        assert_eq!(command(&mut limits, SECOND, ANN, 2, 2), Ok(()));
    }

    #[test]
    fn each_session_of_the_shared_user_has_its_own_limit() {
        let mut limits = limits();
        for session in [1, 2] {
            assert_eq!(command(&mut limits, 0, SHARED_USER, session, session), Ok(()));
            assert!(command(&mut limits, 0, SHARED_USER, session, 2 + session).is_err());
        }
    }

    #[test]
    fn a_command_counts_once_as_long_as_it_lives() {
        let mut limits = limits();
        for session in [1, 1, 2] {
            assert_eq!(command(&mut limits, 0, ANN, session, 1), Ok(()));
        }
        assert!(command(&mut limits, 0, ANN, 1, 2).is_err());
        assert_eq!(command(&mut limits, 2 * SECOND - 1, ANN, 1, 1), Ok(()));
        assert_eq!(
            command(&mut limits, 2 * SECOND - 1, ANN, 1, 2),
            Ok(()),
            "the copy took nothing"
        );
        assert!(
            command(&mut limits, 2 * SECOND, ANN, 1, 1).is_err(),
            "its time is over: it is another one"
        );
    }

    /// Otherwise a query would make a command free, and one number would serve for commands to any number of rooms.
    #[test]
    fn the_same_number_for_another_room_or_as_a_command_counts_once_more() {
        let mut limits = limits();
        let id = CommandId { user: ANN, number: 1 };
        let question = Ask::Count { from: None };
        assert_eq!(limits.take(0, id, ROOM, 1, SECOND, &question), Ok(()));
        assert_eq!(limits.take(0, id, ROOM, 1, SECOND, &Ask::tell(b"go")), Ok(()));
        assert_eq!(limits.take(0, id, ROOM, 1, SECOND, &Ask::tell(b"go")), Ok(()), "a copy");
        assert!(limits.take(0, id, ROOM + 1, 1, SECOND, &Ask::tell(b"go")).is_err());
    }

    #[test]
    fn queries_have_a_bucket_of_their_own() {
        let mut limits = limits();
        let ask = |limits: &mut Limits, number| {
            let id = CommandId { user: ANN, number };
            limits.take(0, id, ROOM, 1, SECOND, &Ask::Count { from: None })
        };
        for number in 1..=u64::from(COUNT_BURST) {
            assert_eq!(ask(&mut limits, number), Ok(()));
        }
        assert_eq!(ask(&mut limits, 100), Err((Code::RateLimited, SECOND)));
        assert_eq!(
            ask(&mut limits, 1),
            Err((Code::RateLimited, SECOND)),
            "that of before is no other"
        );
        assert_eq!(command(&mut limits, 0, ANN, 1, 200), Ok(()));
    }

    #[test]
    fn a_new_limit_applies_at_once() {
        let mut limits = limits();
        assert_eq!(command(&mut limits, 0, ANN, 1, 1), Ok(()));
        limits.set(10, 3);
        for number in 2..5 {
            assert_eq!(command(&mut limits, 0, ANN, 1, number), Ok(()));
        }
        limits.set(10, 3);
        assert_eq!(
            command(&mut limits, 0, ANN, 1, 5),
            Err((Code::RateLimited, SECOND / 10))
        );
    }

    #[test]
    fn tables_are_bounded_and_overflow_is_refused_for_now() {
        let mut limits = limits();
        let said = (0..4 * USERS_MAX as u64).map(|user| command(&mut limits, 0, user + 2, 1, user));
        let full = said.filter(|said| *said == Err((Code::Busy, RETRY))).count();
        assert!(full >= 3 * USERS_MAX, "{full}");
        assert!(limits.counted.len() <= COUNTED_MAX && limits.order.len() <= COUNTED_MAX);
        assert_eq!(
            command(&mut limits, SECOND, 1 << 40, 1, 1),
            Ok(()),
            "who has paid off makes way"
        );
    }

    #[test]
    fn the_oldest_of_many_commands_are_forgotten() {
        let mut limits = limits();
        limits.set(1_000, 1_000);
        for number in 0..2 * COUNTED_MAX as u64 {
            let user = 2 + number / 1_000;
            assert_eq!(command(&mut limits, 0, user, 1, number), Ok(()));
        }
        assert_eq!((limits.counted.len(), limits.order.len()), (COUNTED_MAX, COUNTED_MAX));
    }
}
