//! The thread that owns a store, with real time.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_journal::Options;
use muster_messages::keeper::{Answer, Ask, Keeper, Reply, Request};
use muster_messages::schedule::{Ahead, Change, Due, Incarnation, MessageId, Refusal, State, Step, NEVER};
use muster_messages::store::{Changed, Filter, Inserted, Listing, Settings, BODY_BYTES_MAX};

/// Longer than any reply takes, even on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(100);
const WORKER: Incarnation = Incarnation(3);

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn start(path: &Path) -> Keeper {
    let options = Options {
        segment_bytes: 8 << 20,
        ..Options::default()
    };
    Keeper::start(path.to_path_buf(), options, Settings::default()).expect("the store opens")
}

fn insert(number: u64, due_at: u64) -> Request {
    let ask = Ask::Insert {
        id: MessageId(number),
        topic: 1,
        due_at,
        expires_at: NEVER,
        body: number.to_le_bytes().to_vec(),
    };
    Request { number, ask }
}

fn serve(number: u64, credit: usize) -> Request {
    let ask = Ask::Serve {
        topic: 1,
        worker: WORKER,
        lease_ms: 60_000,
        attempts_max: 6,
        credit,
    };
    Request { number, ask }
}

fn change(number: u64, id: u64, change: Change) -> Request {
    let ask = Ask::Change {
        id: MessageId(id),
        change,
        expected: None,
    };
    Request { number, ask }
}

/// Waits for this many replies.
fn replies(keeper: &Keeper, count: usize) -> Vec<Reply> {
    let (mut found, mut steps) = (Vec::new(), Vec::new());
    let limit = Instant::now() + LIMIT;
    while found.len() < count {
        assert!(Instant::now() < limit, "{} of {count} replies", found.len());
        keeper.take(&mut found, &mut steps).expect("the store works");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(found.len(), count);
    found
}

#[test]
fn messages_fire_when_due_and_within_the_credit() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = start(folder.path());
    let base = now();
    keeper.submit((0..100).map(|number| insert(number, base + 100 + number * 3)).collect());
    for reply in replies(&keeper, 100) {
        assert!(matches!(reply.answer, Answer::Inserted(Inserted::New(_))), "{reply:?}");
    }
    keeper.submit(vec![serve(1_000, 60)]);
    let mut fired = HashMap::new();
    for (credit, expected) in [(0, 60), (100, 40)] {
        if credit > 0 {
            keeper.submit(vec![serve(1_001, credit)]);
        }
        for reply in replies(&keeper, expected) {
            let Answer::Fire {
                message, claim, body, ..
            } = reply.answer
            else {
                panic!("{reply:?}")
            };
            assert!(message.due_at <= now(), "early");
            assert_eq!(body, message.id.0.to_le_bytes());
            assert!(fired.insert(message.id.0, claim).is_none());
        }
    }
    keeper.submit(
        fired
            .iter()
            .map(|(id, claim)| change(*id, *id, Change::Deliver { claim: *claim }))
            .collect(),
    );
    for reply in replies(&keeper, 100) {
        assert!(
            matches!(reply.answer, Answer::Changed(Changed::Done(Step::Delivered, _))),
            "{reply:?}"
        );
    }
    keeper.submit(vec![change(1, 5, Change::Cancel)]);
    assert_eq!(replies(&keeper, 1)[0].answer, Answer::Refused(Refusal::Fired));
}

#[test]
fn confirmed_changes_survive_a_restart_of_the_thread() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = start(folder.path());
    let due_at = now() + 3_600_000;
    let mut requests: Vec<Request> = (0..2_000).map(|number| insert(number, due_at)).collect();
    requests.push(change(2_000, 7, Change::Cancel));
    keeper.submit(requests);
    replies(&keeper, 2_001);
    drop(keeper);
    let keeper = start(folder.path());
    let whole = |keeper: &Keeper| {
        keeper.submit(vec![Request {
            number: 0,
            ask: Ask::Stats,
        }]);
        matches!(replies(keeper, 1)[0].answer, Answer::Stats(stats) if stats.whole)
    };
    while !whole(&keeper) {}
    keeper.submit(
        (0..2_000)
            .map(|id| Request {
                number: id,
                ask: Ask::Get { id: MessageId(id) },
            })
            .collect(),
    );
    for reply in replies(&keeper, 2_000) {
        let Answer::Found(Some((message, 1, body))) = reply.answer else {
            panic!("{reply:?}")
        };
        assert_eq!(body, reply.number.to_le_bytes());
        let expected = if reply.number == 7 {
            State::Cancelled
        } else {
            State::Scheduled
        };
        assert_eq!(message.state, expected);
    }
}

#[test]
fn bad_requests_are_refused_without_effect_on_others() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = start(folder.path());
    let long = Ask::Insert {
        id: MessageId(1),
        topic: 1,
        due_at: now(),
        expires_at: NEVER,
        body: vec![0; BODY_BYTES_MAX + 1],
    };
    let absurd = insert(2, u64::MAX);
    let unknown = change(3, 99, Change::Deliver { claim: 1 });
    let ahead = change(4, 100, Change::Cancel);
    keeper.submit(vec![
        Request { number: 1, ask: long },
        absurd,
        unknown,
        ahead,
        insert(5, now()),
    ]);
    let answers: HashMap<u64, Answer> = replies(&keeper, 5)
        .into_iter()
        .map(|reply| (reply.number, reply.answer))
        .collect();
    assert_eq!(answers[&1], Answer::BodyTooLong);
    assert_eq!(answers[&2], Answer::Refused(Refusal::BadTime));
    assert_eq!(answers[&3], Answer::Refused(Refusal::Unknown));
    assert_eq!(
        answers[&4],
        Answer::Changed(Changed::Ahead(Ahead {
            cancelled: true,
            ..Ahead::default()
        }))
    );
    assert!(matches!(answers[&5], Answer::Inserted(Inserted::New(_))));
}

#[test]
fn long_bodies_fill_many_groups() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = start(folder.path());
    let big = |number| {
        let body = vec![number as u8; 900_000];
        Request {
            number,
            ask: Ask::Insert {
                id: MessageId(number),
                topic: 1,
                due_at: now(),
                expires_at: NEVER,
                body,
            },
        }
    };
    keeper.submit((0..20).map(big).chain([serve(99, 20)]).collect());
    let replies = replies(&keeper, 40);
    let fired = replies
        .iter()
        .filter(|reply| matches!(&reply.answer, Answer::Fire { body, .. } if body.len() == 900_000));
    assert_eq!(fired.count(), 20);
}

fn listed(keeper: &Keeper, filter: Filter) -> Listing {
    keeper.submit(vec![Request {
        number: 9_000,
        ask: Ask::List(filter),
    }]);
    match replies(keeper, 1).remove(0).answer {
        Answer::Listed(listing) => listing,
        other => panic!("{other:?}"),
    }
}

fn all(topic: u32) -> Filter {
    Filter {
        topic: Some(topic),
        from: 0,
        to: u64::MAX,
        scheduled: true,
        firing: true,
        done: true,
        dead: true,
        withdrawn: true,
        after: None,
        limit: 1_000,
    }
}

#[test]
fn listing_returns_the_earliest_messages_and_counts_all() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = start(folder.path());
    let base = now();
    // In this hour, and in later ones that are not loaded.
    let due = |number: u64| base + 60_000 + number * 1_200_000;
    keeper.submit((0..20).map(|number| insert(number, due(number))).collect());
    replies(&keeper, 20);
    keeper.submit(vec![
        change(100, 3, Change::Cancel),
        change(101, 4, Change::Reschedule(Due::At(due(30)))),
    ]);
    replies(&keeper, 2);
    let live = Filter {
        withdrawn: false,
        limit: 5,
        ..all(1)
    };
    let found = listed(&keeper, live);
    let ids: Vec<u64> = found.messages.iter().map(|(message, _)| message.id.0).collect();
    assert_eq!(ids, [0, 1, 2, 5, 6]);
    assert_eq!(found.times.len(), 19);
    assert_eq!(found.times.last(), Some(&due(30)));
    assert!(found.times.is_sorted() && !found.cut);
    let next = Filter {
        after: Some((due(6), MessageId(6))),
        ..live
    };
    let page = listed(&keeper, next);
    let ids: Vec<u64> = page.messages.iter().map(|(message, _)| message.id.0).collect();
    assert_eq!(ids, [7, 8, 9, 10, 11]);
    assert_eq!(page.times.len(), 19);
    let some = Filter {
        from: due(18),
        to: due(19) + 1,
        ..live
    };
    assert_eq!(listed(&keeper, some).times, [due(18), due(19)]);
    let withdrawn = Filter {
        scheduled: false,
        withdrawn: true,
        ..live
    };
    let gone = listed(&keeper, withdrawn);
    assert_eq!(gone.messages[0].0.state, State::Cancelled);
    assert_eq!(gone.times, [due(3)]);
    assert!(listed(&keeper, all(2)).messages.is_empty());
}

#[test]
fn worker_that_left_gets_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = start(folder.path());
    keeper.submit(vec![serve(1, 10)]);
    keeper.submit(vec![Request {
        number: 0,
        ask: Ask::Leave { worker: WORKER },
    }]);
    let due_at = now();
    keeper.submit(vec![insert(2, due_at)]);
    assert_eq!(replies(&keeper, 1)[0].number, 2);
    // The next worker that asks gets it: the credit of the one that left did not claim it.
    let other = Request {
        number: 3,
        ask: Ask::Serve {
            topic: 1,
            worker: Incarnation(4),
            lease_ms: 60_000,
            attempts_max: 6,
            credit: 1,
        },
    };
    keeper.submit(vec![other]);
    let reply = replies(&keeper, 1).remove(0);
    assert_eq!(reply.number, 3);
    let Answer::Fire { message, .. } = reply.answer else {
        panic!("{reply:?}")
    };
    assert!(matches!(
        message.state,
        State::Firing {
            worker: Incarnation(4),
            ..
        }
    ));
}

#[test]
fn many_are_answered_together_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = start(folder.path());
    let due_at = now() + 300_000; // near enough that the next opening knows them at once
                                  // More than one group holds: parts of it become durable before the rest.
    let body = vec![7; 300_000];
    let big = |number: u64| Ask::Insert {
        id: MessageId(number),
        topic: 1,
        due_at,
        expires_at: NEVER,
        body: body.clone(),
    };
    let mut asks: Vec<Ask> = (0..40).map(big).collect();
    asks.push(big(7));
    asks.push(change(0, 8, Change::Cancel).ask);
    asks.push(change(0, 9, Change::Deliver { claim: 1 }).ask);
    keeper.submit(vec![Request {
        number: 77,
        ask: Ask::Many(asks),
    }]);
    let reply = replies(&keeper, 1).remove(0);
    assert_eq!(reply.number, 77);
    let Answer::Many(answers) = reply.answer else {
        panic!("{reply:?}")
    };
    assert_eq!(answers.len(), 43);
    for (number, answer) in answers[..40].iter().enumerate() {
        assert!(
            matches!(answer, Answer::Inserted(Inserted::New(message)) if message.id.0 == number as u64),
            "{number}"
        );
    }
    assert!(matches!(answers[40], Answer::Inserted(Inserted::Before(_))));
    assert!(matches!(
        answers[41],
        Answer::Changed(Changed::Done(Step::Cancelled, _))
    ));
    assert_eq!(answers[42], Answer::Refused(Refusal::ClaimLost));
    drop(keeper);
    let keeper = start(folder.path());
    for number in 0..40 {
        let message = loop {
            keeper.submit(vec![get(number, number)]);
            match replies(&keeper, 1).remove(0).answer {
                Answer::Found(Some((message, ..))) => break message,
                Answer::Rebuilding => {}
                other => panic!("{number}: {other:?}"),
            }
        };
        assert_eq!(message.state == State::Cancelled, message.id.0 == 8);
    }
}

fn get(number: u64, id: u64) -> Request {
    let ask = Ask::Get { id: MessageId(id) };
    Request { number, ask }
}
