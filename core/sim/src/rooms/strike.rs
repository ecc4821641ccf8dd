//! The fault that belongs into a step of a doubling: it waits until the step is reached, and happens before the step
//! is over.

use muster_simkit::{Fault, State};
use muster_transport::{Growth, Layer, Micros};

use super::placing::COORDINATED;
use super::{Event, Rooms, Sim};
use crate::matrix::{Step, Strike};
use crate::plan::{Kind, Plan};

#[derive(Default)]
pub struct Struck {
    planned: bool,
    pub fell: Option<Step>,
    /// All have finished the work after the growth.
    pub clean: bool,
}

impl Struck {
    /// Whether a growth has ended and is no longer watched.
    pub fn is_over(&self, plan: &Plan) -> bool {
        plan.strike.is_none() || self.clean
    }
}

impl Rooms {
    /// The step that the doubling has reached.
    fn step_reached(&self, world: &Sim) -> Option<Step> {
        let layer = self.plan.strike.as_ref()?.cell.layer;
        let growth = &self.growths[&(layer, 0)];
        if growth.epoch == 1 {
            return None;
        }
        let mut named = (0..self.plan.servers()).filter(|process| self.is_placed(*process));
        let heard =
            |process: usize| world.processes[process].state == State::Up && self.placed[process] >= growth.epoch;
        let (all, count) = (named.all(heard), growth.layer.used());
        let ended = growth.layer == Layer::from(count);
        let prepared = growth.layer == Layer::new(count, Growth::Prepare);
        match (ended, prepared, all) {
            (true, _, false) => Some(Step::Final),
            (true, _, true) => (!self.struck.clean).then_some(Step::Clean),
            (_, true, false) => Some(Step::Prepare),
            (_, true, true) => Some(Step::Running),
            (_, _, false) => Some(Step::Switch),
            (_, _, true) => Some(growth.done.map_or(Step::Acks, |_| Step::Grace)),
        }
    }

    /// Whether the fault is due, because its step is reached and the process is there.
    pub(super) fn strikes_now(&self, world: &Sim) -> bool {
        let strike = self.plan.strike.as_ref().filter(|_| self.struck.fell.is_none());
        strike.is_some_and(|strike| {
            self.step_reached(world) == Some(strike.cell.step) && world.processes[strike.process].state == State::Up
        })
    }

    /// Plans the fault once its step has begun; the coordinator does not end the step before.
    pub(super) fn await_step(&mut self, world: &mut Sim) {
        if self.plan.strike.is_none() || self.struck.planned || !self.strikes_now(world) {
            return;
        }
        self.struck.planned = true;
        let left = self.step_left(world);
        let after = world.dice.below(left.max(1));
        world.push(world.now + after, Event::Strike);
    }

    /// How long the present step lasts at least; otherwise a fixed while.
    fn step_left(&self, world: &Sim) -> Micros {
        let Some(strike) = &self.plan.strike else { return 0 };
        let growth = &self.growths[&(strike.cell.layer, 0)];
        match strike.cell.step {
            Step::Prepare | Step::Switch | Step::Final => growth.heard_at.saturating_sub(world.now),
            Step::Grace => self.plan.growing.grace,
            Step::Running | Step::Acks | Step::Clean => COORDINATED,
        }
    }

    pub(super) fn strike_step(&mut self, world: &mut Sim) -> Result<(), String> {
        let Some(strike) = self.plan.strike.clone().filter(|_| self.struck.fell.is_none()) else {
            return Ok(()); // the coordinator checked first
        };
        if !self.strikes_now(world) {
            self.struck.planned = false; // a process is not settled after all: the step is reached again later
            return Ok(());
        }
        self.struck.fell = self.step_reached(world);
        for fault in &strike.faults {
            world.strike(self, *fault)?;
        }
        if let Some(pause) = self.cuts_off(&strike) {
            self.commands.note_out(world.now, pause);
        }
        if let Some(pause) = strike.registry {
            let process = strike.process;
            world.strike(self, Fault::Deaf { process, pause })?;
        }
        let state = world.processes[strike.process].state;
        let hit = strike.faults.iter().all(|fault| match fault {
            Fault::Kill { .. } | Fault::Return { .. } => state == State::Down,
            Fault::Pause { .. } => state == State::Paused,
            _ => true,
        });
        (hit && (!strike.faults.is_empty() || strike.registry.is_some()))
            .then_some(())
            .ok_or_else(|| "the fault had no victim".into())
    }

    /// For how long a strike separates a gateway from a broker and from all routers that report some of its rooms:
    /// that broker does not count the members there.
    fn cuts_off(&self, strike: &Strike) -> Option<Micros> {
        let cut = |other: usize| {
            strike.faults.iter().find_map(|fault| match *fault {
                Fault::Cut { from, to, pause } if (from, to) == (strike.process, other) => Some(pause),
                _ => None,
            })
        };
        let of = |kind| (0..self.plan.servers()).filter(move |process| self.plan.kind(*process) == kind);
        let untold = |router: usize| {
            let partition = self.plan.partition(router);
            let mut replicas = of(Kind::Router).filter(|other| self.plan.partition(*other) == partition);
            replicas.all(|other| cut(other).is_some())
        };
        let gateway = self.plan.kind(strike.process) == Kind::Gateway;
        let pause = of(Kind::Broker).find_map(cut).filter(|_| gateway)?;
        of(Kind::Router).any(untold).then_some(pause)
    }

    /// A running process that learns last of the step.
    pub(super) fn last_to_hear(&self, world: &mut Sim) -> usize {
        let up = |process: &usize| world.processes[*process].state == State::Up;
        let up: Vec<usize> = (0..self.plan.servers()).filter(up).collect();
        up[world.dice.below(up.len() as u64) as usize]
    }

    /// Checks that the fault happened during its step.
    pub(super) fn has_struck(&self) -> Result<(), String> {
        match (&self.plan.strike, self.struck.fell) {
            (Some(strike), fell) if fell != Some(strike.cell.step) => Err(format!(
                "the fault did not happen during {}: {fell:?}",
                strike.cell.step
            )),
            _ => Ok(()),
        }
    }
}
