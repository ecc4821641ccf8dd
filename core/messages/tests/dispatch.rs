//! The policies: each gives every worker its promised share.

use muster_messages::dispatch::{assign, Assignment, Dispatcher, Load, Policy, Worker, WEIGHT_MAX};
use muster_messages::schedule::Incarnation;
use proptest::prelude::*;

const POLICIES: [Policy; 5] = [
    Policy::Random,
    Policy::RoundRobin,
    Policy::WeightedRoundRobin,
    Policy::WeightedRandom,
    Policy::LeastLoaded,
];

fn worker(number: u64, weight: u32, held: u64) -> Worker {
    Worker {
        incarnation: Incarnation(number),
        weight,
        held,
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // splitmix64: all 64 bits are used.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

fn counts(policy: Policy, workers: &[Worker], choices: u32) -> Vec<u32> {
    let mut dispatcher = Dispatcher::new(policy);
    let mut random = Random(1);
    let mut counts = vec![0; workers.len()];
    for _ in 0..choices {
        counts[dispatcher.choose(workers, random.next()).unwrap()] += 1;
    }
    counts
}

#[test]
fn random_policies_keep_their_shares() {
    let workers = [worker(1, 100, 0), worker(2, 200, 0), worker(3, 0, 0), worker(4, 700, 0)];
    // 100,000 draws: the standard deviation of a share is below 160, six of them below 1,000.
    let near = |count: u32, expected: u32| count.abs_diff(expected) < 1_000;
    let even = counts(Policy::Random, &workers, 99_999);
    assert!(
        near(even[0], 33_333) && near(even[1], 33_333) && even[2] == 0 && near(even[3], 33_333),
        "{even:?}"
    );
    let weighted = counts(Policy::WeightedRandom, &workers, 100_000);
    assert!(
        near(weighted[0], 10_000) && near(weighted[1], 20_000) && weighted[2] == 0,
        "{weighted:?}"
    );
}

#[test]
fn weighted_round_is_spread_evenly() {
    let workers = [worker(1, 5, 0), worker(2, 1, 0), worker(3, 1, 0)];
    let mut dispatcher = Dispatcher::new(Policy::WeightedRoundRobin);
    let order: Vec<usize> = (0..7).map(|_| dispatcher.choose(&workers, 0).unwrap()).collect();
    assert_eq!(order, [0, 0, 1, 0, 2, 0, 0]);
}

#[test]
fn least_loaded_goes_by_weight() {
    let mut dispatcher = Dispatcher::new(Policy::LeastLoaded);
    assert_eq!(
        dispatcher.choose(&[worker(1, 10, 20), worker(2, 100, 100), worker(3, 0, 0)], 0),
        Some(1)
    );
    assert_eq!(
        dispatcher.choose(&[worker(1, 1, u64::MAX), worker(2, WEIGHT_MAX, u64::MAX)], 0),
        Some(1)
    );
}

#[test]
fn round_robin_continues_when_workers_come_and_go() {
    let mut dispatcher = Dispatcher::new(Policy::RoundRobin);
    let mut choose = |numbers: &[u64]| {
        let workers: Vec<Worker> = numbers.iter().map(|number| worker(*number, 1, 0)).collect();
        numbers[dispatcher.choose(&workers, 0).unwrap()]
    };
    assert_eq!(choose(&[3, 1, 2]), 1);
    assert_eq!(choose(&[3, 1, 2]), 2);
    assert_eq!(choose(&[3, 1]), 3);
    assert_eq!(choose(&[3, 1, 4]), 4);
    assert_eq!(choose(&[3, 1, 4]), 1);
}

#[test]
fn weight_follows_the_scarcest_resource() {
    let load = |held, memory, cpu| Load { held, memory, cpu }.weight();
    assert_eq!(load(0.0, 0.0, 0.0), WEIGHT_MAX);
    assert_eq!(load(0.1, 0.75, 0.5), 250);
    assert_eq!(load(0.0, 1.0, 0.0), 1);
    assert_eq!(load(0.0, 7.0, -3.0), 1);
    assert_eq!(load(f64::NAN, 0.0, 0.0), 1);
}

#[test]
fn topic_gets_different_workers_the_least_loaded_or_any() {
    let workers = [worker(1, 10, 0), worker(2, 500, 9), worker(3, 500, 3), worker(4, 0, 0)];
    assert_eq!(assign(Assignment::LeastLoaded, &workers, 2, || 0), [2, 1]);
    let mut random = Random(3);
    let mut first = [0; 4];
    for _ in 0..3_000 {
        let mut places = assign(Assignment::Random, &workers, 9, || random.next());
        first[places[0]] += 1;
        places.sort_unstable();
        assert_eq!(places, [0, 1, 2]);
    }
    assert!(first[..3].iter().all(|count| (850..1_150).contains(count)), "{first:?}");
}

proptest! {
    #[test]
    fn round_robins_give_every_worker_its_exact_share_in_each_round(
        weights in prop::collection::vec(0u32..20, 1..8),
        rounds in 1u32..4,
    ) {
        let workers: Vec<Worker> = (0..).zip(&weights).map(|(number, weight)| worker(number, *weight, 0)).collect();
        let total: u32 = weights.iter().sum();
        prop_assume!(total > 0);
        let expected: Vec<u32> = weights.iter().map(|weight| weight * rounds).collect();
        prop_assert_eq!(counts(Policy::WeightedRoundRobin, &workers, total * rounds), expected);
        let open = weights.iter().filter(|weight| **weight > 0).count() as u32;
        let expected: Vec<u32> = weights.iter().map(|weight| if *weight > 0 { rounds } else { 0 }).collect();
        prop_assert_eq!(counts(Policy::RoundRobin, &workers, open * rounds), expected);
    }

    #[test]
    fn no_policy_chooses_a_worker_without_weight(
        steps in prop::collection::vec((prop::collection::vec((0u64..6, 0u32..3, 0u64..5), 0..6), any::<u64>()), 1..30),
    ) {
        for policy in POLICIES {
            let mut dispatcher = Dispatcher::new(policy);
            for (workers, random) in &steps {
                let mut workers: Vec<Worker> = workers.iter().map(|(number, weight, held)| worker(*number, *weight, *held)).collect();
                workers.sort_by_key(|worker| worker.incarnation.0);
                workers.dedup_by_key(|worker| worker.incarnation);
                match dispatcher.choose(&workers, *random) {
                    Some(place) => prop_assert!(workers[place].weight > 0),
                    None => prop_assert!(workers.iter().all(|worker| worker.weight == 0)),
                }
            }
        }
    }
}
