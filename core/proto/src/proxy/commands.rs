//! Commands, and questions for a room's members, at the proxy: who sent them, which broker has them, and who is to hear what became
//! of them.

use std::collections::HashMap;

use super::Proxy;
use crate::command::{
    left_ms, until, Ask, CommandId, Hop, Outcome, Page, Verdict, COMMANDS_MAX, GRACE, LOOK_EVERY, RETRY,
};
use crate::hash::KeyedState;
use crate::machine::Micros;
use crate::name::{RoomKey, RoomName};
use crate::shares::{Holder, Shares};
use crate::wire::record::Record;
use crate::wire::Code;

/// A broker that has said nothing of a command is left for another one after this: it stands still, or is about to be found dead.
const NEXT_AFTER: Micros = 300_000;

/// One command on its way.
struct Pending {
    session: u64,
    room: RoomKey,
    until: Micros,
    ask: Ask<'static>,
    /// The broker that was told last, on a link that came up then, and when.
    told: Option<(u32, Micros, Micros)>,
    /// Another broker had it before, which may still say what became of it.
    others: bool,
    /// The broker that was not ready last: it is asked again where there is no other.
    unready: Option<u32>,
}

/// All of them.
pub(super) struct Commands {
    pending: HashMap<CommandId, Pending, KeyedState>,
    /// What there may be of them.
    places: Shares,
    look_at: Option<Micros>,
}

impl Commands {
    pub(super) fn new(hash: KeyedState) -> Self {
        Commands {
            pending: HashMap::with_hasher(hash),
            places: Shares::new(COMMANDS_MAX, hash),
            look_at: None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Micros> {
        self.look_at
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

/// Whose a command is.
fn holders(id: CommandId, room: &RoomKey) -> [Holder; 2] {
    [Holder::User(id.user), Holder::Room(room.id)]
}

impl Proxy {
    /// Takes a session's command, or says at once why not.
    pub(super) fn command(&mut self, now: Micros, slot: u32, number: u64, name: &[u8], time_ms: u32, ask: Ask<'_>) {
        let Some(peer) = self.sessions.table.get_mut(slot) else {
            return;
        };
        let (session, user) = (peer.conn.id, peer.data.user);
        let id = CommandId { user, number };
        if let Some(known) = self.commands.pending.get_mut(&id) {
            known.session = session;
            return;
        }
        let room = RoomName::from_bytes(name).map(|name| name.key(&self.name_key));
        let refused = match &room {
            Err(_) => Some(Code::BadRoomName),
            Ok(_) if !peer.data.data.commands.take(now, 1) => Some(Code::RateLimited),
            Ok(room) if !self.commands.places.allow(holders(id, room), 1) => Some(Code::Busy),
            Ok(_) => None,
        };
        let (Ok(room), None) = (room, refused) else {
            self.counters.commands_refused += 1;
            let outcome = Outcome::refused(refused.unwrap_or(Code::Unknown));
            return self.command_done(session, number, outcome, None);
        };
        self.counters.commands_received += 1;
        let pending = Pending {
            session,
            room,
            until: until(now, time_ms),
            ask: ask.keep(),
            told: None,
            others: false,
            unready: None,
        };
        self.commands.places.take(holders(id, &room), 1);
        self.commands.pending.insert(id, pending);
        self.commands.look_at.get_or_insert(now + LOOK_EVERY);
        self.pass_on(now, id);
    }

    /// Gives a command to a broker that has not had it, or has had it and is not what it was.
    fn pass_on(&mut self, now: Micros, id: CommandId) {
        let Some(pending) = self.commands.pending.get_mut(&id) else {
            return;
        };
        let links = &self.links;
        // Another one each time.
        let replicas = self.placement.own().replicas(pending.room.id).iter().copied();
        let reached = replicas.filter_map(|node| Some((node, links.since(node)?)));
        let fresh =
            reached.filter(|(node, since)| pending.told.is_none_or(|(told, of, _)| (told, of) != (*node, *since)));
        let mut fresh: Vec<u32> = fresh.map(|(node, _)| node).collect();
        if fresh.len() > 1 {
            fresh.retain(|node| pending.unready != Some(*node));
        }
        let chosen = self.health.choose(&mut self.node.dice, &fresh);
        let Some((node, slot, since)) = chosen.and_then(|node| Some((node, links.to(node)?, links.since(node)?)))
        else {
            return;
        };
        if let Some((silent, ..)) = pending.told.filter(|(.., at)| now >= *at + NEXT_AFTER) {
            self.health.asked(silent, false);
        }
        pending.others |= pending.told.is_some();
        pending.told = Some((node, since, now));
        self.counters.commands_forwarded += 1;
        let record = Record::LinkCommand {
            command: id,
            session: pending.session,
            room: pending.room.id,
            check: pending.room.check,
            left_ms: left_ms(now, pending.until),
            ask: pending.ask.by_ref(),
        };
        let bytes = record.encode(<[u8]>::to_vec);
        self.links.log(now, slot, &bytes);
    }

    /// A broker says what became of a command, or its time is over.
    pub(super) fn command_answered(
        &mut self,
        now: Micros,
        broker: Option<u32>,
        id: CommandId,
        outcome: Outcome,
        mut page: Option<Page>,
    ) {
        if outcome.verdict == Verdict::Refused(Code::NotReady) {
            if let Some(pending) = self.commands.pending.get_mut(&id) {
                (pending.told, pending.unready) = (None, broker); // tried again soon
            }
            return;
        }
        if outcome.is_put_off() && self.commands.pending.get(&id).is_some_and(|pending| pending.others) {
            return; // this one has not tried it, but another one may have: it is tried on
        }
        // Also one that comes late, or by who was asked first, is an answer.
        if let Some(node) = broker.filter(|_| outcome.verdict != Verdict::Expired) {
            self.health.asked(node, true);
        }
        if let Some(pending) = self.commands.pending.remove(&id) {
            self.commands.places.give_back(holders(id, &pending.room), 1);
            let told = pending.told.filter(|(node, ..)| broker == Some(*node));
            if let Some(page) = &mut page {
                match told {
                    Some((node, _, at)) => page.hops.insert(0, Hop::new(node, at, now)),
                    None => page.hops.clear(), // it was asked before the last one, who knows when
                }
            }
            self.command_done(pending.session, id.number, outcome, page);
        }
    }

    /// Tells a session what became of its command.
    fn command_done(&mut self, session: u64, number: u64, outcome: Outcome, page: Option<Page>) {
        let Some(slot) = self.sessions.table.find(session) else {
            return; // who comes back asks again
        };
        let retry_ms = match outcome.is_put_off() {
            true => (RETRY / 1_000) as u32,
            false => 0,
        };
        let done = Record::CommandDone {
            number,
            outcome,
            retry_ms,
            page,
        };
        self.sessions.tell(slot, &done);
    }

    /// Looks after what is not done: another broker, or the end.
    pub(super) fn look_after_commands(&mut self, now: Micros) {
        if self.commands.look_at.is_none_or(|at| now < at) {
            return;
        }
        let (mut late, mut over) = (Vec::new(), Vec::new());
        for (id, pending) in &self.commands.pending {
            let on = |(node, since, _)| self.links.since(node) == Some(since);
            let waits = pending.told.is_some_and(|told| on(told) && now < told.2 + NEXT_AFTER);
            match now >= pending.until + 3 * GRACE {
                true => over.push(*id),
                false if !waits => late.push(*id),
                false => {}
            }
        }
        // In an order of their own, not that of a table.
        late.sort_unstable();
        late.into_iter().for_each(|id| self.pass_on(now, id));
        over.sort_unstable();
        for id in over {
            self.command_answered(now, None, id, Outcome::expired(0), None);
        }
        self.commands.look_at = (!self.commands.is_idle()).then_some(now + LOOK_EVERY);
    }
}
