//! Packets in any order, some twice, some split differently, compared with plain sets: the newest event of a place
//! counts (I-2).

use std::collections::{BTreeMap, BTreeSet};

use muster_presence::{
    kinds, AccessPoint, AccessSettings, Change, Chunk, Device, Entries, Key, Message, Origin, Reason, Shard, ShardMap,
    Splitter, State, Verdict, Writer, WriterSettings,
};
use muster_transport::Dice;
use proptest::prelude::*;

const ORIGIN: Origin = Origin { ap: 1, epoch: 1 };
const SHARD: Shard = Shard { of: 2, index: 1 };

/// A session that comes or goes at a gateway: user, device, whether it comes, whether the window ends after it.
type Step = (u64, u8, bool, bool);

fn device(number: u8) -> Device {
    Device::new(&[b'a' + number]).expect("a name")
}

/// The frames for one shard in the order of their versions, and the online devices at the end.
fn frames(start: u64, steps: &[Step]) -> (Vec<Vec<u8>>, BTreeSet<Key>) {
    let mut access = AccessPoint::new(ORIGIN, start, AccessSettings::default(), 0);
    let map = ShardMap {
        version: 1,
        sites: vec![(1, 2)],
    };
    let mut frames = Vec::new();
    for (at, (user, name, comes, ends)) in steps.iter().enumerate() {
        let now = at as u64 * 1_000_000;
        let session = at as u64;
        if *comes {
            access
                .online(now, 1, *user, device(*name), session)
                .expect("few devices");
        } else {
            let found = access.sessions(*user).find(|(one, _)| *one == device(*name));
            if let Some((one, session)) = found {
                access.offline(now, 1, *user, one, session, Reason::Closed);
            }
        }
        if *ends || at + 1 == steps.len() {
            access.expire(now + 60_000);
        }
        let mut splitter = Splitter::new(&map);
        for (_, frame) in access
            .take_out()
            .into_iter()
            .filter(|(_, frame)| frame[0] == kinds::REPORT.code())
        {
            if let Some(Message::Report(report)) = Message::read(kinds::REPORT, &frame[4..]) {
                assert!(splitter.report(&report));
            }
        }
        let own = splitter
            .finish()
            .into_iter()
            .filter(|(target, _)| target.shard == SHARD);
        frames.extend(own.map(|(_, frame)| frame));
    }
    let devices = access.devices().filter(|(user, _)| SHARD.owns(*user));
    (frames, devices.map(|(user, device)| (user, device, 1)).collect())
}

fn hear(writer: &mut Writer, frame: &[u8]) -> Verdict {
    let body = &frame[4..];
    match Message::read(kinds::SHARE, body).filter(|_| frame[0] == kinds::SHARE.code()) {
        Some(Message::Share(share)) => writer.share(0, &share),
        _ => match Message::read(kinds::EMPTY, body) {
            Some(Message::Empty(empty)) => writer.empty(0, &empty),
            other => panic!("a frame for a writer: {other:?}"),
        },
    }
}

/// A writer that follows from `start`.
fn writer(start: u64) -> Writer {
    let settings = WriterSettings {
        grace: 0,
        ..WriterSettings::default()
    };
    let mut writer = Writer::new(SHARD, 1, settings);
    writer.beat(
        0,
        &muster_presence::Beat {
            origin: ORIGIN,
            newest: start,
        },
    );
    writer.full_asked(1, 1);
    let verdict = writer.chunk(
        0,
        &Chunk {
            transaction: 1,
            origin: ORIGIN,
            version: start,
            index: 0,
            count: 1,
            entries: Entries(&[]),
        },
    );
    assert_eq!(verdict, Verdict::Applied);
    writer
}

fn told(writer: &mut Writer) -> Vec<Change> {
    writer.expire(0);
    let mut told = Vec::new();
    while let Some(batch) = writer.batch(2) {
        told.extend(batch.users.iter().flat_map(|user| user.changes.clone()));
        writer.written();
    }
    told
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..6u64, 0..3u8, prop::bool::weighted(0.6), prop::bool::weighted(0.4));
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_order_with_copies_ends_in_the_gateways_state(
        steps in steps(),
        start in prop::sample::select(vec![0, (1 << 32) - 10, u64::MAX - 10, 1 << 63]),
        seed in any::<u64>(),
    ) {
        let (frames, truth) = frames(start, &steps);
        let mut dice = Dice::new(seed);
        let mut order: Vec<&Vec<u8>> = frames.iter().chain(&frames).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, dice.below(at as u64 + 1) as usize);
        }
        let mut writer = writer(start);
        let mut changes = told(&mut writer);
        for frame in order {
            hear(&mut writer, frame);
            changes.extend(told(&mut writer));
        }
        prop_assert_eq!(writer.online().collect::<BTreeSet<_>>(), truth.clone());
        prop_assert_eq!(writer.counters().duplicates, frames.len() as u64);
        prop_assert_eq!(writer.places_len(), truth.len(), "nothing is remembered once no gap is left");
        let mut last: BTreeMap<(u64, Device), State> = BTreeMap::new();
        for change in changes {
            let before = last.insert((change.user, change.device), change.state);
            prop_assert!((before == Some(State::Online)) != (change.state == State::Online), "reported twice: {:?}", change);
        }
        let online = last.into_iter().filter(|(_, state)| *state == State::Online);
        let online: BTreeSet<Key> = online.map(|((user, device), _)| (user, device, 1)).collect();
        prop_assert_eq!(online, truth);
    }
}
