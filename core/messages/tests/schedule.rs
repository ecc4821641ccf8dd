//! The life of a message: compared with its history, and through every interleaving of users, workers and time.

mod reference;

use muster_messages::schedule::{Ahead, Change, Due, Incarnation, Message, MessageId, Refusal, State, Step, NEVER};
use muster_messages::wheel::{Millis, DUE_MAX};
use proptest::prelude::*;
use reference::schedule::{Fact, History};

const ID: MessageId = MessageId(7);

fn time() -> impl Strategy<Value = Millis> {
    prop_oneof![20 => 0u64..100, 1 => Just(DUE_MAX), 1 => Just(u64::MAX), 1 => Just(DUE_MAX - 1)]
}

fn change() -> impl Strategy<Value = Change> {
    let claim = 1u32..12;
    prop_oneof![
        1 => Just(Change::Cancel),
        2 => time().prop_map(|at| Change::Reschedule(Due::At(at))),
        2 => time().prop_map(|at| Change::Reschedule(Due::Later(at))),
        2 => time().prop_map(|at| Change::Reschedule(Due::Sooner(at))),
        2 => (-60i64..60).prop_map(|by| Change::Reschedule(Due::By(by))),
        1 => any::<i64>().prop_map(|by| Change::Reschedule(Due::By(by))),
        8 => (0u64..3, time(), 1u16..4).prop_map(|(worker, until, attempts_max)| Change::Claim {
            worker: Incarnation(worker), until, attempts_max
        }),
        3 => claim.clone().prop_map(|claim| Change::Deliver { claim }),
        4 => (claim.clone(), prop::option::of(time())).prop_map(|(claim, next)| Change::Fail { claim, next }),
        3 => (claim.clone(), time()).prop_map(|(claim, next)| Change::Release { claim, next }),
        4 => (claim, time()).prop_map(|(claim, until)| Change::Extend { claim, until }),
        2 => time().prop_map(|at| Change::Wake { at }),
        2 => time().prop_map(|due_at| Change::Replay { due_at }),
        1 => Just(Change::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn message_agrees_with_its_history(
        due in 0u64..100,
        expires in prop_oneof![Just(NEVER), 0u64..120],
        steps in prop::collection::vec((0u64..20, change(), prop::option::weighted(0.2, 1u32..8), any::<bool>()), 1..40),
    ) {
        let mut message = Message::new(ID, due, expires);
        let mut history = History { accepted: message, facts: Vec::new() };
        let mut now = 0;
        for (passed, mut change, expected, live) in steps {
            now += passed;
            // Random claims have mostly ended: half of them use the live one.
            if live {
                match &mut change {
                    Change::Deliver { claim } | Change::Fail { claim, .. } | Change::Release { claim, .. } => {
                        *claim = message.version;
                    }
                    Change::Claim { until, .. } => *until = now + 10,
                    Change::Extend { claim, until } => {
                        *claim = message.version;
                        *until = now + 15;
                    }
                    _ => {}
                }
            }
            let before = message;
            let answer = message.apply(now, change, expected);
            prop_assert_eq!(answer, history.apply(now, change, expected), "{:?} at {}", change, now);
            if answer.is_err() {
                prop_assert_eq!(message, before, "a refusal changes nothing");
            }
            prop_assert_eq!(message.version, history.version());
            prop_assert_eq!(message.due_at, history.due_at());
            prop_assert_eq!(message.attempts as usize, history.attempts());
            let end = match message.state {
                State::Done => Some(Fact::Delivered),
                State::Dead => Some(Fact::Dead),
                State::Cancelled => Some(Fact::Cancelled),
                State::Expired => Some(Fact::Expired),
                _ => None,
            };
            prop_assert_eq!(history.end(), end);
            prop_assert_eq!(message.wake_at(), end.is_none().then(|| history.wake_at()));
        }
    }

    #[test]
    fn requests_ahead_act_like_requests_after(
        due in 1_000u64..2_000,
        asked in prop::collection::vec(prop_oneof![
            Just(Change::Cancel),
            (1_000u64..2_000).prop_map(|at| Change::Reschedule(Due::At(at))),
            (1_000u64..2_000).prop_map(|at| Change::Reschedule(Due::Later(at))),
            (1_000u64..2_000).prop_map(|at| Change::Reschedule(Due::Sooner(at))),
            (-100i64..100).prop_map(|by| Change::Reschedule(Due::By(by))),
        ], 1..6),
    ) {
        let mut ahead = Ahead::default();
        let mut later = Message::new(ID, due, NEVER);
        for change in &asked {
            // A refused request is not stored.
            if ahead.ask(*change).is_ok() {
                let _ = later.apply(0, *change, None);
            }
        }
        let mut sooner = Message::new(ID, due, NEVER);
        ahead.meet(&mut sooner);
        prop_assert_eq!(sooner.state, later.state);
        // After a cancel nothing fires, so the due time has no meaning.
        if later.state == State::Scheduled {
            prop_assert_eq!(sooner.due_at, later.due_at);
        }
    }
}

#[test]
fn postponement_to_a_sooner_time_and_advance_to_a_later_one_are_refused() {
    let mut message = Message::new(ID, 100, NEVER);
    let refused = |message: &mut Message, due| message.apply(0, Change::Reschedule(due), None).unwrap_err();
    assert_eq!(refused(&mut message, Due::Later(99)), Refusal::NotLater { at: 100 });
    assert_eq!(refused(&mut message, Due::Sooner(101)), Refusal::NotSooner { at: 100 });
    assert_eq!((message.due_at, message.version), (100, 1));
    message.apply(0, Change::Reschedule(Due::Later(150)), None).unwrap();
    message.apply(0, Change::Reschedule(Due::Sooner(120)), None).unwrap();
    assert_eq!(message.due_at, 120);
    // A message in retry moves from its next attempt: from its due time, 5 ms later would be now.
    let claim = Change::Claim {
        worker: Incarnation(1),
        until: 130,
        attempts_max: 3,
    };
    let Ok(Step::Claimed { claim }) = message.apply(120, claim, None) else {
        panic!("it is due");
    };
    let failed = Change::Fail {
        claim,
        next: Some(1_000),
    };
    message.apply(121, failed, None).unwrap();
    assert_eq!(refused(&mut message, Due::Later(500)), Refusal::NotLater { at: 1_000 });
    message.apply(121, Change::Reschedule(Due::By(5)), None).unwrap();
    assert_eq!(message.wake_at(), Some(1_005));
}

#[test]
fn times_requested_ahead_bound_the_messages_own() {
    let met = |asked: &[Due], due: Millis| {
        let mut ahead = Ahead::default();
        let told: Vec<_> = asked.iter().map(|due| ahead.ask(Change::Reschedule(*due))).collect();
        let mut message = Message::new(ID, due, NEVER);
        ahead.meet(&mut message);
        (message.due_at, told.into_iter().find_map(Result::err))
    };
    assert_eq!(met(&[Due::Later(100)], 50), (100, None));
    assert_eq!(met(&[Due::Later(100)], 200), (200, None));
    assert_eq!(met(&[Due::Sooner(100)], 50), (50, None));
    assert_eq!(met(&[Due::Sooner(100)], 200), (100, None));
    assert_eq!(met(&[Due::Later(100), Due::Sooner(70)], 50), (70, None));
    let refusal = Some(Refusal::NotSooner { at: 100 });
    assert_eq!(met(&[Due::Later(100), Due::Sooner(120)], 50), (100, refusal));
}

// ---- every interleaving

const DUE: Millis = 100;
const CLAIM_MS: Millis = 50;
const ATTEMPTS: u16 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Claim(usize),
    /// The worker returns from its callback, or from a pause.
    Finish(usize),
    /// The worker asks for more time.
    Extend(usize),
    Cancel,
    Postpone,
    Advance,
    Pass(Millis),
}

#[derive(Clone, Copy, Debug)]
enum Callback {
    Delivered,
    Failed,
    NotMade,
}

/// Observations of users and targets.
#[derive(Default)]
struct Seen {
    /// Times of claims, each with the due time at that moment.
    callbacks: Vec<(Millis, Millis)>,
    cancelled: bool,
    told_fired: bool,
    delivered: bool,
    ends: usize,
}

fn play(order: &[Event], callbacks: [Callback; 2]) {
    let mut message = Message::new(ID, DUE, NEVER);
    let mut seen = Seen::default();
    let mut claims = [None; 2];
    let mut now = 0;
    let act = |message: &mut Message, seen: &mut Seen, claims: &mut [Option<u32>; 2], now: Millis, event: Event| {
        let ended = message.state.is_terminal();
        match event {
            Event::Claim(worker) => {
                let wake_at = message.wake_at();
                let change = Change::Claim {
                    worker: Incarnation(worker as u64),
                    until: now + CLAIM_MS,
                    attempts_max: ATTEMPTS,
                };
                if let Ok(Step::Claimed { claim }) = message.apply(now, change, None) {
                    assert!(!seen.cancelled, "a message that was cancelled fires");
                    assert!(!seen.delivered, "a message that was delivered fires");
                    assert!(wake_at.is_some_and(|at| at <= now), "fires early");
                    seen.callbacks.push((now, message.due_at));
                    claims[worker] = Some(claim);
                }
            }
            Event::Finish(worker) => {
                if let Some(claim) = claims[worker].take() {
                    let change = match callbacks[worker] {
                        Callback::Delivered => Change::Deliver { claim },
                        Callback::Failed => Change::Fail {
                            claim,
                            next: (message.attempts < ATTEMPTS).then_some(now + 10),
                        },
                        Callback::NotMade => Change::Release { claim, next: now + 10 },
                    };
                    seen.delivered |= message.apply(now, change, None) == Ok(Step::Delivered);
                }
            }
            Event::Extend(worker) => {
                if let Some(claim) = claims[worker] {
                    let until = now + CLAIM_MS;
                    match message.apply(now, Change::Extend { claim, until }, None) {
                        Ok(step) => {
                            assert_eq!(step, Step::Extended { claim: claim + 1 });
                            assert_eq!(message.wake_at(), Some(until));
                            claims[worker] = Some(claim + 1);
                        }
                        Err(refusal) => assert_eq!(refusal, Refusal::ClaimLost),
                    }
                }
            }
            Event::Cancel => match message.apply(now, Change::Cancel, None) {
                Ok(_) => seen.cancelled = true,
                Err(refusal) => {
                    assert_eq!(refusal, Refusal::Fired);
                    assert!(!seen.callbacks.is_empty(), "reported a firing that did not happen");
                    seen.told_fired = true;
                }
            },
            Event::Postpone | Event::Advance => {
                let due_at = if event == Event::Postpone { now + 200 } else { now };
                match message.apply(now, Change::Reschedule(Due::At(due_at)), None) {
                    Ok(_) => assert_eq!(message.wake_at(), Some(due_at)),
                    Err(Refusal::Withdrawn) => assert!(seen.cancelled),
                    Err(refusal) => {
                        assert_eq!(refusal, Refusal::Fired);
                        assert!(!seen.callbacks.is_empty());
                    }
                }
            }
            Event::Pass(_) => {}
        }
        seen.ends += usize::from(!ended && message.state.is_terminal());
        assert!(!ended || message.state.is_terminal(), "an end is an end");
    };
    for event in order {
        if let Event::Pass(time) = event {
            now += time;
        }
        act(&mut message, &mut seen, &mut claims, now, *event);
    }
    // The remaining time: idle workers, and enough time.
    for _ in 0..20 {
        now += 100;
        act(&mut message, &mut seen, &mut claims, now, Event::Claim(0));
        act(&mut message, &mut seen, &mut claims, now, Event::Finish(0));
    }
    let always_released = matches!(callbacks[0], Callback::NotMade) && !message.state.is_terminal();
    assert!(always_released || seen.ends == 1, "{} ends: {message:?}", seen.ends);
    for (at, due_at) in &seen.callbacks {
        assert!(at >= due_at, "fired at {at}, due at {due_at}");
    }
    if seen.cancelled {
        assert_eq!(message.state, State::Cancelled);
    }
    if seen.told_fired && !seen.cancelled && !always_released {
        assert!(matches!(message.state, State::Done | State::Dead));
    }
}

/// Every order of `events` in which each worker claims before it finishes.
fn orders(events: &mut Vec<Event>, order: &mut Vec<Event>, found: &mut dyn FnMut(&[Event])) {
    if events.is_empty() {
        return found(order);
    }
    for at in 0..events.len() {
        let event = events[at];
        let too_soon =
            matches!(event, Event::Finish(worker) | Event::Extend(worker) if events.contains(&Event::Claim(worker)));
        if too_soon || events[..at].contains(&event) {
            continue;
        }
        events.remove(at);
        order.push(event);
        orders(events, order, found);
        order.pop();
        events.insert(at, event);
    }
}

#[test]
fn every_interleaving_has_one_outcome_and_none_is_early() {
    use Event::*;
    let mut played = 0;
    for passes in [
        [Pass(DUE), Pass(CLAIM_MS)],
        [Pass(DUE), Pass(CLAIM_MS - 1)],
        [Pass(DUE - 1), Pass(1)],
    ] {
        for first in [Callback::Delivered, Callback::Failed, Callback::NotMade] {
            for second in [Callback::Delivered, Callback::Failed, Callback::NotMade] {
                let mut events = vec![Claim(0), Claim(1), Finish(0), Finish(1), Cancel, Postpone, Advance];
                events.extend(passes);
                orders(&mut events, &mut Vec::new(), &mut |order| {
                    played += 1;
                    play(order, [first, second]);
                });
            }
        }
    }
    assert!(played > 1_000_000, "{played}");
}

#[test]
fn every_interleaving_with_extensions_has_one_outcome_and_no_two_live_claims() {
    use Event::*;
    let mut played = 0;
    for second in [Callback::Delivered, Callback::Failed, Callback::NotMade] {
        let mut events = vec![Claim(0), Claim(1), Finish(0), Finish(1), Extend(0), Extend(1), Cancel];
        events.extend([Pass(DUE), Pass(CLAIM_MS), Pass(CLAIM_MS - 1)]);
        orders(&mut events, &mut Vec::new(), &mut |order| {
            played += 1;
            play(order, [Callback::Delivered, second]);
        });
    }
    assert!(played > 1_000_000, "{played}");
}

#[test]
fn extension_keeps_the_claim_of_its_worker_from_others_and_names_another_version() {
    let mut message = Message::new(ID, DUE, NEVER);
    let claim = |worker, until| Change::Claim {
        worker: Incarnation(worker),
        until,
        attempts_max: 5,
    };
    let extend = |claim, until| Change::Extend { claim, until };
    assert_eq!(message.apply(DUE, extend(1, 200), None), Err(Refusal::ClaimLost));
    assert_eq!(message.apply(DUE, claim(1, 200), None), Ok(Step::Claimed { claim: 2 }));
    assert_eq!(
        message.apply(190, extend(2, 300), None),
        Ok(Step::Extended { claim: 3 })
    );
    assert_eq!(message.attempts, 1, "it is no attempt");
    assert_eq!(
        message.apply(250, claim(2, 400), None),
        Err(Refusal::Held { until: 300 })
    );
    assert_eq!(
        message.apply(250, Change::Deliver { claim: 2 }, None),
        Err(Refusal::ClaimLost),
        "of before the extension"
    );
    assert_eq!(message.apply(250, extend(3, 250), None), Err(Refusal::BadTime));
    assert_eq!(message.apply(250, extend(3, DUE_MAX), None), Err(Refusal::BadTime));
    // Past its end the claim stands until another is won.
    assert_eq!(
        message.apply(310, extend(3, 400), None),
        Ok(Step::Extended { claim: 4 })
    );
    assert_eq!(message.apply(400, claim(2, 500), None), Ok(Step::Claimed { claim: 5 }));
    assert_eq!(message.apply(401, extend(4, 600), None), Err(Refusal::ClaimLost));
    assert_eq!(message.attempts, 2);
}

#[test]
fn claim_that_ran_out_goes_to_another_worker_and_the_first_has_lost_it() {
    let mut message = Message::new(ID, DUE, NEVER);
    let claim = |worker, until| Change::Claim {
        worker: Incarnation(worker),
        until,
        attempts_max: 5,
    };
    assert_eq!(
        message.apply(DUE - 1, claim(1, 500), None),
        Err(Refusal::Early { at: DUE })
    );
    assert_eq!(message.apply(DUE, claim(1, 200), None), Ok(Step::Claimed { claim: 2 }));
    assert_eq!(
        message.apply(199, claim(2, 300), None),
        Err(Refusal::Held { until: 200 })
    );
    assert_eq!(message.apply(200, claim(2, 300), None), Ok(Step::Claimed { claim: 3 }));
    assert_eq!(
        message.apply(201, Change::Deliver { claim: 2 }, None),
        Err(Refusal::ClaimLost)
    );
    assert_eq!(
        message.apply(201, Change::Deliver { claim: 3 }, None),
        Ok(Step::Delivered)
    );
    assert_eq!(message.attempts, 2);
}

#[test]
fn message_whose_workers_always_vanish_is_buried() {
    let mut message = Message::new(ID, DUE, NEVER);
    let claim = |until| Change::Claim {
        worker: Incarnation(1),
        until,
        attempts_max: 2,
    };
    assert!(matches!(message.apply(100, claim(200), None), Ok(Step::Claimed { .. })));
    assert!(matches!(message.apply(200, claim(300), None), Ok(Step::Claimed { .. })));
    assert_eq!(message.apply(300, claim(400), None), Ok(Step::Buried));
    assert_eq!(message.state, State::Dead);
}
