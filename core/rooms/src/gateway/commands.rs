//! Commands at the gateway: each goes once to every present member, and the broker learns how many have it. Questions:
//! the number of members and, if asked, their users.
//!
//! A copy by another broker only asks again. A member that returns with positions while a command lives is told it too:
//! its former session may have ended first. One that waited for the room when a command came is waited for. There is no
//! search for work: an answer, the end of a session, space in a log, the end of a wait for the room and the end of a
//! command each name what they concern.

use std::collections::{BTreeSet, HashMap};

use muster_transport::{Bucket, Code, KeyedState, Micros};

use super::awaited::Awaited;
use super::members::Members;
use super::Gateway;
use crate::command::{
    until, CommandId, Outcome, Page, AWAITED_MAX, AWAY_GRACE, COMMANDS_MAX, ENDED_A_TURN, KNOWN_MAX, REMEMBER,
};
use crate::shares::{Holder, Shares};
use crate::wire::record::Record;

/// Members that are looked at in a second to name them, and at once: about 10 ms of each second, and a room of a million.
const LOOKS_A_SECOND: u32 = 100_000;
const LOOKS_FIRST: u32 = 1_000_000;

struct Command {
    room: u64,
    /// How many had come before it.
    number: u64,
    /// When it came.
    at: Micros,
    until: Micros,
    data: Box<[u8]>,
    /// Brokers that asked and were not answered.
    brokers: Vec<u32>,
    members: u32,
    /// A member was not told, as too many answers were outstanding.
    missed: bool,
    /// Until then, members whose session ended without an answer may return, here or at another gateway.
    open_until: Micros,
    /// When that is looked at.
    look_at: Option<Micros>,
    outcome: Option<Outcome>,
    /// Its time is over: no further member is told, it is only remembered.
    over: bool,
}

impl Command {
    fn holders(&self, id: CommandId) -> [Holder; 2] {
        [Holder::User(id.user), Holder::Room(self.room)]
    }
}

/// All commands that live, or are remembered.
pub(super) struct Commands {
    known: HashMap<CommandId, Command, KeyedState>,
    /// Live commands by room, in the order of their arrival.
    by_room: BTreeSet<(u64, u64, CommandId)>,
    awaited: Awaited,
    /// When each is over, or forgotten.
    ends: BTreeSet<(Micros, CommandId)>,
    /// When absent members count as gone.
    absences: BTreeSet<(Micros, CommandId)>,
    /// Bounds of live commands, of known ones, and of outstanding answers.
    live: Shares,
    remembered: Shares,
    answers: Shares,
    looks: Bucket,
}

impl Commands {
    pub(super) fn new(hash: KeyedState) -> Self {
        Commands {
            known: HashMap::with_hasher(hash),
            by_room: BTreeSet::new(),
            awaited: Awaited::default(),
            ends: BTreeSet::new(),
            live: Shares::new(COMMANDS_MAX, hash),
            remembered: Shares::new(KNOWN_MAX, hash),
            answers: Shares::new(AWAITED_MAX, hash),
            absences: BTreeSet::new(),
            looks: Bucket::new(LOOKS_A_SECOND, LOOKS_FIRST),
        }
    }

    pub(super) fn deadline(&self) -> Option<Micros> {
        let ends = self.ends.first().map(|(at, _)| *at);
        ends.into_iter().chain(self.absences.first().map(|(at, _)| *at)).min()
    }

    /// Whether a command for this many members fits.
    fn have_place(&self, who: [Holder; 2], members: usize) -> bool {
        self.live.allow(who, 1) && self.remembered.allow(who, 1) && self.answers.allow(who, members)
    }

    fn add(&mut self, id: CommandId, command: Command) {
        let who = command.holders(id);
        self.live.take(who, 1);
        self.remembered.take(who, 1);
        self.ends.insert((command.until, id));
        self.by_room.insert((command.room, command.number, id));
        self.known.insert(id, command);
    }

    /// Remembers a command that no member is told.
    fn add_done(&mut self, id: CommandId, command: Command) {
        let place = (command.room, command.number, id);
        self.add(id, command);
        self.by_room.remove(&place);
    }

    /// A session's answer is waited for no more. `None`: it was not.
    fn answered(&mut self, id: CommandId, session: u64) -> Option<&mut Command> {
        let command = self.known.get_mut(&id)?;
        if !self.awaited.remove(id, command.room, session) {
            return None;
        }
        self.answers.give_back(command.holders(id), 1);
        Some(command)
    }
}

impl<S: Members> Gateway<S> {
    /// A broker passes a command on.
    pub(super) fn command(
        &mut self,
        now: Micros,
        broker: u32,
        id: CommandId,
        room: (u64, u64),
        left_ms: u32,
        data: &[u8],
    ) {
        if let Some(known) = self.commands.known.get_mut(&id) {
            self.counters.commands_duplicate += 1;
            return match known.outcome {
                Some(outcome) => self.tell_outcome(now, broker, id, outcome, None),
                None if !known.brokers.contains(&broker) => known.brokers.push(broker),
                None => {}
            };
        }
        let command = Command {
            room: room.0,
            number: self.counters.commands_received,
            at: now,
            until: until(now, left_ms),
            data: data.into(),
            brokers: vec![broker],
            members: 0,
            missed: false,
            open_until: now,
            look_at: None,
            outcome: None,
            over: false,
        };
        if !self
            .commands
            .have_place(command.holders(id), self.members_of(room).len())
        {
            self.counters.dropped_commands_full += 1;
            return self.tell_outcome(now, broker, id, Outcome::refused(Code::Busy), None);
        }
        self.counters.commands_received += 1;
        let members = self.members_of(room).to_vec();
        self.commands.add(id, command);
        self.tell_command(id, &members);
        self.settle_command(now, id);
    }

    fn members_of(&self, (id, check): (u64, u64)) -> &[u32] {
        let at = self.rooms.find(id);
        let known = at.and_then(|at| self.rooms.get(at));
        known
            .filter(|known| known.check == check)
            .map_or(&[][..], |known| &known.members)
    }

    /// Answers a broker's question for the number of members here and, from a user on, their users. Remembers nothing.
    pub(super) fn count(&mut self, now: Micros, broker: u32, id: CommandId, room: (u64, u64), from: Option<u64>) {
        let members = self.members_of(room);
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let page = match from {
            None => Page::default(),
            Some(from) if self.commands.looks.take(now, count) => {
                let user = |slot: &u32| self.sessions.user_of(*slot);
                let users = self.members_of(room).iter().filter_map(user);
                Page::of(users.filter(|user| *user >= from))
            }
            // Too much for one answer: the number alone.
            Some(_) => Page {
                more: true,
                ..Page::default()
            },
        };
        self.counters.counts_answered += 1;
        self.tell_outcome(now, broker, id, Outcome::of(count), Some(page));
    }

    /// Ends the sessions with which a user is a member of a room, and answers with their number. A repeat ends no later
    /// session.
    pub(super) fn end_member(
        &mut self,
        now: Micros,
        broker: u32,
        id: CommandId,
        room: (u64, u64),
        left_ms: u32,
        user: u64,
    ) {
        if let Some(outcome) = self.commands.known.get(&id).and_then(|known| known.outcome) {
            self.counters.commands_duplicate += 1;
            return self.tell_outcome(now, broker, id, outcome, None);
        }
        let members = self.members_of(room);
        let looks = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let who = [Holder::User(id.user), Holder::Room(room.0)];
        if !self.commands.have_place(who, 0) || !self.commands.looks.take(now, looks) {
            self.counters.dropped_commands_full += 1;
            return self.tell_outcome(now, broker, id, Outcome::refused(Code::Busy), None);
        }
        let of_user = |slot: &u32| self.sessions.user_of(*slot) == Some(user);
        let slots: Vec<u32> = self.members_of(room).iter().copied().filter(of_user).collect();
        for slot in &slots {
            self.sessions.refuse(now, *slot, Code::Ended);
        }
        self.counters.members_ended += slots.len() as u64;
        let ended = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        let outcome = Outcome::of(ended);
        let command = Command {
            room: room.0,
            number: self.counters.commands_received,
            at: now,
            until: until(now, left_ms),
            data: Box::default(),
            brokers: Vec::new(),
            members: ended,
            missed: false,
            open_until: now,
            look_at: None,
            outcome: Some(outcome),
            over: false,
        };
        self.commands.add_done(id, command);
        self.tell_outcome(now, broker, id, outcome, None);
    }

    /// Sends a command to members, and notes the outstanding answers. A nearly full log is reserved for answers.
    fn tell_command(&mut self, id: CommandId, members: &[u32]) {
        let Commands {
            known,
            awaited,
            answers,
            ..
        } = &mut self.commands;
        let Some(command) = known.get_mut(&id) else { return };
        let Some(handle) = self.rooms.find(command.room) else {
            return;
        };
        let who = command.holders(id);
        if !answers.allow(who, members.len()) {
            command.missed = true;
            return;
        }
        let before = awaited.len();
        for slot in members {
            let Some(session) = self.sessions.session_of(*slot) else {
                continue;
            };
            let record = Record::CommandTold {
                handle,
                command: id,
                data: &command.data,
            };
            let told = self.sessions.offer(*slot, &record);
            awaited.add(id, command.room, session, told);
            self.counters.commands_sent += u64::from(told);
        }
        answers.take(who, awaited.len() - before);
    }

    /// A session's log may have space: sends it the missing commands.
    pub(super) fn tell_untold(&mut self, slot: u32) {
        let Commands { known, awaited, .. } = &mut self.commands;
        if awaited.all_told() {
            return;
        }
        let Some(session) = self.sessions.session_of(slot) else {
            return;
        };
        while let Some((room, id)) = awaited.untold(session, 0..=u64::MAX) {
            let Some((command, handle)) = known.get(&id).zip(self.rooms.find(room)) else {
                return;
            };
            let record = Record::CommandTold {
                handle,
                command: id,
                data: &command.data,
            };
            if !self.sessions.offer(slot, &record) {
                break;
            }
            self.counters.commands_sent += 1;
            awaited.told(id, room, session);
        }
    }

    /// A member has a command, or says that it has not.
    pub(super) fn command_taken(&mut self, now: Micros, slot: u32, id: CommandId, taken: bool) {
        let Some(session) = self.sessions.session_of(slot) else {
            return;
        };
        if let Some(command) = self.commands.answered(id, session) {
            command.members += u32::from(taken);
            self.counters.commands_delivered += u64::from(taken);
            self.settle_command(now, id);
        }
    }

    /// A session came back to a room: sends it the live commands, beginning with number `since`.
    pub(super) fn tell_commands(&mut self, now: Micros, slot: u32, room: u64, since: u64) {
        for id in self.live_in(room, since) {
            let over = |command: &Command| now >= command.until;
            if !self.commands.known.get(&id).is_none_or(over) {
                self.tell_command(id, &[slot]);
            }
        }
    }

    /// A session left a room: commands of that room are no longer sent to it.
    pub(super) fn commands_left(&mut self, now: Micros, session: u64, room: u64) {
        while let Some((_, id)) = self.commands.awaited.untold(session, room..=room) {
            self.commands.answered(id, session);
            self.settle_command(now, id);
        }
    }

    /// A session is over and will answer nothing more; its user may return to the rooms that it had not left.
    pub(super) fn commands_lost(&mut self, now: Micros, session: u64, left: &[(u64, u64)]) {
        while let Some(id) = self.commands.awaited.command_of(session) {
            if let Some(command) = self.commands.answered(id, session) {
                if !left.iter().any(|(room, _)| *room == command.room) {
                    command.open_until = now + AWAY_GRACE;
                }
            }
            self.settle_command(now, id);
        }
    }

    /// Members that return to a room wait no more: commands that waited for them may be answered.
    pub(super) fn settle_commands(&mut self, now: Micros, room: u64) {
        for id in self.live_in(room, 0) {
            self.settle_command(now, id);
        }
    }

    /// The live commands of a room, beginning with number `since`.
    fn live_in(&self, room: u64, since: u64) -> Vec<CommandId> {
        let (first, last) = (CommandId::FIRST, CommandId::LAST);
        let live = (room, since, first)..=(room, u64::MAX, last);
        self.commands.by_room.range(live).map(|(_, _, id)| *id).collect()
    }

    /// Answers once all members that are, or lately were, here have answered, and those that waited to return when it
    /// came; not later ones, as in a big room somebody always returns.
    fn settle_command(&mut self, now: Micros, id: CommandId) {
        let Commands {
            known,
            awaited,
            absences,
            ..
        } = &mut self.commands;
        let open = |command: &&mut Command| command.outcome.is_none() && !command.missed;
        let Some(command) = known.get_mut(&id).filter(open) else {
            return;
        };
        if awaited.session_of(id).is_some() {
            return;
        }
        let at = self.rooms.find(command.room);
        let room = at.and_then(|at| self.rooms.get(at));
        if room.is_some_and(|room| room.awaits_return(command.at, |session| self.sessions.slot_of(session).is_some())) {
            return;
        }
        if now < command.open_until {
            // One look for each, however many went.
            let at = *command.look_at.get_or_insert(command.open_until);
            absences.insert((at, id));
        } else {
            command.outcome = Some(Outcome::of(command.members));
            self.answer_command(now, id);
        }
    }

    /// Reports a command's outcome to the brokers that asked, if it is known.
    fn answer_command(&mut self, now: Micros, id: CommandId) {
        let Some(command) = self.commands.known.get_mut(&id) else {
            return;
        };
        let Some(outcome) = command.outcome else { return };
        for broker in std::mem::take(&mut command.brokers) {
            self.tell_outcome(now, broker, id, outcome, None);
        }
    }

    fn tell_outcome(&mut self, now: Micros, broker: u32, command: CommandId, outcome: Outcome, page: Option<Page>) {
        let done = Record::LinkCommandDone {
            command,
            session: 0,
            outcome,
            page,
        };
        if let Some(slot) = self.links.to(broker) {
            self.links.record(now, slot, &done);
        }
    }

    /// Ends expired commands, and forgets those that ended long ago; as many as a turn has time for.
    pub(super) fn expire_commands(&mut self, now: Micros) {
        let mut left = ENDED_A_TURN;
        while let Some((at, id)) = self.commands.absences.first().copied().filter(|(at, _)| *at <= now) {
            if left == 0 {
                return;
            }
            left -= 1;
            self.commands.absences.remove(&(at, id));
            if let Some(command) = self.commands.known.get_mut(&id) {
                command.look_at = None;
                self.settle_command(now, id);
            }
        }
        while let Some((at, id)) = self.commands.ends.first().copied().filter(|(at, _)| *at <= now) {
            while let Some(session) = self.commands.awaited.session_of(id) {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.commands.answered(id, session);
            }
            left = left.saturating_sub(1);
            self.commands.ends.remove(&(at, id));
            let Some(command) = self.commands.known.get_mut(&id) else {
                continue;
            };
            let who = command.holders(id);
            if command.over {
                self.commands.known.remove(&id);
                self.commands.remembered.give_back(who, 1);
                continue;
            }
            (command.over, command.data) = (true, Box::default());
            command.outcome.get_or_insert(Outcome::expired(command.members));
            self.commands.by_room.remove(&(command.room, command.number, id));
            self.commands.live.give_back(who, 1);
            self.commands.ends.insert((at + REMEMBER, id));
            self.answer_command(now, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::gateway;
    use crate::gateway::Joined;
    use crate::name::{RoomKey, RoomName};

    fn take(gateway: &mut Gateway, now: Micros, number: u64, left_ms: u32) {
        gateway.expire_commands(now);
        let user = number % 5_000;
        let id = CommandId { user, number };
        gateway.command(now, 2, id, (number % 1_000, 0), left_ms, &[1; 200]);
    }

    /// The members' logs belong to others: no member is here, so each is answered at once.
    #[test]
    fn a_hundred_thousand_commands_of_five_thousand_users_at_one_a_second_are_all_taken() {
        let mut gateway = gateway(0);
        for number in 0..100_000 {
            take(&mut gateway, number * 200, number, 5_000);
            assert_eq!(gateway.counters.commands_received, number + 1);
        }
        assert_eq!(gateway.counters.dropped_commands_full, 0);
    }

    #[test]
    fn what_is_remembered_is_known_when_it_comes_again_and_forgotten_in_the_end() {
        let mut gateway = gateway(0);
        let end = 1_000_000 + REMEMBER;
        for (now, received, duplicates) in [(0, 1, 0), (900_000, 1, 1), (end - 1, 1, 2), (end + REMEMBER, 2, 2)] {
            take(&mut gateway, now, 7, 1_000);
            let counters = &gateway.counters;
            assert_eq!(
                (counters.commands_received, counters.commands_duplicate),
                (received, duplicates)
            );
        }
    }

    #[test]
    fn what_a_gateway_may_have_to_tell_again_is_bounded_and_what_it_remembers_too() {
        let mut gateway = gateway(0);
        for number in 0..COMMANDS_MAX as u64 + 5 {
            take(&mut gateway, number, number, 60_000);
        }
        let received = gateway.counters.commands_received as usize;
        assert!((COMMANDS_MAX - 100..=COMMANDS_MAX).contains(&received), "{received}");
    }

    #[test]
    fn who_has_many_sessions_leaves_place_for_the_commands_of_others() {
        let mut gateway = gateway(0);
        let command = |gateway: &mut Gateway, user, room, number| {
            let before = gateway.counters.commands_received;
            gateway.command(0, 2, CommandId { user, number }, (room, 0), 60_000, b"go");
            gateway.counters.commands_received > before
        };
        let theirs = |number| command(&mut gateway, 1, number, number);
        let taken = (0..2 * COMMANDS_MAX as u64).map(theirs).filter(|taken| *taken).count();
        assert_eq!(taken, COMMANDS_MAX / 2);
        assert!(command(&mut gateway, 2, 1, 1));
        let to_one_room = (0..COMMANDS_MAX as u64).filter(|user| command(&mut gateway, 100 + user, 500_000, 1));
        assert_eq!(to_one_room.count(), COMMANDS_MAX / 4);
        assert!(command(&mut gateway, 3, 2, 1));
    }

    #[test]
    fn so_many_answers_are_waited_for_in_all_and_beyond_a_command_is_refused() {
        let mut gateway = gateway(0);
        let members = with_members(&mut gateway, 2_000).len();
        for number in 0..1_000 {
            let id = CommandId { user: number, number };
            gateway.command(0, 2, id, (7, 0), 60_000, b"go");
        }
        let awaited = gateway.commands.awaited.len();
        assert!(
            awaited <= AWAITED_MAX / 2 + members,
            "of one room no more than its share: {awaited}"
        );
        assert_eq!(gateway.counters.commands_received as usize, awaited / members);
        assert_eq!(
            gateway.counters.dropped_commands_full as usize,
            1_000 - awaited / members
        );
        while gateway.commands.deadline().is_some_and(|at| at <= 60_000_000) {
            gateway.expire_commands(60_000_000);
        }
        assert_eq!(gateway.commands.awaited.len(), 0);
        let id = CommandId { user: 1, number: 5_000 };
        gateway.command(60_000_000, 2, id, (7, 0), 60_000, b"go");
        assert_eq!(gateway.commands.awaited.len(), members);
    }

    #[test]
    fn a_session_that_is_over_is_waited_for_no_more_and_others_are_not_looked_at() {
        let mut gateway = gateway(0);
        with_members(&mut gateway, 100);
        for number in 0..10 {
            let id = CommandId { user: number, number };
            gateway.command(0, 2, id, (7, 0), 60_000, b"go");
        }
        let told = gateway.commands.awaited.visits;
        let slot = 5;
        let session = gateway.sessions.table.get(slot).expect("it is there").conn.id;
        gateway.commands_lost(1, session, &[]);
        assert_eq!(gateway.commands.awaited.visits - told, 10);
        assert_eq!(gateway.commands.awaited.len(), 990);
        for slot in 0..100 {
            let id = CommandId { user: 0, number: 0 };
            gateway.command_taken(2, slot, id, true);
        }
        let known = &gateway.commands.known[&CommandId { user: 0, number: 0 }];
        assert_eq!(known.outcome, None, "whose it was may come back");
        gateway.expire_commands(AWAY_GRACE + 1);
        let known = &gateway.commands.known[&CommandId { user: 0, number: 0 }];
        assert_eq!(known.outcome, Some(Outcome::of(99)));
        assert_eq!(
            gateway.commands.deadline(),
            Some(60_000_000),
            "of others there is nothing to see"
        );
    }

    #[test]
    fn who_left_the_room_before_the_session_ended_is_not_expected_back() {
        let mut gateway = gateway(0);
        with_members(&mut gateway, 1);
        for (number, left, outcome) in [(1, [(7, 0)], Some(Outcome::of(0))), (2, [(8, 0)], None)] {
            let id = CommandId { user: 0, number };
            gateway.command(0, 2, id, (7, 0), 60_000, b"go");
            let session = gateway.sessions.table.get(0).expect("it is there").conn.id;
            gateway.commands_lost(1, session, &left);
            assert_eq!(gateway.commands.known[&id].outcome, outcome);
        }
    }

    #[test]
    fn a_command_whose_members_went_one_by_one_is_looked_at_once_at_a_time() {
        let mut gateway = gateway(0);
        with_members(&mut gateway, 100);
        let id = CommandId { user: 0, number: 0 };
        gateway.command(0, 2, id, (7, 0), 60_000, b"go");
        for slot in 0..100 {
            let session = gateway.sessions.table.get(slot).expect("it is there").conn.id;
            gateway.commands_lost(u64::from(slot) * 10_000, session, &[]);
        }
        let last = 990_000;
        assert_eq!(gateway.commands.absences.len(), 1);
        gateway.expire_commands(last + AWAY_GRACE - 1);
        assert_eq!(gateway.commands.known[&id].outcome, None);
        assert!(gateway.commands.absences.len() <= 1);
        gateway.expire_commands(last + AWAY_GRACE);
        assert_eq!(gateway.commands.known[&id].outcome, Some(Outcome::of(0)));
        assert_eq!(gateway.commands.deadline(), Some(60_000_000));
    }

    /// A room with this many members, by their slots.
    fn with_members(gateway: &mut Gateway, members: u32) -> Vec<u32> {
        let name = RoomName::parse("sports:final").expect("a name");
        let key = RoomKey { id: 7, check: 0 };
        let at = gateway.open_room(0, key, &name, None).expect("place");
        (0..members)
            .map(|seat| {
                let slot = gateway.sessions.admit(seat, u64::from(seat));
                let peer = gateway.sessions.table.get_mut(slot).expect("it is there");
                let head = gateway.rooms.get(at).map_or(0, |room| room.ring.next());
                peer.data.data.joined.push(Joined {
                    room: at,
                    carrier: 0,
                    cursor: head,
                    seat,
                    joined_at: head,
                    head_due: false,
                    counted: None,
                    given_up: false,
                    filtered: false,
                });
                let room = gateway.rooms.get_mut(at).expect("the room");
                room.members.push(slot);
                slot
            })
            .collect()
    }

    #[test]
    fn an_ended_members_sessions_close_once_and_other_members_stay() {
        let mut gateway = gateway(0);
        for slot in with_members(&mut gateway, 5) {
            let peer = gateway.sessions.table.get_mut(slot).expect("it is there");
            peer.data.user = 40 + u64::from(slot % 2);
        }
        let open = |gateway: &Gateway| {
            let alive = |slot: &u32| {
                gateway
                    .sessions
                    .table
                    .get(*slot)
                    .is_some_and(|peer| peer.data.is_open())
            };
            (0..5).filter(alive).collect::<Vec<u32>>()
        };
        assert_eq!(open(&gateway), [0, 1, 2, 3, 4]);
        let id = CommandId { user: 1, number: 1 };
        gateway.end_member(0, 2, id, (7, 1), 5_000, 41);
        assert_eq!(open(&gateway), [0, 1, 2, 3, 4], "another room of the same number");
        let id = CommandId { user: 1, number: 2 };
        gateway.end_member(0, 2, id, (7, 0), 5_000, 41);
        assert_eq!(open(&gateway), [0, 2, 4]);
        assert_eq!(gateway.counters.members_ended, 2);
        gateway.cleanup(0);
        let back = gateway.sessions.admit(9, 9);
        gateway.sessions.table.get_mut(back).expect("it is there").data.user = 41;
        gateway.rooms.get_mut(0).expect("the room").members.push(back);
        gateway.end_member(1, 3, id, (7, 0), 5_000, 41);
        assert_eq!(gateway.counters.members_ended, 2, "a repeat ends no later session");
        assert_eq!(gateway.commands.known[&id].outcome, Some(Outcome::of(2)));
        gateway.expire_commands(5_000_000);
        gateway.expire_commands(5_000_000 + REMEMBER);
        assert!(gateway.commands.known.is_empty() && gateway.commands.by_room.is_empty());
    }

    #[test]
    fn a_command_that_nobody_answers_costs_nothing_until_its_time_is_over() {
        let mut gateway = gateway(0);
        with_members(&mut gateway, 500);
        for number in 0..500 {
            let id = CommandId { user: number, number };
            gateway.command(0, 2, id, (7, 0), 60_000, b"go");
        }
        let told = gateway.commands.awaited.visits;
        for turn in 0..50 {
            gateway.expire_commands(turn * 20_000);
        }
        assert_eq!(gateway.commands.awaited.visits, told);
        assert_eq!(gateway.commands.deadline(), Some(60_000_000));
    }
}
