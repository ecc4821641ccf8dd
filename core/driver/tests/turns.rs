//! The steps of a turn, their order, and how a turn ends.

mod common;

use std::time::Duration;

use common::{friend, heard, loopback, socket, told, FakeKernel, Toy};
use muster_driver::{Budget, Driver, Turn, AGE_MAX_US, BEAT_US, CLOSE_US, RETRY_US, ROUND_US, SLICE_MIN, STALL_US};
use muster_transport::{Inbox, Machine, Micros, Outbox, SLICE_DATAGRAMS};
use muster_udp::{monotonic_now, Poll};

const SOON: Duration = Duration::from_secs(100);

/// Turns until nothing is left to do now.
fn settle<S: muster_udp::Syscalls>(driver: &mut Driver<Toy, S>) {
    for _ in 0..10_000 {
        if !driver.turn().more {
            return;
        }
    }
    panic!("a bounded amount of work never ended");
}

#[test]
fn an_answer_leaves_in_the_turn_that_received_the_question() {
    let (mut driver, _, local) = told(Toy::default());
    let friend = friend(local);
    friend.send(b"ping").unwrap();
    assert_eq!(driver.turn(), Turn { more: false });
    assert_eq!(heard(&friend), [b"ping"]);
    let mut events = Vec::new();
    driver.events(&mut events);
    assert_eq!(events, [1]);
}

#[test]
fn a_quiet_turn_costs_one_receive_call() {
    let (mut driver, ..) = told(Toy::default());
    driver.turn();
    assert_eq!(
        (driver.udp_counters().receive_calls, driver.udp_counters().send_calls),
        (1, 0)
    );
}

#[test]
fn sockets_are_checked_once_in_a_quiet_turn_and_again_after_each_slice() {
    let (mut driver, _, local) = told(Toy::default());
    driver.turn();
    assert_eq!(driver.counters().looks, 1);
    let friend = friend(local);
    let to = friend.local_addr().unwrap().into();
    (0..3 * SLICE_DATAGRAMS).for_each(|_| driver.machine_mut().say(0, to, b"ping"));
    settle(&mut driver);
    assert!(driver.counters().looks >= 4, "{:?}", driver.counters());
}

#[test]
fn waits_on_one_descriptor_for_data_and_deadline_alike() {
    let toy = Toy::default().ticking(monotonic_now(), 5_000);
    let mut driver = Driver::new(toy, vec![socket()]).unwrap();
    let friend = friend(driver.sockets()[0].local());
    for _ in 0..3 {
        assert!(driver.wait(SOON));
        driver.turn();
    }
    assert!(
        !driver.machine().ticks.is_empty(),
        "the first wake-up is the start, the others are ticks"
    );
    driver.machine_mut().next_tick = None;
    settle(&mut driver);
    friend.send(b"ping").unwrap();
    assert!(driver.wait(SOON));
    driver.turn();
    assert_eq!(driver.machine().received.len(), 1);
}

#[test]
fn the_timer_follows_the_deadline_but_never_sleeps_longer_than_a_beat() {
    let (mut driver, clock, _) = told(Toy::default());
    let start = clock.now();
    driver.turn();
    assert_eq!(driver.due(), Some(start + BEAT_US), "nothing to wait for");
    let (mut patient, patience, _) = told(Toy::default());
    patient.machine_mut().next_tick = Some(patience.now() + 60_000_000);
    patient.turn();
    assert_eq!(patient.due(), Some(patience.now() + BEAT_US), "a far deadline");
    driver.machine_mut().next_tick = Some(start + 10_000);
    driver.turn();
    assert_eq!(driver.due(), Some(start + 10_000));
    driver.machine_mut().next_tick = Some(start + 20_000);
    driver.turn();
    assert_eq!(
        driver.due(),
        Some(start + 20_000),
        "waking for nothing costs more than setting the timer back"
    );
    clock.advance(20_000);
    driver.turn();
    assert_eq!(
        (driver.due(), driver.machine().ticks.len()),
        (Some(clock.now() + BEAT_US), 1)
    );
}

#[test]
fn with_frequent_turns_the_timer_is_moved_back_only_after_it_fired() {
    let (mut driver, clock, _) = told(Toy::default());
    let sets = |driver: &mut Driver<Toy, FakeKernel>, deadline: Micros, after: Micros| {
        clock.advance(after);
        driver.machine_mut().next_tick = Some(clock.now() + deadline);
        let before = driver.counters().timer_sets;
        driver.turn();
        driver.counters().timer_sets - before
    };
    sets(&mut driver, 50_000, CLOSE_US + 1);
    assert_eq!(
        sets(&mut driver, 100_000, CLOSE_US + 1),
        1,
        "apart it is set back at once"
    );
    assert_eq!(sets(&mut driver, 50_000, 0), 1, "a sooner deadline counts always");
    for _ in 0..10 {
        assert_eq!(sets(&mut driver, 100_000, 1_000), 0, "closely it stays where it is");
    }
    assert_eq!(sets(&mut driver, 100_000, 50_000), 1, "and is set when it has fired");
}

/// A driver of a machine with one socket, whose turns may linger for this long.
fn lingering(linger_us: u64) -> Driver<Toy> {
    let mut driver = Driver::new(Toy::default(), vec![socket()]).unwrap();
    driver.set_budget(Budget {
        linger_us,
        ..Budget::default()
    });
    driver
}

/// A machine that replies to itself forever; returns how often its turns, `pause` apart, lingered and something
/// arrived.
fn lingered(linger_us: u64, pause: Duration, turns: usize) -> u64 {
    let mut driver = lingering(linger_us);
    let own = driver.sockets()[0].local();
    driver.machine_mut().say(0, own, b"again");
    for _ in 0..turns {
        driver.turn();
        std::thread::sleep(pause);
    }
    driver.counters().lingered
}

#[test]
fn a_turn_lingers_while_datagrams_follow_each_other_briskly() {
    assert!(lingered(2_000, Duration::ZERO, 100) > 0);
    let where_the_loop_has_better_things_to_do = lingered(0, Duration::ZERO, 100);
    let for_seldom_ones = lingered(2_000, Duration::from_millis(2), 20);
    assert_eq!((where_the_loop_has_better_things_to_do, for_seldom_ones), (0, 0));
}

#[test]
fn while_a_turn_lingers_no_datagram_sets_the_timer() {
    let mut driver = lingering(5_000);
    let own = driver.sockets()[0].local();
    driver.machine_mut().say(0, own, b"again");
    for _ in 0..10 {
        driver.turn();
    }
    let done = driver.counters();
    assert!(done.lingered > 4 * done.timer_sets, "{done:?}");
}

#[test]
fn lingering_in_vain_ends_soon_and_leaves_nothing_due() {
    let mut driver = lingering(60_000_000);
    // On a busy machine the turns may be too far apart, and the beat may come in between.
    let waited = (0..100).any(|_| {
        driver.turn();
        let began = monotonic_now();
        driver.turn();
        monotonic_now() - began >= 1_000 && !driver.wait(Duration::ZERO)
    });
    assert!(waited);
    assert_eq!(driver.counters().lingered, 0, "nothing came");
}

#[test]
fn a_kick_makes_a_turn_due() {
    let mut driver = Driver::new(Toy::default(), vec![socket()]).unwrap();
    let friend = friend(driver.sockets()[0].local());
    // On a busy machine the beat may come in between.
    let rests = (0..10).any(|_| driver.turn() == Turn { more: false } && !driver.wait(Duration::ZERO));
    assert!(rests);
    let to = friend.local_addr().unwrap().into();
    driver.machine_mut().say(0, to, b"news");
    driver.kick();
    assert!(driver.wait(Duration::from_micros(BEAT_US / 3)), "sooner than the beat");
    driver.turn();
    assert_eq!(heard(&friend), [b"news"]);
}

#[test]
fn receives_after_an_icmp_error_through_the_nested_epoll() {
    // Its timer never fires, so nothing but the socket can wake it.
    let (mut driver, _, local) = told(Toy::default());
    let mut outer = Poll::new().unwrap();
    outer.add(driver.fd(), 1).unwrap();
    for round in 1..=5 {
        let dead = loopback(socket().local().port);
        driver.machine_mut().say(0, dead, b"nobody there");
        settle(&mut driver);
        assert_eq!(
            outer.wait(Duration::ZERO),
            0,
            "the error must not make the loop spin either"
        );
        friend(local).send(b"still there?").unwrap();
        assert_eq!(outer.wait(SOON), 1, "round {round}");
        settle(&mut driver);
        assert_eq!(driver.machine().received.len(), round);
    }
}

#[test]
fn a_room_of_a_thousand_under_flood_cannot_hold_the_loop() {
    let members = (0..1_000).map(|number| loopback(20_000 + number)).collect();
    let told = FakeKernel::new();
    let toy = Toy::with_members(members).ticking(told.now(), 10_000);
    let socket = socket();
    let friend = friend(socket.local());
    let mut driver = Driver::with_syscalls(toy, vec![socket], told.clone()).unwrap();
    {
        // A slice of 64 takes the kernel some 180 us.
        let mut desk = told.0.borrow_mut();
        (desk.sends, desk.step_us) = (false, 90);
    }
    for _ in 0..500 {
        friend.send(&[7; 200]).unwrap();
    }
    let mut turns = 0;
    loop {
        let (before, sent) = (told.now(), driver.udp_counters().sent);
        let turn = driver.turn();
        turns += 1;
        assert!(driver.udp_counters().sent - sent <= 2_048 + SLICE_DATAGRAMS as u64);
        assert!(
            told.now() - before <= 2_000,
            "turn {turns} took {} us",
            told.now() - before
        );
        if !turn.more {
            break;
        }
        assert!(turns < 100_000);
    }
    assert_eq!(driver.udp_counters().sent, 500 * 1_000, "bounded, but nothing is lost");
    assert_eq!(driver.machine().received.len(), 500);
    let ticks = &driver.machine().ticks;
    assert!(ticks.len() > 20);
    let late = ticks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(late <= 30_000, "a tick of 10 ms came after {late} us");
}

#[test]
fn a_turn_is_bounded_in_datagrams_even_if_the_clock_stands_still() {
    let (mut driver, told, local) = told(Toy::with_members((0..1_000).map(|n| loopback(20_000 + n)).collect()));
    told.0.borrow_mut().sends = false;
    let friend = friend(local);
    for _ in 0..8 {
        friend.send(b"x").unwrap();
    }
    assert!(driver.turn().more);
    assert_eq!(driver.udp_counters().sent, 2_048);
    assert_eq!(driver.counters().turns_cut, 1);
    settle(&mut driver);
    assert_eq!(driver.udp_counters().sent, 8_000);
}

#[test]
fn input_is_bounded_too() {
    let (mut driver, told, local) = told(Toy::default());
    told.0.borrow_mut().sends = false;
    driver.set_budget(Budget {
        received_max: 100,
        ..Budget::default()
    });
    let friend = friend(local);
    for _ in 0..300 {
        friend.send(b"x").unwrap();
    }
    assert!(driver.turn().more);
    let received = driver.machine().received.len();
    assert!(
        (100..100 + 16).contains(&received),
        "one batch beyond at most: {received}"
    );
    settle(&mut driver);
    assert_eq!(driver.machine().received.len(), 300);
}

#[test]
fn each_turn_receives_even_if_output_could_fill_it() {
    let (mut driver, told, local) = told(Toy::default());
    told.0.borrow_mut().sends = false;
    for _ in 0..100_000 {
        driver.machine_mut().say(0, loopback(20_000), b"backlog");
    }
    assert!(driver.turn().more);
    friend(local).send(b"status").unwrap();
    assert!(driver.turn().more);
    assert_eq!(driver.machine().received.len(), 1);
}

/// Regression: sixteen were received per 64 sent. Thousands of members' replies filled the buffer, and their window
/// closed.
#[test]
fn replies_are_received_as_fast_as_requests_are_sent() {
    let (mut driver, told, local) = told(Toy::default());
    told.0.borrow_mut().sends = false;
    driver.set_budget(Budget {
        sent_max: SLICE_DATAGRAMS,
        ..Budget::default()
    });
    for _ in 0..1_000 {
        driver.machine_mut().say(0, loopback(20_000), b"backlog");
    }
    assert!(driver.turn().more);
    let friend = friend(local);
    for _ in 0..2 * SLICE_DATAGRAMS {
        friend.send(b"status").unwrap();
    }
    assert!(driver.turn().more);
    assert_eq!(driver.machine().received.len(), 2 * SLICE_DATAGRAMS);
    assert_eq!(driver.udp_counters().sent, 2 * SLICE_DATAGRAMS as u64);
}

#[test]
fn datagrams_of_one_of_many_sockets_are_received_together() {
    let told = FakeKernel::new();
    let sockets: Vec<_> = (0..20).map(|_| socket()).collect();
    let locals: Vec<_> = sockets.iter().map(|socket| socket.local()).collect();
    let mut driver = Driver::with_syscalls(Toy::default(), sockets, told).unwrap();
    for local in &locals {
        let friend = friend(*local);
        (0..10).for_each(|_| {
            friend.send(b"x").unwrap();
        });
    }
    settle(&mut driver);
    assert_eq!(driver.machine().received.len(), 200);
    let calls = driver.udp_counters().receive_calls;
    assert!(calls <= 60, "{calls}");
}

#[test]
fn all_sockets_are_checked_again_after_each_slice() {
    let told = FakeKernel::new();
    told.0.borrow_mut().sends = false;
    let sockets = vec![socket(), socket()];
    let mut driver = Driver::with_syscalls(Toy::default(), sockets, told).unwrap();
    for _ in 0..100_000 {
        driver.machine_mut().say(0, loopback(20_000), b"backlog");
    }
    assert!(driver.turn().more);
    let done = driver.udp_counters();
    assert_eq!(done.receive_calls, 2 * done.sent / SLICE_DATAGRAMS as u64);
}

#[test]
fn a_lingering_turn_checks_its_sockets_after_each_slice_too() {
    let told = FakeKernel::new();
    told.0.borrow_mut().step_us = 1;
    let mut driver = Driver::with_syscalls(Toy::default(), vec![socket()], told).unwrap();
    driver.set_budget(Budget {
        linger_us: 1_000,
        ..Budget::default()
    });
    driver.set_coalesce(false);
    driver.turn();
    let own = driver.sockets()[0].local();
    let elsewhere = socket();
    driver.machine_mut().say(0, own, b"news");
    driver.machine_mut().others = vec![elsewhere.local(); 2_000];
    driver.turn();
    let done = driver.udp_counters();
    assert!(driver.counters().lingered > 0 && done.sent >= 2_000, "{done:?}");
    assert!(done.receive_calls >= done.sent / SLICE_DATAGRAMS as u64, "{done:?}");
}

/// If a slice took no time, the round trips of its receivers would not show it.
#[test]
fn a_request_and_reply_within_one_turn_have_different_times() {
    let told = FakeKernel::new();
    told.0.borrow_mut().datagram_us = 1;
    let mut driver = Driver::with_syscalls(Toy::default(), vec![socket()], told.clone()).unwrap();
    driver.set_coalesce(false);
    let own = driver.sockets()[0].local();
    for _ in 0..3 * SLICE_DATAGRAMS {
        driver.machine_mut().say(0, own, b"question");
    }
    let asked_at = told.now();
    driver.turn();
    let heard_at = &driver.machine().received_at;
    assert!(heard_at.len() > SLICE_DATAGRAMS && heard_at.iter().all(|at| *at > asked_at));
    assert!(heard_at.is_sorted() && heard_at.last() > heard_at.first());
}

#[test]
fn slices_are_shorter_while_each_datagram_takes_long() {
    let told = FakeKernel::new();
    told.0.borrow_mut().sends = false;
    let mut driver = Driver::with_syscalls(Toy::default(), vec![socket(), socket()], told.clone()).unwrap();
    driver.set_coalesce(false);
    for _ in 0..100_000 {
        driver.machine_mut().say(0, loopback(20_000), b"backlog");
    }
    let mut slice = |datagram_us: Micros| {
        told.0.borrow_mut().datagram_us = datagram_us;
        for _ in 0..20 {
            driver.turn(); // until the slice has adapted its length
        }
        let before = driver.udp_counters().clone();
        driver.turn();
        let done = driver.udp_counters();
        (done.sent - before.sent) * 2 / (done.receive_calls - before.receive_calls)
    };
    assert_eq!(slice(1), SLICE_DATAGRAMS as u64);
    assert_eq!(slice(10), ROUND_US / 10);
    assert_eq!(slice(100), SLICE_MIN as u64, "checking the sockets costs time, too");
    assert_eq!(slice(1), SLICE_DATAGRAMS as u64);
}

#[test]
fn one_slow_slice_halves_the_next_at_most() {
    let told = FakeKernel::new();
    told.0.borrow_mut().sends = false;
    let mut driver = Driver::with_syscalls(Toy::default(), vec![socket()], told.clone()).unwrap();
    driver.set_coalesce(false);
    for _ in 0..1_000 {
        driver.machine_mut().say(0, loopback(20_000), b"backlog");
    }
    let sent = |driver: &mut Driver<Toy, FakeKernel>, datagram_us: Micros| {
        told.0.borrow_mut().datagram_us = datagram_us;
        let before = driver.udp_counters().sent;
        driver.turn();
        (driver.udp_counters().sent - before) as usize
    };
    assert_eq!(
        sent(&mut driver, 1_000),
        SLICE_DATAGRAMS,
        "another process had the processor"
    );
    assert_eq!(sent(&mut driver, 1_000), SLICE_DATAGRAMS / 2);
}

#[test]
fn a_flooded_socket_does_not_starve_its_neighbour() {
    let told = FakeKernel::new();
    let sockets = vec![socket(), socket()];
    let locals = [sockets[0].local(), sockets[1].local()];
    let mut driver = Driver::with_syscalls(Toy::default(), sockets, told.clone()).unwrap();
    // Every turn is over after its first batch.
    driver.set_budget(Budget {
        received_max: 1,
        ..Budget::default()
    });
    let (flood, quiet) = (friend(locals[0]), friend(locals[1]));
    for _ in 0..500 {
        flood.send(b"x").unwrap();
    }
    quiet.send(b"y").unwrap();
    driver.turn();
    driver.turn();
    assert!(driver.machine().received.contains(&(1, b"y".to_vec())));
}

#[test]
fn a_machine_that_promises_more_and_gives_nothing_is_not_asked_forever() {
    let (mut driver, ..) = told(Toy {
        cries_wolf: true,
        ..Toy::default()
    });
    assert_eq!(driver.turn(), Turn { more: false });
}

#[test]
fn a_blocked_send_is_resumed_when_there_is_room() {
    let (mut driver, told, local) = told(Toy::default());
    let friend = friend(local);
    let to = friend.local_addr().unwrap().into();
    driver.turn();
    for number in 0..70u8 {
        // Different sizes, so that they are not joined.
        driver.machine_mut().say(0, to, &vec![number; 1 + usize::from(number)]);
    }
    told.answer(&[Ok(5), Err(libc::EAGAIN)]);
    assert_eq!(driver.turn(), Turn { more: false });
    assert_eq!(
        (driver.pending(), driver.udp_counters().blocked),
        (SLICE_DATAGRAMS - 5, 1)
    );
    assert_eq!(
        driver.machine().waiting(),
        70 - SLICE_DATAGRAMS,
        "no new slice is filled meanwhile"
    );
    assert!(driver.wait(SOON), "the epoll reports the space");
    assert_eq!(driver.turn(), Turn { more: false });
    assert_eq!((driver.pending(), driver.machine().waiting()), (0, 0));
    let heard: Vec<u8> = heard(&friend).iter().map(|bytes| bytes[0]).collect();
    assert_eq!(heard, (0..70).collect::<Vec<u8>>());
    assert!(
        !driver.wait(Duration::ZERO),
        "the socket is no longer watched for space"
    );
}

#[test]
fn a_full_buffer_is_tried_once_a_turn_while_receiving_goes_on() {
    let (mut driver, told, local) = told(Toy::default());
    let friend = friend(local);
    for _ in 0..200 {
        friend.send(b"flood").unwrap();
    }
    told.answer(&[Err(libc::EAGAIN); 100]);
    driver.turn();
    assert_eq!(
        (driver.machine().received.len(), driver.udp_counters().send_calls),
        (200, 1)
    );
}

#[test]
fn datagrams_that_wait_too_long_behind_a_full_buffer_are_given_up_and_counted() {
    let (mut driver, told, local) = told(Toy::default());
    let friend = friend(local);
    let to = friend.local_addr().unwrap().into();
    driver.turn();
    for number in 0..10u8 {
        driver.machine_mut().say(0, to, &vec![number; 1 + usize::from(number)]);
    }
    told.answer(&[Ok(2), Err(libc::EAGAIN), Err(libc::EAGAIN)]);
    driver.turn();
    told.advance(AGE_MAX_US);
    driver.turn();
    assert_eq!(driver.pending(), 8);
    told.advance(1);
    driver.machine_mut().say(0, to, b"fresh");
    driver.turn();
    assert_eq!(
        (
            driver.udp_counters().lost_stale,
            driver.udp_counters().sent,
            driver.pending()
        ),
        (8, 3, 0)
    );
    assert_eq!(heard(&friend).last().unwrap(), b"fresh");
}

#[test]
fn a_full_device_queue_is_tried_again_after_a_while_and_not_before() {
    let (mut driver, told, local) = told(Toy::default());
    let friend = friend(local);
    driver.turn();
    driver.machine_mut().say(0, friend.local_addr().unwrap().into(), b"one");
    told.answer(&[Err(libc::ENOBUFS)]);
    assert_eq!(driver.turn(), Turn { more: false });
    assert_eq!(driver.due(), Some(told.now() + RETRY_US));
    told.advance(RETRY_US - 1);
    driver.turn();
    assert_eq!((driver.pending(), driver.udp_counters().send_calls), (1, 1));
    told.advance(1);
    driver.turn();
    assert_eq!((driver.pending(), heard(&friend)), (0, vec![b"one".to_vec()]));
}

#[test]
fn after_a_standstill_the_queue_is_discarded_and_the_machine_notified() {
    let (mut driver, told, local) = told(Toy::default());
    let friend = friend(local);
    driver.turn();
    for _ in 0..100 {
        friend.send(b"stale").unwrap();
    }
    told.advance(BEAT_US + STALL_US + 1);
    assert_eq!(driver.turn(), Turn { more: false });
    assert_eq!((driver.counters().stalls, driver.counters().discarded), (1, 100));
    assert_eq!(driver.machine().stalled_at, [told.now()]);
    assert!(driver.machine().received.is_empty());
    friend.send(b"fresh").unwrap();
    driver.turn();
    assert_eq!(driver.machine().received, [(0, b"fresh".to_vec())]);
    assert_eq!(driver.counters().stalls, 1);
}

#[test]
fn discarding_the_queue_is_no_standstill() {
    let (mut driver, told, _) = told(Toy::default());
    driver.turn();
    driver.machine_mut().say(0, loopback(20_000), b"news");
    told.advance(BEAT_US + STALL_US + 1);
    told.stop(1, STALL_US + 1);
    settle(&mut driver);
    assert!(told.0.borrow().jumps_us.is_empty());
    assert_eq!(driver.machine().stalled_at, [told.now()]);
    assert_eq!(driver.counters().stalls, 1);
}

#[test]
fn each_standstill_has_its_own_length() {
    let (mut driver, told, _) = told(Toy::default());
    driver.turn();
    for late in [3 * STALL_US, 2 * STALL_US] {
        told.advance(BEAT_US + late);
        driver.turn();
        assert_eq!(driver.counters().stalled_us, late);
    }
    assert_eq!(driver.take_late(), 3 * STALL_US);
}

#[test]
fn a_loop_that_is_merely_late_or_idle_discards_nothing() {
    let (mut driver, told, local) = told(Toy::default());
    let friend = friend(local);
    // A slow start before the first turn is no standstill, though there is something to do.
    driver.kick();
    told.advance(60_000_000);
    driver.turn();
    for _ in 0..4 {
        friend.send(b"late").unwrap();
        told.advance(BEAT_US + STALL_US);
        driver.turn();
    }
    assert_eq!((driver.counters().stalls, driver.machine().received.len()), (0, 4));
    assert_eq!(driver.counters().late_us_max, STALL_US);
}

#[test]
fn a_deadline_in_the_past_is_no_standstill() {
    let (mut driver, told, local) = told(Toy {
        impatient: true,
        ..Toy::default()
    });
    let friend = friend(local);
    driver.turn();
    for _ in 0..4 {
        friend.send(b"heard").unwrap();
        told.advance(STALL_US);
        driver.turn();
    }
    assert_eq!((driver.counters().stalls, driver.machine().received.len()), (0, 4));
}

#[test]
fn a_loop_that_leaves_work_undone_too_long_has_stood_still() {
    let (mut driver, told, local) = told(Toy::default());
    told.0.borrow_mut().sends = false;
    for _ in 0..5_000 {
        driver.machine_mut().say(0, loopback(20_000), b"backlog");
    }
    assert!(driver.turn().more);
    friend(local).send(b"stale").unwrap();
    told.advance(STALL_US + 1);
    driver.turn();
    assert_eq!((driver.counters().stalls, driver.counters().discarded), (1, 1));
}

#[test]
fn datagrams_received_before_a_standstill_are_discarded_after_it() {
    // As many as fill the slab, too.
    for count in 1..=128 {
        let (mut driver, told, local) = told(Toy::default());
        driver.set_budget(Budget {
            turn_us: 10 * STALL_US,
            ..Budget::default()
        });
        let friend = friend(local);
        driver.turn();
        for _ in 0..count {
            friend.send(b"stale").unwrap();
        }
        driver
            .machine_mut()
            .say(0, friend.local_addr().unwrap().into(), b"news");
        told.stop(1, STALL_US + 1);
        assert_eq!(driver.turn(), Turn { more: true }, "{count}");
        assert_eq!(driver.udp_counters().sent, 0, "before the machine knew");
        assert_eq!(driver.turn(), Turn { more: false });
        assert_eq!((driver.counters().stalls, driver.counters().discarded), (1, count));
        assert_eq!(driver.counters().stalled_us, STALL_US + 1);
        assert_eq!(driver.machine().stalled_at, [told.now()]);
        assert!(driver.machine().received.is_empty());
        friend.send(b"fresh").unwrap();
        driver.turn();
        assert_eq!(driver.machine().received, [(0, b"fresh".to_vec())]);
        assert_eq!((driver.counters().stalls, heard(&friend).len()), (1, 2));
    }
}

#[test]
fn datagrams_queued_during_a_standstill_in_a_batch_are_discarded() {
    let (mut driver, told, local) = told(Toy::default());
    let friend = friend(local);
    driver.turn();
    for _ in 0..200 {
        friend.send(b"x").unwrap();
    }
    told.stop(2, STALL_US + 1);
    assert_eq!(driver.turn(), Turn { more: true });
    let before = driver.machine().received.len();
    assert!((1..200).contains(&before), "{before}");
    settle(&mut driver);
    assert_eq!(driver.machine().received.len(), before);
    assert_eq!(driver.counters().discarded, 200 - before as u64);
    assert_eq!(driver.machine().stalled_at, [told.now()]);
}

#[test]
fn datagrams_queued_during_a_standstill_in_a_slice_are_discarded() {
    let (mut driver, told, local) = told(Toy::default());
    for _ in 0..2 * SLICE_DATAGRAMS {
        driver.machine_mut().say(0, local, b"stale");
    }
    told.0.borrow_mut().datagram_us = STALL_US + 1;
    assert_eq!(driver.turn(), Turn { more: true });
    told.0.borrow_mut().datagram_us = 0;
    assert_eq!(driver.machine().waiting(), SLICE_DATAGRAMS);
    driver.machine_mut().queue.clear();
    settle(&mut driver);
    assert!(driver.machine().received.is_empty());
    let counters = driver.counters();
    assert_eq!((counters.stalls, counters.discarded), (1, SLICE_DATAGRAMS as u64));
}

#[test]
fn a_standstill_anywhere_in_a_turn_is_noticed_once() {
    for (sockets, length) in [(1, STALL_US + 1), (3, BEAT_US + STALL_US + 1)] {
        let mut readings = 0;
        loop {
            let told = FakeKernel::new();
            told.0.borrow_mut().sends = false;
            let bound = (0..sockets).map(|_| socket()).collect();
            let mut driver = Driver::with_syscalls(Toy::default(), bound, told.clone()).unwrap();
            driver.turn();
            let friend = friend(driver.sockets()[0].local());
            for _ in 0..10 {
                friend.send(b"").unwrap();
            }
            for _ in 0..3_000 {
                driver.machine_mut().say(0, loopback(20_000), b"backlog");
            }
            driver.kick();
            told.stop(readings, length);
            assert!(driver.turn().more);
            if !told.0.borrow().jumps_us.is_empty() {
                break;
            }
            settle(&mut driver);
            assert_eq!(driver.counters().stalls, 1, "{sockets} sockets, reading {readings}");
            assert_eq!(driver.counters().stalled_us, length);
            assert_eq!(driver.machine().received.len() as u64 + driver.counters().discarded, 10);
            assert_eq!(driver.udp_counters().sent, 3_000);
            readings += 1;
        }
        assert!(readings > 30, "{readings}");
    }
}

/// A toy that accepts every datagram, however old.
struct Keen(Toy);

impl Machine for Keen {
    type Event = usize;

    const DISCARDS_STALE: bool = false;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        self.0.receive(now, inbox);
    }

    fn expire(&mut self, now: Micros) {
        self.0.expire(now);
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        self.0.transmit(now, outbox)
    }

    fn deadline(&self) -> Option<Micros> {
        self.0.deadline()
    }

    fn drain_events(&mut self, events: &mut Vec<usize>) {
        self.0.drain_events(events);
    }

    fn stalled(&mut self, now: Micros) {
        self.0.stalled(now);
    }

    fn behind(&mut self, now: Micros) {
        self.0.behind_at.push(now);
    }
}

#[test]
fn a_machine_that_keeps_old_datagrams_gets_them_before_its_timers_run() {
    const SOCKETS: usize = 600;
    let told = FakeKernel::new();
    let sockets: Vec<_> = (0..SOCKETS).map(|_| socket()).collect();
    let friends: Vec<_> = sockets.iter().map(|socket| friend(socket.local())).collect();
    let mut driver = Driver::with_syscalls(Keen(Toy::default()), sockets, told.clone()).unwrap();
    driver.set_budget(Budget {
        received_max: 100,
        ..Budget::default()
    });
    for round in 1..=3 {
        friends.iter().for_each(|friend| drop(friend.send(b"asked")));
        driver.machine_mut().0.next_tick = Some(told.now());
        let mut turns = 0;
        while driver.machine().0.ticks.len() < round {
            assert!(driver.machine().0.received.len() <= round * SOCKETS);
            driver.turn();
            turns += 1;
        }
        assert_eq!(driver.machine().0.received.len(), round * SOCKETS);
        assert!(turns > 2, "the budget cut none of {turns} turns");
    }
}

#[test]
fn a_machine_that_keeps_old_datagrams_gets_those_received_before_a_standstill() {
    let told = FakeKernel::new();
    let mut driver = Driver::with_syscalls(Keen(Toy::default()), vec![socket()], told.clone()).unwrap();
    let friend = friend(driver.sockets()[0].local());
    driver.turn();
    for _ in 0..200 {
        friend.send(b"asked").unwrap();
    }
    told.stop(1, STALL_US + 1);
    while driver.turn().more {}
    assert_eq!((driver.counters().stalls, driver.counters().discarded), (1, 0));
    assert_eq!((driver.machine().0.received.len(), heard(&friend).len()), (200, 200));
}

#[test]
fn a_machine_that_keeps_old_datagrams_runs_its_timers_though_the_sockets_stay_full() {
    let mut driver = Driver::new(Keen(Toy::default().ticking(0, 1)), vec![socket()]).unwrap();
    let own = driver.sockets()[0].local();
    (0..64).for_each(|_| driver.machine_mut().0.say(0, own, b"again"));
    for turn in 1..=20 {
        driver.turn();
        assert!(driver.machine().0.ticks.len() >= turn);
    }
    assert!(driver.machine().0.received.len() > 20);
}

#[test]
fn a_machine_that_keeps_old_datagrams_is_told_of_unread_ones() {
    for count in [1, 3] {
        let told = FakeKernel::new();
        let sockets: Vec<_> = (0..count).map(|_| socket()).collect();
        let friend = friend(sockets[0].local());
        let mut driver = Driver::with_syscalls(Keen(Toy::default()), sockets, told.clone()).unwrap();
        for (sent, all_heard) in [(40, true), (1_000, false), (10, true)] {
            (0..sent).for_each(|_| drop(friend.send(b"asked")));
            driver.machine_mut().0.behind_at.clear();
            driver.machine_mut().0.next_tick = Some(told.now());
            let before = driver.machine().0.ticks.len();
            while driver.machine().0.ticks.len() == before {
                driver.turn();
            }
            let toy = &driver.machine().0;
            assert_eq!(toy.behind_at.is_empty(), all_heard, "{sent} at {count} sockets");
            assert!(toy.behind_at.iter().all(|at| toy.ticks.contains(at)));
            while driver.turn().more {}
        }
    }
}

#[test]
fn hundreds_of_sockets_are_served_by_readiness() {
    let told = FakeKernel::new();
    let sockets: Vec<_> = (0..300).map(|_| socket()).collect();
    let locals: Vec<_> = sockets.iter().map(|socket| socket.local()).collect();
    let mut driver = Driver::with_syscalls(Toy::default(), sockets, told).unwrap();
    let friends: Vec<_> = locals.iter().map(|local| friend(*local)).collect();
    for (number, friend) in friends.iter().enumerate() {
        for part in 0..=number % 3 {
            friend.send(format!("{number}.{part}").as_bytes()).unwrap();
        }
    }
    settle(&mut driver);
    for (number, friend) in friends.iter().enumerate() {
        let wanted: Vec<_> = (0..=number % 3)
            .map(|part| format!("{number}.{part}").into_bytes())
            .collect();
        assert_eq!(heard(friend), wanted);
    }
}

#[test]
fn a_driver_may_move_to_another_thread() {
    let mut driver = Driver::new(Toy::default(), vec![socket()]).unwrap();
    let friend = friend(driver.sockets()[0].local());
    friend.send(b"ping").unwrap();
    std::thread::spawn(move || driver.turn()).join().unwrap();
    assert_eq!(heard(&friend), [b"ping"]);
}
