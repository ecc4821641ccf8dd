//! Known bugs that seeds do not show, planted one at a time: what the machines do with each, and without.

use super::*;
use muster_presence::planted::{set, Bug};

#[test]
fn planted_a_writer_forgets_that_it_heard_nobody() {
    use Standing::{Deaf, InSync};
    set(Some(Bug::SilenceForgotten));
    let with = [true, false].map(after_silence);
    set(None);
    assert_eq!(with, [[InSync; 4], [Deaf, InSync, InSync, InSync]]);
}

#[test]
fn planted_a_message_of_two_paths_is_delivered_twice() {
    let pushed = || {
        let mut deliveries = Deliveries::new(1, DeliverySettings::default());
        [8, 9].map(|service| offer(&mut deliveries, 0, service, &unicast(1, 1, 0)).len())
    };
    set(Some(Bug::DeliveredTwice));
    let with = pushed();
    set(None);
    assert_eq!((with, pushed()), ([2, 2], [2, 0]));
}
