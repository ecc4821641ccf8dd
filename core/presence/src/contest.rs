//! Which sessions of a user stay if the user's policy forbids them to coexist at several gateways.
//!
//! Owns: [`Contest`], a state machine for each group of sessions that exclude each other: one session holds the
//! place, all others must end. The writer repeats this until they are gone, since frames may be lost; if the holder
//! leaves first, the newest of the others becomes the holder. Sessions of one gateway are that gateway's own
//! business. Knows no path of frames: a gateway obeys one writer (`access`).
//!
//! | state of a session | what happens | its next state |
//! |---|---|---|
//! | none | it comes, and no other of its group is here | holds |
//! | none | it comes as the newest event of its gateway | holds; the former holder must end |
//! | none | it comes later than newer events, or by a full state | the newer one by the gateways' clocks holds; the other one must end |
//! | holds, ends | it goes, or its device has a newer session there | none |
//! | ends | no other of its group is here anymore | holds: the newest of them |
//!
//! `tests/reference/policies.py` is the model.

use crate::bucket::StoredDevice;
use crate::device::Device;
use crate::event::State;
use crate::limits::BARS_MAX;
use crate::places::{Key, Places};
use crate::policy::{Policies, Policy};
use crate::wire::{Origin, Supersede};
use muster_transport::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// Interval at which the end of a session is requested again.
const AGAIN: Micros = 1_000_000;

/// The event that reported a session.
type Event = (Origin, u64, u16);

fn event(held: &StoredDevice) -> Event {
    (held.origin, held.version, held.index)
}

/// Sessions that must end, of all users.
pub struct Contest {
    policies: Policies,
    ending: BTreeMap<Key, Event>,
    /// Devices that another one of their user replaced at one gateway.
    replaced: BTreeSet<(u64, Device)>,
    look_at: Option<Micros>,
}

impl Contest {
    pub fn new(policies: Policies) -> Self {
        Contest {
            policies,
            ending: BTreeMap::new(),
            replaced: BTreeSet::new(),
            look_at: None,
        }
    }

    /// A session came. `in_order`: its event is the newest of its gateway, so it is newer than what is known of
    /// others.
    pub fn came(&mut self, now: Micros, places: &Places, key: Key, in_order: bool) {
        self.ending.remove(&key);
        let (user, device, ap) = key;
        let policy = self.policies.of(user);
        let online = places.record(user).0;
        if online.len() < 2 {
            return;
        }
        let is_newcomer =
            |held: &&StoredDevice| (held.device, held.origin.ap, held.state) == (device, ap, State::Online);
        let Some(newcomer) = online.iter().find(is_newcomer) else {
            return;
        };
        let rivals = online.iter().filter(|held| {
            let is_elsewhere = held.state == State::Online && held.origin.ap != ap;
            is_elsewhere && policy.ends(&held.device, &device)
        });
        for rival in rivals {
            let place = (user, rival.device, rival.origin.ap);
            if self.ending.get(&place) == Some(&event(rival)) {
                continue;
            }
            match in_order || is_newer(newcomer, rival) {
                true => self.ending.insert(place, event(rival)),
                false => self.ending.insert(key, event(newcomer)),
            };
            self.look_at = Some(now);
        }
    }

    /// A gateway ended a device's session, as a newer one took its place.
    pub fn was_replaced(&mut self, now: Micros, user: u64, device: Device) {
        if self.policies.of(user) != Policy::Many && self.replaced.len() < BARS_MAX {
            self.replaced.insert((user, device));
            self.look_at = Some(now);
        }
    }

    /// When a request is due.
    pub fn deadline(&self) -> Option<Micros> {
        self.look_at
    }

    /// Sessions that must end, each repeated until it is gone; before that, devices that another one replaced, each to all `gateways`, as it may come
    /// back at any of them. `is_whole`: nothing is missing of a gateway, so its
    /// sessions are really there.
    pub fn due(
        &mut self,
        now: Micros,
        places: &Places,
        gateways: impl Iterator<Item = Origin> + Clone,
        is_whole: impl Fn(u32) -> bool,
    ) -> Vec<Supersede> {
        let mut told = Vec::new();
        if self.look_at.is_none_or(|at| now < at) {
            return told;
        }
        let bars = |user, device| {
            gateways
                .clone()
                .map(move |gateway| Supersede::bar(gateway, user, device))
        };
        for (user, device) in std::mem::take(&mut self.replaced) {
            let online = places.record(user).0;
            let online: Vec<&StoredDevice> = online.iter().filter(|held| held.state == State::Online).collect();
            let group = self.group(user, device, &online);
            if !group.is_empty() && group.iter().all(|held| held.device != device) {
                told.extend(bars(user, device));
            }
        }
        let ending: Vec<Key> = self.ending.keys().copied().collect();
        for key in ending {
            let (user, device, ap) = key;
            let online = places.record(user).0;
            let online: Vec<&StoredDevice> = online.iter().filter(|held| held.state == State::Online).collect();
            let own = online.iter().find(|held| (held.device, held.origin.ap) == (device, ap));
            let Some(own) = own.filter(|own| self.ending.get(&key) == Some(&event(own))) else {
                self.ending.remove(&key);
                continue;
            };
            let group = self.group(user, device, &online);
            let ends =
                |held: &&StoredDevice| self.ending.get(&(user, held.device, held.origin.ap)) == Some(&event(held));
            let mut holders: Vec<&StoredDevice> = group.iter().copied().filter(|held| !ends(held)).collect();
            if holders.is_empty() {
                let newest = group
                    .iter()
                    .copied()
                    .reduce(|one, other| if is_newer(other, one) { other } else { one });
                holders.extend(newest);
                for held in &holders {
                    self.ending.remove(&(user, held.device, held.origin.ap));
                }
            }
            // A holder may be gone if the event that reports its end is missing.
            let is_held =
                |held: &&StoredDevice| is_whole(held.origin.ap) && (held.device, held.origin.ap) != (device, ap);
            if !holders.iter().any(is_held) {
                continue;
            }
            if holders.iter().all(|held| held.device != device) {
                told.extend(bars(user, device));
            }
            told.push(Supersede {
                origin: own.origin,
                user,
                device,
                version: own.version,
                index: own.index,
            });
        }
        self.look_at = (!self.ending.is_empty()).then_some(now + AGAIN);
        told
    }

    /// The online sessions of a user that compete with a device's session.
    fn group<'a>(&self, user: u64, device: Device, online: &[&'a StoredDevice]) -> Vec<&'a StoredDevice> {
        let policy = self.policies.of(user);
        online
            .iter()
            .copied()
            .filter(|held| policy.ends(&held.device, &device))
            .collect()
    }
}

/// Which session is newer if their events did not come in order: by the gateways' clocks, and the same for every
/// writer.
fn is_newer(one: &StoredDevice, other: &StoredDevice) -> bool {
    let order = |held: &StoredDevice| (held.at_ms, held.origin, held.version, held.index);
    order(one) > order(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event as Happened, Reason};
    use muster_transport::Dice;

    const USER: u64 = 7;
    const DEVICES: [&[u8]; 3] = [b"phone:a", b"phone:b", b"laptop"];

    /// A session: when it came, its gateway, the version that reported it, its device.
    type Session = (u64, u32, u64, Device);

    /// The rules written plainly, over plain sets; `tests/reference/policies.py` has them again.
    struct Model {
        policy: Policy,
        online: BTreeSet<Session>,
        ending: BTreeSet<Session>,
    }

    impl Model {
        fn group(&self, device: Device) -> Vec<Session> {
            let same = |one: &&Session| match self.policy {
                Policy::Many => one.3 == device,
                Policy::OnePerKind => one.3.kind() == device.kind(),
                Policy::One => true,
            };
            self.online.iter().filter(same).copied().collect()
        }

        fn went(&mut self, device: Device, ap: u32) {
            let other = |one: &Session| (one.3, one.1) != (device, ap);
            self.online.retain(other);
            self.ending.retain(other);
        }

        fn came(&mut self, session: Session, in_order: bool) {
            self.went(session.3, session.1);
            self.online.insert(session);
            for rival in self.group(session.3) {
                if rival.1 != session.1 && !self.ending.contains(&rival) {
                    self.ending
                        .insert(if in_order || session > rival { rival } else { session });
                }
            }
        }

        fn told(&mut self) -> BTreeSet<Session> {
            for session in self.ending.clone() {
                let group = self.group(session.3);
                if group.iter().all(|one| self.ending.contains(one)) {
                    self.ending.remove(group.last().expect("the session itself"));
                }
            }
            self.ending.clone()
        }
    }

    struct World {
        places: Places,
        contest: Contest,
        model: Model,
        highest: BTreeMap<u32, u64>,
    }

    impl World {
        fn event(&mut self, now: Micros, ap: u32, version: u64, device: Device, state: State, at_ms: u64) {
            let origin = Origin { ap, epoch: 1 };
            let event = Happened {
                index: 0,
                user: USER,
                device,
                state,
                at_ms,
            };
            let highest = self.highest.entry(ap).or_default();
            let in_order = version > *highest;
            *highest = version.max(*highest);
            if self.places.apply(now, origin, version, &event) {
                self.contest.came(now, &self.places, (USER, device, ap), in_order);
                self.model.came((at_ms, ap, version, device), in_order);
            } else if in_order && state != State::Online {
                self.model.went(device, ap);
            }
        }

        fn told(&mut self, now: Micros) -> BTreeSet<Session> {
            let told = self.contest.due(now, &self.places, std::iter::empty(), |_| true);
            let known = self.model.online.clone();
            let session = |one: &Supersede| {
                let same =
                    |session: &&Session| (session.3, session.1, session.2) == (one.device, one.origin.ap, one.version);
                *known.iter().find(same).expect("it is online")
            };
            told.iter().map(session).collect()
        }
    }

    #[test]
    fn sessions_end_by_the_model_and_one_of_each_group_remains() {
        for seed in 0..600 {
            let mut dice = Dice::new(seed);
            let policy = [Policy::Many, Policy::OnePerKind, Policy::One][seed as usize % 3];
            let policies = Policies {
                otherwise: policy,
                ..Policies::default()
            };
            let mut world = World {
                places: Places::new(1, 0),
                contest: Contest::new(policies),
                model: Model {
                    policy,
                    online: BTreeSet::new(),
                    ending: BTreeSet::new(),
                },
                highest: BTreeMap::new(),
            };
            let mut now = 0;
            let mut versions = [0; 4];
            for step in 0..40 {
                now += 2 * AGAIN;
                let ap = 1 + dice.below(3) as u32;
                let device = Device::new(DEVICES[dice.below(3) as usize]).expect("a name");
                let state = match dice.below(3) {
                    0 => State::Offline(Reason::Closed),
                    _ => State::Online,
                };
                versions[ap as usize] += 1;
                let version = versions[ap as usize];
                // The previous event may come late, with a time of its own.
                if state == State::Online && dice.below(4) == 0 {
                    versions[ap as usize] += 1;
                    let later = Device::new(DEVICES[dice.below(3) as usize]).expect("a name");
                    if later != device {
                        world.event(now, ap, version + 1, later, State::Online, 1_000 + step);
                        world.event(now, ap, version, device, state, 1_000 + dice.below(50));
                    } else {
                        versions[ap as usize] -= 1;
                        world.event(now, ap, version, device, state, 1_000 + step);
                    }
                } else {
                    world.event(now, ap, version, device, state, 1_000 + step);
                }
                let told = world.told(now + AGAIN);
                assert_eq!(told, world.model.told(), "seed {seed}, step {step}");
                assert!(world.told(now + AGAIN).is_empty(), "again in a second");
                if dice.below(2) == 0 {
                    // A gateway obeys one of them.
                    if let Some((_, ap, _, device)) = told.first().copied() {
                        versions[ap as usize] += 1;
                        let version = versions[ap as usize];
                        world.event(now, ap, version, device, State::Offline(Reason::Replaced), 1_000 + step);
                    }
                }
            }
            for _ in 0..9 {
                now += 2 * AGAIN;
                for (_, ap, _, device) in world.told(now) {
                    versions[ap as usize] += 1;
                    let version = versions[ap as usize];
                    world.event(now, ap, version, device, State::Offline(Reason::Replaced), 2_000);
                }
            }
            for session in world.model.online.clone() {
                let gateways: BTreeSet<u32> = world.model.group(session.3).iter().map(|one| one.1).collect();
                assert_eq!(
                    gateways.len(),
                    1,
                    "seed {seed}: the remaining sessions of a group are at one gateway"
                );
            }
        }
    }
}
