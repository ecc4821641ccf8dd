//! The thread that owns a store, with real time.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_journal::Options;
use muster_messages::keeper::{Answer, Ask, Keeper, Reply, Request};
use muster_messages::schedule::{Change, Incarnation, MessageId, Refusal, State, Step, NEVER};
use muster_messages::store::{Changed, Inserted, Settings, BODY_BYTES_MAX};

const LIMIT: Duration = Duration::from_secs(20);
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

/// Waits for so many replies.
fn replies(keeper: &Keeper, count: usize) -> Vec<Reply> {
    let (mut found, mut steps) = (Vec::new(), Vec::new());
    let limit = Instant::now() + LIMIT;
    while found.len() < count {
        assert!(Instant::now() < limit, "{} of {count} replies", found.len());
        keeper.take(&mut found, &mut steps).expect("the store works");
        std::thread::yield_now();
    }
    assert_eq!(found.len(), count);
    found
}

#[test]
fn messages_fire_when_due_and_no_sooner_and_not_beyond_the_credit() {
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
fn what_was_answered_is_there_after_the_thread_ended_and_began_again() {
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
fn bad_requests_are_answered_and_disturb_no_other() {
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
    assert_eq!(answers[&4], Answer::Changed(Changed::Ahead));
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
