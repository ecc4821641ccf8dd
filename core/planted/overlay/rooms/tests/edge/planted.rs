//! Known bugs, planted one at a time: the tests find each.

use std::panic::catch_unwind;

use muster_edge::planted as edge;
use muster_rooms::planted as rooms;

fn is_found(test: fn()) -> bool {
    catch_unwind(test).is_err()
}

#[test]
fn recovered_said_with_a_hole_is_found() {
    rooms::set(Some(rooms::Bug::RecoveredWithHole));
    assert!(is_found(
        crate::who_cannot_have_all_that_it_missed_starts_at_the_head_and_is_told_so
    ));
}

#[test]
fn a_frame_of_one_form_given_to_members_of_another_is_found() {
    rooms::set(Some(rooms::Bug::FormsMixed));
    assert!(is_found(
        crate::members_that_name_a_room_in_two_ways_or_by_a_number_each_get_their_own_frames
    ));
}

#[test]
fn a_pong_that_counts_for_a_later_message_is_found() {
    edge::set(Some(edge::Bug::PongForLaterMessage));
    assert!(is_found(
        crate::a_pong_counts_for_what_was_written_before_its_ping_alone
    ));
}

#[test]
fn an_unsubscribe_that_still_delivers_is_found() {
    edge::set(Some(edge::Bug::UnsubscribeStillDelivers));
    assert!(is_found(
        crate::nothing_of_a_channel_comes_behind_the_reply_to_unsubscribe
    ));
}

#[test]
fn data_that_is_no_json_in_a_frame_of_json_is_found() {
    edge::set(Some(edge::Bug::JsonUnchecked));
    assert!(is_found(
        crate::a_publication_that_is_no_json_comes_as_base64_with_a_tag
    ));
}
