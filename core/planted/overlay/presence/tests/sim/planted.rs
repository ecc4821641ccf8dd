//! Each planted bug is found by a run that passes without it.

use super::{calm, plan, ran, world};
use muster_presence::planted::{set, Bug};
use muster_simkit::guarded;

/// Number of seeds within which a bug must be found.
const SEEDS: u64 = 150;

fn run(seed: u64) -> Result<(), String> {
    guarded(|| ((), ran(seed, plan(seed)).result)).1
}

fn found(bug: Bug, told: &str) {
    let found = (0..SEEDS).find_map(|seed| {
        set(Some(bug));
        let why = run(seed).err();
        set(None);
        why.map(|why| (seed, why))
    });
    let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS} seeds"));
    println!("{bug:?}: seed {seed}: {why}");
    assert!(why.contains(told), "{bug:?} was found by {why}");
    assert_eq!(run(seed), Ok(()), "seed {seed} fails without {bug:?} as well");
}

#[test]
fn planted_a_version_is_not_sent_to_writers_without_events() {
    let asks = || ran(1, calm(1)).system.asks;
    set(Some(Bug::EmptyUnsent));
    let with = asks();
    set(None);
    assert!(with > 10, "{with} asks");
    assert_eq!(asks(), 0);
    assert_eq!(world::WRITERS, 3, "a site of one writer sends it every version");
}

#[test]
fn planted_the_epoch_is_ignored() {
    found(Bug::EpochIgnored, "");
}

#[test]
fn planted_a_full_state_is_merged() {
    found(Bug::FullMerged, "ghosts");
}

#[test]
fn planted_the_vector_is_written_apart_from_the_users() {
    found(Bug::VectorApart, "");
}

#[test]
fn planted_the_second_copy_counts_as_a_change() {
    found(Bug::DuplicateCounted, "twice");
}

#[test]
fn planted_a_writer_out_of_sync_says_that_it_is_alive() {
    found(Bug::AliveOutOfSync, "knows no gateway");
}

#[test]
fn planted_a_late_packet_overrules() {
    found(Bug::LateOverrules, "");
}

#[test]
fn planted_the_tail_is_forgotten() {
    found(Bug::TailForgotten, "");
}
