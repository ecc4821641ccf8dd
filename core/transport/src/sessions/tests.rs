//! Sessions of a server: their bounds, their credentials and their ends.

use super::*;
use crate::codec::Writer;
use crate::conn::Wants;
use crate::door::{Accepted, DoorKey, HELLO_MIN};
use crate::fixtures::{cluster, me, Zeros, FRONT};
use crate::handshake::ResetSecret;
use std::collections::HashSet;

const SECOND: Micros = 1_000_000;

/// A record of a system whose only kind is a request.
struct Ask<'a>(Option<ControlRecord<'a>>);

impl Encode for Ask<'_> {
    fn write(&self, writer: &mut Writer<'_>) -> bool {
        !writer.u8(200).full()
    }
}

impl<'a> SystemRecord<'a> for Ask<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        Some(Ask(ControlRecord::read(bytes)))
    }

    fn control(&self) -> Option<&ControlRecord<'a>> {
        self.0.as_ref()
    }

    fn access(&self) -> Access {
        Access::Waits
    }

    fn is_free(&self) -> bool {
        false
    }

    fn refusal(&self, _code: Code, _retry_ms: u32) -> Option<Self> {
        Some(Ask(None))
    }
}

fn sessions() -> (Node, Sessions<()>) {
    let node = Node::new(me(FRONT), 1_200, 1, Box::new(Zeros));
    let key = DoorKey::Cluster(Box::new(cluster()));
    let door = Door::new(key, ResetSecret::new([1; 32]), &mut Zeros);
    (node, Sessions::new(door, 15_000, 45_000, 100))
}

#[test]
fn unacknowledged_bytes_are_bounded_and_the_longest_silent_session_ends() {
    let (_, mut sessions) = sessions();
    sessions.unread_max = 4 * SESSION_LOG_BYTES;
    let slots: Vec<u32> = (0..5).map(|random| sessions.admit(random, 1)).collect();
    let refused = ControlRecord::Refused {
        request: 1,
        code: Code::Busy,
        retry_ms: 0,
    };
    let fill = |sessions: &mut Sessions<()>, slot| {
        while sessions.offer(slot, &refused) {}
    };
    slots[..4].iter().for_each(|slot| fill(&mut sessions, *slot));
    assert_eq!(sessions.counters.sessions_unread, 0);
    // The first one has acknowledged something since.
    let mut body = [0; 2_000];
    let first = &mut sessions.table.get_mut(slots[0]).expect("it is there").conn;
    assert!(first.log.next_frame(0, 1, 1, &mut body).is_some());
    let next = 2u64.to_le_bytes();
    let ack = Frame {
        kind: FrameKind::LOG_ACK,
        flags: 0,
        body: &next,
    };
    sessions.control(0, slots[0], Addr::default(), &ack, &mut Records::default());
    fill(&mut sessions, slots[4]);
    assert_eq!(sessions.counters.sessions_unread, 1);
    assert!(sessions.table.get(slots[1]).is_none());
    assert!(sessions.unread_bytes() <= sessions.unread_max);
    assert_eq!(sessions.gone().map(|gone| gone.slot), Some(slots[1]));
    for slot in &slots {
        sessions.end(*slot);
    }
    assert_eq!(sessions.unread_bytes(), 0);
}

/// Regression: sessions that were already open still counted as half-open, so a slow one was ended after a burst
/// of others.
#[test]
fn an_open_session_does_not_count_as_half_open() {
    let (mut node, mut sessions) = sessions();
    let mut come = |sessions: &mut Sessions<()>, now| {
        let id = sessions.let_in(now, &mut node, &Accepted::of(7));
        sessions.table.find(id).expect("it is there")
    };
    let silent = come(&mut sessions, 0);
    let mut now = 100_000;
    let credential = ControlRecord::Authenticate { credential: b"token" }.encode(<[u8]>::to_vec);
    for _ in 0..HALF_OPEN_MAX {
        now += 200;
        let slot = come(&mut sessions, now);
        sessions.table.get_mut(slot).expect("it is there").data.state = State::Proven;
        assert!(sessions.record::<Ask>(now, slot, &credential).is_none());
        let question = sessions.question().expect("it asks");
        assert!(sessions.answer(now, question.id, Ok(1.into())).is_some());
    }
    for _ in 0..200 {
        come(&mut sessions, now);
    }
    assert!(sessions.table.get(silent).is_some());
    for _ in 200..HALF_OPEN_MAX {
        come(&mut sessions, now);
    }
    assert!(sessions.table.get(silent).is_none(), "one of the half-open sessions");
    let open = sessions
        .table
        .slots()
        .filter(|slot| sessions.table.get(*slot).is_some_and(|peer| peer.data.is_open()));
    assert_eq!(open.count(), HALF_OPEN_MAX);
}

/// Regression: late sessions outlived their entry in the queue, and newer ones were ended instead.
#[test]
fn the_oldest_half_open_session_makes_room_however_late_it_was_proven() {
    let (mut node, mut sessions) = sessions();
    for _ in 0..HALF_OPEN_MAX {
        sessions.let_in(0, &mut node, &Accepted::of(7));
    }
    let proven = HALF_OPEN_LIFE - 1_000;
    for slot in sessions.table.slots().collect::<Vec<_>>() {
        let data = &mut sessions.table.get_mut(slot).expect("it is there").data;
        (data.state, data.since) = (State::Proven, proven);
    }
    let now = HALF_OPEN_LIFE + 1_000;
    sessions.expire(now, &mut node);
    assert_eq!(sessions.table.len(), HALF_OPEN_MAX);
    let new = [0; 10].map(|_| sessions.let_in(now, &mut node, &Accepted::of(7)));
    assert!(new.iter().all(|id| sessions.table.find(*id).is_some()));
    assert_eq!(sessions.table.len(), HALF_OPEN_MAX);
}

#[test]
fn half_open_sessions_make_room_under_a_low_limit() {
    let (mut node, mut sessions) = sessions();
    sessions.set_limits(3, 1_000);
    let open = sessions.admit(1, 1);
    let came = [0, 1].map(|_| {
        assert!(sessions.has_place(0));
        sessions.let_in(0, &mut node, &Accepted::of(7))
    });
    assert!(!sessions.has_place(HALF_OPEN_GRACE - 1), "their credentials may come");
    assert!(sessions.has_place(HALF_OPEN_GRACE));
    assert_eq!(came.map(|id| sessions.table.find(id).is_some()), [false, true]);
    sessions.let_in(HALF_OPEN_GRACE, &mut node, &Accepted::of(7));
    assert_eq!(sessions.table.len(), 3);
    assert!(sessions.table.get(open).is_some());
    let busy = sessions.door.counters.dropped_hello_busy;
    hello(&mut sessions, &mut node);
    assert_eq!(sessions.door.counters.dropped_hello_busy, busy, "there is room for it");
}

/// A refusal is a record that must be kept until it is acknowledged.
#[test]
fn a_session_without_a_credential_gets_no_rate_refusals() {
    let (mut node, mut sessions) = sessions();
    let id = sessions.let_in(0, &mut node, &Accepted::of(7));
    let slot = sessions.table.find(id).expect("it is there");
    sessions.table.get_mut(slot).expect("it is there").data.state = State::Proven;
    let open = Ask(None).encode(<[u8]>::to_vec);
    for _ in 0..2 * CONTROL_BURST {
        assert!(sessions.record::<Ask>(0, slot, &open).is_none());
    }
    assert!(sessions.counters.dropped_control_rate > 0);
    assert_eq!(sessions.unread_bytes(), 0);
}

/// An open session, as if this were its user's credential.
fn opened(sessions: &mut Sessions<()>, node: &mut Node, now: Micros, admission: Admission) -> (u32, u64) {
    let id = sessions.let_in(now, node, &Accepted::of(7));
    let slot = sessions.table.find(id).expect("it is there");
    sessions.table.get_mut(slot).expect("it is there").data.state = State::Proven;
    ask(sessions, now, slot);
    assert_eq!(
        sessions.answer(now, id, Ok(admission)),
        Some(Answered::Opened(slot, Vec::new()))
    );
    sessions.reschedule(now, slot);
    (slot, id)
}

/// A client shows a credential.
fn ask(sessions: &mut Sessions<()>, now: Micros, slot: u32) {
    let credential = ControlRecord::Authenticate { credential: b"token" }.encode(<[u8]>::to_vec);
    assert!(sessions.record::<Ask>(now, slot, &credential).is_none());
    assert!(sessions.question().is_some());
}

fn state(sessions: &Sessions<()>, slot: u32) -> Option<State> {
    sessions.table.get(slot).map(|peer| peer.data.state)
}

fn until(user: u64, until: Micros) -> Admission {
    Admission {
        until: Some(until),
        ..Admission::from(user)
    }
}

#[test]
fn a_session_ends_with_its_token_and_its_client_learns_why() {
    let (mut node, mut sessions) = sessions();
    let (slot, _) = opened(&mut sessions, &mut node, 0, until(7, 10 * SECOND));
    assert!(sessions.deadline().is_some_and(|at| at <= 10 * SECOND));
    sessions.expire(10 * SECOND - 1, &mut node);
    assert_eq!(state(&sessions, slot), Some(State::Open));
    sessions.expire(10 * SECOND, &mut node);
    assert_eq!(state(&sessions, slot), Some(State::Refused));
    sessions.expire(12 * SECOND, &mut node);
    assert_eq!(state(&sessions, slot), None);
    let counters = &sessions.counters;
    assert_eq!((counters.sessions_token_ended, counters.sessions_expired), (1, 0));
}

#[test]
fn another_token_of_its_user_prolongs_a_session_and_no_other_does() {
    let (mut node, mut sessions) = sessions();
    let (slot, id) = opened(&mut sessions, &mut node, 0, until(7, 10 * SECOND));
    ask(&mut sessions, SECOND, slot);
    let renewed = sessions.answer(SECOND, id, Ok(until(7, 20 * SECOND)));
    assert_eq!(renewed, Some(Answered::Renewed(slot)));
    sessions.expire(15 * SECOND, &mut node);
    assert_eq!(state(&sessions, slot), Some(State::Open));
    ask(&mut sessions, 15 * SECOND, slot);
    assert_eq!(sessions.answer(15 * SECOND, id, Err(Denied::Later)), None);
    assert_eq!(state(&sessions, slot), Some(State::Open), "it has its present token");
    ask(&mut sessions, 15 * SECOND, slot);
    assert_eq!(sessions.answer(15 * SECOND, id, Ok(until(8, 30 * SECOND))), None);
    assert_eq!(state(&sessions, slot), Some(State::Refused));
    assert_eq!(sessions.asking.pending(), 0);
}

#[test]
fn a_session_asks_for_one_judgement_at_a_time() {
    let (mut node, mut sessions) = sessions();
    let (slot, id) = opened(&mut sessions, &mut node, 0, until(7, 10 * SECOND));
    ask(&mut sessions, 0, slot);
    let credential = ControlRecord::Authenticate { credential: b"other" }.encode(<[u8]>::to_vec);
    sessions.record::<Ask>(0, slot, &credential);
    assert_eq!(sessions.question(), None);
    sessions.end(slot);
    assert_eq!(sessions.answer(0, id, Ok(7.into())), None);
    assert_eq!(sessions.asking.pending(), 0);
}

#[test]
fn a_revoked_user_and_a_revoked_token_lose_their_sessions_and_others_stay() {
    let (mut node, mut sessions) = sessions();
    let with = |user, token| Admission {
        token,
        ..Admission::from(user)
    };
    let mut open = |admission| opened(&mut sessions, &mut node, 0, admission).0;
    let slots = [with(7, 70), with(7, 71), with(8, 80), with(8, 0), with(9, 0)].map(&mut open);
    sessions.revoke(0, &HashSet::from([7]), &HashSet::from([80]));
    let open = slots.map(|slot| state(&sessions, slot) == Some(State::Open));
    assert_eq!(open, [false, false, false, true, true]);
    assert_eq!(sessions.counters.sessions_revoked, 3);
}

fn hello(sessions: &mut Sessions<()>, node: &mut Node) {
    let mut bytes = vec![0; HELLO_MIN];
    Header::clear(DatagramKind::Hello, 7).write(&mut bytes);
    let arrival = Arrival {
        socket: 1,
        from: Addr { ip: [1; 16], port: 7 },
        start: 0,
        len: bytes.len() as u32,
    };
    sessions.receive(0, node, arrival, &mut bytes);
}

#[test]
fn a_hello_beyond_the_session_limit_is_dropped_and_present_sessions_stay() {
    let (mut node, mut sessions) = sessions();
    sessions.admit(1, 1);
    sessions.admit(2, 2);
    let mut hello = |sessions: &mut Sessions<()>| {
        hello(sessions, &mut node);
        (
            sessions.door.counters.cookies_sent,
            sessions.door.counters.dropped_hello_busy,
        )
    };
    assert_eq!(hello(&mut sessions), (1, 0));
    sessions.set_limits(2, 1_000);
    assert_eq!(hello(&mut sessions), (1, 1));
    assert_eq!(sessions.table.len(), 2);
    sessions.set_limits(usize::MAX, 1_000);
    assert_eq!(hello(&mut sessions), (2, 1));
}

/// Regression: with a hundred thousand sessions, each due one was examined in every turn before it was served.
#[test]
fn a_due_session_is_examined_again_only_after_it_was_served() {
    let (mut node, mut sessions) = sessions();
    let slot = sessions.admit(1, 1);
    let mut buffer = [0; 100];
    let conn = &mut sessions.table.get_mut(slot).expect("it is there").conn;
    conn.seal(0, &mut node.keys, node.stamp, &mut buffer, 8, Wants::Probes, 0);
    sessions.reschedule(0, slot);
    assert!(sessions.deadline().is_some_and(|at| at <= SECOND / 10));
    sessions.expire(SECOND, &mut node);
    assert_eq!(sessions.table.ready_len(), 1);
    assert!(sessions.deadline().is_some_and(|at| at > 20 * SECOND));
    assert_eq!(sessions.table.next_ready(), Some(slot));
    sessions.reschedule(SECOND, slot);
    assert!(sessions.deadline().is_some_and(|at| at < 2 * SECOND));
    sessions.expire(46 * SECOND, &mut node);
    assert!(sessions.table.is_empty());
}
