//! The engine against plain lists: every answer, live, restored and replayed.

mod model;
#[cfg(feature = "planted")]
mod planted;

use model::{check, steps};
use muster_likes::{Answer, ApplyError, Engine, Options, Record, RestoreError};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_answer_is_that_of_plain_lists(steps in steps()) {
        prop_assert_eq!(check(&steps), Ok(()));
    }
}

fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

fn like(key: &[u8], user: u64) -> Vec<u8> {
    encoded(&Record::Set {
        at_ms: 1_790_000_000_000,
        key,
        user,
        likes: true,
    })
}

#[test]
fn record_that_is_not_next_is_refused() {
    let mut engine = Engine::default();
    assert_eq!(
        engine.apply(1, &like(b"a", 1)),
        Err(ApplyError::Gap { expected: 0, found: 1 })
    );
    assert_eq!(engine.apply(0, b"nonsense"), Err(ApplyError::Malformed(0)));
    assert_eq!(engine.apply(1, &like(b"a", 1)), Err(ApplyError::NoDenseId(1)));
    assert_eq!(
        engine.apply(2, &encoded(&Record::Segment { first: 0, ids: 1 })),
        Ok(Answer::Done)
    );
    assert_eq!(
        engine.apply(3, &encoded(&Record::Segment { first: 0, ids: 1 })),
        Err(ApplyError::SegmentTaken(3))
    );
    assert_eq!(engine.apply(4, &like(b"a", 1)), Ok(Answer::Was(false)));
    assert_eq!(engine.apply(5, &like(b"a", 2)), Err(ApplyError::NoDenseId(5)));
    assert_eq!((engine.count(b"a"), engine.offset()), (1, 6));
}

#[test]
fn damaged_snapshot_is_refused() {
    let mut engine = Engine::default();
    engine
        .apply(0, &encoded(&Record::Segment { first: 0, ids: 9 }))
        .unwrap();
    engine.apply(1, &like(b"share:1", 1)).unwrap();
    let snapshot = engine.snapshot();
    for at in 8..snapshot.len() {
        let mut spoilt = snapshot.clone();
        spoilt[at] ^= 4;
        assert_eq!(
            Engine::restore(&spoilt, Options::default()).err(),
            Some(RestoreError::Damaged),
            "byte {at}"
        );
    }
    for len in 8..snapshot.len() {
        assert!(
            Engine::restore(&snapshot[..len], Options::default()).is_err(),
            "{len} bytes"
        );
    }
    assert_eq!(
        Engine::restore(b"", Options::default()).err(),
        Some(RestoreError::OtherFormat)
    );
}

#[test]
fn rankings_of_many_items_stay_exact_through_splits_and_idleness() {
    let mut engine = Engine::default();
    engine
        .apply(0, &encoded(&Record::Segment { first: 0, ids: 1_000 }))
        .unwrap();
    let keys: Vec<Vec<u8>> = (0..3_000).map(|item| format!("share:{item}").into_bytes()).collect();
    let mut counts = vec![0_u64; keys.len()];
    let mut random = 9_u64;
    let mut offset = 1;
    for round in 0..20 {
        for _ in 0..2_000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            // Squared, so that counts differ.
            let share = (random >> 40) as f64 / (1_u64 << 24) as f64;
            let item = (share * share * keys.len() as f64) as usize;
            let (user, likes) = (random >> 8 & 511, random >> 33 & 7 != 0);
            let record = Record::Set {
                at_ms: 1_790_000_000_000 + offset,
                key: &keys[item],
                user,
                likes,
            };
            let answer = engine.apply(offset, &encoded(&record)).unwrap();
            offset += 1;
            match answer {
                Answer::Was(was) if was != likes => counts[item] = counts[item] + u64::from(likes) - u64::from(was),
                _ => {}
            }
        }
        let mut wanted: Vec<(u64, &[u8])> = counts.iter().copied().zip(keys.iter().map(|key| &key[..])).collect();
        wanted.retain(|(count, _)| *count > 0);
        wanted.sort_unstable_by(|a, b| b.cmp(a));
        for ranking in [&b"rank"[..], b"rank:share"] {
            assert_eq!(engine.ranking_len(ranking), wanted.len());
            let from = round * 100;
            let page = engine.page(ranking, from, 50, 0);
            let page: Vec<(u64, &[u8])> = page.iter().map(|ranked| (ranked.score as u64, ranked.key)).collect();
            assert_eq!(page, wanted.iter().skip(from).take(50).copied().collect::<Vec<_>>());
            for (rank, (_, key)) in wanted.iter().enumerate().step_by(97) {
                assert_eq!(engine.rank(ranking, key), Some(rank));
            }
        }
    }
}

#[test]
fn changed_items_are_told_once_with_their_newest_count() {
    let mut engine = Engine::default();
    let mut offset = 0;
    let mut apply = |engine: &mut Engine, record: &[u8]| {
        engine.apply(offset, record).unwrap();
        offset += 1;
    };
    apply(&mut engine, &encoded(&Record::Segment { first: 0, ids: 9 }));
    apply(&mut engine, &like(b"a", 1));
    assert_eq!(engine.changed_items(9), (vec![], false), "nobody watches yet");
    engine.watch();
    for (key, user) in [(b"a", 2), (b"b", 1), (b"a", 3), (b"c", 1)] {
        apply(&mut engine, &like(key, user));
    }
    let delete = |key| encoded(&Record::Delete { at_ms: 0, key });
    apply(&mut engine, &delete(b"b"));
    apply(&mut engine, &like(b"d", 1)); // takes the slot of b
    let (first, _) = engine.changed_items(2);
    assert_eq!(first, [(b"b".to_vec(), None), (b"a".to_vec(), Some(3))]);
    apply(&mut engine, &like(b"a", 4));
    let (rest, lost) = engine.changed_items(9);
    assert_eq!(
        rest,
        [
            (b"d".to_vec(), Some(1)),
            (b"c".to_vec(), Some(1)),
            (b"a".to_vec(), Some(4))
        ]
    );
    assert!(!lost);
    assert_eq!(engine.changed_items(9), (vec![], false));
}

#[test]
fn marks_below_an_offset_go_together() {
    let mut engine = Engine::default();
    for (offset, record) in [
        encoded(&Record::Segment { first: 0, ids: 9 }),
        like(b"a", 1),
        like(b"b", 1),
        encoded(&Record::Delete { at_ms: 0, key: b"b" }),
        like(b"c", 1),
    ]
    .iter()
    .enumerate()
    {
        engine.apply(offset as u64, record).unwrap();
    }
    assert_eq!(engine.dirty_len(), 3);
    engine.written_below(4);
    let (_, rows) = engine.rows(0, 9, usize::MAX);
    let keys: Vec<_> = rows.iter().map(|row| &row.key[..]).collect();
    assert_eq!(keys, [b"c"]);
}
