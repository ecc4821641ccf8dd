//! A server that must end: it sends its clients to others, and dies once they are gone.

use muster_simkit::{Fault, MS, SECOND};
use muster_transport::{HasSessions, Micros};

use super::{Event, Role, Rooms, Sim};

/// How often an ending server checks whether its clients are gone, and after which time it ends in any case.
const LOOKS_EVERY: Micros = 20 * MS;
const ENDS_WITHIN: Micros = SECOND;

impl Rooms {
    /// Makes a server end. It starts again after this time.
    pub(super) fn end(&mut self, world: &mut Sim, process: usize, down: Micros) -> Result<(), String> {
        if !world.is_up(process) {
            return Ok(());
        }
        match &mut world.processes[process].node {
            Role::Gateway(machine) => machine.drain(),
            Role::Proxy(machine) => machine.drain(),
            _ => unreachable!("only these have clients"),
        }
        world.turn_at(process, world.now);
        self.ended(world, process, world.now + ENDS_WITHIN, down)
    }

    /// Ends a process once its clients are gone, at the latest at this time.
    pub(super) fn ended(&mut self, world: &mut Sim, process: usize, by: Micros, down: Micros) -> Result<(), String> {
        let drained = match &world.processes[process].node {
            Role::Gateway(machine) => machine.sessions().is_drained(),
            Role::Proxy(machine) => machine.sessions().is_drained() && machine.is_idle(),
            _ => true,
        };
        if drained || world.now >= by {
            return world.strike(self, Fault::Kill { process, down });
        }
        let process = process as u32;
        world.push(world.now + LOOKS_EVERY, Event::Ended { process, by, down });
        Ok(())
    }
}
