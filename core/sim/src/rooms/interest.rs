//! Whether brokers and routers know the gateways' interest.
//!
//! Owns the interest of living gateways, and its comparison with the others' views.

use std::collections::{BTreeMap, BTreeSet};

use muster_rooms::{Gateway, RoomName};

use super::machines::NAME_KEY;
use super::{Role, Rooms, Sim};
use crate::identities::node_of;

impl Rooms {
    /// Brokers know exactly the rooms in which gateways have members, and gateways have exactly the members that
    /// joined.
    pub(super) fn interest(&self, world: &Sim) -> Result<(), String> {
        let mut members: BTreeMap<u64, usize> = BTreeMap::new();
        for membership in self.oracle.memberships.iter().filter(|membership| !membership.left) {
            *members.entry(self.room_id(membership.room)).or_default() += 1;
        }
        let mut held = BTreeMap::new();
        for gateway in self.gateways(world) {
            for room in gateway.1.rooms() {
                *held.entry(room.id).or_default() += room.members.len();
            }
        }
        if held != members {
            return Err(format!(
                "gateways have members {held:?} where clients are in {members:?}"
            ));
        }
        let wanted = self.wanted(world);
        self.views_between(world, &wanted, &wanted)
    }

    /// The running gateways, by process.
    fn gateways<'w>(&self, world: &'w Sim) -> impl Iterator<Item = (usize, &'w Gateway)> + use<'w> {
        let alive = world.processes.iter().enumerate().filter(|(_, known)| known.is_alive());
        alive.filter_map(|(process, known)| match &known.node {
            Role::Gateway(gateway) => Some((process, &**gateway)),
            _ => None,
        })
    }

    /// The interest of all gateways.
    fn wanted(&self, world: &Sim) -> BTreeSet<(u32, u64)> {
        let rooms = |(process, gateway): (usize, &Gateway)| {
            let rooms: Vec<_> = gateway.rooms().map(|room| (node_of(process), room.id)).collect();
            rooms
        };
        self.gateways(world).flat_map(rooms).collect()
    }

    /// Soon after the last fault each view equals the gateways' interest, except for changes within the last second.
    pub(super) fn views(&mut self, world: &mut Sim, judged: bool) -> Result<(), String> {
        let wanted = self.wanted(world);
        let before = std::mem::replace(&mut self.wanted_before, wanted);
        match judged {
            true => self.views_between(
                world,
                &before.intersection(&self.wanted_before).copied().collect(),
                &before.union(&self.wanted_before).copied().collect(),
            ),
            false => Ok(()),
        }
    }

    /// Brokers and routers know at least the certain interest in their partition, and nothing beyond the possible
    /// interest.
    fn views_between(
        &self,
        world: &Sim,
        least: &BTreeSet<(u32, u64)>,
        most: &BTreeSet<(u32, u64)>,
    ) -> Result<(), String> {
        let (brokers, routers) = self.plan.partitions;
        let second = self.plan.second.as_ref().map_or(0, |second| second.partitions);
        for (process, known) in world.processes.iter().enumerate() {
            let brokers = [brokers, second][self.plan.cluster(process)];
            let (who, known, partitions) = match &known.node {
                Role::Broker(broker) => ("broker", broker.interest().wanted(), brokers),
                Role::Router(router) => ("router", router.interest().wanted(), routers),
                _ => continue,
            };
            let partition = self.plan.partition(process) as u64;
            let of_partition = |(_, room): &&(u32, u64)| room % partitions as u64 == partition;
            let known: BTreeSet<_> = known.into_iter().collect();
            let lacks = least.iter().filter(of_partition).any(|wanted| !known.contains(wanted));
            if lacks
                || !known
                    .iter()
                    .all(|wanted| of_partition(&wanted) && most.contains(wanted))
            {
                let least: Vec<_> = least.iter().filter(of_partition).collect();
                return Err(format!(
                    "{who} {process} believes that {known:?} is wanted where {least:?} is at {}",
                    world.now
                ));
            }
        }
        Ok(())
    }

    fn room_id(&self, room: usize) -> u64 {
        let name = RoomName::parse(&self.plan.rooms[room]).expect("rooms have good names");
        name.key(&NAME_KEY).id
    }
}
