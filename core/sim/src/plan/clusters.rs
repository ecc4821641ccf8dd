//! Runs with a second cluster, added to any other plan.

use muster_simkit::Draw;

use super::{Fault, Plan, Upkeep};
use crate::second::SecondCluster;

impl Plan {
    /// Draws a run with a second cluster, with the network and faults of another plan.
    pub fn clusters(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0xc105);
        let mut plan = match seed % 5 {
            0 => Plan::draw(seed),
            1 => Plan::moves(seed),
            2 => Plan::grows(seed),
            3 => Plan::commands(seed),
            _ => Plan::holes(seed),
        };
        let second = SecondCluster::draw(&mut draw);
        let first = plan.servers();
        let faults = std::mem::take(&mut plan.faults).into_iter();
        plan.faults = faults
            .map(|(at, fault)| (at, behind(fault, first, second.servers())))
            .collect();
        plan.faults.extend(second.faults(&mut draw, first, plan.heal));
        // When owners change, lost messages could not be told from earlier ones if they were short.
        let publishing = plan.clients.iter_mut().flat_map(|client| &mut client.publishing);
        publishing.for_each(|p| p.bytes = (p.bytes.0.max(8), p.bytes.1.max(8)));
        plan.back_max = None; // it is measured from the return of one process, while others may still be away
        plan.prompt = None; // a cluster may have one proxy, or none yet
        plan.second = Some(second);
        plan
    }
}

/// The same fault with the numbers of processes from `first` on raised by `count`.
pub(super) fn behind(fault: Fault, first: usize, count: usize) -> Fault {
    let moved = |process: usize| process + if process >= first { count } else { 0 };
    let mut fault = fault;
    match &mut fault {
        Fault::Kill { process, .. }
        | Fault::Return { process, .. }
        | Fault::Pause { process, .. }
        | Fault::Own(Upkeep::End { process, .. }) => {
            *process = moved(*process);
        }
        Fault::Cut { from, to, .. } | Fault::Delay { from, to, .. } => {
            (*from, *to) = (moved(*from), moved(*to));
        }
        // No client.
        Fault::Remove { .. } | Fault::Own(Upkeep::Drain { .. }) => {}
        Fault::Deaf { process, .. } | Fault::Step { process, .. } | Fault::Drift { process, .. } => {
            *process = moved(*process);
        }
    }
    fault
}
