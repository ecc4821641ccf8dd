//! The kind and the partition of each process.
//!
//! Gateways come first, then proxies, brokers, routers, the second cluster, clients.

use super::{Kind, Plan};
use crate::second::SecondCluster;

impl Plan {
    pub fn servers(&self) -> usize {
        self.gateways
            + self.proxies
            + self.brokers
            + self.routers
            + self.second.as_ref().map_or(0, SecondCluster::servers)
    }

    /// The kind of a process: gateways first, then proxies, brokers, routers, the second cluster, clients.
    pub fn kind(&self, process: usize) -> Kind {
        let bounds = [self.gateways, self.proxies, self.brokers, self.routers];
        let kinds = [Kind::Gateway, Kind::Proxy, Kind::Broker, Kind::Router];
        let mut left = process;
        for (bound, kind) in bounds.into_iter().zip(kinds) {
            if left < bound {
                return kind;
            }
            left -= bound;
        }
        self.kind_in_second(process).map_or(Kind::Client, |(kind, _)| kind)
    }

    /// The partition of a broker or a router.
    pub fn partition(&self, process: usize) -> usize {
        if let Some((_, partition)) = self.kind_in_second(process) {
            return partition;
        }
        let first = self.gateways + self.proxies;
        match self.kind(process) {
            Kind::Broker => (process - first) % self.partitions.0,
            Kind::Router => (process - first - self.brokers) % self.partitions.1,
            _ => 0,
        }
    }

    /// Whether the partitions of brokers or routers double.
    pub fn doubles(&self, kind: Kind) -> bool {
        self.grows.iter().any(|(_, of)| *of == kind)
    }

    /// Initial number of partitions of brokers and of routers.
    pub fn partitions_before(&self) -> (usize, usize) {
        let before = |count, kind| if self.doubles(kind) { count / 2 } else { count };
        let (brokers, routers) = self.partitions;
        (before(brokers, Kind::Broker), before(routers, Kind::Router))
    }

    /// The brokers of all clusters.
    pub fn brokers_of_all(&self) -> usize {
        self.brokers + self.second.as_ref().map_or(0, |second| second.brokers)
    }

    /// The first process of the second cluster.
    fn first_of_second(&self) -> usize {
        self.gateways + self.proxies + self.brokers + self.routers
    }

    /// The cluster of a proxy or a broker; the first for others.
    pub fn cluster(&self, process: usize) -> usize {
        usize::from((self.first_of_second()..self.servers()).contains(&process))
    }

    /// The kind of a process after the routers, and a broker's partition.
    pub fn kind_in_second(&self, process: usize) -> Option<(Kind, usize)> {
        let (second, at) = (self.second.as_ref()?, process.checked_sub(self.first_of_second())?);
        match at.checked_sub(second.proxies) {
            None => Some((Kind::Proxy, 0)),
            Some(broker) => (broker < second.brokers).then_some((Kind::Broker, broker % second.partitions)),
        }
    }
}
