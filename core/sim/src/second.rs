//! A second cluster: separate brokers and proxies beside the first ones, with the same routers and gateways.
//!
//! Owns its draw and its faults. Its processes come after the routers, so that no other process's number changes.
//! Knows no plan: `plan/clusters` adds it to one.

use muster_simkit::{Draw, MS, SECOND};
use muster_transport::Micros;

use crate::fault::{Fault, Upkeep};

/// Every second client publishes through it.
#[derive(Clone, Debug)]
pub struct SecondCluster {
    pub proxies: usize,
    pub brokers: usize,
    /// Final number of partitions of its brokers.
    pub partitions: usize,
    /// When it starts, if it does not exist from the beginning.
    pub begins: Option<Micros>,
    /// When its partitions double, once.
    pub grows: Option<Micros>,
    /// Clients may publish through either.
    pub shared: bool,
}

impl SecondCluster {
    pub fn draw(draw: &mut Draw) -> SecondCluster {
        let parts = 1 << draw.below(3);
        let begins = draw.chance(50).then(|| draw.within(200 * MS, SECOND));
        let grows = parts > 1 && draw.chance(60);
        SecondCluster {
            proxies: draw.within(1, 2) as usize,
            brokers: parts * draw.within(1, 2) as usize,
            partitions: parts,
            begins,
            grows: grows.then(|| begins.unwrap_or(0) + draw.within(300 * MS, SECOND)),
            shared: draw.chance(20),
        }
    }

    pub fn servers(&self) -> usize {
        self.proxies + self.brokers
    }

    /// Initial number of partitions of its brokers.
    pub fn partitions_before(&self) -> usize {
        self.partitions >> usize::from(self.grows.is_some())
    }

    /// Its faults: none, or all of it dies at once, or some of its processes fail like others.
    pub fn faults(&self, draw: &mut Draw, first: usize, heal: Micros) -> Vec<(Micros, Fault)> {
        let at = draw.within(self.begins.unwrap_or(0) + 300 * MS, heal - 500 * MS);
        let all = first..first + self.servers();
        let one = first + draw.below(self.servers() as u64) as usize;
        let broker = first + self.proxies + draw.below(self.brokers as u64) as usize;
        let (down, pause) = (draw.within(5 * MS, 3 * SECOND), draw.within(50 * MS, 3 * SECOND));
        let faults = match draw.below(6) {
            0 | 1 => all.map(|process| Fault::Kill { process, down }).collect(),
            2 => all.map(|process| Fault::Pause { process, pause }).collect(),
            3 => vec![Fault::Kill { process: one, down }],
            4 => vec![Fault::Own(Upkeep::Drain {
                process: broker,
                pause,
                spread: 300 * MS,
            })],
            _ => vec![],
        };
        faults.into_iter().map(|fault| (at, fault)).collect()
    }
}
