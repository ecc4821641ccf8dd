//! Runs of the doubling matrix: one fault during one step of a doubling, under steady traffic.

use muster_rooms::limits::RELAY_ABOVE;
use muster_simkit::{clock, Draw};

use super::{ClientPlan, Fault, Growing, Kind, Plan, Publishing, Weather, MS, SECOND};
use crate::matrix::{Blow, Cell, Strike, Victim};

impl Cell {
    /// Draws a run with the fault during the step, under steady traffic.
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
            filters: false,
            relay_above: RELAY_ABOVE,
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
            second: None,
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

impl Victim {
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

/// In half of the runs the network is fault-free; in the others it has a bit of everything.
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

/// One or two clients publish to all rooms, some stay in all rooms, some come and go.
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
