//! Runs of everything at once: any topology, load, network and faults, and additions to such a run.

use muster_rooms::limits::RELAY_ABOVE;
use muster_rooms::Policy;
use muster_simkit::{clock, Draw};

use super::topology::Topology;
use super::{ClientPlan, Fault, Growing, Kind, Plan, Publishing, Upkeep, MS, SECOND};
use crate::identities::Identities;

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let mut plan = Plan::drawn(seed, |brokers| Topology::draw(seed, brokers));
        plan.learns = Draw::new(seed ^ 0x1ea2).chance(30);
        plan
    }

    /// Draws a run in which every second client has a filter.
    pub fn filters(seed: u64) -> Plan {
        Plan {
            filters: true,
            ..Plan::drawn(seed ^ 0xf117, |brokers| Topology::draw(seed, brokers))
        }
    }

    /// Draws a run in which the partitions of brokers, of routers or of both double.
    pub fn grows(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0x9204);
        let kinds = match draw.below(3) {
            0 => vec![Kind::Broker],
            1 => vec![Kind::Router],
            _ => vec![Kind::Broker, Kind::Router],
        };
        let mut plan = Plan::drawn(seed, |_| Topology::grown(seed, |kind| kinds.contains(&kind)));
        let grows = kinds.into_iter().map(|kind| (draw.within(300 * MS, 2 * SECOND), kind));
        plan.grows = grows.collect();
        plan.growing = Growing {
            spread: draw.skewed(SECOND) + 1,
            grace: draw.skewed(SECOND),
            forgets_paused: draw.chance(50),
        };
        plan
    }

    /// Draws a run in which clients send commands, with the network and faults of another plan.
    pub fn commands(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0xc033);
        let mut plan = match seed % 4 {
            0 => Plan::draw(seed),
            1 => Plan::moves(seed),
            2 => Plan::kills(seed),
            _ if seed % 8 == 7 => return Plan::copies(seed),
            _ => Plan::grows(seed),
        };
        plan.command_every = Some(draw.within(100 * MS, 2 * SECOND));
        plan
    }

    /// Draws a run in which the cluster's secret is replaced, with the network and faults of another plan. In a
    /// quarter of the seeds nodes begin to prove identities meanwhile; in another quarter they always do, and one of
    /// them is shut out for a while.
    pub fn rekeys(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0x4e35);
        let mut plan = match seed % 3 {
            0 => Plan::draw(seed),
            1 => Plan::moves(seed),
            _ => Plan::kills(seed),
        };
        let (spread, rest) = (draw.skewed(SECOND) + 1, draw.skewed(SECOND));
        let at = draw.within(0, SECOND);
        plan.rekeys = Some((at, spread, rest));
        plan.identities = match seed / 3 % 4 {
            1 => Some(Identities::Come),
            3 => Some(Identities::Out(draw.below(plan.servers() as u64) as usize)),
            _ => None,
        };
        if let Some(Identities::Out(_)) = plan.identities {
            plan.rekeys = Some((at, spread, draw.within(SECOND / 2, 3 * SECOND)));
            plan.back_max = None; // a returning node may be shut out
        }
        plan
    }

    /// Draws a run in which rooms move between brokers that drain and return.
    pub fn moves(seed: u64) -> Plan {
        let mut plan = Plan::drawn(seed, |brokers| Topology::draw(seed, brokers.max(2)));
        let mut draw = Draw::new(seed ^ 0x3035);
        plan.brokers_drain(&mut draw);
        plan
    }

    /// Drains the brokers one after the other, so that each room has a running one.
    fn brokers_drain(&mut self, draw: &mut Draw) {
        let first = self.gateways + self.proxies;
        let mut at = draw.within(200 * MS, SECOND);
        while at < self.heal {
            let pause = draw.skewed(2 * SECOND) + MS;
            let fault = Fault::Own(Upkeep::Drain {
                process: first + draw.below(self.brokers as u64) as usize,
                pause,
                spread: draw.within(1, 2 * SECOND),
            });
            self.faults.push((at, fault));
            at += pause + draw.skewed(2 * SECOND);
        }
    }

    fn drawn(seed: u64, topology: impl FnOnce(usize) -> Topology) -> Plan {
        let mut draw = Draw::new(seed ^ 0x5eed);
        let gateways = if draw.chance(50) { 1 } else { 2 };
        let proxies = if draw.chance(60) { 1 } else { 2 };
        let brokers = if draw.chance(80) { 1 } else { 2 };
        let topology = topology(brokers);
        let Topology {
            brokers,
            routers,
            partitions,
        } = topology;
        let crowd = draw.chance(15);
        let rooms: usize = if draw.chance(12) {
            draw.within(20, 60) as usize
        } else {
            draw.within(1, 6) as usize
        };
        let rooms: Vec<String> = (0..rooms)
            .map(|at| {
                let namespace = if draw.chance(20) { "paced" } else { "live" };
                format!("{namespace}:room-{at}")
            })
            .collect();
        let slow_readers = draw.chance(30);
        let toggles = draw.chance(40);
        let chunks = draw.chance(40);
        let hot = draw.chance(30);
        let heal = draw.within(3 * SECOND, 7 * SECOND);
        let process_faults = draw.chance(55);
        let cuts = draw.chance(35);
        let calm = draw.chance(15);
        let count = if crowd { draw.within(15, 24) } else { draw.within(4, 10) };
        let mut clients = Vec::new();
        for at in 0..count {
            let publishes = at == 0 || draw.chance(40);
            let reads = at != 0 && (!publishes || draw.chance(50));
            let mut client = ClientPlan {
                rooms: Vec::new(),
                publishing: Vec::new(),
                policy: Policy::DropOldest,
                inbox_bytes: 4 << 20,
                read_every: None,
                toggle_every: None,
                resumes: draw.chance(50),
                forges: 0,
            };
            if reads {
                let many = rooms.len() > 10 && draw.chance(50);
                for room in 0..rooms.len() {
                    if draw.chance(if many { 90 } else { 50 }) || room == at as usize % rooms.len() {
                        client.rooms.push(room);
                    }
                }
                if slow_readers && draw.chance(40) {
                    client.read_every = Some(draw.within(2 * MS, 200 * MS));
                    client.inbox_bytes = draw.within(2_000, 200_000) as usize;
                    client.policy = match draw.below(3) {
                        0 => Policy::DropOldest,
                        1 => Policy::DropNewest,
                        _ => Policy::Block,
                    };
                }
                if toggles && draw.chance(50) {
                    client.toggle_every = Some(draw.within(20 * MS, 3 * SECOND));
                }
            }
            if publishes {
                let few = 1 + draw.below(3) as usize;
                for _ in 0..few {
                    let room = draw.below(rooms.len() as u64) as usize;
                    if client.publishing.iter().any(|known| known.room == room) {
                        continue;
                    }
                    let low = if draw.chance(20) {
                        2
                    } else {
                        8 + draw.below(100) as usize
                    };
                    let high = low + draw.skewed(900) as usize;
                    let bytes = if chunks && draw.chance(50) {
                        (low, 1_000 + draw.skewed(64 * 1024 - 1_000) as usize)
                    } else {
                        (low, high)
                    };
                    let mut every = draw.within(2 * MS, 300 * MS);
                    if hot && draw.chance(40) {
                        every = draw.within(200, 2 * MS);
                    }
                    if bytes.1 > 4_000 {
                        every = every.max(20 * MS);
                    }
                    let burst = if draw.chance(30) {
                        1 + draw.below(40) as usize
                    } else {
                        1
                    };
                    if burst > 5 {
                        every = every.max(30 * MS);
                    }
                    client.publishing.push(Publishing {
                        room,
                        every,
                        burst,
                        bytes,
                    });
                }
            }
            clients.push(client);
        }
        let (mut links, mut sessions) = (draw.weather(true), draw.weather(false));
        if calm {
            (links, sessions) = (links.calm(), sessions.calm());
        }
        let servers = gateways + proxies + brokers + routers;
        let all = servers + clients.len();
        let mut faults = Vec::new();
        if process_faults && !calm {
            for _ in 0..draw.within(1, 4) {
                let at = draw.within(300 * MS, heal - 500 * MS);
                // Clients die too: their undelivered messages may be lost.
                let among = if draw.chance(70) { servers } else { all };
                let process = draw.below(among as u64) as usize;
                let fault = if draw.chance(60) {
                    Fault::Kill {
                        process,
                        down: draw.within(5 * MS, 2 * SECOND),
                    }
                } else {
                    Fault::Pause {
                        process,
                        pause: draw.within(50 * MS, 5 * SECOND),
                    }
                };
                faults.push((at, fault));
            }
        }
        if cuts && !calm {
            for _ in 0..draw.within(1, 4) {
                let at = draw.within(100 * MS, heal - 200 * MS);
                let (from, to) = if draw.chance(60) {
                    (draw.below(servers as u64), draw.below(servers as u64))
                } else {
                    (draw.below(all as u64), draw.below(all as u64))
                };
                let (from, to) = (from as usize, to as usize);
                let pause = draw.within(20 * MS, 3 * SECOND);
                faults.push((at, Fault::Cut { from, to, pause }));
                if draw.chance(40) {
                    faults.push((
                        at,
                        Fault::Cut {
                            from: to,
                            to: from,
                            pause,
                        },
                    ));
                }
            }
        }
        for (_, fault) in &faults {
            if let Fault::Kill { process, .. } = fault {
                if let Some(client) = process.checked_sub(servers) {
                    // Its messages must show which of its lives sent them.
                    clients[client]
                        .publishing
                        .iter_mut()
                        .for_each(|p| p.bytes.0 = p.bytes.0.max(8));
                    clients[client]
                        .publishing
                        .iter_mut()
                        .for_each(|p| p.bytes.1 = p.bytes.1.max(8));
                }
            }
        }
        if !calm {
            faults.extend(topology.drains(seed, servers - routers, heal));
        }
        if brokers > 1 {
            // When owners change, lost messages could not be told from earlier ones if they were short.
            let all = clients.iter_mut().flat_map(|client| &mut client.publishing);
            all.for_each(|p| p.bytes = (p.bytes.0.max(8), p.bytes.1.max(8)));
        }
        let mut plan = Plan {
            clock: clock(seed),
            gateways,
            proxies,
            brokers,
            routers,
            partitions,
            rooms,
            clients,
            links,
            sessions,
            faults,
            heal,
            arena_bytes: if draw.chance(30) { 1 << 20 } else { 16 << 20 },
            auth_delay: if draw.chance(50) { 0 } else { draw.below(30 * MS) },
            turn: draw.within(0, 200),
            bundle: !draw.chance(5),
            evicts: draw.chance(4),
            converges: None,
            back_max: None,
            command_every: None,
            prompt: None,
            grows: vec![],
            growing: Growing::default(),
            strike: None,
            second: None,
            rekeys: None,
            identities: None,
            learns: false,
            filters: false,
            relay_above: RELAY_ABOVE,
        };
        if plan.gateways > 1 && process_faults && !calm && draw.chance(15) {
            let at = draw.within(300 * MS, heal - 500 * MS);
            let process = draw.below(gateways as u64) as usize;
            plan.faults.push((at, Fault::Remove { process }));
            if draw.chance(50) {
                let process = servers - 1 - draw.below(routers as u64) as usize;
                let down = draw.within(5 * MS, SECOND);
                plan.faults.push((at + 200 * MS, Fault::Kill { process, down }));
            }
        }
        plan
    }
}
