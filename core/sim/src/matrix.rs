//! The doubling matrix: each fault on each role at each step of a doubling, one at a time.
//!
//! Owns the cells. `plan/struck` draws a run for one of them; `rooms` detects when a step is reached. Knows no plan.

use std::fmt;

use muster_transport::Micros;

use crate::fault::{Fault, Kind};

/// The step of a doubling. The first node to learn of a step and the last one to finish it are up to a second apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Step {
    /// The registry announces twice as many partitions: some nodes have not learned of it, or some new replicas have
    /// not started.
    Prepare,
    /// All have learned of it, and the new replicas run; some are not settled.
    Running,
    /// The rooms are divided among twice as many partitions: some nodes use the new division, some the old one.
    Switch,
    /// All use the new division; some are not settled.
    Acks,
    /// All are settled; both old and new partitions learn of rooms, for data still in transit.
    Grace,
    /// The growth is over: some nodes still report to both partitions, some only to the room's own.
    Final,
    /// All have learned of it; former rooms are forgotten, and the rest is subscribed to again.
    Clean,
}

/// The victim of a fault. Without "new", one of the old partitions of its layer.
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
    /// Nothing reaches it or leaves it, or nothing to and from some nodes; it may also be cut off from the registry.
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

/// A fault that happens once, during one step.
#[derive(Clone, Debug)]
pub struct Strike {
    pub cell: Cell,
    pub process: usize,
    pub faults: Vec<Fault>,
    /// How long the process is cut off from the registry as well, if at all.
    pub registry: Option<Micros>,
}

/// All cells; new replicas are victims only of the layer that doubles.
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
}

impl Cell {
    /// Whether no member waits for anything of the victim.
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

/// The options that select it.
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
