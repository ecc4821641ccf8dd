//! The wheel compared with a plain list, and its bounds.

mod reference;

use std::collections::HashMap;

use muster_messages::wheel::{Fired, Progress, Token, Wheel};
use proptest::prelude::*;

const START: u64 = 1_780_000_000_123;

#[derive(Clone, Debug)]
enum Step {
    Insert(i64),
    Cancel(prop::sample::Index),
    Reschedule(prop::sample::Index, i64),
    Advance(u64, usize),
}

/// Milliseconds from now: overdue, within the ring, and at the borders of every level up to ten years.
fn distance() -> impl Strategy<Value = i64> {
    prop_oneof![
        -5_000i64..5_000,
        Just(0),
        0i64..100_000,
        0i64..8_000_000,
        0i64..700_000_000,
        0i64..320_000_000_000,
        (10u32..39, -2i64..3).prop_map(|(bits, off)| (1i64 << bits) + off),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let jump = prop_oneof![
        4 => 0u64..3,
        4 => 0u64..3_000,
        2 => 0u64..300_000,
        1 => 0u64..1_000_000_000,
        1 => 0u64..400_000_000_000,
        2 => (10u32..39).prop_map(|bits| 1u64 << bits),
    ];
    prop_oneof![
        6 => distance().prop_map(Step::Insert),
        2 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        2 => (any::<prop::sample::Index>(), distance()).prop_map(|(at, due)| Step::Reschedule(at, due)),
        4 => (jump, 1usize..50).prop_map(|(jump, budget)| Step::Advance(jump, budget)),
    ]
}

fn drain(wheel: &mut Wheel, now: u64, budget: usize) -> Vec<Fired> {
    let mut out = Vec::new();
    loop {
        let before = out.len();
        let progress = wheel.advance(now, budget, &mut out);
        assert!(out.len() - before <= budget, "a call fires no more than its budget");
        if progress == Progress::Current {
            return out;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn wheel_agrees_with_a_list(steps in prop::collection::vec(step(), 1..120)) {
        let mut wheel = Wheel::new(START);
        let mut model = reference::wheel::Wheel { now: START, ..Default::default() };
        let mut tokens: Vec<(u64, Token)> = Vec::new();
        let mut now = START;
        for (key, step) in steps.into_iter().enumerate() {
            let at = |distance: i64| now.saturating_add_signed(distance);
            match step {
                Step::Insert(distance) => {
                    let key = key as u64;
                    tokens.push((key, wheel.insert(at(distance), key)));
                    model.insert(at(distance), key);
                }
                Step::Cancel(index) if !tokens.is_empty() => {
                    // Old tokens stay in the list: they must be invalid.
                    let (key, token) = tokens[index.index(tokens.len())];
                    let expected = model.cancel(key).map(|due| (due, key));
                    prop_assert_eq!(wheel.cancel(token), expected);
                }
                Step::Reschedule(index, distance) if !tokens.is_empty() => {
                    let (key, token) = tokens[index.index(tokens.len())];
                    prop_assert_eq!(wheel.reschedule(token, at(distance)), model.reschedule(key, at(distance)));
                }
                Step::Advance(jump, budget) => {
                    now += jump;
                    if let Some(next) = wheel.next_due() {
                        let earliest = model.entries.iter().map(|entry| entry.due).min().unwrap();
                        prop_assert!(next <= earliest.max(model.now));
                    }
                    let fired = drain(&mut wheel, now, budget);
                    let expected = model.advance(now);
                    let overdue: HashMap<u64, bool> =
                        expected.iter().map(|entry| (entry.key, entry.overdue)).collect();
                    let mut got: Vec<(u64, u64)> = fired.iter().map(|fired| (fired.due, fired.key)).collect();
                    let in_time: Vec<u64> =
                        got.iter().filter(|(_, key)| overdue.get(key) == Some(&false)).map(|(due, _)| *due).collect();
                    prop_assert!(in_time.is_sorted(), "{:?}", in_time);
                    let mut want: Vec<(u64, u64)> = expected.iter().map(|entry| (entry.due, entry.key)).collect();
                    got.sort_unstable();
                    want.sort_unstable();
                    prop_assert_eq!(got, want);
                }
                Step::Cancel(_) | Step::Reschedule(..) => {}
            }
            prop_assert_eq!(wheel.len(), model.entries.len());
        }
    }
}

#[test]
fn entry_added_when_due_fires_without_the_clock_moving() {
    let mut wheel = Wheel::new(START);
    assert!(drain(&mut wheel, START + 10, 8).is_empty());
    wheel.insert(START + 3, 1);
    wheel.insert(START + 10, 2);
    wheel.insert(START + 11, 3);
    let keys: Vec<u64> = drain(&mut wheel, START + 10, 8).iter().map(|fired| fired.key).collect();
    assert_eq!(keys, [1, 2]);
}

#[test]
fn clock_that_goes_back_fires_nothing() {
    let mut wheel = Wheel::new(START);
    wheel.insert(START + 5, 1);
    assert!(drain(&mut wheel, START - 3_600_000, 8).is_empty());
    assert!(drain(&mut wheel, START + 4, 8).is_empty());
    assert_eq!(drain(&mut wheel, START + 5, 8).len(), 1);
}

#[test]
fn tick_before_a_crowded_block_moves_only_its_share() {
    // 100,000 entries in one block, far enough to be in a level: advancing to it tick by tick, no tick needs more
    // than ceil(100,000 / 1,024) = 98 moves per level, so a budget of 400 is never exhausted.
    let mut wheel = Wheel::new(START);
    let block = ((START + 9_000_000) >> 10) << 10;
    for key in 0..100_000 {
        wheel.insert(block + key % 1_024, key);
    }
    let mut out = Vec::new();
    let mut now = START;
    while now < block + 1_024 {
        assert_eq!(wheel.advance(now, 400, &mut out), Progress::Current, "at {now}");
        now += if now < block - 3_000 { 100 } else { 1 };
    }
    assert_eq!(out.len(), 100_000);
}

#[test]
fn token_of_a_fired_entry_stays_invalid_after_reuse() {
    let mut wheel = Wheel::new(START);
    let old = wheel.insert(START + 1, 1);
    drain(&mut wheel, START + 1, 8);
    let new = wheel.insert(START + 2, 2);
    assert_eq!(wheel.cancel(old), None);
    assert!(!wheel.reschedule(old, START + 9));
    assert_eq!(wheel.due(new), Some(START + 2));
}

#[test]
fn entry_takes_32_bytes() {
    let mut wheel = Wheel::with_capacity(START, 100_000);
    for key in 0..100_000 {
        wheel.insert(START + key * 977, key);
    }
    assert!(wheel.memory() <= 100_000 * 32 + 40 * 1024, "{}", wheel.memory());
}

#[test]
fn wheel_of_any_size_takes_40_bytes_an_entry_at_most() {
    let mut wheel = Wheel::new(START);
    for key in 1..=300_000 {
        wheel.insert(START + key * 977, key);
        let bound = key as usize * 40 + 72 * 1024;
        assert!(wheel.memory() <= bound, "{} at {key}", wheel.memory());
    }
}
