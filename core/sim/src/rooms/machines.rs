//! The machine of a process at the start of a life, and the servers that clients get.
//!
//! Owns all settings of machines.

use muster_rooms::command::COMMAND_RATE;
use muster_rooms::limits::{HISTORY_DEFAULT, MEMBERSHIPS_MAX, MEMBERSHIP_AGAIN_MS};
use muster_rooms::{
    role, Broker, BrokerConfig, Client, ClientConfig, Endpoint, Gateway, GatewayConfig, Proxy, ProxyConfig, Router,
    RouterConfig,
};
use muster_simkit::{Fault, Seeded};
use muster_transport::{Entropy, HasSessions, Identity, Role as NodeRole, Server, ServerKey};

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
        let (payload, keepalive_ms, idle_ms) = (1_200, 1_000, 3_000);
        let reset_secret = [process as u8 + 50; 32];
        let now = world.now;
        match kind {
            Kind::Gateway => {
                let config = GatewayConfig {
                    namespaces: Vec::new(),
                    me,
                    payload,
                    arena_bytes: self.plan.arena_bytes,
                    history_max: HISTORY_DEFAULT,
                    membership_again_ms: MEMBERSHIP_AGAIN_MS,
                    keepalive_ms,
                    idle_ms,
                    name_key: NAME_KEY,
                    paced: vec!["paced".into()],
                    bundle: self.plan.bundle,
                    server_key: self.keys[process].clone(),
                    cluster,
                    reset_secret,
                };
                let mut machine = Gateway::new(config, seed, entropy);
                machine.set_placement(now, placement);
                machine.set_servers(now, self.servers());
                Role::Gateway(Box::new(machine))
            }
            Kind::Proxy => {
                let name_key = NAME_KEY;
                let server_key = self.keys[process].clone();
                let config = ProxyConfig {
                    namespaces: Vec::new(),
                    me,
                    payload,
                    keepalive_ms,
                    idle_ms,
                    name_key,
                    server_key,
                    cluster,
                    reset_secret,
                    // Every frame, one of three, or hardly any.
                    age_every: [1_024, 1, 1_024, 3][(world.seed % 4) as usize],
                };
                let mut machine = Proxy::new(config, seed, entropy);
                machine.set_command_limit(COMMAND_RATE, COMMAND_BURST);
                machine.set_placement(now, placement);
                machine.set_servers(now, self.servers());
                Role::Proxy(Box::new(machine))
            }
            Kind::Broker => {
                let arena_bytes = self.plan.arena_bytes;
                let config = BrokerConfig {
                    namespaces: Vec::new(),
                    me,
                    payload,
                    arena_bytes,
                    name_key: NAME_KEY,
                    cluster,
                    reset_secret,
                };
                let mut machine = Broker::new(config, seed, entropy);
                machine.set_placement(now, placement);
                Role::Broker(Box::new(machine))
            }
            Kind::Router => {
                let mut machine = Router::new(
                    RouterConfig {
                        me,
                        payload,
                        cluster,
                        reset_secret,
                        memberships_max: MEMBERSHIPS_MAX,
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
                    payload,
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
