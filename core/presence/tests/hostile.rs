//! Forged and mutated frames against the machines: no panic, no unbounded growth, no allocation by a count from the
//! sender.

use muster_presence::{
    kinds, role, AccessPoint, AccessSettings, Ask, Beat, Chunk, Courier, Deliveries, DeliverySettings, Device, Empty,
    Entries, Events, FullAsk, Keeping, Message, MessageId, Origin, Reason, Refusal, Report, Shard, Share, Splitting,
    Task, To, TooOld, Unicast, UnicastAnswer, Verdict, Writer, WriterSettings, CHUNKS_MAX, DEVICES_MAX,
    FRAME_BYTES_MAX, WINDOW,
};
use muster_transport::{Dice, FrameKind, Frames, Identity, Mail, Role};

const ME: Origin = Origin { ap: 7, epoch: 3 };
const SHARD: Shard = Shard { of: 2, index: 1 };

fn device(name: &[u8]) -> Device {
    Device::new(name).expect("a name")
}

fn writer() -> Writer {
    Writer::new(SHARD, 1, WriterSettings::default())
}

fn frames() -> Vec<Vec<u8>> {
    let mut access = AccessPoint::new(ME, 0, AccessSettings::default(), 0);
    for user in 0..200 {
        access.online(0, 5, user, device(b"phone"), user).expect("few devices");
    }
    access.expire(60_000);
    let ask = FullAsk {
        transaction: 4,
        shard: SHARD,
        ap: 7,
        chunks: vec![],
    };
    access.full_ask(60_000, 1, &ask);
    access.expire(60_000);
    let ask = Ask {
        transaction: 5,
        shard: SHARD,
        origin: ME,
        ranges: vec![(1, 3)],
    };
    access.ask(1, &ask);
    let mut all: Vec<Vec<u8>> = access.take_out().into_iter().map(|(_, frame)| frame).collect();
    all.push(Message::Ask(ask).to_frame());
    let unicast = Unicast {
        id: MessageId {
            server: 1,
            epoch: 1,
            sequence: 2,
        },
        after: 1,
        user: 5,
        device: None,
        expires_ms: 5_000,
        body: b"hello",
    };
    all.push(Message::Unicast(unicast).to_frame());
    all
}

/// Passes any message to every machine.
fn give(writer: &mut Writer, access: &mut AccessPoint, deliveries: &mut Deliveries, now: u64, message: &Message<'_>) {
    match message {
        Message::Share(share) => drop(writer.share(now, share)),
        Message::Empty(empty) => drop(writer.empty(now, empty)),
        Message::Beat(beat) => drop(writer.beat(now, beat)),
        Message::TooOld(old) => drop(writer.too_old(now, old)),
        Message::Chunk(chunk) => drop(writer.chunk(now, chunk)),
        Message::Ask(ask) => access.ask(1, ask),
        Message::FullAsk(ask) => access.full_ask(now, 1, ask),
        Message::Supersede(one) => drop(access.superseded(0, 1, one)),
        Message::Unicast(unicast) => deliveries.offer(now, 1, unicast, [device(b"phone")].into_iter()),
        Message::End(asked) => drop(deliveries.end_sessions(now, 1, asked, [device(b"phone")].into_iter())),
        Message::Report(_) | Message::Wait(_) | Message::UnicastAnswer(_) | Message::Here(_) => {}
    }
}

#[test]
fn mutated_frames_cause_no_panic_and_survive_encoding() {
    let mut dice = Dice::new(1);
    let genuine = frames();
    let (mut writer, mut deliveries) = (writer(), Deliveries::new(7, DeliverySettings::default()));
    let mut access = AccessPoint::new(ME, 0, AccessSettings::default(), 0);
    writer.full_asked(7, 4);
    let mut read = 0;
    for now in 0..30_000 {
        let mut bytes = genuine[dice.below(genuine.len() as u64) as usize].clone();
        for _ in 0..dice.below(4) {
            let at = dice.below(bytes.len() as u64) as usize;
            bytes[at] = dice.roll() as u8;
        }
        if dice.below(5) == 0 {
            bytes.truncate(dice.below(bytes.len() as u64) as usize);
        }
        for frame in Frames::new(&bytes, kinds::ALL).flatten() {
            if let Some(message) = Message::read(frame.kind, frame.body) {
                read += 1;
                assert_eq!(&message.to_frame()[4..], frame.body);
                give(&mut writer, &mut access, &mut deliveries, now, &message);
            }
        }
        writer.expire(now);
        access.expire(now);
        deliveries.expire(now);
        while writer.batch(1_000).is_some() {
            writer.written();
        }
    }
    assert!(read > 10_000, "{read}");
}

#[test]
fn random_bytes_are_a_frame_or_none() {
    let mut dice = Dice::new(2);
    for _ in 0..40_000 {
        let len = dice.below(120);
        let body: Vec<u8> = (0..len).map(|_| dice.roll() as u8).collect();
        let kind = FrameKind::new(24 + dice.below(12) as u8);
        if let Some(message) = Message::read(kind, &body) {
            assert_eq!(&message.to_frame()[4..], &body);
        }
    }
}

#[test]
fn a_false_count_costs_nothing() {
    let mut writer = writer();
    let beat = Beat { origin: ME, newest: 0 };
    writer.beat(0, &beat);
    writer.full_asked(7, 1);
    let chunk = |index, count| Chunk {
        transaction: 1,
        origin: ME,
        version: 9,
        index,
        count,
        entries: Entries(&[]),
    };
    assert_eq!(writer.chunk(0, &chunk(3, CHUNKS_MAX)), Verdict::Applied);
    assert_eq!(writer.fulls()[0].missing, [(0, 2), (4, u64::from(CHUNKS_MAX) - 1)]);
    for (index, count) in [(CHUNKS_MAX, CHUNKS_MAX + 1), (5, 5), (0, 0), (1, u32::MAX)] {
        let frame = Message::Chunk(chunk(index, count)).to_frame();
        assert_eq!(Message::read(kinds::CHUNK, &frame[4..]), None, "{index} of {count}");
    }
    assert_eq!(
        writer.chunk(
            0,
            &Chunk {
                transaction: 2,
                ..chunk(0, 1)
            }
        ),
        Verdict::Refused(Refusal::Unasked)
    );
}

#[test]
fn a_run_of_all_versions_causes_a_resync_and_not_a_million_gaps() {
    let mut writer = writer();
    let chunk = Chunk {
        transaction: 1,
        origin: ME,
        version: 0,
        index: 0,
        count: 1,
        entries: Entries(&[]),
    };
    let empty = |first, last| Empty {
        map: 0,
        shard: SHARD,
        origin: ME,
        first,
        last,
    };
    for (first, last) in [(1, u64::MAX >> 1), (1 << 40, 1 << 40), (WINDOW + 1, WINDOW + 1)] {
        writer.beat(0, &Beat { origin: ME, newest: 0 });
        writer.full_asked(7, 1);
        writer.chunk(0, &chunk);
        assert!(writer.fulls().is_empty());
        assert_eq!(writer.empty(0, &empty(first, last)), Verdict::Held, "{first} to {last}");
        assert_eq!(writer.fulls().len(), 1);
        assert!(writer.due(1 << 40).is_empty());
    }
    assert_eq!(writer.empty(0, &empty(9, 3)), Verdict::Refused(Refusal::Malformed));
}

#[test]
fn users_of_another_shard_and_shares_of_another_map_are_refused_whole() {
    let mut writer = writer();
    let mut access = AccessPoint::new(ME, 0, AccessSettings::default(), 0);
    access.online(0, 5, 4, device(b"phone"), 1).expect("few devices");
    access.expire(60_000);
    let frame = access
        .take_out()
        .into_iter()
        .find(|(_, frame)| frame[0] == kinds::REPORT.code());
    let frame = frame.expect("a packet").1;
    let Some(Message::Report(report)) = Message::read(kinds::REPORT, &frame[4..]) else {
        panic!("a packet is read");
    };
    let share = |shard, events| Share {
        map: 1,
        shard,
        origin: ME,
        version: 1,
        events,
    };
    let foreign = share(SHARD, report.events);
    assert_eq!(writer.share(0, &foreign), Verdict::Refused(Refusal::WrongShard));
    let other = share(Shard { of: 4, index: 1 }, Events(&[]));
    assert_eq!(writer.share(0, &other), Verdict::Refused(Refusal::WrongShard));
    assert_eq!((writer.counters().wrong_shard, writer.online_len()), (2, 0));
}

#[test]
fn a_user_with_ten_thousand_devices_is_limited() {
    let mut access = AccessPoint::new(ME, 0, AccessSettings::default(), 0);
    let name = |number: u32| device(format!("d:{number}").as_bytes());
    let good = (0..10_000).filter(|number| access.online(0, 5, 1, name(*number), u64::from(*number)).is_ok());
    assert_eq!(good.count(), DEVICES_MAX);
    assert!(
        access.online(0, 5, 2, name(1), 1).is_ok(),
        "another user is not held up"
    );
    access.offline(0, 5, 1, name(0), 0, Reason::Closed);
    assert!(access.online(0, 5, 1, name(9_999), 2).is_ok());
}

#[test]
fn full_states_requested_in_a_loop_are_paced() {
    let settings = AccessSettings {
        full_bytes_per_second: 100_000,
        ..AccessSettings::default()
    };
    let mut access = AccessPoint::new(ME, 0, settings, 0);
    for user in 0..20_000 {
        access.online(0, 5, user, device(b"phone"), user).expect("few devices");
    }
    access.expire(60_000);
    access.take_out();
    let mut bytes = 0;
    for step in 0..1_000u64 {
        let now = 60_000 + step * 1_000;
        let ask = FullAsk {
            transaction: step,
            shard: Shard { of: 1, index: 0 },
            ap: 7,
            chunks: vec![],
        };
        access.full_ask(now, (step % 9) as u32, &ask);
        access.expire(now);
        let out = access.take_out();
        assert!(out.iter().all(|(_, frame)| frame.len() <= FRAME_BYTES_MAX));
        let chunks = out.iter().filter(|(_, frame)| frame[0] == kinds::CHUNK.code());
        bytes += chunks.map(|(_, frame)| frame.len()).sum::<usize>();
    }
    assert!(
        (150_000..180_000).contains(&bytes),
        "a burst and a second's share: {bytes}"
    );
}

#[test]
fn full_states_of_64_writers_leave_within_seconds_and_confirmed_ones_free_their_slot() {
    let mut access = AccessPoint::new(ME, 0, AccessSettings::default(), 0);
    for user in 0..100_000 {
        access.online(0, 5, user, device(b"phone"), user).expect("few devices");
    }
    access.expire(60_000);
    access.take_out();
    let ask = |writer: u32, chunks| FullAsk {
        transaction: u64::from(writer),
        shard: Shard {
            of: 16,
            index: writer as u16 % 16,
        },
        ap: 7,
        chunks,
    };
    let mut now = 60_000;
    for writer in 0..64 {
        access.full_ask(now, writer, &ask(writer, vec![]));
    }
    let (mut left, mut whole) = (vec![0u32; 64], 0);
    while whole < 64 {
        now = access.deadline().expect("chunks wait").max(now + 1_000);
        access.expire(now);
        for (to, frame) in access.take_out() {
            let To::Writer(writer) = to else { continue };
            let frame = Frames::new(&frame, kinds::ALL).next().expect("a frame").expect("whole");
            let Some(Message::Chunk(chunk)) = Message::read(frame.kind, frame.body) else {
                panic!("no chunk")
            };
            left[writer as usize] += 1;
            if left[writer as usize] == chunk.count {
                whole += 1;
                access.full_ask(now, writer, &ask(writer, vec![FullAsk::HAS_ALL]));
            }
        }
    }
    assert!(now < 5_000_000, "64 full states, four times 100,000 devices: {now} us");
    assert_eq!(access.counters().fulls_refused, 0);
    for writer in 64..128 {
        access.full_ask(now, writer, &ask(writer, vec![]));
    }
    assert_eq!(access.counters().fulls_refused, 0, "all places are free at once");
    access.full_ask(now, 128, &ask(128, vec![]));
    assert_eq!(access.counters().fulls_refused, 1, "each of them has chunks that wait");
}

#[test]
fn a_sender_of_unicast_is_bounded() {
    let mut deliveries = Deliveries::new(7, DeliverySettings::default());
    let unicast = |server, epoch, sequence, after| Unicast {
        id: MessageId {
            server,
            epoch,
            sequence,
        },
        after,
        user: 1,
        device: None,
        expires_ms: 60_000,
        body: &[7; 1_000],
    };
    for sequence in 2..20_000 {
        deliveries.offer(
            0,
            1,
            &unicast(1, 1, sequence, sequence - 1),
            [device(b"phone")].into_iter(),
        );
    }
    assert_eq!(deliveries.take_pushes().len(), 0, "each waits for the one before it");
    assert!(deliveries.counters().accepted <= 1_048, "a mebibyte is held");
    deliveries.expire(30_000);
    assert_eq!(deliveries.take_pushes().len() as u64, deliveries.counters().accepted);
    for server in 0..10_000 {
        deliveries.offer(0, 1, &unicast(server, 1, 1, 0), [device(b"phone")].into_iter());
    }
    assert!(deliveries.counters().full >= 10_000 - 4_096);
}

const GATEWAY: Role = Role::new(5);
const PROXY: Role = Role::new(2);

fn peer(node: u32, role: Role) -> Identity {
    Identity {
        node,
        role,
        epoch: ME.epoch,
    }
}

/// Which frames a task accepts from whom: frames of `ME` and of others, from every role.
fn taken(task: &mut impl Task, message: &Message<'_>) -> Vec<(u32, Role)> {
    let mut mail = Mail::default();
    let mut by = Vec::new();
    for node in [ME.ap, 8] {
        for of in [GATEWAY, PROXY, role::ONLINE_PROXY, role::ONLINE_WRITER, role::UNICAST] {
            if task.message(0, peer(node, of), message.clone(), &mut mail) {
                by.push((node, of));
            }
        }
    }
    by
}

#[test]
fn a_frame_that_its_peer_may_not_send_is_dropped() {
    let (own, id) = (
        (ME.ap, GATEWAY),
        MessageId {
            server: ME.ap,
            epoch: ME.epoch,
            sequence: 1,
        },
    );
    let beat = Message::Beat(Beat { origin: ME, newest: 0 });
    let share = Message::Share(Share {
        map: 1,
        shard: SHARD,
        origin: ME,
        version: 1,
        events: Events(&[]),
    });
    let empty = Message::Empty(Empty {
        map: 1,
        shard: SHARD,
        origin: ME,
        first: 1,
        last: 1,
    });
    let old = Message::TooOld(TooOld {
        transaction: 1,
        origin: ME,
        oldest: 1,
        newest: 1,
    });
    let chunk = Message::Chunk(Chunk {
        transaction: 1,
        origin: ME,
        version: 1,
        index: 0,
        count: 1,
        entries: Entries(&[]),
    });
    let report = Message::Report(Report {
        origin: ME,
        version: 1,
        events: Events(&[]),
    });
    let unicast = Message::Unicast(Unicast {
        id,
        after: 0,
        user: 1,
        device: None,
        expires_ms: 1_000,
        body: b"x",
    });
    let answer = Message::UnicastAnswer(UnicastAnswer {
        ap: ME.ap,
        id,
        outcomes: vec![],
    });
    let ask = Message::Ask(Ask {
        transaction: 1,
        shard: SHARD,
        origin: ME,
        ranges: vec![(1, 1)],
    });
    let mut keeping = Keeping::new(1, SHARD, vec![GATEWAY], writer());
    keeping.open(0);
    let proxies = [(ME.ap, role::ONLINE_PROXY), (8, role::ONLINE_PROXY)];
    let passed = vec![own, proxies[0], proxies[1]];
    for message in [&beat, &share, &empty] {
        assert_eq!(
            taken(&mut keeping, message),
            passed,
            "of the gateway itself, or by a proxy"
        );
    }
    for message in [&old, &chunk] {
        assert_eq!(
            taken(&mut keeping, message),
            [own],
            "of the gateway that was asked alone"
        );
    }
    for message in [&report, &unicast, &answer, &ask] {
        assert_eq!(taken(&mut keeping, message), []);
    }
    let mut splitting = Splitting::new(1);
    for message in [&report, &beat] {
        let by = taken(&mut splitting, message);
        assert_eq!(
            by,
            [own, (ME.ap, PROXY)],
            "of the node itself, which is none of presence"
        );
    }
    for message in [&share, &empty, &old, &chunk, &unicast, &answer, &ask] {
        assert_eq!(taken(&mut splitting, message), []);
    }
    let mut courier = Courier::new(1);
    let by = taken(&mut courier, &unicast);
    assert!(
        !by.is_empty() && by.iter().all(|(node, of)| *node == ME.ap && *of != role::UNICAST),
        "{by:?}"
    );
    for message in [&share, &empty, &beat, &old, &chunk, &report, &ask] {
        assert_eq!(taken(&mut courier, message), []);
    }
}
