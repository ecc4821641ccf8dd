//! One user among others: what it may use, and how little the others notice.

mod common;

use common::*;
use muster_rooms::limits::{CREDIT_MESSAGES, UNACKED_MESSAGES_MAX, USER_PLACES_MAX, USER_SESSIONS_MAX};
use muster_rooms::wire::{kinds, Ack, Consumed, LinkHead, Positions, Record};
use muster_rooms::{role, Bounds, Broker, Gateway, Proxy, SESSION_ROOMS};
use muster_transport::{Code, ControlRecord, FrameKind, Micros, Scope};

const SECOND: Micros = 1_000_000;
const PACED: &str = "paced:final";

/// A session of a user.
fn session<M: Subject>(rig: &mut Rig<M>, number: u32, user: u64) -> usize {
    rig.session_of(number, format!("user {user}").as_bytes())
}

/// The owner has numbered nothing in this room.
fn begin(rig: &mut Rig<Gateway>, room: &str) {
    rig.tell(1, &Record::Covered { offset: 1 << 20 });
    let head = LinkHead {
        room: room_id(room),
        generation: 1,
        base: 1,
        next: 1,
    };
    tells_head(rig, 0, head);
    rig.turn();
}

/// The gateway's reports on a room since the last call.
fn told(rig: &mut Rig<Gateway>, room: &str) -> Vec<Consumed> {
    let got = std::mem::take(&mut rig.peers[0].got);
    let told = got.iter().filter(|(kind, _)| *kind == kinds::CONSUMED);
    let told = told.flat_map(|(_, body)| Consumed::read_all(body).collect::<Vec<_>>());
    told.filter(|consumed| consumed.room == room_id(room)).collect()
}

/// The owner's messages, 200 a second for this long, all of which the gateway's memory holds. Returns their number,
/// and the greatest lag of the gateway's reports on its members' progress after the first second. `seldom`: members
/// that acknowledge every 100 ms.
fn carried(rig: &mut Rig<Gateway>, room: &str, seldom: &[usize], seconds: u64) -> (u64, u64) {
    let (mut next, mut behind) = (1, 0);
    for step in 0..200 * seconds {
        rig.say(0, &link_room_of(room, 1, next, &[&[b'x'; 50]]));
        next += 1;
        seldom.iter().for_each(|peer| rig.peers[*peer].polite = step % 20 == 0);
        rig.pass(5_000, 5_000);
        if step % 20 == 0 {
            (0..rig.peers.len()).for_each(|peer| rig.frame(peer, FrameKind::PING.code(), &[]));
        }
        let reports = told(rig, room);
        if step >= 200 {
            behind = reports.iter().map(|report| next - report.next).fold(behind, u64::max);
        }
    }
    (next, behind)
}

#[test]
fn forty_slow_or_silent_sessions_of_one_user_slow_no_live_room() {
    for silent in [false, true] {
        let mut rig = linked_gateway();
        let slow: Vec<usize> = (0..40).map(|number| session(&mut rig, 1 + number, 7)).collect();
        let quick: Vec<usize> = (0..8)
            .map(|number| session(&mut rig, 100 + number, 100 + u64::from(number)))
            .collect();
        for peer in slow.iter().chain(&quick) {
            rig.join(*peer, 1, ROOM, Positions::default());
        }
        begin(&mut rig, ROOM);
        for peer in slow {
            rig.peers[peer].polite = !silent;
            if !silent {
                shut(&mut rig, peer);
            }
        }
        let (next, behind) = carried(&mut rig, ROOM, &[], 3);
        assert!(behind < 20, "silent: {silent}, {behind} messages");
        let had = rig.peers[quick[0]].frames(kinds::ROOM) as u64;
        assert!(had > next * 9 / 10, "{had} of {next}");
    }
}

/// The session announces a window of one datagram.
fn shut(rig: &mut Rig<Gateway>, peer: usize) {
    rig.peers[peer].conn.receive_window = 1;
    rig.peers[peer].conn.tell_status();
}

/// A room with messages, and with one member of each of thirty users.
fn thirty_users() -> (Rig<Gateway>, Vec<usize>) {
    let mut rig = linked_gateway();
    let members: Vec<usize> = (0..30)
        .map(|number| session(&mut rig, 1 + number, 100 + u64::from(number)))
        .collect();
    for peer in &members {
        rig.join(*peer, 1, ROOM, Positions::default());
    }
    begin(&mut rig, ROOM);
    (rig, members)
}

/// Two thirds of the users are slow, as if the gateway's uplink were: publishers must wait.
#[test]
fn a_gateway_that_lags_for_most_users_reports_it() {
    let (mut rig, members) = thirty_users();
    members[..20].iter().for_each(|peer| rig.peers[*peer].polite = false);
    let (_, behind) = carried(&mut rig, ROOM, &[], 3);
    assert!(behind > 100, "{behind} messages");
}

/// The same, but their own windows stop them: they are slow, not the gateway.
#[test]
fn members_with_small_windows_slow_no_live_room() {
    let (mut rig, members) = thirty_users();
    members[..20].iter().for_each(|peer| shut(&mut rig, *peer));
    let (next, behind) = carried(&mut rig, ROOM, &members[..20], 3);
    assert!(behind < 20, "{behind} messages");
    let had = rig.peers[members[29]].frames(kinds::ROOM) as u64;
    assert!(had > next * 9 / 10, "{had} of {next}");
}

/// It acknowledges a datagram when it likes: rarely enough to slow the room to a crawl, and often enough not to count
/// as stopped.
#[test]
fn a_paced_room_waits_for_a_slow_member_and_six_seconds_for_a_trickle() {
    let mut rig = linked_gateway();
    let slow: Vec<usize> = (0..3).map(|number| session(&mut rig, 1 + number, 7)).collect();
    let quick = session(&mut rig, 9, 9);
    for peer in slow.iter().chain([&quick]) {
        rig.join(*peer, 1, PACED, Positions::default());
    }
    begin(&mut rig, PACED);
    for peer in &slow {
        rig.peers[*peer].conn.receive_window = 1;
        rig.peers[*peer].conn.tell_status();
    }
    rig.pass(10_000, 5_000);
    let (mut next, mut last) = (1, 0);
    let mut waited = Vec::new();
    for step in 0..500u64 {
        // 15 kB a second: the gateway's memory of the room has the last 7 s.
        rig.say(0, &link_room_of(PACED, 1, next, &[&[b'x'; 300]]));
        next += 1;
        for peer in &slow {
            rig.peers[*peer].polite = step % 20 == 0; // a datagram in 400 ms
        }
        rig.pass(20_000, 10_000);
        (0..2)
            .chain([quick])
            .for_each(|peer| rig.frame(peer, FrameKind::PING.code(), &[]));
        last = told(&mut rig, PACED).last().map_or(last, |report| report.next);
        waited.push(next - last);
    }
    let at = |ms: usize| waited[ms / 20];
    assert!(at(3_000) > 50, "the room waits: {}", at(3_000));
    assert!(at(8_000) < 5, "the room goes on: {}", at(8_000));
    assert!(waited[400..].iter().all(|waits| *waits < 5), "{:?}", &waited[400..]);
    assert_eq!(counter(&rig.machine, "members_given_up"), 3);
}

/// The last acknowledgement of a room with this handle that session `peer` got.
fn acknowledged(rig: &Rig<Proxy>, peer: usize) -> Option<Ack> {
    let acks = rig.peers[peer].got.iter().rev().filter(|(kind, _)| *kind == kinds::ACK);
    acks.filter_map(|(_, body)| Ack::read(body)).next()
}

#[test]
fn a_users_flood_over_any_sessions_stops_at_the_proxy() {
    for (messages, bytes, data, least) in [(100, 0, 20, 295), (0, 100_000, 1_000, 285)] {
        let mut rig = Rig::<Proxy>::bare();
        rig.machine.set_bounds(Bounds {
            messages,
            bytes,
            ..Bounds::default()
        });
        let link = rig.link(BROKER, role::BROKER);
        let flood = [session(&mut rig, 1, 7), session(&mut rig, 2, 7)];
        let other = session(&mut rig, 3, 8);
        for peer in flood.into_iter().chain([other]) {
            let open = Record::Open {
                request: 1,
                name: ROOM.as_bytes(),
                incarnation: peer as u64,
            };
            rig.tell(peer, &open);
        }
        let forwarded = |rig: &Rig<Proxy>| counter(&rig.machine, "messages_forwarded");
        let data = vec![b'x'; data];
        for step in 0..2_000u64 {
            rig.say(flood[step as usize % 2], &publish(0, 1, 1 + step / 2, &[&data]));
            rig.pass(1_000, 1_000);
            if step % 100 == 0 {
                rig.frame(link, FrameKind::PING.code(), &[]);
            }
        }
        let passed = forwarded(&rig);
        assert!(
            (least..=310).contains(&passed),
            "one second's burst, and two seconds at the rate: {passed}"
        );
        assert_eq!(passed + counter(&rig.machine, "dropped_rate"), 2_000);
        let ack = acknowledged(&rig, flood[0]).expect("it is told");
        let wait = ack.wait().expect("and how long to wait");
        assert_eq!(ack.code, Code::RateLimited);
        assert!((1_000..=12_000).contains(&wait), "{wait}");
        (1..=50).for_each(|first| rig.say(other, &publish(0, 1, first, &[&data])));
        assert_eq!(forwarded(&rig), passed + 50);
    }
}

/// 0: the gateway, which is behind; 1: a router; 2: the proxy.
fn slow_linked_gateway() -> Rig<Broker> {
    let mut rig = Rig::<Broker>::bare();
    rig.link(GATEWAY, role::GATEWAY);
    rig.link(ROUTER, role::ROUTER);
    names_gateway(&mut rig, 1, GATEWAY, membership(1, true));
    rig.tell(1, &Record::Complete { scope: Scope::ALL });
    rig.link(PROXY, role::PROXY);
    rig
}

/// The gateway reports that it has passed nothing on, for less than the half second after which a live room
/// continues. The publisher ignores that: 100 messages in 10 ms.
#[test]
fn messages_beyond_a_publishers_credit_are_refused() {
    let mut rig = slow_linked_gateway();
    let published = |rig: &Rig<Broker>| counter(&rig.machine, "messages_published");
    let data = [b'x'; 100];
    let messages: Vec<&[u8]> = vec![&data; 10];
    let mut generation = None;
    for _ in 0..45 {
        for _ in 0..10 {
            let next = 1 + published(&rig);
            rig.say(2, &link_publish(77, 1, next, &messages));
        }
        rig.pass(10_000, 5_000);
        let acks = rig.peers[2].got.iter().filter(|(kind, _)| *kind == kinds::LINK_ACK);
        let last = acks
            .filter_map(|(_, body)| Ack::read(Ack::read_link(body)?.1))
            .next_back();
        generation = last.map(|ack| ack.stream.generation).or(generation);
        let report = Consumed {
            room: room_id(ROOM),
            generation: generation.expect("it is acknowledged"),
            next: 1,
            kept: 0,
        };
        let frame = body(|writer| {
            report.write(writer);
            true
        });
        rig.frame(0, kinds::CONSUMED.code(), &frame);
    }
    assert!(counter(&rig.machine, "credit_withheld") > 0);
    let numbered = published(&rig);
    assert!(numbered <= UNACKED_MESSAGES_MAX + 2 * CREDIT_MESSAGES, "{numbered}");
    assert_eq!(numbered + counter(&rig.machine, "dropped_credit"), 4_500);
}

/// The refusals of a session's joins, as codes.
fn refusals(rig: &mut Rig<Gateway>, peer: usize) -> Vec<Code> {
    let records = rig.peers[peer].take_records();
    let refused = records.iter().filter_map(|bytes| match Record::read(bytes) {
        Some(Record::Control(ControlRecord::Refused { code, .. })) => Some(code),
        _ => None,
    });
    refused.collect()
}

#[test]
fn a_user_joins_a_thousand_of_ten_thousand_rooms_and_others_are_unaffected() {
    let mut rig = linked_gateway();
    rig.machine.set_bounds(Bounds::default());
    let sessions: Vec<usize> = (0..40).map(|number| session(&mut rig, 1 + number, 7)).collect();
    let other = session(&mut rig, 100, 8);
    let mut refused = 0;
    for (at, peer) in sessions.iter().enumerate() {
        for room in 0..SESSION_ROOMS as u32 {
            rig.join(*peer, 1 + room, &format!("sports:{at}-{room}"), Positions::default());
        }
        let codes = refusals(&mut rig, *peer);
        assert!(codes.iter().all(|code| *code == Code::TooManyRooms), "{codes:?}");
        refused += codes.len();
    }
    let most = USER_PLACES_MAX as usize;
    assert_eq!((rig.machine.rooms_len(), refused), (most, 40 * SESSION_ROOMS - most));
    assert_eq!(counter(&rig.machine, "joins_refused_user"), refused as u64);
    rig.join(other, 1, "sports:other", Positions::default());
    assert_eq!(rig.machine.rooms_len(), most + 1);
    // Memberships that it leaves, or that its sessions had when they ended, are available to it again.
    rig.frame(sessions[0], FrameKind::CLOSE.code(), &[0]);
    rig.turn();
    for number in 0..2 {
        let peer = session(&mut rig, 200 + number, 7);
        for room in 0..SESSION_ROOMS as u32 {
            let name = format!("sports:again-{number}-{room}");
            rig.join(peer, 1 + room, &name, Positions::default());
        }
    }
    assert_eq!(
        counter(&rig.machine, "joins_refused_user"),
        (refused + SESSION_ROOMS) as u64
    );
}

#[test]
fn one_user_gets_half_of_a_small_gateways_rooms() {
    let mut rig = linked_gateway();
    rig.machine.set_rooms_max(60);
    let peers: Vec<usize> = (0..2)
        .map(|number| session(&mut rig, 1 + number, 7 + u64::from(number)))
        .collect();
    for (peer, most) in peers.into_iter().zip([30, 15]) {
        let before = rig.machine.rooms_len();
        for room in 0..60 {
            rig.join(peer, 1 + room, &format!("sports:{peer}-{room}"), Positions::default());
        }
        assert_eq!(rig.machine.rooms_len() - before, most);
        let codes = refusals(&mut rig, peer);
        assert_eq!(
            (codes.len(), codes.iter().all(|code| *code == Code::Busy)),
            (60 - most, true)
        );
    }
}

#[test]
fn a_session_beyond_a_users_limit_is_refused_for_now() {
    let mut rig = linked_gateway();
    rig.machine.set_bounds(Bounds::default());
    let peers: Vec<usize> = (0..=USER_SESSIONS_MAX)
        .map(|number| session(&mut rig, 1 + number, 7))
        .collect();
    let heard = |rig: &mut Rig<Gateway>, peer: usize| {
        let records = rig.peers[peer].take_records();
        let said = records.iter().filter_map(|bytes| match Record::read(bytes) {
            Some(Record::Control(ControlRecord::Ready { .. })) => Some(Ok(())),
            Some(Record::Control(ControlRecord::Refused { code, retry_ms, .. })) => Some(Err((code, retry_ms))),
            _ => None,
        });
        said.collect::<Vec<_>>()
    };
    let last = peers[USER_SESSIONS_MAX as usize];
    assert_eq!(heard(&mut rig, peers[0]), [Ok(())]);
    assert_eq!(heard(&mut rig, last), [Err((Code::RateLimited, 1_000))]);
    assert_eq!(counter(&rig.machine, "refused_sessions"), 1);
    let other = session(&mut rig, 200, 8);
    assert_eq!(heard(&mut rig, other), [Ok(())]);
    rig.frame(peers[0], FrameKind::CLOSE.code(), &[0]);
    rig.pass(2 * SECOND, 100_000);
    let again = session(&mut rig, 201, 7);
    assert_eq!(heard(&mut rig, again), [Ok(())]);
}
