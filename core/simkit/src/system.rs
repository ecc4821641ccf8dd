//! The parts that a system supplies for its simulation.

use std::fmt::Debug;

use crate::{Micros, Node, World};

/// The nodes of the processes, their load, and the judgements.
///
/// The kit calls these verbs in the order of virtual time. A verb that returns an error ends the run: the error is the
/// finding.
pub trait System: Sized {
    /// The node of a process: one machine, or one of several kinds.
    type Node: Node;
    /// An event that the system plans for a time ([`World::push`]): its load, its control plane, its judgements. Best
    /// small.
    type Event;
    /// A message of its control plane to processes ([`World::tell`]), by name. Its content is the system's state at the
    /// time of delivery.
    type Snapshot: Copy;
    /// The faults that it alone knows.
    type Fault: Copy + Debug;

    /// The node of a process at the start of one of its lives. Only the system keeps state of an earlier life.
    fn start(&mut self, world: &World<Self>, process: usize, epoch: u32) -> Self::Node;

    /// Whether a process is there from the beginning. Others come with [`World::restart_after`].
    fn is_there(&self, _process: usize) -> bool {
        true
    }

    /// All processes have been made: the load begins, and later events are planned.
    fn begin(&mut self, world: &mut World<Self>);

    /// One of the system's events is due.
    fn happen(&mut self, world: &mut World<Self>, event: Self::Event) -> Result<(), String>;

    /// A process is about to have a turn.
    fn turning(&mut self, _world: &mut World<Self>, _process: usize) {}

    /// A process has had a turn: takes its node's events, and judges.
    fn turned(&mut self, world: &mut World<Self>, process: usize) -> Result<(), String>;

    /// A process hears from the control plane. It is up, or is dead and starts with it.
    fn told(&mut self, _world: &mut World<Self>, _process: usize, _snapshot: Self::Snapshot) -> Result<(), String> {
        Ok(())
    }

    /// One of the system's own faults.
    fn strike(&mut self, world: &mut World<Self>, fault: Self::Fault) -> Result<(), String>;

    /// A process dies now.
    fn dies(&mut self, _world: &mut World<Self>, _process: usize) {}

    /// A process stands still from now on.
    fn pauses(&mut self, _world: &mut World<Self>, _process: usize, _pause: Micros) {}

    /// A process has started again, in its next epoch.
    fn returned(&mut self, _world: &mut World<Self>, _process: usize) {}

    /// The network is well from here on. Brings all processes back.
    fn heal(&mut self, world: &mut World<Self>) {
        world.raise(self);
    }

    /// An event, not a turn, has happened.
    fn look(&mut self, _world: &mut World<Self>) {}

    /// The run has come to its end: judges all of it.
    fn judge(&mut self, world: &mut World<Self>) -> Result<(), String>;

    /// The name of a process in messages.
    fn name(&self, process: usize) -> String {
        format!("process {process}")
    }
}
