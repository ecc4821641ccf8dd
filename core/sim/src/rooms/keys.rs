//! The replacement of the cluster's secret, and the proof of identities during it.
//!
//! Owns the steps, and the check of links at each. `identities` has the lists.

use muster_transport::ClusterKeys;

use super::role::role_of;
use super::{Event, Rooms, Sim, Snapshot};
use crate::identities::{node_of, Identities};

/// Number of steps to replace the secret.
const REKEYED: usize = 3;

/// A server's secrets after this many steps: with the next one added, then with it in use, then without the old one.
fn secrets(step: usize) -> ClusterKeys {
    let (former, next) = ((1, [7; 32]), (2, [8; 32]));
    let (current, other) = [(former, None), (former, Some(next)), (next, Some(former)), (next, None)][step];
    let allow = None;
    ClusterKeys { current, other, allow }
}

impl Rooms {
    /// Starts the next step at all servers one after the other, once all have taken the previous one.
    pub(super) fn rekey(&mut self, world: &mut Sim) {
        let Some((_, spread, rest)) = self.plan.rekeys else {
            return;
        };
        let taken = self.rekeyed.iter().all(|taken| *taken == self.rekeying);
        if taken && self.rekeying < REKEYED {
            self.rekeying += 1;
            let step = self.rekeying;
            world.say(|| format!("all begin step {step} of replacing the secret"));
            for process in 0..self.plan.servers() {
                let after = world.dice.below(spread);
                world.tell(process, after, Snapshot::Keys);
            }
        }
        if self.rekeying < REKEYED {
            world.push(world.now + spread + rest, Event::Rekey);
        }
    }

    /// A server's secrets and list.
    pub(super) fn cluster_keys(&self, process: usize) -> ClusterKeys {
        let step = self.rekeyed.get(process).copied().unwrap_or(0);
        let roles = (0..self.plan.servers()).map(|server| role_of(self.plan.kind(server)));
        let allow = self.plan.identities.map(|how| how.list(step, process, roles));
        ClusterKeys { allow, ..secrets(step) }
    }

    /// A node that is shut out has no link to nodes that know it, from that moment on.
    pub(super) fn keeps_out(&self, world: &Sim, process: usize) -> Result<(), String> {
        let (Some(Identities::Out(out)), Some(step)) = (self.plan.identities, self.rekeyed.get(process)) else {
            return Ok(());
        };
        let known = &world.processes[process];
        let knows = process != out && known.is_alive() && Identities::Out(out).is_out(*step, out);
        match known.node.links().and_then(|links| links.to(node_of(out))) {
            Some(_) if knows => Err(format!("process {process} has a link to {out}, which is shut out")),
            _ => Ok(()),
        }
    }

    /// A server takes the step that all should take.
    pub(super) fn take_keys(&mut self, world: &mut Sim, process: usize) -> Result<(), String> {
        let now = world.now;
        self.rekeyed[process] = self.rekeying;
        if !world.is_up(process) {
            return Ok(()); // a started process begins with it
        }
        let keys = self.cluster_keys(process);
        world.processes[process].node.set_cluster(now, keys);
        world.turn_at(process, now);
        self.keeps_out(world, process)
    }

    /// Every link has the new secret, if it was replaced, and a proof of identity if one is required.
    pub(super) fn has_rekeyed(&self, world: &Sim) -> Result<(), String> {
        let Some((key, _)) = self.plan.rekeys.map(|_| secrets(REKEYED).current) else {
            return Ok(());
        };
        if self.rekeyed.iter().any(|taken| *taken < REKEYED) {
            return Err(format!("steps of replacing the secret, by server: {:?}", self.rekeyed));
        }
        for (process, known) in world.processes.iter().enumerate().filter(|(_, known)| known.is_alive()) {
            let Some(links) = known.node.links() else { continue };
            let proves = self.plan.identities.is_some();
            let with = |slot| {
                let link = links.table.get(slot);
                link.map(|link| (link.conn.key_id(), link.data.key.is_some()))
            };
            if let Some((node, slot)) = links.proven().find(|(_, slot)| with(*slot) != Some((key, proves))) {
                return Err(format!(
                    "process {process}: its link to node {node} has key, and a proof: {:?}",
                    with(slot)
                ));
            }
        }
        Ok(())
    }
}
