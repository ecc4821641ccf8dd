//! A known bug of the front: its test finds it.

use muster_likes::planted::{set, Bug};

#[test]
fn planted_reply_before_durable_is_found() {
    set(Some(Bug::ReplyBeforeDurable));
    let found = std::panic::catch_unwind(super::change_is_answered_only_once_it_is_durable);
    set(None);
    assert!(found.is_err(), "the bug was not found");
}
