//! Arrays of fires, results and new messages, and how a ledger handles them.

use muster_messages::ledger::{Ledger, Said};
use muster_messages::schedule::NEVER;
use muster_messages::wire::{envelope, fires, new_messages, outcomes, Fire, Frame, Outcome, Verb};
use proptest::prelude::*;

fn fire(number: u64, topic: u32, due_at: u64) -> Fire<'static> {
    Fire {
        number,
        topic,
        claim: 3,
        until: 60_000,
        due_at,
        attempts: 1,
        envelope: b"body",
    }
}

fn outcome(number: u64, verb: Verb, next: Option<u64>) -> Outcome<'static> {
    Outcome {
        number,
        topic: 1,
        claim: 3,
        verb,
        next,
        lateness_ms: 4,
        took_ms: 1.5,
        outcome: "delivered",
        status: Some(200),
        answer: b"",
    }
}

proptest! {
    #[test]
    fn pushed_records_are_read_back(
        numbers in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u64>(), any::<i64>(), any::<Option<u64>>()), 0..50),
        text in ".{0,40}",
        body in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut frames = (Frame::default(), Frame::default());
        let (mut given_fires, mut given) = (Vec::new(), Vec::new());
        for (number, topic, time, lateness_ms, next) in &numbers {
            let one = Fire { number: *number, topic: *topic, claim: *topic, until: *time, due_at: *time, attempts: 3, envelope: &body };
            let other = Outcome {
                number: *number, topic: *topic, claim: *topic, verb: Verb::Fail, next: *next, lateness_ms: *lateness_ms,
                took_ms: *lateness_ms as f64 / 7.0, outcome: &text, status: Some(*topic as u16), answer: &body,
            };
            frames.0.push_fire(&one);
            frames.1.push_outcome(&other);
            given_fires.push(one);
            given.push(other);
        }
        let arrays = (frames.0.finish(), frames.1.finish());
        prop_assert_eq!(fires(&arrays.0).unwrap(), given_fires);
        prop_assert_eq!(outcomes(&arrays.1).unwrap(), given);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (fires(&bytes), outcomes(&bytes), new_messages(&bytes), envelope(&bytes));
    }
}

#[test]
fn arrays_written_by_programs_are_read() {
    // [[7, 1, 1000, nil, b"x"]], ["id", "", "text/plain", 5, b"hi"]
    let new = new_messages(b"\x91\x95\x07\x01\xcd\x03\xe8\xc0\xc4\x01x").unwrap();
    assert_eq!(
        (new[0].number, new[0].due_at, new[0].expires_at, new[0].body),
        (7, 1_000, NEVER, &b"x"[..])
    );
    let read = envelope(b"\x95\xa2id\xa0\xaatext/plain\x05\xc4\x02hi").unwrap();
    assert_eq!(
        (read.id, read.target, read.kind, read.body),
        ("id", "", "text/plain", &b"hi"[..])
    );
    assert!(envelope(b"\x94\xa2id\xa0\xa0\x05").is_err());
}

#[test]
fn a_ledger_counts_claims_until_they_end_or_run_out() {
    let mut ledger = Ledger::default();
    let begun = ledger.begin(&[fire(1, 1, 0), fire(2, 1, 900), fire(3, 2, 900)], 1_000, 500);
    let counts: Vec<_> = begun
        .iter()
        .map(|each| (each.topic, each.count, each.overdue))
        .collect();
    assert_eq!(counts, [(1, 2, 1), (2, 1, 0)]);
    assert_eq!(
        (ledger.len(), ledger.held(1), ledger.held(2), ledger.held(9)),
        (3, 2, 1, 0)
    );
    // Another claim of the same message replaces it.
    ledger.begin(
        &[Fire {
            claim: 4,
            until: 90_000,
            ..fire(3, 2, 900)
        }],
        1_000,
        500,
    );
    assert_eq!(ledger.held(2), 1);
    let told = [
        outcome(1, Verb::Deliver, None),
        outcome(2, Verb::Release, Some(70_000)),
        outcome(3, Verb::Deliver, None),
    ];
    let sums = ledger.settle(
        &told,
        &[Said::Delivered, Said::Released, Said::Refused],
        1_000,
        5_000,
        &[3, 4],
    );
    assert_eq!(
        (sums[0].attempts, sums[0].fired, sums[0].took_ms, sums[0].freed),
        (2, 1, 3.0, true)
    );
    assert_eq!(sums[0].late, [0, 2, 0]);
    // The released one keeps its slot until 5 s before it is due; the refused claim was not the ledger's.
    assert_eq!((ledger.held(1), ledger.held(2)), (1, 1));
    assert!(ledger.sweep(65_000).is_empty());
    assert_eq!(ledger.sweep(65_001), [1]);
    assert_eq!(ledger.drain(), [(3, 4)]);
    assert!(ledger.is_empty());
}

#[test]
fn a_repeated_result_changes_nothing() {
    let mut ledger = Ledger::default();
    ledger.begin(&[fire(1, 1, 0)], 0, 500);
    let sums = ledger.settle(&[outcome(1, Verb::Deliver, None)], &[Said::NotNow], 0, 0, &[]);
    assert_eq!((sums.len(), ledger.held(1)), (0, 1));
}
