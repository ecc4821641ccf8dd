//! Thousands of clients in one thread: the generator of the benches and the load harness.
//!
//! Owns the clients, their expected messages and their actions. Every delivery is checked byte for byte; latency
//! counts from the intended send time of an open-loop schedule. Knows no server.
#![forbid(unsafe_code)]

mod commands;
mod feed;
mod pacing;
mod scale;
mod swarm;
mod wheel;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use muster_driver::{Budget, Driver, Faults};
use muster_rooms::limits::SESSION_PUBLICATIONS_MAX;
use muster_rooms::{Client, ClientConfig, Endpoint, PublishError, Side};
use muster_transport::{Addr, Micros};
use muster_udp::{monotonic_now, Counters, KernelEntropy, Socket, SocketOptions};

pub use commands::{Commanded, Commanding};
pub use feed::{Feed, FeedConfig};
use pacing::Schedule;
pub use pacing::{Pacing, Progress};
pub use scale::{Cost, Known, Plane};
use swarm::Swarm;
pub use swarm::{Latencies, Tally, HEAD};
pub use wheel::WheelTimes;

/// Rooms that one session may publish to; more rooms need several publishers.
const PUBLISHER_ROOMS: usize = SESSION_PUBLICATIONS_MAX;
/// Time for the network between two checks of the schedule: a publisher's delay would count as the servers' latency.
/// Each turn checks every socket first: more sockets make turns slower.
const TURN_US: Micros = 250;
const TURN_MANY_US: Micros = 1_000;
const MANY_SOCKETS: usize = 256;
/// How long to wait for late copies after the last reply.
const STRAGGLERS_US: Micros = 1_000_000;
/// Longest time to close sessions.
const CLOSE_PATIENCE_US: Micros = 2_000_000;

/// The configuration of a load.
pub struct LoadConfig {
    pub gateways: Vec<Endpoint>,
    pub proxies: Vec<Endpoint>,
    pub credential: Vec<u8>,
    pub members: usize,
    /// At least one. Members are spread over these; publishing rotates through them.
    pub rooms: Vec<String>,
    /// How many of them each member joins.
    pub rooms_each: usize,
    /// Clients that publish, in turn over the rooms: at least as many as the rooms need, at most one a room.
    pub publishers: usize,
    /// Members send commands as well: each has a session at a proxy, too.
    pub commanding: bool,
    /// How many of the proxies a client knows, different ones for each client; `None`: all.
    pub proxies_each: Option<usize>,
    /// Clients learn of further servers from those that they are given; without proxies their gateways name some.
    pub learns: bool,
    /// Members that open a session at the same time, the first or another one: one core that plays thousands is slower than
    /// the time that a client waits for an answer. 128 take the two cores some 40 ms.
    pub knocking_max: usize,
    pub seed: u64,
    /// Members that share a socket, at least one; consecutive members have different sockets.
    pub members_each: usize,
    /// Receive buffer of each socket.
    pub receive_bytes: Option<usize>,
    pub gro: bool,
    pub faults: Option<Faults>,
}

/// The results of one run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub published: u64,
    /// Scheduled messages that found no credit and were not sent (paced runs that shed).
    pub shed: u64,
    pub acknowledged: u64,
    pub tally: Tally,
    /// From the first publish to the last delivery.
    pub wall: Micros,
    /// How late messages were sent, 99th percentile and maximum, in microseconds (paced runs).
    pub late_p99: u32,
    pub late_max: u32,
    /// Microseconds from the intended time (paced runs).
    pub latencies: Latencies,
    pub complete: bool,
    /// Received by the sockets of members and the publisher: datagrams, their bytes, and super-packets among them.
    pub datagrams: u64,
    pub datagram_bytes: u64,
    pub datagrams_joined: u64,
}

/// A running generator.
pub struct Load {
    driver: Driver<Swarm>,
    /// For each room, its publisher's handle.
    publications: Vec<u32>,
    next: Vec<u64>,
    /// The room that is published to next.
    turn: usize,
    rooms: Vec<String>,
    publishers: usize,
    /// A room without members.
    vacant: String,
    rooms_each: usize,
    credential: Vec<u8>,
    knocking_max: usize,
    /// Clients that have begun to connect.
    begun: usize,
    counted: Counters,
    /// Marks the messages of this load.
    mark: u32,
}

/// A simulated client's own address: 127.1.0.1 and following ones.
fn own_addr(index: usize) -> Addr {
    let [_, high, middle, low] = (index as u32 + 1).to_be_bytes();
    SocketAddr::from(([127, 1 + high, middle, low], 0)).into()
}

/// The address of a client of these servers: its own if all are on this machine, else the kernel chooses it.
fn client_addr(index: usize, servers: &[Endpoint]) -> Addr {
    let mut addrs = servers.iter().map(|server| SocketAddr::from(server.addr));
    match addrs.find(|addr| !addr.ip().is_loopback()) {
        Some(SocketAddr::V4(_)) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into(),
        Some(SocketAddr::V6(_)) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into(),
        None => own_addr(index),
    }
}

/// The endpoints that a client knows.
fn some(all: &[Endpoint], index: usize, count: Option<usize>) -> Vec<Endpoint> {
    let from = all.iter().cycle().skip(index % all.len().max(1));
    from.take(count.unwrap_or(all.len()).min(all.len())).cloned().collect()
}

impl Load {
    pub fn new(config: LoadConfig) -> std::io::Result<Self> {
        let options = SocketOptions {
            receive_bytes: config.receive_bytes,
            send_bytes: None,
            gro: config.gro,
        };
        let rooms = config.rooms.len();
        let publishers = config.publishers.clamp(rooms.div_ceil(PUBLISHER_ROOMS), rooms);
        let count = config.members + publishers;
        let members_at = config.members.div_ceil(config.members_each.max(1));
        let servers: Vec<Endpoint> = config.gateways.iter().chain(&config.proxies).cloned().collect();
        let sockets = (0..members_at + publishers)
            .map(|index| Socket::bind(client_addr(index, &servers), &options))
            .collect::<std::io::Result<Vec<Socket>>>()?;
        let mut clients = Vec::with_capacity(count);
        for index in 0..count {
            let publisher = index >= config.members;
            let (socket, sharing) = if publisher {
                (members_at + index - config.members, 1)
            } else {
                (index % members_at, config.members_each.max(1))
            };
            // A session's window is its share of the socket's buffer.
            let buffer = sockets[socket].buffers().receive_bytes / sharing;
            let client = ClientConfig {
                gateways: if publisher && !(config.learns && config.proxies.is_empty()) {
                    Vec::new()
                } else {
                    config.gateways.clone()
                },
                proxies: if publisher || config.commanding {
                    some(&config.proxies, index, config.proxies_each)
                } else {
                    Vec::new()
                },
                learns: [config.learns; 2],
                credential: config.credential.clone(),
                payload: 1200,
                inbox_bytes: 64 << 20,
                socket: socket as u32,
            };
            let mut client = Client::new(client, config.seed.wrapping_add(index as u64), Box::new(KernelEntropy));
            client.set_buffer(u32::try_from(buffer).unwrap_or(u32::MAX));
            clients.push(client);
        }
        let swarm = Swarm::new(
            clients,
            (config.members, members_at),
            rooms,
            config.commanding,
            config.knocking_max,
        );
        let many = sockets.len() > MANY_SOCKETS;
        let mut driver = Driver::new(swarm, sockets)?;
        driver.set_faults(config.faults);
        driver.set_budget(Budget {
            turn_us: if many { TURN_MANY_US } else { TURN_US },
            ..Budget::default()
        });
        Ok(Load {
            driver,
            publications: vec![0; rooms],
            next: vec![0; rooms],
            turn: 0,
            publishers,
            vacant: format!("{}-nobody", config.rooms[0]),
            rooms: config.rooms,
            rooms_each: config.rooms_each,
            credential: config.credential,
            knocking_max: config.knocking_max,
            begun: 0,
            counted: Counters::default(),
            mark: config.seed as u32,
        })
    }

    /// Waits until every member is in its rooms and the publishers are ready; returns how many members were there at
    /// some time. On lossy links some join while others must join again, so all may never be there at once.
    pub fn connect(&mut self, timeout: Micros) -> usize {
        let until = monotonic_now() + timeout;
        let count = self.driver.machine().clients();
        while monotonic_now() < until && self.driver.machine().up() < count {
            while self.begun < count && self.begun < self.driver.machine().up() + self.knocking_max {
                self.knock(self.begun);
                self.begun += 1;
                self.driver.kick();
            }
            self.turn(10_000);
        }
        self.driver.machine().came()
    }

    fn knock(&mut self, index: usize) {
        let (now, rooms) = (monotonic_now(), self.rooms.len());
        let swarm = self.driver.machine_mut();
        let members = swarm.members();
        if index < members {
            swarm.client(index).open(now, Side::Proxy);
            for room in (index * self.rooms_each..).take(self.rooms_each).map(|at| at % rooms) {
                swarm.join(now, index, &self.rooms[room], room);
            }
        } else {
            for room in (0..rooms).filter(|room| members + room % self.publishers == index) {
                let opened = swarm.client(index).publication(now, &self.rooms[room]);
                self.publications[room] = opened
                    .expect("a publisher has a place for each of its rooms")
                    .publication;
            }
            swarm.touch(index);
        }
    }

    fn turn(&mut self, wait: Micros) {
        if !self.driver.turn().more && wait > 0 {
            self.driver.wait(Duration::from_micros(wait));
        }
    }

    fn publish(&mut self, body: &mut [u8], intended: Micros) -> Result<(), PublishError> {
        let room = self.turn;
        swarm::stamp(body, self.next[room], intended, room, self.mark);
        let publication = self.publications[room];
        let swarm = self.driver.machine_mut();
        let publisher = swarm.members() + room % self.publishers;
        swarm.client(publisher).publish(publication, body, 0)?;
        swarm.touch(publisher);
        swarm.published(room);
        self.next[room] += 1;
        self.turn = (room + 1) % self.next.len();
        Ok(())
    }

    fn begin(&mut self, size: usize, timed: usize) -> (Outcome, Micros) {
        let starts = self.next.clone();
        self.driver.machine_mut().begin(size, timed, &starts);
        self.counted = self.driver.udp_counters().clone();
        let now = monotonic_now();
        (Outcome::default(), now)
    }

    fn finish(&mut self, mut outcome: Outcome, start: Micros, patience: Micros) -> Outcome {
        let until = monotonic_now() + patience;
        let target = self.next.clone();
        while !self.driver.machine().has_all(&target) && monotonic_now() < until {
            self.turn(1_000);
        }
        let swarm = self.driver.machine_mut();
        outcome.complete = swarm.has_all(&target);
        outcome.tally = swarm.tally().clone();
        outcome.latencies = swarm.take_latencies();
        outcome.wall = swarm.last_at().max(start + 1) - start;
        let counters = self.driver.udp_counters();
        outcome.datagrams = counters.received - self.counted.received;
        outcome.datagram_bytes = counters.received_bytes - self.counted.received_bytes;
        outcome.datagrams_joined = counters.received_joined - self.counted.received_joined;
        let (swarm, members) = (self.driver.machine(), self.driver.machine().members());
        let publications = self.publications.iter().enumerate();
        outcome.acknowledged = publications
            .filter_map(|(room, at)| swarm.seated(members + room % self.publishers).publishing(*at))
            .map(|known| known.published)
            .sum();
        outcome
    }

    /// Publishes for `duration` as fast as credit allows, or while fewer than `window` messages per member are in
    /// flight, then waits for the last delivery. With credit alone, a publisher may be half a ring ahead of the
    /// members.
    pub fn saturate(&mut self, size: usize, window: Option<u64>, duration: Micros, patience: Micros) -> Outcome {
        let (mut outcome, start) = self.begin(size, 0);
        let members = self.driver.machine().members() as u64;
        let ahead_max = window.map_or(u64::MAX, |window| window.saturating_mul(members));
        let mut body = swarm::body(size);
        let until = start + duration;
        loop {
            let now = monotonic_now();
            if now >= until {
                break;
            }
            let mut any = false;
            // Messages within the credit leave together; checks the network every so often.
            for _ in 0..256 {
                if self.driver.machine().ahead() >= ahead_max || self.publish(&mut body, now).is_err() {
                    break;
                }
                outcome.published += 1;
                any = true;
            }
            if any {
                self.driver.kick();
            }
            self.turn(if any { 0 } else { 500 });
        }
        self.finish(outcome, start, patience)
    }

    /// Publishes on a fixed schedule of `rate` messages a second for `duration`. A message without credit waits, or
    /// with `shed` is never sent and only counted; latency then counts from the moment when a message was accepted.
    pub fn pace(&mut self, size: usize, rate: f64, duration: Micros, patience: Micros, shed: bool) -> Outcome {
        let mut schedule = Schedule::new(rate, 0, duration);
        let (outcome, start) = self.begin(size, schedule.total() as usize);
        schedule.start = start;
        let mut pacing = Pacing::new(size, schedule, shed, outcome);
        self.run(&mut pacing, Micros::MAX);
        pacing.late.sort_unstable();
        let mut outcome = pacing.outcome;
        outcome.late_p99 = pacing
            .late
            .get(pacing.late.len() * 99 / 100)
            .copied()
            .unwrap_or_default();
        outcome.late_max = pacing.late.last().copied().unwrap_or_default();
        self.finish(outcome, start, patience)
    }

    /// Begins a schedule that `advance` publishes by. Its rate rises to `rate` over `ramp`, a part of `duration`.
    pub fn schedule(&mut self, size: usize, rate: f64, ramp: Micros, duration: Micros) -> Pacing {
        let mut schedule = Schedule::new(rate, ramp, duration);
        let (outcome, start) = self.begin(size, 0);
        self.driver.machine_mut().begin_endless(size, &self.next, self.mark);
        schedule.start = start;
        Pacing::new(size, schedule, false, outcome)
    }

    /// Publishes what falls due during `time`, and returns what came since the last call.
    pub fn advance(&mut self, pacing: &mut Pacing, time: Micros) -> Progress {
        let until = monotonic_now() + time;
        self.run(pacing, until);
        while pacing.is_over() && monotonic_now() < until && !self.driver.machine().has_all(&self.next) {
            self.turn(1_000);
        }
        let latencies = self.driver.machine_mut().drain_latencies();
        let swarm = self.driver.machine();
        Progress {
            published: pacing.outcome.published,
            tally: swarm.tally().clone(),
            latencies,
            late: std::mem::take(&mut pacing.late),
            joined: swarm.joined(),
            repaired: swarm.repaired(),
            sessions_lost: swarm.sessions_lost(),
            over: pacing.is_over(),
            complete: pacing.is_over() && swarm.has_all(&self.next),
        }
    }

    fn run(&mut self, pacing: &mut Pacing, until: Micros) {
        while !pacing.is_over() {
            let now = monotonic_now();
            if now >= until {
                return;
            }
            let mut any = false;
            let schedule = &pacing.schedule;
            while !pacing.is_over() && schedule.at(pacing.due) <= now {
                let intended = if pacing.shed { now } else { schedule.at(pacing.due) };
                if self.publish(&mut pacing.body, intended).is_ok() {
                    pacing.outcome.published += 1;
                    any = true;
                } else if pacing.shed {
                    pacing.outcome.shed += 1;
                } else {
                    break;
                }
                pacing.due += 1;
            }
            // Lateness is the generator's own: the first look at a due message, with or without credit.
            while pacing.looked < schedule.total() && schedule.at(pacing.looked) <= now {
                pacing.late.push((now - schedule.at(pacing.looked)) as u32);
                pacing.looked += 1;
            }
            if any {
                self.driver.kick();
            }
            let next = pacing.schedule.at(pacing.due).min(until);
            let wait = next.saturating_sub(monotonic_now()).min(1_000);
            // The sleep's own slack is about 60 us: sleep only longer waits, and poll for the rest.
            self.turn(if wait > 80 { wait - 60 } else { 0 });
        }
    }

    /// Every member sends commands on a fixed schedule, to rooms in turn. Runs until all are answered, or none can be
    /// answered anymore, and late copies have arrived.
    pub fn command(&mut self, how: &Commanding) -> Commanded {
        let members = self.driver.machine().members();
        let total = members * how.each;
        self.driver.machine_mut().commands.begin(total);
        let start = monotonic_now();
        let due_at = |index: usize| start + index as Micros * how.every / members as Micros;
        let (mut next, mut late) = (0, Vec::with_capacity(total));
        while next < total {
            let now = monotonic_now();
            let before = next;
            while next < total && due_at(next) <= now {
                self.send_command(how, now, due_at(next), next);
                late.push((now - due_at(next)) as u32);
                next += 1;
            }
            if next > before {
                self.driver.kick();
            }
            self.turn(due_at(next).saturating_sub(monotonic_now()).min(1_000));
        }
        let over_at = self.driver.machine().commands.over_at();
        while !self.driver.machine().commands.all_answered() && monotonic_now() < over_at {
            self.turn(1_000);
        }
        self.idle(STRAGGLERS_US);
        late.sort_unstable();
        Commanded {
            late_p99: late.get(late.len() * 99 / 100).copied().unwrap_or_default(),
            ..self.driver.machine().commands.account(start)
        }
    }

    fn send_command(&mut self, how: &Commanding, now: Micros, intended: Micros, index: usize) {
        let swarm = self.driver.machine_mut();
        let (member, turn) = (index % swarm.members(), index / swarm.members());
        let vacant = how.vacant > 0 && index % how.vacant == how.vacant - 1;
        // A different room each time, starting with another one than the member's own.
        let room = (!vacant).then(|| (member + 7 * turn + 1) % self.rooms.len());
        let name = match room {
            Some(room) => &self.rooms[room],
            None => &self.vacant,
        };
        let mut body = vec![0; how.bytes.max(8)];
        body[..8].copy_from_slice(&swarm.commands.content());
        match swarm.client(member).command(now, name, &body, how.lifetime) {
            Ok(number) => swarm.commands.sent(room, number, intended, now + how.lifetime),
            Err(_) => swarm.commands.refused(now, room, intended),
        }
        swarm.touch(member);
    }

    /// Receives other publishers' messages of `size` bytes in the rooms for this long; returns the tally.
    pub fn listen(&mut self, size: usize, duration: Micros) -> Tally {
        self.driver.machine_mut().listen(size);
        self.idle(duration);
        self.driver.machine().tally().clone()
    }

    /// Runs without publishing, with keepalives only.
    pub fn idle(&mut self, duration: Micros) {
        let until = monotonic_now() + duration;
        while monotonic_now() < until {
            self.turn(5_000);
        }
    }

    /// Closes all sessions, so that the servers forget them at once. The load can't be used afterwards.
    pub fn close(&mut self) {
        self.driver.machine_mut().close();
        self.driver.kick();
        let until = monotonic_now() + CLOSE_PATIENCE_US;
        while !self.driver.machine().is_closed() && monotonic_now() < until {
            self.turn(1_000);
        }
    }

    /// Sets the servers of members. A working session stays at its server.
    pub fn redirect(&mut self, gateways: &[Endpoint], proxies: &[Endpoint]) {
        let now = monotonic_now();
        let swarm = self.driver.machine_mut();
        for index in 0..swarm.members() {
            let client = swarm.client(index);
            client.redirect(now, gateways.to_vec(), proxies.to_vec(), self.credential.clone());
            swarm.touch(index);
        }
        self.driver.kick();
    }

    /// From `at` on, a time of the monotonic clock, measures for every membership how long no message published later
    /// arrives.
    pub fn watch(&mut self, at: Micros) {
        self.driver.machine_mut().watch(at);
    }

    /// For every membership: the time until the first such message, and the longest time without one.
    pub fn heard(&self) -> impl Iterator<Item = (Option<Micros>, Micros)> + '_ {
        self.driver.machine().heard()
    }

    /// Members that are in all their rooms now.
    pub fn joined(&self) -> usize {
        self.driver.machine().joined()
    }

    /// Number of sessions lost since the start.
    pub fn sessions_lost(&self) -> u64 {
        self.driver.machine().sessions_lost()
    }

    /// Actual receive buffer of each socket.
    pub fn buffer(&self) -> usize {
        self.driver
            .sockets()
            .first()
            .map_or(0, |socket| socket.buffers().receive_bytes)
    }
}
