//! Each planted bug is found by a check that passes without it.

use crate::model::{check_failed_sync, check_flip, check_forged_frames, check_steps, check_takeover, steps};
use muster_journal::planted::{set, Bug};
use proptest::test_runner::{Config, TestError, TestRunner};

fn found(bug: Bug, check: impl Fn() -> Result<(), String>) {
    set(None);
    assert_eq!(check(), Ok(()), "without a bug");
    set(Some(bug));
    let found = check();
    set(None);
    assert!(found.is_err(), "{bug:?} was not found");
}

fn any_program() -> Result<(), String> {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(500)
    });
    let run = runner.run(&steps(), |steps| {
        check_steps(&steps).map_err(proptest::test_runner::TestCaseError::fail)
    });
    run.map_err(|error| match error {
        TestError::Fail(why, _) | TestError::Abort(why) => why.to_string(),
    })
}

fn any_flip(closed: bool) -> Result<(), String> {
    (0..997).try_for_each(|at| check_flip(f64::from(at) / 997.0, closed, false))
}

#[test]
fn torn_group_taken_for_whole() {
    found(Bug::TailUnchecked, any_program);
}

#[test]
fn answer_before_the_sync() {
    found(Bug::SyncMissing, any_program);
}

#[test]
fn acknowledged_mark_ahead_of_the_sync() {
    found(Bug::AckedEarly, any_program);
}

#[test]
fn damage_cut_as_a_torn_tail() {
    found(Bug::DamageCut, || any_flip(false));
}

#[test]
fn append_after_a_failed_sync() {
    found(Bug::SyncRetried, || (0..8).try_for_each(check_failed_sync));
}

#[test]
fn fenced_owner_answers() {
    found(Bug::OwnerUnasked, || (0..40).try_for_each(check_takeover));
}

#[test]
fn frames_of_an_earlier_life() {
    found(Bug::SaltMissing, check_forged_frames);
}

#[test]
fn found_group_left_in_memory() {
    found(Bug::TailNotSynced, || (0..8).try_for_each(check_failed_sync));
}

#[test]
fn clean_segment_with_old_bytes() {
    found(Bug::OldBytesStay, any_program);
}
