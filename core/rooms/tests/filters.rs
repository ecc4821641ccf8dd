//! Filters of members: what they pass is not sent, is no loss, and is passed again when asked for.

mod common;

use common::*;
use muster_rooms::filter::Filter;
use muster_rooms::headers::encode;
use muster_rooms::wire::{
    kinds, write_repair, Consumed, GapPlace, LeftOut, LinkBlock, LinkHead, Message, Passed, Positions, PublisherId,
    Record, RoomBlock, Skip, FIRST, HEADERS, LAST, WHOLE,
};
use muster_rooms::{role, Client, Gateway, Item, Policy, FIRST_PLACE};
use muster_transport::append;
use proptest::prelude::*;

fn euro() -> Filter {
    Filter::new([("pair", ["EUR", "USD"])], 1).unwrap()
}

/// A message with the header `pair`, or without headers.
fn priced(pair: &str, data: &[u8]) -> (u8, Vec<u8>) {
    match pair {
        "" => (WHOLE, data.to_vec()),
        _ => (
            WHOLE | HEADERS,
            [encode([("pair", pair)]).unwrap(), data.to_vec()].concat(),
        ),
    }
}

/// A broker's block of these messages from an offset on.
fn link_room_with(offset: u64, pieces: &[(u8, Vec<u8>)]) -> Vec<u8> {
    block_of(ROOM, offset, pieces)
}

/// The same of a room.
fn block_of(room: &str, offset: u64, pieces: &[(u8, Vec<u8>)]) -> Vec<u8> {
    body(|writer| {
        append(writer, kinds::LINK_ROOM, 0, |writer| {
            let mut block = LinkBlock::begin(writer, room_id(room), 1, 1, offset, None);
            for (sequence, (flags, data)) in (offset..).zip(pieces) {
                let piece = Message {
                    flags: *flags,
                    ..message(sequence, data)
                };
                assert!(block.push(writer, &piece));
            }
            block.finish(writer) > 0
        })
    })
}

/// What a member was told of a place: a message with this data, or that its filter passed it.
type Told = (u64, Option<Vec<u8>>);

fn told(rig: &mut Rig<Gateway>, peer: usize) -> Vec<Told> {
    let mut all = Vec::new();
    for (kind, body) in std::mem::take(&mut rig.peers[peer].got) {
        if kind == kinds::ROOM {
            let block = RoomBlock::read(&body).expect("a block");
            let places = block.index..;
            all.extend(
                places
                    .zip(block.messages)
                    .map(|(place, message)| (place, Some(message.data.to_vec()))),
            );
        } else if kind == kinds::PASSED {
            let passed = Passed::read(&body).expect("a run");
            assert_eq!(passed.offset - 1, passed.index - FIRST_PLACE);
            all.extend((passed.index..passed.end()).map(|place| (place, None)));
        }
    }
    all
}

/// Peer 0 is a member with this filter, peer 1 one without; 2 is the broker.
fn members(filter: Filter) -> Rig<Gateway> {
    let mut rig = Rig::<Gateway>::bare();
    rig.session(1);
    rig.session(2);
    rig.link(BROKER, role::BROKER);
    rig.link(ROUTER, role::ROUTER);
    for (peer, request) in [(0, 7), (1, 8)] {
        rig.tell(peer, &Record::Headers);
        if peer == 0 {
            let filter = filter.clone();
            rig.tell(peer, &Record::Filter { request, filter });
        }
        rig.join(peer, request, ROOM, Positions::default());
    }
    rig.tell(3, &Record::Covered { offset: 1 << 20 });
    let head = LinkHead {
        room: room_id(ROOM),
        generation: 1,
        base: 1,
        next: 1,
    };
    tells_head(&mut rig, 2, head);
    rig.pass(100_000, 5_000);
    told(&mut rig, 0);
    told(&mut rig, 1);
    rig
}

#[test]
fn a_member_gets_what_its_filter_lets_through_and_hears_of_the_rest_before_it() {
    let mut rig = members(euro());
    let pieces = ["JPY", "", "EUR", "JPY", "USD", "CHF"].map(|pair| priced(pair, b"1"));
    rig.say(2, &link_room_with(1, &pieces));
    rig.turn();
    let at = |place: u64| FIRST_PLACE + place;
    let got = |place: usize| (at(place as u64), Some(pieces[place].1.clone()));
    let wanted = [(at(0), None), (at(1), None), got(2), (at(3), None), got(4)];
    assert_eq!(told(&mut rig, 0), wanted, "the last one waits");
    assert_eq!(told(&mut rig, 1).len(), 6, "another member gets all");
    assert_eq!(counter(&rig.machine, "messages_filtered"), 4);
    assert_eq!(counter(&rig.machine, "messages_sent"), 2 + 6);
    rig.pass(200_000, 5_000);
    assert_eq!(told(&mut rig, 0), []);
    rig.pass(100_000, 5_000);
    assert_eq!(told(&mut rig, 0), [(at(5), None)], "it is told after a while");
}

#[test]
fn a_long_run_that_a_filter_passes_is_told_in_pieces() {
    let mut rig = members(euro());
    // As many at once as the ring surely keeps, and more than are looked at in one turn.
    for burst in [1..=1_500, 1_501..=3_000] {
        for offset in burst {
            rig.say(2, &link_room_with(offset, &[priced("JPY", b"1")]));
        }
        rig.pass(300_000, 5_000);
    }
    let places: Vec<Told> = (FIRST_PLACE..FIRST_PLACE + 3_000).map(|place| (place, None)).collect();
    assert!(told(&mut rig, 0) == places, "each place once");
    assert_eq!(rig.peers[0].frames(kinds::PASSED), 2 * 1_500usize.div_ceil(256));
}

/// The gaps of each join that peer 3 was granted.
fn gaps_of_joins(rig: &mut Rig<Gateway>, peer: usize) -> Vec<usize> {
    let records = rig.peers[peer].take_records();
    let joined = records.iter().filter_map(|bytes| match Record::read(bytes) {
        Some(Record::Joined { gaps, .. }) => Some(gaps.len()),
        _ => None,
    });
    joined.collect()
}

/// The ring holds a second of this room. A member that was told late would stand at places that are gone by then.
#[test]
fn a_member_whose_whole_stream_is_passed_never_stands_where_the_ring_has_moved_on() {
    let mut rig = members(euro());
    let other = rig.session(3);
    let (mut next, mut returns) = (1, 0);
    for turn in 1..=500 {
        let pieces = [priced("JPY", &[7; 200])];
        for _ in 0..20 {
            rig.say(2, &link_room_with(next, &pieces));
            next += 1;
        }
        rig.pass(20_000, 5_000);
        if turn % 50 != 0 {
            continue;
        }
        // The member comes back with what it knows: nothing is lost. Another with the first position has a gap.
        let last = told(&mut rig, 0).last().expect("it is told").0 - FIRST_PLACE + 1;
        assert!(next - last <= 20 * 16 + 256, "{} places untold", next - last);
        for (offset, gaps) in [(last, 0), (1, 1)] {
            rig.join(other, 100 + turn, ROOM, Positions::at([(stream(1), offset)]));
            rig.pass(10_000, 5_000);
            assert_eq!(
                gaps_of_joins(&mut rig, other),
                [gaps],
                "turn {turn}, from {offset} of {next}"
            );
            rig.tell(other, &Record::Leave { handle: 0 });
            returns += 1;
        }
    }
    assert_eq!(returns, 20);
    let told_of = |kind| rig.peers[0].frames(kind);
    assert_eq!((told_of(kinds::SKIP), told_of(kinds::GAP)), (0, 0));
}

#[test]
fn a_member_that_lost_something_gets_the_same_again() {
    let mut rig = members(euro());
    let pieces = ["JPY", "", "EUR", "USD", "CHF"].map(|pair| priced(pair, b"1"));
    rig.say(2, &link_room_with(1, &pieces));
    rig.pass(300_000, 5_000);
    let first = told(&mut rig, 0);
    let asked = body(|writer| write_repair(writer, 0, FIRST_PLACE, &[(FIRST_PLACE, FIRST_PLACE + 4)]));
    rig.say(0, &asked);
    rig.turn();
    assert_eq!(first.len(), 5);
    assert_eq!(told(&mut rig, 0), first);
}

#[test]
fn a_message_of_several_chunks_is_judged_by_its_first() {
    let mut rig = members(euro());
    let (_, euro) = priced("EUR", b"a");
    let (_, yen) = priced("JPY", b"b");
    let pieces = [
        (FIRST | HEADERS, euro.clone()),
        (HEADERS, b"c".to_vec()),
        (LAST | HEADERS, b"d".to_vec()),
        (FIRST | HEADERS, yen),
        (LAST | HEADERS, b"e".to_vec()),
    ];
    for (offset, piece) in (1..).zip(&pieces) {
        rig.say(2, &link_room_with(offset, std::slice::from_ref(piece)));
        rig.turn();
    }
    rig.pass(300_000, 5_000);
    let data = |all: Vec<Told>| all.into_iter().map(|(_, data)| data).collect::<Vec<_>>();
    let wanted = [Some(euro), Some(b"c".to_vec()), Some(b"d".to_vec()), None, None];
    assert_eq!(data(told(&mut rig, 0)), wanted);
    let last = FIRST_PLACE + 4;
    rig.say(0, &body(|writer| write_repair(writer, 0, last, &[(last - 2, last)])));
    rig.turn();
    assert_eq!(data(told(&mut rig, 0)), wanted[2..]);
}

#[test]
fn a_filter_is_of_the_join_with_its_request_alone() {
    let mut rig = members(euro());
    let filter = Filter::new([("pair", ["CHF"])], 1).unwrap();
    rig.tell(1, &Record::Filter { request: 70, filter });
    rig.join(1, 71, "sports:other", Positions::default());
    rig.tell(0, &Record::Leave { handle: 0 });
    rig.join(0, 72, ROOM, Positions::default());
    rig.pass(100_000, 5_000);
    told(&mut rig, 0);
    rig.say(2, &link_room_with(1, &[priced("JPY", b"1")]));
    rig.turn();
    let all = [(FIRST_PLACE, Some(priced("JPY", b"1").1))];
    assert_eq!(told(&mut rig, 0), all, "it came back without a filter");
    assert_eq!(told(&mut rig, 1), all);
}

fn joined_client(filter: Option<Filter>) -> (Rig<Client>, u32) {
    let mut rig = Rig::<Client>::new();
    let from = (Positions::default(), 0);
    let room = match filter {
        Some(filter) => rig
            .machine
            .join_filtered(rig.now, "sports:one", from, filter, Policy::DropOldest),
        None => rig.machine.join(rig.now, "sports:one", from.0, Policy::DropOldest),
    };
    rig.turn();
    rig.tell(
        0,
        &Record::Joined {
            request: 3,
            handle: 3,
            index: FIRST_PLACE,
            start: Positions::default(),
            heads: vec![],
            gaps: vec![],
            history: 0,
            whole: true,
        },
    );
    (rig, room)
}

fn room_frame(place: u64, offset: u64, pieces: &[(u8, Vec<u8>)]) -> Vec<u8> {
    body(|writer| {
        let mut block = RoomBlock::begin(writer, 3, place, stream(1), offset, None);
        for (sequence, (flags, data)) in (offset..).zip(pieces) {
            let piece = Message {
                flags: *flags,
                ..message(sequence, data)
            };
            assert!(block.push(writer, &piece));
        }
        block.finish(writer) == pieces.len()
    })
}

fn passed_body(place: u64, offset: u64, count: u32) -> Vec<u8> {
    let passed = Passed {
        handle: 3,
        index: place,
        stream: stream(1),
        offset,
        count,
    };
    let frame = body(|writer| passed.write(writer));
    frame[4..].to_vec()
}

/// The offsets of the messages that a member reads; a gap is a failure.
fn offsets(rig: &mut Rig<Client>, room: u32) -> Vec<u64> {
    let mut read = Vec::new();
    while let Some(item) = rig.machine.read(rig.now, room, &mut Vec::new()) {
        match item {
            Item::Message { offset, .. } => read.push(offset),
            other => panic!("{other:?}"),
        }
    }
    read
}

#[test]
fn a_client_sends_its_filter_before_its_join() {
    let (mut rig, _) = joined_client(Some(euro()));
    let records = rig.peers[0].take_records();
    let at = |wanted: fn(&Record<'_>) -> bool| {
        records
            .iter()
            .position(|bytes| Record::read(bytes).is_some_and(|record| wanted(&record)))
    };
    let filter = at(|record| matches!(record, Record::Filter { request: 3, filter } if *filter == euro()));
    let join = at(|record| matches!(record, Record::Join { request: 3, .. }));
    assert!(filter.is_some() && filter < join, "{records:?}");
}

#[test]
fn passed_places_are_no_gap_and_move_a_members_position() {
    let (mut rig, room) = joined_client(Some(euro()));
    let frames = [
        (kinds::ROOM, room_frame(FIRST_PLACE + 4, 5, &[priced("EUR", b"1")])),
        (kinds::PASSED, passed_body(FIRST_PLACE + 1, 2, 3)),
        (kinds::PASSED, passed_body(FIRST_PLACE + 5, 6, 10)),
        (kinds::PASSED, passed_body(FIRST_PLACE + 3, 4, 1)),
        (kinds::ROOM, room_frame(FIRST_PLACE, 1, &[priced("USD", b"1")])),
    ];
    for (kind, frame) in frames {
        rig.frame(0, kind.code(), &frame);
    }
    assert_eq!(offsets(&mut rig, room), [1, 5]);
    let member = rig.machine.room(room).unwrap();
    assert_eq!((member.counters.gaps, member.counters.filtered), (0, 13));
    let resumes = member.resume_from().of(stream(1)).map(|position| position.offset);
    assert_eq!(resumes, Some(15), "a later join begins behind what was passed");
}

#[test]
fn a_member_filters_what_a_former_gateway_does_not() {
    let (mut rig, room) = joined_client(Some(euro()));
    let pieces = ["EUR", "JPY", "", "USD"].map(|pair| priced(pair, b"1"));
    rig.frame(0, kinds::ROOM.code(), &room_frame(FIRST_PLACE, 1, &pieces));
    assert_eq!(offsets(&mut rig, room), [1, 4]);
    assert_eq!(rig.machine.room(room).unwrap().counters.filtered, 2);
}

const PAIRS: [&str; 4] = ["EUR", "USD", "JPY", ""];

/// A message by the number of its pair, in as many chunks.
fn chunks((pair, count): (usize, usize)) -> Vec<(u8, Vec<u8>)> {
    let (flags, first) = priced(PAIRS[pair], b"data");
    (0..count)
        .map(|at| {
            let ends = if at == 0 { FIRST } else { 0 } | if at + 1 == count { LAST } else { 0 };
            let data = if at == 0 { first.clone() } else { b"more".to_vec() };
            (flags & HEADERS | ends, data)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A member with a filter reads the messages of one without that match, in order, however frames are lost.
    #[test]
    fn filtered_is_what_an_unfiltered_member_gets_that_matches(
        messages in prop::collection::vec((0usize..4, 1usize..4), 1..60),
        one_in in 1u32..4,
        lost in prop::collection::vec(any::<bool>(), 40),
    ) {
        let filter = Filter::new([("pair", ["EUR", "USD"])], one_in).unwrap();
        let mut gateway = members(filter.clone());
        let (mut offset, mut wanted) = (1, Vec::new());
        let sample = (one_in > 1).then(|| Filter::new([("", [""]); 0], one_in).unwrap());
        for (pair, count) in messages {
            let pieces = chunks((pair, count));
            // The reference: a message by itself.
            if pair < 2 && sample.as_ref().is_none_or(|sample| sample.lets(PUBLISHER, offset, None)) {
                wanted.push(offset + count as u64 - 1);
            }
            gateway.say(2, &link_room_with(offset, &pieces));
            gateway.turn();
            offset += count as u64;
        }
        gateway.pass(300_000, 5_000);
        let sent = std::mem::take(&mut gateway.peers[0].got);
        let (mut client, room) = joined_client(Some(filter));
        let carry = |client: &mut Rig<Client>, kind: muster_transport::FrameKind, body: &[u8]| {
            // The client's handle of the room is another one.
            let body = [&3u32.to_le_bytes()[..], &body[4..]].concat();
            client.frame(0, kind.code(), &body);
        };
        let of_room = |kind| kind == kinds::ROOM || kind == kinds::PASSED;
        for (at, (kind, body)) in sent.iter().enumerate().filter(|(_, (kind, _))| of_room(*kind)) {
            if !lost[at % lost.len()] {
                carry(&mut client, *kind, body);
            }
        }
        let last = FIRST_PLACE + offset - 2;
        for first in (FIRST_PLACE..=last).step_by(7) {
            gateway.say(0, &body(|writer| write_repair(writer, 0, first, &[(first, last.min(first + 6))])));
            gateway.pass(20_000, 5_000);
        }
        for (kind, body) in std::mem::take(&mut gateway.peers[0].got) {
            if of_room(kind) {
                carry(&mut client, kind, &body);
            }
        }
        prop_assert_eq!(offsets(&mut client, room), wanted);
        let position = client.machine.room(room).unwrap().resume_from().of(stream(1));
        prop_assert_eq!(position.map(|position| position.offset), Some(offset - 1));
    }
}

fn latest(rate: u32) -> Filter {
    Filter::latest([("pair", ["EUR", "USD"])], 1, Some(rate)).unwrap()
}

/// What a member that wants the latest message was told: messages by place, runs that it is left out of, and the place that a loss ends
/// at.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Message(u64, Vec<u8>),
    LeftOut(u64, u64),
    Gap(u64),
    Lost(u64),
}

fn words(rig: &mut Rig<Gateway>) -> Vec<Word> {
    let mut all = Vec::new();
    for (kind, body) in std::mem::take(&mut rig.peers[0].got) {
        if kind == kinds::ROOM {
            let block = RoomBlock::read(&body).expect("a block");
            let messages = (block.index..).zip(block.messages);
            all.extend(messages.map(|(place, message)| Word::Message(place - FIRST_PLACE, message.data.to_vec())));
        } else if kind == kinds::LEFT_OUT {
            let left = LeftOut::read(&body).expect("a run");
            assert_eq!(left.resume, [(stream(1), left.end - FIRST_PLACE + 1)]);
            all.push(Word::LeftOut(left.index - FIRST_PLACE, left.end - FIRST_PLACE));
        } else if kind == kinds::GAP {
            all.push(Word::Gap(GapPlace::read(&body).expect("a gap").index - FIRST_PLACE));
        } else if kind == kinds::SKIP {
            all.push(Word::Lost(Skip::read(&body).expect("a skip").index - FIRST_PLACE));
        }
        assert_ne!(kind, kinds::PASSED);
    }
    all
}

/// The messages among what was told.
fn messages(words: &[Word]) -> Vec<u64> {
    let messages = words.iter().filter_map(|word| match word {
        Word::Message(place, _) => Some(*place),
        _ => None,
    });
    messages.collect()
}

/// That each place from one on was told once and in order, and the place behind.
fn told_once(words: &[Word], from: u64) -> u64 {
    words.iter().fold(from, |next, word| match word {
        Word::Message(place, _) | Word::Gap(place) => {
            assert_eq!(*place, next, "{words:?}");
            next + 1
        }
        Word::LeftOut(first, end) => {
            assert!(*first == next && *end > next, "{words:?}");
            *end
        }
        Word::Lost(end) => *end,
    })
}

#[test]
fn a_member_gets_the_newest_match_of_each_period_and_the_last_one_in_the_end() {
    let mut rig = members(latest(10));
    let (mut got, mut all) = (Vec::new(), Vec::new());
    for place in 0..200 {
        let pair = if place % 3 == 2 { "JPY" } else { "EUR" };
        rig.say(2, &link_room_with(place + 1, &[priced(pair, &place.to_le_bytes())]));
        rig.turn();
        for step in 0..2 {
            rig.pass(5_000, 5_000);
            let news = words(&mut rig);
            got.extend(messages(&news).into_iter().map(|one| (rig.now, one, place, step)));
            all.extend(news);
        }
    }
    for (_, one, place, _) in &got {
        let newest = if place % 3 == 2 { place - 1 } else { *place };
        assert_eq!(*one, newest, "{got:?}");
    }
    for pair in got.windows(2) {
        assert!((95_000..=110_000).contains(&(pair[1].0 - pair[0].0)), "{got:?}");
        // it is looked at every 5 ms
    }
    assert!((18..=21).contains(&got.len()), "{got:?}");
    rig.pass(400_000, 5_000);
    let rest = words(&mut rig);
    assert!(messages(&rest).len() <= 1);
    all.extend(rest);
    assert_eq!(messages(&all).last(), Some(&199), "a match: 199 % 3 is 1");
    assert_eq!(told_once(&all, 0), 200);
    let sent = messages(&all).len() as u64;
    assert_eq!(counter(&rig.machine, "messages_filtered"), 200 - sent);
    assert_eq!(told(&mut rig, 1).len(), 200, "another member gets all");
}

#[test]
fn a_message_alone_comes_at_once_and_what_does_not_match_behind_it_is_told_later() {
    let mut rig = members(latest(1));
    rig.say(
        2,
        &link_room_with(1, &["EUR", "JPY", "JPY"].map(|pair| priced(pair, b"1"))),
    );
    rig.turn();
    let message = Word::Message(0, priced("EUR", b"1").1);
    assert_eq!(words(&mut rig), [message]);
    rig.pass(300_000, 5_000);
    assert_eq!(words(&mut rig), [Word::LeftOut(1, 3)]);
    rig.pass(2_000_000, 50_000);
    assert_eq!(words(&mut rig), []);
}

#[test]
fn a_member_that_lost_the_latest_gets_what_it_was_sent_again_and_no_more() {
    let mut rig = members(latest(10));
    for place in 0..40 {
        rig.say(2, &link_room_with(place + 1, &[priced("EUR", &place.to_le_bytes())]));
        rig.pass(10_000, 5_000);
    }
    rig.pass(300_000, 5_000);
    let first = words(&mut rig);
    let last = told_once(&first, 0) - 1;
    assert_eq!(messages(&first).last(), Some(&39));
    let ask = |rig: &mut Rig<Gateway>, first: u64, last: u64| {
        let (first, last) = (FIRST_PLACE + first, FIRST_PLACE + last);
        rig.say(0, &body(|writer| write_repair(writer, 0, first, &[(first, last)])));
        rig.turn();
        words(rig)
    };
    assert_eq!(ask(&mut rig, 0, last), first);
    let some = ask(&mut rig, 5, 25);
    assert_eq!(told_once(&some, 5), 26);
    let within = |place: &&u64| (5..=25).contains(*place);
    assert_eq!(
        messages(&some),
        messages(&first).iter().filter(within).copied().collect::<Vec<_>>()
    );
    rig.say(2, &link_room_with(41, &[priced("EUR", b"1"), priced("EUR", b"2")]));
    rig.turn();
    words(&mut rig);
    assert_eq!(ask(&mut rig, 42, 50), [], "what it was not sent comes by itself");
}

#[test]
fn the_latest_whole_message_comes_with_all_of_its_chunks() {
    let mut rig = members(latest(10));
    let (_, euro) = priced("EUR", b"a");
    let more = (HEADERS, b"b".to_vec());
    let last = (LAST | HEADERS, b"c".to_vec());
    let other = |sequence: u64, flags: u8, data: &[u8]| {
        let publisher = PublisherId { user: 8, ..PUBLISHER };
        (sequence, publisher, flags, data.to_vec())
    };
    let own = |sequence: u64, (flags, data): (u8, Vec<u8>)| (sequence, PUBLISHER, flags, data);
    let whole = priced("EUR", b"d");
    let pieces = [
        own(1, (FIRST | HEADERS, euro)),
        other(1, whole.0, &whole.1),
        own(2, more),
        own(3, last),
        other(2, whole.0, &whole.1),
    ];
    let mut got = Vec::new();
    for (offset, (sequence, publisher, flags, data)) in (1..).zip(pieces) {
        let frame = body(|writer| {
            append(writer, kinds::LINK_ROOM, 0, |writer| {
                let mut block = LinkBlock::begin(writer, room_id(ROOM), 1, 1, offset, None);
                let piece = Message {
                    publisher,
                    sequence,
                    flags,
                    data: &data,
                };
                block.push(writer, &piece) && block.finish(writer) > 0
            })
        });
        rig.say(2, &frame);
        rig.pass(5_000, 5_000);
        got.push(messages(&words(&mut rig)));
    }
    let none = Vec::new();
    assert_eq!(got, [none.clone(), none.clone(), none.clone(), vec![0, 2, 3], none]);
    rig.pass(100_000, 5_000);
    assert_eq!(messages(&words(&mut rig)), [4]);
}

/// The rest of a message may never come.
#[test]
fn an_unfinished_message_holds_up_the_latest_for_a_moment_alone() {
    let mut rig = members(latest(10));
    let (_, euro) = priced("EUR", b"a");
    rig.say(2, &link_room_with(1, &[(FIRST | HEADERS, euro)]));
    let frame = body(|writer| {
        append(writer, kinds::LINK_ROOM, 0, |writer| {
            let mut block = LinkBlock::begin(writer, room_id(ROOM), 1, 1, 2, None);
            let (flags, data) = priced("EUR", b"d");
            let publisher = PublisherId { user: 8, ..PUBLISHER };
            let piece = Message {
                publisher,
                sequence: 1,
                flags,
                data: &data,
            };
            block.push(writer, &piece) && block.finish(writer) > 0
        })
    });
    rig.say(2, &frame);
    rig.pass(200_000, 5_000);
    assert_eq!(words(&mut rig), []);
    rig.pass(200_000, 5_000);
    assert_eq!(messages(&words(&mut rig)), [1]);
    rig.say(2, &link_room_with(3, &[(LAST | HEADERS, b"e".to_vec())]));
    rig.pass(200_000, 5_000);
    assert_eq!(
        words(&mut rig).last(),
        Some(&Word::Lost(3)),
        "it was wanted, and cannot come"
    );
}

#[test]
fn publishers_of_a_paced_room_do_not_wait_for_a_member_that_wants_the_latest() {
    const PACED: &str = "paced:final";
    let mut rig = Rig::<Gateway>::bare();
    rig.session(1);
    rig.link(BROKER, role::BROKER);
    rig.link(ROUTER, role::ROUTER);
    let filter = Filter::latest([("", [""]); 0], 1, Some(1)).unwrap();
    rig.tell(0, &Record::Headers);
    rig.tell(0, &Record::Filter { request: 7, filter });
    rig.join(0, 7, PACED, Positions::default());
    rig.tell(2, &Record::Covered { offset: 1 << 20 });
    let head = LinkHead {
        room: room_id(PACED),
        generation: 1,
        base: 1,
        next: 1,
    };
    tells_head(&mut rig, 1, head);
    rig.pass(100_000, 5_000);
    words(&mut rig);
    for offset in 1..=60 {
        rig.say(1, &block_of(PACED, offset, &[priced("EUR", b"1")]));
        rig.pass(10_000, 5_000);
    }
    rig.pass(200_000, 5_000);
    assert_eq!(messages(&words(&mut rig)), [0], "it was sent one");
    let told = rig.peers[1].got.iter().filter(|(kind, _)| *kind == kinds::CONSUMED);
    let last = told
        .flat_map(|(_, body)| Consumed::read_all(body).collect::<Vec<_>>())
        .last();
    assert_eq!(last.map(|told| (told.room, told.next)), Some((room_id(PACED), 61)));
    rig.pass(300_000, 5_000);
    assert_eq!(messages(&words(&mut rig)), [59]);
}

fn left_out_body(place: u64, end: u64) -> Vec<u8> {
    let left = LeftOut {
        handle: 3,
        index: place,
        end,
        resume: vec![(stream(1), end - FIRST_PLACE + 1)],
    };
    body(|writer| left.write(writer))[4..].to_vec()
}

#[test]
fn places_that_a_member_is_left_out_of_are_no_gap_and_move_its_position() {
    let (mut rig, room) = joined_client(Some(latest(10)));
    let frames = [
        (kinds::LEFT_OUT, left_out_body(FIRST_PLACE + 5, FIRST_PLACE + 100_000)),
        (kinds::ROOM, room_frame(FIRST_PLACE + 4, 5, &[priced("EUR", b"1")])),
        (kinds::LEFT_OUT, left_out_body(FIRST_PLACE + 1, FIRST_PLACE + 4)),
        (kinds::ROOM, room_frame(FIRST_PLACE, 1, &[priced("USD", b"1")])),
    ];
    for (kind, frame) in frames {
        rig.frame(0, kind.code(), &frame);
    }
    assert_eq!(offsets(&mut rig, room), [1, 5]);
    let member = rig.machine.room(room).unwrap();
    assert_eq!((member.counters.gaps, member.counters.filtered), (0, 99_998));
    let resumes = member.resume_from().of(stream(1)).map(|position| position.offset);
    assert_eq!(resumes, Some(100_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A member that wants the latest reads some of the messages that match, in order, and the last one in the end, however frames
    /// are lost.
    #[test]
    fn the_latest_are_some_of_what_matches_in_order_and_end_with_the_last(
        pieces in prop::collection::vec((0usize..4, 1usize..4, 0u64..60_000), 1..80),
        rate in 1u32..200,
        lost in prop::collection::vec(any::<bool>(), 40),
    ) {
        let mut gateway = members(latest(rate));
        let (mut offset, mut wanted) = (1, Vec::new());
        for (pair, count, wait) in pieces {
            let pieces = chunks((pair, count));
            if pair < 2 {
                wanted.push(offset + count as u64 - 1);
            }
            gateway.say(2, &link_room_with(offset, &pieces));
            gateway.turn();
            if wait > 1_000 {
                gateway.pass(wait, 5_000);
            }
            offset += count as u64;
        }
        gateway.pass(1_300_000, 20_000);
        let sent = std::mem::take(&mut gateway.peers[0].got);
        let (mut client, room) = joined_client(Some(latest(rate)));
        let of_room = |kind| kind == kinds::ROOM || kind == kinds::LEFT_OUT;
        let carry = |client: &mut Rig<Client>, kind: muster_transport::FrameKind, body: &[u8]| {
            let body = [&3u32.to_le_bytes()[..], &body[4..]].concat();
            client.frame(0, kind.code(), &body);
        };
        for (at, (kind, body)) in sent.iter().enumerate().filter(|(_, (kind, _))| of_room(*kind)) {
            if !lost[at % lost.len()] {
                carry(&mut client, *kind, body);
            }
        }
        let last = FIRST_PLACE + offset - 2;
        for first in (FIRST_PLACE..=last).step_by(7) {
            gateway.say(0, &body(|writer| write_repair(writer, 0, first, &[(first, last.min(first + 6))])));
            gateway.pass(20_000, 5_000);
        }
        for (kind, body) in std::mem::take(&mut gateway.peers[0].got) {
            if of_room(kind) {
                carry(&mut client, kind, &body);
            }
        }
        let read = offsets(&mut client, room);
        prop_assert!(read.windows(2).all(|pair| pair[0] < pair[1]), "{read:?}");
        prop_assert!(read.iter().all(|offset| wanted.contains(offset)), "{read:?} of {wanted:?}");
        prop_assert_eq!(read.last(), wanted.last());
        let position = client.machine.room(room).unwrap().resume_from().of(stream(1));
        prop_assert_eq!(position.map(|position| position.offset), Some(offset - 1));
    }
}
