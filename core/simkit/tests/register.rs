//! A toy system, to show that the kit knows none: replicas of a log, clients that add entries, and an oracle.
//!
//! Each planted bug only shows under a fault: of the network, of processes, or of clocks.

use std::convert::Infallible;

use muster_simkit::{
    guarded, partition, replay, Addr, Draw, Fault, Micros, Node, Process, Ran, Setup, State, System, Turn, Turned,
    Weather, World, EPOCH, MS, SECOND,
};

#[path = "register/machines.rs"]
mod machines;

use machines::{Client, Entry, Replica};

const REPLICAS: usize = 3;
const CLIENTS: usize = 2;
/// Number of seeds within which a bug must be found.
const SEEDS: u64 = 100;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// A repeated add counts again: duplicates and losses reveal it.
    CountsTwice,
    /// An add is acknowledged before it is stored: a kill reveals it.
    AnswersBeforeKept,
    /// A client uses the time as the number of an add: a clock that is set back reveals it, or two adds within a
    /// tick.
    NumbersByClock,
    /// A replica does not check the checksum: corrupted bytes reveal it.
    TrustsBytes,
}

const BUGS: [Bug; 4] = [
    Bug::CountsTwice,
    Bug::AnswersBeforeKept,
    Bug::NumbersByClock,
    Bug::TrustsBytes,
];

enum Toy {
    Replica(Replica),
    Client(Client),
}

impl Node for Toy {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        match self {
            Toy::Replica(machine) => turn.of(machine),
            Toy::Client(client) => client.turn(turn),
        }
    }
}

enum Event {
    Add {
        client: usize,
    },
    /// Slow disks store the state of replicas.
    Write,
}

/// The system: the disks' copies of replicas, and the number of starts of each process.
struct Register {
    bug: Option<Bug>,
    disks: Vec<Vec<Entry>>,
    starts: Vec<u32>,
    told: Vec<Micros>,
}

impl Register {
    fn new(bug: Option<Bug>) -> Self {
        Register {
            bug,
            disks: vec![Vec::new(); REPLICAS],
            starts: vec![0; REPLICAS + CLIENTS],
            told: vec![0; REPLICAS],
        }
    }

    fn replicas(but: Option<usize>) -> Vec<Addr> {
        let all = (0..REPLICAS).filter(|replica| Some(*replica) != but);
        all.map(|replica| World::<Register>::addr(replica, 0)).collect()
    }

    fn write(&mut self, process: &Process<Toy>, replica: usize) {
        if let Toy::Replica(machine) = &process.node {
            self.disks[replica].clone_from(&machine.log);
        }
    }
}

impl System for Register {
    type Node = Toy;
    type Event = Event;
    type Snapshot = ();
    type Fault = Infallible;

    fn start(&mut self, world: &World<Self>, process: usize, epoch: u32) -> Toy {
        assert_eq!(epoch, EPOCH + self.starts[process], "each life has the next epoch");
        self.starts[process] += 1;
        match process.checked_sub(REPLICAS) {
            // The control plane tells it of the others.
            None => Toy::Replica(Replica::new(
                self.bug,
                world.clock(process),
                self.disks[process].clone(),
            )),
            Some(client) => Toy::Client(Client::new(self.bug, client as u8, Self::replicas(None))),
        }
    }

    fn begin(&mut self, world: &mut World<Self>) {
        for replica in 0..REPLICAS {
            world.tell(replica, 10 * MS, ());
        }
        for client in 0..CLIENTS {
            world.push(world.now + 100 * MS, Event::Add { client });
        }
        world.push(world.now + 100 * MS, Event::Write);
    }

    fn happen(&mut self, world: &mut World<Self>, event: Event) -> Result<(), String> {
        match event {
            Event::Add { client } if !world.healed => {
                if let Toy::Client(machine) = &mut world.processes[REPLICAS + client].node {
                    machine.waiting += 1;
                }
                world.turn_at(REPLICAS + client, world.now);
                let next = world.now + 20 * MS + world.dice.below(60 * MS);
                world.push(next, Event::Add { client });
            }
            Event::Add { .. } => {}
            Event::Write => {
                for replica in (0..REPLICAS).filter(|replica| world.is_up(*replica)) {
                    self.write(&world.processes[replica], replica);
                }
                world.push(world.now + 100 * MS, Event::Write);
            }
        }
        Ok(())
    }

    fn turned(&mut self, world: &mut World<Self>, process: usize) -> Result<(), String> {
        if process < REPLICAS && self.bug != Some(Bug::AnswersBeforeKept) {
            self.write(&world.processes[process], process);
        }
        Ok(())
    }

    fn told(&mut self, world: &mut World<Self>, process: usize, (): ()) -> Result<(), String> {
        if let Toy::Replica(machine) = &mut world.processes[process].node {
            machine.set_others(Self::replicas(Some(process)));
            self.told[process] = world.now;
        }
        Ok(())
    }

    fn strike(&mut self, _world: &mut World<Self>, fault: Infallible) -> Result<(), String> {
        match fault {}
    }

    fn returned(&mut self, world: &mut World<Self>, process: usize) {
        if process < REPLICAS {
            world.tell(process, 10 * MS, ());
        }
    }

    /// All replicas have the same entries, and each add once.
    fn judge(&mut self, world: &mut World<Self>) -> Result<(), String> {
        let mut begun = Vec::new();
        for process in &world.processes {
            let Toy::Client(client) = &process.node else { continue };
            if client.begun != client.done || client.waiting > 0 {
                return Err(format!("{} of {} adds are done", client.done, client.begun));
            }
            begun.push(client.begun as usize);
        }
        for (replica, process) in world.processes.iter().enumerate() {
            let Toy::Replica(machine) = &process.node else { continue };
            for (client, begun) in begun.iter().enumerate() {
                let had = machine.log.iter().filter(|(of, _)| usize::from(*of) == client).count();
                if had != *begun {
                    return Err(format!(
                        "replica {replica} has {had} of {begun} adds of client {client}"
                    ));
                }
            }
            let strange = machine.log.iter().find(|(of, _)| usize::from(*of) >= CLIENTS);
            if let Some(strange) = strange {
                return Err(format!("replica {replica} has {strange:?}, which nobody added"));
            }
        }
        Ok(())
    }
}

/// A run with any faults of replicas, and of all clocks.
fn plan(seed: u64) -> Setup<Infallible> {
    let mut draw = Draw::new(seed);
    let heal = draw.within(2 * SECOND, 4 * SECOND);
    let (links, sessions) = (draw.weather(true), draw.weather(false));
    let mut faults = Vec::new();
    for _ in 0..draw.below(6) {
        let at = draw.within(200 * MS, heal - 100 * MS);
        let (process, other) = (draw.below(3) as usize, draw.below(3) as usize);
        let anyone = draw.below(5) as usize;
        let pause = draw.within(20 * MS, SECOND);
        let all = match draw.below(7) {
            0 | 1 => vec![Fault::Kill { process, down: pause }],
            2 => vec![Fault::Pause { process, pause }],
            3 => partition(&[process], &[other, REPLICAS, REPLICAS + 1], pause),
            4 => vec![Fault::Deaf { process, pause }],
            5 => vec![Fault::Drift {
                process: anyone,
                ppm: draw.within(0, 200_000) as i64 - 100_000,
            }],
            _ => vec![Fault::Step {
                process: anyone,
                by: draw.within(0, 1_600 * MS) as i64 - 800_000,
            }],
        };
        faults.extend(all.into_iter().map(|fault| (at, fault)));
    }
    Setup {
        clock: muster_simkit::clock(seed),
        sockets: vec![1; REPLICAS + CLIENTS],
        near: REPLICAS,
        links,
        sessions,
        turn: draw.within(0, 200),
        faults,
        heal,
        settle: 10 * SECOND,
    }
}

fn ran(seed: u64, bug: Option<Bug>) -> Ran<Register> {
    muster_simkit::run(seed, plan(seed), Register::new(bug), false)
}

fn result(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    guarded(|| ((), ran(seed, bug).result)).1
}

/// A run without other faults, to which a test adds some.
fn quiet(faults: Vec<(Micros, Fault<Infallible>)>) -> Ran<Register> {
    let calm = Weather {
        latency: MS,
        ..Weather::default()
    };
    let setup = Setup {
        links: calm,
        sessions: calm,
        faults,
        heal: 3 * SECOND,
        ..plan(0)
    };
    let ran = muster_simkit::run(1, setup, Register::new(None), false);
    assert_eq!(ran.result, Ok(()));
    ran
}

#[test]
fn the_register_is_correct_under_any_faults() {
    let (mut sent, mut lost) = (0, 0);
    for seed in 0..2 * SEEDS {
        let ran = ran(seed, None);
        if let Err(why) = ran.result {
            panic!("seed {seed}: {why}\n    {}", replay("muster-simkit", "", seed));
        }
        (sent, lost) = (sent + ran.world.net.sent, lost + ran.world.net.lost);
    }
    assert!(lost > 1_000 && sent > 10 * lost, "{lost} of {sent}");
}

#[test]
fn each_planted_bug_is_found_by_a_seed_that_holds_without_it() {
    for bug in BUGS {
        let found = (0..SEEDS).find_map(|seed| result(seed, Some(bug)).err().map(|why| (seed, why)));
        let Some((seed, why)) = found else {
            panic!("{bug:?} was not found in {SEEDS} seeds");
        };
        println!("{bug:?}: seed {seed}: {why}");
        assert_eq!(result(seed, None), Ok(()), "seed {seed} fails without {bug:?} as well");
    }
}

#[test]
fn a_seed_determines_a_run() {
    for seed in [0, 7, 11] {
        let [one, other] = [ran(seed, None), ran(seed, None)];
        assert_eq!(one.world.trace(), other.world.trace(), "seed {seed}");
        assert_ne!(one.world.trace(), ran(seed + 1, None).world.trace(), "seed {seed}");
    }
}

#[test]
fn a_killed_process_starts_with_the_next_epoch_and_a_removed_one_never() {
    let kill = Fault::Kill {
        process: 0,
        down: 50 * MS,
    };
    let ran = quiet(vec![(SECOND, kill), (2 * SECOND, kill)]);
    assert_eq!((ran.system.starts[0], ran.world.processes[0].epoch), (3, EPOCH + 2));
    let removed = muster_simkit::run(
        1,
        Setup {
            faults: vec![(SECOND, Fault::Remove { process: 0 })],
            ..plan(0)
        },
        Register::new(None),
        false,
    );
    assert_eq!(removed.world.processes[0].state, State::Removed);
    assert_eq!(removed.system.starts[0], 1);
}

#[test]
fn a_deaf_or_stalled_process_gets_messages_of_the_control_plane_later() {
    let pause = SECOND;
    let start = quiet(vec![]).system.told;
    for fault in [Fault::Deaf { process: 1, pause }, Fault::Pause { process: 1, pause }] {
        let told = quiet(vec![(0, fault)]).system.told;
        assert_eq!(told[0], start[0]);
        let late = told[1] - start[1];
        assert!((pause - 20 * MS..pause + 400 * MS).contains(&late), "{fault:?}: {late}");
    }
}

#[test]
fn a_cut_path_carries_nothing_until_it_is_restored() {
    let lost = |faults| quiet(faults).world.net.lost;
    let cut = |from, to| Fault::Cut {
        from,
        to,
        pause: SECOND,
    };
    assert_eq!(lost(vec![]), 0);
    let one_way = lost(vec![(SECOND, cut(0, 1))]);
    // A replica sends to each other one about seven times a second.
    assert!((5..=8).contains(&one_way), "{one_way}");
    let apart = partition(&[0], &[1, 2], SECOND);
    let both = lost(apart.into_iter().map(|fault| (SECOND, fault)).collect());
    assert!((20..=32).contains(&both), "{both}");
}

#[test]
fn a_process_uses_its_own_clock_even_if_it_is_set_or_drifts() {
    let faults = [
        Fault::Step {
            process: 0,
            by: -400_000,
        },
        Fault::Step { process: 1, by: 7 },
        Fault::Drift { process: 2, ppm: 1_000 },
    ];
    let world = quiet(faults.map(|fault| (SECOND, fault)).to_vec()).world;
    let ahead = |process| world.clock(process) as i64 - world.now as i64;
    // It drifts for two seconds, until faults end.
    assert_eq!([0, 1, 2, 3].map(ahead), [-400_000, 7, 2_000, 0]);
}

/// A node that is always due.
struct Restless;

impl Node for Restless {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        Turned {
            more: false,
            deadline: Some(turn.now()),
        }
    }
}

struct Spinning;

impl System for Spinning {
    type Node = Restless;
    type Event = ();
    type Snapshot = ();
    type Fault = Infallible;

    fn start(&mut self, _world: &World<Self>, _process: usize, _epoch: u32) -> Restless {
        Restless
    }

    fn begin(&mut self, _world: &mut World<Self>) {}

    fn happen(&mut self, _world: &mut World<Self>, (): ()) -> Result<(), String> {
        Ok(())
    }

    fn turned(&mut self, _world: &mut World<Self>, _process: usize) -> Result<(), String> {
        Ok(())
    }

    fn strike(&mut self, _world: &mut World<Self>, fault: Infallible) -> Result<(), String> {
        match fault {}
    }

    fn judge(&mut self, _world: &mut World<Self>) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_node_whose_deadline_stays_in_the_past_is_found() {
    let setup = Setup {
        sockets: vec![1],
        near: 1,
        faults: vec![],
        ..plan(0)
    };
    let why = muster_simkit::run(1, setup, Spinning, false).result.unwrap_err();
    assert!(why.contains("process 0 spins"), "{why}");
}
