//! The number of brokers and routers.

use muster_simkit::Draw;
use muster_transport::Micros;

use super::{Fault, Kind, Upkeep, MS, SECOND};

/// The number of brokers and routers, and of their partitions.
pub struct Topology {
    pub brokers: usize,
    pub routers: usize,
    pub partitions: (usize, usize),
}

impl Topology {
    /// One of each.
    pub fn single() -> Topology {
        Topology {
            brokers: 1,
            routers: 1,
            partitions: (1, 1),
        }
    }

    /// One router in half of the seeds; `brokers` in one partition, in a quarter of the seeds in more.
    pub fn draw(seed: u64, brokers: usize) -> Topology {
        let mut draw = Draw::new(seed ^ 0x7090);
        let counts = |draw: &mut Draw| (1 << draw.below(3), draw.within(1, 2) as usize);
        let (router_parts, router_replicas) = if draw.chance(50) { (1, 1) } else { counts(&mut draw) };
        let (broker_parts, broker_replicas) = if draw.chance(75) {
            (1, brokers)
        } else {
            counts(&mut draw)
        };
        Topology {
            brokers: broker_parts * broker_replicas,
            routers: router_parts * router_replicas,
            partitions: (broker_parts, router_parts),
        }
    }

    /// One or two partitions of one or two replicas each, and for those that grow as many as that becomes.
    pub fn grown(seed: u64, grows: impl Fn(Kind) -> bool) -> Topology {
        let mut draw = Draw::new(seed ^ 0x960b);
        let mut layer = |kind| {
            let parts = 1 << (draw.below(2) + u64::from(grows(kind)));
            (parts, parts * draw.within(1, 2) as usize)
        };
        let ((broker_parts, brokers), (router_parts, routers)) = (layer(Kind::Broker), layer(Kind::Router));
        Topology {
            brokers,
            routers,
            partitions: (broker_parts, router_parts),
        }
    }

    /// Routers that drain for a while, so that gateways and brokers move to others and return; `first`: the first
    /// router.
    pub fn drains(&self, seed: u64, first: usize, heal: Micros) -> Vec<(Micros, Fault)> {
        let mut draw = Draw::new(seed ^ 0xd4a1);
        let count = if self.routers > 1 && draw.chance(50) {
            draw.within(1, 3)
        } else {
            0
        };
        let drain = |_| {
            let process = first + draw.below(self.routers as u64) as usize;
            let pause = draw.within(10 * MS, 6 * SECOND);
            (
                draw.within(100 * MS, heal - 200 * MS),
                Fault::Own(Upkeep::Drain {
                    process,
                    pause,
                    spread: 300 * MS,
                }),
            )
        };
        (0..count).map(drain).collect()
    }
}
