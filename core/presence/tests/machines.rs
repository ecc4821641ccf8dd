//! The machines connected by hand: windows, policies, restarts, leases, moves, batches, unicast.

use muster_presence::{
    bucket, kinds, AccessPoint, AccessSettings, Applied, Ask, Beat, Change, ChangeId, Closing, Deliveries,
    DeliverySettings, Device, Event, FullAsk, Message, MessageId, Origin, Outcome, Policies, Policy, Reason, Record,
    Shard, ShardMap, Splitter, Standing, State, To, Unicast, Verdict, Why, Writer, WriterSettings, BARRED_FOR,
    SYNTHETIC,
};
use muster_transport::Micros;

const MS: Micros = 1_000;
const SECOND: Micros = 1_000_000;
const ONE: Shard = Shard { of: 1, index: 0 };

fn device(name: &str) -> Device {
    Device::new(name.as_bytes()).expect("a name")
}

fn access(ap: u32, epoch: u32) -> AccessPoint {
    AccessPoint::new(Origin { ap, epoch }, 0, AccessSettings::default(), 0)
}

fn writer(epoch: u32) -> Writer {
    Writer::new(ONE, epoch, WriterSettings::default())
}

fn message(frame: &[u8]) -> Message<'_> {
    let kind = kinds::ELICITING
        .iter()
        .chain(&kinds::SILENT)
        .find(|kind| kind.code() == frame[0]);
    Message::read(*kind.expect("a kind of presence"), &frame[4..]).expect("a good frame")
}

/// Events of the packets that leave now.
fn packets(access: &mut AccessPoint, now: Micros) -> Vec<(u64, Vec<Event>)> {
    access.expire(now);
    let out = access.take_out();
    let packets = out.iter().filter_map(|(to, frame)| match message(frame) {
        Message::Report(report) => {
            assert_eq!(*to, To::Proxies);
            Some((report.version, report.events.read().expect("events")))
        }
        _ => None,
    });
    packets.collect()
}

/// Carries all frames of a gateway to a writer, through one proxy.
fn carry(access: &mut AccessPoint, writer: &mut Writer, now: Micros) -> Vec<Verdict> {
    access.expire(now);
    let map = ShardMap {
        version: 1,
        sites: vec![(1, 1)],
    };
    let mut splitter = Splitter::new(&map);
    let mut frames = Vec::new();
    for (to, frame) in access.take_out() {
        match message(&frame) {
            Message::Report(report) => assert!(splitter.report(&report)),
            Message::Beat(beat) => splitter.beat(&beat),
            _ => {
                assert_eq!(to, To::Writer(1));
                frames.push(frame);
            }
        }
    }
    frames.extend(splitter.finish().into_iter().map(|(_, frame)| frame));
    frames.iter().map(|frame| hear(writer, frame, now)).collect()
}

fn hear(writer: &mut Writer, frame: &[u8], now: Micros) -> Verdict {
    match message(frame) {
        Message::Share(share) => writer.share(now, &share),
        Message::Empty(empty) => writer.empty(now, &empty),
        Message::Beat(beat) => writer.beat(now, &beat),
        Message::TooOld(old) => writer.too_old(now, &old),
        Message::Chunk(chunk) => writer.chunk(now, &chunk),
        other => panic!("a writer hears {other:?}"),
    }
}

/// Requests the full state of a gateway and delivers it.
fn full(access: &mut AccessPoint, writer: &mut Writer, now: Micros) {
    let ap = access.origin().ap;
    writer.full_asked(ap, now);
    let ask = FullAsk {
        transaction: now,
        shard: ONE,
        ap,
        chunks: vec![],
    };
    access.full_ask(now, 1, &ask);
    carry(access, writer, now);
    assert!(writer.fulls().iter().all(|full| full.ap != ap), "{:?}", writer.fulls());
}

/// A gateway that a writer follows.
fn followed(ap: u32, writer: &mut Writer, now: Micros) -> AccessPoint {
    let mut access = access(ap, 1);
    carry(&mut access, writer, now);
    full(&mut access, writer, now);
    access
}

/// The reported changes, after everything is written.
fn written(writer: &mut Writer) -> Vec<Change> {
    let mut told = Vec::new();
    while let Some(batch) = writer.batch(3) {
        told.extend(batch.users.iter().flat_map(|user| user.changes.clone()));
        writer.written();
    }
    assert!(writer.is_written());
    told
}

fn states(changes: &[Change]) -> Vec<(u64, State)> {
    changes.iter().map(|change| (change.user, change.state)).collect()
}

#[test]
fn a_window_makes_one_packet_and_the_last_state_of_a_device_counts() {
    let mut access = access(1, 1);
    access.expire(0);
    let phone = device("phone");
    access.online(0, 1, 5, phone, 1).expect("few");
    access.offline(10 * MS, 2, 5, phone, 1, Reason::Closed);
    access.online(20 * MS, 3, 5, phone, 2).expect("few");
    access.online(49 * MS, 4, 6, phone, 3).expect("few");
    assert!(packets(&mut access, 50 * MS - 1).is_empty());
    let made = packets(&mut access, 50 * MS);
    let [(version, events)] = &made[..] else {
        panic!("{made:?}")
    };
    assert_eq!(*version, 1);
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.index, event.user, event.state, event.at_ms))
        .collect();
    assert_eq!(told, [(0, 5, State::Online, 3), (1, 6, State::Online, 4)]);
    assert_eq!(access.counters().merged, 2);
}

#[test]
fn more_events_than_a_frame_holds_are_several_versions() {
    let mut access = access(1, 1);
    for user in 0..1_000 {
        access
            .online(0, 1, user, device("laptop:0123456789abcdef"), user)
            .expect("few");
    }
    let made = packets(&mut access, 50 * MS);
    assert_eq!(made.iter().map(|(_, events)| events.len()).sum::<usize>(), 1_000);
    assert!(made.len() > 30);
    assert!(made
        .iter()
        .all(|(_, events)| events.iter().enumerate().all(|(at, event)| event.index as usize == at)));
}

#[test]
fn policies_end_older_sessions_here() {
    let policies = Policies {
        ranges: vec![(0, 9, Policy::One), (10, 19, Policy::OnePerKind)],
        otherwise: Policy::Many,
    };
    let settings = AccessSettings {
        policies,
        ..AccessSettings::default()
    };
    let mut access = AccessPoint::new(Origin { ap: 1, epoch: 1 }, 0, settings, 0);
    let mut come = |user, name: &str, session| {
        let closings = access.online(0, 1, user, device(name), session).expect("few");
        closings
            .iter()
            .map(|closing: &Closing| closing.session)
            .collect::<Vec<_>>()
    };
    assert_eq!(come(1, "phone", 1), []);
    assert_eq!(come(1, "laptop", 2), [1]);
    assert_eq!(come(10, "phone:a", 3), []);
    assert_eq!(come(10, "laptop", 4), []);
    assert_eq!(come(10, "phone:b", 5), [3]);
    assert_eq!(come(20, "phone:a", 6), []);
    assert_eq!(come(20, "phone:b", 7), []);
    assert_eq!(
        come(20, "phone:b", 8),
        [7],
        "two sessions of one device never stand beside each other"
    );
    access.offline(0, 2, 20, device("phone:b"), 7, Reason::Closed);
    assert_eq!(
        access.sessions(20).count(),
        2,
        "the end of the older session changes nothing"
    );
}

#[test]
fn a_newer_session_elsewhere_ends_the_reported_older_one() {
    let policies = Policies {
        otherwise: Policy::One,
        ..Policies::default()
    };
    let settings = WriterSettings {
        policies: Some(policies),
        ..WriterSettings::default()
    };
    let mut writer = Writer::new(ONE, 1, settings);
    let (mut here, mut there) = (followed(1, &mut writer, 1), followed(2, &mut writer, 2));
    here.online(10, 1, 5, device("phone"), 70).expect("few");
    carry(&mut here, &mut writer, SECOND);
    there.online(SECOND, 1, 5, device("laptop"), 71).expect("few");
    carry(&mut there, &mut writer, 2 * SECOND);
    let [first, second, one] = writer.take_supersedes(2 * SECOND)[..] else {
        panic!("both gateways refuse the phone, and one session ends")
    };
    let closing = Closing {
        session: 70,
        reason: Reason::Replaced,
    };
    here.writer(1, Some((1, ONE)));
    there.writer(1, Some((1, ONE)));
    assert_eq!(
        (
            here.superseded(2 * SECOND, 1, &one),
            there.superseded(2 * SECOND, 1, &one)
        ),
        (Some(closing), None)
    );
    for (gateway, bar) in [(&mut here, first), (&mut there, second)] {
        let phone = device("phone");
        assert_eq!(gateway.barred(2 * SECOND, 5, phone, false), None);
        assert_eq!(gateway.superseded(2 * SECOND, 1, &bar), None, "a bar closes nothing");
        assert_eq!(gateway.barred(3 * SECOND, 5, phone, false), Some(BARRED_FOR));
        assert_eq!(gateway.barred(3 * SECOND, 5, device("laptop"), false), None);
        assert_eq!(gateway.barred(3 * SECOND, 5, phone, true), None, "it takes over");
    }
    here.online(3 * SECOND, 1, 5, device("phone"), 72).expect("few");
    assert_eq!(
        here.superseded(3 * SECOND, 1, &one),
        None,
        "a newer session of that device stays"
    );
}

#[test]
fn a_device_that_moves_within_the_grace_time_is_never_reported_offline() {
    let mut writer = writer(1);
    let (mut here, mut there) = (followed(1, &mut writer, 1), followed(2, &mut writer, 2));
    let phone = device("phone");
    here.online(10, 1, 5, phone, 1).expect("few");
    carry(&mut here, &mut writer, SECOND);
    assert_eq!(states(&written(&mut writer)), [(5, State::Online)]);
    here.offline(SECOND, 2, 5, phone, 1, Reason::Lost);
    carry(&mut here, &mut writer, 2 * SECOND);
    there.online(2 * SECOND, 3, 5, phone, 2).expect("few");
    carry(&mut there, &mut writer, 3 * SECOND);
    writer.expire(10 * SECOND);
    assert_eq!(states(&written(&mut writer)), []);
    there.offline(10 * SECOND, 4, 5, phone, 2, Reason::Closed);
    carry(&mut there, &mut writer, 11 * SECOND);
    writer.expire(16 * SECOND - 1);
    assert_eq!(states(&written(&mut writer)), [], "it may come back");
    writer.expire(16 * SECOND);
    assert_eq!(states(&written(&mut writer)), [(5, State::Offline(Reason::Closed))]);
    assert_eq!(writer.places_len(), 0);
}

#[test]
fn a_restarted_gateway_has_only_the_devices_of_its_new_life() {
    let mut writer = writer(1);
    let mut first = followed(1, &mut writer, 1);
    let phone = device("phone");
    for user in [5, 6] {
        first.online(10, 1, user, phone, user).expect("few");
    }
    carry(&mut first, &mut writer, SECOND);
    let mut second = access(1, 2);
    second.online(SECOND, 2, 6, phone, 1).expect("few");
    carry(&mut second, &mut writer, SECOND + 60 * MS);
    assert_eq!(writer.fulls()[0].why, Why::NewEpoch);
    first.online(SECOND, 2, 7, phone, 7).expect("few");
    assert!(carry(&mut first, &mut writer, SECOND + 70 * MS)
        .iter()
        .all(|verdict| *verdict != Verdict::Applied));
    full(&mut second, &mut writer, SECOND + 80 * MS);
    assert_eq!(writer.online().collect::<Vec<_>>(), [(6, phone, 1)]);
    writer.expire(7 * SECOND);
    let told = written(&mut writer);
    assert_eq!(
        states(&told),
        [
            (5, State::Online),
            (5, State::Offline(Reason::Lost)),
            (6, State::Online)
        ]
    );
    assert!(told[1].id.index & SYNTHETIC != 0, "no event of a packet told it");
}

#[test]
fn a_dead_gateways_users_vanish_once_after_its_lease() {
    let mut writer = writer(1);
    let (mut dead, mut alive) = (followed(1, &mut writer, 1), followed(2, &mut writer, 2));
    dead.online(10, 1, 5, device("phone"), 1).expect("few");
    carry(&mut dead, &mut writer, SECOND);
    written(&mut writer);
    for second in 1..=25 {
        carry(&mut alive, &mut writer, second * SECOND);
        writer.expire(second * SECOND);
        let told = written(&mut writer);
        let wanted: &[(u64, State)] = match second {
            16 => &[(5, State::Offline(Reason::Lost))],
            _ => &[],
        };
        assert_eq!(states(&told), wanted, "second {second}");
    }
    assert_eq!((writer.places_len(), writer.sources().count()), (0, 1));
}

#[test]
fn a_deaf_writer_reports_nobody_offline_and_may_not_be_read() {
    let mut writer = writer(1);
    let (mut one, mut two) = (followed(1, &mut writer, 1), followed(2, &mut writer, 2));
    writer.expect(0, &[1, 2]);
    one.online(10, 1, 5, device("phone"), 1).expect("few");
    carry(&mut one, &mut writer, SECOND);
    carry(&mut two, &mut writer, SECOND + 300 * MS);
    written(&mut writer);
    assert_eq!(writer.standing(SECOND), Standing::InSync);
    for tenths in 14..=600 {
        writer.expire(tenths * 100 * MS); // the leases end one after the other
    }
    assert_eq!(states(&written(&mut writer)), []);
    assert_eq!(writer.standing(60 * SECOND), Standing::Deaf);
    carry(&mut two, &mut writer, 61 * SECOND);
    writer.expire(62 * SECOND);
    carry(&mut one, &mut writer, 63 * SECOND);
    writer.expire(80 * SECOND);
    assert_eq!(writer.online_len(), 1, "the other one had a lease to be heard");
}

/// How a writer stands that heard no gateway for three seconds, as it stood still or was cut off: after that, after the
/// first gateway is heard again, after the second one, which sent a version meanwhile, and after that version came.
fn after_silence(stood: bool) -> [Standing; 4] {
    let mut writer = writer(1);
    let (mut one, mut two) = (followed(1, &mut writer, 1), followed(2, &mut writer, 2));
    writer.expect(0, &[1, 2]);
    carry(&mut one, &mut writer, SECOND);
    carry(&mut two, &mut writer, SECOND);
    assert_eq!(writer.standing(SECOND), Standing::InSync);
    two.online(2 * SECOND, 1, 5, device("phone"), 1).expect("few");
    two.expire(2 * SECOND + 60 * MS);
    two.take_out();
    let now = 4 * SECOND;
    if stood {
        writer.stalled(now);
    }
    let silent = writer.standing(now);
    carry(&mut one, &mut writer, now);
    let first = writer.standing(now);
    carry(&mut two, &mut writer, now);
    let second = writer.standing(now);
    let due = writer.due(now + 30 * MS);
    writer.asked(2, &due[0].ranges, 1);
    let ask = Ask {
        transaction: 1,
        shard: ONE,
        origin: due[0].origin,
        ranges: due[0].ranges.clone(),
    };
    two.ask(1, &ask);
    carry(&mut two, &mut writer, now + 30 * MS);
    assert_eq!(writer.online_len(), 1);
    [silent, first, second, writer.standing(now + 30 * MS)]
}

#[test]
fn a_writer_that_heard_nobody_is_whole_once_it_has_all_of_each_gateway() {
    use Standing::{Deaf, InSync, Starting};
    assert_eq!(after_silence(true), [Starting, Starting, Starting, InSync]);
    assert_eq!(after_silence(false), [Deaf, Starting, Starting, InSync]);
}

#[test]
fn a_lost_tail_of_an_idle_gateway_is_noticed_and_requested() {
    let mut writer = writer(1);
    let mut access = followed(1, &mut writer, 1);
    access.online(10, 1, 5, device("phone"), 1).expect("few");
    access.expire(60 * MS);
    assert!(!access.take_out().is_empty(), "and both copies are lost");
    assert!(writer.due(SECOND).is_empty());
    assert_eq!(
        carry(&mut access, &mut writer, 60 * MS + SECOND),
        [Verdict::Applied],
        "a beat"
    );
    assert!(
        writer.due(60 * MS + SECOND).is_empty(),
        "the other path may still bring it"
    );
    let due = writer.due(90 * MS + SECOND);
    assert_eq!(due[0].ranges, [(1, 1)]);
    writer.asked(1, &due[0].ranges, 9);
    assert!(writer.due(2 * SECOND).is_empty());
    writer.release(1, 9);
    assert_eq!(
        writer.due(2 * SECOND).len(),
        1,
        "versions of a given up request are due again"
    );
    let ask = Ask {
        transaction: 10,
        shard: ONE,
        origin: due[0].origin,
        ranges: due[0].ranges.clone(),
    };
    access.ask(1, &ask);
    carry(&mut access, &mut writer, 2 * SECOND);
    assert_eq!(writer.online_len(), 1);
}

#[test]
fn versions_evicted_from_the_ring_require_a_full_state() {
    let mut writer = writer(1);
    let settings = AccessSettings {
        ring_bytes: 200,
        ..AccessSettings::default()
    };
    let mut access = AccessPoint::new(Origin { ap: 1, epoch: 1 }, 0, settings, 0);
    carry(&mut access, &mut writer, 0);
    full(&mut access, &mut writer, 1);
    for user in 0..10 {
        access
            .online(user * 100 * MS, 1, user, device("phone"), user)
            .expect("few");
        access.expire(user * 100 * MS + 50 * MS);
        access.take_out();
    }
    writer.beat(
        2 * SECOND,
        &Beat {
            origin: access.origin(),
            newest: access.version(),
        },
    );
    let due = writer.due(3 * SECOND);
    assert_eq!(due[0].ranges, [(1, 10)]);
    writer.asked(1, &due[0].ranges, 9);
    let mut ask = Ask {
        transaction: 8,
        shard: ONE,
        origin: due[0].origin,
        ranges: due[0].ranges.clone(),
    };
    access.ask(1, &ask);
    carry(&mut access, &mut writer, 3 * SECOND);
    assert!(writer.fulls().is_empty(), "nobody asked by that transaction");
    ask.transaction = 9;
    access.ask(1, &ask);
    carry(&mut access, &mut writer, 3 * SECOND);
    assert_eq!(writer.fulls()[0].why, Why::TooOld);
    full(&mut access, &mut writer, 4 * SECOND);
    assert_eq!(writer.online_len(), 10);
}

#[test]
fn a_writer_continues_from_its_store_and_requests_later_versions() {
    let mut first = writer(1);
    let mut access = followed(1, &mut first, 1);
    for user in 0..50 {
        access.online(10, 1, user, device("phone"), user).expect("few");
    }
    carry(&mut access, &mut first, SECOND);
    let mut store = std::collections::BTreeMap::new();
    let mut vector = Vec::new();
    while let Some(batch) = first.batch(7) {
        store.extend(batch.users.iter().map(|user| (user.user, user.record.clone())));
        assert!(vector.is_empty(), "the vector goes with the last users");
        vector.extend(batch.vector.clone());
        assert_eq!(
            first.batch(7).cloned(),
            first.batch(7).cloned(),
            "the same until it is written"
        );
        first.written();
    }
    access.online(SECOND, 1, 99, device("phone"), 99).expect("few");
    access.expire(2 * SECOND);
    access.take_out();
    let mut second = writer(2);
    second.restore_applied(2 * SECOND, &vector[0]);
    for (user, record) in &store {
        assert!(second.restore_user(2 * SECOND, *user, record));
    }
    assert_eq!(
        second.standing(2 * SECOND),
        Standing::Starting,
        "nobody said which gateways run"
    );
    second.expect(2 * SECOND, &[1]);
    assert_eq!((second.online_len(), second.fulls().len()), (50, 0));
    assert_eq!(
        second.standing(2 * SECOND),
        Standing::Starting,
        "the store knows nothing of the time that the writer was away"
    );
    carry(&mut access, &mut second, 4 * SECOND);
    assert_eq!(second.standing(4 * SECOND), Standing::Starting, "a version is missing");
    let due = second.due(5 * SECOND);
    assert_eq!(due[0].ranges.len(), 1);
    let ask = Ask {
        transaction: 1,
        shard: ONE,
        origin: due[0].origin,
        ranges: due[0].ranges.clone(),
    };
    access.ask(1, &ask);
    carry(&mut access, &mut second, 5 * SECOND);
    assert_eq!(second.standing(5 * SECOND), Standing::InSync);
    assert_eq!(states(&written(&mut second)), [(99, State::Online)]);
    assert!(!second.restore_user(0, 1, &[9]), "no record of this format");
}

/// A writer whose store has one device, which the feed last reported as offline.
fn went_back() -> (Writer, AccessPoint) {
    let mut first = writer(1);
    let mut access = followed(1, &mut first, 1);
    access.online(10, 1, 7, device("phone"), 7).expect("few");
    carry(&mut access, &mut first, SECOND);
    let store: Vec<_> = std::iter::from_fn(|| {
        let batch = first.batch(7).cloned();
        first.written();
        batch
    })
    .collect();
    access.offline(2 * SECOND, 1, 7, device("phone"), 7, Reason::Closed);
    carry(&mut access, &mut first, 3 * SECOND);
    first.expire(9 * SECOND);
    let told = written(&mut first);
    assert_eq!(states(&told), [(7, State::Offline(Reason::Closed))]);
    let mut second = writer(2);
    let known = Applied {
        ap: 1,
        epoch: 1,
        version: Some(1),
    };
    second.restore_applied(10 * SECOND, &known);
    for user in store.iter().flat_map(|batch| &batch.users) {
        assert!(second.restore_user(10 * SECOND, user.user, &user.record));
    }
    second.restore_told(10 * SECOND, &told[0]);
    second.expect(10 * SECOND, &[1]);
    (second, access)
}

fn told_online(user: u64) -> Change {
    Change {
        id: ChangeId {
            origin: Origin { ap: 1, epoch: 1 },
            version: 9,
            index: 0,
        },
        user,
        device: device("phone"),
        state: State::Online,
        at_ms: 1,
    }
}

#[test]
fn a_device_online_in_a_store_that_went_back_is_reported_once_confirmed() {
    let (mut second, _) = went_back();
    assert!(written(&mut second).is_empty(), "nothing is known yet");
    let mut later = access(1, 2);
    later.online(11 * SECOND, 1, 7, device("phone"), 8).expect("few");
    carry(&mut later, &mut second, 12 * SECOND);
    full(&mut later, &mut second, 13 * SECOND);
    assert_eq!(
        states(&written(&mut second)),
        [(7, State::Online)],
        "the gateway started again"
    );

    let (mut second, mut access) = went_back();
    carry(&mut access, &mut second, 11 * SECOND);
    access.ask(
        1,
        &Ask {
            transaction: 1,
            shard: ONE,
            origin: access.origin(),
            ranges: vec![(2, 2)],
        },
    );
    carry(&mut access, &mut second, 11 * SECOND);
    second.expire(30 * SECOND);
    assert_eq!(states(&written(&mut second)), [], "it is offline, as was told");
    assert_eq!(second.online_len(), 0);

    let (mut second, _) = went_back();
    second.restore_told(10 * SECOND, &told_online(8));
    second.expire(19 * SECOND);
    assert!(
        written(&mut second).is_empty(),
        "its gateway is not heard: the device may have moved"
    );

    let (mut second, _) = went_back();
    let beat = Beat {
        origin: Origin { ap: 1, epoch: 1 },
        newest: 1,
    };
    second.expire(11 * SECOND);
    assert!(written(&mut second).is_empty(), "its gateway is not heard yet");
    second.beat(11 * SECOND, &beat);
    second.expire(11 * SECOND);
    let told = written(&mut second);
    assert_eq!(states(&told), [(7, State::Online)], "it was online all the time");
    assert!(told[0].id.index & SYNTHETIC != 0, "its event was told before");
}

#[test]
fn a_store_that_went_back_is_rewritten_and_each_change_is_reported_once() {
    let mut writer = writer(1);
    let mut access = followed(1, &mut writer, 1);
    let come = |access: &mut AccessPoint, writer: &mut Writer, user, at| {
        access.online(at, 1, user, device("phone"), user).expect("few");
        carry(access, writer, at + 60 * MS)
    };
    come(&mut access, &mut writer, 5, SECOND);
    assert_eq!(states(&written(&mut writer)), [(5, State::Online)]);
    come(&mut access, &mut writer, 6, 2 * SECOND);
    come(&mut access, &mut writer, 7, 3 * SECOND);
    assert_eq!(
        writer.batch(1).map(|batch| batch.users.len()),
        Some(1),
        "in progress while the store fails"
    );
    writer.rewrite();
    let mut users = Vec::new();
    let mut told = Vec::new();
    while let Some(batch) = writer.batch(2) {
        users.extend(batch.users.iter().map(|user| user.user));
        told.extend(batch.users.iter().flat_map(|user| user.changes.clone()));
        writer.written();
    }
    assert_eq!(users, [5, 6, 7]);
    assert_eq!(states(&told), [(6, State::Online), (7, State::Online)]);
}

#[test]
fn a_proxy_sends_each_version_to_every_writer_of_every_site() {
    let mut access = access(1, 1);
    let map = ShardMap {
        version: 4,
        sites: vec![(1, 1), (2, 3)],
    };
    let mut splitter = Splitter::new(&map);
    for version in 0..5u64 {
        access
            .online(version * 100 * MS, 1, 3 * version, device("phone"), 1)
            .expect("few");
        access.expire(version * 100 * MS + 50 * MS);
        for (_, frame) in access.take_out() {
            if let Message::Report(report) = message(&frame) {
                assert!(splitter.report(&report));
            }
        }
    }
    let framed = splitter.finish();
    let of = |site, index| {
        let own = framed
            .iter()
            .filter(|(target, _)| (target.site, target.shard.index) == (site, index));
        own.map(|(_, frame)| match message(frame) {
            Message::Share(share) => (share.map, share.version, share.version),
            Message::Empty(empty) => (empty.map, empty.first, empty.last),
            other => panic!("{other:?}"),
        })
        .collect::<Vec<_>>()
    };
    let each: Vec<_> = (1..=5).map(|version| (4, version, version)).collect();
    assert_eq!((of(1, 0), of(2, 0)), (each.clone(), each));
    assert_eq!((of(2, 1), of(2, 2)), (vec![(4, 1, 5)], vec![(4, 1, 5)]), "one run");
}

#[test]
fn a_record_lists_each_device() {
    let mut writer = writer(1);
    let mut access = followed(1, &mut writer, 1);
    access.online(10, 77, 5, device("phone"), 1).expect("few");
    access.online(10, 78, 5, device("laptop"), 2).expect("few");
    carry(&mut access, &mut writer, SECOND);
    let batch = writer.batch(10).expect("a change");
    let record = Record::decode(&batch.users[0].record).expect("a record of ours");
    let held: Vec<_> = record
        .0
        .iter()
        .map(|held| (held.device, held.origin.ap, held.state, held.at_ms))
        .collect();
    let online = |name, at_ms| (device(name), 1, State::Online, at_ms);
    assert_eq!(held, [online("laptop", 78), online("phone", 77)]);
    assert!(bucket(5, 1, 1_024) < 1_024);
}

// ---- Unicast --------------------------------------------------------------------------------------------------------

fn unicast(epoch: u32, sequence: u64, after: u64) -> Unicast<'static> {
    Unicast {
        id: MessageId {
            server: 3,
            epoch,
            sequence,
        },
        after,
        user: 5,
        device: None,
        expires_ms: 1_000,
        body: b"hello",
    }
}

fn offer(deliveries: &mut Deliveries, now: Micros, service: u32, unicast: &Unicast<'_>) -> Vec<(u64, Device)> {
    let here = [device("phone"), device("laptop")];
    deliveries.offer(now, service, unicast, here.into_iter());
    let pushes = deliveries.take_pushes();
    pushes.iter().map(|push| (push.id.sequence, push.device)).collect()
}

/// A service, and the outcome of each device for it.
type Answer = (u32, Vec<(Option<Device>, Outcome)>);

fn answers(deliveries: &mut Deliveries) -> Vec<Answer> {
    let out = deliveries.take_out();
    out.iter()
        .map(|(service, frame)| match message(frame) {
            Message::UnicastAnswer(answer) => (*service, answer.outcomes),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn a_message_on_two_paths_is_pushed_once_per_device_and_answered_to_both() {
    let mut deliveries = Deliveries::new(1, DeliverySettings::default());
    let (phone, laptop) = (device("phone"), device("laptop"));
    let one = unicast(1, 1, 0);
    assert_eq!(offer(&mut deliveries, 0, 8, &one), [(1, phone), (1, laptop)]);
    assert_eq!(offer(&mut deliveries, 0, 9, &one), []);
    deliveries.delivered(0, one.id, 5, phone);
    assert_eq!(answers(&mut deliveries), []);
    deliveries.offline(0, 5, laptop);
    let told = vec![(Some(phone), Outcome::Delivered), (Some(laptop), Outcome::NotOnline)];
    assert_eq!(answers(&mut deliveries), [(8, told.clone()), (9, told.clone())]);
    assert_eq!(offer(&mut deliveries, 1, 9, &one), [], "asked again");
    assert_eq!(answers(&mut deliveries), [(9, told)]);
    deliveries.expire(10 * SECOND);
    assert_eq!(
        offer(&mut deliveries, 10 * SECOND, 9, &one),
        [],
        "forgotten, not delivered again"
    );
    assert_eq!(deliveries.counters().too_old, 1);
}

#[test]
fn a_message_waits_a_bounded_time_for_its_predecessor() {
    let mut deliveries = Deliveries::new(1, DeliverySettings::default());
    let (phone, laptop) = (device("phone"), device("laptop"));
    let both = |sequence| vec![(sequence, phone), (sequence, laptop)];
    assert_eq!(offer(&mut deliveries, 0, 8, &unicast(1, 3, 2)), []);
    assert_eq!(offer(&mut deliveries, 0, 8, &unicast(1, 2, 1)), []);
    assert_eq!(
        offer(&mut deliveries, 5, 9, &unicast(1, 1, 0)),
        [both(1), both(2), both(3)].concat()
    );
    assert_eq!(offer(&mut deliveries, 10, 9, &unicast(1, 7, 6)), []);
    deliveries.expire(10 + 30 * MS);
    assert_eq!(deliveries.take_pushes().len(), 2, "order is given up, not the message");
    assert_eq!(offer(&mut deliveries, 40 * MS, 9, &unicast(1, 6, 0)), both(6));
    assert_eq!(deliveries.counters().out_of_order, 1);
}

#[test]
fn a_message_not_confirmed_in_time_has_expired() {
    let mut deliveries = Deliveries::new(1, DeliverySettings::default());
    let phone = device("phone");
    let only = Unicast {
        device: Some(phone),
        ..unicast(1, 1, 0)
    };
    assert_eq!(offer(&mut deliveries, 0, 8, &only), [(1, phone)]);
    deliveries.expire(SECOND);
    assert_eq!(answers(&mut deliveries), [(8, vec![(Some(phone), Outcome::Expired)])]);
    deliveries.delivered(SECOND, only.id, 5, phone);
    assert_eq!(answers(&mut deliveries), [], "too late");
    let tablet = Some(device("tablet"));
    let elsewhere = Unicast {
        device: tablet,
        ..unicast(1, 2, 0)
    };
    assert_eq!(offer(&mut deliveries, 0, 8, &elsewhere), []);
    assert_eq!(answers(&mut deliveries), [(8, vec![(tablet, Outcome::NotOnline)])]);
    let counters = deliveries.counters();
    assert_eq!((counters.accepted, counters.expired, counters.not_here), (1, 1, 1));
}

#[test]
fn messages_of_a_restarted_senders_earlier_life_are_refused() {
    let mut deliveries = Deliveries::new(1, DeliverySettings::default());
    assert_eq!(offer(&mut deliveries, 0, 8, &unicast(1, 1, 0)).len(), 2);
    assert_eq!(offer(&mut deliveries, 0, 8, &unicast(2, 1, 0)).len(), 2);
    assert_eq!(offer(&mut deliveries, 0, 8, &unicast(1, 2, 0)), []);
    assert_eq!(deliveries.counters().old_epoch, 1);
    assert_eq!(deliveries.pending_len(), 2);
}
