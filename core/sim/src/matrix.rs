//! The doubling matrix: each fault on each role at each step of a doubling, one at a time.
//!
//! Owns what the cells are and the draw of a run for one of them. When a step is reached is known in `rooms`.

use std::fmt;

use muster_simkit::{clock, Draw};
use muster_transport::Micros;

use crate::plan::{ClientPlan, Fault, Growing, Kind, Plan, Publishing, Weather, MS, SECOND};

/// The step of a doubling. The first of all nodes to hear of a step and the last one to finish it are up to a second
/// apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    /// The registry says that there will be twice as many: not everyone has heard of it, or not all new replicas have begun.
    Prepare,
    /// All have heard, and the new replicas are there; not everyone is settled.
    Running,
    /// The rooms are dealt to twice as many: some go by it, some by the map before.
    Switch,
    /// All go by it; not everyone is settled.
    Acks,
    /// All are settled; old and new partitions are both told of rooms, for data still under way.
    Grace,
    /// The growth is over: some still tell both, some only the room's own partition.
    Final,
    /// All have heard of it; former rooms are forgotten, and the rest is asked for anew.
    Clean,
}

/// The victim of a blow. Without "new", one of the old partitions of its layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Victim {
    Broker,
    NewBroker,
    Router,
    NewRouter,
    Proxy,
    Gateway,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Blow {
    Kill,
    Pause,
    /// Nothing gets to it or away from it, or to and from some; and it may hear nothing from the registry either.
    Partition,
}

pub const STEPS: [Step; 7] = [
    Step::Prepare,
    Step::Running,
    Step::Switch,
    Step::Acks,
    Step::Grace,
    Step::Final,
    Step::Clean,
];
const VICTIMS: [Victim; 6] = [
    Victim::Broker,
    Victim::NewBroker,
    Victim::Router,
    Victim::NewRouter,
    Victim::Proxy,
    Victim::Gateway,
];
const BLOWS: [Blow; 3] = [Blow::Kill, Blow::Pause, Blow::Partition];

/// One combination of the matrix, for the doubling of brokers or of routers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cell {
    pub layer: Kind,
    pub victim: Victim,
    pub blow: Blow,
    pub step: Step,
}

/// A blow that falls once, during one step.
#[derive(Clone, Debug)]
pub struct Strike {
    pub cell: Cell,
    pub process: usize,
    pub faults: Vec<Fault>,
    /// The process is cut off from the registry as well, for this long.
    pub registry: Option<Micros>,
}

/// All cells; brokers and routers have new replicas where it is they that double.
pub fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for layer in [Kind::Broker, Kind::Router] {
        for victim in VICTIMS.into_iter().filter(|victim| victim.may_be(layer)) {
            for blow in BLOWS {
                cells.extend(STEPS.map(|step| Cell {
                    layer,
                    victim,
                    blow,
                    step,
                }));
            }
        }
    }
    cells
}

impl Victim {
    fn may_be(self, layer: Kind) -> bool {
        match self {
            Victim::NewBroker => layer == Kind::Broker,
            Victim::NewRouter => layer == Kind::Router,
            _ => true,
        }
    }

    fn is(self, plan: &Plan, process: usize) -> bool {
        let (brokers, routers) = plan.partitions_before();
        let part = plan.partition(process);
        match (plan.kind(process), self) {
            (Kind::Broker, Victim::Broker) => part < brokers,
            (Kind::Broker, Victim::NewBroker) => part >= brokers,
            (Kind::Router, Victim::Router) => part < routers,
            (Kind::Router, Victim::NewRouter) => part >= routers,
            (Kind::Proxy, Victim::Proxy) | (Kind::Gateway, Victim::Gateway) => true,
            _ => false,
        }
    }
}

impl Cell {
    /// Whether the victim has nothing that a member waits for.
    pub fn spares_members(self) -> bool {
        match self.victim {
            Victim::Proxy | Victim::Router | Victim::NewRouter => true,
            Victim::NewBroker => self.step < Step::Switch,
            Victim::Broker | Victim::Gateway => false,
        }
    }

    /// Whether all publishers can reach all owners, and rooms stay with them.
    pub fn keeps_owners(self) -> bool {
        let broker = matches!(self.victim, Victim::Broker | Victim::NewBroker);
        !broker && self.blow != Blow::Partition && self.layer == Kind::Router
    }

    /// The draw of a run in which the fault falls into the step, under steady traffic.
    pub fn plan(self, seed: u64) -> Plan {
        let mixed = (self.step as u64) << 12 | (self.victim as u64) << 8 | (self.blow as u64) << 4 | self.layer as u64;
        let mut draw = Draw::new(seed ^ mixed << 32 ^ 0x3a71);
        let mut plan = self.quiet(seed, &mut draw);
        let among: Vec<usize> = (0..plan.servers())
            .filter(|process| self.victim.is(&plan, *process))
            .collect();
        let process = among[draw.below(among.len() as u64) as usize];
        plan.strike = Some(self.strike(&plan, process, &mut draw));
        plan
    }

    fn quiet(self, seed: u64, draw: &mut Draw) -> Plan {
        let mut layer = |kind| {
            let parts = 1 << (draw.below(2) + u64::from(kind == self.layer));
            (parts, parts * draw.within(1, 2) as usize)
        };
        let ((broker_parts, brokers), (router_parts, routers)) = (layer(Kind::Broker), layer(Kind::Router));
        let rooms: Vec<String> = (0..draw.within(2, 8))
            .map(|at| {
                let namespace = if draw.chance(20) { "paced" } else { "live" };
                format!("{namespace}:room-{at}")
            })
            .collect();
        let (links, sessions) = weather(draw);
        Plan {
            clock: clock(seed),
            gateways: draw.within(1, 2) as usize,
            proxies: draw.within(1, 2) as usize,
            brokers,
            routers,
            partitions: (broker_parts, router_parts),
            clients: clients(rooms.len(), draw),
            rooms,
            links,
            sessions,
            faults: vec![],
            heal: 8 * SECOND,
            arena_bytes: 16 << 20,
            auth_delay: draw.below(5 * MS),
            turn: draw.within(0, 200),
            bundle: true,
            evicts: false,
            rekeys: None,
            identities: None,
            learns: false,
            converges: None,
            back_max: None,
            command_every: draw.chance(50).then(|| draw.within(200 * MS, 2 * SECOND)),
            prompt: None,
            grows: vec![(draw.within(500 * MS, SECOND), self.layer)],
            growing: Growing {
                spread: draw.within(100 * MS, 600 * MS),
                grace: draw.within(100 * MS, 600 * MS),
                forgets_paused: draw.chance(50),
            },
            strike: None,
            beside: None,
        }
    }

    fn strike(self, plan: &Plan, process: usize, draw: &mut Draw) -> Strike {
        let pause = draw.within(50 * MS, 4 * SECOND);
        let (faults, registry) = match self.blow {
            Blow::Kill => {
                let down = draw.within(5 * MS, 2 * SECOND);
                (vec![Fault::Kill { process, down }], None)
            }
            Blow::Pause => (vec![Fault::Pause { process, pause }], None),
            Blow::Partition => {
                let all = plan.servers() + plan.clients.len();
                let (everyone, alone) = (draw.chance(50), draw.chance(20));
                let others = (0..all).filter(|other| *other != process && !alone && (everyone || draw.chance(40)));
                let others: Vec<usize> = others.collect();
                let both = |other| [(process, other), (other, process)];
                let cut = |(from, to)| Fault::Cut { from, to, pause };
                let registry = others.is_empty() || draw.chance(50);
                (
                    others.into_iter().flat_map(both).map(cut).collect(),
                    registry.then_some(pause),
                )
            }
        };
        Strike {
            cell: self,
            process,
            faults,
            registry,
        }
    }
}

/// On half of the days all is well but for the fault; else the network does a bit of everything.
fn weather(draw: &mut Draw) -> (Weather, Weather) {
    if draw.chance(30) {
        return (draw.weather(true), draw.weather(false));
    }
    let loss = if draw.chance(50) { draw.skewed(20_000) } else { 0 };
    let mut mild = |latency| Weather {
        latency: draw.within(20, latency),
        jitter: draw.skewed(1_000),
        loss,
        ..Weather::default()
    };
    (mild(2_000), mild(15_000))
}

/// One or two publish to all rooms, some stay in all rooms, some come and go.
fn clients(rooms: usize, draw: &mut Draw) -> Vec<ClientPlan> {
    let every = draw.within(10 * MS, 60 * MS);
    let publishing = |room| Publishing {
        room,
        every,
        burst: 1,
        bytes: (20, 200),
    };
    let publisher = ClientPlan {
        publishing: (0..rooms).map(publishing).collect(),
        ..ClientPlan::default()
    };
    let mut clients = vec![publisher; draw.within(1, 2) as usize];
    let member = ClientPlan {
        rooms: (0..rooms).collect(),
        ..ClientPlan::default()
    };
    clients.extend(vec![member.clone(); draw.within(1, 3) as usize]);
    for resumes in [false, true] {
        clients.push(ClientPlan {
            toggle_every: Some(draw.within(30 * MS, SECOND)),
            resumes,
            ..member.clone()
        });
    }
    clients
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Prepare => "prepare",
            Step::Running => "running",
            Step::Switch => "switch",
            Step::Acks => "acks",
            Step::Grace => "grace",
            Step::Final => "final",
            Step::Clean => "clean",
        })
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Victim::Broker => "broker",
            Victim::NewBroker => "new-broker",
            Victim::Router => "router",
            Victim::NewRouter => "new-router",
            Victim::Proxy => "proxy",
            Victim::Gateway => "gateway",
        })
    }
}

impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Blow::Kill => "kill",
            Blow::Pause => "pause",
            Blow::Partition => "partition",
        })
    }
}

/// The options that choose it.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layer = layer_name(self.layer);
        let Cell { step, victim, blow, .. } = self;
        write!(f, "--layer {layer} --step {step} --role {victim} --fault {blow}")
    }
}

pub fn layer_name(layer: Kind) -> &'static str {
    match layer {
        Kind::Router => "router",
        _ => "broker",
    }
}
