//! Runs with more of something than there is space for: joins, rooms, messages behind a hole.

use muster_rooms::limits::SESSION_PUBLICATIONS_MAX;
use muster_rooms::SESSION_ROOMS;
use muster_simkit::Draw;

use super::topology::Topology;
use super::{ClientPlan, Fault, Plan, Publishing, Weather, CONVERGED, MS, SECOND};

impl Plan {
    /// Draws a run in which hardly anything is published, but all clients join and leave all the time, with at least
    /// some faults of the plain plan.
    pub fn members(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        let mut draw = Draw::new(seed ^ 0x0e3b);
        let rooms = draw.within(2, 40) as usize;
        plan.rooms = (0..rooms).map(|at| format!("live:room-{at}")).collect();
        for (at, client) in plan.clients.iter_mut().enumerate() {
            *client = ClientPlan {
                resumes: client.resumes,
                ..ClientPlan::default()
            };
            if at == 0 {
                client.publishing.push(Publishing {
                    room: 0,
                    every: SECOND,
                    burst: 1,
                    bytes: (8, 100),
                });
            } else {
                let share = draw.within(10, 90);
                client.rooms = (0..rooms).filter(|_| draw.chance(share)).collect();
                client.toggle_every = Some(draw.within(50 * MS, 500 * MS)); // within the rate limit of joins
            }
        }
        plan.faults.retain(|(_, fault)| !matches!(fault, Fault::Remove { .. }));
        let servers = plan.servers() as u64;
        for _ in 0..draw.within(u64::from(plan.faults.is_empty()), 3) {
            let at = draw.within(300 * MS, plan.heal - 200 * MS);
            let [process, to] = [0; 2].map(|_| draw.below(servers) as usize);
            let (down, pause) = (draw.within(5 * MS, 2 * SECOND), draw.within(20 * MS, 3 * SECOND));
            plan.faults.push((
                at,
                match draw.below(3) {
                    0 => Fault::Kill { process, down },
                    1 => Fault::Pause { process, pause },
                    _ => Fault::Cut {
                        from: process,
                        to,
                        pause,
                    },
                },
            ));
        }
        Plan {
            evicts: false,
            converges: Some(CONVERGED),
            ..plan
        }
    }

    /// Draws a run in which clients publish to more rooms than a session may have open.
    pub fn many_rooms(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0x5eed);
        let count = draw.within(SESSION_PUBLICATIONS_MAX as u64 + 1, 400) as usize;
        let every = draw.within(500 * MS, 3 * SECOND);
        let mut clients = Vec::new();
        for _ in 0..draw.within(1, 2) {
            let publishing = |room| Publishing {
                room,
                every,
                burst: 2,
                bytes: (8, 100),
            };
            clients.push(ClientPlan {
                publishing: (0..count).map(publishing).collect(),
                ..ClientPlan::default()
            });
        }
        for _ in 0..draw.within(1, 3) {
            let first = draw.below((count - SESSION_ROOMS) as u64) as usize;
            clients.push(ClientPlan {
                rooms: (first..first + SESSION_ROOMS).collect(),
                ..ClientPlan::default()
            });
        }
        let proxies = draw.within(1, 2) as usize;
        let weather = Weather {
            latency: draw.within(20, 10_000),
            jitter: draw.skewed(10_000),
            loss: draw.skewed(50_000),
            duplicate: draw.skewed(60_000),
            reorder: draw.skewed(60_000),
            ..Weather::default()
        };
        let mut faults = Vec::new();
        for _ in 0..draw.below(3) {
            let process = 1 + draw.below(proxies as u64 + 1) as usize;
            let down = draw.within(5 * MS, SECOND);
            faults.push((draw.within(2 * SECOND, 5 * SECOND), Fault::Kill { process, down }));
        }
        let rooms = (0..count).map(|at| format!("live:room-{at}")).collect();
        Plan {
            proxies,
            faults,
            heal: 6 * SECOND,
            ..Plan::steady(seed, &mut draw, Topology::single(), rooms, clients, weather)
        }
    }

    /// Draws a run in which more arrives behind a hole than a gateway with a small arena holds. Much is published at
    /// once, links lose in bursts, an owner may die while holes are open, and members return for missed messages.
    pub fn holes(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0x5eed);
        let rooms: Vec<String> = (0..draw.within(1, 3)).map(|at| format!("live:room-{at}")).collect();
        let publishing = Publishing {
            room: 0,
            every: draw.within(5 * MS, 20 * MS),
            burst: draw.within(64, 256) as usize,
            bytes: (200, draw.within(800, 1_000) as usize),
        };
        let publishing = |room| Publishing { room, ..publishing };
        let mut clients = vec![ClientPlan {
            publishing: (0..rooms.len()).map(publishing).collect(),
            ..ClientPlan::default()
        }];
        for _ in 0..draw.within(1, 3) {
            clients.push(ClientPlan {
                rooms: (0..rooms.len()).collect(),
                toggle_every: draw.chance(60).then(|| draw.within(50 * MS, 500 * MS)),
                resumes: true,
                ..ClientPlan::default()
            });
        }
        let weather = Weather {
            latency: draw.within(20, 2_000),
            jitter: draw.skewed(2_000),
            loss: draw.within(0, 20_000),
            burst_in: draw.within(500, 5_000),
            burst_out: draw.within(30_000, 300_000),
            ..Weather::default()
        };
        let heal = 3 * SECOND;
        let mut faults = Vec::new();
        for _ in 0..draw.within(1, 3) {
            let (process, down) = (2, draw.within(5 * MS, 500 * MS));
            faults.push((draw.within(500 * MS, heal), Fault::Kill { process, down }));
        }
        let sessions = Weather {
            latency: draw.within(20, 5_000),
            ..Weather::default()
        };
        Plan {
            sessions,
            faults,
            heal,
            arena_bytes: 1 << 20,
            ..Plan::steady(seed, &mut draw, Topology::single(), rooms, clients, weather)
        }
    }
}
