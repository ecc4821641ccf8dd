//! The world of one run: time, processes, the network between them, and the plan.
//!
//! Owns the effects of the kit's own events and faults; `agenda` holds their order. Knows a system only by its
//! methods.

use std::collections::BTreeMap;

use crate::agenda::{Agenda, Next};
use crate::flight::{Datagram, Flight};
use crate::node::{Bench, Queued, Sent};
use crate::{Addr, Dice, Fault, Micros, Net, Outbox, Process, SocketId, State, System, Weather, MS, SECOND};

/// The epoch of each process's first life. Each later one is higher by one.
pub const EPOCH: u32 = 1_000;
/// A process that could not take a snapshot gets it again after this time.
pub const TOLD_AGAIN: Micros = 300 * MS;
/// Processes start one after the other within this time, as a supervisor would start them.
const STARTED: Micros = 50 * MS;
/// Maximum number of sockets of a process.
const SOCKETS_MAX: usize = 2;
/// The lowest port.
const PORT: usize = 100;

/// The conditions of a run at its start.
#[derive(Clone, Debug)]
pub struct Setup<O> {
    /// The first reading of clocks.
    pub clock: Micros,
    /// The number of sockets of each process: one or two.
    pub sockets: Vec<usize>,
    /// The first processes, this many, are near each other: `links` is the network among them, `sessions` everywhere
    /// else.
    pub near: usize,
    pub links: Weather,
    pub sessions: Weather,
    /// How long a datagram waits in a socket before its process has a turn.
    pub turn: Micros,
    /// The faults, and their times after the start.
    pub faults: Vec<(Micros, Fault<O>)>,
    /// When all faults end, after the start; and how long after that the run ends.
    pub heal: Micros,
    pub settle: Micros,
}

/// Small, since events are moved about while they wait.
enum Event<S: System> {
    /// A datagram, which waits in `flight`.
    Arrive {
        at: u32,
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
    /// A path has its normal delay again.
    Hurry {
        from: u32,
        to: u32,
    },
    /// A process gets a message of the control plane.
    Tell {
        process: u32,
        snapshot: S::Snapshot,
    },
    Heal,
    Own(S::Event),
}

pub struct World<S: System> {
    pub seed: u64,
    /// The true time.
    pub now: Micros,
    pub dice: Dice,
    pub processes: Vec<Process<S::Node>>,
    pub net: Net,
    /// All faults are over.
    pub healed: bool,
    faults: Vec<(Micros, Fault<S::Fault>)>,
    agenda: Agenda<Event<S>>,
    /// By port, a process and its socket.
    ports: Vec<Option<(usize, SocketId)>>,
    flight: Flight,
    bench: Bench,
    turn: Micros,
    /// Processes cut off from the control plane: start and end of that.
    deaf: BTreeMap<usize, (Micros, Micros)>,
    trace: u64,
    verbose: bool,
}

/// The address of a process's socket.
fn addr(process: usize, socket: usize) -> Addr {
    let port = PORT + SOCKETS_MAX * process + socket;
    std::net::SocketAddr::from(([127, 0, 0, 1], port as u16)).into()
}

impl<S: System> World<S> {
    pub(crate) fn new(seed: u64, setup: Setup<S::Fault>, system: &mut S, verbose: bool) -> Self {
        let count = setup.sockets.len();
        let mut world = World {
            seed,
            now: setup.clock,
            dice: Dice::new(seed ^ 0x3017d),
            processes: Vec::new(),
            net: Net::new(seed, setup.near, count, setup.links, setup.sessions),
            healed: false,
            faults: setup.faults,
            agenda: Agenda::new(count),
            ports: vec![None; PORT + SOCKETS_MAX * count],
            flight: Flight::default(),
            bench: Bench::new(Outbox::new(seed % 2 == 0)),
            turn: setup.turn,
            deaf: BTreeMap::new(),
            trace: seed,
            verbose,
        };
        for (process, sockets) in setup.sockets.iter().enumerate() {
            assert!((1..=SOCKETS_MAX).contains(sockets), "a process has one socket or two");
            let node = system.start(&world, process, EPOCH);
            let addrs: Vec<Addr> = (0..*sockets).map(|socket| addr(process, socket)).collect();
            for (socket, addr) in addrs.iter().enumerate() {
                world.ports[usize::from(addr.port)] = Some((process, socket as SocketId));
            }
            world
                .processes
                .push(Process::new(node, EPOCH, addrs, Default::default()));
            if !system.is_there(process) {
                world.processes[process].die(State::Down); // it starts when it is its turn
            }
            let after = world.dice.below(STARTED);
            world.agenda.turn_at(process, world.now + after);
        }
        system.begin(&mut world);
        for (at, (after, _)) in world.faults.iter().enumerate() {
            world.agenda.push(world.now + after, Event::Fault { at: at as u32 });
        }
        world.agenda.push(world.now + setup.heal, Event::Heal);
        world
    }

    /// The address of a process's socket; it is the same in all lives.
    pub fn addr(process: usize, socket: usize) -> Addr {
        addr(process, socket)
    }

    /// The reading of a process's clock, even before its first start.
    pub fn clock(&self, process: usize) -> Micros {
        let known = self.processes.get(process);
        known.map_or(self.now, |known| known.clock.at(self.now))
    }

    /// A digest of all datagrams that arrived so far: equal digests mean equal runs.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Prints an event, in verbose runs.
    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>10.6}  {}", self.now as f64 / 1e6, what());
        }
    }

    pub fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Plans one of the system's events.
    pub fn push(&mut self, at: Micros, event: S::Event) {
        self.agenda.push(at, Event::Own(event));
    }

    /// Schedules a turn of a process at this time at the latest.
    pub fn turn_at(&mut self, process: usize, at: Micros) {
        self.agenda.turn_at(process, at);
    }

    /// A process gets a snapshot after this time; later if it stands still or is cut off from the control plane.
    pub fn tell(&mut self, process: usize, after: Micros, snapshot: S::Snapshot) {
        let process = process as u32;
        self.agenda.push(self.now + after, Event::Tell { process, snapshot });
    }

    /// A dead process starts after this time, unless it was started before.
    pub fn restart_after(&mut self, process: usize, after: Micros) {
        let process = process as u32;
        self.agenda.push(self.now + after, Event::Restart { process });
    }

    pub fn is_up(&self, process: usize) -> bool {
        self.processes[process].state == State::Up
    }

    /// Whether a process is cut off from the control plane.
    pub fn is_deaf(&self, process: usize) -> bool {
        self.deaf.get(&process).is_some_and(|(_, until)| self.now < *until)
    }

    /// Whether the control plane takes a process for dead: it has stood still, or was cut off, for longer than its
    /// session lasts.
    pub fn is_expired(&self, process: usize, session: Micros) -> bool {
        let known = &self.processes[process];
        let since = match known.state {
            State::Paused => Some(known.paused_at),
            _ => self.deaf.get(&process).map(|(since, _)| *since),
        };
        since.is_some_and(|since| self.now >= since + session)
    }

    /// Runs until `end`, or until the first failure.
    pub(crate) fn run(&mut self, system: &mut S, end: Micros) -> Result<(), String> {
        let last_second = end.saturating_sub(SECOND);
        let mut is_last = false;
        while let Some((at, next)) = self.agenda.pop() {
            if !is_last && at >= last_second {
                is_last = true;
                self.net.note_last();
            }
            if at > end {
                break;
            }
            self.now = at;
            match next {
                Next::Turn(process) if self.is_up(process) => self.take_turn(system, process)?,
                Next::Turn(_) => {}
                Next::Event(event) => {
                    self.handle(system, event)?;
                    system.look(self);
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, system: &mut S, event: Event<S>) -> Result<(), String> {
        match event {
            Event::Arrive { at } => self.arrive(at),
            Event::Fault { at } => return self.strike(system, self.faults[at as usize].1),
            Event::Restart { process } => self.restart(system, process as usize),
            Event::Resume { process } => self.resume(process as usize),
            Event::Mend { from, to } => self.net.mend(from as usize, to as usize),
            Event::Hurry { from, to } => self.net.delay(from as usize, to as usize, 0),
            Event::Tell { process, snapshot } => {
                let known = process as usize;
                if self.is_deaf(known) || self.processes[known].state == State::Paused {
                    self.tell(known, TOLD_AGAIN, snapshot);
                } else {
                    return system.told(self, known, snapshot);
                }
            }
            Event::Heal => self.heal(system),
            Event::Own(event) => return system.happen(self, event),
        }
        Ok(())
    }

    fn arrive(&mut self, at: u32) {
        let Datagram {
            to,
            socket,
            from,
            bytes,
        } = self.flight.take(at);
        let tail = bytes.last_chunk::<8>().map_or(0, |tail| u64::from_le_bytes(*tail));
        for word in [self.now, u64::from(to), u64::from(from.port), bytes.len() as u64, tail] {
            self.trace = (self.trace.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        let process = to as usize;
        self.processes[process].deliver(Queued { socket, from, bytes });
        if self.is_up(process) {
            self.agenda.turn_at(process, self.now + self.turn);
        }
    }

    fn take_turn(&mut self, system: &mut S, process: usize) -> Result<(), String> {
        system.turning(self, process);
        let next = self.processes[process]
            .turn(self.now, &mut self.bench)
            .map_err(|why| format!("{} {why}", system.name(process)))?;
        let mut sent = std::mem::take(&mut self.bench.sent);
        for datagram in sent.drain(..) {
            self.send(process, datagram);
        }
        self.bench.sent = sent;
        system.turned(self, process)?;
        if let Some(at) = next {
            self.agenda.turn_at(process, at);
        }
        Ok(())
    }

    fn send(&mut self, process: usize, datagram: Sent) {
        let from = self.processes[process].addrs[datagram.socket as usize];
        let Some(Some((to, socket))) = self.ports.get(usize::from(datagram.to.port)).copied() else {
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
            let to = to as u32;
            let place = self.flight.put(Datagram {
                to,
                socket,
                from,
                bytes,
            });
            self.agenda.push(at, Event::Arrive { at: place });
        }
    }

    /// Applies a fault of the plan to a process or a path, if that exists.
    pub fn strike(&mut self, system: &mut S, fault: Fault<S::Fault>) -> Result<(), String> {
        self.say(|| format!("fault: {fault:?}"));
        match fault {
            Fault::Kill { process, down } if self.is_up(process) => {
                system.dies(self, process);
                self.processes[process].die(State::Down);
                self.restart_after(process, down);
            }
            Fault::Return { process, down } if self.is_up(process) => {
                system.dies(self, process);
                self.processes[process].die(State::Down);
                self.processes[process].returns = true;
                self.restart_after(process, down);
            }
            Fault::Remove { process } if self.processes[process].state != State::Removed => {
                if self.processes[process].is_alive() {
                    system.dies(self, process);
                }
                self.processes[process].die(State::Removed);
            }
            Fault::Pause { process, pause } if self.is_up(process) => {
                self.processes[process].state = State::Paused;
                self.processes[process].paused_at = self.now;
                system.pauses(self, process, pause);
                let process = process as u32;
                self.agenda.push(self.now + pause, Event::Resume { process });
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
            Fault::Deaf { process, pause } => {
                self.deaf.insert(process, (self.now, self.now + pause));
            }
            Fault::Step { process, by } => {
                self.processes[process].clock.step(self.now, by);
                self.agenda.turn_at(process, self.now);
            }
            Fault::Drift { process, ppm } => {
                self.processes[process].clock.drift(self.now, ppm);
                self.agenda.turn_at(process, self.now);
            }
            Fault::Own(fault) => return system.strike(self, fault),
            Fault::Kill { .. }
            | Fault::Return { .. }
            | Fault::Remove { .. }
            | Fault::Pause { .. }
            | Fault::Cut { .. } => {}
        }
        Ok(())
    }

    fn restart(&mut self, system: &mut S, process: usize) {
        let known = &self.processes[process];
        if known.state != State::Down {
            return;
        }
        self.say(|| format!("{} is back", system.name(process)));
        let epoch = known.epoch + u32::from(!known.returns);
        let (addrs, clock) = (known.addrs.clone(), known.clock);
        let node = system.start(self, process, epoch);
        self.processes[process] = Process::new(node, epoch, addrs, clock);
        system.returned(self, process);
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

    fn heal(&mut self, system: &mut S) {
        self.say(|| "no faults from here on".into());
        self.healed = true;
        self.deaf.clear();
        self.net.heal();
        system.heal(self);
    }

    /// Starts all dead processes except removed ones, resumes all that stand still, and sets all clocks to the true
    /// rate.
    pub fn raise(&mut self, system: &mut S) {
        for process in 0..self.processes.len() {
            self.processes[process].clock.drift(self.now, 0);
            self.restart(system, process);
            self.resume(process);
        }
    }
}
