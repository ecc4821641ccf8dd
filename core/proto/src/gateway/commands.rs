//! Commands at the gateway: each goes once to every member who is here, and the broker hears how many have it. And how many those
//! are, and who, where that is asked.
//!
//! A copy by another broker only asks again. Who comes back with positions while a command lives is told it too: its former
//! session may have ended before it was.

use std::collections::{BTreeSet, HashMap};

use super::Gateway;
use crate::address::Bucket;
use crate::command::{until, CommandId, Outcome, Page, COMMANDS_MAX, FORGET_EVERY, KNOWN_MAX, LOOK_EVERY, REMEMBER};
use crate::hash::KeyedState;
use crate::machine::{soonest, Micros};
use crate::wire::record::Record;
use crate::wire::Code;

/// Members that are looked at in a second to name them, and at once: about 10 ms of each second, and a room of a million.
const LOOKS_A_SECOND: u32 = 100_000;
const LOOKS_FIRST: u32 = 1_000_000;

struct Command {
    room: u64,
    until: Micros,
    data: Box<[u8]>,
    /// Brokers that asked and were not answered.
    brokers: Vec<u32>,
    /// Sessions that have not answered, and whether they were told: a log that is nearly full is left to answers.
    waiting: HashMap<u64, bool, KeyedState>,
    members: u32,
    outcome: Option<Outcome>,
    /// Its time is over: it is told to nobody any more, and only remembered.
    over: bool,
}

impl Command {
    /// Its time is over. `live`: how many are not.
    fn end(&mut self, live: &mut usize) {
        if !self.over {
            self.over = true;
            *live -= 1;
            self.waiting.clear();
            self.data = Box::default();
        }
    }
}

/// All commands that live, or are done.
pub(super) struct Commands {
    known: HashMap<CommandId, Command, KeyedState>,
    by_room: HashMap<u64, Vec<CommandId>, KeyedState>,
    /// Those that wait for members, in an order of their own, not that of a table.
    open: BTreeSet<CommandId>,
    /// How many are not over.
    live: usize,
    hash: KeyedState,
    looks: Bucket,
    look_at: Option<Micros>,
    forget_at: Micros,
}

impl Commands {
    pub(super) fn new(hash: KeyedState) -> Self {
        Commands {
            known: HashMap::with_hasher(hash),
            by_room: HashMap::with_hasher(hash),
            open: BTreeSet::new(),
            live: 0,
            hash,
            looks: Bucket::new(LOOKS_A_SECOND, LOOKS_FIRST),
            look_at: None,
            forget_at: 0,
        }
    }

    pub(super) fn deadline(&self) -> Option<Micros> {
        self.look_at
    }

    fn are_full(&self) -> bool {
        self.live >= COMMANDS_MAX || self.known.len() >= KNOWN_MAX
    }

    /// Ends what is over and waits for nobody; forgets what ended long ago.
    fn forget(&mut self, now: Micros) {
        let Commands {
            known, by_room, live, ..
        } = self;
        known.retain(|id, command| {
            if now >= command.until && command.waiting.is_empty() {
                command.end(live);
            }
            let kept = !command.over || now < command.until + REMEMBER;
            if !kept {
                if let Some(room) = by_room.get_mut(&command.room) {
                    room.retain(|other| other != id);
                    if room.is_empty() {
                        by_room.remove(&command.room);
                    }
                }
            }
            kept
        });
    }
}

impl Gateway {
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
        if self.commands.are_full() {
            self.counters.dropped_commands_full += 1;
            return self.tell_outcome(now, broker, id, Outcome::refused(Code::Busy), None);
        }
        self.counters.commands_received += 1;
        let sessions = self
            .members_of(room)
            .iter()
            .filter_map(|slot| Some((self.sessions.table.get(*slot)?.conn.id, false)));
        let mut waiting = HashMap::with_hasher(self.commands.hash);
        waiting.extend(sessions);
        let command = Command {
            room: room.0,
            until: until(now, left_ms),
            data: data.into(),
            brokers: vec![broker],
            waiting,
            members: 0,
            outcome: None,
            over: false,
        };
        self.commands.known.insert(id, command);
        self.commands.live += 1;
        self.commands.by_room.entry(room.0).or_default().push(id);
        soonest(&mut self.commands.look_at, Some(now + LOOK_EVERY));
        self.look_after_command(now, id);
    }

    fn members_of(&self, (id, check): (u64, u64)) -> &[u32] {
        let at = self.by_id.get(&id).copied();
        let known = at.and_then(|at| self.rooms[at as usize].as_deref());
        known
            .filter(|known| known.check == check)
            .map_or(&[][..], |known| &known.members)
    }

    /// A broker asks how many members there are here and, from a user on, who. Nothing is remembered of it.
    pub(super) fn count(&mut self, now: Micros, broker: u32, id: CommandId, room: (u64, u64), from: Option<u64>) {
        let members = self.members_of(room);
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let page = match from {
            None => Page::default(),
            Some(from) if self.commands.looks.take(now, count) => {
                let table = &self.sessions.table;
                let user = |slot: &u32| table.get(*slot).map(|peer| peer.data.user);
                let users = self.members_of(room).iter().filter_map(user);
                Page::of(users.filter(|user| *user >= from))
            }
            // Too much is asked: how many, but not who.
            Some(_) => Page {
                more: true,
                ..Page::default()
            },
        };
        self.counters.counts_answered += 1;
        self.tell_outcome(now, broker, id, Outcome::of(count), Some(page));
    }

    /// A member has a command, or says that it has not.
    pub(super) fn command_taken(&mut self, now: Micros, slot: u32, id: CommandId, taken: bool) {
        let session = self.sessions.table.get(slot).map(|peer| peer.conn.id);
        let Some((command, session)) = self.commands.known.get_mut(&id).zip(session) else {
            return;
        };
        if command.waiting.remove(&session).is_none() {
            return;
        }
        command.members += u32::from(taken);
        self.counters.commands_delivered += u64::from(taken);
        if command.waiting.is_empty() {
            self.look_after_command(now, id);
        }
    }

    /// A session came back to a room: it is told what lives.
    pub(super) fn tell_commands(&mut self, now: Micros, slot: u32, room: u64) {
        let session = self.sessions.table.get(slot).map(|peer| peer.conn.id);
        let (Some(ids), Some(session)) = (self.commands.by_room.get(&room), session) else {
            return;
        };
        for id in ids.clone() {
            let Some(command) = self.commands.known.get_mut(&id).filter(|command| now < command.until) else {
                continue;
            };
            command.waiting.entry(session).or_insert(false);
            self.look_after_command(now, id);
        }
    }

    /// Tells whoever has not been told yet; answers where all have answered, or time is over.
    fn look_after_command(&mut self, now: Micros, id: CommandId) {
        let Some(command) = self.commands.known.get_mut(&id) else {
            return;
        };
        let table = &mut self.sessions.table;
        let at = self.by_id.get(&command.room).copied();
        let mut told = Vec::new();
        command.waiting.retain(|session, was_told| {
            // Who is gone answers nothing more.
            let Some((slot, peer)) = table.find(*session).and_then(|slot| Some((slot, table.get_mut(slot)?))) else {
                return false;
            };
            if *was_told {
                return true;
            }
            let Some(handle) = at.filter(|at| peer.data.data.joined.iter().any(|joined| joined.room == *at)) else {
                return false;
            };
            if !peer.conn.log.is_crowded() {
                let record = Record::CommandTold {
                    handle,
                    command: id,
                    data: &command.data,
                };
                *was_told = peer.conn.record(&record).is_some();
                told.push(slot);
            }
            true
        });
        // The order in which they leave is that of the table of sessions, whatever the map's.
        told.sort_unstable();
        self.counters.commands_sent += told.len() as u64;
        told.into_iter().for_each(|slot| table.mark(slot));
        let over = now >= command.until;
        if command.outcome.is_none() && (command.waiting.is_empty() || over) {
            command.outcome = Some(match command.waiting.is_empty() {
                true => Outcome::of(command.members),
                false => Outcome::expired(command.members),
            });
            self.answer_command(now, id);
        }
        let Commands { known, open, live, .. } = &mut self.commands;
        let Some(command) = known.get_mut(&id) else {
            return;
        };
        if over {
            command.end(live);
        }
        match command.waiting.is_empty() {
            true => open.remove(&id),
            false => open.insert(id),
        };
    }

    /// Says to the brokers that asked what became of a command, if that is known.
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

    /// Looks after what lives, and forgets what ended long ago.
    pub(super) fn look_after_commands(&mut self, now: Micros) {
        if self.commands.look_at.is_none_or(|at| now < at) {
            return;
        }
        if now >= self.commands.forget_at {
            self.commands.forget(now);
            self.commands.forget_at = now + FORGET_EVERY;
        }
        let open: Vec<CommandId> = self.commands.open.iter().copied().collect();
        let again = if open.is_empty() { FORGET_EVERY } else { LOOK_EVERY };
        open.into_iter().for_each(|id| self.look_after_command(now, id));
        self.commands.look_at = (!self.commands.known.is_empty()).then_some(now + again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{cluster, me, Zeros};
    use crate::gateway::GatewayConfig;
    use crate::handshake::ServerKey;
    use crate::wire::Role;

    fn gateway() -> Gateway {
        let config = GatewayConfig {
            me: me(Role::Gateway),
            payload: 1_200,
            arena_bytes: 0,
            keepalive_ms: 1_000,
            idle_ms: 4_000,
            name_key: [1; 16],
            history_max: 0,
            membership_again_ms: 0,
            paced: Vec::new(),
            bundle: true,
            server_key: ServerKey::from_private([2; 32]),
            cluster: cluster(),
            reset_secret: [1; 32],
        };
        Gateway::new(config, 1, Box::new(Zeros))
    }

    fn take(gateway: &mut Gateway, now: Micros, number: u64, left_ms: u32) {
        gateway.look_after_commands(now);
        gateway.command(
            now,
            2,
            CommandId { user: 1, number },
            (number % 1_000, 0),
            left_ms,
            &[1; 200],
        );
    }

    /// The members' logs are others' matter: nobody is here, so each is answered at once.
    #[test]
    fn a_hundred_thousand_commands_of_five_thousand_users_at_one_a_second_are_all_taken() {
        let mut gateway = gateway();
        for number in 0..100_000 {
            take(&mut gateway, number * 200, number, 5_000);
            assert_eq!(gateway.counters.commands_received, number + 1);
        }
        assert_eq!(gateway.counters.dropped_commands_full, 0);
    }

    #[test]
    fn what_is_remembered_is_known_when_it_comes_again_and_forgotten_in_the_end() {
        let mut gateway = gateway();
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
        let mut gateway = gateway();
        for number in 0..COMMANDS_MAX as u64 + 5 {
            take(&mut gateway, number, number, 60_000);
        }
        assert_eq!(gateway.counters.dropped_commands_full, 5);
    }
}
