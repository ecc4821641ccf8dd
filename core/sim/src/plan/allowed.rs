//! Deviations that a plan allows: gaps, reordering, losses.

use muster_transport::Micros;

use super::{Fault, Kind, Plan, Weather, MS, SECOND};
use crate::identities::Identities;

/// When a publisher's message may come after later ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    Never,
    /// After something before these was announced as lost, or if it was published before the join.
    OnceLost,
    Anyhow,
}

/// Whether repairs keep up with this network.
fn is_mild(weather: &Weather) -> bool {
    weather.loss + weather.corrupt <= 50_000 && weather.burst_in == 0 && weather.latency <= 20 * MS
}

impl Plan {
    /// All faults, at any time.
    pub fn every_fault(&self) -> impl Iterator<Item = &Fault> {
        let timed = self.faults.iter().map(|(_, fault)| fault);
        timed.chain(self.strike.iter().flat_map(|strike| &strike.faults))
    }

    /// Whether a process dies for good.
    pub fn removes(&self) -> bool {
        self.every_fault().any(|fault| matches!(fault, Fault::Remove { .. }))
    }

    /// When a publisher's message may come after later ones. Another owner renumbers messages that a dead one took
    /// with it. In a room with several owners, messages do not wait for those of an unreachable one.
    pub fn late(&self) -> Late {
        let dies = |fault: &Fault| match fault {
            Fault::Kill { process, .. } | Fault::Return { process, .. } | Fault::Remove { process } => {
                self.kind(*process) == Kind::Broker
            }
            _ => false,
        };
        let shared = self
            .second
            .as_ref()
            .is_some_and(|second| second.shared || second.brokers > 1);
        if self.repairable() || self.keeps_order() {
            Late::Never
        } else if self.brokers > 1 || shared {
            Late::Anyhow
        } else if self.every_fault().any(dies) {
            Late::OnceLost
        } else {
            Late::Never
        }
    }

    /// The longest standstill of a process.
    pub fn stands_still(&self, process: usize) -> Micros {
        let pauses = self.every_fault().filter_map(|fault| match fault {
            Fault::Pause { process: of, pause } if *of == process => Some(*pause),
            _ => None,
        });
        pauses.max().unwrap_or(0)
    }

    /// Whether no victim numbers messages or holds them for a member, so that no member has a gap.
    pub fn spares_members(&self) -> bool {
        self.strike.as_ref().is_some_and(|strike| strike.cell.spares_members())
            && self.faults.is_empty()
            && is_mild(&self.links)
            && is_mild(&self.sessions)
    }

    /// Whether, in addition, no room moves during a fault, and no proxy may find an owner unreachable.
    fn keeps_order(&self) -> bool {
        self.spares_members() && self.strike.as_ref().is_some_and(|strike| strike.cell.keeps_owners())
    }

    /// Whether repairs must fix everything that the network does, so that no reader may have a gap, and order is kept
    /// when rooms move.
    pub fn repairable(&self) -> bool {
        // A session carries 213 KB per round trip: beyond this, a reader may fall behind the ring.
        let publishing = self.clients.iter().flat_map(|client| &client.publishing);
        let load: u64 = publishing
            .map(|p| (p.burst * (p.bytes.0 + p.bytes.1) / 2) as u64 * SECOND / p.every)
            .sum();
        let moves = |fault: &Fault| matches!(fault, Fault::Own(_));
        self.every_fault().all(moves)
            && self.strike.is_none()
            && !matches!(self.identities, Some(Identities::Out(_)))
            && load < 1_000_000
            && is_mild(&self.links)
            && is_mild(&self.sessions)
            && self.arena_bytes > 1 << 20
    }
}
