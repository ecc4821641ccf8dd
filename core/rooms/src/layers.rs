//! The layers of rooms: brokers, which own rooms, in one or more clusters; and routers, which know the gateways that
//! want a room.
//!
//! Owns which roles have partitions. Knows no connection.

use muster_transport::{Layer, PlacedLayer, PlacedNode, Placement};

use crate::role;

/// A placement with one cluster of brokers. A broker or a proxy gets only the brokers of its own cluster; a router or
/// a gateway gets those of all, the others with [`Placement::beside`].
pub fn room_placement(
    epoch: u32,
    nodes: Vec<PlacedNode>,
    brokers: impl Into<Layer>,
    routers: impl Into<Layer>,
) -> Placement {
    let layers = [(role::BROKER, brokers.into()), (role::ROUTER, routers.into())];
    Placement::new(epoch, nodes, layers)
}

/// Queries of a placement by the machines of rooms.
pub trait RoomLayers {
    /// The brokers of the first cluster; for a broker or a proxy, its own.
    fn own(&self) -> &PlacedLayer;

    /// The clusters of brokers, each with its number.
    fn broker_clusters(&self) -> impl Iterator<Item = (u16, &PlacedLayer)>;

    /// The partitions of routers.
    fn routers(&self) -> Layer;
}

impl RoomLayers for Placement {
    #[inline]
    fn own(&self) -> &PlacedLayer {
        self.layer(role::BROKER)
    }

    fn broker_clusters(&self) -> impl Iterator<Item = (u16, &PlacedLayer)> {
        self.clusters(role::BROKER)
    }

    #[inline]
    fn routers(&self) -> Layer {
        self.layer(role::ROUTER).layer()
    }
}
