//! One run: processes, network, what the programs of the clients do, and the clock that goes from event to event.
//!
//! Owns what each event does; their order stands in `agenda`. What is drawn stands in `plan`, what must hold in `oracle`.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::age::Ages;
use muster_proto::broker::{Broker, BrokerConfig};
use muster_proto::client::member::{Item, Policy};
use muster_proto::client::{Client, ClientConfig, ClientEvent, Endpoint, Side, SPREAD};
use muster_proto::command::{COMMAND_RATE, COPIES};
use muster_proto::gateway::{Gateway, GatewayConfig, GatewayEvent};
use muster_proto::handshake::{ClusterKeys, ServerKey};
use muster_proto::health::{HealthCounters, Reason};
use muster_proto::limits::{HISTORY_DEFAULT, MEMBERSHIPS_MAX, MEMBERSHIP_AGAIN_MS};
use muster_proto::links::Links;
use muster_proto::machine::{Addr, Entropy, Machine, Micros, Outbox};
use muster_proto::name::RoomName;
use muster_proto::node::{Dice, Identity};
use muster_proto::placement::{Growth, Layer, Node, Placement, State as NodeState};
use muster_proto::proxy::{Proxy, ProxyConfig, ProxyEvent};
use muster_proto::router::{Router, RouterConfig};
use muster_proto::sessions::Denied;
use muster_proto::wire::publish::{Course, Positions};
use muster_proto::wire::server::Server;
use muster_proto::wire::{Code, Role as NodeRole, StreamId};

use crate::agenda::{Agenda, Next};
use crate::beside::Beside;
use crate::commands::Commands;
use crate::identities::{node_of, Identities};
use crate::matrix::Step;
use crate::net::Net;
use crate::oracle::{content, Membership, Oracle};
use crate::plan::{Fault, Kind, Plan, FORGET, MS, SECOND, SETTLE};
use crate::process::{Bench, Process, Queued, Role, Sent, State};

mod strike;

use strike::Struck;

/// Messages that a join without positions asks for now and then.
const HISTORY: u32 = 20;
/// Who was told to end looks so often whether its clients are gone, and ends in any case after the second time.
const LOOKS_EVERY: Micros = 20 * MS;
const ENDS_WITHIN: Micros = SECOND;
const NAME_KEY: [u8; 16] = [9; 16];
/// Commands of a client at once, so that some are under way together.
const COMMAND_BURST: u32 = 5;
/// A process that stands still is told of the placement again so long after; when all is to heal, everyone within it.
const PLACED_AGAIN: Micros = 300 * MS;
/// The registry takes who stands still for so long for dead.
const SESSION: Micros = 3 * SECOND;
/// How often the coordinator of a doubling looks.
const COORDINATED: Micros = 50 * MS;
/// When after healing everyone publishes once more; this must reach every member.
const LAST_WORD: Micros = 9 * SECOND;
/// How long everyone is away so that rooms are forgotten (60 s, after a held leave), and what happens then takes.
const AWAY: Micros = 66 * SECOND;
const EVICTION: Micros = AWAY + 6 * SECOND;
/// Datagrams that a process may exchange in the last second, when nothing happens any more: pings of ten a second on each
/// link, their answers, and keepalives.
const IDLE_LINK_DATAGRAMS: u64 = 60;
const IDLE_SESSION_DATAGRAMS: u64 = 8;

/// What can become of a message that came to a role.
const ACCOUNTED: [(Kind, &[&str]); 3] = [
    (
        Kind::Proxy,
        &[
            "messages_forwarded",
            "dropped_no_owner",
            "dropped_queue_full",
            "dropped_handle",
        ],
    ),
    (
        Kind::Broker,
        &[
            "messages_published",
            "messages_repeated",
            "held",
            "dropped_ahead",
            "dropped_held",
            "dropped_malformed",
            "dropped_not_ready",
            "dropped_not_owner",
            "dropped_full",
            "dropped_name_collision",
        ],
    ),
    (
        Kind::Gateway,
        &[
            "messages_placed",
            "messages_duplicate",
            "held",
            "dropped_no_member",
            "dropped_stale_stream",
            "dropped_held_full",
            "dropped_held",
            "dropped_unwanted",
            "dropped_malformed",
            "dropped_expired",
        ],
    ),
];

struct Seeded(Dice);

impl Entropy for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let random = self.0.roll().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
    }
}

/// Small, as they are moved about while they wait.
enum Event {
    /// A datagram, which waits in `arriving`.
    Arrive {
        at: u32,
    },
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
    Fault {
        at: u32,
    },
    Restart {
        process: u32,
    },
    Resume {
        process: u32,
    },
    Mend {
        from: u32,
        to: u32,
    },
    /// A process that was told to end may have done so, and ends at this time in any case.
    Ended {
        process: u32,
        by: Micros,
        down: Micros,
    },
    /// A path is as fast as ever.
    Hurry {
        from: u32,
        to: u32,
    },
    /// A process hears of the newest placement.
    Place {
        process: u32,
    },
    Undrain {
        process: u32,
        spread: Micros,
    },
    /// The partitions of a cluster's brokers, or of routers, begin to double.
    Grow {
        group: Group,
    },
    /// The coordinator of a doubling looks whether the next step may begin.
    Coordinate {
        group: Group,
    },
    /// The second cluster is started.
    Begin,
    /// The fault that falls into a step of a doubling.
    Strike,
    /// All servers begin to take the next step of replacing the secret.
    Rekey,
    /// One of them takes it.
    TakeKeys {
        process: u32,
    },
    Heal,
    /// What gateways want is noted, or what others know of it judged.
    Views {
        judged: bool,
    },
    LastWord,
    Everyone {
        leaves: bool,
    },
    Broadcast,
}

struct Answer {
    process: usize,
    epoch: u32,
    id: u64,
    user: Result<u64, Denied>,
}

/// A datagram on its way.
struct Arriving {
    to: u32,
    socket: u32,
    from: Addr,
    bytes: Vec<u8>,
}

/// The brokers of a cluster, or the routers, which belong to none.
type Group = (Kind, usize);

/// How far the control plane is with the partitions of a group.
struct Doubling {
    layer: Layer,
    /// The placement with its present step, and since when everyone is done with that.
    epoch: u32,
    done: Option<Micros>,
    /// When the last one hears of it.
    heard_at: Micros,
}

/// What a client's program knows.
#[derive(Default)]
struct Program {
    /// By place in the plan's rooms: the client's number of the room, and the membership.
    joined: Vec<Option<(u32, usize)>>,
    positions: Vec<Option<(Positions, Micros)>>,
    /// By place in the plan's publishing; one whose room was closed for another is opened again.
    publications: Vec<Option<u32>>,
    /// How often its process was started again.
    life: u64,
}

/// Counters of all lives of all processes of a kind.
pub type Accounts = BTreeMap<(Kind, &'static str), u64>;

/// What one run was like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub trace: u64,
    pub published: u64,
    pub delivered: u64,
    pub gaps: u64,
    pub reordered: u64,
    pub datagrams: u64,
    pub lost: u64,
    pub overflowed: u64,
    pub virtual_us: Micros,
    pub minimum: u64,
    pub reasons: BTreeMap<String, u64>,
    pub accounts: Accounts,
    /// Of messages that carry their age, as brokers and gateways saw them: how many, the least and the most.
    pub ages: BTreeMap<Kind, (u64, u32, u32)>,
    /// Of each killed process, its role, and how long after its return every member had received something new.
    pub returns: Vec<(Kind, Micros)>,
    /// Commands that were delivered, what expired, and questions for members that all gateways answered.
    pub commands: (u64, u64, u64),
    /// The longest that a command, or such a question, took until its sender heard that it was delivered.
    pub slowest: Micros,
    /// Joins that went on where they had been with nothing lost, and messages of history.
    pub joins: (u64, u64),
    /// The step into which the plan's strike fell.
    pub struck: Option<Step>,
}

pub struct World {
    plan: Plan,
    seed: u64,
    dice: Dice,
    now: Micros,
    agenda: Agenda<Event>,
    processes: Vec<Process>,
    ports: Vec<Option<(usize, u32)>>,
    net: Net,
    /// Datagrams on their way, and the places among them that are free.
    arriving: Vec<Option<Arriving>>,
    free: Vec<u32>,
    bench: Bench,
    /// Of the servers.
    keys: Vec<ServerKey>,
    oracle: Oracle,
    commands: Commands,
    /// Joins with positions that missed nothing, and messages that came first to those who had asked for the last ones.
    recovered: u64,
    asked: u64,
    programs: Vec<Program>,
    healed: bool,
    /// What gateways wanted a second before views are judged.
    wanted_before: BTreeSet<(u32, u64)>,
    placement_epoch: u32,
    draining: BTreeSet<usize>,
    growths: BTreeMap<Group, Doubling>,
    /// The second cluster has been started.
    begun: bool,
    /// By process, of which placement it has heard, and since when it stands still if it does.
    placed: Vec<u32>,
    paused_at: BTreeMap<usize, Micros>,
    /// Who is cut off from the registry, since when and until when.
    unheard: BTreeMap<usize, (Micros, Micros)>,
    /// By server, how many steps of replacing the cluster's secret it has taken, and how many all are asked to take.
    rekeyed: Vec<usize>,
    rekeying: usize,
    struck: Struck,
    last_word_at: Micros,
    trace: u64,
    verbose: bool,
    sent_before_last_second: u64,
    accounts: Accounts,
    ages: BTreeMap<Kind, (u64, u32, u32)>,
    /// What is back, and since when, while not every member has received what was published since.
    back: Option<(Kind, Micros)>,
    returns: Vec<(Kind, Micros)>,
}

fn addr(port: u16) -> Addr {
    std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()
}

fn link_addr(process: usize) -> Addr {
    addr(100 + 2 * process as u16)
}

fn public_addr(process: usize) -> Addr {
    addr(101 + 2 * process as u16)
}

fn server_key(process: usize) -> ServerKey {
    ServerKey::from_private([process as u8 + 1; 32])
}

/// After so many steps the secret is replaced.
const REKEYED: usize = 3;

/// What a server knows after so many steps: the next secret as well, then uses it, then has forgotten the former.
fn secrets(step: usize) -> ClusterKeys {
    let (former, next) = ((1, [7; 32]), (2, [8; 32]));
    let (current, other) = [(former, None), (former, Some(next)), (next, Some(former)), (next, None)][step];
    let allow = None;
    ClusterKeys { current, other, allow }
}

/// What a role has to other nodes. A client has none.
fn links_of(role: &Role) -> Option<&Links> {
    match role {
        Role::Gateway(machine) => Some(machine.links()),
        Role::Proxy(machine) => Some(machine.links()),
        Role::Broker(machine) => Some(machine.links()),
        Role::Router(machine) => Some(machine.links()),
        Role::Client(_) => None,
    }
}

impl World {
    pub fn new(seed: u64, plan: Plan, verbose: bool) -> Self {
        let count = plan.servers() + plan.clients.len();
        let mut world = World {
            seed,
            dice: Dice::new(seed ^ 0x3017d),
            now: plan.clock,
            agenda: Agenda::new(count),
            processes: Vec::new(),
            ports: vec![None; 100 + 2 * count],
            net: Net::new(seed, plan.servers(), count, plan.links, plan.sessions),
            arriving: Vec::new(),
            free: Vec::new(),
            bench: Bench::new(Outbox::new(seed % 2 == 0)),
            keys: (0..plan.servers()).map(server_key).collect(),
            oracle: Oracle::new(plan.may_reorder()),
            commands: Commands::default(),
            recovered: 0,
            asked: 0,
            programs: Vec::new(),
            healed: false,
            wanted_before: BTreeSet::new(),
            placement_epoch: 1,
            draining: BTreeSet::new(),
            growths: BTreeMap::new(),
            begun: plan.beside.as_ref().is_some_and(|beside| beside.begins.is_none()),
            placed: vec![1; plan.servers()],
            paused_at: BTreeMap::new(),
            unheard: BTreeMap::new(),
            rekeyed: vec![0; plan.servers()],
            rekeying: 0,
            struck: Struck::default(),
            last_word_at: plan.clock,
            trace: seed,
            verbose,
            sent_before_last_second: 0,
            accounts: BTreeMap::new(),
            ages: BTreeMap::new(),
            back: None,
            returns: Vec::new(),
            plan,
        };
        let (brokers, routers) = world.plan.partitions_before();
        let beside = world.plan.beside.clone();
        let second = beside
            .as_ref()
            .map(|beside| ((Kind::Broker, 1), beside.partitions_before()));
        let groups = [((Kind::Broker, 0), brokers), ((Kind::Router, 0), routers)];
        for (group, count) in groups.into_iter().chain(second) {
            let layer = Layer::from(count as u16);
            let none = Doubling {
                layer,
                epoch: 1,
                done: None,
                heard_at: 0,
            };
            world.growths.insert(group, none);
        }
        for process in 0..count {
            let epoch = 1_000;
            let role = world.start(process, epoch);
            let addrs = match world.plan.kind(process) {
                Kind::Client => vec![link_addr(process)],
                _ => vec![link_addr(process), public_addr(process)],
            };
            for (socket, addr) in addrs.iter().enumerate() {
                world.ports[addr.port as usize] = Some((process, socket as u32));
            }
            world.processes.push(Process::new(role, epoch, addrs));
            if !world.is_placed(process) {
                world.processes[process].die(); // and starts when it is its turn
            }
            // Processes start one after the other, as a supervisor starts them.
            let after = world.dice.below(50 * MS);
            world.agenda.turn_at(process, world.now + after);
        }
        for client in 0..world.plan.clients.len() {
            world.begin(client);
        }
        for at in 0..world.plan.faults.len() {
            world
                .agenda
                .push(world.now + world.plan.faults[at].0, Event::Fault { at: at as u32 });
        }
        for (at, kind) in world.plan.grows.clone() {
            let group = (kind, 0);
            world.agenda.push(world.now + at, Event::Grow { group });
        }
        if let Some(beside) = beside {
            let events = [
                (beside.begins, Event::Begin),
                (
                    beside.grows,
                    Event::Grow {
                        group: (Kind::Broker, 1),
                    },
                ),
            ];
            for (at, event) in events {
                if let Some(at) = at {
                    world.agenda.push(world.now + at, event);
                }
            }
        }
        if let Some((at, ..)) = world.plan.rekeys {
            world.agenda.push(world.now + at, Event::Rekey);
        }
        let heal = world.now + world.plan.heal;
        world.agenda.push(heal, Event::Heal);
        world.agenda.push(heal + LAST_WORD, Event::LastWord);
        if let Some(after) = world.plan.converges {
            world.agenda.push(heal + after - SECOND, Event::Views { judged: false });
            world.agenda.push(heal + after, Event::Views { judged: true });
        }
        if world.plan.evicts {
            let away = heal + SETTLE;
            world.agenda.push(away, Event::Everyone { leaves: true });
            world.agenda.push(away + AWAY, Event::Broadcast);
            world
                .agenda
                .push(away + AWAY + SECOND, Event::Everyone { leaves: false });
            world.agenda.push(away + AWAY + 2 * SECOND, Event::LastWord);
        }
        world
    }

    /// Who is where, as a process is told it: to a proxy or a broker, with the brokers of its own cluster only.
    fn placement(&self, of: usize) -> Placement {
        let node = |process| Node {
            partition: self.plan.partition(process) as u16,
            state: [NodeState::Running, NodeState::Draining][usize::from(self.draining.contains(&process))],
            ..Node::new(node_of(process), role_of(self.plan.kind(process)), link_addr(process))
        };
        let placed = |process: &usize| self.is_placed(*process);
        let is_broker = |process: &usize| self.plan.kind(*process) == Kind::Broker;
        let serves_all = !matches!(self.plan.kind(of), Kind::Proxy | Kind::Broker);
        let own = if serves_all { 0 } else { self.plan.cluster(of) };
        let nodes = (0..self.plan.servers())
            .filter(placed)
            .filter(|process| !is_broker(process) || self.plan.cluster(*process) == own)
            .map(node);
        let layer = |group| self.growths[&group].layer;
        let (brokers, routers) = (layer((Kind::Broker, own)), layer((Kind::Router, 0)));
        let placement = Placement::new(self.placement_epoch, nodes.collect(), brokers, routers);
        if !serves_all || !self.begun {
            return placement;
        }
        let others =
            (0..self.plan.servers()).filter(|process| is_broker(process) && self.plan.cluster(*process) != own);
        placement.beside(others.filter(placed).map(node), layer((Kind::Broker, 1)))
    }

    /// Whether the placement names a process.
    fn is_placed(&self, process: usize) -> bool {
        let cluster = self.plan.cluster(process);
        let growth = self.growths.get(&(self.plan.kind(process), cluster));
        (cluster == 0 || self.begun)
            && growth.is_none_or(|growth| self.plan.partition(process) < usize::from(growth.layer.all()))
    }

    /// The next step of a doubling; all hear of it one after the other.
    fn step(&mut self, group: Group) {
        let Some(growth) = self.growths.get_mut(&group) else {
            return;
        };
        let (count, all) = (growth.layer.used(), growth.layer.all());
        growth.layer = match (count == all, growth.layer == Layer::from(count)) {
            (true, true) => Layer::new(count, Growth::Prepare),
            (false, _) => Layer::new(count, Growth::Switched),
            (true, false) => Layer::from(count),
        };
        (growth.epoch, growth.done) = (self.placement_epoch + 1, None);
        growth.heard_at = self.now + self.plan.growing.spread;
        let (layer, epoch) = (growth.layer, growth.epoch);
        self.say(|| format!("{group:?}: {layer:?}, placement {epoch}"));
        self.announce(self.plan.growing.spread);
    }

    fn grow(&mut self, group: Group) {
        self.place_more(|world| world.step(group));
        self.agenda.push(self.now + COORDINATED, Event::Coordinate { group });
    }

    /// The second cluster is there from now on.
    fn begin_beside(&mut self) {
        self.place_more(|world| {
            world.begun = true;
            world.announce(SECOND / 2);
        });
    }

    /// The placement comes to name more processes, which start.
    fn place_more(&mut self, name: impl FnOnce(&mut World)) {
        let before: Vec<bool> = (0..self.plan.servers())
            .map(|process| self.is_placed(process))
            .collect();
        name(self);
        for process in (0..self.plan.servers()).filter(|process| !before[*process]) {
            if self.is_placed(process) {
                let within = self
                    .plan
                    .strike
                    .as_ref()
                    .map_or(SECOND, |_| self.plan.growing.spread / 2);
                let (after, process) = (self.dice.below(within), process as u32);
                self.agenda.push(self.now + after, Event::Restart { process });
            }
        }
    }

    /// Goes on with a doubling once all are done with its step.
    fn coordinate(&mut self, group: Group) {
        let Some(growth) = self.growths.get(&group) else { return };
        let ended = growth.layer == Layer::from(growth.layer.used());
        if ended && self.struck.is_over(&self.plan) {
            return;
        }
        if self.strikes_now() {
            self.agenda.push(self.now, Event::Strike);
            return self.agenda.push(self.now + COORDINATED, Event::Coordinate { group });
        }
        let (epoch, settled) = (growth.epoch, self.are_settled(group, growth.epoch));
        let since = growth.done.filter(|_| settled).or_else(|| settled.then_some(self.now));
        let grace = if self.healed { 0 } else { self.plan.growing.grace };
        if ended && settled {
            self.struck.clean = true;
            return;
        }
        if since.is_some_and(|since| self.now >= since + grace) {
            self.say(|| format!("{group:?}: all are done with placement {epoch}"));
            self.step(group);
        } else if let Some(growth) = self.growths.get_mut(&group) {
            growth.done = since;
        }
        self.agenda.push(self.now + COORDINATED, Event::Coordinate { group });
    }

    /// Whether everyone whom the placement names and whom a group concerns has heard of an epoch and is done with what it asks.
    fn are_settled(&self, group: Group, epoch: u32) -> bool {
        let settled = |process: usize| {
            let known = &self.processes[process];
            match (known.state, &known.role) {
                (State::Paused, _) => {
                    let over = self.paused_at.get(&process).is_some_and(|at| self.now >= at + SESSION);
                    self.plan.growing.forgets_paused && over
                }
                (State::Down, Role::Broker(_) | Role::Router(_)) => false, // it is to hear of its rooms first
                (State::Down | State::Removed, _) => true,
                _ if self.is_unheard(process) => {
                    let over = self
                        .unheard
                        .get(&process)
                        .is_some_and(|(at, _)| self.now >= at + SESSION);
                    self.plan.growing.forgets_paused && over
                }
                _ if self.placed[process] < epoch => false,
                (_, Role::Gateway(machine)) => machine.settled(),
                (_, Role::Proxy(machine)) => machine.settled(),
                (_, Role::Broker(machine)) => machine.settled(),
                (_, Role::Router(machine)) => machine.settled(),
                (_, Role::Client(_)) => true,
            }
        };
        let (kind, cluster) = group;
        let concerned = |process: &usize| {
            let of_cluster = matches!(self.plan.kind(*process), Kind::Proxy | Kind::Broker);
            kind == Kind::Router || !of_cluster || self.plan.cluster(*process) == cluster
        };
        let named = (0..self.plan.servers()).filter(|process| self.is_placed(*process));
        named.filter(concerned).all(settled)
    }

    /// Whether the placement says that a process drains; the others hear of it one after the other, within `spread`.
    fn set_draining(&mut self, process: usize, drains: bool, spread: Micros) {
        let changed = if drains {
            self.draining.insert(process)
        } else {
            self.draining.remove(&process)
        };
        if !changed {
            return;
        }
        self.announce(spread);
    }

    /// All hear of the placement as it is now one after the other.
    fn announce(&mut self, spread: Micros) {
        self.placement_epoch += 1;
        let spread = if self.healed { spread.min(PLACED_AGAIN) } else { spread };
        let last = self.plan.strike.is_some().then(|| self.last_to_hear());
        for process in 0..self.plan.servers() as u32 {
            let after = self.dice.below(spread);
            let after = if last == Some(process) { spread } else { after };
            self.agenda.push(self.now + after, Event::Place { process });
        }
    }

    fn place(&mut self, process: usize) {
        let (now, placement) = (self.now, self.placement(process));
        if self.is_unheard(process) {
            let process = process as u32;
            return self.agenda.push(now + PLACED_AGAIN, Event::Place { process });
        }
        let known = &mut self.processes[process];
        match (known.state, &mut known.role) {
            (State::Paused, _) => {
                let process = process as u32;
                return self.agenda.push(now + PLACED_AGAIN, Event::Place { process });
            }
            (State::Up, Role::Gateway(machine)) => machine.set_placement(now, placement),
            (State::Up, Role::Proxy(machine)) => machine.set_placement(now, placement),
            (State::Up, Role::Broker(machine)) => machine.set_placement(now, placement),
            (State::Up, Role::Router(machine)) => machine.set_placement(now, placement),
            _ => return,
        }
        self.placed[process] = self.placement_epoch;
        self.agenda.turn_at(process, now);
    }

    /// All servers are told of the next step one after the other, once all have taken the one before.
    fn rekey(&mut self) {
        let Some((_, spread, rest)) = self.plan.rekeys else {
            return;
        };
        let taken = self.rekeyed.iter().all(|taken| *taken == self.rekeying);
        if taken && self.rekeying < REKEYED {
            self.rekeying += 1;
            let step = self.rekeying;
            self.say(|| format!("all begin step {step} of replacing the secret"));
            for process in 0..self.plan.servers() as u32 {
                let after = self.dice.below(spread);
                self.agenda.push(self.now + after, Event::TakeKeys { process });
            }
        }
        if self.rekeying < REKEYED {
            self.agenda.push(self.now + spread + rest, Event::Rekey);
        }
    }

    /// What a server knows of secrets, and of who is who.
    fn cluster_keys(&self, process: usize) -> ClusterKeys {
        let step = self.rekeyed.get(process).copied().unwrap_or(0);
        let roles = (0..self.plan.servers()).map(|server| role_of(self.plan.kind(server)));
        let allow = self.plan.identities.map(|how| how.list(step, process, roles));
        ClusterKeys { allow, ..secrets(step) }
    }

    /// Who is shut out has no link to those who know it, from that moment on.
    fn keeps_out(&self, process: usize) -> Result<(), String> {
        let (Some(Identities::Out(out)), Some(step)) = (self.plan.identities, self.rekeyed.get(process)) else {
            return Ok(());
        };
        let known = &self.processes[process];
        let knows = process != out && known.is_alive() && Identities::Out(out).is_out(*step, out);
        match links_of(&known.role).and_then(|links| links.to(node_of(out))) {
            Some(_) if knows => Err(format!("process {process} has a link to {out}, which is shut out")),
            _ => Ok(()),
        }
    }

    fn take_keys(&mut self, process: usize) -> Result<(), String> {
        let now = self.now;
        let known = &mut self.processes[process];
        if known.state == State::Paused {
            let process = process as u32;
            self.agenda.push(now + PLACED_AGAIN, Event::TakeKeys { process });
            return Ok(());
        }
        self.rekeyed[process] = self.rekeying;
        if known.state != State::Up {
            return Ok(()); // it begins with it
        }
        let keys = self.cluster_keys(process);
        match &mut self.processes[process].role {
            Role::Gateway(machine) => machine.set_cluster(now, keys),
            Role::Proxy(machine) => machine.set_cluster(now, keys),
            Role::Broker(machine) => machine.set_cluster(now, keys),
            Role::Router(machine) => machine.set_cluster(now, keys),
            Role::Client(_) => {}
        }
        self.agenda.turn_at(process, now);
        self.keeps_out(process)
    }

    /// Every link has the new secret, if it was replaced, and a proof of who is who where there is to be one.
    fn has_rekeyed(&self) -> Result<(), String> {
        let Some((key, _)) = self.plan.rekeys.map(|_| secrets(REKEYED).current) else {
            return Ok(());
        };
        if self.rekeyed.iter().any(|taken| *taken < REKEYED) {
            return Err(format!("steps of replacing the secret, by server: {:?}", self.rekeyed));
        }
        for (process, known) in self.processes.iter().enumerate().filter(|(_, known)| known.is_alive()) {
            let Some(links) = links_of(&known.role) else { continue };
            let proves = self.plan.identities.is_some();
            let with = |slot| {
                let link = links.table.get(slot);
                link.map(|link| (link.conn.key_id(), link.data.key.is_some()))
            };
            if let Some((node, slot)) = links.proven().find(|(_, slot)| with(*slot) != Some((key, proves))) {
                return Err(format!(
                    "process {process}: its link to node {node} has key, and a proof: {:?}",
                    with(slot)
                ));
            }
        }
        Ok(())
    }

    /// The servers of a kind that a client is given. Where it learns the others that is one gateway which does not end for good.
    fn given(&self, kind: Kind, client: usize) -> Vec<Endpoint> {
        let all = self.endpoints(kind, client);
        if !self.plan.learns {
            return all;
        }
        let faults = || self.plan.faults.iter().map(|(_, fault)| fault);
        let ends = |known: &Endpoint| {
            faults().any(|fault| matches!(fault, Fault::Remove { process } if public_addr(*process) == known.addr))
        };
        let count = if kind == Kind::Gateway { 1 } else { 0 };
        let first = client % all.len();
        let (before, rest) = all.split_at(first);
        let stay = rest.iter().chain(before).filter(|known| !ends(known));
        stay.take(count).cloned().collect()
    }

    /// What servers name to clients.
    fn named(&self, kind: Kind) -> Vec<Server> {
        let server = |known: Endpoint| Server {
            addr: known.addr,
            key: known.key,
            weight: 1,
        };
        let known = if self.plan.learns {
            self.endpoints(kind, 0)
        } else {
            vec![]
        };
        known.into_iter().map(server).collect()
    }

    /// The servers of a kind that a client may come to know: of proxies those of its cluster, unless it may use all.
    fn endpoints(&self, kind: Kind, client: usize) -> Vec<Endpoint> {
        let beside = self.plan.beside.as_ref().filter(|beside| !beside.shared);
        let cluster = beside.map(|_| client % 2).filter(|_| kind == Kind::Proxy);
        let known = |process: &usize| cluster.is_none_or(|cluster| self.plan.cluster(*process) == cluster);
        let of_kind = (0..self.plan.servers()).filter(|process| self.plan.kind(*process) == kind);
        of_kind
            .filter(known)
            .map(|process| Endpoint {
                addr: public_addr(process),
                key: self.keys[process].public(),
            })
            .collect()
    }

    /// The machine of a process at the start of one of its lives.
    fn start(&mut self, process: usize, epoch: u32) -> Role {
        let seed = self.seed ^ (process as u64) << 32 ^ u64::from(epoch) << 48;
        let entropy: Box<dyn Entropy> = Box::new(Seeded(Dice::new(seed ^ 0xe17)));
        let kind = self.plan.kind(process);
        let cluster = self.cluster_keys(process);
        let me = Identity {
            node: node_of(process),
            role: role_of(kind),
            epoch,
        };
        let placement = self.placement(process);
        let (payload, keepalive_ms, idle_ms) = (1_200, 1_000, 3_000);
        let reset_secret = [process as u8 + 50; 32];
        let now = self.now;
        match kind {
            Kind::Gateway => {
                let config = GatewayConfig {
                    me,
                    payload,
                    arena_bytes: self.plan.arena_bytes,
                    history_max: HISTORY_DEFAULT,
                    membership_again_ms: MEMBERSHIP_AGAIN_MS,
                    keepalive_ms,
                    idle_ms,
                    name_key: NAME_KEY,
                    paced: vec!["paced".into()],
                    bundle: self.plan.bundle,
                    server_key: self.keys[process].clone(),
                    cluster,
                    reset_secret,
                };
                let mut machine = Gateway::new(config, seed, entropy);
                machine.set_placement(now, placement);
                machine.set_servers(now, self.named(Kind::Gateway), self.named(Kind::Proxy));
                Role::Gateway(Box::new(machine))
            }
            Kind::Proxy => {
                let name_key = NAME_KEY;
                let server_key = self.keys[process].clone();
                let config = ProxyConfig {
                    me,
                    payload,
                    keepalive_ms,
                    idle_ms,
                    name_key,
                    server_key,
                    cluster,
                    reset_secret,
                    // Every frame, one of three, or hardly any.
                    age_every: [1_024, 1, 1_024, 3][(self.seed % 4) as usize],
                };
                let mut machine = Proxy::new(config, seed, entropy);
                machine.set_command_limit(COMMAND_RATE, COMMAND_BURST);
                machine.set_placement(now, placement);
                machine.set_servers(now, self.named(Kind::Gateway), self.named(Kind::Proxy));
                Role::Proxy(Box::new(machine))
            }
            Kind::Broker => {
                let arena_bytes = self.plan.arena_bytes;
                let config = BrokerConfig {
                    me,
                    payload,
                    arena_bytes,
                    name_key: NAME_KEY,
                    cluster,
                    reset_secret,
                };
                let mut machine = Broker::new(config, seed, entropy);
                machine.set_placement(now, placement);
                Role::Broker(Box::new(machine))
            }
            Kind::Router => {
                let mut machine = Router::new(
                    RouterConfig {
                        me,
                        payload,
                        cluster,
                        reset_secret,
                        memberships_max: MEMBERSHIPS_MAX,
                    },
                    seed,
                    entropy,
                );
                machine.set_placement(now, placement);
                Role::Router(Box::new(machine))
            }
            Kind::Client => {
                let client = process - self.plan.servers();
                let config = ClientConfig {
                    gateways: self.given(Kind::Gateway, client),
                    proxies: self.given(Kind::Proxy, client),
                    learns: [self.plan.learns; 2],
                    credential: (client as u64).to_le_bytes().to_vec(),
                    payload,
                    inbox_bytes: self.plan.clients[client].inbox_bytes,
                    socket: 0,
                };
                Role::Client(Box::new(Client::new(config, seed, entropy)))
            }
        }
    }

    fn process_of(&self, client: usize) -> usize {
        self.plan.servers() + client
    }

    fn machine(&mut self, client: usize) -> &mut Client {
        let process = self.process_of(client);
        match &mut self.processes[process].role {
            Role::Client(machine) => machine,
            _ => unreachable!("clients stand behind servers"),
        }
    }

    fn is_up(&self, client: usize) -> bool {
        self.processes[self.process_of(client)].state == State::Up
    }

    /// A client's program starts: it joins its rooms, opens its publications, and its timers run.
    fn begin(&mut self, client: usize) {
        let plan = self.plan.clients[client].clone();
        self.programs.push(Program {
            positions: vec![None; plan.rooms.len()],
            ..Program::default()
        });
        self.open(client);
        for (at, publishing) in plan.publishing.iter().enumerate() {
            let first = 100 * MS + self.dice.below(publishing.every.max(500 * MS));
            let (client, at) = (client as u32, at as u32);
            self.agenda.push(self.now + first, Event::Publish { client, at });
        }
        if let Some(every) = plan.read_every {
            let client = client as u32;
            self.agenda.push(self.now + every, Event::Read { client });
        }
        if let Some(every) = plan.toggle_every {
            let client = client as u32;
            self.agenda.push(self.now + 200 * MS + every, Event::Toggle { client });
        }
        if let Some(every) = self.plan.command_every {
            let (client, first) = (client as u32, 100 * MS + self.dice.below(every));
            self.agenda.push(self.now + first, Event::Command { client });
        }
    }

    /// A client's program sends a command to one of the rooms, or asks who its members are.
    fn command(&mut self, client: usize) {
        let (now, room) = (self.now, self.dice.below(self.plan.rooms.len() as u64) as usize);
        let lifetime = 500 * MS + self.dice.below(4 * SECOND);
        let (name, data) = (self.plan.rooms[room].clone(), self.commands.content());
        let counts = self.dice.below(3) == 0;
        let machine = self.machine(client);
        let number = match counts {
            true => machine.count(now, &name, Some(0), lifetime),
            false => machine.command(now, &name, &data, lifetime),
        };
        if let Ok(number) = number {
            self.commands.sent(now, (client, counts), room, number, lifetime);
        }
        self.agenda.turn_at(self.process_of(client), now);
    }

    /// What a client's program does first in each of its lives.
    fn open(&mut self, client: usize) {
        let plan = self.plan.clients[client].clone();
        self.programs[client].joined = vec![None; plan.rooms.len()];
        for place in 0..plan.rooms.len() {
            self.join(client, place);
        }
        let (now, mut publications) = (self.now, Vec::new());
        for publishing in &plan.publishing {
            let name = self.plan.rooms[publishing.room].clone();
            let opened = self.machine(client).publication(now, &name);
            publications.push(opened.map(|opened| opened.publication));
        }
        self.programs[client].publications = publications;
    }

    fn join(&mut self, client: usize, place: usize) {
        let plan = &self.plan.clients[client];
        let (room, policy) = (plan.rooms[place], plan.policy);
        let name = self.plan.rooms[room].clone();
        let resumed = self.programs[client].positions[place].take().filter(|_| plan.resumes);
        // Who comes back with positions is owed what was published since it left.
        let owed_from = resumed
            .as_ref()
            .filter(|(positions, _)| !positions.0.is_empty())
            .map(|(_, at)| *at);
        let positions = resumed.map(|(positions, _)| positions).unwrap_or_default();
        let (now, asks) = (
            self.now,
            positions.0.is_empty() && self.oracle.memberships.len() % 4 == 1,
        );
        let number = match asks {
            true => self.machine(client).join_last(now, &name, HISTORY, policy),
            false => self.machine(client).join(now, &name, positions, policy),
        };
        let membership = self.oracle.join(client, room, owed_from, now);
        self.commands.asked(now, membership, client, room);
        self.programs[client].joined[place] = Some((number, membership));
        let process = self.process_of(client);
        self.agenda.turn_at(process, now);
    }

    /// Runs to the end and judges.
    pub fn run(mut self) -> (Summary, Result<(), String>) {
        let mut end = self.plan.clock + self.plan.heal + SETTLE;
        end += if self.plan.evicts { EVICTION } else { 0 };
        end += if self.plan.removes() { FORGET } else { 0 };
        let mut result = Ok(());
        let mut noted = false;
        while let Some((at, next)) = self.agenda.pop() {
            if !noted && at >= end - SECOND {
                noted = true;
                self.sent_before_last_second = self.net.sent;
            }
            if at > end {
                break;
            }
            self.now = at;
            result = match next {
                Next::Turn(process) if self.processes[process].state == State::Up => self.turn(process),
                Next::Turn(_) => Ok(()),
                Next::Event(event) => self.handle(event).map(|()| self.await_step()),
            };
            if result.is_err() {
                break;
            }
        }
        let result = result.and_then(|()| self.judge());
        let summary = Summary {
            trace: self.trace,
            published: self.oracle.messages.len() as u64,
            delivered: self.oracle.delivered,
            gaps: self.oracle.gaps,
            reordered: self.oracle.reordered,
            datagrams: self.net.sent,
            lost: self.net.lost,
            overflowed: self.processes.iter().map(|process| process.overflowed).sum(),
            virtual_us: self.now - self.plan.clock,
            minimum: self.minimum(),
            reasons: self.oracle.gap_reasons(),
            accounts: self.accounts,
            ages: self.ages,
            returns: self.returns,
            joins: (self.recovered, self.asked),
            commands: (self.commands.delivered, self.commands.expired, self.commands.counted),
            slowest: self.commands.slowest,
            struck: self.struck.fell,
        };
        (summary, result)
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>10.6}  {}", self.now as f64 / 1e6, what());
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive { at } => {
                let arriving = self.arriving[at as usize].take();
                self.free.push(at);
                let Arriving {
                    to,
                    socket,
                    from,
                    bytes,
                } = arriving.expect("a datagram arrives once");
                let process = &mut self.processes[to as usize];
                let tail = bytes.last_chunk::<8>().map_or(0, |tail| u64::from_le_bytes(*tail));
                for word in [self.now, u64::from(to), u64::from(from.port), bytes.len() as u64, tail] {
                    self.trace = (self.trace.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                }
                process.deliver(Queued { socket, from, bytes });
                if process.state == State::Up {
                    let at = self.now + self.plan.turn;
                    self.agenda.turn_at(to as usize, at);
                }
            }
            Event::Answer(answer) => {
                let Answer {
                    process,
                    epoch,
                    id,
                    user,
                } = *answer;
                let known = &mut self.processes[process];
                if known.epoch == epoch && known.is_alive() {
                    match &mut known.role {
                        Role::Gateway(machine) => machine.answer(self.now, id, user),
                        Role::Proxy(machine) => machine.answer(self.now, id, user),
                        _ => {}
                    }
                    if known.state == State::Up {
                        self.agenda.turn_at(process, self.now);
                    }
                }
            }
            Event::Publish { client, at } => {
                let publishing = self.plan.clients[client as usize].publishing[at as usize];
                if !self.healed {
                    self.publish(client as usize, at as usize, publishing.burst)?;
                    let jitter = self.dice.below(publishing.every / 2 + 1);
                    self.agenda
                        .push(self.now + publishing.every + jitter, Event::Publish { client, at });
                }
            }
            Event::Read { client } => {
                let every = self.plan.clients[client as usize].read_every.filter(|_| !self.healed);
                if self.is_up(client as usize) {
                    self.read(client as usize, if every.is_some() { 1 } else { usize::MAX })?;
                }
                self.agenda
                    .push(self.now + every.unwrap_or(20 * MS), Event::Read { client });
            }
            Event::Toggle { client } => {
                if !self.healed {
                    if self.is_up(client as usize) {
                        self.toggle(client as usize)?;
                    }
                    let every = self.plan.clients[client as usize].toggle_every.unwrap_or(SECOND);
                    let wait = 1 + self.dice.below(2 * every);
                    self.agenda.push(self.now + wait, Event::Toggle { client });
                }
            }
            Event::Command { client } => {
                if let Some(every) = self.plan.command_every.filter(|_| !self.healed) {
                    if self.is_up(client as usize) {
                        self.command(client as usize);
                    }
                    let wait = every / 2 + self.dice.below(every);
                    self.agenda.push(self.now + wait, Event::Command { client });
                }
            }
            Event::Fault { at } => self.fault(self.plan.faults[at as usize].1),
            Event::Restart { process } => self.restart(process as usize),
            Event::Resume { process } => self.resume(process as usize),
            Event::Ended { process, by, down } => self.ended(process as usize, by, down),
            Event::Mend { from, to } => self.net.mend(from as usize, to as usize),
            Event::Hurry { from, to } => self.net.delay(from as usize, to as usize, 0),
            Event::Place { process } => self.place(process as usize),
            Event::Undrain { process, spread } => self.set_draining(process as usize, false, spread),
            Event::Grow { group } => self.grow(group),
            Event::Coordinate { group } => self.coordinate(group),
            Event::Begin => self.begin_beside(),
            Event::Strike => return self.strike(),
            Event::Rekey => self.rekey(),
            Event::TakeKeys { process } => self.take_keys(process as usize)?,
            Event::Heal => self.heal(),
            Event::Views { judged } => return self.views(judged),
            Event::LastWord => {
                self.last_word_at = self.now;
                return self.broadcast();
            }
            Event::Broadcast => return self.broadcast(),
            Event::Everyone { leaves } => self.everyone(leaves)?,
        }
        Ok(())
    }

    /// What a broker that is not ready has numbered.
    fn numbered_unready(&self, process: usize) -> Option<u64> {
        match &self.processes[process].role {
            Role::Broker(broker) if !broker.is_running() => Some(broker.counters.messages_published),
            _ => None,
        }
    }

    fn broadcast(&mut self) -> Result<(), String> {
        for client in 0..self.plan.clients.len() {
            for at in 0..self.plan.clients[client].publishing.len() {
                self.publish(client, at, 1)?;
            }
        }
        Ok(())
    }

    /// Everyone leaves all rooms, or comes back.
    fn everyone(&mut self, leaves: bool) -> Result<(), String> {
        for client in 0..self.plan.clients.len() {
            for place in 0..self.programs[client].joined.len() {
                if self.programs[client].joined[place].is_some() == leaves {
                    if leaves {
                        self.leave(client, place)?;
                    } else {
                        self.join(client, place);
                    }
                }
            }
        }
        Ok(())
    }

    fn turn(&mut self, process: usize) -> Result<(), String> {
        let unready = self.numbered_unready(process);
        let next = self.processes[process]
            .turn(self.now, &mut self.bench)
            .map_err(|why| format!("{:?} (process {process}) {why}", self.plan.kind(process)))?;
        if unready.is_some() && self.numbered_unready(process).is_some_and(|now| Some(now) != unready) {
            return Err(format!(
                "broker {process} numbers messages before it knows who wants them"
            ));
        }
        let mut sent = std::mem::take(&mut self.bench.sent);
        for datagram in sent.drain(..) {
            self.send(process, datagram);
        }
        self.bench.sent = sent;
        self.drain(process)?;
        self.keeps_out(process)?;
        if let Some(at) = next {
            self.agenda.turn_at(process, at);
        }
        Ok(())
    }

    fn send(&mut self, process: usize, datagram: Sent) {
        let from = self.processes[process].addrs[datagram.socket as usize];
        let Some(Some((to, socket))) = self.ports.get(datagram.to.port as usize).copied() else {
            return;
        };
        let fate = self.net.fate(self.now, process, to);
        let [first, again] = fate.arrivals;
        let twin = again.map(|at| (at, self.bench.spare.copy(&datagram.bytes)));
        let Some(first) = first else {
            return self.bench.spare.done(datagram.bytes);
        };
        for (at, mut bytes) in [Some((first, datagram.bytes)), twin].into_iter().flatten() {
            if fate.spoiled {
                self.net.spoil(&mut bytes);
            }
            let arriving = Arriving {
                to: to as u32,
                socket,
                from,
                bytes,
            };
            let place = self.free.pop().unwrap_or_else(|| {
                self.arriving.push(None);
                self.arriving.len() as u32 - 1
            });
            self.arriving[place as usize] = Some(arriving);
            self.agenda.push(at, Event::Arrive { at: place });
        }
    }

    /// What the control plane and the clients' programs do with what they hear.
    fn drain(&mut self, process: usize) -> Result<(), String> {
        let epoch = self.processes[process].epoch;
        let (now, delay) = (self.now, self.plan.auth_delay);
        let mut questions = Vec::new();
        match &mut self.processes[process].role {
            Role::Gateway(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                for event in events {
                    match event {
                        GatewayEvent::Authenticate(question) => questions.push(question),
                        GatewayEvent::Link(change) => self.say(|| format!("gateway {process}: {change:?}")),
                    }
                }
            }
            Role::Proxy(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                for event in events {
                    match event {
                        ProxyEvent::Authenticate(question) => questions.push(question),
                        ProxyEvent::Link(change) => self.say(|| format!("proxy {process}: {change:?}")),
                    }
                }
            }
            Role::Broker(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                events
                    .into_iter()
                    .for_each(|change| self.say(|| format!("broker {process}: {change:?}")));
            }
            Role::Router(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                events
                    .into_iter()
                    .for_each(|change| self.say(|| format!("router {process}: {change:?}")));
            }
            Role::Client(machine) => {
                let mut events = Vec::new();
                machine.drain_events(&mut events);
                return self.hear(process - self.plan.servers(), events);
            }
        }
        for question in questions {
            let user = question
                .credential
                .first_chunk::<8>()
                .map(|bytes| u64::from_le_bytes(*bytes) + 1)
                .ok_or(Denied::Credential);
            let answer = Answer {
                process,
                epoch,
                id: question.id,
                user,
            };
            self.agenda.push(now + delay, Event::Answer(Box::new(answer)));
        }
        Ok(())
    }

    fn hear(&mut self, client: usize, events: Vec<ClientEvent>) -> Result<(), String> {
        let mut readable = false;
        for event in events {
            match event {
                ClientEvent::Joined { room, ref gaps } => {
                    self.say(|| format!("client {client}: joined {room}, gaps {gaps:?}"));
                    let found = self.programs[client]
                        .joined
                        .iter()
                        .flatten()
                        .find(|(number, _)| *number == room);
                    if let Some((_, membership)) = found.copied() {
                        self.oracle.joined(self.now, membership);
                        self.commands.joined(self.now, membership);
                    }
                }
                ClientEvent::Commanded {
                    number, outcome, page, ..
                } => {
                    let stood = self.plan.stands_still(self.process_of(client));
                    self.commands.ended(self.now, client, number, (outcome, page), stood)?;
                }
                ClientEvent::Published(done) => {
                    self.oracle
                        .note_acked(self.now, done.ticket, done.stream, done.offset)?
                }
                ClientEvent::Readable { .. } => readable = true,
                ClientEvent::Refused {
                    room,
                    publication,
                    code,
                } => {
                    return Err(format!(
                        "client {client}: refused: {code:?} ({room}, publication: {publication})"
                    ));
                }
                ClientEvent::Down { side, reason, .. }
                    if self.plan.repairable()
                        && ![Code::Draining.name(), SPREAD].contains(&reason)
                        && !self.awaits_beside(side) =>
                {
                    return Err(format!(
                        "client {client}: its session with a {side:?} was lost for nothing: {reason}"
                    ));
                }
                ClientEvent::Down {
                    retry: false, reason, ..
                } => {
                    return Err(format!("client {client}: refused for good: {reason}"));
                }
                ClientEvent::Down {
                    side: Side::Gateway,
                    reason,
                    ..
                } => {
                    self.say(|| format!("client {client}: lost its gateway: {reason}"));
                    self.commands.lost(self.now, client);
                }
                other => self.say(|| format!("client {client}: {other:?}")),
            }
        }
        if readable && (self.healed || self.plan.clients[client].read_every.is_none()) {
            self.read(client, usize::MAX)?;
        }
        Ok(())
    }

    /// Whether a client may look for proxies of a cluster that is started later.
    fn awaits_beside(&self, side: Side) -> bool {
        let begins = |beside: &Beside| beside.begins.is_some();
        side == Side::Proxy && self.plan.beside.as_ref().is_some_and(begins)
    }

    fn publish(&mut self, client: usize, at: usize, count: usize) -> Result<(), String> {
        if !self.is_up(client) {
            return Ok(());
        }
        let publishing = self.plan.clients[client].publishing[at];
        let Some(publication) = self.publication(client, at) else {
            return Ok(());
        };
        let sender = client as u64 + 1;
        let mut bytes = Vec::new();
        for _ in 0..count {
            let (low, high) = publishing.bytes;
            let len = low + self.dice.below((high - low) as u64 + 1) as usize;
            let number = self
                .oracle
                .next_number(sender, publishing.room, self.programs[client].life);
            content(sender, publishing.room, number, len, &mut bytes);
            let ticket = self.oracle.messages.len() as u64 + 1;
            if self.machine(client).publish(publication, &bytes, ticket).is_err() {
                break;
            }
            self.oracle
                .note_published(self.now, sender, publishing.room, number, len);
        }
        let process = self.process_of(client);
        self.agenda.turn_at(process, self.now);
        Ok(())
    }

    /// A client's publication, opened again if it was closed; none while all places are taken.
    fn publication(&mut self, client: usize, at: usize) -> Option<u32> {
        let (now, room) = (self.now, self.plan.clients[client].publishing[at].room);
        let known = self.programs[client].publications[at];
        let open = |machine: &Client| known.filter(|known| machine.publishing(*known).is_some());
        if let Some(known) = open(self.machine(client)) {
            return Some(known);
        }
        let name = self.plan.rooms[room].clone();
        let opened = self.machine(client).publication(now, &name);
        self.programs[client].publications[at] = opened.map(|opened| opened.publication);
        self.programs[client].publications[at]
    }

    /// A client's program reads at most `count` items of each room.
    fn read(&mut self, client: usize, count: usize) -> Result<(), String> {
        let now = self.now;
        let mut data = Vec::new();
        for place in 0..self.programs[client].joined.len() {
            let Some((room, membership)) = self.programs[client].joined[place] else {
                continue;
            };
            for _ in 0..count {
                data.clear();
                let Some(item) = self.machine(client).read(now, room, &mut data) else {
                    break;
                };
                match item {
                    Item::Command { sender, number, .. } => {
                        let room = self.oracle.memberships[membership].room;
                        self.say(|| format!("client {client}: command {number} of {sender}, membership {membership}"));
                        self.commands.received(membership, room, sender, number, &data)?;
                    }
                    _ => self.oracle.item(membership, &item, &data)?,
                }
            }
        }
        self.note_return();
        let process = self.process_of(client);
        self.agenda.turn_at(process, now);
        Ok(())
    }

    /// Notes when every member that stays has received something that was published after the last return of a process.
    fn note_return(&mut self) {
        let Some((kind, since)) = self.back else { return };
        let stays = |client: usize| self.plan.clients[client].toggle_every.is_none();
        let mut members = self
            .oracle
            .memberships
            .iter()
            .filter(|membership| stays(membership.client));
        if members.all(|membership| membership.newest > since) {
            self.say(|| format!("every member receives again after the return of the {kind:?}"));
            self.returns.push((kind, self.now - since));
            self.back = None;
        }
    }

    /// A client's program leaves one of its rooms, or comes back to one that it left.
    fn toggle(&mut self, client: usize) -> Result<(), String> {
        let count = self.programs[client].joined.len() as u64;
        if count == 0 {
            return Ok(());
        }
        let place = self.dice.below(count) as usize;
        if self.programs[client].joined[place].is_none() {
            self.say(|| format!("client {client}: joins place {place} again"));
            self.join(client, place);
            return Ok(());
        }
        self.leave(client, place)?;
        if self.dice.below(3) == 0 {
            self.join(client, place);
        }
        let process = self.process_of(client);
        self.agenda.turn_at(process, self.now);
        Ok(())
    }

    /// What is said of a join: that nothing was missed, or how many messages come first.
    fn judge_join(&mut self, client: usize, room: u32, membership: usize) -> Result<(), String> {
        let Some(member) = self
            .machine(client)
            .room(room)
            .filter(|member| member.counters.rejoined == 0)
        else {
            return Ok(());
        };
        let (recovered, counters) = (member.recovered(), member.counters);
        let given = member.given.filter(|_| member.is_caught_up());
        let history = given.map_or(0, |(messages, _)| u64::from(messages));
        // What two owners numbered counts twice in a gateway's ring, and comes to the program once.
        let had = counters.delivered + counters.repeats;
        if history > HISTORY.into() || counters.lost + counters.gaps == 0 && had < history {
            return Err(format!(
                "client {client}: {history} messages of history, and {counters:?} had"
            ));
        }
        self.asked += history;
        if recovered == Some(true) {
            self.recovered += 1;
            self.oracle.recovered(membership)?;
        }
        Ok(())
    }

    fn leave(&mut self, client: usize, place: usize) -> Result<(), String> {
        let Some((room, membership)) = self.programs[client].joined[place] else {
            return Ok(());
        };
        self.read(client, usize::MAX)?;
        self.judge_join(client, room, membership)?;
        let member = self.machine(client).room(room);
        let positions = member.map(|room| room.positions.clone()).unwrap_or_default();
        self.say(|| format!("client {client}: leaves {room}"));
        self.machine(client).leave(room);
        self.oracle.memberships[membership].left = true;
        self.commands.left(self.now, membership);
        self.programs[client].joined[place] = None;
        self.programs[client].positions[place] = Some((positions, self.now));
        self.agenda.turn_at(self.process_of(client), self.now);
        Ok(())
    }

    fn fault(&mut self, fault: Fault) {
        self.say(|| format!("fault: {fault:?}"));
        match fault {
            Fault::Kill { process, down } if self.processes[process].state == State::Up => {
                self.count(process);
                self.processes[process].die();
                let process = process as u32;
                self.agenda.push(self.now + down, Event::Restart { process });
            }
            Fault::Remove { process } if self.processes[process].state != State::Removed => {
                if self.processes[process].state != State::Down {
                    self.count(process);
                }
                self.processes[process].die();
                self.processes[process].state = State::Removed;
            }
            Fault::Pause { process, pause } if self.processes[process].state == State::Up => {
                self.processes[process].state = State::Paused;
                self.paused_at.insert(process, self.now);
                if self.plan.kind(process) == Kind::Gateway {
                    self.commands.note_out(self.now, pause);
                }
                let process = process as u32;
                self.agenda.push(self.now + pause, Event::Resume { process });
            }
            Fault::Drain { process, pause, spread } => {
                self.set_draining(process, true, spread);
                let process = process as u32;
                self.agenda.push(self.now + pause, Event::Undrain { process, spread });
            }
            Fault::End { process, down } if self.processes[process].state == State::Up => {
                match &mut self.processes[process].role {
                    Role::Gateway(machine) => machine.drain(),
                    Role::Proxy(machine) => machine.drain(),
                    _ => unreachable!("only these have clients"),
                }
                self.agenda.turn_at(process, self.now);
                self.ended(process, self.now + ENDS_WITHIN, down);
            }
            Fault::Cut { from, to, pause } if from != to => {
                self.net.cut(from, to);
                let (from, to) = (from as u32, to as u32);
                self.agenda.push(self.now + pause, Event::Mend { from, to });
            }
            Fault::Delay { from, to, by, pause } => {
                self.net.delay(from, to, by);
                let (from, to) = (from as u32, to as u32);
                self.agenda.push(self.now + pause, Event::Hurry { from, to });
            }
            _ => {}
        }
    }

    /// Ends a process once its clients are gone, or at this time.
    fn ended(&mut self, process: usize, by: Micros, down: Micros) {
        let drained = match &self.processes[process].role {
            Role::Gateway(machine) => machine.sessions().is_drained(),
            Role::Proxy(machine) => machine.sessions().is_drained() && machine.is_idle(),
            _ => true,
        };
        if drained || self.now >= by {
            return self.fault(Fault::Kill { process, down });
        }
        let process = process as u32;
        self.agenda
            .push(self.now + LOOKS_EVERY, Event::Ended { process, by, down });
    }

    fn restart(&mut self, process: usize) {
        if self.processes[process].state != State::Down {
            return;
        }
        self.say(|| format!("process {process} is back"));
        let (epoch, addrs) = (self.processes[process].epoch + 1, self.processes[process].addrs.clone());
        let role = self.start(process, epoch);
        if let Some(placed) = self.placed.get_mut(process) {
            *placed = self.placement_epoch;
        }
        self.processes[process] = Process::new(role, epoch, addrs);
        if self.plan.back_max.is_some() && self.back.is_none() {
            self.back = Some((self.plan.kind(process), self.now)); // and of whoever died with it
        }
        if let Some(client) = process.checked_sub(self.plan.servers()) {
            let program = &mut self.programs[client];
            program.life += 1;
            program.positions.fill(None);
            for (_, membership) in program.joined.iter().flatten() {
                self.oracle.memberships[*membership].left = true;
            }
            self.oracle.forget(client as u64 + 1);
            self.commands.died(self.now, client);
            self.open(client);
        }
        self.agenda.turn_at(process, self.now);
    }

    fn resume(&mut self, process: usize) {
        if self.processes[process].state != State::Paused {
            return;
        }
        self.say(|| format!("process {process} goes on"));
        self.processes[process].state = State::Up;
        self.agenda.turn_at(process, self.now);
    }

    fn heal(&mut self) {
        self.say(|| "everything is well from here on".into());
        self.healed = true;
        self.unheard.clear();
        self.net.heal();
        for process in self.draining.clone() {
            self.set_draining(process, false, PLACED_AGAIN);
        }
        for process in 0..self.processes.len() {
            self.restart(process);
            self.resume(process);
        }
        for client in 0..self.plan.clients.len() {
            for place in 0..self.programs[client].joined.len() {
                if self.programs[client].joined[place].is_none() {
                    self.join(client, place);
                }
            }
        }
    }

    /// Datagrams without which what was delivered cannot have been: each message once per hop.
    fn minimum(&self) -> u64 {
        3 * self
            .oracle
            .messages
            .iter()
            .map(|message| 1 + message.len as u64 / 1_100)
            .sum::<u64>()
            + self.oracle.delivered_datagrams
    }

    fn judge(&mut self) -> Result<(), String> {
        let end = self.now;
        for client in 0..self.plan.clients.len() {
            for at in 0..self.programs[client].publications.len() {
                let number = self.programs[client].publications[at];
                let machine = self.machine(client);
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
        if self.verbose {
            self.describe();
        }
        let mut positions = BTreeMap::new();
        for client in 0..self.programs.len() {
            for (room, membership) in self.programs[client].joined.clone().into_iter().flatten() {
                self.judge_join(client, room, membership)?;
                let member = self.machine(client).room(room);
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
            let owner = &self.processes[stream.node as usize - 1];
            let positions = positions.get(&membership).and_then(Option::as_ref);
            let had = positions.and_then(|positions| positions.of(stream));
            let dead = owner.epoch > stream.epoch || !owner.is_alive();
            several && dead && had.is_none_or(|had| had.course == Course::Ended)
        };
        self.oracle.complete(may_lose, is_over)?;
        // A partition whose only broker drains has none for that long.
        let drains = |fault: &Fault| matches!(fault, Fault::Drain { .. });
        let singly = |beside: &Beside| beside.brokers == beside.partitions;
        let singly = self.plan.brokers == self.plan.partitions.0 || self.plan.beside.as_ref().is_some_and(singly);
        let alone = singly && self.plan.every_fault().any(drains);
        // Who is of a cluster that is started later has no proxy until then.
        let late = self.plan.beside.as_ref().is_some_and(|beside| beside.begins.is_some());
        let reads = |client: usize| clients[client].read_every.is_none();
        let mild = repairable && !alone && !late;
        self.commands.judge(mild, self.plan.prompt, reads)?;
        self.last_word()?;
        self.returned()?;
        self.interest()?;
        self.grown()?;
        self.has_struck()?;
        self.has_rekeyed()?;
        self.bounds(end)?;
        self.ejections()?;
        self.taken_back()?;
        for process in 0..self.processes.len() {
            if self.processes[process].is_alive() {
                self.count(process);
            }
        }
        self.accounts()
    }

    fn describe(&mut self) {
        for client in 0..self.plan.clients.len() {
            for place in 0..self.programs[client].joined.len() {
                let Some((room, _)) = self.programs[client].joined[place] else {
                    continue;
                };
                let name = self.plan.rooms[self.plan.clients[client].rooms[place]].clone();
                let member = self.machine(client).room(room);
                let state = member.map(|m| {
                    (
                        m.handle,
                        m.is_blocked(),
                        m.positions.clone(),
                        m.counters,
                        m.reading.items.len(),
                    )
                });
                self.say(|| format!("client {client}, {name}: {state:?}"));
            }
        }
    }

    /// What was published when all was well again must have come, whatever was before.
    fn last_word(&self) -> Result<(), String> {
        let from = self.last_word_at;
        for membership in self.oracle.memberships.iter().filter(|membership| !membership.left) {
            let from = from.max(membership.joined_at.unwrap_or(from));
            let (had, published) = self.oracle.had_since(membership, from);
            let reader = &self.plan.clients[membership.client];
            if reader.read_every.is_some() && reader.policy != Policy::Block {
                continue; // its inbox may be too small for what comes at once
            }
            if had != published {
                self.say(|| format!("{membership:?}"));
                return Err(format!(
                    "client {} in room {}: {had} of {} messages came that were published when all was well",
                    membership.client, membership.room, published
                ));
            }
        }
        Ok(())
    }

    /// After each return of a process every member received again soon.
    fn returned(&self) -> Result<(), String> {
        let Some(max) = self.plan.back_max else { return Ok(()) };
        match self.returns.iter().find(|(_, after)| *after > max) {
            Some((kind, after)) => Err(format!(
                "{after} us until every member received again after the return of a {kind:?}"
            )),
            None => Ok(()),
        }
    }

    /// Brokers know exactly the rooms that gateways have members of, and gateways have exactly the members that joined.
    fn interest(&self) -> Result<(), String> {
        let mut members: BTreeMap<u64, usize> = BTreeMap::new();
        for membership in self.oracle.memberships.iter().filter(|membership| !membership.left) {
            *members.entry(self.room_id(membership.room)).or_default() += 1;
        }
        let mut held = BTreeMap::new();
        for gateway in self.gateways() {
            for room in gateway.1.rooms() {
                *held.entry(room.id).or_default() += room.members.len();
            }
        }
        if held != members {
            return Err(format!(
                "gateways have members {held:?} where clients are in {members:?}"
            ));
        }
        let wanted = self.wanted();
        self.views_between(&wanted, &wanted)
    }

    /// The gateways that are there, by process.
    fn gateways(&self) -> impl Iterator<Item = (usize, &Gateway)> {
        let alive = self.processes.iter().enumerate().filter(|(_, known)| known.is_alive());
        alive.filter_map(|(process, known)| match &known.role {
            Role::Gateway(gateway) => Some((process, &**gateway)),
            _ => None,
        })
    }

    /// Which gateways want which rooms.
    fn wanted(&self) -> BTreeSet<(u32, u64)> {
        let rooms = |(process, gateway): (usize, &Gateway)| {
            let rooms: Vec<_> = gateway.rooms().map(|room| (node_of(process), room.id)).collect();
            rooms
        };
        self.gateways().flat_map(rooms).collect()
    }

    /// Soon after the last fault each view is what the gateways want, but for what began or ended within the last second.
    fn views(&mut self, judged: bool) -> Result<(), String> {
        let wanted = self.wanted();
        let before = std::mem::replace(&mut self.wanted_before, wanted);
        match judged {
            true => self.views_between(
                &before.intersection(&self.wanted_before).copied().collect(),
                &before.union(&self.wanted_before).copied().collect(),
            ),
            false => Ok(()),
        }
    }

    /// Brokers and routers know all of their partition that is wanted at least, and nothing that is not wanted at all.
    fn views_between(&self, least: &BTreeSet<(u32, u64)>, most: &BTreeSet<(u32, u64)>) -> Result<(), String> {
        let (brokers, routers) = self.plan.partitions;
        let beside = self.plan.beside.as_ref().map_or(0, |beside| beside.partitions);
        for (process, known) in self.processes.iter().enumerate() {
            let brokers = [brokers, beside][self.plan.cluster(process)];
            let (who, known, partitions) = match &known.role {
                Role::Broker(broker) => ("broker", broker.interest().wanted(), brokers),
                Role::Router(router) => ("router", router.interest().wanted(), routers),
                _ => continue,
            };
            let partition = self.plan.partition(process) as u64;
            let of_partition = |(_, room): &&(u32, u64)| room % partitions as u64 == partition;
            let known: BTreeSet<_> = known.into_iter().collect();
            let lacks = least.iter().filter(of_partition).any(|wanted| !known.contains(wanted));
            if lacks
                || !known
                    .iter()
                    .all(|wanted| of_partition(&wanted) && most.contains(wanted))
            {
                let least: Vec<_> = least.iter().filter(of_partition).collect();
                return Err(format!(
                    "{who} {process} believes that {known:?} is wanted where {least:?} is at {}",
                    self.now
                ));
            }
        }
        Ok(())
    }

    /// What was to double has.
    fn grown(&self) -> Result<(), String> {
        let (brokers, routers) = self.plan.partitions;
        let second = self
            .plan
            .beside
            .as_ref()
            .map(|beside| ((Kind::Broker, 1), beside.partitions));
        let groups = [((Kind::Broker, 0), brokers), ((Kind::Router, 0), routers)];
        for (group, count) in groups.into_iter().chain(second) {
            let layer = self.growths[&group].layer;
            if layer != Layer::from(count as u16) {
                return Err(format!("{group:?} did not come to {count} partitions: {layer:?}"));
            }
        }
        Ok(())
    }

    fn room_id(&self, room: usize) -> u64 {
        let name = RoomName::parse(&self.plan.rooms[room]).expect("rooms have good names");
        name.key(&NAME_KEY).id
    }

    /// Whether two servers, the first of which stands behind the second, keep a link.
    fn are_linked(&self, one: usize, other: usize) -> bool {
        let (brokers, routers) = self.plan.partitions;
        let beside = self.plan.beside.as_ref().map_or(0, |beside| beside.partitions);
        let [of_one, of_other] = [one, other].map(|process| self.plan.partition(process));
        match (self.plan.kind(one), self.plan.kind(other)) {
            (Kind::Router, Kind::Router) => of_one == of_other,
            (Kind::Router, Kind::Broker) => of_one % brokers == of_other % routers,
            (Kind::Broker, Kind::Router) => of_one % routers == of_other % beside,
            (Kind::Broker, Kind::Proxy) => self.plan.cluster(one) == self.plan.cluster(other),
            (Kind::Router | Kind::Broker, Kind::Gateway) => true,
            _ => false,
        }
    }

    /// Nothing storms when nothing happens, and nothing grew beyond its bound.
    fn bounds(&self, _end: Micros) -> Result<(), String> {
        let sessions: u64 = self
            .processes
            .iter()
            .filter(|process| process.is_alive())
            .map(|process| match &process.role {
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
        let idle = self.net.sent - self.sent_before_last_second;
        let idle_max = links * IDLE_LINK_DATAGRAMS + sessions * IDLE_SESSION_DATAGRAMS;
        if idle > idle_max {
            return Err(format!(
                "{idle} datagrams in the last second, in which nothing happened; {idle_max} are allowed"
            ));
        }
        let seconds = self.now / SECOND + 1;
        let bound = 8 * self.minimum() + seconds * 4 * idle_max;
        if self.net.sent > bound {
            return Err(format!(
                "{} datagrams for what takes {}; {bound} are allowed",
                self.net.sent,
                self.minimum()
            ));
        }
        for process in &self.processes {
            let arena = match &process.role {
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

    /// Where nothing failed and the network only loses, nobody may have been taken for dead.
    fn ejections(&self) -> Result<(), String> {
        let grows = |beside: &Beside| beside.grows.is_some();
        let grows = !self.plan.grows.is_empty() || self.plan.beside.as_ref().is_some_and(grows);
        if !(self.plan.repairable() && self.plan.faults.is_empty() && !grows) {
            return Ok(());
        }
        for (number, process) in self.processes.iter().enumerate() {
            let links = match &process.role {
                Role::Gateway(machine) => machine.links(),
                Role::Proxy(machine) => machine.links(),
                Role::Broker(machine) => machine.links(),
                Role::Router(machine) => machine.links(),
                Role::Client(_) => continue,
            };
            if links.counters.links_down > 0 {
                let (kind, down) = (self.plan.kind(number), links.counters.links_down);
                return Err(format!("{kind:?} {number} lost {down} links for nothing"));
            }
            if let Role::Proxy(machine) = &process.role {
                let counters = &machine.health.counters;
                if *counters != HealthCounters::default() {
                    return Err(format!("proxy {number} left brokers out for nothing: {counters:?}"));
                }
            }
        }
        Ok(())
    }

    /// In the end each broker that lives is among those that its proxies give commands to. What it lost and left unanswered is
    /// forgotten later, in up to 20 s, and so is all of who was shut out before the end.
    fn taken_back(&self) -> Result<(), String> {
        if let Some(Identities::Out(_)) = self.plan.identities {
            return Ok(());
        }
        let living = || (0..self.processes.len()).filter(|process| self.processes[*process].is_alive());
        for proxy in living() {
            let Role::Proxy(machine) = &self.processes[proxy].role else {
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

    /// Adds a process's counters to the accounts, at the end of its life or of the run.
    fn count(&mut self, process: usize) {
        let (kind, accounts) = (self.plan.kind(process), &mut self.accounts);
        let mut add = |name, value| *accounts.entry((kind, name)).or_default() += value;
        match &self.processes[process].role {
            Role::Proxy(machine) => {
                machine.counters.each(|name, _, value| add(name, value));
                machine.health.counters.each(|name, _, value| add(name, value));
            }
            Role::Broker(machine) => {
                machine.counters.each(|name, _, value| add(name, value));
                add("held", machine.held());
                note_ages(self.ages.entry(kind).or_insert((0, u32::MAX, 0)), &machine.ages);
            }
            Role::Gateway(machine) => {
                machine.counters.each(|name, _, value| add(name, value));
                add("held", machine.held());
                note_ages(self.ages.entry(kind).or_insert((0, u32::MAX, 0)), &machine.ages);
            }
            Role::Client(machine) => machine.counters.each(|name, _, value| add(name, value)),
            Role::Router(_) => {}
        }
    }

    /// Message by message, what came was passed on, had come before, is held, or was dropped by reason (I-8).
    fn accounts(&self) -> Result<(), String> {
        for (kind, names) in ACCOUNTED {
            let of = |name| self.accounts.get(&(kind, name)).copied().unwrap_or(0);
            let (received, accounted) = (of("messages_received"), names.iter().copied().map(of).sum::<u64>());
            if received != accounted {
                return Err(format!(
                    "of {received} messages that came to a {kind:?} {accounted} are accounted for: {:?}",
                    self.accounts
                ));
            }
        }
        Ok(())
    }
}

fn note_ages((count, least, most): &mut (u64, u32, u32), ages: &Ages) {
    for (_, histogram) in ages.iter() {
        *count += histogram.count();
        *least = (*least).min(histogram.least_us);
        *most = (*most).max(histogram.most_us);
    }
}

fn role_of(kind: Kind) -> NodeRole {
    match kind {
        Kind::Gateway => NodeRole::Gateway,
        Kind::Proxy => NodeRole::Proxy,
        Kind::Broker => NodeRole::Broker,
        Kind::Router => NodeRole::Router,
        Kind::Client => NodeRole::Client,
    }
}
