//! Ten known bugs, one at a time: each is found (`docs/testing.md`). Those that seeds can't show are found by a small test of
//! the part itself, which passes without the bug.

use muster_proto::codec::Writer;
use muster_proto::conn::{Conn, Reject, Stamp, TAIL_PROBES};
use muster_proto::machine::{Addr, Outbox};
use muster_proto::planted::{set, Bug};
use muster_proto::seal::{KeyCache, Secret};
use muster_proto::wire::header::{Header, HEADER};
use muster_proto::wire::room::{Message, RoomBlock};
use muster_proto::wire::{PublisherId, StreamId};
use muster_sim::{run, Plan};

/// Seeds that a bug has until it must have been found.
const SEEDS: u64 = 400;

fn seeds_find(bug: Bug) {
    set(Some(bug));
    let found = (0..SEEDS).find_map(|seed| run(seed, Plan::draw, false).1.err().map(|why| (seed, why)));
    set(None);
    match found {
        Some((seed, why)) => {
            println!("{bug:?}: seed {seed}: {why}");
            assert_eq!(
                run(seed, Plan::draw, false).1,
                Ok(()),
                "seed {seed} fails without {bug:?} as well"
            );
        }
        None => panic!("{bug:?} was not found in {SEEDS} seeds"),
    }
}

/// `holds` is true of the real code and not of the planted.
fn part_finds(bug: Bug, holds: impl Fn() -> bool + std::panic::UnwindSafe + std::panic::RefUnwindSafe) {
    set(None);
    assert!(holds(), "does not hold even without {bug:?}");
    set(Some(bug));
    let planted = std::panic::catch_unwind(&holds);
    set(None);
    assert!(!planted.unwrap_or(false), "{bug:?} was not found");
}

type Pair = (Conn<16>, Conn<16>);

fn pair() -> Pair {
    let conn = |id, peer, initiator| {
        Conn::new(
            id,
            peer,
            0,
            Addr::default(),
            Secret::new([7; 16]),
            initiator,
            0,
            1 << 16,
            0,
        )
    };
    (conn(1, 2, true), conn(2, 1, false))
}

/// A datagram of a connection that wants a status.
fn sealed(conn: &mut Conn<16>, now: u64) -> Vec<u8> {
    let (mut keys, mut outbox) = (KeyCache::default(), Outbox::new(false));
    conn.send(now, &mut keys, Stamp::default(), &mut outbox, 1_200, |writer, _| {
        writer.put(&[0xff; 40]);
        true
    });
    outbox.bytes(&outbox.parcels()[0]).to_vec()
}

fn open(conn: &mut Conn<16>, datagram: &[u8]) -> Result<usize, Reject> {
    let mut bytes = datagram.to_vec();
    let header = Header::read(&bytes).expect("a header");
    conn.open(0, &mut KeyCache::default(), &header, &mut bytes)
}

#[test]
fn window_committed_before_open() {
    part_finds(Bug::WindowBeforeOpen, || {
        let (mut here, mut there) = pair();
        let datagram = sealed(&mut here, 0);
        let mut forged = datagram.clone();
        forged[HEADER] ^= 1;
        open(&mut there, &forged) == Err(Reject::Forged) && open(&mut there, &datagram).is_ok()
    });
}

#[test]
fn direction_missing_in_the_nonce() {
    part_finds(Bug::DirectionMissing, || {
        let (mut here, mut there) = pair();
        let (out, back) = (sealed(&mut here, 0), sealed(&mut there, 0));
        let reflected = open(&mut pair().0, &out) == Err(Reject::Forged);
        reflected && out[HEADER..] != back[HEADER..]
    });
}

#[test]
fn chunk_length_trusted() {
    part_finds(Bug::ChunkLengthTrusted, || {
        let mut bytes = [0; 200];
        let mut writer = Writer::new(&mut bytes);
        let mut block = RoomBlock::begin(&mut writer, 1, 1, StreamId::default(), 1);
        let (publisher, data) = (PublisherId::default(), &[1u8; 50][..]);
        block.push(
            &mut writer,
            &Message {
                publisher,
                sequence: 1,
                flags: 3,
                data,
            },
        );
        block.finish(&mut writer);
        let len = writer.len();
        (0..len).all(|cut| RoomBlock::read(&bytes[..cut]).is_none_or(|block| block.messages.count() == 0))
    });
}

#[test]
fn tail_probe_stops_early() {
    part_finds(Bug::TailProbeStopsEarly, || {
        let (mut here, _) = pair();
        sealed(&mut here, 0);
        let mut at = 0;
        TAIL_PROBES.iter().all(|wait| {
            at += wait;
            !here.tail_due(at - 1) && here.tail_due(at)
        })
    });
}

#[test]
fn request_limit_not_per_requester() {
    seeds_find(Bug::RequestLimitShared);
}

#[test]
fn gateway_forwards_past_its_hole() {
    seeds_find(Bug::ForwardsPastHole);
}

#[test]
fn publisher_without_incarnation() {
    seeds_find(Bug::NoIncarnation);
}

#[test]
fn generation_not_raised_on_eviction() {
    seeds_find(Bug::GenerationKept);
}

#[test]
fn leave_overtakes_join() {
    seeds_find(Bug::LeaveOvertakesJoin);
}

#[test]
fn broker_numbers_before_its_interest_is_loaded() {
    seeds_find(Bug::NumbersBeforeInterest);
}
