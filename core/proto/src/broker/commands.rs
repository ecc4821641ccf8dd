//! Commands, and questions for a room's members, at the broker: which gateways are told, and what all of them have said.
//!
//! A command is known by who sent it, so another copy only asks again, and is answered as well. Every gateway that wants the room
//! is told, in each of its lives, until all have answered or time is over. A broker knows gateways and no members: these are
//! counted by them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Broker;
use crate::command::{left_ms, until, Ask, CommandId, Hop, Outcome, Page, Verdict, HOPS_MAX};
use crate::command::{COMMANDS_MAX, COPIES, FORGET_EVERY, GRACE, KNOWN_MAX, LOOK_EVERY, REMEMBER, RETRY};
use crate::hash::KeyedState;
use crate::machine::{soonest, Micros};
use crate::planted::{self, Bug};
use crate::wire::record::Record;
use crate::wire::Code;

/// What a gateway was told, and has said.
struct Told {
    epoch: u32,
    /// On the link that came up then.
    since: Micros,
    /// When it was told.
    at: Micros,
    said: Option<Said>,
    /// It had too much to do then, and told nobody.
    busy: Option<Micros>,
}

/// How many members a gateway has reached, or counts, and who they are if that was asked.
struct Said {
    members: u32,
    /// Its time was over before all of them had said that they have it.
    over: bool,
    page: Page,
    /// When it said so.
    at: Micros,
}

struct Command {
    room: u64,
    check: u64,
    until: Micros,
    ask: Ask<'static>,
    /// Who asks, the latest last: sessions of proxies, each of another one. At most [`COPIES`].
    askers: Vec<(u32, u64)>,
    gateways: BTreeMap<u32, Told>,
    /// Members that gateways have reached whose life is over.
    before: u32,
    /// Some gateway's members may have it, though that life of it, or its link, ended before it said so.
    doubtful: bool,
    outcome: Option<Outcome>,
}

impl Command {
    fn asked_by(&mut self, proxy: u32, session: u64) {
        self.askers
            .retain(|(known, _)| *known != proxy && !planted::is(Bug::LastAskerAnswered));
        if self.askers.len() >= COPIES {
            self.askers.remove(0);
        }
        self.askers.push((proxy, session));
    }

    /// Whether every gateway that was told was too busy to tell anybody.
    fn is_nobodys(&self) -> bool {
        let mut told = self.gateways.values();
        !self.doubtful && self.before == 0 && told.all(|told| told.busy.is_some())
    }

    fn said(&self) -> impl Iterator<Item = &Said> + Clone {
        self.gateways.values().filter_map(|told| told.said.as_ref())
    }

    fn members(&self) -> u32 {
        self.said()
            .map(|said| said.members)
            .fold(self.before, u32::saturating_add)
    }

    fn merged(&self) -> Option<Page> {
        if !matches!(self.ask, Ask::Count { .. }) {
            return None;
        }
        let mut page = Page::merged(self.said().map(|said| &said.page));
        let answered = self
            .gateways
            .iter()
            .filter_map(|(node, told)| Some((node, told.at, told.said.as_ref()?.at)));
        page.hops = answered.map(|(node, asked, at)| Hop::new(*node, asked, at)).collect();
        page.hops.sort_by_key(|hop| std::cmp::Reverse(hop.took_us));
        page.hops.truncate(HOPS_MAX - 1); // and us
        Some(page)
    }
}

/// What a proxy passes on.
pub(super) struct Asked<'a> {
    pub id: CommandId,
    pub session: u64,
    pub room: u64,
    pub check: u64,
    pub left_ms: u32,
    pub ask: Ask<'a>,
}

/// All commands that are not done, or have been done lately.
pub(super) struct Commands {
    known: HashMap<CommandId, Command, KeyedState>,
    /// Those that are not done, in an order of their own, not that of a table.
    open: BTreeSet<CommandId>,
    look_at: Option<Micros>,
    forget_at: Micros,
}

impl Commands {
    pub(super) fn new(hash: KeyedState) -> Self {
        Commands {
            known: HashMap::with_hasher(hash),
            open: BTreeSet::new(),
            look_at: None,
            forget_at: 0,
        }
    }

    pub(super) fn deadline(&self) -> Option<Micros> {
        self.look_at
    }

    fn are_full(&self) -> bool {
        self.open.len() >= COMMANDS_MAX || self.known.len() >= KNOWN_MAX
    }
}

impl Broker {
    /// A proxy passes a command on.
    pub(super) fn command(&mut self, now: Micros, proxy: u32, asked: Asked<'_>) {
        let id = asked.id;
        if let Some(known) = self.commands.known.get_mut(&id) {
            return match known.outcome {
                Some(outcome) => self.tell_outcome(now, (proxy, asked.session), id, outcome, None),
                None => known.asked_by(proxy, asked.session),
            };
        }
        let refused = match self.knows() && self.may_own(asked.room) {
            false => Some(Code::NotReady),
            true if self.commands.are_full() => Some(Code::Busy),
            true => None,
        };
        if let Some(code) = refused {
            let outcome = Outcome::refused(code);
            return self.tell_outcome(now, (proxy, asked.session), id, outcome, None);
        }
        self.counters.commands_received += 1;
        let command = Command {
            room: asked.room,
            check: asked.check,
            until: until(now, asked.left_ms),
            ask: asked.ask.keep(),
            askers: vec![(proxy, asked.session)],
            gateways: BTreeMap::new(),
            before: 0,
            doubtful: false,
            outcome: None,
        };
        self.commands.known.insert(id, command);
        self.commands.open.insert(id);
        self.look_after_command(now, id);
        soonest(&mut self.commands.look_at, Some(now + LOOK_EVERY));
    }

    /// A gateway says how many of its members it has reached: all, or those that said so in time; or that it is too busy.
    pub(super) fn command_handled(
        &mut self,
        now: Micros,
        (gateway, epoch): (u32, u32),
        id: CommandId,
        outcome: Outcome,
        page: Option<Page>,
    ) {
        let Some(told) = self
            .commands
            .known
            .get_mut(&id)
            .and_then(|command| command.gateways.get_mut(&gateway))
            .filter(|told| told.epoch == epoch && told.said.is_none())
        else {
            return;
        };
        if matches!(outcome.verdict, Verdict::Refused(_)) {
            told.busy = Some(now);
        } else {
            told.said = Some(Said {
                members: outcome.members,
                over: outcome.verdict == Verdict::Expired,
                page: page.unwrap_or_default(),
                at: now,
            });
        }
        self.look_after_command(now, id);
    }

    /// Tells whoever has not been told yet; ends the command where all have answered, or time is over.
    fn look_after_command(&mut self, now: Micros, id: CommandId) {
        let knows = self.knows();
        let (mut waits, mut busy) = (!knows, knows);
        let Some(command) = self.commands.known.get_mut(&id).filter(|known| known.outcome.is_none()) else {
            return;
        };
        let mut tell = Vec::new();
        let tells = matches!(command.ask, Ask::Tell(_));
        for gateway in self.interest.who_wants(command.room, command.check) {
            let life = self.interest.epoch_of(gateway);
            let link = self
                .links
                .to(gateway)
                .and_then(|slot| Some((slot, self.links.table.get(slot)?.data.peer.epoch)));
            let (Some(epoch), since) = (life, self.links.since(gateway)) else {
                continue;
            };
            let told = command.gateways.get(&gateway).filter(|told| told.epoch == epoch);
            if told.is_some_and(|told| told.said.is_some()) {
                continue;
            }
            waits = true;
            busy &= told.is_some_and(|told| told.busy.is_some());
            // On a new link again: what the one before had not delivered ended with it.
            let Some(((slot, linked), since)) = link.zip(since) else {
                continue;
            };
            let again = |told: &Told| told.since != since || told.busy.is_some_and(|at| now >= at + RETRY);
            if linked == epoch && told.is_none_or(again) {
                tell.push((
                    gateway,
                    slot,
                    Told {
                        epoch,
                        since,
                        at: now,
                        said: (tells && planted::is(Bug::ToldIsDelivered)).then(|| Said {
                            members: 1,
                            over: false,
                            page: Page::default(),
                            at: now,
                        }),
                        busy: None,
                    },
                ));
            }
        }
        if waits && busy && command.is_nobodys() {
            return self.end_command(now, id, Outcome::refused(Code::Busy));
        }
        let mut slots = Vec::new();
        for (gateway, slot, told) in tell {
            // Who was told was told; who was counted is gone with that life.
            if let (Some(earlier), Ask::Tell(_)) = (command.gateways.insert(gateway, told), &command.ask) {
                let said = earlier.said.map_or(0, |said| said.members);
                command.before = command.before.saturating_add(said);
                command.doubtful |= earlier.busy.is_none();
            }
            slots.push(slot);
        }
        let members = command.members();
        let over = command.said().any(|said| said.over);
        if !waits && !over {
            return self.end_command(now, id, Outcome::of(members));
        }
        if !waits || now >= command.until + 2 * GRACE {
            return self.end_command(now, id, Outcome::expired(members));
        }
        let record = Record::LinkCommand {
            command: id,
            session: 0,
            room: command.room,
            check: command.check,
            left_ms: left_ms(now, command.until),
            ask: command.ask.by_ref(),
        };
        let bytes = record.encode(<[u8]>::to_vec);
        self.counters.commands_sent += slots.len() as u64;
        slots.into_iter().for_each(|slot| {
            self.links.log(now, slot, &bytes);
        });
    }

    /// Says what became of a command to all who ask, and remembers it.
    fn end_command(&mut self, now: Micros, id: CommandId, outcome: Outcome) {
        self.commands.open.remove(&id);
        let Some(command) = self.commands.known.get_mut(&id) else {
            return;
        };
        let page = command.merged();
        command.outcome = Some(outcome);
        command.ask = Ask::default();
        command.gateways = BTreeMap::new();
        let askers = std::mem::take(&mut command.askers);
        if page.is_some() || outcome.is_put_off() {
            self.commands.known.remove(&id); // who asks again wants to know how it is then
        }
        for asker in askers {
            self.tell_outcome(now, asker, id, outcome, page.clone());
        }
    }

    fn tell_outcome(
        &mut self,
        now: Micros,
        (proxy, session): (u32, u64),
        command: CommandId,
        outcome: Outcome,
        page: Option<Page>,
    ) {
        let Some(slot) = self.links.to(proxy) else {
            return; // it, or another one, asks again
        };
        let done = Record::LinkCommandDone {
            command,
            session,
            outcome,
            page,
        };
        self.links.record(now, slot, &done);
    }

    /// Looks after what is not done, and forgets what is done for long.
    pub(super) fn look_after_commands(&mut self, now: Micros) {
        if self.commands.look_at.is_none_or(|at| now < at) {
            return;
        }
        if now >= self.commands.forget_at {
            let remembered = |command: &Command| command.outcome.is_none() || now < command.until + REMEMBER;
            self.commands.known.retain(|_, command| remembered(command));
            self.commands.forget_at = now + FORGET_EVERY;
        }
        let open: Vec<CommandId> = self.commands.open.iter().copied().collect();
        let again = if open.is_empty() { FORGET_EVERY } else { LOOK_EVERY };
        open.into_iter().for_each(|id| self.look_after_command(now, id));
        self.commands.look_at = (!self.commands.known.is_empty()).then_some(now + again);
    }
}
