//! The parts that a system supplies for its simulation.

use std::fmt::Debug;

use crate::{Micros, Node, World};

/// The nodes of the processes, their load, and the checks.
///
/// The kit calls these methods in the order of virtual time. A method that returns an error ends the run: the error
/// is the failure.
pub trait System: Sized {
    /// The node of a process: one machine, or one of several kinds.
    type Node: Node;
    /// An event that the system plans for a time ([`World::push`]): its load, its control plane, its checks. It
    /// should be small.
    type Event;
    /// A message of the control plane to processes ([`World::tell`]), by name. Its content is the system's state at
    /// the time of delivery.
    type Snapshot: Copy;
    /// The faults that only this system knows.
    type Fault: Copy + Debug;

    /// The node of a process at the start of one of its lives. Only the system keeps state of an earlier life.
    fn start(&mut self, world: &World<Self>, process: usize, epoch: u32) -> Self::Node;

    /// Whether a process exists from the beginning. Others start with [`World::restart_after`].
    fn is_there(&self, _process: usize) -> bool {
        true
    }

    /// All processes have been made: starts the load, and plans later events.
    fn begin(&mut self, world: &mut World<Self>);

    /// One of the system's events is due.
    fn happen(&mut self, world: &mut World<Self>, event: Self::Event) -> Result<(), String>;

    /// A process is about to have a turn.
    fn turning(&mut self, _world: &mut World<Self>, _process: usize) {}

    /// A process has had a turn: takes its node's events, and checks.
    fn turned(&mut self, world: &mut World<Self>, process: usize) -> Result<(), String>;

    /// A process gets a message of the control plane. The process is up, or is dead and starts with it.
    fn told(&mut self, _world: &mut World<Self>, _process: usize, _snapshot: Self::Snapshot) -> Result<(), String> {
        Ok(())
    }

    /// Applies one of the system's own faults.
    fn strike(&mut self, world: &mut World<Self>, fault: Self::Fault) -> Result<(), String>;

    /// A process dies now.
    fn dies(&mut self, _world: &mut World<Self>, _process: usize) {}

    /// A process stands still from now on.
    fn pauses(&mut self, _world: &mut World<Self>, _process: usize, _pause: Micros) {}

    /// A process has started again, in its next epoch.
    fn returned(&mut self, _world: &mut World<Self>, _process: usize) {}

    /// The network works from here on. Brings all processes back.
    fn heal(&mut self, world: &mut World<Self>) {
        world.raise(self);
    }

    /// An event other than a turn has happened.
    fn look(&mut self, _world: &mut World<Self>) {}

    /// The run is over: checks everything.
    fn judge(&mut self, world: &mut World<Self>) -> Result<(), String>;

    /// The name of a process in output.
    fn name(&self, process: usize) -> String {
        format!("process {process}")
    }
}
