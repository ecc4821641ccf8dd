//! Presence in the simulator's kit: three gateways, two proxies, two sites with one and two writers, under any
//! faults.
//!
//! `PRESENCE_SEEDS` sets the number of seeds.

mod nodes;
mod world;

use muster_simkit::{guarded, Ran, Setup};
use world::{calm, plan, Own, Sim};

fn ran(seed: u64, setup: Setup<Own>) -> Ran<Sim> {
    muster_simkit::run(seed, setup, Sim::new(seed), false)
}

fn result(seed: u64) -> Result<(), String> {
    guarded(|| ((), ran(seed, plan(seed)).result)).1
}

fn seeds() -> u64 {
    let seeds = std::env::var("PRESENCE_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(300)
}

#[test]
fn every_view_is_correct_after_the_last_fault() {
    let (mut lost, mut asks, mut fulls, mut moves) = (0, 0, 0, 0);
    let mut failed = Vec::new();
    for seed in 0..seeds() {
        match guarded(|| {
            let ran = ran(seed, plan(seed));
            let figures = (ran.world.net.lost, ran.system.asks, ran.system.fulls, ran.system.moves);
            (figures, ran.result)
        }) {
            (figures, Ok(())) => {
                (lost, asks, fulls, moves) = (lost + figures.0, asks + figures.1, fulls + figures.2, moves + figures.3);
            }
            (_, Err(why)) => failed.push(format!("seed {seed}: {why}")),
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
    println!("{moves} moves, {lost} datagrams lost, {asks} asks, {fulls} full states");
    assert!(lost > 100 && asks > 100 && fulls > 100, "{lost} {asks} {fulls}");
}

#[test]
fn without_faults_only_the_first_states_are_requested() {
    let ran = ran(1, calm(1));
    assert_eq!(ran.result, Ok(()));
    assert!(ran.system.moves > 100, "{}", ran.system.moves);
    assert_eq!(ran.system.asks, 0, "each version came to each writer");
    assert_eq!(ran.system.fulls, (world::GATEWAYS * world::WRITERS) as u64);
}

#[test]
fn a_seed_determines_a_run() {
    for seed in [0, 7, 11] {
        let [one, other] = [ran(seed, plan(seed)), ran(seed, plan(seed))];
        assert_eq!(one.world.trace(), other.world.trace(), "seed {seed}");
    }
    assert_eq!(result(3), result(3));
}
