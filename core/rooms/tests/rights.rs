//! Rights per room: the refusals of a gateway and of a proxy, and the effect of another token of the same user.

mod common;

use common::*;
use muster_rooms::command::{Ask, Verdict};
use muster_rooms::wire::{Positions, Record};
use muster_rooms::{Client, Proxy};
use muster_transport::{Code, ControlRecord};

/// In another namespace than [`ROOM`].
const PRIVATE: &str = "chat:7";

/// The refusals that a session got, by request.
fn refusals<M: Subject>(rig: &mut Rig<M>, at: usize) -> Vec<(u32, Code)> {
    let records = rig.peers[at].take_records();
    let refused = |bytes: &Vec<u8>| match Record::read(bytes) {
        Some(Record::Control(ControlRecord::Refused { request, code, .. })) => Some((request, code)),
        _ => None,
    };
    records.iter().filter_map(refused).collect()
}

/// Regression: a token with the right to read joined another user's private room.
#[test]
fn a_gateway_admits_readers_and_gives_history_by_right() {
    for (words, history, refused) in [
        ("read", 0, None),
        ("read", 5, Some(Code::NotAllowed)),
        ("read,history", 5, None),
        ("history", 5, Some(Code::NotAllowed)),
        ("publish,command,members", 0, Some(Code::NotAllowed)),
    ] {
        let mut rig = linked_gateway();
        let at = rig.session_of(1, format!("sports:*={words}").as_bytes());
        for (request, name) in [(1, ROOM), (2, PRIVATE)] {
            let positions = Positions::default();
            let name = name.as_bytes();
            rig.tell(
                at,
                &Record::Join {
                    request,
                    name,
                    positions,
                    history,
                },
            );
        }
        rig.turn();
        let wanted: Vec<_> = refused.map(|code| (1, code)).into_iter().collect();
        assert_eq!(
            refusals(&mut rig, at),
            [wanted, vec![(2, Code::NotAllowed)]].concat(),
            "{words}"
        );
        assert_eq!(rig.machine.rooms_len(), usize::from(refused.is_none()));
    }
}

#[test]
fn a_proxy_opens_a_room_by_right_to_publish() {
    for (words, refused) in [
        ("publish", None),
        ("read,command,members,history", Some(Code::NotAllowed)),
    ] {
        let mut rig = Rig::<Proxy>::bare();
        let at = rig.session_of(1, format!("sports:*={words}").as_bytes());
        for (request, name) in [(1, ROOM), (2, PRIVATE)] {
            let (name, incarnation) = (name.as_bytes(), 9);
            rig.tell(
                at,
                &Record::Open {
                    request,
                    name,
                    incarnation,
                },
            );
        }
        rig.turn();
        let wanted: Vec<_> = refused.map(|code| (1, code)).into_iter().collect();
        assert_eq!(
            refusals(&mut rig, at),
            [wanted, vec![(2, Code::NotAllowed)]].concat(),
            "{words}"
        );
    }
}

#[test]
fn a_proxy_accepts_commands_and_queries_by_right() {
    for (words, command, count) in [
        ("command", true, false),
        ("members", false, true),
        ("read,publish,history", false, false),
    ] {
        let mut rig = Rig::<Proxy>::bare();
        let at = rig.session_of(1, format!("sports:*={words}").as_bytes());
        let asks = [
            (1, ROOM, Ask::tell(b"go")),
            (2, PRIVATE, Ask::tell(b"go")),
            (3, ROOM, Ask::Count { from: None }),
            (4, PRIVATE, Ask::Count { from: None }),
        ];
        for (number, name, ask) in asks {
            let (name, left_ms) = (name.as_bytes(), 60_000);
            rig.tell(
                at,
                &Record::Command {
                    number,
                    name,
                    left_ms,
                    ask,
                },
            );
        }
        rig.turn();
        let records = rig.peers[at].take_records();
        let refused = |bytes: &Vec<u8>| match Record::read(bytes) {
            Some(Record::CommandDone { number, outcome, .. }) => {
                assert_eq!(outcome.verdict, Verdict::Refused(Code::NotAllowed));
                Some(number)
            }
            _ => None,
        };
        let refused: Vec<u64> = records.iter().filter_map(refused).collect();
        let taken = [command, false, count, false];
        let wanted = (1..).zip(taken).filter(|(_, taken)| !taken).map(|(number, _)| number);
        assert_eq!(refused, wanted.collect::<Vec<u64>>(), "{words}");
    }
}

#[test]
fn a_token_with_other_rights_opens_another_session() {
    let mut rig = linked_gateway();
    let at = rig.session_of(1, b"sports:*=read");
    rig.join(at, 1, ROOM, Positions::default());
    rig.show(at, b"sports:*=read");
    assert_eq!(refusals(&mut rig, at), []);
    rig.show(at, b"sports:*=read,history");
    assert_eq!(refusals(&mut rig, at), [(0, Code::Busy)]);
    let mut rig = linked_gateway();
    let at = rig.session_of(1, b"sports:*=read");
    rig.show(at, b"token");
    assert_eq!(
        refusals(&mut rig, at),
        [(0, Code::BadCredential)],
        "it is another user's"
    );
}

/// The credentials that a client showed a server.
fn shown(rig: &mut Rig<Client>, at: usize) -> Vec<Vec<u8>> {
    let records = rig.peers[at].take_records();
    let credential = |bytes: &Vec<u8>| match Record::read(bytes) {
        Some(Record::Control(ControlRecord::Authenticate { credential })) => Some(credential.to_vec()),
        _ => None,
    };
    records.iter().filter_map(credential).collect()
}

#[test]
fn a_client_shows_its_next_token_only_where_the_old_one_ends() {
    let mut rig = Rig::<Client>::new();
    shown(&mut rig, 0);
    shown(&mut rig, 1);
    rig.tell(0, &Record::Control(ControlRecord::Lease { left_ms: 5_000 }));
    rig.turn();
    let known = |port| {
        vec![muster_rooms::Endpoint {
            addr: addr(port),
            key: server_key().public(),
        }]
    };
    rig.machine
        .redirect(rig.now, known(9001), known(9002), b"next".to_vec());
    rig.pass(100_000, 10_000);
    assert_eq!(shown(&mut rig, 0), [b"next".to_vec()]);
    assert_eq!(shown(&mut rig, 1), [] as [Vec<u8>; 0]);
}
