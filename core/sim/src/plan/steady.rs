//! Runs of steady load on a near network, each with one kind of fault.

use muster_rooms::limits::RELAY_ABOVE;
use muster_rooms::MISSING_WAIT;
use muster_simkit::{clock, Draw};
use muster_transport::{Micros, DEAD_AFTER, DIAL_MAX};

use super::topology::Topology;
use super::{ClientPlan, Fault, Growing, Plan, Publishing, Weather, MS, SECOND};

/// How long after the return of a killed process every member receives again, even with a loss of 5 %.
pub const BACK_MAX: Micros = 2 * SECOND;
/// Duration of a run without events: ten of them are an hour.
const LOSSY: Micros = 360 * SECOND;
const KILL_EVERY: Micros = 6 * SECOND;
/// Maximum number of processes that are killed one after the other.
const KILLED_MAX: usize = 6;

impl Plan {
    /// A run without faults, through one gateway and one proxy, on a uniform network.
    pub(super) fn steady(
        seed: u64,
        draw: &mut Draw,
        topology: Topology,
        rooms: Vec<String>,
        clients: Vec<ClientPlan>,
        weather: Weather,
    ) -> Plan {
        Plan {
            clock: clock(seed),
            gateways: 1,
            proxies: 1,
            brokers: topology.brokers,
            routers: topology.routers,
            partitions: topology.partitions,
            rooms,
            clients,
            links: weather,
            sessions: weather,
            heal: 0,
            faults: vec![],
            arena_bytes: 16 << 20,
            auth_delay: draw.below(5 * MS),
            turn: draw.within(0, 200),
            bundle: true,
            evicts: false,
            converges: None,
            back_max: None,
            command_every: None,
            prompt: None,
            grows: vec![],
            growing: Growing::default(),
            strike: None,
            second: None,
            rekeys: None,
            identities: None,
            learns: false,
            filters: false,
            relay_above: RELAY_ABOVE,
        }
    }

    /// Draws a run that kills each role under steady load, half the time together with another one, on a near network
    /// that mostly has a high loss.
    pub fn kills(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0x5eed);
        let rooms: Vec<String> = (0..draw.within(1, 6)).map(|at| format!("live:room-{at}")).collect();
        let every = draw.within(5 * MS, 50 * MS);
        let publishing = |room| Publishing {
            room,
            every,
            burst: 1,
            bytes: (100, 200),
        };
        let member = ClientPlan {
            rooms: (0..rooms.len()).collect(),
            ..ClientPlan::default()
        };
        let mut clients = vec![member; draw.within(1, 4) as usize];
        clients.push(ClientPlan {
            publishing: (0..rooms.len()).map(publishing).collect(),
            ..ClientPlan::default()
        });
        clients.push(ClientPlan {
            rooms: vec![0],
            toggle_every: Some(300 * MS),
            ..ClientPlan::default()
        });
        let weather = Weather {
            latency: draw.within(20, 300),
            jitter: draw.within(0, 300),
            loss: if draw.chance(80) { 50_000 } else { 0 },
            ..Weather::default()
        };
        let topology = Topology::draw(seed, 1);
        let servers = 2 + topology.brokers + topology.routers;
        let mut processes: Vec<usize> = (0..servers).collect();
        while processes.len() > KILLED_MAX {
            processes.swap_remove(draw.below(processes.len() as u64) as usize);
        }
        let (mut faults, mut heal) = (Vec::new(), 2 * SECOND);
        while !processes.is_empty() {
            let process = processes.swap_remove(draw.below(processes.len() as u64) as usize);
            let (at, down) = (heal + draw.below(SECOND / 2), 50 * MS + draw.skewed(3 * SECOND));
            faults.push((at, Fault::Kill { process, down }));
            if draw.chance(50) {
                let process = (process + draw.within(1, servers as u64 - 1) as usize) % servers;
                faults.push((at, Fault::Kill { process, down }));
            }
            heal += KILL_EVERY;
        }
        Plan {
            heal,
            faults,
            back_max: Some(BACK_MAX),
            ..Plan::steady(seed, &mut draw, topology, rooms, clients, weather)
        }
    }

    /// Draws a run in which one of several proxies dies, stands still or is cut off while commands go through all of
    /// them, on a near network with little loss.
    pub fn copies(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0xc0b1);
        let rooms: Vec<String> = (0..draw.within(1, 4)).map(|at| format!("live:room-{at}")).collect();
        let publishing = |room| Publishing {
            room,
            every: 50 * MS,
            burst: 1,
            bytes: (100, 200),
        };
        // The last room has no member.
        let member = ClientPlan {
            rooms: (0..rooms.len().max(2) - 1).collect(),
            ..ClientPlan::default()
        };
        let mut clients = vec![member; draw.within(4, 8) as usize];
        clients[0].publishing = vec![publishing(0)];
        let weather = Weather {
            latency: draw.within(20, 10 * MS),
            jitter: draw.skewed(5 * MS),
            loss: draw.skewed(20_000),
            ..Weather::default()
        };
        let topology = Topology::draw(seed, draw.within(1, 3) as usize);
        let (gateways, proxies) = (draw.within(1, 2) as usize, draw.within(2, 4) as usize);
        let first = gateways + proxies;
        let servers = first + topology.brokers + topology.routers;
        let process = gateways + draw.below(proxies as u64) as usize;
        let (at, pause) = (draw.within(SECOND, 3 * SECOND), draw.within(SECOND, 5 * SECOND));
        let cuts = |others: std::ops::Range<usize>| {
            let cut = |to: usize| [(process, to), (to, process)].map(|(from, to)| Fault::Cut { from, to, pause });
            others.map(cut).collect::<Vec<_>>()
        };
        let struck = match draw.below(5) {
            0 => vec![Fault::Remove { process }],
            1 => vec![Fault::Pause { process, pause }],
            2 => vec![Fault::Kill { process, down: pause }],
            // Clients do not get the outcomes of its commands; or the proxy itself does not.
            3 => cuts(servers..servers + clients.len())
                .into_iter()
                .map(|[from, _]| from)
                .collect(),
            _ => cuts(first..first + topology.brokers)
                .into_iter()
                .map(|[_, to]| to)
                .collect(),
        };
        let run = Plan::steady(seed, &mut draw, topology, rooms, clients, weather);
        Plan {
            gateways,
            proxies,
            faults: struck.into_iter().map(|fault| (at, fault)).collect(),
            heal: at + pause + 3 * SECOND,
            command_every: Some(SECOND),
            prompt: Some(SECOND),
            ..run
        }
    }

    /// Draws a run in which routers are cut off from each other for a while and a broker dies meanwhile, maybe with
    /// one of the routers. Then the other router has rooms that were joined without it, or the next broker asks the
    /// router that does not know of them.
    pub fn apart(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0xa9a7);
        let rooms: Vec<String> = (0..draw.within(4, 12)).map(|at| format!("live:room-{at}")).collect();
        let publishing = |room| Publishing {
            room,
            every: 20 * MS,
            burst: 1,
            bytes: (100, 200),
        };
        let member = ClientPlan {
            rooms: (0..rooms.len()).collect(),
            ..ClientPlan::default()
        };
        let mut clients = vec![member; draw.within(2, 5) as usize];
        for client in &mut clients {
            client.toggle_every = Some(draw.within(400 * MS, 2 * SECOND));
        }
        clients.push(ClientPlan {
            publishing: (0..rooms.len()).map(publishing).collect(),
            ..ClientPlan::default()
        });
        let weather = Weather {
            latency: draw.within(20, 300),
            jitter: draw.within(0, 300),
            loss: draw.skewed(20_000),
            ..Weather::default()
        };
        let topology = Topology {
            brokers: 2,
            routers: 2,
            partitions: (1, 1),
        };
        let run = Plan::steady(seed, &mut draw, topology, rooms, clients, weather);
        let (gateways, proxies) = (2, 2);
        let first = gateways + proxies;
        let [broker, router] = [first, first + run.brokers];
        let (mut faults, mut heal) = (Vec::new(), SECOND);
        for _ in 0..draw.within(4, 6) {
            // Longer than the timeout of a silent link, and over early enough for waiting members to learn of it:
            // nodes dial only now and then, and a dial may be lost.
            let pause = draw.within(DEAD_AFTER + 500 * MS, DEAD_AFTER + MISSING_WAIT - 2 * DIAL_MAX);
            for (from, to) in [(router, router + 1), (router + 1, router)] {
                faults.push((heal, Fault::Cut { from, to, pause }));
            }
            let after = draw.within(DEAD_AFTER, pause);
            let mut killed = vec![broker + draw.below(2) as usize];
            killed.extend(draw.chance(80).then(|| router + draw.below(2) as usize));
            for process in killed {
                let down = draw.skewed(SECOND);
                faults.push((heal + after, Fault::Kill { process, down }));
            }
            heal += 6 * SECOND;
        }
        Plan {
            gateways,
            proxies,
            faults,
            heal,
            command_every: Some(30 * MS),
            ..run
        }
    }

    /// Draws a run in which a gateway and brokers are cut off from each other for longer than a dead gateway is
    /// waited for; routers and its members are connected to it all the time.
    pub fn cut_off(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0xc0ff);
        let mut plan = Plan::apart(seed);
        for client in &mut plan.clients {
            client.toggle_every = None;
        }
        let brokers = plan.gateways + plan.proxies..plan.gateways + plan.proxies + plan.brokers;
        let (gateway, pause) = (
            draw.below(plan.gateways as u64) as usize,
            draw.within(4 * SECOND, 6 * SECOND),
        );
        let both = |broker| [(gateway, broker), (broker, gateway)];
        let cut = |(from, to)| (2 * SECOND, Fault::Cut { from, to, pause });
        let faults = brokers.flat_map(both).map(cut).collect();
        Plan {
            faults,
            heal: 2 * SECOND + pause,
            ..plan
        }
    }

    /// Draws minutes in which nothing happens except that a near network loses one datagram in twenty.
    pub fn lossy(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0x5eed);
        let rooms: Vec<String> = (0..draw.within(1, 6)).map(|at| format!("live:room-{at}")).collect();
        let client = |draw: &mut Draw| ClientPlan {
            rooms: (0..rooms.len()).collect(),
            publishing: vec![Publishing {
                room: draw.below(rooms.len() as u64) as usize,
                every: draw.within(20 * MS, 2 * SECOND),
                burst: 1,
                bytes: (100, 200),
            }],
            ..ClientPlan::default()
        };
        let clients = (0..draw.within(2, 6)).map(|_| client(&mut draw)).collect();
        let weather = Weather {
            latency: draw.within(20, 2 * MS),
            jitter: draw.skewed(5 * MS),
            loss: 50_000,
            ..Weather::default()
        };
        let run = Plan::steady(seed, &mut draw, Topology::draw(seed, 2), rooms, clients, weather);
        Plan {
            gateways: 2,
            proxies: 2,
            heal: LOSSY,
            command_every: draw.chance(50).then_some(SECOND),
            ..run
        }
    }
}
