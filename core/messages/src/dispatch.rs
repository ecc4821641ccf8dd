//! Which worker of a topic gets the next messages, and which workers a new topic gets.
//!
//! Owns: the policies and their state. Must not know: topics, how loads are measured, the source of randomness (each
//! choice gets a random number).

use std::collections::HashMap;

use crate::schedule::Incarnation;

/// The greatest weight; weight 0 excludes a worker.
pub const WEIGHT_MAX: u32 = 1_000;

/// How the next worker is chosen (DELAY-6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Random,
    RoundRobin,
    /// Each worker gets its share in every round, spread over the round.
    WeightedRoundRobin,
    WeightedRandom,
    /// The worker with the fewest held messages relative to its weight.
    LeastLoaded,
}

/// How the workers of a new topic are chosen (DELAY-13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    Random,
    /// Those with the greatest weights; among equals, those with the fewest held messages first.
    LeastLoaded,
}

/// A worker that may get messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    pub incarnation: Incarnation,
    /// 0 to [`WEIGHT_MAX`]; 0: it gets none for now.
    pub weight: u32,
    /// Messages that it holds.
    pub held: u64,
}

/// The load from which a worker's weight is computed: fractions in use, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub held: f64,
    pub memory: f64,
    pub cpu: f64,
}

impl Load {
    /// The free part of the scarcest resource, in thousandths: at least 1, since a full worker is slow and not gone.
    pub fn weight(self) -> u32 {
        let used = [self.held, self.memory, self.cpu];
        // A part that is not a number counts as all in use.
        let scarcest = used
            .into_iter()
            .map(|used| if used.is_nan() { 1.0 } else { used })
            .fold(0.0, f64::max);
        let free = (1.0 - scarcest).clamp(0.0, 1.0);
        ((free * f64::from(WEIGHT_MAX)) as u32).max(1)
    }
}

/// Chooses workers for one topic. The list of workers may change from choice to choice.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    policy: Policy,
    last: Option<Incarnation>,
    /// For the weighted round: how far each worker is behind its share.
    behind: HashMap<Incarnation, i64>,
}

impl Dispatcher {
    pub fn new(policy: Policy) -> Self {
        Dispatcher {
            policy,
            last: None,
            behind: HashMap::new(),
        }
    }

    /// The index in `workers` of the next one; `None` if all have weight 0. `random` is uniformly distributed.
    pub fn choose(&mut self, workers: &[Worker], random: u64) -> Option<usize> {
        let open = || workers.iter().enumerate().filter(|(_, worker)| worker.weight > 0);
        let chosen = match self.policy {
            Policy::Random => {
                let count = open().count() as u64;
                open().nth(below(random, count)? as usize)
            }
            Policy::RoundRobin => {
                // By incarnation, so that workers that come and go change nobody's turn.
                let after = |last: Incarnation| {
                    open()
                        .filter(|(_, worker)| worker.incarnation.0 > last.0)
                        .min_by_key(|(_, worker)| worker.incarnation.0)
                };
                self.last
                    .and_then(after)
                    .or_else(|| open().min_by_key(|(_, worker)| worker.incarnation.0))
            }
            Policy::WeightedRoundRobin => return self.smooth(workers),
            Policy::WeightedRandom => {
                let total = open().map(|(_, worker)| u64::from(worker.weight)).sum();
                let mut at = below(random, total)?;
                open().find(|(_, worker)| {
                    let weight = u64::from(worker.weight);
                    let found = at < weight;
                    at = at.saturating_sub(weight);
                    found
                })
            }
            Policy::LeastLoaded => open().min_by(|(_, one), (_, other)| {
                // held / weight, compared crosswise: below 2^64 * 2^10.
                let one_load = u128::from(one.held) * u128::from(other.weight);
                let other_load = u128::from(other.held) * u128::from(one.weight);
                one_load
                    .cmp(&other_load)
                    .then(one.incarnation.0.cmp(&other.incarnation.0))
            }),
        };
        let (place, worker) = chosen?;
        self.last = Some(worker.incarnation);
        Some(place)
    }

    /// Every choice adds each worker's weight to its deficit; the worker with the largest deficit is chosen and pays
    /// the sum. Source: nginx, upstream round robin ("smooth weighted round-robin").
    fn smooth(&mut self, workers: &[Worker]) -> Option<usize> {
        self.behind
            .retain(|incarnation, _| workers.iter().any(|worker| worker.incarnation == *incarnation));
        let mut total = 0;
        let mut most: Option<(i64, usize)> = None;
        for (place, worker) in workers.iter().enumerate().filter(|(_, worker)| worker.weight > 0) {
            let weight = i64::from(worker.weight);
            total += weight;
            let behind = self.behind.entry(worker.incarnation).or_default();
            *behind += weight;
            if most.is_none_or(|(most, _)| *behind > most) {
                most = Some((*behind, place));
            }
        }
        let (_, place) = most?;
        *self.behind.get_mut(&workers[place].incarnation)? -= total;
        Some(place)
    }
}

/// The indices in `workers` of up to `count` different ones for a new topic. `random` returns uniformly distributed
/// numbers.
pub fn assign(how: Assignment, workers: &[Worker], count: usize, mut random: impl FnMut() -> u64) -> Vec<usize> {
    let mut places: Vec<usize> = (0..workers.len()).filter(|place| workers[*place].weight > 0).collect();
    match how {
        Assignment::Random => {
            for last in (1..places.len()).rev() {
                let other = below(random(), last as u64 + 1).expect("the bound is not 0");
                places.swap(last, other as usize);
            }
        }
        Assignment::LeastLoaded => places.sort_by_key(|place| {
            let worker = &workers[*place];
            (std::cmp::Reverse(worker.weight), worker.held, worker.incarnation.0)
        }),
    }
    places.truncate(count);
    places
}

/// A number below `bound` from a uniformly distributed one; `None` for a bound of 0.
fn below(random: u64, bound: u64) -> Option<u64> {
    (bound > 0).then(|| ((u128::from(random) * u128::from(bound)) >> 64) as u64)
}
