//! Known bugs, planted one at a time: each is found (`docs/testing.md`). Bugs that seeds can't show are found by a
//! small test of the part itself, which passes without the bug.

use muster_rooms::planted::Bug;
use muster_rooms::role;
use muster_rooms::room_placement;
use muster_rooms::wire::{Membership, Message, PublisherId, RoomBlock, StreamId};
use muster_rooms::RoomLayers;
use muster_rooms::{Change, Interest};
use muster_sim::{run, Plan};
use muster_transport::planted::Bug as TransportBug;
use muster_transport::{
    Addr, Conn, Growth, Header, Health, KeyCache, KeyedState, Layer, Outbox, PlacedNode, Reading, Reject, Scope,
    Secret, Stamp, Writer, HEADER, TAIL_PROBES,
};

/// Number of seeds within which a bug must be found.
const SEEDS: u64 = 400;

/// A bug of either crate.
#[derive(Clone, Copy, Debug)]
enum Planted {
    Transport(TransportBug),
    Rooms(Bug),
}

impl From<TransportBug> for Planted {
    fn from(bug: TransportBug) -> Self {
        Planted::Transport(bug)
    }
}

impl From<Bug> for Planted {
    fn from(bug: Bug) -> Self {
        Planted::Rooms(bug)
    }
}

fn set(bug: Option<Planted>) {
    let (transport, rooms) = match bug {
        Some(Planted::Transport(bug)) => (Some(bug), None),
        Some(Planted::Rooms(bug)) => (None, Some(bug)),
        None => (None, None),
    };
    muster_transport::planted::set(transport);
    muster_rooms::planted::set(rooms);
}

fn seeds_find(bug: impl Into<Planted>, draw: fn(u64) -> Plan) {
    let bug = bug.into();
    set(Some(bug));
    let found = (0..SEEDS).find_map(|seed| run(seed, draw, false).1.err().map(|why| (seed, why)));
    set(None);
    match found {
        Some((seed, why)) => {
            println!("{bug:?}: seed {seed}: {why}");
            assert_eq!(
                run(seed, draw, false).1,
                Ok(()),
                "seed {seed} fails without {bug:?} as well"
            );
        }
        None => panic!("{bug:?} was not found in {SEEDS} seeds"),
    }
}

/// `holds` must be true for the real code and false with the bug.
fn part_finds(bug: impl Into<Planted>, holds: impl Fn() -> bool + std::panic::UnwindSafe + std::panic::RefUnwindSafe) {
    let bug = bug.into();
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

/// A datagram of a connection that elicits a status.
fn sealed(conn: &mut Conn<16>, now: u64) -> Vec<u8> {
    let (mut keys, mut outbox) = (KeyCache::default(), Outbox::new(false));
    conn.send(now, &mut keys, Stamp::default(), &mut outbox, 1_200, |writer, _| {
        writer.put(&[0xff; 40]);
        true
    });
    outbox.bytes(&outbox.parcels()[0]).to_vec()
}

/// The knowledge of gateway 7 after reports of several sources.
struct Views(Interest, Vec<Change>);

impl Views {
    fn new() -> Self {
        Views(Interest::new(KeyedState::new(1, 2)), Vec::new())
    }

    fn snapshot(&mut self, source: u32, epoch: u32, version: u64, rooms: &[u64]) {
        let (life, snapshot) = ((7, epoch), (Scope::ALL, version));
        self.0.begin(source, life, snapshot, &mut self.1);
        for room in rooms {
            self.change(source, epoch, *room, 1, true);
        }
        self.0.end(source, life, snapshot, &mut self.1);
    }

    fn change(&mut self, source: u32, epoch: u32, room: u64, version: u64, present: bool) {
        let check = room;
        let membership = Membership {
            room,
            check,
            version,
            present,
        };
        self.0.apply(source, (7, epoch), &membership, &mut self.1);
    }

    fn wants(&self, rooms: &[u64]) -> bool {
        self.0.wanted().iter().map(|(_, room)| *room).eq(rooms.iter().copied())
    }
}

fn open(conn: &mut Conn<16>, datagram: &[u8]) -> Result<usize, Reject> {
    let mut bytes = datagram.to_vec();
    let header = Header::read(&bytes).expect("a header");
    conn.open(0, &mut KeyCache::default(), &header, &mut bytes)
}

#[test]
fn window_committed_before_open() {
    part_finds(TransportBug::WindowBeforeOpen, || {
        let (mut here, mut there) = pair();
        let datagram = sealed(&mut here, 0);
        let mut forged = datagram.clone();
        forged[HEADER] ^= 1;
        open(&mut there, &forged) == Err(Reject::Forged) && open(&mut there, &datagram).is_ok()
    });
}

#[test]
fn direction_missing_in_the_nonce() {
    part_finds(TransportBug::DirectionMissing, || {
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
        let mut block = RoomBlock::begin(&mut writer, 1, 1, StreamId::default(), 1, None);
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
    part_finds(TransportBug::TailProbeStopsEarly, || {
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
    seeds_find(Bug::RequestLimitShared, Plan::draw);
}

#[test]
fn gateway_forwards_past_its_hole() {
    seeds_find(Bug::ForwardsPastHole, Plan::draw);
}

#[test]
fn publisher_without_incarnation() {
    seeds_find(Bug::NoIncarnation, Plan::draw);
}

#[test]
fn generation_not_raised_on_eviction() {
    seeds_find(Bug::GenerationKept, Plan::draw);
}

#[test]
fn leave_overtakes_join() {
    seeds_find(Bug::LeaveOvertakesJoin, Plan::draw);
}

#[test]
fn broker_numbers_before_its_interest_is_loaded() {
    seeds_find(Bug::NumbersBeforeInterest, Plan::draw);
}

#[test]
fn the_last_report_of_several_sources_counts() {
    part_finds(Bug::LastWordWins, || {
        let mut told = Views::new();
        told.snapshot(1, 1, 3, &[10, 11]);
        told.snapshot(2, 1, 3, &[10, 11]);
        told.change(1, 1, 10, 4, false);
        told.change(1, 1, 10, 5, true);
        told.change(2, 1, 10, 4, false);
        told.wants(&[10, 11])
    });
}

#[test]
fn a_gateways_earlier_life_is_kept() {
    part_finds(Bug::EarlierLifeKept, || {
        let mut told = Views::new();
        told.snapshot(1, 1, 3, &[10, 11]);
        told.snapshot(1, 2, 1, &[11]);
        told.wants(&[11])
    });
}

#[test]
fn a_snapshot_takes_nothing_away() {
    seeds_find(Bug::SnapshotsOnlyAdd, Plan::draw);
    seeds_find(Bug::SnapshotsOnlyAdd, Plan::members);
}

#[test]
fn routers_forward_reports_of_peers() {
    seeds_find(Bug::PeersPassOn, Plan::draw);
}

#[test]
fn new_partitions_get_no_reports() {
    seeds_find(TransportBug::NewPartitionUntold, Plan::grows);
}

#[test]
fn a_broker_that_narrows_forgets_gateways_that_lack_messages() {
    seeds_find(Bug::NarrowingForgets, Plan::grows);
}

#[test]
fn a_former_scope_grows() {
    seeds_find(Bug::FormerScopeGrows, Plan::grows);
}

#[test]
fn a_join_is_answered_that_the_new_partition_does_not_know() {
    part_finds(TransportBug::NewPartitionUncounted, || {
        let switched = Layer::new(2, Growth::Switched);
        (0..4).all(|partition| switched.counts(partition))
    });
}

#[test]
fn a_hint_overrules_a_gateways_report() {
    part_finds(Bug::HintOverrules, || {
        let mut told = Views::new();
        told.snapshot(1, 1, 3, &[10]);
        let left = Membership {
            room: 11,
            check: 11,
            version: 2,
            present: true,
        };
        told.0.hint((7, 1), &left, &mut told.1);
        told.wants(&[10])
    });
}

#[test]
fn an_unserved_broker_is_not_waited_for() {
    seeds_find(Bug::UntoldUncounted, Plan::apart);
}

#[test]
fn a_broker_is_complete_by_a_router_without_its_peers_reports() {
    seeds_find(Bug::PeersUnheard, Plan::apart);
}

#[test]
fn a_new_subscriber_gets_only_changes() {
    seeds_find(Bug::SubscribedUntold, Plan::draw);
}

#[test]
fn owners_follow_from_the_number_of_brokers() {
    part_finds(TransportBug::OwnerByNumber, || {
        let of = |count: u32| {
            let nodes = (1..=count).map(|node| PlacedNode::new(node, role::BROKER, Addr::default()));
            room_placement(1, nodes.collect(), 1, 1)
        };
        let (four, five) = (of(4), of(5));
        let moved = (0..1_000).filter(|room| four.own().owner(*room) != five.own().owner(*room));
        moved.count() < 300
    });
}

#[test]
fn a_gateway_cut_off_only_from_brokers_counts_as_gone() {
    seeds_find(Bug::AwayUnasked, Plan::cut_off);
}

#[test]
fn a_command_counts_as_delivered_once_sent() {
    seeds_find(Bug::ToldIsDelivered, Plan::commands);
}

#[test]
fn a_member_takes_each_copy_of_a_command() {
    seeds_find(Bug::CommandsForgotten, Plan::commands);
}

#[test]
fn only_the_last_of_several_proxies_gets_an_outcome() {
    seeds_find(Bug::LastAskerAnswered, Plan::commands);
}

#[test]
fn a_link_on_which_nothing_comes_stays() {
    seeds_find(TransportBug::SilenceUnnoticed, Plan::draw);
}

#[test]
fn secret_not_renewed() {
    seeds_find(TransportBug::SecretNotRenewed, Plan::rekeys);
}

#[test]
fn the_link_of_a_shut_out_node_stays() {
    seeds_find(TransportBug::ShutOutStays, Plan::rekeys);
}

#[test]
fn left_out_for_good() {
    seeds_find(TransportBug::LeftOutForGood, Plan::commands);
}

#[test]
fn none_left() {
    part_finds(TransportBug::NoneLeft, || {
        let mut health = Health::default();
        let link = |rtt| {
            Some(Reading {
                since: 1,
                rtt,
                told: (1, 1),
            })
        };
        health.judge(&[1, 2, 3, 4].map(|node| (node, link(1_000))));
        (1..=2).for_each(|node| health.lost(node));
        (0..10).for_each(|_| health.judge(&[(1, None), (2, None), (3, link(900_000)), (4, link(1_000))]));
        health.ejected_len() == 2
    });
}

#[test]
fn judged_in_haste() {
    seeds_find(TransportBug::JudgedInHaste, Plan::lossy);
}

#[test]
fn an_earlier_life_of_a_gateway_returns() {
    part_finds(Bug::EarlierLifeReturns, || {
        let mut told = Views::new();
        told.snapshot(1, 2, 3, &[10]);
        told.snapshot(2, 1, 9, &[11]);
        told.wants(&[10])
    });
}

#[test]
fn a_lost_routers_reports_are_forgotten() {
    seeds_find(Bug::RouterTakesItAlong, Plan::draw);
}

#[test]
fn positions_ahead_of_their_owner_are_believed() {
    seeds_find(Bug::AheadBelieved, Plan::ahead);
}

#[test]
fn a_filter_passes_messages_that_are_wanted() {
    seeds_find(Bug::FilterPassesWanted, Plan::filters);
}

#[test]
fn what_a_member_with_a_filter_lost_is_passed() {
    seeds_find(Bug::RepairsPassAll, Plan::filters);
}

#[test]
fn the_latest_message_that_a_member_lost_is_not_sent_again() {
    seeds_find(Bug::LatestNotAgain, Plan::filters);
}

#[test]
fn the_latest_message_is_forgotten_where_a_room_falls_silent() {
    seeds_find(Bug::LatestNotLast, Plan::filters);
}

#[test]
fn a_broker_that_came_back_goes_on_with_its_streams() {
    seeds_find(Bug::ReturnUnnoticed, Plan::ahead);
}

#[test]
fn the_children_of_a_silent_relay_are_left_to_it() {
    seeds_find(Bug::SilentRelayStays, Plan::relays);
}
