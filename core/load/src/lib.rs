//! Thousands of clients in one thread: the generator of the benches and the load harness.
//!
//! Owns the clients, what they must receive and what they did. Every delivery is checked byte for byte; latency counts from
//! the intended send time of an open schedule. Knows no server.
#![forbid(unsafe_code)]

mod feed;
mod swarm;

use std::time::Duration;

use muster_driver::{Driver, Faults};
use muster_proto::client::publication::PublishError;
use muster_proto::client::{Client, ClientConfig, Endpoint, Side};
use muster_proto::machine::{Addr, Micros};
use muster_udp::{monotonic_now, Counters, KernelEntropy, Socket, SocketOptions};

pub use feed::{Feed, FeedConfig};
use swarm::Swarm;
pub use swarm::{Latencies, Tally, HEAD};

/// Members that connect at the same time: 128 take the two cores some 40 ms.
const KNOCKING_MAX: usize = 128;
/// How long saying goodbye may take.
const CLOSE_PATIENCE_US: Micros = 2_000_000;

/// How a load is set up.
pub struct LoadConfig {
    pub gateways: Vec<Endpoint>,
    pub proxies: Vec<Endpoint>,
    pub credential: Vec<u8>,
    pub members: usize,
    /// Members are spread over these; the publisher goes round them.
    pub rooms: Vec<String>,
    pub seed: u64,
    pub receive_bytes: Option<usize>,
    pub gro: bool,
    pub faults: Option<Faults>,
}

/// What one run did.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub published: u64,
    /// Messages of the schedule that found no credit and were not sent (paced runs that shed).
    pub shed: u64,
    pub acknowledged: u64,
    pub tally: Tally,
    /// From the first publish to the last delivery.
    pub wall: Micros,
    /// Latest that a message left after its time, 99th percentile and most, in microseconds (paced runs).
    pub late_p99: u32,
    pub late_max: u32,
    /// Microseconds from the intended time (paced runs).
    pub latencies: Latencies,
    pub complete: bool,
    /// What the members' and the publisher's sockets received: datagrams, their bytes, and super-packets among them.
    pub datagrams: u64,
    pub datagram_bytes: u64,
    pub datagrams_joined: u64,
}

/// A running generator.
pub struct Load {
    driver: Driver<Swarm>,
    publications: Vec<u32>,
    next: Vec<u64>,
    rooms: Vec<String>,
    /// Members that have begun to connect.
    begun: usize,
    counted: Counters,
}

/// A simulated client's own address: 127.1.0.1 and on, each in its own right.
fn own_addr(index: usize) -> Addr {
    let [_, high, middle, low] = (index as u32 + 1).to_be_bytes();
    std::net::SocketAddr::from(([127, 1 + high, middle, low], 0)).into()
}

impl Load {
    pub fn new(config: LoadConfig) -> std::io::Result<Self> {
        let options = SocketOptions {
            receive_bytes: config.receive_bytes,
            send_bytes: None,
            gro: config.gro,
        };
        let mut sockets = Vec::with_capacity(config.members + 1);
        let mut clients = Vec::with_capacity(config.members + 1);
        for index in 0..=config.members {
            let socket = Socket::bind(own_addr(index), &options)?;
            // The last one is the publisher.
            let publisher = index == config.members;
            let client = ClientConfig {
                gateways: if publisher { Vec::new() } else { config.gateways.clone() },
                proxies: if publisher { config.proxies.clone() } else { Vec::new() },
                credential: config.credential.clone(),
                payload: 1200,
                inbox_bytes: 64 << 20,
                socket: index as u32,
            };
            let mut client = Client::new(client, config.seed.wrapping_add(index as u64), Box::new(KernelEntropy));
            client.set_buffer(u32::try_from(socket.buffers().receive_bytes).unwrap_or(u32::MAX));
            sockets.push(socket);
            clients.push(client);
        }
        let rooms = config.rooms.len().max(1);
        let mut driver = Driver::new(Swarm::new(clients, rooms), sockets)?;
        driver.set_faults(config.faults);
        let now = monotonic_now();
        let mut publications = Vec::new();
        let swarm = driver.machine_mut();
        for room in &config.rooms {
            publications.push(swarm.client(config.members).publication(now, room));
        }
        swarm.touch(config.members);
        driver.kick();
        Ok(Load {
            driver,
            publications,
            next: vec![0; rooms],
            rooms: config.rooms,
            begun: 0,
            counted: Counters::default(),
        })
    }

    /// Waits until every member has joined and the publisher is ready; gives how many have. Not all knock at once: one core
    /// that plays thousands is slower than the time that a client waits for an answer.
    pub fn connect(&mut self, timeout: Micros) -> usize {
        let until = monotonic_now() + timeout;
        let members = self.driver.machine().members();
        let wants_publisher = !self.publications.is_empty();
        while monotonic_now() < until {
            while self.begun < members && self.begun < self.driver.machine().joined() + KNOCKING_MAX {
                let room = self.begun % self.rooms.len();
                let swarm = self.driver.machine_mut();
                swarm.join(monotonic_now(), self.begun, &self.rooms[room], room);
                self.begun += 1;
                self.driver.kick();
            }
            self.turn(10_000);
            let swarm = self.driver.machine();
            if swarm.joined() == members && (!wants_publisher || swarm.publisher().is_ready(Side::Proxy)) {
                return members;
            }
        }
        self.driver.machine().joined()
    }

    fn turn(&mut self, wait: Micros) {
        if !self.driver.turn().more && wait > 0 {
            self.driver.wait(Duration::from_micros(wait));
        }
    }

    fn publish(&mut self, body: &mut [u8], intended: Micros) -> Result<(), PublishError> {
        let room = (0..self.next.len())
            .min_by_key(|room| self.next[*room])
            .unwrap_or_default();
        swarm::stamp(body, self.next[room], intended, room);
        let publication = self.publications[room];
        let publisher = self.driver.machine().members();
        let swarm = self.driver.machine_mut();
        swarm.client(publisher).publish(publication, body, 0)?;
        swarm.touch(publisher);
        swarm.published(room);
        self.next[room] += 1;
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
        let publisher = self.driver.machine().publisher();
        outcome.acknowledged = self
            .publications
            .iter()
            .filter_map(|at| publisher.publishing(*at))
            .map(|known| known.published)
            .sum();
        outcome
    }

    /// Publishes for `duration` as fast as credit allows, or while less than `window` messages a member are on their way,
    /// then waits for the last delivery. Credit alone lets a publisher run half a ring ahead of the members.
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
            // What the credit takes leaves together; look at the network every so often.
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

    /// Publishes on a fixed schedule of `rate` messages a second for `duration`. What finds no credit waits in line, or
    /// with `shed` is never sent and only counted; latency then counts from the moment that a message was taken.
    pub fn pace(&mut self, size: usize, rate: f64, duration: Micros, patience: Micros, shed: bool) -> Outcome {
        let total = (rate * duration as f64 / 1e6) as u64;
        let (mut outcome, start) = self.begin(size, total as usize);
        let mut body = swarm::body(size);
        let mut late = Vec::with_capacity(total as usize);
        let due_at = |index: u64| start + (index as f64 * 1e6 / rate) as Micros;
        // Lateness is the generator's own: when it first looked at what was due, whether or not there was credit for it.
        let mut due = 0;
        while due < total {
            let now = monotonic_now();
            let mut any = false;
            while due < total && due_at(due) <= now {
                let intended = if shed { now } else { due_at(due) };
                if self.publish(&mut body, intended).is_ok() {
                    outcome.published += 1;
                    any = true;
                } else if shed {
                    outcome.shed += 1;
                } else {
                    break;
                }
                due += 1;
            }
            while late.len() < total as usize && due_at(late.len() as u64) <= now {
                late.push((now - due_at(late.len() as u64)) as u32);
            }
            if any {
                self.driver.kick();
            }
            let wait = due_at(due).saturating_sub(monotonic_now()).min(1_000);
            // The sleep's own slack is about 60 us: sleep only what is longer, and look again for the rest.
            self.turn(if wait > 80 { wait - 60 } else { 0 });
        }
        late.sort_unstable();
        outcome.late_p99 = late.get(late.len() * 99 / 100).copied().unwrap_or_default();
        outcome.late_max = late.last().copied().unwrap_or_default();
        self.finish(outcome, start, patience)
    }

    /// Lets time pass with nothing published: keepalives only.
    pub fn idle(&mut self, duration: Micros) {
        let until = monotonic_now() + duration;
        while monotonic_now() < until {
            self.turn(5_000);
        }
    }

    /// Ends all sessions, so that the servers forget them at once. Nothing may be run after.
    pub fn close(&mut self) {
        self.driver.machine_mut().close();
        self.driver.kick();
        let until = monotonic_now() + CLOSE_PATIENCE_US;
        while !self.driver.machine().is_closed() && monotonic_now() < until {
            self.turn(1_000);
        }
    }

    /// Sessions that were lost since the start.
    pub fn sessions_lost(&self) -> u64 {
        self.driver.machine().sessions_lost()
    }

    /// Receive buffer that each socket really has.
    pub fn buffer(&self) -> usize {
        self.driver
            .sockets()
            .first()
            .map_or(0, |socket| socket.buffers().receive_bytes)
    }
}
