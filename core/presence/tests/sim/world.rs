//! The simulated system: two sites, users who come, go and move, stores that may go back, and the checks.

use std::collections::{BTreeMap, BTreeSet};

use muster_presence::{
    AccessPoint, AccessSettings, Applied, Change, Device, Origin, Reason, Record, Shard, ShardMap, Standing, State,
    Writer, WriterSettings,
};
use muster_simkit::{Addr, Draw, Fault, Micros, Setup, State as Up, System, Weather, World, MS, SECOND};

use super::nodes::{Gateway, Online, Presence, Proxy};

pub const GATEWAYS: usize = 3;
pub const PROXIES: usize = 2;
/// Site and number of writers.
pub const SITES: [(u16, u16); 2] = [(1, 1), (2, 2)];
pub const WRITERS: usize = 3;
pub const PROCESSES: usize = GATEWAYS + PROXIES + WRITERS;
const USERS: u64 = 24;
const DEVICES: [&[u8]; 3] = [b"phone", b"laptop", b"tablet:2"];

const GRACE: Micros = 400 * MS;
const LEASE: Micros = 3 * SECOND;
const LATE: Micros = 2 * SECOND;
/// Users per batch: one, so that kills come between batches.
const BATCH_USERS: usize = 1;

pub type Where = (u64, Device, u32);

/// The content of a writer's store, and what has been read from its outbox.
#[derive(Clone, Default)]
struct Store {
    users: BTreeMap<u64, Vec<u8>>,
    vector: BTreeMap<u32, Applied>,
}

#[derive(Clone, Copy, Debug)]
pub enum Own {
    /// The store of this writer goes back to an earlier state.
    Failover { writer: usize },
}

pub enum Event {
    /// A user comes, goes or moves at a gateway.
    Move,
    /// Copies stores, as states to go back to.
    Copy,
}

pub struct Sim {
    seed: u64,
    stores: Vec<Store>,
    copies: Vec<Store>,
    feeds: Vec<Vec<Change>>,
    /// For each writer's present life, the last reported state of each device.
    told: Vec<BTreeMap<(u64, Device), State>>,
    /// Until when each store is writing.
    busy: Vec<Micros>,
    sessions: u64,
    pub moves: u64,
    pub asks: u64,
    pub fulls: u64,
}

impl Sim {
    pub fn new(seed: u64) -> Self {
        Sim {
            seed,
            stores: vec![Store::default(); WRITERS],
            copies: vec![Store::default(); WRITERS],
            feeds: vec![Vec::new(); WRITERS],
            told: vec![BTreeMap::new(); WRITERS],
            busy: vec![0; WRITERS],
            sessions: 0,
            moves: 0,
            asks: 0,
            fulls: 0,
        }
    }

    fn writer_of(process: usize) -> usize {
        process - GATEWAYS - PROXIES
    }

    fn shard(writer: usize) -> (u16, Shard) {
        match writer {
            0 => (1, Shard { of: 1, index: 0 }),
            other => (
                2,
                Shard {
                    of: 2,
                    index: other as u16 - 1,
                },
            ),
        }
    }

    fn addr(process: usize) -> Addr {
        World::<Sim>::addr(process, 0)
    }

    fn truth(world: &World<Self>) -> BTreeSet<Where> {
        let mut truth = BTreeSet::new();
        for (process, known) in world.processes[..GATEWAYS].iter().enumerate() {
            let Presence::Gateway(gateway) = &known.node else {
                continue;
            };
            if known.is_alive() {
                truth.extend(
                    gateway
                        .access
                        .devices()
                        .map(|(user, device)| (user, device, process as u32)),
                );
            }
        }
        truth
    }

    /// Writes batches into the store of a writer, each atomically.
    fn write(&mut self, world: &mut World<Self>, process: usize) -> Result<(), String> {
        let number = Self::writer_of(process);
        let Presence::Writer(online) = &mut world.processes[process].node else {
            return Ok(());
        };
        if world.now < self.busy[number] {
            return Ok(());
        }
        // Stores are slow, so that kills come between the batches of one change.
        self.busy[number] = world.now + MS + world.dice.below(60 * MS);
        let store = &mut self.stores[number];
        if let Some(batch) = online.writer.batch(BATCH_USERS) {
            for user in &batch.users {
                match user.record.is_empty() {
                    true => store.users.remove(&user.user),
                    false => store.users.insert(user.user, user.record.clone()),
                };
                for change in &user.changes {
                    let before = self.told[number].insert((change.user, change.device), change.state);
                    let is_online = |state: &State| *state == State::Online;
                    if before.as_ref().map(is_online) == Some(is_online(&change.state)) {
                        return Err(format!(
                            "writer {number} reports twice in one life: {change:?} after {before:?}"
                        ));
                    }
                }
                self.feeds[number].extend(&user.changes);
            }
            for applied in &batch.vector {
                match applied.version {
                    Some(_) => store.vector.insert(applied.ap, *applied),
                    None => store.vector.remove(&applied.ap),
                };
            }
            online.writer.written();
        }
        let more = !online.writer.is_written();
        if more {
            world.turn_at(process, self.busy[number]);
        }
        Ok(())
    }

    /// The users who are online by a store.
    fn stored(&self, number: usize) -> BTreeSet<Where> {
        let mut stored = BTreeSet::new();
        for (user, record) in &self.stores[number].users {
            let record = Record::decode(record).expect("a record of ours");
            let online = record.0.iter().filter(|held| held.state == State::Online);
            stored.extend(online.map(|held| (*user, held.device, held.origin.ap)));
        }
        stored
    }

    fn roam(&mut self, world: &mut World<Self>) {
        let user = world.dice.below(USERS);
        let device = Device::new(DEVICES[world.dice.below(3) as usize]).expect("a name");
        let process = world.dice.below(GATEWAYS as u64) as usize;
        let wall = world.now / 1_000 + 3_600_000 * process as u64;
        let now = world.clock(process);
        if !world.is_up(process) {
            return;
        }
        self.moves += 1;
        self.sessions += 1;
        let session = self.sessions;
        let comes = world.dice.below(5) < 3;
        let reason = Reason::ALL[world.dice.below(5) as usize];
        let Presence::Gateway(gateway) = &mut world.processes[process].node else {
            return;
        };
        if comes {
            let closings = gateway.access.online(now, wall, user, device, session);
            assert!(closings.is_ok(), "there are few devices");
        } else {
            let of = gateway.access.sessions(user).find(|(one, _)| *one == device);
            if let Some((_, of)) = of {
                gateway.access.offline(now, wall, user, device, of, reason);
            }
        }
        world.turn_at(process, world.now);
    }
}

impl System for Sim {
    type Node = Presence;
    type Event = Event;
    type Snapshot = ();
    type Fault = Own;

    fn start(&mut self, world: &World<Self>, process: usize, epoch: u32) -> Presence {
        let now = world.clock(process);
        let writers = GATEWAYS + PROXIES..PROCESSES;
        if process < GATEWAYS {
            let me = Origin {
                ap: process as u32,
                epoch,
            };
            let version = [0, (1 << 32) - 50, u64::MAX - 50][(self.seed as usize + process) % 3];
            let settings = AccessSettings {
                // Some rings are short, so that writers come too late.
                ring_bytes: if self.seed % 4 == 0 { 600 } else { 1 << 20 },
                ..AccessSettings::default()
            };
            return Presence::Gateway(Box::new(Gateway {
                access: AccessPoint::new(me, version, settings, now),
                proxies: (GATEWAYS..GATEWAYS + PROXIES).map(Self::addr).collect(),
                writers: writers.map(|process| (Self::addr(process), process as u32)).collect(),
            }));
        }
        if process < GATEWAYS + PROXIES {
            let of = |process| {
                let (site, shard) = Self::shard(Self::writer_of(process));
                ((site, shard.index), Self::addr(process))
            };
            return Presence::Proxy(Proxy {
                map: ShardMap {
                    version: 1,
                    sites: SITES.to_vec(),
                },
                writers: writers.map(of).collect(),
            });
        }
        let number = Self::writer_of(process);
        let (_, shard) = Self::shard(number);
        let settings = WriterSettings {
            grace: GRACE,
            lease: LEASE,
            late: LATE,
            ..WriterSettings::default()
        };
        let mut writer = Writer::new(shard, epoch, settings);
        let store = &self.stores[number];
        store
            .vector
            .values()
            .for_each(|applied| writer.restore_applied(now, applied));
        for (user, record) in &store.users {
            assert!(writer.restore_user(now, *user, record), "a record of ours");
        }
        let mut last: BTreeMap<(u64, Device), Change> = BTreeMap::new();
        for change in &self.feeds[number] {
            last.insert((change.user, change.device), *change);
        }
        last.values().for_each(|change| writer.restore_told(now, change));
        writer.expect(now, &(0..GATEWAYS as u32).collect::<Vec<_>>());
        self.told[number].clear();
        let gateways = (0..GATEWAYS)
            .map(|gateway| (gateway as u32, Self::addr(gateway)))
            .collect();
        Presence::Writer(Box::new(Online::new(writer, shard, gateways, now, epoch)))
    }

    fn begin(&mut self, world: &mut World<Self>) {
        world.push(world.now + 100 * MS, Event::Move);
        world.push(world.now + 500 * MS, Event::Copy);
    }

    fn happen(&mut self, world: &mut World<Self>, event: Event) -> Result<(), String> {
        match event {
            Event::Move if !world.healed => {
                self.roam(world);
                let next = world.now + world.dice.below(20 * MS);
                world.push(next, Event::Move);
            }
            Event::Copy if !world.healed => {
                self.copies.clone_from(&self.stores);
                let next = world.now + SECOND;
                world.push(next, Event::Copy);
            }
            _ => {}
        }
        Ok(())
    }

    fn turned(&mut self, world: &mut World<Self>, process: usize) -> Result<(), String> {
        if process < GATEWAYS + PROXIES {
            return Ok(());
        }
        let number = Self::writer_of(process);
        let now = world.clock(process);
        if let Presence::Writer(online) = &mut world.processes[process].node {
            let unknown = online.writer.fulls().len();
            if online.standing == Standing::InSync && unknown == GATEWAYS {
                return Err(format!("writer {number} is in sync and knows no gateway at {now}"));
            }
        }
        self.write(world, process)
    }

    fn dies(&mut self, world: &mut World<Self>, process: usize) {
        self.count(world, process);
    }

    fn strike(&mut self, world: &mut World<Self>, fault: Own) -> Result<(), String> {
        let Own::Failover { writer } = fault;
        let process = GATEWAYS + PROXIES + writer;
        self.stores[writer].clone_from(&self.copies[writer]);
        let state = world.processes[process].state;
        if let (Presence::Writer(online), Up::Up | Up::Paused) = (&mut world.processes[process].node, state) {
            // The writer finds another vector in the store than it wrote, empties the store and writes everything.
            self.stores[writer] = Store::default();
            online.writer.rewrite();
            self.told[writer].clear();
            world.turn_at(process, world.now);
        }
        Ok(())
    }

    fn judge(&mut self, world: &mut World<Self>) -> Result<(), String> {
        let truth = Self::truth(world);
        for process in GATEWAYS + PROXIES..PROCESSES {
            self.count(world, process);
            let number = Self::writer_of(process);
            let (_, shard) = Self::shard(number);
            let own: BTreeSet<Where> = truth.iter().filter(|(user, _, _)| shard.owns(*user)).copied().collect();
            let now = world.clock(process);
            let Presence::Writer(online) = &mut world.processes[process].node else {
                continue;
            };
            let view: BTreeSet<Where> = online.writer.online().collect();
            differ(&format!("the view of writer {number}"), &view, &own)?;
            differ(&format!("the store of writer {number}"), &self.stored(number), &own)?;
            let standing = online.writer.standing(now);
            if standing != Standing::InSync {
                return Err(format!("writer {number} is {standing:?} at the end"));
            }
            // A consumer drops repeats by their identity.
            let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::<(u64, Device), State>::new());
            for change in &self.feeds[number] {
                if seen.insert(change.id) {
                    last.insert((change.user, change.device), change.state);
                }
            }
            let told: BTreeSet<(u64, Device)> = last
                .into_iter()
                .filter(|(_, state)| *state == State::Online)
                .map(|(key, _)| key)
                .collect();
            let own: BTreeSet<(u64, Device)> = own.into_iter().map(|(user, device, _)| (user, device)).collect();
            differ(&format!("the feed of writer {number}"), &told, &own)?;
        }
        Ok(())
    }
}

impl Sim {
    fn count(&mut self, world: &World<Self>, process: usize) {
        if let Presence::Writer(online) = &world.processes[process].node {
            (self.asks, self.fulls) = (self.asks + online.asked, self.fulls + online.fulls_asked);
        }
    }
}

fn differ<T: Ord + std::fmt::Debug>(what: &str, found: &BTreeSet<T>, wanted: &BTreeSet<T>) -> Result<(), String> {
    let (ghosts, lost): (Vec<_>, Vec<_>) = (found.difference(wanted).collect(), wanted.difference(found).collect());
    match ghosts.is_empty() && lost.is_empty() {
        true => Ok(()),
        false => Err(format!("{what} has ghosts {ghosts:?} and lacks {lost:?}")),
    }
}

/// A run with any faults of processes, paths and stores.
pub fn plan(seed: u64) -> Setup<Own> {
    let mut draw = Draw::new(seed ^ 0x9e5);
    let heal = draw.within(3 * SECOND, 6 * SECOND);
    let mut links = draw.weather(true);
    if draw.chance(70) {
        // Losses come in bursts: about 5 % on each hop.
        links.loss = draw.within(0, 30_000);
        links.burst_in = draw.within(2_000, 15_000);
        links.burst_out = draw.within(50_000, 200_000);
        links.duplicate = draw.below(40_000);
        links.reorder = draw.below(60_000);
    }
    let mut faults = Vec::new();
    for _ in 0..draw.below(7) {
        let at = draw.within(300 * MS, heal - 200 * MS);
        let process = draw.below(PROCESSES as u64) as usize;
        let other = draw.below(PROCESSES as u64) as usize;
        let pause = draw.within(50 * MS, 2 * SECOND);
        let gateway = draw.below(GATEWAYS as u64) as usize;
        faults.push((
            at,
            match draw.below(7) {
                0 | 1 => Fault::Kill { process, down: pause },
                2 => Fault::Kill {
                    process: gateway,
                    down: pause / 4,
                },
                3 => Fault::Pause { process, pause },
                4 | 5 if process != other => Fault::Cut {
                    from: process,
                    to: other,
                    pause,
                },
                _ => Fault::Own(Own::Failover {
                    writer: draw.below(WRITERS as u64) as usize,
                }),
            },
        ));
    }
    if draw.chance(15) {
        faults.push((
            draw.within(SECOND, heal - SECOND),
            Fault::Remove {
                process: draw.below(GATEWAYS as u64) as usize,
            },
        ));
    }
    Setup {
        clock: muster_simkit::clock(seed),
        sockets: vec![1; PROCESSES],
        near: PROCESSES,
        links,
        sessions: links,
        turn: draw.within(0, 2_000),
        faults,
        heal,
        settle: 6 * SECOND,
    }
}

/// The same run without faults.
pub fn calm(seed: u64) -> Setup<Own> {
    let weather = Weather {
        latency: 2 * MS,
        ..Weather::default()
    };
    Setup {
        links: weather,
        sessions: weather,
        faults: Vec::new(),
        ..plan(seed)
    }
}
