//! Positions ahead of their owner: a member shows more of a stream than its broker ever numbered, since the broker has come back
//! from an earlier state, or since the positions are of another instance. And positions ahead of their gateway alone, which are
//! good.

mod common;

use common::*;
use muster_rooms::wire::{
    kinds, read_link_repair, write_link_question, write_link_repair, Consumed, GapReason, LinkHead, Position,
    Positions, Record, RoomBlock, StreamGap, StreamId, NUMBERED,
};
use muster_rooms::{role, Broker, Client, Gateway, Item, Policy, BACKFILL_WAIT, FIRST_PLACE};
use muster_transport::{append, FrameKind, Micros};

/// The numbers of the rig's peers at a gateway: two sessions, a broker, a router.
const MEMBER: usize = 0;
const SECOND_MEMBER: usize = 1;
const OWNER: usize = 2;
const HOME: usize = 3;
/// The time of an exchange with a peer.
const SOON: Micros = 5_000;

/// A gateway whose room's owner has numbered ten messages.
fn gateway() -> Rig<Gateway> {
    let mut rig = Rig::<Gateway>::bare();
    rig.session(1);
    rig.session(2);
    rig.link(BROKER, role::BROKER);
    rig.link(ROUTER, role::ROUTER);
    rig.join(MEMBER, 1, ROOM, Positions::default());
    rig.tell(HOME, &Record::Covered { offset: 1 << 20 });
    head(&mut rig, OWNER, 1, 11);
    pass(&mut rig, SOON);
    rig.peers[MEMBER].take_records();
    rig
}

fn head(rig: &mut Rig<Gateway>, owner: usize, generation: u32, next: u64) {
    let head = LinkHead {
        room: room_id(ROOM),
        generation,
        base: next,
        next,
    };
    tells_head(rig, owner, head);
    rig.turn();
}

/// Runs for `time` with all peers alive but one.
fn pass_without<M: Subject>(rig: &mut Rig<M>, silent: Option<usize>, time: Micros) {
    let end = rig.now + time;
    while rig.now < end {
        rig.pass((end - rig.now).min(100_000), 1_000);
        for peer in (0..rig.peers.len()).filter(|peer| Some(*peer) != silent) {
            rig.frame(peer, FrameKind::PING.code(), &[]);
        }
    }
}

fn pass<M: Subject>(rig: &mut Rig<M>, time: Micros) {
    pass_without(rig, None, time);
}

/// The numbers of the questions that a broker has been asked since the last look.
fn questions(rig: &mut Rig<Gateway>, owner: usize) -> Vec<u64> {
    let asked = rig.peers[owner].got.drain(..).filter_map(|(kind, body)| match kind {
        kinds::LINK_REPAIR => read_link_repair(&body).map(|(_, generation, history, ranges)| {
            let numbers = ranges.map(|(number, _)| number).collect::<Vec<_>>();
            (generation, history, numbers)
        }),
        _ => None,
    });
    let asked = asked.filter(|(generation, history, _)| (*generation, *history) == (0, true));
    asked.flat_map(|(.., numbers)| numbers).collect()
}

/// The broker's answer to a question.
fn answer(rig: &mut Rig<Gateway>, owner: usize, question: u64, (generation, next): (u32, u64)) {
    let answer = LinkHead {
        room: room_id(ROOM),
        generation,
        base: question,
        next,
    };
    let frame = body(|writer| {
        append(writer, kinds::LINK_HEADS, NUMBERED, |writer| {
            answer.write(writer);
            true
        })
    });
    rig.say(owner, &frame);
    rig.turn();
}

/// The gaps of an answered join, and whether all else has come or will.
fn joined(rig: &mut Rig<Gateway>, member: usize) -> Option<(Vec<StreamGap>, bool)> {
    let records = rig.peers[member].take_records();
    records.iter().find_map(|bytes| match Record::read(bytes) {
        Some(Record::Joined { gaps, whole, .. }) => Some((gaps, whole)),
        _ => None,
    })
}

/// The gap that sends a member back to where a stream is.
fn back(stream: StreamId, first: u64) -> StreamGap {
    StreamGap {
        stream,
        first,
        last: StreamGap::OPEN,
        reason: GapReason::Restarted,
    }
}

fn at(generation: u32, offset: u64) -> Positions {
    Positions::at([(stream(generation), offset)])
}

#[test]
fn a_member_ahead_of_its_owner_is_sent_back_as_soon_as_the_owner_says_so() {
    let mut rig = gateway();
    rig.join(SECOND_MEMBER, 1, ROOM, at(1, 60));
    pass(&mut rig, SOON);
    assert_eq!(joined(&mut rig, SECOND_MEMBER), None, "the owner is asked first");
    let asked = questions(&mut rig, OWNER);
    answer(&mut rig, OWNER, asked[0], (1, 11));
    assert_eq!(joined(&mut rig, SECOND_MEMBER), Some((vec![back(stream(1), 11)], true)));
    rig.peers[SECOND_MEMBER].got.clear();
    rig.say(OWNER, &link_room(1, 11, &[b"news"]));
    pass(&mut rig, SOON);
    assert_eq!(rig.peers[SECOND_MEMBER].frames(kinds::ROOM), 1);
}

#[test]
fn a_member_ahead_of_its_gateway_alone_goes_on_without_a_gap() {
    let mut rig = gateway();
    rig.join(SECOND_MEMBER, 1, ROOM, at(1, 12));
    pass(&mut rig, SOON);
    let asked = questions(&mut rig, OWNER);
    answer(&mut rig, OWNER, asked[0], (1, 13));
    assert_eq!(joined(&mut rig, SECOND_MEMBER), Some((vec![], true)));
}

#[test]
fn what_comes_meanwhile_proves_a_position_without_an_answer() {
    let mut rig = gateway();
    rig.join(SECOND_MEMBER, 1, ROOM, at(1, 12));
    pass(&mut rig, SOON);
    rig.say(OWNER, &link_room(1, 11, &[b"one"]));
    pass(&mut rig, SOON);
    assert_eq!(joined(&mut rig, SECOND_MEMBER), None);
    rig.say(OWNER, &link_room(1, 12, &[b"two"]));
    pass(&mut rig, SOON);
    assert_eq!(joined(&mut rig, SECOND_MEMBER), Some((vec![], true)));
}

/// The owner may have numbered more since it was asked.
#[test]
fn an_answer_to_a_question_from_before_the_join_denies_nothing() {
    let mut rig = gateway();
    rig.join(MEMBER, 2, ROOM, at(1, 60));
    pass(&mut rig, SOON);
    let first = questions(&mut rig, OWNER);
    rig.join(SECOND_MEMBER, 1, ROOM, at(1, 12));
    answer(&mut rig, OWNER, first[0], (1, 11));
    assert_eq!(joined(&mut rig, MEMBER), Some((vec![back(stream(1), 11)], true)));
    assert_eq!(joined(&mut rig, SECOND_MEMBER), None, "it is asked for on its own");
    pass(&mut rig, 30_000);
    let second = questions(&mut rig, OWNER);
    assert!(second[0] > first[0], "{first:?} {second:?}");
    answer(&mut rig, OWNER, first[0], (1, 11)); // once more, overtaken
    assert_eq!(joined(&mut rig, SECOND_MEMBER), None);
    answer(&mut rig, OWNER, second[0], (1, 13));
    assert_eq!(joined(&mut rig, SECOND_MEMBER), Some((vec![], true)));
}

#[test]
fn a_lost_question_is_asked_again() {
    let mut rig = gateway();
    rig.join(SECOND_MEMBER, 1, ROOM, at(1, 60));
    pass(&mut rig, 100_000);
    let asked = questions(&mut rig, OWNER);
    assert!((4..=7).contains(&asked.len()), "every 20 ms: {asked:?}");
}

/// A broker of an earlier release knows no question.
#[test]
fn a_member_ahead_of_an_owner_that_does_not_answer_is_sent_back_after_two_seconds() {
    let mut rig = gateway();
    rig.join(SECOND_MEMBER, 1, ROOM, at(1, 60));
    pass(&mut rig, 2 * BACKFILL_WAIT - 100_000);
    assert_eq!(joined(&mut rig, SECOND_MEMBER), None);
    pass(&mut rig, 200_000);
    let told = joined(&mut rig, SECOND_MEMBER).map(|(gaps, _)| gaps);
    assert_eq!(told, Some(vec![back(stream(1), 11)]));
}

#[test]
fn a_member_with_a_later_stream_than_its_owner_has_is_told_as_soon_as_the_owner_says_so() {
    for generation in [1, 0] {
        let mut rig = gateway();
        rig.join(SECOND_MEMBER, 1, ROOM, at(7, 60));
        pass(&mut rig, SOON);
        let asked = questions(&mut rig, OWNER);
        answer(&mut rig, OWNER, asked[0], (generation, 11));
        pass(&mut rig, SOON);
        rig.say(OWNER, &link_room(1, 1, &[&b"history"[..]; 10])); // it wants what it does not know from the beginning
        pass(&mut rig, SOON);
        let told = joined(&mut rig, SECOND_MEMBER).map(|(gaps, _)| gaps);
        assert_eq!(told, Some(vec![back(stream(7), 61)]), "the owner has {generation}");
    }
}

/// The owner is silent: after a second it has no link, and a second later nothing waits for it. When it is back, members that came
/// in meanwhile ask again if it never numbered what they have.
#[test]
fn a_member_that_joined_while_its_owner_was_silent_asks_again_if_it_was_ahead() {
    for (numbered, stays) in [(11, false), (61, true)] {
        let mut rig = gateway();
        rig.join(SECOND_MEMBER, 1, ROOM, at(1, 60));
        pass_without(&mut rig, Some(OWNER), 2 * BACKFILL_WAIT + 50_000);
        assert_eq!(
            joined(&mut rig, SECOND_MEMBER),
            Some((vec![], false)),
            "it joins, and may have missed something"
        );
        let owner = rig.link(BROKER, role::BROKER);
        pass_without(&mut rig, Some(OWNER), SOON);
        let asked = questions(&mut rig, owner);
        answer(&mut rig, owner, asked[0], (1, numbered));
        pass_without(&mut rig, Some(OWNER), SOON);
        let records = rig.peers[SECOND_MEMBER].take_records();
        assert_eq!(records.is_empty(), stays, "numbered up to {numbered}");
        pass_without(&mut rig, Some(OWNER), 1_200_000); // a refused session has a second to hear of it
        let members = rig.machine.rooms().map(|room| room.members.len()).sum::<usize>();
        assert_eq!(members, if stays { 2 } else { 1 });
        assert!(questions(&mut rig, owner).is_empty(), "it is known now");
    }
}

#[test]
fn a_gateway_reports_its_progress_to_a_broker_that_numbers_offsets_again() {
    let reports = |rig: &mut Rig<Gateway>| {
        pass(rig, 50_000);
        let got = rig.peers[OWNER]
            .got
            .drain(..)
            .filter(|(kind, _)| *kind == kinds::CONSUMED);
        let told = got.flat_map(|(_, body)| Consumed::read_all(&body).collect::<Vec<_>>());
        told.map(|told| (told.generation, told.next)).collect::<Vec<_>>()
    };
    let mut rig = gateway();
    for offset in 11..=13 {
        rig.say(OWNER, &link_room(1, offset, &[b"text"]));
    }
    reports(&mut rig);
    assert_eq!(reports(&mut rig), [], "it has been told");
    rig.say(OWNER, &link_room(1, 12, &[b"other"]));
    assert_eq!(reports(&mut rig), [(1, 14)]);
    head(&mut rig, OWNER, 5, 1);
    reports(&mut rig);
    assert_eq!(reports(&mut rig), []);
    rig.say(OWNER, &link_room(2, 1, &[b"of an earlier stream"]));
    assert_eq!(reports(&mut rig), [(5, 1)]);
    head(&mut rig, OWNER, 2, 2);
    assert_eq!(reports(&mut rig), [(5, 1)]);
}

// ---- the owner

/// The numbers of a broker's rig's peers: a proxy, a gateway. The room has three messages.
const PUBLISHING: usize = 0;
const TAKING: usize = 1;

/// The heads that a gateway was told since the last look: generation, base, next.
fn heads(rig: &mut Rig<Broker>) -> Vec<(u32, u64, u64)> {
    pass(rig, SOON);
    let got = rig.peers[TAKING]
        .got
        .drain(..)
        .filter(|(kind, _)| *kind == kinds::LINK_HEADS);
    let heads = got.flat_map(|(_, body)| LinkHead::read_all(&body).collect::<Vec<_>>());
    heads.map(|head| (head.generation, head.base, head.next)).collect()
}

fn consumed(rig: &mut Rig<Broker>, room: &str, generation: u32, next: u64) {
    let report = Consumed {
        room: room_id(room),
        generation,
        next,
        kept: 0,
    };
    let frame = body(|writer| {
        report.write(writer);
        true
    });
    rig.frame(TAKING, kinds::CONSUMED.code(), &frame);
    rig.turn();
}

#[test]
fn a_broker_answers_a_question_behind_its_head_and_a_request_for_the_head_with_it_alone() {
    let mut rig = Rig::<Broker>::new();
    heads(&mut rig);
    rig.say(TAKING, &body(|writer| write_link_question(writer, room_id(ROOM), 77)));
    assert_eq!(heads(&mut rig), [(1, 1, 4), (1, 77, 4)]);
    rig.say(
        TAKING,
        &body(|writer| write_link_repair(writer, room_id(ROOM), 0, true, &[])),
    );
    assert_eq!(heads(&mut rig), [(1, 1, 4)], "a gateway of an earlier release asks so");
    rig.say(
        TAKING,
        &body(|writer| write_link_question(writer, room_id("other:room"), 78)),
    );
    assert_eq!(heads(&mut rig), [], "whether a gateway wants that is not known");
}

#[test]
fn a_broker_that_a_gateway_is_ahead_of_begins_another_stream() {
    let mut rig = Rig::<Broker>::new();
    consumed(&mut rig, ROOM, 1, 4);
    heads(&mut rig);
    assert_eq!(counter(&rig.machine, "rolled_back"), 0, "it has all, no more");
    consumed(&mut rig, ROOM, 1, 5);
    assert_eq!(heads(&mut rig), [(2, 1, 1)]);
    consumed(&mut rig, ROOM, 1, 5);
    consumed(&mut rig, ROOM, 2, 1);
    assert_eq!(heads(&mut rig), [], "it has been told");
    rig.say(PUBLISHING, &link_publish(5, 4, 4, &[b"four"]));
    pass(&mut rig, SOON);
    let room = rig.machine.rooms().next().expect("the room");
    assert_eq!((room.generation, room.ring.next()), (2, 2));
    assert_eq!(counter(&rig.machine, "rolled_back"), 1);
}

#[test]
fn a_broker_with_an_earlier_stream_than_a_gateway_begins_a_later_one() {
    let mut rig = Rig::<Broker>::new();
    heads(&mut rig);
    consumed(&mut rig, ROOM, 9, 1);
    assert_eq!(heads(&mut rig), [(10, 1, 1)]);
    consumed(&mut rig, "other:room", 20, 1);
    let other = membership_of("other:room", 2);
    names_gateway(&mut rig, 2, GATEWAY, other);
    assert_eq!(heads(&mut rig), [(21, 1, 1)], "a room that it did not know");
}

/// A member that is away when its broker comes back must not take new offsets for those that it has.
#[test]
fn the_other_rooms_of_a_broker_that_came_back_begin_other_streams_before_they_number_anything() {
    let mut rig = Rig::<Broker>::new();
    let publish = |rig: &mut Rig<Broker>, sequence| {
        let publisher = muster_rooms::wire::PublisherId {
            user: 42,
            incarnation: 5,
        };
        rig.say(
            PUBLISHING,
            &link_publish_in("sports:other", publisher, sequence, sequence, &[b"x"]),
        );
        pass(rig, SOON);
        let room = rig.machine.rooms().find(|room| room.id == room_id("sports:other"));
        room.map(|room| (room.generation, room.ring.next()))
    };
    assert_eq!(
        [1, 2].map(|sequence| publish(&mut rig, sequence)),
        [Some((2, 2)), Some((2, 3))]
    );
    consumed(&mut rig, ROOM, 1, 5);
    rig.say(
        TAKING,
        &body(|writer| write_link_question(writer, room_id("sports:other"), 77)),
    );
    assert_eq!(heads(&mut rig).last(), Some(&(0, 77, 0)), "nothing more comes in it");
    assert_eq!(publish(&mut rig, 3), Some((4, 2)));
    assert_eq!(publish(&mut rig, 4), Some((4, 3)), "once");
}

#[test]
fn the_highest_generation_makes_no_broker_begin_streams_for_ever() {
    let mut rig = Rig::<Broker>::new();
    heads(&mut rig);
    consumed(&mut rig, ROOM, u32::MAX, 1);
    assert_eq!(heads(&mut rig), []);
}

/// What a gateway asked for in a stream that is over.
#[test]
fn a_resend_asked_for_before_another_stream_began_loses_nothing_of_that_one() {
    let mut rig = Rig::<Broker>::new();
    let ask = body(|writer| write_link_repair(writer, room_id(ROOM), 1, false, &[(1, 3)]));
    let mut both = ask.clone();
    both.extend(body(|writer| {
        append(writer, kinds::CONSUMED, 0, |writer| {
            let report = Consumed {
                room: room_id(ROOM),
                generation: 1,
                next: 9,
                kept: 0,
            };
            report.write(writer);
            true
        })
    }));
    rig.say(TAKING, &both);
    assert_eq!(heads(&mut rig).last(), Some(&(2, 1, 1)));
    assert_eq!(rig.peers[TAKING].frames(kinds::LINK_LOST), 0);
}

// ---- the member

/// The items that a program reads.
fn items(rig: &mut Rig<Client>, room: u32) -> Vec<Item> {
    let mut data = Vec::new();
    std::iter::from_fn(|| rig.machine.read(rig.now, room, &mut data)).collect()
}

#[test]
fn a_member_that_is_sent_back_hears_what_comes_at_offsets_that_it_had() {
    let mut rig = Rig::<Client>::new();
    let room = rig.machine.join(rig.now, "sports:one", at(1, 60), Policy::default());
    let answer = Record::Joined {
        request: 3,
        handle: 3,
        index: FIRST_PLACE,
        start: at(1, 10),
        heads: vec![11],
        gaps: vec![back(stream(1), 11)],
        history: 0,
        whole: true,
    };
    rig.tell(0, &answer);
    let member = rig.machine.room(room).expect("the room");
    assert_eq!((member.recovered(), member.counters.gaps), (Some(false), 1));
    assert_eq!(member.positions.of(stream(1)).map(|had| had.offset), Some(10));
    assert_eq!(
        member.resume_from().of(stream(1)).map(|had| had.offset),
        Some(60),
        "unread"
    );
    rig.frame(
        0,
        kinds::ROOM.code(),
        &body(|writer| {
            let mut block = RoomBlock::begin(writer, 3, FIRST_PLACE, stream(1), 11, None);
            assert!(block.push(writer, &message(1, b"news")));
            block.finish(writer) > 0
        }),
    );
    let read = items(&mut rig, room);
    assert_eq!(read[0], Item::Gap(back(stream(1), 11)));
    assert!(matches!(read[1], Item::Message { offset: 11, .. }), "{read:?}");
    let member = rig.machine.room(room).expect("the room");
    let had = Position {
        stream: stream(1),
        offset: 11,
        course: Default::default(),
    };
    assert_eq!(
        (&member.positions.0[..], &member.resume_from().0[..]),
        (&[had][..], &[had][..])
    );
    assert_eq!(member.counters.repeats, 0);
}
