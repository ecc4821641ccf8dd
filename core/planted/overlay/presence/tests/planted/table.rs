//! Known bugs of the table, planted one at a time: runs find each.

use super::run;
use muster_presence::planted::{set, Bug};

fn found(bug: Bug) {
    let found = (0..300).find_map(|seed| {
        set(Some(bug));
        let why = run(seed).err();
        set(None);
        why.map(|why| (seed, why))
    });
    let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
    println!("{bug:?}: seed {seed}: {why}");
    assert_eq!(run(seed), Ok(()));
}

#[test]
fn planted_a_page_overrules_a_batch() {
    found(Bug::PageOverrules);
}

#[test]
fn planted_a_missing_batch_is_not_missed() {
    found(Bug::GapTaken);
}

#[test]
fn planted_users_that_went_stay() {
    found(Bug::GoneKept);
}
