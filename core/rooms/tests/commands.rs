//! Commands at one real machine among peers that follow the protocol: their paths, their receivers, the counting, and
//! the replies of an overloaded machine.

mod common;

use common::*;
use muster_rooms::command::{
    Ask, CommandId, Hop, Outcome, Page, Verdict, AWAY_GRACE, COMMANDS_MAX, COPIES, GRACE, RETRY, SPREAD_BURST,
};
use muster_rooms::wire::{kinds, LinkHead, Membership, Positions, Record};
use muster_rooms::{
    role, room_placement, Broker, Client, ClientEvent, Endpoint, Gateway, Proxy, RoomKey, Side, SILENCE_MAX,
};
use muster_transport::{Code, ControlRecord, FrameKind, Machine, Micros, PlacedNode};

const LIFETIME: Micros = 5_000_000;
/// Longer than spare sessions are kept.
const QUIET: Micros = 32_000_000;
const BUSY: Outcome = Outcome {
    verdict: Verdict::Refused(Code::Busy),
    members: 0,
};

// ---- the client

fn servers(ports: &[u16]) -> Vec<Endpoint> {
    let endpoint = |port: &u16| Endpoint {
        addr: addr(*port),
        key: server_key().public(),
    };
    ports.iter().map(endpoint).collect()
}

/// A client of gateway 0 and proxy 1 that knows this many more proxies.
fn client(others: u16) -> Rig<Client> {
    let mut rig = Rig::<Client>::new();
    let proxies: Vec<u16> = (9002..=9002 + others).collect();
    rig.machine
        .redirect(rig.now, servers(&[9001]), servers(&proxies), b"token".to_vec());
    rig
}

/// The same client after its first command, sent in the sessions 1, 2 and 3.
fn at_three_proxies() -> (Rig<Client>, u64) {
    let mut rig = client(2);
    let number = command(&mut rig);
    for port in [9003, 9004] {
        open(&mut rig, port);
    }
    assert_eq!([1, 2, 3].map(|peer| told(&mut rig, peer)), [[number]; 3]);
    (rig, number)
}

fn command(rig: &mut Rig<Client>) -> u64 {
    let number = rig.machine.command(rig.now, ROOM, b"go", LIFETIME).unwrap();
    rig.turn();
    number
}

/// Opens the client's session at one of its proxies.
fn open(rig: &mut Rig<Client>, port: u16) {
    rig.serve(port);
    let ready = Record::Control(ControlRecord::Ready {
        user: 42,
        token: [9; 16],
        keepalive_ms: 1_000,
    });
    rig.tell(rig.peers.len() - 1, &ready);
    rig.turn();
}

/// The commands that a proxy got since the last call.
fn told(rig: &mut Rig<Client>, peer: usize) -> Vec<u64> {
    let number = |bytes: &Vec<u8>| match Record::read(bytes) {
        Some(Record::Command { number, .. }) => Some(number),
        _ => None,
    };
    rig.peers[peer].take_records().iter().filter_map(number).collect()
}

/// A proxy reports the outcome of a command; returns the program's events.
fn answer(rig: &mut Rig<Client>, peer: usize, number: u64, outcome: Outcome) -> Vec<Outcome> {
    let done = Record::CommandDone {
        number,
        outcome,
        retry_ms: (RETRY / 1_000) as u32 * u32::from(outcome.is_put_off()),
        page: None,
    };
    rig.tell(peer, &done);
    heard(rig)
}

fn heard(rig: &mut Rig<Client>) -> Vec<Outcome> {
    let mut events = Vec::new();
    rig.machine.drain_events(&mut events);
    let outcome = |event: &ClientEvent| match event {
        ClientEvent::Commanded { outcome, .. } => Some(*outcome),
        _ => None,
    };
    events.iter().filter_map(outcome).collect()
}

/// Runs for `time` with all servers up; returns the program's events.
fn pass(rig: &mut Rig<Client>, time: Micros) -> Vec<Outcome> {
    let (end, mut all) = (rig.now + time, Vec::new());
    while rig.now < end {
        rig.now += 20_000.min(end - rig.now);
        for peer in 0..rig.peers.len() {
            rig.frame(peer, FrameKind::PING.code(), &[]);
        }
        rig.machine.expire(rig.now);
        all.extend(heard(rig));
        rig.turn();
    }
    all
}

#[test]
fn a_command_goes_through_three_proxies_and_the_first_outcome_counts() {
    let (mut rig, number) = at_three_proxies();
    assert_eq!(answer(&mut rig, 2, number, Outcome::of(3)), [Outcome::of(3)]);
    for late in [Outcome::of(2), Outcome::of(0), BUSY, Outcome::expired(1)] {
        assert_eq!(answer(&mut rig, 1, number, late), []);
    }
    let next = command(&mut rig);
    assert_eq!([1, 2, 3].map(|peer| told(&mut rig, peer)), [[next]; 3]);
}

#[test]
fn with_two_proxies_both_get_a_command_and_with_one_that_one() {
    for others in [0, 1] {
        let mut rig = client(others);
        let number = command(&mut rig);
        (0..others).for_each(|_| open(&mut rig, 9003));
        assert_eq!(rig.peers.len(), 2 + usize::from(others));
        for peer in 1..rig.peers.len() {
            assert_eq!(told(&mut rig, peer), [number]);
        }
        pass(&mut rig, 300_000);
        assert!(rig.out.is_empty(), "it opens no other session");
    }
}

#[test]
fn a_temporary_refusal_does_not_count_while_another_proxy_may_have_it() {
    let (mut rig, number) = at_three_proxies();
    assert_eq!(answer(&mut rig, 1, number, Outcome::refused(Code::RateLimited)), []);
    assert_eq!(answer(&mut rig, 2, number, BUSY), []);
    assert_eq!(answer(&mut rig, 3, number, Outcome::of(1)), [Outcome::of(1)]);

    let (mut rig, number) = at_three_proxies();
    assert_eq!(answer(&mut rig, 1, number, BUSY), []);
    assert_eq!(answer(&mut rig, 2, number, BUSY), []);
    assert_eq!(answer(&mut rig, 3, number, BUSY), [BUSY], "all have");

    let (mut rig, number) = at_three_proxies();
    let never = Outcome::refused(Code::BadRoomName);
    assert_eq!(answer(&mut rig, 1, number, never), [never], "no other will take it");
}

#[test]
fn no_member_counts_once_the_others_have_answered_or_their_time_is_over() {
    let none = Outcome::of(0);
    let (mut rig, number) = at_three_proxies();
    assert_eq!(answer(&mut rig, 1, number, none), []);
    assert_eq!(answer(&mut rig, 2, number, Outcome::of(1)), [Outcome::of(1)]);

    let (mut rig, number) = at_three_proxies();
    assert_eq!(answer(&mut rig, 1, number, Outcome::expired(0)), []);
    assert_eq!(answer(&mut rig, 2, number, none), []);
    assert_eq!(answer(&mut rig, 3, number, BUSY), [none]);

    let (mut rig, number) = at_three_proxies();
    assert_eq!(answer(&mut rig, 1, number, none), []);
    assert_eq!(pass(&mut rig, GRACE - 40_000), []);
    assert_eq!(pass(&mut rig, 80_000), [none]);
}

/// The proxy that died may have forwarded it.
#[test]
fn a_possibly_tried_command_is_not_reported_as_refused() {
    let (mut rig, number) = at_three_proxies();
    assert_eq!(answer(&mut rig, 1, number, BUSY), []);
    rig.frame(2, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(answer(&mut rig, 3, number, BUSY), []);
    assert_eq!(pass(&mut rig, RETRY + 40_000), []);
    assert_eq!(
        [1, 3].map(|peer| told(&mut rig, peer)),
        [[number]; 2],
        "they are asked again"
    );
    assert_eq!(answer(&mut rig, 1, number, BUSY), []);
    assert_eq!(pass(&mut rig, LIFETIME), [Outcome::expired(0)]);
}

/// The program may send it again when the last of them accepts it: before, it might get the same refusal again.
#[test]
fn the_longest_wait_of_several_refusals_is_reported() {
    let (mut rig, number) = at_three_proxies();
    let outcome = Outcome::refused(Code::RateLimited);
    for (peer, retry_ms) in [(2, 700), (1, 900), (3, 800)] {
        let page = None;
        rig.tell(
            peer,
            &Record::CommandDone {
                number,
                outcome,
                retry_ms,
                page,
            },
        );
    }
    let mut events = Vec::new();
    rig.machine.drain_events(&mut events);
    let told = events.iter().find_map(|event| match event {
        ClientEvent::Commanded { retry_ms, .. } => Some(*retry_ms),
        _ => None,
    });
    assert_eq!(told, Some(900));
}

#[test]
fn copies_are_sent_within_a_rate_and_other_commands_go_to_one_proxy() {
    let (mut rig, _) = at_three_proxies();
    let more: Vec<u64> = (0..=SPREAD_BURST).map(|_| command(&mut rig)).collect();
    let within = SPREAD_BURST as usize - 1;
    let counts = [1, 2, 3].map(|peer| told(&mut rig, peer).len());
    assert_eq!(counts, [more.len(), within, within]);
}

#[test]
fn a_query_goes_through_the_main_session() {
    let (mut rig, _) = at_three_proxies();
    let number = rig.machine.count(rig.now, ROOM, None, LIFETIME).unwrap();
    rig.turn();
    assert_eq!(told(&mut rig, 1), [number]);
    assert_eq!([2, 3].map(|peer| told(&mut rig, peer)), [[0; 0]; 2]);
}

#[test]
fn spares_are_closed_when_there_was_no_command_for_a_while_and_opened_again() {
    let (mut rig, number) = at_three_proxies();
    answer(&mut rig, 1, number, Outcome::of(1));
    let closed = |rig: &Rig<Client>| [1, 2, 3].map(|peer| rig.peers[peer].frames(FrameKind::CLOSE));
    pass(&mut rig, QUIET - 4_000_000);
    assert_eq!(closed(&rig), [0; 3]);
    pass(&mut rig, 4_000_000);
    assert_eq!(closed(&rig), [0, 1, 1]);
    rig.out.clear();
    pass(&mut rig, 1_000_000);
    assert!(rig.out.is_empty());
    let number = command(&mut rig);
    for port in [9003, 9004] {
        open(&mut rig, port);
    }
    assert_eq!([1, 4, 5].map(|peer| told(&mut rig, peer)), [[number]; 3]);
}

#[test]
fn spares_are_hidden_from_the_program_and_closed_with_the_client() {
    let (mut rig, _) = at_three_proxies();
    rig.frame(2, FrameKind::CLOSE.code(), &[0]);
    let mut events = Vec::new();
    rig.machine.drain_events(&mut events);
    assert_eq!(events, []);
    assert_eq!(counter(&rig.machine, "sessions_lost"), 0);
    open(&mut rig, 9003);
    let mut events = Vec::new();
    rig.machine.drain_events(&mut events);
    assert_eq!(events, []);
    rig.machine.close();
    rig.turn();
    assert!(rig.machine.is_closed());
    for peer in [0, 1, 3, 4] {
        assert_eq!(rig.peers[peer].frames(FrameKind::CLOSE), 1);
    }
}

/// The proxy of the main session is gone, so the session moves to a proxy that has a spare; the spare moves once it
/// is no longer needed there.
#[test]
fn two_sessions_do_not_stay_at_one_proxy() {
    let (mut rig, number) = at_three_proxies();
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    assert!(!rig.machine.is_ready(Side::Proxy));
    assert_eq!(pass(&mut rig, 100_000), []);
    let next = command(&mut rig);
    assert_eq!([2, 3].map(|peer| told(&mut rig, peer)), [[next]; 2], "without any wait");
    let (to, _) = rig.out.back().cloned().expect("it knocks");
    let (port, spare) = if to == addr(9003) { (9003, 2) } else { (9004, 3) };
    assert_eq!(to, addr(port));
    open(&mut rig, port);
    pass(&mut rig, 20_000);
    assert!(rig.machine.is_ready(Side::Proxy));
    let closed = [2, 3].map(|peer| rig.peers[peer].frames(FrameKind::CLOSE));
    assert_eq!(closed, [usize::from(spare == 2), usize::from(spare == 3)]);
    let again = told(&mut rig, 4);
    assert!(again.contains(&number) && again.contains(&next), "{again:?}");
    // And it tries the remaining one.
    rig.out.clear();
    pass(&mut rig, SILENCE_MAX);
    assert!(!rig.out.is_empty() && rig.out.iter().all(|(to, _)| *to == addr(9002)));
}

/// Regression: the engine was never idle while it had spares: one was opened without a free proxy, and closed again.
#[test]
fn proxies_with_the_same_address_count_as_one_and_leave_the_client_idle() {
    let stale = Endpoint {
        key: [3; 32],
        ..servers(&[9002])[0].clone()
    };
    let twice = servers(&[9002, 9002]);
    let and_another = servers(&[9002, 9002, 9003]);
    let with_a_stale_key = vec![servers(&[9002])[0].clone(), stale];
    for proxies in [twice, and_another, with_a_stale_key] {
        let mut rig = Rig::<Client>::new();
        rig.machine
            .redirect(rig.now, servers(&[9001]), proxies.clone(), b"token".to_vec());
        let number = command(&mut rig);
        if proxies.len() > 2 {
            open(&mut rig, 9003);
        }
        for peer in 1..rig.peers.len() {
            assert_eq!(told(&mut rig, peer), [number]);
        }
        for _ in 0..50 {
            pass(&mut rig, 20_000);
            assert!(rig.machine.deadline() > Some(rig.now), "{proxies:?}");
        }
        assert!(rig.out.is_empty(), "it opens no other session");
    }
}

// ---- proxy, broker and gateway

fn id(number: u64) -> CommandId {
    CommandId { user: 42, number }
}

fn link_command(number: u64, ask: Ask<'static>) -> Record<'static> {
    Record::LinkCommand {
        command: id(number),
        session: 7,
        room: room_id(ROOM),
        check: room_key(ROOM).check,
        left_ms: 5_000,
        ask,
    }
}

fn done(number: u64, outcome: Outcome) -> Record<'static> {
    Record::LinkCommandDone {
        command: id(number),
        session: 7,
        outcome,
        page: None,
    }
}

/// The commands that a node got since the last call: their numbers, and outcomes.
fn of_commands<M: Subject>(rig: &mut Rig<M>, peer: usize) -> Vec<(u64, Option<Outcome>)> {
    let records = rig.peers[peer].take_records();
    let read = |bytes: &Vec<u8>| match Record::read(bytes) {
        Some(Record::LinkCommand { command, .. }) => Some((command.number, None)),
        Some(Record::CommandTold { command, .. }) => Some((command.number, None)),
        Some(Record::LinkCommandDone { command, outcome, .. }) => Some((command.number, Some(outcome))),
        Some(Record::CommandDone { number, outcome, .. }) => Some((number, Some(outcome))),
        _ => None,
    };
    records.iter().filter_map(read).collect()
}

/// A proxy with a session, 0, and two brokers that run.
fn proxy() -> (Rig<Proxy>, [usize; 2]) {
    let mut rig = Rig::<Proxy>::bare();
    let nodes = [BROKER, BROKER + 50].map(|node| PlacedNode::new(node, role::BROKER, addr(9000 + node as u16)));
    let placement = room_placement(2, nodes.to_vec(), 1, 1);
    rig.machine.set_placement(rig.now, placement);
    rig.machine.set_command_limit(1, 5);
    rig.session(1);
    let brokers = nodes.map(|node| rig.link(node.node, role::BROKER));
    (rig, brokers)
}

/// The broker that got a command.
fn receiver_of(rig: &mut Rig<Proxy>, brokers: [usize; 2]) -> usize {
    let told = brokers
        .into_iter()
        .filter(|broker| !of_commands(rig, *broker).is_empty());
    let told: Vec<usize> = told.collect();
    assert_eq!(told.len(), 1, "{told:?}");
    told[0]
}

#[test]
fn a_busy_broker_does_not_refuse_a_command_that_another_may_have() {
    let (mut rig, brokers) = proxy();
    for (number, silent) in [(1, false), (2, true)] {
        rig.tell(0, &go(number));
        rig.turn();
        let first = receiver_of(&mut rig, brokers);
        let mut last = first;
        if silent {
            rig.pass(500_000, 20_000);
            last = receiver_of(&mut rig, brokers);
            assert_ne!(first, last);
        }
        rig.tell(last, &done(number, BUSY));
        rig.turn();
        let refused = (number, Some(BUSY));
        assert_eq!(of_commands(&mut rig, 0), if silent { vec![] } else { vec![refused] });
        rig.tell(first, &done(number, Outcome::of(1)));
        rig.turn();
        let delivered = (number, Some(Outcome::of(1)));
        assert_eq!(of_commands(&mut rig, 0), if silent { vec![delivered] } else { vec![] });
    }
}

/// It is not the awaited broker, and another waiting command must not be charged for that each time.
#[test]
fn an_unready_broker_is_rarely_asked_while_another_has_the_command() {
    let (mut rig, brokers) = proxy();
    rig.tell(0, &go(1));
    rig.turn();
    let first = receiver_of(&mut rig, brokers);
    let other = brokers.into_iter().find(|broker| *broker != first).unwrap();
    let not_ready = done(1, Outcome::refused(Code::NotReady));
    let mut asked = [0, 0];
    for _ in 0..150 {
        rig.pass(20_000, 20_000);
        for (peer, asked) in [first, other].into_iter().zip(&mut asked) {
            rig.frame(peer, FrameKind::PING.code(), &[]);
            let told = of_commands(&mut rig, peer).len();
            *asked += told;
            if told > 0 && peer == other {
                rig.tell(other, &not_ready);
            }
        }
    }
    assert_eq!(asked[0], 0, "it has it");
    assert!(
        (2..=11).contains(&asked[1]),
        "once in 300 ms, not {asked:?} times in 3 s"
    );
    rig.tell(first, &done(1, Outcome::of(1)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::of(1)))]);
}

/// A member may take its time, and a command may use all the time until a link times out.
#[test]
fn a_broker_gets_a_command_again_only_on_a_new_link() {
    let (mut rig, brokers) = proxy();
    rig.tell(0, &go(1));
    rig.turn();
    let mut told = [0, 0];
    let pass = |rig: &mut Rig<Proxy>, told: &mut [usize; 2]| {
        for _ in 0..20 {
            rig.pass(100_000, 20_000);
            for (peer, told) in brokers.iter().zip(told.iter_mut()) {
                rig.frame(*peer, FrameKind::PING.code(), &[]);
                *told += of_commands(rig, *peer).len();
            }
        }
    };
    pass(&mut rig, &mut told);
    assert_eq!(told, [1, 1]);
    rig.frame(brokers[0], FrameKind::CLOSE.code(), &[0]);
    rig.turn();
    let back = rig.link(BROKER, role::BROKER);
    rig.pass(100_000, 20_000);
    assert_eq!(of_commands(&mut rig, back), [(1, None)]);
    pass(&mut rig, &mut told);
    assert_eq!(told, [1, 1]);
    rig.tell(brokers[1], &done(1, Outcome::of(1)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::of(1)))]);
}

#[test]
fn the_only_broker_left_is_asked_again_when_it_was_busy() {
    let (mut rig, brokers) = proxy();
    rig.tell(0, &go(1));
    rig.turn();
    let first = receiver_of(&mut rig, brokers);
    rig.pass(400_000, 20_000);
    let last = receiver_of(&mut rig, brokers);
    let left = if last == brokers[0] { BROKER } else { BROKER + 50 };
    let nodes = vec![PlacedNode::new(left, role::BROKER, addr(9000 + left as u16))];
    rig.machine.set_placement(rig.now, room_placement(3, nodes, 1, 1));
    rig.tell(last, &done(1, BUSY));
    rig.pass(RETRY / 2, 20_000);
    assert_eq!(of_commands(&mut rig, last), [], "it announced the wait");
    rig.pass(RETRY, 20_000);
    assert!(!of_commands(&mut rig, last).is_empty());
    rig.tell(last, &done(1, Outcome::of(1)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::of(1)))]);
    assert_ne!(first, last);
}

/// A broker with this many proxies, and their peers' indexes; 1: the gateway.
fn broker(proxies: u32) -> (Rig<Broker>, Vec<usize>) {
    let mut rig = Rig::<Broker>::new();
    let more = (1..proxies).map(|at| rig.link(60 + at, role::PROXY));
    let more: Vec<usize> = more.collect();
    (rig, [vec![0], more].concat())
}

#[test]
fn every_proxy_that_sent_a_copy_gets_the_outcome() {
    let (mut rig, proxies) = broker(4);
    let (late, first) = proxies.split_last().unwrap();
    for proxy in first {
        rig.tell(*proxy, &link_command(1, Ask::tell(b"go")));
        rig.turn();
    }
    assert_eq!(of_commands(&mut rig, 1), [(1, None)], "a gateway is told once");
    rig.tell(1, &done(1, Outcome::of(2)));
    rig.turn();
    for proxy in first {
        assert_eq!(of_commands(&mut rig, *proxy), [(1, Some(Outcome::of(2)))]);
    }
    rig.tell(*late, &link_command(1, Ask::tell(b"go")));
    rig.turn();
    assert_eq!(of_commands(&mut rig, *late), [(1, Some(Outcome::of(2)))]);
    assert!(first.iter().all(|proxy| of_commands(&mut rig, *proxy).is_empty()));
    assert_eq!(of_commands(&mut rig, 1), []);
}

#[test]
fn a_command_not_confirmed_by_all_members_in_time_has_expired() {
    for (one, other, both) in [
        (Outcome::expired(0), Outcome::of(0), Outcome::expired(0)),
        (Outcome::expired(1), Outcome::of(2), Outcome::expired(3)),
        (Outcome::of(0), Outcome::of(2), Outcome::of(2)),
    ] {
        let (mut rig, _) = broker(1);
        let second = rig.link(80, role::GATEWAY);
        names_gateway(&mut rig, 2, 80, membership(1, true));
        rig.tell(0, &link_command(1, Ask::tell(b"go")));
        rig.turn();
        rig.tell(1, &done(1, one));
        rig.tell(second, &done(1, other));
        rig.turn();
        assert_eq!(of_commands(&mut rig, 0), [(1, Some(both))]);
    }
}

#[test]
fn the_latest_of_too_many_proxies_get_the_outcome() {
    let (mut rig, proxies) = broker(COPIES as u32 + 2);
    for proxy in &proxies {
        rig.tell(*proxy, &link_command(1, Ask::tell(b"go")));
    }
    rig.tell(1, &done(1, Outcome::of(2)));
    rig.turn();
    let answered: Vec<bool> = proxies
        .iter()
        .map(|proxy| !of_commands(&mut rig, *proxy).is_empty())
        .collect();
    assert_eq!(answered, [false, false, true, true, true]);
}

#[test]
fn a_command_that_all_gateways_are_too_busy_for_is_refused_and_the_next_copy_is_tried() {
    let (mut rig, _) = broker(1);
    for _ in 0..2 {
        rig.tell(0, &link_command(1, Ask::tell(b"go")));
        rig.turn();
        assert_eq!(of_commands(&mut rig, 1), [(1, None)]);
        rig.tell(1, &done(1, BUSY));
        rig.turn();
        assert_eq!(of_commands(&mut rig, 0), [(1, Some(BUSY))]);
    }
}

#[test]
fn a_command_is_retried_at_the_busy_gateway_if_another_delivered_it() {
    let (mut rig, _) = broker(1);
    let other = rig.link(80, role::GATEWAY);
    names_gateway(&mut rig, 2, 80, membership(1, true));
    rig.tell(0, &link_command(1, Ask::tell(b"go")));
    rig.turn();
    rig.tell(1, &done(1, Outcome::of(2)));
    rig.tell(other, &done(1, BUSY));
    rig.turn();
    assert_eq!(of_commands(&mut rig, other), [(1, None)]);
    assert_eq!(of_commands(&mut rig, 0), []);
    let mut told = Vec::new();
    let end = rig.now + RETRY + 200_000;
    while rig.now < end {
        rig.pass(100_000, 20_000);
        for peer in 0..rig.peers.len() {
            rig.frame(peer, FrameKind::PING.code(), &[]);
        }
        told.extend(of_commands(&mut rig, other));
    }
    assert_eq!(told, [(1, None)], "once more");
    rig.tell(other, &done(1, Outcome::of(3)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::of(5)))]);
}

/// A broker with the gateways 1 and [`OTHER`], which both want the room; a command that the latter has delivered to
/// two members; and no link to the first anymore.
fn cut_off() -> (Rig<Broker>, usize) {
    let (mut rig, _) = broker(1);
    let other = rig.link(OTHER, role::GATEWAY);
    names_gateway(&mut rig, 2, OTHER, membership(1, true));
    rig.tell(0, &link_command(1, Ask::tell(b"go")));
    rig.turn();
    assert_eq!([1, other].map(|peer| of_commands(&mut rig, peer)), [[(1, None)]; 2]);
    rig.tell(other, &done(1, Outcome::of(2)));
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), []);
    (rig, other)
}

const OTHER: u32 = 80;

/// The router's report of the first gateway.
fn seen(rig: &mut Rig<Broker>, up: bool) {
    let node = GATEWAY;
    rig.tell(2, &Record::GatewaySeen { node, up });
}

/// Runs for `time` with unchanged links; returns the command's outcome.
fn ends(rig: &mut Rig<Broker>, time: Micros) -> Vec<(u64, Option<Outcome>)> {
    let end = rig.now + time;
    while rig.now < end {
        rig.pass(100_000, 20_000);
        for peer in 0..rig.peers.len() {
            rig.frame(peer, FrameKind::PING.code(), &[]);
        }
    }
    of_commands(rig, 0)
}

/// Regression: for 30 s after a gateway had died, every command to its rooms expired.
#[test]
fn the_wait_for_a_gateway_ends_soon_if_no_router_reaches_it() {
    let (mut rig, other) = cut_off();
    assert_eq!(ends(&mut rig, 300_000), []);
    seen(&mut rig, false);
    assert_eq!(
        ends(&mut rig, AWAY_GRACE - 100_000),
        [],
        "its members have time to go elsewhere"
    );
    assert_eq!(ends(&mut rig, 200_000), [(1, Some(Outcome::of(2)))]);
    rig.tell(0, &link_command(2, Ask::tell(b"go")));
    rig.turn();
    assert_eq!(of_commands(&mut rig, other), [(2, None)]);
    rig.tell(other, &done(2, Outcome::of(2)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(2, Some(Outcome::of(2)))], "at once");
}

/// Its members may still be there, or return elsewhere, and may notice its loss later than others.
#[test]
fn a_command_that_passed_over_a_gateway_still_reaches_its_returning_members() {
    let (mut rig, other) = cut_off();
    seen(&mut rig, false);
    assert_eq!(ends(&mut rig, AWAY_GRACE + 100_000), [(1, Some(Outcome::of(2)))]);
    let third = rig.link(OTHER + 1, role::GATEWAY);
    names_gateway(&mut rig, 2, OTHER + 1, membership(1, true));
    let back = rig.link(GATEWAY, role::GATEWAY);
    rig.turn();
    assert_eq!(
        [back, third, other].map(|peer| of_commands(&mut rig, peer)),
        [vec![(1, None)], vec![(1, None)], vec![]]
    );
    rig.tell(back, &done(1, Outcome::of(3)));
    assert_eq!(ends(&mut rig, LIFETIME), [], "its outcome was reported");
    let late = rig.link(OTHER + 2, role::GATEWAY);
    names_gateway(&mut rig, 2, OTHER + 2, membership(1, true));
    rig.turn();
    assert_eq!(of_commands(&mut rig, late), []);
}

#[test]
fn a_gateway_cut_off_only_from_this_broker_is_waited_for() {
    let expired = [(1, Some(Outcome::expired(2)))];
    let (mut rig, _) = cut_off();
    assert_eq!(ends(&mut rig, LIFETIME + 2 * GRACE + 200_000), expired);
    let (mut rig, _) = cut_off();
    seen(&mut rig, false);
    assert_eq!(ends(&mut rig, AWAY_GRACE - 200_000), []);
    seen(&mut rig, true);
    assert_eq!(ends(&mut rig, LIFETIME), expired, "routers have it again");
    let (mut rig, _) = cut_off();
    seen(&mut rig, false);
    rig.frame(2, FrameKind::CLOSE.code(), &[0]);
    rig.turn();
    assert_eq!(
        ends(&mut rig, LIFETIME + 2 * GRACE),
        expired,
        "the reporting router may have been cut off"
    );
}

#[test]
fn the_wait_for_an_unplaced_gateway_ends_soon() {
    let (mut rig, _) = cut_off();
    let nodes = [(PROXY, role::PROXY), (BROKER, role::BROKER), (ROUTER, role::ROUTER)];
    let nodes = nodes.map(|(node, role)| PlacedNode::new(node, role, addr(9000 + node as u16)));
    let placement = room_placement(9, nodes.to_vec(), 1, 1);
    rig.machine.set_placement(rig.now, placement);
    assert_eq!(ends(&mut rig, AWAY_GRACE + 100_000), [(1, Some(Outcome::of(2)))]);
}

/// Regression: the room's members return soon, but a gateway that restarted faster than they return was no longer
/// waited for.
#[test]
fn members_of_a_restarted_gateway_have_time_to_return() {
    let back = || {
        let (mut rig, other) = cut_off();
        assert_eq!(ends(&mut rig, 400_000), []);
        let back = rig.link_again(GATEWAY, role::GATEWAY);
        names_life(&mut rig, 2, (GATEWAY, EPOCH + 1), membership(1, false));
        (rig, back, other)
    };
    let (mut rig, again, _) = back();
    assert_eq!(ends(&mut rig, AWAY_GRACE - 200_000), []);
    names_life(&mut rig, 2, (GATEWAY, EPOCH + 1), membership(2, true));
    rig.turn();
    assert_eq!(of_commands(&mut rig, again), [(1, None)]);
    rig.tell(again, &done(1, Outcome::of(3)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::of(5)))]);

    let (mut rig, again, other) = back();
    assert_eq!(ends(&mut rig, AWAY_GRACE + 200_000), [(1, Some(Outcome::of(2)))]);
    let third = rig.link(OTHER + 1, role::GATEWAY);
    names_gateway(&mut rig, 2, OTHER + 1, membership(1, true));
    names_life(&mut rig, 2, (GATEWAY, EPOCH + 1), membership(2, true));
    rig.turn();
    assert_eq!(
        [again, third, other].map(|peer| of_commands(&mut rig, peer)),
        [vec![(1, None)], vec![(1, None)], vec![]],
        "a late member gets it too"
    );
}

/// The gateway reports its last member's reply, or where that member went, once it knows.
#[test]
fn a_gateway_whose_last_member_left_may_still_reply() {
    let (mut rig, _) = broker(1);
    for number in [1, 2] {
        rig.tell(0, &link_command(number, Ask::tell(b"go")));
    }
    rig.turn();
    let (node, epoch, membership) = (GATEWAY, EPOCH, membership(2, false));
    let left = Record::GatewayMembership {
        node,
        epoch,
        membership,
    };
    rig.tell(2, &left);
    assert_eq!(ends(&mut rig, AWAY_GRACE), []);
    rig.tell(1, &done(1, Outcome::of(1)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::of(1)))]);
    assert_eq!(of_commands(&mut rig, 1).len(), 2);
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(ends(&mut rig, 200_000), []);
    let back = rig.link(GATEWAY, role::GATEWAY);
    rig.turn();
    assert_eq!(
        of_commands(&mut rig, back),
        [(2, None)],
        "its reply was lost with the link"
    );
    rig.tell(back, &done(2, Outcome::of(1)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(2, Some(Outcome::of(1)))]);
}

/// The time counts from the first report of the new life: the link to the former life may still be there, or no new
/// one may ever come.
#[test]
fn a_restart_may_be_known_before_the_new_link() {
    let (mut rig, _) = broker(1);
    rig.tell(0, &link_command(1, Ask::tell(b"go")));
    assert_eq!(ends(&mut rig, AWAY_GRACE + 500_000), []);
    names_life(&mut rig, 2, (GATEWAY, EPOCH + 1), membership(1, false));
    assert_eq!(ends(&mut rig, 300_000), []);
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    assert_eq!(ends(&mut rig, AWAY_GRACE - 500_000), []);
    assert_eq!(ends(&mut rig, 400_000), [(1, Some(Outcome::of(0)))]);
    let back = rig.link_again(GATEWAY, role::GATEWAY);
    names_life(&mut rig, 2, (GATEWAY, EPOCH + 1), membership(2, true));
    rig.turn();
    assert_eq!(of_commands(&mut rig, back), [(1, None)]);
}

#[test]
fn a_count_covers_present_members_without_waiting_for_returning_ones() {
    let (mut rig, _) = broker(1);
    rig.tell(0, &link_command(1, Ask::Count { from: None }));
    rig.frame(1, FrameKind::CLOSE.code(), &[0]);
    rig.turn();
    rig.link_again(GATEWAY, role::GATEWAY);
    names_life(&mut rig, 2, (GATEWAY, EPOCH + 1), membership(1, false));
    assert_eq!(ends(&mut rig, 200_000), [(1, Some(Outcome::of(0)))]);
}

#[test]
fn a_member_that_returns_at_another_gateway_gets_a_waiting_command_there() {
    let (mut rig, _) = cut_off();
    seen(&mut rig, false);
    let third = rig.link(OTHER + 1, role::GATEWAY);
    ends(&mut rig, 800_000);
    names_gateway(&mut rig, 2, OTHER + 1, membership(1, true));
    rig.turn();
    assert_eq!(of_commands(&mut rig, third), [(1, None)]);
    assert_eq!(ends(&mut rig, AWAY_GRACE), []);
    rig.tell(third, &done(1, Outcome::of(3)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::of(5)))]);
}

#[test]
fn a_returning_gateway_gets_a_waiting_command_again() {
    let (mut rig, other) = cut_off();
    rig.tell(0, &link_command(2, Ask::tell(b"go")));
    seen(&mut rig, false);
    assert_eq!(ends(&mut rig, AWAY_GRACE + 100_000), [(1, Some(Outcome::of(2)))]);
    let back = rig.link(GATEWAY, role::GATEWAY);
    seen(&mut rig, true);
    rig.turn();
    assert_eq!(of_commands(&mut rig, back), [(1, None), (2, None)]);
    rig.tell(other, &done(2, Outcome::of(2)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), []);
    rig.tell(back, &done(2, Outcome::of(1)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(2, Some(Outcome::of(3)))]);
}

#[test]
fn a_request_to_end_a_member_reaches_each_gateway_and_a_repeat_is_answered_alike() {
    let (mut rig, proxies) = broker(2);
    rig.tell(0, &link_command(1, Ask::End { user: 8 }));
    rig.turn();
    let records = rig.peers[1].take_records();
    let ends = records.iter().filter_map(|bytes| match Record::read(bytes) {
        Some(Record::LinkCommand { ask, .. }) => Some(ask.keep()),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [Ask::End { user: 8 }]);
    rig.tell(1, &done(1, Outcome::of(2)));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::of(2)))]);
    rig.tell(proxies[1], &link_command(1, Ask::End { user: 8 }));
    rig.turn();
    assert_eq!(of_commands(&mut rig, proxies[1]), [(1, Some(Outcome::of(2)))]);
    assert_eq!(of_commands(&mut rig, 1), []);
}

/// A reply to a count with these hops.
fn counted(number: u64, hops: &[(u32, u32)]) -> Record<'static> {
    let hops = hops.iter().map(|(node, took_us)| Hop {
        node: *node,
        took_us: *took_us,
    });
    Record::LinkCommandDone {
        command: id(number),
        session: 7,
        outcome: Outcome::of(1),
        page: Some(Page {
            hops: hops.collect(),
            ..Page::default()
        }),
    }
}

/// The hops of each reply that a node got since the last call.
fn hops<M: Subject>(rig: &mut Rig<M>, peer: usize) -> Vec<Vec<(u32, u32)>> {
    let records = rig.peers[peer].take_records();
    let page = |bytes: &Vec<u8>| match Record::read(bytes) {
        Some(Record::LinkCommandDone { page, .. } | Record::CommandDone { page, .. }) => page,
        _ => None,
    };
    let hops = |page: Page| page.hops.iter().map(|hop| (hop.node, hop.took_us)).collect();
    records.iter().filter_map(page).map(hops).collect()
}

#[test]
fn a_broker_reports_each_gateways_time_slowest_first() {
    let (mut rig, _) = broker(1);
    let second = rig.link(80, role::GATEWAY);
    names_gateway(&mut rig, 2, 80, membership(1, true));
    rig.tell(0, &link_command(1, Ask::Count { from: None }));
    rig.turn();
    rig.now += 100;
    rig.tell(1, &counted(1, &[(9, 9)]));
    rig.turn();
    assert!(hops(&mut rig, 0).is_empty());
    rig.now += 200;
    rig.tell(second, &counted(1, &[]));
    rig.turn();
    assert_eq!(hops(&mut rig, 0), [[(80, 300), (GATEWAY, 100)]]);
}

#[test]
fn a_proxy_prepends_the_broker_to_its_hops_unless_it_asked_another_since() {
    let (mut rig, brokers) = proxy();
    let ask = |number| Record::Command {
        number,
        name: ROOM.as_bytes(),
        left_ms: 5_000,
        ask: Ask::Count { from: None },
    };
    rig.tell(0, &ask(1));
    rig.turn();
    let first = receiver_of(&mut rig, brokers);
    rig.now += 400;
    rig.tell(first, &counted(1, &[(80, 300)]));
    rig.turn();
    let node = if first == brokers[0] { BROKER } else { BROKER + 50 };
    assert_eq!(hops(&mut rig, 0), [[(node, 400), (80, 300)]]);
    rig.pass(2_000_000, 100_000);
    rig.tell(0, &ask(2));
    rig.turn();
    let first = receiver_of(&mut rig, brokers);
    rig.pass(500_000, 20_000);
    assert_ne!(first, receiver_of(&mut rig, brokers));
    rig.tell(first, &counted(2, &[(80, 300)]));
    rig.turn();
    assert_eq!(hops(&mut rig, 0), [[(0, 0); 0]]);
}

/// A gateway with member 0 of the room; 2 and 5 are brokers.
fn gateway() -> (Rig<Gateway>, [usize; 2]) {
    let mut rig = Rig::<Gateway>::new();
    rig.peers[0].take_records();
    let other = rig.link(70, role::BROKER);
    (rig, [2, other])
}

fn taken(rig: &mut Rig<Gateway>, member: usize, number: u64) {
    let taken = Record::CommandTaken {
        command: id(number),
        taken: true,
    };
    rig.tell(member, &taken);
    rig.turn();
}

#[test]
fn a_member_gets_a_command_once_and_every_asking_broker_the_same_count() {
    let (mut rig, [one, other]) = gateway();
    for broker in [one, other, one] {
        rig.tell(broker, &link_command(1, Ask::tell(b"go")));
        rig.turn();
    }
    assert_eq!(of_commands(&mut rig, 0), [(1, None)]);
    taken(&mut rig, 0, 1);
    for broker in [one, other] {
        assert_eq!(of_commands(&mut rig, broker), [(1, Some(Outcome::of(1)))]);
    }
}

#[test]
fn a_late_copy_gets_the_first_ones_outcome_despite_membership_changes() {
    let (mut rig, [one, other]) = gateway();
    rig.tell(one, &link_command(1, Ask::tell(b"go")));
    rig.turn();
    taken(&mut rig, 0, 1);
    rig.join(1, 2, ROOM, Positions::default());
    rig.tell(0, &Record::Leave { handle: 0 });
    rig.turn();
    rig.peers[1].take_records();
    rig.tell(other, &link_command(1, Ask::tell(b"go")));
    rig.turn();
    assert_eq!(of_commands(&mut rig, other), [(1, Some(Outcome::of(1)))]);
    assert_eq!(of_commands(&mut rig, one), [(1, Some(Outcome::of(1)))], "once");
    assert_eq!(of_commands(&mut rig, 1), []);
}

/// Of this many commands: how many were forwarded, and how many got only `busy`.
fn answered_with_busy<M: Subject>(rig: &mut Rig<M>, peer: usize) -> usize {
    let said = of_commands(rig, peer);
    assert!(said.iter().all(|(_, outcome)| *outcome == Some(BUSY)), "{said:?}");
    said.len()
}

const MORE: u64 = 20;

#[test]
fn beyond_its_bound_a_gateway_replies_busy_at_once() {
    let (mut rig, [one, other]) = gateway();
    // A room may have no more than its share.
    let command = |number| Record::LinkCommand {
        command: CommandId { user: number, number },
        session: 7,
        room: number,
        check: 0,
        left_ms: 5_000,
        ask: Ask::tell(b"go"),
    };
    for number in 0..COMMANDS_MAX as u64 {
        rig.tell(one, &command(number));
    }
    assert_eq!(counter(&rig.machine, "commands_received"), COMMANDS_MAX as u64);
    for number in 0..MORE {
        rig.tell(other, &command(COMMANDS_MAX as u64 + number));
    }
    rig.turn();
    assert_eq!(answered_with_busy(&mut rig, other), MORE as usize);
    assert_eq!(counter(&rig.machine, "dropped_commands_full"), MORE);
    assert_eq!(counter(&rig.machine, "commands_received"), COMMANDS_MAX as u64);
}

#[test]
fn beyond_a_rooms_share_a_broker_replies_busy_and_accepts_other_rooms() {
    let (mut rig, _) = broker(1);
    let other = room_key("sports:other");
    let membership = Membership {
        room: other.id,
        check: other.check,
        ..membership(1, true)
    };
    names_gateway(&mut rig, 2, GATEWAY, membership);
    rig.turn();
    let command = |number, room: RoomKey| Record::LinkCommand {
        command: CommandId { user: number, number },
        session: 7,
        room: room.id,
        check: room.check,
        left_ms: 5_000,
        ask: Ask::tell(b"go"),
    };
    let share = COMMANDS_MAX as u64 / 2;
    for number in 0..share + MORE {
        rig.tell(0, &command(number, room_key(ROOM)));
        if number % 1_000 == 0 {
            rig.turn();
            rig.peers[1].take_records();
        }
    }
    rig.turn();
    assert_eq!(answered_with_busy(&mut rig, 0), MORE as usize);
    assert_eq!(counter(&rig.machine, "commands_received"), share);
    rig.tell(0, &command(1 << 40, other));
    assert_eq!(counter(&rig.machine, "commands_received"), share + 1);
}

/// Regression: outcomes filled the datagram, and acknowledgements without space were forgotten.
#[test]
fn an_acknowledgement_that_does_not_fit_is_sent_in_the_next_datagram() {
    let (mut rig, _) = broker(1);
    for number in 0..60 {
        let nobody = Record::LinkCommand {
            command: id(number),
            session: 7,
            room: 99,
            check: 0,
            left_ms: 5_000,
            ask: Ask::tell(b"go"),
        };
        rig.tell(0, &nobody);
    }
    let before = rig.peers[0].frames(kinds::LINK_ACK);
    let mut malformed = link_publish(77, 1, 1, &[b"one"]);
    let last = malformed.len() - 6;
    malformed[last] = 0xff;
    rig.say(0, &malformed);
    rig.pass(100_000, 5_000);
    assert_eq!(of_commands(&mut rig, 0).len(), 60);
    assert_eq!(rig.peers[0].frames(kinds::LINK_ACK), before + 1);
}

/// Regression: half of its rooms went to another broker, and their interest with them, so the room seemed to have no
/// member.
#[test]
fn a_broker_that_lost_the_room_leaves_the_outcome_to_others() {
    let (mut rig, _) = broker(1);
    rig.tell(0, &link_command(1, Ask::tell(b"go")));
    rig.turn();
    assert_eq!(of_commands(&mut rig, 1), [(1, None)]);
    let mut nodes: Vec<PlacedNode> = [role::GATEWAY, role::PROXY, role::BROKER, role::ROUTER]
        .iter()
        .flat_map(|role| placement().of(*role).copied().collect::<Vec<_>>())
        .collect();
    let theirs = PlacedNode::new(BROKER + 50, role::BROKER, addr(9100));
    nodes.push(theirs);
    for node in nodes.iter_mut().filter(|node| node.role == role::BROKER) {
        let has = (node.node != BROKER) as u64;
        node.partition = ((room_id(ROOM) + 1 + has) % 2) as u16;
    }
    rig.machine.set_placement(rig.now, room_placement(2, nodes, 2, 1));
    rig.pass(200_000, 10_000);
    assert_eq!(of_commands(&mut rig, 0), [(1, Some(Outcome::refused(Code::NotReady)))]);
}

/// The broker reports that its stream has two messages, which returning members have.
fn has_two(rig: &mut Rig<Gateway>, broker: usize) {
    let head = LinkHead {
        room: room_id(ROOM),
        generation: 1,
        base: 1,
        next: 3,
    };
    tells_head(rig, broker, head);
}

#[test]
fn a_member_that_rejoins_gets_a_command_once_and_counts_once() {
    for leaves in [false, true] {
        let (mut rig, [one, other]) = gateway();
        rig.tell(one, &link_command(1, Ask::tell(b"go")));
        rig.turn();
        assert_eq!(of_commands(&mut rig, 0), [(1, None)]);
        rig.session(7);
        let second = rig.peers.len() - 1;
        taken(&mut rig, 0, 1);
        if leaves {
            rig.tell(0, &Record::Leave { handle: 0 });
            rig.turn();
        }
        has_two(&mut rig, one);
        rig.join(0, 2, ROOM, Positions::at([(stream(1), 2)]));
        rig.pass(100_000, 10_000);
        let records = rig.peers[0].take_records();
        let joined = |record: &Vec<u8>| matches!(Record::read(record), Some(Record::Joined { request: 2, .. }));
        let told = |record: &Vec<u8>| matches!(Record::read(record), Some(Record::CommandTold { .. }));
        assert!(records.iter().any(joined));
        assert!(!records.iter().any(told), "left before: {leaves}");
        rig.join(second, 3, ROOM, Positions::at([(stream(1), 2)]));
        rig.pass(100_000, 10_000);
        assert_eq!(
            of_commands(&mut rig, second),
            [(1, None)],
            "a member that returns in a new session gets it"
        );
        rig.tell(other, &link_command(1, Ask::tell(b"go")));
        rig.turn();
        assert_eq!(of_commands(&mut rig, other), [(1, Some(Outcome::of(1)))]);
    }
}

/// What happens to a member that waits to return.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Return {
    /// The broker reports what it has of the room.
    Comes,
    /// The broker does not report, so the member finally returns with a gap.
    ComesLate,
    /// It closes its session.
    Closes,
}

#[test]
fn a_command_waits_for_a_member_that_is_returning_from_another_gateway() {
    for (end, members) in [(Return::Comes, 2), (Return::ComesLate, 2), (Return::Closes, 1)] {
        let (mut rig, [one, _]) = gateway();
        rig.session(7);
        let second = rig.peers.len() - 1;
        rig.join(second, 3, ROOM, Positions::at([(stream(1), 2)]));
        rig.turn();
        rig.peers[second].take_records();
        rig.tell(one, &link_command(1, Ask::tell(b"go")));
        rig.turn();
        taken(&mut rig, 0, 1);
        rig.pass(100_000, 10_000);
        assert_eq!(of_commands(&mut rig, one), [], "{end:?}");
        match end {
            Return::Comes => has_two(&mut rig, one),
            Return::ComesLate => {}
            Return::Closes => rig.frame(second, FrameKind::CLOSE.code(), &[0]),
        }
        for _ in 0..5 {
            rig.say(one, &[]); // otherwise its link would be lost
            rig.pass(500_000, 10_000);
        }
        if end != Return::Closes {
            assert_eq!(of_commands(&mut rig, second), [(1, None)], "{end:?}");
            assert_eq!(of_commands(&mut rig, one), [], "{end:?}");
            taken(&mut rig, second, 1);
        }
        assert_eq!(of_commands(&mut rig, one), [(1, Some(Outcome::of(members)))], "{end:?}");
    }
}

#[test]
fn a_command_does_not_wait_for_members_that_return_after_it() {
    let (mut rig, [one, _]) = gateway();
    rig.tell(one, &link_command(1, Ask::tell(b"go")));
    rig.turn();
    rig.pass(10_000, 10_000);
    rig.session(7);
    let second = rig.peers.len() - 1;
    rig.join(second, 3, ROOM, Positions::at([(stream(1), 2)]));
    taken(&mut rig, 0, 1);
    assert_eq!(of_commands(&mut rig, one), [(1, Some(Outcome::of(1)))]);
}

/// Two sessions of a user at a proxy that allows it one command per second, and the outcomes that they get.
#[test]
fn a_users_command_rate_covers_all_sessions_and_copies_are_free() {
    let (mut rig, brokers) = proxy();
    rig.machine.set_command_limit(1, 1);
    let second = rig.session(2);
    let send = |rig: &mut Rig<Proxy>, peer: usize, number: u64| {
        let name = ROOM.as_bytes();
        rig.tell(
            peer,
            &Record::Command {
                number,
                name,
                left_ms: 5_000,
                ask: Ask::tell(b"go"),
            },
        );
        rig.turn();
    };
    let retry_ms = |rig: &mut Rig<Proxy>, peer: usize| {
        let records = rig.peers[peer].take_records();
        let limited = Outcome::refused(Code::RateLimited);
        records.iter().find_map(|record| match Record::read(record) {
            Some(Record::CommandDone { outcome, retry_ms, .. }) if outcome == limited => Some(retry_ms),
            _ => None,
        })
    };
    send(&mut rig, 0, 1);
    let broker = receiver_of(&mut rig, brokers);
    rig.tell(broker, &done(1, Outcome::of(1)));
    rig.turn();
    send(&mut rig, second, 1);
    assert_eq!(retry_ms(&mut rig, second), None, "the same command in another session");
    send(&mut rig, second, 2);
    let wait = retry_ms(&mut rig, second).expect("the second of a user");
    assert!((1..=1_001).contains(&wait), "{wait}");
    rig.pass(u64::from(wait) * 1_000, u64::from(wait) * 1_000);
    send(&mut rig, second, 2);
    assert_eq!(retry_ms(&mut rig, second), None, "the announced wait is right");
}

/// A session may send only a limited number of records per second, so there are many sessions, and no broker accepts
/// any command.
#[test]
fn beyond_a_users_share_a_proxy_replies_busy_at_once() {
    let (users, share) = (600, COMMANDS_MAX / 2);
    let mut rig = Rig::<Proxy>::bare();
    rig.machine.set_command_limit(u32::MAX, u32::MAX);
    for user in 0..users {
        rig.session(user);
    }
    let mut number = 0;
    let mut command = |rig: &mut Rig<Proxy>, peer: usize| {
        number += 1;
        let command = Record::Command {
            number,
            name: ROOM.as_bytes(),
            left_ms: 60_000,
            ask: Ask::tell(b"go"),
        };
        rig.tell(peer, &command);
    };
    let received = |rig: &Rig<Proxy>| counter(&rig.machine, "commands_received") as usize;
    (0..4 * users as usize).for_each(|at| command(&mut rig, at / 4));
    while received(&rig) < share {
        rig.pass(1_000_000, 1_000_000);
        for peer in 0..users as usize {
            let full = received(&rig) == share;
            command(&mut rig, peer);
            if full {
                rig.turn();
                assert_eq!(answered_with_busy(&mut rig, peer), 1);
            }
        }
    }
    assert_eq!(received(&rig), share);
    assert!(counter(&rig.machine, "commands_refused") > MORE);
}
