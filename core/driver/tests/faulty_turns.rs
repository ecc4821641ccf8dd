//! Injected faults at work between a machine and real sockets.

mod common;

use common::{friend, heard, loopback, told, Toy};
use muster_driver::{Direction, Faults, Rule, Turn};

fn both(rule: impl Fn(Rule) -> Rule) -> Faults {
    Faults::new(3, vec![rule(Rule::new(Direction::In)), rule(Rule::new(Direction::Out))]).unwrap()
}

#[test]
fn a_delay_each_way_is_kept_by_the_drivers_own_timer() {
    let (mut driver, told, local) = told(Toy::default());
    driver.set_faults(Some(both(|rule| Rule { delay_ms: 10, ..rule })));
    let friend = friend(local);
    friend.send(b"ping").unwrap();
    for received in [0, 1] {
        driver.turn();
        assert_eq!(driver.machine().received.len(), received);
        assert_eq!(driver.due(), Some(told.now() + 10_000));
        told.advance(9_999);
        driver.turn();
        assert_eq!(driver.machine().received.len(), received, "not before its time");
        assert!(heard(&friend).is_empty());
        told.advance(1);
    }
    driver.turn();
    assert_eq!(heard(&friend), [b"ping"]);
    assert_eq!(driver.fault_counters().unwrap().delayed, 2);
}

#[test]
fn a_real_timer_wakes_the_loop_for_delayed_datagrams() {
    use muster_driver::Driver;
    let mut driver = Driver::new(Toy::default(), vec![common::socket()]).unwrap();
    driver.set_faults(Some(both(|rule| Rule {
        delay_ms: 5,
        jitter_ms: 5,
        ..rule
    })));
    let friend = friend(driver.sockets()[0].local());
    friend.send(b"ping").unwrap();
    for _ in 0..100 {
        assert!(driver.wait(std::time::Duration::from_secs(100)));
        driver.turn();
        if heard(&friend) == [b"ping"] {
            return;
        }
    }
    panic!("the answer never left");
}

#[test]
fn a_duplicate_arrives_although_the_first_copy_is_opened_in_place() {
    let (mut driver, _, local) = told(Toy::default());
    let rule = Rule {
        duplicate: 1.0,
        ..Rule::new(Direction::In)
    };
    driver.set_faults(Some(Faults::new(3, vec![rule]).unwrap()));
    friend(local).send(b"twice").unwrap();
    driver.turn();
    driver.turn();
    assert_eq!(
        driver.machine().received,
        [(0, b"twice".to_vec()), (0, b"twice".to_vec())]
    );
}

#[test]
fn total_loss_stays_within_the_budget_of_a_turn() {
    let (mut driver, told, _) = told(Toy::default());
    driver.set_faults(Some(both(|rule| Rule { loss: 1.0, ..rule })));
    for _ in 0..100_000 {
        driver.machine_mut().say(0, loopback(20_000), b"into the void");
    }
    assert_eq!(driver.turn(), Turn { more: true });
    assert_eq!(driver.fault_counters().unwrap().lost, 2_048);
    assert_eq!(told.0.borrow().taken, 0);
}

#[test]
fn segments_of_a_super_packet_have_fates_of_their_own() {
    let (mut driver, _, local) = told(Toy::default());
    let (mut sender, _, _) = told_sender(local, 60);
    let rule = Rule {
        loss: 0.5,
        ..Rule::new(Direction::In)
    };
    driver.set_faults(Some(Faults::new(3, vec![rule]).unwrap()));
    sender.turn();
    assert_eq!(sender.udp_counters().sent_joined, 1);
    driver.turn();
    let counters = driver.fault_counters().unwrap();
    assert_eq!(counters.seen, 60);
    assert!((15..45).contains(&counters.lost), "{} of 60", counters.lost);
    assert_eq!(driver.machine().received.len() as u64, 60 - counters.lost);
}

#[test]
fn datagrams_have_fates_of_their_own_before_they_are_joined() {
    let (mut driver, _, local) = told(Toy::default());
    let (mut sender, told, _) = told_sender(local, 60);
    let rule = Rule {
        loss: 0.5,
        ..Rule::new(Direction::Out)
    };
    sender.set_faults(Some(Faults::new(3, vec![rule]).unwrap()));
    sender.turn();
    let lost = sender.fault_counters().unwrap().lost;
    assert!((15..45).contains(&lost), "{lost} of 60");
    assert_eq!(told.0.borrow().taken, 1, "what passed leaves as one super-packet");
    driver.turn();
    assert_eq!(driver.machine().received.len() as u64, 60 - lost);
}

#[test]
fn copies_and_delayed_datagrams_use_the_space_of_lost_ones() {
    const SLICES: u64 = 40;
    let (mut driver, _, _) = told_sender(loopback(20_000), 64 * SLICES as usize);
    driver.machine_mut().cries_wolf = true;
    let rule = Rule {
        loss: 0.01,
        duplicate: 0.01,
        ..Rule::new(Direction::Out)
    };
    driver.set_faults(Some(Faults::new(3, vec![rule]).unwrap()));
    while driver.turn().more {}
    let (faults, sent) = (driver.fault_counters().unwrap().clone(), driver.udp_counters());
    assert!(faults.duplicated > 10 && faults.lost > 10, "{faults:?}");
    assert_eq!(sent.sent, 64 * SLICES + faults.duplicated - faults.lost);
    assert!(sent.send_calls <= SLICES + 1, "{} for {SLICES}", sent.send_calls);
}

#[test]
fn duplicates_of_a_full_slice_leave_in_later_slices() {
    const COUNT: u64 = 64 * 100;
    let (mut driver, told, _) = told_sender(loopback(20_000), COUNT as usize);
    told.0.borrow_mut().step_us = 100;
    let rule = Rule {
        duplicate: 1.0,
        ..Rule::new(Direction::Out)
    };
    driver.set_faults(Some(Faults::new(3, vec![rule]).unwrap()));
    let mut held_max = 0;
    while driver.turn().more {
        held_max = held_max.max(
            driver.fault_counters().unwrap().duplicated + COUNT
                - driver.machine().waiting() as u64
                - driver.udp_counters().sent,
        );
    }
    assert_eq!(driver.udp_counters().sent, 2 * COUNT);
    assert!(held_max <= COUNT / 4, "{held_max}");
}

#[test]
fn without_faults_nothing_is_counted_and_nothing_held() {
    let (mut driver, _, local) = told(Toy::default());
    driver.set_faults(Some(both(|rule| Rule { loss: 1.0, ..rule })));
    driver.set_faults(None);
    let friend = friend(local);
    friend.send(b"ping").unwrap();
    driver.turn();
    assert_eq!(heard(&friend), [b"ping"]);
    assert_eq!(driver.fault_counters(), None);
}

/// A driver that has `count` datagrams of one size to send to `to`.
fn told_sender(
    to: muster_transport::Addr,
    count: usize,
) -> (
    muster_driver::Driver<Toy, common::FakeKernel>,
    common::FakeKernel,
    muster_transport::Addr,
) {
    let (mut driver, told, local) = told(Toy::default());
    for number in 0..count {
        driver.machine_mut().say(0, to, &[number as u8; 100]);
    }
    (driver, told, local)
}
