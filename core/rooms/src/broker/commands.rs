//! Commands and member queries at the broker: which gateways get them, and the gateways' replies.
//!
//! Sender and number identify a command, so another copy is a repeat, which is answered too. Every gateway that wants
//! the room gets the command, in each of its lives, until all have replied or the time is over. A broker knows
//! gateways and no members: gateways count these. An event of one gateway, or of its interest in one room, causes a
//! review of that gateway alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_transport::{soonest, Code, Encode, KeyedState, Micros};

use super::Broker;
use crate::command::{
    left_ms, until, Ask, CommandId, Hop, Outcome, Page, Verdict, AWAITED_MAX, AWAY_GRACE, COMMANDS_MAX, COPIES, GRACE,
    HOPS_MAX, KNOWN_MAX, LOOK_EVERY, REMEMBER, RETRY,
};
use crate::shares::{Holder, Shares};
use crate::wire::record::Record;

/// A gateway's state in a command: when it was sent, and the reply.
struct GatewayState {
    epoch: u32,
    /// The link that it was sent on, by the time that link came up.
    since: Micros,
    /// When it was sent.
    at: Micros,
    said: Option<GatewayAnswer>,
    /// When the gateway replied that it was too busy, and delivered to no member.
    busy: Option<Micros>,
}

/// How many members a gateway reached or counted, and their users if the query asks for them.
struct GatewayAnswer {
    members: u32,
    /// The time was over before all members had confirmed it.
    over: bool,
    page: Page,
    /// When the reply came.
    at: Micros,
}

struct Awaited {
    /// The life in which it wanted the room, or got the command.
    life: u32,
    /// Since when another life of it is known that does not want the room.
    over_since: Option<Micros>,
}

struct Command {
    room: u64,
    check: u64,
    until: Micros,
    ask: Ask<'static>,
    /// The askers, latest last: sessions, each at another proxy. At most [`COPIES`].
    askers: Vec<(u32, u64)>,
    gateways: BTreeMap<u32, GatewayState>,
    /// Gateways that want the room, or did, and have not replied.
    awaited: BTreeMap<u32, Awaited>,
    /// How many gateways wanted the room when the command came.
    wanted_by: usize,
    /// Members reached by gateways in lives that are over.
    before: u32,
    /// Some gateway's members may have received it, though that life of it, or its link, ended before it replied.
    doubtful: bool,
    /// A gateway that may have members was not waited for, because it is gone.
    passed_over: bool,
    outcome: Option<Outcome>,
}

impl Command {
    fn holders(&self, id: CommandId) -> [Holder; 2] {
        [Holder::User(id.user), Holder::Room(self.room)]
    }

    /// When it ends at the latest; once ended, when it is forgotten.
    fn ends_at(&self) -> Micros {
        match self.outcome {
            None => self.until + 2 * GRACE,
            Some(_) => self.until + REMEMBER,
        }
    }

    /// Whether gateways still get it: until it is done; or, if a gateway was passed over, for all of its time, for
    /// members that return.
    fn is_told(&self, now: Micros) -> bool {
        self.outcome.is_none() || self.passed_over && now < self.until
    }

    fn asked_by(&mut self, proxy: u32, session: u64) {
        self.askers.retain(|(known, _)| *known != proxy);
        if self.askers.len() >= COPIES {
            self.askers.remove(0);
        }
        self.askers.push((proxy, session));
    }

    /// Whether every gateway that got it, and each that is waited for, was too busy to deliver it.
    fn is_nobodys(&self) -> bool {
        let busy = |told: &GatewayState| told.busy.is_some();
        let mut awaited = self.awaited.keys().map(|gateway| self.gateways.get(gateway));
        !self.doubtful
            && self.before == 0
            && awaited.all(|told| told.is_some_and(busy))
            && self.gateways.values().all(busy)
    }

    fn said(&self) -> impl Iterator<Item = &GatewayAnswer> + Clone {
        self.gateways.values().filter_map(|told| told.said.as_ref())
    }

    fn members(&self) -> u32 {
        self.said()
            .map(|said| said.members)
            .fold(self.before, u32::saturating_add)
    }

    fn merged(&self) -> Option<Page> {
        if self.ask.acts() {
            return None;
        }
        let mut page = Page::merged(self.said().map(|said| &said.page));
        let answered = self
            .gateways
            .iter()
            .filter_map(|(node, told)| Some((node, told.at, told.said.as_ref()?.at)));
        page.hops = answered.map(|(node, asked, at)| Hop::new(*node, asked, at)).collect();
        page.hops.sort_by_key(|hop| std::cmp::Reverse(hop.took_us));
        page.hops.truncate(HOPS_MAX - 1); // leaves space for our own hop
        Some(page)
    }
}

/// A command as a proxy forwards it.
pub(super) struct Request<'a> {
    pub id: CommandId,
    pub session: u64,
    pub room: u64,
    pub check: u64,
    pub left_ms: u32,
    pub ask: Ask<'a>,
}

/// All commands that are open, or ended recently.
pub(super) struct Commands {
    known: HashMap<CommandId, Command, KeyedState>,
    /// Open commands by room, and ended ones that gateways may still get.
    open: BTreeSet<(u64, CommandId)>,
    /// When each command ends at the latest, or is forgotten.
    ends: BTreeSet<(Micros, CommandId)>,
    /// When a command is reviewed again for one gateway, which was too busy or no longer wants the room.
    again: BTreeSet<(Micros, CommandId, u32)>,
    /// When all open commands are reviewed: interest was unknown, or the broker's share of rooms changed.
    all_at: Option<Micros>,
    /// Bounds on open commands, on known ones, and on gateways' replies to them.
    undone: Shares,
    remembered: Shares,
    answers: Shares,
}

impl Commands {
    pub(super) fn new(hash: KeyedState) -> Self {
        Commands {
            known: HashMap::with_hasher(hash),
            open: BTreeSet::new(),
            ends: BTreeSet::new(),
            again: BTreeSet::new(),
            all_at: None,
            undone: Shares::new(COMMANDS_MAX, hash),
            remembered: Shares::new(KNOWN_MAX, hash),
            answers: Shares::new(AWAITED_MAX, hash),
        }
    }

    pub(super) fn deadline(&self) -> Option<Micros> {
        let ends = self.ends.first().map(|(at, _)| *at);
        let again = self.again.first().map(|(at, ..)| *at);
        [ends, again, self.all_at].into_iter().flatten().min()
    }

    /// Whether there is space for a command to this many gateways.
    fn have_place(&self, who: [Holder; 2], gateways: usize) -> bool {
        self.undone.allow(who, 1) && self.remembered.allow(who, 1) && self.answers.allow(who, gateways)
    }

    fn add(&mut self, id: CommandId, command: Command) {
        let who = command.holders(id);
        self.undone.take(who, 1);
        self.remembered.take(who, 1);
        self.answers.take(who, command.wanted_by);
        self.open.insert((command.room, id));
        self.ends.insert((command.ends_at(), id));
        self.known.insert(id, command);
    }

    /// Commands to a room that gateways may get.
    fn open_in(&self, room: u64) -> Vec<CommandId> {
        let open = self.open.range((room, CommandId::FIRST)..=(room, CommandId::LAST));
        open.map(|(_, id)| *id).collect()
    }

    /// Commands to any room.
    fn all_open(&self) -> Vec<CommandId> {
        self.open.iter().map(|(_, id)| *id).collect()
    }
}

impl Broker {
    /// Takes a command from a proxy.
    pub(super) fn command(&mut self, now: Micros, proxy: u32, asked: Request<'_>) {
        let id = asked.id;
        if let Some(known) = self.commands.known.get_mut(&id) {
            return match known.outcome {
                Some(outcome) => self.tell_outcome(now, (proxy, asked.session), id, outcome, None),
                None => known.asked_by(proxy, asked.session),
            };
        }
        let gateways: Vec<u32> = self.interest.who_wants(asked.room, asked.check).collect();
        let command = Command {
            room: asked.room,
            check: asked.check,
            until: until(now, asked.left_ms),
            ask: asked.ask.keep(),
            askers: vec![(proxy, asked.session)],
            gateways: BTreeMap::new(),
            awaited: BTreeMap::new(),
            wanted_by: gateways.len(),
            before: 0,
            doubtful: false,
            passed_over: false,
            outcome: None,
        };
        let refused = match self.reports.are_known() && self.has_in_scope(asked.room) {
            false => Some(Code::NotReady),
            true if !self.commands.have_place(command.holders(id), gateways.len()) => Some(Code::Busy),
            true => None,
        };
        if let Some(code) = refused {
            let outcome = Outcome::refused(code);
            return self.tell_outcome(now, (proxy, asked.session), id, outcome, None);
        }
        self.counters.commands_received += 1;
        self.commands.add(id, command);
        for gateway in gateways {
            self.review_command(now, id, gateway);
        }
        self.settle_command(now, id);
    }

    /// Takes a gateway's reply: how many members it has reached (all, or those that confirmed in time), or that it is
    /// too busy.
    pub(super) fn command_handled(
        &mut self,
        now: Micros,
        (gateway, epoch): (u32, u32),
        id: CommandId,
        outcome: Outcome,
        page: Option<Page>,
    ) {
        let Some(command) = self.commands.known.get_mut(&id) else {
            return;
        };
        let told = command.gateways.get_mut(&gateway);
        let Some(told) = told.filter(|told| told.epoch == epoch && told.said.is_none()) else {
            return;
        };
        if matches!(outcome.verdict, Verdict::Refused(_)) {
            told.busy = Some(now);
            self.commands.again.insert((now + RETRY, id, gateway));
        } else {
            told.said = Some(GatewayAnswer {
                members: outcome.members,
                over: outcome.verdict == Verdict::Expired,
                page: page.unwrap_or_default(),
                at: now,
            });
        }
        self.review_command(now, id, gateway);
        self.settle_command(now, id);
    }

    /// Reviews a command for one gateway. The command is sent if the gateway wants the room, or did and has not
    /// replied, unless it was sent on this link and in this life. After `busy` it is sent again. The command waits
    /// for the gateway until it replies, or is gone.
    fn review_command(&mut self, now: Micros, id: CommandId, gateway: u32) {
        let Some(room) = self.commands.known.get(&id).map(|known| known.room) else {
            return;
        };
        let gone_at = self.gone_at(gateway, room);
        let Some(command) = self.commands.known.get_mut(&id).filter(|known| known.is_told(now)) else {
            return;
        };
        let (check, tells) = (command.check, command.ask.acts());
        let known_in = self.interest.epoch_of(gateway);
        let told = command
            .gateways
            .get(&gateway)
            .filter(|told| known_in == Some(told.epoch));
        // A gateway whose last member left still reports the outcome.
        let says = told.is_some_and(|told| told.said.is_none() && told.busy.is_none());
        let wants = self.interest.wants(gateway, room) == Some(check) || says;
        let link = self.links.to(gateway).zip(self.links.since(gateway));
        let awaited = command.awaited.get_mut(&gateway);
        if let Some(awaited) = awaited.filter(|awaited| tells && !wants && known_in != Some(awaited.life)) {
            // Members of the former life return soon, here or at another gateway, and get it there.
            let over_at = match known_in {
                Some(_) => Some(*awaited.over_since.get_or_insert(now) + AWAY_GRACE),
                None if link.is_some() => None,
                None => Some(gone_at.unwrap_or(now)),
            };
            return self.await_command(now, id, gateway, over_at);
        }
        let Some(epoch) = known_in.filter(|_| wants && told.is_none_or(|told| told.said.is_none())) else {
            command.awaited.remove(&gateway);
            return;
        };
        let awaited = Awaited {
            life: epoch,
            over_since: None,
        };
        command.awaited.insert(gateway, awaited);
        let Some((slot, since)) = link else {
            // Its members return elsewhere, and get it there.
            return self.await_command(now, id, gateway, gone_at);
        };
        let linked = self.links.table.get(slot).map(|link| link.data.peer.epoch);
        // Send it again on a new link: undelivered records of the former link ended with it.
        let again = |told: &GatewayState| told.since != since || told.busy.is_some_and(|at| now >= at + RETRY);
        if linked != Some(epoch) || !told.is_none_or(again) {
            return;
        }
        let told = GatewayState {
            epoch,
            since,
            at: now,
            said: None,
            busy: None,
        };
        // Members that received it stay counted as reached; the count of a query ended with that life.
        if let (Some(earlier), true) = (command.gateways.insert(gateway, told), tells) {
            let said = earlier.said.map_or(0, |said| said.members);
            command.before = command.before.saturating_add(said);
            command.doubtful |= earlier.busy.is_none();
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
        self.counters.commands_sent += 1;
        self.links.log(now, slot, &bytes);
    }

    /// Waits for a gateway until this time at the latest, and then passes it over.
    fn await_command(&mut self, now: Micros, id: CommandId, gateway: u32, over_at: Option<Micros>) {
        let (Some(at), Some(command)) = (over_at, self.commands.known.get_mut(&id)) else {
            return;
        };
        if at <= now {
            command.awaited.remove(&gateway);
            command.passed_over = true;
        } else {
            self.commands.again.insert((at, id, gateway));
        }
    }

    /// Ends a command that all interested gateways have answered, or for which all of them are too busy.
    fn settle_command(&mut self, now: Micros, id: CommandId) {
        let knows = self.reports.are_known();
        let Some(command) = self.commands.known.get(&id).filter(|known| known.outcome.is_none()) else {
            return;
        };
        if !knows {
            return soonest(&mut self.commands.all_at, Some(now + LOOK_EVERY));
        }
        if !self.scope().has(command.room) {
            // Other brokers know the interest now, and get the replies of the room's gateways.
            return self.end_command(now, id, Outcome::refused(Code::NotReady));
        }
        let members = command.members();
        if !command.awaited.is_empty() {
            if command.is_nobodys() {
                self.end_command(now, id, Outcome::refused(Code::Busy));
            }
        } else if command.said().any(|said| said.over) {
            self.end_command(now, id, Outcome::expired(members));
        } else {
            self.end_command(now, id, Outcome::of(members));
        }
    }

    /// A gateway started or stopped wanting a room. One that stopped may want it again soon, in its next life.
    pub(super) fn command_wanted(&mut self, now: Micros, gateway: u32, room: u64, wants: bool) {
        for id in self.commands.open_in(room) {
            match wants {
                true => self.review_command(now, id, gateway),
                false => drop(self.commands.again.insert((now + LOOK_EVERY, id, gateway))),
            }
        }
    }

    /// Called when a gateway's link, the routers' reports of it, or the placement changed. Sends it everything that
    /// it has not got, including commands that did not wait for it.
    pub(super) fn commands_reached(&mut self, now: Micros, gateway: u32) {
        for id in self.commands.all_open() {
            self.review_command(now, id, gateway);
            self.settle_command(now, id);
        }
    }

    /// The broker's interest covers another share of the rooms now.
    pub(super) fn commands_placed(&mut self, now: Micros) {
        soonest(&mut self.commands.all_at, Some(now));
    }

    /// Sends the outcome of a command to all askers, and remembers it.
    fn end_command(&mut self, now: Micros, id: CommandId, outcome: Outcome) {
        let Commands {
            known,
            open,
            ends,
            undone,
            remembered,
            answers,
            ..
        } = &mut self.commands;
        let Some(command) = known.get_mut(&id) else {
            return;
        };
        let (page, who) = (command.merged(), command.holders(id));
        ends.remove(&(command.ends_at(), id));
        undone.give_back(who, 1);
        answers.give_back(who, command.wanted_by);
        command.outcome = Some(outcome);
        command.passed_over &= page.is_none() && open.len() < COMMANDS_MAX;
        if !command.is_told(now) {
            open.remove(&(command.room, id));
            command.ask = Ask::default();
            command.gateways = BTreeMap::new();
            command.awaited = BTreeMap::new();
        }
        let askers = std::mem::take(&mut command.askers);
        if page.is_some() || outcome.is_put_off() {
            open.remove(&(command.room, id));
            known.remove(&id); // a repeated query wants the present state
            remembered.give_back(who, 1);
        } else {
            ends.insert((command.ends_at(), id));
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
            return; // this asker, or another one, asks again
        };
        let done = Record::LinkCommandDone {
            command,
            session,
            outcome,
            page,
        };
        self.links.record(now, slot, &done);
    }

    /// Ends expired commands, reviews due ones, and forgets those that ended long ago.
    pub(super) fn expire_commands(&mut self, now: Micros) {
        while let Some((at, id, gateway)) = self.commands.again.first().copied().filter(|(at, ..)| *at <= now) {
            self.commands.again.remove(&(at, id, gateway));
            self.review_command(now, id, gateway);
            self.settle_command(now, id);
        }
        if self.commands.all_at.is_some_and(|at| at <= now) {
            self.commands.all_at = None;
            self.review_all(now);
        }
        while let Some((at, id)) = self.commands.ends.first().copied().filter(|(at, _)| *at <= now) {
            self.commands.ends.remove(&(at, id));
            let Some(command) = self.commands.known.get(&id) else {
                continue;
            };
            let (members, who) = (command.members(), command.holders(id));
            if command.outcome.is_none() {
                self.end_command(now, id, Outcome::expired(members));
            } else {
                let room = command.room;
                self.commands.open.remove(&(room, id));
                self.commands.known.remove(&id);
                self.commands.remembered.give_back(who, 1);
            }
        }
    }

    /// Reviews all open commands for all gateways; waits while interest is unknown.
    fn review_all(&mut self, now: Micros) {
        if !self.reports.are_known() {
            self.commands.all_at = (!self.commands.open.is_empty()).then_some(now + LOOK_EVERY);
            return;
        }
        for id in self.commands.all_open() {
            let Some(command) = self.commands.known.get(&id) else {
                continue;
            };
            let want = self.interest.who_wants(command.room, command.check);
            let gateways: BTreeSet<u32> = want.chain(command.awaited.keys().copied()).collect();
            for gateway in gateways {
                self.review_command(now, id, gateway);
            }
            self.settle_command(now, id);
        }
    }
}
