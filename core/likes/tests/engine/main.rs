//! The engine compared with plain lists: every result, live, restored and replayed.

mod model;

use model::{check, steps, Step};
use muster_likes::{
    Answer, ApplyError, Engine, ExportCursor, Exported, Options, Phase, Record, RestoreError, Row, RowError,
    ERASURES_LISTED_MAX, ERASURES_MAX, NEWEST_MAX,
};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_result_agrees_with_plain_lists(steps in steps()) {
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
fn changed_items_are_reported_once_with_their_newest_count() {
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
    apply(&mut engine, &like(b"d", 1)); // reuses the slot of b
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

/// Applies records one after another.
struct Log(Engine);

impl Log {
    fn with_ids(ids: u32) -> Log {
        let mut log = Log(Engine::default());
        log.apply(&Record::Segment { first: 0, ids });
        log
    }

    fn apply(&mut self, record: &Record) {
        self.0.apply(self.0.offset(), &encoded(record)).unwrap();
    }

    fn set(&mut self, key: &[u8], user: u64, likes: bool) {
        self.apply(&Record::Set {
            at_ms: 1_790_000_000_000,
            key,
            user,
            likes,
        });
    }
}

#[test]
fn newest_likers_never_run_out_while_likers_remain() {
    let mut log = Log::with_ids(1_000);
    for user in 0..200 {
        log.set(b"share:1", user, true);
    }
    for taken in 0..200_u64 {
        log.set(b"share:1", 199 - taken, false);
        let newest = log.0.newest(b"share:1", 100);
        let wanted: Vec<u64> = (0..199 - taken).rev().take(NEWEST_MAX).collect();
        assert_eq!(newest, wanted, "{taken} took their likes back");
    }
    for user in [5, 3, 900, 4] {
        log.set(b"share:1", user, true);
    }
    log.set(b"share:1", 900, false);
    assert_eq!(log.0.newest(b"share:1", 100), [4, 3, 5]);
}

#[test]
fn state_comes_back_from_rows_alone_with_every_like() {
    let mut log = Log::with_ids(70_000);
    let mut random = 5_u64;
    for _ in 0..20_000 {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let (item, user) = (random >> 60, random >> 20 & 8_191);
        log.set(format!("share:{item}").as_bytes(), user << 30, random >> 33 & 3 != 0);
    }
    log.apply(&Record::Delete {
        at_ms: 0,
        key: b"share:3",
    });
    let (_, rows) = log.0.rows(0, usize::MAX, usize::MAX);
    let mut back = Engine::default();
    for (dense, user) in log.0.users_from(0) {
        back.take_user(dense, user.unwrap()).unwrap();
        back.take_user(dense, user.unwrap()).unwrap();
    }
    for row in rows.iter().chain(&rows) {
        back.take_row(row).unwrap();
    }
    back.skip_to(log.0.offset());
    let mut back = Engine::restore(&back.snapshot(), Options::default()).unwrap();
    assert_eq!((back.offset(), back.user_count()), (log.0.offset(), log.0.user_count()));
    assert_eq!(
        (back.like_count(), back.item_count()),
        (log.0.like_count(), log.0.item_count())
    );
    for item in 0..16 {
        let key = format!("share:{item}").into_bytes();
        assert!(back.likers(&key).eq(log.0.likers(&key)), "share:{item}");
        assert_eq!(back.modification(&key), log.0.modification(&key));
        assert_eq!(back.rank(b"rank:share", &key), log.0.rank(b"rank:share", &key));
    }
    for user in (0..8_192).step_by(97) {
        let sorted = |engine: &Engine| {
            let mut items: Vec<Vec<u8>> = engine
                .items_of(user << 30, 0, 100)
                .into_iter()
                .map(<[u8]>::to_vec)
                .collect();
            items.sort();
            items
        };
        assert_eq!(sorted(&back), sorted(&log.0), "user {user}");
    }
}

#[test]
fn row_advances_an_older_state_and_never_reverts_a_newer_one() {
    let mut log = Log::with_ids(100);
    for user in 0..9 {
        log.set(b"share:1", user, true);
    }
    log.set(b"gone:1", 1, true);
    let snapshot = log.0.snapshot();
    log.set(b"share:1", 0, false);
    log.set(b"share:1", 20, true);
    log.apply(&Record::Delete {
        at_ms: 0,
        key: b"gone:1",
    });
    let (_, rows) = log.0.rows(0, usize::MAX, usize::MAX);
    let mut older = Engine::restore(&snapshot, Options::default()).unwrap();
    let unknown = rows.iter().find_map(|row| older.take_row(row).err());
    assert_eq!(unknown, Some(RowError::UnknownUser(9)), "users come first");
    for (dense, user) in log.0.users_from(9) {
        older.take_user(dense, user.unwrap()).unwrap();
    }
    let taken: Vec<bool> = rows.iter().map(|row| older.take_row(row).unwrap()).collect();
    assert!(taken.iter().any(|&taken| taken));
    assert_eq!(
        older.likers(b"share:1").collect::<Vec<_>>(),
        log.0.likers(b"share:1").collect::<Vec<_>>()
    );
    assert_eq!(older.items_of(20, 0, 9), [b"share:1"]);
    assert!(older.items_of(0, 0, 9).is_empty() && !older.exists(b"gone:1"));
    assert_eq!(older.like_count(), 9);
    let (_, late) = Engine::restore(&snapshot, Options::default())
        .unwrap()
        .rows(0, usize::MAX, usize::MAX);
    assert!(
        late.iter().all(|row| !older.take_row(row).unwrap()),
        "older rows change nothing"
    );
    assert_eq!(older.take_user(3, 77), Err(RowError::Gap(3)));
    assert_eq!(older.take_user(3, 4), Err(RowError::OtherUser(4)));
    let damaged = Row {
        key: b"share:1".to_vec(),
        modification: 1 << 40,
        likes: Some(muster_likes::RowLikes {
            count: 5,
            likers: vec![1, 2, 3],
        }),
    };
    assert_eq!(older.take_row(&damaged), Err(RowError::Damaged));
}

#[test]
fn marks_below_an_offset_are_cleared_together() {
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

/// Erases a user, all steps but the files.
fn erase(log: &mut Log, job: u64, user: u64) {
    let at_ms = 1_790_000_000_000;
    log.apply(&Record::Erase { at_ms, job, user });
    while log.0.erasures()[&job].phase < Phase::Check {
        let slots = 3;
        log.apply(&Record::EraseStep { at_ms, job, slots });
    }
    assert_eq!(log.0.traces(job, 0, u64::MAX), (0, 0));
    log.apply(&Record::Erased { at_ms, job });
}

#[test]
fn rows_of_an_erased_user_change_no_other_one() {
    let mut log = Log::with_ids(100);
    for user in 0..5 {
        log.set(b"share:1", user, true);
        log.set(b"dislike:1", 3, true);
    }
    let snapshot = log.0.snapshot();
    let (_, old) = log.0.rows(0, usize::MAX, usize::MAX);
    erase(&mut log, 9, 3);
    log.set(b"share:2", 3, true); // a new user of the same number
    let (_, new) = log.0.rows(0, usize::MAX, usize::MAX);
    let users: Vec<(u32, Option<u64>)> = log.0.users_from(0).collect();
    assert_eq!(users[..3], [(0, Some(0)), (1, None), (2, Some(1))]);
    assert_eq!(users[5], (5, Some(3)));

    // From rows alone, and from a snapshot that still has the user, with rows from before and after.
    for (state, rows) in [
        (None, &old),
        (None, &new),
        (Some(&snapshot), &old),
        (Some(&snapshot), &new),
    ] {
        let mut back = state.map_or_else(Engine::default, |state| {
            Engine::restore(state, Options::default()).unwrap()
        });
        for &(dense, user) in &users[..5] {
            match user {
                Some(user) => back.take_user(dense, user).unwrap(),
                None => back.take_erased(dense).unwrap(),
            }
        }
        back.take_user(5, 3).unwrap();
        for row in rows {
            back.take_row(row).unwrap();
        }
        let likers: Vec<u64> = back.likers(b"share:1").collect();
        assert_eq!((likers, back.count(b"dislike:1")), (vec![0, 1, 2, 4], 0));
        assert!(back.likers(b"share:2").all(|user| user == 3));
        let (_, behind) = back.rows(0, usize::MAX, usize::MAX);
        let written = |row: &&Row| row.likes.as_ref().is_some_and(|likes| likes.count > 4);
        assert_eq!(behind.iter().find(written), None);
    }
    assert_eq!(Engine::default().take_erased(1), Err(RowError::Gap(1)));
}

#[test]
fn number_of_erasures_is_bounded() {
    let mut log = Log::with_ids(9);
    let (at_ms, user) = (1, 7);
    let begin = |log: &mut Log, job| {
        let record = encoded(&Record::Erase { at_ms, job, user });
        log.0.apply(log.0.offset(), &record)
    };
    for job in 0..ERASURES_MAX as u64 {
        assert_eq!(begin(&mut log, job), Ok(Answer::Done));
    }
    assert_eq!(begin(&mut log, 0), Ok(Answer::Done), "it is under way");
    assert_eq!(begin(&mut log, 1_000), Err(ApplyError::TooManyErasures));
    let done = encoded(&Record::ErasureDone {
        at_ms,
        job: 5_000,
        snapshots: 2,
        segments: 1,
    });
    assert_eq!(log.0.apply(log.0.offset(), &done), Err(ApplyError::NoErasure));
    for job in 0..ERASURES_LISTED_MAX as u64 + 100 {
        begin(&mut log, job).unwrap();
        for _ in 0..2 {
            let slots = 1;
            log.apply(&Record::EraseStep { at_ms, job, slots });
        }
        log.apply(&Record::Erased { at_ms, job });
        assert!(log.0.refuses(user));
        log.apply(&Record::ErasureDone {
            at_ms,
            job,
            snapshots: 2,
            segments: 1,
        });
    }
    assert!(!log.0.refuses(user));
    assert_eq!(log.0.erasures().len(), ERASURES_LISTED_MAX);
}

#[test]
fn an_item_that_was_deleted_and_liked_again_is_exported_once() {
    let like = Step::Set {
        key: 0,
        user: 7,
        likes: true,
    };
    let export = Step::Export { user: 7, page: 1 };
    check(&[like.clone(), Step::Delete(0), like, export]).unwrap();
}

#[test]
fn export_goes_on_while_the_list_changes_and_after_a_restart() {
    let mut log = Log::with_ids(9);
    let keys: Vec<Vec<u8>> = (0..500).map(|item| format!("share:{item}").into_bytes()).collect();
    for key in &keys {
        log.set(key, 1, true);
        log.set(key, 2, true);
    }
    let (mut cursor, mut found, mut page) = (Some(ExportCursor::Begin), Vec::new(), 0);
    while let Some(from) = cursor {
        let (next, part) = log.0.export(1, from, 20);
        let item = |each: &Exported| match each {
            Exported::Like { item, at_s } => (item.to_vec(), *at_s),
            Exported::Score { .. } => panic!("there is no leaderboard"),
        };
        found.extend(part.iter().map(item));
        cursor = next;
        page += 1;
        // Likes taken back and made again move to the head of the list, and rebuild it.
        for key in &keys[page..page + 4] {
            log.set(key, 1, false);
            log.set(key, 1, true);
        }
        if page % 5 == 0 {
            log.0 = Engine::restore(&log.0.snapshot(), Options::default()).unwrap();
        }
    }
    let times = found.iter().filter(|(_, at_s)| *at_s == Some(1_790_000_000)).count();
    let mut items: Vec<Vec<u8>> = found.into_iter().map(|(item, _)| item).collect();
    assert_eq!(times, items.len());
    items.sort();
    items.dedup();
    // Likes that moved to the head may be missing, as they did not exist during the whole export.
    let moved = page + 4;
    for key in &keys[moved..] {
        assert!(items.binary_search(key).is_ok(), "{}", String::from_utf8_lossy(key));
    }
    let options = Options { items_by_user: false };
    let mut unlisted = Engine::restore(&log.0.snapshot(), options).unwrap();
    let (next, part) = unlisted.export(1, ExportCursor::Begin, 10_000);
    assert_eq!((next, part.len()), (Some(ExportCursor::Leaderboards(0)), keys.len()));
    assert_eq!(unlisted.export(77, ExportCursor::Begin, 9), (None, vec![]));
}
