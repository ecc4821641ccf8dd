//! Strangers, forgers and misbehaving members against the real machines: only counters change, nothing panics,
//! nothing grows without bound, and one peer's actions have no visible cost for others.
//!
//! `HOSTILE_SEED` chooses the dice, `HOSTILE_SECONDS` the duration of the random part per target (default 5).

mod common;

use muster_rooms::role;
use muster_rooms::wire::kinds;
use std::path::Path;
use std::time::{Duration, Instant};

use common::*;
use muster_rooms::wire::{write_repair, Ack, GapPlace, GapReason, Positions, Record, StreamGap, StreamId};
use muster_rooms::{Broker, Client, Gateway, Proxy, Router, USER_HELD_MAX};
use muster_transport::{
    Code, ControlRecord, DatagramKind, Dice, Encode, FrameKind, Frames, HasSessions, Header, Identity, Role, Server,
    SocketId, EARLY_BYTES_MAX, EARLY_UNKNOWN_MAX, HEADER, LINK_SOCKET, PUBLIC_SOCKET, SERVERS_MAX,
};

fn dice() -> Dice {
    let seed = std::env::var("HOSTILE_SEED").ok().and_then(|seed| seed.parse().ok());
    Dice::new(seed.unwrap_or(1))
}

fn random(dice: &mut Dice, len: u64) -> Vec<u8> {
    (0..len).map(|_| dice.roll() as u8).collect()
}

fn clear(kind: DatagramKind, connection: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; HEADER.max(len)];
    let header = Header {
        kind,
        key_id: 1,
        flags: 0,
        connection,
        epoch: EPOCH,
        sequence: 9,
        placement: 1,
    };
    header.write(&mut bytes);
    bytes
}

/// Delivers an unauthorised datagram and checks its effect.
fn refuse<M: Subject>(rig: &mut Rig<M>, socket: SocketId, from: u32, bytes: &[u8], what: &str) {
    let before = (rig.machine.digest(), refused(&rig.machine));
    rig.give(socket, stranger(from), bytes);
    assert_eq!(rig.machine.digest(), before.0, "{:?}: {what}", M::ROLE);
    assert!(
        refused(&rig.machine) > before.1,
        "{:?}: {what} was not counted: {:02x?}",
        M::ROLE,
        &bytes[..bytes.len().min(64)]
    );
}

fn strangers_change_nothing<M: Subject>() {
    let mut rig = Rig::<M>::new();
    let mut dice = dice();
    let sockets: Vec<SocketId> = match M::ROLE {
        role::GATEWAY | role::PROXY => vec![LINK_SOCKET, PUBLIC_SOCKET],
        _ => vec![0],
    };
    for socket in sockets {
        for _ in 0..2_000 {
            let len = dice.below(1_300);
            let mut bytes = random(&mut dice, len);
            refuse(&mut rig, socket, dice.roll() as u32, &bytes, "random bytes");
            if bytes.len() >= HEADER {
                let kind = 1 + dice.below(6) as u8;
                bytes[..2].copy_from_slice(&[0x4d, 0x10 | kind]);
                refuse(
                    &mut rig,
                    socket,
                    dice.roll() as u32,
                    &bytes,
                    "random bytes behind a header",
                );
            }
        }
    }
    // Every kind of datagram that the peers could send, cut at every length and with every bit flipped.
    for at in 0..rig.peers.len() {
        let (socket, connection) = (rig.peers[at].socket, rig.peers[at].conn.peer);
        let sealed = rig.peers[at].seal(rig.now, &sample_frames()[2]);
        let mut datagrams = vec![sealed];
        for (kind, len) in [
            (DatagramKind::Hello, 1_199),
            (DatagramKind::Cookie, 44),
            (DatagramKind::Accept, 120),
            (DatagramKind::Reset, 44),
        ] {
            datagrams.push(clear(kind, connection, len));
        }
        for valid in datagrams {
            for len in 0..valid.len() {
                refuse(&mut rig, socket, 5, &valid[..len], "cut");
            }
            for bit in 0..valid.len().min(200) * 8 {
                let mut flipped = valid.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                refuse(&mut rig, socket, 5, &flipped, "a bit flipped");
            }
            if rig.now % 2 == 0 {
                rig.turn();
            }
        }
        // Replays, and another epoch.
        let sealed = rig.peers[at].seal(rig.now, &sample_frames()[2]);
        let mut other = sealed.clone();
        other[12..16].copy_from_slice(&(EPOCH + 1).to_le_bytes());
        refuse(&mut rig, socket, 5, &other, "another epoch");
        rig.give(socket, rig.peers[at].addr, &sealed);
        for _ in 0..10 {
            refuse(&mut rig, socket, 5, &sealed, "a replay");
        }
    }
    for (addr, account) in &rig.accounts {
        let known = rig.peers.iter().any(|peer| peer.addr == *addr);
        assert!(known || account.sent <= 3 * account.received, "{addr:?} {account:?}");
    }
}

#[test]
fn strangers_change_nothing_at_a_gateway() {
    strangers_change_nothing::<Gateway>();
}

#[test]
fn strangers_change_nothing_at_a_proxy() {
    strangers_change_nothing::<Proxy>();
}

#[test]
fn strangers_change_nothing_at_a_broker() {
    strangers_change_nothing::<Broker>();
}

#[test]
fn strangers_change_nothing_at_a_router() {
    strangers_change_nothing::<Router>();
}

#[test]
fn strangers_change_nothing_at_a_client() {
    strangers_change_nothing::<Client>();
}

/// Frames that a peer may send to a role, besides those that every connection understands.
fn allowed(at: Role, from: Role) -> &'static [FrameKind] {
    use kinds::*;
    match (at, from) {
        (role::GATEWAY, Role::CLIENT) => &[REPAIR, FrameKind::PATH_RESPONSE],
        (role::GATEWAY, role::GATEWAY) => &[RELAYED_ROOM, AGED_RELAYED_ROOM, RELAYED_HEADS],
        (role::GATEWAY, role::BROKER) => &[LINK_ROOM, AGED_ROOM, LINK_HEADS, LINK_LOST],
        (role::PROXY, Role::CLIENT) => &[PUBLISH, FrameKind::PATH_RESPONSE],
        (role::PROXY, role::BROKER) => &[LINK_ACK],
        (role::BROKER, role::PROXY) => &[LINK_PUBLISH, AGED_PUBLISH],
        (role::BROKER, role::GATEWAY) => &[LINK_REPAIR, CONSUMED],
        (role::BROKER, role::EDGE) => &[LINK_REPAIR, CONSUMED, LINK_PUBLISH, AGED_PUBLISH],
        (Role::CLIENT, role::GATEWAY) => &[
            ROOM,
            AGED_MEMBER_ROOM,
            GAP,
            SKIP,
            HEADS,
            PASSED,
            LEFT_OUT,
            FrameKind::PATH_CHALLENGE,
        ],
        (Role::CLIENT, role::PROXY) => &[ACK, FrameKind::PATH_CHALLENGE],
        _ => &[],
    }
}

fn a_seal_gives_no_more_rights_than_the_role_has<M: Subject>() {
    gives_no_more_rights(Rig::<M>::new());
}

#[test]
fn an_edge_may_publish_at_a_broker_and_do_what_a_gateway_may() {
    let mut rig = Rig::<Broker>::new();
    rig.link(40, role::EDGE);
    gives_no_more_rights(rig);
}

fn gives_no_more_rights<M: Subject>(mut rig: Rig<M>) {
    let every = [
        FrameKind::STATUS,
        FrameKind::LOG,
        FrameKind::LOG_ACK,
        FrameKind::PING,
        FrameKind::CLOSE,
    ];
    for at in 0..rig.peers.len() {
        let said = |rig: &mut Rig<M>, plaintext: &[u8], what: &str| {
            let before = (rig.machine.digest(), refused(&rig.machine));
            rig.say(at, plaintext);
            assert_eq!(rig.machine.digest(), before.0, "{:?} from peer {at}: {what}", M::ROLE);
            assert!(
                refused(&rig.machine) > before.1,
                "{:?} from peer {at}: {what} was not counted",
                M::ROLE
            );
        };
        for kind in (1..=255).filter(|kind| kinds::ALL.find(*kind).is_none()) {
            said(&mut rig, &[kind, 0, 0, 0], "an unknown kind");
        }
        for kind in (1..=255).filter(|kind| kinds::ALL.find(*kind).is_some()) {
            said(&mut rig, &[kind, 0, 255, 255, 1], "a length beyond the datagram");
            said(&mut rig, &[kind, 0, 1], "half a frame header");
        }
        for sample in sample_frames() {
            let kind = Frames::new(&sample, kinds::ALL).next().unwrap().unwrap().kind;
            if !every.contains(&kind) && !allowed(M::ROLE, rig.peers[at].role).contains(&kind) {
                said(&mut rig, &sample, &format!("{kind:?}"));
            }
        }
    }
}

#[test]
fn valid_keys_give_no_more_rights_than_the_role_has() {
    a_seal_gives_no_more_rights_than_the_role_has::<Gateway>();
    a_seal_gives_no_more_rights_than_the_role_has::<Proxy>();
    a_seal_gives_no_more_rights_than_the_role_has::<Broker>();
    a_seal_gives_no_more_rights_than_the_role_has::<Router>();
    a_seal_gives_no_more_rights_than_the_role_has::<Client>();
}

/// Every sample with every aligned number made extreme, from every peer, with pauses in between.
fn no_number_panics<M: Subject>() {
    let numbers = [
        u64::MAX,
        u64::MAX - 1,
        1 << 63,
        (1 << 62) + 1,
        1 << 62,
        (1 << 62) - 1,
        1 << 32,
        1,
        0,
    ];
    let mut rig = Rig::<M>::new();
    let (peers, settled) = (rig.peers.len(), rig.machine.digest());
    let mut dice = dice();
    for peer in 0..peers {
        let mut samples: Vec<(bool, Vec<u8>)> = sample_frames().into_iter().map(|frame| (true, frame)).collect();
        samples.extend(sample_records().into_iter().map(|record| (false, record)));
        for (frame, sample) in samples {
            let start = if frame { 4 } else { 1 };
            for at in start..sample.len() {
                // An accepted number spoils the state for the next one: a new machine, and another order each time.
                if rig.machine.digest() != settled {
                    rig = Rig::new();
                }
                for size in [8usize, 4, 2, 1].into_iter().filter(|size| at + size <= sample.len()) {
                    let first = dice.below(numbers.len() as u64) as usize;
                    for number in numbers.iter().cycle().skip(first).take(numbers.len()) {
                        let mut bytes = sample.clone();
                        bytes[at..at + size].copy_from_slice(&number.to_le_bytes()[..size]);
                        match frame {
                            true => rig.say(peer, &bytes),
                            false => rig.record(peer, &bytes),
                        }
                    }
                    rig.turn();
                }
                rig.pass(20_000, 10_000);
            }
            rig.pass(1_300_000, 130_000);
            rig = Rig::new();
        }
    }
}

#[test]
fn no_number_panics_a_gateway() {
    no_number_panics::<Gateway>();
}

#[test]
fn no_number_panics_a_proxy() {
    no_number_panics::<Proxy>();
}

#[test]
fn no_number_panics_a_broker() {
    no_number_panics::<Broker>();
}

#[test]
fn no_number_panics_a_router() {
    no_number_panics::<Router>();
}

#[test]
fn no_number_panics_a_client() {
    no_number_panics::<Client>();
}

// ---- strangers before a connection

#[test]
fn a_flood_of_spoofed_hellos_blocks_nobody_and_is_not_amplified() {
    let mut rig = Rig::<Gateway>::new();
    for number in 0..20_000 {
        let mut hello = clear(DatagramKind::Hello, u64::from(number), 1_200);
        hello[HEADER + 16..HEADER + 18].copy_from_slice(&48u16.to_le_bytes());
        rig.give(PUBLIC_SOCKET, stranger(1_000 + number), &hello);
        rig.give(LINK_SOCKET, stranger(1_000 + number), &hello);
        rig.give(
            PUBLIC_SOCKET,
            stranger(1_000 + number),
            &clear(DatagramKind::Data, u64::MAX, 64),
        );
        if number % 64 == 0 {
            rig.turn();
        }
    }
    rig.turn();
    for (addr, account) in &rig.accounts {
        let known = rig.peers.iter().any(|peer| peer.addr == *addr);
        assert!(known || account.sent <= 3 * account.received, "{addr:?} {account:?}");
    }
    assert_eq!(sessions(&rig), 2);
    let me = Identity {
        node: 0,
        role: Role::CLIENT,
        epoch: 0,
    };
    let honest = rig.connect(PUBLIC_SOCKET, stranger(1 << 20), me);
    assert!(honest.is_some(), "an honest client is admitted during the flood");
}

fn sessions(rig: &Rig<Gateway>) -> usize {
    rig.machine.sessions().table.len()
}

/// A session that acknowledges nothing and asks for rooms with long names, as many as its log holds.
fn join_without_end(rig: &mut Rig<Gateway>, at: usize) {
    let name = "x".repeat(160);
    rig.peers[at].polite = false;
    for request in 1..290 {
        rig.tell(
            at,
            &Record::Join {
                request,
                name: name.as_bytes(),
                positions: Positions::default(),
                history: 0,
            },
        );
    }
}

#[test]
fn sessions_without_a_credential_hold_little() {
    let mut rig = Rig::<Gateway>::new();
    let me = Identity {
        node: 0,
        role: Role::CLIENT,
        epoch: 0,
    };
    let mut kept = 0;
    for number in 0..300 {
        let Some(at) = rig.connect(PUBLIC_SOCKET, stranger(100 + number), me) else {
            continue;
        };
        join_without_end(&mut rig, at);
        kept += 1;
    }
    assert!(kept > 200, "{kept} were let in");
    let held = |rig: &Rig<Gateway>| rig.machine.sessions().waiting_bytes();
    assert_eq!(held(&rig), 0, "sessions without a credential get nothing");
    let mut most = 0;
    for number in 0..300 {
        let Some(at) = rig.connect(PUBLIC_SOCKET, stranger(500 + number), me) else {
            continue;
        };
        rig.tell(
            at,
            &Record::Control(ControlRecord::Authenticate { credential: b"wrong" }),
        );
        join_without_end(&mut rig, at);
        most = most.max(held(&rig));
    }
    assert!(most > 40_000, "the test holds something: {most} B");
    assert!(most <= muster_transport::WAITING_BYTES_MAX, "{most} B");
    rig.pass(7_000_000, 500_000);
    assert_eq!(held(&rig), 0, "and it is released");
}

/// Sends a session's log without its first record, as long as the session accepts it.
fn log_without_its_first_record(rig: &mut Rig<Gateway>, at: usize) {
    rig.peers[at].conn.log.push(b"never sent").expect("there is room");
    join_without_end(rig, at);
}

#[test]
fn records_that_came_too_early_hold_little() {
    let me = Identity {
        node: 0,
        role: Role::CLIENT,
        epoch: 0,
    };
    let mut rig = Rig::<Gateway>::new();
    let strangers = (0..100).filter_map(|number| rig.connect(PUBLIC_SOCKET, stranger(100 + number), me));
    let strangers: Vec<usize> = strangers.collect();
    for at in &strangers {
        log_without_its_first_record(&mut rig, *at);
    }
    let held = rig.machine.sessions().early_bytes();
    assert!(
        held > 0 && held <= strangers.len() * EARLY_UNKNOWN_MAX,
        "{held} B of strangers"
    );
    for number in 0..300 {
        let at = rig.session(1_000 + number);
        log_without_its_first_record(&mut rig, at);
    }
    let held = rig.machine.sessions().early_bytes();
    assert!(
        held > EARLY_BYTES_MAX / 2 && held <= EARLY_BYTES_MAX,
        "{held} B of 300 members"
    );
    rig.pass(40_000_000, 500_000);
    assert_eq!(rig.machine.sessions().early_bytes(), 0, "and it is released");
}

/// A far client repeats its hello before the reply can arrive; each repeat used to cost a handshake, and one of its
/// network's allowance.
#[test]
fn a_repeated_waiting_hello_counts_once() {
    let mut rig = Rig::<Gateway>::new();
    let (from, hello) = rig.at_the_door(7);
    let door = &rig.machine.sessions().door.counters;
    let before = [
        door.handshakes_accepted,
        door.dropped_hello_rate,
        door.dropped_hello_busy,
    ];
    for _ in 0..3_000 {
        rig.give(PUBLIC_SOCKET, from, &hello);
    }
    rig.turn();
    let door = &rig.machine.sessions().door.counters;
    let after = [
        door.handshakes_accepted,
        door.dropped_hello_rate,
        door.dropped_hello_busy,
    ];
    assert_eq!(after, [before[0] + 1, before[1], before[2]]);
}

#[test]
fn the_link_door_does_not_reveal_a_sessions_token() {
    let mut rig = Rig::<Gateway>::new();
    let ready = rig.peers[0].take_records();
    let token = ready.iter().find_map(|bytes| match Record::read(bytes) {
        Some(Record::Control(ControlRecord::Ready { token, .. })) => Some(token),
        _ => None,
    });
    let connection = rig.peers[0].conn.peer;
    rig.give(LINK_SOCKET, stranger(9), &clear(DatagramKind::Data, connection, 200));
    rig.turn();
    let told = rig.out.pop_back().expect("a reset").1;
    assert_eq!(Header::read(&told).unwrap().kind, DatagramKind::Reset);
    assert_ne!(&told[HEADER..HEADER + 16], &token.unwrap()[..]);
}

#[test]
fn an_address_that_a_member_does_not_own_gets_one_challenge_a_second() {
    let mut rig = Rig::<Gateway>::new();
    let victim = stranger(77);
    let own = rig.peers[0].addr;
    for _ in 0..2_000 {
        let ping = rig.peers[0].seal(rig.now, &[FrameKind::PING.code(), 0, 0, 0]);
        rig.give(PUBLIC_SOCKET, victim, &ping);
        rig.now += 1_000;
        rig.turn();
    }
    let account = rig.accounts[&victim];
    assert!(account.sent <= 3 * 80, "{account:?}");
    assert_eq!(counter(&rig.machine, "addresses_changed"), 0);
    assert_eq!(
        rig.machine.sessions().table.get(0).map(|peer| peer.conn.addr),
        Some(own)
    );
}

// ---- misbehaving members

/// Whether a member still gets a message of the room within 300 ms.
fn serves(rig: &mut Rig<Gateway>, member: usize, offset: u64) -> bool {
    let before = rig.peers[member].frames(kinds::ROOM);
    rig.say(2, &link_room(1, offset, &[b"hello"]));
    rig.pass(300_000, 5_000);
    rig.peers[member].frames(kinds::ROOM) > before
}

#[test]
fn a_message_too_long_for_members_stops_nobody() {
    let mut rig = Rig::<Gateway>::new();
    rig.say(2, &link_room(1, 3, &[&[b'x'; 1_090]]));
    rig.pass(300_000, 5_000);
    assert!(serves(&mut rig, 0, 4), "the member gets what follows");

    let mut rig = Rig::<Broker>::new();
    let before = rig.machine.digest();
    rig.say(0, &link_publish(9, 1, 1, &[&[b'x'; 1_095]]));
    assert_eq!(
        rig.machine.digest(),
        before,
        "a broker does not number what it cannot send"
    );
    assert_eq!(counter(&rig.machine, "dropped_malformed"), 1);
    rig.turn();
    let last = rig.peers[0].got.iter().rfind(|(kind, _)| *kind == kinds::LINK_ACK);
    let (_, ack) = last.and_then(|(_, body)| Ack::read_link(body)).expect("an answer");
    assert_eq!(
        Ack::read(ack).map(|ack| ack.code),
        Some(Code::Malformed),
        "although its proxy forwards longer ones"
    );

    let mut rig = Rig::<Proxy>::new();
    let forwarded = counter(&rig.machine, "messages_forwarded");
    rig.say(0, &publish(0, 1, 2, &[&[b'x'; 1_095]]));
    assert_eq!(
        counter(&rig.machine, "messages_forwarded"),
        forwarded,
        "nor does a proxy forward it"
    );
}

#[test]
fn a_member_behind_five_streams_continues() {
    let mut rig = Rig::<Gateway>::new();
    rig.peers[0].polite = false;
    // The member's window closes, the room's owner forgets the room again and again.
    for generation in 2..9 {
        for offset in 1..30 {
            rig.say(2, &link_room(generation, offset, &[&[b'x'; 900]]));
        }
        rig.pass(10_000, 1_000);
    }
    rig.peers[0].polite = true;
    for _ in 0..200 {
        rig.peers[0].conn.elicited(rig.now);
        rig.pass(60_000, 20_000);
    }
    rig.say(2, &link_room(8, 30, &[b"the last one"]));
    rig.pass(2_000_000, 20_000);
    let got = rig.peers[0].got.iter().any(|(_, body)| body.ends_with(b"the last one"));
    assert!(got, "the member caught up");
}

#[test]
fn endless_joins_do_not_pile_up() {
    let mut rig = Rig::<Gateway>::new();
    let younger = StreamId {
        generation: 1_000_000,
        ..stream(1)
    };
    for request in 0..3_000 {
        rig.now += 210_000;
        rig.tell(
            1,
            &Record::Join {
                request: request + 10,
                name: ROOM.as_bytes(),
                positions: Positions::at([(younger, 5)]),
                history: 0,
            },
        );
        rig.turn();
        for at in [2, 3, 4] {
            rig.frame(at, FrameKind::PING.code(), &[]);
        }
    }
    let waiting: usize = rig.machine.rooms().map(|room| room.waiting.len()).sum();
    assert!(waiting <= 256, "{waiting} joins of one session wait");
    rig.pass(3_000_000, 100_000);
    for at in [2, 3, 4] {
        rig.frame(at, FrameKind::PING.code(), &[]);
    }
    let waiting: usize = rig.machine.rooms().map(|room| room.waiting.len()).sum();
    assert_eq!(waiting, 0, "a join is answered finally");
}

/// User and system time of this thread: fields 14 and 15 of its `stat`, in ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux tells a thread its times");
    let after_name = stat.rsplit(')').next().unwrap_or("");
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.map(|field| field.parse::<f64>().expect("ticks")).sum::<f64>() / 100.0
}

#[test]
fn gap_requests_in_a_loop_are_cheap() {
    let mut rig = Rig::<Gateway>::new();
    // A ring of many places, most of which the arena has overwritten.
    for offset in 3..40_000 {
        rig.say(2, &link_room(1, offset, &[b""]));
        if offset % 32 == 0 {
            rig.turn();
        }
    }
    let first = muster_rooms::FIRST_PLACE;
    let request = body(|writer| {
        let wanted: Vec<_> = (0..16).map(|at| (first + at, first + at + (1 << 20))).collect();
        write_repair(writer, 0, first, &wanted)
    });
    let plaintext: Vec<u8> = request.iter().copied().cycle().take(request.len() * 5).collect();
    let (before, sent) = (cpu_seconds(), rig.accounts[&rig.peers[0].addr].sent);
    for _ in 0..2_000 {
        rig.say(0, &plaintext);
        rig.now += 500;
        rig.turn();
    }
    let sent = rig.accounts[&rig.peers[0].addr].sent - sent;
    assert!(sent < 3 << 20, "{sent} B in a second");
    let took = cpu_seconds() - before;
    assert!(took < 10.0, "{took:.2} s of a processor for 2,000 datagrams");
    assert!(serves(&mut rig, 0, 40_000));
}

#[test]
fn repairs_stay_within_a_sessions_allowance() {
    let mut rig = Rig::<Gateway>::new();
    for offset in 3..700 {
        rig.say(2, &link_room(1, offset, &[&[b'x'; 1_000]]));
        rig.pass(2_000, 2_000);
    }
    let first = muster_rooms::FIRST_PLACE;
    for part in 0..4 {
        let ranges: Vec<_> = (0..16).map(|at| (first + 600 + 16 * part + at, first + 690)).collect();
        let request = body(|writer| write_repair(writer, 0, first, &ranges));
        rig.say(0, &request);
    }
    rig.pass(3_000_000, 5_000);
    let repaired = 1_000 * counter(&rig.machine, "messages_repaired");
    let sent = rig.accounts[&rig.peers[0].addr].sent;
    let allowed = sent / 4 + (256 << 10) + (64 << 10) * rig.now / 1_000_000;
    assert!(repaired > 100_000, "some of it is: {repaired} B");
    assert!(repaired <= allowed + 2_000, "{repaired} B of {allowed}");
    // It may ask for the missing ones after a while with less traffic.
    rig.pass(5_000_000, 20_000);
    let before = counter(&rig.machine, "messages_repaired");
    rig.say(
        0,
        &body(|writer| write_repair(writer, 0, first, &[(first + 690, first + 694)])),
    );
    rig.pass(100_000, 5_000);
    assert_eq!(counter(&rig.machine, "messages_repaired"), before + 5);
}

#[test]
fn a_greedy_session_does_not_keep_the_slices_from_the_rooms() {
    let mut rig = Rig::<Gateway>::new();
    rig.join(1, 2, ROOM, Positions::default());
    // Session 1 reports that everything arrived and that its window is unlimited.
    for offset in 3..3_000 {
        rig.say(2, &link_room(1, offset, &[&[b'x'; 30]]));
        rig.turn();
    }
    let first = muster_rooms::FIRST_PLACE;
    for _ in 0..50 {
        let request = body(|writer| write_repair(writer, 0, first, &[(first, first + 2_900)]));
        rig.say(1, &request);
        rig.turn();
    }
    assert!(serves(&mut rig, 0, 3_000));
}

#[test]
fn a_lying_publisher_harms_only_itself() {
    let mut rig = Rig::<Broker>::new();
    for (low, first) in [
        (u64::MAX, u64::MAX),
        (1 << 62, 1 << 62),
        (1, u64::MAX),
        (u64::MAX, 1),
        ((1 << 62) - 1, (1 << 62) - 1),
    ] {
        for incarnation in [5, 6, 7] {
            rig.say(0, &link_publish(incarnation, low, first, &[b"a", b"b", b"c"]));
            rig.turn();
        }
    }
    let before = counter(&rig.machine, "messages_published");
    rig.say(0, &link_publish(99, 1, 1, &[b"fine"]));
    assert_eq!(counter(&rig.machine, "messages_published"), before + 1);
}

#[test]
fn a_flooding_publisher_leaves_the_others_their_share() {
    let mut rig = Rig::<Proxy>::new();
    rig.tell(
        1,
        &Record::Open {
            request: 1,
            name: ROOM.as_bytes(),
            incarnation: 6,
        },
    );
    rig.peers[2].polite = false; // the broker is busy
    rig.turn();
    for size in [900, 100, 1, 0] {
        for first in 0..10_000 {
            rig.say(0, &publish(0, 1, 2 + first, &[&vec![b'x'; size]]));
            rig.now += 1;
        }
    }
    let dropped = counter(&rig.machine, "dropped_queue_full");
    assert!(dropped > 0);
    rig.say(1, &publish(0, 1, 1, &[b"a few bytes"]));
    assert_eq!(
        counter(&rig.machine, "dropped_queue_full"),
        dropped,
        "a modest publisher is served"
    );
}

#[test]
fn one_user_cannot_take_every_place_of_a_broker() {
    let mut rig = Rig::<Broker>::new();
    let max = muster_rooms::USER_PUBLICATIONS_MAX as u64;
    for incarnation in 0..max + 1_000 {
        rig.say(0, &link_publish(1_000 + incarnation, 1, 1, &[b""]));
    }
    assert!(counter(&rig.machine, "dropped_full") >= 1_000);
}

/// Each publisher may have 64 KiB held, but there may be a million publishers.
#[test]
fn holes_of_many_publishers_do_not_fill_a_broker() {
    let mut rig = Rig::<Broker>::new();
    let before = counter(&rig.machine, "messages_published");
    let data: &[&[u8]] = &[&[b'x'; 1_000]];
    for at in 0..40_000 {
        rig.say(0, &link_publish(1_000 + at / 60, 1, 2 + at % 60, data));
    }
    let held = rig.machine.held_bytes();
    assert!(
        (1 << 20..=USER_HELD_MAX).contains(&held),
        "{held} B are held for one user"
    );
    assert_eq!(counter(&rig.machine, "messages_published"), before);
    let another = |first, data| link_publish_of(43, 1, 1, first, data);
    rig.say(0, &another(2, &[b"early"]));
    rig.say(0, &another(1, &[b"late"]));
    assert_eq!(
        counter(&rig.machine, "messages_published"),
        before + 2,
        "another's are held"
    );
    rig.pass(70_000_000, 1_000_000);
    assert_eq!(
        rig.machine.held_bytes(),
        0,
        "a publisher that does not return leaves nothing"
    );
}

/// Regression: acknowledgements for a proxy that never returned kept its publishers forever.
#[test]
fn publishers_of_a_proxy_that_is_gone_are_forgotten() {
    let mut rig = Rig::<Broker>::new();
    rig.peers[0].polite = false;
    for incarnation in 1_000..1_100 {
        rig.say(0, &link_publish(incarnation, 1, 2, &[b"early"]));
    }
    assert_eq!(rig.machine.held(), 100);
    rig.pass(70_000_000, 1_000_000);
    assert_eq!(rig.machine.held(), 0);
}

#[test]
fn endless_gaps_do_not_fill_a_client() {
    let mut rig = Rig::<Client>::new();
    let place = muster_rooms::FIRST_PLACE;
    for at in 0..20_000 {
        let gap = StreamGap {
            stream: stream(1 + at as u32 % 5),
            first: 2 * at + 1,
            last: 2 * at + 1,
            reason: GapReason::Unrepaired,
        };
        let index = place + at;
        rig.say(0, &body(|writer| GapPlace { handle: 0, index, gap }.write(writer)));
    }
    let unread = rig.machine.room(0).unwrap().reading.len();
    assert!(unread <= 2_048, "{unread} items are unread");
}

#[test]
fn nothing_follows_a_refusal() {
    let mut rig = Rig::<Client>::new();
    let records = [
        Record::Control(ControlRecord::Refused {
            request: 0,
            code: muster_transport::Code::Busy,
            retry_ms: 1,
        }),
        Record::Control(ControlRecord::Ready {
            user: 1,
            token: [1; 16],
            keepalive_ms: 1000,
        }),
    ];
    let first = rig.peers[0].conn.log.last() + 1;
    let mut log = [&first.to_le_bytes()[..], &2u16.to_le_bytes()].concat();
    for record in records {
        record.encode(|bytes| {
            log.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
            log.extend_from_slice(bytes);
        });
    }
    rig.frame(0, FrameKind::LOG.code(), &log);
    assert!(!rig.machine.is_ready(muster_rooms::Side::Gateway));
}

// ---- corpus and dice

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.sort();
    files
        .iter()
        .map(|path| std::fs::read(path).expect("the corpus can be read"))
        .collect()
}

/// Replays the committed corpus, then mutates it for a while.
fn replay(target: &str) {
    let run = TARGETS.iter().find(|(name, _)| *name == target).expect("a target").1;
    let mut inputs = corpus(target);
    inputs.extend(seeds(target));
    inputs.iter().for_each(|input| run(input));
    let seconds = std::env::var("HOSTILE_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(5.0);
    let (start, mut dice, mut runs) = (Instant::now(), dice(), 0);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        let mut input = inputs[dice.below(inputs.len() as u64) as usize].clone();
        if dice.below(2) == 0 {
            let other = &inputs[dice.below(inputs.len() as u64) as usize];
            input.truncate(dice.below(input.len() as u64 + 1) as usize);
            input.extend_from_slice(&other[dice.below(other.len() as u64 + 1) as usize..]);
        }
        let input = mutate(&mut dice, &input);
        let caught = std::panic::catch_unwind(|| run(&input));
        if let Err(panic) = caught {
            let path = std::env::temp_dir().join(format!("muster-{target}-crash"));
            let _ = std::fs::write(&path, &input);
            eprintln!("the input is in {}", path.display());
            std::panic::resume_unwind(panic);
        }
        runs += 1;
    }
    eprintln!("{target}: {} inputs of the corpus, {runs} mutations", inputs.len());
}

macro_rules! replays {
    ($($name:ident $target:literal,)*) => {
        $(#[test]
        fn $name() {
            replay($target);
        })*
    };
}

replays! {
    the_corpus_of_frames_holds "frames",
    the_corpus_of_records_holds "records",
    the_corpus_of_handshakes_holds "handshake",
    the_corpus_of_gateways_holds "gateway",
    the_corpus_of_proxies_holds "proxy",
    the_corpus_of_brokers_holds "broker",
    the_corpus_of_routers_holds "router",
    the_corpus_of_clients_holds "client",
}

/// Writes the seeds where cargo-fuzz finds them.
#[test]
#[ignore = "writes core/fuzz/corpus"]
fn write_seeds() {
    for (target, _) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../fuzz/corpus")
            .join(target);
        std::fs::create_dir_all(&folder).unwrap();
        for (number, seed) in seeds(target).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:02}")), seed).unwrap();
        }
    }
}

#[test]
fn a_gateway_that_announces_bad_servers_keeps_no_client_from_its_given_one() {
    let mut rig = Rig::<Client>::learning();
    let (role, mut dice) = (role::GATEWAY, dice());
    let server = |ip: [u8; 4], port, key| Server {
        addr: std::net::SocketAddr::from((ip, port)).into(),
        key,
        weight: u16::MAX,
    };
    let nowhere = [
        server([0, 0, 0, 0], 1, [1; 32]),
        server([224, 0, 0, 1], 1, [1; 32]),
        server([255; 4], 1, [1; 32]),
        server([192, 0, 2, 1], 0, [1; 32]),
    ];
    let servers = nowhere.to_vec();
    rig.tell(0, &Record::Control(ControlRecord::Servers { role, servers }));
    // Hundreds of strangers; the right address with a wrong key; malformed servers.
    for _ in 0..40 {
        let mut nobody = |at: usize| server([192, 0, 2, at as u8], dice.roll() as u16 | 1, [at as u8; 32]);
        let servers: Vec<Server> = (0..SERVERS_MAX).map(&mut nobody).collect();
        rig.tell(0, &Record::Control(ControlRecord::Servers { role, servers }));
        let mut long = vec![36, role.code(), 255];
        let len = dice.below(900);
        long.extend(random(&mut dice, len));
        rig.record(0, &long);
        rig.record(0, &[36, role::BROKER.code(), 0]);
        rig.pass(20_000, 5_000);
    }
    rig.pass(1_000_000, 20_000);
    rig.out.clear();
    rig.frame(0, FrameKind::CLOSE.code(), &[0]);
    let began = rig.now;
    let mut tried = std::collections::BTreeSet::new();
    loop {
        rig.pass(20_000, 5_000);
        if rig.now % 100_000 < 20_000 {
            rig.frame(1, FrameKind::PING.code(), &[]);
        }
        let sent: Vec<_> = rig.out.drain(..).collect();
        let hello = |bytes: &[u8]| Header::read(bytes).unwrap().kind == DatagramKind::Hello;
        tried.extend(sent.iter().filter(|(_, bytes)| hello(bytes)).map(|(to, _)| *to));
        if tried.contains(&addr(9001)) {
            break;
        }
        assert!(
            rig.now < began + 6_000_000,
            "the given server was not tried, but {tried:?}"
        );
    }
    assert!(nowhere.iter().all(|server| !tried.contains(&server.addr)), "{tried:?}");
}
