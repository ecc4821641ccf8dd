//! The checks at the end of a run.
//!
//! Owns their order, and the checks of machines. `oracle` has those of messages, `commands` those of commands.

use std::collections::BTreeMap;

use muster_rooms::command::COPIES;
use muster_rooms::wire::{Course, StreamId};
use muster_rooms::Policy;
use muster_simkit::SECOND;
use muster_transport::{HasLinks, HasSessions, HealthCounters, Reason};

use super::{Role, Rooms, Sim};
use crate::identities::{node_of, Identities};
use crate::oracle::Membership;
use crate::plan::{Fault, Kind, Upkeep};
use crate::second::SecondCluster;

/// Maximum number of datagrams that a process may exchange in the last second, when nothing happens anymore: ten
/// pings a second on each link, their replies, and keepalives.
const IDLE_LINK_DATAGRAMS: u64 = 60;
const IDLE_SESSION_DATAGRAMS: u64 = 8;

impl Rooms {
    /// All checks, one after the other; returns the first failure.
    pub(super) fn judge_all(&mut self, world: &mut Sim) -> Result<(), String> {
        for client in 0..self.plan.clients.len() {
            for at in 0..self.programs[client].publications.len() {
                let number = self.programs[client].publications[at];
                let machine = self.machine(world, client);
                let Some(publication) = number.and_then(|number| machine.publishing(number)) else {
                    continue;
                };
                let left = publication.unacknowledged();
                if left > 0 {
                    return Err(format!(
                        "client {client}: {left} messages of publication {at} stay unacknowledged"
                    ));
                }
                if publication.waiting {
                    return Err(format!("client {client}: publication {at} never became writable again"));
                }
            }
        }
        if self.oracle.unacknowledged() > 0 {
            return Err(format!(
                "{} messages were never acknowledged",
                self.oracle.unacknowledged()
            ));
        }
        if world.is_verbose() {
            self.describe(world);
        }
        let mut positions = BTreeMap::new();
        for client in 0..self.programs.len() {
            for (room, membership) in self.programs[client].joined.clone().into_iter().flatten() {
                self.judge_join(world, client, room, membership)?;
                let member = self.machine(world, client).room(room);
                positions.insert(membership, member.map(|member| member.positions.clone()));
            }
        }
        let repairable = self.plan.repairable();
        let spared = repairable || self.plan.spares_members();
        let (clients, evicts) = (&self.plan.clients, self.plan.evicts);
        let may_lose = |membership: &Membership| {
            let client = &clients[membership.client];
            !spared || evicts || client.read_every.is_some() || client.toggle_every.is_some()
        };
        let several = self.plan.brokers_of_all() > 1;
        let is_over = |membership: usize, stream: StreamId| {
            let owner = &world.processes[stream.node as usize - 1];
            let positions = positions.get(&membership).and_then(Option::as_ref);
            let had = positions.and_then(|positions| positions.of(stream));
            let dead = owner.epoch > stream.epoch || !owner.is_alive();
            several && dead && had.is_none_or(|had| had.course == Course::Ended)
        };
        self.oracle.complete(may_lose, is_over)?;
        // A partition whose only broker drains has none for that long.
        let drains = |fault: &Fault| matches!(fault, Fault::Own(Upkeep::Drain { .. }));
        let singly = |second: &SecondCluster| second.brokers == second.partitions;
        let singly = self.plan.brokers == self.plan.partitions.0 || self.plan.second.as_ref().is_some_and(singly);
        let alone = singly && self.plan.every_fault().any(drains);
        // A client of a cluster that starts later has no proxy until then.
        let late = self.plan.second.as_ref().is_some_and(|second| second.begins.is_some());
        let reads = |client: usize| clients[client].read_every.is_none();
        let mild = repairable && !alone && !late;
        self.commands.judge(mild, self.plan.prompt, reads)?;
        self.last_word(world)?;
        self.returned()?;
        self.interest(world)?;
        self.grown()?;
        self.has_struck()?;
        self.has_rekeyed(world)?;
        self.bounds(world)?;
        self.ejections(world)?;
        self.taken_back(world)?;
        for process in 0..world.processes.len() {
            if world.processes[process].is_alive() {
                self.count(world, process);
            }
        }
        self.accounts()
    }

    fn describe(&mut self, world: &mut Sim) {
        for client in 0..self.plan.clients.len() {
            for place in 0..self.programs[client].joined.len() {
                let Some((room, _)) = self.programs[client].joined[place] else {
                    continue;
                };
                let name = self.plan.rooms[self.plan.clients[client].rooms[place]].clone();
                let member = self.machine(world, client).room(room);
                let state = member.map(|m| {
                    (
                        m.join.handle,
                        m.is_blocked(),
                        m.positions.clone(),
                        m.counters,
                        m.reading.len(),
                    )
                });
                world.say(|| format!("client {client}, {name}: {state:?}"));
            }
        }
    }

    /// Messages published after the end of faults must have arrived, whatever happened before.
    fn last_word(&self, world: &Sim) -> Result<(), String> {
        let from = self.last_word_at;
        for membership in self.oracle.memberships.iter().filter(|membership| !membership.left) {
            let from = from.max(membership.joined_at.unwrap_or(from));
            let (had, published) = self.oracle.had_since(membership, from);
            let reader = &self.plan.clients[membership.client];
            if reader.read_every.is_some() && reader.policy != Policy::Block {
                continue; // its inbox may be too small for a burst
            }
            if membership.is_latest() {
                continue; // the last one alone is owed
            }
            if had != published {
                world.say(|| format!("{membership:?}"));
                return Err(format!(
                    "client {} in room {}: {had} of {} messages came that were published when all was well",
                    membership.client, membership.room, published
                ));
            }
        }
        Ok(())
    }

    /// After each return of a process every member received again soon.
    pub(super) fn returned(&self) -> Result<(), String> {
        let Some(max) = self.plan.back_max else { return Ok(()) };
        match self.returns.iter().find(|(_, after)| *after > max) {
            Some((kind, after)) => Err(format!(
                "{after} us until every member received again after the return of a {kind:?}"
            )),
            None => Ok(()),
        }
    }

    /// The least number of datagrams for these deliveries: each message once per hop.
    pub(super) fn minimum(&self) -> u64 {
        3 * self
            .oracle
            .messages
            .iter()
            .map(|message| 1 + message.len as u64 / 1_100)
            .sum::<u64>()
            + self.oracle.delivered_datagrams
    }

    /// Checks that there is no storm when nothing happens, and that nothing grew beyond its bound.
    fn bounds(&self, world: &Sim) -> Result<(), String> {
        let sessions: u64 = world
            .processes
            .iter()
            .filter(|process| process.is_alive())
            .map(|process| match &process.node {
                Role::Gateway(machine) => machine.sessions().table.len() as u64,
                Role::Proxy(machine) => machine.sessions().table.len() as u64,
                _ => 0,
            })
            .sum();
        let each = |client: usize| {
            let spares = self.endpoints(Kind::Proxy, client).len().saturating_sub(1);
            2 + spares.min(self.plan.command_every.map_or(0, |_| COPIES - 1))
        };
        if sessions > (0..self.plan.clients.len()).map(each).sum::<usize>() as u64 {
            return Err(format!(
                "{sessions} sessions are open for {} clients",
                self.plan.clients.len()
            ));
        }
        let servers = 0..self.plan.servers();
        let links = servers.clone().flat_map(|one| (0..one).map(move |other| (one, other)));
        let links = links.filter(|(one, other)| self.are_linked(*one, *other)).count() as u64;
        let idle = world.net.sent_in_last_second();
        let idle_max = links * IDLE_LINK_DATAGRAMS + sessions * IDLE_SESSION_DATAGRAMS;
        if idle > idle_max {
            return Err(format!(
                "{idle} datagrams in the last second, in which nothing happened; {idle_max} are allowed"
            ));
        }
        let seconds = world.now / SECOND + 1;
        let bound = 8 * self.minimum() + seconds * 4 * idle_max;
        if world.net.sent > bound {
            return Err(format!(
                "{} datagrams for what takes {}; {bound} are allowed",
                world.net.sent,
                self.minimum()
            ));
        }
        for process in &world.processes {
            let arena = match &process.node {
                Role::Gateway(machine) => machine.arena(),
                Role::Broker(machine) => machine.arena(),
                _ => continue,
            };
            if arena.used() > arena.capacity() as u64 {
                return Err(format!("an arena of {} B holds {}", arena.capacity(), arena.used()));
            }
        }
        Ok(())
    }

    /// Whether two servers keep a link; the first one comes after the second.
    fn are_linked(&self, one: usize, other: usize) -> bool {
        let (brokers, routers) = self.plan.partitions;
        let second = self.plan.second.as_ref().map_or(0, |second| second.partitions);
        let [of_one, of_other] = [one, other].map(|process| self.plan.partition(process));
        match (self.plan.kind(one), self.plan.kind(other)) {
            (Kind::Router, Kind::Router) => of_one == of_other,
            (Kind::Router, Kind::Broker) => of_one % brokers == of_other % routers,
            (Kind::Broker, Kind::Router) => of_one % routers == of_other % second,
            (Kind::Broker, Kind::Proxy) => self.plan.cluster(one) == self.plan.cluster(other),
            (Kind::Router | Kind::Broker, Kind::Gateway) => true,
            _ => false,
        }
    }

    /// If nothing failed and the network only loses datagrams, no process may have been taken for dead.
    fn ejections(&self, world: &Sim) -> Result<(), String> {
        let grows = |second: &SecondCluster| second.grows.is_some();
        let grows = !self.plan.grows.is_empty() || self.plan.second.as_ref().is_some_and(grows);
        if !(self.plan.repairable() && self.plan.faults.is_empty() && !grows) {
            return Ok(());
        }
        for (number, process) in world.processes.iter().enumerate() {
            let links = match &process.node {
                Role::Gateway(machine) => machine.links(),
                Role::Proxy(machine) => machine.links(),
                Role::Broker(machine) => machine.links(),
                Role::Router(machine) => machine.links(),
                Role::Client(_) => continue,
            };
            if links.counters.links_down > 0 {
                let (kind, down) = (self.plan.kind(number), links.counters.links_down);
                return Err(format!("{kind:?} {number} lost {down} links without a fault"));
            }
            if let Role::Proxy(machine) = &process.node {
                let counters = &machine.health.counters;
                if *counters != HealthCounters::default() {
                    return Err(format!("proxy {number} excluded brokers without a fault: {counters:?}"));
                }
            }
        }
        Ok(())
    }

    /// In the end each running broker gets commands from its proxies again. Its losses and unanswered commands are
    /// forgotten in up to 20 s, and so is an earlier shut-out of a node.
    fn taken_back(&self, world: &Sim) -> Result<(), String> {
        if let Some(Identities::Out(_)) = self.plan.identities {
            return Ok(());
        }
        let living = || (0..world.processes.len()).filter(|process| world.processes[*process].is_alive());
        for proxy in living() {
            let Role::Proxy(machine) = &world.processes[proxy].node else {
                continue;
            };
            let out = living().filter_map(|broker| Some((broker, machine.health.ejected(node_of(broker))?)));
            let later = [Reason::Loss, Reason::Unanswered];
            if let Some((broker, why)) = out.into_iter().find(|(_, why)| !later.contains(why)) {
                return Err(format!("proxy {proxy} still leaves broker {broker} out: {why:?}"));
            }
        }
        Ok(())
    }
}
