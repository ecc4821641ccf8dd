//! Commands and member queries at the proxy: their senders, the broker that has each, and the receivers of the
//! outcome.

use std::collections::{BTreeSet, HashMap};

use crate::layers::RoomLayers;

use muster_transport::{Code, Encode, KeyedState, Micros};

use super::Proxy;
use crate::command::{
    left_ms, until, Ask, CommandId, Hop, Outcome, Page, Verdict, COMMANDS_MAX, GRACE, LOOK_EVERY, RETRY,
};
use crate::name::{RoomKey, RoomName};
use crate::rights::Rights;
use crate::shares::{Holder, Shares};
use crate::wire::record::Record;

/// If a broker has not reported on a command for this long, another one gets it: the first stands still, or is about
/// to be found dead.
const NEXT_AFTER: Micros = 300_000;

/// A broker that has a command.
struct Attempt {
    node: u32,
    /// The link that the command was sent on, by the time that link came up.
    since: Micros,
    at: Micros,
    /// It counts as silent.
    silent: bool,
}

/// One open command.
struct Pending {
    session: u64,
    room: RoomKey,
    until: Micros,
    ask: Ask<'static>,
    /// The brokers that got it, latest last. None gets it twice on one link.
    told: Vec<Attempt>,
    /// An earlier broker may still report the outcome.
    others: bool,
    /// When it is reviewed next.
    due: Micros,
    /// The broker that was last not ready: it is asked again if there is no other.
    unready: Option<u32>,
}

impl Pending {
    fn has(&self, node: u32, since: Micros) -> bool {
        self.told.iter().any(|told| (told.node, told.since) == (node, since))
    }
}

/// All open commands.
pub(super) struct Commands {
    pending: HashMap<CommandId, Pending, KeyedState>,
    /// The bound on their number.
    places: Shares,
    /// When each is reviewed next.
    due: BTreeSet<(Micros, CommandId)>,
    #[cfg(test)]
    visits: usize,
}

impl Commands {
    pub(super) fn new(hash: KeyedState) -> Self {
        Commands {
            pending: HashMap::with_hasher(hash),
            places: Shares::new(COMMANDS_MAX, hash),
            due: BTreeSet::new(),
            #[cfg(test)]
            visits: 0,
        }
    }

    pub(super) fn deadline(&self) -> Option<Micros> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Schedules the next review of a command; at the latest when its time is over.
    fn plan(&mut self, id: CommandId, at: Micros) {
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        self.due.remove(&(pending.due, id));
        pending.due = at.min(pending.until + 3 * GRACE);
        self.due.insert((pending.due, id));
    }

    fn remove(&mut self, id: CommandId) -> Option<Pending> {
        let pending = self.pending.remove(&id)?;
        self.due.remove(&(pending.due, id));
        self.places.give_back(holders(id, &pending.room), 1);
        Some(pending)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

/// The holders that a command is charged to.
fn holders(id: CommandId, room: &RoomKey) -> [Holder; 2] {
    [Holder::User(id.user), Holder::Room(room.id)]
}

impl Proxy {
    /// Takes a session's command, or refuses it at once with a reason.
    pub(super) fn command(&mut self, now: Micros, slot: u32, number: u64, name: &[u8], time_ms: u32, ask: Ask<'_>) {
        let Some(peer) = self.sessions.table.get(slot) else {
            return;
        };
        let (session, user) = (peer.conn.id, peer.data.user);
        let id = CommandId { user, number };
        if let Some(known) = self.commands.pending.get_mut(&id) {
            known.session = session;
            return;
        }
        let needed = match ask {
            Ask::Tell(_) => Rights::COMMAND,
            Ask::Count { .. } => Rights::MEMBERS,
        };
        let name = RoomName::from_bytes(name).map_err(|_| Code::BadRoomName);
        let room = name.and_then(|name| match peer.data.data.grant.of(&name).has(needed) {
            true => Ok(name.key(&self.name_key)),
            false => Err(Code::NotAllowed),
        });
        let until = until(now, time_ms);
        let taken = match room {
            Err(code) => Err((code, 0)),
            Ok(room) => match self.limits.take(now, id, room.id, session, until, &ask) {
                Ok(()) if !self.commands.places.allow(holders(id, &room), 1) => Err((Code::Busy, RETRY)),
                taken => taken.map(|()| room),
            },
        };
        let room = match taken {
            Ok(room) => room,
            Err((code, retry)) => {
                self.counters.commands_refused += 1;
                return self.command_done(session, number, Outcome::refused(code), retry, None);
            }
        };
        self.counters.commands_received += 1;
        let pending = Pending {
            session,
            room,
            until,
            ask: ask.keep(),
            told: Vec::new(),
            others: false,
            due: now,
            unready: None,
        };
        self.commands.places.take(holders(id, &room), 1);
        self.commands.pending.insert(id, pending);
        self.pass_on(now, id);
    }

    /// Sends a command to a broker that has not had it, or has restarted since.
    fn pass_on(&mut self, now: Micros, id: CommandId) {
        let Some(pending) = self.commands.pending.get_mut(&id) else {
            return;
        };
        let links = &self.links;
        // Another broker each time, and none that has it.
        let replicas = self.placement.own().replicas(pending.room.id).iter().copied();
        let reached = replicas.filter_map(|node| Some((node, links.since(node)?)));
        let fresh = reached.filter(|(node, since)| !pending.has(*node, *since));
        let mut fresh: Vec<u32> = fresh.map(|(node, _)| node).collect();
        if fresh.len() > 1 {
            fresh.retain(|node| pending.unready != Some(*node));
        }
        let chosen = self.health.choose(&mut self.node.dice, &fresh);
        let Some((node, slot, since)) = chosen.and_then(|node| Some((node, links.to(node)?, links.since(node)?)))
        else {
            // The set of brokers may change soon.
            let again = if pending.told.is_empty() {
                LOOK_EVERY
            } else {
                NEXT_AFTER
            };
            self.commands.plan(id, now + again);
            return;
        };
        if let Some(told) = pending.told.last_mut() {
            pending.others = true;
            if now >= told.at + NEXT_AFTER && !std::mem::replace(&mut told.silent, true) {
                self.health.asked(told.node, false);
            }
        }
        pending.told.retain(|told| links.since(told.node) == Some(told.since));
        pending.told.push(Attempt {
            node,
            since,
            at: now,
            silent: false,
        });
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
        self.commands.plan(id, now + NEXT_AFTER);
    }

    /// A broker reports the outcome of a command, or its time is over.
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
                // It may have sent it to gateways before its share of the rooms changed.
                pending.others |= !pending.told.is_empty();
                pending.told.retain(|told| broker != Some(told.node));
                pending.unready = broker;
                if pending.told.is_empty() {
                    self.commands.plan(id, now + LOOK_EVERY);
                }
            }
            return;
        }
        if outcome.is_put_off() && self.commands.pending.get(&id).is_some_and(|pending| pending.others) {
            return self.put_off(now, broker, id); // this one has not tried it, but another one may have: continues
        }
        // A late reply counts too, and one of an earlier broker.
        if let Some(node) = broker.filter(|_| outcome.verdict != Verdict::Expired) {
            self.health.asked(node, true);
        }
        if let Some(pending) = self.commands.remove(id) {
            let told = pending.told.last().filter(|told| broker == Some(told.node));
            if let Some(page) = &mut page {
                match told {
                    Some(told) => page.hops.insert(0, Hop::new(told.node, told.at, now)),
                    None => page.hops.clear(), // of an earlier broker, asked at an unknown time
                }
            }
            self.command_done(pending.session, id.number, outcome, RETRY, page);
        }
    }

    /// A broker has no space now: it is asked again when it may have, if there is no other.
    fn put_off(&mut self, now: Micros, broker: Option<u32>, id: CommandId) {
        let Some(pending) = self.commands.pending.get_mut(&id) else {
            return;
        };
        let latest = pending.told.last().is_some_and(|told| broker == Some(told.node));
        pending.told.retain(|told| broker != Some(told.node));
        if !latest {
            return;
        }
        pending.unready = broker;
        let replicas = self.placement.own().replicas(pending.room.id);
        let links = &self.links;
        let fresh = |node: u32| links.since(node).is_some_and(|since| !pending.has(node, since));
        let other = |node: &u32| broker != Some(*node) && fresh(*node);
        if !replicas.iter().any(other) {
            self.commands.plan(id, now + RETRY);
        }
    }

    /// Sends a session the outcome of its command and, for a temporary refusal, the wait before another try.
    fn command_done(&mut self, session: u64, number: u64, outcome: Outcome, retry: Micros, page: Option<Page>) {
        let Some(slot) = self.sessions.table.find(session) else {
            return; // a sender that returns asks again
        };
        let retry_ms = match outcome.is_put_off() {
            true => u32::try_from(retry / 1_000 + 1).unwrap_or(u32::MAX), // clocks are not exact
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

    /// The link to a broker came up or was lost: commands sent on a former link soon go to another broker.
    pub(super) fn command_links_changed(&mut self, now: Micros) {
        let waits = |pending: &Pending| {
            let on = |told: &Attempt| self.links.since(told.node) == Some(told.since);
            let told = pending.told.last();
            told.is_some_and(|told| on(told) && now < told.at + NEXT_AFTER)
        };
        let pending = self.commands.pending.iter();
        let late: Vec<CommandId> = pending.filter(|(_, one)| !waits(one)).map(|(id, _)| *id).collect();
        for id in late {
            self.commands.plan(id, now);
        }
    }

    /// Handles due commands: sends them to another broker, or ends them.
    pub(super) fn look_after_commands(&mut self, now: Micros) {
        while let Some((_, id)) = self.commands.due.first().copied().filter(|(at, _)| *at <= now) {
            #[cfg(test)]
            {
                self.commands.visits += 1;
            }
            let until = self.commands.pending.get(&id).map_or(0, |pending| pending.until);
            match now >= until + 3 * GRACE {
                true => self.command_answered(now, None, id, Outcome::expired(0), None),
                false => self.pass_on(now, id),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::proxy;
    use crate::rights::Grant;

    /// Ten thousand commands that wait for members, one for each user.
    #[test]
    fn a_command_that_waits_costs_nothing_before_its_time() {
        let mut proxy = proxy();
        for user in 0..10_000 {
            let slot = proxy.sessions.admit(user, u64::from(user));
            let peer = proxy.sessions.table.get_mut(slot).expect("it is there");
            peer.data.data.grant = Grant::everywhere(Rights::COMMAND);
            let name = format!("sports:{user}");
            proxy.command(0, slot, 1, name.as_bytes(), 60_000, Ask::tell(b"go"));
        }
        assert_eq!(proxy.counters.commands_received, 10_000);
        let ids: Vec<CommandId> = proxy.commands.pending.keys().copied().collect();
        for id in ids {
            proxy.commands.plan(id, 10_000_000);
        }
        let mut now = 0;
        while now < 1_000_000 {
            now += 1_000;
            proxy.look_after_commands(now);
        }
        assert_eq!(
            (proxy.commands.visits, proxy.commands.deadline()),
            (0, Some(10_000_000))
        );
    }
}
