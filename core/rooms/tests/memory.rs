//! The memory of an idle session at a gateway, by counted allocations: what the machine requested, without an
//! allocator's rounding or the kernel's pages.
//!
//! `cargo test --release -p muster-rooms --test memory -- --nocapture` prints the parts. `SESSIONS=10000` counts that
//! many sessions.

mod common;

use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use muster_rooms::wire::Positions;
use muster_rooms::{role, Gateway, GatewayEvent};
use muster_transport::{ClusterKeys, FrameKind, Inbox, Machine, Micros, Outbox, Role};

const SECOND: Micros = 1_000_000;
/// With this number, tables that double have as much spare capacity as with 10,000 sessions: 1.64 times what they
/// need.
const SESSIONS: u32 = 2_500;
/// With this many sessions the process has made its one-time allocations.
const BASE: u32 = 1_100;
/// The limit of PF-12.
const BYTES_MAX: f64 = 1_024.0;
/// Two sweeps of keys, one every 3 s, and a second. A session ends after 10 s.
const SILENT: Micros = 7 * SECOND;

/// The system's allocator, with counting while the machine works.
struct Counting;

/// Blocks that the machine has allocated, by size in steps of 16 B.
static BLOCKS: [AtomicIsize; 1 << 15] = [const { AtomicIsize::new(0) }; 1 << 15];
static BYTES: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static WORKS: Cell<bool> = const { Cell::new(false) };
}

fn count(size: usize, by: isize) {
    if WORKS.get() {
        BYTES.fetch_add(by * size as isize, Relaxed);
        BLOCKS[(size / 16).min(BLOCKS.len() - 1)].fetch_add(by, Relaxed);
    }
}

// SAFETY: every call goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        System.alloc(layout)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        System.dealloc(block, layout);
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        System.realloc(block, layout, size)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A gateway whose allocations alone are counted.
struct Counted(Gateway);

impl Counted {
    fn work<R>(&mut self, work: impl FnOnce(&mut Gateway) -> R) -> R {
        WORKS.set(true);
        let result = work(&mut self.0);
        WORKS.set(false);
        result
    }
}

impl Machine for Counted {
    type Event = GatewayEvent;

    fn receive(&mut self, now: Micros, inbox: &mut Inbox<'_>) {
        self.work(|gateway| gateway.receive(now, inbox));
    }

    fn expire(&mut self, now: Micros) {
        self.work(|gateway| gateway.expire(now));
    }

    fn transmit(&mut self, now: Micros, outbox: &mut Outbox) -> bool {
        self.work(|gateway| gateway.transmit(now, outbox))
    }

    fn deadline(&self) -> Option<Micros> {
        self.0.deadline()
    }

    fn drain_events(&mut self, events: &mut Vec<GatewayEvent>) {
        self.0.drain_events(events);
    }

    fn stalled(&mut self, now: Micros) {
        self.0.stalled(now);
    }
}

impl Subject for Counted {
    const ROLE: Role = role::GATEWAY;

    fn build(seed: u64) -> Self {
        Counted(Gateway::build(seed))
    }

    fn authenticate(&mut self, now: Micros) {
        self.work(|gateway| gateway.authenticate(now));
    }

    fn digest(&self) -> String {
        self.0.digest()
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.0.counters(each);
    }

    fn take_cluster(&mut self, now: Micros, keys: ClusterKeys) {
        self.0.take_cluster(now, keys);
    }

    /// 0: the broker; 1: the router; 2: a member.
    fn settle(rig: &mut Rig<Self>) {
        rig.link(BROKER, role::BROKER);
        rig.link(ROUTER, role::ROUTER);
        rig.session(1);
        rig.join(2, 1, ROOM, Positions::default());
        rig.tell(1, &muster_rooms::wire::Record::Covered { offset: 1 << 20 });
        rig.say(0, &link_room(1, 1, &[b"one"]));
        rig.pass(100_000, 5_000);
    }
}

/// Every session asks whether the gateway is there.
fn ask(rig: &mut Rig<Counted>) {
    for peer in 2..rig.peers.len() {
        rig.frame(peer, FrameKind::PING.code(), &[]);
    }
}

/// Adds sessions of these users, each a member of the room.
fn come(rig: &mut Rig<Counted>, users: std::ops::Range<u32>) {
    for user in users {
        let peer = rig.session_of(user, format!("user {user}").as_bytes());
        rig.join(peer, 1, ROOM, Positions::default());
        if user % 1_000 == 0 {
            ask(rig); // otherwise the first ones would have been silent for too long
        }
    }
}

/// Every session sends keepalives, then is silent until no key is held.
fn settle(rig: &mut Rig<Counted>) {
    for _ in 0..3 {
        ask(rig);
        rig.pass(SECOND, 50_000);
    }
    rig.pass(SILENT, 50_000);
}

fn bytes() -> isize {
    BYTES.load(Relaxed)
}

fn blocks() -> Vec<isize> {
    BLOCKS.iter().map(|count| count.load(Relaxed)).collect()
}

#[test]
fn an_idle_session_takes_no_more_than_a_kibibyte() {
    let sessions = std::env::var("SESSIONS").map_or(SESSIONS, |count| count.parse().expect("a number"));
    let mut rig = Rig::<Counted>::new();
    come(&mut rig, 2..BASE + 1);
    settle(&mut rig);
    let (before, had) = (bytes(), blocks());
    come(&mut rig, BASE + 1..sessions + 1);
    rig.pass(SECOND, 50_000);
    let more = sessions - BASE;
    let each = |bytes: isize| (bytes - before) as f64 / f64::from(more);
    println!("{more} sessions beside {BASE}, bytes each");
    println!("joined: {:.0}", each(bytes()));
    for offset in 2..12 {
        rig.say(0, &link_room(1, offset, &[&[b'x'; 200]]));
        rig.pass(100_000, 10_000);
    }
    println!("after 10 messages in a second: {:.0}", each(bytes()));
    settle(&mut rig);
    let settled = each(bytes());
    println!("idle: {settled:.0}; of these, by the size of a block:");
    for (at, (now, had)) in blocks().into_iter().zip(had).enumerate() {
        let grown = (now - had) * (at as isize * 16);
        if grown.abs() > 2 * more as isize {
            println!(
                "  {:>7} B: {:>6} blocks, {:>6.1}",
                at * 16,
                now - had,
                grown as f64 / f64::from(more)
            );
        }
    }
    let members = rig.machine.0.rooms().map(|room| room.members.len()).sum::<usize>();
    assert_eq!(members, sessions as usize, "all are there");
    assert!(settled <= BYTES_MAX, "{settled} B");
}
