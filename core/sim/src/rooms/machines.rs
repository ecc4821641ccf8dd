//! The machine of a process at the start of a life, and the servers that clients get.
//!
//! Owns all settings of machines.

use muster_rooms::command::COMMAND_RATE;
use muster_rooms::{
    role, Broker, BrokerConfig, BrokerSettings, Client, ClientConfig, DoorSettings, Endpoint, Gateway, GatewayConfig,
    GatewaySettings, Proxy, ProxyConfig, ProxySettings, RoomsSettings, Router, RouterConfig, RouterSettings,
};
use muster_simkit::{Fault, Seeded};
use muster_transport::{Entropy, HasSessions, Identity, NodeConfig, Role as NodeRole, Server, ServerKey};

use super::role::role_of;
use super::{Role, Rooms, Sim};
use crate::identities::node_of;
use crate::plan::Kind;

/// The sockets of a server.
pub(super) const LINKS: usize = 0;
const SESSIONS: usize = 1;

pub(super) const NAME_KEY: [u8; 16] = [9; 16];
/// Commands of a client in a burst, so that some are in progress together.
const COMMAND_BURST: u32 = 5;

pub(super) fn server_key(process: usize) -> ServerKey {
    ServerKey::from_private([process as u8 + 1; 32])
}

impl Rooms {
    /// The machine of a process at the start of one of its lives; `again`: a number for each further start of a life, 0 for the
    /// first. A machine that was set back draws other random numbers.
    pub(super) fn machine_of(&self, world: &Sim, process: usize, epoch: u32, again: u64) -> Role {
        let seed = world.seed ^ (process as u64) << 32 ^ u64::from(epoch) << 48 ^ again << 56;
        let entropy: Box<dyn Entropy> = Box::new(Seeded::new(seed ^ 0xe17));
        let kind = self.plan.kind(process);
        let cluster = self.cluster_keys(process);
        let me = Identity {
            node: node_of(process),
            role: role_of(kind),
            epoch,
        };
        let placement = self.placement(process);
        let node = NodeConfig {
            me,
            payload: 1_200,
            cluster,
            reset_secret: [process as u8 + 50; 32],
        };
        let door = DoorSettings {
            keepalive_ms: 1_000,
            idle_timeout_ms: 3_000,
            ..DoorSettings::default()
        };
        let now = world.now;
        match kind {
            Kind::Gateway => {
                let rooms = RoomsSettings {
                    arena_bytes: self.plan.arena_bytes,
                    paced_namespaces: vec!["paced".into()],
                    bundle: self.plan.bundle,
                    ..RoomsSettings::default()
                };
                let config = GatewayConfig {
                    node,
                    name_key: NAME_KEY,
                    server_key: self.keys[process].clone(),
                    settings: GatewaySettings { door, rooms },
                };
                let mut machine = Gateway::new(config, seed, entropy);
                machine.set_placement(now, placement);
                machine.set_servers(now, self.servers());
                Role::Gateway(Box::new(machine))
            }
            Kind::Proxy => {
                let settings = ProxySettings {
                    door,
                    // Every frame, one of three, or hardly any.
                    age_every: [1_024, 1, 1_024, 3][(world.seed % 4) as usize],
                    command_rate: COMMAND_RATE,
                    command_burst: COMMAND_BURST,
                    ..ProxySettings::default()
                };
                let config = ProxyConfig {
                    node,
                    name_key: NAME_KEY,
                    server_key: self.keys[process].clone(),
                    settings,
                };
                let mut machine = Proxy::new(config, seed, entropy);
                machine.set_placement(now, placement);
                machine.set_servers(now, self.servers());
                Role::Proxy(Box::new(machine))
            }
            Kind::Broker => {
                let settings = BrokerSettings {
                    arena_bytes: self.plan.arena_bytes,
                    relay_above: self.plan.relay_above,
                    ..BrokerSettings::default()
                };
                let config = BrokerConfig {
                    node,
                    name_key: NAME_KEY,
                    settings,
                };
                let mut machine = Broker::new(config, seed, entropy);
                machine.set_placement(now, placement);
                Role::Broker(Box::new(machine))
            }
            Kind::Router => {
                let mut machine = Router::new(
                    RouterConfig {
                        node,
                        settings: RouterSettings::default(),
                    },
                    seed,
                    entropy,
                );
                machine.set_placement(now, placement);
                Role::Router(Box::new(machine))
            }
            Kind::Client => {
                let client = process - self.plan.servers();
                let config = ClientConfig {
                    gateways: self.given(Kind::Gateway, client),
                    proxies: self.given(Kind::Proxy, client),
                    learns: [self.plan.learns; 2],
                    credential: (client as u64).to_le_bytes().to_vec(),
                    payload: 1_200,
                    inbox_bytes: self.plan.clients[client].inbox_bytes,
                    socket: 0,
                };
                let mut machine = Client::new(config, seed, entropy);
                if world.seed % 4 == 1 && client % 2 == 0 {
                    machine.set_ages(); // in the seeds in which all messages have an age
                }
                Role::Client(Box::new(machine))
            }
        }
    }

    /// The servers of a kind that a client is given. If it learns the others, that is one gateway that is never
    /// removed.
    fn given(&self, kind: Kind, client: usize) -> Vec<Endpoint> {
        let all = self.endpoints(kind, client);
        if !self.plan.learns {
            return all;
        }
        let faults = || self.plan.faults.iter().map(|(_, fault)| fault);
        let ends = |known: &Endpoint| {
            faults()
                .any(|fault| matches!(fault, Fault::Remove { process } if Sim::addr(*process, SESSIONS) == known.addr))
        };
        let count = if kind == Kind::Gateway { 1 } else { 0 };
        let first = client % all.len();
        let (before, rest) = all.split_at(first);
        let stay = rest.iter().chain(before).filter(|known| !ends(known));
        stay.take(count).cloned().collect()
    }

    /// The servers announced to clients, by role.
    fn servers(&self) -> [(NodeRole, Vec<Server>); 2] {
        [
            (role::GATEWAY, self.named(Kind::Gateway)),
            (role::PROXY, self.named(Kind::Proxy)),
        ]
    }

    /// The servers of a kind that servers announce to clients.
    fn named(&self, kind: Kind) -> Vec<Server> {
        let server = |known: Endpoint| Server {
            addr: known.addr,
            key: known.key,
            weight: 1,
        };
        let known = if self.plan.learns {
            self.endpoints(kind, 0)
        } else {
            vec![]
        };
        known.into_iter().map(server).collect()
    }

    /// The servers of a kind that a client may learn of: only the proxies of its cluster, unless it may use all.
    pub(super) fn endpoints(&self, kind: Kind, client: usize) -> Vec<Endpoint> {
        let second = self.plan.second.as_ref().filter(|second| !second.shared);
        let cluster = second.map(|_| client % 2).filter(|_| kind == Kind::Proxy);
        let known = |process: &usize| cluster.is_none_or(|cluster| self.plan.cluster(*process) == cluster);
        let of_kind = (0..self.plan.servers()).filter(|process| self.plan.kind(*process) == kind);
        of_kind
            .filter(known)
            .map(|process| Endpoint {
                addr: Sim::addr(process, SESSIONS),
                key: self.keys[process].public(),
            })
            .collect()
    }
}
