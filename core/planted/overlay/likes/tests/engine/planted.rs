//! The comparison finds each planted bug, and passes without one.

use crate::model::{check, steps, Step};
use muster_likes::planted::{set, Bug};
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

fn any_program(cases: u32) -> Result<(), String> {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(cases)
    });
    let run = runner.run(&steps(), |steps| check(&steps).map_err(TestCaseError::fail));
    run.map_err(|error| match error {
        TestError::Fail(why, _) | TestError::Abort(why) => why.to_string(),
    })
}

fn found(bug: Bug, told: &str) {
    found_within(150, bug, told);
}

/// For a bug that few programs show: the run ends with the first of them.
fn found_within(cases: u32, bug: Bug, told: &str) {
    set(Some(bug));
    let found = any_program(cases);
    set(None);
    let why = found.expect_err("the bug was not found");
    assert!(why.contains(told), "{bug:?} was found by {why}");
}

#[test]
fn rank_before_count() {
    found(Bug::RankBeforeCount, "rank");
}

#[test]
fn dense_id_twice() {
    found(Bug::DenseIdTwice, "");
}

#[test]
fn dirty_mark_cleared_blindly() {
    found(Bug::DirtyClearedBlindly, "and clean");
}

#[test]
fn old_modification_written() {
    found(Bug::OldModification, "marks left");
}

#[test]
fn twice_counts_twice() {
    found(Bug::TwiceCountsTwice, "");
}

#[test]
fn taken_back_stays_newest() {
    found(Bug::RingKeepsTakenBack, "newest");
}

#[test]
fn restored_engine_forgets_its_marks() {
    found(Bug::DirtyNotRestored, "");
}

#[test]
fn change_during_a_snapshot_is_in_it() {
    found(Bug::CutNotKept, "sliced snapshot");
}

#[test]
fn erased_user_comes_back_by_a_bit_operation() {
    found(Bug::ErasedComesBack, "");
}

/// Eight users like an item, and the id of the last one goes within a sliced snapshot, after some steps of its erasure.
fn erased_within_slices() -> Result<(), String> {
    let like = |user| Step::Set {
        key: 0,
        user,
        likes: true,
    };
    for before in 0..8 {
        let mut steps: Vec<Step> = (1..=8).map(like).collect();
        steps.push(Step::Erase(8));
        steps.extend((0..before).map(|_| Step::GoOnErasing(1 << 20)));
        steps.push(Step::Slices {
            bytes: 1,
            between: (0..8).map(|_| Step::GoOnErasing(1 << 20)).collect(),
        });
        check(&steps)?;
    }
    Ok(())
}

#[test]
fn users_behind_an_erased_one_are_in_a_sliced_snapshot() {
    erased_within_slices().unwrap();
    set(Some(Bug::ErasedWithinCut));
    let found = erased_within_slices();
    set(None);
    let why = found.expect_err("the bug was not found");
    assert!(why.contains("sliced snapshot"), "it was found by {why}");
}

#[test]
fn dense_id_of_an_erased_user_is_given_again() {
    found_within(5_000, Bug::ErasedIdReused, "");
}
