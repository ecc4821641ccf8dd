//! The control plane of a run: the placement of nodes, their draining, and the doubling of partitions.
//!
//! Owns the placement and its steps. The kit determines when it is delivered.

use muster_rooms::role;
use muster_rooms::room_placement;
use std::collections::BTreeMap;

use muster_simkit::{State, MS, SECOND};
use muster_transport::{Growth, Layer, Micros, NodeState, PlacedNode, Placement};

use super::machines::LINKS;
use super::role::role_of;
use super::{Event, Role, Rooms, Sim, Snapshot, PLACED_AGAIN};
use crate::identities::node_of;
use crate::plan::{Kind, Plan};

/// The registry takes a process for dead that stands still for this long.
const SESSION: Micros = 3 * SECOND;
/// How often the coordinator of a doubling checks.
pub(super) const COORDINATED: Micros = 50 * MS;

/// The brokers of a cluster; or the routers, which belong to none.
pub type Group = (Kind, usize);

/// The control plane's progress with the partitions of a group.
pub struct Doubling {
    pub layer: Layer,
    /// The placement epoch of the present step, and since when all have finished that step.
    pub epoch: u32,
    pub done: Option<Micros>,
    /// When the last node learns of it.
    pub heard_at: Micros,
}

/// The state of each group before anything doubles.
pub fn at_start(plan: &Plan) -> BTreeMap<Group, Doubling> {
    let (brokers, routers) = plan.partitions_before();
    let second = plan.second.as_ref().map(|second| second.partitions_before());
    let groups = [((Kind::Broker, 0), brokers), ((Kind::Router, 0), routers)];
    let second = second.map(|count| ((Kind::Broker, 1), count));
    let still = |count| Doubling {
        layer: Layer::from(count as u16),
        epoch: 1,
        done: None,
        heard_at: 0,
    };
    let all = groups.into_iter().chain(second);
    all.map(|(group, count)| (group, still(count))).collect()
}

impl Rooms {
    /// The placement as a process gets it: a proxy or a broker gets only the brokers of its own cluster.
    pub(super) fn placement(&self, of: usize) -> Placement {
        let node = |process| PlacedNode {
            partition: self.plan.partition(process) as u16,
            state: [NodeState::Running, NodeState::Draining][usize::from(self.draining.contains(&process))],
            ..PlacedNode::new(
                node_of(process),
                role_of(self.plan.kind(process)),
                Sim::addr(process, LINKS),
            )
        };
        let placed = |process: &usize| self.is_placed(*process);
        let is_broker = |process: &usize| self.plan.kind(*process) == Kind::Broker;
        let serves_all = !matches!(self.plan.kind(of), Kind::Proxy | Kind::Broker);
        let own = if serves_all { 0 } else { self.plan.cluster(of) };
        let nodes = (0..self.plan.servers())
            .filter(placed)
            .filter(|process| !is_broker(process) || self.plan.cluster(*process) == own)
            .map(node);
        let layer = |group| self.growths[&group].layer;
        let (brokers, routers) = (layer((Kind::Broker, own)), layer((Kind::Router, 0)));
        let placement = room_placement(self.placement_epoch, nodes.collect(), brokers, routers);
        if !serves_all || !self.begun {
            return placement;
        }
        let others =
            (0..self.plan.servers()).filter(|process| is_broker(process) && self.plan.cluster(*process) != own);
        placement.beside(role::BROKER, others.filter(placed).map(node), layer((Kind::Broker, 1)))
    }

    /// Whether the placement names a process.
    pub(super) fn is_placed(&self, process: usize) -> bool {
        let cluster = self.plan.cluster(process);
        let growth = self.growths.get(&(self.plan.kind(process), cluster));
        (cluster == 0 || self.begun)
            && growth.is_none_or(|growth| self.plan.partition(process) < usize::from(growth.layer.all()))
    }

    /// The next step of a doubling; nodes learn of it one after the other.
    fn step(&mut self, world: &mut Sim, group: Group) {
        let Some(growth) = self.growths.get_mut(&group) else {
            return;
        };
        let (count, all) = (growth.layer.used(), growth.layer.all());
        growth.layer = match (count == all, growth.layer == Layer::from(count)) {
            (true, true) => Layer::new(count, Growth::Prepare),
            (false, _) => Layer::new(count, Growth::Switched),
            (true, false) => Layer::from(count),
        };
        (growth.epoch, growth.done) = (self.placement_epoch + 1, None);
        growth.heard_at = world.now + self.plan.growing.spread;
        let (layer, epoch) = (growth.layer, growth.epoch);
        world.say(|| format!("{group:?}: {layer:?}, placement {epoch}"));
        self.announce(world, self.plan.growing.spread);
    }

    /// The partitions of a group begin to double.
    pub(super) fn grow(&mut self, world: &mut Sim, group: Group) {
        self.place_more(world, |rooms, world| rooms.step(world, group));
        world.push(world.now + COORDINATED, Event::Coordinate { group });
    }

    /// The second cluster exists from now on.
    pub(super) fn begin_second(&mut self, world: &mut Sim) {
        self.place_more(world, |rooms, world| {
            rooms.begun = true;
            rooms.announce(world, SECOND / 2);
        });
    }

    /// Adds processes to the placement, and starts them.
    fn place_more(&mut self, world: &mut Sim, name: impl FnOnce(&mut Rooms, &mut Sim)) {
        let before: Vec<bool> = (0..self.plan.servers())
            .map(|process| self.is_placed(process))
            .collect();
        name(self, world);
        for process in (0..self.plan.servers()).filter(|process| !before[*process]) {
            if self.is_placed(process) {
                let within = self
                    .plan
                    .strike
                    .as_ref()
                    .map_or(SECOND, |_| self.plan.growing.spread / 2);
                let after = world.dice.below(within);
                world.restart_after(process, after);
            }
        }
    }

    /// Continues a doubling once all have finished its step.
    pub(super) fn coordinate(&mut self, world: &mut Sim, group: Group) {
        let Some(growth) = self.growths.get(&group) else { return };
        let ended = growth.layer == Layer::from(growth.layer.used());
        if ended && self.struck.is_over(&self.plan) {
            return;
        }
        if self.strikes_now(world) {
            world.push(world.now, Event::Strike);
            return world.push(world.now + COORDINATED, Event::Coordinate { group });
        }
        let (epoch, settled) = (growth.epoch, self.are_settled(world, group, growth.epoch));
        let since = growth.done.filter(|_| settled).or_else(|| settled.then_some(world.now));
        let grace = if world.healed { 0 } else { self.plan.growing.grace };
        if ended && settled {
            self.struck.clean = true;
            return;
        }
        if since.is_some_and(|since| world.now >= since + grace) {
            world.say(|| format!("{group:?}: all are done with placement {epoch}"));
            self.step(world, group);
        } else if let Some(growth) = self.growths.get_mut(&group) {
            growth.done = since;
        }
        world.push(world.now + COORDINATED, Event::Coordinate { group });
    }

    /// Whether all placed nodes that a group concerns know an epoch and have finished its work.
    fn are_settled(&self, world: &Sim, group: Group, epoch: u32) -> bool {
        let settled = |process: usize| {
            let known = &world.processes[process];
            match (known.state, &known.node) {
                (State::Paused, _) => self.plan.growing.forgets_paused && world.is_expired(process, SESSION),
                (State::Down, Role::Broker(_) | Role::Router(_)) => false, // it must learn of its rooms first
                (State::Down | State::Removed, _) => true,
                _ if world.is_deaf(process) => self.plan.growing.forgets_paused && world.is_expired(process, SESSION),
                _ if self.placed[process] < epoch => false,
                (_, role) => role.settled(),
            }
        };
        let (kind, cluster) = group;
        let concerned = |process: &usize| {
            let of_cluster = matches!(self.plan.kind(*process), Kind::Proxy | Kind::Broker);
            kind == Kind::Router || !of_cluster || self.plan.cluster(*process) == cluster
        };
        let named = (0..self.plan.servers()).filter(|process| self.is_placed(*process));
        named.filter(concerned).all(settled)
    }

    /// Marks a process as draining or running in the placement; the others learn of it one after the other, within
    /// `spread`.
    pub(super) fn set_draining(&mut self, world: &mut Sim, process: usize, drains: bool, spread: Micros) {
        let changed = if drains {
            self.draining.insert(process)
        } else {
            self.draining.remove(&process)
        };
        if !changed {
            return;
        }
        self.announce(world, spread);
    }

    /// Nodes learn of the present placement one after the other.
    fn announce(&mut self, world: &mut Sim, spread: Micros) {
        self.placement_epoch += 1;
        let spread = if world.healed { spread.min(PLACED_AGAIN) } else { spread };
        let last = self.plan.strike.is_some().then(|| self.last_to_hear(world));
        for process in 0..self.plan.servers() {
            let after = world.dice.below(spread);
            let after = if last == Some(process) { spread } else { after };
            world.tell(process, after, Snapshot::Placement);
        }
    }

    /// Gives a running process the newest placement.
    pub(super) fn place(&mut self, world: &mut Sim, process: usize) {
        if !world.is_up(process) {
            return;
        }
        let (now, placement) = (world.now, self.placement(process));
        world.processes[process].node.set_placement(now, placement);
        self.placed[process] = self.placement_epoch;
        world.turn_at(process, now);
    }

    /// Every planned doubling is done.
    pub(super) fn grown(&self) -> Result<(), String> {
        let (brokers, routers) = self.plan.partitions;
        let second = self
            .plan
            .second
            .as_ref()
            .map(|second| ((Kind::Broker, 1), second.partitions));
        let groups = [((Kind::Broker, 0), brokers), ((Kind::Router, 0), routers)];
        for (group, count) in groups.into_iter().chain(second) {
            let layer = self.growths[&group].layer;
            if layer != Layer::from(count as u16) {
                return Err(format!("{group:?} did not come to {count} partitions: {layer:?}"));
            }
        }
        Ok(())
    }
}
