//! A known bug that the simulator does not show: its members rarely come while a gateway is behind.

use muster_rooms::planted::{set, Bug};

#[test]
fn a_planted_denial_of_what_the_owner_has_numbered_is_found() {
    for good in [
        super::a_member_ahead_of_its_gateway_alone_goes_on_without_a_gap,
        super::what_comes_meanwhile_proves_a_position_without_an_answer,
    ] {
        set(Some(Bug::AheadDenied));
        let found = std::panic::catch_unwind(good).is_err();
        set(None);
        assert!(found);
        good();
    }
}
