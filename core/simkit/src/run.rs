//! One run of a system, from the start to its checks.

use crate::{Micros, Setup, System, World};

/// A finished run: its world and its system, to read statistics from.
pub struct Ran<S: System> {
    pub world: World<S>,
    pub system: S,
    /// Its duration in virtual time.
    pub virtual_us: Micros,
    pub result: Result<(), String>,
}

/// Runs a system to the end of its plan, or to the first failure, and checks the result.
pub fn run<S: System>(seed: u64, setup: Setup<S::Fault>, mut system: S, verbose: bool) -> Ran<S> {
    let clock = setup.clock;
    let end = clock + setup.heal + setup.settle;
    let mut world = World::new(seed, setup, &mut system, verbose);
    let result = world.run(&mut system, end).and_then(|()| system.judge(&mut world));
    Ran {
        virtual_us: world.now - clock,
        world,
        system,
        result,
    }
}
