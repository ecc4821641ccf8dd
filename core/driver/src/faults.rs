//! Faults that a test or an operator injects between a machine and its sockets.
//!
//! Owns: [`Faults`], its rules, its seeded dice and the queue of delayed datagrams. Acts on single datagrams:
//! received super-packets are already split, sent ones not yet joined. Knows no role and no socket.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use muster_transport::{Addr, Arrival, Inbox, Micros, Outbox, SocketId, OUTBOX_BYTES};

/// Maximum number of delayed datagrams, in both directions together: at 1,472 B each 96 MiB.
pub const HELD_MAX: usize = 65_536;
/// Bytes passed to the machine at once when they are due.
const RELEASED_BYTES: usize = 128 << 10;
/// How long a due datagram waits for space in a slice of the machine.
const OVERDUE_US: Micros = 1_000;
/// Maximum number of peers of one rule that are in a burst at once; beyond it, losses are single.
const BURSTS_MAX: usize = 65_536;

/// The direction of a datagram, seen from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

/// The effect on matching datagrams. The first rule that matches a datagram decides alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    pub direction: Direction,
    /// `None` matches every socket.
    pub socket: Option<SocketId>,
    /// `None` matches every peer.
    pub remote: Option<Addr>,
    /// Probabilities, each applied independently.
    pub loss: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    pub reorder: f64,
    /// Mean number of datagrams of one peer that are lost in a row: with longer bursts there are fewer, so `loss`
    /// remains the share lost. Up to 1, each loss is independent.
    pub burst: f64,
    /// How much later a reordered datagram leaves than the others.
    pub reorder_ms: u32,
    pub delay_ms: u32,
    /// Uniformly distributed between 0 and this, on top of the delay.
    pub jitter_ms: u32,
}

impl Rule {
    /// A rule for all datagrams of a direction that has no effect yet.
    pub fn new(direction: Direction) -> Self {
        Rule {
            direction,
            socket: None,
            remote: None,
            loss: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            burst: 1.0,
            reorder_ms: 0,
            delay_ms: 0,
            jitter_ms: 0,
        }
    }

    fn matches(&self, direction: Direction, socket: SocketId, remote: &Addr) -> bool {
        self.direction == direction
            && self.socket.is_none_or(|wanted| wanted == socket)
            && self.remote.is_none_or(|wanted| wanted == *remote)
    }
}

/// An invalid rule: a probability outside 0 to 1, or a burst length that is not positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleError {
    pub rule: usize,
    pub value: f64,
}

impl std::fmt::Display for RuleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "fault rule {}: {} is not a valid probability or length",
            self.rule, self.value
        )
    }
}

impl std::error::Error for RuleError {}

muster_transport::counters! {
    /// Effects on datagrams that matched a rule. `seen` + `duplicated` = passed + `lost` + `overflowed` + delayed
    /// ones.
    pub struct FaultCounters {
        /// Datagrams matched by a rule of injected faults.
        seen,
        /// Datagrams that injected faults lost.
        lost,
        /// Datagrams that injected faults doubled.
        duplicated,
        /// Datagrams that injected faults damaged.
        corrupted,
        /// Datagrams that injected faults held back, so that later ones overtake them.
        reordered,
        /// Datagrams that injected faults delayed.
        delayed,
        /// Datagrams dropped instead of held back: too many were held already.
        overflowed,
    }
}

/// The fate of one datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fate {
    lost: bool,
    /// The bit to flip, modulo the length.
    corrupt: Option<u64>,
    hold_us: Micros,
    /// The separate time of the copy.
    duplicate_us: Option<Micros>,
}

/// A delayed datagram; ordered by due time, then by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Delayed {
    due: Micros,
    order: u64,
    socket: SocketId,
    remote: Addr,
    bytes: Box<[u8]>,
}

/// A rule with its dice, and the peers in a burst of losses.
struct Ruled {
    rule: Rule,
    dice: Dice,
    bursts: BTreeSet<(SocketId, Addr)>,
}

impl Ruled {
    /// Whether a datagram is lost: independently, or by a chain of two states (Gilbert's) of which one loses
    /// everything.
    fn loses(&mut self, socket: SocketId, remote: &Addr) -> bool {
        let Ruled { rule, dice, bursts } = self;
        if rule.burst <= 1.0 || rule.loss >= 1.0 {
            return dice.hits(rule.loss);
        }
        let end = 1.0 / rule.burst;
        if bursts.contains(&(socket, *remote)) {
            if !dice.hits(end) {
                return true;
            }
            bursts.remove(&(socket, *remote));
            return false;
        }
        let begins = dice.hits(end * rule.loss / (1.0 - rule.loss));
        if begins && bursts.len() < BURSTS_MAX {
            bursts.insert((socket, *remote));
        }
        begins
    }
}

/// Injected faults: the same seed, rules and datagrams give the same fates.
pub struct Faults {
    rules: Vec<Ruled>,
    arriving: BinaryHeap<Reverse<Delayed>>,
    leaving: BinaryHeap<Reverse<Delayed>>,
    order: u64,
    slab: Vec<u8>,
    arrivals: Vec<Arrival>,
    counters: FaultCounters,
}

impl Faults {
    pub fn new(seed: u64, rules: Vec<Rule>) -> Result<Self, RuleError> {
        for (index, rule) in rules.iter().enumerate() {
            for value in [rule.loss, rule.duplicate, rule.corrupt, rule.reorder] {
                if !(0.0..=1.0).contains(&value) {
                    return Err(RuleError { rule: index, value });
                }
            }
            if !(rule.burst.is_finite() && rule.burst >= 0.0) {
                return Err(RuleError {
                    rule: index,
                    value: rule.burst,
                });
            }
        }
        // Each rule has separate dice, so that the interleaving of directions changes no fate.
        let mut seeds = Dice(seed);
        let ruled = |rule| Ruled {
            rule,
            dice: Dice(seeds.next()),
            bursts: BTreeSet::new(),
        };
        Ok(Faults {
            rules: rules.into_iter().map(ruled).collect(),
            arriving: BinaryHeap::new(),
            leaving: BinaryHeap::new(),
            order: 0,
            slab: Vec::new(),
            arrivals: Vec::new(),
            counters: FaultCounters::default(),
        })
    }

    pub fn counters(&self) -> &FaultCounters {
        &self.counters
    }

    /// Number of delayed datagrams.
    pub fn held(&self) -> usize {
        self.arriving.len() + self.leaving.len()
    }

    /// Applies the rules to a received batch: datagrams that pass stay in `arrivals`.
    pub(crate) fn filter(&mut self, now: Micros, slab: &mut [u8], arrivals: &mut Vec<Arrival>) {
        arrivals.retain(|arrival| {
            let bytes = &mut slab[arrival.start as usize..(arrival.start + arrival.len) as usize];
            self.passes(now, Direction::In, arrival.socket, &arrival.from, bytes)
        });
    }

    /// Applies the rules to a machine's slice without joined datagrams; those that pass go to `outbox`, which must be
    /// empty.
    pub(crate) fn pass(&mut self, now: Micros, intake: &mut Outbox, outbox: &mut Outbox) {
        outbox.sift(intake, |socket, to, bytes| {
            self.passes(now, Direction::Out, socket, to, bytes)
        });
    }

    /// Whether a delayed datagram is due to leave.
    pub(crate) fn leaves(&self, now: Micros) -> bool {
        self.leaving.peek().is_some_and(|Reverse(held)| held.due <= now)
    }

    /// Whether a datagram due to leave has found no space for too long.
    pub(crate) fn overdue(&self, now: Micros) -> bool {
        self.leaves(now.saturating_sub(OVERDUE_US))
    }

    /// Fills the space in `outbox` with datagrams due to leave.
    pub(crate) fn release(&mut self, now: Micros, outbox: &mut Outbox) {
        while outbox.room() > 0 {
            let used = outbox
                .parcels()
                .last()
                .map_or(0, |parcel| (parcel.start + parcel.len) as usize);
            let fits = |held: &Delayed| held.due <= now && used + held.bytes.len() <= OUTBOX_BYTES;
            if !self.leaving.peek().is_some_and(|Reverse(held)| fits(held)) {
                return;
            }
            if let Some(Reverse(held)) = self.leaving.pop() {
                outbox.reserve(held.bytes.len()).copy_from_slice(&held.bytes);
                outbox.commit(held.socket, held.remote, held.bytes.len());
            }
        }
    }

    /// The next batch of datagrams due to arrive, if any.
    pub(crate) fn arrive(&mut self, now: Micros) -> Option<Inbox<'_>> {
        self.slab.clear();
        self.arrivals.clear();
        while self.slab.len() < RELEASED_BYTES {
            if self.arriving.peek().is_none_or(|Reverse(held)| held.due > now) {
                break;
            }
            if let Some(Reverse(held)) = self.arriving.pop() {
                let (start, len) = (self.slab.len() as u32, held.bytes.len() as u32);
                self.arrivals.push(Arrival {
                    socket: held.socket,
                    from: held.remote,
                    start,
                    len,
                });
                self.slab.extend_from_slice(&held.bytes);
            }
        }
        (!self.arrivals.is_empty()).then_some(Inbox {
            slab: &mut self.slab,
            arrivals: &self.arrivals,
        })
    }

    /// When a delayed datagram is due; those that cannot leave now do not count.
    pub(crate) fn due(&self, can_leave: bool) -> Option<Micros> {
        let arriving = self.arriving.peek().map(|Reverse(held)| held.due);
        let leaving = self.leaving.peek().filter(|_| can_leave).map(|Reverse(held)| held.due);
        arriving.into_iter().chain(leaving).min()
    }

    fn fate(&mut self, direction: Direction, socket: SocketId, remote: &Addr) -> Option<Fate> {
        let ruled = self
            .rules
            .iter_mut()
            .find(|ruled| ruled.rule.matches(direction, socket, remote))?;
        let counters = &mut self.counters;
        counters.seen += 1;
        let mut fate = Fate::default();
        if ruled.loses(socket, remote) {
            counters.lost += 1;
            fate.lost = true;
            return Some(fate);
        }
        let Ruled { rule, dice, .. } = ruled;
        if dice.hits(rule.corrupt) {
            counters.corrupted += 1;
            fate.corrupt = Some(dice.next());
        }
        let transit_us = |dice: &mut Dice| {
            let spread = (dice.fraction() * f64::from(rule.jitter_ms) * 1_000.0) as Micros;
            Micros::from(rule.delay_ms) * 1_000 + if rule.jitter_ms > 0 { spread } else { 0 }
        };
        fate.hold_us = transit_us(dice);
        counters.delayed += u64::from(fate.hold_us > 0);
        if dice.hits(rule.duplicate) {
            counters.duplicated += 1;
            fate.duplicate_us = Some(transit_us(dice));
        }
        if dice.hits(rule.reorder) {
            counters.reordered += 1;
            fate.hold_us += Micros::from(rule.reorder_ms) * 1_000;
        }
        Some(fate)
    }

    /// Rolls the dice for a datagram and applies the result. `false`: it is dropped or delayed.
    fn passes(&mut self, now: Micros, direction: Direction, socket: SocketId, remote: &Addr, bytes: &mut [u8]) -> bool {
        let Some(fate) = self.fate(direction, socket, remote) else {
            return true;
        };
        if fate.lost {
            return false;
        }
        self.spoil(fate, bytes);
        if let Some(extra) = fate.duplicate_us {
            self.hold(direction, now + extra, socket, *remote, bytes);
        }
        if fate.hold_us > 0 {
            self.hold(direction, now + fate.hold_us, socket, *remote, bytes);
        }
        fate.hold_us == 0
    }

    fn spoil(&self, fate: Fate, bytes: &mut [u8]) {
        if let (Some(bit), false) = (fate.corrupt, bytes.is_empty()) {
            let bit = (bit % (bytes.len() as u64 * 8)) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn hold(&mut self, direction: Direction, due: Micros, socket: SocketId, remote: Addr, bytes: &[u8]) {
        if self.held() >= HELD_MAX {
            self.counters.overflowed += 1;
            return;
        }
        self.order += 1;
        let held = Reverse(Delayed {
            due,
            order: self.order,
            socket,
            remote,
            bytes: bytes.into(),
        });
        match direction {
            Direction::In => self.arriving.push(held),
            Direction::Out => self.leaving.push(held),
        }
    }
}

/// SplitMix64: small, and good enough for dropping datagrams.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniformly distributed in [0, 1).
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn hits(&mut self, probability: f64) -> bool {
        // Always rolled, so that switching one fault off leaves the fates by the others unchanged.
        self.fraction() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 20_000;

    fn peer(port: u16) -> Addr {
        Addr {
            port,
            ..Addr::default()
        }
    }

    /// Sends `count` numbered datagrams through `faults`, a millisecond apart, and returns when each copy left.
    fn sent_through(faults: &mut Faults, count: usize) -> Vec<(Micros, u32)> {
        let (mut intake, mut outbox) = (Outbox::new(false), Outbox::new(true));
        let mut left = Vec::new();
        let mut take = |now: Micros, outbox: &mut Outbox| {
            for parcel in outbox.parcels() {
                for bytes in outbox.bytes(parcel).chunks(4) {
                    left.push((now, u32::from_be_bytes(bytes.try_into().unwrap())));
                }
            }
            outbox.clear();
        };
        for number in 0..count as u32 {
            let now = Micros::from(number) * 1_000;
            faults.release(now, &mut outbox);
            take(now, &mut outbox);
            intake.reserve(4).copy_from_slice(&number.to_be_bytes());
            intake.commit(0, peer(9), 4);
            faults.pass(now, &mut intake, &mut outbox);
            take(now, &mut outbox);
        }
        while let Some(due) = faults.leaving.peek().map(|Reverse(held)| held.due) {
            faults.release(due, &mut outbox);
            take(due, &mut outbox);
        }
        left
    }

    fn received_through(faults: &mut Faults, count: usize) -> Vec<u32> {
        let mut left = Vec::new();
        for number in 0..count as u32 {
            let mut slab = number.to_be_bytes();
            let mut arrivals = vec![Arrival {
                socket: 0,
                from: peer(9),
                start: 0,
                len: 4,
            }];
            faults.filter(0, &mut slab, &mut arrivals);
            left.extend(arrivals.iter().map(|_| u32::from_be_bytes(slab)));
        }
        left
    }

    fn near(counted: u64, probability: f64) {
        let wanted = COUNT as f64 * probability;
        // Five standard deviations: the seed is fixed, but a changed generator should not cause a false failure.
        let spread = 5.0 * (wanted * (1.0 - probability)).sqrt();
        assert!(
            (counted as f64 - wanted).abs() <= spread,
            "{counted} is not {wanted} +- {spread}"
        );
    }

    fn wild(direction: Direction) -> Rule {
        Rule {
            loss: 0.1,
            duplicate: 0.05,
            corrupt: 0.02,
            reorder: 0.2,
            reorder_ms: 7,
            delay_ms: 10,
            jitter_ms: 5,
            ..Rule::new(direction)
        }
    }

    #[test]
    fn counts_match_the_probabilities() {
        let mut faults = Faults::new(1, vec![wild(Direction::Out)]).unwrap();
        let left = sent_through(&mut faults, COUNT);
        let counters = faults.counters();
        assert_eq!(counters.seen, COUNT as u64);
        near(counters.lost, 0.1);
        near(counters.duplicated, 0.9 * 0.05);
        near(counters.corrupted, 0.9 * 0.02);
        near(counters.reordered, 0.9 * 0.2);
        assert_eq!(left.len() as u64, counters.seen + counters.duplicated - counters.lost);
        assert_eq!((counters.overflowed, faults.held()), (0, 0));
    }

    #[test]
    fn the_same_seed_gives_the_same_fates_and_another_seed_others() {
        let run = |seed| sent_through(&mut Faults::new(seed, vec![wild(Direction::Out)]).unwrap(), 2_000);
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn fates_of_one_direction_do_not_depend_on_the_other() {
        let rules = vec![wild(Direction::Out), wild(Direction::In)];
        let mut alone = Faults::new(7, rules.clone()).unwrap();
        let mut mixed = Faults::new(7, rules).unwrap();
        received_through(&mut mixed, 777);
        assert_eq!(sent_through(&mut alone, 2_000), sent_through(&mut mixed, 2_000));
    }

    #[test]
    fn bursts_lose_the_same_share_of_each_peer_in_runs_of_their_mean_length() {
        let rule = Rule {
            loss: 0.05,
            burst: 4.0,
            ..Rule::new(Direction::Out)
        };
        let mut faults = Faults::new(1, vec![rule]).unwrap();
        let mut runs = [0u32; 2];
        let mut open = [false; 2];
        let mut lost = [0u32; 2];
        for number in 0..10 * COUNT {
            // Another peer's datagrams in between neither end a burst nor are affected by it.
            let peer_at = number % 2;
            let fate = faults.fate(Direction::Out, 0, &peer(peer_at as u16)).unwrap();
            lost[peer_at] += u32::from(fate.lost);
            runs[peer_at] += u32::from(fate.lost && !open[peer_at]);
            open[peer_at] = fate.lost;
        }
        for (lost, runs) in lost.into_iter().zip(runs) {
            let (share, length) = (f64::from(lost) / (5 * COUNT) as f64, f64::from(lost) / f64::from(runs));
            assert!((0.045..0.055).contains(&share), "{share}");
            assert!((3.7..4.3).contains(&length), "{length}");
        }
        let never = Rule { loss: 0.0, ..rule };
        let mut faults = Faults::new(1, vec![never, Rule { loss: 1.0, ..rule }]).unwrap();
        assert_eq!(received_through(&mut faults, 100).len(), 100);
        assert_eq!(sent_through(&mut faults, 100).len(), 100);
        let always = Rule { loss: 1.0, ..rule };
        assert!(sent_through(&mut Faults::new(1, vec![always]).unwrap(), 100).is_empty());
    }

    #[test]
    fn delay_and_jitter_keep_their_bounds_and_only_jitter_reorders() {
        let steady = Rule {
            delay_ms: 10,
            ..Rule::new(Direction::Out)
        };
        let left = sent_through(&mut Faults::new(1, vec![steady]).unwrap(), 500);
        assert!(left
            .iter()
            .enumerate()
            .all(|(index, (_, number))| *number as usize == index));
        assert!(left
            .iter()
            .all(|(at, number)| *at == Micros::from(*number) * 1_000 + 10_000));

        let shaky = Rule { jitter_ms: 5, ..steady };
        let left = sent_through(&mut Faults::new(1, vec![shaky]).unwrap(), 500);
        assert!(!left.is_sorted_by_key(|(_, number)| *number));
        // The harness checks once a millisecond.
        let transit = |(at, number): &(Micros, u32)| at - Micros::from(*number) * 1_000;
        assert!(left
            .iter()
            .all(|datagram| (10_000..=16_000).contains(&transit(datagram))));
    }

    #[test]
    fn a_reordered_datagram_is_overtaken() {
        let rule = Rule {
            reorder: 0.1,
            reorder_ms: 3,
            ..Rule::new(Direction::Out)
        };
        let mut faults = Faults::new(1, vec![rule]).unwrap();
        let left = sent_through(&mut faults, 1_000);
        let overtaken = left
            .iter()
            .filter(|(at, number)| *at > Micros::from(*number) * 1_000)
            .count();
        assert_eq!(overtaken as u64, faults.counters().reordered);
        assert!(overtaken > 50 && left.len() == 1_000);
    }

    #[test]
    fn corruption_flips_one_bit() {
        let rule = Rule {
            corrupt: 1.0,
            ..Rule::new(Direction::In)
        };
        let mut faults = Faults::new(1, vec![rule]).unwrap();
        for (number, received) in received_through(&mut faults, 1_000).into_iter().enumerate() {
            assert_eq!((received ^ number as u32).count_ones(), 1);
        }
        let mut arrivals = vec![Arrival {
            socket: 0,
            from: peer(9),
            start: 0,
            len: 0,
        }];
        faults.filter(0, &mut [], &mut arrivals);
        assert_eq!(arrivals.len(), 1, "an empty datagram has no bit to flip");
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_others_pass_untouched() {
        let lossy = |socket, remote| Rule {
            loss: 1.0,
            socket,
            remote,
            ..Rule::new(Direction::In)
        };
        let spared = Rule {
            socket: Some(1),
            ..Rule::new(Direction::In)
        };
        let mut faults = Faults::new(1, vec![spared, lossy(Some(2), None), lossy(None, Some(peer(5)))]).unwrap();
        for (socket, port, passes) in [(1, 5, true), (2, 6, false), (3, 5, false), (3, 6, true)] {
            let mut arrivals = vec![Arrival {
                socket,
                from: peer(port),
                start: 0,
                len: 1,
            }];
            faults.filter(0, &mut [0], &mut arrivals);
            assert_eq!(!arrivals.is_empty(), passes, "socket {socket}, port {port}");
        }
        assert_eq!(faults.counters().seen, 3);
    }

    #[test]
    fn the_delay_queue_is_bounded_and_counts_what_it_drops() {
        let rule = Rule {
            delay_ms: 1_000,
            ..Rule::new(Direction::In)
        };
        let mut faults = Faults::new(1, vec![rule]).unwrap();
        assert!(received_through(&mut faults, HELD_MAX + 10).is_empty());
        assert_eq!((faults.held(), faults.counters().overflowed), (HELD_MAX, 10));
        assert!(faults.arrive(999_999).is_none());
        let mut arrived = 0;
        while let Some(mut inbox) = faults.arrive(1_000_000) {
            for index in 0..inbox.arrivals.len() {
                assert_eq!(inbox.datagram(index).1, (arrived as u32).to_be_bytes());
                arrived += 1;
            }
        }
        assert_eq!(arrived, HELD_MAX);
    }

    #[test]
    fn invalid_probabilities_are_refused() {
        for value in [-0.1, 1.1, f64::NAN] {
            let rules = vec![
                Rule::new(Direction::In),
                Rule {
                    reorder: value,
                    ..Rule::new(Direction::In)
                },
            ];
            let error = Faults::new(1, rules).err().unwrap();
            assert_eq!(error.rule, 1);
        }
        let rule = Rule {
            burst: f64::INFINITY,
            ..Rule::new(Direction::In)
        };
        assert_eq!(Faults::new(1, vec![rule]).err().unwrap().rule, 0);
    }
}
