//! Whether nodes must prove their identities in a run, and which one is shut out for a while.
//!
//! Owns the list of nodes at each step of replacing the cluster's secret. Knows no link.

use muster_transport::{AllowList, Demand, Listed, Role, ServerKey};

/// The step at which a process is shut out; with the next one it is listed again.
const OUT: usize = 2;

/// The way in which nodes prove their identities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identities {
    /// Proof is introduced with the steps.
    Come,
    /// All must prove their identity from the start, and this process is shut out for a step, without knowing it.
    Out(usize),
}

impl Identities {
    /// Whether a node at this step must refuse a process.
    pub fn is_out(self, step: usize, process: usize) -> bool {
        self == Identities::Out(process) && step == OUT
    }

    /// A process's list after this many steps; `roles`: the roles of all servers.
    pub fn list(self, step: usize, of: usize, roles: impl Iterator<Item = Role>) -> AllowList {
        let listed = roles
            .enumerate()
            .filter(|(process, _)| of == *process || !self.is_out(step, *process));
        let demand = match (self, step) {
            (Identities::Come, 0) => Demand::Accepted,
            (Identities::Come, 1) => Demand::Offered,
            _ => Demand::Required,
        };
        AllowList {
            own: key(of),
            nodes: listed
                .map(|(process, role)| {
                    (
                        node_of(process),
                        Listed {
                            role,
                            key: key(process).public(),
                        },
                    )
                })
                .collect(),
            demand,
        }
    }
}

/// Node numbers start with 1.
pub fn node_of(process: usize) -> u32 {
    process as u32 + 1
}

fn key(process: usize) -> ServerKey {
    ServerKey::from_private([process as u8 + 100; 32])
}
