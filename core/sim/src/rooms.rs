//! The system of rooms in the simulator: the five machines, the programs of the clients, and the checks.
//!
//! Owns a run's state besides the kit's world, and the system's verbs. `plan` has the draws, `oracle` the checks of
//! messages, `commands` those of commands.

use std::collections::{BTreeMap, BTreeSet};

use muster_simkit::{guarded, Setup, System, World, MS, SECOND};
use muster_transport::{Micros, ServerKey};

use crate::commands::Commands;
use crate::identities::node_of;
use crate::oracle::Oracle;
use crate::plan::{Kind, Plan, Upkeep, FORGET, SETTLE};

mod accounts;
mod answers;
mod ending;
mod interest;
mod judge;
mod keys;
mod machines;
mod placing;
mod programs;
mod role;
mod strike;
mod summary;

use answers::Answer;
use placing::{Doubling, Group};
use programs::Program;
use role::Role;
use strike::Struck;

pub use summary::{Accounts, Summary};

type Sim = World<Rooms>;

/// A process that stands still gets the placement again after this time; when faults end, all processes get it within
/// this time.
const PLACED_AGAIN: Micros = muster_simkit::TOLD_AGAIN;
/// The time after the end of faults at which all publish once more; this message must reach every member.
const LAST_WORD: Micros = 9 * SECOND;
/// How long all stay away so that rooms are forgotten (60 s, after a held leave), plus a margin.
const AWAY: Micros = 66 * SECOND;
const EVICTION: Micros = AWAY + 6 * SECOND;

/// An event planned for a time. Small, since waiting events are moved about.
pub enum Event {
    Answer(Box<Answer>),
    Publish {
        client: u32,
        at: u32,
    },
    Read {
        client: u32,
    },
    Toggle {
        client: u32,
    },
    Command {
        client: u32,
    },
    /// A process that must end may have finished, and ends at this time in any case.
    Ended {
        process: u32,
        by: Micros,
        down: Micros,
    },
    Undrain {
        process: u32,
        spread: Micros,
    },
    /// The partitions of a cluster's brokers, or of routers, begin to double.
    Grow {
        group: Group,
    },
    /// The coordinator of a doubling checks whether the next step may begin.
    Coordinate {
        group: Group,
    },
    /// The second cluster starts.
    Begin,
    /// The fault that belongs into a step of a doubling.
    Strike,
    /// All servers begin to take the next step of replacing the secret.
    Rekey,
    /// Notes the gateways' interest, or checks the others' views of it.
    Views {
        judged: bool,
    },
    LastWord,
    Everyone {
        leaves: bool,
    },
    Broadcast,
}

/// A message of the control plane to a server.
#[derive(Clone, Copy)]
pub enum Snapshot {
    /// The newest placement.
    Placement,
    /// The next step of replacing the secret.
    Keys,
}

/// A run's state of rooms.
pub struct Rooms {
    plan: Plan,
    /// The keys of the servers.
    keys: Vec<ServerKey>,
    oracle: Oracle,
    commands: Commands,
    /// Joins with positions that missed nothing, and messages of history delivered after joins.
    recovered: u64,
    asked: u64,
    programs: Vec<Program>,
    /// The gateways' interest a second before views are checked.
    wanted_before: BTreeSet<(u32, u64)>,
    placement_epoch: u32,
    draining: BTreeSet<usize>,
    /// How often a process has gone back to the beginning of its life.
    returned: u64,
    growths: BTreeMap<Group, Doubling>,
    /// The second cluster has started.
    begun: bool,
    /// The placement epoch that each process has.
    placed: Vec<u32>,
    /// For each server, how many steps of replacing the cluster's secret it has taken; and how many all should have
    /// taken.
    rekeyed: Vec<usize>,
    rekeying: usize,
    struck: Struck,
    last_word_at: Micros,
    /// For a broker that is not ready and has a turn: the number of messages that it has numbered.
    unready: Option<u64>,
    accounts: Accounts,
    ages: BTreeMap<Kind, (u64, u32, u32)>,
    /// The returned process, and the time, while some member has not received a message published since.
    back: Option<(Kind, Micros)>,
    returns: Vec<(Kind, Micros)>,
}

/// Runs one seed of the plans that `draw` makes.
pub fn run(seed: u64, draw: impl Fn(u64) -> Plan, verbose: bool) -> (Summary, Result<(), String>) {
    guarded(|| play(seed, draw(seed), verbose))
}

/// Runs a plan. The seed determines the dice of the network, of programs and of machines.
pub fn play(seed: u64, plan: Plan, verbose: bool) -> (Summary, Result<(), String>) {
    let ran = muster_simkit::run(seed, setup(&plan), Rooms::new(plan), verbose);
    (ran.system.summary(&ran.world, ran.virtual_us), ran.result)
}

fn setup(plan: &Plan) -> Setup<Upkeep> {
    let (servers, clients) = (plan.servers(), plan.clients.len());
    let evicts = if plan.evicts { EVICTION } else { 0 };
    let forgets = if plan.removes() { FORGET } else { 0 };
    Setup {
        clock: plan.clock,
        // A server has one socket for links and one for sessions.
        sockets: [vec![2; servers], vec![1; clients]].concat(),
        near: servers,
        links: plan.links,
        sessions: plan.sessions,
        turn: plan.turn,
        faults: plan.faults.clone(),
        heal: plan.heal,
        settle: SETTLE + evicts + forgets,
    }
}

impl Rooms {
    fn new(plan: Plan) -> Self {
        Rooms {
            keys: (0..plan.servers()).map(machines::server_key).collect(),
            oracle: Oracle::new(plan.late()),
            commands: Commands::default(),
            recovered: 0,
            asked: 0,
            programs: Vec::new(),
            wanted_before: BTreeSet::new(),
            placement_epoch: 1,
            draining: BTreeSet::new(),
            returned: 0,
            growths: placing::at_start(&plan),
            begun: plan.second.as_ref().is_some_and(|second| second.begins.is_none()),
            placed: vec![1; plan.servers()],
            rekeyed: vec![0; plan.servers()],
            rekeying: 0,
            struck: Struck::default(),
            last_word_at: plan.clock,
            unready: None,
            accounts: BTreeMap::new(),
            ages: BTreeMap::new(),
            back: None,
            returns: Vec::new(),
            plan,
        }
    }
}

impl System for Rooms {
    type Node = Role;
    type Event = Event;
    type Snapshot = Snapshot;
    type Fault = Upkeep;

    fn start(&mut self, world: &Sim, process: usize, epoch: u32) -> Role {
        let returned = world.processes.get(process).is_some_and(|known| known.epoch == epoch);
        if returned {
            self.returned += 1;
            self.oracle.note_returned(node_of(process), epoch);
        }
        self.machine_of(world, process, epoch, if returned { self.returned } else { 0 })
    }

    fn is_there(&self, process: usize) -> bool {
        self.is_placed(process)
    }

    fn begin(&mut self, world: &mut Sim) {
        for client in 0..self.plan.clients.len() {
            self.begin_program(world, client);
        }
        for (at, kind) in self.plan.grows.clone() {
            let group = (kind, 0);
            world.push(world.now + at, Event::Grow { group });
        }
        if let Some(second) = &self.plan.second {
            let group = (Kind::Broker, 1);
            let events = [(second.begins, Event::Begin), (second.grows, Event::Grow { group })];
            for (at, event) in events {
                if let Some(at) = at {
                    world.push(world.now + at, event);
                }
            }
        }
        if let Some((at, ..)) = self.plan.rekeys {
            world.push(world.now + at, Event::Rekey);
        }
        let heal = world.now + self.plan.heal;
        world.push(heal + LAST_WORD, Event::LastWord);
        if let Some(after) = self.plan.converges {
            world.push(heal + after - SECOND, Event::Views { judged: false });
            world.push(heal + after, Event::Views { judged: true });
        }
        if self.plan.evicts {
            let away = heal + SETTLE;
            world.push(away, Event::Everyone { leaves: true });
            world.push(away + AWAY, Event::Broadcast);
            world.push(away + AWAY + SECOND, Event::Everyone { leaves: false });
            world.push(away + AWAY + 2 * SECOND, Event::LastWord);
        }
    }

    fn happen(&mut self, world: &mut Sim, event: Event) -> Result<(), String> {
        match event {
            Event::Answer(answer) => return self.answer(world, *answer),
            Event::Publish { client, at } => {
                let publishing = self.plan.clients[client as usize].publishing[at as usize];
                if !world.healed {
                    self.publish(world, client as usize, at as usize, publishing.burst)?;
                    let jitter = world.dice.below(publishing.every / 2 + 1);
                    world.push(world.now + publishing.every + jitter, Event::Publish { client, at });
                }
            }
            Event::Read { client } => {
                let every = self.plan.clients[client as usize].read_every.filter(|_| !world.healed);
                if self.is_up(world, client as usize) {
                    self.read(world, client as usize, if every.is_some() { 1 } else { usize::MAX })?;
                }
                world.push(world.now + every.unwrap_or(20 * MS), Event::Read { client });
            }
            Event::Toggle { client } => {
                if !world.healed {
                    if self.is_up(world, client as usize) {
                        self.toggle(world, client as usize)?;
                    }
                    let every = self.plan.clients[client as usize].toggle_every.unwrap_or(SECOND);
                    let wait = 1 + world.dice.below(2 * every);
                    world.push(world.now + wait, Event::Toggle { client });
                }
            }
            Event::Command { client } => {
                if let Some(every) = self.plan.command_every.filter(|_| !world.healed) {
                    if self.is_up(world, client as usize) {
                        self.command(world, client as usize);
                    }
                    let wait = every / 2 + world.dice.below(every);
                    world.push(world.now + wait, Event::Command { client });
                }
            }
            Event::Ended { process, by, down } => return self.ended(world, process as usize, by, down),
            Event::Undrain { process, spread } => self.set_draining(world, process as usize, false, spread),
            Event::Grow { group } => self.grow(world, group),
            Event::Coordinate { group } => self.coordinate(world, group),
            Event::Begin => self.begin_second(world),
            Event::Strike => return self.strike_step(world),
            Event::Rekey => self.rekey(world),
            Event::Views { judged } => return self.views(world, judged),
            Event::LastWord => {
                self.last_word_at = world.now;
                return self.broadcast(world);
            }
            Event::Broadcast => return self.broadcast(world),
            Event::Everyone { leaves } => self.everyone(world, leaves)?,
        }
        Ok(())
    }

    fn turning(&mut self, world: &mut Sim, process: usize) {
        self.unready = world.processes[process].node.numbered_unready();
    }

    fn turned(&mut self, world: &mut Sim, process: usize) -> Result<(), String> {
        let numbered = world.processes[process].node.numbered_unready();
        if self.unready.is_some() && numbered.is_some() && numbered != self.unready {
            return Err(format!(
                "broker {process} numbers messages before it knows the interest in them"
            ));
        }
        self.drain(world, process)?;
        self.keeps_out(world, process)
    }

    fn told(&mut self, world: &mut Sim, process: usize, snapshot: Snapshot) -> Result<(), String> {
        match snapshot {
            Snapshot::Placement => self.place(world, process),
            Snapshot::Keys => return self.take_keys(world, process),
        }
        Ok(())
    }

    fn strike(&mut self, world: &mut Sim, fault: Upkeep) -> Result<(), String> {
        match fault {
            Upkeep::Drain { process, pause, spread } => {
                self.set_draining(world, process, true, spread);
                let process = process as u32;
                world.push(world.now + pause, Event::Undrain { process, spread });
                Ok(())
            }
            Upkeep::End { process, down } => self.end(world, process, down),
        }
    }

    fn dies(&mut self, world: &mut Sim, process: usize) {
        self.count(world, process);
    }

    fn pauses(&mut self, world: &mut Sim, process: usize, pause: Micros) {
        if self.plan.kind(process) == Kind::Gateway {
            self.commands.note_out(world.now, pause);
        }
    }

    fn returned(&mut self, world: &mut Sim, process: usize) {
        if let Some(placed) = self.placed.get_mut(process) {
            *placed = self.placement_epoch;
        }
        if self.plan.back_max.is_some() && self.back.is_none() {
            self.back = Some((self.plan.kind(process), world.now)); // also of processes that died with it
        }
        if let Some(client) = process.checked_sub(self.plan.servers()) {
            self.program_returned(world, client);
        }
    }

    fn heal(&mut self, world: &mut Sim) {
        for process in self.draining.clone() {
            self.set_draining(world, process, false, PLACED_AGAIN);
        }
        world.raise(self);
        self.join_all(world);
    }

    fn look(&mut self, world: &mut Sim) {
        self.await_step(world);
    }

    fn judge(&mut self, world: &mut Sim) -> Result<(), String> {
        self.judge_all(world)
    }

    fn name(&self, process: usize) -> String {
        format!("{:?} (process {process})", self.plan.kind(process))
    }
}
