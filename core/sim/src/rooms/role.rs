//! The machine of a process: one of the five.
//!
//! Owns the run's calls that apply to any machine.

use muster_rooms::role;
use muster_rooms::{Broker, Client, Gateway, Proxy, Router};
use muster_simkit::{Node, Turn, Turned};
use muster_transport::{ClusterKeys, HasLinks, Links, Micros, Placement, Role as NodeRole};

use crate::plan::Kind;

pub enum Role {
    Gateway(Box<Gateway>),
    Proxy(Box<Proxy>),
    Broker(Box<Broker>),
    Router(Box<Router>),
    Client(Box<Client>),
}

impl Node for Role {
    fn turn(&mut self, turn: &mut Turn<'_>) -> Turned {
        match self {
            Role::Gateway(machine) => turn.of(machine.as_mut()),
            Role::Proxy(machine) => turn.of(machine.as_mut()),
            Role::Broker(machine) => turn.of(machine.as_mut()),
            Role::Router(machine) => turn.of(machine.as_mut()),
            Role::Client(machine) => turn.of(machine.as_mut()),
        }
    }
}

impl Role {
    /// Its links to other nodes; clients have none.
    pub fn links(&self) -> Option<&Links> {
        match self {
            Role::Gateway(machine) => Some(machine.links()),
            Role::Proxy(machine) => Some(machine.links()),
            Role::Broker(machine) => Some(machine.links()),
            Role::Router(machine) => Some(machine.links()),
            Role::Client(_) => None,
        }
    }

    /// Whether it has finished its placement's work.
    pub fn settled(&self) -> bool {
        match self {
            Role::Gateway(machine) => machine.settled(),
            Role::Proxy(machine) => machine.settled(),
            Role::Broker(machine) => machine.settled(),
            Role::Router(machine) => machine.settled(),
            Role::Client(_) => true,
        }
    }

    pub fn set_placement(&mut self, now: Micros, placement: Placement) {
        match self {
            Role::Gateway(machine) => machine.set_placement(now, placement),
            Role::Proxy(machine) => machine.set_placement(now, placement),
            Role::Broker(machine) => machine.set_placement(now, placement),
            Role::Router(machine) => machine.set_placement(now, placement),
            Role::Client(_) => {}
        }
    }

    pub fn set_cluster(&mut self, now: Micros, keys: ClusterKeys) {
        match self {
            Role::Gateway(machine) => machine.set_cluster(now, keys),
            Role::Proxy(machine) => machine.set_cluster(now, keys),
            Role::Broker(machine) => machine.set_cluster(now, keys),
            Role::Router(machine) => machine.set_cluster(now, keys),
            Role::Client(_) => {}
        }
    }

    /// The messages numbered by a broker that is not ready.
    pub fn numbered_unready(&self) -> Option<u64> {
        match self {
            Role::Broker(broker) if !broker.is_running() => Some(broker.counters.messages_published),
            _ => None,
        }
    }
}

/// The role of a kind of process on links.
pub fn role_of(kind: Kind) -> NodeRole {
    match kind {
        Kind::Gateway => role::GATEWAY,
        Kind::Proxy => role::PROXY,
        Kind::Broker => role::BROKER,
        Kind::Router => role::ROUTER,
        Kind::Client => NodeRole::CLIENT,
    }
}
