//! The shard map: the number of writers of each site.
//!
//! Owns: [`ShardMap`]. Knows no address and no registry: the control plane makes maps.

use crate::wire::Shard;

/// A writer that gets every packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Target {
    pub site: u16,
    pub shard: Shard,
}

/// The sites with their number of shards. While a site changes its number, the map contains the site with both the
/// old and the new one, so that both sets of writers get the events (H9).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardMap {
    pub version: u32,
    /// Site and number of shards.
    pub sites: Vec<(u16, u16)>,
}

impl ShardMap {
    /// Every writer of every site.
    pub fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.sites.iter().flat_map(|(site, of)| {
            let shard = |index| Shard { of: *of, index };
            (0..*of).map(move |index| Target {
                site: *site,
                shard: shard(index),
            })
        })
    }
}
