//! A second cluster: brokers and proxies of its own beside the first one's, at the same routers and gateways.
//!
//! Owns its draw, on top of any other plan. Its processes come behind the routers, so that no other process's number
//! changes.

use muster_simkit::Draw;
use muster_transport::Micros;

use crate::plan::{Fault, Kind, Plan, Upkeep, MS, SECOND};

/// Every second client publishes through it.
#[derive(Clone, Debug)]
pub struct Beside {
    pub proxies: usize,
    pub brokers: usize,
    /// In how many partitions its brokers stand, in the end.
    pub partitions: usize,
    /// When it is started, if it is not there from the beginning.
    pub begins: Option<Micros>,
    /// When its partitions double, once.
    pub grows: Option<Micros>,
    /// Clients may publish through either.
    pub shared: bool,
}

impl Beside {
    fn draw(draw: &mut Draw) -> Beside {
        let parts = 1 << draw.below(3);
        let begins = draw.chance(50).then(|| draw.within(200 * MS, SECOND));
        let grows = parts > 1 && draw.chance(60);
        Beside {
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

    /// In how many partitions its brokers stand at the start.
    pub fn partitions_before(&self) -> usize {
        self.partitions >> usize::from(self.grows.is_some())
    }

    /// Its faults: none, or all of it dies at once, or some of its processes fail as others do.
    fn faults(&self, draw: &mut Draw, first: usize, heal: Micros) -> Vec<(Micros, Fault)> {
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

/// The same fault where processes from `first` on have numbers that are higher by `count`.
fn behind(fault: Fault, first: usize, count: usize) -> Fault {
    let moved = |process: usize| process + if process >= first { count } else { 0 };
    let mut fault = fault;
    match &mut fault {
        Fault::Kill { process, .. } | Fault::Pause { process, .. } | Fault::Own(Upkeep::End { process, .. }) => {
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

impl Plan {
    /// The draw of a run with a second cluster, in the weathers and faults of one of the others.
    pub fn clusters(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0xc105);
        let mut plan = match seed % 5 {
            0 => Plan::draw(seed),
            1 => Plan::moves(seed),
            2 => Plan::grows(seed),
            3 => Plan::commands(seed),
            _ => Plan::holes(seed),
        };
        let beside = Beside::draw(&mut draw);
        let first = plan.servers();
        let faults = std::mem::take(&mut plan.faults).into_iter();
        plan.faults = faults
            .map(|(at, fault)| (at, behind(fault, first, beside.servers())))
            .collect();
        plan.faults.extend(beside.faults(&mut draw, first, plan.heal));
        // When owners change, lost messages could not be distinguished from earlier ones if they were short.
        let publishing = plan.clients.iter_mut().flat_map(|client| &mut client.publishing);
        publishing.for_each(|p| p.bytes = (p.bytes.0.max(8), p.bytes.1.max(8)));
        plan.back_max = None; // measured from the return of one, while others may still be away
        plan.prompt = None; // a cluster may have one proxy, or none yet
        plan.beside = Some(beside);
        plan
    }

    /// The brokers of all clusters.
    pub fn brokers_of_all(&self) -> usize {
        self.brokers + self.beside.as_ref().map_or(0, |beside| beside.brokers)
    }

    /// The first process of the second cluster.
    fn first_beside(&self) -> usize {
        self.gateways + self.proxies + self.brokers + self.routers
    }

    /// The cluster of a proxy or a broker; the first for others.
    pub fn cluster(&self, process: usize) -> usize {
        usize::from((self.first_beside()..self.servers()).contains(&process))
    }

    /// The kind of a process behind the routers, and a broker's partition.
    pub fn kind_beside(&self, process: usize) -> Option<(Kind, usize)> {
        let (beside, at) = (self.beside.as_ref()?, process.checked_sub(self.first_beside())?);
        match at.checked_sub(beside.proxies) {
            None => Some((Kind::Proxy, 0)),
            Some(broker) => (broker < beside.brokers).then_some((Kind::Broker, broker % beside.partitions)),
        }
    }
}
