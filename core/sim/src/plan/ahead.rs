//! Runs in which members show positions ahead of their owners or of their gateways.

use muster_simkit::Draw;
use muster_transport::Micros;

use super::topology::Topology;
use super::{ClientPlan, Fault, Plan, Publishing, Weather, MS, SECOND};

/// How often something happens to a server: a lost link is found within a second, and its node is back before the next time.
const EVERY: Micros = 3 * SECOND;

impl Plan {
    /// Draws a run in which some members return with positions that their owner never numbered. Brokers go back to the beginning
    /// of their life, or are cut off from a gateway while members return there. Gateways fall behind their brokers while others die
    /// and send their members to them, whose positions are ahead of the gateway alone.
    pub fn ahead(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0xa4ead);
        let rooms: Vec<String> = (0..draw.within(1, 4)).map(|at| format!("live:room-{at}")).collect();
        let publishing = |room| Publishing {
            room,
            every: 30 * MS,
            burst: 1,
            bytes: (20, 200),
        };
        let member = ClientPlan {
            rooms: (0..rooms.len()).collect(),
            ..ClientPlan::default()
        };
        let mut clients = vec![member.clone(); draw.within(1, 3) as usize];
        for _ in 0..draw.within(1, 3) {
            clients.push(ClientPlan {
                toggle_every: Some(draw.within(300 * MS, SECOND)),
                resumes: true,
                forges: draw.within(30, 100),
                ..member.clone()
            });
        }
        clients.push(ClientPlan {
            publishing: (0..rooms.len()).map(publishing).collect(),
            ..ClientPlan::default()
        });
        let weather = Weather {
            latency: draw.within(20, 300),
            jitter: draw.within(0, 300),
            loss: draw.skewed(20_000),
            ..Weather::default()
        };
        let run = Plan::steady(seed, &mut draw, Topology::draw(seed, 1), rooms, clients, weather);
        let (gateways, proxies) = (2, 1);
        let brokers = gateways + proxies..gateways + proxies + run.brokers;
        let (mut faults, mut heal) = (Vec::new(), 2 * SECOND);
        for _ in 0..draw.within(2, 4) {
            let broker = draw.within(brokers.start as u64, brokers.end as u64 - 1) as usize;
            let gateway = draw.below(gateways as u64) as usize;
            let pause = draw.within(SECOND, 2 * SECOND);
            match draw.below(3) {
                0 => faults.push((
                    heal,
                    Fault::Return {
                        process: broker,
                        down: draw.skewed(SECOND),
                    },
                )),
                1 => {
                    let other = (gateway + 1) % gateways;
                    let by = draw.within(20 * MS, 150 * MS);
                    faults.extend(brokers.clone().map(|from| {
                        (
                            heal,
                            Fault::Delay {
                                from,
                                to: gateway,
                                by,
                                pause,
                            },
                        )
                    }));
                    let (at, down) = (heal + draw.within(200 * MS, 500 * MS), draw.skewed(SECOND));
                    faults.push((at, Fault::Kill { process: other, down }));
                }
                _ => {
                    let both = [(gateway, broker), (broker, gateway)];
                    faults.extend(both.map(|(from, to)| (heal, Fault::Cut { from, to, pause })));
                    if draw.chance(50) {
                        let down = draw.skewed(SECOND);
                        faults.push((heal + pause / 2, Fault::Return { process: broker, down }));
                    }
                }
            }
            heal += EVERY;
        }
        Plan {
            gateways,
            proxies,
            faults,
            heal,
            ..run
        }
    }
}
