//! Runs in which gateways pass busy rooms on to others.

use muster_simkit::Draw;

use super::clusters::behind;
use super::{ClientPlan, Fault, Plan, Publishing, Weather, MS, SECOND};

impl Plan {
    /// Draws a run with many gateways and a room that is busy enough for relays, with the network and faults of another plan.
    /// Gateways die, stand still and drain at every level of the tree, and are cut off from each other; brokers drain, so
    /// that the room gets a new tree elsewhere.
    pub fn relays(seed: u64) -> Plan {
        let mut draw = Draw::new(seed ^ 0x4e1a);
        let mut plan = match seed % 4 {
            0 => Plan::draw(seed),
            1 => Plan::moves(seed),
            2 => Plan::grows(seed),
            _ => Plan::kills(seed),
        };
        let (first, more) = (plan.gateways, draw.within(5, 11) as usize);
        let faults = std::mem::take(&mut plan.faults).into_iter();
        plan.faults = faults.map(|(at, fault)| (at, behind(fault, first, more))).collect();
        plan.gateways += more;
        plan.relay_above = draw.within(2, 4) as usize;
        plan.back_max = None; // it is measured from the return of one process, while others may still be away
        plan.heal = plan.heal.max(6 * SECOND);
        if draw.chance(60) {
            let loss = draw.skewed(20_000);
            let weather = Weather {
                latency: draw.within(20, 2 * MS),
                jitter: draw.skewed(2 * MS),
                loss,
                ..Weather::default()
            };
            (plan.links, plan.sessions) = (weather, weather);
        }
        let member = ClientPlan {
            rooms: vec![0],
            ..ClientPlan::default()
        };
        let coming = |every| ClientPlan {
            toggle_every: Some(every),
            resumes: true,
            ..member.clone()
        };
        let (members, comers) = (plan.gateways + draw.below(6) as usize, draw.below(4));
        plan.clients.extend(vec![member.clone(); members]);
        plan.clients
            .extend((0..comers).map(|_| coming(draw.within(300 * MS, 2 * SECOND))));
        for _ in 0..2 {
            let publishing = Publishing {
                room: 0,
                every: draw.within(3 * MS, 6 * MS),
                burst: 1,
                bytes: (8, 100),
            };
            plan.clients.push(ClientPlan {
                publishing: vec![publishing],
                ..ClientPlan::default()
            });
        }
        for _ in 0..draw.within(1, 5) {
            let at = draw.within(1_500 * MS, plan.heal - 500 * MS);
            let process = draw.below(plan.gateways as u64) as usize;
            let pause = draw.within(50 * MS, 2 * SECOND);
            match draw.below(4) {
                0 => plan.faults.push((at, Fault::Kill { process, down: pause })),
                1 => plan.faults.push((at, Fault::Pause { process, pause })),
                2 => {
                    let to = draw.below(plan.gateways as u64) as usize;
                    plan.faults.push((
                        at,
                        Fault::Cut {
                            from: process,
                            to,
                            pause,
                        },
                    ));
                }
                // From all other gateways, and from nobody else.
                _ => {
                    let others = (0..plan.gateways).filter(|other| *other != process);
                    let cut = |to| {
                        (
                            at,
                            Fault::Cut {
                                from: process,
                                to,
                                pause,
                            },
                        )
                    };
                    plan.faults.extend(others.map(cut));
                }
            }
        }
        plan
    }
}
