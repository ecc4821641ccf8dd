//! What happens in one run: topology, load, network and faults, all drawn from the seed.
//!
//! Owns the draw and nothing else. Each kind of fault is there or not, and weak or strong, independently (swarm testing), so
//! that a run is not always the average of everything.

use muster_proto::client::member::Policy;
use muster_proto::gateway::SESSION_ROOMS;
use muster_proto::limits::SESSION_PUBLICATIONS_MAX;
use muster_proto::links::{DEAD_AFTER, DIAL_MAX};
use muster_proto::machine::Micros;
use muster_proto::missing::MISSING_WAIT;
use muster_proto::node::Dice;

use crate::beside::Beside;
use crate::identities::Identities;
use crate::matrix::Strike;

pub const MS: Micros = 1_000;
pub const SECOND: Micros = 1_000_000;
/// How long after the last fault everything must be as if nothing had happened: sessions idle out (3 s), a leave is held
/// (2 s), a client's longest wait between attempts (5 s), and three repair intervals.
pub const SETTLE: Micros = 13 * SECOND;
/// The same of views, where nobody joins or leaves any more: three repair intervals, each as long as a silent link is believed in.
pub const CONVERGED: Micros = 3 * SECOND;
/// How much longer it takes until a gateway that never came back is forgotten: its lease, and what a router that started
/// meanwhile takes to say that it knows all there is to know.
pub const FORGET: Micros = 34 * SECOND;
/// How long after a killed process is back every member receives again, also where one datagram of twenty is lost.
pub const BACK_MAX: Micros = 2 * SECOND;
/// How long a run lasts in which nothing happens: ten of them are an hour.
const LOSSY: Micros = 360 * SECOND;
const KILL_EVERY: Micros = 6 * SECOND;
/// So many processes are killed one after the other.
const KILLED_MAX: usize = 6;

/// Probabilities per million, and times, of one direction of a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub latency: Micros,
    pub jitter: Micros,
    pub loss: u64,
    /// Gilbert-Elliott: chance to enter and to leave the bad state, per datagram; in it half is lost.
    pub burst_in: u64,
    pub burst_out: u64,
    pub duplicate: u64,
    pub reorder: u64,
    pub corrupt: u64,
}

impl Weather {
    /// Whether repairs keep up with it.
    fn is_mild(&self) -> bool {
        self.loss + self.corrupt <= 50_000 && self.burst_in == 0 && self.latency <= 20 * MS
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Gateway,
    Proxy,
    Broker,
    Router,
    Client,
}

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The process dies and starts again with a higher epoch and nothing but its keys.
    Kill { process: usize, down: Micros },
    /// The process dies and never comes back.
    Remove { process: usize },
    /// The process stands still.
    Pause { process: usize, pause: Micros },
    /// The placement says that the process drains, and after a while that it runs again; everyone hears of it within `spread`.
    Drain {
        process: usize,
        pause: Micros,
        spread: Micros,
    },
    /// The process is told to end and sends its clients to others; it starts again so long after it has ended.
    End { process: usize, down: Micros },
    /// Nothing gets from one to the other; the way back stays open.
    Cut { from: usize, to: usize, pause: Micros },
    /// What goes from one to the other takes so much longer.
    Delay {
        from: usize,
        to: usize,
        by: Micros,
        pause: Micros,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Publishing {
    pub room: usize,
    pub every: Micros,
    pub burst: usize,
    pub bytes: (usize, usize),
}

#[derive(Clone, Debug)]
pub struct ClientPlan {
    pub rooms: Vec<usize>,
    pub publishing: Vec<Publishing>,
    pub policy: Policy,
    pub inbox_bytes: usize,
    /// A slow reader: takes one item this often.
    pub read_every: Option<Micros>,
    /// Leaves a room and comes back, this often.
    pub toggle_every: Option<Micros>,
    /// Comes back with the positions it had.
    pub resumes: bool,
}

/// A client that does nothing, and would read at once.
impl Default for ClientPlan {
    fn default() -> Self {
        ClientPlan {
            rooms: vec![],
            publishing: vec![],
            policy: Policy::default(),
            inbox_bytes: 4 << 20,
            read_every: None,
            toggle_every: None,
            resumes: false,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Plan {
    /// What the machines' clock says at the start.
    pub clock: Micros,
    pub gateways: usize,
    pub proxies: usize,
    pub brokers: usize,
    pub routers: usize,
    /// In how many partitions brokers and routers stand.
    pub partitions: (usize, usize),
    pub rooms: Vec<String>,
    pub clients: Vec<ClientPlan>,
    pub links: Weather,
    pub sessions: Weather,
    pub faults: Vec<(Micros, Fault)>,
    /// When publishing and faults end.
    pub heal: Micros,
    pub arena_bytes: usize,
    pub auth_delay: Micros,
    pub turn: Micros,
    pub bundle: bool,
    /// Everyone leaves and is silent for longer than a room is kept, then comes back.
    pub evicts: bool,
    /// How long after healing at most all views are to be those of the gateways.
    pub converges: Option<Micros>,
    /// How long after the return of a killed process every member must have received something new at the latest.
    pub back_max: Option<Micros>,
    /// How often each client sends a command.
    pub command_every: Option<Micros>,
    /// Within what time each command has its outcome, whatever becomes of one proxy.
    pub prompt: Option<Micros>,
    /// When the partitions of brokers, or of routers, double, each once; `partitions` is what comes of it.
    pub grows: Vec<(Micros, Kind)>,
    pub growing: Growing,
    /// A fault that falls into a step of the doubling.
    pub strike: Option<Strike>,
    pub beside: Option<Beside>,
    /// When the cluster's secret begins to be replaced, within what time all servers take a step of it, and how long it is
    /// until the next step then.
    pub rekeys: Option<(Micros, Micros, Micros)>,
    /// Whether nodes have to prove who they are, as that goes on.
    pub identities: Option<Identities>,
    /// Each client is given one gateway and no proxy; servers name the others.
    pub learns: bool,
}

/// How the control plane doubles partitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growing {
    /// Within it all hear of a step.
    pub spread: Micros,
    /// So long after everyone is done with a step the next one begins.
    pub grace: Micros,
    /// Who stands still is not waited for: its session with the registry is over.
    pub forgets_paused: bool,
}

/// In two seeds of three the clock passes a number after which 32 bits of microseconds, or of milliseconds, begin anew.
pub fn clock(seed: u64) -> Micros {
    match seed % 3 {
        0 => 0,
        1 => (1 << 32) - 4 * SECOND,
        _ => (1 << 32) * MS - 4 * SECOND,
    }
}

/// How many brokers and routers there are, and in how many partitions.
struct Topology {
    brokers: usize,
    routers: usize,
    partitions: (usize, usize),
}

impl Topology {
    /// In half of the seeds one router; `brokers` in one partition, in a quarter of them in more.
    fn draw(seed: u64, brokers: usize) -> Topology {
        let mut draw = Draw(Dice::new(seed ^ 0x7090));
        let counts = |draw: &mut Draw| (1 << draw.below(3), draw.within(1, 2) as usize);
        let (router_parts, router_replicas) = if draw.chance(50) { (1, 1) } else { counts(&mut draw) };
        let (broker_parts, broker_replicas) = if draw.chance(75) {
            (1, brokers)
        } else {
            counts(&mut draw)
        };
        Topology {
            brokers: broker_parts * broker_replicas,
            routers: router_parts * router_replicas,
            partitions: (broker_parts, router_parts),
        }
    }

    /// One or two partitions of one or two replicas each, and as many as that becomes for those that grow.
    fn grown(seed: u64, grows: impl Fn(Kind) -> bool) -> Topology {
        let mut draw = Draw(Dice::new(seed ^ 0x960b));
        let mut layer = |kind| {
            let parts = 1 << (draw.below(2) + u64::from(grows(kind)));
            (parts, parts * draw.within(1, 2) as usize)
        };
        let ((broker_parts, brokers), (router_parts, routers)) = (layer(Kind::Broker), layer(Kind::Router));
        Topology {
            brokers,
            routers,
            partitions: (broker_parts, router_parts),
        }
    }

    /// Routers that drain for a while, so that gateways and brokers go to others and come back; `first`: the first router.
    fn drains(&self, seed: u64, first: usize, heal: Micros) -> Vec<(Micros, Fault)> {
        let mut draw = Draw(Dice::new(seed ^ 0xd4a1));
        let count = if self.routers > 1 && draw.chance(50) {
            draw.within(1, 3)
        } else {
            0
        };
        let drain = |_| {
            let process = first + draw.below(self.routers as u64) as usize;
            let pause = draw.within(10 * MS, 6 * SECOND);
            (
                draw.within(100 * MS, heal - 200 * MS),
                Fault::Drain {
                    process,
                    pause,
                    spread: 300 * MS,
                },
            )
        };
        (0..count).map(drain).collect()
    }
}

/// The draw.
pub struct Draw(Dice);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(Dice::new(seed))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    /// Mostly small numbers, seldom large ones up to `high`.
    pub fn skewed(&mut self, high: u64) -> u64 {
        let shift = self.below(6);
        self.below((high >> shift).max(1))
    }

    pub fn weather(&mut self, near: bool) -> Weather {
        let mut weather = Weather {
            latency: if near {
                self.within(20, 2_000)
            } else {
                self.within(50, 40_000)
            },
            ..Weather::default()
        };
        if self.chance(60) {
            weather.jitter = self.skewed(if near { 3_000 } else { 20_000 });
        }
        if self.chance(60) {
            weather.loss = self.skewed(100_000);
        }
        if self.chance(20) {
            weather.burst_in = self.skewed(10_000);
            weather.burst_out = self.within(30_000, 300_000);
        }
        if self.chance(40) {
            weather.duplicate = self.skewed(60_000);
        }
        if self.chance(40) {
            weather.reorder = self.skewed(60_000);
        }
        if self.chance(25) {
            weather.corrupt = self.skewed(20_000);
        }
        weather
    }
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let mut plan = Plan::drawn(seed, |brokers| Topology::draw(seed, brokers));
        plan.learns = Draw(Dice::new(seed ^ 0x1ea2)).chance(30);
        plan
    }

    /// The draw of a run in which the partitions of brokers, of routers or of both double.
    pub fn grows(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0x9204));
        let kinds = match draw.below(3) {
            0 => vec![Kind::Broker],
            1 => vec![Kind::Router],
            _ => vec![Kind::Broker, Kind::Router],
        };
        let mut plan = Plan::drawn(seed, |_| Topology::grown(seed, |kind| kinds.contains(&kind)));
        let grows = kinds.into_iter().map(|kind| (draw.within(300 * MS, 2 * SECOND), kind));
        plan.grows = grows.collect();
        plan.growing = Growing {
            spread: draw.skewed(SECOND) + 1,
            grace: draw.skewed(SECOND),
            forgets_paused: draw.chance(50),
        };
        plan
    }

    /// The draw of a run in which clients send commands, in the weathers and faults of one of the others.
    pub fn commands(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0xc033));
        let mut plan = match seed % 4 {
            0 => Plan::draw(seed),
            1 => Plan::moves(seed),
            2 => Plan::kills(seed),
            _ if seed % 8 == 7 => return Plan::copies(seed),
            _ => Plan::grows(seed),
        };
        plan.command_every = Some(draw.within(100 * MS, 2 * SECOND));
        plan
    }

    /// The draw of a run in which one of several proxies dies, stands still or is not heard any more, while commands go by all of
    /// them, on a near network that loses little.
    pub fn copies(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0xc0b1));
        let rooms: Vec<String> = (0..draw.within(1, 4)).map(|at| format!("live:room-{at}")).collect();
        let publishing = |room| Publishing {
            room,
            every: 50 * MS,
            burst: 1,
            bytes: (100, 200),
        };
        // Nobody is in the last room.
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
            // Nobody hears what became of what it takes; or it does not.
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

    /// The draw of a run in which the cluster's secret is replaced, in the weathers and faults of one of the others. In a quarter
    /// of the seeds nodes come to prove who they are meanwhile, in another one they do, and one of them is shut out for a while.
    pub fn rekeys(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0x4e35));
        let mut plan = match seed % 3 {
            0 => Plan::draw(seed),
            1 => Plan::moves(seed),
            _ => Plan::kills(seed),
        };
        let (spread, rest) = (draw.skewed(SECOND) + 1, draw.skewed(SECOND));
        let at = draw.within(0, SECOND);
        plan.rekeys = Some((at, spread, rest));
        plan.identities = match seed / 3 % 4 {
            1 => Some(Identities::Come),
            3 => Some(Identities::Out(draw.below(plan.servers() as u64) as usize)),
            _ => None,
        };
        if let Some(Identities::Out(_)) = plan.identities {
            plan.rekeys = Some((at, spread, draw.within(SECOND / 2, 3 * SECOND)));
            plan.back_max = None; // who is back may be shut out
        }
        plan
    }

    /// The draw of a run in which rooms move between brokers that begin to drain and come back.
    pub fn moves(seed: u64) -> Plan {
        let mut plan = Plan::drawn(seed, |brokers| Topology::draw(seed, brokers.max(2)));
        let mut draw = Draw(Dice::new(seed ^ 0x3035));
        plan.brokers_drain(&mut draw);
        plan
    }

    /// Brokers drain one after the other, so that each room has a running one.
    fn brokers_drain(&mut self, draw: &mut Draw) {
        let first = self.gateways + self.proxies;
        let mut at = draw.within(200 * MS, SECOND);
        while at < self.heal {
            let pause = draw.skewed(2 * SECOND) + MS;
            let fault = Fault::Drain {
                process: first + draw.below(self.brokers as u64) as usize,
                pause,
                spread: draw.within(1, 2 * SECOND),
            };
            self.faults.push((at, fault));
            at += pause + draw.skewed(2 * SECOND);
        }
    }

    fn drawn(seed: u64, topology: impl FnOnce(usize) -> Topology) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0x5eed));
        let gateways = if draw.chance(50) { 1 } else { 2 };
        let proxies = if draw.chance(60) { 1 } else { 2 };
        let brokers = if draw.chance(80) { 1 } else { 2 };
        let topology = topology(brokers);
        let Topology {
            brokers,
            routers,
            partitions,
        } = topology;
        let crowd = draw.chance(15);
        let rooms: usize = if draw.chance(12) {
            draw.within(20, 60) as usize
        } else {
            draw.within(1, 6) as usize
        };
        let rooms: Vec<String> = (0..rooms)
            .map(|at| {
                let namespace = if draw.chance(20) { "paced" } else { "live" };
                format!("{namespace}:room-{at}")
            })
            .collect();
        let slow_readers = draw.chance(30);
        let toggles = draw.chance(40);
        let chunks = draw.chance(40);
        let hot = draw.chance(30);
        let heal = draw.within(3 * SECOND, 7 * SECOND);
        let process_faults = draw.chance(55);
        let cuts = draw.chance(35);
        let calm = draw.chance(15);
        let count = if crowd { draw.within(15, 24) } else { draw.within(4, 10) };
        let mut clients = Vec::new();
        for at in 0..count {
            let publishes = at == 0 || draw.chance(40);
            let reads = at != 0 && (!publishes || draw.chance(50));
            let mut client = ClientPlan {
                rooms: Vec::new(),
                publishing: Vec::new(),
                policy: Policy::DropOldest,
                inbox_bytes: 4 << 20,
                read_every: None,
                toggle_every: None,
                resumes: draw.chance(50),
            };
            if reads {
                let many = rooms.len() > 10 && draw.chance(50);
                for room in 0..rooms.len() {
                    if draw.chance(if many { 90 } else { 50 }) || room == at as usize % rooms.len() {
                        client.rooms.push(room);
                    }
                }
                if slow_readers && draw.chance(40) {
                    client.read_every = Some(draw.within(2 * MS, 200 * MS));
                    client.inbox_bytes = draw.within(2_000, 200_000) as usize;
                    client.policy = match draw.below(3) {
                        0 => Policy::DropOldest,
                        1 => Policy::DropNewest,
                        _ => Policy::Block,
                    };
                }
                if toggles && draw.chance(50) {
                    client.toggle_every = Some(draw.within(20 * MS, 3 * SECOND));
                }
            }
            if publishes {
                let few = 1 + draw.below(3) as usize;
                for _ in 0..few {
                    let room = draw.below(rooms.len() as u64) as usize;
                    if client.publishing.iter().any(|known| known.room == room) {
                        continue;
                    }
                    let low = if draw.chance(20) {
                        2
                    } else {
                        8 + draw.below(100) as usize
                    };
                    let high = low + draw.skewed(900) as usize;
                    let bytes = if chunks && draw.chance(50) {
                        (low, 1_000 + draw.skewed(64 * 1024 - 1_000) as usize)
                    } else {
                        (low, high)
                    };
                    let mut every = draw.within(2 * MS, 300 * MS);
                    if hot && draw.chance(40) {
                        every = draw.within(200, 2 * MS);
                    }
                    if bytes.1 > 4_000 {
                        every = every.max(20 * MS);
                    }
                    let burst = if draw.chance(30) {
                        1 + draw.below(40) as usize
                    } else {
                        1
                    };
                    if burst > 5 {
                        every = every.max(30 * MS);
                    }
                    client.publishing.push(Publishing {
                        room,
                        every,
                        burst,
                        bytes,
                    });
                }
            }
            clients.push(client);
        }
        let (mut links, mut sessions) = (draw.weather(true), draw.weather(false));
        if calm {
            let quiet = |weather: Weather| Weather {
                latency: weather.latency,
                ..Weather::default()
            };
            (links, sessions) = (quiet(links), quiet(sessions));
        }
        let servers = gateways + proxies + brokers + routers;
        let all = servers + clients.len();
        let mut faults = Vec::new();
        if process_faults && !calm {
            for _ in 0..draw.within(1, 4) {
                let at = draw.within(300 * MS, heal - 500 * MS);
                // Clients die too: what they had not been told is theirs to lose.
                let among = if draw.chance(70) { servers } else { all };
                let process = draw.below(among as u64) as usize;
                let fault = if draw.chance(60) {
                    Fault::Kill {
                        process,
                        down: draw.within(5 * MS, 2 * SECOND),
                    }
                } else {
                    Fault::Pause {
                        process,
                        pause: draw.within(50 * MS, 5 * SECOND),
                    }
                };
                faults.push((at, fault));
            }
        }
        if cuts && !calm {
            for _ in 0..draw.within(1, 4) {
                let at = draw.within(100 * MS, heal - 200 * MS);
                let (from, to) = if draw.chance(60) {
                    (draw.below(servers as u64), draw.below(servers as u64))
                } else {
                    (draw.below(all as u64), draw.below(all as u64))
                };
                let (from, to) = (from as usize, to as usize);
                let pause = draw.within(20 * MS, 3 * SECOND);
                faults.push((at, Fault::Cut { from, to, pause }));
                if draw.chance(40) {
                    faults.push((
                        at,
                        Fault::Cut {
                            from: to,
                            to: from,
                            pause,
                        },
                    ));
                }
            }
        }
        for (_, fault) in &faults {
            if let Fault::Kill { process, .. } = fault {
                if let Some(client) = process.checked_sub(servers) {
                    // Its messages must tell its lives apart.
                    clients[client]
                        .publishing
                        .iter_mut()
                        .for_each(|p| p.bytes.0 = p.bytes.0.max(8));
                    clients[client]
                        .publishing
                        .iter_mut()
                        .for_each(|p| p.bytes.1 = p.bytes.1.max(8));
                }
            }
        }
        if !calm {
            faults.extend(topology.drains(seed, servers - routers, heal));
        }
        if brokers > 1 {
            // Where owners change, what is short could not be told from what came before.
            let all = clients.iter_mut().flat_map(|client| &mut client.publishing);
            all.for_each(|p| p.bytes = (p.bytes.0.max(8), p.bytes.1.max(8)));
        }
        let mut plan = Plan {
            clock: clock(seed),
            gateways,
            proxies,
            brokers,
            routers,
            partitions,
            rooms,
            clients,
            links,
            sessions,
            faults,
            heal,
            arena_bytes: if draw.chance(30) { 1 << 20 } else { 16 << 20 },
            auth_delay: if draw.chance(50) { 0 } else { draw.below(30 * MS) },
            turn: draw.within(0, 200),
            bundle: !draw.chance(5),
            evicts: draw.chance(4),
            converges: None,
            back_max: None,
            command_every: None,
            prompt: None,
            grows: vec![],
            growing: Growing::default(),
            strike: None,
            beside: None,
            rekeys: None,
            identities: None,
            learns: false,
        };
        if plan.gateways > 1 && process_faults && !calm && draw.chance(15) {
            let at = draw.within(300 * MS, heal - 500 * MS);
            let process = draw.below(gateways as u64) as usize;
            plan.faults.push((at, Fault::Remove { process }));
            if draw.chance(50) {
                let process = servers - 1 - draw.below(routers as u64) as usize;
                let down = draw.within(5 * MS, SECOND);
                plan.faults.push((at + 200 * MS, Fault::Kill { process, down }));
            }
        }
        plan
    }

    /// The draw of a run that kills each role under steady load, half the time together with another one, on a near network
    /// that mostly loses a lot.
    pub fn kills(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0x5eed));
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

    /// A run without faults, through one gateway and one proxy, on a network that is the same everywhere.
    fn steady(
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
            beside: None,
            rekeys: None,
            identities: None,
            learns: false,
        }
    }

    /// The draw of a run in which hardly anything is published, but everyone joins and leaves all the time, under the faults of the
    /// plain plan, at least some.
    pub fn members(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        let mut draw = Draw(Dice::new(seed ^ 0x0e3b));
        let rooms = draw.within(2, 40) as usize;
        plan.rooms = (0..rooms).map(|at| format!("live:room-{at}")).collect();
        for (at, client) in plan.clients.iter_mut().enumerate() {
            *client = ClientPlan {
                resumes: client.resumes,
                ..ClientPlan::default()
            };
            if at == 0 {
                client.publishing.push(Publishing {
                    room: 0,
                    every: SECOND,
                    burst: 1,
                    bytes: (8, 100),
                });
            } else {
                let share = draw.within(10, 90);
                client.rooms = (0..rooms).filter(|_| draw.chance(share)).collect();
                client.toggle_every = Some(draw.within(50 * MS, 500 * MS)); // within what a session may join
            }
        }
        plan.faults.retain(|(_, fault)| !matches!(fault, Fault::Remove { .. }));
        let servers = plan.servers() as u64;
        for _ in 0..draw.within(u64::from(plan.faults.is_empty()), 3) {
            let at = draw.within(300 * MS, plan.heal - 200 * MS);
            let [process, to] = [0; 2].map(|_| draw.below(servers) as usize);
            let (down, pause) = (draw.within(5 * MS, 2 * SECOND), draw.within(20 * MS, 3 * SECOND));
            plan.faults.push((
                at,
                match draw.below(3) {
                    0 => Fault::Kill { process, down },
                    1 => Fault::Pause { process, pause },
                    _ => Fault::Cut {
                        from: process,
                        to,
                        pause,
                    },
                },
            ));
        }
        Plan {
            evicts: false,
            converges: Some(CONVERGED),
            ..plan
        }
    }

    /// The draw of a run in which routers hear nothing of each other for a while and a broker dies meanwhile, maybe with one of them,
    /// so that the other one owns rooms that were joined without it, or the next one asks the router that has not heard of them.
    pub fn apart(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0xa9a7));
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
            // Longer than a silent link is believed in, and over so early that who waits then still hears of it: they dial now and
            // then, and that may be lost.
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

    /// The draw of a run in which a gateway hears nothing of brokers, and they nothing of it, for longer than one that is dead is waited
    /// for; routers and its members have it all the time.
    pub fn cut_off(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0xc0ff));
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

    /// The draw of minutes in which nothing happens but that a near network loses one datagram of twenty.
    pub fn lossy(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0x5eed));
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

    /// The draw of a run in which clients publish to more rooms than a session may have open.
    pub fn many_rooms(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0x5eed));
        let count = draw.within(SESSION_PUBLICATIONS_MAX as u64 + 1, 400) as usize;
        let every = draw.within(500 * MS, 3 * SECOND);
        let mut clients = Vec::new();
        for _ in 0..draw.within(1, 2) {
            let publishing = |room| Publishing {
                room,
                every,
                burst: 2,
                bytes: (8, 100),
            };
            clients.push(ClientPlan {
                publishing: (0..count).map(publishing).collect(),
                ..ClientPlan::default()
            });
        }
        for _ in 0..draw.within(1, 3) {
            let first = draw.below((count - SESSION_ROOMS) as u64) as usize;
            clients.push(ClientPlan {
                rooms: (first..first + SESSION_ROOMS).collect(),
                ..ClientPlan::default()
            });
        }
        let proxies = draw.within(1, 2) as usize;
        let weather = Weather {
            latency: draw.within(20, 10_000),
            jitter: draw.skewed(10_000),
            loss: draw.skewed(50_000),
            duplicate: draw.skewed(60_000),
            reorder: draw.skewed(60_000),
            ..Weather::default()
        };
        let mut faults = Vec::new();
        for _ in 0..draw.below(3) {
            let process = 1 + draw.below(proxies as u64 + 1) as usize;
            let down = draw.within(5 * MS, SECOND);
            faults.push((draw.within(2 * SECOND, 5 * SECOND), Fault::Kill { process, down }));
        }
        Plan {
            clock: clock(seed),
            gateways: 1,
            proxies,
            brokers: 1,
            routers: 1,
            partitions: (1, 1),
            rooms: (0..count).map(|at| format!("live:room-{at}")).collect(),
            clients,
            links: weather,
            sessions: weather,
            faults,
            heal: 6 * SECOND,
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
            beside: None,
            rekeys: None,
            identities: None,
            learns: false,
        }
    }

    /// The draw of a run in which more comes behind a hole than a gateway with a small arena holds: much is published at once,
    /// links lose in bursts, an owner may die while holes are open, and members come back for what they missed.
    pub fn holes(seed: u64) -> Plan {
        let mut draw = Draw(Dice::new(seed ^ 0x5eed));
        let rooms: Vec<String> = (0..draw.within(1, 3)).map(|at| format!("live:room-{at}")).collect();
        let publishing = Publishing {
            room: 0,
            every: draw.within(5 * MS, 20 * MS),
            burst: draw.within(64, 256) as usize,
            bytes: (200, draw.within(800, 1_000) as usize),
        };
        let publishing = |room| Publishing { room, ..publishing };
        let mut clients = vec![ClientPlan {
            publishing: (0..rooms.len()).map(publishing).collect(),
            ..ClientPlan::default()
        }];
        for _ in 0..draw.within(1, 3) {
            clients.push(ClientPlan {
                rooms: (0..rooms.len()).collect(),
                toggle_every: draw.chance(60).then(|| draw.within(50 * MS, 500 * MS)),
                resumes: true,
                ..ClientPlan::default()
            });
        }
        let weather = Weather {
            latency: draw.within(20, 2_000),
            jitter: draw.skewed(2_000),
            loss: draw.within(0, 20_000),
            burst_in: draw.within(500, 5_000),
            burst_out: draw.within(30_000, 300_000),
            ..Weather::default()
        };
        let heal = 3 * SECOND;
        let mut faults = Vec::new();
        for _ in 0..draw.within(1, 3) {
            let (process, down) = (2, draw.within(5 * MS, 500 * MS));
            faults.push((draw.within(500 * MS, heal), Fault::Kill { process, down }));
        }
        Plan {
            clock: clock(seed),
            gateways: 1,
            proxies: 1,
            brokers: 1,
            routers: 1,
            partitions: (1, 1),
            rooms,
            clients,
            links: weather,
            sessions: Weather {
                latency: draw.within(20, 5_000),
                ..Weather::default()
            },
            faults,
            heal,
            arena_bytes: 1 << 20,
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
            beside: None,
            rekeys: None,
            identities: None,
            learns: false,
        }
    }

    pub fn servers(&self) -> usize {
        self.gateways + self.proxies + self.brokers + self.routers + self.beside.as_ref().map_or(0, Beside::servers)
    }

    /// All faults, whenever they come.
    pub fn every_fault(&self) -> impl Iterator<Item = &Fault> {
        let timed = self.faults.iter().map(|(_, fault)| fault);
        timed.chain(self.strike.iter().flat_map(|strike| &strike.faults))
    }

    /// Whether a process dies for good.
    pub fn removes(&self) -> bool {
        self.every_fault().any(|fault| matches!(fault, Fault::Remove { .. }))
    }

    /// Whether a publisher's order may change: where another owner numbers again what the one before took with it, a message that
    /// was told as lost may come after those behind it.
    pub fn may_reorder(&self) -> bool {
        let dies = |fault: &Fault| match fault {
            Fault::Kill { process, .. } | Fault::Remove { process } => self.kind(*process) == Kind::Broker,
            _ => false,
        };
        let shared = self
            .beside
            .as_ref()
            .is_some_and(|beside| beside.shared || beside.brokers > 1);
        !self.repairable() && !self.keeps_order() && (self.brokers > 1 || shared || self.every_fault().any(dies))
    }

    /// The longest that a process stands still.
    pub fn stands_still(&self, process: usize) -> Micros {
        let pauses = self.every_fault().filter_map(|fault| match fault {
            Fault::Pause { process: of, pause } if *of == process => Some(*pause),
            _ => None,
        });
        pauses.max().unwrap_or(0)
    }

    /// Of a broker or a router: its partition.
    pub fn partition(&self, process: usize) -> usize {
        if let Some((_, partition)) = self.kind_beside(process) {
            return partition;
        }
        let first = self.gateways + self.proxies;
        match self.kind(process) {
            Kind::Broker => (process - first) % self.partitions.0,
            Kind::Router => (process - first - self.brokers) % self.partitions.1,
            _ => 0,
        }
    }

    /// Whether brokers or routers double.
    pub fn doubles(&self, kind: Kind) -> bool {
        self.grows.iter().any(|(_, of)| *of == kind)
    }

    /// In how many partitions brokers and routers stand at the start.
    pub fn partitions_before(&self) -> (usize, usize) {
        let before = |count, kind| if self.doubles(kind) { count / 2 } else { count };
        let (brokers, routers) = self.partitions;
        (before(brokers, Kind::Broker), before(routers, Kind::Router))
    }

    /// What stands at a process's index: gateways first, then proxies, brokers, routers, the second cluster, clients.
    pub fn kind(&self, process: usize) -> Kind {
        let bounds = [self.gateways, self.proxies, self.brokers, self.routers];
        let kinds = [Kind::Gateway, Kind::Proxy, Kind::Broker, Kind::Router];
        let mut left = process;
        for (bound, kind) in bounds.into_iter().zip(kinds) {
            if left < bound {
                return kind;
            }
            left -= bound;
        }
        self.kind_beside(process).map_or(Kind::Client, |(kind, _)| kind)
    }

    /// Whether only somebody is struck who numbers no message and holds none for a member: nobody has a gap.
    pub fn spares_members(&self) -> bool {
        self.strike.as_ref().is_some_and(|strike| strike.cell.spares_members())
            && self.faults.is_empty()
            && self.links.is_mild()
            && self.sessions.is_mild()
    }

    /// Whether moreover no room moves while somebody is struck, and no proxy may find that an owner cannot be reached.
    fn keeps_order(&self) -> bool {
        self.spares_members() && self.strike.as_ref().is_some_and(|strike| strike.cell.keeps_owners())
    }

    /// Whether repairs must be able to mend all that the network does, so that no gap is allowed to anyone who reads, and order is
    /// kept where rooms move.
    pub fn repairable(&self) -> bool {
        // A session takes 213 KB a round trip: beyond this, who reads may fall behind what a ring keeps.
        let publishing = self.clients.iter().flat_map(|client| &client.publishing);
        let load: u64 = publishing
            .map(|p| (p.burst * (p.bytes.0 + p.bytes.1) / 2) as u64 * SECOND / p.every)
            .sum();
        let moves = |fault: &Fault| matches!(fault, Fault::Drain { .. } | Fault::End { .. });
        self.every_fault().all(moves)
            && self.strike.is_none()
            && !matches!(self.identities, Some(Identities::Out(_)))
            && load < 1_000_000
            && self.links.is_mild()
            && self.sessions.is_mild()
            && self.arena_bytes > 1 << 20
    }
}
